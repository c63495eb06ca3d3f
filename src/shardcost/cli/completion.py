"""``shardcost completion``: a script that completes commands, options and names in a shell.

It is generated from the parsers of the commands and the table of options, with the names that the
catalog has now. The script runs in the shell alone: pressing Tab starts no Python.
"""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from shardcost import catalog, options
from shardcost.cli import COMMANDS, MODES, command_of
from shardcost.cli.options import Parser, print_report
from shardcost.option import PHASES
from shardcost.request import names_of

_EXAMPLES: Final = """\
  shardcost completion bash
  shardcost completion zsh
  shardcost completion fish

where the script goes:
  source <(shardcost completion bash)  # in ~/.bashrc
  source <(shardcost completion zsh)  # in ~/.zshrc
  shardcost completion fish > ~/.config/fish/completions/shardcost.fish
"""
_GENERAL: Final = {"--help": "the commands, with examples", "--version": "the version"}
"""Options without a command."""
_FOLDERS: Final[Mapping[str, catalog.Folder]] = {
    "model": "models", "on": "clusters", "prefill_on": "clusters", "network": "networks",
    "software": "software", "positional": "models",
}  # fmt: skip
"""Arguments that take a name of the catalog, with the folder that has it."""
_LISTED: Final[Mapping[str, tuple[catalog.Folder, ...]]] = {
    "models": ("models",), "clusters": ("clusters", "networks"), "software": ("software",),
}  # fmt: skip
"""Commands that show one of the catalog, with its folders."""
_TABLE: Final = (
    *options.ESTIMATE.values(), *options.LOAD.values(), *options.SEARCH, *options.RUN,
    *options.DEPLOYMENTS, *options.COLLECTIVE,
)  # fmt: skip
"""Options whose table says what they may be; of several of a name, the first."""
_FILES: Final = ("FILE", "DIR", "TABLE")
"""How files and folders are called in the help, before the ending that they have."""


class Argument(NamedTuple):
    """One argument of a command: an option, or a word by its place."""

    flags: tuple[str, ...]
    """As the command line has it; empty for a word by its place."""
    help: str
    takes_value: bool
    words: tuple[str, ...]
    """What its value may be, as far as that is a list."""
    takes_file: bool
    optional: bool = False
    """Whether the value may be left out."""
    repeats: bool = False
    """Whether it may be given several times."""


def parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser("completion", "A script that completes what you type in a shell.", _EXAMPLES)
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="the shell that runs the script")
    return parser


def run(given: Namespace) -> int:
    """Print the script of a shell."""
    script = _SCRIPTS[given.shell]({name: tuple(_arguments(name)) for name in COMMANDS})
    document = {"shell": given.shell, "script": script}
    return print_report(given, lambda: document, lambda: script.rstrip("\n"))


_Commands = Mapping[str, tuple[Argument, ...]]


def _arguments(command: str) -> Iterator[Argument]:
    """Yield the arguments of a command, of all its modes, each once."""
    modes = [mode for name, mode in MODES if name == command]
    if modes:
        yield Argument((), "what is run", takes_value=True, words=tuple(modes), takes_file=False)
    seen: set[str] = set()
    for words in ([command], *([command, mode] for mode in modes)):
        module, _ = command_of(words)
        for action in module.parser()._actions:
            if action.dest not in seen:
                seen.add(action.dest)
                yield _argument(command, action)


def _argument(command: str, action: argparse.Action) -> Argument:
    takes_value = action.nargs != 0
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    words = tuple(map(str, action.choices or ())) or tuple(_words(command, action))
    text = (action.help or "").replace("%%", "%")
    return Argument(
        flags=tuple(action.option_strings),
        help=re.split(" ?[;:(]", text)[0],
        takes_value=takes_value,
        words=words if takes_value else (),
        takes_file=metavar.partition(".")[0] in _FILES or action.dest in _FOLDERS,
        optional=action.nargs == "?",
        repeats=isinstance(action, argparse._AppendAction),
    )


def _words(command: str, action: argparse.Action) -> Iterator[str]:
    """Yield what an argument may be: names of the catalog, choices of the table of options."""
    name = action.dest
    if name in _FOLDERS:
        yield from catalog.all_names(_FOLDERS[name])
    elif name == "name" and not action.option_strings:
        for folder in _LISTED.get(command, ()):
            yield from catalog.all_names(folder)
    elif name == "collective" and command == "collective":
        from shardcost.collectives import COLLECTIVES

        yield from (*COLLECTIVES, "dispatch", "combine")
    elif name in {"vary", "fix"}:
        varied = (each for phase in PHASES for each in options.varied(phase))
        names = dict.fromkeys(varied) if name == "vary" else options.AXES
        yield from (f"{each}=" for each in names)
    elif name == "launch":
        from shardcost.report.launch_tools import TOOLS

        yield from TOOLS
    elif name == "engine":
        from shardcost.search.engines import ENGINES

        yield from ENGINES
    else:
        option = next((row for row in _TABLE if row.name == name), None)
        if option is not None:
            yield from names_of(option) or map(str, option.choices if option.kind != "flag" else ())


# ---------------------------------------------------------------------------------------- bash

_BASH: Final = """\
# Completion of shardcost for bash, made by `shardcost completion bash`.
_shardcost() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} cmd=${{COMP_WORDS[1]}}
  local words="" files=no before="" file
  COMPREPLY=()
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "{commands}" -- "$cur"))
    return
  fi
  if [[ $cur == = ]]; then  # bash takes --on=h100 for three words, and tp=8 after --vary too
    cur=""
  elif [[ $prev == = ]]; then
    prev=${{COMP_WORDS[COMP_CWORD-2]}}
  fi
  if [[ ${{COMP_WORDS[COMP_CWORD]}} == = || ${{COMP_WORDS[COMP_CWORD-1]}} == = ]]; then
    if [[ $prev != -* ]]; then
      prev="--${{prev//_/-}}"
    fi
  fi
  case "$cmd $prev" in
{values}
    *)
      case "$cmd" in
{options}
      esac
      ;;
  esac
  if [[ $cur == *,* ]]; then  # the last of several
    before="${{cur%,*}},"
    cur="${{cur##*,}}"
  fi
  COMPREPLY=($(compgen -P "$before" -W "$words" -- "$cur"))
  if [[ $files == yes ]]; then
    while IFS= read -r file; do  # a line each: names of files may have blanks
      COMPREPLY+=("$file")
    done < <(compgen -P "$before" -f -- "$cur")
  fi
  if type compopt >/dev/null 2>&1; then
    if [[ ${{COMPREPLY[0]}} == *= ]]; then
      compopt -o nospace
    elif [[ $files == yes ]]; then
      compopt -o filenames
    fi
  fi
}}
complete -F _shardcost shardcost
"""


def _bash(commands: _Commands) -> str:
    values: dict[tuple[str, bool], list[str]] = {}
    for command, arguments in commands.items():
        for each in arguments:
            if each.takes_value:
                key = " ".join(each.words), each.takes_file
                values.setdefault(key, []).extend(f'"{command} {flag}"' for flag in each.flags)
    lines = [
        f'    {"|".join(patterns)}) words="{words}"; files={"yes" if files else "no"} ;;'
        for (words, files), patterns in values.items()
        if patterns
    ]
    by_command = []
    for command, arguments in commands.items():
        flags = [flag for each in arguments for flag in each.flags]
        placed = [each for each in arguments if not each.flags]
        words = " ".join([*(word for each in placed for word in each.words), *flags])
        files = "yes" if any(each.takes_file for each in placed) else "no"
        by_command.append(f'        {command}) words="{words}"; files={files} ;;')
    return _BASH.format(
        commands=" ".join([*commands, *_GENERAL]),
        values="\n".join(lines),
        options="\n".join(by_command),
    )


# ----------------------------------------------------------------------------------------- zsh

_ZSH: Final = """\
#compdef shardcost
# Completion of shardcost for zsh, made by `shardcost completion zsh`.
_shardcost_one_of() {{  # a word of a list, also as the last of several; no blank after =
  compset -P '*,'
  compadd -- ${{@:#*=}}
  compadd -S '' -- ${{(M)@:#*=}}
}}
_shardcost() {{
  local curcontext="$curcontext" state line
  local -A opt_args
  local -a commands
{lists}
  _arguments -C {general} '1:command:->command' '*::argument:->argument' && return 0
  case $state in
    command)
      commands=(
{commands}
      )
      _describe command commands
      ;;
    argument)
      case $words[1] in
{arguments}
      esac
      ;;
  esac
}}
if [[ $funcstack[1] == _shardcost ]]; then  # from a folder of $fpath
  _shardcost "$@"
else
  if (( ! $+functions[compdef] )); then
    autoload -Uz compinit && compinit
  fi
  compdef _shardcost shardcost
fi
"""


def _zsh(commands: _Commands) -> str:
    lists = {each.words for arguments in commands.values() for each in arguments if each.words}
    names = {words: f"list_{number}" for number, words in enumerate(sorted(lists))}
    cases = []
    for command, arguments in commands.items():
        specs = [spec for each in arguments for spec in _zsh_specs(each, names.get(each.words))]
        cases.append(
            "\n".join(
                [
                    f"        {command})",
                    "          _arguments : \\",
                    *(f"            {_single_quoted(spec)} \\" for spec in specs[:-1]),
                    f"            {_single_quoted(specs[-1])}",
                    "          ;;",
                ]
            )
        )
    return _ZSH.format(
        lists="\n".join(f"  local -a {names[words]}=({' '.join(words)})" for words in names),
        general=" ".join(
            _single_quoted(f"(- *){flag}[{_zsh_text(text)}]") for flag, text in _GENERAL.items()
        ),
        commands="\n".join(
            f"        {_single_quoted(f'{name}:{_zsh_text(COMMANDS[name])}')}" for name in commands
        ),
        arguments="\n".join(cases),
    )


def _zsh_specs(argument: Argument, words: str | None) -> Iterator[str]:
    """Yield an argument as zsh's ``_arguments`` reads it, once for each of its flags."""
    calls = [f"_shardcost_one_of ${words}"] if words else []
    action = f"{{{'; '.join([*(['_files'] if argument.takes_file else []), *calls])}}}"
    value = f":{_zsh_text(argument.help)}:{action if action != '{}' else ' '}"
    if not argument.flags:
        yield f"*{value}"
        return
    others = "" if argument.repeats else f"({' '.join(argument.flags)})"
    for flag in argument.flags:
        name = f"{flag}=" if flag.startswith("--") and argument.takes_value else flag
        text = f"{'*' * argument.repeats}{others}{name}[{_zsh_text(argument.help)}]"
        yield f"{text}{':' * argument.optional}{value}" if argument.takes_value else text


def _zsh_text(text: str) -> str:
    """Return a text without a meaning for ``_arguments``."""
    return re.sub(r"([\\:\[\]])", r"\\\1", text)


def _single_quoted(text: str) -> str:
    return "'" + text.replace("'", r"'\''") + "'"


# ---------------------------------------------------------------------------------------- fish

_FISH: Final = """\
# Completion of shardcost for fish, made by `shardcost completion fish`.
function __shardcost_command --description 'Whether a command of shardcost is given'
  set -l words (commandline -opc)
  test (count $words) -gt 1; and test "$words[2]" = "$argv[1]"
end
function __shardcost_one_of --description 'Words, also as the last of several'
  set -l typed (commandline -ct | string replace -r '^--[^=]*=' '')
  set -l before (string match -r '^.*,' -- $typed; or echo '')
  printf '%s\\n' $before$argv
end
"""


def _fish(commands: _Commands) -> str:
    lines = []
    alone = "complete -c shardcost -n __fish_is_first_token -f"
    lines += [f"{alone} {_fish_flag(flag)} -d {_quoted(text)}" for flag, text in _GENERAL.items()]
    for command, arguments in commands.items():
        lines.append(f"{alone} -a {command} -d {_quoted(COMMANDS[command])}")
        within = f"complete -c shardcost -n '__shardcost_command {command}'"
        for each in arguments:
            words = f" -a '(__shardcost_one_of {' '.join(each.words)})'" if each.words else ""
            if not each.flags:
                lines.append(f"{within}{'' if each.takes_file else ' -f'}{words}")
                continue
            names = " ".join(_fish_flag(flag) for flag in each.flags)
            needs = "" if not each.takes_value else " -r" if each.takes_file else " -x"
            lines.append(f"{within} {names}{needs}{words} -d {_quoted(each.help)}")
    return _FISH + "\n".join(lines) + "\n"


def _fish_flag(flag: str) -> str:
    return f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SCRIPTS: Final = {"bash": _bash, "zsh": _zsh, "fish": _fish}

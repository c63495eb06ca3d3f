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
  source <(shardcost completion bash)                                    # in ~/.bashrc
  source <(shardcost completion zsh)                                     # in ~/.zshrc
  shardcost completion fish > ~/.config/fish/completions/shardcost.fish
"""
_FOLDERS: Final[Mapping[str, catalog.Folder]] = {
    "model": "models", "on": "clusters", "prefill_on": "clusters", "network": "networks",
    "software": "software",
}  # fmt: skip
"""Arguments that take a name of the catalog, with the folder that has it."""
_LISTED: Final[Mapping[str, tuple[catalog.Folder, ...]]] = {
    "models": ("models",), "clusters": ("clusters", "networks"), "software": ("software",),
}  # fmt: skip
"""Commands that show one of the catalog, with its folders."""
_FILES: Final = ("FILE", "FILE.csv", "DIR", "TABLE")
"""How files and folders are called in the help."""


class Argument(NamedTuple):
    """One argument of a command: an option, or a word by its place."""

    flags: tuple[str, ...]
    """As the command line has it; empty for a word by its place."""
    help: str
    takes_value: bool
    words: tuple[str, ...]
    """What its value may be, as far as that is a list."""
    takes_file: bool


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
        takes_file=metavar in _FILES or action.dest in _FOLDERS,
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
    else:
        tables = (options.ESTIMATE, options.LOAD, {row.name: row for row in options.SEARCH})
        option = next((table[name] for table in tables if name in table), None)
        if option is not None:
            yield from names_of(option) or map(str, option.choices if option.kind != "flag" else ())


# ------------------------------------------------------------------------------------- scripts

_BASH: Final = """\
# Completion of shardcost for bash, made by `shardcost completion bash`.
_shardcost() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} cmd=${{COMP_WORDS[1]}}
  local words="" files=no before=""
  COMPREPLY=()
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "{commands}" -- "$cur"))
    return
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
    COMPREPLY+=($(compgen -f -- "$cur"))
  fi
  if [[ ${{COMPREPLY[0]}} == *= ]] && type compopt >/dev/null 2>&1; then
    compopt -o nospace
  fi
}}
complete -F _shardcost shardcost
"""
_ZSH: Final = """\
# Completion of shardcost for zsh, made by `shardcost completion zsh`: bash's, which zsh runs.
autoload -U +X compinit && compinit
autoload -U +X bashcompinit && bashcompinit
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
        commands=" ".join(commands), values="\n".join(lines), options="\n".join(by_command)
    )


def _zsh(commands: _Commands) -> str:
    return _ZSH + _bash(commands).partition("\n")[2]


def _fish(commands: _Commands) -> str:
    lines = ["# Completion of shardcost for fish, made by `shardcost completion fish`."]
    for command, arguments in commands.items():
        about = _quoted(COMMANDS[command])
        lines.append(f"complete -c shardcost -n __fish_use_subcommand -f -a {command} -d {about}")
        within = f"complete -c shardcost -n '__fish_seen_subcommand_from {command}'"
        for each in arguments:
            if not each.flags:
                words = _quoted(" ".join(each.words))
                only = "" if each.takes_file else " -f"
                lines.append(f"{within}{only} -a {words}" if each.words else f"{within}{only}")
                continue
            names = " ".join(
                (f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}")
                for flag in each.flags
            )
            needs = "" if not each.takes_value else " -r" if each.takes_file else " -x"
            words = f" -a {_quoted(' '.join(each.words))}" if each.words else ""
            lines.append(f"{within} {names}{needs}{words} -d {_quoted(each.help)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SCRIPTS: Final = {"bash": _bash, "zsh": _zsh, "fish": _fish}

"""What the commands share: a parser with options of the table, and what is on disk."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from shardcost import options
from shardcost.errors import UsageError
from shardcost.option import ABOUT_PHASES, Option, flag
from shardcost.request import names_of

if TYPE_CHECKING:
    from pathlib import Path

    from shardcost.cluster import Cluster
    from shardcost.formats.request_traces import RequestTrace
    from shardcost.model import Model
    from shardcost.software import Software

NOTHING_FEASIBLE: Final = 3
"""The exit code when a question in good order has no answer that is possible and fits."""
_FILE: Final = ", or a .toml file"
_FROM_FILES: Final = ("network", "software", "prefill_on")
"""Options that take a file instead of a name of the catalog."""
_ELSEWHERE: Final = {
    "--on": "--cluster --device --gpu-type --hardware --machine",
    "--gpus": "--gpu --num-gpus --n-gpus --world-size",
    "--tp": "--tensor-parallel --tensor-parallel-size --tensor-model-parallel-size --tp-size",
    "--pp": "--pipeline-parallel --pipeline-parallel-size --pipeline-model-parallel-size --pp-size",
    "--dp": "--data-parallel --data-parallel-size --dp-size",
    "--cp": "--context-parallel --context-parallel-size --cp-size",
    "--ep": "--expert-parallel --expert-parallel-size --expert-model-parallel-size --ep-size",
    "--batch": "--global-batch-size --gbs --concurrency",
    "--micro-batch": "--micro-batch-size --mbs",
    "--sequence-length": "--seq-len --seq-length --seqlen",
    "--context-tokens": "--ctx --max-model-len",
    "--prompt-tokens": "--input-len --input-tokens",
    "--isl": "--input-len --input-tokens --prompt-tokens",
    "--osl": "--output-len --output-tokens --max-tokens",
    "--dtype": "--precision --quantization --quant",
    "--cache-dtype": "--kv-cache-dtype --kv-dtype",
    "--software": "--backend --engine --framework",
    "--recompute": "--activation-checkpointing --gradient-checkpointing",
}
"""Names of options in the tools of the field, by ours."""
_SIGNED: Final = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)


class _Help(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal; argparse would import `shutil` to know that."""

    def __init__(self, prog: str) -> None:
        from shardcost.report.text import width

        super().__init__(prog, width=width() - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Return the description as a paragraph, and examples as commands of several lines."""
        from textwrap import wrap

        lines: list[str] = []
        for line in re.sub(r" \\\n +", " ", text).splitlines():
            lines += _continued(line, width) if line.startswith(" ") else wrap(line, width) or [""]
        return "\n".join(indent + line for line in lines)


def _continued(command: str, width: int) -> list[str]:
    r"""Return a command on lines of at most so many characters, continued by backslashes.

    >>> _continued("  shardcost load llama3-8b --rate 4 --isl 1024", 34)
    ['  shardcost load llama3-8b \\', '      --rate 4 --isl 1024']
    """
    lines: list[str] = []
    line, *rest = re.split(r" (?=--[a-z])", command)
    for words in rest:
        if len(f"{line} {words} \\") > width:
            lines.append(f"{line} \\")
            line = "      " + words
        else:
            line += f" {words}"
    return [*lines, line]


class Parser(argparse.ArgumentParser):
    """argparse, with errors as one line and without guessing at shortened options."""

    def __init__(self, command: str, description: str, examples: str) -> None:
        super().__init__(
            prog=f"shardcost {command}",
            description=description,
            epilog="examples:\n" + examples,
            formatter_class=_Help,
            allow_abbrev=False,
        )
        self.command = command
        self.add_argument("--json", action="store_true", help="print one JSON document instead")
        self.add_argument("--catalog", metavar="DIR", help="folder of your own catalog files")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; where an option is unknown, name the nearest one that the command has."""
        given, rest = self.parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}{self._nearest(rest)}")
        return given

    def _nearest(self, words: Sequence[str]) -> str:
        from difflib import get_close_matches

        known = list(self._option_string_actions)
        for word in words:
            name = word.partition("=")[0].replace("_", "-")
            if name == "--model" and any(each.metavar == "MODEL" for each in self._actions):
                return "; MODEL stands by itself, without an option"
            ours = [each for each, others in _ELSEWHERE.items() if name in others.split()]
            taken = [each for each in ours if each in known]
            if taken:
                return f"; here it is {' or '.join(taken)}"
            axes = [each[2:].replace("-", "_") for each in (name, *ours)]
            fixed = [axis for axis in axes if "--fix" in known and axis in options.AXES]
            if fixed:
                return f"; what a search varies is fixed by --fix {fixed[0]}=…"
            starts = [each for each in known if name.startswith("--") and each.startswith(name)]
            near = starts[:3] or get_close_matches(name, known, n=2, cutoff=0.7)
            if near:
                return f"; did you mean {' or '.join(near)}?"
        return ""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        message = " ".join(message.split())
        raise UsageError(f"{message} (see shardcost {self.command} --help)")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print, where argparse would pass over a disk that is full."""
        print(message, end="", file=file)


def join_signed_values(words: list[str]) -> list[str]:
    """Return the words with ``--option -5`` as ``--option=-5``, which argparse takes as a value."""
    joined: list[str] = []
    for word in words:
        last = joined[-1] if joined else ""
        if _SIGNED.match(word) and last.startswith("--") and "=" not in last:
            joined[-1] = f"{last}={word}"
        else:
            joined.append(word)
    return joined


class OnDisk:
    """Finds models and machines in the catalog or on disk; a model's file is read once."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}
        self._traces: list[RequestTrace] = []

    def model(self, text: str | None) -> Model:
        """Return the model that a text names."""
        if text is None:
            raise UsageError("missing MODEL (`shardcost models` lists them)")
        from shardcost import resolve

        if text not in self._models:
            self._models[text] = resolve.model(text)
        return self._models[text]

    def cluster(self, text: str | None, network: str | None = None) -> Cluster:
        """Return the cluster that a text names, its nodes joined by a network."""
        if text is None:
            raise UsageError("missing --on CLUSTER (`shardcost clusters` lists them)")
        from shardcost import resolve

        return resolve.cluster(text, network)

    def software(self, text: str) -> Software:
        """Return the framework or engine that a text names."""
        from shardcost import resolve

        return resolve.software(text)

    def trace(self, text: str) -> RequestTrace:
        """Return the requests that a file holds."""
        from pathlib import Path

        from shardcost.formats.request_traces import read

        self._traces.append(read(Path(text)))
        return self._traces[-1]

    @property
    def caveats(self) -> list[str]:
        """Caveats of the models' files, and what of a trace was not read."""
        from shardcost import resolve

        unread = (each for trace in self._traces for each in trace.unread)
        passed_over = [
            f"{each.count:,} {each.reason}, the first in line {each.first_line}, passed over"
            for each in unread
        ]
        own = [caveat for model in self._models.values() for caveat in resolve.caveats_of(model)]
        return own + passed_over


def add_options(parser: Any, rows: Iterable[Option], *, several: bool = False) -> None:
    """Add options of the table to a parser or a group of it.

    Args:
        parser: Where to add them.
        rows: The options.
        several: Whether the command takes several values of those that a search does.
    """
    for option in rows:
        text = option.described(names_of(option))
        text += _FILE if option.name in _FROM_FILES else ""
        text += option.several if several else ""
        text = text.replace("%", "%%")
        if option.kind == "flag":
            parser.add_argument(option.flag, action="store_true", default=None, help=text)
        elif option.kind == "figures":
            parser.add_argument(option.flag, metavar=option.metavar, action="append", help=text)
        else:
            parser.add_argument(option.flag, metavar=option.metavar, help=text)


def add_question(
    parser: Parser,
    unless: str = "",
    *,
    several: bool = False,
    rows: Iterable[Option] = options.MACHINE[2:],
) -> None:
    """Add what is run and where.

    Args:
        parser: Where to add it.
        unless: When the cluster need not be named.
        several: Whether the command takes several values, as a search does.
        rows: The options besides model and cluster.
    """
    more = options.MODEL.several if several else ""
    text = f"{options.MODEL.help}, a config.json or its folder{_FILE}{more}"
    parser.add_argument("model", metavar="MODEL", help=text)
    more = options.ON.several if several else unless
    parser.add_argument("--on", metavar="CLUSTER", help=options.ON.help + _FILE + more)
    add_options(parser, rows, several=several)


def add_workload(
    parser: Parser, *, several: bool = False, others: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Add the options that say what is computed.

    Args:
        parser: Where to add them.
        several: Whether the command takes several values, as a search does.
        others: What the command computes beside the phases, with their help.
    """
    group = parser.add_argument_group("workload")
    kinds = group.add_mutually_exclusive_group(required=True)
    for phase, text in ABOUT_PHASES.items():
        needed = " and ".join(option.flag for option in options.needed(phase))
        kinds.add_argument(
            flag(phase),
            dest="phase",
            action="store_const",
            const=phase,
            help=f"{text}; needs {needed}",
        )
    for name, text in others.items():
        kinds.add_argument(flag(name), dest="phase", action="store_const", const=name, help=text)
    add_options(group, options.WORKLOAD, several=several)


def print_why(figure: str, names: Sequence[str], why: Callable[[str], Any], *, json: bool) -> int:
    """Print where a figure comes from; the names of all for ``list``."""
    from shardcost.report.why import as_data, as_text

    if figure == "list":
        print_json({"figures": list(names)}) if json else print("\n".join(names))
    elif json:
        print_json(as_data(why(figure)))
    else:
        print(as_text(why(figure)))
    return 0


def print_report(
    given: argparse.Namespace, data: Callable[[], Any], text: Callable[[], str]
) -> int:
    """Print a report, as JSON if that was requested, and return the exit code 0."""
    if given.json:
        print_json(data())
    else:
        print(text())
    return 0


def path_of(text: str) -> Path:
    """Return the path of a file to be written."""
    from pathlib import Path  # which a command that writes none does without

    return Path(text)


def say_written(what: str, file: str | None) -> None:
    """Print which file was written, if one was."""
    if file is not None:
        print(f"{what}: {file}")


def print_json(data: Any) -> None:
    """Print one JSON document and nothing else."""
    import json

    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    if not text.replace("\n", "").isprintable():  # JSON allows it, a terminal may obey it
        text = "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)
    print(text)


def _escaped(character: str) -> str:
    """Return a character as JSON writes what cannot be seen."""
    units = character.encode("utf-16-be", errors="surrogatepass").hex()
    return "".join(f"\\u{units[k : k + 4]}" for k in range(0, len(units), 4))

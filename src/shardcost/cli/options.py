"""What the commands share: a parser that fails in one line, and what is found on disk."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from shardcost.errors import BadValueError
from shardcost.request import layouts
from shardcost.request.errors import UsageError
from shardcost.request.values import flag
from shardcost.request.workloads import FORMATS, NEEDED, SIZES

if TYPE_CHECKING:
    from shardcost.cluster import Cluster
    from shardcost.model import Model

NOTHING_FEASIBLE: Final = 3
"""The exit code when a question in good order has no answer that is possible and fits."""
_SIGNED: Final = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)


class Parser(argparse.ArgumentParser):
    """argparse, with errors as one line and without guessing at shortened options."""

    def __init__(self, command: str, description: str, examples: str) -> None:
        super().__init__(
            prog=f"shardcost {command}",
            description=description,
            epilog="examples:\n" + examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.command = command
        self.add_argument("--json", action="store_true", help="print one JSON document instead")

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        message = " ".join(message.split())
        raise UsageError(f"{message} (see shardcost {self.command} --help)")


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


def model(text: str) -> Model:
    """Return the model that an option names: one of the catalog, or a config.json on disk."""
    from pathlib import Path

    from shardcost.formats.hf_config import model_of_file
    from shardcost.model import Model

    if not text:
        raise BadValueError("--model", text, "a name of the catalog or a path")
    return model_of_file(Path(text)) if is_file(text) else Model.named(text)


def is_file(text: str) -> bool:
    """Return whether ``--model`` means a file or folder rather than a name of the catalog."""
    from pathlib import Path

    return text.endswith(".json") or Path(text).is_dir()


def cluster(text: str, network: str | None = None) -> Cluster:
    """Return the cluster that ``--on`` names: one of the catalog, or a profile on disk."""
    from shardcost.cluster import Cluster

    if text.endswith(".toml"):
        from shardcost.collectives.calibration import profile_in

        return profile_in(text, network)
    return Cluster.named(text, network)


class OnDisk:
    """Finds models and clusters in the catalog or on disk; a model's file is read once."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}

    def model(self, text: str) -> Model:
        """Return the model that a text names."""
        if text not in self._models:
            self._models[text] = model(text)
        return self._models[text]

    def cluster(self, text: str, network: str | None = None) -> Cluster:
        """Return the cluster that a text names, its nodes joined by a network."""
        return cluster(text, network)

    @property
    def caveats(self) -> list[str]:
        """What is to mind about the files of models."""
        files = (found for text, found in self._models.items() if is_file(text))
        return [caveat for found in files for caveat in found.caveats]


def add_question(parser: Parser, unless: str = "") -> None:
    """Add what is run and where; `unless` says when the cluster need not be named."""
    parser.add_argument("model", metavar="MODEL", help="catalog name, config.json or its folder")
    parser.add_argument("--on", metavar="CLUSTER", help="catalog name or profile.toml" + unless)
    parser.add_argument("--network", metavar="NET", help="catalog name: what joins the nodes")
    parser.add_argument("--gpus", metavar="N", help="GPUs in all (tp x cp x pp x dp)")
    parser.add_argument("--software", metavar="NAME", help="framework or engine, a catalog name")


def add_layout(parser: Parser) -> None:
    """Add the options that say how the model is divided."""
    layout = parser.add_argument_group("layout")
    for name, text in layouts.COUNTS.items():
        layout.add_argument(flag(name), metavar="N", help=text)
    for name, text in layouts.WORDS.items():
        layout.add_argument(flag(name), metavar="NAME", help=text)
    layout.add_argument("--imbalance", metavar="X", help="fullest rank's tokens over the mean (1)")
    layout.add_argument(
        "--sequence-parallel",
        action="store_true",
        help="spread activations between products over tp as well",
    )


def add_workload(parser: Parser, batches: str = "") -> None:
    """Add the options that say what is computed; `batches` is what else the batch may be."""
    group = parser.add_argument_group("workload")
    kinds = group.add_mutually_exclusive_group(required=True)
    for phase, text in (
        ("train", "an optimizer step"),
        ("prefill", "a pass over prompts"),
        ("decode", "one step of every sequence"),
    ):
        needed = " and ".join(map(flag, NEEDED[phase]))
        kinds.add_argument(
            flag(phase),
            dest="phase",
            action="store_const",
            const=phase,
            help=f"{text}; needs {needed}",
        )
    for name, text in SIZES.items():
        more = batches if name == "batch" else ""
        group.add_argument(flag(name), metavar="N", help=text + more)
    for name, text in FORMATS.items():
        group.add_argument(flag(name), metavar="NAME", help=text)
    group.add_argument(
        "--adapters",
        action="store_true",
        default=None,
        help="train low-rank adapters only (--train)",
    )


def print_names(what: str, names: Sequence[str], *, json: bool) -> None:
    """Print names, one to a line, or as one document."""
    if json:
        print_json({what: list(names)})
    else:
        print("\n".join(names))


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

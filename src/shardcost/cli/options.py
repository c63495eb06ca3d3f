"""What the commands share: a parser that fails in one line, and options turned into values."""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from shardcost.errors import BadTypeError, BadValueError, ShardcostError
from shardcost.scalars import whole_number

if TYPE_CHECKING:
    from shardcost.cluster import Cluster
    from shardcost.model import Model
    from shardcost.workload import Workload

NOTHING_FEASIBLE: Final = 3
"""The exit code when a question in good order has no answer that is possible and fits."""
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,300}")
_SIGNED: Final = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)
_SIZES: Final = {
    "batch": "sequences over all replicas: of a training step, or at work at once",
    "sequence_length": "tokens of a sequence (--train)",
    "prompt_tokens": "new tokens of a sequence (--prefill)",
    "cached_tokens": "tokens of a sequence that are in the cache already (--prefill, 0)",
    "context_tokens": "tokens of a sequence in the cache when the step begins (--decode)",
    "new_tokens": "tokens per sequence and step (--decode, 1)",
    "document_tokens": "mean length of documents packed into a sequence (--train)",
}
_FORMATS: Final = {
    "dtype": "number format of the matrix products (bf16)",
    "cache_dtype": "number format of the key-value cache (--prefill, --decode, bf16)",
    "gradient_dtype": "number format of gradients (--train, fp32)",
    "optimizer": "adam or sgd (--train, adam)",
}
PHASES: Final[Mapping[str, Mapping[str, str]]] = {
    "train": {
        "batch": "global_batch",
        "sequence_length": "sequence_length",
        "document_tokens": "document_tokens",
        "dtype": "dtype",
        "gradient_dtype": "gradient_dtype",
        "optimizer": "optimizer",
        "adapters": "adapters",
    },
    "prefill": {
        "batch": "batch",
        "prompt_tokens": "prompt_tokens",
        "cached_tokens": "cached_tokens",
        "dtype": "dtype",
        "cache_dtype": "cache_dtype",
    },
    "decode": {
        "batch": "batch",
        "context_tokens": "context_tokens",
        "new_tokens": "new_tokens",
        "dtype": "dtype",
        "cache_dtype": "cache_dtype",
    },
}
"""The options of each kind of workload, with the field that each fills."""
_NEEDED: Final = {
    "train": ("batch", "sequence_length"),
    "prefill": ("batch", "prompt_tokens"),
    "decode": ("batch", "context_tokens"),
}


class UsageError(ShardcostError, ValueError):
    """The command line itself is not right: an unknown option, a missing value."""


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


def whole(option: str, text: str) -> int:
    """Return an option's value as a whole number; its range is checked where it is used."""
    if not _WHOLE.fullmatch(text):
        raise BadTypeError(option, text, "a whole number")
    return int(text)


def count(option: str, text: str | None) -> int | None:
    """Return an option's value as a whole number of at least 1; None where it is not given."""
    return None if text is None else whole_number(option, whole(option, text), 1)


def several(option: str, text: str) -> list[str]:
    """Return the values of ``A,B,…``, each once."""
    values = [value.strip() for value in text.split(",")]
    if not all(values):
        raise BadValueError(option, text, "one value or several, like A,B,C, none of them empty")
    return list(dict.fromkeys(values))


def wholes(option: str, text: str) -> list[int]:
    """Return the numbers of ``A,B,…``, where ``A..B`` are A, 2 A, 4 A and so on up to B."""
    found: list[int] = []
    for value in several(option, text):
        first, dots, last = value.partition("..")
        least = whole_number(option, whole(option, first), 1)
        most = whole_number(option, whole(option, last), 1) if dots else least
        if most < least:
            raise BadValueError(option, value, "from a smaller number to a larger one, like 1..64")
        while least <= most:
            found.append(least)
            least *= 2
    return list(dict.fromkeys(found))


def number(option: str, text: str) -> float:
    """Return an option's value as a number; its range is checked where it is used."""
    try:
        return float(text)
    except ValueError:
        raise BadTypeError(option, text, "a number") from None


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


def add_workload(parser: Parser, batches: str = "") -> None:
    """Add the options that say what is computed; `batches` is what else the batch may be."""
    group = parser.add_argument_group("workload")
    kinds = group.add_mutually_exclusive_group(required=True)
    for phase, text in (
        ("train", "an optimizer step"),
        ("prefill", "a pass over prompts"),
        ("decode", "one step of every sequence"),
    ):
        needed = " and ".join(map(flag, _NEEDED[phase]))
        kinds.add_argument(
            flag(phase),
            dest="phase",
            action="store_const",
            const=phase,
            help=f"{text}; needs {needed}",
        )
    for name, text in _SIZES.items():
        more = batches if name == "batch" else ""
        group.add_argument(flag(name), metavar="N", help=text + more)
    for name, text in _FORMATS.items():
        group.add_argument(flag(name), metavar="NAME", help=text)
    group.add_argument(
        "--adapters",
        action="store_true",
        default=None,
        help="train low-rank adapters only (--train)",
    )


def workload(given: Namespace) -> Workload:
    """Return the workload that the options of `add_workload` describe."""
    from shardcost.workload import Decode, Prefill, Train

    kinds: dict[str, Any] = {"train": Train, "prefill": Prefill, "decode": Decode}
    takes = PHASES[given.phase]
    missing = [flag(name) for name in _NEEDED[given.phase] if getattr(given, name) is None]
    if missing:
        raise UsageError(f"--{given.phase} needs {' and '.join(missing)}")
    for name in (*_SIZES, *_FORMATS, "adapters"):
        if getattr(given, name) is not None and name not in takes:
            phases = " and ".join(f"--{phase}" for phase, own in PHASES.items() if name in own)
            raise UsageError(f"{flag(name)} is for {phases}, not --{given.phase}")
    values: dict[str, Any] = {}
    for name, field in takes.items():
        value = getattr(given, name)
        if value is not None:
            values[field] = whole(flag(name), value) if name in _SIZES else value
    return kinds[given.phase](**values)  # type: ignore[no-any-return]


def flag(name: str) -> str:
    """Return a name as the option that sets it."""
    return "--" + name.replace("_", "-")


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

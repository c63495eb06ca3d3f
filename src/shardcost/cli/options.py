"""What the commands share: a parser that fails in one line, and options turned into values."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from shardcost.errors import BadTypeError, BadValueError, ShardcostError

if TYPE_CHECKING:
    from pathlib import Path

    from shardcost.model import Model

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,300}")
_SIGNED: Final = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)


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


def number(option: str, text: str) -> float:
    """Return an option's value as a number; its range is checked where it is used."""
    try:
        return float(text)
    except ValueError:
        raise BadTypeError(option, text, "a number") from None


def model(text: str) -> Model:
    """Return the model that an option names: one of the catalog, or a config.json on disk."""
    from pathlib import Path

    from shardcost.model import Model

    if not text:
        raise BadValueError("--model", text, "a name of the catalog or a path")
    return model_file(Path(text)) if is_file(text) else Model.named(text)


def is_file(text: str) -> bool:
    """Return whether ``--model`` means a file or folder rather than a name of the catalog."""
    from pathlib import Path

    return text.endswith(".json") or Path(text).is_dir()


def model_file(path: Path) -> Model:
    """Return the model of a Hugging Face config; what it warns of is a note of the model."""
    import warnings

    from shardcost.formats.hf_fields import UnknownFamilyWarning
    from shardcost.model import Model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownFamilyWarning)
        return Model.from_hf(path)


def print_json(data: Any) -> None:
    """Print one JSON document and nothing else."""
    import json

    print(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))

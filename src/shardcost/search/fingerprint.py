"""What decides the result of a search, as plain values, and its fingerprint.

Two searches with the same fingerprint find the same, so that one may continue what the other has
left behind. Which engine runs the tasks does not count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from shardcost import __version__
from shardcost.errors import BadTypeError
from shardcost.search.question import Question
from shardcost.search.tasks import BLOCK_CELLS, TASK_CELLS, Want

_READ: Final = frozenset({".py", ".toml"})
_ABOVE: Final = frozenset({"calibrate", "cli", "inspect", "measure", "report", "validate", "web"})
"""Rooms that stand above a search: none of its figures comes from there."""


def request_of(questions: tuple[Question, ...], want: Want) -> dict[str, Any]:
    """Return all that decides a search's result, as plain values."""
    return {
        "questions": plain(questions),
        "kept": want.most,
        "distinct": want.distinct,
        "cut": [BLOCK_CELLS, TASK_CELLS],
        "shardcost": [__version__, package_digest()],
        "numpy": np.__version__,
    }


def fingerprint(request: Mapping[str, Any]) -> str:
    """Return a short name of a request, which no other has."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


@cache  # reads the whole package; each task of a Ray cluster asks
def package_digest() -> str:
    """Return a digest of the files that hold the formulas and their constants."""
    folder = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(each for each in folder.rglob("*") if each.suffix in _READ):
        name = path.relative_to(folder)
        if name.parts[0] not in _ABOVE:
            content = path.read_bytes()
            digest.update(f"{name.as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def differences(one: Any, two: Any) -> list[str]:
    """Return what differs between two requests, by the names of the fields.

    >>> mine = {"questions": [{"space": {"tp": [1, 2]}, "model": "a"}], "numpy": "2.4"}
    >>> theirs = {"questions": [{"space": {"tp": [1, 4]}, "model": "a"}], "numpy": "2.4"}
    >>> differences(mine, theirs)
    ['space']
    """
    if not isinstance(one, dict) or not isinstance(two, dict):
        return ["all"]
    found = [name for name in one if name != "questions" and one[name] != two.get(name)]
    mine, theirs = one["questions"], two.get("questions", [])
    if len(mine) != len(theirs):
        return ["the number of models, machines, engines and workloads", *found]
    names: dict[str, None] = {}
    for each, other in zip(mine, theirs, strict=True):
        names |= dict.fromkeys(name for name in each if each[name] != other.get(name))
    names.pop("first_cell", None)  # it follows from the others
    return [*names, *found]


def plain(value: Any) -> Any:
    """Return a noun, and all that it is made of, as what JSON can hold.

    >>> from shardcost import Train
    >>> plain(Train(global_batch=8, sequence_length=4096))["global_batch"]
    8
    """
    if is_dataclass(value):
        named = {each.name: plain(getattr(value, each.name)) for each in fields(value)}
        return {"is": type(value).__name__} | named
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise BadTypeError("request", value, "made of nouns and plain values")

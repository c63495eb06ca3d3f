"""Catalog files of a user: clusters, networks, software and models in the catalog's own form.

Either a path names one file (``--on mine.toml``, `Cluster.from_file`), or files lie in the folder
that the environment variable ``SHARDCOST_CATALOG`` or the option ``--catalog`` names, where their
names resolve like the built-in ones. Built-in names come first: a user's file may not reuse one,
because fitted constants belong to names.

These files are from outside: they are of limited size, and every text and number in them is
checked before anything is built from it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from shardcost.errors import BadTypeError, BadValueError, FormatError, shown
from shardcost.files import read_text

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE: Final = "SHARDCOST_CATALOG"
MOST_BYTES: Final = 2**20
_MOST_FILES: Final = 1000
_MOST_DEPTH: Final = 6
_LONGEST_TEXT: Final = 2000
_LARGEST: Final = 1e18
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_STRING: Final = re.compile(r'"(?:[^"\\\n]|\\.)*+"')
_LONG_KEY: Final = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){8}""")

KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "models": ("a model file", "Model.from_file and MODEL take a model file"),
    "clusters": ("a cluster file", "Cluster.from_file and --on take a cluster file or a profile"),
    "networks": ("a network file", "Network.from_file and --network take a network file"),
    "software": ("a software file", "Software.from_file and --software take a software file"),
}
"""Kinds of files by their folder in the catalog: what one is, and what takes it."""
_MARKS: Final[Mapping[str, tuple[str, ...]]] = {
    "clusters": ("device", "link"),
    "networks": ("nic_rate_gbit_per_s", "nic_rate"),
    "models": ("block",),
    "software": ("choices", "constants"),
    "a calibrated profile": ("based_on",),
    "a file of fitted collective constants": ("library", "system"),
}
"""Kinds of TOML files, each with keys of which it has at least one."""
_OTHER_FILES: Final = (
    (re.compile(r'\{.*"(?:hidden_size|n_embd|d_model|model_type)"', re.DOTALL), "a model config"),
    (re.compile(r'\{.*"traceEvents"', re.DOTALL), "a trace"),
    (re.compile(r"\s*\{"), "a JSON file"),
    (re.compile(r"(?:<\?xml.*?)?\s*<(?:system|graphs)\b", re.DOTALL), "an NCCL topology"),
    (re.compile(r".*\bGPU0\b.*\bGPU1\b", re.DOTALL), "an nvidia-smi topology"),
)
"""Files in other forms, by how they begin."""
_HEAD: Final = 20_000


def checked_name(name: str, what: str, taken: list[str]) -> str:
    """Return the name that a user's file gives, if it may be one and the catalog lacks it."""
    if not isinstance(name, str):
        raise BadTypeError(f"name of a {what}", name, "a text")
    if not _NAME.fullmatch(name):
        rule = "up to 64 letters, digits, dots, hyphens and underscores, not beginning with a sign"
        raise BadValueError(f"name of a {what}", name, rule)
    if name in taken:
        raise BadValueError(f"name of a {what}", name, "one that the catalog does not have")
    return name


def content_of(path: str | Path, folder: str) -> dict[str, Any]:
    """Return the content of a user's file, which must be of the kind in that folder."""
    from pathlib import Path

    content = parsed(read_text(Path(path), MOST_BYTES), str(path))
    check_kind(content, folder, str(path))
    return content


def check_kind(content: Mapping[str, Any], folder: str, file: str) -> None:
    """Raise if the content of a file is not of the kind in a folder of the catalog."""
    kind = kind_of(content)
    if kind != folder:
        what = "is no file of the catalog" if kind is None else f"is {KINDS.get(kind, (kind,))[0]}"
        raise FormatError(file, f"{what}; {KINDS[folder][1]}")


def kind_of(content: Mapping[str, Any]) -> str | None:
    """Return the folder of the catalog that a file's content belongs to, or what else it is."""
    marks = ((kind, any(key in content for key in keys)) for kind, keys in _MARKS.items())
    return next((kind for kind, has_one in marks if has_one), None)


def parsed(text: str, file: str) -> dict[str, Any]:
    """Return the content of a TOML file from outside, every text and number of it checked."""
    import tomllib

    other = next((what for begins, what in _OTHER_FILES if begins.match(text[:_HEAD])), None)
    if other is not None:
        raise FormatError(file, f"is {other}, not a TOML file in the form of the catalog")
    long = _LONG_KEY.search(_STRING.sub('""', text))
    if long:  # reading it would take time and memory by the square of its parts
        raise FormatError(file, f"has a key of many parts, {shown(long[0][:40])}")
    try:
        content = tomllib.loads(text)
    except ValueError as error:  # not TOML, or a number of thousands of digits
        raise FormatError(file, f"is not TOML: {str(error)[:200]}") from None
    except RecursionError:
        raise FormatError(file, "is nested too deeply") from None
    _check_values(content, "", file, 0)
    return content


def _check_values(value: object, key: str, file: str, depth: int) -> None:
    """Raise unless a value and all inside it are printable texts, sane numbers or flags."""
    if depth > _MOST_DEPTH:
        raise FormatError(file, f"{key[:60]} is nested too deeply")
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_values(name, f"a key of {key}" if key else "a key", file, depth)
            _check_values(inner, f"{key}.{name}" if key else name, file, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check_values(inner, key, file, depth + 1)
    elif isinstance(value, str):
        if not value.isprintable() or len(value) > _LONGEST_TEXT:
            rule = f"one line of up to {_LONGEST_TEXT} printable characters"
            raise FormatError(file, f"{key[:60]} must be {rule}, got {shown(value)}")
    elif not isinstance(value, bool | int | float):
        raise FormatError(file, f"{key[:60]} must be a text, a number or a flag")
    elif not abs(value) <= _LARGEST:  # nor is it not-a-number
        raise FormatError(file, f"{key[:60]} must be a finite number, got {shown(value)}")


@contextmanager
def folder_used(folder: str | None) -> Iterator[None]:
    """Within this, let names resolve to the files of a folder too; None changes nothing."""
    before = os.environ.get(VARIABLE)
    if folder is not None:
        _files(folder)  # a folder or file that cannot be read is an error at once
        os.environ[VARIABLE] = folder  # which worker processes inherit
    try:
        yield
    finally:
        if folder is not None and before is None:
            del os.environ[VARIABLE]
        elif folder is not None and before is not None:
            os.environ[VARIABLE] = before


def contents(folder: str, taken: list[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return path and content of the files in the user's folder of one kind, by name.

    Args:
        folder: The kind, as the folder of the catalog that has such files.
        taken: Names that the catalog has already.
    """
    place = os.environ.get(VARIABLE)
    files: dict[str, tuple[str, dict[str, Any]]] = {}
    for path, content in _files(place) if place else ():
        if kind_of(content) != folder:
            continue
        try:
            name = checked_name(content.get("name", ""), KINDS[folder][0].partition(" ")[2], taken)
        except (BadTypeError, BadValueError) as error:
            raise FormatError(path, str(error)) from None
        if name in files:
            raise FormatError(path, f"has the name {name} of {files[name][0]}")
        files[name] = path, content
    return files


@cache  # every lookup of a name asks; a changed folder is seen by the next process
def _files(place: str) -> list[tuple[str, dict[str, Any]]]:
    from pathlib import Path

    try:
        paths = sorted(Path(place).iterdir())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not the name of a folder"
        raise FormatError(place, f"cannot be read as a folder of catalog files: {reason}") from None
    paths = [path for path in paths if path.suffix == ".toml"]
    if len(paths) > _MOST_FILES:
        raise FormatError(place, f"has more than {_MOST_FILES} files")
    files = []
    for path in paths:
        content = parsed(read_text(path, MOST_BYTES), str(path))
        if kind_of(content) not in {*KINDS, "a calibrated profile"}:
            raise FormatError(str(path), "is no cluster, network, software or model file")
        files.append((str(path), content))
    return files

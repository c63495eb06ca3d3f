"""Contents of the catalog's own files, parsed once: reading TOML takes milliseconds, JSON does not.

A store is one file: a line of JSON that says where each content stands, then the contents, one line
of JSON each. An entry has the size and the checksum of the TOML file that it was made from, and is
used for these very bytes only. One that is stale or damaged is passed over and the TOML is parsed,
so that the TOML files stay the only source, in a checkout as well.

The wheel has a store of the whole catalog, made by `hatch_build.py`. A checkout has none: what a
command has to parse there is kept beside the compiled modules, under the conditions of those: not
where Python is told to write none (``PYTHONDONTWRITEBYTECODE``) and not where it cannot.

This module imports nothing of the package, so that the build can use it by itself, and no
`pathlib`, which takes longer to import than the entries of a command to read.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, NamedTuple
from zlib import crc32

FORMAT: Final = 1
"""Of a store; one in another format is not read."""
SHIPPED: Final = "parsed.jsonl"
"""The name of the wheel's store, in the folder of the catalog."""


class Entry(NamedTuple):
    """One content in a store."""

    toml_bytes: int
    toml_checksum: int
    line: bytes
    """The content as JSON."""

    @classmethod
    def of(cls, toml: bytes) -> Entry:
        """Return the entry of a TOML file, parsed."""
        import tomllib

        content = tomllib.loads(toml.decode())
        line = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        return cls(len(toml), crc32(toml), line.encode())

    def holds_for(self, toml: bytes) -> bool:
        """Return whether the entry was made from a file of these bytes."""
        return self.toml_bytes == len(toml) and self.toml_checksum == crc32(toml)


class Store:
    """Entries by the names of their files, such as ``models/llama3-70b``."""

    def __init__(self, stored: bytes = b"") -> None:
        """Read a store; of one that is damaged or in another format, nothing."""
        self._added: dict[str, Entry] = {}
        self._places: dict[str, list[int]] = {}
        head, _, self._lines = stored.partition(b"\n")
        with suppress(ValueError, LookupError, TypeError):
            read = json.loads(head)
            if read["format"] == FORMAT:
                self._places = dict(read["entries"])

    def entry(self, name: str) -> Entry | None:
        """Return the entry of a file; None where there is none, or a damaged one."""
        if name in self._added:
            return self._added[name]
        with suppress(ValueError, LookupError, TypeError):
            size, checksum, start, length, checksum_of_line = self._places[name]
            line = self._lines[start : start + length]
            if crc32(line) == checksum_of_line:
                return Entry(size, checksum, line)
        return None

    def add(self, name: str, entry: Entry) -> None:
        """Put an entry in the place of any that the file had."""
        self._added[name] = entry

    def packed(self) -> bytes:
        """Return the store as a file has it."""
        places, lines, start = {}, [], 0
        for name in sorted({*self._places, *self._added}):
            entry = self.entry(name)
            if entry is not None:
                size = len(entry.line)
                places[name] = (*entry[:2], start, size, crc32(entry.line))
                lines.append(entry.line)
                start += size + 1
        head = json.dumps({"format": FORMAT, "entries": places}, separators=(",", ":"))
        return b"\n".join((head.encode(), *lines, b""))


class ParsedFiles:
    """The TOML files under a folder, read through a store."""

    def __init__(self, folder: str, kept: str | None = None) -> None:
        """Read through the store that a folder has.

        Args:
            folder: Of the files.
            kept: Where to keep what has to be parsed, if the folder has no store; None: nowhere.
        """
        self.folder = folder
        self._kept = kept
        self._has_more = False
        self._names: dict[str, tuple[str, ...]] = {}

    @cached_property
    def _store(self) -> Store:
        stored = _bytes_of(f"{self.folder}/{SHIPPED}")
        if stored is not None:
            self._kept = None
        elif self._kept is not None:
            stored = _bytes_of(self._kept)
        return Store(stored or b"")

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names of the files in a folder below, sorted; listed once."""
        if folder not in self._names:
            files = os.listdir(f"{self.folder}/{folder}")  # noqa: PTH208
            stems = (file.removesuffix(".toml") for file in files if file.endswith(".toml"))
            self._names[folder] = tuple(sorted(stems))
        return self._names[folder]

    def content(self, name: str) -> dict[str, Any]:
        """Return the content of the file of a name, such as ``models/llama3-70b``."""
        with open(f"{self.folder}/{name}.toml", "rb") as file:  # noqa: PTH123
            toml = file.read()
        entry = self._store.entry(name)
        if entry is None or not entry.holds_for(toml):
            entry = Entry.of(toml)
            self._store.add(name, entry)
            if self._kept is not None and not self._has_more:
                import atexit

                self._has_more = True
                atexit.register(self.keep)
        content: dict[str, Any] = json.loads(entry.line)
        return content

    def keep(self) -> None:
        """Write the store, whole or not at all; of several processes the last one's stays."""
        if self._kept is None or sys.dont_write_bytecode:
            return
        draft = f"{self._kept}.{os.getpid()}"
        with suppress(OSError):
            try:
                with open(draft, "xb") as file:  # noqa: PTH123
                    file.write(self._store.packed())
                os.replace(draft, self._kept)  # noqa: PTH105
            except OSError:  # a folder that cannot be written, a disk that is full
                os.unlink(draft)  # noqa: PTH108


def beside_compiled() -> str | None:
    """Return where a checkout keeps what it parses: beside this module as compiled."""
    compiled = getattr(globals().get("__spec__"), "cached", None)
    return None if compiled is None else f"{compiled.removesuffix('.pyc')}.jsonl"


def _bytes_of(file: str) -> bytes | None:
    try:
        with open(file, "rb") as opened:  # noqa: PTH123
            return opened.read()
    except OSError:
        return None


def packed(folder: str, names: Iterable[str]) -> bytes:
    """Return a store of files under a folder: of the whole catalog, what the wheel has."""
    store = Store()
    for name in names:
        with open(f"{folder}/{name}.toml", "rb") as file:  # noqa: PTH123
            store.add(name, Entry.of(file.read()))
    return store.packed()

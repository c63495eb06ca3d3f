"""The parsed catalog: equal to its TOML files, and used for these very bytes only."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from shardcost import catalog
from shardcost.catalog.parsed import FORMAT, SHIPPED, Entry, ParsedFiles, Store, packed

CATALOG = Path(catalog.__file__).parent
NAME = "folder/file"


def files_of(folder: Path, text: str = "a = 1\n") -> Path:
    """Return a folder with one TOML file."""
    file = folder / f"{NAME}.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return folder


def with_entry(content: str, toml: bytes) -> bytes:
    """Return a store that says of a TOML file that it has a content, whatever it has."""
    store = Store()
    store.add(NAME, Entry.of(toml)._replace(line=content.encode()))
    return store.packed()


@pytest.mark.parametrize("folder", get_args(catalog.Folder))
def test_a_store_equals_the_files(folder: catalog.Folder) -> None:
    names = [f"{folder}/{name}" for name in catalog.names(folder)]
    store = Store(packed(str(CATALOG), names))
    files = ParsedFiles(str(CATALOG))
    for name in names:
        toml = (CATALOG / f"{name}.toml").read_bytes()
        entry = store.entry(name)
        assert entry is not None
        assert entry.holds_for(toml)
        assert repr(files.content(name)) == repr(tomllib.loads(toml.decode()))  # 1 is not 1.0


def test_a_store_is_used_for_the_bytes_that_it_was_made_from(tmp_path: Path) -> None:
    folder = files_of(tmp_path)
    toml = (folder / f"{NAME}.toml").read_bytes()
    (folder / SHIPPED).write_bytes(with_entry('{"a":"stored"}', toml))
    assert ParsedFiles(str(folder)).content(NAME) == {"a": "stored"}
    files_of(tmp_path, "a = 2\n")  # of the same size
    assert ParsedFiles(str(folder)).content(NAME) == {"a": 2}
    files_of(tmp_path, "a = 1\n\n")
    assert ParsedFiles(str(folder)).content(NAME) == {"a": 1}


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\xff\x00",
        b"[]\n",
        b'{"format": 1}\n',
        b'{"format": 1, "entries": []}\n',
        b'{"format": 1, "entries": {"folder/file": 1}}\n',
        b'{"format": 1, "entries": {"folder/file": ["a", 1, 2, 3, 4]}}\n',
        b'{"format": 1, "entries": {"folder/file": [6, 0, "a", "b", 0]}}\n',
        with_entry('{"a":"stored"}', b"a = 1\n").replace(b"stored", b"changed"),
        with_entry('{"a":"stored"}', b"a = 1\n")[:-5],
        with_entry('{"a":"stored"}', b"a = 1\n").replace(
            b'"format":%d' % FORMAT, b'"format":%d' % (FORMAT + 1)
        ),
    ],
)
def test_what_is_damaged_is_not_used(damaged: bytes, tmp_path: Path) -> None:
    folder = files_of(tmp_path)
    (folder / SHIPPED).write_bytes(damaged)
    assert ParsedFiles(str(folder)).content(NAME) == {"a": 1}


def test_a_checkout_keeps_what_it_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder, kept = files_of(tmp_path), tmp_path / "kept"
    kept.write_bytes(with_entry('{"a":"stale"}', b"a = 0\n"))
    files = ParsedFiles(str(folder), str(kept))
    assert files.content(NAME) == {"a": 1}
    files.keep()
    entry = Store(kept.read_bytes()).entry(NAME)
    assert entry == Entry.of(b"a = 1\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "kept"]


def test_nothing_is_kept_where_python_writes_nothing_or_a_store_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kept = files_of(tmp_path), tmp_path / "kept"
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    files = ParsedFiles(str(folder), str(kept))
    assert files.content(NAME) == {"a": 1}
    files.keep()
    assert not kept.exists()
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (folder / SHIPPED).write_bytes(Store().packed())
    files = ParsedFiles(str(folder), str(kept))
    assert files.content(NAME) == {"a": 1}
    files.keep()
    assert not kept.exists()


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    files = ParsedFiles(str(files_of(tmp_path)), str(tmp_path / "missing" / "kept"))
    assert files.content(NAME) == {"a": 1}
    files.keep()
    assert not (tmp_path / "missing").exists()


def test_a_command_keeps_what_it_parsed_when_it_ends(tmp_path: Path) -> None:
    """With the compiled modules in a folder of their own, where a checkout's store goes too."""
    program = "from shardcost import catalog; print(catalog.raw('tuner', 'xla'))"
    chosen = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONPATH": str(CATALOG.parents[1])}
    left = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=left | chosen, capture_output=True, text=True, check=True,
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert runs[0] == runs[1] == f"{catalog.raw('tuner', 'xla')}\n"
    stores = list(tmp_path.rglob("parsed.*.jsonl"))
    if (CATALOG / SHIPPED).exists():
        assert not stores
    else:
        (store,) = stores
        assert Store(store.read_bytes()).entry("tuner/xla") is not None

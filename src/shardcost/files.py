"""Files, read without trusting them and written whole or not at all."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EEXIST
from typing import TYPE_CHECKING, BinaryIO

from shardcost.errors import FormatError, ShardcostError, shown

if TYPE_CHECKING:
    from pathlib import Path


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes; refuse what never ends or never begins: devices, pipes."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise FormatError(str(path), "cannot be read: it is no regular file")
            yield file
    except OSError as error:
        raise FormatError(str(path), f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        if isinstance(error, ShardcostError):
            raise
        raise FormatError(shown(str(path)), "is not a file name") from None


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to would else be waited for."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def is_folder(path: Path) -> bool:
    """Return whether a folder is there; of what cannot be looked at, reading it will say why."""
    try:
        return path.is_dir()
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """Return whether a regular file is there; of what cannot be looked at, nobody knows."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_text(path: Path, most_bytes: int) -> str:
    """Return a file's text, if it is a file, is not too large and is UTF-8."""
    with opened(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise FormatError(str(path), f"is larger than {most_bytes // 2**20} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(str(path), f"is not UTF-8 text (byte {error.start})") from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all: under another name first, then in one step."""
    draft = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        if path.exists() and not path.is_file():  # replacing a device or folder is a mishap
            raise FileExistsError(EEXIST, "it exists and is not a regular file")
        with draft.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        draft.replace(path)
    except OSError as error:
        raise FormatError(str(path), f"cannot be written: {error.strerror or error}") from None
    except ValueError:  # a NUL character inside the name
        raise FormatError(shown(str(path)), "is not a file name") from None
    finally:
        with suppress(OSError, ValueError):  # it is there only if something went wrong
            draft.unlink()


def quoted(text: str) -> str:
    """Return a text as TOML and JSON both write it."""
    return json.dumps(text, ensure_ascii=False)

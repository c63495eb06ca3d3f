"""Files, read without trusting them and written whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from errno import EEXIST
from pathlib import Path

from shardcost.errors import FormatError, shown


def read_text(path: Path, most_bytes: int) -> str:
    """Return a file's text, if it is a file, is not too large and is UTF-8."""
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise FormatError(str(path), f"cannot be read: {error.strerror or error}") from None
    except ValueError:  # a NUL character inside the name
        raise FormatError(shown(str(path)), "is not a file name") from None
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

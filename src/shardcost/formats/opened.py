"""Files from outside, opened without trusting them: plain or gzipped, bounded either way.

A gzip of a few kilobytes can hold terabytes. Logs and traces shrink five- to fortyfold; what
shrinks more than `MOST_RATIO` is taken for an attack and refused, as soon as that shows.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

from shardcost.errors import FormatError
from shardcost.files import opened
from shardcost.formats.reading import Tick, no_tick

HEAD_BYTES: Final = 64 * 2**10
"""By so much of its beginning a file is recognised."""
MOST_TEXT_BYTES: Final = 32 * 2**20
"""Of a file that is read as a whole, which takes up to nine times as much: 4 bytes a character."""
MOST_RATIO: Final = 100
_RATIO_COUNTS_FROM: Final = 16 * 2**20
"""So many bytes may come of a small file whatever the ratio."""
_CHUNK: Final = 2**20
_GZIP: Final = b"\x1f\x8b"


@contextmanager
def chunks_of(
    path: Path, tick: Tick = no_tick, most_bytes: int | None = None
) -> Iterator[Iterator[bytes]]:
    """Give the bytes of a file, decompressed, a chunk of about 1 MiB at a time.

    A file that has more than `most_bytes` is refused as soon as that shows.
    """
    with opened(path) as raw:
        size = os.fstat(raw.fileno()).st_size
        zipped = raw.read(2) == _GZIP
        raw.seek(0)
        stream = cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if zipped else raw
        chunks = _chunks(stream, raw, size, str(path), tick)
        yield chunks if most_bytes is None else _bounded(chunks, most_bytes, str(path))


def _bounded(chunks: Iterator[bytes], most_bytes: int, file: str) -> Iterator[bytes]:
    done = 0
    for chunk in chunks:
        done += len(chunk)
        if done > most_bytes:
            raise FormatError(file, f"is larger than {most_bytes // 2**20} MiB")
        yield chunk


def _chunks(stream: BinaryIO, raw: BinaryIO, size: int, file: str, tick: Tick) -> Iterator[bytes]:
    done = 0
    while True:
        try:
            chunk = stream.read(_CHUNK)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise CutOffError(file, f"its gzip is damaged after {done} bytes: {error}") from None
        if not chunk:
            return
        done += len(chunk)
        if stream is not raw and done > max(_RATIO_COUNTS_FROM, MOST_RATIO * raw.tell()):
            raise FormatError(file, f"unpacks to over {MOST_RATIO} times its size; refused")
        tick(min(raw.tell(), size), size)
        yield chunk


class CutOffError(FormatError):
    """A compressed file that ends too soon, or is damaged from some place on."""


def head_of(path: Path) -> str:
    """Return how a file begins, decompressed; what is no UTF-8 shows as replacement characters."""
    with chunks_of(path) as chunks:
        try:
            first = next(chunks, b"")
        except CutOffError:
            first = b""
    return first[:HEAD_BYTES].decode("utf-8-sig", errors="replace")


def text_of(path: Path, tick: Tick = no_tick) -> str:
    """Return the whole text of a log, decompressed, if it is not too large.

    Bytes that are no UTF-8 become replacement characters: a log may hold anything a program wrote.
    """
    with chunks_of(path, tick, MOST_TEXT_BYTES) as chunks:
        return b"".join(chunks).decode("utf-8-sig", errors="replace")

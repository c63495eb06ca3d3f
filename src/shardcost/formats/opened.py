"""Files from outside, read without trusting them: plain or gzipped, whole, by line or as JSON.

A gzip of a few kilobytes can hold terabytes. Logs and traces shrink five- to fortyfold; what
shrinks more than `MOST_RATIO` is taken for an attack and refused, as soon as that shows. Logs are
read in pieces, so that memory does not grow with them; what cannot be read, the end of a damaged
gzip or what lies beyond the limits, is passed over and counted, not an error. JSON may hold neither
NaN nor infinities (which JSON does not have), nor numbers of absurd length, nor nesting that
exhausts the stack. Each failure is one line that names the file and the place.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite, isnan
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn, cast

from shardcost.errors import FormatError
from shardcost.files import opened
from shardcost.formats.reading import PassedOver, Tick, no_tick

HEAD_BYTES: Final = 64 * 2**10
"""By so much of its beginning a file is recognised."""
MOST_TEXT_BYTES: Final = 32 * 2**20
"""Of a file that is read as a whole, which takes up to nine times as much: 4 bytes a character."""
MOST_RATIO: Final = 100
_RATIO_COUNTS_FROM: Final = 16 * 2**20
"""So many bytes may come of a small file whatever the ratio."""
_CHUNK: Final = 2**20
_GZIP: Final = b"\x1f\x8b"
MOST_LOG_BYTES: Final = 32 * 2**20
MOST_LINES: Final = 300_000
LONGEST_LINE: Final = 4096
"""Characters; a line of a benchmark's table has 200."""
_BEYOND: Final = "lines beyond what is read of a log"
_TOO_LONG: Final = "lines too long to be of a table"
_PROCESSES: Final = re.compile(r"[ \t](?:-np|-n|--ntasks)[ =]?([0-9]{1,6})\b")
MOST_JSON_BYTES: Final = 16 * 2**20
"""A config.json has a few KiB; 16 MiB leaves room and still parses in a second."""
_MOST_DIGITS: Final = 40


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

        def chunks() -> Iterator[bytes]:
            done = 0
            while True:
                try:
                    chunk = stream.read(_CHUNK)
                except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                    reason = f"its gzip is damaged after {done} bytes: {error}"
                    raise CutOffError(str(path), reason) from None
                if not chunk:
                    return
                done += len(chunk)
                if zipped and done > max(_RATIO_COUNTS_FROM, MOST_RATIO * raw.tell()):
                    reason = f"unpacks to over {MOST_RATIO} times its size; refused"
                    raise FormatError(str(path), reason)
                tick(min(raw.tell(), size), size)
                if most_bytes is not None and done > most_bytes:
                    raise FormatError(str(path), f"is larger than {most_bytes // 2**20} MiB")
                yield chunk

        yield chunks()


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


def text_of_log(path: Path, passed_over: PassedOver, most_bytes: int, tick: Tick = no_tick) -> str:
    """Return the text of a file of at most `most_bytes`, of a damaged one what is sound of it."""
    sound: list[bytes] = []
    with chunks_of(path, tick, most_bytes) as chunks:
        try:
            sound.extend(chunks)
        except CutOffError as error:
            passed_over.add(0, "damaged", error.reason)
    return b"".join(sound).decode("utf-8-sig", errors="replace")


def lines_of(
    path: Path, passed_over: PassedOver, tick: Tick = no_tick, longest: int = LONGEST_LINE
) -> Iterator[tuple[int, str]]:
    """Yield the lines of a log that are not blank, each with its number from 1 on."""
    number = 0
    for number, line in enumerate(_raw_lines(path, passed_over, tick, longest), 1):
        if number > MOST_LINES:
            passed_over.add(number, _BEYOND)
            return
        if len(line) > longest:
            passed_over.add(number, _TOO_LONG)
        elif line and not line.isspace():
            text = line.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace")
            yield number, text.rstrip("\r")


def _raw_lines(path: Path, passed_over: PassedOver, tick: Tick, longest: int) -> Iterator[bytes]:
    """Yield the lines of a file as bytes; of a line that is too long, only as much as shows it."""
    rest, total, number = b"", 0, 0
    with chunks_of(path, tick) as chunks:
        try:
            for chunk in chunks:
                total += len(chunk)
                if total > MOST_LOG_BYTES:
                    passed_over.add(number + 1, _BEYOND)
                    return
                *whole, rest = (rest + chunk).split(b"\n")
                rest = rest[: longest + 1]
                number += len(whole)
                yield from whole
        except CutOffError as error:
            passed_over.add(number + 1, "damaged", error.reason)
    if rest:
        yield rest


def processes_in(command: str) -> int:
    """Return how many processes a launcher is told to start; 0 where it is not told.

    >>> processes_in("mpirun -np 16 -x NCCL_DEBUG"), processes_in("srun")
    (16, 0)
    """
    match = _PROCESSES.search(command)
    return int(match[1]) if match else 0


def parse_object(
    text: str, file: str, unbounded: frozenset[str] = frozenset(), *, lenient: bool = False
) -> dict[str, Any]:
    """Return the JSON object that `text` holds.

    Values under the keys `unbounded` may be infinite, which JSON has no word for and Python writes.
    Where the reader checks every value that it takes, `lenient` lets NaN and infinities pass.
    """
    constants: Callable[[str], float] = float if unbounded or lenient else no_constant

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for key, each in pairs:
            if key not in unbounded and (name := _beyond_numbers(each)):
                no_constant(name)
        return dict(pairs)

    hook = members if unbounded else None
    try:
        value = json.loads(text, parse_int=_whole, parse_constant=constants, object_pairs_hook=hook)
    except json.JSONDecodeError as error:
        reason = f"line {error.lineno} is not JSON: {error.msg}"
        raise FormatError(file, reason) from None
    except ValueError as error:  # from the two functions below
        raise FormatError(file, str(error)) from None
    except RecursionError:
        raise FormatError(file, "is nested too deeply") from None
    if not isinstance(value, dict):
        raise FormatError(file, f"holds {type(value).__name__}, not a JSON object")
    return value


def _beyond_numbers(value: Any) -> str:
    """Return what of NaN and the infinities a value is, or a list has; empty if none."""
    if isinstance(value, list):
        return next(filter(None, map(_beyond_numbers, value)), "")
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if isnan(value) else "Infinity"
    return ""


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"holds a number of {len(digits)} digits")
    return int(digits)


def no_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities."""
    raise ValueError(f"holds {name}, which is not JSON")


def finite(value: Any) -> float:
    """Return a finite number; 0 for anything else, such as the text nan."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    try:
        number = float(value)
    except OverflowError:
        return 0.0
    return number if isfinite(number) else 0.0


def members_of(value: Any) -> dict[str, Any]:
    """Return the members of a JSON object; none for anything else."""
    return value if isinstance(value, dict) else {}

"""The lines of a log, one by one, bounded in number and length, from a file that may be damaged.

A log is read in pieces, so that memory does not grow with it. What cannot be read, the end of a
damaged gzip or what lies beyond the limits, is passed over and counted, not an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shardcost.formats.opened import CutOffError, chunks_of
from shardcost.formats.reading import PassedOver, Tick, no_tick

MOST_BYTES: Final = 32 * 2**20
MOST_LINES: Final = 300_000
LONGEST_LINE: Final = 4096
"""Characters; a line of a benchmark's table has 200."""
_BEYOND: Final = "lines beyond what is read of a log"
_TOO_LONG: Final = "lines too long to be of a table"
_PROCESSES: Final = re.compile(r"[ \t](?:-np|-n|--ntasks)[ =]?([0-9]{1,6})\b")


def text_of_log(path: Path, passed_over: PassedOver, most_bytes: int, tick: Tick = no_tick) -> str:
    """Return the text of a file of at most `most_bytes`, of a damaged one what is sound of it."""
    found: list[bytes] = []
    with chunks_of(path, tick, most_bytes) as chunks:
        try:
            found.extend(chunks)
        except CutOffError as error:
            passed_over.add(0, "damaged", error.reason)
    return b"".join(found).decode("utf-8-sig", errors="replace")


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
                if total > MOST_BYTES:
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
    found = _PROCESSES.search(command)
    return int(found[1]) if found else 0

"""The text that the OSU micro-benchmarks print for collectives: a size and a latency per line.

Sizes are those of one rank's part where a call has parts: an all-gather or an all-to-all of OSU's
size s moves n s in all, which is how shardcost counts. The number of ranks is not in a table; it
is taken from a command line in the log if there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from shardcost.formats.opened import lines_of, processes_in
from shardcost.formats.reading import (
    MOST_SIZE_BYTES,
    MeasurementLog,
    PassedOver,
    Point,
    Run,
    Tick,
    canonical_collective,
    no_tick,
    unsound,
)

KIND: Final = "osu"
_TITLE: Final = re.compile(
    r"OSU (MPI|NCCL|RCCL)(?:-(CUDA|ROCM|OPENACC))?( Non-[Bb]locking)?(?: Persistent)? "
    r"([A-Za-z_\- ]{3,60}?)(?: Latency)? (?:Test|Benchmark)"
)
_ROW: Final = re.compile(
    r"[ \t]*+(?:\[[0-9]+,[0-9]+\]<std\w{2,4}>:|[0-9]+:)?[ \t]*+([0-9]{1,30})[ \t]++"
    r"([0-9.]{1,30}+)((?:[ \t]++[0-9.]++)*+)[ \t]*+(?:Pass|Fail)?[ \t]*+"
)
_PROCESSES_PRINTED: Final = re.compile(
    r"(?:[Nn]umber of (?:processes|ranks)|nprocs)[ \t:=]+([0-9]{1,6})"
)
_PER_RANK: Final = frozenset({"all_gather", "all_to_all"})
"""Collectives whose size OSU gives per rank."""
_UNKNOWN_RANKS: Final = "the number of GPUs is not in the log: say --gpus"
_PARTS: Final = "sizes are of one rank's part, not of the whole array"
_MOST_ROWS: Final = 10_000
_LONGEST_ROW: Final = 300
"""Characters, and so far into a line a title begins."""


def looks_like(head: str) -> bool:
    """Return whether a file begins like the output of the OSU micro-benchmarks."""
    return any(_TITLE.search(line, 0, _LONGEST_ROW) for line in head.splitlines() if "OSU " in line)


def read(path: Path, tick: Tick = no_tick) -> MeasurementLog:
    """Return the runs that a log holds, one for each table of a collective."""
    passed_over = PassedOver()
    drafts = [draft for draft in _drafts(path, passed_over, tick) if draft.points]
    runs = [_run(draft, passed_over) for draft in drafts if draft.collective]
    for draft in drafts:
        if not draft.collective:
            passed_over.add(draft.points[0].line, f"tables of {draft.title[:40]}")
    nothing = "holds no table of a collective by the OSU micro-benchmarks"
    return MeasurementLog.of(path, KIND, (run for run in runs if run.points), passed_over, nothing)


@dataclass
class _Draft:
    """What is known of one table so far."""

    title: str = ""
    collective: str = ""
    library: str = "mpi"
    memory: str = ""
    ranks: int = 0
    points: list[Point] = field(default_factory=list)


def _drafts(path: Path, passed_over: PassedOver, tick: Tick) -> Iterator[_Draft]:
    draft, ranks, rows = _Draft(), 0, 0
    for number, line in lines_of(path, passed_over, tick):
        title = _TITLE.search(line, 0, _LONGEST_ROW) if "OSU " in line else None
        ranks = _ranks_in(line) or ranks
        if title:
            yield draft
            name = title[4].strip().removesuffix("Personalized Exchange")
            library = {"MPI": "mpi", "NCCL": "nccl", "RCCL": "rccl"}[title[1]]
            collective = "" if title[3] else canonical_collective(name) or ""
            name = f"{(title[3] or '').strip()} {name}".strip()
            draft = _Draft(name, collective, library, (title[2] or "").lower(), ranks)
            continue
        point = _point(line, number) if draft.title else None
        if isinstance(point, Point):
            draft.points.append(point)
            rows += 1
        elif point:
            passed_over.add(number, point)
        elif "#" not in line and "(us)" not in line:
            passed_over.add(number, "lines of other output")
        draft.ranks = draft.ranks or (ranks if not draft.points else 0)
        if rows >= _MOST_ROWS:
            passed_over.add(number + 1, f"all after {_MOST_ROWS:,} rows")
            break
    yield draft


def _ranks_in(line: str) -> int:
    """Return the number of ranks that a command line or a launcher states; 0 if none."""
    match = _PROCESSES_PRINTED.search(line) if "ro" in line or "ank" in line else None
    if match:
        return int(match[1])
    return processes_in(line[: line.find("osu_")]) if "osu_" in line else 0


def _point(line: str, number: int) -> Point | str | None:
    """Return the point of a row, why there is none, or None where a line is no row."""
    if "#" in line or len(line) > _LONGEST_ROW:
        return None
    row = _ROW.fullmatch(line)
    if not row:
        return None
    size = int(row[1])
    try:
        time_us = float(row[2])
    except ValueError:
        return "rows whose latency is no number"
    return unsound("rows", size, time_us) or Point(size, time_us * 1e-6, line=number)


def with_ranks(run: Run, ranks: int) -> Run:
    """Return a run whose log does not say on how many ranks it was, now that this is known."""
    if run.num_gpus:
        return run
    per_rank = run.collective in _PER_RANK
    points = tuple(_of_all(point, ranks) if per_rank else point for point in run.points)
    notes = tuple(note for note in run.notes if note not in {_UNKNOWN_RANKS, _PARTS})
    return replace(run, num_gpus=ranks, points=points, notes=notes)


def _run(draft: _Draft, passed_over: PassedOver) -> Run:
    notes = []
    if not draft.ranks:
        notes.append(_UNKNOWN_RANKS)
    if not draft.memory and draft.library == "mpi":
        notes.append("buffers seem to lie in host memory")
    points = tuple(draft.points)
    if draft.collective in _PER_RANK:
        if draft.ranks:
            points = tuple(_of_all(point, draft.ranks) for point in points)
        else:
            notes.append(_PARTS)
    kept = tuple(point for point in points if point.size_bytes <= MOST_SIZE_BYTES)
    if len(kept) < len(points):
        passed_over.add(points[0].line, "sizes beyond 4 EiB")
    return Run(
        collective=draft.collective,
        num_gpus=draft.ranks,
        library=draft.library,
        points=kept,
        notes=tuple(notes),
    )


def _of_all(point: Point, ranks: int) -> Point:
    return Point(point.size_bytes * ranks, point.time_s, line=point.line)

"""The lines of JSON that NCCL's Inspector plug-in writes: each collective of a running program.

Ranks enter a collective at different times, and the first waits for the last inside it. So the
shortest time over the ranks of one call is what the collective itself took; over the calls of the
same kind the median is taken, which a few disturbed ones do not move. A file holds one rank or
several; with few of them the times still include some waiting.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from shardcost.formats.nccl_tests_rows import ONCE
from shardcost.formats.opened import finite, lines_of, members_of
from shardcost.formats.reading import (
    MOST_RUNS,
    MeasurementLog,
    PassedOver,
    Point,
    Run,
    Tick,
    canonical_collective,
    no_tick,
    unsound,
)
from shardcost.units import GIGA

KIND: Final = "nccl-inspector"
_LONGEST: Final = 256 * 2**10
"""Bytes of a line: with all events of a call it has a few KiB."""
_MOST_RANKS: Final = 10**7
_MOST_CALLS: Final = 80_000
_FEW: Final = 5
"""Fewer calls than this are too few for a median to mean much."""


class _Kind(NamedTuple):
    """What calls have in common whose times are comparable, but for their size."""

    collective: str
    num_gpus: int
    nodes: int


class _Call(NamedTuple):
    """One collective call, as all ranks of a communicator see it."""

    kind: _Kind
    size_bytes: int
    communicator: str
    sequence: int


def looks_like(head: str) -> bool:
    """Return whether a file begins like the Inspector's."""
    start = head.lstrip()[:20_000]
    return start[:1] == "{" and '"coll_perf"' in start and '"coll_exec_time_us"' in start


def read(path: Path, tick: Tick = no_tick) -> MeasurementLog:
    """Return a run for each collective and group size, its points the medians by size."""
    passed_over = PassedOver()
    calls: dict[_Call, tuple[float, int, int]] = {}
    kinds: set[_Kind] = set()
    host_timed = 0
    for number, line in lines_of(path, passed_over, tick, longest=_LONGEST):
        if len(calls) >= _MOST_CALLS:
            passed_over.add(number, f"all after {_MOST_CALLS:,} calls")
            break
        parsed = _call(line)
        if isinstance(parsed, str):
            passed_over.add(number, parsed)
            continue
        call, time_us, by_host = parsed
        if call.kind not in kinds and len(kinds) >= MOST_RUNS:
            passed_over.add(number, f"calls of runs beyond the first {MOST_RUNS:,}")
            continue
        kinds.add(call.kind)
        host_timed += by_host
        least, ranks, first = calls.get(call, (time_us, 0, number))
        calls[call] = (min(least, time_us), ranks + 1, first)
    nothing = "holds no call of NCCL's Inspector that can be read"
    notes = _notes(calls, host_timed)
    return MeasurementLog.of(path, KIND, _runs(calls), passed_over, nothing, notes)


def _call(line: str) -> tuple[_Call, float, bool] | str:
    """Return the call that a line is about, its time, and whether the host took it, or why not."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return "lines that are not JSON"
    record = members_of(record)
    header = members_of(record.get("header")) or record
    call = members_of(record.get("coll_perf"))
    if not call:
        return "lines about something else than a collective"
    name = call.get("coll")
    collective = canonical_collective(name) if isinstance(name, str) else None
    if collective is None:
        return "calls of collectives that shardcost does not predict"
    ranks, size = finite(header.get("n_ranks")), finite(call.get("coll_msg_size_bytes"))
    time_us = finite(call.get("coll_exec_time_us"))
    if not 1 <= ranks <= _MOST_RANKS or size < 1 or unsound("calls", size, time_us):
        return "calls whose ranks, size or time are no number above 0"
    nodes = min(finite(header.get("nnodes")), ranks)
    kind = _Kind(collective, int(ranks), int(nodes))
    shares = finite(call.get("coll_algobw_gbs")) * GIGA * time_us * 1e-6 / size
    if collective in ONCE and abs(shares / ranks - 1) < 0.1:
        size *= ranks  # the line has a rank's part of the whole array, which algbw counts by
    communicator = str(header.get("id"))[:40]
    sequence = int(finite(call.get("coll_sn")))
    by_host = "cpu" in str(call.get("coll_timing_source"))
    return _Call(kind, int(size), communicator, sequence), time_us, by_host


def _runs(calls: Mapping[_Call, tuple[float, int, int]]) -> Iterator[Run]:
    times: dict[_Kind, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    lines: dict[tuple[_Kind, int], int] = {}
    for call, (time_us, _, line) in calls.items():
        times[call.kind][call.size_bytes].append(time_us)
        lines.setdefault((call.kind, call.size_bytes), line)
    for kind, by_size in sorted(times.items()):
        points = tuple(
            Point(size, median(times_us) * 1e-6, line=lines[kind, size])
            for size, times_us in sorted(by_size.items())
        )
        yield Run(**kind._asdict(), library="nccl", points=points, notes=(_support(by_size),))


def _support(by_size: Mapping[int, list[float]]) -> str:
    """Return on how many calls the points rest."""
    counts = [len(times_us) for times_us in by_size.values()]
    few = sum(count < _FEW for count in counts)
    text = f"each point is the median of {min(counts)} to {max(counts)} calls"
    if min(counts) == max(counts):
        text = f"each point is the median of {counts[0]} calls"
    return f"{text}; {few} of {len(counts)} rest on fewer than {_FEW}" if few else text


def _notes(calls: Mapping[_Call, tuple[float, int, int]], host_timed: int) -> Iterator[str]:
    seen = sum(ranks for _, ranks, _ in calls.values())
    in_all = sum(call.kind.num_gpus for call in calls)
    if seen < in_all:
        share = f"{seen / len(calls):.3g} of {in_all / len(calls):.3g}"
        yield f"of each call, {share} ranks are in this file; times include waiting for the others"
    if host_timed:
        yield f"{host_timed} times were taken by the host, not on the device"

"""Traces in the Chrome format, which Perfetto and chrome://tracing show: `trace_text`.

Events carry the names that the PyTorch profiler gives things, so that tools for its traces read
these too, and so does `shardcost.formats.kineto`: a process is a rank, a thread is a stream, every
event is a kernel, and kernels that communicate say what they were asked for. Times are whole
nanoseconds, written in microseconds: both ends of an event are rounded, so that events which follow
each other still do.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from shardcost.dtypes import BITS
from shardcost.errors import BadValueError
from shardcost.files import write_whole
from shardcost.formats.kineto import EVENTS
from shardcost.formats.kineto_names import DTYPES, Call

_NS: Final = 1e9
_RANKS_WRITTEN: Final = 30
_BYTE: Final = "uint8"
_CALLS: Final = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "send_recv": "send",
}
"""PyTorch's names of collectives."""


class Event(NamedTuple):
    """Something that occupies one stream of one rank for a while."""

    name: str
    rank: int
    stream: int
    start_s: float
    end_s: float
    call: Call | None = None
    """What was asked for, where it communicates."""
    more: Mapping[str, Any] = {}
    """Further arguments to show."""


class Names(NamedTuple):
    """What ranks and streams are called."""

    ranks: Mapping[int, str]
    streams: Mapping[int, str]
    backend: str = "nccl"
    world_size: int = 0


def write_trace(path: Path, events: Sequence[Event], names: Names) -> None:
    """Write a trace, gzipped where the file's name ends in ``.gz``."""
    text = trace_text(events, names)
    zipped = path.name.endswith(".gz")
    write_whole(path, gzip.compress(text.encode(), mtime=0) if zipped else text)


def trace_text(events: Sequence[Event], names: Names) -> str:
    """Return events as one JSON document, an event a line."""
    ordered = sorted(events, key=lambda event: (event.rank, event.stream, event.start_s))
    _check(ordered)
    calls = [event.call.kind.group for event in ordered if event.call is not None]
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ns",
        "distributedInfo": {
            "backend": names.backend,
            "rank": ordered[0].rank if ordered else 0,
            "world_size": names.world_size,
            "pg_config": [
                dict(zip(("pg_name", "pg_desc", "pg_size", "ranks"), group, strict=True))
                for group in dict.fromkeys(calls)
            ],
        },
    }
    lines = [*_metadata(ordered, names), *map(_as_data, ordered)]
    written = ",\n".join(json.dumps(line, ensure_ascii=False, allow_nan=False) for line in lines)
    return f'{json.dumps(head)[:-1]}, "{EVENTS}": [\n{written}\n]}}\n'


def _check(ordered: Sequence[Event]) -> None:
    """Raise where an event ends before it begins, or begins before the one before it ends."""
    for event in ordered:
        if not event.end_s >= event.start_s:
            raise BadValueError("end of an event", event.end_s, f"at least {event.start_s}")
    for before, after in pairwise(ordered):
        same = (before.rank, before.stream) == (after.rank, after.stream)
        if same and _ns(after.start_s) < _ns(before.end_s):
            raise BadValueError("start of an event", after.start_s, f"at least {before.end_s}")


def _metadata(ordered: Iterable[Event], names: Names) -> Iterator[dict[str, Any]]:
    """Yield the names of processes and threads."""
    lanes = dict.fromkeys((event.rank, event.stream) for event in ordered)
    for rank in dict.fromkeys(rank for rank, _ in lanes):
        yield _named("process_name", rank, 0, names.ranks.get(rank, f"rank {rank}"))
    for rank, stream in lanes:
        yield _named("thread_name", rank, stream, names.streams.get(stream, f"stream {stream}"))


def _named(what: str, rank: int, stream: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": stream, "ts": 0, "args": {"name": name}}


def _as_data(event: Event) -> dict[str, Any]:
    start, end = _ns(event.start_s), _ns(event.end_s)
    name, arguments = event.name, {}
    if event.call is not None:
        collective = event.call.kind.collective.title().replace("_", "")
        name = f"ncclDevKernel_{collective}({name})"  # by which tools know that it communicates
        arguments = _arguments(event.call, event.rank)
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": event.rank,
        "tid": event.stream,
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "args": {"stream": event.stream, **arguments, **event.more},
    }


def _ns(seconds: float) -> int:
    return round(seconds * _NS)


def _arguments(call: Call, rank: int) -> dict[str, Any]:
    """Return what the profiler notes about a call; sizes in elements."""
    collective, group, dtype = call.kind
    arguments: dict[str, Any] = {"Collective name": _CALLS.get(collective, collective)}
    if call.size_bytes:
        whole = 8 * call.size_bytes // (8 if dtype == _BYTE else BITS[dtype])
        part = whole // max(group.size, 1)
        arguments["In msg nelems"] = part if collective == "all_gather" else whole
        arguments["Out msg nelems"] = part if collective == "reduce_scatter" else whole
    if dtype in DTYPES:  # the profiler has no names for formats of fewer than 8 bits
        arguments["dtype"] = DTYPES[dtype]
    arguments |= {
        "Group size": group.size,
        "Process Group Name": group.name,
        "Process Group Description": group.description,
        "Process Group Ranks": group.ranks,
        "Rank": rank,
    }
    return arguments | ({"Seq": call.seq} if call.seq >= 0 else {})


def ranks_text(ranks: Sequence[int]) -> str:
    """Return a list of ranks as the profiler writes it, shortened where it is long.

    >>> ranks_text(range(0, 32, 8))
    '[0, 8, 16, 24]'
    """
    shown = ", ".join(map(str, ranks[:_RANKS_WRITTEN]))
    return f"[{shown}, ...]" if len(ranks) > _RANKS_WRITTEN else f"[{shown}]"

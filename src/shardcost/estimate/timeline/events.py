"""A timeline as it is drawn: events on streams, none of which has two events at a time.

Communication that is partly hidden is two events, one exposed and one not, so that what is drawn
adds up to what the estimate counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from shardcost.records import NamedTuple

COMPUTE: Final = "compute"
COMMUNICATION: Final = frozenset({"comm", "send"})
"""Kinds of event that are communication."""
_ROUNDING: Final = 1e-12
"""By which the end of an event may lie behind the start of the next, as a share of it."""
_FIRST: Final = (COMPUTE, "communication", "tp", "cp", "ep", "pp", "dp")
"""The order of streams."""


class Event(NamedTuple):
    """Something that occupies one stream of one stage for a while."""

    name: str
    stage: int
    stream: str
    kind: str
    """``gemm``, ``attention``, ``elementwise``; ``forward``, ``backward``, ``weight`` for a whole
    pass over a stage's layers; ``comm``, ``send``; ``optimizer``, ``host``, ``idle``."""
    start_s: float
    end_s: float
    exposed: bool = True
    """Whether the stage's compute waits for it; everything but communication is."""
    group: str | None = None
    """Of a communication."""
    micro_batch: int | None = None
    chunk: int | None = None
    passing: str | None = None
    """``forward``, ``recompute``, ``backward`` or ``weight``."""
    operation: str | None = None
    """Its name among the estimate's operations, where it is one."""

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.end_s - self.start_s


class Stream(NamedTuple):
    """A row of the drawing."""

    name: str
    stage: int
    stream: str


class Break(NamedTuple):
    """A while of a step in which nothing is drawn, which a picture shortens."""

    start_s: float
    end_s: float
    micro_batches: int
    """That are left out."""

    @property
    def words(self) -> str:
        """What a picture writes there."""
        return f"… {self.micro_batches:,} micro-batches …"

    def shortened(self, time_s: float, room_s: float) -> float:
        """Return where a time is drawn, if the break is drawn as wide as `room_s`."""
        if time_s <= self.start_s:
            return time_s
        if time_s >= self.end_s:
            return time_s - (self.end_s - self.start_s) + room_s
        return self.start_s + (time_s - self.start_s) / (self.end_s - self.start_s) * room_s


class Drawing(NamedTuple):
    """A timeline, ready to be shown."""

    of: str
    title: str
    span_s: float
    cut: str | None
    """What was left out, in words; None if nothing was."""
    streams: tuple[Stream, ...]
    events: tuple[Event, ...]
    """Each on one of the streams, by stage and stream."""
    totals: Mapping[str, float]
    """``compute_s``, ``exposed_s``, ``hidden_s``, ``bubble_s``, ``host_s``."""
    gap: Break | None = None
    """Where micro-batches are left out."""


def drawing(
    of: str,
    title: str,
    span_s: float,
    events: Iterable[Event],
    totals: Mapping[str, float],
    cut: str | None = None,
    left_out: int = 0,
) -> Drawing:
    """Return events on streams: those that would overlap on one go to a second of its name.

    Where micro-batches are left out, so many as `left_out`, the longest while without an event is
    the drawing's break.
    """
    placed: list[Event] = []
    free: dict[tuple[int, str], list[float]] = {}
    order: dict[tuple[int, str], None] = {}
    for event in sorted(events, key=lambda event: (event.start_s, event.end_s)):
        ends = free.setdefault((event.stage, event.stream), [])
        late = event.start_s * (1 + _ROUNDING)
        lane = next((index for index, end in enumerate(ends) if end <= late), len(ends))
        ends[lane:] = [event.end_s, *ends[lane + 1 :]]
        stream = event.stream if lane == 0 else f"{event.stream} {lane + 1}"
        order[event.stage, stream] = None
        placed.append(event if lane == 0 else event._replace(stream=stream))
    several = len({stage for stage, _ in order}) > 1
    streams = tuple(
        Stream(f"stage {stage} {stream}" if several else stream, stage, stream)
        for stage, stream in sorted(order, key=lambda key: (key[0], *stream_order(key[1])))
    )
    gap = _longest_gap(placed, left_out) if left_out else None
    return Drawing(of, title, float(span_s), cut, streams, tuple(placed), totals, gap)


def _longest_gap(events: Iterable[Event], left_out: int) -> Break | None:
    """Return the longest while in which no stream has an event; events are in order of start."""
    longest, end = Break(0.0, 0.0, left_out), 0.0
    for event in events:
        if event.start_s - end > longest.end_s - longest.start_s:
            longest = Break(end, event.start_s, left_out)
        end = max(end, event.end_s)
    return longest if longest.end_s > longest.start_s else None


def stream_order(stream: str) -> tuple[int, str]:
    """Return what streams of one stage are sorted by."""
    name = stream.partition(" ")[0]
    return _FIRST.index(name) if name in _FIRST else len(_FIRST), stream

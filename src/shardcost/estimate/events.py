"""A timeline as it is drawn: events on streams, none of which has two events at a time.

Communication that is partly hidden is two events, one exposed and one not, so that what is drawn
adds up to what the estimate counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from shardcost.checks import is_array
from shardcost.errors import BadTypeError, UnknownNameError
from shardcost.estimate.result import BUBBLE, HOST, Estimate

COMPUTE: Final = "compute"
COMMUNICATION: Final = frozenset({"comm", "send"})
"""Kinds of event that are communication."""
VIEWS: Final = ("step", "layer")
TRIFLE_S: Final = 1e-12
"""Shorter pieces are rounding."""
_ROUNDING: Final = 1e-12
"""By which the end of an event may lie behind the start of the next, as a share of it."""

Span = tuple[float, float]
"""From when to when, in seconds."""


class Event(NamedTuple):
    """Something that occupies one stream of one stage for a while."""

    name: str
    stage: int
    stream: str
    kind: str
    """``product``, ``attention``, ``pass``; ``forward``, ``backward``, ``weight`` for a whole pass
    over a stage's layers; ``comm``, ``send``; ``optimizer``, ``host``, ``idle``."""
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

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.end_s - self.start_s


class Stream(NamedTuple):
    """A row of the drawing."""

    name: str
    stage: int
    stream: str


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


def check(found: Estimate, of: str) -> None:
    """Raise for a view that is not known, or an estimate of many layouts."""
    if of not in VIEWS:
        raise UnknownNameError("of", of, VIEWS)
    if is_array(found.time_s):
        raise BadTypeError("layout", found.layout, "one layout, not an array of them, to be drawn")


def drawing(
    of: str,
    title: str,
    span_s: float,
    events: Iterable[Event],
    totals: Mapping[str, float],
    cut: str | None = None,
) -> Drawing:
    """Return events on streams: those that would overlap on one go to a second of its name."""
    placed: list[Event] = []
    free: dict[tuple[int, str], list[float]] = {}
    order: dict[tuple[int, str], None] = {}
    for event in sorted(events, key=lambda each: (each.start_s, each.end_s)):
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
        for stage, stream in sorted(order, key=_by_stream)
    )
    return Drawing(of, title, float(span_s), cut, streams, tuple(placed), totals)


_FIRST: Final = (COMPUTE, "communication", "tp", "cp", "ep", "pp", "dp")


def _by_stream(key: tuple[int, str]) -> tuple[int, int, str]:
    stage, stream = key
    name = stream.partition(" ")[0]
    return stage, _FIRST.index(name) if name in _FIRST else len(_FIRST), stream


def totals_of(events: Iterable[Event]) -> dict[str, float]:
    """Return the seconds of events by what they are."""
    found = dict.fromkeys(("compute_s", "exposed_s", "hidden_s", "bubble_s", "host_s"), 0.0)
    for event in events:
        found[_total(event)] += event.seconds
    return found


def _total(event: Event) -> str:
    if event.kind in COMMUNICATION:
        return "exposed_s" if event.exposed else "hidden_s"
    return {"idle": "bubble_s", "host": "host_s"}.get(event.kind, "compute_s")


def summed(*tables: Mapping[str, Any]) -> float:
    """Return all seconds of tables together."""
    return float(sum(sum(table.values()) for table in tables))


def step_totals(found: Estimate) -> dict[str, float]:
    """Return what the estimate says of the stage that sets the pace."""
    totals = {
        "compute_s": summed(found.compute_s),
        "exposed_s": summed(found.exposed_s),
        "hidden_s": summed(found.hidden_s),
        "bubble_s": float(found.parts_s.get(BUBBLE, 0.0)),
        "host_s": float(found.parts_s[HOST]),
    }
    return {name: seconds if seconds > TRIFLE_S else 0.0 for name, seconds in totals.items()}

"""The timeline of a step or of one layer as plain data: streams, and events upon them."""

from __future__ import annotations

from typing import Any

from shardcost.estimate.events import Drawing, Event, check
from shardcost.estimate.layer_timeline import layer_timeline
from shardcost.estimate.result import Estimate
from shardcost.estimate.step_timeline import step_timeline


def drawing_of(found: Estimate, of: str = "step") -> Drawing:
    """Return the timeline of one step, or of one layer.

    Raises:
        UnknownNameError: `of` is neither ``step`` nor ``layer``.
        BadTypeError: The estimate is of an array of layouts.
    """
    check(found, of)
    return step_timeline(found) if of == "step" else layer_timeline(found)


def as_data(found: Estimate, of: str = "step") -> dict[str, Any]:
    """Return a timeline as plain data; an event's stream is the index of one."""
    drawn = drawing_of(found, of)
    places = {(each.stage, each.stream): index for index, each in enumerate(drawn.streams)}
    return {
        "of": drawn.of,
        "title": drawn.title,
        "span_s": drawn.span_s,
        "cut": drawn.cut or False,
        "streams": [each._asdict() for each in drawn.streams],
        "events": [_event(each, places[each.stage, each.stream]) for each in drawn.events],
        "totals": dict(drawn.totals),
    }


def _event(event: Event, stream: int) -> dict[str, Any]:
    return {
        "name": event.name,
        "stream": stream,
        "start_s": event.start_s,
        "end_s": event.end_s,
        "kind": event.kind,
        "exposed": event.exposed,
        "group": event.group,
        "micro_batch": event.micro_batch,
        "chunk": event.chunk,
        "pass": event.passing,
    }

"""One pass of a prefill or of decoding drawn: through the stages, one after the other.

All its layers are the mean layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from shardcost.estimate.events import COMPUTE, Drawing, Event, Span, drawing, step_totals
from shardcost.estimate.ledger import PassParts
from shardcost.estimate.result import HOST, Estimate
from shardcost.memory.stages import Stage as StageLayers
from shardcost.memory.stages import stage_by_cost, stage_evenly

_MOST_LAYERS: Final = 256
"""Drawn one by one; more are drawn together, stage by stage."""


class _Part(NamedTuple):
    """A piece of one pass: the embedding, a layer, some layers, or the head."""

    name: str
    parts: PassParts
    collectives: float
    """Of the tensor group, at which ranks wait for the slowest."""


def serving_timeline(found: Estimate) -> Drawing:
    """Return one pass through all stages."""
    program, ledger = found.program, found.ledger
    software, pp = program.setting.software, int(found.layout.pp)
    whole = ledger.forward
    late = float(whole.wall_s(software) - whole.device_s) / max(float(whole.kernels), 1.0)
    host = software.step_overhead_s + software.host_per_sequence_s * program.setting.sequences
    free = float(host)
    events = [Event(HOST, 0, COMPUTE, "host", 0.0, free)]
    turns: list[Span] = []
    for stage in range(pp):
        begin = free
        for part in _parts_of(found, stage):
            waits = late * float(part.parts.time.kernels)
            waits += float(software.collective_wait_s) * part.collectives
            drawn, free = _passed(part, stage, free, waits)
            events += drawn
        turns.append((begin if stage else 0.0, free))
        if stage < pp - 1:
            end = free + float(ledger.send_s)
            events.append(Event("send activations", stage, "pp", "send", free, end, group="pp"))
            free = end
    for stage, (begin, end) in enumerate(turns):
        events.append(Event("wait", stage, COMPUTE, "idle", 0.0, begin))
        events.append(Event("wait", stage, COMPUTE, "idle", end, free))
    events = [event for event in events if event.seconds > 0]
    return drawing(
        "step", _serving_title(found), free, events, step_totals(found), _together(found)
    )


def _serving_title(found: Estimate) -> str:
    what = "prefill" if found.workload.phase == "prefill" else "step of decoding"
    stages = f" through {found.layout.pp} stages" if found.layout.pp > 1 else ""
    return f"One {what}{stages}, each layer's work by kind"


def _together(found: Estimate) -> str | None:
    total = found.program.num_layers
    if total <= _MOST_LAYERS:
        return None
    return f"the {total} layers are drawn together, stage by stage"


def _parts_of(found: Estimate, stage: int) -> Iterator[_Part]:
    """Yield the pieces of one pass through a stage, in order."""
    ledger, total = found.ledger, found.program.num_layers
    outer = [float(piece.tensor_collectives) for piece in (ledger.first, ledger.last)]
    each = float(ledger.tensor_collectives - sum(outer)) / total
    first, last = (PassParts.of([(1, piece)], "forward") for piece in (ledger.first, ledger.last))
    layer = PassParts.of(ledger.shares, "forward")
    own, before = _layers_of(found, stage)
    if own.has_embedding:
        yield _Part("embedding", first, outer[0])
    layers = int(own.layers)
    if total <= _MOST_LAYERS:
        for number in range(layers):
            yield _Part(f"layer {before + number}", layer, each)
    elif layers:
        name = f"layers {before} to {before + layers - 1}"
        shares = [(layers * share, piece) for share, piece in ledger.shares]
        yield _Part(name, PassParts.of(shares, "forward"), layers * each)
    if own.has_head:
        yield _Part("head", last, outer[1])


def _layers_of(found: Estimate, stage: int) -> tuple[StageLayers, int]:
    """Return what a stage has, and how many layers stand on the stages before it."""
    by_cost = found.program.setting.software.balance == "cost"
    split = stage_by_cost if by_cost else stage_evenly
    before = sum(int(split(found.model, found.layout, each).layers) for each in range(stage))
    return split(found.model, found.layout, stage), before


def _passed(part: _Part, stage: int, free: float, waits: float) -> tuple[list[Event], float]:
    """Return the events of a piece from a time on, and when it is over."""
    parts, name = part.parts, part.name
    events: list[Event] = []
    start = free
    for kind, seconds in parts.compute_s.items():
        end = free + float(seconds)
        title = f"{name}: {kind}"
        events.append(Event(title, stage, COMPUTE, kind, free, end, passing="forward"))
        free = end
    computed = free
    for group, seconds in parts.exposed_s.items():
        title = f"{name}: {group} communication"
        begin = max(start, computed - float(parts.comm_s[group] - seconds))
        end = free + float(seconds)
        for one, other, exposed in ((begin, computed, False), (free, end, True)):
            events.append(
                Event(title, stage, group, "comm", one, other, exposed, group, passing="forward")
            )
        free = end
    if waits > 0:
        title = f"{name}: wait for the host and other ranks"
        events.append(Event(title, stage, COMPUTE, "host", free, free + waits, passing="forward"))
        free += waits
    return events, free

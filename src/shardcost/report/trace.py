"""The timeline of an estimated step as a trace for Perfetto.

A process is a pipeline stage, by the first of its ranks, with a lane for compute and one for each
group that communicates. Of the communication inside the layers, the exposed part is shown: it
stands for several collectives, and says which of them sends most but no size.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from shardcost.estimate.placement import strides
from shardcost.estimate.result import Estimate
from shardcost.estimate.timeline import events as timeline
from shardcost.estimate.timeline.step import step_timeline
from shardcost.formats.chrome_trace import Event, Names, ranks_text, write_trace
from shardcost.formats.kineto_names import Call, CommGroup, Kind
from shardcost.machine.libraries import default_library
from shardcost.program.operations import Collective, Operations
from shardcost.workload import Train

_WAITS: Final = frozenset({"idle", "host"})


def write_timeline(estimate: Estimate, path: Path) -> None:
    """Write the timeline of a step as a trace."""
    write_trace(path, *events_of(estimate))


def events_of(estimate: Estimate) -> tuple[list[Event], Names]:
    """Return the events of a step, and what its ranks and streams are called."""
    drawing = step_timeline(estimate, whole=True)
    shown = [event for event in drawing.events if event.exposed and event.kind not in _WAITS]
    streams = sorted({event.stream for event in shown}, key=timeline.stream_order)
    pieces = Counter((event.stage, event.name) for event in shown)
    calls: Counter[tuple[int, CommGroup]] = Counter()
    apart = strides(estimate.layout)
    stride = int(apart["pp"])
    events = []
    for event in shown:
        rank, call = event.stage * stride, None
        if event.group is not None:
            sent = _sent(estimate, event, event.group, pieces[event.stage, event.name])
            first = 0 if sent.collective == "send_recv" else rank
            group = _ranks_of(sent, first, apart.get(sent.group, 1))
            number = calls[event.stage, group]
            call = Call(Kind(sent.collective, group, sent.dtype), number, sent.size_bytes)
            calls[event.stage, group] += 1
        numbers = {"micro_batch": event.micro_batch, "chunk": event.chunk}
        more = {name: number for name, number in numbers.items() if number is not None}
        place = (rank, streams.index(event.stream), event.start_s, event.end_s)
        events.append(Event(event.name, *place, call, more))
    ranks = {stage * stride: f"stage {stage}" for stage in range(estimate.layout.pp)}
    library, devices = default_library(estimate.cluster), int(estimate.layout.devices)
    return events, Names(ranks, dict(enumerate(streams)), library, devices)


class _Sent(NamedTuple):
    """One collective of a rank. Its size is 0 where it stands for several of different sizes."""

    collective: str
    group: str
    ranks: int
    size_bytes: int = 0
    dtype: str = ""


def _sent(estimate: Estimate, event: timeline.Event, group: str, pieces: int) -> _Sent:
    """Return which collective an event is; one of `pieces` where it is done in several."""
    program, workload = estimate.program, estimate.workload
    # The format that activations and weights are sent in.
    dtype = workload.dtype if workload.dtype in {"fp32", "fp16", "bf16"} else "bf16"
    if group == "pp":
        return _Sent("send_recv", "pp", int(estimate.layout.pp), int(program.send_bytes), dtype)
    if event.passing is None and program.step is not None and isinstance(workload, Train):
        if event.name == "reduce gradients":
            return _of_step(program.step.gradients, workload.gradient_dtype, pieces)
        return _of_step(program.step.weights, dtype, pieces)
    passes = ("forward",) if event.passing == "forward" else ("recompute", "backward", "weight")
    inside = [*(layers.passes for layers in program.layers), program.first, program.last]
    operations = [op for part in inside for name in passes for op in getattr(part, name)]
    if group == "dp":  # weights of layers under ZeRO stage 3
        gathers = [layers.gathers for layers in program.layers]
        forward = event.passing == "forward"
        operations = [op for part in gathers for op in (part.forward if forward else part.backward)]
    sent = [op for op in operations if isinstance(op, Collective) and op.group == group]
    if not sent:
        return _Sent("all_reduce", group, getattr(estimate.layout, group, 1))
    most = max(sent, key=lambda op: float(op.size_bytes * op.count))
    return _Sent(most.collective, group, int(most.ranks))


def _of_step(operations: Operations, dtype: str, pieces: int) -> _Sent:
    sent = [op for op in operations if isinstance(op, Collective)]
    if not sent:
        return _Sent("all_reduce", "dp", 1, dtype=dtype)
    first = max(sent, key=lambda op: float(op.size_bytes))
    alike = all((op.collective, op.group) == (first.collective, first.group) for op in sent)
    total = sum(float(op.size_bytes * op.count) for op in sent) if alike else 0.0
    return _Sent(first.collective, first.group, int(first.ranks), int(total / pieces), dtype)


def _ranks_of(sent: _Sent, first: int, stride: int) -> CommGroup:
    """Return the group that a rank sends over, whose ranks are so many devices apart."""
    members = [first + number * stride for number in range(sent.ranks)]
    return CommGroup(f"{sent.group} of rank {first}", sent.group, sent.ranks, ranks_text(members))

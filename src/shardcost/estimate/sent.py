"""Which collective the communication on a timeline is, as far as one piece of it is one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from shardcost.estimate.result import Estimate
from shardcost.program.operations import Collective, Operation
from shardcost.schedule.timeline import Task
from shardcost.workload import Train


class Sent(NamedTuple):
    """One collective of a rank. Its size is 0 where it stands for several of different sizes."""

    collective: str
    group: str
    ranks: int | None = None
    """As many as the group has if None."""
    size_bytes: int = 0
    dtype: str = ""


def sent_by_event(estimate: Estimate, group: str) -> Sent:
    """Return what an event of a forward pass of serving sends over a group."""
    if group == "pp":
        return _send(estimate)
    program = estimate.program
    forward = [*(each.passes.forward for each in program.layers), program.first.forward]
    inside = _collectives(op for part in (*forward, program.last.forward) for op in part)
    return _of_layers([op for op in inside if op.group == group])


def sent_by_task(estimate: Estimate, task: Task, buckets: int) -> Sent:
    """Return what a task of a training step sends; one of `buckets` where it is done in several."""
    program, workload = estimate.program, estimate.workload
    if task.kind == "send":
        return _send(estimate)
    if task.stream == "dp" and program.step is not None and isinstance(workload, Train):
        if task.name == "reduce gradients":
            return _of_step(program.step.gradients, workload.gradient_dtype, buckets)
        return _of_step(program.step.weights, _sixteen_bits(workload.dtype), buckets)
    backward = task.name.endswith("backward")
    passes = (each.passes.backward if backward else each.passes.forward for each in program.layers)
    return _of_layers(_collectives(op for part in passes for op in part))


def _send(estimate: Estimate) -> Sent:
    dtype = _sixteen_bits(estimate.workload.dtype)
    return Sent("send_recv", "pp", None, int(estimate.program.send_bytes), dtype)


def _of_step(operations: Iterable[Operation], dtype: str, buckets: int) -> Sent:
    sent = _collectives(operations)
    if not sent:
        return Sent("all_reduce", "dp", dtype=dtype)
    first = max(sent, key=lambda op: float(op.size_bytes))
    alike = all((op.collective, op.group) == (first.collective, first.group) for op in sent)
    total = sum(float(op.size_bytes * op.count) for op in sent) if alike else 0.0
    return Sent(first.collective, first.group, int(first.ranks), int(total / buckets), dtype)


def _of_layers(sent: list[Collective]) -> Sent:
    """Return what stands for all collectives inside the layers: it has no single size."""
    if not sent:
        return Sent("all_reduce", "tp")
    first = max(sent, key=lambda op: float(op.size_bytes * op.count))
    return Sent(first.collective, first.group, int(first.ranks))


def _collectives(operations: Iterable[Operation]) -> list[Collective]:
    return [op for op in operations if isinstance(op, Collective)]


def _sixteen_bits(dtype: str) -> str:
    """Return the format that activations and weights are sent in."""
    return dtype if dtype in {"fp32", "fp16", "bf16"} else "bf16"

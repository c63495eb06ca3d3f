"""The one function that joins the rooms: `estimate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from shardcost.arrays import choose
from shardcost.checks import anywhere, is_array
from shardcost.cluster import Cluster, Device
from shardcost.collectives.calibration import Calibration
from shardcost.errors import BadTypeError
from shardcost.estimate.busy import IDLE, Busy, chosen
from shardcost.estimate.placement import places
from shardcost.estimate.price import Prices
from shardcost.estimate.result import Estimate
from shardcost.estimate.work import RankWork, all_passes, rank_work, step_work
from shardcost.kernels.constants import section_of
from shardcost.kernels.products import product_section
from shardcost.layout import Layout
from shardcost.memory import Habits, Memory, memory_of
from shardcost.memory.habits import habits_with
from shardcost.model import Model
from shardcost.program.assemble import Program, program_of
from shardcost.program.flops import model_flops
from shardcost.program.operations import Collective
from shardcost.schedule.step import step_time
from shardcost.software import Software
from shardcost.workload import Train, Workload

TRAINS_WITH, SERVES_WITH = "megatron_core", "trtllm"
"""The software taken where none is named."""


def estimate(
    model: Model | str,
    cluster: Cluster | str,
    layout: Layout,
    workload: Workload,
    *,
    software: Software | str | None = None,
    wire: Calibration | None = None,
) -> Estimate:
    """Return what a model costs under a layout on a cluster.

    >>> from shardcost import Layout, Prefill
    >>> prompt = Prefill(batch=1, prompt_tokens=8192)
    >>> found = estimate("llama3-70b", "h100_sxm", Layout(tp=8), prompt)
    >>> 0.2 < found.ttft_s < 0.6
    True

    Args:
        model: A `Model` or the name of one in the catalog.
        cluster: A `Cluster`, joined by a network if the layout spans nodes, or the name of one.
        layout: Degrees may be arrays that broadcast: one call prices them all.
        workload: `Train`, `Prefill` or `Decode`.
        software: The framework or engine; Megatron Core or TensorRT-LLM if none is named.
        wire: Constants of your own network instead of the catalog's.
    """
    model = Model.named(model) if isinstance(model, str) else model
    cluster = Cluster.named(cluster) if isinstance(cluster, str) else cluster
    _check_kinds(model, cluster, layout, workload)
    runs = _software(software, isinstance(workload, Train))
    program = program_of(model, layout, workload, runs)
    prices = Prices(cluster, runs, places(layout), wire, arrays=_has_arrays(program))
    work = rank_work(program, prices)
    times = _training(program, work) if program.step else _serving(program, work)
    memory = memory_of(model, layout, workload, device=cluster.device, software=_habits(runs))
    return Estimate(
        model=model,
        cluster=cluster,
        layout=layout,
        workload=workload,
        software=runs,
        time_s=times.time_s,
        parts_s=times.parts_s,
        compute_s=times.compute_s,
        comm_s=times.comm_s,
        exposed_s=times.exposed_s,
        memory=memory,
        flops=model_flops(model, workload, causal=True),
        flops_full_attention=model_flops(model, workload, causal=False),
        hardware_flops=times.flops * layout.tp * layout.cp * layout.dp,
        program=program,
        work=work,
        warnings=(*_warnings(model, cluster, workload, runs, memory), *prices.notes),
    )


@lru_cache(maxsize=64)
def _habits(software: Software) -> Habits:
    """Return how a software treats memory: its choices, and what was measured of it."""
    return habits_with(vars(software), software.memory)


def _has_arrays(program: Program) -> bool:
    """Return whether any size in a program is an array."""
    s, stages = program.setting, program.stages
    sizes = (s.tokens, s.context_tokens, stages.first.weights.total, stages.middle.layers)
    return any(map(is_array, (*sizes, program.micro_batches, *vars(s.layout).values())))


class _Times(NamedTuple):
    time_s: Any
    parts_s: Mapping[str, Any]
    compute_s: Mapping[str, Any]
    comm_s: Mapping[str, Any]
    exposed_s: Mapping[str, Any]
    flops: Any
    """Of all stages, on one rank each."""


def _training(program: Program, work: RankWork) -> _Times:
    """Return the times of an optimizer step, of the stage that sets the pace."""
    software, layout = program.setting.software, program.setting.layout
    step = step_time(step_work(program, work), layout.schedule)
    runs = program.micro_batches
    stage, layers = _slowest_stage(program, work)
    own = stage.times(runs)
    alone = 0.0 if software.dp_overlap else work.reduce_s + work.collect_s
    gathers = runs * layers * (2 * work.gather_s + work.scatter_s)
    comm = {
        **own.comm_s,
        "dp": work.reduce_s + work.collect_s + gathers,
        "pp": 2 * runs * layout.chunks * work.send_s,
    }
    exposed = {**own.exposed_s, "dp": step.exposed_dp_s + alone, "pp": step.exposed_send_s}
    compute = {**own.compute_s, "optimizer": step.optimizer_s}
    known = sum(compute.values()) + sum(exposed.values()) + step.bubble_s
    every_layer = sum(each.count for each in program.layers)
    whole = all_passes(work.layer).times(every_layer) + all_passes(work.first + work.last)
    return _Times(
        time_s=step.step_s,
        parts_s=_parts(compute, exposed, {"bubble": step.bubble_s}, step.step_s - known),
        compute_s=compute,
        comm_s=comm,
        exposed_s=exposed,
        flops=runs * whole.flops,
    )


def _slowest_stage(program: Program, work: RankWork) -> tuple[Busy, Any]:
    """Return one micro-batch on the stage that has most to do, and how many layers that has."""
    stages, layer = program.stages, all_passes(work.layer)
    first, last = all_passes(work.first), all_passes(work.last)
    layers = stages.first.layers
    stage = layer.times(layers) + first
    alone = program.setting.layout.pp == 1
    for share, extra in ((stages.middle, IDLE), (stages.last, last)):
        other = layer.times(share.layers) + extra
        slower = other.device_s > stage.device_s
        layers = choose(slower, share.layers, layers)
        stage = chosen(slower, other, stage)
    return chosen(alone, layer.times(stages.first.layers) + first + last, stage), layers


def _parts(
    compute: Mapping[str, Any], exposed: Mapping[str, Any], waits: Mapping[str, Any], rest: Any
) -> dict[str, Any]:
    communication = {f"{name} communication": each for name, each in exposed.items()}
    return {**compute, **communication, **waits, "host and overhead": rest}


def _serving(program: Program, work: RankWork) -> _Times:
    """Return the times of one pass through all stages, one after the other.

    Before a pass the host looks after every sequence; at every collective of the tensor group the
    ranks wait for the slowest.
    """
    software, layout = program.setting.software, program.setting.layout
    count = sum(each.count for each in program.layers)
    whole = work.layer.forward.times(count) + work.first.forward + work.last.forward
    sending = (layout.pp - 1) * work.send_s
    comm = {**whole.comm_s, "pp": sending}
    exposed = {**whole.exposed_s, "pp": sending}
    host = software.step_overhead_s + software.host_per_sequence_s * program.setting.sequences
    host = host + software.collective_wait_s * tensor_collectives(program)
    time = whole.wall_s(software) + sending + host
    known = sum(whole.compute_s.values()) + sum(exposed.values())
    return _Times(
        time_s=time,
        parts_s=_parts(whole.compute_s, exposed, {}, time - known),
        compute_s=whole.compute_s,
        comm_s=comm,
        exposed_s=exposed,
        flops=whole.flops,
    )


def tensor_collectives(program: Program) -> Any:
    """Return how many collectives of the tensor group one pass forward has."""
    pieces = [(each.count, each.passes) for each in program.layers]
    pieces += [(1, program.first), (1, program.last)]
    return sum(
        times * op.count
        for times, passes in pieces
        for op in passes.forward
        if isinstance(op, Collective) and op.group == "tp"
    )


def _check_kinds(model: object, cluster: object, layout: object, workload: object) -> None:
    wanted = (
        ("model", model, Model),
        ("cluster", cluster, Cluster),
        ("layout", layout, Layout),
        ("workload", workload, Workload),
    )
    for name, given, kind in wanted:
        if not isinstance(given, kind):
            raise BadTypeError(name, given, f"a {kind.__name__}")


def _software(given: Software | str | None, training: bool) -> Software:  # noqa: FBT001
    if isinstance(given, Software):
        return given
    return _named(given or (TRAINS_WITH if training else SERVES_WITH))


@lru_cache(maxsize=64)
def _named(name: str) -> Software:
    return Software.named(name)


def _warnings(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    software: Software,
    memory: Memory,
) -> Iterator[str]:
    """Yield where the estimate goes beyond what was measured, and what would not run."""
    if not anywhere(is_array(memory.peak_bytes)):
        reason = memory.reason(cluster.device)
        if reason:
            yield reason
    for part in model.not_priced_yet:
        yield f"{part}: priced as memory passes, which leaves its own compute out"
    yield from _inherited(cluster.device, workload.dtype)
    if software.fit == "not fitted":
        yield f"the host's share of {software.title} was not fitted to runs of it"


@lru_cache(maxsize=256)
def _inherited(device: Device, dtype: str) -> tuple[str, ...]:
    """Return which kernels a device takes the constants of from another."""
    lenders = {
        "matrix products": product_section(device, dtype).inherited_from,
        "attention kernels": section_of("attention", device, "prefill").inherited_from,
        "memory passes": section_of("passes", device, "pass").inherited_from,
    }
    return tuple(
        f"{what} were not measured on {device.name}: shares carried over from {lender}"
        for what, lender in lenders.items()
        if lender is not None
    )

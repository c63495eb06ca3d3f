"""The one function that joins the rooms: `estimate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from shardcost.arrays import largest
from shardcost.checks import anywhere, is_array
from shardcost.cluster import Cluster
from shardcost.errors import BadTypeError
from shardcost.estimate.busy import Busy
from shardcost.estimate.placement import places
from shardcost.estimate.price import Prices
from shardcost.estimate.result import Estimate
from shardcost.estimate.traffic import traffic
from shardcost.estimate.work import PieceWork, RankWork, rank_work, step_work
from shardcost.kernels.constants import section_of
from shardcost.kernels.products import product_section
from shardcost.layout import Layout
from shardcost.memory import Habits, memory_of
from shardcost.memory.habits import habits_of
from shardcost.model import Model
from shardcost.program.assemble import Program, program_of
from shardcost.program.flops import model_flops
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
) -> Estimate:
    """Return what a model costs under a layout on a cluster.

    >>> from shardcost import Layout, Prefill
    >>> found = estimate("llama3-70b", "h100_sxm", Layout(tp=8), Prefill(batch=1, prompt_tokens=8192))
    >>> 0.3 < found.ttft_s < 0.6
    True

    Args:
        model: A `Model` or the name of one in the catalog.
        cluster: A `Cluster`, joined by a network if the layout spans nodes, or the name of one.
        layout: Degrees may be arrays that broadcast: one call prices them all.
        workload: `Train`, `Prefill` or `Decode`.
        software: The framework or engine; Megatron Core or TensorRT-LLM if none is named.
    """
    model = Model.named(model) if isinstance(model, str) else model
    cluster = Cluster.named(cluster) if isinstance(cluster, str) else cluster
    _check_kinds(model, cluster, layout, workload)
    runs = _software(software, isinstance(workload, Train))
    program = program_of(model, layout, workload, runs)
    placed = places(layout)
    prices = Prices(cluster, runs, placed)
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
        traffic=traffic(program, cluster, placed),
        flops=model_flops(model, workload, causal=True),
        flops_full_attention=model_flops(model, workload, causal=False),
        hardware_flops=times.flops * layout.tp * layout.cp * layout.dp,
        program=program,
        work=work,
        warnings=(*_warnings(model, cluster, layout, workload, runs, memory), *prices.notes),
    )


@lru_cache(maxsize=64)
def _habits(software: Software) -> Habits:
    """Return how a software treats memory: its choices, and what was measured of it."""
    choices = {name: getattr(software, name) for name in ("attention", "dropout", "balance")}
    return habits_of({**choices, **software.memory})


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
    layers = largest(program.stages.first.layers, program.stages.middle.layers)
    own = _all_passes(work.layer).times(layers * runs)
    ends = _all_passes(work.first + work.last).times(runs)
    both = own + ends.times(1 / layout.pp)
    comm = dict(both.comm_s)
    exposed = dict(both.exposed_s)
    alone = 0.0 if software.dp_overlap else work.reduce_s + work.collect_s
    gathers = runs * layers * (2 * work.gather_s + work.scatter_s)
    comm["dp"] = work.reduce_s + work.collect_s + gathers
    exposed["dp"] = step.exposed_dp_s + step.exposed_gather_s + alone
    comm["pp"] = 2 * runs * layout.chunks * work.send_s
    exposed["pp"] = step.exposed_send_s
    compute = {**both.compute_s, "optimizer": step.optimizer_s}
    known = sum(compute.values()) + sum(exposed.values()) + step.bubble_s
    total = _all_passes(work.layer).flops * sum(each.count for each in program.layers)
    return _Times(
        time_s=step.step_s,
        parts_s={
            **compute,
            **{f"{name} communication": each for name, each in exposed.items()},
            "bubble": step.bubble_s,
            "host and overhead": step.step_s - known,
        },
        compute_s=compute,
        comm_s=comm,
        exposed_s=exposed,
        flops=runs * (total + _all_passes(work.first + work.last).flops),
    )


def _serving(program: Program, work: RankWork) -> _Times:
    """Return the times of one pass through all stages, one after the other."""
    software, layout = program.setting.software, program.setting.layout
    count = sum(each.count for each in program.layers)
    whole = work.layer.forward.times(count) + work.first.forward + work.last.forward
    sending = (layout.pp - 1) * work.send_s
    comm = {**whole.comm_s, "pp": sending}
    exposed = {**whole.exposed_s, "pp": sending}
    time = whole.wall_s(software) + sending + software.step_overhead_s
    known = sum(whole.compute_s.values()) + sum(exposed.values())
    return _Times(
        time_s=time,
        parts_s={
            **whole.compute_s,
            **{f"{name} communication": each for name, each in exposed.items()},
            "host and overhead": time - known,
        },
        compute_s=whole.compute_s,
        comm_s=comm,
        exposed_s=exposed,
        flops=whole.flops,
    )


def _all_passes(piece: PieceWork) -> Busy:
    return piece.forward + piece.backward + piece.weight


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
    layout: Layout,
    workload: Workload,
    software: Software,
    memory: Any,
) -> Iterator[str]:
    """Yield where the estimate goes beyond what was measured, and what would not run."""
    if not anywhere(is_array(memory.peak_bytes)):
        reason = memory.reason(cluster.device)
        if reason:
            yield reason
    for part in model.not_priced_yet:
        yield f"{part}: priced as memory passes, which leaves its own compute out"
    yield from _inherited(cluster, workload.dtype)
    if software.fit == "not fitted":
        yield f"the host's share of {software.title} was not fitted to runs of it"


def _inherited(cluster: Cluster, dtype: str) -> Iterator[str]:
    device = cluster.device
    lenders = {
        "matrix products": product_section(device, dtype).inherited_from,
        "attention": section_of("attention", device, "prefill").inherited_from,
        "memory passes": section_of("passes", device, "pass").inherited_from,
    }
    for what, lender in lenders.items():
        if lender is not None:
            yield f"{what} were not measured on {device.name}: shares carried over from {lender}"

"""The one function that joins the rooms: `estimate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from shardcost.arrays import choose
from shardcost.checks import anywhere, is_array
from shardcost.cluster import Cluster
from shardcost.collectives.calibration import Calibration
from shardcost.dtypes import BITS
from shardcost.errors import BadTypeError
from shardcost.estimate.busy import Busy, chosen
from shardcost.estimate.price import WIDE_BITS, Prices
from shardcost.estimate.result import BUBBLE, COMMUNICATION, HOST, Estimate
from shardcost.estimate.totals import (
    forward_pass,
    forward_sends_s,
    held,
    priced,
    served_s,
    software_of,
)
from shardcost.estimate.work import (
    RankWork,
    all_passes,
    only_stage,
    stage_passes,
    step_work,
)
from shardcost.kernels.constants import section_of
from shardcost.kernels.gemm import gemm_section
from shardcost.layout import Layout
from shardcost.memory import Memory
from shardcost.model import Model
from shardcost.program.assemble import Program
from shardcost.program.flops import model_flops
from shardcost.schedule.step import step_time
from shardcost.software import Software
from shardcost.workload import Workload


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
    runs = software_of(software, workload)
    program, prices, work = priced(model, cluster, layout, workload, runs, wire)
    times = _training(program, work) if program.step else _serving(program, work)
    memory = held(model, cluster.device, layout, workload, runs)
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
        warnings=(*_warnings(model, prices, workload, runs, memory), *prices.notes),
        wire=wire,
    )


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
        "pp": 2 * runs * layout.virtual_stages * work.send_s,
    }
    exposed = {**own.exposed_s, "dp": step.exposed_dp_s + alone, "pp": step.exposed_send_s}
    compute = {**own.compute_s, "optimizer": step.optimizer_s}
    known = sum(compute.values()) + sum(exposed.values()) + step.bubble_s
    every_layer = sum(each.count for each in program.layers)
    whole = all_passes(work.layer).times(every_layer) + all_passes(work.first + work.last)
    return _Times(
        time_s=step.step_s,
        parts_s=_parts(compute, exposed, {BUBBLE: step.bubble_s}, step.step_s - known),
        compute_s=compute,
        comm_s=comm,
        exposed_s=exposed,
        flops=runs * whole.flops,
    )


def _slowest_stage(program: Program, work: RankWork) -> tuple[Busy, Any]:
    """Return one micro-batch on the stage that has most to do, and how many layers that has."""
    first, *others = stage_passes(program, work)
    stage, layers = first.busy, first.layers
    for other in others:
        slower = other.busy.device_s > stage.device_s
        layers = choose(slower, other.layers, layers)
        stage = chosen(slower, other.busy, stage)
    alone = program.setting.layout.pp == 1
    return chosen(alone, only_stage(program, work).busy, stage), layers


def _parts(
    compute: Mapping[str, Any], exposed: Mapping[str, Any], waits: Mapping[str, Any], rest: Any
) -> dict[str, Any]:
    communication = {f"{name}{COMMUNICATION}": each for name, each in exposed.items()}
    return {**compute, **communication, **waits, HOST: rest}


def _serving(program: Program, work: RankWork) -> _Times:
    """Return the times of one pass through all stages, one after the other."""
    whole, sending = forward_pass(program, work), forward_sends_s(program, work)
    comm = {**whole.comm_s, "pp": sending}
    exposed = {**whole.exposed_s, "pp": sending}
    time = served_s(program, work)
    known = sum(whole.compute_s.values()) + sum(exposed.values())
    return _Times(
        time_s=time,
        parts_s=_parts(whole.compute_s, exposed, {}, time - known),
        compute_s=whole.compute_s,
        comm_s=comm,
        exposed_s=exposed,
        flops=whole.flops,
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


def _warnings(
    model: Model,
    prices: Prices,
    workload: Workload,
    software: Software,
    memory: Memory,
) -> Iterator[str]:
    """Yield where the estimate goes beyond what was measured, and what would not run."""
    if not anywhere(is_array(memory.peak_bytes)):
        reason = memory.reason(prices.device)
        if reason:
            yield reason
    for part in model.not_priced_yet:
        yield f"{part}: priced as memory passes, which leaves its own compute out"
    yield from _inherited(prices, software, workload.dtype)
    if software.fit is None:
        yield f"the host's share of {software.title} was not fitted to runs of it"


def _inherited(prices: Prices, software: Software, dtype: str) -> Iterator[str]:
    """Yield which kernels are priced by constants of another device."""
    device = prices.device
    gemm = prices.own_gemm(dtype) or gemm_section(device, dtype)
    narrow = BITS[dtype] < WIDE_BITS and software.narrow_gemm_measured_with is not None
    sections = {
        "GEMM": gemm,
        "attention": prices.own("attention", "prefill")
        or section_of("attention", device, "prefill"),
        "elementwise": prices.own("elementwise", "elementwise")
        or section_of("elementwise", device, "elementwise"),
    }
    for kernel, section in sections.items():
        if section.inherited_from is None:
            continue
        what, by = f"{kernel} measurements", ""
        if narrow and section is gemm:
            what, by = f"{dtype} {what} with {software.name}", f" ({gemm.fit.measured_with})"
        yield f"no {what} on {device.name}; constants inherited from {section.inherited_from}{by}"

"""Why an estimate is as it is: formulas with their values, who states the constants, errors seen.

Of every kind of work the heaviest operation is shown in full: the largest matrix product of a
layer, its attention, its memory passes, and the collective on which most time is spent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import wrap
from typing import Any, Final

from shardcost.arrays import largest
from shardcost.checks import is_array
from shardcost.cluster import Cluster
from shardcost.dtypes import BITS
from shardcost.errors import BadTypeError
from shardcost.estimate.busy import Busy
from shardcost.estimate.placement import places
from shardcost.estimate.price import Prices
from shardcost.estimate.result import FLOP_CONVENTION, Estimate
from shardcost.estimate.traffic import collectives_of
from shardcost.estimate.work import step_work
from shardcost.kernels.constants import Section, section_of
from shardcost.kernels.products import product_parts
from shardcost.program.assemble import StageShare
from shardcost.program.operations import (
    AttentionCore,
    Operation,
    Operations,
    Pass,
    Passes,
    Product,
)
from shardcost.program.step import gradient_bytes, shard_ranks, weight_bytes
from shardcost.schedule.step import step_time
from shardcost.schedule.work import Stage
from shardcost.units import (
    format_bytes,
    format_bytes_decimal,
    format_count,
    format_flops,
    format_rate,
    format_time,
)
from shardcost.workload import Decode, Prefill, Train

_SCHEDULES: Final = {
    "1f1b": "Narayanan et al. 2019, arXiv:1806.03377",
    "interleaved": "Narayanan et al. 2021, arXiv:2104.04473",
    "zero_bubble": "Qi et al. 2023, arXiv:2401.10241",
}
_GLUE: Final = "\N{NO-BREAK SPACE}"
_ADDRESS: Final = re.compile(r",? https?://[^ )]*")
_DATA_SETS: Final = re.compile(r"(measured rows of )([^;(]*)")
_UNIT: Final = re.compile(r"(?<=[0-9]) (?=(?:%|[kMGTPE]?(?:FLOP|B)\b|[kMGT]?iB\b|[nmu]?s\b))")


def explanation(found: Estimate, width: int = 80) -> str:
    """Return where the figures of one estimate come from, as lines of at most `width` characters.

    Raises:
        BadTypeError: The estimate is of an array of layouts.
    """
    if is_array(found.time_s):
        raise BadTypeError("layout", found.layout, "one layout, not an array of them, to explain")
    lines: list[str] = []
    for label, text in _paragraphs(found):
        glued = _UNIT.sub(_GLUE, f"{label}: {text}")
        wrapped = wrap(
            glued, width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
        lines += [line.replace(_GLUE, " ") for line in wrapped]
    return "\n".join(lines)


def _paragraphs(found: Estimate) -> Iterator[tuple[str, str]]:
    prices = Prices(found.cluster, found.software, places(found.layout))
    if isinstance(found.workload, Train):
        yield from _step(found)
    else:
        yield "Time", _serving(found)
    yield "Layer", _layer(found)
    yield from _product(found, prices)
    yield from _attention(found, prices)
    yield from _passes(found)
    yield from _collective(found, prices)
    yield from _memory(found)
    yield "MFU", _utilisation(found)
    yield "Software", _software(found)


def _step(found: Estimate) -> Iterator[tuple[str, str]]:
    """Yield how the step of training adds up: the schedule, and what comes on top."""
    work = step_work(found.program, found.work)
    step = step_time(work, found.layout.schedule)
    pace = max((work.first, work.middle, work.last), key=_busy_s)
    if found.layout.pp == 1:
        pace = _joined(work.first, work.last)
    formula, numbers, equal = _pipeline(found, pace)
    yield (
        "Pipeline",
        (
            f"{found.layout.schedule} ({_SCHEDULES[found.layout.schedule]}), equal stages:"
            f" {formula} = {numbers} = {format_time(equal)}; with the stages as they are and their"
            f" sends {format_time(step.compute_s + step.bubble_s + step.exposed_send_s)}"
        ),
    )
    added = " + ".join(
        format_time(each)
        for each in (
            step.compute_s,
            step.bubble_s,
            step.exposed_send_s,
            step.exposed_dp_s,
            step.optimizer_s,
            step.overhead_s,
        )
    )
    yield (
        "Time",
        (
            "compute of the busiest stage + bubble + exposed sends + exposed data parallelism"
            f" + optimizer + overhead = {added} = {format_time(step.step_s)}"
        ),
    )


def _busy_s(stage: Stage) -> Any:
    return _forward(stage) + _backward(stage) + _weight(stage)


def _forward(stage: Stage) -> Any:
    return stage.forward_s + stage.extra_forward_s


def _backward(stage: Stage) -> Any:
    return stage.backward_input_s + stage.extra_backward_input_s


def _weight(stage: Stage) -> Any:
    return stage.backward_weight_s + stage.extra_backward_weight_s


def _joined(first: Stage, last: Stage) -> Stage:
    """Return the only stage of a pipeline of one: the first one's layers, and both ends."""
    return Stage(
        first.forward_s,
        first.backward_input_s,
        first.backward_weight_s,
        first.extra_forward_s + last.extra_forward_s,
        first.extra_backward_input_s + last.extra_backward_input_s,
        first.extra_backward_weight_s + last.extra_backward_weight_s,
    )


def _pipeline(found: Estimate, pace: Stage) -> tuple[str, str, Any]:
    """Return the schedule's formula for equal stages, with values put in, and its result."""
    layout, m = found.layout, found.program.micro_batches
    p, v = layout.pp, layout.chunks
    f, b, w = _forward(pace), _backward(pace), _weight(pace)
    times = f"{format_time(f)} + {format_time(b + w)}"
    if layout.schedule == "zero_bubble":
        longest = largest(f + b - w, f, b)
        return (
            "m (f + b + w) + (p - 1) max(f + b - w, f, b)",
            (
                f"{m} x ({format_time(f)} + {format_time(b)} + {format_time(w)})"
                f" + {p - 1} x {format_time(longest)}"
            ),
            m * (f + b + w) + (p - 1) * longest,
        )
    if layout.schedule == "interleaved" and v > 1:
        return (
            "(m + (p - 1)/v) (f + b)",
            f"({m} + {p - 1}/{v}) x ({times})",
            (m + (p - 1) / v) * (f + b + w),
        )
    return "(m + p - 1) (f + b)", f"({m} + {p - 1}) x ({times})", (m + p - 1) * (f + b + w)


def _serving(found: Estimate) -> str:
    """Return how a pass adds up: layers, both ends, sends, overhead."""
    layers = found.model.num_layers
    work, software = found.work, found.software
    layer = work.layer.forward.device_s
    ends = work.first.forward.device_s + work.last.forward.device_s
    sending = (found.layout.pp - 1) * work.send_s
    return (
        "layers x layer + embedding and head + (pp - 1) sends + overhead"
        f" = {layers} x {format_time(layer)} + {format_time(ends)} + {format_time(sending)}"
        f" + {format_time(software.step_overhead_s)}"
        f"{'' if software.launch == 'graph' else ', at least what the host takes to start kernels'}"
        f" = {format_time(found.time_s)}"
    )


def _layer(found: Estimate) -> str:
    """Return what one layer takes in each pass, and what starting its kernels does."""
    work = found.work.layer
    passes = {"forward": work.forward}
    if isinstance(found.workload, Train):
        passes |= {"backward": work.backward, "weight gradients": work.weight}
    said = [f"{name} {_parts(busy)}" for name, busy in passes.items()]
    if found.software.launch == "eager":
        each = found.software.host_per_kernel_s
        host = work.forward.kernels * each
        said.append(
            f"the host starts {work.forward.kernels:.0f} kernels forward, {format_time(each)} each,"
            f" in {format_time(host)}"
        )
    slow = found.software.slowdown
    beside = f" (kernels {slow:.3g} times as long as by themselves)" if slow != 1 else ""
    return "; ".join(said) + beside


def _parts(busy: Busy) -> str:
    compute = [f"{name} {format_time(each)}" for name, each in busy.compute_s.items() if each]
    comm = [f"{name} waits {format_time(each)}" for name, each in busy.exposed_s.items() if each]
    return f"{' + '.join([*compute, *comm])} = {format_time(busy.device_s)}"


def _main_passes(found: Estimate) -> Passes:
    """Return the passes of the kind of layer that the model has most of."""
    return max(found.program.layers, key=lambda each: float(each.count)).passes


def _every(passes: Passes) -> Operations:
    return passes.forward + passes.recompute + passes.backward + passes.weight


def _product(found: Estimate, prices: Prices) -> Iterator[tuple[str, str]]:
    """Yield the product of the forward pass that takes longest, taken apart."""
    products = tuple(op for op in _main_passes(found).forward if isinstance(op, Product))
    if not products:
        return
    op, seconds = _longest(products, prices)
    device = found.cluster.device
    m, n, k, batch = (round(each) for each in (op.m, op.n, op.k, op.batch))
    parts = product_parts(device, op.dtype, m, n, k, batch=batch)
    flops = op.flops / op.count
    count = f"{batch} x " if batch > 1 else ""
    splits = f", k in {parts.splits} parts" if parts.splits > 1 else ""
    yield (
        "Largest product",
        (
            f"{op.name}, m x n x k = {count}{m:,} x {n:,} x {k:,}, {op.dtype}:"
            f" {_flop(flops)} in {format_time(seconds)} = {format_flops(flops / seconds)},"
            f" {_percent(flops / seconds / device.peak(op.dtype))} of the peak;"
            f" {parts.tile[0]} x {parts.tile[1]} tiles{splits}, {_some(parts.waves, 'wave')} over"
            f" {device.compute_units} units, limited by {parts.limit}: arithmetic and loads"
            f" {format_time(parts.compute_s)}, memory {format_time(parts.memory_s)}, launch"
            f" {format_time(parts.fixed_s)}. {_stated(parts.section)}"
        ),
    )


def _attention(found: Estimate, prices: Prices) -> Iterator[tuple[str, str]]:
    cores = tuple(op for op in _every(_main_passes(found)) if isinstance(op, AttentionCore))
    if not cores:
        return
    op, seconds = cores[0], float(prices.of(cores[:1])[0])
    device = found.cluster.device
    flops = op.flops / op.count
    shape = (
        f"{_some(op.batch, 'sequence')}, {_some(op.query_tokens, 'query')} each on"
        f" {op.context_tokens:,.0f} tokens, {_some(op.heads, 'head')}, {op.kv_heads:g} of keys,"
        f" {op.head_dim:g} elements"
    )
    if op.decode:
        width = (op.head_dim + op.value_dim) * BITS[op.dtype] / 8
        read = op.batch * op.context_tokens * op.kv_heads * width / seconds
        share = _percent(read / device.memory_bytes_per_s)
        rate = f"{format_rate(read)} of cache, {share} of the memory's rate"
    else:
        mask = "causal" if op.causal else "no mask"
        share = _percent(flops / seconds / device.peak(op.dtype))
        rate = f"{format_flops(flops / seconds)}, {share} of the peak ({mask})"
    section = section_of("attention", device, "decode" if op.decode else "prefill")
    yield "Attention", f"{shape}: {format_time(seconds)} = {rate}. {_stated(section)}"


def _passes(found: Estimate) -> Iterator[tuple[str, str]]:
    """Yield how the memory-bound kernels of a layer's forward pass are priced."""
    passes = [op for op in _main_passes(found).forward if isinstance(op, Pass)]
    if not passes:
        return
    device = found.cluster.device
    section = section_of("passes", device, "pass")
    moved = sum(float(op.bytes_moved * op.count) for op in passes)
    kernels = sum(float(op.kernels * op.count) for op in passes)
    latency, share = section.constants["latency_us"], section.constants["memory_share"]
    rate = float(device.memory_bytes_per_s)
    seconds = 1e-6 * latency * kernels + moved / (share * rate)
    yield (
        "Passes",
        (
            f"kernels x latency + bytes / (share x memory's rate) = {kernels:g} x {latency:g} us"
            f" + {format_bytes_decimal(moved)} / ({share:g} x {format_rate(rate)})"
            f" = {format_time(seconds)} in a layer forward. {_stated(section)}"
        ),
    )


def _collective(found: Estimate, prices: Prices) -> Iterator[tuple[str, str]]:
    """Yield the collective on which a rank spends most time, and how it runs."""
    often = {op: times for op, times in collectives_of(found.program) if op.ranks > 1}
    if not often:
        return
    seconds = dict(zip(often, prices.of(tuple(often)), strict=True))
    op = max(often, key=lambda each: float(often[each] * each.count * seconds[each]))
    if prices.is_multimem(op):
        yield (
            "Heaviest collective",
            (
                f"{op.name}, all_reduce of {format_bytes(op.size_bytes)} over {op.ranks} ranks by"
                f" multimem instructions: {format_time(seconds[op])}: an engine's multicast kernel"
                " starts, NCCL's in-switch algorithm carries the bytes; nothing is fitted to it"
            ),
        )
        return
    result, _ = prices.asked(op)
    group = result.group
    nodes = f" on {group.nodes} nodes" if group.nodes > 1 else ""
    sources = "; ".join(
        f"{each.library} on {each.system} {_brief(each.source())}" for each in result.calibrations
    )
    yield (
        "Heaviest collective",
        (
            f"{op.name}, {op.collective} of {format_bytes(op.size_bytes)} over the {op.group} group"
            f" of {op.ranks}{nodes}: {result.algorithm} {result.protocol} of {result.library},"
            f" {format_time(result.time_s)}, {_percent(result.link_share)} of the slowest link's"
            f" rate, {float(often[op] * op.count):,.0f} times a step. Constants: {sources}"
        ),
    )


def _memory(found: Estimate) -> Iterator[tuple[str, str]]:
    memory = found.memory
    worst = str(memory.worst_stage)
    share = getattr(found.program.stages, worst, found.program.stages.first)
    formulas = (
        _training_memory(found, share)
        if isinstance(found.workload, Train)
        else _serving_memory(found)
    )
    kinds = memory.by_kind()
    said = [
        f"{kind.replace('_', ' ')} ({formulas[kind]}) {format_bytes(size)}"
        for kind, size in kinds.items()
        if size
    ]
    capacity = found.cluster.device.memory_bytes
    stated = _cited(found.cluster, "device.memory_bytes")
    yield (
        "Memory",
        (
            f"{worst} stage, {' + '.join(said)} = {format_bytes(memory.peak_bytes)} of"
            f" {format_bytes(capacity)}{stated}"
        ),
    )


def _training_memory(found: Estimate, share: StageShare) -> dict[str, str]:
    """Return in which proportion each kind of memory grows, in training."""
    layout, work = found.layout, found.workload
    if not isinstance(work, Train):
        raise TypeError(type(work).__name__)
    ranks = shard_ranks(layout)
    held = format_count(share.weights.total)
    weights = "trained" if work.adapters else f"{held} weights"
    over = [f" / {ranks} ranks" if layout.zero >= stage else "" for stage in (1, 2, 3)]
    states = 12 if work.optimizer == "adam" else 8
    return {
        "weights": f"{held} weights{over[2]} x {weight_bytes(work):g} B",
        "gradients": f"{weights}{over[1]} x {gradient_bytes(work):g} B",
        "optimizer": f"{weights}{over[0]} x {states} B: master copy and {work.optimizer}'s means",
        "activations": f"of the micro-batches in flight, recompute {layout.recompute}",
        "logits": "tokens x vocabulary / tp",
        "kv_cache": "none",
        "buffers": "workspace, sends, gathered layers",
        "framework": "context, communicators, fragments",
    }


def _serving_memory(found: Estimate) -> dict[str, str]:
    work = found.workload
    if not isinstance(work, Prefill | Decode):
        raise TypeError(type(work).__name__)
    return {
        "weights": f"{format_count(found.model.parameters)} / (tp x pp) in {work.dtype}",
        "gradients": "none",
        "optimizer": "none",
        "activations": "tokens x the widest part of a layer",
        "logits": "sequences x vocabulary / tp",
        "kv_cache": f"sequences / dp x tokens x layers / pp x KV heads / tp in {work.cache_dtype}",
        "buffers": "workspace, sends",
        "framework": "context, communicators",
    }


def _utilisation(found: Estimate) -> str:
    device, dtype = found.cluster.device, found.workload.dtype
    stated = _cited(found.cluster, f"device.peak_flop_per_s.{dtype}")
    return (
        "model FLOP / (time x GPUs x peak)"
        f" = {_flop(found.flops)} / ({format_time(found.time_s)} x {found.devices:,}"
        f" x {format_flops(device.peak(dtype))}) = {_percent(found.mfu)}; FLOP: {FLOP_CONVENTION}."
        f" HFU counts what the devices make, {_flop(found.hardware_flops)}:"
        f" {_percent(found.hfu)}{stated.replace('(', '(peak: ', 1)}"
    )


def _software(found: Estimate) -> str:
    software = found.software
    return (
        f"{software.title}: {software.attention} attention, tensor-parallel overlap"
        f" {software.tp_overlap}, kernels by {software.launch} launch,"
        f" {format_time(software.step_overhead_s)} of overhead a step ({_brief(software.source)})."
        f" Constants: {_brief(software.fit)}"
    )


def _longest(operations: tuple[Product, ...], prices: Prices) -> tuple[Product, float]:
    """Return the operation that takes longest in all, and the seconds of one of it."""
    seconds = prices.of(operations)
    paired = zip(operations, seconds, strict=True)
    op, each = max(paired, key=lambda pair: float(_count(pair[0]) * pair[1]))
    return op, float(each)


def _count(op: Operation) -> Any:
    return op.count


def _stated(section: Section) -> str:
    """Return who states a set of constants, and how well it fits."""
    fit = section.fit
    lent = f", lent by {section.inherited_from}" if section.inherited_from else ""
    return (
        f"Constants: {_brief(fit.source)}, {fit.rows:,} rows, median error {fit.median_pct:.1f} %,"
        f" p90 {fit.p90_pct:.1f} %{lent}"
    )


def _cited(cluster: Cluster, figure: str) -> str:
    """Return who states a figure of the datasheet, in brackets."""
    source = cluster.sources.get(figure)
    return f" ({_brief(source)})" if source else ""


def _brief(source: object) -> str:
    """Return a source without its address, and of many data sets the first."""
    text = _ADDRESS.sub("", str(source))
    sets = _DATA_SETS.search(text)
    if sets is None or sets[2].count(", ") < 2:
        return text
    names = sets[2].split(", ")
    return text.replace(sets[2], f"{names[0]} and {len(names) - 1} other sets")


def _some(count: Any, what: str) -> str:
    """Return a count with its noun, in the plural where it is not one."""
    many = what[:-1] + "ies" if what.endswith("y") else what + "s"
    return f"{float(count):,.3g} {what}" if count == 1 else f"{_digits(count)} {many}"


def _digits(count: Any) -> str:
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def _flop(flops: Any) -> str:
    return format_flops(flops).removesuffix("/s")


def _percent(share: Any) -> str:
    return f"{100 * float(share):.1f} %"

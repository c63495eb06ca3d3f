"""Why one operation takes as long, and one kind of memory as many bytes, as it does.

The functions that price kernels and collectives and that count memory run on traced numbers here
and write their own receipts.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

from shardcost.catalog.errors import CONFIDENCE_PCT
from shardcost.collectives.dispatch import DispatchTime
from shardcost.collectives.receipts import (
    collective_receipt,
    dispatch_receipt,
    multimem_receipt,
)
from shardcost.estimate.interval import residuals_of_memory
from shardcost.estimate.ledger import STEP, Entry
from shardcost.estimate.pieces import is_copy
from shardcost.estimate.price import (
    Prices,
    attention_section,
    host_copy_s,
    host_update_s,
    state_sizes,
)
from shardcost.estimate.result import Estimate, footprint
from shardcost.estimate.roofline import moved_bytes
from shardcost.estimate.why.answer import (
    Error,
    Why,
    answer,
    collective_error,
    error_of,
    kernel_error,
    part,
    spread,
    total,
)
from shardcost.kernels.gemm import Parts
from shardcost.kernels.mla import LatentShape
from shardcost.kernels.power import in_steps_s, sustained_time_s
from shardcost.kernels.receipts import (
    source_of,
    traced_experts,
    traced_gemm,
    traced_kernels,
    traced_latent,
    traced_linear_attention,
)
from shardcost.machine.linear_attention import kind_of
from shardcost.memory.footprint import KINDS, Footprint
from shardcost.program.operations import (
    AttentionCore,
    Collective,
    Elementwise,
    ExpertKernels,
    Gemm,
    Kernel,
    LatentCore,
    StateKernel,
)
from shardcost.receipt import SENT, Receipt, flop, in_unit
from shardcost.traced import named, receipt, step
from shardcost.units import format_bytes, format_flops, format_percent, format_rate, format_time

_SIZES: Final = {
    "batch": "sequences",
    "query_tokens": "queries",
    "context_tokens": "context",
    "heads": "heads",
    "kv_heads": "KV_heads",
    "head_dim": "head_size",
}
"""Sizes of attention, and what they are called in its receipt."""


def operation(estimate: Estimate, figure: str, entry: Entry) -> Why:
    """Return why one call of an operation takes as long as it does."""
    prices, op, name = estimate.ledger.prices, entry.op, figure.removeprefix("op.")
    often = f"{in_unit(entry.times, '')} a step" if entry.times else "on another stage"
    title = f"One call of {name} ({entry.phase}), {often}"
    if isinstance(op, Collective):
        return _collective(prices, op, entry, figure, title)
    seconds, words = _kernel(prices, op, entry.seconds)
    seconds = _at_power(prices, op, seconds)
    software = estimate.program.setting.software
    if entry.phase != STEP and software.slowdown != 1:
        meaning = f"of kernels in a run of {software.title}"
        slower = named("slowdown", software.slowdown, "", meaning, software.fit_text)
        seconds = step("kernel", seconds, meaning="by itself") * slower
    by, alike = prices.footed(op)
    constants = by.section(alike)[1]
    whole = receipt(seconds, figure, title, "s", constants=(constants,))
    error = kernel_error(prices, op, entry.seconds)
    return answer(whole, value=entry.seconds, error=error, words=words)


def _kernel(prices: Prices, op: Kernel, seconds: float) -> tuple[Any, str]:
    """Return the seconds of a kernel by itself as a traced number, and its shape in words."""
    own_dtype, (prices, op) = getattr(op, "dtype", ""), prices.footed(op)
    machine = prices.machine
    if isinstance(op, ExpertKernels) or (isinstance(op, Gemm) and op.fullest is not None):
        return _experts(prices, op, seconds, own_dtype)
    if isinstance(op, StateKernel):
        return _state(prices, op, seconds)
    if isinstance(op, LatentCore):
        return _latent(prices, op, seconds)
    if isinstance(op, Gemm):
        traced, parts = traced_gemm(machine.kernels, op.dtype, op.m, op.n, op.k, op.batch)
        return traced, _gemm_words(op, parts, seconds, machine.cluster.device)
    kernels = traced_kernels(machine.kernels, machine.cluster.sources)
    on_named: Any = SimpleNamespace(kernels=kernels, memo={}, cluster=machine.cluster)
    sizes: dict[str, Any]
    if isinstance(op, Elementwise) and op.converts is not None and not op.converts.both_orders:
        rows = named("rows", op.converts.rows, "", "tokens, each with a scale of its own")
        columns = named("columns", op.converts.columns, "", "elements of a row")
        sizes = {"converts": op.converts._replace(rows=rows, columns=columns)}
        words = f"the input of a GEMM in {op.converts.dtype}"
        if not seconds:
            words += ", whose weights this device multiplies in 16 bits: nothing to convert"
    elif isinstance(op, Elementwise):
        sizes = {
            "bytes_moved": named("bytes", op.bytes_moved, SENT, "read and written"),
            "kernels": named("kernels", op.kernels, "", "one after the other"),
        }
        words = "nothing to move"
        if seconds:
            words = f"{format_rate(op.bytes_moved / seconds)} of memory traffic"
    else:
        sizes = {size: named(symbol, getattr(op, size)) for size, symbol in _SIZES.items()}
        if op.value_dim != op.head_dim:
            sizes["value_dim"] = named("value_size", op.value_dim)
        words = _attention_words(op, seconds, machine.cluster.device)
    return Prices(on_named, prices.strides).alone(op._replace(**sizes)), words


def _at_power(prices: Prices, op: Kernel, seconds: Any) -> Any:
    """Return the seconds of a kernel in a run that lasts, where the board's power decides."""
    on = prices.machine.kernels
    if isinstance(op, AttentionCore) and not op.decode:
        name = attention_section(op)
        source = source_of(on.section("attention", name))
        meaning = "between GEMMs that hold the clock down, over alone"
        slower = named("in_steps", on.in_steps(name), "", meaning, source)
        return in_steps_s(SimpleNamespace(in_steps=lambda _: slower), name, seconds)  # type: ignore[arg-type]
    if not isinstance(op, Gemm | ExpertKernels):
        return seconds
    product = on.device.multiplied(prices.format_of(op)).product
    share, peak, flops = on.sustained_share(product), on.device.peak(product), op.flops / op.count
    if share is None or flops / (share * peak) <= float(seconds.value):
        return seconds
    stated = prices.machine.cluster.sources.get(f"device.peak_flop_per_s.{product}", "")
    section = on.section("gemm", "sustained")
    meaning = "of the peak, that the board's power feeds for long"
    fed: Any = SimpleNamespace(
        sustained_share=lambda _: named(
            "sustained_share", share, "share", meaning, source_of(section)
        ),
        device=SimpleNamespace(
            multiplied=on.device.multiplied,
            peak=lambda _: named(f"peak_{product}", peak, "FLOP/s", "nominal", str(stated)),
        ),
    )
    counted = named("operations", flops, "FLOP", "multiplications and additions")
    return sustained_time_s(fed, prices.format_of(op), counted, seconds)


def _experts(
    prices: Prices, op: ExpertKernels | Gemm, seconds: float, own_dtype: str
) -> tuple[Any, str]:
    """Return the seconds of experts' kernels as a traced number, and their load in words."""
    kernels, (_, section) = prices.machine.kernels, prices.section(op)
    rate = op.flops / op.count / seconds
    made = f"{flop(op.flops / op.count)} at {format_flops(rate)}"
    peak = kernels.device.peak(kernels.device.multiplied(op.dtype).product)
    if isinstance(op, Gemm):
        sizes = {"rows": op.m * op.batch, "n": op.n, "k": op.k}
        sizes |= {"groups": op.batch, "largest_group": op.fullest}
        rows, fullest, active = op.m * op.batch, op.fullest, op.batch
        name = "one grouped GEMM"
    else:
        rows, fullest, active = op.rows, op.fullest, op.active
        name = prices.expert_kernel(op)
        sizes = {
            "tokens": op.tokens,
            "hidden": op.hidden,
            "inter": op.width,
            "experts": op.experts,
            "top_k": op.top_k,
            "pairs": rows,
            "active": active,
            "busiest": fullest,
            "gated": op.gated,
            "ep": op.ep,
            "part": op.part,
        }
        if op.part == "small":
            made = "top-k, sorting, conversion, activation, weighted sum"
    if op.flops:
        made += f", {format_percent(rate / peak)} of the peak"
    if op.dtype != own_dtype:
        made += f", and {own_dtype} is no slower"
    words = (
        f"{rows:,.4g} rows on {active:,.4g} experts, the fullest with {fullest:,.4g}, in"
        f" {op.dtype} by {name}: {made};"
        f" {format_rate(moved_bytes(op) / op.count / seconds)} of memory traffic"
    )
    dtype = prices.expert_dtype(op) if isinstance(op, ExpertKernels) else op.dtype
    return traced_experts(kernels, section, dtype, sizes), words


def _state(prices: Prices, op: StateKernel, seconds: float) -> tuple[Any, str]:
    """Return the seconds of a kernel of a layer with a state, and its shape in words."""
    device, name = prices.machine.cluster.device, prices.state_kernel(op)
    rate = moved_bytes(op) / op.count / seconds
    words = (
        f"{op.part} of {op.rule}, {op.phase}: {op.batch:,.4g} sequences with"
        f" {op.query_tokens:,.4g} new tokens each, states of {op.v_heads:g} heads x {op.k_dim:g} x"
        f" {op.v_dim:g}, by {name}: {format_rate(rate)},"
        f" {format_percent(rate / device.memory_bytes_per_s)} of the memory's rate"
    )
    if op.flops:
        words += f"; {flop(op.flops / op.count)} at {format_flops(op.flops / op.count / seconds)}"
    traced = traced_linear_attention(
        prices.machine.kernels,
        prices.section(op)[1],
        kind_of(name, op.part, op.engine),
        (op.rule, op.part, op.phase),
        state_sizes(op),
        backward=op.backward,
    )
    return traced, words


def _latent(prices: Prices, op: LatentCore, seconds: float) -> tuple[Any, str]:
    """Return the seconds of latent attention as a traced number, and its shape in words."""
    kernels, (_, section) = prices.machine.kernels, prices.section(op)
    kernel = prices.latent_kernel(op)
    phase = "decode" if op.decode else "prefill"
    kind = (kernel, phase, op.form, op.dtype, op.cache_dtype, op.engine)
    names = ("batch", "query_tokens", "context_tokens", "heads")
    sizes = {name: getattr(op, name) for name in names}
    if op.cached_tokens is not None:
        sizes["cached_tokens"] = op.cached_tokens
    shape = LatentShape(kv_lora=op.kv_lora, nope=op.nope, rope=op.rope, v_dim=op.v_dim)
    rate = op.flops / op.count / seconds
    peak = kernels.device.peak(kernels.device.multiplied(op.dtype).product)
    moved = format_rate(moved_bytes(op) / op.count / seconds)
    words = (
        f"batch {op.batch:,.4g}, queries {op.query_tokens:,.0f}, context"
        f" {op.context_tokens:,.0f}, heads {op.heads:g}, {op.form} keys of {op.key_dim:g}, cache in"
        f" {op.cache_dtype}, by {kernel or 'the default kernel'}: {format_flops(rate)},"
        f" {format_percent(rate / peak)} of the peak; {moved} of memory traffic"
    )
    traced = traced_latent(kernels, section, kind, sizes, shape, causal=op.causal)
    return traced, words


def _gemm_words(op: Gemm, parts: Parts, seconds: float, device: Any) -> str:
    count = f"{op.batch:,.0f} x " if op.batch > 1 else ""
    rate, waves = op.flops / op.count / seconds, parts.waves
    peak = device.peak(device.multiplied(op.dtype).product)
    splits = f", k in {parts.splits} parts" if parts.splits > 1 else ""
    return (
        f"m x n x k = {count}{op.m:,.0f} x {op.n:,.0f} x {op.k:,.0f} in {op.dtype}:"
        f" {flop(op.flops / op.count)} at {format_flops(rate)},"
        f" {format_percent(rate / peak)} of the peak; likeliest"
        f" {parts.tile[0]} x {parts.tile[1]} tiles{splits}, {waves:,.3g}"
        f" wave{'' if waves == 1 else 's'} over {device.sms} SMs, limited by {parts.limit}"
        f" (compute {format_time(parts.compute_s)}, memory {format_time(parts.memory_s)})"
    )


def _attention_words(op: AttentionCore, seconds: float, device: Any) -> str:
    shape = (
        f"batch {op.batch:,.4g}, queries {op.query_tokens:,.0f}, context"
        f" {op.context_tokens:,.0f}, heads {op.heads:g}, KV heads {op.kv_heads:g}, head size"
        f" {op.head_dim:g}"
    )
    if op.decode:
        rate = moved_bytes(op) / op.count / seconds
        share = format_percent(rate / device.memory_bytes_per_s)
        return f"{shape}: {format_rate(rate)}, {share} of the memory's rate"
    rate = op.flops / op.count / seconds
    mask = "causal" if op.causal else "no mask"
    share = format_percent(rate / device.peak(device.multiplied(op.dtype).product))
    return f"{shape}, {mask}: {format_flops(rate)}, {share} of the peak"


def _collective(prices: Prices, op: Collective, entry: Entry, figure: str, title: str) -> Why:
    if is_copy(op):
        return _on_host(prices, op, entry, figure, title)
    what = f"{op.collective} of {format_bytes(op.size_bytes)} over the {op.group} group of"
    if op.ranks == 1:
        return answer(Receipt(figure, title, 0.0, "s", "0"), words=f"{what} 1 sends nothing")
    if prices.is_multimem(op):
        words = f"{what} {op.ranks} by multimem instructions; nothing is fitted to it"
        whole = multimem_receipt(prices.machine, op.ranks, op.size_bytes, figure, title)
        return answer(whole, value=entry.seconds, words=words)
    result = prices.collective(op)
    nodes = f" on {result.group.nodes} nodes" if result.group.nodes > 1 else ""
    if isinstance(result, DispatchTime):
        whole = dispatch_receipt(result, figure, title)
        how = f"{result.kernel} of {result.library},"
        busiest = f"{format_percent(result.link_share)} of the busiest link's rate"
        what = f"{op.collective} of {result.tokens:,.4g} tokens in {result.dtype} over the expert"
        words = f"{what} group of {op.ranks}{nodes}: {how} {busiest}"
    else:
        whole = collective_receipt(result, figure, title)
        how = f"{result.algorithm} {result.protocol} of {result.library},"
        slowest = f"{format_percent(result.link_share)} of the slowest link's rate"
        words = f"{what} {op.ranks}{nodes}: {how} {slowest}"
    error = collective_error(result, entry.seconds)
    return answer(whole, value=entry.seconds, error=error, stated=result.notes, words=words)


def _on_host(prices: Prices, op: Collective, entry: Entry, figure: str, title: str) -> Why:
    """Return why a copy to the host or an update there takes as long as it does."""
    cluster = prices.machine.cluster
    if op.collective == "host_update":
        own = named("weights", op.size_bytes, "", "of this GPU on the host")
        shared = named("GPUs", cluster.gpus_per_node, "", "that share the host")
        source = "Ren et al. 2021, arXiv:2101.06840, table 4"
        rate = named("rate", cluster.host_update_per_s, "1/s", "weights a second by Adam", source)
        seconds, words = host_update_s(own, shared, rate), "an update by the host's processors"
    else:
        size = named("size", op.size_bytes, SENT, "to the host or back")
        source = str(cluster.sources.get("device.host_link_bytes_per_s", "given by the caller"))
        link = cluster.device.host_link_bytes_per_s
        rate = named("host_link", link, "B/s", "one direction", source)
        seconds, words = (
            host_copy_s(size, rate),
            f"{format_bytes(op.size_bytes)} over the host link",
        )
    return answer(receipt(seconds, figure, title, "s"), value=entry.seconds, words=words)


_NAMES: Final = {"kv_cache": "KV cache"}
_COUNTED: Final = (
    "no interval: weights and KV cache are counted, and what engines reserve beside them was not"
    " measured"
)


def memory_figures(estimate: Estimate) -> Iterator[str]:
    """Yield the names of the figures on memory."""
    yield "memory_bytes"
    yield from (f"memory.{kind}" for kind in KINDS)
    for stage in estimate.memory.stages:
        yield f"memory.{stage}"
        yield from (f"memory.{stage}.{kind}" for kind in KINDS)


def memory(estimate: Estimate, figure: str) -> Why:
    """Return why the fullest rank, a stage's or one kind of its memory is as large as it is."""
    memory, worst = estimate.memory, str(estimate.memory.worst_stage)
    if figure == "memory_bytes":
        capacity = format_bytes(estimate.cluster.device.memory_bytes)
        held = memory.stages[worst]
        others = ", ".join(
            f"{name} stage {format_bytes(each.total)}"
            for name, each in memory.stages.items()
            if name != worst
        )
        words = f"of {capacity}{others and '; '}{others}"
        if residuals_of_memory(estimate) is None:
            words += f"; {_COUNTED}"
        if estimate.engine_bytes is not None:
            words += f"; {estimate.engine_words}"
        title = f"Memory of the fullest rank: {worst} stage{_when(held)}"
        if len(memory.stages) == 1:
            title = f"Memory of a rank{_when(held)}"
        return _stage(estimate, figure, title, held, "memory.", words)
    _, place, *kinds = figure.split(".")
    if kinds or place in KINDS:
        stage, kind = (place, kinds[0]) if kinds else (worst, place)
        return _kind(estimate, figure, stage, kind)
    held = memory.stages[place]
    title = f"Memory of a rank of the {place} stage{_when(held)}"
    return _stage(estimate, figure, title, held, f"{figure}.")


def _when(held: Footprint) -> str:
    return f", {held.moment}" if held.moment else ""


def _stage(
    estimate: Estimate, figure: str, title: str, held: Footprint, prefix: str, words: str = ""
) -> Why:
    kinds = [
        part(f"{prefix}{kind}", _NAMES.get(kind, kind), getattr(held, kind), "bytes")
        for kind in KINDS
    ]
    like = residuals_of_memory(estimate)
    error = None if like is None else error_of(like, held.total, "bytes")
    stated = [str(estimate.cluster.sources.get("device.memory_bytes", ""))]
    return total(figure, title, held.total, "bytes", kinds, error=error, stated=stated, words=words)


def _kind(estimate: Estimate, figure: str, stage: str, kind: str) -> Why:
    """Return one kind of memory, by the terms that the memory model names."""
    held, software = estimate.memory.stages[stage], estimate.software
    traced = footprint(
        estimate.model, estimate.machine, estimate.layout, estimate.workload, software, named
    )
    name = _NAMES.get(kind, kind.capitalize())
    title = f"{name} on a rank of the {stage} stage{_when(held)}"
    whole = receipt(getattr(traced.stages[stage], kind), figure, title, "bytes")
    like, error = residuals_of_memory(estimate), None
    if like is not None:
        words = (
            f"{CONFIDENCE_PCT} % of {like.like} were within {spread(like)}; kinds of memory were"
            " not measured apart"
        )
        error = Error(words, like.like, like.rows)
    stated = [str(software.memory.get("source", ""))] if kind in {"buffers", "framework"} else []
    return answer(
        whole,
        value=getattr(held, kind),
        error=error,
        stated=stated,
        words="" if whole.value else "none at the peak",
    )

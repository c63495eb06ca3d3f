"""Operations in words: shape, rate reached, what limits them, and whose constants price them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardcost.dtypes import BITS
from shardcost.estimate.calls import Call, times_sent
from shardcost.estimate.price import Prices
from shardcost.estimate.result import Estimate
from shardcost.estimate.why.reason import brief
from shardcost.kernels.gemm import Parts, gemm_parts
from shardcost.machine.kernels import KernelTable, Section
from shardcost.program.operations import AttentionCore, Collective, Elementwise, Gemm, Operation
from shardcost.receipt import flop
from shardcost.units import (
    format_bytes,
    format_bytes_decimal,
    format_flops,
    format_percent,
    format_rate,
    format_time,
)


def gemm_in_words(found: Estimate, prices: Prices, op: Gemm, seconds: float) -> str:
    """Return shape, rate, tiles, limit and constants of a product."""
    device, parts = found.cluster.device, gemm_taken_apart(prices, op)
    m, n, k, batch = (round(each) for each in (op.m, op.n, op.k, op.batch))
    flops = op.flops / op.count
    count = f"{batch} x " if batch > 1 else ""
    splits = f", k in {parts.splits} parts" if parts.splits > 1 else ""
    return (
        f"{op.name}, m x n x k = {count}{m:,} x {n:,} x {k:,}, {op.dtype}:"
        f" {flop(flops)} in {format_time(seconds)} = {format_flops(flops / seconds)},"
        f" {format_percent(flops / seconds / device.peak(op.dtype))} of the peak;"
        f" {parts.tile[0]} x {parts.tile[1]} tiles{splits}, {some(parts.waves, 'wave')} over"
        f" {device.sms} units, limited by {parts.limit}: arithmetic and loads"
        f" {format_time(parts.compute_s)}, memory {format_time(parts.memory_s)}, launch"
        f" {format_time(parts.fixed_s)}. {_stated(parts.section)}"
    )


def attention_in_words(found: Estimate, prices: Prices, op: AttentionCore, seconds: float) -> str:
    """Return shape, rate and constants of attention."""
    device = found.cluster.device
    shape = (
        f"{some(op.batch, 'sequence')}, {some(op.query_tokens, 'query')} each on"
        f" {op.context_tokens:,.0f} tokens, {some(op.heads, 'head')}, {op.kv_heads:g} of keys,"
        f" {op.head_dim:g} elements"
    )
    if op.decode:
        read = cache_bytes(op) / seconds
        share = format_percent(read / device.memory_bytes_per_s)
        reached = f"{format_rate(read)} of cache, {share} of the memory's rate"
    else:
        mask = "causal" if op.causal else "no mask"
        flops = op.flops / op.count
        share = format_percent(flops / seconds / device.peak(op.dtype))
        reached = f"{format_flops(flops / seconds)}, {share} of the peak ({mask})"
    section = section_for(prices, "attention", phase_of(op))
    return f"{shape}: {format_time(seconds)} = {reached}. {_stated(section)}"


def elementwise_in_words(
    found: Estimate, prices: Prices, passes: Sequence[Elementwise], where: str
) -> str:
    """Return how memory-bound kernels are priced."""
    section = section_for(prices, "elementwise", "elementwise")
    moved = sum(float(op.bytes_moved * op.count) for op in passes)
    kernels = sum(float(op.kernels * op.count) for op in passes)
    latency, share = section.constants["latency_us"], section.constants["memory_share"]
    rate = float(found.cluster.device.memory_bytes_per_s)
    seconds = 1e-6 * latency * kernels + moved / (share * rate)
    return (
        f"kernels x latency + bytes / (share x memory's rate) = {kernels:g} x {latency:g} us"
        f" + {format_bytes_decimal(moved)} / ({share:g} x {format_rate(rate)})"
        f" = {format_time(seconds)}{where}. {_stated(section)}"
    )


def collective_in_words(found: Estimate, prices: Prices, op: Collective, seconds: float) -> str:
    """Return how a collective runs, how often, and whose constants it runs by."""
    if prices.is_multimem(op):
        return (
            f"{op.name}, all_reduce of {format_bytes(op.size_bytes)} over {op.ranks} ranks by"
            f" multimem instructions: {format_time(seconds)}: an engine's multicast kernel"
            " starts, NCCL's in-switch algorithm carries the bytes; nothing is fitted to it"
        )
    result = prices.collective(op)
    nodes = f" on {result.group.nodes} nodes" if result.group.nodes > 1 else ""
    sources = "; ".join(
        f"{each.library} on {each.system} {brief(each.source())}" for each in result.calibrations
    )
    often = times_sent(found)
    times = sum(times * each.count for each, times in often.items() if _is_alike(each, op))
    return (
        f"{op.name}, {op.collective} of {format_bytes(op.size_bytes)} over the {op.group} group"
        f" of {op.ranks}{nodes}: {result.algorithm} {result.protocol} of {result.library},"
        f" {format_time(result.time_s)}, {format_percent(result.link_share)} of the slowest link's"
        f" rate, {times:,.0f} times a step. Constants: {sources}"
    )


def gemm_taken_apart(prices: Prices, op: Gemm) -> Parts:
    """Return a product's likeliest tiles and what they take, by the constants that price it."""
    sizes = (round(each) for each in (op.m, op.n, op.k))
    return gemm_parts(prices.machine.kernels, op.dtype, *sizes, batch=round(op.batch))


def section_for(prices: Prices, shelf: KernelTable, name: str) -> Section:
    """Return the constants that price a kernel: the software's own, else the device's."""
    kernels = prices.machine.kernels
    return kernels.gemm(name) if shelf == "gemm" else kernels.section(shelf, name)


def section_of_call(prices: Prices, call: Call) -> tuple[KernelTable, Section, dict[str, str]]:
    """Return the shelf and the constants of a kernel, and what rows like it have in common."""
    op = call.op
    if isinstance(op, Gemm):
        return "gemm", section_for(prices, "gemm", op.dtype), {}
    if isinstance(op, AttentionCore):
        return "attention", section_for(prices, "attention", phase_of(op)), {"phase": phase_of(op)}
    return "elementwise", section_for(prices, "elementwise", "elementwise"), {}


def phase_of(op: AttentionCore) -> str:
    """Return which of the two kernels of attention runs."""
    return "decode" if op.decode else "prefill"


def cache_bytes(op: AttentionCore) -> float:
    """Return the keys and values that a decode kernel reads."""
    width = (op.head_dim + op.value_dim) * BITS[op.dtype] / 8
    return float(op.batch * op.context_tokens * op.kv_heads * width)


def _stated(section: Section) -> str:
    """Return who states a set of constants, and how well it fits."""
    fit = section.fit
    lent = f", lent by {section.inherited_from}" if section.inherited_from else ""
    return (
        f"Constants: {brief(fit.source)}, {fit.rows:,} rows, median error {fit.median_pct:.1f} %,"
        f" p90 {fit.p90_pct:.1f} %{lent}"
    )


def _is_alike(one: Operation, other: Operation) -> bool:
    return isinstance(one, Collective) and one[:5] == other[:5]


def some(count: Any, what: str) -> str:
    """Return a count with its noun, in the plural where it is not one."""
    many = what[:-1] + "ies" if what.endswith("y") else what + "s"
    return f"{float(count):,.3g} {what}" if count == 1 else f"{_digits(count)} {many}"


def _digits(count: Any) -> str:
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"

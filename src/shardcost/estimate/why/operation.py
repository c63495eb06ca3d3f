"""Why one operation takes as long as it does: shape, limit, and constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from shardcost.catalog.errors import Residuals
from shardcost.collectives.interval import interval_of
from shardcost.collectives.library_time import CollectiveTime
from shardcost.estimate.calls import Call
from shardcost.estimate.price import Prices
from shardcost.estimate.result import Estimate
from shardcost.estimate.why.error import kernel_error, of_rows
from shardcost.estimate.why.operation_words import (
    attention_in_words,
    cache_bytes,
    collective_in_words,
    elementwise_in_words,
    gemm_in_words,
    gemm_taken_apart,
    phase_of,
    section_for,
    some,
)
from shardcost.estimate.why.reason import Error, Why, reason, stated_by
from shardcost.machine.constants import Calibration
from shardcost.machine.kernels import Section
from shardcost.program.operations import AttentionCore, Collective, Elementwise, Gemm
from shardcost.receipt import SENT, Term, identifiers, in_unit
from shardcost.units import format_percent, format_time

_NEGLIGIBLE: Final = 1e-3
"""Paths that weigh less are not told apart."""
_ROUNDING: Final = 1e-10


def operation(found: Estimate, prices: Prices, call: Call) -> Why:
    """Return why one call of an operation takes as long as it does."""
    op = call.op
    if isinstance(op, Gemm):
        return _product(found, prices, call, op)
    if isinstance(op, AttentionCore):
        return _attention(found, prices, call, op)
    if isinstance(op, Elementwise):
        return _pass(found, prices, call, op)
    return _collective(found, prices, call, op)


def _product(found: Estimate, prices: Prices, call: Call, op: Gemm) -> Why:
    parts = gemm_taken_apart(prices, op)
    section, device = parts.section, prices.machine.cluster.device
    source = _source(section)
    tiles_s = call.alone_s - parts.fixed_s - parts.input_s
    likeliest = (
        f"{parts.tile[0]} x {parts.tile[1]} tiles ({format_percent(parts.chosen)} likely),"
        f" {some(parts.waves, 'wave')} over {device.sms} units: arithmetic and loads"
        f" {format_time(parts.compute_s)}, memory {format_time(parts.memory_s)}, limited by"
        f" {parts.limit}"
    )
    terms = [
        Term("tiles", tiles_s, "s", f"mean over the shapes that may run; {likeliest}", source),
        Term("launch", parts.fixed_s, "s", "of the kernel, in a graph", source),
    ]
    expression = "tiles + launch"
    if parts.input_s:
        terms.append(Term("conversion", parts.input_s, "s", "of the input's format", source))
        expression += " + conversion"
    peak = float(device.peak(op.dtype))
    terms += [
        *(Term(name, float(getattr(op, name)), "", words) for name, words in _SIZES.items()),
        Term("FLOP", float(op.flops), "FLOP", "2 x m x n x k x batch"),
        Term("peak", peak, "FLOP/s", "dense", _peak_source(found, op.dtype)),
    ]
    error = kernel_error("gemm", section, device, call.seconds)
    words = gemm_in_words(found, prices, op, call.alone_s)
    return _one(call, expression, terms, error, words, found)


_SIZES: Final = {
    "m": "rows: tokens",
    "n": "columns of the weights",
    "k": "what is summed over",
    "batch": "products in one launch",
}


def _attention(found: Estimate, prices: Prices, call: Call, op: AttentionCore) -> Why:
    device = prices.machine.cluster.device
    section = section_for(prices, "attention", phase_of(op))
    source = _source(section)
    if op.decode:
        moved, rate = cache_bytes(op), float(device.memory_bytes_per_s)
        share = moved / (call.alone_s * rate)
        terms = [
            Term("cache", moved, SENT, "keys and values of all sequences, read once"),
            Term("share", share, "share", "of the memory's rate that the kernel reaches", source),
            Term(
                "memory_rate",
                rate,
                "bytes/s",
                "nominal",
                stated_by(found.cluster, "device.memory_bytes_per_s"),
            ),
        ]
        expression = "cache / (share * memory_rate)"
    else:
        flops, peak = float(op.flops), float(device.peak(op.dtype))
        share = flops / (call.alone_s * peak)
        mask = "pairs that the causal mask leaves" if op.causal else "all pairs"
        terms = [
            Term("FLOP", flops, "FLOP", mask),
            Term("share", share, "share", "of the peak that the kernel reaches", source),
            Term("peak", peak, "FLOP/s", "dense", _peak_source(found, op.dtype)),
        ]
        expression = "FLOP / (share * peak)"
    shape = {
        "sequences": op.batch,
        "queries": op.query_tokens,
        "context": op.context_tokens,
        "heads": op.heads,
        "KV_heads": op.kv_heads,
        "head_size": op.head_dim,
    }
    terms += [Term(name, float(value), "", "") for name, value in shape.items()]
    error = kernel_error("attention", section, device, call.seconds, phase=phase_of(op))
    words = attention_in_words(found, prices, op, call.alone_s)
    return _one(call, expression, terms, error, words, found)


def _pass(found: Estimate, prices: Prices, call: Call, op: Elementwise) -> Why:
    section, device = (
        section_for(prices, "elementwise", "elementwise"),
        prices.machine.cluster.device,
    )
    source = _source(section)
    table = section.constants
    memory = stated_by(found.cluster, "device.memory_bytes_per_s")
    terms = [
        Term("kernels", float(op.kernels), "", "one after the other"),
        Term("latency", 1e-6 * table["latency_us"], "s", "of a kernel", source),
        Term("bytes", float(op.bytes_moved), SENT, "read and written"),
        Term("share", table["memory_share"], "share", "of the memory's rate reached", source),
        Term("memory_rate", float(device.memory_bytes_per_s), "bytes/s", "nominal", memory),
    ]
    expression = "kernels * latency + bytes / (share * memory_rate)"
    error = kernel_error("elementwise", section, device, call.seconds)
    words = elementwise_in_words(found, prices, [op], "")
    return _one(call, expression, terms, error, words, found)


def _collective(found: Estimate, prices: Prices, call: Call, op: Collective) -> Why:
    words = collective_in_words(found, prices, op, call.alone_s)
    size = Term("size", float(op.size_bytes), SENT, "the buffer, as nccl-tests counts it")
    ranks = Term("ranks", float(op.ranks), "", f"of the {op.group} group")
    if op.ranks == 1:
        return _one(call, "0", [ranks], None, words, found)
    if prices.is_multimem(op):
        meaning = "an engine's start, and NCCL's in-switch algorithm for the bytes"
        terms = [Term("multimem", call.alone_s, "s", meaning), size, ranks]
        return _one(call, "multimem", terms, None, words, found)
    result = prices.collective(op)
    notes = result.notes
    expression, terms = path_formula(result)
    median = result.calibrations[0].fit.median_pct if result.calibrations else None
    interval = interval_of(result)
    error = of_rows(
        Residuals(0.0, 0.0, interval.rows, interval.like),
        float(interval.low_s),
        float(interval.high_s),
        call.seconds,
        median,
    )
    sources = [*map(_calibration, result.calibrations), *notes]
    return _one(call, expression, [*terms, size, ranks], error, words, found, sources)


def path_formula(
    result: CollectiveTime, meanings: Mapping[str, str] | None = None
) -> tuple[str, list[Term]]:
    """Return what a collective's time is made of: parts of its path, or near a switch a mean.

    Args:
        result: A collective of one size.
        meanings: What each part of the path that runs is, in words.
    """
    summed = sum(map(float, result.weights.values()))
    shares = {path: float(each) / summed for path, each in result.weights.items()}
    counted = {path: each for path, each in shares.items() if each > _NEGLIGIBLE}
    if len(counted) == 1:
        parts = result.parts()
        names = identifiers(list(parts))
        runs = f"of {result.algorithm} {result.protocol}"
        terms = [
            Term(name, seconds, "s", (meanings or {}).get(part, runs))
            for name, (part, seconds) in zip(names, parts.items(), strict=True)
        ]
        expression, known_s = " + ".join(names), float(sum(parts.values()))
    else:
        names = identifiers([" ".join(path) for path in counted])
        times = dict(result.alternatives())
        terms = []
        for name, (path, share) in zip(names, counted.items(), strict=True):
            terms.append(Term(f"{name}_weight", share, "", "near a switch of the library's choice"))
            terms.append(Term(name, times[path], "s", "the path alone"))
        expression = " + ".join(f"{name}_weight * {name}" for name in names)
        known_s = sum(share * times[path] for path, share in counted.items())
    rest = float(result.time_s) - known_s
    if abs(rest) > _ROUNDING * abs(known_s):
        terms.append(Term("others", rest, "s", "paths that hardly count, the library near to them"))
        expression += " + others"
    return expression, terms


def _one(
    call: Call,
    expression: str,
    terms: Iterable[Term],
    error: Error | None,
    words: str,
    found: Estimate,
    sources: Iterable[str] = (),
) -> Why:
    """Return why one call takes what it takes, in a run that may slow kernels down."""
    every = list(terms)
    if call.seconds != call.alone_s:
        software = found.software
        expression = f"slowdown * ({expression})"
        meaning = f"kernels in a run of {software.title}, over the same by themselves"
        every.append(Term("slowdown", float(software.slowdown), "", meaning, software.fit_text))
    where = ", ".join(call.where)
    often = f"{in_unit(call.times, '')} a step" if call.times else "not on the stage that paces"
    title = f"One call of {call.name} ({where}), {often}"
    return reason(
        f"op.{call.name}",
        title,
        call.seconds,
        "s",
        expression,
        every,
        error=error,
        sources=sources,
        words=words,
    )


def _peak_source(found: Estimate, dtype: str) -> str:
    return stated_by(found.cluster, f"device.peak_flop_per_s.{dtype}")


def _source(section: Section) -> str:
    """Return who states a set of constants, in full."""
    lent = f"; lent by {section.inherited_from}" if section.inherited_from else ""
    fit = section.fit
    return (
        f"{fit.source}; {fit.rows:,} rows, median error {fit.median_pct:.1f} %,"
        f" p90 {fit.p90_pct:.1f} %{lent}"
    )


def _calibration(each: Calibration) -> str:
    return f"{each.library} on {each.system}: {each.source()}"

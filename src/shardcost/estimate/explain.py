"""Why an estimate is as it is: formulas with their values, who states the constants, errors seen.

Of every kind of work the heaviest operation is shown in full: the largest matrix product of a
layer, its attention, its memory passes, and the collective on which most time is spent. Any single
figure can be asked by `shardcost.estimate.why`, which has the same words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import wrap
from typing import Any, Final

from shardcost.checks import is_array
from shardcost.errors import BadTypeError
from shardcost.estimate.calls import times_sent
from shardcost.estimate.ledger import PassParts
from shardcost.estimate.price import Prices
from shardcost.estimate.result import Estimate
from shardcost.estimate.why.memory import memory_in_words
from shardcost.estimate.why.operation_words import (
    attention_in_words,
    collective_in_words,
    elementwise_in_words,
    gemm_in_words,
)
from shardcost.estimate.why.rates import utilisation_in_words
from shardcost.estimate.why.reason import brief
from shardcost.estimate.why.time import pipeline_in_words, serving_in_words, step, step_in_words
from shardcost.program.operations import (
    AttentionCore,
    Elementwise,
    Gemm,
    Operation,
    Operations,
    Passes,
)
from shardcost.units import format_time
from shardcost.workload import Train

_GLUE: Final = "\N{NO-BREAK SPACE}"
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
    prices = found.ledger.prices
    if isinstance(found.workload, Train):
        work, seconds = step(found)
        yield "Pipeline", pipeline_in_words(found, work, seconds)
        yield "Time", step_in_words(seconds)
    else:
        yield "Time", serving_in_words(found)
    yield "Layer", _layer(found)
    yield from _product(found, prices)
    yield from _attention(found, prices)
    yield from _passes(found, prices)
    yield from _collective(found, prices)
    yield "Memory", memory_in_words(found)
    yield "MFU", utilisation_in_words(found)
    yield "Software", _software(found)


def _layer(found: Estimate) -> str:
    """Return what one layer takes in each pass, and what starting its kernels does."""
    names = {"forward": "forward"}
    if isinstance(found.workload, Train):
        names |= {"backward": "backward", "weight gradients": "weight"}
    passes = {name: PassParts.of(found.ledger.shares, each) for name, each in names.items()}
    said = [f"{name} {_parts(busy)}" for name, busy in passes.items()]
    if found.software.launch == "eager":
        each = found.software.host_per_kernel_s
        kernels = passes["forward"].time.kernels
        host = kernels * each
        said.append(
            f"the host starts {kernels:.0f} kernels forward, {format_time(each)} each,"
            f" in {format_time(host)}"
        )
    slow = found.software.slowdown
    beside = f" (kernels {slow:.3g} times as long as by themselves)" if slow != 1 else ""
    return "; ".join(said) + beside


def _parts(busy: PassParts) -> str:
    compute = [f"{name} {format_time(each)}" for name, each in busy.compute_s.items() if each]
    comm = [f"{name} waits {format_time(each)}" for name, each in busy.exposed_s.items() if each]
    return f"{' + '.join([*compute, *comm])} = {format_time(busy.time.device_s)}"


def _every(passes: Passes) -> Operations:
    return passes.forward + passes.recompute + passes.backward + passes.weight


def _product(found: Estimate, prices: Prices) -> Iterator[tuple[str, str]]:
    """Yield the product of the forward pass that takes longest, taken apart."""
    products = tuple(op for op in found.program.usual_layers.passes.forward if isinstance(op, Gemm))
    if products:
        op, seconds = _longest(products, prices)
        yield "Largest product", gemm_in_words(found, prices, op, seconds)


def _attention(found: Estimate, prices: Prices) -> Iterator[tuple[str, str]]:
    cores = tuple(
        op for op in _every(found.program.usual_layers.passes) if isinstance(op, AttentionCore)
    )
    if cores:
        seconds = float(prices.of(cores[:1])[0])
        yield "Attention", attention_in_words(found, prices, cores[0], seconds)


def _passes(found: Estimate, prices: Prices) -> Iterator[tuple[str, str]]:
    """Yield how the memory-bound kernels of a layer's forward pass are priced."""
    passes = [op for op in found.program.usual_layers.passes.forward if isinstance(op, Elementwise)]
    if passes:
        yield "Passes", elementwise_in_words(found, prices, passes, " in a layer forward")


def _collective(found: Estimate, prices: Prices) -> Iterator[tuple[str, str]]:
    """Yield the collective on which a rank spends most time, and how it runs."""
    often = times_sent(found)
    if not often:
        return
    seconds = dict(zip(often, prices.of(tuple(often)), strict=True))
    op = max(often, key=lambda each: float(often[each] * each.count * seconds[each]))
    yield "Heaviest collective", collective_in_words(found, prices, op, float(seconds[op]))


def _software(found: Estimate) -> str:
    software = found.software
    return (
        f"{software.title}: {software.attention} attention, tensor-parallel overlap"
        f" {software.tp_overlap}, kernels by {software.launch} launch,"
        f" {format_time(software.step_overhead_s)} of overhead a step ({brief(software.source)})."
        f" Constants: {brief(software.fit_text)}"
    )


def _longest(operations: tuple[Gemm, ...], prices: Prices) -> tuple[Gemm, float]:
    """Return the operation that takes longest in all, and the seconds of one of it."""
    seconds = prices.of(operations)
    paired = zip(operations, seconds, strict=True)
    op, each = max(paired, key=lambda pair: float(_count(pair[0]) * pair[1]))
    return op, float(each)


def _count(op: Operation) -> Any:
    return op.count

"""How far measurements were from predictions like a figure's: of runs, kernels, collectives.

What follows from the time of a step, such as a rate, has the interval of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Any, Final

from shardcost.catalog.errors import Residuals, residuals_like
from shardcost.cluster import Device
from shardcost.collectives.interval import interval_of as interval_of_collective
from shardcost.estimate.calls import Call
from shardcost.estimate.interval import interval_of, ranges_of, standing_of
from shardcost.estimate.price import Prices
from shardcost.estimate.result import Estimate
from shardcost.estimate.why.reason import Error, Part, Why, reason, spread
from shardcost.machine.kernels import KernelTable, Section
from shardcost.program.operations import Collective
from shardcost.receipt import Term, in_unit
from shardcost.units import format_time

_TABLES: Final = {"gemm": "gemm", "attention": "attention", "elementwise": "elementwise"}
"""The measured tables that the kernels of a shelf are held to."""


def run_error(found: Estimate, unit: str, value: Any = None, times: float = 1.0) -> Error:
    """Return the error of measured runs like an estimate, for a figure that follows from its time.

    Args:
        found: The estimate.
        unit: The figure's unit.
        value: The figure, where it is `times` over the time; else it is `times` times the time.
        times: Its factor.
    """
    interval = interval_of(found)
    low, high = float(interval.low_s), float(interval.high_s)
    factors = low / float(found.time_s), high / float(found.time_s)
    if value is None:
        low, high = times * low, times * high
    else:
        low, high = (float(value) / each for each in factors[::-1])
    words = (
        f"of {interval.like}, nine of ten times were within {spread(*factors)}:"
        f" {in_unit(low, unit)} to {in_unit(high, unit)}"
    )
    return Error(words, interval.like, interval.rows, low, high)


def range_error(found: Estimate, figure: str, unit: str) -> Error:
    """Return the error of measurements of a figure itself: the share of communication, memory."""
    known, value = ranges_of(found)[figure], float(getattr(found, figure))
    low, high = float(known.low), float(known.high)
    factors = (low / value, high / value) if value else (1.0, 1.0)
    ends = f"{in_unit(low, unit)} to {in_unit(high, unit)}"
    words = f"of {known.like}, nine of ten were within {spread(*factors)}: {ends}"
    return Error(words, known.like, known.rows, low, high)


def kernel_error(
    shelf: KernelTable,
    section: Section,
    device: Device,
    value: float,
    *,
    summed: bool = False,
    **facts: str,
) -> Error:
    """Return the error of kernels like these; of a sum of many, as if all were off alike."""
    like = residuals_like(_TABLES[shelf], standing=standing_of(section, device), **facts)
    low, high = value * exp(like.low), value * exp(like.high)
    return of_rows(like, low, high, value, section.fit.median_pct, summed=summed)


def of_rows(
    like: Residuals,
    low: float,
    high: float,
    value: float,
    median: float | None,
    *,
    summed: bool = False,
) -> Error:
    """Return an error in words: of which rows, in percent, and from where to where that is."""
    factors = (low / value, high / value) if value else (1.0, 1.0)
    ends = f"{format_time(low)} to {format_time(high)}"
    alike = f"; were all off alike, the sum would be {ends}" if summed else f": {ends}"
    words = f"of {like.like}, nine of ten were within {spread(*factors)}{alike}"
    return Error(words, like.like, like.rows, low, high, median)


def collectives_error(prices: Prices, calls: Sequence[Call], seconds: float) -> Error | None:
    """Return the error of collectives, as if each were off as far as rows like it."""
    ends, weights = [0.0, 0.0], 0.0
    heaviest: tuple[float, Residuals, float | None] | None = None
    for call in calls:
        op = call.op
        if not isinstance(op, Collective) or op.ranks == 1 or prices.is_multimem(op):
            continue
        result = prices.collective(op)
        found = interval_of_collective(result)
        ends[0] += call.times * float(found.low_s)
        ends[1] += call.times * float(found.high_s)
        weights += call.total_s
        if heaviest is None or call.total_s > heaviest[0]:
            median = result.calibrations[0].fit.median_pct if result.calibrations else None
            heaviest = (call.total_s, Residuals(0.0, 0.0, found.rows, found.like), median)
    if heaviest is None or not weights or not seconds:
        return None
    low, high = (seconds * each / weights for each in ends)
    return of_rows(heaviest[1], low, high, seconds, heaviest[2], summed=True)


def time_term(found: Estimate) -> Term:
    """Return the time as a term of a formula."""
    return Term("time", float(found.time_s), "s", "of a step")


def over_time(
    found: Estimate,
    figure: str,
    title: str,
    value: Any,
    unit: str,
    expression: str,
    terms: list[Term],
    **others: Any,
) -> Why:
    """Return a figure that is something over the time, and so lies between that over both ends."""
    parts = [time_part(found), *others.pop("parts", ())]
    error = run_error(found, unit, value)
    return reason(figure, title, value, unit, expression, terms, parts=parts, error=error, **others)


def time_part(found: Estimate) -> Part:
    """Return the time as a figure that another is made of."""
    return Part("time_s", "time", float(found.time_s), "s")

"""`Why`: the receipt of a figure, with the error seen on measurements like it.

An error is that of measured runs, kernels or collectives that are alike, each predicted by
constants that were fitted without it (`shardcost.catalog.errors`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import exp, log
from typing import Any, Final

from shardcost.catalog.errors import CONFIDENCE_PCT, Residuals, residuals_like
from shardcost.cluster import Device
from shardcost.collectives.dispatch import DispatchTime
from shardcost.collectives.interval import dispatch_interval_of
from shardcost.collectives.interval import interval_of as interval_of_collective
from shardcost.collectives.library_time import CollectiveTime
from shardcost.estimate.interval import standing_of
from shardcost.estimate.ledger import Entry
from shardcost.estimate.price import Prices
from shardcost.program.operations import AttentionCore, Collective, LatentCore, StateKernel
from shardcost.receipt import Receipt, Term, identifiers, in_unit
from shardcost.records import dataclass

_ADDRESS: Final = re.compile(r",? https?://[^ )]*")
_DATA_SETS: Final = re.compile(r"(measured rows of )([^;(]*)")


@dataclass(frozen=True, slots=True)
class Error:
    """How far measurements were from predictions like a figure's."""

    words: str
    like: str
    """Which measurements."""
    rows: int
    low: float | None = None
    """Nine of ten measurements of this very figure lie above; None where none are of it."""
    high: float | None = None
    median_pct: float | None = None
    """Median error of the fit of the constants behind it."""
    confidence_pct: int = CONFIDENCE_PCT


@dataclass(frozen=True, slots=True)
class Why(Receipt):
    """Where one figure comes from. Its parts are figures that can be explained in turn."""

    error: Error | None = None
    stated: tuple[str, ...] = ()
    """Sources beside those of the terms."""
    steps: tuple[Receipt, ...] = ()
    """Terms that are computed on the way, each with its own expression."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Who states the terms and the rest, without repetition."""
        terms = (term.source for term in self.terms)
        return tuple(dict.fromkeys(filter(None, (*terms, *self.stated))))


def answer(
    receipt: Receipt,
    *,
    value: Any = None,
    parts: Iterable[Receipt] = (),
    error: Error | None = None,
    stated: Iterable[str] = (),
    words: str = "",
) -> Why:
    """Return why a figure is what its receipt says.

    Args:
        receipt: Its parts are the steps of the computation.
        value: The figure as reported, if it is not the receipt's own.
        parts: Figures that it is made of: name, title and value of each.
        error: The error seen.
        stated: Further sources.
        words: The same in a sentence or two.
    """
    return Why(
        receipt.name,
        receipt.title,
        receipt.value if value is None else float(value),
        receipt.unit,
        receipt.expression,
        receipt.terms,
        receipt.constants,
        tuple(parts),
        words or receipt.words,
        error,
        tuple(dict.fromkeys(filter(None, stated))),
        receipt.parts,
    )


def total(
    figure: str, title: str, value: Any, unit: str, parts: Iterable[Receipt], **others: Any
) -> Why:
    """Return why a figure is that is the sum of others; those that are 0 are left out."""
    counted = [part for part in parts if part.value != 0]
    names = identifiers([part.title for part in counted])
    terms = tuple(
        Term(name, part.value, part.unit, part.words)
        for name, part in zip(names, counted, strict=True)
    )
    receipt = Receipt(figure, title, float(value), unit, " + ".join(names) or "0", terms)
    return answer(receipt, parts=counted, **others)


def part(figure: str, title: str, value: Any, unit: str = "s", words: str = "") -> Receipt:
    """Return a figure that another is made of, which is explained under its own name."""
    return Receipt(figure, title, float(value), unit, words=words)


def error_of(
    like: Residuals,
    value: Any,
    unit: str,
    *,
    inverse: bool = False,
    summed: bool = False,
    median_pct: float | None = None,
) -> Error:
    """Return the error of a figure by the residuals of measurements like it.

    Args:
        like: Logarithms of measured over predicted.
        value: The figure.
        unit: Its unit.
        inverse: Whether it is inverse to what was measured, like a rate to a time.
        summed: Whether it is a sum of many that were measured.
        median_pct: Median error of the fit behind it.
    """
    low, high = (-like.high, -like.low) if inverse else (like.low, like.high)
    ends = float(value) * exp(low), float(value) * exp(high)
    of_time = " of the predicted time" if inverse else ""
    words = f"{CONFIDENCE_PCT} % of {like.like} were within {spread(like)}{of_time}"
    between = f"{in_unit(ends[0], unit)} to {in_unit(ends[1], unit)}"
    alike = "; if all were off alike, the sum would be " if summed else ": "
    return Error(f"{words}{alike}{between}", like.like, like.rows, *ends, median_pct)


def spread(like: Residuals) -> str:
    """Return residuals in percent.

    >>> from math import log
    >>> spread(Residuals(log(0.9), log(1.25), 40, "runs"))
    '-10 % to +25 %'
    """
    return f"{100 * (exp(like.low) - 1):+.0f} % to {100 * (exp(like.high) - 1):+.0f} %"


def kernel_error(prices: Prices, op: Any, value: Any, *, summed: bool = False) -> Error:
    """Return the error of kernels like one."""
    table, section = prices.section(op)
    facts = {}
    if isinstance(op, AttentionCore):
        facts["phase"] = "decode" if op.decode else "prefill"
    if isinstance(op, StateKernel):
        facts["part"] = f"{op.part}, {op.phase}"
    if isinstance(op, LatentCore):
        facts["scope"] = "kernel"
    device: Device = prices.machine.cluster.device
    like = residuals_like(table, standing=standing_of(section, device), **facts)
    return error_of(like, value, "s", summed=summed, median_pct=section.fit.median_pct)


def collective_error(
    result: CollectiveTime | DispatchTime, value: Any, unit: str = "s", *, inverse: bool = False
) -> Error | None:
    """Return the error of collectives like one, for its time or what is inverse to it."""
    if not result.time_s:
        return None
    return error_of(
        _residuals(result), value, unit, inverse=inverse, median_pct=_median_pct(result)
    )


def _residuals(result: CollectiveTime | DispatchTime) -> Residuals:
    if isinstance(result, DispatchTime):
        interval = dispatch_interval_of(result)
    else:
        interval = interval_of_collective(result)
    seconds = float(result.time_s)
    low, high = (log(float(end) / seconds) for end in (interval.low_s, interval.high_s))
    return Residuals(low, high, interval.rows, interval.like)


def _median_pct(result: CollectiveTime | DispatchTime) -> float | None:
    if isinstance(result, DispatchTime):
        return None if result.resolved is None else result.resolved.fit.median_pct
    return result.calibrations[0].fit.median_pct if result.calibrations else None


def group_error(prices: Prices, entries: Iterable[Entry], value: Any) -> Error | None:
    """Return the error of all collectives of a group, as far as the heaviest of them was off."""
    sent = {
        entry.op: float(entry.total_s)
        for entry in entries
        if isinstance(entry.op, Collective) and entry.total_s and not prices.is_multimem(entry.op)
    }
    if not sent or not value:
        return None
    result = prices.collective(max(sent, key=lambda op: sent[op]))
    like, median = _residuals(result), _median_pct(result)
    return error_of(like, value, "s", summed=True, median_pct=median)


def brief(source: object) -> str:
    """Return a source without its address, and of many data sets the first."""
    text = _ADDRESS.sub("", str(source))
    sets = _DATA_SETS.search(text)
    if sets is None or sets[2].count(", ") < 2:
        return text
    names = sets[2].split(", ")
    return text.replace(sets[2], f"{names[0]} and {len(names) - 1} other sets")

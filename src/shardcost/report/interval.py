"""A 90 % interval in words and as plain data, the same in every report."""

from __future__ import annotations

from typing import Any

from shardcost.catalog.errors import CONFIDENCE_PCT
from shardcost.collectives.interval import Interval
from shardcost.units import format_time


def ends(low_s: float, high_s: float) -> str:
    """Return from when to when, the unit once where it is the same.

    >>> ends(290e-6, 360e-6), ends(0.9e-3, 1.2e-3)
    ('290 to 360 us', '900 us to 1.2 ms')
    """
    low, high = (format_time(float(f"{each:.3g}")) for each in (low_s, high_s))
    unit = high.partition(" ")[2]
    return f"{low.removesuffix(f' {unit}')} to {high}"


def rows_in_words(found: Interval) -> str:
    """Return which rows an interval is from."""
    return f"{CONFIDENCE_PCT} %, from {found.like}"


def in_short(found: Interval) -> str:
    """Return an interval in less than a line.

    >>> in_short(Interval(290e-6, 360e-6, "all rows", 4000))
    '290 to 360 us (90 %), from 4,000 rows like it'
    """
    known = f"{found.rows:,} rows like it"
    return f"{ends(found.low_s, found.high_s)} ({CONFIDENCE_PCT} %), from {known}"


def explained(found: Interval) -> str:
    """Return which rows an interval is from, as a sentence."""
    return f"Interval: of {found.like}, nine of ten were within it (docs/intervals.md)."


def shares(found: Interval, time_s: float) -> str:
    """Return both ends in percent of the prediction.

    >>> shares(Interval(0.9, 1.25, "all rows", 40), 1.0)
    '-10 % to +25 %'
    """
    low, high = (100 * (each / time_s - 1) for each in (found.low_s, found.high_s))
    return f"{low:+.0f} % to {high:+.0f} %"


def as_data(found: Interval) -> dict[str, Any]:
    """Return the ends in seconds, and what they rest on."""
    return {
        "low_s": found.low_s,
        "high_s": found.high_s,
        "interval": about(found),
    }


def about(found: Interval) -> dict[str, Any]:
    """Return what an interval rests on."""
    return {"confidence_pct": CONFIDENCE_PCT, "like": found.like, "rows": found.rows}

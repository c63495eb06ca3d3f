"""A 90 % interval in words and as plain data, the same in every report."""

from __future__ import annotations

from typing import Any

from shardcost.catalog.errors import CONFIDENCE_PCT
from shardcost.collectives.interval import Interval
from shardcost.units import format_time


def ends(low_s: float, high_s: float) -> str:
    """Return both ends of an interval, the unit once where it is the same.

    >>> ends(290e-6, 360e-6), ends(0.9e-3, 1.2e-3)
    ('290 to 360 us', '900 us to 1.2 ms')
    """
    low, high = (format_time(float(f"{each:.3g}")) for each in (low_s, high_s))
    unit = high.partition(" ")[2]
    return f"{low.removesuffix(f' {unit}')} to {high}"


def rows_in_words(interval: Interval) -> str:
    """Return the measurements that an interval rests on, and how far it is from them."""
    return f"{CONFIDENCE_PCT} %, from {'; '.join(filter(None, (interval.like, interval.distance)))}"


def in_short(interval: Interval) -> str:
    """Return an interval in less than a line.

    >>> in_short(Interval(290e-6, 360e-6, "all", 4000))
    '290 to 360 us (90 %), from 4,000 similar measurements'
    """
    known = f"{interval.rows:,} similar measurements"
    return f"{ends(interval.low_s, interval.high_s)} ({CONFIDENCE_PCT} %), from {known}"


def in_full(interval: Interval) -> str:
    """Return an interval with what its measurements have in common."""
    known = "; ".join(filter(None, (interval.like, interval.distance)))
    return f"{ends(interval.low_s, interval.high_s)} ({CONFIDENCE_PCT} %), from {known}"


def explained(interval: Interval) -> str:
    """Return which measurements an interval rests on, as a sentence."""
    widened = f"; widened, because this is {interval.distance}" if interval.distance else ""
    return (
        f"Interval: it covers {CONFIDENCE_PCT} % of {interval.like}, each predicted by constants"
        f" fitted without it (docs/intervals.md){widened}."
    )


def shares(interval: Interval, time_s: float) -> str:
    """Return both ends relative to the prediction.

    >>> shares(Interval(0.9, 1.25, "all", 40), 1.0)
    '-10 % to +25 %'
    """
    low, high = (100 * (each / time_s - 1) for each in (interval.low_s, interval.high_s))
    return f"{low:+.0f} % to {high:+.0f} %"


def as_data(interval: Interval) -> dict[str, Any]:
    """Return the ends in seconds, and what they rest on."""
    return {"low_s": interval.low_s, "high_s": interval.high_s, "interval": about(interval)}


def about(interval: Interval) -> dict[str, Any]:
    """Return what an interval rests on."""
    return {
        "confidence_pct": CONFIDENCE_PCT,
        "like": interval.like,
        "rows": interval.rows,
        "distance": interval.distance,
    }

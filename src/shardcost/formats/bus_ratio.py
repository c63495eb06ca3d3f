"""What collective ran, and on how many ranks, from the ratio of two columns of nccl-tests.

Excerpts of logs often have neither a header nor a list of ranks. But busbw over algbw depends on
nothing else: it is 2 (n-1)/n for an all-reduce, (n-1)/n for all-gather, reduce-scatter and
all-to-all, 1 for the others (nccl-tests, doc/PERFORMANCE.md). Columns are printed with few digits,
so each row allows an interval of ratios; the true one lies in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, inf
from typing import Final, NamedTuple

_SLACK: Final = 1e-6
"""Relative: what conversions between decimal and binary may add."""
_SHARP: Final = 0.05
"""An interval of ratios narrower than this tells the collectives apart."""
_MOST_RANKS: Final = 10**6
_LEAST: Final = 0.45
"""Two ranks have a ratio of a half or more; one by itself has 0."""
TWICE: Final = frozenset({"all_reduce"})
"""Collectives that pass the buffer on twice, so that busbw is 2 (n-1)/n of algbw."""
ONCE: Final = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
"""Collectives whose busbw is (n-1)/n of algbw."""


class Interval(NamedTuple):
    """All values from `low` to `high`."""

    low: float
    high: float

    def meets(self, other: Interval) -> bool:
        """Return whether the two have a value in common."""
        return self.low <= other.high and other.low <= self.high

    def within(self, other: Interval) -> Interval:
        """Return what the two have in common."""
        return Interval(max(self.low, other.low), min(self.high, other.high))


def as_printed(text: str) -> Interval:
    """Return which numbers are printed like this, rounded to the last digit shown.

    >>> as_printed("12.50"), as_printed("1.2e+05")
    (Interval(low=12.495, high=12.505), Interval(low=115000.0, high=125000.0))
    """
    value = float(text)
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    half = 0.5 * 10.0 ** (int(exponent or 0) - decimals)
    return Interval(max(0.0, value - half), value + half)


def ratio_of(rows: Iterable[tuple[Interval, Interval]]) -> Interval | None:
    """Return the ratios that rows of busbw and algbw allow; None where they say nothing.

    Rows that contradict the sharper ones are left out, unless they are the majority.
    """
    quotients = sorted((_quotient(*row) for row in rows), key=lambda ratio: ratio.high - ratio.low)
    ratio, agreeing = Interval(0.0, inf), 0
    for quotient in quotients:
        if ratio.meets(quotient):
            ratio, agreeing = ratio.within(quotient), agreeing + 1
    return ratio if ratio.high < inf and 2 * agreeing >= len(quotients) else None


def _quotient(busbw: Interval, algbw: Interval) -> Interval:
    most = busbw.high / algbw.low * (1 + _SLACK) if algbw.low > 0 else inf
    return Interval(busbw.low / algbw.high * (1 - _SLACK) if algbw.high > 0 else 0.0, most)


def collective_of(ratio: Interval, *, reduces: bool, rooted: bool, in_place_unchecked: bool) -> str:
    """Return which collective rows are of; empty where that cannot be told.

    Args:
        ratio: Of busbw over algbw.
        reduces: Whether a reduction is named.
        rooted: Whether one rank is the root.
        in_place_unchecked: Whether results are checked out of place only, as those of an
            all-to-all are.
    """
    if ratio.high < _LEAST:
        return ""
    if ratio.low > 1:
        return "" if rooted else "all_reduce"
    if ratio.high < 1:
        gathers = "all_to_all" if in_place_unchecked else "all_gather"
        return "" if rooted else "reduce_scatter" if reduces else gathers
    if ratio.high - ratio.low > _SHARP:
        return ""
    if rooted:
        return "reduce" if reduces else "broadcast"
    return "all_reduce" if reduces else "send_recv"


def contradicts(collective: str, ratio: Interval) -> bool:
    """Return whether rows with this ratio cannot be of a collective.

    >>> contradicts("all_gather", Interval(1.74, 1.76))
    True
    """
    if ratio.high < _LEAST:
        return False
    return (collective in ONCE and ratio.low > 1) or (collective in TWICE and ratio.high < 1)


def ranks_allowed(collective: str, ratio: Interval) -> tuple[int, int] | None:
    """Return the fewest and the most ranks that a ratio allows; None where it tells nothing.

    >>> ranks_allowed("all_reduce", Interval(1.8745, 1.8755))
    (16, 16)
    """
    if collective not in TWICE | ONCE:
        return None
    top = 2.0 if collective in TWICE else 1.0
    fewest = top / (top - ratio.low) if ratio.low < top else inf
    most = top / (top - ratio.high) if ratio.high < top else inf
    if fewest > _MOST_RANKS:
        return None
    return max(1, ceil(fewest - 1e-9)), floor(min(most, _MOST_RANKS) + 1e-9)


def likeliest_ranks(allowed: tuple[int, int], stated: int = 0) -> int:
    """Return the number of ranks within bounds; 0 if several are as likely as each other.

    Where rounding leaves a choice, the number that is stated elsewhere is taken, else the only
    power of two, else the only multiple of 8.
    """
    fewest, most = allowed
    if fewest <= stated <= most:
        return stated
    powers = [2**k for k in range(1, 21) if fewest <= 2**k <= most]
    eights = [first for first in (8 * -(-fewest // 8),) if first <= most < first + 8]
    choices: tuple[list[int], ...] = ([fewest] if fewest == most else [], powers, eights)
    return next((ranks[0] for ranks in choices if len(ranks) == 1), 0)

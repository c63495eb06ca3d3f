"""The rows of nccl-tests and rccl-tests: where one stands in a line, and what its columns say.

A row is told by its shape: two whole numbers, a number format, then the columns that the header
names, or those that are usual where there is none. The time of a row must agree with its algbw,
which is size / time. That shows other units, shifted columns and damaged lines.

Excerpts of logs often have neither a header nor a list of ranks. But busbw over algbw depends on
nothing but the collective and the ranks: it is 2 (n-1)/n for an all-reduce, (n-1)/n for all-gather,
reduce-scatter and all-to-all, 1 for the others (nccl-tests, doc/PERFORMANCE.md). Columns are
printed with few digits, so each row allows an interval of ratios; the true one lies in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil, floor, inf
from typing import Final, NamedTuple

from shardcost.formats.reading import unsound
from shardcost.units import GIGA

_ROW: Final = re.compile(
    r"(?<![\w.])([0-9]{1,40})[ \t]+([0-9]{1,40})[ \t]+([a-z][a-z0-9_]{2,15})(?=[ \t])(.*)"
)
_HEADER_WORDS: Final = ("algbw", "busbw", "time")
_FORMATS: Final = ("float", "half", "int", "double", "f8", "fp8", "char")
"""What names of number formats contain: a line without any of these is no row, which is cheaper to
see than by the regular expression."""
ROW_ENDS: Final = 1000
"""So many characters into a line a row is looked for."""
_NUMBER: Final = re.compile(r"[0-9]{1,25}(?:\.[0-9]{0,25})?(?:[eE][+-]?[0-9]{1,2})?")
_ROOT: Final = re.compile(r"-?[0-9]{1,7}")
_BLANK_HALF: Final = re.compile(r"[ \t]{30}")
"""Where the columns out of place are left blank."""
_AGREES: Final = 0.005
"""Relative: how far algbw may be from size / time beyond what rounding explains."""

_USUAL: Final = ("time", "algbw", "busbw", "wrong")
_PER_ITERATION: Final = ("i_min", "i_max", "i_p99", "i_cv%")
_USUAL_LAYOUTS: Final = tuple(
    (half, half) for half in (_USUAL, _USUAL[:3], _USUAL + _PER_ITERATION)
)
"""The columns of a row after its parameters: each half, out of place and in place, in order."""
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


class Half(NamedTuple):
    """One half of a row: out of place or in place."""

    size_bytes: int
    time_us: float
    algbw: Interval
    """GB/s, as printed and by size / time."""
    busbw: Interval
    wrong: str
    in_place: bool
    dtype: str
    line: int


class Row(NamedTuple):
    """What follows the number format of a row."""

    parameters: tuple[str, ...]
    """Reduction and root, as far as they were printed."""
    halves: list[Half]
    cut_off: bool
    """Whether the end of the row is missing."""


def row_in(line: str) -> re.Match[str] | None:
    """Return where a row stands in a line, after whatever prefix."""
    if any(word in line for word in _FORMATS):
        return _ROW.search(line, 0, ROW_ENDS)
    return None


def is_header(line: str) -> bool:
    """Return whether a line names the columns of a table."""
    return all(word in line for word in _HEADER_WORDS) and ("size" in line or "bytes" in line)


def is_whole_row(line: str) -> bool:
    """Return whether a line holds a row that can be read without a header."""
    row = row_in(line)
    return row is not None and isinstance(parsed_row(row[4], int(row[1]), ()), Row)


def layout_of(line: str) -> tuple[tuple[str, ...], ...]:
    """Return the halves that a header names: each begins with the time."""
    words = [word.lstrip("#") for word in line.split() if word != "timestamp"]
    starts = [i for i, word in enumerate(words) if word in {"time", "cputime"}]
    bounds = [*starts, len(words)]
    return tuple(tuple(words[start:end]) for start, end in pairwise(bounds))


def parsed_row(rest: str, size: int, layout: tuple[tuple[str, ...], ...]) -> Row | str:
    """Return a row from what follows its number format, or why there is none.

    The reduction and the root may be blank, and columns differ between versions. What is right is
    what makes the times agree with the bandwidths; if nothing does, the row is not to be trusted.
    """
    if layout and "cputime" in layout[0]:
        return "rows of host time (-C 1), which is not how long a collective takes"
    refused = ""
    words = rest.split()
    reduction = [] if not words or is_root(words[0]) or is_number(words[0]) else words[:1]
    others = words[len(reduction) :]
    readings = [(tuple(reduction), others)]
    if others and is_root(others[0]):
        readings.insert(0, ((*reduction, others[0]), others[1:]))
    for parameters, columns in readings:
        for halves in [layout] if layout else _USUAL_LAYOUTS:
            blank = bool(_BLANK_HALF.search(rest)) and len(columns) < sum(map(len, halves))
            parsed = _halves(columns, halves[1:] if blank else halves, size, in_place=blank)
            if isinstance(parsed, str):
                refused = refused or parsed
            else:
                expected = len(halves) - blank
                return Row(parameters, parsed, len(parsed) < expected)
    return refused or "rows without a time"


def is_root(word: str) -> bool:
    """Return whether a parameter is the rank of a root; -1 where there is none."""
    return _ROOT.fullmatch(word) is not None


def is_number(word: str) -> bool:
    """Return whether a cell is a number that is not negative."""
    return _NUMBER.fullmatch(word) is not None


def _halves(
    columns: list[str], layout: Sequence[tuple[str, ...]], size: int, *, in_place: bool
) -> list[Half] | str:
    """Return the halves of a row that are whole, all of them sound, or why not."""
    parsed: list[Half] = []
    for names in layout:
        cells = dict(zip(names, columns, strict=False))
        if not {"algbw", "busbw"} <= cells.keys():
            break
        half = _half(cells, size, in_place=in_place)
        if isinstance(half, str):
            return half
        parsed.append(half)
        columns, in_place = columns[len(names) :], True
    return parsed or "rows whose end is missing"


def _half(cells: dict[str, str], size: int, *, in_place: bool) -> Half | str:
    if not all(is_number(cells[name]) for name in ("time", "algbw", "busbw")):
        return "rows whose time or bandwidth is no number"
    time = as_printed(cells["time"])
    reason = unsound("rows", size, float(cells["time"]))
    if reason:
        return reason
    printed = as_printed(cells["algbw"])
    computed = Interval(
        size / time.high * 1e6 / GIGA,
        size / max(time.low, 1e-9) * 1e6 / GIGA,
    )
    allowed = Interval(computed.low * (1 - _AGREES), computed.high * (1 + _AGREES))
    if not printed.meets(allowed):
        return (
            "rows whose size / time is not their algbw (first:"
            f" {cells['algbw']} GB/s is printed, {size / float(cells['time']) / 1e3:.4g} follows;"
            " other units?)"
        )
    algbw = printed.within(computed) if printed.meets(computed) else computed
    wrong = cells.get("wrong", cells.get("error", ""))
    us = float(cells["time"])
    return Half(size, us, algbw, as_printed(cells["busbw"]), wrong, in_place, "", 0)


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

    def allowed(busbw: Interval, algbw: Interval) -> Interval:
        most = busbw.high / algbw.low * (1 + _SLACK) if algbw.low > 0 else inf
        return Interval(busbw.low / algbw.high * (1 - _SLACK) if algbw.high > 0 else 0.0, most)

    quotients = sorted((allowed(*row) for row in rows), key=lambda ratio: ratio.high - ratio.low)
    ratio, agreeing = Interval(0.0, inf), 0
    for quotient in quotients:
        if ratio.meets(quotient):
            ratio, agreeing = ratio.within(quotient), agreeing + 1
    return ratio if ratio.high < inf and 2 * agreeing >= len(quotients) else None


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

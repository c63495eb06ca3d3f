"""How far measurements were from predictions that had not seen them, by groups of rows alike.

A residual is the logarithm of measured over predicted. ``catalog/errors/`` has a file for each kind
of table: groups of rows with how far nine in ten of their residuals reach, from fine groups (an
engine on a system, at some sizes) to coarse ones (all rows). They are written by
``python -m lab.intervals``; a group stands there only if it has enough rows, from more than one
source. `residuals_like` picks the finest group that a question belongs to, multiplies its reach by
the factor of every fact that has one, and adds what each doubling of GPUs beyond the measured ones
adds. A fact has one factor where the rows of the group agree in it and another where they do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from math import erf, log, sqrt
from typing import Any, Final

from shardcost import catalog
from shardcost.arrays import largest, log2
from shardcost.checks import is_array
from shardcost.errors import UnknownNameError
from shardcost.records import NamedTuple

Facts = Mapping[str, str]
"""What is known of a prediction before anything is measured, by name."""
CONFIDENCE_PCT: Final = 90
_BELOW_HIGH: Final = (1 + CONFIDENCE_PCT / 100) / 2
"""The share of residuals below the high end: as many are beyond it as below the low end."""
_HIGH_IN_SIGMAS: Final = 1.6448536269514715
"""The quantile of `_BELOW_HIGH` of a normal distribution, which `statistics.NormalDist` would
compute at the cost of importing it."""
REPEATS: Final = log(1.015)
"""Half of repeated measurements are farther than this apart: no interval is narrower."""
MEASURED, SAME_ARCHITECTURE, OTHER_ARCHITECTURE = (
    "measured",
    "the same architecture",
    "another architecture",
)
"""Whose constants a prediction rests on: the system's own, its architecture's, or others'."""

_WORDS: Final = {
    MEASURED: "this GPU's own fit",
    SAME_ARCHITECTURE: f"constants inherited from {SAME_ARCHITECTURE}",
    OTHER_ARCHITECTURE: f"constants inherited from {OTHER_ARCHITECTURE}",
    "first token": "TTFT",
    "first token under load": "TTFT under load",
    "further tokens": "TPOT",
    "whole answers": "end-to-end latency",
    "GPU links": "NVLink or the like",
    "one domain": "within a node",
    "within the fit": "inside the fitted range",
    "beyond the fit": "outside the fitted range",
    "a fit of few rows": "fitted to few measurements",
    "engines": "engine kernels",
    "frameworks": "launched by a framework",
    "vendors' libraries": "vendor library",
    "gather or scatter": "all-gather or reduce-scatter",
}
"""Values of the keys of groups, as a reader knows them."""


class Residuals(NamedTuple):
    """Nine of ten residuals of some rows lie between these; arrays where GPU counts are."""

    low: Any
    high: Any
    rows: int
    like: str
    """Which rows, in words."""
    distance: str = ""
    """How far the prediction is from them, where it is outside, in words."""

    def quantile(self, share: float) -> Any:
        """Return what a share of all residuals lies below.

        Normal to either side of the prediction, which is the median, with a twentieth of all
        residuals beyond either end.

        >>> even = Residuals(-0.2, 0.3, 100, "")
        >>> even.quantile(0.5), round(even.quantile(0.95), 6), round(even.quantile(0.05), 6)
        (0.0, 0.3, -0.2)
        """
        from statistics import NormalDist  # slow to load, and few ask

        ends = NormalDist().inv_cdf(share) / _HIGH_IN_SIGMAS
        return ends * self.high if ends > 0 else -ends * self.low

    def share_below(self, residual: float) -> float:
        """Return the share of all residuals below one: the inverse of `quantile`.

        >>> round(Residuals(-0.2, 0.3, 100, "").share_below(0.3), 3)
        0.95
        """
        reach = self.high if residual > 0 else -self.low
        if not reach:
            return float(residual >= 0)
        return 0.5 * (1 + erf(_HIGH_IN_SIGMAS * residual / reach / sqrt(2)))


class _Kind(NamedTuple):
    """All that is known of the residuals of a kind of table."""

    levels: tuple[tuple[str, ...], ...]
    """The facts that groups agree in, finest first."""
    groups: Mapping[tuple[tuple[str, ...], tuple[str, ...]], Mapping[str, Any]]
    """Rows alike, as the file has them, by the facts that they agree in and the values of those."""
    factors: Mapping[tuple[str, str, bool], float]
    """What reaches are multiplied by, by fact, value and whether the rows of the group agree in the
    fact; of all of them, under two blanks."""
    doublings: Mapping[tuple[str, str], float]
    """What a doubling of GPUs adds to a reach, by fact and value."""
    least: float
    """No reach is shorter, whatever the factors."""

    def per_doubling(self, facts: Facts) -> float:
        """Return what a doubling adds to the reach of what has some facts."""
        return next(
            (
                adds
                for (fact, value), adds in self.doublings.items()
                if facts.get(fact, "") == value
            ),
            0.0,
        )


def residuals_like(
    kind: str, /, *, gpus: Any = None, most_gpus: Any = None, **facts: str
) -> Residuals:
    """Return the residuals of rows like a prediction's, the finest group of them that there is.

    >>> residuals = residuals_like("memory")
    >>> residuals.low < residuals.high
    True

    Args:
        kind: A kind of table, such as ``collectives``.
        gpus: How many GPUs a prediction is of, where that counts.
        most_gpus: The most that were measured of the same; by default in the group.
        facts: What is known of the prediction; what a group does not ask for is not looked at.
    """
    known = _kind(kind)
    keys = ((level, tuple(facts.get(name, "") for name in level)) for level in known.levels)
    group = next(known.groups[key] for key in keys if key in known.groups)
    times, wider, shared = known.factors.get(("", "", False), 1.0), {}, group["key"]
    for name, value in facts.items():
        factor = known.factors.get((name, value, name in shared), 1.0)
        times *= factor
        if name not in shared:
            wider[value] = factor
    away = [
        f"{factor:.1f} times as wide for {_WORDS.get(value, value)}"
        for value, factor in wider.items()
        if factor >= _FAR_OFF
    ]
    more: Any = 0.0
    most = group.get("most_gpus", 0) if most_gpus is None else most_gpus
    if gpus is not None and most:
        doublings = log2(largest(1.0, gpus / most))
        more = known.per_doubling(facts) * doublings
        away.append(_distance(doublings, most))
    low, high = min(group["low"] * times, -known.least), max(group["high"] * times, known.least)
    alike = in_words(shared)
    held_out = f" (held out: {alike})" if alike else " (held out)"
    like = f"{group['rows']:,} similar measurements{held_out}"
    distance = "; ".join(filter(None, away))
    return Residuals(low - more, high + more, group["rows"], like, distance)


def _distance(doublings: Any, most: Any) -> str:
    """Return how far beyond what was measured a GPU count is; of many, the largest."""
    far = float(doublings.max() if is_array(doublings) else doublings)
    if far < _NEAR:
        return ""
    largest_measured = int(most.min() if is_array(most) else most)
    return f"{2**far:,.3g} times the GPUs of the largest similar measurement ({largest_measured:,})"


_FAR_OFF: Final = 2.0
"""Factors from which on an interval says so."""
_NEAR: Final = 0.01
"""Doublings that are rounding."""


@cache  # a file has hundreds of groups, and every interval asks
def _kind(kind: str) -> _Kind:
    """Return the groups, factors and doublings of a kind."""
    if kind not in catalog.names("errors"):
        raise UnknownNameError("kind", kind, catalog.names("errors"))
    content = catalog.raw("errors", kind)
    levels = tuple(tuple(level) for level in content["levels"])
    groups = {(tuple(each["key"]), tuple(each["key"].values())): each for each in content["group"]}
    factors = {
        (entry["fact"], entry["value"], entry["grouped"]): entry["times"]
        for entry in content.get("factor", ())
    }
    doublings = {
        (entry["fact"], entry["value"]): entry["adds"] for entry in content.get("doubling", ())
    }
    return _Kind(levels, groups, factors, doublings, content.get("least", 0.0))


def in_words(key: Mapping[str, str]) -> str:
    """Return what the measurements of a group have in common.

    >>> in_words({"standing": "the same architecture", "span": "one domain", "vendor": "any"})
    'constants inherited from the same architecture, within a node'
    """
    return ", ".join(_WORDS.get(value, value) for value in key.values() if value != "any")


def architectures_apart(own: str | None, donors: Iterable[str]) -> str:
    """Return how near those are from which a system inherits its constants.

    >>> architectures_apart("hopper", ["hopper"]), architectures_apart("hopper", ["ampere"])
    ('the same architecture', 'another architecture')
    """
    return SAME_ARCHITECTURE if set(donors) == {own} else OTHER_ARCHITECTURE

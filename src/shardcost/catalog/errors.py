"""How far measurements were from predictions that had not seen them, by groups of rows alike.

A residual is the logarithm of measured over predicted. ``catalog/errors/`` has a file for each kind
of table: groups of rows with how far nine in ten of their residuals reach, from fine groups (an
engine on a system, at some sizes) to coarse ones (all rows). They are written by
``python -m lab.intervals``; a group stands there only if it has enough rows, from more than one
source. `residuals_like` picks the finest group that a question belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from math import log
from typing import Final, NamedTuple

from shardcost import catalog
from shardcost.errors import UnknownNameError

Facts = Mapping[str, str]
"""What is known of a prediction before anything is measured, by name."""
CONFIDENCE_PCT: Final = 90
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
    """Nine of ten residuals of some rows lie between these."""

    low: float
    high: float
    rows: int
    like: str
    """Which rows, in words."""


def residuals_like(kind: str, /, **facts: str) -> Residuals:
    """Return the residuals of rows like a prediction's, the finest group of them that there is.

    >>> residuals = residuals_like("memory")
    >>> residuals.low < residuals.high
    True

    Args:
        kind: A kind of table, such as ``collectives``.
        facts: What is known of the prediction; what a group does not ask for is not looked at.
    """
    levels, groups = _groups(kind)
    for level in levels:
        group = groups.get((level, tuple(facts.get(name, "") for name in level)))
        if group is not None:
            return group
    raise UnknownNameError("kind", kind, catalog.names("errors"))


@cache  # a file has hundreds of groups, and every interval asks
def _groups(
    kind: str,
) -> tuple[
    tuple[tuple[str, ...], ...], Mapping[tuple[tuple[str, ...], tuple[str, ...]], Residuals]
]:
    """Return the levels of a kind, finest first, and the groups of each."""
    if kind not in catalog.names("errors"):
        raise UnknownNameError("kind", kind, catalog.names("errors"))
    content = catalog.raw("errors", kind)
    levels = tuple(tuple(level) for level in content["levels"])
    groups = {}
    for entry in content["group"]:
        key = entry["key"]
        alike = in_words(key)
        held_out = f" (held out: {alike})" if alike else " (held out)"
        words = f"{entry['rows']:,} similar measurements{held_out}"
        residuals = Residuals(entry["low"], entry["high"], entry["rows"], words)
        groups[tuple(key), tuple(key.values())] = residuals
    return levels, groups


def in_words(key: Mapping[str, str]) -> str:
    """Return what the measurements of a group have in common.

    >>> in_words({"standing": "the same architecture", "span": "one domain", "input": "any"})
    'constants inherited from the same architecture, within a node'
    """
    return ", ".join(_WORDS.get(value, value) for value in key.values() if value != "any")


def architectures_apart(own: str | None, donors: Iterable[str]) -> str:
    """Return how near those are from which a system inherits its constants.

    >>> architectures_apart("hopper", ["hopper"]), architectures_apart("hopper", ["ampere"])
    ('the same architecture', 'another architecture')
    """
    return SAME_ARCHITECTURE if set(donors) == {own} else OTHER_ARCHITECTURE

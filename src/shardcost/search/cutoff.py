"""Which cells need no exact time: those whose lower bound says that they change nothing.

A search keeps the best cells, those that no other beats in both of two figures, the best with each
value of each axis, and the best that a little more memory would hold. All of them become worse as a
step takes longer, so a cell whose least time is too long for each of them is left out, and the
result is the same as if it had been priced. What a cell is held against is what others are known to
take exactly, so parts of a search may be priced in any order and anywhere: each leaves out only
what its own part, or one that it was told of, makes unnecessary (branch and bound, Land and Doig
1960, Econometrica 28(3)).
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcost.search.grid import Cells, Grid
from shardcost.search.parts import NEAR, Part, leaders_of

Mask = NDArray[np.bool_]
_FIRST: Final = 256
"""Cells with the least bounds that are priced before others are left out."""


def seeds(grid: Grid, bounds: Cells) -> Mask:
    """Return the cells to price first: by their bounds, those that a search would keep.

    Args:
        grid: The block.
        bounds: Some of its cells, with lower bounds of their times.
    """
    score, fits = grid.score(bounds), bounds.memory_bytes <= grid.limit_bytes
    chosen = np.zeros(len(score), dtype=bool)
    for some in (fits, ~fits):
        rows = np.flatnonzero(some)
        if len(rows) > _FIRST:
            rows = rows[np.argpartition(score[rows], _FIRST)[:_FIRST]]
        chosen[rows] = True
    rows = np.flatnonzero(fits)
    inside, own = bounds.some(rows), score[rows]
    for place, least in grid.least(inside, own).items():
        leads = np.zeros(len(least), dtype=bool)
        for axis in grid.axes.values():
            if axis.place == place:
                best = np.full(len(axis.values), inf)
                np.minimum.at(best, axis.which, least)
                leads |= least == best[axis.which]
        at = getattr(inside, place)
        chosen[rows[leads[at] & (own == least[at])]] = True
    return chosen


class Cutoff:
    """What cells must be able to undercut to change the result of a search."""

    def __init__(self, grid: Grid, known: Part, most: int, *, distinct: bool) -> None:
        """Begin with what is known.

        Args:
            grid: The block whose cells are in question.
            known: What priced cells amount to, those of other blocks included.
            most: Best cells that are kept.
            distinct: Whether these are the best of each set of degrees, with what is near them.
        """
        self.grid = grid
        kept = leaders_of(known.best) if distinct else known.best
        full = bool(kept) and len(kept["score"]) >= most
        self._best = float(kept["score"].max()) * (NEAR if distinct else 1) if full else inf
        self._beyond = float(known.beyond["score"][0]) if known.beyond else inf
        self._front = known.front
        own = (known.by_axis.get(key, inf) for key in grid.question.own.items())
        self._by_axis: dict[str, Any] = {"family": max(own)}
        for name, axis in grid.axes.items():
            best = np.array([known.by_axis.get((name, value), inf) for value in axis.values])
            most = self._by_axis.get(axis.place, 0.0)
            self._by_axis[axis.place] = np.maximum(most, best[axis.which])

    def passed(self, bounds: Cells) -> Mask:
        """Return the cells that may change the result, by lower bounds of their times."""
        grid = self.grid
        score, fits = grid.score(bounds), bounds.memory_bytes <= grid.limit_bytes
        by_axis = np.maximum.reduce(
            [column[getattr(bounds, place)] for place, column in self._by_axis.items()]
        )
        ahead = (score <= self._best) | (score < by_axis)
        x, y = grid.question.plane(grid.figures(bounds))
        passed: Mask = np.where(fits, ahead | ~self._beaten(x, y), score <= self._beyond)
        return passed

    def _beaten(self, x: Any, y: Any) -> Mask:
        """Return where a known cell is better in both figures of the plane, or in one and equal."""
        if not self._front:
            return np.zeros(len(x), dtype=bool)
        front_x, front_y = self._front["x"], self._front["y"]
        place = np.searchsorted(front_x, x, side="right") - 1
        there = np.maximum(place, 0)
        better = (front_x[there] < x) | (front_y[there] < y)
        beaten: Mask = (place >= 0) & (front_y[there] <= y) & better
        return beaten

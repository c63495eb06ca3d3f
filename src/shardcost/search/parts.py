"""What a block of cells amounts to, and how the answers of blocks are joined: `Part`.

Parts add up in any order to the same answer: cells have numbers, and of two that are equally good
the one with fewer devices counts, then with less memory, then with the lower number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcost.errors import Reason
from shardcost.records import dataclass

Columns = dict[str, NDArray[Any]]
"""A table: columns of one length by name."""
KEPT: Final = 64
"""Best cells that a part keeps unless more are asked for."""
NEAR: Final = 1.05
"""Cells of the same degrees with scores up to so many times the best one's are variants of it."""
_DEGREES: Final = ("question", "gpus", "tp", "cp", "pp", "dp", "ep")
"""What cells that really differ differ in."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some cells of a search, counted and the best of them kept."""

    considered: int = 0
    feasible: int = 0
    skipped: int = 0
    """Of the feasible cells, those whose lower bound of the time rules them out: not priced."""
    rejected: Counter[Reason] = field(default_factory=Counter)
    best: Columns = field(default_factory=dict)
    """By score, best first; of a search for distinct layouts with the variants of each."""
    front: Columns = field(default_factory=dict)
    """Cells that no other beats in both of two figures, `x` and `y`."""
    beyond: Columns = field(default_factory=dict)
    """The best cell that a little more memory would hold."""
    smallest: Columns = field(default_factory=dict)
    """The cell with the least memory of all that are possible."""
    by_axis: Mapping[tuple[str, Any], float] = field(default_factory=dict)
    """The best score with each value of each axis."""
    table: Columns = field(default_factory=dict)
    """All feasible cells, where they are to be kept."""


def joined(parts: Sequence[Part], most: int = KEPT, *, distinct: bool = False) -> Part:
    """Return some parts as one; their tables are left out."""
    rejected: Counter[Reason] = Counter()
    by_axis: dict[tuple[str, Any], float] = {}
    for part in parts:
        rejected.update(part.rejected)
        for key, score in part.by_axis.items():
            by_axis[key] = min(score, by_axis.get(key, np.inf))
    smallest = stacked([part.smallest for part in parts])
    best = stacked([part.best for part in parts])
    return Part(
        considered=sum(part.considered for part in parts),
        feasible=sum(part.feasible for part in parts),
        skipped=sum(part.skipped for part in parts),
        rejected=rejected,
        best=distinct_of(best, most) if distinct else best_of(best, most),
        front=front_of(stacked([part.front for part in parts])),
        beyond=best_of(stacked([part.beyond for part in parts]), 1),
        smallest=best_of(smallest, 1, "memory_bytes"),
        by_axis=by_axis,
    )


def stacked(tables: Iterable[Columns]) -> Columns:
    """Return the rows of some tables, of which some may be empty."""
    full = [each for each in tables if each]
    if len(full) < 2:
        return full[0] if full else {}
    return {name: np.concatenate([each[name] for each in full]) for name in full[0]}


def rows_of(table: Columns, which: Any) -> Columns:
    """Return some rows of a table."""
    return {name: column[which] for name, column in table.items()}


def best_of(table: Columns, most: int, by: str = "score") -> Columns:
    """Return the best rows of a table, best first."""
    if not table:
        return table
    return rows_of(table, best_rows(table[by], _ties(table), most))


def distinct_of(table: Columns, most: int) -> Columns:
    """Return the best row of each set of degrees, and its variants, of the best sets."""
    if not table:
        return table
    groups = _groups(table)[1]
    return rows_of(table, distinct_rows(table["score"], groups, _ties(table), most))


def leaders_of(table: Columns) -> Columns:
    """Return the first row of each set of degrees."""
    return rows_of(table, np.sort(_groups(table)[0])) if table else table


def _groups(table: Columns) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the first row of each set of degrees, and of each row which set it has."""
    columns = [table[name] for name in _DEGREES]
    order = np.lexsort(columns)
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = np.logical_or.reduce([np.diff(column[order]) != 0 for column in columns])
    groups = np.empty(len(order), dtype=np.intp)
    groups[order] = np.cumsum(starts) - 1
    return order[starts], groups


def degrees_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what makes a row really differ from others."""
    return tuple(row[name] for name in _DEGREES)


def _ties(table: Columns) -> tuple[Any, ...]:
    return table["gpus"], table["memory_bytes"], table["cell"]


def best_rows(score: Any, ties: Sequence[Any], most: int) -> NDArray[np.intp]:
    """Return which rows are best, best first; the first of the `ties` that differs decides."""
    rows = np.arange(len(score))
    if len(score) > most:
        worst = np.partition(score, most - 1)[most - 1]
        rows = np.flatnonzero(score <= worst)
    order = np.lexsort([each[rows] for each in (*reversed(ties), score)])
    return rows[order][:most]


def distinct_rows(
    score: Any, group: NDArray[np.integer[Any]], ties: Sequence[Any], most: int
) -> NDArray[np.intp]:
    """Return the rows near the best of their group, of the best groups, best first.

    Which groups are best is known at the end only, so a row is kept as long as its group may be
    among them: up to `NEAR` times the score of the last of the best groups.

    >>> score, group = np.array([1.0, 1.04, 1.2, 1.3, 1.31]), np.array([0, 0, 0, 1, 1])
    >>> distinct_rows(score, group, [np.arange(5)], 2).tolist()
    [0, 1, 3, 4]
    """
    best = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(best, group, score)
    last = np.partition(best, most - 1)[most - 1] if len(best) > most else np.inf
    rows = np.flatnonzero(score <= NEAR * np.minimum(best, last)[group])
    return rows[best_rows(score[rows], [each[rows] for each in ties], len(rows))]


def front_of(table: Columns) -> Columns:
    """Return the rows that no other beats in both `x` and `y`, in the order of `x`."""
    return rows_of(table, front_rows(table["x"], table["y"], _ties(table))) if table else table


def front_rows(x: Any, y: Any, ties: Sequence[Any]) -> NDArray[np.intp]:
    """Return which cells no other beats in both figures, which are to be small.

    >>> front_rows(np.array([1, 2, 3, 3]), np.array([5, 5, 4, 2]), [np.arange(4)]).tolist()
    [0, 3]
    """
    rows = np.arange(len(x))
    for best in (np.argmin(x), np.argmin(y)) if len(x) else ():
        # Most cells are beaten by one of the two ends: sorting only the rest is much faster.
        equal = (x[rows] == x[best]) & (y[rows] == y[best])
        rows = rows[(x[rows] < x[best]) | (y[rows] < y[best]) | equal]
    rows = rows[np.lexsort([each[rows] for each in (*reversed(ties), y, x)])]
    least = np.minimum.accumulate(y[rows]) if len(rows) else y[rows]
    ahead = np.ones(len(rows), dtype=bool)
    ahead[1:] = y[rows][1:] < least[:-1]
    return rows[ahead]

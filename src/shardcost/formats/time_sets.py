"""Sets of points in time, as disjoint intervals in order: what is busy when, and what covers what.

A trace has millions of kernels, most of them back to back. `Union` takes their intervals as they
come and joins them now and then, so that memory holds only those that stand apart.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_PENDING: Final = 2**19
_MOST: Final = 2**21
"""Intervals that are kept apart; 1 GB of trace has less than a million kernels."""


class Intervals(NamedTuple):
    """Disjoint intervals, in order."""

    starts: Floats
    ends: Floats

    @property
    def total(self) -> float:
        """Length of all of them."""
        return float(np.sum(self.ends - self.starts))

    def shifted(self, origin: float, scale: float) -> Intervals:
        """Return the intervals counted from another origin, in another unit."""
        return Intervals((self.starts - origin) * scale, (self.ends - origin) * scale)

    def within(self, starts: Floats, ends: Floats) -> Floats:
        """Return how much of each of other intervals these cover.

        >>> here = united(np.array([0.0, 4.0]), np.array([2.0, 6.0]))
        >>> here.within(np.array([1.0, 2.5]), np.array([5.0, 3.0])).tolist()
        [2.0, 0.0]
        """
        return self._until(ends) - self._until(starts)

    def _until(self, times: Floats) -> Floats:
        """Return how much of these lies before each of some times."""
        if not len(self.starts):
            return np.zeros(np.shape(times))
        before = np.concatenate([[0.0], np.cumsum(self.ends - self.starts)])
        last = np.searchsorted(self.starts, times, side="right") - 1
        at = np.maximum(last, 0)
        inside = np.minimum(times, self.ends[at]) - self.starts[at]
        return np.where(last >= 0, before[at] + np.maximum(inside, 0.0), 0.0)


NONE: Final = Intervals(np.zeros(0), np.zeros(0))


def united(starts: Floats, ends: Floats) -> Intervals:
    """Return the points that any of some intervals holds, whatever their order.

    >>> united(np.array([5.0, 0.0, 1.0]), np.array([6.0, 2.0, 3.0]))
    Intervals(starts=array([0., 5.]), ends=array([3., 6.]))
    """
    if not len(starts):
        return NONE
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    apart = np.concatenate([[True], starts[1:] > reach[:-1]])
    last = np.concatenate([np.flatnonzero(apart)[1:] - 1, [len(starts) - 1]])
    return Intervals(starts[apart], reach[last])


def union_of(*sets: Intervals) -> Intervals:
    """Return the points that any of some sets holds."""
    return united(
        np.concatenate([each.starts for each in sets]), np.concatenate([each.ends for each in sets])
    )


class Union:
    """Intervals as they come, joined now and then."""

    def __init__(self) -> None:
        self.starts = array("d")
        self.ends = array("d")
        self.closed = 0
        """Gaps that were closed, the shortest first, because there were too many."""
        self._joined = NONE

    def settle(self) -> None:
        """Join what has come, if it is much."""
        if len(self.starts) >= _PENDING:
            self._join()

    def intervals(self) -> Intervals:
        """Return all of them, joined."""
        self._join()
        return self._joined

    def _join(self) -> None:
        come = Intervals(
            np.frombuffer(self.starts, dtype=np.float64) if self.starts else np.zeros(0),
            np.frombuffer(self.ends, dtype=np.float64) if self.ends else np.zeros(0),
        )
        self._joined = self._bounded(union_of(self._joined, come))
        self.starts, self.ends = array("d"), array("d")

    def _bounded(self, found: Intervals) -> Intervals:
        """Return at most so many intervals, with the shortest gaps closed."""
        if len(found.starts) <= _MOST:
            return found
        gaps = found.starts[1:] - found.ends[:-1]
        kept = gaps > np.partition(gaps, len(gaps) // 2)[len(gaps) // 2]
        self.closed += len(gaps) - int(np.count_nonzero(kept))
        first, last = np.concatenate([[True], kept]), np.concatenate([kept, [True]])
        return Intervals(found.starts[first], found.ends[last])

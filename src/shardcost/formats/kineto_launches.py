"""Which CPU operation launched a kernel that does not say itself what it sends.

An operation is found by the ``External id`` that a kernel shares with it or, through the launch
that shares the kernel's ``correlation``, as the one that was running on the launching thread. Any
of them may stand before or after the others in the file, so all are kept, in columns, and joined at
the end.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]


class Columns:
    """Whole numbers and floats in columns, added row by row."""

    def __init__(self, types: str) -> None:
        self.columns = [array(code) for code in types]

    def __len__(self) -> int:
        return len(self.columns[0])

    def add(self, *row: float) -> None:
        """Add a row."""
        for column, value in zip(self.columns, row, strict=True):
            column.append(value)  # type: ignore[arg-type]

    def arrays(self) -> list[NDArray[Any]]:
        """Return the columns, which nothing can be added to any more."""
        types = {"q": np.int64, "d": np.float64}
        return [
            np.frombuffer(column, types[column.typecode])
            if column
            else np.zeros(0, types[column.typecode])
            for column in self.columns
        ]


class Launched:
    """CPU operations that launch collectives, found by what a kernel knows of them.

    Columns of operations are thread, start, end, external id, and what they say of their call,
    which is `said`; those of launches are correlation, thread and start.
    """

    def __init__(self, operations: Columns, launches: Columns) -> None:
        self.thread, self.start, self.end, self.external, *self.said = operations.arrays()
        launched = launches.arrays()
        self._by_external = np.argsort(self.external, kind="stable")
        order = np.argsort(launched[0], kind="stable")
        self.launch, self.launch_thread, self.launch_start = (column[order] for column in launched)

    def operation_of(self, external: Whole, correlation: Whole) -> Whole:
        """Return the number of each kernel's operation, -1 where there is none.

        Where both ids are the same number, the external one is not that of an operation.
        """
        none = np.full(len(external), -1)
        if not len(self.thread):
            return none
        place, same = _looked_up(self.external[self._by_external], external)
        sure = same & (external > 0) & (external != correlation)
        return np.where(sure, self._by_external[place], self._running(correlation))

    def _running(self, correlation: Whole) -> Whole:
        """Return which operation ran on the launching thread when a kernel was launched."""
        if not len(self.launch):
            return np.full(len(correlation), -1)
        place, launched = _looked_up(self.launch, correlation)
        when, where = self.launch_start[place], self.launch_thread[place]
        # Operations and launches in one order: before each launch stands what began last.
        count = len(self.start)
        late = np.repeat([0, 1], [count, len(when)])
        times, threads = np.append(self.start, when), np.append(self.thread, where)
        order = np.lexsort((late, times, threads))
        last = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
        candidate = np.empty(len(when), dtype=np.int64)
        is_launch = order >= count
        candidate[order[is_launch] - count] = np.where(last < 0, -1, order[last])[is_launch]
        inside = (self.thread[candidate] == where) & (when <= self.end[candidate])
        sound = launched & (correlation > 0) & (candidate >= 0) & inside
        return np.where(sound, candidate, -1)


def _looked_up(keys: Whole, wanted: Whole) -> tuple[Whole, NDArray[np.bool_]]:
    """Return where each wanted number stands among sorted keys, and whether it does."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return place, keys[place] == wanted

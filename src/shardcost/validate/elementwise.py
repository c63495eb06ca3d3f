"""Predicts the rows of a table of memory-bound kernels.

A table states the size of one array; an operation reads and writes several.
"""

from __future__ import annotations

from typing import Final

from shardcost.errors import UnknownNameError
from shardcost.formats.tables import Row, Table
from shardcost.kernels.elementwise import elementwise_time_s
from shardcost.machine import CATALOG, Fitted
from shardcost.validate.predictions import Derived, Predictions, by_row, kernels_of, whole_cell

MEASURED: Final = "time_us"
ARRAYS_MOVED: Final = {"copy": 2, "add_inplace": 3}
"""Arrays that an operation reads and writes: ``x += y`` reads two and writes one."""


def predictions(table: Table, fitted: Fitted = CATALOG) -> Predictions:
    """Return the predicted time of every row, in microseconds."""
    return by_row(table, lambda row: _time_us(row, fitted))


def _time_us(row: Row, fitted: Fitted) -> float:
    if row["op"] not in ARRAYS_MOVED:
        raise UnknownNameError("op", row["op"], ARRAYS_MOVED)
    moved = ARRAYS_MOVED[row["op"]] * whole_cell(row, "bytes")
    return 1e6 * float(elementwise_time_s(kernels_of(row["gpu"], fitted), moved))


DERIVED: Final[Derived] = {}

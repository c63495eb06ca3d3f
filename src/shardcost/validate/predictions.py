"""What predicting a table's rows yields, and the helpers that every kind of table shares.

A kind of table has a module of its name in this package, with the column that was measured
(`MEASURED`), the function `predictions` and the columns that follow from others, to group predicted
rows by (`DERIVED`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardcost.cluster import Cluster
from shardcost.errors import (
    BadTypeError,
    BadValueError,
    FormatError,
    ShardcostError,
    UnknownNameError,
    shown,
)
from shardcost.formats.tables import Row, Table, number
from shardcost.machine import CATALOG, Fitted, KernelConstants, machine_of
from shardcost.records import NamedTuple, dataclass

Floats = NDArray[np.float64]
Derived = Mapping[str, Callable[[Row], str]]
Case = TypeVar("Case", bound=Hashable)
Meaning = TypeVar("Meaning")


class Predictions(NamedTuple):
    """What is predicted for each row of a table."""

    values: Floats
    """In the unit of the measured column; NaN where a row is skipped."""
    reasons: list[str]
    """Why a row is skipped; empty where it is not."""


@dataclass(frozen=True, eq=False)
class Cases(Generic[Case]):
    """Rows of a table that are predicted together: they share a case and differ in sizes alone."""

    rows: dict[Case, list[int]]
    sizes: Floats
    """One line for each row of the table; NaN where it has a reason."""
    reasons: list[str]
    """Why a row has no case; empty where it has one."""

    def predictions(self, predict: Callable[[Case, list[int]], Floats]) -> Predictions:
        """Return what `predict` says of each case's rows; rows that it refuses get its reason."""
        values = np.full(len(self.reasons), np.nan)
        reasons = list(self.reasons)
        for case, places in self.rows.items():
            try:
                predicted = predict(case, places)
                if not np.isfinite(predicted).all():
                    raise BadValueError("predicted time", predicted, "finite")
                values[places] = predicted
            except ShardcostError as error:
                for i in places:
                    reasons[i] = reason_of(error)
        return Predictions(values, reasons)


def cases_of(
    table: Table,
    case_of: Callable[[Row], Case],
    sizes_of: Callable[[Row], Sequence[float]] = lambda _: (),
    width: int = 0,
) -> Cases[Case]:
    """Return the rows of a table by their case.

    Args:
        table: What was measured.
        case_of: What a row is of, but for its sizes; raises where that cannot be.
        sizes_of: The sizes of a row, `width` of them.
        width: How many sizes a row has.
    """
    rows: dict[Case, list[int]] = {}
    sizes = np.full((table.rows, width), np.nan)
    reasons = [""] * table.rows
    for i, row in enumerate(table.records()):
        try:
            own = sizes_of(row)
            rows.setdefault(case_of(row), []).append(i)
            sizes[i] = own
        except ShardcostError as error:
            reasons[i] = reason_of(error)
    return Cases(rows, sizes, reasons)


class KernelCase(Hashable, Protocol):
    """Kernels on a device, but for their sizes."""

    @property
    def gpu(self) -> str:
        """The system of the catalog that has the device."""

    def time_s(self, sizes: Floats, on: KernelConstants, /) -> Floats:
        """Return the seconds of some rows of sizes."""


OfKernels = TypeVar("OfKernels", bound=KernelCase)


def kernel_predictions(
    cases: Callable[[Table], Cases[OfKernels]],
) -> Callable[..., Predictions]:
    """Return the `predictions` of a kind of table whose rows are kernels, by their cases."""

    def predictions(table: Table, fitted: Fitted = CATALOG) -> Predictions:
        """Return the predicted time of every row, in microseconds."""
        known = cases(table)

        def predict(case: OfKernels, places: list[int]) -> Floats:
            return 1e6 * case.time_s(known.sizes[places], kernels_of(case.gpu, fitted))

        return known.predictions(predict)

    return predictions


def kernels_of(system: str, fitted: Fitted = CATALOG) -> KernelConstants:
    """Return the kernel constants of a system of the catalog."""
    return machine_of(Cluster.named(system), fitted=fitted).kernels


def by_row(table: Table, predict: Callable[[Row], float]) -> Predictions:
    """Return what `predict` says of every row; a row that it refuses gets its reason."""
    values = np.full(table.rows, np.nan)
    reasons = [""] * table.rows
    for i, row in enumerate(table.records()):
        try:
            values[i] = predict(row)
        except ShardcostError as error:
            reasons[i] = reason_of(error)
    return Predictions(values, reasons)


def whole_cell(row: Row, column: str, least: int = 1, most: int = 10**15) -> int:
    """Return the whole number in a cell."""
    rule = f"a whole number from {least} to {most}"
    value = number(row, column, least - 1, most, rule)
    if value != int(value):
        raise BadValueError(column, row[column], rule)
    return int(value)


SERVERS: Final[Mapping[str, str]] = {"l40s": "l40s_peers"}
"""Machines whose collectives were measured by themselves, with those that whole runs used: tables
name the board. Runs with L40S are NVIDIA's own, on servers in which all boards are peers; the host
of the collectives stages groups of more than two."""


def count_or(row: Row, column: str, blank: int, least: int = 0, most: int = 10**15) -> int:
    """Return a count, and `blank` where its cell is empty or the table has no such column."""
    return whole_cell(row, column, least, most) if row.get(column) else blank


def meaning_of(row: Row, column: str, known: Mapping[str, Meaning], default: str = "") -> Meaning:
    """Return what the word in a cell stands for; where it is empty, what the default does."""
    word = row.get(column) or default
    if word not in known:
        raise UnknownNameError(column, word, filter(None, known))
    return known[word]


def band_of(bands: Mapping[str, float], value: float) -> str:
    """Return the name of the first range that a value is in, by the largest value of each."""
    return next(name for name, most in bands.items() if value <= most)


def reason_of(error: ShardcostError) -> str:
    """Return why a row is skipped: the error's rule, without the value that the row shows anyway.

    So rows that break one rule with different values count as one reason.
    """
    if isinstance(error, UnknownNameError):
        return f"{error.argument} unknown: {shown(error.value)}"
    if isinstance(error, BadValueError | BadTypeError) and not isinstance(error, FormatError):
        return f"{error.argument} must be {error.rule}"
    return str(error)

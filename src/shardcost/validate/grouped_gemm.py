"""Predictions of measured grouped GEMMs: rows of many experts by the weights of each."""

from __future__ import annotations

from typing import Final, NamedTuple

from shardcost.dtypes import weight_format
from shardcost.formats.tables import Row, Table
from shardcost.kernels.experts import grouped_gemm_time_s
from shardcost.machine import KernelConstants
from shardcost.validate.experts import ROW_BANDS
from shardcost.validate.predictions import (
    Cases,
    Derived,
    Floats,
    band_of,
    cases_of,
    kernel_predictions,
    whole_cell,
)

MEASURED: Final = "time_us"
_COLUMNS: Final = ("routed_rows", "n", "k", "distinct_experts", "largest_group")
_MOST: Final = 10**9
_DTYPE: Final = "bf16"


class GroupedCase(NamedTuple):
    """Grouped GEMMs on a device in a number format, but for their shapes."""

    gpu: str
    dtype: str

    def time_s(self, sizes: Floats, on: KernelConstants) -> Floats:
        """Return the seconds of some rows of sizes, as `cases` has them."""
        rows, n, k, groups, largest_group = sizes.T
        found: Floats = grouped_gemm_time_s(
            on, self.dtype, rows, n, k, groups=groups, largest_group=largest_group
        )
        return found


def cases(table: Table) -> Cases[GroupedCase]:
    """Return the rows of a table by device and format."""
    return cases_of(table, _case, _sizes, len(_COLUMNS))


predictions: Final = kernel_predictions(cases)


def rows_per_expert(row: Row) -> str:
    """Return the range of rows per expert that a row is in."""
    rows, *_, groups, _largest = _sizes(row)
    return band_of(ROW_BANDS, rows / groups)


def _case(row: Row) -> GroupedCase:
    dtype = row.get("dtype") or _DTYPE
    weight_format(dtype)
    return GroupedCase(row["gpu"], dtype)


def _sizes(row: Row) -> list[float]:
    return [float(whole_cell(row, column, most=_MOST)) for column in _COLUMNS]


DERIVED: Final[Derived] = {"rows_per_expert": rows_per_expert}

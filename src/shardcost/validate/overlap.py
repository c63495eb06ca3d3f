"""Predictions of GEMMs beside another kernel that holds some of the SMs.

A row is one GEMM in bf16 while a kernel of ``ctas`` blocks, one to an SM, copies and adds, as a
collective's kernel does. It takes SMs and memory bandwidth alike.
"""

from __future__ import annotations

from typing import Final

from shardcost.formats.tables import Table
from shardcost.kernels.gemm import copy_bytes_per_s, gemm_time_s
from shardcost.machine import CATALOG, Fitted
from shardcost.validate import gemm
from shardcost.validate.gemm import GemmCase, m_band
from shardcost.validate.predictions import Cases, Derived, Floats, Predictions

MEASURED: Final = "gemm_us_overlapped"
_DTYPE: Final = "bf16"
"""Such tables have no column of number formats: all are of this one."""


def cases(table: Table) -> Cases[GemmCase]:
    """Return the rows of a table by device; their sizes are m, n, k and the SMs taken."""
    return gemm.cases(table, ("m", "n", "k", "ctas"), lambda row: GemmCase(row["gpu"], _DTYPE))


def predictions(table: Table, fitted: Fitted = CATALOG) -> Predictions:
    """Return the predicted time of every row's GEMM, in microseconds."""
    known = cases(table)

    def predict(case: GemmCase, places: list[int]) -> Floats:
        m, n, k, taken = known.sizes[places].T
        on = case.kernels(fitted)
        lost = copy_bytes_per_s(on, taken)
        time_s: Floats = gemm_time_s(on, case.dtype, m, n, k, sms_taken=taken, memory_taken=lost)
        return 1e6 * time_s

    return known.predictions(predict)


DERIVED: Final[Derived] = {"m_band": m_band}

"""Predictions of fp8 GEMMs and of what converts their input: apart, and with the norm before it.

A row has one figure of one shape: the GEMM alone, the conversion of its ``m x k`` input with a
scale per row, the RMS norm that makes the input, or norm and conversion in one kernel. All were
replayed alone, so weights that fit in the L2 cache are read from there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from shardcost.errors import UnknownNameError
from shardcost.formats.tables import Row, Table
from shardcost.kernels.elementwise import row_kernel_time_s
from shardcost.kernels.gemm import gemm_time_s
from shardcost.machine import KernelConstants
from shardcost.validate.gemm import m_band, shape_of
from shardcost.validate.predictions import (
    Cases,
    Derived,
    Floats,
    cases_of,
    kernel_predictions,
)

MEASURED: Final = "measured"
_GEMM: Final = "gemm_us"
ROW_KERNELS: Final = {
    "quantize_us": "quantize",
    "norm_us": "norm",
    "norm_and_quantize_us": "norm_quantize",
}


class ConversionCase(NamedTuple):
    """A figure on a device, but for its shape."""

    gpu: str
    figure: str

    def time_s(self, sizes: Floats, on: KernelConstants) -> Floats:
        """Return the seconds of some rows of m, n and k."""
        m, n, k = sizes.T
        if self.figure == _GEMM:
            return np.asarray(gemm_time_s(on, "fp8", m, n, k, warm=True))
        return np.asarray(row_kernel_time_s(on, ROW_KERNELS[self.figure], m, k))


def cases(table: Table) -> Cases[ConversionCase]:
    """Return the rows of a table by device and figure; their sizes are m, n and k."""
    return cases_of(table, _case, shape_of, 3)


predictions: Final = kernel_predictions(cases)


def _case(row: Row) -> ConversionCase:
    if row["figure"] not in {_GEMM, *ROW_KERNELS}:
        raise UnknownNameError("figure", row["figure"], (_GEMM, *ROW_KERNELS))
    return ConversionCase(row["gpu"], row["figure"])


DERIVED: Final[Derived] = {"m_band": m_band}

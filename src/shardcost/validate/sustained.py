"""Predictions of GEMMs that run alone after a pause, and again and again for seconds.

A row has one figure of one shape: ``burst_us``, the first GEMM after a pause, which waits for the
clock to rise, or ``sustained_us``, the mean of GEMMs that have followed one another without a gap
for as long as the board's power takes to limit the clock.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from shardcost.dtypes import canonical_dtype
from shardcost.errors import UnknownNameError
from shardcost.formats.tables import Row, Table
from shardcost.kernels.gemm import gemm_time_s
from shardcost.kernels.power import sustained_time_s
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
BURST, SUSTAINED = "burst_us", "sustained_us"


class SustainedCase(NamedTuple):
    """A figure of GEMMs on a device in a number format, but for their shapes."""

    gpu: str
    dtype: str
    figure: str

    def time_s(self, sizes: Floats, on: KernelConstants) -> Floats:
        """Return the seconds of some rows of m, n and k."""
        m, n, k = sizes.T
        time_s = gemm_time_s(on, self.dtype, m, n, k)
        if self.figure == SUSTAINED:
            return np.asarray(sustained_time_s(on, self.dtype, 2 * m * n * k, time_s))
        waited_us: float = on.section("gemm", "sustained").constants["after_pause_us"]
        return np.asarray(time_s) + 1e-6 * waited_us


def cases(table: Table) -> Cases[SustainedCase]:
    """Return the rows of a table by device, format and figure; their sizes are m, n and k."""
    return cases_of(table, _case, shape_of, 3)


predictions: Final = kernel_predictions(cases)


def _case(row: Row) -> SustainedCase:
    if row["figure"] not in {BURST, SUSTAINED}:
        raise UnknownNameError("figure", row["figure"], (BURST, SUSTAINED))
    return SustainedCase(row["gpu"], canonical_dtype(row["dtype"]), row["figure"])


DERIVED: Final[Derived] = {"m_band": m_band}

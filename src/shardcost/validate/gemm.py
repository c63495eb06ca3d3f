"""Predictions of measured GEMMs, one device and number format at a time.

A row is one GEMM of ``m x k`` by ``k x n``; ``gpu`` names a cluster of the catalog that has the
device, ``framework`` a compiler that chose the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from shardcost.cluster import Cluster
from shardcost.dtypes import BITS, canonical_dtype
from shardcost.formats.tables import Row, Table
from shardcost.kernels.gemm import conversion_time_s, gemm_time_s
from shardcost.machine import CATALOG, Fitted, KernelConstants, machine_of
from shardcost.validate.predictions import (
    Cases,
    Derived,
    Floats,
    Predictions,
    band_of,
    cases_of,
    meaning_of,
    whole_cell,
)

MEASURED: Final = "time_us"
M_BANDS: Final = {"<=16": 16, "<=128": 128, "<=1024": 1024, ">1024": np.inf}
"""Names of ranges of m, each with the largest in it."""
_ENGINE: Final = "trtllm"
"""Its GEMMs in fewer bits were measured with the conversion of their input, others' without."""
FRAMEWORKS: Final = ("xla",)
"""Compilers that choose kernels; their constants are sections of a device that begin so."""
_WIDE: Final = 16
LONGEST: Final = 10**9
"""The longest side of a GEMM: 10^27 operations take any device longer than a year."""


class GemmCase(NamedTuple):
    """GEMMs on a device in a number format, but for their shapes."""

    gpu: str
    dtype: str
    converted: bool = False
    """The time contains the conversion of the input to fewer bits."""
    framework: str = ""
    """What chose the kernels, where that was no library or engine."""
    timed_with: str | None = None
    """The engine whose GEMMs were timed, where it has constants of its own."""

    def kernels(self, fitted: Fitted = CATALOG) -> KernelConstants:
        """Return the constants by which its GEMMs run."""
        constants = machine_of(Cluster.named(self.gpu), fitted=fitted).kernels
        return replace(
            constants,
            autotuned=False,
            kernels=self.framework or None,
            timed_with=self.timed_with,
        )


def shape_of(row: Row, columns: Sequence[str] = ("m", "n", "k")) -> list[int]:
    """Return the sizes of a row's GEMM."""
    return [whole_cell(row, name, most=LONGEST) for name in columns]


def cases(
    table: Table,
    columns: Sequence[str] = ("m", "n", "k"),
    case_of: Callable[[Row], GemmCase] | None = None,
) -> Cases[GemmCase]:
    """Return the rows of a table by device and format; their sizes are those of some columns."""
    return cases_of(table, case_of or _case, lambda row: shape_of(row, columns), len(columns))


def predictions(table: Table, fitted: Fitted = CATALOG) -> Predictions:
    """Return the predicted time of every row, in microseconds."""
    known = cases(table)

    def predict(case: GemmCase, places: list[int]) -> Floats:
        on, (m, n, k) = case.kernels(fitted), known.sizes[places].T
        time_s: Floats = gemm_time_s(on, case.dtype, m, n, k)
        if case.converted:
            time_s = time_s + conversion_time_s(on, case.dtype, m, k)
        return 1e6 * time_s

    return known.predictions(predict)


def m_band(row: Row) -> str:
    """Return the range of m that a row is in.

    >>> m_band({"m": "64"})
    '<=128'
    """
    return band_of(M_BANDS, whole_cell(row, "m", most=LONGEST))


def _case(row: Row) -> GemmCase:
    dtype = canonical_dtype(row["dtype"])
    timed_with = _ENGINE if measured_with([row.get("dataset", "")]) == _ENGINE else None
    narrow = BITS[dtype] < _WIDE and timed_with == _ENGINE
    framework = meaning_of(row, "framework", {"": "", **{name: name for name in FRAMEWORKS}})
    return GemmCase(row["gpu"], dtype, narrow, framework, timed_with)


def measured_with(datasets: Iterable[str]) -> str:
    """Return the software whose kernels data sets timed, which their names tell.

    >>> measured_with(["aic_gemm_h100_sxm_trtllm_1.3.0rc20"]), measured_with(["own_h200_torch2.11"])
    ('trtllm', 'torch')
    """
    return _ENGINE if all(f"_{_ENGINE}_" in name for name in datasets) else "torch"


DERIVED: Final[Derived] = {"m_band": m_band}

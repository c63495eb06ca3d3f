"""Predictions of measured matrix products, one device and number format at a time.

A row is one product of ``m x k`` by ``k x n``; ``gpu`` names a cluster of the catalog that has the
device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcost.cluster import Cluster, Device
from shardcost.dtypes import BITS, canonical_dtype
from shardcost.errors import BadValueError, ShardcostError
from shardcost.formats.tables import Row, Table
from shardcost.kernels.constants import section_measured_with
from shardcost.kernels.gemm import gemm_section, gemm_time_s
from shardcost.validate.predictions import Predictions, reason_of, whole_cell

Floats = NDArray[np.float64]

MEASURED: Final = "time_us"
M_BANDS: Final = {"<=16": 16, "<=128": 128, "<=1024": 1024, ">1024": np.inf}
"""Names of ranges of m, each with the largest in it."""
_ENGINE: Final = "trtllm"
"""Its products in fewer bits were measured with the conversion of their input, others' without."""
_WIDE: Final = 16
_LONGEST: Final = 10**9
"""The longest side of a product: 10^27 operations take any device longer than a year."""


class Question(NamedTuple):
    """What a row asks, but for its shape."""

    gpu: str
    dtype: str
    software: str = ""
    """Whose kernels were measured, where that matters."""


class Asked(NamedTuple):
    """What a table asks: its rows by question, and the rows that ask nothing sensible."""

    rows: Mapping[Question, list[int]]
    shapes: Floats
    """One column per row, the numbers in the order of the columns read; NaN beside a reason."""
    reasons: list[str]


@cache
def device_of(gpu: str) -> Device:
    """Return the device of a cluster of the catalog."""
    return Cluster.named(gpu).device


def asked(
    table: Table,
    columns: Sequence[str] = ("m", "n", "k"),
    question: Callable[[Row], Question] | None = None,
) -> Asked:
    """Return what the rows of a table ask, those that differ in shape only together."""
    reasons = [""] * table.rows
    rows: dict[Question, list[int]] = {}
    shapes = np.full((len(columns), table.rows), np.nan)
    for i, row in enumerate(table.records()):
        try:
            shapes[:, i] = [whole_cell(row, column, most=_LONGEST) for column in columns]
            rows.setdefault((question or _question)(row), []).append(i)
        except ShardcostError as error:
            reasons[i] = reason_of(error)
    return Asked(rows, shapes, reasons)


def answered(table: Table, found: Asked, predict: Callable[[Question, Floats], Floats]) -> Floats:
    """Return what `predict` says of each question's shapes; rows that it refuses get its reason."""
    values = np.full(table.rows, np.nan)
    for question, places in found.rows.items():
        try:
            predicted = predict(question, found.shapes[:, places])
            if not np.isfinite(predicted).all():
                raise BadValueError("predicted time", predicted, "finite")
            values[places] = predicted
        except ShardcostError as error:
            for i in places:
                found.reasons[i] = reason_of(error)
    return values


def predictions(table: Table, *, ignore_versions: bool = False) -> Predictions:
    """Return the predicted time of every row, in microseconds."""
    del ignore_versions  # one set of constants per device and format
    found = asked(table)

    def predict(question: Question, shapes: Floats) -> Floats:
        device = device_of(question.gpu)
        constants = None
        if question.software:
            name = gemm_section(device, question.dtype).name
            constants = section_measured_with("gemm", device, question.software, name)
        time_s: Floats = gemm_time_s(device, question.dtype, *shapes, constants=constants)
        return 1e6 * time_s

    values = answered(table, found, predict)
    return Predictions(values, found.reasons)


def m_band(row: Row) -> str:
    """Return the range of m that a row is in.

    >>> m_band({"m": "64"})
    '<=128'
    """
    m = whole_cell(row, "m", most=_LONGEST)
    return next(name for name, most in M_BANDS.items() if m <= most)


def _question(row: Row) -> Question:
    dtype = canonical_dtype(row["dtype"])
    narrow = BITS[dtype] < _WIDE and measured_with([row.get("dataset", "")]) == _ENGINE
    return Question(row["gpu"], dtype, _ENGINE if narrow else "")


def measured_with(datasets: Iterable[str]) -> str:
    """Return the software whose kernels data sets timed, which their names tell.

    >>> measured_with(["aic_gemm_h100_sxm_trtllm_1.3.0rc20"]), measured_with(["own_h200_torch2.11"])
    ('trtllm', 'torch')
    """
    return _ENGINE if all(f"_{_ENGINE}_" in name for name in datasets) else "torch"


DERIVED: Final[Mapping[str, Callable[[Row], str]]] = {"m_band": m_band}
"""Columns that follow from others, to group predicted rows by."""

"""Predictions of matrix products beside another kernel that holds some of the multiprocessors.

A row is one product in bf16 while a kernel of ``ctas`` blocks, one to a multiprocessor, copies and
adds, as a collective's kernel does. It takes multiprocessors and memory bandwidth alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardcost.formats.tables import Row, Table
from shardcost.kernels.gemm import copy_bytes_per_s, gemm_time_s
from shardcost.validate.gemm import Question, answered, asked, device_of, m_band
from shardcost.validate.predictions import Predictions

Floats = NDArray[np.float64]

MEASURED: Final = "gemm_us_overlapped"
COLUMNS: Final = ("m", "n", "k", "ctas")
_DTYPE: Final = "bf16"
"""Such tables have no column of number formats: all are of this one."""


def question(row: Row) -> Question:
    """Return what a row asks, but for its shape."""
    return Question(row["gpu"], _DTYPE)


def predictions(table: Table, *, ignore_versions: bool = False) -> Predictions:
    """Return the predicted time of every row's product, in microseconds."""
    del ignore_versions  # one set of constants per device and format
    found = asked(table, COLUMNS, question)

    def predict(question: Question, shapes: Floats) -> Floats:
        m, n, k, taken = shapes
        device = device_of(question.gpu)
        time_s: Floats = gemm_time_s(
            device,
            question.dtype,
            m,
            n,
            k,
            sms_taken=taken,
            memory_taken=copy_bytes_per_s(device, taken),
        )
        return 1e6 * time_s

    values = answered(table, found, predict)
    return Predictions(values, found.reasons)


DERIVED: Final[Mapping[str, Callable[[Row], str]]] = {"m_band": m_band}
"""Columns that follow from others, to group predicted rows by."""

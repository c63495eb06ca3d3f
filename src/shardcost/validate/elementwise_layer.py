"""Predictions of memory-bound kernels of a layer, by tokens and width.

A row is one kernel, replayed alone, so that what fits in the L2 cache is read from there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from shardcost.errors import UnknownNameError
from shardcost.formats.tables import Row, Table
from shardcost.kernels.elementwise import LAYER_KERNELS, layer_kernel_time_s
from shardcost.machine import KernelConstants
from shardcost.validate.predictions import (
    Cases,
    Derived,
    Floats,
    cases_of,
    kernel_predictions,
    whole_cell,
)

MEASURED: Final = "time_us"
_PREFIX: Final = "layer_"
OPS: Final = tuple(kind.removeprefix(_PREFIX) for kind in LAYER_KERNELS if kind.startswith(_PREFIX))
"""What tables call the kernels."""


class LayerKernelCase(NamedTuple):
    """A kind of kernel on a device, but for its sizes."""

    gpu: str
    op: str

    def time_s(self, sizes: Floats, on: KernelConstants) -> Floats:
        """Return the seconds of some rows of tokens, width and bytes."""
        tokens, width, moved = sizes.T
        kind = _PREFIX + self.op
        time_s = layer_kernel_time_s(on, kind, tokens, width, moved / tokens, warm=True)
        return np.asarray(time_s)


def cases(table: Table) -> Cases[LayerKernelCase]:
    """Return the rows of a table by device and kernel; their sizes are tokens, width and bytes."""
    return cases_of(table, _case, _sizes, 3)


predictions: Final = kernel_predictions(cases)


def _case(row: Row) -> LayerKernelCase:
    if row["op"] not in OPS:
        raise UnknownNameError("op", row["op"], OPS)
    return LayerKernelCase(row["gpu"], row["op"])


def _sizes(row: Row) -> list[int]:
    return [whole_cell(row, name) for name in ("tokens", "width", "bytes")]


DERIVED: Final[Derived] = {}

"""Predictions of measured kernels of linear attention: convolution, scan and step of one layer.

A row names the kernel by the engine's own name, and the heads of one GPU. Where the convolution's
channels are left blank, they are those of queries, keys and values together.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from shardcost.cluster import Cluster
from shardcost.dtypes import BITS, canonical_dtype
from shardcost.errors import UnknownNameError
from shardcost.formats.tables import Row, Table
from shardcost.kernels.linear_attention import Sizes, linear_attention_time_s
from shardcost.machine import KernelConstants
from shardcost.machine.linear_attention import PARTS, PHASES, kind_of
from shardcost.recurrence import RULES
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
TOKEN_BANDS: Final = {"<=64": 64, "<=1024": 1024, "<=16384": 16384, ">16384": np.inf}
"""Names of ranges of tokens of all sequences together, each with the most in it."""
_MOST: Final = 10**9
_STATE_DTYPE: Final = "fp32"
_WIDTH: Final = "4"


class LinearCase(NamedTuple):
    """A kernel of linear attention on a device, but for its sizes."""

    gpu: str
    library: str
    version: str
    kernel: str
    op: str
    part: str
    phase: str

    def time_s(self, sizes: Floats, on: KernelConstants) -> Floats:
        """Return the seconds of some rows of sizes, as `cases` has them."""
        time_s: Floats = linear_attention_time_s(
            on,
            self.kernel,
            self.op,
            self.part,
            self.phase,
            Sizes(*sizes.T),
            library=self.library,
            version=self.version,
        )
        return time_s


def cases(table: Table) -> Cases[LinearCase]:
    """Return the rows of a table by device, kernel, part and phase."""
    return cases_of(table, _case, _sizes, len(Sizes._fields))


predictions: Final = kernel_predictions(cases)


def family(row: Row) -> str:
    """Return the family of kernels that a row's kernel is of.

    >>> family({"kernel": "flashkda_fwd", "part": "scan", "library": "vllm", "version": ""})
    'cutlass'
    """
    return kind_of(row["kernel"], row["part"], row["library"], row.get("version", "")).family


def part_and_phase(row: Row) -> str:
    """Return which part of a layer a row is of, and in which phase."""
    return f"{row['part']}, {row['phase']}"


def tokens(row: Row) -> str:
    """Return the range of tokens, of all sequences together, that a row is in."""
    count = whole_cell(row, "batch", most=_MOST) * whole_cell(row, "query_tokens", most=_MOST)
    return band_of(TOKEN_BANDS, count)


def _case(row: Row) -> LinearCase:
    Cluster.named(row["gpu"])
    for name, known in (("part", PARTS), ("phase", PHASES), ("op", RULES)):
        if row[name] not in known:
            raise UnknownNameError(name, row[name], known)
    version = row.get("version", "")
    named = (row["kernel"], row["op"], row["part"], row["phase"])
    return LinearCase(row["gpu"], row["library"], version, *named)


def _sizes(row: Row) -> list[float]:
    names = ("batch", "query_tokens", "k_heads", "k_dim", "v_heads", "v_dim")
    sizes = [whole_cell(row, name, most=_MOST) for name in names]
    _, _, k_heads, k_dim, v_heads, v_dim = sizes
    given = {"conv_width": row.get("conv_width") or _WIDTH}
    given["conv_channels"] = row.get("conv_channels") or str(2 * k_heads * k_dim + v_heads * v_dim)
    least = 1 if "conv" in row["part"] else 0
    channels = whole_cell(given, "conv_channels", least=least, most=_MOST)
    width = whole_cell(given, "conv_width", most=_MOST)
    state_bytes = BITS[canonical_dtype(row.get("state_dtype") or _STATE_DTYPE)] / 8
    return [*map(float, sizes), float(channels), float(width), state_bytes]


DERIVED: Final[Derived] = {"family": family, "part_and_phase": part_and_phase, "tokens": tokens}

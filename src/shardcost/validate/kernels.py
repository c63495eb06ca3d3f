"""Predictions of kernels that `shardcost measure kernels` timed: one table for all kinds.

Operands come from memory, not from the L2 cache, as in a model. Attention is torch's: flash
attention, or cuDNN's where a GPU has it; each by its own constants where the catalog has them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.cluster import Cluster
from shardcost.dtypes import canonical_dtype
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.formats.tables import Row, Table
from shardcost.kernels.attention import decode_time_s, prefill_time_s
from shardcost.kernels.elementwise import (
    LAYER_KERNELS,
    elementwise_time_s,
    layer_kernel_time_s,
)
from shardcost.kernels.experts import grouped_gemm_time_s
from shardcost.kernels.gemm import gemm_time_s
from shardcost.kernels.power import sustained_time_s
from shardcost.machine import KernelConstants
from shardcost.validate.attention import FLASH_DECODE
from shardcost.validate.predictions import (
    Cases,
    Derived,
    Floats,
    cases_of,
    kernel_predictions,
    whole_cell,
)

MEASURED: Final = "time_us"
BY: Final = ("kind", "dtype")
SIZES: Final = {
    "gemm": ("m", "n", "k"),
    "grouped_gemm": ("m", "n", "k", "groups", "largest_group"),
    "prefill": ("batch", "heads", "kv_heads", "head_dim", "query_tokens", "context_tokens"),
    "decode": ("batch", "heads", "kv_heads", "head_dim", "query_tokens", "context_tokens"),
    "copy": ("tokens", "width", "bytes_moved"),
    "add": ("tokens", "width", "bytes_moved"),
    "rms_norm": ("tokens", "width", "bytes_moved"),
    "silu_mul": ("tokens", "width", "bytes_moved"),
}
"""The columns of sizes that a kind of kernel has."""
_WIDTH: Final = max(map(len, SIZES.values()))
_MODES: Final = ("graph", "call", "burst", "sustained")
_IN_BURST: Final = 3
"""GEMMs in a row after a pause, of which the first waits for the clock to rise."""
LIBRARIES: Final = {"flash": "flash2", "cudnn": "cudnn"}
"""What sections of the catalog call torch's kernels of attention."""
_MOST: Final = 10**12


class KernelRow(NamedTuple):
    """A kernel on a device, but for its sizes."""

    gpu: str
    kind: str
    dtype: str
    kernel: str
    mode: str

    def time_s(self, sizes: Floats, on: KernelConstants) -> Floats:
        """Return the seconds of some rows of sizes."""
        own = sizes.T[: len(SIZES[self.kind])]
        on = replace(on, power_limited=True)
        time_s: Any
        if self.kind == "gemm":
            time_s = self._gemm_s(on, *own)
        elif self.kind == "grouped_gemm":
            m, n, k, groups, fullest = own
            time_s = grouped_gemm_time_s(
                on, self.dtype, m, n, k, groups=groups, largest_group=fullest, warm=False
            )
        elif self.kind == "prefill":
            batch, heads, kv_heads, head_dim, queries, context = own
            library = None if ("attention", "prefill") in on.sections else self.kernel
            theirs = replace(on, kernels=LIBRARIES.get(library or ""))
            time_s = prefill_time_s(
                theirs, self.dtype, batch, queries, context, heads, kv_heads, head_dim
            )
        elif self.kind == "decode":
            batch, heads, kv_heads, head_dim, _, context = own
            section = "decode" if ("attention", "decode") in on.sections else FLASH_DECODE
            time_s = decode_time_s(
                on, self.dtype, batch, context, heads, kv_heads, head_dim,
                alone=True, section=section,
            )  # fmt: skip
        else:
            tokens, width, moved = own
            if f"layer_{self.kind}" in LAYER_KERNELS:
                kind = f"layer_{self.kind}"
                time_s = layer_kernel_time_s(on, kind, tokens, width, moved / tokens)
            else:
                time_s = elementwise_time_s(on, moved)
        return np.asarray(time_s, dtype=np.float64)

    def _gemm_s(self, on: KernelConstants, m: Any, n: Any, k: Any) -> Any:
        time_s = gemm_time_s(on, self.dtype, m, n, k)
        if self.mode == "sustained":
            return sustained_time_s(on, self.dtype, 2 * m * n * k, time_s)
        if self.mode == "burst":
            waited_us: float = on.section("gemm", "sustained").constants["after_pause_us"]
            return time_s + 1e-6 * waited_us / _IN_BURST
        return time_s


def cases(table: Table) -> Cases[KernelRow]:
    """Return the rows of a table by device, kind, format, kernel and mode."""
    return cases_of(table, _case, sizes_of, _WIDTH)


predictions: Final = kernel_predictions(cases)


def row_of(row: Row) -> KernelRow:
    """Return what a row is of, on whatever device."""
    if row["kind"] not in SIZES:
        raise UnknownNameError("kind", row["kind"], SIZES)
    if row["mode"] not in _MODES:
        raise UnknownNameError("mode", row["mode"], _MODES)
    dtype = canonical_dtype(row["dtype"])
    return KernelRow(row["gpu"], row["kind"], dtype, row["kernel"], row["mode"])


def _case(row: Row) -> KernelRow:
    Cluster.named(row["gpu"])
    return row_of(row)


def sizes_of(row: Row) -> list[float]:
    """Return the sizes that the kind of a row of `row_of` has, then NaN."""
    own = [float(whole_cell(row, name, most=_MOST)) for name in SIZES[row["kind"]]]
    sizes = dict(zip(SIZES[row["kind"]], own, strict=True))
    if sizes.get("context_tokens", 1) < sizes.get("query_tokens", 1):
        raise BadValueError("context_tokens", row["context_tokens"], "at least query_tokens")
    if sizes.get("heads", 1) < sizes.get("kv_heads", 1):
        raise BadValueError("heads", row["heads"], "at least kv_heads")
    return own + [np.nan] * (_WIDTH - len(own))


DERIVED: Final[Derived] = {}

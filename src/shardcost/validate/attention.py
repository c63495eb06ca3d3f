"""Predicts the rows of a table of measured attention kernels.

All rows of one device, phase and number format are one call of the kernel's formula. A benchmark
runs its kernel again and again on one cache, so what fits the L2 cache is read from there.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.cluster import Cluster
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.formats.tables import Row, Table
from shardcost.kernels.attention import decode_time_s, prefill_time_s
from shardcost.machine import KernelConstants
from shardcost.validate.predictions import (
    Cases,
    Derived,
    Floats,
    band_of,
    cases_of,
    kernel_predictions,
    kernels_of,
    whole_cell,
)

MEASURED: Final = "time_us"
PHASES: Final = ("prefill", "decode")
FLASH_DECODE: Final = "flash_decode"
"""Section of the constants of flash decoding as PyTorch runs it: one kernel for all groups."""
CONTEXT_BANDS: Final = {
    "<=128 tokens": 128, "<=1024 tokens": 1024, "<=8192 tokens": 8192, ">8192 tokens": np.inf,
}  # fmt: skip
"""Names of ranges of contexts, each with the longest in it."""
_SHAPE: Final = ("batch", "query_tokens", "context_tokens", "heads", "kv_heads", "head_dim")
_DTYPE: Final = "bf16"
_NARROW_CACHES: Final = "_trtllm_1.0.0"
"""Ending of the data sets whose caches hold 8 bits where heads share them: with 16, their GPUs
would read up to 1.7 times as fast as their memory can deliver. Where each head has its own, the
times are those of 16 bits."""
_NARROW_GROUPS: Final = (2, 32)


class AttentionCase(NamedTuple):
    """An attention kernel on a device, but for its shape."""

    gpu: str
    phase: str
    cache_dtype: str = _DTYPE

    def time_s(self, shapes: Floats, on: KernelConstants | None = None) -> Floats:
        """Return the seconds of some shapes, the rows of an array with the columns of a shape."""
        batch, queries, context, heads, kv_heads, head_dim = shapes.T
        on = on or kernels_of(self.gpu)
        time_s: Any
        if self.phase == "prefill":
            time_s = prefill_time_s(on, _DTYPE, batch, queries, context, heads, kv_heads, head_dim)
        else:
            time_s = decode_time_s(
                on, self.cache_dtype, batch, context, heads, kv_heads, head_dim,
                new_tokens=queries, cache_is_warm=self.phase == "decode", alone=True,
                section=self.phase,
            )  # fmt: skip
        return np.asarray(time_s, dtype=np.float64)


def cases(table: Table) -> Cases[AttentionCase]:
    """Return the rows of a table by device and phase; their sizes are those of a shape."""
    return cases_of(table, _case, _shape, len(_SHAPE))


predictions: Final = kernel_predictions(cases)


def context_band(row: Row) -> str:
    """Return the range of contexts that a row is in."""
    return band_of(CONTEXT_BANDS, whole_cell(row, "context_tokens"))


def group(row: Row) -> str:
    """Return how many query heads share a KV head."""
    return f"{whole_cell(row, 'heads') / whole_cell(row, 'kv_heads'):g}"


def _case(row: Row) -> AttentionCase:
    if row["phase"] not in PHASES:
        raise UnknownNameError("phase", row["phase"], PHASES)
    Cluster.named(row["gpu"])
    shared = _NARROW_GROUPS[0] <= float(group(row)) <= _NARROW_GROUPS[1]
    narrow = shared and row.get("dataset", "").endswith(_NARROW_CACHES)
    return AttentionCase(row["gpu"], row["phase"], "fp8" if narrow else _DTYPE)


def _shape(row: Row) -> list[int]:
    shape = [whole_cell(row, name) for name in _SHAPE]
    _, queries, context, heads, kv_heads, _ = shape
    if context < queries:
        raise BadValueError("context_tokens", context, "at least query_tokens")
    if heads < kv_heads:
        raise BadValueError("heads", heads, "at least kv_heads")
    return shape


DERIVED: Final[Derived] = {"context_band": context_band, "group": group}

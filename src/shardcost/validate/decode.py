"""Predicts the rows of a table of the parts of one decoded layer.

A row is one kernel of one rank's share of a layer, in PyTorch, replayed from a CUDA graph on
weights and a cache that are not in the L2 cache: a product (``gemm:qkv`` …), one of the two norms
(``rmsnorm``) or attention to ``context`` cached tokens. Only attention has a context, so the parts
of a layer that others share are found by shape, degree and batch, and a layer is as many sums as
there are contexts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from shardcost.errors import UnknownNameError
from shardcost.formats.tables import Row, Table
from shardcost.kernels.attention import decode_time_s
from shardcost.kernels.elementwise import elementwise_time_s
from shardcost.machine import CATALOG, Fitted
from shardcost.program.attention import OUT, QKV
from shardcost.program.feed_forward import DOWN, UP
from shardcost.program.operations import AttentionCore, Elementwise, Operations
from shardcost.validate.attention import FLASH_DECODE
from shardcost.validate.layers import machine, pass_time, passes_of
from shardcost.validate.predictions import Derived, Floats, Predictions, by_row, whole_cell
from shardcost.workload import Decode

MEASURED: Final = "time_us"
ATTENTION: Final = "attention"
_NORM: Final = "rmsnorm"
_PRODUCTS: Final = {"gemm:qkv": QKV, "gemm:proj": OUT, "gemm:up": UP, "gemm:down": DOWN}
TIMES: Final = {**dict.fromkeys(_PRODUCTS, 1), _NORM: 2, ATTENTION: 1}
"""How often a layer has each part."""
_ONE_LAYER: Final = (
    "dataset", "gpu", "model", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated", "tp",
    "batch",
)  # fmt: skip
"""Rows alike in these are parts of one layer."""


def predictions(table: Table, fitted: Fitted = CATALOG) -> Predictions:
    """Return the predicted time of every row, in microseconds."""
    return by_row(table, lambda row: time_us(row, fitted))


def time_us(row: Row, fitted: Fitted = CATALOG) -> float:
    """Return the predicted time of one row's part, in microseconds."""
    part = row["part"]
    if part not in TIMES:
        raise UnknownNameError("part", part, TIMES)
    context = whole_cell(row, "context") if part == ATTENTION else 1
    workload = Decode(batch=whole_cell(row, "batch"), context_tokens=context)
    operations = passes_of(row, workload).forward
    on = machine(row["gpu"], fitted)
    if part == ATTENTION:
        core = next(op for op in operations if isinstance(op, AttentionCore))
        shape = (core.batch, context, core.heads, core.kv_heads, core.head_dim)
        time_s = decode_time_s(on.kernels, core.dtype, *shape, alone=True, section=FLASH_DECODE)
        return 1e6 * float(time_s)
    if part == _NORM:
        norm = next(op for op in operations if isinstance(op, Elementwise) and op.name == "norm")
        width = whole_cell(row, "hidden")
        return 1e6 * float(elementwise_time_s(on.kernels, norm.bytes_moved, row_elements=width))
    product: Operations = tuple(op for op in operations if op.name == _PRODUCTS[part])
    return 1e6 * float(pass_time(on, product).device_s)


def layer_sums(table: Table, times: Floats) -> Floats:
    """Return the time of every layer that has all its parts, one for each context."""
    return np.array([sum(TIMES[part] * times[i] for part, i in rows) for rows in _layers(table)])


def extra(table: Table, values: Floats, measured: Floats) -> Mapping[str, Any]:
    """Return the errors of whole layers: of sums over all their parts."""
    wanted = layer_sums(table, measured)
    errors = 100 * np.abs(layer_sums(table, values) / wanted - 1)
    known = errors[np.isfinite(errors)]
    if not known.size:
        return {"layers": {"rows": 0, "median_pct": None, "p90_pct": None}}
    median, p90 = np.percentile(known, [50, 90])
    return {"layers": {"rows": known.size, "median_pct": float(median), "p90_pct": float(p90)}}


def _layers(table: Table) -> Iterator[list[tuple[str, int]]]:
    """Yield each layer as its parts and their rows."""
    shared: dict[tuple[str, ...], dict[str, int]] = {}
    attention: dict[tuple[str, ...], dict[str, int]] = {}
    for i, row in enumerate(table.records()):
        key = tuple(row.get(name, "") for name in _ONE_LAYER)
        if row["part"] == ATTENTION:
            attention.setdefault(key, {})[row["context"]] = i
        elif row["part"] in TIMES:
            shared.setdefault(key, {})[row["part"]] = i
    for key, contexts in attention.items():
        parts = shared.get(key, {})
        if len(parts) == len(TIMES) - 1:
            yield from ([*parts.items(), (ATTENTION, i)] for i in contexts.values())


DERIVED: Final[Derived] = {"attended": lambda row: row["context"] or "any"}

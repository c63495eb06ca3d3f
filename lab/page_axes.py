"""What the pictures of the validation page are drawn along: the size and the degrees of a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from shardcost.validate.predictions import Floats
from shardcost.validate.validation import Validation

MOST_BINS: Final = 12
"""How many points a curve of errors has at most; more values than that are pooled."""


class Axis(NamedTuple):
    """A quantity of a row: the product of some of its columns."""

    label: str
    columns: tuple[str, ...]

    def of(self, validation: Validation) -> Floats:
        """Return the quantity of every row; NaN where a cell has no number above 0."""
        product = np.ones(validation.table.rows)
        for name in self.columns:
            product *= [_positive(cell) for cell in _cells(validation, name)]
        return product


def _cells(validation: Validation, name: str) -> list[str]:
    return validation.table.columns.get(name, [""] * validation.table.rows)


def _positive(cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        return np.nan
    return value if 0 < value < 1e30 else np.nan


_GPUS: Final = Axis("GPUs", ("gpus",))
_PRODUCT: Final = Axis("m n k", ("m", "n", "k"))
_MODEL: Final = Axis("layers x hidden\u00b2", ("layers", "hidden", "hidden"))
SIZES: Final[Mapping[str, Axis]] = {
    "collectives": Axis("bytes", ("size_bytes",)),
    "gemm": _PRODUCT,
    "attention": Axis("queries x context", ("batch", "query_tokens", "context_tokens")),
    "elementwise": Axis("bytes", ("bytes",)),
    "elementwise_layer": Axis("bytes", ("bytes",)),
    "experts": Axis("tokens", ("tokens",)),
    "mla": Axis("queries x context", ("batch", "query_tokens", "context_tokens")),
    "grouped_gemm": Axis("rows n k", ("routed_rows", "n", "k")),
    "fp8_conversion": _PRODUCT,
    "sustained": _PRODUCT,
    "linear_attention": Axis("tokens x heads", ("batch", "query_tokens", "v_heads")),
    "layers": Axis("tokens", ("batch", "seq")),
    "decode": Axis("sequences x context", ("batch", "context")),
    "overlap": _PRODUCT,
    "layer_ops": Axis("tokens", ("tokens",)),
    "memory": Axis("parameters, billions", ("num_params",)),
    "memory_runs": _MODEL,
    "training": _MODEL,
    "inference": _MODEL,
    "serving": Axis("users", ("concurrency",)),
    "requests": Axis("output tokens", ("output_tokens",)),
    "comm_fraction": Axis("tokens", ("tokens_or_seq",)),
    "dispatch": Axis("tokens per GPU x hidden", ("tokens", "hidden")),
    "jitter": Axis("bytes", ("size_bytes",)),
    "jitter_steps": _GPUS,
}
"""How large what a row measures is, by kind of table."""

_TP: Final = Axis("tensor-parallel degree", ("tp",))
DEGREES: Final[Mapping[str, tuple[Axis, ...]]] = {
    "collectives": (Axis("GPUs", ("num_gpus",)),),
    "experts": (Axis("expert-parallel degree", ("ep",)), _TP),
    "layers": (_TP,),
    "decode": (_TP,),
    "layer_ops": (_TP,),
    "memory": (_TP,),
    "memory_runs": (_TP, Axis("pipeline stages", ("pp",))),
    "training": (_GPUS, _TP, Axis("pipeline stages", ("pp",))),
    "inference": (_TP,),
    "serving": (_GPUS, _TP),
    "comm_fraction": (_TP,),
    "dispatch": (Axis("GPUs", ("num_gpus",)),),
    "jitter": (_GPUS,),
}
"""Over how many devices what a row measures is spread, by kind of table."""

UNITS: Final[Mapping[str, str]] = {
    "memory": "GB",
    "memory_runs": "B",
    "training": "s",
    "inference": "the row's unit",
    "serving": "ms",
    "requests": "ms",
    "comm_fraction": "%",
    "jitter": "medians",
    "jitter_steps": "medians",
}
"""Units of the measured column, where they are not microseconds."""
MICROSECONDS: Final = "µs"


class Bins(NamedTuple):
    """Rows pooled along an axis: where, and which rows."""

    middles: Floats
    members: list[Floats]
    """Indices of the rows of each bin."""


def bins(values: Floats) -> Bins:
    """Return rows by the value of an axis, pooled over equal ratios where there are many values.

    >>> bins(np.array([1.0, 2.0, np.nan, 1.0])).middles.tolist()
    [1.0, 2.0]
    """
    known = np.flatnonzero(np.isfinite(values))
    distinct = np.unique(values[known])
    if distinct.size > MOST_BINS:
        logs = np.log2(values[known])
        width = (logs.max() - logs.min()) / MOST_BINS
        places = np.minimum((logs - logs.min()) // width, MOST_BINS - 1)
        middles = 2.0 ** (logs.min() + width * (np.arange(MOST_BINS) + 0.5))
        whole = [(middles[i], known[places == i]) for i in range(MOST_BINS)]
    else:
        whole = [(value, known[values[known] == value]) for value in distinct]
    filled = [(middle, rows) for middle, rows in whole if rows.size]
    return Bins(np.array([middle for middle, _ in filled]), [rows for _, rows in filled])

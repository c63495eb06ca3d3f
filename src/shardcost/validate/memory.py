"""Predicts the rows of a table of training runs: what they held, and whether they fitted.

A run logs what its first pipeline stage has allocated between two steps, so that is what is
predicted. Whether a run fits is decided by the peak of the fullest stage.

A row gives the number of parameters rather than the width of the feed-forward part. The width
follows from it: the roundest number (the multiple of the largest power of two) that yields the
stated parameters within their rounding.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil, floor, log10, prod
from typing import Any, Final

import numpy as np

from shardcost.errors import BadValueError, ShardcostError
from shardcost.formats.tables import Row, Table, number
from shardcost.layout import Layout
from shardcost.machine import CATALOG, Fitted
from shardcost.memory import Memory, MemoryPolicy, memory_of
from shardcost.memory.policy import policy_named
from shardcost.model import Attention, Block, FeedForward, Model
from shardcost.units import GIGA
from shardcost.validate.predictions import (
    Derived,
    Floats,
    Predictions,
    by_row,
    count_or,
    meaning_of,
    whole_cell,
)
from shardcost.workload import Train

MEASURED: Final = "mem_alloc_GB"
_FRAMEWORK: Final = "nanotron"
"""Whose policy the runs have."""
_GIB: Final = 2**30
"""The unit of the table's GB columns: frameworks log memory in binary units."""
_DIGITS: Final = 3
"""Significant digits of a stated number of parameters."""
_NEEDED: Final = {"num_params": "", "vocab": ""}
"""Columns by which a table is not known, but without which nothing can be said."""
_SEQUENCE_PARALLEL: Final = {"REDUCE_SCATTER": True, "ALL_REDUCE": False, "": False}
_YES_NO: Final = {"True": True, "1": True, "False": False, "0": False}


def predictions(
    table: Table, fitted: Fitted = CATALOG, policy: MemoryPolicy | None = None
) -> Predictions:
    """Return the GiB that the first stage of every run has allocated between two steps.

    Args:
        table: The runs.
        fitted: Not used: memory rests on no measured times.
        policy: How the framework treats memory; by default what the catalog has on it.
    """
    del fitted
    own = policy or policy_named(_FRAMEWORK)

    return by_row(table, lambda row: allocated_bytes(row, own) / _GIB)


def allocated_bytes(row: Row, policy: MemoryPolicy | None = None) -> float:
    """Return what the first stage of a run has allocated between two steps."""
    return float(memory_of_row(row, policy).stages["first"].between_steps)


def classified_pct(table: Table, values: Floats, policy: MemoryPolicy | None = None) -> float:
    """Return the percentage of all rows whose outcome (fits, oom) is predicted right.

    Args:
        table: The runs.
        values: What `predictions` says; a row without a prediction is not right.
        policy: How the framework treats memory.
    """
    if not table.rows:
        return 0.0
    policy = policy or policy_named(_FRAMEWORK)
    rows = zip(table.records(), values, strict=True)
    right = [
        not np.isnan(value) and outcome(row, policy) == row["outcome"] != "" for row, value in rows
    ]
    return 100 * sum(right) / table.rows


def extra(table: Table, values: Floats, measured: Floats | None = None) -> dict[str, Any]:
    """Return what the report says of these tables besides the errors of what was measured."""
    del measured
    return {"classified_pct": classified_pct(table, values)}


def outcome(row: Row, policy: MemoryPolicy | None = None) -> str:
    """Return whether a run is predicted to fit (fits, oom); nothing where its capacity is none."""
    try:
        capacity = number(row, "capacity_GB", 0, 10**6, "a capacity above 0") * _GIB
        return "fits" if memory_of_row(row, policy).peak_bytes <= capacity else "oom"
    except ShardcostError:
        return ""


def memory_of_row(row: Row, policy: MemoryPolicy | None = None) -> Memory:
    """Return what the ranks of a run hold."""
    row = _NEEDED | dict(row)
    pp, dp, micro_batch = (whole_cell(row, name) for name in ("pp", "dp", "mbs"))
    layout = Layout(
        tp=whole_cell(row, "tp"),
        pp=pp,
        dp=dp,
        micro_batch=micro_batch,
        zero=whole_cell(row, "zero_stage", least=0, most=3),
        sequence_parallel=meaning_of(row, "tp_mode", _SEQUENCE_PARALLEL),
    )
    steps = count_or(row, "accumulation", pp, least=1)
    fp32 = meaning_of(row, "accumulate_grad_in_fp32", _YES_NO, "True")
    work = Train(
        global_batch=steps * dp * micro_batch,
        sequence_length=whole_cell(row, "seq"),
        dtype=row.get("dtype") or "bf16",
        gradient_dtype="fp32" if fp32 else "bf16",
    )
    if policy is None:
        policy = policy_named(_FRAMEWORK)
    if not fp32:  # what is accumulated is what is reduced
        policy = replace(policy, gradient_buckets=False)
    return memory_of(model_of(row), layout, work, software=policy)


def model_of(row: Row) -> Model:
    """Return the Llama-like model of a row."""
    heads = whole_cell(row, "heads")
    return _model(
        layers=whole_cell(row, "layers"),
        hidden=whole_cell(row, "hidden"),
        heads=heads,
        kv_heads=count_or(row, "kv_heads", heads, least=1),
        vocab=whole_cell(row, "vocab"),
        billions=number(row, "num_params", 0, 10**6, "a number of billions above 0"),
        tied=meaning_of(row, "tied", _YES_NO) if row.get("tied") else None,
    )


@lru_cache(maxsize=64)  # thousands of rows are runs of a few models
def _model(
    *,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    billions: float,
    tied: bool | None,
) -> Model:
    """Return the model with the roundest width; where `tied` is open, the rounder of both."""

    def made(width: int, *, tied: bool) -> Model:
        attention = Attention(heads=heads, kv_heads=kv_heads, head_dim=max(1, hidden // heads))
        feed_forward = FeedForward(width=width, gated=True)
        block = Block(count=layers, attention=attention, feed_forward=feed_forward)
        return Model(
            name=f"{billions:g}B",
            hidden_size=hidden,
            vocab_size=vocab,
            blocks=(block,),
            tied_embeddings=tied,
        )

    widths = {}
    for choice in (False, True) if tied is None else (tied,):
        one, two = (made(width, tied=choice).parameters for width in (1, 2))
        widths[choice] = roundest_width(billions, int(one), int(two - one))
    choice = max(widths, key=lambda choice: widths[choice] & -widths[choice])
    if not widths[choice]:
        rule = "more than the model has without feed-forward"
        raise BadValueError("num_params", billions, rule)
    return made(widths[choice], tied=choice)


def roundest_width(billions: float, with_width_1: int, per_width: int) -> int:
    """Return the roundest feed-forward width that gives a stated number of parameters; 0 if none.

    Args:
        billions: The parameters as stated, to three digits.
        with_width_1: Parameters of the model if the width were 1.
        per_width: Parameters that one more of width adds.

    >>> roundest_width(1.34, 536936448 + 98304, 98304)
    8192
    """
    slack = 0.5 * 10.0 ** (floor(log10(billions)) + 1 - _DIGITS)
    least, most = (
        1 + (GIGA * (billions + side * slack) - with_width_1) / per_width for side in (-1, 1)
    )
    if most < 1:
        return 0
    step = 1 << (floor(most).bit_length() - 1)
    while step > 1 and ceil(max(least, 1) / step) * step > most:
        step //= 2
    return max(1, ceil(max(least, 1) / step) * step)


DERIVED: Final[Derived] = {
    "gpus": lambda row: str(prod(whole_cell(row, name) for name in ("tp", "pp", "dp"))),
    "predicted_outcome": outcome,
}

"""Predicts the step times of a table of training runs.

A row gives the shape of the model, the degrees and the machine. What it leaves blank is filled in
as its framework does it by itself: Megatron Core shards the optimizer, TorchTitan the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from shardcost.arrays import ceil_div
from shardcost.cluster import Cluster
from shardcost.estimate import Estimate, estimate
from shardcost.evidence.predictions import Floats, Predictions, each_row, whole_cell
from shardcost.evidence.tables import Row, Table
from shardcost.layout import Layout
from shardcost.model import Attention, Block, FeedForward, Model
from shardcost.software import Software
from shardcost.workload import Train

MEASURED: Final = "measured_step_s"
_DEFAULT: Final = "megatron_core"
_FRAMEWORKS: Final = (
    ("nanotron", "nanotron"),
    ("torchtitan", "torchtitan"),
    ("llm-foundry", "llm_foundry"),
    ("megatron-deepspeed", "megatron_deepspeed"),
    ("megatron-lm 0", "megatron_core"),
    ("megatron-lm", "megatron_2021"),
)
"""How the name of a framework begins, and the software of the catalog that it is."""
_ZERO: Final = {"zero0": 0, "zero1": 1, "FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "fsdp2": 3}
_NARROW: Final = {"nvfp4": "fp4"}
_SAME_QUESTION: Final = ("dataset", "model", "seq", "gpus", "gbs")
"""Rows alike in these differ in their layout only."""
_FEWEST_LAYOUTS: Final = 3


def predictions(table: Table, *, ignore_versions: bool = False) -> Predictions:
    """Return the predicted step time of every row, in seconds."""
    return each_row(table, lambda row: float(estimate_of(row).time_s))


def estimate_of(row: Row) -> Estimate:
    """Return the estimate of one row's run."""
    return estimate(
        model_of(row), machine(row), layout_of(row), train_of(row), software=software_of(row)
    )


def model_of(row: Row) -> Model:
    """Return the dense model that a row describes."""
    return _model(
        *(whole_cell(row, name) for name in ("layers", "hidden", "heads")),
        *(_or_one(row, name) for name in ("kv_heads", "ffn", "vocab")),
        gated=row["gated"] == "1",
    )


@cache
def _model(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, *, gated: bool
) -> Model:
    block = Block(
        count=layers,
        attention=Attention(heads=heads, kv_heads=kv_heads, head_dim=ceil_div(hidden, heads)),
        feed_forward=FeedForward(width=ffn, gated=gated),
    )
    return Model(
        name=f"{layers} layers of {hidden}",
        hidden_size=hidden,
        vocab_size=vocab,
        blocks=(block,),
        tied_embeddings=not gated,
    )


def machine(row: Row) -> Cluster:
    """Return the cluster of the catalog that a row names."""
    return _machine(row["cluster"], row["network"])


@cache
def _machine(name: str, network: str) -> Cluster:
    return Cluster.named(name, network or None)


def software_of(row: Row) -> Software:
    """Return the framework of a row, with the overlap that the row states."""
    return _software(_framework(row), row["tp_overlap"])


@cache
def _software(name: str, tp_overlap: str) -> Software:
    from dataclasses import replace

    software = Software.named(name)
    stated = {"no": "none", "asyncTP": "chunked"}.get(tp_overlap)
    return software if stated is None else replace(software, tp_overlap=stated)


def _framework(row: Row) -> str:
    name = row["framework"].lower()
    return next((found for start, found in _FRAMEWORKS if name.startswith(start)), _DEFAULT)


def layout_of(row: Row) -> Layout:
    """Return the layout of a row."""
    framework = _framework(row)
    degrees = {name: _or_one(row, name) for name in ("tp", "pp", "dp", "cp", "ep")}
    chunks, micro = _or_one(row, "vp"), whole_cell(row, "mbs")
    if framework == "torchtitan" and degrees["pp"] > 1:
        # TorchTitan cuts a replica's batch into as many micro-batches as there are stages.
        micro = max(1, micro // degrees["pp"])
        chunks = 2 if "interleaved" in row["notes"].lower() else 1
    return Layout(
        **degrees,
        chunks=chunks if degrees["pp"] > 1 else 1,
        micro_batch=micro,
        schedule="interleaved" if chunks > 1 and degrees["pp"] > 1 else "1f1b",
        sequence_parallel=row["sp"] == "1" and degrees["tp"] > 1,
        recompute=_recompute(row),
        zero=_zero(row, framework),
        shard_degree=_shard_degree(row, degrees["dp"] * degrees["cp"]),
        context_scheme="ring",
    )


def train_of(row: Row) -> Train:
    """Return the workload of a row."""
    words = f"{row['model']} {row['notes']}".lower()
    packed = "packed" in words
    return Train(
        global_batch=whole_cell(row, "gbs"),
        sequence_length=whole_cell(row, "seq"),
        dtype=_dtype(row["dtype"]),
        adapters="lora" in row["model"].lower(),
        document_tokens=_SQUAD_TOKENS if packed else None,
    )


_SQUAD_TOKENS: Final = 256
"""Mean length of SQuAD's questions with their paragraphs, in tokens, rounded."""


def _dtype(name: str) -> str:
    folded = name.lower()
    if "fp8" in folded:
        return "fp8"
    return _NARROW.get(folded, folded)


def _recompute(row: Row) -> str:
    name = row["recompute"].lower()
    if name.startswith("selective"):
        return "selective"
    return name if name in {"full", "none"} else "none"


def _zero(row: Row, framework: str) -> int:
    stated = row["zero_fsdp"]
    if stated in _ZERO:
        return _ZERO[stated]
    if stated.isdigit() and int(stated) > 1:
        return 3
    return 1 if framework == _DEFAULT else 0


def _shard_degree(row: Row, replicas: int) -> int | None:
    stated = row["zero_fsdp"]
    if stated.isdigit() and 1 < int(stated) < replicas:
        return int(stated)
    return None


def _or_one(row: Row, column: str) -> int:
    """Return a count, 1 where its cell is blank or the table has no such column."""
    return int(float(row.get(column) or 1))


def regret(table: Table, values: Floats, measured: Floats) -> Mapping[str, Any]:
    """Return how much slower the layouts ranked first were than the best measured ones.

    Among rows of one data set with the same model, sequence, devices and batch.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(table.records()):
        if np.isfinite(values[i]) and np.isfinite(measured[i]):
            groups.setdefault(tuple(row[name] for name in _SAME_QUESTION), []).append(i)
    lost = [
        100 * (measured[rows][np.argmin(values[rows])] / measured[rows].min() - 1)
        for rows in groups.values()
        if len(rows) >= _FEWEST_LAYOUTS
    ]
    if not lost:
        return {"regret": {"groups": 0, "median_pct": None, "p90_pct": None}}
    median, p90 = np.percentile(lost, [50, 90])
    return {"regret": {"groups": len(lost), "median_pct": float(median), "p90_pct": float(p90)}}


extra: Final[Callable[[Table, Floats, Floats], Mapping[str, Any]]] = regret
"""What the table's report has beyond the errors."""


def layouts_of(rows: Sequence[Row]) -> list[str]:
    """Return the layouts of rows in short."""
    return [layout_of(row).short() for row in rows]


DERIVED: Final[Mapping[str, Callable[[Row], str]]] = {
    "layout": lambda row: layout_of(row).short(),
    "software": _framework,
}

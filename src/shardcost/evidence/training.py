"""Predicts the step times of a table of training runs.

A row gives the shape of the model, the degrees and the machine. What it leaves blank is filled in
as its framework does it by itself: Megatron Core shards the optimizer, TorchTitan the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from math import log2
from typing import Any, Final, cast

import numpy as np

from shardcost.arrays import ceil_div
from shardcost.cluster import Cluster
from shardcost.collectives.calibration import Calibration, wire_of
from shardcost.collectives.paths import Wire
from shardcost.collectives.silicon import collective_time
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
    ("megatron-lm 0", "megatron_lm"),
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
    del ignore_versions  # a row does not say which version ran
    return each_row(table, lambda row: float(estimate_of(row).time_s))


def estimate_of(row: Row, software: Software | None = None) -> Estimate:
    """Return the estimate of one row's run, by its framework or by another."""
    return estimate(
        model_of(row),
        machine(row),
        layout_of(row),
        train_of(row),
        software=software or software_of(row),
        wire=job_wire(row),
    )


def model_of(row: Row) -> Model:
    """Return the dense model that a row describes."""
    return _model(
        *(whole_cell(row, name) for name in ("layers", "hidden", "heads")),
        *(_or_one(row, name) for name in ("kv_heads", "ffn", "vocab")),
        gated=row.get("gated") == "1",
    )


@cache
def _model(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, *, gated: bool
) -> Model:
    block = Block(
        count=layers,
        attention=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=ceil_div(hidden, heads),
            qkv_bias=not gated,
            out_bias=not gated,
        ),
        feed_forward=FeedForward(width=ffn, gated=gated, bias=not gated),
    )
    return Model(
        name=f"{layers} layers of {hidden}",
        hidden_size=hidden,
        vocab_size=vocab,
        blocks=(block,),
        tied_embeddings=not gated,
        norm="rms" if gated else "layer",
    )


def machine(row: Row) -> Cluster:
    """Return the cluster of the catalog that a row names."""
    return _machine(row.get("cluster", ""), row.get("network", ""))


@cache
def _machine(name: str, network: str) -> Cluster:
    return Cluster.named(name, network or None)


def job_wire(row: Row) -> Calibration | None:
    """Return what the network did in the run itself, where the row says how fast it gathered.

    A ring passes the network once for each node, so an all-gather over all devices tells what one
    crossing takes; the rates of the catalog stay.
    """
    rate = row.get("ag_GBps_measured", "")
    gpus = whole_cell(row, "gpus")
    if not rate or machine(row).network is None or gpus <= machine(row).tiers[-1].gpus:
        return None
    return _job_wire(
        row.get("cluster", ""), row.get("network", ""), gpus, round(4 * log2(float(rate)))
    )


@cache
def _job_wire(name: str, network: str, gpus: int, rate_quarters: int) -> Calibration | None:
    """Return the network's constants with the crossing that explains a rate, within 10 %."""
    cluster = _machine(name, network)
    if cluster.network is None:
        return None
    usual = wire_of(cluster.network)
    wanted_s = _GATHERED_BYTES * (gpus - 1) / gpus / (1e9 * 2 ** (rate_quarters / 4))

    def distance(wire: Calibration) -> float:
        found = collective_time("all_gather", _GATHERED_BYTES, cluster, gpus, wire=wire)
        return abs(log2(float(found.time_s) / wanted_s))

    return min((_with_crossing(usual, 2 ** (step / 4)) for step in range(-8, 25)), key=distance)


def _with_crossing(usual: Calibration, factor: float) -> Calibration:
    """Return a network's constants with each crossing so many times as long."""
    constants = cast("Wire", usual.constants)
    slower = {
        name: factor * getattr(constants, name)
        for name in ("ll_latency_s", "ll128_latency_s", "latency_s")
    }
    return replace(usual, constants=replace(constants, **slower))


_GATHERED_BYTES: Final = 2.0**30
"""Size at which runs measure their collectives, as far as their rates inside a node tell."""


def software_of(row: Row) -> Software:
    """Return the framework of a row, with what the row itself states of it."""
    software = _software(_framework(row), row.get("tp_overlap", ""))
    if software.host_per_hop_s is None or _has_slow_hops(row):
        return software
    return _without_hops(software)


@cache
def _without_hops(software: Software) -> Software:
    return replace(software, host_per_hop_s=None)


def _has_slow_hops(row: Row) -> bool:
    """Return whether a ring over all devices took unusually long for each hop in the run itself.

    In such runs the host waits for every rank of every collective, inside a node too; in others
    the hops stay hidden behind the host's other work.
    """
    rate, gpus = row.get("ag_GBps_measured", ""), whole_cell(row, "gpus")
    if not rate or gpus <= machine(row).gpus_per_node:
        return False
    link = float(machine(row).tiers[-1].bytes_per_s)
    waited_s = _GATHERED_BYTES * (1 / (1e9 * float(rate)) - _LINK_SHARE_USED / link)
    return waited_s / gpus > _SLOW_HOP_S


_LINK_SHARE_USED: Final = 1.7
"""Link rate over the rate at which runs gather inside one node."""
_SLOW_HOP_S: Final = 1e-4
"""Runs have either a third of this or three times as much."""


@cache
def _software(name: str, tp_overlap: str) -> Software:
    software = Software.named(name)
    stated = {"no": "none", "asyncTP": "chunked"}.get(tp_overlap)
    return software if stated is None else replace(software, tp_overlap=stated)


def _framework(row: Row) -> str:
    name = row.get("framework", "").lower()
    return next((found for start, found in _FRAMEWORKS if name.startswith(start)), _DEFAULT)


def layout_of(row: Row) -> Layout:
    """Return the layout of a row."""
    framework = _framework(row)
    degrees: dict[str, Any] = {name: _or_one(row, name) for name in ("tp", "pp", "dp", "cp", "ep")}
    chunks, micro = _or_one(row, "vp"), whole_cell(row, "mbs")
    if framework == "torchtitan" and degrees["pp"] > 1:
        # TorchTitan cuts a replica's batch into as many micro-batches as there are stages.
        micro = max(1, micro // degrees["pp"])
        chunks = 2 if "interleaved" in row.get("notes", "").lower() else 1
    return Layout(
        **degrees,
        chunks=chunks if degrees["pp"] > 1 else 1,
        micro_batch=micro,
        schedule="interleaved" if chunks > 1 and degrees["pp"] > 1 else "1f1b",
        sequence_parallel=row.get("sp") == "1" and degrees["tp"] > 1,
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
        dtype=_dtype(row.get("dtype") or "bf16"),
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
    name = row.get("recompute", "").lower()
    if name.startswith("selective"):
        return "selective"
    return name if name in {"full", "none"} else "none"


def _zero(row: Row, framework: str) -> int:
    stated = row.get("zero_fsdp", "")
    if stated in _ZERO:
        return _ZERO[stated]
    if stated.isdigit() and int(stated) > 1:
        return 3
    return 1 if framework in {_DEFAULT, "megatron_lm"} else 0


def _shard_degree(row: Row, replicas: int) -> int | None:
    stated = row.get("zero_fsdp", "")
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


DERIVED: Final[Mapping[str, Callable[[Row], str]]] = {
    "layout": lambda row: layout_of(row).short(),
    "software": _framework,
}

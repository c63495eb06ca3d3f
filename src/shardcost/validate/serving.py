"""Predictions of engines that serve many requests at once: the time between a request's tokens.

A row is one figure of one operating point. A closed loop of so many users keeps as many requests in
the engine; they are priced by `shardcost.load.engine.under_load`. What that cannot tell yet
(first tokens behind a queue, throughput of arrivals at a rate, pools of prefill and decode workers,
tokens drafted and accepted) is a named reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.cluster import Cluster
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.load.engine import Engine, under_load
from shardcost.formats.tables import Row, Table, number
from shardcost.layout import Layout
from shardcost.machine import CATALOG, Fitted, machine_of
from shardcost.model import (
    AnyAttention,
    Attention,
    Block,
    Experts,
    FeedForward,
    LatentAttention,
    LinearAttention,
    Model,
)
from shardcost.software import Software
from shardcost.validate.inference import arrivals_of, engine_of, known_by, weights_of
from shardcost.validate.predictions import Derived, Floats, Predictions, cases_of, whole_cell

MEASURED: Final = "measured"
_TPOT: Final = ("tpot_mean_ms", "tpot_median_ms")
_MS: Final = 1e3
_MOST: Final = 10**9
_EXPERTS_ONLY: Final = ("nvfp4", "mxfp4", "int4")
"""Formats that name the weights of experts, or of feed-forward parts: attention stays in 16 bits
(model cards of the published checkpoints)."""
_LINEAR: Final[Mapping[str, Any]] = {
    "key_heads": 16,
    "value_heads": 64,
    "key_head_dim": 128,
    "value_head_dim": 128,
}
"""Of the linear attention of Qwen3.5 (its config.json), whose layers a row counts only."""
_GATED_OUTPUT: Final = "qwen3"


class ServingCase(NamedTuple):
    """What rows must share to be priced together."""

    model: Model
    cluster: Cluster
    layout: Layout
    software: Software
    formats: tuple[tuple[str, str], ...]
    arrivals: str


def predictions(table: Table, fitted: Fitted = CATALOG) -> Predictions:
    """Return the prediction of every row, in milliseconds."""
    rows = list(table.records())
    return cases_of(table, case_of).predictions(
        lambda case, places: figures(case, [rows[i] for i in places], fitted)
    )


def case_of(row: Row) -> ServingCase:
    """Return what a row is of, but for its load; raise where it cannot be priced."""
    _check(row)
    return ServingCase(
        model_of(row),
        _cluster(row),
        layout_of(row),
        Software.named(software(row)),
        tuple(formats_of(row).items()),
        # Requests of one length, sent at once, stay together where prompts go before decoding.
        arrivals_of(row) if row.get("lengths") == "fixed" else "at random",
    )


def figures(case: ServingCase, rows: Sequence[Row], fitted: Fitted = CATALOG) -> Floats:
    """Return the milliseconds between tokens of the rows of one case."""
    machine = machine_of(case.cluster, case.software, fitted)
    engine = Engine(case.model, machine, case.layout, case.software, dict(case.formats))
    users, prompt, output = (
        np.array([_count(row, name) for row in rows]) for name in ("concurrency", "isl", "osl")
    )
    replicas = np.array([whole_cell(row, "replicas", most=_MOST) for row in rows])
    each = np.maximum(users // replicas, 1)
    lengths = {"prompt_tokens": prompt, "output_tokens": output}
    load = under_load(engine, requests=each, arrivals=case.arrivals, **lengths)
    return np.asarray(_MS * load.tpot_s, dtype=float)


def _check(row: Row) -> None:
    """Raise where a row is of what is not predicted yet, or of sizes that make no sense."""
    if row["figure"] not in _TPOT:
        raise UnknownNameError("figure", row["figure"], _TPOT)
    if row["deployment"] != "aggregated":
        raise BadValueError("deployment", row["deployment"], "aggregated so far")
    if row["arrival"] != "closed":
        raise BadValueError("arrival", row["arrival"], "closed so far")
    if row.get("speculative", "") not in {"", "0"}:
        raise BadValueError("speculative", row["speculative"], "0 so far")
    for name in ("concurrency", "isl", "osl"):
        _count(row, name)


def _count(row: Row, name: str) -> int:
    return max(1, round(number(row, name, 0, _MOST, "a number above 0")))


def formats_of(row: Row) -> dict[str, str]:
    """Return the number formats of a row's weights and cache by the workload's fields."""
    stated = weights_of(row)
    narrow = stated in _EXPERTS_ONLY and bool(row.get("experts"))
    # Only weights of feed-forward parts are in 4 bits, in MXFP4 and int4 only those of experts.
    dense = stated if not narrow or stated == "nvfp4" else "bf16"
    formats = {"dtype": dense, "expert_dtype": stated}
    if narrow:
        formats["attention_dtype"] = "bf16"
    return formats | ({"cache_dtype": row["cache_dtype"]} if row.get("cache_dtype") else {})


def _cluster(row: Row) -> Cluster:
    inside = Cluster.named(row["cluster"])
    devices = whole_cell(row, "gpus", most=_MOST) // whole_cell(row, "replicas", most=_MOST)
    if devices <= inside.tiers[-1].gpus:
        return inside
    return Cluster.named(row["cluster"], row.get("network") or "ib")


def layout_of(row: Row) -> Layout:
    """Return the layout of one worker: `dp` ranks of attention inside one engine share experts."""
    tp, pp, dp, ep = (whole_cell(row, name, most=_MOST) for name in ("tp", "pp", "dp", "ep"))
    if not row.get("experts"):
        return Layout(tp=tp, pp=pp, dp=dp)
    share = tp * dp // ep
    if tp % max(share, 1):
        raise BadValueError("ep", ep, f"so that experts are split over ranks of tp={tp}")
    return Layout(tp=tp, pp=pp, dp=dp, ep=ep, etp=max(share, 1))


def model_of(row: Row) -> Model:
    """Return the model of a row: the catalog's of that name, else one of the stated shape."""
    known = known_by(row.get("hf_id", "")) or known_by(row["model"])
    layers, hidden = whole_cell(row, "layers", most=_MOST), whole_cell(row, "hidden", most=_MOST)
    if known is not None and (known.num_layers, known.hidden_size) == (layers, hidden):
        return known
    return Model(
        name=row["model"],
        hidden_size=hidden,
        vocab_size=whole_cell(row, "vocab", most=_MOST),
        blocks=tuple(_blocks(row, layers)),
    )


def _blocks(row: Row, layers: int) -> list[Block]:
    """Return kinds of layer, attention and feed-forward parts spread evenly over each other."""
    full = _attention(row, None)
    attention: list[tuple[AnyAttention, int]] = []
    linear, windowed = _or(row, "linear_layers", 0), _or(row, "window_layers", 0)
    if linear:
        attention.append((LinearAttention(conv_kernel=4, **_LINEAR), linear))
    if windowed:
        attention.append((_attention(row, whole_cell(row, "window_tokens")), windowed))
    attention.append((full, layers - linear - windowed))
    dense = layers if not row.get("experts") else _or(row, "dense_layers", 0)
    blocks = []
    for part, count in attention:
        if count < 1:
            raise BadValueError("layers", layers, "more than those of linear or windowed attention")
        own_dense = dense if part is full else 0
        if own_dense:
            width = whole_cell(row, "ffn", most=_MOST)
            feed_forward = FeedForward(width=width, gated=row["gated"] != "0")
            blocks.append(Block(count=own_dense, attention=part, feed_forward=feed_forward))
        if count > own_dense:
            mixture = _experts(row)
            blocks.append(Block(count=count - own_dense, attention=part, feed_forward=mixture))
    return blocks


def _attention(row: Row, window: int | None) -> AnyAttention:
    heads = whole_cell(row, "heads", most=_MOST)
    if row.get("kv_lora_rank"):
        names = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
        sizes: dict[str, Any] = {name: _or(row, name, None) for name in (*names, "v_head_dim")}
        return LatentAttention(heads=heads, **sizes)
    return Attention(
        heads=heads,
        kv_heads=_or(row, "kv_heads", heads),
        head_dim=_or(row, "head_dim", None) or whole_cell(row, "hidden") // heads,
        window_tokens=window,
        output_gate=bool(row.get("linear_layers")) and _GATED_OUTPUT in row["model"].lower(),
    )


def _experts(row: Row) -> Experts:
    gated = row["gated"] != "0"
    shared = _or(row, "shared_ffn", 0)
    return Experts(
        count=whole_cell(row, "experts", most=_MOST),
        top_k=whole_cell(row, "top_k", most=_MOST),
        expert=FeedForward(width=whole_cell(row, "expert_ffn", most=_MOST), gated=gated),
        shared=FeedForward(width=shared, gated=gated) if shared else None,
    )


def _or(row: Row, name: str, otherwise: Any) -> Any:
    """Return the whole number in a cell, or what holds where the cell is blank."""
    return whole_cell(row, name, 0, _MOST) if row.get(name) else otherwise


def software(row: Row) -> str:
    """Return the software of the catalog that ran a row."""
    return engine_of({**row, "engine": f"{row['engine']} {row.get('version', '')}"})


def kind(row: Row) -> str:
    """Return whether a row's model is dense or a mixture of experts."""
    return "experts" if row.get("experts") else "dense"


DERIVED: Final[Derived] = {"software": software, "kind": kind}

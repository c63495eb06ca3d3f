"""Predictions of engines that serve many requests at once: the time between a request's tokens.

A row is one figure of one operating point. A closed loop of so many users keeps as many requests in
the engine; they are priced by `shardcost.load.engine.under_load`. What that cannot tell yet
(first tokens behind a queue, throughput of arrivals at a rate, pools of prefill and decode workers,
tokens drafted and accepted) is a named reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import re
from dataclasses import replace

from shardcost.cluster import Cluster
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.engine import Engine, generation
from shardcost.load.requests import Lengths, Requests
from shardcost.load.result import Limits
from shardcost.load.simulate import simulate
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
_ARRIVALS: Final = {"closed": "closed", "poisson": "poisson", "all at once": "all-at-once"}
_UNIFORM: Final = re.compile(r"uniform (\d+)-(\d+) in, uniform (\d+)-(\d+) out")
_AT_MOST: Final = re.compile(r"(\d+)(?: out)?$")
_REQUESTS_PER_USER: Final = {"aggregated": 10, "disaggregated": 4}
"""Of closed loops, where a row does not say how many requests were sent: chosen by how much of the
mean TTFT is the burst at the start …"""
_MANY: Final = 6000
"""… and of one replica under other arrivals."""
_PROMPT_TOKENS: Final = 300.0
"""Mean prompt of OpenOrca's questions as MLPerf Inference has them, which it does not state: taken
to be as long as the answers."""
_LONGEST: Final = 1024
"""Tokens of the longest prompts and answers of OpenOrca in MLPerf Inference and of ShareGPT as
engines' benchmarks filter it."""
_SPREAD: Final = 1.0
"""Standard deviation over mean of the lengths of conversations."""
_ACCEPTANCE = 0.75
_GENERATED: Final = ("aiconfigurator_silicon",)
"""Data sets whose engines were started with generated settings that rows do not state."""
_BY_VERSION: Final = {"dynamo": "", "TensorRT": "trtllm_2024", "2023": "vllm_2024"}
"""What a row's version says where it is not the engine's own: that of the framework around an engine
of 2025, that of TensorRT below the engine of MLPerf Inference v4.1 (2024), or the year."""
_GATED_OUTPUT: Final = "qwen3"


class Point(NamedTuple):
    """An operating point: what serves, and what it is asked."""

    deployment: Deployment
    requests: Requests
    static: bool
    """One batch from prompt to last token, without a queue."""
    limits: Limits | None
    """Where arrivals came at the highest rate that keeps these."""


class Worker(NamedTuple):
    """One worker of a row, before its machine is known."""

    layout: Layout
    count: int


def point_of(row: Row, fitted: Fitted = CATALOG, constants: Any = None) -> Point:
    """Return the operating point of a row; raise where it cannot be simulated."""
    software_ = _scheduled(Software.named(software(row)), row)
    if row.get("eager") == "1" or row.get("version") == "2023":
        software_ = software_.without_graphs()
    if constants:
        software_ = constants(software_, row)
    draft, acceptance = _speculation(row)
    model, cluster = model_of(row), _cluster(row)
    machine = machine_of(cluster, software_, fitted)
    formats = formats_of(row)

    def pool(prefix: str, workers: str) -> Pool:
        layout = layout_of(row, prefix)
        own = replace(software_, scheduler=replace(software_.scheduler, **_pool_settings(row, prefix)))
        engine = Engine(model, machine, layout, own, formats, draft, acceptance)
        return Pool(engine, whole_cell(row, workers, most=_MOST))

    if row["deployment"] == "disaggregated":
        deployment = Deployment(pool("decode_", "decode_workers"), pool("prefill_", "prefill_workers"))
    else:
        deployment = Deployment(pool("", "replicas"))
    return Point(deployment, requests_of(row), _static(row), _limits(row))


def _pool_settings(row: Row, prefix: str) -> dict[str, Any]:
    return {}


def _static(row: Row) -> bool:
    return row["dataset"] == "splitwise"


def _limits(row: Row) -> Limits | None:
    if row["dataset"].startswith("mlperf") and row["arrival"] == "poisson":
        return Limits(ttft_s=2.0, tpot_s=0.2, percentile=99)
    return None


def _scheduled(software_: Software, row: Row) -> Software:
    names = ("max_num_batched_tokens", "max_num_seqs")
    stated: dict[str, Any] = {name: whole_cell(row, name, most=_MOST) for name in names if row.get(name)}
    if row.get("chunked_prefill"):
        stated["chunked_prefill"] = row["chunked_prefill"] == "1"
    if row.get("recv_interval"):
        stated["receive_interval"] = whole_cell(row, "recv_interval")
    if row["dataset"] in _GENERATED and software_.scheduler.policy == "mixed":
        # Its generated configurations give a step the tokens of one prompt beside the sequences.
        prompt = round(number(row, "isl", 0, _MOST, "a number above 0"))
        tokens = prompt + whole_cell(row, "concurrency", most=_MOST)
        stated |= {"max_num_batched_tokens": tokens, "chunked_prefill": False}
    return replace(software_, scheduler=replace(software_.scheduler, **stated))


def _speculation(row: Row) -> tuple[int, float]:
    said = row.get("speculative", "") or "0"
    return (3 if said == "mtp" else int(said)), _ACCEPTANCE


def requests_of(row: Row) -> Requests:
    """Return the requests of one replica of a row."""
    replicas = whole_cell(row, "replicas", most=_MOST)
    arrival = _ARRIVALS.get(row["arrival"])
    if arrival is None:
        raise UnknownNameError("arrival", row["arrival"], _ARRIVALS)
    prompt, output = _lengths(row)
    users = None
    if arrival == "closed":
        users = max(1, whole_cell(row, "concurrency", most=_MOST) // replicas)
    if row.get("requests"):
        count = max(1, whole_cell(row, "requests", most=_MOST) // replicas)
    else:
        count = _REQUESTS_PER_USER[row["deployment"]] * users if users else _MANY
    rate = None
    if arrival == "poisson":
        rate = number(row, "request_rate", 0, _MOST, "a number above 0") / replicas
    return Requests(
        arrival=arrival, users=users, rate_per_s=rate, count=count, prompt=prompt, output=output
    )


def _lengths(row: Row) -> tuple[Lengths, Lengths]:
    """Return the distributions of prompts and outputs, as far as a row states them."""
    stated = row.get("lengths", "fixed")
    uniform = _UNIFORM.search(stated)
    if uniform:
        low, high, least, most = uniform.groups()
        return Lengths.parse(f"{low}-{high}"), Lengths.parse(f"{least}-{most}")
    longest = [int(text) for text in _AT_MOST.findall(stated)]
    output = Lengths(mean=max(1.0, number(row, "osl", 0, _MOST, "a number above 0")))
    mean = number(row, "isl", 0, _MOST, "a number above 0") if row.get("isl") else _PROMPT_TOKENS
    prompt = Lengths(mean=max(1.0, mean))
    if stated == "fixed":
        return prompt, output
    most = longest[-1] if longest else _LONGEST
    spread = {"kind": "lognormal", "cv": _SPREAD}
    output = Lengths(mean=output.mean, high=max(most, round(output.mean) + 1), **spread)
    if not stated.startswith("fixed"):
        prompt = Lengths(mean=prompt.mean, high=max(_LONGEST, round(prompt.mean) + 1), **spread)
    return prompt, output


def answer(point: Point) -> dict[str, float]:
    """Return every figure of an operating point, by the names of the table's columns."""
    if point.static:
        engine, asked = point.deployment.serving.engine, point.requests
        assert asked.prompt is not None and asked.output is not None
        batch = generation(
            engine, batch=asked.count, prompt_tokens=round(asked.prompt.mean), output_tokens=round(asked.output.mean)
        )
        return {"ttft_mean_ms": _MS * batch.ttft_s, "tpot_mean_ms": _MS * batch.tpot_s, "e2e_mean_ms": _MS * batch.latency_s}
    load = simulate(point.deployment, point.requests)
    figures = {}
    for name, spread in (("ttft", load.ttft_s), ("tpot", load.tpot_s), ("itl", load.itl_s), ("e2e", load.e2e_s)):
        for said, value in zip(("mean", "median", "p90", "p99"), spread, strict=True):
            figures[f"{name}_{said}_ms"] = _MS * value
    figures["output_tokens_per_s"] = load.output_tokens_per_s
    figures["requests_per_s"] = load.requests_per_s
    return figures


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


def layout_of(row: Row, prefix: str = "") -> Layout:
    """Return the layout of one worker: `dp` ranks of attention inside one engine share experts."""
    tp, pp, dp, ep = (
        whole_cell(row, f"{prefix}{name}", most=_MOST) for name in ("tp", "pp", "dp", "ep")
    )
    if not row.get("experts"):
        return Layout(tp=tp, pp=pp, dp=dp)
    share = max(tp * dp // ep, 1)
    if tp % share:
        # Ranks of attention's data parallelism that slice experts among them: as many bytes and
        # FLOPs as if each had whole ones.
        ep, share = tp * dp, 1
    count = whole_cell(row, "experts", most=_MOST)
    redundant = -count % ep if share == 1 else 0
    # TensorRT-LLM sends tokens to their experts by all-to-all only where a group has more ranks
    # than a token has experts; otherwise every rank gathers all tokens.
    gathers = row["engine"] == "trtllm" and 1 < ep <= whole_cell(row, "top_k", most=_MOST)
    return Layout(
        tp=tp, pp=pp, dp=dp, ep=ep, etp=share, redundant_experts=redundant,
        dispatch="allgather" if gathers else "auto",
    )  # fmt: skip


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
    version = row.get("version", "")
    for word, name in _BY_VERSION.items():
        if version.startswith(word):
            return name or engine_of({**row, "engine": row["engine"]})
    return engine_of({**row, "engine": f"{row['engine']} {version}"})


def kind(row: Row) -> str:
    """Return whether a row's model is dense or a mixture of experts."""
    return "experts" if row.get("experts") else "dense"


DERIVED: Final[Derived] = {"software": software, "kind": kind}

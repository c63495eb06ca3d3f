"""Predicts latencies and throughputs of a table of inference runs.

A row is one figure of one run. Static batches are priced from prompt to last token, and engines
that always have as many requests as fit by `shardcost.load.engine.under_load`: rows of one model,
machine, layout and engine together, as arrays. Engines with so many users are simulated from the
first request to the last, as `shardcost.validate.serving` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost import catalog
from shardcost.arrays import ceil_div
from shardcost.cluster import Cluster
from shardcost.errors import UnknownNameError
from shardcost.formats.tables import Row, Table
from shardcost.layout import Layout
from shardcost.load.engine import Engine, generation, under_load
from shardcost.machine import CATALOG, Fitted, machine_of
from shardcost.model import Attention, Block, Experts, FeedForward, Model
from shardcost.software import Software
from shardcost.validate.predictions import (
    SERVERS,
    Derived,
    Floats,
    Predictions,
    cases_of,
    whole_cell,
)

MEASURED: Final = "value"
_ENGINES: Final = (
    ("tokenweave", "tokenweave"),
    ("tensorrt", "trtllm"),
    ("trtllm", "trtllm"),
    ("trt-llm", "trtllm"),
    ("nim", "trtllm"),
    ("sglang", "sglang"),
    ("fastertransformer", "fastertransformer"),
    ("lmdeploy", "trtllm_2023"),
    ("deepspeed", "deepspeed_mii"),
    ("megatron", "megatron_inference"),
)
"""A word in the name of an engine, and the software of the catalog that it is or is most like:
LMDeploy's engine is compiled and sums by NCCL, as TensorRT-LLM was and did."""
_OTHERS: Final = "vllm"
_EARLIER: Final = {
    "trtllm": (((0, 10), "trtllm_2023"), ((1, 2), "trtllm_2025")),
    "vllm": (((0, 8), "vllm_2024"), ((0, 14), "vllm_2025")),
}
"""Engines that were another program before some version, the earliest first …"""
_IN_2024: Final = {"trtllm": "trtllm_2024", "vllm": "vllm_2024"}
"""… and what they were in 2024."""
_EARLY_RUNS: Final = "llm_inference_bench"
"""Runs of 2024 that do not state the engines' versions."""
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")
_PARALLEL: Final = ("falcon", "gpt-j", "gpt-neox", "pythia")
"""Families whose attention and feed-forward parts read one norm and share one sum."""
_SMALLER: Final = {
    ("a100_sxm", "A100-SXM4-40GB"): "a100_sxm_40gb",
    ("a100_sxm", "Nvidia A100 GPU"): "a100_sxm_40gb",
}
"""Devices that a row's cluster has with more memory. The second are those of llm_inference_bench:
batches that 80 GB would hold ran in rounds there."""
_BLOCK_SCALED: Final = ("qwen3", "deepseek", "kimi", "minimax", "glm-4", "glm-5")
"""Families whose published fp8 checkpoints have a scale for each block of 128 x 128 weights, by
their config.json."""
_SHAPE: Final = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
_LOADED: Final = ("in-flight", "continuous", "concurren", "serving")
"""Words of a row's batching where requests join a batch that runs."""
_MS: Final = 1e3


GENERATED: Final = ("aiconfigurator_silicon",)
"""Data sets whose engines were started with generated settings that rows do not state: a step has
room for one prompt beside the sequences."""
_CLOSED: Final = {
    **dict.fromkeys(("dp", "ep", "replicas"), "1"),
    "deployment": "aggregated",
    "arrival": "closed",
}
"""What rows of so many users are, in the columns of tables of serving."""
_PUBLIC: Final = ("measured=", "inferencex", 0.8)
"""What the notes of rows say that stem from another benchmark's public runs, that one's name, and
from which part of the stated lengths on its requests are long, evenly distributed."""


Answers = dict[tuple[str, ...], Mapping[str, float]]
"""The figures of simulated runs, by their cells."""


class InferenceCase(NamedTuple):
    """What rows must share to be priced together."""

    model: Model
    cluster: Cluster
    layout: Layout
    software: Software
    dtype: str
    figure: str


def predictions(table: Table, fitted: Fitted = CATALOG) -> Predictions:
    """Return the prediction of every row, in the row's own unit."""
    rows = list(table.records())
    answers: Answers = {}
    return cases_of(table, case_of).predictions(
        lambda case, places: figures(case, [rows[i] for i in places], fitted, answers)
    )


def case_of(row: Row) -> InferenceCase:
    """Return what a row is of, but for its counts; raise where it cannot be priced."""
    loaded = any(word in row.get("batching", "").lower() for word in _LOADED)
    batching = (_USERS if row["batch"] else "max load") if loaded else "static"
    figure = f"{batching} {row['metric']}"
    if figure not in (*_FIGURES, *_OF_USERS):
        raise UnknownNameError("metric", figure, (*_FIGURES, *_OF_USERS))
    for name in ("isl", "osl") if loaded else ("batch", "isl", "osl"):
        whole_cell(row, name)
    tp, pp = whole_cell(row, "tp"), whole_cell(row, "pp")
    return InferenceCase(
        _routed_alike(model_of(row))
        if (row.get("dataset", "").startswith(_EARLY_RUNS) and engine_of(row) != _IN_2024["vllm"])
        else model_of(row),
        machine(row, tp * pp),
        Layout(tp=tp, pp=pp),
        Software.named(engine_of(row)),
        weights_of(row),
        figure,
    )


def weights_of(row: Row) -> str:
    """Return the format of a row's weights.

    The published fp8 weights of some families are scaled by blocks, which rows do not always say.
    """
    stated = row["weight_dtype"].partition("/")[0] or "bf16"
    blocks = stated == "fp8" and any(each in row["model"].lower() for each in _BLOCK_SCALED)
    return "fp8_block" if blocks else stated


def figures(
    case: InferenceCase,
    rows: Sequence[Row],
    fitted: Fitted = CATALOG,
    answers: Answers | None = None,
) -> Floats:
    """Return the figures of the rows of one case.

    Args:
        case: What they share.
        rows: The rows.
        fitted: The constants of machines.
        answers: Runs that were simulated already; those of these rows are added.
    """
    if case.figure in _OF_USERS:
        known = {} if answers is None else answers
        found = [_simulated(row, fitted, known)[_OF_USERS[case.figure]] for row in rows]
        return np.array(found)
    machine = machine_of(case.cluster, case.software, fitted)
    engine = Engine(case.model, machine, case.layout, case.software, {"dtype": case.dtype})
    if case.software.name == "tokenweave" and case.figure.startswith(_PREFILL):
        metric = case.figure.removeprefix("static ")
        return np.asarray(_MS * prefill_s(engine, metric, _counts(rows, "isl")), dtype=float)
    counts = {"prompt_tokens": _counts(rows, "isl"), "output_tokens": _counts(rows, "osl")}
    if case.figure == _MAX_LOAD:
        result: Any = under_load(engine, **counts)
    else:
        result = generation(engine, batch=_counts(rows, "batch"), **counts)
    return np.asarray(_FIGURES[case.figure](result), dtype=float)


def _simulated(row: Row, fitted: Fitted, answers: Answers) -> Mapping[str, float]:
    """Return the figures of the run of a row of so many users, simulated once."""
    from shardcost.validate import serving  # which reads columns by this module

    run = tuple(cell for name, cell in row.items() if name not in {"metric", MEASURED, "unit"})
    if run not in answers:
        answers[run] = serving.answer(serving.point_of(_operating_point(row), fitted))
    return answers[run]


def _operating_point(row: Row) -> dict[str, str]:
    """Return a row of so many users in the columns of tables of serving."""
    point = {**row, **_CLOSED, "concurrency": row["batch"], "gpus": row["n_gpus"]}
    point |= {"cluster": _preset(row), "hf_id": row["model"]}
    word, benchmark, least = _PUBLIC
    if word in row.get("notes", ""):
        spans = (f"{round(least * whole_cell(row, name))}-{row[name]}" for name in ("isl", "osl"))
        point |= {"dataset": benchmark, "lengths": "uniform {} in, uniform {} out".format(*spans)}
    return point


def prefill_s(engine: Engine, metric: str, prompt_tokens: Any) -> Any:
    """Return the seconds of TokenWeave's prefill: as it is, ``no_allreduce``, or ``overlapped``.

    Overlapped, the tokens are split in two and each half's all-reduces run beside the GEMMs of the
    other (Gond et al. 2025, TokenWeave, arXiv:2505.11329): what is left is that GEMMs of half as
    many tokens take more than half as long.
    """
    result = engine.prefill(1, prompt_tokens)
    alone = result.time_s - result.exposed_s["tp"]
    if metric.endswith("no_allreduce"):
        return alone
    if metric.endswith("overlapped"):
        half = engine.prefill(1, ceil_div(prompt_tokens, 2))
        return alone + 2 * half.compute_s["gemm"] - result.compute_s["gemm"]
    return result.time_s


def _counts(rows: Iterable[Row], column: str) -> Any:
    return np.array([whole_cell(row, column) for row in rows])


_PREFILL: Final = "static prefill_latency"
_USERS: Final = "in-flight"
_MAX_LOAD: Final = "max load output_throughput_total"
_FIGURES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "static e2e_latency": lambda served: _MS * served.latency_s,
    "static ttft": lambda served: _MS * served.ttft_s,
    "static tpot": lambda served: _MS * served.tpot_s,
    "static output_throughput_total": lambda served: served.output_tokens_per_s,
    _PREFILL: lambda served: _MS * served.ttft_s,
    f"{_PREFILL}_overlapped": lambda served: _MS * served.ttft_s,
    f"{_PREFILL}_no_allreduce": lambda served: _MS * served.ttft_s,
    _MAX_LOAD: lambda served: served.output_tokens_per_s,
}
"""By batching and metric, in the metric's unit."""
_OF_USERS: Final[Mapping[str, str]] = {
    f"{_USERS} e2e_latency": "e2e_mean_ms",
    f"{_USERS} ttft": "ttft_mean_ms",
    f"{_USERS} tpot": "tpot_mean_ms",
    f"{_USERS} output_throughput_total": "output_tokens_per_s",
}
"""The same of so many users: the names of figures in tables of serving."""


def engine_of(row: Row) -> str:
    """Return the software of the catalog that ran a row."""
    folded = row["engine"].lower()
    name = next((result for word, result in _ENGINES if word in folded), _OTHERS)
    if name not in _EARLIER:
        return name
    stated = _VERSION.search(folded)
    if stated is None:
        return _IN_2024[name] if row.get("dataset", "").startswith(_EARLY_RUNS) else name
    version = tuple(map(int, stated.groups()))
    return next((earlier for before, earlier in _EARLIER[name] if version < before), name)


def _preset(row: Row) -> str:
    """Return the cluster of a row by its name in the catalog."""
    stated = row["cluster"]
    return _SMALLER.get((stated, row.get("gpu", "")), SERVERS.get(stated, stated))


def machine(row: Row, devices: int) -> Cluster:
    """Return the cluster of a row, joined by InfiniBand where a run exceeds a node."""
    name = _preset(row)
    inside = Cluster.named(name)
    return inside if devices <= inside.tiers[-1].gpus else Cluster.named(name, "ib")


def model_of(row: Row) -> Model:
    """Return the model of a row: the catalog's of that name, else one of the stated shape.

    The catalog goes first because a table does not state everything: the size of a head, experts,
    windows.
    """
    known = known_by(row["model"])
    if known is not None and _alike(known, row):
        return known
    if not row["layers"]:
        return known_model(row["model"])
    layers, hidden, heads, kv_heads, ffn, vocab = (whole_cell(row, name) for name in _SHAPE)
    block = Block(
        count=layers,
        attention=Attention(heads=heads, kv_heads=kv_heads, head_dim=ceil_div(hidden, heads)),
        feed_forward=FeedForward(width=ffn, gated=row["gated"] == "1"),
        parallel=row["model"].lower().replace(" ", "-").startswith(_PARALLEL),
    )
    return Model(name=row["model"], hidden_size=hidden, vocab_size=vocab, blocks=(block,))


def _routed_alike(model: Model) -> Model:
    """Return a model as it runs when all tokens of a step choose the same experts."""
    blocks = tuple(
        replace(block, feed_forward=replace(part, count=part.top_k))
        if isinstance(part := block.feed_forward, Experts)
        else block
        for block in model.blocks
    )
    return replace(model, blocks=blocks)


def known_model(name: str) -> Model:
    """Return the model of the catalog that a name means, however it is spelt."""
    result = known_by(name)
    if result is None:
        raise UnknownNameError("model without a shape", name, catalog.names("models"))
    return result


def _alike(model: Model, row: Row) -> bool:
    """Return whether a row may mean a model of the catalog: it states no other shape.

    Of a model whose first version alone has a sliding window, it must name that version.
    """
    if not row["layers"]:
        return True
    windowed = any(getattr(block.attention, "window_tokens", None) for block in model.blocks)
    return (
        model.num_layers == whole_cell(row, "layers")
        and model.hidden_size == whole_cell(row, "hidden")
        and (_FIRST in row["model"] or not windowed)
    )


@cache  # folds the names of a hundred models; tables repeat few names
def known_by(name: str) -> Model | None:
    """Return the model of the catalog that a name means, or None."""
    folded = _folded(name)
    for stem, content in catalog.contents("models"):
        if folded in {_folded(entry) for entry in (stem, *content["aliases"])}:
            return Model.named(stem)
    return None


_FIRST: Final = "v0.1"
_ADDED: Final = ("meta", "instruct", "hf", _FIRST)
"""Words in the names of checkpoints that do not change the shape."""


def _folded(name: str) -> str:
    """Return a name without owner, separators and words that do not matter.

    >>> _folded("meta-llama/Llama-3.1-8B-Instruct"), _folded("LLaMA v3.1 8B")
    ('llama3.18b', 'llama3.18b')
    """
    words = name.rpartition("/")[2].lower().replace("_", "-").replace(" ", "-").split("-")
    kept = (word.removeprefix("v") for word in words if word not in _ADDED)
    return "".join(kept)


DERIVED: Final[Derived] = {"software": engine_of}

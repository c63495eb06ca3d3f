"""Predictions of engines that serve many requests at once, figure by figure of an operating point.

A row is one figure of one run: TTFT, TPOT, time between tokens, end to end, throughput. Each run is
simulated once (`shardcost.load.simulate`) with the arrivals, lengths and settings that it states,
from its first request to its last: most of a short benchmark's mean TTFT is the burst of all users
at the start. Static batches go from prompt to last token without a queue
(`shardcost.load.engine.generation`). Where requests came at the highest rate that kept limits, as
in MLPerf's Server scenario, that rate is searched for by simulations as long as its rules ask,
about the rate that the closed form holds (`shardcost.load.steady.capacity`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.cluster import Cluster
from shardcost.errors import BadValueError, ShardcostError, UnknownNameError
from shardcost.formats.tables import Row, Table, number
from shardcost.layout import Layout
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.engine import Engine, generation
from shardcost.load.requests import Lengths, Requests
from shardcost.load.result import Limits, Load
from shardcost.load.simulate import simulate
from shardcost.load.steady import capacity
from shardcost.load.worker import KVRoom
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
from shardcost.validate.inference import GENERATED, engine_of, known_by, weights_of
from shardcost.validate.predictions import Derived, Floats, Predictions, cases_of, whole_cell

MEASURED: Final = "measured"
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
_PLACES: Final = "decode_max_num_seqs"
"""A column that `rows_of` adds: sequences of a rank of a worker that only decodes …"""
_BATCHES: Final = (*(2**power for power in range(11)), 192, 768)
_ROUND: Final = 16
"""… one of these, where the most users are no multiple of this."""
_KNOWN: Final = "prompts_known"
"""Another: whether a run before this one sent the same prompts."""
_OF_ONE_RUN: Final = re.compile(
    rf"figure|{MEASURED}|{_PLACES}|{_KNOWN}|(ttft|tpot|itl|e2e)_.*|.*_per_s"
)
"""Columns that are not of the server and its requests."""
_REQUESTS_PER_USER: Final = {"aggregated": 10, "disaggregated": 5}
"""Of closed loops, where a row does not say how many requests were sent (InferenceX's
benchmark_lib.sh; the bench.sh of ai-dynamo/dynamo's recipes of 2025) …"""
_MANY: Final = 5000
"""… and of one replica under other arrivals."""
_SWEPT: Final = ("dstack_pd_ratio",)
"""Data sets whose sweep over users sends the same prompts each time, beginning with most users
(the order of its result files; vllm bench serve draws prompts from one seed)."""
_PROMPT_TOKENS: Final = {"OpenOrca, at most": 220.0, "OpenOrca, GSM8K": 490.0}
"""Mean prompt of the data sets of MLPerf Inference, which it does not state: chosen by what its
Offline scenario reached."""
_LONGEST: Final = 1024
"""Tokens of the longest prompts and answers of OpenOrca in MLPerf Inference and of ShareGPT as
engines' benchmarks filter it."""
_BEGINNING: Final = ("llama", "mistral", "mixtral", "gemma", "deepseek")
"""Families of models whose tokenisers put a token of their own before a prompt (their published
``add_bos_token``)."""
_SPREAD: Final = 1.0
"""Standard deviation over mean of the lengths of conversations."""
_ACCEPTANCE: Final = {"sglang": 0.68, "trtllm": 0.78}
"""Probability that a drafted token of InferenceX's random prompts is kept, which it does not state:
chosen by each engine's runs with drafts, what drafting costs its host included."""
_DRAFTS: Final = 3
"""Tokens drafted per step where a row says that some were, not how many."""
_RULED: Final = "mlperf_inference"
"""How data sets begin whose runs kept the rules of MLPerf Inference …"""
_RUN_S: Final = 600.0
_LEAST_REQUESTS: Final = 24_576
"""… which ask for at least so many seconds and requests (v4.1, Llama-2-70B) …"""
_LIMITS: Final = Limits(ttft_s=2.0, tpot_s=0.2, percentile=99)
"""… and for these latencies in the Server scenario (v4.1, Llama-2-70B and Mixtral) …"""
_OTHER_LIMITS: Final = {
    "Llama-3.1-405B": Limits(ttft_s=6.0, tpot_s=0.175, percentile=99),
    "Llama-3.1-8B": Limits(ttft_s=2.0, tpot_s=0.1, percentile=99),
    "DeepSeek-R1": Limits(ttft_s=2.0, tpot_s=0.08, percentile=99),
}
"""… or for these of other models (v5.0 and v5.1)."""
_BATCH: Final[Mapping[str, Any]] = {"max_num_seqs": 2**14, "reserved_output": 0.0}
"""What such runs' schedulers were set to where a row does not say: the batch is what the KV cache
holds (TensorRT-LLM's MAX_UTILIZATION), as more sequences run than engines' usual settings admit."""
_NEAR: Final = (0.85, 1.15)
_HALVINGS: Final = 5
"""Of the search for the highest rate: where it lies, over that of the closed form."""
_STATIC: Final = ("splitwise",)
"""Data sets of static batches."""
_BY_VERSION: Final = {"dynamo": "", "TensorRT": "trtllm_2024", "2023": "vllm_2023"}
"""What a row's version says where it is not the engine's own: that of the framework around an
engine of 2025, that of TensorRT below the engine of MLPerf Inference v4.1 (2024), or the year."""
_ON_ROCM: Final = {"vllm_2024": "vllm_rocm"}
"""Engines that have other kernels on AMD's devices."""
_GATED_OUTPUT: Final = "qwen3"


class Point(NamedTuple):
    """An operating point of one replica: what serves, and its requests."""

    deployment: Deployment
    requests: Requests
    replicas: int
    """Workers that are alike and independent: throughput is of all."""
    static: bool
    """One batch from prompt to last token, without a queue."""
    limits: Limits | None
    """Where requests came at the highest rate that keeps these …"""
    ruled: bool = False
    """… and where the run is as long as the rules of MLPerf Inference ask."""


Change = Callable[[Software], Software]
"""What replaces constants of an engine, for fits."""


def predictions(table: Table, fitted: Fitted = CATALOG) -> Predictions:
    """Return the prediction of every row, in the unit of its figure."""
    rows = rows_of(table)

    def figures(_: tuple[str, ...], places: list[int]) -> Floats:
        found = answer(point_of(rows[places[0]], fitted))
        return np.array([found[rows[place]["figure"]] for place in places])

    return cases_of(table, case_of).predictions(figures)


def rows_of(table: Table) -> Sequence[Row]:
    """Return the rows of a table with what follows from others of the same server.

    Of a sweep that sends the same prompts to one server again (`_SWEPT`), the run of most users
    came first; the others find their prompts in the cache as far as it holds them.

    NVIDIA's recipes of TensorRT-LLM in two pools (NVIDIA/srt-slurm and ai-dynamo/dynamo, files like
    ``ctx1_gen4_tep8_batch32_eplb0_mtp0.yaml``) start decode workers with so many places a rank
    (`_BATCHES`), and send 1.05 to 2 times as many requests at a time: the others wait for a place.
    Recipes with more places than requests send multiples of 16. Those in NVFP4 measure one server
    under several numbers of users, the most of which tell its places; in fp8 each number of users
    has a recipe of its own.
    """
    rows = [dict(row) for row in table.records()]
    swept = [(row, sweep) for row in rows if (sweep := _sweep_of(row)) is not None]
    most: dict[tuple[str, ...], int] = {}
    for _, sweep in swept:
        most[sweep.server] = max(sweep.users, most.get(sweep.server, 0))
    for row, sweep in swept:
        users = most[sweep.server]
        if row["dataset"] in _SWEPT:
            row[_KNOWN] = str(int(sweep.users < users))
        elif users % _ROUND:
            fewer = (each for each in _BATCHES if each == 1 or each * sweep.ranks < users)
            row[_PLACES] = str(max(fewer))
    return rows


class _Sweep(NamedTuple):
    """A run of a server in two pools that others measure too."""

    server: tuple[str, ...]
    """The cells that say what was started and which prompts it got, not how many at a time."""
    users: int
    ranks: int
    """That decode."""


def _sweep_of(row: Row) -> _Sweep | None:
    """Return the sweep of a row, or None where nothing follows from it."""
    again = row["dataset"] in _SWEPT
    recipe = row["engine"] == "trtllm" and not row.get("max_num_seqs")
    if not ((again or recipe) and row["deployment"] == "disaggregated" and row.get("concurrency")):
        return None
    try:
        users, workers, dp = (
            whole_cell(row, name, most=_MOST)
            for name in ("concurrency", "decode_workers", "decode_dp")
        )
    except ShardcostError:
        return None  # the row says so where it is predicted
    stated = row.get("speculative", "")
    own = {**row, "speculative": "drafts" if stated not in {"", "0"} else stated}
    loads = {"concurrency", "requests"} if again or row.get("weight_dtype") == "nvfp4" else set()
    loads |= {"osl", "notes"} if again else set()
    server = (
        cell for name, cell in own.items() if name not in loads and not _OF_ONE_RUN.fullmatch(name)
    )
    return _Sweep(tuple(server), users, workers * dp)


def case_of(row: Row) -> tuple[str, ...]:
    """Return what tells the run of a row from others: all its cells but the measured one."""
    requests_of(row)
    return tuple(cell for name, cell in row.items() if not _OF_ONE_RUN.fullmatch(name))


def point_of(row: Row, fitted: Fitted = CATALOG, change: Change | None = None) -> Point:
    """Return the operating point of a row; raise where it cannot be simulated.

    Args:
        row: Of the table.
        fitted: The constants of machines.
        change: Replaces constants of the engine, if given.
    """
    engine = _scheduled(Software.named(software(row)), row)
    engine = engine if change is None else change(engine)
    if row.get("eager") == "1":
        engine = engine.without_graphs()
    machine = machine_of(_cluster(row), engine, fitted)
    said = row.get("speculative", "") or "0"
    accepted = _ACCEPTANCE.get(row["engine"], max(_ACCEPTANCE.values()))
    drafts = _DRAFTS if said == "mtp" else int(number({"n": said}, "n", -1, 64, "a count"))

    def pool(prefix: str) -> Pool:
        layout, own = layout_of(row, prefix), engine
        if row.get(_PLACES) and prefix == "decode_":
            places = whole_cell(row, _PLACES, most=_MOST)
            own = replace(engine, scheduler=replace(engine.scheduler, max_num_seqs=places))
        worker = Engine(model_of(row), machine, layout, own, formats_of(row), drafts, accepted)
        count = whole_cell(row, f"{prefix}workers", most=_MOST) if prefix else 1
        return Pool(worker, count)

    ruled = row["dataset"].startswith(_RULED)
    apart = row["deployment"] == "disaggregated"
    prefixes = ("decode_", "prefill_") if apart else ("",)
    deployment, requests = Deployment(*map(pool, prefixes)), requests_of(row)
    if row.get(_KNOWN) == "1" and _holds(deployment, requests):
        requests = replace(requests, prefix_tokens=int(requests.mean_prompt_tokens))
    return Point(
        deployment,
        requests,
        whole_cell(row, "replicas", most=_MOST),
        row["dataset"] in _STATIC,
        _OTHER_LIMITS.get(row["model"], _LIMITS) if ruled and row["arrival"] == "poisson" else None,
        ruled,
    )


def _holds(deployment: Deployment, requests: Requests) -> bool:
    """Return whether the KV cache of the workers that prefill holds all prompts."""
    pool = deployment.pools[0]
    tokens = requests.count * requests.mean_prompt_tokens
    room = KVRoom(pool.engine, ceil(requests.mean_prompt_tokens))
    return tokens <= pool.workers * int(pool.engine.layout.dp) * room.blocks * room.block


def _scheduled(engine: Software, row: Row) -> Software:
    """Return an engine with the settings that a row states."""
    names = ("max_num_batched_tokens", "max_num_seqs")
    stated: dict[str, Any] = dict(_BATCH) if row["dataset"].startswith(_RULED) else {}
    stated |= {name: whole_cell(row, name, most=_MOST) for name in names if row.get(name)}
    usual = engine.scheduler
    chunked = row.get("chunked_prefill", "")
    if chunked or not row["dataset"].startswith(_RULED):
        on = chunked == "1" if chunked else usual.chunked_prefill
        usual = usual.prefilling(chunked=on, context_tokens=model_of(row).context_tokens)
    if row.get("recv_interval"):
        stated["receive_interval"] = whole_cell(row, "recv_interval", most=_MOST)
    if row["dataset"] in GENERATED and engine.scheduler.policy == "mixed":
        # Its generated configurations give a step the tokens of one prompt beside the other users'.
        prompt = round(number(row, "isl", 0, _MOST, "a number above 0"))
        others = whole_cell(row, "concurrency", most=_MOST) - (not usual.chunked_prefill)
        stated |= {"max_num_batched_tokens": prompt + others, "chunked_prefill": False}
    return replace(engine, scheduler=replace(usual, **stated))


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
    known = next((own for name, own in _PROMPT_TOKENS.items() if stated.startswith(name)), None)
    if row.get("isl") or known is None:
        known = number(row, "isl", 0, _MOST, "a number above 0")
    prompt = Lengths(mean=max(1.0, known + _begins(row)))
    if stated == "fixed":
        return prompt, output
    most = longest[-1] if longest else _LONGEST

    def spread(mean: float, most: int) -> Lengths:
        high = max(most, round(mean) + 1)
        return Lengths(kind="lognormal", mean=mean, cv=_SPREAD, high=high)

    if not stated.startswith("fixed"):
        prompt = spread(prompt.mean, _LONGEST)
    return prompt, spread(output.mean, most)


def _begins(row: Row) -> int:
    """Return the tokens that the tokeniser puts before prompts of so many tokens of text."""
    generated = row["dataset"] in GENERATED
    return int(generated and model_of(row).name.startswith(_BEGINNING))


def answer(point: Point) -> dict[str, float]:
    """Return the figures of an operating point by the names of the table's columns."""
    if point.static:
        return _static(point)
    load = _ruled(point) if point.ruled else simulate(point.deployment, point.requests)
    rate = load.requests.rate_per_s if point.limits else load.requests_per_s
    figures: dict[str, float] = {}
    for name in ("ttft", "tpot", "itl", "e2e"):
        spread = getattr(load, f"{name}_s")
        for statistic, seconds in zip(("mean", "median", "p90", "p99"), spread, strict=True):
            figures[f"{name}_{statistic}_ms"] = _MS * seconds
    figures["requests_per_s"] = point.replicas * (rate or 0.0)
    figures["output_tokens_per_s"] = figures["requests_per_s"] * point.requests.mean_output_tokens
    return figures


def _ruled(point: Point) -> Load:
    """Return a run of MLPerf Inference: at the highest rate within limits, or all at once."""
    deployment, asked = point.deployment, point.requests
    if asked.prompt is None or asked.output is None:
        raise BadValueError("requests", asked.arrival, "requests with lengths")
    held = capacity(deployment, prompt=asked.prompt, output=asked.output).requests_per_s

    def run(rate: float) -> Load:
        count = ceil(max(_RUN_S * rate, _LEAST_REQUESTS / point.replicas))
        own = None if point.limits is None else rate
        return simulate(deployment, replace(asked, count=count, rate_per_s=own))

    if point.limits is None:
        return run(held)
    low, high = (share * held for share in _NEAR)
    best = run(low)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        tried = run(middle)
        if 100 * tried.good(point.limits) < point.limits.percentile:
            high = middle
        else:
            low, best = middle, tried
    return best


def _static(point: Point) -> dict[str, float]:
    asked = point.requests
    batch = generation(
        point.deployment.serving.engine,
        batch=asked.count,
        prompt_tokens=round(asked.mean_prompt_tokens),
        output_tokens=round(asked.mean_output_tokens),
    )
    times = {"ttft": batch.ttft_s, "tpot": batch.tpot_s, "e2e": batch.latency_s}
    return {f"{name}_mean_ms": _MS * seconds for name, seconds in times.items()}


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
    stated = next((name for word, name in _BY_VERSION.items() if version.startswith(word)), None)
    own = "" if stated == "" else f" {version}"
    name = stated or engine_of({**row, "engine": f"{row['engine']}{own}"})
    return _ON_ROCM.get(name, name) if row["cluster"].startswith("mi") else name


def kind(row: Row) -> str:
    """Return whether a row's model is dense or a mixture of experts."""
    return "experts" if row.get("experts") else "dense"


def measure(row: Row) -> str:
    """Return what a row's figure is of: ttft, tpot, itl, e2e or throughput."""
    first = row["figure"].partition("_")[0]
    return first if first in {"ttft", "tpot", "itl", "e2e"} else "throughput"


DERIVED: Final[Derived] = {"software": software, "kind": kind, "measure": measure}

"""Mixture-of-experts layers: where expert groups sit, what they hold, send and hide."""

from __future__ import annotations

import csv
import random
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from lab import refit_routing
from shardcost import Cluster, Decode, Estimate, Layout, Model, Prefill, Train, estimate
from shardcost.catalog import names, tuner_table
from shardcost.errors import InfeasibleError, ShardcostError
from shardcost.estimate.interval import ranges_of
from shardcost.estimate.pieces import is_exchange
from shardcost.estimate.placement import strides
from shardcost.formats.tables import read_table
from shardcost.machine.dispatch import libraries
from shardcost.memory.parameters import (
    expert_copies,
    expert_tensor_degree,
    layer_parameters,
)
from shardcost.model import Experts
from shardcost.program.operations import Collective, Elementwise, ExpertKernels, Gemm
from shardcost.routing import DISPATCH_LIBRARIES, expert_load
from shardcost.software import Software

ROUNDING = 1 + 1e-9
LAB = Path(refit_routing.__file__).parent
MIXTURES = [
    name
    for name in names("models")
    if any(isinstance(block.feed_forward, Experts) for block in Model.named(name).blocks)
]
FOUR_NODES = Cluster.named("h200_sxm", network="ib_8x400g")
TRAIN = Train(global_batch=256, sequence_length=4096)
DECODE = Decode(batch=64, context_tokens=4096, dtype="fp8")


def grid(layout: Layout) -> dict[int, tuple[int, int]]:
    """Return each device's expert shard and expert rank, in Megatron Core's order."""
    etp = int(expert_tensor_degree(layout))
    ranks = int(layout.tp * layout.cp * layout.dp)
    return {i: (i % etp, i // etp % int(layout.ep)) for i in range(ranks)}


@pytest.mark.parametrize(
    "layout",
    [
        Layout(tp=8, dp=4, ep=8),
        Layout(tp=8, dp=4, ep=32),
        Layout(tp=8, dp=4, ep=8, etp=1),
        Layout(tp=4, dp=8, ep=4, etp=2),
        Layout(tp=2, dp=16, ep=8, etp=2),
    ],
)
def test_expert_groups_sit_where_their_ranks_are(layout: Layout) -> None:
    """The nodes of a group, counted rank by rank, are those of its ranks and stride."""
    stride = strides(layout)["ep"]
    own = [device for device, (shard, _) in grid(layout).items() if shard == 0][: int(layout.ep)]
    assert [device - own[0] for device in own] == [stride * i for i in range(int(layout.ep))]


def test_experts_on_four_nodes_send_over_the_network() -> None:
    result = estimate("deepseek-v3", FOUR_NODES, Layout(tp=8, ep=8, dp=4), DECODE)
    assert result.traffic.network_bytes > 1e6
    inside = estimate("deepseek-v3", FOUR_NODES, Layout(tp=8, ep=8, dp=4, etp=1), DECODE)
    assert inside.traffic.network_bytes == 0  # each replica has all experts on its own node


@pytest.mark.parametrize("ep", [1, 2, 4, 8, 16])
def test_sharded_experts_enter_each_node_whole(ep: int) -> None:
    """With ZeRO 3 the ports of a node receive the experts that its own GPUs do not keep."""
    model = Model.named("qwen3-30b-a3b")
    layout = Layout(dp=32, ep=ep, zero=3, micro_batch=8)
    result = estimate(model, FOUR_NODES, layout, TRAIN)
    blocks = [(each.count, layer_parameters(model, each, Layout())) for each in model.blocks]
    experts = sum(count * weights.experts for count, weights in blocks)
    from_others = experts * (min(1, 8 / ep) - 8 / 32)
    forward_and_backward = 2 * 2 * from_others / 8
    assert forward_and_backward < result.traffic.network_bytes


@pytest.mark.parametrize("micro_batch", [1, 8])
def test_with_zero_3_every_weight_is_gathered_for_both_passes(micro_batch: int) -> None:
    """But for the embedding and the head, which stay gathered in between."""
    model = Model.named("llama3-8b")
    layout = Layout(dp=32, zero=3, micro_batch=micro_batch)
    result = estimate(model, FOUR_NODES, layout, TRAIN)
    ends = 2 * model.vocab_size * model.hidden_size
    gathered = 2 * (2 * (model.parameters - ends) + ends)
    scattered = 4 * model.parameters
    runs = 256 // (32 * micro_batch)
    sent = runs * (gathered + scattered) * 31 / 32
    assert result.traffic.by_group["dp"] == pytest.approx(sent, rel=1e-4)


@pytest.mark.parametrize("shard_degree", [4, 16])
def test_gradients_of_sharded_experts_meet_those_of_all_copies(shard_degree: int) -> None:
    """Scattered inside a shard group and reduced across, they have been on every rank with them."""
    layout = Layout(dp=64, ep=8, zero=2, shard_degree=shard_degree)
    step = estimate("qwen3-30b-a3b", FOUR_NODES, layout, TRAIN).ledger.program.step
    assert step is not None
    scattered, across = (
        op
        for op in step.gradients
        if isinstance(op, Collective) and op.group.startswith("dp_experts")
    )
    assert scattered.ranks * across.ranks == expert_copies(layout) == 8
    places = strides(layout)
    assert places[across.group] == places[scattered.group] * scattered.ranks


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_of_all_ranks_add_up_to_those_of_the_model(name: str) -> None:
    model = Model.named(name)
    degrees = ([1, 2, 4], [1, 2, 8], [1, 2, 4, 8, 16], [None, 1, 2], [0, 32])
    for block in model.blocks:
        part = block.feed_forward
        if not isinstance(part, Experts):
            continue
        every = part.count * part.expert.parameters(part.row_width(model.hidden_size))
        for tp, dp, ep, etp, more in product(*degrees):
            try:
                layout = Layout(tp=tp, dp=dp, ep=ep, etp=etp, redundant_experts=more)
            except InfeasibleError:
                continue
            held = layer_parameters(model, block, layout).experts
            copies = expert_copies(layout)
            if part.expert.bias:
                continue  # the bias of the output is on every rank that shares an expert
            assert held * tp * dp / copies == pytest.approx(every * (1 + more / part.count))


def test_redundant_experts_allow_degrees_that_the_experts_do_not() -> None:
    wide = Layout(dp=72, ep=72, redundant_experts=32)
    work = Decode(batch=72 * 64, context_tokens=2000, dtype="fp8")
    machine = Cluster.named("h100_sxm", network="ib_8x400g")
    held = estimate("deepseek-v3", machine, wide, work)
    kernels = [entry.op for entry in held.entries if isinstance(entry.op, ExpertKernels)]
    assert {op.experts for op in kernels} == {4}
    with pytest.raises(InfeasibleError, match="ep does not divide 256 experts"):
        estimate("deepseek-v3", machine, replace(wide, redundant_experts=0), work)


def test_distinct_experts_follow_the_known_expectation() -> None:
    """163 of 256 experts for 32 tokens of top-8; each token's own at batch 1."""
    assert expert_load(32, 256, 8).active == pytest.approx(163.3, abs=0.1)
    assert expert_load(1, 256, 8).active == pytest.approx(8)
    rng = random.Random(1)
    drawn = [len({e for _ in range(32) for e in rng.sample(range(64), 4)}) for _ in range(2000)]
    assert expert_load(32, 64, 4).active == pytest.approx(sum(drawn) / 2000, rel=0.01)


def exchanges(result: Estimate) -> list[Collective]:
    return [entry.op for entry in result.entries if is_exchange(entry.op)]  # type: ignore[misc]


def test_an_expert_group_inside_the_tensor_group_exchanges_nothing() -> None:
    """Every rank has all tokens: each runs its experts on them, and a sum joins the results."""
    layout = Layout(tp=8, ep=8, routing="even")
    result = estimate("qwen3-235b-a22b", FOUR_NODES, layout, DECODE)
    assert all(op.ranks == 1 for op in exchanges(result))
    rows = {entry.op.rows for entry in result.entries if isinstance(entry.op, ExpertKernels)}
    assert rows == {64 * 8 / 8}


def test_with_sequence_parallelism_each_rank_sends_its_own_tokens() -> None:
    layout = Layout(tp=2, dp=16, ep=32, etp=1, sequence_parallel=True)
    result = estimate("qwen3-235b-a22b", FOUR_NODES, layout, TRAIN)
    sent = {op.size_bytes for op in exchanges(result)}
    assert sent == {4096 / 2 * 8 * 4096 * 2}  # tokens x top-k x hidden size x bytes
    around = [e.op.name for e in result.entries if isinstance(e.op, Collective)]
    assert not [name for name in around if "expert" in name and "all-gather" in name]


@pytest.mark.parametrize("overlap", ["1f1b", "two_batch"])
def test_overlap_hides_the_exchange_and_no_more(overlap: str) -> None:
    training = overlap == "1f1b"
    layout = Layout(dp=32, ep=32, expert_overlap="none")
    work: Any = TRAIN if training else Decode(batch=4096, context_tokens=4096, dtype="fp8")
    software = "megatron_core" if training else "sglang"
    apart = estimate("deepseek-v3", FOUR_NODES, layout, work, software=software)
    hidden = estimate(
        "deepseek-v3",
        FOUR_NODES,
        replace(layout, expert_overlap=overlap),
        work,
        software=software,
    )
    assert 0 <= hidden.exposed_s["ep"] < apart.exposed_s["ep"]
    if training:
        assert hidden.time_s < apart.time_s
        assert hidden.time_s >= apart.time_s - apart.exposed_s["ep"]


def test_software_of_ones_own_runs_the_kernels_that_most_engines_have() -> None:
    own = Software(name="own", title="An engine", experts="fused", dispatch="deepep")
    result = estimate("deepseek-v3", FOUR_NODES, Layout(dp=32, ep=32), DECODE, software=own)
    engine = estimate("deepseek-v3", FOUR_NODES, Layout(dp=32, ep=32), DECODE, software="sglang")
    assert result.compute_s["gemm"] == pytest.approx(engine.compute_s["gemm"], rel=0.2)


def order_bytes(result: Estimate) -> float:
    """Return what one copy into the order of a rank's experts moves."""
    ops = [entry.op for entry in result.entries if entry.op.name == "expert order"]
    return max((float(op.bytes_moved) for op in ops if isinstance(op, Elementwise)), default=0.0)


def test_rows_are_ordered_where_a_rank_has_several_experts() -> None:
    """After the ranks that share an expert gathered them: etp times as many as a rank sent."""
    model = Model.named("mixtral-8x7b")

    def ordered(**degrees: Any) -> float:
        layout = Layout(**degrees, routing="even", sequence_parallel=degrees.get("tp", 1) > 1)
        return order_bytes(estimate(model, FOUR_NODES, layout, TRAIN, software="megatron_core"))

    rows_bytes = 4096 * 2 * model.hidden_size * 2
    assert ordered(dp=8, ep=4) == pytest.approx(2 * rows_bytes)
    assert ordered(dp=8, ep=8) == 0
    assert ordered(tp=4, dp=2, ep=2, etp=4) == pytest.approx(2 * rows_bytes)
    assert ordered(tp=4, dp=2, ep=2, etp=1) == pytest.approx(2 * rows_bytes / 4)


def test_unfused_permutation_takes_what_was_measured() -> None:
    with (LAB / "measured" / "own_h200_permutation.csv").open(encoding="utf-8") as file:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]

    def over_copy(name: str) -> float:
        return median(row[name] / row["copy_us"] for row in rows)

    stated = tuner_table("permutation")["unfused"]
    measured = {
        "dispatch": [over_copy("permute_us"), over_copy("permute_gradient_us")],
        "combine": [over_copy("unpermute_us"), over_copy("unpermute_gradient_us")],
        "expert_order": over_copy("chunks_us"),
    }
    for kernel, times in measured.items():
        assert stated[kernel] == pytest.approx(times, rel=0.03)


def test_unfused_permutation_is_dearer() -> None:
    model, layout = Model.named("qwen3-30b-a3b"), Layout(dp=8, ep=8)
    fused = Software.named("megatron_core")
    steps = [
        estimate(model, FOUR_NODES, layout, TRAIN, software=software).time_s
        for software in (fused, replace(fused, fused_permute=False))
    ]
    assert 1.02 < float(steps[1] / steps[0]) < 1.3


def random_layout(rng: random.Random) -> dict[str, Any]:
    return {
        "tp": rng.choice([1, 2, 4, 8]),
        "dp": rng.choice([1, 4, 8, 16, 32]),
        "pp": rng.choice([1, 1, 4]),
        "ep": rng.choice([2, 4, 8, 16, 32, 64]),
        "etp": rng.choice([None, None, 1, 2]),
        "dispatch": rng.choice(["auto", "nccl", "allgather", "deepep", "pplx", "uccl"]),
        "expert_overlap": rng.choice(["none", "two_batch", "1f1b"]),
        "imbalance": rng.choice([1.0, 1.3]),
    }


def random_mixtures(count: int) -> list[Estimate]:
    rng = random.Random(16)
    made: list[Estimate] = []
    while len(made) < count:
        given, dtype = random_layout(rng), rng.choice(["bf16", "fp8"])
        work: Any = rng.choice(
            [
                Train(global_batch=256, sequence_length=4096, dtype=dtype),
                Prefill(batch=32, prompt_tokens=rng.choice([512, 4096]), dtype=dtype),
                Decode(batch=rng.choice([32, 1024]), context_tokens=4096, dtype=dtype),
            ]
        )
        sequence_parallel = work.phase == "train" and rng.random() < 0.5
        place = rng.choice(["h100_sxm", "h200_sxm", "b200_sxm", "gb200_nvl72", "mi300x"])
        cluster = Cluster.named(place, network=rng.choice(["ib_8x400g", "roce_8x400g"]))
        try:
            layout = Layout(**given, sequence_parallel=sequence_parallel)
            made.append(estimate(rng.choice(MIXTURES), cluster, layout, work))
        except ShardcostError:
            continue  # infeasible
    return made


def test_the_laws_hold_for_mixtures() -> None:
    for result in random_mixtures(200):
        about = f"{result.model.name} on {result.cluster.name}, {result.layout}, {result.workload}"
        assert max(result.link_utilisation.values()) <= ROUNDING, about
        assert sum(result.parts_s.values()) == pytest.approx(result.time_s, rel=1e-9), about
        assert min(result.parts_s.values()) >= 0, about
        assert result.mfu <= result.hfu * ROUNDING, about
        assert result.hfu <= 1, about
        for entry in result.entries:
            if isinstance(entry.op, Gemm) and entry.op.fullest is not None:
                assert entry.op.fullest >= entry.op.m * (1 - 1e-9), about


DEEPSEEK: dict[str, tuple[str, Layout, Any, str, str, float, int]] = {
    "DeepSeek-V3 training": (
        "h800_sxm",
        Layout(
            pp=16,
            dp=128,
            ep=64,
            zero=1,
            schedule="zero_bubble",
            recompute="layernorm+mla_up_proj",
            last_stage_layers=1,
        ),
        Train(
            global_batch=15360,
            sequence_length=4096,
            dtype="fp8_block",
            moment_dtype="bf16",
            mtp_layers=1,
        ),
        "hai_llm",
        "1,543 tokens/s/GPU",
        1543.0,
        1,
    ),
    "DeepSeek's decode service": (
        "h800_sxm",
        Layout(dp=144, ep=144, redundant_experts=32, expert_overlap="two_batch"),
        Decode(batch=12672, context_tokens=4989),
        "sglang",
        "14.8 thousand",
        14.8,
        8,
    ),
    "prompts of 1,024": (
        "h100_sxm",
        Layout(dp=32, ep=32, redundant_experts=32, expert_overlap="two_batch"),
        Prefill(batch=512, prompt_tokens=1024),
        "sglang",
        "57.7 thousand",
        57.7,
        8,
    ),
    "prompts of 4,096": (
        "h100_sxm",
        Layout(dp=32, ep=32, redundant_experts=32, expert_overlap="two_batch"),
        Prefill(batch=128, prompt_tokens=4096),
        "sglang",
        "50.3 thousand",
        50.3,
        8,
    ),
    "SGLang decode": (
        "h100_sxm",
        Layout(dp=72, ep=72, redundant_experts=32, expert_overlap="two_batch"),
        Decode(batch=18432, context_tokens=2000),
        "sglang",
        "22.3 thousand",
        22.3,
        8,
    ),
}
"""Published figures of docs/experts.md: machine, layout, workload, software; the figure as it is
written, as a number, and of how many GPUs it is."""


@pytest.mark.parametrize("name", DEEPSEEK)
def test_the_documentation_states_what_is_predicted_of_published_figures(
    name: str, repository: Path
) -> None:
    place, layout, work, software, written, published, gpus = DEEPSEEK[name]
    cluster = Cluster.named(place, network="ib_8x400g")
    result = estimate("deepseek-v3", cluster, layout, work, software=software)
    rate = result.tokens_per_s_per_gpu * gpus / (1 if gpus == 1 else 1000)
    lines = (repository / "docs" / "experts.md").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith("| ") and name in line]
    _, figure, predicted, error = (cell.strip() for cell in line.strip("| ").split(" | "))
    assert figure.startswith(written)
    assert float(predicted.split()[0].replace(",", "")) == pytest.approx(rate, rel=5e-3)
    assert float(error.split()[0]) == pytest.approx(100 * (rate / published - 1), abs=0.6)
    speeds = ranges_of(result)["tokens_per_s_per_gpu"]
    assert speeds.low < published * (1 if gpus == 1 else 1000) / gpus < speeds.high


def test_the_layout_offers_the_libraries_that_the_catalog_has() -> None:
    assert sorted(DISPATCH_LIBRARIES) == sorted(libraries())


def test_an_offset_of_a_curve_says_nothing_of_routing() -> None:
    measured = np.array([4.0, 6.0, 9.0])
    assert refit_routing.deviation_pct(measured + 1.5, measured) == pytest.approx(0)
    steeper = refit_routing.deviation_pct(measured * [1.0, 1.1, 1.2], measured)
    assert steeper.mean() > 1


def test_the_skew_that_suits_most_models_is_taken() -> None:
    errors = {"one": np.array([[4.0], [2.0], [3.0]]), "other": np.array([[3.0], [2.5], [1.0]])}
    assert refit_routing.best_of(errors) == 2
    model = refit_routing.with_skew(Model.named("deepseek-v3"), 0.5)
    (experts,) = {b.feed_forward for b in model.blocks if isinstance(b.feed_forward, Experts)}
    assert experts.skew == 0.5


@pytest.mark.refit
def test_routers_are_as_skewed_as_serving_runs_show(evidence: Path) -> None:
    table = evidence / "measured" / "more" / "serving.csv"
    if not table.is_file():
        pytest.skip(f"no {table.name} among the evidence")
    curves = refit_routing.predicted(refit_routing.curves_of(read_table(table)))
    errors = refit_routing.errors_of(curves)
    (default,) = (own.default for own in fields(Experts) if own.name == "skew")
    chosen = refit_routing.SKEWS.index(default)
    # More skew suits the curves a little better and TPOT itself as much worse.
    for each in (errors, refit_routing.errors_of(curves, refit_routing.error_pct)):
        means = np.mean([own.mean(axis=1) for own in each.values()], axis=0)
        assert means[chosen] < means.min() + 0.5
    for own in errors.values():  # for each model, little worse than random routing at the most
        assert own[chosen].mean() < own[0].mean() + 0.5

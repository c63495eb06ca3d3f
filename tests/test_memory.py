"""What a rank holds: published formulas, shares that add up, moments, and measured runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab import memory_fit
from shardcost.cluster import Cluster
from shardcost.errors import BadTypeError, BadValueError, UnknownNameError
from shardcost.estimate.step import estimate
from shardcost.estimate.why import why
from shardcost.formats.tables import Table, read_table
from shardcost.layout import Layout
from shardcost.memory import KINDS, Memory, MemoryPolicy, memory_of, saved_bytes_per_layer
from shardcost.memory.parameters import layer_parameters
from shardcost.memory.policy import policy_named, policy_of
from shardcost.memory.stages import in_flight, last_stage, stage_by_cost, stage_evenly
from shardcost.model import Attention, Block, Experts, FeedForward, Model
from shardcost.validate import memory as evidence_memory
from shardcost.validate.validation import validate
from shardcost.workload import Decode, Prefill, Train, Workload

GIB = 2**30
PAPER = MemoryPolicy(attention="unfused", dropout=True)
BARE = MemoryPolicy()
WORK = Train(global_batch=64, sequence_length=2048)


def plain(heads: int = 16, layers: int = 8, hidden: int = 1024, **more: Any) -> Model:
    """Return the architecture of Korthikanti et al.: plain heads, f = 4 h, not gated."""
    block = Block(
        count=layers,
        attention=Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads),
        feed_forward=FeedForward(width=4 * hidden, gated=False),
    )
    return Model(name="plain", hidden_size=hidden, vocab_size=32000, blocks=(block,), **more)


def per_sbh(model: Model, layout: Layout) -> float:
    kept = saved_bytes_per_layer(model, model.blocks[0], layout, WORK, PAPER)
    return float(kept / (2048 * layout.micro_batch * model.hidden_size))


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("heads", [8, 32])
def test_activations_are_those_of_korthikanti(t: int, heads: int) -> None:
    model, a_s_over_h = plain(heads), heads * 2048 / 1024
    scores = 5 * a_s_over_h / t
    cases: dict[tuple[str, bool], float] = {
        ("none", False): 10 + 24 / t + scores,
        ("none", True): 34 / t + scores,
        ("selective", False): 10 + 24 / t,
        ("selective", True): 34 / t,
        ("full", False): 2,
    }
    for (recompute, spread), expected in cases.items():
        layout = Layout(tp=t, micro_batch=4, recompute=recompute, sequence_parallel=spread)
        assert per_sbh(model, layout) == pytest.approx(expected, rel=1e-12)


def test_without_tensor_parallelism_the_papers_34() -> None:
    assert per_sbh(plain(16), Layout()) == pytest.approx(34 + 5 * 16 * 2048 / 1024)


def test_fused_attention_keeps_statistics_instead_of_scores() -> None:
    model = plain(16)
    kept = saved_bytes_per_layer(model, model.blocks[0], Layout(), WORK, BARE)
    assert kept == 2048 * (1024 * (34 - 2) + 4 * 16)


def test_context_parallelism_divides_activations_but_not_weights() -> None:
    one, four = (memory_of(plain(), Layout(cp=n), WORK, software=BARE).by_kind() for n in (1, 4))
    assert four["activations"] == pytest.approx(one["activations"] / 4)
    assert four["weights"] == one["weights"]


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-8b", "deepseek-v3", "gpt-oss-120b"])
def test_weights_of_all_stages_are_the_models(name: str) -> None:
    model = Model.named(name)
    for pp in (1, 4):
        stages = [
            memory_of(model, Layout(pp=pp), WORK, software=BARE, stage=i).by_kind()["weights"]
            for i in range(pp)
        ]
        copies = 1 if pp == 1 or not model.tied_embeddings else 2
        tables = (copies - 1) * model.vocab_size * model.hidden_size
        assert sum(stages) == pytest.approx(2 * (model.parameters + tables))


def test_a_tied_head_is_copied_where_stages_are_apart() -> None:
    tied, free = plain(tied_embeddings=True), plain()
    for pp, copies in ((1, 1), (2, 2)):
        total = sum(
            memory_of(tied, Layout(pp=pp), WORK, software=BARE, stage=i).by_kind()["weights"]
            for i in range(pp)
        )
        spared = 2 * free.vocab_size * free.hidden_size * (2 - copies)
        assert total == 2 * free.parameters - spared


def test_key_value_heads_are_copied_beyond_their_number() -> None:
    model = Model.named("llama3-8b")
    block = model.blocks[0]
    eight, sixteen = (layer_parameters(model, block, Layout(tp=t)).dense for t in (8, 16))
    key_value = 2 * 4096 * 128
    norms = 2 * 4096
    assert sixteen - norms == pytest.approx((eight - norms - key_value) / 2 + key_value)


def test_experts_are_divided_by_tp_where_ep_leaves_it_free() -> None:
    model = Model.named("mixtral-8x7b")
    part = model.blocks[0].feed_forward
    assert isinstance(part, Experts)
    all_experts = part.count * part.expert.parameters(model.hidden_size)
    held = {
        (tp, ep, dp): layer_parameters(model, model.blocks[0], Layout(tp=tp, ep=ep, dp=dp)).experts
        for tp, ep, dp in ((1, 1, 1), (4, 1, 1), (2, 4, 4), (4, 8, 2))
    }
    assert held[1, 1, 1] == all_experts
    assert held[4, 1, 1] == all_experts / 4
    assert held[2, 4, 4] == all_experts / 8
    assert held[4, 8, 2] == all_experts / 8


def test_zero_divides_ever_more() -> None:
    model = plain()
    whole = memory_of(model, Layout(dp=8), WORK, software=BARE).by_kind()
    assert whole["weights"] == 2 * model.parameters
    assert whole["gradients"] == 4 * model.parameters
    assert whole["optimizer"] == 12 * model.parameters
    for stage, kinds in enumerate(((), ("optimizer",), ("gradients",), ("weights",))):
        held = memory_of(model, Layout(dp=8, zero=stage), WORK, software=BARE).by_kind()
        divided = {"optimizer", "gradients", "weights"} if stage == 3 else set(kinds)
        for kind in divided:
            assert held[kind] == whole[kind] / 8
    half = memory_of(model, Layout(dp=8, zero=1, shard_degree=2), WORK, software=BARE).by_kind()
    assert half["optimizer"] == whole["optimizer"] / 2


def test_zero_divides_experts_over_the_ranks_that_have_them() -> None:
    model = Model.named("mixtral-8x7b")
    layout = Layout(dp=16, ep=8, zero=1)
    layer = layer_parameters(model, model.blocks[0], layout)
    outside = 2 * model.vocab_size * model.hidden_size + model.hidden_size
    shard = (layer.dense * 32 + outside) / 16 + layer.experts * 32 / 2
    held = memory_of(model, layout, WORK, software=BARE).by_kind()
    assert held["optimizer"] == pytest.approx(12 * shard)


def test_optimizer_state_by_format_and_kind() -> None:
    model = plain()

    def state(**how: Any) -> float:
        work = Train(global_batch=64, sequence_length=2048, **how)
        held = memory_of(model, Layout(), work, software=BARE).by_kind()
        return float(held["optimizer"]) / float(model.parameters)

    assert state() == 12
    assert state(dtype="fp32") == 8
    assert state(dtype="fp8") == 12
    assert state(optimizer="sgd") == 8


def test_only_adapters_have_gradients_and_optimizer_state() -> None:
    work = replace(WORK, adapters=True, adapter_rank=8)
    model = plain()
    held = memory_of(model, Layout(dp=4), work, software=BARE).by_kind()
    full = memory_of(model, Layout(dp=4), WORK, software=BARE).by_kind()
    h = model.hidden_size
    own = model.num_layers * 8 * ((h + 3 * h) + (h + h))  # beside QKV and the projection
    assert held["gradients"] == 4 * own
    assert held["optimizer"] == 12 * own
    assert held["weights"] == full["weights"] + 2 * own
    sharded = memory_of(model, Layout(dp=4, zero=3), work, software=BARE).by_kind()
    assert sharded["weights"] == held["weights"] / 4
    assert sharded["gradients"] == own


@pytest.mark.parametrize(
    ("targets", "inputs"), [("qkv", (1, 0)), ("attention", (1, 0)), ("all", (2, 1))]
)
def test_frozen_matrices_keep_no_inputs(targets: str, inputs: tuple[int, int]) -> None:
    """Norms keep their inputs, attention what it reads and makes, the activation what it reads.

    Elements per token of one layer: only adapters keep the input of QKV and up, and of down.
    """
    model, work = plain(), replace(WORK, adapters=True, adapter_targets=targets)
    h, f, rank = model.hidden_size, 4 * model.hidden_size, work.adapter_rank
    narrow = {"qkv": 1, "attention": 2, "all": 4}[targets] * rank
    block = model.blocks[0]
    assert isinstance(block.attention, Attention)
    tokens = 2 * 2048
    for tp, spread in ((1, False), (4, True)):
        layout = Layout(tp=tp, sequence_parallel=spread, micro_batch=2)
        kept = saved_bytes_per_layer(model, block, layout, work, BARE) / tokens
        statistics = 4 * block.attention.heads / tp
        columns = 2 * h / tp + 4 * h / tp + f / tp + inputs[0] * h + inputs[1] * f / tp + narrow
        assert kept == pytest.approx(2 * columns + statistics)


def test_routed_experts_have_no_adapters_and_keep_no_inputs() -> None:
    expert = FeedForward(width=512, gated=False)
    attention = Attention(heads=8, kv_heads=8, head_dim=64)
    layout = Layout()

    def kept(shared: FeedForward | None, targets: str) -> float:
        part = Experts(count=8, top_k=2, expert=expert, shared=shared)
        block = Block(count=1, attention=attention, feed_forward=part)
        model = Model(name="mixture", hidden_size=512, vocab_size=32000, blocks=(block,))
        work = replace(WORK, adapters=True, adapter_targets=targets)
        return float(saved_bytes_per_layer(model, block, layout, work, BARE) / 2048)

    assert kept(None, "all") == kept(None, "attention")
    more = kept(expert, "all") - kept(expert, "attention")
    assert more == 2 * (512 + 512 + 2 * WORK.adapter_rank)  # inputs of up and down, narrow ones


def test_frozen_weights_are_held_once_in_the_format_of_their_gemms() -> None:
    model = Model.named("llama2-70b")
    work = Train(global_batch=8, sequence_length=8192, dtype="fp8", adapters=True)
    held = memory_of(model, Layout(dp=8), work, software=policy_named("megatron_core")).by_kind()
    edges = 2 * model.vocab_size * model.hidden_size
    assert held["weights"] / (float(model.parameters) + edges) == pytest.approx(1, abs=0.01)
    wide = memory_of(model, Layout(dp=8), work, software=BARE).by_kind()
    assert wide["weights"] / (2 * float(model.parameters)) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("cluster", "layout"),
    [
        ("h100_sxm", Layout(tp=4, dp=2, zero=1, sequence_parallel=True)),
        ("h200_sxm", Layout(tp=2, dp=4, zero=1, sequence_parallel=True)),
        ("h200_sxm", Layout(cp=2, dp=4, zero=1)),
        ("b200_sxm", Layout(dp=8, zero=1)),
        ("mi300x", Layout(dp=8, zero=1, recompute="full", recompute_layers=21)),
    ],
)
def test_layouts_of_published_adapter_runs_fit(cluster: str, layout: Layout) -> None:
    """MLPerf Training 4.0 to 5.0, Llama-2-70B LoRA; whole training does not fit there."""
    model, device = Model.named("llama2-70b"), Cluster.named(cluster).device
    work = Train(global_batch=8, sequence_length=8192, dtype="fp8", adapters=True)
    policy = policy_named("megatron_core")
    assert memory_of(model, layout, work, device=device, software=policy).fits()
    whole = replace(work, adapters=False)
    assert not memory_of(model, layout, whole, device=device, software=policy).fits()


def test_other_partitions_divide_all_activations() -> None:
    spread = memory_of(plain(), Layout(tp=4, sequence_parallel=True), WORK, software=BARE)
    for scheme in ("2d", "weight_gathered"):
        held = memory_of(plain(), Layout(tp=4, scheme=scheme), WORK, software=BARE)
        assert held.by_kind()["activations"] == spread.by_kind()["activations"]


def test_layers_are_dealt_out_evenly() -> None:
    model = plain(layers=10)
    found = [stage_evenly(model, Layout(pp=4), i) for i in range(4)]
    assert [each.layers for each in found] == [3, 3, 2, 2]
    assert [each.has_embedding for each in found] == [True, False, False, False]
    assert [each.has_head for each in found] == [False, False, False, True]


@pytest.mark.parametrize("pp", [1, 2, 3, 5, 8])
def test_stages_of_equal_cost_have_every_layer_and_one_head(pp: int) -> None:
    # The head of this model weighs 2.6 layers.
    model, layout = plain(layers=16), Layout(pp=pp)
    found = [stage_by_cost(model, layout, i) for i in range(pp)]
    assert sum(each.layers for each in found) == 16
    heads = [each.index for each in found if each.has_head]
    assert heads == [last_stage(model, layout, "cost")]
    assert found[0].layers == max(each.layers for each in found)


def test_micro_batches_in_flight() -> None:
    assert [in_flight(Layout(pp=4), i, 16) for i in range(4)] == [4, 3, 2, 1]
    assert in_flight(Layout(pp=8), 0, 3) == 3
    interleaved = Layout(pp=4, virtual_stages=2, schedule="interleaved")
    assert in_flight(interleaved, 0, 64) == pytest.approx(4 * (1 + 3 / (4 * 2)))
    assert in_flight(Layout(pp=4, schedule="zero_bubble"), 1, 16) == 3


def test_the_first_stage_is_the_fullest_but_for_large_logits() -> None:
    small = replace(plain(), vocab_size=1000)
    few = memory_of(small, Layout(pp=4), WORK, software=BARE)
    assert list(few.stages) == ["first", "middle", "last"]
    assert few.worst_stage == "first"
    assert few.stages["middle"].total < few.stages["first"].total
    many = replace(plain(), vocab_size=2_000_000)
    full = memory_of(many, Layout(pp=4, micro_batch=4), WORK, software=BARE)
    assert full.worst_stage == "last"
    assert full.stages["last"].moment == "at the loss"
    assert full.stages["first"].moment == "inside a layer"
    assert full.by_kind()["logits"] == 4 * 2048 * 2_000_000 * 8


def test_kinds_add_up_to_the_peak() -> None:
    memory = memory_of(Model.named("llama3-8b"), Layout(tp=4, pp=2, zero=3, dp=4), WORK)
    assert set(memory.by_kind()) == set(KINDS)
    assert sum(memory.by_kind().values()) == pytest.approx(memory.peak_bytes)


def test_recomputation_trades_kept_tensors_for_one_layer_made_again() -> None:
    found = {
        how: memory_of(plain(), Layout(recompute=how), WORK, software=PAPER).by_kind()
        for how in ("none", "selective", "full")
    }
    kept = [found[how]["activations"] for how in ("none", "selective", "full")]
    assert kept == sorted(kept, reverse=True)
    again = [found[how]["buffers"] + found[how]["logits"] for how in ("none", "selective", "full")]
    assert again == sorted(again)


def test_update_buffers_count_only_where_nothing_larger_is_alive() -> None:
    policy = MemoryPolicy(update_buffers=True)
    layout = Layout(tp=8, dp=2, zero=1)
    short = Train(global_batch=2, sequence_length=8)
    held = memory_of(plain(), layout, short, software=policy).stages["first"]
    assert held.moment == "after the update"
    assert held.activations == held.logits == 0
    assert held.total == held.between_steps
    busy = memory_of(plain(), layout, WORK, software=policy).stages["first"]
    assert busy.moment != "after the update"
    assert busy.between_steps > busy.weights + busy.gradients + busy.optimizer + busy.buffers / 2


def test_cache_of_a_decoder() -> None:
    model = Model.named("llama3-8b")
    work = Decode(batch=32, context_tokens=4095)
    whole = memory_of(model, Layout(), work, software=BARE).by_kind()["kv_cache"]
    assert whole == 32 * 4096 * model.cache_elements_per_token * 2
    for layout, share in (
        (Layout(tp=8), 8),
        (Layout(tp=16), 8),
        (Layout(dp=4), 4),
        (Layout(cp=2), 2),
        (Layout(pp=2), 2),
    ):
        held = memory_of(model, layout, work, software=BARE).by_kind()["kv_cache"]
        assert held == pytest.approx(whole / share)
    narrow = replace(work, cache_dtype="fp8")
    assert memory_of(model, Layout(), narrow).by_kind()["kv_cache"] == whole / 2


def test_latent_cache_is_not_divided_and_windows_bound_it() -> None:
    latent = Model.named("deepseek-v3")
    work = Decode(batch=8, context_tokens=8191)
    one, eight = (
        memory_of(latent, Layout(tp=t), work, software=BARE).by_kind()["kv_cache"] for t in (1, 8)
    )
    assert one == eight == pytest.approx(8 * 8192 * latent.cache_elements_per_token * 2)
    windowed = Block(
        count=4,
        attention=Attention(heads=8, kv_heads=8, head_dim=64, window_tokens=128),
        feed_forward=FeedForward(width=512, gated=True),
    )
    model = Model(name="windowed", hidden_size=512, vocab_size=1000, blocks=(windowed,))
    held = memory_of(model, Layout(), work, software=BARE).by_kind()["kv_cache"]
    assert held == 4 * 8 * 128 * 2 * 512 * 2


def test_serving_holds_no_gradients_and_weights_in_its_own_format() -> None:
    model = Model.named("llama3-70b")
    work = Prefill(batch=1, prompt_tokens=1024, dtype="fp8")
    held = memory_of(model, Layout(tp=8), work, software=BARE).by_kind()
    assert held["gradients"] == held["optimizer"] == 0
    edges = 2 * model.vocab_size * model.hidden_size  # stay in 16 bits
    assert held["weights"] == pytest.approx((model.parameters + edges) / 8, rel=1e-3)
    more = memory_of(model, Layout(tp=8), replace(work, cached_tokens=1024), software=BARE)
    assert more.by_kind()["kv_cache"] == 2 * held["kv_cache"]


def test_whether_it_fits_and_why_not() -> None:
    device = Cluster.named("h100_sxm").device
    model = Model.named("llama3-70b")
    small = memory_of(model, Layout(tp=8, pp=8, recompute="full"), WORK, device=device)
    assert small.fits()
    assert small.reason() is None
    large = memory_of(model, Layout(tp=8), WORK)
    assert not large.fits(device)
    reason = large.reason(device)
    assert reason is not None
    assert "optimizer" in reason
    assert "80 GiB" in reason
    assert "\n" not in reason
    with pytest.raises(BadValueError, match="device"):
        large.fits()
    with pytest.raises(BadTypeError, match="one layout"):
        memory_of(model, Layout(tp=np.array([4, 8])), WORK).reason(device)


def test_a_stage_must_exist_and_policies_must_be_known() -> None:
    with pytest.raises(BadValueError, match="stage"):
        memory_of(plain(), Layout(pp=2), WORK, stage=2)
    with pytest.raises(UnknownNameError, match="atention"):
        policy_of({"atention": "flash"})
    with pytest.raises(UnknownNameError, match="attention"):
        policy_of({"attention": "fast"})
    with pytest.raises(BadTypeError, match="dropout"):
        policy_of({"dropout": 1})
    with pytest.raises(BadValueError, match="reserve_share"):
        policy_of({"reserve_share": -1.0})
    assert policy_of({"memory": {"dropout": True}, "launch": "eager"}).dropout
    assert policy_of(None).reserve_bytes == policy_named("nanotron").reserve_bytes
    assert policy_of(None).reserve_share == 0


DEGREES = ("tp", "cp", "ep", "pp", "dp", "virtual_stages", "micro_batch")


CHOICES: tuple[dict[str, Any], ...] = (
    {},
    {"zero": 1, "sequence_parallel": True},
    {"zero": 3, "recompute": "selective"},
    {"recompute": "full", "sequence_parallel": True},
)


def random_layouts(count: int, seed: int) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    cells: dict[str, Any] = {name: 2 ** draw.integers(0, 4, count) for name in DEGREES}
    cells["ep"] = np.minimum(cells["ep"], cells["dp"] * cells["cp"])
    cells["virtual_stages"] = np.where(cells["pp"] > 1, cells["virtual_stages"], 1)
    return cells


@pytest.mark.parametrize(
    "work",
    [
        Train(global_batch=96, sequence_length=4096),
        Prefill(batch=12, prompt_tokens=1000),
        Decode(batch=12, context_tokens=1000),
    ],
    ids=["train", "prefill", "decode"],
)
@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("policy", [PAPER, None, "nanotron"], ids=["paper", "default", "nanotron"])
def test_arrays_are_scalars_side_by_side(
    name: str, work: Workload, policy: MemoryPolicy | str | None
) -> None:
    software = policy_named(policy) if isinstance(policy, str) else policy
    model = Model.named(name)
    for seed, choices in enumerate(CHOICES):
        cells = random_layouts(25, seed)
        many = memory_of(model, Layout(**cells, **choices), work, software=software)
        shape, kinds = many.peak_bytes.shape, many.by_kind()
        for i in range(25):
            degrees: dict[str, Any] = {name: int(column[i]) for name, column in cells.items()}
            one = memory_of(model, Layout(**degrees, **choices), work, software=software)
            assert many.peak_bytes[i] == pytest.approx(one.peak_bytes, rel=1e-12)
            assert one.worst_stage != "middle"
            for kind, size in one.by_kind().items():
                found = np.broadcast_to(kinds[kind], shape)[i]
                assert found == pytest.approx(size, rel=1e-12, abs=1e-6)


def test_an_open_grid_of_layouts_broadcasts() -> None:
    grid = Layout(
        tp=np.array([1, 2, 4, 8]).reshape(-1, 1, 1),
        pp=np.array([1, 2, 4]).reshape(-1, 1),
        micro_batch=np.array([1, 2]),
    )
    found: Memory = memory_of(Model.named("llama3-8b"), grid, WORK)
    assert found.peak_bytes.shape == (4, 3, 2)
    assert (np.diff(found.peak_bytes, axis=0) < 0).all()
    assert (np.diff(found.peak_bytes, axis=2) > 0).all()
    assert found.fits(Cluster.named("h100_sxm").device).shape == (4, 3, 2)


ROW = {
    "dataset": "hf_ultrascale_nanotron",
    "capacity_GB": "80",
    "num_params": "1.34",
    "layers": "16",
    "hidden": "2048",
    "heads": "32",
    "kv_heads": "",
    "vocab": "131072",
    "tied": "",
    "seq": "4096",
    "mbs": "1",
    "accumulation": "16",
    "dp": "8",
    "pp": "1",
    "tp": "1",
    "tp_mode": "REDUCE_SCATTER",
    "zero_stage": "0",
    "accumulate_grad_in_fp32": "",
    "dtype": "",
    "outcome": "fits",
}


@pytest.mark.parametrize(
    ("billions", "layers", "hidden", "width", "tied"),
    [
        ("1.34", 16, 2048, 8192, True),
        ("3.57", 28, 3072, 8192, True),
        ("8.86", 32, 4096, 14336, False),
        ("80.0", 80, 8192, 28672, False),
        ("469.0", 126, 16384, 53248, False),
    ],
)
def test_the_width_follows_from_the_parameters(
    billions: str, layers: int, hidden: int, width: int, tied: bool
) -> None:
    shape = {"num_params": billions, "layers": str(layers), "hidden": str(hidden)}
    model = evidence_memory.model_of(ROW | shape | {"heads": str(hidden // 128)})
    part = model.blocks[0].feed_forward
    assert isinstance(part, FeedForward)
    assert (part.width, model.tied_embeddings) == (width, tied)
    assert float(f"{float(model.parameters) / 1e9:.3g}") == float(billions)


def test_a_row_that_cannot_be_has_a_reason() -> None:
    with pytest.raises(BadValueError, match="num_params"):
        evidence_memory.model_of(ROW | {"num_params": "0.1"})
    with pytest.raises(UnknownNameError, match="tp_mode"):
        evidence_memory.memory_of_row(ROW | {"tp_mode": "SOMETHING"})


def test_a_row_without_a_capacity_is_not_classified_right() -> None:
    rows = [ROW, ROW | {"capacity_GB": "none"}, ROW | {"outcome": "oom"}, ROW | {"tp": "0"}]
    columns = {name: [row[name] for row in rows] for name in ROW}
    table = Table("memory", Path("memory.csv"), columns, len(rows))
    values, reasons = evidence_memory.predictions(table)
    assert [bool(reason) for reason in reasons] == [False, False, False, True]
    assert evidence_memory.extra(table, values) == {"classified_pct": 25.0}
    bare = {name: cells for name, cells in columns.items() if name not in {"vocab", "num_params"}}
    unknown = evidence_memory.predictions(Table("memory", Path("memory.csv"), bare, len(rows)))
    assert np.isnan(unknown.values).all()
    assert evidence_memory.DERIVED["predicted_outcome"](rows[1]) == ""
    assert evidence_memory.DERIVED["gpus"](ROW) == "8"


def test_bytes_per_parameter_between_steps() -> None:
    """Weights 2, their gradients' buckets 2, sums 4, master and moments 12; ZeRO-1 buffers 2."""
    quiet = replace(policy_named("nanotron"), workspace_bytes=0.0)

    def held(**cells: str) -> float:
        row = ROW | cells
        memory = evidence_memory.memory_of_row(row, quiet)
        parameters = float(evidence_memory.model_of(row).parameters)
        return float(memory.stages["first"].between_steps) / parameters

    assert held() == pytest.approx(20)
    assert held(dp="1") == pytest.approx(18)
    assert held(dp="1", zero_stage="1") == pytest.approx(18)
    assert held(zero_stage="1") == pytest.approx(10 + 14 / 8)
    assert held(accumulate_grad_in_fp32="False") == pytest.approx(16)


@pytest.fixture(scope="module")
def runs(evidence: Path) -> Table:
    return read_table(evidence / "measured" / "memory.csv")


def test_measured_runs(runs: Table) -> None:
    found = validate(runs, ("num_params",))
    assert found.predicted == runs.rows
    assert found.overall.median_pct is not None
    assert found.overall.p90_pct is not None
    assert found.overall.median_pct < 1
    assert found.overall.p90_pct < 5
    assert evidence_memory.extra(runs, found.predictions.values)["classified_pct"] > 97.5


def test_constants_are_those_of_the_fit(runs: Table) -> None:
    kept = policy_named("nanotron")
    found = memory_fit.fitted(runs, kept)
    assert kept.workspace_bytes == pytest.approx(found.workspace_bytes, rel=0.05)
    assert kept.reserve_share == pytest.approx(found.reserve_share, rel=0.05)
    assert kept.reserve_bytes == pytest.approx(found.reserve_bytes, abs=GIB)


@pytest.mark.refit
@pytest.mark.parametrize("column", ["num_params", "zero_stage"])
def test_measured_runs_that_were_left_out_of_the_fit(runs: Table, column: str) -> None:
    found = list(memory_fit.left_out(runs, column, policy_named("nanotron")))
    assert sum(each.rows for each in found) == runs.rows
    for each in found:
        assert each.classified_pct > 96
        assert each.allocated.median_pct is None or each.allocated.median_pct < 2


@pytest.mark.parametrize(
    ("engine", "share_of_device"), [("vllm", 0.9), ("trtllm", None), ("megatron_inference", None)]
)
def test_an_engine_takes_its_share_of_the_device(
    engine: str, share_of_device: float | None
) -> None:
    work = Decode(batch=64, context_tokens=4096)
    found = estimate("llama3-70b", "h100_sxm", Layout(tp=8), work, software=engine)
    capacity, cache = 80 * 2**30, found.memory.by_kind()["kv_cache"]
    if engine == "megatron_inference":  # allocates what it needs
        assert (found.engine_bytes, found.engine_words) == (None, None)
        return
    fixed = found.memory_bytes - cache
    taken = fixed + 0.9 * (capacity - fixed) if share_of_device is None else 0.9 * capacity
    assert found.engine_bytes == pytest.approx(taken)
    assert found.memory_bytes < found.engine_bytes < capacity
    assert f"{engine} takes" in str(found.engine_words)
    full = estimate(
        "llama3-70b", "h100_sxm", Layout(tp=8), replace(work, batch=512), software=engine
    )
    assert full.engine_bytes == full.memory_bytes  # more than its share


def test_serving_has_no_moment_of_a_training_step() -> None:
    model, layout = Model.named("llama3-8b"), Layout(tp=2, pp=2)
    for work in (Prefill(batch=2, prompt_tokens=64), Decode(batch=512, context_tokens=64)):
        footprints = memory_of(model, layout, work).stages.values()
        assert {footprint.moment for footprint in footprints} == {None}
        assert any(footprint.logits for footprint in footprints) == (work.batch == 512)
    served = estimate(model, "h100_sxm", layout, Decode(batch=512, context_tokens=64))
    for figure in ("memory_bytes", "memory.last.logits"):
        answer = why(served, figure)
        said = " ".join((answer.title, answer.words, *(term.meaning for term in answer.terms)))
        assert not re.search(r"loss|gradient|update|None", said), said

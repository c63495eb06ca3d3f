"""Recomputation by module and by layers, offload to the host, and uneven stages."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from running import run_text

from shardcost import Cluster, Layout, Model, Train, estimate, search
from shardcost.errors import BadValueError, InfeasibleError, UnknownNameError
from shardcost.layout import RECOMPUTE_MODULES
from shardcost.memory import MemoryPolicy, memory_of
from shardcost.memory.parameters import expert_copies, sharing_ranks
from shardcost.memory.saved import saved_by_layer, setting_of
from shardcost.memory.stages import in_flight, stage_evenly
from shardcost.program import program_of
from shardcost.program.operations import Collective, Gemm
from shardcost.software import Software

WORK = Train(global_batch=64, sequence_length=4096)
DEEPSEEK = Model.named("deepseek-v3")
LLAMA = Model.named("llama3-8b")
MEGATRON = Software.named("megatron_core")


def layers(model: Model, layout: Layout, work: Train = WORK) -> Any:
    return program_of(model, layout, work, MEGATRON).layers


def saved(model: Model, layout: Layout, place: int = -1, policy: MemoryPolicy | None = None) -> Any:
    counts = setting_of(model, layout, "bf16", 4096, policy or MemoryPolicy())
    return saved_by_layer(counts, model.blocks[place])


def test_modules_have_one_spelling() -> None:
    assert Layout(recompute="moe_act,layernorm").recompute == "layernorm+moe_act"
    assert Layout(recompute="moe_act + layernorm") == Layout(recompute="layernorm,moe_act")
    assert Layout(recompute="core_attn") == Layout(recompute="selective")
    with pytest.raises(UnknownNameError, match="did you mean layernorm"):
        Layout(recompute="layernrom+moe_act")
    with pytest.raises(InfeasibleError, match="scheme 1d alone"):
        Layout(recompute="layernorm", tp=4, scheme="2d")


@pytest.mark.parametrize("module", RECOMPUTE_MODULES)
def test_a_module_gives_up_bytes_for_work(module: str) -> None:
    """In at least one kind of layer of a model with all modules; elsewhere nothing changes."""
    layout = Layout(ep=8, dp=8, recompute=module)
    less = [saved(DEEPSEEK, Layout(ep=8, dp=8), i).kept(Layout()) for i in (0, 1)]
    kept = [saved(DEEPSEEK, layout, i).kept(layout) for i in (0, 1)]
    work = [each.passes.recompute for each in layers(DEEPSEEK, layout)]
    for before, after, again in zip(less, kept, work, strict=True):
        assert (after < before) == bool(again)
    assert any(work)


def test_what_modules_compute_again() -> None:
    def names(recompute: str) -> list[set[str]]:
        found = layers(DEEPSEEK, Layout(ep=8, dp=8, recompute=recompute))
        return [{op.name for op in each.passes.recompute} for each in found]

    plain = layers(LLAMA, Layout(recompute="mla_up_proj+moe_act+moe"))[0].passes
    assert not plain.recompute
    assert names("layernorm") == [{"norm"}, {"norm"}]
    assert names("moe_act") == [set(), {"activation"}]
    assert {"q up", "kv up"} <= names("mla_up_proj")[1]
    assert names("mlp")[0] >= {"MLP up", "activation", "MLP down"}
    assert not names("mlp")[1]
    assert {"dispatch", "combine", "expert up"} <= names("moe")[1]
    assert names("shared_experts")[1] >= {"shared expert up", "shared expert down"}
    everything = layers(DEEPSEEK, Layout(ep=8, dp=8, recompute="full"))[1].passes
    assert everything.recompute == everything.forward


def test_experts_contain_their_activation_and_the_shared_ones() -> None:
    parts = saved(DEEPSEEK, Layout())
    whole = Layout(recompute="moe")
    assert parts.kept(whole) == pytest.approx(
        parts.everything - parts.moe - parts.moe_act - parts.shared_experts
    )
    assert parts.kept(Layout(recompute="moe+moe_act")) == parts.kept(whole)
    assert parts.again(whole) == parts.everything - parts.kept(whole)


def test_priced_recomputation_takes_longer_and_less_memory() -> None:
    layout = Layout(pp=8, ep=32, dp=32, zero=1)
    cluster = Cluster.named("h100_sxm", network="ib_8x400g")
    work = replace(WORK, global_batch=512)
    runs = [
        estimate(DEEPSEEK, cluster, replace(layout, recompute=each), work)
        for each in ("none", "layernorm+mla_up_proj+moe_act", "layernorm+mla_up_proj+moe", "full")
    ]
    for less, more in itertools.pairwise(runs):
        assert less.time_s < more.time_s
        assert less.memory_bytes > more.memory_bytes


def test_the_first_layers_of_a_stage_are_recomputed() -> None:
    """32 layers on 4 stages: 2 of 8 are a quarter of the work; more than 8 are all of it."""
    layout = Layout(pp=4, recompute="full")
    every = layers(LLAMA, layout)[0].passes
    some = layers(LLAMA, replace(layout, recompute_layers=2))[0].passes

    def flops(passes: Any) -> float:
        return float(sum(op.flops for op in passes.recompute if isinstance(op, Gemm)))

    assert flops(some) == pytest.approx(flops(every) / 4)
    assert flops(layers(LLAMA, replace(layout, recompute_layers=99))[0].passes) == flops(every)

    def activations(layout: Layout) -> float:
        return float(memory_of(LLAMA, layout, WORK, stage=1).stages["stage 1"].activations)

    none, full = activations(Layout(pp=4)), activations(layout)
    block = activations(replace(layout, recompute_layers=2))
    assert block == pytest.approx(none + (full - none) / 4, rel=1e-6)
    with pytest.raises(InfeasibleError, match="needs recompute full"):
        Layout(recompute_layers=2)


def test_groups_of_layers_keep_one_input() -> None:
    """As `--recompute-method uniform`: fewer inputs stay, several layers are alive at once."""
    alone = Layout(recompute="full")
    groups = replace(alone, recompute_layers=4, recompute_method="uniform")
    one, four = (memory_of(LLAMA, each, WORK).stages["first"] for each in (alone, groups))
    head = 2 * 4096 * LLAMA.hidden_size * 2
    assert four.activations - head == pytest.approx((one.activations - head) / 4)
    inside = [float(each.buffers) for each in (one, four)]
    assert max(inside) == inside[1] or four.at_loss
    assert layers(LLAMA, groups)[0].passes == layers(LLAMA, alone)[0].passes


def test_narrow_inputs_are_kept_narrow() -> None:
    layout = Layout()
    wide, narrow = (
        setting_of(DEEPSEEK, layout, "fp8", 4096, MemoryPolicy(narrow_inputs=each))
        for each in (False, True)
    )
    block = DEEPSEEK.blocks[1]
    assert saved_by_layer(narrow, block).layernorm == saved_by_layer(wide, block).layernorm / 2
    assert saved_by_layer(narrow, block).mla_up_proj == saved_by_layer(wide, block).mla_up_proj
    in_16_bits = setting_of(DEEPSEEK, layout, "bf16", 4096, MemoryPolicy(narrow_inputs=True))
    assert saved_by_layer(in_16_bits, block) == saved_by_layer(wide, block)


def test_offloaded_bytes_are_on_the_host() -> None:
    layout = Layout(tp=2, pp=4, dp=2, zero=1)
    here = memory_of(LLAMA, layout, WORK).stages["first"]
    states = memory_of(LLAMA, replace(layout, offload_optimizer=0.25), WORK).stages["first"]
    assert states.host == pytest.approx(here.optimizer / 4)
    assert states.total == pytest.approx(here.total - states.host)
    away = memory_of(LLAMA, replace(layout, offload_activations=0.5), WORK).stages["first"]
    assert away.activations + away.host == pytest.approx(here.activations)
    # Of four micro-batches in flight on eight layers, two layers stay.
    assert away.host == pytest.approx(0.5 * (4 - 2 / 8) / 4 * here.activations, rel=0.02)
    assert here.host == 0


def test_copies_hide_behind_compute_as_far_as_it_goes() -> None:
    cluster = Cluster.named("h100_sxm")
    layout = Layout(tp=8)
    plain = estimate(LLAMA, cluster, layout, WORK)
    small = estimate(LLAMA, cluster, replace(layout, offload_activations=0.01), WORK)
    assert small.time_s == pytest.approx(plain.time_s)
    assert small.exposed_s["offload"] == 0 < small.hidden_s["offload"]
    whole = estimate(LLAMA, cluster, replace(layout, offload_activations=1), WORK)
    assert whole.time_s > plain.time_s
    assert whole.exposed_s["offload"] > 0
    assert sum(whole.parts_s.values()) == pytest.approx(whole.time_s)
    link = replace(cluster.device, host_link_bytes_per_s=450e9)
    grace = estimate(LLAMA, replace(cluster, device=link), layout=whole.layout, workload=WORK)
    assert plain.time_s <= grace.time_s < whole.time_s
    unknown = replace(cluster, device=replace(cluster.device, host_link_bytes_per_s=None))
    with pytest.raises(BadValueError, match="host link"):
        estimate(LLAMA, unknown, whole.layout, WORK)


@pytest.mark.parametrize("update", ["host", "device"])
def test_an_offloaded_update_is_beside_that_of_the_device(update: str) -> None:
    cluster = Cluster.named("h100_sxm")
    layout = Layout(tp=8, offload_optimizer=1.0, offload_update=update)
    found = estimate(LLAMA, cluster, layout, WORK)
    shards = LLAMA.parameters / 8
    rate = cluster.device.host_link_bytes_per_s
    assert rate is not None
    bytes_each = 4 + 2 if update == "host" else 12
    expected = shards * bytes_each / rate
    if update == "host":
        expected += shards * 8 / cluster.host_update_per_s
    assert found.comm_s["offload"] == pytest.approx(expected, rel=1e-3)
    assert found.ledger.optimizer_s == pytest.approx(expected, rel=1e-3)
    assert sum(found.parts_s.values()) == pytest.approx(found.time_s)


def test_offload_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    words = "estimate llama3-8b --on h100_sxm --tp 8 --train --batch 8 --sequence-length 4096"
    options = "--offload-optimizer 1 --offload-activations 0.5 --recompute moe_act,layernorm"
    text = " ".join(run_text(capsys, *words.split(), *options.split()).split())
    assert "GiB per GPU of offloaded activations and optimizer states" in text
    assert "OFFLOAD communication" in text
    assert "layernorm+moe_act recompute" in text
    data = json.loads(run_text(capsys, *words.split(), *options.split(), "--json"))
    assert data["memory"]["host_bytes"] > 0


def test_stages_may_have_layers_of_their_own() -> None:
    layout = Layout(pp=4, first_stage_layers=6, last_stage_layers=8)
    assert [stage_evenly(LLAMA, layout, i).layers for i in range(4)] == [6, 9, 9, 8]
    one = Layout(pp=4, last_stage_layers=5)
    assert [stage_evenly(LLAMA, one, i).layers for i in range(4)] == [9, 9, 9, 5]
    program = program_of(LLAMA, layout, WORK, MEGATRON)
    assert [each.layers for each in program.stages] == [6, 9, 8]
    with pytest.raises(InfeasibleError, match="need pp above 1"):
        Layout(last_stage_layers=5)
    with pytest.raises(InfeasibleError, match="more than 32 layers"):
        program_of(LLAMA, replace(layout, first_stage_layers=30), WORK, MEGATRON)
    by_cost = memory_of(LLAMA, layout, WORK, software=MemoryPolicy(balance="cost"))
    assert by_cost.stages["last"].logits > 0
    fewer = replace(layout, tp=2, first_stage_layers=1)
    several = memory_of(LLAMA, replace(fewer, tp=np.array([1, 2])), WORK)
    assert several.peak_bytes[1] == memory_of(LLAMA, fewer, WORK).peak_bytes


def test_virtual_stages_take_turns_later_where_stages_do_not_divide_the_micro_batches() -> None:
    layout = Layout(pp=4, virtual_stages=3, schedule="interleaved")
    assert in_flight(layout, 3, 8) == pytest.approx(9 / 3)
    assert in_flight(layout, 3, 5) == pytest.approx(11 / 3)


def test_optimizer_instances_shard_experts_too() -> None:
    """Two instances over dp 4: dense weights over 2 ranks, experts with two copies over none."""
    layout = Layout(tp=2, dp=4, ep=2, etp=2, zero=1, shard_degree=2)
    assert sharing_ranks(layout, 4) == 2
    assert expert_copies(layout) == 2
    assert sharing_ranks(layout, expert_copies(layout)) == 1


def test_narrow_states_of_the_optimizer() -> None:
    work = replace(WORK, moment_dtype="bf16", master_dtype="fp16")
    wide, narrow = (memory_of(LLAMA, Layout(tp=2), each).stages["first"] for each in (WORK, work))
    assert narrow.optimizer == pytest.approx(wide.optimizer * (2 + 4) / (4 + 8))


def test_a_search_takes_modules_and_layers() -> None:
    space = {
        "gpus": 8,
        "recompute": ("none", "layernorm+mlp", "full"),
        "recompute_layers": (None, 2),
        "offload_optimizer": (0.0, 1.0),
    }
    found = search(LLAMA, "h100_sxm", replace(WORK, global_batch=8), space=space)
    best = found.best[0]
    alone = estimate(LLAMA, "h100_sxm", best.layout, replace(WORK, global_batch=8))
    assert best.time_s == pytest.approx(alone.time_s)
    assert "recompute_layers needs recompute full" in {each.message for each in found.rejected}


def test_arrays_of_layouts_are_offloaded_alike() -> None:
    tp = np.array([2, 4, 8])
    layout = Layout(tp=tp, pp=4, recompute="full", recompute_layers=2, offload_activations=0.5)
    found = estimate(LLAMA, Cluster.named("h100_sxm", network="ib_8x400g"), layout, WORK)
    for place, degree in enumerate(tp.tolist()):
        one = estimate(found.model, found.cluster, replace(layout, tp=degree), WORK)
        assert found.time_s[place] == pytest.approx(one.time_s)
        assert found.memory_bytes[place] == pytest.approx(one.memory_bytes)


def test_offload_sends_nothing_between_devices() -> None:
    layout = Layout(tp=8, offload_activations=1.0, offload_optimizer=1.0)
    found = estimate(LLAMA, "h100_sxm", layout, WORK)
    copies = [
        entry
        for entry in found.entries
        if isinstance(entry.op, Collective) and entry.group == "offload"
    ]
    assert {entry.op.name for entry in copies} == {
        "offload activations",
        "reload activations",
        "copy gradients and weights",
        "update on the host",
    }
    assert found.traffic.by_group["offload"] == 0


def test_deepseeks_own_layout_fits_its_devices() -> None:
    """16 stages, 64-way experts, ZeRO 1 and fp8 on 2,048 H800 (arXiv:2412.19437, section 3.2)."""
    layout = Layout(pp=16, ep=64, dp=128, zero=1, schedule="zero_bubble")
    again = replace(layout, recompute="layernorm+mla_up_proj+moe_act")
    work = Train(global_batch=15360, sequence_length=4096, dtype="fp8", moment_dtype="bf16")
    cluster = Cluster.named("h800_sxm", network="ib_8x400g")
    whole, own = (
        estimate(DEEPSEEK, cluster, each, work, software="hai_llm") for each in (layout, again)
    )
    assert not whole.memory.fits()
    assert own.memory.fits()
    assert own.time_s < 1.05 * whole.time_s


def test_sharded_weights_have_no_lasting_copies_in_fewer_bits() -> None:
    work = Train(global_batch=64, sequence_length=4096, dtype="fp8")
    narrow, wide = (
        estimate(
            "llama3-70b",
            Cluster.named("h100_sxm", "ib_8x400g"),
            Layout(dp=64, zero=3),
            replace(work, dtype=dtype),
        ).memory.by_kind()["weights"]
        for dtype in ("fp8", "bf16")
    )
    assert narrow == wide


@pytest.mark.parametrize(
    ("software", "again"),
    [("llm_foundry", False), ("torchtitan", False), ("nanotron", True), ("megatron_core", True)],
)
def test_checkpoints_that_stop_early_leave_out_the_last_gemm(software: str, again: bool) -> None:
    program = program_of(
        LLAMA, Layout(dp=8, zero=3, recompute="full"), WORK, Software.named(software)
    )
    whole = program.layers[0].passes
    forward = [op.name for op in whole.forward if isinstance(op, Gemm)]
    computed = [op.name for op in whole.recompute if isinstance(op, Gemm)]
    assert forward[-1] == "MLP down"
    assert computed == (forward if again else forward[:-1])

"""The estimate as a whole: its parts add up, its two forms of time agree, its limits are told."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardcost import (
    Cluster,
    Decode,
    Layout,
    Model,
    Prefill,
    Software,
    Train,
    collective_time,
    estimate,
    search,
)
from shardcost.errors import BadValueError, InfeasibleError
from shardcost.estimate import Estimate, price
from shardcost.program.feasibility import reasons
from shardcost.program.operations import Collective, Gemm
from shardcost.workload import Workload

H100 = Cluster.named("h100_sxm", network="ib_8x400g")
MODELS = ("llama3-8b", "llama3-70b", "gpt3-175b", "falcon-40b", "mixtral-8x7b")


def random_layouts(count: int) -> list[tuple[str, Layout, Train]]:
    """Return possible layouts of training, some with every kind of parallelism."""
    rng = random.Random(4)
    found: list[tuple[str, Layout, Train]] = []
    while len(found) < count:
        model = rng.choice(MODELS)
        pp = rng.choice([1, 1, 2, 4, 8])
        virtual_stages = rng.choice([1, 1, 2, 4]) if pp > 1 else 1
        schedule = (
            "interleaved" if virtual_stages > 1 else rng.choice(["1f1b", "1f1b", "zero_bubble"])
        )
        tp = rng.choice([1, 2, 4, 8])
        layout = Layout(
            tp=tp,
            cp=rng.choice([1, 1, 2]),
            pp=pp,
            dp=rng.choice([1, 2, 4, 8]),
            virtual_stages=virtual_stages,
            micro_batch=rng.choice([1, 2]),
            sequence_parallel=tp > 1 and rng.random() < 0.5,
            recompute=rng.choice(["none", "selective", "full"]),
            zero=rng.choice([0, 1, 2, 3]),
            schedule=schedule,
        )
        work = Train(global_batch=256, sequence_length=rng.choice([2048, 8192]))
        layers = Model.named(model).num_layers
        if (
            layers % (pp * virtual_stages) == 0
            and (256 // (layout.dp * layout.micro_batch)) % pp == 0
        ):
            found.append((model, layout, work))
    return found


@pytest.fixture(scope="module")
def estimates() -> list[Estimate]:
    return [estimate(model, H100, layout, work) for model, layout, work in random_layouts(200)]


def test_closed_form_and_timeline_agree(estimates: list[Estimate]) -> None:
    for found in estimates:
        assert found.timeline().step_s == pytest.approx(found.time_s, rel=5e-3), found.layout


def test_parts_add_up_to_the_time(estimates: list[Estimate]) -> None:
    for found in estimates:
        assert sum(found.parts_s.values()) == pytest.approx(found.time_s, rel=1e-9)
        assert min(found.parts_s.values()) > -0.02 * found.time_s, found.parts_s
        for group, exposed in found.exposed_s.items():
            if group in {"dp", "pp"} and found.layout.pp > 1:
                continue  # a stage also waits for what other stages wait for
            assert exposed <= found.comm_s[group] * 1.001 + 1e-9, (group, found.layout)


def varied_estimates(count: int) -> list[Estimate]:
    """Return training and serving steps of all software, schedules, ZeRO stages and experts."""
    rng = random.Random(11)
    trainers = ("megatron_core", "megatron_2021", "megatron_deepspeed", "nanotron", "torchtitan")
    servers = ("trtllm", "vllm", "fastertransformer", "megatron_inference", "tokenweave")
    results: list[Estimate] = []
    while len(results) < count:
        model = rng.choice(["llama3-8b", "llama3-70b", "mixtral-8x7b", "deepseek-v3"])
        trains = rng.random() < 0.7
        schedule = rng.choice(["1f1b", "interleaved", "zero_bubble"]) if trains else "1f1b"
        tp = rng.choice([1, 2, 8])
        ep = rng.choice([1, 4]) if model in {"mixtral-8x7b", "deepseek-v3"} else 1
        layout = Layout(
            tp=tp,
            cp=rng.choice([1, 1, 2]),
            pp=rng.choice([2, 4]) if schedule != "1f1b" else rng.choice([1, 2]),
            dp=rng.choice([4, 8]) if trains or ep > 1 else 1,
            ep=ep,
            virtual_stages=2 if schedule == "interleaved" else 1,
            sequence_parallel=tp > 1 and rng.random() < 0.5,
            recompute=rng.choice(["none", "selective", "full"]) if trains else "none",
            zero=rng.choice([0, 1, 3]) if trains else 0,
            schedule=schedule,
        )
        software = replace(
            Software.named(rng.choice(trainers if trains else servers)),
            launch=rng.choice(["eager", "graph"]),
            host_per_kernel_s=rng.choice([3e-6, 1e-4]),  # the device waits with the latter
            dp_overlap=rng.random() < 0.5,
        )
        work: Workload = Train(global_batch=64, sequence_length=rng.choice([1024, 8192]))
        if not trains:
            serving = (
                Prefill(batch=8, prompt_tokens=2048),
                Decode(batch=32, context_tokens=4096),
            )
            work = rng.choice(serving)
        try:
            results.append(estimate(model, H100, layout, work, software=software))
        except ValueError:  # such as layers that stages do not divide
            continue
    return results


@pytest.fixture(scope="module")
def varied() -> list[Estimate]:
    results = varied_estimates(250)
    for name, values in (
        ("schedule", {"1f1b", "interleaved", "zero_bubble"}),
        ("zero", {0, 1, 3}),
        ("ep", {1, 4}),
    ):
        assert {getattr(each.layout, name) for each in results} == values
    assert {each.software.launch for each in results} == {"eager", "graph"}
    return results


def test_parts_add_up_though_none_is_the_remainder(varied: list[Estimate]) -> None:
    """Waits for the host are computed from kernels and launches; so the sum is a check."""
    waiting = 0
    for result in varied:
        assert sum(result.parts_s.values()) == pytest.approx(result.time_s, rel=1e-9), result
        waits = result.ledger.launch_wait_s
        assert waits >= 0
        assert result.software.launch == "eager" or waits == 0
        waiting += waits > 0.1 * result.time_s
    assert waiting > 10


def test_sums_over_entries_are_the_figures_of_the_estimate(varied: list[Estimate]) -> None:
    for result in varied:
        kinds: dict[str, float] = {}
        for entry in result.entries:
            kinds[entry.kind] = kinds.get(entry.kind, 0.0) + entry.total_s
        listed = {name: seconds for name, seconds in kinds.items() if seconds}
        stated = {**result.compute_s, **result.comm_s}
        assert listed == pytest.approx({name: each for name, each in stated.items() if each})


def test_entries_happen_as_often_as_the_step_says(varied: list[Estimate]) -> None:
    """Sums over the ledger against the same counted by hand: stages, micro-batches, replicas."""
    for result in varied:
        ledger, layout, program = result.ledger, result.layout, result.program
        if not isinstance(result.workload, Train):
            assert result.comm_s["pp"] == pytest.approx((layout.pp - 1) * ledger.send.seconds)
            work_s = sum(result.compute_s.values()) + sum(
                seconds for group, seconds in result.exposed_s.items() if group != "pp"
            )
            assert work_s == pytest.approx(ledger.forward.device_s, rel=1e-9)
            continue
        runs = program.micro_batches
        sends = 2 * runs * layout.virtual_stages * (layout.pp > 1)
        assert result.comm_s["pp"] == pytest.approx(sends * ledger.send.seconds)
        sharded_s = runs * ledger.pace.layers * (2 * ledger.gather.seconds + ledger.scatter.seconds)
        once_s = ledger.reduce.seconds + ledger.collect.seconds
        assert result.comm_s["dp"] == pytest.approx(once_s + sharded_s, rel=1e-9)
        inside_s = sum(
            seconds for group, seconds in result.exposed_s.items() if group not in {"dp", "pp"}
        )
        busy_s = sum(result.compute_s.values()) - ledger.optimizer_s + inside_s
        paced_s = ledger.step_time.compute_s - ledger.straggler_s - ledger.launch_wait_s
        assert busy_s == pytest.approx(paced_s, rel=1e-9)


@pytest.mark.parametrize("virtual_stages", [1, 2, 5])
def test_every_virtual_stage_sends_its_activations(virtual_stages: int) -> None:
    layout = Layout(pp=4, dp=2, schedule="interleaved", virtual_stages=virtual_stages)
    work = Train(global_batch=32, sequence_length=4096)
    result = estimate("llama3-70b", H100, layout, work)
    micro_batches = 32 // 2
    send_bytes = 4096 * 8192 * 2
    assert result.program.send_bytes == send_bytes
    sent = result.traffic.by_group["pp"]
    assert sent == pytest.approx(2 * micro_batches * virtual_stages * send_bytes)
    listed = [entry for entry in result.entries if entry.group == "pp"]
    assert sum(entry.times for entry in listed) == 2 * micro_batches * virtual_stages


def test_entries_of_arrays_are_those_of_each_layout() -> None:
    pp = np.array([1, 2, 4])
    work = Train(global_batch=64, sequence_length=4096)
    together = estimate("llama3-8b", H100, Layout(tp=2, pp=pp, dp=16 // pp // 2, zero=1), work)
    for i, stages in enumerate(pp.tolist()):
        layout = Layout(tp=2, pp=stages, dp=16 // stages // 2, zero=1)
        alone = estimate("llama3-8b", H100, layout, work)
        for name in ("compute_s", "comm_s", "exposed_s", "parts_s"):
            cells = {
                key: float(np.broadcast_to(value, pp.shape)[i])
                for key, value in getattr(together, name).items()
            }
            assert cells == pytest.approx(dict(getattr(alone, name)), rel=1e-6, abs=1e-9), name


def test_links_carry_what_the_running_path_sends() -> None:
    """Eight H100s reduce a large message in the switch: a rank sends it 9/8 times, not 2 x 7/8."""
    work = Prefill(batch=8, prompt_tokens=4096)
    result = estimate("llama3-70b", "h100_sxm", Layout(tp=8), work, software="megatron_inference")
    sums = [
        entry.op
        for entry in result.entries
        if isinstance(entry.op, Collective) and entry.op.collective == "all_reduce"
    ]
    assert sums
    for op in sums:
        sent = result.ledger.prices.sent(op)
        assert sent.inside_bytes == pytest.approx(op.size_bytes * 9 / 8, rel=0.01)
        assert sent.network_bytes == 0
    assert result.traffic.inside_bytes == pytest.approx(result.traffic.by_group["tp"])


def test_no_link_carries_more_than_it_can(estimates: list[Estimate]) -> None:
    for found in estimates:
        assert max(found.link_utilisation.values()) < 1, found.layout


def test_utilisation_is_below_one_and_hardware_makes_at_least_the_models_flops(
    estimates: list[Estimate],
) -> None:
    for found in estimates:
        assert 0 < found.mfu <= found.hfu * 1.02 < 1


def test_one_call_prices_an_array_of_layouts_as_it_does_each() -> None:
    tp, dp = np.array([1, 2, 4, 8]), np.array([8, 4, 2, 1])
    work = Train(global_batch=64, sequence_length=4096)
    together = estimate("llama3-8b", H100, Layout(tp=tp, dp=dp, zero=1), work)
    alone = [
        estimate("llama3-8b", H100, Layout(tp=int(t), dp=int(d), zero=1), work)
        for t, d in zip(tp, dp, strict=True)
    ]
    assert together.time_s == pytest.approx([each.time_s for each in alone], rel=1e-6)
    assert together.memory_bytes == pytest.approx([each.memory_bytes for each in alone], rel=1e-6)
    assert together.mfu == pytest.approx([each.mfu for each in alone], rel=1e-6)


@pytest.mark.parametrize(
    ("model", "layout", "work", "reason"),
    [
        ("llama3-8b", Layout(tp=3), Prefill(batch=1, prompt_tokens=99), "3 does not divide|heads"),
        ("mixtral-8x7b", Layout(tp=1, dp=3, ep=3), Decode(batch=3, context_tokens=9), "8 experts"),
        (
            "llama3-8b",
            Layout(cp=4),
            Train(global_batch=4, sequence_length=1022),
            "sequence of 1022",
        ),
        ("llama3-8b", Layout(dp=3), Train(global_batch=8, sequence_length=64), "batch of 8"),
        ("llama3-8b", Layout(pp=64), Train(global_batch=64, sequence_length=64), "32 layers"),
        ("llama3-8b", Layout(tp=8, scheme="2d"), Prefill(batch=8, prompt_tokens=64), "square"),
        (
            "llama3-8b",
            Layout(pp=4, virtual_stages=2, schedule="interleaved", dp=2),
            Train(global_batch=12, sequence_length=64),
            "multiples of pp",
        ),
    ],
)
def test_an_impossible_layout_says_why(
    model: str, layout: Layout, work: Workload, reason: str
) -> None:
    with pytest.raises(BadValueError, match=reason):
        estimate(model, H100, layout, work)


def test_a_layout_that_does_not_fit_says_what_is_too_large() -> None:
    found = estimate("llama3-70b", H100, Layout(), Train(global_batch=1, sequence_length=4096))
    assert any("GiB" in each and "optimizer" in each for each in found.warnings)
    assert not found.memory.fits()


def test_the_cache_format_sets_the_time_of_decoding() -> None:
    times = [
        estimate(
            "llama3-70b",
            H100,
            Layout(tp=8),
            Decode(batch=64, context_tokens=16384, cache_dtype=dtype),
        ).time_s
        for dtype in ("bf16", "fp8")
    ]
    assert times[1] < 0.9 * times[0]


def test_a_window_bounds_what_attention_costs() -> None:
    work = Prefill(batch=1, prompt_tokens=32768)
    found = estimate("gpt-oss-120b", H100, Layout(tp=4), work)
    assert found.compute_s["attention"] < found.compute_s["gemm"]


def test_unmeasured_devices_say_whose_shares_they_use() -> None:
    found = estimate("llama3-8b", "mi355x", Layout(tp=2), Prefill(batch=1, prompt_tokens=512))
    assert any("constants inherited from" in text for text in found.warnings)


def test_gradients_of_experts_go_over_the_ranks_with_the_same_experts() -> None:
    work = Train(global_batch=64, sequence_length=1024)
    found = estimate("mixtral-8x7b", H100, Layout(tp=2, dp=16, ep=8), work)
    assert found.program.step is not None
    sizes = {op.ranks: op.size_bytes for op in found.program.step.gradients}  # type: ignore[union-attr]
    assert set(sizes) == {16, 2}
    assert sizes[2] == pytest.approx(4 * 32 * 3 * 4096 * 14336 / 2, rel=1e-6)


def test_a_cache_can_be_spread_over_context_ranks() -> None:
    work = Decode(batch=1, context_tokens=524288)
    alone, spread = (estimate("llama3-70b", H100, Layout(tp=8, cp=cp), work) for cp in (1, 4))
    assert spread.compute_s["attention"] < 0.5 * alone.compute_s["attention"]
    assert spread.comm_s["cp"] > 0


def test_an_engine_that_fuses_the_conversion_of_inputs_loses_less_time_to_it() -> None:
    def converting_s(dtype: str, software: str) -> float:
        work = Decode(batch=8, context_tokens=512, dtype=dtype)
        result = estimate("llama3-70b", H100, Layout(tp=4), work, software=software)
        return sum(float(e.total_s) for e in result.entries if "quantize" in e.op.name)

    assert 0 < converting_s("fp8", "trtllm") < 0.6 * converting_s("fp8", "sglang")
    assert converting_s("fp8_block", "trtllm") == converting_s("fp8_block", "sglang")
    assert converting_s("bf16", "sglang") == converting_s("int4", "sglang") == 0


@pytest.mark.parametrize("software", ["vllm", "sglang", "trtllm"])
def test_fp8_products_on_a_measured_device_are_its_own(software: str) -> None:
    work = Decode(batch=8, context_tokens=512, dtype="fp8")
    result = estimate("llama3-70b", H100, Layout(tp=4), work, software=software)
    assert not [text for text in result.warnings if "GEMM measurements" in text]


def test_weights_that_a_device_cannot_multiply_are_widened_and_that_is_said() -> None:
    work = Decode(batch=8, context_tokens=512, dtype="fp8")
    a100 = Cluster.named("a100_sxm")
    narrow = estimate("llama3-70b", a100, Layout(tp=4), work)
    wide = estimate("llama3-70b", a100, Layout(tp=4), replace(work, dtype="bf16"))
    assert narrow.time_s < 0.75 * wide.time_s
    assert [text for text in narrow.warnings if "no fp8 GEMMs" in text]
    assert not [text for text in wide.warnings if "products" in text]
    assert narrow.product_dtype == "bf16"


def test_uneven_groups_are_told_on_arrays_too() -> None:
    cluster = Cluster.named("h100_sxm", "ib_8x400g")
    work = Train(global_batch=26, sequence_length=2048)
    layouts = Layout(dp=np.array([2, 13]))
    found = estimate("llama3-8b", cluster, layouts, work)
    alone = estimate("llama3-8b", cluster, Layout(dp=13), work)
    assert found.time_s[1] == pytest.approx(alone.time_s, rel=1e-12)
    assert any("unevenly" in note for note in found.warnings)
    assert any("unevenly" in note for note in alone.warnings)


@pytest.mark.parametrize(
    ("layout", "of"),
    [
        (Layout(tp=8), lambda size: Decode(batch=size, context_tokens=1024)),
        (Layout(), lambda size: Prefill(batch=1, prompt_tokens=size)),
        (Layout(zero=1), lambda size: Train(global_batch=size, sequence_length=512)),
    ],
)
def test_many_sizes_of_one_layout_take_what_each_takes(layout: Layout, of: Any) -> None:
    sizes = np.arange(1, 401)
    many = estimate("llama3-8b", "h100_sxm", layout, of(sizes)).time_s
    for place in (0, 150, 399):
        alone = estimate("llama3-8b", "h100_sxm", layout, of(int(sizes[place]))).time_s
        assert many[place] == pytest.approx(alone, rel=1e-9)


def test_sizes_that_are_mixed_up_are_priced_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = np.arange(1, 1001)
    op = Gemm("any", sizes, 128, np.repeat([64, 128], 500), "bf16")
    small, back = price.distinct(op)
    assert isinstance(small, Gemm)
    assert back is not None
    np.testing.assert_array_equal(small.m[back], op.m)
    np.testing.assert_array_equal(small.k[back], op.k)
    monkeypatch.setattr(price, "_MIXER", np.uint64(0))
    same, back = price.distinct(op)
    assert isinstance(same, Gemm)
    np.testing.assert_array_equal(same.m, op.m)
    np.testing.assert_array_equal(back, np.arange(1000))


def test_packing_documents_never_makes_attention_dearer() -> None:
    rng = random.Random(0)
    for _ in range(100):
        cp = rng.choice([1, 2, 4, 8, 16])
        tokens = cp * rng.choice([64, 100, 1000, 8192])
        layout = Layout(cp=cp, context_scheme=rng.choice(["ring", "all_gather", "ulysses"]))
        documents = sorted(rng.choice([*range(1, 300), tokens // 2, tokens - 1]) for _ in range(2))
        alone, *packed = (
            estimate(
                "llama2-13b" if cp < 16 else "gpt3-175b",
                H100,
                layout if cp < 16 else replace(layout, context_scheme="ring"),
                Train(global_batch=1, sequence_length=tokens, document_tokens=document),
            )
            for document in (None, *documents)
        )
        for found in packed:
            dearer = found.compute_s["attention"] > alone.compute_s["attention"]
            assert not dearer, (found.layout, found.workload)
            assert found.mfu <= found.hfu <= 1


def test_context_ranks_share_the_attention_of_packed_documents() -> None:
    work = Train(global_batch=64, sequence_length=131072, document_tokens=65536)
    alone = Train(global_batch=64, sequence_length=131072)
    for scheme in ("ring", "all_gather", "ulysses"):
        layout = Layout(cp=8, dp=8, zero=1, context_scheme=scheme)
        packed, whole = (estimate("llama3-8b", H100, layout, each) for each in (work, alone))
        ratio = packed.compute_s["attention"] / whole.compute_s["attention"]
        assert 0.49 < ratio < 0.53, scheme


@pytest.mark.parametrize(
    ("model", "layout", "work"),
    [
        ("deepseek-v3.2", Layout(tp=8), Prefill(batch=1, prompt_tokens=131072)),
        ("glm-5", Layout(tp=8), Prefill(batch=4, prompt_tokens=65536)),
        (
            "llama3-70b",
            Layout(dp=8, zero=3),
            Train(global_batch=8, sequence_length=4096, adapters=True),
        ),
        (
            "mixtral-8x7b",
            Layout(dp=8, ep=8, zero=1),
            Train(global_batch=8, sequence_length=4096, adapters=True),
        ),
    ],
)
def test_devices_make_more_flops_than_sparse_or_frozen_models_need(
    model: str, layout: Layout, work: Workload
) -> None:
    found = estimate(model, H100, layout, work)
    assert 0 < found.mfu <= found.hfu < 1


def test_an_estimate_refuses_what_a_search_calls_infeasible() -> None:
    """Both ask the same rules: one layout is refused for the first reason that masks name."""
    rng = random.Random(7)
    refused: set[str] = set()
    for _ in range(300):
        model = Model.named(rng.choice(MODELS))
        virtual_stages = rng.choice([1, 1, 2, 3])
        degrees = {name: rng.choice([1, 2, 3, 4, 8]) for name in ("tp", "cp", "pp", "dp")}
        layout: dict[str, Any] = {
            **degrees,
            "micro_batch": rng.choice([1, 2]),
            "virtual_stages": virtual_stages if degrees["pp"] > 1 else 1,
            "schedule": rng.choice(["1f1b", "interleaved"]),
            "sequence_parallel": rng.choice([False, True]),
        }
        work = Train(global_batch=rng.choice([96, 128]), sequence_length=rng.choice([1024, 4098]))
        cells = Layout(**{**layout, "dp": np.array([degrees["dp"], 5])})
        masks = {
            reason: bool(np.broadcast_to(where, (2,))[0])
            for reason, where in reasons(model, cells, work).items()
        }
        expected = next((reason for reason, holds in masks.items() if holds), None)
        if expected is None:
            estimate(model, H100, Layout(**layout), work)
            continue
        with pytest.raises(InfeasibleError) as error:
            estimate(model, H100, Layout(**layout), work)
        assert error.value.reason == expected
        refused.add(expected.code)
    assert len(refused) >= 6
    assert "layers_not_divisible_by_virtual_stages" in refused


def test_virtual_stages_share_the_layers_evenly() -> None:
    layout = Layout(tp=8, pp=4, virtual_stages=3, schedule="interleaved")
    work = Train(global_batch=64, sequence_length=4096)
    with pytest.raises(InfeasibleError, match="does not divide 80 layers") as error:
        estimate("llama3-70b", H100, layout, work)
    assert error.value.reason.values == (80,)


def test_results_are_short_in_a_notebook() -> None:
    work = Decode(batch=64, context_tokens=4096)
    found = estimate("llama3-70b", "h100_sxm", Layout(tp=8), work)
    assert "tp8" in repr(found)
    assert "MFU" in repr(found)
    assert len(repr(found)) < 300
    many = estimate("llama3-70b", "h100_sxm", Layout(tp=np.array([4, 8])), work)
    assert len(repr(many)) < 300
    plan = search("llama3-8b", "h100_sxm", work, space={"gpus": 8})
    assert repr(plan.best[0]) in repr(plan)
    assert len(repr(plan)) < 600
    one = collective_time("all_reduce", 2**26, "h100_sxm", gpus=8)
    assert "64 MiB" in repr(one)
    assert len(repr(one)) < 200
    sweep = collective_time("all_reduce", np.array([2.0**20, 2.0**26]), "h100_sxm", gpus=8)
    assert "1 MiB to 64 MiB" in repr(sweep)


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b"])
def test_a_row_of_layouts_is_each_by_itself(name: str) -> None:
    """In a long row each different layer is priced once, and every figure is still a layout's."""
    draw = np.random.default_rng(1)
    number = 600
    tp, pp, micro_batch = (2 ** draw.integers(0, most, number) for most in (4, 3, 3))
    dp = 2 ** draw.integers(0, 5, number)
    ep = np.minimum(8, tp * dp) if name == "mixtral-8x7b" else np.ones(number, dtype=int)
    degrees: dict[str, Any] = {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "micro_batch": micro_batch}
    cluster = Cluster.named("h100_sxm", network="ib_8x400g")
    work = Train(global_batch=1024, sequence_length=4096)
    row = estimate(name, cluster, Layout(**degrees, zero=1), work)
    for place in draw.choice(number, 40, replace=False):
        own: dict[str, Any] = {key: int(each[place]) for key, each in degrees.items()}
        alone = estimate(name, cluster, Layout(**own, zero=1), work)
        assert row.time_s[place] == pytest.approx(alone.time_s, rel=1e-12)
        for part, seconds in alone.parts_s.items():
            there = np.broadcast_to(row.parts_s[part], number)[place]
            assert there == pytest.approx(seconds, rel=1e-9, abs=1e-12 * alone.time_s)
        sent = np.broadcast_to(row.traffic.network_bytes, number)[place]
        assert sent == pytest.approx(alone.traffic.network_bytes, rel=1e-9)

"""Number formats by part of a model, multi-token prediction, and what both cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest

from shardcost import (
    BadValueError,
    Cluster,
    Decode,
    Layout,
    Model,
    Prefill,
    Train,
    UnknownNameError,
    catalog,
    estimate,
    search,
)
from shardcost.dtypes import weight_bytes
from shardcost.estimate.why import why
from shardcost.memory import memory_of
from shardcost.memory.parameters import layer_parameters, prediction_parameters
from shardcost.program.operations import Elementwise, ExpertKernels, Gemm

TOKEN: dict[str, Any] = {"batch": 8, "context_tokens": 4096}


@pytest.mark.parametrize(
    ("name", "machine", "tp", "said"),
    [
        ("gpt-oss-120b", "h100_sxm", 1, "bf16, experts mxfp4, KV cache fp8"),
        ("deepseek-v3", "h200_sxm", 8, "fp8_block, KV cache fp8"),
        ("kimi-k2", "b200_sxm", 8, "fp8_block, KV cache fp8"),
    ],
)
def test_models_fit_where_everybody_runs_them(name: str, machine: str, tp: int, said: str) -> None:
    result = estimate(name, machine, Layout(tp=tp), Decode(**TOKEN))
    assert result.memory.fits()
    assert result.workload.formats_text == said
    wide = estimate(name, machine, Layout(tp=tp), Decode(**TOKEN, dtype="bf16"))
    assert not wide.memory.fits()
    assert wide.workload.formats_text == "bf16"


def test_a_stated_format_is_that_of_all_parts_unless_they_have_their_own() -> None:
    model = Model.named("gpt-oss-120b")
    given = Decode(**TOKEN, dtype="fp8").in_formats_of(model)
    assert given.formats | {"cache_dtype": None} == {
        "dtype": "fp8",
        "attention_dtype": "fp8",
        "expert_dtype": "fp8",
        "dispatch_dtype": None,
        "cache_dtype": None,
    }
    apart = Decode(**TOKEN, dtype="fp8", attention_dtype="bf16").in_formats_of(model)
    assert (apart.attention_dtype, apart.expert_dtype) == ("bf16", "fp8")
    own = Decode(**TOKEN).in_formats_of(model, narrow_cache=True)
    assert (own.dtype, own.expert_dtype, own.cache_dtype) == ("bf16", "mxfp4", "fp8")
    assert Decode(**TOKEN).in_formats_of(model).cache_dtype == "bf16"
    wide = Decode(**TOKEN, cache_dtype="bf16").in_formats_of(model, narrow_cache=True)
    assert wide.cache_dtype == "bf16"
    with pytest.raises(BadValueError, match="in_formats_of"):
        Decode(**TOKEN).part_dtype()
    work = Train(global_batch=8, sequence_length=64)
    assert work.in_formats_of(model) == work


def test_each_part_is_multiplied_in_its_own_format() -> None:
    work = Decode(**TOKEN, dtype="fp8", attention_dtype="bf16", expert_dtype="nvfp4")
    result = estimate("deepseek-v3", "b200_sxm", Layout(tp=8), work)
    dtypes = {
        entry.op.name: entry.op.dtype
        for entry in result.entries
        if isinstance(entry.op, Gemm | ExpertKernels)
    }
    assert dtypes["attn out"] == "bf16"
    assert dtypes["MLP up"] == dtypes["shared expert up"] == "fp8"
    assert dtypes["experts"] == "nvfp4"
    assert dtypes["router"] == dtypes["head"] == "bf16"


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "gpt-oss-120b", "qwen3-next-80b-a3b"])
def test_weights_take_the_bytes_of_their_formats(name: str) -> None:
    model = Model.named(name)
    work: Any = Decode(batch=1, context_tokens=1)
    wide, narrow = (
        memory_of(model, Layout(), replace(work, dtype=dtype)).by_kind()["weights"]
        for dtype in ("bf16", "int4")
    )
    assert wide == pytest.approx(2 * model.parameters, rel=1e-3)
    edges = (1 if model.tied_embeddings else 2) * model.vocab_size * model.hidden_size
    most = weight_bytes("int4") * (model.parameters - edges) + 2 * edges
    assert narrow == pytest.approx(most, rel=2e-2)


_COMPARED = (
    *("llama3-8b", "llama3-70b", "llama3-405b", "qwen3-32b", "mixtral-8x7b", "mixtral-8x22b"),
    *("deepseek-v3", "kimi-k2", "gpt-oss-120b", "gpt-oss-20b", "qwen3-235b-a22b", "qwen3-30b-a3b"),
    *("glm-4.5", "glm-5", "llama4-scout", "llama4-maverick", "nemotron-3-nano-30b-a3b", "grok-1"),
    *("qwen3-next-80b-a3b", "qwen3.5-397b-a17b"),
)


@pytest.mark.parametrize("software", [None, "vllm"])
def test_gemms_in_a_narrower_format_are_never_slower(software: str | None) -> None:
    """On every device of the catalog; what conversion costs is elementwise, and shown as such."""
    works = [Decode(batch=1, context_tokens=64), Decode(batch=32, context_tokens=64)]
    compared = 0
    for machine in catalog.names("clusters"):
        cluster = Cluster.named(machine)
        peaks, layout = cluster.device.peak_flop_per_s, Layout(tp=min(8, cluster.gpus_per_node))
        narrow = [("fp8", "fp8"), ("fp4", "nvfp4")]
        formats = ["bf16", *(form for own, form in narrow if own in peaks)]
        for name, work in product(_COMPARED, works):
            times = [
                estimate(
                    name, cluster, layout, replace(work, dtype=each), software=software
                ).compute_s["gemm"]
                for each in formats
            ]
            for wide_s, narrow_s in pairwise(times):
                assert narrow_s <= (1 + 1e-9) * wide_s, (machine, name, work)
                compared += 1
    assert compared > 1500


def test_small_expert_kernels_are_elementwise() -> None:
    """Top-k, sorting, conversion and the weighted sum are not taken for GEMMs."""
    step = estimate("deepseek-v3", "h200_sxm", Layout(tp=8), Decode(batch=1, context_tokens=64))
    experts = {e.op.part: e for e in step.entries if isinstance(e.op, ExpertKernels)}
    assert experts["gemms"].kind == "gemm"
    assert experts["small"].kind == "elementwise"
    assert experts["small"].flops == 0
    assert experts["small"].seconds > experts["gemms"].seconds  # of one token
    many = estimate("mixtral-8x7b", "h200_sxm", Layout(tp=2), Prefill(batch=4, prompt_tokens=4096))
    experts = {e.op.part: e for e in many.entries if isinstance(e.op, ExpertKernels)}
    assert experts["small"].seconds < experts["gemms"].seconds


def test_an_unknown_format_is_one_line() -> None:
    with pytest.raises(UnknownNameError, match=r"Decode.expert_dtype"):
        Decode(**TOKEN, expert_dtype="fp5")


# Multi-token prediction ----------------------------------------------------------------------


def test_drafts_are_verified_and_kept_as_often_as_they_are_accepted() -> None:
    work = Decode(**TOKEN, draft_tokens=3, acceptance=0.5)
    assert work.kept_tokens == 1 + 0.5 + 0.25 + 0.125
    assert work.query_tokens == 4
    assert work.tokens == 8 * 1.875
    plain = estimate("deepseek-v3", "b200_sxm", Layout(tp=8), Decode(**TOKEN))
    drafted = estimate("deepseek-v3", "b200_sxm", Layout(tp=8), work)
    assert drafted.time_s > plain.time_s
    assert drafted.tpot_s == pytest.approx(drafted.time_s / 1.875)
    more = drafted.memory.by_kind()["weights"] - plain.memory.by_kind()["weights"]
    assert more == pytest.approx(drafted.model.mtp_parameters / 8, rel=0.1)
    drafts = [entry for entry in drafted.entries if entry.op.name.startswith("MTP")]
    head = next(entry for entry in drafts if entry.op.name == "MTP head")
    assert head.times == 3
    assert isinstance(head.op, Gemm)
    assert head.op.m == 8  # one token of each sequence
    verified = next(entry for entry in drafted.entries if entry.op.name == "head")
    assert isinstance(verified.op, Gemm)
    assert verified.op.m == 32


def test_speculation_pays_where_the_memory_decides_and_drafts_are_kept() -> None:
    def tpot_s(batch: int, acceptance: float) -> float:
        work = Decode(batch=batch, context_tokens=2048, draft_tokens=2, acceptance=acceptance)
        return float(estimate("deepseek-v3", "b200_sxm", Layout(tp=8), work).tpot_s)

    alone = estimate("deepseek-v3", "b200_sxm", Layout(tp=8), Decode(batch=2, context_tokens=2048))
    assert tpot_s(2, 0.9) < 0.8 * alone.tpot_s
    assert tpot_s(2, 0.0) > alone.tpot_s
    assert tpot_s(2, 0.9) < tpot_s(2, 0.6) < tpot_s(2, 0.1)
    with pytest.raises(BadValueError, match=r"Decode.acceptance must be a share from 0 to 1"):
        Decode(**TOKEN, acceptance=1.5)


def test_prediction_layers_are_trained_with_a_loss_of_their_own() -> None:
    cluster = Cluster.named("h100_sxm", "ib_8x400g")
    layout = Layout(tp=2, pp=4, dp=8, ep=16, zero=1, last_stage_layers=13)
    work = Train(global_batch=256, sequence_length=4096, dtype="fp8_block")
    plain, more = (
        estimate("deepseek-v3", cluster, layout, replace(work, mtp_layers=layers))
        for layers in (0, 1)
    )
    assert more.time_s > plain.time_s
    model = plain.model
    last = model.blocks[-1].matrix_parameters(model.hidden_size)
    added = last + 2 * model.hidden_size**2 + model.hidden_size * model.vocab_size
    matrices = 6.0 * work.tokens * added
    assert more.flops - plain.flops > matrices
    assert more.flops - plain.flops == pytest.approx(matrices, rel=0.2)  # attention besides
    assert more.hardware_flops >= more.flops
    names = {entry.op.name for entry in more.entries}
    assert {"MTP head", "MTP projection", "MTP attention", "MTP loss"} <= names
    assert not any(entry.op.name.startswith("MTP") for entry in plain.entries)
    held = more.memory.stages["last"].weights - plain.memory.stages["last"].weights
    own = prediction_parameters(model, layout, 1)
    assert own.experts == pytest.approx(layer_parameters(model, model.blocks[-1], layout).experts)
    assert 2 * own.total <= held < 3.5 * own.total  # in 16 bits, and a copy in 8
    assert more.memory.stages["first"].weights == plain.memory.stages["first"].weights


def test_conversions_are_operations_that_a_device_may_not_need() -> None:
    work = Decode(**TOKEN, dtype="fp8_block")

    def conversions(machine: str) -> dict[str, float]:
        result = estimate("llama3-8b", machine, Layout(), work, software="vllm")
        return {
            entry.op.name: float(entry.total_s)
            for entry in result.entries
            if isinstance(entry.op, Elementwise) and entry.op.converts is not None
        }

    hopper, ampere = conversions("h100_sxm"), conversions("a100_sxm")
    assert set(hopper) == {
        "qkv quantize",
        "attn out quantize",
        "MLP up quantize",
        "MLP down quantize",
    }
    assert all(seconds > 0 for seconds in hopper.values())
    assert not any(ampere.values())


def test_a_search_prices_a_model_in_its_own_formats() -> None:
    found = search(
        "gpt-oss-120b", "h100_sxm", Decode(**TOKEN), space={"gpus": (1, 2), "tp": (1, 2)}
    )
    assert found.questions[0].workload.formats_text == "bf16, experts mxfp4, KV cache fp8"
    best = found.best[0]
    alone = estimate("gpt-oss-120b", "h100_sxm", best.layout, Decode(**TOKEN))
    assert best.time_s == pytest.approx(alone.time_s)
    assert any(each.layout.devices == 1 for each in found.best)


@pytest.mark.parametrize(("machine", "said"), [("h100_sxm", "row_cycles"), ("a100_sxm", "nothing")])
def test_a_conversion_says_why(machine: str, said: str) -> None:
    work = Decode(**TOKEN, dtype="fp8_block")
    result = estimate("llama3-8b", machine, Layout(), work, software="vllm")
    answer = why(result, "op.qkv quantize")
    assert said in f"{answer.formula} {answer.words}"
    (entry,) = [each for each in result.entries if each.op.name == "qkv quantize"]
    assert answer.value == pytest.approx(float(entry.seconds))


def test_an_exchange_of_tokens_explains_itself_where_it_is_heaviest() -> None:
    cluster = Cluster.named("h100_sxm", "ib_8x400g")
    work = Decode(batch=512, context_tokens=256)
    result = estimate("deepseek-v3", cluster, Layout(dp=32, ep=32), work, software="sglang")
    (line,) = [each for each in result.explain().split("\n") if "Heaviest collective" in each]
    assert "dispatch" in line or "combine" in line
    assert "deepep" in result.explain().lower()

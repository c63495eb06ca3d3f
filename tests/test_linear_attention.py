"""Layers with a fixed state: parameters, operations, prices and receipts in an estimate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardcost import Decode, Layout, Prefill, Train, estimate
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.estimate.explain import explanation
from shardcost.estimate.roofline import roofline
from shardcost.estimate.why import why
from shardcost.memory.account import cache_bytes_per_layer
from shardcost.memory.parameters import layer_parameters
from shardcost.model import Attention, Block, FeedForward, LinearAttention, Model, StateSpace
from shardcost.program.operations import StateKernel
from shardcost.recurrence import RULES, scan_flops, step_flops

HEADS: dict[str, Any] = {"key_heads": 16, "key_head_dim": 128, "value_head_dim": 128}
DELTA = LinearAttention(**HEADS, value_heads=32, conv_kernel=4)
KIMI = LinearAttention(
    key_heads=32, value_heads=32, key_head_dim=128, value_head_dim=128, conv_kernel=4, rule="kda"
)
LIGHTNING = LinearAttention(**HEADS, value_heads=16, conv_kernel=0, rule="lightning")
MAMBA2 = StateSpace(inner_size=4096, state_size=128, conv_kernel=4, heads=64, groups=8)
MAMBA1 = StateSpace(inner_size=4096, state_size=16, conv_kernel=4, step_rank=128)
PARTS = {
    "delta": DELTA, "kda": KIMI, "lightning": LIGHTNING, "mamba2": MAMBA2, "mamba1": MAMBA1,
}  # fmt: skip
WORKLOADS = {
    "decode": Decode(batch=16, context_tokens=2048),
    "verify": Decode(batch=16, context_tokens=2048, new_tokens=4),
    "prefill": Prefill(batch=4, prompt_tokens=4096),
    "train": Train(global_batch=16, sequence_length=4096),
}


def model(part: Any, layers: int = 8) -> Model:
    mlp = FeedForward(width=6144, gated=True)
    full = Attention(heads=16, kv_heads=2, head_dim=128)
    kinds = ((layers, part), (2, full))
    blocks = tuple(Block(count=n, attention=each, feed_forward=mlp) for n, each in kinds)
    return Model(name="hybrid", hidden_size=2304, vocab_size=32000, blocks=blocks)


def kernels(result: Any) -> dict[str, Any]:
    return {each.op.name: each for each in result.entries if isinstance(each.op, StateKernel)}


def test_parameters_of_kimi_delta_attention() -> None:
    """Queries, keys, values and output; decay and gate of rank 128; strengths; taps; vectors."""
    hidden, size = 2304, 32 * 128
    matrices = 4 * hidden * size + 2 * (hidden * 128 + 128 * size) + hidden * 32
    assert KIMI.matrix_parameters(hidden) == matrices
    assert KIMI.parameters(hidden) == matrices + 3 * size * 4 + (32 + size) + 128


def test_parameters_of_lightning_attention() -> None:
    """MiniMax-01: queries, keys and values, the gate, the output and a norm over all heads."""
    hidden, size = 6144, 16 * 128
    assert LIGHTNING.parameters(hidden) == 5 * hidden * size + size


def test_parameters_of_the_gated_delta_rule_stay() -> None:
    hidden, key, value = 2048, 16 * 128, 32 * 128
    assert DELTA.matrix_parameters(hidden) == hidden * (2 * key + 3 * value + 2 * 32)


def test_low_ranks_are_not_divided() -> None:
    alone = Model(
        name="alone",
        hidden_size=2304,
        vocab_size=32000,
        blocks=(Block(count=1, attention=KIMI, norms=0),),
    )
    one, four = (sum(layer_parameters(alone, alone.blocks[0], Layout(tp=tp))) for tp in (1, 4))
    undivided = 2304 * 2 * 128 + 128
    assert four == pytest.approx((one - undivided) / 4 + undivided)


def test_only_known_rules_and_their_gates() -> None:
    with pytest.raises(UnknownNameError):
        LinearAttention(**HEADS, value_heads=32, conv_kernel=4, rule="retention")
    with pytest.raises(BadValueError):
        LinearAttention(**HEADS, value_heads=32, conv_kernel=4, gate_rank=64)


def test_the_cache_of_lightning_attention_has_no_past_tokens() -> None:
    kept = cache_bytes_per_layer(model(LIGHTNING), Layout(), 1, 2)
    full = 2 * 2 * 128 * 2
    assert kept == pytest.approx((8 * 16 * 128 * 128 * 4 + 2 * full) / 10)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("work", WORKLOADS)
def test_every_rule_is_priced_and_explained(name: str, work: str) -> None:
    software = "megatron" if work == "train" else "vllm"
    layout = Layout(tp=2, dp=2) if work == "train" else Layout(tp=2)
    result = estimate(model(PARTS[name]), "h100_sxm", layout, WORKLOADS[work], software=software)
    found = kernels(result)
    stepped = work in {"decode", "verify"}
    convolved = name != "lightning"
    assert ("convolution" in found) == convolved
    assert ("state step" in found) == stepped
    assert ("scan" in found) == (not stepped and name != "mamba1")
    assert ("scan gradient" in found) == (work == "train" and name != "mamba1")
    assert result.hardware_flops >= 0.999 * result.flops
    assert not result.model.not_priced_yet
    for op in found:
        assert why(result, f"op.{op}").value == pytest.approx(found[op].seconds)
    if found:
        assert "Linear attention" in explanation(result)
    kinds = {kernel.kind for kernel in roofline(result).kernels}
    assert kinds <= {"gemm", "attention", "elementwise"}


def test_time_is_no_shorter_than_the_state_over_the_memory() -> None:
    batch = 512
    step = Decode(batch=batch, context_tokens=64)
    result = estimate(model(DELTA), "h100_sxm", Layout(), step, software="vllm")
    least_s = batch * 2 * 32 * 128 * 128 * 4 / 3.35e12
    assert least_s < kernels(result)["state step"].seconds < 1.5 * least_s


def test_tensorrt_llm_keeps_states_in_16_bits() -> None:
    step = Decode(batch=512, context_tokens=64)
    times = {
        engine: kernels(estimate(model(DELTA), "h100_sxm", Layout(), step, software=engine))
        for engine in ("vllm", "trtllm")
    }
    ratio = times["trtllm"]["state step"].seconds / times["vllm"]["state step"].seconds
    assert 0.6 < ratio < 0.9  # read in 16 bits, written in 32


def test_gradients_take_about_twice_as_long() -> None:
    result = estimate(model(MAMBA2), "h100_sxm", Layout(), WORKLOADS["train"], software="megatron")
    found = kernels(result)
    assert 1.7 < found["scan gradient"].seconds / found["scan"].seconds < 2.5


def test_time_grows_linearly_with_the_prompt() -> None:
    def time_s(tokens: int) -> float:
        prompt = Prefill(batch=1, prompt_tokens=tokens)
        result = estimate(model(DELTA), "h100_sxm", Layout(), prompt, software="vllm")
        return float(kernels(result)["scan"].seconds)

    assert 1.9 < time_s(32768) / time_s(16384) < 2.1


def test_packed_documents_begin_anew() -> None:
    """Chains of documents run side by side: shorter than one chain through them all."""
    whole = Train(global_batch=1, sequence_length=32768)
    packed = Train(global_batch=1, sequence_length=32768, document_tokens=4096)
    first, second = (
        kernels(estimate(model(KIMI), "h100_sxm", Layout(tp=8), each, software="megatron"))
        for each in (whole, packed)
    )
    assert second["scan"].seconds < first["scan"].seconds


def test_arrays_are_priced_as_their_cells() -> None:
    degrees = [1, 2, 4, 8]
    step = Decode(batch=16, context_tokens=128)
    grid = estimate(model(KIMI), "h100_sxm", Layout(tp=np.array(degrees)), step, software="vllm")
    cells = [
        float(estimate(model(KIMI), "h100_sxm", Layout(tp=tp), step, software="vllm").time_s)
        for tp in degrees
    ]
    assert np.allclose(grid.time_s, cells, rtol=1e-6)


def test_an_unknown_device_says_that_constants_are_inherited() -> None:
    result = estimate(model(KIMI), "h200_sxm", Layout(), WORKLOADS["decode"], software="vllm")
    assert any("linear attention" in each and "h100_sxm" in each for each in result.warnings)


@pytest.mark.parametrize("rule", RULES)
def test_the_chunked_form_makes_more_flops_than_the_recurrence(rule: str) -> None:
    assert scan_flops(rule, 16, 128, 32, 128) > step_flops(rule, 32, 128, 128)

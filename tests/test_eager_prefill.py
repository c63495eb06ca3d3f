"""How many kernels a host starts for a pass over prompts, that no recorded graph has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardcost import Cluster, Layout, Model, Prefill, Software, estimate
from shardcost.model import LatentAttention, LinearAttention

_EACH_S = 1e-2


def started(model: Model, dtype: str | None = None) -> float:
    """Return the kernels of a pass: with a host as slow as this one, all that it takes."""
    engine = replace(
        Software.named("sglang"), eager_per_kernel_s=_EACH_S, step_overhead_s=1e-12,
        host_per_sequence_s=1e-12,
    )  # fmt: skip
    work = Prefill(batch=1, prompt_tokens=16, dtype=dtype)
    found = estimate(model, Cluster.named("h200_sxm"), Layout(tp=8), work, software=engine)
    return float(found.time_s) / _EACH_S


def without_layers(model: Model, kind: type) -> Model:
    """Return a model with one layer less of those with some attention."""
    place = max(i for i, each in enumerate(model.blocks) if isinstance(each.attention, kind))
    block = model.blocks[place]
    fewer = replace(block, count=block.count - 1)
    return replace(model, blocks=(*model.blocks[:place], fewer, *model.blocks[place + 1 :]))


@pytest.mark.parametrize(("dtype", "more"), [("bf16", 0), ("fp8", 4), ("fp8_block", 0)])
def test_block_scaled_inputs_are_converted_in_the_call_of_their_gemm(dtype: str, more: int) -> None:
    model = Model.named("llama3-70b")
    each = (started(model, dtype) - started(model, "bf16")) / model.num_layers
    assert each == pytest.approx(more)


@pytest.mark.parametrize(
    ("name", "kind", "kernels"),
    [("deepseek-v2", LatentAttention, 26), ("qwen3-next-80b-a3b", LinearAttention, 36)],
)
def test_kernels_inside_latent_and_linear_attention_are_started_too(
    name: str, kind: type, kernels: int
) -> None:
    model = Model.named(name)
    layer = started(model, "bf16") - started(without_layers(model, kind), "bf16")
    assert layer == pytest.approx(kernels, abs=1e-3)

"""Estimates of all kinds that several test files look at, by name."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from shardcost import Cluster, Decode, Estimate, Layout, Prefill, Train, Workload, estimate
from shardcost.estimate.pieces import PassParts

DECODE = Decode(batch=64, context_tokens=4096)
TRAIN = Train(global_batch=64, sequence_length=4096)


class Case(NamedTuple):
    """The arguments of an estimate."""

    model: str
    layout: Layout
    workload: Workload
    software: str | None = None
    on: str = "h100_sxm"
    network: str | None = "ib_8x400g"


CASES = {
    "decode": Case("llama3-70b", Layout(tp=8), DECODE, network=None),
    "decode, vllm": Case("llama3-70b", Layout(tp=8), DECODE, "vllm"),
    "decode, tokenweave": Case("llama3-70b", Layout(tp=8), DECODE, "tokenweave"),
    "decode, one GPU": Case("llama3-8b", Layout(), Decode(batch=8, context_tokens=1024)),
    "decode, drafts": Case(
        "llama3-8b",
        Layout(),
        Decode(batch=8, context_tokens=1024, new_tokens=3),
        "vllm",
        "a100_sxm",
    ),
    "decode, narrow": Case(
        "llama3-70b",
        Layout(tp=4),
        Decode(batch=64, context_tokens=4096, dtype="nvfp4", cache_dtype="fp8"),
        on="b200_sxm",
    ),
    "decode, no fp8 peak": Case(
        "llama3-8b",
        Layout(),
        Decode(batch=8, context_tokens=4096, cache_dtype="fp8"),
        on="a100_sxm",
        network=None,
    ),
    "decode, windows": Case(
        "gpt-oss-120b", Layout(tp=2), Decode(batch=8, context_tokens=4096), on="h200_sxm"
    ),
    "decode, experts": Case("deepseek-v3", Layout(tp=8, ep=8), DECODE, "sglang"),
    "decode, experts on H200": Case("deepseek-v3", Layout(tp=8, ep=8), DECODE, on="h200_sxm"),
    "decode, experts and contexts": Case(
        "mixtral-8x7b", Layout(tp=4, ep=2, cp=2), Decode(batch=4, context_tokens=4096)
    ),
    "decode, latent": Case(
        "deepseek-v3",
        Layout(tp=8, pp=2),
        Decode(batch=16, context_tokens=4096, dtype="fp8"),
        "vllm",
        "h200_sxm",
    ),
    "prefill": Case(
        "llama3-8b",
        Layout(tp=2, dp=2),
        Prefill(batch=4, prompt_tokens=2048),
        on="a100_sxm",
        network=None,
    ),
    "prefill, fp8": Case(
        "llama3-70b", Layout(tp=8), Prefill(batch=1, prompt_tokens=8192, dtype="fp8")
    ),
    "prefill, stages": Case("llama3-70b", Layout(tp=4, pp=2), Prefill(batch=2, prompt_tokens=4096)),
    "prefill, sglang": Case(
        "llama3-70b",
        Layout(tp=4, pp=2),
        Prefill(batch=1, prompt_tokens=4096),
        "sglang",
        "h200_sxm",
    ),
    "prefill, own kernels": Case(
        "llama3-8b",
        Layout(tp=2),
        Prefill(batch=2, prompt_tokens=2048),
        "vllm_2024",
        "mi300x",
        None,
    ),
    "train, shared ports": Case(
        "kimi-k2",
        Layout(tp=8, ep=8, dp=32, micro_batch=2, sequence_parallel=True, zero=1),
        Train(global_batch=64, sequence_length=2048),
        on="h200_sxm",
        network="roce_8x400g",
    ),
    "train": Case("llama3-70b", Layout(tp=8, pp=4, dp=2), TRAIN),
    "train, one stage": Case("llama3-70b", Layout(tp=8, dp=4), TRAIN),
    "train, interleaved": Case(
        "llama3-70b",
        Layout(tp=8, pp=4, virtual_stages=2, dp=2, zero=1, schedule="interleaved"),
        TRAIN,
    ),
    "train, zero bubble": Case(
        "llama3-70b",
        Layout(tp=2, pp=4, schedule="zero_bubble"),
        Train(global_batch=16, sequence_length=2048),
        network=None,
    ),
    "train, ZeRO 3": Case("llama3-8b", Layout(tp=2, dp=8, zero=3), TRAIN),
    "train, ZeRO 3 and contexts": Case("llama3-70b", Layout(tp=4, cp=2, dp=4, zero=3), TRAIN),
    "train, copies of shards": Case(
        "llama3-70b", Layout(tp=4, cp=2, dp=8, zero=3, shard_degree=8), TRAIN
    ),
    "train, contexts": Case(
        "llama3-8b",
        Layout(tp=2, cp=4),
        Train(global_batch=8, sequence_length=16384),
        network=None,
    ),
    "train, experts": Case(
        "mixtral-8x7b", Layout(tp=2, ep=8, pp=2, dp=8, zero=1, recompute="full"), TRAIN
    ),
    "train, experts in stages": Case("deepseek-v3", Layout(tp=8, pp=4, dp=8, ep=8), TRAIN),
    "train, experts over nodes": Case(
        "deepseek-v3", Layout(tp=8, dp=4, ep=32, pp=2, zero=1), TRAIN
    ),
    "train, recomputed": Case(
        "llama3-70b",
        Layout(tp=8, pp=4, dp=2, zero=1, sequence_parallel=True, recompute="full"),
        TRAIN,
    ),
    "train, selectively recomputed": Case(
        "llama3-70b",
        Layout(tp=8, pp=4, recompute="selective", sequence_parallel=True),
        Train(global_batch=16, sequence_length=4096),
    ),
    "train, recomputed on A100": Case(
        "megatron-22b",
        Layout(tp=8, recompute="full"),
        Train(global_batch=4, sequence_length=2048),
        on="a100_sxm",
        network=None,
    ),
    "train, nanotron": Case(
        "llama3-8b",
        Layout(tp=4, dp=2, zero=1),
        Train(global_batch=32, sequence_length=2048, optimizer="sgd"),
        "nanotron",
        network=None,
    ),
    "train, eager": Case(
        "llama3-8b",
        Layout(dp=8, zero=2),
        Train(global_batch=32, sequence_length=2048, dtype="fp8"),
        "torch",
        network=None,
    ),
    "train, adapters": Case(
        "llama3-8b",
        Layout(tp=2),
        Train(global_batch=8, sequence_length=2048, adapters=True),
        network=None,
    ),
}


@cache
def estimated(name: str) -> Estimate:
    """Return the estimate of a case."""
    model, layout, workload, software, on, network = CASES[name]
    return estimate(model, Cluster.named(on, network), layout, workload, software=software)


def usual_passes(found: Estimate) -> dict[str, PassParts]:
    """Return the passes over one layer of the kind that the model has most of, by part."""
    program = found.program
    piece = found.ledger.layers[program.layers.index(program.usual_layers)]
    return {phase: PassParts.of([(1, piece)], phase) for phase in ("forward", "backward", "weight")}

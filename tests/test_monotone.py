"""More sequences or longer contexts never make a decode step shorter, but for named causes.

Each cause is a choice that a library makes by a rule of its own. What remains of a step when these
operations are taken out is monotone, and so is the whole step where none of them is at work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shardcost import Decode, Estimate, Layout, estimate
from shardcost.errors import ShardcostError
from shardcost.estimate.ledger import Entry
from shardcost.program.operations import Collective, ExpertKernels, Gemm, LatentCore

EXEMPT = {
    "collectives": "a library turns to another path at a message size, by its tuner's expectation; "
    "on PCIe the time of LL just below is predicted too high (8 L40S: measured without a dip)",
    "experts": "fused expert kernels choose the tile height by the rows of all ranks",
    "latent attention": "adding up the parts of a split context costs by the part, and fewer "
    "sequences are split into more of them",
}
"""Operations that may take less for more, with the reason."""
DENSE = ("llama2-7b", "llama3-8b", "llama3-70b", "llama3-405b", "qwen3-32b", "gemma3-27b")
EXPERTS = ("mixtral-8x7b", "gpt-oss-120b", "qwen3-235b-a22b", "deepseek-v3", "deepseek-v3.2")
OTHERS = ("nemotron-h-56b", "qwen3-next-80b-a3b")
MODELS = (*DENSE, *EXPERTS, *OTHERS)
MACHINES = (
    "a100_sxm", "h100_sxm", "h200_sxm", "h20_sxm", "b200_sxm", "gb200_nvl72", "l40s", "a100_pcie",
    "rtx4090", "mi300x", "mi355x", "gaudi3", "tpu_v5p",
)  # fmt: skip
BATCHES = np.array([*range(1, 17), 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256])[:, None]
CONTEXTS = np.array([1, 128, 200, 256, 400, 512, 1024, 1500, 2048, 4096, 8192, 32768])
ROUNDING = 1e-3
"""Of a step: a GEMM is a mean over tile shapes, which may shift to faster ones by as much."""


LAYOUTS = (Layout(), Layout(tp=8), Layout(tp=8, ep=8))


def questions(
    models: tuple[str, ...], layouts: tuple[Layout, ...]
) -> Iterator[tuple[str, Estimate]]:
    work = Decode(batch=BATCHES, context_tokens=CONTEXTS)
    for model in models:
        for machine in MACHINES:
            for layout in layouts:
                for software in (None, "vllm"):
                    try:
                        result = estimate(model, machine, layout, work, software=software)
                    except ShardcostError:  # heads, GPUs or formats that do not fit
                        continue
                    yield f"{model} on {machine}, {layout}, {software}", result


def cause(entry: Entry) -> str | None:
    """Return why an operation may take less for more, if it may."""
    op = entry.op
    if isinstance(op, Collective):
        return "collectives"
    if isinstance(op, ExpertKernels) or (isinstance(op, Gemm) and op.fullest is not None):
        return "experts"
    return "latent attention" if isinstance(op, LatentCore) else None


def deepest(times_s: Any, whole_s: Any) -> float:
    """Return by how much a time falls below one of less work, at most, as a share of the step."""
    times = np.broadcast_to(times_s, whole_s.shape)
    dips = [(np.maximum.accumulate(times, axis) - times) / whole_s for axis in (0, 1)]
    return float(np.max(dips))


def test_steps_are_monotone_but_for_named_causes() -> None:
    found: dict[str, list[str]] = {name: [] for name in EXEMPT}
    tried = 0
    for name, result in questions(MODELS, LAYOUTS):
        tried += 1
        whole = np.asarray(result.time_s)
        parts: dict[str, Any] = dict.fromkeys(EXEMPT, 0.0)
        for entry in result.entries:
            reason = cause(entry)
            if reason is not None:
                parts[reason] = parts[reason] + entry.exposed_s
        assert deepest(whole - sum(parts.values()), whole) < ROUNDING, name
        for reason, part in parts.items():
            if deepest(part, whole) >= ROUNDING:
                found[reason].append(name)
    assert tried > 400
    # A cause that is no longer found no longer needs its exemption.
    assert all(found.values()), {reason: len(names) for reason, names in found.items()}


def test_dense_models_on_one_gpu_are_monotone() -> None:
    for name, result in questions(DENSE, LAYOUTS[:1]):
        assert deepest(result.time_s, np.asarray(result.time_s)) < ROUNDING, name


@pytest.mark.parametrize("software", ["trtllm", "vllm", "sglang"])
@pytest.mark.parametrize("context", [512, 1024, 2048, 4096])
def test_one_number_at_a_time(software: str, context: int) -> None:
    works = [Decode(batch=batch, context_tokens=context) for batch in (1, 2, 3, 4, 5, 6, 8)]
    on = ("llama3-70b", "h100_sxm", Layout(tp=8))
    times = [estimate(*on, work, software=software).time_s for work in works]
    assert times == sorted(times)

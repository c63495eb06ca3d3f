"""Low-rank adapters: what they multiply, move, send and update beside frozen weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardcost.estimate.step import estimate
from shardcost.layout import Layout
from shardcost.memory.adapters import adapter_parameters
from shardcost.memory.parameters import layer_parameters
from shardcost.model import Model
from shardcost.program import program_of
from shardcost.program.assemble import Program
from shardcost.program.flops import model_flops
from shardcost.program.operations import Collective, Elementwise, Gemm, Operation
from shardcost.software import Software
from shardcost.workload import Train

MEGATRON = Software.named("megatron_core")
WORK = Train(global_batch=16, sequence_length=4096, adapters=True, adapter_targets="all")
WHOLE = replace(WORK, adapters=False)
MODELS = (
    "llama2-70b",
    "deepseek-v3.2",
    "kimi-linear-48b-a3b",
    "qwen3-next-80b-a3b",
    "falcon-h1-34b",
    "codestral-mamba-7b",
)


def of_adapters(operations: tuple[Operation, ...]) -> list[Any]:
    return [op for op in operations if " adapter" in op.name]


def built(model: str | Model, layout: Layout, work: Train = WORK) -> Program:
    model = Model.named(model) if isinstance(model, str) else model
    return program_of(model, layout, work, MEGATRON)


@pytest.mark.parametrize("targets", ["qkv", "attention", "all"])
@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_weight_gradients_are_those_of_the_adapters_that_memory_counts(
    name: str, tp: int, targets: str
) -> None:
    """The parts that count weights and operations are apart: both must know the same adapters."""
    model, work = Model.named(name), replace(WORK, adapter_targets=targets)
    layout = Layout(tp=tp)
    program = built(model, layout, work)
    made = 0.0
    for kind in program.layers:
        gemms = [op for op in kind.passes.weight if isinstance(op, Gemm)]
        assert gemms == of_adapters(kind.passes.weight)
        made += kind.count * sum(op.m * op.n for op in gemms)
    expected = model.num_layers * adapter_parameters(model, layout, work)
    assert made == pytest.approx(expected, rel=1e-12)
    assert not program.first.weight
    assert not program.first.backward
    assert not program.last.weight


def test_frozen_matrices_multiply_twice_and_adapters_three_times() -> None:
    model = Model.named("llama3-8b")
    adapters = 32 * adapter_parameters(model, Layout(), WORK)
    attention = model_flops(model, WHOLE, causal=True)
    matrices = sum(each.count * each.matrix_parameters(4096) for each in model.blocks)
    matrices += model.vocab_size * model.hidden_size
    less = attention - model_flops(model, WORK, causal=True)
    assert less == pytest.approx(2 * WORK.tokens * (matrices - 3 * adapters), rel=1e-12)


def test_inputs_of_frozen_gemms_are_converted_in_one_order() -> None:
    """Only the gradient of a weight reads its input in the other."""
    narrow, whole = (replace(work, dtype="fp8") for work in (WORK, WHOLE))
    frozen, trained = (
        [
            op
            for op in built("llama3-8b", Layout(), work).layers[0].passes.forward
            if isinstance(op, Elementwise) and op.converts is not None
        ]
        for work in (narrow, whole)
    )
    assert [op.name for op in frozen] == [op.name for op in trained]
    for one, both in zip(frozen, trained, strict=True):
        assert one.converts is not None
        assert both.converts is not None
        assert not one.converts.both_orders
        if both.converts.fused:  # what makes the input writes one order, and that is all
            assert one.kernels == 0
        else:
            assert one.bytes_moved / both.bytes_moved == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    ("spread", "targets", "forward", "backward"),
    [
        (False, "qkv", ["all_gather"], ["reduce_scatter", "all_reduce"]),
        (True, "qkv", ["all_gather"], ["reduce_scatter"]),
        (
            True,
            "attention",
            ["all_gather", "all_reduce", "all_to_all"],
            ["all_to_all", "all_reduce", "reduce_scatter"],
        ),
    ],
)
def test_tensor_groups_share_adapters_as_megatron_does(
    spread: bool, targets: str, forward: list[str], backward: list[str]
) -> None:
    work = replace(WORK, adapter_targets=targets)
    layout = Layout(tp=4, sequence_parallel=spread)
    passes = built("llama3-8b", layout, work).layers[0].passes
    for operations, expected in ((passes.forward, forward), (passes.backward, backward)):
        sent = [op for op in of_adapters(operations) if isinstance(op, Collective)]
        assert [op.collective for op in sent] == expected
        for op in sent:
            columns = 16
            if op.collective == "all_to_all":
                columns = 4096 // 4
            elif "input gradient" in op.name:
                columns = 4096
            assert op.size_bytes == 4096 * columns * 2


def test_once_a_step_adapters_alone_are_reduced_and_updated() -> None:
    model = Model.named("llama3-8b")
    layout = Layout(dp=8)
    own = 32 * adapter_parameters(model, layout, WORK)
    step = built(model, layout).step
    assert step is not None
    assert [op.size_bytes for op in step.gradients if isinstance(op, Collective)] == [4 * own]
    moved = {op.name: op.bytes_moved for op in step.optimizer if isinstance(op, Elementwise)}
    assert moved == {"optimizer": 34 * own, "gradient buffers": 16 * own}


def test_sharded_frozen_weights_are_gathered_and_adapters_gradients_scattered() -> None:
    model, layout = Model.named("llama3-8b"), Layout(dp=8, zero=3)
    gathers = built(model, layout).layers[0].gathers
    own = adapter_parameters(model, layout, WORK)
    layer = layer_parameters(model, model.blocks[0], layout).total
    sizes = [[op.size_bytes for op in each if isinstance(op, Collective)] for each in gathers]
    assert sizes == [[2 * (layer + own)], [2 * (layer + own)], [4 * own]]


def test_gradient_buffers_are_those_that_a_rank_keeps() -> None:
    """Zeroed, scaled and checked: 16 bytes for each fp32 gradient, sharded from ZeRO 2 on."""
    model = Model.named("llama3-8b")

    def moved(**how: Any) -> float:
        step = built(model, Layout(dp=8, zero=how.pop("zero", 1)), replace(WHOLE, **how)).step
        assert step is not None
        (size,) = (op.bytes_moved for op in step.optimizer if op.name == "gradient buffers")  # type: ignore[union-attr]
        return float(size)

    assert moved() == 16 * float(model.parameters)
    assert moved(gradient_dtype="bf16") == moved() / 2
    assert moved(zero=2) == pytest.approx(moved() / 8)


def test_more_adapters_take_longer_and_all_less_than_whole_training() -> None:
    layout = Layout(tp=2, dp=4, zero=1, sequence_parallel=True)
    times = [
        float(estimate("llama3-8b", "h100_sxm", layout, work).time_s)
        for work in (
            replace(WORK, adapter_targets="qkv"),
            replace(WORK, adapter_targets="attention"),
            WORK,
            replace(WORK, adapter_rank=256),
            WHOLE,
        )
    ]
    # Adapters of rank 256 may lose to whole training: the host starts twice as many kernels.
    fewer, whole = times[:-1], times[-1]
    assert fewer == sorted(set(fewer))
    assert fewer[2] < whole

"""Programs of Megatron's 1-D split: the front door's volumes, and FLOPs counted by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardcost import Decode, Layout, Model, Prefill, Train, catalog, tensor_parallel_allreduce_cost
from shardcost.errors import BadValueError
from shardcost.model import Attention, Block, FeedForward
from shardcost.program import Program, program_of
from shardcost.program.flops import model_flops
from shardcost.program.operations import (
    AttentionCore,
    Collective,
    Elementwise,
    ExpertKernels,
    Gemm,
    LatentCore,
    Operations,
    StateKernel,
)
from shardcost.software import Software

PLAIN = Software(name="plain", title="plain")


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Return a model and a layout that go together, and a sequence that both can split."""
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    kv_heads = tp * draw(st.integers(1, 4))
    heads = kv_heads * draw(st.integers(1, 4))
    head_dim = 8 * draw(st.integers(1, 16))
    hidden = draw(st.sampled_from([heads * head_dim, 256, 1536]))
    block = Block(
        count=draw(st.integers(1, 96)),
        attention=Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim),
        feed_forward=FeedForward(width=tp * draw(st.integers(1, 4096)), gated=draw(st.booleans())),
        parallel=draw(st.booleans()),
    )
    return {
        "model": Model(name="drawn", hidden_size=hidden, vocab_size=1024, blocks=(block,)),
        "tp": tp,
        "batch": draw(st.integers(1, 16)),
        "sequence": tp * draw(st.integers(1, 512)),
    }


def program(case: dict[str, Any], software: Software = PLAIN, **layout: Any) -> Program:
    layout = {"tp": case["tp"], "micro_batch": case["batch"]} | layout
    workload = Train(global_batch=case["batch"], sequence_length=case["sequence"])
    return program_of(case["model"], Layout(**layout), workload, software)


def collectives(operations: Operations, names: str = "") -> list[Collective]:
    found = [op for op in operations if isinstance(op, Collective)]
    return [op for op in found if not names or op.collective in names.split()]


def ring_bytes(operations: Iterable[Collective]) -> Any:
    """Return what a rank sends on rings: (n-1)/n of an array, twice for an all-reduce."""
    return sum(
        (2 if op.collective == "all_reduce" else 1)
        * ((op.ranks - 1) * op.size_bytes / op.ranks)
        * op.count
        for op in operations
    )


def products(operations: Operations) -> Any:
    return sum(op.flops for op in operations if isinstance(op, Gemm))


@given(cases())
def test_the_front_door_counts_the_layers_of_the_program(case: dict[str, Any]) -> None:
    told = program(case).layers[0]
    block = case["model"].blocks[0]
    cost = tensor_parallel_allreduce_cost(
        hidden_size=case["model"].hidden_size,
        sequence_length=case["sequence"],
        batch_size=case["batch"],
        num_gpus=case["tp"],
        num_layers=told.count,
        allreduces_per_layer=block.allreduces_per_layer,
    )
    sums = collectives(told.passes.forward)
    if case["tp"] == 1:
        assert sums == []
        assert cost["total_comm_volume_bytes"] == 0
        return
    assert {op.collective for op in sums} == {"all_reduce"}
    assert {(op.size_bytes, op.ranks) for op in sums} == {(cost["message_size_bytes"], case["tp"])}
    assert len(sums) == block.allreduces_per_layer
    one = cost["comm_volume_per_allreduce_bytes"]
    assert ring_bytes(sums[:1]) == pytest.approx(one, rel=1e-12)
    total = cost["total_comm_volume_bytes"]
    assert told.count * ring_bytes(sums) == pytest.approx(total, rel=1e-12)


@given(cases())
def test_the_backward_pass_sums_as_much_as_the_forward(case: dict[str, Any]) -> None:
    passes = program(case).layers[0].passes
    assert ring_bytes(collectives(passes.backward)) == ring_bytes(collectives(passes.forward))
    assert collectives(passes.weight) == []


@given(cases())
def test_sequence_parallelism_sends_what_the_all_reduces_did(case: dict[str, Any]) -> None:
    """An all-gather and a reduce-scatter are the two halves of a ring's all-reduce."""
    plain = program(case).layers[0].passes
    split = program(case, sequence_parallel=True).layers[0].passes
    for ours, theirs in ((split.forward, plain.forward), (split.backward, plain.backward)):
        kept = [op for op in collectives(ours) if not op.name.endswith("weight gradient)")]
        assert ring_bytes(kept) == pytest.approx(ring_bytes(collectives(theirs)), rel=1e-12)
        halves = len(collectives(theirs))
        assert [op.collective for op in kept].count("all_gather") == halves
        assert [op.collective for op in kept].count("reduce_scatter") == halves
    again = [op for op in collectives(split.backward) if op.name.endswith("weight gradient)")]
    assert len(again) == len(collectives(plain.forward))


@given(cases())
def test_products_multiply_each_token_with_each_weight_once(case: dict[str, Any]) -> None:
    model, tokens = case["model"], case["batch"] * case["sequence"]
    wanted = 2 * model.blocks[0].parameters(model.hidden_size) * tokens / case["tp"]
    passes = program(case).layers[0].passes
    assert products(passes.forward) == pytest.approx(wanted, rel=1e-12)
    assert products(passes.backward) == pytest.approx(wanted, rel=1e-12)
    assert products(passes.weight) == pytest.approx(wanted, rel=1e-12)


@given(cases())
def test_ranks_share_the_matrices_and_each_has_the_norms(case: dict[str, Any]) -> None:
    model, told = case["model"], program(case).layers[0]
    block = model.blocks[0]
    norms = block.norms * model.hidden_size
    wanted = block.parameters(model.hidden_size) / case["tp"] + norms
    assert told.weights.total == pytest.approx(wanted, rel=1e-12)


@given(cases())
def test_attention_multiplies_the_lower_triangle(case: dict[str, Any]) -> None:
    """Each of s queries meets its s(s+1)/2 keys in two products of 2 d FLOPs; backward five."""
    part, s = case["model"].blocks[0].attention, case["sequence"]
    pairs = case["batch"] * part.heads / case["tp"] * s * (s + 1) / 2
    passes = program(case).layers[0].passes
    for operations, factor in ((passes.forward, 2), (passes.backward, 5)):
        cores = [op for op in operations if isinstance(op, AttentionCore)]
        assert sum(op.flops for op in cores) == pytest.approx(
            factor * 2 * part.head_dim * pairs, rel=1e-12
        )


@given(cases())
def test_attention_through_memory_multiplies_the_whole_square(case: dict[str, Any]) -> None:
    part, s = case["model"].blocks[0].attention, case["sequence"]
    square = case["batch"] * part.heads / case["tp"] * s * s
    unfused = Software(name="old", title="old", attention="unfused")
    passes = program(case, unfused).layers[0].passes
    for operations, factor in ((passes.forward, 2), (passes.backward, 4)):
        found = [op for op in operations if isinstance(op, Gemm) and not op.weights]
        assert sum(op.flops for op in found) == pytest.approx(
            factor * 2 * part.head_dim * square, rel=1e-12
        )


@pytest.mark.parametrize(("name", "fused"), [("deepseek-v3", 0), ("deepseek-v3.2", 1)])
def test_latent_attention_of_a_prompt_goes_through_memory_too(name: str, fused: int) -> None:
    """But over tokens that an indexer picks: that kernel is fused in every software."""
    model, software = Model.named(name), Software.named("fastertransformer")
    work = Prefill(batch=2, prompt_tokens=512)
    passes = program_of(model, Layout(tp=8), work, software).layers[0].passes
    assert {"scores", "softmax", "values"} <= {op.name for op in passes.forward}
    assert sum(isinstance(op, LatentCore) for op in passes.forward) == fused


@given(cases(), st.sampled_from(["selective", "full"]))
def test_recomputation_repeats_attention_or_everything(case: dict[str, Any], what: str) -> None:
    passes = program(case, recompute=what).layers[0].passes
    wanted = passes.forward
    if what == "selective":
        wanted = tuple(op for op in passes.forward if isinstance(op, AttentionCore))
    assert passes.recompute == wanted
    assert program(case).layers[0].passes.recompute == ()


@given(cases())
def test_arrays_of_degrees_are_programs_cell_by_cell(case: dict[str, Any]) -> None:
    degrees = [1, case["tp"]]
    together = program(case, tp=np.array(degrees)).layers[0].passes
    for cell, tp in enumerate(degrees):
        alone = program(case, tp=tp).layers[0].passes
        for ours, theirs in zip(together, alone, strict=True):
            for measure in (products, lambda ops: ring_bytes(collectives(ops))):
                cells = np.broadcast_to(measure(ours), (2,))
                assert cells[cell] == pytest.approx(measure(theirs), rel=1e-12)


@given(cases())
def test_a_prompt_is_a_training_forward_and_a_token_is_a_prompt_of_one(
    case: dict[str, Any],
) -> None:
    layout = Layout(tp=case["tp"])
    prompt = Prefill(batch=case["batch"], prompt_tokens=case["sequence"])
    prefill = program_of(case["model"], layout, prompt, PLAIN).layers[0].passes
    trained = program(case).layers[0].passes.forward
    assert products(prefill.forward) == products(trained)
    assert collectives(prefill.forward) == collectives(trained)
    token = Decode(batch=case["batch"], context_tokens=case["sequence"])
    decode = program_of(case["model"], layout, token, PLAIN).layers[0].passes
    assert products(decode.forward) * case["sequence"] == pytest.approx(products(trained))


@given(cases(), st.booleans())
def test_inference_has_no_backward_pass(case: dict[str, Any], sequence_parallel: bool) -> None:
    layout = Layout(tp=case["tp"], sequence_parallel=sequence_parallel)
    prompt = Prefill(batch=case["batch"], prompt_tokens=case["sequence"])
    told = program_of(case["model"], layout, prompt, PLAIN)
    for passes in (told.first, told.layers[0].passes, told.last):
        assert passes[1:] == ((), (), ())


@pytest.mark.parametrize("ep", [1, 2, 4, 8, 16])
def test_a_rank_multiplies_by_the_experts_that_it_holds(ep: int) -> None:
    """However far the expert group reaches into the tensor group."""
    model, layout = Model.named("mixtral-8x22b"), Layout(tp=8, dp=2, ep=ep)
    if ep > 8:
        model = Model.named("qwen3-235b-a22b")
    work = Prefill(batch=2, prompt_tokens=4096)  # so many tokens that every expert has some
    fused = program_of(model, layout, work, Software.named("vllm")).layers[0]
    kernels = [op for op in fused.passes.forward if isinstance(op, ExpertKernels)]
    assert [op.part for op in kernels] == ["gemms", "small"]
    gemms, small = kernels
    assert small.flops == 0
    multiplied = 3 * gemms.hidden * gemms.width * gemms.active
    assert multiplied == pytest.approx(fused.weights.experts, rel=1e-9)
    apart = program_of(model, layout, work, Software.named("megatron_core")).layers[0]
    matrices = [op for op in apart.passes.forward if op.name in {"expert up", "expert down"}]
    multiplied = sum(op.n * op.k * op.count for op in matrices if isinstance(op, Gemm))
    assert multiplied == pytest.approx(apart.weights.experts, rel=1e-9)


@pytest.mark.parametrize("packed", [None, 1, 300, 4096])
def test_devices_make_at_least_the_flops_of_the_model(packed: int | None) -> None:
    """Recomputation, padding, copies and imbalance only add, whatever is trained or attended to."""
    trained = [
        Train(global_batch=2, sequence_length=8192, adapters=adapters, document_tokens=packed)
        for adapters in (False, True)
    ]
    served: list[Any] = [
        Prefill(batch=2, prompt_tokens=8192),
        Prefill(batch=2, prompt_tokens=64, cached_tokens=65536),
        Decode(batch=2, context_tokens=65536),
    ]
    layouts = [Layout(), Layout(imbalance=1.5, recompute="full"), Layout(cp=2)]
    for name in sorted(catalog.names("models")):
        model = Model.named(name)
        for work, layout in itertools.product([*trained, *([] if packed else served)], layouts):
            told = program_of(model, layout, work, PLAIN)
            pieces = [(each.count, each.passes) for each in told.layers]
            pieces += [(1, told.first), (1, told.last)]
            made = sum(
                count * op.flops
                for count, passes in pieces
                for ops in passes
                for op in ops
                if isinstance(op, Gemm | AttentionCore | LatentCore | StateKernel)
            )
            needed = model_flops(model, work, causal=True)
            ranks = layout.cp * told.micro_batches
            assert 0 < needed <= made * ranks * (1 + 1e-9), (name, layout, work)
            if layout == Layout() and isinstance(work, Train):
                assert made * ranks < 1.2 * needed, (name, work)


@pytest.mark.parametrize("imbalance", [0.5, np.array([2.0, 0.99])])
def test_the_fullest_rank_has_at_least_the_mean_of_the_tokens(imbalance: Any) -> None:
    with pytest.raises(BadValueError, match=r"Layout.imbalance must be at least 1"):
        Layout(imbalance=imbalance)


@pytest.mark.parametrize("adapters", [None, "attention", "all"])
@pytest.mark.parametrize("narrow", [False, True])
def test_inputs_are_gathered_in_the_format_of_their_gemms(
    narrow: bool, adapters: str | None
) -> None:
    """What is scattered stays in 16 bits, and so does what head, embedding or an adapter read."""
    work = Train(
        global_batch=1,
        sequence_length=4096,
        dtype="fp8",
        adapters=adapters is not None,
        adapter_targets=adapters or "attention",
    )
    software = replace(Software.named("megatron_core"), narrow_gathers=narrow)
    layout = Layout(tp=4, sequence_parallel=True)
    model = Model.named("llama3-8b")
    program = program_of(model, layout, work, software)
    wide = 4096 * model.hidden_size * 2
    read = {"attention": ["qkv"], "all": ["qkv", "MLP up"]}.get(adapters or "", [])
    passes = program.layers[0].passes
    sent = [op for op in passes.forward + passes.backward if isinstance(op, Collective)]
    sent = [op for op in sent if " adapter" not in op.name]
    assert len(sent) == (10 if adapters is None else 8)
    for op in sent:
        what = op.name.partition("(")[2].rstrip(")")
        halved = narrow and op.collective == "all_gather" and what not in read
        assert op.size_bytes == (wide / 2 if halved else wide), op.name
    for edge in (program.first, program.last):
        gathers = [op for op in edge.forward + edge.backward if isinstance(op, Collective)]
        sizes = {op.size_bytes for op in gathers if op.collective == "all_gather"}
        assert sizes <= {wide}


@pytest.mark.parametrize("adapters", [False, True])
def test_gathered_gradients_are_converted_by_each_rank_for_its_own_tokens(adapters: bool) -> None:
    """What arrives in fp8 is transposed for the weight gradients, where there are any."""
    work = Train(global_batch=1, sequence_length=4096, dtype="fp8", adapters=adapters)
    model = Model.named("llama3-8b")

    def conversions(**choices: Any) -> dict[str, Any]:
        software = replace(Software.named("megatron_core"), **choices)
        program = program_of(model, Layout(tp=4, sequence_parallel=True), work, software)
        backward = program.layers[0].passes.backward
        names = ("MLP down input gradient", "attn out input gradient")
        kernels = [op for op in backward if isinstance(op, Elementwise)]
        return {op.name: op.bytes_moved for op in kernels if op.name.startswith(names)}

    tokens = 4096 * model.hidden_size
    for name, size in conversions().items():
        turned = name.endswith("transpose")
        # 16 bits are read and 8 written of a quarter; 8 are read and written of all.
        assert size == (2 * tokens if turned else 3 * tokens / 4), name
    assert len(conversions()) == (2 if adapters else 4)
    whole = conversions(narrow_gathers=False)
    assert set(whole.values()) == {(3 if adapters else 4) * tokens}
    assert len(whole) == 2


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_gradients_of_biases_are_kernels_where_no_other_kernel_sums_them(
    fused: bool, sequence_parallel: bool
) -> None:
    """The bias of a row-parallel matrix is added to a rank's own tokens, by a kernel of its own."""
    model = Model.named("gpt3-175b")
    software = replace(Software.named("megatron_core"), fused_bias_gradient=fused)
    layout = Layout(tp=4, sequence_parallel=sequence_parallel)
    work = Train(global_batch=1, sequence_length=2048)
    passes = program_of(model, layout, work, software).layers[0].passes
    sums = {op.name: op for op in passes.weight if op.name.endswith("bias gradient")}
    by_rows = {"attn out bias gradient", "MLP down bias gradient"}
    by_columns = {"qkv bias gradient", "MLP up bias gradient"}
    assert set(sums) == (by_rows if fused else by_rows | by_columns)
    own_tokens = 2048 / (4 if sequence_parallel else 1)
    for name in by_rows:
        op = sums[name]
        assert isinstance(op, Elementwise)
        assert op.bytes_moved == own_tokens * model.hidden_size * 2


@pytest.mark.parametrize("tp", [1, 4])
def test_a_norm_over_all_heads_sums_squares_over_the_ranks_that_share_them(tp: int) -> None:
    def forward(norm: str) -> Operations:
        part = Attention(heads=32, kv_heads=8, head_dim=64, qk_norm=norm)
        block = Block(count=2, attention=part, feed_forward=FeedForward(width=4096, gated=True))
        model = Model(name="drawn", hidden_size=2048, vocab_size=1024, blocks=(block,))
        software = replace(PLAIN, fused_elementwise=True)
        work = Decode(batch=8, context_tokens=64, dtype="bf16")
        return program_of(model, Layout(tp=tp), work, software).usual_layers.passes.forward

    plain, by_head, over_all = map(forward, ("none", "head", "full"))
    # A norm by head is in RoPE's kernel.
    assert by_head == plain
    added = [op for op in over_all if op not in plain]
    if tp == 1:
        assert not added
        return
    summed, kernel = added
    assert isinstance(summed, Collective)
    assert isinstance(kernel, Elementwise)
    assert (summed.collective, summed.group, summed.ranks) == ("all_reduce", "tp", tp)
    assert summed.size_bytes == 8 * 2 * 4  # tokens, queries and keys, fp32

"""Layers split otherwise than Megatron's: no work is lost, and the bytes are the papers'."""

from __future__ import annotations

from math import log2, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardcost import Layout, Model, Train
from shardcost.collectives import COLLECTIVES
from shardcost.errors import InfeasibleError
from shardcost.model import Attention, Block, Experts, FeedForward, LatentAttention
from shardcost.program.assemble import program_of
from shardcost.program.feasibility import check_feasible, reasons, scheme_rules
from shardcost.program.layer import layer
from shardcost.program.operations import AttentionCore, Collective, Elementwise, Gemm, Passes
from shardcost.program.partitions import (
    grid_of,
    layer_otherwise,
    weight_copies,
)
from shardcost.program.setting import Setting, setting_of
from shardcost.software import Software
from shardcost.workload import Prefill

SCHEMES = {"2d": 4, "2.5d": 8, "3d": 8, "weight_gathered": 8}
"""A tensor-parallel degree that each scheme can have."""
E = 2
"""Bytes of an element."""


def gpt(hidden: int = 1024, heads: int = 16, *, parallel: bool = False) -> Model:
    """Return one layer of GPT: 12 h² weights, whose inputs are 7 h and outputs 9 h wide."""
    block = Block(
        count=1,
        attention=Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads),
        feed_forward=FeedForward(width=4 * hidden, gated=False),
        parallel=parallel,
    )
    return Model(name="gpt", hidden_size=hidden, vocab_size=1024, blocks=(block,))


def setting(layout: Layout, model: Model, sequence: int = 512, **software: Any) -> Setting:
    workload = Train(global_batch=layout.micro_batch, sequence_length=sequence)
    return setting_of(model, layout, workload, Software(name="plain", title="plain", **software))


def layer_of(scheme: str, tp: Any = None, *, sequences: Any = 16, **layout: Any) -> Passes:
    layout = {"tp": SCHEMES.get(scheme, 1) if tp is None else tp, "micro_batch": sequences} | layout
    model = gpt()
    s = setting(Layout(scheme=scheme, **layout), model)
    return (layer if scheme == "1d" else layer_otherwise)(s, model.blocks[0])


def flops(operations: Any, kind: type[Gemm] | type[AttentionCore] = Gemm) -> Any:
    return sum(op.flops for op in operations if isinstance(op, kind))


def moved(operations: Any) -> Any:
    return sum(op.bytes_moved for op in operations if isinstance(op, Elementwise))


def collectives(operations: Any) -> list[Collective]:
    """Return those of the matrix products; the sums of the norms are a few bytes per token."""
    found = [op for op in operations if isinstance(op, Collective)]
    return [op for op in found if "(norm" not in op.name]


def size(operations: Any) -> Any:
    return sum(op.size_bytes * op.count for op in collectives(operations))


def ring_bytes(operations: Any) -> Any:
    """Return what a rank sends on rings: (n-1)/n of an array once, for an all-reduce twice."""
    twice = {"all_reduce": 2}
    return sum(
        twice.get(op.collective, 1) * (op.ranks - 1) / op.ranks * op.size_bytes * op.count
        for op in collectives(operations)
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["forward", "backward", "weight"])
def test_the_ranks_together_multiply_as_much_as_one(scheme: str, name: str) -> None:
    alone, ours = getattr(layer_of("1d", tp=1), name), getattr(layer_of(scheme), name)
    for kind in (Gemm, AttentionCore):
        assert SCHEMES[scheme] * flops(ours, kind) == pytest.approx(flops(alone, kind), rel=1e-12)


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_products_are_those_of_one_dimension(scheme: str, adapters: bool) -> None:
    """With the same names, to which collectives refer; only adapters have weight gradients."""
    model = gpt()
    passes = {}
    for each, tp in ((scheme, SCHEMES[scheme]), ("1d", 1)):
        layout = Layout(tp=tp, scheme=each, micro_batch=16)
        workload = Train(global_batch=16, sequence_length=512, adapters=adapters)
        s = setting_of(model, layout, workload, Software(name="plain", title="plain"))
        passes[each] = (layer if each == "1d" else layer_otherwise)(s, model.blocks[0])
    for ours, alone in zip(passes[scheme], passes["1d"], strict=True):
        named = [op for op in ours if isinstance(op, Gemm)]
        alike = [op for op in alone if isinstance(op, Gemm)]
        for own in (True, False):  # the model's matrices, and adapters beside them
            names = [op.name for op in named if op.weights == own]
            assert names == [op.name for op in alike if op.weights == own]
    every = [op for part in passes[scheme] for op in part]
    for op in collectives(every):
        assert op.collective in COLLECTIVES
        linked = {*op.hides_behind, *([op.split_with] if op.split_with else [])}
        assert linked <= {gemm.id for gemm in every if isinstance(gemm, Gemm)}
        assert op.split_with not in op.hides_behind
    hiding = [name for op in collectives(every) for name in op.hides_behind]
    assert len(hiding) == len(set(hiding))  # no product hides two collectives


def test_summa_is_optimus_table() -> None:
    """Xu et al. 2021: (7bsh + 12h²) log p / (2 sqrt p) by trees, twice that for the gradients.

    A tree's broadcast or reduction over q ranks takes log2 q rounds of the whole block.
    """
    tp, tokens, h = 16, 16 * 512, 1024
    ours = layer_of("2d", tp)
    elements = log2(tp) / (2 * sqrt(tp)) * (7 * tokens * h + 12 * h * h)
    assert log2(sqrt(tp)) * size(ours.forward) == pytest.approx(E * elements)
    assert log2(sqrt(tp)) * size(ours.backward + ours.weight) == pytest.approx(2 * E * elements)
    assert {op.ranks for op in collectives(ours.forward)} == {4}
    assert {op.count for op in collectives(ours.forward)} == {4}
    full = layer_of("2d", tp, recompute="full")
    assert size(full.recompute) == size(ours.forward)  # the paper's 21 bsh + 36 h² backward


def test_tesseract_divides_the_activations_by_the_depth() -> None:
    """Wang et al. 2022: on q x q x r the grid's blocks of the input are r times smaller."""
    tokens, h, q, r = 16 * 512, 1024, 2, 4
    flat, deep = layer_of("2d", q * q), layer_of("2.5d", q * q * r)
    once = E * (7 * tokens * h / r + 12 * h * h) / q
    assert size(flat.forward) == E * (7 * tokens * h + 12 * h * h) / q
    assert size(deep.forward) == once
    assert size(deep.backward) == once
    over_depth = [op for op in collectives(deep.weight) if op.collective == "all_reduce"]
    assert [op.ranks for op in over_depth] == [r] * 4
    assert sum(op.size_bytes for op in over_depth) == E * 12 * h * h / (q * q)
    assert size(deep.weight) == once + sum(op.size_bytes for op in over_depth)
    assert weight_copies(Layout(tp=16, scheme="2.5d")) == r


def test_a_cube_gathers_and_scatters_a_face_of_each_matrix() -> None:
    """Bian et al. 2021: each of X, W and Y once forward and once backward, over q², on rings."""
    tokens, h, q = 16 * 512, 1024, 2
    ours = layer_of("3d", q**3)
    face = E * (7 * tokens * h + 12 * h * h + 9 * tokens * h) / q**2
    assert size(ours.forward) == face
    assert size(ours.backward + ours.weight) == face
    assert ring_bytes(ours.forward) == (q - 1) / q * face
    kinds = [op.collective for op in collectives(ours.forward)]
    assert kinds == ["all_gather", "all_gather", "reduce_scatter"] * 4


def test_gathered_weights_cost_the_same_for_any_number_of_tokens() -> None:
    """Pope et al. 2022: the layer's weights, and nothing of the activations."""
    few, many = layer_of("weight_gathered"), layer_of("weight_gathered", sequences=64)
    h, tp = 1024, 8
    assert size(few.forward) == size(many.forward) == E * 12 * h * h
    assert ring_bytes(few.forward) == (tp - 1) / tp * E * 12 * h * h
    assert [op.collective for op in collectives(few.backward)] == ["all_gather"] * 4
    assert [op.collective for op in collectives(few.weight)] == ["reduce_scatter"] * 4


@pytest.mark.parametrize("parallel", [False, True])
def test_gathering_weights_pays_off_when_tokens_outweigh_them(parallel: bool) -> None:
    """Two all-reduces send 4 N h elements over n-1 of n, gathers 12 h²: equal at N = 3 h.

    A parallel block has one all-reduce, and its crossover lies at 6 h.
    """
    h, tp = 1024, 8
    crossing = (6 if parallel else 3) * h
    model = gpt(h, parallel=parallel)
    for tokens in (crossing // 2, crossing, 2 * crossing):
        sent = {}
        for scheme in ("1d", "weight_gathered"):
            s = setting(Layout(tp=tp, scheme=scheme, micro_batch=8), model, tokens // 8)
            make = layer if scheme == "1d" else layer_otherwise
            sent[scheme] = ring_bytes(make(s, model.blocks[0]).forward)
        assert np.sign(sent["weight_gathered"] - sent["1d"]) == np.sign(crossing - tokens)


def test_more_dimensions_send_less_when_ranks_are_many() -> None:
    """The reason for the schemes: 1-D's bytes stay, the others' shrink with the degree."""
    sent = {tp: ring_bytes(layer_of("1d", tp, sequences=64).forward) for tp in (4, 16)}
    assert sent[16] > sent[4]
    assert size(layer_of("2d", 16).forward) == size(layer_of("2d", 4).forward) / 2
    assert size(layer_of("3d", 64).forward) == size(layer_of("3d", 8).forward) / 4


def test_norms_add_up_two_numbers_per_token_over_the_columns() -> None:
    def sums(passes: Passes) -> list[Collective]:
        return [op for op in passes.forward if op.name == "all-reduce (norm)"]  # type: ignore[misc]

    assert [(op.size_bytes, op.ranks) for op in sums(layer_of("3d"))] == [(16 * 512 / 4 * 8, 2)] * 2
    assert sums(layer_of("weight_gathered")) == []


def test_a_parallel_block_has_one_norm() -> None:
    model = gpt(parallel=True)
    s = setting(Layout(tp=4, scheme="2d", micro_batch=4), model)
    names = [op.name for op in layer_otherwise(s, model.blocks[0]).forward]
    assert [names.count("norm"), names.count("residual")] == [1, 1]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_rank_does_what_megatron_does_on_one(scheme: str) -> None:
    assert layer_of(scheme, tp=1) == layer_of("1d", tp=1)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_inference_has_a_forward_pass_only(scheme: str) -> None:
    model = gpt()
    layout = Layout(tp=SCHEMES[scheme], scheme=scheme)
    software = Software(name="plain", title="plain")
    s = setting_of(model, layout, Prefill(batch=16, prompt_tokens=512), software)
    passes = layer_otherwise(s, model.blocks[0])
    assert passes[1:] == ((), (), ())
    assert size(passes.forward) == size(layer_of(scheme).forward)


def test_unfused_attention_is_not_mistaken_for_matrices() -> None:
    model = gpt()
    s = setting(Layout(tp=4, scheme="2d", micro_batch=4), model, attention="unfused")
    products = [op for op in layer_otherwise(s, model.blocks[0]).forward if isinstance(op, Gemm)]
    assert [op.name for op in products] == [
        *("qkv", "scores", "values", "attn out", "MLP up", "MLP down")
    ]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_arrays_are_scalars_cell_by_cell(scheme: str) -> None:
    degrees = {"2d": [1, 4, 16], "2.5d": [1, 8, 16], "3d": [1, 8, 64], "weight_gathered": [1, 2, 8]}
    together = layer_of(scheme, np.array(degrees[scheme]), sequences=np.array([[64], [128]]))
    for row, sequences in enumerate((64, 128)):
        for column, degree in enumerate(degrees[scheme]):
            alone = layer_of(scheme, degree, sequences=sequences)
            for ours, theirs in zip(together, alone, strict=True):
                for measure in (flops, moved, ring_bytes):
                    cells = np.broadcast_to(measure(ours), (2, 3))
                    assert cells[row, column] == pytest.approx(measure(theirs), rel=1e-12)


@given(st.integers(1, 4096))
def test_a_grid_has_tp_ranks_or_a_reason(tp: int) -> None:
    block = gpt().blocks[0]
    for scheme in SCHEMES:
        layout = Layout(tp=tp, scheme=scheme)
        grid = grid_of(layout)
        shapes = {"tp_not_a_square", "tp_not_a_box", "tp_not_a_cube"}
        rules = scheme_rules(layout, block, 1024, 1 << 20)
        misshapen = any(broken for rule, _, broken in rules if rule.code in shapes)
        whole = grid.rows * grid.columns == tp
        if scheme == "2.5d":  # any number is 1 x 1 x r, which is no grid
            whole = tp == 1 or grid.side > 1
        assert whole is not misshapen
        assert min(grid) >= 1


def test_the_depth_is_the_least_above_one() -> None:
    sides = {8: (2, 2), 12: (2, 3), 16: (2, 4), 18: (3, 2), 32: (4, 2), 64: (4, 4), 27: (3, 3)}
    for tp, wanted in sides.items():
        grid = grid_of(Layout(tp=tp, scheme="2.5d"))
        assert (grid.side, grid.depth) == wanted


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (Layout(tp=8, scheme="2d", micro_batch=8), "tp is not a square"),
        (Layout(tp=6, scheme="2.5d", micro_batch=8), "tp is not q x q x r"),
        (Layout(tp=9, scheme="3d", micro_batch=8), "tp is not a cube"),
        (Layout(tp=9, scheme="2d", micro_batch=9), "do not divide 16 heads"),
        (Layout(tp=9, scheme="2d", micro_batch=9), "hidden size 1024"),
        (Layout(tp=9, scheme="2d", micro_batch=9), "feed-forward width 4096"),
        (Layout(tp=9, scheme="2d", micro_batch=9), "16 key-value heads"),
        (Layout(tp=4, scheme="2d", micro_batch=1), "do not divide the sequences"),
        (Layout(tp=8, scheme="weight_gathered", micro_batch=4), "do not divide the sequences"),
    ],
)
def test_what_cannot_be_split_so_is_told(layout: Layout, reason: str) -> None:
    model = gpt()
    work = Train(global_batch=layout.micro_batch, sequence_length=1024)
    against = reasons(model, layout, work)
    assert any(broken for why, broken in against.items() if reason in why.message)
    with pytest.raises(InfeasibleError, match="must be possible for"):
        program_of(model, layout, work, Software(name="plain", title="plain"))


def test_rules_on_arrays_are_masks() -> None:
    layout = Layout(tp=np.array([1, 2, 4, 9]), scheme="2d", micro_batch=36)
    rules = scheme_rules(layout, gpt().blocks[0], 1024, 36)
    found = {rule.code: where for rule, _, where in rules}
    assert found["tp_not_a_square"].tolist() == [False, True, False, False]
    assert found["heads_not_divisible_by_columns"].tolist() == [False] * 3 + [True]


def test_parts_without_a_form_are_refused() -> None:
    latent = LatentAttention(
        heads=16, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32
    )
    experts = Experts(count=8, top_k=2, expert=FeedForward(width=512, gated=True))
    for part, kind in (
        (Block(count=1, attention=latent), "latent attention"),
        (Block(count=1, feed_forward=experts), "experts"),
    ):
        model = Model(name="m", hidden_size=1024, vocab_size=1024, blocks=(part,))
        for tp in (4, np.array([4, 16])):
            layout = Layout(tp=tp, scheme="2d", micro_batch=4)
            with pytest.raises(InfeasibleError, match=f"{kind} is split by 1d alone"):
                check_feasible(model, layout, Train(global_batch=4, sequence_length=64))

"""Published shapes: read from their config's sizes, they have as many parameters as stated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stated import as_stated

from shardcost import (
    Cluster,
    Decode,
    Layout,
    Model,
    Prefill,
    Train,
    Workload,
    catalog,
    estimate,
)
from shardcost.memory.parameters import embedding_parameters, head_parameters, layer_parameters
from shardcost.model import (
    Attention,
    Experts,
    FeedForward,
    LatentAttention,
    LinearAttention,
    StateSpace,
)

SHAPES = json.loads((Path(__file__).parent / "data" / "hf_shapes.json").read_text())["models"]
BY_NAME = {shape["name"]: shape["config"] for shape in SHAPES}
IN_CATALOG = sorted(set(BY_NAME) & set(catalog.names("models")))


def read(name: str, **changes: Any) -> Model:
    return Model.from_hf(BY_NAME[name] | changes, name=name)


def test_there_are_many() -> None:
    assert sum("stated_billion" in shape for shape in SHAPES) >= 60
    assert sum("counted" in shape for shape in SHAPES) >= 60
    assert len(IN_CATALOG) >= 55


@pytest.mark.parametrize("shape", SHAPES, ids=[shape["name"] for shape in SHAPES])
def test_parameters_are_what_the_authors_state(shape: dict[str, Any]) -> None:
    model = Model.from_hf(shape["config"])
    if "stated_billion" in shape:
        assert model.parameters == pytest.approx(shape["stated_billion"] * 1e9, rel=0.02)
    if "counted" in shape:
        assert model.parameters == shape["counted"]
    if "active_billion" in shape:
        assert model.active_parameters == as_stated(shape["active_billion"])
    assert not [caveat for caveat in model.caveats if "not understood" in caveat]


@pytest.mark.parametrize("name", IN_CATALOG)
def test_the_catalog_has_the_published_shape(name: str) -> None:
    ours, published = Model.named(name), read(name)
    assert ours.blocks == published.blocks
    for field in (
        "hidden_size vocab_size tied_embeddings norm weight_dtype expert_dtype attention_dtype"
        " cache_dtype mtp_layers context_tokens active_embedding_tables"
    ).split():
        assert getattr(ours, field) == getattr(published, field), field


def test_attention_and_state_space_side_by_side() -> None:
    (block,) = read("falcon-h1-34b").blocks
    assert isinstance(block.attention, Attention)
    assert isinstance(block.beside, StateSpace)
    assert (block.beside.inner_size, block.beside.groups, block.beside.inner_norm) == (
        4096,
        2,
        False,
    )
    model = read("falcon-h1-34b")
    assert model.cache_elements_per_token == 72 * 2 * 4 * 128
    assert model.allreduces_per_layer == 2


def test_layers_of_one_part_and_latent_experts() -> None:
    model = read("nemotron-3-super")
    kinds = [(b.count, b.attention and b.attention.kind, b.feed_forward) for b in model.blocks]
    assert [(count, kind) for count, kind, _ in kinds] == [
        (40, "state space"),
        (40, None),
        (8, "full attention"),
    ]
    experts = kinds[1][2]
    assert isinstance(experts, Experts)
    assert (experts.latent, experts.row_width(4096)) == (1024, 1024)
    own = experts.count * 2 * 1024 * 2688 + 2 * 4096 * 5376
    assert experts.parameters(4096) == own + 512 * 4096 + 2 * 4096 * 1024
    assert experts.matrix_parameters(4096) == (
        22 * 2 * 1024 * 2688 + 2 * 4096 * 5376 + 2 * 4096 * 1024
    )
    assert "layers for multi-token prediction are not counted" in model.caveats
    staged = BY_NAME["nemotron-3-super"]["hybrid_override_pattern"]
    staged = "|".join((staged[:40], staged[40:]))
    assert read("nemotron-3-super", hybrid_override_pattern=staged) == model


def test_kimi_delta_and_lightning_attention() -> None:
    kimi = read("kimi-linear-48b-a3b")
    assert [b.count for b in kimi.blocks] == [1, 19, 7]
    linear = kimi.blocks[0].attention
    assert isinstance(linear, LinearAttention)
    assert (linear.rule, linear.key_heads, linear.conv_kernel) == ("kda", 32, 4)
    assert isinstance(kimi.blocks[2].attention, LatentAttention)
    lightning = read("minimax-m1").blocks[0].attention
    assert isinstance(lightning, LinearAttention)
    assert (lightning.rule, lightning.value_heads, lightning.conv_kernel) == ("lightning", 64, 0)
    assert [b.count for b in read("minimax-m1").blocks] == [70, 10]


def test_two_layers_in_one_and_experts_that_do_nothing() -> None:
    model = read("longcat-flash")
    sparse, dense = model.blocks
    assert (sparse.count, dense.count, model.num_layers) == (28, 28, 56)
    experts = sparse.feed_forward
    assert isinstance(experts, Experts)
    assert (experts.top_k, experts.zero_experts) == (8, 256)
    assert experts.shared == dense.feed_forward == FeedForward(width=12288, gated=True)
    assert any("zero_expert_num" in caveat for caveat in model.caveats)


def test_reused_keys_and_values() -> None:
    model = read("hunyuan-large")
    own, reusing = model.blocks
    assert isinstance(own.attention, Attention)
    assert isinstance(reusing.attention, Attention)
    assert (own.count, reusing.count) == (32, 32)
    assert reusing.attention.reused_kv
    assert reusing.attention.kv_projections == 0
    assert model.cache_elements_per_token == 32 * 2 * 8 * 80
    saved = own.attention.parameters(6400) - reusing.attention.parameters(6400)
    assert saved == 6400 * 2 * 8 * 80 + 80


def test_a_sparse_index_that_layers_share() -> None:
    deepseek = {
        "model_type": "glm_moe_dsa", "num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 512,
        "num_attention_heads": 4, "intermediate_size": 160, "kv_lora_rank": 16, "q_lora_rank": 24,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "index_n_heads": 4,
        "index_head_dim": 16, "index_topk": 32,
    }  # fmt: skip
    every = Model.from_hf(deepseek)
    some = Model.from_hf(deepseek | {"indexer_types": ["full", "shared", "full", "shared"]})
    one, other = (block.attention for block in some.blocks)
    assert isinstance(one, LatentAttention)
    assert isinstance(other, LatentAttention)
    assert (one.index_heads, other.index_heads, other.index_top_k) == (4, None, 32)
    assert every.parameters - some.parameters == 2 * (24 * 4 * 16 + 64 * (16 + 4) + 2 * 16)


def test_queries_through_a_narrow_vector() -> None:
    part = read("step-3").blocks[0].attention
    assert isinstance(part, Attention)
    assert (part.q_rank, part.kv_heads, part.head_dim) == (2048, 1, 256)
    query = 64 * 256
    matrices = 7168 * (2048 + 2 * 256) + 2048 * query + query * 7168
    assert part.matrix_parameters(7168) == matrices
    assert part.parameters(7168) == matrices + 2048


def test_layers_for_multi_token_prediction_are_counted_apart() -> None:
    glm = read("glm-4.5")
    without = read("glm-4.5", num_nextn_predict_layers=0)
    assert (glm.mtp_layers, without.mtp_layers, without.mtp_parameters) == (1, 0, 0)
    assert glm.parameters == without.parameters
    layer = glm.blocks[-1].parameters(5120) + 2 * 5120
    assert glm.mtp_parameters == layer + 2 * 5120**2 + 3 * 5120
    deepseek = Model.named("deepseek-v3")
    copies = 2 * deepseek.vocab_size * deepseek.hidden_size  # which its authors count with it
    assert deepseek.mtp_parameters + copies == pytest.approx(14e9, rel=0.05)
    assert read("kimi-k2-thinking").mtp_layers == 0


SEARCHED: dict[str, Any] = {
    "model_type": "nemotron-nas",
    "num_hidden_layers": 4,
    "hidden_size": 768,
    "num_attention_heads": 8,
    "vocab_size": 512,
    "block_configs": [
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.625}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
        {"attention": {"n_heads_in_group": 8}, "ffn": {"no_op": True}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.625}},
    ],
}


def test_layers_of_an_architecture_search() -> None:
    model = Model.from_hf(SEARCHED)
    both, no_attention, no_part = model.blocks
    assert (both.count, no_attention.attention, no_part.feed_forward) == (2, None, None)
    assert [block.norms for block in model.blocks] == [2, 1, 1]
    assert isinstance(both.attention, Attention)
    assert isinstance(no_part.attention, Attention)
    assert (both.attention.kv_heads, no_part.attention.kv_heads) == (2, 1)
    # Two thirds of 2.625 x 768 are 1344, the next multiple of 256 is 1536.
    assert both.feed_forward == FeedForward(width=1536, gated=True)
    assert no_attention.feed_forward == FeedForward(width=512, gated=True)


TINY = json.loads((Path(__file__).parent / "data" / "hf_tiny.json").read_text())["models"]
CONFIGS = {case["name"]: case["config"] for case in TINY} | BY_NAME


@pytest.mark.parametrize("name", CONFIGS)
def test_one_rank_holds_every_parameter(name: str) -> None:
    model, alone = Model.from_hf(CONFIGS[name]), Layout()
    layers = [(block.count, layer_parameters(model, block, alone)) for block in model.blocks]
    held = sum(count * (each.dense + each.experts) for count, each in layers)
    ends = embedding_parameters(model, alone) + head_parameters(model, alone)
    assert held + ends == model.parameters


def test_latent_experts_send_and_compute_less() -> None:
    """Rows of a quarter of the width: a quarter of the bytes and of the experts' FLOPs."""
    latent = read("nemotron-3-super")
    wide = read("nemotron-3-super", moe_latent_size=None)
    cluster, layout = Cluster.named("h200_sxm", "ib_8x400g"), Layout(dp=16, ep=16)
    work = Prefill(batch=16, prompt_tokens=4096)
    narrow, full = (estimate(model, cluster, layout, work) for model in (latent, wide))
    sent = [each.traffic.network_bytes for each in (narrow, full)]
    assert sent[0] == pytest.approx(sent[1] / 4, rel=0.01)
    assert narrow.time_s < full.time_s


@pytest.mark.parametrize(
    "work",
    [
        Decode(batch=8, context_tokens=1024),
        Prefill(batch=8, prompt_tokens=1024),
        Train(global_batch=8, sequence_length=1024),
    ],
)
def test_both_mixers_of_a_layer_are_priced(work: Workload) -> None:
    model = read("falcon-h1-7b")
    alone = replace(model, blocks=tuple(replace(block, beside=None) for block in model.blocks))
    cluster = Cluster.named("h200_sxm")
    both, one = (estimate(each, cluster, Layout(tp=2), work) for each in (model, alone))
    assert both.time_s > one.time_s
    assert both.memory.peak_bytes > one.memory.peak_bytes

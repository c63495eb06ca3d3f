"""Hugging Face configs: every family counted exactly, odd and hostile files refused in one line."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stated import as_stated

from shardcost import BadTypeError, FormatError, Model
from shardcost.files import read_text
from shardcost.formats.hf_config import looks_like_hf_config
from shardcost.formats.hf_fields import UnknownFamilyWarning, families
from shardcost.formats.opened import MOST_JSON_BYTES, parse_object
from shardcost.model import Attention, Experts, LatentAttention, LinearAttention

TINY = json.loads((Path(__file__).parent / "data" / "hf_tiny.json").read_text())["models"]
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 160,
    "vocab_size": 512,
}
MOE = {"num_local_experts": 8, "num_experts_per_tok": 2}


def read(**changes: Any) -> Model:
    config = {k: v for k, v in (LLAMA | changes).items() if v is not ...}
    return Model.from_hf(config)


def kinds(model: Model) -> list[str]:
    return [block.attention.kind for block in model.blocks if block.attention]


@pytest.mark.parametrize("case", TINY, ids=[case["name"] for case in TINY])
def test_parameters_equal_the_librarys_own_model(case: dict[str, Any]) -> None:
    assert Model.from_hf(case["config"]).parameters == case["parameters"]


def test_every_promised_family_is_known() -> None:
    wanted = """llama qwen2 qwen3 qwen2_moe qwen3_moe mistral mixtral gemma gemma2 gemma3 gpt2
    gpt_neox falcon opt bloom deepseek_v2 deepseek_v3 gpt_oss llama4""".split()
    assert set(wanted) <= set(families())


STATED = {  # billions, total and active, by each model's name or card
    "MiniMaxAI--MiniMax-M2.5": (230, 10),
    "Qwen--Qwen3-235B-A22B": (235, 22),
    "Qwen--Qwen3-32B": (32.8, 32.8),
    "Qwen--Qwen3-8B": (8.2, 8.2),
    "Qwen--Qwen3.5-35B-A3B": (35, 3),
    "deepseek-ai--DeepSeek-V3.2": (671, 37),
    "deepseek-ai--DeepSeek-V3": (671, 37),
    "google--gemma-4-26B-A4B": (25.2, 3.8),
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": (109, 17),
    "meta-llama--Meta-Llama-3.1-405B": (405, 405),
    "meta-llama--Meta-Llama-3.1-70B": (70.6, 70.6),
    "meta-llama--Meta-Llama-3.1-8B": (8, 8),
    "mistralai--Mixtral-8x7B-v0.1": (46.7, 12.9),
    "moonshotai--Kimi-K2-Instruct": (1040, 32),
    "nvidia--Llama-3.1-70B-Instruct-FP8": (70.6, 70.6),
    "openai--gpt-oss-120b": (116.8, 5.13),
    "zai-org--GLM-5": (744, 40),
}


def test_published_configs_give_what_the_cards_state(evidence: Path) -> None:
    files = sorted((evidence / "samples" / "hf").glob("*.json"))
    assert files
    for file in files:
        model = Model.from_hf(file)
        total, active = STATED[model.name]
        assert model.parameters == pytest.approx(total * 1e9, rel=0.02), file.name
        assert model.active_parameters == as_stated(active), file.name


def test_grouped_heads_and_head_size() -> None:
    plain = read().blocks[0].attention
    assert plain == Attention(heads=4, kv_heads=4, head_dim=16)
    grouped = read(num_key_value_heads=2, head_dim=24).blocks[0].attention
    assert grouped == Attention(heads=4, kv_heads=2, head_dim=24)


def test_experts_and_dense_layers() -> None:
    model = read(
        model_type="deepseek_v3", kv_lora_rank=16, q_lora_rank=None, qk_nope_head_dim=16,
        qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=32, n_shared_experts=2, first_k_dense_replace=1, n_group=4,
        topk_group=2,
    )  # fmt: skip
    dense, sparse = model.blocks
    assert (dense.count, sparse.count) == (1, 3)
    assert isinstance(sparse.attention, LatentAttention)
    experts = sparse.feed_forward
    assert isinstance(experts, Experts)
    assert experts.shared is not None
    assert (experts.shared.width, experts.groups, experts.top_groups) == (64, 4, 2)


def test_windows() -> None:
    by_list = read(layer_types=["sliding_attention", "full_attention"] * 2, sliding_window=128)
    assert [block.count for block in by_list.blocks] == [2, 2]
    every_second = read(model_type="gemma2", head_dim=16, sliding_window=128)
    assert kinds(every_second) == ["windowed attention", "full attention"]
    unused = read(model_type="qwen2", use_sliding_window=False, sliding_window=128)
    assert kinds(unused) == ["full attention"]


def test_linear_layers_are_named() -> None:
    case = next(case for case in TINY if case["name"] == "qwen3_next")
    model = Model.from_hf(case["config"])
    assert isinstance(model.blocks[0].attention, LinearAttention)


def test_parallel_blocks() -> None:
    neox = read(model_type="gpt_neox", intermediate_size=256)
    assert neox.allreduces_per_layer == 1
    serial = read(model_type="gpt_neox", intermediate_size=256, use_parallel_residual=False)
    assert serial.allreduces_per_layer == 2


def test_the_text_part_of_a_multimodal_config() -> None:
    text = {k: v for k, v in LLAMA.items() if k != "model_type"}
    outer = {"model_type": "llama", "text_config": text, "vision_config": {"depth": 2}}
    model = Model.from_hf(outer | {"tie_word_embeddings": True, "torch_dtype": "float16"})
    assert model.tied_embeddings
    assert model.weight_dtype == "fp16"
    assert "the vision part is not counted" in model.caveats


def test_published_gemma3_leaves_sizes_out() -> None:
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    model = Model.from_hf({"model_type": "gemma3", "text_config": text})
    assert model.parameters == pytest.approx(3.88e9, rel=0.01)  # 4.3B with the vision part
    assert [block.count for block in model.blocks] == [29, 5]


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "gptq", "bits": 4}, "w4a16_int4"),
        ({"quant_method": "awq", "bits": 8}, "w8a16"),
        ({}, "fp16"),
        (None, "fp16"),
    ],
)
def test_weight_format(quantization: Any, dtype: str) -> None:
    model = read(quantization_config=quantization, torch_dtype="float16")
    assert model.weight_dtype == dtype


def test_unknown_quantisation_is_a_caveat() -> None:
    model = read(quantization_config={"quant_method": "magic"}, dtype="bfloat16")
    assert model.weight_dtype == "bf16"
    assert any("magic" in caveat for caveat in model.caveats)


def test_quantisation_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    beside = {"quantization": {"quant_algo": "NVFP4"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    model = Model.from_hf(tmp_path)
    assert model.weight_dtype == "nvfp4"
    assert model.name == tmp_path.name
    assert "sha256" in model.source


def test_an_unknown_family_is_tried_by_its_field_names() -> None:
    with pytest.warns(UnknownFamilyWarning, match="'brandnew' is not a known family"):
        model = read(model_type="brandnew")
    assert model.parameters == read().parameters
    assert "three feed-forward matrices" in model.caveats[0]
    with pytest.warns(UnknownFamilyWarning):
        plain = read(model_type="brandnew", hidden_act="gelu")
    assert plain.parameters == read().parameters - 4 * 64 * 160


def test_an_unknown_family_says_what_is_missing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownFamilyWarning)
        with pytest.raises(FormatError, match=r"missing num_hidden_layers or .*, hidden_size or"):
            Model.from_hf({"model_type": "brandnew", "vocab_size": 5})


def test_state_space_layers_are_named() -> None:
    hybrid = next(case for case in TINY if case["name"] == "nemotron_h")
    model = Model.from_hf(hybrid["config"])
    assert [(b.attention is None, b.feed_forward is None) for b in model.blocks] == [
        (False, True),
        (False, True),
        (True, False),
        (True, False),
    ]
    assert model.allreduces_per_layer == 1
    with pytest.raises(FormatError, match=r"state-space layers \(mamba_d_state\)"):
        read(model_type="brandnew", mamba_d_state=16)


def test_key_value_heads_by_layer() -> None:
    model = read(num_key_value_heads_per_layer=[4, 4, 1, 2])
    found = [(b.count, b.attention) for b in model.blocks]
    assert found == [
        (2, Attention(heads=4, kv_heads=4, head_dim=16)),
        (1, Attention(heads=4, kv_heads=1, head_dim=16)),
        (1, Attention(heads=4, kv_heads=2, head_dim=16)),
    ]


def searched(**parts: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of four layers, the first of which has other parts."""
    plain = {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.0}}
    return {"block_configs": [plain | parts, plain, plain, plain]}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"num_hidden_layers": "4"}, "num_hidden_layers must be a whole number of at least 1, got '4'"),
    ({"num_hidden_layers": 4.0}, "num_hidden_layers must be a whole number"),
    ({"num_hidden_layers": True}, "num_hidden_layers must be a whole number"),
    ({"num_hidden_layers": -4}, "num_hidden_layers must be"),
    ({"num_hidden_layers": 10**9}, "more than 10000"),
    ({"hidden_size": ...}, "missing hidden_size"),
    ({"vocab_size": None}, "missing vocab_size"),
    ({"num_attention_heads": 5}, "head_dim is missing and 64 / 5"),
    ({"num_key_value_heads": 3}, "a divisor of 4 heads"),
    ({"intermediate_size": ...}, "missing intermediate_size"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
    ({"attention_bias": 1}, "attention_bias must be true or false"),
    ({"layer_types": ["full_attention"]}, "layer_types names 1 layers of 4"),
    ({"layer_types": "full"}, "layer_types must be a list of texts"),
    ({"layer_types": ["warp_drive"] * 4}, "layers of type 'warp_drive' cannot be read yet"),
    ({"layer_types": ["linear_attention"] * 4}, "linear_num_key_heads is missing"),
    ({"layer_types": ["chunked_attention"] * 4}, "attention_chunk_size is missing"),
    (MOE | {"num_experts_per_tok": 9}, "at most the 8 experts"),
    (MOE | {"num_experts_per_tok": None}, "num_experts_per_tok or .* is missing"),
    (MOE | {"mlp_only_layers": "0"}, "mlp_only_layers must be a list of numbers"),
    ({"model_type": 7}, "model_type must be a text"),
    ({"text_config": [1]}, "text_config is"),
    ({"torch_dtype": "float17"}, "unknown dtype 'float17'"),
    ({"kv_lora_rank": 16}, "qk_nope_head_dim is missing"),
    ({"layer_types": ["sliding_attention"] * 4}, "sliding_window is missing"),
    ({"num_key_value_heads_per_layer": [1]}, "names 1 layers of 4"),
    ({"num_key_value_heads_per_layer": []}, "names 0 layers of 4"),
    ({"num_key_value_heads_per_layer": [0, 4, 4, 4]}, "kv_heads must be .* got 0"),
    (MOE | {"moe_layers": [1, 99]}, "moe_layers names layer 99 of 4"),
    (MOE | {"mlp_only_layers": [-1]}, "mlp_only_layers names layer -1 of 4"),
    ({"block_configs": [{}]}, "block_configs"),
    ({"model_type": "nemotron_h"}, "hybrid_override_pattern or layers_block_type is missing"),
    ({"model_type": "nemotron_h", "hybrid_override_pattern": "M"}, "names 1 layers of 4"),
    ({"model_type": "nemotron_h", "hybrid_override_pattern": "????"}, "layers of type '\\?'"),
    ({"model_type": "jamba"}, "attn_layer_period is missing"),
    (
        {"model_type": "nemotron_h", "num_hidden_layers": ..., "hybrid_override_pattern": "||"},
        "names no layer",
    ),
    (
        {
            "model_type": "nemotron_h",
            "num_hidden_layers": ...,
            "hybrid_override_pattern": "M" * 10**6,
        },
        "1000000 layers are more than 10000",
    ),
    ({"model_type": "nemotron_h", "layers_block_type": [1] * 4}, "must be a list of texts"),
    ({"block_configs": 7}, "block_configs names 7 layers of 4"),
    ({"block_configs": [{}] * 4}, r"block_configs\[0\] needs objects attention and ffn"),
    ({"block_configs": [[]] * 4}, r"block_configs\[0\] needs objects attention and ffn"),
    (searched(attention={"n_heads_in_group": "2"}), "attention.n_heads_in_group is missing"),
    (searched(attention={"replace_with_linear": True}), "attention.replace_with_linear cannot be"),
    (searched(ffn={"ffn_mult": -1.0}), "ffn.ffn_mult is missing"),
    (searched(ffn={"ffn_mult": 1e300}), "ffn.ffn_mult is missing"),
    (searched(ffn={"replace_with_linear": True}), "ffn.replace_with_linear cannot be read yet"),
    (MOE | {"num_experts_per_tok": [2, 1]}, "num_experts_per_tok differs from layer to layer"),
    (MOE | {"moe_intermediate_size": [1536, 512]}, "moe_intermediate_size differs from layer"),
    (MOE | {"moe_layers_enum": "1,x"}, "moe_layers_enum must be numbers of 4 layers"),
    (MOE | {"moe_layers_enum": "4"}, "moe_layers_enum must be numbers of 4 layers"),
    (MOE | {"moe_layer_freq": [0, 1]}, "moe_layer_freq must be a number or 4 of 0 and 1"),
    (MOE | {"zero_expert_num": 4, "zero_expert_type": "copy"}, "zero_expert_type 'copy'"),
    ({"attn_type_list": [0, 1, 2, 1]}, "attn_type_list must be 4 numbers, 0 or 1"),
    ({"use_cla": True}, "cla_share_factor is missing"),
    (
        {"model_type": "nemotron_h", "hybrid_override_pattern": "M*ME", "block_configs": [{}]},
        "block_configs beside a pattern cannot be read yet",
    ),
    ({"is_encoder_decoder": True}, "is_encoder_decoder: models with an encoder cannot be read"),
    ({"head_dim": 16, "v_head_dim": 8}, "v_head_dim 8 beside head_dim 16 cannot be read yet"),
    ({"vocab_size_per_layer_input": 8}, "vocab_size_per_layer_input 8"),
    ({"model_type": "exaone4", "sliding_window": 8, "sliding_window_pattern": "LLX"}, "L and G"),
    (
        {"model_type": "kimi_linear", "linear_attn_config": {"kda_layers": [1]}},
        "linear_attn_config.full_attn_layers is missing",
    ),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_fields_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        read(**change)
    assert str(caught.value).startswith("config: ")
    assert "\n" not in str(caught.value)


def test_what_is_not_a_config_at_all() -> None:
    with pytest.raises(BadTypeError, match="a path or a mapping"):
        Model.from_hf(3)  # type: ignore[arg-type]
    assert looks_like_hf_config(LLAMA)
    assert looks_like_hf_config({"n_layer": 1, "n_embd": 1})
    assert not looks_like_hf_config({"version": 3, "results": []})


HOSTILE: list[tuple[bytes, str]] = [
    (b"", "line 1 is not JSON"),
    (b"{", "line 1 is not JSON"),
    (b'{\n"a": nope}', "line 2 is not JSON"),
    (b"[1, 2]", "holds list, not a JSON object"),
    (b'{"hidden_size": NaN}', "holds NaN"),
    (b'{"hidden_size": Infinity}', "holds Infinity"),
    (b'{"hidden_size": 1e999}', "holds Infinity"),
    (b'{"text_config": {"sizes": [[1, -Infinity]]}}', "holds Infinity"),
    (b'{"hidden_size": ' + b"9" * 5000 + b"}", "a number of 5000 digits"),
    (b"\xff\xfe\x00", "is not UTF-8"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"a":' * 100_000, "nested too deeply"),
    (b'{"a": "' + b"x" * (17 * 2**20) + b'"}', "is larger than 16 MiB"),
]


@pytest.mark.parametrize(("content", "message"), HOSTILE, ids=[m for _, m in HOSTILE])
def test_hostile_files(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(FormatError, match=message) as caught:
        Model.from_hf(file)
    assert str(caught.value).startswith(str(file))


def test_an_unbounded_step_size_is_harmless(tmp_path: Path) -> None:
    mamba = {
        "model_type": "mamba2", "num_hidden_layers": 4, "hidden_size": 64, "state_size": 16,
        "num_heads": 8, "head_dim": 16, "expand": 2, "conv_kernel": 4, "vocab_size": 512,
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(mamba | {"time_step_limit": [0.0, float("inf")]}))
    assert "Infinity" in file.read_text()
    assert Model.from_hf(file).parameters == Model.from_hf(mamba).parameters


def test_fields_that_change_the_shape_are_not_passed_over() -> None:
    known = read(**MOE, expert_hyper_width=48, router_aux_loss_coef=0.5, moe_dropout=0.1)
    assert known.caveats == ("field expert_hyper_width is not understood, and not counted",)
    with (
        pytest.warns(UnknownFamilyWarning),
        pytest.raises(FormatError, match="field compress_ratios may change its shape"),
    ):
        read(model_type="brandnew", compress_ratios=[0, 4, 128, 4], rope_theta=1e4)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("bailing_moe_linear", {"layer_group_size": 8}, "layer_group_size"),
    ("deepseek_v4", {"compress_ratios": [0, 4, 128, 4], "o_lora_rank": 16}, "compress_ratios"),
    ("gemma3n_text", {"altup_num_inputs": 4, "laurel_rank": 64}, "altup_num_inputs"),
    ("mimo_v2_flash", {"head_dim": 24, "v_head_dim": 16}, "v_head_dim"),
    ("recurrent_gemma", {"lru_width": 64, "block_types": ["recurrent"]}, "block_types"),
    ("lfm2", {"layer_types": ["conv", "conv", "full_attention", "conv"]}, "layers of type 'conv'"),
]


@pytest.mark.parametrize(("model_type", "fields", "named"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_cannot_be_expressed_is_refused_by_its_field(
    model_type: str, fields: dict[str, Any], named: str
) -> None:
    with pytest.warns(UnknownFamilyWarning), pytest.raises(FormatError, match=named):
        read(model_type=model_type, **fields)


def test_a_family_by_the_class_that_implements_it() -> None:
    grok = read(
        **MOE, model_type="git", architectures=["Grok1ForCausalLM"], residual_moe=True,
        moe_intermediate_size=32,
    )  # fmt: skip
    part = grok.blocks[0].feed_forward
    assert isinstance(part, Experts)
    assert part.shared is not None
    assert (part.expert.width, part.shared.width, grok.blocks[0].norms) == (32, 160, 4)


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("\ufeff" + json.dumps(LLAMA))
    assert parse_object(read_text(file, MOST_JSON_BYTES), "x") == LLAMA


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "auto", "llama", "falcon", "full_attention", "silu", "4", "fp8"])
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
ODD_KEYS = [
    "quantization_config", "text_config", "vision_config", "layer_types", "mlp_only_layers",
    "moe_layers", "sliding_window", "rope_scaling", "_name_or_path", "block_configs", "dtype",
    "num_key_value_heads_per_layer", "num_nextn_predict_layers", "word_embed_proj_dim",
    "attn_layer_indices", "kv_lora_rank", "hybrid_override_pattern", "layers_block_type",
    "mamba_dt_rank", "global_head_dim", "ffn_config", "attn_config", "tie_word_embeddings",
    "architectures", "linear_attn_config", "attn_type_list", "moe_layer_freq", "moe_layers_enum",
    "indexer_types", "mlp_layer_types", "use_cla", "num_kv_shared_layers", "zero_expert_num",
    "moe_latent_size", "share_q_dim", "hidden_size_per_layer_input", "sliding_window_pattern",
]  # fmt: skip


@settings(max_examples=500)
@given(st.sampled_from(TINY), st.data())
def test_damaged_configs_are_read_or_refused(case: dict[str, Any], data: st.DataObject) -> None:
    config = dict(case["config"])
    for key in data.draw(st.lists(st.sampled_from([*config, *ODD_KEYS]), min_size=1, max_size=3)):
        config[key] = data.draw(json_values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownFamilyWarning)
        try:
            model = Model.from_hf(config)
        except FormatError:
            return
    assert model.parameters >= model.active_parameters > 0

"""Number formats of checkpoints: each tool's words, part by part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardcost import Model
from shardcost.dtypes import (
    BITS,
    WEIGHT_FORMATS,
    canonical_format,
    format_on,
    weight_bytes,
    weight_format,
)
from shardcost.errors import BadTypeError, UnknownNameError

SPARSE = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 160,
    "vocab_size": 512,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "torch_dtype": "bfloat16",
}
DENSE = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 160,
    "vocab_size": 512,
}
FP8 = {"quant_method": "fp8"}
BLOCKS = FP8 | {"weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def group(bits: int, kind: str, inputs: tuple[int, str] | None, **more: Any) -> dict[str, Any]:
    read = None if inputs is None else {"num_bits": inputs[0], "type": inputs[1]}
    weights = {"num_bits": bits, "type": kind, "strategy": "channel", **more}
    return {"targets": ["Linear"], "weights": weights, "input_activations": read}


def compressed(*groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    named = {f"group_{i}": each for i, each in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, **more}


def modelopt(algorithm: str, **more: Any) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algorithm, **more}


EVERY_LAYER = [f"model.layers.{i}.self_attn" for i in range(4)]
PIECES = [f"model.layers.{i}.self_attn.{name}_proj" for i in range(4) for name in ("q_b", "o")]

FORMS: list[tuple[str, dict[str, Any], tuple[str, str | None, str | None, str | None]]] = [
    # name, quantization_config; linear layers, experts, attention, cache
    ("fp8 per tensor", FP8, ("fp8", None, None, None)),
    ("fp8 in blocks", BLOCKS, ("fp8_block", None, None, None)),
    (
        "fp8, attention left out",
        BLOCKS | {"modules_to_not_convert": ["lm_head", *EVERY_LAYER]},
        ("fp8_block", None, "bf16", None),
    ),
    (
        "fp8, projections left out",
        BLOCKS | {"ignored_layers": PIECES},
        ("fp8_block", None, "bf16", None),
    ),
    (
        "fp8, a gate and a convolution left out",
        BLOCKS
        | {
            "modules_to_not_convert": [
                f"model.layers.{i}.{name}"
                for i in range(4)
                for name in ("linear_attn.conv1d", "linear_attn.in_proj_ba", "mlp.gate")
            ]
        },
        ("fp8_block", None, None, None),
    ),
    ("fbgemm", {"quant_method": "fbgemm_fp8"}, ("fp8", None, None, None)),
    (
        "gpt-oss",
        {
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
        },
        ("bf16", "mxfp4", None, None),
    ),
    ("awq", {"quant_method": "awq", "bits": 4, "group_size": 128}, ("w4a16_int4",) + (None,) * 3),
    ("gptq", {"quant_method": "gptq", "bits": 8}, ("w8a16", None, None, None)),
    (
        "awq, groups of 32",
        {"quant_method": "awq", "bits": 4, "group_size": 32},
        ("w4a16_int4_g32", None, None, None),
    ),
    (
        "bitsandbytes, 4 bits",
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        ("w4a16_int4", None, None, None),
    ),
    (
        "bitsandbytes, 8 bits",
        {"quant_method": "bitsandbytes", "_load_in_8bit": True, "load_in_8bit": True},
        ("int8", None, None, None),
    ),
    (
        "compressed, int4 experts alone",
        compressed(
            group(4, "int", None, group_size=32),
            ignore=[
                "lm_head",
                "re:.*self_attn.*",
                "re:.*shared_experts.*",
                r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
            ],
        ),
        ("bf16", "w4a16_int4_g32", None, None),
    ),
    ("compressed, fp8", compressed(group(8, "float", (8, "float"))), ("fp8", None, None, None)),
    (
        "compressed, fp8 in blocks, fp8 cache",
        compressed(
            group(8, "float", (8, "float"), strategy="block"),
            kv_cache_scheme={"num_bits": 8, "type": "float"},
        ),
        ("fp8_block", None, None, "fp8"),
    ),
    ("compressed, int8", compressed(group(8, "int", (8, "int"))), ("int8", None, None, None)),
    ("compressed, w8a16", compressed(group(8, "int", None)), ("w8a16", None, None, None)),
    (
        "compressed, nvfp4",
        compressed(group(4, "float", (4, "float"), group_size=16)),
        ("nvfp4", None, None, None),
    ),
    (
        "compressed, mxfp4 weights",
        compressed(group(4, "float", None, group_size=32)),
        ("w4a16_mxfp4", None, None, None),
    ),
    (
        "compressed, two groups",
        compressed(
            group(8, "float", (8, "float")),
            group(4, "float", (4, "float"), group_size=16) | {"targets": ["re:.*mlp.experts.*"]},
        ),
        ("fp8", "nvfp4", None, None),
    ),
    (
        "modelopt, nvfp4, attention left out, fp8 cache",
        modelopt("NVFP4", exclude_modules=["lm_head", "*self_attn*"], kv_cache_quant_algo="FP8"),
        ("nvfp4", None, "bf16", "fp8"),
    ),
    ("modelopt, fp8", modelopt("FP8"), ("fp8", None, None, None)),
    ("modelopt, w4a8", modelopt("W4A8_AWQ"), ("w4afp8", None, None, None)),
    (
        "modelopt, mixed",
        modelopt(
            "MIXED_PRECISION",
            quantized_layers={
                "model.layers.1.self_attn.o_proj": {"quant_algo": "FP8"},
                "model.layers.1.mlp.experts.0.up_proj": {"quant_algo": "NVFP4"},
                "model.layers.1.mlp.shared_experts.up_proj": {"quant_algo": "FP8"},
            },
        ),
        ("fp8", "nvfp4", None, None),
    ),
    (
        "quark, mxfp4",
        {
            "quant_method": "quark",
            "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}},
            "exclude": ["lm_head", "*self_attn*"],
        },
        ("mxfp4", None, "bf16", None),
    ),
    ("nothing", {}, ("bf16", None, None, None)),
]


@pytest.mark.parametrize(("_name", "said", "formats"), FORMS, ids=[form[0] for form in FORMS])
def test_formats_of_each_part(_name: str, said: dict[str, Any], formats: tuple[Any, ...]) -> None:
    model = Model.from_hf(SPARSE | {"quantization_config": said})
    found = (model.weight_dtype, model.expert_dtype, model.attention_dtype, model.cache_dtype)
    assert found == formats
    assert not [caveat for caveat in model.caveats if "not understood" in caveat]


def test_a_dense_model_has_no_format_of_experts() -> None:
    model = Model.from_hf(DENSE | {"quantization_config": {"quant_method": "mxfp4"}})
    assert (model.weight_dtype, model.expert_dtype) == ("mxfp4", None)


@pytest.mark.parametrize(
    ("said", "caveat"),
    [
        ({"quant_method": "magic"}, "quant_method 'magic' is not understood"),
        (modelopt("NVFP3"), "quant_algo 'nvfp3' is not understood"),
        (modelopt("MIXED_PRECISION"), "names no quantized_layers"),
        (modelopt("FP8", kv_cache_quant_algo="X9"), "kv_cache_quant_algo 'X9' is not understood"),
        (compressed({"targets": ["Linear"]}), "config_groups.group_0 is not understood"),
        (compressed(group(3, "int", None)), "config_groups.group_0 is not understood"),
        (BLOCKS | {"ignored_layers": "all"}, "ignored_layers is not understood"),
        (BLOCKS | {"ignored_layers": EVERY_LAYER[:1]}, "1 of 4 layers keep attention"),
        ({"quant_method": "bitsandbytes"}, "neither load_in_4bit nor load_in_8bit"),
        ({"quant_method": "quark"}, "global_quant_config.weight.dtype '' is not understood"),
        ([1, 2], "quantization_config is not understood"),
    ],
)
def test_what_is_not_understood_is_a_caveat(said: Any, caveat: str) -> None:
    model = Model.from_hf(SPARSE | {"quantization_config": said})
    assert [each for each in model.caveats if caveat in each]


def test_the_file_beside_the_config_comes_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SPARSE))
    beside = {
        "producer": {"name": "modelopt"},
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": "FP8",
            "exclude_modules": [f"model.layers.{i}.self_attn*" for i in range(4)],
        },
    }
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    model = Model.from_hf(tmp_path)
    assert (model.weight_dtype, model.attention_dtype, model.cache_dtype) == (
        "nvfp4",
        "bf16",
        "fp8",
    )


def test_bytes_of_weights() -> None:
    assert weight_bytes("bf16") == 2
    assert weight_bytes("fp8_block") == pytest.approx(1 + 4 / 128**2)
    assert weight_bytes("nvfp4") == 0.5625
    assert weight_bytes("int4") == weight_bytes("w4a16_int4") < weight_bytes("w4a16_int4_g32")
    assert weight_bytes("w6a16") == 0.75
    for name, form in WEIGHT_FORMATS.items():
        assert canonical_format(name) == name
        assert weight_format(name) == form
        assert form.product in BITS
        assert form.input_bytes >= form.weight_bytes or name == "fp8_block"


def test_names_of_formats() -> None:
    assert canonical_format("W8A8") == "int8"
    assert canonical_format("torch.float16") == "fp16"
    assert format_on("int4", {"bf16"}) == "w4a16_int4"
    with pytest.raises(UnknownNameError, match="unknown weight_dtype 'fp9'"):
        canonical_format("fp9")
    with pytest.raises(BadTypeError, match="like fp8_block"):
        canonical_format(8)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match=r"Model\.expert_dtype"):
        Model.from_hf(DENSE).__class__(
            name="x", hidden_size=64, vocab_size=8, blocks=Model.from_hf(DENSE).blocks,
            expert_dtype="fp9",
        )  # fmt: skip

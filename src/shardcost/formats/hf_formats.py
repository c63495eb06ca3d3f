"""The number formats of a Hugging Face checkpoint, part by part.

Tools that quantise write what they did into ``quantization_config`` of the config, or into
``hf_quant_config.json`` beside it (ModelOpt). Each has its own words: a method, bits per weight, a
table of groups with targets, and a list of modules that were left as they were. `formats_of` reads
them into a format for each of three parts, linear layers, routed experts and attention's
projections, and one for the key-value cache. What is not understood is a caveat that names the
field.

Lists of modules are matched by the words in their names. Patterns in them come from outside and are
never run as regular expressions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from shardcost.dtypes import canonical_dtype
from shardcost.errors import ShardcostError, shown
from shardcost.formats.hf_fields import Config

LINEAR, EXPERTS, ATTENTION = "linear", "experts", "attention"
_PARTS: Final = (LINEAR, EXPERTS, ATTENTION)
_MOST_MODULES: Final = 200_000
"""Of a list of modules that is read; a model of 100 layers with 512 experts names fewer."""

_ALGORITHMS: Final[Mapping[str, str]] = {
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "fp8_per_channel_per_token": "fp8",
    "fp8_block_scales": "fp8_block",
    "fp8_pb_wo": "fp8_block",
    "fp8_pb_real": "fp8_block",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
    "nvfp4_awq": "nvfp4",
    "w4a16_nvfp4": "w4a16_nvfp4",
    "mxfp4": "mxfp4",
    "w4a16_mxfp4": "w4a16_mxfp4",
    "w4a8_mxfp4_mxfp8": "w4a8_mxfp4_mxfp8",
    "w4a8_mxfp4_fp8": "w4a8_mxfp4_mxfp8",
    "w4a16_awq": "w4a16_int4",
    "w4a16": "w4a16_int4",
    "w4a8_awq": "w4afp8",
    "w4afp8": "w4afp8",
    "w8a16": "w8a16",
    "int8_wo": "w8a16",
    "w8a8_sq_per_channel": "int8",
    "int8_sq": "int8",
    "w8a8_int8": "int8",
}
"""Names of algorithms and methods that say all by themselves."""
_BITS_ALONE: Final = ("gptq", "awq", "auto-round", "auto_round", "intel/auto-round", "awq_marlin")
"""Methods that quantise weights alone, to so many ``bits``."""
_LEFT_OUT: Final = (
    "modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude",
    "llm_int8_skip_modules",
)  # fmt: skip
_LAYER: Final = re.compile(r"(?:layers|blocks|h)\.([0-9]{1,5})(?:\.|\*|$)")
_ATTENTION_MODULE: Final = re.compile(r"attn|attention", re.IGNORECASE)
_WHOLE_MODULE: Final = re.compile(r"(?:attn|attention)[.*$)]*$", re.IGNORECASE)
_ROUTER: Final = re.compile(r"(?:\.gate|router|shared_expert_gate)[.*$)]*(?:weight)?$")
_MX_GROUP: Final = 32
"""Elements to a scale in the MX formats; NVFP4 has 16."""
_OUT: Final = ("o_proj", "out_proj", "wo", "dense")


class Formats(NamedTuple):
    """The formats of a checkpoint; None for a part that is as the linear layers are."""

    weights: str
    experts: str | None
    attention: str | None
    cache: str | None


def formats_of(
    content: dict[str, Any], config: Config, beside: dict[str, Any], *, layers: int, sparse: bool
) -> Formats:
    """Return the formats of weights by part, and of the cache.

    Args:
        content: The whole config, also of a multimodal file.
        config: Its language model's part, which takes the caveats.
        beside: The content of ``hf_quant_config.json``, empty where there is none.
        layers: Layers of the model, to weigh lists that name layers one by one.
        sparse: Whether it has experts.
    """
    stated = config.find("dtype")[1] or content.get("dtype") or content.get("torch_dtype")
    plain = canonical_dtype(stated) if isinstance(stated, str) else "bf16"
    quantized, cache = _statement(content, config, beside)
    parts = dict.fromkeys(_PARTS, plain)
    if quantized:
        parts |= _quantised(quantized, config, plain, sparse=sparse)
        parts |= dict.fromkeys(_left_out(quantized, config, layers), plain)
    weights = parts[LINEAR]
    return Formats(
        weights,
        parts[EXPERTS] if sparse and parts[EXPERTS] != weights else None,
        parts[ATTENTION] if parts[ATTENTION] != weights else None,
        cache,
    )


def _statement(
    content: dict[str, Any], config: Config, beside: dict[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """Return what is said about quantisation, and the format of the cache."""
    inner = config.content.get("quantization_config")
    found = beside.get("quantization", content.get("quantization_config", inner))
    if found is None:
        found = content.get("compression_config")
    if found is not None and not isinstance(found, dict):
        config.caveats.append(f"quantization_config is not understood: {shown(found)}")
    quantized = found if isinstance(found, dict) else {}
    return quantized, _cache(quantized, config)


def _cache(quantized: dict[str, Any], config: Config) -> str | None:
    stated = quantized.get("kv_cache_quant_algo")
    scheme = quantized.get("kv_cache_scheme")
    if stated is None and isinstance(scheme, dict):
        stated = _elements(scheme)
    if stated is None:
        return None
    try:
        return canonical_dtype(stated)
    except ShardcostError:
        config.caveats.append(f"kv_cache_quant_algo {shown(stated)} is not understood")
        return None


def _quantised(
    quantized: dict[str, Any], config: Config, plain: str, *, sparse: bool
) -> dict[str, str]:
    """Return the format of each part that is quantised, before modules are left out."""
    method = str(quantized.get("quant_method") or "").lower()
    algorithm = str(quantized.get("quant_algo") or "").lower()
    groups = quantized.get("config_groups")
    if algorithm == "mixed_precision":
        return _mixed(quantized, config)
    if not algorithm and isinstance(groups, dict) and groups:
        return _of_groups(groups, config)
    if method == "bitsandbytes":
        return _everywhere(_bitsandbytes(quantized, config))
    if method == "quark":
        return _everywhere(_quark(quantized, config))
    form = _ALGORITHMS.get(algorithm or method)
    if form == "fp8" and quantized.get("weight_block_size"):
        form = "fp8_block"
    if form is None and (method in _BITS_ALONE or not algorithm) and "bits" in quantized:
        form = _weights_alone(quantized["bits"], quantized.get("group_size"))
    if form is None:
        if algorithm or method:
            named = "quant_algo" if algorithm else "quant_method"
            config.caveats.append(
                f"quantisation {named} {shown(algorithm or method)} is not understood:"
                f" weights as stated, {plain}"
            )
        return {}
    # The method called mxfp4 converts experts alone (gpt-oss).
    return {EXPERTS: form} if method == "mxfp4" and sparse else _everywhere(form)


def _everywhere(form: str | None) -> dict[str, str]:
    return {} if form is None else dict.fromkeys(_PARTS, form)


def _weights_alone(bits: Any, group: Any) -> str | None:
    """Return the format of weights that are widened before they are multiplied."""
    if bits == 4:
        return "w4a16_int4_g32" if group == _MX_GROUP else "w4a16_int4"
    return "w8a16" if bits == 8 else None


def _bitsandbytes(quantized: dict[str, Any], config: Config) -> str | None:
    for key, form in (("load_in_4bit", "w4a16_int4"), ("load_in_8bit", "int8")):
        if quantized.get(key) or quantized.get(f"_{key}"):
            kind = quantized.get("bnb_4bit_quant_type")
            if form != "int8" and isinstance(kind, str):
                config.caveats.append(f"bnb_4bit_quant_type {shown(kind)} is counted as int4")
            return form
    config.caveats.append("quantisation 'bitsandbytes' names neither load_in_4bit nor load_in_8bit")
    return None


def _quark(quantized: dict[str, Any], config: Config) -> str | None:
    stated = quantized.get("global_quant_config")
    weight = stated.get("weight") if isinstance(stated, dict) else None
    weight = weight[0] if isinstance(weight, list) and weight else weight
    dtype = str(weight.get("dtype") if isinstance(weight, dict) else "").lower()
    known = {"fp4": "mxfp4", "fp8_e4m3": "fp8", "int4": "w4a16_int4", "int8": "int8"}.get(dtype)
    if known is None:
        config.caveats.append(f"global_quant_config.weight.dtype {shown(dtype)} is not understood")
    return known


def _mixed(quantized: dict[str, Any], config: Config) -> dict[str, str]:
    """Return ModelOpt's mixed precision: for each part, what most of its modules are in."""
    listed = quantized.get("quantized_layers")
    if not isinstance(listed, dict) or not listed:
        config.caveats.append("quant_algo 'MIXED_PRECISION' names no quantized_layers")
        return {}
    votes: dict[str, dict[str, int]] = {}
    for name, how in list(listed.items())[:_MOST_MODULES]:
        part = _part_of(name) or (LINEAR if isinstance(name, str) else None)
        stated = how.get("quant_algo") if isinstance(how, dict) else how
        form = _ALGORITHMS.get(str(stated).lower())
        if part is not None and form is not None:
            counts = votes.setdefault(part, {})
            counts[form] = counts.get(form, 0) + 1
    if not votes:
        config.caveats.append("quantized_layers is not understood")
    elif any(len(counts) > 1 for counts in votes.values()):
        config.caveats.append("quantized_layers mixes formats in one part: counted as most are")
    return {part: max(counts, key=lambda form: counts[form]) for part, counts in votes.items()}


# compressed-tensors ----------------------------------------------------------------------------


def _of_groups(groups: dict[str, Any], config: Config) -> dict[str, str]:
    """Return the formats of config_groups: those for all linear layers first, then named ones."""
    general: dict[str, str] = {}
    named: dict[str, str] = {}
    for name, group in list(groups.items())[:_MOST_MODULES]:
        form = _group_format(group) if isinstance(group, dict) else None
        if form is None:
            config.caveats.append(f"config_groups.{name[:40]} is not understood")
            continue
        targets = group.get("targets")
        listed = targets if isinstance(targets, list) else []
        words = [each for each in listed if isinstance(each, str)]
        parts = {part for part in map(_part_of, words) if part is not None}
        if parts:
            named |= dict.fromkeys(parts, form)
        else:
            general |= dict.fromkeys(_PARTS, form)
    return {**general, **named}


def _group_format(group: dict[str, Any]) -> str | None:
    """Return the format of one group by the elements of weights and of inputs."""
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, dict):
        return None
    stored, size = _elements(weights), weights.get("group_size")
    read = _elements(inputs) if isinstance(inputs, dict) else None
    if stored == "fp4":
        kind = "mxfp4" if size == _MX_GROUP else "nvfp4"
        return {"fp4": kind, None: f"w4a16_{kind}"}.get(read)
    if stored == "int4":
        return {"fp8": "w4afp8", None: _weights_alone(4, size)}.get(read)
    block = weights.get("strategy") == "block"
    known: dict[tuple[str | None, str | None], str] = {
        ("fp8", "fp8"): "fp8_block" if block else "fp8",
        ("int8", "int8"): "int8",
        ("fp8", None): "w8a16",
        ("int8", None): "w8a16",
    }
    return known.get((stored, read))


def _elements(scheme: dict[str, Any]) -> str | None:
    """Return the format of the elements that a scheme's ``type`` and ``num_bits`` name."""
    kind = {"float": "fp", "int": "int"}.get(str(scheme.get("type")))
    bits = scheme.get("num_bits")
    return f"{kind}{bits}" if kind and bits in (4, 8) else None


# Modules that are left as they are ---------------------------------------------------------------


def _left_out(quantized: dict[str, Any], config: Config, layers: int) -> set[str]:
    """Return the parts that lists of modules leave in the stated format, in most layers."""
    whole: dict[str, set[int | None]] = {}
    pieces: dict[int | None, set[str]] = {}
    for name in _names_left_out(quantized, config):
        part = _part_of(name)
        if part is None:
            continue
        numbered = _LAYER.search(name)
        layer = int(numbered[1]) if numbered else None
        if part == ATTENTION and not _WHOLE_MODULE.search(name):
            pieces.setdefault(layer, set()).add(name.rstrip("*.$)").rpartition(".")[2])
        else:
            whole.setdefault(part, set()).add(layer)
    for layer, names in pieces.items():
        # The projections in and out are all of it; a gate or a convolution is not.
        if len(names) > 1 and names & set(_OUT):
            whole.setdefault(ATTENTION, set()).add(layer)
    found = set()
    for part, which in whole.items():
        if None in which or 2 * len(which) >= layers:
            found.add(part)
        else:
            config.caveats.append(
                f"{len(which)} of {layers} layers keep {part} unquantised: counted as the others"
            )
    return found


def _names_left_out(quantized: dict[str, Any], config: Config) -> list[str]:
    names: list[str] = []
    for key in _LEFT_OUT:
        listed = quantized.get(key)
        if isinstance(listed, list) and len(listed) <= _MOST_MODULES:
            names += [name for name in listed if isinstance(name, str)]
        elif listed is not None:
            config.caveats.append(f"{key} is not understood: {shown(listed)}")
    return names


def _part_of(name: Any) -> str | None:
    """Return the part that a module's name or pattern is of; None for routers, heads and others."""
    if not isinstance(name, str) or _ROUTER.search(name) or "mtp" in name or "vision" in name:
        return None
    if "shared_expert" in name:
        return LINEAR
    if "expert" in name:
        return EXPERTS
    if _ATTENTION_MODULE.search(name):
        return ATTENTION
    return LINEAR if "mlp" in name or "feed_forward" in name else None

"""Hugging Face ``config.json`` → `Model`.

A config names sizes under names that differ by family (`hf_fields.ALIASES`). What it does not say
(gated or not, biases, norms) is in `hf_families.toml`. A family that is not in that table is tried
by its field names alone, with a warning; where these do not suffice, the error says which are
missing.

Reading order: `read_hf_config` → `_text_part` (multimodal files) → `hf_fields.Config` (fields and
family) → `hf_layers.blocks` (each layer's parts, alike layers joined) → `Model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from shardcost.dtypes import canonical_dtype
from shardcost.errors import BadTypeError, FormatError, ShardcostError, shown
from shardcost.files import is_folder, read_text
from shardcost.formats.hf_fields import ALIASES, Config, UnknownFamilyWarning
from shardcost.formats.hf_layers import blocks
from shardcost.formats.opened import MOST_JSON_BYTES, parse_object
from shardcost.model import Model

_TOWERS: Final = ("vision_config", "audio_config")
_PREDICTION_LAYERS: Final = (
    "num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules", "mtp_num_hidden_layers",
)  # fmt: skip


def read_hf_config(config: str | Path | Mapping[str, Any], *, name: str | None = None) -> Model:
    """Return the model that a Hugging Face config describes."""
    if isinstance(config, Mapping):
        return _model(dict(config), "config", name, "Hugging Face config given as a mapping", {})
    if not isinstance(config, str | Path):
        raise BadTypeError("config", config, "a path or a mapping")
    path = Path(config)
    if is_folder(path):
        path = path / "config.json"
    text = read_text(path, MOST_JSON_BYTES)
    from hashlib import sha256

    digest = sha256(text.encode()).hexdigest()
    source = f"Hugging Face config {path.name}, sha256 {digest[:16]}…"
    beside = path.with_name("hf_quant_config.json")
    quantized = (
        parse_object(read_text(beside, MOST_JSON_BYTES), str(beside)) if beside.is_file() else {}
    )
    return _model(
        parse_object(text, str(path)), str(path), name or _file_name(path), source, quantized
    )


def model_of_file(path: str | Path | Mapping[str, Any]) -> Model:
    """Return the model of a config or its content; what it warns of is a caveat of the model."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownFamilyWarning)
        return read_hf_config(path)


def looks_like_hf_config(content: Mapping[str, Any]) -> bool:
    """Return whether a JSON object has the marks of a Hugging Face model config."""
    if {"model_type", "architectures", "text_config"} & set(content):
        return True
    sizes = ("layers", "hidden", "heads")
    return sum(any(alias in content for alias in ALIASES[size]) for size in sizes) > 1


def _model(
    content: dict[str, Any], file: str, name: str | None, source: str, quantized: dict[str, Any]
) -> Model:
    config = Config(_text_part(content, file), file)
    config.require("layers", "hidden", "heads", "vocab")
    config.caveats += _not_counted(content, config)
    own_name = content.get("_name_or_path")
    own_name = Path(own_name).name if isinstance(own_name, str) else ""
    outer = content.get("tie_word_embeddings")
    tied = outer if isinstance(outer, bool) else config.trait("tied")
    positions = config.trait("learned_positions")  # rows of their table beyond the context
    try:
        embedding_size = config.whole("word_embed_proj_dim")  # OPT's, where it is narrower
        return Model(
            name=name or own_name or config.model_type,
            hidden_size=config.needed("hidden"),
            vocab_size=config.needed("vocab"),
            blocks=blocks(config),
            tied_embeddings=config.flag("tie_word_embeddings", default=tied),
            embedding_size=None if embedding_size == config.whole("hidden") else embedding_size,
            learned_positions=(
                0 if positions == "none" else config.needed("context") + int(positions)
            ),
            norm=config.trait("norm"),
            embedding_norm=config.trait("embedding_norm"),
            final_norm=config.flag("do_layer_norm_before", default=True),
            head_bias=config.trait("head_bias"),
            weight_dtype=_weight_dtype(content, config, quantized),
            context_tokens=config.whole("context"),
            active_embedding_tables=config.trait("active_embedding_tables"),
            source=source,
            caveats=tuple(config.caveats),
        )
    except ShardcostError as error:
        raise FormatError.within(file, error) from None


def _text_part(content: dict[str, Any], file: str) -> dict[str, Any]:
    """Return the language model's part of a multimodal config, or the config itself."""
    part = content.get("text_config", content)
    if not isinstance(part, dict):
        raise FormatError(file, f"text_config is {shown(part)}, not an object")
    return {"model_type": content.get("model_type"), **part}


def _not_counted(content: dict[str, Any], config: Config) -> list[str]:
    """Return what the file describes beside the layers of the language model."""
    towers = [key.removesuffix("_config") for key in _TOWERS if content.get(key)]
    caveats = [f"the {tower} part is not counted" for tower in towers]
    if any(config.whole(key, least=0) for key in _PREDICTION_LAYERS):
        caveats.append("layers for multi-token prediction are not counted")
    if config.whole("hidden_size_per_layer_input", least=0):
        caveats.append("embeddings per layer are not counted")
    return caveats


def _file_name(path: Path) -> str | None:
    """Return what a file is called after: its folder if it is a plain config.json, else itself."""
    if path.name == "config.json":
        return path.resolve().parent.name or None
    return path.stem.removesuffix("_config").removesuffix("-config") or None


def _weight_dtype(content: dict[str, Any], config: Config, beside: dict[str, Any]) -> str:
    """Return the weights' number format: the quantisation's if there is one, else as stated."""
    quantized = beside.get("quantization", content.get("quantization_config"))
    quantized = quantized if isinstance(quantized, dict) else {}
    method = str(quantized.get("quant_algo") or quantized.get("quant_method") or "").lower()
    for known in ("nvfp4", "mxfp4", "mxfp8", "fp8", "fp4"):
        if known in method:
            return known
    bits = quantized.get("bits")
    if bits in (4, 8):
        return f"int{bits}"
    if method:
        config.caveats.append(f"quantisation {shown(method)} is not known: dtype as stated")
    stated = config.find("dtype")[1] or content.get("dtype") or content.get("torch_dtype")
    return canonical_dtype(stated) if isinstance(stated, str) else "bf16"

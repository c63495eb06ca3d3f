"""Hugging Face ``config.json`` → `Model`.

A config names sizes under names that differ by family (`hf_fields.ALIASES`). What it does not say
(gated or not, biases, norms) is in `hf_families.toml`. A family that is not in that table is tried
by its field names alone, with a warning; where these do not suffice, the error says which are
missing.

Reading order: `read_hf_config` → `_text_part` (multimodal files) → `hf_fields.Config` (fields and
family) → `hf_kinds` (which layer has what) → `hf_layers.blocks` (each kind's parts, alike layers
joined) → `hf_formats` (number formats) → `Model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from shardcost.errors import BadTypeError, FormatError, ShardcostError, shown
from shardcost.files import is_folder, read_text
from shardcost.formats.hf_fields import ALIASES, Config, UnknownFamilyWarning
from shardcost.formats.hf_formats import formats_of
from shardcost.formats.hf_kinds import layer_count
from shardcost.formats.hf_layers import blocks
from shardcost.formats.opened import MOST_JSON_BYTES, parse_object
from shardcost.model import Experts, Model

_MOST_NAME: Final = 200
_TOWERS: Final = ("vision_config", "audio_config")
_UNBOUNDED: Final = frozenset({"time_step_limit", "mamba_dt_limit"})
"""Fields that may be infinite: limits of a state space's step size."""
_NO_HEADS: Final = ("mamba_in_all",)
"""Patterns of layers without attention."""


def read_hf_config(config: str | Path | Mapping[str, Any], *, name: str | None = None) -> Model:
    """Return the model that a Hugging Face config describes."""
    if isinstance(config, Mapping):
        return _model(dict(config), "config", name, "Hugging Face config", {})
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
        parse_object(text, str(path), _UNBOUNDED),
        str(path),
        name or _file_name(path),
        source,
        quantized,
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
    if content.get("is_encoder_decoder") is True:
        raise FormatError(file, "is_encoder_decoder: models with an encoder cannot be read")
    config = Config(_text_part(content, file), file)
    _require_sizes(config)
    own_name = content.get("_name_or_path")
    own_name = Path(own_name).name if isinstance(own_name, str) else ""
    outer = content.get("tie_word_embeddings")
    tied = outer if isinstance(outer, bool) else config.trait("tied")
    positions = config.trait("learned_positions")  # rows of their table beyond the context
    try:
        embedding_size = config.whole("word_embed_proj_dim")  # OPT's, where it is narrower
        stack = blocks(config)
        predicting, own_embedding = _prediction_layers(config), _layer_embedding(config)
        config.caveats += _not_counted(content, config, predicting)
        formats = formats_of(
            content,
            config,
            quantized,
            layers=layer_count(config),
            sparse=any(isinstance(block.feed_forward, Experts) for block in stack),
        )
        return Model(
            name=_plain(name or own_name) or _plain(config.model_type),
            hidden_size=config.needed("hidden"),
            vocab_size=config.needed("vocab"),
            blocks=stack,
            tied_embeddings=config.flag("tie_word_embeddings", default=tied),
            embedding_size=None if embedding_size == config.whole("hidden") else embedding_size,
            learned_positions=(
                0 if positions == "none" else config.needed("context") + int(positions)
            ),
            layer_embedding_size=own_embedding,
            norm=config.trait("norm"),
            embedding_norm=config.trait("embedding_norm"),
            final_norm=config.flag("do_layer_norm_before", default=True),
            head_bias=config.trait("head_bias"),
            weight_dtype=formats.weights,
            expert_dtype=formats.experts,
            attention_dtype=formats.attention,
            cache_dtype=formats.cache,
            mtp_layers=predicting,
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


def _require_sizes(config: Config) -> None:
    """Raise one error that names every size that a model cannot do without and that is missing."""
    pattern, sizes = config.trait("attention_pattern"), ["layers", "hidden", "heads", "vocab"]
    if pattern in _NO_HEADS:
        sizes.remove("heads")
    if pattern == "single_parts":  # its pattern names the layers
        sizes.remove("layers")
    config.require(*sizes)


def _layer_embedding(config: Config) -> int:
    """Return the width of each layer's own embedding (Gemma 4's small models)."""
    tokens = config.whole("vocab_size_per_layer_input", least=0)
    if tokens not in (None, 0, config.needed("vocab")):
        reason = f"vocab_size_per_layer_input {tokens} beside vocab_size cannot be read yet"
        raise FormatError(config.file, reason)
    return config.whole("hidden_size_per_layer_input", least=0) or 0


def _prediction_layers(config: Config) -> int:
    """Return the layers for multi-token prediction that are as the last of the others are."""
    if config.trait("attention_pattern") == "single_parts":
        return 0  # their pattern is another
    return config.whole("mtp_layers", least=0) or 0


def _not_counted(content: dict[str, Any], config: Config, predicting: int) -> list[str]:
    """Return what the file describes beside the layers of the language model."""
    towers = [key.removesuffix("_config") for key in _TOWERS if content.get(key)]
    caveats = [f"the {tower} part is not counted" for tower in towers]
    if predicting:
        caveats.append(
            f"layers for multi-token prediction ({predicting}) are counted apart: mtp_parameters"
        )
    elif config.whole("mtp_layers", least=0):
        caveats.append("layers for multi-token prediction are not counted")
    ignored = config.ignored_shape_fields()
    if ignored and config.family["family"] == "unknown":
        reason = f"is not a known family, and field {ignored[0]} may change its shape"
        raise FormatError(config.file, f"model_type {shown(config.model_type)} {reason}")
    caveats += [f"field {key[:60]} is not understood, and not counted" for key in ignored[:5]]
    return caveats


def _plain(name: str) -> str:
    """Return a name as it is shown: not endless, and without control characters.

    Those that turn the direction of writing are among them.
    """
    return "".join(each for each in name[: 2 * _MOST_NAME] if each.isprintable())[:_MOST_NAME]


def _file_name(path: Path) -> str | None:
    """Return what a file is called after: its folder if it is a plain config.json, else itself."""
    if path.name == "config.json":
        return path.resolve().parent.name or None
    return path.stem.removesuffix("_config").removesuffix("-config") or None

"""Hugging Face ``config.json`` → `Model`.

A config names sizes under names that differ by family; `ALIASES` lists them in the order in which
they are tried. What a config does not say (gated or not, biases, norms) is in `hf_families.toml`.
A family that is not in that table is tried by its field names alone, with a warning; where the
fields do not suffice, the error says which are missing.

Reading order: `read_hf_config` → `_text_part` (multimodal files) → `_Config` (fields and family)
→ `_attentions` and `_feed_forwards` (one per layer) → `_blocks` (alike layers joined) → `Model`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from shardcost.dtypes import canonical_dtype
from shardcost.errors import BadTypeError, FormatError, ShardcostError, shown
from shardcost.formats.safe_json import parse_object, read_text
from shardcost.model import (
    AnyAttention,
    AnyFeedForward,
    Attention,
    Block,
    Experts,
    FeedForward,
    LatentAttention,
    LinearAttention,
    Model,
)

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "attn_config.kv_n_heads"),
    "head_dim": ("head_dim", "attention_head_dim", "head_size"),
    "width": (
        "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "ffn_config.ffn_hidden_size",
    ),
    "experts": (
        "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts",
        "ffn_config.moe_num_experts",
    ),
    "top_k": (
        "num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_topk", "moe_k",
        "ffn_config.moe_top_k",
    ),
    "expert_width": ("moe_intermediate_size", "expert_intermediate_size"),
    "shared_count": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "shared_width": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "context": (
        "max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length",
        "seq_length",
    ),
    "dtype": ("dtype", "torch_dtype"),
}  # fmt: skip
"""For each quantity, the names it goes by; a dot descends into a nested table."""

_MOST_LAYERS: Final = 10_000
_TOWERS: Final = ("vision_config", "audio_config")
_PREDICTION_LAYERS: Final = (
    "num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules", "mtp_num_hidden_layers",
)  # fmt: skip
_RECURRENT_KEYS: Final = ("mamba_", "ssm_", "state_size", "hybrid_override_pattern", "rwkv")
_ACTIVATION_KEYS: Final = ("hidden_act", "hidden_activation", "activation_function", "activation")


class UnknownFamilyWarning(UserWarning):
    """The model_type is not in the family table; the config was read by its field names."""


def read_hf_config(config: str | Path | Mapping[str, Any], *, name: str | None = None) -> Model:
    """Return the model that a Hugging Face config describes."""
    if isinstance(config, Mapping):
        return _model(dict(config), "config", name, "Hugging Face config given as a mapping", {})
    if not isinstance(config, str | Path):
        raise BadTypeError("config", config, "a path or a mapping")
    path = Path(config)
    if path.is_dir():
        path = path / "config.json"
    text = read_text(path)
    from hashlib import sha256

    digest = sha256(text.encode()).hexdigest()
    source = f"Hugging Face config {path.name}, sha256 {digest[:16]}…"
    beside = path.with_name("hf_quant_config.json")
    quantized = parse_object(read_text(beside), str(beside)) if beside.is_file() else {}
    return _model(
        parse_object(text, str(path)), str(path), name or _file_name(path), source, quantized
    )


def looks_like_hf_config(content: Mapping[str, Any]) -> bool:
    """Return whether a JSON object has the marks of a Hugging Face model config."""
    if {"model_type", "architectures", "text_config"} & set(content):
        return True
    return (
        sum(any(alias in content for alias in ALIASES[q]) for q in ("layers", "hidden", "heads"))
        > 1
    )


def _model(
    content: dict[str, Any], file: str, name: str | None, source: str, quantized: dict[str, Any]
) -> Model:
    config = _Config(_text_part(content, file), file)
    config.require("layers", "hidden", "heads", "vocab")
    config.caveats += _not_counted(content, config)
    try:
        return Model(
            name=name or _own_name(content, config),
            hidden_size=config.needed("hidden"),
            vocab_size=config.needed("vocab"),
            blocks=_blocks(config),
            tied_embeddings=_tied(content, config),
            embedding_size=_narrow_embedding(config),
            learned_positions=_learned_positions(config),
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
    except FormatError:
        raise
    except ShardcostError as error:
        raise FormatError(file, str(error)) from None


def _text_part(content: dict[str, Any], file: str) -> dict[str, Any]:
    """Return the language model's part of a multimodal config, or the config itself."""
    part = content.get("text_config", content)
    if not isinstance(part, dict):
        raise FormatError(file, f"text_config is {shown(part)}, not an object")
    return {"model_type": content.get("model_type"), **part}


class _Config:
    """The fields of one config, each looked up by its aliases and checked on the way out."""

    def __init__(self, content: dict[str, Any], file: str) -> None:
        self.content = content
        self.file = file
        self.caveats: list[str] = []
        self.model_type = self._text("model_type") or "unstated"
        self.family = families().get(self.model_type) or self._unknown_family()
        for key, value in self.family["config_defaults"].items():
            self.content.setdefault(key, value)

    def _unknown_family(self) -> dict[str, Any]:
        """Return Llama's traits for a family that is not in the table, and warn."""
        recurrent = sorted(key for key in self.content if key.startswith(_RECURRENT_KEYS))
        if recurrent:
            reason = f"has state-space layers ({recurrent[0]}), which cannot be read yet"
            raise FormatError(self.file, f"model_type {shown(self.model_type)} {reason}")
        activation = next((self.content[k] for k in _ACTIVATION_KEYS if k in self.content), "silu")
        gated = "silu" in str(activation) or "glu" in str(activation)
        caveat = (
            f"model_type {shown(self.model_type)} is not a known family: read by its field names,"
            f" {'three' if gated else 'two'} feed-forward matrices, biases and norms as in Llama"
        )
        self.caveats.append(caveat)
        warnings.warn(f"{self.file}: {caveat}", UnknownFamilyWarning, stacklevel=6)
        return {**families()["llama"], "family": "unknown", "gated": gated}

    def find(self, quantity: str) -> tuple[str, Any]:
        """Return the first alias that is present and not null, and its value."""
        for alias in ALIASES.get(quantity, (quantity,)):
            value: Any = self.content
            for part in alias.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                return alias, value
        return quantity, None

    def whole(self, quantity: str, least: int = 1) -> int | None:
        """Return a whole number of at least `least`, or None if the config does not have it."""
        alias, value = self.find(quantity)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            rule = f"a whole number of at least {least}"
            raise FormatError(self.file, f"{alias} must be {rule}, got {shown(value)}")
        return value

    def needed(self, quantity: str) -> int:
        """Return a whole number that the config must have."""
        value = self.whole(quantity)
        if value is None:
            raise FormatError(self.file, f"{self._missing(quantity)} is missing")
        return value

    def require(self, *quantities: str) -> None:
        """Raise one error that names everything missing at once."""
        missing = [self._missing(q) for q in quantities if self.whole(q) is None]
        if missing:
            raise FormatError(
                self.file,
                f"cannot be read as a model of type {shown(self.model_type)}: missing "
                + ", ".join(missing),
            )

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a true-or-false field."""
        value = self.content.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise FormatError(self.file, f"{key} must be true or false, got {shown(value)}")
        return value

    def words(self, key: str, length: int) -> list[str] | None:
        """Return a list of `length` texts, or None if the config does not have it."""
        value = self.content.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise FormatError(self.file, f"{key} must be a list of texts, got {shown(value)}")
        if len(value) != length:
            raise FormatError(self.file, f"{key} names {len(value)} layers of {length}")
        return value

    def numbers(self, key: str) -> list[int] | None:
        """Return a list of whole numbers, or None if the config does not have it."""
        value = self.content.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(each) is int for each in value):
            raise FormatError(self.file, f"{key} must be a list of numbers, got {shown(value)}")
        return value

    def trait(self, name: str) -> Any:
        """Return what the family table says, asking the config where the table says so."""
        trait = self.family[name]
        if not isinstance(trait, dict):
            return trait
        said = self.flag(trait["key"], default=trait["default"])
        return (trait["when_true"] if said else "none") if "when_true" in trait else said

    def _text(self, key: str) -> str | None:
        value = self.content.get(key)
        if value is not None and not isinstance(value, str):
            raise FormatError(self.file, f"{key} must be a text, got {shown(value)}")
        return value

    @staticmethod
    def _missing(quantity: str) -> str:
        return " or ".join(ALIASES.get(quantity, (quantity,))[:3])


@cache
def families() -> dict[str, dict[str, Any]]:
    """Return the family table: for each model_type, its traits with the defaults filled in."""
    import tomllib

    with Path(__file__).with_name("hf_families.toml").open("rb") as file:
        content = tomllib.load(file)
    known = {}
    for name, family in content["family"].items():
        unknown = set(family) - set(content["default"]) - {"model_types"}
        if unknown:
            raise FormatError("hf_families.toml", f"unknown key {min(unknown)}")
        for model_type in family["model_types"]:
            known[model_type] = {**content["default"], **family, "family": name}
    return known


def _blocks(config: _Config) -> tuple[Block, ...]:
    """Return the layers, those that are alike joined into one block."""
    layers = config.needed("layers")
    if layers > _MOST_LAYERS:
        raise FormatError(config.file, f"{layers} layers are more than {_MOST_LAYERS}")
    counts: dict[tuple[AnyAttention, AnyFeedForward], int] = {}
    for kind in zip(_attentions(config, layers), _feed_forwards(config, layers), strict=True):
        counts[kind] = counts.get(kind, 0) + 1
    parallel = config.trait("parallel")
    return tuple(
        Block(
            count=count,
            attention=attention,
            feed_forward=feed_forward,
            parallel=parallel,
            norms=_norms(config, feed_forward, parallel=parallel),
        )
        for (attention, feed_forward), count in counts.items()
    )


def _norms(config: _Config, feed_forward: AnyFeedForward, *, parallel: bool) -> int:
    """Return the normalisations of one layer, where the family's number depends on the config."""
    if config.trait("family") == "gemma4" and isinstance(feed_forward, Experts):
        return 7  # its experts and its dense part are normalised apart
    if config.trait("family") == "falcon":
        own = config.whole("num_ln_in_parallel_attn")
        return own or (
            2 if not parallel or config.flag("new_decoder_architecture", default=False) else 1
        )
    if config.model_type == "stablelm" and parallel:
        return 1
    norms: int = config.trait("norms_per_layer")
    return norms


# Attention -----------------------------------------------------------------------------------


def _attentions(config: _Config, layers: int) -> list[AnyAttention]:
    """Return the attention of each layer."""
    if config.whole("kv_lora_rank") is not None:
        return [_latent(config)] * layers
    kinds = {kind: _attention_of(config, kind) for kind in set(_layer_types(config, layers))}
    return [kinds[kind] for kind in _layer_types(config, layers)]


def _layer_types(config: _Config, layers: int) -> list[str]:
    """Return each layer's kind: what the config lists, or what the family's habit makes of it."""
    listed = config.words("layer_types", layers)
    if listed is not None:
        return listed
    pattern = config.trait("attention_pattern")
    window = config.whole("sliding_window", least=0) or config.whole(
        "attention_chunk_size", least=0
    )
    if pattern == "linear_but_every":
        every = config.needed("full_attention_interval")
        return _but_every(every, "linear_attention", layers)
    if pattern == "window_but_every" and window:
        every = (
            config.whole("sliding_window_pattern") or config.whole("_sliding_window_pattern") or 1
        )
        return _but_every(every, "sliding_attention", layers)
    if pattern == "window_in_all" and window:
        return ["sliding_attention"] * layers
    if pattern == "window_after" and window and config.flag("use_sliding_window", default=False):
        first = config.whole("max_window_layers", least=0) or 0
        return ["full_attention" if i < first else "sliding_attention" for i in range(layers)]
    return ["full_attention"] * layers


def _but_every(every: int, kind: str, layers: int) -> list[str]:
    """Return `kind` for each layer but every so-manieth, which has full attention."""
    return ["full_attention" if (i + 1) % every == 0 else kind for i in range(layers)]


def _attention_of(config: _Config, kind: str) -> AnyAttention:
    """Return the attention that a layer type stands for."""
    if kind == "linear_attention":
        return _linear(config)
    if kind == "full_attention":
        return _grouped(config, None)
    if kind == "sliding_attention":
        window = config.whole("sliding_window", least=0) or config.whole("attention_chunk_size")
        return _grouped(config, window)
    if kind == "chunked_attention":
        return _grouped(config, config.needed("attention_chunk_size"))
    raise FormatError(config.file, f"layers of type {shown(kind)} cannot be read yet")


def _grouped(config: _Config, window: int | None) -> Attention:
    """Return ordinary attention, with Gemma 4's global layers as the one exception."""
    heads = config.needed("heads")
    kv_heads, head_dim = _kv_heads(config, heads), _head_dim(config, heads)
    global_dim = config.whole("global_head_dim")
    shared_kv = False
    if window is None and global_dim is not None:
        head_dim = global_dim
        if config.flag("attention_k_eq_v", default=False):
            shared_kv = True
            kv_heads = config.whole("num_global_key_value_heads") or kv_heads
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window_tokens=window,
        qkv_bias=config.trait("qkv_bias"),
        out_bias=config.trait("out_bias"),
        qk_norm=config.trait("qk_norm"),
        output_gate=config.trait("output_gate"),
        shared_kv=shared_kv,
        sinks=config.trait("sinks"),
    )


def _kv_heads(config: _Config, heads: int) -> int:
    """Return the key-value heads: as stated, 1 for multi-query, else as many as query heads."""
    # Falcon of the first generation states num_kv_heads but shares one key among all heads.
    multi_query = config.flag("multi_query", default=False)
    if multi_query and not config.flag("new_decoder_architecture", default=False):
        return 1
    return config.whole("kv_heads") or heads


def _head_dim(config: _Config, heads: int) -> int:
    """Return the size of a head: as stated, else the hidden size shared out."""
    stated = config.whole("head_dim")
    if stated is not None:
        return stated
    hidden = config.needed("hidden")
    if hidden % heads:
        raise FormatError(
            config.file, f"head_dim is missing and {hidden} / {heads} heads is not whole"
        )
    return hidden // heads


def _latent(config: _Config) -> LatentAttention:
    return LatentAttention(
        heads=config.needed("heads"),
        kv_lora_rank=config.needed("kv_lora_rank"),
        q_lora_rank=config.whole("q_lora_rank"),
        qk_nope_head_dim=config.needed("qk_nope_head_dim"),
        qk_rope_head_dim=config.needed("qk_rope_head_dim"),
        v_head_dim=config.needed("v_head_dim"),
        index_heads=config.whole("index_n_heads"),
        index_head_dim=config.whole("index_head_dim"),
        index_top_k=config.whole("index_topk"),
    )


def _linear(config: _Config) -> LinearAttention:
    return LinearAttention(
        key_heads=config.needed("linear_num_key_heads"),
        value_heads=config.needed("linear_num_value_heads"),
        key_head_dim=config.needed("linear_key_head_dim"),
        value_head_dim=config.needed("linear_value_head_dim"),
        conv_kernel=config.needed("linear_conv_kernel_dim"),
    )


# Feed-forward --------------------------------------------------------------------------------


def _feed_forwards(config: _Config, layers: int) -> list[AnyFeedForward]:
    """Return the feed-forward part of each layer."""
    experts = config.whole("experts", least=0) or 0
    if experts <= 1:
        return [_dense(config)] * layers
    sparse = _sparse_layers(config, layers)
    mixture = _experts(config, experts)
    if len(sparse) == layers:
        return [mixture] * layers
    dense = _dense(config)
    return [mixture if i in sparse else dense for i in range(layers)]


def _sparse_layers(config: _Config, layers: int) -> set[int]:
    """Return which layers have experts."""
    listed = config.numbers("moe_layers")
    if listed is not None:
        return {i for i in listed if 0 <= i < layers}
    first = config.whole("first_k_dense_replace", least=0) or 0
    every = (
        config.whole("interleave_moe_layer_step")
        or config.whole("decoder_sparse_step")
        or config.whole("moe_layer_freq")
        or 1
    )
    dense = set(config.numbers("mlp_only_layers") or ())
    return {i for i in range(first, layers) if (i + 1) % every == 0 and i not in dense}


def _dense(config: _Config) -> FeedForward:
    """Return the dense feed-forward part; a width that is null means four times the hidden size."""
    width = config.whole("intermediate_size_mlp") or config.whole("width")
    if width is None:
        if not _width_may_be_null(config):
            config.require("width")
        width = 4 * config.needed("hidden")
    return _part(config, width, bias=config.trait("mlp_bias"))


def _width_may_be_null(config: _Config) -> bool:
    """GPT-2, Bloom, Falcon and MPT have four times the hidden size where no width is given."""
    return config.model_type in {"gpt2", "gpt_bigcode", "gptj", "bloom", "falcon", "mpt"}


def _experts(config: _Config, experts: int) -> Experts:
    width = config.whole("expert_width") or config.needed("width")
    bias = config.trait("expert_bias")
    shared = _shared_width(config, width)
    return Experts(
        count=experts,
        top_k=config.needed("top_k"),
        expert=_part(config, width, bias=bias),
        shared=_part(config, shared, bias=bias) if shared else None,
        shared_gate=bool(shared) and config.trait("shared_gate"),
        router_bias=config.trait("router_bias"),
        groups=config.whole("n_group"),
        top_groups=config.whole("topk_group"),
    )


def _shared_width(config: _Config, expert_width: int) -> int:
    """Return the width of what every token visits beside its experts; 0 for nothing."""
    if config.trait("family") == "llama4":
        return config.needed("width")
    if config.flag("enable_moe_block", default=False):  # Gemma 4: its dense part stays
        return config.needed("width")
    stated = config.whole("shared_width", least=0)
    if stated is not None:
        return stated
    return (config.whole("shared_count", least=0) or 0) * expert_width


def _part(config: _Config, width: int, *, bias: bool) -> FeedForward:
    return FeedForward(width=width, gated=config.trait("gated"), bias=bias)


# The rest ------------------------------------------------------------------------------------


def _not_counted(content: dict[str, Any], config: _Config) -> list[str]:
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


def _own_name(content: dict[str, Any], config: _Config) -> str:
    """Return the name that a config gives itself, or its type."""
    path = content.get("_name_or_path")
    last = Path(path).name if isinstance(path, str) else ""
    return last or config.model_type


def _tied(content: dict[str, Any], config: _Config) -> bool:
    """Return whether head and embedding are one: as stated outside or inside, else by family."""
    outer = content.get("tie_word_embeddings")
    default = outer if isinstance(outer, bool) else config.trait("tied")
    return config.flag("tie_word_embeddings", default=default)


def _narrow_embedding(config: _Config) -> int | None:
    """Return OPT's embedding width where it is not the hidden size."""
    width = config.whole("word_embed_proj_dim")
    return None if width == config.whole("hidden") else width


def _learned_positions(config: _Config) -> int:
    """Return the rows of a learned position table."""
    extra = config.trait("learned_positions")
    return 0 if extra == "none" else config.needed("context") + int(extra)


def _weight_dtype(content: dict[str, Any], config: _Config, beside: dict[str, Any]) -> str:
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

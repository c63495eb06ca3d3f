"""The layers of a Hugging Face config: what each consists of, alike ones joined into blocks.

Each layer has a kind of attention and a kind of feed-forward part (`_layer_kinds`), named as in
the configs: ``full_attention``, ``sliding_attention``, ``mamba``, …; ``dense`` or ``experts``. The
parts themselves are built once per kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from shardcost.errors import FormatError, shown
from shardcost.formats.hf_fields import Config
from shardcost.model import (
    AnyAttention,
    AnyFeedForward,
    Attention,
    Block,
    Experts,
    FeedForward,
    LatentAttention,
    LinearAttention,
    StateSpace,
)

_MOST_LAYERS: Final = 10_000
_SINGLE_PARTS: Final = {
    "M": ("mamba", None),
    "*": ("full_attention", None),
    "-": (None, "dense"),
    "E": (None, "experts"),
    "mamba": ("mamba", None),
    "linear_attention": ("mamba", None),
    "attention": ("full_attention", None),
    "full_attention": ("full_attention", None),
    "mlp": (None, "dense"),
    "moe": (None, "experts"),
}
"""Nemotron-H: each layer is one part, written as a letter or a word."""
_FOUR_TIMES_HIDDEN: Final = ("gpt2", "gpt_bigcode", "gptj", "bloom", "falcon", "mpt")
"""Model types whose feed-forward part is so wide where no width is given."""
_WINDOWS: Final[Mapping[str | None, tuple[str, ...]]] = {
    "full_attention": (),
    "attention": (),
    "sliding_attention": ("sliding_window", "attention_chunk_size"),
    "chunked_attention": ("attention_chunk_size",),
}
"""For each kind of softmax attention, where its window is stated."""

_IsFull: TypeAlias = Callable[[int], bool]
"""Takes a layer's number; returns whether it has full attention."""
_Pattern: TypeAlias = Callable[[Config], _IsFull]


class _Kind(NamedTuple):
    """What a layer consists of; layers of one kind are alike."""

    attention: str | None
    part: str | None
    kv_heads: int | None = None


def blocks(config: Config) -> tuple[Block, ...]:
    """Return the layers, those that are alike joined into one block."""
    layers = config.needed("layers")
    if layers > _MOST_LAYERS:
        raise FormatError(config.file, f"{layers} layers are more than {_MOST_LAYERS}")
    counts: dict[_Kind, int] = {}
    for kind in _layer_kinds(config, layers):
        counts[kind] = counts.get(kind, 0) + 1
    return tuple(_block(config, kind, count) for kind, count in counts.items())


def _block(config: Config, kind: _Kind, count: int) -> Block:
    part: AnyFeedForward | None = None
    if kind.part is not None:
        part = _experts(config) if kind.part == "experts" else _dense(config)
    parallel = config.trait("parallel")
    return Block(
        count=count,
        attention=None if kind.attention is None else _attention(config, kind),
        feed_forward=part,
        parallel=parallel,
        norms=_norms(config, part, parallel=parallel),
    )


def _norms(config: Config, part: AnyFeedForward | None, *, parallel: bool) -> int:
    """Return the normalisations of one layer, where the family's number depends on the config."""
    family = config.trait("family")
    if family == "gemma4" and isinstance(part, Experts):
        return 7  # its experts and its dense part are normalised apart
    if family == "falcon":
        two = not parallel or config.flag("new_decoder_architecture", default=False)
        return config.whole("num_ln_in_parallel_attn") or (2 if two else 1)
    if family == "stablelm" and parallel:
        return 1
    norms: int = config.trait("norms_per_layer")
    return norms


def _layer_kinds(config: Config, layers: int) -> list[_Kind]:
    """Return what each layer consists of."""
    if config.trait("attention_pattern") == "single_parts":
        words = _single_part_words(config, layers)
        unknown = next((word for word in words if word not in _SINGLE_PARTS), None)
        if unknown is not None:
            raise FormatError(config.file, f"layers of type {shown(unknown)} cannot be read yet")
        return [_Kind(*_SINGLE_PARTS[word]) for word in words]
    if config.content.get("block_configs") is not None:
        reason = "layers that differ one by one (block_configs) cannot be read"
        raise FormatError(config.file, reason)
    sparse = _sparse_layers(config, layers)
    listed = config.numbers("num_key_value_heads_per_layer")
    kv_heads: Sequence[int | None] = [None] * layers if listed is None else listed
    if len(kv_heads) != layers:
        reason = f"num_key_value_heads_per_layer names {len(kv_heads)} layers of {layers}"
        raise FormatError(config.file, reason)
    types = _layer_types(config, layers)
    return [
        _Kind(types[i], "experts" if i in sparse else "dense", kv_heads[i]) for i in range(layers)
    ]


def _single_part_words(config: Config, layers: int) -> list[str]:
    """Return Nemotron-H's letter or word for each layer."""
    pattern = config.content.get("hybrid_override_pattern")
    if not isinstance(pattern, str):
        words = config.words("layers_block_type", layers) or config.words("layer_types", layers)
        if words is None:
            reason = "hybrid_override_pattern or layers_block_type is missing"
            raise FormatError(config.file, reason)
        return words
    if len(pattern) != layers:
        reason = f"hybrid_override_pattern names {len(pattern)} layers of {layers}"
        raise FormatError(config.file, reason)
    return list(pattern)


# Attention -----------------------------------------------------------------------------------


def _layer_types(config: Config, layers: int) -> list[str]:
    """Return each layer's kind of attention: as listed, else by the habit of the family."""
    listed = config.words("layer_types", layers)
    if listed is not None:
        return listed
    other, pattern = _PATTERNS[config.trait("attention_pattern")]
    is_full = pattern(config)
    return ["full_attention" if is_full(i) else other for i in range(layers)]


def _every(key: str) -> _Pattern:
    """Return the pattern of full attention in every n-th layer, where `key` states n."""

    def pattern(config: Config) -> _IsFull:
        every = config.whole(key) or config.whole(f"_{key}") or 1
        return lambda i: (i + 1) % every == 0

    return pattern


def _if_windowed(inner: _Pattern) -> _Pattern:
    """Full attention everywhere, unless the config has a window; then as `inner` says."""

    def pattern(config: Config) -> _IsFull:
        window = config.whole("sliding_window", 0) or config.whole("attention_chunk_size", 0)
        return inner(config) if window else lambda _i: True

    return pattern


def _first_if_used(config: Config) -> _IsFull:
    """Full attention in the first layers, or in all if the window is not used (Qwen2)."""
    if not config.flag("use_sliding_window", default=False):
        return lambda _i: True
    first = config.whole("max_window_layers", least=0) or 0
    return lambda i: i < first


def _periodic(config: Config) -> _IsFull:
    """Full attention once in a period (Jamba)."""
    period, offset = config.needed("attn_layer_period"), config.whole("attn_layer_offset", 0) or 0
    return lambda i: i % period == offset


def _listed(config: Config) -> _IsFull:
    """Full attention in the layers that are listed (Bamba)."""
    listed = config.layer_numbers("attn_layer_indices", config.needed("layers")) or set()
    return lambda i: i in listed


_PATTERNS: Final[Mapping[str, tuple[str, _Pattern]]] = {
    "none": ("", lambda _config: lambda _i: True),
    "window_in_all": ("sliding_attention", _if_windowed(lambda _config: lambda _i: False)),
    "window_after": ("sliding_attention", _if_windowed(_first_if_used)),
    "window_but_every": ("sliding_attention", _if_windowed(_every("sliding_window_pattern"))),
    "linear_but_every": ("linear_attention", _every("full_attention_interval")),
    "mamba_but_period": ("mamba", _periodic),
    "mamba_but_listed": ("mamba", _listed),
}
"""By the family table's word: what the other layers have, and which layers have full attention."""


def _attention(config: Config, kind: _Kind) -> AnyAttention:
    """Return the attention that a layer type stands for."""
    word = kind.attention
    if word == "mamba" or (word == "linear_attention" and config.whole("state") is not None):
        return _state_space(config)
    if word == "linear_attention":
        return _linear(config)
    if config.whole("kv_lora_rank") is not None:
        return _latent(config)
    if word not in _WINDOWS:
        raise FormatError(config.file, f"layers of type {shown(word)} cannot be read yet")
    windows = (config.whole(key, least=0) for key in _WINDOWS[word])
    window = next((size for size in windows if size), None)
    if _WINDOWS[word] and window is None:
        raise FormatError(config.file, f"{_WINDOWS[word][0]} is missing")
    return _grouped(config, window, kind.kv_heads)


def _grouped(config: Config, window: int | None, own_kv_heads: int | None) -> Attention:
    """Return ordinary attention, with Gemma 4's global layers as the one exception."""
    heads = config.needed("heads")
    kv_heads = _kv_heads(config, heads) if own_kv_heads is None else own_kv_heads
    head_dim = _head_dim(config, heads)
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


def _kv_heads(config: Config, heads: int) -> int:
    """Return the key-value heads: as stated, 1 for multi-query, else as many as query heads."""
    # Falcon of the first generation states num_kv_heads but shares one key among all heads.
    multi_query = config.flag("multi_query", default=False)
    if multi_query and not config.flag("new_decoder_architecture", default=False):
        return 1
    return config.whole("kv_heads") or heads


def _head_dim(config: Config, heads: int) -> int:
    """Return the size of a head: as stated, else the hidden size shared out."""
    stated = config.whole("head_dim")
    if stated is not None:
        return stated
    hidden = config.needed("hidden")
    if hidden % heads:
        reason = f"head_dim is missing and {hidden} / {heads} heads is not whole"
        raise FormatError(config.file, reason)
    return hidden // heads


def _latent(config: Config) -> LatentAttention:
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


def _linear(config: Config) -> LinearAttention:
    return LinearAttention(
        key_heads=config.needed("linear_num_key_heads"),
        value_heads=config.needed("linear_num_value_heads"),
        key_head_dim=config.needed("linear_key_head_dim"),
        value_head_dim=config.needed("linear_value_head_dim"),
        conv_kernel=config.needed("linear_conv_kernel_dim"),
    )


def _state_space(config: Config) -> StateSpace:
    """Return Mamba's mixer: of the second generation where it has heads, else of the first."""
    heads, hidden = config.whole("state_heads"), config.needed("hidden")
    head_dim = config.whole("mamba_head_dim")
    inner = heads * head_dim if heads and head_dim else config.needed("state_expand") * hidden
    rank = None
    if heads is None:
        automatic = config.content.get("mamba_dt_rank") in (None, "auto")
        rank = -(-hidden // 16) if automatic else config.needed("mamba_dt_rank")
    biased = config.flag("use_bias", default=False) or config.flag("mamba_proj_bias", default=False)
    convolved = config.flag("use_conv_bias", default=True)
    return StateSpace(
        inner_size=inner,
        state_size=config.needed("state"),
        conv_kernel=config.needed("state_kernel"),
        heads=heads,
        groups=config.whole("state_groups") or 1,
        step_rank=rank,
        conv_bias=convolved and config.flag("mamba_conv_bias", default=True),
        bias=biased,
    )


# Feed-forward --------------------------------------------------------------------------------


def _sparse_layers(config: Config, layers: int) -> set[int]:
    """Return which layers have experts."""
    if (config.whole("experts", least=0) or 0) <= 1:
        return set()
    period = config.whole("expert_layer_period")
    if period is not None:
        offset = config.whole("expert_layer_offset", least=0) or 0
        return {i for i in range(layers) if i % period == offset}
    listed = config.layer_numbers("moe_layers", layers)
    if listed is not None:
        return listed
    first = config.whole("first_k_dense_replace", least=0) or 0
    every = (
        config.whole("interleave_moe_layer_step")
        or config.whole("decoder_sparse_step")
        or config.whole("moe_layer_freq")
        or 1
    )
    dense = config.layer_numbers("mlp_only_layers", layers) or set()
    return {i for i in range(first, layers) if (i + 1) % every == 0 and i not in dense}


def _dense(config: Config) -> FeedForward:
    """Return the dense feed-forward part; a width that is null means four times the hidden size."""
    width = config.whole("intermediate_size_mlp") or config.whole("width")
    if width is None:
        if config.model_type not in _FOUR_TIMES_HIDDEN:
            config.require("width")
        width = 4 * config.needed("hidden")
    return _part(config, width, bias=config.trait("mlp_bias"))


def _experts(config: Config) -> Experts:
    if config.whole("moe_latent_size") is not None:
        raise FormatError(config.file, "experts on a latent (moe_latent_size) cannot be read yet")
    width = config.whole("expert_width") or config.needed("width")
    bias = config.trait("expert_bias")
    shared = _shared_width(config, width)
    return Experts(
        count=config.needed("experts"),
        top_k=config.needed("top_k"),
        expert=_part(config, width, bias=bias),
        shared=_part(config, shared, bias=bias) if shared else None,
        shared_gate=bool(shared) and config.trait("shared_gate"),
        router_bias=config.trait("router_bias"),
        groups=config.whole("n_group"),
        top_groups=config.whole("topk_group"),
    )


def _shared_width(config: Config, expert_width: int) -> int:
    """Return the width of what every token visits beside its experts; 0 for nothing."""
    if config.trait("family") == "llama4":
        return config.needed("width")
    if config.flag("enable_moe_block", default=False):  # Gemma 4: its dense part stays
        return config.needed("width")
    stated = config.whole("shared_width", least=0)
    if stated is not None:
        return stated
    return (config.whole("shared_count", least=0) or 0) * expert_width


def _part(config: Config, width: int, *, bias: bool) -> FeedForward:
    return FeedForward(width=width, gated=config.trait("gated"), bias=bias)

"""The layers of a Hugging Face config as blocks: the parts of each kind of layer, built once.

`hf_kinds.layer_kinds` says which layer has what.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardcost.errors import FormatError, shown
from shardcost.formats.hf_fields import Config
from shardcost.formats.hf_kinds import Kind, layer_kinds
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

_FOUR_TIMES_HIDDEN: Final = ("gpt2", "gpt_bigcode", "gptj", "bloom", "falcon", "mpt")
"""Model types whose feed-forward part is so wide where no width is given."""
_WINDOWS: Final[Mapping[str | None, tuple[str, ...]]] = {
    "full_attention": (),
    "attention": (),
    "sliding_attention": ("sliding_window", "attention_chunk_size"),
    "chunked_attention": ("attention_chunk_size",),
}
"""For each kind of softmax attention, where its window is stated."""


def blocks(config: Config) -> tuple[Block, ...]:
    """Return the layers, those that are alike joined into one block."""
    counts: dict[Kind, int] = {}
    for kind in layer_kinds(config):
        counts[kind] = counts.get(kind, 0) + 1
    return tuple(_block(config, kind, count) for kind, count in counts.items())


def _block(config: Config, kind: Kind, count: int) -> Block:
    part: AnyFeedForward | None = None
    if kind.part is not None:
        part = _experts(config) if kind.part == "experts" else _dense(config, kind.width)
    parallel = config.trait("parallel")
    return Block(
        count=count,
        attention=None if kind.attention is None else _attention(config, kind),
        beside=_state_space(config) if config.trait("mixer_beside") else None,
        feed_forward=part,
        parallel=parallel,
        norms=_norms(config, kind, part, parallel=parallel),
    )


def _norms(config: Config, kind: Kind, part: AnyFeedForward | None, *, parallel: bool) -> int:
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
    if config.content.get("block_configs") is not None:
        return norms - (kind.attention is None) - (part is None)
    return norms


# Attention -----------------------------------------------------------------------------------


def _attention(config: Config, kind: Kind) -> AnyAttention:
    """Return the attention that a layer type stands for."""
    word = kind.attention
    if word == "mamba" or (word == "linear_attention" and config.whole("state") is not None):
        return _state_space(config)
    if word == "linear_attention":
        return _linear(config)
    if config.whole("kv_lora_rank") is not None:
        return _latent(config, own_index=not kind.reused_index)
    if word not in _WINDOWS:
        raise FormatError(config.file, f"layers of type {shown(word)} cannot be read yet")
    windows = (config.whole(key, least=0) for key in _WINDOWS[word])
    window = next((size for size in windows if size), None)
    if _WINDOWS[word] and window is None:
        raise FormatError(config.file, f"{_WINDOWS[word][0]} is missing")
    return _grouped(config, window, kind)


def _grouped(config: Config, window: int | None, kind: Kind) -> Attention:
    """Return ordinary attention, with Gemma 4's global layers as the one exception."""
    heads = config.needed("heads")
    kv_heads = _kv_heads(config, heads) if kind.kv_heads is None else kind.kv_heads
    head_dim = _head_dim(config, heads)
    global_dim = config.whole("global_head_dim")
    shared_kv = False
    if window is None and global_dim is not None:
        head_dim = global_dim
        if config.flag("attention_k_eq_v", default=False):
            shared_kv = True
            kv_heads = config.whole("num_global_key_value_heads") or kv_heads
    value_dim = config.whole("v_head_dim")
    if value_dim not in (None, head_dim):
        reason = f"v_head_dim {value_dim} beside head_dim {head_dim} cannot be read yet"
        raise FormatError(config.file, reason)
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
        reused_kv=kind.reused_kv,
        q_rank=config.whole("share_q_dim"),
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


def _latent(config: Config, *, own_index: bool) -> LatentAttention:
    return LatentAttention(
        heads=config.needed("heads"),
        kv_lora_rank=config.needed("kv_lora_rank"),
        q_lora_rank=config.whole("q_lora_rank"),
        qk_nope_head_dim=config.needed("qk_nope_head_dim"),
        qk_rope_head_dim=config.needed("qk_rope_head_dim"),
        v_head_dim=config.needed("v_head_dim"),
        index_heads=config.whole("index_n_heads") if own_index else None,
        index_head_dim=config.whole("index_head_dim") if own_index else None,
        index_top_k=config.whole("index_topk"),
    )


def _linear(config: Config) -> LinearAttention:
    """Return attention with a fixed state; the family says by which rule."""
    rule = config.trait("linear_rule")
    if rule == "delta":
        return LinearAttention(
            key_heads=config.needed("linear_num_key_heads"),
            value_heads=config.needed("linear_num_value_heads"),
            key_head_dim=config.needed("linear_key_head_dim"),
            value_head_dim=config.needed("linear_value_head_dim"),
            conv_kernel=config.needed("linear_conv_kernel_dim"),
        )
    if rule == "kda":
        heads, head_dim = config.needed("linear_num_heads"), config.needed("linear_head_dim")
        kernel = config.needed("linear_conv_kernel_dim")
    else:
        heads = config.needed("heads")
        head_dim, kernel = _head_dim(config, heads), 0
    return LinearAttention(
        key_heads=heads,
        value_heads=heads,
        key_head_dim=head_dim,
        value_head_dim=head_dim,
        conv_kernel=kernel,
        rule=rule,
    )


def _state_space(config: Config) -> StateSpace:
    """Return Mamba's mixer: of the second generation where it has heads, else of the first."""
    heads, hidden = config.whole("state_heads"), config.needed("hidden")
    inner, head_dim = config.whole("state_inner"), config.find("state_head_dim")[1]
    config.find("state_expand")  # says the same where the others are stated
    if inner is None and heads and head_dim not in (None, "auto"):
        inner = heads * config.needed("state_head_dim")
    if inner is None:
        inner = config.needed("state_expand") * hidden
    rank = None
    if heads is None:
        automatic = config.find("mamba_dt_rank")[1] in (None, "auto")
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
        inner_norm=config.trait("state_norm"),
        conv_bias=convolved and config.flag("mamba_conv_bias", default=True),
        bias=biased,
    )


# Feed-forward --------------------------------------------------------------------------------


def _dense(config: Config, own_width: int | None) -> FeedForward:
    """Return the dense feed-forward part; a width that is null means four times the hidden size."""
    width = own_width or config.whole("intermediate_size_mlp")
    width = width or config.whole(config.trait("dense_width"))
    if width is None:
        if config.model_type not in _FOUR_TIMES_HIDDEN:
            config.require("width")
        width = 4 * config.needed("hidden")
    return _part(config, width, bias=config.trait("mlp_bias"))


def _experts(config: Config) -> Experts:
    width = config.whole("expert_width") or config.needed("width")
    bias = config.trait("expert_bias")
    shared = _shared_width(config, width)
    count, top_k, idle = config.needed("experts"), config.needed("top_k"), _zero_experts(config)
    if idle:
        # All choices are counted alike, so that a share of them falls on experts that do nothing.
        visited = max(1, round(top_k * count / (count + idle)))
        caveat = (
            f"{top_k} of {count + idle} experts are chosen, {idle} of which return their input"
            f" (zero_expert_num): a token is taken to visit {visited} of the others"
        )
        if caveat not in config.caveats:
            config.caveats.append(caveat)
        top_k = visited
    return Experts(
        count=count,
        top_k=top_k,
        expert=_part(config, width, bias=bias),
        shared=_part(config, shared, bias=bias) if shared else None,
        shared_gate=bool(shared) and config.trait("shared_gate"),
        router_bias=config.trait("router_bias"),
        groups=config.whole("expert_groups"),
        top_groups=config.whole("topk_group"),
        latent=config.whole("moe_latent_size"),
        zero_experts=idle,
    )


def _zero_experts(config: Config) -> int:
    """Return the experts that return their input (LongCat-Flash)."""
    kind = config.find("zero_expert_type")[1]
    if kind not in (None, "identity"):
        raise FormatError(config.file, f"zero_expert_type {shown(kind)} cannot be read yet")
    return config.whole("zero_expert_num", least=0) or 0


def _shared_width(config: Config, expert_width: int) -> int:
    """Return the width of what every token visits beside its experts; 0 for nothing."""
    beside = config.trait("dense_beside_experts")
    dense = 0 if beside == "none" else config.needed(beside)
    stated = config.whole("shared_width", least=0)
    if stated is not None:
        return dense + stated
    return dense + (config.whole("shared_count", least=0) or 0) * expert_width


def _part(config: Config, width: int, *, bias: bool) -> FeedForward:
    return FeedForward(width=width, gated=config.trait("gated"), bias=bias)

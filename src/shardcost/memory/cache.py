"""What a decoder keeps of the tokens it has seen: keys and values, latent vectors, states."""

from __future__ import annotations

from typing import Any, Final

from shardcost.arrays import smallest
from shardcost.layout import Layout
from shardcost.memory.parameters import heads_per_rank
from shardcost.model import AnyAttention, Attention, LatentAttention, LinearAttention, Model

_STATE_BYTES: Final = 4
"""States are sums over the whole past, and kept in fp32."""


def cache_bytes_per_layer(model: Model, layout: Layout, tokens: Any, element_bytes: float) -> Any:
    """Return what an average layer keeps of one sequence of `tokens`, on one rank."""
    held = sum(
        block.count * _layer(block.attention, layout, tokens, element_bytes)
        for block in model.blocks
        if block.attention is not None
    )
    return held / model.num_layers


def _layer(part: AnyAttention, layout: Layout, tokens: Any, element_bytes: float) -> Any:
    tp = layout.tp
    if isinstance(part, Attention):
        seen = tokens if part.window_tokens is None else smallest(tokens, part.window_tokens)
        heads = heads_per_rank(part.kv_heads, tp)
        return seen / layout.cp * 2 * heads * part.head_dim * element_bytes
    if isinstance(part, LatentAttention):
        return tokens / layout.cp * part.cache_elements_per_token * element_bytes
    if isinstance(part, LinearAttention):
        key, value = part.key_heads * part.key_head_dim, part.value_heads * part.value_head_dim
        state = part.value_heads * part.key_head_dim * part.value_head_dim
        past = (2 * key + value) * (part.conv_kernel - 1) * element_bytes
        return (state * _STATE_BYTES + past) / tp
    channels = part.inner_size + 2 * part.groups * part.state_size
    past = channels * (part.conv_kernel - 1) * element_bytes
    return (part.inner_size * part.state_size * _STATE_BYTES + past) / tp

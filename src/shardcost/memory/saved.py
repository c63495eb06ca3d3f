r"""The tensors that the forward pass of a layer keeps for its backward pass.

Korthikanti et al. 2022 (arXiv:2205.05198) count them for one architecture; here each operator
says what it keeps, so that other architectures and kernels have their own sum. Elements per token,
`h` the hidden size, `q`, `k` the columns of queries and of keys on a rank, `f` the feed-forward
width, `t` the tensor-parallel degree, `r` = 1/t under sequence parallelism and 1 otherwise:

=====================  ========================  ==================================================
operator               keeps                     elements per token
=====================  ========================  ==================================================
norm                   its input                 h r
QKV product            its input                 h r (h where the gathered one is kept)
norm of q, k           its input                 q + k
attention, fused       Q, K, V, softmax sums     q + 2 k, and 4 bytes per head
attention, unfused     Q, K, V, softmax output   q + 2 k + s a/t; with dropout a mask of 1 byte and
                                                 the dropped output too: 5 s a/t bytes in 16 bit
output gate            gate, ungated output      2 q
projection             its input                 q
dropout                a mask of 1 byte          h r
norm                   its input                 h r
up (and gate) product  its input                 h r
activation             its input(s)              f/t; gated 2 f/t, 3 f/t where it is two kernels
down product           its input                 f/t
dropout                a mask of 1 byte          h r
=====================  ========================  ==================================================

The two residual sums keep nothing. With f = 4 h, plain heads and dropout the sum is the paper's
:math:`s b h (10 + 24/t + 5 a s/(h t))`. Selective recomputation drops what attention keeps of the
scores, full recomputation all but the input of the layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from shardcost.arrays import largest
from shardcost.dtypes import activation_bytes
from shardcost.layout import Layout
from shardcost.memory.parameters import expert_tensor_degree, heads_per_rank
from shardcost.memory.policy import MemoryPolicy, policy_of
from shardcost.model import (
    AnyAttention,
    Attention,
    Block,
    Experts,
    FeedForward,
    LatentAttention,
    LinearAttention,
    Model,
)
from shardcost.workload import Train

_STATISTIC_BYTES = 4
"""Softmax statistics and router scores are kept in fp32."""


class Setting(NamedTuple):
    """What the counts of a layer depend on besides its shape."""

    hidden: Any
    tp: Any
    spread: Any
    """Share of the hidden states between tensor-parallel products that a rank has (r)."""
    routed: Any
    """Share of the tensor group's tokens that a rank sends to experts."""
    imbalance: Any
    """Tokens of the fullest rank's experts, over the mean."""
    context: Any
    """Tokens that a query meets."""
    element_bytes: float
    """Of activations."""
    policy: MemoryPolicy


class Saved(NamedTuple):
    """Bytes per token that one layer keeps, by what recomputation does to them."""

    input: Any
    """The layer's input: all that full recomputation keeps."""
    rest: Any
    core: Any
    """Of the scores of attention: what selective recomputation drops."""
    widest: Any
    """Not kept: the gradients that are alive at once inside the widest part."""

    def kept(self, recompute: str) -> Any:
        """Return what stays between the passes."""
        if recompute == "full":
            return self.input
        return self.input + self.rest + (0 if recompute == "selective" else self.core)

    def again(self, recompute: str) -> Any:
        """Return what is made again, one layer at a time, in the backward pass."""
        return self.input + self.rest + self.core - self.kept(recompute)


def setting_of(
    model: Model, layout: Layout, dtype: str, context: Any, policy: MemoryPolicy
) -> Setting:
    """Return the setting of a model's layers under a layout."""
    divided = layout.sequence_parallel or layout.scheme != "1d"
    spread = 1 / layout.tp if divided else 1.0
    return Setting(
        model.hidden_size,
        layout.tp,
        spread,
        expert_tensor_degree(layout) / layout.tp,
        layout.imbalance,
        context,
        activation_bytes(dtype),
        policy,
    )


def saved_bytes_per_layer(
    model: Model, block: Block, layout: Layout, workload: Train, software: Any = None
) -> Any:
    """Return the bytes that one layer of a kind keeps of one micro-batch, on one rank.

    >>> model = Model.named("gpt3-175b")
    >>> layout, work = Layout(tp=8), Train(global_batch=1, sequence_length=2048)
    >>> kept = saved_bytes_per_layer(model, model.blocks[0], layout, work)
    >>> round(kept / (2048 * model.hidden_size), 2)
    11.0
    """
    length = workload.sequence_length
    setting = setting_of(model, layout, workload.dtype, length, policy_of(software))
    kept = saved_by_layer(setting, block).kept(layout.recompute)
    return kept * layout.micro_batch * length / layout.cp


def saved_by_layer(s: Setting, block: Block) -> Saved:
    """Return what one layer keeps of a token."""
    between = s.hidden * s.element_bytes * s.spread
    parts = [part for part in (block.attention, block.feed_forward) if part is not None]
    inputs = 1 if block.parallel else len(parts)
    read = s.hidden * s.element_bytes if s.policy.whole_inputs else between
    rest = (block.norms - 1) * between + inputs * read
    if s.policy.dropout:
        rest = rest + len(parts) * s.hidden * s.spread
    core: Any = 0
    widest: Any = 0
    for mixer in block.mixers:
        columns, scores = _attention(s, mixer)
        rest, core = rest + columns * s.element_bytes, core + scores
        widest = largest(widest, columns)
    if block.feed_forward is not None:
        part = block.feed_forward
        columns = _inner(s, part) / s.tp if isinstance(part, FeedForward) else _experts(s, part)
        rest = rest + columns * s.element_bytes
        widest = largest(widest, columns)
    return Saved(between, rest, core, (widest + s.hidden) * s.element_bytes)


def _attention(s: Setting, part: AnyAttention) -> tuple[Any, Any]:
    """Return the elements per token that attention keeps, and the bytes that scores keep."""
    if isinstance(part, Attention):
        query = part.heads * part.head_dim / s.tp
        key = heads_per_rank(part.kv_heads, s.tp) * part.head_dim
        columns = query + part.kv_projections * key + query
        if part.qk_norm != "none":
            columns = columns + query + key
        if part.output_gate:
            columns = columns + 2 * query
        return columns, _scores(s, part.heads)
    if isinstance(part, LatentAttention):
        heads, rope = part.heads / s.tp, part.qk_rope_head_dim
        latent = (2 * part.kv_lora_rank + rope + 2 * (part.q_lora_rank or 0)) * s.spread
        # Queries and keys, values and the output.
        columns = 2 * heads * (part.qk_nope_head_dim + rope + part.v_head_dim)
        return columns + latent, _scores(s, part.heads)
    if isinstance(part, LinearAttention):
        key, value = part.key_heads * part.key_head_dim, part.value_heads * part.value_head_dim
        # Before and after the convolution; the gate, the output before and after its norm.
        return (2 * (2 * key + value) + 3 * value + 2 * part.value_heads) / s.tp, 0
    channels = part.inner_size + 2 * part.groups * part.state_size
    return (2 * channels + 3 * part.inner_size) / s.tp, 0


def _scores(s: Setting, heads: Any) -> Any:
    if s.policy.attention == "flash":
        return _STATISTIC_BYTES * heads / s.tp
    each = s.element_bytes + (1 + s.element_bytes if s.policy.dropout else 0)
    return each * s.context * heads / s.tp


def _inner(s: Setting, part: FeedForward) -> Any:
    """Return the elements per token that a feed-forward part keeps between its products."""
    gated = 3 if s.policy.fused_activation else 4
    return part.width * (gated if part.gated else 2)


def _experts(s: Setting, part: Experts) -> Any:
    """Return the elements per token that experts keep, on the rank that gets the most tokens.

    Each token is copied to its experts and its outputs are kept for the router's gradient. Where
    experts are divided by tensor parallelism, each rank holds whole copies; where they are spread
    over its ranks, each rank has its share of them.
    """
    copies = part.top_k * 2 * part.row_width(s.hidden) * s.routed
    router = part.count * _STATISTIC_BYTES / s.element_bytes * s.spread
    shared = 0 if part.shared is None else _inner(s, part.shared) / s.tp
    visited = copies + part.top_k * _inner(s, part.expert) / s.tp
    return s.imbalance * visited + router + shared

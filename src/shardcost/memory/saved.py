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
scores, full recomputation all but the input of the layer, recomputation of modules their outputs
(norms, up-projections of latent vectors, activations of experts) or all between their inputs and
outputs (feed-forward part, mixture of experts, shared experts). Where GEMMs are in fewer than 16
bits, a framework may keep their inputs in their format.

A frozen matrix has no gradient and keeps no input. An adapter beside it keeps its own, in 16 bits:
that of a column-parallel matrix gathered, and the narrow product between its two matrices.
"""

from __future__ import annotations

from typing import Any

from shardcost.arrays import largest, smallest
from shardcost.dtypes import activation_bytes, weight_format
from shardcost.layout import RECOMPUTE_MODULES, Layout
from shardcost.memory.adapters import adapted_matrices
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
from shardcost.records import NamedTuple
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
    input_bytes: float
    """Of the kept inputs of GEMMs."""
    policy: MemoryPolicy
    frozen: bool = False
    """Only adapters are trained."""
    adapter_rank: Any = 0
    adapter_targets: str = ""


class Saved(NamedTuple):
    """Bytes per token that one layer keeps, by the module that recomputation drops them with."""

    input: Any
    """The layer's input: all that full recomputation keeps."""
    rest: Any
    """What no module drops."""
    core_attn: Any
    """Of the scores of attention."""
    widest: Any
    """Not kept: the gradients that are alive at once inside the widest part."""
    layernorm: Any = 0
    """Outputs of the norms before both parts."""
    mla_up_proj: Any = 0
    """Queries, keys and values rebuilt from latent vectors."""
    mlp: Any = 0
    """Between the products of a dense feed-forward part."""
    moe_act: Any = 0
    """Outputs of the experts' activation."""
    shared_experts: Any = 0
    moe: Any = 0
    """All else inside a mixture of experts."""

    @property
    def everything(self) -> Any:
        """What stays where nothing is recomputed."""
        return self.input + self.rest + sum(getattr(self, name) for name in RECOMPUTE_MODULES)

    def kept(self, layout: Layout) -> Any:
        """Return what stays between the passes, of a layer that is recomputed where any is."""
        if layout.recompute == "none":
            return self.everything
        if layout.recompute == "full":
            return self.input
        dropped = [name for name in RECOMPUTE_MODULES if layout.recomputes(name)]
        if "moe" in dropped:
            dropped = list({*dropped, "moe_act", "shared_experts"})
        return self.everything - sum(getattr(self, name) for name in sorted(dropped))

    def again(self, layout: Layout) -> Any:
        """Return what is made again, one layer at a time, in the backward pass."""
        return self.everything - self.kept(layout)


def recomputed_share(layout: Layout, layers: Any) -> Any:
    """Return the share of a stage's layers that is recomputed, where only some are; else None."""
    if layout.recompute_layers is None or layout.recompute_method == "uniform":
        return None
    return smallest(1, layout.recompute_layers / largest(layers, 1))


def recomputed_group(layout: Layout) -> Any:
    """Return how many layers share the one input that full recomputation keeps of them."""
    if layout.recompute_layers is None or layout.recompute_method == "block":
        return 1
    return layout.recompute_layers


def setting_of(
    model: Model,
    layout: Layout,
    dtype: str,
    context: Any,
    policy: MemoryPolicy,
    work: Train | None = None,
) -> Setting:
    """Return the setting of a model's layers under a layout; of a training run, with its `work`."""
    divided = layout.sequence_parallel or layout.scheme != "1d"
    spread = 1 / layout.tp if divided else 1.0
    wide = activation_bytes(dtype)
    frozen = work is not None and work.adapters
    return Setting(
        model.hidden_size,
        layout.tp,
        spread,
        expert_tensor_degree(layout) / layout.tp,
        layout.imbalance,
        context,
        wide,
        min(wide, weight_format(dtype).input_bytes) if policy.narrow_inputs else wide,
        policy,
        frozen,
        work.adapter_rank if work is not None and frozen else 0,
        work.adapter_targets if work is not None and frozen else "",
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
    setting = setting_of(model, layout, workload.dtype, length, policy_of(software), workload)
    kept = saved_by_layer(setting, block).kept(layout)
    return kept * layout.micro_batch * length / layout.cp


def saved_by_layer(s: Setting, block: Block) -> Saved:
    """Return what one layer keeps of a token."""
    between = s.hidden * s.element_bytes * s.spread
    parts = [part for part in (block.attention, block.feed_forward) if part is not None]
    rest = (block.norms - 1) * between
    if s.frozen:
        adapted = adapted_matrices(block, s.hidden, s.tp, s.adapter_targets)
        routed = isinstance(block.feed_forward, Experts) and block.feed_forward.shared is None
        inputs = int(block.attention is not None)
        if s.adapter_targets == "all" and block.feed_forward is not None and not routed:
            inputs = 1 if block.parallel else inputs + 1
        read = s.hidden * s.element_bytes
        rest = rest + len(adapted) * s.adapter_rank * s.element_bytes
    else:
        inputs = 1 if block.parallel else len(parts)
        read = s.hidden * s.input_bytes * (1.0 if s.policy.whole_inputs else s.spread)
    if s.policy.dropout:
        rest = rest + len(parts) * s.hidden * s.spread
    saved = Saved(between, rest, 0, 0, inputs * read)
    widest: Any = 0
    for mixer in block.mixers:
        part = _attention(s, mixer)
        saved = saved._replace(
            rest=saved.rest + part.rest,
            core_attn=saved.core_attn + part.core_attn,
            mla_up_proj=saved.mla_up_proj + part.mla_up_proj,
        )
        widest = largest(widest, part.widest)
    if isinstance(block.feed_forward, FeedForward):
        own = _inner(s, block.feed_forward)
        saved = saved._replace(mlp=sum(own.bytes) / s.tp)
        widest = largest(widest, own.columns / s.tp)
    elif block.feed_forward is not None:
        part = _experts(s, block.feed_forward)
        saved = saved._replace(
            rest=saved.rest + part.rest,
            moe=part.moe,
            moe_act=part.moe_act,
            shared_experts=part.shared_experts,
        )
        widest = largest(widest, part.widest)
    return saved._replace(widest=(widest + s.hidden) * s.element_bytes)


def _attention(s: Setting, part: AnyAttention) -> Saved:
    """Return the bytes per token that attention keeps; of `widest`, the columns."""
    wide = s.element_bytes
    if isinstance(part, Attention):
        query = part.heads * part.head_dim / s.tp
        key = heads_per_rank(part.kv_heads, s.tp) * part.head_dim
        columns = query + part.kv_projections * key
        if part.qk_norm != "none":
            columns = columns + query + key
        if part.output_gate:
            columns = columns + 2 * query
        rest = columns * wide + _output(s, query)
        return Saved(0, rest, _scores(s, part.heads), columns + query)
    if isinstance(part, LatentAttention):
        heads, rope = part.heads / s.tp, part.qk_rope_head_dim
        rank = part.kv_lora_rank + (part.q_lora_rank or 0)
        # Inputs of the latent vectors' norms, then those of the up-projections.
        read = s.element_bytes if s.frozen else s.input_bytes
        latent = ((rank + rope) * wide + rank * read) * s.spread
        output = heads * part.v_head_dim
        made = heads * (2 * (part.qk_nope_head_dim + rope) + part.v_head_dim)
        rest = latent + _output(s, output)
        columns = made + output + (2 * rank + rope) * s.spread
        return Saved(0, rest, _scores(s, part.heads), columns, mla_up_proj=made * wide)
    if isinstance(part, LinearAttention):
        key, value = part.key_heads * part.key_head_dim, part.value_heads * part.value_head_dim
        # Before and after the convolution; the gate, the output before and after its norm.
        columns = (2 * (2 * key + value) + 3 * value + 2 * part.value_heads) / s.tp
        return Saved(0, columns * wide, 0, columns)
    channels = part.inner_size + 2 * part.groups * part.state_size
    columns = (2 * channels + 3 * part.inner_size) / s.tp
    return Saved(0, columns * wide, 0, columns)


def _output(s: Setting, columns: Any) -> Any:
    """Return the bytes of the output of attention, which its kernel and the projection keep.

    One tensor is kept for both unless the projection reads another format. A frozen projection
    keeps none, and its adapter reads the kernel's.
    """
    if s.frozen:
        kept = s.policy.attention == "flash" or s.adapter_targets != "qkv"
        return columns * s.element_bytes if kept else 0
    if s.policy.attention == "flash" and s.input_bytes < s.element_bytes:
        return columns * (s.element_bytes + s.input_bytes)
    return columns * s.input_bytes


def _scores(s: Setting, heads: Any) -> Any:
    if s.policy.attention == "flash":
        return _STATISTIC_BYTES * heads / s.tp
    each = s.element_bytes + (1 + s.element_bytes if s.policy.dropout else 0)
    return each * s.context * heads / s.tp


class _Inner(NamedTuple):
    """What a feed-forward part keeps of a token between its products, undivided."""

    columns: Any
    bytes: tuple[Any, Any]
    """Inputs of the activation, and its output."""


def _inner(s: Setting, part: FeedForward) -> _Inner:
    wide = s.element_bytes
    before = (2 if s.policy.fused_activation else 3) if part.gated else 1
    narrow = s.policy.narrow_activations or (s.frozen and s.policy.narrow_frozen_activations)
    inputs = part.width * before * (s.input_bytes if narrow else wide)
    output_bytes = s.input_bytes
    if s.frozen:  # the second matrix keeps its input for an adapter alone
        output_bytes = wide if s.adapter_targets == "all" else 0.0
    return _Inner(part.width * (before + 1), (inputs, part.width * output_bytes))


def _experts(s: Setting, part: Experts) -> Saved:
    """Return the bytes per token that experts keep, on the rank that gets the most tokens.

    Each token is copied to its experts; its outputs are kept for the router's gradient where they
    are weighted after the last product and not before it. Where experts are divided by tensor
    parallelism, each rank holds whole copies; where they are spread over its ranks, each rank has
    its share of them. Of `widest`, the columns.
    """
    outputs = 1 if s.policy.expert_outputs else 0
    copies = part.top_k * part.row_width(s.hidden) * s.routed * s.imbalance
    router = part.count * _STATISTIC_BYTES * s.spread
    shared = _Inner(0, (0, 0)) if part.shared is None else _inner(s, part.shared)
    own = _inner(s._replace(adapter_targets=""), part.expert)  # routed experts have no adapters
    read = 0.0 if s.frozen else s.input_bytes
    visits = part.top_k / s.tp * s.imbalance
    return Saved(
        0,
        router,
        0,
        (1 + outputs) * copies
        + visits * own.columns
        + router / s.element_bytes
        + shared.columns / s.tp,
        moe=copies * (read + outputs * s.element_bytes) + visits * own.bytes[0],
        moe_act=visits * own.bytes[1],
        shared_experts=sum(shared.bytes) / s.tp,
    )

"""The weights of one rank.

Tensor parallelism divides the matrices of heads and feed-forward widths (Shoeybi et al. 2019,
arXiv:1909.08053) and leaves norms, routers and latent projections whole on every rank. Key-value
heads are divided until each rank has one; beyond that they are copied. Experts are spread over
`ep`; their matrices are divided by what `ep` leaves of the tensor group.
"""

from __future__ import annotations

from typing import Any

from shardcost.arrays import choose, largest
from shardcost.dtypes import activation_bytes, weight_bytes
from shardcost.layout import Layout
from shardcost.memory.stages import Stage
from shardcost.model import (
    NORM_VECTORS,
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
from shardcost.workload import Workload


class Parameters(NamedTuple):
    """Weights by the group of ranks that hold a copy of them."""

    dense: Any
    """On all ranks along `dp` and `cp`."""
    experts: Any
    """On those of them that have the same experts."""

    @property
    def total(self) -> Any:
        """All weights of the rank."""
        return self.dense + self.experts


class LayerWeights(NamedTuple):
    """Weights of one layer on one rank, by the number formats that they may have."""

    attention: Any
    feed_forward: Any
    """With the shared experts."""
    experts: Any
    rest: Any
    """Norms and routers, which stay in 16 bits."""

    def stored_bytes(self, workload: Workload) -> Any:
        """Return the bytes of the weights in the formats of a served model."""
        dtype = workload.part_dtype()
        return (
            self.attention * weight_bytes(workload.part_dtype("attention"))
            + self.feed_forward * weight_bytes(dtype)
            + self.experts * weight_bytes(workload.part_dtype("expert"))
            + self.rest * activation_bytes(dtype)
        )


def heads_per_rank(heads: Any, tp: Any) -> Any:
    """Return the key-value heads of a rank: its share, but at least one.

    >>> heads_per_rank(8, 4), heads_per_rank(8, 16)
    (2.0, 1)
    """
    return largest(heads / tp, 1)


def expert_tensor_degree(layout: Layout) -> Any:
    """Return over how many ranks one expert's matrices are split.

    Experts are spread over data- and context-parallel ranks first; each expert is then split over
    the tensor group as the rest of the layer is. Where `ep` exceeds those ranks it reaches into
    the tensor group, whose part of the split it takes over. A layout may state the degree instead.

    >>> [expert_tensor_degree(Layout(tp=8, dp=2, ep=ep)) for ep in (2, 4, 16)]
    [8, 4, 1]
    """
    if layout.etp is not None:
        return layout.etp
    ranks = layout.dp * layout.cp
    reaches = layout.ep > ranks
    return choose(reaches, largest(layout.tp * ranks // layout.ep, 1), layout.tp)


def expert_copies(layout: Layout) -> Any:
    """Return how many ranks hold the same experts, and so share their optimizer under ZeRO."""
    ranks = layout.tp * layout.dp * layout.cp
    return largest(ranks // (layout.ep * expert_tensor_degree(layout)), 1)


def sharing_ranks(layout: Layout, copies: Any) -> Any:
    """Return over how many of the ranks with the same weights ZeRO divides them.

    Where only some of the ranks along `dp` and `cp` share (`shard_degree`), the same part of the
    ranks with the same experts does.

    >>> layout = Layout(dp=8, ep=4, shard_degree=4)
    >>> sharing_ranks(layout, 8), sharing_ranks(layout, expert_copies(layout))
    (4, 1)
    """
    if layout.shard_degree is None:
        return copies
    return largest(copies * layout.shard_degree // (layout.dp * layout.cp), 1)


def layer_parameters(model: Model, block: Block, layout: Layout) -> Parameters:
    """Return the weights of one layer on one rank."""
    attention, feed_forward, experts, rest = layer_weights(model, block, layout)
    return Parameters(attention + feed_forward + rest, experts)


def layer_weights(model: Model, block: Block, layout: Layout) -> LayerWeights:
    """Return the weights of one layer on one rank, by part."""
    hidden, tp = model.hidden_size, layout.tp
    norms: Any = block.norms * NORM_VECTORS[model.norm] * hidden
    attention = sum((_attention(mixer, hidden, tp) for mixer in block.mixers), 0)
    part = block.feed_forward
    if not isinstance(part, Experts):
        dense = 0 if part is None else _feed_forward(part, hidden, tp)
        return LayerWeights(attention, dense, 0, norms)
    shared = 0 if part.shared is None else _feed_forward(part.shared, hidden, tp)
    router = (part.count + part.zero_experts) * (hidden + (1 if part.router_bias else 0))
    latent = 0 if part.latent is None else 2 * hidden * part.latent
    gate = hidden if part.shared_gate else 0
    split = expert_tensor_degree(layout)
    held = (part.count + layout.redundant_experts) / layout.ep
    experts = held * _feed_forward(part.expert, part.row_width(hidden), split)
    return LayerWeights(attention, shared + latent, experts, norms + router + gate)


def stack_parameters(model: Model, layout: Layout) -> Parameters:
    """Return the weights of an average layer on one rank.

    Kinds of layer are taken to be spread evenly over the stages.
    """
    kinds = [(block.count, layer_parameters(model, block, layout)) for block in model.blocks]
    dense = sum(count * part.dense for count, part in kinds) / model.num_layers
    return Parameters(dense, sum(count * part.experts for count, part in kinds) / model.num_layers)


def prediction_weights(model: Model, layout: Layout) -> LayerWeights:
    """Return the weights of a layer for multi-token prediction on one rank.

    One like the last layer, a projection from two vectors to one, and three norms
    (arXiv:2412.19437, section 2.2); embedding and head are the model's.
    """
    last, hidden = layer_weights(model, model.blocks[-1], layout), model.hidden_size
    return last._replace(
        feed_forward=last.feed_forward + 2 * hidden * hidden,
        rest=last.rest + 3 * NORM_VECTORS[model.norm] * hidden,
    )


def prediction_parameters(model: Model, layout: Layout, layers: int) -> Parameters:
    """Return the weights of so many layers for multi-token prediction on one rank."""
    attention, feed_forward, experts, rest = prediction_weights(model, layout)
    return Parameters(layers * (attention + feed_forward + rest), layers * experts)


def stored_bytes(model: Model, layout: Layout, workload: Workload) -> Any:
    """Return the bytes of an average layer's weights on one rank that serves a model."""
    layers = (
        block.count * layer_weights(model, block, layout).stored_bytes(workload)
        for block in model.blocks
    )
    return sum(layers) / model.num_layers


def embedding_parameters(model: Model, layout: Layout) -> Any:
    """Return what the first stage has besides layers: its share of the table, positions, norm."""
    table, narrow = _table(model, layout)
    norm = NORM_VECTORS[model.norm] * model.hidden_size if model.embedding_norm else 0
    own = model.layer_embedding_parameters / layout.tp
    return table + narrow + norm + own + model.learned_positions * model.hidden_size


def _table(model: Model, layout: Layout) -> tuple[Any, Any]:
    """Return the weights of a vocabulary's table, and of what narrows or widens its vectors."""
    width = model.hidden_size if model.embedding_size is None else model.embedding_size
    narrow = 0 if model.embedding_size is None else width * model.hidden_size
    return model.vocab_size * width / layout.tp, narrow


def head_parameters(model: Model, layout: Layout) -> Any:
    """Return what the last stage has besides layers: its share of the head, and the final norm.

    A tied head is the embedding itself where one stage has both, and a copy elsewhere.
    """
    table, narrow = _table(model, layout)
    norm = NORM_VECTORS[model.norm] * model.hidden_size if model.final_norm else 0
    bias = model.vocab_size / layout.tp if model.head_bias else 0
    if model.tied_embeddings:
        table = choose(layout.pp == 1, 0, table)
    return table + narrow + norm + bias


def end_parameters(model: Model, layout: Layout, stage: Stage) -> Any:
    """Return the weights of a stage that are of no layer: the embedding's, the head's."""
    table = choose(stage.has_embedding, embedding_parameters(model, layout), 0)
    return table + choose(stage.has_head, head_parameters(model, layout), 0)


def _attention(part: AnyAttention, hidden: Any, tp: Any) -> Any:
    if isinstance(part, Attention):
        return _heads(part, hidden, tp)
    if isinstance(part, LatentAttention):
        # The weights of latent attention: what makes heads is divided, the rest is not.
        head_columns = part.heads * (part.qk_nope_head_dim + part.qk_rope_head_dim)
        query_from = hidden if part.q_lora_rank is None else part.q_lora_rank
        made = part.heads * (part.qk_nope_head_dim + part.v_head_dim)
        divided = (
            query_from * head_columns
            + part.kv_lora_rank * made
            + part.heads * part.v_head_dim * hidden
        )
        return part.parameters(hidden) - divided + divided / tp
    if isinstance(part, LinearAttention):
        whole = part.undivided_parameters(hidden)
        return (part.parameters(hidden) - whole) / tp + whole
    return part.parameters(hidden) / tp


def _heads(part: Attention, hidden: Any, tp: Any) -> Any:
    query = part.heads * part.head_dim / tp
    key_value = heads_per_rank(part.kv_heads, tp) * part.head_dim
    columns = query * (2 if part.output_gate else 1) + key_value * part.kv_projections
    keys = 0 if part.reused_kv else 1
    norm = {
        "none": 0,
        "head": (1 + keys) * part.head_dim,
        "full": query + keys * key_value,
    }[part.qk_norm]
    made = 0 if part.q_rank is None else part.q_rank * (hidden + 1 + query) - hidden * query
    return (
        hidden * (columns + query)
        + made
        + (columns if part.qkv_bias else 0)
        + (hidden if part.out_bias else 0)
        + (part.heads / tp if part.sinks else 0)
        + norm
    )


def _feed_forward(part: FeedForward, hidden: Any, tp: Any) -> Any:
    inner = 2 * part.width if part.gated else part.width
    bias = inner / tp + hidden if part.bias else 0
    return hidden * (inner + part.width) / tp + bias

"""The weights of one rank.

Tensor parallelism divides the matrices of heads and feed-forward widths (Shoeybi et al. 2019,
arXiv:1909.08053) and leaves norms, routers and latent projections whole on every rank. Key-value
heads are divided until each rank has one; beyond that they are copied. Experts are spread over
`ep`; their matrices are divided by what `ep` leaves of the tensor group.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from shardcost.arrays import choose, largest
from shardcost.layout import Layout
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


def layer_parameters(model: Model, block: Block, layout: Layout) -> Parameters:
    """Return the weights of one layer on one rank."""
    hidden, tp = model.hidden_size, layout.tp
    dense: Any = block.norms * NORM_VECTORS[model.norm] * hidden
    if block.attention is not None:
        dense = dense + _attention(block.attention, hidden, tp)
    part = block.feed_forward
    if isinstance(part, FeedForward):
        dense = dense + _feed_forward(part, hidden, tp)
    if not isinstance(part, Experts):
        return Parameters(dense, 0)
    shared = 0 if part.shared is None else _feed_forward(part.shared, hidden, tp)
    router = part.count * (hidden + (1 if part.router_bias else 0))
    gate = hidden if part.shared_gate else 0
    split = expert_tensor_degree(layout)
    held = (part.count + layout.redundant_experts) / layout.ep
    experts = held * _feed_forward(part.expert, hidden, split)
    return Parameters(dense + shared + router + gate, experts)


def stack_parameters(model: Model, layout: Layout) -> Parameters:
    """Return the weights of an average layer on one rank.

    Kinds of layer are taken to be spread evenly over the stages.
    """
    kinds = [(block.count, layer_parameters(model, block, layout)) for block in model.blocks]
    dense = sum(count * part.dense for count, part in kinds) / model.num_layers
    return Parameters(dense, sum(count * part.experts for count, part in kinds) / model.num_layers)


def embedding_parameters(model: Model, layout: Layout) -> Any:
    """Return what the first stage has besides layers: its share of the table, positions, norm."""
    table, narrow = _table(model, layout)
    norm = NORM_VECTORS[model.norm] * model.hidden_size if model.embedding_norm else 0
    return table + narrow + norm + model.learned_positions * model.hidden_size


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


def _attention(part: AnyAttention, hidden: Any, tp: Any) -> Any:
    if isinstance(part, Attention):
        return _heads(part, hidden, tp)
    if isinstance(part, LatentAttention):
        return _latent(part, hidden, tp)
    if isinstance(part, LinearAttention):
        whole = part.undivided_parameters(hidden)
        return (part.parameters(hidden) - whole) / tp + whole
    return part.parameters(hidden) / tp


def _heads(part: Attention, hidden: Any, tp: Any) -> Any:
    query = part.heads * part.head_dim / tp
    key_value = heads_per_rank(part.kv_heads, tp) * part.head_dim
    columns = query * (2 if part.output_gate else 1) + key_value * (1 if part.shared_kv else 2)
    norm = {"none": 0, "head": 2 * part.head_dim, "full": query + key_value}[part.qk_norm]
    return (
        hidden * (columns + query)
        + (columns if part.qkv_bias else 0)
        + (hidden if part.out_bias else 0)
        + (part.heads / tp if part.sinks else 0)
        + norm
    )


def _latent(part: LatentAttention, hidden: Any, tp: Any) -> Any:
    """Return the weights of latent attention: what makes heads is divided, the rest is not."""
    head_columns = part.heads * (part.qk_nope_head_dim + part.qk_rope_head_dim)
    query_from = hidden if part.q_lora_rank is None else part.q_lora_rank
    made = part.heads * (part.qk_nope_head_dim + part.v_head_dim)
    divided = (
        query_from * head_columns + part.kv_lora_rank * made + part.heads * part.v_head_dim * hidden
    )
    return part.parameters(hidden) - divided + divided / tp


def _feed_forward(part: FeedForward, hidden: Any, tp: Any) -> Any:
    inner = 2 * part.width if part.gated else part.width
    bias = inner / tp + hidden if part.bias else 0
    return hidden * (inner + part.width) / tp + bias

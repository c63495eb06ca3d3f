"""The weights of low-rank adapters on one rank (Hu et al. 2021, arXiv:2106.09685).

An adapter of rank r beside an ``i x o`` matrix has ``r (i + o)`` weights. Tensor parallelism
divides one of its two matrices as the frozen one is divided, and the other over the rank or the
output (`shardcost.program.adapters`).
"""

from __future__ import annotations

from typing import Any

from shardcost.layout import Layout
from shardcost.memory.parameters import heads_per_rank
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


class Adapted(NamedTuple):
    """A matrix that an adapter may stand beside."""

    inputs: Any
    """Columns of the input that a rank has."""
    outputs: Any
    split: str
    """How a tensor group divides it: by ``columns``, by ``rows``, or not (``whole``)."""

    def parameters(self, rank: Any, tp: Any) -> Any:
        """Return the weights of its adapter on one of `tp` ranks."""
        divided = 1 if self.split == "whole" else tp
        inputs = self.inputs / divided if self.split == "columns" else self.inputs
        outputs = self.outputs / divided if self.split == "rows" else self.outputs
        return rank * (inputs + outputs)


def adapter_parameters(model: Model, layout: Layout, work: Train) -> Any:
    """Return the adapters' weights of an average layer on one rank.

    >>> work = Train(global_batch=1, sequence_length=1, adapters=True, adapter_targets="all")
    >>> round(32 * adapter_parameters(Model.named("llama3-8b"), Layout(), work) / 1e6, 1)
    35.7
    """
    total = sum(
        block.count * each.parameters(work.adapter_rank, layout.tp)
        for block in model.blocks
        for each in adapted_matrices(block, model.hidden_size, layout.tp, work.adapter_targets)
    )
    return total / model.num_layers


def adapted_matrices(block: Block, hidden: Any, tp: Any, targets: str) -> list[Adapted]:
    """Return the matrices of a layer that have adapters, as a rank has them."""
    found = [each for mixer in block.mixers for each in _of_mixer(mixer, hidden, tp)]
    if targets == "qkv":
        return [each for each in found if each.split != "rows"]
    part = block.feed_forward
    dense = part.shared if isinstance(part, Experts) else part
    return found + (_of_feed_forward(dense, hidden, tp) if targets == "all" and dense else [])


def _of_feed_forward(part: FeedForward, hidden: Any, tp: Any) -> list[Adapted]:
    width = part.width / tp
    up = 2 * width if part.gated else width
    return [Adapted(hidden, up, "columns"), Adapted(width, hidden, "rows")]


def _of_mixer(part: AnyAttention, hidden: Any, tp: Any) -> list[Adapted]:
    if isinstance(part, LatentAttention):
        return _of_latent(part, hidden, tp)
    more: list[Adapted] = []
    if isinstance(part, Attention):
        out = part.heads * part.head_dim / tp
        key_value = heads_per_rank(part.kv_heads, tp) * part.head_dim
        columns = out * (2 if part.output_gate else 1) + key_value * part.kv_projections
        if part.q_rank is not None:
            columns = columns - out + part.q_rank
            more = [Adapted(part.q_rank, out, "columns")]
    elif isinstance(part, LinearAttention):
        out, columns = part.value_size / tp, part.input_columns / tp + part.low_rank
    else:
        out = part.inner_size / tp
        heads = (2 * part.groups * part.state_size + part.heads) / tp if part.heads else 0
        columns = 2 * out + heads
    return [Adapted(hidden, columns, "columns"), *more, Adapted(out, hidden, "rows")]


def _of_latent(part: LatentAttention, hidden: Any, tp: Any) -> list[Adapted]:
    heads, rank = part.heads / tp, part.q_lora_rank
    query = heads * (part.qk_nope_head_dim + part.qk_rope_head_dim)
    made = heads * (part.qk_nope_head_dim + part.v_head_dim)
    queries = [Adapted(hidden, query, "columns")]
    if rank is not None:
        queries = [Adapted(hidden, rank, "whole"), Adapted(rank, query, "columns")]
    return [
        *queries,
        Adapted(hidden, part.kv_lora_rank + part.qk_rope_head_dim, "whole"),
        Adapted(part.kv_lora_rank, made, "columns"),
        Adapted(heads * part.v_head_dim, hidden, "rows"),
    ]

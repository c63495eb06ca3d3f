"""One layer on one rank: norms, parts, residual sums and the tensor-parallel sums between them."""

from __future__ import annotations

from shardcost.model import Block
from shardcost.program import attention, feed_forward
from shardcost.program.edges import norm, residual
from shardcost.program.operations import Elementwise, Gemm, Operations, Passes, together
from shardcost.program.setting import Setting, enter, leave


def layer(s: Setting, block: Block) -> Passes:
    """Return one layer of a block, with what is computed again in the backward pass."""
    parts = _side_by_side(s, block) if block.parallel else _one_after_the_other(s, block)
    whole = together(*parts)
    if s.layout.recompute == "full" and s.training:
        return whole._replace(recompute=whole.forward)
    if s.layout.recompute == "selective" and s.software.selective == "gemm" and s.training:
        return whole._replace(recompute=_every_second_product(whole.forward))
    return whole


def _every_second_product(forward: Operations) -> Operations:
    halves = (op._replace(count=op.count / 2) for op in forward if isinstance(op, Gemm))
    return (*halves, *(op for op in forward if isinstance(op, Elementwise)))


def _one_after_the_other(s: Setting, block: Block) -> list[Passes]:
    pieces: list[Passes] = []
    if block.attention is not None:
        pieces += [
            norm(s, "norm"),
            enter(s, *attention.first_products(block.attention)),
            attention.attention_part(s, block.attention),
            leave(s, attention.OUT),
            residual(s),
        ]
    if block.feed_forward is not None:
        pieces += [
            norm(s, "norm"),
            enter(s, *feed_forward.first_products(block.feed_forward)),
            feed_forward.feed_forward_part(s, block.feed_forward),
            leave(s, feed_forward.last_product(block.feed_forward)),
            residual(s),
        ]
    return pieces


def _side_by_side(s: Setting, block: Block) -> list[Passes]:
    """Return a parallel block: both parts read one norm, and one sum ends both (GPT-J, 2021)."""
    if block.attention is None or block.feed_forward is None:
        return _one_after_the_other(s, block)
    first = attention.first_products(block.attention)
    return [
        norm(s, "norm"),
        enter(s, *first, *feed_forward.first_products(block.feed_forward)),
        attention.attention_part(s, block.attention),
        feed_forward.feed_forward_part(s, block.feed_forward),
        leave(s, feed_forward.last_product(block.feed_forward)),
        residual(s),
    ]

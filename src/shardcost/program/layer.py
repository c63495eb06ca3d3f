"""One layer on one rank: norms, parts, residual sums and the tensor-parallel sums between them."""

from __future__ import annotations

from shardcost.arrays import smallest
from shardcost.model import Block, Experts, LatentAttention
from shardcost.program import attention, feed_forward
from shardcost.program.edges import norm, residual
from shardcost.program.operations import (
    Collective,
    Elementwise,
    Gemm,
    Operations,
    OpId,
    Passes,
    together,
)
from shardcost.program.setting import Setting, enter, leave


def layer(s: Setting, block: Block) -> Passes:
    """Return one layer of a block, with what is computed again in the backward pass.

    In a parallel block both parts read one norm, and one sum ends both (GPT-J, 2021).
    """
    latent = isinstance(block.attention, LatentAttention)
    branches: list[tuple[tuple[str, ...], tuple[Passes, ...], str]] = []
    """Each with the products that read its input, its parts, and the product that ends it."""
    if block.attention is not None:
        mixers = tuple(attention.attention_part(s, part) for part in block.mixers)
        if s.training and latent and s.layout.recomputes("mla_up_proj"):
            mixers = tuple(
                part._replace(recompute=attention.up_projections(part) + part.recompute)
                for part in mixers
            )
        branches.append((attention.first_products(block.attention), mixers, attention.OUT))
    if block.feed_forward is not None:
        part = feed_forward.feed_forward_part(s, block.feed_forward, beside_latent=latent)
        if block.parallel and not isinstance(block.feed_forward, Experts):
            part = feed_forward.again(s, "mlp", part)
        up, down = feed_forward.outer_products(block.feed_forward)
        branches.append(((up,), (part,), down))
    if block.parallel and len(branches) == 2:
        (first, own, _), (others, beside, last) = branches
        branches = [((*first, *others), (*own, *beside), last)]
    whole = together(
        *(
            piece
            for first, parts, last in branches
            for piece in (
                feed_forward.again(s, "layernorm", norm(s, "norm")),
                *_summed(s, block, first, parts, last),
                residual(s),
            )
        )
    )
    if s.layout.recompute == "full" and s.training:
        return whole._replace(recompute=recomputed(s, whole))
    if s.layout.recompute == "selective" and s.software.selective == "gemm" and s.training:
        # Every second GEMM runs again.
        halves = (op._replace(count=op.count / 2) for op in whole.forward if isinstance(op, Gemm))
        passes = (op for op in whole.forward if isinstance(op, Elementwise))
        return whole._replace(recompute=(*halves, *passes))
    return whole


def recomputed(s: Setting, whole: Passes) -> Operations:
    """Return the forward work of a layer that full recomputation does again, on average.

    Where it is for some layers of a stage only, each of its operations counts by their share.
    """
    layout = s.layout
    whole = whole._replace(forward=needed_again(s, whole.forward))
    if layout.recompute_layers is None or layout.recompute_method == "uniform":
        return whole.forward
    share = smallest(1, layout.recompute_layers * layout.pp / s.num_layers)
    return tuple(op._replace(count=op.count * share) for op in whole.forward)


def needed_again(s: Setting, forward: Operations) -> Operations:
    """Return work that is computed again, without what only the next layer needs.

    The last product of a dense feed-forward part and its tensor-parallel sum have no gradient that
    depends on their result. That of experts has: the weights of their sum.
    """
    if s.software.recomputes_last:
        return forward
    last = OpId(feed_forward.DOWN)
    return tuple(
        op
        for op in forward
        if not (isinstance(op, Gemm) and op.id == last)
        and not (isinstance(op, Collective) and op.split_with == last)
    )


def _summed(
    s: Setting, block: Block, first: tuple[str, ...], parts: tuple[Passes, ...], last: str
) -> tuple[Passes, ...]:
    """Return parts with the tensor-parallel sums around them.

    With sequence parallelism experts have none: each rank sends its own tokens to them.
    """
    apart = last == feed_forward.DOWN and not block.parallel
    # An adapter reads the gathered input in 16 bits.
    adapted = s.frozen and (not apart or s.adapter_targets == "all")
    if apart:
        whole = together(enter(s, *first, wide=adapted), *parts, leave(s, last))
        again = feed_forward.again(s, "mlp", whole)
        return (again._replace(recompute=needed_again(s, again.recompute)),)
    routed = isinstance(block.feed_forward, Experts) and last == feed_forward.EXPERT_DOWN
    if routed and s.layout.sequence_parallel and not block.parallel:
        return parts
    return (enter(s, *first, wide=adapted), *parts, leave(s, last))

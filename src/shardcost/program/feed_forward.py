"""The feed-forward part of a layer on one rank, dense or a mixture of experts.

Dense: column-parallel up (and gate), row-parallel down (Shoeybi et al. 2019, arXiv:1909.08053).
Experts: a router, an all-to-all that sends each token to its experts' ranks, their products, and an
all-to-all back (Lepikhin et al. 2020, GShard, arXiv:2006.16668).
"""

from __future__ import annotations

from typing import Any

from shardcost.arrays import ceil_div, largest, smallest
from shardcost.memory.parameters import expert_tensor_degree
from shardcost.model import AnyFeedForward, Experts, FeedForward
from shardcost.program.operations import Collective, Elementwise, Passes, together
from shardcost.program.setting import Setting, linear, matrix

UP, DOWN = "MLP up", "MLP down"
EXPERT_UP, EXPERT_DOWN = "expert up", "expert down"


def feed_forward_part(s: Setting, part: AnyFeedForward) -> Passes:
    """Return the feed-forward part of a layer, without its norm and its tensor-parallel sums."""
    if isinstance(part, Experts):
        return _experts(s, part)
    return _dense(s, part, UP, DOWN)


def outer_products(part: AnyFeedForward) -> tuple[str, str]:
    """Return the names of the products that read the part's input and that yield its output."""
    return (EXPERT_UP, EXPERT_DOWN) if isinstance(part, Experts) else (UP, DOWN)


def _dense(s: Setting, part: FeedForward, up: str, down: str) -> Passes:
    width = part.width / s.layout.tp
    inner = 2 * width if part.gated else width
    return together(
        linear(s, up, s.hidden, inner, bias=part.bias),
        activation(s, s.tokens, width, gated=part.gated),
        linear(s, down, width, s.hidden, bias=part.bias),
    )


def activation(s: Setting, tokens: Any, width: Any, *, gated: bool) -> Passes:
    """Return the activation between the matrices: what it reads and writes."""
    size = tokens * width * s.element_bytes
    apart = gated and not s.software.fused_elementwise  # the activation, then the gate's product
    kernels = 2 if apart else 1
    forward = Elementwise("activation", size * ((5 if apart else 3) if gated else 2), kernels)
    moved = (8 if apart else 5) if gated else 3
    backward = (Elementwise("activation gradient", size * moved, kernels),) if s.training else ()
    return Passes((forward,), backward)


def _experts(s: Setting, part: Experts) -> Passes:
    """Return router, dispatch, the rank's experts, combine, and the shared expert beside them.

    Each rank of the expert group has as many tokens as the others, so it receives as many as it
    sends; the fullest rank `imbalance` times as many.
    """
    # The tensor group holds the same tokens; where the expert group reaches into it, each of its
    # ranks sends its own part of them.
    tokens = s.tokens * expert_tensor_degree(s.layout) / s.layout.tp
    routed = tokens * part.top_k
    pieces = [
        linear(s, "router", s.hidden, part.count, tokens),
        _exchange(s, "dispatch", routed),
        _expert_products(s, part, routed * s.layout.imbalance),
        _exchange(s, "combine", routed),
    ]
    if part.shared is not None:
        pieces.append(_dense(s, part.shared, "shared expert up", "shared expert down"))
    return together(*pieces)


def _exchange(s: Setting, name: str, routed_tokens: Any) -> Passes:
    """Return one all-to-all of routed tokens with the pass that sorts them by expert."""
    size = routed_tokens * s.hidden * s.element_bytes
    sort = Elementwise(f"{name} permute", 2 * size)
    ep = s.layout.ep
    if isinstance(ep, int) and ep == 1:
        return Passes((sort,), (sort,) if s.training else ())
    send = Collective(name, "all_to_all", size, "ep", ep)
    back = (send._replace(name=f"{name} gradient"), sort) if s.training else ()
    return Passes((sort, send), back)


def _expert_products(s: Setting, part: Experts, routed_tokens: Any) -> Passes:
    experts = part.count / s.layout.ep
    busy = smallest(experts, largest(routed_tokens, 1))  # fewer tokens than experts: some rest
    rows = ceil_div(routed_tokens, busy)
    width = part.expert.width / expert_tensor_degree(s.layout)
    inner = 2 * width if part.expert.gated else width
    return together(
        matrix(s, EXPERT_UP, rows, s.hidden, inner, s.dtype, busy),
        activation(s, routed_tokens, width, gated=part.expert.gated),
        matrix(s, EXPERT_DOWN, rows, width, s.hidden, s.dtype, busy),
    )

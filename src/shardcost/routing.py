"""How tokens spread over experts, and experts over ranks: expected loads.

With `experts` experts of which each token visits `top_k`, chosen at random, an expert has at least
one of `tokens` tokens with probability ``1 - (1 - top_k / experts)^tokens``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from shardcost.arrays import largest, log2, smallest, sqrt


DISPATCHERS: Final = ("nccl", "allgather", "deepep", "trtllm", "pplx", "mori", "uccl")
"""What carries tokens to the ranks of their experts."""
EXPERT_OVERLAPS: Final = ("none", "two_batch", "1f1b")
"""What hides that: nothing, the other half of a batch, a micro-batch in the opposite pass."""
_LN2: Final = 0.6931471805599453


class ExpertLoad(NamedTuple):
    """The load of one rank's experts."""

    active: Any
    """Experts with at least one token."""
    fullest: Any
    """Rows of the fullest expert."""


def expert_load(tokens: Any, experts: Any, top_k: Any, held: Any) -> ExpertLoad:
    """Return the expected load of a rank that holds some experts, under random routing.

    Args:
        tokens: That the whole expert group routes.
        experts: Of the layer.
        top_k: Experts that a token visits.
        held: Experts of the rank.
    """
    share = top_k / experts
    active = held * (1 - (1 - share) ** tokens)
    mean = tokens * share
    fullest = mean + sqrt(2 * mean * _LN2 * log2(largest(held, 2)))
    return ExpertLoad(largest(active, smallest(1, tokens)), smallest(largest(fullest, 1), tokens))

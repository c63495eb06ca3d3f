"""How many rows the experts of one rank get: in all, on how many experts, and on the fullest.

A router sends each of `tokens` to `top_k` of `experts`; a rank of an expert-parallel group of `ep`
holds ``experts / ep`` of them. Four ways to spread them:

* ``even``: every expert gets the same, as benchmarks with balanced input have it.
* ``random``: every choice is as likely as another. One expert is missed by all tokens with
  probability ``(1 - top_k / experts)^tokens``.
* ``skewed``: some experts are chosen more often than others, as trained routers do. Popularity is
  log-normal; its spread is the model's (`shardcost.model.Experts.skew`). Few tokens then touch
  fewer experts than at random; ranks get what they would get at random.
* ``power_law``: the popularity of experts follows a power law of exponent `alpha`, cut off where
  the most popular one would get nearly every token.

Except for ``even``, the rank is the one with the most rows: it sets the pace of its group.
Everything takes numbers or arrays that broadcast.
"""

from __future__ import annotations

from typing import Any, Final

from shardcost.arrays import ceil, exp, largest, log2, once_each, smallest, sqrt
from shardcost.checks import is_array
from shardcost.errors import UnknownNameError
from shardcost.records import NamedTuple

ROUTINGS: Final = ("even", "random", "skewed", "power_law")
DISPATCH_LIBRARIES: Final = ("deepep", "hybridep", "trtllm", "pplx", "mori", "uccl")
"""Libraries with kernels for dispatch and combine (``catalog/tuner/dispatch.toml``)."""
SORTING_LIBRARIES: Final = ("hybridep",)
"""Those whose kernels write tokens in the order of their experts, and read them so: HybridEP fuses
the permutation (DeepEP, branch hybrid-ep, README)."""
DISPATCHERS: Final = ("nccl", "allgather", *DISPATCH_LIBRARIES)
"""What carries tokens to their experts: all-to-alls of NCCL, an all-gather, or kernels."""
EXPERT_OVERLAPS: Final = ("none", "two_batch", "1f1b")
"""What hides that: nothing, the other half of a batch, a micro-batch in the opposite pass."""
_LN2: Final = 0.6931471805599453
_MOST_SHARE: Final = 0.8
"""Share of all tokens at which the power law is cut off."""
_POINTS: Final = 8
"""Points at which the popularity of experts is averaged."""
_NORMAL: Final = (-1.5341, -0.8871, -0.4888, -0.1573, 0.1573, 0.4888, 0.8871, 1.5341)
"""Quantiles of the normal distribution at the middles of eighths."""


class ExpertLoad(NamedTuple):
    """What the experts of one rank work on."""

    pairs: Any
    """Token-expert pairs: rows of all its experts together."""
    active: Any
    """Experts with at least one row."""
    busiest: Any
    """Rows of the fullest expert."""


def expert_load(
    tokens: Any,
    experts: Any,
    top_k: Any,
    ep: Any = 1,
    *,
    routing: str = "random",
    alpha: float = 1.2,
    skew: float = 0.0,
) -> ExpertLoad:
    """Return the expected load of the experts of one rank.

    >>> load = expert_load(32, 256, 8)
    >>> load.pairs, round(load.active)
    (256.0, 163)

    Args:
        tokens: Tokens of the whole expert-parallel group.
        experts: Experts of the layer.
        top_k: Experts that a token goes to.
        ep: Ranks that share the experts.
        routing: One of `ROUTINGS`.
        alpha: Exponent of the power law.
        skew: Spread of the popularity where routing is skewed.
    """
    if routing == "even":
        return _even(tokens, experts, top_k, ep)
    if routing in ("random", "skewed"):
        return _random(tokens, experts, top_k, ep, skew if routing == "skewed" else 0.0)
    if routing == "power_law":
        return _power_law(tokens, experts, top_k, ep, alpha)
    raise UnknownNameError("routing", routing, ROUTINGS)


def distinct_experts(tokens: Any, experts: Any, top_k: Any, skew: float = 0.0) -> Any:
    """Return how many experts at least one of some tokens is expected to choose.

    >>> round(distinct_experts(1, 256, 8)), round(distinct_experts(128, 256, 8))
    (8, 252)
    >>> round(distinct_experts(128, 256, 8, skew=1.0))
    216

    Args:
        tokens: Tokens that choose.
        experts: Experts of the layer.
        top_k: Experts that each chooses.
        skew: Standard deviation of the logarithm of an expert's popularity; 0: all alike.
    """
    share = top_k / experts
    if skew == 0:
        return experts * (1 - (1 - share) ** tokens)
    popularity = [exp(skew * quantile) for quantile in _NORMAL]
    unit = share * len(_NORMAL) / sum(popularity)

    def missed(tokens: Any) -> Any:
        return sum((1 - smallest(unit * one, 1.0)) ** tokens for one in popularity)

    # Layouts of an array have few different numbers of tokens.
    alone = missed(tokens) if is_array(unit) else once_each(missed, tokens)
    return experts * (1 - alone / len(_NORMAL))


def _even(tokens: Any, experts: Any, top_k: Any, ep: Any) -> ExpertLoad:
    pairs = largest(tokens * top_k / ep, 1.0)
    active = smallest(experts / ep, pairs)
    return ExpertLoad(pairs, active, ceil(pairs / active))


def _random(tokens: Any, experts: Any, top_k: Any, ep: Any, skew: float) -> ExpertLoad:
    """Return the load where choices are independent: the maximum of n sums is a known excess.

    Of n variables of spread s about a mean, the largest is expected near ``s sqrt(2 ln n)`` above.
    """
    here = experts / ep
    active = distinct_experts(tokens, experts, top_k, skew) / ep
    mean, per_expert = tokens * top_k / ep, tokens * top_k / experts
    most = smallest(tokens * smallest(top_k, here), tokens * top_k)
    pairs = smallest(mean + sqrt(2 * _ln(ep) * mean * (1 - 1 / ep)), most)
    spread = sqrt(2 * _ln(here) * per_expert * (1 - top_k / experts))
    busiest = smallest(largest(per_expert + spread, pairs / active), tokens)
    return ExpertLoad(largest(pairs, active), active, largest(busiest, 1.0))


def _power_law(tokens: Any, experts: Any, top_k: Any, ep: Any, alpha: float) -> ExpertLoad:
    """Return the load where popularity is ``x^-alpha``, from 1 to a share of the tokens.

    Popularity of the expert at quantile u: ``x(u) = (1 - (1 - m^(1 - alpha)) u)^(1 / (1 - alpha))``
    for the cut-off m.
    """
    if abs(alpha - 1) < 1e-3 or abs(alpha - 2) < 1e-3:
        alpha += 2e-3  # both have a logarithm in place of a power
    here, one = experts / ep, 1 - alpha
    cut = largest(_MOST_SHARE * tokens, 1.5)
    floor = cut**one
    mean = (cut ** (2 - alpha) - 1) / (2 - alpha) * one / (floor - 1)
    per_expert = tokens * top_k / experts

    def rows_at(quantile: Any) -> Any:
        return per_expert * (1 - (1 - floor) * quantile) ** (1 / one) / mean

    touched = sum(
        1 - (1 - smallest(rows_at((i + 0.5) / _POINTS) / tokens, 1.0)) ** tokens
        for i in range(_POINTS)
    )
    busiest = smallest(largest(rows_at(experts / (experts + 1)), 1.0), tokens)
    others = (tokens * top_k - busiest) / largest(experts - 1, 1)
    # The fullest rank has the most popular expert, or several popular ones: the largest of `ep`
    # sums of loads whose spread is that of the power law.
    square = (cut ** (3 - alpha) - 1) / (3 - alpha) * one / (floor - 1)
    spread = sqrt(largest(square / (mean * mean) - 1, 0.0) * here * (1 - 1 / ep))
    several = per_expert * (here + sqrt(2 * _ln(ep)) * spread)
    pairs = smallest(largest(busiest + (here - 1) * others, several), tokens * top_k)
    active = smallest(largest(here * touched / _POINTS, 1.0), pairs)
    return ExpertLoad(pairs, active, busiest)


def _ln(value: Any) -> Any:
    return _LN2 * log2(largest(value, 1.0))

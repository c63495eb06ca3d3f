"""The closed form: a deployment under a steady load, on arrays of rates or users.

By Little's law the mean batch of a worker is what arrives in a second times how long it decodes::

    n = rate x steps of an output x seconds of a step of n sequences and the prompts beside them

`simulate` follows every request instead; the two agree where requests do not come in bursts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from shardcost.errors import UsageError
from shardcost.load.deployment import Deployment
from shardcost.load.requests import Lengths
from shardcost.load.result import Limits

LIMITS: Final = ("arrivals", "KV room", "max_num_seqs", "tokens of a step", "TTFT", "TPOT", "E2E")
"""What bounds the load: words of `Steady.limit` and `Capacity.limit`."""


@dataclass(frozen=True, eq=False)
class Steady:
    """A deployment under a steady load. Figures are numbers, or arrays of the loads' shape."""

    ttft_s: Any
    """Mean over requests."""
    ttft_p90_s: Any
    tpot_s: Any
    """Mean over requests."""
    tpot_p90_s: Any
    e2e_s: Any
    """Mean over requests."""
    requests_per_s: Any
    """Served: the rate of arrivals, or what the deployment holds where that is less."""
    output_tokens_per_s: Any
    running: Any
    """Mean count of sequences that decode, of all workers."""
    waiting: Any
    """Mean count of requests that are not admitted yet."""
    kv_share: Any
    """Of the KV cache, the mean in use."""
    utilisation: Any
    """Rate over the highest one that is held."""
    saturated: Any
    """Whether more arrives than the deployment holds; latencies are infinite there."""
    limit: Any
    """What bounds the load, one of `LIMITS`: ``arrivals`` below saturation."""


@dataclass(frozen=True, eq=False)
class Capacity:
    """The highest Poisson rate that a deployment holds."""

    requests_per_s: float
    limit: str
    """What bounds it, one of `LIMITS`."""
    steady: Steady
    """The load there."""


def steady(
    deployment: Deployment,
    *,
    prompt: Lengths,
    output: Lengths,
    rate_per_s: Any = None,
    users: Any = None,
    requests: Any = None,
    prefix_tokens: int = 0,
) -> Steady:
    """Return how a deployment fares under Poisson arrivals, or with users that always wait for one.

    Args:
        deployment: What serves.
        prompt: Tokens of prompts.
        output: Tokens of outputs.
        rate_per_s: Poisson arrivals in a second; a number or an array. This or `users`.
        users: Each sends its next request when its last one ends; a number or an array.
        requests: With `users`: how many are sent in all, which begin with a burst of all users'.
            Without, the burst at the start is left out.
        prefix_tokens: Of every prompt, the tokens that all begin with.
    """
    if (rate_per_s is None) == (users is None):
        raise UsageError("a steady load has either rate_per_s or users")
    raise NotImplementedError(deployment, prompt, output, requests, prefix_tokens)


def capacity(
    deployment: Deployment,
    *,
    prompt: Lengths,
    output: Lengths,
    limits: Limits | None = None,
    prefix_tokens: int = 0,
) -> Capacity:
    """Return the highest Poisson rate that a deployment holds, within limits at their percentile.

    Args:
        deployment: What serves.
        prompt: Tokens of prompts.
        output: Tokens of outputs.
        limits: Of latency; the highest rate at which queues do not grow where None.
        prefix_tokens: Of every prompt, the tokens that all begin with.
    """
    raise NotImplementedError(deployment, prompt, output, limits, prefix_tokens)

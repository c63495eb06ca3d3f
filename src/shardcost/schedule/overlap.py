"""Closed forms of hiding: how much longer compute takes with communication running beside it.

Each form is exact for equal parts on two streams that work in order; the tests run the recurrence.
All arguments are seconds or counts, plain numbers or arrays that broadcast.
"""

from __future__ import annotations

from typing import Any, Final

from shardcost.arrays import largest, smallest
from shardcost.records import NamedTuple
from shardcost.schedule.work import Seconds

_INSTANT_S: Final = 1e-30
"""Keeps shares of compute without any work finite."""


def hidden(comm_s: Seconds, compute_s: Seconds, share: Any = 1.0) -> Seconds:
    """Return how much of a communication hides behind compute of which a `share` can hide it.

    >>> hidden(3.0, 4.0, share=0.5)
    2.0
    """
    return smallest(comm_s, share * compute_s)


def beside(compute_s: Seconds, comm_s: Seconds, slowed_compute_s: Seconds | None = None) -> Seconds:
    """Return the time of a compute and a communication that start together.

    Communication takes compute units and memory bandwidth. `slowed_compute_s` is what the compute
    would take with communication beside it all along; once that is over, it goes on at full rate.

    >>> beside(4.0, 2.0, 5.0)
    4.4
    """
    if slowed_compute_s is None:
        return largest(compute_s, comm_s)
    return largest(comm_s, compute_s + comm_s * (1 - compute_s / slowed_compute_s))


def chunked(
    product_s: Seconds, comm_s: Seconds, chunks: Any, slowed_product_s: Seconds | None = None
) -> Seconds:
    """Return the time of `chunks` products whose communication runs behind their neighbours.

    A product that needs gathered operands (or whose result is scattered) is cut into chunks; the
    communication of one chunk runs while another is computed, so only that of the first (or last)
    chunk is exposed in full::

        product + comm + (chunks - 1) max(product, comm)

    (Wang et al., Overlap communication with dependent computation via decomposition, ASPLOS 2023).

    Args:
        product_s: One chunk's product; small products run less well than a whole one.
        comm_s: One chunk's communication.
        chunks: How many there are.
        slowed_product_s: See `beside`.
    """
    return product_s + comm_s + (chunks - 1) * beside(product_s, comm_s, slowed_product_s)


def layered(gather_s: Seconds, compute_s: Seconds, layers: Any, lost_share: Any = 0.0) -> Seconds:
    """Return the time of `layers` whose weights are gathered, each behind the layer before it.

    One layer's gather and compute are given. The first gather is exposed (Zhao et al., PyTorch
    FSDP, 2023, arXiv:2304.11277, with one layer prefetched). Beside a gather, compute loses a share
    of its rate to the kernel that sends.

    >>> layered(1.0, 4.0, 3), layered(1.0, 4.0, 3, lost_share=0.25)
    (13.0, 13.5)
    """
    slowed_s = largest(compute_s, _INSTANT_S) / (1 - lost_share)
    return chunked(compute_s, gather_s, layers, slowed_s)


def ring_attention(
    compute_s: Seconds, transfer_s: Seconds, ranks: Any, slowed_compute_s: Seconds | None = None
) -> Seconds:
    """Return the time of attention whose keys and values go round a ring of `ranks`.

    In each of `ranks` steps a rank computes with the block it has while the next one arrives; the
    last step waits for none (Liu et al., Ring attention, 2023, arXiv:2310.01889).
    """
    return (ranks - 1) * beside(compute_s, transfer_s, slowed_compute_s) + compute_s


class BehindBackward(NamedTuple):
    """What reducing gradients beside the backward adds to it, in seconds."""

    exposed_s: Seconds
    """After the backward has ended."""
    slowed_s: Seconds
    """By which the backward itself is longer."""


def behind_backward(
    backward_s: Seconds, bucket_s: Seconds, buckets: Any, slowdown: Any = 1.0
) -> BehindBackward:
    """Return what is left of `buckets` reductions that start as a backward produces them.

    Bucket i of k is ready at i/k of the backward B and takes r seconds, one after the other:
    ``end_i = max(ready_i, end_(i-1)) + r``. The stream is either always ahead of the backward or,
    once behind, always behind, so ``end_k = max(B + r, B/k + k r)``.

    While a reduction runs it takes compute units and memory bandwidth, and the backward proceeds
    at a rate of 1/slowdown. The k - 1 intervals between buckets then take
    ``B/k + min(r, slowdown B/k) (1 - 1/slowdown)`` each.

    >>> behind_backward(10.0, 2.0, 10)
    BehindBackward(exposed_s=11.0, slowed_s=0.0)
    """
    part = backward_s / buckets
    slowed = (buckets - 1) * smallest(bucket_s, slowdown * part) * (1 - 1 / slowdown)
    behind = buckets * bucket_s - (backward_s - part) - slowed
    return BehindBackward(largest(bucket_s, behind), slowed)


def before_forward(forward_s: Seconds, bucket_s: Seconds, buckets: Any) -> Seconds:
    """Return for how long a forward waits for weights that arrive in buckets from its start on.

    The mirror image of `behind_backward`: part i of k of the forward needs bucket i.

    >>> before_forward(10.0, 2.0, 10)
    11.0
    """
    return largest(bucket_s, buckets * bucket_s - forward_s * (buckets - 1) / buckets)

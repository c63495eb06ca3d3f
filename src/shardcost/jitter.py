"""Jitter: how much longer the slowest of many ranks takes, and how single times scatter.

Ranks that wait for each other go at the pace of the slowest. With times that scatter normally about
their mean, the expected largest of N is at most sqrt(2 ln N) standard deviations away (Boucheron,
Lugosi and Massart, Concentration Inequalities, 2013, theorem 2.5), and approaches that as N grows:
`slowest_of`. N counts nodes: hosts, power and cooling differ between them, while runs on 1 to 8
GPUs of one node show no such growth.

From one step to the next the whole run scatters, whatever its size: `over_median`, a normal
distribution's quantile. Delays inside a network are rarer and longer: their distribution has a
heavy tail, P(delay > x) ~ x^-a, of which the largest of N grows as N^(1/a) (Agarwal, Garg and
Vishnoi, The Impact of Noise on the Scaling of Collectives, HiPC 2005). So do its percentiles: what
a share q of the times exceeds goes as q^(-1/a). A delay is a smaller share of a longer transfer:
`tail_of_all_reduce`.

All take numbers or arrays; the constants are data (`shardcost.machine.constants`).
"""

from __future__ import annotations

from typing import Any, Final

from shardcost.arrays import largest, log2, sqrt

SIGMAS: Final = {90: 1.2816, 99: 2.3263}
"""Quantiles of the standard normal distribution, by percent."""
_TWO_LN_2: Final = 1.3862943611198906


def slowest_of(devices: Any, per_node: Any, spread: Any) -> Any:
    """Return how much longer ranks of the slowest node take than of the mean: 1 for one node.

    >>> slowest_of(8, 8, 0.015), round(slowest_of(16384, 8, 0.015), 3)
    (1.0, 1.059)

    Args:
        devices: How many wait for each other.
        per_node: Devices of a node.
        spread: Standard deviation of the time of one node, as a share of the mean.
    """
    nodes = largest(1.0, devices / per_node)
    return 1.0 + spread * sqrt(_TWO_LN_2 * log2(nodes))


def over_median(percent: int, scatter: Any) -> Any:
    """Return a percentile of single steps over their median.

    >>> round(over_median(99, 0.011), 4)
    1.0256

    Args:
        percent: One of `SIGMAS`.
        scatter: Standard deviation of one step, as a share of the median.
    """
    return 1.0 + SIGMAS[percent] * scatter


def tail_of_all_reduce(
    size_bytes: Any, nodes: Any, tail: Any, index: Any, half_bytes: Any, *, percent: Any = 99
) -> Any:
    """Return a percentile of single all-reduces across nodes over their median.

    >>> round(tail_of_all_reduce(0, 4, 0.1, 2.0, 2**24), 3)
    1.2
    >>> round(tail_of_all_reduce(0, 4, 0.1, 2.0, 2**24, percent=96), 3)
    1.1

    Args:
        size_bytes: Of the array.
        nodes: That take part.
        tail: What delays add to a small array for one node at the 99th percentile, as a share of
            the median.
        index: How fast the tail of the delays falls: the exponent of its power law.
        half_bytes: The size from which on delays are less than half of that share.
        percent: Which percentile, above the median.
    """
    # Of N nodes' delays one in 100 - percent is larger: nodes and percentile count alike.
    rarer = nodes / (100.0 - percent)
    return 1.0 + tail * rarer ** (1.0 / index) / (1.0 + size_bytes / half_bytes)

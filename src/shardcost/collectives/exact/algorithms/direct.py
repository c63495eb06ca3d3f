"""Direct algorithms: every rank talks to every other without a rank between them.

Behind a switch, or in a full mesh, this takes the fewest steps. One-shot and two-shot all-reduce
are the kernels of inference libraries for small and middling buffers; pairwise exchange is for
buffers so large that one partner at a time keeps the port busy.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shardcost.collectives.exact.algorithms.plan import (
    SCATTER_AND_GATHER,
    THAKUR,
    Algorithm,
    Form,
    Plan,
    mirror,
    up_and_down,
)
from shardcost.collectives.exact.schedule import Ints, Step


def all_gather(ranks: int) -> Plan:
    """Return the one step in which everyone sends its block to all others."""
    source, target = other_pairs(ranks)
    return Plan(ranks, (Step.of(source, target, source, reduces=False),))


def one_shot_all_reduce(ranks: int) -> Plan:
    """Return the one step in which everyone sends its whole buffer to all others."""
    source, target = other_pairs(ranks)
    return Plan(1, (Step.of(source, target, 0, reduces=True),))


def all_to_all(ranks: int) -> Plan:
    """Return the one step in which everyone sends to all others what is theirs."""
    source, target = other_pairs(ranks)
    return Plan(ranks**2, (Step.of(source, target, source * ranks + target, reduces=False),))


def pairwise_all_to_all(ranks: int) -> Plan:
    """Return n - 1 steps; in step s everyone sends to the rank s further on."""
    source = np.arange(ranks)
    targets = ((source + distance) % ranks for distance in range(1, ranks))
    steps = (Step.of(source, to, source * ranks + to, reduces=False) for to in targets)
    return Plan(ranks**2, tuple(steps))


def send_recv(ranks: int) -> Plan:
    """Return the one step in which everyone sends its buffer to the next rank, the last to 0."""
    source = np.arange(ranks)
    return Plan(1, (Step.of(source, (source + 1) % ranks, 0, reduces=False),))


def other_pairs(ranks: int) -> tuple[Ints, Ints]:
    """Return the sources and the targets of all ordered pairs of different ranks."""
    source, target = np.divmod(np.arange(ranks**2), ranks)
    apart = source != target
    return source[apart], target[apart]


_AT_ONCE: Final = (Form("1", "(n - 1)/n", "1/n", wire="1/n"),)
_TO_ALL: Final = "everyone sends to everyone what it must, in one step"

ALGORITHMS: Final = (
    Algorithm(
        "all_reduce",
        "one_shot",
        one_shot_all_reduce,
        (Form("1", "n - 1", wire="1"),),
        "everyone sends its whole buffer to everyone",
    ),
    Algorithm(
        "all_reduce",
        "two_shot",
        up_and_down(all_gather),
        (Form("2", "2*(n - 1)/n", "2/n", wire="2/n"),),
        "every block goes to its owner, and the sum from there to all",
        phases=SCATTER_AND_GATHER,
    ),
    Algorithm("reduce_scatter", "direct", mirror(all_gather), _AT_ONCE, _TO_ALL),
    Algorithm("all_gather", "direct", all_gather, _AT_ONCE, _TO_ALL),
    Algorithm("all_to_all", "direct", all_to_all, _AT_ONCE, _TO_ALL),
    Algorithm(
        "all_to_all",
        "pairwise",
        pairwise_all_to_all,
        (Form("n - 1", "(n - 1)/n", "1/n"),),
        "everyone sends to everyone, one partner at a time",
        THAKUR,
    ),
    Algorithm(
        "send_recv",
        "direct",
        send_recv,
        (Form("1", "1"),),
        "everyone sends its buffer to the next rank",
    ),
)

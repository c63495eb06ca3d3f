"""Direct algorithms: every rank talks to every other without a rank between them.

Behind a switch, or in a full mesh, this takes the fewest steps. One-shot and two-shot all-reduce
are the kernels of inference libraries for small and middling buffers; pairwise exchange, for
buffers so large that one partner at a time keeps the port busy, is in Thakur, Rabenseifner, Gropp,
2005, "Optimization of collective communication operations in MPICH".
"""

from __future__ import annotations

import numpy as np

from shardcost.collectives.exact.algorithms.plan import Plan, in_turn, mirrored
from shardcost.collectives.exact.schedule import Ints, Step


def all_gather(ranks: int) -> Plan:
    """Return the one step in which everyone sends its block to all others."""
    source, target = other_pairs(ranks)
    return Plan(ranks, (Step.of(source, target, source, reduces=False),))


def reduce_scatter(ranks: int) -> Plan:
    """Return the one step in which everyone sends each block to its owner."""
    return mirrored(all_gather(ranks))


def one_shot_all_reduce(ranks: int) -> Plan:
    """Return the one step in which everyone sends its whole buffer to all others."""
    source, target = other_pairs(ranks)
    return Plan(1, (Step.of(source, target, 0, reduces=True),))


def two_shot_all_reduce(ranks: int) -> Plan:
    """Return the direct reduce-scatter, then the direct all-gather."""
    return in_turn(reduce_scatter(ranks), all_gather(ranks))


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

"""Reduction and replication in the switch: participant n is a switch that can add and multicast.

NVLS (Klenk, Jiang, Thorson, Dennison, 2020, "An in-network architecture for accelerating
shared-memory multiprocessor collectives"): each rank works on the block it owns. It loads the
block through the switch, which adds up what all ranks hold, and stores the sum through the switch,
which hands it to all. A rank's link carries M (1 + 1/n) bytes each way.

SHARP (Graham et al., 2016, "Scalable hierarchical aggregation protocol (SHArP): a hardware
architecture for efficient data reduction"): everyone sends its buffer to the switch, and gets the
sum from it: M bytes each way.

The buffer is cut into pieces so that the ways up and down are busy at the same time.
"""

from __future__ import annotations

import numpy as np

from shardcost.collectives.exact.algorithms.plan import Plan, in_turn, pipelined
from shardcost.collectives.exact.schedule import Step


def nvls_all_reduce(ranks: int, pieces: int) -> Plan:
    """Return the load of sums by their owners, then the multicast of the sums."""
    return pipelined(in_turn(_loaded(ranks), _multicast(ranks)), pieces)


def nvls_reduce_scatter(ranks: int, pieces: int) -> Plan:
    """Return the load alone: every rank gets the sum of its block."""
    return pipelined(_loaded(ranks), pieces)


def nvls_all_gather(ranks: int, pieces: int) -> Plan:
    """Return the multicast alone: every rank stores its block to all."""
    return pipelined(_multicast(ranks), pieces)


def sharp_all_reduce(ranks: int, pieces: int) -> Plan:
    """Return the whole buffer's way up to the switch and down again."""
    rank = np.arange(ranks)
    up = Step.of(rank, ranks, 0, reduces=True)
    down = Step.of(ranks, rank, 0, reduces=False)
    return pipelined(Plan(1, (up, down), switches=1), pieces)


def _loaded(ranks: int) -> Plan:
    rank = np.arange(ranks)
    up = Step.of(rank[:, None], ranks, rank, reduces=True)
    down = Step.of(ranks, rank, rank, reduces=False)
    return Plan(ranks, (up, down), switches=1)


def _multicast(ranks: int) -> Plan:
    rank = np.arange(ranks)
    up = Step.of(rank, ranks, rank, reduces=False)
    # The hardware serves the sender too: a multicast group is all of its ranks.
    down = Step.of(ranks, rank[:, None], rank, reduces=False)
    return Plan(ranks, (up, down), switches=1)

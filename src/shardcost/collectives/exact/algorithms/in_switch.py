"""Reduction and replication in the switch: participant n is a switch that can add and multicast.

NVLS: each rank works on the block it owns. It loads the block through the switch, which adds up
what all ranks hold, and stores the sum through the switch, which hands it to all. A rank's link
carries M (1 + 1/n) bytes each way.

SHARP: everyone sends its buffer to the switch, and gets the sum from it: M bytes each way.

The buffer is cut into pieces so that the ways up and down are busy at the same time.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from shardcost.collectives.exact.algorithms.plan import Algorithm, Form, Plan, in_turn, pipelined
from shardcost.collectives.exact.schedule import Step


def nvls_all_reduce(ranks: int, pieces: int) -> Plan:
    """Return the load of sums by their owners, then the multicast of the sums."""
    return pipelined(in_turn(_loaded(ranks), _multicast(ranks)), pieces)


def sharp_all_reduce(ranks: int, pieces: int) -> Plan:
    """Return the whole buffer's way up to the switch and down again."""
    rank = np.arange(ranks)
    up = Step.of(rank, ranks, 0, reduces=True)
    down = Step.of(ranks, rank, 0, reduces=False)
    return pipelined(Plan(1, (up, down), switches=1), pieces)


def _loaded(ranks: int) -> Plan:
    """Return the reduce-scatter: every rank gets the sum of its block."""
    rank = np.arange(ranks)
    up = Step.of(rank[:, None], ranks, rank, reduces=True)
    down = Step.of(ranks, rank, rank, reduces=False)
    return Plan(ranks, (up, down), switches=1)


def _multicast(ranks: int) -> Plan:
    """Return the all-gather: every rank stores its block to all."""
    rank = np.arange(ranks)
    up = Step.of(rank, ranks, rank, reduces=False)
    # The hardware serves the sender too: a multicast group is all of its ranks.
    down = Step.of(ranks, rank[:, None], rank, reduces=False)
    return Plan(ranks, (up, down), switches=1)


_switched = partial(
    Algorithm,
    ranks="any number, all linked to one switch that adds up",
    takes="chunks",
    in_switch=True,
)
_KLENK: Final = (
    "Klenk, Jiang, Thorson, Dennison, 2020, An in-network architecture for accelerating"
    " shared-memory multiprocessor collectives"
)
_GRAHAM: Final = (
    "Graham et al., 2016, Scalable hierarchical aggregation protocol (SHArP): a hardware"
    " architecture for efficient data reduction"
)
_NVLS: Final = "the owner of a block loads its sum through the switch and stores it to all", _KLENK

ALGORITHMS: Final = (
    _switched(
        "all_reduce",
        "nvls",
        nvls_all_reduce,
        # A piece goes M/k up, 1/n of that down, the same up again, and M/k down; stages of
        # different pieces overlap. A large transfer is under way in each of the k + 3 steps, except
        # where one or two pieces leave a gap between the first stage and the last. A small one adds
        # to the busiest port in k - 1 steps, or fills the gap.
        (
            Form("k + 3", "2 + 2/n", "1 + 1/n", "1 + 1/n", holds=lambda at: at["k"] == 1),
            Form("k + 3", "(4 + 1/n)/k", "1 + 1/n", "1 + 1/n", holds=lambda at: at["k"] == 2),
            Form("k + 3", "(k + 3 + (k - 1)/n)/k", "1 + 1/n", "1 + 1/n"),
        ),
        *_NVLS,
    ),
    _switched(
        "all_reduce",
        "sharp",
        sharp_all_reduce,
        (Form("k + 1", "(k + 1)/k", sent="1"),),
        "the switch adds up the whole buffers and sends the sum to all",
        _GRAHAM,
    ),
    _switched(
        "reduce_scatter",
        "nvls",
        lambda ranks, pieces: pipelined(_loaded(ranks), pieces),
        (Form("k + 1", "1 + 1/(n*k)", sent="1"),),
        *_NVLS,
    ),
    _switched(
        "all_gather",
        "nvls",
        lambda ranks, pieces: pipelined(_multicast(ranks), pieces),
        (Form("k + 1", "1 + 1/(n*k)", sent="1/n"),),
        *_NVLS,
    ),
)

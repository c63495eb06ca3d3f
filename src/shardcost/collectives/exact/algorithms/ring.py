"""Rings: every rank passes on to its neighbour what it last got.

The bidirectional ring sends half of every block each way round, for links that carry both
directions at once.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shardcost.collectives.exact.algorithms.plan import (
    SCATTER_AND_GATHER,
    Algorithm,
    Form,
    Plan,
    at_once,
    in_turn,
    is_pair,
    mirror,
    mirrored,
    up_and_down,
)
from shardcost.collectives.exact.schedule import Ints, Step


def passed_around(rings: Ints, blocks: Ints) -> tuple[Step, ...]:
    """Return the steps after which everyone on a ring holds what anyone on it held.

    Args:
        rings: Ranks in the order of their ring, one row per ring.
        blocks: The chunks that each of them starts with, along a third axis.
    """
    after = np.roll(rings, -1, axis=1)[..., None]
    return tuple(
        Step.of(rings[..., None], after, np.roll(blocks, number, axis=1), reduces=False)
        for number in range(rings.shape[1] - 1)
    )


def all_gather(ranks: int) -> Plan:
    """Return the ring r, r + 1, …: block b starts at rank b."""
    return _ring(np.arange(ranks), np.arange(ranks), chunks=ranks)


def reduce_scatter(ranks: int) -> Plan:
    """Return the reduce-scatter in the same direction as `all_gather`."""
    order = np.arange(ranks)[::-1]
    return mirrored(_ring(order, order, chunks=ranks))


def all_reduce(ranks: int) -> Plan:
    """Return the reduce-scatter, then the all-gather."""
    return in_turn(reduce_scatter(ranks), all_gather(ranks))


def bidirectional_all_gather(ranks: int) -> Plan:
    """Return two rings at once: the first half of each block goes up, the second half down."""
    up, down = np.arange(ranks), np.arange(ranks)[::-1]
    chunks = 2 * ranks
    return at_once(_ring(up, 2 * up, chunks=chunks), _ring(down, 2 * down + 1, chunks=chunks))


def _ring(order: Ints, blocks: Ints, *, chunks: int) -> Plan:
    return Plan(chunks, passed_around(order[None, :], blocks[None, :, None]))


_PAPER: Final = (
    "Patarasuk, Yuan, 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations"
)
_RING: Final = (Form("n - 1", "(n - 1)/n", "(n - 1)/n"),)
_RING_TWICE: Final = (Form("2*(n - 1)", "2*(n - 1)/n", "2*(n - 1)/n"),)
_TWO_WAYS: Final = (
    Form("n - 1", "(n - 1)/n", "(n - 1)/n", holds=is_pair),  # both ways round are one link
    Form("n - 1", "(n - 1)/n", "(n - 1)/n/2", wire="(n - 1)/n/2"),
)
_TWO_WAYS_TWICE: Final = (
    Form("2*(n - 1)", "2*(n - 1)/n", "2*(n - 1)/n", holds=is_pair),
    Form("2*(n - 1)", "2*(n - 1)/n", "(n - 1)/n", wire="(n - 1)/n"),
)
_PASSED_ON: Final = "each passes on to its neighbour what it last got", _PAPER
_HALVES: Final = "half of each block goes each way round", _PAPER

ALGORITHMS: Final = (
    Algorithm(
        "all_reduce", "ring", all_reduce, _RING_TWICE, *_PASSED_ON, phases=SCATTER_AND_GATHER
    ),
    Algorithm("reduce_scatter", "ring", reduce_scatter, _RING, *_PASSED_ON),
    Algorithm("all_gather", "ring", all_gather, _RING, *_PASSED_ON),
    Algorithm(
        "all_reduce",
        "bidirectional_ring",
        up_and_down(bidirectional_all_gather),
        _TWO_WAYS_TWICE,
        *_HALVES,
        phases=SCATTER_AND_GATHER,
    ),
    Algorithm(
        "reduce_scatter",
        "bidirectional_ring",
        mirror(bidirectional_all_gather),
        _TWO_WAYS,
        *_HALVES,
    ),
    Algorithm("all_gather", "bidirectional_ring", bidirectional_all_gather, _TWO_WAYS, *_HALVES),
)

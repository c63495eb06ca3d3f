"""Recursive algorithms: partners at distance 1, 2, 4, … exchange all that they have.

Recursive doubling, recursive halving and their combination for all-reduce (Rabenseifner) need a
power of two; for other n the ranks in excess hand their data to a neighbour before, and get the
result from it afterwards ("folding"). Bruck's algorithms take ceil(log2 n) steps for any n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from shardcost.collectives.exact.algorithms.plan import (
    SCATTER_AND_GATHER,
    THAKUR,
    Algorithm,
    Form,
    Plan,
    in_turn,
    is_power_of_two,
    mirror,
    mirrored,
    powers_of_two,
)
from shardcost.collectives.exact.schedule import Ints, Step


class Folding(NamedTuple):
    """Who takes part in the exchanges, a power of two, and whom the others hand their data to.

    With e ranks in excess these are 0, 2, … 2(e - 1), and each hands over to the rank after it.
    """

    excess: Ints
    core: Ints

    @property
    def hosts(self) -> Ints:
        """The ranks that take over from those in excess, in their order."""
        return self.excess + 1


def folding(ranks: int) -> Folding:
    """Return how n ranks become a power of two.

    >>> [column.tolist() for column in folding(6)]
    [[0, 2], [1, 3, 4, 5]]
    """
    excess = 2 * np.arange(ranks - (1 << (ranks.bit_length() - 1)))
    return Folding(excess, np.setdiff1d(np.arange(ranks), excess))


def doubling_all_reduce(ranks: int) -> Plan:
    """Return the exchange of whole buffers with partners at distance 1, 2, 4, …."""
    fold = folding(ranks)
    seat = np.arange(len(fold.core))
    steps = tuple(
        Step.of(fold.core, fold.core[seat ^ distance], 0, reduces=True)
        for distance in powers_of_two(len(fold.core))
    )
    return _folded(Plan(1, steps), fold)


def halving_doubling_all_reduce(ranks: int) -> Plan:
    """Return the reduce-scatter by halving among the core, then the all-gather by doubling."""
    fold = folding(ranks)
    gather = Plan(len(fold.core), _doubled(fold.core, [[c] for c in range(len(fold.core))]))
    return _folded(in_turn(mirrored(gather), gather), fold)


def doubling_all_gather(ranks: int) -> Plan:
    """Return the exchange of all blocks gathered so far with partners at distance 1, 2, 4, …."""
    fold = folding(ranks)
    guests = dict(zip(fold.hosts.tolist(), fold.excess.tolist(), strict=True))
    blocks = [[guests[rank], rank] if rank in guests else [rank] for rank in fold.core.tolist()]
    steps = _doubled(fold.core, blocks)
    if not guests:
        return Plan(ranks, steps)
    before = Step.of(fold.excess, fold.hosts, fold.excess, reduces=False)
    missing = np.arange(ranks) != fold.excess[:, None]
    guest, chunk = np.nonzero(missing)
    after = Step.of(fold.hosts[guest], fold.excess[guest], chunk, reduces=False)
    return Plan(ranks, (before, *steps, after))


halving_reduce_scatter: Final = mirror(doubling_all_gather)
"""Partners at distance …, 4, 2, 1 exchange halves."""


def bruck_all_gather(ranks: int) -> Plan:
    """Return the steps in which rank r sends all its blocks, r, r + 1, …, to r - 1, r - 2, …."""
    rank = np.arange(ranks)[:, None]
    steps = (
        Step.of(
            rank,
            (rank - distance) % ranks,
            (rank + np.arange(min(distance, ranks - distance))) % ranks,
            reduces=False,
        )
        for distance in powers_of_two(ranks)
    )
    return Plan(ranks, tuple(steps))


def bruck_all_to_all(ranks: int) -> Plan:
    """Return the steps in which chunks travel the bits of their distance, lowest first."""
    source = np.arange(ranks)[:, None]
    away = np.arange(ranks)
    steps = []
    for distance in powers_of_two(ranks):
        moving = away[(away & distance) != 0]
        chunk = source * ranks + (source + moving) % ranks
        holder = (source + moving % distance) % ranks
        steps.append(Step.of(holder, (holder + distance) % ranks, chunk, reduces=False))
    return Plan(ranks**2, tuple(steps))


def _folded(plan: Plan, fold: Folding) -> Plan:
    """Return an all-reduce of the core with those in excess added before and served after."""
    if not len(fold.excess):
        return plan
    chunk = np.arange(plan.chunks)
    excess, hosts = fold.excess[:, None], fold.hosts[:, None]
    before = Step.of(excess, hosts, chunk, reduces=True)
    after = Step.of(hosts, excess, chunk, reduces=False)
    return plan._replace(steps=(before, *plan.steps, after))


def _doubled(core: Ints, blocks: Sequence[list[int]]) -> tuple[Step, ...]:
    """Return the all-gather by doubling among `core`, each of which starts with chunks `blocks`."""
    steps = []
    for distance in powers_of_two(len(core)):
        moves = [
            (core[seat], core[seat ^ distance], chunk)
            for seat, chunks in enumerate(blocks)
            for chunk in chunks
        ]
        source, target, chunk = np.array(moves).T
        steps.append(Step.of(source, target, chunk, reduces=False))
        blocks = [chunks + blocks[seat ^ distance] for seat, chunks in enumerate(blocks)]
    return tuple(steps)


_BRUCK: Final = (
    "Bruck, Ho, Kipnis, Upfal, Weathersby, 1997, Efficient algorithms for all-to-all communications"
    " in multiport message-passing systems"
)
_FOLDED: Final = "any number; those in excess of a power of two hand over to a neighbour first"
_EVEN: Final = Form("h", "(n - 1)/n", "1/2", holds=is_power_of_two)
# With e ranks in excess, the busiest sends 2^i blocks in round i and those of min(2^i, e) guests.
# The second adds up to 2^f - 1 while 2^i <= e, and to e in each round after. One block comes from a
# guest before, and n - 1 go back to it in the end.
_UNEVEN: Final = Form(
    "h + 2",
    "(2**h + 2**f + (h - f)*e + n - 2)/n",
    "(n - 1)/n",
    sent="(2**h + 2**f + (h - f)*e + n - 3)/n",
)
_DOUBLED: Final = "partners at distance 1, 2, 4, … exchange all they have", THAKUR, _FOLDED
_BY_BITS: Final = "blocks travel by the bits of their distance, for any number", _BRUCK
_BRUCK_FORM: Final = Form("c", "(n - 1)/n", "max(n - 2**(c - 1), 2**c/4)/n")

ALGORITHMS: Final = (
    Algorithm(
        "all_reduce",
        "recursive_doubling",
        doubling_all_reduce,
        (Form("h", "h", holds=is_power_of_two), Form("h + 2", "h + 2", sent="h + 1")),
        *_DOUBLED,
    ),
    Algorithm(
        "all_reduce",
        "halving_doubling",
        halving_doubling_all_reduce,
        (
            Form("2*h", "2*(n - 1)/n", holds=is_power_of_two),
            Form("2*h + 2", "2*(2**h - 1)/2**h + 2", sent="2*(2**h - 1)/2**h + 1"),
        ),
        "halves are exchanged and summed, then gathered by doubling (Rabenseifner)",
        THAKUR,
        _FOLDED,
        phases=SCATTER_AND_GATHER,
    ),
    Algorithm(
        "reduce_scatter",
        "recursive_halving",
        halving_reduce_scatter,
        # Backwards, everyone sends what it received: all blocks but its own.
        (_EVEN, _UNEVEN._replace(sent="(n - 1)/n")),
        "partners at distance …, 4, 2, 1 exchange halves",
        THAKUR,
        _FOLDED,
    ),
    Algorithm("all_gather", "recursive_doubling", doubling_all_gather, (_EVEN, _UNEVEN), *_DOUBLED),
    Algorithm("reduce_scatter", "bruck", mirror(bruck_all_gather), (_BRUCK_FORM,), *_BY_BITS),
    Algorithm("all_gather", "bruck", bruck_all_gather, (_BRUCK_FORM,), *_BY_BITS),
    Algorithm(
        "all_to_all",
        "bruck",
        bruck_all_to_all,
        (Form("h", "h/2", "1/2", holds=is_power_of_two), Form("c", "b/n", "m/n")),
        *_BY_BITS,
    ),
)

"""Collectives as Open MPI runs them, message by message.

Most are algorithms that are here already; these differ in who sends which chunk, so that each
rank's bytes differ wherever chunks do:

* the ring starts with a rank's own block, one further on than the ring that ends with it;
* Rabenseifner's all-reduce halves the buffer with the nearest partner first, so that the seat with
  number v ends with the chunk whose number is v read backwards in binary, and ranks in excess of a
  power of two fold in by halves (Thakur, Rabenseifner, Gropp, 2005, "Optimization of collective
  communication operations in MPICH", section 4.5);
* ranks in excess hand the whole buffer over before a reduce-scatter by halving, their own block
  with it, and get that block back when it is done;
* the all-gather by doubling is Bruck's where ranks are not a power of two;
* in a binomial reduce the nearest ranks add up first: each sends to its number without the lowest
  binary digit that is 1 (the broadcast is no mirror of it: there it is the highest);
* linear algorithms have rank 0 talk to everyone.

Open MPI cuts buffers in its own ways too, whole elements at a time: `early_first`, `halved`.
"""

from __future__ import annotations

import numpy as np

from shardcost.collectives.exact.algorithms import recursive, ring
from shardcost.collectives.exact.algorithms.plan import Plan, in_turn, mirrored, powers_of_two
from shardcost.collectives.exact.schedule import Ints, Step


def ring_all_reduce(ranks: int) -> Plan:
    """Return the ring on which rank r first sends block r."""
    plan = ring.all_reduce(ranks)
    moved = (
        Step.of(s.source, s.target, (s.chunk + 1) % ranks, reduces=s.reduces) for s in plan.steps
    )
    return plan._replace(steps=tuple(moved))


def linear_broadcast(ranks: int) -> Plan:
    """Return the one step in which rank 0 sends the buffer to everyone."""
    return Plan(1, (Step.of(0, np.arange(1, ranks), 0, reduces=False),))


def binomial_reduce(ranks: int) -> Plan:
    """Return the reduce in which ranks at distance 1, then 2, then 4, … add up."""
    steps = []
    for distance in powers_of_two(ranks):
        source = np.arange(distance, ranks, 2 * distance)
        steps.append(Step.of(source, source - distance, 0, reduces=True))
    return Plan(1, tuple(steps))


def doubling_all_gather(ranks: int) -> Plan:
    """Return the all-gather by doubling, or Bruck's where ranks are not a power of two."""
    if ranks & (ranks - 1):
        return recursive.bruck_all_gather(ranks)
    return recursive.doubling_all_gather(ranks)


def halving_reduce_scatter(ranks: int) -> Plan:
    """Return the reduce-scatter by halving, ranks in excess handing all over."""
    plan = recursive.halving_reduce_scatter(ranks)
    fold = recursive.folding(ranks)
    excess, hosts = fold.excess, fold.hosts
    if not len(excess):
        return plan
    before = Step.of(excess[:, None], hosts[:, None], np.arange(ranks), reduces=True)
    after = Step.of(hosts, excess, excess, reduces=False)
    return plan._replace(steps=(before, *plan.steps[1:-1], after))


def rabenseifner_all_reduce(ranks: int) -> Plan:
    """Return the halving of buffers at distance 1, 2, 4, …, then the way back."""
    seats = len(recursive.folding(ranks).core)
    excess = ranks - seats
    seat = np.arange(seats)
    core = np.where(seat < excess, 2 * seat, seat + excess)
    gather = Plan(seats, _gathered(core))
    halving = in_turn(mirrored(gather), gather)
    if not excess:
        return halving
    host, guest = 2 * np.arange(excess)[:, None], 2 * np.arange(excess)[:, None] + 1
    first, second = np.split(seat, 2)
    exchange = (
        np.concatenate([(host + 0 * second).ravel(), (guest + 0 * first).ravel()]),
        np.concatenate([(guest + 0 * second).ravel(), (host + 0 * first).ravel()]),
        np.concatenate([np.tile(second, excess), np.tile(first, excess)]),
    )
    before = (
        Step.of(*exchange, reduces=True),
        Step.of(guest, host, second, reduces=False),
    )
    after = Step.of(host, guest, seat, reduces=False)
    return Plan(seats, (*before, *halving.steps, after))


def early_first(elements: int, chunks: int) -> Ints:
    """Return the lengths of chunks of which the first are longer by one element.

    >>> early_first(10, 4).tolist()
    [3, 3, 2, 2]
    """
    return elements // chunks + (np.arange(chunks) < elements % chunks).astype(np.int64)


def halved(elements: int, chunks: int) -> Ints:
    """Return the lengths that halving gives, the first half rounded down; chunks a power of two.

    >>> halved(11, 8).tolist()
    [1, 1, 1, 2, 1, 2, 1, 2]
    """
    lengths = np.array([elements], dtype=np.int64)
    while len(lengths) < chunks:
        first = lengths // 2
        lengths = np.stack([first, lengths - first], axis=1).ravel()
    return lengths


def _gathered(core: Ints) -> tuple[Step, ...]:
    """Return the exchanges at distance …, 4, 2, 1 of all chunks gathered so far."""
    seats = len(core)
    seat = np.arange(seats)
    backwards = np.zeros(1, dtype=np.int64)  # each seat, its binary digits read backwards
    while len(backwards) < seats:
        backwards = np.concatenate([2 * backwards, 2 * backwards + 1])
    steps = []
    for distance in reversed(powers_of_two(seats)):
        alike = np.nonzero((seat[:, None] - seat) % (2 * distance) == 0)
        steps.append(
            Step.of(core[alike[0]], core[alike[0] ^ distance], backwards[alike[1]], reduces=False)
        )
    return tuple(steps)

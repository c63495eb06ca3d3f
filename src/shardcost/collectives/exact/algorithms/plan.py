"""What the algorithms are built of: steps over chunks, and the ways to combine them.

Most collectives need no code of their own. A reduce-scatter is an all-gather that runs backwards
and adds; a reduce is a broadcast that does; an all-reduce is the two in turn (Chan, Heimlich,
Purkayastha, van de Geijn, 2007, "Collective communication: theory, practice, and experience"); and
a pipeline is one plan started anew for every piece of the buffer.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from shardcost.collectives.exact.schedule import Step


class Plan(NamedTuple):
    """Steps over `chunks` of the buffer; what a schedule is before it has a name."""

    chunks: int
    steps: tuple[Step, ...]
    switches: int = 0


def mirrored(plan: Plan) -> Plan:
    """Return the plan run backwards and adding: what it spread from a rank, this sums up there.

    It is right for plans in which no rank gets a chunk twice, nor one that it held at the start.
    """
    back = (Step.of(s.target, s.source, s.chunk, reduces=True) for s in reversed(plan.steps))
    return plan._replace(steps=tuple(back))


def in_turn(first: Plan, second: Plan) -> Plan:
    """Return one plan after the other; both cut the buffer alike."""
    return first._replace(steps=first.steps + second.steps)


def at_once(first: Plan, second: Plan) -> Plan:
    """Return two plans run side by side, step by step; both cut the buffer alike."""
    pairs = zip_longest(first.steps, second.steps)
    return first._replace(steps=tuple(_joined(filter(None, pair)) for pair in pairs))


def pipelined(plan: Plan, pieces: int) -> Plan:
    """Return the plan started anew, one step later, for each piece of every chunk."""
    starts: list[list[Step]] = [[] for _ in range(len(plan.steps) + pieces - 1)]
    for number, step in enumerate(plan.steps):
        for piece in range(pieces):
            chunk = step.chunk * pieces + piece
            moved = Step.of(step.source, step.target, chunk, reduces=step.reduces)
            starts[number + piece].append(moved)
    return plan._replace(chunks=plan.chunks * pieces, steps=tuple(map(_joined, starts)))


def _joined(steps: Iterable[Step]) -> Step:
    """Return the transfers of all these as one step."""
    columns = zip(*((s.source, s.target, s.chunk, s.reduces) for s in steps), strict=True)
    source, target, chunk, reduces = map(np.concatenate, columns)
    return Step.of(source, target, chunk, reduces=reduces)

"""What a collective algorithm is: a list of steps, each saying who sends which chunk to whom.

A schedule is plain data. `executed` runs any of them on NumPy arrays and so proves what it
computes; the traffic of a schedule is counted, not derived. The same data drives the simulation on
a topology (`shardcost.collectives.exact.simulate`) and any picture of it.

**Chunks.** Every rank holds one buffer, cut into `chunks` pieces as even as possible (`cuts`). In
an all-to-all the buffer has room for every pair of ranks: chunk ``source * n + target``.

**Steps.** All transfers of a step read what their sources held before the step. A transfer either
replaces the target's chunk or, where `reduces`, is added to it.

**Switches.** Ranks are 0 … n-1. Participants from n on are switches that reduce or replicate what
passes through them; their buffers start at zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcost.errors import BadValueError

Ints = NDArray[np.int64]


class Transfer(NamedTuple):
    """One chunk on its way."""

    source: int
    target: int
    chunk: int
    reduces: bool


@dataclass(frozen=True, eq=False)
class Step:
    """Transfers that start together, as parallel columns."""

    source: Ints
    target: Ints
    chunk: Ints
    reduces: NDArray[np.bool_]

    @classmethod
    def of(cls, source: Any, target: Any, chunk: Any, *, reduces: Any) -> Step:
        """Return the step whose columns are these, each a number or an array that broadcasts."""
        columns = np.broadcast_arrays(source, target, chunk)
        senders, receivers, pieces = (np.array(ids, dtype=np.int64).reshape(-1) for ids in columns)
        add = np.broadcast_to(np.asarray(reduces, dtype=np.bool_), columns[0].shape).reshape(-1)
        return cls(senders, receivers, pieces, add)

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Transfer]:
        columns = (self.source, self.target, self.chunk, self.reduces)
        return map(Transfer, *(column.tolist() for column in columns))


@dataclass(frozen=True, eq=False)
class Schedule:
    """A collective among `ranks`, as a list of steps over `chunks` of the buffer."""

    collective: str
    algorithm: str
    ranks: int
    chunks: int
    steps: tuple[Step, ...]
    switches: int = 0

    @property
    def participants(self) -> int:
        """Ranks and switches together."""
        return self.ranks + self.switches


class Traffic(NamedTuple):
    """What a schedule sends, in bytes (or in elements, if the buffer is given in those)."""

    steps: int
    sent: NDArray[np.float64]
    """By participant."""
    received: NDArray[np.float64]
    """By participant."""
    links: Mapping[tuple[int, int], float]
    """By (source, target)."""


def cuts(length: int, chunks: int) -> Ints:
    """Return where chunks begin and end: chunk c is ``[cuts[c], cuts[c + 1])``.

    >>> cuts(10, 4).tolist()
    [0, 2, 5, 7, 10]
    """
    if length * chunks >= 2**63:
        raise BadValueError("length of a buffer", length, f"below 2**63 / {chunks} chunks")
    return np.arange(chunks + 1, dtype=np.int64) * length // chunks


def executed(schedule: Schedule, buffers: NDArray[Any]) -> NDArray[Any]:
    """Return what every participant holds at the end.

    Args:
        schedule: What to run.
        buffers: One row per rank: its whole buffer at the start, zero where it holds nothing.
    """
    if len(buffers) != schedule.ranks:
        raise BadValueError("buffers", len(buffers), f"one row per rank, {schedule.ranks}")
    state = np.zeros((schedule.participants, buffers.shape[1]), buffers.dtype)
    state[: schedule.ranks] = buffers
    edges = cuts(buffers.shape[1], schedule.chunks).tolist()
    for number, step in enumerate(schedule.steps):
        added: set[tuple[int, int]] = set()
        copied: set[tuple[int, int]] = set()
        on_the_way = []
        for source, target, chunk, reduces in step:
            piece = slice(edges[chunk], edges[chunk + 1])
            on_the_way.append((target, piece, reduces, state[source, piece].copy()))
            place = (target, chunk)
            if place in copied or (not reduces and place in added):
                raise BadValueError(
                    f"step {number} of {schedule.algorithm}",
                    place,
                    "written once: a copy and another transfer reach the same chunk",
                )
            (added if reduces else copied).add(place)
        for target, piece, reduces, data in on_the_way:
            state[target, piece] = state[target, piece] + data if reduces else data
    return state


def traffic(schedule: Schedule, size_bytes: int) -> Traffic:
    """Return what a schedule sends when each buffer holds `size_bytes`."""
    lengths = np.diff(cuts(size_bytes, schedule.chunks)).astype(np.float64)
    pairs = np.zeros((schedule.participants, schedule.participants))
    for step in schedule.steps:
        np.add.at(pairs, (step.source, step.target), lengths[step.chunk])
    links = {(int(a), int(b)): float(pairs[a, b]) for a, b in zip(*np.nonzero(pairs), strict=True)}
    return Traffic(len(schedule.steps), pairs.sum(axis=1), pairs.sum(axis=0), links)

"""Bytes measured on the wire against bytes that the schedule of the algorithm says, rank by rank.

Equality is exact: payload and headers are whole numbers of bytes, and TCP counts them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from shardcost.measure.job import ITEM_BYTES, Answer
from shardcost.measure.open_mpi import Wire, wire


class Totals(NamedTuple):
    """Of all ranks together: what they were to send, and what they sent."""

    payload_bytes: int
    messages: int
    header_bytes: int
    measured_bytes: int


@dataclass(frozen=True, eq=False)
class Verified:
    """One collective: what each rank was to send, and what it sent."""

    answer: Answer
    algorithm: str
    predicted: Wire

    @property
    def measured_bytes(self) -> list[int]:
        """By rank."""
        return self.answer.sent_bytes or []

    @property
    def totals(self) -> Totals:
        """Sums over ranks."""
        wanted = self.predicted
        each = (wanted.payload_bytes, wanted.messages, wanted.header_bytes, self.measured_bytes)
        return Totals(*(int(sum(by_rank)) for by_rank in each))

    @property
    def differing(self) -> list[Difference]:
        """Every rank that sent something else than the schedule says."""
        wanted, sent = self.predicted.sent_bytes.tolist(), self.measured_bytes
        told = [*sent, *[0] * (len(wanted) - len(sent))]
        return [
            Difference(rank, *pair)
            for rank, pair in enumerate(zip(told, wanted, strict=True))
            if pair[0] != pair[1] or rank >= len(sent)
        ]

    @property
    def ok(self) -> bool:
        """Whether every rank sent exactly what the schedule says."""
        return not self.differing


class Difference(NamedTuple):
    """A rank that sent something else; 0 where nothing is known of it."""

    rank: int
    measured_bytes: int
    predicted_bytes: int


def verified(answer: Answer, algorithm: str) -> Verified:
    """Return a measurement beside what the schedule says."""
    item_bytes = ITEM_BYTES[answer.dtype]
    predicted = wire(answer.collective, algorithm, answer.ranks, answer.elements, item_bytes)
    return Verified(answer, algorithm, predicted)


class Count(NamedTuple):
    """How many ranks sent exactly the bytes of their schedule, and of how many."""

    exact: int
    ranks: int


def exact_ranks(checks: Iterable[Verified]) -> Count:
    """Return how many ranks of some collectives sent what they were to send.

    >>> exact_ranks([])
    Count(exact=0, ranks=0)
    """
    counts = [(each.answer.ranks, len(each.differing)) for each in checks]
    ranks = sum(all_of for all_of, _ in counts)
    return Count(ranks - sum(wrong for _, wrong in counts), ranks)

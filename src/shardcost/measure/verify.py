"""Bytes measured on the wire against bytes that the schedule of the algorithm says, rank by rank.

Equality is exact: payload and headers are whole numbers of bytes, and TCP counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardcost.measure.job import ITEM_BYTES, Answer
from shardcost.measure.open_mpi import Wire, wire


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
    def ok(self) -> bool:
        """Whether every rank sent exactly what the schedule says."""
        return not mismatches([self])

    def as_data(self) -> dict[str, Any]:
        """Return it as plain data, by rank where that differs."""
        return {
            "ranks": self.answer.ranks,
            "collective": self.answer.collective,
            "algorithm": self.algorithm,
            "size_bytes": self.answer.size_bytes,
            "payload_bytes": self.predicted.payload_bytes.tolist(),
            "messages": self.predicted.messages.tolist(),
            "header_bytes": self.predicted.header_bytes.tolist(),
            "measured_bytes": self.measured_bytes,
            "ok": self.ok,
        }


def verified(answer: Answer, algorithm: str) -> Verified:
    """Return a measurement beside what the schedule says."""
    item_bytes = ITEM_BYTES[answer.dtype]
    predicted = wire(answer.collective, algorithm, answer.ranks, answer.elements, item_bytes)
    return Verified(answer, algorithm, predicted)


def mismatches(found: Sequence[Verified]) -> list[tuple[Verified, int]]:
    """Return each rank that sent something else, with what it was to verify."""
    return [
        (each, rank)
        for each in found
        for rank, wanted in enumerate(each.predicted.sent_bytes.tolist())
        if rank >= len(each.measured_bytes) or each.measured_bytes[rank] != wanted
    ]

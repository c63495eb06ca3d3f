"""What the ranks are to measure, and what they measured; both travel as one line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

COLLECTIVES: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
)
IN_BLOCKS: Final = ("all_gather", "reduce_scatter", "all_to_all")
"""The collectives whose buffer has one block per rank, all of the same length."""
ITEM_BYTES: Final = {
    "float": 4,
    "double": 8,
    "half": 2,
    "bfloat16": 2,
    "int32": 4,
    "int64": 8,
}
"""Bytes of an element, by the names that nccl-tests gives to number formats."""
_MARK: Final = "shardcost-measured "
"""Begins each line that is a measurement; whatever else a library prints is not."""


@dataclass(frozen=True)
class Job:
    """What one start of the ranks measures."""

    collectives: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    dtype: str
    iterations: int
    """Timed runs; 0 where only bytes are counted."""
    warmup: int
    counts_bytes: bool

    @property
    def points(self) -> int:
        """The number of measurements."""
        return len(self.collectives) * len(self.sizes_bytes)

    def as_text(self) -> str:
        """Return the job as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Job:
        """Return the job of such a line."""
        fields = json.loads(text)
        fields["collectives"] = tuple(fields["collectives"])
        fields["sizes_bytes"] = tuple(fields["sizes_bytes"])
        return cls(**fields)


@dataclass(frozen=True)
class Measurement:
    """One measurement: a collective of one size among all ranks."""

    collective: str
    dtype: str
    ranks: int
    nodes: int
    elements: int
    size_bytes: int
    library: str
    version: str
    iterations: int
    time_us: float | None
    """The median over iterations of the slowest rank's time; None where nothing was timed."""
    min_us: float | None
    p90_us: float | None
    sent_bytes: list[int] | None
    """By rank, of one collective; None where the transport cannot be counted."""

    def as_line(self) -> str:
        """Return the measurement as one line, marked as such."""
        return _MARK + json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Measurement | None:
        """Return the measurement of a line, None of a line that is none."""
        _, mark, text = line.partition(_MARK)
        if not mark:
            return None
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):  # cut short, as its rank was ended
            return None


def elements_of(collective: str, size_bytes: int, dtype: str, ranks: int) -> int:
    """Return how many elements a buffer of about this size has: whole ones, in even blocks.

    >>> elements_of("all_gather", 1000, "float", 3)
    249
    """
    block = ranks if collective in IN_BLOCKS else 1
    return max(1, size_bytes // ITEM_BYTES[dtype] // block) * block

"""What operators have published about failures, restarts and storage: the defaults of a run.

They are data of ``catalog/tuner/failures.toml``, each with its source.
"""

from __future__ import annotations

from typing import Final

from shardcost.catalog import tuner_table
from shardcost.records import NamedTuple

_DAY_S: Final = 86_400.0


class Stated(NamedTuple):
    """A figure with the range that others have, and who states it."""

    value: float
    low: float
    high: float
    name: str
    """Whose it is, in a few words."""
    source: str


class Published(NamedTuple):
    """The figures of `shardcost.resilience.Resilience` that a run takes where none are given."""

    gpu_mtbf_s: Stated
    restart_s: Stated
    checkpoint_bytes_per_s: Stated
    """For each device."""


def published() -> Published:
    """Return the published figures.

    >>> round(published().gpu_mtbf_s.value / 3600)
    50677
    """
    table = tuner_table("failures")
    fleets = table["fleet"]
    mtbf = [each["gpu_days"] * _DAY_S / each["failures"] for each in fleets]
    restart, storage = table["restart"], table["storage"]
    per_gpu = storage["bytes_per_s"] / storage["gpus"]
    return Published(
        Stated(mtbf[0], min(mtbf), max(mtbf), fleets[0]["name"], fleets[0]["source"]),
        Stated(
            float(restart["seconds"]),
            float(restart["low_seconds"]),
            float(restart["high_seconds"]),
            restart["name"],
            restart["source"],
        ),
        Stated(per_gpu, per_gpu, per_gpu, storage["name"], storage["source"]),
    )

"""The noun `Resilience`: how often devices fail, and what a training run does about it.

What is left out is taken from published fleets (`shardcost.goodput.run`).
"""

from __future__ import annotations

from typing import Final

from shardcost.checks import Noun, noun, one_of, positive, span

CHECKPOINTS: Final = ("blocking", "async")


@noun
class Resilience(Noun):
    """Failures, checkpoints and restarts of a training run; None: as published fleets have it."""

    gpu_mtbf_s: float | None = span(default=None)
    """Mean time between failures of one device, in seconds, whatever in its node or network fails;
    infinite where nothing does. A run on N of them fails N times as often."""
    restart_s: float | None = positive(default=None)
    """From a failure to the first step after it: detection, a spare node, start of all processes,
    reading of the checkpoint."""
    checkpoint: str = one_of(*CHECKPOINTS, default="blocking")
    """``blocking``: training waits until a checkpoint is written. ``async``: it waits for the copy
    to the hosts' memory; the checkpoint counts when it is written, while training goes on."""
    checkpoint_interval_s: float | None = positive(default=None)
    """Training between two checkpoints; None: what loses least time."""
    checkpoint_bytes_per_s: float | None = positive(default=None)
    """Bandwidth of the storage for all devices together."""

"""Collectives: the time they take on real machines, and their algorithms as exact schedules."""

from typing import Final

COLLECTIVES: Final = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "reduce",
    "send_recv",
)

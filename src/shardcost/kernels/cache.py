"""What replaying a kernel alone finds in the L2 cache.

A benchmark that repeats one kernel reads what fits in the cache from there; in a whole model other
layers have replaced it. What misses is the more, the farther the data exceeds the cache.
"""

from __future__ import annotations

from typing import Any

from shardcost.arrays import smallest
from shardcost.catalog import tuner_table
from shardcost.checks import anywhere
from shardcost.cluster import Device


def cache_of(device: Device, clock_hz: Any) -> tuple[Any, Any]:
    """Return the bytes that a device's L2 cache keeps between replays, and its rate in bytes/s."""
    common = tuner_table("experts")["common"]
    kept = common["cache_share"] * (device.l2_cache_bytes or 0.0)
    return kept, common["cache_bytes_per_clock"] * clock_hz * device.sms


def replayed_byte_s(
    memory_bytes_per_s: Any, cache_bytes: Any, cache_bytes_per_s: Any, data_bytes: Any
) -> Any:
    """Return the seconds per byte of data that is read again and again."""
    memory = 1 / memory_bytes_per_s
    if not anywhere(cache_bytes > 0):
        return memory
    fits = cache_bytes / data_bytes
    misses = 1 / (1 + fits * fits * fits * fits)
    cached = smallest(1 / cache_bytes_per_s, memory)
    return misses * memory + (1 - misses) * cached

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
from shardcost.machine.kernels import clock_hz


def cache_of_weights(device: Device) -> tuple[Any, Any]:
    """Return what `cache_of` does for weights of GEMMs."""
    common = tuner_table("experts")["common"]
    return cache_of(device, common["cache_share"], common["cache_bytes_per_clock"])


def cache_of(device: Device, share: Any, bytes_per_clock: Any) -> tuple[Any, Any]:
    """Return the bytes that a device's L2 cache keeps between replays, and its rate in bytes/s.

    Args:
        device: The device.
        share: Of the cache that is kept.
        bytes_per_clock: That an SM reads from it in a clock cycle.
    """
    return kept_bytes(device, share), bytes_per_clock * clock_hz(device) * device.sms


def kept_bytes(device: Device, share: Any) -> Any:
    """Return a share of a device's L2 cache; 0 where its size is not known."""
    return share * (device.l2_cache_bytes or 0.0)


def replayed_byte_s(
    memory_bytes_per_s: Any,
    cache_bytes: Any,
    cache_bytes_per_s: Any,
    data_bytes: Any,
    steepness: float | None = None,
) -> Any:
    """Return the seconds per byte of data that is read again and again.

    Args:
        memory_bytes_per_s: The rate of what misses the cache.
        cache_bytes: What the cache keeps; 0 where it keeps nothing.
        cache_bytes_per_s: The rate of what it keeps.
        data_bytes: All that is read between one read of a byte and the next.
        steepness: As in `hits_per_miss`; of weights of GEMMs if None.
    """
    if steepness is None:
        steepness = tuner_table("experts")["common"]["cache_steepness"]
    memory = 1 / memory_bytes_per_s
    if not anywhere(cache_bytes > 0):
        return memory
    misses = 1 / (1 + hits_per_miss(cache_bytes, data_bytes, steepness))
    cached = smallest(1 / cache_bytes_per_s, memory)
    return misses * memory + (1 - misses) * cached


def hits_per_miss(cache_bytes: Any, data_bytes: Any, steepness: float) -> Any:
    """Return the bytes that are read from the cache for each one that misses it.

    Args:
        cache_bytes: What the cache keeps.
        data_bytes: All that is read between one read of a byte and the next.
        steepness: How suddenly nothing is found any more as data exceeds the cache.
    """
    fits = cache_bytes / data_bytes
    return fits**steepness

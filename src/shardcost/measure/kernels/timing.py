"""What a device has to offer to be measured, the times of one case, and what the host has."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from shardcost.errors import ShardcostError
from shardcost.measure.kernels.cases import KernelCase, Limits


class NotAvailableError(ShardcostError, RuntimeError):
    """A kernel that this device or this version of torch does not have."""


class Times(NamedTuple):
    """Times of one call, over repetitions."""

    time_us: float
    """The median."""
    min_us: float
    p90_us: float
    calls: int


class MeasuredDevice(Protocol):
    """What runs cases."""

    name: str
    """As its driver states it."""
    software: str
    """Library and version."""
    limits: Limits

    def measured(self, case: KernelCase) -> Times:
        """Run a case and return its times.

        Raises:
            NotAvailableError: There is no such kernel here.
        """


def times_of(seconds: Sequence[float], calls: int) -> Times:
    """Return the times of one call, from the seconds of repetitions of so many calls each.

    >>> times_of([2e-3, 1e-3, 3e-3], 1000)
    Times(time_us=2.0, min_us=1.0, p90_us=3.0, calls=3000)
    """
    each = sorted(1e6 * second / calls for second in seconds)
    middle = len(each) // 2
    median = each[middle] if len(each) % 2 else (each[middle - 1] + each[middle]) / 2
    p90 = each[min(len(each) - 1, int(0.9 * len(each)))]
    return Times(median, each[0], p90, calls * len(each))


_SHARE: Final = 1 / 16
"""Of the host's memory that the operands of one case may take."""
_LONGEST: Final = 80


def cpu_name() -> str:
    """Return what the system calls the CPU."""
    found = ""
    with suppress(OSError, UnicodeError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        found = next(
            (line.partition(":")[2] for line in lines if line.startswith("model name")), ""
        )
    found = " ".join((found or platform.processor() or platform.machine() or "CPU").split())
    return "".join(each for each in found if each.isprintable())[:_LONGEST]


def cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> float:
    """Return the host's memory; a small one where the system does not say."""
    with suppress(AttributeError, OSError, ValueError):
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return 2.0**31


def memory_limit() -> float:
    """Return the bytes that the operands of one case may take."""
    return _SHARE * memory_bytes()

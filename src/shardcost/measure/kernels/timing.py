"""What a device has to offer to be measured, and the times of one case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

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

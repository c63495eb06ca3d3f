"""What more of each resource would bring a layout: `sensitivity`, by derivative of the model.

The elasticity in a resource is the percentage by which a step gets shorter for each percent more of
it, ``- d ln(time) / d ln(resource)``, from central differences of the whole model at the layout:
what nothing waits for has none. Each is a what-if on the machine: kernels on a device whose
datasheet says more (their constants are shares of it), collectives on links of higher rates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.catalog import tuner_table
from shardcost.cluster import Device
from shardcost.collectives.engine_kernels import multimem_all_reduce_s
from shardcost.estimate.ledger import Ledger
from shardcost.estimate.price import Adjust, Prices
from shardcost.estimate.result import Estimate
from shardcost.program.operations import Collective
from shardcost.scalars import positive_number
from shardcost.search.evaluate import STRETCH
from shardcost.search.found import Candidate
from shardcost.units import format_time

_STEP: Final = 0.01
"""Of the central differences."""
_SMALL_BYTES: Final = 1.0


class Gain(NamedTuple):
    """What more of one resource would bring."""

    what: str
    time_s: float
    """Of a step, with so much more of it."""
    faster_pct: float
    """How many more steps in the same time; for memory, how much better by the objective."""
    elasticity: float
    """Percent by which the step gets shorter for each percent more, at this layout."""
    note: str = ""


def sensitivity(
    candidate: Candidate, more: float = 0.1, beyond: Candidate | None = None
) -> tuple[Gain, ...]:
    """Return what more of each resource would bring a layout.

    Args:
        candidate: The layout.
        more: How much more, as a share.
        beyond: The best layout that a little more memory would hold (`Found.beyond`); memory brings
            a layout itself nothing.
    """
    return (*gains_of(candidate.estimate, more), _of_memory(candidate, beyond))


def gains_of(found: Estimate, more: float = 0.1) -> tuple[Gain, ...]:
    """Return what more of the device's arithmetic and memory rate, and of links, would bring."""
    more = positive_number("more", more)
    factors = np.array([1 + _STEP, 1 / (1 + _STEP), 1 + more, 1])
    return tuple(_gains(found, factors))


def _gains(found: Estimate, factors: Any) -> Iterator[Gain]:
    time_s, cluster = found.time_s, found.cluster

    def gain(what: str, times: Any, note: str = "") -> Gain:
        up, down, then, now = np.broadcast_to(times, factors.shape).tolist()
        elasticity = log(down / up) / log(factors[0] / factors[1])
        return Gain(what, time_s * then / now, 100 * (now / then - 1), elasticity, note)

    for what, device in (("FLOP/s", _computing), ("memory bandwidth", _reading)):
        yield gain(what, [_on_device(found, device(cluster.device, each)) for each in factors])
    inside, crossing = _Links(found, inside=factors), _Links(found, outside=factors)
    yield gain(
        "bandwidth inside a node",
        inside.time_s,
        "" if inside.used else "no group has two ranks in a node",
    )
    if cluster.network is not None:
        yield gain(
            "network bandwidth", crossing.time_s, "" if crossing.crossed else "no group crosses it"
        )


def adjusted_time_s(found: Estimate, how: Adjust) -> Any:
    """Return the time of a step whose operations take what a function makes of their seconds."""
    return Ledger.of(found.program, found.ledger.prices.adjusted(how)).time_s()


def _computing(device: Device, factor: float) -> Device:
    """Return a device of a faster clock: arithmetic, and loads from its caches."""
    assumed = 1e6 * tuner_table("start")["assumed_clock_mhz"]
    return replace(
        device,
        peak_flop_per_s={name: factor * rate for name, rate in device.peak_flop_per_s.items()},
        boost_clock_hz=factor * (device.boost_clock_hz or assumed),
    )


def _reading(device: Device, factor: float) -> Device:
    """Return a device with a faster memory."""
    return replace(device, memory_bytes_per_s=factor * device.memory_bytes_per_s)


def _on_device(found: Estimate, device: Device) -> Any:
    """Return the time of a step whose kernels run on another device, and collectives as before."""
    prices = Prices(found.machine.with_device(device), found.ledger.prices.placed)
    return Ledger.of(found.program, prices).time_s()


class _Links:
    """A layout on links of other rates, factors of those that it has: numbers, or arrays."""

    def __init__(self, found: Estimate, inside: Any = 1.0, outside: Any = 1.0) -> None:
        self.found = found
        self.inside, self.outside = inside, outside
        self.used = self.crossed = False
        """Whether any group has ranks in one domain, or in several."""
        self._prices = found.ledger.prices
        self._seconds: dict[Collective, Any] = {}
        """Of collectives priced so far: many operations call the same one."""

    @property
    def time_s(self) -> Any:
        """Of a step."""
        return adjusted_time_s(self.found, self._how)

    def _how(self, op: Any, seconds: Any) -> Any:
        if not isinstance(op, Collective) or op.ranks == 1:
            return seconds
        alike = op._replace(name="", count=1, hides_behind=(), split_with=None)
        if alike not in self._seconds:
            self._seconds[alike] = self._collective_s(alike)
        return self._seconds[alike]

    def _collective_s(self, op: Collective) -> Any:
        if self._prices.is_multimem(op):
            self.used = True
            size = (_SMALL_BYTES, op.size_bytes)
            machine = self.found.machine
            start, whole = (multimem_all_reduce_s(machine, op.ranks, each) for each in size)
            return start + (whole - start) / self.inside
        result = self._prices.collective(op)
        self.used |= bool(result.group.ranks_per_domain > 1)
        self.crossed |= bool(result.group.domains > 1)
        return result.time_on_links_s(self.inside, self.outside)


def _of_memory(candidate: Candidate, beyond: Candidate | None) -> Gain:
    more = f"{100 * (STRETCH - 1):.0f} % more"
    if beyond is None or beyond.score >= candidate.score:
        note = f"{more} would hold no better layout"
        return Gain("memory", candidate.time_s, 0.0, 0.0, note)
    better = candidate.score / beyond.score
    note = f"{more} would hold {beyond.layout.short()}, {format_time(beyond.time_s)} a step"
    return Gain("memory", beyond.time_s, 100 * (better - 1), log(better) / log(STRETCH), note)

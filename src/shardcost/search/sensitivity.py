"""What more of each resource would bring a layout: `sensitivity`, by derivative of the model.

The elasticity in a resource is the percentage by which a step gets shorter for each percent more of
it, ``- d ln(time) / d ln(resource)``, from central differences of the whole model at the layout:
what nothing waits for has none. Kernels are priced on a device whose datasheet says more, because
their constants are shares of it. Constants of collectives are rates that were measured, so those
are scaled where they are rates of a link, and the path that runs is kept: a library's switch from
one path to another is no property of the link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from math import log
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.catalog import tuner_table
from shardcost.cluster import Cluster, Device
from shardcost.collectives.calibration import Constants, given
from shardcost.collectives.choice import weighted
from shardcost.collectives.engine_kernels import DirectLibrary, direct_paths, fallback_constants
from shardcost.collectives.library_time import CollectiveTime
from shardcost.collectives.multimem import multimem_all_reduce_s
from shardcost.collectives.paths import NO_WIRE, RingLibrary, Wire, ring_library_paths
from shardcost.estimate.placement import places
from shardcost.estimate.price import Adjust, Prices
from shardcost.estimate.result import Estimate
from shardcost.estimate.totals import total_s
from shardcost.estimate.work import rank_work
from shardcost.kernels.gemm import gemm_section
from shardcost.program.operations import Collective
from shardcost.scalars import positive_number
from shardcost.search.evaluate import STRETCH
from shardcost.search.found import Candidate
from shardcost.units import format_time

_STEP: Final = 0.01
"""Of the central differences."""
_NOT_THE_LINK: Final = ("_copy_", "_kernel_", "p2p_ll_", "network_")
"""In the names of rates: copies inside a device, and what a few warps or the host keep up with."""
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
        kin = _as_measured(cluster.device, found.workload.dtype)
        yield gain(what, [_on_device(found, device(kin, each)) for each in factors])
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


def _prices(found: Estimate, cluster: Cluster) -> Prices:
    return Prices(cluster, found.software, places(found.layout), found.wire)


def adjusted_time_s(found: Estimate, prices: Prices, how: Adjust) -> Any:
    """Return the time of a step whose operations take what a function makes of their seconds."""
    program = found.program
    return total_s(program, rank_work(program, prices.adjusted(how)))


def _as_measured(device: Device, dtype: str) -> Device:
    """Return a device under the name of the one that lends it its constants.

    Kin are found by memory bandwidth too: with more of it a device would be another one's.
    """
    lender = gemm_section(device, dtype).inherited_from
    return device if lender is None else replace(device, name=Cluster.named(lender).device.name)


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
    cluster = found.cluster
    before = _prices(found, cluster)

    def how(op: Any, seconds: Any) -> Any:
        return before.of((op,))[0] if isinstance(op, Collective) else seconds

    return adjusted_time_s(found, _prices(found, replace(cluster, device=device)), how)


class _Links:
    """A layout on links of other rates, factors of those that it has: numbers, or arrays."""

    def __init__(self, found: Estimate, inside: Any = 1.0, outside: Any = 1.0) -> None:
        self.found = found
        self.inside, self.outside = inside, outside
        self.used = self.crossed = False
        """Whether any group has ranks in one domain, or in several."""
        self._prices = _prices(found, found.cluster)
        self._seconds: Callable[[Collective], Any] = cache(self._collective_s)

    @property
    def time_s(self) -> Any:
        """Of a step."""
        return adjusted_time_s(self.found, self._prices, self._how)

    def _how(self, op: Any, seconds: Any) -> Any:
        if not isinstance(op, Collective) or op.ranks == 1:
            return seconds
        alike = op._replace(name="", count=1, beside=(), feeds="")
        return self._seconds(alike)

    def _collective_s(self, op: Collective) -> Any:
        if self._prices.is_multimem(op):
            self.used = True
            size = (_SMALL_BYTES, op.size_bytes)
            cluster = self.found.cluster
            start, whole = (multimem_all_reduce_s(cluster, op.ranks, each) for each in size)
            return start + (whole - start) / self.inside
        found, _ = self._prices.asked(op)
        self.used |= bool(found.group.ranks_per_domain > 1)
        self.crossed |= bool(found.group.domains > 1)
        return seconds_on_links(found, self.inside, self.outside)


def seconds_on_links(found: CollectiveTime, inside: Any = 1.0, outside: Any = 1.0) -> Any:
    """Return the seconds of a collective by the path that runs, on links of other rates.

    Args:
        found: The collective on the links that there are.
        inside: The rate inside a domain over what it is. A number or an array.
        outside: The same for the network.
    """
    by_kind = {type(each.constants): each.constants for each in found.calibrations}
    group = replace(found.group, port_bytes_per_s=found.group.port_bytes_per_s * outside)
    ring: Any = by_kind[RingLibrary]
    own: Any = by_kind.get(DirectLibrary)
    if own is not None:
        ring = fallback_constants(own, ring)
    wire: Any = by_kind.get(Wire, NO_WIRE)
    question = (found.size_bytes, group)
    paths = dict(ring_library_paths(_linked(ring, inside), wire, found.collective, *question))
    if own is not None and found.collective == "all_reduce":
        paths |= direct_paths(_linked(own, inside), *question)
    return weighted(paths, found.weights)


def _linked(constants: Any, factor: Any) -> Any:
    """Return constants with those rates scaled that are a link's."""
    return replace(constants, **{name: factor * rate for name, rate in _link_rates(constants)})


def _link_rates(constants: Constants) -> Iterator[tuple[str, float]]:
    for name, value in given(constants).items():
        if name.endswith("_bytes_per_s") and not any(word in name for word in _NOT_THE_LINK):
            yield name, value


def _of_memory(candidate: Candidate, beyond: Candidate | None) -> Gain:
    more = f"{100 * (STRETCH - 1):.0f} % more"
    if beyond is None or beyond.score >= candidate.score:
        note = f"{more} would hold no better layout"
        return Gain("memory", candidate.time_s, 0.0, 0.0, note)
    better = candidate.score / beyond.score
    note = f"{more} would hold {beyond.layout.short()}, {format_time(beyond.time_s)} a step"
    return Gain("memory", beyond.time_s, 100 * (better - 1), log(better) / log(STRETCH), note)

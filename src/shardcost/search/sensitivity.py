"""What more of each resource would bring a layout: `sensitivity`, by derivative of the model.

The elasticity in a resource is the percentage by which a step gets shorter for each percent more of
it, ``- d ln(time) / d ln(resource)``, from central differences of the whole model at the layout:
what nothing waits for has none. Each is a what-if on the machine: kernels on a device whose
datasheet says more (their constants are shares of it), collectives on links of higher rates.
"""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Any, Final

import numpy as np

from shardcost.cluster import Device
from shardcost.collectives.engine_kernels import multimem_all_reduce_s
from shardcost.estimate.ledger import Ledger
from shardcost.estimate.price import Adjust, Prices
from shardcost.estimate.result import Estimate
from shardcost.machine.kernels import clock_hz
from shardcost.program.operations import Collective
from shardcost.records import NamedTuple
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


def gains_of(estimate: Estimate, more: float = 0.1) -> list[Gain]:
    """Return what more of the device's arithmetic and memory rate, and of links, would bring."""
    factors = np.array([1 + _STEP, 1 / (1 + _STEP), 1 + positive_number("more", more), 1])
    time_s, cluster = estimate.time_s, estimate.cluster

    def gain(what: str, times: Any, note: str = "") -> Gain:
        up, down, then, now = np.broadcast_to(times, factors.shape).tolist()
        elasticity = log(down / up) / log(factors[0] / factors[1])
        return Gain(what, time_s * then / now, 100 * (now / then - 1), elasticity, note)

    gains = []
    for what, device in (("FLOP/s", _computing), ("memory bandwidth", _reading)):
        changed = [_on_device(estimate, device(cluster.device, each)) for each in factors[:-1]]
        gains.append(gain(what, [*changed, time_s]))
    times, used = _on_links(estimate, inside=factors)
    note = "" if used["inside"] else "no group has two ranks in a node"
    gains.append(gain("bandwidth inside a node", times, note))
    if cluster.network is not None:
        times, used = _on_links(estimate, outside=factors)
        note = "" if used["outside"] else "no group crosses it"
        gains.append(gain("network bandwidth", times, note))
    return gains


def adjusted_time_s(estimate: Estimate, how: Adjust) -> Any:
    """Return the time of a step whose operations take what a function makes of their seconds."""
    return Ledger.of(estimate.program, estimate.ledger.prices.adjusted(how)).time_s()


def _computing(device: Device, factor: float) -> Device:
    """Return a device of a faster clock: arithmetic, and loads from its caches."""
    return replace(
        device,
        peak_flop_per_s={name: factor * rate for name, rate in device.peak_flop_per_s.items()},
        boost_clock_hz=factor * clock_hz(device),
    )


def _reading(device: Device, factor: float) -> Device:
    """Return a device with a faster memory."""
    return replace(device, memory_bytes_per_s=factor * device.memory_bytes_per_s)


def _on_device(estimate: Estimate, device: Device) -> Any:
    """Return the time of a step whose kernels run on another device, and collectives as before."""
    prices = Prices(estimate.machine.with_device(device), estimate.ledger.prices.strides)
    return Ledger.of(estimate.program, prices).time_s()


def _on_links(
    estimate: Estimate, inside: Any = 1.0, outside: Any = 1.0
) -> tuple[Any, dict[str, bool]]:
    """Return the time of a step on links of other rates, and whether any group uses them.

    Args:
        estimate: Of the step.
        inside: Rates of links inside a node, as factors of those that it has.
        outside: Rates of the network likewise.
    """
    prices, machine = estimate.ledger.prices, estimate.machine
    used = {"inside": False, "outside": False}
    priced: dict[Collective, Any] = {}  # many operations call the same collective

    def collective_s(op: Collective) -> Any:
        if prices.is_multimem(op):
            used["inside"] = True
            sizes = (_SMALL_BYTES, op.size_bytes)
            start, whole = (multimem_all_reduce_s(machine, op.ranks, size) for size in sizes)
            return start + (whole - start) / inside
        result = prices.collective(op)
        used["inside"] |= bool(result.group.ranks_per_domain > 1)
        used["outside"] |= bool(result.group.domains > 1)
        return result.time_on_links_s(inside, outside)

    def how(op: Any, seconds: Any) -> Any:
        if not isinstance(op, Collective) or op.ranks == 1:
            return seconds
        alike = op._replace(name="", count=1, hides_behind=(), split_with=None)
        if alike not in priced:
            priced[alike] = collective_s(alike)
        return priced[alike]

    return adjusted_time_s(estimate, how), used


def _of_memory(candidate: Candidate, beyond: Candidate | None) -> Gain:
    more = f"{100 * (STRETCH - 1):.0f} % more"
    if beyond is None or beyond.score >= candidate.score:
        note = f"{more} would hold no better layout"
        return Gain("memory", candidate.time_s, 0.0, 0.0, note)
    better = candidate.score / beyond.score
    note = f"{more} would hold {beyond.layout.short()}, {format_time(beyond.time_s)} a step"
    return Gain("memory", beyond.time_s, 100 * (better - 1), log(better) / log(STRETCH), note)

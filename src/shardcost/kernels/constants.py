"""Which fitted constants a kernel runs by on a device: its own, or those of its nearest kin.

The shelves ``products``, ``attention`` and ``passes`` of the catalog hold one file per measured
device, named like the cluster that has it. A section of a file is one set of constants with the
rows and the error of its fit. Constants are shares of the device's datasheet, clock cycles or
tile sizes, so that a device nobody measured can take them over from its family; whoever uses them
is told so (`Section.inherited_from`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import log
from typing import Any, Literal, NamedTuple

from shardcost import catalog
from shardcost.cluster import Cluster, Device
from shardcost.errors import UnknownNameError

KernelShelf = Literal["gemm", "attention", "elementwise"]


class Fit(NamedTuple):
    """The rows behind a set of constants, and the error on them."""

    source: str
    rows: int
    median_pct: float
    p90_pct: float
    measured_with: str = ""
    """The software whose kernels were timed, by its name in the catalog."""


class Section(NamedTuple):
    """One set of constants."""

    system: str
    """The measured system."""
    name: str
    """Which section of its file."""
    constants: Mapping[str, Any]
    fit: Fit
    inherited_from: str | None
    """The system that lends its constants; None where the device itself was measured."""


@cache
def section_of(shelf: KernelShelf, device: Device, *names: str) -> Section:
    """Return the constants of a device: the first of the sections `names` that its file has.

    Without such a file, those of the nearest kin: the same architecture, else the same vendor at
    the nearest compute capability, else the nearest memory bandwidth.
    """
    for system in _nearest_first(shelf, device):
        content = _file(shelf, system)
        name = next((each for each in names if each in content), None)
        if name is not None:
            own = _device(system).name == device.name
            return _section(system, name, content, inherited=not own)
    raise UnknownNameError(f"{shelf} of {device.name}", names[0], _known(shelf))


@cache
def section_measured_with(shelf: KernelShelf, device: Device, software: str, name: str) -> Section:
    """Return the nearest section whose rows were measured with a software.

    Where there is none, the nearest of all: `section_of`.
    """
    for system in _nearest_first(shelf, device):
        content = _file(shelf, system)
        if name in content and content[name]["fit"]["measured_with"] == software:
            inherited = _device(system).name != device.name
            return _section(system, name, content, inherited=inherited)
    return section_of(shelf, device, name)


@cache
def own_section(shelf: KernelShelf, device: Device, name: str) -> Section | None:
    """Return a section of a device's own file; None where it has no such section."""
    for system, content in catalog.contents(shelf):
        if name in content and _device(system).name == device.name:
            return _section(system, name, content, inherited=False)
    return None


def _section(system: str, name: str, content: Mapping[str, Any], *, inherited: bool) -> Section:
    constants = dict(content[name])
    fit = Fit(**constants.pop("fit"))
    return Section(system, name, constants, fit, system if inherited else None)


def _nearest_first(shelf: KernelShelf, device: Device) -> Sequence[str]:
    return sorted(catalog.names(shelf), key=lambda system: _distance(device, _device(system)))


def _distance(one: Device, other: Device) -> tuple[bool, bool, bool, float, float]:
    """Return how far apart two devices are; what counts most stands first."""
    return (
        one.name != other.name,
        one.architecture != other.architecture,
        one.vendor != other.vendor,
        abs(_capability(one) - _capability(other)),
        abs(log(float(one.memory_bytes_per_s) / float(other.memory_bytes_per_s))),
    )


def _capability(device: Device) -> float:
    return float(device.compute_capability or 0)


def _known(shelf: KernelShelf) -> list[str]:
    return sorted({name for _, content in catalog.contents(shelf) for name in content})


def _file(shelf: KernelShelf, system: str) -> dict[str, Any]:
    return next(content for name, content in catalog.contents(shelf) if name == system)


@cache
def _device(system: str) -> Device:
    return Cluster.named(system).device

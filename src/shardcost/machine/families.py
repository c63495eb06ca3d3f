"""Which constants kernels of a family run by: their own, those of one like them, or of any.

Experts, latent attention and linear attention have many kernels of few families. For each of the
three the catalog has a table with a file for each measured system, which holds sections of kernels
and of families, and a file of sections over all systems (``tuner/…_pooled.toml``). A device nobody
measured inherits from the nearest one of its architecture and generation, else takes what holds
over all systems. In which order names are tried is the table's own matter.

Which family a kernel's name tells, and what an engine runs by default, are entries of the table's
file in ``tuner/``; the first that holds is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from shardcost import catalog
from shardcost.catalog import tuner_table
from shardcost.cluster import Device
from shardcost.machine.kernels import (
    KernelConstants,
    KernelTable,
    Section,
    is_systolic,
    nearest_systems,
    section_of,
)
from shardcost.records import dataclass

Entry = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Sections:
    """The sections of one table, as seen from a device."""

    device: Device
    systems: Sequence[str]
    """The measured systems, the nearest first."""
    content_of: Callable[[str], Mapping[str, Any]]
    """The sections of a system, read only where they are needed."""
    pooled: Mapping[str, Any]
    """The sections over all systems."""

    @cached_property
    def related(self) -> list[str]:
        """The systems of the device's architecture and generation, the nearest first."""
        devices = {name: catalog.cluster_named(name).device for name in self.systems}
        return [name for name in self.systems if _are_related(self.device, devices[name])]

    def nearest(self, names: Iterable[str], systems: Sequence[str] | None = None) -> Section | None:
        """Return the first of some sections that a related system has; None if there is none.

        Args:
            names: The sections, the best first.
            systems: The systems in another order than `related` has them.
        """
        for name in names:
            for system in self.related if systems is None else systems:
                content = self.content_of(system)
                if name in content:
                    return section_of(system, name, content, self.device)
        return None

    def over_all(self, name: str, on_a_system: str = "") -> Section:
        """Return a section over all systems, as of the nearest one that has it, if any.

        Args:
            name: The section.
            on_a_system: What systems call it, if not the same.
        """
        wanted = on_a_system or name
        having = (system for system in self.systems if wanted in self.content_of(system))
        system = next(having, self.systems[0])
        section = section_of(system, name, self.pooled, self.device)
        return section._replace(inherited_from=system)


def resolved(
    on: KernelConstants,
    table: KernelTable,
    key: Hashable,
    names: Iterable[str],
    chosen: Callable[[Sections], Section],
) -> Section:
    """Return the constants of a kernel on a device, resolved once for a machine.

    Args:
        on: The constants of the device.
        table: The table that has the kernel's.
        key: What tells the kernel from others of the table.
        names: The sections that may be given in place of the catalog's, the best first.
        chosen: Which of the catalog's sections holds.
    """
    if (table, key) not in on.memo:
        given = ((table, name) for name in names)
        known = next((each for each in given if each in on.sections), None)
        on.memo[table, key] = chosen(_catalog(on, table)) if known is None else on.sections[known]
    section: Section = on.memo[table, key]
    return section


def family_by_word(kernel: str, entries: Iterable[Entry]) -> str | None:
    """Return the family of the first entry whose word a part of a kernel's name begins with."""
    parts = kernel.lower().split("_")
    for entry in entries:
        if any(part.startswith(entry.get("word", "")) for part in parts):
            return str(entry["family"])
    return None


def defaults(table: KernelTable, software: str, device: Device) -> Iterator[Entry]:
    """Yield what a table says that an engine runs by default on a device, the best entry first.

    Args:
        table: The table.
        software: The engine: a name that begins like that of an entry.
        device: Where it runs.
    """
    for entry in tuner_table(table)["default"]:
        if software.startswith(entry.get("software", "")) and holds_for(entry, device):
            yield entry


def holds_for(entry: Entry, device: Device) -> bool:
    """Return whether an entry is for a device's architecture and compute capability."""
    if entry.get("architecture", device.architecture) != device.architecture:
        return False
    capability = float(device.compute_capability or 0)
    least, most = entry.get("capability_from", 0.0), entry.get("capability_to", 1e9)
    return bool(least <= capability < most)


def _catalog(on: KernelConstants, table: KernelTable) -> Sections:
    systems = nearest_systems(on.like, catalog.names(table))
    pooled = tuner_table(f"{table}_pooled")
    return Sections(on.like, systems, lambda system: on.tables.content(table, system), pooled)


def _are_related(one: Device, other: Device) -> bool:
    """Return whether devices are of one generation, or systolic arrays of one vendor."""
    if _generation(one) == _generation(other):
        return True
    return one.vendor == other.vendor and is_systolic(one) and is_systolic(other)


def _generation(device: Device) -> tuple[str, str]:
    return device.architecture, (device.compute_capability or "").partition(".")[0]

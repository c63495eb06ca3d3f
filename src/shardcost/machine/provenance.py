"""What of a machine is measured, inherited or assumed: whose constants hold, by part.

A figure that was changed (`Cluster.with_figures`) makes another machine: constants follow its
datasheet, and none of them counts as measured on it. How much an interval widens for that is
`widening`.
"""

from __future__ import annotations

from typing import Final

from shardcost import catalog
from shardcost.catalog import tuner_table
from shardcost.catalog.figures import changes_of
from shardcost.cluster import Cluster
from shardcost.errors import ShardcostError
from shardcost.machine import Machine, machine_of
from shardcost.machine.constants import Calibration, GenericLibrary
from shardcost.machine.kernels import KernelConstants, KernelTable, Section
from shardcost.records import NamedTuple

MEASURED, INHERITED, ASSUMED, SCALED = "measured", "inherited", "assumed", "scaled"
_KERNELS: Final[tuple[tuple[str, KernelTable, tuple[str, ...]], ...]] = (
    ("attention", "attention", ("decode", "prefill")),
    ("elementwise", "elementwise", ("elementwise",)),
)


class Origin(NamedTuple):
    """Whose constants hold for one part of a machine."""

    what: str
    standing: str
    """Measured there, scaled from there to a changed datasheet, inherited, or assumed."""
    of: str
    """Of which machines, or by which rule."""

    def __str__(self) -> str:
        """Return it in a few words."""
        return f"{self.what} {self.standing} ({self.of})"


def provenance_of(cluster: Cluster | Machine) -> tuple[Origin, ...]:
    """Return whose constants hold on a machine: figures that were changed, then each part.

    >>> [str(each) for each in provenance_of(machine_of("h100_sxm"))][0]
    'collectives measured (nccl, 731 rows)'
    """
    machine = machine_of(cluster)
    cluster = machine.cluster
    changes = changes_of(cluster)
    found = []
    if changes:
        found.append(Origin("figures", "changed", "; ".join(map(str, changes))))
    found.append(_of_library("collectives", machine.library(machine.default_library)))
    if cluster.network is not None:
        found.append(_of_library("network", machine.network))
    peaks = cluster.device.peak_flop_per_s
    wide = next((dtype for dtype in ("bf16", "fp16") if dtype in peaks), next(iter(peaks)))
    gemm = machine.kernels.gemm(wide)
    found.append(_of_section("GEMM", gemm, machine.kernels, changed=bool(changes)))
    for what, table, names in _KERNELS:
        section = machine.kernels.section(table, *names)
        found.append(_of_section(what, section, machine.kernels, changed=bool(changes)))
    experts = _experts(machine.kernels, changed=bool(changes))
    return (*found, *([] if experts is None else [experts]))


def in_words(cluster: Cluster | Machine) -> str:
    """Return whose constants hold on a machine of the user's, or a changed one; else nothing.

    >>> changed = Cluster.named("h100_sxm").with_figures({"link": "900GB/s"})
    >>> in_words(changed).partition(";")[0]
    'changed: link.bandwidth 450GB/s -> 900GB/s'
    """
    machine = machine_of(cluster)
    if machine.cluster.system in catalog.names("clusters") and not changes_of(machine.cluster):
        return ""
    by_standing: dict[str, list[str]] = {}
    for each in provenance_of(machine):
        said = each.of if each.standing == "changed" else f"{each.what} ({each.of})"
        by_standing.setdefault(each.standing, []).append(said)
    return "; ".join(f"{standing}: {', '.join(parts)}" for standing, parts in by_standing.items())


def _of_library(what: str, used: Calibration) -> Origin:
    if isinstance(used.constants, GenericLibrary):
        return Origin(what, ASSUMED, "generic library: textbook algorithms")
    name = f"{used.library}, " if used.library != "network" else ""
    if used.inherited_from == (used.system,):
        return Origin(what, SCALED, f"{name}from {used.system} by its datasheet")
    if used.inherited_from:
        return Origin(what, INHERITED, f"{name}from {', '.join(used.inherited_from)}")
    return _fitted(what, name, used.fit.rows)


def _of_section(what: str, used: Section, kernels: KernelConstants, *, changed: bool) -> Origin:
    if used.inherited_from is not None:
        return Origin(what, INHERITED, f"from {used.inherited_from}")
    if changed and kernels.changed:
        return Origin(what, SCALED, f"from {used.system} by its datasheet")
    return _fitted(what, "", used.fit.rows)


def _fitted(what: str, name: str, rows: int) -> Origin:
    """Return constants of the machine itself: of no rows, they are assumptions."""
    if rows == 0:
        return Origin(what, ASSUMED, f"{name}nothing was measured")
    return Origin(what, MEASURED, f"{name}{rows:,} rows")


def _experts(kernels: KernelConstants, *, changed: bool) -> Origin | None:
    """Return whose constants the kernels of experts have: the nearest device's."""
    try:
        system, content = next(iter(kernels.tables.nearest("experts", kernels.like)))
        name = next(iter(content))
    except (StopIteration, ShardcostError):
        return None
    own = catalog.cluster_named(system).device.name == kernels.like.name
    if not own:
        return Origin("experts", INHERITED, f"from {system}")
    if changed and kernels.changed:
        return Origin("experts", SCALED, f"from {system} by its datasheet")
    rows = sum(section["fit"]["rows"] for section in content.values() if "fit" in section)
    return Origin("experts", MEASURED, f"{rows:,} rows" if rows else name)


def widening(cluster: Cluster) -> float:
    """Return what figures that were changed add to the reach of an interval, as a logarithm.

    For each of them a share of the logarithm of its ratio; the formats' peaks count once.
    """
    share: float = tuner_table("start")["changed_figure"]["reach_per_log"]
    distances: dict[str, float] = {}
    for change in changes_of(cluster):
        part = change.figure.name.rpartition(".")[0] or change.figure.name
        name = part if part == "device.peak" else change.figure.name
        distances[name] = max(distances.get(name, 0.0), change.distance)
    return share * sum(distances.values())

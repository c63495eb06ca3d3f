"""Which library and network constants hold on a cluster: its own, else inherited by datasheet.

A system that was never measured inherits from its family: constants are carried over in units of
the datasheet (latencies in clock cycles, rates as shares of the nominal link rate), and so are
those of a system whose datasheet was changed (a what-if on a catalog cluster). The result names
where its constants come from (`Calibration.inherited_from`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from math import exp, log
from typing import TYPE_CHECKING, Any, Final

from shardcost import catalog
from shardcost.cluster import Cluster, Device, Network
from shardcost.errors import BadTypeError, BadValueError, FormatError, UnknownNameError
from shardcost.machine.constants import (
    Calibration,
    NetworkConstants,
    RingLibrary,
    from_file_content,
    stated,
)
from shardcost.machine.kernels import stated_clock_hz
from shardcost.machine.profile_kernels import profile_sections

if TYPE_CHECKING:
    from pathlib import Path

ENGINES: Final = ("sglang", "trtllm", "vllm")
FRAMEWORKS: Final = ("xla",)
"""Libraries that launch the paths of the GPUs' vendor's, at a cost of their own."""
MULTIMEM: Final = "multimem"
"""The library name of all-reduces by multimem instructions, in the switch."""
TUNER: Final = "nccl-tuner"
GENERIC: Final = "generic"
"""The library of textbook algorithms, for links whose own library nobody measured."""
_VENDORS_OWN: Final = {"nvidia": "nccl", "amd": "rccl", "intel": "oneccl"}
_HOW_TO_FIT: Final = "; to fit one to your own measurements see docs/calibration.md"
_BY_CLOCK: Final = frozenset({"p2p_ll_bytes_per_s", "p2p_channel_bytes_per_s"})
"""Rates of one channel: a few warps, whose pace is the clock's and not the link's."""
_BY_HOST: Final = frozenset({"launch_s", "eager_launch_s"})
"""What a host's CPU takes, whatever the device."""
HOST: Final = ("ll_crowd", "ll_socket", "crowd", "socket")
"""What host bridges leave of a rate: a matter of the machine, which no family of GPUs shares."""
_SIGNALS: Final = ("_base_s", "_hop_s", "_round_s")
"""Ends of the names of latencies that wait for signals of other devices, or start a kernel."""
_BY_MEMORY: Final = frozenset({"reduction_bytes_per_s", "eager_copy_bytes_per_s"})
"""Rates of a device's memory."""


_NETWORK_FAMILIES: Final = (
    {"infiniband", "roce", "slingshot", "omnipath"},
    {"efa", "tcpxo"},
    {"tcp", "tcpx"},
)
"""Kinds of networks that resemble each other: remote memory access by hardware, by clouds' own
transports that cards run, and sockets of the kernel."""
_NEARNESS: Final = (1.0, 0.05, 0.0025)
"""What a network counts of the same kind, of the same family, and of another …"""
_OTHER_MEMORY: Final = 0.05
"""… and what is left of that where one goes through the hosts' memory and the other does not …"""
_OTHER_COPIES: Final = 0.0025
"""… and of what it counts for rates: there the hosts' copies set the pace, whatever the wire."""
_RATES: Final = frozenset({"ll_port_bytes_per_s", "efficiency", "spine"})
"""The constants of a network that are rates, or shares of them."""
_FEW_ROWS: Final = 10


def catalog_calibrations() -> tuple[Calibration, ...]:
    """Return every calibration of the catalog: of all systems and networks that were measured."""
    names = (name for name in catalog.names("collectives") if name != GENERIC)
    return tuple(each for name in names for each in _in_catalog(name))


def generic_library() -> Calibration:
    """Return the assumed constants of the generic library, which hold on every machine."""
    (assumed,) = _in_catalog(GENERIC)
    return assumed


@cache  # parsing and checking a file takes milliseconds, and every machine asks for it
def _in_catalog(name: str) -> tuple[Calibration, ...]:
    if name not in catalog.names("collectives"):
        return ()
    content = catalog.raw("collectives", name)
    return tuple(from_file_content(content, f"collectives/{name}.toml"))


def profile_calibrations(cluster: Cluster) -> tuple[Calibration, ...]:
    """Return the calibrations that a cluster's own profile brings along."""
    if not cluster.profile:
        return ()
    import tomllib

    return tuple(from_file_content(tomllib.loads(cluster.profile), f"profile {cluster.name}"))


class Libraries:
    """The calibrations that constants are resolved from: the catalog's, or others instead."""

    def __init__(self, calibrations: Iterable[Calibration] | None = None) -> None:
        self._given = None if calibrations is None else tuple(calibrations)

    @property
    def every(self) -> tuple[Calibration, ...]:
        """All calibrations."""
        return catalog_calibrations() if self._given is None else self._given

    def without(self, *systems: str) -> Libraries:
        """Return the same as if some systems or networks had never been measured."""
        return Libraries(each for each in self.every if each.system not in systems)

    def preferring(self, own: Iterable[Calibration]) -> Libraries:
        """Return the same with some calibrations in place of those of the same name and system."""
        own = tuple(own)
        taken = {(each.system, each.library) for each in own}
        rest = (each for each in self.every if (each.system, each.library) not in taken)
        return Libraries((*rest, *own))

    @property
    def has_tables(self) -> bool:
        """Whether any calibration corrects its formula by measured residuals."""
        return self._given is not None and any(each.residuals for each in self._given)

    def without_tables(self) -> Libraries:
        """Return the same by formulas alone."""
        return Libraries(replace(each, residuals=()) for each in self.every)

    def on(self, system: str) -> tuple[Calibration, ...]:
        """Return the calibrations measured on one system or network."""
        if self._given is None:
            return _in_catalog(system)
        return tuple(each for each in self._given if each.system == system)

    def names(self, cluster: Cluster) -> list[str]:
        """Return the libraries whose time can be predicted on a cluster, measured or inherited."""
        known = {
            each.library for each in self.every if not isinstance(each.constants, NetworkConstants)
        }
        return [name for name in sorted({*known, GENERIC}) if self.has(cluster, name)]

    def has(self, cluster: Cluster, library: str) -> bool:
        """Return whether a library's time can be predicted on a cluster."""
        if library == GENERIC:
            return True
        own = of_generation(self.on(cluster.system), library)
        return own is not None or bool(self.donors(cluster, library))

    def library(self, cluster: Cluster, library: str, version: str | None = None) -> Calibration:
        """Return the constants of a library on a cluster: its own, else its family's."""
        if library == GENERIC:
            return generic_library()
        since = generation(library, version) if library in ENGINES else "0"
        own = of_generation(self.on(cluster.system), library, since)
        if own is not None:
            return on_this_datasheet(own, cluster)
        donors = self.donors(cluster, library, since)
        if donors:
            return self.by_hosts(cluster, inherited(cluster, donors))
        raise UnknownNameError(
            f"library on {cluster.name}",
            library,
            [*self.names(cluster), *([TUNER] if cluster.device.vendor == "nvidia" else [])],
            f"(measured there or on its family, or {GENERIC}){_HOW_TO_FIT}",
        )

    def by_hosts(self, cluster: Cluster, calibration: Calibration) -> Calibration:
        """Return inherited constants with the shares that hosts leave of a rate over PCIe.

        Bridges are the server's, whatever boards sit behind them: each share is the geometric mean
        over all other machines whose boards are peers, and the same for every library.
        """
        names = {name: name.removeprefix("fallback_") for name in stated(calibration.constants)}
        names = {name: share for name, share in names.items() if share in HOST}
        rings = [each for each in self.every if isinstance(each.constants, RingLibrary)]
        measured = [
            stated(each.constants)
            for each in rings
            if each.system != cluster.name
            and link_family(catalog.cluster_named(each.system))[1] == link_family(cluster)[1]
        ]
        if not names or not measured:
            return calibration
        shares = {
            name: _geometric_mean([(one[share], 1.0) for one in measured])
            for name, share in names.items()
        }
        constants = type(calibration.constants)(**stated(calibration.constants) | shares)
        return replace(calibration, constants=constants)

    def network(self, network: Network) -> Calibration:
        """Return what a network adds: its own constants, else what its relatives have."""
        for own in self.on(network.name):
            if isinstance(own.constants, NetworkConstants):
                return own
        return self.network_family(network)

    def network_family(self, network: Network) -> Calibration:
        """Return what a network inherits, as if it had not been measured.

        Each constant is a geometric mean over all measured networks. Those of the same kind count
        most, those of a related kind only where there are none, and each by its rows: few rows
        leave most constants where the fit began.
        """
        known = [
            one
            for one in self.every
            if isinstance(one.constants, NetworkConstants) and one.system != network.name
        ]
        others = [catalog.network_named(one.system) for one in known]
        nearness = [_nearness(other, network) for other in others]
        values: dict[str, list[tuple[float, float]]] = {}
        for one, other, near in zip(known, others, nearness, strict=True):
            weight = near * one.fit.rows / (one.fit.rows + _FEW_ROWS)
            for name, value in stated(one.constants).items():
                values.setdefault(name, []).append((value, weight * _alike(name, other, network)))
        mean = {name: _geometric_mean(each) for name, each in values.items()}
        nearest = [one for one, near in zip(known, nearness, strict=True) if near == max(nearness)]
        return Calibration(
            system=network.name,
            library="network",
            constants=NetworkConstants(**mean),
            fit=nearest[0].fit,
            inherited_from=tuple(one.system for one in nearest),
        )

    def donors(self, cluster: Cluster, library: str, since: str = "0") -> list[Calibration]:
        """Return the calibrations of a cluster's family: same links, same architecture if any."""
        family = []
        for name in sorted({each.system for each in self.every if each.library == library}):
            other = catalog.cluster_named(name)
            own = of_generation(self.on(name), library, since)
            alike = link_family(other) == link_family(cluster)
            if library in FRAMEWORKS and cluster.tiers[-1].kind != "torus":
                # A matter of the host, whatever the links.
                alike = other.device.vendor == cluster.device.vendor
            if own and name != cluster.system and alike:
                family.append((other, own))
        architecture = cluster.device.architecture
        same = [pair for pair in family if pair[0].device.architecture == architecture]
        return [own for _, own in same or family]


def of_generation(
    measured: Iterable[Calibration], library: str, since: str = "0"
) -> Calibration | None:
    """Return the constants of a library, of one generation of it or, without any, of another."""
    own = [each for each in measured if each.library == library]
    same_age = [each for each in own if each.since == since]
    return next(iter(same_age or own), None)


CATALOG_LIBRARIES: Final = Libraries()
"""The catalog's own constants."""


def default_library(cluster: Cluster) -> str:
    """Return the library of a device's vendor, which engines fall back to.

    Devices on a torus are programmed through XLA, which has collectives of its own there.
    The generic one where the vendor's was measured neither on the cluster nor on its family.
    """
    device = cluster.device
    own = _VENDORS_OWN.get(device.vendor)
    if cluster.tiers[-1].kind == "torus":
        own = "xla"
    elif device.architecture.startswith("gaudi"):
        own = "hccl"
    if own is None:
        return GENERIC
    if cluster.profile and any(each.library == own for each in profile_calibrations(cluster)):
        return own
    return own if CATALOG_LIBRARIES.has(cluster, own) else GENERIC


def name_and_version(library: str) -> tuple[str, str | None]:
    """Return ``("sglang", "0.5.10")`` for ``sglang==0.5.10``."""
    if not isinstance(library, str):
        raise BadTypeError("library", library, "a name")
    name, given, version = library.partition("==")
    if given and (name not in ENGINES or not version_numbers(version)):
        rule = f"a name; {', '.join(ENGINES)} may have a version, such as sglang==0.5.10"
        raise BadValueError("library", library, rule)
    return name, version or None


def generation(engine: str, version: str | None) -> str:
    """Return since which version an engine's kernels are as in `version`; the newest without one.

    >>> generation("sglang", "0.5.10"), generation("sglang", None)
    ('0', '0.5.12')
    """
    since: str = engine_rules(engine, version)["since"]
    return since


def engine_rules(engine: str, version: str | None) -> dict[str, Any]:
    """Return by which rules a version of an engine chooses its kernels."""
    newest_first: list[dict[str, Any]] = catalog.tuner_table(engine)["generation"]
    if version is None:
        return newest_first[0]
    numbers = version_numbers(version)
    older = (each for each in newest_first if numbers >= version_numbers(each["since"]))
    return next(older, newest_first[-1])


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with, to compare: 1.3.0rc10 is (1, 3, 0)."""
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def link_family(cluster: Cluster) -> tuple[str, str]:
    """Return what systems must share for one to inherit another's constants."""
    tier = cluster.tiers[0]
    if tier.kind == "torus":
        return "any", "torus"
    if tier.kind != "pcie":
        return cluster.device.vendor, "links"
    return cluster.device.vendor, "pcie" if tier.peer_access else "pcie through the host"


def on_this_datasheet(own: Calibration, cluster: Cluster) -> Calibration:
    """Return the constants measured on a cluster's system, scaled where its datasheet differs.

    A what-if on a cluster of the catalog or a profile (a faster link, another clock) is another
    machine: its constants follow the datasheet, and say that they were inherited.
    """
    measured = catalog.cluster_named(cluster.system)
    same = measured.tiers == cluster.tiers and measured.device == cluster.device
    if same or isinstance(own.constants, NetworkConstants):
        return own
    scaled = inherited(cluster, [replace(own, system=cluster.system)])
    if scaled.constants == own.constants:
        return own
    # Errors of a user's own rows say nothing of another datasheet.
    return replace(scaled, fit=replace(own.fit, low_pct=None, high_pct=None))


def inherited(cluster: Cluster, donors: list[Calibration]) -> Calibration:
    """Return the constants of a system that was not measured, from its family and its datasheet.

    Each constant is the geometric mean over the donors, in units of the datasheet. Systems of one
    architecture count as one, so that a well-measured generation does not outvote the others.
    """
    machines = [catalog.cluster_named(each.system) for each in donors]
    names = [machine.device.architecture for machine in machines]
    scaled: dict[str, list[tuple[float, float]]] = {}
    for donor, machine in zip(donors, machines, strict=True):
        weight = 1 / names.count(machine.device.architecture)
        for name, value in stated(donor.constants).items():
            here, there = datasheet_unit(name, cluster), datasheet_unit(name, machine)
            scaled.setdefault(name, []).append((value * (here / there), weight))
    if not cluster.tiers[0].in_switch_reduction:
        scaled = {name: values for name, values in scaled.items() if not in_switch(name)}
    mean = {name: _geometric_mean(values) for name, values in scaled.items()}
    return replace(
        donors[0],
        system=cluster.name,
        constants=type(donors[0].constants)(**mean),
        inherited_from=tuple(each.system for each in donors),
        residuals=(),  # of one machine alone
    )


def in_switch(name: str) -> bool:
    """Return whether a constant is of in-switch reduction."""
    return name.startswith(("nvls_", "multicast_"))


def datasheet_unit(name: str, cluster: Cluster) -> float:
    """Return the figure of the datasheet that a constant scales with.

    Latency is instructions, so clock cycles, more of them where a device is of two dies; a rate is
    a share of the link, and in the switch of what NCCL takes a generation to reach there.
    """
    clock = float(stated_clock_hz(cluster.device))
    if name in _BY_CLOCK:
        return clock
    if name in _BY_HOST:
        return float(catalog.tuner_table("start")["host"][host_of(cluster)])
    if name in _BY_MEMORY:
        return float(cluster.device.memory_bytes_per_s)
    if name.endswith("_bytes_per_s"):
        return _reached(name, cluster) * float(cluster.tiers[0].bytes_per_s)
    if name.endswith("_s"):
        return _cycles(name, cluster) / clock
    return 1.0


def _reached(name: str, cluster: Cluster) -> float:
    """Return what share of the links' rate NCCL takes a generation to reach in the switch."""
    if name != "nvls_bytes_per_s":
        return 1.0
    shares = catalog.tuner_table("nccl")["in_switch"]["efficiency"]
    return float(shares.get(nccl_generation(cluster.device), shares["hopper"]))


def _cycles(name: str, cluster: Cluster) -> float:
    """Return how many cycles a latency takes, over those of a device of one die."""
    table = catalog.tuner_table("start")["two_dies"]
    farther = cluster.device.compute_capability in table["capabilities"]
    return float(table["cycles"]) if farther and name.endswith(_SIGNALS) else 1.0


def nccl_generation(device: Device) -> str:
    """Return the row of NCCL's tables for a device, by its compute capability."""
    generation = int((device.compute_capability or "7.0").split(".")[0])
    return {7: "volta", 8: "ampere", 9: "hopper"}.get(generation, "blackwell")


def host_of(cluster: Cluster) -> str:
    """Return the kind of host: a superchip's, or one that its devices reach over PCIe.

    >>> host_of(Cluster.named("gb300_nvl72")), host_of(Cluster.named("b300_sxm"))
    ('superchip', 'pcie')
    """
    link = cluster.device.host_link_bytes_per_s
    least = 1e9 * catalog.tuner_table("start")["host"]["superchip_link_gb_per_s"]
    return "superchip" if link is not None and link >= least else "pcie"


def _geometric_mean(values: list[tuple[float, float]]) -> float:
    """Return the geometric mean of values with their weights."""
    if len(values) == 1:
        return values[0][0]
    total = sum(weight for _, weight in values)
    return exp(sum(weight * log(value) for value, weight in values) / total)


def _nearness(measured: Network, network: Network) -> float:
    """Return how much the constants of a measured network count for another, by their kinds."""
    if measured.kind == network.kind:
        return _NEARNESS[0]
    if any({measured.kind, network.kind} <= family for family in _NETWORK_FAMILIES):
        return _NEARNESS[1]
    return _NEARNESS[2]


def _alike(name: str, measured: Network, network: Network) -> float:
    """Return what is left of that for one constant, by the way to the ports."""
    if measured.gpu_direct == network.gpu_direct:
        return 1.0
    return _OTHER_COPIES if name in _RATES else _OTHER_MEMORY


def profile_in(path: str | Path, network: str | Network | None = None) -> Cluster:
    """Return the cluster of a profile whose constants are sound too; errors name the file."""
    return _sound(Cluster.from_file(path, network), str(path))


def profile_of_text(text: str, network: str | Network | None = None) -> Cluster:
    """Return the cluster of a profile's text whose constants are sound too."""
    return _sound(catalog.cluster_in_text(text, network, "profile"), "profile")


def _sound(cluster: Cluster, file: str) -> Cluster:
    try:
        profile_calibrations(cluster)
        profile_sections(cluster)
    except FormatError as error:
        raise FormatError(file, error.reason) from None
    return cluster

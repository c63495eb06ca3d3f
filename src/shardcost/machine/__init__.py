"""A machine: a cluster with every fitted constant that holds there, as one value.

`machine_of(cluster, software)` resolves which constants those are, once; everything that is priced
takes them from the `Machine` it is given. What-if questions, calibrations, refits and leaving
measurements out are other machines: ``replace(machine, …)`` or `machine_of` with other constants.
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import lru_cache
from typing import Any, Final

from shardcost import catalog
from shardcost.catalog.figures import Unchanged, unchanged_of
from shardcost.cluster import Cluster, Device
from shardcost.errors import BadTypeError, BadValueError
from shardcost.machine.constants import Calibration, Jitter, NetworkConstants, catalog_jitter
from shardcost.machine.dispatch import CATALOG_DISPATCH, DispatchTables, Kernel, Resolved
from shardcost.machine.kernels import (
    CATALOG_KERNELS,
    KernelConstants,
    KernelTables,
    clock_hz,
)
from shardcost.machine.libraries import (
    CATALOG_LIBRARIES,
    ENGINES,
    GENERIC,
    MULTIMEM,
    Libraries,
    default_library,
    generation,
    of_generation,
    on_this_datasheet,
    profile_calibrations,
)
from shardcost.machine.profile_kernels import profile_sections
from shardcost.records import NamedTuple, dataclass
from shardcost.software import Software

_TORCH: Final = "torch"
"""The software whose kernels `shardcost measure kernels` times."""

_OF_KERNELS: Final = frozenset({"pieces", "estimates", "in bursts"})
"""What a machine keeps that depends on its kernels."""


class Fitted(NamedTuple):
    """All fitted constants that machines are resolved from."""

    kernels: KernelTables = CATALOG_KERNELS
    libraries: Libraries = CATALOG_LIBRARIES
    dispatch: DispatchTables = CATALOG_DISPATCH

    def without(self, *systems: str) -> Fitted:
        """Return the same as if some systems or networks had never been measured."""
        return Fitted(
            self.kernels.without(*systems),
            self.libraries.without(*systems),
            self.dispatch.without(*systems),
        )


CATALOG = Fitted()


def by_profile(cluster: Cluster) -> Fitted:
    """Return the catalog's constants, those of a profile's system replaced by the profile's."""
    if not cluster.profile:
        raise BadValueError("--on", cluster.name, "a calibrated profile: it has no constants")
    own = (
        each
        if isinstance(each.constants, NetworkConstants)
        else replace(each, system=cluster.system)
        for each in profile_calibrations(cluster)
    )
    return CATALOG._replace(
        libraries=CATALOG.libraries.preferring(own),
        kernels=CATALOG.kernels.preferring(cluster.system, profile_sections(cluster)),
    )


@dataclass(frozen=True, eq=False)
class Machine:
    """A cluster, with the constants by which it is priced under some software."""

    cluster: Cluster
    kernels: KernelConstants
    libraries: Libraries
    """What constants of collective libraries are resolved from, when one is first used."""
    engine_library: str | None = None
    """The library that the software has for tensor-parallel collectives, if any."""
    own: tuple[Calibration, ...] = ()
    """Constants measured on this very cluster or network, by a profile: they come first."""
    dispatch: DispatchTables = CATALOG_DISPATCH
    """What constants of dispatch and combine kernels are resolved from."""
    jitter: Jitter = field(default_factory=catalog_jitter)
    """How nodes and steps scatter."""
    memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    """Library constants resolved so far, and prices of operations: a value's own cache, so that
    nothing is priced twice on one machine and nothing outlives it."""

    def with_device(self, device: Device) -> Machine:
        """Return the same machine with another device: kernels follow its datasheet.

        Collectives stay as they are, and so do their prices.
        """
        other = replace(self, kernels=replace(self.kernels, device=device))
        kept = {name: each for name, each in self.memo.items() if name not in _OF_KERNELS}
        other.memo.update(kept)
        return other

    @property
    def in_bursts(self) -> Machine:
        """The same machine at its boost clock, for kernels that run alone and not for long."""
        if "in bursts" not in self.memo:
            kernels = replace(self.kernels, power_limited=False)
            self.memo["in bursts"] = replace(self, kernels=kernels)
        other: Machine = self.memo["in bursts"]
        return other

    def with_own(self, *calibrations: Calibration | None) -> Machine:
        """Return the same machine with constants of its own for some libraries or its network."""
        given = tuple(each for each in calibrations if each is not None)
        return replace(self, own=(*given, *self.own))

    def library(self, name: str, version: str | None = None) -> Calibration:
        """Return the constants of a collective library, with the version of an engine if given."""
        key = ("library", name, version)
        if key not in self.memo:
            since = generation(name, version) if self.own and name in ENGINES else "0"
            own = of_generation(self.own, name, since)
            self.memo[key] = own or self.libraries.library(self.cluster, name, version)
        calibration: Calibration = self.memo[key]
        return calibration

    def has_library(self, name: str) -> bool:
        """Return whether the time of a library can be predicted here."""
        own = any(each.library == name for each in self.own)
        return own or self.libraries.has(self.cluster, name)

    @property
    def network(self) -> Calibration:
        """The constants of the network that joins the nodes."""
        if "network" not in self.memo:
            network = self.cluster.network
            assert network is not None  # noqa: S101
            own = (each for each in self.own if each.system == network.name)
            self.memo["network"] = next(own, None) or self.libraries.network(network)
        calibration: Calibration = self.memo["network"]
        return calibration

    def dispatch_kernel(self, kernel: Kernel, phase: str) -> Resolved:
        """Return the constants of one phase of a dispatch and combine kernel."""
        key = ("dispatch", kernel.name, phase)
        if key not in self.memo:
            self.memo[key] = self.dispatch.resolved(self.cluster, kernel, phase)
        resolved: Resolved = self.memo[key]
        return resolved

    @property
    def unchanged(self) -> Unchanged | None:
        """The catalog's machine of which this one has other rates of links or network, if any."""
        if "unchanged" not in self.memo:
            self.memo["unchanged"] = unchanged_of(self.cluster)
        found: Unchanged | None = self.memo["unchanged"]
        return found

    @property
    def default_library(self) -> str:
        """The library of the device's vendor, or the generic one."""
        if "default library" not in self.memo:
            self.memo["default library"] = default_library(self.cluster)
        name: str = self.memo["default library"]
        return name

    @property
    def tensor_library(self) -> str:
        """The library of tensor-parallel collectives: the software's where it has constants."""
        if "tensor library" not in self.memo:
            own = self.engine_library
            in_switch = own == MULTIMEM and self.cluster.tiers[-1].in_switch_reduction
            in_switch = in_switch and self.default_library != GENERIC
            if not own or not (in_switch or self.has_library(own)):
                own = self.default_library
            self.memo["tensor library"] = own
        name: str = self.memo["tensor library"]
        return name


def machine_of(
    cluster: Cluster | Machine | str, software: Software | None = None, fitted: Fitted = CATALOG
) -> Machine:
    """Return a cluster with the constants that hold there under a software.

    >>> machine_of("h100_sxm").library("nccl").fit.rows
    731

    Args:
        cluster: A cluster or its name in the catalog; a machine is returned as it is.
        software: What runs on it; it may have kernels and a library of its own.
        fitted: The constants to resolve from.
    """
    if isinstance(cluster, Machine):
        return cluster
    if isinstance(cluster, str):
        cluster = Cluster.named(cluster)
    if not isinstance(cluster, Cluster):
        raise BadTypeError("cluster", cluster, "a Cluster or the name of one")
    if software is None:
        return _machine_of(cluster, None, None, None, fitted)
    timed = catalog.tuner_table("gemm")["timed_with"]
    timed_with = timed["by_software"].get(software.name, timed["else"])
    return _machine_of(cluster, software.kernels, software.library, timed_with, fitted)


@lru_cache(maxsize=64)  # so that prices found for one layout serve the next one on the same machine
def _machine_of(
    cluster: Cluster,
    kernels: str | None,
    library: str | None,
    timed_with: str | None,
    fitted: Fitted,
) -> Machine:
    like = cluster.device
    if cluster.system in catalog.names("clusters"):
        # A what-if on a catalog device keeps its relatives, or more of something could cost time.
        preset = catalog.cluster_named(cluster.system).device
        like = preset if preset.name == like.name else like
    # A clock that nobody states is looked up once: every kernel asks for it. That of a changed
    # device is that of the device that was changed: relatives are found by their peak.
    clock = clock_hz(like)
    device = cluster.device
    device = replace(device, boost_clock_hz=device.boost_clock_hz or clock)
    like = replace(like, boost_clock_hz=clock)
    constants = KernelConstants(device, like, kernels, timed_with=timed_with, tables=fitted.kernels)
    own: tuple[Calibration, ...] = ()
    given = dict(fitted.kernels.given.get(cluster.system, {}))
    if cluster.profile:
        own = tuple(on_this_datasheet(each, cluster) for each in profile_calibrations(cluster))
        given = profile_sections(cluster) or given
    if cluster.based_on and timed_with not in {None, _TORCH}:
        # Engines have attention kernels of their own; torch's say nothing of those.
        given = {
            key: section
            for key, section in given.items()
            if key[0] != "attention" or section.fit.measured_with == kernels
        }
    if ("gemm", "bf16") in given and ("gemm", "fp8") not in given:
        # What was measured in 16 bits stands in for nothing that the catalog has in 8.
        given["gemm", "fp8"] = constants.section("gemm", "fp8", "bf16")
    constants = replace(constants, sections=given)
    return Machine(cluster, constants, fitted.libraries, library, own, fitted.dispatch)


__all__ = [
    "CATALOG",
    "Calibration",
    "Fitted",
    "KernelConstants",
    "Machine",
    "by_profile",
    "machine_of",
]

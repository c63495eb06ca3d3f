"""What a collective takes where something is wrong: every cause is a changed machine, priced.

A cause is a function of a `Curve` (a collective of some sizes on a group of a machine) and of how
severe it is. It changes the machine (no reduction in the switch, one network card, PCIe in place of
NVLink) or forces what the library runs, and asks `collective_time` what the sizes take then. None
is returned where a cause does not apply: no network card fails inside a node. Names, words,
settings to look at and severities are data (``catalog/tuner/causes.toml``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from shardcost.catalog import network_named, tuner_table
from shardcost.cluster import Cluster, Network, Tier
from shardcost.collectives.group import Group
from shardcost.collectives.library_time import CollectiveTime, collective_time
from shardcost.collectives.paths import exists, total
from shardcost.collectives.tuner import architecture_row
from shardcost.collectives.tuner import tables as nccl_tables
from shardcost.errors import ShardcostError
from shardcost.machine import Machine, machine_of
from shardcost.machine.constants import LINK_RATES, NetworkConstants, RingLibrary, stated
from shardcost.units import GIGA
from shardcost.validate.collectives import times_s
from shardcost.validate.predictions import Floats

_SENDS: Final = frozenset({"all_to_all", "send_recv"})
"""Collectives of sends, which neither NCCL_ALGO nor NCCL_PROTO nor NCCL_MAX_NCHANNELS is about."""
_FEWEST_NICS: Final = 3
"""With fewer, one of them is half of the network."""
_MICRO: Final = 1e-6


class Cause(NamedTuple):
    """What may be wrong, without its price."""

    key: str
    words: str
    settings: tuple[str, ...]
    """What to look at: variables, tools, services."""
    severities: tuple[float, ...]
    """How severe it is supposed to be, one by one; empty where single rows tell."""
    unit: str
    """Of severities; empty where there is but one."""
    error: float
    """Of its price beyond that of the healthy machine's, as a standard deviation of the
    logarithm: constants of other systems stand in for some causes."""


@dataclass(frozen=True, eq=False)
class Curve:
    """A collective of some sizes on a group of a machine."""

    collective: str
    size_bytes: Floats
    machine: Machine
    gpus: int
    nodes: int | None
    library: str
    single_process: bool = False

    @property
    def cluster(self) -> Cluster:
        """The machine's."""
        return self.machine.cluster

    @cached_property
    def group(self) -> Group:
        """Where the ranks sit."""
        return Group.on(self.cluster, self.gpus, self.nodes)

    @property
    def crosses(self) -> bool:
        """Whether anything goes through the network."""
        return bool(self.group.domains > 1)

    def result(
        self,
        machine: Machine | None = None,
        *,
        algorithm: str | None = None,
        protocol: str | None = None,
    ) -> CollectiveTime:
        """Return what the sizes take here or on another machine, by the library's choice or not."""
        return collective_time(
            self.collective,
            self.size_bytes,
            machine or self.machine,
            self.gpus,
            self.nodes,
            library=self.library,
            algorithm=algorithm,
            protocol=protocol,
        )

    def time_s(
        self,
        machine: Machine | None = None,
        *,
        algorithm: str | None = None,
        protocol: str | None = None,
    ) -> Floats:
        """Return the seconds of `result`, as measured."""
        result = self.result(machine, algorithm=algorithm, protocol=protocol)
        return times_s(result, single_process=self.single_process)

    def on(self, **changes: Any) -> Floats:
        """Return the seconds on a changed cluster."""
        return self.time_s(machine_of(replace(self.cluster, **changes)))

    def on_tier(self, **changes: Any) -> Floats:
        """Return the seconds with other links inside a domain."""
        tiers = (*self.cluster.tiers[:-1], replace(self.cluster.tiers[-1], **changes))
        return self.on(tiers=tiers)

    def on_network(self, **changes: Any) -> Floats:
        """Return the seconds with another network of the same constants."""
        return self.on(network=replace(self.network, **changes))

    @property
    def network(self) -> Network:
        """The network, of a curve that crosses one."""
        assert self.cluster.network is not None  # noqa: S101
        return self.cluster.network

    @property
    def nics(self) -> float:
        """Of a node."""
        rate = self.network.node_bytes_per_s(self.cluster.gpus_per_node)
        return float(rate / self.network.nic_bytes_per_s)


Price: TypeAlias = Callable[[Curve, float], Floats | None]


def causes() -> tuple[Cause, ...]:
    """Return every cause, in the order of the catalog."""
    return tuple(
        Cause(
            each["key"],
            each["words"],
            tuple(each["settings"]),
            tuple(each.get("severities", ())),
            each.get("unit", ""),
            each.get("error", 0.0),
        )
        for each in tuner_table("causes")["cause"]
    )


def priced(cause: Cause, curve: Curve, severity: float) -> Floats | None:
    """Return the seconds of a curve where something is wrong; None where that does not apply."""
    try:
        seconds = PRICES[cause.key](curve, severity)
    except ShardcostError:  # nothing like it can be forced, or was measured, there
        return None
    return seconds if seconds is not None and np.isfinite(seconds).all() else None


def figures(key: str) -> Mapping[str, Any]:
    """Return what the catalog says of a cause."""
    found: Mapping[str, Any] = next(
        each for each in tuner_table("causes")["cause"] if each["key"] == key
    )
    return found


def _nvls_off(curve: Curve, _: float) -> Floats | None:
    if not curve.group.tier.in_switch_reduction:
        return None
    return curve.on_tier(in_switch_reduction=False)


def _forced(algorithm: str | None = None, protocol: str | None = None) -> Price:
    """Return the price of what a library is made to run."""

    def price(curve: Curve, _: float) -> Floats | None:
        if curve.collective in _SENDS:
            return None
        return curve.time_s(algorithm=algorithm, protocol=protocol)

    return price


def _few_channels(curve: Curve, channels: float) -> Floats | None:
    """Return the seconds on a few channels, each at the rate that NCCL's search gives it.

    Of that rate LL and LL128 have a share; a channel leads out of a node by one NIC. NCCL
    knows its channels when it chooses: the fastest path counts, where that is another.
    """
    graph, group = nccl_tables()["graph"], curve.group
    own = curve.machine.library(curve.library)
    if curve.collective in _SENDS or not isinstance(own.constants, RingLibrary):
        return None
    one = graph["pcie_share"] * group.link_bytes_per_s / graph["pcie_channels"]
    if group.has_nvlink:
        one = graph["channel_gb_per_s"][architecture_row(group)] * GIGA
    shares = nccl_tables()["rate_share"]
    of_channel = {"ll_bytes_per_s": shares["ring_ll"], "ll128_bytes_per_s": shares["ring_ll128"]}
    capped = {
        name: min(value, channels * one * of_channel.get(name, 1.0))
        for name, value in stated(own.constants).items()
        if name in LINK_RATES
    }
    if all(rate == getattr(own.constants, name) for name, rate in capped.items()):
        return None
    changed = [replace(own, constants=replace(own.constants, **capped))]
    if curve.crosses:
        across = curve.machine.network
        constants = across.constants
        assert isinstance(constants, NetworkConstants)  # noqa: S101
        share = min(1.0, channels / curve.nics)
        constants = replace(constants, efficiency=constants.efficiency * share)
        changed.append(replace(across, constants=constants))
    result = curve.result(curve.machine.with_own(*changed))
    left = {path: parts for path, parts in result.paths.items() if exists(path, group)}
    fastest = np.minimum.reduce([result.time_s, *map(total, left.values())])
    return times_s(replace(result, time_s=fastest), single_process=curve.single_process)


def _links_down(curve: Curve, share: float) -> Floats | None:
    if not curve.group.has_nvlink:
        return None
    return curve.on_tier(bytes_per_s=share * curve.group.tier.bytes_per_s)


def _pcie(curve: Curve, peer_access: float) -> Floats | None:
    """Return the seconds over PCIe, by the constants of systems that have nothing else."""
    rate = curve.cluster.device.host_link_bytes_per_s
    if not curve.group.has_nvlink or rate is None:
        return None
    return _over_pcie(curve, rate, peer_access=bool(peer_access))


def _peer_access_off(curve: Curve, _: float) -> Floats | None:
    tier = curve.group.tier
    if curve.group.has_nvlink or not tier.peer_access:
        return None
    return _over_pcie(curve, tier.bytes_per_s, peer_access=False)


def _over_pcie(curve: Curve, rate: Any, *, peer_access: bool) -> Floats:
    cluster = curve.cluster
    links = Tier(
        name="pcie",
        kind="pcie",
        gpus=int(cluster.gpus_per_node),
        bytes_per_s=rate,
        peer_access=peer_access,
    )
    # Another name: constants measured over the links of this one do not hold.
    return curve.on(tiers=(links,), name=f"{cluster.name}_over_pcie", based_on=None, profile="")


def _pcie_width(curve: Curve, share: float) -> Floats | None:
    if curve.group.has_nvlink:
        return None
    return curve.on_tier(bytes_per_s=share * curve.group.tier.bytes_per_s)


def _cross_socket(curve: Curve, _: float) -> Floats | None:
    """Return the seconds of a few ranks on both sockets, as of a node that has no more."""
    ranks, tier = curve.gpus, curve.group.tier
    alone = not curve.group.has_nvlink and not curve.crosses and ranks <= tier.gpus / 2
    if not alone or ranks < 2:
        return None
    return curve.on(gpus_per_node=ranks, tiers=(replace(tier, gpus=ranks),))


def _one_nic(curve: Curve, _: float) -> Floats | None:
    if not curve.crosses or curve.nics < _FEWEST_NICS:
        return None
    return curve.on_network(nics_per_node=1, nics_per_gpu=None)


def _half_network(curve: Curve, share: float) -> Floats | None:
    if not curve.crosses:
        return None
    return curve.on_network(nic_bytes_per_s=share * curve.network.nic_bytes_per_s)


def _tcp(curve: Curve, times: float) -> Floats | None:
    if not curve.crosses or curve.network.kind == "tcp":
        return None
    tcp = network_named("tcp")
    return curve.on(network=replace(tcp, nic_bytes_per_s=times * tcp.nic_bytes_per_s))


def _gpu_direct_off(curve: Curve, times: float) -> Floats | None:
    """Return the seconds where bytes to and from the network are staged in the host's memory."""
    host_link = curve.cluster.device.host_link_bytes_per_s
    if not curve.crosses or not curve.network.gpu_direct or host_link is None:
        return None
    given = figures("gpu_direct_off")
    by_memory = given["host_memory_gb_per_s"] * GIGA / (4 * curve.cluster.gpus_per_node)
    staged = times * min(host_link / 2, by_memory)
    own = curve.machine.network
    constants = own.constants
    assert isinstance(constants, NetworkConstants)  # noqa: S101
    share = min(1.0, float(staged / (constants.efficiency * curve.group.port_bytes_per_s)))
    more_s = given["copies_us"] * _MICRO
    slower = replace(
        constants,
        efficiency=constants.efficiency * share,
        latency_s=constants.latency_s + more_s,
        ll128_latency_s=constants.ll128_latency_s + more_s,
    )
    return curve.time_s(curve.machine.with_own(replace(own, constants=slower)))


def _oversubscribed(curve: Curve, times: float) -> Floats | None:
    network = curve.cluster.network
    if network is None or not curve.group.beyond_leaf:
        return None
    return curve.on_network(oversubscription=times * network.oversubscription)


def _launch_floor(curve: Curve, launch_us: float) -> Floats | None:
    """Return the longer of the time on the device and that of a launch, which go side by side."""
    power = figures("launch_floor")["power"]
    time: Floats = (curve.time_s() ** power + (launch_us * _MICRO) ** power) ** (1 / power)
    return time


PRICES: Final[Mapping[str, Price]] = {
    "nvls_off": _nvls_off,
    "ring_forced": _forced(algorithm="ring"),
    "tree_forced": _forced(algorithm="tree"),
    "ll_only": _forced(protocol="LL"),
    "simple_only": _forced(protocol="Simple"),
    "few_channels": _few_channels,
    "links_down": _links_down,
    "pcie": _pcie,
    "peer_access_off": _peer_access_off,
    "pcie_width": _pcie_width,
    "cross_socket": _cross_socket,
    "one_nic": _one_nic,
    "half_network": _half_network,
    "tcp": _tcp,
    "gpu_direct_off": _gpu_direct_off,
    "oversubscribed": _oversubscribed,
    "launch_floor": _launch_floor,
}
"""The price of every cause that whole curves tell; the others are told by single rows."""

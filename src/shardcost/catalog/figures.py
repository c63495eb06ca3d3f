"""The figures of a machine, by name: in hardware files, in ``--set`` and in the template.

One table, `FIGURES`: what each is called, in which unit it is written, which field of which noun it
is, and what it means. A figure is set by its name (``device.memory_bandwidth=8TB/s``), stands in a
file as the last part of the name under a table of the first (``[device] memory_bandwidth =
"8TB/s"``), or, as in the catalog, as a number under the key that has its unit
(``memory_bandwidth_gb_per_s = 8000``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import log
from typing import Any, Final

from shardcost import values
from shardcost.cluster import Cluster, Device, Network, Source
from shardcost.dtypes import BITS
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.records import NamedTuple
from shardcost.scalars import positive_number, whole_number
from shardcost.units import (
    format_bytes,
    format_flops,
    format_rate,
    parse_bytes,
    parse_flops,
    parse_frequency,
    parse_power,
    parse_rate,
)

GB, GIB, MIB, GBIT, TERA, MEGA = 10**9, 2**30, 2**20, 10**9 / 8, 10**12, 10**6
PEAK: Final = "device.peak"
_GIVEN: Final = Source("given by the caller")


class Kind(NamedTuple):
    """How figures of a kind are written."""

    read: Callable[[str, str], Any]
    """From a text and the name of the figure to a number in base units."""
    shown: Callable[[Any], str]
    unit: str
    """In words."""


def _count(text: str, name: str) -> int:
    return whole_number(name, values.whole(name, text), 1)


def _number(text: str, name: str) -> float:
    return positive_number(name, values.number(name, text))


def _axes(text: str, name: str) -> tuple[float, ...]:
    """Return a number for each axis of a torus, from a text such as 4x4x8."""
    return tuple(
        whole_number(name, int(each), 1) if each.isdecimal() else _number(each, name)
        for each in text.split("x")
    )


KINDS: Final[Mapping[str, Kind]] = {
    "size": Kind(parse_bytes, lambda value: format_bytes(value).replace(" ", ""), "bytes"),
    "rate": Kind(parse_rate, lambda value: format_rate(value).replace(" ", ""), "bytes or bits/s"),
    "flops": Kind(parse_flops, lambda value: format_flops(value).replace(" ", ""), "FLOP/s"),
    "clock": Kind(parse_frequency, lambda value: f"{value / MEGA:g}MHz", "Hz"),
    "power": Kind(parse_power, lambda value: f"{value:g}W", "watts"),
    "count": Kind(_count, str, "a whole number"),
    "number": Kind(_number, lambda value: f"{value:g}", "a number"),
    "axes": Kind(_axes, lambda value: "x".join(f"{each:g}" for each in value), "like 4x4x8"),
    "flag": Kind(lambda text, name: values.truth(name, text), lambda v: str(v).lower(), "a flag"),
}


class Figure(NamedTuple):
    """One figure of a machine."""

    name: str
    """In ``--set``, and in a file as table and key."""
    kind: str
    path: str
    """Of the field that it is, as `Cluster.sources` has it."""
    key: str
    """In files of the catalog, with its unit …"""
    unit: float
    """… which is so many base units."""
    meaning: str
    required: bool = False
    is_rate: bool = False
    """More of it is a better machine."""

    @property
    def table(self) -> str:
        """The table of a file that it stands in; empty for the file itself."""
        return self.name.rpartition(".")[0]

    @property
    def short(self) -> str:
        """Its key in a file, without a unit."""
        return self.name.rpartition(".")[2]

    def read(self, value: Any) -> Any:
        """Return a value, text with its unit or a number of base units, as the field has it."""
        if not isinstance(value, str):
            return value
        return KINDS[self.kind].read(value, self.name)

    def shown(self, value: Any) -> str:
        """Return a value to four digits, as ``--set`` writes it."""
        return KINDS[self.kind].shown(value)

    def exact(self, value: Any) -> str:
        """Return a value with all its digits, as a file has it."""
        text = self.shown(value)
        if self.read(text) == value:
            return text
        units = {"size": (1, "B"), "rate": (GB, "GB/s"), "flops": (TERA, "TFLOP/s")}
        unit, written = units.get(self.kind, (1, "Hz" if self.kind == "clock" else "W"))
        return f"{value / unit:.15g}{written}"


FIGURES: Final = (
    Figure("gpus_per_node", "count", "gpus_per_node", "gpus_per_node", 1,
           "devices of one node (one host)", required=True),
    Figure("device.memory", "size", "device.memory_bytes", "memory_gib", GIB,
           "memory of one device", required=True),
    Figure("device.memory_bandwidth", "rate", "device.memory_bytes_per_s",
           "memory_bandwidth_gb_per_s", GB, "of that memory", required=True, is_rate=True),
    Figure("device.sms", "count", "device.sms", "sms", 1,
           "streaming multiprocessors, compute units or cores", required=True),
    Figure("device.clock", "clock", "device.boost_clock_hz", "boost_clock_mhz", MEGA,
           "boost clock", is_rate=True),
    Figure("device.l2", "size", "device.l2_cache_bytes", "l2_cache_mib", MIB,
           "last-level cache"),
    Figure("device.power", "power", "device.power_w", "power_w", 1,
           "power limit of the board", is_rate=True),
    Figure("device.host_link", "rate", "device.host_link_bytes_per_s", "host_link_gb_per_s", GB,
           "to the host's memory, one direction", is_rate=True),
    Figure("link.bandwidth", "rate", "tiers.bytes_per_s", "bandwidth_gb_per_s", GB,
           "all links of a device together, one direction", required=True, is_rate=True),
    Figure("link.gpus", "count", "tiers.gpus", "domain_gpus", 1,
           "devices that these links join: of a node, or of a rack of several nodes",
           required=True),
    Figure("link.links_per_gpu", "count", "tiers.links_per_gpu", "links_per_gpu", 1,
           "links of one device"),
    Figure("link.in_switch_reduction", "flag", "tiers.in_switch_reduction",
           "in_switch_reduction", 1, "the switch adds up what passes it"),
    Figure("link.peer_access", "flag", "tiers.peer_access", "peer_access", 1,
           "devices reach each other's memory without a copy through the host"),
    Figure("link.peer_gpus", "count", "tiers.peer_gpus", "peer_gpus", 1,
           "on PCIe, devices that do so at the full rate at once"),
    Figure("link.shape", "axes", "tiers.shape", "shape", 1, "of a torus: chips along each axis"),
    Figure("link.wraps", "axes", "tiers.wraps", "wraps", 1,
           "of a torus: an axis is a ring where its length is a multiple of this"),
    Figure("link.axis_shares", "axes", "tiers.axis_shares", "axis_shares", 1,
           "of a torus: rates of the axes' links, relative to each other"),
    Figure("link.devices_per_chip", "count", "tiers.devices_per_chip", "devices_per_chip", 1,
           "of a torus: devices that share the links of a chip"),
    Figure("network.nic_rate", "rate", "network.nic_bytes_per_s", "nic_rate_gbit_per_s", GBIT,
           "one port, one direction, line rate", required=True, is_rate=True),
    Figure("network.nics_per_node", "count", "network.nics_per_node", "nics_per_node", 1,
           "ports of one node; or nics_per_gpu"),
    Figure("network.nics_per_gpu", "count", "network.nics_per_gpu", "nics_per_gpu", 1,
           "ports of one device, instead of nics_per_node"),
    Figure("network.gpu_direct", "flag", "network.gpu_direct", "gpu_direct", 1,
           "ports read and write the devices' memory"),
    Figure("network.leaf_domains", "count", "network.leaf_domains", "leaf_domains", 1,
           "nodes (or racks) that one leaf switch joins"),
    Figure("network.oversubscription", "number", "network.oversubscription",
           "oversubscription", 1, "what traffic beyond a leaf switch is divided by"),
    Figure("host.update_rate", "number", "host_update_per_s", "update_rate", 1,
           "weights that the processors of a node update in a second", is_rate=True),
)  # fmt: skip
BY_NAME: Final = {figure.name: figure for figure in FIGURES}
BY_PATH: Final = {figure.path: figure for figure in FIGURES}
ALIASES: Final = {"link": "link.bandwidth", "host.link": "device.host_link"}
_OF_SLICE: Final = frozenset({"tiers.gpus", "tiers.shape"})
"""What a slice of a torus has less of; its links are those of the whole."""
_OF_TORUS: Final = frozenset({"shape", "wraps", "axis_shares", "devices_per_chip"})
_STRUCTURE: Final = frozenset(
    {
        "gpus_per_node",
        "link.gpus",
        "link.in_switch_reduction",
        "link.peer_access",
        "link.peer_gpus",
        "network.leaf_domains",
    }
)
"""Figures that decide which paths there are, or how far they go."""


def peak_of(dtype: str) -> Figure:
    """Return the figure of the dense peak of a number format."""
    return Figure(
        f"{PEAK}.{dtype}", "flops", f"device.peak_flop_per_s.{dtype}", dtype, TERA,
        "dense, without sparsity", is_rate=True,
    )  # fmt: skip


def names() -> list[str]:
    """Return the names of figures that may be set; peaks, of every number format, by two."""
    return [*BY_NAME, PEAK, *(f"{PEAK}.{dtype}" for dtype in ("bf16", "fp8")), *ALIASES]


def figure_named(name: str) -> Figure:
    """Return the figure of a name; ``device.peak`` is that of all formats."""
    name = ALIASES.get(name.strip().replace("-", "_"), name.strip().replace("-", "_"))
    if name in BY_NAME:
        return BY_NAME[name]
    dtype = name.removeprefix(f"{PEAK}.")
    if name == PEAK or (name.startswith(PEAK) and dtype in BITS):
        return peak_of(dtype)
    raise UnknownNameError("figure", name, names())


def value_of(cluster: Cluster, figure: Figure) -> Any:
    """Return a figure of a machine in base units; None where it has none."""
    field = figure.path.rpartition(".")[2]
    match figure.table:
        case "network":
            return None if cluster.network is None else getattr(cluster.network, field)
        case "link":
            tier = cluster.tiers[-1]
            return None if field in _OF_TORUS and tier.kind != "torus" else getattr(tier, field)
        case "device":
            return getattr(cluster.device, field)
        case "device.peak":
            return cluster.device.peak_flop_per_s.get(figure.short)
    return getattr(cluster, field)


def with_figures(cluster: Cluster, changes: Mapping[str, Any]) -> Cluster:
    """Return the same machine with other figures; see `Cluster.with_figures`."""
    for name, value in changes.items():
        figure = figure_named(name)
        cluster = _changed(cluster, figure, figure.read(value))
    return cluster


def _changed(cluster: Cluster, figure: Figure, value: Any) -> Cluster:
    """Return the same machine with one other figure."""
    field = figure.path.rpartition(".")[2]
    given = {figure.path: _GIVEN}
    sources = {**cluster.sources, **given}
    if figure.table == "network":
        if cluster.network is None:
            raise BadValueError(figure.name, value, "of a network: name one with --network")
        others = {"nics_per_node": "nics_per_gpu", "nics_per_gpu": "nics_per_node"}
        fields: dict[str, Any] = {field: value}
        if field in others:
            fields[others[field]] = None
        cited = {**cluster.network.sources, field: _GIVEN}
        return replace(cluster, network=replace(cluster.network, **fields, sources=cited))
    if figure.table == "link":
        outermost = replace(cluster.tiers[-1], **{field: value})
        return replace(cluster, tiers=(*cluster.tiers[:-1], outermost), sources=sources)
    if figure.name.startswith(PEAK):
        return replace(cluster, device=_with_peak(cluster.device, figure, value), sources=sources)
    if figure.table == "device":
        device = replace(cluster.device, **{field: value})
        return replace(cluster, device=device, sources=sources)
    return replace(cluster, **{field: value}, sources=sources)


def _with_peak(device: Device, figure: Figure, value: Any) -> Device:
    """Return a device with another peak of one format, or of all by that of 16 bits."""
    peaks = dict(device.peak_flop_per_s)
    if figure.name != f"{PEAK}.{PEAK}":
        return replace(device, peak_flop_per_s={**peaks, figure.short: value})
    first = next((peaks[dtype] for dtype in ("bf16", "fp16") if dtype in peaks), None)
    usual = first or next(iter(peaks.values()))
    scaled = {dtype: peak * (value / usual) for dtype, peak in peaks.items()}
    return replace(device, peak_flop_per_s=scaled)


class Change(NamedTuple):
    """A figure that is not the catalog's."""

    figure: Figure
    before: Any
    after: Any

    @property
    def distance(self) -> float:
        """How far apart the two are: the logarithm of their ratio; 0 for flags and shapes."""
        if isinstance(self.before, bool | tuple) or None in {self.before, self.after}:
            return 0.0
        return abs(log(float(self.after) / float(self.before)))

    def __str__(self) -> str:
        """Return the change as ``device.memory 80GiB -> 96GiB``."""
        before, after = (
            "none" if value is None else self.figure.shown(value)
            for value in (self.before, self.after)
        )
        return f"{self.figure.name} {before} -> {after}"


def unchanged_network(cluster: Cluster) -> Network | None:
    """Return the catalog's network of the name of a cluster's; None where it has none."""
    from shardcost import catalog
    from shardcost.catalog.build import network_from

    network = cluster.network
    if network is None or not catalog.has_network(network.name):
        return None
    content, file = catalog.preset("networks", network.name)
    return network_from(content, file, cluster.device.architecture)


def changes_of(cluster: Cluster) -> tuple[Change, ...]:
    """Return the figures in which a machine of the catalog, or its network, was changed."""
    from shardcost import catalog

    changes = []
    if cluster.system in catalog.names("clusters"):
        known = catalog.cluster_named(cluster.system)
        peaks = {**known.device.peak_flop_per_s, **cluster.device.peak_flop_per_s}
        for figure in (*FIGURES, *map(peak_of, peaks)) if cluster != known else ():
            before, after = value_of(known, figure), value_of(cluster, figure)
            is_slice = figure.path in _OF_SLICE and known.tiers[-1].kind == "torus"
            if figure.table != "network" and before != after and not is_slice:
                changes.append(Change(figure, before, after))
    usual = unchanged_network(cluster)
    if usual is None:
        return tuple(changes)
    joined = replace(cluster, network=usual)
    for figure in FIGURES:
        before, after = value_of(joined, figure), value_of(cluster, figure)
        if figure.table == "network" and before != after:
            changes.append(Change(figure, before, after))
    return tuple(changes)


class Unchanged(NamedTuple):
    """A machine of the catalog whose rates were changed."""

    cluster: Cluster
    better: bool
    """No rate was lowered …"""
    worse: bool
    """… or none was raised."""


def unchanged_of(cluster: Cluster) -> Unchanged | None:
    """Return the catalog's machine of which a cluster has other rates of links or network."""
    from shardcost import catalog

    changed = [each.figure for each in changes_of(cluster)]
    if not any(each.table in {"link", "network"} for each in changed):
        return None
    if any(each.name in _STRUCTURE for each in changed):
        return None
    base = catalog.cluster_named(cluster.system)
    rates = [float(cluster.tiers[-1].bytes_per_s / base.tiers[-1].bytes_per_s)]
    if cluster.network is not None:
        base = replace(base, network=unchanged_network(cluster) or cluster.network)
        rates.append(_node_rate(cluster) / _node_rate(base))
    return Unchanged(base, min(rates) >= 1, max(rates) <= 1)


def _node_rate(cluster: Cluster) -> float:
    """Return the bytes per second between nodes of different leaf switches."""
    network = cluster.network
    assert network is not None  # noqa: S101
    return float(network.node_bytes_per_s(cluster.gpus_per_node) / network.oversubscription)

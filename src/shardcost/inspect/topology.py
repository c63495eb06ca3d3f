"""What a file on a machine's topology means: tiers with link rates, network, faults, a preset.

Two files say how devices are joined: the matrix of ``nvidia-smi topo -m`` and NCCL's topology
dump. Both become one `DeviceGraph` with its groups (`device_graph`), so that what follows is said
once: the catalog gives the rate of a link (by PCI identity or compute capability where
the file has them, else by the number of links, and then a note says that this is a guess), and what
is out of line is named: a GPU with fewer links than its peers, or one from which every network card
is across sockets.

Rates are per GPU and in one direction. *Nominal* is the vendor's line rate; *usable* is what NCCL
takes a link to carry (``catalog/tuner/nccl.toml``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardcost.catalog import cluster_named, names, network_named, tuner_table
from shardcost.catalog.network_names import KINDS
from shardcost.catalog.reported import clusters_of_capability
from shardcost.cluster import Cluster, Network
from shardcost.formats.nccl_xml import NcclGraphs, NcclTopology
from shardcost.formats.nvidia_smi import NEAREST_FIRST, DeviceMatrix
from shardcost.formats.reading import Reading
from shardcost.inspect.device_graph import (
    DeviceGraph,
    Joined,
    few_of,
    graph_in,
    joined_by_nvlink,
    pcie_groups,
)
from shardcost.units import GIGA

_GBIT: Final = GIGA / 8
BESIDE: Final = ("NV", "PIX", "PXB")
"""A network card that a GPU reaches without the CPU."""
_PATTERNS: Final = {
    1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "in-switch (NVLS)",
    6: "collnet direct",
}  # fmt: skip
"""What NCCL numbers its graph patterns by."""
_ALWAYS_THERE: Final = frozenset(("balanced tree", "split tree", "tree", "ring"))
"""Patterns that need no special hardware."""


@dataclass(frozen=True)
class LinkTier:
    """GPUs that reach each other alike: each of `groups` by itself."""

    kind: str
    groups: tuple[tuple[str, ...], ...]
    links_per_gpu: int | None
    bytes_per_s: float | None
    """Nominal, per GPU, one direction, all its links of this tier; None where it is not known."""
    usable_bytes_per_s: float | None
    """The same as NCCL counts it."""

    @property
    def gpus(self) -> int:
        """GPUs in the largest group."""
        return max(len(group) for group in self.groups)


@dataclass(frozen=True)
class Card:
    """A port of a network card, and the GPUs that it is nearest to."""

    name: str
    gbit_per_s: float | None
    how: str
    """The closest way to any GPU: ``PIX`` … ``SYS``; empty where the file does not say."""
    nearest: tuple[str, ...]


@dataclass(frozen=True)
class TopologyInspection:
    """What a topology file means."""

    reading: Reading
    gpus: tuple[str, ...]
    hosts: int
    tiers: tuple[LinkTier, ...]
    cards: tuple[Card, ...]
    beside: int
    """How many of the cards carry the traffic of GPUs: those beside one, else all."""
    network_gbit_per_s: float | None
    """Of those cards together, per node."""
    faults: tuple[str, ...]
    cluster: str | None
    """The preset that is most like the graph."""
    network: str | None
    notes: tuple[str, ...]
    graph: DeviceGraph
    joined: Joined | None
    """How NVLinks join the GPUs; None where the file has none."""


@dataclass(frozen=True)
class ChannelSet:
    """What NCCL's search found for one pattern, in words and base units."""

    pattern: str
    channels: int
    intra_bytes_per_s: float
    """Of all channels together inside a node."""
    inter_bytes_per_s: float
    """Of all channels together between nodes; 0 where none leaves the node."""
    intra_type: str
    inter_type: str
    gpus: int


@dataclass(frozen=True)
class GraphInspection:
    """What the channels that NCCL chose mean."""

    reading: NcclGraphs
    sets: tuple[ChannelSet, ...]
    faults: tuple[str, ...]


def inspected(
    reading: DeviceMatrix | NcclTopology | NcclGraphs, cluster: Cluster | None = None
) -> TopologyInspection | GraphInspection:
    """Return what a topology file means; `cluster` says what the machine is, where it is known."""
    if isinstance(reading, NcclGraphs):
        return _inspected_graphs(reading)
    graph = graph_in(reading)
    links_in_all = sorted({cluster.tiers[0].links_per_gpu or 0 for cluster in _nvidia_clusters()})
    joined = joined_by_nvlink(graph.links, links_in_all, behind_switch=graph.behind_switch)
    preset = cluster or _like(graph, joined)
    _say_what_is_out_of_line(graph, joined)
    links = cluster.tiers[0].links_per_gpu if cluster else None
    if cluster and joined and links not in {None, joined.links_per_gpu}:
        there = joined.links_per_gpu
        graph.notes.append(f"{cluster.name} has {links} links per GPU, the file {there}")
    cards = tuple(_card(graph, card) for card in graph.cards)
    serving = [card for card in cards if card.how in BESIDE] or list(cards)
    network = _network(graph, serving, preset)  # may add a note
    return TopologyInspection(
        reading=reading,
        gpus=graph.gpus,
        hosts=graph.hosts,
        tiers=tuple(_tiers(graph, joined, preset)),
        cards=cards,
        beside=len(serving),
        network_gbit_per_s=_together(serving, graph.hosts),
        faults=tuple(graph.faults),
        cluster=preset.name if preset else None,
        network=network,
        notes=(*reading.notes, *graph.notes),
        graph=graph,
        joined=joined,
    )


def _nvidia_clusters() -> list[Cluster]:
    clusters = [cluster_named(name) for name in names("clusters")]
    return [cluster for cluster in clusters if cluster.device.vendor == "nvidia"]


def _like(graph: DeviceGraph, joined: Joined | None) -> Cluster | None:
    """Return the preset that is most like a machine: by its board, else by generation and links."""
    if graph.board is not None:
        return cluster_named(graph.board)
    presets = _candidates(graph, joined)
    if presets and (graph.sm is None or len(presets) > 1):
        links = f" by its {joined.links_per_gpu} NVLinks per GPU" if joined else ""
        unnamed = "" if graph.sm else "the file does not name the GPUs: "
        others = ", ".join(preset.name for preset in presets[1:])
        alike = f"; {others} would look alike (--on names the machine)" if others else ""
        graph.notes.append(f"{unnamed}taken for {presets[0].name}{links}{alike}")
    return presets[0] if presets else None


def _candidates(graph: DeviceGraph, joined: Joined | None) -> list[Cluster]:
    """Return the presets that a machine can be, those of as many GPUs first, then the slowest."""
    gpus = len(graph.gpus) // graph.hosts
    of_capability = None if graph.sm is None else set(clusters_of_capability(graph.sm))
    kind, links = (joined.kind, joined.links_per_gpu) if joined else ("pcie", None)
    if kind == "bridge":
        kind, links = "pcie", None
    no_links_said = joined is None and graph.sm is not None
    if kind == "pcie" and of_capability is None:
        return []
    alike = [
        cluster
        for cluster in _nvidia_clusters()
        if (of_capability is None or cluster.name in of_capability)
        and (no_links_said or cluster.tiers[0].kind == kind)
        and links in {None, cluster.tiers[0].links_per_gpu}
    ]
    return sorted(
        alike,
        key=lambda cluster: (
            int(cluster.gpus_per_node) != gpus,
            cluster.tiers[0].kind == "pcie",
            float(cluster.tiers[0].bytes_per_s),
            abs(int(cluster.gpus_per_node) - gpus),
            cluster.name,
        ),
    )


def _say_what_is_out_of_line(graph: DeviceGraph, joined: Joined | None) -> None:
    if joined is not None:
        for gpu, links in joined.fewer:
            has = f"{links} NVLinks" if links else "no NVLink"
            graph.faults.append(
                f"{graph.gpus[gpu]} has {has}, the others {joined.links_per_gpu}: NCCL finds"
                " fewer channels for every group that it is in"
            )
    far = [
        name
        for place, name in enumerate(graph.gpus)
        if {way[place] for _, _, way in graph.cards if way[place]} == {"SYS"}
    ]
    if far:
        graph.notes.append(
            f"from {few_of(far)} every network card is across sockets (SYS): slow, and without"
            " GPUDirect RDMA"
        )


def _tiers(graph: DeviceGraph, joined: Joined | None, preset: Cluster | None) -> list[LinkTier]:
    """Return the tiers of a machine, NVLinks first, then PCIe from inside outward."""

    def named(groups: Sequence[Sequence[int]]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(graph.gpus[gpu] for gpu in group) for group in groups)

    tiers = []
    first = preset.tiers[0] if preset else None
    nominal, usable = _link_rates(graph, preset)
    if joined is not None:
        links = joined.links_per_gpu
        rates = (rate * links if rate else None for rate in (nominal, usable))
        tiers.append(LinkTier(joined.kind, named(joined.groups), links, *rates))
    elif first is not None and first.kind != "pcie" and len(graph.gpus) > 1:
        # A file that leaves NVLinks out: those that the GPU has by its datasheet.
        in_all = usable * first.links_per_gpu if usable and first.links_per_gpu else None
        rate = float(first.bytes_per_s)
        tiers.append(LinkTier(first.kind, (graph.gpus,), first.links_per_gpu, rate, in_all))
    pcie = graph.pci_bytes_per_s or None
    if pcie is None and first is not None and first.kind == "pcie":
        pcie = float(first.bytes_per_s)
    for kind, groups in pcie_groups(graph.near):
        tiers.append(LinkTier(kind, named(groups), None, pcie, None))
    return tiers


def _link_rates(graph: DeviceGraph, preset: Cluster | None) -> tuple[float | None, float | None]:
    """Return what one NVLink carries, nominally and as NCCL counts."""
    nominal = None
    if preset is not None and preset.tiers[0].links_per_gpu:
        nominal = float(preset.tiers[0].bytes_per_s) / preset.tiers[0].links_per_gpu
    capability = graph.sm
    if capability is None and preset is not None and preset.device.compute_capability:
        capability = int(preset.device.compute_capability.replace(".", ""))
    by_capability = {int(k[2:]): v for k, v in tuner_table("nccl")["nvlink_gb_per_s"].items()}
    reached = [least for least in by_capability if capability is not None and least <= capability]
    return nominal, by_capability[max(reached)] * GIGA if reached else None


def _card(graph: DeviceGraph, card: tuple[str, float | None, list[str]]) -> Card:
    name, rate, ways = card
    known = [way for way in ways if way in NEAREST_FIRST]
    how = min(known, key=NEAREST_FIRST.index) if known else ""
    nearest = tuple(gpu for gpu, way in zip(graph.gpus, ways, strict=True) if how and way == how)
    return Card(name, rate, how, nearest)


def _together(cards: Sequence[Card], hosts: int) -> float | None:
    rates = [card.gbit_per_s for card in cards if card.gbit_per_s]
    return sum(rates) / hosts if rates and len(rates) == len(cards) else None


def _network(graph: DeviceGraph, cards: Sequence[Card], preset: Cluster | None) -> str | None:
    """Return the preset of the network that is most like the cards of one node."""
    if not cards or not graph.network_kind:
        return None
    count = max(1, len(cards) // graph.hosts)
    rate = _together(cards, graph.hosts)
    if rate is None and preset is not None:
        # The rate of the ports that shipped with a generation, where it is known.
        usual = cluster_named(preset.name, "ib").network
        known_kind = graph.network_kind in {"infiniband", "roce"}
        shipped = float(usual.nic_bytes_per_s) / _GBIT if usual and known_kind else None
        rate = shipped * count if shipped else None
        graph.notes.append(
            "the file does not have the rate of the network cards; the network is guessed from"
            f" their number{' and the generation of the GPUs' if shipped else ''}"
        )
    gpus = max(1, len(graph.gpus) // graph.hosts)

    def fits_rate(network: Network) -> bool:
        gbit = float(network.node_bytes_per_s(gpus)) / _GBIT
        return rate is None or abs(gbit / rate - 1) < 0.01

    def ports(network: Network) -> int:
        return int(network.nics_per_node or (network.nics_per_gpu or 0) * gpus)

    # The rates of `ib` and `tcp` are assumed: no statement on any real network.
    known = [network_named(name) for name in names("networks") if name not in {"ib", "tcp"}]
    alike = [network for network in known if network.kind == graph.network_kind]
    # Of as many ports and the same rate, else of the same rate in all.
    fits = [network for network in alike if fits_rate(network)]
    exact = [network for network in fits if ports(network) == count]
    stated = [network for network in exact if network.nics_per_node] or exact
    if stated:
        return stated[0].name
    word = next((word for word, (kind, _) in KINDS.items() if kind == graph.network_kind), None)
    each = None if rate is None else rate / count
    if word is not None and each is not None and each == int(each) > 0:
        return f"{word}_{count}x{each:.0f}g"
    return fits[0].name if fits and rate is not None else None


def _inspected_graphs(reading: NcclGraphs) -> GraphInspection:
    sets = []
    for graph in reading.graphs:
        leaves = any(stop.startswith("net") for route in graph.routes for stop in route)
        gpus = [sum(stop.startswith("gpu") for stop in route) for route in graph.routes]
        channel_set = ChannelSet(
            _PATTERNS.get(graph.pattern, f"pattern {graph.pattern}"),
            graph.channels,
            graph.channels * graph.intra_gb_per_s * GIGA,
            graph.channels * graph.inter_gb_per_s * GIGA if leaves else 0.0,
            graph.intra_type,
            graph.inter_type,
            max(gpus, default=0),
        )
        sets.append(channel_set)
    # A pattern may be there twice: NCCL searches trees for reduction in the network as well.
    with_channels = {one.pattern for one in sets if one.channels}
    searched = dict.fromkeys(one.pattern for one in sets if one.pattern in _ALWAYS_THERE)
    faults = [f"{name}: no channel was found" for name in searched if name not in with_channels]
    return GraphInspection(reading, tuple(sets), tuple(faults))

"""A machine file from a topology file: `machine_file`, a cluster file in the form of the catalog.

What the topology says is taken from it: devices, NVLinks of each, PCIe switches and sockets,
network cards with the devices beside them, PCIe rates where they are stated. It becomes the
``[link]`` and ``[topology]`` tables. The device itself, and the rate of a link, are those of the
preset that the topology is most like, and each source says so. ``[link]`` has one rate for all
devices: that of the device with the fewest links; where NVLinks do not lead from each device to
each at all, that of PCIe. What is uneven stands in ``[topology]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardcost.catalog import (
    cluster_in_text,
    cluster_named,
    network_named,
    preset,
    tuner_table,
)
from shardcost.catalog.wiring import topology_table
from shardcost.cluster import CUBE_MESH, Cluster
from shardcost.errors import FormatError
from shardcost.files import quoted
from shardcost.formats.nccl_xml import NcclTopology
from shardcost.inspect.device_graph import DeviceGraph, Groups, Joined, pcie_groups
from shardcost.inspect.topology import BESIDE, TopologyInspection
from shardcost.units import GIGA
from shardcost.wiring import WAYS, Cable, Nic, Switch, Wiring

_GBIT: Final = GIGA / 8
_TIERS: Final = ("nvswitch", "full_mesh", "cube_mesh")
"""Tiers of NVLinks that lead from each device to each."""
_FASTEST_SLOTS: Final = ((20e9, "pcie3"), (40e9, "pcie4"), (float("inf"), "pcie5"))
"""Below which rate of a device a PCIe generation ends: 15.75, 31.5 and 63 GB/s with 16 lanes."""
_HEAD: Final = "# A machine of shardcost, read from a topology file."
_TOPOLOGY, _NCCL = "topology_file", "nccl"
"""Keys of sources that are added to those of the preset."""

Entry = dict[str, Any]


def machine_file(inspection: TopologyInspection, name: str) -> str:
    """Return the text of a cluster file for the machine that a topology file describes.

    Args:
        inspection: What the topology file means; its preset has what the file does not say.
        name: Of the machine, one that the catalog does not have.
    """
    file = inspection.reading.file
    if inspection.cluster is None:
        reason = "is like no preset for sure, so that nothing says what its GPUs are"
        raise FormatError(file, f"{reason} (--on names the machine)")
    if inspection.hosts > 1:
        raise FormatError(
            file, f"describes {inspection.hosts} hosts; a machine file describes one node"
        )
    if not inspection.gpus:
        raise FormatError(file, "has no GPU")
    base = cluster_named(inspection.cluster)
    wiring = wiring_of(inspection, base)
    text = _text(inspection, name, base, wiring)
    cluster_in_text(text, file=file)  # what is written can be read
    return text


def wiring_of(inspection: TopologyInspection, base: Cluster) -> Wiring:
    """Return how the devices of a topology file are wired, with the rates of a preset's links."""
    graph, tier = inspection.graph, base.tiers[0]
    cables, switches = _nvlinks(inspection, base)
    joins = bool(cables or switches)
    pcie = _pcie_bytes_per_s(graph, base)
    sockets = () if pcie is None else _sockets(graph, inspection.joined)
    between = None
    if pcie is not None and len(sockets) > 1:
        generation = next(word for below, word in _FASTEST_SLOTS if pcie < below)
        between = tuner_table("nccl")["socket_gb_per_s"][generation] * GIGA
    return Wiring(
        gpus=len(graph.gpus),
        cables=cables,
        switches=switches,
        link_bytes_per_s=_link_bytes_per_s(inspection, base) if joins else None,
        sockets=sockets,
        pcie_bytes_per_s=pcie if sockets else None,
        socket_bytes_per_s=between,
        peer_access=bool(tier.peer_access) or tier.kind != "pcie",
        nics=_nics(inspection, base),
    )


def _pcie_bytes_per_s(graph: DeviceGraph, base: Cluster) -> float | None:
    """Return the rate of a slot: as the file states it, else the preset."""
    tier, host = base.tiers[0], base.device.host_link_bytes_per_s
    if graph.pci_bytes_per_s:
        return graph.pci_bytes_per_s
    if tier.kind == "pcie":
        return float(tier.bytes_per_s)
    return None if host is None else float(host)


def _link_bytes_per_s(inspection: TopologyInspection, base: Cluster) -> float:
    """Return the rate of one NVLink: the preset's, else what NCCL takes it to carry."""
    tier, seen = base.tiers[0], inspection.tiers[0]
    if tier.links_per_gpu:
        return float(tier.bytes_per_s) / tier.links_per_gpu
    if seen.usable_bytes_per_s is None or not seen.links_per_gpu:
        reason = f"has NVLinks, whose rate {base.name} does not state (--on names the machine)"
        raise FormatError(inspection.reading.file, reason)
    return seen.usable_bytes_per_s / seen.links_per_gpu


def _nvlinks(
    inspection: TopologyInspection, base: Cluster
) -> tuple[tuple[Cable, ...], tuple[Switch, ...]]:
    """Return cables between pairs, and switches; the preset's where the file leaves them out."""
    graph, joined = inspection.graph, inspection.joined
    gpus, tier = len(graph.gpus), base.tiers[0]
    left_out = isinstance(inspection.reading, NcclTopology) and tier.kind != "pcie"
    if joined is None and (not left_out or gpus < 2):
        return (), ()
    if joined is None:
        links = tier.links_per_gpu or 1
        if tier.kind == "cube_mesh" and gpus == int(tier.gpus):
            return tuple(Cable(*pair, count) for pair, count in CUBE_MESH.items()), ()
        return (), (Switch(tuple(range(gpus)), (links,) * gpus),)
    if joined.kind != "nvswitch":
        pairs = ((a, b) for a in range(gpus) for b in range(a + 1, gpus))
        return tuple(Cable(a, b, graph.links[a][b]) for a, b in pairs if graph.links[a][b]), ()
    switches = []
    for group in joined.groups:
        counts = {gpu: max(graph.links[gpu]) for gpu in group if max(graph.links[gpu])}
        switches.append(Switch(tuple(counts), tuple(counts.values())))
    return (), tuple(switches)


def _sockets(graph: DeviceGraph, joined: Joined | None) -> tuple[Groups, ...]:
    """Return devices by socket and PCIe switch.

    A file that says nothing of PCIe has none where NVLinks lead from each device to each, else one.
    """
    gpus = range(len(graph.gpus))
    known = any(graph.near[a][b] in WAYS for a in gpus for b in gpus if a != b)
    if not known and len(gpus) > 1:
        every = (
            joined is not None and len(joined.groups) == 1 and len(joined.groups[0]) == len(gpus)
        )
        return () if every else (tuple((gpu,) for gpu in gpus),)
    levels = dict(pcie_groups(graph.near))
    alone: Groups = tuple((gpu,) for gpu in gpus)
    switches = levels.get("pcie_switch", alone)
    sockets = levels.get("numa_domain", switches)
    return tuple(
        tuple(group for group in switches if set(group) <= set(socket)) for socket in sockets
    )


def _nics(inspection: TopologyInspection, base: Cluster) -> tuple[Nic, ...]:
    """Return the ports that carry the traffic of GPUs; the network has rates that are not read."""
    cards = [card for card in inspection.cards if card.how in BESIDE] or list(inspection.cards)
    usual = None
    if inspection.network is not None:
        network = cluster_named(base.name, inspection.network).network
        usual = None if network is None else float(network.nic_bytes_per_s)
    numbers = {gpu: number for number, gpu in enumerate(inspection.gpus)}
    return tuple(
        Nic(
            _printable(card.name),
            card.gbit_per_s * _GBIT if card.gbit_per_s else usual,
            tuple(numbers[gpu] for gpu in card.nearest),
            card.how,
        )
        for card in cards
        if card.how in WAYS and card.nearest
    )


def _text(inspection: TopologyInspection, name: str, base: Cluster, wiring: Wiring) -> str:
    content, _ = preset("clusters", base.name)
    as_of = f"as of {base.name}, which the topology file is most like"
    sources = {
        _TOPOLOGY: f"topology file {_printable(inspection.reading.file)}",
        **{key: f"{as_of}: {citation}" for key, citation in content["sources"].items()},
        _NCCL: f"assumed by {tuner_table('nccl')['source']}",
    }
    device = dict(content["device"])
    peaks = device.pop("peak_dense_tflops")
    title = f"{wiring.gpus} x {base.device.name}, read from a topology file"
    lines = [
        _HEAD,
        *(f"# Fault: {_printable(fault)}" for fault in inspection.faults),
        f"name = {quoted(name)}",
        f"title = {quoted(title)}",
        f"gpus_per_node = {_inline(_read(wiring.gpus))}",
        *_network_line(inspection),
        "",
        "[device]",
        *(f"{key} = {_inline(value)}" for key, value in device.items()),
        "",
        "[device.peak_dense_tflops]",
        *(f"{key} = {_inline(value)}" for key, value in peaks.items()),
        "",
        "[link]",
        *(
            f"{key} = {_inline(value)}"
            for key, value in _link(inspection, content["link"], base, wiring).items()
        ),
        "",
        *topology_table(wiring, _rates(inspection, base, wiring)),
        "",
        "[sources]",
    ]
    cited = "\n".join(lines)
    used = {key: text for key, text in sources.items() if f"source = {quoted(key)}" in cited}
    return "\n".join([*lines, *(f"{key} = {quoted(text)}" for key, text in used.items()), ""])


def _network_line(inspection: TopologyInspection) -> list[str]:
    """Return the network by its name, which constants measured on it are known by."""
    if inspection.network is None:
        return []
    network = network_named(inspection.network)
    return [f"network = {quoted(network.name)}  # {_printable(network.title)}"]


def _link(
    inspection: TopologyInspection, link: Mapping[str, Any], base: Cluster, wiring: Wiring
) -> dict[str, Any]:
    """Return the ``[link]`` table: one rate for all devices."""
    kind, gpus, tier = _kind(inspection, base, wiring), wiring.gpus, base.tiers[0]
    domain = _read(gpus)
    if int(tier.gpus) > int(base.gpus_per_node):  # a rack: the file is of one of its nodes
        domain = link["domain_gpus"]
    if kind == "pcie":
        peer = link["peer_access"] if tier.kind == "pcie" else _read(True, "over PCIe")  # noqa: FBT003
        rate = _pcie_rate(inspection, base)
        if wiring.cables or wiring.switches:
            rate["caveat"] = "of PCIe: NVLinks join some devices only, see [topology]"
        return {
            "kind": kind,
            "domain_gpus": domain,
            "bandwidth_gb_per_s": rate,
            "in_switch_reduction": _read(False),  # noqa: FBT003
            "peer_access": peer,
        }
    links = [wiring.links_of(gpu) for gpu in range(gpus)]
    fewest, most = min(links), max(links)
    rate = dict(link["bandwidth_gb_per_s"])
    if fewest != tier.links_per_gpu:
        rate["value"] = round(fewest * (wiring.link_bytes_per_s or 0.0) / GIGA, 4)
        rate["caveat"] = f"{fewest} links at the rate of the preset's"
    uneven = f"the fewest of all GPUs; others have up to {most}" if fewest < most else ""
    alike = kind == tier.kind
    return {
        "kind": kind,
        "domain_gpus": domain,
        "bandwidth_gb_per_s": rate,
        "links_per_gpu": _read(fewest, uneven),
        "in_switch_reduction": link["in_switch_reduction"] if alike else _read(False),  # noqa: FBT003
        "peer_access": link["peer_access"],
    }


def _kind(inspection: TopologyInspection, base: Cluster, wiring: Wiring) -> str:
    """Return the tier that joins all devices: of NVLinks if these lead from each to each."""
    joined = inspection.joined
    every = bool(wiring.cables or wiring.switches) and all(map(wiring.links_of, range(wiring.gpus)))
    if joined is None:
        return base.tiers[0].kind if every else "pcie"
    return joined.kind if every and joined.kind in _TIERS and len(joined.groups) == 1 else "pcie"


def _pcie_rate(inspection: TopologyInspection, base: Cluster) -> Entry:
    """Return the rate of a slot with its source: the file, else the preset."""
    content, _ = preset("clusters", base.name)
    stated = inspection.graph.pci_bytes_per_s
    if stated:
        return _read(stated / GIGA, "line rate of the slot")
    if base.tiers[0].kind == "pcie" or "host_link_gb_per_s" not in content["device"]:
        return dict(content["link"]["bandwidth_gb_per_s"])
    return dict(content["device"]["host_link_gb_per_s"])


def _rates(inspection: TopologyInspection, base: Cluster, wiring: Wiring) -> dict[str, str]:
    """Return the rates of a ``[topology]`` table, each with its source."""
    content, _ = preset("clusters", base.name)
    rates: dict[str, Entry] = {}
    if wiring.link_bytes_per_s is not None:
        known = bool(base.tiers[0].links_per_gpu)
        rates["link_gb_per_s"] = {
            "value": _number(wiring.link_bytes_per_s / GIGA),
            "source": content["link"]["bandwidth_gb_per_s"]["source"] if known else _NCCL,
            "caveat": "one NVLink, one direction",
        }
    if wiring.pcie_bytes_per_s is not None:
        rates["pcie_gb_per_s"] = _pcie_rate(inspection, base)
    if wiring.socket_bytes_per_s is not None:
        rates["socket_gb_per_s"] = {
            "value": _number(wiring.socket_bytes_per_s / GIGA),
            "source": _NCCL,
            "caveat": "by the PCIe generation; the topology file does not say",
        }
    return {key: _inline(entry) for key, entry in rates.items()}


def _read(value: float, caveat: str = "") -> Entry:
    """Return a figure that the topology file states."""
    entry = {"value": value if isinstance(value, bool) else _number(value), "source": _TOPOLOGY}
    return {**entry, "caveat": caveat} if caveat else entry


def _number(value: float) -> float:
    return int(value) if value == int(value) else round(value, 4)


def _inline(value: Any) -> str:
    """Return a value as TOML writes it on one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_inline(each)}' for key, each in value.items())} }}"
    if isinstance(value, str):
        return quoted(value)
    return str(value).lower()


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)[:200]

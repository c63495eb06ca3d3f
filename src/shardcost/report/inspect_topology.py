"""Views of what a topology file means: plain data for JSON, text for a terminal."""

from __future__ import annotations

from typing import Any, Final

from shardcost.inspect.topology import GraphInspection, TopologyInspection
from shardcost.report.describe import attributes
from shardcost.report.inspect_log import unread_as_data, unread_in_words
from shardcost.report.text import heading, paragraph, paragraphs, table
from shardcost.units import GIGA, format_rate

_KINDS: Final = {
    "nvidia-smi-topo": "the device matrix of nvidia-smi topo -m",
    "nccl-topology": "the topology that NCCL sees",
    "nccl-graph": "the channels that NCCL chose",
}
_TIERS: Final = {
    "nvswitch": "NVLinks to a switch, which reach any peer",
    "full_mesh": "NVLinks shared out over all peers",
    "cube_mesh": "NVLinks to four of seven peers (hybrid cube mesh)",
    "bridge": "NVLinks between pairs",
    "mesh": "NVLinks to some peers",
    "pcie_switch": "PCIe, below one switch",
    "numa_domain": "PCIe, through one CPU",
    "sockets": "PCIe, from socket to socket",
}


def as_data(inspection: TopologyInspection | GraphInspection) -> dict[str, Any]:
    """Return what a topology file means as plain data."""
    reading = inspection.reading
    if isinstance(inspection, GraphInspection):
        graphs = [
            {
                **attributes(one, "pattern channels gpus"),
                "gb_per_s_in_node": _in_gb(one.intra_bytes_per_s),
                "gb_per_s_between_nodes": _in_gb(one.inter_bytes_per_s),
                **attributes(one, "type_in_node=intra_type type_between_nodes=inter_type"),
            }
            for one in inspection.sets
        ]
        notes, content = reading.notes, {"graphs": graphs}
    else:
        notes, content = inspection.notes, _machine_as_data(inspection)
    return {
        **attributes(reading, "file kind"),
        **content,
        "faults": list(inspection.faults),
        "unread": unread_as_data(reading.unread),
        "notes": list(notes),
    }


def _machine_as_data(inspection: TopologyInspection) -> dict[str, Any]:
    return {
        "gpus": len(inspection.gpus),
        "hosts": inspection.hosts,
        "tiers": [
            {
                **attributes(tier, "kind gpus"),
                "groups": [list(group) for group in tier.groups],
                "links_per_gpu": tier.links_per_gpu,
                "gb_per_s_per_gpu": _in_gb(tier.bytes_per_s),
                "nccl_gb_per_s_per_gpu": _in_gb(tier.usable_bytes_per_s),
            }
            for tier in inspection.tiers
        ],
        "nics": [
            attributes(card, "name gbit_per_s how") | {"nearest_gpus": list(card.nearest)}
            for card in inspection.cards
        ],
        "network": attributes(
            inspection, "nics_for_gpus=beside gbit_per_s_per_node=network_gbit_per_s"
        ),
        "like": attributes(inspection, "cluster network") | {"options": _options(inspection)},
    }


def as_text(inspection: TopologyInspection | GraphInspection) -> str:
    """Return what a topology file means for a terminal."""
    reading, notes = inspection.reading, inspection.reading.notes
    sections = [heading(paragraph(f"{reading.file}: {_KINDS[reading.kind]}", "  "))]
    if isinstance(inspection, GraphInspection):
        sections.append(_sets_table(inspection))
    else:
        notes = inspection.notes
        sections.append(_summary(inspection))
        if inspection.tiers:
            sections += [_picture(inspection), _tiers_table(inspection)]
        if inspection.cards:
            rows = []
            for card in inspection.cards:
                rate = "-" if card.gbit_per_s is None else f"{card.gbit_per_s:g} Gbit/s"
                rows.append((card.name, rate, card.how or "-", " ".join(card.nearest) or "-"))
            sections.append(table(("network card", "rate", "way", "nearest GPUs"), rows, right="1"))
    remarks = [f"Fault: {fault}." for fault in inspection.faults]
    remarks += [f"Note: {note}." for note in notes] + unread_in_words(reading.unread)
    return "\n\n".join([*sections, *([paragraphs(remarks)] if remarks else [])])


def _in_gb(rate: float | None) -> float | None:
    return None if rate is None else round(rate / GIGA, 4)


def _options(inspection: TopologyInspection) -> str | None:
    """Return the options by which other commands take the machine."""
    if inspection.cluster is None:
        return None
    network = f" --network {inspection.network}" if inspection.network else ""
    return f"--on {inspection.cluster}{network}"


def _summary(inspection: TopologyInspection) -> str:
    hosts = f" on {inspection.hosts} hosts" if inspection.hosts > 1 else ""
    said = [f"{_plural(len(inspection.gpus), 'GPU')}{hosts}"]
    if inspection.cards:
        near = inspection.beside
        rate = inspection.network_gbit_per_s
        together = f", {rate:g} Gbit/s per node" if rate else ""
        ratio = f"{_plural(len(inspection.gpus) / near, 'GPU')} each"
        cards = _plural(len(inspection.cards), "network card")
        said.append(f"{cards}, {near} for GPUs ({ratio}{together})")
    options = _options(inspection)
    said.append(f"most like: {options}" if options else "like no preset of the catalog for sure")
    return "\n".join(paragraph(each, "  ") for each in said)


def _plural(count: float, what: str) -> str:
    return f"{count:.3g} {what}{'' if count == 1 else 's'}"


def _picture(inspection: TopologyInspection) -> str:
    """Return the groups of each tier, one line each: ``nvswitch  [0 1 2 3] [4 5 6 7]``."""
    size = max(len(tier.kind) for tier in inspection.tiers)
    lines = []
    for tier in inspection.tiers:
        groups = " ".join(f"[{_numbers(group)}]" for group in tier.groups)
        lines.append(paragraph(f"{tier.kind.ljust(size)}  {groups}", " " * (size + 2)))
    return "\n".join(lines)


def _numbers(group: tuple[str, ...]) -> str:
    """Return the numbers of a group's GPUs, a run of many as its ends."""
    numbers = [name.removeprefix("GPU") for name in group]
    run = len(group) > 8 and all(each.isdigit() for each in numbers)
    if run and int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return " ".join(numbers)


def _tiers_table(inspection: TopologyInspection) -> str:
    rows = []
    for tier in inspection.tiers:
        links = "-" if tier.links_per_gpu is None else str(tier.links_per_gpu)
        rates = (_rate(tier.bytes_per_s), _rate(tier.usable_bytes_per_s))
        rows.append((tier.kind, str(tier.gpus), links, *rates, _TIERS[tier.kind]))
    head = ("tier", "GPUs", "links", "nominal", "for NCCL", "per GPU, one way")
    return table(head, rows, right="1234")


def _rate(rate: float | None) -> str:
    return "-" if rate is None else format_rate(rate)


def _sets_table(inspection: GraphInspection) -> str:
    rows = []
    for one in inspection.sets:
        rates = (_rate(one.intra_bytes_per_s), _rate(one.inter_bytes_per_s or None))
        links = f"{one.intra_type} in a node, {one.inter_type} between"
        rows.append((one.pattern, str(one.channels), str(one.gpus), *rates, links))
    head = ("pattern", "channels", "GPUs", "in a node", "between", "links, all channels")
    return table(head, rows, right="1234")

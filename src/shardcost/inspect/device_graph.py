"""The machine that a topology file describes, the same whichever kind of file it is.

Two files say how devices are joined: the matrix of ``nvidia-smi topo -m`` and NCCL's topology
dump. Both become one `Machine`: how many NVLinks each two GPUs share, how PCIe joins them, and its
network cards with the way to each GPU. What it all means is told elsewhere
(`shardcost.inspect.topology`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from shardcost.catalog.reported import cluster_reporting
from shardcost.formats.nccl_xml import NcclTopology, Place, TopologyGpu
from shardcost.formats.nvidia_smi import DeviceMatrix

_NETWORK_OF_CARD: Final = (
    (("efa", "rdmap"), "efa"),
    (("cxi", "hsn"), "slingshot"),
    (("hfi1",), "omnipath"),
    (("bnxt_re", "irdma", "roce"), "roce"),
    (("mlx", "ib"), "infiniband"),
    (("eth", "ens", "enp", "eno"), "tcp"),
)
"""What the name of a card says of its network."""
_AMAZON: Final = "0x1d0f"
_ETHERNET: Final = "0x0200"
_INFINIBAND: Final = "0x0207"
_SWITCH_CLASS: Final = "0x0680"
_FAR_SWITCH: Final = "fffffff:"


@dataclass
class Machine:
    """Both kinds of file, said alike."""

    gpus: tuple[str, ...]
    links: list[list[int]]
    """NVLinks that each two GPUs can use together."""
    behind_switch: bool | None
    near: list[list[str]]
    """How each two GPUs are joined by PCIe."""
    cards: list[tuple[str, float | None, list[str]]]
    """Name, rate and the way to each GPU."""
    network_kind: str
    hosts: int = 1
    sm: int | None = None
    board: str | None = None
    pci_bytes_per_s: float | None = None
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def machine_in(reading: DeviceMatrix | NcclTopology) -> Machine:
    """Return the machine that a file describes."""
    return _from_matrix(reading) if isinstance(reading, DeviceMatrix) else _from_xml(reading)


def _from_matrix(matrix: DeviceMatrix) -> Machine:
    links = [
        [int(cell[2:]) if cell.startswith("NV") else 0 for cell in row] for row in matrix.links
    ]
    near = [
        [
            _by_domain(matrix.numa[i], matrix.numa[j]) if cell.startswith("NV") else cell
            for j, cell in enumerate(row)
        ]
        for i, row in enumerate(matrix.links)
    ]
    ways = zip(*matrix.nic_links, strict=True) if matrix.nics else iter(())
    cards: list[tuple[str, float | None, list[str]]] = [
        (matrix.nic_names[nic], None, list(way)) for nic, way in zip(matrix.nics, ways, strict=True)
    ]
    return Machine(
        gpus=matrix.gpus,
        links=links,
        behind_switch=None,
        near=near,
        cards=cards,
        network_kind=_usual([_kind_by_name(name) for name, _, _ in cards]),
    )


def _by_domain(one: str, other: str) -> str:
    """Return how GPUs that NVLinks join are joined besides, as their NUMA domains say."""
    if not one or not other or "N/A" in {one, other}:
        return ""
    return "NODE" if one == other else "SYS"


def _from_xml(topology: NcclTopology) -> Machine:
    gpus = topology.gpus
    total = [sum(link.count for link in gpu.nvlinks) for gpu in gpus]
    switched = _behind_switch(gpus)
    places = {gpu.busid: index for index, gpu in enumerate(gpus)}
    links = [[0] * len(gpus) for _ in gpus]
    for one, gpu in enumerate(gpus):
        for link in gpu.nvlinks:
            other = places.get(link.target)
            if other is not None and other != one:
                links[one][other] = links[other][one] = max(links[one][other], link.count)
    if switched:
        links = [[min(a, b) * (i != j) for j, b in enumerate(total)] for i, a in enumerate(total)]
    hosts = {cpu.host for cpu in topology.cpus}
    machine = Machine(
        gpus=_labels(gpus),
        links=links,
        behind_switch=switched,
        near=[[_way(topology, a.place, b.place) for b in gpus] for a in gpus],
        cards=[
            (nic.name, nic.gbit_per_s, [_way(topology, gpu.place, nic.place) for gpu in gpus])
            for nic in topology.nics
        ],
        network_kind=_usual(
            [_kind_by_bus(nic.maker, nic.pci_class, nic.name) for nic in topology.nics]
        ),
        hosts=max(1, len(hosts)),
        sm=_single({gpu.sm for gpu in gpus}),
        board=_board(gpus),
        pci_bytes_per_s=_slowest(gpus),
    )
    _say_of_xml(machine, topology, total)
    return machine


def _labels(gpus: Sequence[TopologyGpu]) -> tuple[str, ...]:
    """Return names of the GPUs: by device number, by rank where several hosts number alike."""
    devices = [gpu.dev for gpu in gpus]
    if len(set(devices)) == len(devices):
        return tuple(f"GPU{dev}" for dev in devices)
    ranks = [gpu.rank for gpu in gpus]
    alike = None in ranks or len(set(ranks)) < len(ranks)
    return tuple(f"GPU{place if alike else rank}" for place, rank in enumerate(ranks))


def _behind_switch(gpus: Sequence[TopologyGpu]) -> bool | None:
    """Return whether NVLinks end at switches; None without NVLinks."""
    targets = [link for gpu in gpus for link in gpu.nvlinks if link.count]
    if not targets:
        return None
    return any(
        link.target_class.startswith(_SWITCH_CLASS) or link.target.startswith(_FAR_SWITCH)
        for link in targets
    )


def _way(topology: NcclTopology, one: Place, other: Place) -> str:
    """Return how two devices are joined by PCIe, in the words of the matrix."""
    if one.cpu != other.cpu:
        same_host = topology.cpus[one.cpu].host == topology.cpus[other.cpu].host
        return "SYS" if same_host else ""
    shared = 0
    for a, b in zip(one.switches, other.switches, strict=False):
        if a != b:
            break
        shared += 1
    if not shared:
        return "PHB"
    between = len(one.switches) + len(other.switches) - 2 * shared
    return "PXB" if between else "PIX"


def _single(values: set[int | None]) -> int | None:
    return values.pop() if len(values) == 1 else None


def _board(gpus: Sequence[TopologyGpu]) -> str | None:
    """Return the preset of the boards' PCI identity, if all have the same."""
    found = {gpu.pci_id for gpu in gpus}
    return cluster_reporting(found.pop()) if len(found) == 1 else None


def _slowest(gpus: Sequence[TopologyGpu]) -> float | None:
    rates = [gpu.pci_bytes_per_s for gpu in gpus if gpu.pci_bytes_per_s]
    return min(rates) if len(rates) == len(gpus) and rates else None


def _say_of_xml(machine: Machine, topology: NcclTopology, total: list[int]) -> None:
    if topology.gpus and not any(total):
        machine.notes.append(
            "no GPU has an <nvlink>: a file that a cloud ships leaves them out; what the preset of"
            " the GPU has is taken instead"
        )
    without = [
        gpu for gpu, nic in zip(machine.gpus, topology.gpus, strict=True) if nic.gdr is False
    ]
    if without:
        machine.notes.append(f"{few_of(without)}: network cards cannot reach the memory (gdr=0)")
    cards = [nic.name for nic in topology.nics if nic.gdr is False]
    if cards:
        machine.notes.append(f"{few_of(cards)}: no GPUDirect RDMA (gdr=0)")


def _kind_by_name(name: str) -> str:
    lower = name.lower()
    return next((kind for starts, kind in _NETWORK_OF_CARD if lower.startswith(starts)), "")


def _kind_by_bus(maker: str, pci_class: str, name: str) -> str:
    if maker == _AMAZON:
        return "efa"
    if pci_class.startswith(_INFINIBAND):
        return "infiniband"
    by_name = _kind_by_name(name)
    ethernet = pci_class.startswith(_ETHERNET) and by_name == "infiniband"
    return "roce" if ethernet else by_name


def _usual(kinds: list[str]) -> str:
    known = [kind for kind in kinds if kind]
    return Counter(known).most_common(1)[0][0] if known else ""


def few_of(things: Sequence[str]) -> str:
    """Return names in words; of many, the first."""
    few = ", ".join(things[:4])
    return few if len(things) <= 4 else f"{few} and {len(things) - 4} more"

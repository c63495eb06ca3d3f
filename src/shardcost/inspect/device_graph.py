"""How a topology file says that GPUs are joined, whichever kind of file it is, and the groups.

Two files say how devices are joined: the matrix of ``nvidia-smi topo -m`` and NCCL's topology
dump. Both become one `DeviceGraph`: how many NVLinks each two GPUs share, how PCIe joins them, and
the network cards with the way to each GPU. What it all means is told by
`shardcost.inspect.topology`.

**NVLink.** Behind a switch every GPU brings all its links to whoever the peer is, so a tool that
counts the links of a pair shows the same number for every pair: the links of one GPU, not of the
pair, and not to be multiplied by the peers. A GPU that has lost links drags down every pair that it
is in and no other, which is how it is found. Without a switch a link leads to one peer, and the
links of a GPU are the sum over its peers: a full mesh (every pair alike), the hybrid cube mesh of
the DGX-1 (one or two to four peers), or bridges (pairs only). Four GPUs whose equal pairs add up to
the links that a generation has are taken for a full mesh, else equal pairs for a switch.

**PCIe.** Groups grow from one PCIe switch over one NUMA domain to all sockets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations, takewhile
from typing import Final, TypeAlias

from shardcost.catalog.reported import cluster_reporting
from shardcost.cluster import CUBE_MESH, CUBE_MESH_CABLES
from shardcost.formats.nccl_xml import NcclTopology, Place, TopologyGpu
from shardcost.formats.nvidia_smi import DeviceMatrix

Counts: TypeAlias = Sequence[Sequence[int]]
Groups: TypeAlias = tuple[tuple[int, ...], ...]

PCIE_LEVELS: Final = (
    ("pcie_switch", ("PIX", "PXB")),
    ("numa_domain", ("PHB", "NODE")),
    ("sockets", ("SYS",)),
)
"""What joins GPUs at each level, innermost first, and how a matrix shows it."""
_LARGEST_MESH: Final = 4
"""More GPUs than this were never joined pair by pair with equal counts: a switch joins them."""
_CUBE_GPUS: Final = 1 + max(max(pair) for pair in CUBE_MESH)
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
class DeviceGraph:
    """GPUs of a machine and what joins them, as either kind of file says."""

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


def graph_in(reading: DeviceMatrix | NcclTopology) -> DeviceGraph:
    """Return the devices that a file describes."""
    return _from_matrix(reading) if isinstance(reading, DeviceMatrix) else _from_xml(reading)


def _from_matrix(matrix: DeviceMatrix) -> DeviceGraph:
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
    cards: list[tuple[str, float | None, list[str]]] = [
        (matrix.nic_names[nic], None, [ways[i] for ways in matrix.nic_links])
        for i, nic in enumerate(matrix.nics)
    ]
    return DeviceGraph(
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


def _from_xml(topology: NcclTopology) -> DeviceGraph:
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
    capabilities, boards = {gpu.sm for gpu in gpus}, {gpu.pci_id for gpu in gpus}
    rates = [gpu.pci_bytes_per_s for gpu in gpus if gpu.pci_bytes_per_s]
    machine = DeviceGraph(
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
        hosts=max(1, len({cpu.host for cpu in topology.cpus})),
        sm=capabilities.pop() if len(capabilities) == 1 else None,
        board=cluster_reporting(boards.pop()) if len(boards) == 1 else None,
        pci_bytes_per_s=min(rates) if rates and len(rates) == len(gpus) else None,
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
    pairs = zip(one.switches, other.switches, strict=False)
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    if not shared:
        return "PHB"
    between = len(one.switches) + len(other.switches) - 2 * shared
    return "PXB" if between else "PIX"


def _say_of_xml(machine: DeviceGraph, topology: NcclTopology, total: list[int]) -> None:
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
    kinds = (kind for starts, kind in _NETWORK_OF_CARD if name.lower().startswith(starts))
    return next(kinds, "")


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


@dataclass(frozen=True)
class Joined:
    """GPUs that NVLinks join, group by group."""

    kind: str
    """``nvswitch``, ``full_mesh``, ``cube_mesh``, ``bridge``, or ``mesh`` of no known shape."""
    groups: Groups
    links_per_gpu: int
    """Of a sound GPU, to all its peers together."""
    fewer: tuple[tuple[int, int], ...] = ()
    """GPUs that have fewer links than the others, with how many they have."""


def joined_by_nvlink(
    pairs: Counts, links_in_all: Sequence[int], *, behind_switch: bool | None
) -> Joined | None:
    """Return how NVLinks join GPUs; None where there are none.

    Args:
        pairs: Links that each two GPUs can use together.
        links_in_all: How many links GPUs of some generation have, to tell a mesh by.
        behind_switch: Whether a switch joins them, if that is known.
    """
    gpus = len(pairs)
    best = [max(row, default=0) for row in pairs]
    most = max(best, default=0)
    if not most:
        return None
    sound = best.count(most)
    # The others are the exception; two of three alike may be a bridged pair.
    clear_majority = sound == gpus or (sound > 2 and 2 * sound > gpus)
    # Each pair has what the poorer of the two has: nothing depends on the peer.
    pairs_alike = all(pairs[a][b] == min(best[a], best[b]) for a, b in permutations(range(gpus), 2))
    if pairs_alike and clear_majority:
        fewer = tuple((gpu, best[gpu]) for gpu in range(gpus) if best[gpu] < most)
        kind, links = _alike(most, gpus, links_in_all, behind_switch=behind_switch)
        return Joined(kind, (tuple(range(gpus)),), links, fewer)
    return _in_groups(pairs, links_in_all)


def _alike(
    links: int, gpus: int, links_in_all: Sequence[int], *, behind_switch: bool | None
) -> tuple[str, int]:
    """Return what joins GPUs of which every pair has as many links, and the links of each."""
    to_all_peers = links * (gpus - 1)
    if behind_switch:
        return "nvswitch", links
    if gpus == 2:
        switched = behind_switch is None and links == max(links_in_all, default=0)
        return ("nvswitch" if switched else "bridge"), links
    meshed = to_all_peers in links_in_all and gpus <= _LARGEST_MESH
    if behind_switch is False or meshed:
        return "full_mesh", to_all_peers
    return "nvswitch", links


def _in_groups(pairs: Counts, links_in_all: Sequence[int]) -> Joined:
    """Return what joins GPUs that do not all reach each other by the same number of links."""
    groups = grouped(pairs)
    several = tuple(group for group in groups if len(group) > 1)
    totals = [sum(row) for row in pairs]
    usual, _ = Counter(totals[gpu] for group in several for gpu in group).most_common(1)[0]
    fewer = tuple((gpu, totals[gpu]) for group in several for gpu in group if totals[gpu] < usual)
    if all(len(group) == 2 for group in several):
        return Joined("bridge", several, usual)
    if len(several) == 1 and len(several[0]) == _CUBE_GPUS and usual == CUBE_MESH_CABLES:
        return Joined("cube_mesh", several, usual, fewer)
    counts = {pairs[a][b] for group in several for a, b in permutations(group, 2)}
    sizes = {len(group) for group in several}
    if len(counts) == 1 and len(sizes) == 1 and not fewer:
        kind, links = _alike(counts.pop(), sizes.pop(), links_in_all, behind_switch=None)
        return Joined(kind, several, links)
    return Joined("mesh", several, usual, fewer)


def grouped(joined: Sequence[Sequence[object]]) -> Groups:
    """Return the groups of devices that reach each other, directly or by way of others."""
    left = set(range(len(joined)))
    groups = []
    while left:
        group = {min(left)}
        edge = list(group)
        while edge:
            one = edge.pop()
            reached = {other for other in left - group if joined[one][other] or joined[other][one]}
            group |= reached
            edge += reached
        left -= group
        groups.append(tuple(sorted(group)))
    return tuple(groups)


def pcie_groups(near: Sequence[Sequence[str]]) -> list[tuple[str, Groups]]:
    """Return the groups of each PCIe level that joins more GPUs than the level below it."""
    levels: list[tuple[str, Groups]] = []
    reached: tuple[str, ...] = ()
    before: Groups = tuple((gpu,) for gpu in range(len(near)))
    for level, words in PCIE_LEVELS:
        reached += words
        groups = grouped([[word in reached for word in row] for row in near])
        if groups != before:
            levels.append((level, groups))
        before = groups
    return levels

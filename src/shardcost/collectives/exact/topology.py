"""How devices are wired: graphs of devices, switches and host bridges with directed links.

A `Topology` is plain data: places (devices first, so device 3 is place 3) and directed links, each
with a rate and a latency. Every cable is two links, one for each direction. What a schedule of a
collective makes of them is simulated in `shardcost.collectives.exact.simulate`.

**Rates** are bytes per second in one direction. Where all links of a device lead to a switch, its
port is one link with the rate of all of them together; two parallel cables between the same two
devices are one link with twice the rate.

**Latency** is what a message spends on its way before its first byte arrives, summed over the links
of its route. The builders take it from device to device and put half of it on the way into a
switch, half on the way out.

**Routes** are the same in every run: the cheapest path, in hops. Of paths equally cheap a device
takes the first, so that a torus is crossed in order of its dimensions, and a switch spreads them by
the server of the target: D-mod-K, which keeps shifts free of contention (Zahavi, "D-Mod-K Routing
Providing Non-Blocking Traffic for Shift Permutations on Real Life Fat Trees", Technion CCIT 776,
2010).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, combinations, product
from math import inf, prod
from numbers import Real
from typing import Any, Final, NamedTuple, TypeAlias

from shardcost.cluster import CUBE_MESH, CUBE_MESH_CABLES, Cluster, Tier
from shardcost.errors import BadTypeError, BadValueError, MissingExtraError
from shardcost.scalars import positive_number, whole_number
from shardcost.wiring import NEAR, Wiring

Route: TypeAlias = tuple[int, ...]
"""Links one after another, as indices into `Topology.links`."""

_HOP: Final = 2
_NETWORK_HOP: Final = 1000
"""Into and out of a network port: dear, so that no traffic leaves a server without need."""
_SPINE_HOP: Final = 1
"""Cheaper than a hop through a neighbour, so that traffic between rails crosses the spines."""
_AVOIDED_SPINE_HOP: Final = 100
_NVLINK_HOP: Final = 10
_SLOT_HOP: Final = 12
_PCIE_HOP: Final = 1
"""In a wired node: over NVLinks, if need be by way of one neighbour, else over PCIe all the way,
never first one and then the other, which libraries do not do."""


class Place(NamedTuple):
    """A device, a switch, a network port or the host's memory."""

    name: str
    kind: str
    server: int = 0
    reduces: bool = False
    """It can add up what passes through it."""


class Link(NamedTuple):
    """One direction of a cable."""

    source: int
    target: int
    bytes_per_s: float
    latency_s: float = 0.0
    cost: int = _HOP
    """What a route pays for it; the cheapest wins."""


@dataclass(frozen=True, eq=False)
class Topology:
    """Places and the links between them; the first `devices` places are the devices.

    >>> four = nvswitch(4, 450e9)
    >>> [four.link_name(link) for link in four.route(0, 3)]
    ['gpu 0 > nvswitch', 'nvswitch > gpu 3']
    """

    name: str
    places: tuple[Place, ...]
    links: tuple[Link, ...]
    _distances: dict[int, Mapping[int, int]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def devices(self) -> int:
        """How many devices there are."""
        return sum(place.kind == "gpu" for place in self.places)

    @cached_property
    def _outgoing(self) -> list[list[int]]:
        outgoing: list[list[int]] = [[] for _ in self.places]
        for index, link in enumerate(self.links):
            outgoing[link.source].append(index)
        return outgoing

    @cached_property
    def _backwards(self) -> Any:
        """All links, from target to source, as a networkx graph."""
        graph = _networkx().DiGraph()
        graph.add_nodes_from(range(len(self.places)))
        edges = ((link.target, link.source, link.cost) for link in self.links)
        graph.add_weighted_edges_from(edges, weight="cost")
        return graph

    def link_name(self, link: int) -> str:
        """Return a link as its two ends: ``gpu 0 > nvswitch``."""
        source, target = self.links[link][:2]
        return f"{self.places[source].name} > {self.places[target].name}"

    def route(self, source: int, target: int) -> Route:
        """Return the links from one place to another."""
        if target not in self._distances:
            shortest = _networkx().single_source_dijkstra_path_length
            self._distances[target] = shortest(self._backwards, target, weight="cost")
        distance = self._distances[target]
        if source not in distance:
            ends = self.places[source].name, self.places[target].name
            raise BadValueError(f"route in {self.name}", ends, "between places that links connect")
        route, at = [], source
        while at != target:
            cheapest = [
                index
                for index in self._outgoing[at]
                if (link := self.links[index]).target in distance
                and distance[link.target] + link.cost == distance[at]
            ]
            spread = 0 if at < self.devices else self.places[target].server
            route.append(cheapest[spread % len(cheapest)])
            at = self.links[route[-1]].target
        return tuple(route)

    def latency_s(self, route: Route) -> float:
        """Return what a message spends on a route before its first byte arrives."""
        return sum(self.links[link].latency_s for link in route)

    def reducing_switch(self, devices: Collection[int]) -> int:
        """Return the first switch that is linked to all these devices and can reduce."""
        for index, place in enumerate(self.places):
            if place.reduces:
                linked = {self.links[link].target for link in self._outgoing[index]}
                if linked.issuperset(devices):
                    return index
        rule = "linked to one switch that reduces, since the schedule reduces in a switch"
        raise BadValueError(f"devices of {self.name}", sorted(devices), rule)


def nvswitch(
    gpus: int, bytes_per_s: float, *, latency_s: float = 0.0, in_switch_reduction: bool = True
) -> Topology:
    """Return devices behind one switch that never blocks: each has one port each way.

    Args:
        gpus: Devices.
        bytes_per_s: Of each device's port, one direction.
        latency_s: From device to device.
        in_switch_reduction: The switch can add up and replicate (NVLink SHARP).
    """
    plan = _Plan()
    plan.join_by_switch(plan.server(gpus), bytes_per_s, latency_s, reduces=in_switch_reduction)
    return plan.topology(f"nvswitch of {gpus}")


def nvl72(
    bytes_per_s: float, *, trays: int = 18, gpus_per_tray: int = 4, latency_s: float = 0.0
) -> Topology:
    """Return a rack that is one NVLink domain: 18 trays of 4 devices behind one layer of switches.

    Every device has a link to every switch chip, so the layer acts as one switch that never blocks
    (NVIDIA GB200 NVL72 product page, 2024). A tray is a server of its own: `Place.server` tells.
    """
    plan = _Plan()
    servers = [plan.server(gpus_per_tray) for _ in range(whole_number("trays", trays, 1))]
    plan.join_by_switch(list(chain(*servers)), bytes_per_s, latency_s, reduces=True)
    return plan.topology(f"nvl{trays * gpus_per_tray}")


def full_mesh(gpus: int, link_bytes_per_s: float, *, latency_s: float = 0.0) -> Topology:
    """Return devices with one link between each two (AMD's xGMI, Intel's Gaudi)."""
    plan = _Plan()
    plan.join_pairs(plan.server(gpus), link_bytes_per_s, latency_s)
    return plan.topology(f"full mesh of {gpus}")


def cube_mesh(link_bytes_per_s: float, *, latency_s: float = 0.0) -> Topology:
    """Return the hybrid cube mesh of the DGX-1 with V100: 8 devices, 6 links each, some doubled.

    Two devices without a link between them reach each other through a device next to both.

    (NVIDIA DGX-1 with Tesla V100 System Architecture white paper, NVIDIA, 2017.)
    """
    plan = _Plan()
    plan.join_cube(plan.server(8), link_bytes_per_s, latency_s)
    return plan.topology("cube mesh")


def torus(
    shape: Sequence[int], link_bytes_per_s: float, *, wrap: bool = True, latency_s: float = 0.0
) -> Topology:
    """Return a torus of one to three dimensions; the last varies fastest in the device's number.

    Without `wrap` it is a mesh: no link joins the ends of a row.

    >>> torus((4, 4, 4), 50e9).devices
    64
    """
    if not isinstance(shape, tuple | list):
        raise BadTypeError("shape", shape, "one to three whole numbers, one per dimension")
    if not 1 <= len(shape) <= 3:
        raise BadValueError("shape", tuple(shape), "one to three whole numbers, one per dimension")
    sides = [whole_number("shape", side, 1) for side in shape]
    plan = _Plan()
    at = dict(zip(product(*map(range, sides)), plan.server(prod(sides)), strict=True))
    rate, latency = _rate("link_bytes_per_s", link_bytes_per_s), _latency("latency_s", latency_s)
    for dimension, side in enumerate(sides):
        for place, device in at.items():
            onward = (place[dimension] + 1) % side
            if not wrap and onward == 0:
                continue
            neighbour = at[(*place[:dimension], onward, *place[dimension + 1 :])]
            if side > 2 or device < neighbour:  # two devices in a row share one cable, not two
                plan.join(device, neighbour, rate, latency)
    kind = "torus" if wrap else "mesh"
    return plan.topology(f"{kind} of " + " x ".join(map(str, sides)))


def pcie_tree(
    gpus: int,
    bytes_per_s: float,
    *,
    gpus_per_switch: int = 4,
    host_bytes_per_s: float | None = None,
    peer_access: bool = True,
    latency_s: float = 0.0,
) -> Topology:
    """Return devices on PCIe switches below one host bridge.

    With peer access a transfer turns round at the lowest switch above both devices. Without it,
    every transfer goes up into the host's memory and down again, and all share the host bridge.

    Args:
        gpus: Devices.
        bytes_per_s: Of each device's slot and of each switch's link to the host, one direction.
        gpus_per_switch: Devices that share a switch's link to the host.
        host_bytes_per_s: At which the host bridge passes on what is staged in memory; as fast as
            the links of its switches together, if not given.
        peer_access: Devices reach each other's memory directly.
        latency_s: From device to device.
    """
    plan = _Plan()
    plan.join_by_pcie(
        plan.server(gpus),
        bytes_per_s,
        latency_s,
        gpus_per_switch=gpus_per_switch,
        host_bytes_per_s=host_bytes_per_s,
        peer_access=peer_access,
    )
    return plan.topology(f"pcie tree of {gpus}")


def rail_fat_tree(
    nodes: int,
    gpus_per_node: int,
    *,
    bytes_per_s: float,
    nic_bytes_per_s: float,
    nics_per_node: int | None = None,
    oversubscription: float = 1.0,
    spines: int = 1,
    pxn: bool = False,
    latency_s: float = 0.0,
    network_latency_s: float = 0.0,
) -> Topology:
    """Return servers with a switch inside, and a network with one leaf switch per port: rails.

    Port i of every node hangs on leaf i; the leaves meet in the spines.

    Args:
        nodes: Servers.
        gpus_per_node: Devices in each.
        bytes_per_s: Of each device's port on the switch inside, one direction.
        nic_bytes_per_s: Of one network port, one direction.
        nics_per_node: Network ports of a server, one per device if not given. Fewer are shared by
            neighbouring devices; more are bundled.
        oversubscription: What a leaf can take from its ports over what it can pass to the spines.
        spines: Spine switches. One stands for any number with perfect (adaptive) spreading; with
            more, each pair of devices has one of them.
        pxn: Traffic between rails first changes the rail inside the server and never meets the
            spines, as NCCL does where it can.
        latency_s: From device to device inside a server.
        network_latency_s: From device to device of another server.
    """
    plan = _Plan()
    servers = [plan.server(gpus_per_node) for _ in range(whole_number("nodes", nodes, 1))]
    for devices in servers:
        plan.join_by_switch(devices, bytes_per_s, latency_s, reduces=True)
    plan.join_by_rails(
        servers,
        nic_bytes_per_s,
        gpus_per_node if nics_per_node is None else nics_per_node,
        network_latency_s,
        gpus_per_node=gpus_per_node,
        oversubscription=oversubscription,
        spines=spines,
        pxn=pxn,
    )
    return plan.topology(f"rail fat tree of {nodes} x {gpus_per_node}")


def of_cluster(
    cluster: Cluster,
    gpus: int,
    nodes: int | None = None,
    *,
    oversubscription: float = 1.0,
    latency_s: float = 0.0,
    network_latency_s: float = 0.0,
) -> Topology:
    """Return how `gpus` devices of a cluster are wired, spread evenly over `nodes` of its nodes.

    >>> of_cluster(Cluster.named("h100_sxm", network="ib_8x400g"), gpus=16).name
    '2 x 8 h100_sxm on ib_8x400g'

    Args:
        cluster: Nominal rates of devices, links and network.
        gpus: Devices in all.
        nodes: Nodes that they are on, as few as hold them if not given.
        oversubscription: As in `rail_fat_tree`.
        latency_s: From device to device inside a domain.
        network_latency_s: From device to device of another domain.
    """
    per_node = whole_number("Cluster.gpus_per_node", cluster.gpus_per_node, 1)
    gpus = whole_number("gpus", gpus, 1)
    count = -(-gpus // per_node) if nodes is None else whole_number("nodes", nodes, 1)
    if gpus % count or gpus // count > per_node:
        raise BadValueError("gpus", gpus, f"the same on each of {count} nodes, at most {per_node}")
    used = gpus // count
    if len(cluster.tiers) != 1 or cluster.tiers[0].gpus < per_node:
        rule = f"one tier, of at least a node's {per_node} devices"
        raise BadValueError("Cluster.tiers", [t.gpus for t in cluster.tiers], rule)
    tier = cluster.tiers[0]
    plan = _Plan()
    servers = [plan.server(used) for _ in range(count)]
    together = tier.gpus // per_node
    domains = [list(chain(*servers[i : i + together])) for i in range(0, count, together)]
    for devices in domains:
        if cluster.wiring is None:
            plan.join_by_tier(devices, tier, latency_s)
        else:
            plan.join_by_wiring(devices, cluster.wiring, latency_s)
    name = f"{count} x {used} {cluster.name}"
    if len(domains) == 1:
        return plan.topology(name)
    if cluster.network is None:
        rule = f"at most {together}, one domain of {cluster.name} (name a network for more)"
        raise BadValueError("nodes", count, rule)
    network = cluster.network
    ports = network.nics_per_node
    if network.nics_per_gpu is not None:
        ports = network.nics_per_gpu * per_node
    plan.join_by_rails(
        servers,
        positive_number("Network.nic_bytes_per_s", network.nic_bytes_per_s),
        whole_number("Network.nics_per_node", ports, 1),
        network_latency_s,
        gpus_per_node=per_node,
        oversubscription=oversubscription,
    )
    return plan.topology(f"{name} on {network.name}")


def of_wiring(wiring: Wiring, gpus: int | None = None, *, latency_s: float = 0.0) -> Topology:
    """Return a node as it is wired, its network cards included, or the first `gpus` of it.

    >>> from shardcost.wiring import Cable
    >>> bridge = Wiring(gpus=2, cables=(Cable(0, 1, 4),), link_bytes_per_s=25e9)
    >>> of_wiring(bridge).links[0].bytes_per_s
    100000000000.0
    """
    plan = _Plan()
    devices = plan.server(wiring.gpus if gpus is None else gpus)
    plan.join_by_wiring(devices, wiring, latency_s, with_nics=True)
    return plan.topology(f"wired node of {len(devices)}")


class _Plan:
    """Places and links while they are being laid."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.links: list[Link] = []
        self.servers = 0

    def server(self, gpus: int) -> list[int]:
        """Add the devices of one server; all of them come before any switch."""
        first = len(self.places)
        for device in range(first, first + whole_number("gpus", gpus, 1)):
            self.places.append(Place(f"gpu {device}", "gpu", self.servers))
        self.servers += 1
        return list(range(first, len(self.places)))

    def place(self, name: str, kind: str, server: int = 0, *, reduces: bool = False) -> int:
        """Add anything else."""
        self.places.append(Place(name, kind, server, reduces))
        return len(self.places) - 1

    def join(self, a: int, b: int, rate: float, latency_s: float = 0.0, cost: int = _HOP) -> None:
        """Lay a cable: a link each way."""
        self.links += [Link(a, b, rate, latency_s, cost), Link(b, a, rate, latency_s, cost)]

    def topology(self, name: str) -> Topology:
        return Topology(name, tuple(self.places), tuple(self.links))

    def within(self, name: str, devices: Sequence[int]) -> str:
        servers = sorted({self.places[device].server for device in devices})
        return name if self.servers == len(servers) else f"{name} {servers[0]}"

    def join_by_switch(
        self, devices: Sequence[int], bytes_per_s: float, latency_s: float, *, reduces: bool
    ) -> None:
        """Join devices by one switch that never blocks."""
        rate, latency = _rate("bytes_per_s", bytes_per_s), _latency("latency_s", latency_s)
        server = self.places[devices[0]].server
        switch = self.place(self.within("nvswitch", devices), "switch", server, reduces=reduces)
        for device in devices:
            self.join(device, switch, rate, latency / 2)

    def join_pairs(self, devices: Sequence[int], link_bytes_per_s: float, latency_s: float) -> None:
        """Join each two devices by a link of their own."""
        rate = _rate("link_bytes_per_s", link_bytes_per_s)
        for a, b in combinations(devices, 2):
            self.join(a, b, rate, _latency("latency_s", latency_s))

    def join_cube(self, devices: Sequence[int], link_bytes_per_s: float, latency_s: float) -> None:
        """Join devices like the first of a DGX-1 with V100."""
        rate = _rate("link_bytes_per_s", link_bytes_per_s)
        for (a, b), cables in CUBE_MESH.items():
            if b < len(devices):
                latency = _latency("latency_s", latency_s)
                self.join(devices[a], devices[b], rate * cables, latency)

    def join_by_pcie(
        self,
        devices: Sequence[int],
        bytes_per_s: float,
        latency_s: float,
        *,
        gpus_per_switch: int = 4,
        host_bytes_per_s: float | None = None,
        peer_access: bool,
    ) -> None:
        """Join devices by PCIe switches below one host bridge; see `pcie_tree`."""
        rate, latency = _rate("bytes_per_s", bytes_per_s), _latency("latency_s", latency_s)
        width = whole_number("gpus_per_switch", gpus_per_switch, 1)
        server = self.places[devices[0]].server
        groups = [devices[i : i + width] for i in range(0, len(devices), width)]
        bridge = top = self.place(self.within("host bridge", devices), "host", server)
        if not peer_access:
            staged = len(groups) * rate if host_bytes_per_s is None else host_bytes_per_s
            top = self.place(self.within("host memory", devices), "host", server)
            self.links.append(Link(bridge, top, _rate("host_bytes_per_s", staged)))
        for number, group in enumerate(groups):
            name = f"{self.within('pcie switch', devices)}.{number}"
            up = down = self.place(name, "switch", server)
            if not peer_access:  # what goes up must not turn round: the way down is another place
                down = self.place(f"{name} down", "switch", server)
            self.links += [Link(up, bridge, rate), Link(top, down, rate)]
            for device in group:
                self.links.append(Link(device, up, rate, latency / 2))
                self.links.append(Link(down, device, rate, latency / 2))

    def join_by_tier(self, devices: Sequence[int], tier: Tier, latency_s: float) -> None:
        """Join devices as a tier of a cluster does, at its nominal rate."""
        rate = _rate("Tier.bytes_per_s", tier.bytes_per_s)
        if tier.kind == "nvswitch":
            self.join_by_switch(devices, rate, latency_s, reduces=tier.in_switch_reduction)
        elif tier.kind == "full_mesh":
            self.join_pairs(devices, rate / max(1, tier.gpus - 1), latency_s)
        elif tier.kind == "cube_mesh":
            self.join_cube(devices, rate / CUBE_MESH_CABLES, latency_s)
        else:
            self.join_by_pcie(devices, rate, latency_s, peer_access=tier.peer_access)

    def join_by_wiring(
        self, devices: Sequence[int], wiring: Wiring, latency_s: float, *, with_nics: bool = False
    ) -> None:
        """Join the first devices of a node as they are wired."""
        latency = _latency("latency_s", latency_s)
        at = dict(enumerate(devices))
        server = self.places[devices[0]].server
        each = wiring.link_bytes_per_s or 0.0
        for one, other, links in wiring.cables:
            if one in at and other in at:
                self.join(at[one], at[other], links * each, latency, _NVLINK_HOP)
        for number, (members, counts) in enumerate(wiring.switches):
            name = self.within("nvswitch", devices) + f".{number}" * (len(wiring.switches) > 1)
            switch = self.place(name, "switch", server)
            for gpu, links in zip(members, counts, strict=True):
                if gpu in at:
                    self.join(at[gpu], switch, links * each, latency / 2, _NVLINK_HOP // 2)
        above = self._join_sockets(at, wiring, latency, server)
        for nic in wiring.nics if with_nics else ():
            known = [gpu for gpu in nic.gpus if gpu in above]
            if known and nic.bytes_per_s:
                switch, bridge = above[known[0]]
                port = self.place(nic.name, "nic", server)
                place = switch if nic.way in NEAR else bridge
                self.join(place, port, nic.bytes_per_s, 0.0, _NETWORK_HOP)

    def _join_sockets(
        self, at: Mapping[int, int], wiring: Wiring, latency: float, server: int
    ) -> dict[int, tuple[int, int]]:
        """Join devices by PCIe; return the switch and the host bridge above each."""
        rate, above = wiring.pcie_bytes_per_s or 0.0, {}
        tops: list[int] = []
        for number, socket in enumerate(wiring.sockets):
            bridge = top = self.place(f"host bridge {number}", "host", server)
            if not wiring.peer_access:  # staged in memory: what goes up must not turn round before
                top = self.place(f"host memory {number}", "host", server)
                staged = rate * len(socket)
                self.links.append(Link(bridge, top, staged, 0.0, _PCIE_HOP))
            for other in tops:
                self.join(top, other, wiring.socket_bytes_per_s or 0.0, 0.0, _PCIE_HOP)
            tops.append(top)
            for group, members in enumerate(socket):
                up = down = self.place(f"pcie switch {number}.{group}", "switch", server)
                if not wiring.peer_access:
                    down = self.place(f"pcie switch {number}.{group} down", "switch", server)
                self.links.append(Link(up, bridge, rate, 0.0, _PCIE_HOP))
                self.links.append(Link(top, down, rate, 0.0, _PCIE_HOP))
                for gpu in members:
                    if gpu in at:
                        self.links.append(Link(at[gpu], up, rate, latency / 2, _SLOT_HOP))
                        self.links.append(Link(down, at[gpu], rate, latency / 2, _SLOT_HOP))
                        above[gpu] = up, bridge
        return above

    def join_by_rails(
        self,
        servers: Sequence[Sequence[int]],
        nic_bytes_per_s: float,
        nics_per_node: int,
        latency_s: float,
        *,
        gpus_per_node: int,
        oversubscription: float,
        spines: int = 1,
        pxn: bool = False,
    ) -> None:
        """Join servers by one leaf switch per network port, and leaves by spines."""
        latency = _latency("network_latency_s", latency_s)
        ports = whole_number("nics_per_node", nics_per_node, 1)
        rate = _rate("nic_bytes_per_s", nic_bytes_per_s) * max(1.0, ports / gpus_per_node)
        ports = min(ports, gpus_per_node)
        leaves: dict[int, int] = {}
        for server, devices in enumerate(servers):
            nics: dict[int, int] = {}
            for position, device in enumerate(devices):
                rail = position * ports // gpus_per_node
                if rail not in nics:
                    nics[rail] = self.place(f"nic {server}.{rail}", "nic", server)
                    if rail not in leaves:
                        leaves[rail] = self.place(f"leaf {rail}", "switch")
                    self.join(nics[rail], leaves[rail], rate)
                self.join(device, nics[rail], rate, latency / 2, _NETWORK_HOP)
        if len(leaves) == 1:
            return
        up = len(servers) * rate / positive_number("oversubscription", oversubscription)
        count = whole_number("spines", spines, 1)
        cost = _AVOIDED_SPINE_HOP if pxn else _SPINE_HOP
        for number in range(count):
            spine = self.place("spine" if count == 1 else f"spine {number}", "switch")
            for leaf in leaves.values():
                self.join(leaf, spine, up / count, cost=cost)


def _rate(name: str, value: object) -> float:
    return positive_number(name, value, "bytes per second")


def _latency(name: str, value: object) -> float:
    rule = "a finite number of seconds of at least 0"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise BadTypeError(name, value, rule)
    if not 0.0 <= float(value) < inf:
        raise BadValueError(name, value, rule)
    return float(value)


def _networkx() -> Any:
    try:
        import networkx
    except ImportError:
        raise MissingExtraError("a topology", "networkx", "topology") from None
    return networkx

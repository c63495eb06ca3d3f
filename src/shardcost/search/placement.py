"""Which device each rank of a node should use, where devices are wired unevenly: `placement_of`.

A layout numbers the ranks; the order of placement says which device of a node has which rank, the
same in every node. Each order gives the layout's groups other links. What it costs:

1. All groups of a degree run at once. Their rate on the links of the node, inside and out to the
   network cards, is that of `shardcost.collectives.exact.rings`.
2. A collective takes what it takes on links of that rate: the priced path with its bytes by the
   ratio of the rate to the one that the cluster's tier has (`time_on_links_s`). Constants of PCIe
   were fitted on hosts with sockets of their own, which a ratio would count twice: there the bytes
   over the rate are added and those over the tier's rate taken off.
3. The step follows from the ledger with those prices, so that hidden communication stays hidden.

Of nodes with up to eight devices every order is tried, but for those that differ only in the
numbers of ranks that are alike (those of a tensor group among themselves, for instance). Beyond,
single swaps improve the order until none does, from several starts. Of all orders only those are
priced whose rates no other order has at least all of: a step is never longer on faster links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from shardcost.collectives.exact.rings import LinkRates
from shardcost.collectives.exact.topology import Topology, of_cluster, of_wiring
from shardcost.estimate.result import Estimate
from shardcost.program.operations import Collective
from shardcost.search.sensitivity import adjusted_time_s

Order: TypeAlias = tuple[int, ...]
"""The device of each rank of a node."""

_MOST_EXACT: Final = 8
"""Devices of a node of which every order is tried."""
_MOST_SWAPS: Final = 20_000
_EVEN: Final = frozenset({"nvswitch", "full_mesh"})
"""Tiers in which each device has the same links to each other."""
_EXCHANGES: Final = frozenset({"all_to_all", "dispatch", "combine"})
_SAME: Final = 1e-6
"""Times that differ by less, as a share, are the same."""


class Use(NamedTuple):
    """How collectives use links: what runs in which groups of the layout."""

    degree: str
    how: str
    """``ring``, ``exchange`` or ``send``."""
    ranks: int
    stride: int


class Rate(NamedTuple):
    """At which a rank sends, all groups of a degree at once; None where it does not."""

    inside: float | None
    """To ranks of its node."""
    outside: float | None
    """Its share of what its group sends into the network."""

    def least(self, other: Rate) -> Rate:
        """Return the lower rates of two."""
        pairs = zip(self, other, strict=True)
        return Rate(*(min((r for r in pair if r is not None), default=None) for pair in pairs))


@dataclass(frozen=True, eq=False)
class Placement:
    """The best order of a layout's ranks on the devices of a node."""

    estimate: Estimate
    order: Order
    identity_s: float
    """A step with rank i on device i …"""
    best_s: float
    """… and in the best order."""
    rates: tuple[tuple[Use, Rate, Rate], ...]
    """What runs over links, with the rate in the order of the devices and in the best order."""
    tried: int = 0
    every: bool = True
    """Whether every order was tried that differs from the others."""
    reason: str = ""
    """Why no order was tried; else empty."""
    is_known: bool = True
    """Whether it is known how the devices are wired."""

    @property
    def gain(self) -> float:
        """By which share a step is faster than with rank i on device i."""
        return self.identity_s / self.best_s - 1

    @property
    def matters(self) -> bool:
        """Whether the order makes a difference."""
        return self.gain > _SAME

    @property
    def visible_devices(self) -> str:
        """The value of CUDA_VISIBLE_DEVICES that gives local rank i its device."""
        return ",".join(map(str, self.order))


def placement_of(estimate: Estimate) -> Placement:
    """Return the best order of a layout's ranks on the devices of a node.

    >>> from shardcost import Decode, Layout, estimate
    >>> decode = Decode(batch=8, context_tokens=512)
    >>> pair = estimate("llama2-7b", "v100_cube", Layout(tp=2), decode)
    >>> placement_of(pair).order  # two devices with a doubled cable
    (0, 3)

    Args:
        estimate: Of one layout, not of arrays of them.
    """
    used = int(min(estimate.layout.devices, estimate.cluster.gpus_per_node))
    topology, reason, is_known = _node_of(estimate)
    if topology is not None:
        return _Search(estimate, topology, used).best()
    order, time_s = tuple(range(used)), float(estimate.time_s)
    return Placement(estimate, order, time_s, time_s, (), reason=reason, is_known=is_known)


class _Wired(NamedTuple):
    """The links of a node, or why no order is tried on them."""

    topology: Topology | None
    reason: str = ""
    is_known: bool = True


def _node_of(estimate: Estimate) -> _Wired:
    cluster = estimate.cluster
    tier, wiring = cluster.tiers[0], cluster.wiring
    if estimate.layout.devices == 1:
        return _Wired(None, "one device has no peers")
    crosses = estimate.layout.devices > cluster.gpus_per_node
    even = tier.kind in _EVEN if wiring is None else wiring.is_even
    if wiring is not None and not (even and (wiring.has_even_nics or not crosses)):
        return _Wired(of_wiring(wiring))
    if even:
        return _Wired(None, f"each device of {cluster.name} has the same links to each other")
    if tier.kind == "torus":  # `shardcost.torus`: the last axis fills first
        return _Wired(None, f"on the torus of {cluster.name} ranks follow the axes, the last first")
    if tier.kind == "cube_mesh":
        return _Wired(of_cluster(cluster, int(cluster.gpus_per_node)))
    reason = (
        f"how the devices of {cluster.name} are wired is not known (`shardcost inspect TOPOLOGY"
        " --write-machine FILE` writes it from the output of nvidia-smi topo -m)"
    )
    return _Wired(None, reason, is_known=False)


class _Node(NamedTuple):
    """What the ranks of one node do for a use of links, as local ranks."""

    inside: frozenset[tuple[int, ...]]
    """Groups, or pairs that send."""
    outside: frozenset[tuple[int, ...]]
    """Those with members in other nodes; of sends, who sends there."""

    def mapped(self, order: Order | Mapping[int, int], *, ordered: bool) -> _Node:
        """Return the same with other numbers; members in order unless they send."""

        def named(group: tuple[int, ...]) -> tuple[int, ...]:
            numbers = [order[rank] for rank in group]
            return tuple(numbers if ordered else sorted(numbers))

        return _Node(frozenset(map(named, self.inside)), frozenset(map(named, self.outside)))


class _Search:
    """Orders of one layout's ranks on the devices of a topology."""

    def __init__(self, estimate: Estimate, topology: Topology, used: int) -> None:
        self.estimate = estimate
        self.used = used
        self.devices = topology.devices
        self.links = LinkRates(topology)
        self._known_rates: dict[tuple[str, _Node], Rate] = {}
        self._known_times: dict[tuple[Rate, ...], float] = {}
        self._priced: dict[Any, float] = {}

    def best(self) -> Placement:
        """Return the best order found."""
        identity = tuple(range(self.used))
        every = self.devices <= _MOST_EXACT
        first: dict[tuple[Rate, ...], Order] = {self.rates(identity): identity}
        tried = 1
        for order in self._orders() if every else self._improved(identity):
            first.setdefault(self.rates(order), order)
            tried += 1
        identity_s = self.time_s(self.rates(identity))
        times = {rates: self.time_s(rates) for rates in _undominated(first)}
        fastest = min(times, key=lambda rates: times[rates])
        if times[fastest] >= identity_s * (1 - _SAME):
            fastest = self.rates(identity)
        order, best_s = first[fastest], self.time_s(fastest)
        rows = zip(self.uses, self.rates(identity), fastest, strict=True)
        return Placement(self.estimate, order, identity_s, best_s, tuple(rows), tried, every)

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """What the layout's collectives run on, in the order of the ledger."""
        found = (
            self._use(entry.op)
            for entry in self.estimate.entries
            if isinstance(entry.op, Collective)
        )
        return tuple(dict.fromkeys(use for use in found if use is not None))

    def _use(self, op: Collective) -> Use | None:
        if op.group == "offload" or op.ranks == 1:
            return None
        stride = int(op.stride * self.estimate.ledger.prices.strides[op.group])
        if op.collective == "send_recv":
            ranks = self.estimate.layout.pp if op.group == "pp" else op.ranks
            return Use(op.degree, "send", int(ranks), stride)
        how = "exchange" if op.collective in _EXCHANGES else "ring"
        return Use(op.degree, how, int(op.ranks), stride)

    @cached_property
    def nodes(self) -> dict[Use, frozenset[_Node]]:
        """What the nodes do for each use, nodes that do the same once."""
        return {use: frozenset(self._nodes(use)) for use in self.uses}

    def _nodes(self, use: Use) -> Iterator[_Node]:
        world, here = int(self.estimate.layout.devices), self.used
        inside: dict[int, set[tuple[int, ...]]] = {n: set() for n in range(-(-world // here))}
        outside: dict[int, set[tuple[int, ...]]] = {n: set() for n in inside}
        for group in _groups(use, world):
            parts: dict[int, list[int]] = {}
            for rank in group:
                parts.setdefault(rank // here, []).append(rank % here)
            if use.how == "send":
                for one, other in self._pairs(use, group):
                    node = one // here
                    if node == other // here:
                        inside[node].add((one % here, other % here))
                    else:
                        outside[node].add((one % here,))
                continue
            for node, members in parts.items():
                if len(members) > 1:
                    inside[node].add(tuple(members))
                if len(parts) > 1:
                    outside[node].add(tuple(members))
        return (_Node(frozenset(inside[n]), frozenset(outside[n])) for n in inside)

    def _pairs(self, use: Use, group: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """Yield who sends to whom: stages both ways where gradients go back, rings all round."""
        onward = list(pairwise(group))
        layout, pipeline = self.estimate.layout, use.degree == "pp"
        if not pipeline or layout.virtual_stages > 1:
            onward.append((group[-1], group[0]))
        yield from onward
        if pipeline and self.estimate.program.step is not None:
            yield from ((other, one) for one, other in onward)

    def rates(self, order: Order) -> tuple[Rate, ...]:
        """Return the rate of each use in an order."""
        found = []
        for use in self.uses:
            rate = Rate(None, None)
            for node in self.nodes[use]:
                placed = node.mapped(order, ordered=use.how == "send")
                if (use.how, placed) not in self._known_rates:
                    self._known_rates[use.how, placed] = self._rate(use.how, placed)
                rate = rate.least(self._known_rates[use.how, placed])
            found.append(rate)
        return tuple(found)

    def _rate(self, how: str, node: _Node) -> Rate:
        inside, outside = None, None
        if node.inside:
            groups = tuple(sorted(node.inside))
            if how == "send":
                inside = self.links.send_bytes_per_s((one, other) for one, other in groups)
            elif how == "exchange":
                inside = self.links.exchange_bytes_per_s(groups)
            else:
                inside = self.links.ring_bytes_per_s(groups)
        if node.outside:
            groups = tuple(sorted(node.outside))
            together = self.links.exit_bytes_per_s(groups)
            outside = None if together is None else together / max(map(len, groups))
        return Rate(inside, outside)

    def time_s(self, rates: tuple[Rate, ...]) -> float:
        """Return the time of a step whose groups have these rates."""
        if rates not in self._known_times:
            by_use = dict(zip(self.uses, rates, strict=True))

            def how(op: Any, seconds: Any) -> Any:
                use = self._use(op) if isinstance(op, Collective) else None
                if use is None or use not in by_use:
                    return seconds
                alike = op._replace(name="", count=1, hides_behind=(), split_with=None)
                key = alike, by_use[use]
                if key not in self._priced:
                    self._priced[key] = self._collective_s(alike, use.how, by_use[use], seconds)
                return self._priced[key]

            self._known_times[rates] = float(adjusted_time_s(self.estimate, how))
        return self._known_times[rates]

    def _collective_s(self, op: Collective, how: str, rate: Rate, seconds: float) -> float:
        """Return the seconds of a collective on links of these rates."""
        prices = self.estimate.ledger.prices
        if prices.is_multimem(op):
            return seconds
        result = prices.collective(op)
        group = result.group
        nominal = float(group.pair_bytes_per_s if how == "send" else group.link_bytes_per_s)
        port = float(group.port_bytes_per_s)
        if group.has_nvlink:
            inside = 1.0 if rate.inside is None else rate.inside / nominal
            outside = 1.0 if rate.outside is None else rate.outside / port
            return float(result.time_on_links_s(inside, outside))
        total, least = float(seconds), 0.0
        for sent, there, usual in zip(prices.sent(op)[1:], rate, (nominal, port), strict=True):
            if there is not None:
                total += float(sent) * (1.0 / there - 1.0 / usual)
                least = max(least, float(sent) / there)
        return max(total, least)

    def _orders(self) -> Iterator[Order]:
        """Yield every order, of those that differ by the numbers of like ranks only one.

        Along an axis whose ranks are alike, the devices of the ranks next to the first rise.
        """
        before = {
            stride * step: stride * (step - 1)
            for stride, size in self._like_axes()
            for step in range(1, size)
        }
        order: list[int] = []

        def extended() -> Iterator[Order]:
            rank = len(order)
            if rank == self.used:
                yield tuple(order)
                return
            least = order[before[rank]] if rank in before else -1
            for device in range(least + 1, self.devices):
                if device not in order:
                    order.append(device)
                    yield from extended()
                    order.pop()

        return extended()

    def _like_axes(self) -> Iterator[tuple[int, int]]:
        """Yield stride and size, inside a node, of axes whose ranks may change places."""
        layout = self.estimate.layout
        stride = 1
        for name in layout.order.split("-"):
            size = int(getattr(layout, name))
            local = min(size, self.used // stride)
            if local > 1 and self.used % (stride * local) == 0:
                swaps = (_swapped(self.used, stride, local, step) for step in range(local - 1))
                if all(map(self._is_alike, swaps)):
                    yield stride, local
            stride *= size

    def _is_alike(self, ranks: Order) -> bool:
        """Return whether other numbers of the ranks make the same groups."""
        return all(
            frozenset(node.mapped(ranks, ordered=use.how == "send") for node in nodes) == nodes
            for use, nodes in self.nodes.items()
        )

    def _improved(self, identity: Order) -> Iterator[Order]:
        """Yield orders that swaps lead to: of two ranks, or with a device that is not used."""
        tried = 0
        for start in self._starts(identity):
            at, better = start, True
            yield at
            while better and tried < _MOST_SWAPS:
                better = False
                for order in _swaps(at, self.devices):
                    tried += 1
                    if self.time_s(self.rates(order)) < self.time_s(self.rates(at)) * (1 - _SAME):
                        at, better = order, True
                        yield at
                        break

    def _starts(self, identity: Order) -> Iterator[Order]:
        yield identity
        channels = self.links.channels((tuple(range(self.devices)),))
        for channel in channels[:2]:
            yield channel.rings[0][: self.used]


def _groups(use: Use, world: int) -> Iterator[tuple[int, ...]]:
    """Yield the groups of ranks that a use of links has."""
    for first in range(world):
        if (first // use.stride) % use.ranks == 0:
            last = first + (use.ranks - 1) * use.stride
            if last < world:
                yield tuple(range(first, last + 1, use.stride))


def _swapped(ranks: int, stride: int, size: int, step: int) -> Order:
    """Return ranks with two neighbours of one axis exchanged everywhere."""
    changed = []
    for rank in range(ranks):
        along = rank // stride % size
        onward = {step: stride, step + 1: -stride}.get(along, 0)
        changed.append(rank + onward)
    return tuple(changed)


def _swaps(order: Order, devices: int) -> Iterator[Order]:
    unused = [device for device in range(devices) if device not in order]
    for one, other in combinations(range(len(order)), 2):
        changed = list(order)
        changed[one], changed[other] = changed[other], changed[one]
        yield tuple(changed)
    for rank in range(len(order)):
        for device in unused:
            yield (*order[:rank], device, *order[rank + 1 :])


def _undominated(rates: Iterable[tuple[Rate, ...]]) -> list[tuple[Rate, ...]]:
    """Return those of which no other is at least as fast everywhere."""

    def figures(each: tuple[Rate, ...]) -> list[float]:
        return [0.0 if figure is None else figure for rate in each for figure in rate]

    kept: list[tuple[tuple[Rate, ...], list[float]]] = []
    for each, values in sorted(
        ((each, figures(each)) for each in rates), key=lambda pair: pair[1], reverse=True
    ):
        if not any(all(a >= b for a, b in zip(other, values, strict=True)) for _, other in kept):
            kept.append((each, values))
    return [each for each, _ in kept]

"""At which rate groups of devices can send on a topology, all groups at once.

**Rings.** A library runs a collective as several rings through the members of a group (channels),
each over other links (NCCL, src/graph/search.cc). The rates of the rings add up; a ring has the
rate of its weakest hop, where hops of the same ring and of other groups share the links that they
meet on. Rings are chosen one after another, each the fastest on what is left of the links, of
those one of few hops over wide links: `channels`. On the hybrid cube mesh that finds the doubled
ring and the single one, in both directions: six times one link. Choosing one after another can end
below the best packing of rings, never above it: of the ways to divide the cube mesh into fours, 5
of 35 come out at half to three quarters of the optimum, all of them slower ways.

**Sends and exchanges** use the route from each device to each target; the busiest link sets the
rate. **Exits** into the network leave a node at the members of a group that are nearest to a
network card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from typing import Final, NamedTuple, TypeAlias

from shardcost.collectives.exact.topology import Route, Topology

Groups: TypeAlias = tuple[tuple[int, ...], ...]

_MOST_ALONE, _MOST_TRIED = 8, 6
"""Members of a group of which every ring is tried, of one group or of several at once; of more,
those that always go on over the widest link and the shortest way."""
_LEAST: Final = 1e-9
"""A share of a link's rate that is nothing."""
_MOST_CHANNELS: Final = 64


class Channel(NamedTuple):
    """One ring through each group, all running at once."""

    rings: Groups
    bytes_per_s: float


class LinkRates:
    """Rates of groups on a topology; routes are looked up once."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._rate = [link.bytes_per_s for link in topology.links]
        self._routes: dict[tuple[int, int], Route] = {}
        self._exits: dict[int, tuple[int, tuple[Route, ...]]] = {}
        self._nics = [i for i, place in enumerate(topology.places) if place.kind == "nic"]

    def ring_bytes_per_s(self, groups: Groups) -> float:
        """Return the rate at which each device of each group sends along all its rings."""
        return sum(channel.bytes_per_s for channel in self.channels(groups))

    def channels(self, groups: Groups) -> list[Channel]:
        """Return rings through each group that share the links: a group has one of each channel."""
        left = list(self._rate)
        found: list[Channel] = []
        while len(found) < _MOST_CHANNELS:
            load: Counter[int] = Counter()
            rings = []
            for group in groups:
                every = len(group) <= (_MOST_ALONE if len(groups) == 1 else _MOST_TRIED)
                rings_here = self._every_ring(group) if every else self._few_rings(group, left)
                ring = max(rings_here, key=lambda ring: self._worth(ring, load, left))
                rings.append(ring)
                load.update(self._links_of(ring))
            rate = min(left[link] / often for link, often in load.items())
            if rate <= _LEAST * max(self._rate):
                break
            found.append(Channel(tuple(rings), rate))
            for link, often in load.items():
                left[link] -= often * rate
        return found

    def send_bytes_per_s(self, pairs: Iterable[tuple[int, int]]) -> float:
        """Return the rate at which the first of each pair sends to the second, all at once."""
        return self._at_once((1.0, self._route(*pair)) for pair in pairs)

    def exchange_bytes_per_s(self, groups: Groups) -> float:
        """Return the rate at which each device sends to all others of its group, evenly."""
        return self._at_once(
            (1.0 / (len(group) - 1), self._route(*pair))
            for group in groups
            for pair in permutations(group, 2)
        )

    def exit_bytes_per_s(self, groups: Groups) -> float | None:
        """Return the rate at which each group sends out of the node; None without network cards.

        A group leaves at those of its members that are nearest to a card, in equal shares.
        """
        if not self._nics:
            return None
        flows = []
        for group in groups:
            ways = [self._exit(gpu) for gpu in group]
            nearest = min(cost for cost, _ in ways)
            routes = [route for cost, found in ways if cost == nearest for route in found]
            flows += [(1.0 / len(routes), route) for route in routes]
        return self._at_once(flows)

    def _at_once(self, flows: Iterable[tuple[float, Route]]) -> float:
        load: Counter[int] = Counter()
        for share, route in flows:
            for link in route:
                load[link] += share  # type: ignore[assignment]
        return min(self._rate[link] / often for link, often in load.items())

    def _exit(self, gpu: int) -> tuple[int, tuple[Route, ...]]:
        """Return the cost of the way to the nearest network cards, and the ways to all of them."""
        if gpu not in self._exits:
            links = self.topology.links
            ways = [(nic, self._route(gpu, nic)) for nic in self._nics]
            costs = [sum(links[link].cost for link in route) for _, route in ways]
            routes = tuple(
                route for cost, (_, route) in zip(costs, ways, strict=True) if cost == min(costs)
            )
            self._exits[gpu] = min(costs), routes
        return self._exits[gpu]

    def _route(self, one: int, other: int) -> Route:
        pair = one, other
        if pair not in self._routes:
            self._routes[pair] = self.topology.route(one, other)
        return self._routes[pair]

    def _links_of(self, ring: Sequence[int]) -> Iterator[int]:
        for one, other in zip(ring, (*ring[1:], ring[0]), strict=True):
            yield from self._route(one, other)

    def _worth(
        self, ring: Sequence[int], load: Counter[int], left: Sequence[float]
    ) -> tuple[float, int, float]:
        """Return the rate that a ring leaves to all groups, its hops, how wide its links are.

        A ring of fewer hops takes less of the links, which leaves more for the next.
        """
        own = Counter(self._links_of(ring))
        slowest = min(left[link] / (often + load[link]) for link, often in own.items())
        return slowest, -own.total(), sum(left[link] for link in own) / len(own)

    def _every_ring(self, group: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for others in permutations(group[1:]):
            yield (group[0], *others)

    def _few_rings(
        self, group: tuple[int, ...], left: Sequence[float]
    ) -> Iterator[tuple[int, ...]]:
        """Yield rings that go on over the widest link and the shortest way, from several starts."""

        def onward(at: int, rest: list[int]) -> int:
            routes = {gpu: self._route(at, gpu) for gpu in rest}
            return max(rest, key=lambda gpu: (min(left[i] for i in routes[gpu]), -len(routes[gpu])))

        yield group
        for start in group[:_MOST_TRIED]:
            ring, rest = [start], [gpu for gpu in group if gpu != start]
            while rest:
                ring.append(onward(ring[-1], rest))
                rest.remove(ring[-1])
            yield tuple(ring)
            yield tuple(ring[::-1])

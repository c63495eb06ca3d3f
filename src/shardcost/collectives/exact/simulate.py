"""What a schedule takes on a topology: every transfer, event by event, with links shared fairly.

**When a transfer starts.** As soon as

* what its source sends has arrived: all transfers of earlier steps into that chunk of its source;
* its lane is free: all transfers of earlier steps from this source to this target have ended;
* it overwrites nothing that is still needed: its target has sent on, where earlier steps say so,
  what it held in that chunk. (On equal links, of all algorithms here only recursive doubling with
  ranks in excess of a power of two ever waits for this.)

So steps order what depends on each other and nothing else, and pipelines form by themselves. With
``barrier=True`` every transfer waits for all of the step before, as closed forms have it.

**How long it takes.** First the latency of its route. Then its bytes flow through all links of the
route at once, at the rate of max-min fairness: no flow can have more without taking from one that
has no more than itself. Progressive filling finds these rates (Bertsekas and Gallager, Data
Networks, 2nd edition, Prentice Hall, 1992, section 6.5.2); they change whenever a flow begins or
ends.

**Where this and closed forms agree.** A closed form gives each step ``alpha`` and the most bytes
that one port, or link, carries, over its rate. With a barrier, behind a switch or in a full mesh,
every algorithm takes just that. Without one, rings, exchanges among a power of two, direct
algorithms, chains, double trees and reduction in the switch still do, since all participants have
the same to do. Where they do not, a step no longer waits for its slowest transfer. Mostly that is
faster: trees run ahead, phases on different links overlap, exchanges that do not need each other
start at once. It can be slower, since fairness is not foresight: a rank that sends to many at once
serves all of them late (a binomial broadcast among 8 takes twice as long).

How it is fast: transfers of one lane share one rate, so rates are kept by lane; lanes that never
share a link, directly or through others, are looked at apart; and the rates of each such group are
remembered by how many flows each lane has, since schedules repeat themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcost.collectives.exact.schedule import Ints, Schedule, cuts
from shardcost.collectives.exact.topology import Route, Topology
from shardcost.errors import BadValueError
from shardcost.scalars import whole_number
from shardcost.units import format_bytes_decimal, format_time

Floats = NDArray[np.float64]

_SAME: Final = 1e-12
"""Times, and shares of a link, that differ by less than this part of themselves are one."""
_REMEMBERED: Final = 4096
"""Allocations of rates that are kept; a regular schedule has far fewer, an irregular one no end."""
_SHOWN_LINKS: Final = 10


class LinkUse(NamedTuple):
    """What one link did."""

    name: str
    bytes_sent: float
    busy: float
    """The share of the time in which anything flowed."""
    utilisation: float
    """Bytes sent over what the link could have sent."""


@dataclass(frozen=True, eq=False)
class Simulation:
    """When each transfer of a schedule starts and ends, and what each link does.

    Columns have one entry per transfer, in the order of the schedule's steps.
    """

    schedule: Schedule
    topology: Topology
    places: tuple[int, ...]
    """Of the topology, by participant."""
    time_s: float
    start_s: Floats
    finish_s: Floats
    links: tuple[LinkUse, ...]
    """In the order of the topology's links."""

    @cached_property
    def busiest(self) -> LinkUse:
        """The link with the highest utilisation; of several, the first."""
        return self._most_used[0]

    @cached_property
    def _most_used(self) -> list[LinkUse]:
        """Links by utilisation, highest first; those that differ by rounding keep their order."""
        return sorted(self.links, key=lambda use: -round(use.utilisation, 9))

    def __str__(self) -> str:
        """Return the time and the links with the highest utilisation, as a table."""
        used = [use for use in self._most_used if use.bytes_sent]
        rows = [("link", "bytes", "busy", "used")]
        rows += [
            (name, format_bytes_decimal(sent), f"{busy:.1%}", f"{utilisation:.1%}")
            for name, sent, busy, utilisation in used[:_SHOWN_LINKS]
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in rows
        ]
        if len(used) > _SHOWN_LINKS:
            lines.append(f"… and {len(used) - _SHOWN_LINKS} more")
        what = f"{self.schedule.collective}, {self.schedule.algorithm}, on {self.topology.name}"
        return "\n".join([f"{what}: {format_time(self.time_s)}", *lines])


def simulate(
    schedule: Schedule,
    topology: Topology,
    size_bytes: int,
    placement: Sequence[int] | None = None,
    *,
    barrier: bool = False,
) -> Simulation:
    """Return what a schedule takes on a topology.

    Args:
        schedule: Who sends what to whom.
        topology: Over which links.
        size_bytes: The buffer of each rank, as in `schedule.traffic`: of an all-to-all, the room
            for all pairs of ranks (`algorithms.buffer_bytes`).
        placement: The device of each rank; rank r is on device r if not given.
        barrier: Every step waits for all of the one before.
    """
    size_bytes = whole_number("size_bytes", size_bytes, 1)
    moves = _Moves.of(schedule)
    places = _places(schedule, moves, topology, placement)
    lanes = _Lanes.of(moves, places, topology)
    sizes = np.diff(cuts(size_bytes, schedule.chunks)).astype(np.float64)[moves.chunk]
    gates = _Gates(_families(schedule, moves, barrier=barrier), len(moves.step))
    start, finish = _times(lanes, np.where(lanes.hops[lanes.lane] > 0, sizes, 0.0), gates)
    time_s = float(finish.max(initial=0.0))
    links = _uses(topology, lanes, sizes, start, finish)
    return Simulation(schedule, topology, tuple(places.tolist()), time_s, start, finish, links)


class FairShare:
    """Flows on fixed routes that share links by max-min fairness.

    Two flows meet on a link of 10 bytes/s. One goes on over a link of 2, so the other gets 8.

    >>> FairShare([(0,), (0, 1)], [10.0, 2.0]).rates(np.array([1, 1])).tolist()
    [8.0, 2.0]

    Args:
        routes: The links of each route, at least one.
        bytes_per_s: Of each link.
    """

    def __init__(self, routes: Sequence[Sequence[int]], bytes_per_s: Sequence[float]) -> None:
        hops = np.array([len(route) for route in routes])
        self._route = np.repeat(np.arange(len(routes)), hops)
        self._first = np.cumsum(hops) - hops
        used, self._link = np.unique(np.concatenate(routes), return_inverse=True)
        self._bytes_per_s = np.asarray(bytes_per_s, dtype=np.float64)[used]
        self._known: dict[bytes, Floats] = {}

    def rates(self, flows: Ints) -> Floats:
        """Return the rate of each flow, by route; 1 where a route has no flow."""
        key = flows.tobytes()
        if key not in self._known:
            if len(self._known) == _REMEMBERED:
                self._known.clear()
            self._known[key] = self._filled(flows)
        return self._known[key]

    def _filled(self, flows: Ints) -> Floats:
        """Fill all links at once, and fix the flows of a link when it is full.

        A link that offers each of its flows no more than the other links on their routes offer
        them is the bottleneck of all its flows, whatever happens elsewhere. So every such link is
        fixed in the same round, not only the one that fills up first of all.
        """
        links = len(self._bytes_per_s)
        rate, free = np.ones(len(flows)), flows > 0
        left = self._bytes_per_s.copy()
        while free.any():
            load = np.bincount(self._link, (flows * free)[self._route], links)
            share = np.divide(left, load, out=np.full(links, inf), where=load > 0)
            offered = share[self._link]
            least = np.minimum.reduceat(offered, self._first)
            elsewhere = free[self._route] & (offered > (least * (1 + _SAME))[self._route])
            full = (load > 0) & (np.bincount(self._link[elsewhere], minlength=links) == 0)
            fixed = free & np.logical_or.reduceat(full[self._link], self._first)
            rate[fixed] = least[fixed]
            left -= np.bincount(self._link, (flows * rate * fixed)[self._route], links)
            free &= ~fixed
        return rate


class _Moves(NamedTuple):
    """All transfers of a schedule, as columns."""

    step: Ints
    source: Ints
    target: Ints
    chunk: Ints

    @classmethod
    def of(cls, schedule: Schedule) -> _Moves:
        empty = np.zeros(0, np.int64)  # one rank alone has no steps
        sizes = np.array([len(step) for step in schedule.steps], np.int64)
        step = np.repeat(np.arange(len(sizes)), sizes)
        columns = (
            np.concatenate([empty, *(getattr(step, name) for step in schedule.steps)])
            for name in ("source", "target", "chunk")
        )
        return cls(step, *columns)


class _Lanes(NamedTuple):
    """The pairs of places that talk to each other."""

    lane: Ints
    """Of each transfer."""
    routes: list[Route]
    hops: Ints
    latency_s: Floats
    bytes_per_s: list[float]
    """Of each link."""

    @classmethod
    def of(cls, moves: _Moves, places: Ints, topology: Topology) -> _Lanes:
        wide = len(topology.places)
        pairs, lane = np.unique(
            places[moves.source] * wide + places[moves.target], return_inverse=True
        )
        routes = [topology.route(*divmod(pair, wide)) for pair in pairs.tolist()]
        return cls(
            lane,
            routes,
            np.array([len(route) for route in routes], np.int64),
            np.array([topology.latency_s(route) for route in routes], np.float64),
            [link.bytes_per_s for link in topology.links],
        )


def _places(
    schedule: Schedule, moves: _Moves, topology: Topology, placement: Sequence[int] | None
) -> Ints:
    """Return the place of each participant: a switch is one that all its ranks are linked to."""
    if schedule.ranks > topology.devices:
        rule = f"at most {topology.devices}, the devices of {topology.name}"
        raise BadValueError("ranks of the schedule", schedule.ranks, rule)
    wanted = range(schedule.ranks) if placement is None else placement
    places = [whole_number("placement", device, 0) for device in wanted]
    distinct = set(places)
    if not len(distinct) == len(places) == schedule.ranks or max(distinct) >= topology.devices:
        rule = f"{schedule.ranks} different devices below {topology.devices}, one for each rank"
        raise BadValueError("placement", placement, rule)
    for switch in range(schedule.ranks, schedule.participants):
        others = np.concatenate(
            [moves.target[moves.source == switch], moves.source[moves.target == switch]]
        )
        ranks = np.unique(others[others < schedule.ranks]).tolist()
        places.append(topology.reducing_switch([places[rank] for rank in ranks]))
    return np.array(places)


class _Family(NamedTuple):
    """One reason to wait. A gate opens when all that it needs has ended; gates form chains."""

    waits: Ints
    """The gate that each transfer waits for, or -1."""
    feeds: Ints
    """The gate that each transfer helps to open, or -1."""
    needs: Ints
    """By gate: transfers that feed it, and the gate before it."""
    following: Ints
    """By gate: the next of its chain, or -1."""

    @classmethod
    def of(cls, ended: Ints, awaited: Ints, step: Ints) -> _Family:
        """Let each transfer wait for those of earlier steps whose `ended` is its `awaited`.

        One gate stands for all that an awaited key has seen before a step, and needs only what
        came since the gate before it: so the gates are as many as the transfers, at most.
        """
        steps = int(step.max(initial=0)) + 1
        gates, waits = np.unique(awaited * steps + step, return_inverse=True)
        key = gates // steps
        feeds = np.searchsorted(gates, ended * steps + step, side="right")
        feeds[np.append(key, -1)[feeds] != ended] = -1
        fed = np.bincount(feeds[feeds >= 0], minlength=len(gates))
        chained = key[1:] == key[:-1]
        before = np.cumsum(fed) - fed
        first = np.maximum.accumulate(np.where(np.append(True, ~chained), np.arange(len(key)), 0))
        hollow = before + fed == before[first]  # nothing to wait for, here or before
        waits[hollow[waits]] = -1
        following = np.append(np.where(chained & ~hollow[:-1], np.arange(1, len(key)), -1), -1)
        needs = fed + np.append(0, chained & ~hollow[:-1])
        return cls(waits, feeds, needs, following[: len(key)])


def _families(schedule: Schedule, moves: _Moves, *, barrier: bool) -> Iterator[_Family]:
    """Return the three reasons to wait, as the module has them, or the one of a barrier."""
    if barrier:
        nothing = np.zeros_like(moves.step)
        yield _Family.of(nothing, nothing, moves.step)
        return
    read = moves.source * schedule.chunks + moves.chunk
    written = moves.target * schedule.chunks + moves.chunk
    lane = moves.source * schedule.participants + moves.target
    yield _Family.of(written, read, moves.step)
    yield _Family.of(lane, lane, moves.step)
    yield _Family.of(read, written, moves.step)


class _Gates:
    """What waits for what, as plain lists: a few at a time are looked up, very often."""

    def __init__(self, families: Iterable[_Family], transfers: int) -> None:
        waiting: list[tuple[Ints, Ints]] = []
        feeding: list[tuple[Ints, Ints]] = []
        self._needs: list[int] = []
        self._following: list[int] = []
        every = np.arange(transfers)
        for family in families:
            offset = len(self._needs)
            for pairs, gate in ((waiting, family.waits), (feeding, family.feeds)):
                some = gate >= 0
                pairs.append((every[some], gate[some] + offset))
            self._needs += family.needs.tolist()
            self._following += np.where(
                family.following < 0, -1, family.following + offset
            ).tolist()
        transfer, gate = (np.concatenate(column) for column in zip(*waiting, strict=True))
        self._unmet = np.bincount(transfer, minlength=transfers).tolist()
        self._members = _grouped(gate, transfer, len(self._needs))
        transfer, gate = (np.concatenate(column) for column in zip(*feeding, strict=True))
        self._fed = _grouped(transfer, gate, transfers)

    def released(self, ended: Iterable[int]) -> list[int]:
        """Return the transfers that may start now that these have ended."""
        free: list[int] = []
        for transfer in ended:
            for fed in self._fed[transfer]:
                gate = fed
                self._needs[gate] -= 1
                while not self._needs[gate]:
                    for member in self._members[gate]:
                        self._unmet[member] -= 1
                        if not self._unmet[member]:
                            free.append(member)
                    gate = self._following[gate]
                    if gate < 0:
                        break
                    self._needs[gate] -= 1
        return free


def _grouped(group: Ints, value: Ints, groups: int) -> list[list[int]]:
    """Return the values of each group."""
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=groups)).tolist()
    values = value[order].tolist()
    return [values[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)] if groups else []


class _Traffic:
    """The flows on each lane at one time, and the rates they get.

    All flows of a lane have one rate, so a lane has one clock, in bytes: what a flow has received
    since the lane was last idle. A flow that joins now ends when the clock is its size further.
    """

    def __init__(self, lanes: _Lanes) -> None:
        number = len(lanes.routes)
        self._flows: list[list[tuple[float, int]]] = [[] for _ in range(number)]
        self._count = np.zeros(number, np.int64)
        self._clock, self._rate = np.zeros(number), np.ones(number)
        self._next_end = np.full(number, inf)
        self._changed: set[int] = set()
        self._groups: list[tuple[Ints, FairShare]] = []
        self._group_of = [0] * number
        for members in _apart(lanes.routes):
            for lane in members:
                self._group_of[lane] = len(self._groups)
            share = FairShare([lanes.routes[lane] or (-1,) for lane in members], lanes.bytes_per_s)
            self._groups.append((np.array(members), share))

    def join(self, lane: int, transfer: int, size: float) -> None:
        """Let a transfer flow from now on."""
        flows = self._flows[lane]
        if not flows:
            self._clock[lane] = 0.0
        heappush(flows, (float(self._clock[lane]) + size, transfer))
        self._note(lane)

    def until_each_ends(self) -> Floats:
        """Return the seconds until a flow ends, by lane."""
        for group in {self._group_of[lane] for lane in self._changed}:
            members, share = self._groups[group]
            self._rate[members] = share.rates(self._count[members])
        self._changed.clear()
        left: Floats = (self._next_end - self._clock) / self._rate
        return left

    def pass_time(self, seconds: float) -> None:
        """Let everything flow for a while in which nothing ends."""
        self._clock += self._rate * seconds

    def end(self, lane: int, slack_s: float) -> Iterator[int]:
        """Take the transfers away that end on this lane."""
        flows = self._flows[lane]
        self._clock[lane] = reached = self._next_end[lane]
        slack = slack_s * self._rate[lane]
        while flows and flows[0][0] <= reached + slack:
            yield heappop(flows)[1]
        self._note(lane)

    def _note(self, lane: int) -> None:
        flows = self._flows[lane]
        self._count[lane] = len(flows)
        self._next_end[lane] = flows[0][0] if flows else inf
        self._changed.add(lane)


def _apart(routes: Sequence[Route]) -> list[list[int]]:
    """Return the lanes in groups that have no link in common."""
    joined: dict[int, int] = {}

    def root(link: int) -> int:
        while joined.setdefault(link, link) != link:
            joined[link] = link = joined[joined[link]]
        return link

    for route in routes:
        for link in route[1:]:
            joined[root(link)] = root(route[0])
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for lane, route in enumerate(routes):
        groups[root(route[0]) if route else -1 - lane].append(lane)
    return list(groups.values())


def _times(lanes: _Lanes, sizes: Floats, gates: _Gates) -> tuple[Floats, Floats]:
    """Return when each transfer starts and ends."""
    start, finish = np.zeros(len(sizes)), np.zeros(len(sizes))
    lane_of, size_of = lanes.lane.tolist(), sizes.tolist()
    latency_s = lanes.latency_s[lanes.lane].tolist()
    traffic = _Traffic(lanes)
    # Transfers whose first byte has not arrived yet, by when it does; those of the same time join
    # in the order in which they started.
    under_way: list[tuple[float, int, int]] = []
    order = count()
    now, ready = 0.0, [transfer for transfer, unmet in enumerate(gates._unmet) if not unmet]
    while True:
        start[ready] = now
        for transfer in ready:
            heappush(under_way, (now + latency_s[transfer], next(order), transfer))
        while under_way and under_way[0][0] <= now * (1 + _SAME):
            transfer = heappop(under_way)[2]
            traffic.join(lane_of[transfer], transfer, size_of[transfer])
        left = traffic.until_each_ends()
        then = min(now + float(left.min(initial=inf)), under_way[0][0] if under_way else inf)
        if then == inf:
            return start, finish
        seconds, slack = then - now, then * _SAME
        traffic.pass_time(seconds)
        ending = np.flatnonzero(left <= seconds + slack).tolist()
        ended = [transfer for lane in ending for transfer in traffic.end(lane, slack)]
        now = then
        finish[ended] = now
        ready = gates.released(ended)


def _uses(
    topology: Topology, lanes: _Lanes, sizes: Floats, start: Floats, finish: Floats
) -> tuple[LinkUse, ...]:
    """Return what each link did."""
    links = len(topology.links)
    hops = lanes.hops[lanes.lane]
    every = [np.array(route, np.int64) for route in lanes.routes]
    link = np.concatenate([np.zeros(0, np.int64), *(every[lane] for lane in lanes.lane.tolist())])
    sent = np.bincount(link, np.repeat(sizes, hops), links)
    begin = np.repeat(start + lanes.latency_s[lanes.lane], hops)
    busy = _covered(link, begin, np.repeat(finish, hops), links)
    whole = float(finish.max(initial=0.0)) or 1.0
    could = np.array(lanes.bytes_per_s) * whole
    columns: tuple[Any, ...] = (sent.tolist(), (busy / whole).tolist(), (sent / could).tolist())
    names = map(topology.link_name, range(links))
    return tuple(map(LinkUse, names, *columns))


def _covered(group: Ints, begin: Floats, end: Floats, groups: int) -> Floats:
    """Return how much time the intervals of each group cover together."""
    apart = group * (2 * float(end.max(initial=0.0)))  # intervals of two groups cannot touch
    order = np.argsort(begin + apart, kind="stable")
    begin, end = (begin + apart)[order], (end + apart)[order]
    covered_until = np.concatenate([[-inf], np.maximum.accumulate(end)[:-1]])[: len(end)]
    new = np.maximum(0.0, end - np.maximum(begin, covered_until))
    return np.bincount(group[order], new, groups).astype(np.float64)

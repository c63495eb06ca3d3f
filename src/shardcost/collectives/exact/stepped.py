"""An algorithm step by step: who sends what, and what everyone holds after each step.

The schedule itself is executed, on numbers instead of data: what rank r starts with is the number
2^r, so that any sum tells whose contributions are in it, one bit for each. Nothing is written down
per algorithm. The same schedule is counted, and simulated on the links of a cluster at their
nominal rates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.cluster import Cluster
from shardcost.collectives.exact import closed_forms
from shardcost.collectives.exact.algorithms import (
    Shape,
    algorithm_named,
    buffer_bytes,
    most_square,
    schedule,
)
from shardcost.collectives.exact.algorithms.plan import Algorithm, Form
from shardcost.collectives.exact.closed_forms import Wiring
from shardcost.collectives.exact.schedule import (
    Ints,
    Schedule,
    Step,
    Traffic,
    cuts,
    executed,
    traffic,
)
from shardcost.collectives.exact.simulate import Simulation, simulate
from shardcost.collectives.exact.topology import Route, Topology, of_cluster
from shardcost.collectives.group import bus_factor
from shardcost.collectives.library_time import CollectiveTime
from shardcost.collectives.tuner import steps as ring_steps
from shardcost.errors import BadValueError
from shardcost.scalars import whole_number

MOST_RANKS: Final = 16
MOST_PIECES: Final = 8
"""More of either is no picture any more."""
_PIECES: Final = 4
"""Of a pipeline, unless others are given: enough to see that it is one."""
_GATHERS: Final = ("all_gather", "all_to_all")
_ADDS: Final = ("all_reduce", "reduce_scatter", "reduce")
_RINGS: Final = ("ring", "torus")
"""Paths of libraries whose hops go from neighbour to neighbour."""


class Move(NamedTuple):
    """All that one participant sends to another in a step."""

    source: int
    target: int
    chunks: tuple[int, ...]
    size_bytes: int
    reduces: bool
    """The receiver adds it to what it holds."""


class Stage(NamedTuple):
    """One step, and what it leads to."""

    moves: tuple[Move, ...]
    masks: Ints
    """By participant and chunk: bit r is set where the contribution of rank r is in it."""
    contributions: Ints
    """The same, counted."""
    start_s: float | None
    """When the first of its transfers starts, where the schedule was simulated."""
    end_s: float | None


class Lane(NamedTuple):
    """What one participant sends to another in all."""

    source: int
    target: int
    size_bytes: float
    route: Route | None
    """The links on the way, where there is a topology."""


@dataclass(frozen=True, eq=False)
class Stepped:
    """A schedule, executed step by step, counted, and simulated where a cluster was given.

    Participants are the ranks and, behind them, the switch of algorithms that reduce in one.
    """

    schedule: Schedule
    size_bytes: int
    """Of each rank, as ``shardcost collective`` counts it."""
    pieces: int
    """That follow each other through a pipeline; 1 where there is none."""
    shape: Shape | None
    """Rows and columns, where the algorithm has them."""
    start: Ints
    """What is held before the first step, as in `Stage.masks`."""
    start_contributions: Ints
    stages: tuple[Stage, ...]
    complete: int
    """Of how many ranks a finished chunk has the contributions."""
    owners: tuple[int, ...]
    """By chunk, the rank whose block it is part of."""
    traffic: Traffic
    lanes: tuple[Lane, ...]
    algorithm: Algorithm
    form: Form
    """The closed form that holds among so many ranks …"""
    symbols: dict[str, int]
    """… what its symbols stand for …"""
    cost: closed_forms.Cost
    """… and what it comes to."""
    simulation: Simulation | None

    @property
    def mixes(self) -> bool:
        """Whether a chunk can be of more ranks, or of others, than the one whose block it is."""
        return self.schedule.collective not in (*_GATHERS, "broadcast")

    @property
    def most_sent_bytes(self) -> float:
        """By the rank that sends most."""
        return float(self.traffic.sent[: self.schedule.ranks].max())

    @property
    def least_sent_bytes(self) -> float | None:
        """That each rank must send where ranks do the adding; None where not all ranks send.

        It is what bus bandwidth counts (Patarasuk and Yuan, 2009).
        """
        collective = self.schedule.collective
        if collective in {"broadcast", "reduce"}:
            return None
        return float(bus_factor(collective, self.schedule.ranks)) * self.size_bytes


class AlphaBeta(NamedTuple):
    """What the closed form of an algorithm comes to on a machine."""

    alpha_s: float
    """Of a step: what the machine's library takes for a hop of a ring."""
    bytes_per_s: float
    """Of the busiest link, nominal."""
    wiring: Wiring
    """``mesh`` where ranks are joined by links of their own, which count instead of ports."""
    time_s: float


def alpha_beta(shown: Stepped, tiny: CollectiveTime) -> AlphaBeta | None:
    """Return the closed form of an algorithm with the values of a machine.

    Args:
        shown: Simulated on the machine.
        tiny: An all-reduce of a few bytes there, among the same ranks: of its ring, all but the
            start is hops.

    Returns:
        None where the machine's library has no ring.
    """
    ranks = shown.schedule.ranks
    hops = [
        float(parts["hops"])
        for (algorithm, _), parts in tiny.paths.items()
        if algorithm in _RINGS and "hops" in parts
    ]
    if not hops or shown.simulation is None:
        return None
    alpha_s = min(hops) / ring_steps("all_reduce", ranks)
    links = dict(zip(shown.simulation.links, shown.simulation.topology.links, strict=True))
    busiest = links[shown.simulation.busiest]
    rate, places = float(busiest.bytes_per_s), shown.simulation.topology.places
    direct = all(places[end].kind == "gpu" for end in (busiest.source, busiest.target))
    wiring: Wiring = "mesh" if direct else "switch"
    return AlphaBeta(alpha_s, rate, wiring, float(shown.cost.time_s(alpha_s, rate, wiring)))


def stepped(
    collective: str,
    algorithm: str,
    ranks: int,
    size_bytes: int,
    cluster: Cluster | None = None,
    *,
    pieces: int | None = None,
    shape: Shape | None = None,
    nodes: int | None = None,
) -> Stepped:
    """Return an algorithm step by step.

    >>> ring = stepped("all_reduce", "ring", 4, 4000)
    >>> [stage.contributions.min().item() for stage in ring.stages]
    [1, 1, 1, 2, 3, 4]

    Args:
        collective: One of `algorithms.COLLECTIVES`.
        algorithm: One of `algorithms.algorithms_of(collective)`.
        ranks: 2 to 16.
        size_bytes: Of each rank, as ``shardcost collective`` counts it.
        cluster: Whose links it is simulated on; not simulated if left out.
        pieces: Of a pipeline, 1 to 8; 4 if left out.
        shape: Rows and columns of a grid; if left out the nodes and their ranks, where an
            algorithm goes by nodes and the cluster has several, else the most square one.
        nodes: Of the cluster, that the ranks are spread over evenly; as few as hold them if left
            out.
    """
    known = algorithm_named(collective, algorithm)
    ranks = whole_number("ranks", ranks, least=2)
    if ranks > MOST_RANKS:
        raise BadValueError("ranks", ranks, f"at most {MOST_RANKS}, to be looked at step by step")
    pieces = _checked_pieces(pieces, known.takes)
    size_bytes = whole_number("size_bytes", size_bytes, least=1)
    topology = None if cluster is None else of_cluster(cluster, ranks, nodes)
    if known.takes == "shape" and shape is None:
        shape = _usual_shape(algorithm, ranks, topology)
    steps = schedule(collective, algorithm, ranks, chunks=pieces, shape=shape)
    room: Any = buffer_bytes(collective, ranks, size_bytes)
    simulation = None if topology is None else simulate(steps, topology, room)
    start = _start(steps)
    sent = traffic(steps, room)
    at = closed_forms.values(ranks, pieces, shape, known)
    return Stepped(
        schedule=steps,
        size_bytes=size_bytes,
        pieces=pieces,
        shape=shape,
        start=start,
        start_contributions=_counted(start, ranks),
        stages=tuple(_stages(steps, start, room, simulation)),
        complete=ranks if collective in _ADDS else 1,
        owners=tuple(_owners(steps).tolist()),
        traffic=sent,
        lanes=tuple(_lanes(sent, simulation)),
        algorithm=known,
        form=next(form for form in known.forms if form.holds(at)),
        symbols={name: int(value) for name, value in at.items()},
        cost=closed_forms.cost(
            collective, algorithm, ranks, size_bytes, chunks=pieces, shape=shape
        ),
        simulation=simulation,
    )


def _checked_pieces(pieces: int | None, takes: str) -> int:
    """Return how many pieces follow each other; `schedule` refuses them where there is no line."""
    if pieces is None:
        return _PIECES if takes == "chunks" else 1
    pieces = whole_number("pieces", pieces, least=1)
    if pieces > MOST_PIECES:
        raise BadValueError("pieces", pieces, f"at most {MOST_PIECES}, to be looked at one by one")
    return pieces


def _usual_shape(algorithm: str, ranks: int, topology: Topology | None) -> Shape:
    """Return nodes and ranks per node for an algorithm that goes by them, where there are some."""
    if algorithm == "hierarchical" and topology is not None:
        nodes = len({place.server for place in topology.places[:ranks]})
        if nodes > 1:
            return nodes, ranks // nodes
    return most_square(ranks)


def _owners(steps: Schedule) -> Ints:
    """Return the rank to whose block each chunk belongs; in an all-to-all, from whom it comes."""
    return np.arange(steps.chunks, dtype=np.int64) * steps.ranks // steps.chunks


def _start(steps: Schedule) -> Ints:
    """Return what is held before the first step: 2^r where rank r holds its own."""
    rank = np.arange(steps.ranks, dtype=np.int64)[:, None]
    own = np.ones(steps.chunks, dtype=bool)
    if steps.collective in _GATHERS:
        own = _owners(steps) == rank
    elif steps.collective == "broadcast":
        own = rank == 0
    masks = np.zeros((steps.participants, steps.chunks), dtype=np.int64)
    masks[: steps.ranks] = np.where(own, 1 << rank, 0)
    return masks


def _counted(masks: Ints, ranks: int) -> Ints:
    """Return how many ranks' contributions are in each chunk."""
    return np.asarray((masks[..., None] >> np.arange(ranks) & 1).sum(axis=-1))


def _stages(
    steps: Schedule, start: Ints, room: int, simulation: Simulation | None
) -> Iterator[Stage]:
    lengths = np.diff(cuts(room, steps.chunks))
    masks, done = start, 0
    for step in steps.steps:
        # A step by itself, in which the switch is a participant like the others.
        masks = executed(replace(steps, ranks=steps.participants, steps=(step,), switches=0), masks)
        times = slice(done, done + len(step))
        done += len(step)
        span: tuple[float | None, float | None] = (None, None)
        if simulation is not None:
            start_s, finish_s = simulation.start_s[times].min(), simulation.finish_s[times].max()
            span = (float(start_s), float(finish_s))
        yield Stage(tuple(_moves(step, lengths)), masks, _counted(masks, steps.ranks), *span)


def _moves(step: Step, lengths: Ints) -> Iterator[Move]:
    """Yield what goes from one participant to another, all chunks of it together."""
    grouped: dict[tuple[int, int, bool], list[int]] = {}
    for source, target, chunk, reduces in step:
        grouped.setdefault((source, target, reduces), []).append(chunk)
    for (source, target, reduces), chunks in grouped.items():
        yield Move(source, target, tuple(chunks), int(lengths[chunks].sum()), reduces)


def _lanes(sent: Traffic, simulation: Simulation | None) -> Iterator[Lane]:
    for (source, target), size_bytes in sent.links.items():
        route = None
        if simulation is not None:
            places = simulation.places
            route = simulation.topology.route(places[source], places[target])
        yield Lane(source, target, size_bytes, route)

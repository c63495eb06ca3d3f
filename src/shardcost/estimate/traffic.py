"""How many bytes a rank sends in a step: by group, and over which links.

A ring over n ranks of N nodes passes the network at N of its n hops, so of what a rank sends, one
part in n/N leaves the node on average; of an all-to-all, the part meant for other nodes' ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from shardcost.arrays import largest
from shardcost.checks import is_array
from shardcost.cluster import Cluster
from shardcost.collectives.bounds import bus_factor
from shardcost.collectives.group import Group
from shardcost.errors import BadValueError
from shardcost.estimate.placement import Place
from shardcost.estimate.work import sends
from shardcost.program.assemble import Program
from shardcost.program.operations import Collective, Operations, Passes


class Traffic(NamedTuple):
    """Bytes that a rank sends in a step."""

    by_group: dict[str, Any]
    inside_bytes: Any
    """Over the links inside a domain."""
    network_bytes: Any


def traffic(program: Program, cluster: Cluster, placed: dict[str, Place]) -> Traffic:
    """Return what a rank of a middle stage sends in a step."""
    by_group: dict[str, Any] = {}
    inside: Any = 0.0
    network: Any = 0.0
    for op, times in collectives_of(program):
        sent = times * op.count * op.size_bytes * _factor(op)
        name = op.group.partition("_")[0]  # experts' gradients and copies of shards are dp's
        by_group[name] = by_group.get(name, 0.0) + sent
        share = _network_share(op, cluster, placed[op.group])
        network = network + sent * share
        inside = inside + sent * (1 - share)
    return Traffic(by_group, inside, network)


def _factor(op: Collective) -> Any:
    return 1.0 if op.collective == "send_recv" else bus_factor(op.collective, op.ranks)


def _network_share(op: Collective, cluster: Cluster, place: Place) -> Any:
    stride = op.stride * place.stride
    if is_array(op.ranks) or is_array(stride):
        return _share(cluster, op.collective, op.ranks, stride)
    return _known_share(cluster, op.collective, op.ranks, stride)


def _share(cluster: Cluster, collective: str, ranks: Any, stride: Any) -> Any:
    """Return which part of what a rank sends leaves its domain."""
    try:
        group = Group.on(cluster, ranks, stride=stride)
    except BadValueError:  # spread unevenly: priced, and said to be, as one rank for each node
        group = Group.on(cluster, ranks, ranks)
    if collective == "all_to_all":
        others = ranks - group.ranks_per_domain
        return others / largest(ranks - 1, 1)
    return (group.domains > 1) / group.ranks_per_domain


_known_share = lru_cache(maxsize=4096)(_share)


def collectives_of(program: Program) -> Iterator[tuple[Collective, Any]]:
    """Yield every collective of a middle stage's rank, and how often it happens in a step."""
    layers = program.stages.first.layers
    total = sum(each.count for each in program.layers)
    runs = program.micro_batches
    for each in program.layers:
        often = runs * layers * each.count / total
        yield from ((op, often) for op in _within(each.passes))
        gathers = each.gathers.forward + each.gathers.backward + each.gathers.gradient
        yield from ((op, often) for op in _only(gathers))
    pp = program.setting.layout.pp
    for piece in (program.first, program.last):
        yield from ((op, runs / pp) for op in _within(piece))
    yield from ((op, 2 * runs if program.step else runs) for op in _only(sends(program)))
    if program.step:
        yield from ((op, 1) for op in _only(program.step.gradients + program.step.weights))


def _within(passes: Passes) -> Iterator[Collective]:
    return _only(passes.forward + passes.recompute + passes.backward + passes.weight)


def _only(operations: Operations) -> Iterator[Collective]:
    return (op for op in operations if isinstance(op, Collective))

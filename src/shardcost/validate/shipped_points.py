"""Measured points of a system that ship with the package, to be drawn beside its predictions."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from shardcost.cluster import Cluster
from shardcost.collectives.bounds import bus_factor
from shardcost.collectives.group import Group
from shardcost.collectives.library_time import CollectiveTime, name_and_version
from shardcost.formats.tables import read_table
from shardcost.validate.collectives import MEASURED, Question, asked
from shardcost.validate.shipped import ROWS


class Point(NamedTuple):
    """One measured collective."""

    size_bytes: float
    """As nccl-tests counts it."""
    time_s: float
    dataset: str
    library: str
    busbw_bytes_per_s: float


def points_of(
    cluster: Cluster,
    collective: str,
    gpus: int,
    nodes: int | None = None,
    library: str | None = None,
) -> tuple[Point, ...]:
    """Return the shipped measurements of a collective on so many GPUs, the smallest first.

    Where GPUs of several domains take part the network has to be the same, too.

    >>> points_of(Cluster.named("b300_sxm"), "all_reduce", 8)[0].dataset
    'oci_b300_all_reduce_8'

    Args:
        cluster: The system, with its network.
        collective: One of `shardcost.collectives.library_time.COLLECTIVES`.
        gpus: Ranks.
        nodes: Nodes that they are on; as few as hold them if left out.
        library: The library, whichever its version; any if left out.
    """
    group = Group.on(cluster, gpus, nodes)
    own = None if library is None else name_and_version(library)[0]
    across = cluster.network.name if cluster.network and group.domains > 1 else ""
    wanted = (collective, cluster.name, across, int(group.ranks), int(group.nodes))
    found = [
        point
        for question, points in _shipped()
        if _place(question, across) == wanted
        and (own is None or name_and_version(question.library)[0] == own)
        for point in points
    ]
    return tuple(sorted(found))


def points_like(result: CollectiveTime) -> tuple[Point, ...]:
    """Return the shipped measurements of what was predicted; none of eager launches."""
    if result.mode != "graph":
        return ()
    group = result.group
    ranks, nodes = int(group.ranks), int(group.nodes)
    return points_of(group.cluster, result.collective, ranks, nodes, result.library)


def _place(question: Question, across: str) -> tuple[str, str, str, int, int]:
    """Return what a row is of; inside a domain the network's name says nothing."""
    network = question.network if across else ""
    return (question.collective, question.cluster, network, question.gpus, question.nodes)


@lru_cache(maxsize=1)
def _shipped() -> tuple[tuple[Question, tuple[Point, ...]], ...]:
    """Return the points of every question that the shipped table asks, launched as in a graph."""
    table = read_table(ROWS / "collectives.csv")
    times, datasets = table.columns[MEASURED], table.columns["dataset"]
    rows, sizes, _ = asked(table)
    return tuple(
        (
            question,
            tuple(
                _point(question, float(sizes[i]), 1e-6 * float(times[i]), datasets[i])
                for i in places
            ),
        )
        for question, places in rows.items()
        if question.mode == "graph" and not question.single_process
    )


def _point(question: Question, size_bytes: float, time_s: float, dataset: str) -> Point:
    factor = float(bus_factor(question.collective, question.gpus))
    return Point(size_bytes, time_s, dataset, question.library, factor * size_bytes / time_s)

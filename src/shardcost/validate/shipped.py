"""Measurements that ship with shardcost, and folders with more: what a validation is made from.

The folder ``rows`` holds what was measured for this project and single published figures, each with
its citation; its ``README.md`` says how they were chosen. A fuller table of the same kind often has
the same rows again, so a data set counts once: it is taken from a table that is named, and from
what ships only where no named table has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from shardcost.cluster import Cluster
from shardcost.collectives.group import Group, bus_factor
from shardcost.collectives.library_time import CollectiveTime
from shardcost.errors import FormatError
from shardcost.formats.request_runs import files_of
from shardcost.formats.tables import RUNS, VALIDATED, Table, read_table
from shardcost.machine.libraries import name_and_version
from shardcost.records import NamedTuple
from shardcost.validate.collectives import MEASURED, CollectiveCase, cases
from shardcost.validate.predictions import Cases

ROWS: Final = Path(__file__).with_name("rows")
"""The folder with the shipped tables and their ``SOURCES.csv``."""
_SHOWN_IN: Final = Path("shipped")
"""Where shipped tables are said to be: a reader has no use for where the package lies."""
_MEASURED: Final = "measured"


class Folder(NamedTuple):
    """The measured tables of a folder."""

    tables: list[Table]
    left_out: list[str]
    """What is wrong with each other CSV file, in a line that names it."""


def shipped() -> list[Table]:
    """Return the shipped tables whose rows can be predicted, in the order of their kinds."""
    paths = [ROWS / f"{kind}.csv" for kind in VALIDATED]
    return [
        replace(read_table(path), path=_SHOWN_IN / path.name) for path in paths if path.is_file()
    ]


def is_shipped(table: Table) -> bool:
    """Return whether a table is one of `shipped`, or what is left of one."""
    return table.path.parent == _SHOWN_IN


def tables_in(folder: Path) -> Folder:
    """Return the tables below a folder, or below its folder ``measured`` where it has one."""
    inner = folder / _MEASURED
    above = inner if inner.is_dir() else folder
    try:
        paths = sorted(above.rglob("*.csv"))
    except ValueError:  # a NUL character inside the name
        paths = []
    result = Folder([], [])
    of_runs: set[Path] = set()
    # A file of requests is no table: it belongs to the runs beside it, which are read before it.
    for path in sorted(paths, key=lambda path: (len(path.parts), path.name != RUNS)):
        if path in of_runs:
            continue
        try:
            table = read_table(path)
        except FormatError as error:
            result.left_out.append(str(error))
            continue
        if table.kind == "requests":
            of_runs.update(files_of(table))
            table = replace(table, path=path.parent)
        result.tables.append(table)
    result.tables.sort(key=lambda table: (len(table.path.parts), table.path))
    if not result.tables:
        raise FormatError(str(folder), "has no measured table (a CSV file of a known kind)")
    return result


def not_in(named: Iterable[Table], shipped_tables: Iterable[Table]) -> list[Table]:
    """Return shipped tables without the data sets that a named table of their kind has."""
    known = {(table.kind, name) for table in named for name in table.columns.get("dataset", [])}
    rest = [
        table.where(lambda row, kind=table.kind: (kind, row.get("dataset", "")) not in known)  # type: ignore[misc]
        for table in shipped_tables
    ]
    return [table for table in rest if table.rows]


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
    table, known = _shipped_collectives()
    factor = float(bus_factor(collective, int(group.ranks)))
    points = []
    for case, places in known.rows.items():
        # Inside a domain the network's name says nothing.
        network = case.network if across else ""
        place = (case.collective, case.cluster, network, case.gpus, case.nodes)
        library_fits = own is None or name_and_version(case.library)[0] == own
        if place != wanted or not library_fits or case.mode != "graph" or case.single_process:
            continue
        for i in places:
            size_bytes = float(known.sizes[i, 0])
            time_s = 1e-6 * float(table.columns[MEASURED][i])
            dataset, busbw = table.columns["dataset"][i], factor * size_bytes / time_s
            points.append(Point(size_bytes, time_s, dataset, case.library, busbw))
    return tuple(sorted(points))


def points_like(result: CollectiveTime) -> tuple[Point, ...]:
    """Return the shipped measurements of what was predicted; none of eager or forced calls."""
    if result.mode != "graph" or result.forced:
        return ()
    group = result.group
    ranks, nodes = int(group.ranks), int(group.nodes)
    return points_of(group.cluster, result.collective, ranks, nodes, result.library)


@cache  # a report looks at many groups
def _shipped_collectives() -> tuple[Table, Cases[CollectiveCase]]:
    table = read_table(ROWS / "collectives.csv")
    return table, cases(table)

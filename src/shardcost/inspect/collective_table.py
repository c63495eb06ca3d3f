"""The curves of a measured table of collectives, to be judged like those of a log: `inspected`.

Rows of one collective, library and group are a curve. All curves of a table are judged together, so
they must be of one machine: the one that the caller names, else the one in the table's columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isnan
from pathlib import Path

from shardcost.catalog import cluster_named, network_named
from shardcost.cluster import Cluster
from shardcost.errors import FormatError, UnknownNameError, shown
from shardcost.formats.detect import TableFile
from shardcost.formats.reading import MeasurementLog, PassedOver, Point, Run, unsound
from shardcost.formats.tables import Table, check_columns, of_one
from shardcost.inspect import log
from shardcost.inspect.log import RunFindings
from shardcost.validate.collectives import MEASURED, CollectiveCase, cases, network_of
from shardcost.validate.validation import measurements


def inspected(
    reading: TableFile, cluster: Cluster | None = None, network: str | None = None
) -> tuple[MeasurementLog, tuple[RunFindings, ...]]:
    """Return the curves of a table as a log, and what their times say.

    Args:
        reading: A table of collectives, as `shardcost measure` writes it.
        cluster: The machine, if the caller names it; else the column of that name does.
        network: Joins the nodes of the machine in the column; that of the table if None.
    """
    table = reading.table
    if table.kind != "collectives":
        raise FormatError(reading.file, f"is a table of {table.kind}; collectives are checked")
    check_columns(table)
    networks = [network_of(row) for row in table.records()]
    table = replace(table, columns={**table.columns, "network": networks})
    passed_over = PassedOver()
    system = None if cluster is None else cluster.system
    joined = cluster.network if cluster is not None else None
    network = network if joined is None else joined.name
    for column, option, wanted in (
        ("cluster", "--on", system),
        ("network", "--network", network),
    ):
        kept = of_one(table, column, option, wanted)
        if kept.rows < table.rows:
            words = f"rows of another {column} than {wanted}"
            passed_over.add(0, words, count=table.rows - kept.rows)
        table = kept
    on = _machine(table, cluster, network)
    runs = list(_runs(table, passed_over))
    why = next((f": {each.reason}" for each in passed_over.unread()), "")
    nothing = f"has no rows to be judged{why}"
    found = MeasurementLog.of(Path(reading.file), reading.kind, runs, passed_over, nothing)
    return found, tuple(log.inspected(run, on) for run in found.runs)


def _machine(table: Table, cluster: Cluster | None, network: str | None) -> Cluster | None:
    """Return the machine of a table's rows; None where it is not known."""
    stated = next(filter(None, table.columns["network"]), None)
    if cluster is None:
        name = next(filter(None, table.columns["cluster"]), "")
        try:
            cluster_named(name)
        except UnknownNameError:
            return None
        return cluster_named(name, network or stated)
    if cluster.network is None and stated is not None:
        return replace(cluster, network=network_named(stated))
    return cluster


def _runs(table: Table, passed_over: PassedOver) -> Iterator[Run]:
    """Yield the curves of a table, one for each case; count the rows that are on none."""
    known = cases(table)
    times_us, complaints = measurements(table, MEASURED)
    for line, reason in zip(table.file_rows, known.reasons, strict=True):
        if reason:
            passed_over.add(line + 2, reason)
    for case, places in known.rows.items():
        points = []
        for place in places:
            size, time_us, line = known.sizes[place, 0], times_us[place], table.file_rows[place] + 2
            reason = complaints[place] or _not_judged(case)
            if not reason:
                blank = "rows without a measured time"
                reason = blank if isnan(time_us) else unsound("rows", size, time_us)
            if reason:
                passed_over.add(line, reason)
                continue
            dtype = table.columns["dtype"][place]
            points.append(Point(int(size), 1e-6 * float(time_us), dtype=dtype, line=line))
        if points:
            yield Run(
                collective=case.collective,
                num_gpus=case.gpus,
                nodes=case.nodes,
                library=case.library,
                single_process=case.single_process,
                points=tuple(points),
            )


def _not_judged(case: CollectiveCase) -> str:
    """Return why the rows of a case are not compared with the usual machine; empty if they are."""
    if case.mode != "graph":
        return f"rows of mode {shown(case.mode)}: launches from the host are not judged"
    if case.algorithm or case.protocol:
        return "rows with a forced algorithm or protocol, which are not judged"
    return ""

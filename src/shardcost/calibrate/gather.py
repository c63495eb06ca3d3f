"""From files that users have to the curves that constants are fitted to: `gathered`.

Logs of benchmarks, traces of profilers and tables of measurements all hold times of collectives on
some group of GPUs. What a file does not say (the machine, its network, how many ranks) the caller
may; what still cannot be placed is counted by reason and not used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardcost.calibrate.fit import Curve, curves
from shardcost.catalog import cluster_named, names, network_named
from shardcost.catalog.reported import cluster_reporting
from shardcost.cluster import Cluster
from shardcost.collectives.library_time import COLLECTIVES, MODES, MOST_BYTES
from shardcost.errors import BadValueError, FormatError, shown
from shardcost.formats.detect import TableFile
from shardcost.formats.kineto import Trace
from shardcost.formats.kineto_ranks import runs_of
from shardcost.formats.reading import MeasurementLog, Reading, Run
from shardcost.formats.tables import check_columns
from shardcost.machine.libraries import default_library
from shardcost.validate.collectives import CollectiveCase, machine


class NotStatedError(FormatError):
    """A file does not say on what it was measured, and the caller does not either."""


class UnplacedError(BadValueError):
    """Measurements of which none has a place on the machine."""

    def __init__(self, files: Sequence[str], passed_over: Mapping[str, int]) -> None:
        self.passed_over = passed_over
        why = "; ".join(f"{reason} ({count})" for reason, count in passed_over.items())
        rule = f"files with measured collectives on a known machine{': ' * bool(why)}{why}"
        super().__init__("measurements", list(files), rule)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.value, self.passed_over)


@dataclass(frozen=True)
class Stated:
    """What the caller says of measurements; None where the files are to say it."""

    cluster: str | None = None
    network: str | None = None
    library: str | None = None
    gpus: int | None = None
    """GPUs that took part, of runs that do not say."""


@dataclass(frozen=True, eq=False)
class Gathered:
    """Curves of one machine."""

    curves: list[Curve]
    cluster: Cluster
    """As the catalog has it, with its network where curves cross one."""
    passed_over: Mapping[str, int]
    """Points that are on no curve, by reason."""

    @property
    def points(self) -> int:
        """How many points the curves have."""
        return sum(len(curve.time_s) for curve in self.curves)


def gathered(readings: Sequence[Reading], stated: Stated) -> Gathered:
    """Return the curves that some files hold, all of one machine."""
    passed: Counter[str] = Counter()
    results: list[Curve] = []
    for file, run in _runs(readings):
        results += _curves_of_run(file, run, stated, passed)
    for reading in readings:
        if isinstance(reading, TableFile):
            results += _curves_of_table(reading, stated, passed)
        elif not isinstance(reading, MeasurementLog | Trace):
            reason = f"is a {reading.kind} file, which holds no measured collectives"
            raise FormatError(reading.file, reason)
    kept = []
    for curve in results:  # only what a collective among several GPUs can be
        sizes = curve.size_bytes
        placed = curve.case.gpus > 1 and curve.case.mode in MODES
        sound = (sizes >= 1) & (sizes <= MOST_BYTES) & placed
        left = int(np.count_nonzero(~sound))
        if left:
            passed["of one GPU by itself, or of a size or mode that cannot be"] += left
        if left < len(sizes):
            kept.append(curve.only(sound))
    results = kept
    if not results:
        raise UnplacedError([entry.file for entry in readings], dict(passed.most_common(3)))
    return Gathered(_joined(results), _one_machine(results), dict(passed.most_common()))


def _runs(readings: Sequence[Reading]) -> Iterator[tuple[str, Run]]:
    """Yield the runs of logs, and those of all traces together: ranks of one job."""
    for reading in readings:
        if isinstance(reading, MeasurementLog):
            yield from ((reading.file, run) for run in reading.runs)
    traces = [reading for reading in readings if isinstance(reading, Trace)]
    if traces:
        yield from ((traces[0].file, run) for run in runs_of(traces))


def _curves_of_run(file: str, run: Run, stated: Stated, passed: Counter[str]) -> list[Curve]:
    """Return the curve of a run: of its points out of place, or of those in place if all are."""
    usual = [point for point in run.points if not point.in_place] or list(run.points)
    system = _system(file, run.device, stated)
    case = _case(file, run, system, stated)
    reason = ""
    if run.collective not in COLLECTIVES:
        reason = f"collective unknown: {run.collective or 'not named'}"
    elif run.stride > 1:
        reason = "of ranks that lie apart: groups of neighbours are calibrated"
    elif not case.has_a_place():
        hint = "" if case.network else " (a network between nodes: --network)"
        reason = f"{case.gpus} GPUs on {case.nodes} nodes have no place on {system}{hint}"
    if reason:
        passed[reason] += len(usual)
    if reason or not usual:
        return []
    sizes = np.array([float(point.size_bytes) for point in usual])
    times = np.array([point.time_s for point in usual])
    name = re.sub(r"[^\w.-]", "_", file.rsplit("/", 1)[-1])[:80] or "measurements"
    return [Curve(case, sizes, times, frozenset({name}))]


def _system(file: str, device: str, stated: Stated) -> str:
    """Return the cluster of the catalog that a file was measured on."""
    if stated.cluster is not None:
        return cluster_named(stated.cluster).name
    if not device:
        raise NotStatedError(file, "does not say on which GPUs it was measured: say --on CLUSTER")
    result = cluster_reporting(device)
    if result is None:
        reason = f"was measured on {shown(device)}, which the catalog does not have or has twice"
        raise NotStatedError(file, f"{reason}: say --on CLUSTER, the nearest will do")
    return result


def _case(file: str, run: Run, system: str, stated: Stated) -> CollectiveCase:
    gpus = run.num_gpus or stated.gpus
    if not gpus:
        raise NotStatedError(file, "does not say how many GPUs took part: say --gpus N")
    cluster = cluster_named(system)
    per_node = int(cluster.gpus_per_node)
    nodes = run.nodes or -(-gpus // per_node)
    across = nodes > 1 and (gpus > cluster.tiers[-1].gpus or cluster.tiers[-1].gpus <= per_node)
    network = network_named(stated.network).name if stated.network else ""
    return CollectiveCase(
        collective=run.collective,
        cluster=system,
        network=network if across else "",
        gpus=gpus,
        nodes=nodes,
        library=stated.library or run.library or default_library(cluster),
        mode="graph",
        single_process=run.single_process,
    )


def _curves_of_table(reading: TableFile, stated: Stated, passed: Counter[str]) -> list[Curve]:
    """Return the curves of a measured table, on the machine that it names or on the one stated."""
    table = reading.table
    if table.kind != "collectives":
        raise FormatError(reading.file, f"is a table of {table.kind}; collectives are calibrated")
    check_columns(table)
    if stated.cluster is not None:
        system, known = cluster_named(stated.cluster).name, set(names("clusters"))
        column = [name if name in known else system for name in table.columns["cluster"]]
        table = replace(table, columns={**table.columns, "cluster": column})
        others = sum(name != system for name in column)
        if others:
            passed[f"measured on another cluster than {system}"] += others
        table = table.where(lambda row: row["cluster"] == system)
    result = curves(table)
    left = table.rows - sum(len(curve.time_s) for curve in result)
    if left:
        passed["rows on no machine of the catalog, or without a measurement"] += left
    return result


def _joined(curves_read: Iterable[Curve]) -> list[Curve]:
    """Return curves with those that ask the same case as one."""
    by_case: dict[CollectiveCase, list[Curve]] = {}
    for curve in curves_read:
        by_case.setdefault(curve.case, []).append(curve)
    return [
        Curve(
            case,
            np.concatenate([part.size_bytes for part in parts]),
            np.concatenate([part.time_s for part in parts]),
            frozenset().union(*(part.datasets for part in parts)),
        )
        for case, parts in by_case.items()
    ]


def _one_machine(curves_read: Sequence[Curve]) -> Cluster:
    """Return the machine of all curves; raise where they are of several."""
    systems = sorted({curve.case.cluster for curve in curves_read})
    networks = sorted({curve.case.network for curve in curves_read} - {""})
    for what, several in (("clusters (say --on one of them)", systems), ("networks", networks)):
        if len(several) > 1:
            raise BadValueError(f"{what} measured on", several, "one")
    return machine(systems[0], networks[0] if networks else "")

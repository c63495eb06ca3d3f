"""Predicts the rows of a table of measured collectives.

Rows that differ in size alone are one call of `collective_time` with an array
of sizes. A row that cannot be predicted gets a reason instead, and its neighbours are not harmed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from shardcost.catalog import tuner_table
from shardcost.checks import name_among
from shardcost.cluster import Cluster
from shardcost.collectives import ALGORITHMS, PROTOCOLS
from shardcost.collectives.group import Group
from shardcost.collectives.library_time import COLLECTIVES, CollectiveTime, collective_time
from shardcost.errors import BadValueError, ShardcostError
from shardcost.formats.tables import Row, Table, number
from shardcost.machine import CATALOG, Fitted, Machine, machine_of
from shardcost.machine.libraries import ENGINES, FRAMEWORKS
from shardcost.records import NamedTuple
from shardcost.validate.predictions import (
    Cases,
    Derived,
    Floats,
    Predictions,
    band_of,
    cases_of,
    count_or,
    whole_cell,
)

MEASURED: Final = "time_us"
SIZE_BANDS: Final = {
    "<=4KiB": 2**12, "<=64KiB": 2**16, "<=1MiB": 2**20, "<=16MiB": 2**24, "<=256MiB": 2**28,
    ">256MiB": np.inf,
}  # fmt: skip
"""Names of ranges of sizes, each with the largest size in it, in bytes."""
RELABELLED: Final = (("oci_b300_", "roce_8x400g", "roce_8x800g"),)
"""Data sets, by how their names begin, whose network is not the one that their table names: the
all-to-all of those on B300 needs 772 Gb/s of each GPU, so their ports were of 800 Gb/s."""
_MOST_GPUS: Final = 10**7
_MOST_BYTES: Final = 2.0**63


class CollectiveCase(NamedTuple):
    """A collective by a library on a group of GPUs, but for its size."""

    collective: str
    cluster: str
    network: str
    gpus: int
    nodes: int
    library: str
    mode: str
    single_process: bool
    algorithm: str | None = None
    """What was forced; None: the library chose."""
    protocol: str | None = None
    concurrent_groups: int = 1
    """Groups of this size that ran the same at the same time, in one domain."""

    def has_a_place(self) -> bool:
        """Return whether the catalog has its machine, and the machine room for its ranks."""
        try:
            Group.on(machine(self.cluster, self.network), self.gpus, self.nodes)
        except ShardcostError:
            return False
        return self.collective in COLLECTIVES

    def machine(self, fitted: Fitted = CATALOG) -> Machine:
        """Return the machine that it runs on."""
        return machine_of(machine(self.cluster, self.network), fitted=fitted)

    def result(self, sizes: float | Floats, on: Machine) -> CollectiveTime:
        """Return what is predicted for some sizes on a machine."""
        return collective_time(
            self.collective,
            sizes,
            on,
            self.gpus,
            self.nodes,
            library=self.library,
            mode=self.mode,
            algorithm=self.algorithm,
            protocol=self.protocol,
        )

    def time_s(self, sizes: Floats, on: Machine | None = None) -> Floats:
        """Return the seconds of some sizes, by the catalog's constants or by a machine's."""
        result = self.result(sizes, on or self.machine())
        return times_s(result, single_process=self.single_process)


def cases(table: Table) -> Cases[CollectiveCase]:
    """Return the rows of a table by case; a row's one size is its bytes."""
    return cases_of(table, _case, lambda row: (whole_array_bytes(row),), width=1)


def predictions(table: Table, fitted: Fitted = CATALOG) -> Predictions:
    """Return the predicted time of every row, in microseconds."""
    known = cases(table)
    return known.predictions(
        lambda case, places: 1e6 * case.time_s(known.sizes[places, 0], case.machine(fitted))
    )


def library_of(row: Row) -> str:
    """Return the library of a row, with its version where that decides which kernels run.

    Serving engines change their kernels, and the sizes up to which they run them, from version to
    version. Such a table says which one was measured in the name of the data set, if at all::

        >>> library_of({"library": "sglang", "dataset": "aic_h100_sxm_sglang_0.5.10"})
        'sglang==0.5.10'
        >>> library_of({"library": "nccl", "dataset": "aic_h100_sxm_nccl_2.29.2"})
        'nccl'

    A name may be wrong; without one (`without_versions`) a row is predicted by the newest kernels.
    """
    library = row["library"]
    if row.get("framework"):  # its launch and its buffers are inside the time
        return name_among("framework", row["framework"], FRAMEWORKS)
    if library not in ENGINES:
        return library
    _, _, version = row["dataset"].rpartition(f"_{library}_")
    return f"{library}=={version}" if version[:1].isdigit() and "_" not in version else library


def without_versions(table: Table) -> Table:
    """Return a table whose data sets name no version: libraries are taken at their newest."""
    return replace(table, columns={**table.columns, "dataset": [""] * table.rows})


def times_s(result: CollectiveTime, *, single_process: bool) -> Floats:
    """Return the predicted seconds, size by size, all of them finite.

    Where one process drives all GPUs of a node, not one each, its kernels are launched one after
    the other, and the first waits for the last. Were launches hidden behind the kernels of the
    collective before, the larger of the two times would count; measured is a sum, whose excess does
    not shrink as messages grow.
    """
    sizes = np.shape(result.size_bytes)
    time_s = np.broadcast_to(np.asarray(result.time_s, dtype=np.float64), sizes)
    if not np.isfinite(time_s).all():
        raise BadValueError("predicted time", time_s, "finite")
    if not single_process:
        return time_s
    launch_s: float = 1e-6 * tuner_table("nccl")["host_launch"]["us_per_gpu"]
    return time_s + launch_s * float(result.group.ranks / result.group.nodes)


def _case(row: Row) -> CollectiveCase:
    if _count(row, "num_gpus") == 1:
        raise BadValueError("num_gpus", row["num_gpus"], "at least 2: one by itself sends nothing")
    if row.get("channels"):
        raise BadValueError("channels", row["channels"], "blank: the library's own number of them")
    return CollectiveCase(
        collective=row["collective"],
        cluster=row["cluster"],
        network=network_of(row),
        gpus=_count(row, "num_gpus"),
        nodes=_count(row, "nodes"),
        library=library_of(row),
        mode=row["mode"] or "graph",
        single_process=is_single_process(row),
        algorithm=_forced(row, "algorithm", ALGORITHMS),
        protocol=_forced(row, "protocol", PROTOCOLS),
        concurrent_groups=_concurrent_groups(row),
    )


def network_of(row: Row) -> str:
    """Return the network that a row ran over, by what it shows where its table is known to err."""
    labelled = row["network"]
    return next(
        (
            shown
            for begins, label, shown in RELABELLED
            if label == labelled and row["dataset"].startswith(begins)
        ),
        labelled,
    )


def _forced(row: Row, column: str, known: Iterable[str]) -> str | None:
    """Return the algorithm or protocol that was forced; None where the library chose."""
    cell = row.get(column, "")
    return None if cell in {"", "default"} else name_among(column, cell, known)


def _concurrent_groups(row: Row) -> int:
    """Return how many groups ran at once, in one domain.

    A switch gives each its full rate, and so they do not change a prediction there. What other
    groups leave of the network's ports depends on where they sit, which no column says.
    """
    groups = count_or(row, "concurrent_groups", 1, least=1)
    if groups == 1:
        return groups
    if row["network"]:
        raise BadValueError("concurrent_groups", groups, "1 across a network")
    tier = machine(row["cluster"], "").tiers[-1]
    if tier.kind != "nvswitch":
        raise BadValueError("concurrent_groups", groups, "1 without a switch: groups share links")
    if groups * _count(row, "num_gpus") > tier.gpus:
        raise BadValueError("concurrent_groups", groups, "as many as one domain holds")
    return groups


def machine(name: str, network: str) -> Cluster:
    """Return a cluster of the catalog, joined by a network unless that is empty."""
    return Cluster.named(name, network or None)


def whole_array_bytes(row: Row) -> float:
    """Return the size that a row means, as nccl-tests counts: of the whole array.

    oneCCL's benchmark counts one rank's block of an all-gather instead: its times are those of a
    ring over n times the size that it states, at the rate of its reduce-scatter.
    """
    counted = size_bytes(row)
    if row["library"] == "oneccl" and row["collective"] == "all_gather":
        return counted * _count(row, "num_gpus")
    return counted


def size_bytes(row: Row) -> float:
    """Return the size that a row states."""
    return number(row, "size_bytes", 0, _MOST_BYTES, "a number of bytes above 0, at most 8 EiB")


def size_band(row: Row) -> str:
    """Return the range of sizes that a row is in."""
    return band_of(SIZE_BANDS, size_bytes(row))


def span(row: Row) -> str:
    """Return whether a row's ranks share one scale-up domain, be it a node or a rack.

    A table names a network where they do not: without one, no second domain can be reached, and the
    row is not predicted.
    """
    return "across nodes" if row["network"] and _count(row, "nodes") > 1 else "one node"


def population(row: Row) -> str:
    """Return which of the kinds of measurement a row is of: each has errors of its own."""
    if is_single_process(row):
        return "single process"
    if row["mode"] == "eager":
        return "eager"
    if _count(row, "nodes") > 1:
        return "across nodes or racks"
    return "engines, graph, one node" if row["library"] in ENGINES else "NCCL family, one node"


def is_single_process(row: Row) -> bool:
    """Return whether one process drives all GPUs of a node, rather than one each."""
    if row["single_process"] not in {"", "0", "1"}:
        raise BadValueError("single_process", row["single_process"], "0, 1 or empty")
    return row["single_process"] == "1"


def _count(row: Row, column: str) -> int:
    return whole_cell(row, column, most=_MOST_GPUS)


DERIVED: Final[Derived] = {"size_band": size_band, "span": span, "population": population}

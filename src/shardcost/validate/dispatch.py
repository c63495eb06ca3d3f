"""Predicts the rows of a table of expert-parallel dispatch and combine.

Rows that differ in tokens, sizes and SMs alone are one call of `dispatch_time`. A row
names its kernel; one that the catalog does not have is predicted by what its library runs, and a
library that the catalog does not have by DeepEP's kernels. How many SMs such a kernel
was given says nothing then: another one makes another use of them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.arrays import ceil_div
from shardcost.cluster import Cluster
from shardcost.collectives.dispatch import ALL_TO_ALL, DispatchTime, dispatch_time, sms_of
from shardcost.collectives.group import Group
from shardcost.dtypes import canonical_dtype
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.formats.tables import Row, Table
from shardcost.machine import CATALOG, Fitted, Machine, machine_of
from shardcost.machine.dispatch import PHASES, Kernel, kernel_named, kernel_of, libraries
from shardcost.validate.predictions import (
    Cases,
    Derived,
    Floats,
    Predictions,
    band_of,
    cases_of,
    whole_cell,
)

MEASURED: Final = "time_us"
TOKEN_BANDS: Final = {"<=16": 16, "<=128": 128, "<=1024": 1024, ">1024": np.inf}
"""Names of ranges of tokens per GPU, each with the largest in it."""
MODES: Final = {"": "graph", "kernel": "graph", "graph": "graph", "eager": "eager"}
"""How a table says that calls were launched, and what that is here: a kernel's own time, like one
from a graph, has no launch in it."""
BEST_NODES: Final = 4
"""Of more, DeepEP's benchmark of its normal kernels keeps so many for each token."""
_USUAL: Final = "deepep"
_MOST_GPUS: Final = 10**6
_SIZES: Final = ("tokens", "hidden", "topk", "experts", "sms")


class DispatchCase(NamedTuple):
    """A phase by a kernel on a group of GPUs, but for its sizes."""

    phase: str
    cluster: str
    network: str
    gpus: int
    nodes: int
    library: str
    kernel: str
    dtype: str
    mode: str
    low_latency: bool

    def machine(self, fitted: Fitted = CATALOG) -> Machine:
        """Return the machine that it runs on."""
        return machine_of(Cluster.named(self.cluster, self.network or None), fitted=fitted)

    @property
    def node_limit(self) -> int | None:
        """To how many nodes a token goes at most; None where nothing limits it."""
        domains = Group.on(self.machine().cluster, self.gpus, self.nodes).domains
        limited = not self.low_latency and domains > BEST_NODES
        return BEST_NODES if limited else None

    def result(self, sizes: Floats, on: Machine) -> DispatchTime:
        """Return what is predicted for some sizes on a machine."""
        tokens, hidden, topk, experts, sms = sizes.T
        chosen: dict[str, Any] = {"library": self.library}
        if self.library not in ALL_TO_ALL:
            chosen = {"kernel": kernel_of_case(self), "low_latency": self.low_latency}
            told = ~np.isnan(sms) & (kernel_named(self.kernel) is not None)
            if told.any():
                own = sms_of(chosen["kernel"], on.cluster.device.sms, experts)
                chosen["sms"] = np.where(told, sms, own).astype(np.int64)
        whole = (each.astype(np.int64) for each in (hidden, topk, experts))
        return dispatch_time(
            self.phase, on, self.gpus, tokens, *whole, nodes=self.nodes,
            dtype=self.dtype, mode=self.mode, node_limit=self.node_limit, **chosen,
        )  # fmt: skip


def kernel_of_case(case: DispatchCase) -> Kernel:
    """Return the kernel that a case is predicted by: of its name, else of its library."""
    named = kernel_named(case.kernel)
    if named is not None:
        return named
    library = case.library if case.library in libraries() else _USUAL
    return kernel_of(library, low_latency=case.low_latency)


def cases(table: Table) -> Cases[DispatchCase]:
    """Return the rows of a table by case; their sizes are tokens, hidden, top-k, experts, SMs."""
    return cases_of(table, _case, _sizes, len(_SIZES))


def predictions(table: Table, fitted: Fitted = CATALOG) -> Predictions:
    """Return the predicted time of every row, in microseconds."""
    known = cases(table)

    def predict(case: DispatchCase, places: list[int]) -> Floats:
        time_s: Floats = case.result(known.sizes[places], case.machine(fitted)).time_s
        return 1e6 * time_s

    return known.predictions(predict)


def token_band(row: Row) -> str:
    """Return the range of tokens per GPU that a row is in."""
    return band_of(TOKEN_BANDS, whole_cell(row, "tokens"))


def span(row: Row) -> str:
    """Return whether a row's ranks share one domain."""
    return "across nodes" if row["network"] and whole_cell(row, "nodes") > 1 else "one node"


def _case(row: Row) -> DispatchCase:
    if row["phase"] not in PHASES:
        raise UnknownNameError("phase", row["phase"], PHASES)
    if row["mode"] not in MODES:
        raise UnknownNameError("mode", row["mode"], MODES)
    if row["ll"] not in {"0", "1"}:
        raise BadValueError("ll", row["ll"], "0 or 1")
    gpus = whole_cell(row, "num_gpus", most=_MOST_GPUS)
    if gpus == 1:
        raise BadValueError("num_gpus", row["num_gpus"], "at least 2: one by itself sends nothing")
    nodes, cluster = whole_cell(row, "nodes", most=_MOST_GPUS), Cluster.named(row["cluster"])
    if gpus <= cluster.tiers[-1].gpus:  # a table may call a whole NVLink domain one node
        nodes = max(nodes, ceil_div(gpus, int(cluster.gpus_per_node)))
    return DispatchCase(
        phase=row["phase"],
        cluster=row["cluster"],
        network=row["network"],
        gpus=gpus,
        nodes=nodes,
        library=row["library"],
        kernel=row["kernel"],
        dtype=canonical_dtype(row["dtype"]),
        mode=MODES[row["mode"]],
        low_latency=row["ll"] == "1",
    )


def _sizes(row: Row) -> list[float]:
    return [
        np.nan if column == "sms" and not row[column] else whole_cell(row, column)
        for column in _SIZES
    ]


DERIVED: Final[Derived] = {"token_band": token_band, "span": span}

"""Rates of collectives that training jobs measured on their own GPUs, as curves.

Each row of some training tables has the rates at which the very job all-gathered and
reduce-scattered over all of its GPUs (``ag_GBps_measured``, ``rs_GBps_measured``), and all-reduced
inside a node (``ar_intra_GBps``). Jobs that were slow inside a node already are left out: their
hosts were. The table does not state the size of the buffer; that of gathers follows from rates
inside a node (`GATHERED_BYTES`). Medians over the jobs of a GPU count are one point each.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shardcost.calibrate.fit import Curve
from shardcost.collectives.group import bus_factor
from shardcost.formats.tables import Row, Table
from shardcost.validate.collectives import CollectiveCase
from shardcost.validate.training import GATHERED_BYTES

_COLUMNS: Final = {"ag_GBps_measured": "all_gather", "rs_GBps_measured": "reduce_scatter"}
_INSIDE: Final = "ar_intra_GBps"
_USUAL: Final = 0.97
"""Of the median over jobs inside one node, which rate inside a node has nothing amiss."""


def in_job_curves(table: Table) -> list[Curve]:
    """Return the curves of gathers across nodes that the jobs of a training table measured."""
    if not {*_COLUMNS, _INSIDE} <= set(table.columns):
        return []
    rows = list(table.records())
    alone = [_rate(row) for row in rows if row["gpus"] == row["gpus_per_node"] and _rate(row)]
    usual = _USUAL * float(np.median(alone)) if alone else 0.0
    found: dict[CollectiveCase, list[float]] = {}
    names: dict[CollectiveCase, set[str]] = {}
    for row in rows:
        if not row["network"] or not _rate(row) >= usual > 0:
            continue
        gpus, per_node = int(row["gpus"]), int(row["gpus_per_node"])
        if gpus <= per_node:
            continue
        for column, collective in _COLUMNS.items():
            case = CollectiveCase(
                collective, row["cluster"], row["network"], gpus, gpus // per_node, "nccl",
                "graph", single_process=False,
            )  # fmt: skip
            found.setdefault(case, []).append(1e9 * float(row[column]))
            names.setdefault(case, set()).add(row["dataset"])
    return [
        Curve(
            case,
            np.array([GATHERED_BYTES]),
            np.array([bus_factor(case.collective, case.gpus) * GATHERED_BYTES / np.median(rates)]),
            frozenset(names[case]),
        )
        for case, rates in found.items()
    ]


def _rate(row: Row) -> float:
    return float(row[_INSIDE] or 0)

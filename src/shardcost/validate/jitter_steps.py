"""Predictions of how the steps of a training run scatter: 99th percentile over median.

A row is one run. The scatter is one constant: in measured runs of 8 to 2,048 GPUs it does not grow
with their number, and what differs is the site.
"""

from __future__ import annotations

from typing import Final

from shardcost.formats.tables import Table
from shardcost.jitter import over_median
from shardcost.machine import CATALOG, Fitted
from shardcost.machine.jitter import Jitter, catalog_jitter
from shardcost.validate.predictions import Derived, Predictions, by_row, whole_cell

MEASURED: Final = "p99_over_median"


def predictions(
    table: Table, _fitted: Fitted = CATALOG, *, jitter: Jitter | None = None
) -> Predictions:
    """Return the predicted 99th percentile of every run's steps, over their median."""
    by = jitter or catalog_jitter()
    p99 = float(over_median(99, by.step_scatter))
    return by_row(table, lambda row: p99 if whole_cell(row, "gpus") else 1.0)


DERIVED: Final[Derived] = {
    "logged": lambda row: "every step" if row["logged_every"] == "1" else "one in many"
}

"""Predictions of how the steps of a training run scatter: two percentiles over the median.

A row is one run. The scatter is one constant: in measured runs of 8 to 2,048 GPUs it does not grow
with their number, and what differs is the site.
"""

from __future__ import annotations

from typing import Final

from shardcost.formats.tables import Row, Table
from shardcost.jitter import over_median
from shardcost.machine import CATALOG, Fitted
from shardcost.machine.constants import Jitter, catalog_jitter
from shardcost.validate.predictions import Derived, Predictions, by_row, meaning_of, whole_cell

MEASURED: Final = "measured"
HEADLINE: Final = "p99_over_median"
PERCENTS: Final = {"p90_over_median": 90, HEADLINE: 99}
"""The percentile that each figure is."""
LEAST: Final = 1.0
"""A percentile above the median, over the median."""


def predictions(
    table: Table, _fitted: Fitted = CATALOG, *, jitter: Jitter | None = None
) -> Predictions:
    """Return the predicted percentile of every run's steps, over their median."""
    by = jitter or catalog_jitter()

    def predict(row: Row) -> float:
        whole_cell(row, "gpus")
        return float(over_median(meaning_of(row, "figure", PERCENTS), by.step_scatter))

    return by_row(table, predict)


DERIVED: Final[Derived] = {
    "logged": lambda row: "every step" if row["logged_every"] == "1" else "one in many"
}

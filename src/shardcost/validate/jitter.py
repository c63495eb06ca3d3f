"""Predictions of how single all-reduces scatter: two of their percentiles over their median.

A row is one size of array on some nodes, run many times over. Islands of the fabric, the algorithm
and what had been forced change no prediction: with the rows at hand they could not be told from the
number of nodes.
"""

from __future__ import annotations

from typing import Final

from shardcost.formats.tables import Table
from shardcost.jitter import tail_of_all_reduce
from shardcost.machine import CATALOG, Fitted
from shardcost.machine.constants import Jitter, catalog_jitter
from shardcost.validate.predictions import (
    Derived,
    Floats,
    Predictions,
    cases_of,
    meaning_of,
    whole_cell,
)

MEASURED: Final = "measured"
HEADLINE: Final = "p99_rel"
PERCENTS: Final = {"p90_rel": 90, HEADLINE: 99}
"""The percentile that each figure is."""
LEAST: Final = 1.0
"""A percentile above the median, over the median."""


def predictions(
    table: Table, _fitted: Fitted = CATALOG, *, jitter: Jitter | None = None
) -> Predictions:
    """Return the predicted percentile of every row, over its median."""
    by = jitter or catalog_jitter()
    known = cases_of(
        table,
        lambda row: meaning_of(row, "figure", PERCENTS),
        lambda row: (whole_cell(row, "size_bytes"), whole_cell(row, "nodes")),
        width=2,
    )

    def predict(percent: int, places: list[int]) -> Floats:
        size, nodes = known.sizes[places].T
        constants = (by.tail, by.tail_index, by.half_bytes)
        tail: Floats = tail_of_all_reduce(size, nodes, *constants, percent=percent)
        return tail

    return known.predictions(predict)


DERIVED: Final[Derived] = {"ran": lambda row: row.get("algorithm") or "the library's choice"}

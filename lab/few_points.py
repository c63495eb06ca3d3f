"""How far a calibration on few points carries: six points of one GPU count, tried on all the rest.

A system is treated as if the catalog had never measured it: a fit starts from its family's
constants. It sees six points of one all-reduce curve, sizes evenly spread, and is tried on the
other points of the data set: other sizes, other GPU counts, other collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from lab.cross_validation import LeftOut
from lab.refit_collectives import by_key, usable
from shardcost.calibrate.calibrate import fitted_calibration
from shardcost.calibrate.fit import Curve, Key, blank, inside
from shardcost.catalog import cluster_named
from shardcost.formats.tables import Row, Table
from shardcost.machine.constants import Calibration
from shardcost.machine.libraries import CATALOG_LIBRARIES, ENGINES

POINTS: Final = 6
_CURVE: Final = "all_reduce"


def few_points(table: Table) -> Iterator[LeftOut]:
    """Yield the errors on what six points of one GPU count did not show, data set by data set."""
    for key, known in _data_sets(table):
        start = family_start(key)
        if start is None:
            continue
        for count in sorted({curve.case.gpus for curve in known}):
            shown = [c for c in known if c.case.gpus == count and c.case.collective == _CURVE]
            if not shown or len(shown[0].time_s) < POINTS:
                continue
            seen, rest = six_points(shown[0])
            others = [rest, *(curve for curve in known if curve is not shown[0])]
            others = [curve for curve in others if len(curve.time_s)]
            if others:
                result = fitted_calibration([seen], start)
                errors = np.concatenate([curve.error_pct(result) for curve in others])
                yield LeftOut(key[0], key[1], f"six points of {count} GPUs", errors)


def all_points(table: Table) -> Iterator[LeftOut]:
    """Yield the errors on every point of a data set that a calibration has seen."""
    for key, known in _data_sets(table):
        start = family_start(key)
        if start is not None:
            result = fitted_calibration(known, start)
            errors = np.concatenate([curve.error_pct(result) for curve in known])
            yield LeftOut(key[0], key[1], "all points", errors)


def _data_sets(table: Table) -> Iterator[tuple[Key, list[Curve]]]:
    """Yield the curves inside one domain of each data set of a ring library."""
    for name in dict.fromkeys(table.columns["dataset"]):
        rows = table.where(partial(data_set_is, name))
        graph = [curve for curve in inside(usable([rows])) if curve.case.mode == "graph"]
        for key, known in by_key(graph).items():
            if key[1] not in ENGINES:
                yield key, known


def data_set_is(name: str, row: Row) -> bool:
    """Return whether a row is of a data set."""
    return row["dataset"] == name


def family_start(key: Key) -> Calibration | None:
    """Return the family's constants for a system, as if it had none of its own."""
    donors = CATALOG_LIBRARIES.donors(cluster_named(key[0]), key[1], key[2])
    return blank(key, donors) if donors else None


def six_points(curve: Curve) -> tuple[Curve, Curve]:
    """Return six points of a curve, evenly spread over its sizes, and the others."""
    order = np.argsort(curve.size_bytes, kind="stable")
    chosen = order[np.round(np.linspace(0, len(order) - 1, POINTS)).astype(int)]
    seen = np.isin(np.arange(len(order)), chosen)
    return curve.only(seen), curve.only(~seen)

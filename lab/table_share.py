"""What tables of residuals add to a formula: calibrated on 30 % of a family, tried on the rest.

    python -m lab.table_share collectives.csv [--share 0.3] [--seed 0] [--counts]

A family is all that one data set has of one library on one system: collectives, sizes, GPU counts.
A random share of its points calibrates a profile, which predicts the others, by the formula alone
and with its tables. Constants start from the other data sets of the same library and system, else
from the family's: from nothing that has seen the points.

With ``--counts`` each GPU count is left out whole: a table has no points there and must not harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab.command import ended, parser_of
from lab.few_points import data_set_is, family_start
from lab.refit_collectives import by_key
from shardcost.calibrate.calibrate import calibrated_library, fitted_calibration
from shardcost.calibrate.fit import Curve, Key, blank, curves, fitted_library, inside, with_fit
from shardcost.formats.tables import Row, Table, read_table
from shardcost.machine import CATALOG
from shardcost.machine.constants import Calibration
from shardcost.report.text import table as as_table

Floats = NDArray[np.float64]
LEAST_POINTS: Final = 40
"""Of a family that is tried."""
SHARE: Final = 0.3


class Tried(NamedTuple):
    """Errors of points that a profile had not seen, in percent and without sign."""

    system: str
    library: str
    data_set: str
    formula: Floats
    with_tables: Floats
    tables: int
    """How many the profile has."""


def by_share(table: Table, share: float = SHARE, seed: int = 0) -> Iterator[Tried]:
    """Yield the errors on what a random share of each family's points did not show."""
    for name, key, known in families(table):
        points = sum(len(curve.time_s) for curve in known)
        drawn = np.random.default_rng(seed).permutation(points) < round(share * points)
        ends = np.cumsum([len(curve.time_s) for curve in known])
        masks = np.split(drawn, ends[:-1])
        seen, others = (
            [
                curve.only(mask == wanted)
                for curve, mask in zip(known, masks, strict=True)
                if (mask == wanted).any()
            ]
            for wanted in (True, False)
        )
        yield _tried(name, key, seen, others, _start(table, name, key))


def by_count(table: Table) -> Iterator[Tried]:
    """Yield the errors on each GPU count of each family, calibrated on all the others."""
    for name, key, known in families(table):
        start = _start(table, name, key)
        counts = sorted({curve.case.gpus for curve in known})
        for count in counts if len(counts) > 1 else ():
            seen = [curve for curve in known if curve.case.gpus != count]
            others = [curve for curve in known if curve.case.gpus == count]
            yield _tried(name, key, seen, others, start)


def families(table: Table) -> Iterator[tuple[str, Key, list[Curve]]]:
    """Yield the curves inside one domain of each data set and library that has enough points."""
    for name in dict.fromkeys(table.columns["dataset"]):
        known = inside(curves(table.where(partial(data_set_is, name))))
        for key, own in by_key(known).items():
            if sum(len(curve.time_s) for curve in own) >= LEAST_POINTS:
                yield name, key, own


def _tried(
    name: str, key: Key, seen: Sequence[Curve], others: Iterable[Curve], start: Calibration
) -> Tried:
    profile = calibrated_library(seen, start, "other data sets").calibration
    formula, both = (
        np.concatenate([np.abs(curve.error_pct(own)) for curve in others])
        for own in (replace(profile, residuals=()), profile)
    )
    return Tried(key[0], key[1], name, formula, both, len(profile.residuals))


def _start(table: Table, name: str, key: Key) -> Calibration:
    """Return constants of a library on a system that have not seen a data set."""
    start = family_start(key) or blank(key)
    known = inside(curves(table.where(partial(_others, name, key))))
    own = [curve for curve in by_key(known).get(key, []) if not curve.case.single_process]
    graph = [curve for curve in own if curve.case.mode == "graph"]
    eager = [curve for curve in own if curve.case.mode == "eager"]
    if graph:
        start = with_fit(fitted_calibration(graph, start), graph, CATALOG)
    return fitted_library(eager, start) if eager else start


def _others(name: str, key: Key, row: Row) -> bool:
    return row["dataset"] != name and row["cluster"] == key[0] and row["library"] == key[1]


def summary(tried: Sequence[Tried], of: Callable[[Tried], str]) -> str:
    """Return median and 90th percentile of errors with and without tables, in groups."""
    groups: dict[str, list[Tried]] = {}
    for each in tried:
        groups.setdefault(of(each), []).append(each)
    rows = []
    for name, own in [*sorted(groups.items()), ("all", list(tried))]:
        formula, both = (np.concatenate([getattr(e, f) for e in own]) for f in Tried._fields[3:5])
        tables = sum(each.tables for each in own)
        rows.append((name, str(len(both)), str(tables), _pair(formula), _pair(both)))
    head = ("median / p90 error, %", "points", "tables", "formula alone", "with tables")
    return as_table(head, rows, right="1234")


def _pair(errors: Floats) -> str:
    return f"{np.median(errors):.1f} / {np.quantile(errors, 0.9):.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what tables add, by system and by library."""
    parser = parser_of(__doc__)
    parser.add_argument("table", type=Path, help="measured collectives (CSV)")
    parser.add_argument("--share", type=float, default=SHARE, help="of points that are seen")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--counts", action="store_true", help="leave GPU counts out, whole")
    given = parser.parse_args(arguments)
    table = read_table(given.table)
    if given.counts:
        print("each GPU count left out whole:\n")
        print(summary(list(by_count(table)), lambda each: each.system))
        return
    tried = list(by_share(table, given.share, given.seed))
    print(f"{100 * given.share:.0f} % of the points seen, the others predicted:\n")
    print(summary(tried, lambda each: each.system), "\n")
    print(summary(tried, lambda each: each.library))


if __name__ == "__main__":
    ended(main)

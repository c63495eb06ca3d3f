"""Fits the constants of training frameworks to whole runs.

    python -m lab.refit_frameworks training.csv [FRAMEWORK…]

A framework's kernels and what it overlaps are choices that its documentation states. What is left
are one to four constants each, the same on every system, found as those of engines are
(`lab.refit_engines`). Rows of one site are alike, so a data set counts by more than
one but by less than its rows (`_WEIGHT`). What the fits are worth on rows that they have not seen
is told by `lab.folds`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from lab.catalog_files import CATALOG, fit_of, update_software
from lab.command import ended, parser_of
from lab.descent import descend, errors_pct, in_seconds, loss
from lab.parts import Mask
from shardcost.formats.tables import Row, Table, read_table
from shardcost.validate import training
from shardcost.validate.predictions import Floats

FITTED: Final[Mapping[str, Mapping[str, float]]] = {
    "megatron_2021": {"slowdown": 1.0},
    "megatron_deepspeed": {
        "host_per_kernel_us": 50.0,
        "gradient_sum_bytes": 40.0,
        "host_scatter": 0.25,
    },
    "megatron_core": {
        "slowdown": 1.0,
        "step_overhead_ms": 40.0,
        "host_per_kernel_us": 15.0,
        "host_scatter": 0.4,
    },
    "megatron_rocm": {"slowdown": 1.0},
    "megatron_lm": {"slowdown": 1.0, "step_overhead_ms": 10.0},
    "nanotron": {
        "slowdown": 1.0,
        "host_per_kernel_us": 50.0,
        "host_per_hop_us": 200.0,
        "step_overhead_ms": 50.0,
    },
    "llm_foundry": {"slowdown": 1.0, "step_overhead_ms": 10.0},
    "torchtitan": {"slowdown": 1.0},
    "maxtext": {"slowdown": 1.0},
}
"""Which constants each framework has, and where the search for them starts."""
PULL: Final = 1e-3
"""Loss for each factor of e that a constant moves. Runs that wait for the device say nothing of the
host: without a pull, its constants would make up for any other error there."""
_WEIGHT: Final = 0.75
"""Power of its rows by which a data set counts."""
_MOST_ROWS: Final = 200
"""Of one data set, in a fit of a few constants."""


def rows_of(table: Table) -> dict[str, list[Row]]:
    """Return the rows of each framework."""
    results: dict[str, list[Row]] = {}
    for row in table.records():
        results.setdefault(training.software_of(row).name, []).append(row)
    return results


def ratios(rows: Sequence[Row], constants: Mapping[str, float]) -> Floats:
    """Return predicted over measured, of every row."""
    return np.array([_time_s(row, constants) / float(row[training.MEASURED]) for row in rows])


def _time_s(row: Row, constants: Mapping[str, float]) -> float:
    software: Any = training.software_of(row)
    given = in_seconds(constants)
    if software.host_per_hop_s is None:  # of runs with slow hops only
        given.pop("host_per_hop_s", None)
    return float(training.estimate_of(row, replace(software, **given)).time_s)


class Trials:
    """Runs of one framework, and what each trial of constants made of them: fits share most."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._sets = np.array([row.get("dataset", "") for row in rows])
        self._known: dict[tuple[float, ...], Floats] = {}

    def fitted(
        self, start: Mapping[str, float], kept: Mask, counts: Mapping[str, int] | None = None
    ) -> dict[str, float]:
        """Return the constants that suit some of the rows best.

        Args:
            start: Where to begin.
            kept: Which rows.
            counts: By how many rows each data set counts; by those kept if left out.
        """
        sets = self._sets[kept]
        weights = {n: count**_WEIGHT for n, count in (counts or Counter(sets.tolist())).items()}

        def lossy(trial: dict[str, float]) -> float:
            tried = self._ratios(trial)[kept]
            losses = [loss(tried[sets == name]) for name in weights]
            return float(np.average(losses, weights=list(weights.values())))

        return descend(lossy, start, PULL)

    def _ratios(self, trial: Mapping[str, float]) -> Floats:
        key = tuple(float(f"{value:.9g}") for value in trial.values())
        if key not in self._known:
            self._known[key] = ratios(self._rows, trial)
        return self._known[key]


def fitted(name: str, rows: Sequence[Row]) -> dict[str, float]:
    """Return the constants of a framework that suit rows best."""
    used = [row for dataset in _values(rows) for row in _sample(rows, dataset)]
    counts = Counter(row["dataset"] for row in rows)
    return Trials(used).fitted(FITTED[name], np.ones(len(used), dtype=bool), counts)


def _sample(rows: Sequence[Row], dataset: str) -> list[Row]:
    """Return rows of a data set, evenly picked where it has more than a fit needs."""
    own = [row for row in rows if row["dataset"] == dataset]
    return own[:: max(1, len(own) // _MOST_ROWS)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the frameworks named, or all; write their constants and print the errors."""
    parser = parser_of(__doc__)
    parser.add_argument("table", type=Path, help="measured table of training (CSV)")
    parser.add_argument("names", nargs="*", metavar="FRAMEWORK", help="all of them if none")
    parser.add_argument("--output", type=Path, default=CATALOG, help="folder like the catalog's")
    options = parser.parse_args(arguments)
    known = rows_of(read_table(options.table))
    for name in options.names or FITTED:
        rows = known.get(name, [])
        if not rows:
            continue
        constants = fitted(name, rows)
        source = f"fitted by shardcost to measured rows of {', '.join(_values(rows))}"
        fit = fit_of(source, errors_pct(ratios(rows, constants)), len(rows))
        update_software(name, constants, fit, options.output)
        print(name, constants, fit)


def _values(rows: Sequence[Row]) -> list[str]:
    return sorted({row["dataset"] for row in rows})


if __name__ == "__main__":
    ended(main)

"""Fits the constants of training frameworks to whole runs.

    python -m lab.refit_frameworks training.csv [FRAMEWORK…]

A framework's kernels and what it overlaps are choices that its documentation states. What is left
are one to five constants each, the same on every system, found as those of engines are
(`lab.refit_engines`). Software that stands for a kind of framework has the means of theirs. Rows of
one site are alike, so a data set counts by more than one but by less than its rows (`_WEIGHT`).
What the fits are worth on rows that they have not seen is told by `lab.folds`.
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
from shardcost.software import Software
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
        "host_per_crossing_us": 600.0,
        "step_overhead_ms": 50.0,
    },
    "llm_foundry": {"slowdown": 1.0, "attention_slowdown": 1.0, "step_overhead_ms": 10.0},
    "torchtitan": {"slowdown": 1.0},
    "maxtext": {"slowdown": 1.0},
}
"""Which constants each framework has, and where the search for them starts."""
_OF_PYTORCH: Final = ("llm_foundry", "nanotron", "torchtitan")
MEANS: Final[Mapping[str, tuple[str, ...]]] = {
    "deepspeed": _OF_PYTORCH,
    "pytorch": _OF_PYTORCH,
}
"""Software that stands for all of a kind, and the frameworks whose mean its constants are."""
_OF_ALL: Final = ("slowdown", "host_per_kernel_us", "step_overhead_ms")
"""Constants that any framework may have."""
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


def mean_constants(name: str, without: str = "") -> dict[str, float]:
    """Return the means of the constants of the frameworks that a software stands for.

    Args:
        name: The software.
        without: A framework to leave out.
    """
    kept: list[Any] = [Software.named(each) for each in MEANS[name] if each != without]
    units = {constant: in_seconds({constant: 1.0}) for constant in _OF_ALL}
    return {
        constant: float(f"{np.mean([getattr(each, field) for each in kept]) / unit:.3g}")
        for constant, own in units.items()
        for field, unit in own.items()
    }


def ratios(
    rows: Sequence[Row], constants: Mapping[str, float], software: Software | None = None
) -> Floats:
    """Return predicted over measured, of every row, by its framework or by another software."""
    times = (_time_s(row, constants, software) / float(row[training.MEASURED]) for row in rows)
    return np.fromiter(times, dtype=float, count=len(rows))


def _time_s(row: Row, constants: Mapping[str, float], other: Software | None) -> float:
    software: Any = training.software_of(row, other)
    given = in_seconds(constants)
    if software.host_per_hop_s is None:  # of runs with slow hops only
        for name in ("host_per_hop_s", "host_per_crossing_s"):
            given.pop(name, None)
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
    for name, others in MEANS.items():
        rows = [row for each in others for row in known.get(each, ())]
        if not rows or (options.names and name not in options.names):
            continue
        constants = mean_constants(name)
        update_software(name, constants, None, options.output)  # no run is of it itself
        errors = errors_pct(ratios(rows, constants, Software.named(name)))
        print(name, constants, f"median and p90 error on runs of {', '.join(others)}:", errors)


def _values(rows: Sequence[Row]) -> list[str]:
    return sorted({row["dataset"] for row in rows})


if __name__ == "__main__":
    ended(main)

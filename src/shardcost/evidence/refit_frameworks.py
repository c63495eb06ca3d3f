"""Fits the constants of training frameworks to whole runs.

    python -m shardcost.evidence.refit_frameworks training.csv [FRAMEWORK…]

A framework's kernels and what it overlaps are choices that its documentation states. What is left
are one or two constants each, the same on every system, found as those of engines are
(`shardcost.evidence.refit_engines`). Rows of one site are alike, so a data set counts by more than
one but by less than its rows (`_WEIGHT`). Every fit is repeated without each model, each
tensor-parallel degree and each data set, to say what it is worth on those.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from shardcost.evidence import training
from shardcost.evidence.descent import descend, errors_pct, in_seconds, loss, write_constants
from shardcost.evidence.predictions import Floats
from shardcost.evidence.tables import Row, Table, read_table

FITTED: Final[Mapping[str, Mapping[str, float]]] = {
    "megatron_2021": {"slowdown": 1.0},
    "megatron_deepspeed": {"host_per_kernel_us": 50.0, "gradient_sum_bytes": 20.0},
    "megatron_core": {"slowdown": 1.0, "step_overhead_ms": 10.0},
    "megatron_lm": {"slowdown": 1.0},
    "nanotron": {"slowdown": 1.0, "host_per_kernel_us": 50.0, "host_per_hop_us": 200.0},
    "llm_foundry": {"slowdown": 1.0, "step_overhead_ms": 10.0},
    "torchtitan": {"slowdown": 1.0},
}
"""Which constants each framework has, and where the search for them starts."""
_WEIGHT: Final = 0.75
"""Power of its rows by which a data set counts."""
_MOST_ROWS: Final = 60
"""Of one data set, in a fit of one or two constants."""
LEFT_OUT: Final = ("model", "tp", "dataset")


def rows_of(table: Table) -> dict[str, list[Row]]:
    """Return the rows of each framework."""
    found: dict[str, list[Row]] = {}
    for row in table.records():
        found.setdefault(training.software_of(row).name, []).append(row)
    return found


def ratios(rows: Sequence[Row], constants: Mapping[str, float]) -> Floats:
    """Return predicted over measured, of every row."""
    return np.array([_time_s(row, constants) / float(row[training.MEASURED]) for row in rows])


def _time_s(row: Row, constants: Mapping[str, float]) -> float:
    software: Any = training.software_of(row)
    given = in_seconds(constants)
    if software.host_per_hop_s is None:  # of runs with slow hops only
        given.pop("host_per_hop_s", None)
    return float(training.estimate_of(row, replace(software, **given)).time_s)


def fitted(name: str, rows: Sequence[Row]) -> dict[str, float]:
    """Return the constants of a framework that suit rows best."""
    names = _values(rows, "dataset")
    sets = [_sample(rows, each) for each in names]
    counts = [sum(row["dataset"] == each for row in rows) for each in names]

    def lossy(trial: dict[str, float]) -> float:
        losses = [loss(ratios(each, trial)) for each in sets]
        return float(np.average(losses, weights=np.power(counts, _WEIGHT)))

    return descend(lossy, FITTED[name])


def _sample(rows: Sequence[Row], dataset: str) -> list[Row]:
    """Return rows of a data set, evenly picked where it has more than a fit needs."""
    own = [row for row in rows if row["dataset"] == dataset]
    return own[:: max(1, len(own) // _MOST_ROWS)]


def left_out(name: str, rows: Sequence[Row], column: str) -> Floats:
    """Return the ratios of rows whose model, say, the fit had not seen."""
    values = _values(rows, column)
    if len(values) == 1:
        return np.array([])

    def tried(value: str) -> Floats:
        constants = fitted(name, [row for row in rows if row[column] != value])
        return ratios([row for row in rows if row[column] == value], constants)

    return np.concatenate([tried(value) for value in values])


def main(arguments: Sequence[str], say: Callable[[str], None] = print) -> None:
    """Fit the frameworks named, or all, and print what the fits are worth."""
    known = rows_of(read_table(Path(arguments[0])))
    for name in arguments[1:] or FITTED:
        rows = known.get(name, [])
        if not rows:
            continue
        constants = fitted(name, rows)
        median, p90 = errors_pct(ratios(rows, constants))
        sets = ", ".join(_values(rows, "dataset"))
        fit = f"fitted to {len(rows)} rows of {sets}: median {median:.1f} %, p90 {p90:.1f} %"
        write_constants(name, constants, fit)
        say(f"{name}: {constants}; {fit}")
        for column in LEFT_OUT:
            found = left_out(name, rows, column)
            if found.size:
                median, p90 = errors_pct(found)
                say(f"  without its {column}: median {median:.1f} %, p90 {p90:.1f} %")


def _values(rows: Sequence[Row], column: str) -> list[str]:
    return sorted({row[column] for row in rows})


if __name__ == "__main__":
    main(sys.argv[1:])

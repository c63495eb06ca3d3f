"""Fits the kernels of TPUs to whole training steps: no kernel of theirs was measured by itself.

    python -m lab.refit_tpu training_runs.csv [--output FOLDER] [--folds]

All generations share the constants, which are shares of each one's datasheet (`FITTED`). With
``--folds`` a generation, a model or a data set is left out of the fit at a time, and the errors on
what was left out are printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import numpy as np

from lab.catalog_files import CATALOG, update
from lab.command import ended, parser_of
from lab.descent import descend, errors_pct, loss
from shardcost import catalog
from shardcost.formats.tables import Row, read_table
from shardcost.machine import CATALOG as CONSTANTS
from shardcost.machine import Fitted
from shardcost.machine.kernels import KernelTable
from shardcost.validate import training
from shardcost.validate.predictions import Floats

SYSTEM: Final = "tpu_v5p"
"""Whose files hold the constants of all generations."""
Place = tuple[KernelTable, str, str]
FITTED: Final[Mapping[str, tuple[float, tuple[Place, ...]]]] = {
    "share of the peak, 16 bits": (0.8, (("gemm", "bf16", "peak_share"),)),
    "share of the peak, 8 bits": (0.6, (("gemm", "fp8", "peak_share"),)),
    "share of the memory's rate, loads of tiles": (
        0.9,
        (("gemm", "bf16", "load_memory_share"), ("gemm", "fp8", "load_memory_share")),
    ),
    "share of the peak, attention": (0.4, (("attention", "prefill", "peak_share"),)),
    "share of the memory's rate, elementwise": (
        0.7,
        (("elementwise", "elementwise", "memory_share"),),
    ),
    "share of the peak, experts": (
        0.6,
        (
            ("experts", "grouped_mm-bf16", "peak_share"),
            ("experts", "grouped_mm-fp8", "peak_share"),
        ),
    ),
}
"""Each constant: where the search starts, and the entries of the catalog that have it."""
_LEFT_OUT: Final = {"generation": "cluster", "model": "model", "data set": "dataset"}
_PULL: Final = 2e-3
_MOST: Final = 1.0


def rows_in(path: Path) -> list[Row]:
    """Return the rows of a table that ran on a torus."""
    rows = read_table(path).records()
    return [row for row in rows if training.is_on_torus(row)]


def with_constants(constants: Mapping[str, float]) -> Fitted:
    """Return the catalog's constants with others for TPUs."""
    contents: dict[KernelTable, Any] = {}
    for name, value in constants.items():
        for table, section, key in FITTED[name][1]:
            content = contents.setdefault(table, deepcopy(catalog.raw(table, SYSTEM)))
            content[section][key] = value
    tables = CONSTANTS.kernels
    for table, content in contents.items():
        tables = tables.changing(table, SYSTEM, content)
    return CONSTANTS._replace(kernels=tables)


def ratios(rows: Sequence[Row], constants: Mapping[str, float] | None = None) -> Floats:
    """Return predicted over measured steps, by given constants or the catalog's."""
    fitted = CONSTANTS if constants is None else with_constants(constants)
    return np.array(
        [
            float(training.estimate_of(row, fitted=fitted).time_s) / float(row[training.MEASURED])
            for row in rows
        ]
    )


def fitted_to(rows: Sequence[Row]) -> dict[str, float]:
    """Return the constants that suit rows best; those that no row speaks of stay at their start."""

    def lossy(trial: dict[str, float]) -> float:
        if max(trial.values()) > _MOST:
            return 1e9
        return loss(ratios(rows, trial))

    return descend(lossy, {name: start for name, (start, _) in FITTED.items()}, _PULL)


def folds(rows: Sequence[Row]) -> None:
    """Print the errors on rows left out of the fit."""
    for title, column in _LEFT_OUT.items():
        left: list[Floats] = []
        for value in sorted({row[column] for row in rows}):
            own = [row for row in rows if row[column] == value]
            rest = [row for row in rows if row[column] != value]
            left.append(ratios(own, fitted_to(rest)))
            print(f"  {value}: {len(own)} rows, {_words(left[-1])}", flush=True)
        print(f"a {title} left out: {_words(np.concatenate(left))}", flush=True)


def _words(found: Floats) -> str:
    median, p90 = errors_pct(found)
    return f"median {median:.1f} %, p90 {p90:.1f} %"


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the constants, write them and print the errors."""
    parser = parser_of(__doc__)
    parser.add_argument("table", type=Path, help="measured table of training (CSV)")
    parser.add_argument("--output", type=Path, default=CATALOG, help="folder like the catalog's")
    parser.add_argument("--folds", action="store_true", help="errors on rows left out instead")
    options = parser.parse_args(arguments)
    rows = rows_in(options.table)
    if options.folds:
        folds(rows)
        return
    constants = fitted_to(rows)
    found = ratios(rows, constants)
    median, p90 = errors_pct(found)
    for name, value in constants.items():
        for table, section, key in FITTED[name][1]:
            fit = (section, "fit")
            changes: dict[tuple[str, ...], Any] = {
                (section, key): value,
                (*fit, "rows"): len(rows),
                (*fit, "median_pct"): round(median, 1),
                (*fit, "p90_pct"): round(p90, 1),
            }
            file = f"{table}/{SYSTEM}.toml"
            update(CATALOG / file, changes, options.output / file)
    print(constants, _words(found))


if __name__ == "__main__":
    ended(main)

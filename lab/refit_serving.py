"""Fits what engines' hosts do to runs under load, by simulation.

    python -m lab.refit_serving serving.csv [--only ENGINE…] [--most ROWS] [--output FOLDER]

Each run is simulated from its first request to its last (`shardcost.validate.serving`). What is
fitted are the engine's own few constants, the same on every system and for every model: the host's
time of a step and of a sequence, of starting a kernel that no recorded graph has, the front end's
time, and what handing a request to a decode worker takes. The errors of mean TTFT and mean TPOT,
as logarithms, are nearly linear in the constants' logarithms, so each round solves a linear system
(Gauss and Newton), weighted so that far-off runs do not count more than others (iteratively
reweighted least squares), and pulled to where it began, for constants of which the runs say little.

What the fit is worth on runs that it has not seen is solved from the same system without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lab.catalog_files import CATALOG, fit_of, update
from lab.command import ended, parser_of, say
from lab.descent import in_seconds
from lab.parts import evenly
from shardcost.errors import ShardcostError
from shardcost.formats.tables import Row, Table, read_table
from shardcost.software import Software
from shardcost.validate import serving
from shardcost.validate.predictions import Floats

_HOST: Final = ("step_overhead_ms", "host_per_sequence_us", "eager_per_kernel_us")
_FRONT: Final = ("frontend_ms", "frontend_per_request_ms", "frontend_per_token_us")
FITTED: Final[Mapping[str, tuple[str, ...]]] = {
    "sglang": (*_HOST, "host_per_draft_us", *_FRONT, "handoff_ms"),
    "trtllm": (*_HOST, *_FRONT, "handoff_ms"),
    "trtllm_2025": (*_HOST, *_FRONT),
    "vllm": (*_HOST, *_FRONT),
    "vllm_2025": (*_HOST[:2], *_FRONT),
}
"""Which constants each engine has."""
_DATASETS: Final = ("aiconfigurator_silicon", "inferencex")
FIGURES: Final = ("ttft_mean_ms", "tpot_mean_ms")
SPLITS: Final = {"model": "a model", "cluster": "a GPU", "dataset": "a data set"}
_STEP: Final = 1.3
"""Factor by which a constant is changed to see what it does."""
_CAREFUL: Final = 0.05
"""Errors below this count by their square, above by their size."""
_BEYOND: Final = 0.5
"""Far beyond this they count less and less: no host's constant explains a run that is off by
factors (a first request that waits for compilation or connections)."""
_PULL: Final = 3.0
_MOST_FACTOR: Final = 1.2
"""Logarithm of the most that a round changes a constant by."""
_ROUNDS, _REWEIGHTED = 2, 30
_DIGITS: Final = 3


@dataclass(frozen=True)
class Linear:
    """Runs of one engine about its constants: errors, and how they change with each constant."""

    name: str
    runs: list[Row]
    """One row of the table for each, with its figures."""
    errors: NDArray[np.float64]
    """Logarithms of predicted over measured, by run and figure; NaN where not measured."""
    slopes: NDArray[np.float64]
    """By run, figure and constant, for a factor of e."""

    def change(self, kept: NDArray[np.bool_] | None = None) -> Floats:
        """Return the logarithms of the factors that suit runs best: all, or those `kept`."""
        errors, slopes = (self.errors, self.slopes) if kept is None else (
            self.errors[kept], self.slopes[kept]
        )  # fmt: skip
        error, slope = errors.reshape(-1), slopes.reshape(-1, slopes.shape[-1])
        known = np.isfinite(error) & np.isfinite(slope).all(axis=1)
        error, slope = error[known], slope[known]
        found: NDArray[Any] = np.zeros(slope.shape[1])
        for _ in range(_REWEIGHTED):
            left = np.abs(error + slope @ found)
            weight = 1 / np.maximum(left, _CAREFUL) / (1 + (left / _BEYOND) ** 2)
            matrix = (slope * weight[:, None]).T @ slope + _PULL * np.eye(len(found))
            found = np.linalg.solve(matrix, -(slope * weight[:, None]).T @ error)
        return np.asarray(np.clip(found, -_MOST_FACTOR, _MOST_FACTOR), dtype=float)

    def without(self, column: str) -> NDArray[np.float64]:
        """Return the errors of every run by constants that have not seen runs alike in a column."""
        cells = np.array([row[column] for row in self.runs])
        results = np.full_like(self.errors, np.nan)
        for cell in np.unique(cells):
            out = cells == cell
            if not out.all():
                results[out] = self.errors[out] + self.slopes[out] @ self.change(~out)
        return results

    def by_others(self) -> NDArray[np.float64]:
        """Return the errors of every run by the mean of the other engines' constants."""
        own = constants_of(self.name)
        others = [constants_of(each) for each in FITTED if each != self.name]
        change = [
            np.mean([np.log(each[key] / value) for each in others if key in each] or [0.0])
            for key, value in own.items()
        ]
        return np.asarray(self.errors + self.slopes @ np.array(change), dtype=float)


def runs_of(table: Table, most: int | None = None) -> dict[str, list[Row]]:
    """Return the runs to fit by engine, each with its measured figures by name.

    Args:
        table: Of serving, a figure a row.
        most: Runs of each engine and data set, evenly over the table; all if None.
    """
    runs: dict[tuple[str, ...], dict[str, str]] = {}
    for row in serving.rows_of(table):
        if row["dataset"] in _DATASETS:
            try:
                case = serving.case_of(row)
            except ShardcostError:
                continue
            runs.setdefault(case, dict(row))[row["figure"]] = row["measured"]
    by_engine: dict[str, list[Row]] = {}
    for run in runs.values():
        by_engine.setdefault(serving.software(run), []).append(run)
    if most is None:
        return by_engine
    return {name: _few(own, most) for name, own in by_engine.items()}


def _few(runs: Sequence[Row], most: int) -> list[Row]:
    sets: dict[str, list[Row]] = {}
    for run in runs:
        sets.setdefault(run["dataset"], []).append(run)
    return [run for own in sets.values() for run in evenly(own, most)]


def changed(given: Mapping[str, float], engine: Software) -> Software:
    """Return an engine with other constants, of the host or of the scheduler."""
    values: dict[str, Any] = dict(in_seconds(given))
    own = set(vars(engine.scheduler)) & set(values)
    scheduler = replace(engine.scheduler, **{name: values[name] for name in own})
    rest: dict[str, Any] = {name: value for name, value in values.items() if name not in own}
    return replace(engine, scheduler=scheduler, **rest)


def _errors_of(run: Row, given: Mapping[str, float]) -> list[float]:
    try:
        found = serving.answer(serving.point_of(run, change=partial(changed, given)))
    except ShardcostError:
        return [np.nan] * len(FIGURES)
    return [
        float(np.log(found[name] / float(run[name]))) if run.get(name) else np.nan
        for name in FIGURES
    ]


def linear(
    name: str, runs: list[Row], constants: Mapping[str, float], pool: ProcessPoolExecutor
) -> Linear:
    """Return the runs of an engine about some constants."""
    trials = [dict(constants)]
    trials += [{**constants, each: value * _STEP} for each, value in constants.items()]
    errors = []
    for trial in trials:
        found = pool.map(partial(_errors_of, given=trial), runs, chunksize=4)
        errors.append(np.array(list(found)))
    slopes = np.stack([each - errors[0] for each in errors[1:]], axis=-1) / np.log(_STEP)
    return Linear(name, runs, errors[0], slopes)


def constants_of(name: str) -> dict[str, float]:
    """Return the fitted constants of an engine of the catalog, in the units of their names."""
    engine = Software.named(name)
    found = {}
    for key in FITTED[name]:
        unit = {"us": 1e6, "ms": 1e3}[key[-2:]]
        field = f"{key[:-3]}_s"
        holder: Any = engine.scheduler if hasattr(engine.scheduler, field) else engine
        found[key] = float(getattr(holder, field)) * unit
    return found


def figures_pct(errors: Floats) -> tuple[float, float]:
    """Return the median and the p90 of errors that are logarithms of predicted over measured."""
    known = 100 * np.abs(np.expm1(errors[np.isfinite(errors)]))
    return (float(np.median(known)), float(np.percentile(known, 90))) if known.size else (0.0, 0.0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the engines named, or all; write the constants and print errors, left out first."""
    parser = parser_of(__doc__)
    parser.add_argument("table", type=Path, help="a table of serving")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="engines")
    parser.add_argument("--most", type=int, default=60, help="runs of an engine and data set")
    parser.add_argument("--output", type=Path, default=CATALOG, help="folder like the catalog's")
    options = parser.parse_args(arguments)
    runs = runs_of(read_table(options.table), options.most)
    with ProcessPoolExecutor(2) as pool:
        for name in options.only or FITTED:
            _refit(name, runs[name], pool, options.output)


def _refit(name: str, runs: list[Row], pool: ProcessPoolExecutor, folder: Path) -> None:
    constants = constants_of(name)
    about = linear(name, runs, constants, pool)
    for _ in range(_ROUNDS):
        factors = np.exp(about.change())
        tried = {key: value * factor for (key, value), factor in
                 zip(constants.items(), factors, strict=True)}  # fmt: skip
        tried = {key: float(f"{value:.{_DIGITS}g}") for key, value in tried.items()}
        new = linear(name, runs, tried, pool)
        if np.nanmean(np.abs(new.errors)) >= np.nanmean(np.abs(about.errors)):
            break
        constants, about = tried, new
        say(f"{name}: {constants}")
    for column, split in SPLITS.items():
        _show(f"{name}, {split} left out", about.without(column))
    _show(f"{name}, in sample", about.errors)
    datasets = ", ".join(sorted({run["dataset"] for run in runs}))
    source = f"fitted by shardcost to TTFT and TPOT of measured runs of {datasets}"
    _write(name, constants, fit_of(source, figures_pct(about.errors[:, 1]), len(runs)), folder)


def _show(label: str, errors: NDArray[np.float64]) -> None:
    parts = []
    for column, figure in enumerate(FIGURES):
        median, p90 = figures_pct(errors[:, column])
        parts.append(f"{figure} {median:.1f} / {p90:.1f} %")
    print(f"{label}: {', '.join(parts)}", flush=True)


def _write(name: str, constants: Mapping[str, float], fit: Mapping[str, Any], folder: Path) -> None:
    engine = Software.named(name)
    changes: dict[tuple[str, ...], Any] = {("fit", key): value for key, value in fit.items()}
    for key, value in constants.items():
        own = hasattr(engine.scheduler, f"{key[:-3]}_s")
        changes["scheduler" if own else "constants", key] = value
    file = f"{name}.toml"
    update(CATALOG / "software" / file, changes, folder / "software" / file)


if __name__ == "__main__":
    ended(main)

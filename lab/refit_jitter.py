"""Writes the constants of jitter anew: spread of nodes, scatter of steps, delays of all-reduces.

    python -m lab.refit_jitter jitter.csv jitter_steps.csv training.csv [--output FOLDER]

Tables are known by their kind, and each gives a section of ``tuner/jitter.toml``:

- ``jitter``: the tail of all-reduces; what is minimised is the relative error, robustly;
- ``jitter_steps``: the scatter of steps, the median over runs;
- ``training``: the spread of nodes, from series of runs that differ in the number of replicas
  alone, with as many sequences for each GPU: by how much the error of the prediction without it
  grows with sqrt(2 ln nodes), the median over series, of runs that hardly wait for communication.
  What networks lose with size and the constants of collectives do not know is still in it, so that
  it belongs after a refit of these.

Errors on what a fit did not see are printed. Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab.catalog_files import CATALOG, fit_of, update
from lab.command import ended, parser_of
from lab.parts import Mask, leave_out
from shardcost.calibrate.fit import fit_robustly
from shardcost.errors import ShardcostError
from shardcost.formats.tables import Row, Table, read_table
from shardcost.jitter import SIGMAS, slowest_of, tail_of_all_reduce
from shardcost.machine.constants import Jitter, catalog_jitter
from shardcost.validate import jitter, jitter_steps, training
from shardcost.validate.predictions import Floats
from shardcost.validate.validation import measurements

FOLDS: Final[Mapping[str, Mapping[str, str]]] = {
    "jitter": {"nodes": "a node count", "size_bytes": "a size", "asked": "an algorithm"},
    "jitter_steps": {"system": "a system", "gpus": "a GPU count"},
}
"""By kind, the columns whose values are left out, and what they are called."""
_DELAYS: Final = ("tail", "tail_index", "half_bytes")
_START: Final = np.log([0.1, 2.0, 2.0**24])
_OUTLIERS: Final = (0.3, 0.03)
_WIDEST: Final = 8
"""The largest count of a series of training runs is at least so many times the smallest."""
_SERIES: Final = (
    *("dataset", "model", "cluster", "network", "dtype", "framework", "version", "seq", "layers"),
    *("tp", "pp", "vp", "cp", "ep", "mbs", "zero_fsdp", "recompute"),
)
_MOST_WAITING: Final = 0.1
"""Runs that wait longer for communication, as predicted, tell of networks and not of nodes."""
_FILE: Final = Path("tuner") / "jitter.toml"


def fitted(table: Table, kept: Mask | None = None) -> Jitter:
    """Return the catalog's constants with those that a table's rows give, or some of them.

    They are fitted to 99th percentiles; others follow from the form of the distribution.
    """
    kind: Any = {"jitter": jitter, "jitter_steps": jitter_steps}[table.kind]
    measured = measurements(table, kind.MEASURED)[0]
    chosen = np.isfinite(measured) & _of_figure(table, kind.HEADLINE)
    if kept is not None:
        chosen &= kept
    if table.kind == "jitter_steps":
        scatter = float(np.median(measured[chosen] - 1)) / SIGMAS[99]
        return replace(catalog_jitter(), step_scatter=_short(scatter))
    size, nodes = (np.array(table.columns[name], dtype=float) for name in ("size_bytes", "nodes"))

    def residuals(logs: Floats) -> Floats:
        tail, index, half = np.exp(logs)
        predicted = tail_of_all_reduce(size[chosen], nodes[chosen], tail, index, half)
        errors: Floats = np.log(predicted / measured[chosen])
        return errors

    minimum = fit_robustly(
        _START,
        (np.log([1e-3, 0.5, 2.0**10]), np.log([10.0, 50.0, 2.0**35])),
        residuals,
        lambda logs: 0.02 * (logs - _START),
        outliers=_OUTLIERS,
        evaluations=200,
    )
    tail, index, half = (_short(value) for value in np.exp(minimum.at))
    return replace(catalog_jitter(), tail=tail, tail_index=index, half_bytes=half)


def _of_figure(table: Table, figure: str) -> Mask:
    return np.array([own == figure for own in table.columns["figure"]], dtype=bool)


def unseen(table: Table, parts: NDArray[Any]) -> Floats:
    """Return the prediction of every row by constants fitted without the rows of its part."""
    kind: Any = {"jitter": jitter, "jitter_steps": jitter_steps}[table.kind]

    def tried(out: Mask) -> Floats:
        values: Floats = kind.predictions(table, jitter=fitted(table, ~out)).values
        return values[out]

    return leave_out(parts, tried)


class Series(NamedTuple):
    """Training runs that differ in the number of replicas alone."""

    key: tuple[str, ...]
    gpus: Floats
    per_node: Floats
    residuals: Floats
    """Logarithms of measured over predicted, as if all nodes were equally fast."""

    @property
    def spread(self) -> float:
        """By how much the residual grows with the deviations of the slowest node."""
        return float(np.polyfit(slowest_of(self.gpus, self.per_node, 1.0), self.residuals, 1)[0])


def series_of(table: Table) -> list[Series]:
    """Return the series of a table of training runs that span many GPUs."""
    predicted = training.predictions(table).values
    measured = measurements(table, training.MEASURED)[0]
    gpus = np.array([float(row["gpus"]) for row in table.records()])
    per_node = np.array([_per_node(row) for row in table.records()])
    residuals = np.log(
        measured / predicted * slowest_of(gpus, per_node, catalog_jitter().node_spread)
    )
    members: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(table.records()):
        if np.isfinite(residuals[i]) and training.estimate_of(row).comm_share < _MOST_WAITING:
            members.setdefault(_key(row), []).append(i)
    known = [Series(key, gpus[own], per_node[own], residuals[own]) for key, own in members.items()]
    return [each for each in known if each.gpus.max() >= _WIDEST * each.gpus.min()]


def _per_node(row: Row) -> float:
    try:
        return float(training.machine(row).gpus_per_node)
    except ShardcostError:
        return np.nan


def _key(row: Row) -> tuple[str, ...]:
    share = float(row["gbs"]) / float(row["gpus"])
    return (*(row.get(name, "") for name in _SERIES), f"{share:.4g}")


def spread_of(series: Sequence[Series]) -> float:
    """Return the spread of nodes that the middle one of some series shows."""
    return _short(max(1e-4, float(np.median([each.spread for each in series]))))


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def _errors(predicted: Floats, measured: Floats) -> tuple[float, float]:
    sizes = 100 * np.abs(predicted / measured - 1)
    return float(np.nanmedian(sizes)), float(np.nanquantile(sizes, 0.9))


def _of_percentiles(table: Table) -> dict[tuple[str, ...], Any]:
    """Return the section of a table of percentiles, and print its errors."""
    kind: Any = {"jitter": jitter, "jitter_steps": jitter_steps}[table.kind]
    section, names = {
        "jitter": ("all_reduce", _DELAYS),
        "jitter_steps": ("steps", ("step_scatter",)),
    }[table.kind]
    own, measured = fitted(table), measurements(table, kind.MEASURED)[0]
    for column, title in FOLDS[table.kind].items():
        values = unseen(table, np.array(table.columns[column]))
        for figure in kind.PERCENTS:
            chosen = _of_figure(table, figure)
            one, other = values[chosen], measured[chosen]
            words = "median {:.1f} %, p90 {:.1f} %".format(*_errors(one, other))
            near = f"within 3 points {100 * np.mean(100 * np.abs(one - other) <= 3):.0f} %"
            near += f", within 20 % {100 * np.mean(np.abs(one / other - 1) <= 0.2):.0f} %"
            print(f"{figure}, {title} left out: {words}, {near}")
    chosen = _of_figure(table, kind.HEADLINE)
    seen, measured = kind.predictions(table, jitter=own).values[chosen], measured[chosen]
    names_of = ", ".join(sorted(set(table.columns.get("dataset", ()))))
    source = f"fitted by shardcost to measured rows of {names_of} ({table.kind})"
    fit = fit_of(source, _errors(seen, measured), len(measured))
    changes: dict[tuple[str, ...], Any] = {(section, name): getattr(own, name) for name in names}
    print(section, {name: getattr(own, name) for name in names}, fit)
    return changes | {(section, "fit", name): value for name, value in fit.items()}


def _of_nodes(table: Table) -> dict[tuple[str, ...], Any]:
    """Return the section of the spread of nodes, and print how it varies."""
    series = series_of(table)
    spread = spread_of(series)
    for each in series:
        ends = f"{each.gpus.min():.0f} to {each.gpus.max():.0f} GPUs"
        print(f"    {each.spread:+.4f}  {ends}  {' '.join(filter(None, each.key))}")
    datasets = sorted({each.key[0] for each in series})
    for name in datasets:
        rest = [each for each in series if each.key[0] != name]
        print(f"nodes, {name} left out: {spread_of(rest) if rest else float('nan')}")
    errors = [
        100 * np.abs(np.expm1(own - own.mean()))
        for each in series
        for own in [each.residuals - np.log(slowest_of(each.gpus, each.per_node, spread))]
    ]
    sizes = np.concatenate(errors)
    source = f"fitted by shardcost to measured rows of {', '.join(datasets)} (training, by GPUs)"
    pair = float(np.median(sizes)), float(np.quantile(sizes, 0.9))
    fit = fit_of(source, pair, len(sizes))
    print("nodes", spread, fit)
    changes: dict[tuple[str, ...], Any] = {("nodes", "node_spread"): spread}
    return changes | {("nodes", "fit", name): value for name, value in fit.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit what the tables are of, and write it into the catalog of this installation."""
    parser = parser_of(__doc__)
    parser.add_argument("tables", nargs="+", type=Path, help="jitter, jitter_steps, training (CSV)")
    parser.add_argument("--output", type=Path, default=CATALOG, help="folder like the catalog's")
    given = parser.parse_args(arguments)
    changes: dict[tuple[str, ...], Any] = {}
    for path in given.tables:
        table = read_table(path)
        changes |= _of_nodes(table) if table.kind == "training" else _of_percentiles(table)
    update(CATALOG / _FILE, changes, given.output / _FILE)


if __name__ == "__main__":
    ended(main)

"""Writes the constants of expert kernels anew, from measured tables.

    python -m lab.refit_experts experts.csv grouped_gemm.csv [--output FOLDER] [--left-out]

Constants are fitted level by level, each from where the one above ended and with a pull towards it:
a family of kernels over all devices and number formats; in one format, over all devices
(``tuner/experts_pooled.toml``); on one device; a kernel of the family on that device
(``experts/<device>.toml``). So a kernel with five curves moves only as far from its family as the
curves demand. What is minimised is the relative error (the
logarithm of predicted over measured), robustly.

``--left-out`` shows the error on what a fit did not see: a GPU, a version of a library, a fifth of
the models, a range of expert-parallel degrees, a kernel.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab import catalog_files
from lab.command import ended, parser_of
from lab.parts import Mask, leave_out
from shardcost import catalog
from shardcost.calibrate.fit import fit_robustly
from shardcost.catalog import tuner_table
from shardcost.cluster import Cluster
from shardcost.errors import BadValueError
from shardcost.files import write_whole
from shardcost.formats.tables import Table, read_table
from shardcost.kernels.experts import GROUPED, kernel_gemm_time_s, kernel_of, kernel_time_s
from shardcost.machine.experts import chosen, family_of
from shardcost.machine.kernels import Fit, Section, nearest_systems
from shardcost.validate import experts, grouped_gemm
from shardcost.validate.predictions import Floats
from shardcost.validate.validation import measurements

Constants = Mapping[str, Any]
Sections = Mapping[str, Any]

_HEAD: Final = (
    "Constants fitted to measurements by `python -m lab.refit_experts`: not by hand.",
    "Shares of the datasheet, clock cycles, bytes per clock cycle and SM.",
)
_OUTLIERS: Final = (1.0, 0.1)
"""Relative error beyond which a row counts by its size and no longer by its square."""
_POOLED_PULL, _PULL = 0.1, 0.6
"""Weight of a constant's distance (in logarithms) from where it started."""
_STIFF: Final = {"tile_start_cycles": 2.0}
"""Constants that hold on more strongly, since they hang together with others."""
_ROUNDS: Final = 40
_STEP: Final = 1e-4
_MODEL_PARTS: Final = 5
_EP_BANDS: Final = (1, 8)
SPLITS: Final = {
    "gpu": "a system",
    "version": "a version",
    "model": "models",
    "ep": "EP degrees",
    "kernel": "a kernel",
}
"""Labels of rows, with what is left out by each."""
_LEAST: Final = 1e-4


class Group(NamedTuple):
    """Measured rows of one kernel on one device in one number format."""

    gpu: str
    kernel: str
    dtype: str
    family: str
    library: str
    sizes: Floats
    """As `experts.cases` or `grouped_gemm.cases` has them, a line for each row."""
    time_s: Floats
    places: NDArray[np.intp]
    """Where in the table they stand."""
    labels: Mapping[str, NDArray[Any]]
    """What rows may be left out by."""

    def where(self, kept: Mask) -> Group:
        """Return some of the rows."""
        labels = {name: values[kept] for name, values in self.labels.items()}
        return self._replace(
            sizes=self.sizes[kept],
            time_s=self.time_s[kept],
            places=self.places[kept],
            labels=labels,
        )

    def predicted_s(self, constants: Constants) -> Floats:
        """Return the model's times under given constants, which may be columns of several."""
        kernel = kernel_of(Cluster.named(self.gpu).device, self.dtype, constants)
        if self.family == GROUPED:
            rows, n, k, groups, largest_group = self.sizes.T
            times = kernel_gemm_time_s(kernel, rows, n, k, groups, largest_group)
        else:
            times = kernel_time_s(kernel, *self.sizes.T)
        result: Floats = times
        return result

    def log_error(self, constants: Constants) -> Floats:
        """Return the logarithm of predicted over measured."""
        result: Floats = np.log(self.predicted_s(constants) / self.time_s)
        return result


class Fitted(NamedTuple):
    """All that a fit of some groups yields, in the form of the catalog's files."""

    pooled: dict[str, Any]
    systems: dict[str, dict[str, Any]]

    def section_for(self, rows: Group) -> Section:
        """Return the constants that hold for the kernel of some rows, as the catalog chooses."""
        device = Cluster.named(rows.gpu).device
        near = nearest_systems(device, self.systems)
        kind = (rows.kernel, rows.dtype, rows.family)
        system, name, content = chosen(device, *kind, near, self.systems.__getitem__, self.pooled)
        own = system == rows.gpu and content is not self.pooled
        constants = dict(content[name])
        fit = Fit(**constants.pop("fit"))
        return Section(system, name, constants, fit, None if own else system)

    def error_pct(self, rows: Group) -> Floats:
        """Return the signed error on rows, in percent, by the constants that hold for them."""
        return 100 * np.expm1(rows.log_error(self.section_for(rows).constants))


def measured_groups(table: Table) -> list[Group]:
    """Return the usable rows of a table, by device, kernel and number format."""
    if table.kind == "experts":
        known: Any = experts.cases(table)
    elif table.kind == "grouped_gemm":
        known = grouped_gemm.cases(table)
    else:
        raise BadValueError(str(table.path), table.kind, "a table of experts or grouped_gemm")
    times, _ = measurements(table, experts.MEASURED)
    blank = [""] * table.rows
    columns = {
        name: np.array(table.columns.get(name, blank)) for name in ("dataset", "version", "model")
    }
    groups = []
    for case, places in known.rows.items():
        kept = np.array([i for i in places if times[i] > 0], dtype=np.intp)
        if not kept.size:
            continue
        sizes = known.sizes[kept]
        labels = {name: values[kept] for name, values in columns.items()}
        if table.kind == "experts":
            gpu, kernel, dtype, library = case
            family = family_of(kernel, dtype, library)
            labels["ep"] = np.searchsorted(_EP_BANDS, sizes[:, -1])
        else:
            (gpu, dtype), kernel, family, library = case, GROUPED, GROUPED, "torch"
            labels["ep"] = np.zeros(len(kept))
        labels["gpu"], labels["kernel"] = np.full(len(kept), gpu), np.full(len(kept), kernel)
        groups.append(
            Group(gpu, kernel, dtype, family, library, sizes, 1e-6 * times[kept], kept, labels)
        )
    return groups


def fitted_constants(groups: Sequence[Group], start: Constants, pull: float) -> dict[str, float]:
    """Return the constants that fit some groups of rows best, near where they started."""
    table = tuner_table("experts")
    names = list(table["start"])
    origin = np.log([start[name] for name in names])
    weights = pull * np.array([_STIFF.get(name, 1.0) for name in names])
    least = [table["least"].get(name, _LEAST * table["start"][name]) for name in names]
    bounds = np.log(least), np.log([table["most"].get(name, np.inf) for name in names])

    def residuals(logs: Floats) -> Floats:
        constants = {name: np.exp(logs[..., i, None]) for i, name in enumerate(names)}
        return np.concatenate([each.log_error(constants) for each in groups], axis=-1)

    def jacobian(logs: Floats) -> Floats:
        steps = np.where(logs + _STEP < bounds[1], _STEP, -_STEP)
        moved = residuals(np.vstack([logs, logs + np.diag(steps)]))
        slopes: Floats = ((moved[1:] - moved[0]) / steps[:, None]).T
        return np.vstack([slopes, np.diag(weights)])

    end = fit_robustly(
        origin,
        bounds,
        residuals,
        lambda logs: weights * (logs - origin),
        outliers=_OUTLIERS,
        evaluations=_ROUNDS,
        jacobian=jacobian,
    )
    return {name: float(f"{np.exp(value):.4g}") for name, value in zip(names, end.at, strict=True)}


_MEMO: Final[dict[Any, dict[str, float]]] = {}
"""Fits by their rows and start: folds share most of them."""


def _fitted_once(groups: Sequence[Group], start: Constants, pull: float) -> dict[str, float]:
    rows = tuple((each.gpu, each.kernel, each.dtype, each.time_s.tobytes()) for each in groups)
    key = (rows, tuple(start[name] for name in tuner_table("experts")["start"]), pull)
    if key not in _MEMO:
        _MEMO[key] = fitted_constants(groups, start, pull)
    return _MEMO[key]


def fitted(groups: Iterable[Group]) -> Fitted:
    """Return the constants of families over all devices, of families on one, and of kernels."""
    table = tuner_table("experts")
    families: dict[str, list[Group]] = {}
    by_format: dict[tuple[str, str], list[Group]] = {}
    for each in groups:
        if each.time_s.size:
            families.setdefault(each.family, []).append(each)
            by_format.setdefault((each.family, each.dtype), []).append(each)

    def alike(members: list[Group]) -> list[Group]:
        return [each for each in members if each.kernel not in table["not_pooled"]] or members

    starts = {
        family: _fitted_once(alike(members), table["start"], _POOLED_PULL)
        for family, members in families.items()
    }
    result = Fitted({}, {})
    for (family, dtype), members in sorted(by_format.items()):
        pooled = _fitted_once(alike(members), starts[family], _POOLED_PULL)
        result.pooled[f"{family}-{dtype}"] = _section(pooled, alike(members))
        for gpu in sorted({each.gpu for each in members}):
            here = [each for each in members if each.gpu == gpu]
            own = _fitted_once(here, pooled, _PULL)
            sections = result.systems.setdefault(gpu, {})
            sections[f"{family}-{dtype}"] = _section(own, here)
            for kernel in sorted({each.kernel for each in here}):
                ours = [each for each in here if each.kernel == kernel]
                constants = own if len(ours) == len(here) else _fitted_once(ours, own, _PULL)
                sections[f"{kernel}-{dtype}"] = _section(constants, ours)
    return result


def _section(constants: Constants, groups: Sequence[Group]) -> dict[str, Any]:
    errors = np.concatenate([np.abs(np.expm1(each.log_error(constants))) for each in groups])
    datasets = sorted({str(name) for each in groups for name in each.labels["dataset"]})
    fit = Fit(
        source="fitted by shardcost to measured rows of " + ", ".join(datasets),
        rows=len(errors),
        median_pct=round(100 * float(np.median(errors)), 2),
        p90_pct=round(100 * float(np.quantile(errors, 0.9)), 2),
        measured_with=", ".join(sorted({each.library for each in groups})),
    )
    return {**constants, "fit": fit._asdict()}


def left_out(
    groups: Sequence[Group],
    label: str,
    seen: Callable[[Group, Section], None] | None = None,
) -> Floats:
    """Return the error on every row by a fit without the rows that share its label, in percent.

    Args:
        groups: What was measured.
        label: What is left out: a key of `SPLITS`.
        seen: Called with rows that were left out and the constants that they are predicted by.
    """
    values = np.concatenate([each.labels[label] for each in groups])
    ends = np.cumsum([len(each.time_s) for each in groups])[:-1]

    def tried(out: Mask) -> Floats:
        masks = np.split(out, ends)
        rest = fitted(each.where(~mask) for each, mask in zip(groups, masks, strict=True))
        tested = [each.where(mask) for each, mask in zip(groups, masks, strict=True) if mask.any()]
        for rows in tested:
            if seen is not None:
                seen(rows, rest.section_for(rows))
        return np.concatenate([rest.error_pct(rows) for rows in tested])

    return leave_out(values, tried)


def in_parts(groups: Sequence[Group]) -> list[Group]:
    """Return groups with models in fifths: every model is left out with four others."""
    models = sorted({name for each in groups for name in each.labels["model"]})
    parts = {name: i % _MODEL_PARTS for i, name in enumerate(models)}
    return [
        each._replace(
            labels={**each.labels, "model": np.array([parts[n] for n in each.labels["model"]])}
        )
        for each in groups
    ]


def _show(name: str, errors_pct: Floats) -> None:
    known = np.abs(errors_pct[np.isfinite(errors_pct)])
    if known.size:
        median, p90 = np.quantile(known, [0.5, 0.9])
        print(f"{name:<44} {known.size:>5} rows, median {median:6.2f} %, p90 {p90:6.2f} %")


def _show_left_out(groups: Sequence[Group]) -> None:
    narrow = np.concatenate([np.full(len(each.time_s), each.dtype not in _WIDE) for each in groups])
    for label in SPLITS:
        if len({str(value) for each in groups for value in each.labels[label]}) < 2:
            continue
        errors_pct = left_out(in_parts(groups), label)
        _show(f"{label} left out, bf16 and fp8", errors_pct[~narrow])
        _show(f"{label} left out, 4-bit weights", errors_pct[narrow])
        if label == "gpu":
            gpus = np.concatenate([each.labels["gpu"] for each in groups])
            for gpu in sorted(set(gpus)):
                _show(f"  {gpu}, bf16 and fp8", errors_pct[(gpus == gpu) & ~narrow])
                _show(f"  {gpu}, 4-bit weights", errors_pct[(gpus == gpu) & narrow])


_WIDE: Final = frozenset({"bf16", "fp8", "fp8_block"})


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit everything that tables cover, and write it into the catalog of this installation."""
    parser = parser_of(__doc__)
    parser.add_argument("tables", nargs="+", type=Path, help="measured tables (CSV)")
    parser.add_argument("--output", type=Path, default=catalog_files.CATALOG, help="a catalog")
    parser.add_argument("--left-out", action="store_true", help="show errors on rows left out")
    given = parser.parse_args(arguments)
    groups = [each for path in given.tables for each in measured_groups(read_table(path))]
    if not groups:
        raise BadValueError("tables", [str(path) for path in given.tables], "tables with rows")
    result = fitted(groups)
    kept = {name for name, _ in catalog.contents("experts")} - set(result.systems)
    for name in sorted(kept):
        print(f"{name}: no rows, kept as it is")
    for system, sections in sorted(result.systems.items()):
        text = catalog_files.as_toml(_HEAD, sections)
        write_whole(given.output / "experts" / f"{system}.toml", text)
    text = catalog_files.as_toml(_HEAD, result.pooled)
    write_whole(given.output / "tuner" / "experts_pooled.toml", text)
    for name, section in result.pooled.items():
        fit = section["fit"]
        print(
            f"{name:<44} {fit['rows']:>5} rows, median {fit['median_pct']:6.2f} %, "
            f"p90 {fit['p90_pct']:6.2f} %, over all devices"
        )
    for gpu in sorted(result.systems):
        errors = [result.error_pct(each) for each in groups if each.gpu == gpu]
        _show(gpu, np.concatenate(errors))
    if given.left_out:
        for of in (lambda each: each.family != GROUPED, lambda each: each.family == GROUPED):
            some: Callable[[Group], bool] = of
            _show_left_out([each for each in groups if some(each)])


if __name__ == "__main__":
    ended(main)

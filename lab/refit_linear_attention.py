"""Writes the constants of linear attention and state spaces anew, from measured tables.

    python -m lab.refit_linear_attention linear_attention.csv [--output FOLDER] [--left-out]

Constants are fitted level by level, each from where the one above ended and with a pull towards it:
a family of kernels over all devices and rules of the state; with one rule; a kernel over all
devices (``tuner/linear_attention_pooled.toml``); the kernel, and its family, on one device
(``linear_attention/<device>.toml``). What is minimised is the relative error (the logarithm of
predicted over measured), robustly.

``--left-out`` shows the error on what a fit did not see: a GPU, a library on a GPU, a version of a
library, a fifth of the shapes, a kernel.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from lab import catalog_files
from lab.command import ended, parser_of
from lab.parts import Mask, leave_out
from shardcost import catalog
from shardcost.calibrate.fit import fit_robustly
from shardcost.catalog import tuner_table
from shardcost.cluster import Cluster, Device
from shardcost.errors import BadValueError
from shardcost.files import write_whole
from shardcost.formats.tables import Table, read_table
from shardcost.kernels.linear_attention import Sizes, kernel_of, kernel_time_s, work_of
from shardcost.machine.kernels import Fit, Section, nearest_systems
from shardcost.machine.linear_attention import (
    KernelKind,
    cache_of,
    chosen,
    kind_of,
    section_names,
    start_of,
)
from shardcost.validate import linear_attention
from shardcost.validate.linear_attention import LinearCase
from shardcost.validate.predictions import Floats
from shardcost.validate.validation import measurements

Constants = Mapping[str, Any]

_HEAD: Final = (
    "Constants fitted to measurements by `python -m lab.refit_linear_attention`: not by hand.",
    "Shares of the datasheet, clock cycles, bytes or FLOPs per clock cycle and SM.",
)
_OUTLIERS: Final = (1.0, 0.1)
"""Relative error beyond which a row counts by its size and no longer by its square."""
_POOLED_PULL, _CLASS_PULL, _PULL = 0.1, 0.3, 0.3
"""Weight of a constant's distance (in logarithms) from where it started."""
_STIFF: Final = {"memory_share": 5.0, "cache_share": 2.0}
"""Constants that hold on more strongly: what else slows a kernel shall not pass for the memory."""
_ROUNDS: Final = 40
_STEP: Final = 1e-4
_SHAPE_PARTS: Final = 5
SPLITS: Final = {
    "gpu": "a system",
    "engine": "a library on a system",
    "version": "a version",
    "shape": "shapes",
    "kernel": "a kernel",
}
"""Labels of rows, with what is left out by each."""
_LEAST: Final = 1e-4


class Group(NamedTuple):
    """Measured rows of one kernel, part and phase on one device."""

    case: LinearCase
    kind: KernelKind
    sizes: Floats
    """As `linear_attention.cases` has them, a line for each row."""
    time_s: Floats
    places: NDArray[np.intp]
    """Where in the table they stand."""
    labels: Mapping[str, NDArray[Any]]
    """What rows may be left out by."""

    @property
    def of_part(self) -> tuple[str, str]:
        """Part and phase, which constants are of."""
        return self.case.part, self.case.phase

    def where(self, kept: Mask) -> Group:
        """Return some of the rows."""
        labels = {name: values[kept] for name, values in self.labels.items()}
        return self._replace(
            sizes=self.sizes[kept],
            time_s=self.time_s[kept],
            places=self.places[kept],
            labels=labels,
        )

    def names(self) -> tuple[str, str, str]:
        """Return the sections that may hold: the kernel's, its family's with the rule, of any."""
        return section_names(self.kind, self.case.op, *self.of_part)

    @property
    def device(self) -> Device:
        """The device."""
        return Cluster.named(self.case.gpu).device

    def log_error(self, constants: Constants) -> Floats:
        """Return the logarithm of predicted over measured; constants may be columns of several."""
        kernel = kernel_of(self.device, *self.of_part, constants, self.kind)
        work = work_of(kernel, self.case.op, *self.of_part, Sizes(*self.sizes.T))
        result: Floats = np.log(kernel_time_s(kernel, work) / self.time_s)
        return result


class Fitted(NamedTuple):
    """All that a fit of some groups yields, in the form of the catalog's files."""

    pooled: dict[str, Any]
    systems: dict[str, dict[str, Any]]

    def section_for(self, rows: Group) -> Section | None:
        """Return the constants that hold for some rows, as the catalog chooses; None if none do."""
        device = rows.device
        near = nearest_systems(device, self.systems)
        of = (rows.kind, rows.case.op, *rows.of_part)
        try:
            system, name, content = chosen(device, *of, near, self.systems.__getitem__, self.pooled)
        except BadValueError:
            return None
        own = system == rows.case.gpu and content is not self.pooled
        constants = dict(content[name])
        fit = Fit(**constants.pop("fit"))
        return Section(system, name, constants, fit, None if own else system)

    def error_pct(self, rows: Group) -> Floats:
        """Return the signed error on rows, in percent, by the constants that hold for them.

        Where nothing of the part and phase is left to hold, by the figures that a fit starts from.
        """
        section = self.section_for(rows)
        constants = start_of(*rows.of_part) if section is None else section.constants
        return 100 * np.expm1(rows.log_error(constants))


def measured_groups(table: Table) -> list[Group]:
    """Return the usable rows of a table, by device, kernel, part and phase."""
    if table.kind != "linear_attention":
        raise BadValueError(str(table.path), table.kind, "a table of linear_attention")
    known = linear_attention.cases(table)
    times, _ = measurements(table, linear_attention.MEASURED)
    dataset = np.array(table.columns.get("dataset", [""] * table.rows))
    groups = []
    for case, places in known.rows.items():
        kept = np.array([i for i in places if times[i] > 0], dtype=np.intp)
        if not kept.size:
            continue
        sizes = known.sizes[kept]
        every = np.ones(len(kept), dtype=int)
        labels = {
            "dataset": dataset[kept],
            "gpu": np.array([case.gpu])[every - 1],
            "engine": np.array([f"{case.gpu} {case.library}"])[every - 1],
            "version": np.array([f"{case.library} {case.version}"])[every - 1],
            "kernel": np.array([f"{case.kernel} {case.phase}"])[every - 1],
            "shape": _shape_parts(sizes),
        }
        kind = kind_of(case.kernel, case.part, case.library, case.version)
        groups.append(Group(case, kind, sizes, 1e-6 * times[kept], kept, labels))
    return groups


def _shape_parts(sizes: Floats) -> NDArray[Any]:
    """Return fifths of the layers' shapes: the same heads are always in the same one."""
    keys = (b"x".join(b"%d" % int(size) for size in row) for row in sizes[:, 2:7])
    return np.array([str(crc32(key) % _SHAPE_PARTS) for key in keys])


def fitted_constants(groups: Sequence[Group], start: Constants, pull: float) -> dict[str, float]:
    """Return the constants that fit some groups of one part and phase best, near their start."""
    table = tuner_table("linear_attention")
    names = list(start)
    origin = np.log([start[name] for name in names])
    weights = pull * np.array([_STIFF.get(name, 1.0) for name in names])
    first = start_of(*groups[0].of_part)
    least = [table["least"].get(name, _LEAST * first[name]) for name in names]
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
    rows = tuple((each.case, each.time_s.tobytes()) for each in groups)
    key = (rows, tuple(start.items()), pull)
    if key not in _MEMO:
        _MEMO[key] = fitted_constants(groups, start, pull)
    return _MEMO[key]


def fitted(groups: Iterable[Group]) -> Fitted:
    """Return the constants of families over all devices, of kernels, and of both on one."""
    kept = [each for each in groups if each.time_s.size]
    result = Fitted({}, {})
    starts: dict[str, Constants] = {}
    # From the widest level, a family with any rule, to the narrowest, a kernel.
    for level in (2, 1, 0):
        for name, members in _by(kept, _of_level(level)).items():
            above = starts[members[0].names()[level + 1]] if level < 2 else None
            start = start_of(*members[0].of_part) if above is None else above
            starts[name] = _fitted_once(members, start, _POOLED_PULL)
            result.pooled[name] = _section(starts[name], members)
    for of, alike in _by(kept, lambda each: cache_of(each.device)).items():
        for level in (2, 1, 0):
            for name, members in _by(alike, _of_level(level)).items():
                starts[f"{name}-{of}"] = _fitted_once(members, starts[name], _CLASS_PULL)
                result.pooled[f"{name}-{of}"] = _section(starts[f"{name}-{of}"], members)
    for gpu, here in _by(kept, lambda each: each.case.gpu).items():
        sections = result.systems.setdefault(gpu, {})
        for level in (2, 1, 0):
            for name, members in _by(here, _of_level(level)).items():
                start = starts[f"{name}-{cache_of(members[0].device)}"]
                sections[name] = _section(_fitted_once(members, start, _PULL), members)
    return result


def _of_level(level: int) -> Callable[[Group], str]:
    return lambda each: each.names()[level]


def _by(groups: Iterable[Group], key: Callable[[Group], str]) -> dict[str, list[Group]]:
    found: dict[str, list[Group]] = {}
    for each in groups:
        found.setdefault(key(each), []).append(each)
    return dict(sorted(found.items()))


def _section(constants: Constants, groups: Sequence[Group]) -> dict[str, Any]:
    errors = np.concatenate([np.abs(np.expm1(each.log_error(constants))) for each in groups])
    datasets = sorted({str(name) for each in groups for name in each.labels["dataset"]})
    fit = Fit(
        source="fitted by shardcost to measured rows of " + ", ".join(datasets),
        rows=len(errors),
        median_pct=round(100 * float(np.median(errors)), 2),
        p90_pct=round(100 * float(np.quantile(errors, 0.9)), 2),
        measured_with=", ".join(sorted({each.case.library for each in groups})),
    )
    return {**constants, "fit": fit._asdict()}


def left_out(
    groups: Sequence[Group],
    label: str,
    seen: Callable[[Group, Section | None], None] | None = None,
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


def _show(name: str, errors_pct: Floats) -> None:
    known = np.abs(errors_pct[np.isfinite(errors_pct)])
    if known.size:
        median, p90 = np.quantile(known, [0.5, 0.9])
        print(f"{name:<60} {known.size:>5} rows, median {median:6.2f} %, p90 {p90:6.2f} %")


def _show_left_out(groups: Sequence[Group]) -> None:
    parts = np.concatenate([np.full(len(each.time_s), " ".join(each.of_part)) for each in groups])
    for label, what in SPLITS.items():
        values = np.concatenate([each.labels[label] for each in groups])
        if len(set(values.tolist())) < 2:
            continue
        errors_pct = left_out(groups, label)
        _show(f"{what} left out", errors_pct)
        for by in (parts, values) if label != "shape" else ():
            for name in sorted(set(by.tolist())):
                _show(f"  {name}", errors_pct[by == name])


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
    kept = {name for name, _ in catalog.contents("linear_attention")} - set(result.systems)
    for name in sorted(kept):
        print(f"{name}: no rows, kept as it is")
    for system, sections in sorted(result.systems.items()):
        text = catalog_files.as_toml(_HEAD, sections)
        write_whole(given.output / "linear_attention" / f"{system}.toml", text)
    text = catalog_files.as_toml(_HEAD, result.pooled)
    write_whole(given.output / "tuner" / "linear_attention_pooled.toml", text)
    for name, section in result.pooled.items():
        fit = section["fit"]
        print(
            f"{name:<76} {fit['rows']:>5} rows, median {fit['median_pct']:6.2f} %, "
            f"p90 {fit['p90_pct']:6.2f} %, over all devices"
        )
    for of in (lambda each: each.case.gpu, lambda each: " ".join(each.of_part), lambda _: "all"):
        key: Callable[[Group], str] = of
        for name, members in _by(groups, key).items():
            _show(name, np.concatenate([result.error_pct(each) for each in members]))
    if given.left_out:
        _show_left_out(groups)


if __name__ == "__main__":
    ended(main)

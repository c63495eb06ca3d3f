"""Writes the constants of GEMMs anew, from measured tables.

    python -m lab.refit_gemm gemm.csv overlap.csv sustained.csv [--output FOLDER] [--left-out]

Every device and number format of a table of GEMMs becomes a section of the device's file in the
catalog's table ``gemm``; a table of overlapped GEMMs gives its device the section ``sharing``, one
of GEMMs under a power limit the section ``sustained``.
Sections that no table covers stay as they are. What is minimised is the relative error (the
logarithm of predicted over measured), robustly; ``catalog/tuner/gemm.toml`` says where the
search starts, and a weak pull towards it settles what the rows do not determine.

``--left-out`` shows as well how the error grows on a fifth of the weight shapes (n, k), and on
values of m, that a fit did not see.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab import catalog_files
from lab.command import ended, parser_of
from lab.parts import Mask, leave_out, shape_parts
from shardcost import catalog
from shardcost.calibrate.fit import fit_robustly
from shardcost.catalog import tuner_table
from shardcost.cluster import Cluster
from shardcost.errors import BadValueError
from shardcost.files import write_whole
from shardcost.formats.tables import Table, number, read_table
from shardcost.kernels.gemm import (
    conversion_s,
    copy_rate,
    gemm_time_s,
    kernel_of,
    kernel_time_s,
)
from shardcost.machine import CATALOG
from shardcost.machine.kernels import Fit, gemm_sections, kernels_of
from shardcost.validate import gemm, overlap, sustained
from shardcost.validate.gemm import GemmCase, measured_with
from shardcost.validate.predictions import Cases
from shardcost.validate.sustained import SustainedCase
from shardcost.validate.validation import measurements

Floats = NDArray[np.float64]
Constants = Mapping[str, Any]

FOLDER: Final = catalog_files.CATALOG / "gemm"
_HEAD: Final = (
    "Constants fitted to measurements by `python -m lab.refit_gemm`: not by hand.",
    "Shares of the datasheet; tiles are rows, columns, most splits of k.",
)
_OUTLIERS: Final = (1.0, 0.05)
"""Relative error beyond which a row counts by its size and no longer by its square: first no row,
so that a search far from its end is not content with half of them, then few."""
_PULL: Final = 0.3
"""Weight of a constant's distance (in logarithms) from where it started."""
_ROUNDS: Final = 60
_OF_16_BITS: Final = ("launch_us", "tile_start_us")
"""Constants of GEMMs of few rows that the conversion of their input hides."""
_COPY: Final = "copy_gbps_alone"
"""Column with the rate of the copying kernel by itself, where a table has one."""


Key = tuple[str, str]
"""A system and a section of its file."""


class Fitted(NamedTuple):
    """A section: its constants, and what they rest on."""

    constants: Constants
    fit: Fit


class Gemms(NamedTuple):
    """Measured GEMMs of one device and number format."""

    case: GemmCase
    shapes: Floats
    """Rows m, n, k; and how many multiprocessors were taken, where some were."""
    time_s: Floats
    datasets: frozenset[str]
    places: NDArray[np.intp]
    """Where in the table they stand."""

    @property
    def section(self) -> str:
        """The section that these rows determine."""
        of_format = gemm_sections(self.case.dtype)[0]
        return "_".join(filter(None, (self.case.framework, of_format)))

    @property
    def start(self) -> dict[str, Any]:
        """Where their fit starts."""
        known = tuner_table("gemm")
        return dict(known[next(name for name in gemm_sections(self.case.dtype) if name in known)])

    @property
    def converted(self) -> bool:
        """Whether the rows contain the conversion of the input to fewer bits."""
        return self.case.converted

    def where(self, keep: NDArray[np.bool_]) -> Gemms:
        """Return some of the rows."""
        return self._replace(
            shapes=self.shapes[:, keep], time_s=self.time_s[keep], places=self.places[keep]
        )

    def predicted_s(self, constants: Constants) -> Floats:
        """Return the model's times under given constants."""
        device, dtype = Cluster.named(self.case.gpu).device, self.case.dtype
        kernel = kernel_of(device, dtype, constants, tuner_table("gemm")["sharing"])
        m, _, k = self.shapes
        result: Floats = kernel_time_s(kernel, *self.shapes)
        return np.asarray(result + conversion_s(device, constants, m, k))

    def error_pct(self, constants: Constants) -> Floats:
        """Return the signed error of each row, in percent."""
        return 100 * (self.predicted_s(constants) / self.time_s - 1)


def measured_gemms(table: Table) -> list[Gemms]:
    """Return the usable rows of a table of GEMMs, by device and format."""
    return _measured(table, gemm.cases(table), gemm.MEASURED)


def _measured(table: Table, known: Cases[GemmCase], column: str) -> list[Gemms]:
    times, _ = measurements(table, column)
    names = table.columns.get("dataset", ["unnamed"] * table.rows)
    every = []
    for case, places in known.rows.items():
        kept = [i for i in places if times[i] > 0]
        if kept:
            sets = frozenset(names[i] for i in kept)
            every.append(Gemms(case, known.sizes[kept].T, 1e-6 * times[kept], sets, np.array(kept)))
    return every


def fitted(rows: Gemms, wide: Constants | None = None) -> dict[str, Any]:
    """Return the constants that fit measured products best.

    Args:
        rows: The measurements.
        wide: Constants of 16-bit GEMMs on the device. Where rows contain the conversion of their
            input, its fixed part and a launch cannot be told apart: the launch is that of 16 bits.
    """
    start = rows.start
    fixed: tuple[str, ...] = ()
    if rows.converted and wide is not None:
        fixed = _OF_16_BITS if len(start["tiles"]) > 1 else ("launch_us",)
        start |= {name: wide[name] for name in fixed}
    elif not rows.converted:
        start |= {"conversion_us": 0.0, "conversion_bytes": 0.0}

    def residuals(constants: Constants) -> Floats:
        result: Floats = np.log(rows.predicted_s(constants) / rows.time_s)
        return result

    return _solved(start, residuals, fixed)


class Overlapped(NamedTuple):
    """Measured products beside another kernel, and that kernel by itself."""

    gemms: Gemms
    """Its shapes have a fourth row: the multiprocessors taken."""
    copy_units: Floats
    copy_bytes_per_s: Floats

    def residuals(self, alone: Constants, constants: Constants) -> tuple[Floats, Floats]:
        """Return the logarithms of predicted over measured: of the products, of the copies.

        Args:
            alone: The constants of the product by itself.
            constants: Those of the section ``sharing``.
        """
        case, (m, n, k, taken), time_s, *_ = self.gemms
        device = Cluster.named(case.gpu).device
        lost = copy_rate(device, constants, taken)
        kernel = kernel_of(device, case.dtype, alone, constants)
        result = kernel_time_s(kernel, m, n, k, sms_taken=taken, memory_taken=lost)
        copied = copy_rate(device, constants, self.copy_units)
        return np.log(result / time_s), np.log(copied / self.copy_bytes_per_s)


def measured_overlaps(table: Table) -> list[Overlapped]:
    """Return the usable rows of a table of overlapped products, by device."""
    return [
        Overlapped(rows, *_copies(table, rows.case.gpu))
        for rows in _measured(table, overlap.cases(table), overlap.MEASURED)
    ]


def _copies(table: Table, gpu: str) -> tuple[Floats, Floats]:
    """Return how fast the other kernel is by itself, by its multiprocessors."""
    if _COPY not in table.columns:
        return np.empty(0), np.empty(0)
    rule = "a number above 0"
    pairs = {
        (number(row, "ctas", 0, 1e9, rule), number(row, _COPY, 0, 1e9, rule))
        for row in table.records()
        if row["gpu"] == gpu
    }
    units, gb_per_s = np.array(sorted(pairs)).T
    return units, 1e9 * gb_per_s


def fitted_sharing(rows: Overlapped, alone: Constants) -> dict[str, Any]:
    """Return the constants of products beside another kernel, given those of products alone."""

    def residuals(constants: Constants) -> Floats:
        return np.concatenate(rows.residuals(alone, constants))

    return _solved(tuner_table("gemm")["sharing"], residuals, fixed=("cluster_sms",))


class Sustained(NamedTuple):
    """Measured GEMMs of one device, alone after a pause and under its power limit."""

    gpu: str
    table: Table
    places: NDArray[np.intp]
    """Where in the table its rows stand."""
    cases: Sequence[SustainedCase]
    """Device, format and figure of each."""
    shapes: Floats
    time_s: Floats
    datasets: frozenset[str]

    @property
    def is_burst(self) -> Mask:
        """Which rows are of GEMMs after a pause."""
        return np.array([case.figure == sustained.BURST for case in self.cases])

    def where(self, keep: Mask) -> Sustained:
        """Return some of the rows."""
        return self._replace(
            places=self.places[keep],
            cases=[case for case, kept in zip(self.cases, keep, strict=True) if kept],
            shapes=self.shapes[:, keep],
            time_s=self.time_s[keep],
        )

    def predicted_s(self, constants: Constants) -> Floats:
        """Return the model's times under given constants."""
        known = catalog.raw("gemm", self.gpu)
        fit = Fit("", 0, 0.0, 0.0)._asdict()
        content = {**known, "sustained": {**constants, "fit": fit}}
        tables = CATALOG._replace(kernels=CATALOG.kernels.changing("gemm", self.gpu, content))
        values: Floats = 1e-6 * sustained.predictions(self.table, tables).values[self.places]
        return values

    def error_pct(self, constants: Constants) -> Floats:
        """Return the signed error of each row, in percent."""
        return 100 * (self.predicted_s(constants) / self.time_s - 1)


def measured_sustained(table: Table) -> list[Sustained]:
    """Return the usable rows of a table of GEMMs under a power limit, by device."""
    known, (times, _) = sustained.cases(table), measurements(table, sustained.MEASURED)
    names = table.columns.get("dataset", ["unnamed"] * table.rows)
    every = []
    for gpu in sorted({case.gpu for case in known.rows}):
        own = {i: case for case, rows in known.rows.items() for i in rows if case.gpu == gpu}
        places = np.array([i for i in own if times[i] > 0])
        sets = frozenset(names[i] for i in places)
        cases = [own[i] for i in places]
        shapes = known.sizes[places].T
        every.append(Sustained(gpu, table, places, cases, shapes, 1e-6 * times[places], sets))
    return every


def fitted_sustained(rows: Sustained) -> dict[str, Any]:
    """Return what a device's power feeds of its peak, by format, and its wait after a pause.

    Medians: of the rates of GEMMs that take longer than at the boost clock, and of the times of
    those after a pause beyond that.
    """
    device = Cluster.named(rows.gpu).device
    on, formats = kernels_of(device), [case.dtype for case in rows.cases]
    pairs = zip(formats, rows.shapes.T, strict=True)
    boost_s = np.array([gemm_time_s(on, dtype, *shape) for dtype, shape in pairs])
    peaks = np.array([device.peak(dtype) for dtype in formats], dtype=float)
    reached = 2 * np.prod(rows.shapes, axis=0) / (rows.time_s * peaks)
    limited = ~rows.is_burst & (rows.time_s > boost_s)
    sections = np.array([gemm_sections(dtype)[0] for dtype in formats])
    shares = {
        f"{name}_share": _shortened(float(np.median(reached[limited & (sections == name)])))
        for name in np.unique(sections)
    }
    waited = (rows.time_s - boost_s)[rows.is_burst]
    waited_us = 1e6 * float(np.median(waited)) if waited.size else 0.0
    return {**shares, "burst_limited": [], "after_pause_us": _shortened(waited_us)}


def unseen_us(rows: Sustained) -> Floats:
    """Return the time of each row by constants without those of its shape."""
    parts = np.array(["x".join(f"{size:g}" for size in shape) for shape in rows.shapes.T])

    def tried(out: Mask) -> Floats:
        return 1e6 * rows.where(out).predicted_s(fitted_sustained(rows.where(~out)))

    return leave_out(parts, tried)


def _solved(
    start: Constants, residuals: Callable[[Constants], Floats], fixed: Sequence[str] = ()
) -> dict[str, Any]:
    """Return constants like `start`, with those that are numbers above 0 and not fixed fitted."""
    names = [
        name
        for name, value in start.items()
        if not isinstance(value, list) and value > 0 and name not in fixed
    ]
    origin = np.log([start[name] for name in names])
    most = tuner_table("gemm")["most"]
    bounds = np.full(len(names), -60.0), np.log([most.get(name, np.inf) for name in names])

    def constants(logs: Floats) -> dict[str, Any]:
        return dict(start) | dict(zip(names, np.exp(logs).tolist(), strict=True))

    minimum = fit_robustly(
        origin,
        bounds,
        lambda logs: residuals(constants(logs)),
        lambda logs: _PULL * (logs - origin),
        outliers=_OUTLIERS,
        evaluations=_ROUNDS,
    )
    return {name: _shortened(value) for name, value in constants(minimum.at).items()}


def _shortened(value: Any) -> Any:
    """Return a number to four digits, the accuracy that a fit has at most."""
    return value if isinstance(value, list) else float(f"{value:.4g}")


def left_out(rows: Gemms) -> Iterator[tuple[str, Floats]]:
    """Yield what was left out of a fit, and the errors on it, in percent."""
    m, n, k = rows.shapes

    wide = catalog.raw("gemm", rows.case.gpu)["bf16"]

    def tried(out: Mask) -> Floats:
        return rows.where(out).error_pct(fitted(rows.where(~out), wide))

    yield "weights", leave_out(shape_parts(n, k), tried)
    inner = (m > m.min()) & (m < m.max())  # the ends would be extrapolated
    yield "m", np.where(inner, leave_out(m, tried), np.nan)


def refitted(tables: Iterable[Table]) -> dict[Key, Fitted]:
    """Return constants and their fit of all that tables cover; products alone come first."""
    results: dict[Key, Fitted] = {}
    for table in sorted(tables, key=lambda entry: entry.kind):
        if table.kind == "gemm":
            results |= _refitted_gemms(table)
        elif table.kind == "overlap":
            results |= _refitted_sharing(table, results)
        elif table.kind == "sustained":
            results |= _refitted_sustained(table)
        else:
            rule = "a table of gemm, overlap or sustained"
            raise BadValueError(str(table.path), table.kind, rule)
    return results


def _refitted_gemms(table: Table) -> dict[Key, Fitted]:
    results: dict[Key, Fitted] = {}
    for rows in sorted(measured_gemms(table), key=lambda each: each.converted):
        wide = results.get((rows.case.gpu, "bf16"))
        constants = fitted(rows, wide.constants if wide else None)
        fit = _fit(rows, rows.error_pct(constants))
        results[rows.case.gpu, rows.section] = Fitted(constants, fit)
    return results


def _refitted_sharing(table: Table, products: Mapping[Key, Fitted]) -> dict[Key, Fitted]:
    results = {}
    for rows in measured_overlaps(table):
        gpu, dtype = rows.gemms.case[:2]
        own = products.get((gpu, rows.gemms.section))
        alone = (
            own.constants if own else kernels_of(Cluster.named(gpu).device).gemm(dtype).constants
        )
        constants = fitted_sharing(rows, alone)
        error_pct = 100 * np.expm1(rows.residuals(alone, constants)[0])
        results[gpu, "sharing"] = Fitted(constants, _fit(rows.gemms, error_pct))
    return results


def _refitted_sustained(table: Table) -> dict[Key, Fitted]:
    results = {}
    for rows in measured_sustained(table):
        constants = fitted_sustained(rows)
        error_pct = rows.error_pct(constants)[~rows.is_burst]
        results[rows.gpu, "sustained"] = Fitted(constants, _fit(rows, error_pct))
    return results


def _fit(rows: Gemms | Sustained, error_pct: Floats) -> Fit:
    sizes = np.abs(error_pct)
    framework = rows.case.framework if isinstance(rows, Gemms) else ""
    return Fit(
        source="fitted by shardcost to measured rows of " + ", ".join(sorted(rows.datasets)),
        rows=len(sizes),
        median_pct=round(float(np.median(sizes)), 2),
        p90_pct=round(float(np.quantile(sizes, 0.9)), 2),
        measured_with=framework or measured_with(rows.datasets),
    )


def as_toml(sections: Mapping[str, Fitted]) -> str:
    """Return the file of a system."""
    content = {
        name: {**constants, "fit": fit._asdict()}
        for name, (constants, fit) in sorted(sections.items())
    }
    return catalog_files.as_toml(_HEAD, content)


def kept(system: str) -> dict[str, Fitted]:
    """Return the sections that the catalog has of a system."""
    content: dict[str, Any] = dict(catalog.contents("gemm")).get(system, {})
    return {
        name: Fitted({k: v for k, v in section.items() if k != "fit"}, Fit(**section["fit"]))
        for name, section in content.items()
    }


def _show(name: str, errors_pct: Floats) -> None:
    median, p90 = np.quantile(np.abs(errors_pct), [0.5, 0.9])
    print(f"{name:<34} {len(errors_pct):>5} rows, median {median:6.2f} %, p90 {p90:6.2f} %")


def _show_left_out(table: Table) -> None:
    for rows in measured_gemms(table):
        for what, errors_pct in left_out(rows):
            known = errors_pct[np.isfinite(errors_pct)]
            if known.size:
                _show(f"{' '.join(rows.case[:2])}, {what} left out", known)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit everything that tables cover, and write it into the catalog of this installation."""
    parser = parser_of(__doc__)
    parser.add_argument("tables", nargs="+", type=Path, help="measured tables (CSV)")
    parser.add_argument("--output", type=Path, default=FOLDER, help="where to write the files")
    parser.add_argument("--left-out", action="store_true", help="show errors on rows left out")
    given = parser.parse_args(arguments)
    tables = [read_table(path) for path in given.tables]
    result = refitted(tables)
    if not result:
        raise BadValueError("tables", [str(path) for path in given.tables], "tables with rows")
    for system in sorted({key[0] for key in result}):
        own = {name: entry for (gpu, name), entry in result.items() if gpu == system}
        write_whole(given.output / f"{system}.toml", as_toml(kept(system) | own))
    for key, (_, fit) in sorted(result.items()):
        error = f"median {fit.median_pct:6.2f} %, p90 {fit.p90_pct:6.2f} %"
        print(f"{' '.join(key):<34} {fit.rows:>5} rows, {error}")
    if given.left_out:
        for table in tables:
            if table.kind == "gemm":
                _show_left_out(table)


if __name__ == "__main__":
    ended(main)

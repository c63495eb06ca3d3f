"""Writes the constants of row-wise kernels anew: norms, conversions to fp8, both in one.

    python -m lab.refit_conversion fp8_conversion.csv [--output FOLDER] [--left-out]

Every figure of a device that is not a GEMM becomes a section of the device's file in the catalog's
table ``elementwise``. What is minimised is the relative error, robustly. ``--left-out`` shows the
error on each number of rows that a fit did not see.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from lab.catalog_files import CATALOG, fit_of, update
from lab.command import ended, parser_of
from lab.parts import Mask, leave_out
from shardcost.calibrate.fit import fit_robustly
from shardcost.formats.tables import Table, read_table
from shardcost.kernels.elementwise import row_kernel_time_s
from shardcost.machine.kernels import Section
from shardcost.validate.fp8_conversion import MEASURED, ROW_KERNELS, ConversionCase, cases
from shardcost.validate.predictions import Floats, kernels_of
from shardcost.validate.validation import measurements

START: Final = {
    "latency_us": 1.2,
    "row_cycles": 600.0,
    "element_cycles": 0.4,
    "single_row_share": 0.5,
}
"""Round figures of the right size."""
_OUTLIERS: Final = (1.0, 0.1)
_PULL: Final = 0.02
_ROUNDS: Final = 200


class RowKernels(NamedTuple):
    """Measured row-wise kernels of one kind on one device."""

    case: ConversionCase
    rows: Floats
    columns: Floats
    time_us: Floats
    places: Any
    """Where in the table they stand."""

    def where(self, keep: Mask) -> RowKernels:
        """Return some of the rows."""
        return RowKernels(self.case, *(each[keep] for each in self[1:]))

    def predicted_us(self, constants: Mapping[str, float]) -> Floats:
        """Return the times under given constants."""
        on, kind = kernels_of(self.case.gpu), ROW_KERNELS[self.case.figure]
        known = on.section("elementwise", f"rows_{kind}")
        given: Section = known._replace(constants=constants)
        own = replace(on, sections={("elementwise", f"rows_{kind}"): given})
        return 1e6 * np.asarray(row_kernel_time_s(own, kind, self.rows, self.columns))


def measured_kernels(table: Table) -> list[RowKernels]:
    """Return the row-wise kernels of a table, by device and figure."""
    known, (times, _) = cases(table), measurements(table, MEASURED)
    return [
        RowKernels(case, m, k, times[places], np.array(places))
        for case, places in known.rows.items()
        if case.figure in ROW_KERNELS
        for m, _, k in [known.sizes[places].T]
    ]


def fitted(kernels: RowKernels) -> dict[str, float]:
    """Return the constants that fit measured kernels best."""
    names = list(START)
    origin = np.log([START[name] for name in names])

    def constants(logs: Floats) -> dict[str, float]:
        return dict(zip(names, np.exp(logs).tolist(), strict=True))

    minimum = fit_robustly(
        origin,
        (np.full(len(names), -30.0), np.full(len(names), 30.0)),
        lambda logs: np.log(kernels.predicted_us(constants(logs)) / kernels.time_us),
        lambda logs: _PULL * (logs - origin),
        outliers=_OUTLIERS,
        evaluations=_ROUNDS,
    )
    return {name: float(f"{value:.4g}") for name, value in constants(minimum.at).items()}


def unseen_us(kernels: RowKernels) -> Floats:
    """Return the time of each row by constants fitted without those of as many tokens."""

    def tried(out: Mask) -> Floats:
        return kernels.where(out).predicted_us(fitted(kernels.where(~out)))

    return leave_out(kernels.rows, tried)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit every row-wise kernel of a table, and write it into the catalog of this installation."""
    parser = parser_of(__doc__)
    parser.add_argument("table", type=Path, help="measured table of fp8_conversion (CSV)")
    parser.add_argument("--output", type=Path, default=CATALOG, help="folder like the catalog's")
    parser.add_argument("--left-out", action="store_true", help="show errors on rows left out")
    given = parser.parse_args(arguments)
    table = read_table(given.table)
    for kernels in measured_kernels(table):
        constants, section = fitted(kernels), f"rows_{ROW_KERNELS[kernels.case.figure]}"
        errors = _errors_pct(kernels.predicted_us(constants), kernels)
        names = ", ".join(sorted({table.columns["dataset"][place] for place in kernels.places}))
        source = f"fitted by shardcost to measured rows of {names} (fp8_conversion)"
        fit = fit_of(source, errors, len(kernels.rows))
        file = Path("elementwise") / f"{kernels.case.gpu}.toml"
        changes: dict[tuple[str, ...], Any] = {
            (section, name): value for name, value in constants.items()
        }
        changes |= {(section, "fit", name): value for name, value in fit.items()}
        update(CATALOG / file, changes, given.output / file)
        print(section, constants, "median {:.1f} %, p90 {:.1f} %".format(*errors))
        if given.left_out:
            errors = _errors_pct(unseen_us(kernels), kernels)
            print("    left out by tokens: median {:.1f} %, p90 {:.1f} %".format(*errors))


def _errors_pct(predicted_us: Floats, kernels: RowKernels) -> tuple[float, float]:
    sizes = 100 * np.abs(predicted_us / kernels.time_us - 1)
    return float(np.median(sizes)), float(np.quantile(sizes, 0.9))


if __name__ == "__main__":
    ended(main)

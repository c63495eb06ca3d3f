"""Writes the constants of memory-bound kernels of a layer anew.

    python -m lab.refit_elementwise elementwise_layer.csv [--output FOLDER] [--left-out]

Every kernel of a device becomes a section ``layer_…`` of the device's file in the catalog's table
``elementwise``. What is minimised is the relative error, robustly. ``--left-out`` shows the error
on each number of tokens that a fit did not see.

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
from shardcost.machine.kernels import Fit, Section
from shardcost.validate.elementwise_layer import MEASURED, LayerKernelCase, cases
from shardcost.validate.predictions import Floats, kernels_of
from shardcost.validate.validation import measurements

START: Final = {
    "latency_us": 1.2,
    "row_ns_per_element": 0.3,
    "memory_share": 0.85,
    "cache_bytes_per_clock": 24.0,
    "wide_loss": 0.4,
}
"""Round figures of the right size."""
_LEAST: Final = {"latency_us": 0.2}
_MOST: Final = {"memory_share": 0.95, "wide_loss": 1.5}
GIVEN: Final = {"wide_elements": 4096, "cache_share": 0.8, "cache_steepness": 4}
"""Not fitted: the narrower of two widths that were measured; the cache as GEMMs find it."""
_OUTLIERS: Final = (1.0, 0.05)
_PULL: Final = 0.03
_ROUNDS: Final = 200


class LayerKernels(NamedTuple):
    """Measured kernels of one kind on one device."""

    case: LayerKernelCase
    sizes: Floats
    """Tokens, width and bytes of each."""
    time_us: Floats
    places: Any
    """Where in the table they stand."""

    def where(self, keep: Mask) -> LayerKernels:
        """Return some of the rows."""
        return LayerKernels(self.case, *(each[keep] for each in self[1:]))

    def predicted_us(self, constants: Mapping[str, float]) -> Floats:
        """Return the times under given constants."""
        on, name = kernels_of(self.case.gpu), f"layer_{self.case.op}"
        given = Section(self.case.gpu, name, {**GIVEN, **constants}, Fit("", 0, 0.0, 0.0), None)
        own = replace(on, sections={("elementwise", name): given})
        return 1e6 * self.case.time_s(self.sizes, own)


def measured_kernels(table: Table) -> list[LayerKernels]:
    """Return the kernels of a table, by device and kind."""
    known, (times, _) = cases(table), measurements(table, MEASURED)
    return [
        LayerKernels(case, known.sizes[places], times[places], np.array(places))
        for case, places in known.rows.items()
    ]


def fitted(kernels: LayerKernels) -> dict[str, float]:
    """Return the constants that fit measured kernels best."""
    names = list(START)
    origin = np.log([START[name] for name in names])
    least = np.log([_LEAST.get(name, 1e-9) for name in names])
    most = np.log([_MOST.get(name, 1e9) for name in names])

    def constants(logs: Floats) -> dict[str, float]:
        return dict(zip(names, np.exp(logs).tolist(), strict=True))

    minimum = fit_robustly(
        origin,
        (least, most),
        lambda logs: np.log(kernels.predicted_us(constants(logs)) / kernels.time_us),
        lambda logs: _PULL * (logs - origin),
        outliers=_OUTLIERS,
        evaluations=_ROUNDS,
    )
    return {name: float(f"{value:.4g}") for name, value in constants(minimum.at).items()}


def unseen_us(kernels: LayerKernels) -> Floats:
    """Return the time of each row by constants fitted without those of as many tokens."""

    def tried(out: Mask) -> Floats:
        return kernels.where(out).predicted_us(fitted(kernels.where(~out)))

    return leave_out(kernels.sizes[:, 0], tried)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit every kernel of a table, and write it into the catalog of this installation."""
    parser = parser_of(__doc__)
    parser.add_argument("table", type=Path, help="measured table of elementwise_layer (CSV)")
    parser.add_argument("--output", type=Path, default=CATALOG, help="folder like the catalog's")
    parser.add_argument("--left-out", action="store_true", help="show errors on rows left out")
    given = parser.parse_args(arguments)
    table = read_table(given.table)
    changes: dict[Path, dict[tuple[str, ...], Any]] = {}
    for kernels in measured_kernels(table):
        constants, section = fitted(kernels), f"layer_{kernels.case.op}"
        errors = _errors_pct(kernels.predicted_us(constants), kernels)
        names = ", ".join(sorted({table.columns["dataset"][place] for place in kernels.places}))
        source = f"fitted by shardcost to measured rows of {names} (elementwise_layer)"
        own = changes.setdefault(Path("elementwise") / f"{kernels.case.gpu}.toml", {})
        fit = fit_of(source, errors, len(kernels.time_us))
        own[(section,)] = {**constants, **GIVEN, "fit": {**fit, "measured_with": "torch"}}
        print(section, constants, "median {:.1f} %, p90 {:.1f} %".format(*errors))
        if given.left_out:
            errors = _errors_pct(unseen_us(kernels), kernels)
            print("    left out by tokens: median {:.1f} %, p90 {:.1f} %".format(*errors))
    for file, sections in changes.items():
        update(CATALOG / file, sections, given.output / file)


def _errors_pct(predicted_us: Floats, kernels: LayerKernels) -> tuple[float, float]:
    sizes = 100 * np.abs(predicted_us / kernels.time_us - 1)
    return float(np.median(sizes)), float(np.quantile(sizes, 0.9))


if __name__ == "__main__":
    ended(main)

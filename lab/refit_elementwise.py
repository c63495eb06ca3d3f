"""Writes the constants of memory-bound kernels of a layer anew.

    python -m lab.refit_elementwise elementwise_layer.csv [--output FOLDER] [--left-out]
    python -m lab.refit_elementwise layer_ops.csv [--output FOLDER] [--left-out]

Every kernel of a device becomes a section ``layer_…`` or ``row_…`` of the device's file in the
catalog's table ``elementwise``. What is minimised is the relative error, robustly. ``--left-out``
shows the error on rows that a fit did not see: on each number of tokens of ``layer_…``, on each
model of ``row_…``.

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
from shardcost.kernels.elementwise import layer_kernel_time_s
from shardcost.machine.kernels import Fit, Section
from shardcost.validate import layer_ops
from shardcost.validate.layer_ops import MEASURED
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

    gpu: str
    kind: str
    sizes: Floats
    """Tokens, width and bytes of each token, of every row."""
    time_us: Floats
    places: Any
    """Where in the table they stand."""
    parts: Any
    """Which of the parts that are left out each is in."""

    def where(self, keep: Mask) -> LayerKernels:
        """Return some of the rows."""
        return LayerKernels(self.gpu, self.kind, *(each[keep] for each in self[2:]))

    def predicted_us(self, constants: Mapping[str, float]) -> Floats:
        """Return the times under given constants."""
        on, fit = kernels_of(self.gpu), Fit("", 0, 0.0, 0.0)
        given = Section(self.gpu, self.kind, {**GIVEN, **constants}, fit, None)
        own = replace(on, sections={("elementwise", self.kind): given})
        return 1e6 * np.asarray(layer_kernel_time_s(own, self.kind, *self.sizes.T, warm=True))

    @property
    def is_of_one_rate(self) -> bool:
        """Whether nothing is known of how the rate depends on the width."""
        return self.kind.startswith("row_")


def measured_kernels(table: Table) -> list[LayerKernels]:
    """Return the kernels of a table, by device and kind."""
    times, _ = measurements(table, MEASURED)
    found: dict[tuple[str, str], list[tuple[int, Any, str]]] = {}
    for i, row in enumerate(table.records()):
        if not times[i] > 0:
            continue
        if table.kind == "layer_ops":
            if row["op"] in layer_ops.ROW_KERNELS:
                kind, sizes = layer_ops.row_kernel(row)
                gpu = layer_ops.cluster_of(row["gpu"]).name
                found.setdefault((gpu, kind), []).append((i, sizes, row["model"]))
        else:
            tokens, width, moved = (float(row[name]) for name in ("tokens", "width", "bytes"))
            own = found.setdefault((row["gpu"], f"layer_{row['op']}"), [])
            own.append((i, (tokens, width, moved / tokens), row["tokens"]))
    every = []
    for (gpu, kind), rows in found.items():
        places, of_rows, parts = (np.array(column) for column in zip(*rows, strict=True))
        every.append(LayerKernels(gpu, kind, of_rows, times[places], places, parts))
    return every


def fitted(kernels: LayerKernels) -> dict[str, float]:
    """Return the constants that fit measured kernels best."""
    names = [name for name in START if name != "wide_loss" or not kernels.is_of_one_rate]
    origin = np.log([START[name] for name in names])
    least = np.log([_LEAST.get(name, 1e-9) for name in names])
    most = np.log([_MOST.get(name, 1e9) for name in names])

    def constants(logs: Floats) -> dict[str, float]:
        return {"wide_loss": 0.0, **dict(zip(names, np.exp(logs).tolist(), strict=True))}

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
    """Return the time of each row by constants fitted without its part."""

    def tried(out: Mask) -> Floats:
        return kernels.where(out).predicted_us(fitted(kernels.where(~out)))

    return leave_out(kernels.parts, tried)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit every kernel of a table, and write it into the catalog of this installation."""
    parser = parser_of(__doc__)
    parser.add_argument("table", type=Path, help="elementwise_layer or layer_ops (CSV)")
    parser.add_argument("--output", type=Path, default=CATALOG, help="folder like the catalog's")
    parser.add_argument("--left-out", action="store_true", help="show errors on rows left out")
    given = parser.parse_args(arguments)
    table = read_table(given.table)
    changes: dict[Path, dict[tuple[str, ...], Any]] = {}
    for kernels in measured_kernels(table):
        constants, section = fitted(kernels), kernels.kind
        errors = _errors_pct(kernels.predicted_us(constants), kernels)
        names = ", ".join(sorted({table.columns["dataset"][place] for place in kernels.places}))
        source = f"fitted by shardcost to measured rows of {names} ({table.kind})"
        own = changes.setdefault(Path("elementwise") / f"{kernels.gpu}.toml", {})
        fit = fit_of(source, errors, len(kernels.time_us))
        software = "vidur" if kernels.is_of_one_rate else "torch"
        own[(section,)] = {**constants, **GIVEN, "fit": {**fit, "measured_with": software}}
        print(section, constants, "median {:.1f} %, p90 {:.1f} %".format(*errors))
        if given.left_out:
            errors = _errors_pct(unseen_us(kernels), kernels)
            print("    left out: median {:.1f} %, p90 {:.1f} %".format(*errors))
    for file, sections in changes.items():
        update(CATALOG / file, sections, given.output / file)


def _errors_pct(predicted_us: Floats, kernels: LayerKernels) -> tuple[float, float]:
    sizes = 100 * np.abs(predicted_us / kernels.time_us - 1)
    return float(np.median(sizes)), float(np.quantile(sizes, 0.9))


if __name__ == "__main__":
    ended(main)

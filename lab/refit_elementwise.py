"""Writes the constants of memory-bound kernels of a layer anew.

    python -m lab.refit_elementwise elementwise_layer.csv [--output FOLDER] [--left-out]
    python -m lab.refit_elementwise layer_ops.csv [--output FOLDER] [--left-out]
    python -m lab.refit_elementwise fp8_conversion.csv [--output FOLDER] [--left-out]

Every kernel of a device becomes a section of the device's file in the catalog's table
``elementwise``: ``layer_…``, ``row_…``, and, of norms and conversions to fp8, ``rows_…``. What is
minimised is the relative error, robustly. ``--left-out`` shows the error on rows that a fit did not
see: on each model of ``row_…``, on each number of tokens of the others.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from lab.catalog_files import CATALOG, fit_of, update
from lab.command import ended, parser_of
from lab.descent import errors_pct
from lab.parts import Mask, leave_out
from shardcost.calibrate.fit import fit_robustly
from shardcost.formats.tables import Table, read_table
from shardcost.kernels.elementwise import layer_kernel_time_s, row_kernel_time_s
from shardcost.machine.kernels import Fit, Section
from shardcost.validate import fp8_conversion, layer_ops
from shardcost.validate.predictions import Floats, kernels_of
from shardcost.validate.validation import kind_of, measurements


class Start(NamedTuple):
    """Where a fit starts, at round figures of the right size, and how far it may go."""

    constants: Mapping[str, float]
    least: Mapping[str, float]
    most: Mapping[str, float]
    given: Mapping[str, float]
    """What is not fitted."""
    outliers: tuple[float, float]
    pull: float
    """Towards the start."""


_OF_LAYERS: Final = Start(
    {
        "latency_us": 1.2,
        "row_ns_per_element": 0.3,
        "memory_share": 0.85,
        "cache_bytes_per_clock": 24.0,
        "wide_loss": 0.4,
    },
    {"latency_us": 0.2},
    {"memory_share": 0.95, "wide_loss": 1.5},
    # The narrower of two widths that were measured; the cache as GEMMs find it.
    {"wide_elements": 4096, "cache_share": 0.8, "cache_steepness": 4},
    (1.0, 0.05),
    0.03,
)
_OF_ONE_RATE: Final = _OF_LAYERS._replace(
    constants={k: v for k, v in _OF_LAYERS.constants.items() if k != "wide_loss"},
    given={"wide_loss": 0.0, **_OF_LAYERS.given},
)
"""Where nothing is known of how the rate depends on the width."""
_OF_ROWS: Final = Start(
    {"latency_us": 1.2, "row_cycles": 600.0, "element_cycles": 0.4, "single_row_share": 0.5},
    {},
    {},
    {},
    (1.0, 0.1),
    0.02,
)
_ROUNDS: Final = 200


class Kernels(NamedTuple):
    """Measured kernels of one kind on one device."""

    gpu: str
    kind: str
    """The section of their constants."""
    sizes: Floats
    """Tokens, width and bytes of each token, of every row; of ``rows_…``, tokens and width."""
    time_us: Floats
    places: Any
    """Where in the table they stand."""
    parts: Any
    """Which of the parts that are left out each is in."""

    def where(self, keep: Mask) -> Kernels:
        """Return some of the rows."""
        return Kernels(self.gpu, self.kind, *(each[keep] for each in self[2:]))

    @property
    def start(self) -> Start:
        """Where a fit of them starts."""
        prefix = self.kind.partition("_")[0]
        return {"layer": _OF_LAYERS, "row": _OF_ONE_RATE, "rows": _OF_ROWS}[prefix]

    def predicted_us(self, constants: Mapping[str, float]) -> Floats:
        """Return the times under given constants."""
        on = kernels_of(self.gpu)
        given = {**self.start.given, **constants}
        section = Section(self.gpu, self.kind, given, Fit("", 0, 0.0, 0.0), None)
        own = replace(on, sections={("elementwise", self.kind): section})
        name = self.kind.removeprefix("rows_")
        if name != self.kind:
            return 1e6 * np.asarray(row_kernel_time_s(own, name, *self.sizes.T))
        return 1e6 * np.asarray(layer_kernel_time_s(own, self.kind, *self.sizes.T, warm=True))


def measured_kernels(table: Table) -> list[Kernels]:
    """Return the kernels of a table, by device and kind."""
    times, _ = measurements(table, kind_of(table).MEASURED)
    found: dict[tuple[str, str], list[tuple[int, Any, str]]] = {}
    for place, gpu, kind, sizes, part in _rows(table):
        if times[place] > 0:
            found.setdefault((gpu, kind), []).append((place, sizes, part))
    every = []
    for (gpu, kind), rows in found.items():
        places, of_rows, parts = (np.array(column) for column in zip(*rows, strict=True))
        every.append(Kernels(gpu, kind, of_rows, times[places], places, parts))
    return every


def _rows(table: Table) -> Iterator[tuple[int, str, str, tuple[float, ...], str]]:
    """Yield the place, device, kind, sizes and part of every row."""
    for place, row in enumerate(table.records()):
        if table.kind == "layer_ops":
            if row["op"] in layer_ops.ROW_KERNELS:
                gpu = layer_ops.cluster_of(row["gpu"]).name
                yield place, gpu, *layer_ops.row_kernel(row), row["model"]
        elif table.kind == "fp8_conversion":
            if row["figure"] in fp8_conversion.ROW_KERNELS:
                kind = f"rows_{fp8_conversion.ROW_KERNELS[row['figure']]}"
                yield place, row["gpu"], kind, (float(row["m"]), float(row["k"])), row["m"]
        else:
            tokens, width, moved = (float(row[name]) for name in ("tokens", "width", "bytes"))
            sizes = (tokens, width, moved / tokens)
            yield place, row["gpu"], f"layer_{row['op']}", sizes, row["tokens"]


def fitted(kernels: Kernels) -> dict[str, float]:
    """Return the constants that fit measured kernels best."""
    start = kernels.start
    names = list(start.constants)
    origin = np.log([start.constants[name] for name in names])
    least = np.log([start.least.get(name, 1e-9) for name in names])
    most = np.log([start.most.get(name, 1e9) for name in names])

    def constants(logs: Floats) -> dict[str, float]:
        return dict(zip(names, np.exp(logs).tolist(), strict=True))

    minimum = fit_robustly(
        origin,
        (least, most),
        lambda logs: np.log(kernels.predicted_us(constants(logs)) / kernels.time_us),
        lambda logs: start.pull * (logs - origin),
        outliers=start.outliers,
        evaluations=_ROUNDS,
    )
    return {name: float(f"{value:.4g}") for name, value in constants(minimum.at).items()}


def unseen_us(kernels: Kernels) -> Floats:
    """Return the time of each row by constants fitted without its part."""

    def tried(out: Mask) -> Floats:
        return kernels.where(out).predicted_us(fitted(kernels.where(~out)))

    return leave_out(kernels.parts, tried)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit every kernel of a table, and write it into the catalog of this installation."""
    parser = parser_of(__doc__)
    parser.add_argument("table", type=Path, help="elementwise_layer, layer_ops or fp8_conversion")
    parser.add_argument("--output", type=Path, default=CATALOG, help="folder like the catalog's")
    parser.add_argument("--left-out", action="store_true", help="show errors on rows left out")
    given = parser.parse_args(arguments)
    table = read_table(given.table)
    changes: dict[Path, dict[tuple[str, ...], Any]] = {}
    for kernels in measured_kernels(table):
        constants, section = fitted(kernels), kernels.kind
        errors = errors_pct(kernels.predicted_us(constants) / kernels.time_us)
        names = ", ".join(sorted({table.columns["dataset"][place] for place in kernels.places}))
        source = f"fitted by shardcost to measured rows of {names} ({table.kind})"
        own = changes.setdefault(Path("elementwise") / f"{kernels.gpu}.toml", {})
        fit = fit_of(source, errors, len(kernels.time_us))
        fit["measured_with"] = "vidur" if table.kind == "layer_ops" else "torch"
        own[(section,)] = {**constants, **kernels.start.given, "fit": fit}
        print(section, constants, "median {:.1f} %, p90 {:.1f} %".format(*errors))
        if given.left_out:
            errors = errors_pct(unseen_us(kernels) / kernels.time_us)
            print("    left out: median {:.1f} %, p90 {:.1f} %".format(*errors))
    for file, sections in changes.items():
        update(CATALOG / file, sections, given.output / file)


if __name__ == "__main__":
    ended(main)

"""Fits how much of a gradient sum's traffic a weight gradient's GEMM waits for.

    python -m lab.refit_accumulation lab/measured/own_h200_weight_gradients.csv

The table has GEMMs of cuBLASLt by its first heuristic, with 32 MiB of workspace, in bf16 and fp8:
with a result of 16 bits, and adding to a sum of 32 bits in place. ``sustained`` rows ran for
150 ms each, ``burst`` rows for 4 ms after a pause. Bursts of more than 4,096 tokens are left out:
the clock falls within them, so that whichever was timed last took longer. So are weights that stay
in the L2 cache. Errors are of the GEMM with its sum, given the GEMM without; left out is a shape
at a time.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from lab.catalog_files import CATALOG, update
from lab.command import ended, parser_of
from lab.descent import descend, errors_pct, loss
from shardcost.kernels.elementwise import elementwise_time_s
from shardcost.machine import machine_of
from shardcost.program.assemble import exposed_share
from shardcost.validate.predictions import Floats

_START: Final = {"least": 0.5, "tokens": 1000.0, "most": 1.2}
_BURST_TOKENS: Final = 4096
_CACHED_WEIGHTS: Final = 1.6e7
_BEYOND_BYTES: Final = 2 * 4 - 2
"""Of a weight: its sum of 32 bits is read and written instead of 16 bits written."""

Row = Mapping[str, str]


def rows_of(path: Path) -> list[Row]:
    """Return the rows of a table that tell what a sum takes."""
    with path.open(encoding="utf-8") as lines:
        return [row for row in csv.DictReader(lines) if _tells(row)]


def _tells(row: Row) -> bool:
    steady = row["mode"] == "sustained" or int(row["tokens"]) <= _BURST_TOKENS
    return steady and _weights(row) > _CACHED_WEIGHTS


def _weights(row: Row) -> int:
    return int(row["inputs"]) * int(row["outputs"])


def ratios(rows: Sequence[Row], rule: Mapping[str, float]) -> Floats:
    """Return predicted over measured of each GEMM with its sum."""
    on = machine_of("h200_sxm").kernels

    def ratio(row: Row) -> float:
        moved = _BEYOND_BYTES * _weights(row) * exposed_share(rule, int(row["tokens"]))
        added_us = 1e6 * float(elementwise_time_s(on, moved, kernels=0))
        return (float(row["bf16_us"]) + added_us) / float(row["fp32_sum_us"])

    return np.array([ratio(row) for row in rows])


def fitted(rows: Sequence[Row]) -> dict[str, float]:
    """Return the constants of the rule that suit rows best."""
    return descend(lambda rule: loss(ratios(rows, rule)), _START)


def left_out(rows: Sequence[Row]) -> Floats:
    """Return predicted over measured of each shape by the rule of all others."""
    shapes = sorted({_weights(row) for row in rows})
    return np.concatenate(
        [
            ratios(
                [row for row in rows if _weights(row) == shape],
                fitted([row for row in rows if _weights(row) != shape]),
            )
            for shape in shapes
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the rule, write it and print its errors beside those without it."""
    parser = parser_of(__doc__)
    parser.add_argument("table", type=Path, help="measured weight gradients (CSV)")
    parser.add_argument("--output", type=Path, default=CATALOG, help="folder like the catalog's")
    options = parser.parse_args(arguments)
    rows = rows_of(options.table)
    rule = fitted(rows)
    changes: dict[tuple[str, ...], float] = {
        ("accumulation", name): value for name, value in rule.items()
    }
    update(CATALOG / "tuner" / "gemm.toml", changes, options.output / "tuner" / "gemm.toml")
    print(rule, len(rows), "rows")
    for name, result in (
        ("shape left out", left_out(rows)),
        ("in sample", ratios(rows, rule)),
        ("half of the traffic", ratios(rows, {"least": 0.5, "tokens": 0.0, "most": 1.0})),
    ):
        print(name, "median {:.1f} %, p90 {:.1f} %".format(*errors_pct(result)))


if __name__ == "__main__":
    ended(main)

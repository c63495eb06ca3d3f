"""Fits GEMMs with block scales, and the scores of a sparse attention's indexer.

    python -m lab.refit_deep_gemm own_h200_block_scaled.csv own_h200_indexer.csv

Both tables are in ``lab/measured``. The first has GEMMs in fp8 with a scale for each 1 x 128 of
the input and 128 x 128 of the weights, by DeepGEMM and by cuBLASLt, beside cuBLASLt's with one
scale for a tensor. Of many rows it gives ``[block_scaled]`` of ``tuner/gemm.toml``: the share of
the arithmetic that is left. With few rows DeepGEMM takes 1.07 times as long as one scale (median),
which the formula leaves out.

The second has DeepGEMM's ``fp8_mqa_logits`` and ``fp8_paged_mqa_logits``, which score all tokens of
a context for DeepSeek-V3.2's sparse attention: sections ``indexer`` of ``mla/h200_sxm.toml``. Their
blocks write scores and have nothing to add up, so that splitting a context costs nothing.

Left out is a shape at a time (GEMMs), a context length at a time (indexer).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from lab.catalog_files import CATALOG, as_toml, fit_of, update
from lab.command import ended, parser_of
from lab.descent import descend, errors_pct, loss
from shardcost.kernels.gemm import kernel_of, kernel_time_s
from shardcost.kernels.mla import LatentShape, attention_of, walk_time_s
from shardcost.machine import machine_of
from shardcost.machine.mla import structure_of
from shardcost.validate.predictions import Floats

_SYSTEM: Final = "h200_sxm"
_MANY_ROWS: Final = 1024
"""Rows of a GEMM from which its arithmetic decides."""
_START: Final = {"floor_cycles": 300.0, "block_start_cycles": 4000.0, "memory_share": 0.8}
_FIXED: Final = {
    "decode": {"peak_share": 1.0, "key_cycles": 0.5, "split_cycles": 0.0, "most_splits": 256.0},
    "prefill": {"memory_share": 0.8, "key_cycles": 0.5, "split_cycles": 0.0, "most_splits": 256.0},
}
"""What the rows of a phase do not determine: scores of one query wait for the memory, of many for
the arithmetic, and no block waits for one key."""
_QUERIES_AND_SCORES: Final = {"row_passes": 0.05}
_HEAD: Final = (
    "Constants fitted to measurements by `python -m lab.refit_deep_gemm`: not by hand.",
    "Shares of the datasheet, clock cycles.",
)

Row = Mapping[str, str]
Constants = Mapping[str, float]


def rows_of(path: Path) -> list[Row]:
    """Return the rows of a table."""
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def block_scaled(rows: Sequence[Row]) -> list[Row]:
    """Return the GEMMs whose arithmetic decides."""
    return [row for row in rows if int(row["m"]) >= _MANY_ROWS]


def gemm_ratios(rows: Sequence[Row], share: float) -> Floats:
    """Return predicted over measured of GEMMs with block scales, given such a share."""
    on = machine_of(_SYSTEM).kernels
    constants = dict(on.gemm("fp8").constants)
    constants["peak_share"] *= share
    kernel = kernel_of(on.device, "fp8", constants, on.section("gemm", "sharing").constants)
    sizes = (np.array([float(row[name]) for row in rows]) for name in ("m", "n", "k"))
    measured_us = np.array([float(row["fp8_block_us"]) for row in rows])
    return np.asarray(1e6 * kernel_time_s(kernel, *sizes) / measured_us)


def fitted_share(rows: Sequence[Row]) -> float:
    """Return the share of the arithmetic that block scales leave."""
    return descend(lambda at: loss(gemm_ratios(rows, at["share"])), {"share": 0.8})["share"]


def indexer_ratios(rows: Sequence[Row], constants: Constants) -> Floats:
    """Return predicted over measured of scores in one phase."""
    device = machine_of(_SYSTEM).cluster.device

    def ratio(row: Row) -> float:
        structure = structure_of("indexer", row["phase"], "absorbed")
        kernel = attention_of(device, structure, constants, "fp8", "fp8")
        shape = LatentShape(kv_lora=0, nope=0, rope=int(row["head_dim"]), v_dim=0)
        batch, queries, context, heads = (
            int(row[name]) for name in ("batch", "query_tokens", "context_tokens", "heads")
        )
        time_s = walk_time_s(
            kernel,
            "absorbed",
            batch,
            queries,
            context,
            heads,
            shape,
            causal=row["phase"] == "prefill",
        )
        return 1e6 * float(time_s) / float(row["time_us"])

    return np.array([ratio(row) for row in rows])


def fitted_indexer(rows: Sequence[Row], phase: str) -> dict[str, float]:
    """Return the constants of one phase."""
    fixed = {**_FIXED[phase], **_QUERIES_AND_SCORES}
    free = {name: value for name, value in _START.items() if name not in fixed}
    if "peak_share" not in fixed:
        free["peak_share"] = 0.5
    best = descend(lambda at: loss(indexer_ratios(rows, {**at, **fixed})), free)
    return {**best, **fixed}


def _left_out(
    rows: Sequence[Row], part: Callable[[Row], str], ratios: Callable[..., Floats]
) -> Floats:
    """Return predicted over measured of each part, by a fit to all others."""
    parts = sorted({part(row) for row in rows})
    return np.concatenate(
        [
            ratios([r for r in rows if part(r) == one], [r for r in rows if part(r) != one])
            for one in parts
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit both, write them and print their errors."""
    parser = parser_of(__doc__)
    parser.add_argument("gemms", type=Path, help="GEMMs with block scales (CSV)")
    parser.add_argument("indexer", type=Path, help="scores of an indexer (CSV)")
    parser.add_argument("--output", type=Path, default=CATALOG, help="folder like the catalog's")
    options = parser.parse_args(arguments)
    rows = block_scaled(rows_of(options.gemms))
    share = fitted_share(rows)
    changes: dict[tuple[str, ...], float] = {("block_scaled", "peak_share"): share}
    update(CATALOG / "tuner" / "gemm.toml", changes, options.output / "tuner" / "gemm.toml")

    def without(held: Sequence[Row], others: Sequence[Row]) -> Floats:
        return gemm_ratios(held, fitted_share(others))

    away = _left_out(rows, lambda row: f"{row['n']} x {row['k']}", without)
    _show(f"block scales: {share}", len(rows), away, gemm_ratios(rows, share))
    sections: dict[str, object] = {}
    every = rows_of(options.indexer)
    source = ", ".join(sorted({row["dataset"] for row in every}))
    for phase in _FIXED:
        rows = [row for row in every if row["phase"] == phase]
        constants = fitted_indexer(rows, phase)
        seen = indexer_ratios(rows, constants)

        def held_out(held: Sequence[Row], others: Sequence[Row], phase: str = phase) -> Floats:
            return indexer_ratios(held, fitted_indexer(others, phase))

        _show(phase, len(rows), _left_out(rows, lambda row: row["context_tokens"], held_out), seen)
        said = f"fitted by shardcost to measured rows of {source}"
        fit = {**fit_of(said, errors_pct(seen), len(rows)), "measured_with": "deep_gemm"}
        sections[f"indexer-{phase}-absorbed-fp8"] = {**constants, "fit": fit}
    target = options.output / "mla" / f"{_SYSTEM}.toml"
    target.write_text(as_toml(_HEAD, sections), encoding="utf-8")


def _show(what: str, rows: int, away: Floats, seen: Floats) -> None:
    print(what, rows, "rows")
    for name, ratios in (("left out", away), ("in sample", seen)):
        print("  {}: median {:.1f} %, p90 {:.1f} %".format(name, *errors_pct(ratios)))


if __name__ == "__main__":
    ended(main)

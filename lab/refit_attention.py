"""Writes the fitted constants of attention kernels anew, from a measured table.

    python -m lab.refit_attention attention.csv [--output FOLDER]
        [--leave-out COLUMN]

For every system of the table a file of ``catalog/attention/`` is written. A table of attention
kernels, which serving engines ran on a warm cache, gives the sections ``prefill`` and ``decode``;
one of the parts of decoded layers, which PyTorch ran on a cold cache, gives ``flash_decode``. Each
states its rows and its error; sections that the table does not cover stay as they are.

Minimised is the relative error, robustly, as in `shardcost.calibrate.fit`. What is no quantity but
a choice of the kernel's authors (sizes of tiles, which kernel runs when) is tried in all
combinations. With ``--leave-out`` nothing is written: the rows of each value of a column are
predicted by constants that were fitted without them.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lab import catalog_files
from lab.command import ended, parser_of
from lab.parts import Mask, leave_out
from shardcost.calibrate.fit import fit_robustly
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.files import write_whole
from shardcost.formats.tables import Row, Table, read_table
from shardcost.validate.attention import FLASH_DECODE, MEASURED, AttentionCase, cases
from shardcost.validate.gemm import measured_with
from shardcost.validate.predictions import Cases, cases_of, kernels_of, whole_cell
from shardcost.validate.validation import measurements

Floats = NDArray[np.float64]
Constants = dict[str, Any]

FOLDER: Final = catalog_files.CATALOG / "attention"
_PULL: Final = 0.03
"""Weight of a constant's distance (in logarithms) from where it started: settles what no row
determines."""
_DIGITS: Final = 4
_HEAD: Final = "Constants fitted by `python -m lab.refit_attention`: not by hand."

_PREFILL: Final[Mapping[str, tuple[float, float, float]]] = {
    "launch_us": (10, 1, 40),
    "peak_share": (0.55, 0.05, 1),
    "block_us": (0.5, 0.01, 20),
    "alone_ratio": (1.2, 0.2, 10),
    "tail_power": (1.4, 1, 8),
    "memory_share": (0.3, 0.02, 1),
    "kv_weight": (0.7, 0.2, 4),
    "overlap_power": (1.2, 1, 8),
}
"""Where the search for a quantity begins, and the bounds of what it can mean: least and most."""
_KERNEL: Final[Mapping[str, tuple[float, float, float]]] = {
    "launch_us": (6, 0.5, 20),
    "block_us": (2, 0.05, 20),
    "row_us": (0.05, 0.001, 2),
    "token_ns": (2, 0.01, 200),
    "alone_ratio": (1, 0.1, 20),
    "tail_power": (2, 1, 8),
    "slots_per_sm": (4, 0.25, 16),
    "split_tokens": (256, 16, 4096),
    "split_us": (3, 0.05, 20),
    "split_loss": (0.2, 0.01, 3),
    "memory_share": (0.9, 0.2, 1),
    "l2_ratio": (2, 0.5, 5),
    "resident_share": (0.7, 0.1, 1.5),
    "overlap_power": (2, 1, 8),
}
_DECODE: Final = {
    f"{kernel}.{name}": bounds
    for kernel in ("grouped", "vector")
    for name, bounds in _KERNEL.items()
    if (kernel, name) != ("vector", "row_us")
} | {"vector.slots_per_sm": (1, 0.25, 16)}
_FLASH: Final = ("launch_us", "block_us", "token_ns", "alone_ratio", "split_us", "memory_share")
_QUANTITIES: Final = {
    "prefill": _PREFILL,
    "decode": _DECODE,
    FLASH_DECODE: {f"grouped.{name}": _KERNEL[name] for name in (*_FLASH, "overlap_power")},
}
_CHOICES: Final[Mapping[str, Sequence[Mapping[str, float]]]] = {
    "prefill": [
        {"tile_queries": queries, "tile_keys": 128, "exponential_part": 0.3}
        for queries in (64, 128)
    ],
    "decode": [
        {
            "least_rows": least,
            "most_rows": 32,
            "least_fill": fill,
            "fill_tokens": 128,
            "tile_rows": 8,
            "matrix_share": 0.5,
            "grouped.resident_fade": 0.5,
            "vector.resident_fade": 0.5,
            "vector.row_us": 0.0,
        }
        for least, fill in product((1, 2), (0.0, 0.25))
    ],
    FLASH_DECODE: [
        {
            "tile_rows": 8,
            "matrix_share": 0.5,
            "grouped.slots_per_sm": slots,
            "grouped.split_tokens": tokens,
            "grouped.split_loss": 0.0,
            "grouped.row_us": 0.0,
            "grouped.tail_power": 2.0,
        }
        for slots, tokens in product((1, 2, 4), (64, 128, 256, 512))
    ],
}
"""What kernels are built like. The part of exponentials is not fitted, for rows of one head size
cannot tell it: an H100 takes 16 of them per clock and multiprocessor, which is 0.3 of its time per
pair of query and key at the rates of FlashAttention-3 (arXiv:2407.08608)."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Measured rows that determine one section of constants."""

    system: str
    phase: str
    cases: Sequence[tuple[AttentionCase, Floats]]
    """Questions, each with its shapes."""
    time_s: Floats
    places: Floats
    """Where in the table they stand."""
    datasets: frozenset[str]

    def predicted_s(self, constants: Constants | None = None) -> Floats:
        """Return the predicted times, by the catalog's constants or by those given."""
        on = kernels_of(self.system)
        if constants is not None:
            section = on.section("attention", self.phase)._replace(constants=constants)
            on = replace(on, sections={("attention", self.phase): section})
        return np.concatenate([case.time_s(shapes, on) for case, shapes in self.cases])

    def error_pct(self, constants: Constants | None = None) -> Floats:
        """Return the signed error of each row, in percent."""
        return 100 * (self.predicted_s(constants) / self.time_s - 1)


def sections(table: Table, keep: Mask | None = None) -> Iterator[Rows]:
    """Yield the rows of every system and section of a table; of those to `keep` only, if given."""
    known = _cases_of_layers(table) if table.kind == "decode" else cases(table)
    times, _ = measurements(table, MEASURED)
    names = table.columns.get("dataset", [""] * table.rows)
    results: dict[tuple[str, str], list[tuple[AttentionCase, list[int]]]] = {}
    for case, all_places in known.rows.items():
        places = [i for i in all_places if times[i] > 0 and (keep is None or keep[i])]
        if places:
            results.setdefault((case.gpu, case.phase), []).append((case, places))
    for (system, phase), entry in sorted(results.items()):
        together = np.concatenate([places for _, places in entry])
        yield Rows(
            system=system,
            phase=phase,
            cases=[(case, known.sizes[places]) for case, places in entry],
            time_s=1e-6 * times[together],
            places=together,
            datasets=frozenset(names[i] for i in together),
        )


def _cases_of_layers(table: Table) -> Cases[AttentionCase]:
    """Return the attention kernels among the parts of decoded layers, one rank's share."""

    def case_of(row: Row) -> AttentionCase:
        if row["part"] != "attention":
            raise BadValueError("part", row["part"], "attention")
        return AttentionCase(row["gpu"], FLASH_DECODE)

    def sizes_of(row: Row) -> list[float]:
        count = {name: whole_cell(row, name) for name in ("tp", "heads", "kv_heads", "head_dim")}
        heads, kv_heads = count["heads"] / count["tp"], max(1, count["kv_heads"] / count["tp"])
        context = whole_cell(row, "context") if row["part"] == "attention" else 1
        return [whole_cell(row, "batch"), 1, context, heads, kv_heads, count["head_dim"]]

    return cases_of(table, case_of, sizes_of, 6)


def fitted(known: Rows) -> Constants:
    """Return the constants that fit some rows best, over all choices."""
    results = [_fitted_quantities(known, choice) for choice in _CHOICES[known.phase]]
    _, best = min(results, key=lambda pair: pair[0])
    return best


def _fitted_quantities(known: Rows, choice: Mapping[str, float]) -> tuple[float, Constants]:
    """Return what a choice costs at its best, and the constants there."""
    quantities = _QUANTITIES[known.phase]
    start, least, most = np.log(np.array(list(quantities.values()))).T
    measured = np.log(known.time_s)

    def constants(logs: Floats) -> Constants:
        values = (float(f"{value:.{_DIGITS}g}") for value in np.exp(logs))
        return _nested(dict(choice) | dict(zip(quantities, values, strict=True)))

    def exact(logs: Floats) -> Constants:
        values = np.exp(logs).tolist()
        return _nested(dict(choice) | dict(zip(quantities, values, strict=True)))

    minimum = fit_robustly(
        start,
        (least, most),
        lambda logs: np.log(known.predicted_s(exact(logs))) - measured,
        lambda logs: _PULL * (logs - start),
        evaluations=100,
    )
    return minimum.cost, constants(minimum.at)


def _nested(flat: Mapping[str, float]) -> Constants:
    """Return constants whose names have a dot as tables of their own."""
    results: Constants = {}
    for name, value in flat.items():
        table, _, key = name.rpartition(".")
        (results.setdefault(table, {}) if table else results)[key] = value
    return results


def left_out_error_pct(table: Table, parts: NDArray[Any]) -> Floats:
    """Return the error of each row under constants fitted without the rows of its part."""

    def tried(out: Mask) -> Floats:
        errors = np.full(table.rows, np.nan)
        known = {(rows.system, rows.phase): fitted(rows) for rows in sections(table, ~out)}
        for rows in sections(table, out):
            if (rows.system, rows.phase) in known:
                errors[rows.places] = rows.error_pct(known[rows.system, rows.phase])
        return errors[out]

    return leave_out(parts, tried)


def as_toml(system: str, content: Mapping[str, Constants]) -> str:
    """Return the file of a system, from its sections."""
    return catalog_files.as_toml((_HEAD,), {"system": system} | dict(sorted(content.items())))


def _with_fit(rows: Rows, constants: Constants) -> Constants:
    """Return a section: constants, and the rows and the error of their fit."""
    errors = np.abs(rows.error_pct(constants))
    names = ", ".join(sorted(rows.datasets))
    fit = {
        "source": f"fitted by shardcost to measured rows of {names}",
        "measured_with": measured_with(rows.datasets),
        "rows": len(errors),
        "median_pct": round(float(np.median(errors)), 2),
        "p90_pct": round(float(np.quantile(errors, 0.9)), 2),
    }
    return constants | {"fit": fit}


def _present(path: Path) -> dict[str, Constants]:
    """Return the sections that a file has."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        return {name: entry for name, entry in tomllib.load(file).items() if name != "system"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit everything that a table covers, and write it into the catalog of this installation."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "table", type=Path, help="table of attention kernels or of decoded layers (CSV)"
    )
    parser.add_argument("--output", type=Path, default=FOLDER, help="where to write the files")
    parser.add_argument("--leave-out", metavar="COLUMN", help="only show errors on rows left out")
    given = parser.parse_args(arguments)
    table = read_table(given.table)
    if given.leave_out:
        if given.leave_out not in table.columns:
            raise UnknownNameError("--leave-out", given.leave_out, table.columns)
        errors = left_out_error_pct(table, np.array(table.columns[given.leave_out]))
        for rows in sections(table):
            _show(rows, errors[rows.places])
        return
    results: dict[str, dict[str, Constants]] = {}
    for rows in sections(table):
        constants = fitted(rows)
        results.setdefault(rows.system, {})[rows.phase] = _with_fit(rows, constants)
        _show(rows, rows.error_pct(constants))
    if not results:
        raise BadValueError("table", str(given.table), "a table with rows on known systems")
    for system, entry in results.items():
        path = given.output / f"{system}.toml"
        write_whole(path, as_toml(system, _present(path) | entry))


def _show(rows: Rows, error_pct: Floats) -> None:
    known = np.abs(error_pct[np.isfinite(error_pct)])
    shown = f"median {np.median(known):6.2f} %, p90 {np.quantile(known, 0.9):6.2f} %"
    print(f"{rows.system:<12} {rows.phase:<12} {len(known):>5} rows, {shown}")


if __name__ == "__main__":
    ended(main)

"""Fits the constants of inference engines to whole runs.

    python -m lab.refit_engines inference.csv [--only ENGINE…]

Which kernels an engine has, and what it overlaps, are choices that its documentation states. What
is left are two constants each, the same on every system: what its host does once a step, for each
sequence or for each kernel, and what a collective waits for (`lab.descent`). What
the fits are worth on rows that they have not seen is told by `lab.folds`. Engines that ran under
load are fitted to those runs (`lab.refit_serving`).

Kernels of a device that nobody measured by themselves are fitted the same way, to one half of the
models, and checked on the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np

from lab.catalog_files import CATALOG, fit_of, update, update_software
from lab.command import ended, parser_of
from lab.descent import descend, errors_pct, in_seconds, loss
from shardcost import catalog
from shardcost.errors import ShardcostError
from shardcost.formats.tables import Row, Table, read_table
from shardcost.machine import CATALOG as CONSTANTS
from shardcost.machine import Fitted
from shardcost.machine.kernels import KernelTable
from shardcost.validate.inference import MEASURED, InferenceCase, case_of, figures
from shardcost.validate.predictions import Floats

ConstantPath = tuple[str, ...]
"""Where a kernel constant stands: table of the catalog, section, further tables, name."""
FITTED: Final[Mapping[str, tuple[str, str]]] = {
    "deepspeed_mii": ("step_overhead_ms", "host_per_sequence_us"),
    "fastertransformer": ("host_per_kernel_us", "collective_wait_us"),
    "megatron_inference": ("host_per_kernel_us", "host_per_sequence_us"),
    "tokenweave": ("slowdown", "step_overhead_ms"),
    "trtllm_2023": ("step_overhead_ms", "collective_wait_us"),
    "trtllm_2024": ("step_overhead_ms", "collective_wait_us"),
    "vllm_2024": ("step_overhead_ms", "host_per_sequence_us"),
}
"""Which two constants each engine has."""
START: Final = {
    "host_per_kernel_us": 20.0,
    "host_per_sequence_us": 20.0,
    "collective_wait_us": 10.0,
    "step_overhead_ms": 0.5,
    "slowdown": 1.5,
}
_FIGURES: Final = ("e2e_latency", "tpot", "prefill_latency", "prefill_latency_no_allreduce", "ttft")
_LOADED: Final = ("tpot", "output_throughput_total")
"""What is fitted, and what of it under load, where the first token comes when it may."""
_COARSE: Final = (0.05, 0.3, 1.0, 3.0, 20.0)
DEVICE: Final = "mi300x"
_DEVICE_ENGINE: Final = "vllm_2024"
_LAUNCH: Final = ("gemm", "vllm_2024_bf16", "launch_us")
DEVICE_START: Final[Mapping[ConstantPath, float]] = {
    ("gemm", "vllm_2024_bf16", "peak_share"): 0.05,
    ("gemm", "vllm_2024_bf16", "memory_share"): 0.5,
    _LAUNCH: 15.0,
    ("attention", "vllm_2024_decode", "vector", "token_ns"): 60.0,
}
"""Where each constant stands, and its start. The launch is that of the other kernels too."""
_SAME_LAUNCH: Final = (
    ("elementwise", "vllm_2024_elementwise", "latency_us"),
    ("attention", "vllm_2024_decode", "vector", "launch_us"),
    ("attention", "vllm_2024_prefill", "launch_us"),
)


class Evidence(NamedTuple):
    """Rows of one engine, by what they share."""

    groups: list[tuple[InferenceCase, list[Row], Floats]]

    @property
    def rows(self) -> list[Row]:
        """Every row."""
        return [row for _, rows, _ in self.groups for row in rows]

    def where(self, keep: Callable[[Row], bool]) -> Evidence:
        """Return the evidence of the rows that `keep` holds for."""
        results = []
        for case, rows, measured in self.groups:
            kept = [i for i, row in enumerate(rows) if keep(row)]
            if kept:
                results.append((case, [rows[i] for i in kept], measured[kept]))
        return Evidence(results)

    def ratios(self, constants: Mapping[str, float], fitted: Fitted = CONSTANTS) -> Floats:
        """Return predicted over measured, of every row."""
        given = in_seconds(constants)
        return np.concatenate(
            [
                figures(_with(case, given), rows, fitted) / measured
                for case, rows, measured in self.groups
            ]
        )


def evidence_of(tables: Iterable[Table], wanted: Callable[[Row], bool]) -> dict[str, Evidence]:
    """Return the rows to fit, by engine."""
    groups: dict[InferenceCase, list[Row]] = {}
    for table in tables:
        for row in table.records():
            if _is_fitted(row) and wanted(row):
                try:
                    groups.setdefault(case_of(row), []).append(row)
                except ShardcostError:
                    continue
    results: dict[str, Evidence] = {}
    for case, rows in groups.items():
        measured = np.array([float(row[MEASURED]) for row in rows])
        each = results.setdefault(case.software.name, Evidence([]))
        each.groups.append((case, rows, measured))
    return results


def fitted(
    name: str, evidence: Evidence, start: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the two constants of an engine that suit rows best.

    Args:
        name: The engine.
        evidence: Its rows.
        start: Where to begin; at the best of a coarse grid if None.
    """

    def lossy(trial: dict[Any, float]) -> float:
        return loss(evidence.ratios(trial))

    if start is None:
        one, two = FITTED[name]
        grid = (
            {one: START[one] * a, two: START[two] * b}
            for a, b in itertools.product(_COARSE, _COARSE)
            if "slowdown" not in FITTED[name] or a == 1
        )
        start = min(grid, key=lossy)
    return descend(lossy, start)


def with_kernel_constants(device: str, constants: Mapping[ConstantPath, float]) -> Fitted:
    """Return the catalog's constants with other values of some constants of a device's kernels."""
    kernels = CONSTANTS.kernels
    for name in sorted({path[0] for path in constants}):
        table = cast("KernelTable", name)
        content = deepcopy(catalog.raw(table, device))
        for path, value in constants.items():
            if path[0] == name:
                section = content
                for key in path[1:-1]:
                    section = section[key]
                section[path[-1]] = value
        kernels = kernels.changing(table, device, content)
    return CONSTANTS._replace(kernels=kernels)


def _with_launches(constants: Mapping[ConstantPath, float]) -> dict[ConstantPath, float]:
    return {**constants, **dict.fromkeys(_SAME_LAUNCH, constants[_LAUNCH])}


def fit_device(evidence: Evidence) -> dict[ConstantPath, float]:
    """Return the constants of the device's kernels that suit rows best."""

    def lossy(trial: dict[Any, float]) -> float:
        fitted = with_kernel_constants(DEVICE, _with_launches(trial))
        return loss(evidence.ratios({}, fitted))

    return descend(lossy, DEVICE_START)


def write_device(
    constants: Mapping[ConstantPath, float], fit: Mapping[str, Any], folder: Path
) -> None:
    """Replace the constants in the device's files, and what is said of their fit."""
    values = _with_launches(constants)
    for table in sorted({path[0] for path in values}):
        changes: dict[ConstantPath, Any] = {
            path[1:]: value for path, value in values.items() if path[0] == table
        }
        for section in {path[0] for path in changes}:
            changes |= {(section, "fit", key): value for key, value in fit.items()}
        file = f"{DEVICE}.toml"
        update(CATALOG / table / file, changes, folder / table / file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the engines named, or all, and the device; write the constants and print their errors."""
    parser = parser_of(__doc__)
    parser.add_argument("tables", nargs="+", type=Path, help="tables of inference")
    parser.add_argument("--only", nargs="*", metavar="NAME", help=f"engines, or {DEVICE}")
    parser.add_argument("--output", type=Path, default=CATALOG, help="folder like the catalog's")
    options = parser.parse_args(arguments)
    tables = [read_table(path) for path in options.tables]
    engines = evidence_of(tables, lambda row: row["cluster"] != DEVICE)
    for name in FITTED:
        if name in engines and (not options.only or name in options.only):
            _refit(name, engines[name], options.output)
    device = evidence_of(tables, lambda row: row["cluster"] == DEVICE).get(_DEVICE_ENGINE)
    if device and (not options.only or DEVICE in options.only):
        _refit_device(device, options.output)


def _refit(name: str, evidence: Evidence, folder: Path) -> None:
    constants = fitted(name, evidence)
    datasets = ", ".join(sorted({row["dataset"] for row in evidence.rows}))
    source = f"fitted by shardcost to measured rows of {datasets}"
    fit = fit_of(source, errors_pct(evidence.ratios(constants)), len(evidence.rows))
    update_software(name, constants, fit, folder)
    print(name, constants, fit)


def _refit_device(evidence: Evidence, folder: Path) -> None:
    models = sorted({row["model"] for row in evidence.rows})
    half = models[0::4] + models[1::4]
    seen = evidence.where(lambda row: row["model"] in half)
    unseen = evidence.where(lambda row: row["model"] not in half)
    constants = fit_device(seen)
    rest = with_kernel_constants(DEVICE, _with_launches(constants))
    errors = errors_pct(seen.ratios({}, rest))
    other = f"{errors_pct(unseen.ratios({}, rest))[0]:.1f} %" if unseen.groups else "not known"
    source = (
        "fitted by shardcost to whole runs of llm_inference_bench (vLLM of 2024 on ROCm),"
        f" half of the models; on the other half the median error is {other}"
    )
    fit = fit_of(source, errors, len(seen.rows))
    write_device(constants, fit, folder)
    print(DEVICE, {".".join(path): value for path, value in constants.items()}, fit)


def _with(case: InferenceCase, given: Mapping[str, Any]) -> InferenceCase:
    return case._replace(software=replace(case.software, **given)) if given else case


def _is_fitted(row: Row) -> bool:
    loaded = row["batching"].startswith("in-flight")
    return row["metric"] in (_LOADED if loaded else _FIGURES)


if __name__ == "__main__":
    ended(main)

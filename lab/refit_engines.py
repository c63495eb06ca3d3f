"""Fits the constants of inference engines to whole runs.

    python -m lab.refit_engines inference.csv [ENGINE…]

Which kernels an engine has, and what it overlaps, are choices that its documentation states. What
is left are two constants each, the same on every system: what its host does once a step, for each
sequence or for each kernel, and what a collective waits for (`lab.descent`). What
the fits are worth on rows that they have not seen is told by `lab.folds`.

Kernels of a device that nobody measured by themselves are fitted the same way, to one half of the
models, and checked on the other.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from lab.software_files import write_constants
from shardcost import catalog
from shardcost.calibrate.descent import descend, errors_pct, in_seconds, loss
from shardcost.errors import ShardcostError
from shardcost.files import write_whole
from shardcost.formats.tables import Row, Table, read_table
from shardcost.kernels import gemm
from shardcost.kernels.constants import own_section, section_of
from shardcost.software import Fit
from shardcost.validate.inference import Question, answers, engine_of, question_of
from shardcost.validate.predictions import Floats

FITTED: Final[Mapping[str, tuple[str, str]]] = {
    "deepspeed_mii": ("step_overhead_ms", "host_per_sequence_us"),
    "fastertransformer": ("host_per_kernel_us", "collective_wait_us"),
    "megatron_inference": ("host_per_kernel_us", "host_per_sequence_us"),
    "sglang": ("step_overhead_ms", "host_per_sequence_us"),
    "tokenweave": ("slowdown", "step_overhead_ms"),
    "trtllm": ("step_overhead_ms", "host_per_sequence_us"),
    "trtllm_2023": ("step_overhead_ms", "collective_wait_us"),
    "trtllm_2024": ("step_overhead_ms", "collective_wait_us"),
    "vllm": ("step_overhead_ms", "host_per_sequence_us"),
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
DEVICE_START: Final = {
    ("gemm", "vllm_2024_bf16", "peak_share"): 0.05,
    ("gemm", "vllm_2024_bf16", "memory_share"): 0.5,
    ("gemm", "vllm_2024_bf16", "launch_us"): 15.0,
    ("attention", "vllm_2024_decode", "vector", "token_ns"): 60.0,
}
"""Where each constant stands, and its start. The launch is that of passes and attention too."""
_SAME_LAUNCH: Final = (
    ("elementwise", "vllm_2024_elementwise", "latency_us"),
    ("attention", "vllm_2024_decode", "vector", "launch_us"),
    ("attention", "vllm_2024_prefill", "launch_us"),
)


class Evidence(NamedTuple):
    """Rows of one engine, by what they share."""

    groups: list[tuple[Question, list[Row], Floats]]

    @property
    def rows(self) -> list[Row]:
        """Every row."""
        return [row for _, rows, _ in self.groups for row in rows]

    def where(self, keep: Callable[[Row], bool]) -> Evidence:
        """Return the evidence of the rows that `keep` holds for."""
        found = []
        for question, rows, measured in self.groups:
            kept = [i for i, row in enumerate(rows) if keep(row)]
            if kept:
                found.append((question, [rows[i] for i in kept], measured[kept]))
        return Evidence(found)

    def ratios(self, constants: Mapping[str, float]) -> Floats:
        """Return predicted over measured, of every row."""
        given = in_seconds(constants)
        return np.concatenate(
            [
                answers(_with(question, given), rows) / measured
                for question, rows, measured in self.groups
            ]
        )


def evidence_of(table: Table, wanted: Callable[[Row], bool]) -> dict[str, Evidence]:
    """Return the rows to fit, by engine."""
    groups: dict[Question, list[Row]] = {}
    for row in table.records():
        if _is_fitted(row) and wanted(row):
            try:
                groups.setdefault(question_of(row), []).append(row)
            except ShardcostError:
                continue
    found: dict[str, Evidence] = {}
    for question, rows in groups.items():
        measured = np.array([float(row["value"]) for row in rows])
        each = found.setdefault(question.software.name, Evidence([]))
        each.groups.append((question, rows, measured))
    return found


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


@contextmanager
def device_constants(constants: Mapping[tuple[str, ...], float]) -> Iterator[None]:
    """Let a device's kernels run by other constants for a while."""
    before = {}
    for path, value in _with_launches(constants).items():
        table = _table(path)
        before[path] = table[path[-1]]
        table[path[-1]] = value
    _forget()
    try:
        yield
    finally:
        for path, value in before.items():
            _table(path)[path[-1]] = value
        _forget()


def write_device(constants: Mapping[tuple[str, ...], float], fit: Mapping[str, Any]) -> None:
    """Replace the constants in the device's files, and what is said of their fit."""
    every = _with_launches(constants)
    for shelf in sorted({path[0] for path in every}):
        file = Path(catalog.__file__).parent / shelf / f"{DEVICE}.toml"
        section: tuple[str, ...] = ()
        lines = []
        for line in file.read_text(encoding="utf-8").splitlines():
            key = line.partition(" = ")[0]
            value = fit.get(key) if section[-1:] == ("fit",) else every.get((shelf, *section, key))
            if line.startswith("["):
                section = tuple(line.strip("[]").split("."))
            lines.append(line if value is None else f"{key} = {_in_toml(value)}")
        write_whole(file, "\n".join([*lines, ""]))


def _in_toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _with_launches(constants: Mapping[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    launch = constants["gemm", "bf16", "launch_us"]
    return {**constants, **dict.fromkeys(_SAME_LAUNCH, launch)}


def fit_device(evidence: Evidence) -> dict[tuple[str, ...], float]:
    """Return the constants of the device's kernels that suit rows best."""

    def lossy(trial: dict[Any, float]) -> float:
        with device_constants(trial):
            return loss(evidence.ratios({}))

    return descend(lossy, DEVICE_START)


def main(arguments: Sequence[str]) -> None:
    """Fit every engine, and print what the fits are worth."""
    table = read_table(Path(arguments[0]))
    engines = evidence_of(table, lambda row: row["cluster"] != DEVICE)
    for name in FITTED:
        if name in engines and (len(arguments) == 1 or name in arguments[1:]):
            _report(name, engines[name])
    device = evidence_of(table, lambda row: row["cluster"] == DEVICE)
    if device and (len(arguments) == 1 or DEVICE in arguments[1:]):
        _report_device(device["vllm_2024"])


def _report(name: str, evidence: Evidence) -> None:
    constants = fitted(name, evidence)
    datasets = ", ".join(sorted({row["dataset"] for row in evidence.rows}))
    median, p90 = errors_pct(evidence.ratios(constants))
    source = f"fitted by shardcost to measured rows of {datasets}"
    fit = Fit(source=source, rows=len(evidence.rows), median_pct=median, p90_pct=p90)
    write_constants(name, constants, fit)
    print(name, constants, fit)


def _report_device(evidence: Evidence) -> None:
    models = sorted({row["model"] for row in evidence.rows})
    half = models[0::4] + models[1::4]
    seen = evidence.where(lambda row: row["model"] in half)
    unseen = evidence.where(lambda row: row["model"] not in half)
    constants = fit_device(seen)
    with device_constants(constants):
        median, p90 = errors_pct(seen.ratios({}))
        other, _ = errors_pct(unseen.ratios({}))
    source = (
        "fitted by shardcost to whole runs of llm_inference_bench (vLLM of 2024 on ROCm),"
        f" half of the models; on the other half the median error is {other:.1f} %"
    )
    fit = {
        "source": source,
        "rows": len(seen.rows),
        "median_pct": round(median, 1),
        "p90_pct": round(p90, 1),
    }
    write_device(constants, fit)
    print(DEVICE, {".".join(path): value for path, value in constants.items()}, fit)


def _with(question: Question, given: Mapping[str, Any]) -> Question:
    return question._replace(software=replace(question.software, **given)) if given else question


def _is_fitted(row: Row) -> bool:
    """Return whether a row is fitted.

    Rows in 8 bits are only where TensorRT-LLM ran them: products in 8 bits were measured with its
    conversion of the input, which others fuse with what comes before.
    """
    loaded = row["batching"].startswith("in-flight")
    wanted = row["metric"] in (_LOADED if loaded else _FIGURES)
    return wanted and (row["weight_dtype"] != "fp8" or engine_of(row).startswith("trtllm"))


def _table(path: tuple[str, ...]) -> dict[str, Any]:
    content: dict[str, Any] = dict(catalog.contents(path[0]))[DEVICE]  # type: ignore[arg-type]
    for name in path[1:-1]:
        content = content[name]
    return content


def _forget() -> None:
    section_of.cache_clear()
    own_section.cache_clear()
    gemm._kernel.cache_clear()


if __name__ == "__main__":
    main(sys.argv[1:])

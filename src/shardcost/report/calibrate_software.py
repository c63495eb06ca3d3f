"""The report of ``shardcost calibrate`` on what a software runs: serving benchmarks, step times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from shardcost.calibrate import serving, steps
from shardcost.calibrate.serving import CalibratedServing
from shardcost.calibrate.steps import CalibratedSteps
from shardcost.formats.reading import Reading
from shardcost.report.calibrate import pair
from shardcost.report.describe import attributes
from shardcost.report.text import paragraph, paragraphs, table
from shardcost.units import format_time
from shardcost.validate.validation import Stats

_NOTHING_S: Final = 2e-9
"""Up to here a time stands for none: constants are above 0."""
_UNDETERMINED: Final = ("as before", "not determined")


def serving_as_data(
    name: str, target: str, on: str, readings: Sequence[Reading], result: CalibratedServing
) -> dict[str, Any]:
    """Return the report on results of serving benchmarks as JSON has it."""
    return {
        "name": name,
        "software": target,
        "based_on": result.software.name,
        "deployment": on,
        "files": [attributes(reading, "file kind") for reading in readings],
        "runs": len(result.runs),
        "skipped": [{"reason": why, "runs": count} for why, count in result.skipped.items()],
        "before": {figure: asdict(stats) for figure, stats in result.before.items()},
        "after": {figure: asdict(stats) for figure, stats in result.after.items()},
        "left_out": {figure: asdict(stats) for figure, stats in result.left_out.items()},
        "constants": [
            {
                **attributes(one, "name before_s after_s plus_minus_s"),
                "fitted": one.plus_minus_s is not None,
            }
            for one in result.constants
        ],
    }


def steps_as_data(
    name: str, target: str, readings: Sequence[Reading], result: CalibratedSteps
) -> dict[str, Any]:
    """Return the report on step times of training runs as JSON has it."""
    return {
        "name": name,
        "software": target,
        "based_on": result.software.name,
        "cluster": result.system,
        "files": [attributes(reading, "file kind") for reading in readings],
        "rows": result.after.rows,
        "skipped": [{"reason": why, "rows": count} for why, count in result.skipped.items()],
        "before": asdict(result.before),
        "after": asdict(result.after),
        "left_out": asdict(result.left_out),
        "constants": [
            {
                **attributes(one, "name before after plus_minus"),
                "fitted": one.plus_minus is not None,
            }
            for one in result.constants
        ],
    }


def serving_as_text(
    name: str, target: str, on: str, readings: Sequence[Reading], result: CalibratedServing
) -> str:
    """Return the report on results of serving benchmarks for a terminal."""
    files = "1 file" if len(readings) == 1 else f"{len(readings)} files"
    runs = "1 run" if len(result.runs) == 1 else f"{len(result.runs)} runs"
    errors = [
        (figure.upper(), result.before[figure], after, result.left_out[figure])
        for figure, after in result.after.items()
    ]
    constants = [
        (one.name, one.meaning, format_time(one.before_s), *_fitted_time(one))
        for one in result.constants
    ]
    spent = table(("constant", "spent", "before", "after", "90 % range"), constants, right="23")
    title = f"{name}: {runs} of {files} on {on}"
    return _as_text(title, "runs", errors, spent, _remarks_on_serving(result), target)


def steps_as_text(
    name: str, target: str, readings: Sequence[Reading], result: CalibratedSteps
) -> str:
    """Return the report on step times of training runs for a terminal."""
    files = "1 file" if len(readings) == 1 else f"{len(readings)} files"
    rows = result.after.rows
    times = "1 step time" if rows == 1 else f"{rows} step times"
    errors = [("step time", result.before, result.after, result.left_out)]
    constants = [(one.name, _value(one, one.before), *_fitted(one)) for one in result.constants]
    fitted = table(("constant", "before", "after", "90 % range"), constants, right="12")
    title = f"{name}: {times} of {files}, {result.software.name} on {result.system}"
    return _as_text(title, "rows", errors, fitted, _remarks_on_steps(result), target)


def _as_text(
    title: str,
    unit: str,
    errors: Sequence[tuple[str, Stats, Stats, Stats]],
    constants: str,
    remarks: Sequence[str],
    target: str,
) -> str:
    """Return a report: its errors before, after and left out, the constants, remarks, the file."""
    head = ("median / p90 error, %", unit, "before", "after", "left out")
    rows = [(what, str(each[1].rows), *map(pair, each)) for what, *each in errors]
    sections = [
        paragraph(title, "  "),
        table(head, rows, right="123", narrowest=10),
        constants,
        paragraphs(remarks),
        paragraph(f"Software: {target}. Every command takes it: --software {target}"),
    ]
    return "\n\n".join(section for section in sections if section)


def _fitted_time(one: serving.FittedConstant) -> tuple[str, str]:
    """Return a time of the host as fitted, and its range."""
    if one.plus_minus_s is None:
        return _UNDETERMINED
    if one.at_bound:
        return "none", f"at most {format_time(one.plus_minus_s)}"
    return format_time(one.after_s), f"± {format_time(one.plus_minus_s)}"


def _fitted(one: steps.FittedConstant) -> tuple[str, str]:
    """Return a constant of a framework as fitted, and its range."""
    if one.plus_minus is None:
        return _UNDETERMINED
    return _value(one, one.after), f"± {_value(one, one.plus_minus)}"


def _value(one: steps.FittedConstant, value: float) -> str:
    if not one.name.endswith("_s"):
        return f"{value:.3f}"
    return format_time(value) if value > _NOTHING_S else "none"


def _remarks_on_serving(result: CalibratedServing) -> list[str]:
    said = []
    alone = {one.name for one in result.constants if one.plus_minus_s is None}
    if "host_per_sequence_s" in alone:
        said.append("host_per_sequence_s shows in runs with few and with many requests in flight.")
    if "frontend_s" in alone:
        said.append("frontend_s shows in the TTFT of runs at low load.")
    if any(one.at_bound for one in result.constants):
        said.append(
            "A constant of none says that kernels alone are predicted slower than the measured"
            " steps: look at the model, its number formats and the layout first."
        )
    said += [f"Not used, {count} runs: {reason}." for reason, count in result.skipped.items()]
    return said


def _remarks_on_steps(result: CalibratedSteps) -> list[str]:
    said = []
    if any(one.plus_minus is None for one in result.constants):
        said.append(
            "To determine step_overhead_s, give four rows or more, with short and with long steps."
        )
    before, left_out = result.before.median_pct, result.left_out.median_pct
    if before is not None and left_out is not None and left_out >= before:
        said.append("Rows left out are predicted no better than by the shipped constants.")
    if not result.alike:
        said.append(
            "Rows differ in choices of the framework (overlap, dispatcher, graphs): the file has"
            " the framework's own."
        )
    said += [f"Not used, {count} rows: {reason}." for reason, count in result.skipped.items()]
    return said

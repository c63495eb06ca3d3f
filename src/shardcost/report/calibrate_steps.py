"""The report of ``shardcost calibrate`` on step times of training runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from shardcost.calibrate.steps import CalibratedSteps, FittedConstant
from shardcost.formats.reading import Reading
from shardcost.report.calibrate import pair
from shardcost.report.describe import attributes
from shardcost.report.text import paragraph, paragraphs, table
from shardcost.units import format_time

_NOTHING_S: Final = 2e-9
"""Up to here a time stands for none: constants are above 0."""


def as_data(
    name: str, target: str, readings: Sequence[Reading], result: CalibratedSteps
) -> dict[str, Any]:
    """Return the report as JSON has it."""
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


def as_text(name: str, target: str, readings: Sequence[Reading], result: CalibratedSteps) -> str:
    """Return the report for a terminal."""
    files = "1 file" if len(readings) == 1 else f"{len(readings)} files"
    rows = result.after.rows
    steps = "1 step time" if rows == 1 else f"{rows} step times"
    errors = [("step time", str(rows), *map(pair, (result.before, result.after, result.left_out)))]
    head = ("median / p90 error, %", "rows", "before", "after", "left out")
    constants = [(one.name, _value(one, one.before), *_fitted(one)) for one in result.constants]
    sections = [
        paragraph(f"{name}: {steps} of {files}, {result.software.name} on {result.system}", "  "),
        table(head, errors, right="123", narrowest=10),
        table(("constant", "before", "after", "90 % range"), constants, right="12"),
        paragraphs(_remarks(result)),
        paragraph(f"Software: {target}. Every command takes it: --software {target}"),
    ]
    return "\n\n".join(each for each in sections if each)


def _value(one: FittedConstant, value: float) -> str:
    if not one.name.endswith("_s"):
        return f"{value:.3f}"
    return format_time(value) if value > _NOTHING_S else "none"


def _fitted(one: FittedConstant) -> tuple[str, str]:
    if one.plus_minus is None:
        return "as before", "not determined"
    return _value(one, one.after), f"± {_value(one, one.plus_minus)}"


def _remarks(result: CalibratedSteps) -> list[str]:
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

"""The report of ``shardcost calibrate`` on results of serving benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from shardcost.calibrate.serving import CalibratedServing, FittedConstant
from shardcost.formats.reading import Reading
from shardcost.report.calibrate import pair
from shardcost.report.describe import attributes
from shardcost.report.text import paragraph, paragraphs, table
from shardcost.units import format_time


def as_data(
    name: str, target: str, on: str, readings: Sequence[Reading], result: CalibratedServing
) -> dict[str, Any]:
    """Return the report as JSON has it."""
    return {
        "name": name,
        "software": target,
        "based_on": result.software.name,
        "deployment": on,
        "files": [attributes(reading, "file kind") for reading in readings],
        "runs": len(result.runs),
        "skipped": [{"reason": why, "runs": count} for why, count in result.skipped.items()],
        "before": {figure: asdict(each) for figure, each in result.before.items()},
        "after": {figure: asdict(each) for figure, each in result.after.items()},
        "left_out": {figure: asdict(each) for figure, each in result.left_out.items()},
        "constants": [
            {
                **attributes(one, "name before_s after_s plus_minus_s"),
                "fitted": one.plus_minus_s is not None,
            }
            for one in result.constants
        ],
    }


def as_text(
    name: str, target: str, on: str, readings: Sequence[Reading], result: CalibratedServing
) -> str:
    """Return the report for a terminal."""
    files = "1 file" if len(readings) == 1 else f"{len(readings)} files"
    runs = "1 run" if len(result.runs) == 1 else f"{len(result.runs)} runs"
    head = ("median / p90 error, %", "runs", "before", "after", "left out")
    rows = [
        (figure.upper(), str(result.after[figure].rows), pair(result.before[figure]),
         pair(result.after[figure]), pair(result.left_out[figure]))
        for figure in result.after
    ]  # fmt: skip
    constants = [
        (one.name, one.meaning, format_time(one.before_s), *_fitted(one))
        for one in result.constants
    ]
    sections = [
        paragraph(f"{name}: {runs} of {files} on {on}", "  "),
        table(head, rows, right="123", narrowest=10),
        table(("constant", "spent", "before", "after", "90 % range"), constants, right="23"),
        paragraphs(_remarks(result)),
        paragraph(f"Software: {target}. Every command takes it: --software {target}"),
    ]
    return "\n\n".join(each for each in sections if each)


def _fitted(one: FittedConstant) -> tuple[str, str]:
    if one.plus_minus_s is None:
        return "as before", "not determined"
    if one.at_bound:
        return "none", f"at most {format_time(one.plus_minus_s)}"
    return format_time(one.after_s), f"± {format_time(one.plus_minus_s)}"


def _remarks(result: CalibratedServing) -> list[str]:
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

"""The report of ``shardcost calibrate``: what a profile rests on, how sure it is, what to add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from shardcost.calibrate.calibrate import Calibrated
from shardcost.calibrate.gather import Gathered
from shardcost.formats.reading import Reading
from shardcost.machine.constants import NetworkConstants, in_file_name, in_file_units
from shardcost.report.describe import attributes
from shardcost.report.text import paragraph, table
from shardcost.units import format_bytes
from shardcost.validate.validation import Stats

_UNITS: Final = {"_us": "us", "_gb_per_s": "GB/s", "_bytes": "B"}
_MOST_CONSTANTS: Final = 8
_WIDE_PCT: Final = 900
"""A range as wide as that says that nothing is known."""


def as_data(
    name: str,
    target: str | None,
    readings: Sequence[Reading],
    gathered: Gathered,
    results: Sequence[Calibrated],
) -> dict[str, Any]:
    """Return the report as JSON has it."""
    return {
        "name": name,
        "profile": target,
        "based_on": gathered.cluster.name,
        "network": gathered.cluster.network.name if gathered.cluster.network else None,
        "files": [attributes(reading, "file kind") for reading in readings],
        "points": gathered.points,
        "skipped": [{"reason": r, "points": count} for r, count in gathered.passed_over.items()],
        "calibrated": [_result_as_data(result) for result in results],
    }


def _result_as_data(result: Calibrated) -> dict[str, Any]:
    units = in_file_units(result.calibration.constants)
    fit = result.calibration.fit
    return {
        **attributes(result.calibration, "library system"),
        "collectives": list(fit.collectives),
        "gpus": [fit.least_gpus, fit.most_gpus],
        "started_from": result.started_from,
        "before": asdict(result.before),
        "after": asdict(result.after),
        "left_out": asdict(result.left_out),
        "gpu_counts_left_out": asdict(result.counts_left_out),
        "without_tables": _without_tables(result),
        "tables": [
            attributes(one, "collective library mode within_pct")
            | {"points": len(one.residual.points), "reach": list(one.residual.scales)}
            for one in result.calibration.residuals
        ],
        "interval_pct": [fit.low_pct, fit.high_pct],
        "constants": [
            {
                "name": in_file_name(one.name),
                "value": units[in_file_name(one.name)],
                "plus_minus_pct": round(one.plus_minus_pct, 1),
                "measured": one.measured,
            }
            for one in result.constants
        ],
        "measure_next": result.further._asdict() if result.further else None,
    }


def as_text(
    name: str,
    target: str,
    readings: Sequence[Reading],
    gathered: Gathered,
    results: Sequence[Calibrated],
) -> str:
    """Return the report for a terminal."""
    network = f", {gathered.cluster.network.name}" if gathered.cluster.network else ""
    files = "1 file" if len(readings) == 1 else f"{len(readings)} files"
    lines = [f"{name}: {gathered.points} points of {files} on {gathered.cluster.name}{network}", ""]
    head = ("median / p90 error, %", "points", "before", "after", "left out", "count left out")
    rows = []
    for result in results:
        errors = (result.before, result.after, result.left_out, result.counts_left_out)
        rows.append((_what(result), str(result.after.rows), *map(pair, errors)))
        alone = result.without_tables
        if alone is not None:
            rows.append(("  formula alone", "", pair(result.before), *map(pair, alone)))
    lines += [table(head, rows, right="1234", narrowest=14), ""]
    for result in results:
        lines += [*about(result), ""]
    for reason, count in gathered.passed_over.items():
        lines.append(paragraph(f"Not used, {count} points: {reason}.", "  "))
    lines.append(paragraph(f"Profile: {target}. Every command takes it: --on {target}"))
    return "\n".join(lines)


def _without_tables(result: Calibrated) -> dict[str, Any] | None:
    """Return the errors of the formula alone, where there are tables of its residuals."""
    if result.without_tables is None:
        return None
    after, left_out, counts = map(asdict, result.without_tables)
    return {"after": after, "left_out": left_out, "gpu_counts_left_out": counts}


def _what(result: Calibrated) -> str:
    if isinstance(result.calibration.constants, NetworkConstants):
        return f"network {result.calibration.system}"
    return result.calibration.library


def pair(errors: Stats) -> str:
    """Return the median and the 90th percentile of errors; a dash where there are none."""
    if errors.median_pct is None or errors.p90_pct is None:
        return "-"
    return f"{errors.median_pct:.1f} / {errors.p90_pct:.1f}"


def about(result: Calibrated) -> list[str]:
    """Return what became of the constants, and what to measure next."""
    known = [one for one in result.constants if one.measured]
    said = [f"{_what(result)} started from {result.started_from}."]
    if result.constants:
        said.append(
            f"{len(known)} of {len(result.constants)} constants follow from the points; the others"
            " stay near where they started:"
        )
        said.append(", ".join(_constant(result, one.name) for one in known[:_MOST_CONSTANTS]) + ".")
    lines = [paragraph(" ".join(said if known else said[:1]))]
    tables = result.calibration.residuals
    if tables:
        names = ", ".join(dict.fromkeys(one.collective for one in tables))
        lines.append(
            paragraph(
                "Near measured points the profile corrects the formula by what it left there"
                f" ({names}); errors without that: formula alone."
            )
        )
    further = result.further
    if further is not None:
        next_ = f"{further.collective} of {format_bytes(further.size_bytes)} on {further.gpus} GPUs"
        gain = f"from {_range(further.now_pct)} to {_range(further.then_pct)}"
        brings = f"it would narrow the range of predictions on this system {gain}"
        lines.append(paragraph(f"Measure next: {next_}; {brings}."))
    return lines


def _constant(result: Calibrated, name: str) -> str:
    """Return a constant with its unit and its range."""
    shown = in_file_name(name)
    value = in_file_units(result.calibration.constants)[shown]
    unit = next((f" {text}" for suffix, text in _UNITS.items() if shown.endswith(suffix)), "")
    plain = shown.removesuffix("_us").removesuffix("_gb_per_s")
    range_pct = next(one.plus_minus_pct for one in result.constants if one.name == name)
    return f"{plain} {value:g}{unit} ({_range(range_pct)})"


def _range(pct: float) -> str:
    return f"±{pct:.0f} %" if pct <= _WIDE_PCT else f"more than ±{_WIDE_PCT} %"

"""The report of ``shardcost calibrate``: what a profile rests on, how sure it is, what to add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from shardcost.calibrate.calibrate import Calibrated
from shardcost.calibrate.gather import Gathered
from shardcost.calibrate.kernels import CalibratedKernels
from shardcost.calibrate.profile import Profile
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


def collectives_as_data(
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
    fit, alone = result.calibration.fit, result.without_tables
    return {
        **attributes(result.calibration, "library system"),
        "collectives": list(fit.collectives),
        "gpus": [fit.least_gpus, fit.most_gpus],
        "started_from": result.started_from,
        "before": asdict(result.before),
        "after": asdict(result.after),
        "left_out": asdict(result.left_out),
        "gpu_counts_left_out": asdict(result.counts_left_out),
        "without_tables": alone
        and {
            "after": asdict(alone.after),
            "left_out": asdict(alone.left_out),
            "gpu_counts_left_out": asdict(alone.counts_left_out),
        },
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


def collectives_as_text(
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


def kernels_as_data(
    results: Sequence[CalibratedKernels], skipped: Mapping[str, int]
) -> dict[str, Any]:
    """Return the report as JSON has it."""
    return {
        "kernels": [
            {
                "table": result.key[0],
                "section": result.key[1],
                "measured": result.title,
                "started_from": result.started_from,
                "before": asdict(result.before),
                "inherited": asdict(result.inherited),
                "after": asdict(result.after),
                "formula_left_out": asdict(result.formula_left_out),
                "left_out": asdict(result.left_out),
                "residual_points": len(getattr(result.section.residual, "points", ())),
                "constants": {name: {"from": a, "to": b} for name, (a, b) in result.moved.items()},
            }
            for result in results
        ],
        "kernels_skipped": [{"reason": r, "points": count} for r, count in skipped.items()],
    }


def kernels_as_text(results: Sequence[CalibratedKernels], skipped: Mapping[str, int]) -> str:
    """Return the report for a terminal."""
    head = (
        "median/p90 error, %",
        "points",
        "catalog",
        "inherited",
        "after",
        "left out",
        "formula",
    )
    rows = [
        (
            result.title,
            str(result.after.rows),
            *map(_narrow_pair, (result.before, result.inherited, result.after)),
            _narrow_pair(result.left_out),
            _narrow_pair(result.formula_left_out),
        )
        for result in results
    ]
    lines = [table(head, rows, right="123456", narrowest=9), ""]
    lines.append(
        paragraph(
            "catalog: by the catalog's constants; inherited: as if nobody had measured this device;"
            " left out: each fifth by what the others say; formula: likewise, without the residual"
            " over sizes that the profile keeps."
        )
    )
    lines += [paragraph(f"Not used, {count} rows: {why}.", "  ") for why, count in skipped.items()]
    return "\n".join(lines)


def _narrow_pair(errors: Stats) -> str:
    """Return the median and the 90th percentile of errors; a dash where there are none."""
    return pair(errors).replace(" ", "")


def as_data(profile: Profile) -> dict[str, Any]:
    """Return the report as JSON has it."""
    data: dict[str, Any] = {}
    if profile.gathered is not None:
        shown = (profile.readings, profile.gathered, profile.calibrated)
        data = collectives_as_data(profile.name, profile.file, *shown)
    if profile.kernels is not None:
        about = {"name": profile.name, "profile": profile.file, "based_on": profile.base.system}
        fits = kernels_as_data(profile.kernels.results, profile.kernels.skipped)
        data |= {**about, **fits}
    return data


def as_text(profile: Profile) -> str:
    """Return the report for a terminal."""
    texts, target = [], profile.file or ""
    if profile.gathered is not None:
        shown = (profile.readings, profile.gathered, profile.calibrated)
        texts.append(collectives_as_text(profile.name, target, *shown))
    if profile.kernels is not None:
        found, skipped = profile.kernels.results, profile.kernels.skipped
        head = f"{profile.name}: {sum(each.after.rows for each in found)} measured kernels"
        end = f"Profile: {target}. Every command takes it: --on {target}"
        texts.append("\n".join((head, "", kernels_as_text(found, skipped), end)))
    return "\n\n".join(texts)

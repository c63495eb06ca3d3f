"""The part of the report of ``shardcost calibrate`` that is about kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from shardcost.calibrate.kernels import CalibratedKernels
from shardcost.report.calibrate import pair
from shardcost.report.text import paragraph, table
from shardcost.validate.validation import Stats


def as_data(results: Sequence[CalibratedKernels], skipped: Mapping[str, int]) -> dict[str, Any]:
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
                "residual_points": _points(result),
                "constants": {name: {"from": a, "to": b} for name, (a, b) in result.moved.items()},
            }
            for result in results
        ],
        "kernels_skipped": [{"reason": r, "points": count} for r, count in skipped.items()],
    }


def as_text(results: Sequence[CalibratedKernels], skipped: Mapping[str, int]) -> str:
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
            *map(_pair, (result.before, result.inherited, result.after)),
            _pair(result.left_out),
            _pair(result.formula_left_out),
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


def _pair(errors: Stats) -> str:
    """Return the median and the 90th percentile of errors; a dash where there are none."""
    return pair(errors).replace(" ", "")


def _points(result: CalibratedKernels) -> int:
    residual = result.section.residual
    return 0 if residual is None else len(residual.points)

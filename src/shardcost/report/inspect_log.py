"""The report on a log of measured collectives: what ran, how fast, and which rows to doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final, TypeVar

from shardcost.formats.reading import MeasurementLog, Point, Run, Unread
from shardcost.inspect.log import NEAR_PEAK, RatedPoint, RunFindings
from shardcost.inspect.verdict import Verdict
from shardcost.report.describe import attributes
from shardcost.report.text import heading, paragraph, paragraphs, sparse_table
from shardcost.report.verdict import as_data as verdict_as_data
from shardcost.report.verdict import as_text as verdict_as_text
from shardcost.units import GIGA, format_bytes, format_rate, format_time

_MOST_ROWS: Final = 12
_MOST_RUNS: Final = 6
_MOST_LINES_NAMED: Final = 6
_MOST_REMARKS: Final = 4
_Row = TypeVar("_Row")
_MOST_UNREAD: Final = 4
"""Reasons for unread lines that are named; others are counted together."""


def as_data(
    log: MeasurementLog, findings: Sequence[RunFindings], verdict: Verdict | None = None
) -> dict[str, Any]:
    """Return the report as plain data: the first run at the top, all of them where there are more.

    Bandwidths are in GB/s (1e9), times in microseconds, sizes in bytes.
    """
    runs = [_run_as_data(run) for run in findings]
    return {
        **attributes(log, "file kind"),
        **({} if verdict is None else verdict_as_data(verdict)),
        **runs[0],
        **({"runs": runs} if len(runs) > 1 else {}),
        "unread": unread_as_data(log.unread),
        "notes": [*log.notes, *findings[0].run.notes],
    }


def as_text(
    log: MeasurementLog, findings: Sequence[RunFindings], verdict: Verdict | None = None
) -> str:
    """Return the report for a terminal, about one screen of it."""
    first = findings[0]
    sections = [
        heading(paragraph(f"{log.file}: {summary(first)}", "  ")),
        sparse_table([_cells(*pair) for pair in _picked(_pairs(first))]),
        "" if verdict is None else verdict_as_text(verdict),
        paragraphs(_remarks(log, first, verdict)),
    ]
    if len(findings) > 1:
        others = [f"Also: {summary(each)}" for each in findings[1:_MOST_RUNS]]
        beyond = len(findings) - _MOST_RUNS
        others += [f"And {beyond} more runs (--json lists them)."] if beyond > 0 else []
        sections.append(paragraphs(others))
    return "\n\n".join(each for each in sections if each)


def unread_as_data(unread: Sequence[Unread]) -> list[dict[str, Any]]:
    """Return the skipped lines of a file as plain data."""
    return [asdict(each) for each in unread]


def unread_in_words(unread: Sequence[Unread]) -> list[str]:
    """Return the skipped lines of a file as one sentence; nothing where all was read.

    >>> unread_in_words([Unread("a time of 0", 2, 7)])
    ['Not read: 2 x a time of 0 (from line 7).']
    """
    named = [
        f"{each.count:,} x {each.reason}"
        + f" (from line {each.first_line})" * (each.first_line > 0)
        for each in unread[:_MOST_UNREAD]
    ]
    beyond = sum(each.count for each in unread[_MOST_UNREAD:])
    named += [f"{beyond:,} for other reasons"] if beyond else []
    return [f"Not read: {'; '.join(named)}."] if named else []


def _run_as_data(result: RunFindings) -> dict[str, Any]:
    run, peak = result.run, result.peak
    return {
        **attributes(run, "collective num_gpus nodes library version device single_process"),
        "system": result.system or None,
        "nominal_link": gb_per_s(result.nominal_bytes_per_s),
        "peak": None if peak is None else _point_as_data(peak),
        "near_peak_bytes": result.near_peak_bytes or None,
        "latency_floor_us": None if result.floor_s is None else _us(result.floor_s),
        "not_predicted": result.not_predicted or None,
        "points": [
            _point_as_data(rated) | ({"in_place": _point_as_data(other)} if other else {})
            for rated, other in _pairs(result)
        ],
        "suspicious": [
            {"size_bytes": doubt.point.size_bytes, "time_us": _us(doubt.point.time_s)}
            | {**attributes(doubt.point, "in_place line"), "reason": doubt.reason}
            for doubt in result.suspicious
        ],
        "notes": list(run.notes),
    }


def _point_as_data(rated: RatedPoint) -> dict[str, Any]:
    return {
        **rates_as_data(rated),
        "link_share": rated.link_share,
        "predicted_us": None if rated.predicted_s is None else _us(rated.predicted_s),
        "predicted_busbw": gb_per_s(rated.predicted_busbw_bytes_per_s),
        **attributes(rated.point, "dtype line"),
    }


def rates_as_data(rated: RatedPoint) -> dict[str, Any]:
    """Return size, time and bandwidths of a measured point."""
    return {
        "size_bytes": rated.point.size_bytes,
        "time_us": _us(rated.point.time_s),
        "algbw": gb_per_s(rated.algbw_bytes_per_s),
        "busbw": gb_per_s(rated.busbw_bytes_per_s),
    }


def _pairs(findings: RunFindings) -> list[tuple[RatedPoint, RatedPoint | None]]:
    """Return the main points, each with the one measured in place beside it."""
    in_place = {_key(each.point): each for each in findings.points if each.point.in_place}
    others = [in_place.get(_key(each.point)) for each in findings.main]
    pairs = zip(findings.main, others, strict=True)
    return [(each, None if other is each else other) for each, other in pairs]


def _key(point: Point) -> tuple[int, int]:
    return point.line, point.size_bytes


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 6)


def gb_per_s(bytes_per_s: float | None) -> float | None:
    """Return a rate in GB/s, where there is one."""
    return None if bytes_per_s is None else bytes_per_s / GIGA


def summary(result: RunFindings) -> str:
    """Return in one sentence what ran, on what, and how fast it was at best."""
    run, peak = result.run, result.peak
    sizes = [each.point.size_bytes for each in result.main]
    reach = format_bytes(min(sizes))
    if max(sizes) > min(sizes):
        reach = f"{len(set(sizes))} sizes from {reach} to {format_bytes(max(sizes))}"
    text = f"{_what_ran(run)}, {reach}"
    if peak is None or peak.busbw_bytes_per_s is None:
        best = max(each.algbw_bytes_per_s for each in result.main)
        return f"{text}: algbw peaks at {format_rate(best)}."
    text += f": busbw peaks at {format_rate(peak.busbw_bytes_per_s)}"
    text += f" at {format_bytes(peak.point.size_bytes)}"
    if peak.link_share is not None and result.nominal_bytes_per_s:
        nominal = f"the {format_rate(result.nominal_bytes_per_s)} of {result.system}'s slowest link"
        text += f", {100 * peak.link_share:.1f} % of {nominal}"
    return f"{text}."


def _what_ran(run: Run) -> str:
    name = run.collective or "a collective that the log does not name"
    count = f"{run.num_gpus or 'an unknown number of'} GPU{'s' * (run.num_gpus != 1)}"
    nodes = f" of {run.nodes} nodes" if run.nodes > 1 else ""
    device = f" ({run.device})" if run.device else ""
    library = f", {run.library} {run.version}".rstrip() if run.library else ""
    return f"{name} on {count}{nodes}{device}{library}"


def _cells(each: RatedPoint, other: RatedPoint | None) -> dict[str, str]:
    """Return a row by column."""
    predicted = each.predicted_busbw_bytes_per_s
    return {
        "size": format_bytes(each.point.size_bytes),
        "time us": _digits(_us(each.point.time_s)),
        "in place us": _digits(_us(other.point.time_s)) if other else "",
        "pred. us": "" if each.predicted_s is None else _digits(_us(each.predicted_s)),
        # Where a prediction stands beside the bus bandwidth, the screen has no room for both.
        "algbw GB/s": _digits(gb_per_s(each.algbw_bytes_per_s)) if predicted is None else "",
        "busbw GB/s": _digits(gb_per_s(each.busbw_bytes_per_s)),
        "pred. GB/s": _digits(gb_per_s(predicted)),
        "of link": "" if each.link_share is None else f"{100 * each.link_share:.1f} %",
    }


def _digits(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value < 1000 else f"{value:,.0f}"


def _picked(rows: Sequence[_Row]) -> list[_Row]:
    """Return the rows that a table has room for, the first and the last among them."""
    steps = min(len(rows), _MOST_ROWS) - 1
    return [rows[round(i * (len(rows) - 1) / max(steps, 1))] for i in range(steps + 1)]


def _remarks(log: MeasurementLog, result: RunFindings, verdict: Verdict | None) -> list[str]:
    """Return what else to say, each as one line: the ramp, doubts, what was not read, notes."""
    said = []
    if len(result.main) > _MOST_ROWS:
        said.append(f"Shown are {_MOST_ROWS} of {len(result.main)} rows (--json has all).")
    said += [_ramp(result)] if _ramp(result) else []
    told = set() if verdict is None else verdict.row_kinds
    doubts_left = (doubt for doubt in result.suspicious if doubt.kind not in told)
    in_order = sorted(doubts_left, key=lambda doubt: doubt.kind)
    for kind, members in groupby(in_order, key=lambda doubt: doubt.kind):
        doubts = list(members)
        reason = doubts[0].reason if len(doubts) == 1 else kind
        said.append(f"Suspicious: {reason}: {_rows_named([doubt.point for doubt in doubts])}.")
    said += unread_in_words(log.unread)
    if result.not_predicted and result.system:
        said.append(f"Not predicted: {result.not_predicted}")
    notes = [*log.notes, *result.run.notes]
    said += [f"Note: {note}" for note in notes[:_MOST_REMARKS]]
    return said


def _ramp(result: RunFindings) -> str:
    parts, size = [], result.near_peak_bytes
    if size:
        parts.append(f"{100 * NEAR_PEAK:.0f} % of the peak from {format_bytes(size)} on")
    if result.floor_s is not None:
        parts.append(f"small messages take {format_time(result.floor_s)}")
    return f"{'; '.join(parts)}." if parts else ""


def _rows_named(points: Sequence[Point]) -> str:
    """Return rows by size and line; of many, where the first and the last of them stand."""
    outside = {_key(each) for each in points if not each.in_place}
    rows = [each for each in points if not each.in_place or _key(each) not in outside]
    if len(rows) <= _MOST_LINES_NAMED:
        return ", ".join(
            format_bytes(row.size_bytes)
            + " in place" * row.in_place
            + (f" (line {row.line})" if row.line else "")
            for row in rows
        )
    sizes, lines = [each.size_bytes for each in rows], [each.line for each in rows]
    where = f" (lines {min(lines)} to {max(lines)})" if min(lines) else ""
    return f"{len(rows)} rows from {format_bytes(min(sizes))} to {format_bytes(max(sizes))}{where}"

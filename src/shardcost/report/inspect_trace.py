"""The report on traces: where the time went, the collectives, and what costs most."""

from __future__ import annotations

from typing import Any, Final

from shardcost.formats.reading import Unread
from shardcost.inspect.trace import GroupFindings, TraceFindings, name_of
from shardcost.report.describe import attributes
from shardcost.report.inspect_log import gb_per_s, rates_as_data, unread_as_data, unread_in_words
from shardcost.report.text import heading, paragraph, paragraphs, sparse_table, table
from shardcost.units import format_rate, format_time

_MOST_GROUPS: Final = 8
_MOST_KERNELS: Final = 3
_MOST_REMARKS: Final = 4
_LONGEST_KERNEL: Final = 58
_LONGEST_GROUP: Final = 14


def as_data(findings: TraceFindings) -> dict[str, Any]:
    """Return the report as plain data. Times are in seconds, or microseconds where named so."""
    files = [each.file for each in findings.traces]
    return {
        "file": files[0],
        **({"files": files} if len(files) > 1 else {}),
        "kind": findings.traces[0].kind,
        "rank": findings.ranks[0] if findings.ranks else None,
        "ranks": list(findings.ranks),
        **attributes(findings.traces[0], "world_size backend device"),
        "system": findings.system or None,
        **attributes(findings, "span_s compute_s communication_s exposed_s hidden_s"),
        **attributes(findings, "copies_s idle_s"),
        "groups": [
            {
                **each.shape._asdict(),
                **attributes(each, "calls size_bytes time_s waiting_s exposed_s hidden_s"),
                "algbw": gb_per_s(each.algbw_bytes_per_s),
                "busbw": gb_per_s(each.busbw_bytes_per_s),
                **attributes(each, "achieved_s predicted_s achieved_over_predicted=slowness"),
            }
            for each in findings.groups
        ],
        "runs": [
            {
                **attributes(each.run, "collective num_gpus"),
                "points": [rates_as_data(point) for point in each.points],
                "notes": list(each.run.notes),
            }
            for each in findings.runs
        ],
        "kernels": [each._asdict() for each in findings.kernels],
        "top": [each._asdict() for each in findings.top],
        "unread": unread_as_data(_unread(findings)),
        "notes": list(findings.notes),
    }


def as_text(findings: TraceFindings) -> str:
    """Return the report for a terminal, about one screen of it."""
    sections = [heading(paragraph(summary(findings), "  ")), _parts_table(findings)]
    if findings.groups:
        rows = [_group_cells(each) for each in findings.groups[:_MOST_GROUPS]]
        sections.append(sparse_table(rows, left={"collective", "group"}))
    if findings.top:
        lines = [
            f"{number}. {top.subject}: {format_time(top.seconds)} ({100 * top.share:.1f} %),"
            f" {top.advice}."
            for number, top in enumerate(findings.top, 1)
        ]
        lines = [paragraph(line, "   ") for line in lines]
        sections.append("\n".join([heading("What costs most"), *lines]))
    if findings.kernels:
        lines = [heading("Heaviest compute kernels")]
        for kernel in findings.kernels[:_MOST_KERNELS]:
            short, rest = kernel.name[: _LONGEST_KERNEL - 1], kernel.name[_LONGEST_KERNEL - 1 :]
            name = kernel.name if len(rest) <= 1 else f"{short}…"
            lines.append(f"  {format_time(kernel.time_s):>9}  {name}")
        sections.append("\n".join(lines))
    sections.append(paragraphs(_remarks(findings)))
    return "\n\n".join(each for each in sections if each)


def _unread(findings: TraceFindings) -> list[Unread]:
    return [each for trace in findings.traces for each in trace.unread]


def summary(findings: TraceFindings) -> str:
    """Return in one sentence what the traces are of."""
    trace = findings.traces[0]
    if not findings.ranks:
        return "A profiler trace without GPU kernels."
    several = len(findings.ranks) > 1
    whose = f"{len(findings.ranks)} ranks" if several else f"rank {findings.ranks[0]}"
    of = f" of {trace.world_size}" if trace.world_size else ""
    device = f" ({trace.device})" if trace.device else ""
    mean = " on average" if several else ""
    share = _percent(findings.exposed_s, findings)
    return (
        f"Profiler trace of {whose}{of}{device}: {format_time(findings.span_s)}{mean}, of which"
        f" {share} is exposed communication and {_percent(findings.idle_s, findings)} idle."
    )


def _percent(seconds: float, findings: TraceFindings) -> str:
    return f"{100 * seconds / findings.span_s:.1f} %" if findings.span_s else "0 %"


def _parts_table(findings: TraceFindings) -> str:
    parts = (
        ("compute", findings.compute_s, "a compute kernel runs"),
        ("hidden", findings.hidden_s, "communication behind compute, part of the above"),
        ("exposed", findings.exposed_s, "communication while no compute kernel runs"),
        ("copies", findings.copies_s, "nothing but copies"),
        ("idle", findings.idle_s, "no kernel runs"),
    )
    rows = [
        (name, format_time(seconds), _percent(seconds, findings), text)
        for name, seconds, text in parts
    ]
    return table(("part", "time", "share", "meaning"), rows, right="12")


def _group_cells(each: GroupFindings) -> dict[str, str]:
    """Return a row by column."""
    shape = each.shape
    busbw = each.busbw_bytes_per_s
    return {
        "collective": shape.collective[:_LONGEST_GROUP],
        "group": shape.group[:_LONGEST_GROUP],
        "ranks": str(shape.ranks or ""),
        "calls": f"{each.calls:,.0f}",
        "time": format_time(each.time_s),
        "waiting": "" if each.waiting_s is None else format_time(each.waiting_s),
        "exposed": format_time(each.exposed_s),
        "busbw": "" if busbw is None else format_rate(busbw),
        "/pred.": "" if each.slowness is None else f"{each.slowness:.2f}",
    }


def _remarks(findings: TraceFindings) -> list[str]:
    said = []
    if any(each.slowness is not None for each in findings.groups):
        said.append(f"/pred.: achieved over predicted time of {findings.system}, without waiting.")
    beyond = findings.groups[_MOST_GROUPS:]
    if beyond:
        said.append(f"And {len(beyond)} more, from {name_of(beyond[0].shape)} on (--json).")
    said += unread_in_words(_unread(findings))
    said += [f"Note: {note}." for note in findings.notes[:_MOST_REMARKS]]
    return said

"""The report on traces: where the time went, the collectives, and what costs most."""

from __future__ import annotations

from typing import Any, Final

from shardcost.formats.reading import Unread
from shardcost.inspect.log import RunFindings
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


def as_data(found: TraceFindings) -> dict[str, Any]:
    """Return the report as plain data. Times are in seconds, or microseconds where named so."""
    files = [each.file for each in found.traces]
    return {
        "file": files[0],
        **({"files": files} if len(files) > 1 else {}),
        "kind": found.traces[0].kind,
        "rank": found.ranks[0] if found.ranks else None,
        "ranks": list(found.ranks),
        **attributes(found.traces[0], "world_size backend device"),
        "system": found.system or None,
        **attributes(found, "span_s compute_s communication_s exposed_s hidden_s copies_s idle_s"),
        "groups": [_group_as_data(each) for each in found.groups],
        "runs": [_run_as_data(each) for each in found.runs],
        "kernels": [each._asdict() for each in found.kernels],
        "top": [each._asdict() for each in found.top],
        "unread": unread_as_data(_unread(found)),
        "notes": list(found.notes),
    }


def as_text(found: TraceFindings) -> str:
    """Return the report for a terminal, about one screen of it."""
    sections = [heading(paragraph(_summary(found), "  ")), _parts_table(found)]
    if found.groups:
        rows = [_group_cells(each) for each in found.groups[:_MOST_GROUPS]]
        sections.append(sparse_table(rows, left={"collective", "group"}))
    if found.top:
        lines = [
            f"{number}. {top.subject}: {format_time(top.seconds)} ({100 * top.share:.1f} %),"
            f" {top.advice}."
            for number, top in enumerate(found.top, 1)
        ]
        lines = [paragraph(line, "   ") for line in lines]
        sections.append("\n".join([heading("What costs most"), *lines]))
    if found.kernels:
        lines = [heading("Heaviest compute kernels")]
        for kernel in found.kernels[:_MOST_KERNELS]:
            short, rest = kernel.name[: _LONGEST_KERNEL - 1], kernel.name[_LONGEST_KERNEL - 1 :]
            name = kernel.name if len(rest) <= 1 else f"{short}…"
            lines.append(f"  {format_time(kernel.time_s):>9}  {name}")
        sections.append("\n".join(lines))
    sections.append(paragraphs(_remarks(found)))
    return "\n\n".join(each for each in sections if each)


def _group_as_data(each: GroupFindings) -> dict[str, Any]:
    return {
        **each.shape._asdict(),
        **attributes(each, "calls size_bytes time_s waiting_s exposed_s hidden_s"),
        "algbw": gb_per_s(each.algbw_bytes_per_s),
        "busbw": gb_per_s(each.busbw_bytes_per_s),
        **attributes(each, "achieved_s predicted_s achieved_over_predicted=slowness"),
    }


def _run_as_data(found: RunFindings) -> dict[str, Any]:
    return {
        "collective": found.run.collective,
        "num_gpus": found.run.num_gpus,
        "points": [rates_as_data(point) for point in found.points],
        "notes": list(found.run.notes),
    }


def _unread(found: TraceFindings) -> list[Unread]:
    return [each for trace in found.traces for each in trace.unread]


def _summary(found: TraceFindings) -> str:
    """Return in one sentence what the traces are of."""
    trace = found.traces[0]
    if not found.ranks:
        return "A profiler trace without GPU kernels."
    several = len(found.ranks) > 1
    whose = f"{len(found.ranks)} ranks" if several else f"rank {found.ranks[0]}"
    of = f" of {trace.world_size}" if trace.world_size else ""
    device = f" ({trace.device})" if trace.device else ""
    mean = " on average" if several else ""
    share = _percent(found.exposed_s, found)
    return (
        f"Profiler trace of {whose}{of}{device}: {format_time(found.span_s)}{mean}, of which"
        f" {share} is exposed communication and {_percent(found.idle_s, found)} idle."
    )


def _percent(seconds: float, found: TraceFindings) -> str:
    return f"{100 * seconds / found.span_s:.1f} %" if found.span_s else "0 %"


def _parts_table(found: TraceFindings) -> str:
    parts = (
        ("compute", found.compute_s, "a compute kernel runs"),
        ("hidden", found.hidden_s, "communication behind compute, part of the above"),
        ("exposed", found.exposed_s, "communication while no compute kernel runs"),
        ("copies", found.copies_s, "nothing but copies"),
        ("idle", found.idle_s, "no kernel runs"),
    )
    rows = [
        (name, format_time(seconds), _percent(seconds, found), text)
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


def _remarks(found: TraceFindings) -> list[str]:
    said = []
    if any(each.slowness is not None for each in found.groups):
        said.append(f"/pred.: achieved over predicted time of {found.system}, without waiting.")
    beyond = found.groups[_MOST_GROUPS:]
    if beyond:
        said.append(f"And {len(beyond)} more, from {name_of(beyond[0].shape)} on (--json).")
    said += unread_in_words(_unread(found))
    said += [f"Note: {note}." for note in found.notes[:_MOST_REMARKS]]
    return said

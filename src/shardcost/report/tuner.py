"""Rules of NCCL's tuner plugin, planned or read from a file, as plain data and as text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from shardcost.formats.nccl_tuner import TunerFile, TunerRule
from shardcost.inspect.tuner_plan import ALREADY_FASTEST, PlannedRule, TunerPlan
from shardcost.report.describe import attributes
from shardcost.report.inspect_log import unread_as_data, unread_in_words
from shardcost.report.text import heading, paragraph, paragraphs, table
from shardcost.units import format_bytes

_MOST_ROWS: Final = 24


def file_as_data(reading: TunerFile) -> dict[str, Any]:
    """Return the rules of a file as plain data."""
    return {
        **attributes(reading, "file kind"),
        "rules": [asdict(rule) for rule in reading.rules],
        "unread": unread_as_data(reading.unread),
        "notes": list(reading.notes),
    }


def file_as_text(reading: TunerFile) -> str:
    """Return the rules of a file for a terminal, in the order in which the plugin tries them."""
    head = ("collective", "from", "to", "nodes", "ranks", "runs")
    rows = [_file_cells(rule) for rule in reading.rules[:_MOST_ROWS]]
    about = f"{reading.file}: {len(reading.rules)} rules of an NCCL tuner plugin"
    more = len(reading.rules) - len(rows)
    remarks = [f"and {more} more."] if more else []
    remarks += unread_in_words(reading.unread)
    remarks += [f"Note: {note}." for note in reading.notes]
    sections = [paragraph(f"{about}; the first that matches counts"), ""]
    sections.append(table(head, rows, right="1234"))
    return "\n".join([*sections, *([paragraphs(remarks)] if remarks else [])])


def _file_cells(rule: TunerRule) -> tuple[str, ...]:
    counts = ("any" if count < 0 else str(count) for count in (rule.nodes, rule.ranks))
    channels = "" if rule.channels < 0 else f", {rule.channels} channels"
    return (
        rule.collective,
        format_bytes(rule.min_bytes),
        format_bytes(rule.max_bytes),
        *counts,
        f"{rule.algorithm}, {rule.protocol}{channels}",
    )


def plan_as_data(plan: TunerPlan) -> dict[str, Any]:
    """Return planned rules, and the errors of their predictions, as plain data."""
    return {
        "system": plan.cluster.name,
        "network": plan.cluster.network.name if plan.cluster.network else None,
        "rules": [
            {
                **asdict(each.rule),
                "instead_of": {"algorithm": each.instead_of[0], "protocol": each.instead_of[1]},
                "saved_pct": round(100 * each.saved, 2),
                "saved_at_most_pct": round(100 * each.saved_at_most, 2),
                "p90_pct": each.p90_pct,
                "in_force": each.sound,
            }
            for each in plan.rules
        ],
        **attributes(plan, "sizes sizes_already_fastest ranges_within_error"),
        "error": attributes(plan, "median_pct p90_pct"),
        "notes": list(plan.notes),
    }


def plan_as_text(plan: TunerPlan) -> str:
    """Return planned rules, and the errors of their predictions, for a terminal."""
    network = f" ({plan.cluster.network.name})" if plan.cluster.network else ""
    sections = [heading(f"Rules for NCCL's tuner plugin on {plan.cluster.name}{network}")]
    if plan.rules:
        head = ("collective", "GPUs", "sizes", "saves", "by running")
        sections.append(table(head, [_plan_cells(each) for each in plan.rules], right="13"))
    return "\n\n".join([*sections, paragraphs(_remarks(plan))])


def _plan_cells(each: PlannedRule) -> tuple[str, ...]:
    rule = each.rule
    doubt = "" if each.sound else "; measure first"
    return (
        rule.collective,
        str(rule.ranks),
        f"{format_bytes(rule.min_bytes)} to {format_bytes(rule.max_bytes)}",
        f"{100 * each.saved:.0f} %",
        f"{rule.algorithm} {rule.protocol} instead of {' '.join(each.instead_of).lower()}{doubt}",
    )


def _remarks(plan: TunerPlan) -> list[str]:
    fastest = f"{plan.sizes_already_fastest:,} of {plan.sizes:,} sizes"
    within = f"NCCL's own choice is the fastest within {100 * ALREADY_FASTEST:.0f} %"
    noise = f"{plan.ranges_within_error} ranges would save less than the model's error"
    errors = f"{plan.median_pct:.1f} % (median), {plan.p90_pct:.1f} % (p90)"
    force = "Rules that save more than their p90 are in force; the others are comments in the file"
    return [
        f"No rule is needed at {fastest}: {within}; {noise}.",
        f"Predicted, not measured: the model's error is up to {errors}. {force}.",
        *(f"Note: {note}." for note in plan.notes),
    ]

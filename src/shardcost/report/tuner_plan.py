"""Views of rules for NCCL's tuner plugin: plain data for JSON, text for a terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from shardcost.inspect.tuner_plan import ALREADY_FASTEST, PlannedRule, TunerPlan
from shardcost.report.text import heading, paragraph, table
from shardcost.units import format_bytes


def as_data(plan: TunerPlan) -> dict[str, Any]:
    """Return the rules, and how far to trust them, as plain data."""
    return {
        "system": plan.cluster.name,
        "network": plan.cluster.network.name if plan.cluster.network else None,
        "rules": [_rule_as_data(each) for each in plan.rules],
        "sizes": plan.sizes,
        "sizes_already_fastest": plan.sizes_already_fastest,
        "ranges_within_error": plan.ranges_within_error,
        "error": {"median_pct": plan.median_pct, "p90_pct": plan.p90_pct},
        "notes": list(plan.notes),
    }


def as_text(plan: TunerPlan) -> str:
    """Return the rules, and how far to trust them, for a terminal."""
    network = f" ({plan.cluster.network.name})" if plan.cluster.network else ""
    sections = [heading(f"Rules for NCCL's tuner plugin on {plan.cluster.name}{network}")]
    if plan.rules:
        head = ("collective", "GPUs", "sizes", "saves", "by running")
        sections.append(table(head, [_row(each) for each in plan.rules], right="13"))
    return "\n\n".join([*sections, "\n".join(paragraph(each, "  ") for each in _remarks(plan))])


def _rule_as_data(each: PlannedRule) -> dict[str, Any]:
    return {
        **asdict(each.rule),
        "instead_of": {"algorithm": each.instead_of[0], "protocol": each.instead_of[1]},
        "saved_pct": round(100 * each.saved, 2),
        "saved_at_most_pct": round(100 * each.saved_at_most, 2),
        "p90_pct": each.p90_pct,
        "in_force": each.sound,
    }


def _row(each: PlannedRule) -> tuple[str, ...]:
    rule = each.rule
    doubt = "" if each.sound else "; measure first"
    return (
        rule.collective,
        str(rule.ranks),
        f"{format_bytes(rule.min_bytes)} to {format_bytes(rule.max_bytes)}",
        f"{100 * each.saved:.0f} %",
        f"{rule.algorithm} {rule.protocol} for {' '.join(each.instead_of).lower()}{doubt}",
    )


def _remarks(plan: TunerPlan) -> list[str]:
    fastest = f"{plan.sizes_already_fastest:,} of {plan.sizes:,} sizes"
    noise = f"; {plan.ranges_within_error} ranges would save less than the model's error"
    errors = f"{plan.median_pct:.1f} % (median), {plan.p90_pct:.1f} % (p90)"
    trust = "In force are rules that save more than their p90; the others stand in the file as"
    within = f"where NCCL's choice is the fastest within {100 * ALREADY_FASTEST:.0f} %"
    return [
        f"No rule is needed at {fastest}, {within}{noise}.",
        f"Predicted, not measured: the model's error is up to {errors}. {trust} comments.",
        *(f"Note: {note}." for note in plan.notes),
    ]

"""Rules of an NCCL tuner plugin, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from shardcost.formats.nccl_tuner import TunerFile, TunerRule
from shardcost.report.text import paragraph, table
from shardcost.report.unread import unread_as_data, unread_in_words
from shardcost.units import format_bytes

_MOST_ROWS: Final = 24


def as_data(reading: TunerFile) -> dict[str, Any]:
    """Return the rules as JSON has them."""
    return {
        "file": reading.file,
        "kind": reading.kind,
        "rules": [asdict(rule) for rule in reading.rules],
        "unread": unread_as_data(reading.unread),
        "notes": list(reading.notes),
    }


def as_text(reading: TunerFile) -> str:
    """Return the rules for a terminal, in the order in which the plugin tries them."""
    head = ("collective", "from", "to", "nodes", "ranks", "runs")
    rows = [_cells(rule) for rule in reading.rules[:_MOST_ROWS]]
    about = f"{reading.file}: {len(reading.rules)} rules of an NCCL tuner plugin"
    more = len(reading.rules) - len(rows)
    said = [f"and {more} more."] if more else []
    said += [unread_in_words(reading.unread)] if reading.unread else []
    said += [f"Note: {note}." for note in reading.notes]
    return "\n".join(
        [
            paragraph(f"{about}; the first that matches counts"),
            "",
            table(head, rows, right="1234"),
            *(paragraph(each, "  ") for each in said),
        ]
    )


def _cells(rule: TunerRule) -> tuple[str, ...]:
    channels = "" if rule.channels < 0 else f", {rule.channels} channels"
    return (
        rule.collective,
        format_bytes(rule.min_bytes),
        format_bytes(rule.max_bytes),
        _any(rule.nodes),
        _any(rule.ranks),
        f"{rule.algorithm}, {rule.protocol}{channels}",
    )


def _any(count: int) -> str:
    return "any" if count < 0 else str(count)

"""What ``shardcost measure`` found: times, bytes held to schedules, as text and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from shardcost.measure.job import Answer
from shardcost.measure.verify import Verified, exact_ranks
from shardcost.report.text import table
from shardcost.units import format_bytes, format_time

Found: TypeAlias = Sequence[tuple[str, Answer]]
"""Answers, each with the name of the algorithm that was asked for."""


def times_as_text(found: Found) -> str:
    """Return a table of times, a line for each measurement."""
    head = ("ranks", "collective", "algorithm", "size", "time", "least", "p90", "most sent")
    return table(head, [_time_cells(name, answer) for name, answer in found], right="03456")


def _time_cells(name: str, answer: Answer) -> tuple[str, ...]:
    times_us = (answer.time_us, answer.min_us, answer.p90_us)
    most = answer.most_sent_bytes
    return (
        str(answer.ranks),
        answer.collective,
        name,
        format_bytes(answer.size_bytes),
        *("" if us is None else format_time(us / 1e6) for us in times_us),
        "" if most is None else f"{most:,} B",
    )


def checks_as_text(checks: Sequence[Verified]) -> str:
    """Return what was verified, summed over ranks, and each rank that differs."""
    head = ("n", "algorithm", "size", "payload", "sends", "headers", "measured", "ok")
    lines = []
    for collective in dict.fromkeys(check.answer.collective for check in checks):
        lines.append(f"{collective}, bytes of all ranks together")
        rows = [_check_cells(check) for check in checks if check.answer.collective == collective]
        lines.append(table(head, rows, right="023456", narrowest=3))
    lines += [line for check in checks for line in _differences(check)]
    count = exact_ranks(checks)
    lines.append(f"{count.exact} of {count.ranks} ranks sent exactly the bytes of their schedule.")
    return "\n".join(lines)


def _check_cells(check: Verified) -> tuple[str, ...]:
    return (
        str(check.answer.ranks),
        check.algorithm,
        f"{check.answer.size_bytes:,}",
        *(f"{total:,}" for total in check.totals),
        "yes" if check.ok else "NO",
    )


def _differences(check: Verified) -> list[str]:
    what = f"{check.answer.collective} by {check.algorithm}, {check.answer.size_bytes:,} bytes"
    return [
        f"n = {check.answer.ranks}, {what}: rank {each.rank} sent {each.measured_bytes:,},"
        f" its schedule has {each.predicted_bytes:,}"
        for each in check.differing
    ]


def as_data(
    found: Found, checks: Sequence[Verified], output: Path | None, uncounted: str | None
) -> dict[str, Any]:
    """Return it all as plain data.

    Args:
        found: What was measured.
        checks: What was verified; without any the data say nothing of it.
        output: Where the table is.
        uncounted: Why bytes are not counted, where they are not.
    """
    data: dict[str, Any] = {
        "output": None if output is None else str(output),
        "rows": [{"algorithm": name} | asdict(answer) for name, answer in found],
        "uncounted": uncounted,
    }
    if checks:
        data["verified"] = [_check_as_data(check) for check in checks]
        data["ok"] = all(check.ok for check in checks)
    return data


def _check_as_data(check: Verified) -> dict[str, Any]:
    """Return a check, by rank where ranks differ."""
    return {
        "ranks": check.answer.ranks,
        "collective": check.answer.collective,
        "algorithm": check.algorithm,
        "size_bytes": check.answer.size_bytes,
        "payload_bytes": check.predicted.payload_bytes.tolist(),
        "messages": check.predicted.messages.tolist(),
        "header_bytes": check.predicted.header_bytes.tolist(),
        "measured_bytes": check.measured_bytes,
        "ok": check.ok,
    }

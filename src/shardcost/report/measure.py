"""What ``shardcost measure`` found: times, bytes held to schedules, as text and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from shardcost.measure.job import Measurement
from shardcost.measure.open_mpi import Verified
from shardcost.report.text import table
from shardcost.units import format_bytes, format_time

Measurements: TypeAlias = Sequence[tuple[str, Measurement]]
"""Each with the name of the algorithm that was requested."""


def times_as_text(measured: Measurements) -> str:
    """Return a table of times, a line for each measurement."""
    head = ("ranks", "collective", "algorithm", "size", "time", "least", "p90", "most sent")
    return table(
        head, [_time_cells(name, measurement) for name, measurement in measured], right="03456"
    )


def _time_cells(name: str, measurement: Measurement) -> tuple[str, ...]:
    times_us = (measurement.time_us, measurement.min_us, measurement.p90_us)
    most = None if measurement.sent_bytes is None else max(measurement.sent_bytes)
    return (
        str(measurement.ranks),
        measurement.collective,
        name,
        format_bytes(measurement.size_bytes),
        *("" if us is None else format_time(us / 1e6) for us in times_us),
        "" if most is None else f"{most:,} B",
    )


def checks_as_text(checks: Sequence[Verified]) -> str:
    """Return what was verified, summed over ranks, and each rank that differs."""
    head = ("n", "algorithm", "size", "payload", "sends", "headers", "measured", "ok")
    lines = []
    for collective in dict.fromkeys(check.measurement.collective for check in checks):
        lines.append(f"{collective}, bytes of all ranks together")
        rows = [
            _check_cells(check) for check in checks if check.measurement.collective == collective
        ]
        lines.append(table(head, rows, right="023456", narrowest=3))
    lines += [line for check in checks for line in _differences(check)]
    ranks = sum(check.measurement.ranks for check in checks)
    exact = ranks - sum(len(check.differing) for check in checks)
    lines.append(f"{exact} of {ranks} ranks sent exactly the bytes of their schedule.")
    return "\n".join(lines)


def _check_cells(check: Verified) -> tuple[str, ...]:
    return (
        str(check.measurement.ranks),
        check.algorithm,
        f"{check.measurement.size_bytes:,}",
        *(f"{total:,}" for total in check.totals),
        "yes" if check.ok else "NO",
    )


def _differences(check: Verified) -> list[str]:
    of = check.measurement
    what = f"{of.collective} by {check.algorithm}, {of.size_bytes:,} bytes"
    return [
        f"n = {of.ranks}, {what}: rank {rank.rank} sent {rank.measured_bytes:,},"
        f" its schedule has {rank.predicted_bytes:,}"
        for rank in check.differing
    ]


def as_data(
    measured: Measurements, checks: Sequence[Verified], output: Path | None, uncounted: str | None
) -> dict[str, Any]:
    """Return it all as plain data.

    Args:
        measured: What was measured.
        checks: What was verified; without any the data say nothing of it.
        output: Where the table is.
        uncounted: Why bytes are not counted, where they are not.
    """
    data: dict[str, Any] = {
        "output": None if output is None else str(output),
        "rows": [{"algorithm": name} | asdict(measurement) for name, measurement in measured],
        "uncounted": uncounted,
    }
    if checks:
        data["verified"] = [_check_as_data(check) for check in checks]
        data["ok"] = all(check.ok for check in checks)
    return data


def _check_as_data(check: Verified) -> dict[str, Any]:
    """Return a check, by rank where ranks differ."""
    return {
        "ranks": check.measurement.ranks,
        "collective": check.measurement.collective,
        "algorithm": check.algorithm,
        "size_bytes": check.measurement.size_bytes,
        "payload_bytes": check.predicted.payload_bytes.tolist(),
        "messages": check.predicted.messages.tolist(),
        "header_bytes": check.predicted.header_bytes.tolist(),
        "measured_bytes": check.measured_bytes,
        "ok": check.ok,
    }

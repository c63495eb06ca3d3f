"""Measured times of collectives and kernels, and bytes beside schedules, as text and data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from shardcost.measure.job import Measurement
from shardcost.measure.kernels.session import Outcome
from shardcost.measure.open_mpi import Verified
from shardcost.report.describe import attributes
from shardcost.report.text import table
from shardcost.units import format_bytes, format_time

Measurements: TypeAlias = Sequence[tuple[str, Measurement]]
"""Each with the name of the algorithm that was requested."""


def times_as_text(measured: Measurements) -> str:
    """Return a table of times, a line for each measurement."""
    head = ("ranks", "collective", "algorithm", "size", "time", "least", "p90", "most sent")
    rows = []
    for name, one in measured:
        times_us = (one.time_us, one.min_us, one.p90_us)
        times = ("" if us is None else format_time(us / 1e6) for us in times_us)
        most = "" if one.sent_bytes is None else f"{max(one.sent_bytes):,} B"
        size = format_bytes(one.size_bytes)
        rows.append((str(one.ranks), one.collective, name, size, *times, most))
    return table(head, rows, right="03456")


def checks_as_text(checks: Sequence[Verified]) -> str:
    """Return what was verified, summed over ranks, and each rank that differs."""
    head = ("n", "algorithm", "size", "payload", "sends", "headers", "measured", "ok")
    lines = []
    for collective in dict.fromkeys(check.measurement.collective for check in checks):
        lines.append(f"{collective}, bytes of all ranks together")
        own = [check for check in checks if check.measurement.collective == collective]
        rows = [
            (
                str(check.measurement.ranks),
                check.algorithm,
                f"{check.measurement.size_bytes:,}",
                *(f"{total:,}" for total in check.totals),
                "yes" if check.ok else "NO",
            )
            for check in own
        ]
        lines.append(table(head, rows, right="023456", narrowest=3))
    lines += [
        f"n = {check.measurement.ranks}, {check.measurement.collective} by {check.algorithm},"
        f" {check.measurement.size_bytes:,} bytes: rank {rank.rank} sent"
        f" {rank.measured_bytes:,}, its schedule has {rank.predicted_bytes:,}"
        for check in checks
        for rank in check.differing
    ]
    ranks = sum(check.measurement.ranks for check in checks)
    exact = ranks - sum(len(check.differing) for check in checks)
    lines.append(f"{exact} of {ranks} ranks sent exactly the bytes of their schedule.")
    return "\n".join(lines)


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
    predicted = attributes(check.predicted, "payload_bytes messages header_bytes")
    return {
        **attributes(check.measurement, "ranks collective"),
        "algorithm": check.algorithm,
        "size_bytes": check.measurement.size_bytes,
        **{name: by_rank.tolist() for name, by_rank in predicted.items()},
        **attributes(check, "measured_bytes ok"),
    }


def kernels_as_text(
    device: str, software: str, gpu: str, path: str, rows: int, outcome: Outcome
) -> str:
    """Return how many kernels of each kind were measured, and what was left out and why."""
    lines = [f"{device} ({gpu}), {software}"]
    width = max((len(what) for what in outcome.measured), default=0)
    lines += [f"  {what:<{width}}  {count:>4}" for what, count in outcome.measured.items()]
    lines += [f"  skipped: {reason} ({count})" for reason, count in outcome.skipped.items()]
    if outcome.out_of_time:
        lines.append(f"  {outcome.out_of_time} left when time was up: --append goes on with them")
    had = f" ({outcome.already} were there already)" if outcome.already else ""
    lines.append(f"{rows} row{'s' * (rows != 1)} in {path}{had}, {outcome.seconds:.0f} s")
    return "\n".join(lines)


def kernels_as_data(
    device: str, software: str, gpu: str, path: str, rows: int, outcome: Outcome
) -> dict[str, Any]:
    """Return the same as `kernels_as_text`, to be written as JSON."""
    return {
        "device": device,
        "software": software,
        "gpu": gpu,
        "output": path,
        "rows": rows,
        "measured": outcome.measured,
        "already_in_table": outcome.already,
        "skipped": outcome.skipped,
        "out_of_time": outcome.out_of_time,
        "seconds": round(outcome.seconds, 1),
    }

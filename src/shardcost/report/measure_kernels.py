"""What was measured of kernels, as text and data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardcost.measure.kernels.session import Outcome


def as_data(
    device: str, software: str, gpu: str, path: str, rows: int, outcome: Outcome
) -> dict[str, Any]:
    """Return the same as `as_text`, to be written as JSON."""
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


def as_text(device: str, software: str, gpu: str, path: str, rows: int, outcome: Outcome) -> str:
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

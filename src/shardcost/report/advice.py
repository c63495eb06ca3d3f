"""The report on what a layout could be instead (`shardcost.search.advice`), as lines and data."""

from __future__ import annotations

from typing import Any

from shardcost.report.estimate import labelled, plain
from shardcost.search.advice import Advice, BestChange
from shardcost.search.steps import Step


def as_data(advice: Advice) -> dict[str, Any]:
    """Return the advice as plain data."""
    return plain(  # type: ignore[no-any-return]
        {
            "steps": {
                axis: [_step_as_data(step) for step in steps]
                for axis, steps in advice.steps.items()
            },
            "limit": advice.limit._asdict(),
            "change": None if advice.change is None else _change_as_data(advice.change),
        }
    )


def as_lines(advice: Advice) -> list[str]:
    """Return what limits a layout and what would help it most, for a terminal.

    That it does not fit is the first of the warnings below them.
    """
    limit, change = (said for _, said in sentences(advice))
    if advice.limit.part == "memory":
        limit = "memory: it does not fit, see the warning"
    return [labelled("limit", limit), labelled("change", change)]


def sentences(advice: Advice) -> list[tuple[str, str]]:
    """Return what limits a layout and what would help it most, each under its label."""
    change = "no single change of the layout at these GPUs makes it faster"
    if advice.limit.part in {"memory", "layout"}:
        change = "no change of one or two fields, nor of the GPUs, makes it fit: see shardcost plan"
    if advice.change is not None:
        change = advice.change.words
    return [("limit", advice.limit.words), ("change", change)]


def _step_as_data(step: Step) -> dict[str, Any]:
    outcome = step.outcome
    return {
        "value": step.value,
        "possible": outcome.possible,
        "fits": outcome.fits,
        "reason": outcome.reason and outcome.reason.message,
        "code": outcome.reason and outcome.reason.code,
        "time_s": outcome.time_s,
        "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
        "current": step.current,
        "set": dict(step.patch),
    }


def _change_as_data(change: BestChange) -> dict[str, Any]:
    return {
        "set": dict(change.patch),
        "words": change.words,
        "time_s": change.time_s,
        "tokens_per_s_per_gpu": change.tokens_per_s_per_gpu,
        "faster_pct": change.faster_pct,
    }

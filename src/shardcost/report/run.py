"""The report on a whole training run, as text and data: days, GPU-hours, money, shares of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, Final

from shardcost.catalog.errors import CONFIDENCE_PCT
from shardcost.goodput.run import DAY_S, HOUR_S, TrainingRun, published
from shardcost.options import RESILIENCE
from shardcost.report.describe import as_data as noun_as_data
from shardcost.report.describe import attributes, plain
from shardcost.report.estimate import as_remarks, details, explained, title
from shardcost.report.estimate_data import caveats_as_data
from shardcost.report.text import bar, heading, labelled, paragraph, paragraphs, table
from shardcost.resilience import Resilience
from shardcost.units import (
    format_bytes_decimal,
    format_count,
    format_electricity,
    format_percent,
    format_rate,
    format_time,
    format_tokens,
)

_BAR: Final = 24
_FLAGS: Final = {option.field_of(Resilience).name: option.flag for option in RESILIENCE}
"""The option that sets a field."""
_UNITS: Final = ((2 * DAY_S, DAY_S, "days"), (2 * HOUR_S, HOUR_S, "h"), (120.0, 60.0, "min"))
"""From how many seconds on a duration is told in a unit of so many."""


def figure(value: float) -> str:
    """Return a number of days or hours with the digits that count.

    >>> figure(2184.3), figure(357.2), figure(4.123)
    ('2,184', '357', '4.12')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Return a time as long as those of runs in words.

    >>> duration(11_135), duration(249.6), duration(2.84), duration(864_000)
    ('3.09 h', '4.16 min', '2.84 s', '10 days')
    """
    for least, unit_s, unit in _UNITS:
        if seconds >= least:
            return f"{figure(seconds / unit_s)} {unit}"
    return format_time(seconds)


def days(run: TrainingRun) -> str:
    """Return the days with their interval."""
    low, high = run.days_interval
    ends = f"{figure(low)} to {figure(high)}" if isfinite(high) else f"{figure(low)} or more"
    return f"{figure(run.days)} days ({ends}, {CONFIDENCE_PCT} %)"


def lines(run: TrainingRun) -> Iterator[tuple[str, str]]:
    """Yield what an estimate or a plan says of a run, each under its label."""
    words = [f"{_size(run)}: {days(run)}", f"{format_count(run.gpu_hours)} GPU-hours"]
    yield "run", ", ".join((*words, *(f"{label} {text}" for label, text in _bills(run))))
    yield "goodput", _goodput(run)


def _size(run: TrainingRun) -> str:
    return f"{format_count(run.tokens)} tokens in {run.steps:,} steps"


def _bills(run: TrainingRun) -> Iterator[tuple[str, str]]:
    """Yield money and energy, where they are known."""
    if run.cost is not None:
        yield "cost", f"{format_count(run.cost)} at {run.price_per_gpu_hour:g} a GPU-hour"
    if run.energy_j is not None:
        yield "energy", f"at most {format_electricity(run.energy_j)}"


def _goodput(run: TrainingRun) -> str:
    worst, best = run.goodput_interval
    ends = f" ({100 * worst:.1f} to {format_percent(best)})" if worst != best else ""
    if not isfinite(run.timing.mtbf_s):
        return f"{format_percent(run.goodput)}: nothing fails"
    failing = f"a failure every {duration(run.timing.mtbf_s)}, {run.failures:,.0f} in the run"
    return f"{format_percent(run.goodput)}{ends}: {failing}"


def figures(run: TrainingRun) -> Iterator[tuple[str, str]]:
    """Yield the headline figures, each under its label."""
    step = run.estimate
    yield "run", f"{_size(run)} of {format_count(step.workload.tokens)} tokens"
    yield "time", days(run)
    low, high = run.gpu_hours_interval
    ends = f" ({format_count(low)} to {format_count(high)})" if isfinite(high) else ""
    yield "GPU-hours", f"{format_count(run.gpu_hours)}{ends}"
    yield from _bills(run)
    yield "step", f"{format_time(run.step_s)}, {format_tokens(step.tokens_per_s)} tokens/s"
    model = f"{step.tflops_per_gpu:.1f} per GPU (MFU {format_percent(step.mfu)})"
    made = f"hardware {step.hardware_tflops_per_gpu:.1f} (HFU {format_percent(step.hfu)})"
    yield "TFLOP/s", f"{model}, {made}"
    yield "goodput", _goodput(run)


def mechanism(run: TrainingRun) -> Iterator[tuple[str, str]]:
    """Yield what failures, checkpoints and restarts are taken to be, and by whom."""
    given, timing = run.resilience, run.timing
    whose = dict.fromkeys(_FLAGS, "")
    for name in run.assumed:
        whose[name] = f" ({getattr(published(), name).name}; {_FLAGS[name]})"
    if isfinite(timing.mtbf_s):
        hours = f"{timing.mtbf_s * run.gpus / HOUR_S:,.0f} h between failures of one GPU"
        yield "failures", hours + whose["gpu_mtbf_s"]
    once = timing.interval_s >= run.steps * run.step_s
    every = "once, at the end" if once else f"every {duration(timing.interval_s)}"
    every += " (Daly's optimum)" if given.checkpoint_interval_s is None and not once else ""
    waits = f"training waits {duration(timing.save_s)}"
    if timing.write_s:
        waits += f", written in {duration(timing.write_s)} in the background"
    size = f"{format_bytes_decimal(run.checkpoint_bytes)} of weights and optimizer states"
    storage = f"{format_rate(given.checkpoint_bytes_per_s or 0)} of storage"
    saved = f"{every}, {waits}: {size}, {storage}{whose['checkpoint_bytes_per_s']}"
    yield "saving", saved
    if isfinite(timing.mtbf_s):
        restart = f"{duration(given.restart_s or 0.0)} from a failure to the next step"
        yield "restart", restart + whose["restart_s"]


SHARES_HEAD: Final = ("where the time goes", "", "share")


def shares(run: TrainingRun) -> Iterator[tuple[str, str, str]]:
    """Yield where the time goes: what, how long, and which share."""
    for name, share in run.shares.items():
        yield name, duration(share * run.wall_s), format_percent(share)


def as_text(
    run: TrainingRun,
    caveats: Sequence[str] = (),
    *,
    searched: str = "",
    explain: bool = False,
    notes: bool = False,
) -> str:
    """Return the report for a terminal.

    Args:
        run: The run.
        caveats: Of the model's file.
        searched: How the layout was found, where it was not given.
        explain: Whether to show formulas, values and sources.
        notes: Whether to show caveats about little of the time.
    """
    step = run.estimate
    head = heading(paragraph(title(step), "  ")) + "\n  " + paragraph(details(step), "  ")
    if searched:
        head += "\n  " + paragraph(f"layout: {searched}", "  ")
    rows = [(*cells, bar(run.shares[cells[0]], _BAR)) for cells in shares(run)]
    sections = [
        head,
        "\n".join(labelled(*each) for each in figures(run)),
        table((*SHARES_HEAD, ""), rows, right="12"),
        "\n".join(labelled(*each) for each in mechanism(run)),
    ]
    remarks = as_remarks(step.caveats, caveats, every=notes)
    if remarks:
        sections.append(paragraphs(remarks))
    if explain:
        sections += [paragraphs(explanation(run)), *explained(step)]
    return "\n\n".join(sections)


def explanation(run: TrainingRun) -> list[str]:
    """Return formulas, values and sources of the run, a line each."""
    found = []
    for each in run.receipts:
        steps = dict.fromkeys((each.formula, each.numbers, each.text))
        found.append(f"{each.title}: {' = '.join(steps)}")
    sources = dict.fromkeys(source for each in run.receipts for source in each.sources)
    formula = "Expected time and interval: Young 1974, CACM 17(9); Daly 2006, FGCS 22(3)"
    return [*found, f"Sources: {'; '.join((formula, *sources))}"]


def figures_as_data(run: TrainingRun) -> dict[str, Any]:
    """Return the figures_as_data of a run: what an estimate or a plan shows of it."""
    low, high = (_finite(days) for days in run.days_interval)
    least, most = (_finite(hours) for hours in run.gpu_hours_interval)
    worst, best = run.goodput_interval
    resilience = noun_as_data(run.resilience)
    data = {
        **attributes(run, "tokens steps step_s days"),
        "low_days": low,
        "high_days": high,
        "gpu_hours": run.gpu_hours,
        "low_gpu_hours": least,
        "high_gpu_hours": most,
        **attributes(run, "price_per_gpu_hour cost energy_j goodput"),
        "low_goodput": worst,
        "high_goodput": best,
        "shares": run.shares,
        "failures": run.failures,
        "checkpoint_bytes": run.checkpoint_bytes,
        **{name: _finite(value) for name, value in run.timing._asdict().items()},
        "resilience": resilience | {"gpu_mtbf_s": _finite(resilience["gpu_mtbf_s"])},
        "assumed": list(run.assumed),
    }
    return plain(data)


def as_data(run: TrainingRun, caveats: Sequence[str] = ()) -> dict[str, Any]:
    """Return a run with its step's layout and caveats."""
    estimate = run.estimate
    network = estimate.cluster.network
    return plain(
        {
            "step_s": run.step_s,
            "tflops_per_gpu": estimate.tflops_per_gpu,
            **figures_as_data(run),
            "model": estimate.model.name,
            "cluster": estimate.cluster.name,
            "network": None if network is None else network.name,
            "software": estimate.software.name,
            "gpus": run.gpus,
            "layout": noun_as_data(estimate.layout),
            "workload": noun_as_data(estimate.workload),
            **attributes(estimate, "tokens_per_s tokens_per_s_per_gpu mfu hfu"),
            **attributes(estimate, "tflops_per_gpu_full_attention hardware_tflops_per_gpu"),
            "memory_bytes": estimate.memory_bytes,
            **caveats_as_data(estimate),
            "notes": list(caveats),
        }
    )


def _finite(value: Any) -> float | None:
    """Return a number; None where it is infinite, which JSON does not have."""
    return float(value) if isfinite(value) else None

"""Pictures of a deployment under load: latencies, what happens over time, loads from low to high.

Limits are dashed lines. Colours are those of `pictures`: a figure has the same in every picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcost.load.result import Limits, Load, Moment
from shardcost.load.sweep import Sweep, at_percentile, latencies
from shardcost.report.load import NAMES, requests_in_words, sentence, title
from shardcost.report.pictures import COLOURS, GREY, GRID, Sketch, label_ticks, note
from shardcost.units import format_percent, format_time, format_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_COLOUR: Final = {"ttft": COLOURS[0], "tpot": COLOURS[1], "e2e": COLOURS[2]}
_PERCENTILES: Final = (50, 90, 99)
_CURVE: Final = 400
"""Points of a curve at most."""
_BINS: Final = 400
"""Of a picture over time."""
_TICKS: Final = 3
_ROUND: Final = (
    np.array([1.0]),
    np.array([1.0, 3.0]),
    np.array([1.0, 2.0, 5.0]),
    np.array([1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]),
    np.arange(1.0, 10.0, 0.25),
    np.arange(1.0, 10.0, 0.05),
)
"""Values within a decade at which an axis has ticks, until there are so many."""
_TIGHT: Final = 1.02
"""Least ratio of the ends of an axis of times, where all values are alike."""
_ROWS: Final = (
    ("sequences", "sequences that decode", COLOURS[0]),
    ("prompt_tokens", "prompt tokens in a step", COLOURS[1]),
    ("waiting", "requests that wait", COLOURS[3]),
    ("kv_share", "KV cache in use", COLOURS[2]),
)
"""Of the picture over time: the field of `Moment`, its label, its colour."""


def distributions_sketch(load: Load, limits: Limits) -> Sketch:
    """Return the share of the requests within every time to first token and per output token."""
    shown = [name for name in ("ttft", "tpot") if len(latencies(load, name))]
    if limits.e2e_s is not None:
        shown.append("e2e")
    name = f"{title(load.deployment)}\n{requests_in_words(load.requests)}"
    size = (4.6 * max(len(shown), 1), 4.0)
    return Sketch(lambda figure: _fill_distributions(figure, load, limits, shown), size, name, 9)


def _fill_distributions(figure: Figure, load: Load, limits: Limits, shown: Sequence[str]) -> None:
    for axes, name in zip(_columns(figure, len(shown)), shown, strict=True):
        values = np.sort(latencies(load, name))
        share = np.arange(1, len(values) + 1) / len(values)
        few = np.unique(np.linspace(0, len(values) - 1, _CURVE).astype(int))
        look: dict[str, Any] = {"color": _COLOUR[name], "linewidth": 1.6}
        axes.step(values[few], share[few], where="post", **look)
        for percentile in _PERCENTILES:
            at = float(np.percentile(values, percentile))
            axes.plot([at], [percentile / 100], "o", markersize=4, color=_COLOUR[name])
            note(axes, f"p{percentile} {_time(at)}", (at, percentile / 100), (5, -9), fontsize=7)
        limit = getattr(limits, f"{name}_s")
        _time_axis(axes, [*values[[0, -1]], *([limit] if limit else [])])
        if limit:
            axes.axvline(limit, color="black", linestyle="--", linewidth=1)
            look = {"fontsize": 8, "color": GREY, "ha": "right"}
            note(axes, f"limit {_time(limit)}", (limit, 0.02), (-3, 0), **look)
            axes.axhline(limits.percentile / 100, color=GREY, linestyle=":", linewidth=0.8)
        axes.set_xlabel(NAMES[name])
        axes.set_ylim(0, 1.03)
        label_ticks(axes.yaxis, lambda value: f"{100 * value:.0f} %")
        axes.set_ylabel("requests within")
        axes.grid(**GRID)


def _columns(figure: Figure, count: int) -> list[Axes]:
    return list(figure.subplots(1, max(count, 1), squeeze=False)[0][:count])


def _time_axis(axes: Axes, values: Sequence[float]) -> None:
    """Let the horizontal axis have all values, on a scale of ratios."""
    low, high = min(values), max(values)
    room = max(high / low, _TIGHT) ** 0.08
    axes.set_xscale("log")
    axes.set_xlim(low / room, high * room)
    _label_times(axes.xaxis, low / room, high * room)


def _label_times(axis: Axis, low: float, high: float) -> None:
    """Put ticks at round times of a scale of ratios: more of them where it spans little."""
    from matplotlib.ticker import FixedLocator, NullLocator

    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    ticks: list[float] = []
    for within in _ROUND:
        ticks = [value for each in decades for value in each * within if low <= value <= high]
        if len(ticks) >= _TICKS:
            break
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    label_ticks(axis, _time)


def _time(value: float) -> str:
    return format_time(float(f"{value:.3g}")) if value > 0 else "0"


# ------------------------------------------------------------------------------- over the time


def timeline_sketch(load: Load) -> Sketch:
    """Return what a deployment does over time: batch, prompts, queue, KV cache."""
    name = f"{title(load.deployment)}\n{requests_in_words(load.requests)}"
    return Sketch(lambda figure: _fill_timeline(figure, load), (9.0, 7.0), name, 9)


def _fill_timeline(figure: Figure, load: Load) -> None:
    end = max((moment.end_s for moment in load.moments), default=1.0)
    edges = np.linspace(0.0, end, _BINS + 1)
    rows = figure.subplots(len(_ROWS), 1, sharex=True)
    for axes, (name, label, colour) in zip(rows, _ROWS, strict=True):
        curve = over_time(load.moments, name, edges)
        axes.fill_between(edges[:-1], curve, step="post", color=colour, alpha=0.35, linewidth=0)
        axes.step(edges[:-1], curve, where="post", color=colour, linewidth=1)
        axes.set_title(label, loc="left", fontsize=8)
        axes.set_xlim(0, end)
        axes.set_ylim(0, 1.05 * max(float(curve.max()), 1.0))
        if name == "kv_share":
            label_ticks(axes.yaxis, lambda value: format_percent(value).replace(".0", ""))
        else:
            label_ticks(axes.yaxis, lambda value: f"{value:,.10g}")
        axes.grid(**GRID)
    label_ticks(rows[-1].xaxis, _time)
    rows[-1].set_xlabel("time since the first arrival")


def over_time(
    moments: Sequence[Moment], name: str, edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return a field of moments in every interval between edges.

    It is the mean over the steps of a worker in the interval, 0 where there are none; counts are
    summed over the workers, shares are of the fullest one.
    """
    bins = len(edges) - 1
    width = edges[1] - edges[0]
    numbers = sorted({moment.worker for moment in moments})
    workers = {number: row for row, number in enumerate(numbers)}
    sums = np.zeros((len(workers), bins))
    weights = np.zeros((len(workers), bins))
    for moment in moments:
        row = workers[moment.worker]
        first = min(int(moment.start_s / width), bins - 1)
        last = min(int(moment.end_s / width), bins - 1)
        places = np.arange(first, last + 1)
        inside = np.minimum(edges[places + 1], moment.end_s)
        inside = np.maximum(inside - np.maximum(edges[places], moment.start_s), 0.0)
        sums[row, places] += getattr(moment, name) * inside
        weights[row, places] += inside
    each = np.divide(sums, weights, out=np.zeros_like(sums), where=weights > 0)
    if not workers:
        return np.zeros(bins)
    return np.asarray(each.max(axis=0) if name == "kv_share" else each.sum(axis=0))


# ------------------------------------------------------------------------------------ a sweep


def sweep_sketch(sweep: Sweep) -> Sketch:
    """Return latency and throughput against the load."""
    name = f"{title(sweep.deployment)}\n{sentence(sweep)}"
    return Sketch(lambda figure: _fill_sweep(figure, sweep), (12.0, 4.2), name, 9)


def _fill_sweep(figure: Figure, sweep: Sweep) -> None:
    percentile = sweep.limits.percentile
    loads = [point.value for point in sweep.points]
    columns = _columns(figure, 3)
    for axes, name in zip(columns, ("ttft", "tpot"), strict=False):
        for at, style in ((50, ":"), (percentile, "-")):
            curve = [at_percentile(point.load, name, at) for point in sweep.points]
            look: dict[str, Any] = {"color": _COLOUR[name], "linestyle": style, "linewidth": 1.5}
            axes.plot(loads, curve, marker="o", markersize=3, label=f"p{at}", **look)
        limit = getattr(sweep.limits, f"{name}_s")
        if limit is not None:
            axes.axhline(limit, color="black", linestyle="--", linewidth=1)
            note(axes, f"limit {_time(limit)}", (loads[0], limit), (2, 3), fontsize=8, color=GREY)
        axes.set_yscale("log")
        _label_times(axes.yaxis, *axes.get_ylim())
        axes.set_title(NAMES[name], loc="left", fontsize=9)
        axes.legend(frameon=False)
    served = [point.load.tokens_per_s_per_gpu for point in sweep.points]
    columns[2].plot(loads, served, marker="o", markersize=3, color=COLOURS[2], linewidth=1.5)
    columns[2].set_ylim(bottom=0)
    label_ticks(columns[2].yaxis, format_tokens)
    columns[2].set_title("output tokens/s/GPU", loc="left", fontsize=9)
    for axes in columns:
        if loads[-1] / loads[0] > 30:
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter("")
        label_ticks(axes.xaxis, lambda value: f"{value:g}")
        if sweep.knee is not None:
            axes.axvline(sweep.knee.value, color=GREY, linewidth=0.9)
        axes.set_xlabel("requests/s" if sweep.over == "rate" else "users")
        axes.grid(**GRID)

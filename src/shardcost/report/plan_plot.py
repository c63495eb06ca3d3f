"""The Pareto front of a search, for layouts or for deployments, as a picture.

Of layouts every pair of model and cluster has a colour and a mark of its own, of deployments those
of one pool and those of two. The best by the objective is ringed; points are labelled where there
is room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shardcost.report.pictures import COLOURS, GREY, GRID, Sketch, label_ticks, note
from shardcost.report.plan import degrees, title
from shardcost.report.plan_load import front_name, in_words
from shardcost.report.plan_load import title as load_title
from shardcost.search.found import Candidate, Found
from shardcost.search.planned import LoadPlan
from shardcost.units import format_time, format_tokens
from shardcost.workload import Decode, Prefill

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES: Final = (9, 6)
_MARKS: Final = "os^Dv<>PX"
_LABEL: Final = (0.11, 0.035)
"""Room of a label, as shares of the picture."""


def sketch(result: Found) -> Sketch:
    """Return the picture of a search's Pareto front."""
    return Sketch(lambda figure: _fill(figure, result), _INCHES, title(result), 12)


def _fill(figure: Figure, result: Found) -> None:
    axes = figure.subplots()
    questions = {each.question.number: each.question for each in result.front}
    for index, (number, question) in enumerate(sorted(questions.items())):
        own = [each for each in result.front if each.question.number == number]
        name = " on ".join((question.model.name, question.place))
        look: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "linewidth": 1.2}
        look |= {"marker": _MARKS[index % len(_MARKS)], "markersize": 5, "label": name}
        axes.plot(*zip(*sorted(map(_point, own)), strict=True), **look)
    best = result.best[0]
    axes.plot(*_point(best), "o", markersize=13, fillstyle="none", color="black")
    ringed = f"ringed: {_name(best)}, the best by {best.question.objective.aim.unit}"
    axes.set_title(ringed, loc="left", fontsize=9)
    _label_points(axes, result.front)
    _label_axes(axes, result)
    axes.grid(**GRID)
    if len(result.questions) > 1:
        axes.legend(frameon=False)


def _point(each: Candidate) -> tuple[float, float]:
    """Return the two figures of a candidate that the axes show."""
    work, estimate = each.workload, each.estimate
    if isinstance(work, Decode):
        return float(estimate.tokens_per_s_per_user), float(estimate.tokens_per_s_per_gpu)
    if isinstance(work, Prefill):
        return each.time_s, float(estimate.tokens_per_s_per_gpu)
    several = len(each.question.space.gpus or ()) > 1
    return each.time_s, float(each.layout.devices if several else each.memory_bytes / 2**30)


def _label_points(axes: Axes, front: tuple[Candidate, ...]) -> None:
    """Write layouts beside their points, on the side away from the front, where there is room."""
    ordered = sorted(front, key=_point)
    falls = _point(ordered[0])[1] >= _point(ordered[-1])[1]
    axes.margins(x=0.12)
    axes.autoscale_view()  # otherwise scales are set only when the picture is drawn
    to_axes = axes.transData + axes.transAxes.inverted()
    labelled: list[tuple[float, float]] = []
    for each in ordered:
        across, up = to_axes.transform(_point(each))
        if any(abs(across - x) < _LABEL[0] and abs(up - y) < _LABEL[1] for x, y in labelled):
            continue
        labelled.append((across, up))
        shift = (6, 3 if falls else -9)
        note(axes, _name(each), _point(each), shift, color=GREY, fontsize=7)


def _name(each: Candidate) -> str:
    several = len(each.question.space.batch or ()) > 1
    return degrees(each) + (f", batch {each.row['batch']}" if several else "")


def _label_axes(axes: Axes, result: Found) -> None:
    question = result.questions[0]
    work = question.workload
    if isinstance(work, Decode):
        axes.set_xlabel("tokens/s/user")
    else:
        axes.set_xlabel("TTFT" if isinstance(work, Prefill) else "step time")
        label_ticks(axes.xaxis, lambda value: format_time(value) if value > 0 else "")
    if isinstance(work, Decode | Prefill):
        axes.set_ylabel("tokens/s/GPU")
        label_ticks(axes.yaxis, format_tokens)
    elif len(question.space.gpus or ()) > 1:
        axes.set_ylabel("GPUs")
    else:
        axes.set_ylabel("peak memory of the fullest GPU, GiB")


_KINDS: Final = (("one pool", False, "o", COLOURS[0]), ("two pools", True, "s", COLOURS[1]))
_APART: Final = 0.06
"""Room of a label, as a share of the picture's height."""


def load_sketch(plan: LoadPlan) -> Sketch:
    """Return the picture of the Pareto front."""
    return Sketch(lambda figure: _fill_deployments(figure, plan), _INCHES, load_title(plan), 12)


def _fill_deployments(figure: Figure, plan: LoadPlan) -> None:
    axes = figure.subplots()
    front = plan.front
    places = [(each.tokens_per_s_per_user, each.tokens_per_s_per_gpu) for each in front]
    axes.plot(*zip(*places, strict=True), color=GREY, linewidth=0.8, zorder=1)
    for name, disaggregated, mark, colour in _KINDS:
        own = [
            place
            for place, each in zip(places, front, strict=True)
            if each.planned.disaggregated == disaggregated
        ]
        if own:
            axes.plot(*zip(*own, strict=True), mark, color=colour, markersize=6, label=name)
    best = plan.best[0]
    if best.tpot_s:
        held = (1 / best.tpot_s, best.output_tokens_per_s_per_gpu)
        axes.plot(*held, "o", markersize=13, fillstyle="none", color="black")
    axes.set_title(f"ringed: {in_words(best)}", loc="left", fontsize=9)
    axes.margins(x=0.2, y=0.1)
    axes.autoscale_view()
    to_axes = axes.transData + axes.transAxes.inverted()
    last, named = float("inf"), ""
    for place, each in zip(places, front, strict=True):
        up = float(to_axes.transform(place)[1])
        name = front_name(each)
        if abs(last - up) >= _APART and name != named:
            note(axes, name, place, (6, 3), color=GREY, fontsize=7)
            last, named = up, name
    axes.set_xlabel("tokens/s/user")
    axes.set_ylabel("tokens/s/GPU")
    label_ticks(axes.yaxis, format_tokens)
    axes.grid(**GRID)
    axes.legend(frameon=False)

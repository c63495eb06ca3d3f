"""The Pareto front of a search for deployments as a picture.

Deployments of one pool and of two have a colour and a mark each; the best by the objective is
ringed, at the rate that it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shardcost.report.pictures import COLOURS, GREY, GRID, Sketch, label_ticks, note
from shardcost.report.plan_load import front_name, in_words, title
from shardcost.search.planned import LoadPlan
from shardcost.units import format_tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INCHES: Final = (9, 6)
_KINDS: Final = (("one pool", False, "o", COLOURS[0]), ("two pools", True, "s", COLOURS[1]))
_APART: Final = 0.06
"""Room of a label, as a share of the picture's height."""


def sketch(plan: LoadPlan) -> Sketch:
    """Return the picture of the Pareto front."""
    return Sketch(lambda figure: _fill(figure, plan), _INCHES, title(plan), 12)


def _fill(figure: Figure, plan: LoadPlan) -> None:
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

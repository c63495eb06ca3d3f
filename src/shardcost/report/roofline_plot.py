"""The roofline of a layer as a picture.

Left: kernels under the roof of the device, by intensity. Right: the time of every kernel, solid as
far as it would take at the roof. Elementwise kernels, whose few FLOP are not counted, are on the
right only.
"""

from __future__ import annotations

from itertools import pairwise
from math import atan2, degrees, hypot
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shardcost.estimate.result import Estimate
from shardcost.estimate.roofline import Kernel, Roofline, roofline
from shardcost.report.estimate import details, title
from shardcost.report.pictures import GREY, GRID, KINDS, Sketch, label_ticks, note
from shardcost.report.text import name_of
from shardcost.units import format_flops, format_percent, format_rate, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Box: TypeAlias = tuple[float, float, float, float]
"""Left, low, right, high."""

_WIDTH: Final = 12.5
_LEAST_HEIGHT: Final = 5.6
_ROW: Final = 0.21
"""Inches of a bar with its gap."""
_MARKS: Final = {"forward": "o", "recompute": "D", "backward": "s", "weight": "^"}
_PALE: Final = 0.3
_DECADES: Final = 30
"""At least so much of the slope is shown, from its end down to this part of it."""
_FARTHEST: Final = 5
"""Lines that a label may stand away from its points."""
_PAIR: Final = 2
_STEPS: Final = 40
_NEAR: Final = 11
"""Points nearer than so many typographic ones have one label."""
_LONGEST: Final = 26
"""Characters of a label that names its kernels; longer ones have their numbers."""


def sketch(estimate: Estimate) -> Sketch:
    """Return the picture of a layer's roofline."""
    roof = roofline(estimate)
    height = max(_LEAST_HEIGHT, 1.6 + _ROW * len(roof.kernels))
    heading = f"{title(estimate)}\n{details(estimate)}: one of {roof.layers} layers"
    return Sketch(lambda figure: _fill(figure, roof), (_WIDTH, height), heading)


def _fill(figure: Figure, roof: Roofline) -> None:
    under, beside = figure.subplots(1, 2, width_ratios=[5, 4])
    computing = [each for each in roof.kernels if each.flops]
    numbers = {id(each): number for number, each in enumerate(computing, 1)}
    _draw_roofs(under, roof, computing)
    for each in computing:
        mark: dict[str, Any] = {"markersize": 7, "markeredgecolor": "white", "markeredgewidth": 0.6}
        place = (each.intensity, each.flop_per_s)
        under.plot(*place, _MARKS[each.during], color=KINDS[each.kind], **mark)
    _name_marks(under, computing)
    _draw_bars(beside, roof, numbers)
    _label_points(figure, under, computing, numbers)


def _draw_roofs(axes: Axes, roof: Roofline, computing: list[Kernel]) -> None:
    """Draw the slope of the memory and one ceiling for each number format."""
    from matplotlib.ticker import NullFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    rate, peaks = roof.memory_bytes_per_s, roof.peaks
    top = max(peaks.values())
    intensities = [each.intensity for each in computing]
    left = min(*intensities, top / rate / _DECADES) / 3
    right = max(*intensities, top / rate) * 5
    bottom = min(rate * left, *(each.flop_per_s for each in computing)) / 1.5
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top * 2)
    axes.plot([left, top / rate], [left * rate, top], color="black", linewidth=1.6)
    ceilings: dict[float, list[str]] = {}
    for dtype, peak in peaks.items():
        ceilings.setdefault(peak, []).append(dtype)
    for peak, dtypes in ceilings.items():
        axes.plot([peak / rate, right], [peak, peak], color="black", linewidth=1.6)
        label = f"{' and '.join(dtypes)}\n{format_flops(peak)}"
        look = {"va": "center", "fontsize": 8, "annotation_clip": False}
        note(axes, label, (right, peak), (4, 0), **look)
    axes.set_xlabel("arithmetic intensity, FLOP per byte of memory traffic")
    axes.set_ylabel("achieved FLOP/s")
    label_ticks(axes.xaxis, "{:,g}".format)
    label_ticks(axes.yaxis, format_flops)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title(f"roof of the {roof.device}", loc="left", fontsize=9)
    axes.grid(**GRID)


def _label_points(
    figure: Figure, axes: Axes, computing: list[Kernel], numbers: dict[int, int]
) -> None:
    """Write names beside points, or their numbers where many stand together."""
    figure.draw_without_rendering()  # settles where the axes are, and so how large a letter is
    points: list[list[float]] = [
        axes.transData.transform((each.intensity, each.flop_per_s)).tolist() for each in computing
    ]
    _name_slope(axes, computing[0].memory_bytes_per_s)
    dot = figure.dpi / 72
    to_axes = axes.transAxes.inverted()
    taken = [(x - 4 * dot, y - 4 * dot, x + 4 * dot, y + 4 * dot) for x, y in points]
    taken += _lines(axes, computing, dot)
    bounds = axes.get_window_extent()
    taken.append((bounds.x1, bounds.y0, float("inf"), bounds.y1))
    for cluster in _clusters(points, _NEAR * dot):
        own = [computing[index] for index in cluster]
        text = ", ".join(dict.fromkeys(each.name for each in own))
        if len(text) > _LONGEST:
            text = in_runs([numbers[id(each)] for each in own])
        place, box = _room(text, [points[index] for index in cluster], taken, dot)
        taken.append(box)
        axes.annotate(
            text,
            (own[0].intensity, own[0].flop_per_s),
            xytext=to_axes.transform(place).tolist(),
            textcoords="axes fraction",
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": KINDS[own[0].kind]},
            color=KINDS[own[0].kind],
            fontsize=8,
            va="bottom",
        )


def _name_slope(axes: Axes, rate: float) -> None:
    """Write the memory's rate along the slope."""
    left = axes.get_xlim()[0]
    ends = [(left, left * rate), (10 * left, 10 * left * rate)]
    (x0, y0), (x1, y1) = axes.transData.transform(ends)
    note(
        axes,
        f"memory {format_rate(rate)}",
        (1.3 * left, 1.3 * left * rate),
        (-3, 5),
        rotation=degrees(atan2(y1 - y0, x1 - x0)),
        rotation_mode="anchor",
        va="bottom",
    )


def _lines(axes: Axes, computing: list[Kernel], dot: float) -> list[Box]:
    """Return the room that the roofs take: ceilings, and the slope in short steps."""
    rate = computing[0].memory_bytes_per_s
    left, right = axes.get_xlim()
    found: list[Box] = []
    for peak in {each.peak_flop_per_s for each in computing}:
        (x0, y), (x1, _) = axes.transData.transform([(peak / rate, peak), (right, peak)])
        found.append((x0, y - dot, x1, y + dot))
    top = max(each.peak_flop_per_s for each in computing)
    steps = [left * (top / rate / left) ** (step / _STEPS) for step in range(_STEPS + 1)]
    corners = axes.transData.transform([(each, each * rate) for each in steps]).tolist()
    found += [(*one, *two) for one, two in pairwise(corners)]
    return found


def _clusters(points: list[list[float]], near: float) -> list[list[int]]:
    """Return which points stand together, from left to right."""
    found: list[list[int]] = []
    for index in sorted(range(len(points)), key=lambda each: points[each]):
        x, y = points[index]
        for cluster in found:
            if any(hypot(points[each][0] - x, points[each][1] - y) < near for each in cluster):
                cluster.append(index)
                break
        else:
            found.append([index])
    return [sorted(cluster) for cluster in found]


def _room(
    text: str, points: list[list[float]], taken: list[Box], dot: float
) -> tuple[tuple[float, float], Box]:
    """Return where a label has its lower left corner, and the room that it takes.

    It goes to the first side of its points where nothing else is, in pixels.
    """
    width, height, gap = 5.0 * dot * len(text), 10 * dot, 7 * dot
    across, up = zip(*points, strict=True)
    left, right, low, high = min(across), max(across), min(up), max(up)
    beside = (right + gap, left - gap - width)
    over = (left + right - width) / 2
    middle = (low + high - height) / 2
    places = [(x, middle) for x in beside]
    for step in range(_FARTHEST):
        below, above = low - gap - (1 + step) * height, high + gap / 2 + step * height
        places += [(x, y) for y in (below, above) for x in (over, *beside)]
    boxes = [(x, y, x + width, y + height) for x, y in places]
    free = (
        index for index, box in enumerate(boxes) if not any(_overlap(box, each) for each in taken)
    )
    chosen = next(free, 0)
    return places[chosen], boxes[chosen]


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def in_runs(numbers: list[int]) -> str:
    """Return rising numbers with those that follow each other as one.

    >>> in_runs([1, 4, 5, 6, 8, 9])
    '1, 4-6, 8, 9'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    said = (f"{run[0]}-{run[-1]}" if len(run) > _PAIR else ", ".join(map(str, run)) for run in runs)
    return ", ".join(said)


def _name_marks(axes: Axes, computing: list[Kernel]) -> None:
    """Say which mark is which pass, where there are several."""
    used = [during for during in _MARKS if any(each.during == during for each in computing)]
    if len(used) == 1:
        return
    for during in used:
        axes.plot([], [], _MARKS[during], color=GREY, label=during)
    axes.legend(frameon=False, loc="lower right", title="pass", alignment="left")


def _draw_bars(axes: Axes, roof: Roofline, numbers: dict[int, int]) -> None:
    """Draw the time of every kernel, and its time at the roof."""
    from matplotlib.ticker import MaxNLocator

    longest, names = max(each.time_s for each in roof.kernels), []
    for row, each in enumerate(roof.kernels):
        colour = KINDS[each.kind]
        axes.barh(row, each.time_s, color=colour, alpha=_PALE, height=0.72)
        axes.barh(row, each.roof_s, color=colour, height=0.72)
        label = f"{format_time(each.time_s)}, {format_percent(each.share_of_roof)}"
        note(axes, label, (each.time_s, row), (3, 0), va="center", fontsize=7.5, color=GREY)
        often, number = f" x {each.count:g}" if each.count != 1 else "", numbers.get(id(each), "")
        names.append(f"{each.name}{often}\N{EN SPACE}{number!s:\N{FIGURE SPACE}>2}")
    axes.set_yticks(range(len(roof.kernels)), names)
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    several = len({each.during for each in roof.kernels}) > 1
    axes.set_xlim(0, (1.65 if several else 1.38) * longest)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    label_ticks(axes.xaxis, format_time)
    whole = f"{format_percent(roof.share_of_roof)} of {format_time(roof.time_s)}"
    axes.set_xlabel(f"time; solid: at the roof, {whole}")
    if several:
        _separate(axes, roof)
    _name_kinds(axes, roof)


def _separate(axes: Axes, roof: Roofline) -> None:
    """Draw a line between passes, and name each at its first bar."""
    before = None
    for row, each in enumerate(roof.kernels):
        if each.during != before:
            before = each.during
            axes.axhline(row - 0.5, color=GREY, linewidth=0.5)
            look: dict[str, Any] = {
                "ha": "right",
                "va": "top",
                "fontsize": 8,
                "color": GREY,
                "style": "italic",
            }
            place = (1, row - 0.45)
            axes.annotate(each.during, place, xycoords=("axes fraction", "data"), **look)


def _name_kinds(axes: Axes, roof: Roofline) -> None:
    from matplotlib.patches import Patch

    used = {each.kind for each in roof.kernels}
    patches = [Patch(color=KINDS[kind], label=name_of(kind)) for kind in KINDS if kind in used]
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
    axes.legend(handles=patches, frameon=False, ncols=len(patches), **place)

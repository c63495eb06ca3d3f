"""The roofline of a layer as a picture.

Left: kernels under the roof of the device, by intensity. Right: the time of every kernel, solid as
far as it would take at the roof. Elementwise kernels, whose few FLOP are not counted, are on the
right only.
"""

from __future__ import annotations

from itertools import pairwise
from math import atan2, degrees, dist
from typing import TYPE_CHECKING, Any, Final

from shardcost.estimate.result import Estimate
from shardcost.estimate.roofline import Kernel, Roofline, roofline
from shardcost.report.estimate import details, title
from shardcost.report.pictures import GREY, GRID, KINDS, Sketch, label_ticks, note, settle
from shardcost.report.text import name_of
from shardcost.units import format_flops, format_percent, format_rate, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

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
    computing = [kernel for kernel in roof.kernels if kernel.flops]
    numbers = {id(kernel): number for number, kernel in enumerate(computing, 1)}
    _draw_roofs(under, roof, computing)
    mark: dict[str, Any] = {"markersize": 7, "markeredgecolor": "white", "markeredgewidth": 0.6}
    for kernel in computing:
        form, colour = _MARKS[kernel.during], KINDS[kernel.kind]
        under.plot(kernel.intensity, kernel.flop_per_s, form, color=colour, **mark)
    used = [during for during in _MARKS if any(each.during == during for each in computing)]
    if len(used) > 1:
        for during in used:
            under.plot([], [], _MARKS[during], color=GREY, label=during)
        under.legend(frameon=False, loc="lower right", title="pass", alignment="left")
    _draw_bars(beside, roof, numbers)
    _label_points(figure, under, computing, numbers)


def _draw_roofs(axes: Axes, roof: Roofline, computing: list[Kernel]) -> None:
    """Draw the slope of the memory and one ceiling for each number format."""
    from matplotlib.ticker import NullFormatter

    axes.loglog()
    rate, peaks = roof.memory_bytes_per_s, roof.peaks
    top = max(peaks.values())
    intensities = [kernel.intensity for kernel in computing]
    left = min(*intensities, top / rate / _DECADES) / 3
    right = max(*intensities, top / rate) * 5
    bottom = min(rate * left, *(kernel.flop_per_s for kernel in computing)) / 1.5
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top * 2)
    axes.plot([left, top / rate], [left * rate, top], color="black", linewidth=1.6)
    ceilings: dict[float, list[str]] = {}
    for dtype, peak in peaks.items():
        ceilings.setdefault(peak, []).append(dtype)
    for peak, dtypes in ceilings.items():
        axes.plot([peak / rate, right], [peak, peak], color="black", linewidth=1.6)
        label = f"{' and '.join(dtypes)}\n{format_flops(peak)}"
        note(axes, label, (right, peak), (4, 0), va="center", fontsize=8, annotation_clip=False)
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
    from matplotlib.transforms import Bbox

    settle(figure)  # where the axes are, and so how large a letter is
    places = [(kernel.intensity, kernel.flop_per_s) for kernel in computing]
    points: list[list[float]] = axes.transData.transform(places).tolist()
    _name_slope(axes, computing[0].memory_bytes_per_s)
    dot = figure.dpi / 72
    to_axes = axes.transAxes.inverted()
    taken = [Bbox.from_bounds(x, y, 0, 0).padded(4 * dot) for x, y in points]
    taken += _lines(axes, computing, dot)
    bounds = axes.get_window_extent()
    taken.append(Bbox.from_extents(bounds.x1, bounds.y0, float("inf"), bounds.y1))
    for cluster in _clusters(points, _NEAR * dot):
        own = [computing[index] for index in cluster]
        text = ", ".join(dict.fromkeys(kernel.name for kernel in own))
        if len(text) > _LONGEST:
            text = in_runs([numbers[id(kernel)] for kernel in own])
        taken.append(_room(text, [points[index] for index in cluster], taken, dot))
        axes.annotate(
            text,
            (own[0].intensity, own[0].flop_per_s),
            xytext=to_axes.transform(taken[-1].p0).tolist(),
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


def _lines(axes: Axes, computing: list[Kernel], dot: float) -> list[Bbox]:
    """Return the room that the roofs take: ceilings, and the slope in short steps."""
    from matplotlib.transforms import Bbox

    rate = computing[0].memory_bytes_per_s
    left, right = axes.get_xlim()
    peaks = {kernel.peak_flop_per_s for kernel in computing}
    lines = []
    for peak in peaks:
        (x0, y), (x1, _) = axes.transData.transform([(peak / rate, peak), (right, peak)])
        lines.append(Bbox.from_extents(x0, y - dot, x1, y + dot))
    steps = [left * (max(peaks) / rate / left) ** (step / _STEPS) for step in range(_STEPS + 1)]
    corners = axes.transData.transform([(step, step * rate) for step in steps])
    return lines + [Bbox(ends) for ends in pairwise(corners)]


def _clusters(points: list[list[float]], near: float) -> list[list[int]]:
    """Return which points stand together, from left to right."""
    clusters: list[list[int]] = []
    for index in sorted(range(len(points)), key=points.__getitem__):
        for cluster in clusters:
            if any(dist(points[member], points[index]) < near for member in cluster):
                cluster.append(index)
                break
        else:
            clusters.append([index])
    return [sorted(cluster) for cluster in clusters]


def _room(text: str, points: list[list[float]], taken: list[Bbox], dot: float) -> Bbox:
    """Return the room of a label, in pixels: the first side of its points where nothing else is."""
    from matplotlib.transforms import Bbox

    width, height, gap = 5.0 * dot * len(text), 10 * dot, 7 * dot
    across, up = zip(*points, strict=True)
    left, right, low, high = min(across), max(across), min(up), max(up)
    beside = (right + gap, left - gap - width)
    over = (left + right - width) / 2
    places = [(x, (low + high - height) / 2) for x in beside]
    for step in range(_FARTHEST):
        below, above = low - gap - (1 + step) * height, high + gap / 2 + step * height
        places += [(x, y) for y in (below, above) for x in (over, *beside)]
    boxes = [Bbox.from_bounds(x, y, width, height) for x, y in places]
    return next((box for box in boxes if not box.count_overlaps(taken)), boxes[0])


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


def _draw_bars(axes: Axes, roof: Roofline, numbers: dict[int, int]) -> None:
    """Draw the time of every kernel, and its time at the roof."""
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    longest, names = max(kernel.time_s for kernel in roof.kernels), []
    rows, colours = range(len(roof.kernels)), [KINDS[kernel.kind] for kernel in roof.kernels]
    axes.barh(rows, [each.time_s for each in roof.kernels], color=colours, alpha=_PALE, height=0.72)
    axes.barh(rows, [each.roof_s for each in roof.kernels], color=colours, height=0.72)
    for row, kernel in enumerate(roof.kernels):
        label = f"{format_time(kernel.time_s)}, {format_percent(kernel.share_of_roof)}"
        look: dict[str, Any] = {"va": "center", "fontsize": 7.5, "color": GREY, "in_layout": False}
        note(axes, label, (kernel.time_s, row), (3, 0), **look)
        often = f" x {kernel.count:g}" if kernel.count != 1 else ""
        number = f"{numbers.get(id(kernel), '')!s:\N{FIGURE SPACE}>2}"
        names.append(f"{kernel.name}{often}\N{EN SPACE}{number}")
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
    used = {kernel.kind for kernel in roof.kernels}
    patches = [Patch(color=KINDS[kind], label=name_of(kind)) for kind in KINDS if kind in used]
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
    axes.legend(handles=patches, frameon=False, ncols=len(patches), **place)


def _separate(axes: Axes, roof: Roofline) -> None:
    """Draw a line between passes, and name each at its first bar."""
    look: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 8, "style": "italic"}
    look |= {"color": GREY, "xycoords": ("axes fraction", "data")}
    before = None
    for row, kernel in enumerate(roof.kernels):
        if kernel.during != before:
            before = kernel.during
            axes.axhline(row - 0.5, color=GREY, linewidth=0.5)
            axes.annotate(before, (1, row - 0.45), **look)

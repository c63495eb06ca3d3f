"""Scaling as a picture: over one option, the parts of the step at each value, and the efficiency.

Bars add up to the step; hidden communication is hatched beside them. Below are efficiency and the
share of communication, with their thresholds. Infeasible values are slots with the reason.

Over two options it is a heat map of the time, dark where it is short; cells that do not fit or are
impossible are hatched.
"""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

from shardcost.errors import BadValueError
from shardcost.estimate.result import Estimate
from shardcost.estimate.scaling import HALF, WORTHWHILE, Grid, Row, Scaling
from shardcost.report import pictures
from shardcost.report.estimate import details, title
from shardcost.report.pictures import (
    COLOURS,
    GREY,
    GRID,
    GROUPS,
    HATCH,
    IDLE,
    Sketch,
    label_ticks,
    note,
)
from shardcost.report.scaling import (
    HEADLINES,
    OUT_OF_MEMORY,
    grid_sentences,
    grid_title,
    headline_s,
    sentences,
    short_reason,
)
from shardcost.units import format_bytes, format_percent, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT: Final = 6.8
_SLOT: Final = 1.05
"""Inches of a value."""
_LEAST_WIDTH, _MOST_WIDTH = 8.5, 16.0
_BAR, _HIDDEN = 0.5, 0.14
"""Widths of a bar and of what is hidden beside it; a value has room of 1."""
_LEAST_GAP: Final = 0.14
"""Between the names of two curves, as a share of the axis' height."""
_ORDER: Final = (
    "host and overhead",
    "bubble",
    *(f"{group.upper()} communication" for group in reversed(GROUPS)),
    "compute",
    *(f"{group.upper()} communication, hidden" for group in GROUPS),
)
"""Of the legend: a bar from the top down, then what is beside it."""
_PALE: Final = 0.35
_NOTHING: Final = 1e-9
"""Parts below this share of the longest step are rounding."""
_REASON: Final = 30
"""Characters of a line of a reason."""
_CELL: Final = (0.95, 0.55)
"""Inches of a cell of a heat map."""
_DARK: Final = 0.45
"""Shade of a cell, of 0 to 1, below which white text is readable on it."""


def sketch(scaling: Scaling) -> Sketch:
    """Return the picture of a curve."""
    if not scaling.possible:
        values = ", ".join(row.value for row in scaling.rows)
        raise BadValueError(scaling.name, values, "possible for at least one value, to be drawn")
    first = scaling.possible[0][1]
    width = min(_MOST_WIDTH, max(_LEAST_WIDTH, 3 + _SLOT * len(scaling.rows)))
    heading = f"{scaling.name} varies; first: {title(first)}, {details(first)}"
    heading = fill(heading, _characters(width))
    return Sketch(lambda figure: _fill(figure, scaling), (width, _HEIGHT), heading, 10.5)


def _characters(inches: float) -> int:
    """Return how many characters fill a line."""
    return int(12.5 * inches)


def _fill(figure: Figure, scaling: Scaling) -> None:
    width = _characters(figure.get_figwidth())
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[5, 2])
    _draw_steps(above, scaling)
    _draw_shares(below, scaling)
    above.set_title(fill("; ".join(sentences(scaling)), width), loc="left", fontsize=9, color=GREY)
    below.set_xticks(range(len(scaling.rows)), [row.value for row in scaling.rows])
    below.set_xlim(-0.6, len(scaling.rows) - 0.4)
    below.set_xlabel(scaling.name.replace("_", " "))


def _draw_steps(axes: Axes, scaling: Scaling) -> None:
    """Draw a bar for each value, stacked of its parts."""
    longest = max(float(estimate.time_s) for _, estimate in scaling.possible)
    fastest = scaling.crossover()["fastest"]
    used: dict[str, Any] = {}
    for place, row in enumerate(scaling.rows):
        if row.found is not None:
            _draw_bar(axes, place, row, longest, used)
            _label_bar(axes, place, row, row.found, fastest=row.value == fastest)
        if row.reason is not None:
            look: dict[str, Any] = {"facecolor": pictures.SLOT, "edgecolor": "#dddddd"}
            axes.axvspan(place - 0.45, place + 0.45, hatch="//", zorder=0, **look)
        if row.found is None:
            axes.annotate(
                fill(short_reason(row), _REASON),
                (place, 0.03),
                xycoords=("data", "axes fraction"),
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.75},
                zorder=3,
            )
    axes.set_ylim(0, 1.25 * longest)
    label_ticks(axes.yaxis, format_time)
    axes.set_ylabel("TTFT" if scaling.phase == "prefill" else "step time")
    axes.grid(axis="y", **GRID)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", length=0)
    handles = [used[name] for name in _ORDER if name in used]
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0}
    axes.legend(handles=handles, frameon=False, **beside)


def _draw_bar(axes: Axes, place: int, row: Row, longest: float, used: dict[str, Any]) -> None:
    """Draw the parts of a step from the bottom up, and beside them what computation hides."""
    estimate, split = row.found, row.split
    if estimate is None or split is None:
        return
    idle = {"facecolor": "white", "edgecolor": pictures.IDLE, "hatch": HATCH}
    parts: list[tuple[str, Any, dict[str, Any]]] = [
        ("compute", split.compute_s, {"color": pictures.COMPUTE}),
        *(
            (f"{group.upper()} communication", seconds, {"color": GROUPS[group]})
            for group, seconds in estimate.exposed_s.items()
        ),
        ("bubble", split.bubble_s, idle),
        ("host and overhead", split.other_s, {"color": pictures.HOST}),
    ]
    hidden: list[tuple[str, Any, dict[str, Any]]] = [
        (f"{group.upper()} communication, hidden", seconds, idle | {"edgecolor": GROUPS[group]})
        for group, seconds in estimate.hidden_s.items()
    ]
    alpha = 1.0 if row.fits else _PALE
    _stack(axes, place, parts, longest, used, width=_BAR, alpha=alpha, linewidth=0)
    beside = place + _BAR / 2 + _HIDDEN / 2 + 0.02
    _stack(axes, beside, hidden, longest, used, width=_HIDDEN, linewidth=0.6)


def _stack(
    axes: Axes,
    place: float,
    parts: list[tuple[str, Any, dict[str, Any]]],
    longest: float,
    used: dict[str, Any],
    **style: Any,
) -> None:
    """Draw parts on top of each other: name, seconds, and how they look."""
    from matplotlib.patches import Patch

    bottom = 0.0
    for name, seconds, look in parts:
        if seconds >= _NOTHING * longest:
            used.setdefault(name, Patch(label=name, **look))
            axes.bar(place, float(seconds), bottom=bottom, zorder=2, **style, **look)
            bottom += float(seconds)


def _label_bar(axes: Axes, place: int, row: Row, estimate: Estimate, *, fastest: bool) -> None:
    """Write a step's time over its bar, and what it would need where that does not fit."""
    lines = [
        format_time(estimate.time_s),
        f"{estimate.devices:,} GPU{'s' * (estimate.devices > 1)}",
    ]
    if not row.fits:
        capacity = format_bytes(estimate.cluster.device.memory_bytes)
        lines += [f"needs {format_bytes(estimate.memory_bytes)}", f"of {capacity}"]
    look = {"ha": "center", "fontsize": 8, "fontweight": "bold" if fastest else "normal"}
    note(axes, "\n".join(lines), (place, float(estimate.time_s)), (0, 3), zorder=4, **look)


def _draw_shares(axes: Axes, scaling: Scaling) -> None:
    """Draw efficiency and the share of communication, and ring where they cross their lines."""
    from matplotlib.ticker import PercentFormatter

    compared, crossed = dict(scaling.feasible or scaling.possible), scaling.crossover()
    places = [place for place, row in enumerate(scaling.rows) if row.value in compared]
    estimates = [compared[scaling.rows[place].value] for place in places]
    efficiencies = [scaling.efficiency(estimate) for estimate in estimates]
    communication = [float(estimate.comm_share) for estimate in estimates]
    most = 1.12 * max(1.0, *efficiencies)
    curves = (  # name, colour, shares, and the limit that is crossed at a value
        ("efficiency", COLOURS[2], efficiencies, WORTHWHILE, crossed["efficiency_below_80_pct"]),
        ("communication", COLOURS[1], communication, HALF, crossed["communication_above_half"]),
    )
    heights = pictures.spread([shares[-1] / most for _, _, shares, *_ in curves], _LEAST_GAP)
    for (name, colour, shares, limit, value), height in zip(curves, heights, strict=True):
        axes.plot(places, shares, "o-", color=colour, linewidth=1.6, markersize=4)
        axes.axhline(limit, color=colour, linestyle=":", linewidth=1)
        for place, share in zip(places, shares, strict=True):
            if scaling.rows[place].value == value:
                axes.plot(place, share, "o", fillstyle="none", color="black", ms=11)
        label = f"{name} {format_percent(shares[-1])}"
        look: dict[str, Any] = {"xycoords": "axes fraction", "annotation_clip": False}
        note(axes, label, (1.01, height), color=colour, va="center", **look)
    axes.set_ylim(0, most)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    axes.set_ylabel("share")
    axes.grid(axis="y", **GRID)


def heat_map(grid: Grid) -> Sketch:
    """Return the picture of a grid."""
    possible = [row.found for _, row in grid.cells() if row.found is not None]
    if not possible:
        raise BadValueError(grid.name, grid.across, "possible for at least one pair, to be drawn")
    width = min(_MOST_WIDTH, max(_LEAST_WIDTH, 3.5 + _CELL[0] * len(grid.columns)))
    height = max(3.2, 2.2 + _CELL[1] * len(grid.lines))
    words = f"{grid_title(grid)}; first: {title(possible[0])}, {details(possible[0])}"
    heading = fill(words, _characters(width))
    return Sketch(lambda figure: _fill_map(figure, grid), (width, height), heading, 10.5)


def _fill_map(figure: Figure, grid: Grid) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    axes = figure.subplots()
    times = [headline_s(row.found) for _, row in grid.cells() if row.found and row.fits]
    least, most = (min(times), max(times)) if times else (1.0, 2.0)
    shades = ScalarMappable(LogNorm(least, max(most, least * 1.01)), colormaps["cividis"])
    used: dict[str, Any] = {}
    columns = {value: place for place, value in enumerate(grid.columns)}
    for line, (_, scaling) in enumerate(grid.lines):
        for row in scaling.rows:
            _draw_cell(axes, (columns[row.value], line), row, shades, used)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(grid.lines) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), list(columns))
    axes.set_yticks(range(len(grid.lines)), [value for value, _ in grid.lines])
    axes.set_xlabel(grid.across.replace("_", " "))
    axes.set_ylabel(grid.name.replace("_", " "))
    axes.tick_params(length=0)
    words = fill("; ".join(grid_sentences(grid)), _characters(figure.get_figwidth()))
    axes.set_title(words, loc="left", fontsize=9, color=GREY)
    if times:
        bar = figure.colorbar(shades, ax=axes, pad=0.02)
        bar.minorticks_off()
        between = (least * most) ** 0.5
        bar.set_ticks(sorted({least, between, most}))
        label_ticks(bar.ax.yaxis, format_time)
        bar.set_label(HEADLINES[grid.phase])
    if used:
        below: dict[str, Any] = {"loc": "outside lower left", "ncols": 1}
        figure.legend(handles=list(used.values()), frameon=False, **below)


def _draw_cell(
    axes: Axes, place: tuple[int, int], row: Row, shades: Any, used: dict[str, Any]
) -> None:
    """Draw one cell: a shade with its time, or a hatch that the legend explains."""
    from matplotlib.patches import Patch, Rectangle

    corner = (place[0] - 0.5, place[1] - 0.5)
    look: dict[str, Any] = {"edgecolor": "white", "linewidth": 1}
    if row.found is not None and row.fits:
        seconds = headline_s(row.found)
        look["facecolor"] = shades.to_rgba(seconds)
        dark = float(shades.norm(seconds)) < _DARK
        text, colour = format_time(seconds), "white" if dark else "black"
    else:
        hatch: dict[str, Any] = {"facecolor": pictures.SLOT, "edgecolor": IDLE}
        hatch["hatch"] = "//" if row.found else "xx"
        if row.found is None:
            name = short_reason(row)
            known = [OUT_OF_MEMORY, *(each for each in used if each != OUT_OF_MEMORY)]
            text = f"[{known.index(name) if name in known else len(known)}]"
            label = f"{text} {name}"
        else:
            name, label = OUT_OF_MEMORY, f"{OUT_OF_MEMORY}: does not fit into memory"
            text = f"{OUT_OF_MEMORY}\n{format_bytes(row.found.memory_bytes)}"
        used.setdefault(name, Patch(label=label, **hatch))
        look, colour = look | hatch, "black"
    axes.add_patch(Rectangle(corner, 1, 1, **look))
    box = {"facecolor": pictures.SLOT, "edgecolor": "none", "pad": 1} if "hatch" in look else None
    axes.text(*place, text, ha="center", va="center", fontsize=8, color=colour, bbox=box)

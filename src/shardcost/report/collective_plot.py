"""A collective over sizes as a picture: predicted time and bandwidth, and the time of every path.

Measurements that ship with the package are open circles, with the name of their dataset. Every
curve is labelled at its end, in its own colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shardcost.collectives.library_time import CollectiveTime
from shardcost.collectives.paths import total
from shardcost.collectives.sweep import switches
from shardcost.errors import BadValueError
from shardcost.report.collective import link, title
from shardcost.report.pictures import COLOURS, GREY, GRID, Sketch, label_ticks, note, spread
from shardcost.units import format_bytes, format_rate, format_time
from shardcost.validate.shipped import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHES: Final = ("-", "--")
_LEAST_GAP: Final = 0.055
"""Between two labels at the ends of curves, as a share of the axis' height."""
_LEAST_GAP_ACROSS: Final = 0.02
"""Between two labels of switches, as a share of the axis' width."""
_MOST_TICKS: Final = 11


class Mark(NamedTuple):
    """A size to point out on a curve."""

    size_bytes: float
    time_s: float
    text: str


def sketch(sweep: CollectiveTime, points: Sequence[Point] = (), mark: Mark | None = None) -> Sketch:
    """Return the picture of a sweep over sizes, and of measured points."""
    if sweep.group.ranks == 1:
        raise BadValueError("gpus", 1, "at least 2 for a plot: a single GPU sends nothing")
    sizes = sweep.size_bytes
    heading = title(sweep, f"{format_bytes(sizes[0])} to {format_bytes(sizes[-1])}")
    return Sketch(lambda figure: _fill(figure, sweep, points, mark), (9, 7.5), heading, 12)


def _fill(
    figure: Figure, sweep: CollectiveTime, points: Sequence[Point], mark: Mark | None
) -> None:
    first, last = sweep.size_bytes[0], sweep.size_bytes[-1]
    shown = [each for each in points if first <= each.size_bytes <= last]
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    _draw_points(above, shown, [each.time_s for each in shown])
    _draw_points(below, shown, [each.busbw_bytes_per_s for each in shown])
    _draw_times(above, sweep)
    _draw_rates(below, sweep, shown)
    for axes, values in ((above, sweep.time_s), (below, sweep.busbw_bytes_per_s)):
        for switch in switches(sweep):  # a line where another path takes over, and a dot
            axes.axvline(switch.size_bytes, color=GREY, linestyle=":", linewidth=1)
            axes.plot(switch.size_bytes, values[switch.place], "o", color="black", markersize=6)
        axes.grid(**GRID)
    _name_switches(above, sweep)
    if mark is not None:  # larger and brighter than whatever stands there
        look: dict[str, Any] = {"color": COLOURS[1], "markeredgecolor": "black", "markersize": 9}
        look |= {"zorder": 6, "linestyle": "none", "label": mark.text}
        above.plot(mark.size_bytes, mark.time_s, "D", **look)
    if shown or mark is not None:  # below every curve of time there is room
        above.legend(loc="lower right", frameon=False)
    _label_sizes(below, sweep.size_bytes)


def _draw_times(axes: Axes, sweep: CollectiveTime) -> None:
    """Draw every path thin and the prediction bold, on logarithmic axes, labelled at the end."""
    from matplotlib.ticker import LogLocator, NullFormatter

    sizes = sweep.size_bytes
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ends: list[tuple[str, float, str]] = []
    for index, path in enumerate(sweep.paths):
        colour = COLOURS[index % len(COLOURS)]
        dashes = _DASHES[index // len(COLOURS) % len(_DASHES)]
        times = np.broadcast_to(total(sweep.paths[path]), sizes.shape)
        axes.plot(sizes, times, color=colour, linestyle=dashes, linewidth=1)
        ends.append((" ".join(path), float(times[-1]), colour))
    axes.plot(sizes, sweep.time_s, color="black", linewidth=2.6)
    ends.append(("prediction", float(sweep.time_s[-1]), "black"))
    few_decades = np.log10(axes.get_ylim()[1] / axes.get_ylim()[0]) < 3.5
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few_decades else (1,)))
    label_ticks(axes.yaxis, format_time)
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("time")
    _label_ends(axes, sizes[-1], ends)


def _draw_points(axes: Axes, points: Sequence[Point], heights: Sequence[float]) -> None:
    """Draw measured points as circles, white inside so that the curve does not swallow them."""
    if points:
        sizes = [each.size_bytes for each in points]
        label = f"measured: {', '.join(dict.fromkeys(each.dataset for each in points))}"
        look: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": "black"}
        axes.plot(sizes, heights, "o", markersize=6, zorder=5, label=label, **look)


def _draw_rates(axes: Axes, sweep: CollectiveTime, points: Sequence[Point]) -> None:
    """Draw the bus bandwidth of the prediction under the nominal rate of the link."""
    nominal = link(sweep)
    rate = float(nominal.bytes_per_s)
    rates = sweep.busbw_bytes_per_s
    axes.plot(sweep.size_bytes, rates, color="black", linewidth=2.6)
    axes.axhline(rate, color=GREY, linestyle="--", linewidth=1)
    label = f"{format_rate(rate)}: {nominal.name}, nominal"
    note(axes, label, (0.01, rate), (0, 4), xycoords=("axes fraction", "data"), color=GREY)
    measured = [each.busbw_bytes_per_s for each in points]
    axes.set_ylim(0, 1.15 * max(rate, float(rates.max()), *measured))
    label_ticks(axes.yaxis, format_rate)
    axes.set_ylabel("bus bandwidth")


def _label_ends(axes: Axes, size: float, ends: list[tuple[str, float, str]]) -> None:
    """Write each curve's name to the right of its end, moved apart where they would overlap."""
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [float(to_axes.transform((size, end))[1]) for _, end, _ in ends]
    for (name, end, colour), height in zip(ends, spread(heights, _LEAST_GAP), strict=True):
        axes.annotate(
            name,
            (size, end),
            xytext=(1.03, height),
            textcoords="axes fraction",
            color=colour,
            va="center",
            fontweight="bold" if colour == "black" else "normal",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "relpos": (0, 0.5)},
        )


def _name_switches(axes: Axes, sweep: CollectiveTime) -> None:
    """Write beside the line of each switch what runs from there on."""
    look: dict[str, Any] = {"xycoords": "axes fraction", "rotation": 90, "ha": "right", "va": "top"}
    look |= {"color": GREY, "fontsize": 8}
    look["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
    to_axes = axes.transData + axes.transAxes.inverted()
    places = [float(to_axes.transform((each.size_bytes, 1))[0]) for each in switches(sweep)]
    for each, place in zip(switches(sweep), spread(places, _LEAST_GAP_ACROSS), strict=True):
        value, unit = format_bytes(each.size_bytes).split()
        size = float(value.replace(",", ""))  # to the two digits or so that it is worth
        start = f"{size:.0f} {unit}" if size >= 10 else f"{size:.1f} {unit}"
        note(axes, f"{each.algorithm} {each.protocol} from {start}", (place, 1), (-3, -3), **look)


def _label_sizes(axes: Axes, sizes: Any) -> None:
    """Put ticks at powers of two, few enough to be read."""
    from matplotlib.ticker import FixedLocator, NullLocator

    first, last = int(np.ceil(np.log2(sizes[0]))), int(np.floor(np.log2(sizes[-1])))
    step = max(1, -(-(last - first + 1) // _MOST_TICKS))
    axes.xaxis.set_major_locator(
        FixedLocator([2.0**power for power in range(first, last + 1, step)])
    )
    axes.xaxis.set_minor_locator(NullLocator())
    label_ticks(axes.xaxis, format_bytes)
    axes.set_xlabel("buffer size")

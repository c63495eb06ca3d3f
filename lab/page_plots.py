"""The pictures of the validation page: predictions over measurements, errors, intervals, peers.

One panel for each kind of table. Clouds of points are drawn as pixels inside the SVG file, so that
ten thousand of them stay small; text and lines stay text and lines. Colours are those of
`shardcost.report.plot`; what colours tell apart, shapes do too. One validation gives one file, byte
for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from lab.page_axes import DEGREES, MICROSECONDS, SIZES, UNITS, Axis, bins
from lab.page_tables import KINDS
from lab.peers import Compared, Peer, compared, elsewhere
from shardcost.report.pictures import COLOURS, GREY, Sketch, drawn
from shardcost.validate.predictions import Floats
from shardcost.validate.validation import Validation, errors_pct, of_headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _ORANGE = COLOURS[:2]
_ACROSS: Final = 3
_INCHES: Final = 8.4
"""Width of a picture: about 800 pixels as browsers show it."""
_PANEL_INCHES: Final = 2.15
_LINE_INCHES: Final = 0.24
_MANY: Final = 1000
"""Rows from which on their points are drawn smaller."""
_BAND: Final = 0.1
"""Half the width of the band around what was measured, as a share of it."""
_ERRORS_PCT: Final = (0.05, 300.0)
_RATIOS: Final = (0.4, 2.5)
"""Bounds of the axes; points beyond stand at the edge."""
_FEW: Final = 5
"""Below so many rows, a point of a curve of errors is hollow."""
_KIND: Final = "svg"


_PERCENT: Final = "\N{NO-BREAK SPACE}%"


class Picture(NamedTuple):
    """A picture of the page: its file, what it shows in words, and what draws it."""

    name: str
    alt: str
    caption: str
    draw: Callable[[], bytes]


class _Panel(NamedTuple):
    title: str
    label: str
    """Of the axis across."""
    draw: Callable[[Axes], None]


def pictures(validations: Sequence[Validation]) -> list[Picture]:
    """Return the pictures that validations, one of each kind, have the rows for."""
    known = [of_headline(validation) for validation in validations if validation.overall.rows]
    if not known:
        return []
    every = [
        _panelled("predicted", "predicted", _predicted(known), _alt_predicted(known), _PREDICTED),
        _panelled("by_size", "error, %", list(_by_size(known)), _alt_by_size(known), _BY_SIZE),
        _panelled("by_degree", "error, %", list(_by_degree(known)), _ALT_DEGREE, _BY_DEGREE),
        _intervals(known),
        _peers(known),
    ]
    return [picture for picture in every if picture is not None]


_PREDICTED: Final = """\
Every row, predicted against measured. Between the lines, predictions are a tenth off at most."""
_BY_SIZE: Final = """\
Errors by the size of what was measured: the median (dots, full line) and p90 (triangles, dashed
line), hollow where they are of fewer than five rows."""
_BY_DEGREE: Final = """\
Errors by how many devices share the work, drawn the same way."""
_ALT_DEGREE: Final = """\
Median and p90 of the errors by number of GPUs and by parallel degree, a panel for each table"""
_INTERVALS: Final = """\
What was measured over what was predicted, with the predicted 90 % interval (the band is the middle
one of the rows of a size). Rows beyond the axes stand at their edge."""
_PEERS: Final = """\
Errors of other cost models beside shardcost's on the same rows, and, below the line, what others
state on rows that are not public. A bar is the range that is stated."""


def _panelled(
    name: str, across: str, panels: Sequence[_Panel], alt: str, caption: str
) -> Picture | None:
    """Return a picture of panels under each other, three in a row."""
    if not panels:
        return None
    rows = -(-len(panels) // _ACROSS)

    def fill(figure: Figure) -> None:
        grid = figure.subplots(rows, _ACROSS, squeeze=False)
        for place, axes in enumerate(grid.flat):
            if place >= len(panels):
                axes.set_axis_off()
                continue
            panel = panels[place]
            axes.set_title(panel.title, fontsize=9, loc="left")
            axes.set_xlabel(panel.label, fontsize=8)
            if place % _ACROSS == 0:
                axes.set_ylabel(across, fontsize=8)
            axes.tick_params(labelsize=7)
            axes.grid(visible=True, color="#e4e4e4", linewidth=0.5)
            panel.draw(axes)
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside upper right", ncols=3, frameon=False, fontsize=8
        )

    inches = (_INCHES, 0.4 + rows * _PANEL_INCHES)
    return Picture(f"{name}.svg", alt, caption, lambda: drawn(Sketch(fill, inches), _KIND))


def _title(validation: Validation) -> str:
    return KINDS[validation.table.kind].title


def _predicted(known: Sequence[Validation]) -> list[_Panel]:
    return [
        _Panel(
            f"{_title(validation)}, {validation.overall.rows:,} rows",
            f"measured, {UNITS.get(validation.table.kind, MICROSECONDS)}",
            lambda axes, validation=validation: _draw_predicted(axes, validation),  # type: ignore[misc]
        )
        for validation in known
    ]


def _draw_predicted(axes: Axes, validation: Validation) -> None:
    """Draw the rows over the band in which predictions are a tenth off at most."""
    measured, predicted = validation.measured, validation.predictions.values
    both = np.isfinite(measured) & np.isfinite(predicted) & (predicted > 0)
    if not both.any():
        return
    measured, predicted = measured[both], predicted[both]
    least = min(measured.min(), predicted.min()) / 1.5
    most = max(measured.max(), predicted.max()) * 1.5
    ends = np.array([least, most])
    axes.set_xscale("log")
    axes.set_yscale("log")
    _cloud(axes, measured, predicted)
    for share in (1 - _BAND, 1 + _BAND):
        label = "within a tenth" if share < 1 else None
        axes.plot(ends, share * ends, color=_ORANGE, linewidth=0.7, zorder=3, label=label)
    axes.set_xlim(least, most)
    axes.set_ylim(least, most)
    _few_decades(axes.xaxis)
    _few_decades(axes.yaxis)


def _cloud(axes: Axes, across: Floats, up: Floats) -> None:
    """Draw points as pixels, the fainter the more there are."""
    faint = float(np.clip(30 / np.sqrt(across.size), 0.15, 0.8))
    axes.plot(
        across,
        up,
        linestyle="none",
        marker="o",
        markersize=2.4 if across.size < _MANY else 1.4,
        markeredgewidth=0,
        color=_BLUE,
        alpha=faint,
        rasterized=True,
    )
    axes.plot([], [], "o", color=_BLUE, markersize=3, markeredgewidth=0, label="a row")


def _few_decades(axis: Any) -> None:
    """Put ticks on powers of ten, five or so; on the numbers between where there are hardly any."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    least, most = axis.get_view_interval()
    if most / least >= 60:
        axis.set_major_locator(LogLocator(numticks=5))
    else:
        axis.set_major_locator(LogLocator(subs=(1, 3), numticks=6))
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axis.set_minor_locator(NullLocator())


def _short(value: float) -> str:
    """Return a number in few letters.

    >>> _short(0.3), _short(3000.0), _short(3e11)
    ('0.3', '3,000', '3e11')
    """
    if value >= 1e6:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _by_size(known: Sequence[Validation]) -> Iterator[_Panel]:
    for validation in known:
        axis = SIZES[validation.table.kind]
        if np.isfinite(axis.of(validation)).any():
            yield _errors_panel(validation, axis)


def _by_degree(known: Sequence[Validation]) -> Iterator[_Panel]:
    for validation in known:
        for axis in DEGREES.get(validation.table.kind, ()):
            if np.unique(axis.of(validation)[np.isfinite(errors_pct(validation))]).size > 1:
                yield _errors_panel(validation, axis)


def _errors_panel(validation: Validation, axis: Axis) -> _Panel:
    return _Panel(_title(validation), axis.label, lambda axes: _draw_errors(axes, validation, axis))


def _draw_errors(axes: Axes, validation: Validation, axis: Axis) -> None:
    """Draw the median and the ninth decile of errors along an axis."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    errors = np.abs(errors_pct(validation))
    values = np.where(np.isfinite(errors), axis.of(validation), np.nan)
    pooled = bins(values)
    lines = [
        np.clip([np.percentile(errors[rows], share) for rows in pooled.members], *_ERRORS_PCT)
        for share in (50, 90)
    ]
    axes.set_xscale("log", base=2 if pooled.middles.max() < 5000 else 10)
    axes.set_yscale("log")
    few = np.array([rows.size < _FEW for rows in pooled.members])
    for line, colour, style, name in (
        (lines[0], _BLUE, "o-", "median"),
        (lines[1], _ORANGE, "^--", "p90"),
    ):
        axes.plot(pooled.middles, line, style, color=colour, ms=3.5, lw=1.1, label=name)
        axes.plot(pooled.middles[few], line[few], style[0], color=colour, ms=3.5, mfc="white")
    axes.set_ylim(*_ERRORS_PCT)
    axes.yaxis.set_major_locator(FixedLocator([0.1, 1, 10, 100]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _ticks_across(axes, pooled.middles)


def _ticks_across(axes: Axes, middles: Floats) -> None:
    """Label small values by powers of two, large ones by powers of ten."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    if middles.max() >= 5000:
        _few_decades(axes.xaxis)
        return
    first, last = int(np.ceil(np.log2(middles.min()))), int(np.floor(np.log2(middles.max())))
    powers = [2.0**power for power in range(first, last + 1, max(1, (last - first) // 3))]
    axes.xaxis.set_major_locator(FixedLocator(powers if len(powers) > 1 else middles.tolist()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _interval(validation: Validation) -> tuple[Floats, Floats] | None:
    """Return the 90 % interval of every row as shares of its prediction, where there is one."""
    low, high = (side / validation.predictions.values for side in (validation.low, validation.high))
    known = np.isfinite(low + high + validation.measured)
    return (low, high) if known.any() else None


def _intervals(known: Sequence[Validation]) -> Picture | None:
    """Return the picture of measurements inside and outside of their predicted interval."""
    with_one = [
        (validation, interval)
        for validation in known
        if (interval := _interval(validation)) is not None
    ]
    panels = [
        _Panel(
            f"{_title(validation)}, {validation.overall.coverage_pct:.0f} % inside",
            SIZES[validation.table.kind].label,
            lambda axes, validation=validation, interval=interval: _draw_interval(
                axes, validation, *interval
            ),  # type: ignore[misc]
        )
        for validation, interval in with_one
        if np.isfinite(SIZES[validation.table.kind].of(validation)).any()
    ]
    told = ", ".join(
        f"{_title(validation)} {validation.overall.coverage_pct:.0f}{_PERCENT}"
        for validation, _ in with_one
    )
    alt = f"Measured over predicted by size, with 90 % intervals. Rows inside: {told}"
    return _panelled("intervals", "measured / predicted", panels, alt, _INTERVALS)


def _draw_interval(axes: Axes, validation: Validation, low: Floats, high: Floats) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ratios = np.clip(validation.measured / validation.predictions.values, *_RATIOS)
    known = np.isfinite(ratios) & np.isfinite(low) & np.isfinite(high)
    sizes = np.where(known, SIZES[validation.table.kind].of(validation), np.nan)
    shown = np.isfinite(sizes)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _cloud(axes, sizes[shown], ratios[shown])
    pooled = bins(sizes)
    edges = [[float(np.median(side[rows])) for rows in pooled.members] for side in (low, high)]
    axes.fill_between(
        pooled.middles, edges[0], edges[1], color=_ORANGE, alpha=0.25, linewidth=0, zorder=3
    )
    for edge, label in zip(edges, ("90 % interval", None), strict=True):
        axes.plot(pooled.middles, edge, color=_ORANGE, linewidth=0.9, zorder=4, label=label)
    axes.axhline(1, color=GREY, linewidth=0.7)
    axes.set_ylim(*_RATIOS)
    axes.yaxis.set_major_locator(FixedLocator([0.5, 0.7, 1, 1.4, 2]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _few_decades(axes.xaxis)


def _peers(known: Sequence[Validation]) -> Picture:
    """Return the picture of other cost models' errors beside ours."""
    beside = [comparison for validation in known for comparison in compared(validation)]
    rest = elsewhere()
    lines = len(beside) + len(rest)
    ahead = sum(comparison.ours_pct < _theirs(comparison)[0] for comparison in beside)
    alt = (
        f"Errors of other cost models and of shardcost on the same rows: shardcost's is the"
        f" smaller one in {ahead} of {len(beside)} comparisons"
    )
    return Picture(
        "peers.svg",
        alt,
        _PEERS,
        lambda: drawn(
            Sketch(
                lambda figure: _draw_peers(figure, beside),
                (_INCHES, 0.9 + _LINE_INCHES * lines),
            ),
            _KIND,
        ),
    )


def _theirs(each: Compared) -> tuple[float, float]:
    """Return what another model is off: on just these rows where that is known, else as stated."""
    here = each.theirs_here_pct
    return each.peer.error_pct if here is None else (here, here)


def _labels(every: Sequence[Peer]) -> list[str]:
    """Return what figures are of, with the data set where that alone tells two apart."""
    said = [(peer.tool, peer.quantity, peer.statistic) for peer in every]
    labels = []
    for peer, told in zip(every, said, strict=True):
        more = peer.where.get("dataset", ()) if said.count(told) > 1 else ()
        labels.append(f"{peer.tool}: {', '.join((peer.quantity, *more))} ({peer.statistic})")
    return labels


def _draw_peers(figure: Figure, beside: Sequence[Compared]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes = figure.subplots()
    rest = elsewhere()
    count = len(beside) + len(rest)
    labels = _labels([comparison.peer for comparison in beside] + rest)
    ranges = [_theirs(comparison) for comparison in beside] + [peer.error_pct for peer in rest]
    places = np.arange(count, 0, -1)
    for place, (least, most) in zip(places, ranges, strict=True):
        axes.plot([least, most], [place, place], color=_ORANGE, linewidth=3, solid_capstyle="butt")
    middles = [float(np.sqrt(least * most)) for least, most in ranges]
    axes.plot(middles, places, "D", color=_ORANGE, markersize=5, label="the other model")
    ours = [comparison.ours_pct for comparison in beside]
    if ours:
        axes.plot(ours, places[: len(ours)], "o", color=_BLUE, markersize=6, label="shardcost")
        axes.axhline(count - len(beside) + 0.5, color=GREY, linewidth=0.7)
    axes.set_xscale("log")
    axes.set_yticks(places, labels, fontsize=7.5)
    axes.set_ylim(0.4, count + 0.6)
    axes.xaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.grid(visible=True, axis="x", color="#e4e4e4", linewidth=0.5)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("error", fontsize=8)
    figure.legend(loc="outside upper right", ncols=2, frameon=False, fontsize=8)


def _alt_predicted(known: Sequence[Validation]) -> str:
    told = ", ".join(
        f"{_title(validation)} {share:.0f}{_PERCENT}"
        for validation, share in _within(known).items()
    )
    return f"Predicted against measured, a panel for each table. Within a tenth: {told}"


def _within(known: Sequence[Validation]) -> Mapping[Validation, float]:
    """Return the share of rows that are predicted within a tenth, by validation."""
    shares = {}
    for validation in known:
        errors = errors_pct(validation)
        sizes = np.abs(errors[np.isfinite(errors)])
        shares[validation] = 100 * float(np.mean(sizes <= 100 * _BAND))
    return shares


def _alt_by_size(known: Sequence[Validation]) -> str:
    told = ", ".join(
        f"{_title(validation)} {validation.overall.median_pct:.1f}{_PERCENT}"
        for validation in known
    )
    return f"Median and p90 of the errors by size, a panel for each table. Medians overall: {told}"

"""The pictures of the validation page: predictions over measurements, errors, intervals, peers.

Panels for each kind of table (`lab.sheet`). Clouds of points are drawn as pixels inside the SVG
file, so that ten thousand of them stay small; text and lines stay text and lines. Colours are those
of `shardcost.report.plot`; what colours tell apart, shapes do too. One validation gives one file,
byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from lab.page_axes import DEGREES, MICROSECONDS, SIZES, UNITS, Axis, bins
from lab.page_tables import KINDS
from lab.peers import Compared, Peer, elsewhere
from lab.sheet import LEGEND_HEIGHT, PANEL_HEIGHT, PANEL_WIDTH, WIDTH, sheet
from shardcost.report.pictures import COLOURS, GREY, Sketch, drawn, inline
from shardcost.validate.predictions import Floats
from shardcost.validate.validation import Validation, errors_pct, kind_of, of_headline, of_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _ORANGE = COLOURS[:2]
_AXES: Final = (0.2, 0.22, 0.76, 0.64)
"""Left, bottom, width and height of the axes of a panel, as shares of it."""
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


class Shown(NamedTuple):
    """What a picture has of one kind of table."""

    words: tuple[str, ...]
    """Of what it shows in words, such as ``Collectives 82 %``."""
    panels: tuple[Callable[[], str], ...]
    """What draws each panel, as an SVG element on one line."""


class _Sheet(NamedTuple):
    """A picture with panels for each kind of table."""

    alt: str
    """What it shows; words of each kind follow."""
    caption: str
    up: str
    """Label of the axis up."""
    legend: tuple[Mapping[str, Any], ...]
    of: Callable[[Sequence[_Part]], Iterator[tuple[str, Sequence[_Panel]]]]
    """Yields the words for the parts of a table, blank where there are none, and their panels."""


class _Panel(NamedTuple):
    title: str
    label: str
    """Of the axis across."""
    draw: Callable[[Axes], None]


class _Part(NamedTuple):
    """Rows of a table that share panels."""

    title: str
    validation: Validation


_ROW: Final[dict[str, Any]] = {
    "color": _BLUE,
    "marker": "o",
    "ls": "none",
    "ms": 3,
    "mew": 0,
    "label": "a row",
}
_TENTH: Final[dict[str, Any]] = {"color": _ORANGE, "lw": 0.7, "label": "within a tenth"}
_MEDIAN: Final[dict[str, Any]] = {
    "color": _BLUE,
    "marker": "o",
    "ls": "-",
    "ms": 3.5,
    "lw": 1.1,
    "label": "median",
}
_P90: Final[dict[str, Any]] = {
    "color": _ORANGE,
    "marker": "^",
    "ls": "--",
    "ms": 3.5,
    "lw": 1.1,
    "label": "p90",
}
_EDGE: Final[dict[str, Any]] = {"color": _ORANGE, "lw": 0.9, "label": "90 % interval"}


def shown(validation: Validation) -> dict[str, Shown]:
    """Return what each picture has of a table, by the picture's file; none without a prediction."""
    parts = [part for part in _parts(validation) if part.validation.overall.rows]
    found = {}
    for name, each in _sheets().items():
        pairs = list(each.of(parts))
        panels = [panel for _, own in pairs for panel in own]
        draws = tuple(
            partial(_drawn_panel, panel, each.up, f"{validation.table.kind}-{place}")
            for place, panel in enumerate(panels)
        )
        words = tuple(word for word, _ in pairs if word)
        if words or draws:
            found[name] = Shown(words, draws)
    return found


def pictured(every: Mapping[str, Mapping[str, Shown]], beside: Sequence[Compared]) -> list[Picture]:
    """Return the pictures of what is shown of each kind of table, in the order of kinds.

    Args:
        every: By kind of table and picture.
        beside: Other cost models' figures beside ours.
    """
    if not any(every.values()):
        return []
    found = []
    for name, each in _sheets().items():
        own = {kind: of[name] for kind, of in every.items() if name in of}
        if not any(part.panels for part in own.values()):
            continue
        words = ", ".join(word for part in own.values() for word in part.words)
        alt = f"{each.alt}: {words}" if words else each.alt
        found.append(Picture(name, alt, each.caption, partial(_drawn_sheet, own, each.legend)))
    return [*found, _peers(beside)]


def words_in(name: str, alt: str) -> list[str]:
    """Return the words of all kinds in what a picture shows."""
    words = alt.removeprefix(_sheets()[name].alt).removeprefix(": ")
    return words.split(", ") if words else []


def kind_in(word: str) -> str:
    """Return the kind of table that a word is of: it begins with the kind's title."""
    known = [kind for kind, own in KINDS.items() if word.startswith(f"{own.title} ")]
    return max(known, key=lambda kind: len(KINDS[kind].title), default="")


@cache
def _sheets() -> Mapping[str, _Sheet]:
    """Return the pictures that have panels, by file."""
    errors = (_MEDIAN, _P90)
    return {
        "predicted.svg": _Sheet(
            _ALT_PREDICTED, _PREDICTED, "predicted", (_ROW, _TENTH), _predicted
        ),
        "by_size.svg": _Sheet(_ALT_SIZE, _BY_SIZE, "error, %", errors, _by_size),
        "by_degree.svg": _Sheet(_ALT_DEGREE, _BY_DEGREE, "error, %", errors, _by_degree),
        "intervals.svg": _Sheet(
            _ALT_INTERVALS, _INTERVALS, "measured / predicted", (_ROW, _EDGE), _intervals
        ),
    }


_ALT_PREDICTED: Final = "Predicted against measured, a panel for each table. Within a tenth"
_PREDICTED: Final = """\
Every row, predicted against measured. Between the lines, predictions are a tenth off at most."""
_ALT_SIZE: Final = """\
Median and p90 of the errors by size, a panel for each table. Medians overall"""
_BY_SIZE: Final = """\
Errors by the size of what was measured: the median (dots, full line) and p90 (triangles, dashed
line), hollow where they are of fewer than five rows."""
_ALT_DEGREE: Final = """\
Median and p90 of the errors by number of GPUs and by parallel degree, a panel for each table"""
_BY_DEGREE: Final = """\
Errors by how many devices share the work, drawn the same way."""
_ALT_INTERVALS: Final = "Measured over predicted by size, with 90 % intervals. Rows inside"
_INTERVALS: Final = """\
What was measured over what was predicted, with the predicted 90 % interval (the band is the middle
one of the rows of a size). Rows beyond the axes stand at their edge."""
_PEERS: Final = """\
Errors of other cost models beside shardcost's on the same rows, and, below the line, what others
state on rows that are not public. A bar is the range that is stated."""


def _drawn_sheet(own: Mapping[str, Shown], legend: Sequence[Mapping[str, Any]]) -> bytes:
    panels = {kind: [draw() for draw in part.panels] for kind, part in own.items()}
    return sheet(panels, _drawn_legend(legend))


def _drawn_panel(panel: _Panel, up: str, name: str) -> str:
    """Return a panel as an SVG element."""

    def fill(figure: Figure) -> None:
        figure.set_layout_engine("none")  # all axes lie alike, so that panels line up
        axes = figure.add_axes(_AXES)
        figure.text(0.03, 0.97, panel.title, fontsize=8, va="top")
        axes.set_xlabel(panel.label, fontsize=8)
        axes.set_ylabel(up, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.grid(visible=True, color="#e4e4e4", linewidth=0.5)
        panel.draw(axes)

    return inline(Sketch(fill, (PANEL_WIDTH, PANEL_HEIGHT)), name, panel.title, "")


def _drawn_legend(legend: Sequence[Mapping[str, Any]]) -> str:
    def fill(figure: Figure) -> None:
        from matplotlib.lines import Line2D

        figure.set_layout_engine("none")
        handles = [Line2D([], [], **look) for look in legend]
        figure.legend(handles=handles, loc="upper right", ncols=3, frameon=False, fontsize=8)

    return inline(Sketch(fill, (WIDTH, LEGEND_HEIGHT)), "legend", "Legend", "")


def _parts(validation: Validation) -> Iterator[_Part]:
    """Yield the rows of a table that have panels of their own: mostly all."""
    kind = KINDS[validation.table.kind]
    if kind.pictured is None:
        yield _Part(kind.title, of_headline(validation))
        return
    column, values = kind.pictured
    derived = kind_of(validation.table).DERIVED
    cells = [
        row[column] if column in row else derived[column](row) for row in validation.table.records()
    ]
    for value in values:
        places = [place for place, cell in enumerate(cells) if cell == value]
        yield _Part(f"{kind.title} ({value.upper()})", of_rows(validation, places))


def _predicted(parts: Sequence[_Part]) -> Iterator[tuple[str, Sequence[_Panel]]]:
    for title, validation in parts:
        errors = errors_pct(validation)
        share = 100 * float(np.mean(np.abs(errors[np.isfinite(errors)]) <= 100 * _BAND))
        panel = _Panel(
            f"{title}, {validation.overall.rows:,} rows",
            f"measured, {UNITS.get(validation.table.kind, MICROSECONDS)}",
            partial(_draw_predicted, validation=validation),
        )
        yield f"{title} {share:.0f}{_PERCENT}", [panel]


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
        axes.plot(ends, share * ends, zorder=3, **_TENTH)
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


def _by_size(parts: Sequence[_Part]) -> Iterator[tuple[str, Sequence[_Panel]]]:
    for part in parts:
        validation, axis = part.validation, SIZES[part.validation.table.kind]
        known = np.isfinite(axis.of(validation)).any()
        words = f"{part.title} {validation.overall.median_pct:.1f}{_PERCENT}"
        yield words, [_errors_panel(part, axis)] if known else []


def _by_degree(parts: Sequence[_Part]) -> Iterator[tuple[str, Sequence[_Panel]]]:
    for part in parts:
        predicted = np.isfinite(errors_pct(part.validation))
        every = DEGREES.get(part.validation.table.kind, ())
        telling = [a for a in every if np.unique(a.of(part.validation)[predicted]).size > 1]
        yield "", [_errors_panel(part, axis) for axis in telling]


def _errors_panel(part: _Part, axis: Axis) -> _Panel:
    draw = partial(_draw_errors, validation=part.validation, axis=axis)
    return _Panel(part.title, axis.label, draw)


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
    for line, look in zip(lines, (_MEDIAN, _P90), strict=True):
        axes.plot(pooled.middles, line, **look)
        axes.plot(pooled.middles[few], line[few], **look | {"ls": "none", "mfc": "white"})
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


def _intervals(parts: Sequence[_Part]) -> Iterator[tuple[str, Sequence[_Panel]]]:
    """Yield the panels of measurements inside and outside of their predicted interval."""
    for title, validation in parts:
        interval = _interval(validation)
        if interval is None:
            continue
        low, high = interval
        share, axis = validation.overall.coverage_pct, SIZES[validation.table.kind]
        panel = _Panel(
            f"{title}, {share:.0f} % inside",
            axis.label,
            partial(_draw_interval, validation=validation, low=low, high=high),
        )
        known = np.isfinite(axis.of(validation)).any()
        yield f"{title} {share:.0f}{_PERCENT}", [panel] if known else []


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
    for edge in edges:
        axes.plot(pooled.middles, edge, zorder=4, **_EDGE)
    axes.axhline(1, color=GREY, linewidth=0.7)
    axes.set_ylim(*_RATIOS)
    axes.yaxis.set_major_locator(FixedLocator([0.5, 0.7, 1, 1.4, 2]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _few_decades(axes.xaxis)


def _peers(beside: Sequence[Compared]) -> Picture:
    """Return the picture of other cost models' errors beside ours."""
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
                (WIDTH, 0.9 + _LINE_INCHES * lines),
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

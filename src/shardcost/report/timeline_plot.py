"""The timeline of a step or of one layer as a picture: a row for each stream."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shardcost.estimate.result import Estimate
from shardcost.estimate.timeline.events import COMMUNICATION, Break, Drawing, Event
from shardcost.report.estimate import title
from shardcost.report.estimate_data import drawing_of
from shardcost.report.pictures import COMPUTE, GREY, GRID, GROUPS, KINDS, SLOT, Sketch, note
from shardcost.report.text import name_of, wrapped
from shardcost.units import format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

# A whole pass is of all kinds: shades of one blue.
_KINDS: Final = {
    **KINDS,
    "forward": COMPUTE,
    "backward": "#00476F",
    "weight": "#99C7E0",
    "optimizer": "#444444",
    "host": "#aaaaaa",
}
_NAMES: Final = {"weight": "weight gradient", "idle": "bubble"}
_PASSES: Final = frozenset({"forward", "backward", "weight"})
"""Kinds whose bars show the number of their micro-batch."""
_LIGHT: Final = frozenset({"attention", "weight", "host"})
"""Kinds whose colour black is read on better than white."""
_PALE: Final = "#f4f4f4"
_ROW: Final = {"step": 0.36, "layer": 0.7}
"""Inches of a row."""
_THIN: Final = 0.003
"""Of the width: narrower bars have neither white edge nor hatch, which would hide them."""
_LABEL: Final = 8
"""Characters of a label's lines in a layer."""
_WIDE: Final = 11.0
_COLUMNS: Final = 7
_MOST_INCHES: Final = 40.0
_LINE: Final = 105
"""Characters of the title's lines."""
_ROOM: Final = 0.0066
"""Of the width, what a character of a label takes."""
_BREAK: Final = 0.06
"""Of what is drawn, the width of a break."""
_TICKS: Final = 9

Look = tuple[str, str, str | None]
"""What the legend says, the colour, and the hatch."""


def sketch(estimate: Estimate, of: str = "step", drawn: Drawing | None = None) -> Sketch:
    """Return the picture of the timeline of a step or of a layer, which may have been made."""
    line = drawn or drawing_of(estimate, of)
    height = min(_MOST_INCHES, 2.0 + _ROW[line.of] * len(line.streams))
    heading = "\n".join(wrapped(title(estimate), _LINE))
    return Sketch(lambda figure: _fill(figure, line), (_WIDE, height), heading, 12)


class _Axis(NamedTuple):
    """Where times are drawn: as they are, but for a break, which is drawn narrow."""

    span_s: float
    gap: Break | None

    @classmethod
    def of(cls, line: Drawing) -> _Axis:
        return cls(line.span_s, line.gap)

    @property
    def room_s(self) -> float:
        """The width of the break."""
        lost = self.gap.end_s - self.gap.start_s if self.gap else 0.0
        return _BREAK * (self.span_s - lost) if self.gap else 0.0

    @property
    def end(self) -> float:
        """The width of the whole."""
        return self.place(self.span_s)

    def place(self, time_s: float) -> float:
        return self.gap.shortened(time_s, self.room_s) if self.gap else time_s

    def ticks(self) -> list[float]:
        """Return round times outside the break."""
        from matplotlib.ticker import MaxNLocator

        first, second = MaxNLocator(_TICKS).tick_values(0, self.end)[:2]
        every = second - first
        times = [every * number for number in range(int(self.span_s / every * (1 + 1e-9)) + 1)]
        gap = self.gap
        return [time for time in times if not gap or not gap.start_s < time < gap.end_s]


def _fill(figure: Figure, line: Drawing) -> None:
    from matplotlib.transforms import ScaledTranslation

    axes, axis = figure.subplots(), _Axis.of(line)
    axes.set_title("\n".join(wrapped(_subtitle(line), _LINE + 20)), loc="left", fontsize=9)
    rows = {(stream.stage, stream.stream): -row for row, stream in enumerate(line.streams)}
    looks = _by_look(line.events).items()
    handles = [_draw(axes, look, events, rows, axis) for look, events in looks]
    _label_events(axes, line, rows, axis)
    _label_axes(axes, line, axis)
    if line.gap:
        _draw_break(axes, line.gap, axis)
    for index, (above, below) in enumerate(pairwise(line.streams), 1):
        if above.stage != below.stage:
            axes.axhline(0.5 - index, color=GREY, linewidth=0.6)
    if line.of == "layer":
        _name_passes(axes, line)
    # The legend stands below the axis and its ticks, whatever the height.
    shift = ScaledTranslation(0, -0.42, figure.dpi_scale_trans)
    axes.legend(
        handles=handles,
        frameon=False,
        ncols=min(_COLUMNS, len(handles)),
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=axes.transAxes + shift,
        borderaxespad=0,
    )


def _subtitle(line: Drawing) -> str:
    totals = line.totals
    parts = [
        f"{line.title}: {format_time(line.span_s)}",
        f"compute {format_time(totals['compute_s'])}",
        f"exposed communication {format_time(totals['exposed_s'])}",
    ]
    more = {name: totals[f"{name}_s"] for name in ("hidden", "bubble")}
    parts += [f"{name} {format_time(seconds)}" for name, seconds in more.items() if seconds]
    return ", ".join([*parts, *([line.cut] if line.cut else [])])


def _look(event: Event) -> Look:
    if event.kind in COMMUNICATION:
        group = event.group or ""
        shown = "exposed" if event.exposed else "hidden"
        colour = GROUPS.get(group, GROUPS["ep"])
        return f"{group.upper()} {shown}", colour, None if event.exposed else "/////"
    if event.kind == "idle":
        return _NAMES["idle"], GREY, "....."
    return _NAMES.get(event.kind) or name_of(event.kind), _KINDS[event.kind], None


def _by_look(events: Sequence[Event]) -> dict[Look, list[Event]]:
    """Return events by how they are drawn, in the order of the legend: compute first."""
    looks: dict[Look, list[Event]] = {}
    for event in events:
        looks.setdefault(_look(event), []).append(event)
    ranks = [*_KINDS, "comm", "send", "idle"]
    ordered = sorted(looks, key=lambda look: (ranks.index(looks[look][0].kind), look))
    return {look: looks[look] for look in ordered}


def _draw(
    axes: Axes, look: Look, events: Sequence[Event], rows: dict[tuple[int, str], int], axis: _Axis
) -> Patch:
    """Draw all events of one look; return what stands for them in the legend.

    They are two shapes of many rectangles, which is quick. Hatches take long to draw, and thin bars
    have no room for one, so hidden ones are pale instead.
    """
    from matplotlib.patches import Patch, PathPatch
    from matplotlib.path import Path

    label, colour, hatch = look
    style: dict[str, Any] = {
        "facecolor": colour if hatch is None else _PALE,
        "edgecolor": "white" if hatch is None else colour,
        "hatch": hatch,
        "linewidth": 0.3,
    }
    # With a line around it, a bar narrower than a pixel is still seen.
    thin: dict[str, Any] = {"color": colour, "linewidth": 0.3, "alpha": 0.45 if hatch else 1}
    thin_s = _THIN * axis.end
    one = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    for wide, how in ((True, style), (False, thin)):
        corners: list[tuple[float, float]] = []
        for event in events:
            if (event.seconds > thin_s) is wide:
                start, end = axis.place(event.start_s), axis.place(event.end_s)
                row = rows[event.stage, event.stream]
                low, high = row - 0.4, row + 0.4
                corners += [(start, low), (start, high), (end, high), (end, low), (start, low)]
        if corners:
            shape = Path(corners, one * (len(corners) // len(one)))
            axes.add_artist(PathPatch(shape, **how))  # the axes' limits are set, not found
    return Patch(label=label, **style)


def _draw_break(axes: Axes, gap: Break, axis: _Axis) -> None:
    """Draw where micro-batches are left out, and say how many."""
    start, end = axis.place(gap.start_s), axis.place(gap.end_s)
    axes.axvspan(start, end, facecolor=SLOT, edgecolor="none", zorder=0)
    for edge in (start, end):
        axes.axvline(edge, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    look: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "center", "color": GREY}
    lasts = format_time(gap.end_s - gap.start_s)
    place: dict[str, Any] = {"transform": axes.get_xaxis_transform()}
    axes.text((start + end) / 2, 0.5, f"{gap.words} {lasts}", fontsize=8, **look, **place)


def _label_events(axes: Axes, line: Drawing, rows: dict[tuple[int, str], int], axis: _Axis) -> None:
    """Write names, or numbers of micro-batches, into the bars that have room for them."""
    for event in line.events:
        name = event.name if event.micro_batch is None else str(event.micro_batch)
        if event.kind == "idle" or (event.micro_batch is not None and event.kind not in _PASSES):
            continue
        lines = (
            [name]
            if line.of == "step"
            else wrap(name, _LABEL, break_long_words=False, break_on_hyphens=False)
        )
        room = _ROOM * (max(map(len, lines), default=0) + 1) * axis.end
        if event.seconds > room:
            middle = axis.place((event.start_s + event.end_s) / 2)
            row = rows[event.stage, event.stream]
            box = None if event.exposed else {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            dark = not event.exposed or event.kind in _LIGHT
            look: dict[str, Any] = {"color": "black" if dark else "white", "bbox": box}
            look |= {"ha": "center", "va": "center", "fontsize": 7, "clip_on": True}
            look["in_layout"] = False  # inside its bar
            axes.text(middle, row - 0.03, "\n".join(lines), **look)


def _label_axes(axes: Axes, line: Drawing, axis: _Axis) -> None:
    axes.set_xlim(0, axis.end)
    axes.set_ylim(0.4 - len(line.streams), 0.6)
    names = [stream.name for stream in line.streams]
    axes.set_yticks([-row for row in range(len(names))], names)
    axes.tick_params(axis="y", length=0)
    ticks = axis.ticks()
    names = [format_time(time) if time > 0 else "0" for time in ticks]
    axes.set_xticks([axis.place(time) for time in ticks], names)
    axes.set_axisbelow(True)
    axes.grid(axis="x", **GRID)


def _name_passes(axes: Axes, line: Drawing) -> None:
    """Mark where a layer's forward ends and what follows begins."""
    forward = max(event.end_s for event in line.events if event.passing == "forward")
    if forward >= line.span_s:
        return
    axes.axvline(forward, color="black", linewidth=0.8, linestyle="--")
    for place, text in ((0.0, "forward"), (forward, "backward")):
        note(axes, text, (place, 0.75), (3, -2), va="top", fontsize=8, color=GREY)
    axes.set_ylim(top=0.75)

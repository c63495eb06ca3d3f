"""One result for a notebook: `View`, with the pieces of HTML that screens are put together from.

Styles stand at the elements, because a notebook shows many outputs on one page and may not trust
them: nothing is loaded, nothing runs, and what the page's own theme says of text and ground holds,
light or dark. Without any style the tables still say everything in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shardcost.errors import BadValueError, MissingExtraError, UnknownNameError
from shardcost.report.interval import ends
from shardcost.report.markup import Markup, element, joined
from shardcost.report.pictures import COLOURS, Sketch, figure_of
from shardcost.units import format_bytes, format_percent, format_rate, format_time, format_tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardcost.collectives.interval import Interval

Rows = list[dict[str, Any]]
_FRAMES: Final = {"polars": {"infer_schema_length": None}, "pandas": {}}
"""Libraries that have DataFrames, with what each is told about the types of columns."""
_FORMS: Final[tuple[tuple[str, Callable[[float], str]], ...]] = (
    ("_bytes_per_s", format_rate),
    ("_per_s", format_tokens),
    ("_s", format_time),
    ("_bytes", format_bytes),
    ("_share", format_percent),
    ("mfu", format_percent),
)
_MOST_ROWS: Final = 12
"""Of an array of layouts or sizes that a screen shows."""
_TABLE: Final = "margin:.5em 0;font-size:12px;color:inherit;border-collapse:collapse"
_LEFT: Final = "text-align:left;vertical-align:top;padding:.15em .6em"
_RIGHT: Final = "text-align:right;vertical-align:top;padding:.15em .6em;white-space:nowrap"
_BAR: Final = "display:inline-block;width:14em;white-space:nowrap;line-height:1"
_PIECE: Final = "display:inline-block;height:.8em;vertical-align:middle"
_EDGE: Final = "box-shadow:inset 0 0 0 1px currentColor;opacity:.9"
"""A bar's outline, which shows on any ground."""
_HATCHED: Final = "repeating-linear-gradient(135deg,{0} 0 2px,transparent 2px 5px)"


@dataclass(frozen=True)
class View:
    """What a notebook shows of a result, each part made when it is asked for."""

    screen: Callable[[], Markup]
    """As HTML."""
    data: Callable[[], dict[str, Any]]
    tables: Mapping[str, Callable[[], Rows]]
    """By name, the usual one first."""
    pictures: Mapping[str, Callable[[], Sketch]] = field(default_factory=dict)

    def frame(self, table: str | None) -> Any:
        """Return one of the tables as a DataFrame."""
        return frame_of(_chosen("table", table, self.tables)())

    def figure(self, picture: str | None) -> Figure:
        """Return one of the pictures, drawn."""
        if not self.pictures:
            raise BadValueError("plot", picture, "of a result that a command draws; this has none")
        return figure_of(_chosen("picture", picture, self.pictures)())


def _chosen(what: str, name: str | None, known: Mapping[str, Callable[[], Any]]) -> Any:
    if name is None:
        return next(iter(known.values()))
    if name not in known:
        raise UnknownNameError(what, name, known)
    return known[name]


def frame_of(rows: Rows) -> Any:
    """Return rows as a DataFrame, of polars if that is installed, else of pandas."""
    for name, more in _FRAMES.items():
        try:
            library = import_module(name)
        except ImportError:
            continue
        return library.DataFrame(rows, **more)
    raise MissingExtraError("a DataFrame", "polars or pandas", "table")


# -------------------------------------------------------------------------- pieces of a screen


def screen(title: str, under: str, *inside: str) -> Markup:
    """Return a whole screen: a title, a line under it, and what follows."""
    head = element("div", element("strong", title), style="overflow-wrap:anywhere")
    more = [element("div", under, style="opacity:.75;overflow-wrap:anywhere")] if under else []
    return element("div", head, *more, *inside, style="max-width:64em;font-size:13px")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: str = "") -> Markup:
    """Return a table; `right` has the digits of the columns to align to the right."""

    def cells(tag: str, row: Sequence[str]) -> Markup:
        looks = (_RIGHT if str(place) in right else _LEFT for place in range(len(row)))
        pairs = zip(row, looks, strict=True)
        return element("tr", *(element(tag, cell, style=look) for cell, look in pairs))

    top, body = element("thead", cells("th", head)), (cells("td", row) for row in rows)
    whole = element("table", top, element("tbody", *body), style=_TABLE)
    return element("div", whole, style="overflow-x:auto")


def lines(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Return texts beside their labels."""
    rows = (
        element(
            "tr",
            element("th", label, style=f"{_LEFT};white-space:nowrap"),
            element("td", words, style=f"{_LEFT};overflow-wrap:anywhere"),
        )
        for label, words in pairs
    )
    return element("table", element("tbody", *rows), style=_TABLE)


def remarks(texts: Sequence[str]) -> Markup:
    """Return warnings and notes below each other."""
    style = "border-left:3px solid #E69F00;padding-left:.6em;margin:.3em 0;overflow-wrap:anywhere"
    return joined(element("div", text, style=style) for text in texts)


class Piece(NamedTuple):
    """A piece of a bar."""

    share: float
    """Of the longest bar of the table."""
    colour: str = COLOURS[0]
    hatched: bool = False


def bar(*pieces: Piece) -> Markup:
    """Return a bar of several pieces; the numbers beside it say the same."""
    drawn = []
    for piece in pieces:
        width = 100 * min(max(piece.share, 0.0), 1.0)
        ground = _HATCHED.format(piece.colour) if piece.hatched else piece.colour
        look = f"width:{width:.1f}%;background:{ground}"
        drawn.append(element("span", style=f"{_PIECE};{look};{_EDGE}"))
    return element("span", *drawn, style=_BAR, aria_hidden="true")


def whisker(low_s: float, time_s: float, high_s: float) -> Markup:
    """Return an interval as a line from end to end with the prediction in it, from 0 on."""
    most = max(high_s, time_s) or 1.0
    places = [100 * min(max(each / most, 0.0), 1.0) for each in (low_s, time_s, high_s)]
    look = "display:inline-block;position:relative;width:14em;height:.9em;vertical-align:middle"
    line = "position:absolute;height:.5em;top:.2em;opacity:.75"
    tick = "position:absolute;height:.9em;top:0;width:2px;background:currentColor"
    ground = "position:absolute;left:0;right:0;top:.45em;border-top:1px solid currentColor"
    return element(
        "span",
        element("span", style=f"{ground};opacity:.4"),
        element(
            "span",
            style=f"{line};left:{places[0]:.1f}%;width:{places[2] - places[0]:.1f}%"
            f";background:{COLOURS[5]}",
        ),
        element("span", style=f"{tick};left:{places[1]:.1f}%"),
        style=look,
        role="img",
        aria_label=f"interval from 0: {ends(low_s, high_s)}",
    )


def with_interval(words: str, interval: Interval, time_s: float) -> Markup:
    """Return words on an interval with its picture before them."""
    drawn = whisker(float(interval.low_s), float(time_s), float(interval.high_s))
    return joined((drawn, words), " ")


def many(title: str, under: str, rows: Rows) -> Markup:
    """Return the screen of an array of answers: the first of its rows."""
    shown = [[_cell(*pair) for pair in row.items()] for row in rows[:_MOST_ROWS]]
    right = "".join(str(place) for place in range(len(rows[0])))
    rest = len(rows) - len(shown)
    more = f"{rest:,} more rows: to_frame() has all" if rest > 0 else ""
    return screen(title, under, table(list(rows[0]), shown, right), element("div", more))


def _cell(column: str, value: object) -> str:
    """Return a value with its unit, which the name of its column tells."""
    if not isinstance(value, float):
        return str(value)
    return next((form(value) for end, form in _FORMS if column.endswith(end)), f"{value:.4g}")

"""What all pictures share: colours and their meaning, labels, and the files and pages they go to.

A `Sketch` is a picture without a file, so that a file and a page draw the same. Colours are those
of Okabe and Ito (Color Universal Design, 2008), which colour-blind readers can tell apart, and mean
the same in every picture. Exposed communication is solid, hidden communication hatched; idle time
is grey and hatched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from warnings import catch_warnings, filterwarnings
from xml.etree import ElementTree as ET

from shardcost.errors import BadValueError, MissingExtraError
from shardcost.estimate.result import BUBBLE, COMMUNICATION, STRAGGLERS
from shardcost.estimate.result import HOST as HOST_PART
from shardcost.files import write_whole
from shardcost.records import NamedTuple
from shardcost.report.markup import Markup, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SUFFIXES: Final = (".png", ".svg")
COLOURS: Final = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#8C7A00",  # their yellow, darkened: the original is too pale for thin lines on white
)
GREY: Final = "#666666"
KINDS: Final = {"gemm": COLOURS[0], "attention": COLOURS[5], "elementwise": COLOURS[6]}
"""Of compute, as `shardcost.estimate.roofline` names it."""
COMPUTE: Final = COLOURS[0]
GROUPS: Final = {
    "tp": COLOURS[1],
    "cp": COLOURS[2],
    "ep": COLOURS[2],
    "dp": COLOURS[4],
    "pp": COLOURS[3],
}
"""Of communication."""
MEMORY: Final = {
    "weights": COLOURS[0],
    "gradients": COLOURS[4],
    "optimizer": COLOURS[3],
    "activations": COLOURS[2],
    "logits": COLOURS[6],
    "kv_cache": COLOURS[5],
    "buffers": "#999999",
    "framework": "#cccccc",
}
HOST: Final = GREY
IDLE: Final = "#bbbbbb"
PARTS: Final = {
    **KINDS,
    "optimizer": "#444444",
    BUBBLE: IDLE,
    STRAGGLERS: IDLE,
    HOST_PART: HOST,
    **{f"{group}{COMMUNICATION}": colour for group, colour in GROUPS.items()},
}
"""Of the parts of a step's time; `COMPUTE` for any other."""
SLOT: Final = "#f0f0f0"
"""Behind an infeasible value."""
HATCH: Final = "////"
GRID: Final[dict[str, Any]] = {"visible": True, "color": "#dddddd", "linewidth": 0.5}
_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and read aloud
    "svg.hashsalt": "shardcost",  # the same picture gives the same file
    "text.parse_math": False,  # a name may have dollars
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_DPI: Final = 150
_NOTEBOOK_DPI: Final = 100
"""Of a picture that is shown in a column of text."""
_NOT_XML: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Characters that may stand in a name but not in an SVG file."""


class Sketch(NamedTuple):
    """A picture before it is drawn."""

    fill: Callable[[Figure], None]
    """Draws it."""
    inches: tuple[float, float]
    title: str = ""
    """Left out where the page around the picture has it."""
    title_size: float = 11


def note(
    axes: Axes,
    text: str,
    place: tuple[float, float],
    shift: tuple[float, float] = (0, 0),
    **look: Any,
) -> None:
    """Write a text beside a place of the axes, `shift` points away from it."""
    axes.annotate(text, place, xytext=shift, textcoords="offset points", **look)


def label_ticks(axis: Axis, text: Callable[[float], str]) -> None:
    """Label the ticks of an axis by a function of their values."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def spread(heights: list[float], gap: float) -> list[float]:
    """Return heights moved as little as possible so that any two are at least `gap` apart.

    >>> spread([0.5, 0.1, 0.5], gap=0.2)
    [0.4, 0.1, 0.6]
    """

    def stacked(cluster: list[int]) -> list[float]:
        """Return a cluster's heights one gap apart, around their mean."""
        middle = sum(heights[index] for index in cluster) / len(cluster)
        return [middle + gap * (place - (len(cluster) - 1) / 2) for place in range(len(cluster))]

    clusters: list[list[int]] = []
    for index in sorted(range(len(heights)), key=lambda index: heights[index]):
        clusters.append([index])
        while len(clusters) > 1 and stacked(clusters[-1])[0] - stacked(clusters[-2])[-1] < gap:
            clusters[-2:] = [clusters[-2] + clusters[-1]]
    moved = list(heights)
    for cluster in clusters:
        for index, height in zip(cluster, stacked(cluster), strict=True):
            moved[index] = round(height, 6)
    return moved


def write_picture(sketch: Sketch, file: Path) -> None:
    """Draw a picture into a PNG or SVG file, which appears whole or not at all."""
    check_name(file)
    write_whole(file, drawn(sketch, file.suffix.lower()[1:]))


def check_name(file: Path) -> None:
    """Raise for a file name that is neither PNG nor SVG."""
    if file.suffix.lower() not in SUFFIXES:
        raise BadValueError("plot", str(file), f"a file name that ends in {' or '.join(SUFFIXES)}")


def drawn(sketch: Sketch, kind: str) -> bytes:
    """Return a picture as the content of a file, ``png`` or ``svg``."""
    # An SVG has 72 points an inch, whatever the figure's own resolution.
    content = _saved(figure_of(sketch, 72 if kind == "svg" else _DPI), kind)
    return _NOT_XML.sub(b"?", content) if kind == "svg" else content


def figure_of(sketch: Sketch, dpi: int = _NOTEBOOK_DPI) -> Figure:
    """Return a picture, laid out; a notebook shows it even where pyplot was never imported."""
    try:
        import matplotlib.figure  # without pyplot: no display, no global state
    except ImportError:
        raise MissingExtraError("a plot", "matplotlib", "plot") from None

    class Picture(matplotlib.figure.Figure):
        def _repr_png_(self) -> bytes:
            return _saved(self, "png")

    with _style():
        figure = Picture(figsize=sketch.inches, dpi=dpi, layout="constrained")
        if sketch.title:
            title = visible(sketch.title)
            figure.suptitle(title, x=0.01, ha="left", fontsize=sketch.title_size)
        sketch.fill(figure)
        settle(figure)
    return figure


def _saved(figure: Figure, kind: str) -> bytes:
    content, metadata = BytesIO(), {"Date": None} if kind == "svg" else {}
    with _style():
        figure.savefig(content, format=kind, dpi="figure", metadata=metadata)
    return content.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    """Draw in the style of all pictures.

    A name may be in letters that the font lacks; the reader of an SVG has a font with them.
    """
    import matplotlib as mpl

    with mpl.rc_context(_STYLE), catch_warnings():
        filterwarnings("ignore", message="Glyph .* missing from")
        yield


def settle(figure: Figure) -> None:
    """Lay a figure out, once: places of its axes are known then, and stay when it is drawn."""
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
        figure.set_layout_engine(None)


# Pictures inside a page. matplotlib names the parts of every picture alike: ids that nothing refers
# to are dropped, the others are named after the picture. A timeline has thousands of bars, written
# one by one: those of one look that follow each other become one path.

_SVG: Final = "{http://www.w3.org/2000/svg}"
_LINK: Final = "{http://www.w3.org/1999/xlink}href"
_REFERENCE: Final = re.compile(r"url\(#([^)]*)\)")
_LEFT_OUT: Final = (f"{_SVG}metadata", f"{_SVG}style")
_NUMBER: Final = re.compile(r"-?\d+\.\d{3,}")


def inline(sketch: Sketch, name: str, label: str, style: str) -> Markup:
    """Return a picture without its title as an element of a page.

    Args:
        sketch: What is drawn.
        name: Unique in the page: begins all ids of the picture.
        label: What it shows, for those who do not see it.
        style: How large it may be.
    """
    root = ET.fromstring(drawn(sketch._replace(title=""), "svg"))  # noqa: S314 -- our own
    for part in [*root.iter()]:
        for child in [*part]:
            if child.tag in _LEFT_OUT:
                part.remove(child)
        if part.tag != f"{_SVG}text" and not (part.text or "").strip():
            part.text = None  # indentation
            for child in part:
                child.tail = None
    values = [value for part in root.iter() for value in part.attrib.values()]
    used = {name for value in values for name in _REFERENCE.findall(value)}
    used |= {part.attrib[_LINK].removeprefix("#") for part in root.iter() if _LINK in part.attrib}
    for part in root.iter():
        _rename(part, name, used)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.attrib |= {"role": "img", "aria-label": label, "class": "picture", "style": style}
    for part in root.iter():
        _merge_paths(part)
        part.tag = part.tag.removeprefix(_SVG)
    return Markup(ET.tostring(root, encoding="unicode"))


def _rename(part: ET.Element, name: str, used: set[str]) -> None:
    own = part.attrib.pop("id", None)
    link = part.attrib.pop(_LINK, None)
    for key, value in part.attrib.items():
        renamed = _REFERENCE.sub(rf"url(#{name}-\1)", value)
        part.set(key, _shorter(renamed) if key == "d" else renamed)
    if own in used:
        part.set("id", f"{name}-{own}")
    if link is not None:  # a part of the picture, or an image that it contains
        inside = link.startswith("#")
        part.set("href", f"#{name}-{link[1:]}" if inside else "".join(link.split()))


def _shorter(path: str) -> str:
    """Return a path to hundredths of a point: nobody sees more, and a page is carried by mail."""
    rounded = _NUMBER.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), path)
    return " ".join(rounded.split())


def _merge_paths(part: ET.Element) -> None:
    """Join the paths inside an element that follow each other and look alike."""
    kept: list[tuple[ET.Element, list[str]]] = []
    for child in part:
        if kept and _alike(kept[-1][0], child):
            kept[-1][1].append(child.get("d", ""))
        else:
            kept.append((child, [child.get("d", "")]))
    for child, paths in kept:
        if len(paths) > 1:
            child.set("d", " ".join(paths))
    part[:] = [child for child, _ in kept]


def _alike(one: ET.Element, other: ET.Element) -> bool:
    """Return whether two elements are paths that differ in nothing but where they are."""
    if not one.tag.endswith("path") or one.tag != other.tag or "id" in one.attrib | other.attrib:
        return False
    looks = ({k: v for k, v in each.attrib.items() if k != "d"} for each in (one, other))
    return next(looks) == next(looks)

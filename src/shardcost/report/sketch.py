"""What every picture shares: its colours, and how what is drawn becomes the content of a file.

A `Sketch` is a picture that has no file yet, so that a file and a page draw the same. Colours are
those of Okabe and Ito (Color Universal Design, 2008), which colour-blind readers tell apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from warnings import catch_warnings, filterwarnings

from shardcost.errors import BadValueError, MissingExtraError
from shardcost.files import write_whole
from shardcost.report.markup import visible

if TYPE_CHECKING:
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
_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and read aloud
    "svg.hashsalt": "shardcost",  # the same picture gives the same file
    "text.parse_math": False,  # a name may have dollars
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

_NOT_XML: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Characters that may stand in a name but not in an SVG file."""


class Sketch(NamedTuple):
    """A picture before it is drawn."""

    fill: Callable[[Figure], None]
    """Draws it."""
    inches: tuple[float, float]
    title: str = ""
    """What it is of; a page that says so itself leaves it out."""
    title_size: float = 11


def write_sketch(sketch: Sketch, file: Path) -> None:
    """Draw a picture into a PNG or SVG file, which appears whole or not at all."""
    check_name(file)
    write_whole(file, drawn(sketch, file.suffix.lower()[1:]))


def check_name(file: Path) -> None:
    """Raise for a file that no picture is written to."""
    if file.suffix.lower() not in SUFFIXES:
        raise BadValueError("plot", str(file), f"a file name that ends in {' or '.join(SUFFIXES)}")


def drawn(sketch: Sketch, kind: str) -> bytes:
    """Return a picture as the content of a file, ``png`` or ``svg``."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure  # without pyplot: no display, no global state
    except ImportError:
        raise MissingExtraError("a plot", "matplotlib", "plot") from None
    with mpl.rc_context(_STYLE), catch_warnings():
        # A name may be in letters that the font lacks; whoever reads an SVG has a font with them.
        filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=sketch.inches, layout="constrained")
        if sketch.title:
            said = visible(sketch.title)
            figure.suptitle(said, x=0.01, ha="left", fontsize=sketch.title_size)
        sketch.fill(figure)
        content = BytesIO()
        figure.savefig(
            content, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {}
        )
    return _NOT_XML.sub(b"?", content.getvalue()) if kind == "svg" else content.getvalue()

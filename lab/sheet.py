"""Sheets of panels: SVG files whose panels can be taken out again, each of one kind of table.

Every panel is a picture of its own, drawn without knowing where on the sheet it goes, and stands on
one line of the file with its kind. So a sheet of some panels taken from a file and others drawn
anew is, byte for byte, the sheet of all drawn anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

ACROSS: Final = 3
_POINTS: Final = 72
"""Of an inch."""
WIDTH, PANEL_HEIGHT, LEGEND_HEIGHT = 8.4, 2.15, 0.4
"""In inches: about 800 pixels as browsers show it."""
PANEL_WIDTH: Final = WIDTH / ACROSS
_PANEL: Final = re.compile(r'^<svg data-kind="(\w+)" [^>]*>(.*)</svg>$', re.MULTILINE)
_LOOK: Final = "*{stroke-linejoin: round; stroke-linecap: butt}"
"""As in every file of matplotlib."""


def sheet(panels: Mapping[str, Sequence[str]], legend: str) -> bytes:
    """Return the SVG file of panels under each other, three in a row, below a legend.

    Args:
        panels: SVG elements on one line each, by kind of table, in the sheet's order.
        legend: An SVG element, as wide as the sheet.
    """
    every = [(kind, panel) for kind, own in panels.items() for panel in own]
    rows = -(-len(every) // ACROSS)
    size = f'width="{_points(WIDTH)}pt" height="{_points(LEGEND_HEIGHT + rows * PANEL_HEIGHT)}pt"'
    box = f'viewBox="0 0 {_points(WIDTH)} {_points(LEGEND_HEIGHT + rows * PANEL_HEIGHT)}"'
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box}>',
        f"<style>{_LOOK}</style>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f"<svg {_place(0, 0, WIDTH, LEGEND_HEIGHT)}>{legend}</svg>",
    ]
    for number, (kind, panel) in enumerate(every):
        row, column = divmod(number, ACROSS)
        top = LEGEND_HEIGHT + row * PANEL_HEIGHT
        place = _place(column * PANEL_WIDTH, top, PANEL_WIDTH, PANEL_HEIGHT)
        lines.append(f'<svg data-kind="{kind}" {place}>{panel}</svg>')
    return "\n".join([*lines, "</svg>", ""]).encode()


def panels_of(content: bytes) -> dict[str, list[str]]:
    """Return the panels of a sheet by kind of table; none of a file that is no sheet.

    >>> panels_of(sheet({"gemm": ["<g/>", "<path/>"]}, "<g/>"))
    {'gemm': ['<g/>', '<path/>']}
    """
    found: dict[str, list[str]] = {}
    for kind, panel in _PANEL.findall(content.decode()):
        found.setdefault(kind, []).append(panel)
    return found


def _place(left: float, top: float, width: float, height: float) -> str:
    x, y, across, down = map(_points, (left, top, width, height))
    return f'x="{x}" y="{y}" width="{across}" height="{down}"'


def _points(inches: float) -> str:
    return f"{_POINTS * inches:.1f}"

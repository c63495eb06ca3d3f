"""Tables for a terminal: aligned, wrapped to its width, bold where it can show it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

_GAP: Final = "  "
_NARROWEST_LAST_COLUMN: Final = 24


def width() -> int:
    """Return the columns of the terminal, 80 where there is none."""
    stated = os.environ.get("COLUMNS", "")
    if stated.isascii() and stated.isdigit() and int(stated) > 0:
        return int(stated)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80


def heading(text: str) -> str:
    """Return a text in bold where the terminal shows it and the user did not opt out."""
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return text if plain else f"\033[1m{text}\033[0m"


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: str = "",
    narrowest: int = _NARROWEST_LAST_COLUMN,
) -> str:
    """Return rows under a heading, the last column wrapped to what the terminal leaves it.

    `right` names the columns to align to the right, as the indices' digits: ``"12"``. The last one
    stays as wide as `narrowest` even where that is more than is left.
    """
    last = len(head) - 1
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(last)]
    room = width() - sum(widths) - len(_GAP) * last
    lines = []
    for number, row in enumerate((head, *rows)):
        cells = [
            cell.rjust(size) if str(i) in right else cell.ljust(size)
            for i, (cell, size) in enumerate(zip(row, widths, strict=False))
        ]
        parts = wrapped(row[last], max(room, narrowest))
        margin = " " * (sum(widths) + len(_GAP) * last)
        text = (_GAP.join([*cells, parts[0]])).rstrip()
        lines.append(heading(text) if number == 0 else text)
        lines += [margin + part for part in parts[1:]]
    return "\n".join(lines)


def paragraph(text: str, indent: str = "") -> str:
    """Return a text wrapped to the terminal, its lines after the first indented."""
    return ("\n" + indent).join(wrapped(text, width() - len(indent)))


def wrapped(text: str, room: int) -> list[str]:
    """Return a text as lines of at most `room` characters, broken at spaces."""
    from textwrap import wrap

    return wrap(text, room, break_on_hyphens=False, break_long_words=False) or [""]

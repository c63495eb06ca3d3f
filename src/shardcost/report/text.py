"""Text for a terminal: tables, paragraphs and labelled lines in its width, bars and sparklines.

Block characters where the terminal's encoding has them, plain ASCII where not.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from textwrap import wrap
from typing import Final

from shardcost.records import NamedTuple

LABEL: Final = 10
"""Characters of the labels of lines."""
_GAP: Final = "  "
_NARROWEST_LAST_COLUMN: Final = 24
_GLUE: Final = "\N{NO-BREAK SPACE}"
"""Between a number and its unit, which stay on one line."""
_BEFORE_UNIT: Final = re.compile(r"(?<=[0-9]) (?=[%A-Za-z])")

_HEIGHTS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_HEIGHTS: Final = "_.:-=+*#"
_WIDTHS: Final = " ▏▎▍▌▋▊▉"
"""The last character of a bar, in eighths."""
_FULL, _PLAIN_FULL = "█", "#"
SHADES: Final = "█▓▒░"
_PLAIN_SHADES: Final = "#=+-"
_FREE, _PLAIN_FREE = "·", "."
_END: Final = "|"
"""The capacity, in a bar that exceeds it."""


def name_of(key: str) -> str:
    """Return a kind of kernel or of memory as a reader knows it.

    >>> name_of("gemm"), name_of("kv_cache"), name_of("elementwise")
    ('GEMM', 'KV cache', 'elementwise')
    """
    return {"gemm": "GEMM", "kv_cache": "KV cache"}.get(key, key.replace("_", " "))


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
    """Return rows under a heading, the last column wrapped to the rest of the terminal's width.

    Args:
        head: Names of the columns.
        rows: Cells.
        right: Columns to align to the right, as the digits of their indices: ``"12"``.
        narrowest: Least width of the last column.
    """
    last = len(head) - 1
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(last)]
    margin = sum(widths) + len(_GAP) * last
    lines = []
    for number, row in enumerate((head, *rows)):
        cells = [
            cell.rjust(size) if str(i) in right else cell.ljust(size)
            for i, (cell, size) in enumerate(zip(row, widths, strict=False))
        ]
        first, *others = wrapped(row[last], max(width() - margin, narrowest))
        text = (_GAP.join([*cells, first])).rstrip()
        lines.append(heading(text) if number == 0 else text)
        lines += [" " * margin + each for each in others]
    return "\n".join(lines)


def sparse_table(rows: Sequence[dict[str, str]], left: Iterable[str] = ()) -> str:
    """Return rows given by column, without the columns that are empty in all of them.

    Columns are aligned to the right but for those in `left`.
    """
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    right = "".join(str(i) for i, name in enumerate(columns) if name not in left)
    cells = [[*(row[name] for name in columns), ""] for row in rows]
    return table([*columns, ""], cells, right=right, narrowest=1)


def paragraph(text: str, indent: str = "") -> str:
    """Return a text wrapped to the terminal, its lines after the first indented."""
    return ("\n" + indent).join(wrapped(text, width() - len(indent)))


def paragraphs(texts: Iterable[str]) -> str:
    """Return texts below each other, each wrapped with a hanging indent."""
    return "\n".join(paragraph(text, _GAP) for text in texts)


def labelled(label: str, text: str) -> str:
    """Return a text beside its label, wrapped."""
    return f"{label:<{LABEL}}" + ("\n" + " " * LABEL).join(wrapped(text, width() - LABEL))


def wrapped(text: str, room: int) -> list[str]:
    """Return a text as lines of at most `room` characters; a number keeps its unit."""
    glued = _BEFORE_UNIT.sub(_GLUE, text)
    lines = wrap(glued, room, break_on_hyphens=False, break_long_words=False)
    return [line.replace(_GLUE, " ") for line in lines] or [""]


def sparkline(values: Sequence[float], width: int | None = None, mark: int | None = None) -> str:
    """Return a curve as one character per value, from the lowest for 0 to the highest.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7], mark=5)
    '▁▂▃▄▅[▆]▇█'

    Args:
        values: Heights, none below 0.
        width: Characters, each the mean of its values; at most one per value.
        mark: Index of the value to put in brackets.
    """
    heights = _HEIGHTS if has_blocks() else _PLAIN_HEIGHTS
    count = min(width or len(values), len(values))
    cuts = [place * len(values) // count for place in range(count + 1)] if count else [0]
    shown = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    most = max(shown, default=0.0) or 1.0
    drawn = [heights[round((len(heights) - 1) * value / most)] for value in shown]
    if mark is not None:
        place = mark * count // len(values)
        drawn[place] = f"[{drawn[place]}]"
    return "".join(drawn)


def bar(share: float, width: int) -> str:
    """Return a bar as long as its share of `width` characters, full beyond 1.

    >>> bar(0.5, 5), bar(2, 3)
    ('██▌', '███')
    """
    inside = min(max(share, 0.0), 1.0)
    if not has_blocks():
        return _PLAIN_FULL * round(inside * width)
    full, eighths = divmod(round(inside * width * len(_WIDTHS)), len(_WIDTHS))
    return (_FULL * full + _WIDTHS[eighths]).rstrip()


class Stack(NamedTuple):
    """A bar of several pieces."""

    text: str
    marks: str
    """The character of each piece."""


def stack(shares: Sequence[float], width: int) -> Stack:
    """Return a stacked bar: a piece for each share of `width` characters, then what is free.

    Shares that sum to more than 1 fill the bar; a line in it marks the capacity.

    >>> stack([0.5, 0.25], 8).text, stack([1.5, 0.5], 8).text
    ('████▓▓··', '████|██▓▓')

    Args:
        shares: At most as many as `SHADES`.
        width: Characters of the bar.
    """
    blocks = has_blocks()
    marks = (SHADES if blocks else _PLAIN_SHADES)[: len(shares)]
    whole = max(1.0, sum(shares))
    ends = [0, *(round(width * end / whole) for end in accumulate(shares))]
    text = "".join(mark * (b - a) for mark, (a, b) in zip(marks, pairwise(ends), strict=True))
    text += (_FREE if blocks else _PLAIN_FREE) * (width - len(text))
    if whole > 1:
        end = round(width / whole)
        text = text[:end] + _END + text[end:]
    return Stack(text, marks)


def has_blocks() -> bool:
    """Return whether the output's encoding has block characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        (_HEIGHTS + _WIDTHS + SHADES + _FREE).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True

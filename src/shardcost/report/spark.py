"""Small pictures of characters: a curve in one line, a bar in one cell.

Block characters where the terminal's encoding has them, plain ASCII where not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

_HEIGHTS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_HEIGHTS: Final = "_.:-=+*#"
"""From low to high: as many, in characters that every terminal has."""
_WIDTHS: Final = " ▏▎▍▌▋▊▉"
"""What is left of a bar after its full blocks, in eighths."""
_FULL: Final = "█"
_PLAIN_FULL: Final = "#"
SHADES: Final = "█▓▒░"
_PLAIN_SHADES: Final = "#=+-"
_FREE: Final = "·"
_PLAIN_FREE: Final = "."
_END: Final = "|"
"""Where what is there ends, in a bar that goes beyond it."""


def sparkline(values: Sequence[float], width: int | None = None, mark: int | None = None) -> str:
    """Return a curve as one character per value, from the lowest for 0 to the highest.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7], mark=5)
    '▁▂▃▄▅[▆]▇█'

    Args:
        values: Heights, none below 0.
        width: Characters, of which each stands for the mean of its values; one per value if left
            out, and never more.
        mark: The value to put in brackets.
    """
    heights = _HEIGHTS if has_blocks() else _PLAIN_HEIGHTS
    shown = _means(values, min(width or len(values), len(values)))
    most = max(shown, default=0.0) or 1.0
    steps = len(heights) - 1
    drawn = [heights[round(steps * value / most)] for value in shown]
    if mark is not None:
        place = mark * len(shown) // len(values)
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
    """Return a bar of pieces, each as long as its share of `width` characters, and what is free.

    Where the pieces are more than all there is, the bar is of the pieces, and a line in it says
    where all there is ends.

    >>> stack([0.5, 0.25], 8).text, stack([1.5, 0.5], 8).text
    ('████▓▓··', '████|██▓▓')

    Args:
        shares: As many as there are `SHADES`, or fewer.
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
    """Return whether the output's encoding has block characters; a text without one has."""
    try:
        (_HEIGHTS + _WIDTHS + SHADES + _FREE).encode(
            getattr(sys.stdout, "encoding", None) or "utf-8"
        )
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _means(values: Sequence[float], count: int) -> list[float]:
    """Return the means of `count` runs of values, as even as possible."""
    cuts = [place * len(values) // count for place in range(count + 1)] if count else [0]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]

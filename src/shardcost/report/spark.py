"""Small pictures of characters: a curve in one line, a bar in one cell.

Block characters where the terminal's encoding has them, plain ASCII where not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_HEIGHTS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_HEIGHTS: Final = "_.:-=+*#"
"""From low to high: as many, in characters that every terminal has."""
_WIDTHS: Final = " ▏▎▍▌▋▊▉"
"""What is left of a bar after its full blocks, in eighths."""
_FULL: Final = "█"
_PLAIN_FULL: Final = "#"


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


def has_blocks() -> bool:
    """Return whether the output's encoding has block characters; a text without one has."""
    try:
        (_HEIGHTS + _WIDTHS).encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _means(values: Sequence[float], count: int) -> list[float]:
    """Return the means of `count` runs of values, as even as possible."""
    cuts = [place * len(values) // count for place in range(count + 1)] if count else [0]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]

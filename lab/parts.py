"""Leaving out: a fit without one part of the rows at a time, tried on that part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shardcost.validate.predictions import Floats

Mask = NDArray[np.bool_]
Item = TypeVar("Item")
_SHAPE_PARTS: Final = 5


def leave_out(parts: NDArray[Any], tried: Callable[[Mask], Floats]) -> Floats:
    """Return, for every row, what is made of it without its part; NaN where it is the only part.

    >>> leave_out(np.array(["a", "b", "b"]), lambda out: np.full(out.sum(), (~out).sum()))
    array([2., 1., 1.])

    Args:
        parts: The part that each row belongs to.
        tried: Takes which rows are left out; returns what a fit to the others makes of them.
    """
    values = np.full(len(parts), np.nan)
    for part in np.unique(parts):
        out = parts == part
        if not out.all():
            values[out] = tried(out)
    return values


def shape_parts(*sizes: Floats) -> NDArray[Any]:
    """Return fifths of shapes, by some sizes of each: the same shape is always in the same one."""
    keys = ("x".join(str(int(size)) for size in shape) for shape in zip(*sizes, strict=True))
    return np.array([fifth(key) for key in keys])


def fifth(key: str) -> str:
    """Return one of five parts that a key is always in."""
    return str(crc32(key.encode()) % _SHAPE_PARTS)


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most so many of some items, evenly picked.

    >>> evenly(range(10), 4)
    [0, 3, 6, 9]
    """
    return list(items[:: -(-len(items) // most)]) if items else []

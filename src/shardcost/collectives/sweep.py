"""A collective over many sizes: where a curve is drawn, and where another path takes over."""

from __future__ import annotations

from math import ceil, log2
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardcost.collectives.library_time import CollectiveTime
from shardcost.records import NamedTuple

LEAST_BYTES: Final = 8
MOST_BYTES: Final = 8 * 2**30
"""The sizes that a sweep has unless others are asked for."""
_POINTS_PER_OCTAVE: Final = 16
"""Of a curve: dense enough that a switch is seen where it is."""


class Switch(NamedTuple):
    """From which size on another path runs than before."""

    place: int
    """In the sweep."""
    size_bytes: float
    algorithm: str
    protocol: str


def curve_sizes(
    least: float, most: float, per_octave: int = _POINTS_PER_OCTAVE
) -> NDArray[np.float64]:
    """Return sizes from one to another, so dense that a curve through them is smooth.

    >>> curve_sizes(1024, 4096, per_octave=2).round().tolist()
    [1024.0, 1448.0, 2048.0, 2896.0, 4096.0]
    """
    points = 1 + ceil(per_octave * max(1.0, log2(most / least)))
    return np.geomspace(least, most, points)


def octaves(size_bytes: float) -> NDArray[np.float64]:
    """Return the powers of two of a whole sweep, and beyond it up to a size outside.

    >>> len(octaves(1024)), len(octaves(2.0**35))
    (31, 33)
    """
    least, most = min(LEAST_BYTES, size_bytes), max(MOST_BYTES, size_bytes)
    powers = np.arange(round(log2(least)), round(log2(most)) + 1)
    return np.exp2(powers.astype(np.float64))


def switches(sweep: CollectiveTime) -> tuple[Switch, ...]:
    """Return where, in a sweep over sizes, the library runs another path than one size before."""
    return tuple(
        Switch(
            int(place),
            float(sweep.size_bytes[place]),
            str(sweep.algorithm[place]),
            str(sweep.protocol[place]),
        )
        for place in np.flatnonzero(np.diff(sweep.choice)) + 1
    )

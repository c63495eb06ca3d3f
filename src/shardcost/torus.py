"""Groups of devices on a torus: which axes they cover, at what rate, over how many hops.

Devices are numbered with the last axis of a shape varying fastest, so a group of neighbours fills
the last axis first: tensor parallelism the last axis, data parallelism those before it. Each device
has a link in both directions along every axis; an axis whose ends are joined ("wrap-around") is a
ring, another one a line. Several devices of one chip share its links and reach each other inside.

Rates follow from what the links of one device carry. A ring moves an all-gather in both directions
at once, a line has one link at its ends, and all axes work at the same time on parts of the buffer
(Sack and Gropp, Collective algorithms for multiported torus networks, ACM TOPC 2015)::

    rate of an all-gather = sum over the axes covered of (2 if wrapped else 1) x link rate

An all-to-all is bound by the middle of the longest axis: on a ring of e devices a link carries e/8
of a device's buffer, on a line e/4 (Dally and Towles, Principles and practices of interconnection
networks, 2004, chapter 3).
"""

from __future__ import annotations

from functools import reduce
from itertools import pairwise, product
from math import prod
from operator import add
from typing import Any

from shardcost.arrays import choose, floor, largest, smallest
from shardcost.records import NamedTuple

Shape = tuple[int, ...]


class Spanned(NamedTuple):
    """A group on a torus; rates in units of one link's of the first axis, shared by a chip's."""

    links: Any
    """Links that carry an all-gather into a device at once, in link rates."""
    exchange: Any
    """Times a device's buffer that the busiest link carries in an all-to-all."""
    hops: Any
    """Links from one end of the group to the other, along all axes."""
    on_chip: Any
    """Ranks on one chip, which what arrives there serves at once."""
    axes: tuple[Any, ...]
    """Ranks along each axis, in the order of the shape."""


def spanned(
    shape: Shape,
    wraps: tuple[int, ...],
    shares: tuple[float, ...],
    devices_per_chip: int,
    ranks: Any,
    stride: Any = 1,
) -> Spanned:
    """Return what `ranks` devices that are `stride` apart cover of a torus.

    >>> [int(each) for each in spanned((4, 4, 8), (4, 4, 4), (1, 1, 1), 1, 8).axes]
    [1, 1, 8]

    Args:
        shape: Chips along each axis.
        wraps: An axis is a ring where its length is a multiple of this.
        shares: Rates of the axes' links, relative to each other.
        devices_per_chip: Devices that share a chip's links.
        ranks: Of the group.
        stride: Devices from one rank to the next; those between do the same in their own groups.
    """
    reach, inner = ranks * stride, devices_per_chip
    on_chip = _part(reach, stride, 1, devices_per_chip)
    extents: list[Any] = []
    links, hops, exchange = [], [], []
    for length, wrap, share in reversed(list(zip(shape, wraps, shares, strict=True))):
        extent = _part(reach, stride, inner, length)
        apart = smallest(largest(stride / inner, 1), length)
        ring = (length % wrap == 0) & (extent * apart >= length)
        covered = extent > 1
        # Groups between the ranks of this one use the same links.
        rate = share / apart
        links.append(choose(covered, choose(ring, 2.0, 1.0) * rate, 0.0))
        hops.append(choose(covered, apart * choose(ring, floor(extent / 2), extent - 1), 0.0))
        exchange.append(choose(covered, extent * choose(ring, 1 / 8, 1 / 4) / rate, 0.0))
        extents.insert(0, extent)
        inner = inner * length
    total = reduce(add, links)
    # Within one chip, devices reach each other at the rate of all its links.
    inside = 2.0 * sum(shares)
    return Spanned(
        links=on_chip * choose(total > 0, total, inside),
        exchange=largest(*exchange, 1 / inside),
        hops=reduce(add, hops),
        on_chip=on_chip,
        axes=tuple(extents),
    )


def _part(reach: Any, stride: Any, inner: Any, length: int) -> Any:
    """Return how many ranks of a group lie along an axis with `inner` devices inside of it."""
    return smallest(largest(smallest(reach, inner * length) / largest(stride, inner), 1), length)


def compact(chips: int, pod: Shape) -> Shape | None:
    """Return the shape of a slice with so many chips that has the shortest axes; None if none has.

    The longest axis is the last, as in the vendor's lists of slices.

    >>> compact(128, (16, 20, 28)), compact(32, (16, 16)), compact(13, (4, 4))
    ((4, 4, 8), (4, 8), None)
    """
    most = tuple(sorted(pod))
    sides = [[side for side in range(1, axis + 1) if chips % side == 0] for axis in most]
    found = [
        each
        for each in product(*sides)
        if prod(each) == chips and all(one <= two for one, two in pairwise(each))
    ]
    return min(found, key=sum) if found else None


def filled(chips: int, pod: Shape) -> Shape | None:
    """Return the slice with so many chips that fills the last axes first; None if none does.

    For axes that are not alike: an instance comes before the links between instances.

    >>> filled(16, (4, 4, 4)), filled(32, (4, 4, 4)), filled(24, (4, 4, 4))
    ((1, 4, 4), (2, 4, 4), None)
    """
    shape: list[int] = []
    for length in reversed(pod):
        side = min(length, chips)
        if chips % side:
            return None
        shape.insert(0, side)
        chips //= side
    return tuple(shape) if chips == 1 else None

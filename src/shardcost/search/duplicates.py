"""Duplicates of a search space: layouts that do the same as another one of it.

A choice that changes nothing is priced once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import combinations
from operator import or_
from typing import Any, Final

from shardcost.errors import Reason, Rule
from shardcost.layout import Layout
from shardcost.search.space import Family, Space

SAME_LAYOUT: Final = Rule("same_layout", "the same layout twice: {}")


def duplicates(layout: Layout, space: Space, family: Family) -> dict[Reason, Any]:
    """Return where a layout does what another one of the space does, by the choice to blame."""
    return {
        SAME_LAYOUT.reason(what): where for what, where in _changes_nothing(layout, space, family)
    }


def _changes_nothing(layout: Layout, space: Space, family: Family) -> Iterator[tuple[str, Any]]:
    """Yield where a choice changes nothing, but for the first of its values."""
    replicas = layout.dp * layout.cp
    alone = {
        "sequence_parallel": ("sequence parallelism without tp", layout.tp == 1),
        "scheme": ("a partition scheme without tp", layout.tp == 1),
        "tp_overlap": ("overlap of tp without tp", layout.tp == 1),
        "zero": ("a ZeRO stage without replicas", replicas == 1),
        "dp_overlap": ("overlap of gradients without replicas", replicas == 1),
        "context_scheme": ("a context scheme without cp", layout.cp == 1),
        "schedule": ("a schedule without pp", layout.pp == 1),
    }
    for choice, (what, where) in alone.items():
        if getattr(family, choice) != getattr(space, choice)[0]:
            yield what, where
    if family.schedule == "interleaved" and "1f1b" in (space.schedule or ()):
        yield "interleaving with one virtual stage", layout.virtual_stages == 1
    earlier = space.order[: space.order.index(family.order)]
    if earlier:
        same = reduce(or_, (_same_place(layout, order) for order in earlier))
        yield "an order that places no group elsewhere", same


def _same_place(layout: Layout, other: str) -> Any:
    """Return where another order puts every group of more than one rank at the same place."""
    mine, theirs = (order.split("-") for order in (layout.order, other))
    same: Any = True
    for one, two in combinations(mine, 2):
        if theirs.index(one) > theirs.index(two):
            same = same & ((getattr(layout, one) == 1) | (getattr(layout, two) == 1))
    return same

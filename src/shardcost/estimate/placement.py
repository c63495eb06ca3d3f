"""Where the groups of a layout sit on the devices: how many ranks each, and how far apart.

Devices are numbered through the nodes. The order of placement says which degree varies fastest:
the innermost group has neighbours, the next is as many devices apart as the first has ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from shardcost.arrays import choose
from shardcost.layout import Layout
from shardcost.memory.parameters import expert_copies


class Place(NamedTuple):
    """Ranks of one group, and the devices from one to the next."""

    ranks: Any
    stride: Any


def places(layout: Layout) -> dict[str, Place]:
    """Return where each group of a layout sits.

    Gradients go over data- and context-parallel ranks together (``dp``); experts over the same
    ranks as far as they suffice, else into the tensor group too (``ep``), and their gradients over
    the ranks with the same ones (``dp_experts``).

    >>> places(Layout(tp=8, pp=2, dp=4))["dp"]
    Place(ranks=4, stride=8)
    """
    strides: dict[str, Any] = {}
    reach: Any = 1
    for name in layout.order.split("-"):
        strides[name] = reach
        reach = reach * getattr(layout, name)
    found = {name: Place(getattr(layout, name), stride) for name, stride in strides.items()}
    replicas = layout.dp * layout.cp
    inner = min(("dp", "cp"), key=layout.order.index)
    outside = layout.ep <= replicas
    found["dp"] = Place(replicas, strides[inner])
    found["ep"] = Place(layout.ep, choose(outside, strides[inner], strides["tp"]))
    found["dp_experts"] = Place(expert_copies(layout), found["ep"].stride * layout.ep)
    if layout.shard_degree is not None:
        outer = strides[inner] * layout.shard_degree
        found["dp_outer"] = Place(replicas // layout.shard_degree, outer)
        found["dp"] = Place(layout.shard_degree, strides[inner])
    return found

"""Where the groups of a layout sit on the devices: `places`."""

from __future__ import annotations

from typing import Any

from shardcost.arrays import choose
from shardcost.layout import Layout
from shardcost.memory.parameters import expert_copies, expert_tensor_degree
from shardcost.records import NamedTuple


class Place(NamedTuple):
    """Ranks of one group, and the devices from one to the next."""

    ranks: Any
    stride: Any


def places(layout: Layout) -> dict[str, Place]:
    """Return where each group of a layout sits on the devices.

    Devices are numbered through the nodes. The order of placement says which degree varies fastest:
    the innermost group has neighbours, the next is as many devices apart as the first has ranks.
    Gradients go over data- and context-parallel ranks together (``dp``). Experts split like the
    rest of the layer are spread over the same ranks (``ep``); experts split over fewer (``etp``)
    over all ranks of a stage, those that share an expert next to each other (Megatron Core). Their
    gradients go over the ranks with the same ones (``dp_experts``).

    >>> places(Layout(tp=8, pp=2, dp=4))["dp"]
    Place(ranks=4, stride=8)
    >>> places(Layout(tp=8, dp=4, ep=8))["ep"]  # two ranks on each of four nodes
    Place(ranks=8, stride=4)
    """
    placed: dict[str, Place] | None = layout.memo.get("places")
    if placed is not None:
        return placed
    strides: dict[str, Any] = {}
    reach: Any = 1
    for name in layout.order.split("-"):
        strides[name] = reach
        reach = reach * getattr(layout, name)
    placed = {name: Place(getattr(layout, name), stride) for name, stride in strides.items()}
    replicas = layout.dp * layout.cp
    inner = min(("dp", "cp"), key=layout.order.index)
    etp = expert_tensor_degree(layout)
    # An expert group that is larger than what stands before the pipeline reaches over its stages.
    spread = choose(etp * layout.ep <= strides["pp"], etp, etp * layout.pp)
    alike = (etp == layout.tp) & (layout.ep <= replicas)
    placed["dp"] = Place(replicas, strides[inner])
    placed["offload"] = Place(1, 1)
    placed["ep"] = Place(layout.ep, choose(alike, strides[inner], spread))
    placed["ep_tensor"] = Place(etp, choose(alike, strides["tp"], 1))
    placed["dp_experts"] = Place(expert_copies(layout), placed["ep"].stride * layout.ep)
    if layout.shard_degree is not None:
        outer = strides[inner] * layout.shard_degree
        placed["dp_outer"] = Place(replicas // layout.shard_degree, outer)
        placed["dp"] = Place(layout.shard_degree, strides[inner])
    layout.memo["places"] = placed
    return placed

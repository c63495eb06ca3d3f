"""Where the groups of a layout sit on the devices: `strides`."""

from __future__ import annotations

from typing import Any

from shardcost.arrays import choose
from shardcost.layout import Layout
from shardcost.memory.parameters import expert_copies, expert_tensor_degree, sharing_ranks


def strides(layout: Layout) -> dict[str, Any]:
    """Return for each group of a layout how many devices its next rank is away.

    Devices are numbered through the nodes. The order of placement says which degree varies fastest:
    the innermost group has neighbours, the next is as many devices apart as the first has ranks.
    Gradients go over data- and context-parallel ranks together (``dp``). Experts split like the
    rest of the layer are spread over the same ranks (``ep``); experts split over fewer (``etp``)
    over all ranks of a stage, those that share an expert next to each other (Megatron Core). Their
    gradients go over the ranks with the same ones (``dp_experts``).

    >>> strides(Layout(tp=8, pp=2, dp=4))["dp"]
    8
    >>> strides(Layout(tp=8, dp=4, ep=8))["ep"]  # two ranks on each of four nodes
    4
    """
    known: dict[str, Any] | None = layout.memo.get("strides")
    if known is not None:
        return known
    found: dict[str, Any] = {}
    reach: Any = 1
    for name in layout.order.split("-"):
        found[name] = reach
        reach = reach * getattr(layout, name)
    inner = min(("dp", "cp"), key=layout.order.index)
    etp = expert_tensor_degree(layout)
    # An expert group that is larger than what stands before the pipeline reaches over its stages.
    spread = choose(etp * layout.ep <= found["pp"], etp, etp * layout.pp)
    alike = (etp == layout.tp) & (layout.ep <= layout.dp * layout.cp)
    found["dp"] = found[inner]
    found["offload"] = 1
    found["ep"] = choose(alike, found["dp"], spread)
    found["ep_tensor"] = choose(alike, found["tp"], 1)
    found["dp_experts"] = found["ep"] * layout.ep
    if layout.shard_degree is not None:
        found["dp_outer"] = found["dp"] * layout.shard_degree
        shared = sharing_ranks(layout, expert_copies(layout))
        found["dp_experts_outer"] = found["dp_experts"] * shared
    layout.memo["strides"] = found
    return found

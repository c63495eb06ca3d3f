"""What part of a layer a rank has. Sizes may be arrays."""

from __future__ import annotations

from typing import Any

from shardcost.arrays import largest
from shardcost.layout import Layout
from shardcost.model import Attention


def kv_heads_of_a_rank(part: Attention, tp: Any) -> Any:
    """Return the key-value heads of a rank: at least one, held by several ranks where tp is more.

    >>> kv_heads_of_a_rank(Attention(heads=64, kv_heads=8, head_dim=128), 16)
    1
    """
    return largest(part.kv_heads // tp, 1)


def expert_tensor_degree(layout: Layout) -> Any:
    """Return over how many ranks one expert's matrices are split.

    Experts are spread over data- and context-parallel ranks first; each expert is then split over
    the tensor group as the rest of the layer is. Where `ep` exceeds those ranks it reaches into
    the tensor group, whose part of the split it takes over.
    """
    reach = largest(layout.ep // (layout.dp * layout.cp), 1)
    return largest(layout.tp // reach, 1)

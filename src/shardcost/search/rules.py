"""Why cells of a grid are left out: named masks, in the order in which they count.

A layout that several rules forbid counts for the first. Rules of the model, the workload and the
schedule are those of a single `estimate`; added here are layouts that do the same as another one
of the space, and what no framework runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from itertools import combinations
from operator import or_
from typing import Any

from shardcost.cluster import Cluster
from shardcost.layout import Layout
from shardcost.model import Model
from shardcost.program.problems import problems
from shardcost.program.setting import setting_of
from shardcost.schedule.work import problems as schedule_problems
from shardcost.search.space import Family, Space
from shardcost.software import Software
from shardcost.workload import Train, Workload


def impossible(
    model: Model, cluster: Cluster, layout: Layout, workload: Workload, software: Software
) -> dict[str, Any]:
    """Return, for each reason why a layout cannot be, where on a grid it holds."""
    found = dict(_beyond_a_domain(cluster, layout))
    found |= problems(model, setting_of(model, layout, workload, software), workload)
    if isinstance(workload, Train):
        runs = workload.global_batch // (layout.dp * layout.micro_batch)
        found |= schedule_problems(layout.schedule, layout.pp, runs, layout.virtual_stages)
        found |= uneven_chunks(model, layout)
    return found


def twice(layout: Layout, space: Space, family: Family) -> dict[str, Any]:
    """Return where a layout does what another one of the space does, by the choice to blame."""
    found = _changes_nothing(layout, space, family)
    return {f"the same layout twice: {what}": where for what, where in found}


def _beyond_a_domain(cluster: Cluster, layout: Layout) -> Iterator[tuple[str, Any]]:
    if cluster.network is None:
        gpus = cluster.tiers[-1].gpus
        yield f"more than {gpus} GPUs need a network", layout.devices > gpus


def uneven_chunks(model: Model, layout: Layout) -> Mapping[str, Any]:
    """Return where virtual stages would hold different numbers of layers.

    Frameworks count the layers, or the layers with embedding and head as one each.
    """
    parts, layers = layout.pp * layout.virtual_stages, model.num_layers
    uneven = (layers % parts != 0) & ((layers + 2) % parts != 0) & (layout.virtual_stages > 1)
    return {f"pp x virtual stages does not divide {layers} layers": uneven}


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
        same = reduce(or_, (_same_place(layout, each) for each in earlier))
        yield "an order that places no group elsewhere", same


def _same_place(layout: Layout, other: str) -> Any:
    """Return where another order puts every group of more than one rank at the same place."""
    mine, theirs = (order.split("-") for order in (layout.order, other))
    same: Any = True
    for one, two in combinations(mine, 2):
        if theirs.index(one) > theirs.index(two):
            same = same & ((getattr(layout, one) == 1) | (getattr(layout, two) == 1))
    return same

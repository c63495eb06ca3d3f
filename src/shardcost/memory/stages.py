"""What a pipeline stage has: its layers, and the micro-batches whose activations it keeps.

Under 1F1B stage `i` of `p` keeps ``p - i`` micro-batches (Narayanan et al. 2021, arXiv:2104.04473);
interleaving with `v` virtual stages lets ``p v + p - 1`` passes begin on the first stage before one
ends, ``1 + (p - 1) / (p v)`` times as many. The zero-bubble schedule ZB-H1 keeps what 1F1B keeps
(Qi et al. 2024, arXiv:2401.10241).
"""

from __future__ import annotations

from typing import Any

from shardcost.arrays import ceil_div, choose, largest, smallest
from shardcost.layout import Layout
from shardcost.model import Model
from shardcost.records import NamedTuple


class Stage(NamedTuple):
    """One stage of a pipeline."""

    index: Any
    layers: Any
    has_embedding: Any
    has_head: Any


def stage_evenly(model: Model, layout: Layout, index: Any) -> Stage:
    """Return a stage when layers are dealt out evenly, the first stages taking what is left over.

    >>> [stage_evenly(Model.named("llama3-8b"), Layout(pp=5), i).layers for i in range(5)]
    [7, 7, 6, 6, 6]
    """
    first, last, pp = layout.first_stage_layers, layout.last_stage_layers, layout.pp
    if not is_stated(layout):
        layers = ceil_div(model.num_layers - index, pp)
        return Stage(index, layers, index == 0, index == pp - 1)
    # The others share what the stated stages leave.
    before, after = int(first is not None), int(last is not None)
    left = model.num_layers - (first or 0) - (last or 0)
    others = largest(pp - before - after, 1)
    layers = largest(ceil_div(left - (index - before), others), 0)
    if first is not None:
        layers = choose(index == 0, first, layers)
    if last is not None:
        layers = choose(index == pp - 1, last, layers)
    return Stage(index, layers, index == 0, index == pp - 1)


def stage_by_cost(model: Model, layout: Layout, index: Any) -> Stage:
    """Return a stage when it takes layers until it has its share of the cost.

    The output head weighs as many layers as it has weights; a stage ends with the layer that
    reaches its share of the sum. So the head may come to lie before the last stage. Stated layers
    of the first or last stage go before that.
    """
    if is_stated(layout):
        return stage_evenly(model, layout, index)
    layers, total = model.num_layers, _cost_in_layers(model)
    begin, end = (
        smallest(layers, ceil_div(total * number, layout.pp)) for number in (index, index + 1)
    )
    return Stage(index, end - begin, index == 0, index == _head_by_cost(model, layout))


def last_stage(model: Model, layout: Layout, balance: str) -> Any:
    """Return the index of the stage that has the head."""
    if balance == "layers" or is_stated(layout):
        return layout.pp - 1
    return _head_by_cost(model, layout)


def is_stated(layout: Layout) -> bool:
    """Return whether a layout states the layers of its first or last stage."""
    return layout.first_stage_layers is not None or layout.last_stage_layers is not None


def in_flight(layout: Layout, index: Any, micro_batches: Any) -> Any:
    """Return for how many micro-batches a stage keeps activations, at its peak."""
    pp, virtual_stages = layout.pp, layout.virtual_stages
    left = pp - index
    # Virtual stages take turns after pp micro-batches, or one more where pp does not divide them.
    group = choose(micro_batches % pp == 0, pp, pp + 1)
    interleaved = (2 * left - 1 + (virtual_stages - 1) * group) / virtual_stages
    return smallest(micro_batches, choose(virtual_stages > 1, interleaved, left))


def _cost_in_layers(model: Model) -> Any:
    """Return the cost of the whole model in units of its average layer."""
    hidden, layers = model.hidden_size, model.num_layers
    layer = sum(block.count * block.parameters(hidden) for block in model.blocks) / layers
    return layers + model.vocab_size * hidden / layer


def _head_by_cost(model: Model, layout: Layout) -> Any:
    share = model.num_layers * layout.pp // _cost_in_layers(model)
    return largest(smallest(share, layout.pp - 1), 0)

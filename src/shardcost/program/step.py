"""What happens once a step, and what sharded weights cost every pass.

Gradients are reduced over the data-parallel group: all-reduced, or with ZeRO scattered, after which
the updated weights are gathered (Rajbhandari et al. 2020, arXiv:1910.02054). With ZeRO stage 3
(FSDP) each layer's weights are gathered before it runs, forward and backward, in every micro-batch.
Where only some of the ranks share the weights (HSDP), the scattered gradients are also reduced
over the rest.
"""

from __future__ import annotations

from typing import Any

from shardcost.arrays import ceil_div, choose
from shardcost.checks import anywhere
from shardcost.dtypes import BITS, activation_bytes
from shardcost.layout import Layout
from shardcost.memory.parameters import Parameters, expert_copies, sharing_ranks
from shardcost.program.operations import Collective, Elementwise, Operations
from shardcost.program.setting import micro_batches
from shardcost.records import NamedTuple
from shardcost.software import Software
from shardcost.workload import Train

_ADAM_BYTES = 4 * (1 + 3 + 3)
"""Per weight: a gradient, the weight and two moments read in 32 bits, the last three written."""
_SGD_BYTES = 4 * (1 + 1 + 1)
_FULL_GRADIENT_BYTES = 4
"""Of the gradients for which `Software.step_gradient_bytes` is stated."""
_LIST_COPIES = 3
"""Of weights gathered into lists: joined for each rank, out of the flat tensor, to their places."""
_CLIP_BYTES = 4
"""Per weight: every gradient is read once for the norm by which gradients are clipped."""


class Step(NamedTuple):
    """Once a step."""

    gradients: Operations
    """May hide behind the last backward pass."""
    weights: Operations
    """May hide behind the next forward pass."""
    optimizer: Operations


class LayerWeights(NamedTuple):
    """Collectives of one layer's weights where ZeRO stage 3 shards them, for each micro-batch."""

    forward: Operations
    backward: Operations
    gradient: Operations


NO_GATHERS = LayerWeights((), (), ())


def gradient_bytes(workload: Train) -> float:
    """Return the bytes of one gradient as it is summed up and sent."""
    return BITS[workload.gradient_dtype] / 8


def step(
    layout: Layout,
    workload: Train,
    weights: Parameters,
    ends: Any,
    tensors: Any,
    software: Software,
) -> Step:
    """Return what a rank does once a step.

    Experts have fewer copies than the other weights: their gradients are reduced over those ranks
    alone that hold the same ones.

    Args:
        layout: The layout.
        workload: The training run.
        weights: Those that the rank trains.
        ends: Its weights of the embedding and the head.
        tensors: How many tensors its weights are, where they are gathered into lists.
        software: What runs it.
    """
    dense = _reduced(layout, workload, weights.dense, layout.dp * layout.cp, "dp", software)
    if layout.zero == 1 and software.gathers_into_lists:
        shared = sharing_ranks(layout, layout.dp * layout.cp)
        dense = dense._replace(
            optimizer=(*dense.optimizer, *_copied(workload, weights.dense, tensors, shared))
        )
    if layout.zero == 3:
        tables = _of_ends(layout, workload, ends)
        dense = Step(tables.gradient + dense.gradients, tables.forward, dense.optimizer)
    if not anywhere(weights.experts > 0):
        return dense
    copies = expert_copies(layout)
    experts = _reduced(layout, workload, weights.experts, copies, "dp_experts", software)
    return Step(*(one + other for one, other in zip(dense, experts, strict=True)))


def _reduced(
    layout: Layout, workload: Train, weights: Any, replicas: Any, group: str, software: Software
) -> Step:
    """Return what happens once a step to weights with so many copies."""
    shared = sharing_ranks(layout, replicas)
    gradient = weights * gradient_bytes(workload)
    updated = weights / (shared if layout.zero else 1)
    per_weight = _ADAM_BYTES if workload.optimizer == "adam" else _SGD_BYTES
    moved = updated * (per_weight + _CLIP_BYTES + activation_bytes(workload.dtype))
    optimizer = _update(layout, workload, updated, moved)
    if software.step_gradient_bytes is not None:
        kept = gradient / (shared if layout.zero > 1 else 1)
        size = kept * software.step_gradient_bytes / _FULL_GRADIENT_BYTES
        optimizer = (*optimizer, Elementwise("gradient buffers", size, 3))
    if _is(replicas, 1):
        return Step((), (), optimizer)
    if layout.zero == 0:
        reduce = Collective.of("all_reduce", "gradients", gradient, group, replicas)
        return Step(_in_buckets(reduce, software), (), optimizer)
    across: Operations = ()
    if layout.shard_degree is not None:
        # Between the groups that have the same shards, where there are some.
        copies = replicas // shared
        if not _is(copies, 1):
            name = "gradients across shards"
            across = (
                Collective.of("all_reduce", name, gradient / shared, f"{group}_outer", copies),
            )
    if layout.zero == 3:
        return Step(across, (), optimizer)
    reduction = software.zero_reduce if layout.zero == 1 else "reduce_scatter"
    scatter = Collective.of(reduction, "gradients", gradient, group, shared)
    gathered = weights * activation_bytes(workload.dtype)
    gather = Collective.of("all_gather", "weights", gathered, group, shared)
    return Step((*_in_buckets(scatter, software), *across), (gather,), optimizer)


def _update(layout: Layout, workload: Train, weights: Any, moved: Any) -> Operations:
    """Return the update of so many weights, some of whose states may be in the host's memory.

    The host updates them there: it gets their gradients and returns the weights (ZeRO-Offload, Ren
    et al. 2021, arXiv:2101.06840). Or their states are copied to the device and back; both ways of
    the link are used at once.
    """
    share = layout.offload_optimizer
    if _is(share, 0):
        return (Elementwise("optimizer", moved, 4),)
    away = share * weights
    weight_bytes = activation_bytes(workload.dtype)
    if layout.offload_update == "device":
        moments = 2 if workload.optimizer == "adam" else 1
        each = (BITS[workload.master_dtype] + moments * BITS[workload.moment_dtype]) / 8
        states = Collective("copy optimizer states", "host_copy", away * each, "offload", 1)
        return (Elementwise("optimizer", moved, 4), states)
    sent = away * (gradient_bytes(workload) + weight_bytes)
    return (
        Elementwise("optimizer", (1 - share) * moved, 4),
        Collective("copy gradients and weights", "host_copy", sent, "offload", 1),
        Collective("update on the host", "host_update", away, "offload", 1),
    )


def _copied(workload: Train, weights: Any, tensors: Any, shared: Any) -> Operations:
    """Return the copies of gathered weights, each tensor's part from each rank by a kernel.

    PyTorch gathers into a list of tensors through one flat tensor. Where the lists hold the parts
    that each rank updated of each tensor, they are joined before and copied to their places
    afterwards, part by part.
    """
    if _is(shared, 1):
        return ()
    kernels = tensors * choose(shared > 1, shared, 0)
    moved = choose(shared > 1, _LIST_COPIES * 2 * weights, 0) * activation_bytes(workload.dtype)
    return (Elementwise("copies of gathered weights", moved, 0, starts=kernels),)


def _in_buckets(whole: Collective, software: Software) -> Operations:
    """Return a collective that goes bucket by bucket: its bytes, and a start for each bucket more.

    A start is a collective so small that its latency is nearly all there is to it.
    """
    small = software.bucket_start_bytes
    if small is None or not software.dp_overlap:
        return (whole,)
    more = ceil_div(whole.size_bytes, software.bucket_bytes) - 1
    start = whole._replace(name=f"{whole.name}, starts", size_bytes=small, count=more)
    return (start, whole._replace(size_bytes=whole.size_bytes - more * small))


def _is(value: Any, number: int) -> bool:
    """Return whether something is one plain number, in no cell another."""
    return isinstance(value, int | float) and value == number


def layer_weights(
    layout: Layout, workload: Train, weights: Parameters, trained: Parameters
) -> LayerWeights:
    """Return the gathers of one layer's weights and the scatter of gradients under ZeRO stage 3.

    Experts are divided over those ranks alone that hold the same ones. Where these are fewer than
    the ranks with the layer's other weights, experts are gathered by a collective of their own.

    Args:
        layout: The layout.
        workload: The training run.
        weights: Of the layer, on one rank.
        trained: Those that have gradients.
    """
    if layout.zero != 3:
        return NO_GATHERS
    replicas, copies = layout.dp * layout.cp, expert_copies(layout)
    apart = (copies != replicas) & (weights.experts > 0)
    shared = sharing_ranks(layout, replicas)
    if not anywhere(apart):
        return _gathered(workload, weights.total, trained.total, "layer", "dp", shared)
    together = choose(apart, 0, 1)
    held = weights.dense + together * weights.experts
    learning = trained.dense + together * trained.experts
    dense = _gathered(workload, held, learning, "layer", "dp", shared)
    held, learning, shared = weights.experts, trained.experts, sharing_ranks(layout, copies)
    experts = _gathered(workload, held, learning, "expert", "dp_experts", shared, 1 - together)
    return LayerWeights(*(one + other for one, other in zip(dense, experts, strict=True)))


def _of_ends(layout: Layout, workload: Train, ends: Any) -> LayerWeights:
    """Return the gather and the scatter of the embedding's and the head's weights under ZeRO 3.

    They stay gathered from the forward to the backward pass, as FSDP keeps its outermost unit (Zhao
    et al. 2023, arXiv:2304.11277): no layer runs in between that could prefetch them.
    """
    shared, times = sharing_ranks(layout, layout.dp * layout.cp), micro_batches(layout, workload)
    trained = 0 if workload.adapters else ends
    return _gathered(workload, ends, trained, "embedding", "dp", shared, times)


def _gathered(
    workload: Train, weights: Any, trained: Any, of: str, group: str, shared: Any, count: Any = 1
) -> LayerWeights:
    """Return the collectives of so many weights that so many ranks share."""
    if _is(shared, 1):
        return NO_GATHERS
    gathered = weights * activation_bytes(workload.dtype)
    gather = Collective.of("all_gather", f"{of} weights", gathered, group, shared, count)
    if _is(trained, 0):  # adapters learn beside them
        return LayerWeights((gather,), (gather,), ())
    gradients = trained * gradient_bytes(workload)
    scatter = Collective.of("reduce_scatter", f"{of} gradients", gradients, group, shared, count)
    return LayerWeights((gather,), (gather,), (scatter,))

"""Why a model or a workload cannot be divided as a layout says: named masks, nothing rounded.

Heads and widths must divide; only key-value heads may be fewer than the ranks, which then share
copies. A reason holds for one layout, or cell by cell where degrees are arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardcost.arrays import largest, smallest
from shardcost.checks import is_array
from shardcost.layout import Layout
from shardcost.memory.parameters import expert_tensor_degree
from shardcost.model import (
    Attention,
    Experts,
    FeedForward,
    LatentAttention,
    LinearAttention,
    Model,
    StateSpace,
)
from shardcost.program.partitions import scheme_problems
from shardcost.program.setting import Setting
from shardcost.workload import Decode, Train, Workload


def problems(model: Model, s: Setting, workload: Workload) -> Mapping[str, Any]:
    """Return, for each reason why a model or workload cannot be laid out so, where it holds."""
    layout = s.layout
    found = dict(layout.problems())
    for block in model.blocks:
        if layout.scheme != "1d":
            found.update(scheme_problems(layout, block, s.hidden, s.sequences))
            continue
        found.update(_attention_problems(block.attention, layout))
        found.update(_feed_forward_problems(block.feed_forward, layout))
    parts, places = layout.pp * layout.virtual_stages, model.num_layers + 2
    found[f"pp x virtual stages exceeds {model.num_layers} layers with embedding and head"] = (
        parts > places
    )
    found.update(_workload_problems(layout, workload))
    return found


def _attention_problems(part: Any, layout: Layout) -> dict[str, Any]:
    if isinstance(part, Attention | LatentAttention):
        found = {f"tp does not divide {part.heads} heads": part.heads % layout.tp != 0}
        if layout.context_scheme == "ulysses":
            split = layout.tp * layout.cp
            found[f"tp x cp does not divide {part.heads} heads (ulysses)"] = part.heads % split != 0
        if isinstance(part, Attention):
            kv, tp = part.kv_heads, layout.tp
            uneven = (largest(kv, tp) % smallest(kv, tp)) != 0
            found[f"tp and {kv} key-value heads do not divide each other"] = uneven
        return found
    if isinstance(part, LinearAttention):
        return {f"tp does not divide {part.key_heads} key heads": part.key_heads % layout.tp != 0}
    if isinstance(part, StateSpace):
        inner = part.inner_size
        return {f"tp does not divide the inner size {inner}": inner % layout.tp != 0}
    return {}


def _feed_forward_problems(part: Any, layout: Layout) -> dict[str, Any]:
    if isinstance(part, FeedForward):
        width = part.width
        return {f"tp does not divide the feed-forward width {width}": width % layout.tp != 0}
    if isinstance(part, Experts):
        split = expert_tensor_degree(layout)
        return {
            f"ep does not divide {part.count} experts": part.count % layout.ep != 0,
            f"the expert-tensor split does not divide the expert width {part.expert.width}": (
                part.expert.width % split != 0
            ),
        }
    return {}


def _workload_problems(layout: Layout, workload: Workload) -> dict[str, Any]:
    if isinstance(workload, Train):
        replica = layout.dp * layout.micro_batch
        batch, tokens = workload.global_batch, workload.sequence_length
        found = {f"dp x micro-batch does not divide the batch of {batch}": batch % replica != 0}
        micro_batches = batch // replica
        if layout.schedule == "interleaved":
            found["interleaving needs micro-batches in multiples of pp"] = (
                micro_batches % layout.pp != 0
            ) & (layout.virtual_stages > 1)
    else:
        batch = workload.batch  # type: ignore[attr-defined]
        of = "" if is_array(batch) else f" of {batch}"  # a reason names one batch, not a grid
        found = {f"dp does not divide the batch{of}": batch % layout.dp != 0}
        if isinstance(workload, Decode):  # the cache is spread, not the new tokens
            context = workload.context_tokens + workload.new_tokens
            return found | {"cp exceeds the tokens of context": layout.cp > context}
        tokens = workload.prompt_tokens  # type: ignore[attr-defined]
    found[f"cp does not divide the sequence of {tokens} tokens"] = tokens % layout.cp != 0
    if layout.sequence_parallel:
        share = layout.cp * layout.tp
        found[f"cp x tp does not divide the sequence of {tokens} tokens (sequence parallelism)"] = (
            tokens % share != 0
        )
    return found

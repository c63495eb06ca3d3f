"""Feasibility: the rules that a layout must keep, asked by estimate, schedule, search and sliders.

Heads and widths must divide; only key-value heads may be fewer than the ranks, which then share
copies. Nothing is rounded. A rule is broken by one layout, or cell by cell where degrees or counts
are arrays: then where it is broken is a mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias, cast

from shardcost import options
from shardcost.arrays import largest, smallest
from shardcost.checks import anywhere, is_array
from shardcost.cluster import Cluster
from shardcost.errors import InfeasibleError, Reason, Rule
from shardcost.layout import VIRTUAL_STAGES_NEED_PP, Layout
from shardcost.memory.parameters import expert_tensor_degree
from shardcost.memory.stages import is_stated
from shardcost.model import (
    Attention,
    Block,
    Experts,
    FeedForward,
    LatentAttention,
    LinearAttention,
    Model,
    StateSpace,
)
from shardcost.option import Option
from shardcost.program.partitions import grid_of
from shardcost.program.setting import micro_batches, sequences_per_pass
from shardcost.workload import Decode, Prefill, Train, Workload

Broken: TypeAlias = tuple[Rule, tuple[Any, ...], Any]
"""A rule, the values that its message states, and where it is broken: True, False or a mask."""

LAYER_PLACES: Final = (0, 1, 2, 3)
"""Virtual stages share the layers evenly, where embedding, head and a module that predicts further
tokens (DeepSeek-V3's, 61 layers on 16 or 32 virtual stages) may each take the place of a layer."""

OF_EXPERTS: Final = tuple(
    options.ESTIMATE[name]
    for name in (
        "ep", "etp", "redundant_experts", "routing", "dispatch", "expert_overlap", "imbalance",
    )
)  # fmt: skip
"""Fields of a layout that mean nothing to a model without experts."""
_OF_TRAINING: Final = tuple(each for each in options.LAYOUT if each.applies_to == ("train",))
"""Fields of a layout that mean nothing in serving."""
WITHOUT_EXPERTS: Final = Rule("model_without_experts", "{} is for experts, which the model lacks")
NOT_TRAINED: Final = Rule("option_of_training", "{} is for training, which this is not")
STAGE_LAYERS: Final = Rule(
    "stage_layers_beyond_model", "the first and last stage have more than {} layers"
)
NEEDS_NETWORK: Final = Rule("needs_network", "more than {} GPUs need a network")
HEADS: Final = Rule("heads_not_divisible_by_tp", "tp does not divide {} heads")
ULYSSES_HEADS: Final = Rule(
    "heads_not_divisible_by_tp_cp", "tp x cp does not divide {} heads (ulysses)"
)
KV_HEADS: Final = Rule(
    "kv_heads_uneven_over_tp", "tp and {} key-value heads do not divide each other"
)
KEY_HEADS: Final = Rule("key_heads_not_divisible_by_tp", "tp does not divide {} key heads")
INNER_SIZE: Final = Rule("inner_size_not_divisible_by_tp", "tp does not divide the inner size {}")
WIDTH: Final = Rule("width_not_divisible_by_tp", "tp does not divide the feed-forward width {}")
EXPERTS: Final = Rule(
    "experts_not_divisible_by_ep", "ep does not divide {} experts with redundant ones"
)
EXPERT_WIDTH: Final = Rule(
    "expert_width_not_divisible", "the expert-tensor split does not divide the expert width {}"
)
TOO_MANY_STAGES: Final = Rule(
    "more_stages_than_layers", "pp x virtual stages exceeds {} layers with embedding and head"
)
UNEVEN_STAGES: Final = Rule(
    "layers_not_divisible_by_virtual_stages", "pp x virtual stages does not divide {} layers"
)
BATCH: Final = Rule("batch_not_divisible_by_dp", "dp does not divide the batch of {}")
BATCHES: Final = Rule(BATCH.code, "dp does not divide the batch")
MICRO_BATCHES: Final = Rule(
    "batch_not_divisible_by_micro_batch", "dp x micro-batch does not divide the batch of {}"
)
CONTEXT: Final = Rule("cp_exceeds_context", "cp exceeds the tokens of context")
SEQUENCE: Final = Rule(
    "sequence_not_divisible_by_cp", "cp does not divide the sequence of {} tokens"
)
SEQUENCE_PARALLEL: Final = Rule(
    "sequence_not_divisible_by_cp_tp",
    "cp x tp does not divide the sequence of {} tokens (sequence parallelism)",
)
INTERLEAVED: Final = Rule(
    "micro_batches_not_divisible_by_pp", "interleaving needs micro-batches in multiples of pp"
)
ONE_VIRTUAL_STAGE: Final = Rule(
    "schedule_without_virtual_stages", "schedule {} has one virtual stage per rank"
)
EXPERT_OVERLAP: Final = Rule(
    "expert_overlap_of_another_phase", "expert overlap {} is for {}, which this is not"
)
SQUARE: Final = Rule("tp_not_a_square", "tp is not a square")
BOX: Final = Rule("tp_not_a_box", "tp is not q x q x r with q and r above 1")
CUBE: Final = Rule("tp_not_a_cube", "tp is not a cube")
ONLY_1D: Final = Rule("only_split_by_1d", "{} is split by 1d alone")
GRID_SEQUENCES: Final = Rule(
    "sequences_not_divisible_by_rows", "the grid's rows do not divide the sequences of a pass"
)
GRID_HIDDEN: Final = Rule(
    "hidden_size_not_divisible_by_grid", "the grid does not divide the hidden size {}"
)
GRID_WIDTH: Final = Rule(
    "width_not_divisible_by_grid", "the grid does not divide the feed-forward width {}"
)
GRID_HEADS: Final = Rule(
    "heads_not_divisible_by_columns", "the grid's columns do not divide {} heads"
)
GRID_KV_HEADS: Final = Rule(
    "kv_heads_uneven_over_columns",
    "the grid's columns and {} key-value heads do not divide each other",
)


def reasons(
    model: Model, layout: Layout, workload: Workload, cluster: Cluster | None = None
) -> dict[Reason, Any]:
    """Return, for each reason why layouts are infeasible, where it holds: a mask, or one truth."""
    rules = broken_rules(model, layout, workload, cluster)
    return {rule.reason(*values): where for rule, values, where in rules}


def first_reason(
    model: Model, layout: Layout, workload: Workload, cluster: Cluster | None = None
) -> Reason | None:
    """Return the first reason why one layout is infeasible; of arrays, none that is a mask."""
    for rule, values, where in broken_rules(model, layout, workload, cluster):
        if where is not False and not is_array(where) and where:
            return rule.reason(*values)
    return None


def check_feasible(
    model: Model, layout: Layout, workload: Workload, cluster: Cluster | None = None
) -> None:
    """Raise `InfeasibleError` for the first reason why one layout is infeasible."""
    reason = first_reason(model, layout, workload, cluster)
    if reason is not None:
        raise InfeasibleError("layout", layout.short(), reason, model.name)


def broken_rules(
    model: Model, layout: Layout, workload: Workload, cluster: Cluster | None = None
) -> Iterator[Broken]:
    """Yield every rule that concerns a layout, in the order in which a search counts them."""
    if cluster is not None and cluster.network is None:
        gpus = cluster.tiers[-1].gpus
        yield NEEDS_NETWORK, (gpus,), layout.devices > gpus
    yield from layout.broken_rules()
    for block in model.blocks:
        if layout.scheme == "1d":
            for mixer in block.mixers:
                yield from _attention_rules(mixer, layout)
            yield from _feed_forward_rules(block.feed_forward, layout)
        else:
            sequences = sequences_per_pass(layout, workload)
            yield from scheme_rules(layout, block, model.hidden_size, sequences)
    parts, layers = layout.pp * layout.virtual_stages, model.num_layers
    yield TOO_MANY_STAGES, (layers,), parts > layers + 2
    if is_stated(layout):
        stated = (layout.first_stage_layers or 0) + (layout.last_stage_layers or 0)
        yield STAGE_LAYERS, (layers,), stated + 0 * layout.pp > layers
    yield from _workload_rules(layout, workload)
    if isinstance(workload, Train):
        runs = micro_batches(layout, workload)
        yield from schedule_rules(layout.schedule, layout.pp, runs, layout.virtual_stages)
        uneven = layout.virtual_stages > 1
        for places in LAYER_PLACES:
            uneven = uneven & ((layers + places) % parts != 0)
        yield UNEVEN_STAGES, (layers,), uneven


def without_effect(model: Model, layout: Layout, workload: Workload) -> list[Reason]:
    """Return what is set in one layout and changes nothing: it can be priced, but is a mistake.

    Commands and the page refuse it; an estimate in Python has a caveat.
    """
    rules: list[tuple[Rule, tuple[Option, ...]]] = []
    if not model.most_experts:
        rules.append((WITHOUT_EXPERTS, OF_EXPERTS))
    if not isinstance(workload, Train):
        rules.append((NOT_TRAINED, _OF_TRAINING))
    return [
        rule.reason(option.name)
        for rule, fields in rules
        for option in fields
        if anywhere(getattr(layout, option.name) != option.default)
    ]


def _attention_rules(part: Any, layout: Layout) -> Iterator[Broken]:
    if isinstance(part, Attention | LatentAttention):
        yield HEADS, (part.heads,), part.heads % layout.tp != 0
        if layout.context_scheme == "ulysses":
            yield ULYSSES_HEADS, (part.heads,), part.heads % (layout.tp * layout.cp) != 0
        if isinstance(part, Attention):
            kv, tp = part.kv_heads, layout.tp
            yield KV_HEADS, (kv,), largest(kv, tp) % smallest(kv, tp) != 0
    elif isinstance(part, LinearAttention):
        yield KEY_HEADS, (part.key_heads,), part.key_heads % layout.tp != 0
    elif isinstance(part, StateSpace):
        yield INNER_SIZE, (part.inner_size,), part.inner_size % layout.tp != 0


def _feed_forward_rules(part: Any, layout: Layout) -> Iterator[Broken]:
    if isinstance(part, FeedForward):
        yield WIDTH, (part.width,), part.width % layout.tp != 0
    elif isinstance(part, Experts):
        held = part.count + layout.redundant_experts
        yield EXPERTS, (held,), held % layout.ep != 0
        width = part.expert.width
        yield EXPERT_WIDTH, (width,), width % expert_tensor_degree(layout) != 0


def _workload_rules(layout: Layout, workload: Workload) -> Iterator[Broken]:
    other, phases = (
        ("two_batch", "serving") if isinstance(workload, Train) else ("1f1b", "training")
    )
    yield EXPERT_OVERLAP, (other, phases), layout.expert_overlap == other
    if isinstance(workload, Train):
        batch, tokens = workload.global_batch, workload.sequence_length
        yield MICRO_BATCHES, (batch,), batch % (layout.dp * layout.micro_batch) != 0
    else:
        batch = cast("Prefill | Decode", workload).batch
        several = is_array(batch)  # a message states one batch, not a grid
        yield BATCHES if several else BATCH, () if several else (batch,), batch % layout.dp != 0
        if isinstance(workload, Decode):  # the cache is spread, not the new tokens
            yield CONTEXT, (), layout.cp > workload.context_tokens + workload.query_tokens
            return
        tokens = cast("Prefill", workload).prompt_tokens
    yield SEQUENCE, (tokens,), tokens % layout.cp != 0
    if layout.sequence_parallel:
        yield SEQUENCE_PARALLEL, (tokens,), tokens % (layout.cp * layout.tp) != 0


def schedule_rules(
    schedule: str, stages: Any, micro_batches: Any, virtual_stages: Any
) -> Iterator[Broken]:
    """Yield the rules of a pipeline schedule.

    Megatron's interleaved order walks through p micro-batches of one virtual stage before it turns
    to the next (Narayanan et al. 2021, arXiv:2104.04473, section 2.2).
    """
    if schedule == "interleaved":
        several = virtual_stages > 1
        yield VIRTUAL_STAGES_NEED_PP, (), several & (stages == 1)
        yield INTERLEAVED, (), several & (micro_batches % stages != 0)
    else:
        yield ONE_VIRTUAL_STAGE, (schedule,), virtual_stages != 1


def scheme_rules(layout: Layout, block: Block, hidden: Any, sequences: Any) -> Iterator[Broken]:
    """Yield the rules of a partition scheme other than 1d, for layers of one kind.

    `sequences` are those that a tensor group works on in one pass; tp may be an array.
    """
    grid = grid_of(layout)
    tp, q = layout.tp, grid.side
    if layout.scheme == "2d":
        yield SQUARE, (), q * q != tp
    elif layout.scheme == "2.5d":
        yield BOX, (), (q == 1) & (tp > 1)
    elif layout.scheme == "3d":
        yield CUBE, (), q**3 != tp
    for part in (*block.mixers, block.feed_forward):
        if part is not None and not isinstance(part, Attention | FeedForward):
            yield ONLY_1D, (part.kind,), True
    yield GRID_SEQUENCES, (), sequences % grid.rows != 0
    if layout.scheme == "weight_gathered":
        return
    # A cube splits each matrix into q x q² blocks.
    finest = grid.side**2 if layout.scheme == "3d" else grid.side
    yield GRID_HIDDEN, (hidden,), hidden % finest != 0
    if isinstance(block.feed_forward, FeedForward):
        width = block.feed_forward.width
        yield GRID_WIDTH, (width,), width % finest != 0
    if isinstance(block.attention, Attention):
        heads, kv, columns = block.attention.heads, block.attention.kv_heads, grid.columns
        yield GRID_HEADS, (heads,), heads % columns != 0
        yield GRID_KV_HEADS, (kv,), largest(kv, columns) % smallest(kv, columns) != 0

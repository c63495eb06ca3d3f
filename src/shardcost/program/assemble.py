"""The program of a layout: `program_of`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import mul
from typing import Any, Final, TypeAlias

from shardcost.arrays import largest, smallest
from shardcost.catalog import tuner_table
from shardcost.checks import is_array
from shardcost.dtypes import activation_bytes
from shardcost.layout import Layout
from shardcost.memory.adapters import adapter_parameters
from shardcost.memory.parameters import (
    Parameters,
    embedding_parameters,
    end_parameters,
    head_parameters,
    layer_parameters,
    prediction_parameters,
)
from shardcost.memory.policy import policy_with
from shardcost.memory.saved import saved_by_layer
from shardcost.memory.saved import setting_of as saved_setting
from shardcost.memory.stages import stage_by_cost, stage_evenly
from shardcost.model import Block, Model
from shardcost.program.edges import embedding, head
from shardcost.program.feasibility import check_feasible
from shardcost.program.layer import layer
from shardcost.program.operations import (
    Collective,
    Elementwise,
    Gemm,
    Operations,
    Passes,
    together,
)
from shardcost.program.partitions import layer_otherwise, weight_copies
from shardcost.program.prediction import predicted_further
from shardcost.program.setting import Setting, micro_batches, setting_of
from shardcost.program.step import (
    NO_GATHERS,
    LayerWeights,
    Step,
    gradient_bytes,
    layer_weights,
    step,
)
from shardcost.records import NamedTuple, dataclass
from shardcost.software import Software
from shardcost.workload import Train, Workload


class Layers(NamedTuple):
    """Layers of one kind."""

    count: Any
    """In the whole model."""
    weights: Parameters
    """Of one layer, on one rank."""
    passes: Passes
    gathers: LayerWeights


Pieces: TypeAlias = tuple[tuple[Layers, ...], Passes, Passes]
"""Each kind of layer, the embedding and the head."""
_END_TENSORS: Final = 3
"""The embedding, the last norm and the head."""
_MOST_KEPT: Final = 512
"""Layouts whose pieces are kept before all are dropped: Python's garbage collector walks through
whatever is kept, and more of it would cost more time than it saves."""


class StageShare(NamedTuple):
    """What a rank of one pipeline stage holds."""

    layers: Any
    weights: Parameters
    ends: Any
    """The weights among these that are of no layer: the embedding, the head."""


class Stages(NamedTuple):
    """The three kinds of pipeline stages. With one stage, the first is all."""

    first: StageShare
    middle: StageShare
    last: StageShare

    @property
    def most_layers(self) -> Any:
        """Layers of the stage that has most of them."""
        return largest(self.first.layers, self.middle.layers, self.last.layers)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """What one rank does in a step."""

    setting: Setting
    layers: tuple[Layers, ...]
    first: Passes
    """Before the layers: the embedding, on the first stage."""
    last: Passes
    """After the layers: norm, head and loss, on the last stage."""
    micro_batches: Any
    send_bytes: Any
    """What one stage sends the next for each micro-batch, in each direction."""
    stages: Stages
    step: Step | None
    """Once a step; None where nothing is trained."""

    @property
    def num_layers(self) -> Any:
        """Layers of the whole model."""
        return self.setting.num_layers

    @property
    def usual_layers(self) -> Layers:
        """The kind of layer that the model has most of."""
        return max(self.layers, key=lambda kind: float(kind.count))


def program_of(
    model: Model,
    layout: Layout,
    workload: Workload,
    software: Software,
    known: Sequence[Layers] | None = None,
) -> Program:
    """Return what one rank does. Degrees and counts may be arrays that broadcast.

    Args:
        model: What is run.
        layout: How it is divided.
        workload: What is computed.
        software: What runs it.
        known: The layers, where only what happens once a step and between stages is asked for: they
            are taken over but for their gathers, and the embedding and the head do nothing.
    """
    if layout.zero == 1 and software.dp_overlap and not software.zero_overlap:
        software = software.variant(dp_overlap=False)  # overlaps nothing with sharded optimizers
    if layout.dispatch != "auto":
        software = software.variant(dispatch=layout.dispatch)
    if layout.expert_overlap != "auto":
        software = software.variant(expert_overlap=layout.expert_overlap)
    s = setting_of(model, layout, workload, software)
    check_feasible(model, layout, workload)
    if known is not None:
        layers = tuple(
            each._replace(gathers=_gathers(model, layout, workload, each.weights)) for each in known
        )
        first = last = Passes(())
    elif layout.has_arrays or workload.has_arrays:
        layers, first, last = _pieces(s, model, workload)
    else:
        layers, first, last = _kept_pieces(s, model, workload)
    stages = stages_of(model, s, layers)
    in_step = None
    if isinstance(workload, Train):
        most = Parameters(*map(largest, *(stage.weights for stage in stages)))
        ends = largest(*(stage.ends for stage in stages))
        if workload.adapters:
            own = adapter_parameters(model, layout, workload)
            most = Parameters(stages.most_layers * own, 0)
        copied = _tensors(model, stages, layers) if software.gathers_into_lists else 0
        in_step = step(layout, workload, most, ends, copied, software)
    # A rank sends the next stage its part of the tensor group's activations.
    spread = software.scatters_sends or layout.sequence_parallel
    return Program(
        setting=s,
        layers=layers,
        first=first,
        last=last,
        micro_batches=micro_batches(layout, workload),
        send_bytes=s.hidden_bytes / layout.tp if spread else s.hidden_bytes,
        stages=stages,
        step=in_step,
    )


def _tensors(model: Model, stages: Stages, layers: tuple[Layers, ...]) -> Any:
    """Return of how many tensors the weights of the fullest stage are, the tables at its ends too.

    One for each matrix and each norm.
    """
    of_each = [
        block.norms + sum(op.count for op in kind.passes.forward if type(op) is Gemm and op.weights)
        for block, kind in zip(model.blocks, layers, strict=True)
    ]
    counts = [block.count for block in model.blocks]
    in_layers = sum(map(mul, counts, of_each)) / model.num_layers
    return stages.most_layers * in_layers + _END_TENSORS


def _kept_pieces(s: Setting, model: Model, workload: Workload) -> Pieces:
    """Return what `_pieces` does for plain numbers; kept with the model.

    Estimates one by one often differ in their pipeline alone, and building layers is a quarter of
    their time.
    """
    kept: dict[Any, Pieces] = model.memo.setdefault("pieces", {})
    key = (s.layout.of_a_layer, workload.of_a_pass, s.software)
    pieces = kept.get(key)
    if pieces is None:
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        pieces = kept[key] = _pieces(s, model, workload)
    return pieces


def _pieces(s: Setting, model: Model, workload: Workload) -> Pieces:
    """Return what a rank does in each kind of layer, the embedding and the head."""
    layout = s.layout
    two_batches = s.software.expert_overlap == "two_batch" and not s.training
    if two_batches:  # every kernel runs once for each half of the batch
        s = replace(s, sequences=s.sequences / 2)
    table = embedding_parameters(model, layout)
    # A tied head adds to the gradients of the embedding.
    own = table if model.tied_embeddings else head_parameters(model, layout)
    layers = tuple(_layers(s, model, block, workload) for block in model.blocks)
    first = _summed(s, workload, embedding(s), table, looked_up=True)
    further = predicted_further(s, model, workload)
    if further.forward:
        trained = workload.mtp_layers if isinstance(workload, Train) else 0
        own = own + prediction_parameters(model, layout, trained).total
    last = _summed(s, workload, together(head(s, model), further), own)
    if not two_batches:
        return layers, first, last
    twice = tuple(each._replace(passes=_twice(each.passes)) for each in layers)
    return twice, _twice(first), _twice(last)


def _twice(passes: Passes) -> Passes:
    return Passes(tuple(op._replace(count=2 * op.count) for op in passes.forward))


def stages_of(model: Model, s: Setting, layers: tuple[Layers, ...]) -> Stages:
    """Return what each kind of stage holds: layers, and the tables at both ends."""
    layout, balance = s.layout, s.software.balance
    if layout.has_arrays:
        return _stages(model, layout, balance, layers)
    key = ("stages", model, balance)  # whatever the workload
    if key not in layout.memo:
        layout.memo[key] = _stages(model, layout, balance, layers)
    stages: Stages = layout.memo[key]
    return stages


def _stages(model: Model, layout: Layout, balance: str, layers: tuple[Layers, ...]) -> Stages:
    split = stage_by_cost if balance == "cost" else stage_evenly
    dense, experts = (
        sum(each.count * each.weights[kind] for each in layers) / model.num_layers
        for kind in range(2)
    )

    def share(index: Any) -> StageShare:
        stage = split(model, layout, index)
        ends = end_parameters(model, layout, stage)
        weights = Parameters(stage.layers * dense + ends, stage.layers * experts)
        return StageShare(stage.layers, weights, ends)

    pp = layout.pp
    first = share(0 * pp)
    last = first if isinstance(pp, int) and pp == 1 else share(pp - 1)
    middle = last if isinstance(pp, int) and pp <= 2 else share(smallest(1, pp - 1))
    return Stages(first, middle, last)


def _layers(s: Setting, model: Model, block: Block, workload: Workload) -> Layers:
    layout = s.layout
    dense, experts = layer_parameters(model, block, layout)
    weights = Parameters(dense * weight_copies(layout), experts)
    passes = layer(s, block) if layout.scheme == "1d" else layer_otherwise(s, block)
    if not isinstance(workload, Train):
        return Layers(block.count, weights, passes, NO_GATHERS)
    passes = _with_copies(s, model, block, workload, passes)
    summed = _summed(s, workload, passes, weights.total)
    return Layers(block.count, weights, summed, _gathers(model, layout, workload, weights))


def _gathers(model: Model, layout: Layout, workload: Workload, weights: Parameters) -> LayerWeights:
    """Return the gathers of one layer's weights, adapters included, where ZeRO shards them."""
    if not isinstance(workload, Train):
        return NO_GATHERS
    if not workload.adapters:
        return layer_weights(layout, workload, weights, weights)
    trained = adapter_parameters(model, layout, workload)
    held = weights._replace(dense=weights.dense + trained)
    return layer_weights(layout, workload, held, Parameters(trained, 0))


def _with_copies(s: Setting, model: Model, block: Block, workload: Train, passes: Passes) -> Passes:
    """Return passes in which kept activations go to the host's memory, and come back."""
    layout = s.layout
    if is_array(layout.offload_activations) or layout.offload_activations:
        policy = policy_with(vars(s.software), s.software.memory)
        counts = saved_setting(model, layout, s.dtype, s.context_tokens, policy, workload)
        size = saved_by_layer(counts, block).kept(layout) * s.tokens * layout.offload_activations
        copy = Collective("offload activations", "host_copy", size, "offload", 1)
        back = copy._replace(name="reload activations")
        return passes._replace(forward=(*passes.forward, copy), backward=(*passes.backward, back))
    return passes


def _summed(
    s: Setting, workload: Workload, passes: Passes, weights: Any, *, looked_up: bool = False
) -> Passes:
    """Return passes that end in adding the gradients of so many weights to their sum.

    That moves bytes beyond those of the gradient, which is written once in the activations' format.
    Fused, the GEMM reads and writes the sum instead (`_exposed`). Gradients of rows that are looked
    up come from no GEMM: they are written to a table of zeros, which a kernel of its own adds.
    """
    if not isinstance(workload, Train) or workload.adapters:
        return passes
    own, each_bytes = s.software.gradient_sum_bytes, gradient_bytes(workload)
    made = activation_bytes(workload.dtype)
    if own is not None:
        moved, kernels = weights * own * each_bytes / 4, 4
    elif looked_up:
        moved, kernels = weights * (2 * made + 2 * each_bytes), 2
    else:
        beyond = largest(2 * each_bytes - made, 0)
        moved, kernels = weights * beyond * _exposed(passes.weight), 0
    addition = Elementwise("gradient accumulation", moved, kernels)
    return passes._replace(weight=(*passes.weight, addition))


def _exposed(gradients: Operations) -> Any:
    """Return what GEMMs wait for the sums that they add to, as a share of the sums' traffic."""
    rule = tuner_table("gemm")["accumulation"]
    shares, sizes = 0.0, 0.0
    for op in gradients:
        if isinstance(op, Gemm) and op.weights:
            size = op.m * op.n * op.batch
            shares, sizes = shares + size * exposed_share(rule, op.k), sizes + size
    return shares / sizes


def exposed_share(rule: Mapping[str, float], tokens: Any) -> Any:
    """Return the share of a sum's traffic that a weight gradient's GEMM over some tokens waits for.

    A tile reads and writes its part of the sum after its last step. Tiles of a wave end together
    and wait for the memory together; the more steps a tile takes, which are its tokens, the farther
    they drift apart, and the more of the traffic hides behind the steps of other tiles.
    """
    return smallest(rule["least"] + rule["tokens"] / tokens, rule["most"])

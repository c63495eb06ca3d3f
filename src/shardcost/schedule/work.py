"""Priced work: what one training step has to do, in seconds, before any of it is laid out in time.

All quantities are plain numbers or NumPy arrays that broadcast. A pipeline has three kinds of
stages, because embedding and head sit on the outer two: ``first``, ``middle`` (of which there may
be none) and ``last``. A single stage (``stages = 1``) has the layers of ``first`` and the extra
work of both ``first`` and ``last``.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal, TypeAlias

from shardcost.checks import is_array
from shardcost.errors import InfeasibleError, UnknownNameError
from shardcost.program.feasibility import schedule_rules
from shardcost.records import dataclass

Seconds: TypeAlias = Any
"""A number of seconds, or an array of them."""

ScheduleName: TypeAlias = Literal["1f1b", "interleaved", "zero_bubble"]
SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "interleaved", "zero_bubble")


@dataclass(frozen=True, slots=True)
class Stage:
    """Compute of one pipeline stage for one micro-batch, all its virtual stages together.

    The layers divide evenly among the virtual stages. The extra work does not: the embedding runs
    with the first chunk of the first stage, the head with the last chunk of the last stage.
    """

    forward_s: Seconds
    backward_input_s: Seconds
    """Gradient of the activations, with whatever is recomputed for it."""
    backward_weight_s: Seconds = 0.0
    extra_forward_s: Seconds = 0.0
    extra_backward_input_s: Seconds = 0.0
    extra_backward_weight_s: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Sends:
    """Transfers between neighbouring stages, one per micro-batch and chunk in each direction.

    Asynchronous sends run on a stream of their own and delay only who waits for them. Blocking
    ones occupy the sender, which computes nothing meanwhile.
    """

    seconds: Seconds = 0.0
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Communication of a data-parallel replica, once per step and stage, cut into equal buckets.

    Gradients are reduced bucket by bucket as the last micro-batch's backward produces them; under
    a sharded optimizer the new weights are gathered, bucket by bucket, as the first micro-batch's
    forward needs them (Rajbhandari et al., ZeRO, 2020, arXiv:1910.02054).
    """

    reduce_s: Seconds = 0.0
    """All buckets of all virtual stages of a stage together."""
    gather_s: Seconds = 0.0
    """The same for the weights; 0 where every replica holds all of them."""
    buckets: Any = 1
    """How many per model chunk."""


@dataclass(frozen=True, slots=True)
class LayerGathers:
    """Weights gathered layer by layer in every forward and backward: ZeRO-3, fully sharded.

    The gather of a layer runs behind the compute of the one before it.
    """

    seconds: Seconds = 0.0
    """One layer's gather, forward."""
    backward_seconds: Seconds = 0.0
    """One layer's gather and the scatter of its gradients, backward."""
    layers: Any = 1
    """Layers per model chunk."""
    lost_share: Any = 0.0
    """Of its rate, what compute loses while a gather runs beside it."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """One training step of a pipeline of `stages`, each with `virtual_stages` virtual stages."""

    first: Stage
    middle: Stage
    last: Stage
    stages: Any = 1
    micro_batches: Any = 1
    virtual_stages: Any = 1
    sends: Sends = field(default_factory=Sends)
    data_parallel: DataParallel = field(default_factory=DataParallel)
    layer_gathers: LayerGathers = field(default_factory=LayerGathers)
    optimizer_s: Seconds = 0.0
    overhead_s: Seconds = 0.0
    """What every step pays once, whatever its work: host, logging, the optimizer's scalars."""

    @classmethod
    def even(cls, stage: Stage, **rest: Any) -> StepWork:
        """Return the work of a pipeline whose stages are all alike."""
        return cls(first=stage, middle=stage, last=stage, **rest)


def check(schedule: str, work: StepWork) -> None:
    """Raise if one step asked for by itself cannot run; arrays are masked instead."""
    if schedule not in SCHEDULES:
        raise UnknownNameError("schedule", schedule, SCHEDULES)
    shape = (work.stages, work.micro_batches, work.virtual_stages)
    for rule, values, where in schedule_rules(schedule, *shape):
        if not is_array(where) and where:
            name = "(stages, micro_batches, virtual_stages)"
            raise InfeasibleError(name, shape, rule.reason(*values))

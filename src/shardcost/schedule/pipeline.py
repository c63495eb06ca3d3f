"""What the closed forms of a pipeline start from: the seconds of its operations.

Each stage works through a fixed order of operations, and an operation waits for its stage and for
its neighbour. The time of the whole is the longest chain of operations and sends that follow each
other. The forms below write down the few chains that can be the longest when the inner stages are
alike, and take the maximum; a chain that is left out can only make the result too small.

Everything takes numbers or arrays that broadcast.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from shardcost.schedule.overlap import layered
from shardcost.schedule.work import Seconds, Stage, StepWork, chosen


class Chunk(NamedTuple):
    """Seconds of one model chunk of a stage, and of the embedding or head beside one of them."""

    forward: Seconds
    backward: Seconds
    weight: Seconds
    """Weight gradients where they run apart from the backward, else 0."""
    extra_forward: Seconds
    extra_backward: Seconds
    extra_weight: Seconds

    @property
    def whole_forward(self) -> Seconds:
        """The forward with its extra work; likewise the next two."""
        return self.forward + self.extra_forward

    @property
    def whole_backward(self) -> Seconds:
        """See `whole_forward`."""
        return self.backward + self.extra_backward

    @property
    def whole_weight(self) -> Seconds:
        """See `whole_forward`."""
        return self.weight + self.extra_weight


class Pipeline(NamedTuple):
    """What the forms need: stages, micro-batches, chunks, one send, and the times of a chunk.

    A single stage is the last one; stages that do not exist take no time.
    """

    stages: Any
    micro_batches: Any
    chunks: Any
    send: Seconds
    first: Chunk
    middle: Chunk
    last: Chunk


def pipeline_of(
    work: StepWork, schedule: str, *, sends: bool = True, gathers: bool = True
) -> Pipeline:
    """Return the pipeline of a step, with or without its sends and its layers' gathers."""
    p = work.stages
    send = chosen(p > 1, work.sends.seconds, 0.0) if sends else 0.0
    blocked, latency = (send, 0.0) if work.sends.blocking else (0.0, send)

    def chunk(stage: Stage, **change: Seconds) -> Chunk:
        made = _chunk(stage, work.chunks, split=schedule == "zero_bubble")
        made = _with_gathers(made, work) if gathers else made
        return made._replace(
            forward=made.forward + blocked,
            backward=made.backward + blocked,
            extra_forward=made.extra_forward + change.get("forward", 0.0),
            extra_backward=made.extra_backward + change.get("backward", 0.0),
        )

    # The end of the model sends nothing on, and neither does the end of its backward.
    first, last = chunk(work.first, backward=-blocked), chunk(work.last, forward=-blocked)
    middle = chunk(work.middle)
    if type(p) is int and p > 2:
        return Pipeline(p, work.micro_batches, work.chunks, latency, first, middle, last)
    alone = chunk(_alone(work))
    return Pipeline(
        p,
        work.micro_batches,
        work.chunks,
        latency,
        Chunk(*(chosen(p > 1, seconds, 0.0) for seconds in first)),
        Chunk(*(chosen(p > 2, seconds, 0.0) for seconds in middle)),
        Chunk(*(chosen(p > 1, *pair) for pair in zip(last, alone, strict=True))),
    )


def _alone(work: StepWork) -> Stage:
    """Return the only stage of a pipeline of one: with embedding and head."""
    first, last = work.first, work.last
    return replace(
        first,
        extra_forward_s=first.extra_forward_s + last.extra_forward_s,
        extra_backward_input_s=first.extra_backward_input_s + last.extra_backward_input_s,
        extra_backward_weight_s=first.extra_backward_weight_s + last.extra_backward_weight_s,
    )


def _chunk(stage: Stage, chunks: Any, *, split: bool) -> Chunk:
    """Return the times of one chunk of a stage."""
    backward, extra = stage.backward_input_s, stage.extra_backward_input_s
    weight, extra_weight = stage.backward_weight_s, stage.extra_backward_weight_s
    if not split:
        backward, extra = backward + weight, extra + extra_weight
        weight = extra_weight = 0.0
    return Chunk(
        stage.forward_s / chunks,
        backward / chunks,
        weight / chunks,
        stage.extra_forward_s,
        extra,
        extra_weight,
    )


def _with_gathers(chunk: Chunk, work: StepWork) -> Chunk:
    """Return a chunk whose layers wait for their weights."""
    gather_s, layers = work.layer_gathers.seconds, work.layer_gathers.layers
    if type(gather_s) is float and not gather_s:
        return chunk

    def waiting(seconds: Seconds) -> Seconds:
        return chosen(gather_s > 0, layered(gather_s, seconds / layers, layers), seconds)

    forward, backward = waiting(chunk.forward), waiting(chunk.backward)
    return chunk._replace(
        forward=forward,
        backward=backward,
        extra_forward=waiting(chunk.forward + chunk.extra_forward) - forward,
        extra_backward=waiting(chunk.backward + chunk.extra_backward) - backward,
    )


def groups(count: Any, size: Any) -> Any:
    """Return how many groups of `size` hold `count`.

    >>> groups(7, 3)
    3
    """
    return -(-count // size)

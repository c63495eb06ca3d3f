"""What the closed forms of a pipeline start from: the seconds of its operations.

Each stage works through a fixed order of operations, and an operation waits for its stage and for
its neighbour. The time of the whole is the longest chain of operations and sends that follow each
other. The forms (`one_f_one_b`, `interleaved`, `zero_bubble`) write down the few chains that can be
the longest when the inner stages are alike, and take the maximum. With outer stages that have all
the layers of an inner one, and embedding or head on top, nearly no chain is left out; with fewer
layers there, some that are longer by up to a few percent are.

Everything takes numbers or arrays that broadcast.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shardcost.arrays import choose
from shardcost.records import NamedTuple
from shardcost.schedule.overlap import layered
from shardcost.schedule.work import LayerGathers, Seconds, Sends, Stage, StepWork


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
    """What the forms need: stages, micro-batches, virtual stages, one send, the times of each.

    A single stage is the last one; stages that do not exist take no time.
    """

    stages: Any
    micro_batches: Any
    virtual_stages: Any
    send: Seconds
    first: Chunk
    middle: Chunk
    last: Chunk


def pipeline_of(work: StepWork, schedule: str) -> Pipeline:
    """Return the pipeline of a step with nothing but its compute."""
    p, split = work.stages, schedule == "zero_bubble"
    first = _chunk(work.first, work.virtual_stages, split=split)
    middle = _chunk(work.middle, work.virtual_stages, split=split)
    last = _chunk(work.last, work.virtual_stages, split=split)
    if type(p) is not int or p < 3:
        alone = _chunk(_alone(work), work.virtual_stages, split=split)
        last = Chunk(*(choose(p > 1, *pair) for pair in zip(last, alone, strict=True)))
        first = Chunk(*(choose(p > 1, seconds, 0.0) for seconds in first))
        middle = Chunk(*(choose(p > 2, seconds, 0.0) for seconds in middle))
    return Pipeline(p, work.micro_batches, work.virtual_stages, 0.0, first, middle, last)


def with_gathers(pipe: Pipeline, gathers: LayerGathers) -> Pipeline:
    """Return a pipeline whose layers wait for their weights."""
    return pipe._replace(
        first=_gathered(pipe.first, gathers),
        middle=_gathered(pipe.middle, gathers),
        last=_gathered(pipe.last, gathers),
    )


def with_sends(pipe: Pipeline, sends: Sends) -> Pipeline:
    """Return a pipeline with sends: as latency between stages, or as work of the sender."""
    send = choose(pipe.stages > 1, sends.seconds, 0.0)
    if not sends.blocking:
        return pipe._replace(send=send)
    # The end of the model sends nothing on, and neither does the end of its backward.
    first, last = _sending(pipe.first, send), _sending(pipe.last, send)
    return pipe._replace(
        first=first._replace(extra_backward=first.extra_backward - send),
        middle=_sending(pipe.middle, choose(pipe.stages > 2, send, 0.0)),
        last=last._replace(extra_forward=last.extra_forward - send),
    )


def _sending(chunk: Chunk, send: Seconds) -> Chunk:
    return chunk._replace(forward=chunk.forward + send, backward=chunk.backward + send)


def _alone(work: StepWork) -> Stage:
    """Return the only stage of a pipeline of one: with embedding and head."""
    first, last = work.first, work.last
    return replace(
        first,
        extra_forward_s=first.extra_forward_s + last.extra_forward_s,
        extra_backward_input_s=first.extra_backward_input_s + last.extra_backward_input_s,
        extra_backward_weight_s=first.extra_backward_weight_s + last.extra_backward_weight_s,
    )


def _chunk(stage: Stage, virtual_stages: Any, *, split: bool) -> Chunk:
    """Return the times of one chunk of a stage."""
    backward, extra = stage.backward_input_s, stage.extra_backward_input_s
    weight, extra_weight = stage.backward_weight_s, stage.extra_backward_weight_s
    if not split:
        backward, extra = backward + weight, extra + extra_weight
        weight = extra_weight = 0.0
    return Chunk(
        stage.forward_s / virtual_stages,
        backward / virtual_stages,
        weight / virtual_stages,
        stage.extra_forward_s,
        extra,
        extra_weight,
    )


def _gathered(chunk: Chunk, gathers: LayerGathers) -> Chunk:
    """Return a chunk whose layers wait for their weights, if it has any."""
    layers, lost = gathers.layers, gathers.lost_share

    def waiting(seconds: Seconds, sent_s: Seconds) -> Seconds:
        gathering = (sent_s > 0) & (seconds > 0)
        return choose(gathering, layered(sent_s, seconds / layers, layers, lost), seconds)

    forward = waiting(chunk.forward, gathers.seconds)
    backward = waiting(chunk.backward, gathers.backward_seconds)
    return chunk._replace(
        forward=forward,
        backward=backward,
        extra_forward=waiting(chunk.whole_forward, gathers.seconds) - forward,
        extra_backward=waiting(chunk.whole_backward, gathers.backward_seconds) - backward,
    )


def groups(count: Any, size: Any) -> Any:
    """Return how many groups of `size` hold `count`.

    >>> groups(7, 3)
    3
    """
    if type(count) is int and type(size) is int:
        return -(-count // size)
    return np.ceil(count / size)  # exact for counts, and many times faster than integer division


def full_groups(count: Any, size: Any) -> Any:
    """Return how many full groups of `size` are in `count`.

    >>> full_groups(7, 3)
    2
    """
    if type(count) is int and type(size) is int:
        return count // size
    return np.floor(count / size)

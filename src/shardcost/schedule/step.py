"""One training step in closed form: pipeline, data parallelism and optimizer joined.

The parts of a `StepTime` add up to the step. They are told apart by taking things away: the
pipeline without any communication is the busiest stage's compute and the bubble; what gathers and
sends add to it is exposed.
"""

from __future__ import annotations

from typing import Any

from shardcost.arrays import choose, largest, smallest
from shardcost.checks import anywhere
from shardcost.records import NamedTuple
from shardcost.schedule.interleaved import Passes, interleaved, passes
from shardcost.schedule.one_f_one_b import one_forward_one_backward
from shardcost.schedule.overlap import before_forward, behind_backward
from shardcost.schedule.pipeline import Pipeline, pipeline_of, with_gathers, with_sends
from shardcost.schedule.work import DataParallel, Seconds, Stage, StepWork, check
from shardcost.schedule.zero_bubble import zero_bubble_ends


class StepTime(NamedTuple):
    """The time of a step and its parts, in seconds; the parts but `hidden_dp_s` add up to it."""

    step_s: Seconds
    compute_s: Seconds
    """All micro-batches on the stage with most to do."""
    bubble_s: Seconds
    """What that stage waits for others' compute."""
    exposed_send_s: Seconds
    exposed_dp_s: Seconds
    """Data parallelism that nothing hides: gradients, weights, and layers' gathers."""
    hidden_dp_s: Seconds
    optimizer_s: Seconds
    overhead_s: Seconds


def step_time(work: StepWork, schedule: str) -> StepTime:
    """Return the time of a training step under a schedule.

    >>> from shardcost.schedule.work import Stage
    >>> work = StepWork.even(Stage(1.0, 1.0, 1.0), stages=4, micro_batches=8)
    >>> step_time(work, "1f1b").step_s, step_time(work, "zero_bubble").step_s
    (33.0, 27.0)
    """
    check(schedule, work)
    pipe = pipeline_of(work, schedule)
    compute_s = work.micro_batches * _most_work(pipe)
    ends = stage_ends(pipe, schedule)
    bare_s = gathered_s = sent_s = largest(*ends)
    if _any(work.layer_gathers.seconds):
        pipe = with_gathers(pipe, work.layer_gathers)
        ends = stage_ends(pipe, schedule)
        gathered_s = sent_s = largest(*ends)
    if _any(work.sends.seconds):
        pipe = with_sends(pipe, work.sends)
        ends = stage_ends(pipe, schedule)
        sent_s = largest(*ends)
    late_s = _data_parallel_done(pipe, work.data_parallel, schedule, ends) - sent_s
    exposed_dp_s = late_s + (gathered_s - bare_s)
    return StepTime(
        step_s=sent_s + late_s + work.optimizer_s + work.overhead_s,
        compute_s=compute_s,
        bubble_s=bare_s - compute_s,
        exposed_send_s=sent_s - gathered_s,
        exposed_dp_s=exposed_dp_s,
        hidden_dp_s=largest(0.0, _data_parallel_s(work) - exposed_dp_s),
        optimizer_s=work.optimizer_s,
        overhead_s=work.overhead_s,
    )


def step_s(work: StepWork, schedule: str) -> Seconds:
    """Return `step_time`'s step alone, at less than half the work: what a search ranks by."""
    check(schedule, work)
    pipe = pipeline_of(work, schedule)
    if _any(work.layer_gathers.seconds):
        pipe = with_gathers(pipe, work.layer_gathers)
    if _any(work.sends.seconds):
        pipe = with_sends(pipe, work.sends)
    ends = stage_ends(pipe, schedule)
    done_s = _data_parallel_done(pipe, work.data_parallel, schedule, ends)
    return done_s + work.optimizer_s + work.overhead_s


def least_s(
    stages: tuple[Stage, Stage, Stage], number: Any, micro_batches: Any, schedule: str
) -> tuple[Seconds, Seconds]:
    """Return lower bounds of a step: a part that holds as it is, one per virtual stage of a rank.

    Each schedule's form is the longest of several chains of compute, sends and gathers. These are
    the chains that stay on the first, on a middle or on the last stage, without what communication
    adds to them.

    Args:
        stages: The compute of the first, the middle and the last stages.
        number: Of stages.
        micro_batches: Of a step.
        schedule: Its schedule.
    """
    work = StepWork(*stages, stages=number, micro_batches=micro_batches)
    pipe = pipeline_of(work, schedule)
    if schedule == "1f1b":
        return _least_1f1b(pipe), 0.0
    if schedule == "zero_bubble":
        return _least_zero_bubble(pipe), 0.0
    # The chain that stays on the last stage, and the way of one virtual stage there and back.
    first, middle, last = pipe.first, pipe.middle, pipe.last
    way_s = first.forward + first.backward + (number - 2) * (middle.forward + middle.backward)
    return micro_batches * (last.whole_forward + last.whole_backward), way_s


def _least_1f1b(pipe: Pipeline) -> Seconds:
    """Return the longest chain on one stage, and one way through all (see `one_f_one_b`)."""
    p, m, middle = pipe.stages, pipe.micro_batches, pipe.middle
    parts = (pipe.first, middle, pipe.last)
    first, inner, last = (chunk.whole_forward + chunk.whole_backward for chunk in parts)
    few = smallest(p, m)
    half = largest(pipe.first.whole_forward, pipe.first.whole_backward)
    on_inner = (m - 2) * inner + largest(middle.forward, middle.backward)
    on_stage = largest(
        (m - 1) * last,
        choose((p > 2) & (m > 1), on_inner, 0.0),
        choose(p > 1, (m - few) * first + (few - 1) * half, 0.0),
    )
    return first + (p - 2) * inner + last + on_stage


def _least_zero_bubble(pipe: Pipeline) -> Seconds:
    """Return the longest chain on one stage, and the way there and back (see `zero_bubble`)."""
    p, m, first, middle, last = *pipe[:2], pipe.first, pipe.middle, pipe.last
    few = smallest(p, m)
    down = first.whole_forward + (p - 2) * middle.forward + last.whole_forward
    up = first.whole_backward + (p - 2) * middle.backward + last.whole_backward
    turn = first.whole_forward + first.whole_backward + first.whole_weight
    on_first = (m - few) * turn + (few - 1) * (turn - first.whole_forward) + first.whole_weight
    on_middle = m * (middle.forward + middle.backward + middle.weight) - 2 * middle.forward
    on_last = m * (last.whole_forward + last.whole_backward + last.whole_weight)
    return largest(
        down - last.whole_forward + on_last,
        choose((p > 2) & (m > 1), down + last.whole_backward + on_middle, 0.0),
        choose(p > 1, down + up + on_first, 0.0),
    )


def stage_ends(pipe: Pipeline, schedule: str) -> tuple[Seconds, ...]:
    """Return when stages of a pipeline end: of those that may end last, one of each kind."""
    if schedule == "zero_bubble":
        return zero_bubble_ends(pipe)
    single = pipe.virtual_stages == 1
    if schedule == "1f1b" or single is True:
        return (one_forward_one_backward(pipe),)
    if not anywhere(single):
        return (interleaved(pipe),)
    return (choose(single, one_forward_one_backward(pipe), interleaved(pipe)),)


def _most_work(pipe: Pipeline) -> Seconds:
    """Return the compute of one micro-batch on the stage that has most of it."""
    return largest(
        *(
            pipe.virtual_stages * (chunk.forward + chunk.backward + chunk.weight)
            + (chunk.extra_forward + chunk.extra_backward + chunk.extra_weight)
            for chunk in (pipe.first, pipe.middle, pipe.last)
        )
    )


def _data_parallel_s(work: StepWork) -> Seconds:
    """Return what data parallelism takes on one stage, hidden or not."""
    parallel, gathers = work.data_parallel, work.layer_gathers
    layers = work.micro_batches * work.virtual_stages * gathers.layers
    sent_s = gathers.seconds + gathers.backward_seconds
    return parallel.reduce_s + parallel.gather_s + layers * sent_s


def _data_parallel_done(
    pipe: Pipeline, parallel: DataParallel, schedule: str, ends: tuple[Seconds, ...]
) -> Seconds:
    """Return when the pipeline has also waited for weights and reduced its gradients."""
    late_s = _gathered_late(pipe, parallel) if _any(parallel.gather_s) else 0.0
    if not _any(parallel.reduce_s):
        return largest(*ends) + late_s
    if schedule != "zero_bubble":
        return ends[0] + _reduced_late(pipe, parallel) + late_s
    bucket_s = parallel.reduce_s / parallel.buckets
    return late_s + largest(
        *(
            end + behind_backward(chunk.whole_weight, bucket_s, parallel.buckets).exposed_s
            for end, chunk in zip(ends, (pipe.first, pipe.middle, pipe.last), strict=True)
        )
    )


def _reduced_late(pipe: Pipeline, parallel: DataParallel) -> Seconds:
    """Return what is left to reduce when the first stage has done its last backward.

    Other stages are done before that, and have as much to reduce.
    """
    bucket_s = parallel.reduce_s / (pipe.virtual_stages * parallel.buckets)
    whole_s = choose(pipe.stages > 1, pipe.first.whole_backward, pipe.last.whole_backward)
    exposed_s = behind_backward(whole_s, bucket_s, parallel.buckets).exposed_s
    if type(pipe.virtual_stages) is int and pipe.virtual_stages == 1:
        return exposed_s
    behind_s = _queued(pipe, parallel, bucket_s, pipe.first.backward, passes(pipe).backward)
    return largest(exposed_s, behind_s)


def _gathered_late(pipe: Pipeline, parallel: DataParallel) -> Seconds:
    """Return for how long the first stage waits for weights; other stages need theirs later."""
    bucket_s = parallel.gather_s / (pipe.virtual_stages * parallel.buckets)
    whole_s = choose(pipe.stages > 1, pipe.first.whole_forward, pipe.last.whole_forward)
    exposed_s = before_forward(whole_s, bucket_s, parallel.buckets)
    if type(pipe.virtual_stages) is int and pipe.virtual_stages == 1:
        return exposed_s
    behind_s = _queued(pipe, parallel, bucket_s, pipe.first.forward, passes(pipe).forward)
    return largest(exposed_s, behind_s)


def _queued(
    pipe: Pipeline, parallel: DataParallel, bucket_s: Seconds, unit_s: Seconds, through: Passes
) -> Seconds:
    """Return the exposed time of buckets queued behind those of other virtual stages.

    Those of the next chunk are needed (or ready) one pass through the pipeline apart, and so on.
    """
    spread_s = unit_s * (parallel.buckets - 1) / parallel.buckets
    shown: list[Seconds] = []
    for away in (1, largest(pipe.virtual_stages - 1, 1)):
        before = away * parallel.buckets
        apart_s = through.outermost_s + (away - 1) * through.usual_s
        shown.append((before + 1) * bucket_s - apart_s)
        shown.append((before + parallel.buckets) * bucket_s - spread_s - apart_s)
    return choose(pipe.virtual_stages > 1, largest(*shown), 0.0)


def _any(seconds: Seconds) -> bool:
    """Return whether there is anything to do; an array always counts."""
    return not (isinstance(seconds, int | float) and seconds == 0)

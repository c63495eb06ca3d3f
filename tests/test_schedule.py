"""Schedules: closed forms agree with the event timeline, and that keeps its own books right."""

from __future__ import annotations

import random
import time
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import pytest

from shardcost.errors import InfeasibleError, UnknownNameError
from shardcost.program.feasibility import schedule_rules
from shardcost.schedule import overlap
from shardcost.schedule.lanes import order
from shardcost.schedule.step import StepTime, step_s, step_time
from shardcost.schedule.timeline import Timeline, timeline_of
from shardcost.schedule.work import (
    SCHEDULES,
    DataParallel,
    LayerGathers,
    Sends,
    Stage,
    StepWork,
)

EXACT = 1e-9


def stage(rng: random.Random, like: Stage | None = None) -> Stage:
    """Return a middle stage, or an outer one with up to 40 % of extra work."""
    if like is None:
        return Stage(rng.uniform(0.5, 1.5), rng.uniform(0.5, 3.0), rng.uniform(0.3, 1.5))
    share = rng.choice([0.0, rng.uniform(0.0, 0.4)])
    return replace(
        like,
        extra_forward_s=share * like.forward_s,
        extra_backward_input_s=share * like.backward_input_s,
        extra_backward_weight_s=share * like.backward_weight_s,
    )


def random_work(rng: random.Random, schedule: str, *, blocking: bool = False) -> StepWork:
    virtual_stages = rng.randint(1, 4) if schedule == "interleaved" else 1
    stages = rng.randint(2 if virtual_stages > 1 else 1, 16)
    micro_batches = stages * rng.randint(1, 6) if virtual_stages > 1 else rng.randint(1, 64)
    middle = stage(rng)
    backward_s = middle.backward_input_s + middle.backward_weight_s
    return StepWork(
        first=stage(rng, middle),
        middle=middle,
        last=stage(rng, middle),
        stages=stages,
        micro_batches=micro_batches,
        virtual_stages=virtual_stages,
        sends=Sends(rng.uniform(0.0, 0.2) * middle.forward_s, blocking),
        data_parallel=DataParallel(
            reduce_s=rng.uniform(0.0, 0.5) * backward_s,
            gather_s=rng.choice([0.0, rng.uniform(0.0, 0.5) * middle.forward_s]),
            buckets=rng.randint(1, 32),
        ),
        optimizer_s=rng.uniform(0.0, 0.5),
        overhead_s=rng.uniform(0.0, 0.1),
    )


def even(stages: int, micro_batches: int, virtual_stages: int = 1, **rest: Any) -> StepWork:
    return StepWork.even(
        Stage(1.0, 1.0, 1.0),
        stages=stages,
        micro_batches=micro_batches,
        virtual_stages=virtual_stages,
        **rest,
    )


# The closed form against the timeline.


@pytest.mark.parametrize(
    ("blocking", "works", "most", "near", "share"),
    [(False, 200, 0.005, EXACT, 0.97), (True, 100, 0.02, 0.005, 0.85)],
    ids=["sends behind", "blocking sends"],
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_closed_form_is_near_the_timeline(
    schedule: str, blocking: bool, works: int, most: float, near: float, share: float
) -> None:
    rng = random.Random(7 if blocking else 20240)
    errors = [
        abs(step_time(work, schedule).step_s / timeline_of(work, schedule).step_s - 1)
        for work in (random_work(rng, schedule, blocking=blocking) for _ in range(works))
    ]
    assert max(errors) < most
    assert np.mean(np.array(errors) < near) > share


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_outer_stages_with_fewer_layers_are_near(schedule: str) -> None:
    rng = random.Random(19)
    errors = []
    for _ in range(200):
        work = random_work(rng, schedule)
        work = replace(work, first=fewer(rng, work.first), last=fewer(rng, work.last))
        errors.append(step_time(work, schedule).step_s / timeline_of(work, schedule).step_s - 1)
    assert np.abs(errors).max() < 0.04
    assert np.mean(np.abs(errors) < 0.005) > 0.9


def fewer(rng: random.Random, outer: Stage) -> Stage:
    share = rng.uniform(0.6, 1.0)
    return replace(
        outer,
        forward_s=share * outer.forward_s,
        backward_input_s=share * outer.backward_input_s,
        backward_weight_s=share * outer.backward_weight_s,
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_layers_that_are_gathered_agree_too(schedule: str) -> None:
    rng = random.Random(11)
    for _ in range(60):
        work = random_work(rng, schedule)
        gathers = LayerGathers(
            rng.uniform(0.0, 0.3), rng.uniform(0.0, 0.5), rng.randint(1, 6), rng.choice((0.0, 0.2))
        )
        work = replace(work, layer_gathers=gathers)
        closed, exact = step_time(work, schedule), timeline_of(work, schedule)
        assert closed.step_s == pytest.approx(exact.step_s, rel=0.005)
        assert closed.exposed_dp_s > 0


@pytest.mark.parametrize("blocking", [False, True])
def test_1f1b_is_exact(blocking: bool) -> None:
    rng = random.Random(3)
    for _ in range(200):
        work = random_work(rng, "1f1b", blocking=blocking)
        exact = timeline_of(work, "1f1b").step_s
        assert step_time(work, "1f1b").step_s == pytest.approx(exact, rel=EXACT)


def test_equal_stages_take_what_the_papers_say() -> None:
    for p, m in [(1, 5), (2, 2), (4, 8), (8, 64), (16, 16)]:
        assert step_time(even(p, m), "1f1b").step_s == pytest.approx((m + p - 1) * 3)
        assert step_time(even(p, m), "zero_bubble").step_s == pytest.approx(m * 3 + (p - 1) * 1)
    for p, m, v in [(2, 4, 2), (4, 8, 3), (8, 64, 4)]:
        result = step_time(even(p, m, v), "interleaved")
        assert result.bubble_s / result.compute_s == pytest.approx((p - 1) / (v * m))


def test_1f1b_pays_for_asynchronous_sends() -> None:
    for p, m, send in [(4, 8, 0.1), (8, 33, 0.2), (2, 7, 0.05)]:
        result = step_time(even(p, m, sends=Sends(send)), "1f1b")
        loops = ceil((m - 1) / p)
        assert result.exposed_send_s == pytest.approx(2 * send * (m + p - 2 - loops))


def test_interleaving_hides_sends_but_for_one_way_through_the_model() -> None:
    result = step_time(even(4, 32, 4, sends=Sends(0.05)), "interleaved")
    assert result.exposed_send_s == pytest.approx(2 * (4 * 4 - 1) * 0.05)


def test_zero_bubble_hides_sends_behind_weight_gradients() -> None:
    hidden = step_time(even(4, 100, sends=Sends(0.1)), "zero_bubble").exposed_send_s
    shown = step_time(even(4, 100, sends=Sends(0.1)), "1f1b").exposed_send_s
    assert hidden < 0.1 * shown


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_parts_add_up(schedule: str) -> None:
    rng = random.Random(5)
    for _ in range(50):
        work = random_work(rng, schedule)
        result = step_time(work, schedule)
        assert step_s(work, schedule) == pytest.approx(result.step_s, rel=EXACT)
        parts = [getattr(result, name) for name in StepTime._fields[1:] if name != "hidden_dp_s"]
        assert sum(parts) == pytest.approx(result.step_s)
        assert min(result[1:]) >= -EXACT


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_arrays_give_what_numbers_give(schedule: str) -> None:
    rng = random.Random(13)
    works = [random_work(rng, schedule) for _ in range(60)]
    together = stacked([replace(work, sends=Sends(work.sends.seconds)) for work in works])
    result = step_time(together, schedule)
    for name, column in zip(StepTime._fields, result, strict=True):
        alone = [getattr(step_time(work, schedule), name) for work in works]
        np.testing.assert_allclose(np.broadcast_to(column, 60), alone, rtol=1e-9, atol=1e-9)


def test_axes_of_a_grid_broadcast() -> None:
    stages = np.array([1, 2, 4, 8])[:, None]
    micro_batches = np.array([1, 8, 64])[None, :]
    work = StepWork.even(Stage(1.0, 2.0), stages=stages, micro_batches=micro_batches)
    assert np.array_equal(step_time(work, "1f1b").step_s, 3.0 * (micro_batches + stages - 1))


def stacked(values: list[Any]) -> Any:
    """Return dataclasses as one whose numbers are arrays."""
    one = values[0]
    if is_dataclass(one):
        return replace(
            one,  # type: ignore[type-var]
            **{
                each.name: stacked([getattr(value, each.name) for value in values])
                for each in fields(one)
            },
        )
    return one if isinstance(one, bool) else np.array(values)


def test_more_work_takes_longer() -> None:
    rng = random.Random(17)
    for schedule in SCHEDULES:
        for _ in range(30):
            work = random_work(rng, schedule)
            before = step_time(work, schedule).step_s
            dearer = replace(work.middle, forward_s=1.1 * work.middle.forward_s)
            for change in (
                {"middle": dearer},
                {"sends": Sends(2 * work.sends.seconds)},
                {"micro_batches": work.micro_batches + work.stages},
                {"data_parallel": replace(work.data_parallel, reduce_s=5.0)},
            ):
                assert step_time(replace(work, **change), schedule).step_s >= before - EXACT


def test_numbers_are_quick() -> None:
    work = even(8, 64, sends=Sends(0.1), data_parallel=DataParallel(1.0, 0.5, 8))
    step_time(work, "1f1b")
    best = min(timed(work) for _ in range(30))
    assert best < 300e-6  # well above what it takes, for a busy machine


def timed(work: StepWork) -> float:
    start = time.process_time()
    for _ in range(20):
        step_time(work, "1f1b")
    return (time.process_time() - start) / 20


# What cannot run.


def test_rules_of_a_schedule_are_masks() -> None:
    shape = (np.array([4, 4, 1]), np.array([8, 6, 8]), np.array([2, 2, 2]))
    masks = {rule.code: mask.tolist() for rule, _, mask in schedule_rules("interleaved", *shape)}
    assert masks == {
        "virtual_stages_without_pp": [False, False, True],
        "micro_batches_not_divisible_by_pp": [False, True, False],
    }
    with pytest.raises(InfeasibleError, match="multiples of pp"):
        step_time(even(4, 6, 2), "interleaved")
    with pytest.raises(InfeasibleError, match="one virtual stage"):
        timeline_of(even(4, 8, 2), "zero_bubble")
    with pytest.raises(UnknownNameError, match="known: 1f1b"):
        step_time(even(4, 8), "gpipe")


# The timeline by itself.


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_order_does_everything_once(schedule: str) -> None:
    virtual_stages = 3 if schedule == "interleaved" else 1
    kinds = "FBW" if schedule == "zero_bubble" else "FB"
    for each in range(4):
        ops = order(schedule, each, 4, 8, virtual_stages)
        wanted = {(kind, c, m) for kind in kinds for c in range(virtual_stages) for m in range(8)}
        assert len(ops) == len(wanted)
        assert set(ops) == wanted


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("blocking", [False, True])
def test_streams_do_one_thing_at_a_time(schedule: str, blocking: bool) -> None:
    rng = random.Random(23)
    for _ in range(10):
        line = timeline_of(random_work(rng, schedule, blocking=blocking), schedule)
        for lane in line.lanes:
            sends, replicas = ([(s, e) for _, s, e in of] for of in (lane.sends, lane.reduces))
            computes = list(zip(lane.starts, lane.ends, strict=True))
            streams = [sorted(computes + sends)] if blocking else [computes, sends]
            for spans in (*streams, replicas, [(s, e) for _, s, e in lane.gathers]):
                assert all(end <= start + EXACT for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nothing_starts_before_what_it_needs(schedule: str) -> None:
    rng = random.Random(29)
    for _ in range(10):
        work = random_work(rng, schedule)
        check_dependencies(timeline_of(work, schedule), work)


def check_dependencies(line: Timeline, work: StepWork) -> None:
    spans = {
        (op[0], at, *op[1:]): span
        for at, lane in enumerate(line.lanes)
        for op, *span in zip(lane.ops, lane.starts, lane.ends, strict=True)
    }
    last = work.stages - 1
    for (kind, at, chunk, batch), (start, _) in spans.items():
        if kind == "F" and (at, chunk) != (0, 0):
            before = ("F", at - 1, chunk) if at else ("F", last, chunk - 1)
        elif kind == "B" and (at, chunk) == (last, work.virtual_stages - 1):
            before = ("F", at, chunk)
        elif kind == "B":
            before = ("B", at + 1, chunk) if at < last else ("B", 0, chunk + 1)
        elif kind == "W":
            before = ("B", at, chunk)
        else:
            continue
        latency = work.sends.seconds if before[1] != at else 0.0
        assert start >= spans[*before, batch][1] + latency - EXACT


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stage_computes_waits_or_communicates(schedule: str) -> None:
    rng = random.Random(31)
    for _ in range(20):
        work = random_work(rng, schedule, blocking=True)
        line = timeline_of(work, schedule)
        for each in range(work.stages):
            accounted = line.busy[each] + line.bubble_s(each) + line.exposed_comm_s(each)
            tail = line.reduced_s(each) - line.computed_s(each)
            assert accounted == pytest.approx(line.pipeline_s + tail)


def test_bubbles_of_equal_stages_are_what_the_papers_say() -> None:
    line = timeline_of(even(4, 8), "1f1b")
    for each in range(4):
        assert line.bubble_s(each) == pytest.approx(9.0)
        assert line.busy_s(each) == pytest.approx(24.0)


def test_large_timelines_are_quick() -> None:
    start = time.process_time()
    line = timeline_of(even(64, 512, 8, sends=Sends(0.01)), "interleaved")
    assert time.process_time() - start < 10  # about one second on an idle core
    assert line.step_s == pytest.approx(
        step_time(even(64, 512, 8, sends=Sends(0.01)), "interleaved").step_s
    )


# Hiding, against the recurrences.


def test_buckets_behind_a_backward() -> None:
    rng = random.Random(37)
    for _ in range(200):
        backward, bucket, k = rng.uniform(0.1, 5), rng.uniform(0.01, 2), rng.randint(1, 32)
        end = 0.0
        for i in range(1, k + 1):
            end = max(end, backward * i / k) + bucket
        found = overlap.behind_backward(backward, bucket, k)
        assert found.exposed_s == pytest.approx(end - backward)
        assert found.slowed_s == 0.0
        assert overlap.before_forward(backward, bucket, k) == pytest.approx(found.exposed_s)


def test_a_backward_slowed_by_its_buckets() -> None:
    rng = random.Random(41)
    for _ in range(200):
        backward, bucket, k = rng.uniform(0.1, 5), rng.uniform(0.01, 2), rng.randint(1, 32)
        slowdown = rng.uniform(1.0, 2.0)
        now, end = backward / k, 0.0
        for _ in range(k - 1):
            end = max(end, now) + bucket
            beside = min(end - now, slowdown * backward / k)
            now += beside + (backward / k - beside / slowdown)
        end = max(end, now) + bucket
        found = overlap.behind_backward(backward, bucket, k, slowdown)
        assert backward + found.slowed_s == pytest.approx(now)
        assert now + found.exposed_s == pytest.approx(end)


def test_chunks_layers_and_rings() -> None:
    rng = random.Random(43)
    for _ in range(100):
        compute, comm, k = rng.uniform(0.1, 2), rng.uniform(0.1, 2), rng.randint(1, 16)
        computed = fetched = 0.0
        for _ in range(k):
            fetched += comm
            computed = max(computed, fetched) + compute
        assert overlap.chunked(compute, comm, k) == pytest.approx(computed)
        assert overlap.layered(comm, compute, k) == pytest.approx(computed)
        # Beside a gather compute goes on at a part of its rate, after it at the whole.
        lost = rng.uniform(0.0, 0.9)
        beside = max(comm, compute + lost * comm)
        if compute > (1 - lost) * comm:
            slowed = compute + comm + (k - 1) * beside
            assert overlap.layered(comm, compute, k, lost) == pytest.approx(slowed)
        ring = sum(max(compute, comm) for _ in range(k - 1)) + compute
        assert overlap.ring_attention(compute, comm, k) == pytest.approx(ring)
        slowed = compute * rng.uniform(1.0, 2.0)
        done_beside = min(1.0, comm / slowed)
        both = comm + (1 - done_beside) * compute
        assert overlap.beside(compute, comm, slowed) == pytest.approx(both)
        assert overlap.chunked(compute, comm, 1, slowed) == pytest.approx(compute + comm)
        assert overlap.chunked(compute, comm, k, slowed) >= overlap.chunked(compute, comm, k)
    assert overlap.hidden(5.0, 4.0) == 4.0
    assert np.array_equal(overlap.hidden(np.array([1.0, 5.0]), 4.0, 0.5), [1.0, 2.0])

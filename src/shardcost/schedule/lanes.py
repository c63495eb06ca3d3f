"""The order in which pipeline stages work, and when each of their operations starts and ends.

A schedule is data: for each stage the sequence of its forwards (F), backwards (B) and, where they
are apart, weight gradients (W), each of one micro-batch and model chunk. When they run follows
from the order and from who waits for whom.

One pass over the operations computes all times, so the cost is linear in their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from shardcost.schedule.overlap import layered
from shardcost.schedule.work import StepWork

Op: TypeAlias = tuple[str, int, int]
"""Kind (F, B or W), model chunk, micro-batch."""


def order(
    schedule: str, stage: int, stages: int, micro_batches: int, virtual_stages: int
) -> list[Op]:
    """Return what a stage does, in order.

    >>> "".join(kind for kind, _, _ in order("1f1b", 1, 4, 4, 1))
    'FFFBFBBB'
    >>> "".join(kind for kind, _, _ in order("zero_bubble", 1, 4, 4, 1))
    'FFFBFBWBWBWW'
    """
    if schedule == "interleaved" and virtual_stages > 1:
        return _interleaved(stage, stages, micro_batches, virtual_stages)
    if schedule == "zero_bubble":
        return list(_zero_bubble(stage, stages, micro_batches))
    return _one_forward_one_backward(
        [("F", 0, each) for each in range(micro_batches)],
        [("B", 0, each) for each in range(micro_batches)],
        stages - 1 - stage,
    )


def _one_forward_one_backward(forwards: list[Op], backwards: list[Op], warm_up: int) -> list[Op]:
    """Return `warm_up` forwards, then one forward and one backward in turn, then the rest.

    Narayanan et al., PipeDream, 2019 (arXiv:1806.03377); with a flush at the end of each step,
    Narayanan et al., 2020 (arXiv:2006.09503).
    """
    warm_up = min(warm_up, len(forwards))
    done = forwards[:warm_up]
    for pair in zip(forwards[warm_up:], backwards, strict=False):
        done += pair
    return done + backwards[len(forwards) - warm_up :]


def _interleaved(stage: int, stages: int, micro_batches: int, virtual_stages: int) -> list[Op]:
    """Return the order of Narayanan et al., 2021 (arXiv:2104.04473), section 2.2.

    Groups of as many micro-batches as there are stages go through one chunk after the other.
    """
    groups = range(0, micro_batches, stages)
    forwards = [
        ("F", chunk, first + each)
        for first in groups
        for chunk in range(virtual_stages)
        for each in range(stages)
    ]
    backwards = [("B", virtual_stages - 1 - chunk, each) for _, chunk, each in forwards]
    warm_up = 2 * (stages - 1 - stage) + (virtual_stages - 1) * stages
    return _one_forward_one_backward(forwards, backwards, warm_up)


def _zero_bubble(stage: int, stages: int, micro_batches: int) -> Iterator[Op]:
    """Return the order ZB-H1 of Qi et al., 2023 (arXiv:2401.10241).

    As 1F1B, but the weight gradients lag by as many micro-batches as stages lie before this one,
    so that no stage keeps more alive than the first does under 1F1B.
    """
    warm_up = min(stages - 1 - stage, micro_batches)
    for each in range(warm_up):
        yield "F", 0, each
    for each in range(micro_batches):
        if each + warm_up < micro_batches:
            yield "F", 0, each + warm_up
        yield "B", 0, each
        if each >= stage:
            yield "W", 0, each - stage
    for each in range(max(0, micro_batches - stage), micro_batches):
        yield "W", 0, each


@dataclass(frozen=True, slots=True)
class Lane:
    """What one stage does: its operations with their times, its sends and its buckets."""

    ops: list[Op]
    starts: list[float]
    ends: list[float]
    sends: list[tuple[int, float, float]]
    """Number of the operation whose result is sent, start, end."""
    gathers: list[tuple[int, float, float]]
    """Chunk, start, end of each bucket of weights."""
    reduces: list[tuple[int, float, float]]
    """Chunk, start, end of each bucket of gradients."""


class Clock:
    """Runs all stages forward in time, each until it has to wait for a neighbour."""

    def __init__(self, work: StepWork, schedule: str) -> None:
        self.work = work
        self.schedule = schedule
        stages, virtual_stages, batches = work.stages, work.virtual_stages, work.micro_batches
        self.durations = [durations(work, schedule, stage) for stage in range(stages)]
        self.lanes = [
            Lane(order(schedule, stage, stages, batches, virtual_stages), [], [], [], [], [])
            for stage in range(stages)
        ]
        self.free = [0.0] * stages
        self.sending = [0.0] * stages
        # When the input of each operation has arrived; None while it has not. Forwards of the
        # first chunk on the first stage need none; backwards of the head follow its forwards.
        nothing: list[float | None] = [None] * (virtual_stages * batches)
        self.arrived = [{"F": nothing.copy(), "B": nothing.copy()} for _ in range(stages)]
        self.arrived[0]["F"][:batches] = [0.0] * batches
        self.finisher = "W" if schedule == "zero_bubble" else "B"

    def run(self) -> None:
        """Run until nobody waits any more; `lanes` then say what happened when."""
        self._gather()
        waiting = list(range(self.work.stages))
        while waiting:
            woken = {other for stage in waiting for other in self._advance(stage)}
            waiting = sorted(woken)

    def _advance(self, stage: int) -> set[int]:
        """Run a stage as far as it gets; return the stages it has sent something to."""
        lane, arrived, durations = self.lanes[stage], self.arrived[stage], self.durations[stage]
        batches = self.work.micro_batches
        outer_batches = (0, batches - 1)
        ops, starts, ends = lane.ops, lane.starts, lane.ends
        free, reached = self.free[stage], set()
        special = bool(lane.gathers or self.work.data_parallel.reduce_s)
        for number in range(len(ends), len(ops)):
            kind, chunk, batch = op = ops[number]
            start = free
            if kind != "W":
                when = arrived[kind][chunk * batches + batch]
                if when is None:
                    break
                if when > free:
                    start = when
            end = start + durations[kind][chunk]
            if special and batch in outer_batches:
                end = self._communicated(stage, op, start, end)
            starts.append(start)
            ends.append(end)
            free = end
            if kind != "W":
                free, other = self._delivered(stage, number, op, end)
                reached.add(other)
        self.free[stage] = free
        reached.discard(stage)
        reached.discard(-1)
        return reached

    def _delivered(self, stage: int, number: int, op: Op, end: float) -> tuple[float, int]:
        """Hand on a result; return when the stage is free again and who got it (-1: nobody)."""
        kind, chunk, batch = op
        last = self.work.stages - 1
        if kind == "F":
            to, chunk_there = (stage + 1, chunk) if stage < last else (0, chunk + 1)
            if chunk_there == self.work.virtual_stages:  # the loss is here: its backward can follow
                self.arrived[stage]["B"][chunk * self.work.micro_batches + batch] = end
                return end, -1
        else:
            to, chunk_there = (stage - 1, chunk) if stage else (last, chunk - 1)
            if chunk_there < 0:
                return end, -1
        place = chunk_there * self.work.micro_batches + batch
        seconds = self.work.sends.seconds
        if to == stage or not seconds:
            self.arrived[to][kind][place] = end
            return end, to
        start = max(end, self.sending[stage])
        self.sending[stage] = there = start + seconds
        self.lanes[stage].sends.append((number, start, there))
        self.arrived[to][kind][place] = there
        return (there if self.work.sends.blocking else end), to

    def _gather(self) -> None:
        """Queue the buckets of weights on every stage, in the order in which they are needed."""
        virtual_stages, parallel = self.work.virtual_stages, self.work.data_parallel
        if not parallel.gather_s:
            return
        bucket_s = parallel.gather_s / (virtual_stages * parallel.buckets)
        for lane in self.lanes:
            for number in range(virtual_stages * parallel.buckets):
                span = number * bucket_s, (number + 1) * bucket_s
                lane.gathers.append((number // parallel.buckets, *span))

    def _communicated(self, stage: int, op: Op, start: float, end: float) -> float:
        """Return when an operation ends that waits for weights; queue gradients it is last for."""
        kind, chunk, batch = op
        lane, buckets = self.lanes[stage], self.work.data_parallel.buckets
        if batch == 0 and kind == "F" and lane.gathers:
            share = (end - start) / buckets
            end = start
            for _, _, gathered in lane.gathers[chunk * buckets : (chunk + 1) * buckets]:
                end = max(end, gathered) + share
        if batch == self.work.micro_batches - 1 and kind == self.finisher:
            share = (end - start) / buckets
            each = self.work.data_parallel.reduce_s / (self.work.virtual_stages * buckets)
            free = lane.reduces[-1][2] if lane.reduces else 0.0
            for number in range(1, buckets + 1):
                begun = max(free, start + number * share)
                free = begun + each
                lane.reduces.append((chunk, begun, free))
        return end


def durations(
    work: StepWork, schedule: str, stage: int, *, gathered: bool = True
) -> dict[str, list[float]]:
    """Return the seconds of a stage's operations, by kind and chunk, with or without gathers."""
    first, last = stage == 0, stage == work.stages - 1
    layers = work.first if first else work.last if last else work.middle
    extras = [(0, work.first)] * first + [(work.virtual_stages - 1, work.last)] * last
    parts: dict[str, list[float]] = {}
    for kind, name in (("F", "forward_s"), ("B", "backward_input_s"), ("W", "backward_weight_s")):
        parts[kind] = [getattr(layers, name) / work.virtual_stages] * work.virtual_stages
        for chunk, extra in extras:
            parts[kind][chunk] += getattr(extra, f"extra_{name}")
    if schedule != "zero_bubble":
        parts["B"] = [one + other for one, other in zip(parts["B"], parts.pop("W"), strict=True)]
    if gathered and work.layer_gathers.seconds:
        gathers = work.layer_gathers
        for kind, sent_s in (("F", gathers.seconds), ("B", gathers.backward_seconds)):
            parts[kind] = [
                float(layered(sent_s, seconds / gathers.layers, gathers.layers, gathers.lost_share))
                for seconds in parts[kind]
            ]
    return parts

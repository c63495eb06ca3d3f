"""The event timeline of one training step: who does what when, kept exactly.

Each stage runs its operations in the order of `shardcost.schedule.orders` on its compute stream;
an operation starts when the stage is free and what it needs has arrived. Transfers to neighbours
run on a stream of their own (``pp``), one after the other, or block the sender; gradients and
weights of data parallelism run on another (``dp``). Nothing is approximated: the closed forms of
`shardcost.schedule.step` are held to this.

One pass over the operations computes all times, so the cost is linear in their number; `Task`
objects are only made when somebody looks at them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from shardcost.schedule.orders import Op, order
from shardcost.schedule.overlap import layered
from shardcost.schedule.work import StepWork, check

NAMES = {"F": "forward", "B": "backward", "W": "weight gradient"}


class Task(NamedTuple):
    """Something that occupies one stream of one stage for a while."""

    name: str
    stage: int
    stream: str
    """``compute``, ``pp`` (sends to neighbours) or ``dp`` (data parallelism)."""
    kind: str
    """``compute``, ``comm``, ``send`` or ``idle``."""
    start_s: float
    end_s: float
    micro_batch: int | None = None
    chunk: int | None = None


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


@dataclass(frozen=True)
class Timeline:
    """One training step, stage by stage."""

    schedule: str
    lanes: list[Lane]
    busy: list[float]
    """Seconds that the compute of each stage takes if it never waits."""
    blocking: bool
    optimizer_s: float
    overhead_s: float

    @cached_property
    def pipeline_s(self) -> float:
        """When the last operation of the pipeline ends."""
        return max(map(self.computed_s, range(len(self.lanes))))

    @cached_property
    def step_s(self) -> float:
        """When the step is over: all gradients reduced, all weights updated."""
        return max(map(self.reduced_s, range(len(self.lanes)))) + self.optimizer_s + self.overhead_s

    def computed_s(self, stage: int) -> float:
        """Return when a stage has computed everything, and may go on to something else."""
        lane = self.lanes[stage]
        sent = [end for _, _, end in lane.sends[-1:]] if self.blocking else []
        return max([lane.ends[-1], *sent])

    def reduced_s(self, stage: int) -> float:
        """Return when a stage has also reduced all gradients."""
        reduced = [end for _, _, end in self.lanes[stage].reduces[-1:]]
        return max([self.computed_s(stage), *reduced])

    def busy_s(self, stage: int, stream: str = "compute") -> float:
        """Return how long a stream of a stage is occupied by work (not by waiting)."""
        lane = self.lanes[stage]
        if stream == "compute":
            return self.busy[stage] + self.optimizer_s
        if stream == "pp":
            return sum(end - start for _, start, end in lane.sends)
        return sum(end - start for _, start, end in lane.gathers + lane.reduces)

    def bubble_s(self, stage: int) -> float:
        """Return how long a stage's compute stream has nothing to do until the pipeline ends.

        Waiting for neighbours, their sends included; time that blocking sends or missing weights
        take is not in it.
        """
        lane = self.lanes[stage]
        occupied = sum(lane.ends) - sum(lane.starts)
        blocked = self.busy_s(stage, "pp") if self.blocking else 0.0
        return self.pipeline_s - occupied - blocked

    def exposed_comm_s(self, stage: int) -> float:
        """Return for how long a stage's own communication keeps its compute from running."""
        lane = self.lanes[stage]
        stretched = sum(lane.ends) - sum(lane.starts) - self.busy[stage]
        blocked = self.busy_s(stage, "pp") if self.blocking else 0.0
        return stretched + blocked + self.reduced_s(stage) - self.computed_s(stage)

    @cached_property
    def tasks(self) -> list[Task]:
        """All tasks, stage by stage; gaps of the compute streams are tasks of kind ``idle``."""
        return [task for stage in range(len(self.lanes)) for task in self._tasks_of(stage)]

    def rows(self) -> list[dict[str, Any]]:
        """Return complete events in the shape of the Chrome trace format, in microseconds."""
        return [
            {
                "name": task.name,
                "cat": task.kind,
                "ph": "X",
                "ts": 1e6 * task.start_s,
                "dur": 1e6 * (task.end_s - task.start_s),
                "pid": task.stage,
                "tid": task.stream,
                "args": {"micro_batch": task.micro_batch, "chunk": task.chunk},
            }
            for task in self.tasks
            if task.kind != "idle"
        ]

    def _tasks_of(self, stage: int) -> Iterator[Task]:
        lane = self.lanes[stage]
        computed: list[Task] = []
        for (kind, chunk, batch), start, end in zip(lane.ops, lane.starts, lane.ends, strict=True):
            computed.append(
                Task(NAMES[kind], stage, "compute", "compute", start, end, batch, chunk)
            )
        for number, start, end in lane.sends:
            kind, chunk, batch = lane.ops[number]
            what = "activations" if kind == "F" else "gradients"
            stream = "compute" if self.blocking else "pp"
            task = Task(f"send {what}", stage, stream, "send", start, end, batch, chunk)
            if self.blocking:
                computed.append(task)
            else:
                yield task
        for chunk, start, end in lane.gathers:
            yield Task("gather weights", stage, "dp", "comm", start, end, 0, chunk)
        for chunk, start, end in lane.reduces:
            yield Task("reduce gradients", stage, "dp", "comm", start, end, None, chunk)
        if self.optimizer_s:
            start = self.reduced_s(stage)
            end = start + self.optimizer_s
            computed.append(Task("optimizer", stage, "compute", "compute", start, end))
        computed.sort(key=lambda task: task.start_s)
        yield from _with_gaps(computed, stage, self.step_s)


def timeline_of(work: StepWork, schedule: str) -> Timeline:
    """Return the timeline of a step; every quantity of `work` must be a plain number."""
    check(schedule, work)
    clock = _Clock(work, schedule)
    clock.run()
    return Timeline(
        schedule=schedule,
        lanes=clock.lanes,
        busy=clock.busy,
        blocking=work.sends.blocking,
        optimizer_s=work.optimizer_s,
        overhead_s=work.overhead_s,
    )


class _Clock:
    """Runs all stages forward in time, each until it has to wait for a neighbour."""

    def __init__(self, work: StepWork, schedule: str) -> None:
        self.work = work
        self.schedule = schedule
        stages, chunks, batches = work.stages, work.chunks, work.micro_batches
        self.durations = [_durations(work, schedule, stage) for stage in range(stages)]
        orders = [order(schedule, stage, stages, batches, chunks) for stage in range(stages)]
        self.lanes = [Lane(ops, [], [], [], [], []) for ops in orders]
        plain = [_durations(work, schedule, stage, gathered=False) for stage in range(stages)]
        self.busy = [batches * sum(map(sum, times.values())) for times in plain]
        self.free = [0.0] * stages
        self.sending = [0.0] * stages
        # When the input of each operation has arrived; None while it has not. Forwards of the
        # first chunk on the first stage need none; backwards of the head follow its forwards.
        nothing: list[float | None] = [None] * (chunks * batches)
        self.arrived = [{"F": nothing.copy(), "B": nothing.copy()} for _ in range(stages)]
        self.arrived[0]["F"][:batches] = [0.0] * batches
        self.finisher = "W" if schedule == "zero_bubble" else "B"

    def run(self) -> None:
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
        special = self._special(stage)
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
            if chunk_there == self.work.chunks:  # the loss is here: its backward can follow
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

    def _special(self, stage: int) -> bool:
        return bool(self.lanes[stage].gathers or self.work.data_parallel.reduce_s)

    def _gather(self) -> None:
        """Queue the buckets of weights on every stage, in the order in which they are needed."""
        chunks, parallel = self.work.chunks, self.work.data_parallel
        if not parallel.gather_s:
            return
        each = parallel.gather_s / (chunks * parallel.buckets)
        for lane in self.lanes:
            for number in range(chunks * parallel.buckets):
                lane.gathers.append(
                    (number // parallel.buckets, number * each, (number + 1) * each)
                )

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
            each = self.work.data_parallel.reduce_s / (self.work.chunks * buckets)
            free = lane.reduces[-1][2] if lane.reduces else 0.0
            for number in range(1, buckets + 1):
                begun = max(free, start + number * share)
                free = begun + each
                lane.reduces.append((chunk, begun, free))
        return end


def _durations(
    work: StepWork, schedule: str, stage: int, *, gathered: bool = True
) -> dict[str, list[float]]:
    """Return the seconds of a stage's operations, by kind and chunk."""
    first, last = stage == 0, stage == work.stages - 1
    layers = work.first if first else work.last if last else work.middle
    extras = [(0, work.first)] * first + [(work.chunks - 1, work.last)] * last
    parts: dict[str, list[float]] = {}
    for kind, name in (("F", "forward_s"), ("B", "backward_input_s"), ("W", "backward_weight_s")):
        parts[kind] = [getattr(layers, name) / work.chunks] * work.chunks
        for chunk, extra in extras:
            parts[kind][chunk] += getattr(extra, f"extra_{name}")
    if schedule != "zero_bubble":
        parts["B"] = [one + other for one, other in zip(parts["B"], parts.pop("W"), strict=True)]
    if gathered and work.layer_gathers.seconds:
        for kind in "FB":
            parts[kind] = [_layered(work, seconds) for seconds in parts[kind]]
    return parts


def _layered(work: StepWork, seconds: float) -> float:
    gathers = work.layer_gathers
    return float(layered(gathers.seconds, seconds / gathers.layers, gathers.layers))


def _with_gaps(computed: list[Task], stage: int, until: float) -> Iterator[Task]:
    """Return tasks of one stream, and between them the waiting."""
    free = 0.0
    for task in computed:
        if task.start_s > free:
            yield Task("wait", stage, task.stream, "idle", free, task.start_s)
        yield task
        free = task.end_s
    if until > free:
        yield Task("wait", stage, "compute", "idle", free, until)

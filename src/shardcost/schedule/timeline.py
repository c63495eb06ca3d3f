"""The event timeline of one training step: who does what when, kept exactly.

Each stage runs its operations in the order of `shardcost.schedule.orders` on its compute stream;
an operation starts when the stage is free and what it needs has arrived. Transfers to neighbours
run on a stream of their own (``pp``), one after the other, or block the sender; gradients and
weights of data parallelism run on another (``dp``). Nothing is approximated: the closed forms of
`shardcost.schedule.step` are held to this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from shardcost.schedule.lanes import Clock, Lane, durations
from shardcost.schedule.work import StepWork, check

NAMES = {"F": "forward", "B": "backward", "W": "weight gradient"}


class Task(NamedTuple):
    """Something that occupies one stream of one stage for a while."""

    name: str
    stage: int
    stream: str
    """``compute``, ``tp`` (inside the layers), ``pp`` (to neighbours) or ``dp`` (of replicas)."""
    kind: str
    """``compute``, ``comm``, ``send`` or ``idle``."""
    start_s: float
    end_s: float
    micro_batch: int | None = None
    chunk: int | None = None


@dataclass(frozen=True)
class Timeline:
    """One training step, stage by stage."""

    schedule: str
    lanes: list[Lane]
    busy: list[float]
    """Seconds that the compute of each stage takes if it never waits."""
    inside: list[dict[str, float]]
    """For each stage, the exposed communication inside one of its operations, by kind."""
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
        if stream == "tp":
            return sum(self.inside[stage][kind] for kind, _, _ in lane.ops)
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
        """All tasks, stage by stage; gaps of the compute streams are tasks of kind ``idle``.

        They are made when first asked for. Communication inside the layers is drawn in one piece,
        at the end of the operation that it belongs to.
        """
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
            name, inside = NAMES[kind], self.inside[stage][kind]
            split = end - inside
            computed.append(Task(name, stage, "compute", "compute", start, split, batch, chunk))
            if inside:
                yield Task(f"inside {name}", stage, "tp", "comm", split, end, batch, chunk)
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
    clock = Clock(work, schedule)
    clock.run()
    stages = range(work.stages)
    inside = [_inside(work, stage) for stage in stages]
    busy = []
    for stage in stages:
        seconds = durations(work, schedule, stage, gathered=False)
        computing = sum(map(sum, seconds.values())) - work.virtual_stages * sum(
            inside[stage].values()
        )
        busy.append(work.micro_batches * computing)
    return Timeline(
        schedule=schedule,
        lanes=clock.lanes,
        busy=busy,
        inside=inside,
        blocking=work.sends.blocking,
        optimizer_s=work.optimizer_s,
        overhead_s=work.overhead_s,
    )


def _inside(work: StepWork, stage: int) -> dict[str, float]:
    """Return the exposed communication inside one operation of a stage, by kind."""
    layers = work.first if stage == 0 else work.middle if stage < work.stages - 1 else work.last
    return {
        "F": layers.forward_comm_s / work.virtual_stages,
        "B": layers.backward_comm_s / work.virtual_stages,
        "W": 0.0,
    }


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

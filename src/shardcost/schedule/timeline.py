"""The event timeline of one training step: who does what when, kept exactly.

Each stage runs its operations in the order of `shardcost.schedule.lanes` on its compute stream;
an operation starts when the stage is free and what it needs has arrived. Transfers to neighbours
run on a stream of their own (``pp``), one after the other, or block the sender; gradients and
weights of data parallelism run on another (``dp``). Nothing is approximated: the closed forms of
`shardcost.schedule.step` are held to this.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from shardcost.schedule.lanes import Clock, Lane, durations
from shardcost.schedule.work import StepWork, check


@dataclass(frozen=True)
class Timeline:
    """One training step, stage by stage."""

    schedule: str
    lanes: list[Lane]
    busy: list[float]
    """Seconds that the operations of each stage take if it never waits."""
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
        sent = lane.sends if stream == "pp" else lane.gathers + lane.reduces
        return sum(end - start for _, start, end in sent)

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
        """Return for how long sends and replicas of a stage keep its compute from running."""
        lane = self.lanes[stage]
        stretched = sum(lane.ends) - sum(lane.starts) - self.busy[stage]
        blocked = self.busy_s(stage, "pp") if self.blocking else 0.0
        return stretched + blocked + self.reduced_s(stage) - self.computed_s(stage)


def timeline_of(work: StepWork, schedule: str) -> Timeline:
    """Return the timeline of a step; every quantity of `work` must be a plain number."""
    check(schedule, work)
    clock = Clock(work, schedule)
    clock.run()
    operations = (durations(work, schedule, stage, gathered=False) for stage in range(work.stages))
    return Timeline(
        schedule=schedule,
        lanes=clock.lanes,
        busy=[work.micro_batches * sum(map(sum, seconds.values())) for seconds in operations],
        blocking=work.sends.blocking,
        optimizer_s=work.optimizer_s,
        overhead_s=work.overhead_s,
    )

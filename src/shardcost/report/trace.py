"""The timeline of an estimated step as a trace that Perfetto shows.

A process is a pipeline stage, by the first of its ranks, with a lane for compute and one each for
communication inside the layers (``tp``), between stages (``pp``) and of replicas (``dp``). Of what
is inside the layers, that is shown which nothing hides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shardcost.estimate.drawn import drawn_timeline
from shardcost.estimate.events import Event as Shown
from shardcost.estimate.price import Place, places
from shardcost.estimate.result import Estimate
from shardcost.estimate.step_timeline import step_timeline
from shardcost.formats.chrome_trace import Event, Names, ranks_text, write_trace
from shardcost.formats.kineto_names import Call, CommGroup, Kind
from shardcost.machine.libraries import default_library
from shardcost.program.operations import Collective, Operations
from shardcost.schedule.timeline import Task
from shardcost.workload import Train

STREAMS: Final = ("compute", "tp", "pp", "dp")
"""The lanes in order: a stream's number is its place."""
_WAITS: Final = frozenset({"idle", "host"})


def write_timeline(found: Estimate, path: Path) -> None:
    """Write the timeline of a step as a trace."""
    events, names = events_of(found)
    write_trace(path, events, names)


def events_of(found: Estimate) -> tuple[list[Event], Names]:
    """Return the events of a step, and what its ranks and streams are called."""
    if isinstance(found.workload, Train):
        tasks = drawn_timeline(found).tasks
        drawn = _Drawn(found, tasks)
        events = [drawn.event(task) for task in tasks if task.kind != "idle"]
    else:
        drawn = _Drawn(found, ())
        shown = step_timeline(found).events
        events = [drawn.served(each) for each in shown if each.exposed and each.kind not in _WAITS]
    layout = found.layout
    ranks = {drawn.rank(stage): f"stage {stage}" for stage in range(layout.pp)}
    names = Names(
        ranks,
        dict(enumerate(STREAMS)),
        default_library(found.cluster),
        int(layout.devices),
    )
    return events, names


class _Drawn:
    """Tasks of a timeline as events, their calls numbered."""

    def __init__(self, found: Estimate, tasks: Sequence[Task]) -> None:
        self.found = found
        self.places = places(found.layout)
        self.tasks = Counter((task.stage, task.name) for task in tasks)
        self.calls: Counter[tuple[int, CommGroup]] = Counter()

    def rank(self, stage: int) -> int:
        """Return the first rank of a stage."""
        return int(stage * self.places["pp"].stride)

    def event(self, task: Task) -> Event:
        """Return a task as an event."""
        more = {
            name: value
            for name, value in (("micro_batch", task.micro_batch), ("chunk", task.chunk))
            if value is not None
        }
        call = None if task.kind == "compute" else self._numbered(task)
        stream = STREAMS.index(task.stream)
        return Event(task.name, self.rank(task.stage), stream, task.start_s, task.end_s, call, more)

    def served(self, shown: Shown) -> Event:
        """Return something of a pass of serving as an event."""
        call = None
        stream = 0
        if shown.group is not None:
            call = self._counted(shown.stage, self._served_call(shown.stage, shown.group))
            stream = STREAMS.index("pp" if shown.group == "pp" else "tp")
        rank = self.rank(shown.stage)
        return Event(shown.name, rank, stream, shown.start_s, shown.end_s, call, {})

    def _served_call(self, stage: int, group: str) -> Call:
        program = self.found.program
        if group == "pp":
            return self._send()
        forward = [each.passes.forward for each in program.layers]
        forward += [program.first.forward, program.last.forward]
        sent = _collectives(tuple(op for each in forward for op in each))
        return self._of_layers(stage, [op for op in sent if op.group == group])

    def _numbered(self, task: Task) -> Call:
        return self._counted(task.stage, self._call(task))

    def _counted(self, stage: int, call: Call) -> Call:
        key = stage, call.kind.group
        self.calls[key] += 1
        return call._replace(seq=self.calls[key] - 1)

    def _send(self) -> Call:
        dtype = _sixteen_bits(self.found.workload.dtype)
        kind = Kind("send_recv", self._group("pp", self.rank(0)), dtype)
        return Call(kind, -1, int(self.found.program.send_bytes))

    def _call(self, task: Task) -> Call:
        """Return what a task sends, as far as one piece of a timeline is one collective."""
        program, workload = self.found.program, self.found.workload
        if task.kind == "send":
            return self._send()
        if task.stream == "dp" and program.step is not None and isinstance(workload, Train):
            reduces = task.name == "reduce gradients"
            operations = program.step.gradients if reduces else program.step.weights
            dtype = workload.gradient_dtype if reduces else _sixteen_bits(workload.dtype)
            return self._of_step(task, _collectives(operations), dtype)
        backward = task.name.endswith("backward")
        passes = [
            each.passes.backward if backward else each.passes.forward for each in program.layers
        ]
        inside = _collectives(tuple(op for each in passes for op in each))
        return self._of_layers(task.stage, inside)

    def _of_step(self, task: Task, sent: list[Collective], dtype: str) -> Call:
        """Return one bucket of what is sent once a step."""
        if not sent:
            return Call(Kind("all_reduce", self._group("dp", self.rank(task.stage)), dtype), -1, 0)
        first = max(sent, key=lambda op: float(op.size_bytes))
        group = self._group(first.group, self.rank(task.stage), int(first.ranks))
        alike = all((op.collective, op.group) == (first.collective, first.group) for op in sent)
        total = sum(float(op.size_bytes * op.count) for op in sent) if alike else 0.0
        size = int(total / self.tasks[task.stage, task.name])
        return Call(Kind(first.collective, group, dtype), -1, size)

    def _of_layers(self, stage: int, sent: list[Collective]) -> Call:
        """Return what stands for all collectives inside an operation: it has no single size."""
        first = max(sent, key=lambda op: float(op.size_bytes * op.count), default=None)
        name = "tp" if first is None else first.group
        collective = "all_reduce" if first is None else first.collective
        ranks = None if first is None else int(first.ranks)
        return Call(Kind(collective, self._group(name, self.rank(stage), ranks)), -1, 0)

    def _group(self, name: str, first: int, ranks: int | None = None) -> CommGroup:
        place = self.places.get(name, Place(1, 1))
        size = int(place.ranks) if ranks is None else ranks
        members = [first + number * int(place.stride) for number in range(size)]
        return CommGroup(f"{name} of rank {first}", name, size, ranks_text(members))


def _collectives(operations: Operations) -> list[Collective]:
    return [op for op in operations if isinstance(op, Collective)]


def _sixteen_bits(dtype: str) -> str:
    """Return the format that activations and weights are sent in."""
    return dtype if dtype in {"fp32", "fp16", "bf16"} else "bf16"

"""The timeline of an estimated step as a trace for Perfetto.

A process is a pipeline stage, by the first of its ranks, with a lane for compute and one each for
communication inside the layers (``tp``), between stages (``pp``) and of replicas (``dp``). Of the
communication inside the layers, the exposed part is shown.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from shardcost.estimate.drawn import drawn_timeline
from shardcost.estimate.price import Place, places
from shardcost.estimate.result import Estimate
from shardcost.estimate.sent import Sent, sent_by_event, sent_by_task
from shardcost.estimate.step_timeline import step_timeline
from shardcost.formats.chrome_trace import Event, Names, ranks_text, write_trace
from shardcost.formats.kineto_names import Call, CommGroup, Kind
from shardcost.machine.libraries import default_library
from shardcost.workload import Train

STREAMS: Final = ("compute", "tp", "pp", "dp")
"""The lanes in order: a stream's number is its place."""
_WAITS: Final = frozenset({"idle", "host"})


def write_timeline(estimate: Estimate, path: Path) -> None:
    """Write the timeline of a step as a trace."""
    events, names = events_of(estimate)
    write_trace(path, events, names)


def events_of(estimate: Estimate) -> tuple[list[Event], Names]:
    """Return the events of a step, and what its ranks and streams are called."""
    writer = _Writer(estimate)
    events = writer.training() if isinstance(estimate.workload, Train) else writer.serving()
    ranks = {writer.rank(stage): f"stage {stage}" for stage in range(estimate.layout.pp)}
    library = default_library(estimate.cluster)
    return events, Names(ranks, dict(enumerate(STREAMS)), library, int(estimate.layout.devices))


class _Writer:
    """Turns a timeline into events, the calls of each group numbered."""

    def __init__(self, estimate: Estimate) -> None:
        self.estimate = estimate
        self.places = places(estimate.layout)
        self.calls: Counter[tuple[int, CommGroup]] = Counter()

    def training(self) -> list[Event]:
        """Return the tasks of a training step."""
        tasks = drawn_timeline(self.estimate).tasks
        buckets = Counter((task.stage, task.name) for task in tasks)
        events = []
        for task in tasks:
            if task.kind == "idle":
                continue
            call = None
            if task.kind != "compute":
                sent = sent_by_task(self.estimate, task, buckets[task.stage, task.name])
                call = self._call(task.stage, sent)
            numbers = {"micro_batch": task.micro_batch, "chunk": task.chunk}
            more = {name: number for name, number in numbers.items() if number is not None}
            rank, stream = self.rank(task.stage), STREAMS.index(task.stream)
            events.append(Event(task.name, rank, stream, task.start_s, task.end_s, call, more))
        return events

    def serving(self) -> list[Event]:
        """Return the exposed events of a step of serving."""
        events = []
        for shown in step_timeline(self.estimate).events:
            if not shown.exposed or shown.kind in _WAITS:
                continue
            call, stream = None, 0
            if shown.group is not None:
                call = self._call(shown.stage, sent_by_event(self.estimate, shown.group))
                stream = STREAMS.index("pp" if shown.group == "pp" else "tp")
            rank = self.rank(shown.stage)
            events.append(Event(shown.name, rank, stream, shown.start_s, shown.end_s, call, {}))
        return events

    def rank(self, stage: int) -> int:
        """Return the first rank of a stage."""
        return int(stage * self.places["pp"].stride)

    def _call(self, stage: int, sent: Sent) -> Call:
        first = self.rank(0 if sent.collective == "send_recv" else stage)
        place = self.places.get(sent.group, Place(1, 1))
        size = int(place.ranks) if sent.ranks is None else sent.ranks
        members = [first + number * int(place.stride) for number in range(size)]
        name = f"{sent.group} of rank {first}"
        group = CommGroup(name, sent.group, size, ranks_text(members))
        self.calls[stage, group] += 1
        number = self.calls[stage, group] - 1
        return Call(Kind(sent.collective, group, sent.dtype), number, sent.size_bytes)

"""One training step drawn: all stages of the pipeline.

The step is that of `shardcost.schedule.timeline`: each operation of a stage shows what it computes,
then where its host is late, then the communication inside its layers that nothing hides, in one
piece. Sends to a neighbour are exposed as far as that one waits for them; gradients and weights of
replicas as far as the stage itself does, which is shown in one piece too. Gaps are ``idle``: the
pipeline's bubbles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from shardcost.estimate.events import COMPUTE, TRIFLE_S, Drawing, Event, Span, drawing, step_totals
from shardcost.estimate.ledger import PassParts, Piece
from shardcost.estimate.result import HOST, Estimate
from shardcost.schedule.lanes import Lane, durations
from shardcost.schedule.orders import Op
from shardcost.schedule.timeline import Timeline, timeline_of
from shardcost.schedule.work import StepWork

MOST_EVENTS: Final = 8_000
"""Drawn of one step, about."""
_MOST_STAGES: Final = 16
"""Of a pipeline with more, the outermost of both ends are drawn."""
_NAMES: Final = {"F": "forward", "B": "backward", "W": "weight"}


class _Window(NamedTuple):
    """Which stages and micro-batches of a step are drawn."""

    stages: frozenset[int]
    outer: int
    """So many micro-batches from the first on, and as many up to the last."""
    batches: int

    def holds(self, batch: int) -> bool:
        return batch < self.outer or batch >= self.batches - self.outer


def training_timeline(found: Estimate) -> Drawing:
    """Return one training step, about `MOST_EVENTS` of it at most."""
    work = found.ledger.step_work
    line = timeline_of(work, found.layout.schedule)
    window, cut = _window(work, len({group for group in found.comm_s if group not in {"dp", "pp"}}))

    numbers: dict[int, dict[Op, int]] = {}  # shared: neighbours ask for the same stages
    events: list[Event] = []
    for stage in sorted(window.stages):
        events += _Staged(found, work, line, stage, window, numbers).events()
    events = [event for event in events if event.seconds > TRIFLE_S]
    return drawing("step", _training_title(work), line.step_s, events, step_totals(found), cut)


def _training_title(work: StepWork) -> str:
    stages = f"{work.stages} stages" if work.stages > 1 else "one stage"
    batches = f"{work.micro_batches} micro-batches" if work.micro_batches > 1 else "one micro-batch"
    return f"One training step: {stages}, {batches}"


def _window(work: StepWork, groups: int) -> tuple[_Window, str | None]:
    """Return what of a step is drawn, and in words what is not.

    An operation is one event, communication of each group exposed and hidden, and rarely more than
    three of sending, waiting and a late host.
    """
    stages, batches = work.stages, work.micro_batches
    buckets = 2 * work.data_parallel.buckets * work.virtual_stages
    most = min(_MOST_STAGES, max(2, MOST_EVENTS // 2 // buckets))
    ends = stages if stages <= most else most // 2
    kept = frozenset((*range(ends), *range(stages - ends, stages)))
    room = max(MOST_EVENTS - len(kept) * buckets, MOST_EVENTS // 4)
    per_batch = len(kept) * work.virtual_stages * 2 * (4 + 2 * groups)
    outer = batches if batches * per_batch <= room else max(1, room // (2 * per_batch))
    left_out = []
    if len(kept) < stages:
        left_out.append(f"stages {ends} to {stages - ends - 1} of {stages}")
    if 2 * outer < batches:
        left_out.append(f"micro-batches {outer} to {batches - outer - 1} of {batches}")
    else:
        outer = batches
    words = f"left out: {' and '.join(left_out)}, numbered from 0" if left_out else None
    return _Window(kept, outer, batches), words


class _Inside(NamedTuple):
    """What one operation of a stage is made of."""

    compute_s: float
    host_s: float
    exposed_s: dict[str, float]
    hidden_s: dict[str, float]
    late_s: float
    """Of weights that are gathered layer by layer, what nothing hides …"""
    sharded_s: float
    """… and all that is sent for them."""


class _Staged:
    """One stage of a training step as events."""

    def __init__(
        self,
        found: Estimate,
        work: StepWork,
        line: Timeline,
        stage: int,
        window: _Window,
        numbers: dict[int, dict[Op, int]],
    ) -> None:
        self.found = found
        self.work = work
        self.line = line
        self.stage = stage
        self.window = window
        self.numbers = numbers
        """The place of each operation of a stage, for stages wanted so far."""
        self.lane: Lane = line.lanes[stage]
        schedule = found.layout.schedule
        self.bare = durations(work, schedule, stage, gathered=False)
        self.gathered = durations(work, schedule, stage)
        self.usual: dict[tuple[str, int], list[Event]] = {}
        """By kind and virtual stage, an operation that starts at 0 and waits for nothing."""

    def events(self) -> Iterator[Event]:
        """Yield all events of the stage."""
        lane, blocked = self.lane, self._blocked()
        free = 0.0
        for number, (op, start, end) in enumerate(
            zip(lane.ops, lane.starts, lane.ends, strict=True)
        ):
            if self.window.holds(op[2]):
                if start > free:
                    yield self._event("wait", COMPUTE, "idle", (free, start))
                yield from self._operation(op, start, end)
            free = blocked.get(number, end)
        yield from self._sends()
        yield from self._gathers()
        yield from self._reduces()
        yield from self._end(free)

    def _event(self, name: str, stream: str, kind: str, span: Span, **more: Any) -> Event:
        return Event(name, self.stage, stream, kind, *span, **more)

    def _blocked(self) -> dict[int, float]:
        """Return when the stage goes on after operations whose result it sends itself."""
        if not self.line.blocking:
            return {}
        return {number: end for number, _, end in self.lane.sends}

    def _inside(self, kind: str, chunk: int) -> _Inside:
        """Return what an operation is made of, as `durations` adds it up."""
        parts = self._parts(kind, chunk)
        bare = self.bare[kind][chunk]
        gathers = self.work.layer_gathers
        each = gathers.seconds if kind == "F" else gathers.backward_seconds
        exposed = _added(part.exposed_s for part in parts)
        whole = _added(part.comm_s for part in parts)
        sharded = 0.0 if kind == "W" or not gathers.seconds else each * gathers.layers
        return _Inside(
            float(sum(each for part in parts for each in part.compute_s.values())),
            max(0.0, float(bare - sum(part.time.device_s for part in parts))),
            exposed,
            {group: max(0.0, seconds - exposed[group]) for group, seconds in whole.items()},
            float(self.gathered[kind][chunk] - bare),
            float(sharded),
        )

    def _parts(self, kind: str, chunk: int) -> list[PassParts]:
        """Return the passes of an operation: the layers of a virtual stage, and the ends it has."""
        ledger, stages = self.found.ledger, self.found.program.stages
        first, last = self.stage == 0, self.stage == self.work.stages - 1
        share = stages.first if first else stages.last if last else stages.middle
        virtual_stages = self.work.virtual_stages
        layers = share.layers / virtual_stages
        pieces: list[tuple[Any, Piece]] = [(layers * each, piece) for each, piece in ledger.shares]
        if first and chunk == 0:
            pieces.append((1, ledger.first))
        if last and chunk == virtual_stages - 1:
            pieces.append((1, ledger.last))
        apart = self.found.layout.schedule == "zero_bubble"
        passes = {"F": ("forward",), "W": ("weight",)}.get(
            kind, ("backward",) if apart else ("backward", "weight")
        )
        return [PassParts.of(pieces, each) for each in passes]

    def _operation(self, op: Op, start: float, end: float) -> Iterator[Event]:
        """Yield one operation, like others of its kind, after what it waits for."""
        kind, chunk, batch = op
        begin = start + self._late(op, start, end)
        if (kind, chunk) not in self.usual:
            self.usual[kind, chunk] = [
                event for event in self._shown(kind, chunk) if event.seconds > TRIFLE_S
            ]
        for each in self.usual[kind, chunk]:
            name, stage, stream, what, one, other, exposed, group, _, _, passing = each
            span = begin + one, min(begin + other, end)
            yield Event(name, stage, stream, what, *span, exposed, group, batch, chunk, passing)

    def _late(self, op: Op, start: float, end: float) -> float:
        """Return for how long a first forward waits for buckets of weights, all waits together."""
        kind, chunk, batch = op
        if kind != "F" or batch or not self.lane.gathers:
            return 0.0
        return max(0.0, end - start - self.gathered[kind][chunk])

    def _shown(self, kind: str, chunk: int) -> Iterator[Event]:
        """Yield what an operation is made of, piece by piece from 0 on."""
        inside, name = self._inside(kind, chunk), _NAMES[kind]
        more = {"chunk": chunk, "passing": name}
        yield from self._sharded(inside, more)
        computed = inside.late_s + inside.compute_s
        free = computed + inside.host_s
        yield self._event(name, COMPUTE, name, (inside.late_s, computed), **more)
        yield self._event("wait for the host", COMPUTE, "host", (computed, free), **more)
        for group, seconds in inside.exposed_s.items():
            hidden = max(0.0, computed - inside.hidden_s[group]), computed
            exposed = free, free + seconds
            yield self._inside_comm(group, hidden, exposed=False, **more)
            yield self._inside_comm(group, exposed, **more)
            free = exposed[1]

    def _inside_comm(self, group: str, span: Span, **more: Any) -> Event:
        return self._event(f"{group} communication", group, "comm", span, group=group, **more)

    def _sharded(self, inside: _Inside, more: dict[str, Any]) -> Iterator[Event]:
        """Yield what ZeRO stage 3 sends during an operation: first what is waited for."""
        late, whole = inside.late_s, max(inside.late_s, inside.sharded_s)
        for span, exposed in (((0.0, late), True), ((late, whole), False)):
            more_of_it = {"group": "dp", "exposed": exposed, **more}
            yield self._event("layer weights", "dp", "comm", span, **more_of_it)

    def _sends(self) -> Iterator[Event]:
        """Yield the sends, each exposed from when on somebody does nothing but wait for it."""
        for number, start, end in self.lane.sends:
            kind, chunk, batch = op = self.lane.ops[number]
            if not self.window.holds(batch):
                continue
            waits = start if self.line.blocking else max(start, min(end, self._wanted(op)))
            name = f"send {'activations' if kind == 'F' else 'gradients'}"
            more = {"group": "pp", "micro_batch": batch, "chunk": chunk, "passing": _NAMES[kind]}
            yield self._event(name, "pp", "send", (start, waits), exposed=False, **more)
            yield self._event(name, "pp", "send", (waits, end), **more)

    def _wanted(self, op: Op) -> float:
        """Return when the one who gets a result has nothing else to do."""
        kind, chunk, batch = op
        last = self.work.stages - 1
        if kind == "F":
            to, there = (self.stage + 1, chunk) if self.stage < last else (0, chunk + 1)
        else:
            to, there = (self.stage - 1, chunk) if self.stage else (last, chunk - 1)
        lane = self.line.lanes[to]
        if to not in self.numbers:
            self.numbers[to] = {op: number for number, op in enumerate(lane.ops)}
        number = self.numbers[to][kind, there, batch]
        return lane.ends[number - 1] if number else 0.0

    def _gathers(self) -> Iterator[Event]:
        """Yield buckets of weights, exposed while the first forward of a chunk waits for them."""
        lane = self.lane
        waits = [
            (start, start + self._late(op, start, end))
            for op, start, end in zip(lane.ops, lane.starts, lane.ends, strict=True)
            if op[0] == "F" and op[2] == 0
        ]
        for chunk, start, end in _joined(lane.gathers):
            late = [(max(start, one), min(end, other)) for one, other in waits]
            late = [span for span in late if span[1] > span[0]]
            yield from self._split("gather weights", (start, end), late, chunk)

    def _reduces(self) -> Iterator[Event]:
        """Yield buckets of gradients, exposed when the stage has nothing left to compute."""
        computed = self.line.computed_s(self.stage)
        for chunk, start, end in _joined(self.lane.reduces):
            late = [(max(start, computed), end)] if end > computed else []
            yield from self._split("reduce gradients", (start, end), late, chunk)

    def _split(self, name: str, span: Span, exposed: Sequence[Span], chunk: int) -> Iterator[Event]:
        """Yield a communication in pieces, exposed and hidden."""
        free = span[0]
        for one, other in exposed:
            if one > free:
                hid = free, one
                yield self._event(name, "dp", "comm", hid, exposed=False, group="dp", chunk=chunk)
            yield self._event(name, "dp", "comm", (one, other), group="dp", chunk=chunk)
            free = other
        if span[1] > free:
            rest = free, span[1]
            yield self._event(name, "dp", "comm", rest, exposed=False, group="dp", chunk=chunk)

    def _end(self, free: float) -> Iterator[Event]:
        """Yield what follows the pipeline: what replicas send alone, optimizer, the rest."""
        software, ledger = self.found.program.setting.software, self.found.ledger
        alone = not software.dp_overlap
        done = self.line.reduced_s(self.stage)
        for name, kind, seconds in (
            ("reduce gradients", "comm", float(ledger.reduce_s) if alone else 0.0),
            ("optimizer", "optimizer", float(self.work.optimizer_s)),
            ("gather weights", "comm", float(ledger.collect_s) if alone else 0.0),
        ):
            sent = kind == "comm"
            stream, group = ("dp", "dp") if sent else (COMPUTE, None)
            yield self._event(name, stream, kind, (done, done + seconds), group=group)
            done += seconds
        over = self.line.step_s - float(software.step_overhead_s)
        yield self._event("wait", COMPUTE, "idle", (max(done, free), over))
        yield self._event(HOST, COMPUTE, "host", (over, self.line.step_s))


def _added(tables: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return seconds by group, added up over passes."""
    total: dict[str, float] = {}
    for table in tables:
        for group, seconds in table.items():
            total[group] = total.get(group, 0.0) + float(seconds)
    return total


def _joined(buckets: Sequence[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    """Return buckets of a chunk that follow each other at once as one."""
    found: list[tuple[int, float, float]] = []
    for chunk, start, end in buckets:
        if found and found[-1][0] == chunk and start - found[-1][2] <= TRIFLE_S:
            found[-1] = chunk, found[-1][1], end
        else:
            found.append((chunk, start, end))
    return found

"""One step drawn: all stages of a training step, or one pass of a prefill or of decoding.

A training step is that of `shardcost.schedule.timeline`: each operation of a stage shows what it
computes, then where its host is late, then the communication inside its layers that nothing hides,
in one piece. Sends to a neighbour are exposed as far as that one waits for them; gradients and
weights of replicas as far as the stage itself does, which is shown in one piece too. Gaps are
``idle``: the pipeline's bubbles.

A prefill, or a step of decoding, goes through the stages one after the other. All its layers are
the mean layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from shardcost.estimate.ledger import serving_host_s
from shardcost.estimate.pieces import PassParts, Piece
from shardcost.estimate.result import BUBBLE, HOST, Estimate, check_one_layout
from shardcost.estimate.timeline.events import COMPUTE, Drawing, Event, drawing
from shardcost.memory.stages import stage_by_cost, stage_evenly
from shardcost.schedule.lanes import Op, durations
from shardcost.schedule.timeline import Timeline, timeline_of
from shardcost.schedule.work import StepWork
from shardcost.workload import Train

MOST_EVENTS: Final = 8_000
"""Drawn of one training step, about."""
_MOST_STAGES: Final = 16
"""Of a pipeline with more, the outermost of both ends are drawn."""
_MOST_LAYERS: Final = 256
"""Of a prefill or of decoding, drawn one by one; more are drawn together, stage by stage."""
_TRIFLE_S: Final = 1e-12
"""Shorter pieces are rounding."""
_NAMES: Final = {"F": "forward", "B": "backward", "W": "weight"}

Span = tuple[float, float]
"""From when to when, in seconds."""
Bucket = tuple[int, float, float]
"""Chunk, start and end of a communication of replicas."""


def step_timeline(estimate: Estimate, *, whole: bool = False) -> Drawing:
    """Return one step of one layout; of a long training step a part, which says what it leaves out.

    Args:
        estimate: Of one layout.
        whole: All of a training step, with each send and each bucket of gradients or weights in one
            piece, as a trace shows them, whether it is exposed or not.

    Raises:
        BadTypeError: The estimate is of an array of layouts.
    """
    check_one_layout(estimate)
    if isinstance(estimate.workload, Train):
        return _training(estimate, whole=whole)
    return _serving(estimate)


def _totals(estimate: Estimate) -> dict[str, float]:
    """Return what the estimate says of the stage that sets the pace."""
    totals = {
        "compute_s": float(sum(estimate.compute_s.values())),
        "exposed_s": float(sum(estimate.exposed_s.values())),
        "hidden_s": float(sum(estimate.hidden_s.values())),
        "bubble_s": float(estimate.parts_s.get(BUBBLE, 0.0)),
        "host_s": float(estimate.parts_s[HOST]),
    }
    return {name: seconds if seconds > _TRIFLE_S else 0.0 for name, seconds in totals.items()}


class _Window(NamedTuple):
    """Which stages and micro-batches of a step are drawn."""

    stages: frozenset[int]
    outer: int
    """So many micro-batches from the first on, and as many up to the last."""
    batches: int

    def holds(self, batch: int) -> bool:
        return batch < self.outer or batch >= self.batches - self.outer


def _training(estimate: Estimate, *, whole: bool) -> Drawing:
    """Return one training step, about `MOST_EVENTS` of it at most unless it is to be whole."""
    work = estimate.ledger.step_work
    line = timeline_of(work, estimate.layout.schedule)
    window, cut = _Window(frozenset(range(work.stages)), work.micro_batches, 0), None
    if not whole:
        window, cut = _window(work, len(estimate.comm_s.keys() - {"dp", "pp"}))
    events: list[Event] = []
    for stage in sorted(window.stages):
        events += _Stage(estimate, line, stage, window, whole=whole).events()
    events = [event for event in events if event.seconds > _TRIFLE_S]
    stages = f"{work.stages} stages" if work.stages > 1 else "one stage"
    batches = f"{work.micro_batches} micro-batches" if work.micro_batches > 1 else "one micro-batch"
    title = f"One training step: {stages}, {batches}"
    left_out = max(0, window.batches - 2 * window.outer)
    return drawing("step", title, line.step_s, events, _totals(estimate), cut, left_out)


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


class _Stage:
    """One stage of a training step as events."""

    def __init__(
        self, estimate: Estimate, line: Timeline, stage: int, window: _Window, *, whole: bool
    ) -> None:
        self.estimate, self.line, self.stage, self.window = estimate, line, stage, window
        self.whole = whole
        self.work, self.lane = estimate.ledger.step_work, line.lanes[stage]
        schedule = estimate.layout.schedule
        bare = durations(self.work, schedule, stage, gathered=False)
        self.gathered = durations(self.work, schedule, stage)
        self.usual = {
            (kind, chunk): [
                event
                for event in self._shown(kind, chunk, bare_s)
                if event.seconds > _TRIFLE_S and (event.exposed or not whole)
            ]
            for kind, chunks in bare.items()
            for chunk, bare_s in enumerate(chunks)
        }
        """Every operation as if it started at 0 and waited for nothing."""

    def events(self) -> Iterator[Event]:
        """Yield all events of the stage."""
        lane = self.lane
        # When the stage goes on after operations whose result it sends itself.
        blocked = {number: end for number, _, end in lane.sends} if self.line.blocking else {}
        free = 0.0
        for number, (op, start, end) in enumerate(
            zip(lane.ops, lane.starts, lane.ends, strict=True)
        ):
            kind, chunk, batch = op
            if self.window.holds(batch):
                if start > free:
                    yield self._event("wait", COMPUTE, "idle", (free, start))
                begin = start + self._late(op, start, end)
                for event in self.usual[kind, chunk]:
                    yield event._replace(
                        start_s=begin + event.start_s,
                        end_s=min(begin + event.end_s, end),
                        micro_batch=batch,
                    )
            free = blocked.get(number, end)
        yield from self._sends()
        yield from self._gathers()
        idle = self.line.computed_s(self.stage), self.line.step_s
        yield from self._buckets("reduce gradients", self.lane.reduces, [idle])
        yield from self._end(free)

    def _event(self, name: str, stream: str, kind: str, span: Span, **more: Any) -> Event:
        return Event(name, self.stage, stream, kind, *span, **more)

    def _late(self, op: Op, start: float, end: float) -> float:
        """Return for how long a first forward waits for buckets of weights, all waits together."""
        kind, chunk, batch = op
        if kind != "F" or batch or not self.lane.gathers:
            return 0.0
        return max(0.0, end - start - self.gathered[kind][chunk])

    def _shown(self, kind: str, chunk: int, bare_s: float) -> Iterator[Event]:
        """Yield what an operation is made of, piece by piece from 0 on.

        First comes what ZeRO stage 3 gathers layer by layer and the operation waits for, then what
        it computes, then where the host is late, then the exposed communication of the layers, then
        what the slowest rank takes longer.
        """
        name, gathers = _NAMES[kind], self.work.layer_gathers
        more = {"chunk": chunk, "passing": name}
        late_s = float(self.gathered[kind][chunk] - bare_s)
        sharded_s = 0.0
        if kind != "W" and gathers.seconds:
            layer_s = gathers.seconds if kind == "F" else gathers.backward_seconds
            sharded_s = float(layer_s * gathers.layers)
        for span, exposed in (((0.0, late_s), True), ((late_s, max(late_s, sharded_s)), False)):
            sent = {"group": "dp", "exposed": exposed, **more}
            yield self._event("layer weights", "dp", "comm", span, **sent)
        parts = self._parts(kind, chunk)
        computed = late_s + sum(float(sum(part.compute_s.values())) for part in parts)
        mean_s = float(bare_s / self.estimate.ledger.slowest)
        free = computed + max(0.0, mean_s - float(sum(part.time.device_s for part in parts)))
        yield self._event(name, COMPUTE, name, (late_s, computed), **more)
        yield self._event("wait for the host", COMPUTE, "host", (computed, free), **more)
        whole = _added(part.comm_s for part in parts)
        for group, seconds in _added(part.exposed_s for part in parts).items():
            hidden_s = max(0.0, whole[group] - seconds)
            hidden = max(0.0, computed - hidden_s), computed
            for span, exposed in ((hidden, False), ((free, free + seconds), True)):
                comm = {"group": group, "exposed": exposed, **more}
                yield self._event(f"{group} communication", group, "comm", span, **comm)
            free += seconds
        slowest = free, free + float(bare_s) - mean_s
        yield self._event("wait for the slowest rank", COMPUTE, "idle", slowest, **more)

    def _parts(self, kind: str, chunk: int) -> list[PassParts]:
        """Return the passes of an operation: the layers of a virtual stage, and the ends it has."""
        ledger, stages = self.estimate.ledger, self.estimate.program.stages
        first, last = self.stage == 0, self.stage == self.work.stages - 1
        share = stages.first if first else stages.last if last else stages.middle
        virtual_stages = self.work.virtual_stages
        layers = share.layers / virtual_stages
        pieces: list[tuple[Any, Piece]] = [(layers * part, piece) for part, piece in ledger.shares]
        if first and chunk == 0:
            pieces.append((1, ledger.first))
        if last and chunk == virtual_stages - 1:
            pieces.append((1, ledger.last))
        apart = self.estimate.layout.schedule == "zero_bubble"
        backward = ("backward",) if apart else ("backward", "weight")
        passes = {"F": ("forward",), "W": ("weight",)}.get(kind, backward)
        return [PassParts.of(pieces, name) for name in passes]

    def _sends(self) -> Iterator[Event]:
        """Yield the sends, each exposed from when on the receiver has nothing else to do."""
        stages = self.work.stages
        last = stages - 1
        numbers = {
            to: {op: number for number, op in enumerate(self.line.lanes[to].ops)}
            for to in ((self.stage - 1) % stages, (self.stage + 1) % stages)
        }
        for number, start, end in self.lane.sends:
            kind, chunk, batch = self.lane.ops[number]
            if not self.window.holds(batch):
                continue
            if kind == "F":
                to, there = (self.stage + 1) % stages, chunk + (self.stage == last)
            else:
                to, there = (self.stage - 1) % stages, chunk - (self.stage == 0)
            before = numbers[to][kind, there, batch] - 1
            idle = self.line.lanes[to].ends[before] if before >= 0 else 0.0
            waits = start if self.line.blocking or self.whole else max(start, min(end, idle))
            name = f"send {'activations' if kind == 'F' else 'gradients'}"
            more = {"group": "pp", "micro_batch": batch, "chunk": chunk, "passing": _NAMES[kind]}
            yield self._event(name, "pp", "send", (start, waits), exposed=False, **more)
            yield self._event(name, "pp", "send", (waits, end), **more)

    def _gathers(self) -> Iterator[Event]:
        """Yield buckets of weights, exposed while the first forward of a chunk waits for them."""
        lane = self.lane
        waits = [
            (start, start + self._late(op, start, end))
            for op, start, end in zip(lane.ops, lane.starts, lane.ends, strict=True)
            if op[0] == "F" and op[2] == 0
        ]
        yield from self._buckets("gather weights", lane.gathers, waits)

    def _buckets(self, name: str, buckets: Sequence[Bucket], waits: list[Span]) -> Iterator[Event]:
        """Yield buckets, exposed while the stage waits; those that follow at once are joined."""
        for chunk, start, end in buckets if self.whole else _joined(buckets):
            more = {"group": "dp", "chunk": chunk}
            free = start
            for one, other in [(start, end)] if self.whole else waits:
                late = max(start, one), min(end, other)
                if late[1] > late[0]:
                    yield self._event(name, "dp", "comm", (free, late[0]), exposed=False, **more)
                    yield self._event(name, "dp", "comm", late, **more)
                    free = late[1]
            yield self._event(name, "dp", "comm", (free, end), exposed=False, **more)

    def _end(self, free: float) -> Iterator[Event]:
        """Yield what follows the pipeline: what replicas send alone, optimizer, the rest."""
        software, ledger = self.estimate.program.setting.software, self.estimate.ledger
        alone = not software.dp_overlap
        done = self.line.reduced_s(self.stage)
        for name, kind, seconds in (
            ("reduce gradients", "comm", float(ledger.reduce.seconds) if alone else 0.0),
            ("optimizer", "optimizer", float(self.work.optimizer_s)),
            ("gather weights", "comm", float(ledger.collect.seconds) if alone else 0.0),
        ):
            stream, group = ("dp", "dp") if kind == "comm" else (COMPUTE, None)
            yield self._event(name, stream, kind, (done, done + seconds), group=group)
            done += seconds
        over = self.line.step_s - float(software.step_overhead_s)
        yield self._event("wait", COMPUTE, "idle", (max(done, free), over))
        yield self._event(HOST, COMPUTE, "host", (over, self.line.step_s))


def _added(tables: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return seconds by group, added up over passes."""
    total: dict[str, float] = {}
    for table in tables:
        for group, seconds in table.items():
            total[group] = total.get(group, 0.0) + float(seconds)
    return total


def _joined(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Return buckets of a chunk that follow each other at once as one."""
    joined: list[Bucket] = []
    for chunk, start, end in buckets:
        if joined and joined[-1][0] == chunk and start - joined[-1][2] <= _TRIFLE_S:
            joined[-1] = chunk, joined[-1][1], end
        else:
            joined.append((chunk, start, end))
    return joined


class _Part(NamedTuple):
    """A piece of one pass of serving: the embedding, a layer, some layers, or the head."""

    name: str
    parts: PassParts
    collectives: float
    """Of the tensor group, at which ranks wait for the slowest."""


def _serving(estimate: Estimate) -> Drawing:
    """Return one pass through all stages."""
    program, ledger = estimate.program, estimate.ledger
    software, pp = program.setting.software, int(estimate.layout.pp)
    whole = ledger.forward
    late = float(whole.wall_s(software) - whole.device_s) / max(float(whole.kernels), 1.0)
    host = serving_host_s(software, program.setting.sequences, program.setting.drafted, 0)
    free = float(host)
    events = [Event(HOST, 0, COMPUTE, "host", 0.0, free)]
    turns: list[Span] = []
    for stage in range(pp):
        begin = free
        for part in _parts_of(estimate, stage):
            waits = late * float(part.parts.time.kernels)
            waits += float(software.collective_wait_s) * part.collectives
            drawn, free = _passed(part, stage, free, waits)
            events += drawn
        turns.append((begin if stage else 0.0, free))
        if stage < pp - 1:
            end = free + float(ledger.send.seconds)
            events.append(Event("send activations", stage, "pp", "send", free, end, group="pp"))
            free = end
    for stage, (begin, end) in enumerate(turns):
        events.append(Event("wait", stage, COMPUTE, "idle", 0.0, begin))
        events.append(Event("wait", stage, COMPUTE, "idle", end, free))
    events = [event for event in events if event.seconds > 0]
    what = "prefill" if estimate.workload.phase == "prefill" else "step of decoding"
    stages = f" through {pp} stages" if pp > 1 else ""
    title = f"One {what}{stages}, each layer's work by kind"
    total = program.num_layers
    cut = f"the {total} layers are drawn together, stage by stage"
    shown_cut = cut if total > _MOST_LAYERS else None
    return drawing("step", title, free, events, _totals(estimate), shown_cut)


def _parts_of(estimate: Estimate, stage: int) -> Iterator[_Part]:
    """Yield the pieces of one pass through a stage, in order."""
    ledger, total = estimate.ledger, estimate.program.num_layers
    outer = [float(piece.tensor_collectives) for piece in (ledger.first, ledger.last)]
    per_layer = float(ledger.tensor_collectives - sum(outer)) / total
    by_cost = estimate.program.setting.software.balance == "cost"
    split = stage_by_cost if by_cost else stage_evenly
    *earlier, own = (split(estimate.model, estimate.layout, each) for each in range(stage + 1))
    before, layers = sum(int(each.layers) for each in earlier), int(own.layers)
    if own.has_embedding:
        yield _Part("embedding", PassParts.of([(1, ledger.first)], "forward"), outer[0])
    if total <= _MOST_LAYERS:
        layer = PassParts.of(ledger.shares, "forward")
        for number in range(before, before + layers):
            yield _Part(f"layer {number}", layer, per_layer)
    elif layers:
        name = f"layers {before} to {before + layers - 1}"
        shares = [(layers * share, piece) for share, piece in ledger.shares]
        yield _Part(name, PassParts.of(shares, "forward"), layers * per_layer)
    if own.has_head:
        yield _Part("head", PassParts.of([(1, ledger.last)], "forward"), outer[1])


def _passed(part: _Part, stage: int, free: float, waits: float) -> tuple[list[Event], float]:
    """Return the events of a piece from a time on, and when it is over."""
    parts, name = part.parts, part.name
    events: list[Event] = []
    start = free
    for kind, seconds in parts.compute_s.items():
        end = free + float(seconds)
        title = f"{name}: {kind}"
        events.append(Event(title, stage, COMPUTE, kind, free, end, passing="forward"))
        free = end
    computed = free
    for group, seconds in parts.exposed_s.items():
        title = f"{name}: {group} communication"
        begin = max(start, computed - float(parts.comm_s[group] - seconds))
        end = free + float(seconds)
        for one, other, exposed in ((begin, computed, False), (free, end, True)):
            comm = (title, stage, group, "comm", one, other, exposed, group)
            events.append(Event(*comm, passing="forward"))
        free = end
    if waits > 0:
        title = f"{name}: wait for the host and other ranks"
        events.append(Event(title, stage, COMPUTE, "host", free, free + waits, passing="forward"))
        free += waits
    return events, free

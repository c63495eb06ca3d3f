"""The ledger: every operation of a step with its price and how often it happens.

A program says what one rank does for one micro-batch in each piece of the model (a kind of layer,
the embedding, the head) and once a step; `Ledger` prices it and is the only place that knows how
often each operation happens. From it follow the time of a step (`time_s`, on numbers or arrays of
layouts) and, for whoever asks, a flat table of entries (`entries`), of which every other figure is
a sum by group: compute by kind, communication by group, bytes by link, messages, the roofline.

Communication counts twice: all of it, and the part that nothing hides. What hides inside a layer,
`shardcost.estimate.pieces` says; what hides behind a whole pass, `shardcost.schedule`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shardcost.arrays import choose, largest, smallest
from shardcost.checks import is_array
from shardcost.estimate.pieces import PassTime, Piece, is_copy, kind_of, pieces_of, walls_s
from shardcost.estimate.price import NOTHING, CollectivePrice, Prices, added
from shardcost.jitter import slowest_of
from shardcost.program.assemble import Program
from shardcost.program.operations import (
    Collective,
    Elementwise,
    Operation,
    Operations,
)
from shardcost.records import NamedTuple, dataclass
from shardcost.software import Software

if TYPE_CHECKING:
    from shardcost.schedule.step import StepTime
    from shardcost.schedule.work import Stage, StepWork

Take: TypeAlias = Callable[[Any], Any]
"""Returns some cells of a figure of many layouts; plain numbers as they are."""
Pieces: TypeAlias = tuple[tuple[Piece, ...], Piece, Piece]
"""One piece for each kind of layer, the embedding and the head."""
StageWork: TypeAlias = "tuple[Stage, Stage, Stage]"

EMBEDDING, HEAD = "embedding", "head"
BETWEEN_STAGES: Final = "between stages"
STEP: Final = "step"
"""Pass and piece of what happens once a step."""


class Entry(NamedTuple):
    """One operation in a step: a line of the ledger. Numbers, or arrays of layouts."""

    op: Operation
    phase: str
    """One of `PASSES`, or `STEP`."""
    piece: str
    """The kind of layer, the embedding, the head, between stages, or once a step."""
    times: Any
    """Calls in a step on the rank that sets the pace; 0 where another stage has it."""
    seconds: Any
    """Of one call, in a run of the software."""
    exposed_s: Any
    """Of all calls, what lengthens the step."""

    @property
    def total_s(self) -> Any:
        """Seconds of all calls, hidden or not."""
        return self.times * self.seconds

    @property
    def group(self) -> str:
        """The degree whose communication a collective is; else empty."""
        return self.op.degree if isinstance(self.op, Collective) else ""

    @property
    def kind(self) -> str:
        """The part of the time that it counts to: a kind of compute, optimizer, or a group."""
        if isinstance(self.op, Collective):
            return self.group
        return "optimizer" if self.phase == STEP else kind_of(self.op)

    @property
    def flops(self) -> Any:
        """Of all calls; elementwise kernels count none."""
        if isinstance(self.op, Collective | Elementwise):
            return 0.0
        return self.times * (self.op.flops / self.op.count)


class Pace(NamedTuple):
    """The stage that sets the pace of a pipeline; in serving, all stages together."""

    name: Any
    layers: Any
    embedding: Any
    """Whether it has the embedding: 1 or 0."""
    head: Any


@dataclass(frozen=True, eq=False)
class Ledger:
    """A program priced on a machine."""

    program: Program
    prices: Prices
    layers: tuple[Piece, ...]
    """One for each kind of layer."""
    first: Piece
    last: Piece
    gather: CollectivePrice
    """One mean layer's sharded weights, gathered once."""
    scatter: CollectivePrice
    """One mean layer's gradients, scattered once."""
    reduce: CollectivePrice
    """All gradients of a rank, once a step."""
    collect: CollectivePrice
    """All updated weights of a rank, once a step."""
    optimizer_s: Any
    send: CollectivePrice
    """From one stage to the next, once."""
    step_bytes: tuple[Any, Any] = (0.0, 0.0)
    """What a rank sends in a training step but for sends between stages: inside its domain, and
    into the network. A field and not a property: a search shares it among schedules."""

    @classmethod
    def of(cls, program: Program, prices: Prices, known: Pieces | None = None) -> Ledger:
        """Return a program priced; with pieces that are known, only the rest of it."""
        step, total = program.step, program.num_layers
        pieces, first, last = known or layer_pieces(program, prices)
        if step is None:
            none = NOTHING
            (send,) = _sums([sends(program)], prices)
            return cls(program, prices, pieces, first, last, none, none, none, none, 0.0, send)
        shares = [each.count / total for each in program.layers]
        on_device, on_host = _by_place(step.optimizer)
        once = [sends(program), step.gradients, step.weights, on_device, on_host]
        gathers = [each.gathers.forward for each in program.layers]
        scatters = [each.gathers.gradient for each in program.layers]
        sums = _sums([*once, *gathers, *scatters], prices)
        send, reduce, collect, device, host = sums[: len(once)]
        by_layer = sums[len(once) :]
        gather = added(list(zip(shares, by_layer[: len(shares)], strict=True)))
        scatter = added(list(zip(shares, by_layer[len(shares) :], strict=True)))
        runs, layers = program.micro_batches, program.stages.most_layers
        inside_sent: Any = 0.0
        network_sent: Any = 0.0
        for times, each in (
            (1, reduce),
            (1, collect),
            (2 * runs * layers, gather),
            (runs * layers, scatter),
        ):
            if each is not NOTHING:
                inside_sent = inside_sent + times * each.inside_bytes
                network_sent = network_sent + times * each.network_bytes
        inside, network = layer_bytes(program, (pieces, first, last))
        return cls(
            program,
            prices,
            pieces,
            first,
            last,
            gather,
            scatter,
            reduce,
            collect,
            # Shares of an update on the device and on the host run side by side.
            largest(device.seconds, host.seconds) if on_host else device.seconds,
            send,
            (inside + inside_sent, network + network_sent),
        )

    @cached_property
    def layer(self) -> tuple[PassTime, PassTime, PassTime]:
        """The passes of the mean layer: forward, backward, weight gradients."""
        if len(self.layers) == 1:
            return self.layers[0].passes
        passes = (PassTime(), PassTime(), PassTime())
        for share, piece in self.shares:
            passes = tuple(  # type: ignore[assignment]
                mean.plus(own.times(share)) for mean, own in zip(passes, piece.passes, strict=True)
            )
        return passes

    @property
    def shares(self) -> list[tuple[Any, Piece]]:
        """The kinds of layer, each with its share of all layers."""
        total = self.program.num_layers
        kinds = zip(self.program.layers, self.layers, strict=True)
        return [(kind.count / total, piece) for kind, piece in kinds]

    @property
    def forward(self) -> PassTime:
        """One pass forward over all layers, the embedding and the head."""
        layers = self.layer[0].times(self.program.num_layers)
        return layers.plus(self.first.forward).plus(self.last.forward)

    @property
    def tensor_collectives(self) -> Any:
        """Collectives of the tensor group in one pass forward."""
        counts = [each.count for each in self.program.layers]
        pieces = zip((*counts, 1, 1), (*self.layers, self.first, self.last), strict=True)
        return sum(times * piece.tensor_collectives for times, piece in pieces)

    @property
    def host_s(self) -> Any:
        """Seconds of the host that a step waits for, beside those of starting kernels.

        In serving, the host looks after every sequence before a pass, and at every collective of
        the tensor group the ranks wait for the slowest.
        """
        setting = self.program.setting
        if self.program.step:
            return setting.software.step_overhead_s
        return serving_host_s(
            setting.software, setting.sequences, setting.drafted, self.tensor_collectives
        )

    @property
    def launch_wait_s(self) -> Any:
        """Seconds of a step in which the device waits for the host to start kernels."""
        software = self.program.setting.software
        if software.launch == "graph":
            return 0.0 * self.forward.device_s
        return sum(
            times * (each.wall_s(software) - each.device_s)
            for _, times, each in self.launched_passes
        )

    @property
    def launched_passes(self) -> list[tuple[str, Any, PassTime]]:
        """The passes that a host starts kernel by kernel: name, times a step, and one of them."""
        if not self.program.step:
            return [("forward", 1, self.forward)]
        pace, runs = self.pace, self.program.micro_batches
        pieces = (
            ("layer", pace.layers, self.layer),
            (EMBEDDING, pace.embedding, self.first.passes),
            (HEAD, pace.head, self.last.passes),
        )
        return [
            (f"{name} {phase}", runs * times, each)
            for name, times, (forward, backward, weight) in pieces
            for phase, each in (("forward", forward), ("backward", backward.plus(weight)))
        ]

    @property
    def slowest(self) -> Any:
        """How much longer passes of a training step take on the slowest rank than on the mean."""
        devices, machine = self.program.setting.layout.devices, self.prices.machine
        return slowest_of(devices, machine.cluster.gpus_per_node, machine.jitter.node_spread)

    @property
    def straggler_s(self) -> Any:
        """Of a training step, what the busiest stage's passes take longer on the slowest rank."""
        return self.step_time.compute_s * (1.0 - 1.0 / self.slowest)

    @property
    def stage_work(self) -> StageWork:
        """The compute of the first, the middle and the last stages, as a schedule takes it."""
        from shardcost.schedule.work import Stage

        software, stages, slower = self.program.setting.software, self.program.stages, self.slowest
        layer = walls_s(self.layer, software)

        def stage(layers: Any, extra: Sequence[PassTime] = ()) -> Stage:
            ends = walls_s(extra, software) if extra else ()
            return Stage(
                *(slower * layers * each for each in layer), *(slower * each for each in ends)
            )

        return (
            stage(stages.first.layers, self.first.passes),
            stage(stages.middle.layers),
            stage(stages.last.layers, self.last.passes),
        )

    @property
    def step_work(self) -> StepWork:
        """A training step as the schedule takes it."""
        return self.step_work_at(self.stage_work, self.program.setting.layout.virtual_stages)

    def step_work_at(
        self, stages: StageWork, virtual_stages: Any, take: Take = lambda figure: figure
    ) -> StepWork:
        """Return a training step as the schedule takes it, of all layouts or of some cells.

        Args:
            stages: The compute of the stages, of those cells.
            virtual_stages: Of those cells.
            take: Returns the cells of a figure of this ledger; plain numbers hold for all of them.
        """
        from shardcost.schedule import work as schedule

        program, software = self.program, self.program.setting.software
        overlapped = software.dp_overlap
        alone_s = 0.0 if overlapped else self.reduce.seconds + self.collect.seconds
        gather_s = self.gather.seconds
        return schedule.StepWork(
            *stages,
            stages=take(program.setting.layout.pp),
            micro_batches=take(program.micro_batches),
            virtual_stages=virtual_stages,
            sends=schedule.Sends(take(self.send.seconds), blocking=not software.pp_overlap),
            data_parallel=schedule.DataParallel(
                take(self.reduce.seconds) if overlapped else 0.0,
                take(self.collect.seconds) if overlapped else 0.0,
                _buckets(take(_gradient_bytes(program)), virtual_stages, software),
            ),
            layer_gathers=schedule.LayerGathers(
                take(gather_s),
                take(gather_s + self.scatter.seconds),
                take(program.stages.first.layers) / virtual_stages,
                self.prices.lost_beside_gathers,
            ),
            optimizer_s=take(self.optimizer_s),
            overhead_s=take(software.step_overhead_s + alone_s),
        )

    @cached_property
    def step_time(self) -> StepTime:
        """A training step and what it is made of."""
        from shardcost.schedule.step import step_time

        return step_time(self.step_work, self.program.setting.layout.schedule)

    def time_s(self) -> Any:
        """Return the time of a step."""
        if self.program.step is None:
            software = self.program.setting.software
            sends_s = (self.program.setting.layout.pp - 1) * self.send.seconds
            return self.forward.wall_s(software) + sends_s + self.host_s
        from shardcost.schedule.step import step_s  # serving has no schedule of a pipeline

        seconds = step_s(self.step_work, self.program.setting.layout.schedule)
        return largest(seconds, *self.link_times_s)

    @property
    def link_times_s(self) -> tuple[Any, ...]:
        """What the links of a rank need at least for a training step's bytes, at nominal rates."""
        return self.link_times_at(self.step_bytes, self.program.setting.layout.virtual_stages)

    def link_times_at(
        self,
        step_bytes: tuple[Any, Any],
        virtual_stages: Any,
        take: Take = lambda figure: figure,
    ) -> tuple[Any, ...]:
        """Return what the links of a rank need at least, of all layouts or of some cells.

        Gradients hide behind layers, and layers may use the same ports for other groups: together
        they cannot take less than this (conservation of bytes). Inside a domain, then the network.

        Args:
            step_bytes: Sent in a step but for sends between stages, of those cells.
            virtual_stages: Of those cells.
            take: Returns the cells of a figure of this ledger.
        """
        cluster = self.prices.machine.cluster
        times = 2 * take(self.program.micro_batches) * virtual_stages
        inside, network = (
            own + times * take(sent) for own, sent in zip(step_bytes, self.send[1:], strict=True)
        )
        if cluster.network is None:
            return (inside / cluster.tiers[-1].bytes_per_s,)
        ports = cluster.network.node_bytes_per_s(cluster.gpus_per_node) / cluster.gpus_per_node
        return inside / cluster.tiers[-1].bytes_per_s, network / ports

    @cached_property
    def pace(self) -> Pace:
        """The stage that has most to do for a micro-batch."""
        program, software = self.program, self.program.setting.software
        if program.step is None:
            return Pace("all stages", program.num_layers, 1, 1)

        def wall_s(layers: Any, *ends: Piece) -> Any:
            passes = layers * sum(walls_s(self.layer, software))
            return passes + sum(sum(walls_s(end.passes, software)) for end in ends)

        stages = program.stages
        slowest = Pace("first stage", stages.first.layers, 1, 0)
        most = wall_s(stages.first.layers, self.first)
        for name, layers, end, head in (
            ("middle stage", stages.middle.layers, (), 0),
            ("last stage", stages.last.layers, (self.last,), 1),
        ):
            there = wall_s(layers, *end)
            slower = there > most
            slowest = _pace_where(slower, Pace(name, layers, 0, head), slowest)
            most = choose(slower, there, most)
        only = Pace("only stage", stages.first.layers, 1, 1)
        return _pace_where(program.setting.layout.pp == 1, only, slowest)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Every operation of a step on the rank that sets the pace; in serving, on all stages."""
        listed = [*self._in_pieces(), *self._between()]
        step = self.step_time if self.program.step else None
        if step is None:
            return tuple(listed)
        software = self.program.setting.software
        alone = 0.0 if software.dp_overlap else self.reduce.seconds + self.collect.seconds
        waits = {"dp": step.exposed_dp_s + alone, "pp": step.exposed_send_s}
        return tuple(_scheduled(listed, waits))

    def _in_pieces(self) -> Iterator[Entry]:
        program, pace = self.program, self.pace
        runs = program.micro_batches if program.step else 1
        total = program.num_layers
        often = [runs * pace.layers * each.count / total for each in program.layers]
        often += [runs * pace.embedding, runs * pace.head]
        for times, piece in zip(often, (*self.layers, self.first, self.last), strict=True):
            for row in piece.rows:
                calls = times * row.op.count
                yield Entry(
                    row.op, row.phase, piece.name, calls, row.seconds, times * row.exposed_s
                )

    def _between(self) -> Iterator[Entry]:
        """Yield sends between stages, gathers of sharded weights, and what happens once a step."""
        program, layout = self.program, self.program.setting.layout
        if program.step is None:
            yield from self._priced(sends(program), "forward", BETWEEN_STAGES, layout.pp - 1)
            return
        runs = program.micro_batches
        often = 2 * runs * layout.virtual_stages
        yield from self._priced(sends(program), "forward", BETWEEN_STAGES, often)
        for number, kind in enumerate(program.layers):
            name, often = (
                _layer_name(number),
                runs * self.pace.layers * kind.count / program.num_layers,
            )
            yield from self._priced(kind.gathers.forward, "forward", name, often)
            yield from self._priced(kind.gathers.backward, "backward", name, often)
            yield from self._priced(kind.gathers.gradient, "backward", name, often)
        step = program.step
        yield from self._priced(step.gradients + step.weights, STEP, STEP, 1)
        on_device, on_host = _by_place(step.optimizer)
        yield from self._priced(on_device, STEP, STEP, 1)
        hidden_s = _sums([on_device], self.prices)[0].seconds
        for entry in self._priced(on_host, STEP, STEP, 1):
            exposed_s = largest(0.0, entry.exposed_s - hidden_s)
            hidden_s = largest(0.0, hidden_s - entry.exposed_s)
            yield entry._replace(exposed_s=exposed_s)

    def _priced(
        self, operations: Operations, phase: str, piece: str, times: Any
    ) -> Iterator[Entry]:
        seconds = self.prices.of(operations) if operations else []
        for op, each_s in zip(operations, seconds, strict=True):
            calls = times * op.count
            yield Entry(op, phase, piece, calls, each_s, calls * each_s)


def joined(entries: Sequence[Entry]) -> dict[str, Entry]:
    """Return entries by name, those that are alike in all but their count as one.

    Of one layout. Different operations of the same name are numbered; an entry's operation counts
    once, and its phase names all passes that have it.
    """
    alike: dict[tuple[Operation, Any], list[Entry]] = {}
    for entry in entries:
        alike.setdefault((once(entry.op), entry.seconds), []).append(entry)
    named: dict[str, Entry] = {}
    for (op, seconds), same in alike.items():
        often = sum(other.op.name == op.name for other in named.values())
        where = (
            entry.phase if entry.piece.startswith(("layer", STEP)) else entry.piece
            for entry in same
        )
        named[f"{op.name} {often + 1}" if often else op.name] = Entry(
            op,
            ", ".join(dict.fromkeys(where)),
            same[0].piece,
            float(sum(entry.times for entry in same)),
            float(seconds),
            float(sum(entry.exposed_s for entry in same)),
        )
    return named


def once(op: Operation) -> Operation:
    """Return an operation without what does not change one call of it."""
    if isinstance(op, Collective):
        return op._replace(count=1, hides_behind=(), split_with=None)
    return op._replace(count=1, id=None)


def serving_host_s(software: Software, sequences: Any, drafted: Any, collectives: Any) -> Any:
    """Return the seconds of the host in one pass of serving, beside those of starting kernels."""
    per_step = software.step_overhead_s + software.host_per_sequence_s * sequences
    if not (isinstance(drafted, int) and drafted == 0):
        per_step = per_step + software.host_per_draft_s * drafted
    return per_step + software.collective_wait_s * collectives


def _scheduled(entries: Sequence[Entry], waits: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield entries; of groups that the schedule hides, with their share of what it exposes."""
    totals: dict[str, Any] = {}
    for entry in entries:
        if entry.group in waits:
            totals[entry.group] = totals.get(entry.group, 0.0) + entry.total_s
    for entry in entries:
        if entry.group in waits:
            whole = totals[entry.group]
            share = entry.total_s / choose(whole > 0, whole, 1.0)
            yield entry._replace(exposed_s=share * waits[entry.group])
        else:
            yield entry


def _pace_where(condition: Any, one: Pace, other: Pace) -> Pace:
    if not is_array(condition):
        return one if condition else other
    return Pace(*(choose(condition, a, b) for a, b in zip(one, other, strict=True)))


def _layer_name(number: int) -> str:
    return f"layer kind {number + 1}" if number else "layer"


def sends(program: Program) -> Operations:
    """Return the send of one stage to the next, none where there is one stage."""
    pp = program.setting.layout.pp
    if isinstance(pp, int) and pp == 1:
        return ()
    return (Collective("send", "send_recv", program.send_bytes, "pp", smallest(pp, 2)),)


def _sums(parts: Sequence[Operations], prices: Prices) -> list[CollectivePrice]:
    """Return the seconds of operations, part by part, and the bytes that a rank sends for them."""
    every = [op for operations in parts for op in operations]
    priced = iter(prices.priced(every) if every else ())
    return [
        added([(op.count, next(priced)) for op in operations]) if operations else NOTHING
        for operations in parts
    ]


def _by_place(optimizer: Operations) -> tuple[Operations, Operations]:
    """Return what of an update the device does, and what the host and the link to it."""
    on_host = tuple(op for op in optimizer if is_copy(op))
    return tuple(op for op in optimizer if not is_copy(op)), on_host


def layer_pieces(program: Program, prices: Prices) -> Pieces:
    """Return the kinds of layer, the embedding and the head of a program, priced."""
    named = [(_layer_name(number), each.passes) for number, each in enumerate(program.layers)]
    named += [(EMBEDDING, program.first), (HEAD, program.last)]
    *kinds, first, last = pieces_of(named, prices, program.setting.software)
    return tuple(kinds), first, last


def layer_bytes(program: Program, known: Pieces) -> tuple[Any, Any]:
    """Return what a rank sends in the layers of a training step: inside its domain, and beyond.

    Apart from what ZeRO and gradients add, because a search has the two from different ledgers.
    """
    pieces, first, last = known
    runs, layers, total = program.micro_batches, program.stages.most_layers, program.num_layers
    inside, network = first.joined_bytes(last, program.setting.layout.pp == 1)
    inside, network = runs * inside, runs * network
    for kind, piece in zip(program.layers, pieces, strict=True):
        times = runs * layers * (kind.count / total)
        inside = inside + times * piece.inside_bytes
        network = network + times * piece.network_bytes
    return inside, network


def _gradient_bytes(program: Program) -> Any:
    """Return the bytes of all gradients of a rank that are sent."""
    gradients = program.step.gradients if program.step else ()
    return sum(op.size_bytes * (op.ranks > 1) for op in gradients if isinstance(op, Collective))


def _buckets(gradient_bytes: Any, virtual_stages: Any, software: Software) -> Any:
    """Return into how many buckets the gradients of a virtual stage go."""
    count = largest(1, gradient_bytes / virtual_stages // software.bucket_bytes)
    return count if is_array(count) else int(count)

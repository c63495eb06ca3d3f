"""The ledger: every operation of a step with its price and how often it happens.

A program says what one rank does for one micro-batch in each piece of the model (a kind of layer,
the embedding, the head) and once a step; `Ledger` prices it and is the only place that knows how
often each operation happens. From it follow the time of a step (`time_s`, on numbers or arrays of
layouts) and, for whoever asks, a flat table of entries (`entries`), of which every other figure is
a sum by group: compute by kind, communication by group, bytes by link, messages, the roofline.

Communication counts twice: all of it, and the part that nothing hides. Tensor-parallel collectives
hide as the software does it: behind a GEMM that does not wait for them, or chunk by chunk behind
the GEMM that they feed (Wang et al. 2023, ASPLOS). A ring of key-value blocks hides behind the
attention of the block at hand. What hides is not free: the collective's kernel takes SMs from the
GEMM, whose tiles then need more waves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shardcost.arrays import choose, largest, smallest
from shardcost.checks import is_array
from shardcost.estimate.price import CollectivePrice, Prices
from shardcost.program.assemble import Program
from shardcost.program.operations import (
    AttentionCore,
    Collective,
    Elementwise,
    ExpertKernels,
    Gemm,
    Operation,
    Operations,
    OpId,
    Passes,
)
from shardcost.schedule.overlap import beside, chunked, ring_attention
from shardcost.software import Software

if TYPE_CHECKING:
    from shardcost.schedule.step import StepTime
    from shardcost.schedule.work import Stage, StepWork

KIND: Final[Mapping[type, str]] = {
    Gemm: "gemm",
    AttentionCore: "attention",
    Elementwise: "elementwise",
    ExpertKernels: "gemm",
}
"""Kinds of compute; expert kernels are grouped GEMMs for the most part."""
PASSES: Final = ("forward", "recompute", "backward", "weight")
"""Passes over a piece; gradients of the input and of the weights are apart."""
EMBEDDING, HEAD = "embedding", "head"
BETWEEN_STAGES: Final = "between stages"
STEP: Final = "step"
"""Pass and piece of what happens once a step."""
_INSTANT_S: Final = 1e-30
"""Keeps shares of passes without any work finite."""


class Row(NamedTuple):
    """One operation of a piece in one pass, priced."""

    op: Operation
    phase: str
    seconds: Any
    """Of one call, in a run of the software."""
    exposed_s: Any
    """By how much all its calls lengthen the pass."""


class PassTime(NamedTuple):
    """What one pass over a piece takes on the device, and what the host starts for it."""

    device_s: Any = 0.0
    """Compute, and communication that nothing hides."""
    kernels: Any = 0
    hops: Any = 0
    """Ranks beyond the first, of all collectives."""

    def times(self, count: Any) -> PassTime:
        """Return the same pass so many times."""
        return PassTime(*(count * value for value in self))

    def plus(self, other: PassTime) -> PassTime:
        """Return two passes, one after the other."""
        return PassTime(*(one + two for one, two in zip(self, other, strict=True)))

    def wall_s(self, software: Software) -> Any:
        """Return the seconds that pass: the host's, where it starts kernels too slowly.

        If the seconds of host and device over a few kernels scatter about their means h and d as
        Fréchet's extremes of shape 1/s do, the slower of the two takes (h^(1/s) + d^(1/s))^s on
        average: nearly the larger where they are far apart, 2^s times either where they are equal.
        """
        if software.launch == "graph":
            return self.device_s
        host = self.kernels * software.host_per_kernel_s
        if software.host_per_hop_s is not None:
            host = host + self.hops * software.host_per_hop_s
        slower = largest(self.device_s, host)
        if software.host_scatter is None:
            return slower
        share = smallest(self.device_s, host) / largest(slower, _INSTANT_S)
        return slower * (1 + share ** (1 / software.host_scatter)) ** software.host_scatter


class Piece(NamedTuple):
    """A kind of layer, the embedding or the head, for one micro-batch."""

    name: str
    rows: tuple[Row, ...]
    forward: PassTime
    backward: PassTime
    """Gradients of the input, and what is computed again for them."""
    weight: PassTime
    inside_bytes: Any = 0.0
    """Sent by a rank in all passes over the links inside a domain …"""
    network_bytes: Any = 0.0
    """… and into the network."""

    def joined_bytes(self, other: Piece, together: Any) -> tuple[Any, Any]:
        """Return the bytes of two pieces: of both where one rank has them, else the larger."""
        mine, its = self[5:7], other[5:7]
        return tuple(
            choose(together, one + two, largest(one, two))
            for one, two in zip(mine, its, strict=True)
        )

    @property
    def tensor_collectives(self) -> Any:
        """Collectives of the tensor group in one pass forward."""
        return sum(
            row.op.count * (row.op.ranks > 1)
            for row in self.rows
            if row.phase == "forward" and isinstance(row.op, Collective) and row.op.group == "tp"
        )

    @property
    def passes(self) -> tuple[PassTime, PassTime, PassTime]:
        """Forward, backward, weight gradients."""
        return self[2:5]


class PassParts(NamedTuple):
    """One pass over a piece by kind of compute and by group."""

    compute_s: dict[str, Any]
    comm_s: dict[str, Any]
    exposed_s: dict[str, Any]
    time: PassTime

    @classmethod
    def of(cls, pieces: Sequence[tuple[Any, Piece]], phase: str) -> PassParts:
        """Return the parts of a pass over pieces, each so many times.

        Args:
            pieces: How often, and what.
            phase: ``forward``, ``backward`` (what is computed again included) or ``weight``.
        """
        parts = cls(dict.fromkeys(KIND.values(), 0.0), {}, {}, PassTime())
        time = PassTime()
        passes = ("recompute", "backward") if phase == "backward" else (phase,)
        for times, piece in pieces:
            time = time.plus(getattr(piece, phase).times(times))
            for row in piece.rows:
                if row.phase in passes:
                    parts._add(row, times)
        return parts._replace(time=time)

    def _add(self, row: Row, times: Any) -> None:
        whole = times * row.op.count * row.seconds
        if not isinstance(row.op, Collective):
            self.compute_s[KIND[type(row.op)]] += whole
            return
        group = row.op.degree
        self.comm_s[group] = self.comm_s.get(group, 0.0) + whole
        self.exposed_s[group] = self.exposed_s.get(group, 0.0) + times * row.exposed_s


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
        return "optimizer" if self.phase == STEP else KIND[type(self.op)]

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
    def of(cls, program: Program, prices: Prices, known: Ledger | None = None) -> Ledger:
        """Return a program priced; pieces are those of a known ledger whose layers do the same."""
        software, step = program.setting.software, program.step
        if known is None:
            named = [
                (_layer_name(number), each.passes) for number, each in enumerate(program.layers)
            ]
            named += [(EMBEDDING, program.first), (HEAD, program.last)]
            *kinds, first, last = pieces_of(named, prices, software)
            pieces = tuple(kinds)
        else:
            pieces, first, last = known.layers, known.first, known.last
        total = program.num_layers
        shares = [(each.count / total, each.gathers) for each in program.layers]
        ledger = cls(
            program,
            prices,
            pieces,
            first,
            last,
            gather=_mean([(share, _summed(each.forward, prices)) for share, each in shares]),
            scatter=_mean([(share, _summed(each.gradient, prices)) for share, each in shares]),
            reduce=_summed(step.gradients, prices) if step else _NOTHING,
            collect=_summed(step.weights, prices) if step else _NOTHING,
            optimizer_s=_summed(step.optimizer, prices).seconds if step else 0.0,
            send=_summed(sends(program), prices),
        )
        return replace(ledger, step_bytes=ledger._step_bytes()) if step else ledger

    def _step_bytes(self) -> tuple[Any, Any]:
        stages, runs = self.program.stages, self.program.micro_batches
        layers = largest(stages.first.layers, stages.middle.layers, stages.last.layers)
        sent: list[tuple[Any, CollectivePrice | Piece]] = [
            (1, self.reduce),
            (1, self.collect),
            (2 * runs * layers, self.gather),
            (runs * layers, self.scatter),
            *((runs * layers * share, piece) for share, piece in self.shares),
        ]
        used = [(times, each) for times, each in sent if each is not _NOTHING]
        inside, network = self.first.joined_bytes(self.last, self.program.setting.layout.pp == 1)
        return (
            runs * inside + sum(times * each.inside_bytes for times, each in used),
            runs * network + sum(times * each.network_bytes for times, each in used),
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
    def forward_sends_s(self) -> Any:
        """All sends of one pass forward, from stage to stage."""
        return (self.program.setting.layout.pp - 1) * self.send.seconds

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
        return serving_host_s(setting.software, setting.sequences, self.tensor_collectives)

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
            for name, times, passes in pieces
            for phase, each in zip(("forward", "backward", "weight"), passes, strict=True)
        ]

    @cached_property
    def step_work(self) -> StepWork:
        """A training step as the schedule takes it."""
        from shardcost.schedule import work as schedule

        program = self.program
        layout, software, stages = program.setting.layout, program.setting.software, program.stages
        layer = [each.wall_s(software) for each in self.layer]

        def stage(layers: Any, extra: Sequence[PassTime]) -> Stage:
            return schedule.Stage(
                *(layers * each for each in layer), *(each.wall_s(software) for each in extra)
            )

        overlapped = software.dp_overlap
        alone_s = 0.0 if overlapped else self.reduce.seconds + self.collect.seconds
        return schedule.StepWork(
            first=stage(stages.first.layers, self.first.passes),
            middle=stage(stages.middle.layers, (PassTime(),) * 3),
            last=stage(stages.last.layers, self.last.passes),
            stages=layout.pp,
            micro_batches=program.micro_batches,
            virtual_stages=layout.virtual_stages,
            sends=schedule.Sends(self.send.seconds, blocking=not software.pp_overlap),
            data_parallel=schedule.DataParallel(
                self.reduce.seconds if overlapped else 0.0,
                self.collect.seconds if overlapped else 0.0,
                _buckets(program),
            ),
            layer_gathers=schedule.LayerGathers(
                self.gather.seconds,
                self.gather.seconds + self.scatter.seconds,
                stages.first.layers / layout.virtual_stages,
            ),
            optimizer_s=self.optimizer_s,
            overhead_s=software.step_overhead_s + alone_s,
        )

    @cached_property
    def step_time(self) -> StepTime:
        """A training step and what it is made of."""
        from shardcost.schedule.step import step_time

        return step_time(self.step_work, self.program.setting.layout.schedule)

    def time_s(self, cells: Callable[[Any], Any] | None = None) -> Any:
        """Return the time of a step.

        Args:
            cells: Takes from a tree of arrays those cells that are asked for; all if None.
        """
        if self.program.step is None:
            software = self.program.setting.software
            passing = self.forward.wall_s(software) + self.forward_sends_s + self.host_s
            return passing if cells is None else cells(passing)
        from shardcost.schedule.step import step_s  # serving has no schedule of a pipeline

        take = cells or _all_cells
        seconds = step_s(take(self.step_work), self.program.setting.layout.schedule)
        return largest(seconds, *map(take, self.link_times_s))

    @property
    def link_times_s(self) -> tuple[Any, ...]:
        """What the links of a rank need at least for a training step's bytes, at nominal rates.

        Gradients hide behind layers, and layers may use the same ports for other groups: together
        they cannot take less than this (conservation of bytes). Inside a domain, then the network.
        """
        program, cluster = self.program, self.prices.machine.cluster
        times = 2 * program.micro_batches * program.setting.layout.virtual_stages
        inside, network = (
            own + times * sent for own, sent in zip(self.step_bytes, self.send[1:], strict=True)
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
            passes = sum(layers * each.wall_s(software) for each in self.layer)
            return passes + sum(each.wall_s(software) for end in ends for each in end.passes)

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
        yield from self._priced(step.gradients + step.weights + step.optimizer, STEP, STEP, 1)

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
        alike.setdefault((_once(entry.op), entry.seconds), []).append(entry)
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


def _once(op: Operation) -> Operation:
    """Return an operation without what does not change one call of it."""
    if isinstance(op, Collective):
        return op._replace(count=1, hides_behind=(), split_with=None)
    return op._replace(count=1, id=None)


def serving_host_s(software: Software, sequences: Any, collectives: Any) -> Any:
    """Return the seconds of the host in one pass of serving, beside those of starting kernels."""
    per_step = software.step_overhead_s + software.host_per_sequence_s * sequences
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


_NOTHING: Final = CollectivePrice(0.0, 0.0, 0.0)


def _summed(operations: Operations, prices: Prices) -> CollectivePrice:
    """Return the seconds of operations, and the bytes that a rank sends for them."""
    if not operations:
        return _NOTHING
    counted = zip((op.count for op in operations), prices.with_bytes(operations), strict=True)
    return _mean(list(counted))


def _mean(shares: Sequence[tuple[Any, CollectivePrice]]) -> CollectivePrice:
    """Return prices, each so many times, added up."""
    if all(price is _NOTHING for _, price in shares):
        return _NOTHING
    return CollectivePrice(
        *(
            sum((times * figure for times, figure in column), 0.0)
            for column in ([(times, price[i]) for times, price in shares] for i in range(3))
        )
    )


def _buckets(program: Program) -> Any:
    """Return into how many buckets the gradients of a virtual stage go."""
    software, layout = program.setting.software, program.setting.layout
    gradients = program.step.gradients if program.step else ()
    sizes = (op.size_bytes * (op.ranks > 1) for op in gradients if isinstance(op, Collective))
    sent: Any = sum(sizes) / layout.virtual_stages
    count = largest(1, sent // software.bucket_bytes)
    return count if is_array(count) else int(count)


def pieces_of(
    named: Sequence[tuple[str, Passes]], prices: Prices, software: Software
) -> list[Piece]:
    """Return pieces with their prices; of plain numbers, kept with the machine's prices.

    Layouts that differ in pipeline or data parallelism only have the same layers.
    """
    if prices.arrays or prices.is_adjusted:
        return [_priced_piece(name, passes, prices, software) for name, passes in named]
    how = (
        software.tp_overlap,
        software.overlap_sms,
        software.overlap_chunks,
        software.slowdown,
        software.expert_overlap,
    )
    strides = tuple(prices.placed[group].stride for group in ("tp", "cp", "ep", "ep_tensor"))
    keys = [(name, passes, how, strides) for name, passes in named]
    new = [key for key in keys if key not in prices.pieces]
    if len(new) > 1:  # the GEMMs of all pieces go to the kernel as one vector
        prices.of([op for _, passes, _, _ in new for phase in passes for op in phase])
    for key in new:
        prices.pieces[key] = _priced_piece(key[0], key[1], prices, software)
    return [prices.pieces[key] for key in keys]


def _priced_piece(name: str, passes: Passes, prices: Prices, software: Software) -> Piece:
    named = [(phase, op) for phase in PASSES for op in getattr(passes, phase)]
    every = tuple(op for _, op in named)
    if not every:
        return Piece(name, (), PassTime(), PassTime(), PassTime())
    priced = prices.with_bytes(every)
    seconds = [each.seconds for each in priced]
    gemms = _overlaps(every, seconds, prices, software)
    rows = tuple(
        _row(op, phase, each_s, software, gemms)
        for (phase, op), each_s in zip(named, seconds, strict=True)
    )
    if software.expert_overlap != "none":
        rows = _with_hidden_exchange(rows, prices, software)
    again = len(passes.recompute) + len(passes.backward)
    cuts = (0, len(passes.forward), len(passes.forward) + again, len(rows))
    forward, backward, weight = (_pass_time(rows[start:end]) for start, end in pairwise(cuts))
    bytes_sent = _mean([(op.count, each) for op, each in zip(every, priced, strict=True)])
    return Piece(name, rows, forward, backward, weight, *bytes_sent[1:])


def _with_hidden_exchange(
    rows: tuple[Row, ...], prices: Prices, software: Software
) -> tuple[Row, ...]:
    """Return rows whose dispatch and combine hide behind the compute of another batch.

    Of two batches that take turns, one computes while the tokens of the other travel: each stretch
    of compute and the exchange beside it take as long as the longer of the two, with the SMs of
    the exchange taken from the GEMMs.
    """
    exposed: dict[int, Any] = {}
    for exchanges, compute in _side_by_side(rows):
        whole_s: Any = sum(rows[i].exposed_s for i in exchanges)
        alone_s: Any = sum(row.exposed_s for row in compute)
        first: Any = rows[exchanges[0]].op
        taken = software.overlap_sms if first.routed is None else prices.exchange_sms(first)
        on_sms = tuple(row.op for row in compute if not isinstance(row.op, Elementwise))
        lost: Any = 0.0
        if taken and on_sms:
            beside_s = prices.of(on_sms, sms_taken=taken)
            pairs = zip(on_sms, beside_s, prices.of(on_sms), strict=True)
            lost = software.slowdown * sum(op.count * (slow - own) for op, slow, own in pairs)
        together_s = beside(largest(alone_s, _INSTANT_S), whole_s, alone_s + lost + _INSTANT_S)
        left = smallest(1.0, (together_s - alone_s) / largest(whole_s, _INSTANT_S))
        exposed |= {i: left * rows[i].exposed_s for i in exchanges}
    return tuple(
        row._replace(exposed_s=exposed[i]) if i in exposed else row for i, row in enumerate(rows)
    )


def _side_by_side(rows: tuple[Row, ...]) -> Iterator[tuple[list[int], list[Row]]]:
    """Yield exchanges, by their place, with the compute of the other batch that runs meanwhile.

    In training a forward and a backward pass run side by side (DeepSeek-V3, arXiv:2412.19437,
    section 3.2.1; Megatron Core's combined 1F1B): attention of the one beside combine of the other,
    and experts beside dispatch. In serving any compute of one half hides any exchange of the other.
    """
    parts: dict[tuple[str, bool], list[Row]] = {}
    sent: dict[tuple[str, int], list[int]] = {}
    counts: dict[str, int] = {}
    for i, row in enumerate(rows):
        phase = "backward" if row.phase == "weight" else row.phase
        if is_exchange(row.op):
            counts[phase] = counts.get(phase, 0) + 1
            sent.setdefault((phase, counts[phase]), []).append(i)
        elif not isinstance(row.op, Collective):
            experts = counts.get(phase, 0) == 1
            if row.phase == "weight":  # belongs to where its matrix is used
                part = row.op.id and row.op.id.part
                alike = (each.op.id for each in parts.get(("forward", True), []))  # type: ignore[union-attr]
                experts = part is not None and any(own and own.part == part for own in alike)
            parts.setdefault((phase, experts), []).append(row)
    if not any(phase == "backward" for phase, _ in sent):
        if sent:
            compute = [row for each in parts.values() for row in each]
            yield [i for each in sent.values() for i in each], compute
        return
    for phase, other in (("forward", "backward"), ("backward", "forward")):
        for number in (1, 2):
            # First goes what leads to the experts: beside it run the experts of the other batch.
            experts = (number == 1) == (phase == "forward")
            places = sent.get((phase, number), [])
            if places:
                yield places, parts.get((other, experts), [])


def is_exchange(op: Operation) -> bool:
    """Return whether an operation sends tokens to experts or back."""
    return isinstance(op, Collective) and op.group == "ep"


def _all_cells(tree: Any) -> Any:
    return tree


def _row(op: Operation, phase: str, each_s: Any, software: Software, gemms: _Overlaps) -> Row:
    if isinstance(op, Collective):
        return Row(op, phase, each_s, _exposed(op, each_s, software, gemms))
    seconds = each_s * software.slowdown
    return Row(op, phase, seconds, op.count * seconds)


def _pass_time(rows: Sequence[Row]) -> PassTime:
    device_s: Any = 0.0
    kernels: Any = 0
    hops: Any = 0
    for row in rows:
        op = row.op
        device_s = device_s + row.exposed_s
        if isinstance(op, Collective):
            kernels = kernels + op.count * (op.ranks > 1)  # a group of one sends nothing
            hops = hops + op.count * (op.ranks - 1)
        else:
            kernels = kernels + op.count * _launches(op)
    return PassTime(device_s, kernels, hops)


def _launches(op: Operation) -> Any:
    """Return how many kernels the host starts for a compute operation."""
    if isinstance(op, Elementwise):
        return op.kernels
    return op.launches if isinstance(op, Gemm) else 1


class _Overlaps(NamedTuple):
    """Seconds of a piece's operations by id, alone and with a collective's kernel beside them."""

    alone_s: Mapping[OpId, Any]
    slowed_s: Mapping[OpId, Any]


def _overlaps(
    every: Operations, seconds: list[Any], prices: Prices, software: Software
) -> _Overlaps:
    collectives = [op for op in every if isinstance(op, Collective)]
    if not collectives:
        return _Overlaps({}, {})
    alone_s = _by_id(every, seconds)
    if software.tp_overlap == "none":
        return _Overlaps(alone_s, {})
    gemms = tuple(op for op in every if isinstance(op, Gemm))
    slowed = prices.of(gemms, sms_taken=software.overlap_sms)
    return _Overlaps(alone_s, _by_id(gemms, slowed))


def _by_id(operations: Operations, seconds: list[Any]) -> dict[OpId, Any]:
    """Return the seconds of the operations that collectives may refer to."""
    return {
        op.id: op.count * each_s
        for op, each_s in zip(operations, seconds, strict=True)
        if not isinstance(op, Collective) and op.id is not None
    }


def _exposed(op: Collective, each_s: Any, software: Software, gemms: _Overlaps) -> Any:
    """Return how much longer a pass takes for a collective: never more than it does alone."""
    whole = op.count * each_s
    if op.is_ring_attention:
        steps = op.count + 1
        attention = gemms.alone_s.get(op.hides_behind[0], 0.0)
        return ring_attention(attention / steps, each_s, steps) - attention
    if op.group != "tp" or not gemms.slowed_s:
        return whole
    if op.hides_behind:
        alone = sum(gemms.alone_s[own] for own in op.hides_behind)
        slowed = sum(gemms.slowed_s[own] for own in op.hides_behind)
        return smallest(whole, beside(alone, whole, slowed) - alone)
    own = op.split_with
    if software.tp_overlap == "chunked" and own is not None and own in gemms.slowed_s:
        chunks = software.overlap_chunks
        alone, slowed = gemms.alone_s[own], gemms.slowed_s[own]
        together = chunked(alone / chunks, whole / chunks, chunks, slowed / chunks)
        return smallest(whole, together - alone)
    return whole

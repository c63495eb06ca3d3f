"""Priced pieces of a model: a kind of layer, the embedding or the head, for one micro-batch.

A piece lists its operations with their seconds and with what of them lengthens the pass: compute
counts whole, communication as far as nothing hides it. Tensor-parallel collectives hide as the
software does it: behind a GEMM that does not wait for them, or chunk by chunk behind the GEMM that
they feed (Wang et al. 2023, ASPLOS). A ring of key-value blocks hides behind the attention of the
block at hand. Dispatch and combine of experts hide behind another batch. What hides is not free:
the collective's kernel takes SMs from the GEMM, whose tiles then need more waves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from operator import add
from typing import Any, Final

from shardcost.arrays import choose, largest, smallest
from shardcost.estimate.price import Prices
from shardcost.program.operations import (
    AttentionCore,
    Collective,
    Elementwise,
    ExpertKernels,
    Gemm,
    Kernel,
    LatentCore,
    Operation,
    OpId,
    Passes,
    StateKernel,
)
from shardcost.records import NamedTuple
from shardcost.recurrence import RULES
from shardcost.schedule.overlap import beside, chunked, ring_attention
from shardcost.software import Software

KIND: Final[Mapping[type, str]] = {
    Gemm: "gemm",
    AttentionCore: "attention",
    LatentCore: "attention",
    Elementwise: "elementwise",
    ExpertKernels: "gemm",
    StateKernel: "attention",
}
"""Kinds of compute. Of expert kernels, the small ones around the GEMMs are elementwise."""
PASSES: Final = ("forward", "recompute", "backward", "weight")
"""Passes over a piece; gradients of the input and of the weights are apart."""
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
    """Links of all collectives' rings that stay inside a domain …"""
    crossings: Any = 0
    """… and that cross the network."""

    def times(self, count: Any) -> PassTime:
        """Return the same pass so many times."""
        return PassTime(*(count * each for each in self))

    def plus(self, other: PassTime) -> PassTime:
        """Return two passes, one after the other."""
        return PassTime(*map(add, self, other))

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
        if software.host_per_crossing_s is not None:
            host = host + self.crossings * software.host_per_crossing_s
        slower = largest(self.device_s, host)
        if software.host_scatter is None:
            return slower
        share = smallest(self.device_s, host) / largest(slower, _INSTANT_S)
        return slower * (1 + share ** (1 / software.host_scatter)) ** software.host_scatter


def walls_s(passes: Sequence[PassTime], software: Software) -> tuple[Any, Any, Any]:
    """Return the seconds that forward, backward and weight gradients take.

    Autograd starts the gradients of a matrix's input and of its weights one after the other, so
    that a host which is late with the one catches up over the other: it is late for their sum.
    """
    forward, backward, weight = passes
    together_s = backward.plus(weight).wall_s(software)
    return forward.wall_s(software), together_s - weight.device_s, weight.device_s


class Piece(NamedTuple):
    """A kind of layer, the embedding or the head, for one micro-batch."""

    name: str
    operations: Passes
    seconds: Sequence[Any]
    """Of one call of each operation, in the order of `PASSES`, in a run of the software."""
    exposed_s: Sequence[Any]
    """By how much all calls of each operation lengthen their pass."""
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
        inside = (self.inside_bytes, other.inside_bytes)
        network = (self.network_bytes, other.network_bytes)
        return (
            choose(together, inside[0] + inside[1], largest(*inside)),
            choose(together, network[0] + network[1], largest(*network)),
        )

    @property
    def rows(self) -> tuple[Row, ...]:
        """The operations with their prices."""
        listed = ((phase, op) for phase in PASSES for op in getattr(self.operations, phase))
        return tuple(
            Row(op, phase, *times)
            for (phase, op), *times in zip(listed, self.seconds, self.exposed_s, strict=True)
        )

    @property
    def tensor_collectives(self) -> Any:
        """Collectives of the tensor group in one pass forward."""
        return sum(
            op.count * (op.ranks > 1)
            for op in self.operations.forward
            if isinstance(op, Collective) and op.group == "tp"
        )

    @property
    def passes(self) -> tuple[PassTime, PassTime, PassTime]:
        """Forward, backward, weight gradients."""
        return self.forward, self.backward, self.weight


def slower_in_runs(op: Operation, software: Software) -> Any:
    """Return how much longer a kernel takes in a run of some software than by itself."""
    if type(op) is AttentionCore and op.head_dim >= software.slow_head_dim:
        return software.slowdown * software.attention_slowdown
    return software.slowdown


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
            self.compute_s[kind_of(row.op)] += whole
            return
        group = row.op.degree
        self.comm_s[group] = self.comm_s.get(group, 0.0) + whole
        self.exposed_s[group] = self.exposed_s.get(group, 0.0) + times * row.exposed_s


def pieces_of(
    named: Sequence[tuple[str, Passes]], prices: Prices, software: Software
) -> list[Piece]:
    """Return pieces with their prices; of plain numbers, kept with the machine's prices.

    Layouts that differ in pipeline or data parallelism only have the same layers.
    """
    if prices.arrays or prices.is_adjusted:
        return _priced_pieces(named, prices, software)
    how = (
        software.tp_overlap,
        software.overlap_sms,
        software.overlap_chunks,
        software.slowdown,
        software.attention_slowdown,
        software.slow_head_dim,
        software.counts_links,
        software.expert_overlap,
    )
    strides = tuple(prices.strides[group] for group in ("tp", "cp", "ep", "ep_tensor"))
    keys = [(name, passes, how, strides) for name, passes in named]
    kept: list[Any] = [prices.pieces.get(key) for key in keys]
    new = [place for place, piece in enumerate(kept) if piece is None]
    if new:
        made = _priced_pieces([named[place] for place in new], prices, software)
        for place, piece in zip(new, made, strict=True):
            kept[place] = prices.pieces[keys[place]] = piece
    return kept


def _priced_pieces(
    named: Sequence[tuple[str, Passes]], prices: Prices, software: Software
) -> list[Piece]:
    """Return pieces with their prices; kernels of all of them are priced together."""
    listed = [
        [*passes.forward, *passes.recompute, *passes.backward, *passes.weight]
        for _, passes in named
    ]
    beside = [_beside_collectives(operations, software) for operations in listed]
    every = list(chain.from_iterable(listed))
    gemms = list(chain.from_iterable(beside))
    prices_of_all, slowed_s = prices.priced_beside(every, gemms, software.overlap_sms)
    priced, slowed = iter(prices_of_all), iter(slowed_s)
    return [
        _priced_piece(
            name,
            passes,
            operations,
            list(islice(priced, len(operations))),
            {op.id: op.count * next(slowed) for op in own},
            prices,
            software,
        )
        for (name, passes), operations, own in zip(named, listed, beside, strict=True)
    ]


def _priced_piece(
    name: str,
    passes: Passes,
    operations: Sequence[Operation],
    priced: Sequence[Any],
    slowed_s: Mapping[OpId | None, Any],
    prices: Prices,
    software: Software,
) -> Piece:
    """Return a piece of operations by pass, with their prices.

    Args:
        name: Of the piece.
        passes: What it does.
        operations: The same as one list.
        priced: The price of each.
        slowed_s: Seconds of GEMMs with a collective's kernel beside them.
        prices: Of all else.
        software: What runs it.
    """
    seconds: list[Any] = []
    exposed: list[Any] = []
    alone_s: dict[OpId | None, Any] = {}
    collectives: list[tuple[int, Collective]] = []
    inside_bytes: Any = 0.0
    network_bytes: Any = 0.0
    for op, price in zip(operations, priced, strict=True):
        if isinstance(op, Collective):
            collectives.append((len(seconds), op))
            each_s, near, far = price
            whole_s = op.count * each_s
            inside_bytes = inside_bytes + op.count * near
            network_bytes = network_bytes + op.count * far
        else:
            each_s = price * slower_in_runs(op, software)
            once = type(op.count) is int and op.count == 1  # most are: of arrays, a product less
            whole_s = each_s if once else op.count * each_s
            if op.id is not None:
                alone_s[op.id] = price if once else op.count * price
        seconds.append(each_s)
        exposed.append(whole_s)
    gemms = _Overlaps(alone_s, slowed_s)
    for place, op in collectives:
        exposed[place] = _exposed(op, seconds[place], exposed[place], software, gemms)
    if software.expert_overlap != "none" or any(is_copy(op) for _, op in collectives):
        blank = PassTime()
        whole = Piece(name, passes, tuple(seconds), tuple(exposed), blank, blank, blank)
        rows = whole.rows
        if software.expert_overlap != "none":
            rows = _with_hidden_exchange(rows, prices, software)
        exposed = [row.exposed_s for row in _with_hidden_copies(rows)]
    links_of = prices if software.counts_links else None
    again = len(passes.recompute) + len(passes.backward)
    cuts = (0, len(passes.forward), len(passes.forward) + again, len(operations))
    forward, backward, weight = (
        _pass_time(operations[start:end], exposed[start:end], links_of)
        for start, end in pairwise(cuts)
    )
    return Piece(
        name,
        passes,
        tuple(seconds),
        tuple(exposed),
        forward,
        backward,
        weight,
        inside_bytes,
        network_bytes,
    )


def _with_hidden_copies(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return rows whose copies to the host hide behind the rest of their pass, as far as it goes.

    Copy engines move what the layer before saved, or the next one needs, while a layer computes.
    """
    if not any(is_copy(row.op) for row in rows):
        return rows
    left: dict[bool, Any] = {}
    for forward in (True, False):
        own = [row for row in rows if (row.phase == "forward") == forward]
        copies: Any = sum(row.exposed_s for row in own if is_copy(row.op))
        compute: Any = sum(row.exposed_s for row in own if not is_copy(row.op))
        left[forward] = largest(0.0, copies - compute) / largest(copies, _INSTANT_S)
    return tuple(
        row._replace(exposed_s=left[row.phase == "forward"] * row.exposed_s)
        if is_copy(row.op)
        else row
        for row in rows
    )


def is_copy(op: Operation) -> bool:
    """Return whether an operation moves data to the host's memory or back."""
    return isinstance(op, Collective) and op.group == "offload"


def _with_hidden_exchange(
    rows: tuple[Row, ...], prices: Prices, software: Software
) -> tuple[Row, ...]:
    """Return rows whose dispatch and combine hide behind the compute of another batch.

    Of two batches that take turns, one computes while the tokens of the other travel: each stretch
    of compute and the exchange beside it take as long as the longer of the two, with the SMs of
    the exchange taken from the GEMMs. Compute that already hides another collective hides nothing
    more: both would use the same links at once.
    """
    exposed: dict[int, Any] = {}
    for exchanges, meanwhile in _side_by_side(rows):
        compute = [row for row in meanwhile if not isinstance(row.op, Collective)]
        sent = [row for row in meanwhile if isinstance(row.op, Collective)]
        hidden_s: Any = sum(row.op.count * row.seconds - row.exposed_s for row in sent)
        whole_s: Any = sum(rows[i].exposed_s for i in exchanges)
        alone_s: Any = largest(0.0, sum(row.exposed_s for row in compute) - hidden_s)
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
    """Yield exchanges, by their place, with what the other batch does meanwhile.

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
        else:
            experts = counts.get(phase, 0) == 1
            if row.phase == "weight":  # belongs to where its matrix is used
                part = _part_of(row.op)
                forward = parts.get(("forward", True), [])
                experts = part is not None and part in {_part_of(own.op) for own in forward}
            parts.setdefault((phase, experts), []).append(row)
    if not any(phase == "backward" for phase, _ in sent):
        if sent:
            every = [row for each in parts.values() for row in each]
            yield [i for each in sent.values() for i in each], every
        return
    for phase, other in (("forward", "backward"), ("backward", "forward")):
        for number in (1, 2):
            # First goes what leads to the experts: beside it run the experts of the other batch.
            experts = (number == 1) == (phase == "forward")
            places = sent.get((phase, number), [])
            if places:
                yield places, parts.get((other, experts), [])


def _part_of(op: Operation) -> str | None:
    """Return the matrix or attention that an operation is of; None of a collective."""
    return None if isinstance(op, Collective) or op.id is None else op.id.part


def kind_of(op: Kernel) -> str:
    """Return the kind of compute that an operation counts to."""
    if type(op) is ExpertKernels and op.part == "small":
        return KIND[Elementwise]
    return KIND[type(op)]


def is_exchange(op: Operation) -> bool:
    """Return whether an operation sends tokens to experts or back."""
    return isinstance(op, Collective) and op.group == "ep"


def _pass_time(
    operations: Sequence[Operation], exposed: Sequence[Any], links_of: Prices | None
) -> PassTime:
    """Return what a pass takes, from how much each of its operations lengthens it.

    Args:
        operations: The operations.
        exposed: By how much each lengthens the pass.
        links_of: Where groups sit, if the host's time depends on the links of their rings.
    """
    kernels: Any = 0
    hops: Any = 0
    crossings: Any = 0
    for op in operations:
        if type(op) is Collective:
            sends = op.count * (op.ranks > 1)  # a group of one sends nothing
            kernels = kernels + sends
            if links_of is not None:
                across = links_of.crossings(op)
                hops = hops + sends * (op.ranks - across)
                crossings = crossings + sends * across
        elif type(op) is Gemm:
            kernels = kernels + op.count * op.launches
        elif type(op) is Elementwise:
            if op.converts is None or not op.converts.with_gemm:
                kernels = kernels + op.count * op.kernels
        else:
            kernels = kernels + op.count * _launches_of(op)
    return PassTime(sum(exposed, 0.0), kernels, hops, crossings)


def _launches_of(op: Operation) -> int:
    """Return how many kernels the host starts for an operation that is priced as one."""
    if type(op) is ExpertKernels:
        return _EXPERT_LAUNCHES[op.part]
    if type(op) is LatentCore:
        return _LATENT_LAUNCHES
    if type(op) is StateKernel and op.part == "scan":
        return _DELTA_LAUNCHES if RULES[op.rule].delta else _SCAN_LAUNCHES
    return 1


_EXPERT_LAUNCHES: Final = {"gemms": 2, "small": 6}
"""Of an engine's experts: two grouped GEMMs; top-k, offsets, sorted rows, their conversion, the
activation between the GEMMs, the sum."""
_LATENT_LAUNCHES: Final = 5
"""Of latent attention, beside GEMMs: norms of both latents, RoPE with the write of the cache, the
shared part of the keys beside every head's own, attention."""
_SCAN_LAUNCHES: Final = 5
"""Of a scan in chunks: sums of the decay inside chunks, scores, states of chunks, their passing on,
outputs (Mamba 2's ``ssd_combined``) …"""
_DELTA_LAUNCHES: Final = 16
"""… and under the delta rule: projections of the gates and of the decay, gates, queries, keys and
values apart, norms of queries and keys, states read and written, and of the chunked form sums of
the decay, scores of keys, the inverse of their triangle, what it yields of keys and values, states,
outputs (flash-linear-attention's ``chunk_gated_delta_rule`` as SGLang and vLLM call it)."""


class _Overlaps(NamedTuple):
    """Seconds of a piece's operations by id, alone and with a collective's kernel beside them."""

    alone_s: Mapping[OpId | None, Any]
    slowed_s: Mapping[OpId | None, Any]


def _beside_collectives(every: Sequence[Operation], software: Software) -> list[Gemm]:
    """Return the GEMMs of a piece that a collective's kernel may run beside, each once."""
    if software.tp_overlap == "none":
        return []
    named = _named_by_collectives(every)
    gemms = {op.id: op for op in every if type(op) is Gemm and op.id in named} if named else {}
    return list(gemms.values())


def _named_by_collectives(every: Sequence[Operation]) -> set[OpId | None]:
    """Return what the collectives of a piece may hide behind, or are split with."""
    named: set[OpId | None] = set()
    for op in every:
        if type(op) is Collective:
            named.update(op.hides_behind)
            named.add(op.split_with)
    return named - {None}


def _exposed(op: Collective, each_s: Any, whole: Any, software: Software, gemms: _Overlaps) -> Any:
    """Return how much longer a pass takes for a collective: never more than it does alone.

    Args:
        op: The collective.
        each_s: Seconds of one call …
        whole: … and of all its calls.
        software: What runs it.
        gemms: What it may hide behind.
    """
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

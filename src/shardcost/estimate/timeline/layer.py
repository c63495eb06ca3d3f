"""One layer on one rank, operation by operation: what computes, what communicates beside it.

The operations stand in the order of the program; each weight gradient follows the input gradient
of its matrix, unless the schedule puts weight gradients off. Of a collective the part that nothing
hides stands between the operations, the other beside the GEMM or attention that hides it, so that
all events together are what the ledger counts, no more and no less.

Under ZeRO stage 3 a layer in the midst of others is shown: the weights of the layer after it are
gathered meanwhile (Zhao et al., PyTorch FSDP, 2023, arXiv:2304.11277).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from shardcost.estimate.ledger import once
from shardcost.estimate.pieces import PASSES, is_exchange, kind_of, walls_s
from shardcost.estimate.price import Prices
from shardcost.estimate.result import Estimate, check_one_layout
from shardcost.estimate.timeline.events import (
    COMMUNICATION,
    COMPUTE,
    Drawing,
    Event,
    drawing,
)
from shardcost.program.assemble import Layers
from shardcost.program.operations import Collective, Gemm, Operation, Operations, OpId

_STREAM: Final = "communication"
_BY_HOST: Final = ("forward", "backward", "weight")


class _Piece(NamedTuple):
    """An operation with its seconds: of a collective, those that are exposed and those hidden."""

    op: Operation
    passing: str
    shown_s: float
    hidden_s: float = 0.0
    name: str | None = None
    """Among the estimate's operations."""

    @property
    def id(self) -> OpId | None:
        return None if isinstance(self.op, Collective) else self.op.id

    @property
    def hides_behind(self) -> tuple[OpId, ...]:
        return self.op.hides_behind if isinstance(self.op, Collective) else ()

    @property
    def split_with(self) -> OpId | None:
        return self.op.split_with if isinstance(self.op, Collective) else None


def layer_timeline(estimate: Estimate) -> Drawing:
    """Return one layer of the kind that the model has most of, on one rank.

    Raises:
        BadTypeError: The estimate is of an array of layouts.
    """
    check_one_layout(estimate)
    ledger, program = estimate.ledger, estimate.program
    kind = program.usual_layers
    work = ledger.layers[program.layers.index(kind)]
    names = {(each.op, each.seconds): name for name, each in estimate.operations.items()}
    ops: dict[str, list[_Piece]] = {name: [] for name in PASSES}
    for row in work.rows:
        exposed = max(0.0, float(row.exposed_s))
        hidden = max(0.0, float(row.op.count * row.seconds) - exposed)
        beside_s = hidden if isinstance(row.op, Collective) else 0.0
        name = names.get((once(row.op), float(row.seconds)))
        ops[row.phase].append(_Piece(row.op, row.phase, exposed, beside_s, name))
    sections: dict[tuple[str, ...], list[_Piece]] = {("forward",): _in_order(ops["forward"])}
    again = _in_order(ops["recompute"])
    if estimate.layout.schedule == "zero_bubble":
        sections["backward",] = again + _in_order(ops["backward"])
        sections["weight",] = _in_order(ops["weight"])
    else:
        merged = _with_weights(ops["backward"], ops["weight"])
        sections["backward", "weight"] = again + _in_order(merged)
    walls = dict(zip(_BY_HOST, walls_s(work.passes, program.setting.software), strict=True))
    shown: list[Event] = []
    beside: list[Event] = []
    start = 0.0
    for passes, section in sections.items():
        free = start
        for piece in section:
            shown.append(_event(piece, free, free + piece.shown_s))
            free += piece.shown_s
        for name in passes:
            late_s = max(0.0, float(walls[name] - getattr(work, name).device_s))
            wait = ("wait for the host", 0, COMPUTE, "host", free, free + late_s)
            beside.append(Event(*wait, passing=name))
            free += late_s
        sent = _sent(kind, ledger.prices, passes[0], start, free)
        beside += sent
        start = max([free, *(event.end_s for event in sent)])
    pieces = [piece for section in sections.values() for piece in section]
    for number, piece in enumerate(pieces):
        if piece.hidden_s:
            beside += _hidden(piece, number, pieces, shown, start)
    events = [event for event in (*shown, *beside) if event.end_s > event.start_s]
    which = "all alike" if len(program.layers) == 1 else f"of a kind that {kind.count} are"
    title = f"One layer of {program.num_layers}, {which}"
    return drawing("layer", title, start, events, _totals(events))


def _totals(events: Sequence[Event]) -> dict[str, float]:
    """Return the seconds of events by what they are."""
    totals = dict.fromkeys(("compute_s", "exposed_s", "hidden_s", "bubble_s", "host_s"), 0.0)
    for event in events:
        name = "host_s" if event.kind == "host" else "compute_s"
        if event.kind in COMMUNICATION:
            name = "exposed_s" if event.exposed else "hidden_s"
        totals[name] += event.seconds
    return totals


def _with_weights(backward: Sequence[_Piece], weight: Sequence[_Piece]) -> list[_Piece]:
    """Return the backward pass with each matrix's weight gradient after its input gradient.

    Collectives that follow the input gradient come first: they send its result, or gather what the
    weight gradient reads.
    """
    left = _with_matrices(weight)
    ready: list[_Piece] = []
    ordered: list[_Piece] = []
    for piece in backward:
        if not isinstance(piece.op, Collective):
            ordered += ready
            ready = []
        ordered.append(piece)
        own = piece.op.id if isinstance(piece.op, Gemm) else None
        if own is not None and own == own.input_gradient:
            ready += [gradient for gradient, part in left if part == own.part]
            left = [pair for pair in left if pair[1] != own.part]
    return ordered + ready + [gradient for gradient, _ in left]


def _with_matrices(weight: Sequence[_Piece]) -> list[tuple[_Piece, str | None]]:
    """Return operations with the matrix whose gradient they make or send, if it is of one."""
    pairs: list[tuple[_Piece, str | None]] = []
    for piece in weight:
        own = piece.split_with or piece.id
        follows = isinstance(piece.op, Collective) and own is None and bool(pairs)
        pairs.append((piece, pairs[-1][1] if follows else own and own.part))
    return pairs


def _in_order(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Return operations with each partly hidden collective after what hides it.

    What is exposed of it comes when that is over and it is not; at the latest before the GEMM that
    its result goes into.
    """
    ordered: list[_Piece] = []
    waiting: list[_Piece] = []
    left = [piece.id for piece in pieces]
    for piece in pieces:
        left.remove(piece.id)
        due = [late for late in waiting if piece.id is not None and late.split_with == piece.id]
        ordered += due
        waiting = [late for late in waiting if late not in due]
        if piece.hidden_s and any(own in left for own in piece.hides_behind):
            waiting.append(piece)
            continue
        ordered.append(piece)
        over = [late for late in waiting if not set(late.hides_behind) & set(left)]
        ordered += over
        waiting = [late for late in waiting if late not in over]
    return ordered + waiting


def _event(piece: _Piece, start: float, end: float, *, exposed: bool = True) -> Event:
    op = piece.op
    name = op.name + (f" x {op.count:g}" if op.count != 1 else "")
    if isinstance(op, Collective):
        comm = (name, 0, _STREAM, "comm", start, end, exposed, op.degree)
        return Event(*comm, passing=piece.passing, operation=piece.name)
    own = (name, 0, COMPUTE, kind_of(op), start, end)
    return Event(*own, passing=piece.passing, operation=piece.name)


def _hidden(
    piece: _Piece, number: int, pieces: Sequence[_Piece], shown: Sequence[Event], span_s: float
) -> Iterator[Event]:
    """Yield the hidden part of a collective beside what hides it.

    It lies next to the exposed part: at the end of what comes before that, at the start of what
    comes after.
    """

    def distance(index: int) -> int:
        return abs(index - number)

    hosts: list[int] = []
    for own in piece.hides_behind or ((piece.split_with,) if piece.split_with else ()):
        places = [index for index, other in enumerate(pieces) if other.id == own]
        hosts += [min(places, key=distance)] if places else []
    if is_exchange(piece.op):  # behind the other batch, which computes alike
        hosts = [i for i, other in enumerate(pieces) if not isinstance(other.op, Collective)]
    hosts.sort(key=distance)
    left = piece.hidden_s
    for index in hosts:
        host = shown[index]
        share = left if index == hosts[-1] else min(left, host.seconds)
        early = index > number or not piece.shown_s
        begin = host.start_s if early else host.end_s - share
        begin = max(0.0, min(begin, span_s - share))
        yield _event(piece, begin, begin + share, exposed=False)
        left -= share
        if left <= 0:
            return


def _sent(kind: Layers, prices: Prices, name: str, start: float, free: float) -> list[Event]:
    """Return what ZeRO stage 3 sends while a section of a layer computes, in one go from its start.

    Forward the next layer's weights; backward those of the layer before, and the gradients of the
    layer after.
    """
    sent: Operations = {
        "forward": kind.gathers.forward,
        "backward": kind.gathers.backward + kind.gathers.gradient,
    }.get(name, ())
    events: list[Event] = []
    begin = start
    for op, seconds in zip(sent, prices.of(sent) if sent else (), strict=True):
        if not isinstance(op, Collective):
            continue
        end = begin + float(op.count * seconds)
        split = min(max(begin, free), end)
        for one, other, exposed in ((begin, split, False), (split, end, True)):
            comm = (op.name, 0, "dp", "comm", one, other, exposed, op.group)
            events.append(Event(*comm, passing=name))
        begin = end
    return events

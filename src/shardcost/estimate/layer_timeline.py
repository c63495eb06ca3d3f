"""One layer on one rank, operation by operation: what computes, what communicates beside it.

The operations stand in the order of the program; each weight gradient follows the input gradient
of its matrix, unless the schedule puts weight gradients off. Of a collective the part that nothing
hides stands between the operations, the other beside the product or attention that hides it, so
that all events together are what `shardcost.estimate.busy` counts, no more and no less.

Under ZeRO stage 3 a layer in the midst of others is shown: the weights of the layer after it are
gathered meanwhile (Zhao et al., PyTorch FSDP, 2023, arXiv:2304.11277).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from shardcost.estimate.events import COMPUTE, Drawing, Event, check, drawing, totals_of
from shardcost.estimate.ledger import PASSES, PassTime, Piece
from shardcost.estimate.price import Prices
from shardcost.estimate.result import Estimate
from shardcost.program.assemble import Layers
from shardcost.program.operations import (
    AttentionCore,
    Collective,
    Elementwise,
    Gemm,
    Operation,
    Operations,
    OpId,
)
from shardcost.software import Software

COMM: Final = "communication"
_KINDS: Final = {Gemm: "gemm", AttentionCore: "attention", Elementwise: "elementwise"}


class _Piece(NamedTuple):
    """An operation with its seconds: of a collective, those that are exposed and those hidden."""

    op: Operation
    passing: str
    shown_s: float
    hidden_s: float = 0.0


def layer_timeline(found: Estimate) -> Drawing:
    """Return one layer of the kind that the model has most of, on one rank.

    Raises:
        BadTypeError: The estimate is of an array of layouts.
    """
    check(found, "layer")
    ledger, software = found.ledger, found.program.setting.software
    kind = found.program.usual_layers
    piece = ledger.layers[found.program.layers.index(kind)]
    merged = found.layout.schedule != "zero_bubble"
    pieces: list[_Piece] = []
    shown: list[Event] = []
    more: list[Event] = []
    start = 0.0
    sections = _sections(_by_pass(piece), merged=merged)
    for section, parts in zip(sections, _parts(piece, merged=merged), strict=True):
        laid, free = _laid_out(section, start)
        waits, free = _waits(parts, free, software)
        sent = _sent(kind, ledger.prices, parts[0][0], start, free)
        pieces += section
        shown += laid
        more += [*waits, *sent]
        start = max([free, *(event.end_s for event in sent)])
    beside = _all_hidden(pieces, shown, start)
    events = [event for event in (*shown, *more, *beside) if event.end_s > event.start_s]
    return drawing("layer", _title(found, kind), start, events, totals_of(events))


def _title(found: Estimate, kind: Layers) -> str:
    total = found.program.num_layers
    which = "all alike" if len(found.program.layers) == 1 else f"of a kind that {kind.count} are"
    return f"One layer of {total}, {which}"


def _by_pass(piece: Piece) -> dict[str, list[_Piece]]:
    """Return the operations of each pass with their seconds."""
    by_pass: dict[str, list[_Piece]] = {name: [] for name in PASSES}
    for row in piece.rows:
        exposed = max(0.0, float(row.exposed_s))
        hidden = max(0.0, float(row.op.count * row.seconds) - exposed)
        own = _Piece(row.op, row.phase, exposed, hidden if isinstance(row.op, Collective) else 0.0)
        by_pass[row.phase].append(own)
    return by_pass


def _parts(work: Piece, *, merged: bool) -> Iterator[list[tuple[str, PassTime]]]:
    """Yield the passes of each section, as they are counted."""
    yield [("forward", work.forward)]
    backward, weight = ("backward", work.backward), ("weight", work.weight)
    if merged:
        yield [backward, weight]
    else:
        yield [backward]
        yield [weight]


def _sections(priced: dict[str, list[_Piece]], *, merged: bool) -> Iterator[list[_Piece]]:
    """Yield operations in the order in which they run, section by section."""
    yield _in_order(priced["forward"])
    again = _in_order(priced["recompute"])
    if merged:
        yield again + _in_order(_with_weights(priced["backward"], priced["weight"]))
    else:
        yield again + _in_order(priced["backward"])
        yield _in_order(priced["weight"])


def _with_weights(backward: Sequence[_Piece], weight: Sequence[_Piece]) -> list[_Piece]:
    """Return the backward pass with each matrix's weight gradient after its input gradient.

    Collectives that follow the input gradient come first: they send its result, or gather what the
    weight gradient reads.
    """
    left = _with_matrices(weight)
    ready: list[_Piece] = []
    found: list[_Piece] = []
    for piece in backward:
        if not isinstance(piece.op, Collective):
            found += ready
            ready = []
        found.append(piece)
        own = piece.op.id if isinstance(piece.op, Gemm) else None
        if own is not None and own == own.input_gradient:
            ready += [each for each, part in left if part == own.part]
            left = [(each, part) for each, part in left if part != own.part]
    return found + ready + [each for each, _ in left]


def _with_matrices(weight: Sequence[_Piece]) -> list[tuple[_Piece, str | None]]:
    """Return operations with the matrix whose gradient they make or send, if it is of one."""
    found: list[tuple[_Piece, str | None]] = []
    for piece in weight:
        op = piece.op
        own = op.split_with if isinstance(op, Collective) else op.id
        follows = isinstance(op, Collective) and own is None and bool(found)
        found.append((piece, found[-1][1] if follows else own and own.part))
    return found


def _in_order(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Return operations with each partly hidden collective after what hides it.

    What is exposed of it comes when that is over and it is not; at the latest before the product
    that its result goes into.
    """
    found: list[_Piece] = []
    waiting: list[_Piece] = []
    left = [_id(piece.op) for piece in pieces]
    for piece in pieces:
        own = _id(piece.op)
        left.remove(own)
        due = [each for each in waiting if own is not None and _split_with(each.op) == own]
        found += due
        waiting = [each for each in waiting if each not in due]
        if piece.hidden_s and any(own in left for own in _hides_behind(piece.op)):
            waiting.append(piece)
            continue
        found.append(piece)
        over = [each for each in waiting if not set(_hides_behind(each.op)) & set(left)]
        found += over
        waiting = [each for each in waiting if each not in over]
    return found + waiting


def _id(op: Operation) -> OpId | None:
    return None if isinstance(op, Collective) else op.id


def _hides_behind(op: Operation) -> tuple[OpId, ...]:
    return op.hides_behind if isinstance(op, Collective) else ()


def _split_with(op: Operation) -> OpId | None:
    return op.split_with if isinstance(op, Collective) else None


def _laid_out(pieces: Sequence[_Piece], start: float) -> tuple[list[Event], float]:
    """Return the events of operations one after the other from a time on, and when they end."""
    events: list[Event] = []
    free = start
    for piece in pieces:
        end = free + piece.shown_s
        events.append(_event(piece, free, end))
        free = end
    return events, free


def _all_hidden(pieces: Sequence[_Piece], shown: Sequence[Event], span_s: float) -> list[Event]:
    return [
        event
        for number, piece in enumerate(pieces)
        if piece.hidden_s
        for event in _hidden(piece, number, pieces, shown, span_s)
    ]


def _event(piece: _Piece, start: float, end: float, *, exposed: bool = True) -> Event:
    op = piece.op
    times = f" x {op.count:g}" if op.count != 1 else ""
    sends = isinstance(op, Collective)
    return Event(
        op.name + times,
        0,
        COMM if sends else COMPUTE,
        "comm" if sends else _KINDS[type(op)],
        start,
        end,
        exposed,
        group=op.group if isinstance(op, Collective) else None,
        passing=piece.passing,
    )


def _hidden(
    piece: _Piece, number: int, pieces: Sequence[_Piece], shown: Sequence[Event], span_s: float
) -> Iterator[Event]:
    """Yield the hidden part of a collective beside what hides it.

    It lies next to the exposed part: at the end of what comes before that, at the start of what
    comes after.
    """
    split_with = _split_with(piece.op)
    hiding = _hides_behind(piece.op) or ((split_with,) if split_with else ())
    hosts = [index for own in hiding if (index := _nearest(own, number, pieces)) is not None]
    hosts.sort(key=lambda index: abs(index - number))
    left = piece.hidden_s
    for place, index in enumerate(hosts):
        host = shown[index]
        last = place == len(hosts) - 1
        share = left if last else min(left, host.seconds)
        early = index > number or not piece.shown_s
        begin = host.start_s if early else host.end_s - share
        begin = max(0.0, min(begin, span_s - share))
        yield _event(piece, begin, begin + share, exposed=False)
        left -= share
        if left <= 0:
            return


def _nearest(own: OpId, number: int, pieces: Sequence[_Piece]) -> int | None:
    where = [index for index, piece in enumerate(pieces) if _id(piece.op) == own]
    return min(where, key=lambda index: abs(index - number), default=None)


def _waits(
    parts: Sequence[tuple[str, PassTime]], start: float, software: Software
) -> tuple[list[Event], float]:
    """Return the waiting for a host that starts kernels too slowly, pass by pass, and its end."""
    found: list[Event] = []
    for name, part in parts:
        end = start + max(0.0, float(part.wall_s(software) - part.device_s))
        found.append(Event("wait for the host", 0, COMPUTE, "host", start, end, passing=name))
        start = end
    return found, start


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
    for op, each in zip(sent, prices.of(sent) if sent else (), strict=True):
        if not isinstance(op, Collective):
            continue
        end = begin + float(op.count * each)
        split = min(max(begin, free), end)
        for one, other, exposed in ((begin, split, False), (split, end, True)):
            events.append(
                Event(op.name, 0, "dp", "comm", one, other, exposed, op.group, passing=name)
            )
        begin = end
    return events

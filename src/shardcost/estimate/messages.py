"""Every collective of one step: what is sent, how often, how long each takes, and by which path.

What a rank of the stage that sets the pace sends, as `Estimate.comm_s` counts it: the layers of
that stage and the ends that it has, the data-parallel collectives of the step and of the layers,
the sends to the neighbouring stages. So count times seconds, added up by group, is `comm_s`, hidden
or not. Not among them is what is no message: products that run slower beside a collective, ranks
that wait for the slowest, and the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from shardcost.checks import is_array
from shardcost.collectives.multimem import MULTIMEM
from shardcost.errors import BadTypeError
from shardcost.estimate.calls import pace_of, prices_of
from shardcost.estimate.price import Prices
from shardcost.estimate.result import Estimate
from shardcost.estimate.work import sends
from shardcost.program.assemble import Program
from shardcost.program.operations import Collective, Operations, Passes

_Often: TypeAlias = tuple[Collective, float]
"""A collective, and how often what it is part of happens in a step."""


@dataclass(frozen=True, slots=True)
class Message:
    """One collective, as often as it happens in a step."""

    name: str
    group: str
    """``tp``, ``cp``, ``ep``, ``dp`` or ``pp``: one of `Estimate.comm_s`."""
    collective: str
    size_bytes: float
    """As nccl-tests and ``shardcost collective`` count it."""
    ranks: int
    nodes: int
    """That the ranks are on."""
    count: float
    """Times a step; a mean, and then no whole number, where a stage has layers of several kinds."""
    time_s: float
    """Of one, by itself."""
    total_s: float
    """Of all of them in a step."""
    algorithm: str
    protocol: str
    library: str


def messages(found: Estimate) -> tuple[Message, ...]:
    """Return every different collective of a step, that on which most time is spent first.

    >>> from shardcost import Decode, Layout, estimate
    >>> step = Decode(batch=64, context_tokens=4096)
    >>> first = messages(estimate("llama3-70b", "h100_sxm", Layout(tp=8), step))[0]
    >>> first.collective, first.size_bytes, first.ranks, first.count
    ('all_reduce', 1048576.0, 8, 80.0)

    Raises:
        BadTypeError: The estimate is of an array of layouts.
    """
    if is_array(found.time_s):
        raise BadTypeError("layout", found.layout, "one layout, not an array of them, for messages")
    prices = prices_of(found)
    counts = _counted(_trained(found) if found.program.step else _served(found.program))
    seconds = prices.of(tuple(counts))
    listed = (
        _message(op, count, float(each), prices)
        for (op, count), each in zip(counts.items(), seconds, strict=True)
    )
    return tuple(sorted(listed, key=lambda each: -each.total_s))


def _counted(happening: Iterable[_Often]) -> dict[Collective, float]:
    """Return how often each different collective happens; alone, a rank talks to nobody."""
    counts: dict[Collective, float] = {}
    for op, times in happening:
        often = float(times * op.count)
        if op.ranks > 1 and often > 0:
            once = op._replace(count=1, beside=(), feeds="")
            counts[once] = counts.get(once, 0.0) + often
    return counts


def _trained(found: Estimate) -> Iterator[_Often]:
    """Yield what a rank of the stage that sets the pace sends in a training step."""
    program, layout = found.program, found.layout
    runs = program.micro_batches
    pace = pace_of(found)
    for share, each in _kinds(program):
        yield from _all((*each.passes.forward, *_backward(each.passes)), runs * pace.layers * share)
        yield from _all(
            2 * each.gathers.forward + each.gathers.gradient, runs * pace.layers * share
        )
    ends = {"embedding": program.first, "head": program.last}
    for name in pace.ends:
        yield from _all((*ends[name].forward, *_backward(ends[name])), runs)
    yield from _all(sends(program), 2 * runs * layout.chunks)
    if program.step:
        yield from _all(program.step.gradients + program.step.weights, 1)


def _served(program: Program) -> Iterator[_Often]:
    """Yield what is sent in one pass forward through all stages."""
    for each in program.layers:
        yield from _all(each.passes.forward, each.count)
    for piece in (program.first, program.last):
        yield from _all(piece.forward, 1)
    yield from _all(sends(program), program.setting.layout.pp - 1)


def _kinds(program: Program) -> Iterator[tuple[Any, Any]]:
    """Yield the kinds of layer, each with its share of all."""
    total = sum(each.count for each in program.layers)
    return ((each.count / total, each) for each in program.layers)


def _backward(passes: Passes) -> Operations:
    return passes.recompute + passes.backward + passes.weight


def _all(operations: Operations, times: Any) -> Iterator[_Often]:
    return ((op, times) for op in operations if isinstance(op, Collective))


def _message(op: Collective, count: float, time_s: float, prices: Prices) -> Message:
    result, _ = prices.asked(op)
    path = (str(result.algorithm), str(result.protocol), result.library)
    if prices.is_multimem(op):
        path = ("multicast", "direct", MULTIMEM)
    return Message(
        name=op.name,
        group=op.group.partition("_")[0],  # experts' gradients and copies of shards are dp's
        collective=op.collective,
        size_bytes=op.size_bytes,
        ranks=int(op.ranks),
        nodes=int(result.group.nodes),
        count=count,
        time_s=time_s,
        total_s=count * time_s,
        algorithm=path[0],
        protocol=path[1],
        library=path[2],
    )

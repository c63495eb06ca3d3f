"""Every operation of the rank that sets the pace: what one call takes, and how often it happens.

The times of an estimate are sums over these calls. Operations that are alike in all but their count
are one; others of the same name are told apart by a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from shardcost.estimate.busy import busy
from shardcost.estimate.placement import places
from shardcost.estimate.price import Prices
from shardcost.estimate.result import Estimate
from shardcost.estimate.traffic import collectives_of
from shardcost.estimate.work import ENDS, beside_of, only_stage, sends, stage_passes
from shardcost.program.operations import Collective, Operation, Operations, Passes


class Call(NamedTuple):
    """One operation, happening many times in a step."""

    name: str
    """Unique among the calls of an estimate."""
    op: Operation
    """Counted once."""
    where: tuple[str, ...]
    """The passes in which it happens."""
    alone_s: float
    """One call, the kernel by itself."""
    seconds: float
    """One call, in a run of the software."""
    times: float
    """How often it happens in a step on the rank that sets the pace, 0 where another stage has it;
    in serving, on all stages."""
    exposed_s: float
    """Of a collective, the seconds of a step that nothing hides."""

    @property
    def total_s(self) -> float:
        """Seconds in a step, hidden or not."""
        return self.times * self.seconds


class Pace(NamedTuple):
    """The stage that sets the pace."""

    name: str
    layers: Any
    ends: tuple[str, ...]
    """Which of `ENDS` it has."""


def pace_of(found: Estimate) -> Pace:
    """Return the stage that has most to do for a micro-batch; of serving, all stages together."""
    program, work = found.program, found.work
    if program.step is None:
        layers = sum(each.count for each in program.layers)
        return Pace("all stages", layers, ENDS)
    if found.layout.pp == 1:
        return Pace(*only_stage(program, work)[:3])
    slowest = max(stage_passes(program, work), key=lambda each: float(each.busy.device_s))
    return Pace(*slowest[:3])


def prices_of(found: Estimate) -> Prices:
    """Return the prices that an estimate was made with."""
    return Prices(found.cluster, found.software, places(found.layout), found.wire)


def calls_of(found: Estimate, prices: Prices) -> dict[str, Call]:
    """Return every call of a step, by name."""
    every: dict[Operation, Call] = {}
    for op, where, times, seconds, exposed_s in _happening(found, prices):
        once = _once(op)
        known = every.get(once)
        slowed = 1.0
        if not isinstance(op, Collective) and where != "optimizer":
            slowed = float(found.program.setting.software.slowdown)
        count = float(times * op.count)
        if known is None:
            every[once] = Call(op.name, once, (where,), seconds, seconds * slowed, count, exposed_s)
            continue
        every[once] = known._replace(
            where=tuple(dict.fromkeys((*known.where, where))),
            times=known.times + count,
            exposed_s=known.exposed_s + exposed_s,
        )
    named: dict[str, Call] = {}
    for call in every.values():
        same = sum(each.op.name == call.op.name for each in named.values())
        name = f"{call.name} {same + 1}" if same else call.name
        named[name] = call._replace(name=name)
    return named


def _once(op: Operation) -> Operation:
    """Return an operation without what does not change one call of it."""
    if isinstance(op, Collective):
        return op._replace(count=1, beside=(), feeds="")
    return op._replace(count=1)


def _happening(
    found: Estimate, prices: Prices
) -> Iterator[tuple[Operation, str, Any, float, float]]:
    """Yield each operation, its pass, how often, the seconds of one, and those exposed in all."""
    for times, label, passes in _pieces(found):
        yield from _in_passes(found, prices, times, label, passes)
    for times, where, operations in _between(found):
        seconds = prices.of(operations) if operations else []
        for op, each_s in zip(operations, seconds, strict=True):
            yield op, where, times, float(each_s), 0.0


def _pieces(found: Estimate) -> Iterator[tuple[Any, str, Passes]]:
    """Yield the pieces of the model, and how often each runs on the rank that sets the pace."""
    program, pace = found.program, pace_of(found)
    runs = program.micro_batches if program.step else 1
    whole = sum(each.count for each in program.layers)
    for each in program.layers:
        yield runs * pace.layers * each.count / whole, "", each.passes
    for end, piece in zip(ENDS, (program.first, program.last), strict=True):
        yield runs * (end in pace.ends), f"{end} ", piece


def _in_passes(
    found: Estimate, prices: Prices, times: Any, label: str, passes: Passes
) -> Iterator[tuple[Operation, str, Any, float, float]]:
    software = found.program.setting.software
    named = (
        ("forward", passes.forward),
        ("recompute", passes.recompute),
        ("backward", passes.backward),
        ("weight gradients", passes.weight),
    )
    every = tuple(op for _, operations in named for op in operations)
    seconds = prices.of(every)
    besides = beside_of(every, seconds, prices, software)
    where = [label + name for name, operations in named for _ in operations]
    for op, name, each_s in zip(every, where, seconds, strict=True):
        waits = 0.0
        if isinstance(op, Collective):
            shown = busy((op,), (each_s,), software, besides).exposed_s
            waits = float(times * shown.get(op.group, 0.0))
        yield op, name, times, float(each_s), waits


def _between(found: Estimate) -> Iterator[tuple[Any, str, Operations]]:
    """Yield what happens between stages, between layers where weights are sharded, once a step."""
    program, layout = found.program, found.layout
    if program.step is None:
        yield layout.pp - 1, "between stages", sends(program)
        return
    runs, layers = program.micro_batches, pace_of(found).layers
    yield 2 * runs * layout.virtual_stages, "between stages", sends(program)
    whole = sum(each.count for each in program.layers)
    for each in program.layers:
        often = runs * layers * each.count / whole
        yield 2 * often, "forward and backward", each.gathers.forward
        yield often, "backward", each.gathers.gradient
    yield 1, "once a step", program.step.gradients
    yield 1, "once a step", program.step.weights
    yield 1, "optimizer", program.step.optimizer


def times_sent(found: Estimate) -> dict[Collective, float]:
    """Return how often a rank of a middle stage calls each collective in a step."""
    often: dict[Collective, float] = {}
    for op, times in collectives_of(found.program):
        if op.ranks > 1:
            often[op] = often.get(op, 0.0) + float(times)
    return often


class Asked(NamedTuple):
    """An estimate that is asked, with the calls that it is a sum of."""

    found: Estimate
    prices: Prices
    calls: Mapping[str, Call]

    @classmethod
    def about(cls, found: Estimate) -> Asked:
        """Return what is needed to answer questions about an estimate."""
        prices = prices_of(found)
        return cls(found, prices, calls_of(found, prices))

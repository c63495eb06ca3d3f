"""Every operation of the rank that sets the pace: what one call takes, and how often it happens.

Entries of the ledger that are alike in all but their count are one call; others of the same name
are told apart by a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shardcost.estimate.ledger import STEP, Entry
from shardcost.estimate.price import Prices
from shardcost.estimate.result import Estimate
from shardcost.program.operations import Collective, Operation


class Call(NamedTuple):
    """One operation, happening many times in a step."""

    name: str
    """Unique among the calls of an estimate."""
    op: Operation
    """Counted once."""
    where: tuple[str, ...]
    """The passes in which it happens."""
    seconds: float
    """One call, in a run of the software."""
    times: float
    """How often it happens in a step on the rank that sets the pace, 0 where another stage has it;
    in serving, on all stages."""
    exposed_s: float
    """Of a collective, the seconds of a step that nothing hides."""
    alone_s: float = 0.0
    """One call, the kernel by itself."""

    @property
    def total_s(self) -> float:
        """Seconds in a step, hidden or not."""
        return self.times * self.seconds

    @property
    def once(self) -> bool:
        """Whether it happens once a step."""
        return self.where == (STEP,)


def calls_of(estimate: Estimate) -> dict[str, Call]:
    """Return every call of a step, by name."""
    every: dict[Operation, Call] = {}
    for entry in estimate.entries:
        op, seconds = _once(entry.op), float(entry.seconds)
        where = entry.phase if entry.piece.startswith(("layer", STEP)) else entry.piece
        known = every.get(op) or Call(
            op.name, op, (), seconds, 0.0, 0.0, seconds / _slowdown(estimate, entry)
        )
        every[op] = known._replace(
            where=tuple(dict.fromkeys((*known.where, where))),
            times=known.times + float(entry.times),
            exposed_s=known.exposed_s + float(entry.exposed_s),
        )
    named: dict[str, Call] = {}
    for call in every.values():
        same = sum(other.op.name == call.op.name for other in named.values())
        name = f"{call.name} {same + 1}" if same else call.name
        named[name] = call._replace(name=name)
    return named


def times_sent(estimate: Estimate) -> dict[Collective, float]:
    """Return how often the rank that sets the pace calls each collective in a step."""
    return {
        call.op: call.times
        for call in calls_of(estimate).values()
        if isinstance(call.op, Collective) and call.op.ranks > 1
    }


def _slowdown(estimate: Estimate, entry: Entry) -> float:
    """Return by how much a kernel is slower in a run of the software than by itself."""
    if isinstance(entry.op, Collective) or entry.phase == STEP:
        return 1.0
    return float(estimate.program.setting.software.slowdown)


def _once(op: Operation) -> Operation:
    """Return an operation without what does not change one call of it."""
    if isinstance(op, Collective):
        return op._replace(count=1, hides_behind=(), split_with=None)
    return op._replace(count=1)


class Asked(NamedTuple):
    """An estimate that is asked, with the calls that it is a sum of."""

    found: Estimate
    prices: Prices
    calls: Mapping[str, Call]

    @classmethod
    def about(cls, found: Estimate) -> Asked:
        """Return what is needed to answer questions about an estimate."""
        return cls(found, found.ledger.prices, calls_of(found))

"""What an algorithm is (`Algorithm`), and the ways to build its steps from those of others.

Most collectives need no code of their own. A reduce-scatter is an all-gather that runs backwards
and adds; a reduce is a broadcast that does; an all-reduce is the two in turn (Chan, Heimlich,
Purkayastha, van de Geijn, 2007, "Collective communication: theory, practice, and experience"); and
a pipeline is one plan started anew for every piece of the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from shardcost.collectives.exact.schedule import Step


class Plan(NamedTuple):
    """Steps over `chunks` of the buffer; what a schedule is before it has a name."""

    chunks: int
    steps: tuple[Step, ...]
    switches: int = 0


class Form(NamedTuple):
    """What an algorithm costs among n > 1 ranks, in closed form.

    Each field but the last is an expression over the symbols of `closed_forms.SYMBOLS`: it is
    evaluated, on numbers and arrays, and shown. All but the steps are shares of the buffer.
    """

    steps: str
    port: str
    """Through the busiest port of each step, added up: what takes time behind a switch."""
    link: str = "1"
    """From one participant to another, on the link that carries most."""
    sent: str = ""
    """By the rank that sends most; as through the port if left out."""
    wire: str = ""
    """Over the busiest link of each step, added up; as through the port if left out."""
    holds: Callable[[Mapping[str, Any]], Any] = lambda at: at["n"] > 1
    """Whether this form holds, by the values of the symbols."""


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of one collective: its steps, what they cost, and what to say about it."""

    collective: str
    name: str
    build: Callable[..., Plan]
    """Returns the steps, from what the algorithm `takes`."""
    forms: tuple[Form, ...]
    """Of these the first that holds is what it costs; the last always holds."""
    title: str
    """What happens, in one line."""
    paper: str | None = None
    ranks: str = "any number"
    """Among how many ranks it works, in words."""
    takes: Literal["ranks", "chunks", "shape"] = "ranks"
    """ranks: ``build(ranks)``; chunks: ``build(ranks, chunks)``; shape: ``build(*shape)``."""
    in_switch: bool = False
    """Every step is between ranks and a switch that reduces or replicates."""
    phases: tuple[str, str] | None = None
    """Of an all-reduce: what the steps that add up are called, and those that hand out the sum."""


SCATTER_AND_GATHER: Final = ("reduce-scatter phase", "all-gather phase")
THAKUR: Final = (
    "Thakur, Rabenseifner, Gropp, 2005, Optimization of collective communication operations in"
    " MPICH"
)


def is_power_of_two(at: Mapping[str, Any]) -> Any:
    """Return whether the ranks are a power of two, for `Form.holds`."""
    return at["e"] == 0


def is_pair(at: Mapping[str, Any]) -> Any:
    """Return whether there are two ranks, for `Form.holds`."""
    return at["n"] == 2


def powers_of_two(below: int) -> list[int]:
    """Return 1, 2, 4, … below a number."""
    return [1 << place for place in range((below - 1).bit_length())]


def mirrored(plan: Plan) -> Plan:
    """Return the plan run backwards and adding: what it spread from a rank, this sums up there.

    It is right for plans in which no rank gets a chunk twice, nor one that it held at the start.
    """
    back = (Step.of(s.target, s.source, s.chunk, reduces=True) for s in reversed(plan.steps))
    return plan._replace(steps=tuple(back))


def in_turn(first: Plan, second: Plan) -> Plan:
    """Return one plan after the other; both cut the buffer alike."""
    return first._replace(steps=first.steps + second.steps)


def mirror(build: Callable[..., Plan]) -> Callable[..., Plan]:
    """Return the builder of the mirrored plan: the reduce of a broadcast, and the like."""
    return lambda *arguments: mirrored(build(*arguments))


def up_and_down(build: Callable[..., Plan]) -> Callable[..., Plan]:
    """Return the builder of the all-reduce that mirrors a plan and then runs it."""
    return lambda *arguments: in_turn(mirrored(build(*arguments)), build(*arguments))


def at_once(first: Plan, second: Plan) -> Plan:
    """Return two plans run side by side, step by step; both cut the buffer alike."""
    pairs = zip_longest(first.steps, second.steps)
    return first._replace(steps=tuple(_joined(filter(None, pair)) for pair in pairs))


def pipelined(plan: Plan, pieces: int) -> Plan:
    """Return the plan started anew, one step later, for each piece of every chunk."""
    starts: list[list[Step]] = [[] for _ in range(len(plan.steps) + pieces - 1)]
    for number, step in enumerate(plan.steps):
        for piece in range(pieces):
            chunk = step.chunk * pieces + piece
            moved = Step.of(step.source, step.target, chunk, reduces=step.reduces)
            starts[number + piece].append(moved)
    return plan._replace(chunks=plan.chunks * pieces, steps=tuple(map(_joined, starts)))


def _joined(steps: Iterable[Step]) -> Step:
    """Return the transfers of all these as one step."""
    columns = zip(*((s.source, s.target, s.chunk, s.reduces) for s in steps), strict=True)
    source, target, chunk, reduces = map(np.concatenate, columns)
    return Step.of(source, target, chunk, reduces=reduces)

"""A search with the answers to what one asks next: `Plan`.

Why a layout loses to another (`losses`) and where an axis stops to pay (`crossovers`) stand here;
what more of a resource would bring, what the model's own errors do to the order, and what would
have to give where nothing is feasible have modules of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from shardcost.display import Displayed
from shardcost.options import AXES, QUESTIONS
from shardcost.records import NamedTuple, dataclass
from shardcost.search.batches import largest_batch
from shardcost.search.found import Candidate, Found
from shardcost.search.objectives import Price, price_on
from shardcost.search.relaxations import Relaxation, relaxations
from shardcost.search.sensitivity import Gain, sensitivity
from shardcost.search.space import DEGREES, SIZES
from shardcost.search.stability import Stability, stability
from shardcost.units import format_bytes, format_percentage, format_time
from shardcost.workload import Train

if TYPE_CHECKING:
    from shardcost.goodput.run import Target, TrainingRun

PRICED: Final = 20
"""Layouts to ask a search for, so that stability has rivals to look at beside those shown."""
_NUMBERS: Final = (
    *DEGREES,
    *SIZES,
    *(option.name for option in QUESTIONS if option.kind == "whole"),
)
_LISTED: Final = 3
_EQUAL: Final = 1e-6
"""Scores that differ by less, as a share, are the same."""


class Loss(NamedTuple):
    """What one part of a step takes in the better and in the worse of two layouts."""

    part: str
    winner_s: float
    other_s: float
    winner_score: float
    """What the part adds to the score: seconds, or what a token costs by the objective."""
    other_score: float

    @property
    def lost_s(self) -> float:
        """Seconds that the other loses by this part; below 0 where it gains."""
        return self.other_s - self.winner_s

    @property
    def lost_score(self) -> float:
        """What the other loses by this part in the objective's unit."""
        return self.other_score - self.winner_score


def losses(winner: Candidate, other: Candidate) -> tuple[Loss, ...]:
    """Return what a layout loses to another by, part by part, the largest difference first.

    The differences add up to the difference of the times, and of the scores.
    """
    one, two = winner.estimate.parts_s, other.estimate.parts_s
    of_second = [each.score / each.time_s for each in (winner, other)]

    def loss(part: str) -> Loss:
        seconds = [float(parts.get(part, 0.0)) for parts in (one, two)]
        scores = (each * own for each, own in zip(seconds, of_second, strict=True))
        return Loss(part, *seconds, *scores)

    parts = map(loss, {**one, **two})
    return tuple(sorted(parts, key=lambda each: -abs(each.lost_score)))


class Crossover(NamedTuple):
    """What the values of one axis lead to at best."""

    axis: str
    best: tuple[tuple[Any, float | None], ...]
    """Each value with the best score of all layouts that have it; None where none is feasible."""
    value: Any
    """The best value."""
    words: str


def crossovers(found: Found) -> tuple[Crossover, ...]:
    """Return, for every axis with a choice, the best of each value and from where on it loses."""
    worse = found.questions[0].objective.aim.worse if found.questions else ""
    results = []
    for axis in dict.fromkeys((*AXES, *found.by_axis)):
        scores = _scores(found, axis)
        feasible = {value: score for value, score in scores.items() if score is not None}
        if len(scores) < 2 or not feasible:
            continue
        value = min(feasible, key=lambda choice: feasible[choice])
        words = _words(axis, value, scores, worse)
        results.append(Crossover(axis, tuple(scores.items()), value, words))
    return tuple(results)


def _scores(found: Found, axis: str) -> dict[Any, float | None]:
    """Return the best score of each value of an axis, numbers in order."""
    spaces = [question.space for question in found.questions]
    given = (value for space in spaces for value in getattr(space, axis, ()) or ())
    known = found.by_axis.get(axis, {})
    values = list(dict.fromkeys((*given, *known)))
    if axis in _NUMBERS:
        values.sort()
    best = {value: known.get(value, float("inf")) for value in values}
    return {value: score if isfinite(score) else None for value, score in best.items()}


def _words(axis: str, value: Any, scores: Mapping[Any, float | None], worse: str) -> str:
    feasible = {each: score for each, score in scores.items() if score is not None}
    if len(feasible) == 1:
        return f"{_named(axis)}: only {_said(value)} is feasible"
    said = _in_order if axis in _NUMBERS else _one_by_one
    none = [_said(each) for each, score in scores.items() if score is None]
    more = f" and {len(none) - _LISTED} others" if len(none) > _LISTED + 1 else ""
    listed = ", ".join(none[:_LISTED] if more else none)
    nothing = f"; nothing feasible with {listed}{more}" if none else ""
    return f"{said(axis, value, feasible, worse)}{nothing}"


def _in_order(axis: str, value: Any, feasible: Mapping[Any, float], worse: str) -> str:
    """Return up to which value a number helps."""
    values = list(feasible)
    place = values.index(value)
    helps = f"more {_named(axis)} {'help' if axis.endswith('s') else 'helps'} up to {value}"
    if place + 1 == len(values):
        before = _compared(values[place - 1], feasible, value, worse)
        return f"{helps} (the largest feasible tried); {before}"
    after = _compared(values[place + 1], feasible, value, worse)
    return f"{_named(axis)} {value} is best; {after}" if not place else f"{helps}; {after}"


def _one_by_one(axis: str, value: Any, feasible: Mapping[Any, float], worse: str) -> str:
    """Return how far behind every other choice is."""
    others = sorted((each for each in feasible if each != value), key=lambda each: feasible[each])
    behind = ", ".join(_compared(each, feasible, value, worse) for each in others)
    return f"{_named(axis)} {_said(value)} is best; {behind}"


def _compared(value: Any, feasible: Mapping[Any, float], best: Any, worse: str) -> str:
    behind = feasible[value] / feasible[best] - 1
    if behind < _EQUAL:
        return f"{_said(value)}: the same"
    more = f"+{format_percentage(100 * behind)}" if behind < 1 else f"{1 + behind:.2g}x the"
    return f"{_said(value)}: {more} {worse}"


def _named(axis: str) -> str:
    return "GPUs" if axis == "gpus" else axis.replace("_", " ")


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "all" if value is None else str(value)


def _pipelined(found: Found) -> list[str]:
    """Return a caveat where pipelines would serve more with a batch in each stage.

    They would serve `pp` times the sequences at the same latency.
    """
    first = found.best[0] if found.best else None
    if first is None or first.workload.phase == Train.phase:
        return []
    question, depths = first.question, found.by_axis.get("pp", {})
    best = first.score / first.layout.pp
    ahead = [str(pp) for pp, score in sorted(depths.items()) if pp > 1 and score / pp < best]
    if question.objective.aim.weight is None or not ahead:
        return []
    said = (
        "layouts with pp are ranked with one batch in all stages together; engines keep one in"
        f" each, at the same latency, and pp {' or '.join(ahead)} may then be ahead: --load"
        " searches with them"
    )
    return [said]


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Displayed):
    """What a search found, and the answers to what one asks next."""

    found: Found
    top: int
    """How many of the best to show."""
    price: Price | None
    """Of a GPU for an hour."""
    caveats: tuple[str, ...]
    losses: tuple[Loss, ...] = ()
    gains: tuple[Gain, ...] = ()
    crossovers: tuple[Crossover, ...] = ()
    stability: Stability | None = None
    relaxations: tuple[Relaxation, ...] = ()
    target: Target | None = None
    """Of a whole training run, where one is given."""
    largest_batch: Candidate | None = None
    """The best with the largest batch within the limits, where several batches were given."""

    @classmethod
    def of(
        cls,
        found: Found,
        *,
        top: int = 5,
        price: Price | None = None,
        caveats: Sequence[str] = (),
        target: Target | None = None,
    ) -> Plan:
        """Return what a search found with the answers to it."""
        plan = cls(found, top, price, (*caveats, *_pipelined(found)), target=target)
        if not found.best:
            return replace(plan, relaxations=relaxations(found.questions, found))
        first, *others = found.best
        return replace(
            plan,
            losses=losses(first, others[0]) if others else (),
            gains=sensitivity(first, beyond=found.beyond),
            crossovers=crossovers(found),
            largest_batch=largest_batch(first),
            stability=stability(replace(found, best=found.best[:PRICED]), shown=min(top, PRICED)),
        )

    def __repr__(self) -> str:
        """Return the best layout, its interval and how sure it is to be the best."""
        found = self.found
        counts = f"{found.feasible:,} of {found.considered:,} layouts feasible"
        if not found.best:
            return f"Plan: {counts}"
        first = found.best[0]
        ends = " to ".join(map(format_time, first.estimate.interval[:2]))
        sure = self.stability and f", stays first in {self.stability.first_stays_pct:.0f} %"
        best = f"{first.layout.short()}, {format_time(first.time_s)} (90 % interval {ends})"
        memory = f"{format_bytes(first.memory_bytes)}{sure or ''}"
        return f"Plan: {counts}; best:\n  {best}, {memory}"

    @property
    def best(self) -> tuple[Candidate, ...]:
        """Those to show."""
        return self.found.best[: self.top]

    def run_of(self, candidate: Candidate) -> TrainingRun | None:
        """Return the whole training run of a layout, where one is to be planned."""
        if self.target is None:
            return None
        from shardcost.goodput.run import training_run

        price = None if self.price is None else price_on(candidate.question.cluster, self.price)
        tokens, resilience = self.target
        return training_run(
            candidate.estimate, tokens=tokens, price_per_gpu_hour=price, resilience=resilience
        )

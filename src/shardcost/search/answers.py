"""What one asks next of a search: why others lost, what would change the answer, how sure it is.

Why a layout loses to another (`losses`) and where an axis stops to pay (`crossovers`) stand here;
what more of a resource would bring, what the model's own errors do to the order, and what would
have to give where nothing is feasible have modules of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Final, NamedTuple

from shardcost.search.found import Candidate, Found
from shardcost.search.relaxations import Relaxation, relaxations, shortfall
from shardcost.search.sensitivity import Gain, sensitivity
from shardcost.search.space import AXES, DEGREES, SIZES
from shardcost.search.stability import Stability, stability

_WORSE: Final[Mapping[str, str]] = {
    "time": "takes {} longer",
    "throughput": "takes {} more GPU time per token",
    "cost": "costs {} more per token",
    "energy": "takes {} more energy per token",
}
"""How a layout is worse, by objective."""
_NUMBERS: Final = (*DEGREES, *SIZES)
_EQUAL: Final = 1e-6
"""Scores that differ by less, as a share, are the same."""


class Loss(NamedTuple):
    """What one part of a step takes in the better and in the worse of two layouts."""

    part: str
    winner_s: float
    other_s: float

    @property
    def lost_s(self) -> float:
        """Seconds that the other loses by this part; below 0 where it gains."""
        return self.other_s - self.winner_s


def losses(winner: Candidate, other: Candidate) -> tuple[Loss, ...]:
    """Return what a layout loses to another by, part by part, the largest difference first.

    The differences add up to the difference of the times.
    """
    one, two = (each.estimate.parts_s for each in (winner, other))
    found = [
        Loss(part, *(float(of.get(part, 0.0)) for of in (one, two))) for part in {**one, **two}
    ]
    return tuple(sorted(found, key=lambda each: -abs(each.lost_s)))


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
    return tuple(_crossovers(found))


def _crossovers(found: Found) -> Iterator[Crossover]:
    worse = _WORSE[found.questions[0].objective.name] if found.questions else ""
    for axis in dict.fromkeys((*AXES, *found.by_axis)):
        scores = _scores(found, axis)
        feasible = {value: score for value, score in scores.items() if score is not None}
        if len(scores) < 2 or not feasible:
            continue
        value = min(feasible, key=lambda each: feasible[each])
        said = _in_order if axis in _NUMBERS else _one_by_one
        words = "; ".join((*said(axis, value, feasible, worse), *_nothing_with(scores)))
        yield Crossover(axis, tuple(scores.items()), value, words)


def _scores(found: Found, axis: str) -> dict[Any, float | None]:
    """Return the best score of each value of an axis, numbers in order."""
    asked = (value for each in found.questions for value in getattr(each.space, axis, ()) or ())
    known = found.by_axis.get(axis, {})
    values = list(dict.fromkeys((*asked, *known)))
    if axis in _NUMBERS:
        values.sort()
    best = {value: known.get(value, float("inf")) for value in values}
    return {value: score if isfinite(score) else None for value, score in best.items()}


def _in_order(axis: str, value: Any, feasible: Mapping[Any, float], worse: str) -> Iterator[str]:
    """Yield what a number pays until."""
    values = list(feasible)
    place = values.index(value)
    if len(values) == 1:
        yield f"{_named(axis)} {value} is the only one"
    elif place + 1 < len(values):
        pays = "pays until" if place else "is best at"
        after = _compared(values[place + 1], feasible, value, worse)
        yield f"{_named(axis)} {pays} {value}: {after}"
    else:
        before = _compared(values[place - 1], feasible, value, worse)
        yield f"{_named(axis)} pays up to {value}, the most that is feasible: {before}"


def _one_by_one(axis: str, value: Any, feasible: Mapping[Any, float], worse: str) -> Iterator[str]:
    """Yield how far behind every other choice is."""
    others = sorted((each for each in feasible if each != value), key=lambda each: feasible[each])
    if not others:
        yield f"{_named(axis)} {_said(value)} is the only one"
        return
    behind = ", ".join(_compared(each, feasible, value, worse) for each in others)
    yield f"{_named(axis)} {_said(value)} is best: {behind}"


def _compared(value: Any, feasible: Mapping[Any, float], best: Any, worse: str) -> str:
    behind = feasible[value] / feasible[best] - 1
    if behind < _EQUAL:
        return f"{_said(value)} does the same"
    return f"{_said(value)} {worse.format(_percent(behind))}"


def _nothing_with(scores: Mapping[Any, float | None]) -> Iterator[str]:
    none = [_said(value) for value, score in scores.items() if score is None]
    if none:
        yield f"nothing feasible with {', '.join(none)}"


def _named(axis: str) -> str:
    return axis.replace("_", " ")


def _said(value: Any) -> str:
    return (
        {True: "on", False: "off", None: "all"}.get(value, str(value))
        if _is_word(value)
        else str(value)
    )


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.2g} %"


__all__ = [
    "Crossover",
    "Gain",
    "Loss",
    "Relaxation",
    "Stability",
    "crossovers",
    "losses",
    "relaxations",
    "sensitivity",
    "shortfall",
    "stability",
]

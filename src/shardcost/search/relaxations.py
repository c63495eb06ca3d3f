"""What would have to give where nothing is feasible: `relaxations`, by trying, and `shortfall`.

Each try lets go of one thing that was asked for: a limit, the number of GPUs, a value that an axis
was fixed to; of all of them where none by itself helps. A try is first screened by the layouts that
hold least, without any limit on time, and searched in full only where one of them fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from shardcost.cluster import Network
from shardcost.options import AXES, LIMITS
from shardcost.records import NamedTuple
from shardcost.search.found import Candidate, Found
from shardcost.search.objectives import Constraints
from shardcost.search.question import Question
from shardcost.search.run import search
from shardcost.search.space import Space
from shardcost.units import format_bytes, format_time

_MORE_GPUS: Final = (2, 4, 8, 16, 32, 64)
_NETWORK: Final = "ib_1x400g_per_gpu"
"""Joins nodes where a cluster has no usual network: one that nodes of any size can have."""
_MOST_SEARCHES: Final = 3
"""In full, for one thing to let go of."""
_MOST_FOUND: Final = 4
_FREED_FIRST: Final = ("recompute", "zero", "micro_batch", "pp", "tp", "dp", "cp", "ep", "batch")
"""Axes in the order in which they are freed: what saves most memory comes first."""
_LIMITS: Final = {
    option.limit: option.label
    for option in LIMITS
    if option.limit not in {"memory_headroom", "confidence"}
}
"""Codes of the reasons that limits on time and rate give, with the words before the limit."""
_TIMES: Final = frozenset(name for name in _LIMITS if name.startswith("max"))
_DEGREES: Final = ("tp", "cp", "pp", "dp")
_LEANEST: Final[Mapping[str, tuple[Any, ...]]] = {
    "recompute": ("full", "selective", "none"),
    "schedule": ("1f1b", "zero_bubble", "interleaved"),
}
"""Choices by what a rank holds under them, least first."""


class Relaxation(NamedTuple):
    """Something to let go of, and the best layout then."""

    words: str
    candidate: Candidate


class _Try(NamedTuple):
    """A question that asks for less."""

    question: Question
    words: str
    axis: str | None = None
    """The axis that was freed, which begins the words with the value that it then has."""


def shortfall(found: Found) -> str:
    """Return in one sentence why nothing is feasible; nothing if something is."""
    if found.feasible:
        return ""
    least = found.smallest
    if least is None:
        only = found.rejected if len(found.rejected) == 1 else ()
        return ": ".join(("no layout is possible", *map(str, only)))
    room = _room_bytes(least.question)
    if least.memory_bytes > room:
        need = f"{format_bytes(least.memory_bytes)} of {format_bytes(room)}"
        return f"memory: the smallest layout needs {need}: {least.layout.short()}"
    limit = next((reason for reason in found.rejected if reason.code in _LIMITS), None)
    return f"limits: {limit}" if limit else "no layout is possible"


def relaxations(questions: Sequence[Question], found: Found) -> tuple[Relaxation, ...]:
    """Return what to let go of so that something becomes feasible, with the best layout then.

    Of several questions the one that comes nearest, by memory, is asked again. Limits come first,
    then GPUs, then axes.

    Args:
        questions: What was asked.
        found: What was found: nothing, or there is nothing to let go of.
    """
    if found.feasible or not questions:
        return ()
    question = _nearest(questions, found)
    start = _joined(question)
    if start is not question:
        best = _answer(_Try(start, f"a network between the nodes ({_network_of(question)})"))
        if best is not None:
            return (best,)
    results = list(_answers(_without_limits(start, found), _MOST_FOUND))
    # How many times longer than the limit a step takes where that limit was dropped.
    limit = start.constraints.max_time_s
    times = [result.candidate.time_s / limit for result in results] if limit else []
    results += _answers(_with_more_gpus(start, min(times, default=1.0)), 1)
    results += _answers(_freed(start), _MOST_FOUND - len(results))
    return tuple(results or _answers(_with_all_freed(start), 1))


def _answers(tries: Iterator[_Try], most: int) -> Iterator[Relaxation]:
    """Yield what comes of tries, up to so many that lead to something."""
    searched = 0
    for each in tries:
        if most > 0 and searched < _MOST_SEARCHES and _may_fit(each):
            searched += 1
            best = _answer(each)
            if best is not None:
                most -= 1
                yield best


def _nearest(questions: Sequence[Question], found: Found) -> Question:
    """Return the question of the layout that holds least, where devices hold most."""
    if found.smallest is None:
        return questions[0]
    least = found.smallest.question.own
    alike = [each for each in questions if least == each.own | {"cluster": least["cluster"]}]
    return max(alike, key=_room_bytes)


def _joined(question: Question) -> Question:
    """Return a question with a network between nodes where it needs one and names none."""
    most = max(question.space.gpus or (1,))
    if question.cluster.network is not None or most <= question.cluster.tiers[-1].gpus:
        return question
    network = Network.named(_network_of(question))
    return replace(question, cluster=replace(question.cluster, network=network))


def _network_of(question: Question) -> str:
    """Return the name of the network that would join the nodes."""
    return question.cluster.usual_network or _NETWORK


def _without_limits(question: Question, found: Found) -> Iterator[_Try]:
    """Yield the question without the limit that most layouts break, and without any."""
    limits = question.constraints
    if limits.memory_headroom > 0:
        words = f"memory headroom dropped (was {100 * limits.memory_headroom:g} %)"
        yield _Try(replace(question, constraints=replace(limits, memory_headroom=0.0)), words)
    broken = [reason.code for reason in found.rejected if reason.code in _LIMITS]
    if limits.confidence is not None and broken:
        words = f"limits on the estimate itself (were at {100 * limits.confidence:g} %)"
        yield _Try(replace(question, constraints=replace(limits, confidence=None)), words)
    if broken:
        most = broken[0]
        value = getattr(limits, most)
        was = format_time(value) if most in _TIMES else f"{value:g}"
        words = f"limit dropped ({_LIMITS[most]} {was})"
        dropped: dict[str, Any] = {most: None}
        yield _Try(replace(question, constraints=replace(limits, **dropped)), words)
    if len(broken) > 1:
        none = Constraints(memory_headroom=limits.memory_headroom)
        yield _Try(replace(question, constraints=none), "all limits dropped")


def _with_more_gpus(question: Question, times: float = 1.0) -> Iterator[_Try]:
    """Yield the question with more and more GPUs, from so many times as many on."""
    asked = question.space.gpus or (1,)
    at_most = "at most " if len(asked) > 1 else ""
    for factor in _MORE_GPUS:
        if factor < times:
            continue
        gpus = factor * max(asked)
        bigger = _completed(question, replace(question.asked, gpus=(gpus,)))
        joined = _joined(bigger)
        network = "" if joined is bigger else f", joined by {_network_of(question)}"
        yield _Try(joined, f"{gpus} GPUs instead of {at_most}{max(asked)}{network}")


def _with_all_freed(question: Question) -> Iterator[_Try]:
    """Yield the question with nothing fixed and no limits, and more and more GPUs."""
    free = replace(question.asked, **{name: getattr(Space(), name) for name in _fixed(question)})
    anything = replace(_completed(question, free), constraints=Constraints())
    said = ["all axes free"] if _fixed(question) else []
    said += ["all limits dropped"] if question.constraints != Constraints() else []
    if said:
        yield _Try(anything, ", ".join(said))
    for each in _with_more_gpus(anything):
        yield each._replace(words=", ".join((*said, each.words)))


def _freed(question: Question) -> Iterator[_Try]:
    """Yield the question with each axis freed that was fixed, then with all degrees."""
    given, fixed = question.asked, _fixed(question)
    for name in fixed:
        free = replace(given, **{name: getattr(Space(), name)})
        words = f"instead of {_listed(getattr(given, name))}"
        yield _Try(_completed(question, free), words, name)
    degrees: dict[str, Any] = {name: None for name in fixed if name in _DEGREES}
    if len(degrees) > 1:
        free = replace(given, **degrees)
        was = ", ".join(f"{name} {_listed(getattr(given, name))}" for name in degrees)
        yield _Try(_completed(question, free), f"degrees free (were {was})")


def _listed(values: tuple[Any, ...]) -> str:
    return " or ".join(map(str, values))


def _fixed(question: Question) -> list[str]:
    """Return the axes that would have further values if they were left out."""
    space = question.space
    usual = _completed(question, Space(gpus=space.gpus)).space
    fixed = [name for name in AXES if not set(getattr(space, name)) >= set(getattr(usual, name))]
    return sorted(fixed, key=lambda name: (*_FREED_FIRST, name).index(name))


def _completed(question: Question, space: Space) -> Question:
    place = (question.model, question.cluster, question.workload, question.software)
    return replace(question, space=space.complete(*place), asked=space)


def _may_fit(each: _Try) -> bool:
    """Return whether any layout fits, by those that hold least, whatever time they take."""
    question, space = each.question, each.question.space
    lean: dict[str, Any] = {
        name: next((choice,) for choice in order if choice in getattr(space, name))
        for name, order in _LEANEST.items()
    }
    lean["micro_batch"] = (min(space.micro_batch or (1,)),)
    if 1 in (space.virtual_stages or ()) and lean["schedule"] != ("interleaved",):
        lean["virtual_stages"] = (1,)
    limits = Constraints(memory_headroom=question.constraints.memory_headroom)
    leanest = replace(question, space=replace(space, **lean), constraints=limits)
    return _searched(leanest).feasible > 0


def _answer(each: _Try) -> Relaxation | None:
    best = next(iter(_searched(each.question).best), None)
    if best is None:
        return None
    if each.axis is None:
        return Relaxation(each.words, best)
    value = best.row.get(each.axis, getattr(best.family, each.axis, None))
    return Relaxation(f"{each.axis.replace('_', ' ')} {value} {each.words}", best)


def _searched(question: Question) -> Found:
    place = (question.model, question.cluster, question.workload)
    return search(
        *place,
        space=question.space,
        constraints=question.constraints,
        objective=question.objective,
        software=question.software,
        top=1,
    )


def _room_bytes(question: Question) -> float:
    share = 1 - question.constraints.memory_headroom
    return float(share * question.cluster.device.memory_bytes)

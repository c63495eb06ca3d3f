"""What is answered: one function per question, from checked fields to plain data.

Runs in the processes of `shardcost.web.pool`. Each function asks by `shardcost.request`, as the
commands do, and returns what a view of `shardcost.report` makes of the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shardcost.errors import BadValueError, UsageError
from shardcost.options import AXES, SIZE, SWEEP, TOP
from shardcost.request import ImpossibleError, WorldSizeError, value_of
from shardcost.web.finder import Pasted
from shardcost.web.limits import (
    MOST_CELLS,
    MOST_PASSES,
    MOST_SEARCHED,
    MOST_VALUES,
    MOST_WRITTEN_PASSES,
)
from shardcost.workload import Train

if TYPE_CHECKING:
    from shardcost.collectives.library_time import CollectiveTime
    from shardcost.estimate.result import Estimate

Fields = dict[str, Any]


@dataclass(frozen=True)
class Document:
    """An answer that is no JSON, or is to be saved."""

    content: bytes
    kind: str
    name: str


def catalog(_: Fields) -> Any:
    """Return what can be chosen."""
    from shardcost.web.listing import listing

    return listing()


def _found(asked: Fields) -> tuple[Estimate, list[str]]:
    """Return the estimate of an ask, and what is to mind about a pasted model."""
    from shardcost.request import estimate_of

    found = estimate_of(asked, Pasted(asked))
    return found, [] if asked.get("config") is None else list(found.model.caveats)


def estimate(asked: Fields) -> Any:
    """Return what ``shardcost estimate --json`` prints, and its two lines of heading."""
    from shardcost.report.estimate import details, title
    from shardcost.report.estimate_data import as_data

    found, caveats = _found(asked)
    return as_data(found, caveats) | {"title": title(found), "details": details(found)}


def advice(asked: Fields) -> Any:
    """Return what each further step of each size would bring, and what to change.

    Of a layout that is impossible as well: that is where advice is needed. Where degrees do not
    multiply to the GPUs, it is of replicas alone on as many GPUs, and says why.
    """
    from shardcost.report.estimate_data import advice_as_data
    from shardcost.request import question_of
    from shardcost.search.advice import advice as advice_on

    finder = Pasted(asked)
    try:
        question = question_of(asked, finder)
    except ImpossibleError as error:
        if not isinstance(error.reason, WorldSizeError):
            raise
        degrees = [name for name, option in AXES.items() if option.axis == "degree"]
        alone = dict.fromkeys([*degrees, "virtual_stages", "shard_degree"]) | {
            "gpus": asked["gpus"]
        }
        question = question_of(asked | alone, finder)
        limit = {"part": "layout", "share": 1.0, "words": f"it is impossible: {error}"}
        return advice_as_data(advice_on(*question)) | {"limit": limit, "change": None}
    return advice_as_data(advice_on(*question))


def timeline(asked: Fields) -> Any:
    """Return the events of one layer or of one step."""
    from shardcost.report.estimate_data import timeline_as_data

    found, _ = _found(asked)
    _check_drawable(found, MOST_PASSES)
    return timeline_as_data(found, asked["of"])


def _check_drawable(found: Estimate, most: int) -> None:
    """Raise where a step has too many passes to be drawn."""
    if isinstance(found.workload, Train):
        passes = found.program.micro_batches * found.layout.pp * found.layout.virtual_stages
        if passes > most:
            rule = f"at most {most:,} to be drawn; take a smaller batch or a larger micro-batch"
            raise BadValueError("passes of micro-batches through stages", int(passes), rule)


def scaling(asked: Fields) -> Any:
    """Return what ``shardcost estimate --vary --json`` prints."""
    from shardcost.report.scaling import as_data
    from shardcost.request import scaling_of, varied_name

    finder = Pasted(asked)
    name = varied_name(asked["vary"] or "tp", asked["phase"])
    found = scaling_of(asked, finder, name, _values_of(asked, finder, name))
    caveats = [] if asked.get("config") is None else finder.model(None).caveats
    return as_data(found, list(caveats))


def _values_of(asked: Fields, finder: Pasted, name: str) -> list[Any]:
    """Return the values that vary: those that are given, or those that suit."""
    if asked.get("values") is not None:
        if any(not str(each).strip() for each in asked["values"]):
            raise BadValueError("values", asked["values"], "without empty values")
        return list(dict.fromkeys(asked["values"]))
    from shardcost.estimate.scaling import degrees_to_vary

    gpus = value_of(asked, AXES["gpus"]) or 8
    return degrees_to_vary(finder.model(asked.get("model")), gpus, name)[:MOST_VALUES]


def roofline(asked: Fields) -> Any:
    """Return the kernels of a layer under the device's roof."""
    from shardcost.report.estimate_data import roofline_as_data

    return roofline_as_data(_found(asked)[0])


def messages(asked: Fields) -> Any:
    """Return every collective of a step."""
    from shardcost.report.estimate_data import messages_as_data

    return messages_as_data(_found(asked)[0])


def collective(asked: Fields) -> Any:
    """Return what ``shardcost collective --json`` prints of one size, or the curves of many."""
    if asked["size"] is not None and asked["sweep"] is not None:
        raise UsageError("--size and --sweep exclude each other; give one")
    if asked["sweep"] is None:
        from shardcost.report.collective import as_data

        return as_data(_collective(asked))
    from shardcost.collectives.sweep import curve_sizes
    from shardcost.report.collective import curves_as_data
    from shardcost.validate.shipped import points_like

    sizes = SWEEP.read(asked["sweep"])
    found = _collective(asked, curve_sizes(sizes[0], sizes[-1]))
    return curves_as_data(found, points_like(found))


def _collective(asked: Fields, sizes: Any = None) -> CollectiveTime:
    """Return the time of a collective, of its own size or of several."""
    from shardcost.request import collective_of

    for name in ("collective", "gpus"):
        if asked.get(name) is None:
            raise UsageError(f"missing {'COLLECTIVE' if name == 'collective' else '--gpus'}")
    if sizes is None and asked["size"] is None:
        raise UsageError("missing --size (or --sweep A:B for many sizes)")
    return collective_of(asked, Pasted(asked), SIZE.read(asked["size"]) if sizes is None else sizes)


def schedule(asked: Fields) -> Any:
    """Return the steps of a collective by an algorithm."""
    from shardcost.collectives.exact.stepped import stepped
    from shardcost.report.stepped import as_data
    from shardcost.request import collective_name
    from shardcost.values import size

    for name in ("collective", "algorithm", "ranks", "size"):
        if asked[name] is None:
            raise UsageError(f"missing {name}")
    finder, shape = Pasted(asked), asked["shape"]
    placed = asked.get("on") is not None or asked.get("profile") is not None
    return as_data(
        stepped(
            collective_name(asked["collective"]),
            asked["algorithm"],
            asked["ranks"],
            size("size", asked["size"]),
            finder.cluster(asked.get("on"), asked.get("network")) if placed else None,
            pieces=asked["pieces"],
            shape=None if shape is None else tuple(shape),
            nodes=asked["nodes"],
        )
    )


def why(asked: Fields) -> Any:
    """Return where a figure of an estimate, or of a collective, comes from."""
    from shardcost.report.why import as_data

    figure = asked["figure"]
    if figure is None:
        raise UsageError("missing figure")
    if asked["collective"] is not None:
        from shardcost.report.why import why_collective

        return as_data(why_collective(_collective(asked["collective"]), figure))
    if asked["phase"] is None:
        raise UsageError("one of --train --prefill --decode is required: phase")
    from shardcost.estimate.why import why as why_estimate

    return as_data(why_estimate(_found(asked)[0], figure))


def commands(asked: Fields) -> Any:
    """Return the command and the Python that ask the same."""
    from shardcost.report.command import command_of, python_of

    found, _ = _found(asked)
    return {"command": command_of(found), "python": python_of(found)}


def plan_check(asked: Fields) -> Any:
    """Return how many layouts a search would look at, if it is in good order and not too many."""
    from shardcost.search.objectives import Constraints, Objective
    from shardcost.search.run import questions_of
    from shardcost.search.space import Space

    arguments = _search_arguments(asked)
    _top(asked)
    limits = Constraints.of(arguments["constraints"])
    limits.check(arguments["workload"])
    price = arguments.pop("price_per_gpu_hour")
    space = Space.of(arguments["space"])
    for option, counts in {"--gpus": space.gpus, "--batch": space.batch}.items():
        if counts and max(counts) > MOST_SEARCHED:
            raise BadValueError(option, max(counts), f"at most {MOST_SEARCHED} on the page")
    questions = questions_of(
        arguments["model"],
        arguments["cluster"],
        arguments["workload"],
        space=space,
        constraints=limits,
        objective=Objective.of(arguments["objective"], price),
        software=arguments["software"],
        wire=None,
        backend="numpy",
    )
    cells = sum(int(each.cells) for each in questions)
    if cells > MOST_CELLS:
        rule = f"at most {MOST_CELLS:,} on the page: fix an axis, or ask `shardcost plan`"
        raise BadValueError("the number of layouts", cells, rule)
    return {"cells": cells}


def _search_arguments(asked: Fields) -> dict[str, Any]:
    from shardcost.request import search_arguments

    return search_arguments(asked, Pasted(asked))


def _top(asked: Fields) -> int:
    """Return how many of the best are wanted."""
    wanted: int = value_of(asked, TOP)
    if wanted > MOST_VALUES:
        raise BadValueError("--top", wanted, f"at most {MOST_VALUES}")
    return wanted


def plan(asked: Fields, progress: Callable[[int, int], None]) -> Any:
    """Search, and return what ``shardcost plan --json`` prints; where nothing is feasible, why."""
    from shardcost.report.plan import failure_as_text
    from shardcost.report.plan_data import as_data
    from shardcost.search.plan import PRICED, Plan
    from shardcost.search.run import search

    wanted = _top(asked)
    arguments = _search_arguments(asked)
    found = search(**arguments, top=max(wanted, PRICED), progress=progress)
    caveats = [] if asked.get("config") is None else arguments["model"][0].caveats
    answer = Plan.of(
        found, top=wanted, price=arguments["price_per_gpu_hour"], caveats=list(caveats)
    )
    data: dict[str, Any] = {"result": as_data(answer)}
    if not answer.best:
        first, *rest = failure_as_text(answer).splitlines()
        data |= {"detail": first.rstrip(":"), "reasons": [line.strip() for line in rest]}
    return data


def trace(asked: Fields) -> Document:
    """Return the timeline of a step for Perfetto."""
    from shardcost.formats.chrome_trace import trace_text
    from shardcost.report.trace import events_of

    found, _ = _found(asked)
    _check_drawable(found, MOST_WRITTEN_PASSES)
    return Document(trace_text(*events_of(found)).encode(), "application/json", "step.json")


def csv(asked: Fields) -> Document:
    """Return the figures of an estimate as a table."""
    from shardcost.report.estimate_data import as_csv

    found, _ = _found(asked)
    return Document(as_csv(found).encode(), "text/csv; charset=utf-8", "estimate.csv")


def html(asked: Fields) -> Document:
    """Return the report of an estimate as one page by itself."""
    from shardcost.report.html import as_html
    from shardcost.search.review import review
    from shardcost.validate.shipped import points_like

    found, caveats = _found(asked)
    _check_drawable(found, MOST_PASSES)
    whole = review(found)
    points = points_like(whole.heaviest.curve) if whole.heaviest else ()
    content = as_html(whole, points, caveats).encode()
    return Document(content, "text/html; charset=utf-8", "estimate.html")


QUESTIONS: Final[dict[str, Callable[[Fields], Any]]] = {
    function.__name__: function
    for function in (
        catalog,
        estimate,
        advice,
        timeline,
        scaling,
        roofline,
        messages,
        collective,
        schedule,
        why,
        commands,
        plan_check,
        trace,
        csv,
        html,
    )
}
"""By name."""

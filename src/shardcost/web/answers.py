"""What is answered: one function per question, from checked fields to plain data.

Runs in the processes of `shardcost.web.pool`. Each function asks by `shardcost.request`, as the
commands do, and returns what a view of `shardcost.report` makes of the answer.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shardcost.errors import BadValueError
from shardcost.request.errors import ImpossibleError, UsageError, WorldSizeError
from shardcost.web.asks import given
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
    from shardcost.request.estimates import estimate_of

    found = estimate_of(given(asked), Pasted(asked))
    return found, [] if asked.get("config") is None else list(found.model.caveats)


def estimate(asked: Fields) -> Any:
    """Return what ``shardcost estimate --json`` prints, and its two lines of heading."""
    from shardcost.report.estimate import as_data, details, title

    found, caveats = _found(asked)
    return as_data(found, caveats) | {"title": title(found), "details": details(found)}


def advice(asked: Fields) -> Any:
    """Return what each further step of each size would bring, and what to change.

    Of a layout that is impossible as well: that is where advice is needed. Where degrees do not
    multiply to the GPUs, it is of replicas alone on as many GPUs, and says why.
    """
    from shardcost.report.advice import as_data
    from shardcost.request.estimates import question_of
    from shardcost.search.advice import advice as advice_on

    options, finder = given(asked), Pasted(asked)
    try:
        question = question_of(options, finder)
    except ImpossibleError as error:
        if not isinstance(error.reason, WorldSizeError):
            raise
        alone = dict.fromkeys(("tp", "cp", "pp", "dp", "ep", "virtual_stages", "shard_degree"))
        question = question_of(Namespace(**{**vars(options), **alone}), finder)
        limit = {"part": "layout", "share": 1.0, "words": f"it is impossible: {error}"}
        return as_data(advice_on(*question)) | {"limit": limit, "change": None}
    return as_data(advice_on(*question))


def timeline(asked: Fields) -> Any:
    """Return the events of one layer or of one step."""
    from shardcost.report.timeline import as_data

    found, _ = _found(asked)
    _check_drawable(found, MOST_PASSES)
    return as_data(found, asked["of"])


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
    from shardcost.request.estimates import scaling_of, varied_name

    options, finder = given(asked), Pasted(asked)
    name = varied_name(options.vary or "tp", options.phase)
    values = _values_of(asked, options, finder, name)
    found = scaling_of(options, finder, name, values)
    caveats = [] if asked.get("config") is None else finder.model(options.model).caveats
    return as_data(found, list(caveats))


def _values_of(asked: Fields, options: Namespace, finder: Pasted, name: str) -> list[str]:
    """Return the values that vary: those that are asked for, or those that suit."""
    if asked.get("values") is not None:
        values = [str(each) for each in asked["values"]]
        if not all(each.strip() for each in values):
            raise BadValueError("values", asked["values"], "without empty values")
        return list(dict.fromkeys(values))
    from shardcost.estimate.scaling import degrees_to_vary
    from shardcost.request.values import whole

    gpus = whole("--gpus", options.gpus) if options.gpus is not None else 8
    return [
        str(each) for each in degrees_to_vary(finder.model(options.model), gpus, name)[:MOST_VALUES]
    ]


def roofline(asked: Fields) -> Any:
    """Return the kernels of a layer under the device's roof."""
    from shardcost.report.roofline import as_data

    return as_data(_found(asked)[0])


def messages(asked: Fields) -> Any:
    """Return every collective of a step."""
    from shardcost.report.messages import as_data

    return as_data(_found(asked)[0])


def _collective_options(asked: Fields) -> Namespace:
    options = given(asked)
    for name in ("collective", "gpus"):
        if asked.get(name) is None:
            raise UsageError(f"missing {'COLLECTIVE' if name == 'collective' else '--gpus'}")
    options.collective = asked["collective"]
    return options


def collective(asked: Fields) -> Any:
    """Return what ``shardcost collective --json`` prints of one size, or the curves of many."""
    if asked["size"] is not None and asked["sweep"] is not None:
        raise UsageError("--size and --sweep exclude each other; give one")
    if asked["sweep"] is None:
        from shardcost.report.collective import as_data

        return as_data(_one_collective(asked))
    from shardcost.collectives.sweep import curve_sizes
    from shardcost.report.collective_curves import as_data as curves_as_data
    from shardcost.request.collectives import collective_of, sizes_of
    from shardcost.validate.shipped_points import points_like

    options = _collective_options(asked)
    sizes = sizes_of(options.sweep)
    found = collective_of(options, Pasted(asked), curve_sizes(sizes[0], sizes[-1]))
    return curves_as_data(found, points_like(found))


def _one_collective(asked: Fields) -> CollectiveTime:
    from shardcost.request.collectives import collective_of, size_of

    options = _collective_options(asked)
    if asked["size"] is None:
        raise UsageError("missing --size (or --sweep A:B for many sizes)")
    return collective_of(options, Pasted(asked), size_of(str(asked["size"]), "--size"))


def schedule(asked: Fields) -> Any:
    """Return the steps of a collective by an algorithm."""
    from shardcost.collectives.exact.stepped import stepped
    from shardcost.report.stepped import as_data
    from shardcost.request.collectives import collective_name, size_of

    for name in ("collective", "algorithm", "ranks", "size"):
        if asked[name] is None:
            raise UsageError(f"missing {name}")
    options, finder = given(asked), Pasted(asked)
    shape = asked["shape"]
    return as_data(
        stepped(
            collective_name(asked["collective"]),
            asked["algorithm"],
            asked["ranks"],
            size_of(str(asked["size"]), "size"),
            None if options.on is None else finder.cluster(options.on, options.network),
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

        return as_data(why_collective(_one_collective(asked["collective"]), figure))
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
    top(asked)
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
    from shardcost.request.searches import search_arguments

    options = given(asked)
    finder = Pasted(asked)
    for name in ("model", "on"):
        if getattr(options, name) is None:
            (finder.model if name == "model" else finder.cluster)(None)
    return search_arguments(options, finder)


def top(asked: Fields) -> int:
    """Return how many of the best are wanted."""
    from shardcost.scalars import whole_number

    wanted = whole_number("--top", 5 if asked.get("top") is None else asked["top"], 1)
    if wanted > MOST_VALUES:
        raise BadValueError("--top", wanted, f"at most {MOST_VALUES}")
    return wanted


def plan(asked: Fields, progress: Callable[[int, int], None]) -> Any:
    """Search, and return what ``shardcost plan --json`` prints; where nothing is feasible, why."""
    from shardcost.report.plan import failure_as_text
    from shardcost.report.plan_data import as_data
    from shardcost.search.plan import PRICED, Plan
    from shardcost.search.run import search

    wanted = top(asked)
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
    from shardcost.report.figures_csv import as_csv

    found, _ = _found(asked)
    return Document(as_csv(found).encode(), "text/csv; charset=utf-8", "estimate.csv")


def html(asked: Fields) -> Document:
    """Return the report of an estimate as one page by itself."""
    from shardcost.report.html import as_html

    found, caveats = _found(asked)
    _check_drawable(found, MOST_PASSES)
    return Document(as_html(found, caveats).encode(), "text/html; charset=utf-8", "estimate.html")


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

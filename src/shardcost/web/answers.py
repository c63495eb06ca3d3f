"""What is answered: one function per question, from checked fields to plain data.

Runs in the processes of `shardcost.web.pool`. Each function asks by `shardcost.request`, as the
commands do, and returns what a view of `shardcost.report` makes of the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from shardcost.collectives.library_time import CollectiveTime
from shardcost.errors import BadValueError, UsageError
from shardcost.estimate.result import Estimate
from shardcost.model import Model
from shardcost.options import GPUS, LOAD, SIMULATED, SIZE, SWEEP, TOP
from shardcost.report import estimate_data
from shardcost.report.estimate import details, title
from shardcost.request import (
    ImpossibleError,
    WorldSizeError,
    estimate_of,
    nearest_of,
    question_of,
    run_of,
    run_options_named,
    scaling_of,
    target_of,
    value_of,
    varied_name,
)
from shardcost.request.collective import collective_name, collective_of
from shardcost.request.load import (
    deployment_of,
    gpu_price_of,
    limits_of,
    load_question_of,
    requests_of,
    simulated,
    sweep_of,
    swept,
)
from shardcost.request.search import search_arguments
from shardcost.web import limits
from shardcost.web.fields import on_page
from shardcost.web.finder import Pasted
from shardcost.web.listing import listing
from shardcost.workload import Train

if TYPE_CHECKING:
    from shardcost.load.requests import Requests
    from shardcost.search.question import Question

Fields = dict[str, Any]


@dataclass(frozen=True)
class Document:
    """An answer that is no JSON, or is to be saved."""

    content: bytes
    kind: str
    name: str


def catalog(_: Fields) -> Any:
    """Return what can be chosen."""
    return listing()


def _estimate(given: Fields) -> tuple[Estimate, list[str]]:
    """Return the estimate of a request, and the caveats of a pasted model."""
    result = estimate_of(given, Pasted(given))
    return result, _caveats(given, result.model)


def _caveats(given: Fields, model: Model) -> list[str]:
    return [] if given.get("config") is None else list(model.caveats)


def estimate(given: Fields) -> Any:
    """Return what ``shardcost estimate --json`` prints, and its two lines of heading."""
    target_of(given)
    result, caveats = _estimate(given)
    data = estimate_data.as_data(result, caveats)
    data |= {"title": title(result), "details": details(result)}
    run = run_of(given, Pasted(given), result)
    if run is not None:
        from shardcost.report.run import figures_as_data

        data["run"] = figures_as_data(run)
    return data


def advice(given: Fields) -> Any:
    """Return what each further step of each size would bring, and what to change.

    Of a layout that is impossible as well: that is where advice is needed. Where degrees do not
    multiply to the GPUs, it is of replicas alone on as many GPUs, and says why.
    """
    from shardcost.search.advice import advice as advice_on

    finder = Pasted(given)
    try:
        question = question_of(given, finder)
    except ImpossibleError as error:
        if not isinstance(error.reason, WorldSizeError):
            raise
        alone = dict.fromkeys(("tp", "cp", "pp", "dp", "ep", "virtual_stages", "shard_degree"))
        question = question_of(given | alone, finder)
        limit = {"part": "layout", "share": 1.0, "words": f"it is impossible: {error}"}
        result = estimate_data.advice_as_data(advice_on(*question))
        return result | {"limit": limit, "change": None}
    return estimate_data.advice_as_data(advice_on(*question))


def nearest(given: Fields) -> Any:
    """Return what to change for a layout to run, in fields and words, and why it does not.

    Nothing is changed where it runs as it is.
    """
    finder, kept = Pasted(given), given.get("kept") or []
    fits = bool(given.get("fits"))
    reason = None
    try:
        result = estimate_of(given, finder)
        if fits:
            reason = result.memory.reason(result.cluster.device)
        if reason is None:
            return {"set": {}, "words": "", "why": None}
    except ImpossibleError as error:
        reason = str(error)
    found = nearest_of(given, finder, [str(name) for name in kept], fits=fits)
    if found is None:
        raise ImpossibleError(UsageError(f"{reason}; no layout near it runs"))
    gpus = value_of(given, GPUS)
    return {"set": dict(found.patch), "words": found.words(gpus), "why": on_page(str(reason))}


def timeline(given: Fields) -> Any:
    """Return the events of one layer or of one step."""
    result, _ = _estimate(given)
    _check_drawable(result, limits.MOST_PASSES)
    return estimate_data.timeline_as_data(result, given["of"])


def _check_drawable(result: Estimate, most: int) -> None:
    if isinstance(result.workload, Train):
        passes = result.program.micro_batches * result.layout.pp * result.layout.virtual_stages
        if passes > most:
            rule = f"at most {most:,} to be drawn; take a smaller batch or a larger micro-batch"
            raise BadValueError("passes of micro-batches through stages", int(passes), rule)


def scaling(given: Fields) -> Any:
    """Return what ``shardcost estimate --vary --json`` prints."""
    from shardcost.report.scaling import as_data

    finder = Pasted(given)
    name = varied_name(given["vary"] or "tp", given["phase"])
    result = scaling_of(given, finder, name, _values_of(given, finder, name))
    return as_data(result, _caveats(given, finder.model(given.get("model"))))


def _values_of(given: Fields, finder: Pasted, name: str) -> list[Any]:
    if given.get("values") is not None:
        if any(not str(value).strip() for value in given["values"]):
            raise BadValueError("values", given["values"], "without empty values")
        return list(dict.fromkeys(given["values"]))
    from shardcost.estimate.scaling import degrees_to_vary

    gpus = value_of(given, GPUS) or 8
    return degrees_to_vary(finder.model(given.get("model")), gpus, name)[: limits.MOST_VALUES]


def roofline(given: Fields) -> Any:
    """Return the kernels of a layer under the device's roof."""
    return estimate_data.roofline_as_data(_estimate(given)[0])


def messages(given: Fields) -> Any:
    """Return every collective of a step."""
    return estimate_data.messages_as_data(_estimate(given)[0])


def collective(given: Fields) -> Any:
    """Return what ``shardcost collective --json`` prints of one size, or the curves of many."""
    if given["size"] is not None and given["sweep"] is not None:
        raise UsageError("--size and --sweep exclude each other; give one")
    if given["sweep"] is None:
        from shardcost.report.collective import as_data

        return as_data(_collective(given))
    from shardcost.collectives.sweep import curve_sizes
    from shardcost.report.collective import curves_as_data
    from shardcost.validate.shipped import points_like

    sizes = SWEEP.read(given["sweep"])
    result = _collective(given, curve_sizes(sizes[0], sizes[-1]))
    return curves_as_data(result, points_like(result))


def _collective(given: Fields, sizes: Any = None) -> CollectiveTime:
    for name in ("collective", "gpus"):
        if given.get(name) is None:
            raise UsageError(f"missing {'COLLECTIVE' if name == 'collective' else '--gpus'}")
    if sizes is None and given["size"] is None:
        raise UsageError("missing --size (or --sweep A:B for many sizes)")
    return collective_of(given, Pasted(given), SIZE.read(given["size"]) if sizes is None else sizes)


_TINY_BYTES: Final = 8
"""Of a collective that is nothing but latency."""


def schedule(given: Fields) -> Any:
    """Return the steps of a collective by an algorithm, and what it takes on a machine."""
    from shardcost.collectives.exact.stepped import alpha_beta, stepped
    from shardcost.collectives.library_time import collective_time
    from shardcost.report.stepped import as_data
    from shardcost.values import size

    for name in ("collective", "algorithm", "ranks", "size"):
        if given[name] is None:
            raise UsageError(f"missing {name}")
    finder, shape, ranks = Pasted(given), given["shape"], given["ranks"]
    placed = given.get("on") is not None or given.get("profile") is not None
    cluster = finder.cluster(given.get("on"), given.get("network")) if placed else None
    name, size_bytes = collective_name(given["collective"]), size("size", given["size"])
    shown = stepped(
        name,
        given["algorithm"],
        ranks,
        size_bytes,
        cluster,
        pieces=given["pieces"],
        shape=None if shape is None else tuple(shape),
        nodes=given["nodes"],
    )
    if cluster is None:
        return as_data(shown)
    tiny = collective_time("all_reduce", _TINY_BYTES, cluster, ranks, given["nodes"])
    predicted = collective_time(name, size_bytes, cluster, ranks, given["nodes"])
    return as_data(shown, alpha_beta(shown, tiny), predicted)


def why(given: Fields) -> Any:
    """Return where a figure of an estimate, or of a collective, comes from."""
    from shardcost.report.why import as_data

    figure = given["figure"]
    if figure is None:
        raise UsageError("missing figure")
    if given["collective"] is not None:
        from shardcost.report.why import why_collective

        return as_data(why_collective(_collective(given["collective"]), figure))
    if given["phase"] is None:
        raise UsageError("one of --train --prefill --decode is required: phase")
    from shardcost.estimate.why import why as why_estimate

    return as_data(why_estimate(_estimate(given)[0], figure))


def commands(given: Fields) -> Any:
    """Return the command and the Python that ask the same."""
    from shardcost.report.command import command_of, python_of

    result, _ = _estimate(given)
    return {"command": command_of(result), "python": python_of(result)}


def launch(given: Fields) -> Any:
    """Return the commands that start a layout, that of the question's software first."""
    from shardcost.report.launch import as_data, launch_of, launches_of

    result, _ = _estimate(given)
    tool = given["tool"]
    found = launches_of(result) if tool is None else [launch_of(result, tool)]
    return {"launches": [as_data(each) for each in found]}


def load(given: Fields) -> Any:
    """Return what ``shardcost load --json`` prints of one load or a sweep, and the command."""
    from shardcost.load.parts import parts_of
    from shardcost.report.load_data import command_of, load_as_data

    if given["sweep"] is not None:
        return _swept(given)
    finder = Pasted(given)
    latency = limits_of(given)
    requests = _few(requests_of(given, finder))
    deployment = deployment_of(given, finder)
    price = gpu_price_of(given, finder, deployment)
    result = simulated(deployment, requests)
    if not len(result.served):
        raise ImpossibleError(UsageError(_NONE_FITS))
    parts, caveats = parts_of(result), _caveats(given, deployment.serving.engine.model)
    shown = load_as_data(result, latency, price_per_hour=price, parts=parts, caveats=caveats)
    return shown | {"command": command_of(given)}


_NONE_FITS: Final = "every request is longer than the KV cache of a worker holds"


def _few(requests: Requests) -> Requests:
    """Return requests that are not too many to be simulated for the page."""
    count = len(requests.trace) if requests.arrival == "trace" else requests.count
    if count > limits.MOST_REQUESTS:
        rule = f"at most {limits.MOST_REQUESTS} on the page"
        raise BadValueError("--requests", count, rule)
    return requests


def _swept(given: Fields) -> Any:
    """Return a deployment at loads from low to high."""
    from shardcost.report.load_data import command_of, swept_as_data

    finder = Pasted(given)
    over, values = swept(given["sweep"])
    if values is not None and len(values) > limits.MOST_LOADS:
        raise BadValueError("--sweep", len(values), f"at most {limits.MOST_LOADS} loads")
    workers = deployment_of(given, finder).serving.workers
    asked = given
    if over == "rate" and given.get("requests") is None:
        count = min(limits.SWEPT_REQUESTS * workers, limits.MOST_SWEPT_REQUESTS)
        asked = {**given, "requests": count}
    elif over != "rate" and values is None:
        users = min(limits.SWEPT_USERS * workers, limits.MOST_SWEPT_USERS)
        asked = {**given, "sweep": f"{over}=1..{users}"}
    most = {"rate": 1} if over == "rate" else {"users": int(max(values or [1]))}
    _few(requests_of({**asked, **(most if given.get("trace") is None else {})}, finder))
    found = sweep_of(asked, finder, asked["sweep"])
    if not any(len(point.load.served) for point in found.points):
        raise ImpossibleError(UsageError(_NONE_FITS))
    return swept_as_data(found) | {"command": command_of(asked)}


def ratio(given: Fields) -> Any:
    """Return what a deployment holds as its GPUs are divided between prefill and decode."""
    from shardcost.load.ratio import best_ratio
    from shardcost.report.load_data import ratio_as_data

    finder = Pasted(given)
    deployment, latency = deployment_of(given, finder), limits_of(given)
    if deployment.prefill is None:
        raise UsageError("one pool has no GPUs to divide; give --prefill-workers")
    workers = sum(pool.workers for pool in deployment.pools)
    few = min(limits.SPLIT_REQUESTS * workers, limits.MOST_SPLIT_REQUESTS)
    asked = {**given, "requests": value_of(given, LOAD["requests"]) or few}
    if given.get("trace") is None:
        asked |= {"rate": 1, "users": None, "arrival": None}
    requests = _few(requests_of(asked, finder))
    try:
        found = best_ratio(
            deployment.prefill,
            deployment.serving,
            deployment.gpus,
            requests,
            limits=latency,
            count=requests.count,
            most=limits.MOST_SPLITS,
        )
    except BadValueError as error:
        raise ImpossibleError(error) from None
    return ratio_as_data(found, deployment.prefill.workers) | {"requests_each": requests.count}


def plan_check(given: Fields) -> Any:
    """Return how many layouts a search would look at, if it is in good order."""
    _top(given)
    target_of(given)
    questions = _questions(search_arguments(given, Pasted(given)))
    return {"cells": sum(int(question.cells) for question in questions)}


def _questions(arguments: Fields) -> tuple[Question, ...]:
    """Return what a search is made of."""
    from shardcost.search.objectives import Objective
    from shardcost.search.run import questions_of
    from shardcost.search.space import Space

    return questions_of(
        arguments["model"],
        arguments["cluster"],
        arguments["workload"],
        space=Space.of(arguments["space"]),
        constraints=arguments["constraints"],
        objective=Objective.of(arguments["objective"], arguments["price_per_gpu_hour"]),
        software=arguments["software"],
    )


def _top(given: Fields) -> int:
    wanted: int = value_of(given, TOP)
    if wanted > limits.MOST_VALUES:
        raise BadValueError("--top", wanted, f"at most {limits.MOST_VALUES}")
    return wanted


def plan(given: Fields, progress: Callable[[int, int], None]) -> Any:
    """Search, and return what ``shardcost plan --json`` prints; where nothing is feasible, why."""
    from shardcost.report.plan import failure_as_text
    from shardcost.report.plan_data import as_data
    from shardcost.search.plan import PRICED, Plan
    from shardcost.search.run import search

    wanted = _top(given)
    arguments = search_arguments(given, Pasted(given))
    distinct = bool(given.get("distinct"))
    ends = monotonic() + limits.SEARCH_S

    def timed(done: int, cells: int) -> None:
        if monotonic() > ends and done < cells:
            raise UsageError(_stopped(arguments, done, cells))
        progress(done, cells)

    result = search(**arguments, top=max(wanted, PRICED), distinct=distinct, progress=timed)
    caveats = _caveats(given, arguments["model"][0])
    price, target = arguments["price_per_gpu_hour"], target_of(given)
    answer = Plan.of(result, top=wanted, price=price, caveats=caveats, target=target)
    with run_options_named(given):
        data: dict[str, Any] = {"result": as_data(answer)}
    if not answer.best:
        first, *rest = failure_as_text(answer).splitlines()
        data |= {"detail": first.rstrip(":"), "reasons": [line.strip() for line in rest]}
    return data


def _stopped(arguments: Fields, done: int, cells: int) -> str:
    """Return that a search has run out of time, and what makes it smaller."""
    largest = max(_questions(arguments), key=lambda question: int(question.cells))
    axis, times = largest.widest_axis()
    return (
        f"the search was stopped after {limits.SEARCH_S:g} s, {done:,} of {cells:,} layouts done:"
        f" fix {axis}, of which one value leaves 1 in {times:.3g} layouts, or run it with"
        " `shardcost plan`"
    )


def plan_load_check(given: Fields) -> Any:
    """Return nothing to count, if a search over deployments is in good order and not too large."""
    question = load_question_of(given, Pasted(given))
    _top(given)
    if max(question.gpus) > limits.MOST_DEPLOYED:
        rule = f"at most {limits.MOST_DEPLOYED} on the page; `shardcost plan --load` has time"
        raise BadValueError("--gpus", max(question.gpus), rule)
    simulations = value_of(given, SIMULATED)
    if simulations > limits.MOST_SIMULATED:
        raise BadValueError("--simulated", simulations, f"at most {limits.MOST_SIMULATED}")
    return {"cells": 0}


def plan_load(given: Fields, progress: Callable[[int, int], None]) -> Any:
    """Search, and return what ``shardcost plan --load --json`` prints; or why nothing holds it."""
    from shardcost.report.plan_load import failure_as_text
    from shardcost.report.plan_load_data import as_data
    from shardcost.search.deployments import plan_load as search

    question = load_question_of(given, Pasted(given))
    found = search(question, simulated=value_of(given, SIMULATED), progress=progress)
    caveats = _caveats(given, question.engines[0].model)
    data: dict[str, Any] = {"result": as_data(found, _top(given), caveats)}
    if not found.best:
        data["detail"] = failure_as_text(found).splitlines()[0].rstrip(":")
    return data


SEARCHES: Final = {"plan": plan, "plan_load": plan_load}
"""Tasks that report how far they are, by name."""


def trace(given: Fields) -> Document:
    """Return the timeline of a step for Perfetto."""
    from shardcost.formats.chrome_trace import trace_text
    from shardcost.report.trace import events_of

    result, _ = _estimate(given)
    _check_drawable(result, limits.MOST_WRITTEN_PASSES)
    return Document(trace_text(*events_of(result)).encode(), "application/json", "step.json")


def csv(given: Fields) -> Document:
    """Return the figures of an estimate as a table."""
    content = estimate_data.as_csv(_estimate(given)[0]).encode()
    return Document(content, "text/csv; charset=utf-8", "estimate.csv")


def html(given: Fields) -> Document:
    """Return the report of an estimate as one page by itself."""
    from shardcost.report.html import as_html
    from shardcost.search.review import review
    from shardcost.validate.shipped import points_like

    result, caveats = _estimate(given)
    _check_drawable(result, limits.MOST_PASSES)
    whole = review(result)
    points = points_like(whole.heaviest.curve) if whole.heaviest else ()
    content = as_html(whole, points, caveats).encode()
    return Document(content, "text/html; charset=utf-8", "estimate.html")


_ANSWERS: Final = (
    catalog, estimate, advice, nearest, timeline, scaling, roofline, messages, collective, schedule,
    why, load, ratio, commands, launch, plan_check, plan_load_check, trace, csv, html,
)  # fmt: skip
QUESTIONS: Final[dict[str, Callable[[Fields], Any]]] = {
    answer.__name__: answer for answer in _ANSWERS
}
"""By name."""

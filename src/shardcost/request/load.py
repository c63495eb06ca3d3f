"""What is requested of a deployment under load: its workers, requests, limits and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from shardcost import options, values
from shardcost.errors import BadValueError, UnknownNameError, UsageError
from shardcost.option import Option, flag
from shardcost.request import (
    Finder,
    Given,
    ImpossibleError,
    WorldSizeError,
    cluster_of,
    layout_of,
    price_of,
    software_that_runs,
    value_of,
)
from shardcost.request.search import clusters_of, fixed_of, several_of
from shardcost.scalars import positive_number
from shardcost.software import default_software

if TYPE_CHECKING:
    from shardcost.cluster import Cluster
    from shardcost.layout import Layout
    from shardcost.load.deployment import Deployment
    from shardcost.load.requests import Lengths, Requests
    from shardcost.load.result import Limits, Load
    from shardcost.load.simulate import Progress
    from shardcost.load.sweep import Sweep
    from shardcost.search.workers import LoadQuestion
    from shardcost.software import Software

_MOST_WORKERS: Final = 10_000
_RATES: Final = (1e-6, 1e6)
"""Of requests in a second: from one in eleven days to more than any deployment serves."""
_MOST_LOADS: Final = 100
_PER_USER: Final = 10
_PERCENTILES: Final = (1, 99)


def simulated(deployment: Deployment, requests: Requests, progress: Progress | None = None) -> Load:
    """Return latencies and throughput of requests at a deployment.

    Raises:
        ImpossibleError: The deployment cannot be, or its GPUs do not hold the model.
    """
    from shardcost.load.simulate import simulate

    try:
        return simulate(deployment, requests, progress=progress)
    except BadValueError as error:
        raise ImpossibleError(error) from None


def deployment_of(given: Given, finder: Finder) -> Deployment:
    """Return what serves: one pool of workers, or disaggregated, one that prefills and one more.

    The options of the layout are those of one worker, which decodes where there are two pools.

    Raises:
        ImpossibleError: The request is in good order, but there is no such layout.
    """
    from shardcost.load.deployment import Deployment, Pool
    from shardcost.load.engine import Engine

    model = finder.model(given.get("model"))
    cluster = cluster_of(given, finder)
    formats = {
        option.name: option.read(given[option.name])
        for option in options.WORKER
        if option.kind == "word" and not _sets_layout(option) and given.get(option.name) is not None
    }
    software, drafts = _engine_software(given, finder, [cluster]), _drafts(given)
    for option in options.LAYOUT:
        if option.name not in options.LOAD and given.get(option.name) is not None:
            raise UsageError(f"{option.flag} is for training; nothing of it is served")
    layout = _layout_or_reason({**given, "gpus": None})
    engine = Engine(model, cluster, layout, software, formats, **drafts)
    if not _disaggregated(given):
        return Deployment(Pool(engine, _workers(given, "workers", layout)))
    _refuse(given, "workers", "is for one pool; --prefill-workers and --decode-workers count two")
    _refuse(given, "gpus", "is for one pool; two have the GPUs of their workers")
    first = cluster
    if given.get("prefill_on") is not None:
        first = cluster_of({**given, "on": given["prefill_on"]}, finder)
    prefill = Engine(model, first, _prefill_layout(given, layout), software, formats, **drafts)
    return Deployment(
        serving=Pool(engine, _workers(given, "decode_workers", layout)),
        prefill=Pool(prefill, _workers(given, "prefill_workers", layout)),
    )


def _sets_layout(option: Option) -> bool:
    return option.name in {row.name for row in options.LAYOUT}


def _refuse(given: Given, name: str, reason: str) -> None:
    """Raise where an option is given that would have no effect."""
    if given.get(name) is not None:
        raise UsageError(f"{flag(name)} {reason}")


def _disaggregated(given: Given) -> bool:
    """Return whether prompts have workers of their own."""
    own = [option for option in options.POOLS if option.name.startswith("prefill_")]
    if any(given.get(name) is not None for name in ("prefill_workers", "decode_workers")):
        return True
    for option in own:
        _refuse(given, option.name, "is for disaggregated workers; give --prefill-workers")
    return False


def _engine_software(given: Given, finder: Finder, clusters: Sequence[Cluster]) -> Software:
    """Return the engine, its scheduler with the settings that are given."""
    from dataclasses import replace

    name = given.get("software")
    if name is None:
        name = default_software("decode", {each.device.vendor for each in clusters})
    software = software_that_runs(finder.software(name), "decode")
    settings = {
        option.name: option.read(given[option.name])
        for option in options.SCHEDULER
        if given.get(option.name) is not None
    }
    scheduler = software.scheduler
    if (chunked := settings.pop("chunked_prefill", None)) is not None:
        scheduler = scheduler.prefilling(chunked=chunked, context_tokens=None)
    return replace(software, scheduler=replace(scheduler, **settings))


def _drafts(given: Given) -> dict[str, Any]:
    """Return the drafts of a step and how often one is kept, where they are given."""
    if not given.get("draft_tokens"):
        _refuse(given, "acceptance", "is of drafts; give --draft-tokens")
    return {
        name: options.LOAD[name].read(given[name])
        for name in ("draft_tokens", "acceptance")
        if given.get(name) is not None
    }


def _prefill_layout(given: Given, layout: Layout) -> Layout:
    """Return the layout of a worker that prefills: the other pool's, but for degrees of its own."""
    degrees = {name: getattr(layout, name) for name in ("tp", "pp", "dp", "ep")}
    own = {name: value_of(given, options.LOAD[f"prefill_{name}"]) for name in degrees}
    chosen = {name: own[name] if own[name] is not None else degrees[name] for name in degrees}
    return _layout_or_reason({**given, **chosen, "gpus": None})


def _layout_or_reason(given: Given) -> Layout:
    try:
        return layout_of(given)
    except BadValueError as error:
        if error.argument == "Layout":
            raise ImpossibleError(error) from None
        raise


def _workers(given: Given, name: str, layout: Layout) -> int:
    """Return how many workers a pool has; GPUs that one leaves are more of them."""
    workers: int | None = value_of(given, options.LOAD[name])
    if workers is not None and workers > _MOST_WORKERS:
        raise BadValueError(flag(name), workers, f"at most {_MOST_WORKERS:,}")
    gpus = value_of(given, options.GPUS)
    if gpus is None or name != "workers":
        return workers or 1
    each = int(layout.devices)
    written = f"the {each} of a worker ({layout.short()})"
    if workers is not None and workers * each != gpus:
        raise ImpossibleError(WorldSizeError("--gpus", gpus, f"{workers} workers x {written}"))
    if gpus % each or gpus // each > _MOST_WORKERS:
        rule = f"a multiple of {written}, for at most {_MOST_WORKERS:,} workers"
        raise ImpossibleError(WorldSizeError("--gpus", gpus, rule))
    return int(gpus // each)


def requests_of(given: Given, finder: Finder) -> Requests:
    """Return the requests of a load: a trace, or arrivals and lengths."""
    from shardcost.load.requests import Requests

    arrival = _arrival(given)
    if arrival == "trace":
        return _traced(given, finder)
    wanted = {"poisson": "rate", "closed": "users"}
    for kind, name in wanted.items():
        if kind != arrival:
            _refuse(given, name, f"is for {kind} arrivals, not {arrival}")
        elif given.get(name) is None:
            other = "" if given.get("arrival") else "; or give --users or --trace"
            raise UsageError(f"{arrival} arrivals need {flag(name)}{other}")
    missing = [flag(name) for name in ("isl", "osl") if given.get(name) is None]
    if missing:
        raise UsageError(f"a load needs {' and '.join(missing)}, or --trace")
    users, count = (value_of(given, options.LOAD[name]) for name in ("users", "requests"))
    if count is None:
        count = _PER_USER * users if users else Requests.count
    return Requests(
        arrival=arrival,
        rate_per_s=_rate(given),
        users=users,
        count=count,
        prompt=_lengths(given, "isl"),
        output=_lengths(given, "osl"),
        prefix_tokens=_prefix(given),
        seed=value_of(given, options.LOAD["seed"]),
    )


def _prefix(given: Given) -> int:
    """Return how many tokens all prompts begin with."""
    option, prompt = options.LOAD["prefix_tokens"], _lengths(given, "isl").mean
    tokens: int = value_of(given, option)
    if tokens > prompt:
        raise BadValueError(option.flag, tokens, f"at most {flag('isl')}, {prompt:g} tokens")
    return tokens


def _arrival(given: Given) -> str:
    """Return how requests arrive, by what is given of them."""
    chosen = given.get("arrival")
    if given.get("trace") is not None:
        if chosen not in {None, "trace"}:
            raise UsageError(f"--arrival {chosen} and --trace exclude each other")
        return "trace"
    known = options.LOAD["arrival"].allowed
    if chosen is None:
        return (
            "closed" if given.get("users") is not None and given.get("rate") is None else known[0]
        )
    if chosen not in known:
        raise UnknownNameError("--arrival", chosen, known)
    return str(chosen)


def _rate(given: Given) -> float | None:
    rate = value_of(given, options.LOAD["rate"])
    if rate is None:
        return None
    return _check_rate("--rate", rate)


def _check_rate(name: str, rate: float) -> float:
    least, most = _RATES
    if not least <= positive_number(name, rate) <= most:
        raise BadValueError(name, rate, f"from {least:g} to {most:g} requests per second")
    return float(rate)


def _lengths(given: Given, name: str) -> Lengths:
    from shardcost.load.requests import Lengths

    return Lengths.parse(options.LOAD[name].read(given[name]), flag(name))


def _traced(given: Given, finder: Finder) -> Requests:
    """Return the requests of a trace, or its first ones, at a rate of their own or another."""
    from shardcost.load.requests import Requests, Stream

    for name in ("users", "isl", "osl", "prefix_tokens", "seed"):
        _refuse(given, name, "and --trace exclude each other: the trace has its own")
    trace = finder.trace(given["trace"])
    most = value_of(given, options.LOAD["requests"])
    stream = Stream(
        arrival_s=trace.arrival_s[:most],
        prompt_tokens=trace.prompt_tokens[:most],
        output_tokens=trace.output_tokens[:most],
        prefixes=None if trace.prefixes is None else trace.prefixes[:most],
        prefix_block_tokens=trace.prefix_block_tokens,
    )
    requests = Requests(
        arrival="trace", trace=stream, rate_per_s=_rate(given), count=max(len(stream), 1)
    )
    requests.stream()  # a rate that a trace cannot have is refused here
    return requests


def limits_of(given: Given) -> Limits:
    """Return the limits of latency that are given, and the percentile that must keep them."""
    from shardcost.load.result import Limits

    limits: dict[str, Any] = {}
    for name in ("ttft", "tpot", "e2e"):
        option = options.LOAD[f"max_{name}"]
        if given.get(option.name) is not None:
            limits[f"{name}_s"] = positive_number(option.flag, option.read(given[option.name]))
    if not limits:
        _refuse(given, "percentile", "is of limits; give --max-ttft, --max-tpot or --max-e2e")
    percentile = value_of(given, options.LOAD["percentile"])
    if not _PERCENTILES[0] <= percentile <= _PERCENTILES[1]:
        raise BadValueError("--percentile", percentile, "from {} to {}".format(*_PERCENTILES))
    return Limits(**limits, percentile=percentile)


def sweep_of(given: Given, finder: Finder, text: str, progress: Progress | None = None) -> Sweep:
    """Return the deployment at loads from low to high.

    Args:
        given: Values of options; those of the load that varies are left out.
        finder: Where models, machines and traces are found.
        text: What varies, with its values or without: ``rate``, ``rate=1..64``,
            ``concurrency=8,16,32``.
        progress: Called with the loads that were simulated, and about how many there are.

    Raises:
        ImpossibleError: The request is in good order, but there is no such deployment.
    """
    from shardcost.load.sweep import sweep

    over, chosen = swept(text)
    name = {"rate": "rate", "concurrency": "users"}[over]
    for other in ("rate", "users", "arrival"):
        _refuse(given, other, "and --sweep exclude each other: it varies the load")
    # What varies only has to be there: each load has its own.
    varying = {name: 1} if given.get("trace") is None else {}
    requests = requests_of({**given, **varying}, finder)
    deployment, limits = deployment_of(given, finder), limits_of(given)
    count = None if requests.arrival == "trace" else value_of(given, options.LOAD["requests"])
    try:
        return sweep(
            deployment,
            requests,
            over=over,
            values=chosen,
            limits=limits,
            count=count,
            progress=progress,
        )
    except BadValueError as error:
        raise ImpossibleError(error) from None


def swept(text: str) -> tuple[str, list[float] | None]:
    """Return what of a load varies, and its values where they are given.

    >>> swept("rate=1..8,12"), swept("concurrency")
    (('rate', [1.0, 2.0, 4.0, 8.0, 12.0]), ('concurrency', None))
    """
    name, equals, chosen = text.partition("=")
    name = name.strip().removeprefix("--")
    name = "concurrency" if name == "users" else name
    if name not in {"rate", "concurrency"}:
        raise UnknownNameError("name in --sweep", name, ["rate", "concurrency"])
    if not equals:
        return name, None
    if name == "concurrency":
        loads = [float(users) for users in values.wholes("--sweep", chosen)]
    else:
        loads = [_check_rate("--sweep", rate) for rate in values.numbers("--sweep", chosen)]
    if len(loads) > _MOST_LOADS:
        raise BadValueError("--sweep", chosen, f"of at most {_MOST_LOADS} loads")
    return name, loads


def load_question_of(given: Given, finder: Finder) -> LoadQuestion:
    """Return which deployments are looked for, and for which load."""
    from shardcost.load.engine import Engine
    from shardcost.search.space import bounded
    from shardcost.search.workers import LoadQuestion

    _refuse_layouts(given)
    names = several_of(given, options.MODEL)
    if len(names) > 1:
        raise BadValueError("MODEL", given["model"], "one model with --load")
    model = finder.model(names[0])
    clusters = clusters_of(given, finder)
    engines = [
        _engine_software({**given, "software": name}, finder, clusters)
        for name in several_of(given, options.SOFTWARE)
    ]
    drafts, (degrees, layout) = _drafts(given), _worker_space(given)
    counts = given.get("gpus")
    for name in ("isl", "osl"):
        if given.get(name) is None:
            raise UsageError(f"--load needs {flag(name)}")
    if given.get("rate") is not None:
        _refuse(given, "users", "and --rate exclude each other")
    objective, price = _load_objective(given), price_of(given, finder, clusters)
    if objective == "cost" and price is None:
        raise UsageError("--objective cost needs --price, of a GPU for an hour")
    return LoadQuestion(
        engines=tuple(
            Engine(model, cluster, layout, software, formats, **drafts)
            for cluster in clusters
            for software in engines
            for formats in _formats(given)
        ),
        gpus=tuple(
            (bounded("--gpus", each) for each in values.wholes("--gpus", counts))
            if counts is not None
            else sorted({int(cluster.gpus_per_node) for cluster in clusters})
        ),
        prompt=_lengths(given, "isl"),
        output=_lengths(given, "osl"),
        prefix_tokens=_prefix(given),
        seed=value_of(given, options.LOAD["seed"]),
        limits=limits_of(given),
        rate_per_s=_rate(given),
        users=value_of(given, options.LOAD["users"]),
        pools=_pools(given),
        degrees=degrees,
        objective=objective,
        price=price,
    )


_NOT_OF_LAYOUTS: Final = (
    *("out", "overwrite", "engine", "jobs", "address", "explain", "notes", "distinct"),
)
"""What `plan` takes, and not for a load."""


def _refuse_layouts(given: Given) -> None:
    """Raise for options of a search for layouts that mean nothing for a load."""
    own = {option.name for option in (*options.LOAD.values(), *options.DEPLOYMENTS)}
    rows = [
        row.name
        for row in (*options.WORKLOAD, *options.LIMITS, *options.RUN)
        if row.name not in own
    ]
    for name in (*rows, *_NOT_OF_LAYOUTS):
        if given.get(name) not in (None, False):
            raise UsageError(f"{flag(name)} is not for --load")


def refuse_load(given: Given) -> None:
    """Raise for options of a load in a search for layouts."""
    for option in options.DEPLOYMENTS:
        _refuse(given, option.name, "is for --load")


def _formats(given: Given) -> list[dict[str, Any]]:
    """Return number formats, one set for each of those of which a search takes several."""
    axes = {option.name for option in options.QUESTIONS}
    rows = [
        option for option in options.WORKER if option.kind == "word" and not _sets_layout(option)
    ]
    chosen = {
        row.name: row.read_several(given[row.name])
        if row.name in axes
        else [row.read(given[row.name])]
        for row in rows
        if given.get(row.name) is not None
    }
    return [dict(zip(chosen, each, strict=True)) for each in product(*chosen.values())]


def _worker_space(given: Given) -> tuple[dict[str, list[int]], Layout]:
    """Return the degrees of workers that are given, and a layout with all that does not vary."""
    from shardcost.layout import Layout
    from shardcost.search.workers import DEGREES

    degrees: dict[str, list[int]] = {}
    fields: dict[str, Any] = {}
    for text, chosen in fixed_of(given.get("fix") or ()):
        axis = text.strip().removeprefix("--").replace("-", "_")
        known = [row.name for row in options.LAYOUT if row.name in options.LOAD]
        if axis not in known:
            raise UnknownNameError("axis in --fix", axis, known, "(with --load)")
        if axis in degrees or axis in fields:
            raise UsageError(f"--fix {axis} is given twice; write {axis}=A,B for several")
        option = options.LOAD[axis]
        several = option.read_several(chosen, f"--fix {axis}")
        if axis in DEGREES:
            degrees[axis] = several
        elif len(several) == 1:
            fields[axis] = several[0]
        else:
            raise BadValueError(f"--fix {axis}", chosen, "one value with --load")
    return degrees, Layout(**fields)


def _load_objective(given: Given) -> str:
    from shardcost.search.workers import OBJECTIVES

    name = given.get("objective")
    if name is not None and name not in OBJECTIVES:
        raise UnknownNameError("--objective", name, OBJECTIVES, "(with --load)")
    return OBJECTIVES[0] if name is None else str(name)


def _pools(given: Given) -> str:
    option = options.KINDS_OF_POOLS
    name = value_of(given, option)
    if name not in option.allowed:
        raise UnknownNameError(option.flag, name, option.allowed)
    return str(name)


def gpu_price_of(given: Given, finder: Finder, deployment: Deployment) -> float | None:
    """Return what all GPUs of a deployment cost in an hour, where a price is given."""
    from shardcost.machine import machine_of
    from shardcost.search.objectives import price_on

    clusters = [machine_of(pool.engine.cluster).cluster for pool in deployment.pools]
    price = price_of(given, finder, clusters)
    if price is None:
        return None
    each = zip(deployment.pools, clusters, strict=True)
    return sum(pool.gpus * price_on(cluster, price) for pool, cluster in each)

"""What is requested, by the names of the options: from their values to nouns and results.

The command line and the page request the same in the same words. `given` is a mapping from options
(`shardcost.options`) to values: texts or values of the right type, None where one is left out.
Where models and machines are looked for differs (paths on the command line, pasted files on the
page) and comes as a `Finder`.

::

    given ──► layout, workload ──► estimate     (one layout, or one for each value that varies)
          ├─► arguments of `search`, of `collective_time`
          └─► deployment, requests, limits ──► `simulate`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from shardcost import options, values
from shardcost.checks import name_among
from shardcost.errors import BadValueError, ShardcostError, UnknownNameError, UsageError
from shardcost.options import Option, flag
from shardcost.scalars import positive_number

if TYPE_CHECKING:
    from shardcost.cluster import Cluster
    from shardcost.collectives.dispatch import DispatchTime
    from shardcost.collectives.library_time import CollectiveTime
    from shardcost.estimate.result import Estimate
    from shardcost.estimate.scaling import Scaling
    from shardcost.formats.request_traces import RequestTrace
    from shardcost.layout import Layout
    from shardcost.load.deployment import Deployment
    from shardcost.load.requests import Lengths, Requests
    from shardcost.load.result import Limits, Load
    from shardcost.load.simulate import Progress
    from shardcost.load.sweep import Sweep
    from shardcost.model import Model
    from shardcost.search.objectives import Constraints, Price
    from shardcost.search.workers import LoadQuestion
    from shardcost.software import Software
    from shardcost.workload import Workload

Given = Mapping[str, Any]


class WorldSizeError(BadValueError):
    """The degrees of a layout do not multiply to the number of GPUs."""


class ImpossibleError(ShardcostError):
    """A request in good order for what cannot be done."""

    def __init__(self, reason: ShardcostError) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.reason)


class Finder(Protocol):
    """Finds models and machines by name or file; None stands for an option left out."""

    def model(self, text: str | None) -> Model:
        """Return a model."""

    def cluster(self, text: str | None, network: str | None = None) -> Cluster:
        """Return a cluster, its nodes joined by a network."""

    def software(self, text: str) -> Software:
        """Return a framework or engine."""

    def trace(self, text: str) -> RequestTrace:
        """Return recorded requests."""


class Question(NamedTuple):
    """What an estimate is of."""

    model: Model
    cluster: Cluster
    layout: Layout
    workload: Workload
    software: Software | None


def names_of(option: Option) -> list[str]:
    """Return the names that an option takes, where other rooms than the table know them."""
    if option.name == options.SOFTWARE.name:
        from shardcost.catalog import names

        return names("software")
    if option is options.OBJECTIVE:
        from shardcost.search.objectives import OBJECTIVES

        return list(OBJECTIVES)
    return []


def value_of(given: Given, option: Option) -> Any:
    """Return the value of an option; its default where it is left out."""
    value = given.get(option.name)
    return option.default if value is None else option.read(value)


# ------------------------------------------------------------------------------- one layout


def workload_of(given: Given) -> Workload:
    """Return the workload that the options describe."""
    phase: str = given["phase"]
    missing = [option.flag for option in options.needed(phase) if given.get(option.name) is None]
    if missing:
        raise UsageError(f"--{phase} needs {' and '.join(missing)}")
    noun, fields = options.PHASES[phase], {}
    for option in options.WORKLOAD:
        value = given.get(option.name)
        if value is None or value is False:
            continue
        _check_phase(option, phase)
        fields[option.field_of(noun).name] = option.read(value)
    return noun(**fields)  # type: ignore[no-any-return]


def _check_phase(option: Option, phase: str) -> None:
    if phase not in option.applies_to:
        phases = " and ".join(map(flag, option.applies_to))
        raise UsageError(f"{option.flag} is for {phases}, not --{phase}")


def layout_of(given: Given) -> Layout:
    """Return the layout that the options describe; GPUs that no degree takes are replicas."""
    from shardcost.layout import Layout

    fields = {
        option.name: option.read(given[option.name])
        for option in options.LAYOUT
        if given.get(option.name) is not None
    }
    gpus = value_of(given, options.GPUS)
    if gpus is not None:
        fields["dp"] = _replicas(gpus, fields)
    return Layout(**fields)


def _replicas(gpus: int, degrees: Mapping[str, int]) -> int:
    """Return the data parallelism that fills the GPUs; the degrees given must allow one."""
    names = ["tp", "cp", "pp", *(["dp"] if "dp" in degrees else [])]
    sizes = [degrees.get(name, 1) for name in names]
    written = f"{' x '.join(names)} = {' x '.join(map(str, sizes))} = {prod(sizes)}"
    if "dp" in degrees:
        if prod(sizes) != gpus:
            raise WorldSizeError("--gpus", gpus, written)
        return degrees["dp"]
    if gpus % prod(sizes):
        raise WorldSizeError("--gpus", gpus, f"a multiple of {written}")
    return gpus // prod(sizes)


def cluster_of(given: Given, finder: Finder) -> Cluster:
    """Return the machine that the options name, with the figures that they change."""
    cluster = finder.cluster(given.get("on"), given.get("network"))
    changes = figures_of(given)
    return cluster.with_figures(changes) if changes else cluster


def figures_of(given: Given) -> dict[str, str]:
    """Return the figures of ``NAME=VALUE,…``, one text or several; the last of a name counts."""
    value, option = given.get(options.SET.name), options.SET.flag
    texts = value if isinstance(value, list | tuple) else [] if value is None else [value]
    changes = {}
    for word in (word for text in texts for word in values.several(option, text)):
        name, is_set, figure = values.text(option, word).partition("=")
        if not (is_set and name.strip() and figure.strip()):
            raise BadValueError(option, word, "a figure and its value, like link=900GB/s")
        changes[name.strip()] = figure.strip()
    return changes


def question_of(given: Given, finder: Finder) -> Question:
    """Return what an estimate is requested of, possible or not.

    Raises:
        ImpossibleError: The request is in good order, but there is no such layout.
    """
    model = finder.model(given.get("model"))
    cluster = cluster_of(given, finder)
    name = given.get("software")
    software = None if name is None else finder.software(name)
    workload = workload_of(given)
    try:
        layout = layout_of(given)
    except BadValueError as error:
        if isinstance(error, WorldSizeError) or error.argument == "Layout":
            raise ImpossibleError(error) from None
        raise
    return Question(model, cluster, layout, workload, software)


def estimate_of(given: Given, finder: Finder) -> Estimate:
    """Return what the layout that the options describe costs.

    Raises:
        ImpossibleError: The request is in good order, but that cannot be done.
    """
    from shardcost.estimate import estimate

    question = question_of(given, finder)
    try:
        return estimate(*question[:4], software=question.software)
    except ShardcostError as error:
        raise ImpossibleError(error) from None


def scaling_of(given: Given, finder: Finder, name: str, chosen: Sequence[Any]) -> Scaling:
    """Return the estimate of every value of an option, or why there is none."""
    from shardcost.estimate.scaling import Row, Scaling

    rows = []
    for value in chosen:
        try:
            rows.append(Row(str(value), estimate_of(_varying(given, name, value), finder)))
        except ImpossibleError as error:
            rows.append(Row(str(value), None, str(error)))
    return Scaling(name, tuple(rows), given["phase"])


def _varying(given: Given, name: str, value: Any) -> Given:
    """Return a request with another value of an option, or of a figure of the machine."""
    if name in options.ESTIMATE:
        return {**given, name: value}
    changes = figures_of(given) | {name: str(value)}
    return {**given, options.SET.name: [f"{each}={figure}" for each, figure in changes.items()]}


def varied_name(text: str, phase: str) -> str:
    """Return the option that is to vary; it may be written as one."""
    name = text.strip().removeprefix("--").replace("-", "_")
    known = options.varied(phase)
    if name in known:
        return name
    from shardcost.catalog.figures import figure_named, names

    try:
        figure_named(name)
    except UnknownNameError:
        figures = f"(or a figure of the machine: {', '.join(names())})"
        raise UnknownNameError("name in --vary", name, known, figures) from None
    return name


def varied(text: str, phase: str) -> tuple[str, list[str]]:
    """Return the name and the values of ``NAME=A,B,…``."""
    match = re.fullmatch(r"([^=]+)=(.+)", text)
    if not match:
        raise BadValueError("--vary", text, "a name and values, like tp=1,2,4,8")
    name = varied_name(match[1], phase)
    chosen = [value.strip() for value in match[2].split(",")]
    if not all(chosen):
        raise BadValueError("--vary", text, "without empty values, like tp=1,2,4,8")
    return name, list(dict.fromkeys(chosen))


# --------------------------------------------------------------------------------- a search


def search_arguments(given: Given, finder: Finder) -> dict[str, Any]:
    """Return what to call `search` with: what is requested, not where it runs."""
    from shardcost.estimate.step import software_of

    workload = _first_workload(given)
    name = given.get("software")
    software = software_of(None if name is None else finder.software(name), workload)
    models = [finder.model(name) for name in _several(given, options.MODEL)]
    clusters = _clusters(given, finder)
    price = _price(given, finder, clusters)
    return {
        "model": models,
        "cluster": clusters,
        "workload": workload,
        "space": _space(given, software),
        "constraints": _constraints(given, workload),
        "objective": _objective(given, price),
        "price_per_gpu_hour": price,
        "software": software,
    }


def _several(given: Given, option: Option) -> list[Any]:
    value = given.get(option.name)
    name = "MODEL" if option is options.MODEL else option.flag
    return [None] if value is None else values.several(name, value)


def _clusters(given: Given, finder: Finder) -> list[Cluster]:
    """Return every cluster with every network."""
    networks = _several(given, options.NETWORK)
    return [
        cluster_of({**given, "on": name, "network": net}, finder)
        for name in _several(given, options.ON)
        for net in networks
    ]


def _first_workload(given: Given) -> Workload:
    """Return the workload; its batch is the first of several."""
    batch = given.get("batch")
    if batch is None:
        return workload_of(given)
    batches = values.wholes("--batch", batch)
    if given["phase"] == "train" and len(batches) > 1:
        raise BadValueError("--batch", batch, "one number with --train")
    return workload_of({**given, "batch": batches[0]})


def _space(given: Given, software: Software) -> dict[str, Any]:
    """Return the values of every axis that is given."""
    space: dict[str, Any] = {}
    for name in options.OWN_AXES:
        if given.get(name) is not None and not (name == "batch" and given["phase"] == "train"):
            space[name] = values.wholes(flag(name), given[name])
    for text, chosen in _fixed(given.get("fix") or ()):
        axis = text.strip().removeprefix("--").replace("-", "_")
        known = [name for name in options.AXES if name not in options.OWN_AXES]
        if axis not in known:
            own = axis in options.OWN_AXES
            hint = f"(--{axis} sets it)" if own else "(see shardcost plan --help)"
            raise UnknownNameError("axis in --fix", axis, known, hint)
        if axis in space:
            raise UsageError(f"--fix {axis} is given twice; write {axis}=A,B for several")
        option = options.AXES[axis]
        every = isinstance(chosen, str) and chosen.strip() == "all"
        space[axis] = (
            _every(option, software) if every else option.read_several(chosen, f"--fix {axis}")
        )
    return space


def _fixed(given: Mapping[str, Any] | Sequence[str]) -> list[tuple[str, Any]]:
    """Return axes and their values, of a mapping or of texts such as ``tp=4,8``."""
    if isinstance(given, Mapping):
        return list(given.items())
    parts = [text.partition("=") for text in given]
    for name, equals, _ in parts:
        if not equals:
            raise BadValueError("--fix", name, "an axis and its values, like tp=4,8")
    return [(name, chosen) for name, _, chosen in parts]


def _every(option: Option, software: Software) -> Any:
    """Return all values of a choice, the usual one first; None for axes that are free anyway."""
    if option.axis != "fixed":
        return None
    if not option.choices:
        raise BadValueError(f"--fix {option.name}", "all", "numbers or none")
    usual = getattr(software, option.name, option.default)
    return sorted(option.choices, key=lambda value: value != usual)


def _constraints(given: Given, workload: Workload) -> Constraints:
    """Return the limits; an error names the option rather than the field that it sets."""
    from shardcost.search.objectives import Constraints

    chosen = {row.limit: row for row in options.LIMITS if given.get(row.name) is not None}
    limits = {name: option.read(given[option.name]) for name, option in chosen.items()}
    try:
        constraints = Constraints.of(limits)
        constraints.check(workload)
    except BadValueError as error:
        option = chosen[error.argument]
        raise BadValueError(option.flag, given[option.name], error.rule) from None
    return constraints


def _price(given: Given, finder: Finder, clusters: Sequence[Cluster]) -> Price | None:
    """Return the price of a GPU for an hour, one for all clusters or one for each of them."""
    price = given.get("price")
    if price is None:
        return None
    if not isinstance(price, str | list) or (isinstance(price, str) and "=" not in price):
        return positive_number("--price", values.number("--price", price))
    prices: dict[str, float] = {}
    for text in values.several("--price", price):
        name, _, number = str(text).partition("=")
        option = f"--price of {name}"
        prices[finder.cluster(name).name] = positive_number(option, values.number(option, number))
    for cluster in clusters:
        if cluster.name not in prices:
            raise BadValueError("--price", price, f"given for {cluster.name} too")
    return prices


def _objective(given: Given, price: Price | None) -> str:
    name: str = value_of(given, options.OBJECTIVE)
    known = names_of(options.OBJECTIVE)
    if name not in known:
        raise UnknownNameError("--objective", name, known)
    if name == "cost" and price is None:
        raise UsageError("--objective cost needs --price, of a GPU for an hour")
    return name


# ------------------------------------------------------------------------------------ a load

_MOST_WORKERS: Final = 10_000
_RATES: Final = (1e-6, 1e6)
"""Of requests in a second: from one in eleven days to more than any deployment serves."""
_MOST_LOADS: Final = 100
_PER_USER: Final = 10
_PERCENTILES: Final = (1, 99)


def load_of(given: Given, finder: Finder, progress: Progress | None = None) -> Load:
    """Return the load that the options describe, on the deployment that they describe.

    Raises:
        ImpossibleError: The request is in good order, but there is no such deployment.
    """
    return simulated(deployment_of(given, finder), requests_of(given, finder), progress)


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
    software, drafts = _engine_software(given, finder), _drafts(given)
    layout = _worker_layout(given)
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


def _engine_software(given: Given, finder: Finder) -> Software:
    """Return the engine, its scheduler with the settings that are given."""
    from dataclasses import replace

    name = given.get("software")
    software = finder.software(options.DEFAULT_SOFTWARE["decode"] if name is None else name)
    settings = {
        option.name: option.read(given[option.name])
        for option in options.SCHEDULER
        if given.get(option.name) is not None
    }
    return replace(software, scheduler=replace(software.scheduler, **settings))


def _drafts(given: Given) -> dict[str, Any]:
    """Return the drafts of a step and how often one is kept, where they are given."""
    if not given.get("draft_tokens"):
        _refuse(given, "acceptance", "is of drafts; give --draft-tokens")
    return {
        name: options.LOAD[name].read(given[name])
        for name in ("draft_tokens", "acceptance")
        if given.get(name) is not None
    }


def _worker_layout(given: Given) -> Layout:
    """Return the layout of one worker; options of training alone are refused."""
    for option in options.LAYOUT:
        if option.name not in options.LOAD and given.get(option.name) is not None:
            raise UsageError(f"{option.flag} is for training; nothing of it is served")
    return _layout_or_reason({**given, "gpus": None})


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
        prefix_tokens=value_of(given, options.LOAD["prefix_tokens"]),
        seed=value_of(given, options.LOAD["seed"]),
    )


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
    from shardcost.search.workers import LoadQuestion

    _refuse_layouts(given)
    names = _several(given, options.MODEL)
    if len(names) > 1:
        raise BadValueError("MODEL", given["model"], "one model with --load")
    model = finder.model(names[0])
    clusters = _clusters(given, finder)
    engines = [
        _engine_software({**given, "software": name}, finder)
        for name in _several(given, options.SOFTWARE)
    ]
    drafts, (degrees, layout) = _drafts(given), _worker_space(given)
    counts = given.get("gpus")
    for name in ("isl", "osl"):
        if given.get(name) is None:
            raise UsageError(f"--load needs {flag(name)}")
    if given.get("rate") is not None:
        _refuse(given, "users", "and --rate exclude each other")
    objective, price = _load_objective(given), _price(given, finder, clusters)
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
            values.wholes("--gpus", counts)
            if counts is not None
            else sorted({int(cluster.gpus_per_node) for cluster in clusters})
        ),
        prompt=_lengths(given, "isl"),
        output=_lengths(given, "osl"),
        prefix_tokens=value_of(given, options.LOAD["prefix_tokens"]),
        seed=value_of(given, options.LOAD["seed"]),
        limits=limits_of(given),
        rate_per_s=_rate(given),
        users=value_of(given, options.LOAD["users"]),
        pools=_pools(given),
        degrees=degrees,
        objective=objective,
        price=price,
    )


_NOT_OF_LAYOUTS: Final = ("out", "engine", "jobs", "address", "explain", "notes")
"""What `plan` takes, and not for a load."""


def _refuse_layouts(given: Given) -> None:
    """Raise for options of a search for layouts that mean nothing for a load."""
    own = {option.name for option in (*options.LOAD.values(), *options.DEPLOYMENTS)}
    rows = [row.name for row in (*options.WORKLOAD, *options.LIMITS) if row.name not in own]
    for name in (*rows, *_NOT_OF_LAYOUTS):
        if given.get(name) not in (None, False):
            raise UsageError(f"{flag(name)} is not for --load")


def refuse_load(given: Given) -> None:
    """Raise for options of a load in a search for layouts."""
    for option in options.DEPLOYMENTS:
        _refuse(given, option.name, "is for --load")


def _formats(given: Given) -> list[dict[str, Any]]:
    """Return number formats, one set for each of ``--dtype``."""
    rows = [
        option for option in options.WORKER if option.kind == "word" and not _sets_layout(option)
    ]
    same = {
        row.name: row.read(given[row.name])
        for row in rows
        if row.name != "dtype" and given.get(row.name) is not None
    }
    if given.get("dtype") is None:
        return [same]
    dtype = options.LOAD["dtype"]
    return [
        {"dtype": dtype.read(each), **same} for each in values.several("--dtype", given["dtype"])
    ]


def _worker_space(given: Given) -> tuple[dict[str, list[int]], Layout]:
    """Return the degrees of workers that are given, and a layout with all that does not vary."""
    from shardcost.layout import Layout
    from shardcost.search.workers import DEGREES

    degrees: dict[str, list[int]] = {}
    fields: dict[str, Any] = {}
    for text, chosen in _fixed(given.get("fix") or ()):
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
    price = _price(given, finder, clusters)
    if price is None:
        return None
    each = zip(deployment.pools, clusters, strict=True)
    return sum(pool.gpus * price_on(cluster, price) for pool, cluster in each)


# ----------------------------------------------------------------------------- a collective


def collective_of(given: Given, finder: Finder, size_bytes: Any) -> CollectiveTime:
    """Return how long a collective takes, of one size or of an array of them."""
    from shardcost.collectives.library_time import collective_time

    cluster = cluster_of(given, finder)
    read = {option.name: value_of(given, option) for option in options.COLLECTIVE[2:]}
    cluster = cluster.holding(read["gpus"])
    return collective_time(
        collective_name(given["collective"]),
        size_bytes,
        cluster,
        read["gpus"],
        read["nodes"],
        library=read["library"],
        mode=read["mode"],
        algorithm=read["algorithm"],
        protocol=read["protocol"],
    )


def dispatch_of(given: Given, finder: Finder) -> DispatchTime:
    """Return how long dispatch or combine takes."""
    from shardcost.collectives.dispatch import dispatch_time
    from shardcost.machine.dispatch import default_kernels

    cluster = cluster_of(given, finder)
    read = {
        option.name: value_of(given, option)
        for option in (*options.EXCHANGE, *options.COLLECTIVE[2:])
    }
    return dispatch_time(
        exchange_phase(given["collective"]) or "",
        cluster,
        read["gpus"],
        *(read[name] for name in ("tokens", "hidden", "topk", "experts")),
        nodes=read["nodes"],
        library=default_kernels(cluster) if read["library"] is None else read["library"],
        low_latency=bool(read["low_latency"]),
        dtype=read["dtype"],
        sms=read["sms"],
        mode=read["mode"],
        node_limit=read["node_limit"],
    )


def exchange_phase(text: str) -> str | None:
    """Return ``dispatch`` or ``combine`` where a text names one of the two."""
    from shardcost.machine.dispatch import PHASES

    return next((phase for phase in PHASES if phase == text.lower()), None)


def collective_name(text: str) -> str:
    """Return a collective's name; capitals, hyphens and underscores do not matter."""
    from shardcost.collectives import COLLECTIVES

    return name_among("collective", text, COLLECTIVES)

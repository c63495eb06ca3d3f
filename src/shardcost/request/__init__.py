"""What is requested, by the names of the options: from their values to nouns and results.

The command line and the page request the same in the same words. `given` is a mapping from options
(`shardcost.options`) to values: texts or values of the right type, None where one is left out.
Where models and machines are looked for differs (paths on the command line, pasted files on the
page) and comes as a `Finder`.

::

    given ──► layout, workload ──► estimate     (one layout, or one for each value that varies)
          ├─► arguments of `search` (`shardcost.request.search`)
          ├─► `collective_time`, `dispatch_time` (`shardcost.request.collective`)
          └─► deployment, requests, limits ──► `simulate` (`shardcost.request.load`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from shardcost import options, values
from shardcost.errors import (
    BadValueError,
    InfeasibleError,
    ShardcostError,
    UnknownNameError,
    UsageError,
)
from shardcost.option import PHASES, Option, flag
from shardcost.records import NamedTuple
from shardcost.scalars import positive_number
from shardcost.software import default_software

if TYPE_CHECKING:
    from shardcost.cluster import Cluster
    from shardcost.estimate.result import Estimate
    from shardcost.estimate.scaling import Grid, Scaling
    from shardcost.formats.request_traces import RequestTrace
    from shardcost.goodput.run import Target, TrainingRun
    from shardcost.layout import Layout
    from shardcost.model import Model
    from shardcost.search.nearest import Nearest
    from shardcost.search.objectives import Price
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
    noun, fields = PHASES[phase], {}
    for option in options.WORKLOAD:
        value = given.get(option.name)
        if value is None or value is False:
            continue
        check_phase(option, phase)
        fields[option.field_of(noun).name] = option.read(value)
    return noun(**fields)  # type: ignore[no-any-return]


def check_phase(option: Option, phase: str, name: str = "") -> None:
    """Raise if an option means nothing in a phase; an error calls it `name`."""
    if phase not in option.applies_to:
        phases = " and ".join(map(flag, option.applies_to))
        raise UsageError(f"{name or option.flag} is for {phases}, not --{phase}")


def layout_of(given: Given) -> Layout:
    """Return the layout that the options describe; GPUs that no degree takes are replicas."""
    from shardcost.layout import Layout

    fields = _layout_fields(given)
    phase = given.get("phase")
    for name, value in fields.items() if phase in PHASES else ():
        if value != options.ESTIMATE[name].default:
            check_phase(options.ESTIMATE[name], str(phase))
    gpus = value_of(given, options.GPUS)
    if gpus is not None:
        fields["dp"] = _replicas(gpus, fields)
    return Layout(**fields)


def _layout_fields(given: Given) -> dict[str, Any]:
    return {
        option.name: option.read(given[option.name])
        for option in options.LAYOUT
        if given.get(option.name) is not None
    }


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
    workload = workload_of(given)
    name = given.get("software")
    software = None if name is None else software_that_runs(finder.software(name), workload.phase)
    try:
        layout = layout_of(given)
    except BadValueError as error:
        if isinstance(error, WorldSizeError) or error.argument == "Layout":
            raise ImpossibleError(error) from None
        raise
    return Question(model, cluster, layout, workload, software)


def software_that_runs(software: Software, phase: str) -> Software:
    """Return a software if it is for a phase; raise otherwise: an engine does not train."""
    if software.runs(phase):
        return software
    what = "trains" if phase == "train" else "serves"
    usual = default_software(phase)
    rule = f"one that {what}, such as {usual} (`shardcost software` lists all)"
    raise BadValueError(options.SOFTWARE.flag, software.name, rule)


def estimate_of(given: Given, finder: Finder) -> Estimate:
    """Return what the layout that the options describe costs.

    Raises:
        ImpossibleError: The request is in good order, but that cannot be done.
    """
    from shardcost.estimate import estimate
    from shardcost.program.feasibility import without_effect

    question = question_of(given, finder)
    for reason in without_effect(question.model, question.layout, question.workload):
        error = InfeasibleError("layout", question.layout.short(), reason, question.model.name)
        raise ImpossibleError(error)
    try:
        return estimate(*question[:4], software=question.software)
    except ShardcostError as error:
        raise ImpossibleError(error) from None


def nearest_of(given: Given, finder: Finder, kept: Sequence[str], *, fits: bool) -> Nearest | None:
    """Return the nearest layout that runs to the one that the options describe, None if none does.

    Args:
        given: The options; degrees need not multiply to the GPUs, nor the layout be feasible.
        finder: Finds model and machine.
        kept: Options that stay as they are given.
        fits: Whether the layout must fit the memory too.
    """
    from shardcost.search.nearest import nearest

    name = given.get("software")
    return nearest(
        finder.model(given.get("model")),
        cluster_of(given, finder),
        _layout_fields(given),
        value_of(given, options.GPUS),
        workload_of(given),
        None if name is None else finder.software(name),
        kept=kept,
        fits=fits,
    )


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


def grid_of(
    given: Given, finder: Finder, down: tuple[str, Sequence[Any]], across: tuple[str, Sequence[Any]]
) -> Grid:
    """Return the estimate of every pair of values of two options, or why there is none.

    Args:
        given: Values of the other options.
        finder: Where models and machines are found.
        down: Name and values of the option whose values are rows.
        across: Those of the option whose values are columns.
    """
    from shardcost.estimate.scaling import Grid

    if down[0] == across[0]:
        rule = f"two names; write --vary {down[0]}=A,B,… for all values of one"
        raise BadValueError("--vary", down[0], rule)
    lines = [
        (str(value), scaling_of(_varying(given, down[0], value), finder, *across))
        for value in down[1]
    ]
    return Grid(down[0], tuple(lines))


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
    from shardcost.catalog.figures import figure_named

    try:
        figure_named(name)
    except UnknownNameError:
        figures = "(or a figure of the machine, such as link.bandwidth: --set x=1 lists them)"
        raise UnknownNameError("name in --vary", name, known, figures) from None
    return name


def varied(text: str, phase: str) -> tuple[str, list[str]]:
    """Return the name and the values of ``NAME=A,B,…``; numbers also as ``A..B`` by doubling."""
    match = re.fullmatch(r"([^=]+)=(.+)", text)
    if not match:
        raise BadValueError("--vary", text, "a name and values, like tp=1,2,4,8")
    name = varied_name(match[1], phase)
    kind = options.ESTIMATE[name].kind if name in options.ESTIMATE else "word"
    return name, values.varied(flag(name), match[2], kind)


# ------------------------------------------------------------------------------ a whole run


def target_of(given: Given) -> Target | None:
    """Return what a whole training run is to do; None where no tokens are given."""
    named = [option for option in options.RUN if given.get(option.name) is not None]
    for option in named:
        check_phase(option, given["phase"])
    if given.get(options.TOKENS.name) is None:
        if named:
            raise UsageError(f"{named[0].flag} is of a whole run; give {options.TOKENS.flag}")
        return None
    from shardcost.goodput.run import Target
    from shardcost.resilience import Resilience

    fields = {
        option.field_of(Resilience).name: option.read(given[option.name])
        for option in named
        if option is not options.TOKENS
    }
    return Target(options.TOKENS.read(given[options.TOKENS.name]), Resilience(**fields))


def run_of(given: Given, finder: Finder, found: Estimate) -> TrainingRun | None:
    """Return the whole run of a training step; None where no tokens are given."""
    target = target_of(given)
    if target is None:
        if given.get("price") is not None:
            raise UsageError(f"--price is of a whole run; give {options.TOKENS.flag}")
        return None
    from shardcost.goodput.run import training_run
    from shardcost.search.objectives import price_on

    price = price_of(given, finder, [found.cluster])
    each = None if price is None else price_on(found.cluster, price)
    with run_options_named(given):
        return training_run(
            found, tokens=target.tokens, price_per_gpu_hour=each, resilience=target.resilience
        )


@contextmanager
def run_options_named(given: Given) -> Iterator[None]:
    """Name the option, not the field that it sets, in errors of a whole run."""
    from shardcost.resilience import Resilience

    try:
        yield
    except BadValueError as error:
        rows = {option.field_of(Resilience).name: option for option in options.RESILIENCE}
        option = rows.get(error.argument)
        if option is None:
            raise
        value = given.get(option.name)
        raise BadValueError(
            option.flag, error.value if value is None else value, error.rule
        ) from None


def price_of(given: Given, finder: Finder, clusters: Sequence[Cluster]) -> Price | None:
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

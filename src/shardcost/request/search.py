"""What is requested of a search: models, machines, workloads, axes, limits and what is best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from shardcost import options, values
from shardcost.errors import BadValueError, UnknownNameError, UsageError
from shardcost.option import Option, flag
from shardcost.request import (
    Finder,
    Given,
    check_phase,
    cluster_of,
    names_of,
    price_of,
    software_that_runs,
    value_of,
    workload_of,
)

if TYPE_CHECKING:
    from shardcost.cluster import Cluster
    from shardcost.model import Model
    from shardcost.search.objectives import Constraints, Price
    from shardcost.software import Software
    from shardcost.workload import Workload


def search_arguments(given: Given, finder: Finder) -> dict[str, Any]:
    """Return what to call `search` with: what is requested, not where it runs."""
    from shardcost.estimate.step import software_of

    workloads = _workloads(given)
    models = [finder.model(name) for name in several_of(given, options.MODEL)]
    clusters = clusters_of(given, finder)
    phase = given["phase"]
    engines = [
        software_of(
            None if name is None else software_that_runs(finder.software(name), phase),
            workloads[0],
            clusters,
        )
        for name in several_of(given, options.SOFTWARE)
    ]
    price = price_of(given, finder, clusters)
    return {
        "model": models,
        "cluster": clusters,
        "workload": workloads,
        "space": _space(given, engines[0], models),
        "constraints": _constraints(given, workloads[0]),
        "objective": _objective(given, price),
        "price_per_gpu_hour": price,
        "software": engines,
    }


def searched_layouts(given: Given) -> dict[str, Any]:
    """Return a request for a search of every layout that has the choices given."""
    free = [option for option in options.LAYOUT if option.name not in options.AXES]
    for option in free:
        if given.get(option.name) is not None:
            raise UsageError(f"{option.flag} is of one layout; give --tp, --pp or --dp")
    chosen = {
        option.name: given[option.name]
        for option in options.LAYOUT
        if given.get(option.name) is not None
    }
    return {**given, "fix": {name: [value] for name, value in chosen.items()}}


def several_of(given: Given, option: Option) -> list[Any]:
    """Return the values of an option that takes several; one None where it is left out."""
    value = given.get(option.name)
    name = "MODEL" if option is options.MODEL else option.flag
    return [None] if value is None else values.several(name, value)


def clusters_of(given: Given, finder: Finder) -> list[Cluster]:
    """Return every cluster with every network."""
    networks = several_of(given, options.NETWORK)
    return [
        cluster_of({**given, "on": name, "network": net}, finder)
        for name in several_of(given, options.ON)
        for net in networks
    ]


def _workloads(given: Given) -> list[Workload]:
    """Return a workload for each context and number format; its batch is the first of several."""
    from shardcost.search.space import check_questions

    first: dict[str, Any] = {}
    batch = given.get("batch")
    if batch is not None:
        batches = values.wholes("--batch", batch)
        if given["phase"] == "train" and len(batches) > 1:
            raise BadValueError("--batch", batch, "one number with --train")
        first["batch"] = batches[0]
    axes = {
        option.name: option.read_several(given[option.name])
        for option in options.QUESTIONS
        if option in options.WORKLOAD and given.get(option.name) is not None
    }
    check_questions(prod(map(len, axes.values())))
    return [
        workload_of({**given, **first, **dict(zip(axes, each, strict=True))})
        for each in product(*axes.values())
    ]


def _space(given: Given, software: Software, models: Sequence[Model]) -> dict[str, Any]:
    """Return the values of every axis that is given."""
    from shardcost.program.feasibility import OF_EXPERTS, WITHOUT_EXPERTS
    from shardcost.search.space import bounded

    in_vain = () if any(model.most_experts for model in models) else OF_EXPERTS
    space: dict[str, Any] = {}
    for name in options.OWN_AXES:
        if given.get(name) is not None:
            counts = [bounded(flag(name), each) for each in values.wholes(flag(name), given[name])]
            space |= {} if name == "batch" and given["phase"] == "train" else {name: counts}
    for text, chosen in fixed_of(given.get("fix") or ()):
        axis = text.strip().removeprefix("--").replace("-", "_")
        known = [name for name in options.AXES if name not in options.OWN_AXES]
        if axis not in known:
            own = axis in options.OWN_AXES
            hint = f"(--{axis} sets it)" if own else "(see shardcost plan --help)"
            raise UnknownNameError("axis in --fix", axis, known, hint)
        if axis in space:
            raise UsageError(f"--fix {axis} is given twice; write {axis}=A,B for several")
        option = options.AXES[axis]
        check_phase(option, given["phase"], f"--fix {axis}")
        every = isinstance(chosen, str) and chosen.strip() == "all"
        space[axis] = (
            _every(option, software) if every else option.read_several(chosen, f"--fix {axis}")
        )
        if option in in_vain and space[axis] not in (None, [option.default]):
            raise UsageError(f"--fix {WITHOUT_EXPERTS.reason(axis)}")
    return space


def fixed_of(given: Mapping[str, Any] | Sequence[str]) -> list[tuple[str, Any]]:
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
    if "confidence" in limits and limits.keys() <= {"confidence", "memory_headroom"}:
        rows = (row for row in options.LIMITS if row.limit.startswith(("max", "min")))
        flags = [row.flag for row in rows if workload.phase in row.applies_to]
        raise UsageError(f"--confidence needs a limit: {' or '.join(flags)}")
    try:
        constraints = Constraints.of(limits)
        constraints.check(workload)
    except BadValueError as error:
        option = chosen[error.argument]
        raise BadValueError(option.flag, given[option.name], error.rule) from None
    return constraints


def _objective(given: Given, price: Price | None) -> str:
    name: str = value_of(given, options.OBJECTIVE)
    known = names_of(options.OBJECTIVE)
    if name not in known:
        raise UnknownNameError("--objective", name, known)
    if name == "cost" and price is None:
        raise UsageError("--objective cost needs --price, of a GPU for an hour")
    return name

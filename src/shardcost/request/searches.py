"""Which layouts are looked at and for what: the options of a search, as arguments of `search`."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any, Final

from shardcost.errors import BadValueError, UnknownNameError
from shardcost.request import values
from shardcost.request.errors import UsageError
from shardcost.request.finding import Finder
from shardcost.request.values import flag
from shardcost.request.workloads import workload_of
from shardcost.scalars import positive_number
from shardcost.units import parse_time

if TYPE_CHECKING:
    from shardcost.cluster import Cluster
    from shardcost.search.objectives import Constraints, Price
    from shardcost.software import Software
    from shardcost.workload import Workload

TIMES: Final = {
    "max_time": ("max_time_s", "the longest step, like 20s"),
    "max_ttft": ("max_ttft_s", "the longest time to the first token, like 500ms"),
    "max_tpot": ("max_tpot_s", "the longest time per output token, like 50ms (--decode)"),
}
"""Limits that are times, with the field that each fills."""
RATES: Final = {
    "min_tokens_per_user": ("min_tokens_per_s_per_user", "tokens per second of a user (--decode)"),
    "min_tokens_per_s": ("min_tokens_per_s", "tokens per second of all GPUs together"),
}
"""Limits that are rates."""
_ONE_VALUE: Final = ("scheme", "order", "tp_overlap", "dp_overlap")
"""Choices that are not free unless they are fixed to ``all``."""
_OWN_OPTIONS: Final = ("gpus", "batch")
"""Axes that have options of their own."""
_FLAGS: Final = {"true": True, "yes": True, "false": False, "no": False}


def search_arguments(given: Any, finder: Finder) -> dict[str, Any]:
    """Return what to call `search` with: what is asked, not where it runs."""
    workload = _workload(given)
    software = _software(given, workload)
    price = price_of(given, finder)
    return {
        "model": [finder.model(name) for name in values.several("MODEL", given.model)],
        "cluster": clusters_of(given, finder),
        "workload": workload,
        "space": _space(given, software),
        "constraints": _constraints(given, workload),
        "objective": _objective(given, price),
        "price_per_gpu_hour": price,
        "software": software,
    }


def clusters_of(given: Any, finder: Finder) -> list[Cluster]:
    """Return every cluster with every network."""
    networks = [None] if given.network is None else values.several("--network", given.network)
    clusters = values.several("--on", given.on)
    return [finder.cluster(name, network) for name in clusters for network in networks]


def _workload(given: Any) -> Workload:
    """Return the workload; its batch is the first of several."""
    if given.batch is None:
        return workload_of(given)
    batches = values.wholes("--batch", given.batch)
    if given.phase == "train" and len(batches) > 1:
        raise BadValueError("--batch", given.batch, "one number with --train")
    return workload_of(Namespace(**{**vars(given), "batch": str(batches[0])}))


def _software(given: Any, workload: Workload) -> Software:
    from shardcost.estimate.totals import software_of

    return software_of(given.software, workload)


def _space(given: Any, software: Software) -> dict[str, Any]:
    space: dict[str, Any] = {}
    if given.gpus is not None:
        space["gpus"] = values.wholes("--gpus", given.gpus)
    if given.batch is not None and given.phase != "train":
        space["batch"] = values.wholes("--batch", given.batch)
    for text in given.fix:
        name, chosen = _fixed(text, software)
        if name in space:
            raise UsageError(f"--fix {name} is given twice; write {name}=A,B for several")
        space[name] = chosen
    return space


def _fixed(text: str, software: Software) -> tuple[str, Any]:
    """Return the axis and the values of ``--fix AXIS=A,B,…``."""
    from shardcost.search.space import AXES

    name, equals, chosen = text.partition("=")
    if not equals:
        raise BadValueError("--fix", text, "an axis and its values, like tp=4,8")
    axis = name.strip().removeprefix("--").replace("-", "_")
    known = [each for each in AXES if each not in _OWN_OPTIONS]
    if axis not in known:
        hint = f"(--{axis} sets it)" if axis in _OWN_OPTIONS else "(see shardcost plan --help)"
        raise UnknownNameError("axis in --fix", axis, known, hint)
    if chosen.strip() == "all":
        return axis, _every(axis, software)
    return axis, _values(axis, chosen)


def _values(axis: str, text: str) -> list[Any]:
    from shardcost.search.space import DEGREES, SIZES

    option = f"--fix {axis}"
    if axis in {*DEGREES, *SIZES}:
        return values.wholes(option, text)
    words = values.several(option, text)
    if axis in {"sequence_parallel", "dp_overlap"}:
        return [_flag(option, word) for word in words]
    if axis == "zero":
        return [values.whole(option, word) for word in words]
    if axis == "shard_degree":
        return [None if word == "none" else values.whole(option, word) for word in words]
    return words


def _flag(option: str, word: str) -> bool:
    if word.lower() not in _FLAGS:
        raise BadValueError(option, word, "true or false")
    return _FLAGS[word.lower()]


def _every(axis: str, software: Software) -> Any:
    """Return all values of a choice, the usual one first; None for axes that are free anyway."""
    from shardcost.layout import Layout

    if axis == "shard_degree":
        raise BadValueError("--fix shard_degree", "all", "numbers or none")
    if axis not in _ONE_VALUE:
        return None
    noun: Any = software if hasattr(software, axis) else Layout()
    usual = getattr(noun, axis)
    if isinstance(usual, bool):
        return [usual, not usual]
    return values.choices_of(noun, axis)


def _constraints(given: Any, workload: Workload) -> Constraints:
    """Return the limits; an error names the option rather than the field that it fills."""
    from shardcost.search.objectives import Constraints

    limits: dict[str, Any] = {}
    asked = {"memory_headroom": ("--headroom", given.headroom)}
    for name, (field, _) in {**TIMES, **RATES}.items():
        option, text = flag(name), getattr(given, name)
        asked[field] = (option, text)
        if text is not None:
            read = parse_time(text, option) if name in TIMES else values.number(option, text)
            limits[field] = read
    if given.headroom is not None:
        limits["memory_headroom"] = values.share("--headroom", given.headroom)
    try:
        found = Constraints.of(limits)
        found.check(workload)
    except BadValueError as error:
        option, text = asked[error.argument]
        raise BadValueError(option, text, error.rule) from None
    return found


def price_of(given: Any, finder: Finder) -> Price | None:
    """Return the price of a GPU for an hour, one for all clusters or one for each of them."""
    if given.price is None:
        return None
    if "=" not in given.price:
        return positive_number("--price", values.number("--price", given.price))
    prices: dict[str, float] = {}
    for text in values.several("--price", given.price):
        name, _, number = text.partition("=")
        option = f"--price of {name}"
        prices[finder.cluster(name).name] = positive_number(option, values.number(option, number))
    for cluster in clusters_of(given, finder):
        if cluster.name not in prices:
            raise BadValueError("--price", given.price, f"given for {cluster.name} too")
    return prices


def _objective(given: Any, price: Price | None) -> str:
    from shardcost.search.objectives import OBJECTIVES

    name: str = given.objective
    if name not in OBJECTIVES:
        raise UnknownNameError("--objective", name, OBJECTIVES)
    if name == "cost" and price is None:
        raise UsageError("--objective cost needs --price, of a GPU for an hour")
    return name

"""``shardcost plan``: which layout to run, of all that there are, and why the others lost."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardcost.cli import options
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.scalars import positive_number, whole_number
from shardcost.units import parse_time

if TYPE_CHECKING:
    from shardcost.cluster import Cluster
    from shardcost.search.found import Found
    from shardcost.search.objectives import Constraints, Price
    from shardcost.search.plan import Plan
    from shardcost.software import Software
    from shardcost.workload import Workload

_EXAMPLES: Final = """\
  shardcost plan gpt3-175b --on a100_sxm --network ib_8x200g --gpus 64 \\
      --train --batch 1536 --sequence-length 2048
  shardcost plan llama3-70b --on h100_sxm,h200_sxm --gpus 1..8 --decode --batch 1..512 \\
      --context-tokens 4096 --max-tpot 30ms --objective cost --price 2.50 --pareto
  shardcost plan llama3-70b --on h100_sxm --network ib_8x400g --gpus 64 \\
      --train --batch 512 --sequence-length 4096 --fix tp=4,8 --fix recompute=none --explain
"""
_OBJECTIVES: Final = "time (of a step), throughput (per GPU), cost or energy (per token)"
_TIMES: Final = {
    "max_time": ("max_time_s", "the longest step, like 20s"),
    "max_ttft": ("max_ttft_s", "the longest time to the first token, like 500ms"),
    "max_tpot": ("max_tpot_s", "the longest time per output token, like 50ms (--decode)"),
}
_RATES: Final = {
    "min_tokens_per_user": ("min_tokens_per_s_per_user", "tokens per second of a user (--decode)"),
    "min_tokens_per_s": ("min_tokens_per_s", "tokens per second of all GPUs together"),
}
_ONE_VALUE: Final = ("scheme", "order", "tp_overlap", "dp_overlap")
"""Choices that are not free unless they are fixed to ``all``."""
_OWN_OPTIONS: Final = ("gpus", "batch")
"""Axes that have options of their own."""
_FLAGS: Final = {"true": True, "yes": True, "false": False, "no": False}


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "plan",
        "Which layout to run: prices every layout of a space and says why the others lost.",
        _EXAMPLES,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="catalog name, config.json or its folder; or several: A,B"
    )
    parser.add_argument("--on", metavar="CLUSTER", required=True, help="catalog name, or several")
    parser.add_argument(
        "--network", metavar="NET", help="catalog name, or several: what joins the nodes"
    )
    parser.add_argument(
        "--gpus", metavar="N", help="GPUs in all: 64, or 64,96, or 8..1024 by doubling (one node)"
    )
    parser.add_argument("--software", metavar="NAME", help="framework or engine, a catalog name")
    _add_space(parser)
    _add_output(parser)
    _add_running(parser)
    options.add_workload(parser, "; or several, like 1..512, of --prefill and --decode")
    return parser


def _add_space(parser: options.Parser) -> None:
    space = parser.add_argument_group("where to look and for what")
    space.add_argument(
        "--fix",
        metavar="AXIS=A,B,…",
        action="append",
        default=[],
        help="values of one axis, all if not given: tp, cp, pp, dp, ep, micro_batch, chunks,"
        " sequence_parallel, recompute, schedule, zero, context_scheme; shard_degree; and scheme,"
        " order, tp_overlap, dp_overlap, which have one value unless they are set to all",
    )
    space.add_argument("--objective", metavar="NAME", default="time", help=f"{_OBJECTIVES} (time)")
    space.add_argument(
        "--price",
        metavar="X",
        help="of a GPU for an hour, in any currency; or by cluster: h100_sxm=2.50,a100_sxm=1.20",
    )
    for name, (_, text) in _TIMES.items():
        space.add_argument(options.flag(name), metavar="TIME", help=text)
    for name, (_, text) in _RATES.items():
        space.add_argument(options.flag(name), metavar="X", help=f"the fewest {text}")
    space.add_argument("--headroom", metavar="P", help="memory to leave free, like 10%% or 0.1 (0)")


def _add_output(parser: options.Parser) -> None:
    shown = parser.add_argument_group("what to show")
    shown.add_argument("--top", metavar="K", default="5", help="how many of the best (5)")
    shown.add_argument("--pareto", action="store_true", help="the Pareto front as a table as well")
    shown.add_argument("--plot", metavar="FILE", help="draw the front as .png or .svg")
    shown.add_argument("--explain", action="store_true", help="the arithmetic of the best")
    shown.add_argument(
        "--out", metavar="FILE", help="write every feasible layout to a table, .parquet"
    )


def _add_running(parser: options.Parser) -> None:
    running = parser.add_argument_group("how to run")
    running.add_argument("--engine", metavar="NAME", help="local, processes or ray (local)")
    running.add_argument("--jobs", metavar="N", help="processes at a time (one per core)")
    running.add_argument("--address", metavar="HOST", help="of a Ray cluster (one of its own)")
    running.add_argument(
        "--array-backend", metavar="NAME", default="numpy", help="numpy, torch or cupy (numpy)"
    )


def run(given: Namespace) -> int:
    """Search, and print what was found."""
    from shardcost.report.plan import as_text, failure_as_text
    from shardcost.report.plan_data import as_data
    from shardcost.search.plan import Plan

    top = whole_number("--top", options.whole("--top", given.top), 1)
    price = _price(given)
    _check_plot(given)
    found, caveats = _found(given, top, price)
    plan = Plan.of(found, top=top, price=price, caveats=caveats)
    if given.plot is not None and plan.best:
        from shardcost.report.plan_plot import write_front

        write_front(found, Path(given.plot))
    if given.json:
        explained = {"explanation": _explained(plan)} if given.explain and plan.best else {}
        options.print_json(as_data(plan) | explained)
    elif plan.best:
        print(as_text(plan, pareto=given.pareto, explain=given.explain))
        if given.plot is not None:
            print(f"Plot: {given.plot}")
        if given.out is not None:
            before = f" ({found.resumed} tasks were done before)" if found.resumed else ""
            print(f"Table: {given.out}, {found.feasible:,} layouts{before}")
    if plan.best:
        return 0
    print(f"shardcost: {failure_as_text(plan)}", file=sys.stderr)
    return options.NOTHING_FEASIBLE


def _check_plot(given: Namespace) -> None:
    """Refuse a bad name before the search, not after it."""
    if given.plot is not None:
        from shardcost.report.plot import check_name

        check_name(Path(given.plot))


def _explained(plan: Plan) -> list[str]:
    return plan.best[0].estimate.explain().splitlines()


def _found(given: Namespace, top: int, price: Price | None) -> tuple[Found, list[str]]:
    """Return what the search finds, and what is to mind about the models' files."""
    from shardcost.cli.progress import shown_progress
    from shardcost.search.plan import PRICED
    from shardcost.search.run import search

    names = options.several("MODEL", given.model)
    models = [options.model(name) for name in names]
    workload = _workload(given)
    software = _software(given, workload)
    with shown_progress(wanted=not given.json) as progress:
        found = search(
            models,
            _clusters(given),
            workload,
            space=_space(given, software),
            constraints=_constraints(given, workload),
            objective=_objective(given, price),
            price_per_gpu_hour=price,
            software=software,
            top=max(top, PRICED),
            backend=given.array_backend,
            progress=progress,
            **_engine(given),
        )
    files = [model for name, model in zip(names, models, strict=True) if options.is_file(name)]
    return found, [caveat for model in files for caveat in model.caveats]


def _workload(given: Namespace) -> Workload:
    """Return the workload; its batch is the first of several."""
    if given.batch is None:
        return options.workload(given)
    batches = options.wholes("--batch", given.batch)
    if given.phase == "train" and len(batches) > 1:
        raise BadValueError("--batch", given.batch, "one number with --train")
    return options.workload(Namespace(**{**vars(given), "batch": str(batches[0])}))


def _clusters(given: Namespace) -> list[Cluster]:

    networks = [None] if given.network is None else options.several("--network", given.network)
    clusters = options.several("--on", given.on)
    return [options.cluster(name, network) for name in clusters for network in networks]


def _software(given: Namespace, workload: Workload) -> Software:
    from shardcost.estimate.totals import software_of

    return software_of(given.software, workload)


def _space(given: Namespace, software: Software) -> dict[str, Any]:
    space: dict[str, Any] = {}
    if given.gpus is not None:
        space["gpus"] = options.wholes("--gpus", given.gpus)
    if given.batch is not None and given.phase != "train":
        space["batch"] = options.wholes("--batch", given.batch)
    for text in given.fix:
        name, values = _fixed(text, software)
        if name in space:
            raise options.UsageError(f"--fix {name} is given twice; write {name}=A,B for several")
        space[name] = values
    return space


def _fixed(text: str, software: Software) -> tuple[str, Any]:
    """Return the axis and the values of ``--fix AXIS=A,B,…``."""
    from shardcost.search.space import AXES

    name, equals, values = text.partition("=")
    if not equals:
        raise BadValueError("--fix", text, "an axis and its values, like tp=4,8")
    axis = name.strip().removeprefix("--").replace("-", "_")
    known = [each for each in AXES if each not in _OWN_OPTIONS]
    if axis not in known:
        hint = f"(--{axis} sets it)" if axis in _OWN_OPTIONS else "(see shardcost plan --help)"
        raise UnknownNameError("axis in --fix", axis, known, hint)
    if values.strip() == "all":
        return axis, _every(axis, software)
    return axis, _values(axis, values)


def _values(axis: str, text: str) -> list[Any]:
    from shardcost.search.space import DEGREES, SIZES

    option = f"--fix {axis}"
    if axis in {*DEGREES, *SIZES}:
        return options.wholes(option, text)
    words = options.several(option, text)
    if axis in {"sequence_parallel", "dp_overlap"}:
        return [_flag(option, word) for word in words]
    if axis == "zero":
        return [options.whole(option, word) for word in words]
    if axis == "shard_degree":
        return [None if word == "none" else options.whole(option, word) for word in words]
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
    try:
        replace(noun, **{axis: ""})
    except UnknownNameError as error:  # the nouns know their choices, and name them
        return sorted(error.known, key=lambda value: value != usual)
    raise AssertionError(axis)


def _constraints(given: Namespace, workload: Workload) -> Constraints:
    """Return the limits; an error names the option rather than the field that it fills."""
    from shardcost.search.objectives import Constraints

    limits: dict[str, Any] = {}
    asked = {"memory_headroom": ("--headroom", given.headroom)}
    for name, (field, _) in {**_TIMES, **_RATES}.items():
        option, text = options.flag(name), getattr(given, name)
        asked[field] = (option, text)
        if text is not None:
            read = parse_time(text, option) if name in _TIMES else options.number(option, text)
            limits[field] = read
    if given.headroom is not None:
        limits["memory_headroom"] = _share("--headroom", given.headroom)
    try:
        found = Constraints.of(limits)
        found.check(workload)
    except BadValueError as error:
        option, text = asked[error.argument]
        raise BadValueError(option, text, error.rule) from None
    return found


def _share(option: str, text: str) -> float:
    """Return a share such as ``10%`` or ``0.1``."""
    if text.endswith("%"):
        return options.number(option, text[:-1]) / 100
    return options.number(option, text)


def _price(given: Namespace) -> Price | None:
    """Return the price of a GPU for an hour, one for all clusters or one for each of them."""
    if given.price is None:
        return None
    if "=" not in given.price:
        return positive_number("--price", options.number("--price", given.price))
    prices: dict[str, float] = {}
    for text in options.several("--price", given.price):
        name, _, number = text.partition("=")
        option = f"--price of {name}"
        prices[options.cluster(name).name] = positive_number(option, options.number(option, number))
    for cluster in _clusters(given):
        if cluster.name not in prices:
            raise BadValueError("--price", given.price, f"given for {cluster.name} too")
    return prices


def _objective(given: Namespace, price: Price | None) -> str:
    from shardcost.search.objectives import OBJECTIVES

    name: str = given.objective
    if name not in OBJECTIVES:
        raise UnknownNameError("--objective", name, OBJECTIVES)
    if name == "cost" and price is None:
        raise options.UsageError("--objective cost needs --price, of a GPU for an hour")
    return name


def _engine(given: Namespace) -> dict[str, Any]:
    """Return where to run; more than one job needs processes, which are one for each core."""
    from os import cpu_count

    from shardcost.search.engines import ENGINES

    jobs = None
    if given.jobs is not None:
        jobs = whole_number("--jobs", options.whole("--jobs", given.jobs), 1)
    engine = given.engine or ("processes" if jobs is not None and jobs > 1 else "local")
    if engine not in ENGINES:
        raise UnknownNameError("--engine", engine, ENGINES)
    if jobs is None:
        jobs = 1 if engine == "local" else cpu_count() or 1
    return {"engine": engine, "jobs": jobs, "address": given.address, "out": given.out}

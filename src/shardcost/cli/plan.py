"""``shardcost plan``: which layout or deployment to run, of all, and why the others lost."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any, Final

from shardcost import values
from shardcost.cli import launch, options
from shardcost.errors import UnknownNameError, UsageError
from shardcost.options import AXES, DEPLOYMENTS, DISTINCT, OWN_AXES, RUN, SEARCH, SIMULATED, TOP
from shardcost.request import run_options_named, target_of, value_of
from shardcost.request.load import load_question_of, refuse_load
from shardcost.request.search import search_arguments

if TYPE_CHECKING:
    from shardcost.search.found import Found

_EXAMPLES: Final = """\
  shardcost plan gpt3-175b --on a100_sxm --network ib_8x200g --gpus 64 \\
      --train --batch 1536 --sequence-length 2048
  shardcost plan llama3-70b --on h100_sxm,h200_sxm --gpus 1..8 --decode --batch 1..512 \\
      --context-tokens 4096 --max-tpot 30ms --objective cost --price 2.50 --pareto
  shardcost plan llama3-70b --on h100_sxm --gpus 4 --decode --batch 1..512 \\
      --context-tokens 4096 --dtype bf16,fp8 --software vllm,trtllm \\
      --max-tpot 20ms --confidence 90% --objective throughput --distinct
  shardcost plan llama3-70b --on h100_sxm --network ib_8x400g --gpus 64 \\
      --train --batch 512 --sequence-length 4096 --fix tp=4,8 --fix recompute=none --explain
  shardcost plan llama3-70b --on h100_sxm --network ib_8x400g --gpus 16 --load \\
      --isl 1024 --osl 256 --max-ttft 1s --max-tpot 30ms --software vllm,trtllm
"""
_LOAD: Final = {
    "load": "requests: which deployment holds most of them for each GPU, or --rate or --users with"
    " fewest GPUs (--objective cost: at least cost); needs --isl and --osl"
}


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "plan",
        "Which layout to run: prices every layout of a space and says why the others lost.",
        _EXAMPLES,
    )
    options.add_question(parser, several=True)
    space = parser.add_argument_group("where to look and for what")
    axes = [option for option in AXES.values() if option.name not in OWN_AXES]
    free = ", ".join(option.name for option in axes if option.axis != "fixed")
    fixed = ", ".join(option.name for option in axes if option.axis == "fixed")
    space.add_argument(
        "--fix",
        metavar="AXIS=A,B,…",
        action="append",
        default=[],
        help=f"values of one axis, all if not given: {free}; and {fixed}, which have one value"
        " unless several or all are given",
    )
    options.add_options(space, (option for option in SEARCH if option is not TOP))
    shown = parser.add_argument_group("what to show")
    options.add_options(shown, [TOP, DISTINCT])
    shown.add_argument("--pareto", action="store_true", help="the Pareto front as a table as well")
    shown.add_argument("--plot", metavar="FILE", help="draw the front as .png or .svg")
    shown.add_argument("--notes", action="store_true", help="caveats about little of the time, too")
    launch.add_to(shown, "the first")
    shown.add_argument("--explain", action="store_true", help="the arithmetic of the best")
    shown.add_argument(
        "--out", metavar="FILE", help="write every feasible layout to a table, .parquet or .csv"
    )
    shown.add_argument(
        "--overwrite", action="store_true", help="replace the file of --out if it is there already"
    )
    running = parser.add_argument_group("how to run")
    running.add_argument("--engine", metavar="NAME", help="local, processes or ray (local)")
    running.add_argument("--jobs", metavar="N", help="processes at a time (one per core)")
    running.add_argument("--address", metavar="HOST", help="of a Ray cluster (one of its own)")
    running.add_argument(
        "--exhaustive",
        action="store_true",
        help="price every feasible layout, also those that a lower bound of the time rules out",
    )
    options.add_workload(parser, several=True, others=_LOAD)
    options.add_options(parser.add_argument_group("a whole training run"), RUN)
    options.add_options(parser.add_argument_group("with --load"), DEPLOYMENTS)
    return parser


def run(given: Namespace) -> int:
    """Search, and print what was found."""
    from shardcost.report.plan import as_text, failure_as_text
    from shardcost.search.plan import Plan

    top = value_of(vars(given), TOP)
    if given.plot is not None:  # a bad name is refused before the search, not after it
        from shardcost.report.pictures import check_name

        check_name(options.path_of(given.plot))
    launch.check(given)
    if given.phase in _LOAD:
        return _run_load(given, top)
    refuse_load(vars(given))
    target = target_of(vars(given))
    result, caveats = _searched(given, top)
    plan = Plan.of(result, top=top, price=result.price, caveats=caveats, target=target)
    with run_options_named(vars(given)):
        for each in plan.best:
            plan.run_of(each)
    start = launch.start_of(given, [each.estimate for each in plan.best])
    if given.plot is not None and plan.best:
        from shardcost.report.pictures import write_picture
        from shardcost.report.plan_plot import sketch

        write_picture(sketch(result), options.path_of(given.plot))
    if given.json:
        from shardcost.report.plan_data import as_data

        explained = {}
        if given.explain and plan.best:
            explained["explanation"] = plan.best[0].estimate.explain().splitlines()
        options.print_json(as_data(plan) | explained | launch.as_data(start))
    elif plan.best:
        print(as_text(plan, pareto=given.pareto, explain=given.explain, notes=given.notes))
        launch.say(start)
        options.say_written("Plot", given.plot)
        if given.out is not None:
            before = f" ({result.resumed} tasks were done before)" if result.resumed else ""
            print(f"Table: {given.out}, {result.feasible:,} layouts{before}")
    if plan.best:
        return 0
    print(f"shardcost: {failure_as_text(plan)}", file=sys.stderr)
    return options.NOTHING_FEASIBLE


def _run_load(given: Namespace, top: int) -> int:
    """Search for deployments, and print what was found."""
    from shardcost.cli.progress import shown_progress
    from shardcost.report.plan_load import as_text, failure_as_text
    from shardcost.report.plan_load_data import as_data
    from shardcost.search.deployments import plan_load

    finder = options.OnDisk()
    question = load_question_of(vars(given), finder)
    with shown_progress(wanted=not given.json, unit="deployments") as progress:
        plan = plan_load(question, simulated=value_of(vars(given), SIMULATED), progress=progress)
    if given.plot is not None and plan.best:
        from shardcost.report.pictures import write_picture
        from shardcost.report.plan_plot import load_sketch

        write_picture(load_sketch(plan), options.path_of(given.plot))
    if given.json:
        options.print_json(as_data(plan, top, finder.caveats))
    elif plan.best:
        print(as_text(plan, top, pareto=given.pareto, caveats=finder.caveats))
        options.say_written("Plot", given.plot)
    if plan.best:
        return 0
    print(f"shardcost: {failure_as_text(plan)}", file=sys.stderr)
    return options.NOTHING_FEASIBLE


def _searched(given: Namespace, top: int) -> tuple[Found, list[str]]:
    """Return what the search finds, and caveats of the models' files."""
    from shardcost.cli.progress import shown_progress
    from shardcost.search.plan import PRICED
    from shardcost.search.run import search

    finder = options.OnDisk()
    request = search_arguments(vars(given), finder)
    with shown_progress(wanted=not given.json) as progress:
        result = search(
            **request,
            top=max(top, PRICED),
            distinct=bool(given.distinct),
            exhaustive=given.exhaustive,
            progress=progress,
            **_engine(given),
        )
    return result, finder.caveats


def _engine(given: Namespace) -> dict[str, Any]:
    """Return where to run; more than one job needs processes, which are one for each core."""
    from os import cpu_count

    from shardcost.search.engines import ENGINES

    jobs = values.count("--jobs", given.jobs)
    engine = given.engine or ("processes" if jobs is not None and jobs > 1 else "local")
    if engine not in ENGINES:
        raise UnknownNameError("--engine", engine, ENGINES)
    if jobs is None:
        jobs = 1 if engine == "local" else cpu_count() or 1
    if given.overwrite and given.out is None:
        raise UsageError("--overwrite is for --out FILE")
    table = {"out": given.out, "overwrite": given.overwrite}
    return {"engine": engine, "jobs": jobs, "address": given.address, **table}

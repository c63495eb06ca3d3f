"""``shardcost plan``: which layout to run, of all that there are, and why the others lost."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardcost.cli import options
from shardcost.errors import UnknownNameError
from shardcost.request import values
from shardcost.request.searches import RATES, TIMES, search_arguments
from shardcost.request.values import flag
from shardcost.scalars import whole_number

if TYPE_CHECKING:
    from shardcost.search.found import Found
    from shardcost.search.plan import Plan

_EXAMPLES: Final = """\
  shardcost plan gpt3-175b --on a100_sxm --network ib_8x200g --gpus 64 \\
      --train --batch 1536 --sequence-length 2048
  shardcost plan llama3-70b --on h100_sxm,h200_sxm --gpus 1..8 --decode --batch 1..512 \\
      --context-tokens 4096 --max-tpot 30ms --objective cost --price 2.50 --pareto
  shardcost plan llama3-70b --on h100_sxm --network ib_8x400g --gpus 64 \\
      --train --batch 512 --sequence-length 4096 --fix tp=4,8 --fix recompute=none --explain
"""
_OBJECTIVES: Final = "time (of a step), throughput (per GPU), cost or energy (per token)"


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
        help="values of one axis, all if not given: tp, cp, pp, dp, ep, micro_batch,"
        " virtual_stages, sequence_parallel, recompute,"
        " schedule, zero, context_scheme; shard_degree; and scheme,"
        " order, tp_overlap, dp_overlap, which have one value unless they are set to all",
    )
    space.add_argument("--objective", metavar="NAME", default="time", help=f"{_OBJECTIVES} (time)")
    space.add_argument(
        "--price",
        metavar="X",
        help="of a GPU for an hour, in any currency; or by cluster: h100_sxm=2.50,a100_sxm=1.20",
    )
    for name, (_, text) in TIMES.items():
        space.add_argument(flag(name), metavar="TIME", help=text)
    for name, (_, text) in RATES.items():
        space.add_argument(flag(name), metavar="X", help=f"the fewest {text}")
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

    top = whole_number("--top", values.whole("--top", given.top), 1)
    _check_plot(given)
    found, caveats = _found(given, top)
    plan = Plan.of(found, top=top, price=found.price, caveats=caveats)
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
        from shardcost.report.sketch import check_name

        check_name(Path(given.plot))


def _explained(plan: Plan) -> list[str]:
    return plan.best[0].estimate.explain().splitlines()


def _found(given: Namespace, top: int) -> tuple[Found, list[str]]:
    """Return what the search finds, and what is to mind about the models' files."""
    from shardcost.cli.progress import shown_progress
    from shardcost.search.plan import PRICED
    from shardcost.search.run import search

    finder = options.OnDisk()
    asked = search_arguments(given, finder)
    with shown_progress(wanted=not given.json) as progress:
        found = search(
            **asked,
            top=max(top, PRICED),
            backend=given.array_backend,
            progress=progress,
            **_engine(given),
        )
    return found, finder.caveats


def _engine(given: Namespace) -> dict[str, Any]:
    """Return where to run; more than one job needs processes, which are one for each core."""
    from os import cpu_count

    from shardcost.search.engines import ENGINES

    jobs = None
    if given.jobs is not None:
        jobs = whole_number("--jobs", values.whole("--jobs", given.jobs), 1)
    engine = given.engine or ("processes" if jobs is not None and jobs > 1 else "local")
    if engine not in ENGINES:
        raise UnknownNameError("--engine", engine, ENGINES)
    if jobs is None:
        jobs = 1 if engine == "local" else cpu_count() or 1
    return {"engine": engine, "jobs": jobs, "address": given.address, "out": given.out}

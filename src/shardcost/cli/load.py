"""``shardcost load``: a deployment under load, and how much load it holds."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardcost.cli import options
from shardcost.errors import UsageError
from shardcost.options import ARRIVALS, LATENCY, POOLS, PRICE, SCHEDULER, SERVING, WORKER
from shardcost.request import ImpossibleError
from shardcost.request.load import (
    deployment_of,
    gpu_price_of,
    limits_of,
    requests_of,
    simulated,
    sweep_of,
)

if TYPE_CHECKING:
    from shardcost.load.result import Limits, Load

_EXAMPLES: Final = """\
  shardcost load llama3-8b --on h100_sxm --rate 4 --isl 1024 --osl 256 \\
      --max-ttft 1s --max-tpot 30ms
  shardcost load llama3-70b --on h100_sxm --tp 8 --users 64 --isl 819-1024 --osl 128 \\
      --software vllm --explain
  shardcost load llama3-8b --on h100_sxm --sweep rate --isl 1024 --osl 256 \\
      --max-ttft 500ms --max-tpot 20ms --plot sweep.svg
  shardcost load llama3-70b --on h100_sxm --tp 4 --prefill-workers 2 --decode-workers 1 \\
      --rate 2 --isl 4096 --osl 256
  shardcost load llama3-8b --on h100_sxm --trace requests.csv --timeline timeline.svg
"""


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "load",
        "Latencies, throughput and queue of requests at a deployment, and what limits it.",
        _EXAMPLES,
    )
    options.add_question(parser, rows=SERVING[2:])
    add = parser.add_argument
    add(
        "--sweep",
        metavar="NAME[=A,B,…]",
        help="a table over loads, and the highest that is held: rate or concurrency, whose values"
        " go to past what the deployment serves unless they are given, as in rate=1..64",
    )
    add("--explain", action="store_true", help="settings, estimates and intervals behind it")
    add(
        "--plot",
        metavar="FILE",
        help="draw the latencies, or with --sweep their curves, as .png or .svg",
    )
    add(
        "--timeline",
        metavar="FILE",
        help="draw batch, prompts, queue and KV cache over time, as .png or .svg",
    )
    options.add_options(parser.add_argument_group("requests"), ARRIVALS)
    options.add_options(parser.add_argument_group("limits and price"), (*LATENCY, PRICE))
    options.add_options(parser.add_argument_group("workers"), POOLS)
    options.add_options(parser.add_argument_group("engine"), SCHEDULER)
    options.add_options(parser.add_argument_group("one worker"), WORKER)
    return parser


def run(given: Namespace) -> int:
    """Simulate one load, or several from low to high, and print the report."""
    from shardcost.report.pictures import check_name

    for file in (given.plot, given.timeline):
        if file is not None:
            check_name(Path(file))
    if given.sweep is not None:
        for name in ("explain", "timeline", "price"):
            if getattr(given, name):
                raise UsageError(f"--{name} and --sweep exclude each other: it is of one load")
    finder = options.OnDisk()
    try:
        return _one(given, finder) if given.sweep is None else _sweep(given, finder)
    except ImpossibleError as error:
        print(f"shardcost: {error}", file=sys.stderr)
        return options.NOTHING_FEASIBLE


def _one(given: Namespace, finder: options.OnDisk) -> int:
    from shardcost.cli.progress import shown_progress
    from shardcost.load.parts import parts_of
    from shardcost.report.load import as_text
    from shardcost.report.load_data import as_data

    request = vars(given)
    limits = limits_of(request)
    requests = requests_of(request, finder)
    deployment = deployment_of(request, finder)
    price = gpu_price_of(request, finder, deployment)
    with shown_progress(wanted=not given.json, unit="requests") as progress:
        load = simulated(deployment, requests, progress)
    parts = parts_of(load) if len(load.served) else None
    if parts is not None:
        _draw(given, load, limits)
    shown: dict[str, Any] = {"price_per_hour": price, "parts": parts, "caveats": finder.caveats}
    if given.json:
        drawn = {name: request[name] for name in ("plot", "timeline") if request[name]}
        data = as_data(load, limits, **shown, explain=given.explain)
        options.print_json(data | (drawn if parts else {}))
    elif parts is not None:
        print(as_text(load, limits, **shown, explain=given.explain))
        for file in (given.plot, given.timeline):
            options.say_written("Plot", file)
    if parts is not None:
        return 0
    many = f"all {load.rejected:,} requests are" if load.rejected > 1 else "the request is"
    print(f"shardcost: {many} longer than the KV cache of a worker holds", file=sys.stderr)
    return options.NOTHING_FEASIBLE


def _draw(given: Namespace, load: Load, limits: Limits) -> None:
    from shardcost.report.load_plot import distributions_sketch, timeline_sketch
    from shardcost.report.pictures import write_picture

    if given.plot is not None:
        write_picture(distributions_sketch(load, limits), Path(given.plot))
    if given.timeline is not None:
        write_picture(timeline_sketch(load), Path(given.timeline))


def _sweep(given: Namespace, finder: options.OnDisk) -> int:
    from shardcost.cli.progress import shown_progress
    from shardcost.report.load import sentence, sweep_as_text
    from shardcost.report.load_data import sweep_as_data

    with shown_progress(wanted=not given.json, unit="loads") as progress:
        sweep = sweep_of(vars(given), finder, given.sweep, progress)
    if given.plot is not None:
        from shardcost.report.load_plot import sweep_sketch
        from shardcost.report.pictures import write_picture

        write_picture(sweep_sketch(sweep), Path(given.plot))
    if given.json:
        options.print_json(sweep_as_data(sweep) | ({"plot": given.plot} if given.plot else {}))
    else:
        print(sweep_as_text(sweep, finder.caveats))
        options.say_written("Plot", given.plot)
    if sweep.knee is not None:
        return 0
    print(f"shardcost: {sentence(sweep)}", file=sys.stderr)
    return options.NOTHING_FEASIBLE

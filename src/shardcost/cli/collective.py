"""``shardcost collective``: how long one collective takes, for one size or many."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, Final

from shardcost import values
from shardcost.cli import options
from shardcost.errors import UsageError
from shardcost.options import COLLECTIVE, EXCHANGE, FORCED, NETWORK, ON, SET, SIZE, SWEEP
from shardcost.request import cluster_of
from shardcost.request.collective import (
    collective_name,
    collective_of,
    dispatch_of,
    exchange_phase,
)

_EXAMPLES: Final = """\
  shardcost collective all_reduce --size 64MiB --gpus 8 --on h100
  shardcost collective all_reduce --size 64MiB --gpus 8 --on h100 --explain
  shardcost collective all-gather --size 1GiB --gpus 16 --on h100 --network ib
  shardcost collective all_reduce --size 1MiB --gpus 8 --on h100 --library vllm
  shardcost collective all_reduce --sweep 1KiB:1GiB --gpus 8 --on h100
  shardcost collective all_reduce --size 1MiB --gpus 8 --on h100 --algorithm ring --protocol LL128
  shardcost collective all_reduce --plot curve.svg --gpus 8 --on h100
  shardcost collective all_reduce --tuner rules.csv --gpus 4,8 --on h100
  shardcost collective dispatch --tokens 128 --hidden 7168 --topk 8 --experts 256 \\
      --gpus 64 --on h800 --network ib_8x400g --low-latency
"""
_WHOLE_RANGE: Final = "8:8GiB"


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "collective",
        "How long a collective takes, which algorithm and protocol run, what else could.",
        _EXAMPLES,
    )
    add = parser.add_argument
    add(
        "collective",
        help="all_reduce, all_gather, reduce_scatter, all_to_all, …; or dispatch or combine of"
        " experts' tokens",
    )
    options.add_options(parser, [ON, NETWORK, SET, *COLLECTIVE])
    group = parser.add_argument_group("dispatch and combine")
    options.add_options(group, EXCHANGE)
    add(
        "--explain", action="store_true", help="show the formula with its numbers and their sources"
    )
    add(
        "--why",
        metavar="FIGURE",
        help="where one number comes from: time_s, busbw, algbw, bound_s or link_share; list shows"
        " the names of all",
    )
    add("--plot", metavar="FILE", help="draw the sweep (8 B to 8 GiB unless given) as .png or .svg")
    add(
        "--tuner",
        metavar="FILE.csv",
        help="write rules for NCCL's tuner plugin where another path is predicted to be faster over"
        " the sweep; --gpus may be several, like 4,8, and the collective may be 'all'",
    )
    return parser


def run(given: Namespace) -> int:
    """Predict one size or a sweep, and print the report."""
    if exchange_phase(given.collective) is not None:
        return _exchange(given)
    for option in EXCHANGE:
        if getattr(given, option.name) is not None:
            raise UsageError(f"{option.flag} is for dispatch and combine, not {given.collective}")
    _check_options(given)
    if given.tuner is not None:
        return _write_tuner_file(given)
    return _one_size(given) if given.size is not None else _sweep(given)


def _exchange(given: Namespace) -> int:
    """Predict dispatch or combine, and print the report."""
    phase = given.collective.lower()
    for option in ("gpus", "on", "tokens", "hidden", "topk", "experts"):
        if getattr(given, option) is None:
            raise UsageError(f"missing --{option} for {phase} (see shardcost collective --help)")
    for option in ("size", "sweep", "plot", "tuner", "why"):
        if getattr(given, option) is not None:
            raise UsageError(f"--{option} is not for {phase}, whose size follows from --tokens")
    for forced in FORCED:
        if getattr(given, forced.name) is not None:
            raise UsageError(
                f"{forced.flag} is not for {phase}: --library and --low-latency choose"
            )
    from shardcost.report.dispatch import as_data, as_text

    result = dispatch_of(vars(given), options.OnDisk())
    return options.print_report(
        given, lambda: as_data(result), lambda: as_text(result, explain=given.explain)
    )


def _check_options(given: Namespace) -> None:
    for name in ("gpus", "on"):
        if getattr(given, name) is None:
            raise UsageError(f"missing --{name} (see shardcost collective --help)")
    many = [
        name for name in ("--sweep", "--plot", "--tuner") if getattr(given, name[2:]) is not None
    ]
    if given.size is not None and many:
        raise UsageError(f"--size and {many[0]} exclude each other; give one")
    if given.size is None and not many:
        raise UsageError("missing --size (or --sweep A:B for many sizes)")
    for name in ("explain", "why"):
        if getattr(given, name) and many:
            raise UsageError(f"--{name} and {many[0]} exclude each other: it explains one --size")
    if given.tuner is not None:
        _check_tuner(given)


def _check_tuner(given: Namespace) -> None:
    if given.plot is not None:
        raise UsageError("--tuner and --plot exclude each other; give one")
    if given.library not in {None, "nccl"} or given.mode not in {None, "graph"}:
        raise UsageError("--tuner is for --library nccl in --mode graph: NCCL's own plugin")
    for forced in FORCED:
        if getattr(given, forced.name) is not None:
            raise UsageError(f"--tuner and {forced.flag} exclude each other: it finds the paths")


def _write_tuner_file(given: Namespace) -> int:
    """Write the rules that are predicted to save time, and print what each saves."""
    from shardcost.files import write_whole
    from shardcost.formats.nccl_tuner import COLLECTIVES, as_csv
    from shardcost.inspect.tuner_plan import lines, tuner_plan
    from shardcost.report.tuner import plan_as_data, plan_as_text

    sizes = SWEEP.read(given.sweep or _WHOLE_RANGE)
    every = given.collective.lower() == "all"
    plan = tuner_plan(
        list(COLLECTIVES) if every else [collective_name(given.collective)],
        cluster_of(vars(given), options.OnDisk()),
        values.wholes("--gpus", given.gpus),
        values.count("--nodes", given.nodes),
        (sizes[0], sizes[-1]),
    )
    write_whole(Path(given.tuner), as_csv(lines(plan)))
    if given.json:
        options.print_json(plan_as_data(plan) | {"tuner": given.tuner})
    else:
        print(plan_as_text(plan))
        print(f"File: {given.tuner}")
    return 0


def _one_size(given: Namespace) -> int:
    from shardcost.report.collective import as_data, as_text

    size = SIZE.read(given.size)
    result = collective_of(vars(given), options.OnDisk(), size)
    if given.why is not None:
        from shardcost.report.why import collective_figures, why_collective

        def why(figure: str) -> Any:
            return why_collective(result, f"collective.{figure.removeprefix('collective.')}")

        return options.print_why(given.why, collective_figures(result), why, json=given.json)

    def text() -> str:
        from shardcost.collectives.sweep import octaves

        sweep = collective_of(vars(given), options.OnDisk(), octaves(size))
        return as_text(result, explain=given.explain, sweep=sweep)

    return options.print_report(given, lambda: as_data(result), text)


def _sweep(given: Namespace) -> int:
    import numpy as np

    from shardcost.report.collective import sweep_as_data, sweep_as_text

    sizes = SWEEP.read(given.sweep or _WHOLE_RANGE)
    result = collective_of(vars(given), options.OnDisk(), np.array(sizes, dtype=float))
    if given.plot is not None:
        from shardcost.collectives.sweep import curve_sizes
        from shardcost.report.collective_plot import sketch
        from shardcost.report.pictures import write_picture
        from shardcost.validate.shipped import points_like

        # So dense that the curves are smooth.
        curve = collective_of(vars(given), options.OnDisk(), curve_sizes(sizes[0], sizes[-1]))
        write_picture(sketch(curve, points_like(curve)), Path(given.plot))
    if given.json:
        options.print_json(sweep_as_data(result) | {"plot": given.plot})
    else:
        print(sweep_as_text(result))
        options.say_written("Plot", given.plot)
    return 0

"""``shardcost estimate``: what one layout costs, or how cost changes with one option or two."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Final

from shardcost.cli import launch, options
from shardcost.errors import BadValueError, UnknownNameError, UsageError
from shardcost.files import write_whole
from shardcost.options import LAYOUT, PRICE, RUN
from shardcost.request import estimate_of, grid_of, run_of, scaling_of, target_of, varied

if TYPE_CHECKING:
    from pathlib import Path

    from shardcost.estimate.result import Estimate
    from shardcost.estimate.scaling import Grid, Scaling

_EXAMPLES: Final = """\
  shardcost estimate llama3-70b --on h100_sxm --network ib_8x400g --gpus 64 --tp 8 --pp 2 \\
      --train --batch 512 --sequence-length 4096
  shardcost estimate llama3-70b --on h100_sxm --tp 8 --prefill --batch 1 --prompt-tokens 8192
  shardcost estimate llama3-70b --on h100_sxm --tp 8 --decode --batch 64 --context-tokens 4096
  shardcost estimate llama3-70b --on h100_sxm --decode --batch 64 --context-tokens 4096 \\
      --vary tp=1,2,4,8
  shardcost estimate llama3-70b --on h100_sxm --decode --context-tokens 4096 \\
      --vary tp=1..8 --vary batch=1..256 --csv grid.csv --plot grid.svg
  shardcost estimate path/to/config.json --on h100_sxm --tp 8 --decode --batch 8 \\
      --context-tokens 4096 --explain
  shardcost estimate llama3-70b --on h100_sxm --tp 8 --decode --batch 64 --context-tokens 4096 \\
      --launch vllm
  shardcost estimate llama3-70b --on h100_sxm --tp 8 --decode --batch 64 --context-tokens 4096 \\
      --plot roofline.svg --picture roofline
"""
_PICTURES: Final = ("timeline", "layer", "roofline", "memory")
"""What may be drawn of one layout; the first unless another is named."""
_MOST_VARIED: Final = 2


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "estimate",
        "What a model costs under one layout: time by part, communication, memory.",
        _EXAMPLES,
    )
    options.add_question(parser, "; needed unless it varies")
    add = parser.add_argument
    add(
        "--vary",
        metavar="NAME=A,B,…",
        action="append",
        help="a table over values of one option, such as tp=1,2,4,8 or batch=1..256 (by doubling);"
        " twice: a grid over two options",
    )
    add("--csv", metavar="FILE", help="with --vary: write a line for each value or cell, .csv")
    add(
        "--advise",
        action="store_true",
        help="what limits the layout, and the single change of it that helps most",
    )
    launch.add_to(parser)
    add("--notes", action="store_true", help="caveats about little of the time, too")
    add("--explain", action="store_true", help="formulas, values, sources and errors seen")
    add(
        "--why",
        metavar="FIGURE",
        help="where one number comes from, such as time_s, mfu, memory_bytes or 'parts.tp"
        " communication'; list shows the names of all",
    )
    add(
        "--trace",
        metavar="FILE",
        help="write the timeline of the step for ui.perfetto.dev, .json or .json.gz",
    )
    add(
        "--plot",
        metavar="FILE",
        help="draw a picture as .png or .svg; with --vary, its curve or map",
    )
    add(
        "--picture",
        metavar="NAME",
        help="what --plot draws: timeline (of the step), layer, roofline or memory (timeline)",
    )
    options.add_options(parser.add_argument_group("layout"), LAYOUT)
    options.add_workload(parser)
    options.add_options(parser.add_argument_group("a whole training run"), (*RUN, PRICE))
    return parser


def run(given: Namespace) -> int:
    """Price one layout, or one for each value that varies, and print the report."""
    _check_files(given)
    finder = options.OnDisk()
    if given.vary is not None:
        return _vary(given, finder)
    target_of(vars(given))  # what is wrong with a run is said before anything is priced
    result = estimate_of(vars(given), finder)
    run = run_of(vars(given), finder, result)
    if given.why is not None:
        from shardcost.estimate.why import figures, why

        return options.print_why(
            given.why, figures(result), lambda name: why(result, name), json=given.json
        )
    if given.trace is not None:
        from shardcost.report.trace import write_timeline

        write_timeline(result, options.path_of(given.trace))
    if given.plot is not None:
        _draw(result, options.path_of(given.plot), given.picture or _PICTURES[0])
    advised = None
    if given.advise:
        from shardcost.search.advice import advice

        place = (result.model, result.cluster, result.layout)
        advised = advice(*place, result.workload, result.software)
    start = launch.start_of(given, [result])
    if given.json:
        from shardcost.report.estimate_data import advice_as_data, as_data

        files = {"plot": given.plot, "trace": given.trace}
        data = as_data(result, finder.caveats) | {key: file for key, file in files.items() if file}
        if run is not None:
            from shardcost.report.run import figures_as_data

            data["run"] = figures_as_data(run)
        if given.explain:
            data["explanation"] = result.explain().splitlines()
        if advised is not None:
            data["advice"] = advice_as_data(advised)
        options.print_json(data | launch.as_data(start))
    else:
        from shardcost.report.estimate import as_text

        shown = {"explain": given.explain, "notes": given.notes}
        print(as_text(result, finder.caveats, advice=advised, run=run, **shown))
        launch.say(start)
        options.say_written("Plot", given.plot)
        options.say_written("Trace", given.trace)
    return 0


def _draw(result: Estimate, file: Path, picture: str) -> None:
    """Write one picture of an estimate."""
    from shardcost.report import memory_plot, pictures, roofline_plot, timeline_plot

    if picture == "roofline":
        sketch = roofline_plot.sketch(result)
    elif picture == "memory":
        sketch = memory_plot.sketch(result)
    else:
        sketch = timeline_plot.sketch(result, "layer" if picture == "layer" else "step")
    pictures.write_picture(sketch, file)


def _check_files(given: Namespace) -> None:
    """Raise for an unknown picture, a file of no known format, or what would be left out."""
    if given.trace is not None:
        _check_trace(given)
    if given.picture is not None:
        if given.plot is None:
            raise UsageError("--picture is for --plot FILE, which is missing")
        if given.vary is not None:
            raise UsageError("--picture and --vary exclude each other: its curve is drawn")
        if given.picture not in _PICTURES:
            raise UnknownNameError("--picture", given.picture, _PICTURES)
    if given.plot is not None:
        from shardcost.report.pictures import check_name

        check_name(options.path_of(given.plot))
    if given.csv is not None:
        _check_csv(given)
    if given.why is not None:
        _check_why(given)


def _check_trace(given: Namespace) -> None:
    if given.vary is not None:
        raise UsageError("--trace and --vary exclude each other: it shows one layout")
    if not given.trace.endswith((".json", ".json.gz")):
        raise BadValueError("--trace", given.trace, "a file that ends in .json or .json.gz")


def _check_why(given: Namespace) -> None:
    """Raise for what would be left out beside the explanation of one figure."""
    for name in ("plot", "trace", "explain", "advise", "placement"):
        if getattr(given, name):
            raise UsageError(f"--why and --{name} exclude each other: it explains one figure")


def _check_csv(given: Namespace) -> None:
    if given.vary is None:
        raise UsageError("--csv is for --vary NAME=A,B,…, which is missing")
    if not given.csv.lower().endswith(".csv"):
        raise BadValueError("--csv", given.csv, "a file that ends in .csv")


def _vary(given: Namespace, finder: options.OnDisk) -> int:
    """Price every value of one option, or every pair of two, and print the table."""
    from shardcost.report import scaling as report

    for name in ("explain", "advise", "placement", "launch", "why"):
        if getattr(given, name):
            raise UsageError(f"--{name} and --vary exclude each other: it explains one layout")
    if target_of(vars(given)) is not None or given.price is not None:
        raise UsageError("--vary is of one step; leave out --tokens and --price")
    if len(given.vary) > _MOST_VARIED:
        raise UsageError(
            f"--vary is given {len(given.vary)} times; at most {_MOST_VARIED}, which make a grid"
            " (shardcost plan searches over any number of axes)"
        )
    over = [varied(text, given.phase) for text in given.vary]
    result: Scaling | Grid = (
        scaling_of(vars(given), finder, *over[0])
        if len(over) == 1
        else grid_of(vars(given), finder, *over)
    )
    plot = given.plot if any(row.found is not None for row in result.rows) else None
    if plot is not None:
        _draw_varied(result, options.path_of(plot))
    if given.csv is not None:
        write_whole(options.path_of(given.csv), report.as_csv(result))
    files = {name: file for name, file in (("plot", plot), ("csv", given.csv)) if file}
    if given.json:
        options.print_json(report.as_data(result, finder.caveats) | files)
    else:
        print(report.as_text(result, finder.caveats, notes=given.notes))
        options.say_written("Plot", plot)
        options.say_written("Table", given.csv)
    if any(row.fits for row in result.rows):
        return 0
    names = " and ".join(name for name, _ in over)
    print(f"shardcost: no value of {names} is feasible, see the reasons", file=sys.stderr)
    return options.NOTHING_FEASIBLE


def _draw_varied(result: Scaling | Grid, file: Path) -> None:
    from shardcost.estimate.scaling import Grid
    from shardcost.report.pictures import write_picture
    from shardcost.report.scaling_plot import heat_map, sketch

    write_picture(heat_map(result) if isinstance(result, Grid) else sketch(result), file)

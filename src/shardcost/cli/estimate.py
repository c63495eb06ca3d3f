"""``shardcost estimate``: what one layout costs, or how cost changes with one of its sizes."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardcost.asked import layouts
from shardcost.asked.errors import UsageError
from shardcost.asked.estimates import estimate_of, scaling_of, varied
from shardcost.asked.values import flag
from shardcost.cli import options
from shardcost.errors import BadValueError, UnknownNameError

if TYPE_CHECKING:
    from shardcost.estimate.result import Estimate

_EXAMPLES: Final = """\
  shardcost estimate llama3-70b --on h100_sxm --network ib_8x400g --gpus 64 --tp 8 --pp 2 \\
      --train --batch 512 --sequence-length 4096
  shardcost estimate llama3-70b --on h100_sxm --tp 8 --prefill --batch 1 --prompt-tokens 8192
  shardcost estimate llama3-70b --on h100_sxm --tp 8 --decode --batch 64 --context-tokens 4096
  shardcost estimate llama3-70b --on h100_sxm --decode --batch 64 --context-tokens 4096 \\
      --vary tp=1,2,4,8
  shardcost estimate path/to/config.json --on h100_sxm --tp 8 --decode --batch 8 \\
      --context-tokens 4096 --explain
  shardcost estimate llama3-70b --on h100_sxm --tp 8 --decode --batch 64 --context-tokens 4096 \\
      --plot roofline.svg --picture roofline
"""
_PICTURES: Final = ("timeline", "layer", "roofline", "memory")
"""What may be drawn of one layout; the first unless another is named."""


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "estimate",
        "What a model costs under one layout: time by part, communication, memory.",
        _EXAMPLES,
    )
    parser.add_argument("model", metavar="MODEL", help="catalog name, config.json or its folder")
    parser.add_argument(
        "--on", metavar="CLUSTER", help="catalog name or profile.toml; needed unless it varies"
    )
    parser.add_argument("--network", metavar="NET", help="catalog name: what joins the nodes")
    parser.add_argument("--gpus", metavar="N", help="GPUs in all (tp x cp x pp x dp)")
    parser.add_argument("--software", metavar="NAME", help="framework or engine, a catalog name")
    parser.add_argument(
        "--vary",
        metavar="NAME=A,B,…",
        help="a table over values of one option, such as tp=1,2,4,8 or batch=1,16,256",
    )
    parser.add_argument(
        "--explain", action="store_true", help="formulas, values, sources and errors seen"
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="write the timeline of the step for ui.perfetto.dev, .json or .json.gz (--train)",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw a picture as .png or .svg; with --vary, of its curve"
    )
    parser.add_argument(
        "--picture",
        metavar="NAME",
        help="what --plot draws: timeline (of the step), layer, roofline or memory (timeline)",
    )
    layout = parser.add_argument_group("layout")
    for name, text in layouts.COUNTS.items():
        layout.add_argument(flag(name), metavar="N", help=text)
    for name, text in layouts.WORDS.items():
        layout.add_argument(flag(name), metavar="NAME", help=text)
    layout.add_argument("--imbalance", metavar="X", help="fullest rank's tokens over the mean (1)")
    layout.add_argument(
        "--sequence-parallel",
        action="store_true",
        help="spread activations between products over tp as well",
    )
    options.add_workload(parser)
    return parser


def run(given: Namespace) -> int:
    """Price one layout, or one for each value that varies, and print the report."""
    _check_trace(given)
    _check_plot(given)
    finder = options.OnDisk()
    if given.vary is not None:
        return _vary(given, finder)
    from shardcost.report.estimate import as_data, as_text

    found = estimate_of(given, finder)
    if given.trace is not None:
        from shardcost.report.trace import write_timeline

        write_timeline(found, Path(given.trace))
    if given.plot is not None:
        _draw(found, Path(given.plot), given.picture or _PICTURES[0])
    if given.json:
        explained = {"explanation": found.explain().splitlines()} if given.explain else {}
        options.print_json(as_data(found, finder.caveats) | explained | _drawn(given.plot))
    else:
        print(as_text(found, finder.caveats, explain=given.explain))
        _say_drawn(given.plot)
    return 0


def _draw(found: Estimate, file: Path, picture: str) -> None:
    """Write one picture of an estimate."""
    if picture == "roofline":
        from shardcost.report.roofline_plot import write_roofline

        write_roofline(found, file)
    elif picture == "memory":
        from shardcost.report.memory_plot import write_memory

        write_memory(found, file)
    else:
        from shardcost.report.timeline_plot import write_timeline_plot

        write_timeline_plot(found, file, "layer" if picture == "layer" else "step")


def _drawn(file: str | None) -> dict[str, str]:
    return {} if file is None else {"plot": file}


def _say_drawn(file: str | None) -> None:
    if file is not None:
        print(f"Plot: {file}")


def _check_plot(given: Namespace) -> None:
    """Raise for a picture that there is none of, or a file that none is written to."""
    if given.picture is not None:
        if given.plot is None:
            raise UsageError("--picture is for --plot FILE, which is missing")
        if given.vary is not None:
            raise UsageError("--picture and --vary exclude each other: its curve is drawn")
        if given.picture not in _PICTURES:
            raise UnknownNameError("--picture", given.picture, _PICTURES)
    if given.plot is not None:
        from shardcost.report.sketch import check_name

        check_name(Path(given.plot))


def _check_trace(given: Namespace) -> None:
    """Raise where there is no one timeline to write, or its file is named as something else."""
    if given.trace is None:
        return
    if given.vary is not None:
        raise UsageError("--trace and --vary exclude each other: it shows one layout")
    if given.phase != "train":
        raise UsageError(f"--trace is for --train, not --{given.phase}")
    if not given.trace.endswith((".json", ".json.gz")):
        raise BadValueError("--trace", given.trace, "a file that ends in .json or .json.gz")


def _vary(given: Namespace, finder: options.OnDisk) -> int:
    from shardcost.report.scaling import as_data, as_text

    if given.explain:
        raise UsageError("--explain and --vary exclude each other: it explains one layout")
    found = scaling_of(given, finder, *varied(given.vary, given.phase))
    plot = given.plot if found.possible else None
    if plot is not None:
        from shardcost.report.scaling_plot import write_scaling

        write_scaling(found, Path(plot))
    if given.json:
        options.print_json(as_data(found, finder.caveats) | _drawn(plot))
    else:
        print(as_text(found, finder.caveats))
        _say_drawn(plot)
    if found.feasible:
        return 0
    print(f"shardcost: no value of {found.name} is feasible, see the reasons", file=sys.stderr)
    return options.NOTHING_FEASIBLE

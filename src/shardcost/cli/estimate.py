"""``shardcost estimate``: what one layout costs, or how cost changes with one of its sizes."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Final

from shardcost.asked import layouts
from shardcost.asked.errors import UsageError
from shardcost.asked.estimates import estimate_of, scaling_of, varied
from shardcost.asked.values import flag
from shardcost.cli import options
from shardcost.errors import BadValueError

_EXAMPLES: Final = """\
  shardcost estimate llama3-70b --on h100_sxm --network ib_8x400g --gpus 64 --tp 8 --pp 2 \\
      --train --batch 512 --sequence-length 4096
  shardcost estimate llama3-70b --on h100_sxm --tp 8 --prefill --batch 1 --prompt-tokens 8192
  shardcost estimate llama3-70b --on h100_sxm --tp 8 --decode --batch 64 --context-tokens 4096
  shardcost estimate llama3-70b --on h100_sxm --decode --batch 64 --context-tokens 4096 \\
      --vary tp=1,2,4,8
  shardcost estimate path/to/config.json --on h100_sxm --tp 8 --decode --batch 8 \\
      --context-tokens 4096 --explain
"""


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
    finder = options.OnDisk()
    if given.vary is not None:
        return _vary(given, finder)
    from shardcost.report.estimate import as_data, as_text

    found = estimate_of(given, finder)
    if given.trace is not None:
        from shardcost.report.trace import write_timeline

        write_timeline(found, Path(given.trace))
    if given.json:
        explained = {"explanation": found.explain().splitlines()} if given.explain else {}
        options.print_json(as_data(found, finder.caveats) | explained)
    else:
        print(as_text(found, finder.caveats, explain=given.explain))
    return 0


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
    if given.json:
        options.print_json(as_data(found, finder.caveats))
    else:
        print(as_text(found, finder.caveats))
    if found.feasible:
        return 0
    print(f"shardcost: no value of {found.name} is feasible, see the reasons", file=sys.stderr)
    return options.NOTHING_FEASIBLE

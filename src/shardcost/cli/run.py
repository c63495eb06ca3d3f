"""``shardcost run``: a whole training run: days, GPU-hours, money, energy, goodput."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any, Final

from shardcost.cli import options
from shardcost.errors import UsageError
from shardcost.options import LAYOUT, PRICE, RUN, TOKENS, WORKLOAD
from shardcost.options import needed as needed_by
from shardcost.request import estimate_of, run_of, target_of, workload_of
from shardcost.request.search import search_arguments, searched_layouts

if TYPE_CHECKING:
    from shardcost.estimate.result import Estimate

_EXAMPLES: Final = """\
  shardcost run llama3-405b --on h100_sxm --network roce_8x400g --gpus 16384 \\
      --batch 2048 --sequence-length 8192 --tokens 15.6T --price 2.50
  shardcost run gpt3-175b --on a100_sxm --network ib_8x200g --gpus 1024 --tp 8 --pp 8 \\
      --batch 1536 --sequence-length 2048 --tokens 300B --mtbf 30000 --explain
"""
_DEGREES: Final = ("tp", "cp", "pp", "dp", "ep")
"""Without any of these, the layout is searched for."""


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "run",
        "What a whole training run takes: days, GPU-hours, money, energy; failures included."
        " Without --tp, --cp, --pp, --dp and --ep, the fastest layout is searched for.",
        _EXAMPLES,
    )
    options.add_question(parser)
    add = parser.add_argument
    add("--notes", action="store_true", help="caveats about little of the time, too")
    add("--explain", action="store_true", help="formulas, values and sources")
    options.add_options(parser.add_argument_group("the run"), (*RUN, PRICE))
    options.add_options(parser.add_argument_group("layout"), LAYOUT)
    trained = (option for option in WORKLOAD if "train" in option.applies_to)
    options.add_options(parser.add_argument_group("one step"), trained)
    return parser


def run(given: Namespace) -> int:
    """Price one step, make a run of it, and print the report."""
    from shardcost.report.run import as_data, as_text, explanation

    finder, request = options.OnDisk(), {**vars(given), "phase": "train"}
    needed = [option.flag for option in (TOKENS, *needed_by("train")) if not request[option.name]]
    if needed:
        raise UsageError(f"a run needs {' and '.join(needed)} (see shardcost run --help)")
    target_of(request)  # a bad value is refused before a search, not after it
    workload_of(request)
    searched = ""
    if any(request[name] is not None for name in _DEGREES):
        step = estimate_of(request, finder)
    else:
        found, searched = _best(request, finder)
        if found is None:
            print(f"shardcost: {searched}", file=sys.stderr)
            return options.NOTHING_FEASIBLE
        step = found
    whole = run_of(request, finder, step)
    assert whole is not None  # noqa: S101 (the tokens are given)
    if given.json:
        data = {**as_data(whole, finder.caveats), "searched": bool(searched)}
        if given.explain:
            data["explanation"] = [*explanation(whole), *step.explain().splitlines()]
        options.print_json(data)
    else:
        shown = {"explain": given.explain, "notes": given.notes}
        print(as_text(whole, finder.caveats, searched=searched, **shown))
    return 0


def _best(request: dict[str, Any], finder: options.OnDisk) -> tuple[Estimate | None, str]:
    """Return the fastest layout's step and how it was found, or None and why there is none."""
    from shardcost.cli.progress import shown_progress
    from shardcost.report.plan import failure_as_text
    from shardcost.search.plan import Plan
    from shardcost.search.run import search

    arguments = search_arguments(searched_layouts(request), finder)
    with shown_progress(wanted=not request["json"]) as progress:
        found = search(**arguments, top=1, progress=progress)
    if not found.best:
        return None, failure_as_text(Plan.of(found))
    counts = f"{found.feasible:,} feasible ones of {found.considered:,}"
    return found.best[0].estimate, f"the fastest of {counts}; shardcost plan compares them"

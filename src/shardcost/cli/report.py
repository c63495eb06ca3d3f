"""``shardcost report``: one layout as a self-contained HTML page, to hand on."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Final

from shardcost.cli import options
from shardcost.errors import BadValueError
from shardcost.options import LAYOUT
from shardcost.request import estimate_of

_EXAMPLES: Final = """\
  shardcost report llama3-70b --on h100_sxm --tp 8 --decode --batch 64 --context-tokens 4096 \\
      -o report.html
  shardcost report path/to/config.json --on h100_sxm --network ib_8x400g --gpus 64 --tp 8 --pp 2 \\
      --train --batch 512 --sequence-length 4096 --zero 1 -o report.html
"""
_SUFFIX: Final = ".html"


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "report",
        "One layout as a page of its own: figures, what limits it, pictures, sources, commands.",
        _EXAMPLES,
    )
    options.add_question(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help=f"the page, {_SUFFIX}: one file that loads nothing else",
    )
    options.add_options(parser.add_argument_group("layout"), LAYOUT)
    options.add_workload(parser)
    return parser


def run(given: Namespace) -> int:
    """Price one layout and write its page, whole or not at all."""
    file = Path(given.output)
    if file.suffix.lower() != _SUFFIX:
        raise BadValueError("--output", given.output, f"a file name that ends in {_SUFFIX}")
    finder = options.OnDisk()
    estimate = estimate_of(vars(given), finder)
    from shardcost.files import write_whole
    from shardcost.report.estimate import title
    from shardcost.report.html import as_html
    from shardcost.search.review import review
    from shardcost.validate.shipped import points_like

    whole = review(estimate)
    points = points_like(whole.heaviest.curve) if whole.heaviest else ()
    content = as_html(whole, points, finder.caveats).encode()
    write_whole(file, content)
    document = {"file": given.output, "bytes": len(content), "title": title(estimate)}
    return options.print_report(given, lambda: document, lambda: f"Report: {given.output}")

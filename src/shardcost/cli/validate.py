"""``shardcost validate``: prediction against measurement."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Final

from shardcost.cli import options
from shardcost.evidence.validate import validate
from shardcost.files import write_whole
from shardcost.formats.tables import Table, read_table, write_table
from shardcost.report.validate import PREDICTIONS_HEAD, as_data, as_text, prediction_rows

_EXAMPLES: Final = """\
  shardcost validate collectives.csv
  shardcost validate collectives.csv --by cluster,library
  shardcost validate collectives.csv --by population --by size_band --json
  shardcost validate collectives.csv --predictions predicted.csv
  shardcost validate collectives.csv training.csv --page validation.md
"""


def parser() -> options.Parser:
    """Return the parser of this command."""
    text = "Predict every row of measured tables and say how far off the predictions are."
    parser = options.Parser("validate", text, _EXAMPLES)
    parser.add_argument("tables", nargs="+", metavar="TABLE.csv", help="measured tables (CSV)")
    parser.add_argument(
        "--by",
        nargs="+",
        action="extend",
        default=[],
        metavar="COLUMN",
        help="errors for each value of these columns, or of size_band, span, population",
    )
    parser.add_argument(
        "--predictions", metavar="FILE.csv", help="write the prediction of every row of one table"
    )
    parser.add_argument(
        "--page",
        metavar="FILE.md",
        help="write a page on these tables, one of each kind: errors by every split, other models,"
        " cross-validation (needs SciPy, takes minutes)",
    )
    parser.add_argument(
        "--ignore-versions",
        action="store_true",
        help="predict serving engines by their newest kernels, not by the version in dataset",
    )
    return parser


def run(given: Namespace) -> int:
    """Read the tables, predict them, print the report."""
    paths = [Path(name) for name in given.tables]
    if given.predictions is not None and len(paths) > 1:
        raise options.UsageError("--predictions is for one table; give one")
    target = _target("--predictions", given.predictions, paths)
    page_target = _target("--page", given.page, paths)
    tables = [read_table(path) for path in paths]
    if page_target is not None:
        _refuse_two_of_a_kind(tables)
    found = [
        validate(table, _columns(given.by), ignore_versions=given.ignore_versions)
        for table in tables
    ]
    if target is not None:
        write_table(target, PREDICTIONS_HEAD, prediction_rows(found[0]))
    if page_target is not None:
        from shardcost.report.validation_page import page

        write_whole(page_target, page(tables, given.page, _say))
    if given.json:
        options.print_json(as_data(found))
    else:
        print(as_text(found))
    return 0


def _columns(words: list[str]) -> list[str]:
    """Return the columns of ``--by a,b``, ``--by a b`` or ``--by a --by b``, each once."""
    return list(dict.fromkeys(name.strip() for word in words for name in word.split(",")))


def _target(option: str, name: str | None, tables: list[Path]) -> Path | None:
    """Return the file that an option asks to write, which is none of the tables."""
    if name is None:
        return None
    if any(_are_same(Path(name), table) for table in tables):
        raise options.UsageError(f"{option} {name} is the measured table itself")
    return Path(name)


def _refuse_two_of_a_kind(tables: list[Table]) -> None:
    """Raise where two tables would have the same section of a page."""
    kinds = [table.kind for table in tables]
    twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
    if twice is not None:
        raise options.UsageError(f"--page is for one table of each kind; there are two of {twice}")


def _say(text: str) -> None:
    """Tell what is being done, apart from the report."""
    print(text, file=sys.stderr, flush=True)


def _are_same(one: Path, other: Path) -> bool:
    """Return whether two names are of one file, through links too."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # one of them is not there; reading or writing it will say so
        return False

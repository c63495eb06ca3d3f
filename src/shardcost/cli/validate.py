"""``shardcost validate``: prediction against measurement."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from shardcost.cli import options
from shardcost.errors import UsageError
from shardcost.formats.request_runs import files_of
from shardcost.formats.tables import Table, read_table, write_table
from shardcost.machine import CATALOG, by_profile
from shardcost.machine.libraries import profile_in
from shardcost.report.validate import as_data, as_text, prediction_lines
from shardcost.validate.shipped import not_in, shipped, tables_in
from shardcost.validate.validation import validate

_EXAMPLES: Final = """\
  shardcost validate --shipped
  shardcost validate collectives.csv --by cluster,library
  shardcost validate collectives.csv --by population --by size_band --json
  shardcost validate collectives.csv --predictions predicted.csv
  shardcost validate collectives.csv --on my-cluster.toml
  shardcost validate requests --by run,figure
"""


def parser() -> options.Parser:
    """Return the parser of this command."""
    text = "Predict every row of measured tables and say how far off the predictions are."
    parser = options.Parser("validate", text, _EXAMPLES)
    add = parser.add_argument
    add(
        "tables",
        nargs="*",
        metavar="TABLE.csv",
        help="measured tables (CSV), or folders of measured requests (with runs.csv)",
    )
    add(
        "--folder",
        metavar="DIR",
        help="every measured table in a folder, or in its folder measured",
    )
    add(
        "--shipped",
        action="store_true",
        help="the measurements that ship with shardcost, less data sets that a named table has",
    )
    add(
        "--by",
        nargs="+",
        action="extend",
        default=[],
        metavar="COLUMN",
        help="errors for each value of these columns, or of size_band, span, population",
    )
    add("--predictions", metavar="FILE.csv", help="write the prediction of every row of one table")
    add(
        "--on",
        metavar="PROFILE.toml",
        help="predict the profile's system by the profile, other systems as ever",
    )
    add(
        "--ignore-versions",
        action="store_true",
        help="predict serving engines by their newest kernels, not by the version in dataset",
    )
    return parser


def run(given: Namespace) -> int:
    """Read the tables, predict them, print the report."""
    if not given.tables and not given.shipped and given.folder is None:
        raise UsageError("arguments are required: TABLE.csv, --folder or --shipped")
    named = [read_table(Path(name)) for name in given.tables] + _tables_in(given.folder)
    tables = named + (not_in(named, shipped()) if given.shipped else [])
    target = given.predictions
    if target is not None and len(tables) > 1:
        raise UsageError("--predictions is for one table; give one")
    if target is not None and any(_is_of(Path(target), table) for table in named):
        raise UsageError(f"--predictions {target} is the measured table itself")
    # `--by a,b`, `--by a b` and `--by a --by b` are the same; a column counts once.
    by = list(dict.fromkeys(name.strip() for word in given.by for name in word.split(",")))
    fitted = CATALOG if given.on is None else by_profile(profile_in(given.on))
    results = [
        validate(table, by, ignore_versions=given.ignore_versions, fitted=fitted)
        for table in tables
    ]
    if fitted.libraries.has_tables:
        formulas = fitted._replace(libraries=fitted.libraries.without_tables())
        alone = [
            validate(each.table, ignore_versions=given.ignore_versions, fitted=formulas).overall
            for each in results
        ]
        results = [
            replace(each, extra={**each.extra, "formula_alone": asdict(stats)})
            for each, stats in zip(results, alone, strict=True)
        ]
    if target is not None:
        head, *lines = prediction_lines(results[0])
        write_table(Path(target), head, lines)
    return options.print_report(given, lambda: as_data(results), lambda: as_text(results))


def _tables_in(name: str | None) -> list[Table]:
    """Return the tables of a folder, and name on standard error the files that are none."""
    if name is None:
        return []
    folder = tables_in(Path(name))
    for complaint in folder.left_out:
        print(f"left out: {complaint}", file=sys.stderr, flush=True)
    return folder.tables


def _is_of(path: Path, table: Table) -> bool:
    """Return whether a file is one that a table was read from."""
    files = files_of(table) if table.kind == "requests" else [table.path]
    return any(_are_same(path, file) for file in files)


def _are_same(one: Path, other: Path) -> bool:
    """Return whether two names are of one file, through links too."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # one of them is not there; reading or writing it will say so
        return False

"""``shardcost validate``: prediction against measurement."""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from shardcost.cli import options
from shardcost.collectives.calibration import by_profile, profile_in
from shardcost.errors import FormatError
from shardcost.evidence.recorded import as_toml, figures, read_record, worsened
from shardcost.evidence.shipped import is_shipped, joined, not_in, shipped, tables_in
from shardcost.evidence.validate import Validation, validate
from shardcost.files import write_whole
from shardcost.formats.tables import Table, read_table, write_table
from shardcost.report.validate import PREDICTIONS_HEAD, as_data, as_text, prediction_rows
from shardcost.request.errors import UsageError

_EXAMPLES: Final = """\
  shardcost validate --shipped
  shardcost validate collectives.csv --by cluster,library
  shardcost validate collectives.csv --by population --by size_band --json
  shardcost validate collectives.csv --predictions predicted.csv
  shardcost validate --shipped --against docs/validation/recorded.toml
  shardcost validate --shipped collectives.csv training.csv --page validation.md
"""
WORSE: Final = 1
"""The exit code when errors have grown beyond those on record."""


def parser() -> options.Parser:
    """Return the parser of this command."""
    text = "Predict every row of measured tables and say how far off the predictions are."
    parser = options.Parser("validate", text, _EXAMPLES)
    parser.add_argument("tables", nargs="*", metavar="TABLE.csv", help="measured tables (CSV)")
    parser.add_argument(
        "--folder",
        metavar="DIR",
        help="every measured table in a folder, or in its folder measured",
    )
    parser.add_argument(
        "--shipped",
        action="store_true",
        help="the measurements that ship with shardcost, less data sets that a named table has",
    )
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
    _add_page(parser)
    _add_record(parser)
    parser.add_argument(
        "--on",
        metavar="PROFILE.toml",
        help="predict the profile's system by the profile, other systems as ever",
    )
    parser.add_argument(
        "--ignore-versions",
        action="store_true",
        help="predict serving engines by their newest kernels, not by the version in dataset",
    )
    return parser


def _add_page(parser: options.Parser) -> None:
    parser.add_argument(
        "--page",
        metavar="FILE.md",
        help="write a page on these tables, one of each kind: errors by every split, other models,"
        " pictures (in a folder beside it; needs matplotlib), cross-validation (needs SciPy, takes"
        " minutes)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a page without cross-validation: seconds, no SciPy"
    )


def _add_record(parser: options.Parser) -> None:
    parser.add_argument(
        "--against",
        metavar="FILE.toml",
        help="exit with 1 and a line for each error that grew by more than a tenth since --record",
    )
    parser.add_argument(
        "--record",
        metavar="FILE.toml",
        help="write the errors by table and data set, for --against",
    )


def run(given: Namespace) -> int:
    """Read the tables, predict them, print the report."""
    _check(given)
    named = [read_table(Path(name)) for name in given.tables] + _tables_in(given.folder)
    tables = named + (not_in(named, shipped()) if given.shipped else [])
    if given.predictions is not None and len(tables) > 1:
        raise UsageError("--predictions is for one table; give one")
    _check_kinds(given, named, tables)
    recorded = None if given.against is None else read_record(Path(given.against))
    targets = {
        option: _target(option, getattr(given, option[2:]), named)
        for option in ("--predictions", "--page", "--record")
    }
    with _rested_on(given.on):
        found = [
            validate(table, _columns(given.by), ignore_versions=given.ignore_versions)
            for table in tables
        ]
    if targets["--predictions"] is not None:
        write_table(targets["--predictions"], PREDICTIONS_HEAD, prediction_rows(found[0]))
    if targets["--page"] is not None:
        _write_page(given, named, tables)
    if targets["--record"] is not None:
        write_whole(targets["--record"], as_toml(figures(found)))
    worse = [] if recorded is None else worsened(figures(found), recorded)
    _report(given, found, worse)
    return WORSE if worse else 0


def _rested_on(profile: str | None) -> AbstractContextManager[None]:
    """Return within what to predict: by a user's own constants where there is a profile."""
    return nullcontext() if profile is None else by_profile(profile_in(profile))


def _check(given: Namespace) -> None:
    """Raise for options that do not go together."""
    if not given.tables and not given.shipped and given.folder is None:
        raise UsageError("arguments are required: TABLE.csv, --folder or --shipped")
    if given.against is not None and given.record is not None:
        raise UsageError("--against and --record: compare first, then record")
    if given.on is not None and given.page is not None:
        raise UsageError("--on is for figures, not for a --page on the catalog")
    if given.quick and given.page is None:
        raise UsageError("--quick is for --page")


def _check_kinds(given: Namespace, named: list[Table], tables: list[Table]) -> None:
    """Raise where tables share a kind that has one place: on a page, what ships is joined to it."""
    for option, all_of in (("--page", named), ("--against", tables), ("--record", tables)):
        if getattr(given, option[2:]) is not None:
            _refuse_two_of_a_kind(option, all_of)


def _tables_in(name: str | None) -> list[Table]:
    """Return the tables of a folder, and say which of its files are none."""
    if name is None:
        return []
    found = tables_in(Path(name))
    for complaint in found.left_out:
        _say(f"left out: {complaint}")
    return found.tables


def _write_page(given: Namespace, named: list[Table], tables: list[Table]) -> None:
    """Write a page and its pictures, the page last: it shows nothing that is not there."""
    from shardcost.report.validation_page import Origin, page, picture_folder

    shipped_rows = sum(table.rows for table in tables if is_shipped(table))
    origin = Origin(
        shipped_rows=shipped_rows if given.shipped else None,
        named=bool(named),
        refits=not given.quick,
    )
    made = page(joined(tables), given.page, _say, origin)
    folder = picture_folder(given.page)
    if made.pictures:
        make_folder(folder)
    for name, content in made.pictures.items():
        write_whole(folder / name, content)
    write_whole(Path(given.page), made.text)


def make_folder(folder: Path) -> None:
    """Make a folder where there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FormatError(str(folder), f"cannot be made: {error.strerror or error}") from None


def _report(given: Namespace, found: list[Validation], worse: list[str]) -> None:
    if given.json:
        more = {} if given.against is None else {"worse": worse}
        options.print_json(as_data(found) | more)
    else:
        print(as_text(found))
    for line in worse:
        _say(f"worse than on record: {line}")
    if given.against is not None and not worse:
        _say(f"no error is larger than on record ({given.against})")


def _columns(words: list[str]) -> list[str]:
    """Return the columns of ``--by a,b``, ``--by a b`` or ``--by a --by b``, each once."""
    return list(dict.fromkeys(name.strip() for word in words for name in word.split(",")))


def _target(option: str, name: str | None, tables: list[Table]) -> Path | None:
    """Return the file that an option asks to write, which is none of the tables."""
    if name is None:
        return None
    if any(_are_same(Path(name), table.path) for table in tables):
        raise UsageError(f"{option} {name} is the measured table itself")
    return Path(name)


def _refuse_two_of_a_kind(option: str, tables: list[Table]) -> None:
    """Raise where two tables would have the same place on a page or on record."""
    kinds = [table.kind for table in tables]
    twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
    if twice is not None:
        raise UsageError(f"{option} is for one table of each kind; there are two of {twice}")


def _say(text: str) -> None:
    """Tell what is being done, apart from the report."""
    print(text, file=sys.stderr, flush=True)


def _are_same(one: Path, other: Path) -> bool:
    """Return whether two names are of one file, through links too."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # one of them is not there; reading or writing it will say so
        return False

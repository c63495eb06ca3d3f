"""What the commands of the laboratory share: how they end, and which tables they read."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from shardcost.errors import BadValueError, ShardcostError
from shardcost.formats.tables import Table, read_table
from shardcost.validate.shipped import not_in, shipped, tables_in

Say = Callable[[str], None]


def say(text: str) -> None:
    """Print what is being done, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def ended(main: Callable[[], int | None]) -> None:
    """Run a command and end the process; an error is one line and exit code 2."""
    try:
        sys.exit(main())
    except (ShardcostError, OSError) as error:
        say(str(error))
        sys.exit(2)


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser that describes its command by the first line of a module's docstring."""
    return argparse.ArgumentParser(description=(doc or "").splitlines()[0])


class Tables(NamedTuple):
    """Measured tables, and where they come from."""

    named: list[Table]
    shipped: list[Table]
    """Those that ship, without the data sets of named ones; none unless they were requested."""


def add_tables(parser: argparse.ArgumentParser) -> None:
    """Add the options by which tables are named."""
    parser.add_argument("tables", nargs="*", type=Path, metavar="TABLE.csv")
    parser.add_argument("--folder", type=Path, help="every measured table in a folder")
    parser.add_argument("--shipped", action="store_true", help="what ships with shardcost, too")


def tables_of(options: argparse.Namespace) -> Tables:
    """Return the tables that options name, with all rows of one kind in one table."""
    files = [path.resolve() for path in options.tables]
    again = next((path for path in files if files.count(path) > 1), None)
    if again is not None:
        raise BadValueError("tables", again.name, "different files (a row would count twice)")
    named = [read_table(path) for path in options.tables]
    if options.folder is not None:
        folder = tables_in(options.folder)
        for complaint in folder.left_out:
            say(f"left out: {complaint}")
        named += folder.tables
    named = joined(named)
    return Tables(named, not_in(named, shipped()) if options.shipped else [])


def joined(tables: Sequence[Table]) -> list[Table]:
    """Return one table of each kind, with the rows of all of that kind.

    A column that one of them lacks is blank in its rows. The first of a kind gives its path; rows
    of the files are counted on from one to the next.
    """
    kinds: dict[str, list[Table]] = {}
    for table in tables:
        kinds.setdefault(table.kind, []).append(table)
    return [_joined(alike) if len(alike) > 1 else alike[0] for alike in kinds.values()]


def _joined(tables: Sequence[Table]) -> Table:
    names = dict.fromkeys(name for table in tables for name in table.columns)
    columns: dict[str, list[str]] = {
        name: [cell for table in tables for cell in table.columns.get(name, [""] * table.rows)]
        for name in names
    }
    origins: list[int] = []
    for table in tables:
        start = max(origins, default=-1) + 1
        origins += [start + place for place in table.file_rows]
    return replace(tables[0], columns=columns, rows=len(origins), origins=origins)

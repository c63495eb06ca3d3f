"""Tables of errors in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardcost.errors import printable
from shardcost.validate.validation import GroupStats, Stats

NO_ROWS: Final = "The table has no such rows."
ERRORS: Final = ("median %", "mean %", "p90 %", "max %", "bias %")
INSIDE: Final = "inside %"
"""Rows within their 90 % interval."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: int) -> str:
    """Return a Markdown table whose last columns, `right` of them, are flush right.

    >>> print(table(("a", "b"), [("x", "1")], right=1))
    | a | b |
    |---|---:|
    | x | 1 |
    """
    rule = "---|" * (len(head) - right) + "---:|" * right
    return "\n".join([_line(head), f"|{rule}", *map(_line, rows)])


def rows_of(text: str) -> list[tuple[str, ...]]:
    r"""Return the cells of the first table in a text, as `table` wrote it, without its head.

    >>> rows_of("Errors:\n\n" + table(("a", "b"), [("x", "1"), ("y", "")], right=1))
    [('x', '1'), ('y', '')]
    """
    first = next((part for part in text.split("\n\n") if part.startswith("| ")), "")
    return [tuple(line[2:-2].split(" | ")) for line in first.splitlines()[2:]]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def errors(head: Sequence[str], rows: Sequence[tuple[Sequence[str], Stats]]) -> str:
    """Return a table of errors, a line for each key."""
    told = [INSIDE] if any(result.coverage_pct is not None for _, result in rows) else []
    lines = [(*key, *figures(result), *([inside(result)] if told else [])) for key, result in rows]
    return table((*head, "rows", *ERRORS, *told), lines, right=1 + len(ERRORS) + len(told))


def inside(result: Stats) -> str:
    """Return the share of rows within their interval as a cell."""
    return "" if result.coverage_pct is None else f"{result.coverage_pct:.1f}"


def figures(result: Stats) -> tuple[str, ...]:
    """Return the rows and the errors of some rows as cells; without rows there are no errors."""
    if result.bias_pct is None:
        return (f"{result.rows:,}", *[""] * len(ERRORS))
    sizes = (result.median_pct, result.mean_pct, result.p90_pct, result.max_pct)
    return (f"{result.rows:,}", *(f"{size:.1f}" for size in sizes), f"{result.bias_pct:+.1f}")


def grouped(groups: Sequence[GroupStats], together: Stats | None = None) -> str:
    """Return the table of groups of rows, under a line for all rows `together` if given."""
    if not groups:
        return NO_ROWS
    head = tuple(groups[0].key)
    first = [] if together is None else [(("all", *[""] * (len(head) - 1)), together)]
    rows = [(tuple(map(_shown, group.key.values())), group.stats) for group in groups]
    return errors(head, [*first, *rows])


def _shown(cell: str) -> str:
    """Return a cell without what would break a table."""
    return printable(cell).replace("|", "/") or "not stated"

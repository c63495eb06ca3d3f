"""``shardcost software``: what frameworks and engines the catalog holds."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Final

from shardcost import catalog
from shardcost.cli import options
from shardcost.report.describe import as_data
from shardcost.report.text import table
from shardcost.software import Software

_EXAMPLES: Final = """\
  shardcost software
  shardcost software vllm
  shardcost software --json
"""


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "software", "The frameworks and engines in the catalog, or one of them in full.", _EXAMPLES
    )
    parser.add_argument("name", nargs="?", help="a name or file.toml: show its choices, constants")
    return parser


def run(given: Namespace) -> int:
    """Print one framework or engine, or the list."""
    if given.name is not None:
        one = options.software(given.name)
        return options.print_report(given, lambda: as_data(one), lambda: _as_text(one))
    every = [catalog.software_named(name) for name in catalog.all_names("software")]
    if given.json:
        options.print_json({"software": as_data(tuple(every))})
        return 0
    rows = [
        (
            software.name,
            software.launch,
            software.library or "vendor's",
            "-" if software.fit is None else f"{software.fit.rows:,}",
            "-" if software.fit is None else f"{software.fit.median_pct:.1f} %",
            software.title,
        )
        for software in every
    ]
    print(table(("software", "launch", "collectives", "rows", "error", "what"), rows, right="34"))
    print("\nRows: measurements behind the constants; error: the median on them.")
    return 0


def _as_text(software: Software) -> str:
    values: dict[str, Any] = as_data(software)
    shown = {name: value for name, value in values.items() if name not in {"fit", "memory"}}
    shown |= {f"memory.{name}": value for name, value in values["memory"].items()}
    rows = [(name, str(value)) for name, value in shown.items() if value is not None]
    return f"{table(('field', 'value'), rows)}\n\nConstants: {software.fit_text}."

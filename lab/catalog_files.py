"""The catalog's files, written: fitted constants as TOML, by tomlkit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import tomlkit

from shardcost import catalog
from shardcost.files import write_whole

CATALOG: Final = Path(catalog.__file__).parent


def as_toml(comments: Sequence[str], content: Mapping[str, Any]) -> str:
    """Return the text of a file: lines of comment, then its content.

    >>> print(as_toml(["By a command."], {"system": "a", "bf16": {"x": 1.5, "fit": {"rows": 3}}}))
    # By a command.
    system = "a"
    <BLANKLINE>
    [bf16]
    x = 1.5
    <BLANKLINE>
    [bf16.fit]
    rows = 3
    <BLANKLINE>
    """
    document = tomlkit.document()
    for line in comments:
        document.add(tomlkit.comment(line))
    document.update(content)
    return tomlkit.dumps(document)


def inline(content: Mapping[str, Any]) -> Any:
    """Return a table that is written on one line."""
    table = tomlkit.inline_table()
    table.update(content)
    return table


def update(path: Path, changes: Mapping[tuple[str, ...], Any], target: Path | None = None) -> None:
    """Replace values of a file, each named by its tables and key; its comments stay.

    Args:
        path: The file.
        changes: The new values.
        target: Where to write the result; over the file itself if left out.
    """
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    for names, value in changes.items():
        table: Any = document
        for name in names[:-1]:
            table = table[name]
        table[names[-1]] = value
    write_whole(target or path, tomlkit.dumps(document))


def update_software(
    name: str, constants: Mapping[str, float], fit: Mapping[str, Any] | None, folder: Path
) -> None:
    """Replace the constants of a framework or an engine, and what is said of their fit if any."""
    changes: dict[tuple[str, ...], Any] = {
        ("constants", key): value for key, value in constants.items()
    }
    changes |= {("fit", key): value for key, value in (fit or {}).items()}
    file = f"{name}.toml"
    update(CATALOG / "software" / file, changes, folder / "software" / file)


def fit_of(source: str, errors_pct: tuple[float, float], rows: int) -> dict[str, Any]:
    """Return what is said of a fit: its rows, and the median and p90 error on them."""
    median, p90 = errors_pct
    return {
        "source": source,
        "rows": rows,
        "median_pct": round(median, 1),
        "p90_pct": round(p90, 1),
    }

"""Writes fitted constants into the catalog's files of frameworks and engines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from shardcost import catalog
from shardcost.files import quoted, write_whole
from shardcost.software import Fit

_ERRORS: Final = ("median_pct", "p90_pct")


def write_constants(name: str, constants: Mapping[str, float], fit: Fit) -> None:
    """Replace the constants in a software's file, and what is said of their fit."""
    path = Path(catalog.__file__).parent / "software" / f"{name}.toml"
    lines = [f"{key} = {value}" for key, value in constants.items()]
    errors = [f"rows = {fit.rows}", *(f"{key} = {getattr(fit, key):.1f}" for key in _ERRORS)]
    tables = {"constants": lines, "fit": [f"source = {quoted(fit.source)}", *errors]}
    text = path.read_text(encoding="utf-8")
    for title, entries in tables.items():
        table = "\n".join([f"[{title}]", *entries, ""])
        text = re.sub(rf"\[{title}\]\n(?:[^\[\n#].*\n)*", table, text)
    write_whole(path, text)

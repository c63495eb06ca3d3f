"""An estimate as a table for a spreadsheet: a line for each figure, with its unit and interval."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any, Final

from shardcost.estimate.result import Estimate
from shardcost.report.estimate import as_data

HEAD: Final = ("figure", "value", "unit", "low", "high")
_UNITS: Final = (
    ("tokens_per_s_per_gpu", "tokens/s/GPU"),
    ("tokens_per_s_per_user", "tokens/s"),
    ("tokens_per_s", "tokens/s"),
    ("_s", "s"),
    ("bytes", "bytes"),
    ("_j", "J"),
    ("flops", "FLOP"),
    ("flops_full_attention", "FLOP"),
)
"""How the name of a figure ends, and its unit; shares and counts have none."""
_SECONDS: Final = ("parts.", "compute.by_kind.")
_BYTES: Final = ("memory.by_kind.", "memory.stages.")
_LEFT_OUT: Final = ("intervals", "interval", "low_s", "high_s")
"""Of the data: what has columns of its own."""


def as_csv(found: Estimate) -> str:
    """Return every number and word of an estimate's report, one to a line."""
    data = as_data(found)
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(HEAD)
    for name, value in _flat({k: v for k, v in data.items() if k not in _LEFT_OUT}):
        known = data["intervals"].get(name, {})
        shown = _harmless(value) if isinstance(value, str) else value
        lines.writerow((name, shown, _unit(name, value), known.get("low"), known.get("high")))
    return text.getvalue()


def _harmless(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula: a model's name may be anything."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def _flat(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested data with their paths; what is absent is left out."""
    if isinstance(data, Mapping):
        for key, each in data.items():
            yield from _flat(each, f"{path}.{key}" if path else key)
    elif isinstance(data, list):
        for number, each in enumerate(data):
            yield from _flat(each, f"{path}.{number}")
    elif data is not None:
        yield path, data


def _unit(name: str, value: Any) -> str:
    if isinstance(value, str | bool):
        return ""
    if name.startswith(_SECONDS):
        return "s"
    if name.startswith(_BYTES):
        return "bytes"
    return next((unit for end, unit in _UNITS if name.endswith(end)), "")

"""A validation split by columns, as often as wanted: its rows are predicted once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Final

import numpy as np

from shardcost.evidence.predictions import Floats
from shardcost.evidence.validate import GroupStats, Validation, measurements, stats
from shardcost.formats.tables import Row

_BOUND: Final = re.compile(r"(<=|>)?([0-9.]+)")
"""A number, or a band of numbers."""


def errors_pct(found: Validation) -> Floats:
    """Return the signed error of every row of a validation; NaN where there is none."""
    column: str = import_module(f"shardcost.evidence.{found.table.kind}").MEASURED
    measured, _ = measurements(found.table, column)
    errors: Floats = 100 * (found.predictions.values / measured - 1)
    return errors


def split(found: Validation, by: Sequence[str]) -> tuple[GroupStats, ...]:
    """Return the errors of the rows that share the values of some columns, own or derived."""
    module = import_module(f"shardcost.evidence.{found.table.kind}")
    derived: Mapping[str, Callable[[Row], str]] = module.DERIVED
    errors = errors_pct(found)
    members: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(found.table.records()):
        if not np.isnan(errors[i]):
            key = tuple(row[name] if name in row else derived[name](row) for name in by)
            members.setdefault(key, []).append(i)
    return tuple(
        GroupStats(
            dict(zip(by, key, strict=True)), stats(errors[members[key]], found.inside[members[key]])
        )
        for key in sorted(members, key=lambda key: [rank(value) for value in key])
    )


def rank(value: str) -> tuple[float, bool, str]:
    """Return what puts values in order: numbers and bands of numbers by size, then text.

    >>> sorted([">1024", "<=128", "a100", "<=1024", "16"], key=rank)
    ['16', '<=128', '<=1024', '>1024', 'a100']
    """
    found = _BOUND.fullmatch(value)
    if found is None:
        return np.inf, False, value
    return float(found[2]), found[1] == ">", value

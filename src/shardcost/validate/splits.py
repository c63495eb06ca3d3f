"""A validation split by columns, as often as wanted: its rows are predicted once."""

from __future__ import annotations

from collections.abc import Sequence

from shardcost.validate.predictions import Floats
from shardcost.validate.validation import GroupStats, Validation, grouped


def errors_pct(found: Validation) -> Floats:
    """Return the signed error of every row of a validation; NaN where there is none."""
    errors: Floats = 100 * (found.predictions.values / found.measured - 1)
    return errors


def split(found: Validation, by: Sequence[str]) -> tuple[GroupStats, ...]:
    """Return the errors of the rows that share the values of some columns, own or derived."""
    return grouped(found.table, by, errors_pct(found), found.inside)

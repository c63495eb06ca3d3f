"""Prediction against measurement: the error on every row of a table, overall and by group.

The error of a row is its distance from the measurement in percent of the measurement. Rows that
cannot be predicted are counted by reason; nothing is left out in silence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from shardcost.errors import BadValueError, ShardcostError
from shardcost.formats.tables import Table, number
from shardcost.machine import CATALOG, Fitted
from shardcost.validate import collectives
from shardcost.validate.intervals import factors_of_rows
from shardcost.validate.predictions import Derived, Floats, Predictions, reason_of

FIGURE: Final = "figure"
"""The column that names what was measured, where tables have several figures a row."""
_COLUMNS_SHOWN: Final = 40
_BOUND: Final = re.compile(r"(<=|>)?([0-9.]+)")
"""A number, or a band of numbers."""
_MEASURABLE: Final = (1e-6, 1e15)
"""Bounds of a measurement, in any unit: percentages of it stay finite."""
_RULE: Final = "a number above 1e-6 and at most 1e15, or empty"


@dataclass(frozen=True)
class Stats:
    """Errors of some rows, in percent of the measurement; None where there are no rows."""

    rows: int
    median_pct: float | None = None
    mean_pct: float | None = None
    p90_pct: float | None = None
    max_pct: float | None = None
    bias_pct: float | None = None
    """The mean with signs: above 0 where predictions are too slow."""
    coverage_pct: float | None = None
    """Share of the rows that are inside the 90 % intervals of their predictions."""


@dataclass(frozen=True)
class GroupStats:
    """Errors of the rows that share the values of some columns."""

    key: Mapping[str, str]
    stats: Stats


class Counts(NamedTuple):
    """How many rows there are, and what became of them."""

    rows: int
    predicted: int
    unmeasured: int
    """Of the predicted ones, those without a measurement to compare with."""
    skipped: Mapping[str, int]
    """The others, by reason, most first."""


@dataclass(frozen=True, eq=False)
class Validation:
    """A table's predictions and their errors."""

    table: Table
    predictions: Predictions
    measured: Floats
    """The measurements; NaN where they are left blank or make no sense."""
    low: Floats
    """Where the 90 % interval of each prediction begins; NaN where a row is skipped."""
    high: Floats
    """Where it ends."""
    inside: NDArray[np.bool_]
    """Which measurements are within."""
    skipped: Mapping[str, int]
    """How many rows are not predicted, by reason, most first; of a table with several figures a
    row, how many figures."""
    unmeasured: int
    """Rows that are predicted but have nothing to compare with: their measurement is left blank."""
    overall: Stats
    """Of all rows, or of the headline."""
    headline: str
    """The figure that stands for the table, of kinds with several; blank where all rows do."""
    groups: tuple[GroupStats, ...]
    extra: Mapping[str, Any]
    """What tables of the kind have beyond errors: outcomes predicted right, regret."""

    @property
    def predicted(self) -> int:
        """How many rows are predicted."""
        return self.table.rows - sum(self.skipped.values())

    @property
    def counts(self) -> Counts:
        """How many rows of the file there are, and what became of them.

        A row with several figures is predicted where one of them is, and unmeasured where none
        has a measurement; of one that is skipped, the first reason counts.
        """
        predicted: dict[int, bool] = {}
        reasons: dict[int, str] = {}
        each = zip(self.table.file_rows, self.predictions.reasons, self.measured, strict=True)
        for row, reason, measured in each:
            if reason:
                reasons.setdefault(row, reason)
            else:
                predicted[row] = predicted.get(row, False) or bool(np.isfinite(measured))
        skipped = Counter(reason for row, reason in reasons.items() if row not in predicted)
        return Counts(
            rows=len(predicted) + skipped.total(),
            predicted=len(predicted),
            unmeasured=sum(not measured for measured in predicted.values()),
            skipped=dict(skipped.most_common()),
        )


class Kind(Protocol):
    """How tables of one kind are validated: what the module of its name holds."""

    MEASURED: str
    """The column with the measurement."""
    DERIVED: Derived
    """Columns that follow from others, of rows that were predicted."""

    def predictions(self, table: Table, fitted: Fitted) -> Predictions:
        """Return the prediction of every row."""

    # A kind may have `extra(table, values, measured)` too: what to report beyond errors; of those
    # with several figures, `HEADLINE`: the one whose errors stand for the table; `BY`: the columns
    # that rows are grouped by where nothing else is wanted; `LEAST`: what no figure can be below.


def kind_of(table: Table) -> Kind:
    """Return how tables of a table's kind are validated."""
    return cast("Kind", import_module(f"shardcost.validate.{table.kind}"))


def validate(
    table: Table, by: Sequence[str] = (), *, ignore_versions: bool = False, fitted: Fitted = CATALOG
) -> Validation:
    """Return the errors of a table's predictions, overall and for each group of rows.

    Args:
        table: What was measured.
        by: Columns whose values make a group: of the table, or derived (`columns_of`). By default
            none, or the figures of a kind with several.
        ignore_versions: Predict every row by a library's newest version.
        fitted: The constants to predict by.
    """
    known = columns_of(table)
    for name in by:
        if name not in known:
            named = ", ".join(known[:_COLUMNS_SHOWN]) + ", …" * (len(known) > _COLUMNS_SHOWN)
            raise BadValueError(
                "--by", name, f"a column of {table.path} ({' '.join(named.split())})"
            )
    kind = kind_of(table)
    headline = getattr(kind, "HEADLINE", "")
    shown = _of_figure(headline, table)
    by = by or getattr(kind, "BY", (FIGURE,) if FIGURE in table.columns else ())
    versions_dropped = ignore_versions and table.kind == "collectives"
    priced = collectives.without_versions(table) if versions_dropped else table
    predicted = kind.predictions(priced, fitted)
    measured, complaints = measurements(table, kind.MEASURED)
    reasons = [first or second for first, second in zip(predicted.reasons, complaints, strict=True)]
    values = np.where([bool(reason) for reason in reasons], np.nan, predicted.values)
    errors = 100 * (values / measured - 1)
    factors = factors_of_rows(priced, np.isfinite(values), fitted=fitted)
    low, high = (values * factor for factor in factors)
    low = np.maximum(low, getattr(kind, "LEAST", -np.inf))
    inside = (low <= measured) & (measured <= high)
    skipped = Counter(reason for reason in reasons if reason)
    compared = int(np.isfinite(errors).sum())
    return Validation(
        table=table,
        predictions=Predictions(values, reasons),
        measured=measured,
        low=low,
        high=high,
        inside=inside,
        skipped=dict(skipped.most_common()),
        unmeasured=table.rows - skipped.total() - compared,
        overall=stats(errors[shown], inside[shown]),
        headline=headline,
        groups=grouped(table, by, _counted(by, table, headline, errors), inside) if by else (),
        extra=kind.extra(table, values, measured) if hasattr(kind, "extra") else {},  # noqa: S610
    )


def _of_figure(name: str, table: Table) -> NDArray[np.bool_]:
    """Return which rows are of a figure; all where none is named."""
    if not name:
        return np.ones(table.rows, dtype=bool)
    return np.array([figure == name for figure in table.columns[FIGURE]], dtype=bool)


def _counted(by: Sequence[str], table: Table, headline: str, errors: Floats) -> Floats:
    """Return the errors that groups are made of: unless they are by figure, of the headline."""
    return errors if FIGURE in by else np.where(_of_figure(headline, table), errors, np.nan)


def of_headline(validation: Validation) -> Validation:
    """Return the validation of the rows that stand for the table: all, or those of one figure."""
    if not validation.headline:
        return validation
    shown = _of_figure(validation.headline, validation.table)
    return of_rows(validation, np.flatnonzero(shown).tolist())


def of_rows(validation: Validation, places: Sequence[int]) -> Validation:
    """Return the validation of some rows, without predicting them again.

    Its groups and what it has beyond errors stay those of the whole table.
    """
    reasons = [validation.predictions.reasons[i] for i in places]
    values, measured = validation.predictions.values[places], validation.measured[places]
    inside = validation.inside[places]
    skipped = Counter(reason for reason in reasons if reason)
    return replace(
        validation,
        table=validation.table.at(places),
        predictions=Predictions(values, reasons),
        measured=measured,
        low=validation.low[places],
        high=validation.high[places],
        inside=inside,
        skipped=dict(skipped.most_common()),
        unmeasured=int((np.isfinite(values) & np.isnan(measured)).sum()),
        overall=stats(100 * (values / measured - 1), inside),
    )


def columns_of(table: Table) -> list[str]:
    """Return the columns that a table's rows can be grouped by: its own and the derived ones."""
    return [*table.columns, *(n for n in kind_of(table).DERIVED if n not in table.columns)]


def stats(errors_pct: Floats, inside: NDArray[np.bool_] | None = None) -> Stats:
    """Return what signed errors amount to; NaN marks rows without one.

    >>> found = stats(np.array([-10.0, 20.0, np.nan]), np.array([True, False, False]))
    >>> found.rows, found.median_pct, found.bias_pct, found.coverage_pct
    (2, 15.0, 5.0, 50.0)

    Args:
        errors_pct: Errors, in percent of the measurement.
        inside: Which measurements are inside the intervals of their predictions, where known.
    """
    known = ~np.isnan(errors_pct)
    signed = errors_pct[known]
    if not signed.size:
        return Stats(0)
    sizes = np.abs(signed)
    return Stats(
        rows=signed.size,
        median_pct=float(np.median(sizes)),
        mean_pct=float(np.mean(sizes)),
        p90_pct=float(np.percentile(sizes, 90)),
        max_pct=float(np.max(sizes)),
        bias_pct=float(np.mean(signed)),
        coverage_pct=None if inside is None else float(100 * np.mean(inside[known])),
    )


def measurements(table: Table, column: str) -> tuple[Floats, list[str]]:
    """Return the measurements, NaN where left blank, and what is wrong with the others."""
    values = np.full(table.rows, np.nan)
    complaints = [""] * table.rows
    for i, text in enumerate(table.columns[column]):
        try:
            if text:
                values[i] = number({column: text}, column, *_MEASURABLE, _RULE)
        except ShardcostError as error:
            complaints[i] = reason_of(error)
    return values, complaints


def grouped(
    table: Table, by: Sequence[str], errors_pct: Floats, inside: NDArray[np.bool_]
) -> tuple[GroupStats, ...]:
    """Return the errors of every group that has any, in the order of its key."""
    derived = kind_of(table).DERIVED
    members: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(table.records()):
        if not np.isnan(errors_pct[i]):
            key = tuple(row[name] if name in row else derived[name](row) for name in by)
            members.setdefault(key, []).append(i)
    return tuple(
        GroupStats(
            dict(zip(by, key, strict=True)), stats(errors_pct[members[key]], inside[members[key]])
        )
        for key in sorted(members, key=lambda key: [rank(value) for value in key])
    )


def errors_pct(validation: Validation) -> Floats:
    """Return the signed error of every row of a validation; NaN where there is none."""
    return 100 * (validation.predictions.values / validation.measured - 1)


def split(validation: Validation, by: Sequence[str]) -> tuple[GroupStats, ...]:
    """Return the errors of the rows that share the values of some columns, own or derived.

    Of a table with a headline, they are of that figure unless `by` has the figures themselves.
    """
    table = validation.table
    errors = _counted(by, table, validation.headline, errors_pct(validation))
    return grouped(table, by, errors, validation.inside)


def rank(value: str) -> tuple[float, bool, str]:
    """Return what puts values in order: numbers and bands of numbers by size, then text.

    >>> sorted([">1024", "<=128", "a100", "<=1024", "16"], key=rank)
    ['16', '<=128', '<=1024', '>1024', 'a100']
    """
    bands = list(collectives.SIZE_BANDS)
    if value in bands:
        return float(bands.index(value)), False, value
    match = _BOUND.fullmatch(value)
    if match is None:
        return np.inf, False, value
    return float(match[2]), match[1] == ">", value

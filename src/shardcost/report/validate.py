"""The report of a validation: errors by group and skipped rows by reason, as text and as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from numpy import isnan

from shardcost.report.describe import attributes
from shardcost.report.text import paragraph, table
from shardcost.validate.validation import FIGURE, Counts, Stats, Validation

_HEAD: Final = ("rows", "median %", "mean %", "p90 %", "max %", "bias %", "inside %", "of")
_LEGEND: Final = (
    "Errors: |predicted - measured| in percent of measured; p90: nine rows of ten are closer;"
    " bias: the mean with its sign, above 0 where predictions are too slow; inside: rows within the"
    " 90 % intervals of their predictions."
)
_PREDICTED: Final = ("predicted", "low", "high", "reason")
_METRIC: Final = "metric"
"""How files of predictions call what tables call a figure: the name of the measured column."""
_WHOSE: Final = ("run", "request")
"""Columns by which lines of a file of predictions are known beside their row, where a table has
both."""
_QUESTIONS_SHOWN: Final = 12


def _regret(regret: Mapping[str, Any]) -> Iterator[str]:
    """Yield how well layouts are ranked, and the questions in which they are ranked worst."""
    if not regret["groups"]:
        yield "Regret: no three layouts of one question."
        return
    median = regret["spearman_median"]
    ranks = "" if median is None else f" Ranks correlate by {median:.2f} (Spearman, median)."
    yield paragraph(
        f"Regret: of {regret['groups']:,} questions with three layouts or more, the layout ranked"
        f" first was {regret['median_pct']:.1f} % (median), {regret['p90_pct']:.1f} % (p90) slower"
        f" than the best measured one.{ranks}",
        "  ",
    )
    groups, lines = regret["by_group"], []
    for group in groups[:_QUESTIONS_SHOWN]:
        correlation = "" if group["spearman"] is None else f"{group['spearman']:.2f}"
        counts = (correlation, f"{group['layouts']:,}")
        lines.append((f"{group['regret_pct']:.1f}", *counts, _label(group["key"])))
    rest = len(groups) - len(lines)
    more = f"\n({rest:,} more with less regret)" if rest else ""
    columns = ", ".join(groups[0]["key"])
    yield table(("regret %", "spearman", "layouts", columns), lines, right="012") + more


def _layers(layers: Mapping[str, Any]) -> Iterator[str]:
    if not layers["rows"]:
        yield "Layers: none has all its parts."
        return
    yield paragraph(
        f"Layers: of {layers['rows']:,} sums over all parts of a layer, the error is"
        f" {layers['median_pct']:.1f} % (median), {layers['p90_pct']:.1f} % (p90).",
        "  ",
    )


def _allocated(stats: Mapping[str, Any]) -> Iterator[str]:
    if not stats["rows"]:
        yield "Allocated between steps: not measured."
        return
    yield paragraph(
        f"Allocated between steps: of {stats['rows']:,} rows, the error is"
        f" {stats['median_pct']:.1f} % (median), {stats['p90_pct']:.1f} % (p90),"
        f" {stats['max_pct']:.1f} % at most.",
        "  ",
    )


def _formula_alone(stats: Mapping[str, Any]) -> Iterator[str]:
    if stats["rows"]:
        yield paragraph(
            f"Without the profile's tables of residuals, by the formula alone: median error"
            f" {stats['median_pct']:.1f} %, p90 {stats['p90_pct']:.1f} %.",
            "  ",
        )


_EXTRA: Final[Mapping[str, Callable[[Any], Iterable[str]]]] = {
    "classified_pct": lambda pct: [f"Fits or runs out of memory, predicted right: {pct:.1f} %."],
    "formula_alone": _formula_alone,
    "regret": _regret,
    "layers": _layers,
    "allocated_bytes": _allocated,
}


def as_text(validations: Sequence[Validation]) -> str:
    """Return the report for a terminal."""
    parts = [part for each in validations for part in _parts(each)]
    return "\n\n".join([*parts, paragraph(_LEGEND, "  ")])


def as_data(validations: Sequence[Validation]) -> dict[str, Any]:
    """Return the report as plain data."""
    return {"tables": [_table_as_data(each) for each in validations]}


def prediction_lines(validation: Validation) -> Iterator[tuple[Any, ...]]:
    """Yield a file of predictions: its header, and a line for each row of the table.

    Of a table with several measured columns there is a line for each, with its name.
    """
    measured = validation.table
    whose = [name for name in _WHOSE if set(_WHOSE) <= set(measured.columns)]
    named = [FIGURE] if FIGURE in measured.columns else []
    yield ("row", *whose, *(_METRIC for _ in named), *_PREDICTED)
    known = (measured.columns[name] for name in (*whose, *named))
    values, reasons = validation.predictions
    ends = (values, validation.low, validation.high)
    for row, reason, *cells in zip(measured.file_rows, reasons, *ends, *known, strict=True):
        figures = ("" if isnan(figure) else f"{figure:.4f}" for figure in cells[: len(ends)])
        yield (row, *cells[len(ends) :], *figures, reason)


def _parts(validation: Validation) -> Iterator[str]:
    counts = _counted(validation.counts, "rows")
    if FIGURE in validation.table.columns:
        counts += f"; {_counted(_of_figures(validation), 'figures')}"
    yield paragraph(f"{validation.table.path}: {counts}", "  ")
    lines = [_line(validation.overall, validation.headline or "all")]
    lines += [_line(group.stats, _label(group.key)) for group in validation.groups]
    yield table(_HEAD, lines, right="0123456")
    for name, value in validation.extra.items():
        yield from _EXTRA[name](value)
    if validation.skipped:
        rows = [(f"{count:,}", reason) for reason, count in validation.skipped.items()]
        yield table(("skipped", "reason"), rows, right="0")


def _counted(counts: Counts, what: str) -> str:
    skipped = sum(counts.skipped.values())
    text = f"{counts.rows:,} {what}, {counts.predicted:,} predicted, {skipped:,} skipped"
    more = f", {counts.unmeasured:,} without a measurement" if counts.unmeasured else ""
    return text + more


def _of_figures(validation: Validation) -> Counts:
    """Return the counts of a table's figures, which are the rows of its validation."""
    return Counts(
        validation.table.rows, validation.predicted, validation.unmeasured, validation.skipped
    )


def _line(stats: Stats, label: str) -> tuple[str, ...]:
    figures = (stats.median_pct, stats.mean_pct, stats.p90_pct, stats.max_pct)
    bias = "" if stats.bias_pct is None else f"{stats.bias_pct:+.1f}"
    errors = ("" if x is None else f"{x:.1f}" for x in figures)
    inside = "" if stats.coverage_pct is None else f"{stats.coverage_pct:.1f}"
    return f"{stats.rows:,}", *errors, bias, inside, label


def _label(key: Mapping[str, str]) -> str:
    """Return the values of a group's key; a column's name stands in where a cell is blank.

    Characters that would steer the terminal are shown as question marks.
    """
    label = ", ".join(value or f"no {column}" for column, value in key.items())
    return "".join(letter if letter.isprintable() else "?" for letter in label)


def _table_as_data(validation: Validation) -> dict[str, Any]:
    several = FIGURE in validation.table.columns
    return {
        "table": str(validation.table.path),
        **attributes(validation.table, "kind"),
        **_counts_as_data(validation.counts),
        **({"figures": _counts_as_data(_of_figures(validation))} if several else {}),
        "overall": asdict(validation.overall),
        **validation.extra,
        "groups": [{"key": dict(g.key), **asdict(g.stats)} for g in validation.groups],
    }


def _counts_as_data(counts: Counts) -> dict[str, Any]:
    skipped = [{"reason": reason, "rows": rows} for reason, rows in counts.skipped.items()]
    return {**counts._asdict(), "skipped": skipped}

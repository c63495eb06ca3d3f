"""Why a figure is as it is: a formula, the values put in, who states them, and the error seen.

A `Why` holds its formula as an expression over the names of its terms, so that whoever doubts it
can put the terms in and compute the figure again; tests do. What is shown of it is made here: the
formula with its symbols, and the same with values and their units.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shardcost.catalog.errors import CONFIDENCE_PCT
from shardcost.cluster import Cluster
from shardcost.receipt import Term, identifiers, in_unit, shown

_ADDRESS: Final = re.compile(r",? https?://[^ )]*")
_DATA_SETS: Final = re.compile(r"(measured rows of )([^;(]*)")


@dataclass(frozen=True, slots=True)
class Part:
    """A figure that another one is made of."""

    figure: str
    name: str
    value: float
    """What it contributes."""
    unit: str

    @property
    def text(self) -> str:
        """The contribution with its unit."""
        return in_unit(self.value, self.unit)


@dataclass(frozen=True, slots=True)
class Error:
    """How far measurements were from predictions like a figure's."""

    words: str
    like: str
    """Which rows, in words."""
    rows: int
    low: float | None = None
    """Nine of ten measurements of this very figure lie above; None where no rows are of it."""
    high: float | None = None
    median_pct: float | None = None
    """Median error of the fit of the constants behind it."""
    confidence_pct: int = CONFIDENCE_PCT


@dataclass(frozen=True, slots=True)
class Why:
    """Where one figure comes from."""

    figure: str
    title: str
    value: float
    unit: str
    formula: str
    """In symbols."""
    numbers: str
    """The same with values and their units."""
    expression: str
    """The same over the names of the terms, as Python writes it."""
    terms: tuple[Term, ...]
    sources: tuple[str, ...]
    error: Error | None
    parts: tuple[Part, ...]
    words: str
    """The same in a sentence or two."""

    @property
    def text(self) -> str:
        """The value with its unit."""
        return in_unit(self.value, self.unit)


def reason(
    figure: str,
    title: str,
    value: Any,
    unit: str,
    expression: str,
    terms: Iterable[Term],
    *,
    parts: Iterable[Part] = (),
    error: Error | None = None,
    sources: Iterable[str] = (),
    words: str = "",
) -> Why:
    """Return why a figure is as it is, its formula shown with symbols and with values."""
    every = tuple(terms)
    said = {each.name: each.text for each in every}
    stated = (each.source for each in every)
    return Why(
        figure=figure,
        title=title,
        value=float(value),
        unit=unit,
        formula=shown(expression, {each.name: each.symbol for each in every}),
        numbers=shown(expression, said),
        expression=expression,
        terms=every,
        sources=tuple(dict.fromkeys(filter(None, (*stated, *sources)))),
        error=error,
        parts=tuple(parts),
        words=words,
    )


def total(
    figure: str,
    title: str,
    value: Any,
    unit: str,
    parts: Sequence[Part],
    *,
    terms: Iterable[Term] = (),
    meanings: Mapping[str, str] | None = None,
    **others: Any,
) -> Why:
    """Return why a figure is that is the sum of others; those that are nothing are left out."""
    counted = [each for each in parts if each.value != 0]
    names = identifiers([each.name for each in counted])
    added = [
        Term(name, each.value, each.unit, (meanings or {}).get(each.figure, ""))
        for name, each in zip(names, counted, strict=True)
    ]
    expression = " + ".join(names) or "0"
    return reason(figure, title, value, unit, expression, [*added, *terms], parts=counted, **others)


def brief(source: object) -> str:
    """Return a source without its address, and of many data sets the first."""
    text = _ADDRESS.sub("", str(source))
    sets = _DATA_SETS.search(text)
    if sets is None or sets[2].count(", ") < 2:
        return text
    names = sets[2].split(", ")
    return text.replace(sets[2], f"{names[0]} and {len(names) - 1} other sets")


def stated_by(cluster: Cluster, figure: str) -> str:
    """Return who states a figure of a cluster's datasheet; nothing where nobody does."""
    source = cluster.sources.get(figure)
    return str(source) if source else ""


def cited(cluster: Cluster, figure: str) -> str:
    """Return who states a figure of the datasheet, in brackets."""
    source = stated_by(cluster, figure)
    return f" ({brief(source)})" if source else ""


def spread(low: float, high: float) -> str:
    """Return two factors in percent.

    >>> spread(0.9, 1.25)
    '-10 % to +25 %'
    """
    return f"{100 * (low - 1):+.0f} % to {100 * (high - 1):+.0f} %"

"""Whole runs as they are predicted by frameworks and engines fitted without some of them.

The fits are those of `refit_frameworks` and `refit_engines`, to a sample of the rest; what is
predicted are all rows that were left out, those among them that no fit uses too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from lab import refit_engines, refit_frameworks
from shardcost.calibrate.descent import descend, in_seconds
from shardcost.errors import ShardcostError
from shardcost.formats.tables import Row, Table
from shardcost.software import Software
from shardcost.validate import inference, training
from shardcost.validate.predictions import Floats

Say = Callable[[str], None]
_TRAINS_WITH, _SERVES_WITH = "megatron_core", "vllm"
"""What tables' frameworks and engines are taken for where the catalog does not have them."""
MOST_ROWS: Final = 40
"""Of a data set, taken evenly, in a fit of a few constants."""


def refitted_frameworks(table: Table, column: str, say: Say) -> Floats:
    """Return the step time of every run, its framework fitted without the runs alike in a column.

    Where no other run of the framework is left, there is nothing to fit: NaN.
    """
    rows = list(table.records())
    names = np.array([training.software_of(row).name for row in rows])
    values = np.full(len(rows), np.nan)
    for name in refit_frameworks.FITTED:
        places = np.flatnonzero(names == name)
        cells = np.array([rows[i].get(column, "") for i in places])
        tried = _Trials(_sample([rows[i] for i in places]))
        for cell in np.unique(cells):
            out, kept = places[cells == cell], tried.without(column, str(cell))
            if not kept.any():
                continue
            say(f"training: {name} without {cell}, {len(out)} rows")
            constants = tried.fitted(name, kept)
            values[out] = [_step_s(rows[i], constants) for i in out]
    return values


class _Trials:
    """Runs of one framework, and what each trial of constants made of them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._known: dict[tuple[float, ...], Floats] = {}

    def without(self, column: str, cell: str) -> Any:
        return np.array([row.get(column, "") != cell for row in self._rows], dtype=bool)

    def fitted(self, name: str, kept: Any) -> dict[str, float]:
        sets = np.array([row.get("dataset", "") for row in self._rows])[kept]
        weights = refit_frameworks.weights_of(sets.tolist())

        def lossy(trial: dict[str, float]) -> float:
            found = self._ratios(trial)[kept]
            return refit_frameworks.loss_of_sets(found, sets, weights)

        return descend(lossy, refit_frameworks.FITTED[name], refit_frameworks.PULL)

    def _ratios(self, trial: Mapping[str, float]) -> Floats:
        key = tuple(float(f"{value:.9g}") for value in trial.values())
        if key not in self._known:
            self._known[key] = refit_frameworks.ratios(self._rows, trial)
        return self._known[key]


def _step_s(row: Row, constants: Mapping[str, float]) -> float:
    measured = row[training.MEASURED]
    if not measured:
        return np.nan
    return float(refit_frameworks.ratios([row], constants)[0]) * float(measured)


def _sample(rows: Sequence[Row]) -> list[Row]:
    """Return rows of each data set, evenly."""
    sets: dict[str, list[Row]] = {}
    for row in rows:
        sets.setdefault(row.get("dataset", ""), []).append(row)
    return [row for own in sets.values() for row in own[:: -(-len(own) // MOST_ROWS)]]


def refitted_engines(table: Table, column: str, say: Say) -> Floats:
    """Return the figure of every run, its engine fitted without the runs alike in a column."""
    rows = list(table.records())
    values = np.full(len(rows), np.nan)
    asked = _asked(rows)
    evidence = refit_engines.evidence_of(table, lambda row: row["cluster"] != refit_engines.DEVICE)
    for name in refit_engines.FITTED:
        own = {q: places for q, places in asked.items() if q.software.name == name}
        places = [i for each in own.values() for i in each]
        known = evidence.get(name)
        for cell in sorted({rows[i].get(column, "") for i in places}):
            rest = None if known is None else _thinned(known.where(_differs(column, cell)))
            if rest is None or not rest.rows:
                continue
            say(f"inference: {name} without {cell}")
            given: Any = in_seconds(refit_engines.fitted(name, rest))
            for question, members in own.items():
                out = [i for i in members if rows[i].get(column, "") == cell]
                if out:
                    software = replace(question.software, **given)
                    found = question._replace(software=software)
                    values[out] = inference.answers(found, [rows[i] for i in out])
    return values


def _asked(rows: Sequence[Row]) -> dict[inference.Question, list[int]]:
    asked: dict[inference.Question, list[int]] = {}
    for i, row in enumerate(rows):
        try:
            asked.setdefault(inference.question_of(row), []).append(i)
        except ShardcostError:
            continue
    return asked


def _differs(column: str, cell: str) -> Callable[[Row], bool]:
    return lambda row: row.get(column, "") != cell


def _thinned(evidence: refit_engines.Evidence) -> refit_engines.Evidence:
    kept = {id(row) for row in _sample(evidence.rows)}
    return evidence.where(lambda row: id(row) in kept)


def by_usual_framework(table: Table) -> Floats:
    """Return the step time of every run by the framework that unknown ones are taken for.

    Of runs of other frameworks only: NaN of its own.
    """
    usual = Software.named(_TRAINS_WITH)
    rows = table.records()
    return np.array(
        [
            np.nan if training.software_of(row).name == usual.name else _by(row, usual)
            for row in rows
        ]
    )


def _by(row: Row, software: Software) -> float:
    return float(training.estimate_of(row, software).time_s)


def by_usual_engine(table: Table) -> Floats:
    """Return the figure of every run by the engine that unknown ones are taken for.

    Of runs of other engines only: NaN of its own, and of figures that it does not have.
    """
    usual = Software.named(_SERVES_WITH)
    rows = list(table.records())
    values = np.full(len(rows), np.nan)
    for question, members in _asked(rows).items():
        if not question.software.name.startswith((usual.name, "tokenweave")):
            found = question._replace(software=usual)
            values[members] = inference.answers(found, [rows[i] for i in members])
    return values

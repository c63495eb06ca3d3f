"""What fits are worth on rows that they have not seen: kernels, memory, frameworks and engines.

A fold leaves out one value of a column (a model, a tensor-parallel degree, a data set, a device),
fits the constants to the rest as the catalog's were, and tries them on what was left out.
Collectives have folds of their own (`lab.cross_validation`).

Runs of frameworks and engines take milliseconds each to price, and their fits hundreds of trials.
So the trials of all folds are remembered: most folds try the same constants on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lab import memory_fit, refit_attention, refit_engines, refit_frameworks
from lab import refit_gemm as refit_products
from lab.other_constants import inherited_constants
from shardcost.calibrate.descent import descend
from shardcost.formats.tables import Row, Table
from shardcost.kernels.gemm import gemm_section
from shardcost.memory.policy import habits_named
from shardcost.validate import memory
from shardcost.validate.gemm import device_of
from shardcost.validate.predictions import Floats
from shardcost.validate.splits import errors_pct
from shardcost.validate.validation import Validation, measurements

Say = Callable[[str], None]
Mask = NDArray[np.bool_]
MOST_ROWS: Final = 150
"""Of a framework or an engine; of more, some are taken evenly, to fit and to try."""
_PARTS: Final = 6
"""Into how many the numbers of heads are parted: a fit to a part takes seconds."""
_ANY_FRAMEWORK: Final = "nanotron"
"""Whose memory was measured."""
_MEMORY_MEASURED: Final = (memory.MEASURED, "mem_res_GB")
"""Both are needed for a fit."""


class Fold(NamedTuple):
    """Errors in percent, signed, of one set of constants."""

    of: str
    left_out: str
    seen_pct: Floats
    """Of constants that were fitted to all rows, these among them."""
    unseen_pct: Floats
    """Of constants that were fitted without them, a value at a time."""


def folds(found: Validation, say: Say) -> Iterator[Fold]:
    """Yield every fold of a validated table, if its kind has any.

    Args:
        found: The table, and which of its rows can be predicted at all.
        say: Told what is being done.
    """
    of = _FOLDS.get(found.table.kind)
    table = _usable(found)
    if of is not None and table.rows:
        yield from of(table, say)


def _usable(found: Validation) -> Table:
    """Return the table of the rows that are predicted; of those with errors, but for memory.

    Runs that ran out of memory have nothing measured, but tell what does not fit.
    """
    values = found.predictions.values if found.table.kind == "memory" else errors_pct(found)
    kept = np.flatnonzero(np.isfinite(values))
    columns = {name: [cells[i] for i in kept] for name, cells in found.table.columns.items()}
    return replace(found.table, columns=columns, rows=len(kept))


def _products(table: Table, say: Say) -> Iterator[Fold]:
    """Leave out weights (pairs of n and k), a number of rows, and the whole device."""
    every = refit_products.measured_products(table)
    titles = {"weights": "shapes of weights", "m": "a number of rows", "": "the device"}
    for gpu in sorted({each.question.gpu for each in every}):
        say(f"gemm: {gpu} left out in parts")
        seen: list[Floats] = []
        unseen: dict[str, list[Floats]] = {}
        for rows in every:
            if rows.question.gpu != gpu:
                continue
            seen.append(rows.error_pct(refit_products.fitted(rows)))
            for what, errors in refit_products.left_out(rows):
                unseen.setdefault(what, []).append(errors)
            inherited = inherited_constants("gemm", gpu, rows.section)
            if inherited is not None:
                unseen.setdefault("", []).append(rows.error_pct(inherited))
        for what, errors_of in unseen.items():
            yield Fold(f"products, {gpu}", titles[what], _joined(seen), _joined(errors_of))


def _attention(table: Table, say: Say) -> Iterator[Fold]:
    """Leave out numbers of heads, which are models and degrees, and the whole device."""
    heads = sorted(set(table.columns["heads"]), key=float)
    parts = [str(heads.index(each) % _PARTS) for each in table.columns["heads"]]
    parted = replace(table, columns={**table.columns, "part": parts})
    yield from _kernels(parted, {"part": "a sixth of the numbers of heads"}, say)
    for rows in refit_attention.sections(table):
        inherited = inherited_constants("attention", rows.system, rows.phase)
        if inherited is not None:
            of = f"attention, {rows.system}, {rows.phase}"
            yield Fold(of, "the device", rows.error_pct(), rows.error_pct(inherited))


def _decode(table: Table, say: Say) -> Iterator[Fold]:
    yield from _kernels(table, {"model": "a model", "tp": "a TP degree"}, say)


def _kernels(table: Table, columns: Mapping[str, str], say: Say) -> Iterator[Fold]:
    every = list(refit_attention.sections(table))
    seen = [rows.error_pct(refit_attention.fitted(rows)) for rows in every]
    for column, title in columns.items():
        if column not in table.columns:
            continue
        say(f"{table.kind}: {title} left out")
        errors = refit_attention.left_out_error_pct(table, column)
        for rows, known in zip(every, seen, strict=True):
            of = f"attention, {rows.system}, {rows.phase}"
            yield Fold(of, title, known, _finite(errors[rows.places.astype(int)]))


def _overlap(table: Table, say: Say) -> Iterator[Fold]:
    """Leave out a product's shape, and a number of multiprocessors taken."""
    say("overlap: shapes and multiprocessors left out")
    for rows in refit_products.measured_overlaps(table):
        question, shapes = rows.products.question, rows.products.shapes
        alone = gemm_section(device_of(question.gpu), question.dtype).constants

        def tried(out: Any, rows: Any = rows, alone: Any = alone) -> Floats:
            rest = rows._replace(products=rows.products.where(~out))
            constants = refit_products.fitted_sharing(rest, alone)
            held = rows._replace(products=rows.products.where(out))
            errors: Floats = 100 * np.expm1(held.residuals(alone, constants)[0])
            return errors

        constants = refit_products.fitted_sharing(rows, alone)
        seen = 100 * np.expm1(rows.residuals(alone, constants)[0])
        for title, keys in (
            ("a shape", [tuple(each) for each in shapes[:3].T]),
            ("a number of multiprocessors", [tuple(each) for each in shapes[3:].T]),
        ):
            outs = [np.array([key == value for key in keys]) for value in sorted(set(keys))]
            if len(outs) > 1:
                unseen = _joined([tried(out) for out in outs])
                yield Fold(f"overlapped products, {question.gpu}", title, seen, unseen)


def _memory(table: Table, say: Say) -> Iterator[Fold]:
    """Leave out a model, a degree, a ZeRO stage."""
    columns = {
        "num_params": "a model",
        "tp": "a TP degree",
        "pp": "a PP degree",
        "zero_stage": "a ZeRO stage",
    }
    names = table.columns.get("dataset", [""])
    start = habits_named(memory.FRAMEWORKS.get(names[0], _ANY_FRAMEWORK))
    if not all(any(table.columns.get(name, [])) for name in _MEMORY_MEASURED):
        return
    seen = _memory_errors(table, memory_fit.fitted(table, start))
    for column, title in columns.items():
        say(f"memory: {title} left out")
        values = sorted(set(table.columns[column]))
        if len(values) == 1:
            continue
        unseen = []
        for value in values:
            rest, held = _parted(table, column, value)
            if any(rest.columns[memory.MEASURED]):
                unseen.append(_memory_errors(held, memory_fit.fitted(rest, start)))
        yield Fold("allocated memory", title, seen, _joined(unseen))


def _memory_errors(table: Table, policy: Any) -> Floats:
    measured, _ = measurements(table, memory.MEASURED)
    return _finite(100 * (memory.predictions(table, policy=policy).values / measured - 1))


def _parted(table: Table, column: str, value: str) -> tuple[Table, Table]:
    """Return the table without the rows of a value, and the table of these."""
    return (
        table.where(lambda row: row[column] != value),
        table.where(lambda row: row[column] == value),
    )


def _training(table: Table, say: Say) -> Iterator[Fold]:
    known = refit_frameworks.rows_of(table)
    for name, start in refit_frameworks.FITTED.items():
        rows = _thinned(known.get(name, []))
        if rows:
            say(f"training: {name}, {len(rows)} rows")
            answers = _Answers(partial(refit_frameworks.ratios, rows))
            sets = np.array([row.get("dataset", "") for row in rows])
            yield from _fits(name, rows, answers, partial(_fitted, answers, sets, start))


def _fitted(
    answers: _Answers, sets: Any, start: Mapping[str, float], used: Mask
) -> dict[str, float]:
    """Return the constants of a framework that suit the rows used best."""
    own = sets[used]
    weights = refit_frameworks.weights_of(own.tolist())

    def lossy(trial: dict[str, float]) -> float:
        return refit_frameworks.loss_of_sets(answers.ratios(trial)[used], own, weights)

    return descend(lossy, start, refit_frameworks.PULL)


def _inference(table: Table, say: Say) -> Iterator[Fold]:
    elsewhere = refit_engines.DEVICE  # whose kernels are fitted to whole runs as well
    known = refit_engines.evidence_of(table, lambda row: row["cluster"] != elsewhere)
    for name in refit_engines.FITTED:
        if name not in known:
            continue
        kept = {id(row) for row in _thinned(known[name].rows)}
        evidence = known[name].where(lambda row, kept=kept: id(row) in kept)  # type: ignore[misc]
        say(f"inference: {name}, {len(evidence.rows)} rows")
        answers = _Answers(evidence.ratios)

        def fitted(used: Mask, name: str = name, answers: _Answers = answers) -> dict[str, float]:
            return refit_engines.fitted(name, cast("Any", _Part(answers, used)))

        yield from _fits(name, evidence.rows, answers, fitted)


class _Answers:
    """Predicted over measured of all rows under any constants, each tried once."""

    def __init__(self, ratios: Callable[[Mapping[str, float]], Floats]) -> None:
        self._ratios = ratios
        self._known: dict[tuple[str, ...], Floats] = {}

    def ratios(self, constants: Mapping[str, float]) -> Floats:
        key = tuple(f"{value:.9g}" for value in constants.values())
        if key not in self._known:
            self._known[key] = self._ratios(constants)
        return self._known[key]


class _Part(NamedTuple):
    """Some of the rows, to be fitted to."""

    answers: _Answers
    used: Mask

    def ratios(self, constants: Mapping[str, float]) -> Floats:
        found: Floats = self.answers.ratios(constants)[self.used]
        return found


def _fits(
    name: str,
    rows: Sequence[Row],
    answers: _Answers,
    fitted: Callable[[Mask], Mapping[str, float]],
) -> Iterator[Fold]:
    """Yield the folds of one framework or engine."""
    everything = np.ones(len(rows), dtype=bool)
    seen = 100 * (answers.ratios(fitted(everything)) - 1)
    for column, title in _OF_RUNS.items():
        cells = np.array([row.get(column, "") for row in rows])
        values = np.unique(cells)
        if values.size == 1:
            continue
        unseen = np.empty(len(rows))
        for value in values:
            out = cells == value
            unseen[out] = answers.ratios(fitted(~out))[out]
        yield Fold(name, title, seen, 100 * (unseen - 1))


_OF_RUNS: Final = {"model": "a model", "tp": "a TP degree", "dataset": "a data set"}


def _thinned(rows: Sequence[Row]) -> list[Row]:
    """Return at most `MOST_ROWS` of some rows, evenly."""
    step = -(-len(rows) // MOST_ROWS)
    return list(rows[::step]) if rows else []


def _joined(parts: Sequence[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.empty(0)


def _finite(errors: Floats) -> Floats:
    return errors[np.isfinite(errors)]


_FOLDS: Final[Mapping[str, Callable[[Table, Say], Iterator[Fold]]]] = {
    "gemm": _products,
    "attention": _attention,
    "decode": _decode,
    "overlap": _overlap,
    "memory": _memory,
    "training": _training,
    "inference": _inference,
}

"""Errors in sample beside those on rows left out of the fit, by set of constants.

Collectives have a section of their own (`lab.cross_validation`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from lab.command import Say
from lab.left_out import Tried, left_out, runs_without
from shardcost.formats.tables import Table
from shardcost.validate.predictions import Floats
from shardcost.validate.validation import Validation, errors_pct, kind_of

_CONSTANTS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "gemm": ("gpu",),
    "attention": ("gpu", "phase"),
    "elementwise_layer": ("op",),
    "experts": ("gpu",),
    "grouped_gemm": ("gpu",),
    "fp8_conversion": ("figure",),
    "sustained": ("figure",),
    "linear_attention": ("gpu",),
    "decode": ("gpu",),
    "overlap": ("gpu",),
    "layer_ops": ("kind",),
    "memory": (),
    "memory_runs": ("figure",),
    "training": ("software",),
    "inference": ("software",),
    "serving": ("software",),
    "dispatch": ("library",),
    "jitter": ("figure",),
    "jitter_steps": ("figure",),
}
"""The columns, own or derived, whose values share a set of fitted constants."""


class Fold(NamedTuple):
    """Errors in percent, signed, of one set of constants on the same rows."""

    of: str
    left_out: str
    seen_pct: Floats
    """Of the catalog's constants, which were fitted to these rows among others."""
    unseen_pct: Floats
    """Of constants that were fitted without them."""


def folds(validation: Validation, say: Say) -> Iterator[Fold]:
    """Yield every fold of a validated table, if constants are fitted to its kind."""
    table = validation.table
    if table.kind not in _CONSTANTS_OF:
        return
    # Runs that ran out of memory have no measurement, but can be predicted all the same.
    values = validation.predictions.values if table.kind == "memory" else errors_pct(validation)
    usable = np.isfinite(values)
    if table.kind == "decode":  # other parts of a layer are predicted by constants of other tables
        usable &= np.array([part == "attention" for part in table.columns["part"]], dtype=bool)
    kept = np.flatnonzero(usable)
    if not kept.size:
        return
    table = table.at(kept.tolist())
    errors, labels = errors_pct(validation)[kept], np.array(_labels(table))
    together: dict[tuple[str, str], list[tuple[Floats, Floats]]] = {}
    for tried in _every_way(table, say):
        for label in np.unique(labels[tried.rows]):
            own = labels[tried.rows] == label
            pair = errors[tried.rows[own]], 100 * np.expm1(-tried.residuals[own])
            together.setdefault((str(label), tried.split), []).append(pair)
    for (label, split), pairs in together.items():
        seen, unseen = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        yield Fold(label, split, seen, unseen)


def _every_way(table: Table, say: Say) -> Iterator[Tried]:
    yield from left_out(table, say)
    if table.kind in {"training", "inference"}:
        tried = runs_without(table, "tp", "a TP degree", say)
        known = np.flatnonzero(np.isfinite(tried.residuals))
        yield tried._replace(rows=known, residuals=tried.residuals[known])


def _labels(table: Table) -> list[str]:
    """Return which constants each row is predicted by."""
    derived = kind_of(table).DERIVED
    return [
        ", ".join(
            [table.kind]
            + [
                row[name] if name in row else derived[name](row)
                for name in _CONSTANTS_OF[table.kind]
            ]
        )
        for row in table.records()
    ]

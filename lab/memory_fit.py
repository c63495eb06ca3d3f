"""Fits what a framework takes besides its tensors, and tries the fit on rows that it did not see.

Three constants, each from a column of its own: the scratch space from what is allocated between
steps, the share lost to fragments from what the allocator reserved at most, and what is taken
outside of it from which runs ran out. All else in the memory model is counted, not fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcost.errors import BadValueError
from shardcost.formats.tables import Table
from shardcost.memory import MemoryPolicy
from shardcost.validate.memory import MEASURED, classified_pct, memory_of_row, predictions
from shardcost.validate.validation import Stats, measurements, stats

Floats = NDArray[np.float64]

_GIB: Final = 2**30
_RESERVED: Final = "mem_res_GB"
_STEP: Final = 0.25
"""Of the reserve, in GiB: finer steps move no more than a row or two."""


class _Bare(NamedTuple):
    """What rows hold apart from the fitted constants, in GiB."""

    between_steps: Floats
    first: Floats
    """The first stage, whose memory the log is about, when fullest,"""
    first_passing: Floats
    """and what comes and goes of it."""


@dataclass(frozen=True)
class LeftOut:
    """How well rows are predicted that the constants were not fitted to."""

    value: str
    """Of the column by which they were left out."""
    rows: int
    allocated: Stats
    classified_pct: float


def fitted(table: Table, start: MemoryPolicy) -> MemoryPolicy:
    """Return a framework's policy with the constants that suit the rows of a table best."""
    bare = replace(start, workspace_bytes=0.0, reserve_bytes=0.0, reserve_share=0.0)
    result = _bare(table, bare)
    allocated, _ = measurements(table, MEASURED)
    reserved, _ = measurements(table, _RESERVED)
    if np.isnan(allocated).all() or np.isnan(reserved).all():
        raise BadValueError(MEASURED, "nothing", "measured in at least one row")
    workspace = max(0.0, float(np.nanmedian(allocated - result.between_steps)))
    lost = (reserved - workspace - result.first) / result.first_passing
    known = replace(
        bare,
        workspace_bytes=workspace * _GIB,
        reserve_share=max(0.0, float(np.nanmedian(lost))),
    )
    return replace(known, reserve_bytes=_best_reserve(table, known) * _GIB)


def left_out(table: Table, column: str, start: MemoryPolicy) -> Iterator[LeftOut]:
    """Yield, for each value of a column, the errors on its rows of a fit to all others."""
    for value in sorted(set(table.columns[column])):
        policy = fitted(table.where(lambda row, value=value: row[column] != value), start)  # type: ignore[misc]
        rest = table.where(lambda row, value=value: row[column] == value)  # type: ignore[misc]
        values = predictions(rest, policy=policy).values
        measured, _ = measurements(rest, MEASURED)
        errors = stats(100 * (values / measured - 1))
        yield LeftOut(value, rest.rows, errors, classified_pct(rest, values, policy))


def _bare(table: Table, policy: MemoryPolicy) -> _Bare:
    # With a share of 1 the framework takes just what comes and goes.
    once = replace(policy, reserve_share=1.0)
    held = [memory_of_row(row, once).stages["first"] for row in table.records()]
    passing = np.array([entry.framework for entry in held]) / _GIB
    return _Bare(
        np.array([entry.between_steps for entry in held]) / _GIB,
        np.array([entry.total for entry in held]) / _GIB - passing,
        passing,
    )


def _best_reserve(table: Table, policy: MemoryPolicy) -> float:
    """Return the reserve in GiB under which the most rows are classified right.

    The middle one where several are.
    """
    peaks = [memory_of_row(row, policy).peak_bytes for row in table.records()]
    capacities = [float(text) for text in table.columns["capacity_GB"]]
    room = np.array(capacities) - np.array(peaks) / _GIB
    fits = np.array([text == "fits" for text in table.columns["outcome"]])
    reserves = np.arange(0, min(capacities) / 4, _STEP)
    right = ((room >= reserves[:, None]) == fits).sum(axis=1)
    return float(np.median(reserves[right == right.max()]))

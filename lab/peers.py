"""Other cost models on measured rows: what they state, and what shardcost does on the same rows.

The others' figures are data (``peers.toml``), each with its source. Ours are computed from a
validation with the same statistic, over those rows of the data set that the table at hand has.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.formats.tables import Row
from shardcost.validate.predictions import Floats
from shardcost.validate.validation import Validation, errors_pct

_STATISTICS: Final[Mapping[str, Callable[[Floats], Any]]] = {
    "mean": np.mean,
    "median": np.median,
    "max": np.max,
}
Range = tuple[float, float]


class Peer(NamedTuple):
    """One figure of another cost model."""

    tool: str
    quantity: str
    statistic: str
    error_pct: Range
    """The least and the most that is stated; mostly the same."""
    source: str
    version: str
    table: str = ""
    """Kind of table with the rows; empty where they are not public."""
    where: Mapping[str, Sequence[str]] = {}
    between: Mapping[str, Range] = {}
    rows: int | None = None
    here_pct: tuple[float, ...] = ()
    """Published errors of the single rows that a table may have."""

    def is_about(self, row: Row) -> bool:
        """Return whether a row is one of those that the figure is about."""
        return all(row.get(name, "") in values for name, values in self.where.items()) and all(
            least <= float(row[name]) <= most for name, (least, most) in self.between.items()
        )


class Compared(NamedTuple):
    """A peer's figure beside ours."""

    peer: Peer
    rows: int
    """Rows that the table at hand has, and that are predicted."""
    theirs_here_pct: float | None
    """The peer's statistic over just these rows, where it published each."""
    ours_pct: float


@cache
def peers() -> tuple[Peer, ...]:
    """Return every figure, in the file's order."""
    with Path(__file__).with_name("peers.toml").open("rb") as file:
        entries = tomllib.load(file)["peer"]
    return tuple(_peer(entry) for entry in entries)


def _peer(entry: Mapping[str, Any]) -> Peer:
    stated = entry["error_pct"]
    least, most = stated if isinstance(stated, list) else (stated, stated)
    given = dict(entry) | {
        "error_pct": (float(least), float(most)),
        "where": {name: _listed(item) for name, item in entry.get("where", {}).items()},
        "between": {name: (a, b) for name, (a, b) in entry.get("between", {}).items()},
        "here_pct": tuple(entry.get("here_pct", ())),
    }
    return Peer(**given)


def _listed(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def compared(validation: Validation) -> list[Compared]:
    """Return the peers' figures on rows of a table, beside ours on those."""
    errors = np.abs(errors_pct(validation))
    rows = list(validation.table.records())
    predicted = np.flatnonzero(np.isfinite(errors))
    every = []
    for peer in peers():
        if peer.table != validation.table.kind:
            continue
        known = np.array([errors[i] for i in predicted if peer.is_about(rows[i])])
        if known.size:
            statistic = _STATISTICS[peer.statistic]
            same = len(peer.here_pct) == known.size
            theirs = float(statistic(np.array(peer.here_pct))) if same else None
            every.append(Compared(peer, known.size, theirs, float(statistic(known))))
    return every


def elsewhere() -> list[Peer]:
    """Return the figures that their authors state on rows that are not public."""
    return [peer for peer in peers() if not peer.table]

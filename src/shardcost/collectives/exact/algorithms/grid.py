"""Two levels: ranks as rows and columns, each direction with links of its own.

On a two-dimensional torus the rows and the columns are rings. In a cluster a row is a node, a
column is a rail that joins the GPUs of one place in all nodes, and the steps are the same; what
differs is what they cost (`shardcost.collectives.exact.closed_forms.two_tier_time_s`).

All-reduce: reduce-scatter along the row, all-reduce of what is left along the column, all-gather
along the row, each by a ring (in one more dimension Jain, Sabharwal, 2010, "Optimal bucket
algorithms for large MPI collectives on torus interconnects"). Most bytes travel along rows, so rows
should be the faster links.

Rank ``row * columns + column`` owns the block of that number.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shardcost.collectives.exact.algorithms.plan import (
    SCATTER_AND_GATHER,
    Algorithm,
    Form,
    Plan,
    in_turn,
    mirrored,
)
from shardcost.collectives.exact.algorithms.ring import passed_around
from shardcost.collectives.exact.schedule import Ints, Step


def all_gather(rows: int, columns: int) -> Plan:
    """Return the all-gather along columns, then of whole columns along rows."""
    return _gathered(_ranks(rows, columns))


def reduce_scatter(rows: int, columns: int) -> Plan:
    """Return the reduce-scatter along rows, then along columns, in the all-gather's direction."""
    return mirrored(_gathered(_ranks(rows, columns)[::-1, ::-1]))


def all_reduce(rows: int, columns: int) -> Plan:
    """Return the reduce-scatter, then the all-gather."""
    return in_turn(reduce_scatter(rows, columns), all_gather(rows, columns))


def all_to_all(rows: int, columns: int) -> Plan:
    """Return the exchange along rows of what goes to each column, then along columns.

    Messages across nodes are as many times fewer, and larger, as a node has ranks.
    """
    ranks = _ranks(rows, columns)
    n = ranks.size
    along_row = []
    for distance in range(1, columns):
        partner = np.roll(ranks, -distance, axis=1)
        # Everything that goes to the partner's column, in whichever row: third axis.
        chunk = ranks[..., None] * n + ranks.T[partner % columns]
        along_row.append(Step.of(ranks[..., None], partner[..., None], chunk, reduces=False))
    along_column = []
    for distance in range(1, rows):
        partner = np.roll(ranks, -distance, axis=0)
        # Everything that came from the own row and goes to the partner: third axis.
        chunk = ranks[ranks // columns] * n + partner[..., None]
        along_column.append(Step.of(ranks[..., None], partner[..., None], chunk, reduces=False))
    return Plan(n**2, (*along_row, *along_column))


def _ranks(rows: int, columns: int) -> Ints:
    return np.arange(rows * columns).reshape(rows, columns)


def _gathered(ranks: Ints) -> Plan:
    """Return the all-gather on rings in the order of the columns, then of the rows, of `ranks`."""
    whole_columns = np.broadcast_to(ranks.T, (*ranks.shape, len(ranks)))
    first = passed_around(ranks.T, ranks.T[..., None])
    return Plan(ranks.size, first + passed_around(ranks, whole_columns))


_PAPER: Final = (
    "Mikami et al., 2018, Massively distributed SGD: ImageNet/ResNet-50 training in a flash"
)
_RANKS: Final = "any number, as rows times columns; a prime number is a single row"
_ONCE: Final = Form("(X - 1) + (Y - 1)", "(n - 1)/n", "max((X - 1)/X, (Y - 1)/n)")
_TWICE: Final = Form("2*(X - 1) + 2*(Y - 1)", "2*(n - 1)/n", "2*max((X - 1)/X, (Y - 1)/n)")
_EXCHANGE: Final = Form(
    "(X - 1) + (Y - 1)",
    "(X - 1)/X + (Y - 1)/Y",
    "max(min(1, X - 1)/X, min(1, Y - 1)/Y)",
)
_WAYS: Final = {
    "torus_2d": "along rows, then along columns",
    "hierarchical": "inside each node, then across nodes",
}

ALGORITHMS: Final = tuple(
    Algorithm(
        collective,
        name,
        build,
        (form,),
        f"{way}, {by}",
        _PAPER,
        _RANKS,
        "shape",
        phases=SCATTER_AND_GATHER if collective == "all_reduce" else None,
    )
    for name, way in _WAYS.items()
    for collective, build, form, by in (
        ("all_reduce", all_reduce, _TWICE, "by rings"),
        ("reduce_scatter", reduce_scatter, _ONCE, "by rings"),
        ("all_gather", all_gather, _ONCE, "by rings"),
        ("all_to_all", all_to_all, _EXCHANGE, "one partner at a time"),
    )
)

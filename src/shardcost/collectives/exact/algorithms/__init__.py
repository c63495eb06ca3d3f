"""Algorithms as data: `schedule` returns the steps of any collective by any algorithm it has.

**Contract.** Every rank has a buffer; before and after a collective it holds, of n blocks as even
as possible, of which block r belongs to rank r:

| collective | before | after |
|---|---|---|
| all_reduce | its own whole buffer | the sum of all buffers |
| reduce_scatter | its own whole buffer | block r of the sum |
| all_gather | block r | all blocks |
| all_to_all | chunks ``r * n + target`` of n * n | chunks ``source * n + r`` |
| broadcast | rank 0: the buffer | the buffer |
| reduce | its own whole buffer | rank 0: the sum |
| send_recv | its own whole buffer | the buffer of rank r - 1, rank 0 that of the last |

What else a rank holds at the end is left open. One rank alone has nothing to do: no steps.
"""

from __future__ import annotations

from math import isqrt
from typing import Final, TypeAlias

from shardcost.checks import Count, anywhere, count_or_array
from shardcost.collectives import COLLECTIVES
from shardcost.collectives.exact.algorithms import direct, grid, in_switch, recursive, ring, tree
from shardcost.collectives.exact.algorithms.plan import Algorithm, Plan
from shardcost.collectives.exact.schedule import Schedule
from shardcost.errors import BadTypeError, BadValueError, UnknownNameError
from shardcost.scalars import whole_number

_MOST_RANKS: Final = 4096
_MOST_CHUNKS: Final = 100_000
"""Beyond these a list of steps no longer fits a memory: `closed_forms` has no such bounds."""

Shape: TypeAlias = tuple[int, int]
"""Rows and columns of a torus; nodes and ranks per node of a cluster."""


_FAMILIES: Final = (ring, recursive, tree, grid, direct, in_switch)

ALGORITHMS: Final[dict[tuple[str, str], Algorithm]] = {
    (known.collective, known.name): known
    for collective in COLLECTIVES
    for family in _FAMILIES
    for known in family.ALGORITHMS
    if known.collective == collective
}
"""Every algorithm there is, by collective and name."""


def schedule(
    collective: str,
    algorithm: str,
    ranks: int,
    *,
    chunks: int = 1,
    shape: Shape | None = None,
) -> Schedule:
    """Return the steps of a collective among `ranks`, by one of its algorithms.

    Args:
        collective: One of `COLLECTIVES`.
        algorithm: One of `algorithms_of(collective)`.
        ranks: How many take part.
        chunks: Pieces that follow each other through a pipeline; 1 where there is none. A double
            binary tree cuts each half of the buffer, NVLS each rank's block, into so many.
        shape: (rows, columns) of a torus, (nodes, ranks per node) of a hierarchy; the most square
            one where it is left out.

    >>> ring_steps = schedule("all_reduce", "ring", 4)
    >>> len(ring_steps.steps), ring_steps.chunks
    (6, 4)
    """
    known = algorithm_named(collective, algorithm)
    ranks = count_or_array("ranks", whole_number("ranks", ranks, least=1), _MOST_RANKS)
    chunks = count_or_array("chunks", whole_number("chunks", chunks, least=1), _MOST_CHUNKS)
    check_options(collective, algorithm, chunks, shape)
    arguments = {
        "ranks": (ranks,),
        "chunks": (ranks, chunks),
        "shape": most_square(ranks) if shape is None else _checked_shape(shape, ranks),
    }
    plan = known.build(*arguments[known.takes]) if ranks > 1 else Plan(chunks, ())
    return Schedule(collective, algorithm, ranks, plan.chunks, plan.steps, plan.switches)


def algorithms_of(collective: str) -> tuple[str, ...]:
    """Return the names of a collective's algorithms.

    >>> algorithms_of("all_to_all")
    ('bruck', 'torus_2d', 'hierarchical', 'direct', 'pairwise')
    """
    if collective not in COLLECTIVES:
        raise UnknownNameError("collective", collective, COLLECTIVES)
    return tuple(name for of, name in ALGORITHMS if of == collective)


def algorithm_named(collective: str, algorithm: str) -> Algorithm:
    """Return an algorithm of a collective, or raise an error that says which there are."""
    names = algorithms_of(collective)
    if algorithm not in names:
        raise UnknownNameError(f"algorithm of {collective}", algorithm, names)
    return ALGORITHMS[collective, algorithm]


def check_options(collective: str, algorithm: str, chunks: Count, shape: object) -> None:
    """Raise if an algorithm is given pieces, or a shape, that it has no use for."""
    takes = algorithm_named(collective, algorithm).takes
    if takes != "chunks" and anywhere(chunks != 1):
        raise BadValueError("chunks", chunks, f"1, as {algorithm} {collective} has no pipeline")
    if takes != "shape" and shape is not None:
        raise BadValueError("shape", shape, f"left out, as {algorithm} {collective} takes none")


def most_square(ranks: int) -> Shape:
    """Return the rows and columns of `ranks` that differ least, with no fewer columns than rows.

    >>> most_square(12), most_square(7)
    ((3, 4), (1, 7))
    """
    rows = next(rows for rows in range(isqrt(ranks), 0, -1) if ranks % rows == 0)
    return rows, ranks // rows


def buffer_bytes(collective: str, ranks: Count, size_bytes: Count) -> Count:
    """Return how long the buffer of a schedule is where each rank has `size_bytes` of its own.

    It is the same, but for an all-to-all: there the buffer has room for the data of all ranks.
    """
    return size_bytes * ranks if collective == "all_to_all" else size_bytes


def _checked_shape(shape: object, ranks: int) -> Shape:
    if not isinstance(shape, tuple | list) or len(shape) != 2:
        raise BadTypeError("shape", shape, "a pair of whole numbers")
    rows, columns = (whole_number("shape", side, least=1) for side in shape)
    if rows * columns != ranks:
        raise BadValueError("shape", shape, f"a pair whose product is the number of ranks, {ranks}")
    return rows, columns

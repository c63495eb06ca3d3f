"""Layers whose matrix products are split otherwise: 2-D, 2.5-D, 3-D, weight-gathered.

Every scheme divides the tokens into `rows` and the features (hidden size, heads, feed-forward
width) into `columns`, so that what stands between the matrices needs no communication: a rank
attends with its own heads over its own sequences, and a norm adds up two numbers per token over
the columns. The schemes differ in what a product `Y = X W` costs. With N tokens, a matrix of
`i x o` elements and e bytes per element, a rank takes part in::

    2d               q x q = tp      q times: broadcast of X/q² and W/q²  e (N i + i o) / q
    2.5d             q x q x r = tp  the same on 1/r of the tokens        e (N i / r + i o) / q
    3d               q x q x q = tp  gather of X and W, scatter of Y      e (N i + i o + N o) / q²
    weight_gathered                  gather of W                          e i o

The right column sums the sizes of all collectives forward, as nccl-tests counts them: on a ring a
rank sends (n-1)/n of a gathered or scattered array, a binary tree takes log2 q rounds for a
broadcast. Backward, each of SUMMA's two products costs that again; a cube's two products cost it
once together, because the gathered factors are kept; weights are gathered again and their
gradients scattered, which is twice. Activations are spread over all tp ranks at all times, so
sequence parallelism has nothing left to split.

Xu et al. 2021, Optimus (arXiv:2104.05343); Wang et al. 2022, Tesseract (arXiv:2105.14500); Bian et
al. 2021 (arXiv:2105.14450); Pope et al. 2022 (arXiv:2211.05102).
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import Any, Final, NamedTuple

from shardcost.arrays import cell_by_cell
from shardcost.checks import is_array
from shardcost.layout import Layout
from shardcost.model import Block
from shardcost.program.attention import attention_part
from shardcost.program.edges import norm, residual
from shardcost.program.feed_forward import feed_forward_part
from shardcost.program.operations import (
    Collective,
    Gemm,
    Operation,
    Operations,
    Passes,
    together,
)
from shardcost.program.setting import Setting

_NORM_BYTES: Final = 2 * 4
"""Per token and norm: the sums of the elements and of their squares, in 32 bits; backward likewise
two sums (Xu et al. 2021)."""


class Grid(NamedTuple):
    """How a scheme arranges the ranks of tensor parallelism."""

    rows: Any
    """Parts into which the tokens are divided, by whole sequences."""
    columns: Any
    """Parts into which hidden size, heads and feed-forward width are divided."""
    side: Any
    """Ranks of one row or column of the grid: those that take part in a collective."""
    depth: Any
    """Copies of each weight."""


def grid_of(layout: Layout) -> Grid:
    """Return the grid of a layout's scheme. Where `tp` has no such grid, the next smaller side.

    >>> grid_of(Layout(tp=8, scheme="2.5d"))
    Grid(rows=4, columns=2, side=2, depth=2)
    """
    tp, scheme = layout.tp, layout.scheme
    if scheme == "2d":
        q = cell_by_cell(isqrt, tp)
        return Grid(q, q, q, 1)
    if scheme == "2.5d":
        q = cell_by_cell(_side_of_a_box, tp)
        depth = tp // (q * q)
        return Grid(q * depth, q, q, depth)
    if scheme == "3d":
        q = cell_by_cell(_side_of_a_cube, tp)
        return Grid(q * q, q, q, 1)
    return Grid(tp, 1, tp, 1)


def weight_copies(layout: Layout) -> Any:
    """Return how many ranks of a tensor group hold the same weights: only 2.5-D's depth does.

    A rank has ``weight_copies / tp`` of a layer's weights.
    """
    return grid_of(layout).depth


def layer_otherwise(s: Setting, block: Block) -> Passes:
    """Return one layer of a block under a scheme other than Megatron's.

    Layouts must be feasible; cells of an array that are not hold no meaning.
    """
    whole = together(*_pieces(s, block))
    if s.layout.recompute == "full" and s.training:
        return whole._replace(recompute=whole.forward)
    return whole


def _pieces(s: Setting, block: Block) -> list[Passes]:
    """Return norms, parts and residual sums in their order; a parallel block has one norm."""
    grid = grid_of(s.layout)
    split = replace(s.layout, tp=grid.columns, ep=1, sequence_parallel=False)
    share = replace(s, layout=split, sequences=s.sequences / grid.rows)
    between = replace(share, hidden=s.hidden / grid.columns)
    # 1-D's program of the rank's sequences on the columns: all but its matrix products is ours.
    parts: list[Passes] = []
    if block.attention is not None:
        parts.append(attention_part(share, block.attention))
    if block.feed_forward is not None:
        parts.append(feed_forward_part(share, block.feed_forward))
    names = tuple(op.name for part in parts for op in part.forward if _is_matrix(op))
    pieces: list[Passes] = []
    for number, part in enumerate(parts):
        if number == 0 or not block.parallel:
            pieces.append(_norm(between, grid))
        pieces.append(_split_part(s, grid, part, names))
        if number == len(parts) - 1 or not block.parallel:
            pieces.append(residual(between))
    return pieces


def _norm(between: Setting, grid: Grid) -> Passes:
    """Return a normalisation of the rank's share, whose sums go over the columns."""
    own = norm(between, "norm")
    if _is_one(grid.columns):
        return own
    sums = Collective("norm sums", "all_reduce", _NORM_BYTES * between.tokens, "tp", grid.columns)
    back = (sums._replace(name="norm gradient sums"),) if between.training else ()
    return together(Passes((sums,), back), own)


def _split_part(s: Setting, grid: Grid, part: Passes, names: tuple[str, ...]) -> Passes:
    """Return a part whose first and last operations, its two matrices, are split by the scheme."""
    first, last = (op for op in part.forward if isinstance(op, Gemm) and op.weights)
    rest = Passes(*(tuple(op for op in each if not _is_matrix(op)) for each in part))
    return together(
        _matrix(s, grid, first.name, first.k, first.n * grid.columns, names),
        rest,
        _matrix(s, grid, last.name, last.k * grid.columns, last.n, names),
    )


def _matrix(
    s: Setting, grid: Grid, name: str, inputs: Any, outputs: Any, names: tuple[str, ...]
) -> Passes:
    if s.layout.scheme == "weight_gathered":
        whole = _weight_gathered(s, name, inputs, outputs, names)
    elif s.layout.scheme == "3d":
        whole = _cube(s, grid, name, inputs, outputs)
    else:
        whole = _summa(s, grid, name, inputs, outputs)
    if not s.training:
        return Passes(whole.forward)
    return whole._replace(weight=()) if s.frozen else whole


def _summa(s: Setting, grid: Grid, name: str, inputs: Any, outputs: Any) -> Passes:
    """Return a product by SUMMA on a `q x q` grid, `depth` of which share the tokens.

    In each of q steps a column of blocks of X goes along the rows and a row of blocks of W along
    the columns, and their product is added up: ``q (X/q² + W/q²) = (X + W)/q`` bytes, X being the
    grid's own part of the input. Backward, ``dX = dY Wᵀ`` broadcasts W and reduces dX, and
    ``dW = Xᵀ dY`` broadcasts X and reduces dW: as many bytes each (Xu et al. 2021,
    arXiv:2104.05343, algorithms 1 to 3). The copies of dW are then added up over the depth,
    ``W/q²`` bytes (Wang et al. 2022, arXiv:2105.14500).
    """
    q = grid.side
    m, k, n = s.tokens / grid.rows, inputs / q, outputs / q
    x_bytes, w_bytes = m * k * s.element_bytes, k * n * s.element_bytes
    gradient, weight = _gradients(name)

    def each_step(what: str, collective: str, size: Any, feeds: str, stride: Any = 1) -> Operations:
        put_off = feeds == gradient and collective == "reduce" and not s.frozen
        beside = (weight,) if put_off else ()
        return _over(f"{what} of {feeds}", collective, size, q, q, beside, feeds, stride=stride)

    return Passes(
        (
            *each_step("input", "broadcast", x_bytes, name),
            *each_step("weights", "broadcast", w_bytes, name, q),
            Gemm(name, m, n, k, s.dtype, count=q),
        ),
        (
            *each_step("weights", "broadcast", w_bytes, gradient, q),
            Gemm(gradient, m, k, n, s.dtype, count=q),
            *each_step("sum", "reduce", x_bytes, gradient),
        ),
        (
            *each_step("input", "broadcast", x_bytes, weight),
            Gemm(weight, k, n, m, s.dtype, count=q),
            *each_step("sum", "reduce", w_bytes, weight, q),
            *_over(f"sum over depth of {weight}", "all_reduce", w_bytes, grid.depth, stride=q * q),
        ),
    )


def _cube(s: Setting, grid: Grid, name: str, inputs: Any, outputs: Any) -> Passes:
    """Return a product on a cube of side q: two gathers before it and a scatter after it.

    Each rank gathers ``X/q²`` along one edge and ``W/q²`` along another, and scatters the partial
    ``Y/q²`` along the third. Backward it gathers dY, and scatters dX and dW; the factors gathered
    before are kept (Bian et al. 2021, arXiv:2105.14450).
    """
    q = grid.side
    m, k, n = s.tokens / q, inputs / q, outputs / q
    e = s.element_bytes
    gradient, weight = _gradients(name)
    beside = () if s.frozen else (weight,)
    return Passes(
        (
            *_over(f"input of {name}", "all_gather", m * k * e, q, feeds=name),
            *_over(f"weights of {name}", "all_gather", k * n * e, q, feeds=name, stride=q),
            Gemm(name, m, n, k, s.dtype),
            *_over(f"sum of {name}", "reduce_scatter", m * n * e, q, feeds=name, stride=q * q),
        ),
        (
            *_over(
                f"input of {gradient}", "all_gather", m * n * e, q, feeds=gradient, stride=q * q
            ),
            Gemm(gradient, m, k, n, s.dtype),
            *_over(f"sum of {gradient}", "reduce_scatter", m * k * e, q, 1, beside, gradient),
        ),
        (
            Gemm(weight, k, n, m, s.dtype),
            *_over(f"sum of {weight}", "reduce_scatter", k * n * e, q, feeds=weight, stride=q),
        ),
    )


def _weight_gathered(
    s: Setting, name: str, inputs: Any, outputs: Any, names: tuple[str, ...]
) -> Passes:
    """Return a product of the rank's own tokens with weights gathered for it.

    ``W`` bytes forward; backward W again and as much for the scattered gradient (Pope et al. 2022,
    arXiv:2211.05102, section 3.2.3). A gather waits for no product and may hide behind the one
    before it: backward the weight gradient of the matrix that comes after. A scattered gradient may
    hide behind the input gradient of the matrix before, so that no product hides two.
    """
    tp = s.layout.tp
    m = s.tokens / tp
    w_bytes = inputs * outputs * s.element_bytes
    gradient, weight = _gradients(name)
    before = names[names.index(name) - 1]
    after = _gradients(names[(names.index(name) + 1) % len(names)])
    last_of_after = after[0] if s.frozen else after[1]
    first_of_before, _ = _gradients(before)

    def gather(feeds: str, beside: tuple[str, ...]) -> Operations:
        return _over(f"weights of {feeds}", "all_gather", w_bytes, tp, 1, beside, feeds)

    return Passes(
        (*gather(name, (before,)), Gemm(name, m, outputs, inputs, s.dtype)),
        (*gather(gradient, (last_of_after,)), Gemm(gradient, m, inputs, outputs, s.dtype)),
        (
            Gemm(weight, inputs, outputs, m, s.dtype),
            *_over(
                f"sum of {weight}", "reduce_scatter", w_bytes, tp, 1, (first_of_before,), weight
            ),
        ),
    )


def _over(
    name: str,
    collective: str,
    size_bytes: Any,
    ranks: Any,
    count: Any = 1,
    beside: tuple[str, ...] = (),
    feeds: str = "",
    *,
    stride: Any = 1,
) -> Operations:
    """Return a collective over some of the tensor group's ranks; none where it is one rank."""
    if _is_one(ranks):
        return ()
    return (Collective(name, collective, size_bytes, "tp", ranks, count, stride, beside, feeds),)


def _gradients(name: str) -> tuple[str, str]:
    """Return what the products of a matrix's gradients are called, as in 1-D's program."""
    return f"{name} input gradient", f"{name} weight gradient"


def _is_matrix(op: Operation) -> bool:
    return isinstance(op, Gemm) and op.weights


def _is_one(ranks: Any) -> bool:
    return not is_array(ranks) and bool(ranks == 1)


def _side_of_a_box(tp: int) -> int:
    """Return q of the flattest box `q x q x r` that is deeper than 1; 1 where there is none."""
    sides = range(isqrt(tp), 1, -1)
    return next((q for q in sides if tp % (q * q) == 0 and tp > q * q), 1)


def _side_of_a_cube(tp: int) -> int:
    """Return the largest whole number whose cube is at most tp."""
    near: int = round(tp ** (1 / 3))
    return near if near**3 <= tp else near - 1

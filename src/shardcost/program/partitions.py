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
from typing import Any, Final

from shardcost.arrays import cell_by_cell
from shardcost.checks import is_array
from shardcost.layout import Layout
from shardcost.model import Block, LatentAttention
from shardcost.program.attention import attention_part
from shardcost.program.edges import norm, residual
from shardcost.program.feed_forward import feed_forward_part
from shardcost.program.layer import recomputed
from shardcost.program.operations import (
    Collective,
    Gemm,
    Operation,
    Operations,
    OpId,
    Passes,
    together,
)
from shardcost.program.setting import Setting
from shardcost.records import NamedTuple

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
    grid = grid_of(s.layout)
    split = replace(s.layout, tp=grid.columns, ep=1, sequence_parallel=False)
    share = replace(s, layout=split, sequences=s.sequences / grid.rows)
    between = replace(share, hidden=s.hidden / grid.columns)
    # 1-D's program of the rank's sequences on the columns: all but its matrix products is ours.
    parts: list[Passes] = []
    if block.attention is not None:
        parts.append(attention_part(share, block.attention))
    if block.feed_forward is not None:
        latent = isinstance(block.attention, LatentAttention)
        parts.append(feed_forward_part(share, block.feed_forward, beside_latent=latent))
    every = tuple(OpId(op.name) for part in parts for op in part.forward if _is_matrix(op))
    pieces: list[Passes] = []
    for number, part in enumerate(parts):  # a parallel block has one norm and one residual sum
        if number == 0 or not block.parallel:
            pieces.append(_norm(between, grid))
        pieces.append(_split_part(s, grid, part, every))
        if number == len(parts) - 1 or not block.parallel:
            pieces.append(residual(between))
    whole = together(*pieces)
    if s.layout.recompute == "full" and s.training:
        return whole._replace(recompute=recomputed(s, whole))
    return whole


def _norm(between: Setting, grid: Grid) -> Passes:
    """Return a normalisation of the rank's share, whose sums go over the columns."""
    own = norm(between, "norm")
    if _is_one(grid.columns):
        return own
    there, back = (
        (Collective.of("all_reduce", of, _NORM_BYTES * between.tokens, "tp", grid.columns),)
        for of in ("norm", "norm gradient")
    )
    return together(Passes(there, back if between.training else ()), own)


def _split_part(s: Setting, grid: Grid, part: Passes, every: tuple[OpId, ...]) -> Passes:
    """Return a part whose first and last operations, its two matrices, are split by the scheme."""
    first, last = (op for op in part.forward if isinstance(op, Gemm) and op.weights)
    rest = Passes(*(tuple(op for op in ops if not _is_matrix(op)) for ops in part))
    return together(
        _matrix(s, grid, OpId(first.name), first.k, first.n * grid.columns, every),
        rest,
        _matrix(s, grid, OpId(last.name), last.k * grid.columns, last.n, every),
    )


def _matrix(
    s: Setting, grid: Grid, own: OpId, inputs: Any, outputs: Any, every: tuple[OpId, ...]
) -> Passes:
    if s.layout.scheme == "weight_gathered":
        whole = _weight_gathered(s, own, inputs, outputs, every)
    elif s.layout.scheme == "3d":
        whole = _cube(s, grid, own, inputs, outputs)
    else:
        whole = _summa(s, grid, own, inputs, outputs)
    if not s.training:
        return Passes(whole.forward)
    return whole._replace(weight=()) if s.frozen else whole


def _summa(s: Setting, grid: Grid, own: OpId, inputs: Any, outputs: Any) -> Passes:
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
    gradient, weight = own.input_gradient, own.weight_gradient
    put_off = () if s.frozen else (weight,)

    def broadcast(what: str, size: Any, of: OpId, stride: Any = 1) -> Operations:
        return _over("broadcast", what, size, q, of, count=q, stride=stride)

    return Passes(
        (
            *broadcast("input", x_bytes, own),
            *broadcast("weights", w_bytes, own, q),
            _gemm(s, own, m, n, k, count=q),
        ),
        (
            *broadcast("weights", w_bytes, gradient, q),
            _gemm(s, gradient, m, k, n, count=q),
            *_over("reduce", "", x_bytes, q, gradient, put_off, count=q),
        ),
        (
            *broadcast("input", x_bytes, weight),
            _gemm(s, weight, k, n, m, count=q),
            *_over("reduce", "", w_bytes, q, weight, count=q, stride=q),
            *_over(
                "all_reduce", "over depth", w_bytes, grid.depth, weight, stride=q * q, split=False
            ),
        ),
    )


def _cube(s: Setting, grid: Grid, own: OpId, inputs: Any, outputs: Any) -> Passes:
    """Return a product on a cube of side q: two gathers before it and a scatter after it.

    Each rank gathers ``X/q²`` along one edge and ``W/q²`` along another, and scatters the partial
    ``Y/q²`` along the third. Backward it gathers dY, and scatters dX and dW; the factors gathered
    before are kept (Bian et al. 2021, arXiv:2105.14450).
    """
    q = grid.side
    m, k, n = s.tokens / q, inputs / q, outputs / q
    e = s.element_bytes
    gradient, weight = own.input_gradient, own.weight_gradient
    put_off = () if s.frozen else (weight,)
    return Passes(
        (
            *_over("all_gather", "input", m * k * e, q, own),
            *_over("all_gather", "weights", k * n * e, q, own, stride=q),
            _gemm(s, own, m, n, k),
            *_over("reduce_scatter", "", m * n * e, q, own, stride=q * q),
        ),
        (
            *_over("all_gather", "input", m * n * e, q, gradient, stride=q * q),
            _gemm(s, gradient, m, k, n),
            *_over("reduce_scatter", "", m * k * e, q, gradient, put_off),
        ),
        (
            _gemm(s, weight, k, n, m),
            *_over("reduce_scatter", "", k * n * e, q, weight, stride=q),
        ),
    )


def _weight_gathered(
    s: Setting, own: OpId, inputs: Any, outputs: Any, every: tuple[OpId, ...]
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
    gradient, weight = own.input_gradient, own.weight_gradient
    before = every[every.index(own) - 1]
    after = every[(every.index(own) + 1) % len(every)]
    last_of_after = after.input_gradient if s.frozen else after.weight_gradient

    def gather(of: OpId, hides_behind: OpId) -> Operations:
        return _over("all_gather", "weights", w_bytes, tp, of, (hides_behind,))

    return Passes(
        (*gather(own, before), _gemm(s, own, m, outputs, inputs)),
        (*gather(gradient, last_of_after), _gemm(s, gradient, m, inputs, outputs)),
        (
            _gemm(s, weight, inputs, outputs, m),
            *_over("reduce_scatter", "", w_bytes, tp, weight, (before.input_gradient,)),
        ),
    )


def _gemm(s: Setting, own: OpId, m: Any, n: Any, k: Any, count: Any = 1) -> Gemm:
    return Gemm(own.name, m, n, k, s.dtype, count=count, id=own)


def _over(
    collective: str,
    what: str,
    size_bytes: Any,
    ranks: Any,
    of: OpId,
    hides_behind: tuple[OpId, ...] = (),
    *,
    count: Any = 1,
    stride: Any = 1,
    split: bool = True,
) -> Operations:
    """Return a collective over some of the tensor group's ranks; none where it is one rank.

    It moves `what` of the GEMM `of`, nothing for its result, and hides behind GEMMs that do not
    wait for it; where `split`, chunked overlap splits it with the GEMM.
    """
    if _is_one(ranks):
        return ()
    moved = f"{of.name} {what}".rstrip()
    sends = Collective.of(collective, moved, size_bytes, "tp", ranks, count, stride)
    return (sends.linked(hides_behind, of if split else None),)


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

"""Two matrices multiplied by each partition scheme on ranks made of arrays.

Every rank holds its own blocks and nothing else. The schemes are carried out as their papers say,
forward and backward; the result must be that of the matrices in one piece, and what rank 0 did,
collective by collective and product by product, must be what `layer_otherwise` tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from shardcost import Layout, Model, Train
from shardcost.model import Block, FeedForward
from shardcost.program.operations import Collective, Gemm, Operations
from shardcost.program.partitions import grid_of, layer_otherwise
from shardcost.program.setting import setting_of
from shardcost.software import Software

Matrix: TypeAlias = NDArray[Any]
Rank: TypeAlias = tuple[int, ...]
Blocks: TypeAlias = dict[Rank, Matrix]

SEQUENCES, LENGTH, HIDDEN, WIDTH = 48, 2, 48, 96
DEGREES = [
    ("2d", 4),
    ("2d", 16),
    ("2.5d", 8),
    ("2.5d", 16),
    ("2.5d", 18),
    ("3d", 8),
    ("weight_gathered", 8),
]


class Ranks:
    """Ranks of a box of some shape, and what rank 0 of them does."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.all: list[Rank] = list(product(*map(range, shape)))
        self.collectives: Counter[tuple[str, float, int]] = Counter()
        self.products: Counter[tuple[float, float, float]] = Counter()

    def at(self, rank: Rank, axis: int, place: int) -> Rank:
        """Return the rank at another place along an axis."""
        return (*rank[:axis], place, *rank[axis + 1 :])

    def line(self, blocks: Blocks, rank: Rank, axis: int) -> list[Matrix]:
        """Return the blocks of the ranks that differ from one along an axis only."""
        return [blocks[self.at(rank, axis, place)] for place in range(self.shape[axis])]

    def note(self, collective: str, axis: int, whole: Matrix) -> None:
        """Count a collective with its bytes, as nccl-tests does, and the ranks that take part."""
        if self.shape[axis] > 1:
            self.collectives[collective, whole.nbytes, self.shape[axis]] += 1

    def broadcast(self, blocks: Blocks, axis: int, root: int) -> Blocks:
        """Give everybody along an axis the root's block."""
        self.note("broadcast", axis, blocks[self.at(self.all[0], axis, root)])
        return {rank: blocks[self.at(rank, axis, root)] for rank in self.all}

    def reduce(self, blocks: Blocks, axis: int, root: int) -> Blocks:
        """Give the roots along an axis the sum."""
        self.note("reduce", axis, blocks[self.all[0]])
        ends = [rank for rank in self.all if rank[axis] == root]
        return {rank: sum_of(self.line(blocks, rank, axis)) for rank in ends}

    def all_reduce(self, blocks: Blocks, axis: int) -> Blocks:
        """Give everybody along an axis the sum."""
        self.note("all_reduce", axis, blocks[self.all[0]])
        return {rank: sum_of(self.line(blocks, rank, axis)) for rank in self.all}

    def all_gather(self, blocks: Blocks, axis: int, side: int) -> Blocks:
        """Give everybody along an axis all blocks, joined as rows (0) or columns (1)."""
        found = {rank: np.concatenate(self.line(blocks, rank, axis), side) for rank in self.all}
        self.note("all_gather", axis, found[self.all[0]])
        return found

    def reduce_scatter(self, blocks: Blocks, axis: int, side: int) -> Blocks:
        """Give everybody along an axis a part of the sum."""
        self.note("reduce_scatter", axis, blocks[self.all[0]])
        parts = self.shape[axis]
        return {
            rank: np.split(sum_of(self.line(blocks, rank, axis)), parts, side)[rank[axis]]
            for rank in self.all
        }

    def multiply(self, left: Blocks, right: Blocks) -> Blocks:
        """Return the product of each rank's two blocks."""
        (m, k), n = left[self.all[0]].shape, right[self.all[0]].shape[1]
        self.products[m, n, k] += 1
        return {rank: left[rank] @ right[rank] for rank in self.all}


def sum_of(blocks: list[Matrix]) -> Matrix:
    return np.asarray(np.sum(blocks, axis=0, dtype=np.float32))


def turned(blocks: Blocks) -> Blocks:
    return {rank: block.T for rank, block in blocks.items()}


def added(one: Blocks, two: Blocks) -> Blocks:
    return {rank: one[rank] + two[rank] for rank in one} if one else two


def cut(whole: Matrix, rows: int, columns: int) -> list[list[Matrix]]:
    return [np.split(part, columns, 1) for part in np.split(whole, rows, 0)]


Forward: TypeAlias = Callable[[Ranks, Blocks, Blocks, bool], Blocks]
Backward: TypeAlias = Callable[[Ranks, Blocks, Blocks, Blocks, bool], tuple[Blocks, Blocks]]


def summa(ranks: Ranks, x: Blocks, w: Blocks, _second: bool) -> Blocks:
    """Ranks are (row, column, depth)."""
    y: Blocks = {}
    for step in range(ranks.shape[0]):
        left, right = ranks.broadcast(x, 1, step), ranks.broadcast(w, 0, step)
        y = added(y, ranks.multiply(left, right))
    return y


def summa_back(
    ranks: Ranks, x: Blocks, w: Blocks, dy: Blocks, _second: bool
) -> tuple[Blocks, Blocks]:
    dx: Blocks = {}
    dw: Blocks = {}
    for step in range(ranks.shape[0]):
        right = ranks.broadcast(w, 0, step)
        dx |= ranks.reduce(ranks.multiply(dy, turned(right)), 1, step)
        left = ranks.broadcast(x, 1, step)
        dw |= ranks.reduce(ranks.multiply(turned(left), dy), 0, step)
    return dx, ranks.all_reduce(dw, 2)


def cube(ranks: Ranks, x: Blocks, w: Blocks, second: bool) -> Blocks:
    """Ranks are (i, j, k); X is split by tokens over i and j. The second matrix swaps j and k."""
    along, across = (2, 1) if second else (1, 2)
    whole = ranks.multiply(ranks.all_gather(x, along, 0), ranks.all_gather(w, 0, 1))
    return ranks.reduce_scatter(whole, across, 0)


def cube_back(
    ranks: Ranks, x: Blocks, w: Blocks, dy: Blocks, second: bool
) -> tuple[Blocks, Blocks]:
    """The gathered factors were kept: gathering them here again is not noted."""
    along, across = (2, 1) if second else (1, 2)
    silent = Ranks(*ranks.shape)
    left, right = silent.all_gather(x, along, 0), silent.all_gather(w, 0, 1)
    after = ranks.all_gather(dy, across, 0)
    dx = ranks.reduce_scatter(ranks.multiply(after, turned(right)), along, 0)
    return dx, ranks.reduce_scatter(ranks.multiply(turned(left), after), 0, 1)


def gathered(ranks: Ranks, x: Blocks, w: Blocks, _second: bool) -> Blocks:
    return ranks.multiply(x, ranks.all_gather(w, 0, 0))


def gathered_back(
    ranks: Ranks, x: Blocks, w: Blocks, dy: Blocks, _second: bool
) -> tuple[Blocks, Blocks]:
    dx = ranks.multiply(dy, turned(ranks.all_gather(w, 0, 0)))
    return dx, ranks.reduce_scatter(ranks.multiply(turned(x), dy), 0, 0)


def dealt(scheme: str, ranks: Ranks, x: Matrix, one: Matrix, two: Matrix) -> tuple[Blocks, ...]:
    """Return each rank's blocks of the input and of both matrices."""
    if scheme == "weight_gathered":
        n = ranks.shape[0]
        return tuple({(r,): np.split(whole, n, 0)[r] for r in range(n)} for whole in (x, one, two))
    if scheme == "3d":
        q = ranks.shape[0]
        x_cut, w_cut, v_cut = cut(x, q * q, q), cut(one, q, q * q), cut(two, q, q * q)
        return (
            {(i, j, k): x_cut[q * i + j][k] for i, j, k in ranks.all},
            {(i, j, k): w_cut[k][q * j + i] for i, j, k in ranks.all},
            {(i, j, k): v_cut[j][q * k + i] for i, j, k in ranks.all},
        )
    q, _, depth = ranks.shape
    x_cut, w_cut, v_cut = cut(x, q * depth, q), cut(one, q, q), cut(two, q, q)
    return (
        {(i, j, k): x_cut[q * k + i][j] for i, j, k in ranks.all},
        {(i, j, k): w_cut[i][j] for i, j, k in ranks.all},
        {(i, j, k): v_cut[i][j] for i, j, k in ranks.all},
    )


def ranks_of(layout: Layout) -> Ranks:
    grid = grid_of(layout)
    if layout.scheme == "weight_gathered":
        return Ranks(layout.tp)  # type: ignore[arg-type]
    return Ranks(grid.side, grid.side, grid.side if layout.scheme == "3d" else grid.depth)


def told(layout: Layout) -> dict[str, Operations]:
    block = Block(count=1, feed_forward=FeedForward(width=WIDTH, gated=False))
    model = Model(name="two", hidden_size=HIDDEN, vocab_size=64, blocks=(block,))
    workload = Train(global_batch=layout.micro_batch, sequence_length=LENGTH, dtype="fp32")
    s = setting_of(model, layout, workload, Software(name="plain", title="plain"))
    passes = layer_otherwise(s, block)
    return {"forward": passes.forward, "backward": passes.backward + passes.weight}


SCHEMES: dict[str, tuple[Forward, Backward]] = {
    "2d": (summa, summa_back),
    "2.5d": (summa, summa_back),
    "3d": (cube, cube_back),
    "weight_gathered": (gathered, gathered_back),
}


def small(rng: np.random.Generator, *shape: int) -> Matrix:
    """Return small whole numbers, which add up exactly in any order."""
    return rng.integers(-2, 3, shape).astype(np.float32)


def assert_same(ranks: Ranks, operations: Operations) -> None:
    collectives: Counter[tuple[str, float, int]] = Counter()
    products: Counter[tuple[float, float, float]] = Counter()
    for op in operations:
        if isinstance(op, Collective) and "(norm" not in op.name:
            collectives[op.collective, op.size_bytes, op.ranks] += op.count
        if isinstance(op, Gemm):
            products[op.m, op.n, op.k] += op.count
    assert ranks.collectives == collectives
    assert ranks.products == products


@pytest.mark.parametrize(("scheme", "tp"), DEGREES)
def test_ranks_that_do_what_is_told_get_the_right_result(scheme: str, tp: int) -> None:
    layout = Layout(tp=tp, scheme=scheme, micro_batch=SEQUENCES)
    rng = np.random.default_rng(tp)
    x, w, v = (
        small(rng, SEQUENCES * LENGTH, HIDDEN),
        small(rng, HIDDEN, WIDTH),
        small(rng, WIDTH, HIDDEN),
    )
    dz = small(rng, *x.shape)
    forward, backward = SCHEMES[scheme]

    ranks, later = ranks_of(layout), ranks_of(layout)
    mine, first, second = dealt(scheme, ranks, x, w, v)
    after, _, _ = dealt(scheme, ranks, x @ w @ v, w, v)
    before, w_gradient, v_gradient = dealt(
        scheme, ranks, dz @ v.T @ w.T, x.T @ (dz @ v.T), (x @ w).T @ dz
    )

    y = forward(ranks, mine, first, False)
    z = forward(ranks, y, second, True)
    assert equal(z, after)
    assert_same(ranks, told(layout)["forward"])

    given, _, _ = dealt(scheme, ranks, dz, w, v)
    dy, dv = backward(later, y, second, given, True)
    dx, dw = backward(later, mine, first, dy, False)
    assert equal(dv, v_gradient)
    assert equal(dw, w_gradient)
    assert equal(dx, before)
    assert_same(later, told(layout)["backward"])


def equal(ours: Blocks, theirs: Blocks) -> bool:
    return all(np.array_equal(ours[rank], theirs[rank]) for rank in theirs)

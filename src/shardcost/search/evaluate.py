"""Prices a block of cells: `part_of`. The mathematics is `estimate`'s, on arrays.

The steps, each on fewer cells than the one before:

1. rules on the open grid of meshes x sequences x virtual_stages leave the possible cells;
2. memory on pairs (mesh, sequences) x virtual_stages leaves those that fit;
3. operations are priced once per pair: virtual_stages do not change them;
4. the schedule runs on a plain row of the cells that fit.

A family shares much with those before it: a schedule changes nothing of what operations take, an
overlap nothing of what a rank holds. What is found for some meshes is kept for the next families
under the name of the first one that has the same choices as far as they matter.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from shardcost.backends import to_backend, to_numpy
from shardcost.checks import is_array
from shardcost.errors import Reason, Rule
from shardcost.estimate.ledger import Ledger
from shardcost.estimate.result import footprint
from shardcost.estimate.step import ledger_of
from shardcost.layout import Layout
from shardcost.machine import machine_of
from shardcost.program.feasibility import reasons
from shardcost.schedule.work import at_cells
from shardcost.search.duplicates import duplicates
from shardcost.search.grid import Cells, Grid, Indices, by_axis
from shardcost.search.parts import KEPT, Part
from shardcost.search.question import Block, Question
from shardcost.workload import Decode, Prefill, Workload

STRETCH: Final = 1.1
"""Cells beyond the memory by no more than this are priced too: what more memory would bring."""
_FAR: Final = 2.0
_BEYOND_MEMORY: Final = Rule("does_not_fit_memory", "does not fit memory")
_FAR_BEYOND_MEMORY: Final = Rule(
    "does_not_fit_memory_by_far", "does not fit memory by more than {:g}x"
)
_CHANGE_PAIRS: Final = ("sequence_parallel", "scheme", "context_scheme", "shard_degree")
"""Choices that change which layouts are possible before any schedule."""
_CHANGE_MEMORY: Final = (*_CHANGE_PAIRS, "recompute", "zero", "interleaved")
_CHANGE_LAYERS: Final = (*_CHANGE_PAIRS, "recompute", "tp_overlap", "order")
"""Choices that change what a layer does or takes."""
_CHANGE_STEP: Final = (*_CHANGE_LAYERS, "zero", "dp_overlap")
"""And what happens once a step, whatever the schedule."""

Mask = NDArray[np.bool_]


def part_of(question: Question, block: Block, most: int = KEPT, *, table: bool = False) -> Part:
    """Return what a block of cells amounts to.

    Args:
        question: What is asked.
        block: Which of its cells.
        most: Best cells to keep.
        table: Keep all feasible cells.
    """
    grid = Grid(question, block)
    rejected: Counter[Reason] = Counter()
    possible = _possible(grid, rejected)
    found = Part(considered=possible.size, rejected=rejected)
    if not possible.any():
        return found
    at = _AtPairs(grid, possible)
    found = replace(found, smallest=grid.columns(at.smallest()))
    cells = _keeping(grid, at.priced(rejected), rejected)
    inside = cells.memory_bytes <= grid.limit_bytes
    if not inside.all():
        found = replace(found, beyond=grid.best(cells.some(~inside), 1))
        cells = cells.some(inside)
    if not len(cells.mesh):
        return found
    return replace(
        found,
        feasible=len(cells.mesh),
        best=grid.best(cells, most),
        front=grid.front(cells),
        by_axis=dict(by_axis(grid, cells)),
        table=grid.columns(cells) if table else {},
    )


def _possible(grid: Grid, rejected: Counter[Reason]) -> Mask:
    """Return the possible cells; the others are counted by the first reason against them."""
    like = grid.question.like(grid.block, (*_CHANGE_PAIRS, "schedule"))
    before, counted = _ruled(grid.question, like)
    rejected.update(counted)
    left = before.copy()
    _strike(left, duplicates(grid.open_layout, grid.question.space, grid.family), rejected)
    return left


@lru_cache(maxsize=4)
def _ruled(question: Question, block: Block) -> tuple[Mask, Counter[Reason]]:
    """Return what rules leave of a block before layouts that are alike, and their counts."""
    grid, counted = Grid(question, block), Counter[Reason]()
    left = np.ones(grid.shape, dtype=bool)
    _strike(left, _impossible(grid, grid.open_layout, grid.open_sequences), counted)
    return left, counted


def _strike(left: Mask, against: dict[Reason, Any], counted: Counter[Reason]) -> None:
    """Take cells out of those left, and count them by the first reason against them."""
    for reason, where in against.items():
        if np.any(where):
            struck = left & where
            counted[reason] += int(np.count_nonzero(struck))
            left ^= struck


def _impossible(grid: Grid, layout: Layout, sequences: Any) -> dict[Reason, Any]:
    question = grid.question
    model, cluster = question.model, question.cluster
    against = reasons(model, layout, question.workload_of(sequences), cluster)
    if question.prompts:
        prompt = reasons(model, layout, _prompt(question.workload, layout), cluster)
        against |= {
            reason._replace(message=f"one prompt: {reason}"): where
            for reason, where in prompt.items()
        }
    return against


@lru_cache(maxsize=4)
def _pairs(question: Question, block: Block) -> tuple[Indices, Indices]:
    """Return which meshes go with which sequences, whatever the schedule."""
    grid = Grid(question, block)
    sequences = grid.sequences.reshape(1, -1)
    layout = replace(grid.layout(slice(None), sequences, 1, (-1, 1)), schedule="1f1b")
    left = np.ones(grid.shape[:2], dtype=bool)
    for where in _impossible(grid, layout, sequences).values():
        left &= np.logical_not(where)
    rows, columns = np.nonzero(left)
    return rows, columns


def _pairs_of(grid: Grid) -> tuple[Indices, Indices]:
    return _pairs(grid.question, grid.question.like(grid.block, _CHANGE_PAIRS))


class _Held(NamedTuple):
    """Memory of the possible cells of a grid: pairs by those virtual stages that occur."""

    virtual_stages: Indices
    memory_bytes: NDArray[np.float64]


@lru_cache(maxsize=16)
def _held(question: Question, block: Block) -> _Held:
    """Return what ranks hold."""
    grid = Grid(question, block)
    ruled, _ = _ruled(question, question.like(block, (*_CHANGE_PAIRS, "schedule")))
    virtual_stages = np.flatnonzero(ruled.any(axis=(0, 1)))
    layout, workload = _laid_out(grid, virtual_stages)
    machine = machine_of(question.cluster, grid.software)
    peak = footprint(question.model, machine, layout, workload, grid.software)
    shape = (len(_pairs_of(grid)[0]), len(virtual_stages))
    return _Held(virtual_stages, np.broadcast_to(to_numpy(peak.peak_bytes), shape))


def _laid_out(grid: Grid, virtual_stages: Indices) -> tuple[Layout, Workload]:
    """Return the pairs of a grid down the first axis and virtual stages along the second."""
    mesh, places = _pairs_of(grid)
    sequences = grid.sequences[places].reshape(-1, 1)
    values: Any = grid.virtual_stages[virtual_stages].reshape(1, -1)
    layout = grid.layout(mesh, sequences, values if values.size > 1 else values.item(), (-1, 1))
    backend = grid.question.backend
    return _moved(layout, backend), _moved(grid.question.workload_of(sequences), backend)


def _moved(given: Any, backend: str) -> Any:
    """Return a noun with its arrays on another library's device."""
    if backend == "numpy":
        return given
    arrays = {name: each for name, each in vars(given).items() if is_array(each)}
    return replace(given, **{name: to_backend(backend, each) for name, each in arrays.items()})


@lru_cache(maxsize=4)
def _priced(question: Question, block: Block, phase: str) -> Ledger:
    """Return what pairs do in a step, and what it takes; the same for all schedules."""
    grid = Grid(question, block)
    like = question.like(block, _CHANGE_LAYERS)
    known = None if like == block else _priced(question, like, phase)
    layout, workload = _laid_out(grid, np.array([0]))
    if phase != workload.phase:
        workload = _prompt(workload, layout)
    machine = machine_of(question.cluster, grid.software)
    return ledger_of(question.model, machine, layout, workload, grid.software, known)


def _prompt(workload: Workload, layout: Layout) -> Prefill:
    """Return the prefill to be priced beside decoding: one prompt for each replica."""
    decode = cast("Decode", workload)
    return Prefill(
        batch=layout.dp,
        prompt_tokens=decode.context_tokens,
        dtype=decode.dtype,
        cache_dtype=decode.cache_dtype,
    )


class _AtPairs:
    """The possible cells of a grid, by pairs of mesh and sequences, and virtual_stages."""

    def __init__(self, grid: Grid, possible: Mask) -> None:
        self.grid = grid
        self.mesh, self.sequences = _pairs_of(grid)
        like = grid.question.like(grid.block, _CHANGE_MEMORY)
        self.virtual_stages, self.memory = _held(grid.question, like)
        self.possible = possible[self.mesh, self.sequences][:, self.virtual_stages]

    def cells(self, rows: Indices, columns: Indices) -> Cells:
        """Return cells by their place among the pairs and virtual_stages."""
        memory = self.memory[rows, columns]
        return Cells(self.mesh[rows], self.sequences[rows], self.virtual_stages[columns], memory)

    def smallest(self) -> Cells:
        """Return the cell with the least memory."""
        least = np.argmin(np.where(self.possible, self.memory, np.inf))
        row, column = np.unravel_index([least], self.possible.shape)
        return self.cells(row, column)

    def priced(self, rejected: Counter[Reason]) -> Cells:
        """Return the cells that fit, or nearly, with their times."""
        limit = self.grid.limit_bytes
        over = self.possible & (self.memory > limit)
        far = int(np.count_nonzero(over & (self.memory > _FAR * limit)))
        rejected[_FAR_BEYOND_MEMORY.reason(_FAR)] += far
        rejected[_BEYOND_MEMORY.reason()] += int(np.count_nonzero(over)) - far
        rows, columns = np.nonzero(self.possible & (self.memory <= STRETCH * limit))
        cells = self.cells(rows, columns)
        if not len(rows):
            return cells._replace(time_s=cells.memory_bytes)
        question = self.grid.question
        move = partial(to_backend, question.backend)
        take = partial(at_cells, rows=move(rows), columns=move(columns))
        layout, work = _laid_out(self.grid, self.virtual_stages)
        cells = cells._replace(
            time_s=np.broadcast_to(self._time_s(work.phase, layout, take), rows.shape)
        )
        if not question.prompts:
            return cells
        return cells._replace(ttft_s=self._time_s(Prefill.phase, layout, take))

    def _time_s(self, phase: str, layout: Layout, take: Any) -> Any:
        """Return the times of a step under the family's own schedule."""
        question = self.grid.question
        ledger = _priced(question, question.like(self.grid.block, _CHANGE_STEP), phase)
        setting = replace(ledger.program.setting, layout=layout)
        own = replace(ledger, program=replace(ledger.program, setting=setting))
        return to_numpy(own.time_s(take))


def _keeping(grid: Grid, cells: Cells, rejected: Counter[Reason]) -> Cells:
    """Return the cells that keep all limits; of the others those that fit memory are counted."""
    if not len(cells.mesh):
        return cells
    question = grid.question
    fits = cells.memory_bytes <= grid.limit_bytes
    left = np.ones(len(cells.mesh), dtype=bool)
    for reason, where in question.constraints.broken(grid.figures(cells), question.workload):
        struck = left & where
        rejected[reason] += int(np.count_nonzero(struck & fits))
        left ^= struck
    return cells if left.all() else cells.some(left)

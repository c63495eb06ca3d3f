"""Prices a block of cells: `part_of`. The mathematics is `estimate`'s, on arrays.

The steps, each on fewer cells than the one before:

1. rules on the open grid of meshes x sequences x chunks leave the possible cells;
2. memory on pairs (mesh, sequences) x chunks leaves those that fit;
3. operations are priced once per pair: chunks do not change them, and all families price the same
   pairs, so that what one has priced serves the next;
4. the schedule runs on a plain row of the cells that fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcost.backends import to_backend, to_numpy
from shardcost.checks import is_array
from shardcost.estimate.totals import held, priced, total_s
from shardcost.estimate.work import RankWork
from shardcost.layout import Layout
from shardcost.schedule.work import at_cells
from shardcost.search.objectives import Figures
from shardcost.search.parts import KEPT, Columns, Part, best_rows, front_rows
from shardcost.search.question import Block, Question
from shardcost.search.rules import impossible, twice
from shardcost.search.space import CHOICES, STEP_CHOICES
from shardcost.workload import Decode, Prefill, Train, Workload

STRETCH: Final = 1.1
"""Cells beyond the memory by no more than this are priced too: what more memory would bring."""
_FAR: Final = 2.0
_CHANGE_PAIRS: Final = ("sequence_parallel", "scheme", "context_scheme", "shard_degree")
"""Choices that change which layouts are possible before any schedule."""

Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]


def part_of(question: Question, block: Block, most: int = KEPT, *, table: bool = False) -> Part:
    """Return what a block of cells amounts to.

    Args:
        question: What is asked.
        block: Which of its cells.
        most: Best cells to keep.
        table: Keep all feasible cells.
    """
    grid = _Grid(question, block)
    rejected: Counter[str] = Counter()
    possible = _possible(grid, rejected)
    found = Part(considered=possible.size, rejected=rejected)
    if not possible.any():
        return found
    at = _AtPairs(grid, possible)
    found = replace(found, smallest=grid.columns(at.smallest()))
    cells = _keeping(grid, at.priced(rejected), rejected)
    inside = cells.memory_bytes <= grid.limit_bytes
    found = replace(found, beyond=grid.best(cells.some(~inside), 1))
    cells = cells.some(inside)
    if not len(cells.mesh):
        return found
    return replace(
        found,
        feasible=len(cells.mesh),
        best=grid.best(cells, most),
        front=grid.front(cells),
        by_axis=dict(_by_axis(grid, cells)),
        table=grid.columns(cells) if table else {},
    )


class Cells(NamedTuple):
    """Cells in a row: where each is on the grid, and what is known of it."""

    mesh: Indices
    sequences: Indices
    chunks: Indices
    memory_bytes: NDArray[np.float64]
    time_s: Any = None
    ttft_s: Any = None

    def some(self, which: Any) -> Cells:
        """Return some of them."""
        found: list[Any] = [None if each is None else each[which] for each in self]
        return Cells(*found)


class _Grid:
    """One block: its meshes, its sizes, and what stands for all of its cells."""

    def __init__(self, question: Question, block: Block) -> None:
        self.question, self.block = question, block
        self.family = question.families[block.family]
        self.software = question.runs(block.family)
        self.meshes = question.meshes.some(slice(block.start, block.stop))
        self.sequences = np.array(question.sequences)
        self.chunks = np.array(question.chunks(block.family))
        self.training = isinstance(question.workload, Train)
        share = 1 - question.constraints.memory_headroom
        self.limit_bytes = question.cluster.device.memory_bytes * share

    @property
    def shape(self) -> tuple[int, int, int]:
        """Meshes, sequences, chunks."""
        return self.meshes.number, len(self.sequences), len(self.chunks)

    @cached_property
    def pairs(self) -> tuple[Indices, Indices]:
        """Which meshes go with which sequences."""
        own, space = self.family, self.question.space
        shared = {name: getattr(space, name)[0] for name in CHOICES if name not in _CHANGE_PAIRS}
        base = self.question.families.index(own._replace(**shared))
        return _pairs(self.question, self.block._replace(family=base))

    def layout(self, mesh: Any, sequences: Any, chunks: Any, shape: tuple[int, ...]) -> Layout:
        """Return layouts with some meshes, shaped, and with values of the other axes."""
        degrees = {
            name: column[mesh].reshape(shape)
            for name, column in self.meshes._asdict().items()
            if name != "gpus"
        }
        if self.block.stop <= self.question.whole_sequences:
            degrees["cp"] = 1
        if self.question.space.ep == (1,):
            degrees["ep"] = 1
        micro_batch = sequences if self.training else 1
        return self.family.layout(**degrees, micro_batch=micro_batch, chunks=chunks)

    def workload(self, sequences: Any) -> Workload:
        """Return the workload with so many sequences, which in training are the layout's."""
        given = self.question.workload
        return given if isinstance(given, Train) else replace(given, batch=sequences)  # type: ignore[type-var]

    def figures(self, cells: Cells) -> Figures:
        """Return what objectives and limits look at."""
        sequences = self.sequences[cells.sequences]
        return Figures(
            time_s=cells.time_s,
            memory_bytes=cells.memory_bytes,
            gpus=self.meshes.gpus[cells.mesh],
            tokens=self.workload(sequences).tokens,
            ttft_s=cells.ttft_s,
        )

    def score(self, cells: Cells) -> Any:
        """Return the figure that is to be small."""
        return self.question.objective.score(self.figures(cells), self.question.cluster)

    def numbers(self, cells: Cells) -> Any:
        """Return the cells' numbers in the whole question."""
        row = (self.block.start + cells.mesh) * len(self.sequences) + cells.sequences
        first = self.question.first_cells[self.block.family]
        return first + row * len(self.chunks) + cells.chunks

    def best(self, cells: Cells, most: int) -> Columns:
        """Return the best cells as a table."""
        if not len(cells.mesh):
            return {}
        rows = best_rows(self.score(cells), cells.memory_bytes, self.numbers(cells), most)
        return self.columns(cells.some(rows))

    def front(self, cells: Cells) -> Columns:
        """Return the cells that no other beats in both figures of the question's plane."""
        plane = self.question.plane(self.figures(cells))
        return self.columns(cells.some(front_rows(*plane, self.numbers(cells))))

    def columns(self, cells: Cells) -> Columns:
        """Return cells as a table."""
        sequences = self.sequences[cells.sequences]
        ones = np.ones_like(sequences)
        found: Columns = {
            "cell": self.numbers(cells),
            "question": np.full(len(sequences), self.question.number),
            "family": np.full(len(sequences), self.block.family),
            **{name: column[cells.mesh] for name, column in self.meshes._asdict().items()},
            "micro_batch": sequences if self.training else ones,
            "batch": ones if self.training else sequences,
            "chunks": self.chunks[cells.chunks],
            "memory_bytes": cells.memory_bytes,
        }
        if cells.time_s is None:
            return found
        x, y = self.question.plane(self.figures(cells))
        found |= {"time_s": cells.time_s, "score": self.score(cells), "x": x, "y": y}
        return found if cells.ttft_s is None else found | {"ttft_s": cells.ttft_s}


@lru_cache(maxsize=256)
def _pairs(question: Question, block: Block) -> tuple[Indices, Indices]:
    """Return which meshes go with which sequences, whatever the schedule."""
    grid = _Grid(question, block)
    sequences = grid.sequences.reshape(1, -1)
    layout = replace(grid.layout(slice(None), sequences, 1, (-1, 1)), schedule="1f1b")
    left = np.ones(grid.shape[:2], dtype=bool)
    for where in _impossible(grid, layout, sequences).values():
        left &= np.logical_not(where)
    rows, columns = np.nonzero(left)
    return rows, columns


def _impossible(grid: _Grid, layout: Layout, sequences: Any) -> dict[str, Any]:
    question = grid.question
    workload = grid.workload(sequences)
    return impossible(question.model, question.cluster, layout, workload, grid.software)


def _possible(grid: _Grid, rejected: Counter[str]) -> Mask:
    """Return the possible cells; the others are counted by the first reason against them."""
    sequences = grid.sequences.reshape(1, -1, 1)
    layout = grid.layout(slice(None), sequences, grid.chunks.reshape(1, 1, -1), (-1, 1, 1))
    left = np.ones(grid.shape, dtype=bool)
    found = _impossible(grid, layout, sequences)
    found |= twice(layout, grid.question.space, grid.family)
    for reason, where in found.items():
        if np.any(where):
            struck = left & where
            rejected[reason] += int(np.count_nonzero(struck))
            left ^= struck
    return left


def _moved(given: Any, backend: str) -> Any:
    """Return a noun with its arrays on another library's device."""
    if backend == "numpy":
        return given
    arrays = {name: each for name, each in vars(given).items() if is_array(each)}
    return replace(given, **{name: to_backend(backend, each) for name, each in arrays.items()})


_LAYERS: Final[dict[Any, RankWork]] = {}
"""What was priced last, for families that have the same layers."""


class _AtPairs:
    """The possible cells of a grid: pairs of mesh and sequences by those chunks that occur."""

    def __init__(self, grid: _Grid, possible: Mask) -> None:
        self.grid = grid
        self.mesh, self.sequences = grid.pairs
        self.chunks = np.flatnonzero(possible.any(axis=(0, 1)))
        self.possible = possible[self.mesh, self.sequences][:, self.chunks]
        sequences: Any = grid.sequences[self.sequences].reshape(-1, 1)
        chunks: Any = grid.chunks[self.chunks].reshape(1, -1)
        chunks = chunks if chunks.size > 1 else chunks.item()
        layout = grid.layout(self.mesh, sequences, chunks, (-1, 1))
        self.layout: Layout = _moved(layout, grid.question.backend)
        self.workload = _moved(grid.workload(sequences), grid.question.backend)
        asked = grid.question
        peak = held(asked.model, asked.cluster.device, self.layout, self.workload, grid.software)
        self.memory = np.broadcast_to(to_numpy(peak.peak_bytes), self.possible.shape)

    def cells(self, rows: Indices, columns: Indices) -> Cells:
        """Return cells by their place among the pairs and chunks."""
        memory = self.memory[rows, columns]
        return Cells(self.mesh[rows], self.sequences[rows], self.chunks[columns], memory)

    def smallest(self) -> Cells:
        """Return the cell with the least memory."""
        least = np.argmin(np.where(self.possible, self.memory, np.inf))
        row, column = np.unravel_index([least], self.possible.shape)
        return self.cells(row, column)

    def priced(self, rejected: Counter[str]) -> Cells:
        """Return the cells that fit, or nearly, with their times."""
        limit = self.grid.limit_bytes
        over = self.possible & (self.memory > limit)
        far = int(np.count_nonzero(over & (self.memory > _FAR * limit)))
        rejected[f"does not fit memory by more than {_FAR:g}x"] += far
        rejected["does not fit memory"] += int(np.count_nonzero(over)) - far
        rows, columns = np.nonzero(self.possible & (self.memory <= STRETCH * limit))
        cells = self.cells(rows, columns)
        if not len(rows):
            return cells._replace(time_s=cells.memory_bytes)
        move = partial(to_backend, self.grid.question.backend)
        take = partial(at_cells, rows=move(rows), columns=move(columns))
        prompt = self._prompt()
        return cells._replace(
            time_s=np.broadcast_to(self._time_s(self.workload, take), rows.shape),
            ttft_s=None if prompt is None else self._time_s(prompt, take),
        )

    def _time_s(self, workload: Workload, take: Any) -> Any:
        asked, grid = self.grid.question, self.grid
        given = (asked.model, asked.cluster, self.layout, workload, grid.software, asked.wire)
        choices = grid.family._asdict().items()
        layers = tuple(value for name, value in choices if name not in STEP_CHOICES)
        key = (asked, layers, grid.block[1:], workload.phase)
        known = _LAYERS.get(key)
        program, _, work = priced(*given, known=known)
        if known is None:
            _LAYERS.clear()  # families that share layers follow each other
            _LAYERS[key] = work
        return to_numpy(total_s(program, work, take))

    def _prompt(self) -> Workload | None:
        """Return the prefill to be priced beside the decoding: one prompt for each replica."""
        work = self.grid.question.workload
        if not isinstance(work, Decode) or self.grid.question.constraints.max_ttft_s is None:
            return None
        return Prefill(
            batch=self.layout.dp,
            prompt_tokens=work.context_tokens,
            dtype=work.dtype,
            cache_dtype=work.cache_dtype,
        )


def _keeping(grid: _Grid, cells: Cells, rejected: Counter[str]) -> Cells:
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


def _by_axis(grid: _Grid, cells: Cells) -> Iterator[tuple[tuple[str, Any], float]]:
    """Yield the best score with each value of each axis."""
    score = grid.score(cells)
    best = [np.full(size, np.inf) for size in grid.shape]
    for least, places in zip(best, cells[:3], strict=True):
        np.minimum.at(least, places, score)
    for name, values in grid.meshes._asdict().items():
        for value in np.unique(values):
            yield (name, int(value)), float(best[0][values == value].min())
    sequences = "micro_batch" if grid.training else "batch"
    sizes = ((sequences, grid.sequences), ("chunks", grid.chunks))
    for (name, values), least in zip(sizes, best[1:], strict=True):
        for value, most in zip(values, least, strict=True):
            yield (name, int(value)), float(most)
    whole = {"model": grid.question.model.name, "cluster": grid.question.place}
    for name, value in {**grid.family._asdict(), **whole}.items():
        yield (name, value), float(score.min())

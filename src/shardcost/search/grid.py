"""One block of cells as arrays: `Grid` lays its axes out, and says of cells what they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcost.layout import Layout
from shardcost.search.objectives import Figures
from shardcost.search.parts import Columns, best_rows, distinct_rows, front_rows
from shardcost.search.question import Block, Question
from shardcost.workload import Train

Indices = NDArray[np.intp]


class Cells(NamedTuple):
    """Cells in a row: where each is on the grid, and what is known of it."""

    mesh: Indices
    sequences: Indices
    virtual_stages: Indices
    memory_bytes: NDArray[np.float64]
    time_s: Any = None
    ttft_s: Any = None

    def some(self, which: Any) -> Cells:
        """Return some of them."""
        columns: list[Any] = [None if column is None else column[which] for column in self]
        return Cells(*columns)


class Grid:
    """One block: its meshes, its sizes, and what stands for all of its cells."""

    def __init__(self, question: Question, block: Block) -> None:
        self.question, self.block = question, block
        self.family = question.families[block.family]
        self.software = question.runs(block.family)
        self.meshes = question.meshes.some(slice(block.start, block.stop))
        self.sequences = np.array(question.sequences)
        self.virtual_stages = np.array(question.virtual_stages(block.family))
        self.training = isinstance(question.workload, Train)
        share = 1 - question.constraints.memory_headroom
        self.limit_bytes = question.cluster.device.memory_bytes * share

    @property
    def shape(self) -> tuple[int, int, int]:
        """Meshes, sequences, virtual_stages."""
        return self.meshes.number, len(self.sequences), len(self.virtual_stages)

    @property
    def open_sequences(self) -> NDArray[np.int64]:
        """Sequences along the second of three axes."""
        return self.sequences.reshape(1, -1, 1)

    @property
    def open_layout(self) -> Layout:
        """All cells: meshes along the first axis, sequences the second, virtual stages third."""
        virtual_stages = self.virtual_stages.reshape(1, 1, -1)
        return self.layout(slice(None), self.open_sequences, virtual_stages, (-1, 1, 1))

    def layout(
        self, mesh: Any, sequences: Any, virtual_stages: Any, shape: tuple[int, ...]
    ) -> Layout:
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
        return self.family.layout(**degrees, micro_batch=micro_batch, virtual_stages=virtual_stages)

    def figures(self, cells: Cells) -> Figures:
        """Return what objectives and limits look at."""
        sequences = self.sequences[cells.sequences]
        return Figures(
            time_s=cells.time_s,
            memory_bytes=cells.memory_bytes,
            gpus=self.meshes.gpus[cells.mesh],
            tokens=self.question.workload_of(sequences).tokens,
            ttft_s=cells.ttft_s,
        )

    def score(self, cells: Cells) -> Any:
        """Return the figure that is to be small."""
        return self.question.objective.score(self.figures(cells), self.question.cluster)

    def numbers(self, cells: Cells) -> Any:
        """Return the cells' numbers in the whole question."""
        row = (self.block.start + cells.mesh) * len(self.sequences) + cells.sequences
        first = self.question.first_cells[self.block.family]
        return first + row * len(self.virtual_stages) + cells.virtual_stages

    def best(self, cells: Cells, most: int, *, distinct: bool = False) -> Columns:
        """Return the best cells as a table: of all, or near the best of each of the best meshes."""
        if not len(cells.mesh):
            return {}
        score, ties = self.score(cells), self._ties(cells)
        if distinct:
            return self.columns(cells.some(distinct_rows(score, cells.mesh, ties, most)))
        return self.columns(cells.some(best_rows(score, ties, most)))

    def _ties(self, cells: Cells) -> tuple[Any, ...]:
        return self.meshes.gpus[cells.mesh], cells.memory_bytes, self.numbers(cells)

    def front(self, cells: Cells) -> Columns:
        """Return the cells that no other beats in both figures of the question's plane."""
        plane = self.question.plane(self.figures(cells))
        return self.columns(cells.some(front_rows(*plane, self._ties(cells))))

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
            "virtual_stages": self.virtual_stages[cells.virtual_stages],
            "memory_bytes": cells.memory_bytes,
        }
        if cells.time_s is None:
            return found
        x, y = self.question.plane(self.figures(cells))
        found |= {"time_s": cells.time_s, "score": self.score(cells), "x": x, "y": y}
        return found if cells.ttft_s is None else found | {"ttft_s": cells.ttft_s}


def by_axis(grid: Grid, cells: Cells) -> Iterator[tuple[tuple[str, Any], float]]:
    """Yield the best score with each value of each axis."""
    score = grid.score(cells)
    best = [np.full(size, np.inf) for size in grid.shape]
    for least, places in zip(best, cells[:3], strict=True):
        np.minimum.at(least, places, score)
    for name, values in grid.meshes._asdict().items():
        for value in np.unique(values):
            yield (name, int(value)), float(best[0][values == value].min())
    sequences = "micro_batch" if grid.training else "batch"
    sizes = ((sequences, grid.sequences), ("virtual_stages", grid.virtual_stages))
    for (name, values), least in zip(sizes, best[1:], strict=True):
        for value, most in zip(values, least, strict=True):
            yield (name, int(value)), float(most)
    for name, value in {**grid.family._asdict(), **grid.question.own}.items():
        yield (name, value), float(score.min())

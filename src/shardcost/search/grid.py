"""One block of cells as arrays: `Grid` lays its axes out, and says of cells what they are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcost.layout import Layout
from shardcost.records import NamedTuple
from shardcost.search.objectives import Figures
from shardcost.search.parts import Columns, best_rows, distinct_rows, front_rows
from shardcost.search.question import Block, Question
from shardcost.search.space import Family
from shardcost.workload import Train, Workload

Indices = NDArray[np.intp]


class Cells(NamedTuple):
    """Cells in a row: where each is on the grid, and what is known of it."""

    family: NDArray[np.integer[Any]]
    """Which of the block's families."""
    mesh: NDArray[np.integer[Any]]
    sequences: NDArray[np.integer[Any]]
    virtual_stages: NDArray[np.integer[Any]]
    memory_bytes: NDArray[np.float64]
    time_s: Any = None
    ttft_s: Any = None

    def some(self, which: Any) -> Cells:
        """Return some of them."""
        columns: list[Any] = [None if column is None else column[which] for column in self]
        return Cells(*columns)


class Axis(NamedTuple):
    """One axis of a search."""

    place: str
    """The column of `Cells` that decides on its value."""
    values: list[Any]
    which: Indices
    """Which of them each place of that column has."""


class Grid:
    """One block: its families, its meshes, its sizes."""

    def __init__(self, question: Question, block: Block) -> None:
        self.question, self.block = question, block
        self.families = [question.families[number] for number in block.families]
        self.meshes = question.meshes.some(slice(block.start, block.stop))
        self.sequences = np.array(question.sequences)
        self.virtual_stages = np.array(question.space.virtual_stages or (1,))
        """Of all schedules."""
        self.training = isinstance(question.workload, Train)
        share = 1 - question.constraints.memory_headroom
        self.limit_bytes = question.cluster.device.memory_bytes * share

    def virtual_stages_of(self, schedule: str) -> Indices:
        """Return which virtual stages a schedule may have, by their place among all of them."""
        return np.flatnonzero(np.isin(self.virtual_stages, self.question.virtual_stages(schedule)))

    def layout(self, family: Family, mesh: Any, sequences: Any, virtual_stages: Any) -> Layout:
        """Return layouts of a family with some meshes and with values of the other axes."""
        degrees: dict[str, Any] = {
            name: column[mesh] for name, column in self.meshes._asdict().items() if name != "gpus"
        }
        if self.block.stop <= self.question.whole_sequences:
            degrees["cp"] = 1
        if self.question.space.ep == (1,):
            degrees["ep"] = 1
        micro_batch = sequences if self.training else 1
        return family.layout(**degrees, micro_batch=micro_batch, virtual_stages=virtual_stages)

    def open_layout(self, family: Family, virtual_stages: Indices) -> tuple[Layout, Workload]:
        """Return all cells of a family: meshes, sequences and virtual stages along three axes."""
        sequences = self.sequences.reshape(1, -1, 1)
        mesh = np.arange(self.meshes.number).reshape(-1, 1, 1)
        layout = self.layout(family, mesh, sequences, self.virtual_stages[virtual_stages])
        return layout, self.question.workload_of(sequences)

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

    @cached_property
    def _numbering(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """By family: the number of its first cell, how many virtual stages it has, their places."""
        own = [self.virtual_stages_of(family.schedule) for family in self.families]
        places = np.zeros((len(own), len(self.virtual_stages)), dtype=np.int64)
        for row, chosen in zip(places, own, strict=True):
            row[chosen] = np.arange(len(chosen))
        first = np.array([self.question.first_cells[number] for number in self.block.families])
        return first, np.array([len(chosen) for chosen in own]), places

    def numbers(self, cells: Cells) -> Any:
        """Return the cells' numbers in the whole question."""
        first, widths, places = self._numbering
        mesh = cells.mesh.astype(np.int64)  # numbers may be larger than 32 bits
        row = (self.block.start + mesh) * len(self.sequences) + cells.sequences
        place = places[cells.family, cells.virtual_stages]
        return first[cells.family] + row * widths[cells.family] + place

    def best(self, cells: Cells, most: int, *, distinct: bool = False) -> Columns:
        """Return the best cells as a table: of all, or near the best of each of the best meshes."""
        if not len(cells.mesh):
            return {}
        score, ties = self.score(cells), self.ties(cells)
        if distinct:
            return self.columns(cells.some(distinct_rows(score, cells.mesh, ties, most)))
        return self.columns(cells.some(best_rows(score, ties, most)))

    def ties(self, cells: Cells) -> tuple[Any, ...]:
        """Return what decides between cells that are equally good."""
        return self.meshes.gpus[cells.mesh], cells.memory_bytes, self.numbers(cells)

    def front(self, cells: Cells) -> Columns:
        """Return the cells that no other beats in both figures of the question's plane."""
        plane = self.question.plane(self.figures(cells))
        return self.columns(cells.some(front_rows(*plane, self.ties(cells))))

    def columns(self, cells: Cells) -> Columns:
        """Return cells as a table."""
        sequences = self.sequences[cells.sequences]
        ones = np.ones_like(sequences)
        found: Columns = {
            "cell": self.numbers(cells),
            "question": np.full(len(sequences), self.question.number),
            "family": np.array(self.block.families)[cells.family],
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

    @cached_property
    def axes(self) -> dict[str, Axis]:
        """Every axis of the layouts."""
        axes = {}
        for name, column in zip(self.meshes._fields, self.meshes, strict=True):
            values = sorted(set(column.tolist()))
            axes[name] = Axis("mesh", values, np.searchsorted(values, column))
        sizes = {
            "sequences": ("micro_batch" if self.training else "batch", self.sequences),
            "virtual_stages": ("virtual_stages", self.virtual_stages),
        }
        for place, (name, numbers) in sizes.items():
            axes[name] = Axis(place, numbers.tolist(), np.arange(len(numbers)))
        for name in Family._fields:
            own = [getattr(family, name) for family in self.families]
            words = list(dict.fromkeys(own))
            axes[name] = Axis("family", words, np.array([words.index(word) for word in own]))
        return axes

    def least(self, cells: Cells, score: Any) -> dict[str, NDArray[np.float64]]:
        """Return the best score at each place of each column that axes depend on."""
        sizes = {
            "family": len(self.families),
            "mesh": self.meshes.number,
            "sequences": len(self.sequences),
            "virtual_stages": len(self.virtual_stages),
        }
        least = {place: np.full(size, np.inf) for place, size in sizes.items()}
        for place, best in least.items():
            np.minimum.at(best, getattr(cells, place), score)
        return least

    def by_axis(self, cells: Cells) -> Iterator[tuple[tuple[str, Any], float]]:
        """Yield the best score with each value of each axis that some cell has."""
        score = self.score(cells)
        least = self.least(cells, score)
        for name, axis in self.axes.items():
            best = np.full(len(axis.values), np.inf)
            np.minimum.at(best, axis.which, least[axis.place])
            for value, most in zip(axis.values, best.tolist(), strict=True):
                if most < np.inf:
                    yield (name, value), most
        for name, value in self.question.own.items():
            yield (name, value), float(score.min())

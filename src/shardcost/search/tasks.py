"""A search cut into tasks that can run anywhere, in any order, and be run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from shardcost.estimate.price import forget_grids
from shardcost.records import NamedTuple
from shardcost.search.evaluate import part_of
from shardcost.search.parts import Part, joined, stacked
from shardcost.search.question import Block, Question
from shardcost.search.table import packed

BLOCK_CELLS: Final = 11_000_000
"""Cells, forbidden ones included, that are priced together: so many that NumPy's own cost is small,
so few that they take some tens of megabytes."""
TASK_CELLS: Final = 8_000_000
"""Cells of one task: about a second of work where all are priced, so that handing tasks out costs
nothing beside it and little is lost when a search is stopped."""


Tick = Callable[[int], None]
"""Takes the cells of a task that are done, as they come."""


class Task(NamedTuple):
    """Some blocks of one question."""

    number: int
    question: int
    blocks: tuple[Block, ...]
    cells: int


class Want(NamedTuple):
    """What is wanted of every task."""

    most: int
    """Best cells to keep."""
    table: bool
    """All feasible cells too."""
    distinct: bool = False
    """Of the best cells, one for each set of degrees, with its variants."""
    exhaustive: bool = False
    """Price all feasible cells, also those that cannot change the result."""


def tasks_of(questions: Sequence[Question], most_cells: int = TASK_CELLS) -> Iterator[Task]:
    """Yield the tasks of some questions, always the same ones in the same order."""
    number = 0
    for which, question in enumerate(questions):
        blocks: list[Block] = []
        cells = 0
        for block in question.blocks(BLOCK_CELLS):
            size = question.cells_in(block)
            if blocks and cells + size > most_cells:
                yield Task(number, which, tuple(blocks), cells)
                number, blocks, cells = number + 1, [], 0
            blocks.append(block)
            cells += size
        if blocks:
            yield Task(number, which, tuple(blocks), cells)
            number += 1


class Answer(NamedTuple):
    """What a task amounts to, in a form that travels."""

    task: Task
    part: Part
    """Without its table."""
    rows: bytes
    """All feasible cells as a Parquet file, where they are wanted and there are any."""


class Runner:
    """Runs tasks of a search, one after the other.

    What its earlier tasks amount to rules out cells of later ones (`shardcost.search.cutoff`),
    unless every feasible cell is to be priced, or limits are to say how many of them they reject.
    """

    def __init__(self, questions: tuple[Question, ...], want: Want) -> None:
        self.questions, self.want = questions, want
        self._known = Part()

    def answer(self, task: Task, tick: Tick | None = None) -> Answer:
        """Return what a task amounts to, its table packed."""
        part = self.part(task, tick)
        packs = self.want.table
        rows = packed(self.questions, task.question, part.table) if packs else b""
        return Answer(task, replace(part, table={}), rows)

    def part(self, task: Task, tick: Tick | None = None) -> Part:
        """Return what a task amounts to."""
        want, question = self.want, self.questions[task.question]
        prices_all = want.exhaustive or want.table or question.constraints.limited
        parts: list[Part] = []
        done = 0
        for block in task.blocks:
            known = None if prices_all else self._known
            part = part_of(
                question, block, want.most, table=want.table, distinct=want.distinct, known=known
            )
            parts.append(part)
            if known is not None:
                self._known = joined((known, part), want.most, distinct=want.distinct)
            for machine in question.machines:
                forget_grids(machine)
            done += question.cells_in(block)
            if tick is not None:
                tick(done)
        whole = joined(parts, want.most, distinct=want.distinct)
        return replace(whole, table=stacked(part.table for part in parts))

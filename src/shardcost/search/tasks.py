"""A search cut into tasks that can run anywhere, in any order, and be run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from shardcost.search.evaluate import Evaluator
from shardcost.search.parts import Part, joined, stacked
from shardcost.search.question import Block, Question
from shardcost.search.table import packed

BLOCK_CELLS: Final = 200_000
"""Cells priced in one call: large enough that NumPy's own cost is small, small enough for some tens
of megabytes."""
DEVICE_BLOCK_CELLS: Final = 20_000_000
"""The same on an accelerator, where a call costs more and a cell less."""
TASK_CELLS: Final = 1_000_000
"""Cells of one task: about a second of work, so that handing tasks out costs nothing beside it and
little is lost when a search is stopped."""


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


def tasks_of(questions: Sequence[Question], most_cells: int = TASK_CELLS) -> Iterator[Task]:
    """Yield the tasks of some questions, always the same ones in the same order."""
    number = 0
    for which, question in enumerate(questions):
        blocks: list[Block] = []
        cells = 0
        block_cells = BLOCK_CELLS if question.backend == "numpy" else DEVICE_BLOCK_CELLS
        for block in question.blocks(block_cells):
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


def answered(
    questions: tuple[Question, ...], task: Task, want: Want, tick: Tick | None = None
) -> Answer:
    """Return what a task amounts to, its table packed."""
    part = answer_of(questions[task.question], task, want, tick)
    rows = packed(questions, task.question, part.table) if want.table else b""
    return Answer(task, replace(part, table={}), rows)


def answer_of(question: Question, task: Task, want: Want, tick: Tick | None = None) -> Part:
    """Return what a task amounts to."""
    evaluator = Evaluator(question)
    parts: list[Part] = []
    done = 0
    for block in task.blocks:
        parts.append(evaluator.part(block, want.most, table=want.table, distinct=want.distinct))
        done += question.cells_in(block)
        if tick is not None:
            tick(done)
    whole = joined(parts, want.most, distinct=want.distinct)
    return replace(whole, table=stacked(part.table for part in parts))

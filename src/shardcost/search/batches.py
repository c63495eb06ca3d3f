"""Batches between those that a search was given: the best, and the largest within the limits.

A range of batches is tried by doubling, which leaves out the one that is wanted under a limit on
latency: the largest that holds. Here every whole number in between is priced, on arrays and by the
same rules, so that nothing rests on times growing with the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from typing import Any, Final

import numpy as np

from shardcost.search.evaluate import part_of
from shardcost.search.found import Candidate, rows_as_dicts
from shardcost.search.parts import (
    Columns,
    Part,
    best_of,
    distinct_of,
    front_of,
    joined,
    leaders_of,
    rows_of,
    stacked,
)
from shardcost.search.question import Question
from shardcost.search.space import CHOICES, DEGREES
from shardcost.search.tasks import BLOCK_CELLS
from shardcost.workload import Train

MOST_CELLS: Final = 1_000_000
"""Cells beyond those given that a search prices for this, about a second of work; where batches
are too many, those up to the next one given."""


def refined(questions: Sequence[Question], part: Part, most: int, *, distinct: bool) -> Part:
    """Return the result of a search with a batch in between for each set of degrees, if better.

    Only where a batch in between can be wanted: under a limit on time or rate, and where not the
    time of a step itself is to be small, which the smallest batch given has.
    """
    best = part.best
    tried = [each for each in questions if _has_between(each)]
    if not best or not tried or tried[0].objective.aim.weight is None:
        return part
    first = questions[int(best["question"][0])]
    cells = [_dense(each, _between(each)) for each in tried]
    if sum(each.cells for each in cells) > MOST_CELLS:
        cells = [_dense(each, _from(first, int(best["batch"][0]))) for each in tried]
    if sum(each.cells for each in cells) > MOST_CELLS:
        return part
    parts = [_priced(each, most, distinct=True) for each in cells]
    more = distinct_of(stacked(each.best for each in parts), most)
    by_axis = dict(part.by_axis)
    for (axis, value), score in chain.from_iterable(each.by_axis.items() for each in parts):
        if axis != "batch":
            by_axis[axis, value] = min(score, by_axis.get((axis, value), inf))
    ranked = _joined_best(best, more, tried, most, distinct=distinct)
    own = [batch for each in tried for batch in each.space.batch]
    between = rows_of(ranked, np.isin(ranked["batch"], own, invert=True))
    if ranked["batch"][0] in between["batch"]:
        by_axis["batch", int(ranked["batch"][0])] = float(ranked["score"][0])
    return replace(
        part, best=ranked, front=front_of(stacked((part.front, between))), by_axis=by_axis
    )


def _joined_best(
    best: Columns, more: Columns, tried: Sequence[Question], most: int, *, distinct: bool
) -> Columns:
    """Return the best rows, and of those in between what leads its set of degrees."""
    if distinct:
        return distinct_of(stacked((best, more)), most)
    every = stacked((best, leaders_of(more)))
    ahead = leaders_of(best_of(every, len(every["score"])))
    own = [batch for each in tried for batch in each.space.batch]
    better = rows_of(ahead, np.isin(ahead["batch"], own, invert=True))
    return best_of(stacked((best, better)), most)


def largest_batch(candidate: Candidate) -> Candidate | None:
    """Return a layout with the largest batch within the limits; None where that is no question.

    Of a search over several batches under a limit on time or rate.
    """
    question, row = candidate.question, candidate.row
    if not _has_between(question):
        return None
    most = max(question.space.batch)
    batches: Sequence[int] = range(row["batch"], most + 1)
    if len(batches) > MOST_CELLS:
        batches = [row["batch"], *_from(question, row["batch"])]
    alone: dict[str, Any] = {name: (candidate.value(name),) for name in (*DEGREES, *CHOICES)}
    same = replace(question.space, **alone)
    dense = _dense(replace(question, space=same), batches)
    table = _priced(dense, len(batches), distinct=False).best
    rows = sorted(rows_as_dicts(table), key=lambda each: int(each["batch"]))
    return Candidate(question, rows[-1]) if rows else None


def _has_between(question: Question) -> bool:
    """Return whether a question has several batches and a limit that may lie between them."""
    several = len(question.space.batch or ()) > 1 and not isinstance(question.workload, Train)
    return several and question.constraints.limited


def _between(question: Question) -> list[int]:
    """Return the whole numbers between the batches given."""
    given = question.space.batch
    return sorted(set(range(min(given), max(given))) - set(given))


def _from(question: Question, batch: int) -> list[int]:
    """Return the whole numbers from a batch to the next one given."""
    further = [each for each in question.space.batch if each > batch]
    return list(range(batch + 1, min(further, default=batch)))


def _dense(question: Question, batches: Sequence[int]) -> Question:
    """Return a question of other batches."""
    return replace(question, space=replace(question.space, batch=tuple(batches)))


def _priced(question: Question, most: int, *, distinct: bool) -> Part:
    """Return what all cells of a question amount to; nothing where it has none."""
    if not question.sequences or not question.cells:
        return Part()
    blocks = question.blocks(BLOCK_CELLS)
    parts = [part_of(question, block, most, distinct=distinct) for block in blocks]
    return joined(parts, most, distinct=distinct)

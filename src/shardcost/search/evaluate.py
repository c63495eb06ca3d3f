"""Prices blocks of cells: `part_of`. The mathematics is `estimate`'s, on arrays.

The steps, each on fewer cells than the one before, all families of a block together:

1. rules on the open grid of meshes x sequences x virtual stages leave the possible cells;
2. memory of each leaves those that fit, once for all schedules and overlaps;
3. layers are priced once for each different layer (`shardcost.search.times`);
4. a lower bound of the time leaves those that may change the result (`shardcost.search.cutoff`),
   unless all are wanted;
5. the schedule runs on a plain row of the cells that are left.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcost.errors import Reason, Rule
from shardcost.estimate.result import footprint
from shardcost.machine import machine_of
from shardcost.program.feasibility import reasons
from shardcost.records import NamedTuple
from shardcost.search.confidence import surely
from shardcost.search.cutoff import Cutoff, seeds
from shardcost.search.grid import Cells, Grid, Indices
from shardcost.search.parts import KEPT, Part, best_of, joined
from shardcost.search.question import Block, Question
from shardcost.search.space import Duplicates, Family
from shardcost.search.times import ServingTimes, TrainingTimes

STRETCH: Final = 1.1
"""Cells beyond the memory by no more than this are priced too: what more memory would bring."""
_FAR: Final = 2.0
_BEYOND_MEMORY: Final = Rule("does_not_fit_memory", "does not fit memory")
_FAR_BEYOND_MEMORY: Final = Rule(
    "does_not_fit_memory_by_far", "does not fit memory by more than {:g}x"
)
_WHOLE: Final = 50_000
"""Cells that fit up to which pricing all takes no longer than finding out which may be left out."""
_IN_CACHE: Final = 2**14
"""Cells whose memory is computed at a time: the formulas' arrays then stay in a core's cache."""
_CHANGE_MEMORY: Final = ("recompute", "offload_activations", "offload_optimizer")
"""Choices that change what a rank holds, beside its shape and the ZeRO stage, which is an
axis of its own in the formulas of memory."""

Mask = NDArray[np.bool_]


def part_of(
    question: Question,
    block: Block,
    most: int = KEPT,
    *,
    table: bool = False,
    distinct: bool = False,
    known: Part | None = None,
) -> Part:
    """Return what a block of cells amounts to.

    Args:
        question: What is asked.
        block: Which cells of the question.
        most: Best cells to keep.
        table: Keep all feasible cells.
        distinct: Of the best, keep one for each mesh, with its variants.
        known: What other blocks amount to: cells that cannot change the result of all together
            are not priced. None: all that fit are priced.
    """
    grid = Grid(question, block)
    fitting = _Fitting(grid)
    part, cells = fitting.part, fitting.cells
    if not len(cells.mesh):
        return part

    def amounts_to(priced: Cells) -> Part:
        inside = priced.memory_bytes <= grid.limit_bytes
        kept, beyond = priced.some(inside), priced.some(~inside)
        if not len(kept.mesh):
            return Part(beyond=grid.best(beyond, 1))
        return Part(
            best=grid.best(kept, most, distinct=distinct),
            front=grid.front(kept),
            beyond=grid.best(beyond, 1),
            by_axis=dict(grid.by_axis(kept)),
            table=grid.columns(kept) if table else {},
        )

    times = (TrainingTimes if grid.training else ServingTimes)(grid, cells)
    rows = np.arange(len(cells.mesh))
    if known is not None and isinstance(times, TrainingTimes):
        for recomputed in (False, True):
            if len(rows) <= _WHOLE:
                break
            bounds = cells.some(rows)._replace(time_s=times.least_s(rows, recomputed=recomputed))
            passed = Cutoff(grid, known, most, distinct=distinct).passed(bounds)
            rows, bounds = rows[passed], bounds.some(passed)
            if not recomputed and len(rows) > _WHOLE:
                # The most promising first: what they take decides which others may be better.
                first = rows[seeds(grid, bounds)]
                start = amounts_to(times.exact(first))
                known = joined((known, start), most, distinct=distinct)
                rows = rows[Cutoff(grid, known, most, distinct=distinct).passed(bounds)]
        fits = np.count_nonzero(cells.memory_bytes <= grid.limit_bytes)
        priced_fits = np.count_nonzero(cells.memory_bytes[rows] <= grid.limit_bytes)
        part = replace(part, skipped=int(fits - priced_fits))
    kept, rejected = _keeping(grid, times.exact(rows))
    return replace(
        amounts_to(kept),
        considered=part.considered,
        feasible=part.feasible - rejected.total(),
        skipped=part.skipped,
        rejected=part.rejected + rejected,
        smallest=part.smallest,
    )


class _Ruled(NamedTuple):
    """The cells of one schedule that no rule forbids, in the order of their numbers."""

    pair: Indices
    """Which pair of mesh and sequences."""
    virtual_stages: Indices
    place: Indices
    """Among the cells of all schedules, of which the memory is known."""
    per_pair: Indices
    """How many cells each pair has."""


class _Held(NamedTuple):
    """Cells of one schedule by what a rank holds: places among them, and the bytes."""

    memory: NDArray[np.float64]
    near: Indices
    """Those that fit, or nearly."""
    over: Indices
    """Those that do not fit …"""
    far: Indices
    """… by far."""
    least: Indices
    """The one with the least."""


class _OfFamily(NamedTuple):
    """What rules and memory leave of a family."""

    near: Cells
    """Those that fit, or nearly."""
    smallest: Cells
    """The one with the least memory."""
    feasible: int


class _Fitting:
    """The cells of a block that fit, or nearly; the others are counted by the reason against them.

    What a rank holds does not depend on overlaps, nor on the schedule but for its virtual stages.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        rejected: Counter[Reason] = Counter()
        considered = 0
        masks: dict[str, tuple[Mask, Indices]] = {}
        for schedule, times in Counter(family.schedule for family in grid.families).items():
            virtual_stages = grid.virtual_stages_of(schedule)
            mask, counted = _possible(grid, schedule, virtual_stages)
            masks[schedule] = mask, virtual_stages
            considered += times * mask.size
            for reason, count in counted.items():
                rejected[reason] += times * count
        together = np.logical_or.reduce([mask.any(axis=2) for mask, _ in masks.values()])
        self.mesh, self.sequences = np.nonzero(together)
        self._number_cells(masks, together)
        self._memory: dict[tuple[Any, ...], NDArray[np.float64]] = {}
        self._held: tuple[tuple[Any, ...], _Held] | None = None
        self._duplicates = Duplicates(grid.question.space, grid.meshes)
        cells, smallest, feasible = [], [], 0
        # Those that hold the same follow each other: what they hold is kept until the next differs.
        for number in sorted(range(len(grid.families)), key=self._key):
            own = self._of_family(number, rejected)
            if own is not None:
                cells.append(own.near)
                smallest.append(own.smallest)
                feasible += own.feasible
        self.cells = _stacked(cells)
        self.part = Part(
            considered=considered,
            feasible=feasible,
            rejected=+rejected,
            smallest=best_of(grid.columns(_stacked(smallest)), 1, "memory_bytes"),
        )

    def _number_cells(self, masks: dict[str, tuple[Mask, Indices]], together: Mask) -> None:
        """Number pairs of mesh and sequences, and cells of pairs and virtual stages."""
        pairs = np.full(together.shape, -1)
        pairs[self.mesh, self.sequences] = np.arange(len(self.mesh))
        width = len(self.grid.virtual_stages)
        codes = {}
        for schedule, (mask, virtual_stages) in masks.items():
            mesh, sequences, place = np.nonzero(mask)
            codes[schedule] = pairs[mesh, sequences] * width + virtual_stages[place]
        there = np.zeros(len(self.mesh) * width, dtype=bool)
        for code in codes.values():
            there[code] = True
        every = np.flatnonzero(there)
        place = np.cumsum(there) - 1
        self._pair, self._virtual_stages = every // width, every % width
        known: dict[bytes, _Ruled] = {}  # 1F1B and zero bubble have the same cells
        self._ruled = {}
        for schedule, code in codes.items():
            if code.tobytes() not in known:
                known[code.tobytes()] = _Ruled(
                    code // width,
                    code % width,
                    place[code],
                    np.bincount(code // width, minlength=len(self.mesh)),
                )
            self._ruled[schedule] = known[code.tobytes()]

    def _of_family(self, number: int, rejected: Counter[Reason]) -> _OfFamily | None:
        """Return what is left of a family, the rest counted; None where rules leave nothing."""
        family = self.grid.families[number]
        ruled = self._ruled[family.schedule]
        keeps = self._originals(family, ruled, rejected)
        if not len(ruled.pair) or (keeps is not None and not keeps.any()):
            return None
        held = self._held_by(family)
        near, over, far = held.near, len(held.over), len(held.far)
        left, least = len(ruled.pair), held.least
        if keeps is not None:
            near, places = near[keeps[near]], np.flatnonzero(keeps)
            over, far = (int(np.count_nonzero(keeps[each])) for each in (held.over, held.far))
            left, least = len(places), places[[held.memory[places].argmin()]]
        rejected[_FAR_BEYOND_MEMORY.reason(_FAR)] += far
        rejected[_BEYOND_MEMORY.reason()] += over - far
        near_cells, smallest = (self._cells(number, ruled, held, each) for each in (near, least))
        return _OfFamily(near_cells, smallest, left - over)

    def _originals(self, family: Family, ruled: _Ruled, rejected: Counter[Reason]) -> Mask | None:
        """Return which cells are no duplicates of others, which are counted; None: all of them."""
        originals: Mask | None = None
        for reason, meshes in self._duplicates.of(family).items():
            if not meshes.any():
                continue
            where = meshes[self.mesh]
            struck = where if originals is None else where & originals
            count = int(ruled.per_pair[struck].sum())
            if count:
                rejected[reason] += count
                originals = ~where if originals is None else originals & ~where
        return None if originals is None else originals[ruled.pair]

    def _key(self, number: int) -> tuple[str, ...]:
        """Return what puts families that hold the same side by side."""
        family = self.grid.families[number]
        return tuple(str(getattr(family, name)) for name in (*_CHANGE_MEMORY, "zero", "schedule"))

    def _cells(self, family: int, ruled: _Ruled, held: _Held, which: Indices) -> Cells:
        pair = ruled.pair[which]
        return Cells(
            np.full(len(which), family, dtype=np.int32),
            self.mesh[pair].astype(np.int32),
            self.sequences[pair].astype(np.int32),
            ruled.virtual_stages[which].astype(np.int32),
            held.memory[which],
        )

    def _held_by(self, family: Family) -> _Held:
        """Return what ranks hold in the cells of a family's schedule."""
        choices = tuple(getattr(family, name) for name in _CHANGE_MEMORY)
        ruled = self._ruled[family.schedule]
        key = (id(ruled), family.zero, *choices)
        if self._held is None or self._held[0] != key:
            if choices not in self._memory:
                parts = [
                    self._some_memory_bytes(family, slice(start, start + _IN_CACHE))
                    for start in range(0, len(self._pair), _IN_CACHE)
                ]
                self._memory = {choices: np.concatenate(parts, axis=1)}
            stage = self.grid.question.space.zero.index(family.zero)
            memory = self._memory[choices][stage, ruled.place]
            limit = self.grid.limit_bytes
            held = _Held(
                memory,
                np.flatnonzero(memory <= STRETCH * limit),
                np.flatnonzero(memory > limit),
                np.flatnonzero(memory > _FAR * limit),
                memory.argmin(keepdims=True),
            )
            self._held = key, held
        return self._held[1]

    def _some_memory_bytes(self, family: Family, some: slice) -> NDArray[np.float64]:
        grid, question = self.grid, self.grid.question
        pair = self._pair[some]
        sequences = grid.sequences[self.sequences[pair]]
        virtual_stages = grid.virtual_stages[self._virtual_stages[some]]
        layout = grid.layout(family, self.mesh[pair], sequences, virtual_stages)
        stages = np.array(question.space.zero)
        if grid.training:
            layout = replace(layout, zero=stages.reshape(-1, 1))  # type: ignore[arg-type]
        software = question.runs(family)
        machine = machine_of(question.cluster, software)
        workload = question.workload_of(sequences)
        peak = footprint(question.model, machine, layout, workload, software).peak_bytes
        return np.broadcast_to(peak, (len(stages), len(pair)))


def _stacked(cells: list[Cells]) -> Cells:
    if not cells:
        none = np.zeros(0, dtype=np.intp)
        return Cells(none, none, none, none, np.zeros(0))
    return Cells(
        *(np.concatenate(columns) for columns in zip(*(each[:5] for each in cells), strict=True))
    )


def _possible(grid: Grid, schedule: str, virtual_stages: Indices) -> tuple[Mask, Counter[Reason]]:
    """Return the cells of a schedule that rules leave, and how many others there are by reason."""
    family = next(each for each in grid.families if each.schedule == schedule)
    layout, workload = grid.open_layout(family, virtual_stages)
    question, cluster = grid.question, grid.question.cluster
    against = reasons(question.model, layout, workload, cluster)
    if question.prompts:
        prompt = reasons(question.model, layout, question.prompt_of(layout.dp), cluster)
        against |= {
            reason._replace(message=f"one prompt: {reason}"): where
            for reason, where in prompt.items()
        }
    left = np.ones((grid.meshes.number, len(grid.sequences), len(virtual_stages)), dtype=bool)
    counted: Counter[Reason] = Counter()
    number = left.size
    for reason, where in against.items():
        if number and np.any(where):
            struck = left & where
            count = int(np.count_nonzero(struck))
            if count:
                counted[reason] += count
                left ^= struck
                number -= count
    return left, counted


def _keeping(grid: Grid, cells: Cells) -> tuple[Cells, Counter[Reason]]:
    """Return the cells that keep all limits, and how many others fit by the limit they break."""
    question, rejected = grid.question, Counter[Reason]()
    fits = cells.memory_bytes <= grid.limit_bytes
    left = np.ones(len(cells.mesh), dtype=bool)
    figures = surely(question, grid.figures(cells))
    for reason, where in question.constraints.broken(figures, question.workload):
        struck = left & where
        rejected[reason] += int(np.count_nonzero(struck & fits))
        left ^= struck
    return cells if left.all() else cells.some(left), rejected

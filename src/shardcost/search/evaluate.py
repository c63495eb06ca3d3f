"""Prices blocks of cells: `Evaluator`. The mathematics is `estimate`'s, on arrays.

The steps, each on fewer cells than the one before:

1. rules on the open grid of meshes x sequences x virtual_stages leave the possible cells;
2. memory on pairs (mesh, sequences) x virtual_stages leaves those that fit;
3. operations are priced once per pair: virtual_stages do not change them;
4. the schedule runs on a plain row of the cells that fit.

A family shares much with those before it: a schedule changes nothing of what operations take, an
overlap nothing of what a rank holds. So an evaluator keeps what the next families need.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

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
from shardcost.search.confidence import surely
from shardcost.search.grid import Cells, Grid, Indices, by_axis
from shardcost.search.parts import KEPT, Part
from shardcost.search.question import Block, Question
from shardcost.search.space import duplicates
from shardcost.workload import Prefill, Workload

STRETCH: Final = 1.1
"""Cells beyond the memory by no more than this are priced too: what more memory would bring."""
_FAR: Final = 2.0
_BEYOND_MEMORY: Final = Rule("does_not_fit_memory", "does not fit memory")
_FAR_BEYOND_MEMORY: Final = Rule(
    "does_not_fit_memory_by_far", "does not fit memory by more than {:g}x"
)
_CHANGE_PAIRS: Final = (
    "scheme",
    "context_scheme",
    "sequence_parallel",
    "shard_degree",
    "etp",
    "redundant_experts",
    "recompute_layers",
    "recompute_method",
    "first_stage_layers",
    "last_stage_layers",
)
"""Choices that change which layouts are possible, whatever the schedule."""
_CHANGE_LAYERS: Final = (
    *_CHANGE_PAIRS,
    "order",
    "recompute",
    "offload_activations",
    "tp_overlap",
    "routing",
    "dispatch",
    "expert_overlap",
)
"""Choices that change what a layer does or takes."""
_CHANGE_STEP: Final = (
    *_CHANGE_LAYERS,
    "zero",
    "dp_overlap",
    "offload_optimizer",
    "offload_update",
)
"""And what happens once a step, whatever the schedule. With the schedule, these are all choices."""

Mask = NDArray[np.bool_]


class _Ledgers(NamedTuple):
    """The last two ledgers of a phase, and the choices of the families that they serve."""

    layers: tuple[Any, ...]
    of_layers: Ledger
    """Its layers serve every family with the same choices `_CHANGE_LAYERS`."""
    step: tuple[Any, ...]
    of_step: Ledger
    """Serves every family with the same choices `_CHANGE_STEP`."""


class Evaluator:
    """Prices the blocks of one question, one after the other.

    All families of some meshes follow each other (`Question.blocks`), and the schedule varies
    fastest, then what happens once a step, then what a layer does. So the last pairs with all that
    is known of them, and the last two ledgers, are all that is worth keeping. Blocks in another
    order cost time and change nothing.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self._meshes_and_choices: tuple[Any, ...] | None = None
        """Which pairs the fields below are of: a range of meshes, and choices `_CHANGE_PAIRS`."""
        self._pairs: tuple[Indices, Indices]
        """Meshes and sequences that go together."""
        self._ruled: dict[str, tuple[Mask, Counter[Reason]]]
        """By schedule: the cells that rules leave, and how many others there are by reason."""
        self._memory: dict[tuple[Any, ...], NDArray[np.float64]]
        """Bytes of pairs x virtual stages, by the choices that change them."""
        self._ledgers: dict[str, _Ledgers]
        """By phase: of decoding, a prompt may be priced too."""

    def part(
        self, block: Block, most: int = KEPT, *, table: bool = False, distinct: bool = False
    ) -> Part:
        """Return what a block of cells amounts to.

        Args:
            block: Which cells of the question.
            most: Best cells to keep.
            table: Keep all feasible cells.
            distinct: Of the best, keep one for each mesh, with its variants.
        """
        grid = Grid(self.question, block)
        self._keep_only(grid)
        ruled, counted = self._ruled_cells(grid)
        possible, rejected = ruled.copy(), counted.copy()
        _strike(possible, duplicates(grid.open_layout, self.question.space, grid.family), rejected)
        part = Part(considered=possible.size, rejected=rejected)
        if not possible.any():
            return part
        virtual_stages = np.flatnonzero(ruled.any(axis=(0, 1)))
        mesh, sequences = self._pairs
        at = _AtPairs(
            grid,
            mesh,
            sequences,
            virtual_stages,
            possible[mesh, sequences][:, virtual_stages],
            self._memory_bytes(grid, virtual_stages),
        )
        part = replace(part, smallest=grid.columns(at.smallest()))
        cells = _keeping(grid, self._priced(at, at.nearly_fitting(rejected)), rejected)
        inside = cells.memory_bytes <= grid.limit_bytes
        if not inside.all():
            part = replace(part, beyond=grid.best(cells.some(~inside), 1))
            cells = cells.some(inside)
        if not len(cells.mesh):
            return part
        return replace(
            part,
            feasible=len(cells.mesh),
            best=grid.best(cells, most, distinct=distinct),
            front=grid.front(cells),
            by_axis=dict(by_axis(grid, cells)),
            table=grid.columns(cells) if table else {},
        )

    def _keep_only(self, grid: Grid) -> None:
        """Forget what is of other pairs than a grid's."""
        now = (grid.block.start, grid.block.stop, *_choices(grid, _CHANGE_PAIRS))
        if now != self._meshes_and_choices:
            self._meshes_and_choices = now
            self._pairs = _pairs(grid)
            self._ruled, self._memory, self._ledgers = {}, {}, {}

    def _ruled_cells(self, grid: Grid) -> tuple[Mask, Counter[Reason]]:
        """Return the cells that rules leave, duplicates among them, and the others by reason."""
        schedule = grid.family.schedule
        if schedule not in self._ruled:
            left, counted = np.ones(grid.shape, dtype=bool), Counter[Reason]()
            _strike(left, _impossible(grid, grid.open_layout, grid.open_sequences), counted)
            self._ruled[schedule] = left, counted
        return self._ruled[schedule]

    def _memory_bytes(self, grid: Grid, virtual_stages: Indices) -> NDArray[np.float64]:
        """Return what ranks hold, pairs by those virtual stages that occur."""
        family = grid.family
        interleaved = family.schedule == "interleaved"
        away = (family.offload_activations, family.offload_optimizer)
        key = (family.recompute, family.zero, *away, interleaved, *virtual_stages.tolist())
        if key not in self._memory:
            layout, workload = _laid_out(grid, self._pairs, virtual_stages)
            machine = machine_of(self.question.cluster, grid.software)
            peak = footprint(self.question.model, machine, layout, workload, grid.software)
            shape = (len(self._pairs[0]), len(virtual_stages))
            self._memory[key] = np.broadcast_to(to_numpy(peak.peak_bytes), shape)
        return self._memory[key]

    def _priced(self, at: _AtPairs, places: tuple[Indices, Indices]) -> Cells:
        """Return some cells with their times."""
        rows, columns = places
        cells = at.cells(rows, columns)
        if not len(rows):
            return cells._replace(time_s=cells.memory_bytes)
        move = partial(to_backend, self.question.backend)
        take = partial(at_cells, rows=move(rows), columns=move(columns))
        layout, workload = _laid_out(at.grid, self._pairs, at.virtual_stages)

        def time_s(phase: str) -> Any:
            """Return the times of a step under the family's own schedule."""
            ledger = self._ledger(at.grid, phase)
            setting = replace(ledger.program.setting, layout=layout)
            own = replace(ledger, program=replace(ledger.program, setting=setting))
            return to_numpy(own.time_s(take))

        cells = cells._replace(time_s=np.broadcast_to(time_s(workload.phase), rows.shape))
        if not self.question.prompts:
            return cells
        return cells._replace(ttft_s=np.broadcast_to(time_s(Prefill.phase), rows.shape))

    def _ledger(self, grid: Grid, phase: str) -> Ledger:
        """Return what pairs do in a step, and what it takes; the same for all schedules."""
        layers, step = _choices(grid, _CHANGE_LAYERS), _choices(grid, _CHANGE_STEP)
        last = self._ledgers.get(phase)
        if last is not None and last.step == step:
            return last.of_step
        known = last.of_layers if last is not None and last.layers == layers else None
        layout, workload = _laid_out(grid, self._pairs, np.array([0]))
        if phase != workload.phase:
            workload = self.question.prompt_of(layout.dp)
        machine = machine_of(self.question.cluster, grid.software)
        ledger = ledger_of(self.question.model, machine, layout, workload, grid.software, known)
        self._ledgers[phase] = _Ledgers(layers, known or ledger, step, ledger)
        return ledger


def _choices(grid: Grid, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(getattr(grid.family, name) for name in names)


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
        prompt = reasons(model, layout, question.prompt_of(layout.dp), cluster)
        against |= {
            reason._replace(message=f"one prompt: {reason}"): where
            for reason, where in prompt.items()
        }
    return against


def _pairs(grid: Grid) -> tuple[Indices, Indices]:
    """Return which meshes go with which sequences, whatever the schedule."""
    sequences = grid.sequences.reshape(1, -1)
    layout = replace(grid.layout(slice(None), sequences, 1, (-1, 1)), schedule="1f1b")
    left = np.ones(grid.shape[:2], dtype=bool)
    for where in _impossible(grid, layout, sequences).values():
        left &= np.logical_not(where)
    rows, columns = np.nonzero(left)
    return rows, columns


def _laid_out(
    grid: Grid, pairs: tuple[Indices, Indices], virtual_stages: Indices
) -> tuple[Layout, Workload]:
    """Return the pairs of a grid down the first axis and virtual stages along the second."""
    mesh, places = pairs
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


class _AtPairs(NamedTuple):
    """The possible cells of a grid, by pairs of mesh and sequences, and virtual_stages."""

    grid: Grid
    mesh: Indices
    sequences: Indices
    virtual_stages: Indices
    possible: Mask
    memory: NDArray[np.float64]

    def cells(self, rows: Indices, columns: Indices) -> Cells:
        """Return cells by their place among the pairs and virtual_stages."""
        memory = self.memory[rows, columns]
        return Cells(self.mesh[rows], self.sequences[rows], self.virtual_stages[columns], memory)

    def smallest(self) -> Cells:
        """Return the cell with the least memory."""
        least = np.argmin(np.where(self.possible, self.memory, np.inf))
        row, column = np.unravel_index([least], self.possible.shape)
        return self.cells(row, column)

    def nearly_fitting(self, rejected: Counter[Reason]) -> tuple[Indices, Indices]:
        """Return the places of the cells that fit, or nearly; those that do not are counted."""
        limit = self.grid.limit_bytes
        over = self.possible & (self.memory > limit)
        far = int(np.count_nonzero(over & (self.memory > _FAR * limit)))
        rejected[_FAR_BEYOND_MEMORY.reason(_FAR)] += far
        rejected[_BEYOND_MEMORY.reason()] += int(np.count_nonzero(over)) - far
        rows, columns = np.nonzero(self.possible & (self.memory <= STRETCH * limit))
        return rows, columns


def _keeping(grid: Grid, cells: Cells, rejected: Counter[Reason]) -> Cells:
    """Return the cells that keep all limits; of the others those that fit memory are counted."""
    if not len(cells.mesh):
        return cells
    question = grid.question
    fits = cells.memory_bytes <= grid.limit_bytes
    left = np.ones(len(cells.mesh), dtype=bool)
    figures = surely(question, grid.figures(cells))
    for reason, where in question.constraints.broken(figures, question.workload):
        struck = left & where
        rejected[reason] += int(np.count_nonzero(struck & fits))
        left ^= struck
    return cells if left.all() else cells.some(left)

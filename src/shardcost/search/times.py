"""Seconds of cells of a block: `TrainingTimes`, `ServingTimes`. The mathematics is `estimate`'s.

What a layer does depends on few of the degrees, so layers are priced once for each that differs,
under each choice that changes them; what happens once a step depends on others, and is priced under
each choice that changes it. A training step of a cell joins the one with the other: `Ledger` has
the formulas, and the schedule runs on a plain row of cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcost.checks import is_array
from shardcost.estimate.alike import different_layers, piece_at, taken
from shardcost.estimate.ledger import Ledger, layer_bytes, layer_pieces
from shardcost.estimate.pieces import PassTime, Piece
from shardcost.estimate.placement import strides
from shardcost.estimate.price import NOTHING, Prices
from shardcost.estimate.step import ledger_of
from shardcost.layout import Layout
from shardcost.machine import machine_of
from shardcost.memory.parameters import Parameters
from shardcost.program.assemble import Layers, Program, program_of
from shardcost.program.operations import Passes
from shardcost.program.step import NO_GATHERS
from shardcost.records import NamedTuple
from shardcost.schedule.step import least_s, step_s
from shardcost.schedule.work import Stage
from shardcost.search.grid import Cells, Grid, Indices
from shardcost.search.space import Family
from shardcost.workload import Prefill, Workload

CHANGE_LAYERS: Final = (
    "order",
    "recompute",
    "offload_activations",
    "tp_overlap",
    "routing",
    "dispatch",
)
"""Choices that change what a layer does or takes, beside the shape of a family."""
CHANGE_STEP: Final = ("order", "zero", "dp_overlap", "offload_optimizer", "offload_update")
"""Choices that change what happens once a step or between stages, whatever the schedule."""
_LEAST_WORK: Final[dict[str, Any]] = {"recompute": "none", "offload_activations": 0.0}
_IDLE: Final = Piece("", Passes(()), (), (), PassTime(), PassTime(), PassTime())
_CLOSE: Final = 1 - 1e-9
"""A bound is a sum in another order than the time: rounding must not lift it above."""

Floats = NDArray[np.float64]


class _Pairs:
    """The meshes and sequences that cells of a block have, each pair once."""

    def __init__(self, grid: Grid, cells: Cells) -> None:
        codes = cells.mesh.astype(np.int64) * len(grid.sequences) + cells.sequences
        every, self.of_cells = _numbered(codes, grid.meshes.number * len(grid.sequences))
        self.grid = grid
        self.mesh, self.sequences = np.divmod(every, len(grid.sequences))

    def layout(self, family: Family, which: Any = slice(None)) -> tuple[Layout, Workload]:
        """Return some of the pairs under the choices of a family."""
        grid = self.grid
        sequences = grid.sequences[self.sequences[which]]
        layout = grid.layout(family, self.mesh[which], sequences, 1)
        return layout, grid.question.workload_of(sequences)

    @property
    def number(self) -> int:
        """How many there are."""
        return len(self.mesh)

    def priced(self, family: Family, which: Any, known: Sequence[Layers] | None = None) -> _Priced:
        """Return the program of some of the pairs, with layers that are known or its own."""
        question = self.grid.question
        layout, workload = self.layout(family, which)
        software = question.runs(family)
        program = program_of(question.model, layout, workload, software, known)
        machine = machine_of(question.cluster, software)
        return _Priced(program, Prices(machine, strides(layout), arrays=True))


def _numbered(codes: Indices, most: int) -> tuple[Indices, Indices]:
    """Return the different ones of codes below `most`, in order, and which of them each is."""
    there = np.zeros(most, dtype=bool)
    there[codes] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


def _chosen(families: Sequence[Family], names: Sequence[str]) -> tuple[list[Family], Indices]:
    """Return one family for each combination of some choices, and which of them each has."""
    keys = [tuple(getattr(family, name) for name in names) for family in families]
    first = {key: families[keys.index(key)] for key in dict.fromkeys(keys)}
    order = list(first)
    return list(first.values()), np.array([order.index(key) for key in keys])


class ServingTimes:
    """Times of cells of a block of prefill or decoding."""

    def __init__(self, grid: Grid, cells: Cells) -> None:
        self._grid, self._cells = grid, cells

    def exact(self, rows: Indices) -> Cells:
        """Return some cells with their times."""
        grid, question = self._grid, self._grid.question
        cells = self._cells.some(rows)
        phases = [question.workload.phase] + [Prefill.phase] * question.prompts
        times = {name: np.zeros(len(rows)) for name in ("time_s", "ttft_s")[: len(phases)]}
        chosen, which = _chosen(grid.families, CHANGE_LAYERS)
        for number, family in enumerate(chosen):
            own = np.flatnonzero(which[cells.family] == number)
            if not len(own):
                continue
            pairs = _Pairs(grid, cells.some(own))
            layout, workload = pairs.layout(family)
            software = question.runs(family)
            machine = machine_of(question.cluster, software)
            for column, phase in zip(times.values(), phases, strict=True):
                work = workload if phase == workload.phase else question.prompt_of(layout.dp)
                seconds = ledger_of(question.model, machine, layout, work, software).time_s()
                column[own] = np.broadcast_to(seconds, pairs.mesh.shape)[pairs.of_cells]
        return cells._replace(**times)  # type: ignore[arg-type]


class _Work(NamedTuple):
    """The compute of stages and the bytes of layers, one row for each pair under each choice."""

    stages: tuple[Stage, Stage, Stage]
    inside_bytes: Floats
    network_bytes: Floats


class TrainingTimes:
    """Times of cells of a block of training steps."""

    def __init__(self, grid: Grid, cells: Cells) -> None:
        self._grid, self._cells = grid, cells
        self._layer_choices, self._which_layers = _chosen(grid.families, CHANGE_LAYERS)
        self._step_choices, self._which_step = _chosen(grid.families, CHANGE_STEP)
        self._schedules, self._which_schedule = _chosen(grid.families, ("schedule",))

    def least_s(self, rows: Indices, *, recomputed: bool) -> Floats:
        """Return lower bounds of the times of some cells, by the compute of their stages.

        Args:
            rows: Which cells.
            recomputed: Whether recomputation, offloading and the SMs that collectives take count.
                They only add to a layer, so layers without serve for all, with less work and a
                lower bound.
        """
        grid, cells, families = self._grid, self._cells.some(rows), self._grid.families
        if not recomputed:
            families = [family._replace(**_LEAST_WORK) for family in families]
        chosen, which = _chosen(families, CHANGE_LAYERS)
        pairs = _Pairs(grid, cells)
        layers = _Layers(pairs, chosen, taken_sms=recomputed)
        program = layers.rest.program
        stages, runs = (
            np.tile(figure, len(chosen))
            for figure in (program.setting.layout.pp, program.micro_batches)
        )
        place = which[cells.family] * pairs.number + pairs.of_cells
        seconds = np.empty(len(rows))
        for schedule, some in self._by_schedule(cells):
            whole_s, shared_s = least_s(layers.work.stages, stages, runs, schedule)
            seconds[some] = whole_s[place[some]]
            if is_array(shared_s):
                shares = grid.virtual_stages[cells.virtual_stages[some]]
                seconds[some] += shared_s[place[some]] / shares
        return _CLOSE * seconds

    def exact(self, rows: Indices) -> Cells:
        """Return some cells with their times."""
        cells, seconds = self._cells.some(rows), np.empty(len(rows))
        if not len(rows):
            return cells._replace(time_s=seconds)
        pairs = _Pairs(self._grid, cells)
        used = np.flatnonzero(np.bincount(self._which_layers[cells.family]))
        layers = _Layers(pairs, [self._layer_choices[number] for number in used])
        which = np.searchsorted(used, self._which_layers)
        place = which[cells.family] * pairs.number + pairs.of_cells
        for number, family in enumerate(self._step_choices):
            own = np.flatnonzero(self._which_step[cells.family] == number)
            if not len(own):
                continue
            used, back = _numbered(pairs.of_cells[own], pairs.number)
            once = layers.happening_once(family, used)
            for schedule, some in self._by_schedule(cells.some(own)):
                at = own[some]
                vp = self._grid.virtual_stages[cells.virtual_stages[at]]
                seconds[at] = _step_s(once, layers.work, schedule, vp, place[at], back[some])
        return cells._replace(time_s=seconds)

    def _by_schedule(self, cells: Cells) -> Iterator[tuple[str, Indices]]:
        """Yield the schedules that some cells have, each with those."""
        for number, family in enumerate(self._schedules):
            rows = np.flatnonzero(self._which_schedule[cells.family] == number)
            if len(rows):
                yield family.schedule, rows


def _step_s(
    once: Ledger, work: _Work, schedule: str, virtual_stages: Any, place: Indices, pair: Indices
) -> Any:
    """Return the times of cells of one schedule with the same choices once a step.

    Args:
        once: What happens once a step, and between stages, of some pairs.
        work: The layers.
        schedule: The schedule.
        virtual_stages: Of each cell.
        place: Which row of `work` each cell has.
        pair: Which pair of `once`.
    """

    def take(figure: Any) -> Any:
        return taken(figure, pair)

    if (virtual_stages == virtual_stages[0]).all():
        virtual_stages = int(virtual_stages[0])
    stages: Any = tuple(
        Stage(*(figure[place] for figure in _figures(stage))) for stage in work.stages
    )
    seconds = step_s(once.step_work_at(stages, virtual_stages, take), schedule)
    sent = (
        work.inside_bytes[place] + take(once.step_bytes[0]),
        work.network_bytes[place] + take(once.step_bytes[1]),
    )
    return np.maximum.reduce([seconds, *once.link_times_at(sent, virtual_stages, take)])


class _Priced(NamedTuple):
    """A program, and what it is priced by."""

    program: Program
    prices: Prices


class _Layers:
    """The layers of pairs under some choices, and all else that a step of them has."""

    def __init__(self, pairs: _Pairs, chosen: Sequence[Family], *, taken_sms: bool = True) -> None:
        """Begin.

        Args:
            pairs: Meshes and sequences.
            chosen: The choices.
            taken_sms: Whether collectives take SMs from the GEMMs that hide them. Without, layers
                take less, and GEMMs need one price instead of two.
        """
        self._pairs, self._chosen, self._taken_sms = pairs, chosen, taken_sms
        self._programs: dict[tuple[Any, ...], _Priced] = {}
        self._alike: dict[str, tuple[Indices, Indices]] = {}

    @cached_property
    def work(self) -> _Work:
        """The layers of all pairs, under one choice after the other."""
        ledgers = [self._ledger(family) for family in self._chosen]
        number = self._pairs.number

        def stacked(figures: Sequence[Any]) -> Floats:
            return np.concatenate([np.broadcast_to(each, number) for each in figures])

        def stage(stages: Sequence[Stage]) -> Stage:
            return Stage(*map(stacked, zip(*map(_figures, stages), strict=True)))

        first, middle, last = zip(*(ledger.stage_work for ledger in ledgers), strict=True)
        inside, network = zip(*(ledger.step_bytes for ledger in ledgers), strict=True)
        return _Work((stage(first), stage(middle), stage(last)), stacked(inside), stacked(network))

    def _ledger(self, family: Family) -> Ledger:
        """Return the layers of all pairs under the choices of a family, and nothing else."""
        program, prices = self._of_layers(family)
        # An overlap changes what operations take, not what they are.
        overlap = self._pairs.grid.question.runs(family).tp_overlap
        software = program.setting.software.variant(
            tp_overlap=overlap, **({} if self._taken_sms else {"overlap_sms": 0})
        )
        program = replace(program, setting=replace(program.setting, software=software))
        kinds, *ends = layer_pieces(program, prices)
        _, back = self._different(family)
        kinds = tuple(piece_at(each, back) for each in kinds)
        first, last = (piece_at(each, back) for each in ends)
        whole, prices = self.rest
        return Ledger(
            whole,
            prices,
            kinds,
            first,
            last,
            gather=NOTHING,
            scatter=NOTHING,
            reduce=NOTHING,
            collect=NOTHING,
            optimizer_s=0.0,
            send=NOTHING,
            step_bytes=layer_bytes(whole, (kinds, first, last)),
        )

    def _of_layers(self, family: Family) -> _Priced:
        """Return the program of pairs with different layers, one of each."""
        key = tuple(getattr(family, name) for name in CHANGE_LAYERS if name != "tp_overlap")
        if key not in self._programs:
            rows, _ = self._different(family)
            self._programs[key] = self._pairs.priced(family, rows)
        return self._programs[key]

    def _different(self, family: Family) -> tuple[Indices, Indices]:
        """Return pairs with different layers, one of each, and which of them each pair is like."""
        if family.order not in self._alike:
            self._alike[family.order] = different_layers(*self._pairs.layout(family))
        return self._alike[family.order]

    @cached_property
    def rest(self) -> _Priced:
        """All but the layers, of all pairs."""
        return self._pairs.priced(self._chosen[0], slice(None), self._weights)

    @cached_property
    def _weights(self) -> tuple[Layers, ...]:
        """The kinds of layer with the weights of each pair's ranks, and nothing to do."""
        family = self._chosen[0]
        _, back = self._different(family)
        return tuple(
            Layers(each.count, _weights_at(each, back), Passes(()), NO_GATHERS)
            for each in self._of_layers(family).program.layers
        )

    def happening_once(self, family: Family, which: Indices) -> Ledger:
        """Return what happens once a step, and between stages, of some pairs."""
        weights = [each._replace(weights=_weights_at(each, which)) for each in self._weights]
        program, prices = self._pairs.priced(family, which, weights)
        return Ledger.of(program, prices, ((_IDLE,) * len(weights), _IDLE, _IDLE))


def _figures(stage: Stage) -> list[Any]:
    return [getattr(stage, name) for name in Stage.__dataclass_fields__]


def _weights_at(layers: Layers, which: Any) -> Parameters:
    return Parameters(*(taken(own, which) for own in layers.weights))

"""Seconds of cells of a block: `TrainingTimes`, `ServingTimes`. The mathematics is `estimate`'s.

What a layer does depends on few of the degrees, so layers are priced once for each that differs,
under each choice that changes them; what happens once a step depends on others, and is priced under
each choice that changes it. A training step of a cell joins the one with the other: `Ledger` has
the formulas, and the schedule runs on a plain row of cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcost.checks import is_array
from shardcost.estimate.ledger import Ledger, layer_pieces
from shardcost.estimate.pieces import PassTime, Piece
from shardcost.estimate.placement import places
from shardcost.estimate.price import NOTHING, Prices
from shardcost.estimate.step import ledger_of
from shardcost.layout import Layout
from shardcost.machine import machine_of
from shardcost.memory.parameters import Parameters, expert_tensor_degree
from shardcost.program.assemble import Layers, Program, program_of
from shardcost.program.operations import Passes
from shardcost.program.setting import sequences_per_pass
from shardcost.program.step import NO_GATHERS
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
    "expert_overlap",
)
"""Choices that change what a layer does or takes, beside those of `SHAPING`."""
CHANGE_ONCE: Final = ("order", "zero", "dp_overlap", "offload_optimizer", "offload_update")
"""Choices that change what happens once a step or between stages, whatever the schedule."""
_IDLE: Final = Piece("", (), PassTime(), PassTime(), PassTime())
_CLOSE: Final = 1 - 1e-9
"""A bound is a sum in another order than the time: rounding must not lift it above."""

Floats = NDArray[np.float64]


class _Pairs:
    """The meshes and sequences that cells of a block have, each pair once."""

    def __init__(self, grid: Grid, cells: Cells) -> None:
        codes = cells.mesh * len(grid.sequences) + cells.sequences
        every, self.of_cells = np.unique(codes, return_inverse=True)
        self.grid = grid
        self.mesh, self.sequences = np.divmod(every, len(grid.sequences))

    def layout(self, family: Family, which: Any = slice(None)) -> tuple[Layout, Workload]:
        """Return some of the pairs under the choices of a family."""
        grid = self.grid
        sequences = grid.sequences[self.sequences[which]]
        layout = grid.layout(family, self.mesh[which], sequences, 1)
        return layout, grid.question.workload_of(sequences)


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

    def exact_s(self, rows: Indices) -> dict[str, Floats]:
        """Return the times of some cells, by the column of `Cells` that they are."""
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
        return times


class _Work(NamedTuple):
    """The compute of stages and the bytes of layers, one row for each pair under each choice."""

    stages: tuple[Stage, Stage, Stage]
    inside_bytes: Floats
    network_bytes: Floats


class TrainingTimes:
    """Times of cells of a block of training steps."""

    def __init__(self, grid: Grid, cells: Cells) -> None:
        self._grid, self._cells = grid, cells
        self._pairs = _Pairs(grid, cells)
        self._often, self._which_often = _chosen(grid.families, CHANGE_LAYERS)
        self._once, self._which_once = _chosen(grid.families, CHANGE_ONCE)
        self._programs: dict[tuple[Any, ...], Program] = {}
        self._alike: dict[str, tuple[Indices, Indices]] = {}

    def least_s(self) -> Floats:
        """Return lower bounds of the times of all cells, by the compute of their stages."""
        grid, cells, pairs = self._grid, self._cells, self._pairs
        layout, workload = pairs.layout(grid.families[0])
        runs = workload.global_batch // (layout.dp * layout.micro_batch)  # type: ignore[attr-defined]
        often = len(self._often)
        stages, runs = np.tile(layout.pp, often), np.tile(runs, often)
        place = self._place(cells, pairs.of_cells)
        seconds = np.empty(len(cells.mesh))
        for schedule, rows in self._by_schedule(cells):
            busy_s, way_s = least_s(self._work.stages, stages, runs, schedule)
            virtual_stages = grid.virtual_stages[cells.virtual_stages[rows]]
            seconds[rows] = busy_s[place[rows]] + way_s[place[rows]] / virtual_stages
        return _CLOSE * seconds

    def exact_s(self, rows: Indices) -> dict[str, Floats]:
        """Return the times of some cells, by the column of `Cells` that they are."""
        cells, seconds = self._cells.some(rows), np.empty(len(rows))
        pair = self._pairs.of_cells[rows]
        place = self._place(cells, pair)
        for number, family in enumerate(self._once):
            own = np.flatnonzero(self._which_once[cells.family] == number)
            if not len(own):
                continue
            used, back = np.unique(pair[own], return_inverse=True)
            once = self._happening_once(family, used)
            for schedule, some in self._by_schedule(cells.some(own)):
                at = own[some]
                seconds[at] = self._step_s(once, schedule, cells.some(at), place[at], back[some])
        return {"time_s": seconds}

    def _place(self, cells: Cells, pair: Indices) -> Indices:
        """Return which row of `_work` each cell has."""
        return self._which_often[cells.family] * len(self._pairs.mesh) + pair

    def _by_schedule(self, cells: Cells) -> Iterator[tuple[str, Indices]]:
        """Yield the schedules that some cells have, each with those."""
        schedules, which = _chosen(self._grid.families, ("schedule",))
        for number, family in enumerate(schedules):
            rows = np.flatnonzero(which[cells.family] == number)
            if len(rows):
                yield family.schedule, rows

    def _step_s(
        self, once: Ledger, schedule: str, cells: Cells, place: Indices, pair: Indices
    ) -> Any:
        """Return the times of cells of one schedule with the same choices once a step."""

        def take(figure: Any) -> Any:
            return figure[pair] if is_array(figure) else figure

        virtual_stages: Any = self._grid.virtual_stages[cells.virtual_stages]
        if (virtual_stages == virtual_stages[0]).all():
            virtual_stages = int(virtual_stages[0])
        work = self._work
        stages: Any = tuple(
            Stage(*(figure[place] for figure in astuple(stage))) for stage in work.stages
        )
        seconds = step_s(once.step_work_at(stages, virtual_stages, take), schedule)
        sent = (
            work.inside_bytes[place] + take(once.step_bytes[0]),
            work.network_bytes[place] + take(once.step_bytes[1]),
        )
        return np.maximum.reduce([seconds, *once.link_times_at(sent, virtual_stages, take)])

    @cached_property
    def _work(self) -> _Work:
        """The layers of all pairs, under one choice after the other."""
        ledgers = [self._layers(family) for family in self._often]
        number = len(self._pairs.mesh)

        def stacked(figures: Sequence[Any]) -> Floats:
            return np.concatenate([np.broadcast_to(each, number) for each in figures])

        def stage(stages: Sequence[Stage]) -> Stage:
            return Stage(*map(stacked, zip(*map(astuple, stages), strict=True)))

        first, middle, last = zip(*(ledger.stage_work for ledger in ledgers), strict=True)
        inside, network = zip(*(ledger.bytes_per_step() for ledger in ledgers), strict=True)
        return _Work((stage(first), stage(middle), stage(last)), stacked(inside), stacked(network))

    def _layers(self, family: Family) -> Ledger:
        """Return the layers of all pairs under the choices of a family, and nothing else."""
        rows, back = self._different(family)
        question, software = self._grid.question, self._grid.question.runs(family)
        key = tuple(getattr(family, name) for name in CHANGE_LAYERS if name != "tp_overlap")
        if key not in self._programs:  # an overlap changes what operations take, not what they are
            layout, workload = self._pairs.layout(family, rows)
            self._programs[key] = program_of(question.model, layout, workload, software)
        program = self._programs[key]
        setting = program.setting
        runs = replace(setting.software, tp_overlap=software.tp_overlap)
        program = replace(program, setting=replace(setting, software=runs))
        machine = machine_of(question.cluster, software)
        kinds, first, last = layer_pieces(
            program, Prices(machine, places(setting.layout), arrays=True)
        )
        whole, prices = self._whole
        return Ledger(
            whole,
            prices,
            tuple(_at(each, back) for each in kinds),
            _at(first, back),
            _at(last, back),
            gather=NOTHING,
            scatter=NOTHING,
            reduce=NOTHING,
            collect=NOTHING,
            optimizer_s=0.0,
            send=NOTHING,
        )

    def _different(self, family: Family) -> tuple[Indices, Indices]:
        """Return pairs with different layers, one of each, and which of them each pair is like.

        A layer depends on the degrees that split it, on the sequences of a pass, and on where the
        ranks of its groups sit; the share of recomputed layers depends on the stages too.
        """
        if family.order in self._alike:
            return self._alike[family.order]
        layout, workload = self._pairs.layout(family)
        placed = places(layout)
        columns = [layout.tp, layout.cp, layout.ep, sequences_per_pass(layout, workload)]
        columns += [expert_tensor_degree(layout)]
        columns += [placed[group].stride for group in ("tp", "cp", "ep", "ep_tensor")]
        if layout.recompute_layers is not None:
            columns.append(layout.pp)
        codes = np.zeros(len(self._pairs.mesh), dtype=np.int64)
        for column in columns:
            if is_array(column):
                values, code = np.unique(column, return_inverse=True)
                _, codes = np.unique(codes * len(values) + code, return_inverse=True)
        _, first, back = np.unique(codes, return_index=True, return_inverse=True)
        self._alike[family.order] = first, back
        return first, back

    @cached_property
    def _weights(self) -> tuple[Layers, ...]:
        """The kinds of layer with the weights of each pair's ranks, and nothing to do."""
        family = self._often[0]
        rows, back = self._different(family)
        layout, workload = self._pairs.layout(family, rows)
        question = self._grid.question
        program = program_of(question.model, layout, workload, question.runs(family))
        idle = Passes(())
        return tuple(
            Layers(each.count, Parameters(*(_taken(own, back) for own in each.weights)), idle, NO_GATHERS)
            for each in program.layers
        )

    @cached_property
    def _whole(self) -> tuple[Program, Prices]:
        """The program of all pairs but for their layers."""
        return self._rest(self._once[0], slice(None))

    def _rest(self, family: Family, which: Any) -> tuple[Program, Prices]:
        """Return the program of some pairs but for their layers, and what it is priced by."""
        question = self._grid.question
        layout, workload = self._pairs.layout(family, which)
        software = question.runs(family)
        weights = tuple(
            each._replace(weights=Parameters(*(_taken(own, which) for own in each.weights)))
            for each in self._weights
        )
        program = program_of(question.model, layout, workload, software, weights)
        machine = machine_of(question.cluster, software)
        return program, Prices(machine, places(layout), arrays=True)

    def _happening_once(self, family: Family, which: Indices) -> Ledger:
        """Return what happens once a step, and between stages, of some pairs."""
        program, prices = self._rest(family, which)
        return Ledger.of(program, prices, ((_IDLE,) * len(program.layers), _IDLE, _IDLE))


def _taken(figure: Any, which: Any) -> Any:
    """Return some cells of a figure; a plain number holds for all of them."""
    return figure[which] if is_array(figure) else figure


def _at(piece: Piece, which: Indices) -> Piece:
    """Return a priced piece of other layouts, without its operations."""
    passes = (PassTime(*(_taken(own, which) for own in each)) for each in piece.passes)
    sent = (_taken(own, which) for own in (piece.inside_bytes, piece.network_bytes))
    return Piece(piece.name, (), *passes, *sent)

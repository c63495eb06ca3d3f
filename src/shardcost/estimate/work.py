"""From a program and its prices to the work of a step: seconds by stage, ready to be scheduled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Final, NamedTuple

from shardcost.arrays import largest, smallest
from shardcost.checks import is_array
from shardcost.estimate.busy import IDLE, NOTHING_BESIDE, Beside, Busy, busy
from shardcost.estimate.price import Prices
from shardcost.program.assemble import Program
from shardcost.program.operations import Collective, Gemm, Operations, Passes
from shardcost.program.step import Step
from shardcost.schedule.work import DataParallel, LayerGathers, Sends, Stage, StepWork
from shardcost.software import Software


@dataclass(frozen=True, slots=True)
class PieceWork:
    """What one pass of a micro-batch over one piece takes."""

    forward: Busy = IDLE
    backward: Busy = IDLE
    """Gradients of the input, and what is computed again for them."""
    weight: Busy = IDLE

    def times(self, count: Any) -> PieceWork:
        """Return the same piece so many times."""
        return PieceWork(
            *(each.times(count) for each in (self.forward, self.backward, self.weight))
        )

    def __add__(self, other: PieceWork) -> PieceWork:
        return PieceWork(
            self.forward + other.forward, self.backward + other.backward, self.weight + other.weight
        )


@dataclass(frozen=True, slots=True, eq=False)
class RankWork:
    """What a program amounts to on a cluster."""

    layer: PieceWork
    """The mean layer."""
    first: PieceWork
    last: PieceWork
    gather_s: Any
    """One layer's sharded weights, gathered once."""
    scatter_s: Any
    """One layer's gradients, scattered once."""
    reduce_s: Any
    """All gradients of a rank, once a step."""
    collect_s: Any
    """All updated weights of a rank, once a step."""
    optimizer_s: Any
    send_s: Any


def rank_work(program: Program, prices: Prices, known: RankWork | None = None) -> RankWork:
    """Return how long each part of a program takes; its passes as known from another's work."""
    software = program.setting.software
    total = sum(each.count for each in program.layers)
    kinds = [(each.count / total, each) for each in program.layers]
    if known is None:
        pieces = (
            _mean([(share, piece_work(each.passes, prices, software)) for share, each in kinds]),
            piece_work(program.first, prices, software),
            piece_work(program.last, prices, software),
        )
    else:
        pieces = (known.layer, known.first, known.last)
    gather = sum(share * _seconds(each.gathers.forward, prices) for share, each in kinds)
    scatter = sum(share * _seconds(each.gathers.gradient, prices) for share, each in kinds)
    step = program.step
    return RankWork(
        *pieces,
        gather_s=gather,
        scatter_s=scatter,
        reduce_s=_seconds(step.gradients, prices) if step else 0.0,
        collect_s=_seconds(step.weights, prices) if step else 0.0,
        optimizer_s=_seconds(step.optimizer, prices) if step else 0.0,
        send_s=_seconds(sends(program), prices),
    )


def _mean(kinds: list[tuple[Any, PieceWork]]) -> PieceWork:
    """Return the mean of kinds of layer, each with its share."""
    if len(kinds) == 1:
        return kinds[0][1]
    return reduce(add, (work.times(share) for share, work in kinds))


def sends(program: Program) -> Operations:
    """Return the send of one stage to the next, none where there is one stage."""
    pp = program.setting.layout.pp
    if isinstance(pp, int) and pp == 1:
        return ()
    return (Collective("send", "send_recv", program.send_bytes, "pp", smallest(pp, 2)),)


def _seconds(operations: Operations, prices: Prices) -> Any:
    if not operations:
        return 0.0
    found = prices.of(operations)
    return sum((op.count * each for op, each in zip(operations, found, strict=True)), 0.0)


def piece_work(passes: Passes, prices: Prices, software: Software) -> PieceWork:
    """Return how long each pass over a piece takes."""
    again = passes.recompute + passes.backward
    every = passes.forward + again + passes.weight
    seconds = prices.of(every)
    beside = beside_of(every, seconds, prices, software)
    cuts = (0, len(passes.forward), len(passes.forward) + len(again), len(every))
    return PieceWork(
        *(
            busy(every[start:end], seconds[start:end], software, beside) if end > start else IDLE
            for start, end in itertools.pairwise(cuts)
        )
    )


def beside_of(every: Operations, seconds: list[Any], prices: Prices, software: Software) -> Beside:
    """Return the products' seconds by name, and with a collective's kernel beside them."""
    named = {op.name: op.count * each for op, each in zip(every, seconds, strict=True)}
    if software.tp_overlap == "none" or not any(isinstance(op, Collective) for op in every):
        return Beside(named, {}) if any("ring" in name for name in named) else NOTHING_BESIDE
    products = tuple(op for op in every if isinstance(op, Gemm))
    slowed = prices.of(products, sms_taken=software.overlap_sms)
    return Beside(
        named, {op.name: op.count * each for op, each in zip(products, slowed, strict=True)}
    )


def all_passes(piece: PieceWork) -> Busy:
    """Return one micro-batch over a piece, forward and backward."""
    return piece.forward + piece.backward + piece.weight


ENDS: Final = ("embedding", "head")
"""What the first and the last stage have besides layers."""


class StagePass(NamedTuple):
    """One micro-batch on one kind of stage."""

    name: str
    layers: Any
    ends: tuple[str, ...]
    """Which of `ENDS` it has."""
    busy: Busy


def only_stage(program: Program, work: RankWork) -> StagePass:
    """Return one micro-batch on the one stage of a pipeline that is none."""
    layers = program.stages.first.layers
    whole = all_passes(work.layer).times(layers) + all_passes(work.first) + all_passes(work.last)
    return StagePass("only stage", layers, ENDS, whole)


def stage_passes(program: Program, work: RankWork) -> tuple[StagePass, ...]:
    """Return one micro-batch on the first, a middle and the last stage of a pipeline."""
    stages, layer = program.stages, all_passes(work.layer)
    kinds = (
        ("first stage", stages.first.layers, ENDS[:1], all_passes(work.first)),
        ("middle stage", stages.middle.layers, (), IDLE),
        ("last stage", stages.last.layers, ENDS[1:], all_passes(work.last)),
    )
    return tuple(
        StagePass(name, layers, ends, layer.times(layers) + extra)
        for name, layers, ends, extra in kinds
    )


def step_work(program: Program, work: RankWork) -> StepWork:
    """Return a training step as the schedule takes it."""
    layout, software = program.setting.layout, program.setting.software

    def stage(layers: Any, extra: PieceWork) -> Stage:
        return Stage(
            *(layers * each.wall_s(software) for each in _parts(work.layer)),
            *(each.wall_s(software) for each in _parts(extra)),
        )

    overlapped = software.dp_overlap
    stages = program.stages
    alone_s = 0.0 if overlapped else work.reduce_s + work.collect_s
    return StepWork(
        first=stage(stages.first.layers, work.first),
        middle=stage(stages.middle.layers, PieceWork()),
        last=stage(stages.last.layers, work.last),
        stages=layout.pp,
        micro_batches=program.micro_batches,
        virtual_stages=layout.virtual_stages,
        sends=Sends(work.send_s, blocking=not software.pp_overlap),
        data_parallel=DataParallel(
            work.reduce_s if overlapped else 0.0,
            work.collect_s if overlapped else 0.0,
            _buckets(program),
        ),
        layer_gathers=LayerGathers(
            work.gather_s,
            work.gather_s + work.scatter_s,
            stages.first.layers / layout.virtual_stages,
        ),
        optimizer_s=work.optimizer_s,
        overhead_s=software.step_overhead_s + alone_s,
    )


def _buckets(program: Program) -> Any:
    """Return into how many buckets the gradients of a model chunk go."""
    software, layout = program.setting.software, program.setting.layout
    sizes = (op.size_bytes * (op.ranks > 1) for op in _collectives(program.step))
    sent: Any = sum(sizes) / layout.virtual_stages
    count = largest(1, sent // software.bucket_bytes)
    return count if is_array(count) else int(count)


def _collectives(step: Step | None) -> Iterator[Collective]:
    gradients = step.gradients if step else ()
    return (op for op in gradients if isinstance(op, Collective))


def _parts(piece: PieceWork) -> tuple[Busy, Busy, Busy]:
    return piece.forward, piece.backward, piece.weight

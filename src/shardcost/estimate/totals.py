"""The two figures that a search ranks by: the time of a step, and what a rank holds.

`estimate` starts from the same functions and adds what the time is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from shardcost.checks import is_array
from shardcost.cluster import Cluster, Device
from shardcost.collectives.calibration import Calibration
from shardcost.estimate.busy import Busy
from shardcost.estimate.placement import places
from shardcost.estimate.price import Prices
from shardcost.estimate.work import RankWork, rank_work, step_work
from shardcost.layout import Layout
from shardcost.memory import Memory, MemoryPolicy, memory_of
from shardcost.memory.policy import policy_with
from shardcost.model import Model
from shardcost.program.assemble import Program, program_of
from shardcost.program.operations import Collective, Passes
from shardcost.schedule.step import step_s
from shardcost.software import Software
from shardcost.workload import Train, Workload

TRAINS_WITH: Final = "megatron_core"
SERVES_WITH: Final = "trtllm"
"""The software taken where none is named."""

Tree = TypeVar("Tree")


class Priced(NamedTuple):
    """A program, what its operations cost, and what they amount to."""

    program: Program
    prices: Prices
    work: RankWork


def priced(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    workload: Workload,
    software: Software,
    wire: Calibration | None = None,
    known: RankWork | None = None,
) -> Priced:
    """Return what one rank does under a layout, and how long each part of it takes.

    Args:
        model: What is run.
        cluster: Where.
        layout: How it is divided.
        workload: What is computed.
        software: What runs it.
        wire: Constants of the caller's own network.
        known: The work of a layout whose layers do the same, so that they need no new prices.
    """
    program = program_of(model, layout, workload, software)
    prices = Prices(cluster, software, places(layout), wire, arrays=_has_arrays(program))
    return Priced(program, prices, rank_work(program, prices, known))


def held(
    model: Model, device: Device, layout: Layout, workload: Workload, software: Software
) -> Memory:
    """Return what ranks hold under a software's policy."""
    return memory_of(model, layout, workload, device=device, software=_habits(software))


def _same(tree: Tree) -> Tree:
    return tree


def total_s(program: Program, work: RankWork, cells: Callable[[Any], Any] = _same) -> Any:
    """Return the time of a step.

    Args:
        program: What one rank does.
        work: How long its parts take.
        cells: Takes from a tree of arrays those cells that are asked for.
    """
    if program.step is None:
        return cells(served_s(program, work))
    return step_s(cells(step_work(program, work)), program.setting.layout.schedule)


def served_s(program: Program, work: RankWork) -> Any:
    """Return the time of one pass forward through all stages.

    Before a pass the host looks after every sequence; at every collective of the tensor group the
    ranks wait for the slowest.
    """
    software = program.setting.software
    host = software.step_overhead_s + software.host_per_sequence_s * program.setting.sequences
    host = host + software.collective_wait_s * tensor_collectives(program)
    whole = forward_pass(program, work)
    return whole.wall_s(software) + forward_sends_s(program, work) + host


def forward_pass(program: Program, work: RankWork) -> Busy:
    """Return one pass over all layers, the embedding and the head."""
    count = sum(each.count for each in program.layers)
    return work.layer.forward.times(count) + work.first.forward + work.last.forward


def forward_sends_s(program: Program, work: RankWork) -> Any:
    """Return the time of all sends of one pass, from stage to stage."""
    return (program.setting.layout.pp - 1) * work.send_s


def tensor_collectives(program: Program) -> Any:
    """Return how many collectives of the tensor group one pass forward has."""
    pieces = [(each.count, each.passes) for each in program.layers]
    pieces += [(1, program.first), (1, program.last)]
    return sum(times * forward_tensor_collectives(passes) for times, passes in pieces)


def forward_tensor_collectives(passes: Passes) -> Any:
    """Return how many collectives of the tensor group a piece has in a forward pass."""
    return sum(
        op.count * (op.ranks > 1)
        for op in passes.forward
        if isinstance(op, Collective) and op.group == "tp"
    )


def software_of(given: Software | str | None, workload: Workload) -> Software:
    """Return a software, the usual one for the workload if none is given."""
    if isinstance(given, Software):
        return given
    return _named(given or (TRAINS_WITH if isinstance(workload, Train) else SERVES_WITH))


@lru_cache(maxsize=64)
def _named(name: str) -> Software:
    return Software.named(name)


@lru_cache(maxsize=64)
def _habits(software: Software) -> MemoryPolicy:
    """Return how a software treats memory: its choices, and what was measured of it."""
    return policy_with(vars(software), software.memory)


def _has_arrays(program: Program) -> bool:
    """Return whether any size in a program is an array."""
    s, stages = program.setting, program.stages
    sizes = (s.tokens, s.context_tokens, stages.first.weights.total, stages.middle.layers)
    return any(map(is_array, (*sizes, program.micro_batches, *vars(s.layout).values())))

"""What traces say: where the time went, how fast collectives were, and what costs most.

Of each rank's time, compute is when a compute kernel runs, and communication is exposed when none
does. Figures are means over the ranks whose traces are at hand. With several ranks, waiting for the
slowest is told from a collective's own time (`shardcost.formats.kineto_ranks`); what a machine that
is known would be predicted to take stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcost.cluster import Cluster
from shardcost.collectives.group import bus_factor
from shardcost.collectives.library_time import COLLECTIVES, collective_time
from shardcost.errors import ShardcostError
from shardcost.formats.kineto import Kernel, RankTrace, Trace
from shardcost.formats.kineto_names import Kind
from shardcost.formats.kineto_ranks import Merged, merged, runs_of
from shardcost.formats.reading import LEAST_US
from shardcost.formats.time_sets import Floats, union_of
from shardcost.inspect.log import RunFindings
from shardcost.inspect.log import inspected as inspected_run
from shardcost.validate.collectives import times_s

TOP: Final = 3
FAR_SLOWER: Final = 1.5
"""Than predicted: beyond what predictions are wrong by."""
_NEGLIGIBLE: Final = 1e-3
"""Part of the time below which a cost is not worth a sentence."""
_ADVICE: Final = {
    "idle": "no kernel runs: the host launches too slowly, or waits for data or another stage;"
    " larger batches, CUDA graphs and fewer synchronisations close the gaps",
    "copies": "copies between host and device that nothing hides: pin memory and copy ahead, on a"
    " stream of its own",
    "waiting": "ranks that arrive early wait for the last one: look for uneven work (pipeline"
    " stages, experts, data) or one slow device",
    "slow": "look at the placement of its ranks, their links and what else uses them",
    "exposed": "compute stops for it: overlap it with compute, send fewer bytes, or place the group"
    " on faster links",
    "exposed alone": "compute stops for it, be it sending or waiting for slower ranks (traces of"
    " several tell): overlap it with compute, or send fewer bytes",
}


class Shape(NamedTuple):
    """What calls are told apart by."""

    collective: str
    group: str
    """What the group is for, else its name."""
    ranks: int
    """0 where it is unknown."""
    stride: int
    """How far apart they are, 0 where it is unknown."""


@dataclass(frozen=True, kw_only=True)
class GroupFindings:
    """Calls of one collective on one kind of group: means over the ranks."""

    shape: Shape
    calls: float
    size_bytes: float
    """Of all calls whose size is known, as nccl-tests counts."""
    time_s: float
    waiting_s: float | None
    """For slower ranks, None where it cannot be told."""
    exposed_s: float
    exposed_waiting_s: float
    """Of the exposed time, at most so much was waiting."""
    algbw_bytes_per_s: float | None
    """Without waiting; over the calls whose size is known."""
    busbw_bytes_per_s: float | None
    predicted_s: float | None
    """Of the calls whose size is known."""
    achieved_s: float
    """The same calls, without waiting."""

    @property
    def hidden_s(self) -> float:
        """What ran behind compute."""
        return self.time_s - self.exposed_s

    @property
    def slowness(self) -> float | None:
        """Achieved over predicted time."""
        return self.achieved_s / self.predicted_s if self.predicted_s else None


class Cost(NamedTuple):
    """Something that takes time and need not."""

    what: str
    """``idle``, ``copies``, ``waiting``, ``slow`` or ``exposed``."""
    subject: str
    seconds: float
    share: float
    """Of the span."""
    advice: str


@dataclass(frozen=True, kw_only=True)
class TraceFindings:
    """What traces say; seconds are means over the ranks."""

    traces: tuple[Trace, ...]
    ranks: tuple[int, ...]
    system: str
    """Name of the cluster that was compared with; empty where none was."""
    span_s: float
    compute_s: float
    communication_s: float
    exposed_s: float
    copies_s: float
    idle_s: float
    groups: tuple[GroupFindings, ...]
    """The longest first."""
    runs: tuple[RunFindings, ...]
    kernels: tuple[Kernel, ...]
    """The heaviest compute kernels of the first rank."""
    top: tuple[Cost, ...]
    notes: tuple[str, ...]

    @property
    def hidden_s(self) -> float:
        """Communication that ran behind compute."""
        return self.communication_s - self.exposed_s


def inspected(traces: Sequence[Trace], cluster: Cluster | None = None) -> TraceFindings:
    """Return what traces of one job say, compared with a machine where one is known."""
    calls = merged(traces)
    times = _mean_times(calls.ranks)
    groups, notes = _groups(calls, cluster)
    runs = tuple(inspected_run(entry) for entry in runs_of(traces))
    said = [note for trace in traces for note in trace.notes]
    if len(calls.ranks) == 1 and groups:
        said.append("times of collectives include waiting: give the traces of several ranks")
    span = times["span_s"]
    costs = [
        ("idle", "idle gaps", times["idle_s"], _ADVICE["idle"]),
        ("copies", "copies", times["copies_s"], _ADVICE["copies"]),
        *(cost for group in groups for cost in _costs_of(group)),
    ]
    worst = sorted(costs, key=lambda entry: -entry[2])[:TOP]
    return TraceFindings(
        traces=tuple(traces),
        ranks=tuple(rank.rank for rank in calls.ranks),
        system="" if cluster is None else cluster.name,
        **times,
        groups=groups,
        runs=runs,
        kernels=calls.ranks[0].kernels if calls.ranks else (),
        top=tuple(
            Cost(what, subject, seconds, seconds / span, advice)
            for what, subject, seconds, advice in worst
            if seconds > _NEGLIGIBLE * span
        ),
        notes=tuple(dict.fromkeys([*said, *notes])),
    )


def _mean_times(ranks: Sequence[RankTrace]) -> dict[str, float]:
    """Return the parts of the time, as means over the ranks."""
    names = ("span_s", "compute_s", "communication_s", "exposed_s", "copies_s", "idle_s")
    if not ranks:
        return dict.fromkeys(names, 0.0)
    rows = []
    for rank in ranks:
        sent = rank.communication
        hidden = float(np.sum(rank.compute.within(sent.starts, sent.ends)))
        running = union_of(rank.compute, sent)
        busy = union_of(running, rank.copies)
        copies = busy.total - running.total
        exposed = sent.total - hidden
        idle = max(0.0, rank.span_s - busy.total)
        rows.append((rank.span_s, rank.compute.total, sent.total, exposed, copies, idle))
    return dict(zip(names, map(float, np.mean(rows, axis=0)), strict=True))


def _groups(calls: Merged, cluster: Cluster | None) -> tuple[tuple[GroupFindings, ...], list[str]]:
    """Return what is found about each collective on each kind of group, and notes."""
    exposed = calls.duration_s.copy()  # what no compute kernel covers
    for number, rank in enumerate(calls.ranks):
        mine = calls.rank == number
        start = calls.start_s[mine]
        exposed[mine] -= rank.compute.within(start, start + calls.duration_s[mine])
    exposed = np.maximum(exposed, 0.0)
    groups, notes = [], []
    for shape, chosen in calls.by([_shape(kind) for kind in calls.kinds]).items():
        predicted, note = _predicted(shape, calls.size_bytes[chosen], cluster)
        notes += [note] if note else []
        groups.append(_group(shape, calls, chosen, exposed[chosen], predicted))
    return tuple(sorted(groups, key=lambda group: -group.time_s)), notes


def _shape(kind: Kind) -> Shape:
    group = kind.group
    # Ranks of other groups for the same purpose have groups of other names.
    name = group.purpose or (group.name if group.stride == 0 else "")
    return Shape(kind.collective, name, group.size, group.stride)


def _group(
    shape: Shape,
    calls: Merged,
    chosen: NDArray[np.int64],
    exposed: Floats,
    predicted: Floats | None,
) -> GroupFindings:
    ranks = len(calls.ranks)
    seen_by = len(np.unique(calls.rank[chosen]))
    waiting, own = calls.waiting_s[chosen], calls.own_s[chosen]
    size = calls.size_bytes[chosen]
    sized = size > 0
    total, achieved = float(np.sum(size, dtype=np.float64)), float(np.sum(own[sized]))
    algbw = total / achieved if total and achieved >= LEAST_US * 1e-6 else None
    factor = bus_factor(shape.collective, shape.ranks) if shape.ranks else None
    waits_known = seen_by > 1 and len(np.unique(calls.call[chosen])) < len(chosen)
    return GroupFindings(
        shape=shape,
        calls=len(chosen) / ranks,
        size_bytes=total / ranks,
        time_s=float(np.sum(calls.duration_s[chosen])) / ranks,
        waiting_s=float(np.sum(waiting)) / ranks if waits_known else None,
        exposed_s=float(np.sum(exposed)) / ranks,
        exposed_waiting_s=float(np.sum(np.minimum(exposed, waiting))) / ranks,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=None if algbw is None or factor is None else algbw * float(factor),
        predicted_s=None if predicted is None else float(np.sum(predicted)) / ranks,
        achieved_s=achieved / ranks,
    )


def _predicted(
    shape: Shape, size_bytes: NDArray[Any], cluster: Cluster | None
) -> tuple[Floats | None, str]:
    """Return the predicted times of the calls whose size is known, or why there are none."""
    size_bytes = size_bytes[size_bytes > 0]
    if cluster is None or not len(size_bytes) or shape.collective not in COLLECTIVES:
        return None, ""
    if shape.ranks < 2:
        return None, f"{shape.collective} is not predicted: the size of its group is not known"
    sizes, which = np.unique(size_bytes, return_inverse=True)
    try:
        result = collective_time(
            shape.collective,
            sizes.astype(np.float64),
            cluster,
            shape.ranks,
            stride=shape.stride or 1,
        )
        return times_s(result, single_process=False)[which], ""
    except ShardcostError as error:
        return None, f"{shape.collective} over {shape.ranks} ranks is not predicted: {error}"


def _costs_of(group: GroupFindings) -> Iterator[tuple[str, str, float, str]]:
    """Yield the exposed time of a group: waiting, more than predicted, and the rest."""
    name = name_of(group.shape)
    alone = group.waiting_s is None
    waiting = 0.0 if alone else group.exposed_waiting_s
    rest = group.exposed_s - waiting
    slowness = group.slowness
    slow = rest * (1 - 1 / slowness) if slowness and slowness > FAR_SLOWER else 0.0
    if waiting:
        yield "waiting", f"waiting in {name}", waiting, _ADVICE["waiting"]
    if slow:
        advice = f"{slowness:.1f} times the time predicted for this machine: {_ADVICE['slow']}"
        yield "slow", f"{name}, slower than it should be", slow, advice
    advice = _ADVICE["exposed alone" if alone else "exposed"]
    yield "exposed", f"exposed {name}", rest - slow, advice


def name_of(shape: Shape) -> str:
    """Return how to call a collective on a group: ``all_reduce of dp over 16 ranks``."""
    whose = f" of {shape.group}" if shape.group else ""
    over = f" over {shape.ranks} ranks" if shape.ranks else ""
    return f"{shape.collective}{whose}{over}"

"""Traces of several ranks together: what a collective itself took, and what was waiting.

The kernel of a collective begins when its own rank arrives and ends for all ranks at about the same
time, so its duration includes waiting for the slowest. The rank that arrives last does not wait:
the least duration over the ranks is the collective's own time. A call is the same on all ranks if
its group, its collective and its number in the group are the same; where traces do not number
calls, they are counted in the order in which they start. Sends and receives are numbered by each
rank for itself, and groups without a name may be any: those are not matched.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardcost.formats.kineto import RankTrace, Trace
from shardcost.formats.kineto_names import Kind, Whole
from shardcost.formats.reading import LEAST_US, Point, Run
from shardcost.formats.time_sets import Floats

_UNMATCHED: Final = "send_recv"
_LEAST_S: Final = LEAST_US * 1e-6
_MOST_SIZES: Final = 2_000
_MOST_LABELS: Final = 1_000
_Label = TypeVar("_Label", bound=Hashable)
_EMPTY: Final[list[NDArray[Any]]] = [np.zeros(0, dtype=np.int64)] * 5 + [np.zeros(0)] * 2


class Merged(NamedTuple):
    """The calls of all ranks in columns, with what each took beside its waiting."""

    kinds: tuple[Kind, ...]
    kind: Whole
    rank: Whole
    """Place of the call's rank in `ranks`."""
    call: Whole
    """Calls with the same number are one collective, seen by several ranks."""
    size_bytes: Whole
    start_s: Floats
    duration_s: Floats
    own_s: Floats
    """The least duration over the ranks that saw it."""
    ranks: tuple[RankTrace, ...]

    def by(self, labels: Sequence[_Label]) -> dict[_Label, Whole]:
        """Return the places of calls by what their kinds are labelled as.

        Where there are very many labels, those of the longest total time are kept.
        """
        numbers: dict[_Label, int] = {}
        of_kind = [numbers.setdefault(label, len(numbers)) for label in labels]
        label = np.array(of_kind, dtype=np.int64)[self.kind]
        total = np.bincount(label, weights=self.duration_s, minlength=len(numbers))
        longest = set(np.argsort(-total, kind="stable")[:_MOST_LABELS].tolist())
        order = np.argsort(label, kind="stable")
        ends = np.searchsorted(label[order], np.arange(len(numbers) + 1))
        return {
            key: order[ends[number] : ends[number + 1]]
            for key, number in numbers.items()
            if number in longest and ends[number] < ends[number + 1]
        }

    @property
    def waiting_s(self) -> Floats:
        """What each call waited for other ranks, as far as these traces tell."""
        return self.duration_s - self.own_s


def merged(traces: Sequence[Trace]) -> Merged:
    """Return the calls of all ranks, those of the same collective matched."""
    ranks = tuple(rank for trace in traces for rank in trace.ranks)
    kinds: dict[Kind, int] = {}
    columns = [_columns(number, rank, kinds) for number, rank in enumerate(ranks)]
    joined = [np.concatenate(parts) for parts in zip(*columns, _EMPTY, strict=True)]
    kind, matched, seq, rank_of, size, start, duration = joined
    call = _numbered(matched, seq, rank_of, start)
    least = np.full(int(call.max(initial=-1)) + 1, np.inf)
    np.minimum.at(least, call, duration)
    return Merged(tuple(kinds), kind, rank_of, call, size, start, duration, least[call], ranks)


def _columns(number: int, rank: RankTrace, kinds: dict[Kind, int]) -> list[NDArray[Any]]:
    """Return a rank's calls with kinds that are numbered over all ranks."""
    calls = rank.calls
    if not len(calls.kind):
        return [*_EMPTY]
    used, which = np.unique(calls.kind, return_inverse=True)  # a file's kinds are of all its ranks
    here = [calls.kinds[kind] for kind in used]
    own = np.array([kinds.setdefault(kind, len(kinds)) for kind in here], dtype=np.int64)
    # The same on other ranks only if calls may match.
    keys = [
        hash((kind.collective, kind.group, -1 if _matchable(kind) else number)) for kind in here
    ]
    matched = np.array(keys, dtype=np.int64)[which]
    # The numbers of calls, counted by start where the trace has none.
    order = np.lexsort((calls.start_s, matched))
    counted = np.empty(len(order), dtype=np.int64)
    counted[order] = _place_in_run(matched[order])
    return [
        own[which],
        matched,
        np.where(calls.seq >= 0, calls.seq, counted),
        np.full(len(calls.kind), number, dtype=np.int64),
        calls.size_bytes,
        calls.start_s,
        calls.duration_s,
    ]


def _matchable(kind: Kind) -> bool:
    """Return whether calls of one kind can be found on several ranks."""
    return kind.collective != _UNMATCHED and bool(kind.group.name or kind.group.ranks)


def _numbered(matched: Whole, seq: Whole, rank: Whole, start: Floats) -> Whole:
    """Return numbers that are the same for the calls of one collective.

    A call that shows several kernels has several of the same number, which match in their order.
    """
    order = np.lexsort((start, rank, seq, matched))
    again = np.empty(len(order), dtype=np.int64)
    again[order] = _place_in_run(matched[order], seq[order], rank[order])
    order = np.lexsort((again, seq, matched))
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = np.cumsum(_begins(matched[order], seq[order], again[order])) - 1
    return numbers


def _begins(*keys: Whole) -> NDArray[np.bool_]:
    """Return where, in sorted columns, a run of equal rows begins."""
    if not len(keys[0]):
        return np.zeros(0, dtype=np.bool_)
    changed = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return np.concatenate([[True], changed])


def _place_in_run(*keys: Whole) -> Whole:
    """Return how many equal rows stand before each in its run."""
    begins = _begins(*keys)
    place = np.arange(len(begins))
    return place - np.maximum.accumulate(np.where(begins, place, 0))


def runs_of(traces: Sequence[Trace]) -> tuple[Run, ...]:
    """Return the times of collectives as a benchmark would state them, by size.

    The time of a size is the median over the calls. Groups of one size whose ranks lie differently
    far apart are runs of their own.
    """
    calls = merged(traces)
    library = next((trace.library for trace in traces if trace.library), "")
    device = next((trace.device for trace in traces if trace.device), "")
    shapes = [(kind.collective, kind.group.size, kind.group.stride) for kind in calls.kinds]
    runs = []
    for (collective, ranks, stride), members in sorted(calls.by(shapes).items()):
        sized = members[calls.size_bytes[members] > 0]
        if len(sized):
            first = sized[np.unique(calls.call[sized], return_index=True)[1]]
            kind = calls.kinds[calls.kind[sized[0]]]
            runs.append(
                Run(
                    collective=collective,
                    num_gpus=ranks,
                    library=library,
                    device=device,
                    stride=max(1, stride),
                    points=_points(calls.size_bytes[first], calls.own_s[first]),
                    notes=_notes(kind, len(np.unique(calls.rank[sized]))),
                )
            )
    return tuple(runs)


def _points(sizes: Whole, times: Floats) -> tuple[Point, ...]:
    """Return the median time of each size, of the most frequent ones where there are too many."""
    order = np.lexsort((times, sizes))
    sizes, times = sizes[order], times[order]
    distinct, first, count = np.unique(sizes, return_index=True, return_counts=True)
    median = (times[first + (count - 1) // 2] + times[first + count // 2]) / 2
    kept = np.sort(np.argsort(-count, kind="stable")[:_MOST_SIZES])
    return tuple(Point(int(distinct[k]), float(median[k])) for k in kept if median[k] >= _LEAST_S)


def _notes(kind: Kind, ranks: int) -> tuple[str, ...]:
    stride = kind.group.stride
    apart = (f"its ranks are {stride} apart",) if stride > 1 else ()
    if ranks == 1:
        return (*apart, "seen by one rank: waiting for slower ranks is included")
    if not _matchable(kind):
        return (*apart, f"of {ranks} ranks, not matched: waiting for each other is included")
    return (*apart, f"the least of {ranks} ranks' times, without waiting for slower ranks")

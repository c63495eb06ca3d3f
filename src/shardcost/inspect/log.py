"""What the times in a log say: bandwidths, how they compare with links and predictions, and doubts.

A row is doubted, with a reason, where no well-behaved machine would give it: a time above what its
neighbours suggest (where nothing is predicted: above that of a larger message), a bus bandwidth
above the rate of the links, or the same call in place and out of place at different speeds. Doubts
are about single rows; what a curve as a whole says of the machine is for
`shardcost.inspect.verdict`, which looks at the rows that are not doubted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, inf, log
from operator import itemgetter
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from shardcost.cluster import Cluster
from shardcost.collectives.group import Group, bus_factor, nominal_rate
from shardcost.collectives.library_time import COLLECTIVES
from shardcost.errors import ShardcostError
from shardcost.formats.reading import Point, Run
from shardcost.inspect.causes import Curve
from shardcost.machine import machine_of
from shardcost.machine.libraries import default_library
from shardcost.validate.collectives import times_s
from shardcost.validate.predictions import Floats

SLOWER: Final = 1.3
"""From here on a time is called slower than another: repetitions differ by a few percent."""
FIRST_ROW: Final = "first row, as if not warmed up"
SLOW_ROW: Final = "slower than a larger size"
UNLIKE_NEIGHBOURS: Final = "slower than its neighbours"
IN_PLACE: Final = "in place and out of place differ"
_BESIDE: Final = 2
"""Neighbours on each side that a row is compared with: two slow rows may stand side by side."""
_ABOVE_LINK: Final = 1.02
_SMALL_BYTES: Final = 4096
"""Up to here a time is all latency."""
NEAR_PEAK: Final = 0.8
"""Share of the peak from which on a bandwidth is near it."""
_VENDORS_OWN: Final = frozenset({"nccl", "rccl"})
"""Libraries whose tests print alike: rows without a device may be of either."""


@dataclass(frozen=True)
class RatedPoint:
    """A measured time, and what follows from it. What cannot be told is None."""

    point: Point
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float | None
    link_share: float | None
    """busbw over the nominal rate of the slowest link on the way."""
    predicted_s: float | None
    low_s: float | None = None
    """Nine of ten such machines take between this …"""
    high_s: float | None = None
    """… and this long."""

    def busbw_of(self, seconds: float) -> float | None:
        """Return the bus bandwidth if the same call took another time."""
        busbw = self.busbw_bytes_per_s
        return None if busbw is None else busbw * self.point.time_s / seconds

    @property
    def predicted_busbw_bytes_per_s(self) -> float | None:
        """The bus bandwidth of the predicted time."""
        return None if self.predicted_s is None else self.busbw_of(self.predicted_s)


class Doubt(NamedTuple):
    """A point that looks wrong, and why."""

    point: Point
    kind: str
    """The reason without its figures; alike for points that are doubted for the same reason."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class RunFindings:
    """What the times of one run say."""

    run: Run
    system: str
    """Name of the cluster that they were compared with; empty where none was."""
    nominal_bytes_per_s: float | None
    """Of the slowest link on the way."""
    not_predicted: str
    """Why there are no predictions; empty where there are."""
    points: tuple[RatedPoint, ...]
    peak: RatedPoint | None
    """The point with the highest bus bandwidth."""
    near_peak_bytes: int
    """The smallest message that is near the peak (`NEAR_PEAK`); 0 where there is no peak."""
    floor_s: float | None
    """The median time of messages of up to 4 KiB, which is all latency."""
    suspicious: tuple[Doubt, ...]
    curve: Curve | None = None
    """What was predicted, its sizes in the order of the points; None where nothing was."""

    @property
    def main(self) -> list[RatedPoint]:
        """The points out of place, or those in place where a run has no others."""
        return _main(self.points)


def inspected(run: Run, cluster: Cluster | None = None) -> RunFindings:
    """Return what the times of a run say, compared with a machine where one is known."""
    nominal, curve, predicted, reason = _compared(run, cluster)
    factor = None
    if run.num_gpus > 0 and run.collective in COLLECTIVES:
        factor = float(bus_factor(run.collective, run.num_gpus))

    def rated(point: Point, predicted: Sequence[float]) -> RatedPoint:
        algbw = point.size_bytes / point.time_s
        busbw = None if factor is None else factor * algbw
        share = busbw / nominal if busbw is not None and nominal else None
        return RatedPoint(point, algbw, busbw, share, *(predicted or (None,)))

    times = [()] * len(run.points) if predicted is None else predicted.tolist()
    points = tuple(map(rated, run.points, times))
    main = _main(points)
    fast = [(entry.busbw_bytes_per_s, entry) for entry in main if entry.busbw_bytes_per_s]
    highest, peak = max(fast, key=itemgetter(0), default=(0.0, None))
    near = [entry.point.size_bytes for busbw, entry in fast if busbw >= NEAR_PEAK * highest]
    small = [entry.point.time_s for entry in main if entry.point.size_bytes <= _SMALL_BYTES]
    return RunFindings(
        run=run,
        system="" if cluster is None else cluster.name,
        nominal_bytes_per_s=nominal,
        not_predicted=reason,
        points=points,
        peak=peak,
        near_peak_bytes=min(near, default=0),
        floor_s=median(small) if small else None,
        suspicious=tuple(_doubts(points)),
        curve=curve,
    )


def _compared(
    run: Run, cluster: Cluster | None
) -> tuple[float | None, Curve | None, Floats | None, str]:
    """Return the nominal rate of the links, the curve and its predictions, or why there are none.

    Predictions are a row for each point: the time, and the ends of its interval.
    """
    if cluster is None:
        return None, None, None, "the machine is not known (name it with --on)"
    if not run.num_gpus:
        return None, None, None, "the number of GPUs is not known"
    if not run.collective or run.collective not in COLLECTIVES:
        what = run.collective or "a collective without a name"
        return None, None, None, f"{what} is not predicted"
    nominal = None
    try:
        group = Group.on(cluster, run.num_gpus, run.nodes or None)
        nominal = float(nominal_rate(run.collective, group))
        sizes = np.array([point.size_bytes for point in run.points], dtype=np.float64)
        named = run.library and (run.device or run.version or run.library not in _VENDORS_OWN)
        library = run.library if named else default_library(cluster)
        curve = Curve(
            run.collective,
            sizes,
            machine_of(cluster),
            run.num_gpus,
            run.nodes or None,
            library,
            single_process=run.single_process,
        )
        result = curve.result()
        times = times_s(result, single_process=run.single_process)
        ends = [times * (end / result.time_s) for end in result.interval[:2]]
        return nominal, curve, np.stack([times, *ends], axis=1), ""
    except ShardcostError as error:
        return nominal, None, None, str(error)


def _main(points: Sequence[RatedPoint]) -> list[RatedPoint]:
    return [point for point in points if not point.point.in_place] or list(points)


def _doubts(points: Sequence[RatedPoint]) -> Iterator[Doubt]:
    """Yield the points that look wrong, by reason."""
    measured = [rated.point for rated in points]
    for in_place in (False, True):
        alike = [rated for rated in points if rated.point.in_place == in_place]
        yield from _slow_rows(alike)
    yield from _unlike_in_place(measured)
    for rated in points:
        if rated.link_share is not None and rated.link_share > _ABOVE_LINK:
            kind = "busbw above the nominal rate of the link, which only switches that add up allow"
            yield Doubt(rated.point, kind, f"{kind}: {100 * rated.link_share:.0f} %")


def _slow_rows(points: Sequence[RatedPoint]) -> Iterator[Doubt]:
    """Yield the rows that take longer than others suggest.

    Where there are predictions, those that stand above their neighbours in measured over predicted
    time; else those that take longer than a larger message.
    """
    predicted = [rated for rated in points if rated.predicted_s]
    if not predicted:
        yield from _out_of_order([rated.point for rated in points])
    predicted.sort(key=lambda rated: rated.point.size_bytes)
    ratios = [log(rated.point.time_s / (rated.predicted_s or 1.0)) for rated in predicted]
    for place, above in sorted(_peaks(ratios).items()):
        point = predicted[place].point
        kind = FIRST_ROW if point is points[0].point else UNLIKE_NEIGHBOURS
        yield Doubt(
            point, kind, f"{kind}: {exp(above):.1f} times as long as the rows beside it suggest"
        )


def _peaks(heights: Sequence[float]) -> dict[int, float]:
    """Return the places that stand above both sides, each with by how much; the highest first.

    A place is compared with the lower of the next two on each side, and with the higher of the
    sides, so that neither a slope nor a step counts. At an end it is compared with the higher of
    the next two. What stands out is taken away before the next is looked for.
    """
    left = list(range(len(heights)))
    found: dict[int, float] = {}
    while len(left) > 2 * _BESIDE:
        above = []
        for k, place in enumerate(left):
            before = [heights[i] for i in left[max(0, k - _BESIDE) : k]]
            after = [heights[i] for i in left[k + 1 : k + 1 + _BESIDE]]
            sides = (min(before), min(after)) if before and after else (*before, *after)
            beside = max(sides)
            above.append(heights[place] - beside)
        most = max(above)
        if most <= log(SLOWER):
            break
        found[left.pop(above.index(most))] = most
    return found


def _out_of_order(points: Sequence[Point]) -> Iterator[Doubt]:
    """Yield the points that take longer than one of a larger message."""
    times: dict[int, float] = {}
    for point in points:
        times[point.size_bytes] = min(point.time_s, times.get(point.size_bytes, inf))
    sizes = sorted(times, reverse=True)
    # The least time of any larger message, infinite above the largest.
    least = accumulate((times[size] for size in sizes), min, initial=inf)
    beyond = dict(zip(sizes, least, strict=False))
    for point in points:
        ratio = point.time_s / beyond[point.size_bytes]
        if ratio > SLOWER:
            first = point is points[0]
            kind = FIRST_ROW if first else SLOW_ROW
            yield Doubt(point, kind, f"{kind}: {ratio:.1f} times the time of a larger one")


def _unlike_in_place(points: Sequence[Point]) -> Iterator[Doubt]:
    """Yield the slower of the two where a call in place and one out of place differ."""
    in_place = {(entry.line, entry.size_bytes): entry for entry in points if entry.in_place}
    for point in points:
        other = in_place.get((point.line, point.size_bytes))
        if point.in_place or other is None:
            continue
        slower, faster = (point, other) if point.time_s > other.time_s else (other, point)
        if slower.time_s > SLOWER * faster.time_s:
            where = "in place" if slower.in_place else "out of place"
            ratio = slower.time_s / faster.time_s
            yield Doubt(slower, IN_PLACE, f"{IN_PLACE}: {where} {ratio:.1f} times as long")

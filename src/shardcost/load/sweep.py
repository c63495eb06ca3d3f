"""A deployment at one load after the other: how much it holds within limits of latency.

A load is held where, of a hundred requests, as many as `Limits.percentile` says keep each limit,
and the deployment keeps up: under arrivals that it cannot serve, batch and queue grow for as long
as they come, and the time of a request with them. The highest load that is held lies between the
last point that is and the first that is not; it is found by halving what is between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from math import ceil, isfinite, sqrt
from typing import Final

import numpy as np

from shardcost.errors import BadValueError, UnknownNameError, UsageError
from shardcost.load.deployment import Deployment
from shardcost.load.requests import MOST_REQUESTS, Floats, Requests
from shardcost.load.result import Limits, Load
from shardcost.load.simulate import simulate
from shardcost.records import dataclass

OVER: Final = ("rate", "concurrency")
FIGURES: Final = ("ttft", "tpot", "e2e")
"""What limits are of."""
QUEUE: Final = "queue"
"""Stands among the limits that break where requests arrive faster than they are served."""
_GROWTH: Final = 0.05
"""Seconds by which requests take longer with every second that passes: from here on the queue, or
the batch, is taken to grow. Below, it is what a thousand random arrivals scatter by."""
_FEW: Final = 30
"""Requests that are needed to tell by first tokens …"""
_STEADY: Final = 100
"""… and by whole requests, both in …"""
_BLOCKS: Final = 10
"""… so many blocks."""
_SHARES: Final = (0.1, 0.25, 0.5, 0.7, 0.85, 1.0, 1.2)
"""Rates that are tried where none are given, relative to what is served of requests that all come
at once."""
_BEYOND: Final = 10
"""How many more are tried, each as much higher as the last of these, until one is not held."""
_LOWEST: Final = 0.01
"""Likewise, where even the first does not hold."""
_CLOSE: Final = 0.02
"""How near a load that is held must lie to one that is not."""
_HALVINGS: Final = 8
_GAIN: Final = 0.02
"""By how much more twice the users must be served, to count as faster …"""
_IDLE: Final = 3
"""… and after how many doublings without that no limit will break any more."""
_MOST_USERS: Final = 2**16
_PER_USER: Final = 10
_TIMES_THE_BATCH: Final = 8
"""Requests of a point, over those that decode together at full load: so that most of them see it.
"""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Point:
    """One load, and which limits it breaks."""

    value: float
    """Requests in a second, or users."""
    load: Load
    broken: tuple[str, ...]
    """Of `FIGURES` and `QUEUE`; none where the load is held."""

    @property
    def held(self) -> bool:
        """Whether the deployment keeps up within the limits."""
        return not self.broken


@dataclass(frozen=True, eq=False)
class Sweep:
    """Loads from low to high, and the highest that is held."""

    deployment: Deployment
    over: str
    """``rate`` or ``concurrency``."""
    limits: Limits
    points: Sequence[Point] = field(repr=False)
    """By their value."""

    @property
    def broken(self) -> Point | None:
        """The lowest load that is not held."""
        return next((point for point in self.points if not point.held), None)

    @property
    def knee(self) -> Point | None:
        """The highest load that is held, as all below it are; None where not even the first is."""
        held = None
        for point in self.points:
            if not point.held:
                break
            held = point
        return held


def sweep(
    deployment: Deployment,
    requests: Requests,
    *,
    over: str = "rate",
    values: Sequence[float] | None = None,
    limits: Limits | None = None,
    count: int | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Return a deployment's figures at loads from low to high.

    Args:
        deployment: What serves.
        requests: Those of each load; their rate or users vary.
        over: ``rate`` of Poisson arrivals or of a trace, or ``concurrency``: users of a closed
            loop.
        values: Loads to try; from low to past what the deployment serves if None.
        limits: Of latency; if None, a load is held where the deployment keeps up.
        count: Requests at each load; if None, as many as show it.
        progress: Called with the loads that were simulated, and about how many there are.
    """
    if over not in OVER:
        raise UnknownNameError("sweep", over, OVER)
    if over == "concurrency" and requests.arrival == "trace":
        raise UsageError("a trace has no users: its rate varies")
    run = _Run(deployment, requests, over, limits or Limits(), count, progress)
    if values is not None:
        if not values:
            raise BadValueError("values", values, "loads, or None for those that suit")
        run.planned = len(values) + _HALVINGS
        if over == "rate" and count is None and requests.arrival != "trace":
            run.served_at_once()  # for the requests of a point
        for value in sorted(set(values)):
            run.at(value)
    elif over == "rate":
        run.rates()
    else:
        run.doublings()
    run.close_in()
    return run.result


class _Run:
    def __init__(
        self, deployment: Deployment, requests: Requests, over: str, limits: Limits,
        count: int | None, progress: Progress | None,
    ) -> None:  # fmt: skip
        self.deployment, self.requests, self.over, self.limits = deployment, requests, over, limits
        self.count, self.progress = count, progress
        self.points: dict[float, Point] = {}
        self.planned = len(_SHARES) + _HALVINGS
        self.done = 0

    @property
    def result(self) -> Sweep:
        points = tuple(self.points[value] for value in sorted(self.points))
        return Sweep(self.deployment, self.over, self.limits, points)

    def at(self, value: float) -> Point:
        """Return the point at a load, simulated once."""
        if value not in self.points:
            load = self._simulate(self._asked(value))
            self.points[value] = Point(value, load, broken_limits(load, self.limits))
        return self.points[value]

    def _asked(self, value: float) -> Requests:
        requests = self.requests
        if self.over == "rate":
            if requests.arrival == "trace":
                return replace(requests, rate_per_s=value)
            count = self.count or requests.count
            return replace(requests, arrival="poisson", rate_per_s=value, users=None, count=count)
        users = int(value)
        count = self.count or min(_PER_USER * users, MOST_REQUESTS)
        return replace(requests, arrival="closed", users=users, rate_per_s=None, count=count)

    def _simulate(self, requests: Requests) -> Load:
        load = simulate(self.deployment, requests)
        self.done += 1
        if self.progress is not None:
            self.progress(min(self.done, self.planned), self.planned)
        return load

    def rates(self) -> None:
        """Try rates up to past what is served of requests that all come at once."""
        most = self.served_at_once()
        if not most:  # no request fits: any rate shows it
            self.at(1.0)
            return
        for share in _SHARES:
            self.at(_rounded(share * most))
        if self.result.knee is None:
            self.at(_rounded(_LOWEST * most))
        for _ in range(_BEYOND):
            if self.result.broken is not None:
                return
            self.at(_rounded(_SHARES[-1] * self.result.points[-1].value))

    def served_at_once(self) -> float:
        """Return the requests in a second, of enough of them; let each point have as many."""
        requests = self.requests
        if requests.arrival == "trace":
            stream = replace(requests.trace, arrival_s=np.zeros(len(requests.trace)))
            return self._simulate(replace(requests, trace=stream, rate_per_s=None)).requests_per_s
        burst = replace(
            requests, arrival="all-at-once", rate_per_s=None, count=self.count or requests.count
        )
        load = self._simulate(burst)
        wanted = min(ceil(_TIMES_THE_BATCH * load.mean_running), MOST_REQUESTS)
        if self.count is None and wanted > requests.count:
            self.count = wanted
            load = self._simulate(replace(burst, count=wanted))
        return load.requests_per_s

    def doublings(self) -> None:
        """Try 1, 2, 4, … users until they break a limit and are not served faster than fewer."""
        users, best, idle = 1, 0.0, 0
        while users <= _MOST_USERS:
            point = self.at(users)
            served = point.load.requests_per_s
            idle = 0 if served > (1 + _GAIN) * best else idle + 1
            if idle and (not point.held or self.limits == Limits() or idle == _IDLE):
                return
            users, best = 2 * users, max(served, best)

    def close_in(self) -> None:
        """Halve what is between the highest load that is held and the lowest that is not."""
        for _ in range(_HALVINGS):
            found = self.result
            if found.knee is None or found.broken is None:
                return
            low, high = found.knee.value, found.broken.value
            middle = _rounded(sqrt(low * high))
            if self.over == "concurrency":
                middle = float(round(middle))
            if high <= (1 + _CLOSE) * low or not low < middle < high:
                return
            self.at(middle)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def broken_limits(load: Load, limits: Limits) -> tuple[str, ...]:
    """Return which limits too many requests break, and `QUEUE` where a queue grows."""
    broken = []
    for name in FIGURES:
        limit = getattr(limits, f"{name}_s")
        if limit is None:
            continue
        own = Limits(**{f"{name}_s": limit})
        if 100 * load.good(own) < limits.percentile:
            broken.append(name)
    if load.requests.arrival in {"poisson", "trace"} and queue_grows(load):
        broken.append(QUEUE)
    if not len(load.served):
        broken.append(QUEUE)
    return tuple(dict.fromkeys(broken))


def queue_grows(load: Load) -> bool:
    """Return whether requests take longer and longer, by the line through them, less its error.

    Requests that come while the batch fills at the start, or that are alone in the end, are left
    out; where a run has no others, the line is through all first tokens.
    """
    spans = load.finished_s - load.arrival_s
    if len(spans) < _FEW:
        return False
    life = float(spans.mean())
    first, last = float(load.arrival_s[0]), float(load.arrival_s[-1])
    steady = (load.arrival_s >= first + life) & (load.arrival_s <= last - life)
    if steady.sum() < _STEADY:
        steady = np.ones(len(spans), dtype=bool)
        spans = load.first_token_s - load.arrival_s
    slope, error = _line(load.arrival_s[steady], spans[steady])
    return slope - 2 * error > _GROWTH


def _line(places: Floats, values: Floats) -> tuple[float, float]:
    """Return the slope of the line through values, by least squares, and its standard error.

    Requests that follow each other meet the same batch: the error is that of means over blocks.
    """
    cuts = np.linspace(0, len(values), _BLOCKS + 1).astype(int)[:-1]
    sizes = np.diff([*cuts, len(values)])
    places, values = (np.add.reduceat(each, cuts) / sizes for each in (places, values))
    spread = places - places.mean()
    square = float((spread**2).sum())
    if not square:
        return 0.0, 0.0
    slope = float((spread * values).sum()) / square
    rest = values - values.mean() - slope * spread
    return slope, sqrt(float((rest**2).sum()) / (len(values) - 2) / square)


def latencies(load: Load, name: str) -> Floats:
    """Return a figure of `FIGURES` for every request."""
    if name == "tpot":
        return load.tpot_each_s
    ends = load.first_token_s if name == "ttft" else load.finished_s
    return np.asarray(ends - load.arrival_s, dtype=float)


def at_percentile(load: Load, name: str, percentile: float) -> float:
    """Return what so many of a hundred requests stay below; NaN where there are none."""
    values = latencies(load, name)
    found = float(np.percentile(values, percentile)) if len(values) else float("nan")
    return found if isfinite(found) else float("nan")

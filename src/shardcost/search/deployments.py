"""Which deployment to run under a load: pools of workers, ranked by what they hold within limits.

::

    workers ──────► capacities ──────────► simulation ──► LoadPlan
    (rules, memory, (the closed form, one   of the best,   (best, front, reasons,
     bounds, on      pool and two, as long  ranked again    why the second lost)
     arrays)         as it could be best)

The closed form orders the deployments that are simulated; the simulation ranks them. Short
simulations scatter, and the best of several is chosen in part by chance. So the first is simulated
once more, longer and with other requests, and is replaced by the next if it does not hold its load
there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, sqrt
from typing import Any, Final

import numpy as np

from shardcost.errors import Reason
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.requests import Requests
from shardcost.load.result import Load
from shardcost.load.simulate import simulate
from shardcost.load.steady import Steady, steady
from shardcost.load.sweep import broken_limits
from shardcost.options import SIMULATED
from shardcost.search.capacities import Capacities
from shardcost.search.planned import FrontPoint, LoadPlan, PlannedDeployment, RunnerUp
from shardcost.search.workers import LoadQuestion, screened

_TIMES_SIMULATED: Final = 1.5
"""How many times as many deployments are simulated as asked for, at most: as long as the next one
promises more than was simulated."""
_OF_EACH: Final = 2
"""Of them, deployments of one pool and of two, at least."""
_LEAST_KEPT: Final = 8
"""Of each kind, deployments of which the closed form is computed."""
_STEPS: Final = (1.1, 1.2, 1.4, 1.8, 2.5, 4.0, 8.0, 16.0, 32.0, 64.0)
"""From the closed form's rate on, until one rate is held and one is not."""
_CLOSE: Final = 1.03
"""How near these two must be."""
_TRIES: Final = 10
_FEWEST: Final = 1200
_TIMES_RUNNING: Final = 5
_MOST: Final = 6000
"""Requests of a simulation: so many times those that decode together, at least the fewest.
Deployments that need more than the most are ranked by the closed form alone."""
_ALL_REQUESTS: Final = 50_000
"""Of all simulations, about; beyond, only the best `_OF_EACH` are simulated."""
_LOADS: Final = 5
"""Of each deployment, about."""
_PER_USER: Final = 10
_LONGER: Final = 5
"""How many times as many requests confirm the first …"""
_MOST_CONFIRMING: Final = 12_000
_CONFIRMATIONS: Final = 8
"""… and how many such simulations there are at most."""
_LOWER: Final = 0.97
"""By how much the rate of one that does not hold it is lowered."""
_MORE_WORKERS: Final = 3
"""That are added where the simulation does not hold what the closed form does."""
_NEAR_FRONT: Final = 24
_SHARES: Final = np.linspace(0.1, 1.0, 10)
"""The Pareto front is looked for among so many deployments, at shares of their capacity."""
_APART: Final = 1.1
"""How far points of the front are apart, in tokens of a GPU."""
_OF_PREFILL: Final = ("TTFT", "tokens of a step")
"""What bounds a deployment of two pools where prefill does."""
Progress = Callable[[int, int], None]


def plan_load(
    question: LoadQuestion,
    *,
    simulated: int = SIMULATED.preset,
    progress: Progress | None = None,
) -> LoadPlan:
    """Return the deployments that hold most within limits, or a load with fewest GPUs.

    Args:
        question: Workers, load and limits.
        simulated: How many of the best are simulated and ranked again; 0: none.
        progress: Called with what was computed, and about how much there is.
    """
    return _Planning(question, simulated, progress).run()


class _Planning:
    def __init__(self, question: LoadQuestion, simulated: int, progress: Progress | None) -> None:
        self.question, self.most, self.progress = question, simulated, progress
        self.simulations = self.done = 0
        self.left = _ALL_REQUESTS
        self.shares: dict[Any, list[float]] = {}
        """By kind of deployment: scores by simulation over those by the closed form."""
        self.whole = 4 * _LEAST_KEPT + 5 * simulated
        keep = max(simulated, _LEAST_KEPT)
        self.capacities = Capacities(question, keep, self._advance)

    def run(self) -> LoadPlan:
        started = time.perf_counter()
        workers = screened(self.question)
        planned = self.capacities.found(workers.choices)
        best = self._confirmed(self._ranked(planned))
        rejected = workers.rejected + self.capacities.rejected
        order = sorted(rejected.items(), key=lambda item: (-item[1], item[0].message))
        front = self._front(best)
        nearest = None if best else self._nearest()
        return LoadPlan(
            question=self.question,
            considered=workers.considered,
            feasible=workers.considered - rejected.total(),
            rejected=dict(order),
            deployments=self.capacities.computed,
            simulations=self.simulations,
            best=tuple(best),
            front=front,
            runner_up=self._runner_up(best),
            nearest=nearest,
            seconds=time.perf_counter() - started,
        )

    def _advance(self) -> None:
        self.done += 1
        if self.progress is not None:
            left = 0 if self.simulations else 5 * self.most
            self.whole = max(self.whole, self.done + left)
            self.progress(self.done, self.whole)

    def _nearest(self) -> PlannedDeployment | None:
        """Return the deployment that holds most where none holds the load."""
        known, question = self.capacities.nearest, self.question
        if known is not None or question.load is None:
            return known
        most = plan_load(replace(question, rate_per_s=None, users=None), simulated=0)
        return max(most.best, key=lambda each: each.requests_per_s, default=None)

    # --- simulation ----------------------------------------------------------------------------
    def _ranked(self, planned: Sequence[PlannedDeployment]) -> list[PlannedDeployment]:
        """Return deployments that hold the load: those that were simulated, then the others."""
        if not self.most:
            return list(planned)
        rest, done = _apart(planned), list[PlannedDeployment]()
        of_each = [
            [each for each in rest if each.disaggregated == two][:_OF_EACH] for two in (False, True)
        ]
        chosen: list[PlannedDeployment] = []
        self.shares.clear()
        while rest and len(done) < _TIMES_SIMULATED * self.most:
            due = [each for some in of_each for each in some if each in rest]
            best = min((one.score(self.question) for one in done if one.held), default=np.inf)
            next_one = min(rest, key=self._promise)
            if len(done) >= self.most or self.left <= 0:
                if due:
                    next_one = due[0]
                elif self.left <= 0 or self._promise(next_one) >= best:
                    break
            rest.remove(next_one)
            chosen.append(next_one)
            done.append(self._simulated(next_one))
        good = sorted((each for each in done if each.held is not False), key=self.capacities.rank)
        return [*good, *(each for each in planned if each not in chosen)] if good else []

    def _confirmed(self, ranked: list[PlannedDeployment]) -> list[PlannedDeployment]:
        """Return the deployments with a first one that holds its load with other requests, too."""
        for _ in range(_CONFIRMATIONS):
            if not ranked or ranked[0].load is None or ranked[0].confirmed:
                break
            first = self._confirm(ranked[0], ranked[0].load.requests)
            simulated = [each for each in ranked[1:] if each.load is not None]
            if first.held:
                simulated.append(first)
            else:
                self.capacities.note_nearest(PlannedDeployment(first.deployment, first.capacity))
            others = [each for each in ranked[1:] if each.load is None]
            ranked = [*sorted(simulated, key=self.capacities.rank), *others] if simulated else []
        return ranked

    def _confirm(self, planned: PlannedDeployment, asked: Requests) -> PlannedDeployment:
        """Return a deployment with what it holds of more and other requests.

        Where it does not hold its load, it has one worker more, or where no load is given, the rate
        is lower.
        """
        count = max(asked.count, min(_LONGER * asked.count, _MOST_CONFIRMING))
        asked = replace(asked, count=count, seed=asked.seed + 1)
        for _ in range(1 + _MORE_WORKERS):
            load, broken = self._simulate(planned.deployment, asked)
            if not broken:
                return replace(planned, load=load, held=True, confirmed=True)
            planned = replace(planned, load=load, held=False, broken=broken, beyond=load)
            if self.question.load is None:
                rate = _LOWER * (asked.rate_per_s or 0.0)
                asked = replace(asked, rate_per_s=float(f"{rate:.4g}"))
                continue
            larger = self._larger(planned)
            if larger is None:
                break
            planned = larger
        return planned

    def _larger(self, planned: PlannedDeployment) -> PlannedDeployment | None:
        """Return a deployment with a worker more, where there are GPUs for it."""
        larger = _with_one_more(planned)
        if larger.gpus > self.question.most_gpus:
            return None
        known = self.capacities.of(larger)
        return None if isinstance(known, Reason) else PlannedDeployment(larger, known)

    def _promise(self, planned: PlannedDeployment) -> float:
        """Return a deployment's score, corrected by what the simulation of its kind has shown."""
        shares = self.shares.get(_kind(planned), [])
        return planned.score(self.question) * (sum(shares) / len(shares) if shares else 1.0)

    def _simulated(self, planned: PlannedDeployment) -> PlannedDeployment:
        """Return a deployment with its simulation, where that is not too much work."""
        count = self._count(planned)
        if count > _MOST:
            return planned
        self.left -= _LOADS * count
        found = self._highest(planned) if self.question.load is None else self._at_load(planned)
        if found.held:
            share = found.score(self.question) / planned.score(self.question)
            self.shares.setdefault(_kind(planned), []).append(share)
        else:
            self.capacities.note_nearest(planned)
        return found

    def _simulate(self, deployment: Deployment, asked: Requests) -> tuple[Load, tuple[str, ...]]:
        load = simulate(deployment, asked)
        self.simulations += 1
        self._advance()
        return load, broken_limits(load, self.question.limits)

    def _highest(self, planned: PlannedDeployment) -> PlannedDeployment:
        """Return a deployment with the highest rate that it holds by simulation.

        The search begins at the closed form's rate, goes up or down until one rate is held and one
        is not, and halves what is between them.
        """
        held: Load | None = None
        lowest: Load | None = None
        low, high, rate = 0.0, np.inf, planned.capacity.requests_per_s
        broken: tuple[str, ...] = ()
        steps = iter(_STEPS)
        for _ in range(_TRIES):
            load, beyond = self._simulate(planned.deployment, self._poisson(planned, rate))
            if beyond:
                high, broken, lowest = rate, beyond, load
            else:
                low, held = rate, load
            if high <= _CLOSE * low:
                break
            if low and high < np.inf:
                rate = sqrt(low * high)
            else:
                step = next(steps)
                rate = rate / step if beyond else rate * step
            rate = float(f"{rate:.4g}")
        found = replace(planned, load=held, held=held is not None)
        return replace(found, broken=broken, beyond=lowest)

    def _at_load(self, planned: PlannedDeployment) -> PlannedDeployment:
        """Return a deployment at the load that is given, with more workers where it needs them."""
        for _ in range(1 + _MORE_WORKERS):
            load, broken = self._simulate(planned.deployment, self._asked(planned))
            planned = replace(planned, load=load, held=not broken, broken=broken)
            larger = self._larger(planned) if broken else None
            if larger is None:
                return planned
            planned = larger
        return replace(planned, held=False)

    def _asked(self, planned: PlannedDeployment) -> Requests:
        """Return the load that is given, with as many requests as show it."""
        users = self.question.users
        if users is None:
            return self._poisson(planned, self.question.rate_per_s or 1.0)
        return self._requests(arrival="closed", users=users, count=self._count(planned))

    def _poisson(self, planned: PlannedDeployment, rate: float) -> Requests:
        return self._requests(rate_per_s=rate, count=self._count(planned))

    def _count(self, planned: PlannedDeployment) -> int:
        """Return how many requests show what a deployment does."""
        if self.question.users is not None:
            return max(_FEWEST, _PER_USER * self.question.users)
        return max(_FEWEST, ceil(_TIMES_RUNNING * float(planned.capacity.steady.running)))

    def _requests(self, **arrivals: Any) -> Requests:
        question = self.question
        return Requests(
            prompt=question.prompt,
            output=question.output,
            prefix_tokens=question.prefix_tokens,
            seed=question.seed,
            **arrivals,
        )

    # --- what follows from it --------------------------------------------------------------------
    def _runner_up(self, best: Sequence[PlannedDeployment]) -> RunnerUp | None:
        """Return the second's figures where each of its GPUs has to do as much as the first's."""
        if len(best) < 2:
            return None
        first, second = best[:2]
        behind = second.score(self.question) / first.score(self.question) - 1
        rate = first.requests_per_s
        if self.question.load is None:
            rate = first.requests_per_s_per_gpu * second.gpus
        return RunnerUp(float(behind), rate, self._steady(second.deployment, rate))

    def _steady(self, deployment: Deployment, rate_per_s: Any) -> Steady:
        """Return what a deployment does under the requests of the question, by the closed form."""
        question = self.question
        return steady(
            deployment,
            prompt=question.prompt,
            output=question.output,
            rate_per_s=rate_per_s,
            prefix_tokens=question.prefix_tokens,
        )

    def _front(self, planned: Sequence[PlannedDeployment]) -> tuple[FrontPoint, ...]:
        """Return deployments at rates up to their capacity that no other beats in both figures.

        They are looked for among the best, and those with the shortest time per token.
        """
        half = _NEAR_FRONT // 2
        fast = sorted(planned, key=lambda each: float(each.capacity.steady.tpot_s))
        near = {id(each): each for each in (*planned[:half], *fast[:half])}
        points = [point for each in near.values() for point in self._points(each)]
        points.sort(key=lambda one: (-one.tokens_per_s_per_user, -one.tokens_per_s_per_gpu))
        front: list[FrontPoint] = []
        for point in points:
            if not front or point.tokens_per_s_per_gpu > front[-1].tokens_per_s_per_gpu:
                front.append(point)
        front.reverse()
        kept = front[:1]
        for point in front[1:]:
            if _APART * point.tokens_per_s_per_gpu <= kept[-1].tokens_per_s_per_gpu:
                kept.append(point)
        return tuple(kept)

    def _points(self, planned: PlannedDeployment) -> list[FrontPoint]:
        # The closed form's figures, up to the rate that is held by simulation or promised by it.
        known = planned.capacity.requests_per_s
        share = self._promise(planned) / planned.score(self.question)
        most = known / max(share, 1.0) if planned.load is None else planned.requests_per_s
        rates = min(known, most) * _SHARES
        found = self._steady(planned.deployment, rates)
        columns = (rates, found.tpot_s, found.output_tokens_per_s, found.ttft_s)
        figures = zip(*(column.tolist() for column in columns), strict=True)
        return [
            FrontPoint(planned, rate, 1 / tpot, tokens / planned.gpus, ttft)
            for rate, tpot, tokens, ttft in figures
            if tpot > 0 and np.isfinite(ttft)
        ]


def _with_one_more(planned: PlannedDeployment) -> Deployment:
    """Return a deployment with a worker more, of the pool that breaks the limit."""
    first, serving = planned.deployment.prefill, planned.deployment.serving
    if first is not None and "tpot" not in planned.broken:
        return Deployment(serving, replace(first, workers=first.workers + 1))
    return Deployment(replace(serving, workers=serving.workers + 1), first)


def _apart(planned: Sequence[PlannedDeployment]) -> list[PlannedDeployment]:
    """Return the first of all deployments that the same pool bounds.

    With two pools, what bounds one of them is the same whatever the other one is.
    """
    known: dict[Any, PlannedDeployment] = {}
    for each in planned:
        pool = _bounding(each)
        engine = pool.engine
        formats = tuple(engine.formats.items())
        key = (id(engine.cluster), engine.software.name, formats, engine.layout, pool.workers)
        known.setdefault((*_kind(each), *key), each)
    return list(known.values())


def _kind(planned: PlannedDeployment) -> tuple[Any, ...]:
    """Return what the closed form's error depends on: the pool that bounds, batches in flight."""
    pools, pool = planned.deployment.pools, _bounding(planned)
    layout = pool.engine.layout
    return len(pools), pool is pools[0], layout.pp > 1, layout.dp > 1


def _bounding(planned: PlannedDeployment) -> Pool:
    """Return the pool that bounds a deployment, by the closed form."""
    pools = planned.deployment.pools
    return pools[0] if planned.capacity.limit in _OF_PREFILL else pools[-1]

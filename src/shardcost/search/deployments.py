"""Which deployment to run under a load: pools of workers, ranked by what they hold within limits.

::

    workers ──► closed form ───────────────► simulation ──► LoadPlan
    (screened   one pool: `capacity`         of the best,   (best, front, why the second lost,
     on arrays)  two pools: each by itself,  again ranked    reasons)
                 then those that balance

Two pools depend on each other by their ratio alone: with P prefill workers of g_p GPUs that hold
r_p requests in a second each, and D decode workers likewise, a deployment holds ``min(P r_p, D
r_d)``, which at the balance of both (Zhong et al. 2024, DistServe, arXiv:2401.09670) is::

    requests in a second for each GPU = 1 / (g_p / r_p + g_d / r_d)

So the capacity of every pool is computed once, and only pairs whose balance could be among the best
are split into whole workers and looked at together.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Final, NamedTuple

import numpy as np

from shardcost.errors import BadValueError, Reason, ShardcostError
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.engine import Engine
from shardcost.load.requests import Requests
from shardcost.load.result import Limits, Load
from shardcost.load.simulate import simulate
from shardcost.load.steady import Capacity, Steady, capacity, steady
from shardcost.load.sweep import FIGURES, broken_limits
from shardcost.machine import machine_of
from shardcost.search.objectives import SECONDS_PER_HOUR
from shardcost.search.workers import (
    DECODE,
    DOES_NOT_FIT,
    PREFILL,
    SERVING,
    TOO_FEW,
    Choice,
    LoadQuestion,
    beyond_limit,
    screened,
)

SIMULATED: Final = 8
"""Deployments that are simulated, the best by the closed form."""
MILLION: Final = 1e6
_SLACK: Final = 1.3
"""How much more than by its screening a deployment may hold by the closed form, at most."""
_MANY: Final = 1000
"""Workers of a pool that never bounds the other one."""
_SPLITS: Final = 2
"""Of each pair of pools, the splits of the GPUs that are looked at."""
_STEPS: Final = (1.1, 1.2, 1.4, 1.8, 2.5, 4.0, 8.0, 16.0, 32.0, 64.0)
"""From the closed form's rate on, until one rate is held and one is not."""
_CLOSE: Final = 1.02
"""How near these two must be."""
_TRIES: Final = 10
_FEWEST: Final = 300
_TIMES_RUNNING: Final = 5
_MOST_SIMULATED: Final = 3000
"""Requests of a simulation: so many times those that decode together, from the fewest to the most.
"""
_MORE_TRIES: Final = 3
"""Workers that are added where the simulation does not hold what the closed form does."""
_FRONT: Final = 24
_FRONT_SHARES: Final = tuple(np.linspace(0.1, 1.0, 10).tolist())
"""Deployments of the Pareto front are looked for among so many, at these shares of their capacity.
"""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class PlannedDeployment:
    """One deployment, with what it holds by the closed form and by simulation."""

    deployment: Deployment
    capacity: Capacity
    """By the closed form: the highest rate within the limits, and the load there."""
    load: Load | None = None
    """Simulated: at the highest rate that is held, or at the load that was given."""
    held: bool | None = None
    """Whether the simulation holds any load, or the load that was given; None: not simulated."""
    broken: tuple[str, ...] = ()
    """Of the simulation: what breaks first beyond, of `shardcost.load.sweep.FIGURES` or ``queue``.
    """

    @property
    def gpus(self) -> int:
        """Of all pools."""
        return self.deployment.gpus

    @property
    def engine(self) -> Engine:
        """That decodes."""
        return self.deployment.serving.engine

    @property
    def requests_per_s(self) -> float:
        """That are held within the limits: simulated where that was done."""
        if self.load is None:
            return self.capacity.requests_per_s
        rate = self.load.requests.rate_per_s
        return (self.load.requests_per_s if rate is None else rate) if self.held else 0.0

    @property
    def requests_per_s_per_gpu(self) -> float:
        """Goodput of a GPU."""
        return self.requests_per_s / self.gpus

    @property
    def output_tokens_per_s_per_gpu(self) -> float:
        """At that rate."""
        each = self.capacity.steady.output_tokens_per_s / self.capacity.steady.requests_per_s
        return float(self.requests_per_s_per_gpu * each)

    @property
    def tpot_s(self) -> float:
        """The mean over requests."""
        found = self.capacity.steady.tpot_s if self.load is None else self.load.tpot_s.mean
        return float(found)

    @property
    def ttft_s(self) -> float:
        """The mean over requests."""
        found = self.capacity.steady.ttft_s if self.load is None else self.load.ttft_s.mean
        return float(found)

    @property
    def limit(self) -> str:
        """What bounds it first: a limit of latency, or what requests wait for."""
        if self.broken:
            known = [name.upper() for name in self.broken if name in FIGURES]
            return known[0] if known else self.capacity.limit
        return self.capacity.limit

    def price_per_s(self, question: LoadQuestion) -> float | None:
        """Return what its GPUs cost in a second, where a price is given."""
        if question.price is None:
            return None
        clusters = [machine_of(pool.engine.cluster).cluster for pool in self.deployment.pools]
        each = zip(self.deployment.pools, clusters, strict=True)
        return sum(pool.gpus * (question.price_of(cluster) or 0.0) for pool, cluster in each)

    def cost_per_million(self, question: LoadQuestion) -> float | None:
        """Return what a million output tokens cost at the rate that is held."""
        price, rate = self.price_per_s(question), self.output_tokens_per_s_per_gpu * self.gpus
        return None if price is None or not rate else price / rate * MILLION

    def cost_per_hour(self, question: LoadQuestion) -> float | None:
        """Return what its GPUs cost in an hour, where a price is given."""
        price = self.price_per_s(question)
        return None if price is None else price * SECONDS_PER_HOUR


class FrontPoint(NamedTuple):
    """A deployment at a rate, such that no other is better in both figures."""

    planned: PlannedDeployment
    rate_per_s: float
    tokens_per_s_per_user: float
    tokens_per_s_per_gpu: float
    ttft_s: float


class RunnerUp(NamedTuple):
    """Why the second deployment is not the first: what it would meet at the first one's load."""

    behind: float
    """By which share its figure is worse than the first one's."""
    rate_per_s: float
    """What it would have to hold …"""
    at: Steady
    """… and how it fares there, by the closed form."""


@dataclass(frozen=True, eq=False)
class LoadPlan:
    """The best deployments for a load."""

    question: LoadQuestion
    considered: int
    """Workers: engines x number formats x layouts x roles."""
    feasible: int
    rejected: Mapping[Reason, int]
    """The others, by the first reason against each; most frequent first."""
    seconds: float
    deployments: int
    """Of which the closed form was computed."""
    simulations: int
    best: tuple[PlannedDeployment, ...]
    """That hold the load, best first; those that were simulated before all others."""
    front: tuple[FrontPoint, ...]
    """By tokens in a second of a user and of a GPU, the first rising."""
    runner_up: RunnerUp | None = None
    nearest: PlannedDeployment | None = None
    """Where none holds the load: the one that holds most."""


def plan_load(
    question: LoadQuestion,
    *,
    simulated: int = SIMULATED,
    progress: Progress | None = None,
) -> LoadPlan:
    """Return the deployments that hold most within limits, or a load with fewest GPUs.

    Args:
        question: Workers, load and limits.
        simulated: How many of the best are simulated and ranked again; 0: none.
        progress: Is told how many of about how many deployments were looked at.
    """
    return _Planning(question, simulated, progress).run()


class _Planning:
    def __init__(self, question: LoadQuestion, simulated: int, progress: Progress | None) -> None:
        self.question, self.most, self.progress = question, simulated, progress
        self.keep = max(simulated, 8)
        self.rejected: Counter[Reason] = Counter()
        self.struck: set[int] = set()
        self.computed = self.simulations = self.done = 0
        self.whole = 1
        self.nearest: PlannedDeployment | None = None
        self.pools: dict[int, float] = {}

    def run(self) -> LoadPlan:
        started = time.perf_counter()
        workers = screened(self.question)
        self.rejected += workers.rejected
        choices = sorted(workers.choices, key=lambda each: -each.requests_per_s / each.gpus)
        by_role = {
            role: [each for each in choices if each.role == role]
            for role in (SERVING, PREFILL, DECODE)
        }
        self.whole = 2 * self.keep + 4 * self.most
        planned = self._aggregated(by_role[SERVING])
        planned += self._disaggregated(by_role[PREFILL], by_role[DECODE])
        planned.sort(key=self._score)
        best = self._ranked_again(planned)
        feasible = workers.considered - self.rejected.total()
        order = sorted(self.rejected.items(), key=lambda item: (-item[1], item[0].message))
        return LoadPlan(
            question=self.question,
            considered=workers.considered,
            feasible=feasible,
            rejected=dict(order),
            deployments=self.computed,
            simulations=self.simulations,
            best=tuple(best),
            front=_front(self._near_front(planned), self.question) if best else (),
            runner_up=self._runner_up(best),
            nearest=None if best else self.nearest,
            seconds=time.perf_counter() - started,
        )

    # --- what is better ------------------------------------------------------------------------
    def _score(self, planned: PlannedDeployment) -> tuple[float, ...]:
        """Return what is to be small: GPUs or cost of a load, or the inverse of goodput."""
        question = self.question
        each = planned.requests_per_s_per_gpu
        cost = question.objective == "cost"
        if question.load is not None:
            first = planned.price_per_s(question) if cost else planned.gpus
            return (first or 0.0, -planned.capacity.requests_per_s)
        if cost:
            return (planned.cost_per_million(question) or float("inf"), -each)
        return (-each,)

    def _figure(self, found: Capacity) -> float:
        """Return what a deployment holds: requests in a second, or users by Little's law."""
        if self.question.users is None:
            return found.requests_per_s
        return found.requests_per_s * float(found.steady.e2e_s)

    def _price(self, choice: Choice) -> float:
        """Return what a GPU of a worker counts for: its price, where cost is to be small."""
        if self.question.objective != "cost":
            return 1.0
        return self.question.price_of(machine_of(choice.engine.cluster).cluster) or 1.0

    # --- the closed form -----------------------------------------------------------------------
    def _capacity(self, deployment: Deployment, limits: Limits) -> Capacity | Reason:
        """Return what a deployment holds by the closed form, or why it holds nothing."""
        question = self.question
        self.computed += 1
        self._advance()
        try:
            found = capacity(
                deployment,
                prompt=question.prompt,
                output=question.output,
                limits=limits,
                prefix_tokens=question.requests.prefix_tokens,
            )
        except BadValueError:
            return DOES_NOT_FIT.reason()
        if found.requests_per_s > 0:
            return found
        name = found.limit.lower()
        limit_s = getattr(limits, f"{name}_s", None)
        return beyond_limit(name, limit_s) if limit_s else DOES_NOT_FIT.reason()

    def _advance(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.whole = max(self.whole, self.done + 4 * (self.most if not self.simulations else 0))
            self.progress(self.done, self.whole)

    def _reject(self, choice: Choice, reason: Reason) -> None:
        """Count a worker that is out, once."""
        if id(choice.engine) not in self.struck:
            self.struck.add(id(choice.engine))
            self.rejected[reason] += 1

    # --- one pool ------------------------------------------------------------------------------
    def _aggregated(self, choices: Sequence[Choice]) -> list[PlannedDeployment]:
        """Return deployments of one pool, as long as further ones could be among the best."""
        if self.question.load is not None:
            return self._fewest(choices)
        found: list[PlannedDeployment] = []
        for gpus in self.question.gpus:
            for choice in sorted(choices, key=self._least):
                if gpus % choice.gpus:
                    continue
                if not self._could_be_best(self._least(choice), found):
                    break
                deployment = Deployment(Pool(choice.engine, gpus // choice.gpus))
                known = self._capacity(deployment, self.question.limits)
                if isinstance(known, Reason):
                    self._reject(choice, known)
                else:
                    found.append(PlannedDeployment(deployment, known))
        return found

    def _least(self, choice: Choice) -> float:
        """Return the GPU-seconds, or the price, of one request at best."""
        return self._price(choice) * choice.gpus / max(choice.requests_per_s, 1e-12)

    def _could_be_best(self, least: float, found: Sequence[PlannedDeployment]) -> bool:
        """Return whether a deployment with such GPU-seconds of a request could be among the best."""
        if len(found) < self.keep:
            return True
        own = sorted(self._each_s(planned) for planned in found)[self.keep - 1]
        return least < _SLACK * own

    def _each_s(self, planned: PlannedDeployment) -> float:
        """Return GPU-seconds, or the price, of a request."""
        if self.question.objective == "cost":
            return (planned.price_per_s(self.question) or 0.0) / planned.requests_per_s
        return planned.gpus / planned.requests_per_s

    def _fewest(self, choices: Sequence[Choice]) -> list[PlannedDeployment]:
        """Return for each worker the fewest that hold the load, as long as that could be best."""
        found: list[PlannedDeployment] = []
        for choice in sorted(choices, key=self._gpus_at_least):
            if len(found) >= self.keep:
                worst = sorted(self._total(planned) for planned in found)[self.keep - 1]
                if self._gpus_at_least(choice) > _SLACK * worst:
                    break
            planned = self._enough(choice)
            if planned is not None:
                found.append(planned)
        return found

    def _total(self, planned: PlannedDeployment) -> float:
        """Return the GPUs of a deployment, or their price."""
        return self._score(planned)[0]

    def _gpus_at_least(self, choice: Choice) -> float:
        """Return the GPUs, or their price, of the workers that hold the load at best."""
        rate = self.question.rate_per_s
        workers = 1 if rate is None else ceil(rate / max(_SLACK * choice.requests_per_s, 1e-12))
        return self._price(choice) * choice.gpus * workers

    def _enough(self, choice: Choice) -> PlannedDeployment | None:
        """Return a pool of as few workers as hold the load."""
        load, most = self.question.load, self.question.most_gpus
        assert load is not None
        rate = self.question.rate_per_s
        workers = 1 if rate is None else ceil(rate / max(_SLACK * choice.requests_per_s, 1e-12))
        while workers * choice.gpus <= most:
            deployment = Deployment(Pool(choice.engine, workers))
            known = self._capacity(deployment, self.question.limits)
            if isinstance(known, Reason):
                self._reject(choice, known)
                return None
            figure, planned = self._figure(known), PlannedDeployment(deployment, known)
            if figure >= load:
                return planned
            self._note_nearest(planned)
            workers = max(workers + 1, min(ceil(0.95 * workers * load / figure), 2 * workers))
        self._reject(choice, TOO_FEW.reason(self.question.load_text, most))
        return None

    def _note_nearest(self, planned: PlannedDeployment) -> None:
        """Keep the deployment that holds most of those that hold too little."""
        if self.nearest is None or planned.requests_per_s > self.nearest.requests_per_s:
            self.nearest = planned

    # --- two pools -----------------------------------------------------------------------------
    def _disaggregated(
        self, prefills: Sequence[Choice], decodes: Sequence[Choice]
    ) -> list[PlannedDeployment]:
        """Return deployments of two pools, as long as further ones could be among the best."""
        found: list[PlannedDeployment] = []
        pairs = [
            (self._least(first) + self._least(second), first, second)
            for first, second in self._pairs(prefills, decodes)
        ]
        for least, first, second in sorted(pairs, key=lambda pair: pair[0]):
            if self.question.load is None and not self._could_be_best(least, found):
                break
            if len(found) >= 2 * self.keep:
                break
            rates = self._pool_rate(first, decodes), self._pool_rate(second, prefills)
            if all(rates):
                balance = first.gpus / rates[0] + second.gpus / rates[1]
                each_s = self._price(first) * balance
                if self.question.load is not None or self._could_be_best(each_s / _SLACK, found):
                    found += self._splits(first, second, *rates)
        return found

    def _pairs(
        self, prefills: Sequence[Choice], decodes: Sequence[Choice]
    ) -> Iterable[tuple[Choice, Choice]]:
        """Yield pools of one engine and number format that the GPUs hold together."""
        most = self.question.most_gpus
        for group in {each.group for each in prefills}:
            own = [each for each in decodes if each.group == group]
            for first in prefills:
                if first.group == group:
                    yield from (
                        (first, second) for second in own if first.gpus + second.gpus <= most
                    )

    def _pool_rate(self, choice: Choice, others: Sequence[Choice]) -> float:
        """Return the requests in a second of one of about as many workers as a pool has.

        The other pool has so many workers that it does not count.
        """
        key = id(choice.engine)
        if key not in self.pools:
            other = next(each for each in others if each.group == choice.group)
            own = Pool(choice.engine, max(self.question.most_gpus // (2 * choice.gpus), 1))
            many = Pool(other.engine, _MANY)
            limits, prefills = self.question.limits, choice.role == PREFILL
            deployment = Deployment(many, own) if prefills else Deployment(own, many)
            limits = replace(limits, e2e_s=None, **{"tpot_s" if prefills else "ttft_s": None})
            known = self._capacity(deployment, limits)
            if isinstance(known, Reason):
                self._reject(choice, known)
            self.pools[key] = (
                0.0 if isinstance(known, Reason) else known.requests_per_s / own.workers
            )
        return self.pools[key]

    def _splits(
        self, first: Choice, second: Choice, first_rate: float, second_rate: float
    ) -> list[PlannedDeployment]:
        """Return the deployments of two pools whose workers balance best."""
        if self.question.load is not None:
            planned = self._enough_of_two(first, second, first_rate, second_rate)
            return [] if planned is None else [planned]
        found = []
        for gpus in self.question.gpus:
            splits = [
                (
                    min((gpus - many * second.gpus) // first.gpus * first_rate, many * second_rate),
                    many,
                )
                for many in range(1, gpus // second.gpus + 1)
                if gpus > many * second.gpus and (gpus - many * second.gpus) % first.gpus == 0
            ]
            for _, many in sorted(splits, reverse=True)[:_SPLITS]:
                prefill = Pool(first.engine, (gpus - many * second.gpus) // first.gpus)
                deployment = Deployment(Pool(second.engine, many), prefill)
                known = self._capacity(deployment, self.question.limits)
                if not isinstance(known, Reason):
                    found.append(PlannedDeployment(deployment, known))
        return found

    def _enough_of_two(
        self, first: Choice, second: Choice, first_rate: float, second_rate: float
    ) -> PlannedDeployment | None:
        """Return two pools of as few workers as hold the load."""
        load = self.question.load
        assert load is not None
        rate = self.question.rate_per_s
        prefills = 1 if rate is None else ceil(rate / first_rate)
        decodes = 1 if rate is None else ceil(rate / second_rate)
        while prefills * first.gpus + decodes * second.gpus <= self.question.most_gpus:
            deployment = Deployment(Pool(second.engine, decodes), Pool(first.engine, prefills))
            known = self._capacity(deployment, self.question.limits)
            if isinstance(known, Reason):
                return None
            planned = PlannedDeployment(deployment, known)
            if self._figure(known) >= load:
                return planned
            self._note_nearest(planned)
            # The pool that is nearer to its own limit gets one more.
            if prefills * first_rate <= decodes * second_rate:
                prefills += 1
            else:
                decodes += 1
        return None

    # --- simulation ----------------------------------------------------------------------------
    def _ranked_again(self, planned: Sequence[PlannedDeployment]) -> list[PlannedDeployment]:
        """Return the best by simulation, those that hold the load, then the others."""
        first, rest = list(planned[: self.most]), list(planned[self.most :])
        again = [
            self._simulated(each) if self.question.load is None else self._at_load(each)
            for each in first
        ]
        for each in again:
            if not each.held:
                self._note_nearest(replace(each, load=None))
        good = sorted((each for each in again if each.held), key=self._score)
        return [*good, *rest] if good or not first else []

    def _requests(self, planned: PlannedDeployment) -> int:
        running = ceil(_TIMES_RUNNING * float(planned.capacity.steady.running))
        return min(max(_FEWEST, running), _MOST_SIMULATED)

    def _simulated(self, planned: PlannedDeployment) -> PlannedDeployment:
        """Return a deployment with the highest rate that it holds by simulation.

        The search begins at the closed form's rate, goes up or down until one rate is held and one
        is not, and halves what is between them.
        """
        count = self._requests(planned)
        held: Load | None = None
        low, high, rate = 0.0, float("inf"), planned.capacity.requests_per_s
        broken: tuple[str, ...] = ()
        steps = iter(_STEPS)
        for _ in range(_TRIES):
            asked = replace(self.question.requests, arrival="poisson", rate_per_s=rate, count=count)
            load = simulate(planned.deployment, asked)
            self._count()
            beyond = broken_limits(load, self.question.limits)
            if beyond:
                high, broken = rate, beyond
            else:
                low, held = rate, load
            if high <= _CLOSE * low:
                break
            if low and high < float("inf"):
                rate = sqrt(low * high)
            else:
                step = next(steps)
                rate = rate / step if beyond else rate * step
            rate = float(f"{rate:.4g}")
        return replace(planned, load=held, held=held is not None, broken=broken)

    def _count(self) -> None:
        self.simulations += 1
        self._advance()

    def _at_load(self, planned: PlannedDeployment) -> PlannedDeployment:
        """Return a deployment at the load that is given, with more workers where it needs them."""
        question = self.question
        for _ in range(1 + _MORE_TRIES):
            load = simulate(planned.deployment, self._asked(planned))
            self._count()
            broken = broken_limits(load, question.limits)
            planned = replace(planned, load=load, held=not broken, broken=broken)
            if not broken:
                return planned
            larger = self._with_one_more(planned)
            if larger.gpus > question.most_gpus:
                return planned
            known = self._capacity(larger, question.limits)
            if isinstance(known, Reason):
                return planned
            planned = PlannedDeployment(larger, known)
        return planned

    def _asked(self, planned: PlannedDeployment) -> Requests:
        question = self.question
        if question.users is not None:
            count = max(question.requests.count, 10 * question.users)
            return replace(
                question.requests, arrival="closed", users=question.users, rate_per_s=None,
                count=count,
            )  # fmt: skip
        return replace(
            question.requests, arrival="poisson", rate_per_s=question.rate_per_s,
            count=self._requests(planned),
        )  # fmt: skip

    def _with_one_more(self, planned: PlannedDeployment) -> Deployment:
        """Return a deployment with a worker more: of the pool that breaks the limit."""
        deployment = planned.deployment
        first, serving = deployment.prefill, deployment.serving
        if first is not None and "tpot" not in planned.broken:
            return Deployment(serving, replace(first, workers=first.workers + 1))
        return Deployment(replace(serving, workers=serving.workers + 1), first)

    # --- what one asks next --------------------------------------------------------------------
    def _runner_up(self, best: Sequence[PlannedDeployment]) -> RunnerUp | None:
        """Return how the second fares where it has to do as much as the first."""
        if len(best) < 2:
            return None
        first, second = best[:2]
        question = self.question
        one, two = self._score(first)[0], self._score(second)[0]
        behind = 1 - two / one if question.load is None and one < 0 else two / one - 1
        rate = first.requests_per_s_per_gpu * second.gpus
        if question.load is not None:
            rate = first.requests_per_s
        at = steady(
            second.deployment,
            prompt=question.prompt,
            output=question.output,
            rate_per_s=rate,
            prefix_tokens=question.requests.prefix_tokens,
        )
        return RunnerUp(float(behind), rate, at)

    def _near_front(self, planned: Sequence[PlannedDeployment]) -> list[PlannedDeployment]:
        """Return the best by goodput, and those with the shortest time per token."""
        fast = sorted(planned, key=lambda each: float(each.capacity.steady.tpot_s))
        by_key = {id(each): each for each in (*planned[: _FRONT // 2], *fast[: _FRONT // 2])}
        return list(by_key.values())


def _front(planned: Sequence[PlannedDeployment], question: LoadQuestion) -> tuple[FrontPoint, ...]:
    """Return deployments at rates up to their capacity, such that none is better in both figures."""
    points: list[FrontPoint] = []
    for each in planned:
        rates = each.capacity.requests_per_s * np.array(_FRONT_SHARES)
        try:
            found = steady(
                each.deployment, prompt=question.prompt, output=question.output,
                rate_per_s=rates, prefix_tokens=question.requests.prefix_tokens,
            )  # fmt: skip
        except ShardcostError:
            continue
        points += [
            FrontPoint(each, float(rate), 1 / float(tpot), float(tokens) / each.gpus, float(ttft))
            for rate, tpot, tokens, ttft in zip(
                rates, found.tpot_s, found.output_tokens_per_s, found.ttft_s, strict=True
            )
            if tpot > 0
        ]
    kept: list[FrontPoint] = []
    for point in sorted(
        points, key=lambda one: (-one.tokens_per_s_per_user, -one.tokens_per_s_per_gpu)
    ):
        if not kept or point.tokens_per_s_per_gpu > kept[-1].tokens_per_s_per_gpu:
            kept.append(point)
    return tuple(reversed(kept))

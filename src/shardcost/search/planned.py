"""The result of a search for deployments: `LoadPlan`, with the best as `PlannedDeployment`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from shardcost.errors import Reason
from shardcost.load.deployment import Deployment
from shardcost.load.engine import Engine
from shardcost.load.result import Load
from shardcost.load.steady import Capacity, Steady
from shardcost.load.sweep import FIGURES
from shardcost.machine import machine_of
from shardcost.search.objectives import SECONDS_PER_HOUR
from shardcost.search.workers import LoadQuestion

MILLION: Final = 1e6


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
    """Of the simulation: what breaks first beyond, of `shardcost.load.sweep.FIGURES` or ``queue`` …
    """
    beyond: Load | None = None
    """… and the load that breaks it."""
    confirmed: bool = False
    """Whether the load is held by a longer simulation of other requests, too."""

    def __repr__(self) -> str:
        """Return the pools and what they hold."""
        return f"PlannedDeployment({self.short()}, {self.requests_per_s:.3g} requests/s)"

    def short(self) -> str:
        """Return workers and layouts of the pools in compact form: ``2 x tp2 + 3 x tp4``."""
        pools = self.deployment.pools
        return " + ".join(f"{pool.workers} x {pool.engine.layout.short()}" for pool in pools)

    @property
    def gpus(self) -> int:
        """Of all pools."""
        return self.deployment.gpus

    @property
    def engine(self) -> Engine:
        """That decodes."""
        return self.deployment.serving.engine

    @property
    def disaggregated(self) -> bool:
        """Whether prompts have a pool of their own."""
        return self.deployment.prefill is not None

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

    def score(self, question: LoadQuestion) -> float:
        """Return what is to be small: GPUs or price; of a request where no load is given."""
        cost = question.objective == "cost"
        total = (self.price_per_s(question) or 0.0) if cost else float(self.gpus)
        if question.load is not None:
            return total
        rate = self.requests_per_s
        return total / rate if rate else float("inf")

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
    """… and its figures there, by the closed form."""


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

"""What deployments hold by the closed form: one pool, and two pools that balance.

Two pools depend on each other by their ratio alone: with P prefill workers of g_p GPUs that hold
r_p requests in a second each, and D decode workers likewise, a deployment holds ``min(P r_p, D
r_d)``, which at the balance of both (Zhong et al. 2024, DistServe, arXiv:2401.09670) takes of a
request::

    GPU-seconds = g_p / r_p + g_d / r_d

So the capacity of each pool is computed once, of prefill and decode apart; pairs of the best are
split into whole workers, and those that balance best are computed together. Which pools and which
deployments are computed follows from what they take by screening: in that order, until no further
one could be among the best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import ceil
from typing import Final, NamedTuple

from shardcost.errors import BadValueError, Reason, Rule
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.result import Limits
from shardcost.load.steady import Capacity, capacity
from shardcost.machine import machine_of
from shardcost.search.planned import PlannedDeployment
from shardcost.search.workers import (
    DECODE,
    DOES_NOT_FIT,
    PREFILL,
    SERVING,
    TOO_FEW,
    Choice,
    LoadQuestion,
)

AT_ANY_LOAD: Final = Rule("limits_at_any_load", "latencies above the limits at any load")
SLACK: Final = 1.3
"""How much more than by its screening a worker may hold by the closed form, at most: screening lets
prompts and decoding take turns, where an engine that mixes them reads weights once for both."""
_MANY: Final = 1000
"""Workers of a pool that never bounds the other one."""
_POOLS: Final = 3
"""Of each engine and number format, the prefill and the decode pools that are paired: so many of
pipelines, and so many others."""
_SPLITS: Final = 2
"""Of each pair of pools, the splits of the GPUs that are looked at."""
_TIMES_KEPT: Final = 1.5
"""Of all splits, how many times those that are to be found are computed together."""


class Capacities:
    """Deployments of a question by the closed form, the best ones at least."""

    def __init__(
        self, question: LoadQuestion, keep: int, advance: Callable[[], None]
    ) -> None:  # fmt: skip
        """Begin.

        Args:
            question: What is looked for.
            keep: How many of the best of each kind are to be found.
            advance: Is called whenever a deployment has been computed.
        """
        self.question, self.keep, self.advance = question, keep, advance
        self.rejected: Counter[Reason] = Counter()
        """Workers that hold nothing, or not the load, by reason."""
        self.computed = 0
        self.nearest: PlannedDeployment | None = None
        """Of those that hold less than the load, the one that holds most."""
        self._struck: set[int] = set()
        self._pools: dict[int, float] = {}

    def found(self, choices: Sequence[Choice]) -> list[PlannedDeployment]:
        """Return the deployments that hold the load, or anything, of one pool and of two."""
        roles = {
            role: [each for each in choices if each.role == role]
            for role in (SERVING, PREFILL, DECODE)
        }
        found = self._aggregated(roles[SERVING]) + self._disaggregated(
            roles[PREFILL], roles[DECODE]
        )
        return sorted(found, key=self.rank)

    def rank(self, planned: PlannedDeployment) -> tuple[float, float]:
        """Return what is small for the best deployment: its score, then the rate that it leaves."""
        return planned.score(self.question), -planned.capacity.requests_per_s

    def of(self, deployment: Deployment, limits: Limits | None = None) -> Capacity | Reason:
        """Return what a deployment holds, or why it holds nothing."""
        question = self.question
        self.computed += 1
        self.advance()
        try:
            found = capacity(
                deployment,
                prompt=question.prompt,
                output=question.output,
                limits=limits or question.limits,
                prefix_tokens=question.prefix_tokens,
            )
        except BadValueError as error:
            memory = error.argument == "layout"
            return DOES_NOT_FIT.reason() if memory else AT_ANY_LOAD.reason()
        return found if found.requests_per_s > 0 else AT_ANY_LOAD.reason()

    def note_nearest(self, planned: PlannedDeployment) -> None:
        """Keep the deployment that holds most of those that hold too little."""
        known = self.nearest
        if known is None or planned.capacity.requests_per_s > known.capacity.requests_per_s:
            self.nearest = planned

    def _reject(self, choice: Choice, reason: Reason) -> None:
        """Count a worker that is out, once."""
        if id(choice.engine) not in self._struck:
            self._struck.add(id(choice.engine))
            self.rejected[reason] += 1

    # --- bounds --------------------------------------------------------------------------------
    def _price(self, choice: Choice) -> float:
        """Return what a GPU counts for: its price where cost is to be small."""
        if self.question.objective != "cost":
            return 1.0
        return self.question.price_of(machine_of(choice.engine.cluster).cluster) or 1.0

    def _least(self, choice: Choice) -> float:
        """Return the GPU-seconds, or the price, of one request by screening."""
        return self._price(choice) * choice.gpus / max(choice.requests_per_s, 1e-12)

    def _fewest(self, choice: Choice) -> int:
        """Return the workers without which the load is not held."""
        rate = self.question.least_rate_per_s
        return 1 if rate is None else ceil(rate / max(SLACK * choice.requests_per_s, 1e-12))

    def _could_be_best(self, bound: float, found: Sequence[PlannedDeployment]) -> bool:
        """Return whether a deployment with at least such a score could be among the best."""
        if len(found) < self.keep:
            return True
        return bound < sorted(each.score(self.question) for each in found)[self.keep - 1]

    # --- one pool ------------------------------------------------------------------------------
    def _aggregated(self, choices: Sequence[Choice]) -> list[PlannedDeployment]:
        """Return deployments of one pool, as long as further ones could be among the best."""
        found: list[PlannedDeployment] = []
        if self.question.load is not None:
            by_gpus = sorted(
                ((self._price(each) * each.gpus * self._fewest(each), each) for each in choices),
                key=lambda pair: (pair[0], self._least(pair[1])),
            )
            for bound, choice in by_gpus:
                # Of deployments with as many GPUs, the one that holds most is the better one.
                if self._could_be_best(bound / (1 + 1e-9), found):
                    found += self._enough(choice)
            return found
        for gpus in self.question.gpus:
            for choice in sorted(choices, key=self._least):
                if gpus % choice.gpus == 0 and self._could_be_best(
                    self._least(choice) / SLACK, found
                ):
                    deployment = Deployment(Pool(choice.engine, gpus // choice.gpus))
                    known = self.of(deployment)
                    if isinstance(known, Reason):
                        self._reject(choice, known)
                    else:
                        found.append(PlannedDeployment(deployment, known))
        return found

    def _enough(self, choice: Choice) -> list[PlannedDeployment]:
        """Return a pool of as few workers as hold the load; none where the GPUs do not suffice."""
        most, workers = self.question.most_gpus, self._fewest(choice)
        while workers * choice.gpus <= most:
            deployment = Deployment(Pool(choice.engine, workers))
            known = self.of(deployment)
            if isinstance(known, Reason):
                self._reject(choice, known)
                return []
            planned, share = PlannedDeployment(deployment, known), self._share(known)
            if share >= 1:
                return [planned]
            self.note_nearest(planned)
            workers = max(workers + 1, min(ceil(0.95 * workers / share), 2 * workers))
        self._reject(choice, TOO_FEW.reason(self.question.load_text, most))
        return []

    def _share(self, found: Capacity) -> float:
        """Return what a deployment holds, over the load: of users by Little's law."""
        question, rate = self.question, found.requests_per_s
        held = rate if question.users is None else rate * float(found.steady.e2e_s)
        return held / (question.load or held)

    # --- two pools -----------------------------------------------------------------------------
    def _disaggregated(
        self, prefills: Sequence[Choice], decodes: Sequence[Choice]
    ) -> list[PlannedDeployment]:
        """Return the best deployments of two pools, by what each pool holds by itself."""
        splits: list[_Split] = []
        for firsts, seconds in self._groups(prefills, decodes):
            if len(splits) >= self.keep:
                bound = self._least(firsts[0]) + self._least(seconds[0])
                if self.question.load is None and bound / SLACK >= splits[self.keep - 1].score:
                    continue
            pools = self._best_pools(firsts, seconds), self._best_pools(seconds, firsts)
            splits += [split for pair in product(*pools) for split in self._splits(*pair)]
            splits.sort(key=lambda split: split.score)
        computed = (self._computed(split) for split in self._varied(splits))
        return [planned for planned in computed if planned is not None]

    def _varied(self, splits: Sequence[_Split]) -> Iterator[_Split]:
        """Yield the best splits, with and without pipelines that prefill."""
        most = ceil(_TIMES_KEPT * self.keep / 2)
        for pipelined in (False, True):
            own = [each for each in splits if (each.first.engine.layout.pp > 1) == pipelined]
            yield from own[:most]

    def _groups(
        self, prefills: Sequence[Choice], decodes: Sequence[Choice]
    ) -> list[tuple[list[Choice], list[Choice]]]:
        """Return the pools of each engine and number format, in the order of their best pairs."""
        found = []
        for group in range(len(self.question.engines)):
            pools = tuple(
                sorted((each for each in some if each.group == group), key=self._least)
                for some in (prefills, decodes)
            )
            if all(pools):
                found.append((pools[0], pools[1]))
        return sorted(found, key=lambda pools: sum(self._least(each[0]) for each in pools))

    def _best_pools(self, own: Sequence[Choice], others: Sequence[Choice]) -> list[Choice]:
        """Return the workers of which a pool takes the fewest GPU-seconds by itself.

        Some of them are pipelines and some are not, because the closed form is less accurate for
        those.
        """
        chosen: list[Choice] = []
        for pipelined in (False, True):
            found: list[tuple[float, Choice]] = []
            for choice in own:
                if (choice.engine.layout.pp > 1) != pipelined:
                    continue
                if len(found) >= _POOLS and self._least(choice) / SLACK >= found[_POOLS - 1][0]:
                    break
                rate = self._pool_rate(choice, others)
                if rate:
                    found.append((self._price(choice) * choice.gpus / rate, choice))
                    found.sort(key=lambda pool: pool[0])
            chosen += [choice for _, choice in found[:_POOLS]]
        return chosen

    def _pool_rate(self, choice: Choice, others: Sequence[Choice]) -> float:
        """Return the requests in a second of one of about as many workers as a pool has.

        The other pool has so many workers that it does not count.
        """
        key = id(choice.engine)
        if key not in self._pools:
            other = next(each for each in others if each.group == choice.group)
            own = Pool(choice.engine, max(self.question.most_gpus // (2 * choice.gpus), 1))
            many, limits = Pool(other.engine, _MANY), replace(self.question.limits, e2e_s=None)
            if choice.role == PREFILL:
                known = self.of(Deployment(many, own), replace(limits, tpot_s=None))
            else:
                known = self.of(Deployment(own, many), replace(limits, ttft_s=None))
            if isinstance(known, Reason):
                self._reject(choice, known)
                self._pools[key] = 0.0
            else:
                self._pools[key] = known.requests_per_s / own.workers
        return self._pools[key]

    def _splits(self, first: Choice, second: Choice) -> Iterator[_Split]:
        """Yield numbers of workers whose pools balance best, or are enough for the load."""
        rates = self._pools[id(first.engine)], self._pools[id(second.engine)]
        price = self._price(first)
        needed = self.question.least_rate_per_s
        if self.question.load is not None:
            few, many = (1 if needed is None else max(ceil(needed / rate), 1) for rate in rates)
            gpus = few * first.gpus + many * second.gpus
            if gpus <= self.question.most_gpus:
                yield _Split(price * gpus, first, second, few, many)
            return
        for gpus in self.question.gpus:
            splits = []
            for many in range(1, gpus // second.gpus + 1):
                few, rest = divmod(gpus - many * second.gpus, first.gpus)
                if few and not rest:
                    rate = min(few * rates[0], many * rates[1])
                    splits.append(_Split(price * gpus / rate, first, second, few, many))
            yield from sorted(splits, key=lambda split: split.score)[:_SPLITS]

    def _computed(self, split: _Split) -> PlannedDeployment | None:
        """Return both pools together, with more workers where the load needs them."""
        first, second, few, many = split.first, split.second, split.few, split.many
        rates = self._pools[id(first.engine)], self._pools[id(second.engine)]
        while few * first.gpus + many * second.gpus <= self.question.most_gpus:
            deployment = Deployment(Pool(second.engine, many), Pool(first.engine, few))
            known = self.of(deployment)
            if isinstance(known, Reason):
                return None
            planned = PlannedDeployment(deployment, known)
            if self.question.load is None or self._share(known) >= 1:
                return planned
            self.note_nearest(planned)
            # The pool that is nearer to its own limit gets one more.
            if few * rates[0] <= many * rates[1]:
                few += 1
            else:
                many += 1
        return None


class _Split(NamedTuple):
    """Two pools with numbers of workers."""

    score: float
    """As `PlannedDeployment.score`, by what the pools hold by themselves."""
    first: Choice
    second: Choice
    few: int
    """Prefill workers."""
    many: int
    """Decode workers."""

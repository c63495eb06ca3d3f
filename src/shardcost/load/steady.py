"""The closed form: a deployment under a steady load, on arrays of rates or users.

**Steps** with n sequences, with and without prompts: `shardcost.load.gated`.

**Sequences.** Sequences that decode share the steps like jobs a processor: with s(n) seconds from
first to last token at n sequences, a queue with processor sharing whose speed depends on n. The
distribution of n is a product of ratios and depends on the outputs' mean only (Kelly 1979,
Reversibility and Stochastic Networks, sec. 3.3)::

    P(n) / P(n - 1) = rate x s(n) / n

up to the most that max_num_seqs and the KV cache hold; from there on requests wait.

**First token.** Front end, rest of the running step (E[T^2] / 2E[T]), own step. Where prompts fill
a step's tokens or sequences fill the worker, requests wait in line: Pollaczek and Khinchine's
formula for one place, Sakasegawa's extension for more (Sakasegawa 1977, Ann. Inst. Stat. Math. 29;
Whitt 1993, Prod. Oper. Manag. 2)::

    wait = rest of service x u^(sqrt(2 (b + 1)) - 1) / (b x (1 - u))

**Users.** In a closed loop the requests in the deployment are as many as users: of two equations,
n = rate x s(n) and users = rate x (TTFT + s(n)), follows the rate. Users begin together, and stay
so where outputs are equally long: their prompts are then prefilled one after the other. Rates are
those before the last requests run out.

Static batches (``decode-first``) have no closed form here. Where the KV cache preempts sequences
again and again, capacity is less than computed: the work that is done twice is left out.

90th percentiles are those of gamma distributions with the mean and variance of the parts' sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, lgamma, sqrt
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.errors import BadValueError, UsageError
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.gated import GROWS, Gate, Served
from shardcost.load.requests import Floats, Lengths
from shardcost.load.result import Limits
from shardcost.load.steps import StepTimes
from shardcost.load.worker import KVRoom
from shardcost.scheduler import Scheduler

LIMITS: Final = ("arrivals", "KV room", "max_num_seqs", "tokens of a step", "TTFT", "TPOT", "E2E")
"""What bounds the load: words of `Steady.limit` and `Capacity.limit`."""
_PROMPTS: Final = 8
_OUTPUTS: Final = 256
_STEPS: Final = 8
_TAIL: Final = 2048
"""Lengths that stand for the distributions of prompts and outputs, of outputs in short, and of
prompts where the longest matter."""
_RATES: Final = 64
"""Rates that are computed; where more are given, they are interpolated."""
_NEAR: Final = 0.97
"""Of a rate at which queues grow: where figures stand for what lies beyond."""
_BISECTIONS: Final = 20
_GENERATIONS: Final = 8
"""Requests of a user, one after the other, until users count as spread."""
_ROUNDS, _TRIES = 3, 24
"""Of the search for the highest rate: times and rates that it is narrowed down."""


@dataclass(frozen=True, eq=False)
class Steady:
    """A deployment under a steady load. Figures are numbers, or arrays of the loads' shape."""

    ttft_s: Any
    """Mean over requests."""
    ttft_p90_s: Any
    tpot_s: Any
    """Mean over requests."""
    tpot_p90_s: Any
    e2e_s: Any
    """Mean over requests."""
    requests_per_s: Any
    """Served: the rate of arrivals, or what the deployment holds where that is less."""
    output_tokens_per_s: Any
    running: Any
    """Mean count of sequences that decode, of all workers."""
    waiting: Any
    """Mean count of requests that are not admitted yet."""
    kv_share: Any
    """Of the KV cache, the mean in use."""
    utilisation: Any
    """Rate over the highest one that is held."""
    saturated: Any
    """Whether more arrives than the deployment holds; latencies are infinite there."""
    limit: Any
    """What bounds the load, one of `LIMITS`: ``arrivals`` below saturation."""


@dataclass(frozen=True, eq=False)
class Capacity:
    """The highest Poisson rate that a deployment holds."""

    requests_per_s: float
    limit: str
    """What bounds it, one of `LIMITS`."""
    steady: Steady
    """The load there; the least one where no rate is within the limits."""


def steady(
    deployment: Deployment,
    *,
    prompt: Lengths,
    output: Lengths,
    rate_per_s: Any = None,
    users: Any = None,
    requests: Any = None,
    prefix_tokens: int = 0,
) -> Steady:
    """Return a deployment's figures under Poisson arrivals, or in a closed loop of users.

    Args:
        deployment: What serves.
        prompt: Tokens of prompts.
        output: Tokens of outputs.
        rate_per_s: Poisson arrivals in a second; a number or an array. This or `users`.
        users: Each sends its next request when its last one ends; a number or an array.
        requests: With `users`: how many are sent in all, which begin with a burst of all users'.
            Without, the burst at the start is left out.
        prefix_tokens: Of every prompt, the tokens that all begin with.
    """
    if (rate_per_s is None) == (users is None):
        raise UsageError("a steady load has either rate_per_s or users")
    form = _ClosedForm(deployment, prompt, output, prefix_tokens)
    if users is None:
        return form.at_rates(rate_per_s)
    return form.with_users(users, requests)


def capacity(
    deployment: Deployment,
    *,
    prompt: Lengths,
    output: Lengths,
    limits: Limits | None = None,
    prefix_tokens: int = 0,
) -> Capacity:
    """Return the highest Poisson rate that a deployment holds, within limits at their percentile.

    Args:
        deployment: What serves.
        prompt: Tokens of prompts.
        output: Tokens of outputs.
        limits: Of latency; the highest rate at which queues do not grow where None.
        prefix_tokens: Of every prompt, the tokens that all begin with.
    """
    form = _ClosedForm(deployment, prompt, output, prefix_tokens)
    rate, limit = form.held, form.limit
    if limits is not None:
        rate, limit = form.within(limits)
    return Capacity(rate, limit, form.at_rates(max(rate * (1 - 1e-9), 1e-6 * form.held)))


class _Station:
    """The workers of a pool with lengths of requests: step times, and how many sequences fit."""

    def __init__(
        self, pool: Pool, prompt: Lengths, output: Lengths, prefix_tokens: int, *, decodes: bool,
        prefills: bool,
    ) -> None:  # fmt: skip
        engine, self.workers = pool.engine, pool.workers
        scheduler = engine.software.scheduler
        if scheduler.policy == "decode-first":
            raise UsageError("static batches (decode-first) have no closed form: simulate them")
        longest = int(prompt.most + output.most)
        room = KVRoom(engine, longest)
        if room.of(prompt.mean + output.mean) > room.blocks:
            need = "memory for weights and the KV cache of one request"
            raise BadValueError("layout", engine.layout.short(), need)
        cached = prefix_tokens if scheduler.prefix_caching else 0
        few = prompt.quantiles(1 if prompt.variation == 0 else _PROMPTS).tolist()
        prompts = [(each - min(cached, each - 1), min(cached, each - 1)) for each in few]
        outputs = output.quantiles(1 if output.variation == 0 else _OUTPUTS)
        kept = engine.kept_tokens
        self.steps_each = np.ceil((outputs - 1) / kept - 1e-9)
        self.steps = float(self.steps_each.mean())
        many = outputs > 1
        self.of_many, self.tokens_of_many = self.steps_each[many], outputs[many] - 1
        """Steps and tokens after the first, of outputs that have any …"""
        self.a_token = float((self.of_many / self.tokens_of_many).mean()) if many.any() else 0.0
        """… and the mean of their steps for a token."""
        square = float((self.steps_each**2).mean())
        self.steps_cv = sqrt(max(square / self.steps**2 - 1, 0.0)) if self.steps else 0.0
        # A sequence seen at random is in the midst of an output, and rather of a long one.
        midst = kept * square / (2 * self.steps) if self.steps else 0.0
        self.context = prompt.mean + midst
        lanes = int(engine.layout.dp * engine.layout.pp)
        own = prompt.mean - min(cached, prompt.mean - 1)
        reserved = scheduler.reserved_output * 2 * midst
        self.blocks_each = room.state + (own + midst) / room.block + 0.5
        held = room.state + (own + max(midst, reserved)) / room.block + 0.5
        self.blocks = room.blocks * engine.layout.dp
        caps = {
            "max_num_seqs": float(scheduler.max_num_seqs * lanes),
            "KV room": self.blocks * (1 - scheduler.watermark) / held,
        }
        mixed = scheduler.policy == "mixed" and prefills
        room_left = _room_left(scheduler, prompt, cached, engine.query_tokens, mixed=mixed)
        caps["tokens of a step"] = float(room_left.max() * lanes)
        self.cap_name = min(caps, key=lambda name: caps[name])
        self.cap = max(1, floor(caps[self.cap_name]))
        times = StepTimes(
            engine,
            most_context=longest,
            most_prompt=int(prompt.most),
            most_sequences=max(1, min(scheduler.max_num_seqs, room.blocks)),
        )
        self.few_steps = np.quantile(self.steps_each, (np.arange(_STEPS) + 0.5) / _STEPS)
        self.decodes, self.lanes = decodes, lanes
        self.sequences = _spaced(self.cap) if decodes else [0]
        self.counts = np.array(self.sequences, dtype=float)
        self.drains = self._drains(room_left)
        self.gate = Gate(
            times, scheduler, sequences=self.sequences, context=self.context,
            prompts=prompts, prompt_cv=prompt.variation, lanes=lanes, prefills=prefills,
        )  # fmt: skip

    def serve(self, rate: Any) -> tuple[Served, Floats]:
        """Return latencies at rates (rows) by sequences, and seconds of decoding."""
        here = np.asarray(rate, dtype=float)[:, None] / self.workers
        served = self.gate.serve(here, self.workers)
        spans = self.spans(served)
        return self.waiting_for_room(here, served, spans), spans

    def waiting_for_room(self, rate: Any, served: Served, spans: Floats) -> Served:
        """Return latencies with the time that whole prompts wait for room in a step.

        Sequences that decode are counted first. A prompt longer than what they leave waits until
        enough of them have ended, and all that came after it wait too: as at a server on vacation
        (Doshi 1986, Queueing Systems 1), they come upon such a time by chance.
        """
        own, others = self.drains
        coming = rate / self.lanes
        added = spans * own + coming * spans**2 * others
        return replace(
            served,
            wait_s=np.minimum(served.wait_s + added, GROWS),
            wait_var=served.wait_var + coming * spans**3 * others,
        )

    def _drains(self, left: Floats) -> tuple[Floats, Floats]:
        """Return how long a prompt waits for room, and all that come meanwhile for each that comes.

        In shares of the time that a sequence decodes, and of its square, by sequences of the
        worker. Sequences end evenly where all outputs are equally long, and exponentially where
        they scatter; as many come as end.

        Args:
            left: Sequences of a batch beside which each of many prompts has room.
        """
        each = np.maximum(self.counts / self.lanes, 1e-9)[:, None]
        share = np.minimum(left / each, 1.0)
        cv = min(self.steps_cv, 1.0)
        even, scattered = 1 - share, -np.log(share)
        own = (1 - cv) * even + cv * scattered
        others = (1 - cv) * even**2 / 2 + cv * (scattered - even)
        return own.mean(axis=1), others.mean(axis=1)

    def spans(self, served: Served) -> Floats:
        """Return seconds of decoding, with what prompts that came before add to its first steps.

        None of the steps takes longer than a full one.
        """
        gap = np.maximum(served.most_s - served.between_s, 0.0)
        total: Floats = 0.0 * served.after_s
        for steps in self.few_steps:
            total = total + np.minimum(served.after_s, steps * gap)
        return self.steps * served.between_s + total / _STEPS

    def after_a_token(self, after_s: Any, gap_s: Any) -> Any:
        """Return the same for a token, of outputs that have several."""
        if not len(self.of_many):
            return 0.0 * after_s
        added = np.minimum(after_s[:, None], self.of_many * gap_s[:, None])
        return (added / self.tokens_of_many).mean(axis=1)

    def chances(self, rate: Floats, served: Served, spans: Floats) -> Floats:
        """Return the chances of counts of sequences that decode in a worker, at rates (rows)."""
        counts = self.counts
        gaps = np.diff(counts)
        # No more prompts are computed than the tokens of steps hold.
        births = rate[:, None] / self.workers / np.maximum(served.used, 1.0)
        ratio = np.log(np.maximum(births * spans, 1e-300))
        ratio[:, 0] = ratio[:, min(1, len(counts) - 1)]
        low, high = ratio[:, :-1], ratio[:, 1:]
        factorial = np.array([lgamma(count + 1) for count in counts])
        rise = gaps * (low + high) / 2 + (high - low) / 2 - np.diff(factorial)
        logs = np.concatenate([0.0 * rate[:, None], np.cumsum(rise, axis=1)], axis=1)
        # A place stands for the counts half way to its neighbours; the last for all that wait too.
        width = np.concatenate([[1.0], (gaps + np.append(gaps[1:], 1.0)) / 2])
        chances = np.exp(logs - logs.max(axis=1, keepdims=True)) * width
        tail = np.clip(births[:, -1] * spans[:, -1] / counts[-1], 0.0, 0.9999)
        chances[:, -1] /= 1 - tail
        return np.asarray(chances / chances.sum(axis=1, keepdims=True))

    def place(
        self, rate: Floats, most: float, served: Served, spans: Floats, chances: Floats
    ) -> tuple[Any, Any]:
        """Return mean and variance of the wait for a place among the sequences, at rates.

        As of a queue with so many places: chance that all are taken x service / (places x (1 - u)),
        by half of 1 + cv^2 for services that scatter less or more than exponential ones.
        """
        stay = served.own_s[:, -1] + spans[:, -1]
        places = self.cap * self.workers
        u = np.minimum(rate * stay / places, rate / most)
        cv = self.steps_cv * spans[:, -1] / np.maximum(stay, 1e-12)
        chance = chances[:, -1]
        wait = chance * stay * (1 + cv**2) / 2 / (places * (1 - u))
        return wait, wait**2 * (2 / np.maximum(chance, 1e-3) - 1)

    def decoding(self, rate: Any) -> tuple[Any, Any, Served, Floats]:
        """Return sequences that decode in a worker at rates, whether they and prompts find room."""
        served, spans = self.serve(rate)
        here = np.asarray(rate) / self.workers
        if not self.decodes:
            return 0.0 * here, served.used[:, 0] < 1, served, spans
        # What decodes is as much as comes while it does, at the least count for which that holds.
        count = _crossing(self.counts[1:], self.counts[1:] - here[:, None] * spans[:, 1:])
        lone = here * spans[:, 1]
        count = np.where(lone <= 1, lone, count)
        most = _crossing(self.counts, served.used - 1)
        place = np.minimum(count, self.counts[-1])
        own = here * _at(self.counts, served.own_s, place)
        return place, (count + own <= self.cap) & (count <= most), served, spans


def _room_left(
    scheduler: Scheduler, prompt: Lengths, cached: int, queries: int, *, mixed: bool
) -> Floats:
    """Return beside how many sequences of a batch prompts have room in a step.

    Args:
        scheduler: Of the engine.
        prompt: Tokens of prompts; many lengths stand for them where they go in whole.
        cached: Of each, what is found in the cache.
        queries: Tokens of a sequence that decodes.
        mixed: Whether prompts share steps with sequences at all.
    """
    if not mixed:
        return np.full(1, np.inf)
    budget = scheduler.max_num_batched_tokens
    left = np.full(1, budget - 1)
    if not scheduler.chunked_prefill:
        many = prompt.quantiles(1 if prompt.variation == 0 else _TAIL)
        left = np.minimum(budget - np.maximum(many - cached, 1), budget - 1)
        left = np.where(left < 0, budget - 1, left)  # such prompts go in all the same
    return np.asarray(np.maximum(left // queries, 1), dtype=float)


def _spaced(most: int) -> list[int]:
    """Return counts from 0 to the most, at distances below the standard deviation of a count."""
    counts = list(range(min(most, 8) + 1))
    while counts[-1] < most:
        counts.append(min(most, counts[-1] + max(1, floor(0.7 * sqrt(counts[-1])))))
    return counts


def _crossing(places: Floats, values: Any) -> Any:
    """Return where values along the last axis get positive, infinite where they do not."""
    above = values >= 0
    index = np.argmax(above, axis=-1)
    rows = np.arange(len(values))
    before = np.maximum(index - 1, 0)
    low, high = values[rows, before], values[rows, index]
    share = np.where(index > 0, -low / np.where(high > low, high - low, 1.0), 1.0)
    found = places[before] + share * (places[index] - places[before])
    return np.where(above.any(axis=-1), found, np.inf)


def _at(places: Floats, values: Floats, at: Any) -> Any:
    """Return values along the last axis at one place in each row, on straight lines."""
    index = np.clip(np.searchsorted(places, at, side="right") - 1, 0, max(len(places) - 2, 0))
    after = np.minimum(index + 1, len(places) - 1)
    gap = np.where(after > index, places[after] - places[index], 1.0)
    rows = np.arange(len(values))
    share = (at - places[index]) / gap
    return values[rows, index] + share * (values[rows, after] - values[rows, index])


def _quantile(mean: Any, variance: Any, share: float) -> Any:
    """Return a quantile of a gamma distribution (Wilson and Hilferty 1931, PNAS 17)."""
    mean = np.maximum(mean, 1e-12)
    ninth = np.maximum(variance, 1e-18) / (9 * mean**2)
    normal = NormalDist().inv_cdf(share)
    return mean * np.maximum(1 - ninth + normal * np.sqrt(ninth), 0.0) ** 3


def _generation(number: int, generations: Floats) -> tuple[Any, Any]:
    """Return which share the requests of a generation have, and its number; the last: all others.

    Args:
        number: Of requests that each user sent before.
        generations: How many there are, or infinitely many.
    """
    endless = np.isinf(generations)
    counted = np.where(endless, 1e9, generations)
    if number < _GENERATIONS - 1:
        return np.clip(counted - number, 0.0, 1.0) / counted, number
    return np.maximum(counted - number, 0.0) / counted, np.maximum((number + counted) / 2, number)


class _Figures(NamedTuple):
    """Of rates, before saturation: means over requests, and variances."""

    front_s: Any
    ttft_s: Any
    ttft_var: Any
    tpot_s: Any
    tpot_var: Any
    span_s: Any
    span_var: Any
    running: Any
    waiting: Any

    def ttft_at(self, share: float) -> Any:
        """Return the quantile of TTFT."""
        return self.front_s + _quantile(self.ttft_s - self.front_s, self.ttft_var, share)

    def tpot_at(self, share: float) -> Any:
        """Return the quantile of TPOT."""
        return _quantile(self.tpot_s, self.tpot_var, share)

    def e2e_at(self, share: float) -> Any:
        """Return the quantile of the time to the last token."""
        both = self.ttft_s + self.span_s - self.front_s
        return self.front_s + _quantile(both, self.ttft_var + self.span_var, share)


class _ClosedForm:
    """A deployment with lengths of requests."""

    def __init__(
        self, deployment: Deployment, prompt: Lengths, output: Lengths, prefix_tokens: int
    ) -> None:
        self.prompt, self.output = prompt, output
        lengths = (prompt, output, prefix_tokens)
        self.serving = _Station(
            deployment.serving, *lengths, decodes=True, prefills=deployment.prefill is None
        )
        self.prefill: _Station | None = None
        self.transfer_s = 0.0
        if deployment.prefill is not None:
            self.prefill = _Station(deployment.prefill, *lengths, decodes=False, prefills=True)
            self.transfer_s = float(deployment.transfer_s(max(round(prompt.mean), 1)))
        scheduler = deployment.pools[0].engine.software.scheduler
        self.front_s = scheduler.frontend_s + scheduler.frontend_per_token_s * prompt.mean
        self.each_s = float(scheduler.frontend_per_request_s)
        self.most, self.limit = self._most()
        self.held = max(self.most, min(self._with_full_places(), 0.999 / self.each_s))

    @property
    def stations(self) -> tuple[_Station, ...]:
        """Prefill first, where there are two."""
        return (self.serving,) if self.prefill is None else (self.prefill, self.serving)

    def _most(self) -> tuple[float, str]:
        """Return the highest rate that is held, and what bounds it."""
        high = 0.999 / self.each_s
        low = 1e-9 * high
        for _ in range(_ROUNDS):
            rates = np.geomspace(low, high, _TRIES)
            held = np.logical_and.reduce([each.decoding(rates)[1] for each in self.stations])
            last = int(np.argmin(held)) if not held.all() else _TRIES
            low, high = rates[max(last - 1, 0)], rates[min(last, _TRIES - 1)]
        return float(low), self._limit_at(float(high))

    def _with_full_places(self) -> float:
        """Return the rate of a worker that runs prompts first when its places free them."""
        station = self.serving
        if self.prefill is not None or station.gate.mixed or not station.steps:
            return 0.0
        between, _ = station.gate.refilled(station.steps)
        return float(station.workers * station.cap / (station.steps * between[-1]))

    def _limit_at(self, rate: float) -> str:
        for station in self.stations:
            _, held, served, _ = station.decoding(np.array([rate]))
            if not held[0]:
                count, *_ = station.decoding(np.array([rate]))
                if not station.decodes or _at(station.counts, served.used, count)[0] >= 0.98:
                    return "tokens of a step"
                return station.cap_name
        return "arrivals"

    # --- Poisson arrivals ----------------------------------------------------------------------
    def at_rates(self, rate_per_s: Any) -> Steady:
        """Return the load at Poisson rates."""
        rate = np.asarray(rate_per_s, dtype=float)
        if not (np.isfinite(rate) & (rate > 0)).all():
            raise BadValueError("rate_per_s", rate_per_s, "positive numbers")
        over = rate >= self.held
        served = np.minimum(rate, self.held).ravel()
        # Between the two rates, places are full and prompts come as places are freed.
        held = np.minimum(served, self.most * (0.9999 if self.held <= self.most else _NEAR))
        if held.size > _RATES:
            # Evenly, and ever closer towards the rate at which queues grow.
            even, close = np.linspace(0, 0.94, _RATES // 2), np.geomspace(0.05, 1e-4, _RATES // 2)
            shares = np.append(even, 1 - close)
            low = held.min()
            grid = low + (self.most * 0.9999 - low) * shares / shares[-1]
            few = self.figures(grid)
            figures = _Figures(*(np.interp(held, grid, each) for each in few))
        else:
            figures = self.figures(held)
        return self._steady(figures, served, rate.shape, over, rate / self.held)

    def _steady(
        self, figures: _Figures, served: Any, shape: tuple[int, ...], over: Any, utilisation: Any
    ) -> Steady:
        def shaped(values: Any, beyond: float | None = None) -> Any:
            values = np.broadcast_to(values, served.shape).reshape(shape)
            values = values if beyond is None else np.where(over, beyond, values)
            return values if shape else values[()].item()

        station = self.serving
        kv_share = figures.running * station.blocks_each / (station.blocks * station.workers)
        limit = np.where(over, self.limit, "arrivals")
        return Steady(
            ttft_s=shaped(figures.ttft_s, np.inf),
            ttft_p90_s=shaped(figures.ttft_at(0.9), np.inf),
            tpot_s=shaped(figures.tpot_s),
            tpot_p90_s=shaped(figures.tpot_at(0.9)),
            e2e_s=shaped(figures.ttft_s + figures.span_s, np.inf),
            requests_per_s=shaped(served),
            output_tokens_per_s=shaped(served * self.output.mean),
            running=shaped(figures.running),
            waiting=shaped(figures.waiting, np.inf),
            kv_share=shaped(np.minimum(kv_share, 1.0)),
            utilisation=shaped(np.ravel(utilisation)),
            saturated=shaped(np.ravel(over)),
            limit=limit if shape else str(limit),
        )

    def figures(self, rate: Floats) -> _Figures:
        """Return what requests meet at rates below the highest."""
        served, spans = self.serving.serve(rate)
        return self._mean(rate, served, spans, self.serving.chances(rate, served, spans))

    def by_count(self) -> tuple[Floats, _Figures]:
        """Return rates at which counts of sequences decode that do not change, and figures there.

        So it is in a closed loop: n - 1 others decode beside a request.
        """
        station = self.serving
        gate, counts = station.gate, station.counts[1:]
        chances = np.eye(len(counts), len(counts) + 1, 1)
        if self.prefill is None and not gate.mixed and station.steps:
            between, own = gate.refilled(station.steps)
            spans = station.steps * between
            rate = np.maximum((counts - 1) / spans[1:], 1e-9 * self.most) * station.workers
            served, _ = station.serve(np.minimum(rate, 0.999 * self.most))
            none = 0.0 * served.own_s
            served = replace(
                served, own_s=own + none, between_s=between + none, after_s=none,
                wait_s=(0.5 + gate.steps_ahead) * gate.plain_s + none,
            )  # fmt: skip
            return rate, self._mean(rate, served, spans + none, chances, closed=True)
        low, high = np.zeros(len(counts)), np.full(len(counts), self.most / station.workers)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            served = gate.serve(np.append(0.0, middle)[None, :], station.workers)
            span = station.spans(served)[0, 1:]
            more = (middle * span > counts - 1) | (served.used[0, 1:] >= 0.999)
            low, high = np.where(more, low, middle), np.where(more, middle, high)
        rate = np.maximum(low, 1e-9 * self.most) * station.workers
        served, spans = station.serve(rate)
        return rate, self._mean(rate, served, spans, chances, closed=True)

    def _mean(
        self, rate: Floats, served: Served, spans: Floats, chances: Floats, *, closed: bool = False
    ) -> _Figures:
        station = self.serving
        # Steps count by the tokens made in them: n / s(n) in a second.
        seen = chances * station.counts / np.maximum(spans, 1e-12)
        seen = seen / np.maximum(seen.sum(axis=1, keepdims=True), 1e-300)

        def at_arrival(values: Floats) -> Any:
            return (chances * values).sum(axis=1)

        def while_decoding(values: Floats) -> Any:
            return (seen * values).sum(axis=1)

        ahead_s = at_arrival(served.wait_s + served.own_s)
        ahead_var = at_arrival(served.wait_var)
        waiting_s = at_arrival(served.wait_s)
        if self.prefill is not None:
            first, _ = self.prefill.serve(rate)
            ahead_s = ahead_s + (first.wait_s + first.own_s)[:, 0] + self.transfer_s
            ahead_var, waiting_s = first.wait_var[:, 0], first.wait_s[:, 0]
        place_s, place_var = 0.0 * rate, 0.0 * rate
        if not closed:  # in a closed loop no more come than there are users
            place_s, place_var = station.place(rate, self.most, served, spans, chances)
        queue = self.each_s**2 * rate / (2 * (1 - rate * self.each_s))
        front_s = self.front_s + self.each_s + queue
        between, most = while_decoding(served.between_s), while_decoding(served.most_s)
        after = station.after_a_token(
            while_decoding(served.after_s), np.maximum(most - between, 0.0)
        )
        span_s = while_decoding(spans)
        here = rate / station.workers
        # Prompts that come while a request decodes are Poisson; counts of sequences change slowly.
        prompts_var = here * span_s * while_decoding(served.prompt_s**2)
        slow = while_decoding(served.between_s**2) - between**2
        steps = max(station.steps, 1e-12)
        after_var = after**2
        tpot = station.a_token * between + after
        running = rate * span_s
        return _Figures(
            front_s=front_s + 0.0 * rate,
            ttft_s=front_s + ahead_s + place_s,
            ttft_var=ahead_var + place_var,
            tpot_s=tpot,
            tpot_var=prompts_var / steps**2 + slow / 2 + after_var,
            span_s=span_s,
            span_var=prompts_var + steps**2 * slow / 2 + (station.steps_cv * span_s) ** 2,
            running=running,
            waiting=rate * (waiting_s + place_s),
        )

    def within(self, limits: Limits) -> tuple[float, str]:
        """Return the highest rate within limits, and what bounds it."""
        share = limits.percentile / 100
        low, high, limit = 0.0, self.most * (1 - 1e-6), self.limit
        for _ in range(_ROUNDS):
            rates = np.linspace(low, high, _TRIES + 1)[1:]
            figures = self.figures(rates)
            kept = {
                "TTFT": figures.ttft_at(share) <= (limits.ttft_s or np.inf),
                "TPOT": figures.tpot_at(share) <= (limits.tpot_s or np.inf),
                "E2E": figures.e2e_at(share) <= (limits.e2e_s or np.inf),
            }
            good = np.logical_and.reduce(list(kept.values()))
            if good.all():
                low = high
                break
            first = int(np.argmin(good))
            limit = next(name for name, each in kept.items() if not each[first])
            low, high = (rates[first - 1] if first else low), rates[first]
        return float(low), limit

    # --- a closed loop -------------------------------------------------------------------------
    def with_users(self, users: Any, requests: Any) -> Steady:
        """Return the load of users that always have one request each."""
        given = np.asarray(users, dtype=float)
        if not (np.isfinite(given) & (given >= 1)).all():
            raise BadValueError("users", users, "at least 1")
        sent = np.broadcast_to(np.inf if requests is None else requests, given.shape).astype(float)
        if not (sent > 0).all():
            raise BadValueError("requests", requests, "positive")
        rates, figures = self.by_count()
        # A request meets those of the other users.
        known = np.maximum.accumulate(1 + rates * (figures.ttft_s + figures.span_s))
        flat, sent = given.ravel(), np.maximum(sent, given).ravel()
        at = _Figures(*(np.interp(flat, known, each) for each in figures))
        more = np.maximum(flat - known[-1], 0.0) / rates[-1]
        at = self._with_bursts(at._replace(ttft_s=at.ttft_s + more), flat, sent)
        served = flat / (at.ttft_s + at.span_s)
        at = at._replace(running=served * at.span_s, waiting=served * (at.ttft_s - at.front_s))
        over = np.zeros(given.shape, dtype=bool)
        return self._steady(at, served, given.shape, over, served.reshape(given.shape) / self.most)

    def _with_bursts(self, at: _Figures, users: Floats, sent: Floats) -> _Figures:
        """Return figures with the prompts that come together.

        They do at the start, and as long as outputs are so equal that users stay together.
        """
        first = self.stations[0]
        here = np.minimum(users / first.workers, self.serving.cap)
        burst = first.gate.burst(here)
        steps = max(self.serving.steps, 1.0)
        generations = np.maximum(sent / users, 1.0)
        mixed = first.gate.mixed and self.prefill is None
        come_s = self.each_s * users
        many = burst.whole_s / burst.step_s
        # Mixed, prompts are spread over steps, and so are ends. While the first successors are on
        # their way through the front end, steps are short and more sequences end.
        passed = (self.front_s + self.each_s) / burst.plain_s + 1 + first.gate.steps_ahead
        line = np.minimum(many - 1, passed)
        ttft, square, span = 0.0 * users, 0.0 * users, 0.0 * users
        for number in range(_GENERATIONS):
            weight, age = _generation(number, generations)
            spread = sqrt(12) * self.serving.steps_cv * np.sqrt(age) * at.span_s
            bunched = np.clip(1 - np.hypot(come_s, spread) / burst.whole_s, 0.0, 1.0)
            if mixed and number:
                bunched = np.clip(1 - spread / burst.whole_s, 0.0, 1.0)
                wait, scatter, own = line * burst.full_s, 0.0, burst.full_s
                behind = (many - 1 - line) * (burst.full_s - burst.plain_s)
            else:
                wait = come_s / 2 + (burst.whole_s - burst.step_s) / 2
                scatter, own = burst.whole_s**2 / 12, burst.step_s
                behind = (burst.whole_s - burst.step_s) / 2
                behind = behind * (1 - burst.plain_s / burst.step_s if mixed else 1.0)
            together = at.front_s + wait + own
            mean = (1 - bunched) * at.ttft_s + bunched * np.maximum(together, at.ttft_s)
            ttft = ttft + weight * mean
            square = square + weight * (mean**2 + bunched * scatter)
            decoding = steps * burst.plain_s + behind
            span = span + weight * ((1 - bunched) * at.span_s + bunched * decoding)
        var = at.ttft_var + np.maximum(square - ttft**2, 0.0)
        ratio = span / np.maximum(at.span_s, 1e-12)
        return at._replace(ttft_s=ttft, ttft_var=var, span_s=span, tpot_s=at.tpot_s * ratio)

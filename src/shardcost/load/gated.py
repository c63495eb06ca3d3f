"""Steps of a worker in a steady load: those that only decode, and those with prompts in them.

A request that arrives while a step runs is prefilled in the next one, together with all others that
came meanwhile: gated service (Takagi 1991, Queueing Analysis 1, ch. 2). With n sequences that
decode, a step takes T0 seconds without prompts and T+ seconds with k of them. The prompts of a step
are Poisson with the mean rate x seconds of the step before, so that the steps with prompts have on
average::

    k = rate x (r x T0 + T+(k)),   r = exp(-rate x T+) / (1 - exp(-rate x T0))

of them, r steps without for each one with. A worker in which nothing decodes is idle instead, for
1 / rate seconds: the limit for T0 = 0.

``mixed``, a sequence gets a token in each step, ``prefill-first`` only in those without prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.load.requests import Floats
from shardcost.load.steps import StepTimes
from shardcost.scheduler import Scheduler

_BISECTIONS: Final = 20
GROWS: Final = 1e9
"""Seconds that stand for a queue that grows."""


@dataclass(frozen=True, eq=False)
class Served:
    """Latencies at a worker by its rate of requests (rows) and sequences (columns)."""

    wait_s: Floats
    """Before the step of the own prompt: rest of the running step, and the line where prompts fill
    the steps."""
    own_s: Floats
    """The step or steps of the own prompt."""
    between_s: Floats
    """From one token to the next."""
    after_s: Floats
    """More before the next tokens than between later ones: for prompts that came meanwhile …"""
    most_s: Floats
    """… which leave at most so many seconds between two tokens."""
    wait_var: Floats
    """Variance of wait and own steps, in square seconds."""
    prompt_s: Floats
    """What one more prompt adds to the time between two tokens in which it comes."""
    used: Floats
    """Share of the tokens of steps that prompts need, 1 where their queue grows."""


class Burst(NamedTuple):
    """Requests that come at one time."""

    step_s: Any
    """Of as many prompts as go into one."""
    full_s: Any
    """The same, where all others decode in it."""
    whole_s: Any
    """Until all prompts are prefilled."""
    plain_s: Any
    """Of decoding all."""


class Gate:
    """Step times of one worker, by sequences that decode and prompts that are prefilled."""

    def __init__(
        self,
        times: StepTimes,
        scheduler: Scheduler,
        *,
        sequences: Sequence[int],
        context: float,
        prompts: Sequence[tuple[int, int]],
        prompt_cv: float,
        lanes: int,
        prefills: bool = True,
    ) -> None:
        """Price the steps.

        Args:
            times: Seconds of steps.
            scheduler: What goes into a step.
            sequences: Of the worker, ascending.
            context: Mean tokens of one.
            prompts: Tokens that are computed of a few that stand for all, and those cached before.
            prompt_cv: Of their tokens, standard deviation over mean.
            lanes: Batches that run at a time: ranks of data parallelism times pipeline stages.
            prefills: Whether prompts are prefilled here; otherwise they come from another worker.
        """
        self.times, self.scheduler, self.lanes = times, scheduler, lanes
        self.mixed = scheduler.policy == "mixed"
        self.prefills = prefills
        self.steps_ahead = scheduler.steps_ahead
        # After steps with prompts alone nothing is left to prefill: the step that was scheduled
        # meanwhile decodes as well.
        self.together = 1 if self.mixed else 1 + self.steps_ahead
        self.prompts, self.prompt_cv = prompts, prompt_cv
        self.tokens = sum(tokens for tokens, _ in prompts) / len(prompts)
        self.sequences = np.asarray(sequences, dtype=float)
        self.idle = self.sequences == 0
        each = [-(-int(count) // lanes) for count in sequences]
        self.plain_s = np.array(
            [times.decode_s(count, count * context) if count else 0.0 for count in each]
        )
        counts = _counts(self._fits(0))
        rows = [self._row(count if self.mixed else 0, context, counts) for count in each]
        self.first, self.first_s, self.alone_s, self.alone_square = (
            np.array([row[place] for row in rows], dtype=float) for place in range(4)
        )
        table = np.array([row[4] for row in rows], dtype=float).reshape(len(rows), -1)
        self.places = np.maximum(
            np.array([float(count) for count in counts])[None, :], self.first[:, None]
        )
        self.table_s = np.concatenate([self.first_s[:, None], table], axis=1)
        self.places = np.concatenate([self.first[:, None], self.places], axis=1)
        self.most = np.array([self._fits(count if self.mixed else 0) for count in each])

    def _left(self, sequences: int) -> int:
        """Return how many tokens of prompts go into a step of one batch."""
        queries = sequences * self.times.engine.query_tokens if self.mixed else 0
        return self.scheduler.max_num_batched_tokens - queries

    def _fits(self, sequences: int) -> float:
        """Return how many prompts go into a step of one batch at most."""
        many = self._left(sequences) / self.tokens
        if self.scheduler.chunked_prefill:
            return max(many, 1e-9)
        # Whole prompts: what is left at the end is too short for the next one.
        return max(1.0, many // 1 if self.prompt_cv == 0 else many - (1 + self.prompt_cv**2) / 2)

    def _row(
        self, sequences: int, context: float, counts: Sequence[float]
    ) -> tuple[float, float, float, float, list[float]]:
        """Return prompts and seconds of a step with one, and seconds of steps with more.

        Between them: the mean of the seconds of all steps of one prompt, and of its square.
        """
        left = max(self._left(sequences), 1)
        decoding = (sequences, sequences * context)
        steps, total, squares = 0, 0.0, 0.0
        for tokens, cached in self.prompts:
            own = 0.0
            chunk = min(tokens, left) if self.scheduler.chunked_prefill else tokens
            for start in range(0, tokens, chunk):
                seconds = self.times.step_s(
                    [(min(chunk, tokens - start), cached + start)], *decoding
                )
                steps, own = steps + 1, own + seconds
            total, squares = total + own, squares + own**2
        count = len(self.prompts)
        row = [self.times.step_s(self._chunks(many), *decoding) for many in counts]
        return count / steps, total / steps, total / count, squares / count, row

    def _chunks(self, many: float) -> list[tuple[int, int]]:
        """Return so many prompts, the last one in part."""
        prompts = self.prompts
        whole = int(many)
        spread = [prompts[int((i + 0.5) * len(prompts) / max(whole, 1))] for i in range(whole)]
        rest = round((many - whole) * self.tokens)
        before = prompts[len(prompts) // 2][1]
        return [*spread, (rest, before)] if rest else spread

    def step_s(self, prompts: Any) -> Any:
        """Return seconds of steps with so many prompts of the worker (rows) by sequences."""
        each = prompts / self.lanes
        seconds = self.table_s[:, 0] + 0.0 * each
        for place in range(self.places.shape[1] - 1):
            low, high = self.places[:, place], self.places[:, place + 1]
            gap = np.maximum(high - low, 1e-12)
            slope = (self.table_s[:, place + 1] - self.table_s[:, place]) / gap
            seconds = seconds + slope * np.clip(each - low, 0.0, high - low)
        return seconds

    def serve(self, rate: Any, workers: int = 1) -> Served:
        """Return latencies of requests that come at rates to one worker of several.

        Args:
            rate: Requests in a second to the worker, along the first axis of two.
            workers: That share the requests, each going where fewest are.
        """
        if not self.prefills:
            return self._handed_over(0.0 * rate + self.plain_s)
        plain = self.together * self.plain_s
        # A step has at least one prompt, or its chunk, and at most what its tokens hold.
        least, most = self.first, np.maximum(self.most * self.lanes, self.first)
        low, high = least + 0.0 * rate, most + 0.0 * rate
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            more = self._followers(rate, middle) > middle
            low, high = np.where(more, middle, low), np.where(more, high, middle)
        count = (low + high) / 2
        full_s = self.step_s(most)
        used = rate * full_s / most
        with_s = self.step_s(count)
        # Shares of the steps: those with prompts take in what comes during all of them.
        without = self._without(rate, count, with_s)
        mean_s = np.where(self.idle, with_s, without * plain + (1 - without) * with_s)
        one_s = (with_s - (plain if self.mixed else 0.0)) / count
        slope = np.maximum(self.step_s(count + 1.0) - with_s, 0.0)
        spread = slope**2 * (np.maximum(count - 1, 0.0) + count * self.prompt_cv**2)
        square = without * plain**2 / self.together + (1 - without) * (with_s**2 + spread)
        many = least < 0.999  # prompts of several steps
        whole = self.alone_square / self.alone_s
        busy = np.where(
            self.idle, with_s / (with_s + np.exp(-rate * with_s) / np.maximum(rate, 1e-12)), 1.0
        )
        rest = np.where(
            many,
            np.minimum(used, 1.0) * whole / 2 + (1 - np.minimum(used, 1.0)) * plain / 2,
            busy * np.where(self.idle, (with_s + spread / with_s), square / mean_s) / 2,
        )
        places = np.maximum(most, 1.0) * workers
        u = np.minimum(used, 1 - 1e-9)
        # Sakasegawa's extension of Pollaczek and Khinchine's wait (see `shardcost.load.steady`).
        line = rest * u ** (np.sqrt(2 * (places + 1)) - 1) / (places * (1 - u))
        # A step that was scheduled already, while sequences decode, goes before.
        decoding = np.where(self.idle, 0.0, 1.0 if self.mixed else without * plain / mean_s)
        ahead = self.steps_ahead * decoding * (mean_s if self.mixed else self.plain_s)
        rest = rest * np.where(self.idle, busy ** (sqrt(2 * (workers + 1)) - 2), 1.0)
        others = np.minimum(2 * rate * rest / workers, np.maximum(most - 1, 0.0))
        own = np.where(many, self.alone_s, self.step_s(1.0 + others))
        if self.mixed:
            between = mean_s
            behind = np.maximum(own + line - mean_s, 0.0)
            after = behind * rate * one_s * mean_s / np.maximum(plain, 1e-12)
            added = one_s * np.maximum(mean_s / np.maximum(plain, 1e-12), 1.0)
        else:
            between = mean_s / np.maximum(without, 1e-9) / self.together
            stretch = between / np.maximum(self.plain_s, 1e-12)
            after = rate * (own + line) * one_s * stretch
            added = one_s * stretch
        own_var = np.where(many, self.alone_square - self.alone_s**2, 0.0) + slope**2 * (
            self.prompt_cv**2 + others
        )
        variance = rest**2 / 3 + line**2 * 2 + own_var
        variance = variance + self.steps_ahead * decoding * np.maximum(square - mean_s**2, 0.0)
        grows = used >= 1
        return Served(
            wait_s=np.where(grows, GROWS, rest + ahead + line),
            own_s=own,
            between_s=np.where(
                grows, full_s if self.mixed else GROWS, np.where(self.idle, 0.0, between)
            ),
            after_s=np.where(grows | self.idle, 0.0, after),
            most_s=full_s + 0.0 * with_s if self.mixed else GROWS + 0.0 * with_s,
            wait_var=variance,
            prompt_s=np.where(self.idle, 0.0, added),
            used=used,
        )

    def refilled(self, steps: float) -> tuple[Floats, Floats]:
        """Return seconds between tokens, and of the own step, where requests follow those that end.

        ``prefill-first``: as no sequence ends while prompts run, none follow, and those that did
        are prefilled together, however many arrive. So it is where all places are taken, and in a
        closed loop.

        Args:
            steps: Of an output.
        """
        most = np.maximum(self.most * self.lanes, self.first)
        freed = self.together * self.sequences / max(steps, 1.0)
        each = np.clip(freed, np.minimum(self.first, 1.0), np.maximum(most, 1.0))
        one = self.step_s(each)
        all_s = np.where(self.first < 0.999, self.alone_s * freed, one * freed / each)
        own = np.where(self.first < 0.999, self.alone_s, one)
        return self.plain_s + all_s / self.together, own

    def burst(self, requests: Floats) -> Burst:
        """Return what requests take that come to a worker at one time."""
        most = np.maximum(self.most * self.lanes, self.first)
        counts = np.maximum(self.sequences, 1.0)
        each = np.minimum(most, counts)
        # The first of the steps have nothing to decode beside prompts, the last almost all.
        full = self.step_s(each)
        step = full
        if self.mixed:
            step = (full + np.array([self.step_s(np.array([count]))[0] for count in each])) / 2
        alone = np.where(self.first < 0.999, self.alone_s, step)
        whole = np.maximum(counts / each, 1.0) * step
        values = (step, full, np.maximum(whole, alone), self.plain_s)
        if len(self.sequences) == 1:
            part = np.maximum(np.minimum(requests, most[0]), 1.0)
            step = np.interp(part, self.places[0] * self.lanes, self.table_s[0])
            return Burst(step, step, np.maximum(requests / part, 1.0) * step, 0.0 * step)
        return Burst(*(np.interp(requests, self.sequences, value) for value in values))

    def _handed_over(self, plain_s: Floats) -> Served:
        """Return latencies of requests prefilled elsewhere: they join at a step's end."""
        none = 0.0 * plain_s
        return Served(
            wait_s=(0.5 + self.steps_ahead) * plain_s, own_s=none, between_s=plain_s,
            after_s=none, most_s=plain_s, wait_var=none, prompt_s=none, used=none,
        )  # fmt: skip

    def _followers(self, rate: Any, count: Any) -> Any:
        """Return how many prompts come on average before a step with prompts that had so many."""
        with_s = self.step_s(count)
        x = np.minimum(rate * self.together * self.plain_s, 500.0)
        ratio = np.where(x > 1e-9, x / -np.expm1(-np.maximum(x, 1e-9)), 1.0)
        return ratio * np.exp(-np.minimum(rate * with_s, 500.0)) + rate * with_s

    def _without(self, rate: Any, count: Any, with_s: Any) -> Any:
        """Return the share of steps without prompts, by the balance of what comes and goes."""
        plain = self.together * self.plain_s
        part = rate * plain / np.maximum(count - rate * (with_s - plain), 1e-12)
        return 1 - np.clip(part, 0.0, 1.0)


def _counts(most: float) -> list[float]:
    """Return 2, 4, 8 … and the most prompts of a step."""
    counts, count = [], 2.0
    while count < most:
        counts.append(count)
        count *= 2
    return [*counts, most] if most != 1.0 else counts

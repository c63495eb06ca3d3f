"""Results of a serving benchmark beside a simulation of the same load on a deployment.

The simulation sends what the load generator sent: as many requests, of the lengths that the file
lists or of its mean and spread, at the stated rate or as many at a time. Where the file lists when
each request was sent, it sends them then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final, NamedTuple

import numpy as np

from shardcost.errors import BadValueError, ShardcostError, UsageError
from shardcost.formats.serving_results import Latency, ServingResult
from shardcost.load.deployment import Deployment
from shardcost.load.requests import Floats, Ints, Lengths, Requests, Stream
from shardcost.load.result import Load
from shardcost.load.simulate import simulate

LATENCIES: Final = ("ttft", "tpot", "itl", "e2e")
MOST_SIMULATED: Final = 5000
"""Requests of a run that are simulated, unless more are in flight; the others are alike."""
_ROUNDS: Final = 4
"""How many times as many as are in flight: the first ones come together and wait longer."""
_MOST_IN_FLIGHT: Final = 5000
_MOST_TOKENS: Final = 10**8
"""Of all outputs of a run that are simulated."""
_USUAL: Final = 500
"""Requests of a run that does not say how many."""
_SEED: Final = 0
_ALIKE: Final = 0.01
"""Lengths whose spread over their mean is below this are one length."""


class Figure(NamedTuple):
    """A figure of a run: what was measured and what is predicted, in seconds or per second."""

    name: str
    """``ttft``, ``tpot``, ``itl``, ``e2e``, ``requests_per_s`` or ``output_tokens_per_s``."""
    statistic: str
    """``mean``, ``p50`` and so on; empty of a throughput."""
    measured: float
    predicted: float

    @property
    def error_pct(self) -> float:
        """Above 0 where the prediction is too high."""
        return 100 * (self.predicted / self.measured - 1)


@dataclass(frozen=True, eq=False)
class Compared:
    """A run, and what a deployment would show under the same load."""

    run: ServingResult
    load: Load | None
    figures: tuple[Figure, ...]
    not_predicted: str = ""
    """Why there is no prediction; empty where there is."""


def compared(deployment: Deployment, run: ServingResult) -> Compared:
    """Return a run beside its simulation; where it cannot be simulated, why."""
    try:
        load = simulate(deployment, requests_of(run))
    except ShardcostError as error:
        return Compared(run, None, (), str(error))
    if not len(load.served):
        return Compared(run, None, (), "no request fits in the KV cache")
    return Compared(run, load, figures_of(run, load))


def figures_of(run: ServingResult, load: Load) -> tuple[Figure, ...]:
    """Return what a run states and a simulation shows."""
    figures = []
    for name in LATENCIES:
        stated: Latency = getattr(run, f"{name}_s")
        for statistic, measured in stated._asdict().items():
            predicted = _statistic(load, name, statistic)
            if measured and predicted is not None and predicted > 0:
                figures.append(Figure(name, statistic, measured, predicted))
    for name in ("requests_per_s", "output_tokens_per_s"):
        measured = getattr(run, name)
        if measured:
            figures.append(Figure(name, "", measured, getattr(load, name)))
    return tuple(figures)


def _statistic(load: Load, name: str, statistic: str) -> float | None:
    """Return a mean or percentile of a latency; None where a simulation has none."""
    if statistic == "p95":  # which distributions do not keep
        values = {
            "ttft": load.first_token_s - load.arrival_s,
            "tpot": load.tpot_each_s,
            "e2e": load.finished_s - load.arrival_s,
        }.get(name)
        return float(np.percentile(values, 95)) if values is not None and len(values) else None
    found = float(getattr(getattr(load, f"{name}_s"), statistic))
    return None if np.isnan(found) else found


def requests_of(run: ServingResult, most: int = MOST_SIMULATED) -> Requests:
    """Return the load that a run was measured under.

    Args:
        run: What was measured.
        most: Requests at most, unless those in flight need more to come and go.

    Raises:
        UsageError: The file does not say enough of it.
    """
    if run.input_tokens is None or run.output_tokens is None:
        raise UsageError("the file does not state the lengths of prompts and outputs")
    if (run.concurrency or 0) > _MOST_IN_FLIGHT:
        rule = f"at most {_MOST_IN_FLIGHT} to be simulated"
        raise BadValueError("concurrency", run.concurrency, rule)
    random = np.random.default_rng(_SEED)
    count = min(
        run.requests or max(_USUAL, 10 * (run.concurrency or 0)),
        max(most, _ROUNDS * (run.concurrency or 0)),
    )
    if count * run.output_tokens > _MOST_TOKENS:
        rule = f"at most {_MOST_TOKENS // count} for {count} requests to be simulated"
        raise BadValueError("mean output tokens", run.output_tokens, rule)
    if run.each is not None:
        count = min(count, len(run.each.input_tokens))
        prompts = np.array(run.each.input_tokens[:count], dtype=np.int64)
        outputs = np.array(run.each.output_tokens[:count], dtype=np.int64)
    else:
        prompts = _drawn(run.input_tokens, run.input_cv, count, random)
        outputs = _drawn(run.output_tokens, run.output_cv, count, random)
    stream = Stream(
        arrival_s=_arrivals(run, count, random),
        prompt_tokens=prompts,
        output_tokens=outputs,
        users=run.concurrency,
    )
    return Requests(arrival="trace", count=count, trace=stream)


def _arrivals(run: ServingResult, count: int, random: np.random.Generator) -> Floats:
    """Return when requests come, or may come where those in flight are limited."""
    if run.rate_per_s is None and not run.ramped:
        return np.zeros(count)  # all at once, or each when another one ends
    if run.each is not None and run.each.start_s:
        return np.sort(np.array(run.each.start_s, dtype=float))[:count]
    if run.ramped or run.rate_per_s is None:
        raise UsageError("the rate of requests changes, and the file does not list when they came")
    shape = run.burstiness or 1.0
    if np.isinf(shape):
        return np.arange(count) / run.rate_per_s
    gaps = random.gamma(shape, 1 / (shape * run.rate_per_s), count)
    return np.asarray(np.cumsum(gaps) - gaps[0], dtype=float)


def _drawn(mean: float, cv: float | None, count: int, random: np.random.Generator) -> Ints:
    """Return lengths of a mean and a spread: even about the mean, or with a long tail."""
    mean = max(mean, 1.0)
    half = sqrt(3) * (cv or 0.0) * mean
    if (cv or 0.0) < _ALIKE or half < 1:
        return Lengths(mean=mean).draw(count, random)
    if half < mean:
        low, high = max(round(mean - half), 1), max(round(mean + half), 1)
        return Lengths(kind="uniform", mean=(low + high) / 2, low=low, high=high).draw(
            count, random
        )
    return Lengths(kind="lognormal", mean=mean, cv=cv).draw(count, random)


def named(runs: Sequence[ServingResult]) -> list[str]:
    """Return a few words for each run: its load, and its number where several have the same."""
    words = [load_in_words(run) for run in runs]
    return [
        f"{text} ({words[: place + 1].count(text)})" if words.count(text) > 1 else text
        for place, text in enumerate(words)
    ]


def load_in_words(run: ServingResult) -> str:
    """Return how requests came, in a few words."""
    at_most = f", at most {run.concurrency}" if run.concurrency else ""
    if run.ramped:
        return f"a changing rate{at_most}"
    if run.rate_per_s is not None:
        return f"{run.rate_per_s:g} requests/s{at_most}"
    if run.concurrency:
        return f"{'about ' * run.inferred}{run.concurrency} in flight"
    return "all at once"

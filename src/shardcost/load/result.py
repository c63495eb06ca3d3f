"""The result: `Load`, latencies and throughput of requests at a deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final

import numpy as np

from shardcost.display import Displayed
from shardcost.load.deployment import Deployment
from shardcost.load.requests import Floats, Ints, Requests
from shardcost.machine import machine_of
from shardcost.records import NamedTuple, dataclass
from shardcost.units import format_time, format_tokens

PERCENTILES: Final = (50, 90, 99)
TTFT_PARTS: Final = ("front end", "queue", "prefill", "KV transfer")
"""Until a request is at its worker; until the first step with its prompt begins; until its steps
end, with what decodes in them; until its KV cache is where it is decoded."""


class Distribution(NamedTuple):
    """Of one figure over requests, in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Floats, weights: Floats | None = None) -> Distribution:
        """Return that of values, each of which counts `weights` times; NaN where there are none."""
        if not len(values):
            return cls(*(float("nan"),) * 4)
        if weights is None:
            return cls(float(values.mean()), *map(float, np.percentile(values, PERCENTILES)))
        order = np.argsort(values)
        reached = np.cumsum(weights[order])
        places = np.searchsorted(reached, np.array(PERCENTILES) / 100 * reached[-1])
        found = values[order][np.minimum(places, len(values) - 1)]
        return cls(float(np.average(values, weights=weights)), *map(float, found))


@dataclass(frozen=True)
class Limits:
    """What latency a request may have; those within are good. None: any."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    percentile: int = 90
    """Of the requests, how many in a hundred must keep the limits for a load to be held."""


_NO_LIMITS: Final = Limits()


class Moment(NamedTuple):
    """One or more steps of a worker that are alike."""

    start_s: float
    end_s: float
    worker: int
    steps: int
    sequences: int
    """That decode in each step."""
    prompt_tokens: int
    """Prefilled in each step."""
    waiting: int
    """Requests that are not admitted yet."""
    kv_share: float
    """Of the blocks of the KV cache that are in use."""


@dataclass(frozen=True, eq=False, repr=False)
class Load(Displayed):
    """A deployment under load, request by request."""

    deployment: Deployment
    requests: Requests
    arrival_s: Floats
    """Of each request that was served to its end, by the order of arrival."""
    first_token_s: Floats
    finished_s: Floats
    output_tokens: Ints
    served: Ints
    """Which requests of the stream those are."""
    ttft_parts_s: Mapping[str, float]
    """What the mean time to first token is made of, by `TTFT_PARTS`; they add up to it."""
    rejected: int
    """Requests that no worker can ever hold."""
    preemptions: int
    gaps_s: Floats
    """Time between tokens, a histogram: the gaps …"""
    gap_counts: Floats
    """… and how often each came."""
    kv_peak_share: float
    busy_share: dict[str, float]
    """Share of the time in which workers computed, by pool."""
    waits_s: dict[str, float]
    """Seconds that requests waited, by what for: KV room, sequences, tokens of a step."""
    mean_running: float
    mean_waiting: float
    moments: Sequence[Moment] = ()
    """The steps, those alike together; thinned where there are many."""
    limits: Limits = _NO_LIMITS
    """What its latencies are held against where it is shown."""

    def __repr__(self) -> str:
        """Return what was served how fast, in two lines."""
        engine = self.deployment.serving.engine
        gpus = f"{self.deployment.gpus} x {machine_of(engine.cluster).cluster.name}"
        place = f"{engine.model.name} on {gpus}, {engine.software.name}"
        served = f"{len(self.served):,} requests at {self.requests_per_s:.3g}/s"
        each = f"{format_tokens(self.tokens_per_s_per_gpu)} tokens/s/GPU"
        times = ", ".join(
            f"{name} {format_time(latency.p50)} (p99 {format_time(latency.p99)})"
            for name, latency in (("TTFT", self.ttft_s), ("TPOT", self.tpot_s))
            if isfinite(latency.mean)
        )
        return f"Load: {place}, {served}, {each}:\n  {times or 'nothing served'}"

    @property
    def ttft_s(self) -> Distribution:
        """From arrival to first token."""
        return Distribution.of(self.first_token_s - self.arrival_s)

    @property
    def tpot_each_s(self) -> Floats:
        """Time per output token after the first, of each request that has more than one."""
        many = self.output_tokens > 1
        spans = (self.finished_s - self.first_token_s)[many]
        return np.asarray(spans / (self.output_tokens[many] - 1), dtype=float)

    @property
    def tpot_s(self) -> Distribution:
        """Time per output token after the first, over requests."""
        return Distribution.of(self.tpot_each_s)

    @property
    def itl_s(self) -> Distribution:
        """Between two tokens of a request, over tokens."""
        return Distribution.of(self.gaps_s, self.gap_counts)

    @property
    def e2e_s(self) -> Distribution:
        """From arrival to last token."""
        return Distribution.of(self.finished_s - self.arrival_s)

    @property
    def span_s(self) -> float:
        """From the first arrival to the last token."""
        return float(self.finished_s.max() - self.arrival_s.min()) if len(self.served) else 0.0

    @property
    def requests_per_s(self) -> float:
        """Served, over the whole span."""
        return len(self.served) / self.span_s if self.span_s else 0.0

    @property
    def output_tokens_per_s(self) -> float:
        """Of all GPUs."""
        return float(self.output_tokens.sum()) / self.span_s if self.span_s else 0.0

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Output tokens."""
        return self.output_tokens_per_s / self.deployment.gpus

    def good(self, limits: Limits) -> float:
        """Return the share of the requests that keep all limits; rejected ones do not."""
        total = len(self.served) + self.rejected
        kept = np.ones(len(self.served), dtype=bool)
        if limits.ttft_s is not None:
            kept &= self.first_token_s - self.arrival_s <= limits.ttft_s
        if limits.e2e_s is not None:
            kept &= self.finished_s - self.arrival_s <= limits.e2e_s
        if limits.tpot_s is not None:
            many = np.maximum(self.output_tokens - 1, 1)
            kept &= (self.finished_s - self.first_token_s) / many <= limits.tpot_s
        return float(kept.sum() / total) if total else 0.0

    def goodput_requests_per_s(self, limits: Limits) -> float:
        """Return how many requests within the limits were served in a second."""
        total = len(self.served) + self.rejected
        return self.good(limits) * total / self.span_s if self.span_s else 0.0

    @property
    def limit(self) -> str:
        """What holds requests up most: what they waited for, or arrivals where they did not."""
        if not self.waits_s or max(self.waits_s.values()) <= 0.0:
            return "arrivals"
        return max(self.waits_s, key=lambda name: self.waits_s[name])

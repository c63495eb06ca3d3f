"""How many of a deployment's workers prefill and how many decode: splits of the same GPUs.

Disaggregated pools are out of balance where one of them waits for the other: goodput per GPU is
highest where both reach their limit at the same rate (Zhong et al. 2024, DistServe,
arXiv:2401.09670). Each split is a deployment by itself, whose highest rate within the limits is
found by `sweep`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardcost.errors import BadValueError, UsageError
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.requests import Requests
from shardcost.load.result import Limits
from shardcost.load.steady import capacity
from shardcost.load.sweep import FIGURES, sweep
from shardcost.machine import machine_of

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Split:
    """One division of the GPUs, and the highest rate that it holds."""

    deployment: Deployment
    gpus: int
    """That are divided, with those that no worker of this split uses."""
    requests_per_s: float
    """The highest rate that is held; 0 where none is."""
    limit: str
    """What bounds it: TTFT, TPOT, E2E, or what requests wait for."""

    @property
    def prefill_workers(self) -> int:
        """Workers that prefill only; 0 where every worker does both."""
        return 0 if self.deployment.prefill is None else self.deployment.prefill.workers

    @property
    def workers(self) -> int:
        """Workers that decode, or do both."""
        return self.deployment.serving.workers

    @property
    def requests_per_s_per_gpu(self) -> float:
        """Of all GPUs, used or not."""
        return self.requests_per_s / self.gpus


@dataclass(frozen=True, eq=False)
class Ratio:
    """The splits of a number of GPUs, by the workers that prefill."""

    gpus: int
    limits: Limits
    splits: Sequence[Split]

    @property
    def best(self) -> Split:
        """The split that holds most; of equals, that with the fewest prefill workers."""
        return max(self.splits, key=lambda split: split.requests_per_s)


def splits_of(prefill: Pool, decode: Pool, gpus: int, most: int | None = None) -> list[Deployment]:
    """Return the deployments that divide GPUs between two kinds of workers.

    The first has no prefill workers: all GPUs go to workers of the decode pool's layout, which do
    both. Every other has at least one worker of each kind, and as many that decode as fit.

    Args:
        prefill: A pool of the workers that prefill.
        decode: A pool of the workers that decode.
        gpus: To be divided.
        most: Splits with prefill workers that are returned at most: evenly spread, the first and
            the last among them, and the one with the prefill workers that are given.
    """
    first, second = int(prefill.engine.layout.devices), int(decode.engine.layout.devices)
    if gpus < first + second:
        raise BadValueError(
            "gpus", gpus, f"at least the {first + second} of one worker of each kind"
        )
    counts = range(1, (gpus - second) // first + 1)
    together = [Deployment(Pool(decode.engine, gpus // second))]
    return together + [
        Deployment(
            serving=Pool(decode.engine, (gpus - count * first) // second),
            prefill=Pool(prefill.engine, count),
        )
        for count in _spread(counts, most, prefill.workers)
    ]


def _spread(counts: range, most: int | None, own: int) -> list[int]:
    """Return at most so many of the counts, evenly spread, `own` among them where it is one."""
    if most is None or len(counts) <= most:
        return list(counts)
    step = (len(counts) - 1) / max(most - 1, 1)
    chosen = sorted({counts[round(place * step)] for place in range(most)})
    if own in counts and own not in chosen:
        inner = chosen[1:-1] or chosen
        chosen.remove(min(inner, key=lambda count: abs(count - own)))
        chosen = sorted([*chosen, own])
    return chosen


def best_ratio(
    prefill: Pool,
    decode: Pool,
    gpus: int,
    requests: Requests,
    *,
    limits: Limits | None = None,
    count: int | None = None,
    most: int | None = None,
    progress: Progress | None = None,
) -> Ratio:
    """Return what every split of the GPUs between two kinds of workers holds.

    Args:
        prefill: A pool of the workers that prefill.
        decode: A pool of the workers that decode.
        gpus: To be divided.
        requests: Those of each load; their rate varies.
        limits: Of latency; if None, a rate is held where the deployment keeps up.
        count: Requests at each rate; if None, as many as show it.
        most: Splits with prefill workers that are tried at most.
        progress: Called with the splits that were tried, and all.
    """
    machines = [machine_of(pool.engine.cluster).cluster for pool in (prefill, decode)]
    if machines[0].device != machines[1].device:
        names = " and ".join(cluster.name for cluster in machines)
        raise UsageError(f"workers on {names} have no GPUs that could be divided otherwise")
    limits = limits or Limits()
    deployments = splits_of(prefill, decode, gpus, most)
    splits = []
    for done, deployment in enumerate(deployments, 1):
        splits.append(Split(deployment, gpus, *_highest(deployment, requests, limits, count)))
        if progress is not None:
            progress(done, len(deployments))
    return Ratio(gpus, limits, splits)


def _highest(
    deployment: Deployment, requests: Requests, limits: Limits, count: int | None
) -> tuple[float, str]:
    """Return the highest rate that a deployment holds, and what bounds it.

    By the closed form where lengths are distributions; a trace is simulated.
    """
    if requests.prompt is not None and requests.output is not None:
        held = capacity(
            deployment,
            prompt=requests.prompt,
            output=requests.output,
            limits=limits,
            prefix_tokens=requests.prefix_tokens,
        )
        return float(held.requests_per_s), held.limit
    found = sweep(deployment, requests, limits=limits, count=count)
    rate = 0.0 if found.knee is None else found.knee.value
    if found.broken is None:
        return rate, "arrivals"
    first = found.broken.broken[0]
    return rate, first.upper() if first in FIGURES else found.broken.load.limit

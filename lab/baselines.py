"""What simpler models make of the same measured curves, to see what ours is worth.

* *plain ring*: the bytes of a ring over the datasheet's rate; nothing is fitted.
* *ring, best rate*: the same with the one rate per curve that suits it best.
* *alpha-beta line*: a latency and a rate per curve, fitted to that very curve.
* *NCCL's tuner*: NCCL's own estimate; nothing is fitted.

The middle two know the curve that they are tried on, so theirs are errors in sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardcost.calibrate.fit import Curve, fit_robustly
from shardcost.collectives.group import Group, bus_factor, nominal_rate
from shardcost.collectives.library_time import collective_time
from shardcost.collectives.tuner import COLLECTIVES as TUNED
from shardcost.machine.libraries import CATALOG_LIBRARIES, ENGINES, TUNER, default_library
from shardcost.validate.validation import Stats, stats

Floats = NDArray[np.float64]


def plain_ring(curve: Curve) -> Floats:
    """Return the time of a ring at the nominal rate, without latency."""
    case = curve.case
    group = Group.on(curve.cluster, case.gpus, case.nodes)
    rate = nominal_rate(case.collective, group)
    time: Floats = curve.size_bytes * bus_factor(case.collective, case.gpus) / rate
    return time


def best_rate(curve: Curve) -> Floats:
    """Return the time at the one rate that makes the median error of a curve least."""
    candidates = np.unique(curve.size_bytes / curve.time_s)
    predicted = curve.size_bytes / candidates[:, None]
    errors = np.median(np.abs(predicted / curve.time_s - 1), axis=1)
    best: Floats = predicted[int(np.argmin(errors))]
    return best


def alpha_beta(curve: Curve) -> Floats:
    """Return the time on the line, latency plus size over rate, that fits a curve best."""
    measured = np.log(curve.time_s)

    def line(logs: Floats) -> Floats:
        latency, rate = np.exp(logs)
        time: Floats = latency + curve.size_bytes / rate
        return time

    largest = int(np.argmax(curve.size_bytes))
    begin = np.log([curve.time_s.min(), curve.size_bytes[largest] / curve.time_s[largest]])
    minimum = fit_robustly(
        begin,
        (begin - 60, begin + 60),
        lambda logs: np.log(line(logs)) - measured,
        lambda _: np.empty(0),
        outliers=(1.0,),
        evaluations=200,
    )
    return line(minimum.at)


def tuner(curve: Curve) -> Floats | None:
    """Return NCCL's own estimate, for the collectives that its tables cover."""
    case = curve.case
    if case.collective not in TUNED or curve.cluster.device.vendor != "nvidia":
        return None
    result = collective_time(
        case.collective,
        curve.size_bytes,
        curve.cluster,
        case.gpus,
        case.nodes,
        library=TUNER,
    )
    return np.broadcast_to(result.time_s, curve.size_bytes.shape)


def ours(curve: Curve) -> Floats:
    """Return what shardcost predicts."""
    return curve.case.time_s(curve.size_bytes)


MODELS: Final[Mapping[str, Callable[[Curve], Floats | None]]] = {
    "shardcost": ours,
    "plain ring": plain_ring,
    "ring, best rate": best_rate,
    "alpha-beta line": alpha_beta,
    "NCCL's tuner": tuner,
}


def is_predicted(curve: Curve) -> bool:
    """Return whether the catalog has constants for the library of a curve."""
    cluster, library = curve.cluster, curve.case.library.partition("==")[0]
    return library in CATALOG_LIBRARIES.names(cluster) and default_library(
        cluster
    ) in CATALOG_LIBRARIES.names(cluster)


def kind_of(curve: Curve) -> str:
    """Return which rows a curve is compared among: of a system, of an engine, or across nodes."""
    case = curve.case
    if case.network or case.nodes > 1:
        return "across nodes or racks"
    library = case.library.partition("==")[0]
    return f"{library}, all systems" if library in ENGINES else f"{library}, {case.cluster}"


def model_stats(name: str, members: Iterable[Curve]) -> Stats:
    """Return the errors of one model on some curves; of no rows where it says nothing."""
    errors = [
        100 * (predicted / curve.time_s - 1)
        for curve in members
        if (predicted := MODELS[name](curve)) is not None
    ]
    return stats(np.concatenate(errors)) if errors else Stats(0)


def repeats(known: Sequence[Curve]) -> Stats:
    """Return how far measurements of one thing are from the middle one of them."""
    apart = [np.zeros(0)]
    for curve in known:
        for size in np.unique(curve.size_bytes):
            times = curve.time_s[curve.size_bytes == size]
            if len(times) > 1:
                apart.append(100 * (times / np.median(times) - 1))
    return stats(np.concatenate(apart))

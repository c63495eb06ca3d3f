"""How sure fitted constants are, and which further measurement would tell most.

The curvature of a fit says how far each constant could move before the points object; the
covariance of the constants follows from it, and from that the variance of any prediction. The
measurement to make next is the one whose answer is expected to shrink the variance of all
predictions most (Chaloner and Verdinelli, Bayesian Experimental Design: A Review, 1995).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.calibrate.fit import Curve, Floats, Hold, Solution
from shardcost.catalog import tuner_table
from shardcost.machine.constants import stated
from shardcost.machine.libraries import ENGINES
from shardcost.validate.collectives import CollectiveCase

_NINETY: Final = NormalDist().inv_cdf(0.95)
"""Standard deviations either side that hold 90 % of a normal distribution."""
_FARTHEST: Final = 20.0
"""In logarithms: beyond this a range says nothing more."""
_STEP: Final = 1e-4
_SIZES: Final = tuple(4**power for power in range(5, 16))
"""From 1 KiB to 1 GiB, among which a further measurement is looked for."""
_KNOWN_IF: Final = 0.5
"""A constant whose range shrank below this share of the family's is called measured."""


def assumed_error() -> float:
    """Return the error of one measurement, in logarithms."""
    return float(tuner_table("start")["hold"]["error"])


class Confidence(NamedTuple):
    """How sure a constant is."""

    name: str
    value: float
    """In base units."""
    plus_minus_pct: float
    """Nine times in ten it is within so many percent."""
    measured: bool
    """Whether the points settled it, rather than the family."""


class Further(NamedTuple):
    """A measurement not made yet, and what it would tell."""

    collective: str
    gpus: int
    size_bytes: int
    now_pct: float
    """Typical range of predictions on this system, without it …"""
    then_pct: float
    """… and with it: 90 %, either side."""


def covariance(solution: Solution, after_pct: Floats) -> Floats:
    """Return the covariance of the fitted constants' logarithms."""
    seen = 1.4826 * float(np.median(np.abs(after_pct))) / 100
    inverse = np.asarray(np.linalg.inv(solution.curvature), dtype=np.float64)
    return inverse * max(assumed_error(), seen) ** 2


def confidence(hold: Hold, solution: Solution, uncertainty: Floats) -> tuple[Confidence, ...]:
    """Return how sure each fitted constant is."""
    error, values = assumed_error(), stated(solution.constants)

    def before(name: str) -> float:
        """Return the deviation of a constant before any point is known."""
        weights = [hold.own[name]]
        if hold.kinds.get(name) in hold.together:
            weights.append(hold.together[hold.kinds[name]])
        return float(np.sqrt(sum((error / weight) ** 2 for weight in weights)))

    deviations = np.sqrt(np.maximum(0.0, np.diag(uncertainty)))
    return tuple(
        Confidence(name, values[name], _pct(own), bool(own < _KNOWN_IF * before(name)))
        for name, own in zip(solution.names, deviations, strict=True)
    )


def _pct(deviation: float) -> float:
    """Return within how many percent nine in ten values of such a deviation, in logarithms, lie."""
    return 100 * float(np.expm1(min(_NINETY * deviation, _FARTHEST)))


def further(
    predict: Callable[[Curve, Any], Floats],
    known: Sequence[Curve],
    solution: Solution,
    uncertainty: Floats,
) -> Further | None:
    """Return the measurement that would shrink the variance of all predictions most."""
    cases = list(_candidates(known))
    if not cases:
        return None
    sizes = np.array(_SIZES, dtype=np.float64)
    slopes = np.concatenate([_slopes(predict, entry, sizes, solution) for entry in cases])
    shared = slopes @ uncertainty @ slopes.T
    variances = np.diag(shared)
    gains = (shared**2).sum(axis=0) / (variances + assumed_error() ** 2)
    best = int(np.argmax(gains))
    now, then = variances.mean(), max(0.0, variances.mean() - gains[best] / len(variances))
    case = cases[best // len(sizes)]
    return Further(
        case.collective,
        case.gpus,
        _SIZES[best % len(sizes)],
        _pct(np.sqrt(now)),
        _pct(np.sqrt(then)),
    )


def _candidates(known: Sequence[Curve]) -> Iterator[CollectiveCase]:
    """Yield what could be measured: the collectives at hand, on the GPU counts of the system."""
    first = known[0].case
    domain = known[0].cluster.tiers[-1].gpus
    across = bool(first.network) and first.nodes > 1
    counts = [first.gpus] if across else [2**i for i in range(1, 8) if 2**i <= domain]
    names = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    if first.library.partition("==")[0] in ENGINES:
        names = {"all_reduce"}
    for collective, gpus in product(sorted(names), counts):
        nodes = first.nodes if across else -(-gpus // int(known[0].cluster.gpus_per_node))
        case = first._replace(collective=collective, gpus=gpus, nodes=nodes, single_process=False)
        if case.has_a_place():
            yield case


def _slopes(
    predict: Callable[[Curve, Any], Floats], case: CollectiveCase, sizes: Floats, solution: Solution
) -> Floats:
    """Return how predictions follow each constant, in logarithms: one row a size."""
    curve = Curve(case, sizes, sizes, frozenset())
    values = stated(solution.constants)
    base = np.log(predict(curve, solution.constants))
    columns = []
    for name in solution.names:
        moved = replace(solution.constants, **{name: values[name] * float(np.exp(_STEP))})
        columns.append((np.log(predict(curve, moved)) - base) / _STEP)
    return np.stack(columns, axis=1)

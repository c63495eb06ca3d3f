"""How constants of software are fitted to whole runs.

A run's time is a long formula with maxima in it, so the search takes no derivatives: it goes up and
down along one constant after the other, by ever smaller factors. It has no chance in it, and ends
at the same constants each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log
from typing import Final, TypeVar

import numpy as np

from shardcost.validate.predictions import Floats

_LIMIT: Final = 0.5
"""Error, as a logarithm, beyond which a row counts no more: it measures something else."""
_STEPS: Final = (2.0, 1.5, 1.2, 1.07, 1.02)
_WORTHWHILE: Final = 1e-4
_DIGITS: Final = 3
_UNITS: Final = {"_us": 1e-6, "_ms": 1e-3}
Name = TypeVar("Name")


def loss(ratios: Floats) -> float:
    """Return the mean absolute logarithmic error, each counted up to a limit.

    >>> round(loss(np.array([1.0, np.exp(0.1), 100.0])), 6)
    0.2
    """
    return float(np.minimum(np.abs(np.log(ratios)), _LIMIT).mean())


def descend(
    lossy: Callable[[dict[Name, float]], float], start: Mapping[Name, float], pull: float = 0.0
) -> dict[Name, float]:
    """Return the constants of the least loss, rounded.

    >>> descend(lambda at: abs(at["x"] - 3), {"x": 1.0})["x"]
    3.0

    Args:
        lossy: Takes constants and returns their loss.
        start: Where to begin.
        pull: Loss for each factor of e away from the start, so that a constant of which the rows
            say nothing stays there.
    """

    def lost(trial: dict[Name, float]) -> float:
        away = sum(abs(log(value / start[name])) for name, value in trial.items())
        return lossy(trial) + pull * away

    best = dict(start)
    least = lost(best)
    for step in _STEPS:
        improved = True
        while improved:
            improved = False
            for name, value in list(best.items()):
                for factor in (step, 1 / step):
                    trial = {**best, name: value * factor}
                    result = lost(trial)
                    if result < least * (1 - _WORTHWHILE):
                        best, least, improved = trial, result, True
                        break
    return {name: float(f"{value:.{_DIGITS}g}") for name, value in best.items()}


def errors_pct(ratios: Floats) -> tuple[float, float]:
    """Return the median and the 90th percentile of absolute errors."""
    errors = 100 * np.abs(ratios - 1)
    return float(np.median(errors)), float(np.percentile(errors, 90))


def in_seconds(constants: Mapping[str, float]) -> dict[str, float]:
    """Return constants under the names and in the units of `Software`.

    >>> in_seconds({"slowdown": 2.0, "step_overhead_ms": 0.5})
    {'slowdown': 2.0, 'step_overhead_s': 0.0005}
    """
    return {
        name[:-3] + "_s" if name[-3:] in _UNITS else name: value * _UNITS.get(name[-3:], 1)
        for name, value in constants.items()
    }

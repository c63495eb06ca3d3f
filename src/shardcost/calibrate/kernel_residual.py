"""Solves for the residual of a kernel's formula over the sizes of the kernel.

The residual is the mean of a Gaussian process (`shardcost.machine.residual`). Its amplitude, the
error of a repetition and the length of correlation along each size are those under which each point
is best predicted by all others; one inverse gives the errors of all points left out one by one
(Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section 5.4.2).
"""

from __future__ import annotations

from itertools import product
from typing import Final, NamedTuple

import numpy as np

from shardcost.catalog import tuner_table
from shardcost.machine.residual import MOST_POINTS, Residual
from shardcost.validate.predictions import Floats

_ROUNDS: Final = 2
"""In which each length is changed by itself."""


class _Choice(NamedTuple):
    amplitude: float
    error: float
    scales: tuple[float, ...]


def fitted_residual(at: Floats, log_ratios: Floats) -> Residual | None:
    """Return the residual of some points; None where there are none to speak of.

    Args:
        at: Sizes of the points, a row each, in doublings.
        log_ratios: The natural logarithm of measured over predicted, of each point.
    """
    at, log_ratios = _once(at, log_ratios)
    if not len(log_ratios) or not np.any(log_ratios):
        return None
    rules = tuner_table("kernels")["residual"]
    apart = np.abs(at[:, None, :] - at[None, :, :])
    choices = (
        _Choice(amplitude, error, (reach,) * at.shape[1])
        for amplitude, error, reach in product(
            rules["amplitudes"], rules["errors"], rules["reaches"]
        )
    )
    least, best = min((_left_out(apart, log_ratios, choice), choice) for choice in choices)
    for place in [*range(at.shape[1])] * _ROUNDS:
        scales = (
            (*best.scales[:place], reach, *best.scales[place + 1 :]) for reach in rules["reaches"]
        )
        others = [best._replace(scales=each) for each in scales]
        least, best = min((least, best), *((_left_out(apart, log_ratios, o), o) for o in others))
    weights = best.amplitude**2 * np.linalg.solve(_covariance(apart, best), log_ratios)
    return Residual(
        points=tuple(tuple(round(float(x), 4) for x in point) for point in at),
        weights=tuple(float(f"{weight:.5g}") for weight in weights),
        scales=best.scales,
    )


def _once(at: Floats, log_ratios: Floats) -> tuple[Floats, Floats]:
    """Return points none of which is twice: repetitions are one, their median."""
    points, where = np.unique(np.round(at, 4), axis=0, return_inverse=True)
    where = where.reshape(-1)
    points = points[:MOST_POINTS]
    middle = [np.median(log_ratios[where == place]) for place in range(len(points))]
    return points, np.array(middle)


def _covariance(apart: Floats, choice: _Choice) -> Floats:
    """Return the covariance of points, from how far apart they are along each size."""
    correlation = np.exp(-(apart @ (1 / np.array(choice.scales))))
    found: Floats = choice.amplitude**2 * correlation + choice.error**2 * np.eye(len(apart))
    return found


def _left_out(apart: Floats, log_ratios: Floats, choice: _Choice) -> float:
    """Return how far off points are that are left out one by one; outliers count little."""
    inverse = np.linalg.inv(_covariance(apart, choice))
    errors = (inverse @ log_ratios) / np.diag(inverse)
    return float(np.mean(np.sqrt(np.abs(errors))) ** 2)

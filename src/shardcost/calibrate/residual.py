"""Solves for the residual of a formula, and chooses how far it reaches by points left out.

What is left between measurements and a fitted formula is taken as a Gaussian process
(`shardcost.machine.residual`). Its amplitude and length scales are those of a few
(``catalog/tuner/start.toml``) under which points left out are predicted best, one at a time and
group by group. The error of a point left out follows from one inverse, without solving again
(Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section 5.4.2). A point that
the others contradict (a benchmark's spike) gets the variance that it shows, so that it does not
bend its neighbours. Kernels (``catalog/tuner/kernels.toml``) have more sizes and no groups: each
size has a length of its own, and the error of a repetition is chosen too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcost.catalog import tuner_table
from shardcost.machine.residual import MOST_POINTS, Residual

Floats = NDArray[np.float64]
_ROUNDS: Final = 3
"""In which points are found to be outliers."""
_LENGTH_ROUNDS: Final = 2
"""In which the length of each size of a kernel is changed by itself."""


class Points(NamedTuple):
    """Measured points of one table: coordinates in logarithms, a row each, and log ratios."""

    at: Floats
    log_ratios: Floats
    """Of measured over predicted."""
    paths: tuple[str, ...] = ()
    """What ran at each point; left out: not told apart."""

    def with_more(self, other: Points) -> Points:
        """Return these points and others."""
        return Points(
            np.concatenate([self.at, other.at]),
            np.concatenate([self.log_ratios, other.log_ratios]),
            self.paths + other.paths,
        )


class _Choice(NamedTuple):
    """Of a process: its amplitude, its length scales, and the error of a repetition."""

    amplitude: float
    scales: tuple[float, ...]
    error: float = 0.0


class Process(NamedTuple):
    """What `fit_residuals` decided of several tables of one kind."""

    tables: list[Points]
    """Their points, thinned."""
    choice: _Choice

    def residuals(self, held_at: Sequence[Points] | None = None) -> list[Residual]:
        """Return the residual of each table.

        Args:
            held_at: Further points of each table, which the residual is made to pass through.
        """
        every = _stacked(self.tables)
        noise = self._parts(_noise(every.covariance(self.choice), every.log_ratios), self.tables)
        tables = self.tables
        if held_at is not None:
            usual = tuner_table("start")["residual"]["error"] ** 2
            pairs = list(zip(noise, held_at, strict=True))
            noise = [np.append(own, np.full(len(more.at), usual)) for own, more in pairs]
            tables = [one.with_more(other) for one, other in zip(tables, held_at, strict=True)]
            every = _stacked(tables)
        covariance = every.covariance(self.choice) + np.diag(np.concatenate(noise))
        weights = self.choice.amplitude**2 * np.linalg.solve(covariance, every.log_ratios)
        parts = self._parts(weights, tables)
        return [
            _residual(table.at, own.tolist(), self.choice.scales)
            for table, own in zip(tables, parts, strict=True)
        ]

    @staticmethod
    def _parts(values: NDArray[Any], tables: Sequence[Points]) -> list[Floats]:
        """Return what belongs to each table of values of all points."""
        return np.split(values, np.cumsum([len(table.at) for table in tables])[:-1])


def fit_residuals(tables: Sequence[Points]) -> Process | None:
    """Return what the residuals of several tables of one kind are, which share amplitude and reach.

    None where the formula alone predicts points left out as well. What one table leaves says
    something of the others too, and what one path leaves of another.

    Args:
        tables: Coordinates in doublings: first the size, over which residuals are smooth, then what
            groups points (ranks, nodes).
    """
    thinned = [_thinned(table) for table in tables]
    if not thinned:
        return None
    rules, every = tuner_table("start")["residual"], _stacked(thinned)
    alone = score(every.log_ratios)
    best, least = None, alone
    for choice in _choices(every.at.shape[1]):
        left = score(np.concatenate(list(_left_out(every, choice))))
        if left < least:
            best, least = choice, left
    if best is None or least > (1 - rules["gain"]) * alone:
        return None
    return Process(thinned, best)


class _Stacked(NamedTuple):
    """The points of all tables of one kind."""

    at: Floats
    log_ratios: Floats
    likeness: Floats
    """Correlation of each two in what is no coordinate: the path that ran, the table."""

    def covariance(self, choice: _Choice) -> Floats:
        """Return the covariance of each two."""
        return _covariance(self.at, choice) * self.likeness


def _stacked(tables: Sequence[Points]) -> _Stacked:
    rules = tuner_table("start")["residual"]
    of = np.repeat(np.arange(len(tables)), [len(table.at) for table in tables])
    likeness = np.where(of[:, None] == of[None, :], 1.0, rules["other_collective"])
    paths = np.array([path for table in tables for path in table.paths])
    if len(paths):
        likeness = likeness * np.where(paths[:, None] == paths[None, :], 1.0, rules["other_path"])
    at, log_ratios = (np.concatenate([table[i] for table in tables]) for i in (0, 1))
    return _Stacked(at, log_ratios, likeness)


def score(errors: Floats) -> float:
    """Return how far off errors are, in logarithms: outliers count little."""
    return float(np.mean(np.sqrt(np.abs(errors))) ** 2) if len(errors) else 0.0


def _choices(coordinates: int) -> Iterator[_Choice]:
    rules = tuner_table("start")["residual"]
    reach = [rules["reach_ranks"] if coordinates > 1 else [rules["reach_ranks"][0]]]
    for amplitude, size, ranks in product(rules["amplitudes"], rules["reach_sizes"], *reach):
        yield _Choice(amplitude, (size, *[ranks] * (coordinates - 1)))


def _left_out(table: _Stacked, choice: _Choice) -> Iterator[Floats]:
    """Yield the errors of points left out one by one, then of groups left out whole."""
    covariance = table.covariance(choice)
    noise = _noise(covariance, table.log_ratios)
    inverse = np.linalg.inv(covariance + np.diag(noise))
    yield (inverse @ table.log_ratios) / np.diag(inverse)
    _, group = np.unique(table.at[:, 1:], axis=0, return_inverse=True)
    group = group.reshape(-1)
    for each in range(group.max() + 1) if group.max() > 0 else ():
        out = group == each
        # The block of the inverse that belongs to what is left out gives its error, all at once.
        block = inverse[np.ix_(out, out)]
        yield np.linalg.solve(block, (inverse @ table.log_ratios)[out])


def fit_kernel_residual(table: Points) -> Residual | None:
    """Return the residual of a kernel's formula over its sizes; None where nothing is left."""
    at, log_ratios = (each[:MOST_POINTS] for each in _merged(table, table.at)[:2])
    if not np.any(log_ratios):
        return None
    rules = tuner_table("kernels")["residual"]
    apart = np.abs(at[:, None, :] - at[None, :, :])

    def covariance(choice: _Choice) -> Floats:
        return _covariance_of(apart, choice) + choice.error**2 * np.eye(len(at))

    def left_out(choice: _Choice) -> tuple[float, _Choice]:
        inverse = np.linalg.inv(covariance(choice))
        return score((inverse @ log_ratios) / np.diag(inverse)), choice

    uniform = product(rules["amplitudes"], rules["reaches"], rules["errors"])
    best = min(
        left_out(_Choice(amplitude, (reach,) * at.shape[1], error))
        for amplitude, reach, error in uniform
    )
    for place in [*range(at.shape[1])] * _LENGTH_ROUNDS:
        choice = best[1]
        for reach in rules["reaches"]:
            scales = (*choice.scales[:place], reach, *choice.scales[place + 1 :])
            best = min(best, left_out(choice._replace(scales=scales)))
    choice = best[1]
    weights = choice.amplitude**2 * np.linalg.solve(covariance(choice), log_ratios)
    return _residual(at, weights.tolist(), choice.scales)


def _residual(at: Floats, weights: Sequence[float], scales: tuple[float, ...]) -> Residual:
    return Residual(
        points=tuple(tuple(round(float(x), 4) for x in row) for row in at),
        weights=tuple(float(f"{weight:.5g}") for weight in weights),
        scales=scales,
    )


def _covariance(at: Floats, choice: _Choice) -> Floats:
    return _covariance_of(np.abs(at[:, None, :] - at[None, :, :]), choice)


def _covariance_of(apart: Floats, choice: _Choice) -> Floats:
    """Return the covariance of points, from how far apart they are along each coordinate."""
    result: Floats = choice.amplitude**2 * np.exp(-(apart @ (1 / np.array(choice.scales))))
    return result


def _noise(covariance: Floats, log_ratios: Floats) -> Floats:
    """Return the variance of each measurement: larger where the others contradict it."""
    rules: dict[str, Any] = tuner_table("start")["residual"]
    usual, beyond = rules["error"] ** 2, rules["outlier"] ** 2
    noise = np.full(len(log_ratios), usual)
    for _ in range(_ROUNDS):
        inverse = np.linalg.inv(covariance + np.diag(noise))
        variances = 1 / np.diag(inverse)
        errors = (inverse @ log_ratios) * variances
        noise = usual + np.maximum(0.0, errors**2 - beyond * (variances - noise + usual))
    return noise


def _thinned(table: Points) -> Points:
    """Return a table of no more points than are kept: those close together are one, their median.

    Repeated measurements are of no distance, so they are one in any case.
    """
    most = tuner_table("start")["residual"]["most_points"]
    widest = np.ptp(table.at[:, 0]) + 1 if len(table.at) else 0.0
    step, merged = 0.0, _merged(table, table.at)
    while len(merged.at) > most and step <= widest:
        step = 2 * step or 0.25
        keys = table.at.copy()
        keys[:, 0] = np.round(keys[:, 0] / step)
        merged = _merged(table, keys)
    return Points(merged.at[:most], merged.log_ratios[:most], merged.paths[:most])


def _merged(table: Points, keys: Floats) -> Points:
    """Return a table in which points of one key are one: their middle, and their median ratio."""
    _, where = np.unique(np.round(keys, 4), axis=0, return_inverse=True)
    groups = [where.reshape(-1) == each for each in range(int(where.max(initial=-1)) + 1)]
    middle = np.array([table.at[group].mean(axis=0) for group in groups])
    ratios = np.array([np.median(table.log_ratios[group]) for group in groups])
    paths = tuple(table.paths[int(np.argmax(group))] for group in groups if table.paths)
    return Points(middle.reshape(-1, table.at.shape[1]), ratios, paths)

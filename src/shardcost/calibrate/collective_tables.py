"""Tables of residuals of measured collectives: what a formula leaves, by library and collective.

A table follows measurements, but not where they contradict what is known: measured times are made
monotone in the size first (a larger message is not faster), and a table that would still add a dip
is held below its smallest size, then weakened, then left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Final, TypeAlias

import numpy as np

from shardcost.calibrate.fit import Curve, Floats
from shardcost.calibrate.residual import Points, fit_residuals, interpolating
from shardcost.catalog import tuner_table
from shardcost.machine.libraries import name_and_version
from shardcost.machine.residual import MOST_POINTS, CollectiveTable, Residual

Predict: TypeAlias = Callable[[Curve], Floats]
"""The times of a curve by the formula alone."""
_PER_DOUBLING: Final = 4
_BEYOND: Final = 4
"""Doublings beyond the smallest and the largest size in which dips are looked for."""
_WEAKER: Final = (1.0, 0.7, 0.4)
_LEAST_SHARE: Final = 0.3
"""Of the formula's time: less is left of no measurement, once launches are taken off."""


def collective_tables(known: Sequence[Curve], predict: Predict) -> tuple[CollectiveTable, ...]:
    """Return the tables that measured curves give; none where they would not help.

    Args:
        known: Measured curves. Those on which an algorithm was forced are passed over.
        predict: The formula with the constants that were fitted.
    """
    groups: dict[tuple[str, str, str], list[Curve]] = {}
    for curve in known:
        case = curve.case
        if case.algorithm is None and case.protocol is None and case.concurrent_groups == 1:
            library = name_and_version(case.library)[0]
            groups.setdefault((case.collective, library, case.mode), []).append(curve)
    modes = sorted({mode for _, _, mode in groups})
    results = []
    for mode in modes:  # what launches leave is another function than what kernels leave
        own = {key: curves for key, curves in groups.items() if key[2] == mode}
        points = {key: _points(curves, predict) for key, curves in own.items()}
        points = {key: each for key, each in points.items() if len(each.log_ratios)}
        if sum(len(each.log_ratios) for each in points.values()) < _rule("least_points"):
            continue
        residuals = fit_residuals(list(points.values()))
        for key, residual in zip(points, residuals, strict=True):
            if residual is not None:
                results += _without_dips(_table(key, residual), own[key], predict)
    return tuple(results)


def _rule(name: str) -> float:
    value: float = tuner_table("start")["residual"][name]
    return value


def _table(key: tuple[str, str, str], residual: Residual) -> CollectiveTable:
    collective, library, mode = key
    return CollectiveTable(collective=collective, library=library, mode=mode, residual=residual)


def _points(curves: Iterable[Curve], predict: Predict) -> Points:
    """Return where the points of one table lie, and what the formula leaves of each."""
    at, log_ratios = [], []
    for curve in curves:
        formula = predict(_launched_together(curve))
        measured = curve.time_s - (predict(curve) - formula)
        kept = measured > _LEAST_SHARE * formula
        sizes, ratios = np.log2(curve.size_bytes[kept]), -np.log(formula[kept])
        order = np.lexsort((measured[kept], sizes))
        ratios[order] += monotone(np.log(measured[kept])[order])
        group = [np.full(len(sizes), np.log2(n)) for n in (curve.case.gpus, curve.case.nodes)]
        at.append(np.stack([sizes, *group], axis=1))
        log_ratios.append(ratios)
    return Points(np.concatenate(at), np.concatenate(log_ratios))


def _launched_together(curve: Curve) -> Curve:
    """Return a curve as if a process drove each GPU: tables are of collectives, not of launches."""
    return replace(curve, case=curve.case._replace(single_process=False))


def monotone(values: Floats) -> Floats:
    """Return the nearest sequence that never falls, by medians of what is out of order.

    Pool adjacent violators (Ayer et al., An Empirical Distribution Function for Sampling with
    Incomplete Information, 1955), with medians, so that one spike does not lift what follows.

    >>> monotone(np.array([1.0, 9.0, 2.0, 3.0])).tolist()
    [1.0, 3.0, 3.0, 3.0]
    """
    pools: list[list[float]] = []
    for value in values.tolist():
        pools.append([value])
        while len(pools) > 1 and np.median(pools[-2]) > np.median(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    return np.array([float(np.median(pool)) for pool in pools for _ in pool])


def _without_dips(
    table: CollectiveTable, curves: Sequence[Curve], predict: Predict
) -> list[CollectiveTable]:
    """Return a table under which hardly any message is faster than a smaller one, if there is."""
    most = _rule("dip")
    grids = [_launched_together(_grid(curve)) for curve in curves]
    formulas = [predict(grid) for grid in grids]
    straight = _straightened(table, curves, predict)
    for share, residual in product(_WEAKER, (table.residual, straight)):
        weights = tuple(share * weight for weight in residual.weights)
        for held in (False, True):
            tried = replace(table, residual=replace(residual, weights=weights), held=held)
            if all(
                added_dip(tried, grid, formula) <= most
                for grid, formula in zip(grids, formulas, strict=True)
            ):
                return [tried]
    return []


def _straightened(table: CollectiveTable, curves: Sequence[Curve], predict: Predict) -> Residual:
    """Return a table's residual with the times that it gives made monotone, size by size."""
    at, log_factors, seen = [], [], set()
    for curve in curves:
        case = curve.case
        if (case.gpus, case.nodes) in seen:
            continue
        seen.add((case.gpus, case.nodes))
        sizes = np.log2(curve.size_bytes)
        sizes = np.arange(np.floor(sizes.min()), np.ceil(sizes.max()) + 1)
        bare = replace(curve, size_bytes=np.exp2(sizes), time_s=sizes)
        formula = np.maximum.accumulate(np.log(predict(_launched_together(bare))))
        factor = table.factor(bare.size_bytes, case.gpus, case.nodes)
        group = [np.full(len(sizes), np.log2(n)) for n in (case.gpus, case.nodes)]
        at.append(np.stack([sizes, *group], axis=1))
        log_factors.append(monotone(formula + np.log(factor)) - formula)
    points = Points(np.concatenate(at)[:MOST_POINTS], np.concatenate(log_factors)[:MOST_POINTS])
    return interpolating(points, table.residual.scales)


def _grid(curve: Curve) -> Curve:
    """Return a curve over the sizes of another and beyond, in fine steps."""
    first, last = np.log2(curve.size_bytes.min()), np.log2(curve.size_bytes.max())
    first, last = max(0.0, float(first) - _BEYOND), float(last) + _BEYOND
    sizes = np.exp2(np.linspace(first, last, int(_PER_DOUBLING * (last - first)) + 1))
    return replace(curve, size_bytes=sizes, time_s=sizes)


def added_dip(table: CollectiveTable, curve: Curve, formula_s: Floats) -> float:
    """Return by how much, in logarithms, a table makes larger messages faster than smaller ones.

    What the formula itself does so, where a library changes its algorithm, does not count.
    """
    log_time = np.log(formula_s)
    factor = table.factor(curve.size_bytes, curve.case.gpus, curve.case.nodes)

    def dip(logs: Floats) -> Floats:
        below: Floats = np.maximum.accumulate(logs) - logs
        return below

    return float(np.max(dip(log_time + np.log(factor)) - dip(log_time)))

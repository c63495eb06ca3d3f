"""Tables of residuals of measured collectives: what a formula leaves, by library and collective.

A table follows measurements, but not where they contradict what is known: measured times are made
monotone in the size first (a larger message is not faster), and a table that would still add a dip
is held below its smallest size, then weakened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from shardcost.calibrate.fit import Curve, Floats
from shardcost.calibrate.residual import Points, Process, fit_residuals
from shardcost.catalog import tuner_table
from shardcost.collectives.choice import Weights
from shardcost.collectives.library_time import CollectiveTime
from shardcost.machine.libraries import name_and_version
from shardcost.machine.residual import COORDINATES, MOST_POINTS, CollectiveTable, path_label
from shardcost.validate.collectives import times_s

Formula: TypeAlias = Callable[[Curve], CollectiveTime]
"""What the formula alone says of a curve."""
_PER_DOUBLING: Final = 4
_BEYOND: Final = 4
"""Doublings beyond the smallest and the largest size in which dips are looked for."""
_WEAKER: Final = (1.0, 0.7, 0.4)
_ROUNDS: Final = 3
"""In which a table is made to pass through points where it would add a dip."""
_STRAIGHT: Final = 0.3
"""Of the dip that a table may add, how far from monotone it may be at a point."""
_LEAST_SHARE: Final = 0.3
"""Of the formula's time: less is left of no measurement, once launches are taken off."""


class _Grid(NamedTuple):
    """A curve in fine steps of its size, as the formula alone has it."""

    curve: Curve
    time_s: Floats
    running: Weights


def collective_tables(known: Sequence[Curve], formula: Formula) -> tuple[CollectiveTable, ...]:
    """Return the tables that measured curves give; none where they would not help.

    Args:
        known: Measured curves. Those on which an algorithm was forced are passed over.
        formula: The formula with the constants that were fitted.
    """
    groups: dict[tuple[str, str, str], list[Curve]] = {}
    for curve in known:
        case = curve.case
        if case.algorithm is None and case.protocol is None and case.concurrent_groups == 1:
            library = name_and_version(case.library)[0]
            groups.setdefault((case.collective, library, case.mode), []).append(curve)
    results = []
    for kind in sorted({key[1:] for key in groups}):  # what launches leave is another function
        own = {key: curves for key, curves in groups.items() if key[1:] == kind}
        results += _tables(own, formula)
    return tuple(results)


def _tables(
    groups: dict[tuple[str, str, str], list[Curve]], formula: Formula
) -> list[CollectiveTable]:
    """Return the tables of one library in one mode, by collective."""
    points = {key: _points(curves, formula) for key, curves in groups.items()}
    points = {key: each for key, each in points.items() if len(each.log_ratios)}
    if sum(len(each.log_ratios) for each in points.values()) < _rule("least_points"):
        return []
    process = fit_residuals(list(points.values()))
    if process is None:
        return []
    grids = [[_grid(curve, formula) for curve in groups[key]] for key in points]
    more = [Points(np.empty((0, len(COORDINATES))), np.empty(0)) for _ in points]
    tables = _of_process(list(points), process, more)
    for _ in range(_ROUNDS):
        dips = [_straightened(table, tables, own) for table, own in zip(tables, grids, strict=True)]
        if not any(len(each.at) for each in dips):
            break
        more = [one.with_more(other) for one, other in zip(more, dips, strict=True)]
        if (
            max(
                len(one.at) + len(other.at) for one, other in zip(process.tables, more, strict=True)
            )
            > MOST_POINTS
        ):
            break
        tables = _of_process(list(points), process, more)
    return [_without_dips(table, tables, own) for table, own in zip(tables, grids, strict=True)]


def _of_process(
    keys: Sequence[tuple[str, str, str]], process: Process, more: Sequence[Points]
) -> list[CollectiveTable]:
    """Return the tables of a process that passes through further points."""
    return [
        CollectiveTable(
            collective=collective,
            library=library,
            mode=mode,
            residual=residual,
            paths=measured.paths + further.paths,
            other_path=_rule("other_path"),
            other_collective=_rule("other_collective"),
        )
        for (collective, library, mode), measured, further, residual in zip(
            keys, process.tables, more, process.residuals(more), strict=True
        )
    ]


def _straightened(
    table: CollectiveTable, every: Sequence[CollectiveTable], grids: Sequence[_Grid]
) -> Points:
    """Return points where a larger message would be faster, with the factor that makes it as slow.

    What the formula itself does so, where a library changes its algorithm, stays.
    """
    found = Points(np.empty((0, len(COORDINATES))), np.empty(0))
    seen = set()
    for grid in grids:
        case, sizes = grid.curve.case, grid.curve.size_bytes
        if (case.gpus, case.nodes) in seen:
            continue
        seen.add((case.gpus, case.nodes))
        factor = np.log(table.factor(sizes, case.gpus, case.nodes, grid.running, every))
        formula = np.maximum.accumulate(np.log(grid.time_s))
        straight = monotone(formula + factor) - formula
        off = np.flatnonzero(np.abs(straight - factor) > _STRAIGHT * _rule("dip"))[::2]
        group = [np.full(len(off), np.log2(n)) for n in (case.gpus, case.nodes)]
        shape = sizes.shape
        running = [np.broadcast_to(each, shape)[off] for each in grid.running.values()]
        labels = [path_label(path) for path in grid.running]
        paths = tuple(labels[each] for each in np.argmax(running, axis=0)) if len(off) else ()
        at = np.stack([np.log2(sizes[off]), *group], axis=1)
        found = found.with_more(Points(at, straight[off], paths))
    return found


def _rule(name: str) -> float:
    value: float = tuner_table("start")["residual"][name]
    return value


def _points(curves: Iterable[Curve], formula: Formula) -> Points:
    """Return where the points of one table lie, and what the formula leaves of each."""
    at, log_ratios, paths = [], [], []
    for curve in curves:
        result = formula(curve)
        time_s = times_s(result, single_process=False)
        launches_s = times_s(result, single_process=curve.case.single_process) - time_s
        measured = curve.time_s - launches_s
        kept = measured > _LEAST_SHARE * time_s
        sizes, ratios = np.log2(curve.size_bytes[kept]), -np.log(time_s[kept])
        order = np.lexsort((measured[kept], sizes))
        ratios[order] += monotone(np.log(measured[kept])[order])
        group = [np.full(len(sizes), np.log2(n)) for n in (curve.case.gpus, curve.case.nodes)]
        at.append(np.stack([sizes, *group], axis=1))
        log_ratios.append(ratios)
        labels = [path_label(path) for path in result.weights]
        choice = np.broadcast_to(result.choice, curve.size_bytes.shape)[kept]
        paths += [labels[each] for each in choice]
    return Points(np.concatenate(at), np.concatenate(log_ratios), tuple(paths))


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
    table: CollectiveTable, every: Sequence[CollectiveTable], grids: Sequence[_Grid]
) -> CollectiveTable:
    """Return a table under which hardly any message is faster than a smaller one."""
    most = _rule("dip")
    for strength, held in product(_WEAKER, (False, True)):
        tried = replace(table, strength=strength, held=held)
        if all(
            added_dip(tried, grid.curve, grid.time_s, grid.running, every) <= most for grid in grids
        ):
            return tried
    return replace(table, strength=0.0)


def _grid(curve: Curve, formula: Formula) -> _Grid:
    """Return a curve over the sizes of another and beyond, in fine steps."""
    first, last = np.log2(curve.size_bytes.min()), np.log2(curve.size_bytes.max())
    first, last = max(0.0, float(first) - _BEYOND), float(last) + _BEYOND
    sizes = np.exp2(np.linspace(first, last, int(_PER_DOUBLING * (last - first)) + 1))
    fine = replace(curve, size_bytes=sizes, time_s=sizes)
    result = formula(fine)
    return _Grid(fine, times_s(result, single_process=False), result.weights)


def added_dip(
    table: CollectiveTable,
    curve: Curve,
    formula_s: Floats,
    running: Weights | None = None,
    beside: Iterable[CollectiveTable] = (),
) -> float:
    """Return by how much, in logarithms, a table makes larger messages faster than smaller ones.

    What the formula itself does so, where a library changes its algorithm, does not count.
    """
    log_time = np.log(formula_s)
    at = (curve.size_bytes, curve.case.gpus, curve.case.nodes)
    factor = table.factor(*at, running, beside)

    def dip(logs: Floats) -> Floats:
        below: Floats = np.maximum.accumulate(logs) - logs
        return below

    return float(np.max(dip(log_time + np.log(factor)) - dip(log_time)))

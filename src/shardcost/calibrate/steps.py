"""Calibrates a framework's constants on the step times of one cluster: `calibrate`.

Two constants hold what a cluster adds to kernels and collectives measured by themselves::

    slowdown           kernels in a long run over the same kernels alone: clocks, cooling, versions
    step_overhead_s    once a step: data loading, logging, the host

A step takes ``f(slowdown) + step_overhead_s``. For each row, f is computed at some slowdowns and
interpolated between them; the constants are those at which the logarithms of predicted over
measured are least, robustly (Huber 1964, Robust Estimation of a Location Parameter). Both hold on
to the shipped values, so that few rows move them little and rows that say nothing of one leave it
(``catalog/tuner/steps.toml``): where all steps take as long, the two are the same.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.calibrate.fit import fold_count
from shardcost.catalog import tuner_table
from shardcost.cluster import Cluster
from shardcost.errors import BadValueError, MissingExtraError, ShardcostError, UsageError
from shardcost.formats.tables import Row, Table, check_columns, of_one
from shardcost.software import Fit, Software
from shardcost.validate.predictions import Floats, reason_of
from shardcost.validate.training import MEASURED, estimate_of, framework_of, machine, software_of
from shardcost.validate.validation import Stats, measurements, stats

MOST_ROWS: Final = 300
_SLOWDOWNS: Final = 9
"""At how many of them a row is predicted."""
_HUBER: Final = 1.0
_NINE_IN_TEN: Final = 1.645
_TOLD: Final = 0.7
"""A constant whose standard error is above this share of its prior spread is not determined."""
_NONE_S: Final = 1e-9
"""What stands for no time: constants are above 0."""


class FittedConstant(NamedTuple):
    """A constant before and after."""

    name: str
    before: float
    after: float
    plus_minus: float | None
    """Nine times in ten within; None where it was left alone."""


@dataclass(frozen=True, eq=False)
class CalibratedSteps:
    """A framework's constants, fitted to step times."""

    software: Software
    """With the fitted constants, under its old name."""
    system: str
    """The cluster."""
    skipped: Mapping[str, int]
    """Rows that were not used, by reason."""
    constants: tuple[FittedConstant, ...]
    before: Stats
    after: Stats
    left_out: Stats
    """Of rows that the fit did not see; without rows where there are too few."""
    alike: bool
    """Whether all rows state the same choices of the framework, which `software` then has."""


class _Task(NamedTuple):
    """Rows, and how their predictions follow from the constants."""

    software: Software
    times_s: Callable[[float], Floats]
    """Of all rows without overhead, by the logarithm of the slowdown over the shipped one."""
    measured_s: Floats
    reach: tuple[float, float]
    """The least and the most of such a logarithm."""
    rules: Mapping[str, Any]

    def predicted_s(self, at: Floats) -> Floats:
        """Return the step times by a slowdown and an overhead, in units of `start`."""
        return np.asarray(self.times_s(float(at[0])) + self.overhead_s(at))

    def overhead_s(self, at: Floats) -> float:
        spread_s = 1e-3 * float(self.rules["spread"]["overhead_ms"])
        return max(float(self.software.step_overhead_s) + spread_s * float(at[1]), _NONE_S)

    def residuals(self, places: Sequence[int], at: Floats) -> Floats:
        """Return logarithms of predicted over measured, over their scatter."""
        ratio = self.predicted_s(at)[list(places)] / self.measured_s[list(places)]
        return np.asarray(np.log(ratio) / self.rules["scatter"]["step"])

    def fitted(self, places: Sequence[int], active: Sequence[int]) -> tuple[Floats, Floats]:
        """Return the constants that fit some rows, and the standard errors of those fitted.

        The first is the logarithm of the slowdown over the shipped one, the second the overhead
        beyond the shipped one, over its spread.
        """
        from scipy.optimize import least_squares

        spread = self.rules["spread"]
        least_overhead = -1e3 * float(self.software.step_overhead_s) / spread["overhead_ms"]
        low = np.array([self.reach[0], least_overhead - 1e-9])[list(active)]
        high = np.array([self.reach[1], np.inf])[list(active)]
        hold = np.array([1 / spread["slowdown"], 1.0])[list(active)]

        def full(free: Floats) -> Floats:
            at = np.zeros(2)
            at[list(active)] = free
            return at

        def costs(free: Floats) -> Floats:
            return np.concatenate([_robust(self.residuals(places, full(free))), hold * free])

        start = np.zeros(len(active))
        found = least_squares(costs, start, bounds=(low, high), x_scale=1 / hold)
        at = full(found.x)
        taken = np.clip(self.residuals(places, at), -_HUBER, _HUBER)
        freedom = max(len(places) - len(active), 1)
        # Few rows may agree by chance: their scatter is not taken for less than this share of the
        # usual one.
        scatter = max(sqrt(float(taken @ taken) / freedom), 1 / sqrt(len(places)))
        rows = np.asarray(found.jac)[: len(places)] / scatter
        errors = np.sqrt(np.diag(np.linalg.inv(rows.T @ rows + np.diag(hold**2))))
        return at, errors

    def errors_pct(self, places: Sequence[int], at: Floats) -> Floats:
        """Return how far predictions are off, in percent of the measurement."""
        which = list(places)
        return np.asarray(100 * (self.predicted_s(at)[which] / self.measured_s[which] - 1))

    def with_constants(self, at: Floats) -> Software:
        """Return the software with constants."""
        return replace(
            self.software,
            slowdown=float(f"{float(self.software.slowdown) * exp(float(at[0])):.6g}"),
            step_overhead_s=self.overhead_s(at),
        )


def _robust(residuals: Floats) -> Floats:
    """Return what to square for Huber's loss."""
    sizes = np.abs(residuals)
    far = np.sqrt(np.maximum(2 * _HUBER * sizes - _HUBER**2, 0.0))
    return np.asarray(np.where(sizes <= _HUBER, residuals, np.sign(residuals) * far))


def calibrate(
    tables: Sequence[Table],
    cluster: Cluster | None = None,
    software: Software | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> CalibratedSteps:
    """Return the constants of a framework on a cluster, fitted to step times of training runs.

    Args:
        tables: Of training runs, whose rows are of one cluster and one framework.
        cluster: The machine, where tables do not name one, or a profile of it.
        software: What to start from, where that is not the catalog's framework.
        say: Called with what is being done.

    Raises:
        UsageError: No row can be used, or rows do not depend on the slowdown.
    """
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        raise MissingExtraError("calibrating", "SciPy", "fit") from None
    skipped: Counter[str] = Counter()
    rows, measured = _rows(tables, cluster, software, skipped)
    base = software or Software.named(framework_of(rows[0])) if rows else None
    say(f"predicting {len(rows)} steps")
    task, own, system = _task(rows, measured, cluster, base, skipped)
    places = range(len(task.measured_s))
    active = [0] if len(places) < task.rules["least"]["rows"] else [0, 1]
    spreads = np.array([task.rules["spread"]["slowdown"], 1.0])
    at, errors = task.fitted(places, active)
    if len(active) > 1 and np.any(errors > _TOLD * spreads):  # not told from each other
        active = [0]
        at, errors = task.fitted(places, active)
    if errors[0] > _TOLD * spreads[0]:
        raise UsageError("the step times do not depend on the slowdown of kernels: give others")
    enough = len(places) >= task.rules["least"]["left_out_rows"]
    folds = fold_count(len(places)) if enough else 0
    left_out = np.full(len(places), np.nan)
    for fold in range(folds):
        without, _ = task.fitted([place for place in places if place % folds != fold], active)
        left_out[fold::folds] = task.errors_pct(places[fold::folds], without)
    result = task.with_constants(at)
    alike = all(each == own[0] for each in own)
    if alike:
        result = replace(own[0], slowdown=result.slowdown, step_overhead_s=result.step_overhead_s)
    return CalibratedSteps(
        software=result,
        system=system,
        skipped=dict(skipped.most_common()),
        constants=_constants(task, result, active, errors),
        before=stats(task.errors_pct(places, np.zeros(2))),
        after=stats(task.errors_pct(places, at)),
        left_out=stats(left_out),
        alike=alike,
    )


def fit_of(result: CalibratedSteps) -> Fit:
    """Return what fitted constants rest on, as a software states it."""
    least = 0.01  # a median of 0 is no error that a fit may state
    return Fit(
        source=f"slowdown and step overhead fitted by shardcost calibrate on {result.system}",
        rows=result.after.rows,
        median_pct=max(least, round(result.after.median_pct or 0.0, 2)),
        p90_pct=max(least, round(result.after.p90_pct or 0.0, 2)),
    )


def _rows(
    tables: Sequence[Table],
    cluster: Cluster | None,
    software: Software | None,
    skipped: Counter[str],
) -> tuple[list[Row], list[float]]:
    """Return the rows of one cluster and one framework that have a step time, and these."""
    found: list[tuple[Row, float]] = []
    system = None if cluster is None else cluster.system
    for table in tables:
        check_columns(table)
        kept = of_one(table, "cluster", "--on", system)
        if kept.rows < table.rows:
            skipped[f"measured on another cluster than {system}"] += table.rows - kept.rows
        if cluster is None and not any(table.columns.get("cluster", ())):
            raise UsageError("the table does not say which machine it is of: say --on CLUSTER")
        times, complaints = measurements(kept, MEASURED)
        for row, time_s, complaint in zip(kept.records(), times, complaints, strict=True):
            if complaint or np.isnan(time_s):
                skipped[complaint or "without a measured step time"] += 1
            else:
                found.append((row, float(time_s)))
    for what, one_of, option in (
        ("clusters", [row.get("cluster", "") for row, _ in found], "--on"),
        ("frameworks", [framework_of(row) for row, _ in found], "--software"),
    ):
        several = sorted(set(one_of))
        if len(several) < 2 or (what == "clusters" and cluster is not None):
            continue
        wanted = software.name if software is not None and what == "frameworks" else None
        if wanted not in several:
            raise BadValueError(f"{what} of the rows (say {option} one of them)", several, "one")
        skipped[f"of another framework than {wanted}"] += len(one_of) - one_of.count(wanted)
        found = [pair for pair, name in zip(found, one_of, strict=True) if name == wanted]
    beyond = len(found) - MOST_ROWS
    if beyond > 0:
        skipped[f"beyond the first {MOST_ROWS}"] += beyond
    return [row for row, _ in found[:MOST_ROWS]], [time_s for _, time_s in found[:MOST_ROWS]]


def _task(
    rows: Sequence[Row],
    measured: Sequence[float],
    cluster: Cluster | None,
    base: Software | None,
    skipped: Counter[str],
) -> tuple[_Task, list[Software], str]:
    """Return what is fitted, the software of each row, and the cluster's name."""
    rules = tuner_table("steps")
    low, high = map(log, rules["range"]["slowdown"])
    grid = np.linspace(low, high, _SLOWDOWNS)
    grid[np.argmin(np.abs(grid))] = 0.0  # what is shipped is not interpolated
    kept, times, own, system = [], [], [], ""
    for place, row in enumerate(rows):
        try:
            here = software_of(row, base, cluster)
            times.append(_times_s(row, here, cluster, grid))
            system = system or machine(row, cluster).name
        except ShardcostError as error:
            skipped[reason_of(error)] += 1
            continue
        kept.append(measured[place])
        own.append(here)
    if base is None or not kept:
        reason = next(iter(skipped), "there is none")
        raise UsageError(f"no row can be used: {reason}")
    from scipy.interpolate import PchipInterpolator

    between = PchipInterpolator(grid, np.array(times), axis=1)
    task = _Task(
        software=base,
        times_s=lambda at: np.asarray(between(at)),
        measured_s=np.array(kept),
        reach=(float(grid[0]), float(grid[-1])),
        rules=rules,
    )
    return task, own, system


def _times_s(row: Row, software: Software, cluster: Cluster | None, grid: Floats) -> list[float]:
    """Return the step time of a row without overhead, by slowdowns."""
    found = []
    for at in grid:
        slower = replace(software, slowdown=float(software.slowdown) * exp(float(at)))
        time_s = float(estimate_of(row, slower, cluster=cluster).time_s)
        if not np.isfinite(time_s):
            raise BadValueError("predicted step time", time_s, "finite")
        found.append(time_s - float(software.step_overhead_s))
    return found


def _constants(
    task: _Task, result: Software, active: Sequence[int], errors: Floats
) -> tuple[FittedConstant, ...]:
    """Return both constants with their ranges."""
    slowdown = float(result.slowdown)
    spread_s = 1e-3 * float(task.rules["spread"]["overhead_ms"])
    overhead = _NINE_IN_TEN * float(errors[1]) * spread_s if 1 in active else None
    before = task.software
    return (
        FittedConstant(
            "slowdown",
            float(before.slowdown),
            slowdown,
            slowdown * (exp(_NINE_IN_TEN * float(errors[0])) - 1),
        ),
        FittedConstant(
            "step_overhead_s",
            float(before.step_overhead_s),
            float(result.step_overhead_s),
            overhead,
        ),
    )

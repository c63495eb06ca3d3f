"""Calibrates the host's constants of a serving engine on results of benchmarks: `calibrate`.

What the host takes differs most from deployment to deployment (processor, web server, tokeniser,
version of the engine), and three constants hold it::

    step_overhead_s        once a step: what a token takes beyond its kernels, with few sequences
    host_per_sequence_s    once a step and sequence: how that grows with the batch
    scheduler.frontend_s   once a request: what the first token takes beyond queue and prefill

Each run gives its time per output token and its time to the first token. The constants that a
simulation of the same loads needs to show them are found by Gauss-Newton steps on the logarithms of
predicted over measured, robustly (Huber 1964, Robust Estimation of a Location Parameter), so that
one odd run does not decide. A constant that the runs cannot tell from the others, or from none,
keeps its value: at one concurrency, what comes with the step and what comes with its sequences are
the same.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcost.catalog.errors import REPEATS
from shardcost.errors import MissingExtraError, ShardcostError, UsageError
from shardcost.formats.serving_results import ServingResult
from shardcost.load.deployment import Deployment
from shardcost.load.requests import Requests
from shardcost.load.result import Load
from shardcost.load.simulate import simulate
from shardcost.software import Fit, Software
from shardcost.validate.serving_results import Figure, figures_of, requests_of
from shardcost.validate.validation import Stats, stats

Floats = NDArray[np.float64]
MOST_POINTS: Final = 100
_MOST_REQUESTS: Final = 1500
"""Of a run that are simulated, unless many are in flight: there are hundreds of simulations."""
_FEWEST_LEFT_OUT: Final = 3
_MOST_FOLDS: Final = 12
"""Up to so many runs, each is left out by itself; of more, every twelfth."""
_SCATTER: Final = {"tpot": 0.05, "ttft": 0.15}
"""How far runs are from a simulation by its own errors, as logarithms: what a residual is divided
by. Queues make the first token scatter more."""
_USED: Final = ("mean", "p50")
_HUBER: Final = 1.0
_NINE_IN_TEN: Final = 1.645
_MOST_ROUNDS: Final = 8
_HALVINGS: Final = 4
_DONE: Final = 2e-3
"""A step that changes every constant by less than this share of its size ends the fit."""
_COLLINEAR: Final = 1e12
"""A condition number from which on constants are not told apart."""
_FAR_PCT: Final = 15.0
"""Predictions that stay farther off than this are not so for the host's sake."""
_NUDGE: Final = 0.25
"""Of a constant's size, for its derivative: wide, because queues make results jump."""


class _Kind(NamedTuple):
    """A constant: how small it may be told from nothing, and its bounds."""

    name: str
    least_s: float
    """Smaller ones are not told from none."""
    most_s: float
    meaning: str


CONSTANTS: Final = (
    _Kind("step_overhead_s", 1e-4, 1.0, "once a step"),
    _Kind("host_per_sequence_s", 1e-6, 0.1, "once a step and sequence"),
    _Kind("frontend_s", 1e-3, 100.0, "once a request"),
)
_GIVEN_UP: Final = (1, 2, 0)
"""In which order constants are left as they are, where runs do not determine them."""
_NONE_S: Final = 1e-9
"""What stands for no time: constants are above 0."""


class FittedConstant(NamedTuple):
    """A constant before and after."""

    name: str
    meaning: str
    before_s: float
    after_s: float
    plus_minus_s: float | None
    """Nine times in ten within; None where the runs do not determine it and it was left alone."""

    @property
    def at_bound(self) -> bool:
        """Whether it was fitted to be none, because kernels alone are predicted too slow."""
        return self.plus_minus_s is not None and self.after_s <= 2 * _NONE_S


@dataclass(frozen=True, eq=False)
class CalibratedServing:
    """An engine's constants, fitted to runs."""

    software: Software
    """With the fitted constants, under its old name."""
    runs: tuple[ServingResult, ...]
    skipped: Mapping[str, int]
    """Runs that were not used, by reason."""
    constants: tuple[FittedConstant, ...]
    before: Mapping[str, Stats]
    """Errors by figure, ``tpot`` and ``ttft``: with the constants that the fit started from, …"""
    after: Mapping[str, Stats]
    left_out: Mapping[str, Stats]
    """… and on runs that the fit did not see; without rows where there are fewer than three."""


@dataclass(frozen=True, eq=False)
class _Point:
    run: ServingResult
    requests: Requests


class _Task:
    """Runs on a deployment, and how its predictions follow from the constants."""

    def __init__(self, deployment: Deployment, points: Sequence[_Point]) -> None:
        self.deployment, self.points = deployment, points
        software = deployment.serving.engine.software
        self.start = np.array([_value(software, kind.name) for kind in CONSTANTS])
        self.size = np.maximum(self.start, [kind.least_s for kind in CONSTANTS])
        self._known: dict[tuple[int, tuple[float, ...]], tuple[Figure, ...]] = {}
        counts = [len(self.figures(place, self.start)) for place in range(len(points))]
        self.owner = np.repeat(np.arange(len(points)), counts)
        """Of each residual, its run."""

    def figures(self, place: int, constants: Floats) -> tuple[Figure, ...]:
        """Return the figures of a run that constants are fitted to."""
        key = (place, tuple(map(float, constants)))
        if key not in self._known:
            point = self.points[place]
            load = simulate(with_constants(self.deployment, constants), point.requests)
            self._known[key] = _used(point.run, load)
        return self._known[key]

    def residuals(self, places: Sequence[int], constants: Floats) -> Floats:
        """Return logarithms of predicted over measured, over their scatter.

        Mean and median of one figure of a run count as one together.
        """
        found = []
        for place in places:
            figures = self.figures(place, constants)
            names = [figure.name for figure in figures]
            found += [
                log(figure.predicted / figure.measured)
                / (_SCATTER[figure.name] * sqrt(names.count(figure.name)))
                for figure in figures
            ]
        return np.array(found)

    def fitted(
        self,
        places: Sequence[int],
        active: Sequence[int],
        start: Floats,
        known: Floats | None = None,
    ) -> tuple[Floats, Floats]:
        """Return the constants that fit some runs, and the derivatives of all runs there.

        Args:
            places: The runs.
            active: The constants that are fitted.
            start: Where to begin.
            known: Derivatives nearby, to be used throughout; computed at each step if None.
        """
        constants, free = start.copy(), list(active)
        derivatives = self._derivatives(free, constants) if known is None else known
        rows = np.isin(self.owner, list(places))
        for _ in range(_MOST_ROUNDS):
            residuals = self.residuals(places, constants)
            step = self._step(residuals, derivatives[rows], constants, free)
            cost, share = _cost(residuals), 1.0
            for _ in range(_HALVINGS):
                tried = constants.copy()
                tried[free] += share * step
                if _cost(self.residuals(places, tried)) <= cost:
                    break
                share /= 2
            else:
                break
            constants = tried
            if known is None:
                derivatives = self._derivatives(free, constants)
            if np.all(np.abs(share * step) <= _DONE * self._sizes(constants)[free]):
                break
        return constants, derivatives

    def _sizes(self, constants: Floats) -> Floats:
        return np.asarray(np.maximum(self.size, constants), dtype=float)

    def _derivatives(self, free: Sequence[int], at: Floats) -> Floats:
        places = range(len(self.points))
        base = self.residuals(places, at)
        columns = []
        for index in free:
            nudged = at.copy()
            nudge = _NUDGE * self._sizes(at)[index]
            nudged[index] += nudge
            columns.append((self.residuals(places, nudged) - base) / nudge)
        return np.array(columns).T

    def _step(
        self, residuals: Floats, derivatives: Floats, constants: Floats, free: Sequence[int]
    ) -> Floats:
        """Return the change that brings residuals nearest to 0, within the bounds."""
        try:
            from scipy.optimize import lsq_linear
        except ImportError:
            raise MissingExtraError("calibrating", "SciPy", "fit") from None
        weights = np.sqrt(_HUBER / np.maximum(np.abs(residuals), _HUBER))
        sizes = self._sizes(constants)[free]
        low = (_NONE_S - constants[free]) / sizes
        high = (np.array([CONSTANTS[index].most_s for index in free]) - constants[free]) / sizes
        matrix = derivatives * sizes * weights[:, None]
        found = lsq_linear(matrix, -residuals * weights, (np.minimum(low, -1e-12), high))
        return np.asarray(found.x * sizes, dtype=float)

    def ranges(
        self, places: Sequence[int], active: Sequence[int], constants: Floats, derivatives: Floats
    ) -> tuple[Floats, Floats]:
        """Return each constant's standard error, and how far it may be off nine times in ten.

        By the curvature of the fit and the scatter of each figure (White 1980, A
        Heteroskedasticity-Consistent Covariance Matrix Estimator): TPOT and TTFT scatter
        differently, and what one of them determines is as uncertain as that one. Residuals count as
        far as the fit lets them (Huber 1981, Robust Statistics, section 7.6).
        """
        sizes = self._sizes(constants)[list(active)]
        matrix = derivatives * sizes
        information = matrix.T @ matrix
        if np.linalg.cond(information) > _COLLINEAR:
            return np.full(len(active), np.inf), np.full(len(active), np.inf)
        bread = np.linalg.inv(information)
        residuals, names = self.residuals(places, constants), self._names(places, constants)
        counts = {name: len({p for p, each in names if each == name}) for _, name in names}
        free = max(1 - len(active) / sum(counts.values()), 0.0)
        rows = np.array([name for _, name in names])
        meat = np.zeros((2, *information.shape))
        for name, count in counts.items():
            part = matrix[rows == name]
            spreads = _spreads(residuals[rows == name], count * free, REPEATS / _SCATTER[name])
            for place, spread in enumerate(spreads):
                meat[place] += spread**2 * part.T @ part
        errors, ranges = (np.sqrt(np.diag(bread @ each @ bread)) * sizes for each in meat)
        return errors, ranges

    def _names(self, places: Sequence[int], constants: Floats) -> list[tuple[int, str]]:
        """Return run and figure of each residual."""
        return [(place, each.name) for place in places for each in self.figures(place, constants)]


def _spreads(residuals: Floats, freedom: float, least: float) -> tuple[float, float]:
    """Return a figure's scatter, and within what it lies nine times in ten.

    Both in units of the usual scatter.

    Args:
        residuals: Of one figure over all runs.
        freedom: How many runs more than constants there are.
        least: No figure repeats itself more closely than this.
    """
    from scipy.stats import t

    taken = np.clip(residuals, -_HUBER, _HUBER)
    inside = max(float(np.mean(np.abs(residuals) <= _HUBER)), 0.1)
    squares = float(taken @ taken)
    if freedom < 1:  # too few to tell their own scatter, which is taken to be the usual one
        spread = max(1.0, sqrt(squares) / inside)
        return spread, _NINE_IN_TEN * spread
    spread = max(sqrt(squares / freedom) / inside, least)
    # Few may agree by chance: one more of the usual scatter, and Student's distribution.
    cautious = sqrt((1.0 + squares) / (1.0 + freedom)) / inside
    usual = _NINE_IN_TEN * max(spread, 1.0)
    return spread, min(usual, float(t.ppf(0.95, freedom)) * max(cautious, least))


def calibrate(
    deployment: Deployment,
    runs: Sequence[ServingResult],
    say: Callable[[str], None] = lambda _: None,
) -> CalibratedServing:
    """Return the constants of a deployment's engine, fitted to runs on it.

    Args:
        deployment: What the runs were measured on.
        runs: Results of benchmarks.
        say: Called with what is being done.

    Raises:
        UsageError: The runs determine none of the constants.
    """
    if deployment.prefill is not None:
        raise UsageError("disaggregated deployments are not calibrated")
    points, skipped = _points(deployment, runs)
    if not points:
        reason = next(iter(skipped), "there is none")
        raise UsageError(f"no run can be used: {reason}")
    task, places = _Task(deployment, points), range(len(points))
    say(f"fitting {len(points)} runs")
    active, constants, ranges, derivatives = _determined(task, places)
    left_out: dict[str, list[float]] = {}
    folds = min(len(points), _MOST_FOLDS) if len(points) >= _FEWEST_LEFT_OUT else 0
    for fold in range(folds):
        say(f"leaving runs out, {fold + 1} of {folds}")
        others = [place for place in places if place % folds != fold]
        without, _ = task.fitted(others, active, constants, derivatives)
        for name, errors in _errors(task, places[fold::folds], without).items():
            left_out.setdefault(name, []).extend(errors)
    return CalibratedServing(
        software=with_constants(deployment, constants).serving.engine.software,
        runs=tuple(point.run for point in points),
        skipped=skipped,
        constants=tuple(
            FittedConstant(
                kind.name, kind.meaning, float(task.start[index]), float(constants[index]),
                float(ranges[active.index(index)]) if index in active else None,
            )
            for index, kind in enumerate(CONSTANTS)
        ),
        before=_stats(_errors(task, places, task.start)),
        after=_stats(_errors(task, places, constants)),
        left_out=_stats(left_out),
    )  # fmt: skip


def fit_of(result: CalibratedServing) -> Fit:
    """Return what fitted constants rest on, as a software states it."""
    rows = [each for each in result.after.values() if each.median_pct is not None]
    tools = ", ".join(sorted({run.tool for run in result.runs}))
    least = 0.01  # a median of 0 is no error that a fit may state
    return Fit(
        source=f"fitted by shardcost calibrate to {len(result.runs)} runs of {tools}",
        rows=sum(each.rows for each in rows),
        median_pct=max(least, *(round(each.median_pct or 0.0, 2) for each in rows)),
        p90_pct=max(least, *(round(each.p90_pct or 0.0, 2) for each in rows)),
    )


def _determined(task: _Task, places: Sequence[int]) -> tuple[list[int], Floats, Floats, Floats]:
    """Return which constants runs determine, all as fitted, ranges and derivatives of those."""
    active, constants = list(range(len(CONSTANTS))), task.start
    while active:
        constants, derivatives = task.fitted(places, active, task.start)
        errors, ranges = task.ranges(places, active, constants, derivatives)
        wide = [
            index
            for index, error_s in zip(active, errors, strict=True)
            if not _NINE_IN_TEN * error_s <= max(constants[index], task.size[index])
        ]
        if not wide:
            return active, constants, ranges, derivatives
        active.remove(next(index for index in _GIVEN_UP if index in wide))
    off = _stats(_errors(task, places, constants))
    for name, each in off.items():
        if each.median_pct is not None and each.median_pct > _FAR_PCT:
            least = f"{each.median_pct:.0f} % off ({each.bias_pct:+.0f} %)"
            raise UsageError(
                f"no constants of the host explain the runs: {name.upper()} stays {least};"
                " look at machine, model, number formats and layout"
            )
    names = ", ".join(kind.name for kind in CONSTANTS)
    raise UsageError(f"the runs determine none of {names}: give some at other loads")


def _points(
    deployment: Deployment, runs: Sequence[ServingResult]
) -> tuple[list[_Point], dict[str, int]]:
    """Return the runs that can be simulated and state a figure, the others by reason."""
    points: list[_Point] = []
    skipped: dict[str, int] = {}
    for run in runs:
        reason = "" if len(points) < MOST_POINTS else f"beyond the first {MOST_POINTS}"
        try:
            if not reason:
                requests = requests_of(run, _MOST_REQUESTS)
                reason = _unusable(run, simulate(deployment, requests))
                if not reason:
                    points.append(_Point(run, requests))
        except ShardcostError as error:
            reason = str(error)
        if reason:
            skipped[reason] = skipped.get(reason, 0) + 1
    return points, skipped


def _unusable(run: ServingResult, load: Load) -> str:
    """Return why constants are not fitted to a run; empty where they are."""
    if load.rejected:
        return "has requests that do not fit in the KV cache"
    return "" if _used(run, load) else "states neither TTFT nor TPOT"


def _used(run: ServingResult, load: Load) -> tuple[Figure, ...]:
    """Return the figures that constants are fitted to; gaps stand in for an unstated TPOT."""
    figures = [each for each in figures_of(run, load) if each.statistic in _USED]
    names = {figure.name for figure in figures}
    if "tpot" not in names:
        figures = [each._replace(name="tpot") if each.name == "itl" else each for each in figures]
    return tuple(figure for figure in figures if figure.name in _SCATTER)


def _errors(task: _Task, places: Sequence[int], constants: Floats) -> dict[str, list[float]]:
    errors: dict[str, list[float]] = {}
    for place in places:
        for figure in task.figures(place, constants):
            if figure.statistic == _USED[0] or not _has_mean(task, place, constants, figure.name):
                errors.setdefault(figure.name, []).append(figure.error_pct)
    return errors


def _has_mean(task: _Task, place: int, constants: Floats, name: str) -> bool:
    figures = task.figures(place, constants)
    return any(each.name == name and each.statistic == _USED[0] for each in figures)


def _stats(errors: Mapping[str, Sequence[float]]) -> dict[str, Stats]:
    return {name: stats(np.array(errors.get(name, []))) for name in _SCATTER}


def _cost(residuals: Floats) -> float:
    sizes = np.abs(residuals)
    return float(np.sum(np.where(sizes <= _HUBER, sizes**2 / 2, _HUBER * (sizes - _HUBER / 2))))


def _value(software: Software, name: str) -> float:
    return float(getattr(software.scheduler if name == "frontend_s" else software, name))


def with_constants(deployment: Deployment, constants: Sequence[float] | Floats) -> Deployment:
    """Return a deployment whose engine has other constants of the host, in their order."""
    overhead_s, per_sequence_s, frontend_s = map(float, constants)
    engine = deployment.serving.engine
    software = replace(
        engine.software,
        step_overhead_s=overhead_s,
        host_per_sequence_s=per_sequence_s,
        scheduler=replace(engine.software.scheduler, frontend_s=frontend_s),
    )
    pool = replace(deployment.serving, engine=replace(engine, software=software))
    return replace(deployment, serving=pool)

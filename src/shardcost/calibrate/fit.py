"""Fits the constants of libraries and networks to measured collectives.

What is minimised is the relative error (the logarithm of predicted over measured), robustly, so
that an outlier of a benchmark does not bend a curve. Constants stay positive and physical: no rate
exceeds its link's. A pull towards the family's constants (without a family, towards
``catalog/tuner/start.toml``) settles what the rows do not determine.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcost.catalog import cluster_named, tuner_table
from shardcost.cluster import Cluster
from shardcost.collectives.library_time import CollectiveTime
from shardcost.errors import MissingExtraError
from shardcost.formats.tables import Table
from shardcost.machine import CATALOG, Fitted
from shardcost.machine.constants import (
    Calibration,
    Constants,
    EngineLibrary,
    Fit,
    FrameworkLibrary,
    NetworkConstants,
    RingLibrary,
    stated,
)
from shardcost.machine.libraries import (
    ENGINES,
    FRAMEWORKS,
    HOST,
    datasheet_unit,
    in_switch,
    inherited,
)
from shardcost.validate.collectives import MEASURED, CollectiveCase, cases, machine, times_s
from shardcost.validate.validation import measurements

Floats = NDArray[np.float64]
Key = tuple[str, str, str]
"""A system, a library, and the version since when its kernels are as measured."""

PULL: Final = {
    RingLibrary: 0.2,
    EngineLibrary: 0.02,
    FrameworkLibrary: 0.02,
    NetworkConstants: 0.05,
}
"""Weight of a constant's distance (in logarithms) from where it started, where rows are many. A
ring's constants are many and hang together, so they hold on to their family's; see
docs/validation.md for what that does to GPU counts that were left out."""
_START: Final = {RingLibrary: "ring", EngineLibrary: "direct", FrameworkLibrary: "framework"}
_OUTLIER: Final = 0.05
"""Relative error beyond which a row counts by its size and no longer by its square."""
_FEW: Final = 12
_LEAST_PCT: Final = 1e-3
_INSIDE: Final = 1e-6
"""How far from its bounds a search starts."""
UNFITTED: Final = Fit(
    source="not fitted",
    rows=1,
    median_pct=1,
    p90_pct=1,
    least_gpus=1,
    most_gpus=1,
    least_bytes=1,
    most_bytes=1,
)


def fold_count(points: int) -> int:
    """Return into how many parts points are left out: each of few by itself, of more a fifth.

    >>> fold_count(12), fold_count(13)
    (12, 5)
    """
    return points if points <= _FEW else 5


@dataclass(frozen=True, eq=False)
class Curve:
    """Measured times of one collective on one group, by size."""

    case: CollectiveCase
    size_bytes: Floats
    time_s: Floats
    datasets: frozenset[str]

    @property
    def cluster(self) -> Cluster:
        """The machine that it was measured on."""
        return machine(self.case.cluster, self.case.network)

    def only(self, kept: NDArray[np.bool_]) -> Curve:
        """Return the curve of some of its points."""
        return replace(self, size_bytes=self.size_bytes[kept], time_s=self.time_s[kept])

    def result(self, *own: Calibration | None, fitted: Fitted = CATALOG) -> CollectiveTime:
        """Return what is predicted, by constants of its own where any are given."""
        on = self.case.machine(fitted)
        return self.case.result(self.size_bytes, on.with_own(*own) if any(own) else on)

    def predicted_s(self, *own: Calibration | None, fitted: Fitted = CATALOG) -> Floats:
        """Return the predicted times, by constants of its own where any are given."""
        return times_s(self.result(*own, fitted=fitted), single_process=self.case.single_process)

    def error_pct(self, *own: Calibration | None, fitted: Fitted = CATALOG) -> Floats:
        """Return the signed error of each point, in percent, under given constants."""
        return 100 * (self.predicted_s(*own, fitted=fitted) / self.time_s - 1)


def curves(table: Table, without: frozenset[str] = frozenset()) -> list[Curve]:
    """Return the curves of a table of collectives, of all data sets but those named.

    Rows on no machine of the catalog, or without a measurement, are on no curve.
    """
    known = cases(table)
    times, _ = measurements(table, MEASURED)
    names = table.columns["dataset"]
    results = []
    for case, places in known.rows.items():
        kept = [i for i in places if times[i] > 0 and names[i] not in without]
        if kept and case.has_a_place():
            sets = frozenset(names[i] for i in kept)
            results.append(Curve(case, known.sizes[kept, 0], 1e-6 * times[kept], sets))
    return results


class Hold(NamedTuple):
    """How constants hold on to where they start: each by itself, and all of a kind together."""

    own: Mapping[str, float]
    """Weight of a constant's distance from where its kind went, by name."""
    kinds: Mapping[str, str]
    """Which constants move together: the kind of each that has one."""
    together: Mapping[str, float]
    """Weight of the way that a kind goes."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Constants that fit, and how sure they are."""

    constants: Any
    names: list[str]
    """Of the constants that were fitted."""
    curvature: Floats
    """Of the sum of squares, in the logarithms of those constants: small where rows say little."""
    cost: float
    """What is left of the sum of squares."""


class Minimum(NamedTuple):
    """Where a fit ended."""

    at: Floats
    cost: float
    """Half the sum of squares, with the pull."""
    jacobian: Floats


def fit_robustly(
    start: Floats,
    bounds: tuple[Floats, Floats],
    residuals: Callable[[Floats], Floats],
    pull: Callable[[Floats], Floats],
    *,
    outliers: Sequence[float] = (_OUTLIER,),
    evaluations: int = 80,
    jacobian: Callable[[Floats], Floats] | None = None,
) -> Minimum:
    """Return the logarithms of constants that make residuals least.

    Args:
        start: Where to begin, in logarithms.
        bounds: The least and the most that they may be.
        residuals: Relative errors under given logarithms.
        pull: What is added for being far from where the constants should stay.
        outliers: Error beyond which a row counts by its size and no longer by its square; of
            several, the search goes on from one to the next.
        evaluations: Of the model, at most, for each of them.
        jacobian: Slopes of residuals and pull, a line for each; by differences where left out.
    """
    try:
        from scipy import optimize
    except ImportError:
        raise MissingExtraError("fitting constants", "SciPy", "fit") from None

    def both(logs: Floats) -> Floats:
        return np.concatenate([residuals(logs), pull(logs)])

    least, most = bounds
    end = Minimum(start, np.inf, np.empty((0, len(start))))
    for outlier in outliers:
        begin = np.clip(end.at, least + _INSIDE, most - _INSIDE)
        result = optimize.least_squares(
            both,
            begin,
            jac=jacobian or "2-point",
            bounds=bounds,
            loss="soft_l1",
            f_scale=outlier,
            max_nfev=evaluations,
        )
        end = Minimum(result.x, float(result.cost), np.asarray(result.jac))
    return end


def fitted(
    known: Sequence[Curve],
    start: Constants,
    predict: Callable[[Curve, Any], Floats],
    free: Callable[[str], bool] = lambda _: True,
) -> Any:
    """Return the constants, of the class of `start`, that fit many curves best.

    Every constant holds on to its start alike, by itself.
    """
    hold = Hold(dict.fromkeys(stated(start), PULL[type(start)]), {}, {})
    return solved(known, start, predict, free, hold).constants


def solved(
    known: Sequence[Curve],
    start: Constants,
    predict: Callable[[Curve, Any], Floats],
    free: Callable[[str], bool],
    hold: Hold,
    begin_at: Mapping[str, float] | None = None,
) -> Solution:
    """Return the best fit with what is known of its certainty.

    Args:
        known: What was measured.
        start: Where to begin, and where to stay for what no row determines.
        predict: The model: times of a curve under given constants.
        free: Which constants to fit, by name; the others stay as they are.
        hold: How strongly to stay.
        begin_at: Constants that the way down begins elsewhere for: where a constant does not matter
            at `start`, because something else is slower, no slope leads to where it does.
    """
    names = [name for name in stated(start) if free(name)]
    kinds = sorted({hold.kinds[name] for name in names if name in hold.kinds})
    moved = np.array([[hold.kinds.get(name) == kind for kind in kinds] for name in names], float)
    origin = np.log([stated(start)[name] for name in names])
    caps = caps_on(known[0].cluster)
    most = np.array([np.log(caps.get(name, np.inf)) for name in names])
    measured = np.log(np.concatenate([curve.time_s for curve in known]))
    own = np.array([hold.own[name] for name in names])
    together = np.array([hold.together[kind] for kind in kinds])
    count = len(names)

    def constants(logs: Floats) -> Any:
        return replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def residuals(point: Floats) -> Floats:
        table = constants(point[:count])
        predicted = np.concatenate([predict(curve, table) for curve in known])
        errors: Floats = np.log(predicted) - measured
        return errors

    def pull(point: Floats) -> Floats:
        logs, ways = point[:count], point[count:]
        stray = own * (logs - origin - moved.reshape(count, -1) @ ways)
        return np.concatenate([stray, together * ways])

    first = np.log([(stated(start) | dict(begin_at or {}))[name] for name in names])
    begin = np.concatenate([first, np.zeros(len(kinds))])
    free_ways = np.full(len(kinds), np.inf)
    bounds = np.full(len(begin), -60.0), np.concatenate([most, free_ways])
    end = fit_robustly(begin, bounds, residuals, pull)
    # The curvature in the constants, whatever the ways of their kinds are.
    whole = end.jacobian.T @ end.jacobian
    kept, mixed, rest = whole[:count, :count], whole[:count, count:], whole[count:, count:]
    curvature = kept - mixed @ np.linalg.solve(rest, mixed.T) if rest.size else kept
    return Solution(constants(end.at[:count]), names, curvature, end.cost)


def fitted_library(
    known: Sequence[Curve], start: Calibration, rest: Fitted = CATALOG
) -> Calibration:
    """Return a library's calibration on a system, from its curves inside one domain.

    Rows of kernels in a graph say what the paths take; eager rows what launching adds. What an
    engine falls back to is taken from the `rest` of the constants.
    """

    def predict(curve: Curve, constants: Any) -> Floats:
        return curve.predicted_s(replace(start, constants=constants), fitted=rest)

    graph = [curve for curve in known if curve.case.mode == "graph"]
    eager = [curve for curve in known if curve.case.mode == "eager"]
    best = start.constants
    if graph:
        best = fitted(graph, best, predict, lambda name: not name.startswith("eager_"))
    if eager:
        best = fitted(eager, best, predict, lambda name: name.startswith("eager_"))
    return with_fit(replace(start, constants=best, inherited_from=()), graph or eager, rest)


def with_fit(calibration: Calibration, known: Sequence[Curve], rest: Fitted) -> Calibration:
    """Return a calibration with its errors on the curves that it was fitted to."""
    errors = [curve.error_pct(calibration, fitted=rest) for curve in known]
    return replace(calibration, fit=fit_of(known, np.concatenate(errors)))


def fit_of(known: Sequence[Curve], errors_pct: Floats) -> Fit:
    """Return what a fit rests on, and its errors."""
    sizes = np.concatenate([curve.size_bytes for curve in known])
    errors = np.abs(errors_pct)
    gpus = [curve.case.gpus for curve in known]
    names = sorted(frozenset[str]().union(*(curve.datasets for curve in known)))
    return Fit(
        source="fitted by shardcost to measured rows of " + ", ".join(names),
        rows=len(errors),
        median_pct=max(_LEAST_PCT, float(np.median(errors))),
        p90_pct=max(_LEAST_PCT, float(np.quantile(errors, 0.9))),
        least_gpus=min(gpus),
        most_gpus=max(gpus),
        least_bytes=int(sizes.min()),
        most_bytes=int(sizes.max()),
        collectives=tuple(sorted({curve.case.collective for curve in known})),
    )


def caps_on(cluster: Cluster) -> dict[str, float]:
    """Return the most that constants may be: no rate exceeds the link's nominal rate."""
    nominal = float(cluster.tiers[0].bytes_per_s)
    wires = ("ll", "ll128", "simple", "p2p", "one_shot", "two_shot", "nvls")
    rates = {f"{name}_bytes_per_s": nominal for name in (*wires, "multicast")}
    shares = [*HOST, *(f"fallback_{name}" for name in HOST), "efficiency", "spine"]
    return rates | dict.fromkeys(shares, 1.0) | {"fill": 2.0}


def starting_point(
    kind: type[RingLibrary | EngineLibrary | FrameworkLibrary],
    cluster: Cluster,
    donors: Sequence[Calibration] = (),
) -> Any:
    """Return where a fit begins: at the family's constants, else at round figures."""
    table = tuner_table("start")[_START[kind]]
    values = {}
    for name in (field.name for field in fields(kind)):
        figure = table[name.removesuffix("_bytes_per_s").removesuffix("_s")]
        values[name] = figure * datasheet_unit(name, cluster)
    if donors:
        family = stated(inherited(cluster, list(donors)).constants)
        values |= {name: value for name, value in family.items() if name not in HOST}
    return kind(**{name: value for name, value in values.items() if _applies(name, cluster)})


def _applies(name: str, cluster: Cluster) -> bool:
    """Return whether a constant means something on a system."""
    if in_switch(name):
        return cluster.tiers[0].in_switch_reduction
    if name == "p2p_channel_bytes_per_s":
        return cluster.device.vendor == "nvidia" and cluster.tiers[0].kind != "pcie"
    if name.removeprefix("fallback_") in HOST:
        return cluster.tiers[0].kind == "pcie"
    return True


def inside(known: Iterable[Curve]) -> list[Curve]:
    """Return the curves of groups inside one domain."""
    return [curve for curve in known if not curve.case.network or curve.case.nodes == 1]


def blank(key: Key, donors: Sequence[Calibration] = ()) -> Calibration:
    """Return the calibration that a fit starts from."""
    system, library, since = key
    kind: type[RingLibrary | EngineLibrary | FrameworkLibrary] = RingLibrary
    if library in (*ENGINES, *FRAMEWORKS):
        kind = EngineLibrary if library in ENGINES else FrameworkLibrary
    chooser = {"nccl": "nccl-tuner", "vllm": "limits", "sglang": "limits"}.get(library, "fastest")
    start = starting_point(kind, cluster_named(system), donors)
    return Calibration(
        system=system, library=library, since=since, chooser=chooser, constants=start, fit=UNFITTED
    )

"""Calibrates a cluster on its user's own measurements, be they few: `calibrate`.

A calibration starts from the constants of the catalog, those of the system itself if it was
measured, else of its family, and moves them as far as the points ask for. Half a dozen points of
one curve cannot settle two dozen constants one by one, but systems differ from their family mostly
in step: all latencies are shorter, or all rates higher. So constants of one kind move together at
little cost, and each by itself at more (`family_hold`; Gelman and Hill, Data Analysis Using
Regression and Multilevel Models, 2007, on such partial pooling).

What comes out says how sure it is (`certainty`): the error on points left out, the range of each
constant, and which further measurement would tell most.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.calibrate.certainty import Confidence, Further, confidence, covariance, further
from shardcost.calibrate.collective_tables import collective_tables
from shardcost.calibrate.fit import (
    UNFITTED,
    Curve,
    Floats,
    Hold,
    Solution,
    blank,
    fit_of,
    fitted_library,
    fold_count,
    inside,
    solved,
)
from shardcost.catalog import cluster_named, tuner_table
from shardcost.catalog.errors import REPEATS
from shardcost.collectives.library_time import CollectiveTime
from shardcost.errors import BadValueError, MissingExtraError, ShardcostError
from shardcost.machine.constants import (
    Calibration,
    Constants,
    NetworkConstants,
    RingLibrary,
    stated,
)
from shardcost.machine.libraries import (
    CATALOG_LIBRARIES,
    ENGINES,
    HOST,
    default_library,
    generation,
    in_switch,
    name_and_version,
)
from shardcost.machine.residual import CollectiveTable
from shardcost.validate.collectives import times_s
from shardcost.validate.validation import Stats, stats

_LOCAL: Final = ("fill", "ll_copy_bytes_per_s", "simple_copy_bytes_per_s", "ll_spread_bytes")
_SHARES: Final = (1.0, 0.6, 0.35)
"""Of the rate that networks like it reach: three places to begin from."""
_NO_STATS: Final = Stats(0)


class WithoutTables(NamedTuple):
    """Errors of the formula alone, where a profile has tables of its residuals."""

    after: Stats
    left_out: Stats
    counts_left_out: Stats


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A library on a system (or a network), calibrated."""

    calibration: Calibration
    before: Stats
    """Errors on the points by the constants that the fit started from."""
    after: Stats
    started_from: str
    left_out: Stats = _NO_STATS
    """Errors on points that were left out, of each curve some at a time."""
    counts_left_out: Stats = _NO_STATS
    """Errors on each GPU count that was left out; without rows where there is only one."""
    without_tables: WithoutTables | None = None
    """The same without the tables of residuals; None where there are none."""
    constants: tuple[Confidence, ...] = ()
    further: Further | None = None


@dataclass(frozen=True, eq=False)
class _Task:
    """What is to be fitted: curves, where the constants start, and how they answer."""

    known: list[Curve]
    start: Calibration
    foreign: bool = False
    """Whether the constants start from those of another library, which bind nobody."""
    own: Mapping[str, Calibration] = field(default_factory=dict)
    """For a network: what the libraries that cross it take inside a domain, where calibrated."""

    def result(
        self, curve: Curve, constants: Any, residuals: tuple[CollectiveTable, ...] = ()
    ) -> CollectiveTime:
        """Return a curve under given constants, and tables where there are any."""
        table = replace(self.start, constants=constants, residuals=residuals)
        if isinstance(constants, NetworkConstants):
            library = name_and_version(curve.case.library)[0]
            return curve.result(self.own.get(library), table)
        return curve.result(table)

    def predict(
        self, curve: Curve, constants: Any, residuals: tuple[CollectiveTable, ...] = ()
    ) -> Floats:
        """Return the times of a curve under given constants, and tables where there are any."""
        result = self.result(curve, constants, residuals)
        return times_s(result, single_process=curve.case.single_process)

    def fitted(
        self, known: Sequence[Curve], begin: Mapping[str, float] | None = None
    ) -> tuple[Calibration, Solution]:
        """Return the constants that fit some of the curves, and their certainty.

        Eager launches say what the same kernels take wherever the launch is not what counts, so
        curves of both modes are fitted at once.

        Args:
            known: The curves.
            begin: Constants to begin the search at, if not where they start.
        """
        start: Constants = self.start.constants
        launched = any(curve.case.mode == "eager" for curve in known)

        def free(name: str) -> bool:
            return launched or _not_eager(name)

        if self.foreign:  # of another size altogether, so all are moved in step first
            start = solved(known, start, self.predict, free, in_step(start)).constants
        begins: list[Mapping[str, float]] = [begin or {}]
        if isinstance(start, NetworkConstants) and begin is None:
            # A network faster than what it joins shows only when it is slower.
            begins = [{"efficiency": share * float(start.efficiency)} for share in _SHARES]
        hold = self.hold()
        tries = [solved(known, start, self.predict, free, hold, begin) for begin in begins]
        best = min(tries, key=lambda solution: solution.cost)
        return replace(self.start, constants=best.constants, inherited_from=()), best

    def hold(self) -> Hold:
        """Return how strongly constants hold on to where they start.

        To those of another library just so that none is undefined, to those measured on the system
        itself more than to a family's.
        """
        start, rules = self.start.constants, tuner_table("start")["hold"]
        if self.foreign:
            return Hold(dict.fromkeys(stated(start), rules["foreign"]), {}, {})
        hold = family_hold(start)
        if self.start.fit == UNFITTED or isinstance(start, NetworkConstants):
            return hold
        own, together = (
            {name: rules["measured"] * weight for name, weight in weights.items()}
            for weights in (hold.own, hold.together)
        )
        return hold._replace(own=own, together=together)

    def tables(self, known: Sequence[Curve], constants: Any) -> tuple[CollectiveTable, ...]:
        """Return the residuals that given constants leave, where points left out gain by them."""
        return collective_tables(known, lambda curve: self.result(curve, constants))

    def errors_pct(
        self, curves: Sequence[Curve], constants: Any, residuals: tuple[CollectiveTable, ...] = ()
    ) -> Floats:
        """Return the signed error of every point of some curves."""
        ratios = [self.predict(curve, constants, residuals) / curve.time_s for curve in curves]
        return 100 * (np.concatenate(ratios) - 1)


def fitted_calibration(known: list[Curve], start: Calibration) -> Calibration:
    """Return constants that fit some curves, few or many, and hold on to where they start."""
    return _Task(known, start).fitted(known)[0]


def _not_eager(name: str) -> bool:
    return not name.startswith("eager_")


def family_hold(start: Constants) -> Hold:
    """Return how constants hold on to those of their family: loosely in step, firmly out of it."""
    table = tuner_table("start")["hold"]
    names = list(stated(start))
    kinds = {name: _kind(name) for name in names}
    network = isinstance(start, NetworkConstants)
    moved = {"start": "latency", "hop": "latency", "rate": "rate", "host": "host"}
    return Hold(
        own={name: table["own"]["network" if network else kinds[name]] for name in names},
        kinds={name: moved[kind] for name, kind in kinds.items() if kind in moved},
        together=table["together"],
    )


def in_step(start: Constants) -> Hold:
    """Return the hold under which only whole kinds of constants move, as far as need be."""
    table, hold = tuner_table("start")["hold"], family_hold(start)
    return hold._replace(
        own=dict.fromkeys(hold.own, table["stiff"]),
        together=dict.fromkeys(hold.together, table["foreign"]),
    )


def _kind(name: str) -> str:
    """Return the kind of a constant: those of one kind differ alike from system to system."""
    if not _not_eager(name):
        return "launch"
    if name.removeprefix("fallback_") in HOST:
        return "host"
    if name in _LOCAL:
        return "local"
    if name.endswith("_hop_s"):
        return "hop"
    return "rate" if name.endswith(("_bytes_per_s", "efficiency")) else "start"


def calibrate(
    known: Sequence[Curve], say: Callable[[str], None] = lambda _: None
) -> list[Calibrated]:
    """Return the calibrations that curves of one system determine: libraries, then the network.

    Args:
        known: Measured curves, all of one cluster of the catalog (and one network).
        say: Called with what is being fitted.
    """
    if not known:
        raise BadValueError("measurements", [], "points of at least one collective")
    by_library: dict[str, list[Curve]] = {}
    for curve in inside(known):
        by_library.setdefault(curve.case.library, []).append(curve)
    results = []
    for library, curves in sorted(by_library.items()):
        say(f"fitting {library}")
        start, named, foreign = library_start(library, curves[0].case.cluster)
        results.append(calibrated_library(curves, start, named, foreign=foreign))
    across = [curve for curve in known if curve not in inside(known)]
    network = across[0].cluster.network if across else None
    if network is not None:
        say("fitting the network")
        own = {result.calibration.library: result.calibration for result in results}
        usual = CATALOG_LIBRARIES.network(network)
        donors = usual.inherited_from
        start = replace(usual, system=network.name, inherited_from=())
        named = f"networks like it ({', '.join(donors)})" if donors else network.name
        results.append(_calibrated(_Task(across, start, own=own), named))
    return results


def calibrated_library(
    known: Sequence[Curve], start: Calibration, named: str, *, foreign: bool = False
) -> Calibrated:
    """Return the calibration of one library from its curves inside a domain.

    Args:
        known: The curves, of kernels in a graph, of eager launches, or of both.
        start: Where constants start …
        named: … and whose they are, in words.
        foreign: Whether they are those of another library, which bind nobody.
    """
    graph = [curve for curve in known if curve.case.mode == "graph"]
    if not graph:  # what launching adds is all that eager rows determine
        task, calibration = _Task(list(known), start), fitted_library(known, start)
        alone = task.errors_pct(known, calibration.constants)
        tables = task.tables(known, calibration.constants)
        after = task.errors_pct(known, calibration.constants, tables)
        return Calibrated(
            calibration=replace(calibration, fit=fit_of(known, alone), residuals=tables),
            before=stats(task.errors_pct(known, start.constants)),
            after=stats(after),
            started_from=named,
            without_tables=WithoutTables(stats(alone), _NO_STATS, _NO_STATS) if tables else None,
        )
    return _calibrated(_Task(list(known), start, foreign), named)


def library_start(library: str, system: str) -> tuple[Calibration, str, bool]:
    """Return where a library's calibration starts, whose constants these are, and if foreign.

    Those of the system itself, else of its family, else (for a library of another kind, such as
    MPI) those of the system's usual library, whose paths it is taken to have, choosing the fastest.
    """
    cluster = cluster_named(system)
    name, version = name_and_version(library)
    since = generation(name, version) if name in ENGINES else "0"
    try:
        own = CATALOG_LIBRARIES.library(cluster, name, version)
    except ShardcostError:
        return _foreign_start(name, system)
    if not own.inherited_from:
        return own, system, False
    start = blank((system, name, since), CATALOG_LIBRARIES.donors(cluster, name, since))
    return start, f"the family of {system}", False


def _foreign_start(library: str, system: str) -> tuple[Calibration, str, bool]:
    cluster = cluster_named(system)
    usual = default_library(cluster)
    start = blank((system, library, "0"))
    if usual not in CATALOG_LIBRARIES.names(cluster):
        return start, "round figures", True
    own = stated(CATALOG_LIBRARIES.library(cluster, usual).constants)
    kept = {name: value for name, value in own.items() if not in_switch(name)}
    start = replace(start, constants=RingLibrary(**kept), chooser="fastest")
    return start, f"{usual} on {system}", True


def _calibrated(task: _Task, started_from: str) -> Calibrated:
    calibration, solution = task.fitted(task.known)
    begin = stated(calibration.constants)
    left_out = _left_out_pct(task, _folds(task.known), begin)
    counts = _left_out_pct(task, _without_each_count(task.known), begin)
    tables = _tables(task, calibration, left_out)
    alone = task.errors_pct(task.known, calibration.constants)
    after = task.errors_pct(task.known, calibration.constants, tables)
    low, high = _interval_pct(left_out.alone)
    fit = replace(fit_of(task.known, alone), low_pct=low, high_pct=high)
    uncertainty = covariance(solution, alone)
    formula = WithoutTables(stats(alone), stats(left_out.alone), stats(counts.alone))
    return Calibrated(
        calibration=replace(calibration, fit=fit, residuals=tables),
        before=stats(task.errors_pct(task.known, task.start.constants)),
        after=stats(after),
        left_out=stats(left_out.with_tables if tables else left_out.alone),
        counts_left_out=stats(counts.with_tables if tables else counts.alone),
        started_from=started_from,
        constants=confidence(task.hold(), solution, uncertainty),
        further=further(task.predict, task.known, solution, uncertainty),
        without_tables=formula if tables else None,
    )


def _tables(
    task: _Task, calibration: Calibration, left_out: _LeftOut
) -> tuple[CollectiveTable, ...]:
    """Return the tables of residuals that a calibration keeps.

    Each table is one that points left out of it gain by. They are dropped where points left out of
    constants and tables alike are predicted worse by both, beyond the standard error of that: a
    fifth less of few points is a table of less reach.
    """
    alone, both = (np.sqrt(np.abs(np.log1p(each / 100))) for each in left_out)
    worse = both - alone
    if len(worse) and worse.mean() > worse.std() / np.sqrt(len(worse)):
        return ()
    _, within = _interval_pct(left_out.with_tables)
    tables = task.tables(task.known, calibration.constants)
    return tuple(replace(table, within_pct=within) for table in tables)


def _folds(known: Sequence[Curve]) -> Iterator[tuple[list[Curve], list[Curve]]]:
    """Yield what to fit and what to try it on: every point is left out once."""
    points = sum(len(curve.time_s) for curve in known)
    folds = fold_count(points)
    if folds < 2:
        return
    ends = np.cumsum([len(curve.time_s) for curve in known])
    by_curve = np.split(np.arange(points) % folds, ends[:-1])
    for fold in range(folds):
        rest, tried = (
            [
                curve.only((place == fold) == is_tried)
                for curve, place in zip(known, by_curve, strict=True)
                if ((place == fold) == is_tried).any()
            ]
            for is_tried in (False, True)
        )
        yield rest, tried


def _without_each_count(known: Sequence[Curve]) -> Iterator[tuple[list[Curve], list[Curve]]]:
    counts = sorted({curve.case.gpus for curve in known})
    for count in counts if len(counts) > 1 else ():
        rest = [curve for curve in known if curve.case.gpus != count]
        yield rest, [curve for curve in known if curve.case.gpus == count]


class _LeftOut(NamedTuple):
    """Signed errors of points left out, in percent."""

    alone: Floats
    """By the formula."""
    with_tables: Floats
    """By the formula and the residuals of the points that were not left out."""


def _left_out_pct(
    task: _Task, folds: Iterator[tuple[list[Curve], list[Curve]]], begin: Mapping[str, float]
) -> _LeftOut:
    errors = []
    for rest, tried in folds:
        if rest:
            constants = task.fitted(rest, begin)[0].constants
            tables = task.tables(rest, constants)
            alone = task.errors_pct(tried, constants)
            both = task.errors_pct(tried, constants, tables) if tables else alone
            errors.append(_LeftOut(alone, both))
    if not errors:
        return _LeftOut(np.array([]), np.array([]))
    return _LeftOut(*(np.concatenate(each) for each in zip(*errors, strict=True)))


def _interval_pct(errors_pct: Floats) -> tuple[float | None, float | None]:
    """Return where nine in ten measurements lie, in percent of the prediction.

    Of few points the extremes are not known, so the range is that of Student's distribution.
    """
    points = len(errors_pct)
    if points < 3:
        return None, None
    try:
        from scipy.stats import t
    except ImportError:
        raise MissingExtraError("calibrating", "SciPy", "fit") from None
    ratios = 100 / (100 + errors_pct)
    spread = max(REPEATS, float(np.sqrt(np.mean(np.log(ratios) ** 2))))
    wide = float(t.ppf(0.95, points - 1) * np.sqrt(1 + 1 / points)) * spread
    return 100 * float(np.expm1(-wide)), 100 * float(np.expm1(wide))

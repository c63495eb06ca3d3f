"""Whether measured collectives are as they should be, and what they look like where they are not.

Measured over predicted time, as a logarithm, is a curve over the sizes. It is compared with

* a healthy machine: the curve is the error of the prediction. Its spread is that of the interval
  (`shardcost.collectives.interval`): a Gaussian process over the logarithm of the size, part of it
  a level that all sizes have in common, part of it changing over some octaves;
* each cause (`shardcost.inspect.causes`): the same about the logarithm of the time that the cause
  is priced at over the predicted time, and a little more, since no cause is just as severe as
  supposed;
* anything else: a curve of any level and slope.

Odds are likelihoods times odds beforehand, which favour the healthy machine. Where the healthy
machine has the best, the curve is fine; else the cause with the best is named, with those that
cannot be told from it. Rows that are doubted by themselves (`shardcost.inspect.log`) are left out
of the comparison; whether they are a first row without warm-up or many is asked apart. All curves
of a file are one comparison: a fault of the spine is known by curves of few and of many nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.catalog import tuner_table
from shardcost.collectives.interval import BANDS, band_of
from shardcost.inspect.causes import Cause, Curve, causes, priced
from shardcost.inspect.log import (
    FIRST_ROW,
    SLOW_ROW,
    UNLIKE_NEIGHBOURS,
    Doubt,
    RatedPoint,
    RunFindings,
)
from shardcost.units import format_bytes, format_rate, format_time
from shardcost.validate.predictions import Floats

FINE: Final = "fine"
"""As fast as such machines are."""
SLOW: Final = "slow"
"""Slower than such machines are, or than this one would be without a listed cause."""
UNEVEN: Final = "uneven"
"""As fast as such machines are, but for many single rows."""
UNKNOWN: Final = "unknown"
"""There is nothing to compare with."""
_NORMAL: Final = NormalDist()
_REACH: Final = _NORMAL.inv_cdf(0.95)
"""Standard deviations from the middle of a 90 % interval to its end."""
_FALSE_ALARMS: Final = 0.02
"""Share of healthy files in which some band of sizes is called slow for its level alone."""
_CHANGES: Final = 0.05
"""A cause that changes the logarithm of no time by more than this is not looked at."""
_ALIKE: Final = 1.0
"""Causes whose log-likelihoods differ by less cannot be told apart."""
_MOST_NAMED: Final = 3
_WORTH_NAMING: Final = 0.02
"""Probability from which on a cause is listed beside the first one."""
_MOST_ROWS: Final = 6
_MOST_CURVES: Final = 24
"""Of one comparison, evenly picked of more."""
_MOST_POINTS: Final = 360
"""Of one comparison; of more, some sizes of each curve are looked at."""
_NEGLIGIBLE: Final = 1e-9
ROW_CAUSES: Final = ("warm_up", "jitter")
"""Causes that single rows tell."""
_DOUBTED: Final = (FIRST_ROW, SLOW_ROW, UNLIKE_NEIGHBOURS)


class Named(NamedTuple):
    """A cause that explains what was measured."""

    cause: Cause
    severity: float | None
    probability: float | None
    """Among all that is compared with; of causes that single rows tell, against steady rows; None
    of traces, which are compared with limits."""
    evidence: str
    alike: tuple[Cause, ...] = ()
    """Causes that these measurements cannot tell from it."""


class Level(NamedTuple):
    """Where a curve stands among such machines at some sizes."""

    findings: RunFindings
    band: str
    ratio: float
    """Measured over predicted time."""
    percentile: float
    """Of such machines, those that are faster, in percent."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether something measured is as it should be."""

    verdict: str
    """`FINE`, `SLOW`, `UNEVEN` or `UNKNOWN`."""
    causes: tuple[Named, ...] = ()
    """The most probable first."""
    levels: tuple[Level, ...] = ()
    """Of every curve at every range of sizes."""
    healthy: float | None = None
    """The probability of a machine without any of the causes."""
    reason: str = ""
    """Why there is no verdict."""
    fast: bool = False
    """Whether it is faster than such machines are."""

    @property
    def explained(self) -> bool:
        """Whether a cause is named that whole curves, or traces, tell."""
        return any(named.cause.key not in ROW_CAUSES for named in self.causes)

    @property
    def row_kinds(self) -> set[str]:
        """The kinds of doubts about single rows that a named cause explains."""
        keys = {named.cause.key for named in self.causes}
        first = {FIRST_ROW} if "warm_up" in keys else set()
        return first | ({SLOW_ROW, UNLIKE_NEIGHBOURS} if "jitter" in keys else set())

    @property
    def slowest(self) -> Level | None:
        """The range of sizes at which most such machines are faster."""
        return max(self.levels, key=lambda level: level.percentile, default=None)


class _Series(NamedTuple):
    """The rows of one run that are compared."""

    findings: RunFindings
    curve: Curve
    points: tuple[RatedPoint, ...]
    doubts: tuple[Doubt, ...]
    rows: int
    """Before doubted ones were left out."""
    octaves: Floats
    residual: Floats
    """Logarithm of measured over predicted."""
    centre: Floats
    """Of the interval, in the same."""
    spread: Floats
    """Its standard deviation."""


class _Alternative(NamedTuple):
    """A cause at one severity, and what it makes of all curves."""

    cause: Cause
    severity: float
    change: Floats
    """Logarithm of its time over that of a healthy machine."""


def judged(findings: Sequence[RunFindings]) -> Verdict:
    """Return whether the curves of a file are as they should be, and what they look like if not."""
    series = [each for each in map(_series, findings) if each is not None]
    if not series:
        reasons = dict.fromkeys(each.not_predicted for each in findings if each.not_predicted)
        return Verdict(verdict=UNKNOWN, reason=next(iter(reasons), "all rows are doubted"))
    picked = [series[k] for k in _evenly(len(series), _MOST_CURVES)]
    room = _MOST_POINTS // len(picked)
    series = [_part(each, _evenly(len(each.points), room)) for each in picked]
    errors = tuner_table("causes")["errors"]
    residual, centre = _joined(series, "residual"), _joined(series, "centre")
    prior = _prior_covariance(series, errors)
    measured = prior + _scatter(series, errors)
    off = residual - centre
    odds = tuner_table("causes")["prior"]
    alternatives = list(_alternatives(series))
    healthy = log(1 - odds["faulty"] - odds["unexplained"]) + _log_likelihood(off, measured)
    strange = log(odds["unexplained"]) + _log_likelihood(off, measured + _anything(series, errors))
    likelihoods = [
        _log_likelihood(
            off - each.change,
            measured + _own_error(each, series, errors),
        )
        for each in alternatives
    ]
    by_cause = _by_cause(alternatives, likelihoods, odds["faulty"])
    total = _log_sum([healthy, strange, *(score for score, _ in by_cause.values())])
    levels = tuple(level for each in series for level in _levels(each, errors))
    named = list(_named(series, by_cause, max(healthy, strange), total))
    rows = list(_row_causes(series))
    alarm = 100 * (1 - _FALSE_ALARMS / len(levels))
    far_off = any(level.percentile >= alarm for level in levels)
    verdict = SLOW if named or far_off else FINE
    if verdict == FINE and any(each.cause.key == "jitter" for each in rows):
        verdict = UNEVEN
    return Verdict(
        verdict=verdict,
        causes=(*named, *rows),
        levels=levels,
        healthy=exp(healthy - total),
        fast=verdict == FINE and any(level.percentile <= 100 - alarm for level in levels),
    )


def _series(findings: RunFindings) -> _Series | None:
    """Return what of a run is compared; None where nothing was predicted."""
    if findings.curve is None:
        return None
    main = sorted(findings.main, key=lambda rated: rated.point.size_bytes)
    doubts = tuple(
        doubt
        for doubt in findings.suspicious
        if doubt.kind in _DOUBTED and any(doubt.point is rated.point for rated in main)
    )
    doubted = {id(doubt.point) for doubt in doubts}
    points = tuple(rated for rated in main if id(rated.point) not in doubted)
    if not points:
        return None
    columns = [
        (
            rated.point.size_bytes,
            rated.point.time_s,
            rated.predicted_s,
            rated.low_s,
            rated.high_s,
        )
        for rated in points
    ]
    size, time, predicted, low, high = np.array(columns, dtype=np.float64).T
    low, high = np.log(low / predicted), np.log(high / predicted)
    # A low end may be the links' own bound: the spread is that of the longer side.
    centre = np.clip(0.0, low, high)
    spread = np.maximum(np.maximum(high, -low) / _REACH, _NEGLIGIBLE)
    residual = np.log(time / predicted)
    curve = replace(findings.curve, size_bytes=size)
    log_size = np.log2(size)
    return _Series(findings, curve, points, doubts, len(main), log_size, residual, centre, spread)


def _evenly(count: int, most: int) -> list[int]:
    """Return at most so many places among `count`, the first and the last among them.

    >>> _evenly(3, 5), _evenly(9, 3)
    ([0, 1, 2], [0, 4, 8])
    """
    if count <= most:
        return list(range(count))
    return [round(k * (count - 1) / (most - 1)) for k in range(most)]


def _part(series: _Series, places: Sequence[int]) -> _Series:
    if len(places) == len(series.points):
        return series
    kept = np.array(places)
    columns = ("octaves", "residual", "centre", "spread")
    return series._replace(
        points=tuple(series.points[k] for k in places),
        curve=replace(series.curve, size_bytes=series.curve.size_bytes[kept]),
        **{name: getattr(series, name)[kept] for name in columns},
    )


def _joined(series: Sequence[_Series], name: str) -> Floats:
    return np.concatenate([getattr(each, name) for each in series])


def _prior_covariance(series: Sequence[_Series], errors: dict[str, Any]) -> Floats:
    """Return the covariance of the errors of predictions, of all sizes of all curves."""
    octaves, spread = _joined(series, "octaves"), _joined(series, "spread")
    whose = np.repeat(np.arange(len(series)), [len(each.points) for each in series])
    apart = octaves[:, None] - octaves[None, :]
    shape = (
        errors["level"]
        + errors["long"] * _bell(apart / errors["long_octaves"])
        + errors["short"] * _bell(apart / errors["short_octaves"])
    )
    shape = shape * np.where(whose[:, None] == whose[None, :], 1.0, errors["between_curves"])
    covariance: Floats = shape * np.outer(spread, spread)
    return covariance


def _scatter(series: Sequence[_Series], errors: dict[str, Any]) -> Floats:
    """Return the covariance of what each row has for itself: repetitions, and switches of paths."""
    spread = _joined(series, "spread")
    covariance: Floats = np.diag(errors["noise"] ** 2 + errors["row"] * spread**2)
    return covariance


def _anything(series: Sequence[_Series], errors: dict[str, Any]) -> Floats:
    """Return the covariance of curves that no cause explains: any level, any slope."""
    octaves = _joined(series, "octaves")
    apart = octaves[:, None] - octaves[None, :]
    covariance: Floats = errors["unexplained"] ** 2 * (
        0.5 + 0.5 * _bell(apart / errors["long_octaves"])
    )
    return covariance


def _own_error(each: _Alternative, series: Sequence[_Series], errors: dict[str, Any]) -> Floats:
    """Return the covariance of what a cause changes beyond its price, where it changes anything."""
    octaves = _joined(series, "octaves")
    near = _bell((octaves[:, None] - octaves[None, :]) / errors["shape_octaves"])
    relative = errors["severity"] ** 2 + errors["shape"] ** 2 * near
    changed = np.abs(each.change) > _CHANGES
    absolute = each.cause.error**2 * (1 + near) / 2 * np.outer(changed, changed)
    covariance: Floats = relative * np.outer(each.change, each.change) + absolute
    return covariance


def _bell(distance: Floats) -> Floats:
    curve: Floats = np.exp(-0.5 * distance**2)
    return curve


def _log_likelihood(off: Floats, covariance: Floats) -> float:
    """Return the logarithm of a Gaussian density at its distance from the mean."""
    factor = np.linalg.cholesky(covariance)
    white = np.linalg.solve(factor, off)
    return float(-0.5 * white @ white - np.sum(np.log(np.diag(factor))))


def _log_sum(logarithms: Iterable[float]) -> float:
    values = list(logarithms)
    most = max(values)
    return most + log(sum(exp(each - most) for each in values))


def _alternatives(series: Sequence[_Series]) -> Iterable[_Alternative]:
    """Yield every cause at every severity that changes some of the curves."""
    healthy = [each.curve.time_s() for each in series]
    for cause in causes():
        for severity in cause.severities:
            changes = []
            for each, before in zip(series, healthy, strict=True):
                after = priced(cause, each.curve, severity)
                changes.append(np.zeros_like(before) if after is None else np.log(after / before))
            change = np.concatenate(changes)
            if np.max(np.abs(change)) > _CHANGES:
                yield _Alternative(cause, severity, change)


def _by_cause(
    alternatives: Sequence[_Alternative], likelihoods: Sequence[float], faulty: float
) -> dict[str, tuple[float, _Alternative]]:
    """Return, by cause, its odds (as a logarithm) and the severity that explains most.

    All causes together have the odds `faulty` beforehand, each the same, and so has each of its
    severities.
    """
    keys = dict.fromkeys(each.cause.key for each in alternatives)
    found = {}
    for key in keys:
        pairs = [
            (likelihood, each)
            for likelihood, each in zip(likelihoods, alternatives, strict=True)
            if each.cause.key == key
        ]
        score = _log_sum([likelihood for likelihood, _ in pairs])
        score += log(faulty / len(keys) / len(pairs))
        found[key] = (score, max(pairs, key=lambda pair: pair[0])[1])
    return found


def _named(
    series: Sequence[_Series],
    by_cause: dict[str, tuple[float, _Alternative]],
    others: float,
    total: float,
) -> Iterable[Named]:
    """Yield the causes that explain curves better than nothing does, the most probable first."""
    ranked = sorted(by_cause.values(), key=lambda pair: -pair[0])
    if not ranked or ranked[0][0] <= others:
        return
    said: set[str] = set()
    count = 0
    for score, best in ranked:
        probability = exp(score - total)
        if best.cause.key in said or (count and probability < _WORTH_NAMING):
            continue
        alike = tuple(
            other.cause
            for other_score, other in ranked
            if other.cause.key not in said | {best.cause.key} and abs(other_score - score) < _ALIKE
        )
        said |= {best.cause.key, *(other.key for other in alike)}
        together = _log_sum([score, *(by_cause[other.key][0] for other in alike)])
        # The measurement that says most for a cause, beside both predictions.
        place = int(np.argmax(np.abs(best.change)))
        rows = [(rated, each) for each in series for rated in each.points]
        rated, whose = rows[place]
        yield Named(
            best.cause,
            best.severity if best.cause.unit else None,
            exp(together - total),
            _beside(rated, (rated.predicted_s or 0.0) * exp(best.change[place]), whose),
            alike,
        )
        count += 1
        if count == _MOST_NAMED:
            return


def _beside(rated: RatedPoint, explained_s: float, series: _Series) -> str:
    def shown(seconds: float) -> str:
        busbw = rated.busbw_of(seconds)
        small = busbw is None or rated.point.size_bytes <= BANDS["up to 64 KiB"]
        return format_time(seconds) if small or busbw is None else format_rate(busbw)

    low, high = rated.low_s or 0.0, rated.high_s or 0.0
    ends = sorted([low, high], reverse="B/s" in shown(low))
    run = series.findings.run
    return (
        f"{run.collective} of {format_bytes(rated.point.size_bytes)} on {run.num_gpus} GPUs:"
        f" measured {shown(rated.point.time_s)}, healthy {shown(ends[0])} to {shown(ends[1])}"
        f" (90 %), with this cause {shown(explained_s)}"
    )


def _levels(series: _Series, errors: dict[str, Any]) -> Iterable[Level]:
    """Yield where a curve stands among such machines, by range of sizes."""
    own = _prior_covariance([series], errors) + _scatter([series], errors)
    bands = band_of(series.curve.size_bytes)
    for number, name in enumerate(BANDS):
        here = bands == number
        if not np.any(here):
            continue
        off = float(np.mean((series.residual - series.centre)[here]))
        spread = float(np.sqrt(np.mean(own[np.ix_(here, here)])))
        ratio = exp(float(np.mean(series.residual[here])))
        yield Level(series.findings, name, ratio, 100 * _NORMAL.cdf(off / spread))


def _row_causes(series: Sequence[_Series]) -> Iterable[Named]:
    """Yield what single rows tell: many slow ones, or a first one that was not warmed up.

    Odds are those of so many slow rows among all, and of a slow first row.
    """
    shares, prior = tuner_table("causes")["rows"], tuner_table("causes")["prior"]
    by_key = {cause.key: cause for cause in causes()}
    first = [doubt for each in series for doubt in each.doubts if doubt.kind == FIRST_ROW]
    slow = [doubt for each in series for doubt in each.doubts if doubt.kind != FIRST_ROW]
    rows = sum(each.rows for each in series) - len(series)
    steady = rows - len(slow)
    score = len(slow) * log(shares["jitter"] / shares["steady"])
    score += steady * log((1 - shares["jitter"]) / (1 - shares["steady"]))
    score += log(prior["jitter"] / (1 - prior["jitter"]))
    found = []
    if score > 0:
        found.append(("jitter", score, slow))
    if first:
        score = len(first) * log(shares["warm_up"] / shares["steady"])
        score += log(prior["warm_up"] / (1 - prior["warm_up"]))
        found.append(("warm_up", score, first))
    for key, score, doubts in found:  # where many rows are slow, the first is one of them
        probability = 1 / (1 + exp(-min(score, 50.0)))
        yield Named(by_key[key], None, probability, _rows_in_words(doubts))


def _rows_in_words(doubts: Sequence[Doubt]) -> str:
    named = [format_bytes(doubt.point.size_bytes) for doubt in doubts]
    if len(named) == 1:
        return f"{named[0]}: {doubts[0].reason}"
    some = ", ".join(named[:_MOST_ROWS]) + ", …" * (len(named) > _MOST_ROWS)
    return f"{len(named)} rows: {some}"

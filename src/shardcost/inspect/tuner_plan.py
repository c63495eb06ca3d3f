"""From predictions to action: rules for NCCL's tuner plugin where another path would be faster.

NCCL runs what its own model puts lowest; shardcost predicts how long each of its paths takes
(`collective_time`). Over a dense sweep of sizes the fastest predicted path is compared with what
NCCL is predicted to run; neighbouring sizes with the same answer become one rule.

**When is a gain worth a rule?** A prediction has an error, known from the rows behind its
constants. Where the saving is within `ALREADY_FASTEST` of the time, NCCL's own choice stands. A
rule that saves more than the p90 error is *sound*: nine of ten predictions are closer than that.
One that saves less than that but more than the median error is *doubtful*: it is written as a
comment, to be measured first. What saves less is within the noise of the model and left out. All of
them lean on one thing that no error measures: a path's time at sizes where NCCL does not choose it
is carried over from sizes where it does. The file says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import ceil, log2
from typing import Any, Final

import numpy as np

from shardcost.cluster import Cluster
from shardcost.collectives.choice import least
from shardcost.collectives.library_time import CollectiveTime, collective_time
from shardcost.collectives.paths import exists, total
from shardcost.collectives.tuner import PathName
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.formats.nccl_tuner import COLLECTIVES, HEADING, Line, TunerRule
from shardcost.machine.libraries import default_library

ALREADY_FASTEST: Final = 0.02
"""Share of the time by which NCCL's choice may lose and still stand."""
_POINTS_PER_OCTAVE: Final = 16
_IN_FILE: Final = {"chain": "ring"}
"""What the file calls an algorithm, where it differs: broadcast and reduce run along a ring."""


@dataclass(frozen=True)
class PlannedRule:
    """A rule, and what it is predicted to save."""

    rule: TunerRule
    instead_of: PathName
    """What NCCL is predicted to run in the middle of the range."""
    saved: float
    """Share of the time, in the middle of the range's sizes."""
    saved_at_most: float
    median_pct: float
    """Error of the predictions for that group on the rows behind their constants."""
    p90_pct: float

    @property
    def sound(self) -> bool:
        """Whether it saves more than the p90 error."""
        return 100 * self.saved > self.p90_pct


@dataclass(frozen=True)
class TunerPlan:
    """Rules for a cluster, and how far to trust them."""

    cluster: Cluster
    rules: tuple[PlannedRule, ...]
    sizes: int
    """Sizes that were looked at, over all groups and collectives."""
    sizes_already_fastest: int
    """Of those, where NCCL's own choice is within `ALREADY_FASTEST` of the fastest."""
    ranges_within_error: int
    """Ranges whose gain is below the median error, which are left out."""
    median_pct: float
    """Error of the predictions, for the group with the largest."""
    p90_pct: float
    notes: tuple[str, ...]

    @property
    def sound(self) -> tuple[PlannedRule, ...]:
        """The rules that are in force."""
        return tuple(rule for rule in self.rules if rule.sound)


def tuner_plan(
    collectives: Sequence[str],
    cluster: Cluster,
    gpus: Sequence[int],
    nodes: int | None = None,
    sizes: tuple[int, int] = (8, 8 * 2**30),
) -> TunerPlan:
    """Return the rules that are predicted to make collectives faster.

    Args:
        collectives: Some of those that the plugin can tune.
        cluster: With its network, if groups reach beyond one domain.
        gpus: Sizes of the groups; each gets rules of its own.
        nodes: Nodes that a group is spread over; as few as hold it if left out.
        sizes: Least and most bytes.
    """
    for collective in collectives:
        if collective not in COLLECTIVES:
            raise UnknownNameError("collective of a tuner file", collective, COLLECTIVES)
    if default_library(cluster) != "nccl":
        raise BadValueError("cluster", cluster.name, "one of NVIDIA's: the plugin is NCCL's")
    results = [
        collective_time(collective, _sweep(*sizes), cluster, count, nodes)
        for collective, count in product(collectives, gpus)
    ]
    medians, p90s = zip(*map(_errors, results), strict=True)
    rules = [rule for result in results for rule in _ranges(result)]
    beyond = [rule for rule in rules if 100 * rule.saved > rule.median_pct]
    return TunerPlan(
        cluster=cluster,
        rules=tuple(beyond),
        sizes=sum(np.size(result.size_bytes) for result in results),
        sizes_already_fastest=sum(
            int(np.sum(_saved(result) <= ALREADY_FASTEST)) for result in results
        ),
        ranges_within_error=len(rules) - len(beyond),
        median_pct=max(medians),
        p90_pct=max(p90s),
        notes=tuple(dict.fromkeys(note for result in results for note in _notes(result))),
    )


def _notes(result: CollectiveTime) -> Iterator[str]:
    yield from result.notes
    if not result.estimates:
        yield f"what NCCL chooses for {result.collective} is not modelled: taken for the fastest"


def lines(plan: TunerPlan) -> list[Line]:
    """Return the content of the file: caveats, then each rule below what it saves."""
    network = f" over {plan.cluster.network.name}" if plan.cluster.network else ""
    errors = f"{plan.median_pct:.1f} % (median), {plan.p90_pct:.1f} % (p90)"
    content: list[Line] = [
        f"Rules for NCCL's tuner plugin on {plan.cluster.name}{network}, predicted by shardcost.",
        f"Predicted, not measured: on measured rows predictions are off by up to {errors}.",
        "The time of a path at sizes where NCCL does not choose it is carried over from others.",
        "In force are rules that save more than the p90 error. Those behind 'measure first:' save",
        "less than that, more than the median error: remove the words to try them.",
        *(f"Note: {note}." for note in plan.notes),
        HEADING,
    ]
    for rule in plan.rules:
        saves = f"saves {100 * rule.saved:.0f} %, up to {100 * rule.saved_at_most:.0f} %"
        against = f"against {' '.join(rule.instead_of)} (p90 error {rule.p90_pct:.1f} %)"
        line = rule.rule if rule.sound else f"measure first: {rule.rule}"
        content += ["", f"{saves}, {against}", line]
    return content


def _sweep(least_bytes: int, most_bytes: int) -> Any:
    """Return whole sizes, so dense that a switch of paths is seen where it is."""
    if not 0 < least_bytes < most_bytes:
        raise BadValueError("sizes", (least_bytes, most_bytes), "from a smaller to a larger one")
    points = 1 + ceil(_POINTS_PER_OCTAVE * log2(most_bytes / least_bytes))
    return np.unique(np.round(np.geomspace(least_bytes, most_bytes, points)))


def _times(result: CollectiveTime) -> dict[PathName, Any]:
    """Return the time of each path that can run on the group."""
    shape = np.shape(result.size_bytes)
    return {
        path: np.broadcast_to(np.where(exists(path, result.group), total(parts), np.inf), shape)
        for path, parts in result.paths.items()
    }


def _saved(result: CollectiveTime) -> Any:
    """Return the share of the time that the fastest path would save, size by size."""
    if result.group.ranks == 1:
        return np.zeros(np.shape(result.size_bytes))
    return 1 - least(_times(result)) / result.time_s


def _errors(result: CollectiveTime) -> tuple[float, float]:
    """Return the median and p90 error, in percent, of the constants that a prediction rests on."""
    fits = [calibration.fit for calibration in result.calibrations]
    return max(fit.median_pct for fit in fits), max(fit.p90_pct for fit in fits)


def _ranges(result: CollectiveTime) -> Iterator[PlannedRule]:
    """Yield a rule for each run of sizes at which the same other path is faster."""
    times = _times(result)
    paths = list(times)
    fastest = np.argmin(np.stack(list(times.values())), axis=0)
    sizes, saved = result.size_bytes, _saved(result)
    answers = np.where(saved > ALREADY_FASTEST, fastest, -1)
    for answer, run in groupby(range(len(answers)), key=lambda place: int(answers[place])):
        places = list(run)
        if answer >= 0:
            algorithm, protocol = paths[answer]
            last, middle = places[-1], places[len(places) // 2]
            rule = TunerRule(
                result.collective,
                int(sizes[places[0]]),
                int(sizes[last] if last + 1 == len(sizes) else sizes[last + 1] - 1),
                _IN_FILE.get(algorithm, algorithm),
                protocol.lower(),
                nodes=int(result.group.domains),
                ranks=int(result.group.ranks),
            )
            instead = (str(result.algorithm[middle]), str(result.protocol[middle]))
            typical, most = float(np.median(saved[places])), float(np.max(saved[places]))
            yield PlannedRule(rule, instead, typical, most, *_errors(result))

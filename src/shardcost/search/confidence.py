"""How surely a layout keeps its limits, by the errors of similar measurements.

A measured time over the estimate scatters as the residuals of measurements like it do
(`shardcost.catalog.errors`), those that its interval is made from. A limit on time, or on a rate,
which is tokens over time, holds in the share of cases in which the time does not grow beyond it.
The other way round, a limit that is to hold in nine of ten cases is one on the ninth decile.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Final

import numpy as np

from shardcost.estimate.interval import least_share, residuals_of
from shardcost.estimate.step import estimate
from shardcost.records import NamedTuple
from shardcost.search.objectives import Figures, Limit
from shardcost.search.question import Question
from shardcost.workload import Prefill

if TYPE_CHECKING:
    from shardcost.estimate.result import Estimate
    from shardcost.search.found import Candidate


_ROUNDING: Final = 1e-9


class Held(NamedTuple):
    """A limit, and the share of cases in which a layout keeps it."""

    limit: Limit
    share: float

    @property
    def said(self) -> str:
        """In words."""
        return self.limit.said("at least" if self.limit.at_least else "at most")


def held(candidate: Candidate) -> tuple[Held, ...]:
    """Return the limits of a search, each with the share of cases in which a layout keeps it."""

    def share(limit: Limit) -> float:
        step = _prompt(candidate) if limit.of_prompt else candidate.estimate
        room = limit.value / limit.bound if limit.at_least else limit.bound / limit.value
        # No step is faster than the datasheet allows, whatever the errors.
        possible = room >= least_share(step) * (1 - _ROUNDING)
        return residuals_of(step).share_below(log(room)) if possible else 0.0

    limits = candidate.question.constraints.limits(candidate.figures, candidate.workload)
    return tuple(Held(limit, share(limit)) for limit in limits)


def _prompt(candidate: Candidate) -> Estimate:
    """Return the estimate of the prompt that was priced beside the decoding."""
    question, layout = candidate.question, candidate.layout
    place = (question.model, question.cluster, layout)
    return estimate(*place, question.prompt_of(layout.dp), software=candidate.software)


def surely(question: Question, figures: Figures) -> Figures:
    """Return figures as limits see them: with times that are not exceeded at the confidence.

    Of all layouts on as many devices the farthest residuals count, so that a limit that is kept
    here holds at least as surely as was asked for.
    """
    if question.constraints.confidence is None:
        return figures
    counts, slower = question.slowdowns
    place = np.searchsorted(counts, figures.gpus)
    first_s = figures.ttft_s
    return figures._replace(
        time_s=figures.time_s * slower[question.workload.phase][place],
        ttft_s=None if first_s is None else first_s * slower[Prefill.phase][place],
    )

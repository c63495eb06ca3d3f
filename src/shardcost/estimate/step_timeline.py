"""One step drawn: all stages of a training step, or one pass of a prefill or of decoding."""

from __future__ import annotations

from shardcost.estimate.events import Drawing, check
from shardcost.estimate.result import Estimate
from shardcost.estimate.serving_timeline import serving_timeline
from shardcost.estimate.training_timeline import training_timeline
from shardcost.workload import Train


def step_timeline(found: Estimate) -> Drawing:
    """Return one step of one layout; of a long one a part, which says what it leaves out.

    Raises:
        BadTypeError: The estimate is of an array of layouts.
    """
    check(found, "step")
    return (
        training_timeline(found) if isinstance(found.workload, Train) else serving_timeline(found)
    )

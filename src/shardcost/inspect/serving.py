"""What results of a serving benchmark say, beside what a deployment is predicted to do."""

from __future__ import annotations

from dataclasses import dataclass

from shardcost.formats.serving_results import ServingResults
from shardcost.load.deployment import Deployment
from shardcost.validate.serving_results import Compared, compared


@dataclass(frozen=True, eq=False)
class ServingFindings:
    """The runs of a file, each beside its prediction where a deployment is given."""

    deployment: Deployment | None
    runs: tuple[Compared, ...]


def inspected(reading: ServingResults, deployment: Deployment | None = None) -> ServingFindings:
    """Return the runs of a file, compared with a deployment where one is given."""
    if deployment is None:
        return ServingFindings(None, tuple(Compared(run, None, ()) for run in reading.runs))
    return ServingFindings(deployment, tuple(compared(deployment, run) for run in reading.runs))

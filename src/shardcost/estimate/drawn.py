"""The timeline of an estimated step as it is drawn: communication inside the layers told apart.

Prices and search need only how long an operation takes; a picture also shows how much of it is
communication that nothing hides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardcost.checks import is_array
from shardcost.errors import BadValueError
from shardcost.estimate.ledger import PassParts
from shardcost.estimate.result import Estimate
from shardcost.schedule.timeline import Timeline, timeline_of
from shardcost.schedule.work import Stage
from shardcost.workload import Train


def drawn_timeline(found: Estimate) -> Timeline:
    """Return `Estimate.timeline` with the exposed communication of the layers on a lane of its own.

    Raises:
        BadValueError: where nothing is trained, or degrees are arrays.
    """
    if not isinstance(found.workload, Train) or is_array(found.time_s):
        raise BadValueError("timeline", found.workload.phase, "of one training step")
    work, stages, shares = found.ledger.step_work, found.program.stages, found.ledger.shares

    def shown(stage: Stage, layers: Any) -> Stage:
        return replace(
            stage,
            forward_comm_s=layers * _exposed_s(PassParts.of(shares, "forward")),
            backward_comm_s=layers * _exposed_s(PassParts.of(shares, "backward")),
        )

    work = replace(
        work,
        first=shown(work.first, stages.first.layers),
        middle=shown(work.middle, stages.middle.layers),
        last=shown(work.last, stages.last.layers),
    )
    return timeline_of(work, found.layout.schedule)


def _exposed_s(parts: PassParts) -> Any:
    return sum(parts.exposed_s.values())

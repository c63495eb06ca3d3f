"""The timeline of an estimated step as it is drawn: communication inside the layers told apart.

Prices and search need only how long an operation takes; a picture also shows how much of it is
communication that nothing hides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardcost.checks import is_array
from shardcost.errors import BadValueError
from shardcost.estimate.busy import Busy
from shardcost.estimate.result import Estimate
from shardcost.estimate.work import step_work
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
    work = step_work(found.program, found.work)
    layer, stages = found.work.layer, found.program.stages

    def shown(stage: Stage, layers: Any) -> Stage:
        return replace(
            stage,
            forward_comm_s=layers * _exposed_s(layer.forward),
            backward_comm_s=layers * _exposed_s(layer.backward),
        )

    work = replace(
        work,
        first=shown(work.first, stages.first.layers),
        middle=shown(work.middle, stages.middle.layers),
        last=shown(work.last, stages.last.layers),
    )
    return timeline_of(work, found.layout.schedule)


def _exposed_s(busy: Busy) -> Any:
    return sum(busy.exposed_s.values())

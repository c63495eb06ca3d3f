"""A sweep over sizes as curves: the prediction, its interval, every path, and what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from shardcost.collectives.interval import interval_of
from shardcost.collectives.library_time import CollectiveTime
from shardcost.collectives.paths import total
from shardcost.collectives.sweep import switches
from shardcost.errors import BadValueError
from shardcost.report import interval
from shardcost.report.collective import link, notes, question_as_data
from shardcost.report.formulas import number
from shardcost.validate.shipped_points import Point


def as_data(sweep: CollectiveTime, points: Iterable[Point] = ()) -> dict[str, Any]:
    """Return a sweep over sizes as columns, one entry per size, and measured points beside it."""
    if sweep.group.ranks == 1:
        raise BadValueError("gpus", 1, "at least 2 for a curve: one by itself sends nothing")
    found = interval_of(sweep)
    nominal = link(sweep)
    return {
        **question_as_data(sweep),
        "size_bytes": [number(size) for size in sweep.size_bytes],
        "time_s": sweep.time_s.tolist(),
        "low_s": found.low_s.tolist(),
        "high_s": found.high_s.tolist(),
        "interval": interval.about(found),
        "bound_s": np.broadcast_to(sweep.bound_s, sweep.time_s.shape).tolist(),
        "busbw_bytes_per_s": sweep.busbw_bytes_per_s.tolist(),
        "algorithm": sweep.algorithm.tolist(),
        "protocol": sweep.protocol.tolist(),
        "paths": [
            {"algorithm": path[0], "protocol": path[1], "time_s": _column(total(parts), sweep)}
            for path, parts in sweep.paths.items()
        ],
        "switches": [
            {
                "size_bytes": number(each.size_bytes),
                "algorithm": each.algorithm,
                "protocol": each.protocol,
            }
            for each in switches(sweep)
        ],
        "link": {"bytes_per_s": nominal.bytes_per_s, "name": nominal.name},
        "points": [each._asdict() | {"size_bytes": number(each.size_bytes)} for each in points],
        "notes": notes(sweep),
    }


def _column(times: Any, sweep: CollectiveTime) -> list[float | None]:
    """Return the seconds of a path at each size; None where it cannot run."""
    cells = np.broadcast_to(times, sweep.time_s.shape)
    return [float(each) if np.isfinite(each) else None for each in cells]

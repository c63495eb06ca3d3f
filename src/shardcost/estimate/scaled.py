"""An estimate at other degrees of the same devices, for a curve around it."""

from __future__ import annotations

from dataclasses import replace

from shardcost.errors import ShardcostError
from shardcost.estimate.result import Estimate
from shardcost.estimate.scaling import Row, Scaling, degrees_to_vary
from shardcost.estimate.step import estimate


def tensor_scaling(found: Estimate) -> Scaling:
    """Return what the layout of an estimate costs at each tensor-parallel degree.

    Devices stay as many as they are, context parallelism and the pipeline too, and data parallelism
    takes what is left.

    >>> from shardcost import Decode, Layout
    >>> work = Decode(batch=64, context_tokens=4096)
    >>> found = tensor_scaling(estimate("llama3-70b", "h100_sxm", Layout(tp=8), work))
    >>> [(row.value, row.found.layout.dp) for row in found.rows]
    [('1', 8), ('2', 4), ('4', 2), ('8', 1)]
    """
    layout = found.layout
    room = int(found.devices // (layout.cp * layout.pp))
    degrees = {each for each in degrees_to_vary(found.model, room, "tp") if room % each == 0}
    rows = tuple(_row(found, tp, room // tp) for tp in sorted(degrees | {int(layout.tp)}))
    return Scaling("tp", rows, found.workload.phase)


def _row(found: Estimate, tp: int, dp: int) -> Row:
    if tp == found.layout.tp:
        return Row(str(tp), found)
    try:
        layout = replace(found.layout, tp=tp, dp=dp)
        other = estimate(
            found.model, found.cluster, layout, found.workload, software=found.software
        )
    except ShardcostError as error:
        return Row(str(tp), None, str(error))
    return Row(str(tp), other)

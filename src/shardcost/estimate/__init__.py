"""What a layout costs: `estimate(model, cluster, layout, workload)` joins the rooms below.

::

    program ──► price ──► busy ──► work ──► schedule ──► result
    (what)     (seconds  (by kind, (by     (bubbles,    (`Estimate`)
                each)     exposed)  stage)  overlap)

`placement` says where the groups sit, `traffic` what they send, `explain` why a number is as it is;
`serving` prices whole requests, `scaling` what more of an option brings.
"""

from shardcost.estimate.join import estimate
from shardcost.estimate.result import Estimate

__all__ = ["Estimate", "estimate"]

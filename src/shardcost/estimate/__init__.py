"""What a layout costs: `estimate(model, cluster, layout, workload)` joins the rooms below.

::

    program ──► price ──► busy ──► work ──► schedule ──► result
    (what)     (seconds  (by kind, (by     (bubbles,    (`Estimate`)
                each)     exposed)  stage)  overlap)

`placement` says where the groups sit, `traffic` and `messages` what they send, `calls` what happens
how often, `interval` how far off it may be; `why` and `explain` say why a number is as it is,
`roofline` how near kernels come to what the device allows, `layer_timeline` and `step_timeline`
what runs when; `serving` prices whole requests, `scaling` what more of an option brings.
"""

from shardcost.estimate.join import estimate
from shardcost.estimate.result import Estimate

__all__ = ["Estimate", "estimate"]

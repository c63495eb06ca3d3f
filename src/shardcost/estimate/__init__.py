"""What a layout costs: `estimate(model, cluster, layout, workload)` joins the rooms below.

::

    program ──► price ──► ledger ──► schedule ──► result
    (what one  (seconds  (times x   (bubbles,    (`Estimate`: sums
     rank does) each)     price)     overlap)     over the ledger)

`interval` says how far off it may be, `why` and `explain` why a number is as it is, `roofline` how
near kernels come to what the device allows, `layer_timeline` and `step_timeline` what runs when;
`serving` prices whole requests, `scaling` what more of an option brings.
"""

from shardcost.estimate.result import Estimate
from shardcost.estimate.step import estimate

__all__ = ["Estimate", "estimate"]

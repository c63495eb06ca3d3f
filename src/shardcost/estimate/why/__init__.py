"""Where a figure of an estimate comes from: `why`, and `figures` for all that can be asked.

::

    asked ──► rates, time, comm, memory, operation ──► reason  (`Why`: formula, values, sources)
              (one module for each kind of figure)  └► error   (what rows like it have shown)
"""

from shardcost.estimate.why.asked import figures, why
from shardcost.estimate.why.reason import Part, Why
from shardcost.receipt import Term

__all__ = ["Part", "Term", "Why", "figures", "why"]

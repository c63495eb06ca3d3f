"""The constants of jitter: spread of nodes, scatter of steps, delays of all-reduces.

They are data of ``catalog/tuner/jitter.toml``, each with the rows and the error of its fit; the
formulas are `shardcost.jitter`'s.
"""

from __future__ import annotations

from shardcost import catalog
from shardcost.checks import Noun, Quantity, noun, positive, text


@noun
class Jitter(Noun):
    """How nodes, steps and delays of a network scatter, as shares of their mean or median."""

    node_spread: Quantity = positive()
    """Standard deviation of the time that nodes take for the same work."""
    step_scatter: Quantity = positive()
    """Standard deviation of the steps of a run."""
    tail: Quantity = positive()
    """What delays add to the 99th percentile of a small all-reduce, for one node."""
    tail_index: Quantity = positive()
    """Exponent of the power law of delays."""
    half_bytes: Quantity = positive()
    """The size of an array from which on delays are less than half of that."""
    nodes_source: str = text()
    steps_source: str = text()
    delays_source: str = text()


def catalog_jitter() -> Jitter:
    """Return the constants of the catalog."""
    table = catalog.tuner_table("jitter")
    nodes, steps, delays = (table[name] for name in ("nodes", "steps", "all_reduce"))
    return Jitter(
        node_spread=nodes["node_spread"],
        step_scatter=steps["step_scatter"],
        tail=delays["tail"],
        tail_index=delays["tail_index"],
        half_bytes=delays["half_bytes"],
        nodes_source=nodes["fit"]["source"],
        steps_source=steps["fit"]["source"],
        delays_source=delays["fit"]["source"],
    )

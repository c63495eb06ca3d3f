"""Every collective of one step: what is sent, how often, how long each takes, and by which path.

The entries of the ledger that are collectives, grouped: count times seconds, added up by group, is
`Estimate.comm_s`, hidden or not. Not among them is what is no message: GEMMs that run slower
beside a collective, ranks that wait for the slowest, and the host.
"""

from __future__ import annotations

from shardcost.checks import is_array
from shardcost.collectives.library_time import CollectiveTime
from shardcost.errors import BadTypeError
from shardcost.estimate.ledger import Entry
from shardcost.estimate.price import Prices
from shardcost.estimate.result import Estimate
from shardcost.machine.libraries import MULTIMEM
from shardcost.program.operations import Collective
from shardcost.records import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """One collective, as often as it happens in a step."""

    name: str
    group: str
    """``tp``, ``cp``, ``ep``, ``dp`` or ``pp``: one of `Estimate.comm_s`."""
    collective: str
    size_bytes: float
    """As nccl-tests and ``shardcost collective`` count it."""
    ranks: int
    nodes: int
    """That the ranks are on."""
    count: float
    """Times a step; a mean, and then no whole number, where a stage has layers of several kinds."""
    time_s: float
    """Of one, by itself."""
    total_s: float
    """Of all of them in a step."""
    algorithm: str
    protocol: str
    library: str


def messages(estimate: Estimate) -> tuple[Message, ...]:
    """Return every different collective of a step, that on which most time is spent first.

    >>> from shardcost import Decode, Layout, estimate
    >>> step = Decode(batch=64, context_tokens=4096)
    >>> first = messages(estimate("llama3-70b", "h100_sxm", Layout(tp=8), step))[0]
    >>> first.collective, first.size_bytes, first.ranks, first.count
    ('all_reduce', 1048576.0, 8, 80.0)

    Raises:
        BadTypeError: The estimate is of an array of layouts.
    """
    if is_array(estimate.time_s):
        layout = estimate.layout
        raise BadTypeError("layout", layout, "one layout, not an array of them, for messages")
    listed = (
        _message(entry, entry.op, estimate.ledger.prices)
        for entry in estimate.operations.values()
        if isinstance(entry.op, Collective) and entry.op.ranks > 1 and entry.times > 0
    )
    return tuple(sorted(listed, key=lambda message: -message.total_s))


def _message(entry: Entry, op: Collective, prices: Prices) -> Message:
    result = prices.collective(op)
    if isinstance(result, CollectiveTime):
        path = (str(result.algorithm), str(result.protocol), result.library)
    else:
        path = (result.kernel, "low latency" if result.low_latency else "normal", result.library)
    if prices.is_multimem(op):
        path = ("multicast", "direct", MULTIMEM)
    return Message(
        op.name,
        entry.group,
        op.collective,
        op.size_bytes,
        int(op.ranks),
        int(result.group.nodes),
        entry.times,
        entry.seconds,
        entry.total_s,
        *path,
    )

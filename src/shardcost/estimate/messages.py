"""Every collective of one step: what is sent, how often, how long each takes, and by which path.

What a rank of the stage that sets the pace sends, as `Estimate.comm_s` counts it: the layers of
that stage and the ends that it has, the data-parallel collectives of the step and of the layers,
the sends to the neighbouring stages. So count times seconds, added up by group, is `comm_s`, hidden
or not. Not among them is what is no message: products that run slower beside a collective, ranks
that wait for the slowest, and the host.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardcost.checks import is_array
from shardcost.errors import BadTypeError
from shardcost.estimate.calls import calls_of
from shardcost.estimate.price import Prices
from shardcost.estimate.result import Estimate
from shardcost.machine.libraries import MULTIMEM
from shardcost.program.operations import Collective


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


def messages(found: Estimate) -> tuple[Message, ...]:
    """Return every different collective of a step, that on which most time is spent first.

    >>> from shardcost import Decode, Layout, estimate
    >>> step = Decode(batch=64, context_tokens=4096)
    >>> first = messages(estimate("llama3-70b", "h100_sxm", Layout(tp=8), step))[0]
    >>> first.collective, first.size_bytes, first.ranks, first.count
    ('all_reduce', 1048576.0, 8, 80.0)

    Raises:
        BadTypeError: The estimate is of an array of layouts.
    """
    if is_array(found.time_s):
        raise BadTypeError("layout", found.layout, "one layout, not an array of them, for messages")
    prices = found.ledger.prices
    listed = (
        _message(call.op, call.times, call.seconds, prices)
        for call in calls_of(found).values()
        if isinstance(call.op, Collective) and call.op.ranks > 1 and call.times > 0
    )
    return tuple(sorted(listed, key=lambda each: -each.total_s))


def _message(op: Collective, count: float, time_s: float, prices: Prices) -> Message:
    result = prices.collective(op)
    path = (str(result.algorithm), str(result.protocol), result.library)
    if prices.is_multimem(op):
        path = ("multicast", "direct", MULTIMEM)
    return Message(
        name=op.name,
        group=op.group.partition("_")[0],  # experts' gradients and copies of shards are dp's
        collective=op.collective,
        size_bytes=op.size_bytes,
        ranks=int(op.ranks),
        nodes=int(result.group.nodes),
        count=count,
        time_s=time_s,
        total_s=count * time_s,
        algorithm=path[0],
        protocol=path[1],
        library=path[2],
    )

"""What is requested of a collective, or of dispatch and combine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardcost import options
from shardcost.checks import name_among
from shardcost.request import Finder, Given, cluster_of, value_of

if TYPE_CHECKING:
    from shardcost.collectives.dispatch import DispatchTime
    from shardcost.collectives.library_time import CollectiveTime


def collective_of(given: Given, finder: Finder, size_bytes: Any) -> CollectiveTime:
    """Return how long a collective takes, of one size or of an array of them."""
    from shardcost.collectives.library_time import collective_time

    cluster = cluster_of(given, finder)
    read = {option.name: value_of(given, option) for option in options.COLLECTIVE[2:]}
    cluster = cluster.holding(read["gpus"])
    return collective_time(
        collective_name(given["collective"]),
        size_bytes,
        cluster,
        read["gpus"],
        read["nodes"],
        library=read["library"],
        mode=read["mode"],
        algorithm=read["algorithm"],
        protocol=read["protocol"],
    )


def dispatch_of(given: Given, finder: Finder) -> DispatchTime:
    """Return how long dispatch or combine takes."""
    from shardcost.collectives.dispatch import dispatch_time
    from shardcost.machine.dispatch import default_kernels

    cluster = cluster_of(given, finder)
    read = {
        option.name: value_of(given, option)
        for option in (*options.EXCHANGE, *options.COLLECTIVE[2:])
    }
    return dispatch_time(
        exchange_phase(given["collective"]) or "",
        cluster,
        read["gpus"],
        *(read[name] for name in ("tokens", "hidden", "topk", "experts")),
        nodes=read["nodes"],
        library=default_kernels(cluster) if read["library"] is None else read["library"],
        low_latency=bool(read["low_latency"]),
        dtype=read["dtype"],
        sms=read["sms"],
        mode=read["mode"],
        node_limit=read["node_limit"],
    )


def exchange_phase(text: str) -> str | None:
    """Return ``dispatch`` or ``combine`` where a text names one of the two."""
    from shardcost.machine.dispatch import PHASES

    return next((phase for phase in PHASES if phase == text.lower()), None)


def collective_name(text: str) -> str:
    """Return a collective's name; capitals, hyphens and underscores do not matter."""
    from shardcost.collectives import COLLECTIVES

    return name_among("collective", text, COLLECTIVES)

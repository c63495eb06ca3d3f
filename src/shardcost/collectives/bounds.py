"""What the wire allows: the rates of links, and the time below which no algorithm can be."""

from __future__ import annotations

from typing import Any

from shardcost.arrays import choose, largest, smallest
from shardcost.collectives.group import Group


def bus_factor(collective: str, ranks: Any) -> Any:
    """Return busbw over algbw (nccl-tests, doc/PERFORMANCE.md)."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in {"all_gather", "reduce_scatter", "all_to_all"}:
        return (ranks - 1) / ranks
    return ranks / ranks


def nominal_rate(collective: str, group: Group) -> Any:
    """Return the nominal rate of the slowest link on the way.

    Inside a domain that is what a device sends at. A ring leaves a domain through all its ports
    together; in an all-to-all and in a send each device uses its own.
    """
    alone = collective == "send_recv"
    inside = group.pair_bytes_per_s if alone else group.link_bytes_per_s
    own_port = alone or collective == "all_to_all"
    outside = group.port_bytes_per_s if own_port else group.domain_port_bytes_per_s
    return choose(group.domains > 1, smallest(inside, outside), inside)


def wire_bound_s(collective: str, size_bytes: Any, group: Group, *, in_switch: bool = False) -> Any:
    """Return the time below which no algorithm can be: bytes on the busiest link, nominal rate.

    Inside a domain of g ranks, a rank of an all-reduce sends at least 2 (g-1)/g of the buffer,
    between N domains each sends 2 (N-1)/N of it (Patarasuk and Yuan, Bandwidth optimal all-reduce
    algorithms, 2009); half of that for reduce-scatter and all-gather. A switch that reduces needs
    the buffer once.
    """
    near, domains = group.ranks_per_domain, group.domains
    inside, outside = group.link_bytes_per_s, group.domain_port_bytes_per_s
    if collective == "all_to_all":
        sent_near, sent_far = (near - 1) / group.ranks, (group.ranks - near) / group.ranks
        outside = group.port_bytes_per_s
    elif collective in {"all_reduce", "all_gather", "reduce_scatter"}:
        sent_near, sent_far = bus_factor(collective, near), bus_factor(collective, domains)
        if in_switch:
            sent_near = choose(near > 1, 1.0, 0.0)
    else:
        sent_near, sent_far = choose(near > 1, 1.0, 0.0), choose(domains > 1, 1.0, 0.0)
        if collective == "send_recv":
            inside, outside = group.pair_bytes_per_s, group.port_bytes_per_s
    far = choose(domains > 1, sent_far / choose(domains > 1, outside, 1.0), 0.0)
    return size_bytes * largest(sent_near / inside, far)

"""NCCL's own model of time, with which it chooses an algorithm and a protocol.

NCCL estimates, for each algorithm and protocol, a latency from tables and a rate from the channels
that its graph search found, and runs the pair with the lowest sum (Demystifying NCCL, Hu et al.,
2025, arXiv:2507.04786, describes the protocols; the tables are in ``catalog/tuner/nccl.toml``). It
was built to rank, not to predict: base latencies are the same for every generation. So shardcost
takes from it *what runs*, and from measurements *how long that takes* (`paths`).

Everything here takes numbers or arrays: sizes, ranks and nodes broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from shardcost.arrays import (
    choose,
    first_not_less,
    floor,
    largest,
    log2,
    looked_up,
    mantissa_exponent,
    smallest,
)
from shardcost.catalog import tuner_table
from shardcost.checks import anywhere
from shardcost.collectives.group import Group, most_heads
from shardcost.machine.libraries import nccl_generation

PathName = tuple[str, str]
"""An algorithm and a protocol, such as ``("ring", "LL")``."""
PROTOCOLS: Final = ("LL", "LL128", "Simple")
COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter")
_MICRO: Final = 1e-6
_GB: Final = 1e9
_INFINITE: Final = float("inf")
Estimate = Callable[[Any], Any]
"""Takes the bytes of a buffer; returns the seconds that NCCL reckons with for a path."""


def tables() -> dict[str, Any]:
    """Return NCCL's constants, as the catalog has them."""
    return tuner_table("nccl")


def architecture_row(group: Group) -> str:
    """Return the row of NCCL's tables for the devices of a group, by compute capability."""
    return nccl_generation(group.cluster.device)


def steps(collective: str, ranks: Any) -> Any:
    """Return the steps of a ring: 2(n-1) for an all-reduce, n-1 for its halves."""
    return (2 if collective == "all_reduce" else 1) * (ranks - 1)


def tuner_times(collective: str, size_bytes: Any, group: Group) -> Mapping[PathName, Any]:
    """Return NCCL's estimate in seconds for each pair that it would consider; inf where it cannot.

    Trees inside one domain are left out: NCCL's figures never prefer one there to a ring. The size
    is that of the whole buffer, in bytes.
    """
    key = ("NCCL's estimates", collective)
    if key not in group.memo:
        group.memo[key] = _estimates(collective, group)
    estimates: dict[PathName, Estimate] = group.memo[key]
    return {path: time_s(size_bytes) for path, time_s in estimates.items()}


def _over_network(found: dict[PathName, Estimate], group: Group) -> dict[PathName, Estimate]:
    """Return the estimates without those of paths that NCCL does not run over the network.

    NCCL runs LL128 by itself only where a GPU reaches its port over PCIe switches alone
    (``ncclTopoTuneModel``), and some networks are to be used with few protocols or algorithms.
    """
    network = group.cluster.network
    if network is None or not (network.protocols or network.algorithms):
        return found
    running = {
        path: time_s
        for path, time_s in found.items()
        if path[1] in (network.protocols or path) and path[0] in (network.algorithms or path)
    }
    if not anywhere(group.domains == 1):
        return running
    return {
        path: time_s if path in running else _inside_alone(time_s, group)
        for path, time_s in found.items()
    }


def _inside_alone(time_s: Estimate, group: Group) -> Estimate:
    """Return an estimate that holds inside a domain, and is infinite across domains."""
    return lambda size_bytes: choose(group.domains == 1, time_s(size_bytes), _INFINITE)


def _estimates(collective: str, group: Group) -> dict[PathName, Estimate]:
    """Return NCCL's estimate for each pair that it would consider on a group."""
    found: dict[PathName, Estimate] = {}
    channels = _channels(group)
    for index, protocol in enumerate(PROTOCOLS):
        if protocol == "LL128" and not group.has_nvlink:
            continue
        found["ring", protocol] = _ring(collective, group, channels, index)
        if collective == "all_reduce" and anywhere(group.domains > 1):
            found["tree", protocol] = _tree(group, channels, index)
    rules = tables()["in_switch"]["efficiency"]
    if group.tier.in_switch_reduction and architecture_row(group) in rules:
        reduces = collective == "all_reduce"
        if anywhere(group.domains == 1 if reduces else gathers_in_switch(group)):
            found["nvls", "Simple"] = _nvls(collective, group)
        shared = (group.domains > 1) & (group.ranks_per_domain > 1)
        if collective == "all_reduce" and anywhere(shared):
            found["nvls_tree", "Simple"] = _nvls_tree(group)
    return _over_network(found, group)


def gathers_in_switch(group: Group) -> Any:
    """Return where the switch can gather and scatter: every rank of a domain heads its block."""
    return (group.domains == 1) & (group.ranks <= tables()["in_switch"]["most_arity"])


def _by_nodes(row: list[float], group: Group) -> Any:
    """Return the figure of a table for one, two, or three and more nodes."""
    return choose(group.domains == 1, row[0], choose(group.domains == 2, row[1], row[2]))


def _ll_cap(group: Group) -> Any:
    """Return the rate in GB/s that NCCL grants LL at most."""
    caps = tables()["cap_gb_per_s"]
    inside = _by_nodes(caps["ll"][architecture_row(group)], group)
    return choose(group.domains == 1, inside, _by_nodes(caps["ll_across_nodes"], group))


def _channels(group: Group) -> tuple[Any, Any, Any]:
    """Return how many channels the graph search finds, and their joint rates in GB/s.

    Of rings, and of trees.
    """
    graph = tables()["graph"]
    if group.has_nvlink:
        inside = graph["nvlink_share"] * group.link_bytes_per_s / _GB
        channels = inside / graph["channel_gb_per_s"][architecture_row(group)]
    else:
        inside = graph["pcie_share"] * group.link_bytes_per_s / _GB
        crosses_sockets = group.ranks_per_domain > group.tier.gpus / 2
        inside = choose(crosses_sockets, smallest(inside, graph["host_link_gb_per_s"]), inside)
        channels = graph["pcie_channels"]
    outside = graph["network_share"] * group.domain_port_bytes_per_s / _GB
    # Between two nodes each sends a tree's buffer once, and the search lets its channels inside run
    # at up to twice their rate outside.
    twice = choose(group.domains == 2, 2.0, 1.0)
    across = group.domains > 1
    ring, tree = (
        choose(across, smallest(inside, each), inside) for each in (outside, twice * outside)
    )
    return channels, ring, tree


def _ring(collective: str, group: Group, graph: tuple[Any, Any, Any], protocol: int) -> Estimate:
    caps, shares = tables()["cap_gb_per_s"], tables()["rate_share"]
    latency = tables()["latency_us"]
    row = architecture_row(group)
    channels, rate, _ = graph
    if protocol == 0:
        rate = smallest(_ll_cap(group), shares["ring_ll"] * rate)
    elif protocol == 1:
        per_channel = _by_nodes(caps["ring_ll128"][row], group)
        rate = smallest(shares["ring_ll128"] * rate, channels * per_channel)
    number = steps(collective, group.ranks)
    crossings = steps(collective, group.domains)
    network = latency["network"]
    inside = latency["nvlink" if group.has_nvlink else "pcie"]["ring"][protocol]
    busy = choose(
        group.domains > 1, largest(inside, network["overhead_per_step"][protocol]), inside
    )
    time = (
        latency["base"]["ring"][protocol]
        + (number - crossings) * busy
        + crossings * network["ring"][protocol]
    )
    if protocol == 2 and collective == "all_reduce":
        time = time * choose(group.domains > 1, network["ring_simple_factor"][row], 1.0)
    # Factors of the group first: on a grid of sizes and groups that is one product.
    start_s, byte_s = time * _MICRO, number / group.ranks / (1e3 * rate) * _MICRO
    return lambda size_bytes: start_s + size_bytes * byte_s


def _tree(group: Group, graph: tuple[Any, Any, Any], protocol: int) -> Estimate:
    """Return the time of a double tree across domains; inf inside one."""
    caps, shares = tables()["cap_gb_per_s"], tables()["rate_share"]
    latency = tables()["latency_us"]
    row = architecture_row(group)
    channels, _, rate = graph
    rate = smallest(shares["tree"] * rate, channels * _by_nodes(caps["tree"][row], group))
    if protocol == 0:
        rate = smallest(rate / shares["tree_ll_divisor"], _ll_cap(group))
    elif protocol == 1:
        near, far = shares["tree_ll128_in_node"], shares["tree_ll128_across"]
        share = choose(group.domains == 1, near["over"] / near["under"], far["over"] / far["under"])
        rate = smallest(rate * share, channels * _by_nodes(caps["tree_ll128"][row], group))
    inside = latency["nvlink" if group.has_nvlink else "pcie"]["tree"][protocol]
    levels = floor(log2(group.domains))
    time = latency["base"]["tree"][protocol] + 2 * (
        (group.ranks_per_domain - 1) * inside + levels * latency["network"]["tree"][protocol]
    )
    across = group.domains > 1

    def time_s(size_bytes: Any) -> Any:
        correction = _tree_correction(PROTOCOLS[protocol], size_bytes)
        stream = size_bytes * 2 / (1e3 * rate * correction)
        return choose(across, (time + stream) * _MICRO, _INFINITE)

    return time_s


def _tree_correction(protocol: str, size_bytes: Any) -> Any:
    """Return the share of a tree's rate that NCCL reckons with at a size.

    NCCL looks it up by power of two; in between it is interpolated here, so that no estimate jumps.
    """
    table = [*tables()["tree_correction"][protocol.lower()], 1.0]
    mantissa, exponent = mantissa_exponent(smallest(largest(size_bytes / 64, 1.0), 2.0**23))
    share = 2 * mantissa - 1
    return looked_up(table, exponent - 1) * (1 - share) + looked_up(table, exponent) * share


def _head_rate(group: Group) -> tuple[Any, Any]:
    """Return the channels of in-switch reduction, one per head, and the rate of one in GB/s.

    A head sends twice what the others do, so (n+1) rates fill a device's links.
    """
    rules = tables()["in_switch"]
    row = architecture_row(group)
    heads = smallest(group.ranks_per_domain, most_heads())
    whole = rules["link_share"][row] * group.link_bytes_per_s / _GB / (heads + 1)
    speeds = sorted(rules["channel_speeds_gb_per_s"][row])
    below = first_not_less(speeds, whole + 1e-9) - 1
    return heads, choose(below >= 0, looked_up(speeds, largest(below, 0)), 0.0)


def _nvls(collective: str, group: Group) -> Estimate:
    """Return the time of in-switch reduction inside one domain; inf beyond it or for one rank."""
    heads, speed = _head_rate(group)
    efficiency = tables()["in_switch"]["efficiency"][architecture_row(group)]
    number = steps(collective, group.ranks)
    possible = (group.domains == 1) & (heads > 1)
    if collective == "all_reduce":
        gain: Any = 2.0
    else:
        rules = tables()["in_switch"]
        possible = possible & gathers_in_switch(group)
        better = choose(group.ranks > rules["most_heads"], rules["half_gain"], 1.0)
        gain = better * (group.ranks - 1) / group.ranks
    rate = speed * efficiency * (heads - 1) * gain
    possible = possible & (rate > 0)
    byte_s = number / group.ranks / (1e3 * choose(possible, rate, 1.0)) * _MICRO
    start_s = tables()["latency_us"]["nvlink"]["nvls"] * _MICRO
    return lambda size_bytes: choose(possible, start_s + size_bytes * byte_s, _INFINITE)


def _nvls_tree(group: Group) -> Estimate:
    """Return the time of in-switch reduction in every domain, joined by a tree; inf inside one."""
    latency = tables()["latency_us"]
    row = architecture_row(group)
    heads, speed = _head_rate(group)
    inside = speed * tables()["in_switch"]["efficiency"][row] * (heads - 1) / heads * 2
    _, outside, _ = _channels(group)
    twice = choose(group.domains <= 2, 2.0, 1.0)
    cap = _by_nodes(tables()["cap_gb_per_s"]["nvls_tree"][row], group)
    rate = heads * smallest(smallest(inside, outside / heads * twice), cap)
    number = steps("all_reduce", group.ranks)
    possible = (group.domains > 1) & (heads > 1) & (rate > 0)
    levels = floor(log2(group.domains))
    time = latency["nvlink"]["nvls_tree"] + 2 * levels * latency["network"]["nvls_tree"]
    rate = 1e3 * choose(possible, rate, 1.0)

    def time_s(size_bytes: Any) -> Any:
        stream = size_bytes * number / group.ranks / rate
        return choose(possible, (time + stream) * _MICRO, _INFINITE)

    return time_s

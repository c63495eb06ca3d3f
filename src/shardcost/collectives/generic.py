"""A library that nobody measured: textbook algorithms on the links that a machine describes.

Vendors without a measured library, and chips that do not exist yet, have links and no constants.
The *generic* library runs ring, recursive halving and doubling, and direct exchange, each at the
costs of the alpha-beta model, and takes the fastest (Thakur, Rabenseifner and Gropp, Optimization
of collective communication operations in MPICH, IJHPCA 19(1), 2005)::

    latency = start + steps x step + peers x peer
    stream  = bytes on the busiest link / (share x its rate)
    time    = latency + stream + fill x sqrt(latency x stream)

The last term, what chunks in a pipeline cannot hide, is that of `collectives.paths`. The five
constants are assumed: medians over the libraries of the catalog (``lab.refit_generic`` writes them
to ``catalog/collectives/generic.toml``). Between domains the constants are those of the network, or
of its family. Inside one domain steps and bytes are those of `collectives.exact`, which a test
compares. Everything takes numbers or arrays that broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardcost.arrays import ceil, choose, largest, log2, smallest, sqrt
from shardcost.checks import anywhere
from shardcost.collectives.group import Group
from shardcost.collectives.paths import (
    Parts,
    at_once,
    port,
    ports,
    reached,
    ring_library_paths,
    turning,
)
from shardcost.collectives.tuner import PathName, steps
from shardcost.machine.constants import GenericLibrary, RingLibrary
from shardcost.machine.constants import NetworkConstants as Network

_DIRECT: Final = frozenset({"nvswitch", "full_mesh", "pcie"})
"""Links by which every device of a domain reaches every other without passing a third."""


def generic_paths(
    constants: GenericLibrary, network: Network, collective: str, size_bytes: Any, group: Group
) -> Mapping[PathName, Parts]:
    """Return the parts of every path that the generic library has for a collective."""
    paths = _unfilled(constants, network, collective, size_bytes, group)
    return {path: _filled(constants, parts) for path, parts in paths.items()}


def _filled(constants: GenericLibrary, parts: Parts) -> Parts:
    """Return the parts of a path with what its pipeline cannot hide of the steps in a domain."""
    latency = parts["start"] + parts["hops"]
    return {**parts, "filling the pipeline": constants.fill * sqrt(latency * parts["wire"])}


def _unfilled(
    constants: GenericLibrary, network: Network, collective: str, size_bytes: Any, group: Group
) -> dict[PathName, Parts]:
    by = (constants, network, size_bytes, group)
    if collective == "all_to_all":
        return {("p2p", "Simple"): _all_to_all(*by)}
    if collective == "send_recv":
        return {("send", "Simple"): _send(*by)}
    if collective in {"broadcast", "reduce"}:
        return {("chain", "Simple"): _chain(*by), ("recursive", "Simple"): _binomial(*by)}
    paths = {
        ("ring", "Simple"): _ring(collective, *by),
        ("recursive", "Simple"): _recursive(collective, *by),
    }
    if group.tier.kind in _DIRECT:
        paths["two_shot" if collective == "all_reduce" else "p2p", "Simple"] = _direct(
            collective, *by
        )
        if collective == "all_reduce" and anywhere(group.domains == 1):
            paths["one_shot", "Simple"] = _one_shot(*by)
    return paths


def library_paths(
    constants: RingLibrary | GenericLibrary,
    network: Network,
    collective: str,
    size_bytes: Any,
    group: Group,
) -> Mapping[PathName, Parts]:
    """Return the parts of every path that a library has for a collective, by its constants."""
    if isinstance(constants, GenericLibrary):
        return generic_paths(constants, network, collective, size_bytes, group)
    return ring_library_paths(constants, network, collective, size_bytes, group)


def _ring(
    collective: str, constants: GenericLibrary, network: Network, size_bytes: Any, group: Group
) -> Parts:
    """Return the parts of a ring: n-1 steps of M/n, twice for an all-reduce."""
    crossings = steps(collective, group.domains)
    hops = (steps(collective, group.ranks) - crossings) * constants.step_s
    sent = steps(collective, group.ranks) / group.ranks
    parts = {
        "start": constants.start_s,
        "hops": hops,
        "wire": size_bytes * sent / _slowest(constants, network, group),
    }
    if anywhere(group.domains > 1):
        shared = turning(collective, network, group) - hops
        parts["crossings"] = largest(crossings * network.ll_latency_s, shared)
    return parts


def _recursive(
    collective: str, constants: GenericLibrary, network: Network, size_bytes: Any, group: Group
) -> Parts:
    """Return the parts of recursive halving, doubling or both, inside domains, then across them.

    Each step is with one partner, at the rate of a pair, and halves or doubles what is sent:
    ceil(log2 n) steps, (n-1)/n of the buffer in all (Rabenseifner's algorithm).
    """
    times = steps(collective, 2)
    near = group.ranks_per_domain
    hops = times * ceil(log2(near)) * constants.step_s
    sent = size_bytes * times * (near - 1) / near
    wire = sent / (constants.link_share * group.pair_bytes_per_s)
    return _joined(collective, constants, network, size_bytes, group, hops, wire)


def _direct(
    collective: str, constants: GenericLibrary, network: Network, size_bytes: Any, group: Group
) -> Parts:
    """Return the parts of a direct exchange: each rank sends each other one its block at once."""
    times = steps(collective, 2)
    near = group.ranks_per_domain
    hops = times * (constants.step_s + (near - 1) * constants.peer_s)
    wire = size_bytes * times * (near - 1) / near / _rate(constants, group)
    return _joined(collective, constants, network, size_bytes, group, hops, wire)


def _one_shot(constants: GenericLibrary, network: Network, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of an all-reduce in one step: each rank gets all other buffers whole.

    Inside one domain only (`exists`).
    """
    del network
    peers = group.ranks - 1
    hops = constants.step_s + peers * constants.peer_s
    wire = size_bytes * peers / _rate(constants, group)
    return {"start": constants.start_s, "hops": hops, "wire": wire}


def _joined(
    collective: str,
    constants: GenericLibrary,
    network: Network,
    size_bytes: Any,
    group: Group,
    hops: Any,
    wire: Any,
) -> Parts:
    """Return the parts of a hierarchical algorithm: inside domains, then across them.

    What a domain has left is M over its ranks for each, and all of its ports send it: recursive
    halving and doubling over D domains takes ceil(log2 D) crossings and (D-1)/D of the buffer. In
    chunks, links and network are at work at the same time.
    """
    parts = {"start": constants.start_s, "hops": hops, "wire": wire}
    if anywhere(group.domains > 1):
        times, domains = steps(collective, 2), group.domains
        parts["crossings"] = times * ceil(log2(domains)) * network.ll_latency_s
        sent = size_bytes * times * (domains - 1) / domains
        across = reached(network, group) * ports(group)
        parts["wire"] = largest(wire, sent / across)
    return parts


def _chain(constants: GenericLibrary, network: Network, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of a broadcast or reduction along a chain, in chunks."""
    parts = {
        "start": constants.start_s,
        "hops": (group.ranks - group.domains) * constants.step_s,
        "wire": size_bytes / _slowest(constants, network, group),
    }
    if anywhere(group.domains > 1):
        parts["crossings"] = (group.domains - 1) * network.ll_latency_s
    return parts


def _binomial(constants: GenericLibrary, network: Network, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of a broadcast or reduction along a binomial tree: the buffer each step."""
    inside, across = ceil(log2(group.ranks_per_domain)), ceil(log2(group.domains))
    pair = constants.link_share * group.pair_bytes_per_s
    parts = {
        "start": constants.start_s,
        "hops": inside * constants.step_s,
        "wire": inside * (size_bytes / pair),
    }
    if anywhere(group.domains > 1):
        parts["crossings"] = across * network.ll_latency_s
        parts["network"] = across * (size_bytes / (reached(network, group) * ports(group)))
    return parts


def _all_to_all(
    constants: GenericLibrary, network: Network, size_bytes: Any, group: Group
) -> Parts:
    """Return the parts of an all-to-all: each rank sends each other one its block, all at once."""
    block = size_bytes / group.ranks
    inside = (group.ranks_per_domain - 1) / _rate(constants, group)
    beyond = group.ranks - group.fewest_per_domain
    share = reached(network, group) * port(group)
    parts = {
        "start": constants.start_s,
        "hops": constants.step_s + (group.ranks - 1) * constants.peer_s,
        "wire": block * at_once(inside, beyond, share, group),
    }
    if anywhere(group.domains > 1):
        parts["crossings"] = choose(group.domains > 1, network.ll_latency_s, 0.0)
    return parts


def _send(constants: GenericLibrary, network: Network, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of a send of each rank to the next."""
    pair = constants.link_share * group.pair_bytes_per_s
    across = smallest(pair, reached(network, group) * port(group))
    hops = choose(group.domains > 1, network.ll_latency_s, constants.step_s)
    wire = size_bytes / choose(group.domains > 1, across, pair)
    return {"start": constants.start_s, "hops": hops, "wire": wire}


def _rate(constants: GenericLibrary, group: Group) -> Any:
    """Return the rate at which a device sends to the others of its domain at once."""
    return constants.link_share * group.link_bytes_per_s


def _slowest(constants: GenericLibrary, network: Network, group: Group) -> Any:
    """Return the rate of the slowest link of a ring: inside a domain, or out of it."""
    inside = _rate(constants, group)
    across = reached(network, group) * ports(group)
    return choose(group.domains > 1, smallest(inside, across), inside)


__all__ = ["generic_paths", "library_paths"]

"""How long each path of a library takes on a device: a formula with a few fitted constants each.

A *path* is one algorithm with one protocol (or kernel). Its time is a sum of named parts, so that
every prediction can be taken apart. All paths share one shape::

    latency = base + hops x hop (+ crossings of the network x its latency)
    stream  = bytes on the busiest link / rate + bytes copied locally / copy rate
    time    = latency + stream + fill x sqrt(latency x stream)

The last term is what pipelining cannot hide: cut into optimal chunks, a pipeline takes
(sqrt(latency) + sqrt(stream))^2, which is fill = 2 (Sanders, Speck and Traeff, Two-tree algorithms
for full bandwidth broadcast, reduction and scan, 2009); perfectly hidden it is fill = 0.

The constants of one (system, library) are one noun, `RingLibrary` or `EngineLibrary`. They are
shared by all collectives, GPU counts and sizes; what differs between those is in the formulas.
Everything takes numbers or arrays that broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, Final, TypeAlias

from shardcost.arrays import ceil, choose, floor, largest, log2, smallest, sqrt
from shardcost.checks import anywhere
from shardcost.collectives.group import Group, most_heads
from shardcost.collectives.tuner import (
    PROTOCOLS,
    PathName,
    architecture_row,
    gathers_in_switch,
    steps,
    tables,
)
from shardcost.machine.constants import NetworkConstants as Network
from shardcost.machine.constants import RingLibrary, TorusLibrary
from shardcost.records import NamedTuple
from shardcost.traced import step

Parts: TypeAlias = Mapping[str, Any]
"""The parts of a time in seconds, by name; the time is their sum."""
Path: TypeAlias = Callable[[Any], Parts]
"""Takes the bytes of a buffer; returns the parts of one path over a group. What does not depend on
the bytes is found once, when the path is made."""


_ROUNDING: Final = 1e-9
_LL_DATA: Final = 0.5
"""What is data of the bytes under LL: each word has a flag of its size."""
_PAIR: Final = 2
"""Devices on PCIe that are peers where nobody says how many are."""


class _Protocol(NamedTuple):
    """What a protocol makes of a ring, a chain or a tree: seconds and bytes per second."""

    base_s: Any
    hop_s: Any
    rate: Any
    """Inside a domain."""
    across: Any
    """From one domain to others."""
    crossing_s: Any
    """Of one crossing of the network; under LL, of a message on one channel."""


def _protocol(name: str, constants: RingLibrary, network: Network, group: Group) -> _Protocol:
    """Return what a protocol makes of a path.

    Args:
        name: LL, LL128 or Simple.
        constants: Of the library.
        network: Between domains.
        group: The ranks.
    """
    if name == "LL":
        rate = _crowded(constants.ll_bytes_per_s, group, constants.ll_crowd, constants.ll_socket)
        across, crossing_s = _ll_across(network, group), network.ll_latency_s
        return _Protocol(constants.ll_base_s, constants.ll_hop_s, rate, across, crossing_s)
    across = reached(network, group) * ports(group)
    if name == "LL128":
        rate, crossing_s = linked(constants.ll128_bytes_per_s, group), network.ll128_latency_s
        return _Protocol(constants.ll128_base_s, constants.ll128_hop_s, rate, across, crossing_s)
    rate = _crowded(constants.simple_bytes_per_s, group, constants.crowd, constants.socket)
    base_s, hop_s = constants.simple_base_s, constants.simple_hop_s
    return _Protocol(base_s, hop_s, rate, across, network.latency_s)


def _of_a_tree(name: str, by: _Protocol, group: Group) -> _Protocol:
    """Return what a protocol makes of a tree, given what it makes of a ring.

    NCCL's own latencies say how their hops differ.
    """
    hops, index = tables()["latency_us"], PROTOCOLS.index(name)
    hops = hops["nvlink" if group.has_nvlink else "pcie"]
    return by._replace(hop_s=by.hop_s * (hops["tree"][index] / hops["ring"][index]))


def ring(
    protocol: str, constants: RingLibrary, network: Network, collective: str, group: Group
) -> Path:
    """Return the parts of a ring."""
    by = _protocol(protocol, constants, network, group)
    ranks, crossings = group.ranks, steps(collective, group.domains)
    hops = steps(collective, ranks)
    inside_s = (hops - crossings) * by.hop_s
    per_byte = hops / _slowest(by, group) / ranks
    if protocol == "LL":

        def under_ll(size_bytes: Any) -> Parts:
            spread = _spread(constants, size_bytes, ranks)
            hops_s = inside_s + crossings * (by.crossing_s + network.ll_channels_s * spread)
            return {
                "start": by.base_s,
                "hops": hops_s,
                "spread over channels": constants.ll_spread_s * spread,
                "wire": _beside_hops(size_bytes, per_byte, hops_s, group, protocol),
                "local copy": size_bytes / (ranks * constants.ll_copy_bytes_per_s),
            }

        return under_ll
    hops_s = inside_s + crossings * by.crossing_s
    if anywhere(group.domains > 1):
        hops_s = largest(hops_s, turning(collective, network, group))
    latency = {"start": by.base_s, "hops": hops_s}
    copy_rate: Any = constants.simple_copy_bytes_per_s
    if protocol == "LL128":
        copy_rate = constants.ll128_bytes_per_s

    def parts(size_bytes: Any) -> Parts:
        stream = {
            "wire": _beside_hops(size_bytes, per_byte, hops_s, group, protocol),
            "local copy": size_bytes / (ranks * copy_rate),
        }
        if protocol == "LL128":
            return {**latency, **stream}
        return _pipelined(constants, latency, stream, crossings, network, group)

    return parts


def chain(
    protocol: str, constants: RingLibrary, network: Network, size_bytes: Any, group: Group
) -> Parts:
    """Return the parts of a broadcast or a reduction along a chain; pipelined but under LL."""
    by = _protocol(protocol, constants, network, group)
    if protocol == "LL":  # of messages that are spread over all channels
        by = by._replace(crossing_s=by.crossing_s + network.ll_channels_s)
    latency = {"start": by.base_s, "hops": _along_ring("broadcast", group, by)}
    stream = {"wire": size_bytes / _slowest(by, group)}
    if protocol == "LL":
        return {**latency, **stream}
    return _pipelined(constants, latency, stream, group.domains - 1, network, group)


def tree(protocol: str, constants: RingLibrary, network: Network, group: Group) -> Path:
    """Return the parts of a double binary tree over domains, with a chain inside each.

    Inside, every rank passes the buffer up and down: 2 M.
    """
    by = _of_a_tree(protocol, _protocol(protocol, constants, network, group), group)
    levels = ceil(log2(group.domains))
    byte_s = largest(2 / by.rate, _tree_share(group) / by.across)
    inside_s = 2 * (group.ranks_per_domain - 1) * by.hop_s

    def parts(size_bytes: Any) -> Parts:
        stream = {"wire": size_bytes * byte_s}
        crossing_s = by.crossing_s
        spread: Any = 1.0
        if protocol == "LL":
            spread = _spread(constants, size_bytes, 1)
            crossing_s = crossing_s + network.ll_channels_s * spread
        latency = {"start": by.base_s, "hops": inside_s + 2 * levels * crossing_s}
        if protocol == "LL":
            return {**latency, "spread over channels": constants.ll_spread_s * spread, **stream}
        if protocol == "LL128":
            return _filled(constants, latency, stream)
        return _pipelined(constants, latency, stream, 2 * levels, network, group)

    return parts


def nvls(constants: RingLibrary, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of in-switch reduction inside one domain.

    A rank sends its buffer up for the others' sums, and the block whose sum it owns once more, to
    all: M (1 + 1/n) up and down each link. But kernels copy the whole buffer to where the switch
    can add it up, and the sums from there: M, which takes longer.
    """
    heads = smallest(group.ranks, tables()["in_switch"]["most_arity"])
    per_byte = largest(_copy_s(constants), (1 + 1 / group.ranks) / group.link_bytes_per_s)
    return _in_rounds(constants, size_bytes, per_byte, heads, group, "inside")


def nvls_half(constants: RingLibrary, collective: str, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of an all-gather or reduce-scatter in the switch: M down, or up, each link.

    It takes a share of what an all-reduce of the buffer does, at most at the links' rate.
    """
    rules = tables()["in_switch"]
    share = rules["share"][collective]
    per_byte = largest(_copy_s(constants), 1 / (share * group.link_bytes_per_s))
    heads = smallest(group.ranks, rules["most_arity"])
    whole = _in_rounds(constants, size_bytes, per_byte, heads, group, "inside")
    return {name: part if name == "start" else share * part for name, part in whole.items()}


def nvls_tree(constants: RingLibrary, network: Network, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of in-switch reduction in every domain, joined by a tree across them.

    The slower of the switch and the ports of a domain sets the pace, and more heads fill each level
    of the tree more slowly.
    """
    near = group.ranks_per_domain
    heads = smallest(near, tables()["in_switch"]["most_arity"])
    per_byte = largest(_copy_s(constants), (1 + 1 / near) / group.link_bytes_per_s)
    inside = _in_rounds(constants, size_bytes, per_byte, heads, group, "tree")
    crossing = size_bytes * _tree_share(group) / (reached(network, group) * ports(group))
    wire_s = largest(inside["wire"], crossing)
    levels = ceil(log2(group.domains))
    level_fill = smallest(_more_heads(group) * network.latency_s, wire_s)
    latency = {"start": inside["start"], "hops": 2 * levels * network.latency_s}
    stream = {
        "wire": wire_s,
        "filling the rounds": inside["filling the rounds"],
        "filling more heads": 2 * levels * level_fill,
    }
    return _pipelined(constants, latency, stream, 2 * levels, network, group)


def _copy_s(constants: RingLibrary) -> Any:
    """Return what kernels of in-switch reduction take for a byte of the buffer."""
    assert constants.nvls_bytes_per_s is not None  # noqa: S101
    return 1 / constants.nvls_bytes_per_s


def _in_rounds(
    constants: RingLibrary, size_bytes: Any, per_byte: Any, heads: Any, group: Group, chunks: str
) -> dict[str, Any]:
    """Return the parts of in-switch reduction in rounds of a chunk for every channel and head.

    In a round each rank hands its chunks to all heads, every head has its own added up and handed
    out, and each rank takes the sums: signals between these steps take a while, the more heads the
    longer, and so does the stream. Chunks are twice as large where a message is so many rounds
    long (``calcCollChunking`` in NCCL's enqueue.cc), so that signals count less.
    """
    assert constants.nvls_base_s is not None  # noqa: S101
    assert constants.nvls_round_s is not None  # noqa: S101
    rules = tables()["in_switch"]
    kind = rules["chunks"][chunks]
    least = heads * (rules["channels"][architecture_row(group)] * kind["least_bytes"])
    sent: Any = least
    for doubled, rounds in enumerate(kind["rounds"], 1):
        wanted = size_bytes / (least * (2**doubled * rounds))
        share = (wanted - rules["doubling_from"]) / (1 - rules["doubling_from"])
        sent = sent * (1 + smallest(1.0, largest(0.0, share)))
    sent = smallest(sent, size_bytes)
    stream_s = sent * per_byte
    signals_s = constants.nvls_round_s * (kind["signals"] * sqrt(heads / most_heads()))
    return {
        "start": constants.nvls_base_s,
        "filling the rounds": rules["fill_rounds"] * stream_s,
        "wire": size_bytes / sent * sqrt(stream_s * stream_s + signals_s * signals_s),
    }


def _more_heads(group: Group) -> Any:
    """Return how many times over a domain has the heads of a node, beyond the first."""
    return largest(0.0, group.ranks_per_domain / most_heads() - 1)


def p2p_ll(constants: RingLibrary, network: Network, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of an all-to-all of small sends: all peers at once, one channel each.

    Flags go along with the data, so LL fills the links with twice its bytes.
    """
    block = size_bytes / group.ranks
    peers = group.ranks_per_domain - 1
    beyond = group.ranks - group.fewest_per_domain
    share = _ll_across(network, group) / group.ranks_per_domain
    channel = _ll_blocks_per_channel(block, group.ranks, group) / constants.p2p_ll_bytes_per_s
    inside = largest(channel, 2 * peers / group.link_bytes_per_s)
    hops = _to_peers(constants, group) + _crosses(group) * network.ll_latency_s
    return {
        "start": constants.p2p_ll_base_s,
        "hops": hops,
        "wire": _beside_hops(block, at_once(inside, beyond, share, group), hops, group),
    }


def p2p_simple(constants: RingLibrary, network: Network, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of an all-to-all of large sends, each rank to n-1 others."""
    inside = _crowded(constants.p2p_bytes_per_s, group, constants.crowd, constants.socket)
    block = size_bytes / group.ranks
    peers = group.ranks_per_domain - 1
    beyond = group.ranks - group.fewest_per_domain
    share = reached(network, group) * port(group)
    crosses = _crosses(group)
    hops = _to_peers(constants, group) + crosses * network.latency_s
    stream = {"local copy": block / constants.simple_copy_bytes_per_s}
    per_byte = at_once(peers / inside, beyond, share, group)
    if constants.p2p_channel_bytes_per_s is not None:
        # A rank's own block is one more peer's on the same channels.
        channel = _peers_per_channel(block, group) / constants.p2p_channel_bytes_per_s
        per_byte, stream = _alike(per_byte, channel), {}
    stream["wire"] = block * per_byte
    latency = {"start": constants.p2p_base_s, "hops": hops}
    return _pipelined(constants, latency, stream, crosses, network, group)


def send_ll(constants: RingLibrary, network: Network, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of a small send of each rank to the next."""
    channels = 1 / _ll_blocks_per_channel(size_bytes, 1, group)
    rate = smallest(constants.p2p_ll_bytes_per_s * channels, group.pair_bytes_per_s / 2)
    across = _ll_share(network, group) * port(group)
    return {
        "start": constants.p2p_ll_base_s,
        "hops": constants.p2p_hop_s + _crosses(group) * network.ll_latency_s,
        "wire": size_bytes / choose(group.domains > 1, smallest(rate, across), rate),
    }


def send_simple(constants: RingLibrary, network: Network, size_bytes: Any, group: Group) -> Parts:
    """Return the parts of a large send of each rank to the next."""
    share = group.pair_bytes_per_s / group.tier.bytes_per_s
    rate = _crowded(constants.p2p_bytes_per_s, group, constants.crowd, constants.socket)
    rate = smallest(rate, constants.p2p_bytes_per_s * share)
    across = reached(network, group) * port(group)
    crosses = _crosses(group)
    hops = constants.p2p_hop_s + crosses * network.latency_s
    stream = {"wire": size_bytes / choose(group.domains > 1, smallest(rate, across), rate)}
    if constants.p2p_channel_bytes_per_s is not None:
        share = choose(group.domains > 1, 0.0, _blocks_per_channel(size_bytes, 1, group))
        channel = share / constants.p2p_channel_bytes_per_s
        stream["wire"] = _alike(stream["wire"], size_bytes * channel)
    latency = {"start": constants.p2p_base_s, "hops": hops}
    return _pipelined(constants, latency, stream, crosses, network, group)


def _to_peers(constants: RingLibrary, group: Group) -> Any:
    """Return the latency of starting sends to all others, of which only so many go at once."""
    rules = tables()["p2p"]
    hops = group.ranks - 1
    if anywhere(hops > rules["peers_at_once"]):
        hops = hops + rules["further"] * largest(0.0, hops - rules["peers_at_once"])
    return hops * constants.p2p_hop_s


def _ll_blocks_per_channel(block: Any, peers: Any, group: Group) -> Any:
    """Return the blocks that the busiest channel of small sends carries.

    Inside a node a send has one channel and they are all at work at once; between the nodes of a
    rack it is cut into as many parts as there are channels to spare, none too small.
    """
    if not anywhere((group.nodes > 1) & (group.domains == 1)):
        return 1.0
    rules = tables()["p2p"]
    least = _channels_per_peer(group)
    parts = smallest(least, largest(1.0, block / rules["least_ll_part_bytes"]))
    shared = _rounds(peers * parts) / parts
    return choose((group.nodes > 1) & (group.domains == 1), shared, 1.0)


def _peers_per_channel(block: Any, group: Group) -> Any:
    """Return how many of an all-to-all's blocks the busiest channel carries; 0 across domains.

    Inside a node more channels for large blocks change nothing: those of all ranks fill them.
    """
    least = _channels_per_peer(group)
    shared: Any = _rounds(group.ranks * least) / least
    if anywhere(group.nodes > 1):
        rack = _blocks_per_channel(block, group.ranks, group)
        shared = choose(group.nodes > 1, rack, shared)
    return choose(group.domains > 1, 0.0, shared) if anywhere(group.domains > 1) else shared


def _blocks_per_channel(block: Any, peers: Any, group: Group) -> Any:
    """Return the blocks that the busiest channel of large sends carries.

    NCCL gives each send a power of two of channels: as many as there are for each rank, and then
    twice as many each time that its parts would be too large (``addP2pToPlan`` in its enqueue.cc).
    Sends to all ranks go round the channels, so that some carry more of them than others.
    """
    rules = tables()["p2p"]
    channels = rules["channels"]
    least = _channels_per_peer(group)
    wanted = largest(0.0, log2(block / (rules["most_part_bytes"] * least)))
    doubled = floor(wanted)
    most = log2(channels / least)
    # Within so few percent above the limit a part counts more and more as doubled.
    share = smallest(1.0, (wanted - doubled) / rules["doubling_octaves"])
    low, high = (
        _rounds(peers * parts) / parts
        for parts in (least * 2 ** smallest(doubled + more, most) for more in (0, 1))
    )
    return step("blocks_per_channel", low + (high - low) * share, "", "of the busiest channel")


def _channels_per_peer(group: Group) -> Any:
    """Return the channels of one send: a power of two, so that all ranks together have enough."""
    return 2 ** largest(0.0, floor(log2(tables()["p2p"]["channels"] / group.ranks)))


def _rounds(parts: Any) -> Any:
    """Return how many of some parts the busiest channel has."""
    return ceil(parts / tables()["p2p"]["channels"] - _ROUNDING)


def _alike(one: Any, other: Any) -> Any:
    """Return the longer of two streams; where they take alike they hinder each other."""
    one, other = one * one, other * other
    return sqrt(sqrt(one * one + other * other))


def ring_library_paths(
    constants: RingLibrary, network: Network, collective: str, size_bytes: Any, group: Group
) -> Mapping[PathName, Parts]:
    """Return the parts of every path that such a library has for a collective."""
    found = paths_over(constants, network, collective, group)
    return {name: path(size_bytes) for name, path in found.items()}


def paths_over(
    constants: RingLibrary, network: Network, collective: str, group: Group
) -> dict[PathName, Path]:
    """Return every path that a library with rings has for a collective over a group."""
    by = (constants, network)
    if collective == "all_to_all":
        return {
            ("p2p", "LL"): lambda size_bytes: p2p_ll(*by, size_bytes, group),
            ("p2p", "Simple"): lambda size_bytes: p2p_simple(*by, size_bytes, group),
        }
    if collective == "send_recv":
        return {
            ("send", "LL"): lambda size_bytes: send_ll(*by, size_bytes, group),
            ("send", "Simple"): lambda size_bytes: send_simple(*by, size_bytes, group),
        }
    if collective in {"broadcast", "reduce"}:
        return {
            ("chain", "LL"): lambda size_bytes: chain("LL", *by, size_bytes, group),
            ("chain", "Simple"): lambda size_bytes: chain("Simple", *by, size_bytes, group),
        }
    protocols = ("LL", "LL128", "Simple") if group.has_nvlink else ("LL", "Simple")
    paths: dict[PathName, Path] = {
        ("ring", protocol): ring(protocol, *by, collective, group) for protocol in protocols
    }
    if collective == "all_reduce":
        return paths | _reducing_paths(constants, network, protocols, group)
    if _gathers_in_switch(constants, group):
        paths["nvls", "Simple"] = lambda size_bytes: nvls_half(
            constants, collective, size_bytes, group
        )
    return paths


def _reducing_paths(
    constants: RingLibrary, network: Network, protocols: Sequence[str], group: Group
) -> dict[PathName, Path]:
    """Return the paths that only an all-reduce has: trees, and those in the switch."""
    paths: dict[PathName, Path] = {}
    if anywhere(group.domains > 1):
        for protocol in protocols:
            paths["tree", protocol] = tree(protocol, constants, network, group)
    if constants.nvls_base_s is not None and group.tier.in_switch_reduction:
        if anywhere(group.domains == 1):
            paths["nvls", "Simple"] = lambda size_bytes: nvls(constants, size_bytes, group)
        if anywhere((group.domains > 1) & (group.ranks_per_domain > 1)):
            paths["nvls_tree", "Simple"] = lambda size_bytes: nvls_tree(
                constants, network, size_bytes, group
            )
    return paths


def _gathers_in_switch(constants: RingLibrary, group: Group) -> bool:
    """Return whether the switch may gather and scatter: in domains larger than a node's."""
    possible = constants.nvls_base_s is not None and group.tier.in_switch_reduction
    return possible and group.tier.gpus > most_heads() and anywhere(gathers_in_switch(group))


TORUS: Final[PathName] = ("torus", "rings")


def torus_paths(
    constants: TorusLibrary, network: Network, collective: str, size_bytes: Any, group: Group
) -> Mapping[PathName, Parts]:
    """Return the parts of a collective on a torus: rings along all axes that the group covers.

    Across slices each rank exchanges its share of the buffer with those of the same place through
    the ports of its own host: a reduce-scatter inside, an all-reduce across, an all-gather inside
    (the hierarchical collectives of Multislice; Jouppi et al. 2023, arXiv:2304.01433).
    """
    near, domains, egress = group.ranks_per_domain, group.domains, port(group)
    twice = 2.0 if collective == "all_reduce" else 1.0
    rate = constants.rate_share * group.link_bytes_per_s
    sent: Any = twice * (near - 1) / near
    far: Any = twice * (domains - 1) / domains / near
    hops = group.torus.hops
    if collective == "all_to_all":
        rate = constants.rate_share * group.exchange_bytes_per_s
        sent, far = (near - 1) / group.ranks, (group.ranks - near) / group.ranks
    elif collective == "send_recv":
        rate = constants.rate_share * group.pair_bytes_per_s
        sent, far, hops = choose(domains > 1, 0.0, 1.0), choose(domains > 1, 1.0, 0.0), 1
    elif collective in {"broadcast", "reduce"}:
        sent, far = choose(near > 1, 1.0, 0.0), choose(domains > 1, 1.0, 0.0) / near
    crossing = choose(domains > 1, twice, 0.0)
    across = size_bytes * far / (reached(network, group) * egress) + crossing * network.latency_s
    return {
        TORUS: {
            "start": constants.start_s,
            "hops": twice * hops * constants.hop_s,
            "wire": size_bytes * sent / rate,
            "between slices": choose(domains > 1, across, 0.0),
        }
    }


def exists(path: PathName, group: Group) -> Any:
    """Return where a path can run: trees only across domains, one switch only inside one."""
    if path[0] in {"tree", "nvls_tree"}:
        return group.domains > 1
    return group.domains == 1 if path[0] in {"nvls", "one_shot"} else True


def total(parts: Parts) -> Any:
    """Return the time that the parts add up to."""
    return reduce(add, parts.values())


def _along_ring(collective: str, group: Group, by: _Protocol) -> Any:
    """Return the latency of all steps along a ring or chain: hops inside domains, and crossings."""
    crossings = steps(collective, group.domains)
    return (steps(collective, group.ranks) - crossings) * by.hop_s + crossings * by.crossing_s


def _pipelined(
    constants: RingLibrary,
    latency: Parts,
    stream: Parts,
    crossings: Any,
    network: Network,
    group: Group,
) -> Parts:
    """Return the parts of a path under Simple: with what its pipeline cannot hide, and waiting.

    Short messages wait for the network: a crossing takes no less than under LL128; streaming hides
    all of that but the latency.
    """
    parts = _filled(constants, latency, stream)
    if anywhere(group.domains > 1):
        exposed = crossings * (network.ll128_latency_s - network.latency_s) - parts["wire"]
        parts["waiting for the network"] = largest(0.0, exposed)
    return parts


def _filled(constants: RingLibrary, latency: Parts, stream: Parts) -> dict[str, Any]:
    """Return the parts of a path in chunks: with what its pipeline cannot hide."""
    hidden = constants.fill * sqrt(total(latency) * total(stream))
    return {**latency, **stream, "filling the pipeline": hidden}


def _spread(constants: RingLibrary, size_bytes: Any, ranks: Any) -> Any:
    """Return how far a message under LL is spread over channels: 0 on one, 1 on all.

    A ring has as many bytes on a channel as there are for all ranks, a tree as for one.
    """
    return size_bytes / (size_bytes + constants.ll_spread_bytes * ranks)


def turning(collective: str, network: Network, group: Group) -> Any:
    """Return the time that the steps of a ring take at the crossing of a domain, 0 inside one.

    The chunks of all ranks pass it one after the other.
    """
    shared = (group.domains > 1) & (group.ranks_per_domain > 1)
    return choose(shared, steps(collective, group.ranks) * network.turnaround_s, 0.0)


def reached(network: Network, group: Group) -> Any:
    """Return the share of the ports' rate that is reached, less beyond the leaf switches."""
    return network.efficiency * choose(group.beyond_leaf, network.spine, 1.0)


def _beside_hops(
    size_bytes: Any, per_byte: Any, hops_s: Any, group: Group, protocol: str = "LL"
) -> Any:
    """Return what sending adds to the hops: inside a domain a step takes the longer of the two.

    A step ends when its block has arrived, and the next one cannot start before. With flags in the
    data the two overlap less than in chunks: n steps of a latency h and a stream w take n x
    sqrt(h^2 + w^2), and under Simple n x (h^4 + w^4)^(1/4).
    """
    # Squares of sizes and of groups apart: on a grid of the two that is one product less.
    wire, hops = (size_bytes * size_bytes) * (per_byte * per_byte), hops_s * hops_s
    if protocol == "Simple":
        joined = sqrt(sqrt(wire * wire + hops * hops)) - hops_s
    else:
        joined = sqrt(wire + hops) - hops_s
    if not anywhere(group.domains > 1):
        return joined
    return choose(group.domains > 1, size_bytes * per_byte, joined)


def linked(rate: Any, group: Group) -> Any:
    """Return a rate on the links that lead to the group: without a switch not all of them do."""
    return rate * (group.link_bytes_per_s / group.tier.bytes_per_s)


def _crowded(rate: Any, group: Group, crowd: Any, socket: Any) -> Any:
    """Return a rate as it is left when a PCIe group is more than peers, or on both sockets."""
    if crowd is None:
        return linked(rate, group)
    ranks = group.ranks_per_domain
    across = choose(ranks > group.tier.gpus / 2, socket, 1.0)
    staged = rate * choose(ranks > _PAIR, crowd * across, 1.0)
    peers = group.tier.peer_gpus
    if peers is None:
        return staged
    direct = rate * choose(ranks > _PAIR, tables()["peers"]["share"], 1.0)
    return choose(ranks > peers, staged, direct)


def _slowest(by: _Protocol, group: Group) -> Any:
    """Return the rate of the slowest link of a ring: inside a domain, or out of it."""
    return choose(group.domains > 1, smallest(by.rate, by.across), by.rate)


def _ll_across(network: Network, group: Group) -> Any:
    """Return the rate at which a domain sends to others under LL."""
    return _ll_share(network, group) * ports(group)


def _ll_share(network: Network, group: Group) -> Any:
    """Return the share of a port's rate that is reached under LL.

    A port has few channels, each with a proxy that posts small messages; flags take half its rate.
    """
    wired = group.cluster.network
    if wired is None:
        return 1.0
    return smallest(network.ll_port_bytes_per_s / wired.nic_bytes_per_s, _LL_DATA)


def ports(group: Group) -> Any:
    """Return the network rate of one domain; any positive number where nothing crosses."""
    return choose(group.domains > 1, group.domain_port_bytes_per_s, 1.0)


def port(group: Group) -> Any:
    """Return the network rate of one device; any positive number where nothing crosses."""
    return choose(group.domains > 1, group.port_bytes_per_s, 1.0)


def _tree_share(group: Group) -> Any:
    """Return how much of the buffer the busiest domain of a double tree sends, up and down.

    Half of the buffer goes along each tree. A domain inside one tree sends once up and twice down
    there, and once up in the other, where it is a leaf (Sanders, Speck and Traeff, 2009): twice the
    buffer. Two domains send it once, three have one child each.
    """
    return smallest(2.0, group.domains / 2)


def at_once(inside: Any, beyond: Any, share: Any, group: Group) -> Any:
    """Return the longer of two streams, to peers of the own domain and to those beyond it."""
    return choose(group.domains > 1, largest(inside, beyond / share), inside)


def _crosses(group: Group) -> Any:
    """Return how often a send crosses the network: the receiver's leave to send, then the data."""
    return choose(group.domains > 1, 2.0, 0.0)

"""Priced paths against schedules: a formula divides by a rate the bytes that the schedule sends.

One rate among the constants is finite, all others are as good as infinite, so that the streamed
part of a path, times that rate, is the bytes that the formula counts on those links. The schedules
of the same algorithm are counted for the same ranks, the first eight of them on the first node.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from shardcost import Cluster
from shardcost.collectives.engine_kernels import kernel_paths
from shardcost.collectives.exact.algorithms import buffer_bytes, schedule
from shardcost.collectives.exact.schedule import traffic
from shardcost.collectives.group import Group
from shardcost.collectives.paths import ring_library_paths
from shardcost.collectives.tuner import PathName
from shardcost.machine.constants import EngineLibrary, NetworkConstants, RingLibrary

SIZE: Final = 2**20 * 3 * 5 * 7
PER_NODE: Final = 8
CLUSTER: Final = Cluster.named("h100_sxm", "ib_8x400g")
LIMITLESS: Final = 1e40
FINITE: Final = 1e3
"""Slower than any nominal rate of the cluster."""


class Sent(NamedTuple):
    """Bytes that schedules send at most, by what they travel over. A node has a switch."""

    pair: float
    """From one rank to another."""
    device: float
    """By a rank to others of its node."""
    device_port: float
    """By a rank to other nodes."""
    node_ports: float
    """By all ranks of a node to other nodes."""


def counted(ranks: int, *pairs: tuple[str, str], per_node: int = PER_NODE) -> Sent:
    """Return the bytes of schedules that run one after the other."""
    inside, outside = np.zeros(ranks), np.zeros(ranks)
    pair = 0.0
    for collective, algorithm in pairs:
        steps = schedule(collective, algorithm, ranks)
        size: Any = buffer_bytes(collective, ranks, SIZE)
        links = traffic(steps, size).links
        pair = max(pair, *links.values())
        for (source, target), sent in links.items():
            if source < ranks:  # what a switch sends is on links of their own
                near = target >= ranks or source // per_node == target // per_node
                (inside if near else outside)[source] += sent
    nodes = outside.reshape(-1, per_node) if ranks > per_node else outside[None]
    return Sent(pair, inside.max(), outside.max(), nodes.sum(axis=1).max())


def constants(kind: type[Any], finite: str) -> Any:
    """Return constants that cost nothing, but for one rate."""
    values = {
        field.name: LIMITLESS if field.name.endswith("bytes_per_s") else 1 / LIMITLESS
        for field in fields(kind)
        if not field.name.endswith(("crowd", "socket"))
    }
    values |= {"spine": 1.0} if "spine" in values else {}
    return kind(**(values | ({finite: FINITE} if finite in values else {})))


@cache
def priced(collective: str, path: PathName, ranks: int, finite: str) -> float:
    """Return the bytes that the streamed part of a path divides by a rate."""
    group = Group.on(CLUSTER, ranks)
    rates = {"node_ports": group.domain_port_bytes_per_s, "device_port": group.port_bytes_per_s}
    by_ll = finite.startswith("ll_") and finite.removeprefix("ll_") in rates
    share = FINITE / float(rates.get(finite.removeprefix("ll_"), FINITE))
    network = constants(NetworkConstants, finite)
    if by_ll:
        a_port = CLUSTER.network.nic_bytes_per_s  # type: ignore[union-attr]
        network = replace(network, efficiency=1, ll_port_bytes_per_s=share * a_port)
    else:
        network = replace(network, efficiency=share)
    rate = float(group.link_bytes_per_s) if finite == "link" else FINITE
    if path[1] == "direct":
        paths = kernel_paths(constants(EngineLibrary, finite), SIZE, group)
    else:
        library = constants(RingLibrary, finite)
        paths = ring_library_paths(library, network, collective, SIZE, group)
    return float(paths[path]["wire"]) * rate


RINGS: Final = ("all_reduce", "all_gather", "reduce_scatter")
LINKS: Final = {
    "LL": "ll_bytes_per_s",
    "LL128": "ll128_bytes_per_s",
    "Simple": "simple_bytes_per_s",
}
ACROSS: Final = {"LL": "ll_node_ports", "LL128": "node_ports", "Simple": "node_ports"}


ON_RINGS: Final = [
    *((each, "ring", protocol) for each in RINGS for protocol in LINKS),
    *(
        (each, "chain", protocol)
        for each in ("broadcast", "reduce")
        for protocol in ("LL", "Simple")
    ),
]


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
@pytest.mark.parametrize(("collective", "algorithm", "protocol"), ON_RINGS)
def test_rings_and_chains(collective: str, algorithm: str, protocol: str, ranks: int) -> None:
    sent = counted(ranks, (collective, algorithm))
    path = (algorithm, protocol)
    assert priced(collective, path, ranks, LINKS[protocol]) == pytest.approx(sent.device)
    if ranks > PER_NODE:
        assert priced(collective, path, ranks, ACROSS[protocol]) == pytest.approx(sent.node_ports)


@pytest.mark.parametrize("protocol", LINKS)
def test_tree(protocol: str) -> None:
    path = ("tree", protocol)
    # A chain inside each node, up and then down ...
    inside = counted(PER_NODE, ("reduce", "chain"), ("broadcast", "chain"))
    assert priced("all_reduce", path, 16, LINKS[protocol]) == pytest.approx(inside.device)
    # ... and a double binary tree over the nodes, here as ranks.
    across = counted(2, ("all_reduce", "double_binary_tree"), per_node=1)
    assert priced("all_reduce", path, 16, ACROSS[protocol]) == pytest.approx(across.node_ports)


@pytest.mark.parametrize(("nodes", "messages"), [(2, 1.0), (3, 1.5), (4, 2.0), (8, 2.0)])
@pytest.mark.parametrize("path", [("tree", "Simple"), ("nvls_tree", "Simple")])
def test_trees_are_paced_by_their_busiest_node(nodes: int, messages: float, path: PathName) -> None:
    """Half of the buffer goes along each of two trees: a node inside one is a leaf of the other."""
    priced_bytes = priced("all_reduce", path, PER_NODE * nodes, "node_ports")
    assert priced_bytes == pytest.approx(messages * SIZE)
    steps = schedule("all_reduce", "double_binary_tree", nodes)
    assert priced_bytes >= traffic(steps, SIZE).sent.mean() * (1 - 1e-9)


@pytest.mark.parametrize("ranks", [2, 8])
def test_nvls(ranks: int) -> None:
    sent, path = counted(ranks, ("all_reduce", "nvls")), ("nvls", "Simple")
    assert priced("all_reduce", path, ranks, "link") == pytest.approx(sent.device)
    # Kernels copy the buffer to where the switch adds it up, and back.
    assert priced("all_reduce", path, ranks, "nvls_bytes_per_s") == pytest.approx(SIZE)


def test_nvls_tree_inside_a_node() -> None:
    sent, path = counted(PER_NODE, ("all_reduce", "nvls")), ("nvls_tree", "Simple")
    assert priced("all_reduce", path, 16, "link") == pytest.approx(sent.device)
    assert priced("all_reduce", path, 16, "nvls_bytes_per_s") == pytest.approx(SIZE)


@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_all_to_all(ranks: int) -> None:
    sent = counted(ranks, ("all_to_all", "direct"))
    simple, low_latency = ("p2p", "Simple"), ("p2p", "LL")
    assert priced("all_to_all", simple, ranks, "p2p_bytes_per_s") == pytest.approx(sent.device)
    # Each peer has a channel of its own, and flags double the bytes on the link that all share.
    channel = priced("all_to_all", low_latency, ranks, "p2p_ll_bytes_per_s")
    assert channel == pytest.approx(sent.pair)
    if ranks <= PER_NODE:
        assert priced("all_to_all", low_latency, ranks, "link") == pytest.approx(2 * sent.device)
    else:
        assert priced("all_to_all", simple, ranks, "device_port") == pytest.approx(sent.device_port)
        node = priced("all_to_all", low_latency, ranks, "ll_node_ports")
        assert node == pytest.approx(sent.node_ports)


@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_send(ranks: int) -> None:
    sent = counted(ranks, ("send_recv", "direct"))
    simple, low_latency = ("send", "Simple"), ("send", "LL")
    assert priced("send_recv", simple, ranks, "p2p_bytes_per_s") == pytest.approx(sent.device)
    channel = priced("send_recv", low_latency, ranks, "p2p_ll_bytes_per_s")
    assert channel == pytest.approx(sent.pair)
    if ranks <= PER_NODE:
        assert priced("send_recv", low_latency, ranks, "link") == pytest.approx(2 * sent.device)
    else:
        assert priced("send_recv", simple, ranks, "device_port") == pytest.approx(sent.device_port)


def test_low_latency_send_across_nodes() -> None:
    sent = counted(16, ("send_recv", "direct"))
    node = priced("send_recv", ("send", "LL"), 16, "ll_device_port")
    assert node == pytest.approx(sent.node_ports)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("kernel", "algorithm", "rate"),
    [
        ("one_shot", "one_shot", "one_shot_bytes_per_s"),
        ("two_shot", "two_shot", "two_shot_bytes_per_s"),
        ("multicast", "nvls", "multicast_bytes_per_s"),
    ],
)
def test_kernels_of_engines(kernel: str, algorithm: str, rate: str, ranks: int) -> None:
    sent = counted(ranks, ("all_reduce", algorithm))
    assert priced("all_reduce", (kernel, "direct"), ranks, rate) == pytest.approx(sent.device)

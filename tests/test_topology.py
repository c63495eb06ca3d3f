"""Topologies: who is linked to whom, at what rate, and which way a transfer goes."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardcost import catalog
from shardcost.cluster import Cluster
from shardcost.collectives.exact.topology import (
    Topology,
    cube_mesh,
    full_mesh,
    nvl72,
    nvswitch,
    of_cluster,
    pcie_tree,
    rail_fat_tree,
    torus,
)
from shardcost.errors import BadTypeError, BadValueError, ShardcostError

GB = 1e9


def way(topology: Topology, source: int, target: int) -> list[str]:
    """Return the names of the places that a transfer passes, both ends included."""
    links = [topology.links[link] for link in topology.route(source, target)]
    places = [source, *(link.target for link in links)]
    return [topology.places[place].name for place in places]


def rate(topology: Topology, source: int, target: int) -> float:
    """Return the rate of the slowest link on the way."""
    return min(topology.links[link].bytes_per_s for link in topology.route(source, target))


def sending_rates(topology: Topology) -> list[float]:
    """Return the rate of all links out of each device together."""
    out = Counter[int]()
    for link in topology.links:
        out[link.source] += int(link.bytes_per_s)
    return [out[device] for device in range(topology.devices)]


def small_fat_tree(**options: Any) -> Topology:
    return rail_fat_tree(3, 4, bytes_per_s=450 * GB, nic_bytes_per_s=50 * GB, **options)


EVERY = [
    nvswitch(8, 450 * GB),
    nvl72(900 * GB),
    full_mesh(8, 64 * GB),
    cube_mesh(25 * GB),
    torus((4, 3), 50 * GB),
    torus((2, 3, 4), 50 * GB),
    pcie_tree(8, 32 * GB),
    pcie_tree(8, 32 * GB, peer_access=False),
    small_fat_tree(),
    small_fat_tree(spines=2, oversubscription=2, nics_per_node=2),
    small_fat_tree(pxn=True),
]
topologies = st.sampled_from(EVERY)


@given(topologies, st.data())
def test_a_route_leads_from_its_source_to_its_target(
    topology: Topology, data: st.DataObject
) -> None:
    device = st.integers(0, topology.devices - 1)
    source, target = data.draw(device), data.draw(device)
    at = source
    for link in topology.route(source, target):
        assert topology.links[link].source == at
        at = topology.links[link].target
    assert at == target


@pytest.mark.parametrize("topology", EVERY, ids=lambda topology: topology.name)
def test_devices_come_first_and_no_two_links_join_the_same_places(topology: Topology) -> None:
    assert {place.kind for place in topology.places[: topology.devices]} == {"gpu"}
    ends = Counter((link.source, link.target) for link in topology.links)
    assert max(ends.values()) == 1
    assert len({place.name for place in topology.places}) == len(topology.places)


def test_behind_a_switch_every_pair_has_the_whole_port() -> None:
    topology = nvswitch(8, 450 * GB, latency_s=2e-6)
    assert way(topology, 2, 5) == ["gpu 2", "nvswitch", "gpu 5"]
    assert rate(topology, 2, 5) == 450 * GB
    assert topology.latency_s(topology.route(2, 5)) == 2e-6


def test_the_rack_is_one_domain_of_eighteen_trays() -> None:
    rack = nvl72(900 * GB)
    assert (rack.devices, len(rack.places)) == (72, 73)
    assert Counter(place.server for place in rack.places[:72]) == dict.fromkeys(range(18), 4)


def test_in_a_full_mesh_each_pair_has_one_link() -> None:
    topology = full_mesh(8, 64 * GB)
    assert len(topology.links) == 8 * 7
    assert sending_rates(topology) == [7 * 64 * GB] * 8


def test_the_cube_mesh_is_that_of_the_dgx_1() -> None:
    topology = cube_mesh(25 * GB)
    assert sending_rates(topology) == [6 * 25 * GB] * 8
    one_hop = Counter(len(topology.route(0, device)) for device in range(1, 8))
    assert one_hop == {1: 4, 2: 3}  # four neighbours; the other three are one device further
    for ring, cables in (([0, 3, 2, 1, 5, 6, 7, 4], 2), ([0, 1, 3, 7, 5, 4, 6, 2], 1)):
        for device, after in zip(ring, ring[1:] + ring[:1], strict=True):
            assert len(topology.route(device, after)) == 1
            assert rate(topology, device, after) == cables * 25 * GB


@pytest.mark.parametrize(
    ("shape", "degree"), [((4,), 2), ((4, 4), 4), ((3, 4, 5), 6), ((2, 4), 3), ((1, 4), 2)]
)
def test_a_torus_has_two_links_per_device_and_dimension(
    shape: tuple[int, ...], degree: int
) -> None:
    """But one where two devices would be joined twice, and none to itself."""
    topology = torus(shape, 50 * GB)
    assert sending_rates(topology) == [degree * 50 * GB] * topology.devices


def test_a_mesh_is_a_torus_without_the_links_that_wrap() -> None:
    mesh, whole = torus((3, 4), 50 * GB, wrap=False), torus((3, 4), 50 * GB)
    assert len(whole.links) - len(mesh.links) == 2 * (3 + 4)
    assert mesh.name == "mesh of 3 x 4"
    assert len(mesh.route(0, 3)) == 3, "the whole row"
    assert len(whole.route(0, 3)) == 1


def test_a_torus_is_crossed_the_short_way_in_order_of_its_dimensions() -> None:
    topology = torus((5, 5), 50 * GB)
    assert way(topology, 0, 4 * 5 + 3) == ["gpu 0", "gpu 20", "gpu 24", "gpu 23"]


def test_pcie_turns_round_at_the_lowest_switch() -> None:
    topology = pcie_tree(8, 32 * GB)
    assert way(topology, 0, 3) == ["gpu 0", "pcie switch.0", "gpu 3"]
    assert way(topology, 3, 4) == [
        "gpu 3",
        "pcie switch.0",
        "host bridge",
        "pcie switch.1",
        "gpu 4",
    ]


def test_without_peer_access_everything_goes_through_the_hosts_memory() -> None:
    topology = pcie_tree(8, 32 * GB, peer_access=False, latency_s=3e-6)
    up, down = ["pcie switch.0", "host bridge"], ["host memory", "pcie switch.0 down"]
    assert way(topology, 0, 3) == ["gpu 0", *up, *down, "gpu 3"]
    assert topology.latency_s(topology.route(0, 3)) == 3e-6
    narrow = pcie_tree(8, 32 * GB, peer_access=False, host_bytes_per_s=10 * GB)
    assert rate(narrow, 0, 3) == 10 * GB


def test_rails_join_the_same_device_of_all_nodes_and_spines_join_rails() -> None:
    topology = small_fat_tree()
    assert way(topology, 0, 3) == ["gpu 0", "nvswitch 0", "gpu 3"]
    assert way(topology, 1, 9) == ["gpu 1", "nic 0.1", "leaf 1", "nic 2.1", "gpu 9"]
    assert way(topology, 1, 10)[2:5] == ["leaf 1", "spine", "leaf 2"]


def test_pxn_changes_the_rail_inside_the_node() -> None:
    topology = small_fat_tree(pxn=True)
    assert way(topology, 1, 10)[:3] == ["gpu 1", "nvswitch 0", "gpu 2"]
    assert "spine" not in way(topology, 1, 10)


def test_oversubscription_is_down_over_up() -> None:
    topology = small_fat_tree(oversubscription=2, spines=2)
    leaf = next(i for i, place in enumerate(topology.places) if place.name == "leaf 0")
    kinds = Counter[str]()
    for link in topology.links:
        if link.source == leaf:
            kinds[topology.places[link.target].kind] += int(link.bytes_per_s)
    assert kinds == {"nic": 3 * 50 * GB, "switch": 3 * 50 * GB / 2}


def test_switches_spread_equal_routes_by_the_server_of_the_target() -> None:
    topology = small_fat_tree(spines=3)
    spines = {way(topology, server * 4, (server + 1) % 3 * 4 + 1)[3] for server in range(3)}
    assert spines == {"spine 0", "spine 1", "spine 2"}


@pytest.mark.parametrize(
    ("ports", "rail_of_last", "port_rate"), [(2, 1, 50), (4, 3, 50), (8, 3, 100)]
)
def test_devices_share_ports_or_bundle_them(ports: int, rail_of_last: int, port_rate: int) -> None:
    topology = small_fat_tree(nics_per_node=ports)
    assert way(topology, 3, 7)[1] == f"nic 0.{rail_of_last}"
    assert rate(topology, 3, 7) == port_rate * GB


@pytest.mark.parametrize("name", catalog.names("clusters"))
def test_every_cluster_of_the_catalog_has_a_topology(name: str) -> None:
    cluster = Cluster.named(name, network="ib_8x400g").holding(64)  # of a torus, a slice
    (tier,) = cluster.tiers
    node = of_cluster(cluster, tier.gpus)
    assert node.devices == tier.gpus
    assert sending_rates(node) == [pytest.approx(tier.bytes_per_s)] * tier.gpus
    two = of_cluster(cluster, 2 * tier.gpus)
    assert two.devices == 2 * tier.gpus
    assert rate(two, 0, tier.gpus) <= 50 * GB * max(1, 8 / cluster.gpus_per_node)


def test_a_cluster_has_its_own_switches_and_its_own_way_through_the_host() -> None:
    reducing = of_cluster(Cluster.named("h100_sxm"), 8)
    assert reducing.places[reducing.reducing_switch(range(8))].name == "nvswitch"
    with pytest.raises(BadValueError, match="linked to one switch that reduces"):
        of_cluster(Cluster.named("a100_sxm"), 8).reducing_switch(range(8))
    staged = of_cluster(Cluster.named("rtx4090"), 8)
    assert "host memory" in way(staged, 0, 1)


def test_a_rack_holds_its_trays_together_and_a_network_joins_racks() -> None:
    cluster = Cluster.named("gb200_nvl72", network="ib_1x400g_per_gpu")
    assert way(of_cluster(cluster, 8), 0, 7) == ["gpu 0", "nvswitch", "gpu 7"]
    racks = of_cluster(cluster, 144)
    assert way(racks, 0, 71) == ["gpu 0", "nvswitch 0", "gpu 71"]
    assert way(racks, 0, 72) == ["gpu 0", "nic 0.0", "leaf 0", "nic 18.0", "gpu 72"]


def test_nodes_may_be_used_in_part() -> None:
    cluster = Cluster.named("mi300x", network="roce_8x400g")
    topology = of_cluster(cluster, 8, nodes=2)
    assert [place.server for place in topology.places[:8]] == [0] * 4 + [1] * 4
    assert rate(topology, 0, 3) == pytest.approx(64 * GB)
    assert way(topology, 3, 7) == ["gpu 3", "nic 0.3", "leaf 3", "nic 1.3", "gpu 7"]


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: nvswitch(0, GB), BadValueError, "gpus must be a whole number of at least 1"),
        (lambda: nvswitch(8, 0), BadValueError, "bytes_per_s must be a finite number"),
        (lambda: nvswitch(8, GB, latency_s=-1), BadValueError, "latency_s must be a finite"),
        (lambda: nvswitch(8, GB, latency_s="1us"), BadTypeError, "latency_s must be a finite"),  # type: ignore[arg-type]
        (lambda: torus((), GB), BadValueError, "shape must be one to three"),
        (lambda: torus((2, 2, 2, 2), GB), BadValueError, "shape must be one to three"),
        (lambda: torus((4, 0), GB), BadValueError, "shape must be a whole number"),
        (lambda: torus(4, GB), BadTypeError, "shape must be one to three"),  # type: ignore[arg-type]
        (lambda: pcie_tree(8, GB, gpus_per_switch=0), BadValueError, "gpus_per_switch"),
        (lambda: small_fat_tree(oversubscription=0), BadValueError, "oversubscription"),
        (lambda: small_fat_tree(spines=0), BadValueError, "spines"),
        (lambda: of_cluster(Cluster.named("h100_sxm"), 16), BadValueError, "name a network"),
        (lambda: of_cluster(Cluster.named("h100_sxm"), 9, 2), BadValueError, "the same on each"),
        (lambda: of_cluster(Cluster.named("h100_sxm"), 9, 1), BadValueError, "at most 8"),
    ],
)
def test_what_cannot_be_built_is_said_in_one_line(
    build: Any, error: type[ShardcostError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_places_that_nothing_connects_have_no_route() -> None:
    lonely = Topology("two islands", nvswitch(2, GB).places, ())
    with pytest.raises(BadValueError, match="between places that links connect"):
        lonely.route(0, 1)


def test_without_networkx_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(
        ShardcostError, match=r"needs networkx: pip install 'shardcost\[topology\]'"
    ):
        nvswitch(2, GB).route(0, 1)

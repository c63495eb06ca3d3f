"""Boards on PCIe that are peers, and boards whose groups are staged through the host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardcost.cluster import Cluster
from shardcost.collectives.library_time import collective_time
from shardcost.machine import machine_of
from shardcost.machine.kernels import kernels_of

SIZE = 2.0**26


def seconds(cluster: Cluster | str, gpus: int) -> float:
    return float(collective_time("all_gather", SIZE, machine_of(cluster), gpus).time_s)


def test_a_pair_is_as_fast_on_both_hosts() -> None:
    assert seconds("l40s_peers", 2) == pytest.approx(seconds("l40s", 2), rel=1e-6)


@pytest.mark.parametrize("gpus", [4, 8])
def test_larger_groups_of_peers_are_not_staged(gpus: int) -> None:
    assert seconds("l40s_peers", gpus) < seconds("l40s", gpus) / 2


def test_groups_beyond_the_peers_are_staged() -> None:
    peers = Cluster.named("l40s_peers")
    four = replace(peers, tiers=(replace(peers.tiers[0], peer_gpus=4),))
    assert seconds(four, 4) == pytest.approx(seconds(peers, 4), rel=1e-6)
    assert seconds(four, 8) > 2 * seconds(peers, 8)


def test_another_vendor_inherits_by_bandwidth_and_not_by_compute_capability() -> None:
    mi325x = kernels_of(Cluster.named("mi325x").device)
    assert mi325x.gemm("bf16").inherited_from == "h200_sxm"
    assert mi325x.section("gemm", "sustained").inherited_from == "mi300x"
    mi300x = kernels_of(Cluster.named("mi300x").device)
    fed = mi325x.sustained_share("fp8") / mi300x.sustained_share("fp8")
    assert fed == pytest.approx((1000 / 750) ** 0.75, rel=0.01)

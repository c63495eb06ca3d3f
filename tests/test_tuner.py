"""NCCL's own model of time: its figures, and what it would run."""

from __future__ import annotations

import numpy as np
import pytest

from shardcost import Cluster
from shardcost.collectives.group import Group
from shardcost.collectives.library_time import collective_time
from shardcost.collectives.tuner import tuner_times

SIZES = 2.0 ** np.arange(3, 34)
KIB, MIB, GIB = 2**10, 2**20, 2**30


def rate_gb_per_s(system: str, gpus: int, path: tuple[str, str]) -> float:
    """Return the rate of the links if the ring ran, that NCCL reckons with, without latency."""
    group = Group.on(Cluster.named(system), gpus)
    small, large = tuner_times("all_reduce", np.array([GIB, 2.0 * GIB]), group)[path]
    return float(2 * (gpus - 1) / gpus * GIB / (large - small) / 1e9)


@pytest.mark.parametrize(
    ("system", "gpus", "path", "expected"),
    [
        ("a100_sxm", 8, ("ring", "Simple"), 240),
        ("h100_sxm", 8, ("ring", "Simple"), 360),
        ("b200_sxm", 8, ("ring", "Simple"), 720),
        ("h100_sxm", 8, ("nvls", "Simple"), 476),
        ("b200_sxm", 8, ("nvls", "Simple"), 829),
        ("h100_sxm", 4, ("nvls", "Simple"), 306),
        ("b200_sxm", 4, ("nvls", "Simple"), 400),
        ("h100_sxm", 8, ("ring", "LL"), 141),
        ("a100_sxm", 8, ("ring", "LL128"), 220.8),
    ],
)
def test_rates_follow_from_the_graph_search(
    system: str, gpus: int, path: tuple[str, str], expected: float
) -> None:
    assert rate_gb_per_s(system, gpus, path) == pytest.approx(expected, rel=0.002)


def switches(system: str, collective: str, gpus: int, network: str | None = None) -> list[str]:
    """Return what NCCL runs from 8 bytes on, with the power of two that each begins at."""
    cluster = Cluster.named(system, network)
    result = collective_time(collective, SIZES, cluster, gpus, library="nccl-tuner")
    names = [f"{a}/{p}" for a, p in zip(result.algorithm, result.protocol, strict=True)]
    begins = [0, *(i for i in range(1, len(names)) if names[i] != names[i - 1])]
    return [f"{names[i]} from {SIZES[i] / KIB:g}K" for i in begins]


def test_what_nccl_runs_on_one_node() -> None:
    """Where measured curves of A100, H100 and B200 jump: the same sizes."""
    assert switches("a100_sxm", "all_reduce", 2)[1:] == ["ring/Simple from 1024K"]
    assert switches("h100_sxm", "all_reduce", 8)[1:] == ["nvls/Simple from 2048K"]
    assert switches("b200_sxm", "all_reduce", 4)[1:] == [
        "ring/LL128 from 8192K",
        "ring/Simple from 16384K",
    ]
    assert switches("b200_sxm", "all_gather", 8)[1:] == [
        "ring/LL128 from 16384K",
        "ring/Simple from 32768K",
    ]


def test_what_nccl_runs_across_nodes() -> None:
    found = switches("h100_sxm", "all_reduce", 16, "ib_8x400g")
    assert [each.split(" ")[0] for each in found] == ["tree/LL", "tree/LL128", "nvls_tree/Simple"]
    assert "ring/LL" in switches("h100_sxm", "all_gather", 16, "ib_8x400g")[0]


def test_latency_is_of_the_tables() -> None:
    """A ring of 8 under LL: 6.6 us and 14 hops of 0.6 us."""
    result = collective_time("all_reduce", 1, "h100_sxm", 8, library="nccl-tuner")
    assert result.time_s == pytest.approx((6.6 + 14 * 0.6) * 1e-6, rel=1e-6)
    assert "no constant is fitted" in result.notes[0]
    pcie = collective_time("all_reduce", 1, "l40s", 2, library="nccl-tuner")
    assert pcie.time_s == pytest.approx((6.6 + 2 * 1.0) * 1e-6, rel=1e-4)


def test_estimates_do_not_jump() -> None:
    group = Group.on(Cluster.named("h100_sxm", "ib_8x400g"), 16)
    sizes = np.geomspace(8, 8 * GIB, 4000)
    for path, times in tuner_times("all_reduce", sizes, group).items():
        assert np.abs(np.diff(np.log(times))).max() < 0.03, path

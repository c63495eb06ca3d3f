"""From what drivers report to the catalog's clusters."""

from __future__ import annotations

import pytest

from shardcost.catalog import contents, names
from shardcost.catalog.reported import cluster_reporting, clusters_of_capability
from shardcost.cluster import Cluster
from shardcost.errors import BadTypeError


@pytest.mark.parametrize(
    ("reported", "cluster"),
    [
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("nvidia h100 80gb hbm3", "h100_sxm"),
        ("H100 80GB  HBM3", "h100_sxm"),
        ("NVIDIA-H100-80GB-HBM3", "h100_sxm"),
        ("NVIDIA H100 PCIe", "h100_pcie"),
        ("NVIDIA H100 NVL", "h100_nvl"),
        ("NVIDIA H200", "h200_sxm"),
        ("NVIDIA H200 141GB HBM3e", "h200_sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100_sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100_sxm_40gb"),
        ("A100-SXM4-40GB", "a100_sxm_40gb"),
        ("NVIDIA A100 80GB PCIe", "a100_pcie"),
        ("Tesla V100-SXM2-16GB", "v100_cube"),
        ("Tesla V100-SXM2", "v100_cube"),
        ("Tesla V100-SXM3-32GB", "v100_dgx2"),
        ("NVIDIA GH200 120GB", "gh200_quad"),
        ("NVIDIA B200", "b200_sxm"),
        ("NVIDIA GB200", "gb200_nvl72"),
        ("NVIDIA GB300", "gb300_nvl72"),
        ("NVIDIA B300 SXM6 AC", "b300_sxm"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
    ],
)
def test_a_reported_name_finds_its_cluster(reported: str, cluster: str) -> None:
    assert cluster_reporting(reported) == cluster


@pytest.mark.parametrize(
    "reported",
    [
        "",
        "NVIDIA",
        "80GB HBM3",
        "Graphics",
        "NVIDIA A100",  # 40 or 80 GB, SXM or PCIe
        "NVIDIA A100-SXM4",
        "NVIDIA H100",
        "NVIDIA H200 NVL",  # PCIe boards, not the SXM ones
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "Quadro K600",
        "x" * 10**6,
    ],
)
def test_a_name_of_several_boards_or_of_none_finds_nothing(reported: str) -> None:
    assert cluster_reporting(reported) is None


def test_a_name_must_be_text() -> None:
    with pytest.raises(BadTypeError, match="device_name must be a name"):
        cluster_reporting(90)  # type: ignore[arg-type]


AS_ANOTHER = {"gb200_nvl4", "l40s_peers", "trainium2_ultra"}
"""Clusters whose boards are those of another, joined in another way."""


def test_every_cluster_says_what_its_boards_report_and_each_name_leads_back() -> None:
    for name, content in contents("clusters"):
        assert content["reported_as"] or name in AS_ANOTHER, name
        for reported in content["reported_as"]:
            assert cluster_reporting(reported) == name


def test_clusters_by_compute_capability() -> None:
    assert clusters_of_capability(80, "nvswitch") == ["a100_sxm", "a100_sxm_40gb", "a800_sxm"]
    assert clusters_of_capability(70, "cube_mesh") == ["v100_cube"]
    assert clusters_of_capability(100) == ["b200_sxm", "gb200_nvl4", "gb200_nvl72"]
    assert clusters_of_capability(12345) == []


def test_the_key_is_of_the_catalog_alone() -> None:
    assert all(not hasattr(Cluster.named(name), "reported_as") for name in names("clusters"))

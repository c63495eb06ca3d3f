"""Curves of collectives as data, the shipped measurements beside them, and where they switch."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from shardcost import Cluster
from shardcost.collectives.library_time import CollectiveTime, collective_time
from shardcost.collectives.sweep import curve_sizes, octaves, switches
from shardcost.errors import BadValueError
from shardcost.report import collective_plot
from shardcost.report.collective import curves_as_data as as_data
from shardcost.report.pictures import write_picture
from shardcost.validate.shipped import points_like, points_of


@pytest.fixture(scope="module")
def sweep() -> CollectiveTime:
    """Return all-reduces of many sizes on two nodes, of which some were measured."""
    cluster = Cluster.named("h100_sxm", network="efa_8x400g")
    return collective_time("all_reduce", curve_sizes(8, 2**33), cluster, 16)


def test_a_curve_is_as_dense_everywhere() -> None:
    sizes = curve_sizes(8, 2**33, per_octave=4)
    assert (sizes[0], sizes[-1], len(sizes)) == (8, 2**33, 121)
    assert np.diff(np.log2(sizes)) == pytest.approx(0.25)
    assert octaves(5)[0] == 4
    assert octaves(2**40)[-1] == 2**40


def test_switches_are_where_the_path_changes(sweep: CollectiveTime) -> None:
    paths = list(zip(sweep.algorithm, sweep.protocol, strict=True))
    changes = [place for place, (a, b) in enumerate(pairwise(paths), 1) if a != b]
    found = switches(sweep)
    assert [each.place for each in found] == changes
    assert len(found) >= 2
    assert all((each.algorithm, each.protocol) == paths[each.place] for each in found)


def test_points_are_those_of_the_same_place() -> None:
    across = Cluster.named("h100_sxm", network="efa_8x400g")
    found = points_of(across, "all_reduce", 16)
    assert [each.dataset for each in found] == ["aws_p5_2n"] * 4
    assert found[0].size_bytes == 2**20
    assert found[0].time_s == pytest.approx(123.2e-6)
    assert found[-1].busbw_bytes_per_s == pytest.approx(2**33 / 33605e-6 * 30 / 16)
    assert points_of(across, "all_gather", 16) == ()
    assert points_of(across, "all_reduce", 8) == ()
    assert points_of(across, "all_reduce", 16, library="vllm") == ()
    assert points_of(Cluster.named("h100_sxm", network="ib_8x400g"), "all_reduce", 16) == ()


def test_inside_a_domain_the_network_does_not_matter() -> None:
    rack = Cluster.named("gb300_nvl72")
    joined = Cluster.named("gb300_nvl72", network="roce_8x400g")
    assert len(points_of(rack, "all_reduce", 8)) == 1
    assert points_of(rack, "all_reduce", 8) == points_of(joined, "all_reduce", 8)


def test_the_data_has_one_entry_per_size(sweep: CollectiveTime) -> None:
    data = as_data(sweep, points_like(sweep))
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    columns = ["time_s", "low_s", "high_s", "busbw_bytes_per_s", "algorithm", "protocol"]
    columns = [data[name] for name in columns] + [path["time_s"] for path in data["paths"]]
    assert {len(each) for each in columns} == {len(data["size_bytes"])}
    middle = zip(data["low_s"], data["time_s"], data["high_s"], strict=True)
    assert all(low < time < high for low, time, high in middle)
    assert data["link"]["bytes_per_s"] == 400e9
    assert [each["size_bytes"] for each in data["points"]] == [2**20, 2**26, 2**30, 2**33]


def test_the_envelope_is_one_of_the_paths_or_between_them(sweep: CollectiveTime) -> None:
    data = as_data(sweep)
    times = np.array([path["time_s"] for path in data["paths"]])
    assert (np.array(data["time_s"]) >= times.min(axis=0) * (1 - 1e-9)).all()
    assert (np.array(data["time_s"]) <= times.max(axis=0) * (1 + 1e-9)).all()


def test_one_gpu_has_no_curve() -> None:
    alone = collective_time("all_reduce", octaves(8), "h100_sxm", 1)
    with pytest.raises(BadValueError, match="at least 2 for a curve"):
        as_data(alone)


def test_measured_points_are_in_the_picture(sweep: CollectiveTime, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_picture(collective_plot.sketch(sweep, points_like(sweep)), tmp_path / "with.svg")
    write_picture(collective_plot.sketch(sweep), tmp_path / "without.svg")
    assert "measured: aws_p5_2n" in (tmp_path / "with.svg").read_text()
    assert "measured" not in (tmp_path / "without.svg").read_text()

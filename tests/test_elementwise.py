"""Memory-bound passes: the formula by hand, arrays, bad input, and measured rows."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardcost.cluster import Cluster
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.formats.tables import read_table
from shardcost.kernels.elementwise import elementwise_time_s, launch_s
from shardcost.machine.kernels import Fit, KernelConstants, Section, kernels_of
from shardcost.validate.validation import validate


@pytest.fixture(scope="module")
def h200() -> KernelConstants:
    return kernels_of(Cluster.named("h200_sxm").device)


def test_by_hand(h200: KernelConstants) -> None:
    """4.8 TB/s at half of it: a millisecond for 2.4 GB, beside two latencies and two rows."""
    assert h200.device.memory_bytes_per_s == 4.8e12
    table = {"latency_us": 2.0, "memory_share": 0.5, "row_ns_per_element": 1.0}
    section = Section("by_hand", "elementwise", table, Fit("by hand", 1, 1.0, 1.0), None)
    by_hand = replace(h200, sections={("elementwise", "elementwise"): section})
    time_s = elementwise_time_s(by_hand, 2.4e9, kernels=2, row_elements=1000)
    assert time_s == pytest.approx(1e-3 + 2 * 3e-6)


def test_arrays_are_the_numbers_of_each_cell(h200: KernelConstants) -> None:
    moved = np.array([0.0, 1e3, 1e6, 1e9])
    found = np.asarray(elementwise_time_s(h200, moved))
    assert found == pytest.approx([float(elementwise_time_s(h200, each)) for each in moved])
    assert (np.diff(found) > 0).all()


def test_a_faster_memory_is_faster(h200: KernelConstants) -> None:
    assert elementwise_time_s(h200, 1e9) < elementwise_time_s(
        kernels_of(Cluster.named("h100_sxm").device), 1e9
    )


def test_launches(h200: KernelConstants) -> None:
    assert launch_s(h200, 10, "eager") == pytest.approx(10 * float(launch_s(h200, 1, "eager")))
    assert launch_s(h200, 1000, "graph") == launch_s(h200, 1, "graph")
    with pytest.raises(UnknownNameError, match="mode"):
        launch_s(h200, 1, "lazy")


def test_bad_size(h200: KernelConstants) -> None:
    with pytest.raises(BadValueError, match="bytes_moved"):
        elementwise_time_s(h200, -1)


def test_rows_that_cannot_be_predicted_say_why(tmp_path: Path) -> None:
    path = tmp_path / "elementwise.csv"
    path.write_text(
        "gpu,op,bytes,time_us\nh200_sxm,copy,1024,1.1\nh200_sxm,bake,1024,1.1\nh200_sxm,copy,0,1\n",
        encoding="utf-8",
    )
    found = validate(read_table(path))
    assert found.predicted == 1
    assert sum(found.skipped.values()) == 2


def test_errors_on_measured_rows(evidence: Path) -> None:
    found = validate(read_table(evidence / "measured" / "elementwise.csv")).overall
    assert found.median_pct is not None
    assert found.median_pct < 5


def test_normalisations_of_a_decode_step(evidence: Path, h200: KernelConstants) -> None:
    path = evidence / "measured" / "decode.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "rmsnorm"]
    assert rows
    hidden = np.array([int(row["hidden"]) for row in rows])
    moved = 2 * 2 * hidden * np.array([int(row["batch"]) for row in rows])
    measured = np.array([float(row["time_us"]) for row in rows])
    predicted = 1e6 * np.asarray(elementwise_time_s(h200, moved, row_elements=hidden))
    errors = np.abs(predicted / measured - 1)
    assert np.median(errors) < 0.05
    assert errors.max() < 0.15

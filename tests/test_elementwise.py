"""Memory-bound passes: the formula by hand, arrays, bad input, and measured rows."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab import refit_elementwise
from shardcost.cluster import Cluster
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.formats.tables import read_table
from shardcost.kernels.elementwise import (
    LAYER_KERNELS,
    elementwise_time_s,
    launch_s,
    layer_kernel_time_s,
    row_kernel_time_s,
)
from shardcost.machine.kernels import Fit, KernelConstants, Section, clock_hz, kernels_of
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


def test_latencies_carry_over_in_clock_cycles(h200: KernelConstants) -> None:
    h800, v100 = (kernels_of(Cluster.named(name).device) for name in ("h800_sxm", "v100_dgx2"))
    assert h800.section("elementwise", "elementwise").inherited_from == "h200_sxm"
    assert elementwise_time_s(h800, 0) == pytest.approx(elementwise_time_s(h200, 0))
    a100 = kernels_of(Cluster.named("a100_sxm").device)
    assert elementwise_time_s(a100, 0) / elementwise_time_s(h200, 0) == pytest.approx(
        1980 / 1410, rel=0.01
    )
    ratio = clock_hz(a100.device) / clock_hz(v100.device)
    assert elementwise_time_s(v100, 0) == pytest.approx(ratio * elementwise_time_s(a100, 0))
    slow = replace(h200.device, name="half the clock", boost_clock_hz=0.99e9)
    assert row_kernel_time_s(kernels_of(slow), "norm", 1, 4096) == pytest.approx(
        2 * row_kernel_time_s(h200, "norm", 1, 4096)
    )


@pytest.mark.parametrize("kind", LAYER_KERNELS)
def test_kernels_of_a_layer(h200: KernelConstants, kind: str) -> None:
    tokens = np.array([1.0, 128.0, 4096.0, 65536.0])
    found = np.asarray(layer_kernel_time_s(h200, kind, tokens, 4096, 4 * 4096))
    each = [layer_kernel_time_s(h200, kind, rows, 4096, 4 * 4096) for rows in tokens.tolist()]
    assert found == pytest.approx(each)
    assert (np.diff(found) > 0).all()
    warm = np.asarray(layer_kernel_time_s(h200, kind, tokens, 4096, 4 * 4096, warm=True))
    assert (warm <= found * (1 + 1e-9)).all()
    assert warm[-1] == pytest.approx(found[-1], rel=0.01)
    # Many rows come at the memory's rate, of which wide ones leave less.
    wide = layer_kernel_time_s(h200, kind, 65536, 8192, 4 * 8192)
    assert 1.95 < wide / found[-1] < 4


def test_kernels_of_a_layer_by_hand(h200: KernelConstants) -> None:
    table = {
        "latency_us": 1.0, "row_ns_per_element": 1.0, "memory_share": 0.5, "wide_loss": 1.0,
        "wide_elements": 1000, "cache_share": 0.8, "cache_steepness": 4,
        "cache_bytes_per_clock": 10.0,
    }  # fmt: skip
    section = Section("by_hand", "layer_rope", table, Fit("by hand", 1, 1.0, 1.0), None)
    on = replace(h200, sections={("elementwise", "layer_rope"): section})
    # 2.4 GB at 2.4 TB/s, twice as long because rows are twice as wide.
    found = layer_kernel_time_s(on, "layer_rope", 1000, 2000, 2.4e6)
    assert found == pytest.approx(1e-6 + 2e-3)
    assert layer_kernel_time_s(on, "layer_rope", 1, 2000, 1.0) == pytest.approx(3e-6)
    with pytest.raises(UnknownNameError, match="kind"):
        layer_kernel_time_s(on, "fry", 1, 1, 1)


def test_a_refit_finds_the_constants_of_kernels_of_a_layer(
    h200: KernelConstants, tmp_path: Path
) -> None:
    lines = ["dataset,gpu,op,tokens,width,bytes,time_us"]
    for tokens in (1, 16, 128, 1024, 4096, 65536):
        for width in (4096, 8192):
            time_s = layer_kernel_time_s(
                h200, "layer_silu_mul", tokens, width, 6 * width, warm=True
            )
            moved = 6 * width * tokens
            lines.append(f"made,h200_sxm,silu_mul,{tokens},{width},{moved},{1e6 * time_s}")
    path = tmp_path / "elementwise_layer.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (kernels,) = refit_elementwise.measured_kernels(read_table(path))
    found = kernels.predicted_us(refit_elementwise.fitted(kernels))
    assert found == pytest.approx(kernels.time_us, rel=0.03)


def test_errors_of_kernels_of_a_layer(evidence: Path) -> None:
    path = evidence / "measured" / "more" / "elementwise_layer.csv"
    if not path.is_file():
        pytest.skip("no table of kernels of a layer beside the project")
    found = validate(read_table(path)).overall
    assert found.rows == 70
    assert found.median_pct is not None
    assert found.median_pct < 5
    assert found.p90_pct is not None
    assert found.p90_pct < 15


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

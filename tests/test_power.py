"""Kernels under a board's power limit: bounds, how shares carry over, tables of such rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab import refit_gemm
from shardcost import Layout, Prefill, Train
from shardcost.cluster import Cluster, Device
from shardcost.estimate import estimate
from shardcost.estimate.why import why
from shardcost.formats.tables import read_table
from shardcost.kernels.gemm import gemm_time_s
from shardcost.kernels.power import sustained_time_s
from shardcost.machine import machine_of
from shardcost.machine.kernels import kernels_of
from shardcost.validate.validation import validate

H200 = machine_of("h200_sxm").kernels
LARGE = (8192, 8192, 8192)
FLOPS = 2.0 * 8192**3


def of(system: str) -> Device:
    return Cluster.named(system).device


def test_large_gemms_run_at_the_share_of_the_peak_that_is_fed() -> None:
    for dtype in ("bf16", "fp8"):
        share = H200.sustained_share(dtype)
        burst = gemm_time_s(H200, dtype, *LARGE)
        found = sustained_time_s(H200, dtype, FLOPS, burst)
        assert found == pytest.approx(FLOPS / (share * H200.device.peak(dtype)))
        assert found > burst


def test_what_waits_for_memory_keeps_its_clock() -> None:
    burst = gemm_time_s(H200, "bf16", 16, 8192, 8192)
    assert sustained_time_s(H200, "bf16", 2 * 16 * 8192**2, burst) == burst


def test_arrays_and_numbers_agree() -> None:
    m = np.array([16.0, 512.0, 8192.0])
    bursts = gemm_time_s(H200, "fp8", m, 8192, 8192)
    found = sustained_time_s(H200, "fp8", 2 * m * 8192**2, bursts)
    for rows, burst, each in zip(m, bursts, found, strict=True):
        assert sustained_time_s(H200, "fp8", 2 * rows * 8192**2, burst) == pytest.approx(each)


def test_wide_formats_and_bursts_have_no_limit() -> None:
    assert H200.sustained_share("fp32") is None
    assert replace(H200, power_limited=False).sustained_share("bf16") is None
    assert machine_of("h200_sxm").in_bursts.kernels.sustained_share("bf16") is None


def test_more_watts_feed_more_of_the_peak() -> None:
    shares = [
        kernels_of(of(name)).sustained_share("fp8")
        for name in ("b200_sxm", "gb200_nvl72", "gb300_nvl72")
    ]
    assert shares == sorted(shares)
    assert shares[0] < shares[2]
    h200 = of("h200_sxm")
    doubled = replace(h200, name="more watts", power_w=1400.0)
    assert kernels_of(doubled).sustained_share("bf16") == pytest.approx(
        H200.sustained_share("bf16") * 2**0.75
    )
    # A what-if on the device itself: the same.
    assert replace(H200, device=doubled).sustained_share("bf16") == pytest.approx(
        kernels_of(doubled).sustained_share("bf16")
    )


def test_fewer_watts_or_wider_cores_of_another_generation_do_not_cost_a_share() -> None:
    b300, b200 = (kernels_of(of(name)) for name in ("gb300_nvl72", "b200_sxm"))
    assert b300.sustained_share("nvfp4") >= b200.sustained_share("nvfp4")
    v100 = kernels_of(of("v100_dgx2"))
    assert v100.sustained_share("fp16") >= kernels_of(of("a100_sxm")).sustained_share("bf16")


def test_a_benchmark_at_the_limit_leaves_room_on_devices_with_more_power() -> None:
    one, other = (kernels_of(of(name)) for name in ("b200_sxm", "gb300_nvl72"))
    assert other.gemm("fp8").constants["peak_share"] > one.gemm("fp8").constants["peak_share"]
    shares = [kernels.gemm("bf16").constants["peak_share"] for kernels in (one, other)]
    assert shares[0] == shares[1]
    assert other.gemm("fp8").constants["peak_share"] <= 1


def test_estimates_are_limited_and_say_so() -> None:
    machine = machine_of("h100_sxm")
    train = Train(global_batch=64, sequence_length=4096)
    layout = Layout(tp=4, dp=2)
    found, boosted = (
        estimate("llama3-8b", each, layout, train) for each in (machine, machine.in_bursts)
    )
    assert 1.03 < found.time_s / boosted.time_s < 1.25
    answer = why(found, "op.MLP up")
    assert "sustained_share" in {
        term.name for step in (answer, *answer.steps) for term in step.terms
    }
    decode = Prefill(batch=1, prompt_tokens=16)
    few, fast = (
        estimate("llama3-8b", each, Layout(tp=4), decode) for each in (machine, machine.in_bursts)
    )
    assert few.time_s == pytest.approx(fast.time_s)


def table_of(tmp_path: Path, share: float) -> Path:
    """Write GEMMs of an H200 that reach a share of the peak."""
    lines = ["gpu,dtype,m,n,k,burst_us,sustained_us"]
    for m, n, k in ((8192, 8192, 8192), (4096, 14336, 4096), (16384, 5120, 5120)):
        limit = 1e6 * 2 * m * n * k / (share * H200.device.peak("bf16"))
        burst = 1e6 * gemm_time_s(H200, "bf16", m, n, k) + 100
        lines.append(f"h200_sxm,bf16,{m},{n},{k},{burst},{limit}")
    path = tmp_path / "sustained.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_refit_finds_the_share_that_made_the_rows(tmp_path: Path) -> None:
    table = read_table(table_of(tmp_path, 0.5))
    assert table.rows == 6
    (rows,) = refit_gemm.measured_sustained(table)
    constants = refit_gemm.fitted_sustained(rows)
    assert constants["bf16_share"] == pytest.approx(0.5, rel=1e-3)
    assert constants["after_pause_us"] == pytest.approx(100, rel=0.01)
    assert rows.error_pct(constants) == pytest.approx(np.zeros(6), abs=0.2)


def test_errors_of_sustained_rows(evidence: Path) -> None:
    path = evidence / "measured" / "more" / "sustained.csv"
    if not path.is_file():
        pytest.skip("no table of GEMMs under a power limit beside the project")
    found = validate(read_table(path), ["figure"])
    by = {group.key["figure"]: group.stats for group in found.groups}
    assert by["sustained_us"].rows == 16
    assert by["sustained_us"].median_pct is not None
    assert by["sustained_us"].median_pct < 3
    assert by["burst_us"].median_pct is not None
    assert by["burst_us"].median_pct < 6

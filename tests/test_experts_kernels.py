"""Expert kernels: physics they cannot beat, arrays, which constants hold, and measured rows."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import pytest

from shardcost import catalog
from shardcost.catalog import tuner_table
from shardcost.cluster import Cluster
from shardcost.dtypes import WEIGHT_FORMATS, weight_format
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.formats.tables import read_table
from shardcost.kernels.experts import (
    experts_time_s,
    grouped_gemm_time_s,
)
from shardcost.machine.experts import (
    default_kernel,
    experts_section,
    family_of,
)
from shardcost.machine.kernels import CATALOG_KERNELS, Fit, KernelConstants, Section, kernels_of
from shardcost.routing import ROUTINGS, distinct_experts, expert_load
from shardcost.validate.validation import validate

GPUS = tuple(name for name in catalog.names("experts") if name != "h200_sxm")
LAYER: dict[str, Any] = {"hidden": 4096, "inter": 1536, "experts": 128, "top_k": 8}
TOKENS = [1, 4, 16, 64, 256, 1024, 4096, 16384]
ROUNDING = 5e-3
"""Differences below this are those of fits, not of formats."""


def on(name: str) -> KernelConstants:
    return kernels_of(Cluster.named(name).device)


def time_s(
    gpu: str | KernelConstants,
    kernel: str,
    dtype: str,
    tokens: Any,
    routing: str = "even",
    ep: int = 1,
    **given: Any,
) -> Any:
    load = expert_load(tokens, LAYER["experts"], LAYER["top_k"], ep, routing=routing)
    constants = on(gpu) if isinstance(gpu, str) else gpu
    return experts_time_s(
        constants, kernel, dtype, tokens, **LAYER, **load._asdict(), ep=ep, **given
    )


def sections() -> list[tuple[str, str, str]]:
    return [
        (gpu, *name.rsplit("-", 1))  # type: ignore[misc]
        for gpu in GPUS
        for name in catalog.raw("experts", gpu)
    ]


@pytest.mark.parametrize("routing", ["even", "random"])
@pytest.mark.parametrize("ep", [1, 8])
def test_more_tokens_take_longer(ep: int, routing: str) -> None:
    for gpu, kernel, dtype in sections():
        times = [time_s(gpu, kernel, dtype, tokens, routing, ep) for tokens in TOKENS]
        assert all(after >= 0.999 * before for before, after in pairwise(times))


def test_no_kernel_beats_the_datasheet() -> None:
    """All weights of 128 experts exceed any L2 cache four times over; so do 16k tokens."""
    for gpu, kernel, dtype in sections():
        device = Cluster.named(gpu).device
        form = device.multiplied(dtype)
        weights = 3 * 128 * 4096 * 8192 * form.weight_bytes
        assert weights > 4 * (device.l2_cache_bytes or 0)
        load: dict[str, Any] = {"experts": 128, "top_k": 8, "active": 128}
        few = experts_time_s(on(gpu), kernel, dtype, 16, 4096, 8192, pairs=128, busiest=1, **load)
        assert few > weights / device.memory_bytes_per_s
        many = experts_time_s(
            on(gpu), kernel, dtype, 16384, 4096, 8192, pairs=131072, busiest=1024, **load
        )
        assert many > 6 * 131072 * 4096 * 8192 / device.peak(form.product)


def test_arrays_are_the_numbers_of_each_cell() -> None:
    tokens = np.array(TOKENS, dtype=float)
    for routing in ROUTINGS:
        for ep in (1, 16):
            for gpu, kernel, dtype in [
                ("h100_sxm", "triton", "bf16"),
                ("b200_sxm", "trtllm_gen", "nvfp4"),
            ]:
                each = [time_s(gpu, kernel, dtype, float(one), routing, ep) for one in tokens]
                assert time_s(gpu, kernel, dtype, tokens, routing, ep) == pytest.approx(each)


def test_arrays_of_widths_broadcast_against_tokens() -> None:
    rows = np.array([[8.0], [4096.0]])
    columns = np.array([1024.0, 2048.0, 14336.0])
    found = grouped_gemm_time_s(on("h200_sxm"), "bf16", rows, columns, 4096, groups=8)
    assert found.shape == (2, 3)
    one = grouped_gemm_time_s(on("h200_sxm"), "bf16", 4096, 2048, 4096, groups=8)
    assert found[1, 1] == pytest.approx(one)


def test_a_plain_number_needs_no_numpy() -> None:
    code = (
        "import sys; from shardcost.machine.kernels import kernels_of\n"
        "from shardcost.cluster import Cluster; from shardcost.routing import expert_load\n"
        "from shardcost.kernels.experts import experts_time_s\n"
        "load = expert_load(64, 128, 8, 4, routing='power_law')._asdict()\n"
        "device = Cluster.named('h100_sxm').device\n"
        "experts_time_s(kernels_of(device), 'triton', 'bf16', 64, 4096, 1536, experts=128,"
        " top_k=8, ep=4, **load)\n"
        "assert 'numpy' not in sys.modules\n"
    )
    assert run([sys.executable, "-c", code], check=False).returncode == 0


def test_weights_in_the_cache_are_read_faster() -> None:
    """One expert of 38 MB, in a cache of 96 MB."""
    warm = time_s("l40s", "triton", "bf16", 1, ep=8)
    assert time_s("l40s", "triton", "bf16", 1, ep=8, warm=False) > 1.2 * warm


def test_ragged_groups_take_longer_than_even_ones() -> None:
    even = grouped_gemm_time_s(on("h200_sxm"), "bf16", 128 * 128, 3072, 4096, groups=128)
    ragged = grouped_gemm_time_s(
        on("h200_sxm"), "bf16", 128 * 128, 3072, 4096, groups=128, largest_group=1024
    )
    assert ragged > even


def test_triton_works_through_remote_rows() -> None:
    shares = {
        kernel: time_s("h100_sxm", kernel, "bf16", 16384, ep=64)
        / time_s("h100_sxm", kernel, "bf16", 16384)
        for kernel in ("triton", "cutlass")
    }
    assert shares["triton"] > 2 * shares["cutlass"]


@pytest.mark.parametrize("gpu", catalog.names("clusters"))
def test_every_device_with_a_16_bit_peak_runs_every_family(gpu: str) -> None:
    device = Cluster.named(gpu).device
    if not {"bf16", "fp16"} & set(device.peak_flop_per_s):
        pytest.skip("no 16-bit peak")
    families = {name.rpartition("-")[0] for name in tuner_table("experts_pooled")}
    for family in (*families, "never_heard_of"):
        for dtype in ({*WEIGHT_FORMATS} - {"fp32"}) | {"w8a16_fp8"}:
            assert 1e-6 < time_s(gpu, family, dtype, 64) < 1.0


def test_which_constants_hold() -> None:
    def found(gpu: str, kernel: str, dtype: str, library: str = "") -> tuple[str, str | None]:
        section = experts_section(on(gpu), kernel, dtype, library)
        return section.name, section.inherited_from

    marlin = "vllm_new_marlin_thing"
    assert found("h100_sxm", "deepgemm", "fp8_block")[1] is not None
    assert found("b200_sxm", "deepgemm", "fp8_block") == ("deepgemm-fp8_block", None)
    assert found("h200_sxm", "moe_torch_flow_cutlass", "fp8") == (
        "moe_torch_flow_cutlass-fp8",
        "h100_sxm",
    )
    assert found("h100_sxm", marlin, "w4a16_mxfp4") == ("marlin-w4a16_mxfp4", None)
    assert found("gb200_nvl72", "new", "nvfp4", "trtllm")[0] == "cutlass-nvfp4"
    assert found("gb200_nvl72", "new", "nvfp4", "trtllm")[1] in {"b200_sxm", "b300_sxm"}
    # No device of AMD was measured: the family's constants over all devices.
    name, donor = found("mi300x", "sglang_fused_moe_triton", "bf16")
    assert (name, donor is None) == ("triton-bf16", False)
    pooled = tuner_table("experts_pooled")["triton-bf16"]
    section = experts_section(on("mi300x"), "triton", "bf16")
    assert section.constants["peak_share"] == pooled["peak_share"]
    # A format that the family was not measured in: the nearest of the family.
    assert found("h100_sxm", "deepgemm", "bf16")[0] == "deepgemm-fp8_block"
    hidden = replace(on("h100_sxm"), tables=CATALOG_KERNELS.without("h100_sxm"))
    assert experts_section(hidden, "triton", "bf16").inherited_from not in {None, "h100_sxm"}


def test_given_constants_come_first() -> None:
    base = experts_section(on("h100_sxm"), "triton", "bf16")
    slow = {**base.constants, "floor_cycles": 1e9}
    section = Section("by_hand", "triton-bf16", slow, Fit("by hand", 1, 1.0, 1.0), None)
    changed = replace(on("h100_sxm"), sections={("experts", "triton-bf16"): section})
    assert time_s(changed, "triton", "bf16", 1) > 0.4


@pytest.mark.parametrize(
    ("kernel", "dtype", "library", "family"),
    [
        (
            "vllm_fp8moe_flashinfer_trtllm_trtllmfp8expertsmodular",
            "fp8_block",
            "vllm",
            "trtllm_gen",
        ),
        ("vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts", "fp8", "vllm", "cutlass"),
        ("moe_torch_flow_triton_fp8_block", "fp8_block", "trtllm", "triton"),
        ("moe_torch_flow", "w4a8_mxfp4_mxfp8", "trtllm", "trtllm_gen"),
        ("moe_torch_flow", "bf16", "trtllm", "cutlass"),
        ("sglang_deepgemm_moe", "fp8_block", "sglang", "deepgemm"),
        ("unheard_of", "bf16", "vllm", "triton"),
        ("unheard_of", "bf16", "trtllm", "cutlass"),
    ],
)
def test_families(kernel: str, dtype: str, library: str, family: str) -> None:
    assert family_of(kernel, dtype, library) == family


@pytest.mark.parametrize("software", ["vllm", "sglang", "trtllm"])
def test_engines_have_a_kernel_for_every_device_and_format(software: str) -> None:
    pooled = {name.rpartition("-")[0] for name in tuner_table("experts_pooled")}
    for name in catalog.names("clusters"):
        for dtype in WEIGHT_FORMATS:
            kernel = default_kernel(software, Cluster.named(name).device, dtype)
            assert family_of(kernel, dtype, software) in pooled
    assert default_kernel("abacus", Cluster.named("h100_sxm").device, "bf16") == "triton"


def test_sglang_on_blackwell_runs_the_kernels_of_deepseek_for_its_architecture_alone() -> None:
    b200 = Cluster.named("b200_sxm").device
    for dtype, latent, others in (
        ("fp8_block", "trtllm_gen", "triton"),
        ("bf16", "triton", "triton"),
        ("nvfp4", "trtllm_gen", "trtllm_gen"),
    ):
        for beside_latent, family in ((True, latent), (False, others)):
            kernel = default_kernel("sglang", b200, dtype, beside_latent=beside_latent)
            assert family_of(kernel, dtype, "sglang") == family


def test_trtllm_spreads_experts_over_ranks_with_generated_kernels_from_1_2_on() -> None:
    b200 = Cluster.named("b200_sxm").device
    for software, spread, family in (
        ("trtllm", True, "trtllm_gen"),
        ("trtllm", False, "trtllm_gen"),
        ("trtllm_2025", True, "cutlass"),
        ("trtllm_2025", False, "trtllm_gen"),
    ):
        kernel = default_kernel(software, b200, "nvfp4", spread=spread)
        assert family_of(kernel, "nvfp4", software) == family


def test_bad_loads_are_refused() -> None:
    with pytest.raises(BadValueError, match="rows of experts"):
        grouped_gemm_time_s(on("h200_sxm"), "bf16", 0, 1024, 1024, groups=1)
    with pytest.raises(BadValueError, match="active experts"):
        grouped_gemm_time_s(on("h200_sxm"), "bf16", 8, 1024, 1024, groups=np.array([1.0, 0.0]))
    with pytest.raises(UnknownNameError, match="dtype"):
        weight_format("roman")


def test_distinct_experts() -> None:
    """163 of 256 at 32 tokens and top-8; one token touches its top-k, many touch all."""
    assert distinct_experts(32, 256, 8) == pytest.approx(163, abs=0.5)
    assert distinct_experts(1, 256, 8) == pytest.approx(8)
    assert distinct_experts(10**6, 256, 8) == pytest.approx(256)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_loads_are_consistent(routing: str) -> None:
    tokens = np.array(TOKENS, dtype=float)
    for experts, top_k in [(8, 2), (128, 8), (256, 8), (512, 22)]:
        for ep in (1, 2, 8):
            load = expert_load(tokens, experts, top_k, ep, routing=routing)
            assert (load.active <= experts / ep + 1e-9).all()
            assert (load.active <= load.pairs + 1e-9).all()
            assert (load.pairs <= tokens * top_k + 1e-9).all()
            assert (load.busiest <= np.maximum(tokens, load.pairs) + 1e-9).all()
            assert (load.busiest >= load.pairs / load.active - 1e-9).all() or routing != "even"
            assert (np.diff(load.pairs) >= 0).all()
    with pytest.raises(UnknownNameError, match="routing"):
        expert_load(1, 8, 2, routing="by_taste")


def test_preferred_experts_leave_others_untouched() -> None:
    tokens = np.array(TOKENS, dtype=float)
    random = expert_load(tokens, 128, 4)
    skewed = [expert_load(tokens, 128, 4, routing="skewed", skew=skew) for skew in (1e-6, 0.5, 1.0)]
    assert skewed[0].active == pytest.approx(random.active)
    for less, more in pairwise(skewed):
        assert (more.active <= less.active + 1e-9).all()
    # One token visits its own, and many visit them all, however unevenly.
    assert skewed[-1].active[0] == pytest.approx(4)
    assert skewed[-1].active[-1] == pytest.approx(128, rel=1e-3)
    assert skewed[-1].pairs == pytest.approx(random.pairs)


def test_a_power_law_fills_one_expert_most() -> None:
    loads = [expert_load(4096, 128, 8, routing=name).busiest for name in ROUTINGS]
    assert loads == sorted(loads)


def measured(evidence: Path, name: str) -> Path:
    path = evidence / "measured" / "more" / f"{name}.csv"
    if not path.is_file():
        pytest.skip(f"no {path.name} among the evidence")
    return path


def test_errors_of_measured_experts(evidence: Path) -> None:
    table = read_table(measured(evidence, "experts"))
    found = validate(table, ("weights",))
    assert found.predicted >= 0.97 * table.rows
    wide = [each.stats for each in found.groups if each.key["weights"] != "4-bit weights"]
    for stats in (*wide, found.overall):
        assert stats.median_pct is not None
        assert stats.median_pct <= 8
        assert stats.p90_pct is not None
        assert stats.p90_pct <= 30
        assert stats.coverage_pct is not None
        assert stats.coverage_pct >= 88


def test_errors_of_measured_grouped_gemms(evidence: Path) -> None:
    stats = validate(read_table(measured(evidence, "grouped_gemm"))).overall
    assert stats.median_pct is not None
    assert stats.median_pct <= 7
    assert stats.p90_pct is not None
    assert stats.p90_pct <= 22


def test_expected_loads_are_near_those_of_measured_rows(evidence: Path) -> None:
    rows = list(read_table(measured(evidence, "experts")).records())
    apart: dict[str, list[float]] = {"pairs": [], "active_experts": []}
    for row in rows:
        tokens, experts, top_k, ep = (int(row[n]) for n in ("tokens", "experts", "topk", "ep"))
        routing = "even" if row["routing"] == "balanced" else "power_law"
        alpha = float(row["alpha"])
        load = expert_load(tokens, experts, top_k, ep, routing=routing, alpha=alpha)
        apart["pairs"].append(abs(np.log(load.pairs / float(row["pairs"]))))
        apart["active_experts"].append(abs(np.log(load.active / float(row["active_experts"]))))
    for name, values in apart.items():
        assert np.median(values) < 0.1, name

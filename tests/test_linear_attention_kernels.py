"""Kernels of linear attention: physics, arrays, which constants hold, and measured rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab import refit_linear_attention
from shardcost import catalog
from shardcost.cluster import Cluster
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.formats.tables import read_table
from shardcost.kernels.linear_attention import Sizes, linear_attention_time_s
from shardcost.machine.kernels import CATALOG_KERNELS, KernelConstants, kernels_of
from shardcost.machine.linear_attention import (
    KernelKind,
    cache_of,
    default_kernel,
    kind_of,
    linear_attention_section,
    state_bytes,
)
from shardcost.recurrence import RULES
from shardcost.validate.validation import validate

GPUS = tuple(catalog.names("linear_attention"))
ONE = Sizes(1, 1, 16, 128, 32, 128, 8192)
COLUMNS = (
    "dataset,gpu,library,version,op,part,kernel,phase,state_dtype,batch,query_tokens,k_heads,k_dim,"
    "v_heads,v_dim,conv_width,conv_channels,time_us"
)
ROW = "x,h100_sxm,vllm,0.24.0,gdn,scan,k,prefill,fp32,1,64,16,128,32,128,4,0,20"


def on(name: str) -> KernelConstants:
    return kernels_of(Cluster.named(name).device)


def time_s(gpu: str, kernel: str, op: str, part: str, phase: str, **given: Any) -> Any:
    sizes = {name: given.pop(name) for name in list(given) if name in Sizes._fields}
    return linear_attention_time_s(on(gpu), kernel, op, part, phase, ONE._replace(**sizes), **given)


def sections(gpu: str) -> list[tuple[str, str, str, str, str]]:
    """Return kernel, rule, part, phase and library of each kernel that was measured."""
    found = []
    for name in catalog.raw("linear_attention", gpu):
        part, phase, rest = name.split("-", 2)
        op, _, kernel = rest.partition("-")
        library, _, kernel = kernel.partition("-")
        if op in RULES and kernel:
            found.append((kernel, op, part.replace("_step", "+step"), phase, library))
    return found


@pytest.mark.parametrize("gpu", GPUS)
def test_more_sequences_and_tokens_take_longer(gpu: str) -> None:
    for kernel, op, part, phase, library in sections(gpu):
        of = (gpu, kernel, op, part, phase)
        if phase == "prefill":
            counts = [16, 64, 512, 4096, 32768]
            times = [time_s(*of, query_tokens=n, library=library) for n in counts]
            assert all(after >= before for before, after in pairwise(times)), of
        counts = [1, 8, 64, 512, 1024]
        times = [time_s(*of, batch=n, query_tokens=8, library=library) for n in counts]
        assert all(after >= before for before, after in pairwise(times)), of


@pytest.mark.parametrize("gpu", GPUS)
def test_nothing_beats_the_memory(gpu: str) -> None:
    """States of 1,024 sequences exceed any L2 cache ten times over."""
    rate = Cluster.named(gpu).device.memory_bytes_per_s
    for kernel, op, part, phase, library in sections(gpu):
        if part == "conv":
            continue
        of = (gpu, kernel, op, part, phase)
        found = time_s(*of, batch=1024, query_tokens=1, library=library)
        assert found > 2 * 1024 * ONE.state / rate, of


def test_one_sequence_leaves_the_device_idle() -> None:
    """A chain of chunks takes as long for two heads as for sixty-four."""
    of = ("h100_sxm", "chunk_gated_delta_rule_flashinfer", "gdn", "scan", "prefill")
    few, many = (
        time_s(*of, query_tokens=32768, v_heads=heads, k_heads=heads, library="vllm")
        for heads in (2, 64)
    )
    assert many < 1.3 * few


def test_a_cold_cache_is_slower() -> None:
    of = ("l40s", "fused_recurrent_gated_delta_rule_packed_decode", "gdn", "step", "decode")
    warm, cold = (time_s(*of, batch=16, library="vllm", warm=warm) for warm in (True, False))
    assert cold > 3 * warm


def test_arrays_are_the_same_as_numbers() -> None:
    tokens = np.array([1.0, 7.0, 64.0, 65.0, 4096.0])
    for gpu in ("h100_sxm", "rtx_pro_6000"):
        for kernel, op, part, phase, library in sections(gpu):
            of = (gpu, kernel, op, part, phase)
            grid = time_s(*of, query_tokens=tokens, library=library)
            cells = [time_s(*of, query_tokens=n, library=library) for n in tokens.tolist()]
            assert np.allclose(grid, cells, rtol=1e-12)


@pytest.mark.parametrize("phase", ["prefill", "decode", "verify"])
@pytest.mark.parametrize("op", RULES)
def test_unknown_kernels_everywhere_have_constants(op: str, phase: str) -> None:
    parts = ("conv", "scan") if phase == "prefill" else ("conv", "step", "conv+step")
    for gpu in catalog.names("clusters"):
        constants = on(gpu)
        for part in parts:
            for kernel in ("brand_new", "new_flashinfer_kernel", "cutlass_fused"):
                found = linear_attention_time_s(
                    constants, kernel, op, part, phase, ONE, library="other", version="9.9"
                )
                assert 0 < found < 1e-3


def test_constants_come_from_the_nearest() -> None:
    kind = kind_of("flashkda_fwd", "scan", "vllm")

    def section(gpu: str) -> Any:
        return linear_attention_section(on(gpu), kind, "kda", "scan", "prefill")

    assert section("h100_sxm").inherited_from is None
    assert section("h200_sxm").inherited_from == "h100_sxm"
    assert section("gb200_nvl72").inherited_from == "b200_sxm"
    pooled = section("a100_sxm")  # no Ampere ran it: constants over devices with such a cache
    assert pooled.name == "scan-prefill-kda-vllm-flashkda_fwd-partitioned"
    assert pooled.inherited_from
    assert section("l40s").name == "scan-prefill-kda-vllm-flashkda_fwd-unified"


def test_systems_can_be_left_out() -> None:
    hidden = KernelConstants(
        Cluster.named("h100_sxm").device,
        Cluster.named("h100_sxm").device,
        tables=CATALOG_KERNELS.without("h100_sxm"),
    )
    kind = kind_of("chunk_kda", "scan", "sglang")
    found = linear_attention_section(hidden, kind, "kda", "scan", "prefill")
    assert found.inherited_from not in {None, "h100_sxm"}


def test_versions_tell_kernels_of_one_name_apart() -> None:
    old, new = (kind_of("causal_conv1d_fn", "conv", "sglang", v) for v in ("0.5.10", "0.5.14"))
    assert (old.family, new.family) == ("cuda", "triton")
    assert kind_of("causal_conv1d_fn", "conv", "sglang").family == "triton"
    assert kind_of("causal_conv1d_fn", "conv", "sglang", "0.5.10.post2").family == "cuda"
    assert kind_of("causal_conv1d_fn", "conv", "trtllm", "2.0").family == "cuda"
    assert kind_of("anything", "conv+step") == KernelKind("", "anything", "fused")


def test_caches_of_data_centre_dies_are_in_two_parts() -> None:
    kinds = {name: cache_of(Cluster.named(name).device) for name in ("h200_sxm", "l40s", "mi300x")}
    assert kinds == {"h200_sxm": "partitioned", "l40s": "unified", "mi300x": "unified"}


@pytest.mark.parametrize("software", ["vllm", "sglang", "trtllm", "megatron", ""])
@pytest.mark.parametrize("op", RULES)
def test_every_engine_has_a_kernel(op: str, software: str) -> None:
    for gpu in GPUS:
        for part in ("conv", "update", "scan", "step"):
            assert default_kernel(software, Cluster.named(gpu).device, op, part)


def test_defaults_are_kernels_that_were_measured() -> None:
    h100, l40s = (Cluster.named(name).device for name in ("h100_sxm", "l40s"))
    assert default_kernel("vllm", h100, "gdn", "scan") == "chunk_gated_delta_rule_flashinfer"
    assert default_kernel("vllm", l40s, "kda", "scan") == "chunk_kda_with_fused_gate"
    with pytest.raises(UnknownNameError):
        default_kernel("vllm", h100, "gdn", "norm")
    assert (state_bytes("trtllm"), state_bytes("vllm")) == (2, 4)


def test_nonsense_is_refused() -> None:
    with pytest.raises(BadValueError):
        time_s("h100_sxm", "k", "gdn", "scan", "prefill", query_tokens=0)
    with pytest.raises(BadValueError):
        time_s("h100_sxm", "k", "gdn", "scan", "decode")


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("gpu", "h900", "unknown"),
        ("op", "rwkv", "op unknown"),
        ("part", "norm", "part unknown"),
        ("phase", "", "phase unknown"),
        ("phase", "decode", "measured kernels of scan decode"),
        ("batch", "", "batch"),
        ("query_tokens", "-3", "query_tokens"),
        ("v_dim", "x", "v_dim"),
        ("state_dtype", "int3", "dtype unknown"),
        ("kernel", "", ""),
        ("library", "", ""),
        ("version", "", ""),
        ("conv_channels", "", ""),
        ("conv_width", "", ""),
        ("state_dtype", "", ""),
    ],
)
def test_odd_cells_are_skipped_by_name(
    column: str, value: str, reason: str, tmp_path: Path
) -> None:
    cells = dict(zip(COLUMNS.split(","), ROW.split(","), strict=True)) | {column: value}
    path = tmp_path / "rows.csv"
    path.write_text(f"{COLUMNS}\n{','.join(cells.values())}\n{ROW}\n")
    found = validate(read_table(path))
    assert found.predicted == (1 if reason else 2)
    assert reason in found.predictions.reasons[0]


def test_a_convolution_needs_channels(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{COLUMNS}\n{ROW.replace(',scan,', ',conv,')}\n")
    assert "conv_channels" in validate(read_table(path)).predictions.reasons[0]


def test_errors_of_measured_rows(measured: Callable[[str], Path]) -> None:
    table = read_table(measured("linear_attention"))
    found = validate(table, ("gpu",))
    assert found.predicted >= 0.97 * table.rows
    for stats in (*(each.stats for each in found.groups), found.overall):
        assert stats.median_pct is not None
        assert stats.median_pct <= 5
        assert stats.p90_pct is not None
        assert stats.p90_pct <= 20
        assert stats.coverage_pct is not None
        assert stats.coverage_pct >= 88


def test_the_catalog_has_what_the_command_writes(measured: Callable[[str], Path]) -> None:
    """The A100's sections rest on fewest rows; those of a family start from all devices' rows."""
    path = measured("linear_attention")
    groups = refit_linear_attention.measured_groups(read_table(path))
    some = [each for each in groups if each.case.part == "conv" and each.case.phase == "decode"]
    found = refit_linear_attention.fitted(some).systems["a100_sxm"]
    written = catalog.raw("linear_attention", "a100_sxm")
    for name, section in found.items():
        assert written[name].keys() == section.keys()
        for key in section.keys() - {"fit"}:
            assert written[name][key] == pytest.approx(section[key], rel=0.05), (name, key)


@pytest.mark.refit
def test_a_system_left_out(measured: Callable[[str], Path]) -> None:
    groups = refit_linear_attention.measured_groups(read_table(measured("linear_attention")))
    rest = refit_linear_attention.fitted(each for each in groups if each.case.gpu != "b300_sxm")
    own = [each for each in groups if each.case.gpu == "b300_sxm"]
    errors = np.abs(np.concatenate([rest.error_pct(each) for each in own]))
    assert np.median(errors) < 12
    assert np.quantile(errors, 0.9) < 25

"""What a device or a machine inherits: of whom, and how each constant follows the datasheet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardcost import Cluster, catalog
from shardcost.kernels.attention import decode_time_s, prefill_time_s
from shardcost.kernels.gemm import conversion_time_s, gemm_time_s
from shardcost.machine import CATALOG, machine_of
from shardcost.machine.constants import NetworkConstants
from shardcost.machine.kernels import carried_over, clock_hz, instructions_of, kernels_of
from shardcost.machine.libraries import CATALOG_LIBRARIES, HOST, datasheet_unit
from shardcost.validate.gemm import GemmCase

A100, H100, B200 = (Cluster.named(name).device for name in ("a100_sxm", "h100_sxm", "b200_sxm"))


def constants(table: Any, system: str, name: str) -> dict[str, Any]:
    """Return a section of the catalog without its fit."""
    content = catalog.raw(table, system)[name]
    return {key: value for key, value in content.items() if key != "fit"}


@pytest.mark.parametrize(
    ("cluster", "instructions", "of"),
    [
        ("v100_dgx2", "mma", "a100_sxm"),
        ("l40s", "mma", "h100_sxm"),
        ("rtx5090", "mma", "b200_sxm"),
        ("h20_sxm", "wgmma", "h100_sxm"),
        ("b300_sxm", "tcgen05", "b200_sxm"),
        ("mi325x", "cdna3", "h200_sxm"),
    ],
)
def test_kernels_are_those_of_the_nearest_gpu(cluster: str, instructions: str, of: str) -> None:
    device = Cluster.named(cluster).device
    assert instructions_of(device) == instructions
    served = replace(kernels_of(device), timed_with="trtllm")
    for on in (kernels_of(device), served):
        assert on.gemm("fp16").system == of
    if device.vendor == "nvidia":
        assert served.section("attention", "decode").system == of


def test_own_constants_are_as_they_were_fitted() -> None:
    for name in ("a100_sxm", "h100_sxm", "b200_sxm"):
        on = machine_of(name).kernels
        assert on.gemm("bf16").constants == constants("gemm", name, "bf16")
        for phase in ("prefill", "decode"):
            assert on.section("attention", phase).constants == constants("attention", name, phase)


def test_latencies_are_carried_over_in_clock_cycles() -> None:
    own = constants("gemm", "a100_sxm", "bf16")
    on_h100 = carried_over("gemm", "bf16", own, A100, H100)
    ratio = clock_hz(A100) / clock_hz(H100)
    for name in ("launch_us", "tile_start_us", "split_us"):
        assert on_h100[name] == pytest.approx(own[name] * ratio)
    assert on_h100["memory_share"] == own["memory_share"]
    assert on_h100["tiles"] == own["tiles"]
    decode = constants("attention", "a100_sxm", "decode")
    carried = carried_over("attention", "decode", decode, A100, H100)
    assert carried["grouped"]["token_ns"] == pytest.approx(decode["grouped"]["token_ns"] * ratio)
    assert carried["vector"]["memory_share"] == decode["vector"]["memory_share"]
    assert carried["least_rows"] == decode["least_rows"]


def test_what_passes_the_sms_follows_the_memory_and_the_sms() -> None:
    own = constants("attention", "h100_sxm", "prefill")

    def rate(**changes: Any) -> float:
        device = replace(H100, name="another", **changes)
        share = carried_over("attention", "prefill", own, H100, device)["memory_share"]
        return float(share * device.memory_bytes_per_s)

    same = rate()
    assert same == pytest.approx(own["memory_share"] * H100.memory_bytes_per_s)
    assert same < rate(memory_bytes_per_s=2 * H100.memory_bytes_per_s) < 1.3 * same
    assert same < rate(sms=2 * H100.sms) < 2 * same
    assert same < rate(boost_clock_hz=2 * clock_hz(H100)) < 2 * same
    # Slow memory decides alone, at nine tenths of its rate.
    slow = H100.memory_bytes_per_s / 1000
    assert rate(memory_bytes_per_s=slow) == pytest.approx(0.9 * slow, rel=0.01)


def test_tiles_of_queries_are_those_of_the_instructions() -> None:
    l40s = Cluster.named("l40s").device
    for system, device, queries in (
        ("h100_sxm", A100, 64),
        ("a100_sxm", H100, 128),
        ("a100_sxm", l40s, 64),
        ("h100_sxm", B200, 128),
    ):
        measured = Cluster.named(system).device
        own = constants("attention", system, "prefill")
        assert (
            carried_over("attention", "prefill", own, measured, device)["tile_queries"] == queries
        )


def test_a_device_of_another_vendor_keeps_shares() -> None:
    mi325x = Cluster.named("mi325x").device
    own = constants("attention", "h100_sxm", "prefill")
    assert carried_over("attention", "prefill", own, H100, mi325x) == own


def test_the_conversion_of_an_input_is_inherited_by_itself() -> None:
    """The H200's GEMMs were timed without it; B200 is the nearest that was timed with it."""
    left_out = CATALOG.without("h100_sxm")
    on = machine_of(Cluster.named("h100_sxm"), fitted=left_out).kernels
    assert on.gemm("fp8").inherited_from == "h200_sxm"
    assert on.conversion("fp8").inherited_from == "b200_sxm"
    assert conversion_time_s(on, "fp8", 64, 4096) > 5e-6
    assert conversion_time_s(on, "bf16", 64, 4096) == 0
    own = machine_of("h100_sxm").kernels
    assert own.conversion("fp8") == own.gemm("fp8")


def test_rows_of_an_engine_run_by_its_gemms() -> None:
    """Of a device of the architecture, where the device's own were timed with other software."""
    theirs = GemmCase("h200_sxm", "fp8", converted=True, timed_with="trtllm").kernels()
    assert theirs.gemm("fp8").inherited_from == "h100_sxm"
    assert GemmCase("h200_sxm", "fp8").kernels().gemm("fp8").inherited_from is None


def test_more_of_the_datasheet_is_not_slower() -> None:
    """A device that inherits is at least as fast with more SMs, memory rate, peak or clock."""
    l40s = Cluster.named("l40s").device
    peaks = {name: 1.5 * peak for name, peak in l40s.peak_flop_per_s.items()}
    changes: tuple[dict[str, Any], ...] = (
        {"memory_bytes_per_s": 1.5 * l40s.memory_bytes_per_s},
        {"boost_clock_hz": 1.5 * clock_hz(l40s)},
        {"peak_flop_per_s": peaks},
    )
    for change in changes:
        better = replace(l40s, name="better", **change)
        for time_s in (
            lambda on: gemm_time_s(on, "bf16", 64, 8192, 8192),
            lambda on: prefill_time_s(on, "bf16", 1, 1024, 1024, 32, 8, 128),
            lambda on: decode_time_s(on, "bf16", 8, 4096, 32, 8, 128),
        ):
            assert time_s(kernels_of(better)) <= time_s(kernels_of(l40s)) * (1 + 1e-9)


def test_collectives_take_more_cycles_on_two_dies() -> None:
    one, two = Cluster.named("h100_sxm"), Cluster.named("b200_sxm")
    cycles = catalog.tuner_table("start")["two_dies"]["cycles"]
    clocks = clock_hz(one.device) / clock_hz(two.device)
    for name in ("ll_base_s", "ll_hop_s", "nvls_round_s", "one_shot_base_s"):
        ratio = datasheet_unit(name, two) / datasheet_unit(name, one)
        assert ratio == pytest.approx(cycles * clocks)
    assert datasheet_unit("ll_spread_s", two) == pytest.approx(
        datasheet_unit("ll_spread_s", one) * clocks
    )
    # Of the same generation, but of one die.
    card = Cluster.named("rtx_pro_6000")
    assert card.device.architecture == two.device.architecture
    assert datasheet_unit("ll_base_s", card) == pytest.approx(1 / clock_hz(card.device))


def test_rates_in_the_switch_follow_what_nccl_takes_a_generation_to_reach() -> None:
    one, two = Cluster.named("h100_sxm"), Cluster.named("b200_sxm")
    ratio = datasheet_unit("nvls_bytes_per_s", two) / datasheet_unit("nvls_bytes_per_s", one)
    assert ratio == pytest.approx(2 * 0.74 / 0.85)


def test_what_a_network_reaches_is_inherited_from_those_with_the_same_way_to_the_ports() -> None:
    staged = CATALOG_LIBRARIES.network_family(catalog.network_named("efa_1x100g")).constants
    direct = CATALOG_LIBRARIES.network_family(catalog.network_named("efa_4x100g")).constants
    assert isinstance(staged, NetworkConstants)
    assert isinstance(direct, NetworkConstants)
    assert staged.efficiency < 0.6
    assert direct.efficiency > 0.85
    assert staged.ll_latency_s < 2 * direct.ll_latency_s


def test_host_bridges_are_pooled_over_all_machines_on_pcie() -> None:
    a40 = Cluster.named("a40")
    inherited = machine_of(a40).library("nccl").constants
    measured = [
        each.constants
        for each in CATALOG_LIBRARIES.every
        if (each.system, each.library)
        in {("l40s", "nccl"), ("rtx_pro_6000", "nccl"), ("arc_b60", "oneccl")}
    ]
    assert len(measured) == 3
    for name in HOST:
        shares = [getattr(each, name) for each in measured]
        assert min(shares) <= getattr(inherited, name) <= max(shares)
        engine = machine_of(a40).library("trtllm").constants
        assert getattr(engine, f"fallback_{name}") == pytest.approx(getattr(inherited, name))
    # NVLink has no bridges, and a machine that was measured has its own.
    h200 = machine_of("h200_sxm").library("nccl").constants
    assert getattr(h200, HOST[0]) is None
    assert machine_of("l40s").library("nccl").constants in measured

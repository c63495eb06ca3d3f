"""A machine: constants resolved once as a value, and what-ifs that are other values."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from lab.refit_collectives import as_toml
from shardcost import Cluster, Decode, Layout, Train, catalog, collective_time, estimate
from shardcost.cluster import Device
from shardcost.errors import BadTypeError, UnknownNameError
from shardcost.kernels.gemm import gemm_time_s
from shardcost.machine import CATALOG, Machine, machine_of
from shardcost.machine.constants import Calibration, NetworkConstants, RingLibrary, stated
from shardcost.machine.libraries import CATALOG_LIBRARIES, default_library, profile_of_text
from shardcost.software import Software

H100 = Cluster.named("h100_sxm")
GIB = 2**30
TRAIN = Train(global_batch=64, sequence_length=4096)
DECODE = Decode(batch=16, context_tokens=2048)


def on_links(cluster: Cluster, gb_per_s: float) -> Cluster:
    """Return a cluster whose links inside a node have another rate."""
    tier = replace(cluster.tiers[0], bytes_per_s=gb_per_s * 1e9)
    return replace(cluster, tiers=(tier, *cluster.tiers[1:]))


def faster(device: Device, factor: float = 2.0) -> Device:
    """Return a device that computes and reads its memory so many times as fast."""
    peaks = {name: factor * rate for name, rate in device.peak_flop_per_s.items()}
    memory_bytes_per_s = factor * device.memory_bytes_per_s
    return replace(device, peak_flop_per_s=peaks, memory_bytes_per_s=memory_bytes_per_s)


def all_reduce_s(machine: Cluster | Machine | str, size: float = GIB) -> float:
    return float(collective_time("all_reduce", size, machine, 8).time_s)


def slower(own: Calibration, factor: float) -> Calibration:
    """Return a library whose rates are so many times as low."""
    constants = {
        name: value / factor if name.endswith("_bytes_per_s") else value
        for name, value in stated(own.constants).items()
    }
    return replace(own, constants=RingLibrary(**constants))


# A changed datasheet is another machine


def test_faster_links_make_faster_collectives() -> None:
    rates = (225, 450, 900, 1800)
    times = [all_reduce_s(on_links(H100, rate)) for rate in rates]
    assert times == sorted(times, reverse=True)
    assert times[1] == all_reduce_s("h100_sxm")
    for slow, fast in pairwise(times):
        assert 1.5 < slow / fast <= 2.0, "a gigabyte is bound by its links"


@pytest.mark.parametrize("name", catalog.names("clusters"))
def test_faster_links_never_make_a_library_slower(name: str) -> None:
    cluster = Cluster.named(name)
    library = default_library(cluster)
    if library not in CATALOG_LIBRARIES.names(cluster):
        return
    gpus = min(8, int(cluster.tiers[0].gpus))
    nominal = float(cluster.tiers[0].bytes_per_s) / 1e9
    for collective in ("all_reduce", "all_gather", "all_to_all"):
        sizes = np.geomspace(2**26, 2**33, 8)
        times = [
            collective_time(collective, sizes, on_links(cluster, nominal * factor), gpus,
                            library=library).time_s
            for factor in (0.5, 1.0, 2.0)
        ]  # fmt: skip
        assert (times[0] > times[1]).all(), collective
        assert (times[1] > times[2]).all(), collective


def test_constants_of_a_changed_datasheet_say_where_they_come_from() -> None:
    as_measured = machine_of("h100_sxm").library("nccl")
    assert as_measured.inherited_from == ()
    assert machine_of(replace(H100)).library("nccl") == as_measured
    scaled = machine_of(on_links(H100, 900)).library("nccl")
    assert scaled.inherited_from == ("h100_sxm",)
    rates = [stated(each.constants)["simple_bytes_per_s"] for each in (as_measured, scaled)]
    assert rates[1] == pytest.approx(2 * rates[0])
    note = "nccl on h100_sxm was measured on another datasheet; constants are scaled by it"
    assert collective_time("all_reduce", GIB, on_links(H100, 900), 8).notes == (note,)
    assert scaled.source().caveat == "h100_sxm with this datasheet was not measured"


def test_constants_of_a_profile_follow_the_datasheet_too() -> None:
    own = machine_of("h100_sxm").library("nccl")
    fit = replace(own.fit, low_pct=-1.0, high_pct=1.0)
    constants = slower(own, 1.25).constants
    mine = replace(own, system="mine", constants=constants, fit=fit)
    profile = profile_of_text(as_profile_text(mine))
    times = [all_reduce_s(on_links(profile, rate)) for rate in (450, 900, 1800)]
    assert times[0] == pytest.approx(all_reduce_s(machine_of("h100_sxm").with_own(mine)), rel=1e-3)
    assert times[0] > 1.5 * times[1] > 1.5 * 1.5 * times[2]
    as_measured, scaled = (
        machine_of(on_links(profile, rate)).library("nccl") for rate in (450, 900)
    )
    assert (as_measured.inherited_from, as_measured.fit.low_pct) == ((), -1.0)
    assert (scaled.inherited_from, scaled.fit.low_pct) == (("h100_sxm",), None)


def test_profiles_from_before_have_the_rate_of_a_node_under_ll() -> None:
    cluster = Cluster.named("h100_sxm", network="ib_8x400g")
    text = as_profile_text(replace(machine_of(cluster).network, system="mine"))
    text = text.replace("based_on", 'network = "ib_8x400g"\nbased_on')
    joined = text.replace("[[library]]", '[[library]]\nsystem = "ib_8x400g"')
    now = re.search(r"ll_port_gb_per_s = (\S+)", joined)
    assert now is not None
    earlier = joined.replace(now[0], f"network_ll_gb_per_s = {8 * float(now[1])}")
    sizes = np.geomspace(1024, GIB, 9)
    times = [
        collective_time("all_reduce", sizes, profile_of_text(text), 16).time_s
        for text in (joined, earlier)
    ]
    assert times[0] == pytest.approx(times[1])


def test_profiles_from_before_have_rates_with_small_and_large_chunks_in_the_switch() -> None:
    text = (Path(__file__).parent / "data/profile.toml").read_text(encoding="utf-8")
    assert "nvls_small_gb_per_s = 138.4" in text
    result = collective_time("all_reduce", 8.0 * GIB, profile_of_text(text), 8)
    by_largest_chunks = 71.91e-6 + 8 * GIB * (1 + 1 / 8) / 230.3e9
    assert result.paths["nvls", "Simple"]["wire"] == pytest.approx(by_largest_chunks, rel=0.02)


def as_profile_text(own: Calibration) -> str:
    """Return a profile on H100s that has the constants of a library."""
    system = f'system = "{own.system}"'
    text = as_toml(own.system, [own])
    assert system in text
    return text.replace(system, f'name = "{own.system}"\nbased_on = "h100_sxm"')


def test_a_clock_scales_latencies() -> None:
    device = H100.device
    assert device.boost_clock_hz is not None
    quick = replace(H100, device=replace(device, boost_clock_hz=2 * device.boost_clock_hz))
    bases = [
        stated(machine_of(each).library("nccl").constants)["ll_base_s"] for each in (H100, quick)
    ]
    assert bases[1] == pytest.approx(bases[0] / 2)


def test_a_change_that_no_constant_depends_on_leaves_them_as_measured() -> None:
    roomy = replace(H100, device=replace(H100.device, memory_bytes=2 * H100.device.memory_bytes))
    assert machine_of(roomy).library("nccl") == machine_of(H100).library("nccl")


# Other constants are other machines; the first stays as it was


def test_own_constants_come_first_and_leave_the_machine_as_it_was() -> None:
    machine = machine_of("h100_sxm")
    before = all_reduce_s(machine)
    own = slower(machine.library("nccl"), 2.0)
    mine = machine.with_own(own)
    assert mine.library("nccl") is own
    assert all_reduce_s(mine) > 1.8 * before
    assert all_reduce_s(machine) == before
    assert machine.own == ()
    assert machine_of("h100_sxm") is machine
    again = mine.with_own(slower(own, 2.0))
    assert all_reduce_s(again) > 1.8 * all_reduce_s(mine), "the latest counts"
    assert machine.with_own(None).own == ()


def test_own_constants_of_a_network_leave_others_as_they_were() -> None:
    joined = machine_of(Cluster.named("h100_sxm", "ib_8x400g"))
    usual = joined.network
    figures = stated(usual.constants)
    half = NetworkConstants(**(figures | {"efficiency": figures["efficiency"] / 2}))
    mine = joined.with_own(replace(usual, constants=half))
    times = [
        collective_time("all_reduce", GIB, machine, 32).time_s for machine in (joined, mine, joined)
    ]
    assert times[1] > 1.5 * times[0]
    assert times[2] == times[0]
    assert mine.library("nccl") == joined.library("nccl")


def test_estimates_on_machines_with_other_constants_do_not_mix() -> None:
    """Prices are kept with a machine; none of another machine's are taken."""
    software = Software.named("megatron_core")
    machine = machine_of("h100_sxm", software)
    mine = machine.with_own(slower(machine.library("nccl"), 4.0))
    layout = Layout(tp=8)
    first, other, again = (
        estimate("llama3-8b", each, layout, TRAIN) for each in (machine, mine, machine)
    )
    assert other.comm_s["tp"] > 2 * first.comm_s["tp"]
    assert other.compute_s == first.compute_s
    assert again.time_s == first.time_s


def test_leaving_a_system_out_leaves_the_catalog_as_it_was() -> None:
    hidden = CATALOG.without("h100_sxm")
    here, there = machine_of("h100_sxm"), machine_of("h100_sxm", fitted=hidden)
    assert there.library("nccl").inherited_from
    assert "h100_sxm" not in there.library("nccl").inherited_from
    assert there.kernels.gemm("bf16").inherited_from == "h200_sxm"
    assert here.library("nccl").inherited_from == ()
    assert here.kernels.gemm("bf16").inherited_from is None
    assert CATALOG_LIBRARIES.on("h100_sxm")
    assert not hidden.libraries.on("h100_sxm")
    neither = hidden.without("h200_sxm")
    assert machine_of("h100_sxm", fitted=neither).kernels.gemm("bf16").inherited_from not in {
        None,
        "h200_sxm",
    }
    assert there.kernels.gemm("bf16").inherited_from == "h200_sxm"


def test_another_device_has_bursts_of_its_own() -> None:
    machine = machine_of(H100)
    assert machine.in_bursts.kernels.device == H100.device
    quick = machine.with_device(faster(H100.device))
    assert quick.in_bursts.kernels.device == quick.kernels.device


@pytest.mark.parametrize("arrays", [False, True])
def test_another_device_changes_kernels_and_nothing_else(arrays: bool) -> None:
    tp = np.array([2, 4, 8]) if arrays else 8
    layout = Layout(tp=tp, dp=8 // tp)
    machine = machine_of("h100_sxm", Software.named("megatron_core"))
    before = estimate("llama3-8b", machine, layout, TRAIN)
    quick = machine.with_device(faster(H100.device))
    on_quick = estimate("llama3-8b", quick, layout, TRAIN)
    assert np.all(on_quick.compute_s["gemm"] < 0.7 * before.compute_s["gemm"])
    assert np.all(on_quick.comm_s["tp"] == before.comm_s["tp"])
    assert machine.kernels.device == H100.device
    after = estimate("llama3-8b", machine, layout, TRAIN)
    assert np.all(after.time_s == before.time_s)
    shape = ("bf16", 8192, 8192, 8192)
    assert gemm_time_s(quick.kernels, *shape) < 0.7 * gemm_time_s(machine.kernels, *shape)


# How constants are resolved


def test_a_software_has_kernels_and_a_library_of_its_own() -> None:
    engine = machine_of("h100_sxm", Software.named("vllm"))
    plain = machine_of("h100_sxm", Software.named("megatron_core"))
    assert (engine.tensor_library, plain.tensor_library) == ("vllm", "nccl")
    assert machine_of("mi300x", Software.named("megatron_core")).tensor_library == "rccl"
    assert machine_of(engine) is engine


def test_machines_are_resolved_once() -> None:
    assert machine_of("h100_sxm") is machine_of(Cluster.named("h100_sxm"))
    assert machine_of("h100_sxm").library("nccl") is machine_of("h100_sxm").library("nccl")
    assert machine_of(H100) is not machine_of(on_links(H100, 900))


def test_what_is_no_machine_is_refused() -> None:
    with pytest.raises(BadTypeError, match="cluster"):
        machine_of(5)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="library on h100_sxm"):
        machine_of("h100_sxm").library("gloo")
    assert not machine_of("h100_sxm").has_library("gloo")


def test_an_estimate_takes_a_machine_as_it_takes_a_cluster() -> None:
    software = Software.named("trtllm")
    by_name = estimate("llama3-8b", "h100_sxm", Layout(tp=8), DECODE)
    by_machine = estimate("llama3-8b", machine_of("h100_sxm", software), Layout(tp=8), DECODE)
    assert by_machine.time_s == by_name.time_s
    assert by_machine.machine is by_name.machine

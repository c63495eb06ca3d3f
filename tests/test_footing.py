"""One footing between GPUs: where one datasheet dominates another's, so do predictions.

Of every pair of the catalog's clusters of one vendor, one of which has at least as much of
everything, models run on both. A sample of the models is tried, or all of them (a minute and a
half) with ``SHARDCOST_FOOTING=all``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from shardcost import Decode, Layout, Model, Prefill, Train, catalog
from shardcost.cluster import Cluster
from shardcost.dtypes import PRODUCTS
from shardcost.errors import ShardcostError
from shardcost.estimate import estimate
from shardcost.estimate.why import figures as figures_of
from shardcost.estimate.why import why
from shardcost.machine import machine_of
from shardcost.machine.kernels import clock_hz, dominates, kernels_of

CLUSTERS: Final = {name: Cluster.named(name) for name in catalog.names("clusters")}
WORK: Final[dict[str, Any]] = {
    "decode, one sequence": Decode(batch=1, context_tokens=1024),
    "decode": Decode(batch=64, context_tokens=2048),
    "prefill": Prefill(batch=1, prompt_tokens=4096),
    "train": Train(global_batch=8, sequence_length=4096),
}
DEGREES: Final = (1, 8)
ROUNDING: Final = 1e-4
BETWEEN_ARCHITECTURES: Final = 0.04
"""Kernels of two architectures are different programs: a newer one's may reach a smaller share."""
CLOCKS_ALIKE: Final = 0.97
"""Clocks as near as those of H200 and B200, 1,980 and 1,965 MHz, count as the same."""
KNOWN: Final = {
    ("rtx_pro_6000", "rtx_6000_ada"): 0.11,
    ("rtx_6000_ada", "a30"): 0.15,
    ("l40s", "rtx_a6000"): 0.06,
    ("l40s_peers", "rtx_a6000"): 0.06,
    ("mi250x", "mi250"): 0.005,
}
"""Experts of one token were measured on the RTX PRO 6000, with their conversion to mxfp8, which the
Ada card does not need: kernels of a few microseconds each. Bandwidths of the RTX 6000 Ada and the
A30 are 3 % apart, less than the shares of it that experts reach on L40S and A100, which they
inherit; so do the L40S and the RTX A6000. With the same bandwidth, a few more compute units leave
the last wave of the MI250X emptier."""
_EVERY: Final = 12


def tried_models() -> list[str]:
    """Return the models to try: every twelfth, or all."""
    names = sorted(catalog.names("models"))
    return names if os.environ.get("SHARDCOST_FOOTING") == "all" else names[::_EVERY]


def figures(cluster: Cluster) -> list[float]:
    """Return what a datasheet has, the more of which the better; 0 where it does not say."""
    device, link = cluster.device, cluster.tiers[0]
    peaks = [float(device.peak_flop_per_s.get(name, 0)) for name in PRODUCTS]
    memory = [float(device.memory_bytes), float(device.memory_bytes_per_s)]
    chip = [float(device.sms), float(device.power_w or 0)]
    links = [float(link.bytes_per_s), link.gpus, link.peer_access, link.in_switch_reduction]
    return [*peaks, *memory, *chip, *map(float, links)]


def pairs() -> Iterator[tuple[str, str]]:
    """Yield clusters of a vendor, the one with more of everything first."""
    for one, mine in CLUSTERS.items():
        for other, theirs in CLUSTERS.items():
            same = mine.device.vendor == theirs.device.vendor and one != other
            clocks = [float(clock_hz(each.device)) for each in (mine, theirs)]
            alike = 1.0 if mine.device.architecture == theirs.device.architecture else CLOCKS_ALIKE
            same = same and clocks[0] >= alike * clocks[1]
            if same and all(a >= b for a, b in zip(figures(mine), figures(theirs), strict=True)):
                yield one, other


def seconds(model: Model, cluster: Cluster, tp: int, work: Any) -> float | None:
    """Return the time of a step, of several ranks without communication; None if it cannot run."""
    if cluster.tiers[0].gpus < tp:
        return None
    try:
        found = estimate(model, cluster, Layout(tp=tp), work)
    except ShardcostError:
        return None
    return float(found.time_s if tp == 1 else sum(found.compute_s.values()))


def test_there_are_pairs_to_compare() -> None:
    known = set(pairs())
    assert len(known) > 50
    assert {
        ("h200_sxm", "h100_sxm"),
        ("b200_sxm", "h200_sxm"),
        ("b300_sxm", "b200_sxm"),
        ("gb300_nvl72", "gb200_nvl72"),
        ("mi325x", "mi300x"),
        ("a100_sxm", "a100_sxm_40gb"),
    } <= known


@pytest.mark.parametrize("name", tried_models())
def test_a_better_datasheet_does_not_lose(name: str) -> None:
    model, known, tried = Model.named(name), list(pairs()), 0
    for title, work in WORK.items():
        for tp in DEGREES:
            times = {
                cluster: time_s
                for cluster in CLUSTERS
                if (time_s := seconds(model, CLUSTERS[cluster], tp, work)) is not None
            }
            for better, lesser in known:
                if better not in times or lesser not in times:
                    continue
                tried += 1
                one, other = CLUSTERS[better].device, CLUSTERS[lesser].device
                same = one.architecture == other.architecture
                slack = ROUNDING if same else BETWEEN_ARCHITECTURES
                slack = KNOWN.get((better, lesser), slack)
                ratio = times[better] / times[lesser]
                assert ratio <= 1 + slack, f"{better} over {lesser}, {title}, TP {tp}: {ratio}"
    assert tried


def test_what_dominates() -> None:
    h100, h200, b200 = (CLUSTERS[name].device for name in ("h100_sxm", "h200_sxm", "b200_sxm"))
    assert dominates(h200, h100)
    assert not dominates(h100, h200)
    assert not dominates(h200, h200)
    assert not dominates(b200, h100)  # another architecture
    slow = replace(h200, name="slow", boost_clock_hz=1e9)
    assert not dominates(slow, h100)


def test_engines_compare_devices_by_gemms_of_one_origin() -> None:
    """The H200's own constants were timed with PyTorch, the H100's with TensorRT-LLM."""
    software = estimate(
        "llama3-8b", "h200_sxm", Layout(), Decode(batch=1, context_tokens=128)
    ).program.setting.software
    served = machine_of("h200_sxm", software).kernels.gemm("bf16")
    assert served.inherited_from == "h100_sxm"
    assert machine_of("h200_sxm").kernels.gemm("bf16").inherited_from is None


def test_kernels_are_not_slower_than_by_constants_of_lesser_devices() -> None:
    on = machine_of("b300_sxm").kernels
    lesser = [each.like.name for each in on.of_lesser_devices("experts")]
    assert CLUSTERS["b200_sxm"].device.name in lesser
    assert CLUSTERS["h100_sxm"].device.name not in lesser
    found = estimate("gpt-oss-120b", "b300_sxm", Layout(), Decode(batch=64, context_tokens=2048))
    answer = why(found, "op.experts")
    assert answer.evaluate() == pytest.approx(answer.value)


def test_a_clock_that_nobody_states_is_a_relative_s() -> None:
    clocks = {name: clock_hz(CLUSTERS[name].device) for name in ("b300_sxm", "gb300_nvl72")}
    assert clocks["b300_sxm"] == pytest.approx(clock_hz(CLUSTERS["b200_sxm"].device))
    assert clocks["gb300_nvl72"] == pytest.approx(clock_hz(CLUSTERS["gb200_nvl72"].device))
    # Tensor cores with fewer operations say nothing about the clock.
    assert clock_hz(CLUSTERS["h20_sxm"].device) >= 1.7e9
    odd = replace(CLUSTERS["b300_sxm"].device, architecture="unheard of")
    assert kernels_of(odd).device is odd
    assert clock_hz(odd) == pytest.approx(1.9e9)


@pytest.mark.parametrize("cluster", ["gb300_nvl72", "v100_pcie"])
def test_figures_of_devices_without_a_stated_clock_are_explained(cluster: str) -> None:
    found = estimate("llama3.2-1b", cluster, Layout(), Decode(batch=1, context_tokens=128))
    for name in figures_of(found):
        if name.startswith("op."):
            answer = why(found, name)
            assert answer.evaluate() == pytest.approx(answer.value)

"""Tori: closed forms against executed schedules, laws of rates, slices, TPUs, MaxText policies."""

from __future__ import annotations

import csv
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardcost import Cluster, Layout, Software, Train, collective_time, estimate
from shardcost.cluster import Tier
from shardcost.collectives.exact.algorithms import buffer_bytes, schedule
from shardcost.collectives.exact.simulate import simulate
from shardcost.collectives.exact.topology import torus
from shardcost.errors import BadValueError
from shardcost.search.run import search
from shardcost.torus import compact, spanned
from shardcost.validate import training

RATE = 50e9
SIZE = 5 * 7 * 8 * 9 * 2**12
TPUS = {
    "tpu_v4": (275e12, 1200e9, 4096, 300e9),
    "tpu_v5e": (197e12, 819e9, 256, 200e9),
    "tpu_v5p": (459e12, 2765e9, 6144, 600e9),
    "tpu_v6e": (918e12, 1638e9, 256, 400e9),
    "tpu7x": (1153.5e12, 3690e9, 18432, 300e9),
}


def of(shape: tuple[int, ...], ranks: Any, stride: Any = 1, wrap: int = 1) -> Any:
    sides = len(shape)
    return spanned(shape, (wrap,) * sides, (1.0,) * sides, 1, ranks, stride)


@pytest.mark.parametrize("ranks", [3, 5, 7, 9])
def test_a_ring_gathers_as_an_executed_schedule_does(ranks: int) -> None:
    steps = schedule("all_gather", "bidirectional_ring", ranks)
    simulated = simulate(steps, torus((ranks,), RATE), SIZE).time_s
    expected = SIZE * (ranks - 1) / ranks / (of((ranks,), ranks).links * RATE)
    assert simulated == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("shape", [(4,), (6,), (8,), (4, 4), (2, 6)])
def test_a_mesh_exchanges_as_an_executed_schedule_does(shape: tuple[int, ...]) -> None:
    ranks = prod(shape)
    steps = schedule("all_to_all", "direct", ranks)
    size = 2**22 // ranks * ranks
    whole = buffer_bytes("all_to_all", ranks, size)
    simulated = simulate(steps, torus(shape, RATE, wrap=False), int(whole)).time_s
    expected = size * of(shape, ranks, wrap=1000).exchange / RATE
    assert simulated == pytest.approx(expected, rel=0.02)


def test_more_axes_and_rings_are_never_slower() -> None:
    line, ring = of((8, 8), 8, wrap=16), of((8, 8), 8, wrap=8)
    both = of((8, 8), 64, wrap=8)
    assert (line.links, ring.links, both.links) == (1, 2, 4)
    assert line.exchange == 2 * ring.exchange == 2 * both.exchange
    assert line.hops == 7 > ring.hops == 4
    assert both.axes == (8, 8)


def test_groups_between_the_ranks_share_the_links() -> None:
    apart = of((8, 8), 4, stride=2, wrap=8)
    assert apart.axes == (1, 4)
    assert apart.links == 2 / 2  # of the two groups on the axis, each has half
    assert of((8, 8), 8, stride=8, wrap=8).axes == (8, 1)


def test_arrays_are_as_single_groups() -> None:
    ranks = np.array([1, 2, 4, 8, 16, 64])
    together = of((8, 8), ranks, wrap=8)
    for i, each in enumerate(ranks):
        alone = of((8, 8), int(each), wrap=8)
        assert (together.links[i], together.hops[i]) == (alone.links, alone.hops)


@pytest.mark.parametrize(
    ("chips", "pod", "shape"),
    [(256, (16, 16), (16, 16)), (128, (16, 16), (8, 16)), (512, (16, 16, 24), (8, 8, 8))],
)
def test_slices_are_compact(chips: int, pod: tuple[int, ...], shape: tuple[int, ...]) -> None:
    assert compact(chips, pod) == shape


def test_slices_by_name() -> None:
    named = Cluster.named("tpu_v5p:4x4x8")
    assert (named.name, named.tiers[0].gpus, named.tiers[0].title) == (
        "tpu_v5p",
        128,
        "4x4x8 torus",
    )
    assert Cluster.named("tpu_v5p").holding(128) == named
    assert Cluster.named("tpu7x").holding(128).tiers[0].shape == (4, 4, 4)
    for wrong in ("tpu_v5p:4x4", "tpu_v6e:32x8", "h100_sxm:2x4", "tpu_v5e:0x4"):
        with pytest.raises(BadValueError, match="slice"):
            Cluster.named(wrong)


def test_axes_of_different_links() -> None:
    """An UltraServer is four instances: inside of one, links have twice the rate."""
    ultra = Cluster.named("trainium2_ultra")
    assert ultra.tiers[0].link_bytes_per_s == 128e9
    assert ultra.tiers[0].spanned(4, stride=16).links == 2 * 0.5
    assert ultra.holding(16).tiers[0].shape == (1, 4, 4)
    assert ultra.holding(24).tiers[0].shape == (2, 4, 4)
    one = Cluster.named("trainium2")
    assert ultra.device == one.device
    gather = [collective_time("all_gather", 2**30, each, 16).time_s for each in (one, ultra)]
    assert gather[0] == pytest.approx(gather[1])
    assert collective_time("all_gather", 2**30, ultra, 64).time_s < gather[0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shape": ()}, "Tier.shape"),
        ({"shape": (4, 0)}, "Tier.shape"),
        ({"wraps": (4,)}, "Tier.wraps"),
        ({"axis_shares": (1.0, -1.0)}, "Tier.axis_shares"),
        ({"gpus": 15}, "Tier.gpus"),
    ],
)
def test_a_torus_needs_a_sound_shape(changed: dict[str, Any], message: str) -> None:
    sound: dict[str, Any] = {
        "name": "torus",
        "kind": "torus",
        "gpus": 16,
        "bytes_per_s": 4 * RATE,
        "shape": (4, 4),
        "wraps": (4, 4),
        "axis_shares": (1.0, 1.0),
    }
    assert Tier(**sound).link_bytes_per_s == RATE
    with pytest.raises(BadValueError, match=message):
        Tier(**{**sound, **changed})


@pytest.mark.parametrize("name", TPUS)
def test_figures_of_tpus(name: str) -> None:
    cluster = Cluster.named(name)
    device, tier = cluster.device, cluster.tiers[0]
    found = (device.peak("bf16"), device.memory_bytes_per_s, tier.gpus, tier.bytes_per_s)
    assert found == TPUS[name]


def test_collectives_reach_no_more_than_the_links() -> None:
    for name in TPUS:
        cluster = Cluster.named(name).holding(64)
        for collective in ("all_reduce", "all_gather", "all_to_all", "broadcast", "send_recv"):
            result = collective_time(collective, 2**30, cluster, 64, library="xla")
            assert result.time_s > result.bound_s


def test_slices_are_joined_by_the_network() -> None:
    one = collective_time("all_reduce", 2**30, Cluster.named("tpu_v5p:4x4x8"), 128, library="xla")
    joined = Cluster.named("tpu_v5p:4x4x8", "dcn")
    two = collective_time("all_reduce", 2**30, joined, 256, library="xla")
    assert two.group.domains == 2
    crossing = 2**30 / 128 / joined.network.nic_bytes_per_s  # type: ignore[union-attr]
    assert two.time_s - one.time_s > crossing


def test_elongated_slices_are_never_faster() -> None:
    work, layout = Train(global_batch=256, sequence_length=4096), Layout(tp=8, dp=16, zero=3)
    times = [
        float(estimate("llama3-70b", name, layout, work, software="maxtext").time_s)
        for name in ("tpu_v5p:4x4x8", "tpu_v5p:2x4x16", "tpu_v5p:1x8x16")
    ]
    assert times == sorted(times)


def test_xla_leaves_out_what_no_gradient_needs() -> None:
    from dataclasses import replace

    maxtext = Software.named("maxtext")
    work = Train(global_batch=128, sequence_length=4096)
    layout = Layout(dp=128, zero=3, recompute="full")
    flops = [
        estimate("llama3-70b", "tpu_v5p", layout, work, software=each).hardware_flops
        for each in (maxtext, replace(maxtext, recomputes_last=True))
    ]
    model = 2 * 8192 * 28672 * 80 * 128 * 4096
    assert flops[1] - flops[0] == pytest.approx(model, rel=1e-3)


@pytest.mark.parametrize(("cluster", "slowed"), [("tpu_v5p", False), ("h100_sxm", True)])
def test_gathers_of_weights_slow_compute_unless_engines_move_the_data(
    cluster: str, slowed: bool
) -> None:
    work = Train(global_batch=64, sequence_length=4096)
    result = estimate("llama3-8b", cluster, Layout(dp=8, zero=3), work, software="maxtext")
    assert (result.ledger.step_work.layer_gathers.lost_share > 0) is slowed


def test_a_search_gives_every_number_of_devices_its_own_slice() -> None:
    work = Train(global_batch=128, sequence_length=4096)
    space = {"gpus": (64, 128), "tp": 8, "pp": 1, "cp": 1, "zero": 3, "recompute": "full"}
    found = search("llama3-8b", "tpu_v5p", work, space=space, software="maxtext", top=1000)
    shapes = {each.layout.devices: each.question.cluster.tiers[-1].shape for each in found.best}
    assert shapes == {64: (4, 4, 4), 128: (4, 4, 8)}
    for each in found.best:
        alone = estimate("llama3-8b", "tpu_v5p", each.layout, work, software=each.software)
        assert each.time_s == pytest.approx(float(alone.time_s), rel=1e-9)


ROW = {"framework": "MaxText", "recompute": "selective", "hidden": "8192", "ffn": "28672"}
ROW |= {"heads": "64", "kv_heads": "8", "head_dim": "128", "gated": "1"}


@pytest.mark.parametrize(
    ("policy", "saved", "recompute", "away"),
    [
        ("minimal", "", "core_attn+layernorm", 0),
        ("save_dot_except_logits_ffn1", "", "core_attn+layernorm+mlp+moe", 0),
        ("custom", "decoder_layer_input:offload", "full", 1),
        ("custom", "query_proj:device+key_proj:device+value_proj:device+context:device",
         "layernorm+mlp+moe", 0),
    ],
)  # fmt: skip
def test_policies_of_maxtext(policy: str, saved: str, recompute: str, away: int) -> None:
    row = {**ROW, "recompute_modules": policy, "saved_activations": saved}
    found = training._by_policy(row)
    layout = Layout(recompute=found["recompute"])
    assert layout.recompute == recompute
    assert (found["offload_activations"] > 0) == bool(away)


def test_runs_on_tpus(evidence: Path) -> None:
    with (evidence / "measured" / "more" / "training_runs.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["cluster"].startswith("tpu")]
    errors = [
        abs(float(training.estimate_of(row).time_s) / float(row["measured_step_s"]) - 1)
        for row in rows
    ]
    assert np.median(errors) <= 0.10
    assert np.percentile(errors, 90) <= 0.25

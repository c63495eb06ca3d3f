"""The laws that hold in every estimate, on random layouts of every catalog model and machine.

No link carries more than its rate, parts add up to the time, no part is negative, and model FLOPs
do not exceed those that the hardware makes, which do not exceed its peak. Doubling a rate of the
machine makes no estimate slower, and halving one makes none faster. `SHARDCOST_CONSERVATION` sets
how many random estimates are tried; with more than usual, every estimate tries every rate.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from shardcost import Cluster, Decode, Estimate, Layout, Prefill, Train, catalog, estimate
from shardcost.catalog.figures import figure_named, value_of
from shardcost.errors import ShardcostError

USUAL = 400
TRIED = int(os.environ.get("SHARDCOST_CONSERVATION", str(USUAL)))
ROUNDING = 1 + 1e-9


def degrees(rng: random.Random) -> dict[str, Any]:
    return {
        "tp": rng.choice([1, 2, 4, 8, 16]),
        "cp": rng.choice([1, 1, 1, 2, 4, 8]),
        "pp": rng.choice([1, 1, 2, 4, 8]),
        "dp": rng.choice([1, 2, 4, 8, 16, 32]),
        "ep": rng.choice([1, 1, 2, 4, 8, 16, 32]),
    }


def training(rng: random.Random, dtype: str | None) -> tuple[Layout, Train]:
    given = degrees(rng)
    stages = rng.choice([1, 1, 2, 3]) if given["pp"] > 1 else 1
    layout = Layout(
        **given,
        virtual_stages=stages,
        schedule="interleaved" if stages > 1 else rng.choice(["1f1b", "zero_bubble"]),
        micro_batch=rng.choice([1, 1, 2]),
        zero=rng.choice([0, 1, 1, 2, 3]),
        sequence_parallel=rng.random() < 0.5,
        recompute=rng.choice(["none", "selective", "full"]),
        context_scheme=rng.choice(["ring", "all_gather", "ulysses"]),
        imbalance=rng.choice([1.0, 1.0, 1.5]),
        order=rng.choice(["tp-cp-dp-pp", "tp-cp-pp-dp"]),
    )
    work = Train(
        global_batch=rng.choice([64, 256, 1024]),
        sequence_length=rng.choice([2048, 8192, 32768]),
        dtype=dtype or "bf16",
        document_tokens=rng.choice([None, None, None, 512, 2048]),
        adapters=rng.random() < 0.1,
    )
    return layout, work


def serving(rng: random.Random, dtype: str | None) -> tuple[Layout, Prefill | Decode]:
    given = degrees(rng) | {"dp": rng.choice([1, 1, 2, 4])}
    if rng.random() < 0.5:
        work: Prefill | Decode = Prefill(
            batch=rng.choice([1, 8, 32]), prompt_tokens=rng.choice([512, 4096, 131072]), dtype=dtype
        )
    else:
        given["cp"] = 1
        work = Decode(
            batch=rng.choice([1, 8, 64, 256]),
            context_tokens=rng.choice([512, 4096, 32768]),
            dtype=dtype,
        )
    return Layout(**given), work


def random_estimates(count: int, seed: int) -> Iterator[Estimate]:
    """Yield estimates of random models, machines, layouts and workloads that are feasible."""
    rng = random.Random(seed)
    models, clusters = catalog.names("models"), catalog.names("clusters")
    networks = [*catalog.names("networks"), None]
    made = 0
    while made < count:
        model, cluster = rng.choice(models), rng.choice(clusters)
        network, dtype = rng.choice(networks), rng.choice([None, "bf16", "fp8", "int8", "nvfp4"])
        software = None
        try:
            if rng.random() < 0.5:
                layout, work = training(rng, dtype)
            else:
                layout, work = serving(rng, dtype)  # type: ignore[assignment]
                software = rng.choice([None, *catalog.names("software")])
            place = Cluster.named(cluster, network=network)
            yield estimate(model, place, layout, work, software=software)
        except ShardcostError:
            continue  # infeasible, or nothing like it was measured
        made += 1


def about(result: Estimate) -> str:
    place = f"{result.cluster.name} {result.cluster.network and result.cluster.network.name}"
    return f"{result.model.name} on {place}, {result.layout}, {result.workload}"


@pytest.mark.parametrize("seed", range(4))
def test_the_laws_hold(seed: int) -> None:
    for result in random_estimates(TRIED // 4, seed):
        assert max(result.link_utilisation.values()) <= ROUNDING, about(result)
        assert sum(result.parts_s.values()) == pytest.approx(result.time_s, rel=1e-9), about(result)
        assert min(result.parts_s.values()) >= 0, about(result)
        assert result.mfu <= result.hfu * ROUNDING, about(result)
        assert result.hfu <= 1, about(result)
        least_s = result.hardware_flops / (
            result.devices * result.cluster.device.peak(result.product_dtype)
        )
        assert result.time_s >= least_s, about(result)


def better(cluster: Cluster, what: str) -> Cluster:
    """Return a machine with half as much more of one resource."""
    device, tiers, network = cluster.device, cluster.tiers, cluster.network
    if what == "arithmetic":
        peaks = {dtype: 1.5 * rate for dtype, rate in device.peak_flop_per_s.items()}
        return replace(cluster, device=replace(device, peak_flop_per_s=peaks))
    if what == "memory":
        faster = replace(device, memory_bytes_per_s=1.5 * device.memory_bytes_per_s)
        return replace(cluster, device=faster)
    if what == "links":
        rates = tuple(replace(tier, bytes_per_s=1.5 * tier.bytes_per_s) for tier in tiers)
        return replace(cluster, tiers=rates)
    assert network is not None
    ports = replace(network, nic_bytes_per_s=1.5 * network.nic_bytes_per_s)
    return replace(cluster, network=ports)


RATES = (
    "device.peak",
    "device.memory_bandwidth",
    "device.clock",
    "device.host_link",
    "link.bandwidth",
    "network.nic_rate",
)


def rate_of(cluster: Cluster, name: str) -> Any:
    """Return a rate of a machine; of all peaks, the one by which they are set together."""
    if name == "device.peak":
        peaks = cluster.device.peak_flop_per_s
        return peaks.get("bf16") or peaks.get("fp16") or next(iter(peaks.values()))
    return value_of(cluster, figure_named(name))


def on_another(result: Estimate, cluster: Cluster) -> float:
    other = estimate(
        result.model, cluster, result.layout, result.workload, software=result.software
    )
    return float(other.time_s)


@pytest.mark.parametrize("seed", range(4))
def test_doubling_a_rate_is_never_slower_and_halving_never_faster(seed: int) -> None:
    dice, wrong, tried = random.Random(seed), {}, 0
    for result in random_estimates(125 * TRIED // USUAL, seed=100 + seed):
        known = [name for name in RATES if rate_of(result.cluster, name) is not None]
        for name in known if TRIED > USUAL else [dice.choice(known)]:
            rate = rate_of(result.cluster, name)
            slower, faster = (
                on_another(result, result.cluster.with_figures({name: factor * rate}))
                for factor in (0.5, 2.0)
            )
            tried += 1
            if faster > result.time_s * ROUNDING or slower * ROUNDING < result.time_s:
                wrong[f"{name} {about(result)}"] = (slower, float(result.time_s), faster)
    assert tried >= 125
    assert not wrong, f"{len(wrong)} of {tried}: {next(iter(wrong.items()))}"


@pytest.mark.parametrize("what", ["arithmetic", "memory", "links", "network"])
def test_a_better_datasheet_is_never_slower(what: str) -> None:
    tried, slower = 0, {}
    for result in random_estimates(TRIED // 8, seed=10):
        if what == "network" and result.cluster.network is None:
            continue
        tried += 1
        time_s = on_another(result, better(result.cluster, what))
        if time_s > result.time_s * ROUNDING:
            slower[about(result)] = time_s / result.time_s - 1
    worst = max(slower, key=slower.__getitem__, default="")
    assert not slower, f"{len(slower)} of {tried} slower, worst {slower[worst]:.1%}: {worst}"


CHOSEN_BY_RATE: dict[str, tuple[str, str, str, Layout, Train | Decode, str | None]] = {
    # GEMMs that memory limits: other tile shapes would gain weight at the higher peak.
    "arithmetic": (
        "megatron-1t",
        "h20_sxm",
        "efa_16x200g",
        Layout(tp=16, ep=8),
        Decode(batch=8, context_tokens=32768, dtype="fp8"),
        None,
    ),
    # NCCL's tuner would turn to ring LL at the new rate, which runs slower than it expects.
    "links": (
        "glm-4.5-air",
        "v100_pcie",
        "ethernet_1x100g",
        Layout(tp=8, ep=4),
        Decode(batch=64, context_tokens=4096),
        None,
    ),
    "network": (
        "mistral-7b",
        "rtx_pro_6000",
        "tcp",
        Layout(tp=16, pp=2, dp=2),
        Decode(batch=256, context_tokens=4096),
        None,
    ),
}


@pytest.mark.parametrize("what", CHOSEN_BY_RATE)
def test_a_choice_made_by_rate_does_not_cost_time(what: str) -> None:
    model, cluster, network, layout, work, software = CHOSEN_BY_RATE[what]
    place = Cluster.named(cluster, network=network)
    before = estimate(model, place, layout, work, software=software)
    after = estimate(model, better(place, what), layout, work, software=software)
    assert after.time_s <= before.time_s * ROUNDING

"""Injected faults: how often ``shardcost check`` names them, and calls healthy curves fine.

``python -m lab.faults`` makes, for every kind of fault, curves as nccl-tests would print them (8 B
to 8 GiB, one to three collectives, random machine and GPUs), and asks `judged`. A fault is not made
by the prices that the verdict compares with: the constants of the faulty machine are other ones
(every rate scaled by 0.85 to 1.15, every latency by 0.8 to 1.25), its severity lies between those
that are tried, PCIe is that of one measured system rather than of the family, few channels and
launches have formulas of their own, the rate of a ring with one slow port is simulated event by
event, and on top come a level and a slope drawn from the interval of the prediction and 3 % of
scatter. Drawn again are faults that slow no size by a quarter: on such a curve there is nothing to
see. With ``--measured FILE`` the curves of a table of measured collectives are judged, which are of
machines that somebody thought worth publishing.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.catalog import cluster_named, network_named
from shardcost.cluster import Cluster, Tier
from shardcost.collectives.exact.algorithms import schedule
from shardcost.collectives.exact.simulate import simulate
from shardcost.collectives.exact.topology import nvswitch
from shardcost.collectives.group import Group
from shardcost.collectives.library_time import collective_time
from shardcost.errors import ShardcostError
from shardcost.formats.reading import Point, Run
from shardcost.formats.tables import read_table
from shardcost.inspect.log import inspected
from shardcost.inspect.verdict import FINE, Verdict, judged
from shardcost.machine import Machine, machine_of
from shardcost.machine.constants import Calibration, NetworkConstants, stated
from shardcost.validate.predictions import Floats

CASES: Final = 50
"""Of each kind."""
NOISE: Final = 0.03
_CURVE: Final = (
    *("cluster", "network", "num_gpus", "nodes", "library", "collective", "dataset"),
    "single_process",
)
"""Columns that the points of a measured curve have in common."""
_FEWEST: Final = 8
"""Points of a measured curve."""
_VISIBLE: Final = np.log(1.25)
_INSIDE: Final = ("h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "a100_sxm", "gb200_nvl72")
_REDUCING: Final = ("h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm")
_ACROSS: Final = (
    ("h100_sxm", "ib_8x400g"),
    ("h200_sxm", "ib_8x400g"),
    ("b200_sxm", "ib_8x400g"),
    ("h100_sxm", "efa_8x400g"),
    ("h100_sxm", "roce_8x400g"),
    ("a100_sxm", "roce_16x100g"),
    ("a100_sxm", "ib_8x200g"),
)
_PCIE: Final = ("l40s", "rtx_pro_6000")
_COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


class Truth(NamedTuple):
    """What runs: a collective on a machine."""

    collective: str
    cluster: Cluster
    gpus: int


Faulty = Callable[[np.random.Generator, Truth, Floats], Floats]
"""The seconds of some sizes with a fault."""


class Kind(NamedTuple):
    """A kind of fault."""

    places: str
    """``inside``, ``reducing``, ``across``, ``spine`` or ``pcie``."""
    collectives: tuple[str, ...]
    faulty: Faulty


def _perturbed(rng: np.random.Generator, machine: Machine, *, crosses: bool) -> Machine:
    """Return a machine whose constants are others: rates by 15 %, latencies by 25 %."""

    def other(own: Calibration) -> Calibration:
        changes = {}
        for name, value in stated(own.constants).items():
            if name.endswith("_bytes_per_s") or name in {"efficiency", "spine"}:
                changes[name] = value * rng.uniform(0.85, 1.15)
            elif name.endswith("_s"):
                changes[name] = value * np.exp(rng.uniform(np.log(0.8), np.log(1.25)))
        constants: Any = own.constants
        return replace(own, constants=replace(constants, **changes))

    changed = [other(machine.library("nccl"))]
    if crosses:
        changed.append(other(machine.network))
    return machine.with_own(*changed)


def _times(
    rng: np.random.Generator,
    truth: Truth,
    sizes: Floats,
    cluster: Cluster,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> Floats:
    crosses = bool(Group.on(cluster, truth.gpus).domains > 1)
    machine = _perturbed(rng, machine_of(cluster), crosses=crosses)
    result = collective_time(
        truth.collective, sizes, machine, truth.gpus, algorithm=algorithm, protocol=protocol
    )
    return np.asarray(result.time_s, dtype=np.float64)


def _healthy(rng: np.random.Generator, truth: Truth, sizes: Floats) -> Floats:
    """Return the seconds by the catalog's own constants: the interval is about them."""
    del rng
    result = collective_time(truth.collective, sizes, truth.cluster, truth.gpus)
    return np.asarray(result.time_s, dtype=np.float64)


def _forced(**forced: str) -> Faulty:
    return lambda rng, truth, sizes: _times(rng, truth, sizes, truth.cluster, **forced)


def _on_tier(cluster: Cluster, **changes: Any) -> Cluster:
    return replace(cluster, tiers=(*cluster.tiers[:-1], replace(cluster.tiers[-1], **changes)))


def _nvls_off(rng: np.random.Generator, truth: Truth, sizes: Floats) -> Floats:
    return _times(rng, truth, sizes, _on_tier(truth.cluster, in_switch_reduction=False))


def _few_channels(rng: np.random.Generator, truth: Truth, sizes: Floats) -> Floats:
    """Return the longer of the healthy time and bytes over what so many channels carry."""
    channels = int(rng.integers(1, 4))
    one = truth.cluster.tiers[-1].bytes_per_s * rng.uniform(0.7, 0.9) / rng.uniform(12, 20)
    share = 2.0 if truth.collective == "all_reduce" else 1.0
    sent = share * sizes * (truth.gpus - 1) / truth.gpus
    return _healthy(rng, truth, sizes) + sent / (channels * one)


def _links_down(rng: np.random.Generator, truth: Truth, sizes: Floats) -> Floats:
    share = rng.uniform(0.45, 0.7)
    rate = truth.cluster.tiers[-1].bytes_per_s * share
    return _times(rng, truth, sizes, _on_tier(truth.cluster, bytes_per_s=rate))


def _pcie(rng: np.random.Generator, truth: Truth, sizes: Floats) -> Floats:
    """Return the seconds by the constants of one system that has PCIe alone."""
    cluster = truth.cluster
    donor = cluster_named(str(rng.choice(_PCIE)))
    rate = cluster.device.host_link_bytes_per_s or donor.tiers[0].bytes_per_s
    tier = Tier(name="pcie", kind="pcie", gpus=int(cluster.gpus_per_node), bytes_per_s=rate)
    other = replace(donor, tiers=(tier,), gpus_per_node=cluster.gpus_per_node)
    return _times(rng, truth, sizes, other)


def _pcie_width(rng: np.random.Generator, truth: Truth, sizes: Floats) -> Floats:
    rate = truth.cluster.tiers[-1].bytes_per_s * rng.uniform(0.42, 0.55)
    return _times(rng, truth, sizes, _on_tier(truth.cluster, bytes_per_s=rate))


def _network(truth: Truth, **changes: Any) -> Cluster:
    network = truth.cluster.network
    assert network is not None  # noqa: S101
    return replace(truth.cluster, network=replace(network, **changes))


def _one_nic(rng: np.random.Generator, truth: Truth, sizes: Floats) -> Floats:
    return _times(rng, truth, sizes, _network(truth, nics_per_node=1, nics_per_gpu=None))


def _half_network(rng: np.random.Generator, truth: Truth, sizes: Floats) -> Floats:
    """Return the seconds where one port is slow: by how much is simulated, transfer by transfer.

    A ring passes every port, so that the slowest sets its pace; how far that is hidden at a size is
    what the simulation of a ring over nodes with one slow link says.
    """
    network = truth.cluster.network
    assert network is not None  # noqa: S101
    rate = network.nic_bytes_per_s * _simulated_share(rng.uniform(0.42, 0.58))
    return _times(rng, truth, sizes, _network(truth, nic_bytes_per_s=rate))


def _simulated_share(share: float, nodes: int = 4, size: int = 1 << 24) -> float:
    """Return the rate of a ring in which one link has a share of the others' rate."""
    found = schedule("all_reduce", "ring", nodes)
    whole = nvswitch(nodes, 50e9, latency_s=1e-6)
    slow = replace(
        whole,
        links=tuple(
            link._replace(bytes_per_s=link.bytes_per_s * share) if k == 0 else link
            for k, link in enumerate(whole.links)
        ),
    )
    return simulate(found, whole, size).time_s / simulate(found, slow, size).time_s


def _tcp(rng: np.random.Generator, truth: Truth, sizes: Floats) -> Floats:
    tcp = network_named(str(rng.choice(["tcp", "ethernet_1x100g"])))
    tcp = replace(tcp, nic_bytes_per_s=tcp.nic_bytes_per_s * float(rng.choice([0.25, 0.5, 1, 2])))
    return _times(rng, truth, sizes, replace(truth.cluster, network=tcp))


def _gpu_direct_off(rng: np.random.Generator, truth: Truth, sizes: Floats) -> Floats:
    """Return the seconds where every byte crosses PCIe twice more, and every message two copies."""
    cluster, network = truth.cluster, truth.cluster.network
    assert network is not None  # noqa: S101
    machine = _perturbed(rng, machine_of(cluster), crosses=True)
    own = machine.network
    constants = own.constants
    assert isinstance(constants, NetworkConstants)  # noqa: S101
    port = network.node_bytes_per_s(cluster.gpus_per_node) / cluster.gpus_per_node
    # A stage each: into the network at its rate, and through the memory of the host.
    staged = rng.uniform(10e9, 18e9)
    reached = 1 / (1 / staged + rng.uniform(0, 0.2) / port)
    copies_s = rng.uniform(8e-6, 20e-6)
    slower = replace(
        constants,
        efficiency=min(constants.efficiency, reached / port),
        latency_s=constants.latency_s + copies_s,
        ll128_latency_s=constants.ll128_latency_s + copies_s,
    )
    there = machine.with_own(replace(own, constants=slower))
    result = collective_time(truth.collective, sizes, there, truth.gpus)
    return np.asarray(result.time_s, dtype=np.float64)


def _oversubscribed(rng: np.random.Generator, truth: Truth, sizes: Floats) -> Floats:
    return _times(rng, truth, sizes, _network(truth, oversubscription=rng.uniform(2, 5)))


def _launch_floor(rng: np.random.Generator, truth: Truth, sizes: Floats) -> Floats:
    """Return the longer of both, each launch being another."""
    healthy = _healthy(rng, truth, sizes)
    floor = np.exp(rng.uniform(np.log(40e-6), np.log(300e-6)))
    slower: Floats = np.maximum(healthy, floor * np.exp(0.05 * rng.standard_normal(len(sizes))))
    return slower


def _warm_up(rng: np.random.Generator, truth: Truth, sizes: Floats) -> Floats:
    times = _healthy(rng, truth, sizes).copy()
    times[0] *= np.exp(rng.uniform(np.log(1.5), np.log(20)))
    return times


def _jitter(rng: np.random.Generator, truth: Truth, sizes: Floats) -> Floats:
    times = _healthy(rng, truth, sizes)
    hit = rng.random(len(sizes)) < rng.uniform(0.25, 0.5)
    slower: Floats = times * np.where(hit, 1.3 + rng.exponential(0.8, len(sizes)), 1.0)
    return slower


_RINGS: Final = _COLLECTIVES[:3]
KINDS: Final = {
    "nvls_off": Kind("reducing", ("all_reduce",), _nvls_off),
    "ring_forced": Kind("across", ("all_reduce",), _forced(algorithm="ring")),
    "tree_forced": Kind("across", ("all_reduce",), _forced(algorithm="tree")),
    "ll_only": Kind("inside", _RINGS, _forced(protocol="LL")),
    "simple_only": Kind("across", _RINGS, _forced(protocol="Simple")),
    "few_channels": Kind("inside", _RINGS, _few_channels),
    "links_down": Kind("inside", _COLLECTIVES, _links_down),
    "pcie": Kind("inside", _COLLECTIVES, _pcie),
    "pcie_width": Kind("pcie", _COLLECTIVES, _pcie_width),
    "one_nic": Kind("across", _COLLECTIVES, _one_nic),
    "half_network": Kind("across", _COLLECTIVES, _half_network),
    "tcp": Kind("across", _COLLECTIVES, _tcp),
    "gpu_direct_off": Kind("across", _COLLECTIVES, _gpu_direct_off),
    "oversubscribed": Kind("spine", _COLLECTIVES, _oversubscribed),
    "launch_floor": Kind("inside", _COLLECTIVES, _launch_floor),
    "warm_up": Kind("inside", _COLLECTIVES, _warm_up),
    "jitter": Kind("inside", _COLLECTIVES, _jitter),
}
HEALTHY: Final = Kind("any", _COLLECTIVES, _healthy)


def _truths(rng: np.random.Generator, kind: Kind) -> list[Truth]:
    """Return what is measured in one case: one to three collectives, of one or more groups."""
    places = kind.places
    if places == "any":
        places = str(rng.choice(["inside", "across", "pcie"]))
    if places in {"across", "spine"}:
        name, network = _ACROSS[rng.integers(len(_ACROSS))]
        cluster = cluster_named(name, network)
        per_node = int(cluster.gpus_per_node)
        nodes = [2, 16] if places == "spine" else [int(rng.choice([2, 4, 8]))]
        counts = [per_node * each for each in nodes]
    else:
        names = {"inside": _INSIDE, "reducing": _REDUCING, "pcie": _PCIE}[places]
        cluster = cluster_named(str(rng.choice(names)))
        most = min(8, cluster.tiers[-1].gpus)
        counts = [int(rng.choice([4, most]))]
    number = int(rng.integers(1, min(3, len(kind.collectives)) + 1))
    chosen = rng.choice(kind.collectives, size=number, replace=False)
    return [Truth(str(each), cluster, count) for each in chosen for count in counts]


def case(rng: np.random.Generator, kind: Kind) -> tuple[list[Run], Cluster]:
    """Return the curves of one case, a fault to be seen in at least one of them."""
    while True:
        most = int(rng.choice([30, 33, 34]))
        sizes = np.array([2.0**k for k in range(3, most)])
        truths = _truths(rng, kind)
        try:
            # One fault for all curves of a case: each begins with the same random numbers.
            seed = int(rng.integers(2**32))
            curves = [
                (truth, kind.faulty(np.random.default_rng(seed), truth, sizes)) for truth in truths
            ]
        except ShardcostError:  # nothing like it can be forced there
            continue
        healthy = [_healthy(rng, truth, sizes) for truth in truths]
        change = [np.log(times / base) for (_, times), base in zip(curves, healthy, strict=True)]
        if kind is HEALTHY or max(map(np.max, change)) > _VISIBLE:
            break
    level, slope = rng.standard_normal(2)
    runs = [_run(rng, truth, sizes, times, level, slope) for truth, times in curves]
    return runs, truths[0].cluster


def _run(
    rng: np.random.Generator,
    truth: Truth,
    sizes: Floats,
    times: Floats,
    level: float,
    slope: float,
) -> Run:
    """Return a curve as measured: off by a level and a slope of the interval's spread."""
    result = collective_time(truth.collective, sizes, truth.cluster, truth.gpus)
    interval = result.interval
    low, high = (np.log(end / result.time_s) for end in interval[:2])
    along = np.linspace(-1, 1, len(sizes))
    own = 0.8 * level + 0.6 * rng.standard_normal()  # of the machine, and of the collective
    drawn = np.sqrt(0.7) * own + np.sqrt(0.3) * slope * along
    reach = np.where(drawn > 0, high, -low) / 1.645
    off = drawn * reach + NOISE * rng.standard_normal(len(sizes))
    points = [
        Point(int(size), float(time)) for size, time in zip(sizes, times * np.exp(off), strict=True)
    ]
    return Run(
        collective=truth.collective,
        num_gpus=truth.gpus,
        library="nccl",
        version="2.27",
        points=tuple(points),
    )


def verdict_on(runs: Sequence[Run], cluster: Cluster) -> Verdict:
    """Return what ``shardcost check`` says of curves."""
    return judged([inspected(run, cluster) for run in runs])


def first_named(verdict: Verdict) -> tuple[str, ...]:
    """Return the cause that is named first, with those that cannot be told from it."""
    if not verdict.causes:
        return (verdict.verdict,)
    first = verdict.causes[0]
    return (first.cause.key, *(each.key for each in first.alike))


def scored(name: str, kind: Kind, cases: int, seed: int) -> Counter[str]:
    """Return how often each cause was named first."""
    rng = np.random.default_rng([seed, sum(map(ord, name))])
    found: Counter[str] = Counter()
    for _ in range(cases):
        runs, cluster = case(rng, kind)
        verdict = verdict_on(runs, cluster)
        if kind is HEALTHY:
            found[verdict.verdict if verdict.verdict == FINE else first_named(verdict)[0]] += 1
        else:
            named = first_named(verdict)
            found[name if name == named[0] else f"{named[0]}*" if name in named else named[0]] += 1
    return found


def measured(file: Path) -> Counter[str]:
    """Return the verdicts on the curves of a table: fine, or what is named first."""
    curves: dict[tuple[str, ...], list[Point]] = {}
    for row in read_table(file).records():
        if row["library"] in {"nccl", "rccl"} and not row.get("channels"):
            point = Point(int(float(row["size_bytes"])), 1e-6 * float(row["time_us"]))
            curves.setdefault(tuple(row[name] for name in _CURVE), []).append(point)
    found: Counter[str] = Counter()
    for key, points in curves.items():
        name, network, gpus, nodes, library, collective, dataset, single = key
        if len(points) < _FEWEST:
            continue
        run = Run(
            collective=collective,
            num_gpus=int(gpus),
            nodes=int(nodes or 0),
            library=library,
            version="2",
            single_process=single == "1",
            points=tuple(sorted(points, key=lambda point: point.size_bytes)),
        )
        verdict = verdict_on([run], cluster_named(name, network or None))
        named = FINE if verdict.verdict == FINE else first_named(verdict)[0]
        found[named] += 1
        if named != FINE:
            print(f"{dataset} {collective} on {gpus}: {named}")
    return found


def main() -> None:
    """Print, by kind, the share named first and what else was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=[*KINDS, "healthy"])
    parser.add_argument("--measured", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.measured:
        verdicts = measured(given.measured)
        print(f"{sum(verdicts.values())} curves: {dict(verdicts.most_common())}")
        return
    total: Counter[str] = Counter()
    for name, kind in KINDS.items():
        if given.kind not in {None, name}:
            continue
        found = scored(name, kind, given.cases, given.seed)
        right = found.pop(name, 0)
        total["right"] += right
        total["cases"] += given.cases
        others = ", ".join(f"{other} {count}" for other, count in found.most_common())
        print(f"{name:16} {100 * right / given.cases:4.0f} %  {others}", flush=True)
    if total:
        print(
            f"all {total['cases']} cases: {100 * total['right'] / total['cases']:.1f} % named first"
        )
    if given.kind in {None, "healthy"}:
        cases = 4 * given.cases
        found = scored("healthy", HEALTHY, cases, given.seed)
        fine = found.pop(FINE, 0)
        others = ", ".join(f"{other} {count}" for other, count in found.most_common())
        print(f"healthy: {100 * fine / cases:.1f} % of {cases} fine  {others}")


if __name__ == "__main__":
    main()

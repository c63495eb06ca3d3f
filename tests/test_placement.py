"""Placement of ranks on unevenly wired nodes, and machine files from topology files."""

from __future__ import annotations

import json
import random
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import combinations, permutations
from math import gcd
from pathlib import Path
from typing import Any

import pytest
from test_topology_files import dgx1, dgx_h100, matrix, pcie_box, xml

from shardcost import Cluster, Decode, Layout, Train, estimate
from shardcost.cli import main
from shardcost.cluster import CUBE_MESH
from shardcost.collectives.exact.rings import Groups, LinkRates
from shardcost.collectives.exact.schedule import Schedule, Step
from shardcost.collectives.exact.simulate import simulate
from shardcost.collectives.exact.topology import Topology, cube_mesh, of_cluster, of_wiring
from shardcost.collectives.library_time import collective_time
from shardcost.errors import FormatError
from shardcost.estimate.result import Estimate
from shardcost.formats.detect import read_file
from shardcost.inspect.machine_file import machine_file
from shardcost.inspect.topology import TopologyInspection, inspected
from shardcost.machine import machine_of
from shardcost.report.placement import as_text
from shardcost.search import placement
from shardcost.search.placement import placement_of
from shardcost.wiring import Cable, Nic, Switch, Wiring

LINK = 25e9
TRAIN = Train(global_batch=64, sequence_length=1024, dtype="fp16")
CUBE = Wiring(
    gpus=8,
    cables=tuple(Cable(*pair, count) for pair, count in CUBE_MESH.items()),
    link_bytes_per_s=LINK,
)
BOX = Wiring(
    gpus=8,
    sockets=(((0, 2), (4, 6)), ((1, 3), (5, 7))),
    pcie_bytes_per_s=31.5e9,
    socket_bytes_per_s=16e9,
)
"""Two sockets, whose devices are numbered in turn."""
BRIDGES = replace(
    BOX, cables=tuple(Cable(one, one + 4, 4) for one in range(4)), link_bytes_per_s=LINK
)
"""The same, each two devices with numbers four apart joined by a bridge."""


def on(wiring: Wiring, base: str = "v100_cube", **changed: Any) -> Cluster:
    cluster = Cluster.named(base)
    tier = replace(cluster.tiers[0], gpus=wiring.gpus)
    return replace(
        cluster,
        name="mine",
        gpus_per_node=wiring.gpus,
        tiers=(tier,),
        wiring=wiring,
        **changed,
    )


def relabelled(wiring: Wiring, numbers: list[int]) -> Wiring:
    """Return a wiring whose device i has another number."""
    cables = [(*sorted((numbers[a], numbers[b])), links) for a, b, links in wiring.cables]
    return replace(wiring, cables=tuple(Cable(*each) for each in cables))


def ring_schedule(rates: LinkRates, groups: Groups) -> Schedule:
    """Return an all-gather of each group along all its rings, chunks by the rates of the rings."""
    channels = rates.channels(groups)
    unit = reduce(gcd, (round(each.bytes_per_s) for each in channels))
    rings = [each.rings for each in channels for _ in range(round(each.bytes_per_s) // unit)]
    size = len(groups[0])
    steps = []
    for number in range(size - 1):
        moves = [
            (ring[at], ring[(at + 1) % size], channel * size + (at - number) % size)
            for channel, each in enumerate(rings)
            for ring in each
            for at in range(size)
        ]
        source, target, chunk = zip(*moves, strict=True)
        steps.append(Step.of(source, target, chunk, reduces=False))
    devices = rates.topology.devices
    return Schedule("all_gather", "rings", devices, len(rings) * size, tuple(steps))


@pytest.mark.parametrize(("gpus", "rings"), [(2, 1), (3, 2), (4, 4), (8, 6)])
def test_rings_of_the_cube_mesh_are_those_that_its_cables_allow(gpus: int, rings: int) -> None:
    rates = LinkRates(cube_mesh(LINK))
    assert rates.ring_bytes_per_s((tuple(range(gpus)),)) == pytest.approx(rings * LINK)
    tier = Cluster.named("v100_cube").tiers[0]
    assert rings * LINK == pytest.approx(tier.ring_bytes_per_s(gpus))


def test_rings_of_groups_share_the_link_between_sockets() -> None:
    rates = LinkRates(of_wiring(BOX))
    apart = ((0, 2, 4, 6), (1, 3, 5, 7))
    across = ((0, 1, 2, 3), (4, 5, 6, 7))
    assert rates.ring_bytes_per_s(apart) == pytest.approx(31.5e9)
    assert rates.ring_bytes_per_s(across) == pytest.approx(8e9)
    assert rates.send_bytes_per_s([(0, 1), (2, 3)]) == pytest.approx(8e9)
    assert rates.exchange_bytes_per_s(across) < rates.exchange_bytes_per_s(apart)


WIRED = {"cube": cube_mesh(LINK), "box": of_wiring(BOX), "bridges": of_wiring(BRIDGES)}


@pytest.mark.parametrize("name", WIRED)
@pytest.mark.parametrize("size", [2, 4])
def test_the_rings_that_are_chosen_run_at_their_rates_in_simulation(name: str, size: int) -> None:
    """That links are not given away twice; whether other rings were better is the next test."""
    rates, draw = LinkRates(WIRED[name]), random.Random(size)
    bytes_each = 48_000_000
    for _ in range(12):
        order = draw.sample(range(8), 8)
        groups = tuple(tuple(sorted(order[i : i + size])) for i in range(0, 8, size))
        formula = (size - 1) / size * bytes_each / rates.ring_bytes_per_s(groups)
        simulated = simulate(ring_schedule(rates, groups), WIRED[name], bytes_each).time_s
        assert simulated == pytest.approx(formula)


def partitions(devices: tuple[int, ...], size: int) -> Iterator[Groups]:
    """Yield all ways to divide devices into groups."""
    if not devices:
        yield ()
        return
    for others in combinations(devices[1:], size - 1):
        group = (devices[0], *others)
        rest = tuple(device for device in devices if device not in group)
        for more in partitions(rest, size):
            yield (group, *more)


def best_packing(topology: Topology, groups: Groups) -> float:
    """Return the highest rate of any rings through all groups: a linear program over every ring."""
    optimize = pytest.importorskip("scipy.optimize")
    columns = []
    for number, group in enumerate(groups):
        for others in permutations(group[1:]):
            ring = (group[0], *others)
            hops = zip(ring, (*others, group[0]), strict=True)
            columns.append((number, Counter(k for hop in hops for k in topology.route(*hop))))
    loads = [[each[link] for _, each in columns] + [0] for link in range(len(topology.links))]
    owned = [[-(own == g) for own, _ in columns] + [1] for g in range(len(groups))]
    rates = [link.bytes_per_s / LINK for link in topology.links]
    aim = [0.0] * len(columns) + [-1.0]
    bounds = rates + [0.0] * len(groups)
    return -float(optimize.linprog(aim, A_ub=loads + owned, b_ub=bounds).fun) * LINK


@pytest.mark.parametrize(("name", "size", "exact"), [
    ("cube", 2, 105), ("cube", 4, 30), ("box", 2, 105), ("box", 4, 35),
    ("bridges", 2, 105), ("bridges", 4, 35),
])  # fmt: skip
def test_the_faster_groups_by_the_formula_are_the_faster_at_the_optimum(
    name: str, size: int, exact: int
) -> None:
    topology = WIRED[name]
    rates = LinkRates(topology)
    rows = [
        (rates.ring_bytes_per_s(groups), best_packing(topology, groups))
        for groups in partitions(tuple(range(8)), size)
    ]
    assert all(0.499 < chosen / optimum < 1.001 for chosen, optimum in rows)
    assert sum(chosen > 0.999 * optimum for chosen, optimum in rows) == exact
    inverted = [
        (one, other)
        for one, other in permutations(rows, 2)
        if one[0] > 1.001 * other[0] and one[1] < 0.999 * other[1]
    ]
    assert not inverted
    assert max(rows)[1] == pytest.approx(max(optimum for _, optimum in rows))


def test_routes_of_a_wired_node_are_nvlinks_or_pcie_and_not_both() -> None:
    topology = of_wiring(BRIDGES)
    for one, other in permutations(range(8), 2):
        ends = [topology.links[link].target for link in topology.route(one, other)]
        assert all(end >= 8 for end in ends[:-1])  # through no other device
    assert len(topology.route(0, 4)) == 1
    cube = of_wiring(replace(BOX, cables=CUBE.cables, link_bytes_per_s=LINK))
    assert [cube.links[link].target < 8 for link in cube.route(0, 5)] == [True, True]


def test_a_cluster_with_a_wiring_is_simulated_as_wired() -> None:
    assert of_cluster(on(CUBE), 8).links[0].bytes_per_s == LINK
    staged = of_wiring(replace(BOX, peer_access=False))
    names = [staged.link_name(link) for link in staged.route(0, 2)]
    assert any("host memory 0" in name for name in names)


def placed_on(cluster: Cluster, layout: Layout, work: Any = TRAIN) -> placement.Placement:
    return placement_of(estimate("llama2-7b", cluster, layout, work))


def test_tensor_groups_of_four_follow_the_cables_however_devices_are_numbered() -> None:
    natural = placed_on(on(CUBE), Layout(tp=4, dp=2))
    assert not natural.matters  # the first four and the last four devices are the best groups
    numbers = random.Random(1).sample(range(8), 8)
    mixed = placed_on(on(relabelled(CUBE, numbers)), Layout(tp=4, dp=2))
    assert mixed.best_s == pytest.approx(natural.best_s)
    assert mixed.matters
    back = {device: old for old, device in enumerate(numbers)}
    groups = {frozenset(back[device] for device in mixed.order[i : i + 4]) for i in (0, 4)}
    assert groups == {frozenset(range(4)), frozenset(range(4, 8))}


def test_data_parallel_groups_of_the_cube_mesh_are_placed_too() -> None:
    best = placed_on(Cluster.named("v100_cube"), Layout(tp=2, dp=4))
    assert 0.03 < best.gain < 0.06
    assert {frozenset(best.order[i::2]) for i in (0, 1)} == {
        frozenset(range(4)),
        frozenset(range(4, 8)),
    }


def test_fewer_ranks_than_devices_use_the_best_devices() -> None:
    work = Decode(batch=8, context_tokens=512)
    assert placed_on(Cluster.named("v100_cube"), Layout(tp=2), work).order == (0, 3)
    weak = Wiring(gpus=4, switches=(Switch((0, 1, 2, 3), (6, 18, 18, 18)),), link_bytes_per_s=LINK)
    assert placed_on(on(weak), Layout(tp=2), work).order == (1, 2)


def test_every_order_is_covered_by_those_that_are_tried() -> None:
    wiring = Wiring(
        gpus=4,
        cables=(Cable(0, 2, 3), Cable(0, 1, 1), Cable(1, 3, 2), Cable(2, 3, 1)),
        link_bytes_per_s=LINK,
    )
    for layout in (Layout(tp=2, pp=2), Layout(pp=4), Layout(tp=2, dp=2), Layout(tp=4)):
        result = estimate("llama2-7b", on(wiring), layout, TRAIN)
        search = placement._Search(result, of_wiring(wiring), 4)
        least = min(search.time_s(search.rates(order)) for order in permutations(range(4)))
        assert placement_of(result).best_s == pytest.approx(least, rel=1e-6)


def test_swaps_improve_the_order_of_more_than_eight_devices() -> None:
    wiring = replace(
        BOX,
        gpus=16,
        sockets=(tuple((i,) for i in range(0, 16, 2)), tuple((i,) for i in range(1, 16, 2))),
    )
    cluster = on(wiring, "l40s")
    # Replicas that decode send nothing to each other: only tensor groups use the links.
    best = placed_on(cluster, Layout(tp=2, dp=8), Decode(batch=64, context_tokens=512))
    assert not best.every
    assert best.gain > 0.01
    pairs = [best.order[i : i + 2] for i in range(0, 16, 2)]
    assert all(one % 2 == other % 2 for one, other in pairs)
    # In training gradients use them too; of the two plain orders, no worse than either.
    result = estimate("llama2-7b", cluster, Layout(tp=2, dp=8), TRAIN)
    search = placement._Search(result, of_wiring(wiring), 16)
    plain = (tuple(range(16)), (*range(0, 16, 2), *range(1, 16, 2)))
    least = min(search.time_s(search.rates(order)) for order in plain)
    assert placement_of(result).best_s <= least * (1 + 1e-6)


def test_groups_that_cross_nodes_leave_beside_the_network_cards() -> None:
    nics = tuple(Nic(f"mlx5_{i}", 25e9, (0, 2, 4, 6), "NODE") for i in range(2))
    cluster = replace(
        on(replace(BOX, nics=nics), "l40s"), network=Cluster.named("l40s", "ib_2x200g").network
    )
    best = placed_on(cluster, Layout(dp=2, tp=8, order="dp-tp-cp-pp"))
    natural = placed_on(cluster, Layout(dp=8, tp=2, order="dp-tp-cp-pp"))
    for found in (best, natural):
        assert found.best_s <= found.identity_s
    crossing = [(was.outside, will.outside) for _, was, will in natural.rates if was.outside]
    assert crossing
    assert all(will is not None and will >= was for was, will in crossing)


def test_an_even_machine_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    place = ["estimate", "llama2-7b", "--tp", "2", "--gpus", "8", "--placement"]
    work = ["--train", "--batch", "64", "--sequence-length", "512"]
    assert main([*place, "--on", "a100_sxm", *work]) == 0
    assert "Placement makes no difference: each device of a100_sxm" in capsys.readouterr().out
    assert main([*place, "--on", "l40s", *work]) == 0
    assert "Placement was not searched: how the devices of l40s" in capsys.readouterr().out
    assert main([*place, "--on", "a100_sxm", *work, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["placement"][0]["matters"] is False


def test_plan_shows_what_an_order_gains(capsys: pytest.CaptureFixture[str]) -> None:
    command = "plan llama2-7b --on v100_cube --gpus 8 --train --batch 64 --sequence-length 1024"
    options = "--dtype fp16 --fix tp=2 --fix pp=1 --top 1 --placement"
    assert main([*command.split(), *options.split()]) == 0
    shown = capsys.readouterr().out
    assert "device of each rank of a node" in shown
    order = [int(device) for device in shown.partition("CUDA_VISIBLE_DEVICES=")[2].split(",")]
    pairs = [tuple(sorted(order[i : i + 2])) for i in range(0, 8, 2)]
    assert [CUBE_MESH[one, other] for one, other in pairs] == [2, 2, 2, 2]  # doubled cables


def test_the_text_counts_layouts_that_gain_nothing() -> None:
    one = placed_on(Cluster.named("v100_cube"), Layout(tp=2, dp=4))
    other = placed_on(Cluster.named("v100_cube"), Layout(tp=8))
    text = as_text([other, one])
    assert "tp8" in text
    assert f"+{100 * one.gain:.1f} %" in text


def inspection_of(path: Path, text: str, base: str | None = None) -> TopologyInspection:
    path.write_text(text, encoding="utf-8")
    reading: Any = read_file(path)
    found = inspected(reading, Cluster.named(base) if base else None)
    assert isinstance(found, TopologyInspection)
    return found


def read_back(path: Path, text: str, base: str | None = None) -> Cluster:
    written = path.with_suffix(".toml")
    written.write_text(machine_file(inspection_of(path, text, base), "mine"), encoding="utf-8")
    return Cluster.from_file(written)


@pytest.mark.parametrize(
    ("text", "base"), [(dgx_h100, "h100_sxm"), (dgx1, "v100_cube"), (xml, "h100_sxm")]
)
def test_a_topology_becomes_a_machine_that_is_priced_like_its_preset(
    tmp_path: Path, text: Callable[[], str], base: str
) -> None:
    cluster = read_back(tmp_path / "topo", text())
    preset = Cluster.named(base)
    assert (cluster.device, cluster.tiers) == (preset.device, preset.tiers)
    assert cluster.wiring is not None
    assert cluster.wiring.gpus == 8

    def priced(on: Cluster) -> Estimate:
        return estimate("llama2-7b", on, Layout(tp=8), Decode(batch=8, context_tokens=512))

    assert priced(cluster).time_s == pytest.approx(priced(preset).time_s)
    assert str(cluster.why("gpus_per_node")).startswith("topology file")
    assert f"as of {base}" in str(cluster.why("device.memory_bytes"))


def test_what_is_uneven_is_kept(tmp_path: Path) -> None:
    cube = read_back(tmp_path / "cube", dgx1()).wiring
    assert cube is not None
    assert {(a, b): links for a, b, links in cube.cables} == CUBE_MESH
    box = read_back(tmp_path / "box", pcie_box(), "l40s").wiring
    assert box is not None
    assert box.sockets == (((0, 1), (2, 3)), ((4, 5), (6, 7)))
    assert [(nic.gpus, nic.way) for nic in box.nics] == [((0, 1), "PIX")]


def test_a_gpu_with_fewer_links_sets_the_rate_and_is_left_out_by_placement(tmp_path: Path) -> None:
    lame = '<nvlink target="0000:07:00.0" count="6" tclass="0x068000"/>'
    cluster = read_back(tmp_path / "lame", xml(lame={3: lame}))
    assert cluster.tiers[0].bytes_per_s == pytest.approx(150e9)
    assert "others have up to 18" in str(cluster.why("tiers.links_per_gpu"))
    best = placed_on(cluster, Layout(tp=4), Decode(batch=8, context_tokens=512))
    assert best.order == (0, 1, 2, 4)
    assert best.gain > 0


def test_islands_and_bridges_are_priced_at_pcie_and_placed_on_their_nvlinks(tmp_path: Path) -> None:
    def word(one: int, other: int) -> str:
        if one == other:
            return " X "
        return "NV12" if abs(one - other) == 2 and min(one, other) % 4 < 2 else "SYS"

    cells = [[word(one, other) for other in range(4)] for one in range(4)]
    cluster = read_back(tmp_path / "pairs", matrix(cells, numa=["0", "1", "0", "1"]), "h100_nvl")
    assert cluster.tiers[0].kind == "pcie"
    assert cluster.wiring is not None
    assert cluster.wiring.cables == (Cable(0, 2, 12), Cable(1, 3, 12))
    best = placed_on(cluster, Layout(tp=2, pp=2), Decode(batch=64, context_tokens=512))
    assert best.gain > 0.01
    assert {frozenset(best.order[:2]), frozenset(best.order[2:])} == {
        frozenset({0, 2}),
        frozenset({1, 3}),
    }


def test_a_file_that_says_too_little_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topo = tmp_path / "box.txt"
    topo.write_text(pcie_box(), encoding="utf-8")
    out = str(tmp_path / "mine.toml")
    assert main(["inspect", str(topo), "--write-machine", out]) == 2
    assert "is like no preset for sure" in capsys.readouterr().err
    assert main(["inspect", str(topo), "--on", "l40s", "--write-machine", out + ".txt"]) == 2
    assert "ends in .toml" in capsys.readouterr().err
    taken = str(tmp_path / "l40s.toml")
    assert main(["inspect", str(topo), "--on", "l40s", "--write-machine", taken]) == 2
    assert "one that the catalog does not have" in capsys.readouterr().err
    assert main(["inspect", str(topo), "--on", "l40s", "--write-machine", out]) == 0
    assert f"Machine: --on {out}\n" in capsys.readouterr().out


def test_the_machine_file_has_the_network_that_the_cards_suggest_or_the_caller_names(
    tmp_path: Path,
) -> None:
    inspection = inspection_of(tmp_path / "topo", dgx_h100())
    for network in ("ib_8x400g", "roce_4x100g"):
        written = tmp_path / f"{network}_box.toml"
        named = replace(inspection, network=network)
        written.write_text(machine_file(named, "mine"), encoding="utf-8")
        cluster = Cluster.from_file(written)
        assert cluster.network == Cluster.named("h100_sxm", network).network
        alone = collective_time("all_reduce", 2.0**28, machine_of(cluster), 16)
        given = collective_time(
            "all_reduce", 2.0**28, machine_of(Cluster.from_file(written, network)), 16
        )
        assert float(alone.time_s) == float(given.time_s)
    without = replace(inspection, network=None)
    assert "network" not in tomllib.loads(machine_file(without, "mine"))


def _mutated(value: Any, draw: random.Random) -> Any:
    """Return a part of a [topology] table with one thing in it changed."""
    if isinstance(value, dict) and value and draw.random() < 0.8:
        key = draw.choice(sorted(value))
        changed = dict(value)
        if draw.random() < 0.2:
            del changed[key]
        else:
            changed[key] = _mutated(value[key], draw)
        return changed
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        return [*value[:at], _mutated(value[at], draw), *value[at + 1 :]]
    others: tuple[Any, ...] = (
        -1,
        0,
        8,
        10**9,
        True,
        "x",
        [],
        {},
        [[]],
        2.5,
        float("nan"),
        [1, 1],
        {"a": 1},
    )
    return draw.choice(others)


def test_hostile_topology_tables_are_refused_in_one_line(tmp_path: Path) -> None:
    from shardcost.catalog.build import cluster_from

    inspection = inspection_of(tmp_path / "box", pcie_box(), "h100_nvl")
    content = tomllib.loads(machine_file(inspection, "mine"))
    content["topology"] |= {
        "link_gb_per_s": {"value": 25, "source": "pcie"},
        "cables": [[0, 1, 4], [2, 3, 4]],
        "switches": [{"gpus": [4, 5], "links": [4, 4]}],
    }
    assert cluster_from(dict(content), "mine.toml", None).wiring is not None
    draw, lines = random.Random(7), []
    for _ in range(300):
        changed = {**content, "topology": _mutated(content["topology"], draw)}
        try:
            of_wiring(cluster_from(changed, "mine.toml", None).wiring or BOX)
        except FormatError as error:
            lines.append(str(error))
    assert len(lines) > 150
    assert not [line for line in lines if "\n" in line or "mine.toml" not in line]


def test_on_a_torus_ranks_follow_the_axes() -> None:
    work = Train(global_batch=64, sequence_length=2048)
    layout = Layout(dp=64, zero=3, recompute="full")
    placed = placement_of(estimate("llama3-8b", "tpu_v5p", layout, work))
    assert placed.is_known
    assert placed.best_s == placed.identity_s
    assert placed.reason == "on the torus of tpu_v5p ranks follow the axes, the last first"

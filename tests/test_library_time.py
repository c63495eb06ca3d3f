"""The time of collective libraries: what must hold of every prediction, whatever the constants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardcost import Cluster, catalog
from shardcost.collectives.choice import tuner_weights
from shardcost.collectives.group import Group, wire_bound_s
from shardcost.collectives.library_time import COLLECTIVES, CollectiveTime, collective_time
from shardcost.collectives.paths import total
from shardcost.errors import BadTypeError, BadValueError, ShardcostError, UnknownNameError
from shardcost.machine import machine_of
from shardcost.machine.constants import NetworkConstants, from_file_content, stated
from shardcost.machine.libraries import (
    CATALOG_LIBRARIES,
    catalog_calibrations,
    default_library,
)

MIB = 2**20
IN_SWITCH = {"nvls", "nvls_tree", "multicast"}
NCCL = CATALOG_LIBRARIES.library(Cluster.named("h100_sxm"), "nccl")
SIZES = np.geomspace(8, 8 * 2**30, 1500)
USUAL: dict[str, Any] = {
    "collective": "all_reduce",
    "size_bytes": MIB,
    "cluster": "h100_sxm",
    "gpus": 8,
}


@st.composite
def questions(draw: st.DrawFn) -> dict[str, Any]:
    """Return arguments of `collective_time` without the size: any system, library and group."""
    cluster = Cluster.named(draw(st.sampled_from(catalog.names("clusters"))))
    known = CATALOG_LIBRARIES.names(cluster)
    assume(known)
    library = draw(st.sampled_from(known))
    collective = draw(st.sampled_from(COLLECTIVES))
    nodes = draw(st.sampled_from([1, 2, 3, 8]))
    if nodes == 1 or cluster.tiers[0].gpus > cluster.gpus_per_node:
        gpus = draw(st.integers(2, min(cluster.tiers[0].gpus, 80)))
        return {"collective": collective, "cluster": cluster, "gpus": gpus, "library": library}
    network = draw(st.sampled_from(catalog.names("networks")))
    per_node = draw(st.integers(1, int(cluster.gpus_per_node)))
    return {
        "collective": collective,
        "cluster": Cluster.named(cluster.name, network),
        "gpus": nodes * per_node,
        "nodes": nodes,
        "library": library,
    }


def asked(question: dict[str, Any], size_bytes: Any) -> CollectiveTime:
    return collective_time(size_bytes=size_bytes, **question)


@settings(max_examples=150)
@given(questions())
def test_a_prediction_is_sound(question: dict[str, Any]) -> None:
    """Finite, monotone along each path, continuous, and never faster than its wire.

    Large sends get more channels as they grow, so their time may fall: to one half at most.
    """
    result = asked(question, SIZES)
    time = result.time_s
    assert np.isfinite(time).all()
    assert (time > 0).all()
    for path, parts in result.paths.items():
        path_time = np.broadcast_to(total(parts), SIZES.shape)
        if path in {("p2p", "Simple"), ("send", "Simple")}:
            assert (path_time >= np.maximum.accumulate(path_time) / 2).all()
        else:
            assert (path_time[1:] >= path_time[:-1] * (1 - 1e-15)).all()
    steps = np.abs(np.diff(np.log(time)))
    for place in np.argsort(steps)[-3:]:
        assert_no_jump(question, SIZES[place], SIZES[place + 1])
    for (algorithm, protocol), parts in result.paths.items():
        switch = algorithm in IN_SWITCH
        bound = wire_bound_s(result.collective, SIZES, result.group, in_switch=switch)
        assert (total(parts) >= bound * (1 - 1e-12)).all(), (algorithm, protocol)


def assert_no_jump(question: dict[str, Any], below: float, above: float) -> None:
    """Between two sizes, wherever the time changes most, it changes little by little."""
    steps = np.zeros(0)
    for _ in range(3):  # each time to the steepest hundredth of what is left
        sizes = np.linspace(below, above, 101)
        steps = np.abs(np.diff(np.log(asked(question, sizes).time_s)))
        place = int(np.argmax(steps))
        below, above = sizes[place], sizes[place + 1]
    assert steps.max() < 1e-4


@settings(max_examples=60)
@given(questions(), st.lists(st.floats(8, 2.0**33), min_size=1, max_size=4))
def test_arrays_equal_single_calls(question: dict[str, Any], sizes: list[float]) -> None:
    together = asked(question, np.array(sizes))
    for i, size in enumerate(sizes):
        alone = asked(question, size)
        assert alone.time_s == together.time_s[i]
        assert (alone.algorithm, alone.protocol) == (
            together.algorithm[i],
            together.protocol[i],
        )


@pytest.mark.parametrize(
    ("system", "library"),
    [
        ("h100_sxm", "nccl"),
        ("h100_sxm", "vllm"),
        ("h100_sxm", "trtllm"),
        ("b200_sxm", "sglang"),
        ("b200_sxm", "sglang==0.5.10"),
        ("l40s", "nccl"),
        ("mi300x", "rccl"),
        ("arc_b60", "oneccl"),
        ("h100_sxm", "nccl-tuner"),
    ],
)
def test_a_grid_of_sizes_and_ranks_equals_single_calls(system: str, library: str) -> None:
    """One node and several in one grid, ranks that an engine has kernels for and others."""
    cluster = Cluster.named(system, "roce_8x400g")
    sizes = np.geomspace(8, 2**33, 12)[:, None]
    ranks = np.array([1, 2, 3, 4, 5, 6, 7, 8, 16, 32])[None, :]
    grid = collective_time("all_reduce", sizes, cluster, ranks, library=library)
    for i, j in np.ndindex(grid.time_s.shape):
        size, gpus = float(sizes[i, 0]), int(ranks[0, j])
        alone = collective_time("all_reduce", size, cluster, gpus, library=library)
        assert grid.time_s[i, j] == alone.time_s
        assert grid.algorithm[i, j] == alone.algorithm


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint32", "uint64"])
def test_arrays_of_any_whole_numbers_will_do(kind: str) -> None:
    ranks = np.array([2, 8, 120], dtype=kind)
    cluster = Cluster.named("h100_sxm", "ib_8x400g")
    found = collective_time("all_reduce", 2.0**20, cluster, ranks)
    same = collective_time("all_reduce", 2.0**20, cluster, ranks.astype(np.int64))
    assert (found.time_s == same.time_s).all()


def test_a_grid_of_nodes_equals_single_calls() -> None:
    cluster = Cluster.named("h100_sxm", "ib_8x400g")
    nodes = np.array([1, 2, 4, 16])
    for size in (64.0, 2.0**16, 2.0**20, 2.0**26, 2.0**31):
        grid = collective_time("all_reduce", size, cluster, 8 * nodes, nodes)
        alone = [collective_time("all_reduce", size, cluster, 8 * n, n) for n in nodes.tolist()]
        assert grid.time_s.tolist() == [each.time_s for each in alone]
        assert grid.algorithm.tolist() == [each.algorithm for each in alone]
        assert grid.time_s[0] < grid.time_s[1:].min(), "one node is faster than several"


def test_the_parts_add_up_and_the_alternatives_are_in_order() -> None:
    result = collective_time("all_reduce", 512 * MIB, "h100_sxm", 8)
    times = [time for _, time in result.alternatives()]
    assert times == sorted(times)
    assert sum(result.parts().values()) == pytest.approx(result.time_s, rel=1e-3)
    assert result.algbw_bytes_per_s == pytest.approx(512 * MIB / result.time_s)
    assert result.busbw_bytes_per_s == pytest.approx(1.75 * result.algbw_bytes_per_s)
    assert result.bound_s == pytest.approx(512 * MIB / 450e9), "the switch needs the buffer once"
    assert collective_time("all_gather", 512 * MIB, "h100_sxm", 8).bound_s == pytest.approx(
        7 / 8 * 512 * MIB / 450e9
    )
    assert result.link_share == pytest.approx(result.busbw_bytes_per_s / 450e9)


def test_what_runs_on_eight_h100() -> None:
    """As NCCL does: LL in a ring for small messages, in-switch reduction for large ones."""
    small = collective_time("all_reduce", 4096, "h100_sxm", 8)
    large = collective_time("all_reduce", 2**30, "h100_sxm", 8)
    assert (small.algorithm, small.protocol) == ("ring", "LL")
    assert (large.algorithm, large.protocol) == ("nvls", "Simple")
    assert large.link_share > 1, "busbw is not a wire rate where switches reduce"
    pair = collective_time("all_reduce", 2**30, "h100_sxm", 2)
    assert (pair.algorithm, pair.protocol) == ("ring", "Simple")


def test_a_rank_by_itself_sends_nothing() -> None:
    alone = collective_time("all_reduce", MIB, "h100_sxm", 1)
    assert alone.time_s == 0
    assert alone.algbw_bytes_per_s == 0


def test_a_rack_is_one_domain_and_two_racks_need_a_network() -> None:
    rack = collective_time("all_reduce", 2**30, "gb200_nvl72", 72)
    assert rack.group.nodes == 18
    assert rack.group.domains == 1
    assert rack.algorithm == "nvls"
    with pytest.raises(BadValueError, match="name a network"):
        collective_time("all_reduce", 2**30, "gb200_nvl72", 144)
    cluster = Cluster.named("gb200_nvl72", "ib_1x400g_per_gpu")
    racks = collective_time("all_reduce", 2**30, cluster, 144)
    assert racks.group.domains == 2
    assert racks.algorithm == "nvls_tree"
    assert racks.time_s > rack.time_s


def test_a_network_can_be_named_with_the_question() -> None:
    asked_once = collective_time("all_reduce", MIB, "h100_sxm", 16, network="ib_8x400g")
    joined = Cluster.named("h100_sxm", "ib_8x400g")
    assert asked_once.time_s == collective_time("all_reduce", MIB, joined, 16).time_s
    apart = Cluster.named("h100_sxm")
    network = catalog.network_named("ib_8x400g")
    for name in ("ib_8x400g", network):
        assert collective_time("all_reduce", MIB, apart, 16, network=name).time_s == (
            asked_once.time_s
        )


def test_uneven_groups_are_paced_by_the_fullest_domain_and_the_fewest_ports() -> None:
    assert collective_time("all_reduce", MIB, "h100_sxm", 7).time_s > 0
    assert collective_time("all_reduce", MIB, "gb200_nvl72", 5).group.nodes == 2
    cluster = Cluster.named("h100_sxm", "ib_8x400g")
    group = Group.on(cluster, 13, 2)
    assert (group.ranks_per_domain, group.fewest_per_domain) == (7, 6)
    assert group.domain_port_bytes_per_s == 6 * 50e9
    rack = Group.on(Cluster.named("gb200_nvl72", "ib_1x400g_per_gpu"), 78 * 4)
    assert (rack.nodes, rack.domains) == (78, 5)
    assert (rack.ranks_per_domain, rack.fewest_per_domain) == (64, 60)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
def test_uneven_groups_lie_near_even_ones(collective: str) -> None:
    """Paced by the fewest ports, a group is slower than its own size would be, never by much."""
    cluster = Cluster.named("h100_sxm", "ib_8x400g")
    even, odd, more = (
        collective_time(collective, 2**30, cluster, gpus, 2).time_s for gpus in (12, 13, 14)
    )
    assert 0.99 * min(even, more) < odd < 1.25 * max(even, more)
    counts = np.array([12, 13, 14])
    together = collective_time(collective, 2**30, cluster, counts, 2).time_s
    assert together.tolist() == [even, odd, more]


def test_links_that_do_not_lead_to_the_group_do_not_help() -> None:
    """Two of eight MI300X share one of seven links; behind a switch a pair has them all."""
    pair, full = (collective_time("all_gather", 2**30, "mi300x", n, library="rccl") for n in (2, 8))
    assert pair.busbw_bytes_per_s < 1.1 * full.busbw_bytes_per_s / 7
    five, eight = (collective_time("all_reduce", 2**30, "v100_cube", n) for n in (5, 8))
    assert five.time_s > 2 * eight.time_s


def test_an_engine_runs_its_kernels_up_to_a_limit_and_then_nccl() -> None:
    def runs(size: float, library: str = "vllm") -> str:
        return str(collective_time("all_reduce", size, "h100_sxm", 8, library=library).algorithm)

    assert runs(64 * 2**10) == "one_shot"
    assert runs(MIB) == "multicast"
    assert runs(MIB, "vllm==0.14.0") == "two_shot"
    assert runs(256 * MIB) == "nvls"
    same = collective_time("all_reduce", 256 * MIB, "h100_sxm", 8)
    engine = collective_time("all_reduce", 256 * MIB, "h100_sxm", 8, library="vllm")
    assert engine.time_s == pytest.approx(same.time_s)
    gather = collective_time("all_gather", MIB, "h100_sxm", 8, library="vllm")
    assert gather.time_s == collective_time("all_gather", MIB, "h100_sxm", 8).time_s


def test_launching_eagerly_costs_at_least_the_launch() -> None:
    graph = collective_time("all_reduce", 4096, "h100_sxm", 8, library="vllm")
    eager = collective_time("all_reduce", 4096, "h100_sxm", 8, library="vllm", mode="eager")
    assert eager.time_s > 2 * graph.time_s
    assert eager.parts()["waiting for the launch"] > 0
    with pytest.raises(BadValueError, match="graph for nccl"):
        collective_time("all_reduce", 4096, "h100_sxm", 8, mode="eager")


def test_kernels_need_one_node_and_links_between_all() -> None:
    def runs(system: str, gpus: int, library: str) -> str:
        found = collective_time("all_reduce", 4096, system, gpus, library=library)
        return str(found.protocol)

    assert runs("gb300_nvl72", 4, "vllm") == "direct"
    assert runs("gb300_nvl72", 8, "vllm") == "LL", "two trays"
    assert runs("v100_cube", 8, "vllm") == "LL", "some pairs have no link"
    assert runs("l40s", 2, "vllm") == "direct"
    assert runs("l40s", 4, "vllm") == "LL"


def test_trees_over_pcie_are_as_crowded_as_rings() -> None:
    cluster = Cluster.named("l40s", "ib_8x400g")
    found = collective_time("all_reduce", np.geomspace(2**20, 2**29, 40), cluster, 64)
    tree, ring = (
        np.broadcast_to(total(found.paths[path, "Simple"]), 40) for path in ("tree", "ring")
    )
    assert (tree > 0.3 * ring).all()


def test_constants_of_another_system_or_version_are_noted() -> None:
    found = collective_time("all_reduce", MIB, machine_of("b200_sxm").with_own(NCCL), 8)
    assert "constants of h100_sxm are used for b200_sxm" in found.notes
    old = collective_time("all_reduce", MIB, "a100_sxm", 8, library="vllm")
    assert "was not measured on a100_sxm" in " ".join(old.notes)
    wide = collective_time("all_to_all", MIB, Cluster.named("h100_sxm", "ib_8x400g"), 512)
    assert "no all_to_all measurements for network ib_8x400g; extrapolated" in wide.notes
    assert "network ib_8x400g measured only on 16 GPUs; extrapolated" in wide.notes


def test_a_system_that_was_not_measured_inherits_and_says_so() -> None:
    h200 = collective_time("all_reduce", MIB, "h200_sxm", 8)
    h100 = collective_time("all_reduce", MIB, "h100_sxm", 8)
    assert h200.time_s == pytest.approx(h100.time_s, rel=0.1)
    assert "inherited from h100_sxm" in " ".join(h200.notes)
    assert not h100.notes
    a800, a100 = (
        stated(CATALOG_LIBRARIES.library(Cluster.named(name), "nccl").constants)
        for name in ("a800_sxm", "a100_sxm")
    )
    share = a800["simple_bytes_per_s"] / a100["simple_bytes_per_s"]
    assert share == pytest.approx(200 / 300), "a share of the nominal rate"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"size_bytes": 2**45}, "measured only from"),
        ({"collective": "broadcast"}, "no broadcast measurements"),
        ({"cluster": "a100_sxm", "collective": "reduce"}, "no reduce measurements"),
    ],
)
def test_a_prediction_beyond_the_calibration_says_so(arguments: dict[str, Any], said: str) -> None:
    assert said in " ".join(collective_time(**(USUAL | arguments)).notes)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"collective": "gossip"}, UnknownNameError, "all_gather, all_reduce, all_to_all"),
        ({"mode": "lazy"}, UnknownNameError, "eager, graph"),
        ({"size_bytes": 0}, BadValueError, "size_bytes"),
        ({"size_bytes": -1}, BadValueError, "size_bytes"),
        ({"size_bytes": float("nan")}, BadValueError, "size_bytes"),
        ({"size_bytes": float("inf")}, BadValueError, "size_bytes"),
        ({"size_bytes": "1MiB"}, BadTypeError, "size_bytes"),
        ({"size_bytes": np.array([1.0, 0.0])}, BadValueError, "got 0.0"),
        ({"size_bytes": np.array(["a"])}, BadTypeError, "size_bytes"),
        ({"gpus": 0}, BadValueError, "gpus"),
        ({"gpus": 2.5}, BadTypeError, "gpus"),
        ({"gpus": np.array([2, 0])}, BadValueError, "gpus"),
        ({"gpus": np.array([2.5])}, BadTypeError, "gpus"),
        ({"gpus": 9, "nodes": 1}, BadValueError, "at most 8 on 1 node of h100_sxm"),
        ({"gpus": 2, "nodes": 4}, BadValueError, "one for each node"),
        ({"gpus": 16}, BadValueError, "name a network"),
        ({"cluster": "h1000"}, UnknownNameError, "cluster"),
        (
            {"library": "rccl"},
            UnknownNameError,
            "nccl, nccl-tuner, sglang, trtllm, vllm, xla (measured",
        ),
        ({"library": "gloo"}, UnknownNameError, "to fit one to your own measurements"),
        ({"library": 3}, BadTypeError, "library"),
        ({"library": "nccl-tuner", "collective": "all_to_all"}, UnknownNameError, "all_reduce"),
        (
            {"cluster": "gaudi3", "library": "nccl"},
            UnknownNameError,
            "known: generic",
        ),
        ({"cluster": "mi300x", "library": "nccl-tuner"}, UnknownNameError, "known: generic, rccl"),
        ({"library": "vllm==banana"}, BadValueError, "sglang==0.5.10"),
        ({"library": "vllm=="}, BadValueError, "sglang==0.5.10"),
        ({"library": "nccl==2.29"}, BadValueError, "may have a version"),
        ({"gpus": 8, "nodes": 8}, BadValueError, "nodes must be within one domain"),
        ({"gpus": 10**25}, BadValueError, "at most 1000000000"),
        ({"gpus": np.array([8, 2**40])}, BadValueError, "from 1 to 1000000000"),
        ({"size_bytes": 1e308}, BadValueError, "at most 4 EiB"),
        ({"size_bytes": np.array([])}, BadValueError, "at least one cell"),
        ({"size_bytes": np.ones(3), "gpus": np.array([2, 4])}, BadValueError, "alike"),
        ({"cluster": 5}, BadTypeError, "a Cluster, the name of one or a file"),
        ({"library": "nccl-tuner", "mode": "eager"}, BadValueError, "another, for eager"),
    ],
)
def test_bad_questions_get_one_clear_line(
    arguments: dict[str, Any], error: type[ShardcostError], said: str
) -> None:
    with pytest.raises(error) as caught:
        collective_time(**(USUAL | arguments))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_measured_set_of_constants_is_small_physical_and_sourced() -> None:
    assert len(catalog_calibrations()) > 40
    for each in catalog_calibrations():
        constants = stated(each.constants)
        assert len(constants) <= 24
        if each.fit.rows == 0:
            assert each.fit.source.startswith("assumed")
        else:
            assert each.fit.rows >= 4
            assert each.fit.source.startswith("fitted by shardcost to measured rows of ")
        if isinstance(each.constants, NetworkConstants):
            assert catalog.network_named(each.system).name == each.system
            assert max(constants["efficiency"], constants["spine"]) <= 1
            continue
        nominal = Cluster.named(each.system).tiers[0].bytes_per_s
        wires = ("ll", "ll128", "simple", "p2p", "nvls", "one_shot", "two_shot", "multicast")
        for wire in wires:
            assert constants.get(f"{wire}_bytes_per_s", 0) <= nominal, (each.system, wire)


def test_an_engine_has_few_constants_with_its_limits_counted() -> None:
    """Sizes at which SGLang and TensorRT-LLM switch are read off measured curves, so they count."""
    for engine in ("sglang", "trtllm"):
        most = max(
            len(stated(each.constants)) for each in catalog_calibrations() if each.library == engine
        )
        for generation in catalog.tuner_table(engine)["generation"]:
            for kernels in generation["below_mib"].values():
                distinct = {tuple(limits) for limits in kernels.values()}
                assert most + sum(len(limits) for limits in distinct) <= 24


def test_how_much_the_runner_up_counts() -> None:
    """As the documentation says: 4 % if NCCL thinks it 5 % slower, 3 % left at a stated limit."""
    weights = tuner_weights({("a", ""): 1.0, ("b", ""): 1.05}, {("a", ""): {}, ("b", ""): {}})
    assert weights["b", ""] == pytest.approx(0.044, abs=0.001)
    at_limit = collective_time("all_reduce", 2.0**18, "h100_sxm", 8, library="vllm")
    assert at_limit.weights["one_shot", "direct"] == pytest.approx(0.033, abs=0.001)


def test_every_cluster_has_the_library_of_its_vendor_or_the_generic_one() -> None:
    without = []
    for name in catalog.names("clusters"):
        cluster = Cluster.named(name)
        assert default_library(cluster) in CATALOG_LIBRARIES.names(cluster)
        if default_library(cluster) == "generic":
            without.append(name)
    assert {"gaudi2", "gaudi3"} <= set(without)
    assert "h100_sxm" not in without


def test_a_network_that_was_not_measured_inherits_from_its_kind() -> None:
    found = CATALOG_LIBRARIES.network(catalog.network_named("roce_8x200g"))
    assert set(found.inherited_from) == {"roce_16x100g", "roce_8x400g"}
    cluster = Cluster.named("a100_sxm", "roce_8x200g")
    notes = collective_time("all_reduce", MIB, cluster, 16).notes
    assert "no measurements for network roce_8x200g" in " ".join(notes)


def test_calibration_files_of_a_wrong_form_are_refused() -> None:
    good = next(iter(catalog.contents("collectives")))[1]
    assert list(from_file_content(good, "f"))
    entry = good["library"][0]
    worse = entry["constants"] | {"fill": -1}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"library": [entry]}, "system is missing"),
        ({"system": "x", "library": [{"name": "nccl"}]}, "kind is missing"),
        ({"system": "x", "library": [entry | {"extra": 1}]}, "extra"),
        ({"system": "x", "library": [entry | {"constants": worse}]}, "fill"),
        ({"system": "x", "library": [entry | {"chooser": "dice"}]}, "chooser"),
    ]
    for content, said in bad:
        with pytest.raises(ShardcostError, match=said):
            list(from_file_content(content, "f"))


def test_a_forced_algorithm_leaves_the_protocol_to_the_tuner() -> None:
    sizes = np.geomspace(8, 2**33, 40)
    tree = collective_time(
        "all_reduce", sizes, "h100_sxm", 32, network="ib_8x400g", algorithm="tree"
    )
    assert set(tree.algorithm) == {"tree"}
    assert len(set(tree.protocol)) > 1
    estimates = {path: t for path, t in tree.estimates.items() if path[0] == "tree"}
    lowest = np.argmin([estimates[path] for path in estimates], axis=0)
    assert [list(estimates)[each][1] for each in lowest] == list(tree.protocol)
    tuner = collective_time(
        "all_reduce",
        sizes,
        "h100_sxm",
        32,
        network="ib_8x400g",
        algorithm="tree",
        library="nccl-tuner",
    )
    assert np.array_equal(tuner.time_s, np.min(list(estimates.values()), axis=0))


def test_what_is_forced_must_run_in_every_cell() -> None:
    gpus = np.array([8, 16])
    with pytest.raises(
        BadValueError, match="algorithm must be ring for all_reduce of nccl on each"
    ):
        collective_time("all_reduce", 1e6, "h100_sxm", gpus, network="ib_8x400g", algorithm="tree")
    ring = collective_time(
        "all_reduce", 1e6, "h100_sxm", gpus, network="ib_8x400g", protocol="LL", algorithm="ring"
    )
    for cell, count in enumerate(gpus.tolist()):
        alone = collective_time(
            "all_reduce",
            1e6,
            "h100_sxm",
            count,
            network="ib_8x400g",
            algorithm="ring",
            protocol="LL",
        )
        assert ring.time_s[cell] == alone.time_s


RACK = "gb300_nvl72"


def rack_time(collective: str, size_bytes: float, gpus: int, **options: Any) -> float:
    return float(collective_time(collective, size_bytes, RACK, gpus, **options).time_s)


def test_a_ring_inside_a_domain_takes_the_longer_of_hops_and_stream_at_each_step() -> None:
    path = {"algorithm": "ring", "protocol": "LL"}
    small, middle, large = (rack_time("all_gather", size, 64, **path) for size in (1e5, 4e6, 4e9))
    assert middle < 1.1 * small  # the stream of a step hides behind its hop
    twice = rack_time("all_gather", 8e9, 64, **path)
    assert twice == pytest.approx(2 * large, rel=0.02)  # and the other way round


def test_an_all_to_all_fills_its_channels_or_does_not() -> None:
    """Where parts of blocks fill all channels alike, the time does not depend on the GPUs."""
    size = 256 * MIB
    full = [rack_time("all_to_all", size, gpus) for gpus in (4, 8, 16, 32)]
    assert max(full) < 1.15 * min(full)
    for gpus, channels in (
        (18, 18),
        (36, 18),
        (72, 24),
    ):  # blocks over those of the busiest channel
        slower = rack_time("all_to_all", size, gpus) / full[-1]
        assert 0.75 * 32 / channels < slower < 1.1 * 32 / channels


def test_a_send_gets_more_channels_as_it_grows() -> None:
    one = [rack_time("send_recv", 2.0**power, 64) for power in range(24, 30)]
    assert max(one) < 1.25 * min(one)  # 16 to 512 MiB on 1 to 32 channels
    assert rack_time("send_recv", 2.0**31, 64) > 1.9 * rack_time("send_recv", 2.0**30, 64)
    least, more = (rack_time("send_recv", mib * MIB, 64) for mib in (16, 18))
    assert more < 0.7 * least


def test_small_sends_of_a_rack_run_under_ll_up_to_their_limit() -> None:
    below, above = (collective_time("all_to_all", 64 * kib * 1024, RACK, 64) for kib in (512, 576))
    assert (below.protocol, above.protocol) == ("LL", "Simple")
    assert above.time_s < below.time_s
    node = collective_time("all_to_all", 8 * 512 * 1024, "h100_sxm", 8)
    assert node.time_s == min(float(total(parts)) for parts in node.paths.values())


def test_more_heads_start_more_slowly_up_to_their_most() -> None:
    times = [rack_time("all_reduce", 2 * MIB, gpus, algorithm="nvls") for gpus in (8, 16, 32, 64)]
    assert times[1] > 1.05 * times[0]
    assert times[2] > 1.05 * times[1]
    assert times[3] == pytest.approx(times[2])


def test_in_switch_reduction_takes_larger_chunks_after_so_many_rounds() -> None:
    """NCCL's rule: 64 rounds of 128 KiB per channel and head, of which Hopper has half as many."""
    for system, gpus, limit in (("h100_sxm", 8, 1024), (RACK, 8, 2048), (RACK, 16, 4096)):
        sizes = np.array([limit / 4, limit / 2, limit, 2 * limit]) * MIB
        paths = collective_time("all_reduce", sizes, system, gpus).paths["nvls", "Simple"]
        rates = 1 / np.diff(total(paths)) * np.diff(sizes)
        assert rates[2] > 1.03 * rates[0]
        assert rates[1] > rates[2]  # it catches up at the switch


def test_in_switch_reduction_is_paced_by_copies_whatever_the_number_of_ranks() -> None:
    """A rank's link carries (1 + 1/n) of the buffer, but what its kernels copy is the buffer."""
    times = [rack_time("all_reduce", 2.0**35, gpus, algorithm="nvls") for gpus in (8, 16, 32)]
    assert max(times) < 1.05 * min(times)
    for gpus in (8, 16, 32):
        assert collective_time("all_reduce", 2.0**35, RACK, gpus).time_s >= (
            2.0**35 * (1 + 1 / gpus) / Cluster.named(RACK).tiers[-1].bytes_per_s
        )


def test_racks_gather_in_the_switch_where_every_gpu_can_head_its_block() -> None:
    paths = {
        gpus: {each.algorithm for each in (collective_time("all_gather", 32 * MIB, RACK, gpus),)}
        for gpus in (8, 16, 32, 36, 72)
    }
    assert paths == {8: {"ring"}, 16: {"nvls"}, 32: {"nvls"}, 36: {"ring"}, 72: {"ring"}}
    with pytest.raises(BadValueError, match="algorithm must be ring"):
        collective_time("all_gather", 32 * MIB, RACK, 36, algorithm="nvls")
    with pytest.raises(BadValueError, match="algorithm must be ring"):
        collective_time("all_gather", 32 * MIB, "h100_sxm", 8, algorithm="nvls")


@pytest.mark.parametrize("system", ["h100_sxm", "b200_sxm", "l40s"])
def test_xla_launches_the_paths_of_nccl(system: str) -> None:
    """On a system nobody measured it on: by the constants of another, over the system's NCCL."""
    for collective in ("all_gather", "all_reduce", "send_recv"):
        own = collective_time(collective, 2**30, system, 4, library="xla")
        below = collective_time(collective, 2**30, system, 4)
        assert "nvls" not in own.algorithm
        launch = own.parts()["launch"]
        assert launch == pytest.approx(
            (2 if collective == "send_recv" else 4) * own.calibrations[0].constants.launch_s  # type: ignore[union-attr]
        )
        path = (own.algorithm, own.protocol)
        added = float(total(own.paths[path])) - float(total(below.paths[path]))
        passes = own.parts().get("buffers of the reduction", 0.0)
        assert added == pytest.approx(launch + passes)
        assert (passes > 0) == (collective == "all_reduce")
        noted = any("xla on" in note and "inherited from h100_sxm" in note for note in own.notes)
        assert noted == (system != "h100_sxm")


def test_a_ring_over_many_ranks_of_a_node_pays_the_turnaround_of_its_crossing() -> None:
    """Steps x turnaround is a floor under LL128 and Simple, if a node has more ranks than one."""
    machine = machine_of(Cluster.named("h100_sxm", "efa_8x400g"))
    turnaround = machine.network.constants.turnaround_s  # type: ignore[union-attr]
    for gpus in (64, 512):
        shared = collective_time("all_gather", 2**27, machine, gpus)
        for protocol in ("LL128", "Simple"):
            hops = shared.paths["ring", protocol]["hops"]
            assert hops >= (gpus - 1) * turnaround
    alone = collective_time("all_gather", 2**27, machine, 8, nodes=8)
    crossings = 7 * machine.network.constants.latency_s  # type: ignore[union-attr]
    assert alone.paths["ring", "Simple"]["hops"] == pytest.approx(crossings)


def test_a_tree_is_paced_by_its_busiest_node() -> None:
    """One, one and a half, two, two messages of the buffer for 2, 3, 4 and 5 nodes."""
    cluster = Cluster.named(
        "h100_quad", replace(catalog.network_named("ib_4x100g"), leaf_domains=9)
    )
    wire = [
        collective_time("all_reduce", 2**30, cluster, 4 * nodes).paths["tree", "LL128"]["wire"]
        for nodes in (2, 3, 4, 5)
    ]
    assert [each / wire[0] for each in wire] == pytest.approx([1, 1.5, 2, 2])


def test_rates_fall_beyond_the_leaf_switches_and_with_oversubscription() -> None:
    network = catalog.network_named("ib_8x400g")
    machine = machine_of(Cluster.named("h100_sxm", network))
    near, far = (collective_time("all_gather", 2**34, machine, 8 * n) for n in (4, 8))
    assert near.busbw_bytes_per_s > 1.05 * far.busbw_bytes_per_s
    thin = Cluster.named("h100_sxm", replace(network, oversubscription=2))
    assert Group.on(thin, 64).port_bytes_per_s == Group.on(thin, 32).port_bytes_per_s / 2
    slower = collective_time("all_gather", 2**34, thin, 64)
    assert slower.time_s > 1.8 * far.time_s
    assert slower.time_s >= slower.bound_s > 1.9 * far.bound_s


def sockets(**changed: Any) -> Cluster:
    """Return two H100 servers and more on TCP sockets."""
    return Cluster.named("h100_sxm", replace(catalog.network_named("tcp"), **changed))


def test_over_a_network_only_its_protocols_and_algorithms_run() -> None:
    """NCCL turns LL128 off where a GPU reaches its port through the host; inside it stays."""
    sizes = 2.0 ** np.arange(3, 34)
    found = collective_time("all_reduce", sizes, sockets(), 16)
    assert set(found.protocol) == {"LL", "Simple"}
    assert "LL128" in collective_time("all_reduce", sizes, sockets(protocols=()), 16).protocol
    ring = collective_time("all_reduce", sizes, sockets(algorithms=("ring",)), 16)
    assert set(ring.algorithm) == {"ring"}
    inside = [collective_time("all_gather", sizes, on, 8) for on in ("h100_sxm", sockets())]
    assert (inside[0].time_s == inside[1].time_s).all()


def test_a_grid_of_groups_has_the_protocols_of_each() -> None:
    counts = np.array([8, 16])
    grid = collective_time("all_gather", 2.0**24, sockets(protocols=("Simple",)), counts)
    assert grid.protocol.tolist() == ["LL128", "Simple"]
    single = [
        collective_time("all_gather", 2.0**24, sockets(protocols=("Simple",)), int(count)).time_s
        for count in counts
    ]
    assert grid.time_s.tolist() == single


def test_a_protocol_that_a_network_lacks_can_be_forced() -> None:
    forced = collective_time("all_reduce", 2**21, sockets(), 16, algorithm="tree", protocol="LL128")
    assert (forced.algorithm, forced.protocol) == ("tree", "LL128")
    left = collective_time("all_reduce", 2**21, sockets(), 16, algorithm="ring")
    assert left.protocol in {"LL", "Simple"}


def test_networks_name_protocols_that_there_are() -> None:
    with pytest.raises(UnknownNameError, match="protocols"):
        sockets(protocols=("LL64",))


def test_ll_gets_a_rate_through_each_port_at_most_half_of_it() -> None:
    fitted = CATALOG_LIBRARIES.network(catalog.network_named("ib_8x400g"))
    assert isinstance(fitted.constants, NetworkConstants)
    times = []
    for rate in (2e9, 4e9, 1e12, 2e12):
        own = replace(fitted, constants=replace(fitted.constants, ll_port_bytes_per_s=rate))
        machine = machine_of(Cluster.named("h100_sxm", "ib_8x400g")).with_own(own)
        path = collective_time("all_reduce", 2**26, machine, 16).paths["tree", "LL"]
        times.append(path["wire"])
    assert times[0] == pytest.approx(2**26 / (8 * 2e9))
    assert times[1] == pytest.approx(times[0] / 2)
    assert times[2] == times[3] >= 2**26 / (8 * 25e9)


def test_networks_inherit_from_transports_like_theirs() -> None:
    """Sockets of the kernel from each other, cards' own transports from each other."""
    without = CATALOG_LIBRARIES.without("efa_8x400g", "efa_1x100g", "tcp")
    assert without.network(catalog.network_named("efa_8x400g")).inherited_from == ("tcpxo_8x200g",)
    sockets_of = without.network(catalog.network_named("tcp"))
    assert "tcpx_4x200g" in sockets_of.inherited_from

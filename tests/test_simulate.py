"""The simulation: fair rates, when transfers start, and agreement with closed forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardcost.collectives.exact.algorithms import ALGORITHMS, buffer_bytes, schedule
from shardcost.collectives.exact.closed_forms import Wiring, time_s, two_tier_time_s
from shardcost.collectives.exact.schedule import Schedule, Step, traffic
from shardcost.collectives.exact.simulate import FairShare, Simulation, simulate
from shardcost.collectives.exact.topology import (
    Topology,
    cube_mesh,
    full_mesh,
    nvl72,
    nvswitch,
    pcie_tree,
    rail_fat_tree,
    torus,
)
from shardcost.errors import BadTypeError, BadValueError, ShardcostError

GB = 1e9
ALPHA = 1e-6
MIB = 1 << 20

algorithms = st.sampled_from(list(ALGORITHMS))


def pieces(algorithm: tuple[str, str], chunks: int) -> int:
    """Return the pieces of a pipeline, 1 for an algorithm that has none."""
    return chunks if ALGORITHMS[algorithm].takes == "chunks" else 1


def even_size(found: Schedule, per_chunk: int = 4096) -> int:
    """Return a buffer that all chunks cut evenly, as closed forms have it."""
    return found.chunks * per_chunk


def closed_form(found: Schedule, size_bytes: int, wiring: Wiring, **options: Any) -> float:
    """Return the time of a schedule at ALPHA and 100 GB/s; of an all-to-all a rank has 1/n."""
    own = size_bytes / buffer_bytes(found.collective, found.ranks, 1)
    form = (found.collective, found.algorithm, found.ranks, own, ALPHA, 100 * GB)
    return float(time_s(*form, wiring=wiring, **options))


def one_step(ranks: int, chunks: int, moves: Sequence[tuple[int, int, int]]) -> Schedule:
    """Return a schedule of one step, its transfers as (source, target, chunk)."""
    source, target, chunk = zip(*moves, strict=True)
    return Schedule(
        "test", "one step", ranks, chunks, (Step.of(source, target, chunk, reduces=False),)
    )


# --- Rates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("routes", "links", "flows", "expected"),
    [
        pytest.param([[0], [0]], [10], [1, 1], [5, 5], id="two share a link"),
        pytest.param([[0], [0]], [10], [3, 1], [2.5, 2.5], id="a route with three flows"),
        pytest.param([[0], [0]], [10], [1, 0], [10, 1], id="an idle route takes nothing"),
        # The chain of Bertsekas and Gallager: one long flow, a short one on each of its links.
        pytest.param([[0, 1], [0], [1]], [1, 2], [1, 1, 1], [0.5, 0.5, 1.5], id="a long flow"),
        # 3 meet on link 0, so 2 each; link 1 has 10 left for two, of which one is held to 2.
        pytest.param(
            [[0], [0], [0, 1], [1]], [6, 10], [1, 1, 1, 1], [2, 2, 2, 8], id="what others leave"
        ),
        # Link 0 holds flow 0 to 1; so flow 1 has 3 of link 1; so flow 2 has 6 of link 2.
        pytest.param(
            [[0, 1], [1, 2], [2], [0]], [2, 4, 9], [1] * 4, [1, 3, 6, 1], id="one after another"
        ),
    ],
)
def test_rates_worked_out_by_hand(
    routes: list[list[int]], links: list[float], flows: list[int], expected: list[float]
) -> None:
    assert FairShare(routes, links).rates(np.array(flows)).tolist() == pytest.approx(expected)


@given(st.data())
def test_every_flow_has_a_bottleneck(data: st.DataObject) -> None:
    """Rates are max-min fair if and only if every flow has a bottleneck link.

    That is a full link on which no flow gets more than it (Bertsekas and Gallager, section 6.5.2).
    """
    links = data.draw(st.lists(st.floats(0.1, 1000), min_size=1, max_size=6))
    route = st.lists(st.integers(0, len(links) - 1), min_size=1, max_size=4, unique=True)
    routes = data.draw(st.lists(route, min_size=1, max_size=8))
    flows = np.array([data.draw(st.integers(0, 3)) for _ in routes])
    rates = FairShare(routes, links).rates(flows)
    busy = [each for each in zip(flows, rates, routes, strict=True) if each[0]]
    load = [sum(n * rate for n, rate, on in busy if link in on) for link in range(len(links))]
    assert (np.array(load) <= np.array(links) * (1 + 1e-9)).all()
    for _, rate, on in busy:
        assert any(
            load[link] >= links[link] * (1 - 1e-9)
            and rate >= max(r for _, r, other in busy if link in other) * (1 - 1e-9)
            for link in on
        )


# --- When transfers start and end ----------------------------------------------------------------


def test_three_flows_that_meet_leave_the_fourth_what_they_cannot_use() -> None:
    """Three meet at device 2 (20 B/s each); the fourth gets the 40 that its source has left."""
    moves = [(0, 2, 0), (1, 2, 1), (3, 2, 2), (0, 4, 3)]
    found = simulate(one_step(5, 4, moves), nvswitch(5, 60.0), 240)
    assert found.finish_s.tolist() == pytest.approx([3, 3, 3, 1.5])


def test_rates_change_when_flows_begin_and_end() -> None:
    """From 3 to 2 flow two chunks at 30 B/s each. At 1 s a third joins them, at 20 each.

    So the two end at 2.5 s, and the third has 60 B/s for the 30 bytes that it still lacks.
    """
    steps = (
        Step.of([0, 3, 3], [1, 2, 2], [0, 1, 2], reduces=False),
        Step.of([1], [2], [0], reduces=False),
    )
    found = simulate(Schedule("test", "two steps", 4, 3, steps), nvswitch(4, 60.0), 180)
    assert found.start_s.tolist() == pytest.approx([0, 0, 0, 1])
    assert found.finish_s.tolist() == pytest.approx([1, 2.5, 2.5, 3])


def test_a_pipeline_forms_by_itself() -> None:
    """In a chain of 3, piece p leaves device 0 at p and device 1 one piece later."""
    chain = schedule("broadcast", "chain", 3, chunks=4)
    found = simulate(chain, nvswitch(3, 10.0, latency_s=1.0), 40)
    _, source, _, chunk = columns(chain)
    order = np.lexsort((chunk, source))
    assert found.start_s[order].tolist() == pytest.approx([0, 2, 4, 6, 2, 4, 6, 8])
    assert found.finish_s[order].tolist() == pytest.approx([2, 4, 6, 8, 4, 6, 8, 10])


def test_nothing_is_overwritten_before_it_is_sent_on() -> None:
    """Step 2 brings device 1 a new chunk 0 that waits until the old one is on its way to 2."""
    steps = (
        Step.of([1, 1, 1], [2, 2, 2], [0, 1, 2], reduces=False),
        Step.of([0], [1], [0], reduces=False),
    )
    found = simulate(Schedule("test", "overwrite", 4, 3, steps), nvswitch(4, 10.0), 30)
    assert found.start_s.tolist() == pytest.approx([0, 0, 0, 3])


def test_a_transfer_without_bytes_takes_the_latency() -> None:
    found = simulate(one_step(2, 4, [(0, 1, 0)]), nvswitch(2, GB, latency_s=ALPHA), 1)
    assert found.time_s == pytest.approx(ALPHA)


def test_one_rank_alone_takes_no_time() -> None:
    found = simulate(schedule("all_reduce", "ring", 1), nvswitch(1, GB), MIB)
    assert (found.time_s, len(found.start_s), found.busiest.utilisation) == (0, 0, 0)


def columns(found: Schedule) -> tuple[NDArray[np.int64], ...]:
    """Return the step, source, target and chunk of every transfer."""
    moves = [(number, *move[:3]) for number, step in enumerate(found.steps) for move in step]
    return tuple(np.array(moves).T)


@settings(max_examples=40)
@given(algorithms, st.integers(2, 6), st.permutations(range(8)), st.booleans())
def test_nothing_is_sent_before_it_has_arrived(
    algorithm: tuple[str, str], ranks: int, placement: list[int], barrier: bool
) -> None:
    found = schedule(*algorithm, ranks, chunks=pieces(algorithm, 2))
    topology = nvswitch(8, 100 * GB, latency_s=ALPHA) if found.switches else cube_mesh(25 * GB)
    run = simulate(found, topology, MIB + 1, placement[:ranks], barrier=barrier)
    assert (run.finish_s >= run.start_s).all()
    step, source, target, chunk = columns(found)
    for i in range(len(step)):
        brings = (step < step[i]) & (target == source[i]) & (chunk == chunk[i])
        assert run.start_s[i] >= run.finish_s[brings].max(initial=0.0)


@pytest.mark.parametrize("ranks", [6, 8])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=" ".join)
def test_on_equal_links_nothing_waits_to_overwrite(algorithm: tuple[str, str], ranks: int) -> None:
    """But for recursive doubling with ranks in excess, what has arrived and is free starts."""
    found = schedule(*algorithm, ranks, chunks=pieces(algorithm, 3))
    run = simulate(found, nvswitch(ranks, 100 * GB, latency_s=ALPHA), even_size(found))
    step, source, target, chunk = columns(found)
    waited = 0
    for i in range(len(step)):
        brings = (target == source[i]) & (chunk == chunk[i])
        lane = (source == source[i]) & (target == target[i])
        ready = run.finish_s[(step < step[i]) & (brings | lane)].max(initial=0.0)
        waited += run.start_s[i] > ready * (1 + 1e-9)
    assert bool(waited) == (algorithm == ("all_reduce", "recursive_doubling") and ranks == 6)


# --- Agreement with closed forms -----------------------------------------------------------------


@settings(max_examples=150)
@given(algorithms, st.integers(2, 12), st.integers(1, 5))
def test_with_a_barrier_every_algorithm_takes_what_its_closed_form_says(
    algorithm: tuple[str, str], ranks: int, chunks: int
) -> None:
    chunks = pieces(algorithm, chunks)
    found = schedule(*algorithm, ranks, chunks=chunks)
    size = even_size(found)
    behind_a_switch = simulate(
        found, nvswitch(ranks, 100 * GB, latency_s=ALPHA), size, barrier=True
    )
    expected = closed_form(found, size, "switch", chunks=chunks)
    assert behind_a_switch.time_s == pytest.approx(expected, rel=1e-9)
    if not found.switches:
        mesh = simulate(found, full_mesh(ranks, 100 * GB, latency_s=ALPHA), size, barrier=True)
        expected = closed_form(found, size, "mesh", chunks=chunks)
        assert mesh.time_s == pytest.approx(expected, rel=1e-9)


EVEN = [
    each
    for each in ALGORITHMS
    if each
    not in {
        ("all_reduce", "binary_tree"),
        ("reduce", "binary_tree"),
        ("broadcast", "binomial"),
        ("all_to_all", "pairwise"),
        ("all_to_all", "torus_2d"),
        ("all_to_all", "hierarchical"),
    }
]
"""Algorithms in which no participant has less to do in a step than its successors wait for."""


@settings(max_examples=100)
@given(st.sampled_from(EVEN), st.sampled_from([2, 4, 8, 16]), st.integers(1, 5))
def test_where_all_work_evenly_no_barrier_is_needed(
    algorithm: tuple[str, str], ranks: int, chunks: int
) -> None:
    chunks = pieces(algorithm, chunks)
    found = schedule(*algorithm, ranks, chunks=chunks)
    size = even_size(found)
    time = simulate(found, nvswitch(ranks, 100 * GB, latency_s=ALPHA), size).time_s
    assert time == pytest.approx(closed_form(found, size, "switch", chunks=chunks), rel=1e-9)


@pytest.mark.parametrize(
    ("algorithm", "ratio"),
    [
        # A parent's port is shared by two children in one step, so the leaves of a short branch
        # run ahead, and a reduce ends before its last level has waited for the others.
        pytest.param(("reduce", "binary_tree"), 0.923, id="trees run ahead"),
        pytest.param(("all_reduce", "binary_tree"), 0.962, id="trees run ahead twice"),
        # No step needs another: all start at once, which hides all latencies but one.
        pytest.param(("all_to_all", "pairwise"), 0.125 + 0.02, id="independent steps"),
        # Rank 0 sends to 1, 2 and 4 at once, so that 4 ranks wait three times as long for the
        # first copy: in the closed form rank 0 serves one at a time.
        pytest.param(("broadcast", "binomial"), 2.0, id="fairness is not foresight"),
    ],
)
def test_where_steps_are_uneven_the_barrier_matters(
    algorithm: tuple[str, str], ratio: float
) -> None:
    found = schedule(*algorithm, 8, chunks=pieces(algorithm, 5))
    # Large, but for the exchange whose gain is in its latencies.
    size = even_size(found, 16 if algorithm[0] == "all_to_all" else 16 * MIB)
    topology = nvswitch(8, 100 * GB, latency_s=ALPHA)
    with_barrier = simulate(found, topology, size, barrier=True).time_s
    assert simulate(found, topology, size).time_s / with_barrier == pytest.approx(ratio, rel=0.02)


def test_a_mesh_pays_for_the_way_back_in_latency() -> None:
    """The last of a row reaches the first through all of it, on links the others leave free."""
    found = schedule("all_reduce", "torus_2d", 12, shape=(3, 4))
    times = [
        simulate(found, torus((3, 4), 100 * GB, wrap=wrap, latency_s=ALPHA), 12 * 10**6).time_s
        for wrap in (True, False)
    ]
    assert times[0] < times[1] < times[0] + 12 * 4 * ALPHA


@pytest.mark.parametrize("shape", [(3, 3), (3, 4), (4, 4)])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_torus_runs_its_own_algorithm_without_contention(
    collective: str, shape: tuple[int, int]
) -> None:
    """Without a barrier an all-gather's rows need not wait for the columns: it is faster."""
    found = schedule(collective, "torus_2d", shape[0] * shape[1], shape=shape)
    size = even_size(found)
    topology = torus(shape, 100 * GB, latency_s=ALPHA)
    expected = closed_form(found, size, "mesh", shape=shape)
    assert simulate(found, topology, size, barrier=True).time_s == pytest.approx(expected, rel=1e-9)
    time = simulate(found, topology, size).time_s
    if collective == "reduce_scatter":
        assert time == pytest.approx(expected, rel=1e-9)
    else:
        assert 0.9 * expected < time < expected


def test_the_rack_runs_a_ring_as_one_domain() -> None:
    found = schedule("all_reduce", "ring", 72)
    size = even_size(found)
    time = simulate(found, nvl72(100 * GB, latency_s=ALPHA), size).time_s
    assert time == pytest.approx(closed_form(found, size, "switch"), rel=1e-9)


# --- What links carry ----------------------------------------------------------------------------


@settings(max_examples=50)
@given(algorithms, st.integers(2, 8), st.integers(1, 10_000), st.booleans())
def test_links_of_a_full_mesh_carry_the_traffic_of_the_schedule(
    algorithm: tuple[str, str], ranks: int, size: int, barrier: bool
) -> None:
    found = schedule(*algorithm, ranks, chunks=pieces(algorithm, 3))
    if found.switches:
        return
    topology = full_mesh(ranks, GB)
    run = simulate(found, topology, size, barrier=barrier)
    carried = {
        (link.source, link.target): use.bytes_sent
        for link, use in zip(topology.links, run.links, strict=True)
        if use.bytes_sent
    }
    assert carried == traffic(found, size).links


@settings(max_examples=50)
@given(algorithms, st.integers(2, 8), st.permutations(range(8)), st.booleans())
def test_no_link_does_more_than_it_can(
    algorithm: tuple[str, str], ranks: int, placement: list[int], barrier: bool
) -> None:
    found = schedule(*algorithm, ranks, chunks=pieces(algorithm, 3))
    topology = nvswitch(8, GB) if found.switches else pcie_tree(8, GB, gpus_per_switch=2)
    run = simulate(found, topology, MIB, placement[:ranks], barrier=barrier)
    for use in run.links:
        assert 0 <= use.utilisation <= use.busy * (1 + 1e-9)
        assert use.busy <= 1 + 1e-9
    assert run.busiest.utilisation == max(use.utilisation for use in run.links)


def test_multicast_by_a_switch_uses_every_port_once() -> None:
    run = simulate(schedule("all_reduce", "sharp", 4, chunks=8), nvswitch(4, GB), 8000)
    assert [use.bytes_sent for use in run.links] == [8000] * 8


def test_the_table_names_the_time_and_the_links_used_most() -> None:
    run = simulate(schedule("broadcast", "chain", 3), nvswitch(3, GB), 1_000_000)
    assert str(run).splitlines() == [
        "broadcast, chain, on nvswitch of 3: 2 ms",
        "link              bytes   busy   used",
        "gpu 0 > nvswitch   1 MB  50.0%  50.0%",
        "gpu 1 > nvswitch   1 MB  50.0%  50.0%",
        "nvswitch > gpu 1   1 MB  50.0%  50.0%",
        "nvswitch > gpu 2   1 MB  50.0%  50.0%",
    ]
    many = simulate(schedule("all_reduce", "ring", 8), nvswitch(8, GB), 1_000_000)
    assert str(many).splitlines()[-1] == "… and 6 more"


# --- What wiring and placement cost --------------------------------------------------------------


def ring_of_eight(topology: Topology, placement: Sequence[int] | None = None) -> Simulation:
    return simulate(schedule("all_reduce", "ring", 8), topology, 8 * MIB, placement)


@pytest.mark.parametrize(
    ("order", "times_slower"),
    [
        pytest.param([0, 3, 2, 1, 5, 6, 7, 4], 1, id="along doubled links"),
        pytest.param([0, 1, 3, 7, 5, 4, 6, 2], 2, id="along single links"),
        # 0-1 and 4-5 are single; 3-4 and 7-0 have no link and go through a neighbour.
        pytest.param(range(8), 2, id="as numbered"),
        # Only 2-6 is a link. 0 to 5 and 4 to 1 meet on the single link from 0 to 1.
        pytest.param([0, 5, 3, 4, 1, 7, 2, 6], 4, id="against the wiring"),
    ],
)
def test_a_ring_on_the_cube_mesh_is_as_fast_as_its_worst_link(
    order: Sequence[int], times_slower: float
) -> None:
    best = 2 * 7 / 8 * 8 * MIB / (50 * GB)
    assert ring_of_eight(cube_mesh(25 * GB), order).time_s / best == pytest.approx(times_slower)


def test_without_peer_access_four_devices_share_one_way_to_the_host() -> None:
    """With it, a ring sends one transfer at a time over each link, so 4 times as fast."""
    direct = ring_of_eight(pcie_tree(8, 32 * GB)).time_s
    staged = ring_of_eight(pcie_tree(8, 32 * GB, peer_access=False))
    assert staged.time_s / direct == pytest.approx(4)
    full = [use.name for use in staged.links if use.utilisation > 0.999]
    assert full == [
        "host bridge > host memory",
        "pcie switch.0 > host bridge",
        "host memory > pcie switch.0 down",
        "pcie switch.1 > host bridge",
        "host memory > pcie switch.1 down",
    ]


def across_rails(nodes: int, rails: int) -> Schedule:
    """Return the step in which everyone sends to the next device of the next node."""
    device = np.arange(nodes * rails)
    target = (device + rails) % (nodes * rails) // rails * rails + (device + 1) % rails
    moves = zip(device.tolist(), target.tolist(), device.tolist(), strict=True)
    return one_step(nodes * rails, nodes * rails, list(moves))


def fat_tree(**options: Any) -> Topology:
    rates: dict[str, Any] = {"bytes_per_s": 450 * GB, "nic_bytes_per_s": 50 * GB}
    return rail_fat_tree(4, 8, **rates, **options)


@pytest.mark.parametrize("spines", [1, 2, 4])
def test_oversubscription_slows_what_crosses_the_spines(spines: int) -> None:
    found = across_rails(4, 8)
    full, half = (
        simulate(found, fat_tree(oversubscription=ratio, spines=spines), 32 * MIB)
        for ratio in (1, 2)
    )
    assert full.time_s == pytest.approx(MIB / (50 * GB))  # each port is full, and nothing waits
    assert half.time_s == pytest.approx(2 * full.time_s)
    assert half.busiest.name.startswith("leaf 0 > spine")


def test_oversubscription_leaves_rails_alone() -> None:
    found = schedule("all_reduce", "hierarchical", 32, shape=(4, 8))
    times = {simulate(found, fat_tree(oversubscription=ratio), 32 * MIB).time_s for ratio in (1, 8)}
    assert len(times) == 1


def test_a_hierarchy_uses_all_rails_and_a_flat_ring_one_at_a_time() -> None:
    """The flat ring leaves each node through one port of 50 GB/s, with 2 * 31/32 of the buffer.

    Each of the hierarchy's 8 rails carries an eighth of that, 2 * 3/4 of 1/8, and 2 * 7/8 of the
    buffer goes through the switches inside.
    """
    topology = fat_tree(latency_s=ALPHA, network_latency_s=5 * ALPHA)
    size = 32 * MIB
    flat = simulate(schedule("all_reduce", "ring", 32), topology, size).time_s
    assert flat == pytest.approx(62 * (5 * ALPHA + size / 32 / (50 * GB)), rel=1e-9)
    two_levels = schedule("all_reduce", "hierarchical", 32, shape=(4, 8))
    expected = two_tier_time_s("all_reduce", 4, 8, size, (ALPHA, 5 * ALPHA), (450 * GB, 50 * GB))
    time = simulate(two_levels, topology, size, barrier=True).time_s
    assert time == pytest.approx(expected, rel=1e-9)
    assert simulate(two_levels, topology, size).time_s < time < flat / 5


# --- Determinism and errors ----------------------------------------------------------------------


def test_two_runs_are_equal_to_the_last_bit() -> None:
    found = schedule("all_reduce", "double_binary_tree", 16, chunks=6)
    placement = np.random.default_rng(0).permutation(16).tolist()

    def run() -> Simulation:
        topology = rail_fat_tree(2, 8, bytes_per_s=450 * GB, nic_bytes_per_s=50 * GB, spines=3)
        return simulate(found, topology, MIB + 1, placement)

    one, other = run(), run()
    assert one.links == other.links
    assert one.start_s.tobytes() == other.start_s.tobytes()
    assert one.finish_s.tobytes() == other.finish_s.tobytes()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"topology": nvswitch(3, GB)}, BadValueError, "ranks of the schedule must be at most 3"),
        ({"size_bytes": 0}, BadValueError, "size_bytes must be a whole number of at least 1"),
        ({"size_bytes": -1}, BadValueError, "size_bytes must be"),
        ({"size_bytes": 1.5}, BadTypeError, "size_bytes must be"),
        ({"placement": [0, 1, 2]}, BadValueError, "placement must be 4 different devices below 5"),
        ({"placement": [0, 1, 2, 2]}, BadValueError, "placement must be 4 different"),
        ({"placement": [0, 1, 2, 5]}, BadValueError, "placement must be 4 different"),
        ({"placement": [0, 1, 2, -1]}, BadValueError, "placement must be a whole number"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_one_line(
    options: dict[str, Any], error: type[ShardcostError], message: str
) -> None:
    arguments: dict[str, Any] = {"topology": nvswitch(5, GB), "size_bytes": 1000} | options
    with pytest.raises(error, match=message):
        simulate(schedule("all_reduce", "ring", 4), **arguments)


@pytest.mark.parametrize(
    "topology",
    [
        full_mesh(8, GB),
        nvswitch(8, GB, in_switch_reduction=False),
        rail_fat_tree(2, 4, bytes_per_s=GB, nic_bytes_per_s=GB),
    ],
    ids=lambda topology: topology.name,
)
def test_a_reduction_in_the_switch_needs_a_switch_that_all_are_linked_to(
    topology: Topology,
) -> None:
    with pytest.raises(BadValueError, match="since the schedule reduces in a switch"):
        simulate(schedule("all_reduce", "nvls", 8), topology, MIB)

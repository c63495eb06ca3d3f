"""Closed forms against what executed schedules count, against each other, and lower bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcost.collectives import COLLECTIVES
from shardcost.collectives.exact.algorithms import ALGORITHMS, most_square, schedule
from shardcost.collectives.exact.closed_forms import (
    Cost,
    best_chunks,
    cost,
    lower_bound,
    time_s,
    two_tier_time_s,
)
from shardcost.collectives.exact.schedule import Schedule, traffic
from shardcost.errors import BadTypeError, BadValueError, UnknownNameError

PAIRS = sorted(ALGORITHMS)
IN_SWITCH = ("nvls", "sharp")
PIPELINED = [pair for pair in PAIRS if ALGORITHMS[pair].takes == "chunks"]

pairs = st.sampled_from(PAIRS)
ranks = st.integers(1, 40)
many_ranks = st.integers(1, 1 << 20)
chunks = st.integers(1, 9)
bytes_of_buffers = st.floats(1, 1e12)
alphas = st.floats(0, 1e-3)
rates = st.floats(1e6, 1e13)


def options(pair: tuple[str, str], pieces: Any) -> dict[str, Any]:
    """Return the pieces for an algorithm that takes them."""
    return {"chunks": pieces} if ALGORITHMS[pair].takes == "chunks" else {}


def own_bytes(found: Schedule, buffer: float) -> float:
    """Return the size that closed forms are asked for, of a schedule's buffer."""
    return buffer / found.ranks if found.collective == "all_to_all" else buffer


def counted(found: Schedule, buffer: int) -> Cost:
    """Return what a schedule costs, by going through its steps."""
    total = traffic(found, buffer)
    piece = buffer / found.chunks
    port = wire = 0.0
    switch_steps = 0
    for step in found.steps:
        sent = np.zeros((found.participants, found.participants))
        np.add.at(sent, (step.source, step.target), piece)
        of_ranks = [sent.sum(axis=axis)[: found.ranks].max() for axis in (0, 1)]
        port += max(of_ranks)
        wire += sent.max()
        switch_steps += int(sent[:, found.ranks :].any() or sent[found.ranks :].any())
    busiest = total.sent[: found.ranks].max()
    link = max(total.links.values(), default=0.0)
    return Cost(total.steps, busiest, link, port, wire, switch_steps)


def most_partners(found: Schedule) -> int:
    """Return to, or from, how many others a rank talks in one step, at most."""
    most = 1
    for step in found.steps:
        lanes = np.unique(np.stack([step.source, step.target]), axis=1)
        most = max(most, *(np.bincount(ends).max() for ends in lanes))
    return most


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("n", [*range(1, 18), 24, 31, 33])
def test_forms_are_what_schedules_count(pair: tuple[str, str], n: int) -> None:
    found = schedule(*pair, n)
    buffer = 3 * found.chunks
    expected = counted(found, buffer)
    assert cost(*pair, n, own_bytes(found, buffer)) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=150)
@given(st.sampled_from(PIPELINED), ranks, chunks)
def test_pipelined_forms_are_what_schedules_count(
    pair: tuple[str, str], n: int, pieces: int
) -> None:
    found = schedule(*pair, n, chunks=pieces)
    expected = counted(found, 6 * found.chunks)
    assert cost(*pair, n, 6 * found.chunks, chunks=pieces) == pytest.approx(expected, rel=1e-12)


@given(st.sampled_from([pair for pair in PAIRS if pair[1] == "torus_2d"]), *[st.integers(1, 6)] * 2)
def test_two_level_forms_are_what_schedules_count(
    pair: tuple[str, str], rows: int, columns: int
) -> None:
    shape = (rows, columns)
    found = schedule(*pair, rows * columns, shape=shape)
    buffer = 2 * found.chunks
    form = cost(*pair, rows * columns, own_bytes(found, buffer), shape=shape)
    assert form == pytest.approx(counted(found, buffer), rel=1e-12)


@given(pairs, st.lists(st.tuples(many_ranks, bytes_of_buffers, chunks), min_size=1, max_size=6))
def test_arrays_are_numbers_cell_by_cell(
    pair: tuple[str, str], cells: list[tuple[int, float, int]]
) -> None:
    n, size, pieces = map(np.array, zip(*cells, strict=True))
    on_arrays = cost(*pair, n, size, **options(pair, pieces))
    for cell, (one_n, one_size, one_pieces) in enumerate(cells):
        alone = cost(*pair, one_n, one_size, **options(pair, one_pieces))
        assert [type(each) for each in alone] == [int, float, float, float, float, int]
        spread = [np.broadcast_to(each, n.shape)[cell] for each in on_arrays]
        assert spread == list(alone)


@given(pairs)
def test_arrays_broadcast(pair: tuple[str, str]) -> None:
    n, size = np.arange(1, 20)[:, None], np.array([1e3, 1e6, 1e9])
    times = time_s(*pair, n, size, 1e-6, np.float64(1e11))
    assert np.shape(times) == (19, 3)
    assert times[7, 1] == time_s(*pair, 8, 1e6, 1e-6, 1e11)  # type: ignore[index]


@given(pairs, many_ranks, bytes_of_buffers, alphas, rates, chunks)
def test_time_is_latency_and_bandwidth(
    pair: tuple[str, str], n: int, size: float, alpha: float, rate: float, pieces: int
) -> None:
    found = cost(*pair, n, size, **options(pair, pieces))
    switch, mesh = (
        time_s(*pair, n, size, alpha, rate, wiring=wiring, **options(pair, pieces))
        for wiring in ("switch", "mesh")
    )
    assert switch == found.latency_s(alpha) + found.bandwidth_s(rate)
    assert mesh == found.latency_s(alpha) + found.wire_bytes / rate
    assert mesh <= switch * (1 + 1e-12)


@given(pairs, many_ranks, bytes_of_buffers, st.floats(0.5, 8))
def test_bytes_grow_with_the_size_and_steps_do_not(
    pair: tuple[str, str], n: int, size: float, factor: float
) -> None:
    small, large = cost(*pair, n, size), cost(*pair, n, factor * size)
    assert (large.steps, large.switch_steps) == (small.steps, small.switch_steps)
    assert large[1:5] == pytest.approx([factor * each for each in small[1:5]], rel=1e-12)


@given(pairs, bytes_of_buffers, chunks)
def test_one_rank_costs_nothing(pair: tuple[str, str], size: float, pieces: int) -> None:
    assert set(cost(*pair, 1, size, **options(pair, pieces))) == {0}


@settings(max_examples=200)
@given(pairs, ranks, chunks)
def test_none_beats_the_lower_bound(pair: tuple[str, str], n: int, pieces: int) -> None:
    collective, algorithm = pair
    found = cost(*pair, n, 1e6, **options(pair, pieces))
    in_switch = algorithm in IN_SWITCH
    partners = most_partners(schedule(*pair, n, **options(pair, pieces)))
    bound = lower_bound(collective, n, 1e6, partners=partners, in_switch=in_switch)
    assert found.steps >= bound.steps
    assert found.port_bytes >= bound.port_bytes * (1 - 1e-12)
    assert found.time_s(1e-6, 1e11) >= bound.time_s(1e-6, 1e11) * (1 - 1e-12)
    if not in_switch:
        assert found.sent_bytes >= bound.port_bytes * (1 - 1e-12)


def test_a_switch_that_reduces_beats_the_bound_of_those_that_do_not() -> None:
    assert cost("all_reduce", "sharp", 8, 1000).sent_bytes == 1000
    assert lower_bound("all_reduce", 8, 1000).port_bytes == 1750
    assert lower_bound("all_reduce", 8, 1000, in_switch=True) == (2, 1000, 2)


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "ring"),
        ("all_reduce", "two_shot"),
        ("all_gather", "bruck"),
        ("reduce_scatter", "ring"),
        ("all_to_all", "pairwise"),
        ("send_recv", "direct"),
    ],
)
def test_bounds_of_bytes_are_reached(collective: str, algorithm: str) -> None:
    n = np.arange(1, 100)
    reached = cost(collective, algorithm, n, 1e6).port_bytes
    np.testing.assert_allclose(reached, lower_bound(collective, n, 1e6).port_bytes, rtol=1e-12)


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [("broadcast", "binomial"), ("all_gather", "bruck"), ("all_to_all", "bruck")],
)
def test_bounds_of_steps_are_reached(collective: str, algorithm: str) -> None:
    n = np.arange(1, 5000)
    exact = [(int(each) - 1).bit_length() for each in n]
    assert np.array_equal(lower_bound(collective, n, 1.0).steps, exact)
    assert np.array_equal(cost(collective, algorithm, n, 1.0).steps, exact)


def test_bounds_with_more_partners_take_fewer_steps() -> None:
    steps = lower_bound("all_gather", 9, 1.0, partners=np.array([1, 2, 3, 8])).steps
    assert np.array_equal(steps, [4, 2, 2, 1])


@given(many_ranks, bytes_of_buffers)
def test_a_ring_all_reduce_is_reduce_scatter_and_all_gather(n: int, size: float) -> None:
    halves = [cost(each, "ring", n, size) for each in ("reduce_scatter", "all_gather")]
    both = [sum(each) for each in zip(*halves, strict=True)]
    assert cost("all_reduce", "ring", n, size) == pytest.approx(both)


def test_textbook_forms() -> None:
    n, size, a, rate = 16, 3e6, 2e-6, 1e11
    seconds = size / rate

    def time(collective: str, algorithm: str, **more: Any) -> Any:
        return time_s(collective, algorithm, n, size, a, rate, **more)

    assert time("all_reduce", "ring") == pytest.approx(30 * a + 30 / 16 * seconds)
    assert time("all_reduce", "recursive_doubling") == pytest.approx(4 * (a + seconds))
    assert time("all_reduce", "halving_doubling") == pytest.approx(8 * a + 30 / 16 * seconds)
    assert time("all_reduce", "one_shot") == pytest.approx(a + 15 * seconds)
    assert time("all_reduce", "two_shot") == pytest.approx(2 * a + 30 / 16 * seconds)
    ways = time("all_reduce", "bidirectional_ring", wiring="mesh")
    assert ways == pytest.approx(30 * a + 15 / 16 * seconds)
    torus = time("all_reduce", "torus_2d", shape=(2, 8))
    assert torus == pytest.approx(2 * (7 + 1) * a + 2 * (7 / 8 + 1 / 16) * seconds)
    assert time("broadcast", "chain", chunks=5) == pytest.approx(19 * (a + seconds / 5))
    trees = time("all_reduce", "double_binary_tree", chunks=9)
    assert trees == pytest.approx(2 * (4 + 9 - 1) * (a + seconds / 9))
    assert time("all_reduce", "sharp") == pytest.approx(a + 2 * seconds)
    assert time("all_to_all", "pairwise") == pytest.approx(15 * (a + seconds / 16))


def test_nvls_in_many_pieces_approaches_one_pass_each_way() -> None:
    found = cost("all_reduce", "nvls", 8, 1e6, chunks=100_000)
    assert found.port_bytes == pytest.approx(1e6 * (1 + 1 / 8), rel=1e-4)


@given(st.sampled_from(["all_reduce", "all_gather", "all_to_all"]), *[st.integers(1, 64)] * 2)
def test_two_tiers_alike_are_one_algorithm(collective: str, nodes: int, per_node: int) -> None:
    n, shape = nodes * per_node, (nodes, per_node)
    tiers = two_tier_time_s(collective, nodes, per_node, 1e6, (1e-6, 1e-6), (1e11, 1e11))
    flat = time_s(collective, "hierarchical", n, 1e6, 1e-6, 1e11, shape=shape)
    assert tiers == pytest.approx(flat)


def test_two_tiers_apart() -> None:
    nodes = np.array([1, 2, 4])
    found = two_tier_time_s("all_reduce", nodes, 8, 8e6, (1e-6, 5e-6), (4e11, 5e10))
    inside = 14 * 1e-6 + 14 / 8 * 8e6 / 4e11
    across = 2 * (nodes - 1) * 5e-6 + 2 * (nodes - 1) / nodes * 1e6 / 5e10
    np.testing.assert_allclose(found, inside + across)


@given(
    st.sampled_from(PIPELINED),
    st.integers(1, 100),
    st.floats(1e3, 1e7),
    st.sampled_from(["switch", "mesh"]),
)
def test_no_other_number_of_pieces_is_better(
    pair: tuple[str, str], n: int, size: float, wiring: Any
) -> None:
    best = best_chunks(*pair, n, size, 5e-7, 1e12, wiring=wiring)
    tried = np.arange(1, 200)
    times = time_s(*pair, n, size, 5e-7, 1e12, chunks=tried, wiring=wiring)
    found = time_s(*pair, n, size, 5e-7, 1e12, chunks=best, wiring=wiring)
    assert found <= np.min(times) * (1 + 1e-12)


def test_best_pieces_on_arrays_are_those_of_numbers() -> None:
    sizes = np.array([1e3, 1e6, 1e9])
    on_arrays = best_chunks("broadcast", "chain", 8, sizes, 1e-6, 1e11)
    for size, pieces in zip(sizes.tolist(), np.asarray(on_arrays).tolist(), strict=True):
        assert pieces == best_chunks("broadcast", "chain", 8, size, 1e-6, 1e11)
    assert best_chunks("all_reduce", "ring", 8, 1e6, 1e-6, 1e11) == 1


def test_shapes_left_out_are_the_most_square() -> None:
    n = np.array([6, 7, 16])
    rows, columns = (np.array(each) for each in zip(*map(most_square, n.tolist()), strict=True))
    left_out = cost("all_reduce", "torus_2d", n, 1e6)
    given_it = cost("all_reduce", "torus_2d", n, 1e6, shape=(rows, columns))
    assert all(np.array_equal(one, other) for one, other in zip(left_out, given_it, strict=True))


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"collective": "gossip"}, UnknownNameError, "unknown collective 'gossip'"),
        ({"algorithm": "warp"}, UnknownNameError, "algorithm of all_reduce 'warp'"),
        ({"ranks": 0}, BadValueError, "ranks must be"),
        ({"ranks": np.array([2, 0])}, BadValueError, "ranks must be .* in every cell, got 0"),
        ({"ranks": np.array([2.0])}, BadTypeError, "ranks must be"),
        ({"size_bytes": 0}, BadValueError, "size_bytes must be"),
        ({"alpha_s": -1.0}, BadValueError, "alpha_s must be a finite number of at least 0"),
        ({"alpha_s": np.array([0, np.nan])}, BadValueError, "alpha_s must be"),
        ({"alpha_s": "fast"}, BadTypeError, "alpha_s must be"),
        ({"bytes_per_s": 0.0}, BadValueError, "bytes_per_s must be"),
        ({"wiring": "wireless"}, UnknownNameError, "unknown wiring 'wireless'; known: mesh, sw"),
        ({"chunks": np.array([1, 2])}, BadValueError, "ring all_reduce has no pipeline"),
        ({"shape": (2, 2)}, BadValueError, "shape must be left out"),
        ({"algorithm": "torus_2d", "shape": 4}, BadTypeError, "shape must be a pair"),
        ({"algorithm": "torus_2d", "shape": (2, 3)}, BadValueError, "shape must be a pair whose"),
    ],
)
def test_refusals(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    good: dict[str, Any] = {"collective": "all_reduce", "algorithm": "ring", "ranks": 4}
    amounts = {"size_bytes": 1e6, "alpha_s": 1e-6, "bytes_per_s": 1e11}
    with pytest.raises(kind, match=message):
        time_s(**(good | amounts | change))


def test_refusals_of_bounds_and_tiers() -> None:
    with pytest.raises(UnknownNameError, match="collective"):
        lower_bound("gossip", 4, 1.0)
    with pytest.raises(UnknownNameError, match="hierarchical collective 'broadcast'"):
        two_tier_time_s("broadcast", 2, 4, 1e6, (0, 0), (1e9, 1e9))
    with pytest.raises(BadTypeError, match="alpha_s must be a pair"):
        two_tier_time_s("all_reduce", 2, 4, 1e6, 1e-6, (1e9, 1e9))  # type: ignore[arg-type]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_bounds_are_nothing_for_one(collective: str) -> None:
    for in_switch in (False, True):
        assert lower_bound(collective, 1, 1e6, in_switch=in_switch) == (0, 0, 0)

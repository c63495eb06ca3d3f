"""Every algorithm, executed on integers, leaves each rank with what its collective promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardcost.collectives import COLLECTIVES
from shardcost.collectives.exact.algorithms import (
    ALGORITHMS,
    algorithms_of,
    buffer_bytes,
    most_square,
    schedule,
)
from shardcost.collectives.exact.algorithms.tree import two_trees
from shardcost.collectives.exact.schedule import Schedule, Step, cuts, executed, traffic
from shardcost.errors import BadTypeError, BadValueError, UnknownNameError

PAIRS = sorted(ALGORITHMS)
RANKS = [*range(1, 18), 24, 64]
PIPELINED = [pair for pair in PAIRS if ALGORITHMS[pair].takes == "chunks"]
SHAPED = [pair for pair in PAIRS if ALGORITHMS[pair].takes == "shape"]
IN_SWITCH = [pair for pair in PAIRS if pair[1] in ("nvls", "sharp")]


def owned(length: int, owners: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return, per rank, which elements are its own, given the owner of every chunk."""
    owner = np.repeat(owners, np.diff(cuts(length, len(owners))))
    return np.equal(owner, np.arange(owners.max() + 1)[:, None])


def assert_right(found: Schedule, length: int) -> None:
    """Execute a schedule on random integers and compare with the collective's own definition."""
    n = found.ranks
    given = np.random.default_rng(length).integers(1, 1 << 40, (n, length))
    blocks = owned(length, np.arange(n))
    rows, columns = (owned(length, each) for each in np.divmod(np.arange(n * n), n))
    everywhere = np.ones_like(blocks)
    start = {"all_gather": blocks, "all_to_all": rows}.get(found.collective, everywhere)
    given = given * start
    wanted = {"broadcast": given[:1], "send_recv": np.roll(given, 1, axis=0)}.get(
        found.collective, given.sum(axis=0, keepdims=True)
    )
    checked = {
        "reduce_scatter": blocks,
        "all_to_all": columns,
        "reduce": everywhere & (np.arange(n) == 0)[:, None],
    }.get(found.collective, everywhere)
    got = executed(found, given)[:n]
    assert np.array_equal(got[checked], np.broadcast_to(wanted, got.shape)[checked])


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_is_right(collective: str, algorithm: str, ranks: int) -> None:
    found = schedule(collective, algorithm, ranks)
    assert (len(found.steps) == 0) == (ranks == 1)
    for length in (3, ranks * ranks + 1):
        assert_right(found, length)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 16, 17])
@pytest.mark.parametrize(("collective", "algorithm"), PIPELINED)
def test_pipelines_are_right_in_any_number_of_pieces(
    collective: str, algorithm: str, ranks: int
) -> None:
    for chunks in (2, 5):
        assert_right(schedule(collective, algorithm, ranks, chunks=chunks), length=61)


@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (2, 3), (3, 2), (4, 4), (2, 8)])
@pytest.mark.parametrize(("collective", "algorithm"), SHAPED)
def test_grids_are_right_in_any_shape(
    collective: str, algorithm: str, shape: tuple[int, int]
) -> None:
    found = schedule(collective, algorithm, shape[0] * shape[1], shape=shape)
    assert_right(found, length=61)


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_a_step_moves_something_between_participants(collective: str, algorithm: str) -> None:
    found = schedule(collective, algorithm, 12)
    for step in found.steps:
        assert len(step)
        assert (step.source != step.target).all()
        ends = np.concatenate([step.source, step.target])
        assert ends.min() >= 0
        assert ends.max() < found.participants
        assert step.chunk.max() < found.chunks
    assert found.switches == ((collective, algorithm) in IN_SWITCH)


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_what_all_send_is_what_all_receive(collective: str, algorithm: str) -> None:
    found = schedule(collective, algorithm, 12)
    counted = traffic(found, 144 * 5)
    assert counted.sent.sum() == counted.received.sum() == sum(counted.links.values())


def test_a_ring_uses_each_link_in_one_direction() -> None:
    counted = traffic(schedule("all_reduce", "ring", 5), 50)
    assert counted.links == {(r, (r + 1) % 5): 80.0 for r in range(5)}
    assert counted.steps == 8


def test_a_torus_uses_only_neighbours_in_one_direction() -> None:
    counted = traffic(schedule("all_reduce", "torus_2d", 12, shape=(3, 4)), 120)
    right = {(4 * y + x, 4 * y + (x + 1) % 4): 180.0 for y in range(3) for x in range(4)}
    down = {(4 * y + x, 4 * ((y + 1) % 3) + x): 40.0 for y in range(3) for x in range(4)}
    assert counted.links == right | down


def test_in_the_switch_a_link_carries_the_buffer_and_a_share_each_way() -> None:
    counted = traffic(schedule("all_reduce", "nvls", 8), 800)
    assert set(counted.sent[:8]) == set(counted.received[:8]) == {900.0}
    counted = traffic(schedule("all_reduce", "sharp", 8), 800)
    assert set(counted.sent[:8]) == set(counted.received[:8]) == {800.0}


@pytest.mark.parametrize("ranks", range(2, 70))
def test_two_trees_share_no_inner_node_and_are_binary(ranks: int) -> None:
    inner = []
    for parents in two_trees(ranks):
        children = np.bincount(parents[1:], minlength=ranks)
        assert children[0] == 1
        assert children.max() <= 2
        inner.append(set(np.flatnonzero(children)) - {0})
    assert not inner[0] & inner[1]


def test_folding_takes_two_more_steps() -> None:
    assert len(schedule("reduce_scatter", "recursive_halving", 8).steps) == 3
    assert len(schedule("reduce_scatter", "recursive_halving", 9).steps) == 5


def test_registry_speaks_of_every_collective() -> None:
    assert set(COLLECTIVES) == set(
        "all_reduce reduce_scatter all_gather all_to_all broadcast reduce send_recv".split()
    )
    assert [(c, a) for c in COLLECTIVES for a in algorithms_of(c)] == list(ALGORITHMS)


def test_most_square_shapes() -> None:
    assert [most_square(n) for n in (1, 2, 16, 24)] == [(1, 1), (1, 2), (4, 4), (4, 6)]


def test_the_buffer_of_an_all_to_all_has_room_for_all() -> None:
    assert buffer_bytes("all_to_all", 4, 100) == 400
    assert buffer_bytes("all_gather", 4, 100) == 100


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        (("allreduce", "ring", 4), {}, UnknownNameError, "known: all_gather, all_reduce"),
        (("all_reduce", "ring", 10**7), {}, BadValueError, "ranks must be at most 4096"),
        (("broadcast", "chain", 4), {"chunks": 10**9}, BadValueError, "chunks must be at most"),
        (("gossip", "ring", 4), {}, UnknownNameError, "unknown collective 'gossip'; known: all_"),
        (("all_to_all", "warp", 4), {}, UnknownNameError, "known: bruck, direct, hierarchical"),
        (("all_reduce", "rings", 4), {}, UnknownNameError, "algorithm of all_reduce 'rings'"),
        (("all_reduce", "ring", 0), {}, BadValueError, "ranks must be a whole number of at least"),
        (("all_reduce", "ring", 2.0), {}, BadTypeError, "ranks must be"),
        (("all_reduce", "ring", 4), {"chunks": 2}, BadValueError, "ring all_reduce has no pipe"),
        (("broadcast", "chain", 4), {"chunks": 0}, BadValueError, "chunks must be"),
        (("all_reduce", "ring", 4), {"shape": (2, 2)}, BadValueError, "shape must be left out"),
        (("all_reduce", "torus_2d", 4), {"shape": (2, 3)}, BadValueError, "product is the number"),
        (("all_reduce", "torus_2d", 1), {"shape": (2, 3)}, BadValueError, "got \\(2, 3\\)"),
        (("all_reduce", "torus_2d", 4), {"shape": 4}, BadTypeError, "shape must be a pair"),
        (("all_reduce", "torus_2d", 4), {"shape": (2, 2, 1)}, BadTypeError, "a pair"),
        (("all_reduce", "torus_2d", 4), {"shape": (-2, -2)}, BadValueError, "at least 1"),
    ],
)
def test_refusals_are_one_line(
    arguments: tuple[Any, ...], options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        schedule(*arguments, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("order", [(True, False), (False, True), (False, False)])
def test_a_copy_and_another_transfer_into_one_chunk_are_refused(order: tuple[bool, bool]) -> None:
    step = Step.of([0, 1], 2, 0, reduces=np.array(order))
    clash = Schedule("all_reduce", "clash", 3, 1, (step,))
    with pytest.raises(BadValueError, match="written once"):
        executed(clash, np.ones((3, 4), dtype=np.int64))

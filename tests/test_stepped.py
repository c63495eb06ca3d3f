"""Algorithms step by step: what everyone holds in the end is what the collective promises."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest

from shardcost import Cluster
from shardcost.collectives import COLLECTIVES
from shardcost.collectives.exact.algorithms import ALGORITHMS, schedule
from shardcost.collectives.exact.schedule import Ints, executed
from shardcost.collectives.exact.stepped import Stepped, alpha_beta, stepped
from shardcost.collectives.library_time import collective_time
from shardcost.errors import BadTypeError, BadValueError, MissingExtraError, UnknownNameError
from shardcost.receipt import evaluate
from shardcost.report.how import how
from shardcost.report.stepped import algorithms, as_data

EVERY = [(collective, name) for collective, name in ALGORITHMS]
every_algorithm = pytest.mark.parametrize(("collective", "algorithm"), EVERY)
SIZE = 16 * 15 * 14 * 13 * 11 * 3 * 64
"""Divides evenly among any number of chunks here."""


def promised(found: Stepped) -> Ints:
    """Return the contributions that each rank has to hold of each chunk; 0 where none is due."""
    ranks, owners = found.schedule.ranks, np.array(found.owners)
    rank = np.arange(ranks)[:, None]
    everyone = (1 << ranks) - 1
    whole = np.ones((ranks, found.schedule.chunks), dtype=np.int64)
    due: dict[str, Ints] = {
        "all_reduce": everyone * whole,
        "reduce_scatter": everyone * (owners == rank),
        "reduce": everyone * whole * (rank == 0),
        "all_gather": (1 << owners) * whole,
        "all_to_all": (1 << owners) * (np.arange(len(owners)) % ranks == rank),
        "broadcast": whole,
        "send_recv": (1 << (rank - 1) % ranks) * whole,
    }
    return due[found.schedule.collective]


@every_algorithm
def test_everyone_ends_with_what_is_promised(collective: str, algorithm: str) -> None:
    for ranks in range(2, 17):
        found = stepped(collective, algorithm, ranks, SIZE)
        due = promised(found)
        assert (np.where(due, found.stages[-1].masks[:ranks], 0) == due).all()
        assert len(found.stages) == found.cost.steps == found.traffic.steps
        assert found.most_sent_bytes == pytest.approx(found.cost.sent_bytes)


@every_algorithm
def test_counts_are_of_sets_and_moves_are_of_what_is_sent(collective: str, algorithm: str) -> None:
    found = stepped(collective, algorithm, 6, SIZE)
    for stage in found.stages:
        counted = [[mask.bit_count() for mask in row] for row in stage.masks.tolist()]
        assert stage.contributions.tolist() == counted
        assert stage.contributions.max() <= 6
    pairs: dict[tuple[int, int], int] = {}
    for stage in found.stages:
        for move in stage.moves:
            key = (move.source, move.target)
            pairs[key] = pairs.get(key, 0) + move.size_bytes
    assert pairs == {(each.source, each.target): each.size_bytes for each in found.lanes}


@every_algorithm
def test_steps_are_those_of_the_schedule_executed_as_one(collective: str, algorithm: str) -> None:
    found = stepped(collective, algorithm, 5, SIZE)
    whole = schedule(collective, algorithm, 5, chunks=found.pieces, shape=found.shape)
    assert (executed(whole, found.start[:5]) == found.stages[-1].masks).all()


@every_algorithm
def test_the_printed_formula_is_the_closed_form(collective: str, algorithm: str) -> None:
    for ranks in range(2, 17):
        found = stepped(collective, algorithm, ranks, SIZE)
        data = as_data(found)
        at = {row["symbol"]: row["value"] for row in data["symbols"]} | {"alpha": 1.0, "B": 1.0}
        text = data["formula"].removeprefix("time = ").replace(" x ", "*").replace("^", "**")
        written = re.sub(r"(?<=[0-9a-zA-Z)]) (?=[(a-zA-Z])", "*", text)
        assert evaluate(written, at) == pytest.approx(found.cost.time_s(1.0, 1.0))


def test_every_algorithm_is_listed_once() -> None:
    listed = algorithms()
    pairs = [(collective, each["name"]) for each in listed for collective in each["collectives"]]
    assert sorted(pairs) == sorted(ALGORITHMS)
    assert len({each["name"] for each in listed}) == len(listed)
    assert {collective for collective, _ in pairs} == set(COLLECTIVES)


def test_a_ring_step_by_step() -> None:
    found = stepped("all_reduce", "ring", 4, 4000)
    first = found.stages[0]
    assert {(m.source, m.target) for m in first.moves} == {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert all(m.size_bytes == 1000 and m.reduces and len(m.chunks) == 1 for m in first.moves)
    most = [stage.contributions.max().item() for stage in found.stages]
    assert most == [2, 3, 4, 4, 4, 4]
    assert [stage.moves[0].reduces for stage in found.stages] == [True] * 3 + [False] * 3
    assert found.traffic.sent.tolist() == [6000.0] * 4


def test_steps_are_labelled_by_their_phase_and_the_least_by_its_formula() -> None:
    data = as_data(stepped("all_reduce", "ring", 4, 4000))
    gather = ["all-gather phase"] * 3
    assert [step["phase"] for step in data["steps"]] == ["reduce-scatter phase"] * 3 + gather
    assert data["totals"]["least_in_words"] == "2 (n - 1)/n of the buffer"
    sends = as_data(stepped("send_recv", "direct", 4, 4000))
    assert sends["steps"][0]["phase"] is None
    assert sends["totals"]["least_in_words"] == "the buffer"
    tree = as_data(stepped("all_reduce", "binary_tree", 4, 4000))
    assert tree["steps"][0]["phase"] == "up the tree, adding"


@every_algorithm
def test_phases_belong_to_all_reduces(collective: str, algorithm: str) -> None:
    assert ALGORITHMS[collective, algorithm].phases is None or collective == "all_reduce"


def test_on_a_cluster_the_time_is_bytes_over_the_rate() -> None:
    pytest.importorskip("networkx")
    found = stepped("all_reduce", "ring", 8, 64_000_000, Cluster.named("h100_sxm"))
    assert found.simulation is not None
    assert found.simulation.time_s == pytest.approx(64e6 * 2 * 7 / 8 / 450e9)
    assert found.simulation.busiest.utilisation == pytest.approx(1)
    starts = [stage.start_s for stage in found.stages]
    assert starts == sorted(starts, key=lambda each: each or 0.0)
    assert found.stages[-1].end_s == pytest.approx(found.simulation.time_s)


def test_a_switch_that_adds_up_is_a_place() -> None:
    pytest.importorskip("networkx")
    data = as_data(stepped("all_reduce", "nvls", 8, 2**20, Cluster.named("h100_sxm")))
    switch = data["participants"][-1]
    assert (len(data["participants"]), switch["kind"]) == (9, "switch")
    assert data["topology"]["places"][switch["place"]]["kind"] == "switch"
    assert len(data["steps"][0]["holds"]) == 9
    assert max(map(max, data["steps"][0]["holds"])) == 8
    assert "alpha/2" in data["formula"]


def test_nodes_are_the_rows_of_a_hierarchy() -> None:
    pytest.importorskip("networkx")
    cluster = Cluster.named("h100_sxm", network="ib_8x400g")
    found = stepped("all_reduce", "hierarchical", 16, 2**20, cluster)
    assert found.shape == (2, 8)
    assert stepped("all_reduce", "torus_2d", 16, 2**20, cluster).shape == (4, 4)
    assert stepped("all_reduce", "hierarchical", 16, 2**20, cluster, shape=(8, 2)).shape == (8, 2)


@every_algorithm
def test_the_data_is_plain_and_small(collective: str, algorithm: str) -> None:
    pytest.importorskip("networkx")
    found = stepped(collective, algorithm, 16, 2**20, Cluster.named("gb200_nvl72"))
    text = json.dumps(as_data(found), separators=(",", ":"), allow_nan=False)
    assert len(text) < 210_000
    assert json.loads(text) == as_data(found)


def test_bytes_on_links_are_those_of_the_lanes_that_cross_them() -> None:
    pytest.importorskip("networkx")
    data = as_data(stepped("all_to_all", "direct", 8, 2**20, Cluster.named("v100_cube")))
    crossed = [0.0] * len(data["topology"]["links"])
    for lane in data["links"]:
        for link in lane["route"]:
            crossed[link] += lane["bytes"]
    assert crossed == pytest.approx([link["bytes"] for link in data["topology"]["links"]])


def test_without_a_cluster_nothing_is_simulated() -> None:
    data = as_data(stepped("broadcast", "chain", 3, 999))
    assert data["topology"] is None
    assert data["totals"]["time_s"] is None
    assert [lane["bytes"] for lane in data["links"]] == [999, 999]
    assert "route" not in data["links"][0]


@pytest.mark.parametrize(
    ("words", "options", "error", "message"),
    [
        (("all_reduce", "bruck", 4, 8), {}, UnknownNameError, "algorithm of all_reduce"),
        (("sum", "ring", 4, 8), {}, UnknownNameError, "collective"),
        (("all_reduce", "ring", 17, 8), {}, BadValueError, "at most 16"),
        (("all_reduce", "ring", 1, 8), {}, BadValueError, "ranks"),
        (("all_reduce", "ring", 2.5, 8), {}, BadTypeError, "ranks"),
        (("all_reduce", "ring", 4, 0), {}, BadValueError, "size_bytes"),
        (("all_reduce", "ring", 4, 8), {"shape": (2, 2)}, BadValueError, "takes none"),
        (("all_reduce", "ring", 4, 8), {"pieces": 2}, BadValueError, "has no pipeline"),
        (("broadcast", "chain", 4, 8), {"pieces": 9}, BadValueError, "at most 8"),
        (("all_reduce", "torus_2d", 6, 8), {"shape": (2, 2)}, BadValueError, "product"),
    ],
)
def test_what_cannot_be_is_one_line(
    words: tuple[str, str, int, int],
    options: dict[str, object],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message) as raised:
        stepped(*words, **options)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_a_switch_that_cannot_add_up_is_told() -> None:
    pytest.importorskip("networkx")
    with pytest.raises(BadValueError, match="one switch that reduces"):
        stepped("all_reduce", "nvls", 8, 2**20, Cluster.named("a100_sxm"))


def test_without_networkx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    cluster = Cluster.named("h100_sxm", network="roce_8x400g")
    with pytest.raises(MissingExtraError, match="networkx"):
        stepped("all_reduce", "ring", 3, 2**20, cluster)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_no_rank_of_a_ring_sends_more_than_it_must(ranks: int) -> None:
    found = stepped("all_reduce", "ring", ranks, 48 * 2**20)
    assert found.least_sent_bytes == pytest.approx(2 * (ranks - 1) / ranks * 48 * 2**20)
    assert found.most_sent_bytes == pytest.approx(found.least_sent_bytes, rel=1e-6)


def test_of_a_broadcast_not_every_rank_must_send() -> None:
    names = [each["name"] for each in algorithms() if "broadcast" in each["collectives"]]
    assert stepped("broadcast", names[0], 4, 2**20).least_sent_bytes is None


@every_algorithm
def test_how_it_works_is_said_of_every_algorithm(collective: str, algorithm: str) -> None:
    said = how(collective, algorithm)
    assert 1 <= len(said) <= 4
    assert all(each[0].isupper() for each in said)
    assert all(each.endswith(".") and "  " not in each for each in said)


def test_on_a_machine_the_formula_has_its_latency_and_rate_beside_the_prediction() -> None:
    pytest.importorskip("networkx")
    cluster = Cluster.named("h100_sxm")
    found = stepped("all_reduce", "ring", 8, 2**20, cluster)
    predicted = collective_time("all_reduce", 2**20, cluster, 8)
    model = alpha_beta(found, collective_time("all_reduce", 8, cluster, 8))
    assert model is not None
    assert model.bytes_per_s == 450e9
    assert 0.5e-6 < model.alpha_s < 2e-6
    assert model.time_s == pytest.approx(14 * model.alpha_s + 14 / 8 * 2**20 / 450e9)
    data = as_data(found, model, predicted)
    assert data["numbers"] == "time = 14 x 921.2 ns + 1.75 MiB / 450 GB/s = 16.97 us"
    assert data["predicted"]["low_s"] < data["predicted"]["time_s"] < data["predicted"]["high_s"]
    switch = stepped("all_reduce", "sharp", 8, 2**20, cluster)
    halved = alpha_beta(switch, collective_time("all_reduce", 8, cluster, 8))
    assert halved is not None
    assert "ns/2 + " in as_data(switch, halved)["numbers"]
    assert as_data(stepped("all_reduce", "ring", 8, 2**20))["model"] is None

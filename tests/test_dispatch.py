"""Dispatch and combine: what is counted, that counts hold on real tokens, and how long it takes.

Fitted constants change whenever they are fitted anew, so nothing here states a time; what is held
are counts, orders, and the error on measured rows where they are at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from running import run_error, run_json, run_text

from lab import refit_dispatch
from shardcost import Cluster
from shardcost.collectives.dispatch import (
    DispatchTime,
    alternatives,
    dispatch_time,
    distinct,
    distinct_of_best,
    row_bytes,
    sms_of,
    traffic,
)
from shardcost.collectives.exact.exchange import Exchanged, exchanged
from shardcost.collectives.interval import dispatch_interval_of
from shardcost.collectives.library_time import collective_time
from shardcost.collectives.paths import total
from shardcost.collectives.receipts import OF_DISPATCH, dispatch_receipts
from shardcost.errors import BadValueError, ShardcostError, UnknownNameError
from shardcost.formats.tables import Table, read_table
from shardcost.machine import CATALOG, machine_of
from shardcost.machine.dispatch import (
    CATALOG_DISPATCH,
    PHASES,
    DispatchTables,
    catalog_entries,
    kernel_named,
    kernel_of,
    kernels,
    libraries,
)
from shardcost.validate import dispatch as validate_dispatch
from shardcost.validate.validation import errors_pct, validate

ASK = (
    "collective dispatch --tokens 128 --hidden 7168 --topk 8 --experts 256 --gpus 16 --on h800_sxm"
    " --network ib_8x400g"
).split()
V3 = (7168, 8, 256)
"""Hidden size, top-k and experts of DeepSeek-V3."""


def v3(phase: str, on: str, ranks: int, tokens: float, **others: object) -> DispatchTime:
    network = "ib_8x400g" if ranks > Cluster.named(on).tiers[-1].gpus else None
    return dispatch_time(phase, on, ranks, tokens, *V3, network=network, **others)  # type: ignore[arg-type]


# --- counting ------------------------------------------------------------------------------------


def test_bytes_of_a_token() -> None:
    assert row_bytes(7168, "bf16") == 2 * 7168
    assert row_bytes(7168, "fp8") == 7168 * (1 + 4 / 128)
    assert row_bytes(7168, "fp8", per_expert=True) == 7168 * (1 + 4 / 128) + 16
    assert row_bytes(7168, "nvfp4") == row_bytes(7168, "fp4") == 7168 * (1 / 2 + 1 / 16)


def test_distinct_places_of_few_choices() -> None:
    assert distinct(8, 8, 8) == pytest.approx(8)
    assert distinct(8, 256, 1) == pytest.approx(1)
    assert distinct(1, 256, 8) == pytest.approx(1)
    assert distinct(256, 256, 8) == pytest.approx(8)
    assert distinct(512, 256, 8) == pytest.approx(8)  # replicas of experts


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_distinct_places_of_limited_routing(limit: int) -> None:
    """Drawn: the best domains by their best expert, then the best experts of those."""
    ranks, domains, experts, topk, draws = 8, 4, 32, 4, 20_000
    scores = np.random.default_rng(0).random((draws, domains, experts // domains))
    best = np.argsort(-scores.max(axis=2), axis=1)[:, :limit]
    kept = np.zeros((draws, domains, 1), dtype=bool)
    np.put_along_axis(kept[..., 0], best, values=True, axis=1)
    ranked = np.argsort(-np.where(kept, scores, -1).reshape(draws, experts), axis=1)[:, :topk]
    gpus = np.mean([len(set(row)) for row in ranked // (experts // ranks)])
    nodes = np.mean([len(set(row)) for row in ranked // (experts // domains)])
    assert distinct_of_best(ranks, domains, experts, topk, limit) == pytest.approx(
        (gpus, nodes), rel=0.01
    )


def test_a_limit_of_all_domains_limits_nothing() -> None:
    found = distinct_of_best(64, 8, 256, 8, 8)
    assert found == pytest.approx((distinct(64, 256, 8), distinct(8, 256, 8)))


@pytest.mark.parametrize("per_expert", [False, True])
def test_bytes_add_up(per_expert: bool) -> None:
    sent = traffic(32, 4, 100, *V3, dtype="bf16", per_expert=per_expert)
    if per_expert:
        assert sent.inside_bytes + sent.network_bytes + sent.local_bytes == sent.payload_bytes
        assert sent.payload_bytes == 100 * 8 * 2 * 7168
    else:
        assert sent.inside_bytes + sent.local_bytes == pytest.approx(sent.payload_bytes)
        assert sent.network_bytes < sent.inside_bytes


def routed(
    ranks: int, tokens: int, experts: int, topk: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    chosen = np.argsort(rng.random((ranks, tokens, experts)), axis=2)[:, :, :topk]
    weights = rng.integers(1, 9, (ranks, tokens, topk)).astype(float)
    return rng.integers(-9, 10, (ranks, tokens, 3)).astype(float), chosen, weights


def run(
    ranks: int, per_node: int, experts: int, topk: int, *, per_expert: bool, tokens: int = 400
) -> Exchanged:
    given, chosen, weights = routed(ranks, tokens, experts, topk, seed=ranks * topk)

    def expert(number: int, token: np.ndarray) -> np.ndarray:
        return (number + 1) * token + number

    done = exchanged(given, chosen, weights, experts, per_node, expert, per_expert=per_expert)
    scale = (weights * (chosen + 1)).sum(axis=2, keepdims=True)
    shift = (weights * chosen).sum(axis=2, keepdims=True)
    assert np.array_equal(done.outputs, scale * given + shift)  # as if experts were in place
    return done


@pytest.mark.parametrize("per_expert", [False, True])
@pytest.mark.parametrize(
    ("ranks", "per_node", "experts", "topk"), [(4, 4, 8, 2), (8, 4, 16, 4), (8, 2, 32, 3)]
)
def test_counted_bytes_are_those_of_real_tokens(
    ranks: int, per_node: int, experts: int, topk: int, per_expert: bool
) -> None:
    done = run(ranks, per_node, experts, topk, per_expert=per_expert)
    assert np.array_equal(done.combined, done.dispatched.T)
    assert done.dispatched.sum() == done.combined.sum()
    node = np.arange(ranks) // per_node
    same_node = node[:, None] == node[None, :]
    own = np.eye(ranks, dtype=bool)
    count = ranks * 400
    outside = done.dispatched[~same_node].sum() / count
    inside = done.dispatched[same_node & ~own].sum() / count
    # In elements of one byte, a token of one element: bytes are rows.
    sent = traffic(
        ranks, ranks // per_node, 1, 1, topk, experts, dtype="int8", per_expert=per_expert
    )
    assert outside == pytest.approx(sent.network_bytes, rel=0.05)
    assert inside == pytest.approx(sent.inside_bytes, rel=0.05)


def test_a_token_goes_to_each_other_node_once_at_most() -> None:
    done = run(8, 4, 16, 4, per_expert=False, tokens=50)
    node = np.arange(8) // 4
    crossing = done.dispatched[node[:, None] != node[None, :]]
    assert crossing.sum() <= 8 * 50  # one other node
    rails = done.dispatched[:4, 4:]
    assert np.array_equal(rails, np.diag(np.diag(rails)))  # to the rank of the same place


def test_exact_exchange_refuses_uneven_experts() -> None:
    given, chosen, weights = routed(4, 2, 8, 2, seed=0)
    with pytest.raises(BadValueError, match="multiples"):
        exchanged(given, chosen, weights, 9, 4, lambda _, token: token, per_expert=True)


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("low_latency", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_time_is_the_sum_of_its_parts_and_no_link_is_outrun(phase: str, low_latency: bool) -> None:
    for on in ("h100_sxm", "h200_sxm", "h800_sxm", "h20_sxm", "b200_sxm", "gb200_nvl72", "mi325x"):
        for ranks in (2, 4, 8, 16, 64):
            for tokens in (1, 128, 4096, 1e5):
                result = v3(phase, on, ranks, tokens, low_latency=low_latency)
                assert result.time_s == pytest.approx(total(result.parts))
                assert result.time_s > result.bound_s > 0
                assert 0 < result.link_share < 1
                ends = dispatch_interval_of(result)
                assert ends.low_s < result.time_s < ends.high_s


def test_more_of_anything_takes_longer() -> None:
    base = {"phase": "dispatch", "on": "h100_sxm", "ranks": 16, "tokens": 1024}
    time_s = v3(**base).time_s  # type: ignore[arg-type]
    assert v3(**base | {"tokens": 2048}).time_s > time_s  # type: ignore[arg-type]
    assert v3(**base | {"phase": "combine"}).time_s > time_s  # type: ignore[arg-type]
    assert v3(**base, sms=8).time_s > v3(**base, sms=24).time_s  # type: ignore[arg-type]
    assert v3(**base, dtype="bf16").time_s > time_s  # type: ignore[arg-type]
    assert v3(**base | {"ranks": 64}).time_s > v3(**base | {"ranks": 64}, node_limit=4).time_s  # type: ignore[arg-type]


def test_a_rank_by_itself_sends_nothing() -> None:
    assert v3("dispatch", "h100_sxm", 1, 128).time_s == 0


def test_arrays_are_cells_side_by_side() -> None:
    ranks, tokens = np.array([[2], [8], [32]]), np.array([1.0, 100.0, 5000.0])
    on = machine_of(Cluster.named("h100_sxm", "ib_8x400g"))
    for others in (
        {"low_latency": True},
        {"sms": 12},
        {"node_limit": 2},
        {"library": "nccl"},
        {"library": "trtllm", "mode": "eager"},
    ):
        many = dispatch_time("combine", on, ranks, tokens, *V3, **others)
        assert many.time_s.shape == (3, 3)
        for i, j in np.ndindex(3, 3):
            one = dispatch_time("combine", on, int(ranks[i, 0]), tokens[j], *V3, **others)
            assert many.time_s[i, j] == pytest.approx(one.time_s)
            network_bytes = np.broadcast_to(many.network_bytes, (3, 3))
            assert network_bytes[i, j] == pytest.approx(one.network_bytes)
        assert repr(many).endswith("9 values")


def test_slower_links_take_longer() -> None:
    for others in ({}, {"low_latency": True}, {"library": "nccl"}):
        result = v3("combine", "h100_sxm", 16, 4096, **others)
        assert result.time_on_links_s() == pytest.approx(result.time_s)
        assert result.time_on_links_s(0.5, 0.5) > 1.3 * result.time_s
        assert result.sent_bytes == (result.inside_bytes, result.network_bytes)
        many = result.time_on_links_s(1.0, np.array([0.5, 1.0, 2.0]))
        assert np.all(np.diff(many) < 0)


def test_strided_ranks_are_farther_apart() -> None:
    on = machine_of(Cluster.named("h100_sxm", "ib_8x400g"))
    near = dispatch_time("dispatch", on, 8, 4096, *V3)
    far = dispatch_time("dispatch", on, 8, 4096, *V3, stride=4)
    assert (near.group.domains, far.group.domains) == (1, 4)
    assert near.network_bytes == 0 < far.network_bytes


def test_an_all_to_all_sends_a_row_for_each_pair() -> None:
    result = v3("dispatch", "h100_sxm", 8, 4096, library="nccl", dtype="bf16")
    size = 4096 * 8 * 2 * 7168
    assert result.traffic.payload_bytes == size
    assert result.time_s == collective_time("all_to_all", size, "h100_sxm", 8).time_s
    assert result.kernel == "all_to_all"
    assert v3("dispatch", "h100_sxm", 8, 4096, dtype="bf16").time_s < result.time_s


def test_few_experts_leave_low_latency_kernels_few_multiprocessors() -> None:
    kernel = kernel_of("deepep", low_latency=True)
    assert [sms_of(kernel, 132, experts) for experts in (8, 128, 256, 384)] == [8, 128, 128, 128]
    few = dispatch_time("dispatch", "h100_sxm", 8, 1024, 4096, 2, 8, low_latency=True)
    many = dispatch_time("dispatch", "h100_sxm", 8, 1024, 4096, 2, 128, low_latency=True)
    assert few.time_s > 2 * many.time_s


def test_the_host_sets_a_floor_of_eager_calls_alone() -> None:
    eager = v3("dispatch", "h100_sxm", 8, 1, library="trtllm", low_latency=True, mode="eager")
    graph = v3("dispatch", "h100_sxm", 8, 1, library="trtllm", low_latency=True)
    assert eager.time_s > 2 * graph.time_s
    assert "waiting for the host" in eager.parts
    assert "waiting for the host" not in graph.parts


def test_receipts_come_to_the_parts() -> None:
    seen: set[str] = set()
    for result in (
        v3("dispatch", "h100_sxm", 16, 4096),
        v3("combine", "b200_sxm", 8, 128, low_latency=True),
        v3("combine", "gb300_nvl72", 4, 128, library="trtllm", mode="eager"),
    ):
        values = {each.name: each.evaluate() for each in dispatch_receipts(result)}
        for name, value in result.parts.items():
            assert values[name] == pytest.approx(float(value))
        terms = {term.name for each in dispatch_receipts(result) for term in each.terms}
        seen |= terms
    assert OF_DISPATCH.keys() <= seen


def test_alternatives_are_others_on_such_gpus() -> None:
    others = alternatives(v3("dispatch", "mi300x", 8, 128, library="mori", low_latency=True))
    assert {each.library for each in others} == {"mori", "uccl", "rccl"}
    times = [float(each.time_s) for each in others]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("others", "named"),
    [
        ({"library": "smoke"}, "unknown library"),
        ({"kernel": "smoke"}, "unknown kernel"),
        ({"mode": "slow"}, "unknown mode"),
        ({"dtype": "fp7"}, "unknown dtype"),
        ({"sms": 1000}, "sms must be at most 132"),
        ({"sms": 20, "low_latency": True}, "sms must be left out"),
        ({"sms": 20, "library": "nccl"}, "sms must be left out"),
        ({"node_limit": 0}, "node_limit must be"),
        ({"kernel": "trtllm_one_sided", "nodes": 2}, "kernel must be another across domains"),
    ],
)
def test_what_cannot_be_is_refused(others: dict[str, object], named: str) -> None:
    on = machine_of(Cluster.named("h100_sxm", "ib_8x400g"))
    with pytest.raises(ShardcostError, match=named):
        dispatch_time("dispatch", on, 8, 128, *V3, **others)  # type: ignore[arg-type]


def test_sizes_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="phase"):
        dispatch_time("scatter", "h100_sxm", 8, 1, *V3)
    with pytest.raises(BadValueError, match="at most the number of experts"):
        dispatch_time("dispatch", "h100_sxm", 8, 1, 7168, 9, 8)
    with pytest.raises(ShardcostError, match="tokens"):
        dispatch_time("dispatch", "h100_sxm", 8, 0, *V3)


# --- constants -----------------------------------------------------------------------------------


def test_every_kernel_is_described_and_resolves_everywhere() -> None:
    for kernel in kernels().values():
        assert set(kernel.relatives) <= set(kernels())
        for name in ("h100_sxm", "gb200_nvl72", "mi325x", "a100_sxm"):
            for phase in PHASES:
                found = CATALOG_DISPATCH.resolved(Cluster.named(name), kernel, phase)
                assert found.constants.link_share <= 1
                assert found.constants.network_share <= 1
    for entry in catalog_entries():
        assert entry.kernel in kernels()
        assert entry.fit.rows > 0


def test_resolution_goes_from_the_system_to_its_family_to_a_relative() -> None:
    own = kernel_of("deepep", low_latency=True)

    def resolved(on: str, kernel: str = "deepep_ll", tables: DispatchTables = CATALOG_DISPATCH):  # type: ignore[no-untyped-def]  # noqa: ANN202
        return tables.resolved(Cluster.named(on), kernels()[kernel], "dispatch")

    assert resolved("h100_sxm").inherited_from == ()
    assert set(resolved("h200_sxm").inherited_from) == {"h100_sxm", "h800_sxm"}
    assert resolved("gb200_nvl72").inherited_from == ("gb300_nvl72",)  # a rack like it
    assert resolved("b300_sxm").inherited_from == ("b200_sxm",)
    foreign = resolved("h100_sxm", "trtllm_one_sided")
    assert foreign.relative == own
    assert not foreign.inherited_from
    hidden = CATALOG_DISPATCH.without("h100_sxm", "h800_sxm")
    assert set(resolved("h100_sxm", tables=hidden).inherited_from) == {"b200_sxm"}


def test_inherited_constants_are_noted() -> None:
    notes = v3("dispatch", "h200_sxm", 8, 128).notes
    assert any("inherited from h100_sxm" in note for note in notes)
    notes = v3("dispatch", "gb200_nvl72", 64, 128, kernel="trtllm_one_sided").notes
    assert any("no measurements for trtllm's one-sided" in note for note in notes)
    assert any("extrapolated" in note for note in notes)
    assert v3("dispatch", "h100_sxm", 8, 128).notes == ()
    assert any(
        "no normal kernels" in n for n in v3("dispatch", "h100_sxm", 8, 1, library="pplx").notes
    )
    assert any("does not run on amd" in n for n in v3("dispatch", "mi300x", 8, 1).notes)


def test_the_host_is_inherited_from_like_hosts() -> None:
    tables = CATALOG_DISPATCH.without("b200_sxm")
    kernel = kernels()["trtllm_deepep_ll"]
    there = tables.resolved(Cluster.named("b200_sxm"), kernel, "dispatch")
    assert there.inherited_from == ("gb300_nvl72",)
    h100 = tables.resolved(Cluster.named("h100_sxm"), kernel, "dispatch")
    assert there.constants.host_s == pytest.approx(h100.constants.host_s)
    other = kernels()["trtllm_one_sided"]  # the same library's calls
    foreign = CATALOG_DISPATCH.resolved(Cluster.named("gb200_nvl72"), other, "dispatch").constants
    own = CATALOG_DISPATCH.resolved(Cluster.named("h100_sxm"), other, "dispatch").constants
    assert foreign.host_s is not None
    assert own.host_s is not None
    assert foreign.host_s > own.host_s


def test_a_kind_of_network_that_was_not_measured_is_noted_and_slower_over_efa() -> None:
    hopper = Cluster.named("h100_sxm", "ib_8x400g"), Cluster.named("h100_sxm", "efa_8x400g")
    for low_latency in (False, True):
        over_ib, over_efa = (
            dispatch_time("dispatch", on, 32, 4096, *V3, low_latency=low_latency) for on in hopper
        )
        assert not over_ib.notes
        assert any("over efa" in note for note in over_efa.notes)
        assert over_efa.time_s > over_ib.time_s
    own = dispatch_time("dispatch", "b200_sxm", 32, 4096, *V3, library="uccl", network="efa_8x400g")
    assert not own.notes


def test_names_of_tables_find_kernels() -> None:
    assert kernel_named("deepep_v1_ll") == kernels()["deepep_ll"]
    assert kernel_named("unheard of") is None
    assert {kernel_of(name, low_latency=True).library for name in libraries()} == set(libraries())


# --- the command ---------------------------------------------------------------------------------


def test_the_command_prints_what_is_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, *ASK)
    result = v3("dispatch", "h800_sxm", 16, 128)
    assert data["time_s"] == result.time_s
    assert data["traffic"]["network_bytes"] == result.network_bytes
    assert data["sms"] == 20
    assert data["low_s"] < data["time_s"] < data["high_s"]
    assert sum(data["parts"].values()) == pytest.approx(data["time_s"])
    assert {each["library"] for each in data["alternatives"]} >= {"trtllm", "uccl", "nccl"}
    assert run_json(capsys, *ASK, "--low-latency")["kernel"] == "deepep_ll"
    assert run_json(capsys, *ASK, "--sms", "24", "--dtype", "bf16")["sms"] == 24
    assert run_json(capsys, *ASK, "--library", "nccl")["kernel"] == "all_to_all"


@pytest.mark.parametrize("explain", [[], ["--explain"]])
def test_the_report_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, explain: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = run_text(capsys, *ASK, "--node-limit", "2", *explain)
    assert max(map(len, text.splitlines())) <= 80
    assert "network" in text
    assert "SMs held" in text
    run_text(capsys, *ASK, "--library", "nccl", *explain)
    run_text(capsys, *ASK[:11], "1", "--on", "h100_sxm", *explain)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["collective", "dispatch", "--gpus", "8", "--on", "h100_sxm"], "missing --tokens"),
        ([*ASK, "--size", "1MiB"], "--size is not for dispatch"),
        ([*ASK, "--library", "vllm"], "unknown library"),
        (
            "collective all_reduce --size 1 --gpus 8 --on h100_sxm --topk 8".split(),
            "--topk is for dispatch and combine",
        ),
    ],
)
def test_the_command_refuses_in_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    assert named in run_error(capsys, *words)


# --- measured rows -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(measured: Callable[[str], Path]) -> Table:
    return read_table(measured("dispatch"))


def test_measured_counts_are_ours(table: Table) -> None:
    known = validate_dispatch.cases(table)
    copies, nodes, payload = (
        np.array([float(cell) for cell in table.columns[name]])
        for name in ("dest_gpus", "dest_nodes", "payload_bytes")
    )
    experts = known.sizes[:, 3]
    for case, places in known.rows.items():
        kernel = validate_dispatch.kernel_of_case(case)
        if kernel.per_expert != case.low_latency:
            continue  # tables count copies for each expert where the kernel does not send them
        sent = case.result(known.sizes[places], case.machine()).traffic
        even = experts[places] % case.gpus == 0
        assert np.allclose(np.broadcast_to(sent.domains, even.shape), nodes[places], rtol=1e-3)
        assert np.allclose(
            np.broadcast_to(sent.payload_bytes, even.shape)[even], payload[places][even], rtol=1e-3
        )
        if not case.low_latency:
            found = np.broadcast_to(sent.copies, even.shape)
            assert np.allclose(found[even], copies[places][even], rtol=1e-3)


def test_errors_on_measured_rows(table: Table) -> None:
    found = validate(table, ["library", "cluster"])
    assert found.predicted == table.rows
    assert found.overall.median_pct is not None
    assert found.overall.p90_pct is not None
    assert found.overall.median_pct <= 5
    assert found.overall.p90_pct <= 15
    assert found.overall.coverage_pct is not None
    assert found.overall.coverage_pct >= 88


def test_published_points_of_deepep(table: Table) -> None:
    points = table.where(lambda row: row["dataset"] == "deepep_v1_readme")
    assert points.rows == 20
    assert np.all(np.abs(errors_pct(validate(points))) < 20)


def test_unheard_of_names_are_predicted_by_what_is_like_them(table: Table) -> None:
    few = table.where(lambda row: row["dataset"] == "deepep_v1_readme")
    other = {"kernel": ["v9"] * few.rows, "library": ["unheard of"] * few.rows}
    renamed = replace(few, columns={**few.columns, **other})
    assert np.array_equal(
        validate_dispatch.predictions(renamed).values, validate_dispatch.predictions(few).values
    )
    bad = replace(few, columns={**few.columns, "phase": ["gather"] * few.rows})
    assert set(validate_dispatch.predictions(bad).reasons) == {"phase unknown: 'gather'"}


def test_a_fit_finds_its_own_constants(table: Table) -> None:
    known = [
        rows
        for rows in refit_dispatch.measured(table)
        if (rows.kernel.name, rows.phase) == ("deepep_ll", "dispatch")
    ]
    (rows,) = known
    made_up = replace(
        refit_dispatch.start_of(rows.kernel, "dispatch"), token_s=4e-6, link_share=0.3
    )
    synthetic = replace(rows, time_s=rows.predicted_s(made_up))
    found = refit_dispatch.solved(synthetic, refit_dispatch.start_of(rows.kernel, "dispatch"))
    assert found.token_s == pytest.approx(4e-6, rel=0.02)
    assert found.link_share == pytest.approx(0.3, rel=0.02)


@pytest.mark.refit
def test_errors_on_systems_versions_and_shapes_left_out(table: Table) -> None:
    known = refit_dispatch.measured(table)
    promised = {"a system": (9, 36), "a version": (11, 46), "a shape": (5.5, 16)}
    for fold, (median_pct, p90_pct) in promised.items():
        parts = refit_dispatch.parts_of(table, refit_dispatch.FOLDS[fold])
        errors, facts = refit_dispatch.left_out(table, known, parts)
        sizes = np.abs(errors[np.isfinite(errors)])
        assert np.median(sizes) <= median_pct
        assert np.quantile(sizes, 0.9) <= p90_pct
        assert all(facts)


def test_leaving_a_system_out_is_another_machine() -> None:
    on = Cluster.named("h100_sxm")
    without = machine_of(on, fitted=CATALOG.without("h100_sxm"))
    assert dispatch_time("dispatch", without, 8, 128, *V3).notes
    assert not dispatch_time("dispatch", on, 8, 128, *V3).notes

"""The search: figures are `estimate`'s, the best is the best, every layout is accounted for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from shardcost import (
    Candidate,
    Cluster,
    Decode,
    Found,
    Layout,
    Model,
    Prefill,
    Space,
    Train,
    Workload,
    estimate,
    search,
)
from shardcost.errors import BadTypeError, BadValueError, ShardcostError, UnknownNameError
from shardcost.estimate.interval import bound_s, interval_of
from shardcost.search.batches import largest_batch
from shardcost.search.evaluate import part_of
from shardcost.search.found import rows_as_dicts
from shardcost.search.objectives import Constraints
from shardcost.search.parts import NEAR, Part, degrees_of, front_rows, joined
from shardcost.search.question import Question
from shardcost.search.run import questions_of
from shardcost.search.space import CHOICES, SHAPING, divisors
from shardcost.search.times import CHANGE_LAYERS, CHANGE_STEP

A100 = Cluster.named("a100_sxm", "ib_8x200g")
H100 = Cluster.named("h100_sxm", "ib_8x400g")
TRAIN = Train(global_batch=96, sequence_length=4096)
EVERY_WAY = {
    "tp_overlap": ("none", "async", "chunked"),
    "dp_overlap": (True, False),
    "order": ("tp-cp-dp-pp", "dp-tp-cp-pp", "pp-dp-cp-tp"),
}
FEW = {"recompute": ("none", "full"), "schedule": ("1f1b", "interleaved"), "zero": (0, 1)}

ASKED: dict[str, tuple[str, Cluster, Workload, dict[str, Any], str | None]] = {
    "dense": (
        "gpt3-175b",
        A100,
        Train(global_batch=1536, sequence_length=2048),
        {"gpus": (64, 192)},
        None,
    ),
    "overlap": (
        "llama3-8b",
        H100,
        TRAIN,
        {"gpus": (8, 24), "cp": (1, 2), **FEW, **EVERY_WAY},
        None,
    ),
    "schemes": (
        "llama3-8b",
        H100,
        TRAIN,
        {
            "gpus": (16, 32),
            "cp": (1, 2),
            **FEW,
            "scheme": ("1d", "2d", "2.5d", "3d", "weight_gathered"),
        },
        None,
    ),
    "shards": ("llama3-8b", H100, TRAIN, {"gpus": 64, "shard_degree": (None, 8)}, "torchtitan"),
    "experts": ("mixtral-8x7b", H100, TRAIN, {"gpus": (16, 64), "cp": (1, 2)}, None),
    "latent": (
        "deepseek-v3",
        H100,
        Train(global_batch=960, sequence_length=4096, dtype="fp8"),
        {
            "gpus": 512,
            "cp": 1,
            "context_scheme": "ring",
            "recompute": "full",
            "schedule": ("1f1b", "zero_bubble"),
        },
        None,
    ),
    "host-bound": ("llama3-8b", H100, TRAIN, {"gpus": (8, 16), "cp": (1, 2)}, "nanotron"),
    "prefill": (
        "llama3-70b",
        H100,
        Prefill(batch=8, prompt_tokens=4096),
        {"gpus": (8, 16), "batch": (1, 2, 8, 16)},
        None,
    ),
    "decode": (
        "llama3-70b",
        H100,
        Decode(batch=8, context_tokens=4096),
        {"gpus": (2, 4, 8, 16), "batch": (1, 4, 16, 64, 256)},
        "vllm",
    ),
    "choices of experts": (
        "mixtral-8x7b",
        H100,
        TRAIN,
        {
            "gpus": 64,
            "cp": 1,
            "recompute": "none",
            "context_scheme": "ring",
            "zero": (0, 1),
            "etp": (None, 1),
            "redundant_experts": (0, 8),
            "routing": ("random", "even"),
            "dispatch": ("auto", "deepep"),
            "expert_overlap": ("none", "1f1b"),
        },
        None,
    ),
    "experts decode": (
        "deepseek-v3",
        H100,
        Decode(batch=64, context_tokens=4096, dtype="fp8"),
        {"gpus": (16, 32), "batch": (16, 64, 256)},
        None,
    ),
}


def question(name: str) -> Question:
    model, cluster, workload, space, software = ASKED[name]
    asked = questions_of(model, cluster, workload, space=Space.of(space), software=software)
    return asked[0]


def test_every_choice_is_known_to_change_something() -> None:
    """What families share is priced once, so each choice must be named where it matters."""
    assert {*SHAPING, *CHANGE_LAYERS, *CHANGE_STEP, "schedule"} == set(CHOICES)


@pytest.mark.parametrize("name", ASKED)
def test_cells_of_every_family_are_what_estimate_says(name: str) -> None:
    """Random cells of every block: time and memory to 1e-9, and all cells accounted for."""
    asked = question(name)
    draw = np.random.default_rng(7)
    checked: set[int] = set()
    compared = 0
    blocks = list(asked.blocks(50_000))
    each = max(1, 100 // len(blocks))
    for block in blocks:
        part = part_of(asked, block, table=True)
        assert part.considered == asked.cells_in(block)
        assert part.considered == part.feasible + part.rejected.total()
        rows = list(rows_as_dicts(part.table))
        assert len(rows) == part.feasible
        for which in draw.permutation(len(rows))[:each]:
            found = Candidate(asked, rows[which])
            assert found.estimate.time_s == pytest.approx(found.time_s, rel=1e-9)
            assert found.estimate.memory_bytes == pytest.approx(found.memory_bytes, rel=1e-9)
            assert found.estimate.memory.fits()
            checked.add(rows[which]["family"])
            compared += 1
    assert compared > 30
    for choice in CHOICES:  # every value of every choice has been looked at somewhere
        seen = {getattr(asked.families[family], choice) for family in checked}
        assert seen == set(getattr(asked.space, choice)), choice


def brute_force(
    model: Model, cluster: Cluster, workload: Train, space: dict[str, tuple[Any, ...]]
) -> Iterator[tuple[float, Layout]]:
    """Yield time and layout of everything that `estimate` accepts and that fits."""
    for values in product(*space.values()):
        asked = dict(zip(space, values, strict=True))
        gpus = asked.pop("gpus")
        try:
            layout = Layout(**asked)
            if layout.devices != gpus:
                continue
            found = estimate(model, cluster, layout, workload)
        except ShardcostError:
            continue
        if found.memory.fits():
            yield found.time_s, layout


def test_the_best_is_what_trying_all_finds() -> None:
    gpus = 16
    model, cluster = Model.named("llama3-8b"), H100
    workload = Train(global_batch=16, sequence_length=2048)
    degrees = divisors(gpus)
    space: dict[str, tuple[Any, ...]] = {
        "gpus": (gpus,),
        "tp": degrees,
        "cp": (1, 2),
        "pp": (1, 2, 4),
        "dp": degrees,
        "micro_batch": (1, 2, 4),
        "virtual_stages": (1, 2, 4),
        "sequence_parallel": (False, True),
        "recompute": ("none", "full"),
        "schedule": ("1f1b", "interleaved"),
        "zero": (0, 1, 3),
        "context_scheme": ("ring",),
    }
    every = sorted(brute_force(model, cluster, workload, space), key=lambda each: each[0])
    found = search(model, cluster, workload, space=space, top=50)
    assert found.best[0].time_s == pytest.approx(every[0][0], rel=1e-12)
    # Layouts that do the same as another are counted once by the search.
    times = np.unique(np.round(np.log([each[0] for each in every]), 10))
    shown = np.unique(np.round(np.log([each.time_s for each in found.best]), 10))
    np.testing.assert_allclose(shown, times[: len(shown)], atol=1e-9)


def test_experts_are_searched_as_well_as_by_trying_all() -> None:
    workload = Train(global_batch=16, sequence_length=2048)
    space: dict[str, tuple[Any, ...]] = {
        "gpus": (16,),
        "tp": (1, 2, 4),
        "ep": (1, 2, 4, 8),
        "pp": (1, 2, 4),
        "dp": (1, 2, 4, 8, 16),
        "micro_batch": (1, 2),
        "sequence_parallel": (False, True),
        "recompute": ("full",),
        "zero": (1, 3),
    }
    model = Model.named("mixtral-8x7b")
    every = sorted(brute_force(model, H100, workload, space), key=lambda each: each[0])
    fixed = {"cp": 1, "virtual_stages": 1, "schedule": "1f1b", "context_scheme": "ring"}
    found = search(model, H100, workload, space={**space, **fixed})
    assert found.best[0].time_s == pytest.approx(every[0][0], rel=1e-12)


def test_every_layout_is_feasible_or_has_a_reason() -> None:
    found = search("gpt3-175b", A100, ASKED["dense"][2], space={"gpus": 64})
    assert found.considered == found.feasible + sum(found.rejected.values())
    assert found.feasible > 10_000
    assert {
        "tp does not divide 96 heads",
        "does not fit memory",
        "does not fit memory by more than 2x",
        "pp x virtual stages does not divide 96 layers",
    } <= {reason.message for reason in found.rejected}
    assert len({reason.code for reason in found.rejected}) > 5
    assert min(found.rejected.values()) > 0


def test_a_tighter_memory_leaves_fewer_and_slower() -> None:
    wide, tight = (
        search("llama3-8b", H100, TRAIN, space={"gpus": 8}, constraints={"memory_headroom": each})
        for each in (0.0, 0.4)
    )
    assert tight.feasible < wide.feasible
    assert tight.best[0].time_s >= wide.best[0].time_s
    limit = 0.6 * H100.device.memory_bytes
    assert all(each.memory_bytes <= limit for each in (*tight.best, *tight.front))
    assert tight.beyond is not None
    assert limit < tight.beyond.memory_bytes <= 1.1 * limit


def test_objectives_choose_differently_where_gpus_are_free() -> None:
    asked: dict[str, Any] = {"space": {"gpus": (8, 16, 32, 64), "cp": 1}}
    fastest = search("llama3-8b", H100, TRAIN, **asked).best[0]
    thrifty = search("llama3-8b", H100, TRAIN, objective="throughput", **asked).best[0]
    cheap = search(
        "llama3-8b", H100, TRAIN, objective="cost", price_per_gpu_hour=2.0, **asked
    ).best[0]
    frugal = search("llama3-8b", H100, TRAIN, objective="energy", **asked).best[0]
    assert fastest.layout.devices == 64
    assert thrifty.layout.devices < 64
    assert thrifty.layout == cheap.layout == frugal.layout
    gpu_s = thrifty.time_s * thrifty.layout.devices / TRAIN.tokens
    assert thrifty.score == pytest.approx(gpu_s)
    assert cheap.score == pytest.approx(gpu_s * 2.0 / 3600)
    assert frugal.score == pytest.approx(frugal.estimate.energy_j / TRAIN.tokens)


def test_a_price_for_each_cluster_chooses_the_machine() -> None:
    clusters, space = ["h100_sxm", "a100_sxm"], {"gpus": 8, "cp": 1}

    def cheapest(**prices: float) -> str:
        found = search(
            "llama3-8b",
            clusters,
            TRAIN,
            space=space,
            objective="cost",
            price_per_gpu_hour=prices,
        )
        best = found.best[0]
        assert best.cost_per_token(prices) == pytest.approx(best.score)
        return best.question.cluster.name

    assert cheapest(h100_sxm=2.0, a100_sxm=2.0) == "h100_sxm"
    assert cheapest(h100_sxm=20.0, a100_sxm=2.0) == "a100_sxm"
    with pytest.raises(BadValueError, match="given for a100_sxm too"):
        cheapest(h100_sxm=2.0)


def test_limits_of_serving_hold_and_are_counted() -> None:
    work = Decode(batch=8, context_tokens=4096)
    space = {"gpus": (4, 8), "batch": (1, 4, 16, 64)}
    free = search("llama3-70b", H100, work, space=space, objective="throughput")
    limits = {"max_tpot_s": 0.02, "max_ttft_s": 0.6}
    tied = search("llama3-70b", H100, work, space=space, objective="throughput", constraints=limits)
    assert tied.feasible < free.feasible
    assert tied.best[0].score > free.best[0].score
    assert any("TPOT above 20 ms" in reason.message for reason in tied.rejected)
    for each in tied.front:
        assert each.estimate.tpot_s <= 0.02
        prompt = Prefill(batch=each.layout.dp, prompt_tokens=4096)
        first = estimate("llama3-70b", H100, each.layout, prompt).ttft_s
        assert each.row["ttft_s"] == pytest.approx(first, rel=1e-9)
        assert first <= 0.6


SURE = {"max_tpot_s": 0.02, "max_ttft_s": 0.6, "min_tokens_per_s": 300}


def test_limits_hold_in_the_share_of_cases_that_is_asked_for() -> None:
    work, space = Decode(batch=8, context_tokens=4096), {"gpus": (4, 8, 16), "batch": (4, 8, 16)}
    every = search("llama3-70b", H100, work, space=space, constraints=SURE, top=1000)
    assert len(every.best) == every.feasible
    sure = {"confidence": 0.9, **SURE}
    found = search("llama3-70b", H100, work, space=space, constraints=sure, top=1000)
    kept = [each for each in every.best if all(limit.share >= 0.9 for limit in each.limits)]
    assert 0 < len(kept) < len(every.best)
    assert [dict(each.row) for each in found.best] == [dict(each.row) for each in kept]
    for candidate in every.best[:4]:
        high = interval_of(candidate.estimate).high_s / candidate.time_s
        for limit in (each for each in candidate.limits if not each.limit.of_prompt):
            value, bound = limit.limit.value, limit.limit.bound
            room = value / bound if limit.limit.at_least else bound / value
            assert room >= 1  # the estimate itself keeps it
            assert limit.share >= 0.5
            assert (limit.share >= 0.95) == (room >= high * (1 - 1e-9))


def test_a_limit_below_the_datasheet_never_holds() -> None:
    found = search("llama3-70b", "h100_sxm", Decode(batch=8, context_tokens=4096))
    fastest = found.best[0]
    limits = Constraints(max_tpot_s=0.9 * float(bound_s(fastest.estimate)))
    strict = dataclasses.replace(fastest.question, constraints=limits)
    assert dataclasses.replace(fastest, question=strict).limits[0].share == 0


def test_errors_that_depend_on_the_layout_count_at_their_most() -> None:
    work, limits = Decode(batch=8, context_tokens=4096), {"max_tpot_s": 0.08, "confidence": 0.9}
    found = search("llama3-70b", "gaudi3", work, space={"gpus": 8}, constraints=limits)
    assert found.best
    assert all(each.limits[0].share >= 0.9 for each in found.best)
    assert any(each.limits[0].share > 0.99 for each in found.best)


def test_the_largest_batch_within_the_limits_is_found_among_all() -> None:
    batches, limits = (8, 16, 32, 64, 128), {"max_tpot_s": 0.02}
    space = {"gpus": 4, "batch": batches}
    work = Decode(batch=8, context_tokens=4096, dtype="fp8")

    def feasible(layout: Layout) -> list[int]:
        found = []
        for batch in range(8, 129):
            try:
                result = estimate(
                    "llama3-70b", "h100_sxm", layout, dataclasses.replace(work, batch=batch)
                )
            except ShardcostError:
                continue
            if result.tpot_s <= 0.02 and result.memory_bytes <= result.cluster.device.memory_bytes:
                found.append(batch)
        return found

    place = ("llama3-70b", "h100_sxm", work)
    plain = search(*place, space=space, constraints=limits)
    fast = plain.best[0]
    found = largest_batch(fast)
    assert fast.row["batch"] == 8
    assert found is not None
    assert found.row["batch"] == max(feasible(fast.layout))
    assert found.time_s == pytest.approx(found.estimate.time_s, rel=1e-12)
    busy = search(*place, space=space, constraints=limits, objective="throughput").best
    assert busy[0].layout == fast.layout
    assert busy[0].row["batch"] == found.row["batch"]
    second = next(each for each in busy if each.layout != fast.layout)
    assert second.row["batch"] in feasible(second.layout)
    unlimited = search(*place, space=space, objective="throughput")
    assert largest_batch(unlimited.best[0]) is None
    assert {each.row["batch"] for each in unlimited.best} <= set(batches)


def test_a_batch_in_between_stands_among_the_best_where_it_is_better() -> None:
    batches, limits = (8, 16, 32, 64), {"max_tpot_s": 0.02}
    space: dict[str, Any] = {"gpus": (4, 8), "batch": batches}
    work = Decode(batch=8, context_tokens=4096)
    every = {**space, "batch": tuple(range(8, 65))}
    found, whole = (
        search(
            "llama3-70b",
            "h100_sxm",
            work,
            space=each,
            constraints=limits,
            objective="throughput",
            top=200,
        )
        for each in (space, every)
    )
    assert found.best[0].row["batch"] == whole.best[0].row["batch"]
    assert found.best[0].score == whole.best[0].score
    for layout in {each.layout for each in found.best}:
        mine, all_of_it = (
            [each for each in one.best if each.layout == layout] for one in (found, whole)
        )
        assert mine[0].score == all_of_it[0].score
        between = [each for each in mine if each.row["batch"] not in batches]
        assert len(between) <= 1
        assert between in ([], mine[:1])
    assert found.by_axis["tp"] == whole.by_axis["tp"]  # what axes lead to counts them too
    assert set(found.by_axis["batch"]) <= {*batches, found.best[0].row["batch"]}
    front = {(each.layout, each.row["batch"]) for each in found.front}
    assert (found.best[0].layout, found.best[0].row["batch"]) in front
    assert {each.score for each in found.front} <= {each.score for each in whole.front}


def test_the_front_of_serving_trades_users_for_throughput() -> None:
    work = Decode(batch=8, context_tokens=1024)
    space = {"gpus": (1, 2, 4, 8), "batch": tuple(2**i for i in range(9))}
    front = search("llama3-8b", H100, work, space=space).front
    users = [each.estimate.tokens_per_s_per_user for each in front]
    rates = [each.estimate.tokens_per_s_per_gpu for each in front]
    assert len(front) > 5
    assert users == sorted(users)
    assert rates == sorted(rates, reverse=True)


def test_clusters_models_and_placements_are_axes() -> None:
    clusters = ["h100_sxm", "h200_sxm", "a100_sxm"]
    found = search("llama3-8b", clusters, TRAIN, space={"gpus": 8, "cp": 1})
    alone = [search("llama3-8b", each, TRAIN, space={"gpus": 8, "cp": 1}) for each in clusters]
    assert found.considered == sum(each.considered for each in alone)
    fastest = min(alone, key=lambda each: each.best[0].time_s).best[0]
    assert found.best[0].time_s == fastest.time_s
    assert found.best[0].question.cluster.name == fastest.question.cluster.name
    orders = search("llama3-8b", H100, TRAIN, space={"gpus": 32, "order": EVERY_WAY["order"]})
    assert orders.by_axis["order"]["tp-cp-dp-pp"] < orders.by_axis["order"]["pp-dp-cp-tp"]


def test_formats_engines_and_contexts_are_axes() -> None:
    works = [
        Decode(batch=8, context_tokens=context, dtype=dtype)
        for context in (4096, 32768)
        for dtype in ("bf16", "fp8")
    ]
    place, space, engines = ("llama3-70b", "h100_sxm"), {"gpus": 8}, ("vllm", "trtllm")
    found = search(*place, works, space=space, software=engines)
    alone = {
        (engine, work): search(*place, work, space=space, software=engine)
        for engine in engines
        for work in works
    }
    assert found.considered == sum(each.considered for each in alone.values())
    first = min(alone, key=lambda key: alone[key].best[0].time_s)
    best = found.best[0]
    assert (best.software.name, best.workload.dtype) == (first[0], first[1].dtype)
    assert best.time_s == alone[first].best[0].time_s
    for context, least in found.by_axis["context_tokens"].items():
        alike = [each for (_, work), each in alone.items() if work.context_tokens == context]
        assert least == min(each.best[0].score for each in alike)
    assert set(found.by_axis["dtype"]) == {"bf16", "fp8"}
    assert set(found.by_axis["software"]) == set(engines)
    with pytest.raises(BadTypeError, match="workload must be a Decode"):
        search(*place, [works[0], TRAIN])


@pytest.mark.parametrize("most", [1, 2, 6])
def test_distinct_layouts_are_the_best_of_their_degrees_with_all_variants(most: int) -> None:
    space = Space.of({"gpus": (8, 16), "cp": (1, 2), "context_scheme": "ring", **FEW})
    (asked,) = questions_of("llama3-8b", H100, TRAIN, space=space)
    blocks = list(asked.blocks(500))
    assert len(blocks) > 20
    every = joined([part_of(asked, block, 10**6) for block in blocks], 10**6).best
    groups: dict[tuple[int, ...], list[float]] = {}
    for row in rows_as_dicts(every):
        groups.setdefault(degrees_of(row), []).append(row["score"])
    best = sorted(groups, key=lambda key: groups[key][0])[:most]
    near = [sum(score <= NEAR * groups[key][0] for score in groups[key]) - 1 for key in best]
    assert max(near) > 0
    parts = [part_of(asked, block, most, distinct=True) for block in blocks]
    whole = Part()
    for order in (parts, parts[::-1]):
        whole = Part()
        for part in order:
            whole = joined((whole, part), most, distinct=True)
        found = Found.of([asked], whole, 1.0, most, distinct=True)
        assert [each.score for each in found.best] == [groups[key][0] for key in best]
        assert [each.variants for each in found.best] == near
        assert all(bool(each.varied) == (each.variants > 0) for each in found.best)
    assert len(whole.best["cell"]) < len(every["cell"]) / 4  # what cannot matter is not carried


def test_two_orders_that_place_alike_count_once() -> None:
    every = {"gpus": 16, "cp": 1, "pp": 1, "order": ("tp-cp-dp-pp", "cp-tp-pp-dp")}
    found = search("llama3-8b", H100, TRAIN, space=every)
    alone = search("llama3-8b", H100, TRAIN, space={**every, "order": "tp-cp-dp-pp"})
    assert found.feasible == alone.feasible


def test_a_choice_of_another_phase_is_counted_and_not_priced() -> None:
    space = {"gpus": 16, "cp": 1, "recompute": "none", "zero": 1}
    both = search(
        "mixtral-8x7b", H100, TRAIN, space={**space, "expert_overlap": ("none", "two_batch")}
    )
    alone = search("mixtral-8x7b", H100, TRAIN, space={**space, "expert_overlap": "none"})
    assert both.feasible == alone.feasible
    assert set(both.by_axis["expert_overlap"]) == {"none"}
    assert any(reason.code == "expert_overlap_of_another_phase" for reason in both.rejected)


def test_parts_join_to_the_same_in_any_order() -> None:
    asked = question("schemes")
    parts = [part_of(asked, block, 8) for block in asked.blocks(2_000)]
    assert len(parts) > 20

    whole = Part()
    for part in parts[::-1]:
        whole = joined((whole, part), 8)
    one, two = joined(parts, 8), whole
    assert one.rejected == two.rejected
    assert one.by_axis == two.by_axis
    for name in ("best", "front", "beyond", "smallest"):
        mine, theirs = getattr(one, name), getattr(two, name)
        assert mine.keys() == theirs.keys()
        for column in mine:
            np.testing.assert_array_equal(mine[column], theirs[column])


def test_no_front_leaves_out_a_better_cell() -> None:
    draw = np.random.default_rng(3)
    x, y = draw.integers(0, 40, (2, 500))
    rows = front_rows(x, y, [np.arange(500)])
    for each in range(500):
        beaten = (x <= x[each]) & (y <= y[each]) & ((x < x[each]) | (y < y[each]))
        point = {(x[row], y[row]) for row in rows}
        assert ((x[each], y[each]) in point) == (not beaten.any())


def test_cells_are_numbered_without_gaps() -> None:
    asked = question("schemes")
    tables = [part_of(asked, block, table=True).table for block in asked.blocks(3_000)]
    cells = np.concatenate([each["cell"] for each in tables if each])
    assert len(np.unique(cells)) == len(cells)
    assert cells.max() < asked.cells


@pytest.mark.parametrize(
    ("space", "error", "words"),
    [
        ({"tpp": 8}, UnknownNameError, "tpp"),
        ({"tp": 0}, BadValueError, "axis tp"),
        ({"tp": ()}, BadValueError, "at least one"),
        ({"recompute": "some"}, UnknownNameError, "some"),
        ({"tp_overlap": "both"}, UnknownNameError, "both"),
        ({"batch": 4}, BadValueError, "micro_batch"),
    ],
)
def test_malformed_spaces_are_refused(
    space: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        search("llama3-8b", H100, TRAIN, space=space)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"constraints": {"memory_headroom": 1.5}}, "memory_headroom"),
        ({"constraints": {"memory_headroom": "much"}}, "like 0.1"),
        ({"constraints": 3}, "mapping from each constraint"),
        ({"space": 3}, "mapping from each axis"),
        ({"constraints": {"max_tpot_s": 1.0}}, "Decode"),
        ({"constraints": {"most": 1.0}}, "most"),
        ({"objective": "beauty"}, "beauty"),
        ({"objective": "cost"}, "price_per_gpu_hour"),
        ({"top": 0}, "top"),
    ],
)
def test_malformed_wishes_are_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ShardcostError, match=words):
        search("llama3-8b", H100, TRAIN, **asked)


def test_counts_are_bounded_before_their_divisors_are_listed() -> None:
    many = 735_134_400  # 1,344 divisors, and 4 million ways to write it as four degrees
    for work, space in (
        (TRAIN, {"gpus": (8, many)}),
        (dataclasses.replace(TRAIN, global_batch=many), {"gpus": 8}),
        (Decode(batch=8, context_tokens=512), {"batch": many}),
    ):
        with pytest.raises(BadValueError, match="at most 1,048,576 in a search"):
            search("llama3-8b", H100, work, space=space)
    lengths = [Decode(batch=8, context_tokens=tokens) for tokens in range(1, 1026)]
    with pytest.raises(BadValueError, match="at most 1,024 in a search: give fewer"):
        search("llama3-8b", H100, lengths)
    with pytest.raises(BadValueError, match="ways to divide the GPUs must be at most 2,097,152"):
        search("llama3-8b", H100, TRAIN, space={"gpus": [720720 - 720 * i for i in range(99)]})


def test_degrees_that_multiply_to_no_gpus_are_told() -> None:
    found = search("llama3-8b", H100, TRAIN, space={"gpus": 64, "tp": (7, 8), "dp": 3})
    assert found.feasible == 0
    assert found.considered == sum(found.rejected.values()) > 0
    assert "tp=7 does not divide the GPUs" in map(str, found.rejected)

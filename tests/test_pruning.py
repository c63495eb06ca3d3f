"""A search that leaves layouts out by a bound finds what one finds that prices all of them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from random import Random
from typing import Any

import numpy as np
import pytest

from shardcost import (
    Candidate,
    Cluster,
    Found,
    Layout,
    Model,
    Space,
    Train,
    estimate,
    search,
)
from shardcost.errors import ShardcostError
from shardcost.search.evaluate import part_of
from shardcost.search.grid import Grid
from shardcost.search.parts import Part, joined
from shardcost.search.question import Question
from shardcost.search.run import questions_of
from shardcost.search.times import TrainingTimes

EVALUATE = import_module("shardcost.search.evaluate")
MACHINES = (
    ("h100_sxm", "ib_8x400g"),
    ("a100_sxm", "ib_8x200g"),
    ("mi300x", "roce_8x400g"),
    ("gb200_nvl72", "ib_4x400g"),
    ("l40s", "ib"),
)
MODELS = ("llama3-8b", "llama3-70b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt3-175b", "deepseek-v3")
CHOICES: dict[str, tuple[Any, ...]] = {
    "recompute": ("none", "selective", "full", "layernorm+mlp"),
    "schedule": ("1f1b", "interleaved", "zero_bubble"),
    "zero": (0, 1, 2, 3),
    "sequence_parallel": (False, True),
    "context_scheme": ("ring", "all_gather", "ulysses"),
    "tp_overlap": ("none", "async", "chunked"),
    "dp_overlap": (True, False),
    "order": ("tp-cp-dp-pp", "dp-tp-cp-pp", "pp-dp-cp-tp"),
    "offload_optimizer": (0.0, 1.0),
    "offload_activations": (0.0, 0.5),
    "recompute_layers": (None, 2),
    "shard_degree": (None, 4),
    "expert_overlap": ("auto", "none", "1f1b"),
    "routing": ("random", "even"),
}


def rows(candidates: Any) -> list[Any]:
    return [each and dict(each.row) for each in candidates]


def same(one: Found, two: Found) -> None:
    """Assert that two searches have found the same, to the last bit."""
    assert (one.considered, one.feasible) == (two.considered, two.feasible)
    assert one.rejected == two.rejected
    assert rows(one.best) == rows(two.best)
    assert [(each.variants, each.varied) for each in one.best] == [
        (each.variants, each.varied) for each in two.best
    ]
    assert rows(one.front) == rows(two.front)
    assert rows((one.beyond, one.smallest)) == rows((two.beyond, two.smallest))
    assert one.by_axis == two.by_axis


@pytest.fixture
def prunes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for what may be left out in blocks of any size."""
    monkeypatch.setattr(EVALUATE, "_WHOLE", 0)


def drawn(draw: Random) -> dict[str, Any]:
    """Return a random question to a search."""
    machine = draw.choice(MACHINES)
    chosen = draw.sample(sorted(CHOICES), 4)
    space: dict[str, Any] = {
        name: tuple(draw.sample(CHOICES[name], draw.randint(1, 2))) for name in chosen
    }
    gpus = draw.choice((4, 8, 12, 16))
    space["gpus"] = (gpus, 2 * gpus) if draw.random() < 0.3 else gpus
    for name in ("context_scheme", "schedule", "recompute", "zero"):
        space.setdefault(name, CHOICES[name][0])
    space["cp"] = draw.choice((1, 1, (1, 2)))
    work = Train(global_batch=draw.choice((16, 48, 128)), sequence_length=draw.choice((2048, 8192)))
    objective = draw.choice(("time", "time", "throughput", "cost"))
    return {
        "model": draw.choice(MODELS),
        "cluster": Cluster.named(machine[0], network=machine[1]),
        "workload": work,
        "space": space,
        "objective": objective,
        "price_per_gpu_hour": 2.0 if objective == "cost" else None,
        "distinct": draw.random() < 0.3,
        "top": draw.choice((1, 5, 20)),
        "constraints": {"memory_headroom": draw.choice((0.0, 0.2))},
        "software": draw.choice((None, None, "nanotron", "torchtitan")),
    }


@pytest.mark.usefixtures("prunes_all")
@pytest.mark.parametrize("seed", range(8))
def test_what_is_left_out_changes_nothing(seed: int) -> None:
    """25 random searches each, on all of which it is tried."""
    draw = Random(seed)
    compared = skipped = feasible = 0
    while compared < 25:
        request = drawn(draw)
        try:
            whole = search(**request, exhaustive=True)
        except ShardcostError:  # a draw that does not go together
            continue
        pruned = search(**request)
        same(pruned, whole)
        assert whole.skipped == 0 <= pruned.skipped <= pruned.feasible
        compared += 1
        skipped += pruned.skipped
        feasible += pruned.feasible
    assert 0 < skipped < feasible


@pytest.mark.usefixtures("prunes_all")
def test_the_best_of_a_pruned_search_is_what_trying_all_finds() -> None:
    model, cluster = Model.named("llama3-8b"), Cluster.named("h100_sxm", network="ib_8x400g")
    work = Train(global_batch=16, sequence_length=2048)
    space: dict[str, Any] = {
        "gpus": 16,
        "cp": (1, 2),
        "context_scheme": "ring",
        "sequence_parallel": False,
        "recompute": ("none", "full"),
        "zero": (0, 3),
        "schedule": ("1f1b", "zero_bubble"),
        "virtual_stages": 1,
    }
    found = search(model, cluster, work, space=space, top=8)
    assert found.skipped > found.feasible / 3
    tried = sorted(_tried(model, cluster, work, space))
    assert [each.time_s for each in found.best] == pytest.approx(tried[:8], rel=1e-9)
    assert found.feasible == len(tried)


def _tried(model: Model, cluster: Cluster, work: Train, space: dict[str, Any]) -> Iterator[float]:
    """Yield the times of all layouts of a space that fit, each by itself."""
    powers = (1, 2, 4, 8, 16)
    for tp in powers:
        for cp in space["cp"]:
            for pp in powers:
                dp, rest = divmod(16, tp * cp * pp)
                for micro_batch in powers if not rest and dp else ():
                    numbers = (tp, cp, pp, dp, micro_batch)
                    yield from _of_choices(model, cluster, work, space, numbers)


def _of_choices(
    model: Model, cluster: Cluster, work: Train, space: dict[str, Any], numbers: tuple[int, ...]
) -> Iterator[float]:
    names = ("tp", "cp", "pp", "dp", "micro_batch")
    degrees: dict[str, Any] = dict(zip(names, numbers, strict=True))
    for recompute in space["recompute"]:
        for zero in space["zero"]:
            if zero and degrees["dp"] * degrees["cp"] == 1:
                continue  # the same layout twice
            for schedule in space["schedule"]:
                if schedule != "1f1b" and degrees["pp"] == 1:
                    continue
                choices: dict[str, Any] = {"recompute": recompute, "schedule": schedule}
                try:
                    layout = Layout(**degrees, **choices, zero=zero)
                    result = estimate(model, cluster, layout, work)
                except ShardcostError:
                    continue
                if result.memory.fits():
                    yield result.time_s


def questions() -> Iterator[Question]:
    """Yield questions of all kinds of training."""
    draw = Random(99)
    while True:
        request = drawn(draw)
        names = ("model", "cluster", "workload", "software")
        place = {name: request[name] for name in names}
        try:
            yield from questions_of(**place, space=Space.of(request["space"]))
        except ShardcostError:
            continue


def test_bounds_are_below_times() -> None:
    checked = 0
    for question in questions():
        for block in question.blocks(1_000_000):
            grid = Grid(question, block)
            cells = EVALUATE._Fitting(grid).cells
            if not len(cells.mesh):
                continue
            times, every = TrainingTimes(grid, cells), np.arange(len(cells.mesh))
            exact = times.exact(every).time_s
            low = times.least_s(every, recomputed=False)
            high = times.least_s(every, recomputed=True)
            assert (low > 0).all()
            assert (low <= high).all()
            assert (high <= exact).all()
            checked += len(every)
        if checked > 50_000:
            return


@pytest.mark.usefixtures("prunes_all")
def test_parts_pruned_by_any_others_join_to_the_same() -> None:
    """Workers of a search know different parts of it."""
    cluster = Cluster.named("h100_sxm", network="ib_8x400g")
    work = Train(global_batch=64, sequence_length=4096)
    space = Space.of({"gpus": 16, "cp": (1, 2), "zero": (0, 1)})
    (question,) = questions_of("mixtral-8x7b", cluster, work, space=space)
    blocks = list(question.blocks(10_000))
    whole = joined([part_of(question, block, 8) for block in blocks], 8)
    draw = Random(5)
    for workers in (1, 2, 3):
        draw.shuffle(blocks)
        known = [Part() for _ in range(workers)]
        parts = []
        for block in blocks:
            worker = draw.randrange(workers)
            parts.append(part_of(question, block, 8, known=known[worker]))
            known[worker] = joined((known[worker], parts[-1]), 8)
        pruned = joined(parts, 8)
        assert pruned.skipped > 0
        found = [Found.of([question], part, 1.0, 8) for part in (pruned, whole)]
        same(*found)


def test_workers_leave_out_and_agree() -> None:
    request: dict[str, Any] = {
        "model": "mixtral-8x7b",
        "cluster": Cluster.named("h100_sxm", network="ib_8x400g"),
        "workload": Train(global_batch=1024, sequence_length=4096),
        "space": {"gpus": (64, 128, 256), "recompute": ("none", "full"), "zero": (1, 3)},
    }
    whole = search(**request, exhaustive=True)
    here = search(**request)
    there = search(**request, engine="processes", jobs=2)
    same(here, whole)
    same(there, whole)
    assert min(here.skipped, there.skipped) > 0


def test_limits_and_tables_price_all() -> None:
    cluster = Cluster.named("h100_sxm", network="ib_8x400g")
    work = Train(global_batch=1024, sequence_length=4096)
    limited = search(
        "mixtral-8x7b", cluster, work, space={"gpus": 64}, constraints={"max_time_s": 30.0}
    )
    assert limited.skipped == 0
    assert any(reason.code == "max_time_s" for reason in limited.rejected)


def test_candidates_of_a_pruned_search_are_estimates() -> None:
    cluster = Cluster.named("h100_sxm", network="ib_8x400g")
    work = Train(global_batch=1024, sequence_length=4096)
    found = search("mixtral-8x7b", cluster, work, space={"gpus": 128})
    assert found.skipped > found.feasible / 2
    candidates: list[Candidate] = [*found.best, *found.front[::7]]
    for each in candidates:
        assert each.estimate.time_s == pytest.approx(each.time_s, rel=1e-12)

"""Advice is the truth: figures are an estimate's, reasons a rule's, the change is the best."""

from __future__ import annotations

import threading
from dataclasses import fields, replace
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcost import Cluster, Decode, Layout, Model, Prefill, Software, Train, estimate, search
from shardcost.errors import BadTypeError, BadValueError, ShardcostError
from shardcost.estimate.result import Estimate
from shardcost.layout import EP_DIVIDES
from shardcost.report.estimate import sentences
from shardcost.report.estimate_data import advice_as_data
from shardcost.search.advice import WORTHWHILE_PCT, Advice, advice
from shardcost.search.steps import KEEP_GPUS, Setup, Step, changed
from shardcost.workload import Workload

TRAIN = Train(global_batch=256, sequence_length=4096)
DECODE = Decode(batch=64, context_tokens=4096)
PREFILL = Prefill(batch=8, prompt_tokens=4096)
RACK = Decode(batch=72, context_tokens=512)
NET = "ib_8x400g"
Question = tuple[str, Cluster, Layout, Workload]


def asked(
    model: str, layout: Layout, workload: Workload, on: str = "h100_sxm", net: str | None = NET
) -> Question:
    return model, Cluster.named(on, net), layout, workload


QUESTIONS = {
    "dense training": asked("llama3-70b", Layout(tp=8, pp=2, dp=4, zero=1), TRAIN),
    "interleaved": asked(
        "llama3-8b", Layout(tp=2, pp=4, dp=1, virtual_stages=4, schedule="interleaved"), TRAIN
    ),
    "contexts": asked("llama3-8b", Layout(tp=2, cp=4, dp=2, zero=1, recompute="full"), TRAIN),
    "shards": asked("llama3-8b", Layout(tp=2, dp=8, zero=3, shard_degree=4), TRAIN),
    "experts": asked("mixtral-8x7b", Layout(tp=2, pp=4, dp=2, ep=4, zero=1), TRAIN),
    "decoding": asked("llama3-70b", Layout(tp=8), DECODE, net=None),
    "decoding experts": asked("deepseek-v3", Layout(tp=8, dp=4, ep=32, imbalance=1.2), DECODE),
    "decoding contexts": asked("llama3-8b", Layout(cp=8, dp=2), DECODE),
    "prefill": asked("llama3-70b", Layout(tp=8, pp=2), PREFILL),
    "odd": asked("llama3-8b", Layout(tp=2, dp=3), Decode(batch=48, context_tokens=1000)),
    "rack": asked("llama3-70b", Layout(tp=8, dp=9), RACK, on="gb200_nvl72"),
    "too large": asked("llama3-70b", Layout(tp=8, pp=2, dp=4), TRAIN),
    "no network": asked("llama3-8b", Layout(tp=4, dp=4), DECODE, net=None),
}


@pytest.fixture(scope="module")
def found() -> dict[str, Advice]:
    return {name: advice(*question) for name, question in QUESTIONS.items()}


def every(given: Advice) -> list[Step]:
    return list(chain.from_iterable(given.steps.values()))


def outcome(question: Question, layout: Layout, network: str = "") -> Any:
    model, cluster, _, workload = question
    if network:
        cluster = Cluster.named(cluster.name, network)
    try:
        return estimate(model, cluster, layout, workload)
    except ShardcostError as error:
        return error


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_step_is_what_the_estimate_says(name: str, found: dict[str, Advice]) -> None:
    for step in every(found[name]):
        if step.layout is None:
            assert not step.outcome.possible
            assert step.outcome.reason
            continue
        alone = outcome(QUESTIONS[name], step.layout, step.outcome.network)
        if isinstance(alone, ShardcostError):
            assert not step.outcome.possible, step
            assert not step.outcome.fits
            assert step.outcome.reason is not None
            assert step.outcome.reason.message in str(alone)
            continue
        assert step.outcome.time_s == pytest.approx(alone.time_s, rel=1e-12)
        assert step.outcome.memory_bytes == pytest.approx(alone.memory_bytes, rel=1e-12)
        assert step.tokens_per_s_per_gpu == pytest.approx(alone.tokens_per_s_per_gpu, rel=1e-12)
        assert step.outcome.fits == alone.memory.fits()
        reason = step.outcome.reason
        assert (reason and reason.message) == alone.memory.reason()


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_step_changes_its_axis_and_what_must_go_along(
    name: str, found: dict[str, Advice]
) -> None:
    layout = QUESTIONS[name][2]
    for step in every(found[name]):
        if step.layout is None:
            continue
        changed = {
            each.name
            for each in fields(layout)
            if getattr(layout, each.name) != getattr(step.layout, each.name)
        }
        along = {"virtual_stages": {"schedule"}, "schedule": {"virtual_stages"}}.get(
            step.axis, {"dp"}
        )
        assert changed <= {step.axis, *along, *step.along}
        assert bool(changed) != step.current
        if step.axis in KEEP_GPUS:
            assert step.layout.devices == layout.devices
        if step.axis == "gpus":
            assert step.layout.devices == step.value
        else:
            assert getattr(step.layout, step.axis) == step.value


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_patch_to_the_question_leads_to_the_layout(name: str, found: dict[str, Advice]) -> None:
    layout = QUESTIONS[name][2]
    own = {each.name: getattr(layout, each.name) for each in fields(layout)}
    questions = (
        {**own, "gpus": None},  # asked for by all degrees
        {**own, "gpus": layout.devices, "dp": None},  # by the devices
        {**own, "gpus": layout.devices},  # by both
    )
    for step in every(found[name]):
        if step.layout is None:
            continue
        for question in questions:
            asks = {**question, **step.patch}
            asks.pop("network", None)
            gpus = asks.pop("gpus")
            if asks["dp"] is None:
                asks["dp"] = gpus // (asks["tp"] * asks["cp"] * asks["pp"])
            made = Layout(**asks)
            assert made == step.layout
            assert gpus in {None, made.devices}


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_axis_has_the_value_that_there_is_once(name: str, found: dict[str, Advice]) -> None:
    layout = QUESTIONS[name][2]
    for axis, steps in found[name].steps.items():
        values = [step.value for step in steps]
        assert len(values) == len(set(values))
        now = layout.devices if axis == "gpus" else getattr(layout, axis)
        assert [step.value for step in steps if step.current] == [now]
        if axis not in {"recompute", "schedule", "context_scheme"}:
            assert values == sorted(values)


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_change_is_the_best_single_step(name: str, found: dict[str, Advice]) -> None:
    question, given = QUESTIONS[name], found[name]
    now = outcome(question, question[2])
    best = min(
        (
            alone
            for step in every(given)
            if step.axis in KEEP_GPUS and not (step.current or step.along)
            if step.layout is not None
            for alone in [outcome(question, step.layout)]
            if not isinstance(alone, ShardcostError) and alone.memory.fits() and _even(alone)
        ),
        key=lambda each: (each.time_s, each.memory_bytes),
        default=None,
    )
    change = given.change
    if best is None or (now.memory.fits() and now.time_s / best.time_s - 1 < WORTHWHILE_PCT / 100):
        assert change is None
        return
    assert change is not None
    assert change.time_s == best.time_s
    then = outcome(question, change.layout)
    assert change.time_s == then.time_s
    assert change.tokens_per_s_per_gpu == then.tokens_per_s_per_gpu
    assert change.faster_pct == pytest.approx(100 * (now.time_s / then.time_s - 1))
    assert then.memory.fits()


def _even(alone: Any) -> bool:
    layout, layers = alone.layout, alone.model.num_layers
    parts = layout.pp * layout.virtual_stages
    return layout.virtual_stages == 1 or 0 in {layers % parts, (layers + 2) % parts}


def test_axes_without_meaning_are_left_out(found: dict[str, Advice]) -> None:
    degrees = ["gpus", "tp", "cp", "pp", "dp"]
    training = [
        "virtual_stages",
        "micro_batch",
        "sequence_parallel",
        "recompute",
        "zero",
        "schedule",
    ]
    assert list(found["decoding"].steps) == degrees
    assert list(found["decoding experts"].steps) == [*degrees, "ep"]
    assert list(found["prefill"].steps) == [*degrees, "sequence_parallel"]
    assert list(found["dense training"].steps) == [*degrees, *training]
    assert list(found["experts"].steps) == [*degrees, "ep", *training]
    assert sorted(found["contexts"].steps) == sorted([*degrees, *training, "context_scheme"])


def test_values_are_those_that_make_sense(found: dict[str, Advice]) -> None:
    def values(name: str, axis: str) -> list[Any]:
        return [step.value for step in found[name].steps[axis]]

    assert values("decoding", "tp") == [1, 2, 4, 8]
    assert values("decoding", "gpus") == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert values("dense training", "gpus")[-1] == 1024
    assert values("dense training", "zero") == [0, 1, 2, 3]
    assert values("dense training", "dp")[-1] == 64
    assert values("dense training", "micro_batch") == [1, 2, 4, 8, 16, 32, 64]
    assert values("decoding experts", "ep") == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert values("odd", "dp") == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]
    assert {3, 6} <= set(values("odd", "pp"))
    assert {72, 144} <= set(values("rack", "gpus"))
    assert all(
        32 % (4 * each) == 0 or 34 % (4 * each) == 0
        for each in values("interleaved", "virtual_stages")
    )


def test_other_degrees_give_way_where_they_must(found: dict[str, Advice]) -> None:
    step = next(each for each in found["decoding"].steps["cp"] if each.value == 4)
    assert step.patch == {"tp": 2, "cp": 4, "gpus": 8, "dp": None}
    assert step.along == ("tp",)
    step = next(each for each in found["decoding"].steps["gpus"] if each.value == 4)
    assert step.patch == {"tp": 4, "gpus": 4, "dp": None}
    assert step.outcome.fits
    step = next(each for each in found["dense training"].steps["gpus"] if each.value == 1024)
    assert step.outcome.fits
    assert step.layout == replace(QUESTIONS["dense training"][2], dp=64)
    few = advice("llama3-70b", "h100_sxm", Layout(tp=8), replace(DECODE, batch=4))
    many = next(each for each in few.steps["gpus"] if each.value == 64)
    assert many.layout == Layout(tp=8, pp=2, dp=4)  # not 8 replicas of 4 sequences
    assert many.patch["network"] == many.outcome.network == NET
    step = next(each for each in found["decoding experts"].steps["ep"] if each.value == 64)
    assert step.outcome.reason == EP_DIVIDES.reason()


def test_no_more_gpus_than_a_node_has_without_a_network() -> None:
    cluster = replace(Cluster.named("h100_sxm"), usual_network=None)
    found = advice("llama3-70b", cluster, Layout(tp=8), replace(DECODE, batch=4))
    many = next(each for each in found.steps["gpus"] if each.value == 64)
    assert not many.outcome.possible
    assert "network" in str(many.outcome.reason)


def test_a_missing_network_is_all_that_is_changed() -> None:
    found = advice("llama3-70b", "h100_sxm", Layout(tp=8, pp=4), TRAIN)
    assert found.limit.part == "layout"
    assert found.change is not None
    assert found.change.patch == {"network": NET}
    assert found.change.words.startswith("network ib_8x400g: fits (")


def test_chunks_and_their_schedule_go_together(found: dict[str, Advice]) -> None:
    steps = {each.value: each for each in found["dense training"].steps["virtual_stages"]}
    assert steps[2].patch == {"schedule": "interleaved", "virtual_stages": 2}
    assert steps[2].outcome.possible
    steps = {each.value: each for each in found["interleaved"].steps["schedule"]}
    assert steps["1f1b"].patch == {"virtual_stages": 1, "schedule": "1f1b"}
    assert steps["zero_bubble"].outcome.possible


@pytest.mark.parametrize(
    ("name", "part", "words"),
    [
        ("decoding", "gemm", "memory-bound"),
        ("dense training", "gemm", "compute-bound"),
        ("too large", "memory", "optimizer"),
    ],
)
def test_the_limit_is_the_largest_part(
    name: str, part: str, words: str, found: dict[str, Advice]
) -> None:
    limit = found[name].limit
    assert limit.part == part
    assert words in limit.words
    now = outcome(QUESTIONS[name], QUESTIONS[name][2])
    if part == "memory":
        assert limit.share == max(now.memory.by_kind().values()) / now.memory.peak_bytes
        assert now.memory.reason() in limit.words
    else:
        assert limit.share == max(now.parts_s.values()) / now.time_s


def test_a_slow_link_limits_by_its_bandwidth() -> None:
    found = advice("llama3-8b", "l40s", Layout(tp=8), PREFILL)
    assert found.limit.part == "tp communication"
    assert "bandwidth-bound (+10 % bandwidth inside a node: " in found.limit.words
    assert found.change is not None
    assert found.change.patch["tp"] < 8
    assert "x as fast" in found.change.words
    assert "mostly TP communication" in found.change.words


def test_few_tokens_on_many_devices_wait_for_latency() -> None:
    question = asked("llama3-8b", Layout(tp=16), Decode(batch=1, context_tokens=64))
    found = advice(*question)
    assert found.limit.part == "tp communication"
    assert "latency-bound" in found.limit.words
    inside = asked("llama3-8b", Layout(tp=8), Decode(batch=1, context_tokens=64), on="b200_sxm")
    assert "too small to fill the GPU" in advice(*inside).limit.words
    started = advice(*question[:2], Layout(tp=8), question[3], software="vllm_2025")
    assert started.limit.part == "host and overhead"
    assert "wait for the host" in started.limit.words


def test_a_bubble_limits_by_its_stages() -> None:
    question = asked("gpt3-175b", Layout(tp=8, pp=16), replace(TRAIN, global_batch=4))
    found = advice(*question)
    assert found.limit.part == "bubble"
    assert "16 stages fill and drain over 4 micro-batches" in found.limit.words
    assert found.change is not None
    assert "mostly bubble" in found.change.words


@pytest.mark.parametrize("workload", [DECODE, PREFILL, replace(TRAIN, global_batch=8)])
def test_one_gpu(workload: Workload) -> None:
    found = advice("gpt2-xl", "h100_sxm", Layout(), workload)
    assert [step.value for step in found.steps["tp"]] == [1]
    assert found.limit.part in {"gemm", "attention", "elementwise", "host and overhead"}
    assert 0 < found.limit.share < 1


def test_what_does_not_fit_is_told_what_makes_it_fit(found: dict[str, Advice]) -> None:
    change = found["too large"].change
    assert change is not None
    then = outcome(QUESTIONS["too large"], change.layout)
    assert change.patch == {"zero": 2}
    assert change.words.startswith("zero 0 to 2: fits (")
    assert then.memory.fits()


def test_two_fields_where_one_does_not_help() -> None:
    work = Train(global_batch=16, sequence_length=65536)
    question = asked("llama3-8b", Layout(dp=8), work)
    found = advice(*question)
    others = {
        axis: [step.value for step in found.steps[axis] if not step.current]
        for axis in KEEP_GPUS
        if axis in found.steps
    }
    assert not any(step.outcome.fits for axis in others for step in found.steps[axis])
    assert found.limit.part == "memory"
    change = found.change
    assert change is not None
    assert change.layout.devices == 8
    before, after = vars(question[2]), vars(change.layout)
    assert sum(before[name] != after[name] for name in KEEP_GPUS) == 2
    assert change.time_s == outcome(question, change.layout).time_s
    asks = Setup(Model.named(question[0]), *question[1:], Software.named("megatron_core"))
    pairs = (
        changed(asks, {one: first, two: second}).layout
        for one, two in combinations(others, 2)
        for first, second in product(others[one], others[two])
    )
    alone = [outcome(question, each) for each in pairs if each is not None]
    fit = [each for each in alone if isinstance(each, Estimate) and each.memory.fits()]
    assert change.time_s == min(each.time_s for each in fit)


def test_more_gpus_where_no_field_helps() -> None:
    work = Decode(batch=1, context_tokens=4096)
    found = advice("llama3-70b", "h100_sxm", Layout(), work)
    assert found.change is not None
    assert found.change.patch == {"tp": 2, "gpus": 2, "dp": None}
    assert found.change.words.startswith("GPUs 1 to 2 and tp 1 to 2: fits (")


def test_nothing_to_advise_where_nothing_fits() -> None:
    work = Decode(batch=1, context_tokens=4096, dtype="bf16")
    alone = replace(Cluster.named("l4"), usual_network=None)
    found = advice("deepseek-v3", alone, Layout(), work)
    assert found.limit.part == "memory"
    assert found.change is None
    assert "nor of the GPUs, fits" in sentences(found)[1][1]


def test_an_impossible_layout_is_told_a_possible_one() -> None:
    found = advice("llama3-70b", "h100_sxm", Layout(tp=3, dp=2), DECODE)
    assert found.limit == ("layout", 1.0, "impossible: tp does not divide 64 heads")
    assert found.change is not None
    assert found.change.faster_pct is None
    assert estimate("llama3-70b", "h100_sxm", found.change.layout, DECODE).memory.fits()
    assert advice_as_data(found)["change"]["faster_pct"] is None


def test_an_array_of_layouts_is_refused() -> None:
    import numpy as np

    with pytest.raises(BadTypeError, match="one layout"):
        advice("llama3-70b", "h100_sxm", Layout(tp=np.array([4, 8])), DECODE)


@settings(max_examples=25, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2, 4]),
    dp=st.integers(1, 6),
    zero=st.integers(0, 3),
    recompute=st.sampled_from(["none", "selective", "full"]),
    sequence_parallel=st.booleans(),
    phase=st.sampled_from([Train(global_batch=24, sequence_length=2048), DECODE, PREFILL]),
)
def test_following_advice_never_makes_a_layout_slower(
    tp: int, cp: int, pp: int, dp: int, phase: Workload, **choices: Any
) -> None:
    cluster = Cluster.named("h100_sxm", NET)
    if not isinstance(phase, Train):
        choices = {}
    layout = Layout(tp=tp, cp=cp, pp=pp, dp=dp, **choices)
    found = advice("llama3-8b", cluster, layout, phase)
    if found.change is None:
        return
    then = estimate("llama3-8b", cluster, found.change.layout, phase)
    assert then.memory.fits()
    try:
        now = estimate("llama3-8b", cluster, layout, phase)
    except ShardcostError:
        assert found.limit.part == "layout"
        return
    if now.memory.fits():
        assert then.time_s < now.time_s
        assert then.devices == now.devices
        assert found.change.faster_pct is not None
        assert found.change.faster_pct >= WORTHWHILE_PCT


@pytest.mark.parametrize("name", QUESTIONS)
def test_data_is_plain_and_says_the_same(name: str, found: dict[str, Advice]) -> None:
    import json

    data = advice_as_data(found[name])
    assert json.loads(json.dumps(data)) == data
    assert set(data) == {"steps", "limit", "change"}
    keys = (
        "value",
        "possible",
        "fits",
        "reason",
        "code",
        "time_s",
        "tokens_per_s_per_gpu",
        "current",
        "set",
        "along",
    )
    for step, told in zip(every(found[name]), chain(*data["steps"].values()), strict=True):
        assert tuple(told) == keys
        assert (told["value"], told["time_s"]) == (step.value, step.outcome.time_s)
        assert told["possible"] or not told["fits"]
        assert (told["reason"] is None) == told["fits"]
        assert (told["time_s"] is None) == (not told["possible"])
    assert set(data["limit"]) == {"part", "share", "words"}
    assert [label for label, _ in sentences(found[name])] == ["limit", "change"]


# What watches a search can end it.


class _CancelledError(Exception):
    pass


SMALL = ("llama3-8b", "h100_sxm", replace(TRAIN, global_batch=64))


def test_progress_within_a_task_ends_a_search_and_it_can_be_continued(tmp_path: Path) -> None:
    out = tmp_path / "found.parquet"
    seen: list[tuple[int, int]] = []

    def cancel(done: int, cells: int) -> None:
        seen.append((done, cells))
        raise _CancelledError

    with pytest.raises(_CancelledError):
        search(*SMALL, space={"gpus": 8}, out=out, progress=cancel)
    assert len(seen) == 1
    done, cells = seen[0]
    assert 0 < done <= cells
    assert not out.exists()
    parts = sorted(each.name for each in tmp_path.rglob("*") if each.is_file())
    assert set(parts) <= {"lock", "request.json", "task-000000.json", "task-000000.parquet"}
    space = {"gpus": 8, "cp": 1, "recompute": "none"}
    narrow = tmp_path / "narrow.parquet"
    with pytest.raises(_CancelledError):
        search(*SMALL, space=space, out=narrow, progress=cancel)
    again = search(*SMALL, space=space, out=narrow)
    assert [path.name for path in tmp_path.glob("narrow*")] == ["narrow.parquet"]
    whole = search(*SMALL, space=space)
    assert (again.feasible, again.best[0].time_s) == (whole.feasible, whole.best[0].time_s)


def test_progress_comes_often_and_only_grows() -> None:
    seen: list[tuple[int, int]] = []

    def note(done: int, cells: int) -> None:
        seen.append((done, cells))

    found = search(*SMALL, space={"gpus": 8}, progress=note)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (found.considered, found.considered)
    assert len(seen) > 1


def test_a_search_in_a_thread_is_ended_from_outside() -> None:
    stop, begun = threading.Event(), threading.Event()
    ended: list[str] = []

    def watch(_done: int, _cells: int) -> None:
        begun.set()
        if stop.is_set():
            raise _CancelledError

    cluster = Cluster.named("a100_sxm", "ib_8x200g")

    def run() -> None:
        try:
            search("gpt3-175b", cluster, BIG, space={"gpus": 512}, progress=watch)
        except _CancelledError:
            ended.append("cancelled")

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(30)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert ended == ["cancelled"]


BIG = Train(global_batch=1536, sequence_length=2048)


def test_processes_end_when_a_search_is_cancelled() -> None:
    from multiprocessing import active_children

    def cancel(_done: int, _cells: int) -> None:
        raise _CancelledError

    before = set(active_children())
    with pytest.raises(_CancelledError):
        search(*SMALL, space={"gpus": 8, "cp": 1}, engine="processes", jobs=1, progress=cancel)
    assert set(active_children()) <= before


def test_unknown_software_is_refused() -> None:
    with pytest.raises(BadValueError):
        advice("llama3-70b", "h100_sxm", Layout(tp=8), DECODE, software="none such")

"""Failures, checkpoints and restarts: closed forms against an event simulation, and whole runs."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import run_error, run_json, run_text

from shardcost import (
    BadTypeError,
    BadValueError,
    Cluster,
    Decode,
    Estimate,
    Layout,
    Model,
    Resilience,
    Train,
    cli,
    estimate,
    options,
    training_run,
)
from shardcost.goodput.checkpoints import cycle_s, daly_interval_s, young_interval_s
from shardcost.goodput.run import published
from shardcost.memory import checkpoint_bytes
from shardcost.web.answers import estimate as answered

STEP = (
    "llama3-8b",
    "--on",
    "h100_sxm",
    "--gpus",
    "8",
    "--batch",
    "64",
    "--sequence-length",
    "4096",
)
JOINED = Cluster.named("h100_sxm", "roce_8x400g")


@pytest.fixture(scope="module")
def step() -> Estimate:
    layout = Layout(tp=8, pp=16, dp=128, virtual_stages=8, schedule="interleaved", zero=2,
                    sequence_parallel=True)  # fmt: skip
    work = Train(global_batch=2048, sequence_length=8192)
    return estimate("llama3-405b", JOINED, layout, work, software="megatron_2024")


# ------------------------------------------------------------------------------ closed forms


def simulated_cycle_s(
    work_s: float, save_s: float, write_s: float, mtbf_s: float, restart_s: float, cycles: int
) -> float:
    """Return the mean time of a cycle in a run whose failures come one by one, at random."""
    random_s = random.Random(7)
    clock = 0.0
    next_failure = random_s.expovariate(1 / mtbf_s)
    taken = durable = 0  # cycles whose checkpoint was taken, and whose checkpoint counts
    begun = 0.0  # when the running cycle began
    while durable < cycles:
        end = begun + work_s + save_s
        # A checkpoint counts when it is written, which is before the next one is taken.
        counts = begun + write_s if taken > durable else end + write_s
        event = min(end, counts) if taken > durable else end
        if next_failure <= event:
            clock = next_failure
            next_failure = clock + random_s.expovariate(1 / mtbf_s)
            while next_failure < clock + restart_s:  # it fails while it restarts
                clock = next_failure
                next_failure = clock + random_s.expovariate(1 / mtbf_s)
            clock += restart_s
            begun, taken = clock, durable
        elif taken > durable and counts <= end:
            clock, durable = counts, taken
        else:
            clock = begun = end
            taken += 1
            durable = taken if not write_s else durable
    return clock / cycles


@pytest.mark.parametrize(
    ("work_s", "save_s", "write_s", "mtbf_s", "restart_s"),
    [
        (1000.0, 50.0, 0.0, 10_000.0, 600.0),
        (250.0, 3.0, 0.0, 1_000.0, 600.0),
        (1000.0, 5.0, 400.0, 3_000.0, 900.0),
        (500.0, 1.0, 501.0, 2_000.0, 10.0),
    ],
)
def test_the_closed_form_is_what_an_event_simulation_takes(
    work_s: float, save_s: float, write_s: float, mtbf_s: float, restart_s: float
) -> None:
    simulated = simulated_cycle_s(work_s, save_s, write_s, mtbf_s, restart_s, cycles=200_000)
    expected = cycle_s(work_s, save_s, mtbf_s, restart_s + write_s)
    assert simulated == pytest.approx(expected, rel=0.01)
    assert expected > (work_s + save_s) * (1 + restart_s / mtbf_s)


TIMES = st.floats(1e-3, 1e5)


@given(save_s=TIMES, delay_s=TIMES, longer=st.floats(2.0, 1e4))
def test_goodput_is_a_share_that_falls_with_failures(
    save_s: float, delay_s: float, longer: float
) -> None:
    mtbf_s = longer * (save_s + delay_s)

    def goodput(mtbf: float) -> float:
        interval = daly_interval_s(save_s, mtbf)
        return float(interval / cycle_s(interval, save_s, mtbf, delay_s))

    assert 0 < goodput(mtbf_s) < goodput(1.1 * mtbf_s) < 1
    interval = daly_interval_s(save_s, mtbf_s)
    assert cycle_s(interval, save_s, mtbf_s, delay_s) > cycle_s(interval, save_s, mtbf_s, 0.0)
    assert cycle_s(interval, save_s, mtbf_s, 0.0) > cycle_s(interval, save_s, inf, 0.0)


@given(save_s=TIMES, longer=st.floats(3.0, 1e5), other=st.floats(0.1, 10.0))
def test_no_other_interval_loses_less(save_s: float, longer: float, other: float) -> None:
    mtbf_s = longer * save_s

    def lost(interval: float) -> float:
        return float(cycle_s(interval, save_s, mtbf_s, 0.0) / interval)

    best = daly_interval_s(save_s, mtbf_s)
    assert lost(best) <= lost(other * best) * 1.002
    assert lost(best) <= lost(young_interval_s(save_s, mtbf_s)) * 1.0001


def test_beyond_all_numbers_is_no_error() -> None:
    assert cycle_s(1e6, 1.0, 1e-300, 1.0) == inf
    assert daly_interval_s(10.0, 1.0) == 1.0


# -------------------------------------------------------------------------------- whole runs


def test_a_run_is_its_steps_and_what_failures_take(step: Estimate) -> None:
    run = training_run(step, tokens=15.6e12, price_per_gpu_hour=2.5)
    assert run.steps == -(-15_600_000_000_000 // (2048 * 8192))
    assert run.wall_s == pytest.approx(run.steps * step.time_s / run.goodput)
    assert run.gpu_hours == pytest.approx(24 * run.days * 16384)
    assert run.cost == pytest.approx(2.5 * run.gpu_hours)
    assert run.energy_j == pytest.approx(700 * 16384 * run.wall_s)
    assert sum(run.shares.values()) == pytest.approx(1)
    assert run.failures == pytest.approx(run.wall_s * 16384 / (50_677 * 3600), rel=1e-4)
    low, high = run.days_interval
    assert low < run.days < high
    assert high / run.days > step.interval.high_s / step.time_s
    assert repr(run).startswith("TrainingRun: llama3-405b, 15.6T tokens on 16,384 x h100_sxm")


def test_the_published_run_of_llama_3_is_met(step: Estimate) -> None:
    """30.84 million GPU-hours by the model card, more than 90 % of the time effective."""
    run = training_run(step, tokens=15.6e12)
    assert run.gpu_hours == pytest.approx(30.84e6, rel=0.1)
    assert run.goodput > 0.9
    assert 54 * 86_400 / run.timing.mtbf_s == pytest.approx(419)


def test_formulas_come_to_the_figures(step: Estimate) -> None:
    for resilience in (None, Resilience(checkpoint="async"), Resilience(gpu_mtbf_s=inf)):
        run = training_run(step, tokens=1e12, price_per_gpu_hour=2.0, resilience=resilience)
        found = {each.name: each for each in run.receipts}
        assert {"save_s", "interval_s", "cycle_s", "goodput", "wall_s", "gpu_hours"} <= set(found)
        for each in run.receipts:
            assert each.evaluate() == pytest.approx(each.value, rel=1e-6)
        assert found["wall_s"].value == pytest.approx(run.wall_s)
        assert found["cost"].value == pytest.approx(run.cost)


def test_more_failures_slower_storage_and_waiting_cost_time(step: Estimate) -> None:
    def days(**figures: Any) -> float:
        return training_run(step, tokens=1e12, resilience=Resilience(**figures)).days

    usual = days()
    assert days(gpu_mtbf_s=1e8) > usual > days(gpu_mtbf_s=1e9) > days(gpu_mtbf_s=inf)
    assert days(restart_s=1200.0) > usual > days(restart_s=60.0)
    assert days(checkpoint_bytes_per_s=1e11) > usual > days(checkpoint="async")
    assert days(checkpoint_interval_s=60.0) > usual < days(checkpoint_interval_s=3600.0)
    half = estimate(step.model, JOINED, replace(step.layout, dp=64), step.workload)
    fewer, more = (training_run(each, tokens=1e12) for each in (half, step))
    assert fewer.goodput > more.goodput
    nothing = Resilience(gpu_mtbf_s=inf, checkpoint_bytes_per_s=1e30)
    assert training_run(step, tokens=1e12, resilience=nothing).goodput == pytest.approx(1)
    given = Resilience(gpu_mtbf_s=1.8e8, restart_s=600.0)
    best, worst = training_run(step, tokens=1e12, resilience=given).goodput_interval
    assert best == worst


def test_a_checkpoint_has_weights_and_optimizer_states() -> None:
    model, work = Model.named("llama3-8b"), Train(global_batch=8, sequence_length=4096)
    assert checkpoint_bytes(model, work) == 14 * model.parameters
    assert checkpoint_bytes(model, replace(work, optimizer="sgd")) == 10 * model.parameters
    adapters = checkpoint_bytes(model, replace(work, adapters=True))
    assert 0 < adapters < 0.02 * model.parameters * 14


@pytest.mark.parametrize(
    ("figures", "field"),
    [
        ({"gpu_mtbf_s": 1e-300}, "gpu_mtbf_s"),
        ({"gpu_mtbf_s": 16384.0}, "gpu_mtbf_s"),
        ({"checkpoint_interval_s": 1.0}, "checkpoint_interval_s"),
        ({"checkpoint_bytes_per_s": 1e-3}, "checkpoint_bytes_per_s"),
        ({"checkpoint_bytes_per_s": 1e-3, "gpu_mtbf_s": inf}, "checkpoint_bytes_per_s"),
    ],
)
def test_a_run_that_would_not_end_is_refused(
    step: Estimate, figures: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadValueError) as refused:
        training_run(step, tokens=1e12, resilience=Resilience(**figures))
    assert refused.value.argument == field


def test_what_is_no_run_is_refused(step: Estimate) -> None:
    served = estimate("llama3-8b", "h100_sxm", Layout(), Decode(batch=1, context_tokens=128))
    with pytest.raises(BadTypeError, match="of one training step"):
        training_run(served, tokens=1e12)
    for tokens in (0, -1, 1e300, inf):
        with pytest.raises(BadValueError, match=r"^tokens must be "):
            training_run(step, tokens=tokens)
    with pytest.raises(BadValueError, match=r"^Resilience.gpu_mtbf_s must be "):
        Resilience(gpu_mtbf_s=-1.0)


def test_help_states_the_published_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    known, text = published(), " ".join(run_text(capsys, "run", "--help").split())
    assert f"({known.restart_s.value / 60:.0f}min)" in text.replace("--train, ", "")
    assert f"{known.checkpoint_bytes_per_s.value / 1e6:.0f} MB/s per GPU" in text
    assert all(option.flag in text for option in options.RUN)


# ----------------------------------------------------------------- command line, page's API


def test_run_searches_where_no_degree_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    best = run_json(capsys, "run", *STEP, "--tokens", "1T", "--price", "2.5")
    planned = run_json(capsys, "plan", *STEP, "--train", "--tokens", "1T", "--price", "2.5")
    assert best["searched"] is True
    assert planned["best"][0]["run"]["days"] == best["days"]
    assert planned["best"][0]["tflops_per_gpu"] == best["tflops_per_gpu"]
    given = run_json(capsys, "run", *STEP, "--tokens", "1T", "--tp", "8")
    assert given["searched"] is False
    assert given["layout"]["tp"] == 8
    assert given["days"] > best["days"] > best["step_s"] * best["steps"] / 86_400
    assert given["cost"] is None
    assert best["cost"] == pytest.approx(2.5 * best["gpu_hours"])
    chosen = run_json(capsys, "run", *STEP, "--tokens", "1T", "--zero", "3", "--explain")
    assert chosen["layout"]["zero"] == 3
    assert any("Daly 2006" in line for line in chosen["explanation"])


def test_the_run_is_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    text = run_text(capsys, "run", *STEP, "--tokens", "300B", "--price", "2", "--mtbf", "inf")
    assert len(text.splitlines()) <= 45
    assert "the fastest of" in text
    assert "100.0 %: nothing fails" in text
    assert "a GPU-hour" in text
    explained = run_text(capsys, "run", *STEP, "--tokens", "300B", "--dp", "8", "--zero", "1",
                         "--checkpoint", "async", "--explain")  # fmt: skip
    assert "in the background" in explained
    assert "expm1((interval + save) / MTBF)" in " ".join(explained.split())


def test_an_estimate_of_training_shows_tflops_and_its_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("estimate", *STEP, "--train", "--zero", "1")
    alone, data = run_json(capsys, *words), run_json(capsys, *words, "--tokens", "1e12")
    assert data.pop("run")["tokens"] == 1e12
    assert data == alone
    peak = Cluster.named("h100_sxm").device.peak("bf16") / 1e12
    assert alone["tflops_per_gpu"] == pytest.approx(alone["mfu"] * peak)
    assert alone["hardware_tflops_per_gpu"] == pytest.approx(alone["hfu"] * peak)
    assert alone["intervals"]["tflops_per_gpu"]["low"] < alone["tflops_per_gpu"]
    text = run_text(capsys, *words, "--tokens", "1T")
    assert f"TFLOP/s   {alone['tflops_per_gpu']:.1f} per GPU (" in text
    assert "run       1T tokens in 3,814,698 steps: " in text
    why = run_json(capsys, *words, "--why", "tflops_per_gpu")
    assert why["formula"] == "FLOP / (time x GPUs) / 1000000000000"


def test_a_plan_of_training_has_columns_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", *STEP, "--train", "--top", "2")
    assert " TFLOP/s " in run_text(capsys, *words)
    text = run_text(capsys, *words, "--tokens", "1T", "--price", "2.5", "--pareto")
    assert " days    cost " in text
    assert "cost/Mtok" not in text.splitlines()[4] or len(text.splitlines()[4]) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", *STEP), "a run needs --tokens"),
        (("run", *STEP[:5], "--tokens", "1T"), "a run needs --batch and --sequence-length"),
        (("run", *STEP, "--tokens", "1Q"), "--tokens must be a number above 0, like 15T"),
        (("run", *STEP, "--tokens", "1T", "--mtbf", "soon"), "--mtbf must be hours, like 50000"),
        (("run", *STEP, "--tokens", "1T", "--tp", "8", "--mtbf", "1s"), "--mtbf must be longer"),
        (
            ("run", *STEP, "--tokens", "1T", "--tp", "8", "--checkpoint-interval", "1ms"),
            "--checkpoint-interval must be at least ",
        ),
        (("run", *STEP, "--tokens", "1T", "--imbalance", "2"), "--imbalance is of one layout"),
        (("estimate", *STEP, "--train", "--mtbf", "1"), "--mtbf is of a whole run; give --tokens"),
        (("estimate", *STEP, "--train", "--price", "1"), "--price is of a whole run"),
        (("estimate", *STEP, "--train", "--tokens", "1", "--vary", "tp=1"), "--vary is of one"),
        (("plan", *STEP[:5], "--decode", "--batch", "1", "--context-tokens", "9", "--tokens", "1"),
         "--tokens is for --train, not --decode"),
        (("plan", *STEP, "--train", "--tokens", "1T", "--checkpoint-interval", "1ms"),
         "--checkpoint-interval must be at least "),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in run_error(capsys, *words)


def test_nothing_feasible_is_said_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "llama3-405b", *STEP[1:], "--tokens", "1T"]
    assert cli.main(words) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "nothing feasible among" in err


def test_the_api_takes_the_options_of_a_run() -> None:
    fields = {"model": "llama3-8b", "on": "h100_sxm", "gpus": 8, "zero": 1, "phase": "train"}
    fields |= {"batch": 64, "sequence_length": 4096}
    assert "run" not in answered(fields)
    run = answered(fields | {"tokens": "1T", "price": 2, "mtbf": 50_000})["run"]
    assert run["resilience"]["gpu_mtbf_s"] == 50_000 * 3600
    assert run["cost"] == pytest.approx(2 * run["gpu_hours"])
    endless = answered(fields | {"tokens": 1e9, "mtbf": "inf"})["run"]
    assert endless["mtbf_s"] is None

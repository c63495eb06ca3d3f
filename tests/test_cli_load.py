"""``shardcost load``: one load, loads from low to high, pictures, and how it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from running import run_error, run_json, run_text

from shardcost import (
    BadValueError,
    Cluster,
    Deployment,
    Engine,
    Layout,
    Lengths,
    Limits,
    Model,
    Pool,
    Requests,
    Software,
    cli,
    simulate,
)
from shardcost.cli.options import OnDisk
from shardcost.load.parts import parts_of
from shardcost.load.result import Moment
from shardcost.load.sweep import QUEUE, at_percentile, broken_limits, queue_grows, sweep
from shardcost.options import LOAD
from shardcost.report.load import as_text, sentence
from shardcost.report.load_data import as_data
from shardcost.report.load_plot import over_time
from shardcost.request import ImpossibleError
from shardcost.request import load as load_request

ON = "load llama3-8b --on h100_sxm --software vllm".split()
SHORT = "--isl 256 --osl 32 --requests 60".split()
ONE = [*ON, "--rate", "4", *SHORT]
DIST = {"mean", "p50", "p90", "p99"}
CONTRACT = (
    "requests_per_s output_tokens_per_s tokens_per_s_per_gpu goodput_requests_per_s kv_peak_share"
    " preemptions limit"
).split()
GIVEN: dict[str, Any] = {"model": "llama3-8b", "on": "h100_sxm", "isl": 64, "osl": "16"}


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def deployment_of(**given: Any) -> Deployment:
    return load_request.deployment_of(GIVEN | given, OnDisk())


def requests_of(**given: Any) -> Requests:
    return load_request.requests_of(GIVEN | given, OnDisk())


# ------------------------------------------------------------------------------------ one load


def test_the_document_keeps_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, *ONE, "--max-ttft", "1s", "--max-tpot", "30ms")
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        assert set(data[name]) == DIST
        assert 0 < data[name]["p50"] <= data[name]["p90"] <= data[name]["p99"]
    assert set(CONTRACT) <= set(data)
    assert data["output_tokens_per_s"] == pytest.approx(32 * data["requests_per_s"])
    assert data["tokens_per_s_per_gpu"] * data["gpus"] == pytest.approx(data["output_tokens_per_s"])
    assert data["served"] + data["rejected"] == data["requests"]["count"] == 60
    assert data["goodput_requests_per_s"] == pytest.approx(data["requests_per_s"])
    assert data["limits"] == {"ttft_ms": 1e3, "tpot_ms": 30.0, "e2e_ms": None, "percentile": 90}
    assert data["e2e_ms"]["mean"] > data["ttft_ms"]["mean"] + 30 * data["tpot_ms"]["mean"]


def test_limits_decide_what_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    usual = run_json(capsys, *ONE)
    assert usual["good_share"] == 1.0
    limit = usual["ttft_ms"]["p50"]
    half = run_json(capsys, *ONE, "--max-ttft", f"{limit:.6f}ms")
    assert half["good_share"] == pytest.approx(0.5, abs=0.2)
    share = half["goodput_requests_per_s"] / half["requests_per_s"]
    assert share == pytest.approx(half["good_share"])
    assert run_json(capsys, *ONE, "--max-e2e", "1ms")["goodput_requests_per_s"] == 0


def test_the_same_seed_gives_the_same_document(capsys: pytest.CaptureFixture[str]) -> None:
    first, again = run_json(capsys, *ONE), run_json(capsys, *ONE)
    assert first == again
    assert run_json(capsys, *ONE, "--seed", "1") != first


def test_the_command_line_is_the_function(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(
        Model.named("llama3-8b"), Cluster.named("h100_sxm"), Layout(), Software.named("vllm")
    )
    asked = Requests(rate_per_s=4.0, count=60, prompt=Lengths(mean=256), output=Lengths(mean=32))
    load = simulate(Deployment(Pool(engine)), asked)
    limits = Limits(ttft_s=1.0)
    parts = parts_of(load)
    words = [*ONE, "--max-ttft", "1s"]
    assert run_text(capsys, *words) == as_text(load, limits, parts=parts) + "\n"
    assert run_json(capsys, *words) == json.loads(json.dumps(as_data(load, limits, parts=parts)))


def test_the_report_fits_one_screen_and_says_what_it_is_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [*ONE, *"--max-ttft 1s --max-tpot 30ms --price 2.50 --tp 2 --workers 3".split()]
    text = run_text(capsys, *words)
    assert text.startswith("Serving llama3-8b on 6 x h100_sxm, 3 workers of tp2\n")
    assert len(text.splitlines()) < 25
    assert all(len(line) <= 80 for line in text.splitlines())
    for label in ("TTFT", "TPOT", "ITL", "E2E", "served", "goodput", "queue", "KV cache", "cost",
                  "energy", "limit"):  # fmt: skip
        assert f"\n{label} " in text
    assert "kept by 100.0 %" in text
    assert "rejected" not in text


def test_cost_and_energy_are_those_of_all_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, *ONE, "--price", "3.60", "--tp", "2")
    tokens = data["output_tokens_per_s"]
    assert data["cost_per_million_output_tokens"] == pytest.approx(2 * 3.6 / 3600 / tokens * 1e6)
    assert data["energy_j_per_million_output_tokens"] == pytest.approx(2 * 700 / tokens * 1e6)
    assert run_json(capsys, *ONE)["cost_per_million_output_tokens"] is None


def test_explain_has_settings_steps_and_what_ttft_is_made_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = run_json(capsys, *ONE, "--explain")
    explanation = data["explanation"]
    assert sum(explanation["ttft_s"].values()) == pytest.approx(data["ttft_ms"]["mean"] / 1e3)
    for step in ("prefill", "decode"):
        assert (
            explanation[step]["low_s"] < explanation[step]["time_s"] < explanation[step]["high_s"]
        )
    assert explanation["scheduler"]["max_num_batched_tokens"] == 8192
    text = " ".join(run_text(capsys, *ONE, "--explain").split())
    assert "Source: vLLM's engine arguments" in text
    scheduler = Software.named("vllm").scheduler
    front_s = scheduler.frontend_s + scheduler.frontend_per_request_s
    # Requests that come together wait for each other in the front end.
    assert front_s <= explanation["ttft_s"]["front end"] < 2 * front_s
    assert re.search(r"front end [0-9.]+ ms, queue [0-9.]+ ms, prefill [0-9.]+ ms", text)
    assert "KV transfer" not in text
    assert "(90 %)" in text


def test_an_interval_stands_beside_the_mean() -> None:
    load = simulate(deployment_of(), requests_of(rate=4, requests=20))
    text = as_text(load, Limits(), intervals={"ttft": (0.020, 0.040)})
    assert "mean 20 to 40 ms (90 %)" in text


def test_outputs_of_one_token_have_no_tpot(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*ON, *"--rate 4 --isl 64 --osl 1 --requests 20".split()]
    data = run_json(capsys, *words)
    assert data["tpot_ms"] == dict.fromkeys(DIST)
    assert re.search(r"TPOT +-", run_text(capsys, *words))


# ------------------------------------------------------------------------- what is requested


def test_every_option_of_a_load_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(run_text(capsys, "load", "--help").split())
    for option in LOAD.values():
        assert option.name == "model" or f"{option.flag} " in text
        assert "--train" not in option.described()


def test_options_reach_the_deployment() -> None:
    settings = {"max_num_seqs": 7, "max_num_batched_tokens": 512, "memory_share": "80%"}
    words = {"policy": "prefill-first", "chunked_prefill": "off", "prefix_caching": "off"}
    found = deployment_of(
        **settings, **words, receive_interval=4, tp=2, workers=3, cache_dtype="fp8",
        software="sglang", draft_tokens=2, acceptance=0.5,
    )  # fmt: skip
    engine = found.serving.engine
    scheduler = engine.software.scheduler
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (7, 512)
    assert (scheduler.memory_share, scheduler.policy) == (0.8, "prefill-first")
    assert (scheduler.chunked_prefill, scheduler.prefix_caching) == (False, False)
    assert scheduler.receive_interval == 4
    assert scheduler.block_tokens == Software.named("sglang").scheduler.block_tokens
    assert (engine.layout, found.serving.workers, found.gpus) == (Layout(tp=2), 3, 6)
    assert engine.formats == {"cache_dtype": "fp8"}
    assert (engine.draft_tokens, engine.acceptance) == (2, 0.5)


def test_gpus_beyond_a_worker_are_more_workers() -> None:
    assert deployment_of(gpus=8, tp=2).serving.workers == 4
    assert deployment_of(gpus=8, tp=2, workers=4).gpus == 8
    with pytest.raises(ImpossibleError, match="--gpus must be a multiple of the 4 of"):
        deployment_of(gpus=6, tp=4)
    with pytest.raises(ImpossibleError, match="3 workers x the 2 of a worker"):
        deployment_of(gpus=8, tp=2, workers=3)


def test_pools_have_layouts_of_their_own() -> None:
    found = deployment_of(tp=4, pp=2, prefill_workers=3, prefill_tp=2, prefill_on="a100_sxm")
    assert found.prefill is not None
    assert (found.prefill.workers, found.serving.workers) == (3, 1)
    assert found.prefill.engine.layout == Layout(tp=2, pp=2)
    assert found.serving.engine.layout == Layout(tp=4, pp=2)
    assert isinstance(found.prefill.engine.cluster, Cluster)
    assert found.prefill.engine.cluster.name == "a100_sxm"
    assert found.gpus == 3 * 4 + 8
    assert deployment_of(decode_workers=2).prefill is not None


def test_a_disaggregated_deployment_is_reported_by_pool(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*ONE, *"--prefill-workers 2 --decode-workers 1 --prefill-tp 2".split()]
    data = run_json(capsys, *words)
    pools = [(each["pool"], each["workers"], each["gpus"]) for each in data["pools"]]
    assert pools == [("prefill", 2, 4), ("decode", 1, 1)]
    assert set(data["busy_share"]) == {"prefill", "decode"}
    assert "decode on 1 x h100_sxm" in " ".join(run_text(capsys, *words).split())


def test_requests_have_defaults_by_their_arrival() -> None:
    assert (requests_of(rate="2.5").arrival, requests_of(rate=2.5).count) == ("poisson", 1000)
    closed = requests_of(users=16)
    assert (closed.arrival, closed.users, closed.count) == ("closed", 16, 160)
    assert requests_of(users=16, requests=20).count == 20
    burst = requests_of(arrival="all-at-once")
    assert (burst.count, burst.rate_per_s, burst.users) == (1000, None, None)
    assert requests_of(rate=1, isl="819-1024").prompt == Lengths.parse("819-1024")


REFUSED = [
    ("--isl 64 --osl 8", "poisson arrivals need --rate; or give --users or --trace"),
    ("--rate 1", "a load needs --isl and --osl, or --trace"),
    ("--rate 1 --isl 64", "a load needs --osl, or --trace"),
    ("--rate 0 --isl 64 --osl 8", "--rate must be a finite number above 0, got 0.0"),
    ("--rate -1 --isl 64 --osl 8", "--rate must be a finite number above 0, got -1.0"),
    ("--rate nan --isl 64 --osl 8", "--rate must be a finite number above 0, got nan"),
    ("--rate 1e-300 --isl 64 --osl 8", "--rate must be from 1e-06 to 1e+06 requests per second"),
    ("--rate fast --isl 64 --osl 8", "--rate must be a number, got 'fast'"),
    ("--users 0 --isl 64 --osl 8", "--users must be a whole number of at least 1, got 0"),
    ("--users -3 --isl 64 --osl 8", "--users must be a whole number of at least 1, got -3"),
    ("--rate 1 --users 4 --isl 64 --osl 8", "--users is for closed arrivals, not poisson"),
    ("--rate 1 --arrival closed --isl 64 --osl 8", "--rate is for poisson arrivals, not closed"),
    ("--arrival closed --isl 64 --osl 8", "closed arrivals need --users"),
    ("--users 4 --arrival all-at-once --isl 64 --osl 8", "--users is for closed arrivals"),
    ("--rate 1 --arrival weekly --isl 64 --osl 8", "unknown --arrival 'weekly'"),
    ("--rate 1 --isl -5 --osl 8", "--isl must be tokens such as 1024, 819-1024"),
    ("--rate 1 --isl 0 --osl 8", "--isl must be tokens such as"),
    ("--rate 1 --isl 9-3 --osl 8", "--isl must be tokens such as"),
    ("--rate 1 --isl 64 --osl lognormal:300", "--osl must be tokens such as"),
    ("--rate 1 --isl 64 --osl nan", "--osl must be tokens such as"),
    ("--rate 1 --isl 64 --osl 8 --requests 0", "--requests must be a whole number of at least 1"),
    ("--rate 1 --isl 64 --osl 8 --requests 99999999999", "requests must be at most 10000000"),
    ("--rate 1 --isl 64 --osl 8 --seed -1", "--seed must be a whole number of at least 0"),
    ("--rate 1 --isl 64 --osl 8 --percentile 50", "--percentile is of limits; give --max-ttft"),
    ("--rate 1 --isl 64 --osl 8 --max-ttft 1s --percentile 100", "--percentile must be from 1"),
    ("--rate 1 --isl 64 --osl 8 --max-ttft 5", "--max-ttft must be a time with its unit"),
    ("--rate 1 --isl 64 --osl 8 --max-tpot 0s", "--max-tpot must be a finite number above 0"),
    ("--rate 1 --isl 64 --osl 8 --acceptance 0.5", "--acceptance is of drafts; give --draft-"),
    ("--rate 1 --isl 64 --osl 8 --prefill-tp 2", "--prefill-tp is for disaggregated workers"),
    ("--rate 1 --isl 64 --osl 8 --prefill-workers 1 --workers 2", "--workers is for one pool"),
    ("--rate 1 --isl 64 --osl 8 --prefill-workers 1 --gpus 2", "--gpus is for one pool"),
    ("--rate 1 --isl 64 --osl 8 --workers 99999999", "--workers must be at most 10,000"),
    ("--rate 1 --isl 64 --osl 8 --max-num-seqs 0", "--max-num-seqs must be a whole number"),
    ("--rate 1 --isl 64 --osl 8 --memory-share 120%", "--memory-share must be a share from 0"),
    ("--rate 1 --isl 64 --osl 8 --policy greedy", "unknown --policy 'greedy'"),
    ("--rate 1 --isl 64 --osl 8 --chunked-prefill maybe", "--chunked-prefill must be on or off"),
    ("--rate 1 --isl 64 --osl 8 --plot x.pdf", "plot must be a file name that ends in .png"),
    ("--rate 1 --isl 64 --osl 8 --timeline x.txt", "plot must be a file name that ends in .png"),
    ("--rate 1 --isl 64 --osl 8 --zero 1", "unrecognized arguments: --zero 1"),
    ("--rate 1 --isl 64 --osl 8 --software abacus", "unknown software 'abacus'"),
    ("--rate 1 --isl 64 --osl 8 --price free", "--price must be a number, got 'free'"),
    ("--rate 1 --sweep rate --isl 64 --osl 8", "--rate and --sweep exclude each other"),
    ("--users 4 --sweep rate --isl 64 --osl 8", "--users and --sweep exclude each other"),
    ("--sweep speed --isl 64 --osl 8", "unknown name in --sweep 'speed'; known: concurrency, rate"),
    ("--sweep rate=8..1 --isl 64 --osl 8", "--sweep must be from a smaller number to a larger"),
    ("--sweep rate=0..8 --isl 64 --osl 8", "--sweep must be a finite number above 0, got 0.0"),
    ("--sweep rate= --isl 64 --osl 8", "--sweep must be one value or several"),
    ("--sweep rate --isl 64 --osl 8 --explain", "--explain and --sweep exclude each other"),
    ("--sweep rate --isl 64 --osl 8 --timeline x.svg", "--timeline and --sweep exclude each"),
    (f"--sweep rate={','.join(map(str, range(1, 102)))} --isl 64 --osl 8",
     "--sweep must be of at most 100 loads"),
    ("--sweep concurrency=1.5 --isl 64 --osl 8", "--sweep must be a whole number, got '1.5'"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[words for words, _ in REFUSED])
def test_bad_input_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert f"shardcost: {said}" in run_error(capsys, *ON[:4], *words.split())


def infeasible(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    assert cli.main(words) == 3
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    return out, err


def test_nothing_feasible_has_its_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    large = ["load", "llama3-70b", "--on", "h100_sxm", "--rate", "1", *SHORT]
    out, err = infeasible(capsys, *large)
    assert out == ""
    assert "layout must be one that leaves memory for a KV cache beside the weights" in err
    assert "tp does not divide 32 heads" in infeasible(capsys, *ONE, "--tp", "3")[1]
    assert "--gpus must be a multiple" in infeasible(capsys, *ONE, "--tp", "4", "--gpus", "6")[1]


def test_requests_longer_than_the_kv_room_are_rejected_and_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [*ON, *"--rate 1 --osl 8 --requests 30".split()]
    out, err = infeasible(capsys, *words, "--isl", "50000000", "--json")
    assert err == "shardcost: all 30 requests are longer than the KV cache of a worker holds\n"
    data = json.loads(out)
    assert (data["served"], data["rejected"], data["ttft_ms"]["mean"]) == (0, 30, None)
    some = run_json(capsys, *words, "--isl", "64-1000000")
    assert 0 < some["rejected"] < 30
    assert some["served"] + some["rejected"] == 30
    assert some["good_share"] == pytest.approx(some["served"] / 30)
    assert f"{some['rejected']} requests that the KV" in run_text(capsys, *words, "--isl",
                                                                  "64-1000000")  # fmt: skip


def test_overload_ends(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*ON, *"--isl 512 --osl 64 --requests 400 --max-num-seqs 4".split()]
    data = run_json(capsys, *words, "--rate", "1000000")
    assert data["served"] == 400
    assert data["limit"] == "max_num_seqs"
    assert "max_num_seqs (4): requests wait" in run_text(capsys, *words, "--rate", "1000")


# --------------------------------------------------------------------------------- recorded


def test_a_trace_is_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    rows = [f"{0.5 * i},{100 + i},{10 + i % 3}" for i in range(40)]
    file.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows, "21,0,5"]) + "\n")
    data = run_json(capsys, *ON, "--trace", str(file))
    assert (data["requests"]["arrival"], data["requests"]["count"]) == ("trace", 40)
    assert data["requests"]["mean_prompt_tokens"] == pytest.approx(119.5)
    assert data["span_s"] > 19.5
    assert any("1 requests without a prompt" in note for note in data["notes"])
    faster = run_json(capsys, *ON, "--trace", str(file), "--rate", "20")
    assert faster["span_s"] < 4
    assert run_json(capsys, *ON, "--trace", str(file), "--requests", "7")["served"] == 7
    text = " ".join(run_text(capsys, *ON, "--trace", str(file)).split())
    assert "40 requests of a trace, mean prompt 120 tokens" in text
    swept = run_json(capsys, *ON, "--trace", str(file), "--sweep", "rate=1,2")
    assert [point["value"] for point in swept["points"]] == [1.0, 2.0]


def test_a_trace_refuses_what_it_has_itself(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "requests.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,64,8\n0,64,8\n")
    for words in ("--isl 64", "--osl 8", "--users 3", "--seed 1", "--prefix-tokens 8"):
        said = run_error(capsys, *ON, "--trace", str(file), *words.split())
        assert f"{words.split()[0]} and --trace exclude each other" in said
    said = run_error(capsys, *ON, "--trace", str(file), "--arrival", "poisson")
    assert "--arrival poisson and --trace exclude each other" in said
    said = run_error(capsys, *ON, "--trace", str(file), "--rate", "3")
    assert "a trace whose requests all come at once has no rate to change" in said
    said = run_error(capsys, *ON, "--trace", str(file), "--sweep", "concurrency")
    assert "a trace has no users" in said
    assert "cannot be read" in run_error(capsys, *ON, "--trace", str(tmp_path / "none.csv"))
    file.write_text("arrival_s,prompt_tokens,output_tokens\n")
    assert "has no requests" in run_error(capsys, *ON, "--trace", str(file))


# ------------------------------------------------------------------------------------- a sweep


def one_at_a_time() -> Deployment:
    """Return a deployment that serves one request after the other, each as long as the last."""
    return deployment_of(max_num_seqs=1)


def service_s(deployment: Deployment) -> float:
    burst = simulate(deployment, requests_of(arrival="all-at-once", requests=200))
    return 1 / burst.requests_per_s


def test_the_knee_of_a_server_of_one_request_is_the_inverse_of_its_time() -> None:
    deployment = one_at_a_time()
    found = sweep(deployment, requests_of(rate=1))
    assert found.knee is not None
    assert found.knee.value * service_s(deployment) == pytest.approx(1.0, abs=0.1)
    assert found.broken is not None
    assert found.broken.broken == (QUEUE,)
    assert found.broken.value < 1.03 * found.knee.value
    assert "requests arrive faster than they are served" in sentence(found)


def test_users_of_a_server_of_one_request_wait_for_all_others() -> None:
    deployment = one_at_a_time()
    limits = Limits(e2e_s=5.5 * service_s(deployment))
    found = sweep(deployment, requests_of(users=1), over="concurrency", limits=limits)
    assert found.knee is not None
    assert found.knee.value == 5
    assert found.broken is not None
    assert (found.broken.value, found.broken.broken) == (6, ("e2e",))


def test_a_sweep_stops_at_the_first_load_that_breaks_a_limit() -> None:
    deployment = deployment_of()
    alone = simulate(deployment, requests_of(users=1, requests=20))
    requests = requests_of(rate=1, requests=200)
    tpot_s = 1.5 * alone.tpot_s.p90
    found = sweep(deployment, requests, limits=Limits(tpot_s=tpot_s), count=200)
    assert found.knee is not None
    assert found.broken is not None
    assert at_percentile(found.knee.load, "tpot", 90) <= tpot_s
    assert at_percentile(found.broken.load, "tpot", 90) > tpot_s
    values = [point.value for point in found.points]
    assert values == sorted(values)
    at_all = sweep(deployment, requests, limits=Limits(tpot_s=0.5 * alone.tpot_s.p50), count=50)
    assert at_all.knee is None
    assert sentence(at_all).startswith("Holds no load tried at TPOT p90 ")


def test_loads_that_are_all_held_are_at_least_that() -> None:
    limits = Limits(ttft_s=10.0)
    found = sweep(deployment_of(), requests_of(rate=1), values=[1, 2], limits=limits, count=30)
    assert found.broken is None
    assert sentence(found) == (
        "Holds at least 2 requests/s at TTFT p90 10 s; no load tried breaks them."
    )
    first, second = found.points
    uneven = replace(found, points=(first, replace(first, value=1.5, broken=("ttft",)), second))
    assert sentence(uneven).endswith(" Higher loads are held again, up to 2.")
    with pytest.raises(BadValueError, match="values must be loads"):
        sweep(deployment_of(), requests_of(rate=1), values=[])


def test_rejected_requests_break_every_limit() -> None:
    limits = Limits(ttft_s=100.0)
    load = simulate(deployment_of(), requests_of(rate=1, isl="50000000", requests=5))
    assert broken_limits(load, limits) == ("ttft", QUEUE)


def test_a_queue_grows_where_more_arrives_than_is_served() -> None:
    deployment = one_at_a_time()
    rate = 1 / service_s(deployment)
    slow, fast = (requests_of(rate=share * rate, requests=600) for share in (0.6, 1.4))
    assert not queue_grows(simulate(deployment, slow))
    assert queue_grows(simulate(deployment, fast))


def test_a_sweep_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*ON, "--isl", "256", "--osl", "32", "--requests", "300", "--max-tpot", "12ms"]
    data = run_json(capsys, *words, "--sweep", "rate=1..128")
    values = [point["value"] for point in data["points"]]
    assert {1.0, 2.0, 64.0, 128.0} < set(values)
    held = [point["value"] for point in data["points"] if point["held"]]
    assert data["holds"] in held
    assert data["first_limits"] == ["tpot"]
    assert data["holds"] < data["breaks_at"] < 1.03 * data["holds"]
    assert set(CONTRACT) <= set(data["points"][0])
    text = run_text(capsys, *words, "--sweep", "rate=1..128")
    assert data["words"] in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.splitlines())
    users = run_json(capsys, *words, "--sweep", "concurrency=1..4")
    assert users["points"][0]["value"] == 1
    out, err = infeasible(capsys, *words[:-1], "1us", "--sweep", "rate=1,2", "--json")
    assert json.loads(out)["holds"] is None
    assert "Holds no load tried" in err


@pytest.mark.parametrize("over", ["rate", "rate=1,2", "concurrency"])
def test_a_sweep_of_requests_that_never_fit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, over: str
) -> None:
    words = [*ON, *"--isl 50000000 --osl 8 --requests 20".split(), "--sweep", over]
    plot = tmp_path / "sweep.svg"
    out, err = infeasible(capsys, *words, "--plot", str(plot))
    assert "no: queue" in out
    assert "no request fits the KV cache of a worker" in err
    assert "TTFT" in drawn(plot)


# ------------------------------------------------------------------------------------ pictures


def drawn(file: Path) -> str:
    """Return the texts of an SVG file."""
    root = ET.fromstring(file.read_text())
    assert root.tag.endswith("svg")
    return " ".join(part.text or "" for part in root.iter() if part.tag.endswith("text"))


def test_pictures_have_the_limits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot, line = tmp_path / "load.svg", tmp_path / "line.svg"
    words = ["--max-ttft", "1s", "--max-tpot", "30ms", "--max-e2e", "2s"]
    text = run_text(capsys, *ONE, *words, "--plot", str(plot), "--timeline", str(line))
    assert f"Plot: {plot}" in text
    texts = drawn(plot)
    for said in ("TTFT", "TPOT", "E2E", "limit 1 s", "limit 30 ms", "limit 2 s", "p99"):
        assert said in texts
    for said in ("sequences that decode", "prompt tokens", "requests that wait", "KV cache"):
        assert said in drawn(line)
    curve = tmp_path / "sweep.svg"
    words = [*ON, "--isl", "256", "--osl", "32", "--requests", "40", "--max-ttft", "1s"]
    run_text(capsys, *words, "--sweep", "rate=1,64", "--plot", str(curve))
    for said in ("TTFT", "TPOT", "requests/s", "limit 1 s"):
        assert said in drawn(curve)


def test_png_and_loads_of_one_request(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot, line = tmp_path / "load.png", tmp_path / "line.png"
    one = [*ON, *"--rate 1 --isl 64 --osl 1 --requests 1".split()]
    data = run_json(capsys, *one, "--plot", str(plot), "--timeline", str(line))
    assert (data["plot"], data["timeline"]) == (str(plot), str(line))
    for file in (plot, line):
        assert file.read_bytes().startswith(b"\x89PNG")


def test_what_happens_over_time_is_weighted_by_time() -> None:
    moments = [
        Moment(0.0, 1.0, 0, 1, 4, 100, 0, 0.2),
        Moment(1.0, 3.0, 0, 2, 8, 0, 2, 0.4),
        Moment(0.0, 4.0, 1, 9, 1, 0, 1, 0.6),
    ]
    edges = np.linspace(0.0, 4.0, 3)
    assert over_time(moments, "sequences", edges).tolist() == [7.0, 9.0]
    assert over_time(moments, "kv_share", edges) == pytest.approx([0.6, 0.6])
    assert over_time([], "waiting", edges).tolist() == [0.0, 0.0]


def test_arrivals_do_not_wait_for_the_front_end() -> None:
    requests = requests_of(rate=500, requests=300)
    load = simulate(deployment_of(), requests)
    assert load.arrival_s == pytest.approx(requests.stream().arrival_s)


def test_mean_counts_follow_littles_law() -> None:
    """What is in the batch on average is what arrives times how long it decodes."""
    load = simulate(deployment_of(), requests_of(rate=20, osl=64, requests=400))
    decoding = float((load.finished_s - load.first_token_s).sum())
    assert load.mean_running == pytest.approx(decoding / float(load.finished_s.max()), rel=0.02)


def test_a_model_with_a_short_context_is_noted() -> None:
    deployment = deployment_of()
    engine = deployment.serving.engine
    short = replace(engine, model=replace(engine.model, context_tokens=70))
    load = simulate(Deployment(Pool(short)), requests_of(rate=4, isl="32-64", requests=20))
    parts = parts_of(load)
    assert 0 < parts.beyond_context < 20
    text = " ".join(as_text(load, Limits(), parts=parts).split())
    assert f"{parts.beyond_context} requests exceed the model's context of 70" in text

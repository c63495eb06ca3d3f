"""``shardcost plan``: what it finds is what `search` finds, on one screen or as one document."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from running import run_error, run_json, run_text

import shardcost.cli.progress as bars
from shardcost import Cluster, Decode, Layout, Train, cli, search
from shardcost.report.plan import as_text, money
from shardcost.report.plan_data import as_data
from shardcost.search.plan import Plan
from shardcost.values import several, wholes

TRAIN = (
    "plan llama3-8b --on h100_sxm --gpus 8 --train --batch 64 --sequence-length 4096 --fix cp=1"
).split()
DECODE = (
    "plan llama3-70b --on h100_sxm --gpus 4,8 --decode --batch 1..64 --context-tokens 4096"
).split()
PREFILL = "plan llama3-70b --on h100_sxm --prefill --batch 1,4 --prompt-tokens 4096".split()
EXPERTS = (
    "plan mixtral-8x7b --on h100_sxm --network ib_8x400g --gpus 16 --train --batch 64"
    " --sequence-length 4096 --fix cp=1,2 --fix schedule=1f1b"
).split()
SEVERAL = (
    "plan llama3-8b,qwen3-8b --on h100_sxm,h200_sxm --gpus 2,4 --decode --batch 8,32"
    " --context-tokens 2048 --objective cost --price 2.50"
).split()
QUESTIONS = {
    "train": TRAIN,
    "decode": DECODE,
    "prefill": PREFILL,
    "experts": EXPERTS,
    "several": SEVERAL,
}
each_question = pytest.mark.parametrize("words", QUESTIONS.values(), ids=QUESTIONS)
CONTRACT = ("considered", "feasible", "seconds", "rejected", "best", "front")


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@each_question
def test_the_document_keeps_the_contract(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    data = run_json(capsys, *words)
    assert list(data)[: len(CONTRACT)] == list(CONTRACT)
    assert data["seconds"] > 0
    assert data["feasible"] + sum(each["count"] for each in data["rejected"]) == data["considered"]
    assert len(data["best"]) == 5
    assert [each["score"] for each in data["best"]] == sorted(
        each["score"] for each in data["best"]
    )
    for each in data["best"]:
        assert set(each["layout"]) == {field.name for field in fields(Layout)}
        assert sum(each["parts_s"].values()) == pytest.approx(each["time_s"])
        assert each["tokens_per_s"] == pytest.approx(each["tokens_per_s_per_gpu"] * each["gpus"])
        assert 0 < each["mfu"] < 1
        assert each["caveats"]
        assert {"model", "cluster", "network", "software", "batch", "memory_bytes"} <= set(each)
    assert all({"layout", "time_s", "memory_bytes", "score"} <= set(each) for each in data["front"])
    difference = data["best"][1]["time_s"] - data["best"][0]["time_s"]
    lost = sum(each["lost_s"] for each in data["losses"])
    assert lost == pytest.approx(difference, abs=1e-9 * data["best"][0]["time_s"])
    assert {"FLOP/s", "memory bandwidth"} <= {each["what"] for each in data["sensitivity"]}
    assert "tp" in {each["axis"] for each in data["crossovers"]}
    assert 0 <= data["stability"]["first_stays_pct"] <= 100
    assert data["relaxations"] == []


def test_figures_stand_where_they_mean_something(capsys: pytest.CaptureFixture[str]) -> None:
    train, decode, prefill = (run_json(capsys, *words) for words in (TRAIN, DECODE, PREFILL))
    assert not {"ttft_s", "tpot_s"} & set(train["best"][0])
    assert train["best"][0]["batch"] == 64
    for each in decode["best"]:
        assert each["tpot_s"] == each["time_s"] == pytest.approx(1 / each["tokens_per_s_per_user"])
        assert each["batch"] in {1, 2, 4, 8, 16, 32, 64}
        assert "ttft_s" not in each
    assert {each["batch"] for each in decode["front"]} > {8, 64}
    assert all(each["ttft_s"] == each["time_s"] for each in prefill["best"])


def test_the_command_line_is_the_function(capsys: pytest.CaptureFixture[str]) -> None:
    found = search(
        "llama3-8b",
        "h100_sxm",
        Train(global_batch=64, sequence_length=4096),
        space={"gpus": 8, "cp": 1},
        top=20,
    )
    plan = Plan.of(found)
    asked = run_json(capsys, *TRAIN)
    data = json.loads(json.dumps(as_data(plan)))
    assert {**data, "seconds": 0} == {**asked, "seconds": 0}
    text = run_text(capsys, *TRAIN)
    assert without_speed(as_text(plan) + "\n") == without_speed(text)


def without_speed(text: str) -> str:
    return re.sub(r"[\d.]+ s, [\d,]+ layouts/s", "", text)


@each_question
def test_the_screen_is_one_screen(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    lines = run_text(capsys, *words).splitlines()
    assert max(map(len, lines)) <= 80
    assert 20 <= len(lines) <= 45
    text = "\n".join(lines)
    for said in (" layouts feasible; ", " layouts/s", "runner-up ", "+10 % ", "axes  "):
        assert said in text
    assert ("Rejected, by first reason:\n" in text) == (words is not SEVERAL)
    assert "inherited from" in " ".join(text.split()) or text.endswith("of the time: --notes")


def test_an_axis_of_numbers_has_its_curve(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_text(capsys, *DECODE).splitlines()
    curves = [each for line in lines for each in re.findall(r"\([\d,]+ to [\d,]+: (.*)\)$", line)]
    assert curves
    for each in curves:
        assert re.fullmatch(r"[▁▂▃▄▅▆▇█]*\[[▁▂▃▄▅▆▇█]\][▁▂▃▄▅▆▇█]*", each)
        assert each[each.index("[") + 1] == min(each.replace("[", "").replace("]", ""))


def test_a_screen_names_the_figures_of_its_phase(capsys: pytest.CaptureFixture[str]) -> None:
    train, decode, prefill = (run_text(capsys, *words) for words in (TRAIN, DECODE, PREFILL))
    assert "  mb " in train
    assert "bubble" in run_text(capsys, *TRAIN, "--fix", "pp=2")
    assert "best by step time" in train
    for head in ("GPUs", "batch", "TPOT", "tok/s/user", "tok/s/GPU", "GiB of 80"):
        assert f" {head}" in decode
    assert "batch 1 to 64, 4,096 tokens of context each" in decode
    assert " TTFT " in prefill
    cost = run_text(capsys, *DECODE, "--price", "2")
    assert " cost/Mtok " in cost
    assert "best by step time" in cost
    assert " per token " in run_text(capsys, *TRAIN, "--objective", "energy")


def test_values_that_are_fixed_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--fix tp=2,4 --fix recompute=full --fix sequence-parallel=yes --fix zero=1".split()
    data = run_json(capsys, *TRAIN, *words, "--fix", "micro_batch=1..2", "--top", "50")
    layouts = [each["layout"] for each in data["best"]]
    assert {each["tp"] for each in layouts} == {2, 4}
    assert {each["micro_batch"] for each in layouts} == {1, 2}
    assert {(each["recompute"], each["zero"]) for each in layouts} <= {("full", 1)}
    assert all(each["sequence_parallel"] for each in layouts)
    assert len(layouts) > 5


def test_every_order_scheme_and_overlap(capsys: pytest.CaptureFixture[str]) -> None:
    free = "--fix micro_batch=1 --fix virtual_stages=1 --fix zero=1 --fix recompute=none".split()
    base = run_json(capsys, *TRAIN, *free)
    for axis, values in (
        ("order", 24),
        ("scheme", 5),
        ("tp-overlap", 3),
        ("dp_overlap", 2),
        ("tp", 1),
    ):
        data = run_json(capsys, *TRAIN, *free, "--fix", f"{axis}=all")
        assert data["considered"] == values * base["considered"], axis
        assert data["best"][0]["time_s"] <= base["best"][0]["time_s"]


def test_the_usual_choice_stands_for_those_that_do_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = run_json(capsys, *TRAIN, "--fix", "tp=1", "--fix", "tp_overlap=all", "--top", "9")
    assert {each["tp_overlap"] for each in data["best"]} == {"chunked"}
    data = run_json(capsys, *TRAIN, "--fix", "shard_degree=none,4", "--fix", "zero=3")
    assert {each["layout"]["shard_degree"] for each in data["best"]} <= {None, 4}


def test_clusters_networks_and_models_are_axes(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, *SEVERAL, "--top", "200")
    asked = {(each["model"], each["cluster"]) for each in data["best"]}
    assert len(asked) == 4
    text = run_text(capsys, *SEVERAL)
    assert "Decoding with llama3-8b or qwen3-8b on 2 to 4 x h100_sxm or h200_sxm" in text
    words = (*EXPERTS, "--network", "ib_8x400g,ib_8x100g", "--fix", "ep=8", "--top", "40")
    networks = [each["network"] for each in run_json(capsys, *words)["best"]]
    assert set(networks) == {"ib_8x400g", "ib_8x100g"}
    assert networks[0] == "ib_8x400g"


def test_formats_engines_and_contexts_are_axes(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*DECODE[:-4], "--batch", "8", "--context-tokens", "4096,16384")
    words += ("--dtype", "bf16,fp8", "--software", "vllm,trtllm", "--top", "500")
    data = run_json(capsys, *words)
    keys = ("software", "dtype", "context_tokens")
    assert len({tuple(each[key] for key in keys) for each in data["best"]}) == 8
    crossed = {each["axis"]: each["value"] for each in data["crossovers"]}
    assert {key: data["best"][0][key] for key in keys} == {key: crossed[key] for key in keys}
    text = run_text(capsys, *words[:-2], "--top", "40")
    assert "vllm or trtllm, batch 8, 4,096 or 16,384 tokens of context each, bf16" in text
    head = next(line for line in text.splitlines() if "TPOT" in line)
    assert {"engine", "dtype", "context"} <= set(head.split())
    assert "all       fp8, context 4,096" in run_text(capsys, *words[:-2], "--top", "2")
    train = run_json(capsys, *TRAIN, "--sequence-length", "2048..4096", "--fix", "pp=1")
    assert train["best"][0]["sequence_length"] == 2048


def test_distinct_layouts_differ_in_their_degrees(capsys: pytest.CaptureFixture[str]) -> None:
    plain = run_json(capsys, *TRAIN, "--top", "20")
    data = run_json(capsys, *TRAIN, "--top", "20", "--distinct")
    names = ("tp", "pp", "dp")
    degrees = [tuple(each["layout"][name] for name in names) for each in data["best"]]
    alike = [tuple(each["layout"][name] for name in names) for each in plain["best"]]
    assert len(set(degrees)) == len(degrees) > len(set(alike))
    assert data["distinct"]
    assert not plain["distinct"]
    variants = data["best"][0]["variants"]
    assert variants["count"] > 0
    assert "zero" in variants["differ_in"]
    said = f"+{variants['count']} variants: "
    assert said in run_text(capsys, *TRAIN, "--distinct")


def test_limits_are_kept_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    limits = "--max-tpot 20ms --max-ttft 600ms --min-tokens-per-s 500 --headroom 10%".split()
    data = run_json(capsys, *DECODE, *limits, "--objective", "throughput", "--top", "100")
    assert data["best"]
    for each in data["best"]:
        assert each["tpot_s"] <= 0.02
        assert each["ttft_s"] <= 0.6
        assert each["tokens_per_s"] >= 500
        assert each["memory_bytes"] <= 0.9 * 80 * 2**30
    reasons = {each["reason"] for each in data["rejected"]}
    assert {"TPOT above 20 ms", "TTFT above 600 ms"} <= reasons
    user = run_json(capsys, *DECODE, "--min-tokens-per-user", "60")
    assert all(each["tokens_per_s_per_user"] >= 60 for each in user["best"])
    train = run_json(capsys, *TRAIN, "--max-time", "4s", "--top", "1")
    assert train["best"][0]["time_s"] <= 4
    assert "step above 4 s" in {each["reason"] for each in train["rejected"]}
    assert train["feasible"] < run_json(capsys, *TRAIN)["feasible"]


def test_limits_say_in_how_many_cases_they_hold(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*DECODE, "--max-tpot", "16ms", "--min-tokens-per-user", "50", "--top", "3")
    first = run_json(capsys, *words, "--objective", "throughput")["best"][0]
    tpot, user = first["limits"]
    assert (tpot["limit"], tpot["at_most"], tpot["value"]) == ("max_tpot", 0.016, first["tpot_s"])
    assert (user["limit"], user["at_least"]) == ("min_tokens_per_user", 50)
    assert 0.5 <= tpot["holds_share"] < user["holds_share"] < 1
    text = run_text(capsys, *words, "--objective", "throughput")
    tens = round(10 * tpot["holds_share"])
    assert f"TPOT at most 16 ms: holds in {tens} of 10 cases" in " ".join(text.split())
    sure = run_json(capsys, *words, "--objective", "throughput", "--confidence", "95%")
    assert all(each["limits"][0]["holds_share"] >= 0.95 for each in sure["best"])
    assert "TPOT above 16 ms at 95 % confidence" in {each["reason"] for each in sure["rejected"]}
    largest = first["largest_batch"]
    assert largest["batch"] == first["batch"] not in (1, 2, 4, 8, 16, 32, 64)
    assert largest["time_s"] <= 0.016
    assert f"largest within the limits: {largest['batch']} (TPOT" in " ".join(text.split())
    assert "largest_batch" not in run_json(capsys, *words, "--batch", "16")["best"][0]
    assert run_json(capsys, *DECODE, "--top", "1")["best"][0]["limits"] == []
    assert cli.main((*DECODE, "--max-tpot", "11ms", "--confidence", "0.99")) == 3
    assert "limits on the estimate itself (were at 99 %)" in capsys.readouterr().err


def test_objectives_rank_by_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    found = {
        name: run_json(capsys, *DECODE, "--price", "3.6", "--objective", name)
        for name in ("time", "throughput", "cost", "energy")
    }
    first = {name: data["best"][0] for name, data in found.items()}
    assert first["time"]["score"] == first["time"]["time_s"]
    assert first["throughput"]["layout"] == first["cost"]["layout"] == first["energy"]["layout"]
    cheapest = first["cost"]
    per_token = 3.6 / 3600 / cheapest["tokens_per_s_per_gpu"]
    assert cheapest["score"] == pytest.approx(per_token)
    assert cheapest["cost_per_million_tokens"] == pytest.approx(1e6 * per_token)
    assert first["energy"]["score"] == pytest.approx(700 / cheapest["tokens_per_s_per_gpu"])
    assert found["cost"]["unit"] == "cost per token"


def test_pipelines_that_a_batch_in_each_stage_would_put_first_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "plan llama3-405b --on h100_sxm --network ib_8x400g --gpus 16 --decode --batch 64"
    asked = (*words.split(), "--context-tokens", "4096")
    rate = ("--objective", "throughput")
    (note,) = run_json(capsys, *asked, *rate, "--max-tpot", "100ms")["notes"]
    assert "pp 2 or 4 may then be ahead: --load" in note
    (note,) = run_json(capsys, *asked, *rate, "--max-tpot", "60ms")["notes"]
    assert "pp 2 may then be ahead: --load" in note
    assert run_json(capsys, *asked, *rate, "--max-tpot", "60ms", "--fix", "pp=1")["notes"] == []
    assert run_json(capsys, *asked, "--max-tpot", "60ms")["notes"] == []
    (note,) = run_json(capsys, *asked, *rate)["notes"]
    assert "may then be ahead: --load" in note


def test_money_is_that_of_the_objective() -> None:
    found = search(
        "llama3-8b",
        "h100_sxm",
        Decode(batch=8, context_tokens=512),
        space={"gpus": 1},
        objective="cost",
        price_per_gpu_hour=2.0,
    )
    assert money(found.best[0], 2.0) == pytest.approx(1e6 * found.best[0].score)


def test_the_front_is_a_table_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    plain = run_text(capsys, *DECODE)
    asked = run_text(capsys, *DECODE, "--pareto")
    assert without_speed(asked).startswith(without_speed(plain)[:-1])
    table = asked.partition("Pareto front, ")[2].splitlines()
    assert len(table) - 2 >= len(run_json(capsys, *DECODE)["front"])
    assert max(map(len, asked.splitlines())) <= 80


def test_the_best_is_explained_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    text = run_text(capsys, *TRAIN, "--explain")
    assert "Largest GEMM: " in text
    assert max(map(len, text.splitlines())) <= 80
    data = run_json(capsys, *TRAIN, "--explain")
    assert any(line.startswith("Largest GEMM: ") for line in data["explanation"])


@pytest.mark.parametrize("words", [TRAIN, DECODE, PREFILL, SEVERAL], ids=lambda words: words[-1])
def test_the_front_is_drawn_if_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]
) -> None:
    file = tmp_path / "front.svg"
    assert run_text(capsys, *words, "--plot", str(file)).endswith(f"Plot: {file}\n")
    picture = file.read_text()
    assert picture.startswith("<?xml")
    assert "ringed: " in picture
    assert (">step time<" in picture) == (words is TRAIN)
    run_json(capsys, *words, "--plot", tmp_path / "front.png")
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")


def test_all_layouts_are_written_if_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    polars = pytest.importorskip("polars")
    file = tmp_path / "all.parquet"
    data = run_json(capsys, *DECODE, "--out", file)
    table = polars.read_parquet(file)
    assert len(table) == data["feasible"]
    assert table["time_s"].min() == pytest.approx(data["best"][0]["time_s"])
    other = str(tmp_path / "other.parquet")
    assert f"Table: {other}, {len(table)} layouts\n" in run_text(capsys, *DECODE, "--out", other)


def test_processes_find_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    here, there = (run_json(capsys, *DECODE, *more) for more in ((), ("--jobs", "2")))
    assert {**here, "seconds": 0} == {**there, "seconds": 0}


def test_a_model_file_brings_its_caveats(
    capsys: pytest.CaptureFixture[str], tiny_config: Callable[..., Path]
) -> None:
    folder = tiny_config(model_type="brandnew", architectures=["BrandNewForCausalLM"])
    words = "--on h100_sxm --gpus 2 --decode --batch 8 --context-tokens 256".split()
    assert any("brandnew" in note for note in run_json(capsys, "plan", folder, *words)["notes"])
    assert "Note: model_type 'brandnew'" in run_text(capsys, "plan", str(folder), *words)


def fail(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, dict[str, Any]]:
    """Return what is said where nothing is feasible, as text and as data."""
    assert cli.main(words) == 3
    out, text = capsys.readouterr()
    assert out == ""
    assert cli.main([*words, "--json"]) == 3
    out, again = capsys.readouterr()
    assert again == text
    data = json.loads(out)
    assert data["feasible"] == 0
    assert data["best"] == data["front"] == []
    assert max(map(len, text.splitlines())) <= 80
    return text, data


def test_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan llama3-405b --on h100_sxm --decode --batch 4 --context-tokens 1024".split()
    text, data = fail(capsys, *words)
    assert text.startswith(f"shardcost: nothing feasible among {data['considered']:,} layouts:\n")
    assert "  does not fit memory\n" in text
    assert "GiB of 80 GiB" in text
    assert sum(each["count"] for each in data["rejected"]) == data["considered"]
    assert data["smallest"]["memory_bytes"] > data["smallest"]["capacity_bytes"]
    assert data["relaxations"]
    for each in data["relaxations"]:
        assert each["words"] in " ".join(text.split())
        assert each["time_s"] > 0


def test_degrees_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    text, data = fail(capsys, *TRAIN, "--fix", "tp=4", "--fix", "pp=4")
    assert "never makes 8 GPUs" in text
    assert data["rejected"]
    assert data["relaxations"]
    text, _ = fail(capsys, *TRAIN, "--fix", "tp=3")
    assert "tp=3 does not divide the GPUs" in text
    text, _ = fail(capsys, *TRAIN, "--fix", "dp=8", "--fix", "micro_batch=16")
    assert "dp x micro-batch does not divide the batch of 64" in text


def test_limits_that_nothing_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = fail(capsys, *DECODE, "--max-tpot", "1ms")
    assert "TPOT above 1 ms" in text
    text, _ = fail(capsys, *TRAIN, "--gpus", "16")
    assert "more than 8 GPUs need a network" in text


def test_nothing_is_drawn_where_nothing_is_feasible(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fail(capsys, *DECODE, "--max-tpot", "1ms", "--plot", str(tmp_path / "front.svg"))
    assert not list(tmp_path.iterdir())


BAD = {
    "axis": (["--fix", "tensor=8"], "unknown axis in --fix 'tensor'"),
    "axis with its own option": (["--fix", "gpus=8"], "(--gpus sets it)"),
    "no value": (["--fix", "tp"], "--fix must be an axis and its values, like tp=4,8, got 'tp'"),
    "empty value": (["--fix", "tp="], "--fix tp must be one value or several"),
    "one empty value": (["--fix", "tp=1,,2"], "none of them empty, got '1,,2'"),
    "word": (["--fix", "tp=abc"], "--fix tp must be a whole number, got 'abc'"),
    "zero degree": (["--fix", "tp=0"], "--fix tp must be a whole number of at least 1, got 0"),
    "negative": (["--fix", "pp=-2"], "at least 1, got -2"),
    "fraction": (["--fix", "pp=1.5"], "--fix pp must be a whole number, got '1.5'"),
    "range": (["--fix", "pp=8..2"], "from a smaller number to a larger one"),
    "twice": (["--fix", "tp=2", "--fix", "tp=4"], "--fix tp is given twice"),
    "flag": (["--fix", "sequence_parallel=maybe"], "must be true or false, got 'maybe'"),
    "choice": (["--fix", "recompute=some"], "unknown --fix recompute 'some'"),
    "stage": (["--fix", "zero=4"], "a ZeRO stage from 0 to 3, got 4"),
    "order": (["--fix", "order=tp-dp"], "unknown --fix order 'tp-dp'"),
    "overlap": (["--fix", "tp-overlap=much"], "unknown --fix tp_overlap 'much'"),
    "all shards": (["--fix", "shard_degree=all"], "numbers or none"),
    "objective": (["--objective", "speed"], "unknown --objective 'speed'"),
    "no price": (["--objective", "cost"], "--objective cost needs --price"),
    "price": (["--price", "0"], "--price must be a finite number above 0, got 0"),
    "price of one": (["--price", "a100_sxm=2"], "--price must be given for h100_sxm too"),
    "price of none": (["--price", "h100_sxm="], "--price of h100_sxm must be a number"),
    "price in words": (["--price", "free"], "--price must be a number, got 'free'"),
    "top": (["--top", "0"], "--top must be a whole number of at least 1, got 0"),
    "gpus": (["--gpus", "0"], "--gpus must be a whole number of at least 1, got 0"),
    "too many gpus": (["--gpus", "735134400"], "--gpus must be at most 1,048,576 in a search"),
    "too large a batch": (["--batch", "735134400"], "--batch must be at most 1,048,576"),
    "nothing to replace": (["--overwrite"], "--overwrite is for --out FILE"),
    "gpus in words": (["--gpus", "many"], "--gpus must be a whole number, got 'many'"),
    "no gpus": (["--gpus", ""], "--gpus must be one value or several"),
    "several batches": (["--batch", "8,16"], "--batch must be one number with --train"),
    "limit of another phase": (["--max-tpot", "5ms"], "--max-tpot must be left out"),
    "limit without a unit": (["--max-time", "5"], "--max-time must be a time with its unit"),
    "limit of nothing": (["--max-time", "0s"], "--max-time must be a finite number above 0"),
    "rate": (["--min-tokens-per-s", "lots"], "--min-tokens-per-s must be a number"),
    "headroom": (["--headroom", "100%"], "--headroom must be at least 0 and below 1, got '100%'"),
    "headroom in words": (["--headroom", "x%"], "--headroom must be a number, got 'x'"),
    "no limit": (["--confidence", "90%"], "--confidence needs a limit: --max-time or"),
    "confidence": (["--confidence", "30%", "--max-time", "5s"], "--confidence must be a share of"),
    "formats": (["--dtype", "bf16,fp3"], "unknown --dtype 'fp3'"),
    "length": (["--sequence-length", "4096,"], "--sequence-length must be one value or several"),
    "plot": (["--plot", "front.gif"], "ends in .png or .svg"),
    "engine": (["--engine", "steam"], "unknown --engine 'steam'"),
    "jobs": (["--jobs", "0"], "--jobs must be a whole number of at least 1, got 0"),
    "address": (["--address", "there"], "address must be left out but for the engine ray"),
    "model": (["--software", "abacus"], "unknown software 'abacus'"),
    "cluster": (["--on", "h100_sxm,h10"], "unknown cluster 'h10'"),
    "no cluster": (["--on", ""], "--on must be one value or several"),
    "network": (["--network", "wifi"], "unknown network 'wifi'"),
    "option of another phase": (["--prompt-tokens", "5"], "is for --prefill, not --train"),
}


@pytest.mark.parametrize(("words", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert said in run_error(capsys, *TRAIN, *words)


def test_a_bad_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown model 'llama3-7b'" in run_error(capsys, "plan", "llama3-7b", *TRAIN[2:])
    assert "MODEL must be one value or several" in run_error(capsys, "plan", "", *TRAIN[2:])
    assert "--on" in run_error(capsys, "plan", "llama3-8b", *TRAIN[4:])
    assert "--decode needs --batch" in run_error(capsys, *DECODE[:6], *DECODE[6:7])


def test_numbers_come_as_lists_and_doublings() -> None:
    assert wholes("--gpus", "64") == [64]
    assert wholes("--gpus", "8..1024") == [8, 16, 32, 64, 128, 256, 512, 1024]
    assert wholes("--gpus", "3..20,64, 64") == [3, 6, 12, 64]
    assert several("--on", "a, b,a") == ["a", "b"]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Return that it is."""
        return True


@pytest.mark.parametrize("rich", [True, False])
def test_a_long_search_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, rich: bool) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(bars, "_AFTER_S", 0.0)
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    with bars.shown_progress() as progress:
        assert progress is not None
        progress(1_000_000, 4_000_000)
    assert ("1,000,000 of 4,000,000 layouts, 25 %" in terminal.getvalue()) != rich
    assert terminal.getvalue()
    monkeypatch.setattr(bars, "_AFTER_S", 60.0)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with bars.shown_progress() as progress:
        assert progress is not None
        progress(1, 4)
    assert terminal.getvalue() == ""


def test_no_progress_in_pipes_nor_beside_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    with bars.shown_progress() as progress:  # pytest's own stream is no terminal
        assert progress is None
    monkeypatch.setattr("sys.stderr", Terminal())
    with bars.shown_progress(wanted=False) as progress:
        assert progress is None


def test_a_cluster_with_its_network_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert Cluster.named("h100_sxm", "ib_8x400g").network is not None
    assert "on 16 x h100_sxm (ib_8x400g)" in run_text(capsys, *EXPERTS)

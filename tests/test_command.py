"""What an estimate is exported as gives the same numbers again: command line, Python, CSV."""

from __future__ import annotations

import csv
import json
import shlex
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from running import run_json

from shardcost import Cluster, Decode, Estimate, Layout, Model, Prefill, Train, estimate
from shardcost.report.command import CLUSTER_FILE, MODEL_FILE, command_of, python_of
from shardcost.report.estimate_data import CSV_HEAD, as_csv, as_data

QUESTIONS: dict[str, dict[str, Any]] = {
    "decode": {
        "model": "llama3-70b",
        "cluster": "h100_sxm",
        "layout": Layout(tp=8),
        "workload": Decode(batch=64, context_tokens=4096),
    },
    "prefill": {
        "model": "mixtral-8x7b",
        "cluster": "a100_sxm",
        "layout": Layout(tp=4, ep=4, imbalance=1.5),
        "workload": Prefill(batch=2, prompt_tokens=4096, cached_tokens=512, cache_dtype="fp8"),
        "software": "vllm",
    },
    "train": {
        "model": "gpt3-175b",
        "cluster": Cluster.named("a100_sxm", "ib_8x200g"),
        "layout": Layout(
            tp=8,
            pp=8,
            dp=2,
            virtual_stages=3,
            schedule="interleaved",
            sequence_parallel=True,
            recompute="selective",
            zero=1,
            order="tp-dp-cp-pp",
        ),
        "workload": Train(global_batch=64, sequence_length=2048, optimizer="sgd", adapters=True),
    },
}


@pytest.fixture(params=QUESTIONS)
def found(request: pytest.FixtureRequest) -> Estimate:
    return estimate(**QUESTIONS[request.param])


def test_the_command_gives_the_same_numbers(
    found: Estimate, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_json(capsys, *shlex.split(command_of(found))[1:]) == as_data(found)


def test_python_gives_the_same_numbers(found: Estimate, capsys: pytest.CaptureFixture[str]) -> None:
    exec(python_of(found), {})
    printed = [float(word) for word in capsys.readouterr().out.split()]
    assert printed == [found.time_s, found.tokens_per_s_per_gpu, found.memory_bytes]


def test_a_csv_has_every_figure_with_unit_and_interval(found: Estimate) -> None:
    head, *lines = csv.reader(StringIO(as_csv(found)))
    assert tuple(head) == CSV_HEAD
    table = {line[0]: line[1:] for line in lines}
    assert len(table) == len(lines)
    time_s, unit, low, high = table["time_s"]
    assert (float(time_s), unit) == (found.time_s, "s")
    assert float(low) < found.time_s < float(high)
    assert table["memory.by_kind.weights"][1] == "bytes"
    assert table["parts.gemm"][:2] == [repr(float(found.parts_s["gemm"])), "s"]
    assert table["mfu"][1] == ""
    assert table["model"][0] == found.model.name


def test_no_name_is_a_formula_in_a_spreadsheet() -> None:
    hostile = replace(Model.named("llama3-8b"), name="=HYPERLINK(1)")
    found = estimate(hostile, "h100_sxm", Layout(), Decode(batch=1, context_tokens=128))
    names = {line[0]: line[1] for line in csv.reader(StringIO(as_csv(found)))}
    assert names["model"] == "'=HYPERLINK(1)"


def test_files_stand_for_what_is_not_in_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 4096,
        "vocab_size": 32000,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / MODEL_FILE).write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    work = Decode(batch=1, context_tokens=128)
    found = estimate(Model.from_hf(MODEL_FILE), "h100_sxm", Layout(), work)
    command = command_of(found)
    assert command.startswith(f"shardcost estimate {MODEL_FILE} --on h100_sxm --decode")
    assert run_json(capsys, *shlex.split(command)[1:])["time_s"] == found.time_s
    exec(python_of(found), {})
    assert float(capsys.readouterr().out.split()[0]) == found.time_s


def test_a_profile_is_a_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardcost.cli import main

    log = Path(__file__).parents[1] / "docs/examples/all_reduce-8.txt"
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("scipy")
    assert main(["calibrate", str(log), "--name", "profile"]) == 0
    found = estimate(
        "llama3-8b",
        Cluster.from_file(CLUSTER_FILE),
        Layout(tp=8),
        Prefill(batch=1, prompt_tokens=1024),
    )
    assert f"--on {CLUSTER_FILE}" in command_of(found)
    assert f"Cluster.from_file('{CLUSTER_FILE}')" in python_of(found)
    exec(python_of(found), {})

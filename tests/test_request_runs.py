"""Folders of measured requests: read, predicted request by request, and refused in one line."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
from running import run_error, run_json, run_text

from shardcost.errors import FormatError
from shardcost.formats import request_runs
from shardcost.formats.detect import read_file
from shardcost.formats.tables import Table, read_table
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.requests import Requests, Stream
from shardcost.load.simulate import simulate
from shardcost.validate.requests import engine_of
from shardcost.validate.validation import validate

RUN = {
    "run": "one", "model": "tiny", "layers": "8", "hidden": "1024", "heads": "8", "kv_heads": "8",
    "head_dim": "128", "ffn": "4096", "gated": "1", "vocab": "32000", "cluster": "h100_sxm",
    "engine": "vllm", "version": "0.19.0", "weight_dtype": "bf16", "cache_dtype": "bf16",
    "tp": "1", "pp": "1", "dp": "1", "ep": "1", "gpus": "1", "max_num_seqs": "8",
    "max_num_batched_tokens": "2048", "chunked_prefill": "1", "prefix_caching": "1",
    "gpu_memory_utilization": "0.9", "kv_cache_tokens": "", "block_size": "16", "arrival": "listed",
}  # fmt: skip
HEAD = "arrival_s,prompt_tokens,output_tokens,queued_s,scheduled_s,first_token_s,finished_s"
REQUESTS = (
    "0.0,1000,50,0.001,0.002,0.05,0.3",
    "0.01,200,20,0.011,0.012,0.06,0.2",
    "0.5,3000,100,0.501,0.502,0.6,1.25",
)
Runs = Mapping[str, Mapping[str, str]]


def folder(tmp_path: Path, runs: Runs, requests: Iterable[str] = REQUESTS) -> Path:
    """Return a folder of runs, each by its name with what differs, of the same requests."""
    made = tmp_path / "requests"
    made.mkdir(exist_ok=True)
    rows = [{**RUN, "run": name, **changes} for name, changes in runs.items()]
    lines = [",".join(RUN), *(",".join(row.values()) for row in rows)]
    (made / "runs.csv").write_text("\n".join(lines) + "\n")
    for name in runs:
        (made / f"{name}.csv").write_text("\n".join([HEAD, *requests]) + "\n")
    return made


def predicted(table: Table) -> dict[tuple[str, str], float]:
    """Return the predictions of one run by request and figure."""
    keys = zip(table.columns["request"], table.columns["figure"], strict=True)
    return dict(zip(keys, validate(table).predictions.values, strict=True))


def test_requests_are_rows_beside_their_run(tmp_path: Path) -> None:
    table = read_table(folder(tmp_path, {"one": {}, "two": {"max_num_seqs": "1"}}))
    assert (table.kind, table.rows) == ("requests", 12)
    rows = list(table.records())
    assert [row["run"] for row in rows] == ["one"] * 6 + ["two"] * 6
    assert [row["request"] for row in rows[:6]] == ["0", "0", "1", "1", "2", "2"]
    assert [row["figure"] for row in rows[:2]] == ["ttft_ms", "e2e_ms"]
    assert [float(row["measured"]) for row in rows[:4]] == pytest.approx([50, 300, 50, 190])
    assert {row["max_num_seqs"] for row in rows[6:]} == {"1"}
    assert {row["dataset"] for row in rows[:6]} == {"one"}
    assert list(table.file_rows) == [i // 2 for i in range(12)]


def test_the_file_of_runs_stands_for_its_folder(tmp_path: Path) -> None:
    made = folder(tmp_path, {"one": {}})
    assert dict(read_table(made / "runs.csv").columns) == dict(read_table(made).columns)
    assert read_file(made).kind == "measured-table"


def test_predictions_are_a_simulation_of_the_run(tmp_path: Path) -> None:
    table = read_table(folder(tmp_path, {"one": {}}))
    engine = engine_of(next(table.records()))
    stream = Stream(
        np.array([0.0, 0.01, 0.5]), np.array([1000, 200, 3000]), np.array([50, 20, 100])
    )
    load = simulate(Deployment(Pool(engine)), Requests(arrival="trace", trace=stream))
    found = predicted(table)
    for i in range(3):
        first, last = (
            1e3 * (ends[i] - load.arrival_s[i]) for ends in (load.first_token_s, load.finished_s)
        )
        assert found[str(i), "ttft_ms"] == pytest.approx(first)
        assert found[str(i), "e2e_ms"] == pytest.approx(last)


def test_requests_may_stand_in_any_order(tmp_path: Path) -> None:
    in_order = predicted(read_table(folder(tmp_path, {"one": {}})))
    turned = predicted(read_table(folder(tmp_path, {"one": {}}, REQUESTS[::-1])))
    for (request, figure), value in in_order.items():
        assert turned[str(2 - int(request)), figure] == value


def test_settings_of_the_run_are_kept(tmp_path: Path) -> None:
    changed = {
        "max_num_seqs": "3",
        "max_num_batched_tokens": "512",
        "chunked_prefill": "0",
        "prefix_caching": "0",
        "gpu_memory_utilization": "0.5",
        "kv_cache_tokens": "4096",
        "block_size": "32",
    }
    row = next(read_table(folder(tmp_path, {"one": changed})).records())
    scheduler = engine_of(row).software.scheduler
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (3, 512)
    assert (scheduler.chunked_prefill, scheduler.prefix_caching) == (False, False)
    assert (scheduler.memory_share, scheduler.kv_tokens, scheduler.block_tokens) == (0.5, 4096, 32)


def test_one_place_makes_requests_wait(tmp_path: Path) -> None:
    made = folder(tmp_path, {"one": {}})
    free = predicted(read_table(made))
    alone = predicted(read_table(folder(tmp_path, {"one": {"max_num_seqs": "1"}})))
    decoding = free["0", "e2e_ms"] - free["0", "ttft_ms"]
    assert alone["1", "ttft_ms"] > free["1", "ttft_ms"] + decoding / 2


def test_requests_that_never_fit_are_named_and_the_others_served(tmp_path: Path) -> None:
    found = validate(read_table(folder(tmp_path, {"one": {"kv_cache_tokens": "2048"}})))
    assert found.skipped == {"request must be one that a worker's KV cache holds": 2}
    assert found.counts.rows == 3
    assert found.counts.predicted == 2


def test_a_run_that_cannot_be_simulated_does_not_stop_the_others(tmp_path: Path) -> None:
    runs = {"one": {}, "two": {"cluster": "abacus"}, "three": {"tp": "many"}}
    found = validate(read_table(folder(tmp_path, runs)))
    assert found.predicted == 6
    assert set(found.skipped.values()) == {6}
    assert any("cluster unknown: 'abacus'" in reason for reason in found.skipped)


@pytest.mark.parametrize(
    ("column", "cell", "reason"),
    [
        ("chunked_prefill", "maybe", "chunked_prefill unknown"),
        ("gpu_memory_utilization", "1.5", "gpu_memory_utilization must be a share"),
        ("max_num_seqs", "-3", "max_num_seqs must be a whole number"),
        ("gpu_memory_utilization", "0.0001", "memory"),
        ("engine", "abacus", ""),
    ],
)
def test_settings_that_cannot_be_are_reasons(
    column: str, cell: str, reason: str, tmp_path: Path
) -> None:
    found = validate(read_table(folder(tmp_path, {"one": {column: cell}})))
    assert found.predicted in {0, 6}
    assert all(reason in each for each in found.skipped)
    assert found.skipped or not reason


def test_predictions_name_run_request_and_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(tmp_path, {"one": {}, "two": {"cluster": "abacus"}})
    target = tmp_path / "predicted.csv"
    (found,) = run_json(capsys, "validate", made, "--predictions", target)["tables"]
    assert (found["kind"], found["rows"], found["predicted"]) == ("requests", 6, 3)
    assert found["skipped"] == [{"reason": "cluster unknown: 'abacus'", "rows": 3}]
    assert found["figures"]["rows"] == 12
    assert [each["key"] for each in found["groups"]] == [
        {"run": "one", "figure": "e2e_ms"},
        {"run": "one", "figure": "ttft_ms"},
    ]
    assert found["overall"]["rows"] == 3
    lines = list(csv.DictReader(target.read_text().splitlines()))
    wanted = ["row", "run", "request", "metric", "predicted", "low", "high", "reason"]
    assert list(lines[0]) == wanted
    assert [(line["run"], line["request"], line["metric"]) for line in lines[:3]] == [
        ("one", "0", "ttft_ms"),
        ("one", "0", "e2e_ms"),
        ("one", "1", "ttft_ms"),
    ]
    for line in lines[:6]:
        assert 0 < float(line["low"]) < float(line["predicted"]) < float(line["high"])
    assert {line["reason"] for line in lines[6:]} == {"cluster unknown: 'abacus'"}


def test_what_was_not_measured_is_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(tmp_path, {"one": {}}, ["0.0,1000,50,,,,", "0.01,200,20,,,0.06,"])
    found = validate(read_table(made))
    assert (found.predicted, found.unmeasured) == (4, 3)
    assert (found.counts.predicted, found.counts.unmeasured) == (2, 1)
    (made / "one.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,10\n")
    assert validate(read_table(made)).unmeasured == 2
    text = " ".join(run_text(capsys, "validate", str(made)).split())
    assert "1 rows, 1 predicted, 0 skipped, 1 without" in text


def test_a_first_token_before_the_arrival_is_skipped(tmp_path: Path) -> None:
    found = validate(read_table(folder(tmp_path, {"one": {}}, ["1.0,100,10,,,0.5,2.0"])))
    assert found.predicted == 1
    assert list(found.skipped) == [
        "measured must be a number above 1e-6 and at most 1e15, or empty"
    ]


@pytest.mark.parametrize(
    ("requests", "complaint"),
    [
        ([], "one.csv: has no requests"),
        (["x,100,10,,,,"], "one.csv: request 0: arrival_s must be a number from 0"),
        (["-1,100,10,,,,"], "request 0: arrival_s must be a number from 0"),
        (["0,0,10,,,,"], "request 0: prompt_tokens must be a whole number from 1"),
        (["0,5,10,,,,", "0,5.5,10,,,,"], "request 1: prompt_tokens must be a whole number from 1"),
        (["0,5,-1,,,,"], "request 0: output_tokens must be a whole number from 1"),
        (["0,5,1,,,soon,"], "request 0: first_token_s must be a number from 0"),
        (["0,5,1"], "one.csv: line 2 has 3 cells, the header 7"),
        (["0,5,1,,,nan,"], "request 0: first_token_s must be"),
    ],
)
def test_bad_requests_are_one_line(
    requests: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(tmp_path, {"one": {}}, requests)
    assert complaint in run_error(capsys, "validate", str(made))


def test_bad_folders_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = folder(tmp_path, {"one": {}, "two": {}})
    (made / "two.csv").unlink()
    assert "lacks the requests of runs: two.csv" in run_error(capsys, "validate", str(made))
    (made / "one.csv").write_text("arrival_s,prompt_tokens\n0,1\n")
    made = folder(tmp_path, {"one": {}})
    (made / "one.csv").write_text("arrival_s,prompt_tokens\n0,1\n")
    assert "lacks the columns output_tokens" in run_error(capsys, "validate", str(made))
    (made / "one.csv").write_text(f"{HEAD},colour\n{REQUESTS[0]},red\n")
    assert "not understood: 'colour'" in run_error(capsys, "validate", str(made))
    lines = (made / "runs.csv").read_text().splitlines()
    (made / "runs.csv").write_text("\n".join([*lines, lines[1]]))
    assert "has the run 'one' twice" in run_error(capsys, "validate", str(made))
    (made / "runs.csv").unlink()
    assert "cannot be read: Is a directory" in run_error(capsys, "validate", str(made))


@pytest.mark.parametrize("name", ["../one", "", ".one", "a/b", "x" * 300, "a b"])
def test_runs_name_files_of_their_folder_alone(name: str, tmp_path: Path) -> None:
    made = folder(tmp_path, {"one": {"run": name}})
    with pytest.raises(FormatError, match="has a run"):
        read_table(made)


def test_many_requests_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_runs, "MOST_REQUESTS", 5)
    with pytest.raises(FormatError, match="has over 5 requests"):
        read_table(folder(tmp_path, {"one": {}, "two": {}}))


def test_predictions_do_not_overwrite_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(tmp_path, {"one": {}})
    for name in ("runs.csv", "one.csv"):
        words = ("validate", str(made), "--predictions", str(made / name))
        assert "is the measured table itself" in run_error(capsys, *words)


def test_a_folder_of_tables_may_have_one_of_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(tmp_path, {"a_first": {}, "z_last": {}})
    (found,) = run_json(capsys, "validate", "--folder", tmp_path)["tables"]
    assert (found["table"], found["rows"]) == (str(made), 6)


def test_errors_on_measured_requests(measured: Callable[[str], Path]) -> None:
    found = validate(read_table(measured("requests")))
    assert not found.skipped
    by = {tuple(group.key.values()): group.stats for group in found.groups}
    assert len(by) == 4
    for (run, figure), stats in by.items():
        assert stats.rows == 300
        if figure == "e2e_ms":
            assert stats.mean_pct is not None
            assert stats.mean_pct <= 11, run
        else:
            assert stats.median_pct is not None
            assert stats.median_pct <= 20, run
    assert found.overall.coverage_pct is not None
    assert found.overall.coverage_pct > 80

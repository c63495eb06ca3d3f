"""Two options that vary: a table, its data, a CSV and a heat map, all of the same estimates."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from running import run_error, run_json, run_text

from shardcost import cli

ASK = "estimate llama3-70b --on h100_sxm --decode --context-tokens 4096".split()
GRID = [*ASK, "--vary", "tp=2,3,8", "--vary", "batch=1..64"]


def test_every_cell_is_the_estimate_of_its_pair(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, *GRID)
    assert data["vary"] == ["tp", "batch"]
    cells = {(cell["values"]["tp"], cell["values"]["batch"]): cell for cell in data["cells"]}
    assert list(cells) == [(tp, str(2**k)) for tp in ("2", "3", "8") for k in range(7)]
    single = run_json(capsys, *ASK, "--tp", "8", "--batch", "64")
    for key in ("time_s", "low_s", "high_s", "tpot_s", "mfu", "memory_bytes"):
        assert cells["8", "64"][key] == single[key]
    assert not cells["2", "64"]["feasible"]
    assert not cells["3", "1"]["possible"]
    fits = [cell for cell in cells.values() if cell["feasible"]]
    fastest = min(fits, key=lambda cell: cell["tpot_s"])
    assert data["best"]["fastest"] == fastest["values"]
    most = max(fits, key=lambda cell: cell["tokens_per_s_per_gpu"])
    assert data["best"]["most_tokens_per_s_per_gpu"] == most["values"]
    row = run_json(capsys, *ASK, "--tp", "8", "--vary", "batch=1,64")["rows"][1]
    assert row["time_s"] == cells["8", "64"]["time_s"]


def test_the_table_says_why_a_cell_has_no_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = run_text(capsys, *GRID)
    assert max(map(len, text.splitlines())) <= 80
    times, throughput = (text.split("\n\n")[k].splitlines() for k in (1, 2))
    assert times[0].split() == ["TPOT,", "ms", *(str(2**k) for k in range(7)), "batch"]
    assert throughput[0].startswith("tok/s/GPU")
    assert times[1].split()[:2] == ["tp", "2"]
    assert times[1].split()[-1] == "OOM"
    assert times[2].split()[2:] == ["[1]"] * 7
    assert "[1] tp does not divide 64 heads" in text
    assert "OOM: needs" in text
    single = run_json(capsys, *ASK, "--tp", "8", "--batch", "64")
    assert float(times[3].split()[-1]) == pytest.approx(1e3 * single["tpot_s"], rel=1e-3)
    wide = run_text(capsys, *ASK, "--vary", "tp=4,8", "--vary", "batch=1..32k")
    assert max(map(len, wide.splitlines())) <= 80
    assert wide.count("TPOT, ms") > 1


def test_csv_has_a_line_for_each_cell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "grid.csv"
    assert f"Table: {file}" in run_text(capsys, *GRID, "--csv", str(file))
    with file.open() as lines:
        cells = list(csv.DictReader(lines))
    data = run_json(capsys, *GRID)["cells"]
    assert len(cells) == len(data) == 21
    for cell, known in zip(cells, data, strict=True):
        assert (cell["tp"], cell["batch"]) == tuple(known["values"].values())
        assert cell["time_s"] == str(known.get("time_s", ""))
    one = tmp_path / "one.csv"
    run_json(capsys, *ASK, "--batch", "8", "--tp", "4", "--vary", "gpus=4,8", "--csv", str(one))
    with one.open() as lines:
        assert [line["gpus"] for line in csv.DictReader(lines)] == ["4", "8"]


def test_the_heat_map_labels_every_cell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "grid.svg"
    assert f"Plot: {file}" in run_text(capsys, *GRID, "--plot", str(file))
    drawn = file.read_text()
    data = run_json(capsys, *GRID)["cells"]
    assert drawn.count(" ms<") >= sum(cell["feasible"] for cell in data)
    for text in (
        ">TPOT<",
        "does not fit into memory",
        "[1] tp does not divide 64 heads",
        ">batch<",
    ):
        assert text in drawn


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*GRID, "--vary", "pp=1,2"], "--vary is given 3 times; at most 2"),
        ([*ASK, "--vary", "tp=1", "--vary", "tp=2"], "--vary must be two names"),
        ([*GRID, "--csv", "grid.parquet"], "--csv must be a file that ends in .csv"),
        ([*ASK, "--batch", "1", "--csv", "a.csv"], "--csv is for --vary"),
        ([*GRID, "--csv", "/no/such/folder/a.csv"], "cannot be written: No such file"),
    ],
)
def test_bad_grids_are_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert said in run_error(capsys, *words)


def test_a_grid_without_a_feasible_cell(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*ASK, "--vary", "tp=1,3", "--vary", "batch=1,2"]) == 3
    assert "no value of tp and batch is feasible" in capsys.readouterr().err

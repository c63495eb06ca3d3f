"""Tables with several measured columns: a prediction for each, by the row of the file."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from running import run_error, run_json, run_text
from test_memory_runs import ROW

from lab.command import joined
from lab.refit_memory import by_figure, runs_of
from shardcost.formats.tables import read_table
from shardcost.jitter import over_median, tail_of_all_reduce
from shardcost.machine.constants import catalog_jitter
from shardcost.validate import memory_runs
from shardcost.validate.validation import of_headline, split, validate

JITTER = "cluster,network,nodes,gpus,collective,size_bytes,p90_rel,p99_rel"
STEPS = "model,cluster,gpus,gbs,logged_every,p90_over_median,p99_over_median"
SUSTAINED = "gpu,dtype,m,n,k,burst_us,sustained_us"


def written(folder: Path, head: str, *rows: str) -> Path:
    path = folder / "table.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def all_reduces(folder: Path, *measured: str, nodes: str = "4") -> Path:
    rows = (f"h100_sxm,ib,{nodes},16,all_reduce,1024,{each}" for each in measured)
    return written(folder, JITTER, *rows)


def lines_of(capsys: pytest.CaptureFixture[str], path: Path, target: Path) -> list[dict[str, str]]:
    run_json(capsys, "validate", path, "--predictions", target)
    return list(csv.DictReader(target.read_text().splitlines()))


def test_figures_know_the_row_of_the_file(tmp_path: Path) -> None:
    table = read_table(all_reduces(tmp_path, "1.1,1.2", ",1.3", ",", "1.1,"))
    assert table.columns["figure"] == [
        *("p90_rel", "p99_rel"),
        "p99_rel",
        *("p90_rel", "p99_rel"),
        "p90_rel",
    ]
    assert list(table.file_rows) == [0, 0, 1, 2, 2, 3]
    high = table.where(lambda row: row["figure"] == "p99_rel")
    assert list(high.file_rows) == [0, 1, 2]
    assert list(high.at([2]).file_rows) == [2]
    (both,) = joined([high, table])
    assert list(both.file_rows) == [0, 1, 2, 3, 3, 4, 5, 5, 6]


def test_other_tables_count_their_rows(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "gpu,op,bytes,time_us", "x,add,1,1", "y,add,1,1"))
    assert list(table.file_rows) == [0, 1]
    assert list(table.where(lambda row: row["gpu"] == "y").file_rows) == [1]


def test_percentiles_are_predicted_by_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by = catalog_jitter()
    lines = lines_of(capsys, all_reduces(tmp_path, "1.1,1.2", ","), tmp_path / "p.csv")
    assert list(lines[0]) == ["row", "metric", "predicted", "low", "high", "reason"]
    assert [(line["row"], line["metric"]) for line in lines] == [
        ("0", "p90_rel"),
        ("0", "p99_rel"),
        ("1", "p90_rel"),
        ("1", "p99_rel"),
    ]
    delays = (by.tail, by.tail_index, by.half_bytes)
    for line in lines:
        percent = int(line["metric"][1:3])
        wanted = tail_of_all_reduce(1024, 4, *delays, percent=percent)
        assert float(line["predicted"]) == pytest.approx(wanted, abs=1e-4)
        assert 1 <= float(line["low"]) < float(line["predicted"]) < float(line["high"])
    steps = written(
        tmp_path, STEPS, "m,h100_sxm,8,64,1,1.01,1.02", "m,h100_sxm,none,64,1,1.01,1.02"
    )
    lines = lines_of(capsys, steps, tmp_path / "p.csv")
    assert [line["metric"] for line in lines] == ["p90_over_median", "p99_over_median"] * 2
    for line, percent in zip(lines[:2], (90, 99), strict=True):
        wanted = over_median(percent, by.step_scatter)
        assert float(line["predicted"]) == pytest.approx(wanted, abs=1e-4)
    assert all(line["reason"].startswith("gpus must be") for line in lines[2:])


def test_memory_is_predicted_by_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, ",".join(ROW), ",".join(ROW.values()))
    lines = lines_of(capsys, path, tmp_path / "p.csv")
    held = memory_runs.footprint_of(ROW)
    values = {line["metric"]: float(line["predicted"]) for line in lines}
    assert values == {
        "peak_bytes": held.total - held.framework,
        "allocated_bytes": held.between_steps,
    }


def test_lines_of_other_figures_name_the_row_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = "h100_sxm,bf16,8192,8192,8192"
    path = written(tmp_path, SUSTAINED, f"{row},1500,", f"{row},1500,2000")
    lines = lines_of(capsys, path, tmp_path / "p.csv")
    assert [(line["row"], line["metric"]) for line in lines] == [
        ("0", "burst_us"),
        ("1", "burst_us"),
        ("1", "sustained_us"),
    ]


def test_one_figure_stands_for_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = all_reduces(tmp_path, "1.0,1.3", "1.0,1.3", "1.0,")
    found = validate(read_table(path), ["nodes"])
    assert found.headline == "p99_rel"
    assert (found.table.rows, found.overall.rows) == (5, 2)
    assert [group.stats.rows for group in found.groups] == [2]
    assert [group.stats.rows for group in split(found, ["figure"])] == [3, 2]
    alone = of_headline(found)
    assert alone.overall == found.overall
    assert (alone.table.rows, alone.predicted, alone.unmeasured) == (2, 2, 0)
    assert list(alone.table.file_rows) == [0, 1]
    (data,) = run_json(capsys, "validate", path)["tables"]
    assert (data["rows"], data["predicted"], data["skipped"]) == (3, 3, [])
    assert (data["figures"]["rows"], data["figures"]["predicted"]) == (5, 5)
    assert [each["key"] for each in data["groups"]] == [
        {"figure": "p90_rel"},
        {"figure": "p99_rel"},
    ]
    text = run_text(capsys, "validate", str(path))
    assert "3 rows, 3 predicted, 0 skipped; 5" in " ".join(text.split())


def test_rows_of_the_file_are_counted_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = all_reduces(tmp_path, "1.0,1.3", "x,1.3", "x,y", ",")
    (data,) = run_json(capsys, "validate", path)["tables"]
    (skipped,) = data["skipped"]
    assert (data["rows"], data["predicted"], data["unmeasured"]) == (4, 3, 1)
    assert (skipped["rows"], data["figures"]["skipped"][0]["rows"]) == (1, 3)
    assert data["figures"]["unmeasured"] == 2


def test_figures_of_runs_are_put_where_they_belong(tmp_path: Path) -> None:
    blank = {**ROW, "peak_bytes": ""}
    rows = (",".join(row.values()) for row in (ROW, blank))
    table = read_table(written(tmp_path, ",".join(ROW), *rows))
    assert table.rows == 3
    runs = runs_of(table)
    assert list(runs.file_rows) == [0, 1]
    assert by_figure(table, np.array([0.0, 1.0]), np.array([10.0, 11.0])).tolist() == [0, 10, 11]


def test_columns_that_reading_makes_are_no_surprise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = all_reduces(tmp_path, "1.0,1.3", "1.0,1.3")
    text = run_text(capsys, "inspect", str(path))
    assert "2 rows" in text
    assert "do not understand" not in text
    rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{rows[0]},figure", f"{rows[1]},", f"{rows[2]},p99_rel"]))
    assert run_json(capsys, "inspect", str(path))["rows"] == 2
    assert "not understood: figure" in run_error(capsys, "validate", str(path))

"""Prediction against measurement: the errors, the skips, and what the command prints and writes.

Tables are made here, with times that are predictions by known factors, so errors are known.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import run_json

from shardcost import Cluster, cli
from shardcost.catalog import tuner_table
from shardcost.collectives.library_time import collective_time
from shardcost.formats.tables import Table, read_table
from shardcost.validate import collectives
from shardcost.validate.collectives import library_of
from shardcost.validate.validation import Validation, validate

LIKE = {
    "dataset": "mine",
    "cluster": "h100_sxm",
    "network": "",
    "nodes": "1",
    "gpus_per_node": "8",
    "num_gpus": "8",
    "library": "nccl-tuner",  # needs no fitted constants
    "mode": "",
    "single_process": "0",
    "collective": "all_reduce",
    "dtype": "half",
    "size_bytes": "1048576",
    "time_us": "100",
}
STATS = ["rows", "median_pct", "mean_pct", "p90_pct", "max_pct", "bias_pct", "coverage_pct"]


def predicted_us(size_bytes: float, gpus: int = 8, nodes: int = 1, network: str = "") -> float:
    cluster = Cluster.named("h100_sxm", network or None)
    found = collective_time("all_reduce", size_bytes, cluster, gpus, nodes, library="nccl-tuner")
    return float(found.time_s) * 1e6


def measured(factor: float, **cells: str) -> dict[str, str]:
    """Return a row whose time is that of its prediction over a factor."""
    row = LIKE | cells
    time_us = predicted_us(
        float(row["size_bytes"]), int(row["num_gpus"]), int(row["nodes"]), row["network"]
    )
    return row | {"time_us": repr(time_us / factor)}


def written(folder: Path, rows: Sequence[Mapping[str, str]], name: str = "table.csv") -> Path:
    path = folder / name
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(LIKE))
        writer.writeheader()
        writer.writerows(rows)
    return path


def validated(folder: Path, rows: Sequence[Mapping[str, str]], *by: str) -> Validation:
    return validate(read_table(written(folder, rows)), by)


FACTORS = [1.0, 1.1, 0.8, 1.3, 0.5]
ROWS: Sequence[Mapping[str, str]] = [
    measured(1.0, size_bytes="4096"),
    measured(1.1, size_bytes="4097"),
    measured(0.8, size_bytes="1048576", num_gpus="2"),
    measured(1.3, size_bytes=str(2**31)),
    measured(0.5, size_bytes="8192", network="ib_8x400g", nodes="2", num_gpus="16"),
]


def test_errors_are_known_exactly(tmp_path: Path) -> None:
    overall = validated(tmp_path, ROWS).overall
    assert overall.rows == 5
    assert overall.median_pct == pytest.approx(20)
    assert overall.mean_pct == pytest.approx((0 + 10 + 20 + 30 + 50) / 5)
    assert overall.p90_pct == pytest.approx(30 + 0.6 * 20)
    assert overall.max_pct == pytest.approx(50)
    assert overall.bias_pct == pytest.approx((0 + 10 - 20 + 30 - 50) / 5)


def test_groups_are_rows_with_the_same_cells(tmp_path: Path) -> None:
    groups = validated(tmp_path, ROWS, "num_gpus").groups
    assert [group.key for group in groups] == [{"num_gpus": n} for n in ("2", "8", "16")]
    assert [group.stats.rows for group in groups] == [1, 3, 1]
    assert groups[0].stats.bias_pct == pytest.approx(-20)
    both = validated(tmp_path, ROWS, "span", "size_band").groups
    assert [tuple(group.key.values()) for group in both] == [
        ("across nodes", "<=64KiB"),
        ("one node", "<=4KiB"),
        ("one node", "<=64KiB"),
        ("one node", "<=1MiB"),
        ("one node", ">256MiB"),
    ]


def test_populations() -> None:
    assert collectives.population(LIKE) == "NCCL family, one node"
    assert collectives.population(LIKE | {"library": "vllm"}) == "engines, graph, one node"
    assert collectives.population(LIKE | {"library": "vllm", "mode": "eager"}) == "eager"
    assert collectives.population(LIKE | {"nodes": "2"}) == "across nodes or racks"
    assert collectives.population(LIKE | {"single_process": "1"}) == "single process"


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"cluster": "abacus"}, "cluster unknown: 'abacus'"),
        ({"network": "pigeons"}, "network unknown: 'pigeons'"),
        ({"library": "mpi"}, "library on h100_sxm unknown: 'mpi'"),
        ({"collective": "all_hands"}, "collective unknown: 'all_hands'"),
        ({"mode": "lazy"}, "mode unknown: 'lazy'"),
        ({"size_bytes": "big"}, "size_bytes must be a number of bytes above 0, at most 8 EiB"),
        ({"size_bytes": "0"}, "size_bytes must be a number of bytes above 0, at most 8 EiB"),
        ({"size_bytes": "1e300"}, "size_bytes must be a number of bytes above 0, at most 8 EiB"),
        ({"num_gpus": ""}, "num_gpus must be a whole number from 1 to 10000000"),
        ({"num_gpus": "-8"}, "num_gpus must be a whole number from 1 to 10000000"),
        ({"nodes": "1.5"}, "nodes must be a whole number from 1 to 10000000"),
        ({"single_process": "yes"}, "single_process must be 0, 1 or empty"),
        ({"num_gpus": "64"}, "gpus must be at most 8 on 1 node of h100_sxm"),
        ({"nodes": "2", "num_gpus": "16"}, "nodes must be within one domain of h100_sxm"),
        ({"time_us": "fast"}, "time_us must be a number above 1e-6 and at most 1e15, or empty"),
        ({"time_us": "-1"}, "time_us must be a number above 1e-6 and at most 1e15, or empty"),
        ({"time_us": "nan"}, "time_us must be a number above 1e-6 and at most 1e15, or empty"),
    ],
)
def test_a_row_that_cannot_be_predicted_is_skipped_with_its_reason(
    tmp_path: Path, cells: dict[str, str], reason: str
) -> None:
    found = validated(tmp_path, [measured(1.0), LIKE | cells, measured(1.0)])
    assert len(found.skipped) == 1
    said, count = next(iter(found.skipped.items()))
    assert said.startswith(reason)
    assert "\n" not in said
    assert count == 1
    assert (found.table.rows, found.predicted, found.overall.rows) == (3, 2, 2)
    assert found.overall.max_pct == pytest.approx(0)
    assert np.isnan(found.predictions.values).tolist() == [False, True, False]
    assert found.predictions.reasons == ["", said, ""]


def test_skips_are_counted_by_rule_not_by_value(tmp_path: Path) -> None:
    rows = [LIKE | {"size_bytes": size} for size in ("-1", "x", "")]
    found = validated(tmp_path, [*rows, LIKE | {"cluster": "abacus"}, measured(2.0)])
    assert list(found.skipped.values()) == [3, 1]
    assert found.overall.rows == 1


def test_a_blank_measurement_is_predicted_but_not_compared(tmp_path: Path) -> None:
    found = validated(tmp_path, [LIKE | {"time_us": ""}, measured(2.0)])
    assert (found.predicted, found.unmeasured, found.overall.rows) == (2, 1, 1)
    assert found.predictions.values[0] == pytest.approx(predicted_us(2**20))


@pytest.mark.parametrize("rows", [[], [LIKE | {"cluster": "abacus"}], [LIKE | {"time_us": ""}]])
def test_nothing_to_compare_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: Sequence[Mapping[str, str]]
) -> None:
    path = written(tmp_path, rows)
    assert cli.main(["validate", str(path), "--by", "cluster", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["tables"][0]
    assert found["rows"] == len(rows)
    assert found["overall"] == dict.fromkeys(STATS, None) | {"rows": 0}
    assert found["groups"] == []
    assert cli.main(["validate", str(path)]) == 0
    assert f"{len(rows)} rows" in " ".join(capsys.readouterr().out.split())


def test_the_version_in_the_name_of_an_engines_data_set_counts() -> None:
    def asked(library: str, dataset: str) -> str:
        return library_of(LIKE | {"library": library, "dataset": dataset})

    assert asked("sglang", "aic_h100_sxm_sglang_0.5.10") == "sglang==0.5.10"
    assert asked("trtllm", "aic_b300_sxm_trtllm_1.3.0rc10") == "trtllm==1.3.0rc10"
    assert asked("nccl", "aic_b300_sxm_trtllm_1.3.0rc10") == "nccl"
    assert asked("vllm", "aic_b300_sxm_trtllm_1.3.0rc10") == "vllm"
    assert asked("vllm", "vllm_0.19.0") == "vllm"
    assert asked("vllm", "my_vllm_runs") == asked("vllm", "my_vllm_0.1_runs") == "vllm"


def test_versions_can_be_ignored(tmp_path: Path) -> None:
    """VLLM ran another kernel for 1 MiB before version 0.19."""
    table = read_table(written(tmp_path, [LIKE | {"library": "vllm", "dataset": "x_vllm_0.14"}]))
    found = (
        validate(table).predictions.values[0],
        validate(table, ignore_versions=True).predictions.values[0],
    )
    expected = [
        1e6 * float(collective_time("all_reduce", 2**20, "h100_sxm", 8, library=name).time_s)
        for name in ("vllm==0.14", "vllm")
    ]
    assert list(found) == expected
    assert expected[0] > 1.05 * expected[1]


def test_rows_that_differ_in_size_alone_are_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def count(collective: str, size_bytes: Any, *inputs: Any, **options: Any) -> Any:
        if np.ndim(size_bytes):  # a prediction; intervals look at one size of each case
            calls.append(len(size_bytes))
        return collective_time(collective, size_bytes, *inputs, **options)

    monkeypatch.setattr(collectives, "collective_time", count)
    rows = [LIKE | {"size_bytes": str(2**i), "mode": ("", "graph")[i % 2]} for i in range(3, 30)]
    found = validated(tmp_path, [*rows, LIKE | {"num_gpus": "4"}])
    assert calls == [27, 1]
    assert found.predictions.values[4] == pytest.approx(predicted_us(2**7))


def test_one_process_adds_what_its_launches_take(tmp_path: Path) -> None:
    rows = [LIKE | {"single_process": flag} for flag in ("", "0", "1")]
    blank, apart, one = validated(tmp_path, rows).predictions.values
    assert blank == apart
    launch_us = tuner_table("nccl")["host_launch"]["us_per_gpu"]
    assert one - apart == pytest.approx(8 * launch_us)


def test_json_keeps_its_contract(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path, [*ROWS, LIKE | {"cluster": "abacus"}])
    other = written(tmp_path, ROWS[:1], "other.csv")
    first, second = run_json(
        capsys, "validate", path, other, "--by", "cluster", "--by", "size_band"
    )["tables"]
    assert first["table"] == str(path)
    assert (first["rows"], first["predicted"]) == (6, 5)
    assert first["skipped"] == [{"reason": "cluster unknown: 'abacus'", "rows": 1}]
    assert list(first["overall"]) == STATS
    assert first["overall"]["median_pct"] == pytest.approx(20)
    assert len(first["groups"]) == 4
    for group in first["groups"]:
        assert list(group) == ["key", *STATS]
        assert list(group["key"]) == ["cluster", "size_band"]
    assert sum(group["rows"] for group in first["groups"]) == 5
    assert (second["rows"], second["skipped"]) == (1, [])


def test_columns_can_be_given_in_three_ways(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = written(tmp_path, ROWS)
    apart = run_json(
        capsys, "validate", path, "--by", "cluster", "--by", "library", "--by", "cluster"
    )
    assert apart["tables"][0]["groups"][0]["key"] == {
        "cluster": "h100_sxm",
        "library": "nccl-tuner",
    }
    assert run_json(capsys, "validate", path, "--by", "cluster,library") == apart
    assert run_json(capsys, "validate", path, "--by", "cluster", "library") == apart


def test_the_report_fits_and_has_units(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    name = written(tmp_path, [*ROWS, LIKE | {"cluster": "abacus"}]).name
    assert cli.main(["validate", name, "--by", "dataset,cluster,network,library,population"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "table.csv: 6 rows, 5 predicted, 1 skipped" in out
    assert "rows  median %  mean %  p90 %  max %  bias %  inside %  of\n" in out
    assert "   5      20.0    22.0   42.0   50.0    -6.0  " in out
    assert "mine, h100_sxm, no\n" in out
    assert "      1  cluster unknown: 'abacus'" in out


def test_predictions_are_one_line_per_row(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = written(tmp_path, [*ROWS, LIKE | {"cluster": "abacus"}])
    target = tmp_path / "out" / "predicted.csv"
    target.parent.mkdir()
    target.write_text("an older file is replaced")
    run_json(capsys, "validate", path, "--predictions", target)
    lines = list(csv.DictReader(target.read_text().splitlines()))
    assert list(lines[0]) == ["row", "predicted", "low", "high", "reason"]
    assert [line["row"] for line in lines] == [str(i) for i in range(6)]
    assert lines[5]["predicted"] == ""
    assert lines[5]["reason"] == "cluster unknown: 'abacus'"
    for line, row, factor in zip(lines, ROWS, FACTORS, strict=False):
        assert float(line["low"]) < float(line["predicted"]) < float(line["high"])
        assert line["reason"] == ""
        assert float(line["predicted"]) == pytest.approx(float(row["time_us"]) * factor, abs=1e-4)


def test_cells_cannot_write_to_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = written(tmp_path, [measured(1.0, dataset="a\x1b[2Jb\nc", dtype="")])
    assert cli.main(["validate", str(path), "--by", "dataset", "dtype"]) == 0
    assert "a?[2Jb?c, no dtype" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table.csv", "--by", "colour"], "--by must be a column of table.csv (dataset, cluster,"),
        (["table.csv", "--by", "cluster,"], "size_band, span, population), got ''"),
        (["table.csv", "--predictions", "table.csv"], "is the measured table itself"),
        (["table.csv", "--predictions", "./x/../table.csv"], "is the measured table itself"),
        (["table.csv", "--predictions", "link.csv"], "is the measured table itself"),
        (["link.csv", "--predictions", "table.csv"], "is the measured table itself"),
        (["table.csv", "--predictions", "missing/p.csv"], "cannot be written: No such file"),
        (["table.csv", "--predictions", "."], "cannot be written: it exists and is not a regular"),
        (["table.csv", "table.csv", "--predictions", "p.csv"], "--predictions is for one table"),
        (["missing.csv"], "missing.csv: cannot be read: No such file"),
        (["."], ".: cannot be read: Is a directory"),
        (["--by", "cluster"], "arguments are required: TABLE.csv"),
        ([], "arguments are required: TABLE.csv"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    before = written(tmp_path, ROWS).read_text()
    (tmp_path / "link.csv").symlink_to("table.csv")
    assert cli.main(["validate", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert (tmp_path / "table.csv").read_text() == before
    assert {path.name for path in tmp_path.iterdir()} == {"x", "table.csv", "link.csv"}


@pytest.fixture(scope="module")
def published(evidence: Path) -> Table:
    return read_table(evidence / "measured" / "collectives.csv")


def test_nearly_every_published_row_is_predicted(published: Table) -> None:
    found = validate(published, ["population", "size_band"])
    assert found.predicted >= 0.97 * published.rows
    assert found.predicted + sum(found.skipped.values()) == published.rows
    assert found.unmeasured == 0
    assert sum(group.stats.rows for group in found.groups) == found.predicted

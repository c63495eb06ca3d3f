"""Step times of training runs become a framework's constants, and what is wrong is one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardcost import Cluster, Software
from shardcost.calibrate.steps import calibrate
from shardcost.cli import main
from shardcost.formats.tables import read_table, write_table
from shardcost.validate.training import estimate_of

pytest.importorskip("scipy")
BASE = {
    "model": "llama", "layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "8",
    "ffn": "14336", "gated": "1", "vocab": "128256", "seq": "4096", "mbs": "1", "gbs": "8",
    "gpus": "8", "tp": "1", "pp": "1", "dp": "8", "dtype": "bf16", "cluster": "h100_sxm",
    "framework": "Megatron-Bridge", "measured_step_s": "",
}  # fmt: skip
TRUE = replace(Software.named("megatron_core"), slowdown=1.3, step_overhead_s=0.12)


def rows(count: int, software: Software = TRUE, **cells: str) -> list[dict[str, str]]:
    """Return runs of several depths and batches with the step times of a software."""
    found = []
    for k in range(count):
        shape = {"layers": str(4 + 4 * (k % 4)), "gbs": str(8 * 2 ** (k % 5))}
        row = BASE | shape | cells
        known = row | {"cluster": "h100_sxm"}
        row["measured_step_s"] = f"{float(estimate_of(known, software).time_s):.6f}"
        found.append(row)
    return found


def written(path: Path, table: list[dict[str, str]]) -> Path:
    write_table(path, list(table[0]), [list(row.values()) for row in table])
    return path


def calibrated(
    capsys: pytest.CaptureFixture[str], *words: str | Path, name: str = "mine"
) -> Mapping[str, Any]:
    assert main(["calibrate", *map(str, words), "--name", name, "--json"]) == 0
    data: Mapping[str, Any] = json.loads(capsys.readouterr().out)
    return data


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_known_constants_are_recovered_and_the_file_predicts_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = rows(10)
    data = calibrated(capsys, written(tmp_path / "steps.csv", table))
    assert (data["rows"], data["skipped"], data["cluster"]) == (10, [], "h100_sxm")
    assert data["before"]["median_pct"] > 15
    assert data["after"]["median_pct"] < 1
    assert data["left_out"]["rows"] == 10
    assert data["left_out"]["median_pct"] < 2
    software = Software.from_file("mine-software.toml")
    assert software.slowdown == pytest.approx(1.3, rel=0.02)
    assert software.step_overhead_s == pytest.approx(0.12, rel=0.1)
    errors = [
        float(estimate_of(row, software).time_s) / float(row["measured_step_s"]) - 1
        for row in table
    ]
    # What the report states is what the file gives.
    median = 100 * float(np.median(np.abs(errors)))
    assert median == pytest.approx(data["after"]["median_pct"], abs=0.05)
    assert software.fit is not None
    assert software.fit.rows == 10
    assert replace(
        software, name=TRUE.name, title=TRUE.title, slowdown=1.3, step_overhead_s=0.12,
        fit=TRUE.fit,
    ) == TRUE  # fmt: skip


def test_one_odd_row_does_not_decide(tmp_path: Path) -> None:
    table = rows(10)
    table[3]["measured_step_s"] = str(20 * float(table[3]["measured_step_s"]))
    result = calibrate([read_table(written(tmp_path / "odd.csv", table))])
    assert result.software.slowdown == pytest.approx(1.3, rel=0.05)


def test_few_rows_and_steps_all_as_long_move_the_slowdown_alone(tmp_path: Path) -> None:
    usual = Software.named("megatron_core")
    slower = replace(usual, slowdown=1.3)
    few = rows(2, slower)
    alike = rows(1, slower) * 8
    for table, folds in ((few, 0), (alike, 8)):
        result = calibrate([read_table(written(tmp_path / "steps.csv", table))])
        assert result.software.step_overhead_s == usual.step_overhead_s
        assert result.constants[1].plus_minus is None
        assert result.left_out.rows == folds
        assert result.software.slowdown == pytest.approx(1.3, rel=0.05)
        assert result.software.slowdown < 1.3  # held to the shipped value


def test_choices_that_all_rows_state_are_in_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "steps.csv", [row | {"tp_overlap": "no"} for row in rows(4)])
    assert calibrate([read_table(path)]).software.tp_overlap == "none"
    mixed = [row | {"tp_overlap": "no" if k else ""} for k, row in enumerate(rows(4))]
    result = calibrate([read_table(written(tmp_path / "mixed.csv", mixed))])
    assert (result.software.tp_overlap, result.alike) == (TRUE.tp_overlap, False)


def test_on_and_software_say_what_the_table_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unnamed = written(tmp_path / "unnamed.csv", rows(5, cluster="ours"))
    data = calibrated(capsys, unnamed, "--on", "h100_sxm", "--software", "megatron_2024")
    assert (data["cluster"], data["based_on"], data["rows"]) == ("h100_sxm", "megatron_2024", 5)
    both = written(tmp_path / "both.csv", rows(5) + rows(4, framework="torchtitan"))
    data = calibrated(capsys, both, "--software", "megatron_core")
    assert data["rows"] == 5
    assert data["skipped"] == [{"reason": "of another framework than megatron_core", "rows": 4}]


def test_together_with_collectives_the_profile_of_the_same_call_prices_the_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Path(__file__).resolve().parents[1] / "docs" / "examples" / "all_reduce-8-slow.txt"
    steps = written(tmp_path / "steps.csv", rows(5))
    data = calibrated(capsys, log, steps)
    assert set(data) == {"cluster", "training"}
    assert data["training"]["cluster"] == "mine"
    cluster = Cluster.from_file("mine.toml")
    own = calibrate([read_table(steps)], cluster).software
    assert Software.from_file("mine-software.toml").slowdown == pytest.approx(own.slowdown)


@pytest.mark.parametrize(
    ("changed", "options", "words"),
    [
        ({"cluster": ""}, [], "does not say which machine it is of: say --on CLUSTER"),
        ({"cluster": "ours"}, [], "no row can be used: cluster unknown: 'ours'"),
        ({"measured_step_s": ""}, [], "no row can be used: without a measured step time"),
        ({"measured_step_s": "-1"}, [], "no row can be used: measured_step_s must be"),
        ({"gbs": "7"}, [], "no row can be used"),
        ({"mood": "good"}, [], "columns that are not understood: mood"),
        ({}, ["--tp", "8"], "--tp is for results of serving benchmarks"),
        ({}, ["--library", "nccl"], "--library is for times of collectives"),
        ({}, ["--network", "ib_8x400g"], "needs --on CLUSTER"),
        ({}, ["--output", "x.txt"], "ends in .toml"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, str],
    options: list[str],
    words: str,
) -> None:
    path = written(tmp_path / "steps.csv", [row | changed for row in rows(1)])
    assert main(["calibrate", str(path), "--name", "mine", *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not Path("mine-software.toml").exists()


def test_rows_of_several_machines_or_frameworks_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = rows(1), rows(1, cluster="a100_sxm")
    for table, words in (
        (one + other, "rows of several clusters"),
        (one + rows(1, framework="torchtitan"), "say --software one of them"),
    ):
        path = written(tmp_path / "steps.csv", table)
        assert main(["calibrate", str(path), "--name", "mine"]) == 2
        assert words in capsys.readouterr().err
    two = [written(tmp_path / f"{k}.csv", table) for k, table in enumerate((one, other))]
    assert main(["calibrate", *map(str, two), "--name", "mine"]) == 2
    assert "clusters of the rows" in capsys.readouterr().err

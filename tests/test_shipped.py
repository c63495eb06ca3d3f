"""The measurements that ship with shardcost, tables beside them, and the errors on record."""

from __future__ import annotations

import argparse
import csv
import json
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from lab.command import joined, tables_of
from lab.record import Figures, as_toml, figures, limit, main, read_record, worsened
from lab.sources import source_of
from shardcost import cli
from shardcost.errors import FormatError
from shardcost.formats.tables import Table, read_table
from shardcost.validate.shipped import ROWS, is_shipped, not_in, shipped, tables_in
from shardcost.validate.validation import validate

OWN = "own_h200_torch2.11"
PASSES = "dataset,gpu,op,bytes,time_us"
SIZES = {2**20, 2**26, 2**30, 2**33}


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def passes(folder: Path, *datasets: str, name: str = "passes.csv") -> Path:
    """Return a table of memory-bound kernels, a row for each data set."""
    path = folder / name
    lines = [f"{dataset},h200_sxm,copy,1048576,3" for dataset in datasets]
    path.write_text("\n".join([PASSES, *lines, ""]))
    return path


def by_kind(tables: list[Table]) -> dict[str, Table]:
    return {table.kind: table for table in tables}


def test_what_ships_is_read_and_predicted_whole() -> None:
    found = by_kind(shipped())
    assert {kind: table.rows for kind, table in found.items()} == {
        "collectives": 43,
        "elementwise": 22,
        "gemm": 840,
        "overlap": 54,
        "layers": 112,
        "decode": 336,
        "training": 26,
    }
    for table in found.values():
        assert is_shipped(table)
        assert not validate(table).skipped
    assert len(rows_of(ROWS / "ceilings.csv")) == 4
    assert len(rows_of(ROWS / "launch.csv")) == 7


def test_every_data_set_that_ships_has_its_citation() -> None:
    cited = {(row["table"], row["dataset"]): row for row in rows_of(ROWS / "SOURCES.csv")}
    there = {
        (path.stem, row["dataset"])
        for path in ROWS.glob("*.csv")
        if path.stem != "SOURCES"
        for row in rows_of(path)
    }
    assert there == set(cited)
    for (_, name), row in cited.items():
        assert len(row["citation"]) > 20
        assert source_of(name)
        assert (name == OWN) == (not row["url"])
        assert name == OWN or row["url"].startswith("https://")


def test_published_figures_are_few_and_chosen_by_rule() -> None:
    found = rows_of(ROWS / "collectives.csv")
    assert {int(row["size_bytes"]) for row in found} <= SIZES
    assert max(Counter(row["dataset"] for row in found).values()) <= 4
    training = Counter(row["dataset"] for row in rows_of(ROWS / "training.csv"))
    assert set(training) == {"korthikanti_table5", "megatron_sc21_table1", "megatron_readme_2020"}
    assert max(training.values()) <= 12


def test_what_ships_is_what_was_measured(evidence: Path) -> None:
    for path in ROWS.glob("*.csv"):
        if path.stem == "SOURCES":
            continue
        whole = Counter(map(without_notes, rows_of(evidence / "measured" / path.name)))
        assert not Counter(map(without_notes, rows_of(path))) - whole, path


def without_notes(row: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, cell) for name, cell in row.items() if name != "notes")


def test_a_data_set_counts_once(tmp_path: Path) -> None:
    named = read_table(passes(tmp_path, OWN, "mine"))
    rest = by_kind(not_in([named], shipped()))
    assert "elementwise" not in rest
    assert rest["gemm"].rows == 840  # the same data set, but of another kind
    other = read_table(passes(tmp_path, "mine"))
    assert by_kind(not_in([other], shipped()))["elementwise"].rows == 22


def test_tables_of_one_kind_are_joined(tmp_path: Path) -> None:
    one = read_table(passes(tmp_path, "a", "b"))
    path = tmp_path / "more.csv"
    path.write_text("gpu,op,bytes,time_us,note\nh200_sxm,copy,64,1,warm\n")
    (both,) = joined([one, read_table(path)])
    assert both.path == one.path
    assert both.rows == 3
    assert both.columns["dataset"] == ["a", "b", ""]
    assert both.columns["note"] == ["", "", "warm"]
    assert joined([one])[0] is one
    assert joined([]) == []


def test_a_folder_stands_for_its_tables(tmp_path: Path) -> None:
    inner = tmp_path / "measured"
    inner.mkdir()
    passes(inner, "mine")
    (inner / "SOURCES.csv").write_text("table,dataset\npasses,mine\n")
    for folder in (tmp_path, inner):
        found = tables_in(folder)
        assert [table.kind for table in found.tables] == ["elementwise"]
        assert len(found.left_out) == 1
        assert "SOURCES.csv" in found.left_out[0]


def test_a_folder_gives_all_tables_of_a_kind(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    first, second = passes(tmp_path, "mine"), passes(tmp_path / "more", "theirs")
    found = tables_in(tmp_path)
    assert [table.path for table in found.tables] == [first, second]
    options = argparse.Namespace(tables=[], folder=tmp_path, shipped=False)
    (together,) = tables_of(options).named
    assert together.columns["dataset"] == ["mine", "theirs"]


def test_a_folder_without_tables_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="has no measured table"):
        tables_in(tmp_path)


def test_named_tables_stand_beside_what_ships(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    passes(tmp_path, OWN)
    assert cli.main(["validate", "--shipped", "--folder", str(tmp_path), "--json"]) == 0
    told = capsys.readouterr()
    names = [each["table"] for each in json.loads(told.out)["tables"]]
    assert str(tmp_path / "passes.csv") in names
    assert "shipped/gemm.csv" in names
    assert "shipped/elementwise.csv" not in names
    assert "left out: " in told.err
    assert "notes.csv" in told.err


# Errors on record.


def test_a_tenth_more_is_allowed_and_a_tenth_of_a_point() -> None:
    assert limit(10) == pytest.approx(11)
    assert limit(0.2) == pytest.approx(0.3)
    assert limit(0) == pytest.approx(0.1)


def test_each_figure_that_grew_has_its_line() -> None:
    before = {("gemm", ""): Figures(10, 10, 4.0, 5.0, 9.0), ("gemm", "a"): Figures(5, 5, 0.0)}
    assert worsened(before, before) == []
    now = {("gemm", ""): Figures(10, 9, 4.39, 5.6, 9.0), ("gemm", "a"): Figures(5, 5, 0.1)}
    assert worsened(now, before) == [
        "gemm, all rows: predicted 9, recorded 10",
        "gemm, all rows: mean_pct 5.60, recorded 5.00",
    ]
    assert worsened({}, {("gemm", "a"): Figures(5, 5, 1.0)}) == [
        "gemm, a: rows 0, recorded 5",
        "gemm, a: predicted 0, recorded 5",
    ]
    assert worsened({("gemm", "a"): Figures(5, 5)}, {("gemm", "a"): Figures(5, 5, 1.0)}) == [
        "gemm, a: median_pct of no measurement, recorded 1.00",
    ]
    better = {place: Figures(20, 20, 1.0, 1.0, 1.0) for place in [*before, ("training", "")]}
    assert worsened(better, before | {("gemm", "a"): Figures(5, 5, 1.0)}) == []


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = figures([validate(table) for table in shipped()])
    path = tmp_path / "record.toml"
    path.write_text(as_toml(record), encoding="utf-8")
    read = read_record(path)
    assert list(read) == list(record)
    for place, figure in record.items():
        assert read[place] == pytest.approx(figure, abs=0.005)
    assert worsened(record, read) == []


def test_odd_names_stay_readable() -> None:
    record = {("gemm", ""): Figures(1, 0), ("gemm", 'a "b"\n\\…'): Figures(1, 0)}
    content = tomllib.loads(as_toml(record))
    assert list(content["gemm"]["datasets"]) == ['a "b"?\\…']
    assert content["gemm"]["all"] == {"rows": 1, "predicted": 0}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[gemm", "is not TOML"),
        ("gemm = 3\n", "[gemm] is not the record"),
        ("[gemm]\ndatasets = 1\n", "[gemm] is not the record"),
        ("[gemm]\n", "[gemm] all is not a record of rows, predicted"),
        ("[gemm]\nall = { rows = 1.5, predicted = 1 }\n", "[gemm] all is not a record"),
        ("[gemm]\nall = { rows = 1, predicted = 1, p90_pct = 'x' }\n", "[gemm] all is not"),
        ("[gemm]\nall = { rows = 1, predicted = 1, p95_pct = 1.0 }\n", "[gemm] all is not"),
    ],
)
def test_a_bad_record_is_one_clear_line(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "record.toml"
    path.write_text(content)
    with pytest.raises(FormatError) as caught:
        main([str(path), "--check"])
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_gate_trips_when_an_error_has_grown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.toml"
    assert main([str(path)]) == 0
    assert main([str(path), "--check"]) == 0
    assert "no error is larger than on record" in capsys.readouterr().err
    median = read_record(path)["gemm", OWN].median_pct
    assert median is not None
    text = path.read_text(encoding="utf-8")
    place = text.index("[gemm.datasets]")
    lowered = text[place:].replace(f"median_pct = {median}", "median_pct = 1.00", 1)
    path.write_text(text[:place] + lowered, encoding="utf-8")
    assert main([str(path), "--check"]) == 1
    line = f"gemm, {OWN}: median_pct {median:.2f}, recorded 1.00"
    assert capsys.readouterr().err == f"worse than on record: {line}\n"


def test_the_record_of_the_project_is_of_what_ships(repository: Path) -> None:
    recorded = read_record(repository / "docs" / "validation" / "recorded.toml")
    found = figures([validate(table) for table in shipped()])
    assert set(recorded) == set(found)
    assert worsened(found, recorded) == []
    for place, figure in found.items():
        assert (recorded[place].rows, recorded[place].predicted) == (figure.rows, figure.predicted)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "arguments are required: TABLE.csv, --folder or --shipped"),
        (["--folder", "absent"], "absent has no measured table"),
        (["--folder", "a\0b"], "has no measured table"),
        (["--shipped", "--predictions", "p.csv"], "--predictions is for one table"),
        (["absent.csv", "--shipped"], "absent.csv cannot be read"),
    ],
)
def test_words_that_do_not_go_together(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["validate", *words]) == 2
    told = capsys.readouterr()
    assert complaint in told.err.replace(":", "") or complaint in told.err
    assert not told.out

"""Measured tables: which are read, and the one line that each broken one gets."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from shardcost.collectives.library_time import collective_time
from shardcost.errors import BadValueError, FormatError
from shardcost.formats import tables
from shardcost.formats.tables import number, read_table, write_table
from shardcost.validate.validation import validate

HEAD = (
    "dataset,cluster,network,nodes,gpus_per_node,num_gpus,library,mode,single_process,collective,"
    "dtype,size_bytes,time_us"
)
ROW = "mine,h100_sxm,,1,8,8,nccl,,0,all_reduce,half,1024,20.5"


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "table.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_table_is_its_columns(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEAD}\n{ROW}\n{ROW}\n")
    table = read_table(path)
    assert (table.kind, table.path, table.rows) == ("collectives", path, 2)
    assert list(table.columns) == HEAD.split(",")
    assert table.columns["cluster"] == ["h100_sxm"] * 2
    assert [dict(row) for row in table.records()] == [
        dict(zip(HEAD.split(","), ROW.split(","), strict=True))
    ] * 2


@pytest.mark.parametrize(
    "content",
    [
        f"{HEAD}\n{ROW}",
        f"\ufeff{HEAD}\n{ROW}\n",
        f"{HEAD}\r\n{ROW}\r\n",
        f"{HEAD}\r{ROW}\r",
        f"\n{HEAD}\n\n{ROW}\n\n\n",
        f"{HEAD}\n{ROW}\n".replace(",", " , "),
        f"{HEAD}\n{ROW}\n".replace("h100_sxm", '"h100_sxm"'),
        "\n".join(",".join(reversed(line.split(","))) for line in (HEAD, ROW)),
        f"{HEAD},note\n{ROW},\"a, 'b'\nc\"\n",
    ],
    ids=["no last end", "BOM", "CRLF", "CR", "blanks", "spaces", "quotes", "reversed", "extra"],
)
def test_ways_to_write_the_same_table(tmp_path: Path, content: str) -> None:
    table = read_table(written(tmp_path, content))
    assert table.rows == 1
    assert table.columns["cluster"] == ["h100_sxm"]
    assert table.columns["time_us"] == ["20.5"]
    assert table.columns.get("note", ["a, 'b'\nc"]) == ["a, 'b'\nc"]


def test_a_table_may_have_no_rows(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, HEAD))
    assert table.rows == 0
    assert table.columns["time_us"] == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        (f"{HEAD}\n{ROW}\n{ROW},1\n", "line 3 has 14 cells, the header 13"),
        (f"{HEAD}\n{ROW[:-5]}\n", "line 2 has 12 cells, the header 13"),
        (f"{HEAD}\n{ROW}\0\n", "line 2 holds a NUL character"),
        (f"{HEAD}\n".encode() + b"\xff\xfe", f"is not UTF-8 text (byte {len(HEAD) + 1})"),
        (f'{HEAD}\n"{ROW}\n', "line 2 is not CSV: unexpected end of data"),
        (f'{HEAD}\n"mine"x{ROW[4:]}\n', "line 2 is not CSV: ',' expected after '\"'"),
        (f"{HEAD}\n{'x' * 200_000}{ROW}\n", "line 2 is not CSV: field larger than field limit"),
        (f"{HEAD},mode\n", "line 1 names the column 'mode' twice"),
        (
            HEAD.replace("mode,", ""),
            "line 1 looks like a table of collectives, without columns mode",
        ),
        ("a,b,c\n1,2,3\n", "line 1 is not the header of a measured table: ['a', 'b', 'c']"),
        ("{}", "line 1 is not the header of a measured table"),
        (
            "dataset,gpu,what,value,unit\n",
            "is a table of ceilings, not yet validated (so far: collectives, ",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, content: str | bytes, reason: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(FormatError) as caught:
        read_table(path)
    assert str(caught.value).startswith(f"{path}: {reason}")
    assert "\n" not in str(caught.value)


def test_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read: Is a directory"):
        read_table(tmp_path)
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        read_table(tmp_path / "missing.csv")


def test_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_BYTES", 2**20)
    with pytest.raises(FormatError, match="is larger than 1 MiB"):
        read_table(written(tmp_path, f"{HEAD}\n" + f"{ROW}\n" * 2**15))


def test_every_kind_of_table_is_known(evidence: Path) -> None:
    for path in sorted((evidence / "measured").glob("*.csv")):
        if path.stem == "SOURCES":
            continue
        if path.stem in tables.VALIDATED:
            assert read_table(path).kind == path.stem
        else:
            with pytest.raises(FormatError, match=f"is a table of {path.stem}, not yet validated"):
                read_table(path)


@pytest.mark.parametrize(
    ("head", "named"),
    [
        ("gpu,dtype,m,n,k,time_us,sparsity", "sparsity"),
        ("gpu,op,tokens,bytes,time_us", "tokens"),
        (f"{HEAD},algorithm,threads,firmware", "threads, firmware"),
        (
            "model,layers,hidden,heads,seq,mbs,gbs,gpus,tp,pp,dp,measured_step_s,sparsity",
            "sparsity",
        ),
    ],
)
def test_columns_that_may_change_the_answer_are_refused(
    tmp_path: Path, head: str, named: str
) -> None:
    row = ",".join("8" for _ in head.split(","))
    with pytest.raises(FormatError, match=f"columns that are not understood: {named}$"):
        read_table(written(tmp_path, f"{head}\n{row}\n"))
    blank = ",".join("" if name in named.split(", ") else "8" for name in head.split(","))
    assert read_table(written(tmp_path, f"{head}\n{blank}\n")).rows == 1


def test_a_header_far_from_any_kind_is_taken_for_none(tmp_path: Path) -> None:
    head = "gpu,library,kernel,fan,noise_db,heat_w,altitude_m,humidity,time_us"
    with pytest.raises(FormatError, match="is not the header of a measured table"):
        read_table(written(tmp_path, f"{head}\n"))


def test_forced_algorithms_and_protocols_are_honoured(tmp_path: Path) -> None:
    forced = [("", ""), ("default", ""), ("Ring", ""), ("ring", "ll128"), ("tree", ""), ("", "ll3")]
    rows = [f"{ROW},{algorithm},{protocol}" for algorithm, protocol in forced]
    table = read_table(written(tmp_path, "\n".join([f"{HEAD},algorithm,protocol", *rows])))
    found = validate(table)
    assert found.predicted == 4
    free, same, _, ring_ll128 = found.predictions.values[:4]
    assert free == same
    alone = collective_time("all_reduce", 1024, "h100_sxm", 8, algorithm="ring", protocol="LL128")
    assert ring_ll128 == pytest.approx(1e6 * float(alone.time_s))
    assert ring_ll128 > 1.1 * free
    assert any("must be nvls or ring for all_reduce" in reason for reason in found.skipped)
    assert "protocol unknown: 'll3'" in found.skipped


@pytest.mark.parametrize(
    ("column", "cell", "reason"),
    [
        ("channels", "16", "channels must be blank: the library's own number of them"),
        ("concurrent_groups", "2", "concurrent_groups must be as many as one domain holds"),
        ("concurrent_groups", "0", "concurrent_groups must be a whole number from 1"),
        ("framework", "jax", "framework unknown: 'jax'"),
    ],
)
def test_what_ran_beside_and_how_is_honoured_or_skipped(
    tmp_path: Path, column: str, cell: str, reason: str
) -> None:
    content = f"{HEAD},{column}\n{ROW},\n{ROW},{cell}\n"
    found = validate(read_table(written(tmp_path, content)))
    assert found.predicted == 1
    (said,) = found.skipped
    assert said.startswith(reason)


@pytest.mark.parametrize("text", ["8", "8.0", "+8", "8.", "0.8e1", "80E-1"])
def test_numbers(text: str) -> None:
    assert number({"m": text}, "m", 0, 10, "small") == 8


@pytest.mark.parametrize(
    "text", ["", "x", "nan", "inf", "-8", "0", "11", "1e999", "1_0", "٨", "8 8", "0x8", "9" * 5000]
)
def test_other_cells_are_no_numbers(text: str) -> None:
    with pytest.raises(BadValueError, match="m must be small, got"):
        number({"m": text}, "m", 0, 10, "small")


def test_a_table_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("old")
    write_table(path, ("a", "b"), [(1, "x, y"), (2, "")])
    assert list(csv.reader(path.read_text().splitlines())) == [["a", "b"], ["1", "x, y"], ["2", ""]]
    assert list(tmp_path.iterdir()) == [path]


def test_a_table_that_fails_midway_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        write_table(path, ("a",), ([1 // n] for n in (1, 0)))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".", "it exists and is not a regular file"),
        ("/dev/null", "it exists and is not a regular file"),
        ("missing/out.csv", "No such file"),
        ("file/out.csv", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("x\0y", "is not a file name"),
    ],
)
def test_where_a_table_cannot_be_written(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match=reason):
        write_table(tmp_path / name, ("a",), [])

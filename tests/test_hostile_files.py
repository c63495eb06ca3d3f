"""No file harms who reads it: damaged, absurd and hostile ones end in figures or in one clear line.

Files are read in a process of its own, whose memory is limited and whose time is taken. What is
looked for with each file is in `hostile_files.judge`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_files import batches, files_of, samples, write_batch
from running import run_error

from shardcost import Cluster, cli
from shardcost.errors import FormatError, ShardcostError, shown
from shardcost.formats.detect import read_file
from shardcost.formats.kineto import Trace
from shardcost.formats.nccl_tuner import TunerFile
from shardcost.formats.nvidia_smi import DeviceMatrix
from shardcost.formats.reading import MeasurementLog, Reading

JUDGE = Path(__file__).with_name("hostile_files.py")


LIGHT = [batch for batch in batches() if batch in samples()]
TOGETHER = [LIGHT[::2], LIGHT[1::2], *([batch] for batch in batches() if batch not in LIGHT)]
"""Batches that one process reads: to start it takes longer than to read small files."""


@pytest.mark.parametrize("together", TOGETHER, ids=lambda each: each[0])
def test_every_file_is_read_or_refused_in_one_line(together: list[str], tmp_path: Path) -> None:
    names, folders = [], [tmp_path / batch for batch in together]
    for folder in folders:
        folder.mkdir()
        names += write_batch(folder.name, folder)
    done = subprocess.run(
        [sys.executable, "-W", "error", JUDGE, *folders],
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    judged = [json.loads(line) for line in done.stdout.splitlines()]
    assert [fault for each in judged for fault in each["faults"]] == []
    assert sorted(each["file"] for each in judged) == sorted(names), done.stderr[-2000:]


def test_there_are_many_files_and_they_are_the_same_in_every_run() -> None:
    counts = [len(list(files_of(batch))) for batch in LIGHT]
    assert sum(counts) > 1000
    assert list(files_of("osu")) == list(files_of("osu"))


def test_the_samples_themselves_are_read(tmp_path: Path) -> None:
    """Else damage to them would test nothing."""
    for name, text in samples().items():
        path = tmp_path / f"{name}.txt"
        path.write_text(text)
        assert cli.main(["inspect", str(path)]) == 0, name
        assert not read_file(path).unread or name in {"nccl-tests", "rccl-tests", "osu"}, name


def _written(folder: Path, name: str, text: str) -> Reading:
    path = folder / name
    path.write_text(text)
    return read_file(path)


def _points(reading: Reading) -> set[tuple[int, float]]:
    assert isinstance(reading, MeasurementLog)
    return {(each.size_bytes, each.time_s) for run in reading.runs for each in run.points}


@pytest.mark.parametrize("name", ["nccl-tests", "inspector", "osu", "measurements"])
def test_a_log_damaged_in_the_middle_keeps_its_other_points(name: str, tmp_path: Path) -> None:
    text = samples()[name]
    lines = text.splitlines(keepends=True)
    middle = len(lines) - 6
    hurt = "".join([*lines[:middle], "\x00\x1b[2J~~" + lines[middle][20:], *lines[middle + 1 :]])
    whole, left = _written(tmp_path, "whole", text), _written(tmp_path, "hurt", hurt)
    assert len(_points(whole)) - 2 <= len(_points(left) & _points(whole)) < len(_points(whole))
    before, after = (sum(each.count for each in one.unread) for one in (whole, left))
    assert after >= before + 1


def test_a_trace_damaged_in_the_middle_keeps_its_other_calls(tmp_path: Path) -> None:
    text = samples()["kineto"]
    lines = text.splitlines(keepends=True)
    lines[31] = lines[31].replace('"kernel"', '"ker')
    whole, left = _written(tmp_path, "whole", text), _written(tmp_path, "hurt", "".join(lines))
    assert isinstance(whole, Trace)
    assert isinstance(left, Trace)
    assert len(whole.ranks[0].calls.kind) == 20
    assert len(left.ranks[0].calls.kind) >= 18
    assert sum(each.count for each in left.unread) >= 1


def test_rules_damaged_in_the_middle_leave_the_others(tmp_path: Path) -> None:
    hurt = samples()["tuner"].replace("ring,ll128", "r\x00ng,ll128")
    left = _written(tmp_path, "hurt", hurt)
    assert isinstance(left, TunerFile)
    assert (len(left.rules), sum(each.count for each in left.unread)) == (3, 1)


def test_a_matrix_damaged_in_the_middle_keeps_its_other_cells(tmp_path: Path) -> None:
    lines = samples()["matrix"].splitlines(keepends=True)
    lines[4] = lines[4][:17] + "\n"
    left = _written(tmp_path, "hurt", "".join(lines))
    assert isinstance(left, DeviceMatrix)
    assert [len(row) for row in left.links] == [8] * 8
    assert left.links[3][7] == "NV18"  # the other's row has it
    assert sum(each.count for each in left.unread) >= 1


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def _loop(folder: Path) -> Path:
    (folder / "loop").symlink_to(folder / "loop")
    return folder / "loop"


def _forbidden(folder: Path) -> Path:
    path = folder / "secret"
    path.write_text("x")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    return path


NO_FILES: dict[str, Callable[[Path], Path]] = {
    "pipe": _fifo,
    "loop": _loop,
    "forbidden": _forbidden,
    "folder": lambda folder: folder,
    "absent": lambda folder: folder / "absent",
    "long name": lambda folder: folder / ("x" * 5000),
    "below a file": lambda _: JUDGE / "below",
    "endless": lambda _: Path("/dev/zero"),
    "null": lambda _: Path("/dev/null"),
    "nul": lambda folder: folder / "a\0b",
}


@pytest.mark.parametrize("what", NO_FILES)
def test_what_is_no_file_is_refused(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = NO_FILES[what](tmp_path)
    for words in (
        ["inspect", str(path)],
        ["validate", str(path)],
        ["calibrate", str(path), "--name", "x", "--output", str(tmp_path / "x.toml")],
    ):
        line = run_error(capsys, *words)
        assert path.name[:20] in line or what == "nul"
    with pytest.raises(FormatError):
        Cluster.from_profile(path)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\u202eb", "a b", "-x", "caf\udce9"])
def test_names_of_files_reach_no_terminal_raw(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in (samples()["osu"], samples()["config"], samples()["table"], "nothing", ""):
        (tmp_path / name).write_text(text)
        cli.main(["inspect", str(tmp_path / name)])
        cli.main(["inspect", str(tmp_path / name), "--json"])
        out, err = capsys.readouterr()
        assert all(each.isprintable() or each == "\n" for each in out + err)
        assert err.count("\n") in {0, 2}


@pytest.mark.parametrize("batch", ["nccl-tests", "inspector", "kineto", "table", "measurements"])
def test_no_damage_crashes_a_calibration(
    batch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in files_of(batch):
        if not name.startswith(("cut-5", "flipped-40", "numbers", "some-numbers-0", "thousandth")):
            continue
        (tmp_path / name).write_bytes(content)
        words = [tmp_path / name, "--name", "mine", "--on", "h100_sxm", "--gpus", 8]
        code = cli.main(["calibrate", *map(str, words), "--output", str(tmp_path / "mine.toml")])
        out, err = capsys.readouterr()
        assert (code, err.count("\n")) in {(0, 0), (2, 1)}, name
        assert all(each.isprintable() or each == "\n" for each in out + err)
        if code == 0:
            assert Cluster.from_profile(tmp_path / "mine.toml").name == "mine"


def test_a_value_nested_without_end_can_be_shown() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    assert shown(value) == "a list nested too deeply to show"
    assert str(FormatError("a\nb", "c\x1bd")) == "a?b: c?d"
    assert isinstance(FormatError("a", "b"), ShardcostError)

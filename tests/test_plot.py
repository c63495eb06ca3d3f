"""The plot of a sweep: a real picture with every curve named, written whole or not at all."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import run_error

from shardcost import cli
from shardcost.collectives.library_time import collective_time
from shardcost.report.collective_plot import sketch
from shardcost.report.pictures import spread, write_picture

ASK = ("collective", "all_reduce", "--gpus", "8", "--on", "h100_sxm")


def test_a_png_is_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from matplotlib.image import imread

    file = tmp_path / "curve.png"
    assert cli.main([*ASK, "--plot", str(file)]) == 0
    out = capsys.readouterr().out
    assert "\n    8 B " in out  # without --sweep, from 8 B …
    assert "\n  8 GiB " in out  # … to 8 GiB
    assert out.endswith(f"Plot: {file}\n")
    assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = imread(file)
    height, width = pixels.shape[:2]
    assert min(height, width) > 500
    drawn = (pixels[..., :3] < 0.95).any(axis=-1).mean()
    assert 0.01 < drawn < 0.5
    assert len(np.unique((pixels[..., :3] * 255).astype(int).reshape(-1, 3), axis=0)) > 50
    assert [each.name for each in tmp_path.iterdir()] == ["curve.png"]


def test_an_svg_names_every_curve_and_unit(tmp_path: Path) -> None:
    file = tmp_path / "curve.svg"
    sweep = collective_time(
        "all_reduce", np.geomspace(2**10, 2**30, 200), "h100_sxm", 8, library="vllm"
    )
    write_picture(sketch(sweep), file)
    root = ET.fromstring(file.read_text())
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "all_reduce of 1 KiB to 1 GiB over 8 x h100_sxm, vllm" in texts
    for path in sweep.paths:
        assert " ".join(path) in texts
    assert {"prediction", "time", "bus bandwidth", "1 KiB", "1 MiB", "100 us", "1 ms"} <= set(texts)
    assert any(text.startswith("450 GB/s: nvswitch links") for text in texts)
    switches = np.count_nonzero(np.diff(sweep.choice))
    assert switches > 0
    assert sum(" from " in text for text in texts) == switches


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_same_sweep_gives_the_same_file(tmp_path: Path, suffix: str) -> None:
    sweep = collective_time(
        "all_gather", np.geomspace(8, 64, 9), "h100_sxm", 2, library="nccl-tuner"
    )
    files = [tmp_path / f"{number}.{suffix}" for number in range(2)]
    for file in files:
        write_picture(sketch(sweep), file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_capital_suffix_will_do(tmp_path: Path) -> None:
    assert cli.main([*ASK, "--sweep", "8:64", "--plot", str(tmp_path / "A.SVG"), "--json"]) == 0
    assert (tmp_path / "A.SVG").read_text().startswith("<?xml")


@pytest.mark.parametrize("name", ["curve.pdf", "curve", ".png", ""])
def test_other_kinds_of_file_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    assert "ends in .png or .svg" in run_error(
        capsys, *ASK, "--sweep", "8:64", "--plot", str(tmp_path / name)
    )
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    nowhere = str(tmp_path / "missing" / "curve.png")
    assert "cannot be written: No such file" in run_error(
        capsys, *ASK, "--sweep", "8:64", "--plot", nowhere
    )
    (tmp_path / "folder.png").mkdir()
    for name in ("folder.png", "a" * 300 + ".png", "nul\0.png"):
        said = run_error(capsys, *ASK, "--sweep", "8:64", "--plot", str(tmp_path / name))
        assert "cannot be written" in said or "is not a file name" in said
    inside_a_file = str(Path(__file__) / "curve.png")
    assert "Not a directory" in run_error(capsys, *ASK, "--sweep", "8:64", "--plot", inside_a_file)
    assert [each.name for each in tmp_path.iterdir()] == ["folder.png"]


def test_a_failure_leaves_the_old_file_whole(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    file = tmp_path / "curve.svg"
    file.write_text("old")
    monkeypatch.setattr(Path, "replace", full)
    assert "No space left" in run_error(capsys, *ASK, "--sweep", "8:64", "--plot", str(file))
    assert file.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["curve.svg"]


def test_without_matplotlib_the_error_says_what_to_install(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = run_error(capsys, *ASK, "--sweep", "8:64", "--plot", str(tmp_path / "curve.png"))
    assert "needs matplotlib: pip install 'shardcost[plot]'" in said


@given(st.lists(st.floats(0, 1), max_size=12))
def test_labels_keep_apart_and_in_order(heights: list[float]) -> None:
    moved = spread(heights, gap=0.05)
    by_height = sorted(zip(heights, moved, strict=True))
    for (_, lower), (_, upper) in pairwise(by_height):
        assert upper - lower >= 0.05 - 2e-6

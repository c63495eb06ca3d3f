"""Small pictures of characters, on terminals that have blocks and on those that do not."""

from __future__ import annotations

import sys
from io import BytesIO, TextIOWrapper

import pytest

from shardcost import cli
from shardcost.report.text import bar, sparkline, stack


def terminal(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """Write to a terminal of an encoding from now on."""
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(BytesIO(), encoding=encoding))


def test_a_line_rises_with_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch, "utf-8")
    assert sparkline(range(8)) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "██"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([]) == ""


def test_a_narrow_line_has_means(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch, "utf-8")
    assert sparkline([0, 0, 7, 7], width=2) == "▁█"
    assert sparkline([0, 7, 7, 7], width=2, mark=3) == "▅[█]"
    assert sparkline([1, 2], width=9) == sparkline([1, 2])


def test_a_bar_has_eighths_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch, "utf-8")
    assert [bar(share, 2) for share in (0, 1 / 16, 0.5, 0.75, 1, 7)] == [
        *("", "▏", "█", "█▌", "██", "██")
    ]
    assert bar(-1, 4) == ""


def test_without_blocks_both_are_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch, "latin-1")
    assert sparkline(range(8), mark=0) == "[_].:-=+*#"
    assert bar(0.5, 8) == "####"


def test_pieces_add_up_and_the_end_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch, "utf-8")
    assert stack([0.5, 0.125, 0.0], 8) == ("████▓···", "█▓▒")
    assert stack([], 3) == ("···", "")
    thirds = stack([1 / 3, 1 / 3, 1 / 3], 10).text  # rounded where each ends, not each by itself
    assert len(thirds) == 10
    assert "·" not in thirds
    assert stack([1.0, 1.0], 8).text == "████|▓▓▓▓"
    terminal(monkeypatch, "ascii")
    assert stack([0.5, 0.25], 8) == ("####==..", "#=")


WORDS = ("collective", "all_reduce", "--gpus", "8", "--on", "h100")


def test_the_report_on_one_size_marks_it_on_the_curve(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*WORDS, "--size", "64MiB"]) == 0
    line = next(
        each for each in capsys.readouterr().out.splitlines() if each.startswith("busbw by size")
    )
    before, mark, after = (
        line.removeprefix("busbw by size, 8 B ").removesuffix(" 8 GiB").partition("[")
    )
    assert (len(before), mark, len(after)) == (23, "[", 9)  # 2^26 of 2^3 … 2^33, and two brackets
    assert before == "".join(sorted(before))


def test_the_report_on_many_sizes_has_bars(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([*WORDS, "--sweep", "1KiB:1GiB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    lengths = [line.count("█") for line in lines if "%  " in line]
    assert lengths == sorted(lengths)
    assert lengths[-1] == 5

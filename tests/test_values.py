"""Numbers are spelled alike in every option of every command."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import run_error, run_json, run_text

from shardcost import values
from shardcost.errors import BadTypeError, BadValueError
from shardcost.load.requests import Lengths

DECODE = "estimate llama3-8b --on h100_sxm --decode".split()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        ("4k", 4000),
        ("4K", 4000),
        ("4Ki", 4096),
        ("128Ki", 131_072),
        ("1.5k", 1500),
        ("1e6", 10**6),
        ("2.5E3", 2500),
        ("1e+2", 100),
        ("405B", 405 * 10**9),
        ("3G", 3 * 10**9),
        ("15T", 15 * 10**12),
        ("1Mi", 2**20),
        ("-2k", -2000),
    ],
)
def test_suffixes_are_decimal_and_binary_ones_are_marked(text: str, number: int) -> None:
    assert values.whole("--n", text) == number
    assert values.number("--n", text) == number


@pytest.mark.parametrize("text", ["1.0001k", "4kk", "k", "4 k", "1e-3", "1e6k", "4ki", "1e100", ""])
def test_what_is_no_whole_number_is_refused_with_its_name(text: str) -> None:
    with pytest.raises(BadTypeError, match="--n must be a whole number, got"):
        values.whole("--n", text)


@given(st.integers(1, 10**12), st.sampled_from(["k", "M", "G", "B", "T", "Ki", "Mi", "Gi", "Ti"]))
def test_a_suffix_multiplies_exactly(number: int, suffix: str) -> None:
    assert values.whole("--n", f"{number}{suffix}") == number * values.whole("--n", f"1{suffix}")


def test_ranges_double_and_lists_have_each_value_once() -> None:
    assert values.wholes("--n", "1..8,1k,4") == [1, 2, 4, 8, 1000]
    assert values.wholes("--n", "1k..4Ki") == [1000, 2000, 4000]
    assert values.varied("--n", "1..4,0", "whole") == ["1", "2", "4", "0"]
    assert values.varied("--n", "0.5..2", "number") == ["0.5", "1", "2"]
    assert values.varied("--n", "a..b", "word") == ["a..b"]
    assert (
        values.sizes("--s", "1KiB..4KiB") == values.sizes("--s", "1KiB:4KiB") == [1024, 2048, 4096]
    )
    with pytest.raises(BadValueError, match="from a smaller number to a larger one"):
        values.wholes("--n", "8..1")


@pytest.mark.parametrize("written", ["1-8", "1:8"])
def test_ranges_of_other_tools_are_answered_with_ours(written: str) -> None:
    with pytest.raises(BadValueError, match=r"like 8, 1,2,4 or 1\.\.64"):
        values.wholes("--n", f"2,{written}")
    with pytest.raises(BadValueError, match=r"like 8, 1,2,4 or 1\.\.64"):
        values.varied("--n", written, "whole")


def test_lengths_of_requests_too() -> None:
    assert values.lengths("--isl", "1k-2k") == "1000-2000"
    assert values.lengths("--isl", "lognormal:4k:1.2:16Ki") == "lognormal:4000:1.2:16384"
    assert Lengths.parse(values.lengths("--isl", "1e3")).mean == 1000


def test_every_command_reads_them_and_shows_the_number(capsys: pytest.CaptureFixture[str]) -> None:
    text = run_text(capsys, *DECODE, "--batch", "64", "--context-tokens", "4k")
    assert "4,000 tokens of context each" in text
    text = run_text(capsys, *DECODE, "--batch", "64", "--context-tokens", "4Ki")
    assert "4,096 tokens of context each" in text
    rows = run_json(capsys, *DECODE, "--context-tokens", "1k", "--vary", "batch=1..4,1e2")["rows"]
    assert [row["value"] for row in rows] == ["1", "2", "4", "100"]
    plan = "plan llama3-8b --on h100_sxm --gpus 1..2 --decode --batch 1..1k --fix tp=1..2".split()
    assert run_json(capsys, *plan, "--context-tokens", "1e3")["feasible"]
    cost = run_json(capsys, *"allreduce --model llama3-8b --gpus 8 --sequence-length 4Ki".split())
    assert cost["inputs"]["sequence_length"]["value"] == 4096
    sweep = "collective all_reduce --gpus 8 --on h100_sxm --sweep 1KiB..4KiB".split()
    assert len(run_json(capsys, *sweep)["rows"]) == 3
    load = "load llama3-8b --on h100_sxm --rate 4 --isl 1k --osl 16 --requests 1e2".split()
    requests = run_json(capsys, *load)["requests"]
    assert (requests["count"], requests["mean_prompt_tokens"]) == (100, 1000)


def test_a_size_in_bytes_still_needs_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    words = "collective all_reduce --gpus 8 --on h100_sxm --size 4k".split()
    assert "clear about its unit" in run_error(capsys, *words)

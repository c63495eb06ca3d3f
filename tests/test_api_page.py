"""What the API says for the page alone: its words, its lists, and files without a machine."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_server import DECODE, Client, served


@pytest.fixture(scope="module")
def page() -> Iterator[Client]:
    with served() as client:
        yield client


def test_a_log_that_names_no_gpu_is_calibrated_on_the_machine_that_is_said(
    page: Client, repository: Path
) -> None:
    text = (repository / "docs" / "examples" / "all_reduce-8.txt").read_text()
    bare = "\n".join(line for line in text.splitlines() if "NVIDIA" not in line).encode()
    found = page.drop("bare.txt", bare).data
    assert found["use"] is None
    assert found["words_on_use"].endswith("measured; choose the machine")
    assert found["measured_on"] == {"device": None, "on": None, "network": None, "gpus": None}
    found = page.drop("bare.txt&on=h200_sxm", bare).data
    assert 'based_on = "h200_sxm"' in found["use"]["profile"]
    assert page.drop("bare.txt&on=..%2Fetc", bare).status == 422
    assert page.drop("bare.txt&gpus=0", bare).status == 422


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            gzip.compress(b"# nThread 1" * 99, mtime=0)[:20],
            "passwd: its gzip is damaged after 0 bytes: ",
        ),
        (
            gzip.compress(b" " * 10**6, mtime=0),
            "passwd: begins with 65,536 blanks and nothing else",
        ),
        (b"", "passwd: is empty"),
    ],
)
def test_a_file_that_holds_nothing_is_told_why(page: Client, content: bytes, reason: str) -> None:
    assert page.drop("passwd", content).detail.startswith(reason)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"batch": "abc"}, "Batch must be a whole number, got 'abc'"),
        ({"batch": 0}, "Batch must be a whole number of at least 1, got 0"),
        ({"model": "gpt-9"}, "unknown model 'gpt-9'"),
        ({"gpus": 3}, "GPUs must be a multiple of tp x cp x pp = 8 x 1 x 1 = 8, got 3"),
    ],
)
def test_a_refusal_is_said_in_the_words_of_the_page_too(
    page: Client, body: dict[str, Any], said: str
) -> None:
    found = page.post("estimate", {**DECODE, **body})
    assert found.status == 422
    assert found.data["said"].startswith(said)
    assert found.detail != found.data["said"]


def test_a_model_s_name_is_bounded_and_cannot_turn_the_text_round(
    page: Client, tiny_config: Any
) -> None:
    config = json.loads((tiny_config() / "config.json").read_text())
    config["_name_or_path"] = "a\u202eb" + "x" * 900_000
    ask = {name: value for name, value in DECODE.items() if name != "model"}
    assert page.answer("estimate", {**ask, "config": config})["model"] == "ab" + "x" * 198


def test_a_machine_lists_the_number_formats_that_it_takes(page: Client) -> None:
    clusters = {each["name"]: each for each in page.get("/api/catalog").data["clusters"]}
    assert clusters["h100_sxm"]["usual_network"] == "ib_8x400g"
    for on, phase, dtype in (
        ("h100_sxm", "train", "nvfp4"),
        ("a100_sxm", "train", "fp8"),
        ("a100_sxm", "decode", "fp8"),
        ("b200_sxm", "train", "nvfp4"),
    ):
        tokens = {"train": {"sequence_length": 512}, "decode": {"context_tokens": 512}}[phase]
        body = {"model": "llama3-8b", "on": on, "phase": phase, "batch": 8, "dtype": dtype}
        taken = page.post("estimate", body | tokens).status == 200
        assert (dtype in clusters[on]["formats"][phase]) == taken, (on, phase, dtype)
    assert clusters["a100_sxm"]["formats"]["decode"]["fp8"] == "bf16"


def test_the_nearest_layout_that_runs_is_said_with_the_reason(page: Client) -> None:
    ask = {**DECODE, "model": "llama3-70b"}
    assert page.answer("nearest", {**ask, "kept": ["gpus"]}) == {
        "set": {},
        "words": "",
        "why": None,
    }
    found = page.answer("nearest", {**ask, "gpus": 4, "kept": ["gpus"]})
    assert found["set"] == {"tp": 4, "gpus": 4, "dp": None}
    assert found["words"] == "tp4"
    assert found["why"] == "GPUs must be a multiple of tp x cp x pp = 8 x 1 x 1 = 8, got 4"
    assert "no layout near it runs" in page.refusal("nearest", {**ask, "gpus": 9973})

"""The Load tab in a real browser: the command's figures, links, pictures, pools, traces."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from browsing import Visit, Visits
from playwright.sync_api import expect
from running import run_json, run_text

LOAD: dict[str, Any] = {
    "model": "llama3-8b",
    "on": "h100_sxm",
    "gpus": 1,
    "tp": 1,
    "phase": "decode",
    "batch": 8,
    "context_tokens": 1024,
    "tab": "load",
    "load_requests": "150",
}
"""Few requests: what is tested is the page."""
CHARTS = ("load-ttft", "load-tpot", "load-queue", "load-kv")


def commands(visit: Visit) -> list[list[str]]:
    """Return the words of the commands that the tab offers: of its load, and of its sweep."""
    visit.click("#load-commands")
    found = visit.texts("#text-dialog pre")
    visit.page.keyboard.press("Escape")
    return [shlex.split(each)[1:] for each in found]


def figures(visit: Visit) -> dict[str, str]:
    """Return the rows of the tables by their first cell."""
    rows = visit.at("#load-table tbody tr").all()
    texts = [" ".join(row.inner_text().split()) for row in rows]
    heads = [row.locator("th").inner_text() for row in rows]
    return {head: text.removeprefix(head).strip() for head, text in zip(heads, texts, strict=True)}


def fill(visit: Visit, name: str, text: str) -> Visit:
    """Type into a field, and wait for the answer."""
    visit.at(f"#load-{name}").fill(text)
    return visit.press(f"#load-{name}", "Enter")


def unfold(visit: Visit, name: str) -> None:
    visit.at(f"#load-{name}").evaluate("each => { each.open = true; }")


def test_the_tab_says_what_the_command_prints(
    visit: Visit, capsys: pytest.CaptureFixture[str]
) -> None:
    visit.open(LOAD)
    one, many = commands(visit)
    printed = run_text(capsys, *one)
    swept = run_json(capsys, *many)
    assert visit.text("#load-words") == swept["words"]
    assert f"At {swept['holds']:g} requests/s" in visit.texts("#root-load h3")
    rows = figures(visit)
    for name in ("TTFT", "TPOT", "ITL", "E2E"):
        line = re.search(rf"^{name} +(.*)$", printed, re.MULTILINE)
        assert line is not None, printed
        assert rows[name] == " ".join(line.group(1).split())
    report = " ".join(printed.split())
    for name in ("served", "goodput", "queue", "busy", "KV cache", "limit"):
        assert f"{name} {rows[name]}" in report
    for name in CHARTS:
        assert len(visit.at(f"svg.{name}").get_attribute("aria-label") or "") > 20
    expect(visit.at("svg.load-ttft")).to_contain_text("limit 1 s")
    expect(visit.at("svg.load-ttft")).to_contain_text(f"holds {swept['holds']:g} requests/s")


def test_a_link_shows_the_same_load_to_somebody_else(visits: Visits) -> None:
    mine, yours = visits().open(LOAD), visits()
    mine.at("#load-arrival").select_option("closed")
    fill(mine.settle(), "users", "6")
    fill(mine, "isl", "lognormal:300:0.5")
    fill(mine, "max_ttft", "")
    fill(mine, "percentile", "99")
    unfold(mine, "more")
    mine.at("#load-chunked_prefill").select_option("off")
    fill(mine.settle(), "memory_share", "80%")
    yours.go(mine.page.url)
    assert yours.page.url == mine.page.url
    assert yours.text("#root-load") == mine.text("#root-load")
    assert yours.at("#load-isl").input_value() == "lognormal:300:0.5"
    assert yours.at("#load-max_ttft").input_value() == ""
    assert yours.at("#load-chunked_prefill").input_value() == "off"
    assert yours.at("#load-memory_share").is_visible()
    assert "At 6 users" in yours.texts("#root-load h3")
    expect(yours.at("svg.load-tpot")).to_contain_text("p99")
    words = commands(yours)[0]
    for said in ("--users 6", "--memory-share 80%", "--chunked-prefill off", "--percentile 99"):
        assert said in " ".join(words)
    assert "--max-ttft" not in words


def test_a_point_of_the_picture_becomes_the_load_that_is_shown(visit: Visit) -> None:
    visit.open(LOAD)
    before = visit.text("#load-table")
    chart = visit.at("svg.load-ttft")
    chart.focus()
    chart.press("Home")
    expect(visit.at("#announcer")).to_contain_text("TTFT")
    visit.press("svg.load-ttft", "Enter")
    rate = visit.at("#load-rate").input_value()
    assert f"At {rate} requests/s" in visit.texts("#root-load h3")
    assert visit.text("#load-table") != before
    assert f"load_rate={rate}" in visit.page.url
    # Emptied, it is the highest load that is held again.
    fill(visit, "rate", "")
    assert visit.text("#load-table") == before


def test_the_replicas_of_the_question_are_workers(visit: Visit) -> None:
    visit.open({**LOAD, "gpus": 4, "tp": 2})
    assert "4 x h100_sxm, 2 workers of tp2" in visit.text("#load-asked")
    unfold(visit, "pools")
    fill(visit, "workers", "3")
    assert "6 x h100_sxm, 3 workers of tp2" in visit.text("#load-asked")
    # Experts that are spread over replicas need them all: one worker.
    spread = {"model": "mixtral-8x7b", "gpus": 4, "ep": 4}
    visit.open({**LOAD, **spread})
    assert "4 x h100_sxm, 1 worker of ep4dp4" in visit.text("#load-asked")
    # Of training, model, machine and degrees are taken.
    train = {"phase": "train", "batch": 8, "sequence_length": 1024, "zero": 1}
    asked = {name: value for name, value in LOAD.items() if name != "context_tokens"}
    visit.open({**asked, **train, "gpus": 8, "tp": 4})
    assert "2 workers of tp4" in visit.text("#load-asked")


def test_disaggregated_workers_are_compared_with_other_splits(visit: Visit) -> None:
    visit.open(LOAD)
    unfold(visit, "pools")
    fill(visit, "prefill_workers", "1")
    fill(visit, "decode_workers", "2")
    assert "prefill on 1 x h100_sxm" in visit.text("#load-asked")
    assert visit.at("#load-workers").is_hidden()
    words = visit.text("#load-ratio-words")
    assert words.startswith("Of 3 GPUs, ")
    assert words.endswith(" requests each: compare splits with one another.")
    chart = visit.at("svg.load-ratio")
    for name in ("both", "1P+2D", "2P+1D"):
        expect(chart).to_contain_text(name)
    chart.focus()
    chart.press("End")
    visit.press("svg.load-ratio", "Enter")
    assert visit.at("#load-prefill_workers").input_value() == "2"
    assert "prefill on 2 x h100_sxm" in visit.text("#load-asked")
    chart.press("Home")
    visit.press("svg.load-ratio", "Enter")
    assert visit.at("#load-workers").input_value() == "3"
    assert visit.at("svg.load-ratio").is_hidden()
    assert "3 workers of tp1" in visit.text("#load-asked")


def test_a_trace_takes_the_place_of_lengths_and_arrivals(visits: Visits) -> None:
    rows = "".join(f"{0.1 * index},{100 + index},{10 + index % 9}\n" for index in range(60))
    content = f"arrival_s,prompt_tokens,output_tokens\n{rows}".encode()
    mine, yours = visits().open(LOAD), visits()
    file: Any = {"name": "requests.csv", "mimeType": "text/csv", "buffer": content}
    mine.at("#load-trace").set_input_files(file)
    expect(mine.at("#load-asked")).to_contain_text("60 requests of a trace")
    mine.settle()
    assert mine.at("#load-isl").is_hidden()
    yours.go(mine.page.url)
    assert yours.text("#root-load") == mine.text("#root-load")
    mine.click("#load-trace-drop")
    expect(mine.at("#load-asked")).to_contain_text("Poisson arrivals")
    assert mine.at("#load-isl").is_visible()
    assert "trace=" not in mine.page.url


def test_requests_that_come_at_once_have_no_sweep(visit: Visit) -> None:
    visit.open({**LOAD, "load_arrival": "all-at-once"})
    assert visit.at("svg.load-ttft").is_hidden()
    assert "All at once" in visit.texts("#root-load h3")
    expect(visit.at("svg.load-queue")).to_be_visible()


def test_what_cannot_be_is_told_in_one_line_and_mended(visit: Visit) -> None:
    visit.refusals = {422}
    visit.open(LOAD)
    before = visit.text("#load-table")
    for name, text, said in (
        ("isl", "many", "Prompt tokens must be tokens such as 1024"),
        ("requests", "30000", "Requests must be at most 20000 on the page"),
        ("max_tpot", "soon", "TPOT at most must be a time with its unit"),
    ):
        kept = visit.at(f"#load-{name}").input_value()
        fill(visit, name, text)
        expect(visit.at("#root-load .panel-error")).to_contain_text(said)
        assert visit.at("#root-load .panel-error").count() == 1
        fill(visit, name, kept)
        expect(visit.at("#root-load .panel-error")).to_be_hidden()
    assert visit.text("#load-table") == before
    # A model that leaves no room for a KV cache.
    visit.open({**LOAD, "model": "llama3-70b"})
    expect(visit.at("#root-load .panel-error")).to_contain_text("KV cache")


def test_of_quick_changes_the_last_is_shown_and_few_are_asked(visit: Visit) -> None:
    visit.open(LOAD)
    sent: list[Any] = []
    visit.page.on(
        "request",
        lambda each: (
            sent.append(json.loads(each.post_data or "{}"))
            if each.url.endswith("/api/load")
            else None
        ),
    )
    for count in range(64, 76):
        visit.at("#load-osl").fill(str(count))
        visit.at("#load-osl").press("Enter")
    visit.settle()
    assert "output 75" in visit.text("#load-asked")
    assert sent[-1]["osl"] == "75"
    assert len(sent) < 24

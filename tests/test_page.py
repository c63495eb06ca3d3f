"""The page in a real browser: ask, slide, share, search, step, ask why.

Its numbers are those of the command line, digit for digit; every state is in the address.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from browsing import FIRST, TABS, Visit, Visits
from playwright.sync_api import expect
from running import run_json, run_text

from shardcost.estimate.result import part_name

QUESTIONS: dict[str, dict[str, Any]] = {
    "decode": FIRST,
    "prefill of experts": {
        "model": "mixtral-8x7b",
        "on": "h200_sxm",
        "gpus": 8,
        "tp": 2,
        "ep": 4,
        "phase": "prefill",
        "batch": 4,
        "prompt_tokens": 2048,
    },
    "training in a pipeline": {
        "model": "gpt3-175b",
        "on": "a100_sxm",
        "network": "ib_8x200g",
        "gpus": 512,
        "tp": 8,
        "pp": 8,
        "micro_batch": 2,
        "recompute": "selective",
        "phase": "train",
        "batch": 1536,
        "sequence_length": 2048,
    },
    "too large for memory": {
        "model": "llama3-70b",
        "on": "a100_sxm",
        "tp": 1,
        "phase": "prefill",
        "batch": 1,
        "prompt_tokens": 4096,
    },
}
LARGE_SEARCH = {
    "model": "gpt3-175b",
    "on": "a100_sxm",
    "network": "ib_8x200g",
    "gpus": 1024,
    "tp": 8,
    "pp": 16,
    "phase": "train",
    "batch": 1536,
    "sequence_length": 2048,
    "tab": "plan",
}


def words_of(ask: dict[str, Any]) -> list[str]:
    """Return a question as the command line takes it."""
    words = [str(ask["model"]), f"--{ask['phase']}"]
    for name, value in ask.items():
        if name not in {"model", "phase", "tab"}:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def one_line(text: str) -> str:
    """Return a report without its line breaks and columns."""
    return " ".join(text.split())


# ----------------------------------------------------------------------- the same numbers


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_page_says_what_the_command_prints(
    name: str, visit: Visit, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = QUESTIONS[name]
    printed = run_text(capsys, "estimate", *words_of(ask))
    report = one_line(printed)
    shown = visit.open(ask).headline()
    lines = printed.splitlines()
    assert shown["title"] == lines[0]
    assert f"{shown['title']} {shown['details']} " in report
    assert re.search(rf"^(TPOT|TTFT|step) +{re.escape(shown['time'])}, ", printed, re.MULTILINE)
    for figure in ("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_user"):
        if figure in shown["tiles"]:
            unit = figure.replace("_per_", "/").replace("gpu", "GPU")
            assert f" {shown['tiles'][figure]} {unit}" in report
    assert f"MFU {shown['tiles']['mfu']} of" in report
    said = re.fullmatch(
        r"(.+), (90 %) interval from ([\d,]+) similar measure\w+", shown["interval"]
    )
    assert said is not None
    assert "interval {} ({}), from {} ".format(*said.groups()) in report
    rows = re.findall(r"^(\S.*?) +([\d.,]+ \w+) +(-?[\d.]+ %)(?: |$)", printed, re.MULTILINE)
    assert shown["parts"] == [list(each) for each in rows]
    assert f"memory {shown['memory']}" in report
    assert visit.at("#headline-fit").is_visible() == ("; what shrinks " in report)


def test_choosing_model_machine_and_phase_asks_that_question(
    visit: Visit, capsys: pytest.CaptureFixture[str]
) -> None:
    visit.open()
    assert visit.headline()["time"] == "18 ms"
    visit.at("#model").select_option("llama3-8b")
    visit.at("#on").select_option("h200_sxm")
    visit.at("#phase-prefill").check(force=True)
    visit.at("#field-prompt_tokens").fill("8192")
    visit.settle()
    ask = {"model": "llama3-8b", "on": "h200_sxm", "gpus": 8, "tp": 8, "phase": "prefill"}
    ask |= {"batch": 1, "prompt_tokens": 8192}
    data = run_json(capsys, "estimate", *words_of(ask))
    printed = run_text(capsys, "estimate", *words_of(ask))
    shown = visit.headline()
    assert shown["title"] == printed.splitlines()[0]
    assert f"TTFT      {shown['time']}" in printed
    assert visit.text("#headline-label").startswith("TTFT")
    assert {each[0] for each in shown["parts"]} <= {part_name(key) for key in data["parts"]}
    visit.click("[data-half=prompt_tokens]").click("[data-double=batch]")
    assert "batch 2 x 4,096 tokens" in visit.headline()["details"]


# ------------------------------------------------------------------------------- sliding


def test_sliders_reach_what_is_possible_and_say_why_the_rest_is_not(visit: Visit) -> None:
    visit.open()
    tensor = visit.at("[data-axis=tp]")
    visit.press("[data-axis=tp]", "ArrowLeft")
    assert visit.value("tp") == 4
    assert visit.value("dp") == 2
    assert visit.headline()["title"].endswith("tp4dp2")
    assert "tp 4: 21.28 ms" in (tensor.get_attribute("aria-valuetext") or "")
    visit.press("[data-axis=tp]", "Home").press("[data-axis=tp]", "End")
    assert visit.value("tp") == 8

    # Nothing of the 8 GPUs is left for pp: tp gives way, which is said and can be taken back.
    visit.press("[data-axis=pp]", "ArrowRight")
    assert visit.headline()["title"].endswith("tp4pp2")
    assert visit.text("#adjusted > p") == "Adjusted: tp 4"
    visit.click("#adjusted-undo")
    assert visit.headline()["title"].endswith("tp8")

    # The keys step over what is impossible, a click says why.
    visit.open({**FIRST, "batch": 6, "gpus": 4, "tp": 4})
    replicas = visit.at("[data-axis=dp]")
    visit.press("[data-axis=dp]", "ArrowRight")
    assert visit.value("dp") == 2
    box = replicas.locator('.step[data-state="never"]').first.bounding_box()
    assert box is not None
    visit.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 5)
    visit.settle()
    assert visit.value("dp") == 2
    expect(visit.at("#tip")).to_contain_text("impossible, dp does not divide the batch of 6")


def test_a_slider_follows_the_mouse(visit: Visit) -> None:
    visit.open()
    track = visit.at("[data-axis=gpus]")
    track.scroll_into_view_if_needed()
    places = {}
    for step in track.locator(".step").all():
        box = step.bounding_box()
        assert box is not None
        places[step.get_attribute("data-value")] = (box["x"] + box["width"] / 2, box["y"] + 5)
    mouse = visit.page.mouse
    mouse.move(*places["8"])
    mouse.down()
    mouse.move(*places["32"], steps=8)
    visit.settle()
    assert visit.value("gpus") == 32
    assert visit.headline()["title"].endswith("on 32 x h100_sxm, tp8dp4")
    mouse.move(*places["1"], steps=8)  # with tp 1: tp gives way
    visit.settle()
    assert visit.value("gpus") == 1
    mouse.move(*places["8"], steps=8)  # and comes back
    visit.settle()
    mouse.up()
    assert visit.headline()["time"] == "18 ms"


def test_the_last_of_many_quick_changes_is_what_is_shown(visits: Visits) -> None:
    visit, fresh = visits().open(), visits()
    tensor = visit.at("[data-axis=tp]")
    for key in ("ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowRight", "ArrowRight"):
        tensor.press(key)
    visit.at("#field-batch").press_sequentially("0")
    visit.settle()
    assert visit.value("tp") == 4
    assert "batch 640" in visit.headline()["details"]
    assert fresh.go(visit.page.url).headline() == visit.headline()


def test_quick_changes_have_one_request_under_way_and_details_wait_for_the_last(
    visits: Visits,
) -> None:
    visit = visits().open()
    asked: list[str] = []
    visit.page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    visit.page.evaluate(
        """() => {
          const slider = document.querySelector("[data-axis=tp]");
          for (const key of ["ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowRight"]) {
            slider.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
          }
        }"""
    )
    visit.settle()
    assert visit.at("[data-axis=tp]").get_attribute("data-value") == "2"
    assert "tp2" in visit.text("#headline-title")
    assert "tp=2" in visit.page.url
    # The first change at once, the last when that is answered; the others never.
    assert asked.count("estimate") == 2
    assert asked.count("advice") == asked.count("timeline") == 1


def test_a_server_that_is_gone_is_told_and_asked_again(visit: Visit) -> None:
    visit.open()
    before = visit.headline()
    visit.unreachable = True
    visit.page.route("**/api/**", lambda route: route.abort("connectionrefused"))
    visit.press("[data-axis=tp]", "ArrowLeft")
    assert "server cannot be reached" in visit.text("#headline-error p")
    visit.page.unroute_all()
    visit.click("#undo")
    assert visit.headline() == before


def test_what_does_not_fit_can_be_chosen_and_the_way_out_taken(visit: Visit) -> None:
    visit.open({**FIRST, "tp": 1})
    assert visit.at("#headline-fit").is_visible()
    assert "over" in (visit.at("#memory-total").get_attribute("class") or "")
    expect(visit.at("#limit")).to_contain_text(re.compile("memory|GiB"))
    visit.click("#try-change")
    assert visit.at("#headline-fit").is_hidden()


def test_an_impossible_question_keeps_the_old_answer_and_leads_back(visit: Visit) -> None:
    visit.refusals = {422}
    visit.open()
    before = visit.headline()
    visit.at("#field-batch").fill("0")
    assert visit.at("#field-batch").get_attribute("aria-invalid") == "true"
    assert visit.text("#field-batch-error") == "Batch: a whole number from 1 to 1,000,000,000"
    visit.at("#field-batch").fill("64")
    visit.at("#number-dp").fill("3")  # 64 sequences over 3 replicas
    visit.press("#number-dp", "Enter")
    error = visit.text("#headline-error p")
    assert error.count("\n") == 0
    assert "batch of 64" in error
    assert visit.headline()["time"] != ""
    visit.click("#undo")
    assert visit.headline() == before
    assert visit.at("#headline-error").is_hidden()


# --------------------------------------------------------------------------- the address


@pytest.mark.parametrize("name", ["prefill of experts", "training in a pipeline"])
def test_a_link_gives_the_same_page_to_somebody_else(name: str, visits: Visits) -> None:
    mine, yours = visits(), visits()
    mine.open(QUESTIONS[name]).tab("memory")
    mine.press("[data-axis=tp]", "ArrowLeft")
    yours.go(mine.page.url)
    assert yours.headline() == mine.headline()
    assert yours.at("#tab-memory").get_attribute("aria-selected") == "true"
    assert yours.page.url == mine.page.url
    assert yours.texts("#controls output") == mine.texts("#controls output")


def test_a_link_shows_what_was_looked_at_in_the_tabs(visits: Visits) -> None:
    mine, yours = visits(), visits()
    mine.open(FIRST).click("#timeline-step")
    mine.tab("scaling").at("#scaling-vary").select_option("batch")
    mine.settle().tab("ring").at("#ring-collective").select_option("all_gather")
    mine.settle().at("#ring-n").fill("4")
    mine.press("#ring-n", "Enter")
    mine.tab("collective").at("#collective-name").select_option("all_to_all")
    mine.settle()
    yours.go(mine.page.url)
    assert yours.page.url == mine.page.url
    assert yours.text("#collective-words") == mine.text("#collective-words")
    assert "All-to-all" in yours.text("#collective-words")
    yours.tab("ring")
    assert yours.at("#ring-collective").input_value() == "all_gather"
    assert yours.text("#ring-counter") == "0 of 3 steps done"
    yours.tab("scaling")
    assert yours.at("#scaling-vary").input_value() == "batch"
    yours.tab("timeline")
    assert yours.at("#timeline-step").get_attribute("aria-pressed") == "true"


def test_a_question_without_an_answer_draws_nothing_and_offers_other_steps(visit: Visit) -> None:
    visit.refusals = {422}
    visit.open({**FIRST, "tp": 3})
    assert "nothing to draw" in visit.text("#panel-timeline")
    assert "tp x cp x pp = 3" in visit.text("#headline-error p")
    assert visit.at("[data-axis=tp] .step[data-state=fits]").count() > 1
    visit.tab("memory")
    assert "nothing to draw" in visit.text("#panel-memory")
    visit.click("#undo")
    assert visit.headline()["time"] != ""
    assert "nothing to draw" not in visit.text("#panel-memory")


def test_a_link_carries_a_pasted_config_and_a_profile(
    visits: Visits, repository: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 7,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    }
    mine, yours = visits(), visits()
    mine.open({**FIRST, "tp": 4, "gpus": 4})
    mine.click("#paste-config")
    mine.at("#file-text").fill(json.dumps(config))
    mine.at("#file-read").click()
    mine.told_of_file().click("#file-use")
    (tmp_path / "config.json").write_text(json.dumps(config))
    ask = {**FIRST, "model": tmp_path / "config.json", "tp": 4, "gpus": 4}
    assert f"TPOT      {mine.headline()['time']}, " in run_text(capsys, "estimate", *words_of(ask))
    assert mine.at("#model option:checked").inner_text() == "pasted"

    profile = repository / "tests/data/profile.toml"
    mine.drop(profile.name, profile.read_text()).click("#file-use")
    on_profile = run_text(capsys, "estimate", *words_of({**ask, "on": profile}))
    assert f"TPOT      {mine.headline()['time']}, " in on_profile
    assert "#config=" in mine.page.url
    assert "&profile=" in mine.page.url
    yours.go(mine.page.url)
    assert yours.headline() == mine.headline()
    assert yours.page.url == mine.page.url
    # A name of the catalog takes the file's place.
    mine.at("#model").select_option("llama3-8b")
    assert "llama3-8b" in mine.settle().headline()["title"]
    assert "config=" not in mine.page.url


def test_back_and_forward_go_through_what_was_asked(visit: Visit) -> None:
    visit.open({**FIRST, "tp": 1})
    first = visit.headline()
    visit.click("#try-change")
    second = visit.headline()
    assert first["title"] != second["title"]
    visit.page.go_back()
    assert visit.settle().headline() == first
    visit.page.go_forward()
    assert visit.settle().headline() == second
    visit.click("#reset")
    assert visit.headline()["time"] == "18 ms"
    visit.page.go_back()
    assert visit.settle().headline() == second


def test_a_broken_link_is_told_in_one_line_and_the_rest_of_it_holds(visit: Visit) -> None:
    visit.refusals = {422}
    broken = {"tp": "eight", "<b>evil</b>": "1", "tab": "nowhere", "batch": "-3", "gpus": "8"}
    broken |= {"ring_algorithm": "x"}
    visit.open({**FIRST, **broken}, fragment="#config=!!!")
    expect(visit.at("#remarks p")).to_contain_text('ring_algorithm in the link cannot be "x"')
    remark = visit.text("#remarks p")
    for said in ('p in the link cannot be "eight"', '"<b>evil</b>" is not known', '"nowhere"'):
        assert said in remark
    assert "config in the link is damaged" in remark
    assert visit.at("#remarks p").count() == 1
    assert visit.at("#remarks b").count() == 0
    assert visit.at("#tab-timeline").get_attribute("aria-selected") == "true"
    assert "llama3-70b on 8 x h100_sxm" in visit.headline()["title"]
    visit.click("#remarks-close")
    assert visit.at("#remarks").is_hidden()
    # A name that the catalog does not have is the server's to refuse.
    visit.open({**FIRST, "model": "llama9-70b"})
    assert "llama9-70b" in visit.text("#headline-error p")
    assert visit.at("#headline-error p").count() == 1


def test_copy_link_copies_the_address(visit: Visit) -> None:
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.open({**FIRST, "batch": 32}).click("#share-url")
    expect(visit.at("#share-url span")).to_have_text("Copied")
    assert visit.script("() => navigator.clipboard.readText()") == visit.page.url
    assert parse_qs(urlsplit(visit.page.url).query)["batch"] == ["32"]
    assert "works on this machine" in visit.text("#remarks p")
    visit.click("#remarks-go")
    expect(visit.at("#remarks p")).to_contain_text("copied")
    command = visit.script("() => navigator.clipboard.readText()")
    assert command.startswith("shardcost estimate llama3-70b ")
    assert "--batch 32" in command


# -------------------------------------------------------------------------------- search


def test_a_search_says_what_plan_says_and_a_row_loads_its_layout(
    visit: Visit, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = {name: value for name, value in FIRST.items() if name != "tp"}
    words = words_of({**ask, "gpus": "1..8"})
    printed = run_text(capsys, "plan", *words)
    data = run_json(capsys, "plan", *words)
    visit.open(tab="plan").at("#plan-gpus").fill("1..8")
    visit.at("#plan-start").click()
    expect(visit.at("#plan-table")).to_be_visible()
    rows = visit.at("#plan-table tbody tr")
    assert rows.count() == len(data["best"])
    table = r"^(\d+) +(\d+) +(\S+) +([\d.]+ \w+) +(\S+) +(\S+) +(\S+)$"
    lines = re.findall(table, printed, re.MULTILINE)
    assert len(lines) == len(data["best"])
    for rank, gpus, layout, time, user, gpu, memory in lines:
        row = one_line(rows.nth(int(rank) - 1).inner_text())
        assert row.startswith(f"{rank} {layout} {gpus} ")
        for said in (f" {time} ", f" {user} ", f" {gpu} ", f" {memory} GiB "):
            assert said in row, (row, said)
    assert f"{data['feasible']} of {data['considered']} layouts feasible" in visit.text(
        "#plan-status"
    )
    assert "does not fit memory" in visit.text("#plan-reasons")
    front = visit.at("#plan-front svg.chart")
    expect(front).to_be_visible()
    assert "Pareto front of" in (front.get_attribute("aria-label") or "")

    visit.at("#plan-table tbody tr").nth(2).locator("td").nth(1).click()
    visit.settle()
    assert visit.headline()["title"].endswith("tp4cp2")
    assert visit.headline()["time"] in one_line(rows.nth(2).inner_text())
    expect(rows.nth(2)).to_have_class(re.compile(r"\bnow\b"))
    # From the picture too: its first layout by the keyboard.
    front.focus()
    front.press("Home")
    front.press("Enter")
    visit.settle()
    first = min(data["front"], key=lambda each: each["tokens_per_s_per_user"])
    assert f" on {first['gpus']} x h100_sxm" in visit.headline()["title"]


def test_a_search_without_an_answer_says_why(visit: Visit) -> None:
    visit.refusals = {422}
    visit.open(tab="plan")
    visit.at("#plan-max_tpot").fill("1us")
    visit.at("#plan-max_tpot").press("Enter")
    expect(visit.at("#plan-found .error")).to_contain_text("Nothing is feasible")
    visit.at("#plan-max_tpot").fill("soon")
    visit.at("#plan-start").click()
    expect(visit.at("#plan-found .error")).to_contain_text("soon")
    expect(visit.at("#plan-start")).to_be_enabled()


def test_a_long_search_shows_how_far_it_is_and_can_be_cancelled(visit: Visit) -> None:
    visit.open(LARGE_SEARCH)
    visit.at("#plan-gpus").fill("256,512,1024")
    with visit.page.expect_response("**/api/plan") as begun:
        visit.at("#plan-start").click()
    job = begun.value.json()["job"]
    expect(visit.at("#plan-status")).to_have_text(re.compile(r"[\d,]+ of [\d,]+ layouts, "))
    expect(visit.at("#plan-progress")).not_to_have_js_property("value", 0)
    expect(visit.at("#plan-cancel")).to_be_enabled()
    with visit.page.expect_response(f"**/api/plan/{job}"):
        visit.at("#plan-cancel").click()
    expect(visit.at("#plan-status")).to_have_text("Cancelled.")
    expect(visit.at("#plan-start")).to_be_enabled()
    answer = visit.context.request.get(f"{visit.address}/api/plan/{job}").json()
    assert answer["state"] == "cancelled"


# ------------------------------------------------------------------------------ the ring


def complete_cells(visit: Visit) -> tuple[int, int]:
    """Return how many chunks are drawn complete, and how many only in part."""
    colours = visit.script(
        """() => ["--c3", "--c5"].map((name) =>
             getComputedStyle(document.documentElement).getPropertyValue(name).trim())"""
    )
    complete, partial = (visit.at(f'svg.ring rect[fill="{each}"]').count() for each in colours)
    return complete, partial


def test_the_ring_can_be_stepped_forth_and_back_until_every_rank_has_the_sum(visit: Visit) -> None:
    visit.open(tab="ring", ring_size="64MiB")
    assert visit.text("#ring-counter") == "0 of 14 steps done"
    assert visit.at("#ring-back").is_disabled()
    visit.at("#ring-step").click()
    visit.at("#ring-step").click()
    assert visit.text("#ring-counter") == "2 of 14 steps done"
    assert visit.text("#ring-words").startswith("Step 2 of 14: ")
    assert "sent per rank 16 MiB of 112 MiB" in visit.text("#ring-counters")
    visit.at("#ring-back").click()
    assert visit.text("#ring-counter") == "1 of 14 steps done"
    for _ in range(13):
        visit.at("#ring-step").click()
    assert visit.at("#ring-step").is_disabled()
    assert complete_cells(visit) == (64, 0)
    # 2 (n - 1)/n of 64 MiB, on every link.
    assert "sent per rank 112 MiB of 112 MiB" in visit.text("#ring-counters")
    assert [each.split()[-2:] for each in visit.texts("#ring-links li")] == [["112", "MiB"]] * 8
    visit.at("#ring-reset").click()
    assert visit.text("#ring-counter") == "0 of 14 steps done"
    assert complete_cells(visit)[0] == 0


@pytest.mark.parametrize(
    ("algorithm", "ranks", "steps"),
    [("ring", 16, 30), ("recursive_doubling", 8, 3), ("double_binary_tree", 16, None)],
)
def test_every_algorithm_ends_with_the_sum_everywhere(
    algorithm: str, ranks: int, steps: int | None, visit: Visit
) -> None:
    visit.open(tab="ring", ring_size="64MiB")
    visit.at("#ring-algorithm").select_option(algorithm)
    visit.at("#ring-n").fill(str(ranks))
    visit.press("#ring-n", "Enter")
    visit.settle()
    total = int(visit.text("#ring-counter").split()[2])
    assert steps is None or total == steps
    visit.at("#ring-step").focus()
    visit.at("#ring-step").press("End")
    assert visit.text("#ring-counter") == f"{total} of {total} steps done"
    complete, partial = complete_cells(visit)
    assert complete >= ranks
    assert complete % ranks == 0
    assert partial == 0
    if algorithm == "ring":
        assert complete == ranks * ranks
        assert "sent per rank 120 MiB of 120 MiB" in visit.text("#ring-counters")


def test_every_click_on_step_counts_while_a_step_is_moving(visits: Visits) -> None:
    visit = visits(motion="no-preference").open(tab="ring")
    for _ in range(4):
        visit.at("#ring-step").click()
    expect(visit.at("#ring-counter")).to_have_text("4 of 14 steps done")


def test_the_ring_plays_and_pauses(visits: Visits) -> None:
    visit = visits(motion="no-preference").open(tab="ring")
    visit.at("#ring-n").fill("3")
    visit.press("#ring-n", "Enter")
    expect(visit.at("#ring-counter")).to_have_text("0 of 4 steps done")
    play, counter = visit.at("#ring-play"), visit.at("#ring-counter")
    play.click()
    expect(play).to_have_text(re.compile("pause"))
    expect(counter).to_have_text(re.compile("[1-4] of 4"))
    play.click()
    expect(play).to_have_text(re.compile("play"))
    visit.at("#ring-reset").click()
    expect(counter).to_have_text("0 of 4 steps done")
    visit.at("#ring-speed").select_option("4")
    play.click()
    expect(counter).to_have_text("4 of 4 steps done")
    expect(play).to_have_text(re.compile("play"))
    assert complete_cells(visit) == (9, 0)


# --------------------------------------------------------------------- tabs and their why


def test_every_tab_has_its_picture_and_follows_the_question(visit: Visit) -> None:
    visit.open()
    for name in TABS[:-1]:
        visit.tab(name)
        charts = visit.at(f"#root-{name} svg.chart:visible")
        assert charts.count() >= 1, name
        for label in charts.evaluate_all(
            "all => all.map((each) => each.getAttribute('aria-label'))"
        ):
            assert len(label) > 20
        assert f"tab={name}" in visit.page.url or name == "timeline"
    for name in ("memory", "load"):
        before = visit.tab(name).text(f"#root-{name}")
        visit.press("[data-axis=tp]", "ArrowLeft")
        assert visit.text(f"#root-{name}") != before
        visit.press("[data-axis=tp]", "ArrowRight")
    visit.press("[data-axis=tp]", "ArrowLeft")
    assert "tp4dp2" in visit.headline()["title"]


def test_a_number_says_where_it_comes_from_and_leads_on(
    visit: Visit, capsys: pytest.CaptureFixture[str]
) -> None:
    visit.open()
    opener = visit.at("#headline-time .number")
    opener.focus()
    opener.press("Enter")
    expect(visit.at("#why")).to_be_visible()
    expect(visit.at("#why-value")).to_contain_text("18 ms")
    data = run_json(capsys, "estimate", *words_of(FIRST), "--why", "tpot_s")
    assert visit.text("#why-title") == data["title"]
    assert visit.text("#why-formula") == one_line(data["formula"])
    assert visit.at("#why .terms tr").count() >= 2
    assert "272 similar measurements" in visit.text("#why-error")
    expect(visit.at("#why-title")).to_be_focused()
    first = visit.text("#why-title")

    part = visit.at("#why-terms .number").first
    said = part.inner_text()
    part.click()
    expect(visit.at("#why-title")).not_to_have_text(first)
    assert said in visit.text("#why-value")
    assert visit.at("#why .term-source, #why .sources li").count() >= 1
    visit.at("#why-back").click()
    expect(visit.at("#why-title")).to_have_text(first)
    assert visit.at("#why-back").is_hidden()

    visit.page.keyboard.press("Escape")
    expect(visit.at("#why")).to_be_hidden()
    expect(opener).to_be_focused()


def test_every_number_of_the_headline_and_the_tabs_can_be_asked(visit: Visit) -> None:
    visit.open({**QUESTIONS["training in a pipeline"], "tab": "memory"})
    asked = set()
    for selector in ("#headline .number", "#root-memory .number"):
        for number in visit.at(selector).all():
            figure = number.get_attribute("data-why")
            if figure in asked:
                continue
            asked.add(figure)
            number.press("Enter")  # it may lie under the explanation of the last one
            visit.settle()
            expect(visit.at("#why-content:not([data-stale])")).to_be_visible()
            assert visit.at("#why-content .error").count() == 0, figure
            assert visit.at("#why-formula").count() == 1, figure
            shown = visit.text("#why-value")
            assert number.inner_text() in shown, (figure, shown)
    assert len(asked) > 20
    # The explanation follows the question.
    before = visit.text("#why-value")
    visit.press("#headline-time .number", "Enter")
    visit.press("[data-axis=tp]", "ArrowLeft")
    expect(visit.at("#why-value")).not_to_have_text(before)
    expect(visit.at("#why-value")).to_contain_text(visit.headline()["time"])


def test_pictures_answer_to_their_own_controls(visit: Visit) -> None:
    visit.open(QUESTIONS["training in a pipeline"])
    layer = visit.text("#timeline-totals")
    visit.click("#timeline-step")
    assert visit.at("#timeline-step").get_attribute("aria-pressed") == "true"
    assert visit.text("#timeline-totals") != layer
    whole = visit.text(".gantt-range")
    visit.at(".gantt-in").click()
    expect(visit.at(".gantt-range")).not_to_have_text(whole)
    visit.at(".gantt-reset").click()
    expect(visit.at(".gantt-range")).to_have_text(whole)

    visit.tab("scaling")
    by_tp = visit.text("#scaling-table")
    visit.at("#scaling-vary").select_option("pp")
    expect(visit.at("#scaling-table")).not_to_have_text(by_tp)
    assert "--" not in visit.settle().text("#scaling-table")  # options are the command line's
    chart = visit.at("svg.scaling-time")
    chart.focus()
    chart.press("Home")
    chart.press("Enter")  # its first bar is taken
    assert visit.settle().value("pp") == 1

    visit.tab("collective")
    visit.at("#collective-name").select_option("all_gather")
    visit.settle()
    assert "all-gather" in visit.text("#collective-words").lower()
    assert visit.at("#collective-readout .number").count() >= 2
    visit.at("#collective-readout .number").first.press("Enter")
    expect(visit.at("#why-formula")).to_be_visible()
    visit.page.keyboard.press("Escape")

    visit.tab("roofline")
    chart = visit.at("svg.roofline")
    chart.focus()
    chart.press("End")
    chart.press("Enter")
    assert visit.at("#roofline-detail .number").count() >= 1


def test_the_page_on_the_api_lists_every_question(visit: Visit) -> None:
    visit.open()
    visit.at("#export-menu summary").click()
    visit.at("#export-menu a").click()
    paths = visit.context.request.get(f"{visit.address}/openapi.json").json()["paths"]
    for path in paths:
        expect(visit.at("body")).to_contain_text(path)

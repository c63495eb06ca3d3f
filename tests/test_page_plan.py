"""The Plan tab in a real browser: sorted and filtered, two layouts compared, a question pinned."""

from __future__ import annotations

import re

import pytest
from browsing import FIRST, Visit, Visits
from playwright.sync_api import expect
from running import run_json

DECODE = {**FIRST, "model": "llama3-8b"}
SEARCH = {**DECODE, "tab": "plan", "plan_gpus": "1..8", "plan_top": "8"}


def search(visit: Visit) -> Visit:
    """Search, and wait for the table."""
    visit.at("#plan-start").click()
    expect(visit.at("#plan-table tbody tr").first).to_be_visible()
    return visit.settle()


def column(visit: Visit, name: str) -> list[str]:
    """Return the cells of a column, each without its second line."""
    heads = visit.texts("#plan-table thead th")
    rows = visit.at("#plan-table tbody tr").all()
    cells = [row.locator("td, th").nth(heads.index(name)).inner_text() for row in rows]
    return [cell.split("\n")[0].strip() for cell in cells]


def test_the_table_sorts_and_filters_by_keyboard_and_says_so(visit: Visit) -> None:
    search(visit.open(SEARCH))
    ranks = column(visit, "#")
    assert ranks == [str(rank) for rank in range(1, 9)]
    head = visit.at("#plan-table th:has([data-sort=memory])")
    expect(head).to_have_attribute("aria-sort", "none")
    visit.press("[data-sort=memory]", "Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(visit.at("[data-sort=memory]")).to_be_focused()
    sizes = [float(each.split()[0]) for each in column(visit, "memory")]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 1
    visit.press("[data-sort=memory]", "Enter")
    assert [float(each.split()[0]) for each in column(visit, "memory")] == sizes[::-1]
    visit.press("[data-sort=memory]", "Enter")
    expect(head).to_have_attribute("aria-sort", "none")
    assert column(visit, "#") == ranks

    visit.at("#plan-filter").fill("tp4")
    left = column(visit, "layout")
    assert left
    assert all("tp4" in each for each in left)
    assert visit.text("#plan-count") == f"{len(left)} of 8 layouts"
    visit.at("#plan-filter").fill("")
    visit.at("#plan-only-dp").select_option("1")
    assert all("dp" not in each for each in column(visit, "layout"))


def test_two_layouts_are_compared_side_by_side_on_any_screen(visits: Visits) -> None:
    visit = search(visits("phone").open(SEARCH))
    names = column(visit, "layout")
    for rank in (1, 3, 2):  # of three, the first one goes
        visit.at(f"[data-compare='{rank}']").check()
    expect(visit.at("[data-compare='1']")).not_to_be_checked()
    expect(visit.at("#plan-compare svg.chart")).to_have_count(2)
    visit.settle()
    assert visit.text("#plan-compare h2") == f"#3 {names[2]} and #2 {names[1]}"
    times = column(visit, "TPOT")
    figures = visit.text("#plan-compare table >> nth=0")
    assert f"TPOT {times[2]} {times[1]} " in figures
    parts = visit.text("#plan-compare table >> nth=1")
    assert re.search(r"GEMM [\d.]+ \w+ [\d.]+ \w+ ([+-][\d.]+ \w+, [+-][\d.]+ %|the same)", parts)
    assert "weights " in visit.text("#plan-compare table >> nth=2")
    wide = "() => document.documentElement.scrollWidth - window.innerWidth"
    assert visit.script(wide) <= 0
    visit.at("#plan-compare-close").click()
    expect(visit.at("#plan-compare")).to_be_hidden()
    expect(visit.at("[data-compare='3']")).not_to_be_checked()


def test_a_pinned_question_stays_beside_the_one_that_moves_and_in_the_link(visit: Visit) -> None:
    before = visit.open(DECODE).headline()["time"]
    visit.click("#pin")
    expect(visit.at("#pin")).to_have_attribute("aria-pressed", "true")
    assert "the same" in visit.text("#headline-pinned")
    visit.at("#field-batch").fill("256")
    visit.press("#field-batch", "Enter")
    now = visit.headline()["time"]
    assert now != before
    line = visit.text("#headline-pinned")
    said = re.fullmatch(r"pinned (.+), now \+([\d.]+) ms, \+([\d.]+) %", line)
    assert said is not None, line
    assert said.group(1) == before
    values = [float(each.split()[0]) for each in (before, now)]
    assert float(said.group(2)) == pytest.approx(values[1] - values[0], abs=0.01)
    assert float(said.group(3)) == pytest.approx(100 * (values[1] / values[0] - 1), abs=0.2)
    assert f"{before} (" in visit.text("#pinned table >> nth=0")
    visit.go(visit.page.url)
    expect(visit.at("#headline-pinned")).to_have_text(line)
    visit.click("#pin-swap")
    assert visit.headline()["time"] == before
    assert f"pinned {now}, now -" in visit.text("#headline-pinned")
    visit.click("#pin")
    expect(visit.at("#pinned")).to_be_hidden()
    assert "pin=" not in visit.page.url


def test_the_best_layout_within_a_limit_is_found_loaded_and_started(
    visit: Visit, capsys: pytest.CaptureFixture[str]
) -> None:
    """Llama-3.3-70B in fp8 on four H100s under 20 ms a token, at the largest batch that holds."""
    visit.open()
    visit.at("#more-work").evaluate("each => { each.open = true; }")
    visit.at("#field-dtype").select_option("fp8")
    visit.settle().tab("plan")
    visit.at("#plan-objective").select_option("throughput")
    visit.at("#plan-gpus").fill("4")
    visit.at("#plan-batch").fill("1..256")
    visit.at("#plan-max_tpot").fill("20ms")
    search(visit)
    words = ["llama3-70b", "--on", "h100_sxm", "--gpus", "4", "--decode", "--dtype", "fp8"]
    words += ["--batch", "1..256", "--context-tokens", "4096", "--max-tpot", "20ms"]
    best = run_json(capsys, "plan", *words, "--objective", "throughput")["best"][0]
    holds = f"{10 * best['limits'][0]['holds_share']:.0f} of 10"
    assert column(visit, "limit holds in")[0] == holds
    assert "in GPU time per token" in visit.text("#plan-losses caption")
    visit.at("#plan-table .load").first.click()
    visit.settle()
    assert visit.headline()["title"].endswith("on 4 x h100_sxm, tp4")
    assert f"batch {best['batch']}," in visit.headline()["details"]
    assert visit.text("#headline-limits") == f"TPOT at most 20 ms: holds in {holds} cases"
    batch = best["largest_batch"]["batch"]
    assert best["batch"] == batch
    assert batch not in {2**power for power in range(9)}
    visit.at("#plan-objective").select_option("time")
    search(visit)  # the fastest has a small batch, and the same layout a largest one
    assert f"Largest batch within the limits with tp4: {batch}" in visit.text("#plan-largest")
    visit.click("#plan-largest-load")
    assert f"batch {batch}," in visit.headline()["details"]

    visit.click("#export-menu summary")
    visit.click("[data-export=launch]")
    launched = ["--tp", "4", "--decode", "--dtype", "fp8", "--batch", str(batch)]
    asked = ["llama3-70b", "--on", "h100_sxm", "--context-tokens", "4096", *launched]
    data = run_json(capsys, "estimate", *asked, "--launch", "vllm")["launch"]
    assert visit.at("#text-dialog [data-text=vllm]").inner_text() == data["script"]
    for note in data["notes"]:
        assert note in visit.text("#text-dialog")


def test_deployments_under_a_load_are_those_of_the_command(
    visit: Visit, capsys: pytest.CaptureFixture[str]
) -> None:
    load = {"load_isl": "512", "load_osl": "16", "load_max_tpot": "20ms", "load_requests": "150"}
    visit.open({**DECODE, "gpus": 2, "tp": 2}, tab="plan", **load).click("#plan-for-load")
    visit.at("#plan-load-max_ttft").fill("500ms")
    visit.at("#plan-load-rate").fill("20")
    visit.at("#plan-load-start").click()
    expect(visit.at("#plan-load-table tbody tr").first).to_be_visible()
    words = ["llama3-8b", "--on", "h100_sxm", "--gpus", "2", "--load", "--isl", "512"]
    words += ["--osl", "16", "--max-ttft", "500ms", "--max-tpot", "20ms", "--rate", "20"]
    best = run_json(capsys, "plan", *words)["best"]
    rows = visit.texts("#plan-load-table tbody tr")
    assert [int(row.split()[0]) for row in rows] == list(range(1, len(best) + 1))
    for row, each in zip(rows, best, strict=True):
        assert f" {each['goodput_requests_per_s']:.3g} {each['per_gpu']:.3g} " in row
    split = next(rank for rank, each in enumerate(best) if each["disaggregated"])
    visit.at("#plan-load-table .load").nth(split).click()
    expect(visit.at("#tab-load")).to_have_attribute("aria-selected", "true")
    for pool in best[split]["pools"]:
        expect(visit.at(f"#load-{pool['pool']}_workers")).to_have_value(str(pool["workers"]))
    visit.settle()

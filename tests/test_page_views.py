"""The views of the page: what a click on them explains, and what they say of the layout."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from browsing import FIRST, Visit
from playwright.sync_api import Route, expect

DEEP: dict[str, Any] = {
    "model": "deepseek-v3",
    "on": "h800_sxm",
    "network": "ib_8x400g",
    "gpus": 2048,
    "pp": 16,
    "ep": 64,
    "phase": "train",
    "batch": 15360,
    "sequence_length": 4096,
}
EVENT = """
(name) => {
  // Where the label of an event is.
  const labels = [...document.querySelectorAll("svg.timeline text")];
  const label = labels.find((each) => each.textContent === name);
  const box = label.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
}
"""


def test_an_event_of_the_timeline_is_explained_by_its_operation(visit: Visit) -> None:
    visit.open()
    said = str(visit.at("svg.timeline").text_content())
    assert "all-reduce(attn out)" in said
    assert "…" not in said
    visit.at("svg.timeline").scroll_into_view_if_needed()
    x, y = visit.script(EVENT, "qkv")
    visit.page.mouse.click(x, y)
    expect(visit.at("#why-title")).to_contain_text("One call of qkv")


def test_a_long_step_has_a_labelled_break_and_uses_its_width(visit: Visit) -> None:
    visit.open({**DEEP, "timeline_of": "step"})
    assert "96 micro-batches" in str(visit.at("svg.timeline .gantt-break").text_content())
    wide = visit.script("() => document.querySelector('svg.timeline').clientWidth")
    dashed = visit.script(
        """() => [...document.querySelectorAll('svg.timeline line[stroke-dasharray="5 4"]')]
             .map((each) => Number(each.getAttribute("x1")))"""
    )
    start, end = dashed
    assert 10 < end - start < 0.1 * wide
    assert visit.text(".gantt-range").startswith("the whole, 40")
    # Beyond the break, the axis goes on with the times that they are.
    ticks = [
        float(each.removesuffix(" s"))
        for each in visit.at("svg.timeline text").all_text_contents()
        if re.fullmatch(r"[\d.]+ s", each)
    ]
    assert max(ticks) > 35
    assert ticks == sorted(ticks)


def test_whoever_clicks_a_number_of_an_explanation_gets_that_number(visit: Visit) -> None:
    visit.open()
    visit.at('#time-legend [data-why="parts.gemm"]').click()
    row = visit.at("#why-terms tr").filter(has_text="qkv")
    expect(row).to_contain_text("13.8 %")
    shown = row.locator(".number").inner_text()
    row.locator(".number").click()
    expect(visit.at("#why-title")).to_contain_text("All calls of qkv")
    assert visit.text("#why-value") == shown
    visit.at("#why-terms .number").click()
    expect(visit.at("#why-title")).to_contain_text("One call of qkv")
    assert visit.text("#why-value") != shown
    assert visit.at("#why-content .formula").count() <= 2


def test_the_explanation_leaves_every_tile_free_to_be_clicked(visit: Visit) -> None:
    visit.open()
    visit.at("#headline-time .number").click()
    expect(visit.at("#why-value")).to_be_visible()
    edge = visit.at("#why").bounding_box()
    assert edge is not None
    for tile in visit.at("#headline-tiles .number, #memory-legend .number").all():
        box = tile.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= edge["x"]
    visit.at("#headline-tiles .number").last.click()  # nothing lies over it
    expect(visit.at("#why-title")).to_contain_text("communication")


def test_memory_of_serving_says_what_is_needed_and_what_the_engine_takes(visit: Visit) -> None:
    visit.open({**FIRST, "tab": "memory"})
    assert re.search(r"needs 27\.\d+ GiB of 80 GiB", visit.text("#memory-words"))
    assert "takes 73.79 GiB" in visit.text("#memory-engine")
    visit.at("#memory-words .number").click()
    expect(visit.at("#why-words")).to_contain_text("no interval")
    assert visit.at("#why-error").count() == 0
    assert not re.search("loss|gradient", visit.text("#why"))


def test_an_algorithm_begins_with_the_layouts_own_message(visit: Visit) -> None:
    visit.open(tab="ring")
    assert visit.at("#ring-size").input_value() == "1MiB"
    assert "2 of these per layer, 161 per step" in visit.text("#ring-own")
    assert "14 x 921.2 ns + 1.75 MiB / 450 GB/s = 16.97 us" in visit.text("#ring-cost")
    assert "%" not in str(visit.at("svg.topology").text_content())
    visit.at("#ring-step").click()
    expect(visit.at("svg.topology")).to_contain_text("%")
    # It follows the layout until somebody chooses.
    visit.press("[data-axis=tp]", "ArrowLeft")
    assert visit.at("#ring-n").input_value() == "4"
    visit.at("#ring-size").fill("3MiB")
    visit.press("#ring-size", "Enter")
    visit.press("[data-axis=tp]", "ArrowRight")
    assert (visit.at("#ring-n").input_value(), visit.at("#ring-size").input_value()) == (
        "4",
        "3MiB",
    )
    visit.click("#ring-use-own")
    assert visit.at("#ring-size").input_value() == "1MiB"


def test_the_tabs_of_collectives_lead_to_each_other(visit: Visit) -> None:
    visit.open(tab="ring", ring_algorithm="two_shot", ring_n=4, ring_size="2MiB")
    assert visit.at("#ring-how li").count() == 3
    visit.click("#ring-to-collective")
    assert "tab=collective" in visit.page.url
    assert visit.at("#collective-gpus").input_value() == "4"
    visit.at("#collective-name").select_option("all_gather")
    visit.settle().click("#collective-to-ring")
    assert visit.at("#ring-collective").input_value() == "all_gather"
    assert visit.at("#ring-n").input_value() == "4"


def test_a_tree_is_drawn_as_a_tree(visit: Visit) -> None:
    visit.open(tab="ring", ring_algorithm="double_binary_tree", ring_n=8, ring_size="1MiB")
    boxes = visit.script(
        """() => [...document.querySelectorAll("svg.ring rect[rx='7']")].map((each) =>
             ["x", "y", "width", "height"].map((name) => Number(each.getAttribute(name))))"""
    )
    assert len(boxes) == 8
    rows = sorted({y for _, y, _, _ in boxes})
    assert len(rows) == 4
    assert sum(y == rows[0] for _, y, _, _ in boxes) == 1
    for row in rows:
        across = sorted((x, x + wide) for x, y, wide, _ in boxes if y == row)
        assert all(one[1] < other[0] for one, other in pairwise(across))


def test_the_button_says_that_a_report_is_drawn(visit: Visit) -> None:
    visit.open()
    label = visit.at("#export-menu summary span")
    held: list[Route] = []
    visit.page.route("**/api/export/html", lambda route: held.append(route))  # noqa: PLW0108 -- Playwright marks it
    visit.at("#export-menu summary").click()
    visit.at("[data-export=html]").click()
    expect(label).to_have_text("Drawing…")
    with visit.page.expect_download():
        held[0].fulfill(body="<p>report", content_type="text/html")
    expect(label).to_have_text("Export")


def test_a_model_is_found_under_each_of_its_names(visit: Visit) -> None:
    visit.open(FIRST)
    names = [each.split(" · ")[0] for each in visit.texts("#model option")]
    assert {"llama3-70b", "llama3.3-70b", "deepseek-r1"} <= set(names)
    assert names == sorted(names)
    visit.at("#model").select_option("llama3.3-70b")
    visit.settle()
    assert visit.headline()["title"] == "Decoding with llama3-70b on 8 x h100_sxm, tp8"
    assert visit.at("#model").input_value() == "llama3.3-70b"


def test_one_gpu_by_itself_scales_by_more_of_them(visit: Visit) -> None:
    visit.open({**FIRST, "model": "gpt-oss-120b", "gpus": 1, "tp": 1}).tab("scaling")
    assert visit.at("#scaling-vary").input_value() == "gpus"
    assert visit.at("#scaling-table tbody tr").count() > 3
    assert visit.text("[data-tile=comm_share]") == "communication 0.0 %"  # which has no range

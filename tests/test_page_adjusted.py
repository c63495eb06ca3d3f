"""Numbers that are typed, and layouts that the page adjusts so that they run."""

from __future__ import annotations

from browsing import FIRST, Visit


def test_any_number_can_be_typed_and_the_layout_is_adjusted_to_it(visit: Visit) -> None:
    visit.refusals = {422}
    visit.open()

    def typed(axis: str, text: str) -> str:
        visit.at(f"#number-{axis}").fill(text)
        visit.press(f"#number-{axis}", "Enter")
        return str(visit.headline()["title"]).rpartition(" on ")[2]

    assert typed("gpus", "4") == "4 x h100_sxm, tp4"
    assert typed("gpus", "12") == "12 x h100_sxm, tp4pp3"
    assert visit.text("#adjusted > p") == "Adjusted: tp4pp3"
    visit.at("#adjusted summary").click()
    assert "batch of 64" in visit.text("#adjusted details p")
    assert typed("gpus", "2048").startswith("2,048 x h100_sxm (ib_8x400g), tp4")
    assert typed("tp", "8").startswith("2,048 x h100_sxm (ib_8x400g), tp8")
    before = visit.headline()
    for text in ("0", "1.5", "", "9999999999"):
        visit.at("#number-gpus").fill(text)
        visit.press("#number-gpus", "Tab")
        assert visit.at("#number-gpus").get_attribute("aria-invalid") == "true", text
        fault = visit.text("#number-gpus-error")
        assert fault == "GPUs: a whole number from 1 to 1,000,000,000"
    assert visit.headline() == before
    visit.at("#number-gpus").fill("2048")
    visit.press("#number-gpus", "ArrowUp")
    assert visit.value("gpus") == 4096


def test_a_phase_that_needs_more_memory_gets_it(visit: Visit) -> None:
    visit.open().at("#phase-train").check(force=True)
    visit.settle()
    assert visit.headline()["title"].endswith("on 32 x h100_sxm (ib_8x400g), tp8pp4")
    assert visit.text("#adjusted > p") == "Adjusted: 32 GPUs, tp8pp4, ib_8x400g"
    assert visit.at("#headline-fit").is_hidden()
    visit.at("#adjusted summary").click()
    assert "of 80 GiB" in visit.text("#adjusted details p")
    visit.click("#adjusted-undo")
    assert visit.headline()["time"] == "18 ms"


def test_a_link_to_what_cannot_be_leads_to_the_nearest_that_runs(visit: Visit) -> None:
    visit.refusals = {422}
    visit.open({**FIRST, "gpus": 4})
    error = visit.text("#headline-error p")
    assert error == "GPUs must be a multiple of tp x cp x pp = 8 x 1 x 1 = 8, got 4"
    visit.click("#take-nearest")
    assert visit.headline()["title"].endswith("on 4 x h100_sxm, tp4")

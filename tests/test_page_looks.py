"""How the page looks and is used: sizes, themes, keyboard, names for those who cannot see it.

Pictures of every tab, at three sizes, and dark where there is most room, are left in
``build/screenshots``.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from browsing import FIRST, SIZES, TABS, Visit, Visits
from looking import (
    COVERED,
    CROWDED,
    CUT,
    FOCUSABLE,
    HEADINGS,
    MEETING,
    MISNAMED,
    NOW,
    PALE,
    REDRAWN,
    STOPS,
    TOO_SMALL,
)
from playwright.sync_api import expect

TRAIN = {
    "model": "gpt3-175b",
    "on": "a100_sxm",
    "network": "ib_8x200g",
    "gpus": 64,
    "tp": 8,
    "pp": 4,
    "zero": 1,
    "recompute": "selective",
    "phase": "train",
    "batch": 128,
    "sequence_length": 2048,
}
PICTURES = Path(__file__).resolve().parents[1] / "build" / "screenshots"
TOUCH_PX = 40
INLINE_TOUCH_PX = 24  # a number among words, or in a table
LEAST_CONTRAST = 4.5
MOST_MOVED = 0.1


# ------------------------------------------------------------------------ sizes and themes


@pytest.mark.parametrize("size", SIZES)
def test_every_tab_stands_on_every_screen_light_and_dark(size: str, visits: Visits) -> None:
    visit = visits(size, touch=size == "phone").open(TRAIN)
    wide = SIZES[size][0]
    if size != "wide":
        visit.at("#controls-toggle").click()
    for each in visit.at("#controls details").all():
        each.evaluate("each => { each.open = true; }")
    for tab in TABS:
        visit.tab(tab)
        for each in visit.at(f"#panel-{tab} details.more").all():
            each.evaluate("each => { each.open = true; }")
        if tab == "plan":
            visit.at("#plan-objective").select_option("throughput")
            visit.at("#plan-fix-tp").fill("4,8")
            visit.at("#plan-fix-pp").fill("2,4,8")
            visit.at("#plan-start").click()
            expect(visit.at("#plan-front svg.chart")).to_be_visible()
        if tab == "ring":
            visit.at("#ring-step").click()
        assert visit.script("() => document.documentElement.scrollWidth") <= wide, tab
        assert visit.script(COVERED) == [], tab
        assert visit.script(CUT) == [], tab
        assert visit.script(CROWDED) == [], tab
        assert visit.script(MISNAMED) == [], tab
        if size == "phone":
            assert visit.script(TOO_SMALL, [TOUCH_PX, INLINE_TOUCH_PX]) == [], tab
        visit.script("() => scrollTo(0, 0)")
        for theme in ("light", "dark"):
            visit.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            visit.script(REDRAWN)
            assert visit.script(PALE, LEAST_CONTRAST) == [], (tab, theme)
            if theme == "light" or size == "wide":
                visit.page.screenshot(path=PICTURES / f"{size}-{theme}-{tab}.png", full_page=True)


@pytest.mark.parametrize("size", SIZES)
def test_thousands_of_gpus_leave_every_label_apart(size: str, visits: Visits) -> None:
    visit = visits(size).open({**TRAIN, "on": "h800_sxm", "gpus": 2048, "batch": 15360})
    if size != "wide":
        visit.at("#controls-toggle").click()
    visit.settle()
    visit.at("#controls-toggle, #model").last.scroll_into_view_if_needed()
    assert visit.script(CROWDED) == []
    assert visit.script(CUT) == []
    labels = visit.texts("[data-axis=gpus] .step-label:not(.dim)")
    assert {"1", "2048"} <= set(labels)
    if size == "wide":  # what the measure is there to find
        visit.script("""() => { for (const each of document.querySelectorAll(
            '[data-axis=gpus] .step-label')) each.classList.remove('dim'); }""")
        assert visit.script(CROWDED) != []


@pytest.mark.parametrize("size", SIZES)
def test_dialogs_stand_on_every_screen(size: str, visits: Visits, repository: Path) -> None:
    visit = visits(size).open(TRAIN)
    visit.script("() => scrollTo(0, 0)")
    wide, tall = SIZES[size]

    def seen(name: str) -> None:
        box = visit.at(f"#{name}").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["y"] >= 0
        assert box["x"] + box["width"] <= wide
        assert box["y"] + box["height"] <= tall
        assert visit.script("() => document.documentElement.scrollWidth") <= wide
        for theme in ("light", "dark"):
            visit.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            visit.script(REDRAWN)
            assert visit.script(PALE, LEAST_CONTRAST) == [], (name, theme)
            visit.page.screenshot(path=PICTURES / f"{size}-{theme}-{name}.png")
        visit.page.keyboard.press("Escape")
        expect(visit.at(f"#{name}")).to_be_hidden()

    visit.press('#headline [data-why="parts.tp communication"]', "Enter")
    expect(visit.at("#why-formula")).to_be_visible()
    seen("why")
    visit.at("#open-file").click()
    visit.at("#file-text").fill((repository / "docs/examples/topo-8.txt").read_text())
    visit.at("#file-read").click()
    visit.told_of_file()
    seen("file-dialog")
    visit.at("#export-menu summary").click()
    visit.at("[data-export=commands]").click()
    expect(visit.at("#text-dialog")).to_be_visible()
    seen("text-dialog")


@pytest.mark.parametrize("question", [FIRST, TRAIN], ids=["decode", "train"])
def test_the_drawer_stands_beside_the_page(question: dict[str, Any], visits: Visits) -> None:
    visit = visits("wide").open(question)
    for wide in (925, 1000, 1279, 1400):
        folds = wide < 1280
        visit.page.set_viewport_size({"width": wide, "height": 900})
        visit.at("#headline-time .number").click()
        expect(visit.at("#why-value")).to_contain_text(visit.headline()["time"])
        drawer, page = (visit.at(name).bounding_box() for name in ("#why", "#page"))
        assert drawer is not None
        assert page is not None
        assert page["x"] + page["width"] <= drawer["x"]
        assert drawer["x"] + drawer["width"] <= wide
        visit.at('#headline [data-why="parts.tp communication"]').click()  # nothing is in the way
        expect(visit.at("#why-title")).to_contain_text("tp group")
        assert visit.at("#controls-body").is_visible() is not folds
        for unfolded in (False, True) if folds else (False,):
            if unfolded:
                visit.at("#controls-toggle").click()
                expect(visit.at("#controls-body")).to_be_visible()
            visit.script("() => scrollTo(0, 0)")
            assert visit.script("() => document.documentElement.scrollWidth") <= wide
            assert visit.script(COVERED) == [], wide
            assert visit.script(CUT) == [], wide
            assert visit.script(CROWDED) == [], wide
            assert not visit.script(MEETING, ["#headline h1", "#pin"]), wide
        visit.page.screenshot(path=PICTURES / f"drawer-{wide}-{question['phase']}.png")
        if folds:
            visit.at("#controls-toggle").click()
        visit.page.keyboard.press("Escape")
        expect(visit.at("#why")).to_be_hidden()
        expect(visit.at("#controls-body")).to_be_visible()


def test_on_a_phone_the_controls_unfold_below_the_answer(visits: Visits) -> None:
    visit = visits("phone", touch=True).open()
    assert visit.at("#controls-body").is_hidden()
    visit.at("#controls-toggle").tap()
    expect(visit.at("#controls-body")).to_be_visible()
    assert visit.script("() => document.documentElement.scrollWidth") <= 390
    assert visit.script(TOO_SMALL, [TOUCH_PX, INLINE_TOUCH_PX]) == []
    visit.at('[data-axis=tp] .step[data-value="4"]').tap(force=True)
    assert visit.settle().headline()["title"].endswith("tp4dp2")
    visit.at("#headline-time .number").tap()
    expect(visit.at("#why-value")).to_contain_text(visit.headline()["time"])
    assert visit.script("() => document.documentElement.scrollWidth") <= 390
    visit.at("#why-close").tap()
    expect(visit.at("#why")).to_be_hidden()


def test_the_theme_is_the_system_s_until_one_is_chosen_and_then_kept(visits: Visits) -> None:
    def ground(visit: Visit) -> str:
        return str(visit.at("html").evaluate("each => getComputedStyle(each).backgroundColor"))

    visit = visits(theme="dark").open()
    dark = ground(visit)
    visit.page.emulate_media(color_scheme="light")
    light = ground(visit)
    assert dark != light
    for named, expected in (("light", light), ("dark", dark)):
        visit.at("#theme").click()
        assert visit.at("html").get_attribute("data-theme") == named
        assert visit.at("#theme").get_attribute("aria-label") == f"Theme: {named}"
        assert ground(visit) == expected
    visit.open()
    assert ground(visit) == dark
    visit.at("#theme").click()
    assert ground(visit) == light


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_is_written_stands_out_from_what_it_is_written_on(theme: Any, visits: Visits) -> None:
    visit = visits(theme=theme).open()
    inks = {
        "ink": ("ground", "panel", "sunk"),
        "muted": ("ground", "panel", "sunk"),
        "accent": ("ground", "panel"),
        "accent-ink": ("accent",),
        "warn": ("panel", "warn-soft"),
        "bad": ("panel", "bad-soft"),
        "good": ("panel",),
    }
    for ink, grounds in inks.items():
        for ground in grounds:
            assert contrast(visit, ink, ground) >= LEAST_CONTRAST, (ink, ground)
    for series in range(1, 8):  # graphical objects
        assert contrast(visit, f"c{series}", "panel") >= 2.0, series


def contrast(visit: Visit, ink: str, ground: str) -> float:
    """Return the contrast of two of the page's colours, as WCAG defines it."""
    sums = []
    for name in (ink, ground):
        text = visit.script(
            """(name) => getComputedStyle(document.documentElement)
                 .getPropertyValue(name).trim()""",
            f"--{name}",
        )
        assert re.fullmatch("#[0-9a-f]{6}", text), (name, text)
        parts = [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        sums.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(sums) + 0.05) / (min(sums) + 0.05)


# -------------------------------------------------------------------------------- stillness


@pytest.mark.parametrize("size", ["wide", "phone"])
def test_nothing_jumps_while_loading_or_sliding(size: str, visits: Visits) -> None:
    visit = visits(size).open()
    assert visit.moved() < MOST_MOVED
    if size == "phone":
        visit.at("#controls-toggle").click()
    for axis, key in (("tp", "ArrowLeft"), ("tp", "ArrowRight"), ("gpus", "ArrowRight")):
        visit.at(f"[data-axis={axis}]").focus()
        visit.moved()
        visit.press(f"[data-axis={axis}]", key)
        assert visit.moved() < MOST_MOVED, (axis, key)


def test_with_reduced_motion_a_step_of_the_ring_is_there_at_once(visit: Visit) -> None:
    visit.open(tab="ring")
    visit.at("#ring-step").click()
    assert visit.text("#ring-counter") == "1 of 14 steps done"
    running = visit.script(
        """() => document.getAnimations()
             .filter((each) => each.playState === "running"
               && each.effect.getComputedTiming().duration > 10).length"""
    )
    assert running == 0


# -------------------------------------------------------------------------------- keyboard


def test_the_tab_key_reaches_every_control_in_order(visit: Visit) -> None:
    visit.open({**TRAIN, "tab": "ring"})
    stops = visit.script(STOPS, FOCUSABLE)
    assert len(stops) > 50
    reached: list[int] = []
    visit.page.keyboard.press("Tab")
    for _ in range(len(stops) + 10):
        at, tag, ringed = visit.script(NOW)
        if tag == "BODY" or (reached and at == reached[0]):
            break
        assert at >= 0, (tag, reached[-1:])
        assert ringed, f"no visible focus on {stops[at]}"
        reached.append(at)
        visit.page.keyboard.press("Tab")
    assert [stops[at] for at in sorted(reached)] == stops
    # In the order in which things stand: headline, then what is asked, then the pictures.
    jumps = [after - before for before, after in itertools.pairwise(reached)]
    assert len(jumps) - jumps.count(1) <= 2


def test_tabs_are_walked_with_the_arrow_keys(visit: Visit) -> None:
    visit.open()
    visit.at("#tab-timeline").focus()
    for key, expected in (
        ("ArrowRight", "scaling"),
        ("End", "plan"),
        ("ArrowRight", "timeline"),
        ("ArrowLeft", "plan"),
        ("Home", "timeline"),
    ):
        visit.page.keyboard.press(key)
        expect(visit.at(f"#tab-{expected}")).to_be_focused()
        expect(visit.at(f"#panel-{expected}")).to_be_visible()
        assert visit.at("[role=tab][aria-selected=true]").count() == 1
    visit.settle()


def test_dialogs_keep_the_focus_and_give_it_back(visit: Visit) -> None:
    visit.open()
    opener = visit.at("#open-file")
    opener.focus()
    opener.press("Enter")
    expect(visit.at("#file-text")).to_be_focused()
    for _ in range(8):
        visit.page.keyboard.press("Tab")
        inside = visit.script(
            """() => document.activeElement === document.body
                 || Boolean(document.activeElement.closest("#file-dialog"))"""
        )
        assert inside
    visit.page.keyboard.press("Escape")
    expect(visit.at("#file-dialog")).to_be_hidden()
    expect(opener).to_be_focused()

    menu = visit.at("#export-menu summary")
    menu.press("Enter")
    expect(visit.at("[data-export=json]")).to_be_visible()
    visit.page.keyboard.press("Escape")
    expect(visit.at("[data-export=json]")).to_be_hidden()
    expect(menu).to_be_focused()


def test_values_of_a_picture_are_read_with_the_arrow_keys(visit: Visit) -> None:
    visit.open()
    for tab in ("timeline", "scaling", "collective", "roofline", "memory", "load"):
        visit.tab(tab)
        chart = visit.at(f"#root-{tab} svg.chart:visible").first
        chart.focus()
        chart.press("ArrowRight")
        expect(visit.at("#announcer")).not_to_be_empty()
        expect(visit.at(f"#root-{tab} .chart-tip:visible").first).not_to_be_empty()


# ----------------------------------------------------------------------------------- names

NAMED = {
    "button", "checkbox", "combobox", "dialog", "image", "img", "link", "meter", "radio", "region",
    "slider", "spinbutton", "tab", "tabpanel", "textbox", "progressbar", "radiogroup",
}  # fmt: skip


def test_everything_that_can_be_used_has_a_name(visit: Visit) -> None:
    visit.open(TRAIN)
    for each in visit.at("#controls details").all():
        each.evaluate("each => { each.open = true; }")
    tools = visit.context.new_cdp_session(visit.page)
    for tab in TABS:
        visit.tab(tab)
        nameless = []
        for node in tools.send("Accessibility.getFullAXTree")["nodes"]:
            role = node.get("role", {}).get("value")
            if node.get("ignored") or role not in NAMED:
                continue
            if not str(node.get("name", {}).get("value", "")).strip():
                told = tools.send("DOM.describeNode", {"backendNodeId": node["backendDOMNodeId"]})
                nameless.append((role, told["node"]["nodeName"], told["node"].get("attributes")))
        assert nameless == [], tab


def test_the_page_has_one_title_headings_in_order_and_a_language(visit: Visit) -> None:
    visit.open(TRAIN)
    assert visit.at("html").get_attribute("lang") == "en"
    assert visit.page.title().startswith("Training gpt3-175b on 64 x a100_sxm")
    for tab in TABS:
        visit.tab(tab)
        levels = visit.script(HEADINGS)
        assert levels.count(1) == 1
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), tab
        for svg in visit.at("svg:visible").all():
            labelled = svg.get_attribute("aria-label") or svg.get_attribute("aria-labelledby")
            assert labelled or svg.get_attribute("aria-hidden") == "true", tab
    for landmark in ("header", "main", "footer"):
        assert visit.at(f"body > {landmark}").count() == 1


def test_changes_are_said_to_those_who_listen(visit: Visit) -> None:
    visit.open(FIRST).press("[data-axis=tp]", "ArrowLeft")
    expect(visit.at("#announcer")).to_contain_text(visit.headline()["time"])
    assert visit.at("#announcer").get_attribute("aria-live") == "polite"

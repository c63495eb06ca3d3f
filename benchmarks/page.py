"""How fast the page is in a real browser, beside the baseline's: load, a slider's step, Plan.

    python benchmarks/page.py [--json]

Each load is by a new visitor, whose browser has nothing of the page yet. Every step of a slider
asks something that was not asked before, so that nothing is remembered; it ends when the new answer
is in the headline, and is painted in the next frame. Servers and browser share the machine's cores.
"""

from __future__ import annotations

import argparse
import json
import re
import runpy
import statistics
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from measuring import Figure, Tables, Tree, as_data, in_turn, show
from playwright.sync_api import Browser, Page, Response, sync_playwright
from serve import served

CHROMIUM = runpy.run_path(str(Path(__file__).parents[1] / "tests" / "chromium.py"))
LOADS = 5
CHANGES = 16
SETTLED = (
    'html[data-ready="1"]:not([data-waiting]):not([data-busy])'
    ":not(:has(.panel:not([hidden]) > .panel-root[data-stale]))"
)
WATCH = """
(() => {
  window.times = {};
  new MutationObserver(() => {
    const now = performance.now();
    if (document.documentElement.dataset.ready) window.times.ready ??= now;
    if (document.getElementById("headline-body")?.dataset.stale) delete window.times.shown;
    else if (!window.times.shown) {
      window.times.shown = now;
      // A task after the next frame: it is painted.
      requestAnimationFrame(() => setTimeout(() => { window.times.painted = performance.now(); }));
    }
  }).observe(document, {
    attributes: true, childList: true, subtree: true, attributeFilter: ["data-ready", "data-stale"],
  });
  addEventListener("keydown", (event) => { window.times.pressed = event.timeStamp; }, true);
})();
"""
ROUNDS: Final = 2
"""Servers of each version, one after the other."""
PLAN: Final = {
    "model": "deepseek-v3",
    "on": "h800_sxm",
    "network": "ib_8x400g",
    "gpus": 2048,
    "tp": 1,
    "ep": 64,
    "pp": 16,
    "phase": "train",
    "batch": 15360,
    "sequence_length": 4096,
    "tab": "plan",
}
FIGURES: Final = {
    "start_s": ("from the command to its line", "s", 1.5),
    "first_ready_s": ("to the first answer of a server just started", "s", None),
    "ready_s": ("from the address to the first answer", "s", 1.0),
    "transfer_mb": ("sent in all for that", "MB", 2.0),
    "change_server_ms": ("a slider's step, computing on the server", "ms", 100.0),
    "change_ms": ("a slider's step, from the key to the answer", "ms", 40.0),
    "painted_ms": ("the same, to the frame that has it", "ms", None),
    "details_ms": ("the same, to advice and panel", "ms", None),
    "plan_s": ("Plan of DeepSeek-V3 on 2,048 GPUs, from click to table", "s", 3.0),
    "moved": ("layout shift of a load", "", 0.1),
}
"""What is measured: in words, its unit, the most it should be."""


def loaded(browser: Browser, address: str) -> dict[str, float]:
    """Return how long a new visitor waits for the first answer, and the bytes sent meanwhile."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.add_init_script(WATCH)
    page.add_init_script(
        """window.moved = 0; new PerformanceObserver((list) => {
             for (const each of list.getEntries()) window.moved += each.value;
           }).observe({ type: "layout-shift", buffered: true });"""
    )
    tools = context.new_cdp_session(page)
    tools.send("Network.enable")
    sizes: list[float] = []
    tools.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.goto(address)
    page.wait_for_selector(SETTLED, state="attached")
    found = {
        "ready_s": page.evaluate("() => window.times.ready") / 1e3,
        "transfer_mb": sum(sizes) / 1e6,
        "moved": page.evaluate("() => window.moved"),
    }
    context.close()
    return found


def changed(page: Page, turn: int) -> dict[str, float]:
    """Return how long it takes from a key on a slider to the new answer."""
    server: list[float] = []

    def noted(response: Response) -> None:
        told = re.search(r"dur=([\d.]+)", response.headers.get("server-timing", ""))
        if response.url.endswith("/api/estimate") and told is not None:
            server.append(float(told.group(1)))

    page.locator("#field-batch").fill(str(48 + 2 * turn))  # even, for two replicas
    page.wait_for_selector(SETTLED, state="attached")
    page.on("response", noted)
    page.locator("[data-axis=tp]").press("ArrowRight" if turn % 2 else "ArrowLeft")
    page.wait_for_selector(SETTLED, state="attached")
    page.remove_listener("response", noted)
    times = page.evaluate("() => ({...window.times, now: performance.now()})")
    return {
        "change_ms": times["shown"] - times["pressed"],
        "painted_ms": times["painted"] - times["pressed"],
        "details_ms": times["now"] - times["pressed"],
        "change_server_ms": server[-1],
    }


def planned(page: Page, address: str) -> float:
    """Return the seconds from a click on Search to the table of the best layouts."""
    page.goto(f"{address}/?{urlencode(PLAN)}")
    page.wait_for_selector(SETTLED, state="attached")
    page.evaluate("() => { window.times.clicked = performance.now(); }")
    page.locator("#plan-start").click()
    page.wait_for_selector("#plan-table tbody tr", timeout=120_000)
    taken: float = page.evaluate("() => performance.now() - window.times.clicked")
    return taken / 1e3


def visited(tree: Tree) -> dict[str, float]:
    """Return all that is measured with one version: medians."""
    with served(tree.environment) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM["found"](), args=list(CHROMIUM["ARGUMENTS"])
        )
        address = f"http://127.0.0.1:{server.port}"
        loads = [loaded(browser, address) for _ in range(LOADS)]
        page = browser.new_page()
        page.add_init_script(WATCH)
        page.goto(address)
        page.wait_for_selector(SETTLED, state="attached")
        changes = [changed(page, turn) for turn in range(CHANGES)]
        plan_s = planned(page, address)
        browser.close()
    first = {"start_s": server.start_s, "first_ready_s": loads[0]["ready_s"], "plan_s": plan_s}
    return {**first, **_medians(loads), **_medians(changes)}


def _medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def tables(rounds: int = ROUNDS) -> Tables:
    """Return all figures, the least of each version's visits."""
    runs: dict[str, list[dict[str, float]]] = {}
    for tree in in_turn(rounds):
        runs.setdefault(tree.name, []).append(visited(tree))
    least = {
        tree: {name: min(row[name] for row in rows) for name in FIGURES}
        for tree, rows in runs.items()
    }
    before = least.get("before", {})
    figures = [
        Figure(words, least["now"][name], unit, before=before.get(name), most=most)
        for name, (words, unit, most) in FIGURES.items()
    ]
    return {"The page, in Chromium": figures}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if CHROMIUM["found"]() is None:
        parser.error("no Chromium: `make browser` installs one where that may be done")
    found = tables()
    if given.json:
        print(json.dumps(as_data(found), indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()

"""The page in a real browser: a server, a browser, and visits that notice whatever goes wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import urlencode

import chromium
import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Request,
    expect,
    sync_playwright,
)

PATIENCE_MS = 20_000
expect.set_options(timeout=PATIENCE_MS)  # a busy machine is no fault of the page

SIZES = {"wide": (1400, 900), "tablet": (768, 1024), "phone": (390, 844)}
TABS = ("timeline", "scaling", "collective", "ring", "roofline", "memory", "load", "plan")
FIRST = {
    "model": "llama3-70b",
    "on": "h100_sxm",
    "gpus": 8,
    "tp": 8,
    "phase": "decode",
    "batch": 64,
    "context_tokens": 4096,
}
"""What the page asks when nobody has asked anything else."""

# The page says itself when it waits for nothing; one selector, so that no moment lies between.
SETTLED = (
    'html[data-ready="1"]:not([data-waiting]):not([data-busy])'
    ":not(:has(.panel:not([hidden]) > .panel-root[data-stale]:not([data-failed])))"
)
_REFUSED = re.compile(r"Failed to load resource: the server responded with a status of (\d+)")
_MOVES = """
(() => {
  window.moved = 0;
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) window.moved += each.value;
  }).observe({ type: "layout-shift", buffered: true });
  window.violations = [];
  document.addEventListener("securitypolicyviolation", (event) => {
    window.violations.push(`${event.violatedDirective} ${event.blockedURI}`);
  });
})();
"""


@contextmanager
def serving() -> Iterator[str]:
    """Run a server on a free port; its address."""
    words = [sys.executable, "-m", "shardcost", "serve", "--port", "0", "--no-open"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://[\w.:]+", line)
        try:
            assert found is not None, line
            yield found.group()
        finally:
            process.terminate()


@contextmanager
def browsing() -> Iterator[Browser]:
    """Run the browser; skip, or fail where one is required, if there is none."""
    path = chromium.found()
    if path is None:
        words = f"no browser: none of {', '.join(chromium.NAMES)} is installed"
        if chromium.is_required():
            pytest.fail(words)
        pytest.skip(words)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(chromium.ARGUMENTS))
        yield browser
        browser.close()


class Visit:
    """A page in a browser, with what went wrong on it.

    Args:
        context: A context of its own, as another person's browser would be.
        address: The server's.
    """

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.address = address
        self.context = context
        self.refusals: set[int] = set()
        """Answers other than 200 that the test asks for."""
        self.unreachable = False
        """Whether the test keeps the server from being reached."""
        self.wrong: list[str] = []
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(_MOVES)
        self.page = context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("requestfailed", self._request_failed)

    def _console(self, message: ConsoleMessage) -> None:
        if self.unreachable and "net::ERR_CONNECTION_REFUSED" in message.text:
            return
        refused = _REFUSED.search(message.text)
        if refused is not None and int(refused.group(1)) in self.refusals:
            return
        if message.type in {"error", "warning"}:
            self.wrong.append(f"console: {message.text} ({message.location.get('url')})")

    def _request_failed(self, request: Request) -> None:
        # A question that was overtaken by a newer one ends so; nothing else may.
        if request.failure != "net::ERR_ABORTED" and not self.unreachable:
            self.wrong.append(f"request: {request.url}: {request.failure}")

    def open(self, ask: dict[str, Any] | None = None, fragment: str = "", **more: Any) -> Visit:
        """Open the page on a question, and wait for its answer."""
        asked = {**(ask or {}), **more}
        query = f"?{urlencode(asked)}" if asked else ""
        return self.go(f"{self.address}/{query}{fragment}")

    def go(self, url: str) -> Visit:
        """Open an address, and wait for the answer."""
        self.page.goto("about:blank")  # a fragment alone would not load the page anew
        self.page.goto(url)
        return self.settle()

    def settle(self) -> Visit:
        """Wait until the page waits for nothing."""
        self.page.wait_for_selector(SETTLED, state="attached")
        return self

    def at(self, selector: str) -> Locator:
        """Return what a selector finds."""
        return self.page.locator(selector)

    def text(self, selector: str) -> str:
        """Return the text of one element, its white space as one sees it."""
        return " ".join(self.at(selector).inner_text().split())

    def texts(self, selector: str) -> list[str]:
        """Return the texts of several elements."""
        return [" ".join(each.split()) for each in self.at(selector).all_inner_texts()]

    def click(self, selector: str) -> Visit:
        """Click, and wait for what follows."""
        self.at(selector).click()
        return self.settle()

    def press(self, selector: str, key: str) -> Visit:
        """Press a key on an element, and wait for what follows."""
        self.at(selector).press(key)
        return self.settle()

    def tab(self, name: str) -> Visit:
        """Open a tab, and wait for its picture."""
        return self.click(f"#tab-{name}")

    def value(self, axis: str) -> int:
        """Return what a slider stands at."""
        return int(self.at(f"[data-axis={axis}]").get_attribute("data-value") or "")

    def headline(self) -> dict[str, Any]:
        """Return everything that the headline says, as texts."""
        tiles = self.at("#headline-tiles .tile").all()
        return {
            "title": self.text("#headline-title"),
            "details": self.text("#headline-details"),
            "time": self.text("#headline-time"),
            "interval": self.text("#headline-interval"),
            "tiles": {
                each.get_attribute("data-tile"): each.locator(".value").inner_text()
                for each in tiles
            },
            "parts": self.parts(),
            "memory": self.text("#memory-total"),
            "kinds": self.texts("#memory-legend li"),
        }

    def parts(self) -> list[list[str]]:
        """Return the parts of the time: name, time, share."""
        found = self.script(
            """() => [...document.querySelectorAll("#time-legend li")].map((each) => {
              const number = each.querySelector('[data-why^="parts."]');
              const share = each.querySelector(".share").textContent;
              const name = each.querySelector(".what").firstChild.textContent;
              return [name, number.textContent, share];
            })"""
        )
        return [list(map(str, each)) for each in found]

    def script(self, words: str, argument: Any = None) -> Any:
        """Return what a function says on the page."""
        return self.page.evaluate(words, argument)

    def moved(self) -> float:
        """Return how far things have jumped since the last time that this was asked."""
        found: float = self.script(
            "() => { const sum = window.moved; window.moved = 0; return sum; }"
        )
        return found

    def drop(self, name: str, content: str) -> Visit:
        """Drop a file on the page, and wait until it has been read."""
        made = self.page.evaluate_handle(
            """([name, content]) => {
              const held = new DataTransfer();
              held.items.add(new File([content], name));
              return held;
            }""",
            [name, content],
        )
        for event in ("dragenter", "dragover", "drop"):
            self.page.dispatch_event("#headline", event, {"dataTransfer": made})
        return self.told_of_file()

    def told_of_file(self) -> Visit:
        """Wait until the page says what a file means, or what is wrong with it."""
        self.page.wait_for_selector("#drop-message > :not(.hint)")
        return self.settle()

    def end(self) -> None:
        """Close it; fail if anything went wrong that was not asked for."""
        if not self.page.is_closed() and self.page.url.startswith("http"):
            self.wrong += [f"policy: {each}" for each in self.script("() => window.violations")]
        self.context.close()
        assert not self.wrong, "\n".join(self.wrong)


class Visits:
    """Makes visits, and ends them all."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.browser = browser
        self.address = address
        self.made: list[Visit] = []

    def __call__(
        self,
        size: str = "wide",
        *,
        theme: Literal["light", "dark"] = "light",
        motion: Literal["no-preference", "reduce"] = "reduce",
        touch: bool = False,
    ) -> Visit:
        """Return a visit by somebody new."""
        width, height = SIZES[size]
        context = self.browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            reduced_motion=motion,
            has_touch=touch,
        )
        self.made.append(Visit(context, self.address))
        return self.made[-1]

    def end(self) -> None:
        """End every visit."""
        for each in self.made:
            each.end()

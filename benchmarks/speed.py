"""All figures of speed, and the page that states them.

    python benchmarks/speed.py                          # print
    python benchmarks/speed.py --page docs/speed.md     # write them into the page
    python benchmarks/speed.py --only start estimate    # some of them
    python benchmarks/speed.py --llm-analysis PYTHON --aiconfigurator PYTHON --calculon CHECKOUT

A page has the place of each table between two comments, ``<!-- speed: NAME -->`` and
``<!-- end -->``; what stands there is replaced, so that no figure is typed by hand. All of it takes
about half an hour.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Final

import estimate
import footprint
import search
from measuring import ROOT, ROUNDS, Figure, Tables, as_markdown, baseline


def machine(_: argparse.Namespace) -> str:
    """Return what was measured where."""
    commit = _output("git", "describe", "--always", "--dirty", "--exclude", "*") or "an sdist"
    before = baseline()
    against = f" against `{before.source.name.rpartition('-')[2]}`" if before else ""
    model = re.search(r"model name\s*: (.+)", _text("/proc/cpuinfo"))
    cpu = model.group(1).strip() if model else platform.processor() or platform.machine()
    python = f"Python {platform.python_version()}, NumPy {version('numpy')}"
    return f"Measured: `{commit}`{against}, on {os.cpu_count()} cores ({cpu}), {python}."


def _output(*words: str) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _text(path: str) -> str:
    place = Path(path)
    return place.read_text() if place.is_file() else ""


def growth(_: argparse.Namespace) -> str:
    """Return how the cost of a search grows."""
    lines = [
        "| training | layouts, million | possible | feasible | skipped | pruned | exhaustive | |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in search.grown():
        share = each.skipped / each.feasible if each.feasible else 0.0
        counts = f"{each.possible:,} | {each.feasible:,} | {share:.0%}"
        counts = f"{each.layouts / 1e6:.2f} | {counts}"
        seconds = f"{each.seconds:.2f} s | {each.exhaustive_s:.2f} s"
        lines.append(
            f"| {each.name} | {counts} | {seconds} | {each.exhaustive_s / each.seconds:.1f} x |"
        )
    return "\n".join(lines)


def peers(options: argparse.Namespace) -> str:
    """Return what other tools do in the same run."""
    lines = [
        "| tool | layouts/s | ours one by one | ratio | ours in a search, possible | ratio |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for each in search.peers_given(options):
        if each.failure:
            lines.append(f"| {each.name} | {each.failure} | | | | |")
            continue
        ratios = " | ".join(
            f"{each.ours[what]:,.0f} | {each.ours[what] / each.per_s:,.1f} x"
            for what in ("one by one", "search, possible")
        )
        own = f" ({each.seconds:.1f} s; ours {each.ours_s:.2f} s)" if each.ours_s else ""
        lines.append(f"| {each.name}: {each.asked}{own} | {each.per_s:,.0f} | {ratios} |")
    return "\n".join(lines)


def start(_: argparse.Namespace) -> str:
    """Return how long processes take to start."""
    return as_markdown(_all(footprint.tables()))


def page(_: argparse.Namespace) -> str:
    """Return how fast the page is; where there is no browser, a line on it."""
    try:
        import page as browser  # noqa: PLC0415
    except ImportError as error:
        return f"Not measured: {error}."
    if browser.CHROMIUM["found"]() is None:
        return "Not measured: no Chromium."
    return as_markdown(_all(browser.tables()))


def _all(tables: Tables) -> list[Figure]:
    return [each for figures in tables.values() for each in figures]


SECTIONS: Final[dict[str, Callable[[argparse.Namespace], str]]] = {
    "machine": machine,
    "plans": lambda _: as_markdown(search.plan_figures(ROUNDS)),
    "rates": lambda _: as_markdown(search.rate_figures(ROUNDS)),
    "growth": growth,
    "memory": lambda _: as_markdown(search.sweep_figures()),
    "exactness": lambda _: as_markdown(search.exactness_figures()),
    "estimate": lambda _: as_markdown(_all(estimate.tables())),
    "start": start,
    "page": page,
    "peers": peers,
}
"""The tables of the page, by the names of their places."""


def written(text: str, name: str, table: str) -> str:
    """Return a page with one of its tables replaced."""
    place = re.compile(rf"(<!-- speed: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not place.search(text):
        raise SystemExit(f"the page has no place for {name}: <!-- speed: {name} --> … <!-- end -->")
    return place.sub(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", text, count=1)


def main() -> None:
    """Measure, and print the tables or write them into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", type=Path, help="the page to write them into")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    search.peer_options(parser)
    options = parser.parse_args()
    for name in options.only:
        table = SECTIONS[name](options)
        if options.page is None:
            print(f"\n{name}\n\n{table}", flush=True)
            continue
        text = written(options.page.read_text(encoding="utf-8"), name, table)
        options.page.write_text(text, encoding="utf-8")
        print(f"{name}: written", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

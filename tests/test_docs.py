"""The documentation runs: every ``$ shardcost …`` block prints exactly what the page shows.

(Only how fast a search was may differ. The ``>>>`` examples of every page and module run as
doctests by pytest itself.)
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from console_blocks import BLOCK, PAGES, ROOT, as_shown, commands, folder_in, output_of

from shardcost import Model, catalog
from shardcost.collectives import COLLECTIVES
from shardcost.collectives.exact.algorithms import ALGORITHMS
from shardcost.formats.hf_fields import families
from shardcost.machine.libraries import catalog_calibrations

SPEED = re.compile(r"[\d.]+ s, [\d,]+ layouts/s|(?<=simulations; )[\d.]+ s")
"""How fast a search was: the one figure of an output that differs from run to run."""


RUNNABLE = [
    pytest.param(runnable, id=f"{page.name}: {runnable[0][0]}")
    for page in PAGES
    for block in BLOCK.findall(page.read_text())
    if (runnable := [each for each in commands(block) if each[0].startswith("shardcost ")])
]
"""Of each block its commands, with what they print: later ones may use files of earlier ones."""


def test_there_are_examples() -> None:
    assert len(RUNNABLE) >= 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_in(tmp_path_factory.mktemp("docs"))


@pytest.mark.parametrize("block", RUNNABLE)
def test_console_blocks_show_real_output(
    block: list[tuple[str, str]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(folder)
    for command, output in block:
        assert SPEED.sub("", as_shown(output_of(command), output)) == SPEED.sub("", output), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


LABEL = re.compile(r"([A-Za-z+][\w+ %/-]{1,20}?)  +\S")
"""What a line of a report begins with."""


def test_the_glossary_has_the_words_that_reports_are_labelled_with() -> None:
    known = (ROOT / "docs" / "glossary.md").read_text().lower()
    labels = set()
    for name in ("README.md", "docs/tutorial.md", "docs/runs.md", "docs/load.md", "docs/search.md"):
        for block in BLOCK.findall((ROOT / name).read_text()):
            for command, shown in commands(block):
                if "--why" not in command:
                    labels |= {
                        match[1].lower() for match in map(LABEL.match, shown.split("\n")) if match
                    }
    assert len(labels) > 40
    labels -= {"command", "where the time goes"}  # plain English
    assert [each for each in labels if each not in known and each.split()[-1] not in known] == []


def test_the_readme_counts_the_catalog_right() -> None:
    models, clusters, networks = (
        len(catalog.names(shelf)) for shelf in ("models", "clusters", "networks")
    )
    counts = f"{models} models, {clusters} clusters and {networks} networks"
    assert counts in (ROOT / "README.md").read_text()
    assert counts in (ROOT / "CHANGELOG.md").read_text()


def test_the_page_of_models_is_complete() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    compared = len(json.loads((ROOT / "tests" / "data" / "hf_tiny.json").read_text())["models"])
    assert f"For the {compared} small configurations" in page
    assert f"{len(families())} model types" in (ROOT / "CHANGELOG.md").read_text()
    for model_type in families():
        assert f"`{model_type}`" in page
    for name in catalog.names("models"):
        model = Model.named(name)
        assert f"| {name} | {model.parameters / 1e9:,.2f}B |" in page


def test_the_changelog_counts_the_algorithms_right() -> None:
    assert len(COLLECTIVES) == 7
    assert (
        f"{len(ALGORITHMS)} algorithms of seven collectives" in (ROOT / "CHANGELOG.md").read_text()
    )


def test_every_data_set_behind_a_constant_is_attributed() -> None:
    page = (ROOT / "docs" / "collectives.md").read_text()
    table = page.partition("## Where the measurements come from")[2]
    known = tuple(name.removesuffix("…") for name in re.findall(r"`([^`]+)`", table))
    for calibration in catalog_calibrations():
        if calibration.fit.rows == 0:
            continue  # assumed
        sets = calibration.fit.source.partition("measured rows of ")[2].split(", ")
        assert sets
        for name in sets:
            assert name.startswith(known), name


def test_caches_are_few_and_say_why_they_pay() -> None:
    """Values are passed along; a function cache is an exception with a reason beside it."""
    caches = [
        (path.name, before, line)
        for path in (ROOT / "src" / "shardcost").rglob("*.py")
        for before, line in pairwise(path.read_text().splitlines())
        if re.search(r"@cache\b|\blru_cache\(", line)
    ]
    assert [name for name, before, line in caches if "#" not in before + line] == []
    assert len(caches) <= 16

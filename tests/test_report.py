"""The page to hand on: one valid file that loads nothing, with the numbers of the command."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import estimated
from running import run_error, run_json, run_text

import shardcost
from shardcost import (
    BadTypeError,
    Cluster,
    Decode,
    Estimate,
    Layout,
    Model,
    Prefill,
    Train,
    estimate,
)
from shardcost.collectives.library_time import collective_time
from shardcost.estimate.explain import explanation
from shardcost.estimate.messages import messages
from shardcost.estimate.scaling import tensor_scaling
from shardcost.machine.libraries import MULTIMEM
from shardcost.report.command import command_of, python_of
from shardcost.report.estimate import (
    as_remarks,
    details,
    figures,
    foundations,
    parts,
    title,
)
from shardcost.report.html import as_html
from shardcost.report.markup import element, escaped, linked, visible
from shardcost.report.pictures import Sketch, inline
from shardcost.search.advice import advice
from shardcost.search.review import review
from shardcost.units import format_bytes, format_time
from shardcost.validate.shipped import points_like

NODES = Cluster.named("h100_sxm", "ib_8x400g")
REPORTED = ["decode", "prefill", "decode, one GPU", "train, interleaved", "train, experts"]
ASK = "report llama3-8b --on h100_sxm --tp 2 --decode --batch 8 --context-tokens 1024".split()
VOID = {"meta", "br", "link", "img", "hr", "input"}
HOSTILE = "<script>alert(1)</script>\"'&$x_{ \x1b"


class Page(HTMLParser):
    """A page taken apart, its elements balanced."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.drawn: list[str] = []
        self.wrong: list[str] = []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element that opens."""
        self.tags.append((tag, dict(attrs)))
        if len({name for name, _ in attrs}) != len(attrs):
            self.wrong.append(f"<{tag}> has an attribute twice")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element that is empty; only pictures may write it so."""
        if "svg" not in self.open:
            self.wrong.append(f"<{tag}/> outside a picture")
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Hold an end against what is open."""
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        """Note words, of the page or of a picture."""
        if "svg" in self.open:
            self.drawn.append(data)
        elif "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        """All words of the page, those of pictures apart."""
        return " ".join(" ".join(self.words).split())

    def values(self, attribute: str) -> list[str]:
        """Return every value of an attribute."""
        return [found for _, each in self.tags if (found := each.get(attribute)) is not None]


def page_of(found: Estimate, caveats: Sequence[str] = ()) -> str:
    """Return the page of an estimate as the command writes it."""
    whole = review(found)
    points = points_like(whole.heaviest.curve) if whole.heaviest else ()
    return as_html(whole, points, caveats)


@pytest.fixture(scope="module", params=REPORTED)
def made(request: pytest.FixtureRequest) -> tuple[Estimate, str]:
    found = estimated(request.param)
    return found, page_of(found, ["a note on a file"])


def test_the_page_is_valid_and_stands_alone(made: tuple[Estimate, str]) -> None:
    _, content = made
    assert content.startswith('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">')
    page = Page(content)
    assert page.wrong == []
    assert page.open == []
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert not [name for _, each in page.tags for name in each if name.startswith("on")]
    assert page.values("src") == []
    for tag, each in page.tags:
        target = each.get("href") or each.get("xlink:href")
        if target is not None and tag != "a":
            assert target.startswith("#")
        if target is not None and target.startswith("#"):
            assert target[1:] in ids
        elif target is not None:
            assert target.startswith(("https://", "http://"))
    for used in re.findall(r"url\(([^)]*)\)", content):
        assert used[0] == "#"
        assert used[1:] in ids
    assert "@import" not in content
    assert len(content.encode()) < 1.5e6


def test_headings_tables_and_pictures_can_be_read_aloud(made: tuple[Estimate, str]) -> None:
    found, content = made
    page = Page(content)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= before + 1 for before, later in pairwise(levels))
    assert all(each.get("scope") in {"row", "col"} for tag, each in page.tags if tag == "th")
    tables = [tag for tag, _ in page.tags if tag in {"table", "caption"}]
    assert tables == ["table", "caption"] * (len(tables) // 2)
    pictures = [each for tag, each in page.tags if tag == "svg"]
    assert all(each["role"] == "img" and each["aria-label"] for each in pictures)
    alone = found.devices == 1
    assert len(pictures) == (4 if alone else 6)
    boxes = [each for _, each in page.tags if each.get("class") == "scroll"]
    assert all(each["tabindex"] == "0" and each["aria-label"] for each in boxes)


def test_the_texts_are_those_of_the_command(made: tuple[Estimate, str]) -> None:
    found, content = made
    page = Page(content)
    said = page.text
    assert title(found) in said
    assert details(found) in said
    told = dict(figures(found))
    rates = [each.partition(" tokens/s") for each in told.pop(next(iter(told))).split(", ")]
    assert all(f"tokens/s{unit} {value}" in said for value, cut, unit in rates if cut)
    between = told.pop("interval").partition(" (")[0]
    assert f"{format_time(found.time_s)} {between}" in said
    assert all(line in said for line in (*told.values(), *dict(foundations(found)).values()))
    for part in parts(found):
        assert " ".join(filter(None, part.cells)) in said
    for remark in as_remarks(found.caveats, ["a note on a file"], every=True):
        assert remark in said
    assert "Note: a note on a file" in said
    for line in explanation(found, 10**9).splitlines():
        assert line.replace(": ", " ", 1) in said
    assert command_of(found) in said
    assert " ".join(python_of(found).split()) in said
    assert f"shardcost {shardcost.__version__}" in said
    known = advice(found.model, found.cluster, found.layout, found.workload, found.software)
    assert known.limit.words in said
    assert known.change is None or known.change.words in said
    held = format_bytes(found.memory_bytes)
    assert f"{held} of {format_bytes(found.cluster.device.memory_bytes)}" in said


def test_groups_messages_stages_and_sources_are_listed(made: tuple[Estimate, str]) -> None:
    found, content = made
    said = Page(content).text
    for group, seconds in found.comm_s.items():
        if seconds > 0:
            line = (seconds, found.exposed_s[group], found.hidden_s[group])
            assert f"{group.upper()} {' '.join(map(format_time, line))}" in said
    for each in messages(found):
        group, size = each.group.upper(), format_bytes(each.size_bytes)
        assert f"{each.collective} {each.name} {group} {size}" in said
    for held in found.memory.stages.values():
        moment = f" {held.moment}" * isinstance(found.workload, Train)
        assert f"{format_bytes(held.total)}{moment}" in said
    assert found.model.source in said
    assert "median error" in said
    assert found.cluster.device.memory_bytes
    heaviest = messages(found)[:1]
    assert ("The diamond is this layout's message" in said) == bool(heaviest)
    assert all(f"this layout: {format_bytes(one.size_bytes)}" in content for one in heaviest)


@pytest.mark.parametrize("name", [name for name in REPORTED if name != "decode, one GPU"])
def test_the_message_stands_on_its_curve(name: str) -> None:
    found = estimated(name)
    most = messages(found)[0]
    place = (found.cluster, most.ranks, most.nodes)
    on_curve = collective_time(most.collective, most.size_bytes, *place, library=most.library)
    assert on_curve.time_s == pytest.approx(most.time_s)


def test_what_a_library_does_not_run_is_said_to_stand_off_its_curve() -> None:
    work = Prefill(batch=8, prompt_tokens=4096)
    found = estimate("llama3-70b", "h100_sxm", Layout(tp=8), work, software="tokenweave")
    assert messages(found)[0].library == MULTIMEM
    assert f"{MULTIMEM}; the curve is of another library" in Page(page_of(found)).text


def test_several_tokens_a_step_have_both_times() -> None:
    work = Decode(batch=8, context_tokens=1024, new_tokens=4)
    found = estimate("llama3-8b", "h100_sxm", Layout(), work)
    said = Page(page_of(found)).text
    assert f"TPOT {format_time(found.tpot_s)}" in said
    assert f"step {format_time(found.time_s)}" in said


def test_the_same_estimate_gives_the_same_page() -> None:
    found = estimated("decode, one GPU")
    assert page_of(found) == page_of(found)


def test_measured_points_are_drawn_where_they_ship() -> None:
    work = Decode(batch=64, context_tokens=4096)
    page = page_of(estimate("llama3-70b", "b300_sxm", Layout(tp=8), work, software="megatron_core"))
    assert "measured: oci_b300_all_reduce_8" in page
    assert "measurements that ship with shardcost" in page


def test_a_timeline_that_is_cut_says_so() -> None:
    layout = Layout(tp=8, pp=8, dp=1, virtual_stages=2, schedule="interleaved", zero=1)
    work = Train(global_batch=2048, sequence_length=1024)
    found = estimate("llama3-70b", NODES, layout, work)
    said = Page(page_of(found)).text
    assert "Not drawn completely: " in said


def test_many_layouts_are_refused_in_one_line() -> None:
    work = Decode(batch=8, context_tokens=1024)
    found = estimate("llama3-8b", "h100_sxm", Layout(tp=np.array([1, 2])), work)
    with pytest.raises(BadTypeError, match="one layout, not an array of them"):
        page_of(found)


def test_no_text_of_a_file_becomes_markup() -> None:
    model = replace(Model.named("llama3-8b"), name=HOSTILE, source=f"{HOSTILE} https://x.org/<b>")
    found = estimate(model, "h100_sxm", Layout(tp=2), Decode(batch=8, context_tokens=1024))
    content = page_of(found, [HOSTILE])
    page = Page(content)
    assert page.wrong == []
    assert not {"script", "b"} & {tag for tag, _ in page.tags}
    assert "<script" not in content
    assert "\x1b" not in content
    assert visible(HOSTILE) in page.text


def test_a_hostile_config_is_reported_by_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {
        "_name_or_path": "<script>alert(1)<script>",
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_attention_heads": 32,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
    }
    folder = tmp_path / "<script>alert(1)<"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    file = tmp_path / "page.html"
    words = "--on h100_sxm --tp 2 --decode --batch 8 --context-tokens 1024 -o".split()
    run_text(capsys, "report", str(folder), *words, str(file))
    content = file.read_text()
    page = Page(content)
    assert page.wrong == []
    assert "<script" not in content
    assert "script" not in {tag for tag, _ in page.tags}
    assert "<script>alert(1)<" in page.text


def test_the_command_writes_the_page_and_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    assert run_text(capsys, *ASK, "-o", str(file)) == f"Report: {file}\n"
    found = estimate("llama3-8b", "h100_sxm", Layout(tp=2), Decode(batch=8, context_tokens=1024))
    assert file.read_text() == page_of(found)
    document = run_json(capsys, *ASK, "--output", str(file))
    assert document == {
        "file": str(file),
        "bytes": file.stat().st_size,
        "title": title(found),
    }
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (("-o", "page.htm"), "ends in .html"),
        (("-o", ""), "ends in .html"),
        ((), "-o/--output"),
        (("-o", "missing/page.html"), "cannot be written: No such file"),
        (("-o", "page.html", "--vary", "tp=1,2"), "--vary"),
        (("-o", "page.html", "--tp", "3"), "tp"),
        (("-o", "page.html", "--gpus", "3"), "--gpus"),
    ],
)
def test_what_cannot_be_written_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: tuple[str, ...],
    rule: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert rule in run_error(capsys, *ASK, *change)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_page_whole(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    file = tmp_path / "report.html"
    file.write_text("old")
    monkeypatch.setattr(Path, "replace", full)
    assert "No space left" in run_error(capsys, *ASK, "-o", str(file))
    assert file.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_without_matplotlib_the_error_says_what_to_install(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = run_error(capsys, *ASK, "-o", str(tmp_path / "report.html"))
    assert "needs matplotlib: pip install 'shardcost[plot]'" in said
    assert list(tmp_path.iterdir()) == []


def test_texts_are_escaped_and_markup_is_not() -> None:
    bold = element("b", "<&>")
    assert bold == "<b>&lt;&amp;&gt;</b>"
    assert element("p", bold, title="\"'") == ('<p title="&quot;&#x27;"><b>&lt;&amp;&gt;</b></p>')
    assert escaped(bold) is bold
    assert linked('<a> https://x.org/?q="b".') == (
        '&lt;a&gt; <a href="https://x.org/?q=" rel="noreferrer">https://x.org/?q=</a>&quot;b&quot;.'
    )
    assert visible("a\nb\u202e\udc80") == "a\nb\ufffd\ufffd"


def test_pictures_on_one_page_share_no_ids() -> None:
    def fill(figure: Any) -> None:
        axes = figure.subplots()
        axes.bar([1, 2], [1, 2], hatch="//")
        axes.set_title("a <b> & \x07")

    sketch = Sketch(fill, (3, 2), "left out")
    one, two = (Page(inline(sketch, name, "a <label>", "")) for name in ("one", "two"))
    assert one.values("id")
    assert not set(one.values("id")) & set(two.values("id"))
    assert "left out" not in one.drawn
    assert one.values("aria-label") == ["a <label>"]
    assert one.wrong == two.wrong == []


def test_tensor_parallelism_varies_at_the_same_gpus() -> None:
    found = estimated("train, interleaved")
    curve = tensor_scaling(found)
    assert [row.value for row in curve.rows] == ["1", "2", "4", "8", "16"]
    for row in curve.rows:
        assert row.found is None or row.found.devices == found.devices
    assert curve.rows[3].found is found
    odd = estimate("llama3-8b", "h100_sxm", Layout(dp=6), Decode(batch=6, context_tokens=64))
    assert [row.value for row in tensor_scaling(odd).rows] == ["1", "2"]
    rejected = estimate("llama3-8b", "h100_sxm", Layout(tp=8), Decode(batch=1, context_tokens=64))
    assert "dp" in tensor_scaling(rejected).rows[0].impossible

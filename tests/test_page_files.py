"""What goes into the page and out of it: dropped files, good and bad, and every export."""

from __future__ import annotations

import csv
import json
import re
import shlex
import struct
from collections.abc import Iterator
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browsing import FIRST, TABS, Visit
from playwright.sync_api import Download, expect
from running import run_json, run_text

TRAIN = {
    "model": "llama3-8b",
    "on": "h100_sxm",
    "gpus": 8,
    "tp": 2,
    "pp": 2,
    "phase": "train",
    "batch": 32,
    "sequence_length": 4096,
}
TRAIN_WORDS = (
    "llama3-8b --on h100_sxm --gpus 8 --tp 2 --pp 2 --train --batch 32 --sequence-length 4096"
).split()
FIRST_WORDS = (
    "llama3-70b --on h100_sxm --gpus 8 --tp 8 --decode --batch 64 --context-tokens 4096"
).split()


def content(download: Download) -> bytes:
    """Return what was saved."""
    return Path(download.path()).read_bytes()


def exported(visit: Visit, kind: str) -> Download:
    """Choose a format in the page's menu."""
    visit.at("#export-menu summary").click()
    with visit.page.expect_download() as found:
        visit.at(f"[data-export={kind}]").click()
    visit.settle()
    return found.value


def boxes(visit: Visit, tab: str) -> list[Any]:
    """Return where a tab's pictures are, once two looks see them at the same places."""
    visit.settle()
    before: list[Any] = []
    for _ in range(100):
        now = [each.bounding_box() for each in visit.at(f"#root-{tab} svg.chart:visible").all()]
        if now and now == before:
            return now
        before = now
        visit.page.wait_for_timeout(200)
    pytest.fail(f"the pictures of {tab} keep moving: {before}")


def saved(visit: Visit, tab: str, kind: str) -> list[Download]:
    """Save a tab's pictures or rows."""
    expected = visit.at(f"#root-{tab} svg.chart:visible").count() if kind != "csv" else 1
    visit.at(f"#save-{tab} summary").click()
    found: list[Download] = []

    def is_last(download: Download) -> bool:
        found.append(download)
        return len(found) == expected

    with visit.page.expect_download(is_last):
        visit.at(f"#save-{tab} [data-save={kind}]").click()
    return found


# ------------------------------------------------------------------------------ bad files

BAD_FILES = {
    "garbage": ("noise.bin", bytes(range(256)).decode("latin-1") * 40),
    "empty": ("empty.txt", ""),
    "half of a JSON": ("config.json", '{"model_type": "llama", "hidden_size": '),
    "deep JSON": ("config.json", "[" * 100_000),
    "a list": ("config.json", "[1, 2, 3]"),
    "no numbers": ("config.json", '{"model_type": "llama", "hidden_size": NaN}'),
    "markup": (
        "<img src=x onerror=alert(1)>.json",
        '{"model_type": "<img src=x onerror=alert(1)>", "hidden_size": 8}',
    ),
    "huge layers": (
        "config.json",
        '{"model_type": "llama", "hidden_size": 1e308, "num_hidden_layers": 99999999999999}',
    ),
}


def test_a_bad_file_is_told_in_one_line_and_changes_nothing(visit: Visit) -> None:
    visit.refusals = {422}
    visit.page.on("dialog", lambda _: pytest.fail("a file's text was run"))
    visit.open()
    before = (visit.headline(), visit.page.url)
    for name, (file, text) in BAD_FILES.items():
        visit.drop(file, text)
        message = visit.text("#drop-message")
        assert "failed" in (visit.at("#drop-message").get_attribute("class") or ""), name
        assert visit.at("#drop-message p").count() == 1, name
        assert 10 < len(message) < 500, (name, message)
        assert visit.at("#file-use").is_hidden(), name
        assert visit.at("#drop-message img").count() == 0, name
        visit.page.keyboard.press("Escape")
        expect(visit.at("#file-dialog")).to_be_hidden()
    assert (visit.headline(), visit.page.url) == before


def test_a_file_that_is_too_large_is_refused(visit: Visit, tmp_path: Path) -> None:
    visit.refusals = {413}
    visit.open().at("#open-file").click()
    for megabytes in (17, 65):
        large = tmp_path / f"large-{megabytes}.txt"
        with large.open("wb") as file:
            file.truncate(megabytes * 2**20)
        visit.at("#file-input").set_input_files(large)
        visit.told_of_file()
        expect(visit.at("#drop-message.failed")).to_contain_text(re.compile("MiB|large"))
        assert visit.at("#file-use").is_hidden()


# ----------------------------------------------------------------------------- good files


def test_a_log_of_nccl_tests_makes_the_machine_its_own(visit: Visit, repository: Path) -> None:
    log = repository / "docs/examples/all_reduce-8.txt"
    visit.open().drop(log.name, log.read_text())
    said = visit.text("#drop-message")
    assert "all_reduce on 8 GPUs" in said
    assert "462.8 GB/s" in said
    assert "“Use it” takes h200_sxm, calibrated on 6 measured points." in said
    before = visit.headline()["time"]
    visit.click("#file-use")
    assert visit.at("#file-dialog").is_hidden()
    assert visit.headline()["time"] != before
    name = "h200_sxm-calibrated-on-all_reduce-8.txt"
    assert visit.at("#on option:checked").inner_text() == name
    assert f" on 8 x {name}, " in visit.headline()["title"]
    # Its collective is the fitted one.
    visit.tab("collective")
    assert visit.at("#root-collective svg.chart:visible").count() >= 1


def test_a_log_without_gpu_names_is_of_the_page_s_machine_or_another(
    visit: Visit, repository: Path
) -> None:
    text = (repository / "docs/examples/all_reduce-8.txt").read_text()
    bare = "\n".join(line for line in text.splitlines() if "NVIDIA" not in line)
    visit.open().drop("bare.txt", bare)
    said = visit.text("#file-words")
    assert said.startswith("Cannot be used yet: it does not say on which GPUs it was measured")
    assert "--" not in visit.text("#drop-message pre")
    assert visit.at("#file-on").input_value() == "h100_sxm"
    assert visit.at("#file-network").input_value() == "ib_8x400g"
    visit.at("#file-on").select_option("h200_sxm")
    assert visit.text("#file-use") == "Calibrate"
    visit.at("#file-use").click()
    expect(visit.at("#file-use")).to_have_text("Use it")
    assert "Verdict: fine" in visit.text("#drop-message pre")  # now that the machine is known
    assert "Median error of nccl:" in visit.text("#file-words")
    visit.click("#file-use")
    expect(visit.at("#file-dialog")).to_be_hidden()
    assert " on 8 x h200_sxm-calibrated-on-bare.txt, " in visit.headline()["title"]


def test_a_topology_names_the_machine_and_its_network(visit: Visit, repository: Path) -> None:
    matrix = repository / "docs/examples/topo-8.txt"
    visit.open({**FIRST, "on": "a100_sxm"}).at("#paste-profile").click()
    visit.at("#file-input").set_input_files(matrix)
    visit.told_of_file()
    assert "takes h100_sxm with ib_8x400g as the machine" in visit.text("#drop-message")
    visit.click("#file-use")
    assert visit.at("#on").input_value() == "h100_sxm"
    assert visit.at("#network").input_value() == "ib_8x400g"
    assert "h100_sxm (ib_8x400g)" in visit.headline()["title"]


def test_a_config_is_the_model_under_its_own_name(
    visit: Visit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "_name_or_path": "someone/small <b>llama<b>",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    visit.open().drop("config.json", json.dumps(config))
    visit.click("#file-use")
    words = [str(tmp_path / "config.json"), *FIRST_WORDS[1:]]
    assert "small <b>llama<b>" in visit.headline()["title"]
    assert f"TPOT      {visit.headline()['time']}, " in run_text(capsys, "estimate", *words)
    assert visit.at("#headline b, #model b").count() == 0


# -------------------------------------------------------------------------------- exports


def test_the_json_is_the_command_s_and_the_server_s(
    visit: Visit, capsys: pytest.CaptureFixture[str]
) -> None:
    visit.open()
    download = exported(visit, "json")
    found = json.loads(content(download))
    assert download.suggested_filename.endswith(".json")
    answer = visit.context.request.post(f"{visit.address}/api/estimate", data=FIRST).json()
    assert found == answer
    printed = run_json(capsys, "estimate", *FIRST_WORDS)
    assert rounded({key: found[key] for key in printed}) == rounded(printed)


def rounded(data: Any) -> Any:
    """Return data whose numbers have twelve digits: sums may differ in the last."""

    def digits(text: str) -> str:
        return f"{float(text):.12g}"

    return json.loads(json.dumps(data), parse_float=digits, parse_int=digits)


def test_the_csv_has_the_figures_that_are_shown(
    visit: Visit, capsys: pytest.CaptureFixture[str]
) -> None:
    visit.open()
    rows = list(csv.reader(StringIO(content(exported(visit, "csv")).decode())))
    assert len({len(row) for row in rows}) == 1
    figures = {row[0]: row[1] for row in rows}
    printed = run_json(capsys, "estimate", *FIRST_WORDS)
    for name in ("time_s", "tokens_per_s", "mfu"):
        assert float(figures[name]) == printed[name]


@pytest.mark.parametrize("ask", [FIRST, TRAIN], ids=["decode", "train"])
def test_the_trace_is_one_that_viewers_open(ask: dict[str, Any], visit: Visit) -> None:
    visit.open(ask)
    trace = json.loads(content(exported(visit, "trace")))
    events = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    step = visit.context.request.post(f"{visit.address}/api/estimate", data=ask).json()
    last = max(each["ts"] + each["dur"] for each in events)
    first = min(each["ts"] for each in events)
    on_device = step["time_s"] - step["parts"]["host and overhead"]
    # Between kernels the device may wait for the host to launch the next.
    assert 0.999e6 * on_device <= last - first <= 1.001e6 * step["time_s"]


class Report(HTMLParser):
    """What an HTML file loads, and its text; sources may be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note addresses, and that nothing is run."""
        assert tag != "script"
        loading = {"src"} if tag == "a" else {"src", "href"}
        self.loads += [value or "" for name, value in attributes if name in loading]

    def handle_data(self, data: str) -> None:
        """Note the text."""
        self.words.append(data)


def test_the_report_stands_alone_and_says_the_same(visit: Visit, tmp_path: Path) -> None:
    shown = visit.open(TRAIN).headline()
    html = content(exported(visit, "html"))
    report = Report()
    report.feed(html.decode())
    text = " ".join(" ".join(report.words).split())
    assert shown["title"] in text
    assert shown["time"] in text
    assert shown["memory"].split(" of ")[0] in text
    assert {each for each in report.loads if not each.startswith(("#", "data:"))} == set()
    file = tmp_path / "report.html"
    file.write_bytes(html)
    other = visit.context.new_page()
    asked: list[str] = []
    other.on("request", lambda request: asked.append(request.url))
    other.goto(file.as_uri())
    assert shown["title"] in other.inner_text("body")
    assert asked == [file.as_uri()]


def test_the_command_line_and_the_python_run_and_say_the_same(
    visit: Visit, capsys: pytest.CaptureFixture[str]
) -> None:
    visit.open(TRAIN)
    visit.at("#export-menu summary").click()
    visit.at("[data-export=commands]").click()
    expect(visit.at("#text-dialog")).to_be_visible()
    command = visit.at("[data-text=command-line]").inner_text()
    python = visit.at("[data-text=python]").inner_text()
    program, verb, *words = shlex.split(command)
    assert (program, verb) == ("shardcost", "estimate")
    printed = run_json(capsys, "estimate", *words)
    assert printed == run_json(capsys, "estimate", *TRAIN_WORDS)
    exec(compile(python, "python", "exec"), {})
    time_s, rate, memory = map(float, capsys.readouterr().out.split())
    assert time_s == printed["time_s"]
    assert rate == printed["tokens_per_s_per_gpu"]
    assert memory == printed["memory"]["peak_bytes"]
    visit.page.keyboard.press("Escape")
    expect(visit.at("#text-dialog")).to_be_hidden()
    expect(visit.at("#export-menu summary")).to_be_focused()


def hrefs(svg: ElementTree.Element) -> Iterator[str]:
    """Yield everything that a picture refers to."""
    for each in svg.iter():
        for name, value in each.attrib.items():
            if name.rpartition("}")[2] in {"href", "src"} or "url(" in value:
                yield value


def test_every_picture_is_saved_as_svg_and_png_and_every_tab_as_csv(visit: Visit) -> None:
    visit.open(TRAIN)
    for tab in TABS:
        visit.tab(tab)
        if tab == "plan":
            visit.at("#plan-fix-tp").evaluate("each => each.closest('details').open = true")
            visit.at("#plan-fix-tp").fill("1,2,4")
            visit.at("#plan-fix-pp").fill("1,2")
            visit.at("#plan-start").click()
            expect(visit.at("#plan-front svg.chart")).to_be_visible()
        drawn = boxes(visit, tab)
        pictures = saved(visit, tab, "svg")
        assert len(pictures) == len(drawn) > 0
        sizes: list[Any] = []
        for each in pictures:
            svg = ElementTree.fromstring(content(each))
            assert svg.tag == "{http://www.w3.org/2000/svg}svg"
            assert all(value.startswith(("#", "url(#", "url('#", 'url("#')) for value in hrefs(svg))
            assert svg.find("{http://www.w3.org/2000/svg}title") is not None
            assert not list(svg.iter("{http://www.w3.org/2000/svg}script"))
            sizes.append((float(svg.attrib["width"]), float(svg.attrib["height"])))
        assert sizes == [(box["width"], box["height"]) for box in drawn if box]
        png = content(saved(visit, tab, "png")[0])
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", png[16:24])
        assert width == pytest.approx(2 * sizes[0][0], abs=2)
        assert height == pytest.approx(2 * sizes[0][1], abs=2)
        rows = list(csv.reader(StringIO(content(saved(visit, tab, "csv")[0]).decode())))
        assert len(rows) > 1
        assert len({len(row) for row in rows}) == 1, tab

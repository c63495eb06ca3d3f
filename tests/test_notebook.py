"""Results in a notebook: short texts, screens that are safe to show, the commands' data, tables."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from cases import estimated
from notebooks import NOTEBOOK
from running import run_json

from shardcost import (
    BadValueError,
    Cluster,
    Decode,
    Deployment,
    FormatError,
    Layout,
    Lengths,
    Limits,
    MissingExtraError,
    Model,
    Plan,
    Profile,
    Requests,
    UnknownNameError,
    collective_time,
    dispatch_time,
    estimate,
    search,
    simulate,
    training_run,
)
from shardcost.display import Displayed
from shardcost.errors import BadTypeError
from shardcost.report.markup import visible

ROOT = NOTEBOOK.parents[1]
SPEED = re.compile(r"[\d.]+ s, [\d,]+ layouts/s")
HOSTILE = "<script>alert(1)</script>\"'&"
STEP = Decode(batch=8, context_tokens=1024)
SIZES = 2.0 ** np.arange(10, 31)


@cache
def served() -> Any:
    requests = Requests(
        count=60, rate_per_s=4.0, prompt=Lengths.parse("256"), output=Lengths.parse("32")
    )
    served_by = Deployment.of("llama3-8b", "h100_sxm", Layout())
    return simulate(served_by, requests, limits=Limits(ttft_s=0.5, tpot_s=0.02))


@cache
def found() -> Any:
    return search("llama3-8b", "h100_sxm", STEP, space={"gpus": 2})


@cache
def calibrated() -> Profile:
    log = (ROOT / "docs" / "examples" / "all_reduce-8.txt").read_text()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "log.txt"
        file.write_text(re.sub(r"\n +(131072|1048576|8388608) .*", "", log))  # few points fit fast
        return Profile.from_files(file, name="mine")


def dispatched() -> Displayed:
    return dispatch_time(
        "dispatch", "h800_sxm", 16, 128, 7168, 8, 256, network="ib_8x400g", low_latency=True
    )


RESULTS: dict[str, Callable[[], Any]] = {
    "decode": lambda: estimated("decode"),
    "train": lambda: estimated("train, interleaved"),
    "layouts": lambda: estimate("llama3-8b", "h100_sxm", Layout(tp=np.array([1, 2, 4])), STEP),
    "collective": lambda: collective_time("all_reduce", 2**26, "h100_sxm", 8),
    "one rank": lambda: collective_time("all_reduce", 2**26, "h100_sxm", 1),
    "sizes": lambda: collective_time("all_reduce", SIZES, "h100_sxm", 8),
    "counts": lambda: collective_time("all_reduce", SIZES[:, None], "h100_sxm", np.array([2, 8])),
    "dispatch": dispatched,
    "found": found,
    "plan": lambda: found().plan(top=2),
    "nothing": lambda: search("llama3-405b", "h100_sxm", STEP, space={"gpus": 1}),
    "load": served,
    "profile": calibrated,
    "run": lambda: training_run(estimated("train, interleaved"), tokens=1e9),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_results_can_be_looked_at_and_taken_along(kind: str) -> None:
    result = RESULTS[kind]()
    assert len(repr(result).splitlines()) <= 2
    assert len(repr(result)) < 300
    shown = result._repr_html_()
    assert len(shown) < 30_000
    _check_safe(shown)
    json.dumps(result.to_dict(), allow_nan=False)
    for table in result._view().tables:
        frame = result.to_frame(table)
        assert frame.height == len(result._view().tables[table]())


def _check_safe(shown: str) -> None:
    """Hold a screen to what any notebook may show: well-formed, nothing that runs or loads."""
    for part in ET.fromstring(shown).iter():
        assert part.tag in {*"div span strong pre table thead tbody tr th td".split()}
        assert set(part.attrib) <= {"style", "role", "aria-label", "aria-hidden"}
        look = part.attrib.get("style", "")
        assert "url(" not in look
        assert not re.search(r"(?<![-\w])color:(?!inherit)", look)  # text has the theme's colour


def test_screens_have_the_figures_of_the_command() -> None:
    result = estimated("decode")
    words = " ".join("".join(ET.fromstring(result._repr_html_()).itertext()).split())
    from shardcost.report.estimate import details, figures, foundations, parts, title

    said = [title(result), details(result)]
    said += [text for pair in (*figures(result), *foundations(result)) for text in pair]
    said += [cell for part in parts(result) for cell in part.cells]
    assert [each for each in said if each not in words] == []
    width = re.search(r"left:([\d.]+)%;width:([\d.]+)%", result._repr_html_())
    low, _, high = (result.interval.low_s, result.time_s, result.interval.high_s)
    assert width is not None
    assert math.isclose(float(width[1]), 100 * low / high, abs_tol=0.1)
    assert math.isclose(float(width[2]), 100 - 100 * low / high, abs_tol=0.1)


def test_hostile_names_are_shown_and_not_obeyed() -> None:
    base = Cluster.named("h100_sxm")
    model = replace(Model.named("llama3-8b"), name=HOSTILE, caveats=(HOSTILE,))
    cluster = replace(base, name=HOSTILE, title=HOSTILE)
    results = [
        estimate(model, cluster, Layout(tp=2), STEP),
        collective_time("all_reduce", 2**20, cluster, 2),
        search(model, cluster, STEP, space={"gpus": 2, "tp": 2}),
        replace(served(), deployment=Deployment.of(model, cluster, Layout())),
        replace(calibrated(), file=HOSTILE),
    ]
    for result in results:
        shown = result._repr_html_()
        _check_safe(shown)
        assert visible(HOSTILE) in "".join(ET.fromstring(shown).itertext())


def test_dictionaries_are_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(words: str) -> Any:
        return run_json(capsys, *words.split())

    decoding = "llama3-70b --on h100_sxm --tp 8 --decode --batch 64 --context-tokens 4096"
    assert estimated("decode").to_dict() == printed(f"estimate {decoding}")
    reduced = RESULTS["collective"]().to_dict()
    assert reduced == printed("collective all_reduce --size 64MiB --gpus 8 --on h100_sxm")
    planned = printed(
        "plan llama3-8b --on h100_sxm --gpus 2 --decode --batch 8 --context-tokens 1024"
    )
    assert {**found().to_dict(), "seconds": 0} == {**planned, "seconds": 0}
    load = printed(
        "load llama3-8b --on h100_sxm --rate 4 --requests 60 --isl 256 --osl 32"
        " --max-ttft 500ms --max-tpot 20ms"
    )
    assert served().to_dict() == load


def test_tables_hold_together() -> None:
    decoding = estimated("decode")
    parts = decoding.to_frame()
    assert math.isclose(parts["time_s"].sum(), decoding.time_s, rel_tol=1e-6)
    assert math.isclose(decoding.to_frame("memory")["bytes"].sum(), decoding.memory_bytes)
    layouts = RESULTS["layouts"]()
    assert layouts.to_frame()["tp"].to_list() == [1, 2, 4]
    assert layouts.to_frame()["time_s"].to_list() == layouts.time_s.tolist()
    assert found().to_frame()["layout"].to_list() == [each.layout.short() for each in found().best]
    assert served().to_frame("requests").height == len(served().served)
    assert RESULTS["sizes"]().to_frame()["size_bytes"].to_list() == SIZES.tolist()
    constants = calibrated().to_frame()
    in_profile = re.search(r"nvls_gb_per_s = ([\d.]+)", calibrated().text)
    assert in_profile is not None
    assert constants.filter(name="nvls_gb_per_s")["value"].to_list() == [float(in_profile[1])]


@pytest.mark.parametrize(
    ("kind", "picture"),
    [
        ("decode", "memory"),
        ("collective", None),
        ("found", None),
        ("load", None),
        ("profile", None),
    ],
)
def test_pictures_show_themselves(kind: str, picture: str | None) -> None:
    figure: Any = RESULTS[kind]().plot(picture)
    assert figure.axes
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_unknown_tables_and_pictures_name_the_known_ones() -> None:
    decoding = estimated("decode")
    with pytest.raises(UnknownNameError, match="known: memory, messages, operations, parts"):
        decoding.to_frame("figures")
    with pytest.raises(UnknownNameError, match="known: layer, memory, roofline, timeline"):
        decoding.plot("curve")
    with pytest.raises(BadValueError, match="this has none"):
        dispatched().plot()
    with pytest.raises(BadValueError, match="a feasible layout"):
        RESULTS["nothing"]().plot()


def test_frames_are_of_whichever_library_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(DataFrame=lambda rows: ("pandas", rows))
    monkeypatch.setitem(sys.modules, "polars", None)
    monkeypatch.setitem(sys.modules, "pandas", made)
    library, rows = estimated("decode").to_frame("memory")
    assert library == "pandas"
    assert rows[0]["kind"] == "weights"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        MissingExtraError, match=r"polars or pandas: pip install 'shardcost\[table\]'"
    ):
        estimated("decode").to_frame()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'shardcost\[plot\]'"):
        estimated("decode").plot()


def test_nouns_are_short_too() -> None:
    many = Layout(tp=np.arange(1, 900), dp=2)
    assert repr(many) == "Layout(tp=<899 values, 1 to 899>, dp=2)"
    assert repr(Decode(batch=8, context_tokens=1024)) == "Decode(batch=8, context_tokens=1024)"
    for noun in (Cluster.named("h100_sxm", "ib_8x400g"), Model.named("deepseek-v3")):
        assert len(repr(noun)) < 600


# ------------------------------------------------------------------------ what may be given


def test_python_takes_what_the_command_line_takes(
    tmp_path: Path, tiny_config: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_config()
    profile = calibrated().write(tmp_path / "mine.toml")
    assert profile.file is not None
    ways = [folder, str(folder), folder / "config.json", Model.from_hf(folder)]
    times = {estimate(each, profile.file, Layout(), STEP).time_s for each in ways}
    words = f"estimate {folder} --on {profile.file} --decode --batch 8 --context-tokens 1024"
    data = run_json(capsys, *words.split())
    assert times == {data["time_s"]}
    assert estimate(folder, profile.file, Layout(), STEP).to_dict()["notes"] == data["notes"]
    assert estimate(folder, profile.cluster, Layout(), STEP).time_s == data["time_s"]
    found = search(folder, Path(profile.file), STEP, space={"gpus": 1})
    assert found.best[0].time_s == data["time_s"]
    reduced = collective_time("all_reduce", 2**20, tmp_path / "mine.toml", 8)
    assert reduced.group.cluster.name == "mine"


def test_a_folder_is_a_model_where_it_holds_one(
    tmp_path: Path, tiny_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("llama3-8b").mkdir()  # of something else: the name is the catalog's
    assert estimate("llama3-8b", "h100_sxm", Layout(), STEP).model == Model.named("llama3-8b")
    Path("mine").mkdir()
    with pytest.raises(FormatError, match=r"mine/config\.json: cannot be read"):
        estimate("mine", "h100_sxm", Layout(), STEP)
    (tiny_config() / "config.json").rename("mine/config.json")
    assert estimate("mine", "h100_sxm", Layout(), STEP).model.num_layers < 8


def test_a_network_may_be_named_beside_any_cluster() -> None:
    joined = Cluster.named("h100_sxm", "ib")
    nodes, model = Layout(tp=8, dp=2), "llama3-8b"
    one = estimate(model, joined, nodes, STEP)
    for cluster in ("h100_sxm", Cluster.named("h100_sxm")):
        assert estimate(model, cluster, nodes, STEP, network="ib").time_s == one.time_s
        reduced = collective_time("all_reduce", 2**20, cluster, 16, network="ib")
        assert reduced.group.cluster.network == joined.network
    space = {"gpus": 16, "tp": 8, "cp": 1, "pp": 1}
    found = search(model, "h100_sxm", STEP, network=["ib", "roce_8x400g"], space=space)
    assert set(found.to_frame()["network"]) == {"ib", "roce_8x400g"}
    assert Deployment.of(model, "h100_sxm", nodes, network="ib").serving.engine.cluster == joined
    assert estimate(model, "tpu_v5p:2x2x2", Layout(tp=8), STEP).devices == 8
    with pytest.raises(BadValueError, match="a Machine has one, or none, already"):
        estimate(model, one.machine, nodes, STEP, network="ib")
    wrong: Any = 5
    with pytest.raises(BadTypeError, match="network must be a Network, the name of one or a file"):
        estimate(model, "h100_sxm", nodes, STEP, network=wrong)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama3-70b"),
        ("META-LLAMA/llama-3.3-70b-instruct", "llama3-70b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
    ],
)
def test_models_have_their_ids_on_hugging_face(written: str, name: str) -> None:
    assert Model.named(written).name == name
    from shardcost.web.finder import Pasted

    assert Pasted({}).model(written).name == name


def test_an_unknown_id_suggests_those_of_its_organisation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean Qwen/Qwen3-8B or .*config\.json"):
        Model.named("qwen/qwen9-8b")
    with pytest.raises(UnknownNameError, match=r"mean meta-llama/Meta-Llama-3\.1-8B-Instr"):
        Model.named("someone/Meta-Llama-3.1-8B-Instruct-AWQ")
    shown = run_json(capsys, "models", "qwen3-8b")
    assert shown["hugging_face"] == ["Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base"]


def test_a_search_leads_on_to_its_plan() -> None:
    plan = found().plan(top=1)
    assert isinstance(plan, Plan)
    assert len(plan.best) == 1
    assert plan.losses
    assert plan.to_dict()["best"][0] == found().to_dict()["best"][0]


# ------------------------------------------------------------------------ the example notebook


@pytest.mark.skipif(
    None in map(find_spec, ("nbclient", "ipykernel")), reason="nbclient or ipykernel is missing"
)
def test_the_example_notebook_shows_what_its_cells_give_now(tmp_path: Path) -> None:
    made = tmp_path / "made.ipynb"
    command = [sys.executable, str(ROOT / "tests" / "notebooks.py"), str(made)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    shown, now = (json.loads(each.read_text("utf-8"))["cells"] for each in (NOTEBOOK, made))
    assert [_outputs(cell) for cell in shown] == [_outputs(cell) for cell in now]
    assert sum("image/png" in str(_kinds(cell)) for cell in shown) >= 3


def _kinds(cell: dict[str, Any]) -> list[list[str]]:
    return [sorted(each["data"]) for each in cell.get("outputs", ())]


def _outputs(cell: dict[str, Any]) -> list[Any]:
    """Return what a cell shows, but for pictures, and how fast a search was."""
    texts: list[Any] = [_kinds(cell)]
    for output in cell.get("outputs", ()):
        said = ("".join(output["data"].get(kind, "")) for kind in ("text/plain", "text/html"))
        texts += [SPEED.sub("", each) for each in said]
    return texts

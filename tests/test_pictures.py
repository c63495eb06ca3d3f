"""Rooflines, splits of a curve's steps, and the pictures of an estimate."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from cases import estimated, usual_passes
from running import run_error

from shardcost import Cluster, Decode, Layout, Model, Train, cli
from shardcost.dtypes import BITS
from shardcost.errors import BadTypeError, UnknownNameError
from shardcost.estimate import estimate
from shardcost.estimate.pieces import PASSES, PassParts
from shardcost.estimate.roofline import moved_bytes, roofline
from shardcost.estimate.scaling import Row, Scaling, degrees_to_vary, split_of
from shardcost.program.operations import AttentionCore
from shardcost.report import memory_plot, roofline_plot, scaling_plot
from shardcost.report import scaling as scaling_report
from shardcost.report.estimate_data import roofline_as_data
from shardcost.report.pictures import GROUPS, MEMORY, write_picture
from shardcost.report.text import name_of

ASK = (
    *("estimate", "llama3-70b", "--on", "h100_sxm", "--tp", "8"),
    *("--decode", "--batch", "64", "--context-tokens", "4096"),
)
DRAWN = [
    "train, selectively recomputed",
    "train, recomputed on A100",
    "prefill, fp8",
    "decode",
    "decode, narrow",
    "decode, experts on H200",
    "decode, windows",
    "decode, no fp8 peak",
]


@pytest.mark.parametrize("case", DRAWN)
def test_kernels_add_up_to_what_the_layer_computes(case: str) -> None:
    found = estimated(case)
    roof = roofline(found)
    for phase, parts in usual_passes(found).items():
        during = {"backward": ["recompute", "backward"]}.get(phase, [phase])
        own = [each for each in roof.kernels if each.during in during]
        for kind, counted in parts.compute_s.items():
            seconds = sum(each.time_s for each in own if each.kind == kind)
            assert seconds == pytest.approx(counted, rel=1e-12, abs=1e-15)
        listed = [op for name in during for op in getattr(found.program.usual_layers.passes, name)]
        flops = sum(getattr(op, "flops", 0.0) for op in listed)
        assert sum(each.flops for each in own) == pytest.approx(flops, rel=1e-12)
    if len(found.program.layers) == 1:
        mean = [PassParts.of(found.ledger.shares, each) for each in usual_passes(found)]
        computed = sum(sum(each.compute_s.values()) for each in mean)
        assert computed == pytest.approx(roof.time_s, rel=1e-12)


@pytest.mark.parametrize("case", DRAWN)
def test_nothing_stands_above_its_roof(case: str) -> None:
    for each in roofline(estimated(case)).kernels:
        assert 0 < each.share_of_roof <= 1
        assert each.flop_per_s <= each.roof_flop_per_s * (1 + 1e-12)
        assert each.bytes_per_s <= each.memory_bytes_per_s
        slope = each.intensity * each.memory_bytes_per_s
        assert each.roof_flop_per_s == pytest.approx(min(each.peak_flop_per_s, slope), rel=1e-12)
        assert each.limit == ("memory" if slope <= each.peak_flop_per_s else "compute")


def test_intensities_are_those_of_the_shapes() -> None:
    kernels = {each.name: each for each in roofline(estimated("decode")).kernels}
    up = kernels["MLP up"]  # 64 tokens by 8192 x 57344/8, all in 16 bits
    m, n, k = 64, 2 * 28672 / 8, 8192
    assert up.flops == 2 * m * n * k
    assert up.moved_bytes == 2 * (m * k + k * n + m * n)
    assert kernels["norm"].count == 2
    assert kernels["norm"].intensity == 0 == kernels["norm"].roof_flop_per_s
    # One KV head on each rank, of 128 elements: the cache is read, not written here.
    attention = kernels["attention"]
    cache = 64 * 4097 * 2 * 128 * 2
    assert attention.moved_bytes == cache + 64 * 8 * 2 * 128 * 2
    assert attention.intensity == pytest.approx(8, rel=0.01)  # as many as heads share a key


def core(**other: Any) -> AttentionCore:
    sizes: dict[str, Any] = {
        "name": "attention",
        "batch": 2,
        "query_tokens": 100,
        "context_tokens": 100,
        "heads": 8,
        "kv_heads": 2,
        "head_dim": 64,
        "value_dim": 64,
        "window_tokens": None,
        "causal": True,
        "decode": False,
        "backward": False,
        "dtype": "bf16",
    }
    return AttentionCore(**{**sizes, **other})


def test_bytes_of_attention() -> None:
    forward = 2 * (8 + 2) * 100 * 128 * 2
    assert moved_bytes(core()) == forward
    assert moved_bytes(core(backward=True)) == 2 * forward
    step = {"decode": True, "query_tokens": 1}
    assert moved_bytes(core(**step)) == 2 * (8 + 2 * 100) * 128 * 2
    assert moved_bytes(core(**step, window_tokens=10)) == 2 * (8 + 2 * 10) * 128 * 2
    assert moved_bytes(core(**step, dtype="fp8")) == 2 * (8 * 2 + 2 * 100) * 128
    latent = core(**step, kv_heads=1, head_dim=576, value_dim=512)
    assert moved_bytes(latent) == 2 * (8 * (576 + 512) + 100 * 576) * 2


def test_formats_without_a_peak_have_that_of_the_floats_at_least_as_wide() -> None:
    peaks = roofline(estimated("decode, no fp8 peak")).peaks
    assert peaks["fp8"] == peaks["bf16"] == Cluster.named("a100_sxm").device.peak("bf16")
    assert set(roofline(estimated("decode, narrow")).peaks) == {"nvfp4", "fp8"}


def test_a_roofline_is_of_one_layout() -> None:
    many = estimate(
        "llama3-8b", "h100_sxm", Layout(tp=np.array([1, 2])), Decode(batch=8, context_tokens=512)
    )
    with pytest.raises(BadTypeError, match="one layout, not an array"):
        roofline(many)


def test_the_roofline_as_data() -> None:
    found = estimated("train, selectively recomputed")
    data = json.loads(json.dumps(roofline_as_data(found)))
    assert {"device", "dtype", "peak_flop_per_s", "memory_bytes_per_s", "operations"} <= set(data)
    assert data["ridge_flop_per_byte"] == data["peak_flop_per_s"] / data["memory_bytes_per_s"]
    assert data["layers"] == 80
    named = {
        *("name", "kind", "pass", "count", "flops", "bytes", "time_s", "intensity"),
        *("flop_per_s", "roof_flop_per_s", "share_of_roof"),
    }
    assert all(named <= set(each) for each in data["operations"])
    assert [*dict.fromkeys(each["pass"] for each in data["operations"])] == [*PASSES]
    assert {each["dtype"] for each in data["operations"]} <= {None, *BITS}
    assert sum(each["time_s"] for each in data["operations"]) == pytest.approx(data["time_s"])


@pytest.mark.parametrize("case", DRAWN)
def test_a_step_splits_into_parts_that_add_up(case: str) -> None:
    found = estimated(case)
    split = split_of(found)
    whole = split.compute_s + split.exposed_s + split.bubble_s + split.other_s
    assert whole == pytest.approx(found.time_s, rel=1e-12)
    assert split.exposed_s == pytest.approx(found.comm_share * found.time_s)
    assert split.comm_to_compute * split.compute_s == pytest.approx(
        split.exposed_s + split.hidden_s
    )
    assert (split.bubble_s > 1e-9 * found.time_s) == (found.layout.pp > 1)


def curve(name: str, **layouts: Layout) -> Scaling:
    work = Decode(batch=64, context_tokens=4096)
    rows = [
        Row(value.removeprefix("at"), estimate("llama3-70b", "h100_sxm", layout, work))
        for value, layout in layouts.items()
    ]
    return Scaling(name, (*rows, Row("3", None, "tp does not divide 64 heads")), "decode")


def tensor_curve() -> Scaling:
    return curve("tp", at1=Layout(), at4=Layout(tp=4), at8=Layout(tp=8))


def test_a_curve_as_data_has_the_parts_of_each_step() -> None:
    data = scaling_report.as_data(tensor_curve())
    first, *_, last = data["rows"]
    for row in data["rows"][:-1]:
        parts = (row[name] for name in ("compute_s", "exposed_s", "bubble_s", "other_s"))
        assert sum(parts) == pytest.approx(row["time_s"])
    assert first["comm_to_compute"] == 0
    assert data["rows"][2]["comm_to_compute"] > data["rows"][1]["comm_to_compute"] > 0
    assert "compute_s" not in last
    json.dumps(data)


def test_degrees_to_vary_are_powers_of_two_that_divide() -> None:
    mixtral, gpt2 = Model.named("mixtral-8x7b"), Model.named("gpt2-xl")
    assert degrees_to_vary(mixtral, 48, "tp") == [1, 2, 4, 8, 16]
    assert degrees_to_vary(mixtral, 256, "tp") == [1, 2, 4, 8, 16, 32]  # 32 heads
    assert degrees_to_vary(mixtral, 64, "pp") == [1, 2, 4, 8, 16, 32]  # 32 layers
    assert degrees_to_vary(mixtral, 64, "ep") == [1, 2, 4, 8]
    assert degrees_to_vary(gpt2, 64, "ep") == [1]
    assert degrees_to_vary(gpt2, 6, "dp") == [1, 2]
    assert degrees_to_vary(gpt2, 6, "gpus") == [1, 2, 4]
    assert degrees_to_vary(gpt2, 1, "tp") == [1]
    with pytest.raises(UnknownNameError, match="batch"):
        degrees_to_vary(gpt2, 8, "batch")


def texts_of(file: Path) -> list[str]:
    root = ET.fromstring(file.read_text())
    return ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("case", DRAWN)
def test_the_picture_of_a_roofline_names_every_kernel(tmp_path: Path, case: str) -> None:
    found, file = estimated(case), tmp_path / "roof.svg"
    write_picture(roofline_plot.sketch(found), file)
    said = " ".join(texts_of(file))
    roof = roofline(found)
    assert all(each.name in said for each in roof.kernels)
    assert "memory" in said
    assert "FLOP per byte" in said
    assert all(dtype in said for dtype in roof.peaks)
    assert ("weight" in said) == isinstance(found.workload, Train)


@pytest.mark.parametrize("case", DRAWN)
def test_the_picture_of_memory_names_every_kind(tmp_path: Path, case: str) -> None:
    found, file = estimated(case), tmp_path / "memory.svg"
    write_picture(memory_plot.sketch(found), file)
    said = " ".join(texts_of(file))
    held = found.memory.by_kind()
    assert set(held) == set(MEMORY)
    assert all(name_of(kind) in said for kind, size in held.items() if size)
    assert ("does not fit" in said) == (not found.memory.fits(found.cluster.device))
    assert all(f"{name} stage" in said for name in found.memory.stages if found.layout.pp > 1)


def test_the_picture_of_a_curve_says_what_cannot_be_had(tmp_path: Path) -> None:
    file = tmp_path / "curve.svg"
    write_picture(scaling_plot.sketch(tensor_curve()), file)
    texts = texts_of(file)
    said = " ".join(texts)
    assert {"1", "4", "8", "3", "tp", "compute", "TP communication", "step time"} <= set(texts)
    assert "tp does not divide 64 heads" in said
    assert "needs 213 GiB of 80 GiB" in said
    assert "fastest that fits: tp 8" in said
    assert "efficiency" in said


def test_groups_of_a_layout_all_have_a_colour() -> None:
    assert set(GROUPS) == {"tp", "cp", "ep", "dp", "pp"}


def test_a_curve_of_one_value_is_drawn(tmp_path: Path) -> None:
    one = Scaling("tp", (curve("tp", at8=Layout(tp=8)).rows[0],), "decode")
    write_picture(scaling_plot.sketch(one), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["roofline", "memory"])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_same_estimate_gives_the_same_file(tmp_path: Path, kind: str, suffix: str) -> None:
    sketch = {"roofline": roofline_plot.sketch, "memory": memory_plot.sketch}[kind]
    files = [tmp_path / f"{number}.{suffix}" for number in range(2)]
    for file in files:
        write_picture(sketch(estimated("decode")), file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("picture", ["timeline", "layer", "roofline", "memory"])
def test_the_command_draws_each_picture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, picture: str
) -> None:
    from matplotlib.image import imread

    file = tmp_path / "picture.png"
    assert cli.main([*ASK, "--plot", str(file), "--picture", picture]) == 0
    assert capsys.readouterr().out.endswith(f"\nPlot: {file}\n")
    pixels = imread(file)
    assert min(pixels.shape[:2]) > 300
    assert 0.01 < (pixels[..., :3] < 0.95).any(axis=-1).mean() < 0.7


def test_the_picture_is_the_timeline_unless_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = [tmp_path / "one.svg", tmp_path / "two.svg"]
    assert cli.main([*ASK, "--plot", str(files[0]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plot"] == str(files[0])
    assert cli.main([*ASK, "--plot", str(files[1]), "--picture", "timeline"]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    capsys.readouterr()
    assert cli.main([*ASK, "--json"]) == 0
    assert "plot" not in json.loads(capsys.readouterr().out)


def test_the_command_draws_what_varies(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "curve.svg"
    words = [*ASK, "--vary", "batch=1,64,4096", "--plot", str(file)]
    assert cli.main(words) == 0
    assert capsys.readouterr().out.endswith(f"\nPlot: {file}\n")
    assert {"1", "64", "4096", "batch"} <= set(texts_of(file))
    assert cli.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plot"] == str(file)


def test_where_no_value_is_possible_nothing_is_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "curve.svg"
    assert cli.main([*ASK, "--vary", "tp=3,5", "--plot", str(file)]) == 3
    out, err = capsys.readouterr()
    assert "Plot:" not in out
    assert err == "shardcost: no value of tp is feasible, see the reasons\n"
    assert not file.exists()


@pytest.mark.parametrize("more", [(), ("--vary", "tp=4,8"), ("--picture", "memory")])
@pytest.mark.parametrize("name", ["picture.pdf", "picture", ".png"])
def test_other_kinds_of_file_are_refused_before_anything_is_computed(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    more: tuple[str, ...],
) -> None:
    def computed(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("shardcost.cli.estimate.estimate_of", computed)
    monkeypatch.setattr("shardcost.cli.estimate.scaling_of", computed)
    said = run_error(capsys, *ASK, "--plot", str(tmp_path / name), *more)
    assert "ends in .png or .svg" in said
    assert not list(tmp_path.iterdir())


def test_pictures_that_there_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert "known: layer, memory, roofline, timeline" in run_error(
        capsys, *ASK, "--plot", "a.png", "--picture", "rooftop"
    )
    assert "--picture is for --plot" in run_error(capsys, *ASK, "--picture", "memory")
    assert "--picture and --vary exclude each other" in run_error(
        capsys, *ASK, "--plot", "a.png", "--picture", "memory", "--vary", "tp=4,8"
    )


@pytest.mark.parametrize("more", [("--picture", "roofline"), ("--vary", "tp=4,8")])
def test_without_matplotlib_the_error_says_what_to_install(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: tuple[str, ...],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = run_error(capsys, *ASK, "--plot", str(tmp_path / "a.png"), *more)
    assert "needs matplotlib: pip install 'shardcost[plot]'" in said
    assert not list(tmp_path.iterdir())

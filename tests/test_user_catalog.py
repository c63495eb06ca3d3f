"""Catalog files of a user: by path and from a folder, priced sensibly, refused in one line."""

from __future__ import annotations

import json
import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from shardcost import (
    Cluster,
    Decode,
    Layout,
    Model,
    Network,
    Prefill,
    Software,
    catalog,
    cli,
    collective_time,
    estimate,
)
from shardcost.catalog import user_files
from shardcost.errors import BadValueError, FormatError, ShardcostError, UnknownNameError
from shardcost.web.finder import Pasted

BUILT_IN = Path(catalog.__file__).parent
CHANGES = {
    "clusters/h100_sxm": (
        "h100_2x",
        {"value = 450": "value = 900", "value = 3350": "value = 6700"},
    ),
    "networks/ib_8x400g": ("ib_mine", {"value = 400": "value = 800"}),
    "software/vllm": ("vllm_mine", {"step_overhead_ms = 0.22": "step_overhead_ms = 12.22"}),
    "models/llama3-8b": ("my8b", {}),
}
RUN = (
    "my8b.toml --on h100_2x.toml --software vllm_mine.toml --decode --batch 8 --context-tokens 1024"
)
WORK = Decode(batch=8, context_tokens=1024)


def changed(source: str) -> tuple[str, str]:
    """Return name and text of a built-in file under another name and with changed figures."""
    name, changes = CHANGES[source]
    text = (BUILT_IN / f"{source}.toml").read_text(encoding="utf-8")
    old = Path(source).name
    for before, after in {f'name = "{old}"': f'name = "{name}"', **changes}.items():
        assert before in text
        text = text.replace(before, after, 1)
    return name, text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a file of each kind, which is the working directory."""
    for source in CHANGES:
        name, text = changed(source)
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def output(capsys: pytest.CaptureFixture[str], command: str, code: int = 0) -> str:
    assert cli.main(shlex.split(command)) == code
    out, err = capsys.readouterr()
    assert err.count("\n") == (1 if code else 0), err
    return err if code else out


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "command",
    [
        "collective all_reduce --size 1GiB --gpus 8 --on h100_2x.toml",
        "collective all_reduce --size 1GiB --gpus 16 --on h100_2x.toml --network ib_mine.toml",
        "collective all_reduce --size 1GiB --gpus 16 --on h100_2x.toml --network ib_8x400g",
        "collective all_reduce --size 1GiB --gpus 16 --on h100_sxm --network ib_mine.toml",
        "allreduce --model llama3-70b --on h100_2x.toml --gpus 8",
        f"estimate {RUN} --tp 2",
        f"plan {RUN}",
        "clusters h100_2x.toml",
        "clusters ib_mine.toml",
        "software vllm_mine.toml",
        "models my8b.toml",
    ],
)
def test_files_work_in_every_command_by_path_and_by_name(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    by_path = json.loads(output(capsys, f"{command} --json"))
    by_name = json.loads(output(capsys, f"{command.replace('.toml', '')} --catalog . --json"))
    for answer in (by_path, by_name):
        answer.pop("seconds", None)
        answer.pop("layouts_per_s", None)
    assert by_name == by_path


@pytest.mark.usefixtures("folder")
def test_changed_figures_change_the_price() -> None:
    ours, theirs = Cluster.from_file("h100_2x.toml"), Cluster.named("h100_sxm")
    sent = [
        collective_time("all_reduce", 2**30, machine, gpus=8).time_s for machine in (ours, theirs)
    ]
    assert sent[0] < 0.6 * sent[1]
    fast, usual = (
        estimate("llama3-70b", machine, Layout(tp=8), WORK) for machine in (ours, theirs)
    )
    assert fast.compute_s["gemm"] < 0.7 * usual.compute_s["gemm"]
    assert any("inherited from" in text and "(h100_2x)" in text for text in fast.warnings)
    slow = estimate(
        "llama3-70b", theirs, Layout(tp=8), WORK, software=Software.from_file("vllm_mine.toml")
    )
    vllm = estimate("llama3-70b", theirs, Layout(tp=8), WORK, software="vllm")
    assert slow.time_s - vllm.time_s == pytest.approx(12e-3)
    assert Network.from_file("ib_mine.toml").nic_bytes_per_s == 100e9
    assert Model.from_file("my8b.toml").parameters == Model.named("llama3-8b").parameters


def test_unsound_memory_constants_are_named(tmp_path: Path) -> None:
    _, text = changed("software/vllm")
    (tmp_path / "x.toml").write_text(
        text.replace("reserve_bytes = 2.5e9", 'reserve_bytes = "much"')
    )
    software = Software.from_file(tmp_path / "x.toml")
    with pytest.raises(BadValueError, match="reserve_bytes must be a number"):
        _ = estimate("llama3-8b", "h100_sxm", Layout(), WORK, software=software).memory


def test_the_same_device_elsewhere_keeps_its_constants(tmp_path: Path) -> None:
    _, text = changed("clusters/h100_sxm")
    (tmp_path / "slow.toml").write_text(text.replace("value = 6700", "value = 3350"))
    prompt = Prefill(batch=1, prompt_tokens=1024)
    result = estimate("llama3-8b", Cluster.from_file(tmp_path / "slow.toml"), Layout(), prompt)
    usual = estimate("llama3-8b", "h100_sxm", Layout(), prompt)
    assert result.compute_s == usual.compute_s
    assert not any("GEMM" in text for text in result.warnings)


def test_the_variable_names_a_folder_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnknownNameError):
        Cluster.named("h100_2x")
    monkeypatch.setenv(user_files.VARIABLE, str(folder))
    assert Cluster.named("H100-2x", "IB_mine").network == Network.from_file("ib_mine.toml")
    assert Software.named("vllm_mine").name in catalog.all_names("software")
    assert Cluster.named("h100").name == "h100_sxm"  # a copy's aliases do not replace built-in ones
    assert catalog.names("clusters") == [n for n in catalog.all_names("clusters") if n != "h100_2x"]
    assert "vllm_mine" in output(capsys, "software")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--on h100_2x.toml --software h100_2x.toml",
            "h100_2x.toml: is a cluster file; .*--software",
        ),
        ("--on vllm_mine.toml", "vllm_mine.toml: is a software file; .*--on take a cluster file"),
        ("--on h100_2x.toml --network profile.toml", "profile.toml: is a calibrated profile; .*"),
        ("--on config.json", "config.json: is a model config, not a TOML file"),
        ("--on topology.xml", "topology.xml: is an NCCL topology, not"),
        ("--on nothing.toml", "nothing.toml: cannot be read: No such file"),
        ("--on odd.toml", "odd.toml: is no file of the catalog"),
        ("--on h100_sxm --catalog nowhere", "nowhere: cannot be read as a folder"),
        (
            "--on same.toml",
            "same.toml: name of a cluster must be one that the catalog does not have",
        ),
    ],
)
def test_a_wrong_kind_of_file_is_told_what_it_is(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("profile.toml").write_text('name = "x"\nbased_on = "h100_sxm"\nlibrary = []\n')
    Path("config.json").write_text('{"model_type": "llama", "hidden_size": 64}')
    Path("topology.xml").write_text('<system version="1"></system>')
    Path("odd.toml").write_text("colour = 3\n")
    Path("same.toml").write_text(changed("clusters/h100_sxm")[1].replace("h100_2x", "h100_sxm"))
    line = output(
        capsys, f"estimate llama3-8b {options} --decode --batch 1 --context-tokens 64", code=2
    )
    assert re.match(f"shardcost: {message}", line), line


def test_a_cluster_file_is_pasted_as_text() -> None:
    name, text = changed("clusters/h100_sxm")
    assert Pasted({"profile": text}).cluster(None).name == name


def test_a_path_in_a_request_is_not_read(folder: Path) -> None:
    path = str(folder / "h100_2x.toml")
    with pytest.raises(UnknownNameError):
        Pasted({}).cluster(path)
    with pytest.raises(UnknownNameError):
        Pasted({}).cluster("h100_sxm", str(folder / "ib_mine.toml"))
    with pytest.raises(UnknownNameError):
        Pasted({}).software(str(folder / "vllm_mine.toml"))
    with pytest.raises(UnknownNameError):
        Pasted({}).model(str(folder / "my8b.toml"))
    with pytest.raises(FormatError):
        Pasted({"profile": path}).cluster(None)


def test_a_path_is_never_a_name(folder: Path) -> None:
    for find, name in (
        (Cluster.named, "h100_2x.toml"),
        (Network.named, "./ib_mine.toml"),
        (Software.named, "vllm_mine.toml"),
    ):
        with pytest.raises(UnknownNameError, match=r"\.from_file"):
            find(name)
    by_path = estimate("llama3-8b", folder / "h100_2x.toml", Layout(), WORK)
    assert by_path.cluster == Cluster.from_file(folder / "h100_2x.toml")


@pytest.mark.parametrize(
    ("source", "before", "after", "message"),
    [
        ("clusters/h100_sxm", "value = 80,", "value = -80,", "memory_gib must be a finite number"),
        ("clusters/h100_sxm", "value = 80,", 'value = "much",', "memory_gib must be"),
        ("clusters/h100_sxm", "value = 80,", "value = 1e300,", "memory_gib.value must be a finite"),
        ("clusters/h100_sxm", "value = 80,", "value = nan,", "memory_gib.value must be a finite"),
        ("clusters/h100_sxm", "memory_gib", "memory_gb", "memory_gib is missing"),
        ("clusters/h100_sxm", "[link]", "[link]\ncolour = 3", "unknown key colour"),
        ("clusters/h100_sxm", '"9.0"', '"nine"', "compute_capability"),
        ("clusters/h100_sxm", "value = 8,", "value = 8000000000,", "domain_gpus|gpus_per_node"),
        ("clusters/h100_sxm", "8 x NVIDIA", "8 x\\u001b[31m", "title must be one line"),
        ("clusters/h100_sxm", 'name = "h100_2x"', 'name = "../x"', "name of a cluster must be"),
        ("clusters/h100_sxm", 'name = "h100_2x"', "name = 3", "name of a cluster must be a text"),
        ("clusters/h100_sxm", "nvswitch", "rope", "Tier.name|Tier.kind"),
        ("networks/ib_8x400g", "value = 800", "value = 0", "nic_rate_gbit_per_s must be"),
        ("software/vllm", "12.22", '"long"', "step_overhead_ms must be a number"),
        ("software/vllm", 'attention = "flash"', 'attention = "flush"', "Software.attention"),
        (
            "software/vllm",
            "fused_elementwise = true",
            "fused_elementwise = 1",
            "Software.fused_elementwise",
        ),
        ("software/vllm", "rows = 400", "rows = 0", "Fit.rows"),
        ("software/vllm", "[constants]", "[constants]\ncolour = 3", "unknown key colour"),
    ],
)
def test_errors_name_key_and_file(
    source: str, before: str, after: str, message: str, tmp_path: Path
) -> None:
    _, text = changed(source)
    assert before in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(before, after))
    kind: Any = {"clusters": Cluster, "networks": Network, "software": Software}[
        source.split("/", maxsplit=1)[0]
    ]
    with pytest.raises(FormatError, match=message) as caught:
        kind.from_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("source", list(CHANGES))
def test_no_damage_crashes_a_reader(source: str, tmp_path: Path) -> None:
    _, text = changed(source)
    nouns: dict[str, Any] = {
        "clusters": Cluster,
        "networks": Network,
        "software": Software,
        "models": Model,
    }
    read = nouns[source.split("/", maxsplit=1)[0]].from_file
    rng = random.Random(7)
    values = [
        "0",
        "-1",
        "1e18",
        "9" * 40,
        "true",
        '""',
        '"a"',
        "[]",
        "[1]",
        "{}",
        "{ a = 1 }",
        "nan",
    ]
    lines = text.splitlines()
    read_well, lines_said = 0, []
    for i in range(300):
        damaged = list(lines)
        k = rng.randrange(len(lines))
        if i % 3 == 0:
            del damaged[k]
        elif " = " in damaged[k]:
            key, _, old = damaged[k].partition(" = ")
            value = rng.choice(values)
            inner = old.startswith("{ value = ") and i % 2
            damaged[k] = f"{key} = " + (
                f"{{ value = {value}, source = {rng.choice(values)} }}" if inner else value
            )
        (tmp_path / "x.toml").write_text("\n".join(damaged))
        try:
            read(tmp_path / "x.toml")
            read_well += 1
        except ShardcostError as error:
            lines_said.append(str(error))
    assert read_well
    assert all("x.toml: " in line and line.isprintable() for line in lines_said)
    (tmp_path / "large.toml").write_text("#" * (user_files.MOST_BYTES + 1))
    with pytest.raises(FormatError, match="larger than 1 MiB"):
        read(tmp_path / "large.toml")

"""The command line: what it prints, that JSON is all it prints, and how it starts."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running import run_error, run_json, run_text

import shardcost
from shardcost import Model, catalog, cli, tensor_parallel_allreduce_cost

SIZES = {
    "hidden_size": 8192,
    "sequence_length": 4096,
    "batch_size": 2,
    "num_gpus": 8,
    "num_layers": 80,
}
FULL = [
    word for name, value in SIZES.items() for word in (f"--{name.replace('_', '-')}", str(value))
]


def test_allreduce_is_the_function(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "allreduce", *FULL)
    expected = tensor_parallel_allreduce_cost(**SIZES)
    assert {key: found[key] for key in expected} == expected
    assert found["inputs"]["bandwidth_gb_per_sec"] == {
        "value": 300.0,
        "from": "default: NVLink of an A100, nominal, one direction",
        "source": "",
    }


def test_allreduce_takes_every_argument(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--bytes-per-element", "4", "--allreduces-per-layer", "1"]
    found = run_json(capsys, "allreduce", *FULL, *words, "--bandwidth-gb-per-sec", "31.5")
    expected = tensor_parallel_allreduce_cost(
        **SIZES, bytes_per_element=4, allreduces_per_layer=1, bandwidth_gb_per_sec=31.5
    )
    assert {key: found[key] for key in expected} == expected
    same = run_json(
        capsys, "allreduce", *FULL, *words[2:], "--dtype", "fp32", "--bandwidth", "252Gb/s"
    )
    assert {key: same[key] for key in expected} == expected


def test_allreduce_fills_from_the_catalog_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["allreduce", "--model", "llama3-70b", "--on", "h100_sxm", "--gpus", "8"]
    inputs = run_json(capsys, *words)["inputs"]
    assert inputs["hidden_size"]["value"] == 8192
    assert inputs["hidden_size"]["from"] == "model llama3-70b"
    assert inputs["hidden_size"]["source"] == Model.named("llama3-70b").source
    assert inputs["bandwidth_gb_per_sec"]["value"] == 450
    assert "datasheet" in inputs["bandwidth_gb_per_sec"]["source"]
    assert inputs["batch_size"] == {"value": 1, "from": "default", "source": ""}
    text = run_text(capsys, *words)
    for part in ("64 MiB", "18.79 GB", "41.76 ms", "450 GB/s", "model llama3-70b", "Formula: "):
        assert part in text


def test_options_win_over_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "llama3-70b", "--on", "h100_sxm", "--gpus", "8", "--num-layers", "1"]
    inputs = run_json(capsys, "allreduce", *words, "--bandwidth", "1GB/s")["inputs"]
    assert inputs["num_layers"]["from"] == inputs["bandwidth_gb_per_sec"]["from"] == "option"


def test_allreduce_has_the_names_of_the_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    names = {"batch-size": "batch", "num-gpus": "gpus", "num-layers": "layers"}
    words = [f"--{names.get(word[2:], word[2:])}" if word[:2] == "--" else word for word in FULL]
    assert words != FULL
    assert run_json(capsys, "allreduce", *words) == run_json(capsys, "allreduce", *FULL)
    named = run_json(capsys, "allreduce", "--model", "llama3-70b", "--gpus", "8")
    assert run_json(capsys, "allreduce", "llama3-70b", "--gpus", "8") == named
    both = run_error(capsys, "allreduce", "llama3-70b", "--model", "llama3-8b", "--gpus", "8")
    assert "MODEL and --model exclude each other" in both


@pytest.mark.parametrize("gpus", ["1", "8"])
def test_allreduce_is_explained_by_its_own_formulas(
    capsys: pytest.CaptureFixture[str], gpus: str
) -> None:
    words = ["allreduce", "llama3-70b", "--on", "h100_sxm", "--gpus", gpus, "--explain"]
    data = run_json(capsys, *words)
    assert len(data["explanation"]) == 4
    for each in data["explanation"]:
        assert each["value"] == pytest.approx(data[each["figure"]], rel=1e-4)
    sent = data["explanation"][1]
    assert sent["formula"] == "2 x (n - 1) x message / n"
    assert any("datasheet" in source for source in data["explanation"][3]["sources"])
    text = run_text(capsys, *words)
    assert max(len(line) for line in text.splitlines() if "http" not in line) <= 80
    assert f"= 2 x ({gpus} - 1) x 64 MiB / {gpus}" in text
    assert "explanation" not in run_json(capsys, *words[:-1])


def test_groups_beyond_a_node_use_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "llama3-405b", "--on", "h100_sxm", "--network", "ib_8x400g", "--gpus", "16"]
    found = run_json(capsys, "allreduce", *words)["inputs"]["bandwidth_gb_per_sec"]
    assert found["value"] == 400
    assert found["from"] == "network ports of ib_8x400g"


def test_notes_name_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "gpt2-xl", "--on", "rtx4090", "--gpus", "4"]
    notes = run_json(capsys, "allreduce", *words)["notes"]
    assert "25 attention heads do not divide evenly over 4 GPUs." in notes
    assert any("no peer access" in note for note in notes)


def test_every_family_is_priced(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for case in json.loads((Path(__file__).parent / "data" / "hf_tiny.json").read_text())["models"]:
        (tmp_path / "config.json").write_text(json.dumps(case["config"]))
        found = run_json(capsys, "allreduce", "--model", str(tmp_path), "--gpus", "2")
        assert found["message_size_bytes"] == 4096 * 64 * 2


def test_parallel_blocks_are_priced_with_one_allreduce(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "allreduce", "--model", "gpt-neox-20b", "--gpus", "2")
    assert found["inputs"]["allreduces_per_layer"]["value"] == 1


def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    listed = run_json(capsys, "models")["models"]
    assert [model["name"] for model in listed] == catalog.names("models")
    assert "llama3-70b" in run_text(capsys, "models")
    one = run_json(capsys, "models", "mixtral-8x7b")
    assert one["active_parameters"] == Model.named("mixtral-8x7b").active_parameters
    assert "8 experts of 14,336, top 2" in run_text(capsys, "models", "Mixtral_8x7B")


def test_a_part_of_several_names_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    for part, least in (("llama3", 5), ("Qwen_3.5", 3)):
        listed = [model["name"] for model in run_json(capsys, "models", part)["models"]]
        folded = part.lower().replace("_", "")
        assert len(listed) >= least
        assert listed == [each for each in catalog.names("models") if folded in each]
        text = run_text(capsys, "models", part)
        assert text.count("\n") == len(listed) + 1
    assert run_json(capsys, "models", "kimi-k2")["name"] == "kimi-k2"  # also part of another name
    assert run_json(capsys, "models", "llama3.1-70b")["name"] == "llama3-70b"  # an alias
    assert "did you mean llama3-8b" in run_error(capsys, "models", "lama3-8b")
    assert "unknown model 'lama'" in run_error(capsys, "models", "lama")
    assert "must be a name of the catalog" in run_error(capsys, "models", "")


def test_software(capsys: pytest.CaptureFixture[str]) -> None:
    listed = run_json(capsys, "software")["software"]
    assert [software["name"] for software in listed] == catalog.names("software")
    text = run_text(capsys, "software")
    assert all(f"\n{name} " in text for name in catalog.names("software"))
    assert max(map(len, text.splitlines())) <= 80
    trains = run_json(capsys, "software", "megatron")["software"]
    assert {each["name"] for each in trains} >= {"megatron_core", "megatron_rocm"}
    assert run_json(capsys, "software", "vllm")["vendors"][:2] == ["nvidia", "amd"]
    words = "estimate llama3-8b --on h100_sxm --decode --batch 1 --context-tokens 1".split()
    said = run_error(capsys, *words, "--software", "tgi")
    assert all(f"{name}," in said for name in ("sglang", "torch", "trtllm", "vllm"))


def test_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    listed = run_json(capsys, "clusters")
    assert [cluster["name"] for cluster in listed["clusters"]] == catalog.names("clusters")
    assert [network["name"] for network in listed["networks"]] == catalog.names("networks")
    text = run_text(capsys, "clusters")
    assert "gb200_nvl72" in text
    assert "ib_8x400g" in text
    one = run_json(capsys, "clusters", "h100")
    assert one["device"]["peak_flop_per_s"]["bf16"] == 989.4e12
    assert one["sources"]["tiers.bytes_per_s"]["caveat"]
    assert "450 GB/s" in run_text(capsys, "clusters", "h100_sxm")
    assert "50 GB/s" in run_text(capsys, "clusters", "ib_8x400g")
    assert run_json(capsys, "clusters", "ib")["nics_per_gpu"] == 1


@pytest.fixture
def config(tmp_path: Path) -> Path:
    case = json.loads((Path(__file__).parent / "data" / "hf_tiny.json").read_text())["models"][3]
    file = tmp_path / "tiny_config.json"
    file.write_text(json.dumps(case["config"]))
    return file


def test_inspect(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    found = run_json(capsys, "inspect", str(config))
    assert found["file"] == str(config)
    assert found["kind"] == "hf-config"
    assert found["model"]["name"] == "tiny"
    assert found["model"]["parameters"] == Model.from_hf(config).parameters
    assert found["model"]["active_parameters"] == Model.from_hf(config).active_parameters
    text = run_text(capsys, "inspect", str(config))
    assert "4 experts of 160, top 2" in text


def test_inspect_shows_what_every_kind_of_layer_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for case in json.loads((Path(__file__).parent / "data" / "hf_tiny.json").read_text())["models"]:
        (tmp_path / "config.json").write_text(json.dumps(case["config"]))
        assert f"{case['parameters']:,}" in run_text(capsys, "inspect", str(tmp_path))


def test_an_unknown_family_is_a_note_not_a_warning(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    content = json.loads(config.read_text()) | {"model_type": "brandnew"}
    config.write_text(json.dumps(content))
    assert "Note: model_type 'brandnew' is not a known family" in " ".join(
        run_text(capsys, "inspect", str(config)).split()
    )


def test_inspect_refuses_other_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"results": []}')
    assert cli.main(["inspect", str(tmp_path / "x.json")]) == 2
    assert "not of a kind that is read" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    text = run_text(capsys, *words)
    for command in cli.COMMANDS:
        assert f"  {command}" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_of_each_command_has_examples(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    text = run_text(capsys, command, "--help")
    assert "--json" in text
    assert f"examples:\n  shardcost {command}" in text
    assert max(map(len, text.splitlines())) <= 80


def test_every_command_is_in_a_group_of_the_help() -> None:
    grouped = [name for names in cli.GROUPS.values() for name in names]
    assert set(cli.COMMANDS) <= set(grouped)
    assert len(grouped) == len(set(grouped))


def examples_of(text: str) -> list[list[str]]:
    """Return the words of each example in a help, comments and what the shell does left out."""
    lines = text.partition("examples:\n")[2].partition("\n\n")[0].replace("\\\n", " ").splitlines()
    words = [shlex.split(line.partition("(")[0], comments=True) for line in lines]
    return [each[1:] for each in words if each[:1] == ["shardcost"]]


RUN = {"allreduce", "collective", "estimate", "models", "clusters", "software"}
"""Commands whose examples are quick and need at most a model's file; the others' are parsed."""


@pytest.mark.parametrize("words", [*([each] for each in cli.COMMANDS), ["measure", "kernels"]])
def test_examples_of_the_help_are_in_order(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    sizes = {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16}
    model = {"model_type": "llama", **sizes, "intermediate_size": 4096, "vocab_size": 32000}
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "config.json").write_text(json.dumps(model))
    monkeypatch.chdir(tmp_path)
    examples = examples_of(run_text(capsys, *words, "--help"))
    assert examples
    for example in examples:
        if words[0] not in RUN:
            command, rest = cli.command_of(example)
            command.parser().parse_args(rest)
        else:
            assert cli.main(example) == 0, (example, capsys.readouterr().err)
            capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("--sequence 4096", "; did you mean --sequence-length?"),
        ("--contxt-tokens=5", "; did you mean --context-tokens"),
        ("--banana", "--banana (see"),
    ],
)
def test_an_unknown_option_names_the_nearest(
    capsys: pytest.CaptureFixture[str], words: str, near: str
) -> None:
    assert near in run_error(capsys, "plan", "llama3-8b", "--train", *words.split())


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ("estimate --tensor-parallel-size 8 --decode", "; here it is --tp"),
        ("estimate --tensor_parallel_size=8 --decode", "; here it is --tp"),
        ("estimate --engine vllm --decode", "; here it is --software"),
        ("load --input-len 1024", "; here it is --isl"),
        ("estimate --model --decode", "; MODEL stands by itself, without an option"),
        ("plan --tp 8 --decode", "; what a search varies is fixed by --fix tp=…"),
        ("plan --micro-batch-size 2 --train", "; what a search varies is fixed by --fix micro_b"),
    ],
)
def test_options_of_other_tools_are_known(
    capsys: pytest.CaptureFixture[str], words: str, ours: str
) -> None:
    command, *rest = words.split()
    assert ours in run_error(capsys, command, "llama3-8b", *rest)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_text(capsys, "--version") == f"shardcost {shardcost.__version__}\n"


@pytest.mark.parametrize("width", ["40", "80", "200", "x", "0"])
def test_tables_fit_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    columns = 200 if width == "200" else 80  # columns of names and numbers do not shrink
    for words in (["models"], ["allreduce", "--model", "llama3-8b", "--gpus", "8"]):
        for line in run_text(capsys, *words).splitlines():
            assert len(line) <= columns, line


def shell(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *words],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_the_module_runs_and_loads_no_numpy() -> None:
    code = (
        "import sys; from shardcost.cli import main;"
        " code = main(['allreduce', '--model', 'llama3-70b', '--on', 'h100_sxm', '--gpus', '8',"
        " '--json']); sys.exit(code or 'numpy' in sys.modules)"
    )
    assert shell("-c", code).returncode == 0
    assert shell("-m", "shardcost", "--version").stdout.startswith("shardcost ")
    failed = shell("-m", "shardcost", "allreduce", *FULL, "--num-gpus", "0")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == "shardcost: num_gpus must be a whole number of at least 1, got 0\n"


def test_a_closed_pipe_ends_quietly() -> None:
    command = f"{sys.executable} -m shardcost models --json | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == '{\n  "model'
    assert done.stderr == ""


DECODE = "llama3-8b --on h100_sxm --decode --batch 8 --context-tokens 4096".split()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["estimate", "--help"],
        ["models", "--json"],
        ["estimate", *DECODE],
        ["plan", *DECODE, "--json"],
    ],
    ids=lambda words: words[0],
)
def test_a_full_disk_is_said_in_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "shardcost", *words],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    said = "shardcost: the output: cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_a_closed_output_and_a_lack_of_memory_end_quietly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = f"{sys.executable} -m shardcost models >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

    def exhausted(_words: list[str]) -> int:
        raise MemoryError

    monkeypatch.setattr(cli, "_run", exhausted)
    assert "out of memory" in run_error(capsys, "models")


def test_an_interrupt_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupted)
    assert cli.main(["models"]) == 130
    assert capsys.readouterr().err == "shardcost: interrupted\n"


def test_a_terminal_without_unicode_shows_what_it_can() -> None:
    import os

    done = shell("-m", "shardcost", "--help", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "usage: shardcost COMMAND [OPTION?]" in done.stdout

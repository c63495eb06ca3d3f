"""Completion: the scripts know every command, option and name, and bash runs its script."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from running import run_error, run_json, run_text

from shardcost import catalog
from shardcost.cli import COMMANDS
from shardcost.options import ESTIMATE, LOAD


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import contextlib
    import io

    from shardcost.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["completion", "bash"]) == 0
    file = tmp_path_factory.mktemp("completion") / "shardcost.bash"
    file.write_text(printed.getvalue())
    return file


def completed(script: Path, *words: str, shell: str = "bash") -> list[str]:
    """Return what bash offers for the last word, in a folder with one file."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    line = " ".join(f"'{word}'" for word in ("shardcost", *words))
    text = f"""source {script}; compopt() {{ :; }}  # which is only there while somebody types
COMP_WORDS=({line}); COMP_CWORD={len(words)}; _shardcost; printf '%s\\n' "${{COMPREPLY[@]}}" """
    (script.parent / "empty").mkdir(exist_ok=True)
    (script.parent / "empty" / "mine.json").touch()
    done = subprocess.run(
        [shell, "--norc", "--noprofile", "-c", text],
        capture_output=True, text=True, check=True, cwd=script.parent / "empty",
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def test_commands(script: Path) -> None:
    assert completed(script, "") == list(COMMANDS)
    assert completed(script, "est") == ["estimate"]


def test_options_of_each_command(script: Path) -> None:
    flags = completed(script, "estimate", "llama3-8b", "--")
    assert {option.flag for name, option in ESTIMATE.items() if name != "model"} <= set(flags)
    load = completed(script, "load", "llama3-8b", "--")
    assert {option.flag for name, option in LOAD.items() if name != "model"} <= set(load)
    assert completed(script, "plan", "llama3-8b", "--par") == ["--pareto"]
    for command in COMMANDS:
        assert "--json" in completed(script, command, "--js")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("estimate", "mixtral-8x7"), ["mixtral-8x7b"]),
        (("estimate", "llama3-8b", "--on", "h100_s"), ["h100_sxm"]),
        (("plan", "llama3-8b", "--on", "h100_sxm,h200_s"), ["h100_sxm,h200_sxm"]),
        (("plan", "llama3-8b", "--network", "roce_8x4"), ["roce_8x400g"]),
        (("estimate", "llama3-8b", "--software", "sgl"), ["sglang"]),
        (("estimate", "llama3-8b", "--schedule", "inter"), ["interleaved"]),
        (("plan", "llama3-8b", "--objective", "thr"), ["throughput"]),
        (("collective", "all_red"), ["all_reduce"]),
        (("estimate", "llama3-8b", "--vary", "context"), ["context_scheme=", "context_tokens="]),
        (("estimate", "llama3-8b", "--batch", ""), []),
        (("estimate", "llama3-8b", "--plot", "mi"), ["mine.json"]),
        (("inspect", "mi"), ["mine.json"]),
        (("clusters", "ib_8x400"), ["ib_8x400g"]),
        (("measure", "ker"), ["kernels"]),
        (("completion", "z"), ["zsh"]),
    ],
)
def test_values(script: Path, words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(script, *words) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_their_script(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shell: str
) -> None:
    text = run_text(capsys, "completion", shell)
    assert all(name in text for name in (*COMMANDS, *catalog.names("models"), "context-tokens"))
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its script is not run")
    file = tmp_path / "script"
    file.write_text(text)
    done = subprocess.run([shell, "-n", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_shell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'tcsh'" in run_error(capsys, "completion", "tcsh")
    data = run_json(capsys, "completion", "bash")
    assert data == {"shell": "bash", "script": run_text(capsys, "completion", "bash")}

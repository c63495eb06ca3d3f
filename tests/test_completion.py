"""Completion: the scripts know every command, option and name, and each shell runs its own.

Keys are typed at a terminal of their own into bash and zsh, and fish is asked what it would offer.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import run_error, run_json, run_text

from shardcost import catalog
from shardcost.cli import COMMANDS
from shardcost.options import ESTIMATE, LOAD

INTERACTIVE = {"bash": ("bash", "--norc", "--noprofile", "-i"), "zsh": ("zsh", "-f", "-i")}
SECONDS = 30.0


def script_in(folder: Path, shell: str) -> Path:
    """Return a file with the script of a shell, in a folder with a few files to complete."""
    import contextlib
    import io

    from shardcost.cli import main

    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its completion is not run")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["completion", shell]) == 0
    file = folder / f"shardcost.{shell}"
    file.write_text(printed.getvalue())
    (folder / "files").mkdir()
    for name in ("mine.json", "two words.json"):
        (folder / "files" / name).touch()
    (folder / "files" / "results").mkdir()
    return file


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return script_in(tmp_path_factory.mktemp("bash"), "bash")


def completed(script: Path, *words: str) -> list[str]:
    """Return what bash offers for the last word, in the folder of files."""
    line = " ".join(f"'{word}'" for word in ("shardcost", *words))
    text = f"""source {script}; compopt() {{ :; }}  # which is only there while somebody types
COMP_WORDS=({line}); COMP_CWORD={len(words)}; _shardcost; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", text],
        capture_output=True, text=True, check=True, cwd=script.parent / "files",
    )  # fmt: skip
    assert done.stderr == ""
    return [line for line in done.stdout.split("\n") if line]


def test_commands(script: Path) -> None:
    assert completed(script, "") == [*COMMANDS, "--help", "--version"]
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
        (("inspect", "two"), ["two words.json"]),
        (("validate", "mi"), ["mine.json"]),
        (("calibrate", "mine.json", "--output", "mi"), ["mine.json"]),
        (("allreduce", "mixtral-8x7"), ["mixtral-8x7b"]),
        (("plan", "llama3-8b", "--launch", "vl"), ["vllm"]),
        (("plan", "llama3-8b", "--engine", "pro"), ["processes"]),
        (("run", "llama3-8b", "--checkpoint", "as"), ["async"]),
        (("estimate", "llama3-8b", "--on", "=", "h100_s"), ["h100_sxm"]),
        (("estimate", "llama3-8b", "--schedule", "="), list(ESTIMATE["schedule"].choices)),
        (("estimate", "llama3-8b", "--vary", "software", "=", "vllm,sgl"), ["vllm,sglang"]),
        (("estimate", "llama3-8b", "--vary", "tp", "="), []),
        (("clusters", "ib_8x400"), ["ib_8x400g"]),
        (("measure", "ker"), ["kernels"]),
        (("completion", "z"), ["zsh"]),
    ],
)
def test_values(script: Path, words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(script, *words) == offered


ADDED = {
    "est": "imate",
    "--ver": "sion",
    "estimate mixtral-8x7": "b",
    "estimate llama3-8b --on h100_s": "xm",
    "estimate llama3-8b --on=h100_s": "xm",
    "plan llama3-8b --on h100_sxm,h200_s": "xm",
    "estimate llama3-8b --vary context_t": "okens=",
    "estimate llama3-8b --vary tp=1,2 --ba": "tch",
    "plan llama3-8b --par": "eto",
    "models load --js": "on",
    "inspect mi": "ne.json",
    "inspect tw": "o words.json",
    "validate mi": "ne.json",
    "measure ker": "nels",
    "collective all_red": "uce",
    "estimate llama3-8b --batch m": "",
    **{f"{name} --js": "on" for name in COMMANDS},
}
"""What Tab adds to what is typed after ``shardcost``."""


class Terminal:
    """A shell at a terminal of its own, with the script read."""

    def __init__(self, script: Path, shell: str) -> None:
        import pty

        self.process, self.keys = pty.fork()
        if self.process == 0:  # the shell
            os.chdir(script.parent / "files")
            os.environ |= {"HOME": str(script.parent), "TERM": "dumb", "COLUMNS": "200"}
            os.execvp(INTERACTIVE[shell][0], INTERACTIVE[shell])
        self.shown = ""
        self.line("echo 're''ady'\n", "ready")
        self.line(f"source {script}; echo 're''ad'\n", "read")

    def line(self, keys: str, expected: str) -> str:
        """Type keys; return the first line shown that fits an expression, within a time."""
        os.write(self.keys, keys.encode())
        self.shown, found = "", None
        end = time.monotonic() + SECONDS
        while found is None and time.monotonic() < end:
            if select.select([self.keys], [], [], 0.1)[0]:
                self.shown += os.read(self.keys, 65536).decode(errors="replace")
            found = re.search(rf"^({expected})\r*\n", self.shown, re.MULTILINE)
        assert found is not None, f"{expected} is not shown: {self.shown!r}"
        return found[1]

    def completed(self, typed: str) -> str:
        """Return what stands there after Tab; the shell itself is made to say so."""
        return self.line(f"shardcost {typed}\t\x01echo '<'\n", "<[^\r]*")[1:]

    def offered(self, typed: str, last: str) -> str:
        """Return what is shown below a line after Tab was pressed twice, up to a line."""
        self.line(f"shardcost {typed}\t\t", rf"[^\r]*{last}[^\r]*")
        shown = self.shown
        self.line("\x15echo '<'\n", "<")
        return shown

    def close(self) -> None:
        """End the shell."""
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.keys)


@pytest.fixture(scope="module", params=list(INTERACTIVE))
def terminal(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Terminal]:
    pytest.importorskip("pty", reason="there are no terminals to type at")
    shell = request.param
    terminal = Terminal(script_in(tmp_path_factory.mktemp(shell), shell), shell)
    yield terminal
    terminal.close()


def test_what_is_typed_is_completed(terminal: Terminal) -> None:
    completed = {typed: terminal.completed(typed) for typed in ADDED}
    assert completed == {typed: f"shardcost {typed}{added}" for typed, added in ADDED.items()}


def test_choices_are_listed(terminal: Terminal) -> None:
    shown = terminal.offered("estimate llama3-8b --context-", "--context-tokens")
    assert "--context-scheme" in shown


def test_zsh_takes_its_script_from_a_folder(tmp_path: Path) -> None:
    script_in(tmp_path, "zsh").rename(tmp_path / "_shardcost")
    loaded = "autoload -Uz compinit && compinit -u && echo $_comps[shardcost]"
    done = subprocess.run(
        ["zsh", "-f", "-c", f"fpath=({tmp_path} $fpath); {loaded}"],
        capture_output=True, text=True, check=True, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("_shardcost\n", "")


def test_fish_completes(tmp_path: Path) -> None:
    script = script_in(tmp_path, "fish")
    asked = "; ".join(f"echo '<{typed}'; complete -C 'shardcost {typed}'" for typed in ADDED)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {script}; {asked}"],
        capture_output=True, text=True, check=True, cwd=tmp_path / "files",
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.stderr == ""
    offered = [block.splitlines() for block in done.stdout.split("<")[1:]]
    words = {typed: [line.partition("\t")[0] for line in lines] for typed, *lines in offered}
    wanted = {typed: [typed.split()[-1] + added] if added else [] for typed, added in ADDED.items()}
    assert words == wanted
    help_of = dict(line.split("\t") for line in offered[0][1:])
    assert help_of == {"estimate": COMMANDS["estimate"]}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_know_commands_models_and_options(
    capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    text = run_text(capsys, "completion", shell)
    assert all(name in text for name in (*COMMANDS, *catalog.names("models"), "context-tokens"))


def test_an_unknown_shell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'tcsh'" in run_error(capsys, "completion", "tcsh")
    data = run_json(capsys, "completion", "bash")
    assert data == {"shell": "bash", "script": run_text(capsys, "completion", "bash")}

"""What somebody new does with an installed shardcost, in an empty folder, without the repository.

``python -I clean_trial.py VERSION [WHAT …]`` tries the front door and, as asked, ``numbers`` (what
needs NumPy) and ``page`` (the server). It is run by interpreters that have the package and
nothing of the project beside it, so it uses the standard library only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

ASKED = ["llama3-8b", "--on", "h100_sxm", "--gpus", "8"]
DECODE = [*ASKED, "--decode", "--batch", "64", "--context-tokens", "4096"]
ALLREDUCE = ("--model", "llama3-70b", "--gpus", "8", "--on", "h100_sxm")
NUMBERS = {
    "estimate": [*DECODE, "--tp", "8"],
    "plan": DECODE,
    "collective": ["all_reduce", "--size", "64MiB", "--gpus", "8", "--on", "h100_sxm"],
    "load": [
        *ASKED[:3], "--software", "vllm", "--rate", "4", "--isl", "256", "--osl", "32",
        "--requests", "50",
    ],
}  # fmt: skip
COMMAND = str(Path(sys.executable).with_name("shardcost"))


def told(*words: str) -> Any:
    """Return the JSON that the installed command prints."""
    done = subprocess.run([COMMAND, *words, "--json"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), (words, done)
    return json.loads(done.stdout)


def try_front_door(expected: str) -> None:
    """Import the package from where it is installed, and ask for the cost of an all-reduce."""
    import shardcost

    assert Path(sys.prefix) in Path(shardcost.__file__).parents, shardcost.__file__
    assert shardcost.__version__ == version("shardcost") == expected
    assert (files("shardcost") / "py.typed").is_file()
    assert "numpy" not in sys.modules
    assert told("allreduce", *ALLREDUCE)


def try_numbers() -> None:
    """Ask each command that computes with NumPy, and Python."""
    from shardcost import Cluster, Decode, Layout, Model, estimate

    for command, words in NUMBERS.items():
        assert told(command, *words), command
    found = estimate(
        Model.named("llama3-8b"),
        Cluster.named("h100_sxm"),
        Layout(tp=8),
        Decode(batch=64, context_tokens=4096),
    )
    printed = told("estimate", *NUMBERS["estimate"])
    assert abs(found.time_s - printed["time_s"]) < 1e-9


def try_page() -> None:
    """Start the server, fetch the page and an answer, and end it."""
    words = [COMMAND, "serve", "--port", "0", "--no-open", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["url"]
        with urlopen(address, timeout=60) as page:
            assert b"<title>" in page.read()
        ask = {"model": "llama3-8b", "on": "h100_sxm", "phase": "decode", "batch": 1}
        body = json.dumps({**ask, "context_tokens": 4096}).encode()
        asked = Request(f"{address}/api/estimate", body, {"Content-Type": "application/json"})
        with urlopen(asked, timeout=60) as answer:
            assert json.load(answer)["time_s"] > 0
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    assert not list(Path().iterdir()), "not an empty folder"
    try_front_door(sys.argv[1])
    if "numbers" in sys.argv:
        try_numbers()
    if "page" in sys.argv:
        try_page()
    print("python", ".".join(map(str, sys.version_info[:3])), *sys.argv[1:])

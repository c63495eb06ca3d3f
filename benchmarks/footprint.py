"""How much there is to download, to import and to start: bytes, and ratios measured in one run.

    python benchmarks/footprint.py [--json]

1. Bytes of the wheel, and of what it installs.
2. Whole processes against ``python -c pass``: ``import shardcost``, ``from shardcost import
   estimate``, and two commands; and the modules that the first loads. Python finds its compiled
   files (``.pyc``), as it does from the second start on. The least of many runs counts, each in
   turn with all others and with the baseline.

docs/stability.md states them; the wheel is held to that within a tenth.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, Final

from measuring import NOW, ROOT, Figure, Pair, Tables, as_data, asked_for_json, figure, in_turn
from measuring import show as show_figures

ESTIMATE: Final = (
    "estimate llama3-70b --on h100_sxm --tp 8 --decode --batch 64 --context-tokens 4096 --json"
)
PLAN: Final = (
    "plan llama3-70b --on h100_sxm --gpus 2..8 --decode --batch 1..256 --context-tokens 4096"
    " --objective throughput --max-tpot 25ms"
)
"""The README's."""
COMMANDS: Final = {
    "pass": ["-c", "pass"],
    "import": ["-c", "import shardcost"],
    "estimate": ["-c", "from shardcost import estimate"],
    "shardcost estimate": ["-m", "shardcost", *shlex.split(ESTIMATE)],
    "shardcost plan": ["-m", "shardcost", *shlex.split(PLAN)],
}
MOST: Final = {"import": 3.0, "shardcost estimate": 8.0, "shardcost plan": 12.0}
"""Times ``python -c pass``."""
SAID: Final = {
    "import": "import shardcost",
    "estimate": "from shardcost import estimate",
    "shardcost estimate": "shardcost estimate … --json",
    "shardcost plan": "shardcost plan … (the README's)",
}
MODULES: Final = (
    "import sys; old = set(sys.modules); import shardcost; print(*set(sys.modules) - old)"
)


def wheel_bytes() -> dict[str, int]:
    """Return the bytes of the wheel and of the files in it."""
    with tempfile.TemporaryDirectory() as folder:
        program = f"import hatchling.build as b; print(b.build_wheel({folder!r}))"
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            unpacked = sum(each.file_size for each in packed.infolist())
        return {"wheel_bytes": wheel.stat().st_size, "installed_bytes": unpacked}


def start_ratios(runs: int = 21) -> Pair:
    """Return the least milliseconds of each process with both versions, and ratios to the first."""
    times: dict[str, dict[str, list[float]]] = {}
    for turn, tree in enumerate(in_turn(runs + 1)):
        each = times.setdefault(tree.name, {name: [] for name in COMMANDS})
        environment, ready = tree.environment, turn >= len(times)
        for name, words in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, *words], env=environment, check=True, stdout=subprocess.DEVNULL
            )
            if ready:  # not the first, which may compile
                each[name].append(1e3 * (time.perf_counter() - start))
    found = {tree: _ratios(each) for tree, each in times.items()}
    return Pair(found["now"], found.get("before"))


def _ratios(times: dict[str, list[float]]) -> dict[str, float]:
    least = {name: min(values) for name, values in times.items()}
    ratios = {f"{name}_over_pass": least[name] / least["pass"] for name in COMMANDS}
    return {f"{name}_ms": value for name, value in least.items()} | ratios


def modules() -> list[str]:
    """Return what ``import shardcost`` loads besides the standard library."""
    words = [sys.executable, "-c", MODULES]
    done = subprocess.run(words, env=NOW.environment, check=True, capture_output=True)
    names = {name.partition(".")[0] for name in done.stdout.decode().split()}
    return sorted(names - set(sys.stdlib_module_names))


def start_figures(pair: Pair) -> list[Figure]:
    """Return the start of each process as a multiple of Python's own."""
    said = {name: f"{pair.now[f'{name}_ms']:.1f} ms" for name in COMMANDS}
    return [
        figure(
            pair,
            f"{name}_over_pass",
            words,
            unit="x python -c pass",
            most=MOST.get(name),
            note=f"{said[name]}, python -c pass {said['pass']}",
        )
        for name, words in SAID.items()
    ]


def tables() -> Tables:
    """Return the figures that are compared."""
    title = "Start of whole processes, with .pyc files, on one core"
    return {title: start_figures(start_ratios())}


def main() -> None:
    """Measure all of it on one core and print it."""
    as_json = asked_for_json(__doc__)
    size, pair, loaded = wheel_bytes(), start_ratios(), modules()
    if as_json:
        found: dict[str, Any] = size | pair.now | {"modules": loaded, "before": pair.before}
        print(json.dumps(found | as_data({"figures": start_figures(pair)}), indent=2))
        return
    print(f"wheel      {size['wheel_bytes']:>12,} bytes")
    print(f"installed  {size['installed_bytes']:>12,} bytes")
    print(f"import shardcost loads, besides the standard library: {', '.join(loaded) or 'nothing'}")
    show_figures({"Start of whole processes, with .pyc files, on one core": start_figures(pair)})


if __name__ == "__main__":
    main()

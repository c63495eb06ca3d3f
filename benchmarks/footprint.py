"""How much there is to download and to import: bytes of the wheel, and ratios measured in one run.

    python benchmarks/footprint.py [--json]

1. Bytes of the wheel, and of what it installs.
2. ``import shardcost`` and ``from shardcost import estimate`` against ``python -c pass``, as whole
   processes, and the modules that the first loads.

docs/stability.md states them; the wheel is held to that within a tenth.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from measuring import asked_for_json

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {
    "pass": "pass",
    "import": "import shardcost",
    "estimate": "from shardcost import estimate",
}
MODULES = "import sys; old = set(sys.modules); import shardcost; print(*set(sys.modules) - old)"


def wheel_bytes() -> dict[str, int]:
    """Return the bytes of the wheel and of the files in it."""
    with tempfile.TemporaryDirectory() as folder:
        program = f"import hatchling.build as b; print(b.build_wheel({folder!r}))"
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            unpacked = sum(each.file_size for each in packed.infolist())
        return {"wheel_bytes": wheel.stat().st_size, "installed_bytes": unpacked}


def start_ratios(runs: int = 41) -> dict[str, float]:
    """Return the median milliseconds of each process, run in turn, and ratios to the first."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(runs):
        for name, code in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times[name].append(1e3 * (time.perf_counter() - start))
    median = {name: statistics.median(values) for name, values in times.items()}
    ratios = {f"{name}_over_pass": median[name] / median["pass"] for name in COMMANDS}
    return {f"{name}_ms": value for name, value in median.items()} | ratios


def modules() -> list[str]:
    """Return what ``import shardcost`` loads besides the standard library."""
    done = subprocess.run([sys.executable, "-c", MODULES], check=True, capture_output=True)
    names = {name.partition(".")[0] for name in done.stdout.decode().split()}
    return sorted(names - set(sys.stdlib_module_names))


def main() -> None:
    """Measure all of it on one core and print it."""
    as_json = asked_for_json(__doc__)
    size, start, loaded = wheel_bytes(), start_ratios(), modules()
    if as_json:
        print(json.dumps(size | start | {"modules": loaded}, indent=2))
        return
    print(f"wheel                      {size['wheel_bytes']:>12,} bytes")
    print(f"installed                  {size['installed_bytes']:>12,} bytes")
    for name, code in list(COMMANDS.items())[1:]:
        print(f"{code:<34} {start[f'{name}_over_pass']:.2f} x python -c pass")
    print(f"import shardcost loads, besides the standard library: {', '.join(loaded)}")


if __name__ == "__main__":
    main()

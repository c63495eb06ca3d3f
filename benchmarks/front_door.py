"""How fast the front door is: ratios and rates measured in one run, on one core.

    python benchmarks/front_door.py [--json]

1. A call of `tensor_parallel_allreduce_cost`, checks included, against its bare formula inline.
2. Cells per second of `tensor_parallel_allreduce_cost_grid`.
3. `shardcost allreduce … --json` against ``python -c pass``, as whole processes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import timeit
from typing import Any

import numpy as np
from measuring import asked_for_json

from shardcost import tensor_parallel_allreduce_cost, tensor_parallel_allreduce_cost_grid

SETUP = "h, s, b, n, layers, e, bandwidth, a = 8192, 4096, 1, 8, 80, 2, 300.0, 2"
BARE = """
message = b * s * h * e
sent = 2 * (n - 1) / n * message
total = sent * layers * a
time_ms = total / (bandwidth * 1e9) * 1e3
"""
RESULT = """
result = {"message": message, "sent": round(sent, 4), "total": round(total, 4),
          "time_ms": round(time_ms, 4)}
"""
CALL = "cost(h, s, b, n, layers, e, bandwidth, a)"
COMMAND = [
    "-m", "shardcost", "allreduce", "--hidden-size", "8192", "--sequence-length", "4096",
    "--batch-size", "1", "--num-gpus", "8", "--num-layers", "80", "--json",
]  # fmt: skip


def call_ratios(repeats: int = 25, number: int = 20_000) -> dict[str, float]:
    """Return nanoseconds of a call and of the bare formula, and their ratios.

    The three are timed in turn, many times; the least of each is what the machine can do.
    """
    names = {"cost": tensor_parallel_allreduce_cost}
    timers = {
        "bare_ns": timeit.Timer(BARE, SETUP),
        "bare_with_rounded_result_ns": timeit.Timer(BARE + RESULT, SETUP),
        "call_ns": timeit.Timer(CALL, SETUP, globals=names),
    }
    best = dict.fromkeys(timers, float("inf"))
    for _ in range(repeats):
        for name, timer in timers.items():
            best[name] = min(best[name], timer.timeit(number) / number * 1e9)
    return best | {
        "call_over_bare": best["call_ns"] / best["bare_ns"],
        "call_over_bare_with_rounded_result": (
            best["call_ns"] / best["bare_with_rounded_result_ns"]
        ),
    }


def grid_rates(repeats: int = 5) -> dict[str, float]:
    """Return cells per second where every argument is its own array, and on an open grid."""
    cells = 5_000_000
    random = np.random.default_rng(0)
    every_argument: list[Any] = [
        random.integers(1, 16384, cells),
        random.integers(1, 8192, cells),
        random.integers(1, 64, cells),
        random.integers(1, 72, cells),
        random.integers(0, 128, cells),
        random.integers(1, 4, cells),
        random.uniform(10, 900, cells),
        random.integers(0, 4, cells),
    ]
    open_grid: list[Any] = [
        64 * np.arange(1, 101)[:, None, None], 2048, np.arange(1, 201)[:, None],
        np.arange(1, 251), 32,
    ]  # fmt: skip
    return {
        "every_argument_an_array_cells_per_s": _cells_per_s(every_argument, repeats),
        "open_grid_cells_per_s": _cells_per_s(open_grid, repeats),
    }


def _cells_per_s(arguments: list[Any], repeats: int) -> float:
    best = float("inf")
    size = 0
    for _ in range(repeats):
        start = time.perf_counter()
        grid = tensor_parallel_allreduce_cost_grid(*arguments)
        best = min(best, time.perf_counter() - start)
        size = grid["total_comm_time_ms"].size
    return size / best


def start_ratio(runs: int = 41) -> dict[str, float]:
    """Return the median milliseconds of both processes, run in turn, and their ratio."""
    commands = {"python_pass_ms": ["-c", "pass"], "shardcost_ms": COMMAND}
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, words in commands.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
            times[name].append((time.perf_counter() - start) * 1e3)
    median = {name: statistics.median(values) for name, values in times.items()}
    return median | {"start_ratio": median["shardcost_ms"] / median["python_pass_ms"]}


def main() -> None:
    """Run all three on one core and print them."""
    as_json = asked_for_json(__doc__)
    call, grid, start = call_ratios(), grid_rates(), start_ratio()
    if as_json:
        print(json.dumps(call | grid | start, indent=2))
        return
    print(f"call, checks included  {call['call_ns']:8,.0f} ns")
    print(f"  over the bare formula inline            {call['call_over_bare']:5.2f} x  (at most 6)")
    print(
        "  over the formula with rounded results   "
        f"{call['call_over_bare_with_rounded_result']:5.2f} x"
    )
    for name, text in (
        ("every_argument_an_array_cells_per_s", "grid, every argument an array"),
        ("open_grid_cells_per_s", "grid, open"),
    ):
        print(f"{text:<30} {grid[name] / 1e6:8.1f} million cells/s  (at least 20)")
    print(f"shardcost allreduce --json {start['shardcost_ms']:8.1f} ms")
    print(f"  over python -c pass                     {start['start_ratio']:5.2f} x  (at most 10)")


if __name__ == "__main__":
    main()

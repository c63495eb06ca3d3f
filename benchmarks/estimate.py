"""How fast an estimate is: one layout at a time, and many in one call, on one core, in one run.

    python benchmarks/estimate.py [--json]

One at a time, 2,000 training layouts of Llama 3 70B that differ from call to call are estimated
with everything in them: program, prices, schedule, memory, warnings. Together, a grid of layouts
with one structure is one call; some of its cells are asked for one by one and must come out the
same. What a call costs on top of its cells is why the first is slower per layout.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any

import numpy as np
from measuring import asked_for_json

from shardcost import Cluster, Layout, Model, Train, estimate

CLUSTER = Cluster.named("h100_sxm", network="ib_8x400g")
MODEL = Model.named("llama3-70b")
WORK = Train(global_batch=1024, sequence_length=4096)
DEGREES = (1, 2, 4, 8)
CALLS = 2_000


def layouts() -> list[Layout]:
    """Return layouts as a search would meet them, each with its own structure."""
    rng = random.Random(1)  # noqa: S311
    found = []
    for _ in range(CALLS):
        tp = rng.choice(DEGREES)
        found.append(
            Layout(
                tp=tp,
                pp=rng.choice(DEGREES),
                dp=rng.choice(DEGREES),
                micro_batch=rng.choice((1, 2, 4)),
                sequence_parallel=tp > 1 and rng.random() < 0.5,
                recompute=rng.choice(("none", "selective", "full")),
                zero=rng.choice((0, 1, 3)),
            )
        )
    return found


def one_at_a_time() -> float:
    """Return scalar estimates per minute."""
    asked = layouts()
    for layout in asked[:50]:
        estimate(MODEL, CLUSTER, layout, WORK)
    start = time.perf_counter()
    for layout in asked:
        estimate(MODEL, CLUSTER, layout, WORK)
    return 60 * len(asked) / (time.perf_counter() - start)


def together() -> tuple[float, int]:
    """Return layouts per minute of one call on a grid, and how many it has."""
    grid = Layout(
        tp=np.array(DEGREES)[:, None, None, None],
        pp=np.array(DEGREES)[None, :, None, None],
        dp=2 ** np.arange(8)[None, None, :, None],
        micro_batch=2 ** np.arange(4)[None, None, None, :],
        sequence_parallel=True,
        zero=1,
    )
    start = time.perf_counter()
    found = estimate(MODEL, CLUSTER, grid, WORK)
    seconds = time.perf_counter() - start
    times: Any = found.time_s
    for place in ((0, 0, 0, 0), (3, 2, 4, 1), (1, 3, 7, 2)):
        alone = Layout(
            tp=DEGREES[place[0]],
            pp=DEGREES[place[1]],
            dp=2 ** place[2],
            micro_batch=2 ** place[3],
            sequence_parallel=True,
            zero=1,
        )
        if not np.isclose(times[place], estimate(MODEL, CLUSTER, alone, WORK).time_s, rtol=1e-9):
            raise SystemExit(f"cell {place} of the grid is not what it is by itself")
    return 60 * times.size / seconds, times.size


def main() -> None:
    """Measure, and print the rates and their ratio."""
    as_json = asked_for_json(__doc__)
    alone = one_at_a_time()
    grid, cells = together()
    figures = {
        "scalar_per_minute": round(alone),
        "grid_per_minute": round(grid),
        "grid_layouts": cells,
        "grid_over_scalar": round(grid / alone, 1),
    }
    if as_json:
        print(json.dumps(figures))
        return
    print(f"one at a time: {alone:10,.0f} estimates a minute")
    print(f"together:      {grid:10,.0f} a minute, {cells:,} in one call ({grid / alone:.1f} x)")


if __name__ == "__main__":
    main()

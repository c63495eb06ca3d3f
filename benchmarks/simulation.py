"""How fast the simulation is: 64 ranks and about 1,000 chunks, measured in one run, on one core.

    python benchmarks/simulation.py [--json]

The ring cuts each of its 64 blocks into 16 pieces that follow each other; the double binary tree
cuts each half of the buffer into 500. One size cuts evenly, so that many transfers end together;
the other is odd, so that chunks differ by a byte and hardly any do. The last case has nothing that
repeats: ranks are scattered over a torus.
"""

from __future__ import annotations

import json
import random
import time
from typing import Final, NamedTuple

from measuring import asked_for_json

from shardcost.collectives.exact.algorithms import ring, schedule
from shardcost.collectives.exact.algorithms.plan import pipelined
from shardcost.collectives.exact.schedule import Schedule
from shardcost.collectives.exact.simulate import simulate
from shardcost.collectives.exact.topology import Topology, nvswitch, torus

RANKS: Final = 64
EVEN: Final = 1_024_000_000
ODD: Final = 1_000_000_007


class Case(NamedTuple):
    """One simulation."""

    name: str
    schedule: Schedule
    topology: Topology
    size_bytes: int
    placement: list[int] | None = None


def cases() -> list[Case]:
    """Return what is simulated."""
    around = pipelined(ring.all_reduce(RANKS), 16)
    pieces = Schedule("all_reduce", "ring", RANKS, around.chunks, around.steps)
    trees = schedule("all_reduce", "double_binary_tree", RANKS, chunks=500)
    switch = nvswitch(RANKS, 450e9, latency_s=1e-6)
    cube = torus((4, 4, 4), 50e9, latency_s=1e-6)
    scattered = random.Random(0).sample(range(RANKS), RANKS)  # noqa: S311
    return [
        Case("ring, even chunks", pieces, switch, EVEN),
        Case("ring, odd chunks", pieces, switch, ODD),
        Case("double binary tree, even chunks", trees, switch, EVEN),
        Case("double binary tree, odd chunks", trees, switch, ODD),
        Case("double binary tree, scattered", trees, cube, ODD, scattered),
    ]


def measured(case: Case) -> dict[str, float]:
    """Return the seconds of one simulation, and its transfers per second."""
    start = time.perf_counter()
    found = simulate(case.schedule, case.topology, case.size_bytes, case.placement)
    seconds = time.perf_counter() - start
    transfers = len(found.finish_s)
    return {
        "chunks": case.schedule.chunks,
        "transfers": transfers,
        "seconds": seconds,
        "transfers_per_s": transfers / seconds,
    }


def main() -> None:
    """Run all cases on one core and print them."""
    as_json = asked_for_json(__doc__)
    results = {case.name: measured(case) for case in cases()}
    if as_json:
        print(json.dumps(results, indent=2))
        return
    for name, found in results.items():
        print(
            f"{name:<32} {found['chunks']:6,.0f} chunks {found['transfers']:8,.0f} transfers"
            f" {found['seconds']:6.2f} s {found['transfers_per_s']:9,.0f} per s"
        )


if __name__ == "__main__":
    main()

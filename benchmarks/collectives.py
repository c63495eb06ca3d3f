"""How fast the silicon model is: cells per second of `collective_time`, on one core, in one run.

    python benchmarks/collectives.py [--json]

A cell is one size on one group. The grid is open, 125,000 sizes by 8 GPU counts; the same sizes as
one flat array of pairs are slower, as nothing is shared between cells. Some cells are asked for one
by one as well and must come out the same, to the last bit.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
from measuring import asked_for_json

from shardcost import Cluster, collective_time

SIZES = np.geomspace(8, 8 * 2**30, 125_000)[:, None]
RANKS = np.arange(1, 9)[None, :]
NODES = 2 ** np.arange(8)[None, :]
CASES: dict[str, dict[str, Any]] = {
    "nccl all_reduce": {"collective": "all_reduce"},
    "nccl all_gather": {"collective": "all_gather"},
    "nccl all_to_all": {"collective": "all_to_all"},
    "vllm all_reduce": {"collective": "all_reduce", "library": "vllm"},
    "trtllm all_reduce": {"collective": "all_reduce", "library": "trtllm"},
}


def grids() -> dict[str, dict[str, Any]]:
    """Return what is timed, by name."""
    one = Cluster.named("h100_sxm")
    many = Cluster.named("h100_sxm", network="ib_8x400g")
    pairs = np.broadcast_arrays(SIZES, RANKS)
    flat = {"size_bytes": pairs[0].ravel(), "gpus": pairs[1].ravel()}
    found = {
        f"{name}, grid": {"size_bytes": SIZES, "gpus": RANKS, "cluster": one} | case
        for name, case in CASES.items()
    }
    found["nccl all_reduce, flat"] = {"collective": "all_reduce", "cluster": one} | flat
    found["nccl all_reduce, 1 to 128 nodes"] = {
        "collective": "all_reduce",
        "size_bytes": SIZES,
        "cluster": many,
        "gpus": 8 * NODES,
        "nodes": NODES,
    }
    return found


def million_cells_per_s(question: dict[str, Any], repeats: int = 5) -> float:
    """Return the rate of the fastest of a few runs."""
    best = float("inf")
    cells = 0
    for _ in range(repeats):
        start = time.perf_counter()
        cells = np.size(collective_time(**question).time_s)
        best = min(best, time.perf_counter() - start)
    return cells / best / 1e6


def unequal_cells(question: dict[str, Any], checked: int = 200) -> int:
    """Return how many of some cells differ when they are asked for one by one."""
    whole = collective_time(**question).time_s
    sizes, gpus, nodes = (
        np.broadcast_to(question.get(name, 0), whole.shape).ravel()
        for name in ("size_bytes", "gpus", "nodes")
    )
    places = np.linspace(0, whole.size - 1, checked).astype(int)
    different = 0
    for place in places.tolist():
        alone = {"size_bytes": float(sizes[place]), "gpus": int(gpus[place])}
        if "nodes" in question:
            alone["nodes"] = int(nodes[place])
        different += bool(collective_time(**(question | alone)).time_s != whole.ravel()[place])
    return different


def main() -> None:
    """Measure and print."""
    as_json = asked_for_json(__doc__)
    found = {
        name: {
            "million_cells_per_s": million_cells_per_s(question),
            "unequal_cells": unequal_cells(question),
        }
        for name, question in grids().items()
    }
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for name, each in found.items():
        rate = f"{each['million_cells_per_s']:6.1f} million cells/s"
        print(f"{name:<34} {rate}  (at least 1), {each['unequal_cells']:.0f} of 200 unequal")


if __name__ == "__main__":
    main()

"""How fast a search is, whether its figures are estimate's, and what other tools do in that time.

    python benchmarks/search.py [--json] [--jobs 1|2] [--repeat N] [--quick]
                                [--calculon CHECKOUT] [--llm-analysis PYTHON]
                                [--aiconfigurator PYTHON]

With ``--json``, one question: all layouts in which 64 A100s can train GPT-3 175B, with every way to
overlap tensor parallelism. Without, five tables: rates from 64 to 131,072 GPUs, dense and with
experts; seconds against the size of the grid; a slice of a sweep of a billion layouts; cells of
the grid against `estimate` of the same layouts one by one; and other tools in the same run, each
in the environment that has it (its interpreter is the option's value).

A layout counts as *considered* if it is in the space, as *possible* if no rule forbids it (its
memory is known then), as *feasible* if it fits too (its time is known then). Tools that list only
possible layouts compare with the second. Every question runs in a process of its own, so that its
peak of memory is its own.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, Final, NamedTuple

import numpy as np
from peers import ABSENT, ANSWER, BATCH, GPUS, PEERS, PROMPT, SEQUENCE, SERVED_GPUS, rate_of

from shardcost import Cluster, Decode, Train, Workload, search
from shardcost.search.run import questions_of
from shardcost.search.space import Space

OVERLAPS: Final = ("none", "async", "chunked")
LEAST_DENSE: Final = 1_000_000
LEAST_EXPERTS: Final = 300_000
"""Layouts a second on one core that a search should consider."""
NO_ROOM: Final = "does_not_fit_memory"
COMPARED: Final = 200
"""Cells of which `estimate` is asked again."""


class Case(NamedTuple):
    """A question to a search."""

    model: str
    cluster: tuple[str, str]
    """Its name and its network's."""
    workload: Workload
    space: dict[str, Any]

    @property
    def name(self) -> str:
        """Model and devices."""
        gpus = self.space["gpus"]
        return f"{self.model} on {gpus if isinstance(gpus, int) else max(gpus):,}"

    def arguments(self) -> dict[str, Any]:
        """Return what `search` takes."""
        device, network = self.cluster
        cluster = Cluster.named(device, network=network)
        return {
            "model": self.model,
            "cluster": cluster,
            "workload": self.workload,
            "space": self.space,
        }


def training(batch: int, length: int) -> Train:
    """Return one optimizer step."""
    return Train(global_batch=batch, sequence_length=length)


A100: Final = ("a100_sxm", "ib_8x200g")
H100: Final = ("h100_sxm", "ib_8x400g")
H200: Final = ("h200_sxm", "ib_8x400g")
B200: Final = ("b200_sxm", "ib_8x400g")
MAIN: Final = Case(
    "gpt3-175b", A100, training(BATCH, SEQUENCE), {"gpus": GPUS, "tp_overlap": OVERLAPS}
)
DENSE: Final = tuple(
    Case("gpt3-175b", A100, training(batch, SEQUENCE), {"gpus": gpus})
    for gpus, batch in ((512, 1536), (4096, 1536), (32_768, 6144), (131_072, 6144))
)
EXPERTS: Final = (
    Case("mixtral-8x7b", H100, training(1024, 4096), {"gpus": 64}),
    Case("deepseek-v3", H100, training(1024, 4096), {"gpus": 256}),
    Case("deepseek-v3", H100, training(4096, 4096), {"gpus": 2048, "context_scheme": "ring"}),
)
SERVING: Final = Case(
    "qwen3-32b",
    H200,
    Decode(batch=64, context_tokens=PROMPT + ANSWER // 2),
    {"gpus": (1, 2, 4, 8, 16, SERVED_GPUS), "batch": tuple(range(4, 1025, 4))},
)
GROWING: Final = tuple(3 * 2**power for power in range(1, 17))
"""GPU counts of a question that grows: every 16th of them, every 8th, … all, each time from the
middle. So its layouts grow in number and hardly change in kind."""
GROWING_SPACE: Final[dict[str, Any]] = {
    "context_scheme": "ring",
    "recompute": "selective",
    "zero": (0, 1),
}
SWEEP_MODELS: Final = ("llama3-8b", "llama3-70b", "gpt3-175b", "mixtral-8x7b")
SWEEP_CLUSTERS: Final = (A100, H100, H200, B200)
SWEEP_GPUS: Final = (64, 128, 256, 512)
SLICE_GPUS: Final = (256, 128, 128, 64)
"""Those of each model in the slice: fewer where a model has more layouts, to keep it short."""
SWEEP_ORDERS: Final = ("tp-cp-dp-pp", "tp-dp-cp-pp", "tp-cp-pp-dp", "cp-tp-dp-pp")
SWEEP_WORK: Final = training(1536, 4096)


def peak_mb(of: int = resource.RUSAGE_SELF) -> float:
    """Return the most megabytes that this process ever had, or the largest of those it started."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(of).ru_maxrss * unit / 1e6


def engine_for(jobs: int) -> dict[str, Any]:
    """Return what tells `search` to use so many processes."""
    if jobs == 1:
        return {}
    known = inspect.signature(search).parameters
    if "engine" not in known:
        raise SystemExit(f"benchmarks/search.py: --jobs {jobs}: search() has one process only")
    return {"engine": "processes"} | ({"jobs": jobs} if "jobs" in known else {})


def stay_on(cores: int) -> None:
    """Run on so many cores from now on, as far as the system can be told."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:cores]))


def measured(case: Case, jobs: int = 1, repeat: int = 1) -> dict[str, Any]:
    """Return rates, counts and memory of one question; the time is that of the fastest run."""
    before = peak_mb()
    asked, engine = case.arguments(), engine_for(jobs)
    runs = []
    for _ in range(repeat):
        start, idle = time.perf_counter(), time.process_time()
        found = search(**asked, **engine)
        runs.append((time.perf_counter() - start, time.process_time() - idle, found))
    seconds, worked, found = min(runs, key=lambda run: run[0])
    no_room = sum(count for why, count in found.rejected.items() if why.code.startswith(NO_ROOM))
    ruled_out = sum(found.rejected.values()) - no_room
    peak = peak_mb() + (jobs * peak_mb(resource.RUSAGE_CHILDREN) if jobs > 1 else 0.0)
    return {
        "layouts": found.considered,
        "seconds": round(seconds, 4),
        "layouts_per_s": round(found.considered / seconds),
        "peak_memory_mb": round(peak, 1),
        "memory_above_imports_mb": round(peak - before, 1),
        "cores": jobs,
        "cpu_seconds": round(worked, 4) if jobs == 1 else None,
        "possible": found.considered - ruled_out,
        "possible_per_s": round((found.considered - ruled_out) / seconds),
        "feasible": found.feasible,
        "feasible_per_s": round(found.feasible / seconds),
        "ruled_out": ruled_out,
        "no_room": no_room,
        "rejected": {why.message: count for why, count in found.rejected.items()},
        "runs_s": [round(run[0], 4) for run in runs],
    }


def growth() -> list[tuple[int, float]]:
    """Return cells and processor seconds of one question on more and more GPU counts."""
    search(**MAIN._replace(space={"gpus": 8, "cp": 1}).arguments())
    found = []
    for step in (16, 8, 4, 2, 1):
        case = MAIN._replace(space=GROWING_SPACE | {"gpus": GROWING[step // 2 :: step]})
        start = time.process_time()
        cells = search(**case.arguments()).considered
        found.append((cells, time.process_time() - start))
    return found


def cells_of(case: Case) -> int:
    """Return how many cells a question has, without asking it."""
    asked = case.arguments()
    space = Space.of(asked.pop("space"))
    return sum(each.cells for each in questions_of(**asked, space=space))


def sweep() -> dict[str, Any]:
    """Return rates of a slice of the sweep in processor seconds, and what all of it would take.

    The slice has three parts with the same numbers of layouts: every model on one cluster, in one
    order, which are others in the next part. The whole is weighed by model.
    """
    before = peak_mb()
    whole: dict[str, int] = {}
    axes = {"gpus": SWEEP_GPUS, "order": SWEEP_ORDERS}
    for model in SWEEP_MODELS:
        case = Case(model, A100, SWEEP_WORK, axes)
        whole[model] = cells_of(case) * len(SWEEP_CLUSTERS)
    layouts = dict.fromkeys(SWEEP_MODELS, 0)
    seconds = dict.fromkeys(SWEEP_MODELS, 0.0)
    rates = []
    for cluster, order in zip(SWEEP_CLUSTERS[:3], SWEEP_ORDERS[:3], strict=True):
        at = sum(layouts.values()), sum(seconds.values())
        for model, gpus in zip(SWEEP_MODELS, SLICE_GPUS, strict=True):
            space = {"gpus": gpus, "order": order}
            start = time.process_time()
            found = search(**Case(model, cluster, SWEEP_WORK, space).arguments())
            seconds[model] += time.process_time() - start
            layouts[model] += found.considered
        rates.append((sum(layouts.values()) - at[0]) / (sum(seconds.values()) - at[1]))
    return {
        "cells": sum(whole.values()),
        "sliced": sum(layouts.values()),
        "seconds": sum(seconds.values()),
        "first_per_s": rates[0],
        "last_per_s": rates[-1],
        "memory_mb": peak_mb() - before,
        "hours": sum(whole[each] * seconds[each] / layouts[each] for each in whole) / 3600,
    }


def differences() -> dict[str, float]:
    """Return how far cells are at most from their scalar estimate: time and memory, relative."""
    draw = random.Random(0)  # noqa: S311
    most = {"time": 0.0, "memory": 0.0}
    cases = (MAIN, EXPERTS[0], SERVING)
    for case, number in zip(cases, (COMPARED // 2, COMPARED // 4, COMPARED // 4), strict=True):
        found = search(**case.arguments(), top=10_000_000)
        for each in draw.sample(found.best, number):
            alone = each.estimate
            pairs = {
                "time": (each.time_s, alone.time_s),
                "memory": (each.memory_bytes, alone.memory_bytes),
            }
            for name, (cell, scalar) in pairs.items():
                most[name] = max(most[name], abs(cell / float(scalar) - 1))
    return most


def fresh(ask: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function finds in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(ask, *arguments).result()


def print_rates(options: argparse.Namespace) -> dict[str, Any]:
    """Print the rates of all questions and return the main one's figures."""
    cores = "one core" if options.jobs == 1 else f"{options.jobs} cores"
    print(f"A search on {cores}: training, all layouts of a number of GPUs")
    print("                     million      s  layouts/s feasible/s rules room  MB")
    dense = DENSE[:1] if options.quick else DENSE
    experts = EXPERTS[:1] if options.quick else EXPERTS
    main: dict[str, Any] = {}
    for case in (MAIN, *dense, *experts):
        least = LEAST_EXPERTS if case in EXPERTS else LEAST_DENSE
        found = fresh(measured, case, options.jobs, options.repeat)
        main = main or found
        share = {name: 100 * found[name] / found["layouts"] for name in ("ruled_out", "no_room")}
        print(
            f"{case.name:<21}{found['layouts'] / 1e6:7.2f}{found['seconds']:7.2f}"
            f"{found['layouts_per_s']:11,}{found['feasible_per_s']:11,}"
            f"{share['ruled_out']:5.0f}%{share['no_room']:4.0f}%"
            f"{found['memory_above_imports_mb']:4.0f}"
            f"  {verdict(found['layouts_per_s'] >= least)}"
        )
    print("  rules, room: left out before pricing, by a rule or for want of memory")
    print(f"  pass: {LEAST_DENSE:,} layouts/s or more, {LEAST_EXPERTS:,} with experts")
    print("  MB: peak of memory above that of the imports")
    return main


def verdict(holds: bool) -> str:  # noqa: FBT001
    """Return a verdict in one word."""
    return "pass" if holds else "FAIL"


def print_growth() -> None:
    """Print what a growing grid costs."""
    found = fresh(growth)
    cells, seconds = np.array(found).T
    slopes = [np.polyfit(np.log(cells[k:]), np.log(seconds[k:]), 1)[0] for k in (0, 2)]
    print(f"\nCost against the size of the grid (GPT-3 175B on 1 to {len(GROWING)} GPU counts)")
    print("  million cells      " + "".join(f"{each / 1e6:8.2f}" for each in cells))
    print("  processor seconds  " + "".join(f"{each:8.2f}" for each in seconds))
    each = seconds / cells * 1e6
    print("  seconds per million" + "".join(f"{one:8.3f}" for one in each))
    print(f"  time ~ cells^{slopes[0]:.2f}, the largest three ^{slopes[1]:.2f}  (about 1)", end="")
    print(f"  {verdict(max(slopes) <= 1.1)}")


def print_sweep() -> None:
    """Print a slice of the sweep, and what it says about the whole."""
    found = fresh(sweep)
    axes = (SWEEP_MODELS, SWEEP_CLUSTERS, SWEEP_GPUS, SWEEP_ORDERS)
    numbers = " x ".join(str(len(each)) for each in axes)
    print(f"\nA sweep of {found['cells'] / 1e9:.2f} billion layouts", end="")
    print(f" ({numbers} models, clusters, GPUs, orders)")
    print(
        f"  a slice: {found['sliced'] / 1e6:.1f} million in {found['seconds']:.1f} processor s",
        end="",
    )
    print(f", {found['memory_mb']:.0f} MB above the imports")
    change = found["last_per_s"] / found["first_per_s"] - 1
    print(
        f"  first third {found['first_per_s']:,.0f}/s, last third {found['last_per_s']:,.0f}/s"
        f" ({change:+.0%})"
    )
    print(f"  all of it, extrapolated by model: {found['hours']:.2f} hours on one core")


def print_differences() -> None:
    """Print how far cells are from their estimates."""
    found = fresh(differences)
    print(f"\n{COMPARED} random feasible cells against estimate() of each: at most")
    print(f"  {found['time']:.1e} of the time, {found['memory']:.1e} of the memory  (1e-9)", end="")
    print(f"  {verdict(max(found.values()) <= 1e-9)}")


def print_peers(options: argparse.Namespace, main: dict[str, Any]) -> None:
    """Print the other tools' rates, and ours over theirs."""
    print("\nOther tools, the same model on the same GPUs, this run, one core")
    print("                     layouts/s   ours: possible/s   ratio   considered/s   ratio")
    for name in PEERS:
        python = getattr(options, name.replace("-", "_")) if name != "calculon" else sys.executable
        theirs = rate_of(name, python, options.calculon if name == "calculon" else None)
        if theirs.failure:
            hint = f" (--{name} points at it)" if theirs.failure == ABSENT else ""
            print(f"  {name:<15} {theirs.failure[:60]}{hint}")
            continue
        ours = fresh(measured, SERVING, 1, 3) if name == "aiconfigurator" else main
        print(f"  {name:<15}{theirs.per_s:13,.0f}", end="")
        for what in ("possible", "layouts"):
            print(
                f"{ours[f'{what}_per_s']:15,}{ours[f'{what}_per_s'] / theirs.per_s:9,.0f}", end=""
            )
        print(f"\n    {theirs.asked}")
    print("  possible: no rule forbids it; considered: all of the space")
    print("  one layout is not the same work everywhere: aiconfigurator prices a prompt and")
    print("  its answer where ours is a step of decoding, and it counts only its results")


def options_given() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=1, help="processes")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each question")
    parser.add_argument("--quick", action="store_true", help="fewer questions, no sweep")
    parser.add_argument("--calculon", metavar="CHECKOUT", help="folder with calculon's source")
    for name in PEERS:
        if name != "calculon":
            words = f"interpreter of an environment with {name}"
            parser.add_argument(f"--{name}", metavar="PYTHON", default=sys.executable, help=words)
    return parser.parse_args()


def main() -> None:
    """Measure, and print one document or all tables."""
    options = options_given()
    stay_on(options.jobs)
    if options.json:
        print(json.dumps(fresh(measured, MAIN, options.jobs, options.repeat)))
        return
    found = print_rates(options)
    print_growth()
    if not options.quick:
        print_sweep()
    print_differences()
    print_peers(options, found)


if __name__ == "__main__":
    main()

"""How fast a search is, beside the baseline: questions, rates, growth, memory, other tools.

    python benchmarks/search.py [--json] [--jobs 1|2] [--repeat N] [--quick]
                                [--calculon CHECKOUT] [--llm-analysis PYTHON]
                                [--aiconfigurator PYTHON]

With ``--json``, one question: all layouts in which 64 A100s can train GPT-3 175B, with every way to
overlap tensor parallelism, each of them evaluated. Without:

1. questions as they are asked, the best five with all explanations, and whether the answer is that
   of an exhaustive search and of the baseline;
2. rates of exhaustive searches;
3. the cost of a search by GPUs, axes and models, pruned and exhaustive;
4. memory and time of a search of a billion layouts;
5. cells of the grid against `estimate` of the same layouts one by one;
6. other tools in the same run, each in the environment that has it (its interpreter is the option's
   value).

A layout counts as *considered* if it is in the space, as *possible* if no rule forbids it (its
memory is known then), as *feasible* if it fits too (an exhaustive search knows its time then).
Every measurement runs in a process of its own, so that its peak of memory is its own and nothing is
remembered from another.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import random
import resource
import sys
import time
from typing import Any, Final, NamedTuple

import numpy as np
from measuring import (
    NOW,
    ROUNDS,
    Figure,
    Tables,
    compared,
    fastest,
    figure,
    measured,
    peak_mb,
    show,
)
from peers import ABSENT, ANSWER, BATCH, GPUS, PEERS, PROMPT, SEQUENCE, SERVED_GPUS, rate_of

from shardcost import Cluster, Decode, Train, Workload, search
from shardcost.search.found import Candidate, Found
from shardcost.search.plan import Plan

OVERLAPS: Final = ("none", "async", "chunked")
ORDERS: Final = ("tp-cp-dp-pp", "tp-dp-cp-pp", "tp-cp-pp-dp", "cp-tp-dp-pp")
NO_ROOM: Final = "does_not_fit_memory"
COMPARED: Final = 200
"""Cells of which `estimate` is asked again."""
MOST_MB: Final = 300
"""Of a search of a billion layouts."""


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
        return f"{self.model} on {self.space['gpus']:,}"

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
H800: Final = ("h800_sxm", "ib_8x400g")
GPT: Final = training(BATCH, SEQUENCE)
LLAMA: Final = training(2048, 8192)
DEEPSEEK: Final = training(15_360, 4096)
CASES: Final = {
    "main": Case("gpt3-175b", A100, GPT, {"gpus": GPUS, "tp_overlap": OVERLAPS}),
    "mixtral": Case("mixtral-8x7b", H100, training(1024, 4096), {"gpus": 64}),
    "deepseek 256": Case("deepseek-v3", H100, training(1024, 4096), {"gpus": 256}),
    "serving": Case(
        "qwen3-32b",
        H200,
        Decode(batch=64, context_tokens=PROMPT + ANSWER // 2),
        {"gpus": (1, 2, 4, 8, 16, SERVED_GPUS), "batch": tuple(range(4, 1025, 4))},
    ),
    "gpt3": Case("gpt3-175b", A100, GPT, {"gpus": GPUS}),
    "llama3": Case("llama3-405b", H100, LLAMA, {"gpus": 16_384}),
    "deepseek": Case("deepseek-v3", H800, DEEPSEEK, {"gpus": 2048}),
    # The cost of a search: GPUs, …
    **{
        f"{gpus:,} GPUs": Case("gpt3-175b", A100, training(batch, SEQUENCE), {"gpus": gpus})
        for gpus, batch in ((512, 1536), (4096, 1536), (32_768, 6144), (131_072, 6144))
    },
    # … axes, …
    "cp 1": Case("gpt3-175b", A100, GPT, {"gpus": GPUS, "cp": 1}),
    "orders": Case("gpt3-175b", A100, GPT, {"gpus": GPUS, "order": ORDERS}),
    # … and models.
    **{
        f"{model} on 512": Case(model, H100, LLAMA, {"gpus": 512})
        for model in ("llama3-8b", "llama3-70b", "llama3-405b", "mixtral-8x7b", "deepseek-v3")
    },
}
"""All questions, by the names that measurements take."""
PLANS: Final = {"deepseek": 2.0, "llama3": 0.7, "gpt3": 0.5}
"""Questions as they are asked, with the seconds that the best five may take."""
RATES: Final = {
    "main": (2e6, 2e5),
    "mixtral": (1e6, 1e5),
    "deepseek 256": (1e6, 1e5),
}
"""Questions to an exhaustive search, with the possible and feasible layouts a second at least."""
GROWTH: Final = {
    "gpt3": "GPT-3 175B, 64 GPUs",
    "512 GPUs": "512 GPUs",
    "4,096 GPUs": "4,096 GPUs",
    "32,768 GPUs": "32,768 GPUs, a batch of 6,144",
    "131,072 GPUs": "131,072 GPUs, a batch of 6,144",
    "cp 1": "GPT-3 175B, 64 GPUs, cp fixed at 1",
    "main": "three ways to overlap tensor parallelism",
    "orders": "four orders of the degrees",
    "llama3-8b on 512": "Llama 3 8B, 512 GPUs",
    "llama3-70b on 512": "Llama 3 70B, 512 GPUs",
    "llama3-405b on 512": "Llama 3 405B, 512 GPUs",
    "mixtral-8x7b on 512": "Mixtral 8x7B, 512 GPUs",
    "deepseek-v3 on 512": "DeepSeek-V3, 512 GPUs",
}
"""Questions that show how the cost grows, with their names in the table."""
SWEEP_CLUSTERS: Final = ("h100_sxm", "h200_sxm", "b200_sxm")
SWEEP_GPUS: Final = (256, 512, 1024, 2048, 4096)
GROWING: Final = tuple(3 * 2**power for power in range(1, 17))
"""GPU counts of a question that grows: every 16th of them, every 8th, … all, each time from the
middle. So its layouts grow in number and hardly change in kind."""
GROWING_SPACE: Final[dict[str, Any]] = {
    "context_scheme": "ring",
    "recompute": "selective",
    "zero": (0, 1),
}


# -------------------------------------------------- measurements, each in a process of its own


def whole(*, exhaustive: bool = True) -> dict[str, Any]:
    """Return what makes a search evaluate every layout; the baseline always does."""
    known = exhaustive and "exhaustive" in inspect.signature(search).parameters
    return {"exhaustive": True} if known else {}


def engine_for(jobs: int) -> dict[str, Any]:
    """Return what tells `search` to use so many processes."""
    return {} if jobs == 1 else {"engine": "processes", "jobs": jobs}


def planned(case: str, *, exhaustive: bool = False) -> dict[str, Any]:
    """Return what a question takes in a new process: the search, the best five, explanations."""
    asked = CASES[case].arguments() | whole(exhaustive=exhaustive)
    start, worked = time.perf_counter(), time.process_time()
    plan = search(**asked).plan(5)
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - worked,
        "peak_memory_mb": peak_mb(),
        "layouts": plan.found.considered,
        "answer": answer_of(plan),
    }


def answer_of(plan: Plan) -> dict[str, Any]:
    """Return everything that an exhaustive search must agree on."""
    found = plan.found

    def of(each: Candidate | None) -> list[Any]:
        figures = ("time_s", "memory_bytes")  # of the smallest layout, the memory alone
        return [] if each is None else [repr(each.layout), *map(each.row.get, figures)]

    return {
        "counts": [found.considered, found.feasible],
        "rejected": sorted([why.code, count] for why, count in found.rejected.items()),
        "best": [of(each) for each in found.best],
        "front": [of(each) for each in found.front],
        "crossovers": [[each.words, str(each.value)] for each in plan.crossovers],
        "runner-up": [[each.part, each.lost_s] for each in plan.losses],
        "memory": [of(found.beyond), of(found.smallest)],
        "stability": plan.stability and plan.stability.first_stays_pct,
    }


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return in what two answers differ by more than rounding."""
    return [name for name in one if not _alike(one[name], other[name])]


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other)


def searched(
    case: str, jobs: int = 1, repeat: int = 1, *, exhaustive: bool = True
) -> dict[str, Any]:
    """Return rates, counts and memory of one question; the time is that of the fastest run."""
    before = peak_mb()
    asked = CASES[case].arguments() | engine_for(jobs) | whole(exhaustive=exhaustive)
    runs: list[tuple[float, float, Found]] = []
    for _ in range(repeat):
        start, idle = time.perf_counter(), time.process_time()
        result = search(**asked)
        runs.append((time.perf_counter() - start, time.process_time() - idle, result))
    seconds, worked, found = min(runs, key=lambda run: run[0])
    no_room = sum(count for why, count in found.rejected.items() if why.code.startswith(NO_ROOM))
    ruled_out = sum(found.rejected.values()) - no_room
    possible = found.considered - ruled_out
    peak = peak_mb() + (jobs * peak_mb(resource.RUSAGE_CHILDREN) if jobs > 1 else 0.0)
    return {
        "layouts": found.considered,
        "seconds": round(seconds, 4),
        "layouts_per_s": round(found.considered / seconds),
        "peak_memory_mb": round(peak, 1),
        "memory_above_imports_mb": round(peak - before, 1),
        "cores": jobs,
        "cpu_seconds": round(worked, 4) if jobs == 1 else None,
        "possible": possible,
        "possible_per_s": round(possible / seconds),
        "feasible": found.feasible,
        "feasible_per_s": round(found.feasible / seconds),
        "skipped": getattr(found, "skipped", 0),
        "ruled_out": ruled_out,
        "no_room": no_room,
        "rejected": {why.message: count for why, count in found.rejected.items()},
        "runs_s": [round(run[0], 4) for run in runs],
    }


def growth() -> dict[str, Any]:
    """Return cells and processor seconds of one question on more and more GPU counts."""
    search(**CASES["main"]._replace(space={"gpus": 8, "cp": 1}).arguments())
    cells, seconds = [], []
    for step in (16, 8, 4, 2, 1):
        case = CASES["main"]._replace(space=GROWING_SPACE | {"gpus": GROWING[step // 2 :: step]})
        start = time.process_time()
        cells.append(search(**case.arguments(), **whole()).considered)
        seconds.append(time.process_time() - start)
    return {"cells": cells, "each_s": seconds, "seconds": sum(seconds)}


def sweep() -> dict[str, Any]:
    """Return time and memory of one search of a billion layouts: three machines, five sizes."""
    clusters = [Cluster.named(each, network="ib_8x400g") for each in SWEEP_CLUSTERS]
    start, worked = time.perf_counter(), time.process_time()
    found = search("deepseek-v3", clusters, DEEPSEEK, space={"gpus": SWEEP_GPUS})
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - worked,
        "layouts": found.considered,
        "peak_memory_mb": peak_mb(),
    }


def differences() -> dict[str, Any]:
    """Return how far cells are at most from their scalar estimate: time and memory, relative."""
    draw = random.Random(0)  # noqa: S311
    most = {"time": 0.0, "memory": 0.0}
    cases = {"main": COMPARED // 2, "mixtral": COMPARED // 4, "serving": COMPARED // 4}
    for case, number in cases.items():
        found = search(**CASES[case].arguments(), top=10_000_000)
        for each in draw.sample(found.best, number):
            alone = each.estimate
            pairs = {
                "time": (each.time_s, alone.time_s),
                "memory": (each.memory_bytes, alone.memory_bytes),
            }
            for name, (cell, scalar) in pairs.items():
                most[name] = max(most[name], abs(cell / float(scalar) - 1))
    return most


# -------------------------------------------------------------------------------------- figures


def plan_figures(rounds: int) -> list[Figure]:
    """Return the seconds of questions as they are asked, and whether the answers are the same."""
    figures = []
    for name, most in PLANS.items():
        pair = compared(planned, rounds=rounds, case=name)
        checks = {}
        if whole():
            complete = measured(planned, NOW, case=name, exhaustive=True)
            checks["an exhaustive search"] = differing(pair.now["answer"], complete["answer"])
        if pair.before:
            checks["the baseline"] = differing(pair.now["answer"], pair.before["answer"])
        said = [
            f"not the answer of {other}: {', '.join(wrong)}" if wrong else f"the answer of {other}"
            for other, wrong in checks.items()
        ]
        layouts = f"{pair.now['layouts']:,} layouts, {pair.now['cpu_seconds']:.2f} s of processor"
        each = figure(
            pair,
            "seconds",
            CASES[name].name,
            unit="s",
            most=most,
            note="; ".join([layouts, *said]),
            same=not any(checks.values()),
        )
        figures.append(each)
    return figures


def rate_figures(rounds: int) -> list[Figure]:
    """Return the rates of exhaustive searches."""
    figures = []
    for name, (possible, feasible) in RATES.items():
        pair = compared(searched, rounds=rounds, case=name)
        for key, least in (("possible", possible), ("feasible", feasible)):
            what = f"{CASES[name].name}, {key}"
            each = figure(pair, f"{key}_per_s", what, unit="layouts/s", least=least)
            figures.append(each)
        what = f"{CASES[name].name}, considered"
        figures.append(figure(pair, "layouts_per_s", what, unit="layouts/s"))
    return figures


def sweep_figures() -> list[Figure]:
    """Return memory and seconds of a search of a billion layouts."""
    pair = compared(sweep, rounds=1)
    what = f"{pair.now['layouts'] / 1e9:.2f} billion layouts"
    return [
        figure(pair, "peak_memory_mb", f"{what}, peak memory", unit="MB", most=MOST_MB),
        figure(pair, "seconds", f"{what}, time", unit="s"),
    ]


def exactness_figures() -> list[Figure]:
    """Return how the time grows with the grid, and how far cells are from single estimates."""
    grown = measured(growth, NOW)
    cells, seconds = np.array(grown["cells"]), np.array(grown["each_s"])
    slope = np.polyfit(np.log(cells[2:]), np.log(seconds[2:]), 1)[0]
    note = ", ".join(
        f"{each / 1e6:.1f} million {spent:.2f} s"
        for each, spent in zip(cells, seconds, strict=True)
    )
    apart = measured(differences, NOW)
    what = f"{COMPARED} feasible cells against estimate() of each, largest difference"
    return [
        Figure("exponent of the cells in the seconds, exhaustive", slope, most=1.1, note=note),
        *(Figure(f"{what} of {name}", apart[name], most=1e-9) for name in ("time", "memory")),
    ]


def tables(rounds: int = ROUNDS, *, quick: bool = False) -> Tables:
    """Return all figures."""
    found = {
        "A search: the best five with all explanations, in a new process, on one core": (
            plan_figures(rounds)
        ),
        "Exhaustive searches on one core": rate_figures(rounds),
        "Exactness and growth": exactness_figures(),
    }
    if not quick:
        title = "One search: DeepSeek-V3 on 256 to 4,096 H100s, H200s or B200s"
        found[title] = sweep_figures()
    return found


class Grown(NamedTuple):
    """What one question costs."""

    name: str
    layouts: int
    possible: int
    feasible: int
    skipped: int
    """Feasible layouts whose time was not needed."""
    seconds: float
    exhaustive_s: float


def grown() -> list[Grown]:
    """Return what questions cost as GPUs, axes and models grow, pruned and exhaustive."""
    rows = []
    for case, name in GROWTH.items():
        pruned, complete = (
            fastest(searched, [NOW], 2, case=case, exhaustive=exhaustive)["now"]
            for exhaustive in (False, True)
        )
        counts = (complete["layouts"], complete["possible"], complete["feasible"])
        seconds = (pruned["seconds"], complete["seconds"])
        rows.append(Grown(name, *counts, pruned["skipped"], *seconds))
    return rows


def print_grown() -> None:
    """Print what questions cost as they grow."""
    print("\nThe cost of a search by GPUs, axes and models, seconds")
    wide = max(map(len, GROWTH.values()))
    heads = f"{'million':>8} {'possible':>11} {'feasible':>11} {'skipped':>11}"
    print(f"{'':<{wide}} {heads} {'pruned':>7} {'all':>7}")
    for each in grown():
        counts = f"{each.possible:11,} {each.feasible:11,} {each.skipped:11,}"
        counts = f"{each.layouts / 1e6:8.2f} {counts}"
        print(f"{each.name:<{wide}} {counts} {each.seconds:7.2f} {each.exhaustive_s:7.2f}")


# ---------------------------------------------------------------------------------------- peers


class Beside(NamedTuple):
    """Another tool, and what this one does of the same kind."""

    name: str
    asked: str
    per_s: float
    seconds: float
    failure: str
    ours: dict[str, float]
    """Layouts a second of ours, by what was done."""
    ours_s: float = 0.0
    """What our search of the same question takes, where the other searches too."""


def beside(pythons: dict[str, str], calculon: str | None) -> list[Beside]:
    """Return the rates of the other tools that are here, each with ours.

    Args:
        pythons: The interpreter that has each tool.
        calculon: Its checkout.
    """
    from estimate import one_by_one  # noqa: PLC0415

    rows = []
    for name in PEERS:
        python = pythons.get(name, sys.executable)
        theirs = rate_of(name, python, calculon if name == "calculon" else None)
        if theirs.failure:
            rows.append(Beside(name, "", 0.0, 0.0, theirs.failure, {}))
            continue
        serves = name == "aiconfigurator"
        case = "serving" if serves else "main"
        # aiconfigurator's second search is timed, and so is ours then.
        grid = fastest(searched, [NOW], case=case, repeat=2 if serves else 1)["now"]
        alone = fastest(
            one_by_one,
            [NOW],
            phase="decode" if serves else "train",
            experts=False,
            sizes="repeated",
            of=CASES[case].model,
            on=CASES[case].cluster,
        )["now"]
        ours = {
            "one by one": alone["per_s"],
            "search, possible": grid["possible_per_s"],
            "search, considered": grid["layouts_per_s"],
        }
        seconds = grid["seconds"] if serves else 0.0
        rows.append(Beside(name, theirs.asked, theirs.per_s, theirs.seconds, "", ours, seconds))
    return rows


def print_peers(rows: list[Beside]) -> None:
    """Print the other tools' rates, and ours over theirs."""
    print("\nOther tools, the same model on the same GPUs, this run, one core: layouts a second")
    for each in rows:
        if each.failure:
            hint = f" (--{each.name} points at it)" if each.failure == ABSENT else ""
            print(f"  {each.name:<15} {each.failure[:60]}{hint}")
            continue
        own = f", ours {each.ours_s:.2f} s" if each.ours_s else ""
        print(f"  {each.name:<15}{each.per_s:13,.0f}  {each.asked}, {each.seconds:.1f} s{own}")
        for what, rate in each.ours.items():
            print(f"    ours, {what:<22}{rate:12,.0f}  {rate / each.per_s:10,.1f} x")
    print("  possible: no rule forbids it; considered: all of the space")
    print("  one layout is not the same work everywhere: aiconfigurator prices a prompt and")
    print("  its answer where ours is a step of decoding, and it counts only its results")


def peer_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where other tools are."""
    parser.add_argument("--calculon", metavar="CHECKOUT", help="folder with calculon's source")
    for name in PEERS:
        if name != "calculon":
            words = f"interpreter of an environment with {name}"
            parser.add_argument(f"--{name}", metavar="PYTHON", default=sys.executable, help=words)


def peers_given(options: argparse.Namespace) -> list[Beside]:
    """Return what the other tools do that the command line points at."""
    given = vars(options)
    pythons = {name: given[name.replace("-", "_")] for name in PEERS if name != "calculon"}
    return beside(pythons, options.calculon)


def main() -> None:
    """Measure, and print one document or all tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=1, help="processes (--json)")
    parser.add_argument("--repeat", type=int, help=f"runs of each question ({ROUNDS}, --json 1)")
    parser.add_argument("--quick", action="store_true", help="fewer questions, one run of each")
    peer_options(parser)
    options = parser.parse_args()
    if options.json:
        run = {"case": "main", "jobs": options.jobs, "repeat": options.repeat or 1}
        print(json.dumps(measured(searched, NOW, cores=options.jobs, **run)))
        return
    show(tables(options.repeat or (1 if options.quick else ROUNDS), quick=options.quick))
    if not options.quick:
        print_grown()
    print_peers(peers_given(options))


if __name__ == "__main__":
    main()

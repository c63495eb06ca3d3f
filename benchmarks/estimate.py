"""How fast `estimate` is, beside the baseline: one layout at a time, and many in one call.

    python benchmarks/estimate.py [--json]

One at a time, layouts and workloads are drawn at random, of a dense model and of one with experts.
With *repeated* sizes, no question was asked before, but the kernels of a rank were: it has more
micro-batches, or more replicas with a batch in proportion. With *new* sizes, each has a batch or a
length that none had before, so that every GEMM has another size. *Again* asks the very same
questions a second time. A call ends when the time of the step is known; one row also asks for the
memory and the parts.

In arrays, 10,000 random layouts with one structure are one call; some of them are asked for one by
one and must come out the same.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from measuring import ROUNDS, Figure, Tables, as_data, asked_for_json, compared, figure, show

from shardcost import Cluster, Decode, Layout, Model, Prefill, Train, Workload, estimate

CLUSTER: Final = ("h100_sxm", "ib_8x400g")
MODELS: Final = {False: "llama3-70b", True: "deepseek-v3"}
"""By whether they have experts."""
PHASES: Final = ("decode", "prefill", "train")
DEGREES: Final = (1, 2, 4, 8)
REPEATED: Final = 300
"""Questions that are asked again and again."""
AGAIN: Final = 4
NEW: Final = 1200
IN_ARRAY: Final = 10_000
LEAST: Final = {"repeated": 10_000, "new": 4_000, "again": None}
"""Estimates a second that one core should do, by the sizes of their kernels."""
LEAST_IN_ARRAY: Final = 1_000_000

Question = tuple[Layout, Workload]


def questions(
    phase: str, number: int, *, experts: bool, new: bool = False, times: int = 1
) -> Iterator[Question]:
    """Yield random questions; with ``new``, each has a size that none before it had.

    ``times`` as many sequences are computed by kernels of the same sizes.
    """
    rng = random.Random(1)  # noqa: S311
    for turn in range(number):
        size = 1 + turn if new else rng.choice((8, 16, 32, 64, 128, 256))
        layout = layout_of(rng, phase, experts=experts, times=times)
        yield layout, workload_of(phase, size, times)


def layout_of(rng: random.Random, phase: str, *, experts: bool, times: int) -> Layout:
    """Return a random layout; in serving, with so many times the replicas."""
    tp = rng.choice(DEGREES)
    own: dict[str, Any] = {"ep": rng.choice((8, 16, 32)), "dp": 32} if experts else {}
    if phase != "train":
        own["dp"] = times * own.get("dp", 1)
    if phase == "train":
        own |= {
            "pp": rng.choice((1, 2, 4)),
            "micro_batch": rng.choice((1, 2)),
            "sequence_parallel": tp > 1 and (experts or rng.random() < 0.5),
            "recompute": rng.choice(("none", "selective", "full")),
            "zero": rng.choice((0, 1)),
        }
        own.setdefault("dp", rng.choice(DEGREES))
    return Layout(tp=tp, **own)


def workload_of(phase: str, size: int, times: int = 1) -> Workload:
    """Return a workload of a size and so many times the sequences; all degrees divide it."""
    if phase == "train":
        return Train(global_batch=512 * times, sequence_length=64 * size)
    if phase == "prefill":
        return Prefill(batch=32 * times, prompt_tokens=64 * size)
    return Decode(batch=32 * size * times, context_tokens=4096 + size)


def one_by_one(
    phase: str,
    *,
    experts: bool,
    sizes: str,
    parts: bool = False,
    of: str | None = None,
    on: Sequence[str] = CLUSTER,
) -> dict[str, Any]:
    """Return estimates per second, one call after another.

    Args:
        phase: ``decode``, ``prefill`` or ``train``.
        experts: Whether layouts have expert parallelism.
        sizes: ``again``, ``repeated`` or ``new``.
        parts: Ask for memory and parts as well.
        of: Another model.
        on: Another cluster and its network.
    """
    model = Model.named(of or MODELS[experts])
    cluster = Cluster.named(on[0], network=on[1])
    # What every call needs is loaded, and what is to be repeated is known.
    known = list(questions(phase, REPEATED, experts=experts))
    for layout, work in known:
        estimate(model, cluster, layout, work).time_s  # noqa: B018
    if sizes == "new":
        timed = list(questions(phase, NEW, experts=experts, new=True))
    elif sizes == "repeated":
        more = (questions(phase, REPEATED, experts=experts, times=2 + k) for k in range(AGAIN))
        timed = [each for some in more for each in some]
    else:
        timed = known * AGAIN
    start, worked = time.perf_counter(), time.process_time()
    for layout, work in timed:
        result = estimate(model, cluster, layout, work)
        result.time_s  # noqa: B018
        if parts:
            result.memory_bytes, result.parts_s  # noqa: B018
    seconds, worked = time.perf_counter() - start, time.process_time() - worked
    return {
        "seconds": seconds,
        "cpu_seconds": worked,
        "estimates": len(timed),
        "per_s": len(timed) / seconds,
    }


def in_array(phase: str, *, experts: bool, repeats: int = 5) -> dict[str, Any]:
    """Return layouts per second of one call on arrays of degrees, drawn anew for each call."""
    model, cluster = Model.named(MODELS[experts]), Cluster.named(CLUSTER[0], network=CLUSTER[1])
    work = workload_of(phase, 64)
    rng = np.random.default_rng(0)
    spent = []
    for _ in range(repeats):
        degrees = drawn(rng, phase, experts=experts)
        start, worked = time.perf_counter(), time.process_time()
        times: Any = estimate(model, cluster, Layout(**degrees), work).time_s
        spent.append((time.perf_counter() - start, time.process_time() - worked))
        for at in rng.integers(0, IN_ARRAY, 5).tolist():
            row: dict[str, Any] = {
                name: int(each[at]) if isinstance(each, np.ndarray) else each
                for name, each in degrees.items()
            }
            alone = estimate(model, cluster, Layout(**row), work).time_s
            if not np.isclose(times[at], alone, rtol=1e-9):
                raise SystemExit(f"{row} in an array is not what it is by itself")
    seconds, worked = min(spent)
    return {"seconds": seconds, "cpu_seconds": worked, "per_s": IN_ARRAY / seconds}


def drawn(rng: np.random.Generator, phase: str, *, experts: bool) -> dict[str, Any]:
    """Return arrays of degrees, and settings that all layouts share."""

    def powers(most: int) -> Any:
        return 2 ** rng.integers(0, most + 1, IN_ARRAY)

    degrees: dict[str, Any] = {"tp": powers(3), "dp": powers(5)}
    if experts:
        degrees |= {"ep": 2 ** rng.integers(3, 6, IN_ARRAY), "dp": np.full(IN_ARRAY, 32)}
    if phase == "train":
        degrees |= {"pp": powers(2), "micro_batch": powers(2), "zero": 1}
        degrees["sequence_parallel"] = True
    return degrees


def tables(rounds: int = ROUNDS) -> Tables:
    """Return all figures."""
    alone: list[Figure] = []
    grid: list[Figure] = []
    for experts, model in MODELS.items():
        for phase in PHASES:
            for sizes, least in LEAST.items():
                asked = {"phase": phase, "experts": experts, "sizes": sizes}
                what = f"{model}, {phase}, {sizes}"
                pair = compared(one_by_one, rounds=rounds, **asked)
                alone.append(figure(pair, "per_s", what, unit="/s", least=least))
            pair = compared(in_array, rounds=rounds, phase=phase, experts=experts)
            what = f"{model}, {phase}, {IN_ARRAY:,} in an array"
            grid.append(figure(pair, "per_s", what, unit="/s", least=LEAST_IN_ARRAY))
        asked = {"phase": "train", "experts": experts, "sizes": "repeated", "parts": True}
        pair = compared(one_by_one, rounds=rounds, **asked)
        what = f"{model}, train, repeated, with memory and parts"
        alone.append(figure(pair, "per_s", what, unit="/s"))
    return {
        "estimate, one layout at a time, on one core": alone,
        "estimate on arrays of layouts, on one core": grid,
    }


def main() -> None:
    """Measure and print."""
    as_json = asked_for_json(__doc__)
    found = tables()
    if as_json:
        print(json.dumps(as_data(found), indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()

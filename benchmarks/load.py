"""How fast loads are computed: the closed form, one simulation, a recorded trace, on one core.

    python benchmarks/load.py [--json]

The closed form is timed with its step times, at arrays of rates and of users: one deployment and
one pair of lengths, whose figures are computed at 64 rates and interpolated between them;
`computed` counts those 64 alone. The trace has the
lengths, gaps and shared prefixes of a recorded one where `SHARDCOST_EVIDENCE` names a folder with
Mooncake's (mooncake_conversation.csv), and drawn ones elsewhere; it is repeated to 100,000
requests, at 80 % of what the deployment holds.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from measuring import asked_for_json

from shardcost.cluster import Cluster
from shardcost.layout import Layout
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.engine import Engine
from shardcost.load.requests import Lengths, Requests, Stream
from shardcost.load.simulate import simulate
from shardcost.load.steady import capacity, steady
from shardcost.model import Model
from shardcost.software import Software

POINTS: Final = 20_000
TRACE: Final = 100_000
PROMPT, OUTPUT = Lengths(mean=1024), Lengths(mean=256)


def deployment(workers: int = 1) -> Deployment:
    """Return what serves in all cases."""
    model, cluster = Model.named("llama3-8b"), Cluster.named("h100_sxm")
    return Deployment(Pool(Engine(model, cluster, Layout(), Software.named("vllm")), workers))


def closed_form() -> dict[str, float]:
    """Return operating points in a second: rates and users, each an array."""
    served = deployment()
    most = capacity(served, prompt=PROMPT, output=OUTPUT).requests_per_s
    start = time.perf_counter()
    steady(served, prompt=PROMPT, output=OUTPUT, rate_per_s=np.linspace(0.01, 1, POINTS) * most)
    middle = time.perf_counter()
    steady(served, prompt=PROMPT, output=OUTPUT, users=np.arange(1, POINTS + 1) % 512 + 1)
    end = time.perf_counter()
    few = np.linspace(0.01, 0.99, 64) * most
    steady(served, prompt=PROMPT, output=OUTPUT, rate_per_s=few)
    computed = time.perf_counter() - end
    return {
        "rates_per_s": POINTS / (middle - start),
        "users_per_s": POINTS / (end - middle),
        "computed_per_s": len(few) / computed,
    }


def one_simulation() -> dict[str, float]:
    """Return the seconds of 300 requests of 256 tokens, at half of capacity and far above."""
    served = deployment()
    most = capacity(served, prompt=PROMPT, output=OUTPUT).requests_per_s
    found = {}
    for name, share in (("half_of_capacity_s", 0.5), ("overload_s", 3.0)):
        requests = Requests(rate_per_s=share * most, count=300, prompt=PROMPT, output=OUTPUT)
        start = time.perf_counter()
        simulate(served, requests)
        found[name] = time.perf_counter() - start
    return found


def trace() -> dict[str, float]:
    """Return the seconds of a long trace, and the memory that it took."""
    stream, served = repeated(recorded()), deployment(8)
    prompt, output = (
        Lengths(kind="lognormal", mean=float(np.mean(each)), cv=float(np.std(each) / np.mean(each)))
        for each in (stream.prompt_tokens, stream.output_tokens)
    )
    rate = 0.8 * capacity(served, prompt=prompt, output=output).requests_per_s
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    load = simulate(served, Requests(arrival="trace", trace=stream, rate_per_s=rate))
    seconds = time.perf_counter() - start
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "requests": len(stream),
        "served": len(load.served),
        "seconds": seconds,
        "requests_per_s": len(stream) / seconds,
        "more_memory_mb": more / 1024,
    }


def recorded() -> Stream:
    """Return a recorded trace, or one that is drawn."""
    folder = os.environ.get("SHARDCOST_EVIDENCE")
    for path in sorted(Path(folder).rglob("mooncake_conversation.csv")) if folder else []:
        with path.open(newline="") as file:
            return _stream([
                (row["arrival_s"], row["prompt_tokens"], row["output_tokens"],
                 [int(each) for each in row["prefix_hashes"].split()])
                for row in csv.DictReader(file)
            ])  # fmt: skip
    random = np.random.default_rng(0)
    count = 10_000
    prompts = Lengths.parse("lognormal:2000:1").draw(count, random)
    outputs = Lengths.parse("lognormal:300:1").draw(count, random)
    arrivals = np.cumsum(random.exponential(0.1, count))
    return _stream([(a, p, o, []) for a, p, o in zip(arrivals, prompts, outputs, strict=True)])


def _stream(rows: list[Any]) -> Stream:
    arrival, prompt, output, prefixes = zip(*rows, strict=True)
    return Stream(
        arrival_s=np.array(arrival, dtype=float),
        prompt_tokens=np.maximum(np.array(prompt, dtype=np.int64), 1),
        output_tokens=np.maximum(np.array(output, dtype=np.int64), 1),
        prefixes=prefixes,
    )


def repeated(stream: Stream) -> Stream:
    """Return a trace one after the other until it has enough requests."""
    times = -(-TRACE // len(stream))
    span = float(stream.arrival_s[-1] - stream.arrival_s[0]) * (1 + 1 / len(stream))
    shifts = np.repeat(np.arange(times) * span, len(stream))[:TRACE]
    prefixes = stream.prefixes or [()] * len(stream)
    return Stream(
        arrival_s=np.tile(stream.arrival_s - stream.arrival_s[0], times)[:TRACE] + shifts,
        prompt_tokens=np.tile(stream.prompt_tokens, times)[:TRACE],
        output_tokens=np.tile(stream.output_tokens, times)[:TRACE],
        prefixes=[prefixes[number % len(stream)] for number in range(TRACE)],
    )


def main() -> None:
    """Run all on one core and print them."""
    as_json = asked_for_json(__doc__)
    results = {"closed_form": closed_form(), "simulation": one_simulation(), "trace": trace()}
    if as_json:
        print(json.dumps(results, indent=2))
        return
    form, one, long = results.values()
    print(f"closed form, rates   {form['rates_per_s']:12,.0f} points/s")
    print(f"computed, of these   {form['computed_per_s']:12,.0f} points/s")
    print(f"closed form, users   {form['users_per_s']:12,.0f} points/s")
    print(f"300 requests x 256   {one['half_of_capacity_s']:12.3f} s at half of capacity,"
          f" {one['overload_s']:.3f} s at three times")  # fmt: skip
    print(f"trace of {long['requests']:,.0f}     {long['seconds']:12.1f} s,"
          f" {long['more_memory_mb']:.0f} MB more, {long['served']:,.0f} served")  # fmt: skip


if __name__ == "__main__":
    main()

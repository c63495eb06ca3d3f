"""How well the closed form of a load agrees with its simulation, on random deployments.

    python -m lab.load_agreement [--cases 300] [--seed 0]

Models from 1B to 70B, dense and of experts, engines, GPUs, tensor parallel degrees, lengths and
loads up to 90 % of capacity are drawn at random. Capacity is compared with what is served of
arrivals that are a quarter above it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.cluster import Cluster
from shardcost.errors import ShardcostError
from shardcost.layout import Layout
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.engine import Engine
from shardcost.load.requests import Lengths, Requests
from shardcost.load.simulate import simulate
from shardcost.load.steady import Capacity, capacity, steady
from shardcost.model import Model
from shardcost.software import Software

DEGREES: Final = {
    "llama3.2-1b": (1,),
    "llama3.2-3b": (1, 2),
    "mistral-7b": (1, 2, 4),
    "llama3-8b": (1, 2, 4),
    "qwen2.5-14b": (1, 2, 4),
    "qwen2.5-32b": (1, 2, 4, 8),
    "llama3-70b": (4, 8),
    "olmoe-1b-7b": (1, 2),
    "phi-3.5-moe": (2, 4, 8),
    "mixtral-8x7b": (2, 4, 8),
}
"""Tensor parallel degrees of each model."""
ENGINES: Final = ("vllm", "sglang", "trtllm")
DEVICES: Final = ("h100_sxm", "h200_sxm", "a100_sxm_80gb")
WARM: Final = 0.2
"""Share of the requests that find a worker which fills up, and are not counted."""


class Row(NamedTuple):
    """One case: closed form over simulation, minus 1; NaN where it was not compared."""

    engine: str
    arrival: str
    limit: str
    """Of capacity."""
    text: str
    ttft: float
    tpot: float
    rate: float
    """Requests in a second."""
    capacity: float


@dataclass(frozen=True)
class Case:
    """A deployment with a load."""

    model: str
    tp: int
    engine: str
    device: str
    prompt: Lengths
    output: Lengths
    arrival: str
    share: float
    """Of capacity."""
    seed: int

    @classmethod
    def drawn(cls, seed: int) -> Case:
        """Return the case of a seed."""
        random = np.random.default_rng(seed)
        model = str(random.choice(list(DEGREES)))
        return cls(
            model=model,
            tp=int(random.choice(DEGREES[model])),
            engine=str(random.choice(ENGINES)),
            device=str(random.choice(DEVICES)),
            prompt=_lengths(random, 64, 8192),
            output=_lengths(random, 16, 1024),
            arrival=str(random.choice(["poisson", "closed"])),
            share=float(random.uniform(0.1, 0.9)),
            seed=seed,
        )

    def __str__(self) -> str:
        load = f"{self.arrival} {self.share:.2f}"
        lengths = f"{self.prompt} / {self.output}"
        return f"{self.model} tp{self.tp} {self.device} {self.engine} {lengths} {load}"

    @property
    def deployment(self) -> Deployment:
        """What serves."""
        cluster, software = Cluster.named(self.device), Software.named(self.engine)
        return Deployment(
            Pool(Engine(Model.named(self.model), cluster, Layout(tp=self.tp), software))
        )

    def compared(
        self, *, least: int = 1000, most: float = np.inf, with_capacity: bool = True
    ) -> Row | None:
        """Return the case's errors, or None where it needs too many requests.

        Args:
            least: Requests that are simulated at least.
            most: Requests that are simulated at most.
            with_capacity: Whether capacity is compared too, for which most of the time is needed.
        """
        deployment = self.deployment
        lengths: dict[str, Any] = {"prompt": self.prompt, "output": self.output}
        found = capacity(deployment, **lengths)
        held = found.requests_per_s
        if self.arrival == "poisson":
            load: dict[str, Any] = {"rate_per_s": self.share * held}
            count = max(least, int(20 * self.share * found.steady.running))
        else:
            load = {"users": max(1, int(self.share * found.steady.running))}
            count = max(least // 2, 6 * load["users"])
        if count > most:
            return None
        sent: dict[str, Any] = {"requests": count} if self.arrival == "closed" else {}
        form = steady(deployment, **lengths, **load, **sent)
        requests = Requests(arrival=self.arrival, count=count, seed=self.seed, **lengths, **load)
        simulated = simulate(deployment, requests)
        kept = slice(int(WARM * count) if self.arrival == "poisson" else 0, None)
        first = (simulated.first_token_s - simulated.arrival_s)[kept]
        return Row(
            engine=self.engine,
            arrival=self.arrival,
            limit=found.limit,
            text=str(self),
            ttft=form.ttft_s / float(first.mean()) - 1,
            tpot=form.tpot_s / float(simulated.tpot_each_s.mean()) - 1,
            rate=form.requests_per_s / simulated.requests_per_s - 1,
            capacity=held / self._served(found, lengths) - 1 if with_capacity else float("nan"),
        )

    def _served(self, found: Capacity, lengths: dict[str, Any]) -> float:
        """Return the requests in a second that are served of more than capacity."""
        count = int(min(max(1500, 12 * found.steady.running), 12_000))
        rate = 1.25 * found.requests_per_s
        load = simulate(self.deployment, Requests(rate_per_s=rate, count=count, **lengths))
        last = float(load.arrival_s[-1])
        # From when the worker is full to when no more come.
        counted = (load.finished_s > 0.5 * last) & (load.finished_s <= 0.98 * last)
        return float(counted.sum() / (0.48 * last))


def _lengths(random: np.random.Generator, low: float, high: float) -> Lengths:
    mean = int(np.exp(random.uniform(np.log(low), np.log(high))))
    kind = str(random.choice(["fixed", "uniform", "exponential"]))
    if kind == "uniform":
        width = float(random.choice([0.1, 0.5]))
        return Lengths.parse(f"{int(mean * (1 - width))}-{int(mean * (1 + width))}")
    return Lengths.parse(f"exponential:{mean}" if kind == "exponential" else str(mean))


def compared(cases: int, seed: int = 0, **options: Any) -> Iterator[Row]:
    """Return the errors of so many cases; those whose weights or requests do not fit are left out.

    Args:
        cases: How many are drawn.
        seed: Of the first.
        options: Of `Case.compared`.
    """
    for number in range(seed, seed + cases):
        try:
            row = Case.drawn(number).compared(**options)
        except ShardcostError:
            continue
        if row is not None:
            yield row


def summary(rows: Sequence[Row]) -> list[str]:
    """Return a table of Markdown: median and 90th percentile of the errors, in percent."""
    lines = ["| cases | | TTFT | TPOT | requests/s | capacity |", "|---|---|---|---|---|---|"]
    groups = {"all": list(rows)}
    for name in ("arrival", "engine", "limit"):
        for value in sorted({str(getattr(row, name)) for row in rows}):
            groups[value] = [row for row in rows if getattr(row, name) == value]
    for arrival in ("poisson", "closed"):
        for engine in ENGINES:
            members = [row for row in rows if (row.arrival, row.engine) == (arrival, engine)]
            groups[f"{arrival}, {engine}"] = members
    for title, members in groups.items():
        if members:
            figures = [_both(members, name) for name in ("ttft", "tpot", "rate", "capacity")]
            lines.append(f"| {title} | {len(members)} | " + " | ".join(figures) + " |")
    return lines


def _both(rows: Sequence[Row], name: str) -> str:
    errors = 100 * np.abs(np.array([getattr(row, name) for row in rows], dtype=float))
    median, most = np.nanpercentile(errors, [50, 90])
    return f"{median:.1f} / {most:.0f} %"


def main() -> None:
    """Print each case and the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows = []
    for row in compared(options.cases, options.seed):
        rows.append(row)
        errors = " ".join(
            f"{name} {100 * getattr(row, name):+.1f}"
            for name in ("ttft", "tpot", "rate", "capacity")
        )
        print(f"{row.text}: {errors} ({row.limit})", flush=True)
    print(f"{options.cases - len(rows)} do not fit")
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()

"""Workers that could serve a load: engines, number formats and layouts, screened on arrays.

All layouts of an engine are priced in two calls of `estimate`: a step of decoding at batches from 1
to the largest, and a pass over prompts. With L batches in flight (ranks of attention's data
parallelism x pipeline stages), p seconds of a worker for a prompt and T(b) for a step of b
sequences in each batch, an output of s steps takes the worker::

    decode seconds of a request      d(b) = s x T(b) / (b x L)
    requests in a second, prefill    1 / p
    requests in a second, decode     1 / d(b)
    requests in a second, both       1 / (p + d(b)), at a TPOT of T(b) + b x L x p / s

Where prompts and decoding share a worker, all ranks of data parallelism wait for one with a prompt,
and only prompts that come while another is prefilled run beside it: of dp ranks, 1 + rate x dp x p
have one.

The largest of these over the batches that memory and the limit of TPOT allow says in which order
deployments are looked at in full (`deployments`); it knows no queues and no percentiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.cluster import Cluster
from shardcost.errors import Reason, Rule
from shardcost.layout import Layout
from shardcost.load.engine import Engine
from shardcost.load.requests import Floats, Ints, Lengths
from shardcost.load.result import Limits
from shardcost.machine import machine_of
from shardcost.model import Experts
from shardcost.program.feasibility import reasons
from shardcost.search.objectives import Price, price_on
from shardcost.search.space import divisors
from shardcost.units import format_time
from shardcost.workload import Decode, Prefill

SERVING, PREFILL, DECODE = ROLES = ("serving", "prefill", "decode")
"""What the workers of a pool do; ``serving`` is both."""
DEGREES: Final = ("tp", "pp", "dp", "ep")
"""Of a worker's layout: what is varied."""
OBJECTIVES: Final = ("goodput", "cost")
DOES_NOT_FIT: Final = Rule(
    "does_not_fit_memory", "weights and the KV cache of one request do not fit memory"
)
DOES_NOT_FILL: Final = Rule("workers_do_not_fill_gpus", "workers do not fill {} GPUs")
TOO_LARGE: Final = Rule("worker_exceeds_gpus", "a worker beside another pool exceeds {} GPUs")
SAME_AS_WORKERS: Final = Rule(
    "same_as_more_workers", "dp without experts over its ranks: the same as more workers"
)
ALONE: Final = Rule("max_{}_s", "{} of a request by itself above {}")
TOO_FEW: Final = Rule("load_needs_more_gpus", "{} needs more than {} GPUs")
_ROUNDS: Final = 6
"""Of the fixed point of rate and prompts that are prefilled together."""
_MOST_PROMPTS: Final = 64
"""Of one pass that is priced."""


@dataclass(frozen=True, eq=False)
class LoadQuestion:
    """What deployments are looked for: of which workers, for which load, by which figure."""

    engines: tuple[Engine, ...]
    """One for every cluster, engine and number format; degrees of their layouts are varied."""
    gpus: tuple[int, ...]
    """In all: as many as a deployment has, or with a load that is given, the most it may have."""
    prompt: Lengths
    output: Lengths
    prefix_tokens: int = 0
    """Of every prompt, the tokens that all begin with."""
    seed: int = 0
    """Of the simulations."""
    limits: Limits = field(default_factory=Limits)
    rate_per_s: float | None = None
    """Poisson arrivals that are to be held …"""
    users: int | None = None
    """… or users of a closed loop; with neither, the highest rate is looked for."""
    pools: str = "both"
    degrees: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Values of `DEGREES`; all that are possible where left out."""
    objective: str = "goodput"
    price: Price | None = None
    """Of a GPU for an hour."""

    @property
    def load(self) -> float | None:
        """What is to be held: requests in a second, or users; None: as much as possible."""
        return self.rate_per_s if self.users is None else float(self.users)

    @property
    def least_rate_per_s(self) -> float | None:
        """The rate that is to be held; of users, that at which their requests take longest."""
        limits = self.limits
        if self.users is None:
            return self.rate_per_s
        longest = limits.e2e_s
        if longest is None and limits.ttft_s is not None and limits.tpot_s is not None:
            longest = limits.ttft_s + limits.tpot_s * self.output.mean
        return None if longest is None else self.users / longest

    @property
    def load_text(self) -> str:
        """The load in words."""
        return f"{self.users:,} users" if self.users else f"{self.rate_per_s or 0:g} requests/s"

    @property
    def most_gpus(self) -> int:
        """That a deployment may have."""
        return max(self.gpus)

    def price_of(self, cluster: Cluster) -> float | None:
        """Return what one of its GPUs costs in a second, where a price is given."""
        return None if self.price is None else price_on(cluster, self.price) / 3600


class Choice(NamedTuple):
    """A worker in one role, and what it serves at best."""

    group: int
    """Which of the question's engines."""
    role: str
    engine: Engine
    gpus: int
    requests_per_s: float
    """Of one worker, without queues."""
    tpot_s: float
    """Of a request by itself."""


class Screened(NamedTuple):
    """The workers that are left, and the others by reason."""

    choices: list[Choice]
    considered: int
    rejected: Counter[Reason]


def screened(question: LoadQuestion) -> Screened:
    """Return the workers of every role that are possible, fit and keep the limits by themselves."""
    choices: list[Choice] = []
    rejected: Counter[Reason] = Counter()
    considered = 0
    roles = {"both": ROLES, "aggregated": ROLES[:1], "disaggregated": ROLES[1:]}[question.pools]
    for group, engine in enumerate(question.engines):
        grid = np.array(sorted(layouts(question, engine)), dtype=np.int64).reshape(-1, 4)
        screen = _Screen(question, engine, grid)
        for role in roles:
            considered += len(grid)
            left, counted = screen.left(role)
            rejected += counted
            choices += screen.choices(group, role, left)
    return Screened(choices, considered, rejected)


def layouts(question: LoadQuestion, engine: Engine) -> Iterator[tuple[int, ...]]:
    """Yield tp, pp, dp and ep of workers on at most all GPUs.

    Experts are tensor-parallel, or spread over all ranks of a stage, as engines start them.
    """
    most = question.most_gpus
    known = {each for gpus in question.gpus for each in divisors(gpus)}
    known |= {1 << power for power in range(most.bit_length())}
    usual = [each for each in sorted(known) if each <= most]
    has_experts = any(isinstance(block.feed_forward, Experts) for block in engine.model.blocks)
    given = question.degrees
    for tp, pp, dp in product(*(given.get(name, usual) for name in DEGREES[:3])):
        if tp * pp * dp > most:
            continue
        for ep in given.get("ep", sorted({1, tp * dp}) if has_experts else (1,)):
            yield int(tp), int(pp), int(dp), int(ep)


class _Screen:
    """All layouts of one engine, down the first axis."""

    def __init__(self, question: LoadQuestion, engine: Engine, grid: Ints) -> None:
        self.question, self.grid = question, grid
        self.cluster = machine_of(engine.cluster).cluster
        self.engine = engine
        prompt, output = question.prompt, question.output
        self.prompt = max(round(prompt.mean), 1)
        self.context = max(round(prompt.mean + output.mean / 2), 1)
        self.longest = max(round(prompt.mean + output.mean), 2)
        kept = engine.kept_tokens
        self.kept, self.steps = kept, max((output.mean - 1) / kept, 1e-9)
        self.possible, self.rejected = self._possible()
        places = np.flatnonzero(self.possible)
        self.places = places
        self.figures = self._priced(places) if len(places) else _NOTHING

    def _laid_out(self, rows: Ints) -> Engine:
        """Return the engine with an array of layouts, one to a row."""
        degrees: dict[str, Any] = {name: rows[:, n, None] for n, name in enumerate(DEGREES)}
        return replace(self.engine, layout=replace(self.engine.layout, **degrees))

    def _possible(self) -> tuple[Any, Counter[Reason]]:
        """Return which layouts the rules leave, and the others by the first rule they break."""
        left, counted = np.ones(len(self.grid), dtype=bool), Counter[Reason]()
        if not len(self.grid):
            return left, counted
        layout: Layout = self._laid_out(self.grid).layout
        model, formats = self.engine.model, self.engine.formats
        decode = Decode(batch=layout.dp, context_tokens=self.context, **formats)
        prefill = Prefill(batch=layout.dp, prompt_tokens=self.prompt, **formats)
        against = reasons(model, layout, decode, self.cluster)
        against |= reasons(model, layout, prefill, self.cluster)
        # Ranks that share no experts step together for nothing.
        against[SAME_AS_WORKERS.reason()] = (layout.dp > 1) & (layout.ep <= layout.tp)
        for reason, where in against.items():
            broken = left & np.broadcast_to(where, (len(left), 1))[:, 0]
            if broken.any():
                counted[reason] += int(broken.sum())
                left &= ~broken
        return left, counted

    def _priced(self, places: Ints) -> _Figures:
        engine = self._laid_out(self.grid[places])
        layout, scheduler = engine.layout, engine.software.scheduler
        batches = np.array(_doublings(scheduler.max_num_seqs))[None, :]
        lanes = layout.dp * layout.pp
        step_s = engine.decode(batches * layout.dp, self.context).time_s + 0.0 * lanes
        shared = self.question.prefix_tokens if engine.software.scheduler.prefix_caching else 0
        cached = min(shared, max(round(self.question.prompt.mean) - 1, 0))
        new = max(self.prompt - cached, 1)
        many = min(max(scheduler.max_num_batched_tokens // new, 1), _MOST_PROMPTS)
        prompts = np.array([[1, many]])
        passes_s = engine.prefill(prompts * layout.dp, new, cached).time_s + 0.0 * lanes
        return _Figures(
            gpus=np.ravel(layout.devices * np.ones_like(layout.tp)),
            room=np.ravel(engine.sequences(self.longest) + 0 * layout.tp),
            lanes=np.ravel(lanes),
            batches=batches,
            step_s=np.asarray(step_s, dtype=float),
            prompts=prompts,
            passes_s=np.asarray(passes_s, dtype=float),
            mean_room=np.ravel(engine.sequences(self.context) + 0 * layout.tp),
        )

    def left(self, role: str) -> tuple[Any, Counter[Reason]]:
        """Return which priced layouts are left in a role, and all others by reason."""
        counted = Counter(self.rejected)
        figures, question, limits = self.figures, self.question, self.question.limits
        left = np.ones(len(self.places), dtype=bool)

        def strike(reason: Reason, where: Any) -> None:
            broken = left & where
            if broken.any():
                counted[reason] += int(broken.sum())
                left[broken] = False

        most = question.most_gpus
        ranks = self.grid[self.places, 2]
        strike(DOES_NOT_FIT.reason(), figures.room < ranks)
        if role != SERVING:
            strike(TOO_LARGE.reason(most), figures.gpus >= most)
        elif question.load is None:
            fills = np.zeros(len(left), dtype=bool)
            for gpus in question.gpus:
                fills |= gpus % figures.gpus == 0
            counts = " or ".join(map(str, question.gpus))
            strike(DOES_NOT_FILL.reason(counts), ~fills)
        alone = self._alone(role)
        for name, (seconds, exact) in alone.items():
            limit = getattr(limits, f"{name}_s")
            if limit is not None and exact:
                words = ALONE.text.format(name.upper(), format_time(limit))
                strike(Reason(ALONE.code.format(name), words, (limit,)), seconds > limit)
        if question.rate_per_s is not None:
            most_workers = most // figures.gpus
            short = self._rates(role) * most_workers < question.rate_per_s
            strike(TOO_FEW.reason(question.load_text, most), short)
        return left, counted

    def _alone(self, role: str) -> dict[str, tuple[Floats, bool]]:
        """Return latencies of a request by itself, and whether all requests are alike in them."""
        ttft_s, step_s = self.figures.passes_s[:, 0], self.figures.step_s[:, 0]
        same_prompt, same = self.question.prompt.variation == 0, self.question.output.variation == 0
        known = {
            "ttft": (ttft_s, same_prompt),
            "tpot": (step_s / self.kept, self.steps >= 1),
            "e2e": (ttft_s + self.steps * step_s, same_prompt and same),
        }
        wanted = {SERVING: known, PREFILL: ("ttft",), DECODE: ("tpot",)}[role]
        return {name: known[name] for name in wanted}

    def _rates(self, role: str) -> Floats:
        """Return the most requests in a second of one worker of each layout."""
        figures, limits = self.figures, self.question.limits
        lanes = figures.lanes[:, None]
        each_s = figures.passes_s / (figures.prompts * lanes)
        prefill_s = each_s.min(axis=1, keepdims=True)
        if role == PREFILL:
            return np.asarray(1 / prefill_s[:, 0])
        decode_s = self.steps * figures.step_s / (figures.batches * lanes)
        # Sequences hold on average what they have halfway through their outputs.
        fit = figures.batches * lanes <= np.maximum(figures.mean_room[:, None], lanes)
        tpot_s = limits.tpot_s or np.inf
        within = fit & (figures.step_s / self.kept <= tpot_s)
        if role == DECODE:
            return np.asarray(np.where(within, 1 / decode_s, 0.0).max(axis=1))
        # Prompts may take what the limit of TPOT leaves of the time.
        spare = np.maximum(1 - figures.step_s / self.kept / tpot_s, 0.0)
        ranks = self.grid[self.places, 2, None]
        rank_s, own_s = ranks * prefill_s, prefill_s
        rates = np.zeros(len(lanes))
        for _ in range(_ROUNDS):
            known = np.minimum(1 / (own_s + decode_s), spare / own_s)
            rates = np.where(within, known, 0.0).max(axis=1)
            # All ranks wait for one with a prompt: few come while another is prefilled.
            own_s = rank_s / np.clip(1 + rates[:, None] * rank_s, 1.0, ranks)
        return np.asarray(rates)

    def choices(self, group: int, role: str, left: Any) -> Iterator[Choice]:
        """Yield the layouts that are left in a role."""
        if not len(self.places):
            return
        rates = self._rates(role)
        for place in np.flatnonzero(left):
            row = self.grid[self.places[place]].tolist()
            degrees: dict[str, Any] = dict(zip(DEGREES, row, strict=True))
            layout = replace(self.engine.layout, **degrees)
            yield Choice(
                group,
                role,
                replace(self.engine, layout=layout),
                int(self.figures.gpus[place]),
                float(rates[place]),
                float(self.figures.step_s[place, 0] / self.kept),
            )


class _Figures(NamedTuple):
    """Of layouts, one to a row."""

    gpus: Any
    room: Any
    """Sequences at their full length that the KV cache of a worker holds …"""
    lanes: Any
    batches: Any
    step_s: Floats
    """By batches of one rank."""
    prompts: Any
    passes_s: Floats
    """By prompts of one rank."""
    mean_room: Any
    """… and at their mean one."""


_NOTHING: Final = _Figures(
    *(np.zeros(0, dtype=np.int64),) * 3, np.ones((1, 1)), np.zeros((0, 1)), np.ones((1, 1)),
    np.zeros((0, 1)), np.zeros(0, dtype=np.int64),
)  # fmt: skip


def _doublings(most: int) -> list[int]:
    """Return 1 to 4, then four sizes to each doubling, up to the most."""
    sizes = {each << power for each in (4, 5, 6, 7) for power in range(most.bit_length())}
    return sorted({each for each in (1, 2, 3, *sizes) if each < most} | {most})

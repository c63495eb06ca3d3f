"""Whole requests on top of `estimate`: a batch from prompt to last token, and an engine under load.

A static batch is prefilled once and decoded step by step, each step over a longer context. Steps
are priced at a few contexts only (Gauss-Legendre points), because a step's time is nearly linear in
its context. Sequences whose keys and values do not fit in memory together run in rounds, one after
the other.

Under load, with so many requests in the engine at any time, new prompts are prefilled between the
decoding steps of the others (Yu et al. 2022, Orca, OSDI), which wait meanwhile. While one request
lives, every other one is prefilled once, so by Little's law::

    life of a request = requests x prefill of one + output tokens x step
    output rate       = requests x output tokens / life

A request waits before its first token for the prompts that came with it, and for all the others
between its later ones. Requests that were sent together and are equally long stay together: half
of them are prefilled before the average one. Otherwise they end, and others come, at random times,
and as for any random count about the square root of them come in a bunch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

import numpy as np

from shardcost.arrays import ceil_div, largest, smallest
from shardcost.cluster import Cluster
from shardcost.errors import UnknownNameError
from shardcost.estimate.result import Estimate
from shardcost.estimate.step import estimate
from shardcost.layout import Layout
from shardcost.machine import Machine, machine_of
from shardcost.memory import memory_of
from shardcost.memory.policy import policy_with
from shardcost.model import Model
from shardcost.records import dataclass
from shardcost.software import Software
from shardcost.workload import Decode, Prefill

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(3)
_AT: Final = (1 + _POINTS) / 2
_SHARE: Final = _WEIGHTS / 2
"""Where in the output steps are priced, from 0 at its start to 1 at its end, and their weights."""
ARRIVALS: Final = ("at random", "together")


@dataclass(frozen=True, eq=False)
class Generation:
    """A batch of requests from prompt to last token. Figures are numbers, or arrays."""

    ttft_s: Any
    """Until the first token."""
    tpot_s: Any
    """Between later tokens, on average."""
    latency_s: Any
    """Until the last token of the last sequence."""
    output_tokens_per_s: Any
    """Of all sequences."""
    rounds: Any
    """How often a part of the batch runs after another, because memory does not hold all."""
    prefill: Estimate
    decode: Estimate
    """Steps at the few contexts, along the last axis."""


@dataclass(frozen=True, eq=False)
class InFlight:
    """An engine that always has so many requests. Figures are numbers, or arrays."""

    requests: Any
    """In the engine at any time."""
    ttft_s: Any
    tpot_s: Any
    latency_s: Any
    """Of one request, from its arrival to its last token."""
    output_tokens_per_s: Any
    prefill: Estimate
    """Of as many prompts as go in one pass."""
    decode: Estimate
    """Steps at the few contexts, along the last axis."""


@dataclass(frozen=True)
class Engine:
    """A model on a cluster under a layout, run by some software in some number formats."""

    model: Model
    cluster: Cluster | Machine
    layout: Layout
    software: Software
    formats: Mapping[str, Any] = field(default_factory=dict)
    """Number formats by the names of the workload's fields; the model's own where left out."""
    draft_tokens: int = 0
    """Drafted per sequence and step, as in `Decode` …"""
    acceptance: float = 0.85
    """… and the probability that a draft is kept if those before it were."""

    def prefill(self, batch: Any, prompt_tokens: Any, cached_tokens: Any = 0) -> Estimate:
        """Return the estimate of one pass over prompts."""
        tokens = {"prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens}
        return self._estimate(Prefill(batch=batch, **tokens, **self.formats))

    def decode(self, batch: Any, context_tokens: Any) -> Estimate:
        """Return the estimate of one step."""
        return self._estimate(self._decode(batch, context_tokens))

    def _decode(self, batch: Any, context_tokens: Any) -> Decode:
        return Decode(
            batch=batch,
            context_tokens=context_tokens,
            draft_tokens=self.draft_tokens,
            acceptance=self.acceptance,
            **self.formats,
        )

    @property
    def query_tokens(self) -> int:
        """Tokens of a sequence that pass through the layers in a step of decoding."""
        return 1 + self.draft_tokens

    @property
    def kept_tokens(self) -> float:
        """Tokens of a sequence that a step of decoding yields on average."""
        return float(self._decode(1, 1).kept_tokens)

    def steps(self, batch: Any, prompt_tokens: Any, output_tokens: Any) -> tuple[Estimate, Any]:
        """Return the estimate of a few steps of an output, and the mean time of all."""
        first, many = _column(prompt_tokens), _column(largest(output_tokens - 1, 1))
        contexts = np.rint(first + _AT * (many - 1)).astype(int)
        few = self.decode(_column(batch), contexts)
        mean_s = (few.time_s * _SHARE).sum(axis=-1)
        return few, mean_s if np.ndim(mean_s) else float(mean_s)

    def room(self, prompt_tokens: Any, output_tokens: Any) -> Any:
        """Return how many sequences memory holds at their full length, beside one prefill."""
        return self.sequences(prompt_tokens + output_tokens - 1, prompt_tokens)

    def sequences(self, context_tokens: Any, step_tokens: Any = None) -> Any:
        """Return how many sequences the KV cache of all ranks holds. Degrees may be arrays.

        Args:
            context_tokens: Of each.
            step_tokens: Of the largest step, whose activations the cache leaves room for;
                `max_num_batched_tokens` if None.
        """
        most = self.software.scheduler.max_num_batched_tokens
        free = self._free_bytes(most if step_tokens is None else step_tokens)
        return _whole(self.layout.dp * largest(free // self.kv_bytes(context_tokens), 0))

    def cache_bytes(self, most_context: int) -> tuple[float, float, float]:
        """Return a rank's bytes for the KV cache, and of one sequence: at any length, and a token.

        Layers with a window, or with a state instead of a cache, stop to grow: the two figures are
        of the line through lengths of a half and the whole of `most_context`.
        """
        free = self._free_bytes(self.software.scheduler.max_num_batched_tokens)
        half, whole = max(most_context // 2, 1), max(most_context, 2)
        few, many = (float(self.kv_bytes(tokens)) for tokens in (half, whole))
        slope = max((many - few) / (whole - half), 1e-9 * many)
        return float(free), max(many - slope * whole, 0.0), slope

    def kv_bytes(self, context_tokens: Any) -> Any:
        """Return the cache of one sequence on a rank."""
        work = Decode(batch=self.layout.dp, context_tokens=context_tokens, **self.formats)
        return self._memory(work)["kv_cache"]

    def _free_bytes(self, prompt_tokens: Any) -> Any:
        """Return what weights and a prefill leave of a rank's memory for the KV cache."""
        work = Prefill(batch=self.layout.dp, prompt_tokens=prompt_tokens, **self.formats)
        first = self._memory(work)
        fixed = sum(first.values()) - first["kv_cache"]
        memory = machine_of(self.cluster).cluster.device.memory_bytes
        return self.software.scheduler.cache_bytes(memory, fixed)

    def _memory(self, work: Prefill | Decode) -> dict[str, Any]:
        work = work.in_formats_of(self.model, narrow_cache=self.software.narrow_cache)
        policy = policy_with(vars(self.software), self.software.memory)
        return memory_of(self.model, self.layout, work, software=policy).by_kind()

    def _estimate(self, work: Prefill | Decode) -> Estimate:
        return estimate(self.model, self.cluster, self.layout, work, software=self.software)


def generation(engine: Engine, *, batch: Any, prompt_tokens: Any, output_tokens: Any) -> Generation:
    """Return what a static batch takes. Counts may be arrays that broadcast.

    >>> model, cluster = Model.named("llama3-8b"), Cluster.named("h100_sxm")
    >>> engine = Engine(model, cluster, Layout(), Software.named("trtllm"))
    >>> batch = generation(engine, batch=1, prompt_tokens=512, output_tokens=128)
    >>> 5 < 1e3 * batch.tpot_s < 10
    True
    """
    dp = engine.layout.dp
    room = largest(engine.room(prompt_tokens, output_tokens), dp)
    rounds = ceil_div(batch, smallest(batch, room))
    together = ceil_div(batch, rounds * dp) * dp
    prefill = engine.prefill(together, prompt_tokens)
    prefill_s = prefill.time_s
    decode, step_s = engine.steps(together, prompt_tokens, output_tokens)
    latency_s = rounds * (prefill_s + (output_tokens - 1) * step_s)
    return Generation(
        ttft_s=prefill_s,
        tpot_s=step_s,
        latency_s=latency_s,
        output_tokens_per_s=batch * output_tokens / latency_s,
        rounds=rounds,
        prefill=prefill,
        decode=decode,
    )


def under_load(
    engine: Engine,
    *,
    requests: Any = None,
    prompt_tokens: Any,
    output_tokens: Any,
    arrivals: str = "at random",
    whole_prompts: int | None = None,
) -> InFlight:
    """Return what an engine does that always has so many requests.

    Args:
        engine: What serves them.
        requests: In the engine at any time; as many as fit if None.
        prompt_tokens: Of each request.
        output_tokens: Of each request.
        arrivals: Whether a request's successor comes when it ends, ``at random``, or all were sent
            ``together`` and stay so.
        whole_prompts: That a step has room for at most; as many as its tokens hold if None.
    """
    if arrivals not in ARRIVALS:
        raise UnknownNameError("arrivals", arrivals, ARRIVALS)
    dp = engine.layout.dp
    room = largest(engine.room(prompt_tokens, output_tokens), dp)
    most = smallest(room, engine.software.scheduler.max_num_seqs * dp)
    running = most if requests is None else smallest(requests, most)
    each = running / dp
    bunch = each if arrivals == "together" else each**0.5
    held = engine.software.scheduler.max_num_batched_tokens // prompt_tokens
    if whole_prompts is not None:
        held = smallest(held, whole_prompts)
    prompts = _whole(largest(smallest(held, bunch // 1), 1))
    prefill = engine.prefill(dp * prompts, prompt_tokens)
    prefill_s = prefill.time_s / prompts
    decode, step_s = engine.steps(running, prompt_tokens, output_tokens)
    life_s = each * prefill_s + output_tokens * step_s
    ttft_s = prefill_s * ((1 + each) / 2 if arrivals == "together" else bunch)
    return InFlight(
        requests=running,
        ttft_s=ttft_s,
        tpot_s=(life_s - ttft_s) / output_tokens,
        latency_s=life_s,
        output_tokens_per_s=running * output_tokens / life_s,
        prefill=prefill,
        decode=decode,
    )


def _column(value: Any) -> Any:
    """Return a count with an axis after its own, for the contexts."""
    return np.asarray(value)[..., None]


def _whole(value: Any) -> Any:
    return value.astype(int) if np.ndim(value) else int(value)

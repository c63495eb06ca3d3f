"""What the latencies of a load are made of: steps as `estimate` prices them, and the waits beside.

The simulation knows when a first token came. What of that time a request would have taken by itself
follows from the estimates: its way through the front end, one pass over its prompt, and the way of
its KV cache to another pool. The rest it waited, behind other requests and for running steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from shardcost.estimate.result import Estimate
from shardcost.load.result import Load
from shardcost.load.transfer import transfer_s
from shardcost.load.worker import KVRoom


@dataclass(frozen=True, eq=False)
class Parts:
    """Estimates at the middle of a load, and what time to first token is made of."""

    prefill: Estimate
    """One prompt of mean length for every rank, by itself."""
    decode: Estimate
    """A step of decoding at the mean batch of a worker, halfway through the outputs."""
    kv_tokens: int
    """That the KV cache of one worker holds."""
    ttft_s: dict[str, float]
    """The mean, by part."""
    beyond_context: int
    """Requests, served or not, that are longer than the model's context."""


def parts_of(load: Load) -> Parts:
    """Return what the latencies of a load are made of."""
    deployment, requests = load.deployment, load.requests
    first, serving = deployment.pools[0].engine, deployment.serving.engine
    prompt = max(round(requests.mean_prompt_tokens), 1)
    output = max(round(requests.mean_output_tokens), 1)
    ranks = int(serving.layout.dp)
    batch = max(round(load.mean_running / deployment.serving.workers / ranks), 1) * ranks
    prefill = first.prefill(int(first.layout.dp), prompt)
    decode = serving.decode(batch, prompt + output // 2)
    room = KVRoom(serving, prompt + output)
    scheduler = first.software.scheduler
    parts = {"front end": float(scheduler.frontend_s + scheduler.frontend_per_request_s)}
    moved_s = float(transfer_s(deployment, prompt)) if deployment.prefill else 0.0
    left = max(load.ttft_s.mean - parts["front end"] - moved_s, 0.0)
    # With a part of the prompt in the prefix cache, prefill is shorter than that of all of it.
    parts["prefill"] = min(float(prefill.time_s), left)
    if moved_s:
        parts["KV transfer"] = moved_s
    parts["queue and running steps"] = left - parts["prefill"]
    most = serving.model.context_tokens
    stream = requests.stream()
    longer = int((stream.prompt_tokens + stream.output_tokens > most).sum()) if most else 0
    return Parts(prefill, decode, floor(room.blocks * room.block) * ranks, parts, longer)

"""What a load rests on: steps at its middle as `estimate` prices them, the room of the KV cache."""

from __future__ import annotations

from math import floor

from shardcost.estimate.result import Estimate
from shardcost.load.result import Load
from shardcost.load.worker import KVRoom
from shardcost.records import dataclass


@dataclass(frozen=True, eq=False)
class Parts:
    """Estimates at the middle of a load."""

    prefill: Estimate
    """One prompt of mean length for every rank, by itself."""
    decode: Estimate
    """A step of decoding at the mean batch of a worker, halfway through the outputs."""
    kv_tokens: int
    """That the KV cache of one worker holds."""
    beyond_context: int
    """Requests, served or not, that are longer than the model's context."""


def parts_of(load: Load) -> Parts:
    """Return what a load rests on."""
    deployment, requests = load.deployment, load.requests
    first, serving = deployment.pools[0].engine, deployment.serving.engine
    prompt = max(round(requests.mean_prompt_tokens), 1)
    output = max(round(requests.mean_output_tokens), 1)
    ranks = int(serving.layout.dp)
    batch = max(round(load.mean_running / deployment.serving.workers / ranks), 1) * ranks
    prefill = first.prefill(int(first.layout.dp), prompt)
    decode = serving.decode(batch, prompt + output // 2)
    room = KVRoom(serving, prompt + output)
    most = serving.model.context_tokens
    stream = requests.stream()
    longer = int((stream.prompt_tokens + stream.output_tokens > most).sum()) if most else 0
    return Parts(prefill, decode, floor(room.blocks * room.block) * ranks, longer)

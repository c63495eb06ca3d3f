"""Prefills whose all-reduces run by multimem instructions, alone, left out, or hidden.

Such an all-reduce is one kernel of the engine in which the switch adds up and replicates (Klenk et
al. 2020, An in-network architecture for accelerating shared-memory multiprocessor collectives,
ISCA). It starts like the engine's other kernels of that kind, and then takes what as many bytes
more take NCCL's own in-switch algorithm.

Hidden, the tokens are split in two and each half's all-reduces run beside the products of the other
(Gond et al. 2025, TokenWeave, arXiv:2505.11329): what is left is that products of half as many
tokens take more than half as long.
"""

from __future__ import annotations

from typing import Any, Final

from shardcost.arrays import ceil_div
from shardcost.cluster import Cluster
from shardcost.collectives.silicon import collective_time
from shardcost.errors import BadValueError
from shardcost.estimate.result import Estimate
from shardcost.estimate.serving import Engine
from shardcost.program.operations import Collective

_SMALL_BYTES: Final = 4096


def multimem_all_reduce_s(cluster: Cluster, ranks: int, size_bytes: Any) -> Any:
    """Return the seconds of an all-reduce by multimem instructions of an engine's own kernel."""
    start = _path_s("vllm", "multicast", cluster, ranks, _SMALL_BYTES)
    twice = _path_s("nccl", "nvls", cluster, ranks, 2 * size_bytes)
    return start + twice - _path_s("nccl", "nvls", cluster, ranks, size_bytes)


def multimem_s(found: Estimate) -> Any:
    """Return the seconds of all of a pass's all-reduces, if they run so."""
    pieces = [(each.count, each.passes.forward) for each in found.program.layers]
    pieces += [(1, found.program.first.forward), (1, found.program.last.forward)]
    return sum(
        count * op.count * multimem_all_reduce_s(found.cluster, op.ranks, op.size_bytes)
        for count, operations in pieces
        for op in operations
        if isinstance(op, Collective) and op.group == "tp"
    )


def without_all_reduces_s(found: Estimate) -> Any:
    """Return the seconds of a pass that leaves them out."""
    return found.time_s - found.exposed_s["tp"]


def prefill_s(engine: Engine, metric: str, prompt_tokens: Any) -> Any:
    """Return the seconds of a prefill: as it is, ``no_allreduce``, or ``overlapped``."""
    found = engine.prefill(1, prompt_tokens)
    alone = without_all_reduces_s(found)
    if metric.endswith("no_allreduce"):
        return alone
    if metric.endswith("overlapped"):
        half = engine.prefill(1, ceil_div(prompt_tokens, 2))
        return alone + 2 * half.compute_s["products"] - found.compute_s["products"]
    return alone + multimem_s(found)


def _path_s(library: str, algorithm: str, cluster: Cluster, ranks: int, size_bytes: Any) -> Any:
    paths = collective_time("all_reduce", size_bytes, cluster, ranks, library=library).paths
    found = next((parts for name, parts in paths.items() if name[0] == algorithm), None)
    if found is None:
        raise BadValueError("cluster", cluster.name, f"one with {algorithm} all-reduces")
    return sum(found.values())

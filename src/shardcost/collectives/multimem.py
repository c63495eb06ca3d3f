"""All-reduces by multimem instructions: one kernel of an engine in which the switch adds up.

The switch adds what it reads from all ranks and replicates what is written (Klenk et al. 2020, An
in-network architecture for accelerating shared-memory multiprocessor collectives, ISCA). Such a
kernel starts like an engine's other kernels of that kind, and then takes what as many bytes more
take NCCL's own in-switch algorithm: nothing is fitted to it.
"""

from __future__ import annotations

from typing import Any, Final

from shardcost.cluster import Cluster
from shardcost.collectives.library_time import collective_time
from shardcost.errors import BadValueError

MULTIMEM: Final = "multimem"
"""The name under which software asks for it."""
_SMALL_BYTES: Final = 4096


def multimem_all_reduce_s(cluster: Cluster, ranks: Any, size_bytes: Any) -> Any:
    """Return the seconds of an all-reduce by multimem instructions, inside one domain."""
    start = _path_s("vllm", "multicast", cluster, ranks, _SMALL_BYTES)
    twice = _path_s("nccl", "nvls", cluster, ranks, 2 * size_bytes)
    return start + twice - _path_s("nccl", "nvls", cluster, ranks, size_bytes)


def _path_s(library: str, algorithm: str, cluster: Cluster, ranks: Any, size_bytes: Any) -> Any:
    paths = collective_time("all_reduce", size_bytes, cluster, ranks, library=library).paths
    found = next((parts for name, parts in paths.items() if name[0] == algorithm), None)
    if found is None:
        raise BadValueError("cluster", cluster.name, f"one with {algorithm} all-reduces")
    return sum(found.values())

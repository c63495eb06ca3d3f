"""One alias table: what benchmarks, profilers and libraries call a collective.

The same operation is ``all_reduce_perf`` to nccl-tests, ``AllReduce`` to the Inspector plug-in,
``MPI_Allreduce`` to MPI, ``c10d::allreduce_`` and ``allreduce_coalesced`` to PyTorch, and
``ncclDevKernel_AllReduce_Sum_f32_RING_LL`` where it runs. All of them differ in case, underscores,
and in what stands before and after the name proper, so those are taken off before looking it up.
"""

from __future__ import annotations

import re
from typing import Final

_LONGEST: Final = 200
"""No tool's name is longer; a hostile one is not searched."""
_KERNEL: Final = re.compile(r"nccl(?:dev)?kernel_([a-z]+)")
_BEFORE: Final = ("osu_", "nccl:", "c10d::", "pmpi_", "mpi_", "nccl", "rccl")
_AFTER: Final = ("_perf_mpi", "_perf", "_bench")
_KINDS: Final = ("coalesced", "base", "single", "intotensor", "tensor", "block", "out")
"""How a call hands its buffers over, which does not change what is sent."""
_ALIASES: Final = {
    "allreduce": "all_reduce",
    "allreducesparse": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallw": "all_to_all",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "send_recv",
    "send": "send_recv",
    "isend": "send_recv",
    "recv": "send_recv",
    "irecv": "send_recv",
    "recvanysource": "send_recv",
}


def canonical_collective(name: str) -> str | None:
    """Return shardcost's name of a collective; None where the name is of none that it knows.

    >>> canonical_collective("_allgather_base"), canonical_collective("MPI_Reduce_scatter_block")
    ('all_gather', 'reduce_scatter')
    >>> canonical_collective("./build/alltoall_perf"), canonical_collective("barrier")
    ('all_to_all', None)
    """
    if len(name) > _LONGEST:
        return None
    bare = name.strip().lower().rsplit("/", 1)[-1].removesuffix(".exe")
    kernel = _KERNEL.match(bare)
    bare = kernel[1] if kernel else _without_affixes(bare)
    bare = re.sub(r"[^a-z0-9]", "", bare)
    while bare not in _ALIASES:
        shorter = next((bare.removesuffix(kind) for kind in _KINDS if bare.endswith(kind)), "")
        if not shorter:
            return None
        bare = shorter
    return _ALIASES[bare]


def _without_affixes(bare: str) -> str:
    for prefix in _BEFORE:
        bare = bare.removeprefix(prefix)
    for suffix in _AFTER:
        bare = bare.removesuffix(suffix)
    return bare

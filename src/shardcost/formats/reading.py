"""What reading a file from outside yields: its meaning, and a count of what was not understood.

Each format has a module with two functions, `looks_like(head)`, which recognises a file by how it
begins, and `read(path, tick)`, which returns a `Reading`. Files are damaged, cut off and mixed with
other output, so a reader takes what is sound and counts the rest: `Reading.unread`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

from shardcost.errors import FormatError

Tick: TypeAlias = Callable[[int, int], None]
"""Called now and then with the bytes read so far and the bytes of the file, to show progress."""


def no_tick(_done: int, _of: int) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Unread:
    """Parts of a file that were passed over, and why."""

    reason: str
    count: int
    first_line: int
    """Where the first of them stands; 0 where a file has no lines."""


class PassedOver:
    """Counts what was passed over, by kind, and keeps where the first of a kind stands.

    >>> passed_over = PassedOver()
    >>> passed_over.add(3, "no number"), passed_over.add(9, "no number")
    (None, None)
    >>> passed_over.unread()
    (Unread(reason='no number', count=2, first_line=3),)
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, int, int]] = {}

    def add(self, line: int, kind: str, example: str = "", count: int = 1) -> None:
        """Count things of a `kind`; `example` says more of the first one."""
        reason, before, first = self._found.get(kind, (example or kind, 0, line))
        self._found[kind] = (reason, before + count, first)

    def unread(self) -> tuple[Unread, ...]:
        """Return all that was counted."""
        return tuple(Unread(*entry) for entry in self._found.values())


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a file holds."""

    file: str
    kind: str
    """``nccl-tests``, ``kineto``, ``nccl-topology`` and so on."""
    unread: tuple[Unread, ...] = ()
    notes: tuple[str, ...] = ()
    """Caveats on the file as a whole."""


@dataclass(frozen=True)
class Point:
    """One measured time of a collective."""

    size_bytes: int
    """As nccl-tests counts: of the whole array for all-gather and reduce-scatter."""
    time_s: float
    in_place: bool = False
    dtype: str = ""
    line: int = 0
    """Where it stands in its file."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Points of one collective on one group of ranks. What a file does not say is empty or 0."""

    collective: str
    num_gpus: int
    nodes: int = 0
    library: str = ""
    """``nccl``, ``rccl``, ``mpi``, ``gloo``."""
    version: str = ""
    """Of the library."""
    device: str = ""
    """As its driver names it: ``NVIDIA H100 80GB HBM3``."""
    stride: int = 1
    """How far apart the ranks lie: neighbours are 1 apart, those on nodes of eight GPUs 8."""
    single_process: bool = False
    """One process drives all GPUs of a node, so host launches are inside small messages."""
    points: tuple[Point, ...]
    notes: tuple[str, ...] = ()
    """Caveats on these points."""


LEAST_US: Final = 1e-3
"""Of a measured time: in a nanosecond light goes 30 cm. Less would make rates beyond numbers."""
MOST_US: Final = 1e12
"""Of a measured time: eleven days."""
MOST_SIZE_BYTES: Final = 2**62
"""Of a message: 4 EiB."""
MOST_RUNS: Final = 1000
"""Of one file: the benchmark of every collective, number format and reduction has 500."""


def unsound(what: str, size_bytes: float, time_us: float) -> str:
    """Return why a measured time of a message cannot be; empty if it can.

    >>> unsound("rows", 0, 3.5), unsound("rows", 1024, 0.0), unsound("rows", 1024, 3.5)
    ('rows of 0 bytes', 'rows with a time of 0', '')
    """
    if not 0 < size_bytes <= MOST_SIZE_BYTES:
        return "sizes beyond 4 EiB" if size_bytes > 0 else f"{what} of 0 bytes"
    if LEAST_US <= time_us < MOST_US:
        return ""
    return "times beyond 11 days" if time_us > 1 else f"{what} with a time of 0"


_AMD: Final = ("AMD", "Instinct", "Radeon", "gfx")
"""What drivers call AMD's devices by."""


def library_on(device: str, otherwise: str) -> str:
    """Return the library that NCCL's tests and PyTorch's ``nccl`` run on a device.

    >>> library_on("AMD Instinct MI300X", "nccl"), library_on("NVIDIA H100 80GB HBM3", "nccl")
    ('rccl', 'nccl')
    """
    return "rccl" if any(word in device for word in _AMD) else otherwise


@dataclass(frozen=True, kw_only=True)
class MeasurementLog(Reading):
    """A file with measured times of collectives."""

    runs: tuple[Run, ...]

    @classmethod
    def of(
        cls,
        path: Path,
        kind: str,
        runs: Iterable[Run],
        passed_over: PassedOver,
        nothing: str,
        notes: Iterable[str] = (),
    ) -> MeasurementLog:
        """Return as many runs as are sensible, the others counted.

        Args:
            path: The file.
            kind: Of the file.
            runs: What it holds.
            passed_over: What of it was not read, once `runs` is exhausted.
            nothing: The reason of the error where there is no run.
            notes: Caveats on the file as a whole.
        """
        left = iter(runs)
        kept = tuple(islice(left, MOST_RUNS))
        beyond = sum(1 for _ in left)
        if not kept:
            raise FormatError(str(path), nothing)
        if beyond:
            passed_over.add(0, f"runs beyond the first {MOST_RUNS:,}", count=beyond)
        return cls(
            file=str(path), kind=kind, runs=kept, unread=passed_over.unread(), notes=tuple(notes)
        )


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

    The same operation is ``all_reduce_perf`` to nccl-tests, ``AllReduce`` to the Inspector plug-in,
    ``MPI_Allreduce`` to MPI, ``c10d::allreduce_`` and ``allreduce_coalesced`` to PyTorch, and
    ``ncclDevKernel_AllReduce_Sum_f32_RING_LL`` as a kernel. They differ in case, underscores and
    what stands before and after the name proper, which is taken off before looking it up.

    >>> canonical_collective("_allgather_base"), canonical_collective("MPI_Reduce_scatter_block")
    ('all_gather', 'reduce_scatter')
    >>> canonical_collective("./build/alltoall_perf"), canonical_collective("barrier")
    ('all_to_all', None)
    """
    if len(name) > _LONGEST:
        return None
    bare = name.strip().lower().rsplit("/", 1)[-1].removesuffix(".exe")
    kernel = _KERNEL.match(bare)
    if kernel:
        bare = kernel[1]
    else:
        for prefix in _BEFORE:
            bare = bare.removeprefix(prefix)
        for suffix in _AFTER:
            bare = bare.removesuffix(suffix)
    bare = re.sub(r"[^a-z0-9]", "", bare)
    while bare not in _ALIASES:
        shorter = next((bare.removesuffix(kind) for kind in _KINDS if bare.endswith(kind)), "")
        if not shorter:
            return None
        bare = shorter
    return _ALIASES[bare]

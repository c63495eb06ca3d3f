"""What every rank does: check a collective's result, time it, count the bytes that it sends.

**Time.** An iteration is a barrier, then the collective; each rank times from when it leaves the
barrier to when its part is done. An iteration took as long as on its slowest rank. What is
reported is the median over iterations, beside the least and the 90th percentile. Where a library
queues its calls on a device, an iteration is several calls in a row, and its time is divided by
their number.

**Bytes.** Those of exactly one collective, by difference: what a rank sends between two barriers
with one collective between them, less what it sends between the same barriers with none.

**Results.** Inputs are small whole numbers that differ by rank and by place, so that sums are
exact in every number format; a rank whose result is not what the collective promises is named.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shardcost.errors import ShardcostError
from shardcost.measure import sockets
from shardcost.measure.job import ITEM_BYTES, Job, Measurement, elements_of

Values = NDArray[np.uint8]

_PERIOD: Final = 8191
"""After so many elements, a prime number, inputs repeat: no block of another length looks alike."""
_LARGEST: Final = 2
_PUT_IN: Final = 120
"""So many ranks put something in, the others zeros: sums stay below 256, up to which bfloat16, the
shortest of all formats here, has every whole number."""
CALLS_IN_A_ROW: Final = 20
"""So many calls make one iteration where they are queued on a device, as many as in nccl-tests."""
JOB: Final = "SHARDCOST_MEASURE_JOB"
"""What to measure, as the environment has it."""
PARENT: Final = "SHARDCOST_MEASURE_PARENT"
"""The process that started the ranks, likewise."""
_LOOKS_EVERY_S: Final = 1.0


class WrongResultError(ShardcostError, RuntimeError):
    """A collective left a rank with something else than it promises."""


class Prepared(NamedTuple):
    """A collective with its buffers."""

    run: Callable[[], object]
    clear: Callable[[], object]
    """Forget the last result."""
    result: Callable[[], NDArray[Any] | None]
    """What this rank got; None where it gets nothing."""
    in_a_row: Callable[[], object] | None = None
    """Where calls are queued on a device: `CALLS_IN_A_ROW` of them, one behind the other, done."""


class Ranks(Protocol):
    """The ranks of a library, as one of them sees them."""

    rank: int
    size: int
    nodes: int
    library: str
    version: str
    over_tcp: bool

    def barrier(self) -> None:
        """Wait for all ranks."""

    def progress(self) -> None:
        """Let the library send what it has queued."""

    def gathered(self, values: list[float]) -> list[list[float]]:
        """Return the values of all ranks, on every rank."""

    def prepared(self, collective: str, given: Values, elements: int, dtype: str) -> Prepared:
        """Return a collective whose input on this rank is `given`."""


def ends_with_parent() -> None:
    """Have this process end when the one that started the ranks is gone, however it went."""
    parent = int(os.environ.get(PARENT, "0"))
    if not parent or os.name != "posix":  # elsewhere to look for a process is to signal it
        return

    def look() -> None:
        while True:
            time.sleep(_LOOKS_EVERY_S)
            try:
                os.kill(parent, 0)
            except PermissionError:
                continue  # it is there, and another user's
            except OSError:
                os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def report(ranks: Ranks) -> int:
    """Run the job that the environment holds; rank 0 prints. Return the exit code."""
    try:
        for measurement in measurements(ranks, Job.from_text(os.environ[JOB])):
            if ranks.rank == 0:
                print(measurement.as_line(), flush=True)
    except WrongResultError as error:
        if ranks.rank == 0:
            print(f"WrongResultError: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def measurements(ranks: Ranks, job: Job) -> Iterator[Measurement]:
    """Run a job; every rank yields the same measurements."""
    for collective in job.collectives:
        for size_bytes in job.sizes_bytes:
            elements = elements_of(collective, size_bytes, job.dtype, ranks.size)
            yield _measured(ranks, job, collective, elements)


def _measured(ranks: Ranks, job: Job, collective: str, elements: int) -> Measurement:
    given = _values(ranks.rank, elements // ranks.size if collective == "all_gather" else elements)
    prepared = ranks.prepared(collective, given, elements, job.dtype)
    _check(ranks, prepared, collective, elements)
    for _ in range(job.warmup):
        prepared.run()
    times = np.array([_one_time(ranks, prepared) for _ in range(job.iterations)])
    slowest = np.max(ranks.gathered(times.tolist()), axis=0) * 1e6
    counts = job.counts_bytes and ranks.over_tcp and sockets.why_not() is None
    sent: list[int] | None = None
    if counts:
        own = _sent(ranks, prepared.run) - _sent(ranks, lambda: None)
        sent = [int(count) for (count,) in ranks.gathered([float(own)])]
    timed = job.iterations > 0
    return Measurement(
        collective=collective,
        dtype=job.dtype,
        ranks=ranks.size,
        nodes=ranks.nodes,
        elements=elements,
        size_bytes=elements * ITEM_BYTES[job.dtype],
        library=ranks.library,
        version=ranks.version,
        iterations=job.iterations,
        time_us=float(np.median(slowest)) if timed else None,
        min_us=float(slowest.min()) if timed else None,
        p90_us=float(np.percentile(slowest, 90)) if timed else None,
        sent_bytes=sent,
    )


def _one_time(ranks: Ranks, prepared: Prepared) -> float:
    ranks.barrier()
    start = time.perf_counter()
    if prepared.in_a_row is None:
        prepared.run()
        return time.perf_counter() - start
    prepared.in_a_row()
    return (time.perf_counter() - start) / CALLS_IN_A_ROW


def _sent(ranks: Ranks, run: Callable[[], object]) -> int:
    """Return the bytes that this rank sends between two barriers, with a run between them."""
    ranks.barrier()
    before = sockets.settled(ranks.progress)
    ranks.barrier()
    run()
    ranks.barrier()
    return sockets.settled(ranks.progress) - before


def _check(ranks: Ranks, prepared: Prepared, collective: str, elements: int) -> None:
    """Run once and raise, on every rank, if the result of any of them is wrong."""
    prepared.clear()
    prepared.run()
    got = prepared.result()
    wrong_at = -1
    if got is not None:
        wanted = _wanted(collective, ranks.rank, ranks.size, elements)
        wrong = np.flatnonzero(np.asarray(got) != wanted)
        wrong_at = int(wrong[0]) if len(wrong) else -1
    places = [int(place) for (place,) in ranks.gathered([float(wrong_at)])]
    for rank, place in enumerate(places):
        if place >= 0:
            what = f"{collective} of {elements} elements among {ranks.size} ranks"
            raise WrongResultError(f"{what}: rank {rank} has a wrong result at element {place}")


def _values(rank: int, elements: int) -> Values:
    """Return small whole numbers that differ by rank and by place."""
    most = _LARGEST if rank < _PUT_IN else 0
    once = np.random.default_rng(rank).integers(0, most, _PERIOD, dtype=np.uint8, endpoint=True)
    return np.resize(once, elements)


def _wanted(collective: str, rank: int, ranks: int, elements: int) -> Values:
    """Return what a rank is to get."""
    block = slice(rank * elements // ranks, (rank + 1) * elements // ranks)
    if collective == "broadcast":
        return _values(0, elements)
    if collective == "all_gather":
        return np.concatenate([_values(source, elements // ranks) for source in range(ranks)])
    if collective == "all_to_all":
        return np.concatenate([_values(source, elements)[block] for source in range(ranks)])
    total = np.zeros(elements, dtype=np.uint8)
    for source in range(ranks):
        total += _values(source, elements)
    return total[block] if collective == "reduce_scatter" else total

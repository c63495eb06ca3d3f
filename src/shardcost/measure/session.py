"""A session: everything that one command measures, start after start of the ranks."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from shardcost.errors import BadValueError, ShardcostError, UnknownNameError
from shardcost.measure import launch, mpi_rank, open_mpi, rank, sockets, torch_rank
from shardcost.measure.job import COLLECTIVES, ITEM_BYTES, Job, Measurement
from shardcost.scalars import whole_number

BACKENDS: Final = ("mpi", *torch_rank.BACKENDS)
MOST_RANKS: Final = 64
"""On one host; torchrun may start more on several."""
MOST_BYTES: Final = 4 * 2**30
_BUFFERS: Final = 4
"""So many times its buffer a rank holds at most: input, output, and what it is to be."""


@dataclass(frozen=True)
class Session:
    """What to measure: each collective at each size, for each number of ranks and algorithm."""

    backend: str
    ranks: tuple[int, ...]
    algorithms: tuple[str, ...]
    transport: launch.Transport
    job: Job
    timeout_s: float

    def __post_init__(self) -> None:
        dtypes = tuple(mpi_rank.DTYPES if self.backend == "mpi" else ITEM_BYTES)
        for option, value, known in (
            ("--backend", self.backend, BACKENDS),
            ("--transport", self.transport, ("tcp", "shared")),
            ("--dtype", self.job.dtype, dtypes),
            *(("--collective", name, COLLECTIVES) for name in self.job.collectives),
        ):
            if value not in known:
                raise UnknownNameError(option, value, known)
        for ranks in self.ranks:
            whole_number("--ranks", ranks, 1)
            if ranks > MOST_RANKS and not self.joins:
                raise BadValueError("--ranks", ranks, f"at most {MOST_RANKS}, as they share a host")
        for size in self.job.sizes_bytes:
            if not 1 <= size <= MOST_BYTES:
                raise BadValueError("--sizes", size, "between 1 byte and 4 GiB")
        self._check_memory()
        self._check_algorithms()

    @property
    def points(self) -> int:
        """Measurements, all in all."""
        return self.job.points * len(self.ranks) * len(self.algorithms)

    @property
    def joins(self) -> bool:
        """Whether torchrun, or the like, has started the ranks already, this process among them."""
        return self.backend in torch_rank.BACKENDS and ranks_of_torchrun() is not None

    @property
    def writes(self) -> bool:
        """Whether this process is the one that reports."""
        return not self.joins or _from_environment("RANK") == 0

    @property
    def uncounted(self) -> str | None:
        """Why bytes are not counted, None where they are."""
        if self.backend == "nccl":
            return "NCCL does not send by the sockets of the process that uses it"
        if self.backend == "mpi" and self.transport != "tcp":
            return "shared memory has no counters"
        return sockets.why_not()

    def check_installed(self) -> None:
        """Raise if what the backend needs is not there."""
        if self.backend == "mpi":
            launch.check_mpi()
            return
        torch_rank.check_torch(self.backend)
        if self.joins:
            world = _from_environment("WORLD_SIZE")
            if self.ranks != (world,):
                given = ",".join(map(str, self.ranks))
                rule = f"{world} or left out, as torchrun started so many"
                raise BadValueError("--ranks", given, rule)
        elif self.backend == "nccl" and max(self.ranks) > (there := torch_rank.gpus()):
            raise BadValueError(
                "--ranks", max(self.ranks), f"at most {there}, the GPUs of this host"
            )

    def measurements(self) -> Generator[tuple[str, Measurement], None, None]:
        """Run it all; yield each algorithm's name with each measurement."""
        if self.joins:
            yield from self._as_one_of_them()
            return
        for ranks in self.ranks:
            for algorithm in self.algorithms:
                heard = 0
                programs = self._programs(ranks, algorithm)
                for measurement in launch.measurements_of(programs, self.timeout_s):
                    heard += 1
                    yield algorithm, measurement
                if heard != self.job.points:
                    count = f"{heard} of {self.job.points} measurements"
                    raise launch.RanksFailedError(f"the ranks ended after {count}")

    def _as_one_of_them(self) -> Generator[tuple[str, Measurement], None, None]:
        try:
            with closing(torch_rank.TorchRanks(self.backend, self.timeout_s)) as ranks:
                for measurement in rank.measurements(ranks, self.job):
                    yield open_mpi.DEFAULT, measurement
        except ShardcostError:
            raise
        except RuntimeError as error:  # torch's own, of several lines
            reason = " ".join(str(error).split())[: launch.SHOWN_REASON]
            raise launch.RanksFailedError(f"this rank failed: {reason}") from None

    def _programs(self, ranks: int, algorithm: str) -> list[launch.Program]:
        if self.backend == "mpi":
            return launch.mpi_programs(self.job, ranks, algorithm, self.transport)
        return launch.torch_programs(self.job, ranks, self.backend, self.timeout_s)

    def _check_memory(self) -> None:
        """Raise if the buffers of all ranks would fill this host's memory."""
        try:
            there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, ValueError):  # this system does not say
            return
        size, ranks = max(self.job.sizes_bytes), max(self.ranks)
        most = there // (_BUFFERS * ranks)
        if not self.joins and size > most:
            raise BadValueError("--sizes", size, f"at most {most} for {ranks} ranks in this memory")

    def _check_algorithms(self) -> None:
        for algorithm in self.algorithms:
            if self.backend == "mpi":
                for collective in self.job.collectives:
                    open_mpi.forced(collective, algorithm)
            elif algorithm != open_mpi.DEFAULT:
                rule = f"left out: {self.backend} chooses its own"
                raise BadValueError("--algorithm", algorithm, rule)


def ranks_of_torchrun() -> int | None:
    """Return how many ranks torchrun started, None where it did not."""
    started = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(os.environ)
    return _from_environment("WORLD_SIZE") if started else None


def _from_environment(name: str) -> int:
    text = os.environ.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        rule = "a whole number, as torchrun sets it"
        raise BadValueError(f"the environment's {name}", text, rule)
    return int(text)

"""One rank of Open MPI: started by mpirun as ``python -m shardcost.measure.mpi_rank``."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcost.measure.rank import Prepared, Values, ends_with_parent, report

OVER_TCP: Final = "SHARDCOST_MEASURE_TCP"
DTYPES: Final = {"float": "f4", "double": "f8", "int32": "i4", "int64": "i8"}
"""The number formats that MPI sums, as NumPy names them."""


class MpiRanks:
    """The ranks of ``MPI_COMM_WORLD``."""

    def __init__(self, *, over_tcp: bool) -> None:
        from mpi4py import MPI

        self.mpi = MPI
        self.world = MPI.COMM_WORLD
        self.rank = self.world.Get_rank()
        self.size = self.world.Get_size()
        self.nodes = 1
        self.library = "openmpi"
        words = MPI.Get_library_version().replace(",", " ").split()  # Open MPI v5.0.11, …
        versions = (word[1:] for word in words if word[:1] == "v" and word[1:2].isdigit())
        self.version = next(versions, "")
        self.over_tcp = over_tcp

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.world.Barrier()

    def progress(self) -> None:
        """Let the library send what it has queued."""
        self.world.Iprobe()

    def gathered(self, values: list[float]) -> list[list[float]]:
        """Return the values of all ranks, on every rank."""
        return self.world.allgather(values)

    def prepared(self, collective: str, given: Values, elements: int, dtype: str) -> Prepared:
        """Return a collective whose input on this rank is `given`."""
        source = given.astype(DTYPES[dtype])
        length = elements // self.size if collective == "reduce_scatter" else elements
        target = source if collective == "broadcast" else np.zeros(length, source.dtype)
        world, total, root = self.world, self.mpi.SUM, 0
        blocks = [elements // self.size] * self.size
        runs = {
            "all_reduce": lambda: world.Allreduce(source, target, op=total),
            "all_gather": lambda: world.Allgather(source, target),
            "reduce_scatter": lambda: world.Reduce_scatter(source, target, blocks, op=total),
            "all_to_all": lambda: world.Alltoall(source, target),
            "broadcast": lambda: world.Bcast(target, root=root),
            "reduce": lambda: world.Reduce(source, target, op=total, root=root),
        }

        def clear() -> None:
            if collective != "broadcast" or self.rank != root:
                target[:] = 0

        def result() -> NDArray[Any] | None:
            return None if collective == "reduce" and self.rank != root else target

        return Prepared(runs[collective], clear, result)


if __name__ == "__main__":
    ends_with_parent()
    sys.exit(report(MpiRanks(over_tcp=os.environ[OVER_TCP] == "1")))

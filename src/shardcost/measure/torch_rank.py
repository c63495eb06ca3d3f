"""One rank of torch.distributed, with gloo or NCCL: ``python -m shardcost.measure.torch_rank``.

The environment says who the rank is, as torchrun has it: RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcost.errors import BadValueError, MissingExtraError
from shardcost.measure.rank import CALLS_IN_A_ROW, Prepared, Values, ends_with_parent, report

BACKEND: Final = "SHARDCOST_MEASURE_BACKEND"
TIMEOUT: Final = "SHARDCOST_MEASURE_TIMEOUT"
BACKENDS: Final = ("gloo", "nccl")
_DTYPES: Final = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "int32": "int32",
    "int64": "int64",
}


def check_torch(backend: str) -> None:
    """Raise if torch, or the backend in it, is not there."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        raise MissingExtraError(f"--backend {backend}", "torch", "torch") from None
    there = dist.is_available() and (
        dist.is_gloo_available() if backend == "gloo" else dist.is_nccl_available()
    )
    if not there:
        raise BadValueError("--backend", backend, f"one that torch {torch.__version__} has")
    if backend == "nccl" and not torch.cuda.is_available():
        raise BadValueError("--backend", backend, "used where there are GPUs, and torch sees none")


def gpus() -> int:
    """Return how many GPUs torch sees on this host."""
    import torch

    return int(torch.cuda.device_count())


class TorchRanks:
    """The ranks of the default process group.

    Args:
        backend: gloo or nccl.
        timeout_s: So long a rank waits for the others.
    """

    def __init__(self, backend: str, timeout_s: float) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        torch.set_num_threads(1)
        self.device, gpu, of_nccl = "cpu", {}, ""
        if backend == "nccl":
            self.device = f"cuda:{int(os.environ.get('LOCAL_RANK', '0'))}"
            torch.cuda.set_device(self.device)
            gpu = {"device_id": torch.device(self.device)}
            of_nccl = ".".join(map(str, torch.cuda.nccl.version()))
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), **gpu)
        self.rank: int = dist.get_rank()
        self.size: int = dist.get_world_size()
        self.nodes = max(1, self.size // int(os.environ.get("LOCAL_WORLD_SIZE", self.size)))
        self.library = backend
        self.version = of_nccl or f"torch_{torch.__version__.partition('+')[0]}"
        self.over_tcp = backend == "gloo"

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.dist.barrier()
        self._done()

    def progress(self) -> None:
        """Let the library send what it has queued: threads of its own do."""

    def gathered(self, values: list[float]) -> list[list[float]]:
        """Return the values of all ranks, on every rank."""
        mine = self.torch.tensor(values, dtype=self.torch.float64, device=self.device)
        all_of_them = [self.torch.zeros_like(mine) for _ in range(self.size)]
        if values:
            self.dist.all_gather(all_of_them, mine)
        return [values.tolist() for values in all_of_them]

    def prepared(self, collective: str, given: Values, elements: int, dtype: str) -> Prepared:
        """Return a collective whose input on this rank is `given`."""
        torch, dist = self.torch, self.dist
        kind = getattr(torch, _DTYPES[dtype])
        source = torch.from_numpy(given).to(self.device, kind)
        length = elements // self.size if collective == "reduce_scatter" else elements
        target = torch.zeros(length, dtype=kind, device=self.device)
        in_place = collective in ("all_reduce", "broadcast", "reduce")
        runs: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(target),
            "all_gather": lambda: dist.all_gather_into_tensor(target, source),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(target, source),
            "all_to_all": lambda: dist.all_to_all_single(target, source),
            "broadcast": lambda: dist.broadcast(target, 0),
            "reduce": lambda: dist.reduce(target, 0),
        }
        launch = runs[collective]

        def run() -> None:
            launch()
            self._done()

        def clear() -> None:
            holds = in_place and (collective != "broadcast" or self.rank == 0)
            target.copy_(source) if holds else target.zero_()

        def result() -> NDArray[Any] | None:
            if collective == "reduce" and self.rank != 0:
                return None
            return np.asarray(target.to("cpu", torch.float32).numpy())

        return Prepared(run, clear, result, None if self.device == "cpu" else self._row_of(launch))

    def _row_of(self, launch: Callable[[], object]) -> Callable[[], None]:
        """Return several calls, one behind the other, from one CUDA graph.

        Launched one by one from Python, small messages would take as long as their launch.
        """
        launch()  # what a first call sets up cannot be captured
        self._done()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for _ in range(CALLS_IN_A_ROW):
                launch()

        def in_a_row() -> None:
            graph.replay()
            self._done()

        return in_a_row

    def close(self) -> None:
        """Leave the group."""
        with suppress(RuntimeError):
            self.dist.destroy_process_group()

    def _done(self) -> None:
        if self.device != "cpu":
            self.torch.cuda.synchronize()


if __name__ == "__main__":
    ends_with_parent()
    with closing(TorchRanks(os.environ[BACKEND], float(os.environ[TIMEOUT]))) as world:
        sys.exit(report(world))

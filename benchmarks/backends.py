"""The same layouts on arrays of NumPy and of every other library that is installed, in one run.

python benchmarks/backends.py

Prints the seconds of one estimate of a million layouts, as an open grid and as a plain row. The
second of two runs counts: the first compiles kernels for a GPU, and with NumPy finds prices that
the second still knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from shardcost import Cluster, Layout, Train, estimate
from shardcost.backends import BACKENDS, to_backend, to_numpy
from shardcost.errors import MissingExtraError

H100: Final = Cluster.named("h100_sxm", "ib_8x400g")
WORK: Final = Train(global_batch=2**20, sequence_length=4096)
AXES: Final = {
    "tp": 2 ** np.arange(4),
    "pp": 2 ** np.arange(4),
    "dp": 2 ** np.arange(8),
    "virtual_stages": np.array([1]),
    "micro_batch": np.arange(1, 8193),
}
"""1,048,576 layouts; few would fit, all are priced."""


def degrees(backend: str, *, flat: bool) -> dict[str, Any]:
    """Return the degrees of all layouts, an axis each or one after the other."""
    grids = np.meshgrid(*AXES.values(), indexing="ij", sparse=not flat)
    shaped = (each.ravel() if flat else each for each in grids)
    return {name: to_backend(backend, each) for name, each in zip(AXES, shaped, strict=True)}


def estimated(backend: str, *, flat: bool) -> float:
    """Return a figure of one estimate of all layouts."""
    found = estimate("llama3-70b", H100, Layout(**degrees(backend, flat=flat)), WORK)
    return float(np.min(to_numpy(found.time_s)) + np.max(to_numpy(found.memory_bytes)))


ASKED: Final[dict[str, Callable[[str], float]]] = {
    "estimate, open grid": lambda backend: estimated(backend, flat=False),
    "estimate, plain row": lambda backend: estimated(backend, flat=True),
}


def seconds(what: Callable[[str], float], backend: str) -> tuple[float, float]:
    """Return how long the second run takes, and what it finds."""
    what(backend)
    started = time.perf_counter()
    found = what(backend)
    return time.perf_counter() - started, found


def installed(backend: str) -> bool:
    """Return whether a library can be used; say so where not."""
    try:
        to_backend(backend, np.arange(2))
    except MissingExtraError as error:
        print(f"{backend}: {error}")
        return False
    return True


def main() -> None:
    """Print the table."""
    here = [backend for backend in BACKENDS if installed(backend)]
    print(f"{'seconds':26}" + "".join(f"{backend:>10}" for backend in here))
    for name, what in ASKED.items():
        found = [seconds(what, backend) for backend in here]
        apart = max(abs(value / found[0][1] - 1) for _, value in found)
        print(f"{name:26}" + "".join(f"{each:10.2f}" for each, _ in found) + f"  {apart:.0e} apart")


if __name__ == "__main__":
    main()

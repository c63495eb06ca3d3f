"""Arrays of other libraries, on which the formulas run unchanged: torch and CuPy on a GPU.

The formulas are written with Python's operators and NumPy's functions. Both can be overridden by
the arrays that they are given (NumPy Enhancement Proposals 13 and 18): a `BackendArray` wraps one
array of any library that follows the array API standard (data-apis.org/array-api, 2024.12), takes
each call, and hands it to that library::

    cells = to_backend("torch", np.arange(1, 1_000_001), device="cuda")
    result = estimate(model, cluster, Layout(dp=cells), workload)   # computed on the GPU
    times = to_numpy(result.time_s)

Where libraries differ, NumPy's rule holds: arguments are first cast to the dtypes in which NumPy
would compute, so that a quotient of whole numbers is a 64-bit float and booleans can be added.
Constants and NumPy's arrays that meet a wrapped one are moved to its device. Only `to_numpy` moves
an array back, besides results without dimensions, such as a sum or `any`, which are NumPy scalars.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shardcost.backends.array import BackendArray, to_numpy
from shardcost.backends.libraries import FORMATS, REFERENCE, device_of, library_of, moved
from shardcost.errors import BadTypeError, BadValueError, UnknownNameError

BACKENDS: Final = ("numpy", "torch", "cupy")
"""Names of libraries that `to_backend` knows; besides them ``array_api_strict``, for tests."""


def to_backend(name: str, array: Any, device: Any = None) -> Any:
    """Return an array on a library's device, to be passed to any formula.

    Args:
        name: One of `BACKENDS`.
        array: NumPy's array, or what makes one.
        device: As the library names it, such as ``cuda:1``. If left out, a GPU where the library
            sees one, else the CPU.

    Raises:
        MissingExtraError: The library is not installed.
        BadValueError: There is no such device.
    """
    if name not in (*BACKENDS, REFERENCE):
        raise UnknownNameError("array backend", name, BACKENDS)
    cells = np.asarray(to_numpy(array))
    if name == "numpy":
        if device not in (None, "cpu"):
            raise BadValueError("device", device, "cpu for NumPy")
        return cells
    if cells.dtype.name not in FORMATS:
        raise BadTypeError("array", array, f"of a number format among {', '.join(FORMATS)}")
    library = library_of(name)
    if not cells.ndim:
        return cells[()]
    place = device_of(name, device)
    return BackendArray(moved(library, cells, place), library, place)


__all__ = ["BACKENDS", "BackendArray", "to_backend", "to_numpy"]

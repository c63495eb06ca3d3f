"""The front door over arrays: the same formula, millions of cells at a time.

`tensor_parallel_allreduce_cost_grid` takes NumPy arrays (or anything that becomes one) wherever
`tensor_parallel_allreduce_cost` takes a number, broadcasts them against each other, and returns
the same four results as arrays, equal to the scalar function cell by cell, to the last bit.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final, TypedDict

import numpy as np

from shardcost.allreduce import (
    LEAST,
    ROUNDED_BELOW,
    TO_WHOLE,
    beyond_float,
    message_bytes,
    ring_allreduce_cost,
    too_slow,
)
from shardcost.errors import BadTypeError, BadValueError
from shardcost.scalars import whole_number

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

CELLS_PER_BLOCK: Final = 1 << 16
"""Cells priced at a time: the working arrays of one block stay in a core's cache."""


class AllreduceCostGrid(TypedDict):
    """`shardcost.allreduce.AllreduceCost`, each value an array of the broadcast shape."""

    message_size_bytes: NDArray[Any]
    """int64, or exact Python integers (dtype object) where int64 would overflow."""
    comm_volume_per_allreduce_bytes: NDArray[np.float64]
    total_comm_volume_bytes: NDArray[np.float64]
    total_comm_time_ms: NDArray[np.float64]


def tensor_parallel_allreduce_cost_grid(
    hidden_size: ArrayLike,
    sequence_length: ArrayLike,
    batch_size: ArrayLike,
    num_gpus: ArrayLike,
    num_layers: ArrayLike,
    bytes_per_element: ArrayLike = 2,
    bandwidth_gb_per_sec: ArrayLike = 300.0,
    allreduces_per_layer: ArrayLike = 2,
) -> AllreduceCostGrid:
    """Return `tensor_parallel_allreduce_cost` for every cell of the broadcast arguments.

    The arguments and rules are those of the scalar function. An offending cell is named with its
    position in the argument.

    >>> grid = tensor_parallel_allreduce_cost_grid(
    ...     4096, 2048, 1, num_gpus=np.array([1, 2, 8]), num_layers=32)
    >>> grid["total_comm_time_ms"].tolist()
    [0.0, 3.5791, 6.2635]
    """
    counts = [
        _whole_numbers("hidden_size", hidden_size),
        _whole_numbers("sequence_length", sequence_length),
        _whole_numbers("batch_size", batch_size),
        _whole_numbers("num_gpus", num_gpus),
        _whole_numbers("num_layers", num_layers),
        _whole_numbers("bytes_per_element", bytes_per_element),
        _whole_numbers("allreduces_per_layer", allreduces_per_layer),
    ]
    largest = 2 * prod(int(array.max(initial=1)) for array in counts)
    whole = np.int64 if largest <= np.iinfo(np.int64).max else object  # Python's own: no overflow
    inputs = [
        *(array.astype(whole, copy=False) for array in counts),
        _bandwidths(bandwidth_gb_per_sec),
    ]
    shapes = [array.shape for array in inputs]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise BadValueError("the arguments' shapes", shapes, "able to broadcast") from None

    message: NDArray[Any] = np.empty(shape, whole)
    floats = np.empty(shape), np.empty(shape), np.empty(shape)
    blocks = np.nditer(
        [*inputs, message, *floats],
        flags=["external_loop", "buffered", "refs_ok", "zerosize_ok"],
        # One list of flags per array; NumPy's type stubs know only one list for all.
        op_flags=[["readonly"]] * len(inputs) + [["writeonly"]] * 4,  # type: ignore[arg-type]
        buffersize=CELLS_PER_BLOCK,
    )
    with blocks:
        for hidden, sequence, batch, gpus, layers, width, per_layer, bandwidth, *out in blocks:
            out[0][...] = message_bytes(batch, sequence, hidden, width)
            costs = _finite_cost(out[0], gpus, layers * per_layer, bandwidth)
            for block, cost in zip(out[1:], costs, strict=True):
                _round_into(block, cost)
    return {
        "message_size_bytes": message,
        "comm_volume_per_allreduce_bytes": floats[0],
        "total_comm_volume_bytes": floats[1],
        "total_comm_time_ms": floats[2],
    }


def _whole_numbers(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return `value` as an array of whole numbers of at least ``LEAST[name]``; raise otherwise."""
    array = _array(name, value, "whole numbers")
    if array.dtype == object:  # exact Python integers, or anything else: the scalar rule decides
        for index, cell in np.ndenumerate(array):
            whole_number(f"{name}{list(index)}", cell, LEAST[name])
    elif array.dtype.kind not in "iu":
        raise BadTypeError(name, value, f"whole numbers of at least {LEAST[name]}")
    elif array.size and array.min() < LEAST[name]:
        at = np.unravel_index(array.argmin(), array.shape)
        whole_number(f"{name}{[int(i) for i in at]}", array[at], LEAST[name])
    return array


def _bandwidths(value: ArrayLike) -> NDArray[np.float64]:
    """Return `value` as an array of finite numbers above 0; raise otherwise."""
    name, rule = "bandwidth_gb_per_sec", "finite numbers of GB/s above 0"
    array = _array(name, value, rule)
    if array.dtype.kind not in "iuf":
        raise BadTypeError(name, value, rule)
    bandwidth = array.astype(np.float64)
    bad = ~((bandwidth > 0) & np.isfinite(bandwidth))
    if bad.any():
        raise BadValueError(name, array[bad][0], rule)
    return bandwidth


def _array(name: str, value: ArrayLike, rule: str) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError:  # rows of different lengths
        raise BadTypeError(name, value, f"an array of {rule}") from None


def _finite_cost(
    message: Any, gpus: Any, allreduces: Any, bandwidth: Any
) -> list[NDArray[np.float64]]:
    """Return the three costs of `ring_allreduce_cost` as floats; raise if one is beyond a float."""
    try:
        with np.errstate(over="ignore"):
            costs = ring_allreduce_cost(message, gpus, allreduces, bandwidth)
    except OverflowError:
        raise beyond_float(message.max()) from None
    floats = [cost.astype(np.float64, copy=False) for cost in costs]
    if np.isinf(floats[2]).any():
        raise too_slow(bandwidth[np.isinf(floats[2])][0])
    return floats


def _round_into(block: NDArray[np.float64], value: NDArray[np.float64]) -> None:
    """Write `value`, rounded to 4 decimals in the scalar function's operations, into `block`."""
    np.multiply(value, 1e4, out=block)
    block += TO_WHOLE
    block -= TO_WHOLE
    block /= 1e4
    np.copyto(block, value, where=value >= ROUNDED_BELOW)

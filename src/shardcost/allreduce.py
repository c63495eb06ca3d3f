"""The front door: what the all-reduces of tensor parallelism cost, exactly.

Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053) splits each layer over `num_gpus`
devices, which must then add up their partial activations: one all-reduce after attention and one
after the feed-forward part. This module prices those all-reduces on a ring at a given bandwidth.
It needs nothing but the standard library; `shardcost.allreduce_grid` runs the same formula over
NumPy arrays.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final, TypedDict

from shardcost.errors import BadValueError
from shardcost.scalars import positive_number, whole_number

BYTES_PER_MS_AT_1_GB_PER_S: Final = 1e6
"""Bandwidth is decimal: 1 GB/s is 1e9 bytes per second, so 1e6 bytes per millisecond."""

TO_WHOLE: Final = 2.0**52
"""Floats from here to twice this are whole, so ``x + TO_WHOLE - TO_WHOLE`` rounds x to whole."""
ROUNDED_BELOW: Final = TO_WHOLE / 1e4
"""4.5e11: from about here on floats are too coarse to hold 4 decimals, and stay as they are."""

LEAST: Final = {
    "hidden_size": 1,
    "sequence_length": 1,
    "batch_size": 1,
    "num_gpus": 1,
    "num_layers": 0,
    "bytes_per_element": 1,
    "allreduces_per_layer": 0,
}
"""The least value that each whole-number argument may take."""


class AllreduceCost(TypedDict):
    """What one forward pass pays for its tensor-parallel all-reduces, per GPU."""

    message_size_bytes: int
    """Size of the activation that each all-reduce sums: batch x sequence x hidden x bytes."""
    comm_volume_per_allreduce_bytes: float
    """Bytes that each GPU sends (and receives) in one all-reduce."""
    total_comm_volume_bytes: float
    """The same over all layers and all-reduces of one forward pass."""
    total_comm_time_ms: float
    """Time to send the total at the given bandwidth, in milliseconds."""


def tensor_parallel_allreduce_cost(
    hidden_size: int,
    sequence_length: int,
    batch_size: int,
    num_gpus: int,
    num_layers: int,
    bytes_per_element: int = 2,
    bandwidth_gb_per_sec: float = 300.0,
    allreduces_per_layer: int = 2,
) -> AllreduceCost:
    """Return the ring all-reduce cost of one tensor-parallel forward pass.

    Args:
        hidden_size: width of the activation that is all-reduced, in elements.
        sequence_length: tokens per sequence.
        batch_size: sequences per batch.
        num_gpus: devices that share each layer. One device communicates nothing.
        num_layers: transformer layers; 0 is allowed and costs 0.
        bytes_per_element: 2 for bf16 and fp16, 4 for fp32.
        bandwidth_gb_per_sec: bandwidth per GPU and direction, decimal (1 GB/s = 1e9 bytes/s).
            The default, 300, is the nominal NVLink rate of an A100 in one direction.
        allreduces_per_layer: 2 for a serial block, 1 for a parallel one (GPT-NeoX, Falcon);
            0 is allowed and costs 0.

    Raises:
        BadTypeError: (a `TypeError`) if an argument is not a number of its kind.
        BadValueError: (a `ValueError`) if an argument is out of its range.

    >>> tensor_parallel_allreduce_cost(4096, 2048, 1, num_gpus=8, num_layers=32)
    ... # doctest: +NORMALIZE_WHITESPACE
    {'message_size_bytes': 16777216, 'comm_volume_per_allreduce_bytes': 29360128.0,
     'total_comm_volume_bytes': 1879048192.0, 'total_comm_time_ms': 6.2635}
    """
    # One expression for the plain, correct call; anything else is looked at argument by argument.
    if not (
        hidden_size.__class__ is sequence_length.__class__ is batch_size.__class__ is int
        and num_gpus.__class__ is num_layers.__class__ is bytes_per_element.__class__ is int
        and allreduces_per_layer.__class__ is int
        and bandwidth_gb_per_sec.__class__ is float
        and hidden_size > 0 < sequence_length
        and batch_size > 0 < num_gpus
        and bytes_per_element > 0 <= num_layers
        and allreduces_per_layer >= 0
        and 0.0 < bandwidth_gb_per_sec < inf
    ):
        hidden_size = _count("hidden_size", hidden_size)
        sequence_length = _count("sequence_length", sequence_length)
        batch_size = _count("batch_size", batch_size)
        num_gpus = _count("num_gpus", num_gpus)
        num_layers = _count("num_layers", num_layers)
        bytes_per_element = _count("bytes_per_element", bytes_per_element)
        allreduces_per_layer = _count("allreduces_per_layer", allreduces_per_layer)
        bandwidth_gb_per_sec = positive_number("bandwidth_gb_per_sec", bandwidth_gb_per_sec, "GB/s")

    # `message_bytes`, in place: a call would be a good part of the whole.
    message = batch_size * sequence_length * hidden_size * bytes_per_element
    try:
        one, total, time_ms = ring_allreduce_cost(
            message, num_gpus, num_layers * allreduces_per_layer, bandwidth_gb_per_sec
        )
    except OverflowError:
        raise beyond_float(message) from None
    if time_ms == inf:
        raise too_slow(bandwidth_gb_per_sec)
    # To 4 decimals, as round(x, 4) does, in operations that NumPy has too; in place, because
    # three calls of a function would be a good part of the whole.
    if one < ROUNDED_BELOW:
        one = (one * 1e4 + TO_WHOLE - TO_WHOLE) / 1e4
    if total < ROUNDED_BELOW:
        total = (total * 1e4 + TO_WHOLE - TO_WHOLE) / 1e4
    if time_ms < ROUNDED_BELOW:
        time_ms = (time_ms * 1e4 + TO_WHOLE - TO_WHOLE) / 1e4
    return {
        "message_size_bytes": message,
        "comm_volume_per_allreduce_bytes": one,
        "total_comm_volume_bytes": total,
        "total_comm_time_ms": time_ms,
    }


def message_bytes(batch: Any, sequence: Any, hidden: Any, element_bytes: Any) -> Any:
    """Return the size of the activation that one all-reduce sums, on numbers and on arrays."""
    return batch * sequence * hidden * element_bytes


def ring_allreduce_cost(
    message_bytes: Any, num_gpus: Any, allreduces: Any, bandwidth_gb_per_sec: Any
) -> tuple[Any, Any, Any]:
    """Return (bytes per all-reduce, total bytes, total ms), unrounded, of ring all-reduces.

    On a ring of n GPUs each GPU sends n-1 chunks of message/n to reduce-scatter and n-1 more to
    all-gather: 2(n-1)/n messages, which no algorithm beats (Patarasuk & Yuan 2009, "Bandwidth
    optimal all-reduce algorithms for clusters of workstations").

    Runs on Python numbers and on NumPy arrays that broadcast. Integers stay exact up to the
    division; ``1.0 *`` rounds them to a float first, which Python and NumPy do alike.
    """
    n_times_sent = 2 * (num_gpus - 1) * message_bytes
    per_allreduce = 1.0 * n_times_sent / num_gpus
    total = 1.0 * (n_times_sent * allreduces) / num_gpus
    time_ms = total / bandwidth_gb_per_sec / BYTES_PER_MS_AT_1_GB_PER_S
    return per_allreduce, total, time_ms


def _count(name: str, value: object) -> int:
    return whole_number(name, value, LEAST[name])


def beyond_float(message_bytes: int) -> BadValueError:
    """Return the error for volumes that no float can hold."""
    what = "message_size_bytes x num_layers x allreduces_per_layer"
    return BadValueError(what, message_bytes, "small enough for volumes below 1.8e308 bytes")


def too_slow(bandwidth_gb_per_sec: float) -> BadValueError:
    """Return the error for a bandwidth so low that the time is beyond any float."""
    rule = "high enough for times below 1.8e308 ms"
    return BadValueError("bandwidth_gb_per_sec", bandwidth_gb_per_sec, rule)

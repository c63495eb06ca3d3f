"""How long memory-bound kernels take, and what launching any kernel adds.

A pass over arrays (an addition, an activation, a normalisation) computes so little per byte that
its time is a start-up latency plus what it moves over the bandwidth that the memory yields::

    time = kernels x latency + bytes read and written / (share x memory bandwidth)

Copies and sums that fit the L2 cache show no other rate in the measured rows: neither latency nor
share depends on size. A kernel that reduces over rows, as normalisations do, adds the walk of one
block along one row, which shows while rows are few; kernels of a layer by themselves have constants
by kind (`layer_kernel_time_s`). Constants come from the catalog (`shardcost.machine.kernels`),
relative to the datasheet. Latencies are stated in time on the measured device, and take as many
clock cycles on others.
"""

from __future__ import annotations

from typing import Final

from shardcost.arrays import ceil, choose, largest, smallest
from shardcost.checks import Count, Quantity, anywhere, is_array
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.kernels.cache import hits_per_miss, kept_bytes
from shardcost.machine.kernels import KernelConstants, clock_hz

MODES = ("eager", "graph")
"""How kernels are launched: each by the host, or all by one CUDA graph."""
LAYER_KERNELS: Final = (
    *(f"layer_{kind}" for kind in ("rms_norm", "add_rms_norm", "silu_mul", "rope", "softmax_fp32")),
    *(f"row_{kind}" for kind in ("norm", "rotation", "activation", "lookup", "add")),
)
"""Kinds of kernels of a layer with constants of their own: ``layer_…`` as PyTorch compiles them,
``row_…`` as serving engines ran them in 2023, with one block for each token."""


def elementwise_time_s(
    on: KernelConstants, bytes_moved: Quantity, *, kernels: Count = 1, row_elements: Count = 0
) -> Quantity:
    """Return the seconds of a chain of memory-bound kernels, launched by a graph.

    Args:
        on: The constants of the device that it runs on.
        bytes_moved: Bytes that all of them read and write together.
        kernels: How many there are.
        row_elements: Elements of a row, where each kernel reduces over rows.

    Copying 256 MiB reads and writes as much::

        >>> from shardcost.machine import machine_of
        >>> h200 = machine_of("h200_sxm").kernels
        >>> round(1e6 * elementwise_time_s(h200, 2 * 2**28))
        125
    """
    if anywhere(bytes_moved < 0):
        raise BadValueError("bytes_moved", bytes_moved, "at least 0")
    known = on.memo.get("elementwise")  # half of a model's operations ask
    if known is None:
        section = on.section("elementwise", "elementwise")
        rate = on.device.memory_bytes_per_s * section.constants["memory_share"]
        known = on.memo["elementwise"] = section, on.clock_ratio(section), rate
    section, slower, bytes_per_s = known
    table = section.constants
    each_s = 1e-6 * table["latency_us"]
    if is_array(row_elements) or row_elements:
        each_s = each_s + 1e-9 * table["row_ns_per_element"] * row_elements
    found: Quantity = kernels * (each_s * slower) + bytes_moved / bytes_per_s
    if section.residual is not None:  # of one kernel; a chain is as many of equal size
        found = found * section.measured_factor(bytes_moved / largest(kernels, 1))
    return found


def row_kernel_time_s(
    on: KernelConstants, kind: str, rows: Quantity, columns: Quantity
) -> Quantity:
    """Return the seconds of a kernel that reduces over rows, one row on one SM at a time.

    Rows are dealt out to the SMs in turns, so a few of them take as long as one::

        time = latency + turns x (start of a row + columns x cycles per element)

    A single row is walked by more threads. Such kernels fill neither the memory nor the cache:
    what an SM gets through decides.

    Args:
        on: The constants of the device that it runs on.
        kind: ``norm``, ``quantize``, or ``norm_quantize`` for both in one kernel.
        rows: Rows, as many as there are tokens.
        columns: Elements of a row.
    """
    section = on.section("elementwise", f"rows_{kind}")
    table = section.constants
    latency_s = 1e-6 * table["latency_us"] * on.clock_ratio(section)
    row_s = (table["row_cycles"] + table["element_cycles"] * columns) / clock_hz(on.device)
    share = choose(rows > 1, 1.0, table["single_row_share"])
    found: Quantity = latency_s + ceil(rows / on.device.sms) * row_s * share
    return found


def layer_kernel_time_s(
    on: KernelConstants,
    kind: str,
    rows: Quantity,
    columns: Quantity,
    row_bytes: Quantity,
    *,
    warm: bool = False,
) -> Quantity:
    """Return the seconds of one kernel of a layer, launched by a graph.

    A block walks along its row, which takes its time while rows are few; many rows come at the rate
    of the memory, of which rows longer than `wide_elements` leave less, or of the L2 cache::

        time   = latency + max(walk along a row, memory + cache)
        memory = bytes / (share x memory bandwidth) x (columns / wide elements)^loss
        cache  = bytes found there / its rate

    "max" is soft, the cube root of the sum of cubes.

    Args:
        on: The constants of the device that it runs on.
        kind: One of `LAYER_KERNELS`.
        rows: Rows, as many as there are tokens.
        columns: Elements of a row.
        row_bytes: Bytes that are read and written of a row.
        warm: Arrays that fit in the L2 cache are there already, as in a replayed benchmark.
    """
    if kind not in LAYER_KERNELS:
        raise UnknownNameError("kind", kind, LAYER_KERNELS)
    section = on.section("elementwise", kind)
    table, device = section.constants, on.device
    slower = on.clock_ratio(section)
    moved = rows * row_bytes
    wide = largest(1.0, columns / table["wide_elements"]) ** table["wide_loss"]
    byte_s = wide / (table["memory_share"] * device.memory_bytes_per_s)
    found = 0.0 * moved
    if warm:
        kept = kept_bytes(device, table["cache_share"])
        hits = hits_per_miss(kept, moved, table["cache_steepness"])
        found = moved * hits / (1 + hits)
    cache_byte_s = 1 / (table["cache_bytes_per_clock"] * clock_hz(device) * device.sms)
    bytes_s = found * smallest(byte_s, cache_byte_s) + (moved - found) * byte_s
    walk_s = 1e-9 * table["row_ns_per_element"] * columns * slower
    latency_s = 1e-6 * table["latency_us"] * slower
    result: Quantity = latency_s + (walk_s**3 + bytes_s**3) ** (1 / 3)
    if section.residual is not None:
        result = result * section.measured_factor(rows, columns)
    return result


def launch_s(on: KernelConstants, kernels: Count, mode: str) -> Quantity:
    """Return the seconds that the host takes to launch kernels, which the device may hide.

    Launched one by one, a chain of kernels takes at least this long, however short they are. In a
    graph, gaps between kernels are part of each kernel's latency, and one launch is left.

    Args:
        on: The constants of the device that it runs on.
        kernels: How many are launched.
        mode: "eager", "copy" (eager, and each no more than a copy) or "graph".
    """
    table = on.section("elementwise", "launch").constants
    if mode in {"eager", "copy"}:
        found: Quantity = 1e-6 * table[f"{mode}_us"] * kernels
        return found
    if mode == "graph":
        return 1e-6 * float(table["graph_us"])
    raise UnknownNameError("mode", mode, MODES)

"""How long memory-bound kernels take, and what launching any kernel adds.

A pass over arrays (an addition, an activation, a normalisation) computes so little per byte that
its time is a start-up latency plus what it moves over the bandwidth that the memory yields::

    time = kernels x latency + bytes read and written / (share x memory bandwidth)

Arrays that fit the L2 cache show no other rate in the measured rows: neither latency nor share
depends on size. A kernel that reduces over rows, as normalisations do, adds the walk of one block
along one row, which shows while rows are few. Constants come from the catalog
(`shardcost.machine.kernels`), relative to the datasheet.
"""

from __future__ import annotations

from shardcost.arrays import ceil, choose
from shardcost.checks import Count, Quantity, anywhere
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.machine.kernels import KernelConstants, clock_hz

MODES = ("eager", "graph")
"""How kernels are launched: each by the host, or all by one CUDA graph."""


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
    table = on.section("elementwise", "elementwise").constants
    each_s = 1e-6 * table["latency_us"] + 1e-9 * table["row_ns_per_element"] * row_elements
    found: Quantity = kernels * each_s + bytes_moved / (
        on.device.memory_bytes_per_s * table["memory_share"]
    )
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
    table = on.section("elementwise", f"rows_{kind}").constants
    row_s = (table["row_cycles"] + table["element_cycles"] * columns) / clock_hz(on.device)
    share = choose(rows > 1, 1.0, table["single_row_share"])
    found: Quantity = 1e-6 * table["latency_us"] + ceil(rows / on.device.sms) * row_s * share
    return found


def launch_s(on: KernelConstants, kernels: Count, mode: str) -> Quantity:
    """Return the seconds that the host takes to launch kernels, which the device may hide.

    Launched one by one, a chain of kernels takes at least this long, however short they are. In a
    graph, gaps between kernels are part of each kernel's latency, and one launch is left.

    Args:
        on: The constants of the device that it runs on.
        kernels: How many are launched.
        mode: "eager" or "graph".
    """
    table = on.section("elementwise", "launch").constants
    if mode == "eager":
        found: Quantity = 1e-6 * table["eager_us"] * kernels
        return found
    if mode == "graph":
        return 1e-6 * float(table["graph_us"])
    raise UnknownNameError("mode", mode, MODES)

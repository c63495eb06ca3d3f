"""How long memory-bound kernels take, and what launching any kernel adds.

A pass over arrays (an addition, an activation, a normalisation) computes so little per byte that
its time is a start-up latency plus what it moves over the bandwidth that the memory yields::

    time = kernels x latency + bytes read and written / (share x memory bandwidth)

Arrays that fit the L2 cache show no other rate in the measured rows: neither latency nor share
depends on size. A kernel that reduces over rows, as normalisations do, adds the walk of one block
along one row, which shows while rows are few. Constants come from the catalog
(`shardcost.kernels.constants`), relative to the datasheet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from shardcost.checks import Count, Quantity, anywhere
from shardcost.cluster import Device
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.kernels.constants import section_of

Constants: TypeAlias = Mapping[str, Any]

MODES = ("eager", "graph")
"""How kernels are launched: each by the host, or all by one CUDA graph."""


def elementwise_time_s(
    device: Device,
    bytes_moved: Quantity,
    *,
    kernels: Count = 1,
    row_elements: Count = 0,
    constants: Constants | None = None,
) -> Quantity:
    """Return the seconds of a chain of memory-bound kernels, launched by a graph.

    Args:
        device: What it runs on.
        bytes_moved: Bytes that all of them read and write together.
        kernels: How many there are.
        row_elements: Elements of a row, where each kernel reduces over rows.
        constants: Instead of the catalog's.

    Copying 256 MiB reads and writes as much::

        >>> from shardcost.cluster import Cluster
        >>> device = Cluster.named("h200_sxm").device
        >>> round(1e6 * elementwise_time_s(device, 2 * 2**28))
        125
    """
    if anywhere(np.less(bytes_moved, 0)):
        raise BadValueError("bytes_moved", bytes_moved, "at least 0")
    table = constants or section_of("elementwise", device, "elementwise").constants
    each_s = 1e-6 * table["latency_us"] + 1e-9 * table["row_ns_per_element"] * row_elements
    found: Quantity = kernels * each_s + bytes_moved / (
        device.memory_bytes_per_s * table["memory_share"]
    )
    return found


def launch_s(
    device: Device, kernels: Count, mode: str, *, constants: Constants | None = None
) -> Quantity:
    """Return the seconds that the host takes to launch kernels, which the device may hide.

    Launched one by one, a chain of kernels takes at least this long, however short they are. In a
    graph, gaps between kernels are part of each kernel's latency, and one launch is left.

    Args:
        device: What it runs on.
        kernels: How many are launched.
        mode: "eager" or "graph".
        constants: Instead of the catalog's.
    """
    table = constants or section_of("elementwise", device, "launch").constants
    if mode == "eager":
        found: Quantity = 1e-6 * table["eager_us"] * kernels
        return found
    if mode == "graph":
        return 1e-6 * float(table["graph_us"])
    raise UnknownNameError("mode", mode, MODES)

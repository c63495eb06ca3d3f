"""Constants other than the catalog's, as values: without a system, or with trial values."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

from shardcost import catalog
from shardcost.cluster import Cluster
from shardcost.machine import CATALOG, Fitted, machine_of
from shardcost.machine.kernels import KernelTable

ConstantPath = tuple[str, ...]
"""Where a kernel constant stands: table of the catalog, section, further tables, name."""


def inherited_constants(table: KernelTable, system: str, section: str) -> dict[str, Any] | None:
    """Return what a kernel runs by on a device without its own measurements; None if by nothing.

    >>> inherited_constants("gemm", "h100_sxm", "bf16") == inherited_constants(
    ...     "gemm", "h100_sxm", "fp8")
    False
    """
    machine = machine_of(Cluster.named(system), fitted=CATALOG.without(system))
    fallback = machine.kernels.section(table, section)
    return None if fallback.inherited_from is None else dict(fallback.constants)


def with_kernel_constants(device: str, constants: Mapping[ConstantPath, float]) -> Fitted:
    """Return the catalog's constants with other values of some constants of a device's kernels."""
    kernels = CATALOG.kernels
    for name in sorted({path[0] for path in constants}):
        table = cast("KernelTable", name)
        content = deepcopy(catalog.raw(table, device))
        for path, value in constants.items():
            if path[0] == name:
                section = content
                for key in path[1:-1]:
                    section = section[key]
                section[path[-1]] = value
        kernels = kernels.changing(table, device, content)
    return CATALOG._replace(kernels=kernels)

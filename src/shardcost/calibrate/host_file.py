"""A hardware file of a host without a GPU, from what was measured on its CPU.

A CPU has no datasheet in the catalog, so the figures of its file are what kernels reached: the rate
of the fastest GEMM is the peak, the rate of the fastest large copy the memory's bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardcost.calibrate.kernels import CalibratedKernels, profile_lines, times_us
from shardcost.catalog import PROFILE_FIRST_LINE, checked_profile_name, cluster_in_text
from shardcost.cluster import Cluster
from shardcost.errors import BadValueError
from shardcost.files import quoted
from shardcost.formats.tables import Table
from shardcost.validate.kernels import SIZES, row_of, sizes_of

CPU: Final = "cpu"
"""What a table of kernels says in its column ``gpu`` where the CPU was measured."""
_LARGE: Final = 0.25
"""Copies of at least this share of the largest one's bytes come from memory, not from a cache."""
_GIB: Final = 2**30


def is_of_cpu(table: Table) -> bool:
    """Return whether a table of kernels was measured on CPUs."""
    return set(table.columns["gpu"]) == {CPU}


def host_file(
    name: str,
    tables: Sequence[Table],
    cores: int,
    memory_bytes: float,
    kernels: Sequence[CalibratedKernels] = (),
) -> str:
    """Return the hardware file of a host, in the catalog's form.

    Args:
        name: Of the machine.
        tables: What was measured on its CPU.
        cores: Of the host.
        memory_bytes: Of the host.
        kernels: Constants of its kernels.
    """
    flops, copied = _reached(tables)
    device = next((each for table in tables for each in table.columns.get("device", ())), CPU)
    measured, host = '"measured"', '"host"'
    lines = [
        PROFILE_FIRST_LINE,
        "# Written by `shardcost calibrate`; give it to any command: --on FILE.",
        f"name = {quoted(checked_profile_name(name))}",
        f"title = {quoted(f'{device}, measured')}",
        "aliases = []",
        f"gpus_per_node = {{ value = 1, source = {host} }}",
        "",
        "[device]",
        f"title = {quoted(f'{device} ({cores} cores)')}",
        'vendor = "cpu"',
        'architecture = "cpu"',
        f"memory_gib = {{ value = {memory_bytes / _GIB:.4g}, source = {host} }}",
        f"memory_bandwidth_gb_per_s = {{ value = {copied / 1e9:.4g}, source = {measured} }}",
        f"sms = {{ value = {cores}, source = {host} }}",
        "",
        "[device.peak_dense_tflops]",
        f"fp32 = {{ value = {flops / 1e12:.4g}, source = {measured} }}",
        "",
        "[link]",
        'kind = "pcie"',
        f"domain_gpus = {{ value = 1, source = {host} }}",
        f"bandwidth_gb_per_s = {{ value = {copied / 1e9:.4g}, source = {measured} }}",
        f"in_switch_reduction = {{ value = false, source = {host} }}",
        f"peer_access = {{ value = true, source = {host} }}",
        "",
        "[sources]",
        'measured = "measured here by shardcost measure kernels: the fastest GEMM and copy"',
        'host = "what the operating system of this host states"',
        *profile_lines(kernels),
    ]
    return "\n".join(lines) + "\n"


def host_cluster(name: str, tables: Sequence[Table], cores: int, memory_bytes: float) -> Cluster:
    """Return the machine of such a file, before its kernels are calibrated."""
    return cluster_in_text(host_file(name, tables, cores, memory_bytes))


def _reached(tables: Sequence[Table]) -> tuple[float, float]:
    """Return the operations per second of the fastest GEMM and the bytes per second of a copy."""
    flops: list[float] = []
    copies: list[tuple[float, float]] = []
    for table in tables:
        times, _ = times_us(table)
        for row, time_us in zip(table.records(), times, strict=True):
            if not time_us > 0 or row["kind"] not in ("gemm", "copy"):
                continue
            sizes = dict(zip(SIZES[row_of(row).kind], sizes_of(row), strict=False))
            if row["kind"] == "gemm":
                flops.append(2 * sizes["m"] * sizes["n"] * sizes["k"] / (1e-6 * time_us))
            else:
                copies.append((sizes["bytes_moved"], 1e6 * sizes["bytes_moved"] / time_us))
    if not flops or not copies:
        raise BadValueError("kernels measured on a CPU", 0, "at least one gemm and one copy")
    largest = max(size for size, _ in copies)
    return max(flops), max(rate for size, rate in copies if size >= _LARGE * largest)

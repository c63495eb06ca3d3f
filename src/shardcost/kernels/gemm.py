"""Seconds of a matrix product on one device: tiles in waves, against the memory behind them.

A library cuts the ``m x n`` result into tiles and hands them to the device's multiprocessors in
waves; too few tiles with a long ``k`` are cut along ``k`` as well ("split-k") and added up after.
For one tile shape and one split::

    tile   = k / splits x (arithmetic of a step, or its loads) + start
    waves  = tiles / multiprocessors, a part of the last one's empty places counted as well
    memory = bytes of both operands and the result / (share of the memory's bandwidth)
    time   = (waves x tile, or memory) + adding up the splits

where "or" is the larger of the two, softly: the fourth root of the sum of fourth powers.
Arithmetic of a step runs at a share of the datasheet's peak, less for the largest tiles; loads of
a step (one column and one row of the tile) come through the cache, at so many bytes per clock
cycle and multiprocessor. So small tiles are limited by loads, and large ones by arithmetic or by
the last wave. The roofline is that of Williams,
Waterman and Patterson (Roofline: an insightful visual performance model, CACM 2009); tiles, waves
and splits are as NVIDIA describes them (Matrix Multiplication Background, deep learning
performance documentation, 2023).

The library chooses a shape that is nearly the fastest, not always the very one: the time is a mean
over shapes and splits, weighted by ``(fastest / time)^(1 / spread)``. It chooses for the whole
device. Where another kernel holds some of the multiprocessors (`sms_taken`), the same shape runs
on the rest, and waves that were full no longer are.

Launching adds a constant. Measurements of quantised products contain turning the 16-bit input
into the format; that is a constant and a pass over the ``m x k`` operand, and part of the time.

Everything takes numbers or arrays that broadcast. The constants are those of
the catalog's, table ``gemm`` (`shardcost.machine.kernels`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from shardcost.arrays import ceil, choose, largest, sqrt
from shardcost.catalog import tuner_table
from shardcost.checks import anywhere
from shardcost.cluster import Device
from shardcost.dtypes import BITS, canonical_dtype
from shardcost.machine.kernels import KernelConstants, Section
from shardcost.traced import step

_SCALE_BITS: Final = {"mxfp8": 8 / 32, "mxfp4": 8 / 32, "nvfp4": 8 / 16}
"""Bits of shared scale per element: one 8-bit scale for 32 elements (OCP Microscaling Formats
specification 1.0, 2023), for 16 in NVFP4 (NVIDIA Blackwell architecture brief, 2024)."""
_RESULT_BITS: Final = 16
"""The result of a product of narrow formats is written in 16 bits."""


class Parts(NamedTuple):
    """Why a product takes as long as it does: its likeliest shape, taken apart."""

    time_s: float
    """Of the whole product: the mean over shapes that `gemm_time_s` returns."""
    compute_s: float
    """All waves of tiles."""
    memory_s: float
    split_s: float
    """Adding up what was cut along k."""
    fixed_s: float
    """The launch."""
    input_s: float
    """Turning the input into the number format."""
    tile: tuple[int, int]
    splits: int
    waves: float
    chosen: float
    """The share of this shape among all that may run."""
    others_s: float
    """What all other shapes contribute to the mean."""
    limit: str
    """What decides: ``compute``, ``loads`` or ``memory``."""
    section: Section
    """The constants, with the error of their fit."""
    shape: Kernel
    """The constants of the likeliest shape alone."""


def gemm_time_s(
    on: KernelConstants,
    dtype: str,
    m: Any,
    n: Any,
    k: Any,
    *,
    batch: Any = 1,
    sms_taken: Any = 0,
    memory_taken: Any = 0.0,
) -> Any:
    """Return the seconds of a GEMM of ``m x k`` by ``k x n``, launched inside a CUDA graph.

    >>> from shardcost.machine import machine_of
    >>> h200 = machine_of("h200_sxm").kernels
    >>> 600e-6 < gemm_time_s(h200, "bf16", 8192, 8192, 4096) < 900e-6
    True

    Args:
        on: The constants of the device that it runs on.
        dtype: The number format of both operands.
        m: Rows of the input: tokens.
        n: Columns of the weights.
        k: What is summed over.
        batch: How many such GEMMs run in one launch, side by side.
        sms_taken: How many SMs another kernel holds meanwhile.
        memory_taken: Bytes per second that it takes off the memory's bandwidth.
    """
    sizes = (m, n, k, batch, sms_taken, memory_taken)
    dimensions = max(getattr(size, "ndim", 0) for size in sizes)
    if dimensions:
        return _time_s(_kernel(on, dtype, dimensions), *sizes)
    key = ("tile shapes", dtype)
    if key not in on.memo:
        sharing = on.section("gemm", "sharing").constants
        on.memo[key] = tile_shapes_of(on.device, dtype, on.gemm(dtype).constants, sharing)
    return _plain_time_s(on.memo[key], *sizes)


def gemm_parts(on: KernelConstants, dtype: str, m: Any, n: Any, k: Any, *, batch: Any = 1) -> Parts:
    """Return the time of one GEMM, and what it is made of."""
    import numpy as np

    kernel = _kernel(on, dtype, 0)
    shapes = by_shape(kernel, m, n, k, batch)
    weights = _weights(kernel, shapes.time_s)
    best = int(np.argmax(weights))
    counted = weights * shapes.time_s
    compute_s = float(shapes.waves[best] * shapes.tile_s[best])
    memory_s = float(shapes.memory_s)
    busy = "loads" if kernel.loads[best] else "compute"
    return Parts(
        time_s=gemm_time_s(on, dtype, m, n, k, batch=batch),
        compute_s=compute_s,
        memory_s=memory_s,
        split_s=float(shapes.split_s[best]),
        fixed_s=kernel.launch_s,
        input_s=float(kernel.input_s * m * k * batch),
        tile=(int(kernel.rows[best]), int(kernel.columns[best])),
        splits=int(kernel.splits[best]),
        waves=float(shapes.waves[best]),
        chosen=float(weights[best]),
        others_s=float(np.delete(counted, best).sum()),
        limit="memory" if memory_s > compute_s else busy,
        section=on.gemm(dtype),
        shape=kernel._replace(**{name: getattr(kernel, name)[best] for name in _BY_SHAPE}),
    )


def gemm_bytes(dtype: str, m: Any, n: Any, k: Any, batch: Any = 1) -> Any:
    """Return the bytes of both operands and of the result, each counted once.

    >>> gemm_bytes("bf16", 2, 3, 4), gemm_bytes("fp8", 2, 3, 4)
    (52.0, 32.0)
    """
    name = canonical_dtype(dtype)
    return (_operand_bytes(name) * (m + n) * k + _result_bytes(name) * m * n) * batch


def copy_bytes_per_s(on: KernelConstants, sms: Any) -> Any:
    """Return what a kernel that copies and adds, like a collective's, takes off the memory.

    One SM moves so much; many get in each other's way.
    """
    return copy_rate(on.device, on.section("gemm", "sharing").constants, sms)


def copy_rate(device: Device, sharing: Mapping[str, Any], sms: Any) -> Any:
    """Return what `copy_bytes_per_s` does, for given constants."""
    alone = sharing["sm_memory_share"] * device.memory_bytes_per_s
    return alone * sms / (1 + sms / (sharing["crowd_sms_share"] * device.sms))


class Kernel(NamedTuple):
    """A section's constants on a device, one entry per tile shape and split; seconds, bytes."""

    rows: Any
    columns: Any
    splits: Any
    step_s: Any
    """Of one multiprocessor, per unit of k, for one tile; all its splits together take one tile."""
    loads: Any
    """Whether loads decide that, rather than arithmetic."""
    split_s: Any
    split_element_s: Any
    start_s: float
    launch_s: float
    input_s: float
    memory_bytes_per_s: Any
    operand_bytes: Any
    result_bytes: Any
    units: Any
    wave_rounding: float
    shared_wave_rounding: float
    exponent: float

    def along(self, dimensions: int) -> Kernel:
        """Return the same with its shapes along an axis before those of the arguments."""
        if not dimensions:
            return self
        shape = (-1,) + (1,) * dimensions
        return self._replace(**{name: getattr(self, name).reshape(shape) for name in _BY_SHAPE})


_BY_SHAPE: Final = ("rows", "columns", "splits", "step_s", "split_s", "split_element_s")


def tile_shapes_of(
    device: Device, dtype: str, constants: Mapping[str, Any], sharing: Mapping[str, Any]
) -> list[Kernel]:
    """Return the constants of a format in units of a device, by tile shape and split.

    `sharing` has those of a GEMM beside another kernel.
    """
    name = canonical_dtype(dtype)
    bandwidth, units = device.memory_bytes_per_s, device.sms
    clock_hz = device.boost_clock_hz
    if clock_hz is None:
        clock_hz = 1e6 * tuner_table("start")["assumed_clock_mhz"]
    load_rate = constants["load_bytes_per_clock"] * clock_hz  # of one SM, through the cache
    operand_bytes = _operand_bytes(name)
    largest_area = max(rows * columns for rows, columns, _ in constants["tiles"])
    shapes = []
    for rows, columns, most in constants["tiles"]:
        area = rows * columns
        strain = 1 + constants["large_tile_strain"] * (area / largest_area) ** 2
        arithmetic_s = 2 * area * strain * units / (constants["peak_share"] * device.peak(name))
        load_s = (rows + columns) * operand_bytes / load_rate
        for splits in (2**power for power in range(most.bit_length())):
            shape = Kernel(
                rows=float(rows),
                columns=float(columns),
                splits=float(splits),
                step_s=_either(arithmetic_s, load_s) / splits,
                loads=load_s > arithmetic_s,
                split_s=1e-6 * constants["split_us"] * (splits > 1),
                split_element_s=constants["split_bytes"] * (splits > 1) * splits / bandwidth,
                start_s=1e-6 * constants["tile_start_us"],
                launch_s=1e-6 * constants["launch_us"],
                input_s=constants["input_bytes"] / bandwidth,
                memory_bytes_per_s=constants["memory_share"] * bandwidth,
                operand_bytes=operand_bytes,
                result_bytes=_result_bytes(name),
                units=units,
                wave_rounding=constants["wave_rounding"],
                shared_wave_rounding=sharing["wave_rounding"],
                exponent=1 / constants["choice_spread"],
            )
            shapes.append(shape)
    return shapes


def kernel_of(
    device: Device, dtype: str, constants: Mapping[str, Any], sharing: Mapping[str, Any]
) -> Kernel:
    """Return all tile shapes of `tile_shapes_of` as one, along an axis of arrays."""
    import numpy as np

    shapes = tile_shapes_of(device, dtype, constants, sharing)
    columns: dict[str, Any] = {
        name: np.array([getattr(each, name) for each in shapes]) for name in (*_BY_SHAPE, "loads")
    }
    return shapes[0]._replace(**columns)


def _kernel(on: KernelConstants, dtype: str, dimensions: int) -> Kernel:
    """Return the constants for a format in units of the device; compiled once for a machine."""
    key = ("compiled", dtype, dimensions)
    if key not in on.memo:
        sharing = on.section("gemm", "sharing").constants
        kernel = kernel_of(on.device, dtype, on.gemm(dtype).constants, sharing)
        on.memo[key] = kernel.along(dimensions)
    compiled: Kernel = on.memo[key]
    return compiled


def kernel_time_s(
    kernel: Kernel,
    m: Any,
    n: Any,
    k: Any,
    *,
    batch: Any = 1,
    sms_taken: Any = 0,
    memory_taken: Any = 0.0,
) -> Any:
    """Return what `gemm_time_s` does, for constants in units of the device."""
    sizes = (m, n, k, batch, sms_taken, memory_taken)
    dimensions = max(getattr(size, "ndim", 0) for size in sizes)
    time_s = _time_s(kernel.along(dimensions), *sizes)
    return time_s if dimensions else float(time_s)


def _time_s(
    kernel: Kernel, m: Any, n: Any, k: Any, batch: Any, sms_taken: Any, memory_taken: Any
) -> Any:
    shapes = by_shape(kernel, m, n, k, batch)
    weights = _weights(kernel, shapes.time_s)
    time_s = _beside(kernel, shapes, sms_taken, memory_taken)
    return launched_s(kernel, (weights * time_s).sum(axis=0), m, k, batch)


def _plain_time_s(
    tile_shapes: list[Kernel], m: Any, n: Any, k: Any, batch: Any, sms_taken: Any, memory_taken: Any
) -> float:
    """Return what `_time_s` does for one GEMM, shape by shape: no need for NumPy."""
    results = [by_shape(shape, m, n, k, batch) for shape in tile_shapes]
    fastest_s, kernel = min(result.time_s for result in results), tile_shapes[0]
    weights = [(fastest_s / result.time_s) ** kernel.exponent for result in results]
    times = (
        _beside(shape, result, sms_taken, memory_taken)
        for shape, result in zip(tile_shapes, results, strict=True)
    )
    weighted = sum(weight * time_s for weight, time_s in zip(weights, times, strict=True))
    return float(launched_s(kernel, weighted / sum(weights), m, k, batch))


def _beside(kernel: Kernel, shapes: Shapes, sms_taken: Any, memory_taken: Any) -> Any:
    """Return the time by every shape, with another kernel beside it if that takes anything."""
    if not (anywhere(sms_taken > 0) or anywhere(memory_taken > 0)):
        return shapes.time_s
    # The shape was chosen for the whole device, and runs on what is left of it.
    stretched = shapes.waves * (kernel.units / largest(kernel.units - sms_taken, 1))
    rounded = stretched + kernel.shared_wave_rounding * (ceil(stretched) - stretched)
    waves = choose(sms_taken > 0, rounded, shapes.waves)
    # Two kernels that both want all of the bandwidth get half each.
    rate = kernel.memory_bytes_per_s
    memory_s = shapes.moved / largest(rate - memory_taken, rate / 2)
    return _either(waves * shapes.tile_s, memory_s) + shapes.split_s


def launched_s(kernel: Kernel, mean_s: Any, m: Any, k: Any, batch: Any) -> Any:
    """Return the mean over shapes with the launch and the conversion of the input added."""
    return mean_s + kernel.launch_s + kernel.input_s * m * k * batch


class Shapes(NamedTuple):
    """A GEMM by every tile shape and split; the bytes are the same for all."""

    time_s: Any
    waves: Any
    tile_s: Any
    moved: Any
    memory_s: Any
    split_s: Any


def by_shape(kernel: Kernel, m: Any, n: Any, k: Any, batch: Any) -> Shapes:
    """Return the time of a GEMM by every tile shape and split of a kernel, before the launch."""
    moved = (kernel.operand_bytes * (m + n) * k + kernel.result_bytes * m * n) * batch
    tile_s = step("tile", kernel.step_s * k + kernel.start_s, meaning="one tile on one SM")
    split_s = kernel.split_s + kernel.split_element_s * m * n * batch
    split_s = step("adding", split_s, meaning="adding up the parts of k")
    tiles = ceil(m / kernel.rows) * ceil(n / kernel.columns) * kernel.splits * batch
    filled = step("filled", tiles / kernel.units, "", "tiles over SMs")
    # At least one wave, with a part of the empty places of the last.
    waves = largest(1.0, filled + kernel.wave_rounding * (ceil(filled) - filled))
    waves = step("waves", waves, "", "as counted")
    memory_s = step("memory", moved / kernel.memory_bytes_per_s, meaning="operands and result")
    time_s = _either(waves * tile_s, memory_s) + split_s
    return Shapes(time_s, waves, tile_s, moved, memory_s, split_s)


def _either(busy_s: Any, memory_s: Any) -> Any:
    """Return a soft maximum: the larger, and up to 19 % more where both are alike."""
    one, other = busy_s * busy_s, memory_s * memory_s
    return sqrt(sqrt(one * one + other * other))


def _weights(kernel: Kernel, time_s: Any) -> Any:
    """Return how likely each shape is to be chosen; they add up to 1."""
    weights = (time_s.min(axis=0) / time_s) ** kernel.exponent
    return weights / weights.sum(axis=0)


def _operand_bytes(dtype: str) -> float:
    return (BITS[dtype] + _SCALE_BITS.get(dtype, 0)) / 8


def _result_bytes(dtype: str) -> float:
    return max(BITS[dtype], _RESULT_BITS) / 8

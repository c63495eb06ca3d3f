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
over shapes and splits, weighted by ``(fastest / time)^(1 / spread)``. On a device whose datasheet
was changed, the choice of the device before bounds it: a mean over other shapes could be slower
though every shape is faster. It chooses for the whole device. Where another kernel holds some of
the multiprocessors (`sms_taken`), the same shape runs on the rest, and waves that were full no
longer are. Blocks of a GEMM start in clusters on neighbouring SMs (CUDA programming guide, thread
block clusters), so one SM that is held takes the places of a whole cluster.

Launching adds a constant. Weights may be stored in fewer bits than are multiplied (AWQ,
arXiv:2306.00978): then they are read narrow and the arithmetic is that of the wider format.

Turning a 16-bit input into a narrow format is not part of a GEMM: engines fuse it into the norm or
the activation before. Some measurements contain it; `conversion_time_s` is what it took there.

Everything takes numbers or arrays that broadcast. The constants are those of
the catalog's, table ``gemm`` (`shardcost.machine.kernels`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from shardcost.arrays import ceil, choose, largest, smallest, sqrt
from shardcost.catalog import tuner_table
from shardcost.checks import anywhere
from shardcost.cluster import Device
from shardcost.dtypes import WeightFormat, weight_format
from shardcost.kernels.cache import cache_of_weights, replayed_byte_s
from shardcost.kernels.tiles import waves_of
from shardcost.machine.kernels import KernelConstants, Section, clock_hz, has_no_less
from shardcost.records import NamedTuple
from shardcost.traced import step


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
    factor: float = 1.0
    """Measured over predicted by all of the above, where a profile has it."""


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
    warm: bool = False,
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
        warm: Weights that fit in the L2 cache are there already, as in a replayed benchmark.
    """
    time_s = _formula_time_s(on, dtype, (m, n, k, batch, sms_taken, memory_taken), warm=warm)
    section = on.gemm(dtype)
    return time_s if section.residual is None else time_s * _measured(section, m, n, k, batch)


def _measured(section: Section, m: Any, n: Any, k: Any, batch: Any) -> Any:
    """Return measured over predicted, where a profile has it; a batch counts as more rows."""
    return section.measured_factor(m * batch, n, k)


def _formula_time_s(on: KernelConstants, dtype: str, sizes: tuple[Any, ...], *, warm: bool) -> Any:
    """Return the time by the formula alone."""
    dimensions = max(getattr(size, "ndim", 0) for size in sizes)
    if warm:
        kernel = _kernel(on, dtype, dimensions)
        cache_bytes, rate = cache_of_weights(on.device)
        return _time_s(kernel._replace(cache_bytes=cache_bytes, cache_bytes_per_s=rate), *sizes)
    before = _before(on, dtype)
    if dimensions:
        kernel = _kernel(on, dtype, dimensions)
        new_s = _time_s(kernel, *sizes)
        if before is None:
            return new_s
        chooser = _kernel(before, dtype, dimensions)
        return _bounded(on, _time_s(kernel, *sizes, chooser=chooser), new_s)
    shapes = _tile_shapes(on, dtype)
    new_s = _plain_time_s(shapes, *sizes)
    if before is None:
        return new_s
    return _bounded(on, _plain_time_s(shapes, *sizes, chosen_by=_tile_shapes(before, dtype)), new_s)


def _bounded(on: KernelConstants, old_s: Any, new_s: Any) -> Any:
    """Return the time by the shapes chosen before or after a change of the datasheet.

    The faster of both on a better device, the slower one on a lesser; on one that is neither, that
    by the shapes chosen before.
    """
    if has_no_less(on.device, on.like):
        return smallest(old_s, new_s)
    return largest(old_s, new_s) if has_no_less(on.like, on.device) else old_s


def _tile_shapes(on: KernelConstants, dtype: str) -> list[Kernel]:
    """Return the tile shapes of a format; compiled once for a machine."""
    key = ("tile shapes", dtype)
    if key not in on.memo:
        sharing = on.section("gemm", "sharing").constants
        on.memo[key] = tile_shapes_of(on.device, dtype, on.gemm(dtype).constants, sharing)
    shapes: list[Kernel] = on.memo[key]
    return shapes


def _before(on: KernelConstants, dtype: str) -> KernelConstants | None:
    """Return the device before its datasheet was changed, which shapes are chosen for.

    None where nothing was changed, or it multiplies the format as another.
    """
    key = ("before", dtype)
    if key not in on.memo:
        same = not on.changed or on.like.multiplied(dtype) != on.device.multiplied(dtype)
        on.memo[key] = None if same else replace(on, device=on.like)
    before: KernelConstants | None = on.memo[key]
    return before


def gemm_parts(on: KernelConstants, dtype: str, m: Any, n: Any, k: Any, *, batch: Any = 1) -> Parts:
    """Return the time of one GEMM, and what it is made of."""
    import numpy as np

    kernel, before = _kernel(on, dtype, 0), _before(on, dtype)
    shapes = by_shape(kernel, m, n, k, batch)
    weights = _weights(kernel, shapes.time_s)
    if before is not None:
        old = _weights(kernel, by_shape(_kernel(before, dtype, 0), m, n, k, batch).time_s)
        old_s, new_s = ((each * shapes.time_s).sum() for each in (old, weights))
        weights = old if _bounded(on, old_s, new_s) == old_s else weights
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
        tile=(int(kernel.rows[best]), int(kernel.columns[best])),
        splits=int(kernel.splits[best]),
        waves=float(shapes.waves[best]),
        chosen=float(weights[best]),
        others_s=float(np.delete(counted, best).sum()),
        limit="memory" if memory_s > compute_s else busy,
        section=on.gemm(dtype),
        shape=kernel._replace(**{name: getattr(kernel, name)[best] for name in _BY_SHAPE}),
        factor=float(_measured(on.gemm(dtype), m, n, k, batch)),
    )


def gemm_bytes(dtype: str, m: Any, n: Any, k: Any, batch: Any = 1) -> Any:
    """Return the bytes of both operands and of the result, each counted once.

    >>> gemm_bytes("bf16", 2, 3, 4), gemm_bytes("fp8", 2, 3, 4)
    (52.0, 32.0)
    """
    form = weight_format(dtype)
    operands = (form.input_bytes * m + form.weight_bytes * n) * k
    return (operands + _result_bytes(form) * m * n) * batch


def conversion_time_s(on: KernelConstants, dtype: str, m: Any, k: Any) -> Any:
    """Return the seconds in which a measurement converted the ``m x k`` input of its GEMM."""
    return conversion_s(on.device, on.conversion(dtype).constants, m, k)


def conversion_s(device: Device, constants: Mapping[str, Any], m: Any, k: Any) -> Any:
    """Return what `conversion_time_s` does, for given constants."""
    size = constants["conversion_bytes"] * m * k
    return 1e-6 * constants["conversion_us"] + size / device.memory_bytes_per_s


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
    memory_bytes_per_s: Any
    input_bytes: Any
    weight_bytes: Any
    result_bytes: Any
    units: Any
    wave_rounding: float
    shared_wave_rounding: float
    cluster_sms: float
    """SMs that no block starts on if another kernel holds one of them."""
    exponent: float
    cache_bytes: Any = 0.0
    """What the L2 cache keeps of the weights from one replay to the next; 0 in a model."""
    cache_bytes_per_s: Any = 0.0

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
    form = device.multiplied(dtype)
    bandwidth, units = device.memory_bytes_per_s, device.sms
    if "load_memory_share" in constants:  # no cache stands between the memory and matrix units
        load_rate = constants["load_memory_share"] * bandwidth / units
    else:  # of one SM, through the cache
        load_rate = constants["load_bytes_per_clock"] * clock_hz(device)
    peak = device.peak(form.product)
    if form.block_scaled and form.narrow_inputs:
        peak = peak * tuner_table("gemm")["block_scaled"]["peak_share"]
    largest_area = max(rows * columns for rows, columns, _ in constants["tiles"])
    shapes = []
    for rows, columns, most in constants["tiles"]:
        area = rows * columns
        strain = 1 + constants["large_tile_strain"] * (area / largest_area) ** 2
        arithmetic_s = 2 * area * strain * units / (constants["peak_share"] * peak)
        load_s = (rows * form.input_bytes + columns * form.weight_bytes) / load_rate
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
                memory_bytes_per_s=constants["memory_share"] * bandwidth,
                input_bytes=form.input_bytes,
                weight_bytes=form.weight_bytes,
                result_bytes=_result_bytes(form),
                units=units,
                wave_rounding=constants["wave_rounding"],
                shared_wave_rounding=sharing["wave_rounding"],
                cluster_sms=sharing["cluster_sms"],
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
    kernel: Kernel,
    m: Any,
    n: Any,
    k: Any,
    batch: Any,
    sms_taken: Any,
    memory_taken: Any,
    *,
    chooser: Kernel | None = None,
) -> Any:
    shapes = by_shape(kernel, m, n, k, batch)
    chosen = shapes if chooser is None else by_shape(chooser, m, n, k, batch)
    weights = _weights(kernel, chosen.time_s)
    time_s = _beside(kernel, shapes, sms_taken, memory_taken)
    return (weights * time_s).sum(axis=0) + kernel.launch_s


def _plain_time_s(
    tile_shapes: list[Kernel],
    m: Any,
    n: Any,
    k: Any,
    batch: Any,
    sms_taken: Any,
    memory_taken: Any,
    *,
    chosen_by: list[Kernel] | None = None,
) -> float:
    """Return what `_time_s` does for one GEMM, shape by shape: no need for NumPy."""
    results = [by_shape(shape, m, n, k, batch) for shape in tile_shapes]
    kernel, known = tile_shapes[0], [result.time_s for result in results]
    if chosen_by is not None:
        known = [by_shape(shape, m, n, k, batch).time_s for shape in chosen_by]
    fastest_s = min(known)
    weights = [(fastest_s / time_s) ** kernel.exponent for time_s in known]
    times = (
        _beside(shape, result, sms_taken, memory_taken)
        for shape, result in zip(tile_shapes, results, strict=True)
    )
    weighted = sum(weight * time_s for weight, time_s in zip(weights, times, strict=True))
    return float(weighted / sum(weights) + kernel.launch_s)


def _beside(kernel: Kernel, shapes: Shapes, sms_taken: Any, memory_taken: Any) -> Any:
    """Return the time by every shape, with another kernel beside it if that takes anything."""
    if not (anywhere(sms_taken > 0) or anywhere(memory_taken > 0)):
        return shapes.time_s
    # The shape was chosen for the whole device, and runs on what is left of it.
    lost = kernel.cluster_sms * ceil(sms_taken / kernel.cluster_sms)
    stretched = shapes.waves * (kernel.units / largest(kernel.units - lost, 1))
    rounded = waves_of(stretched, kernel.shared_wave_rounding)
    waves = choose(sms_taken > 0, rounded, shapes.waves)
    # Two kernels that both want all of the bandwidth get half each.
    rate = kernel.memory_bytes_per_s
    memory_s = shapes.moved / largest(rate - memory_taken, rate / 2)
    return _either(waves * shapes.tile_s, memory_s) + shapes.split_s


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
    moved = (kernel.input_bytes * m + kernel.weight_bytes * n) * k + kernel.result_bytes * m * n
    moved = moved * batch
    tile_s = step("tile", kernel.step_s * k + kernel.start_s, meaning="one tile on one SM")
    split_s = kernel.split_s + kernel.split_element_s * m * n * batch
    split_s = step("adding", split_s, meaning="adding up the parts of k")
    tiles = ceil(m / kernel.rows) * ceil(n / kernel.columns) * kernel.splits * batch
    filled = step("filled", tiles / kernel.units, "", "tiles over SMs")
    # At least one wave, with a part of the empty places of the last.
    waves = largest(1.0, waves_of(filled, kernel.wave_rounding))
    waves = step("waves", waves, "", "as counted")
    memory_s = moved / kernel.memory_bytes_per_s
    if kernel.cache_bytes:
        weights = kernel.weight_bytes * n * k * batch
        byte_s = replayed_byte_s(
            kernel.memory_bytes_per_s, kernel.cache_bytes, kernel.cache_bytes_per_s, weights
        )
        memory_s = (moved - weights) / kernel.memory_bytes_per_s + weights * byte_s
    memory_s = step("memory", memory_s, meaning="operands and result")
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


def _result_bytes(form: WeightFormat) -> float:
    """The result of a product of narrow formats is written in 16 bits."""
    return max(form.input_bytes, 2.0)

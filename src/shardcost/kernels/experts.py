"""Seconds of the experts of a mixture-of-experts layer on one device.

A grouped GEMM multiplies the rows of every expert by that expert's own weights in one launch. Tiles
are filled expert by expert, so that an expert with few rows wastes most of its tile; the weights of
every expert with any row are read once::

    tiles  = sum over experts of ceil(rows / tile rows) x ceil(n / tile columns)
    waves  = tiles / SMs, a part of the last one's empty places counted as well
    tile   = k x (arithmetic of a step, or its loads) + start
    memory = weights of active experts / (share of the memory's bandwidth)
    time   = root of squares of (waves x tile) and memory

The library takes the tile height that is fastest. Short tiles waste less and load more per
operation; their arithmetic is slower by ``1 + half_rows / rows``. Where loads are uneven, the rows
of an expert are taken as exponentially distributed, for which the expected tiles are
``1 / (1 - exp(-tile rows / mean rows))``. Weights that fit in the L2 cache are read from there:
layers replayed alone find them warm. Tiles, waves and the roofline are those of
`shardcost.kernels.gemm`; tile shapes of grouped GEMMs as in CUTLASS (grouped kernel schedulers,
NVIDIA CUTLASS documentation) and MegaBlocks (arXiv:2211.15841).

The experts of a layer are two such GEMMs among small kernels: top-k, sorting rows by expert,
quantising, the activation, the weighted sum::

    time = floor + cycles x experts (counting and offsets) + cycles x tokens (top-k)
         + both GEMMs + passes over the rows' bytes / memory bandwidth

Kernels that work through all ``tokens x top_k`` rows, whether their expert is on this rank or not,
pay for a share of the remote rows as well (`remote_rows`: 1 for Triton's, near 0 for CUTLASS's).
Some choose the tile height for all of these rows, too: with experts spread over many ranks it is
then too tall for the few rows that are here (`blind_choice`).

Everything takes numbers or arrays that broadcast. The constants are those of the catalog's table
``experts`` (`shardcost.machine.experts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, Final, Literal, TypeAlias

from shardcost.arrays import ceil, choose, exp, largest, smallest, sqrt
from shardcost.catalog import tuner_table
from shardcost.checks import anywhere
from shardcost.cluster import Device
from shardcost.errors import BadValueError
from shardcost.kernels.cache import cache_of_weights, replayed_byte_s
from shardcost.kernels.tiles import step_times_s, waves_of
from shardcost.machine.experts import experts_section
from shardcost.machine.kernels import KernelConstants, clock_hz
from shardcost.records import NamedTuple
from shardcost.traced import step

GROUPED: Final = "grouped_mm"
"""The grouped GEMM of a framework by itself: PyTorch's."""
_ACTIVATION_BYTES: Final = 2
"""Between the kernels of the sequence, rows are in 16 bits."""


Part: TypeAlias = Literal["gemms", "small"]
"""Both grouped GEMMs of the sequence, or the small kernels around them."""


class Kernel(NamedTuple):
    """The constants of an expert kernel in units of a device: seconds and bytes."""

    tile_rows: tuple[float, ...]
    tile_columns: float
    step_s: tuple[Any, ...]
    """Of one tile per unit of k, by tile height."""
    start_s: Any
    units: Any
    """SMs."""
    wave_rounding: float
    least_waves: float
    ragged_excess: float
    """How far the fullest expert is above the mean where loads no longer count as even."""
    weight_bytes: float
    memory_bytes_per_s: Any
    cache_bytes: Any
    """What the L2 cache keeps from one replay to the next."""
    cache_bytes_per_s: Any
    floor_s: Any
    spread_s: Any
    """What the small kernels take longer where experts are spread over ranks."""
    expert_s: Any
    token_s: Any
    row_byte_s: Any
    remote_rows: Any
    blind_choice: Any
    """Weight of the tile height that would suit all rows, were they all of this rank's experts."""


def grouped_gemm_time_s(
    on: KernelConstants,
    dtype: str,
    rows: Any,
    n: Any,
    k: Any,
    *,
    groups: Any,
    largest_group: Any = None,
    kernel: str = GROUPED,
    library: str = "",
    warm: bool = True,
) -> Any:
    """Return the seconds of one grouped GEMM: rows of many experts by the weights of each.

    >>> from shardcost.machine import machine_of
    >>> h200 = machine_of("h200_sxm").kernels
    >>> few = grouped_gemm_time_s(h200, "bf16", 64, 4096, 1536, groups=8)
    >>> few < grouped_gemm_time_s(h200, "bf16", 64, 4096, 1536, groups=64)
    True

    Args:
        on: The constants of the device that it runs on.
        dtype: The number format of the experts (`shardcost.dtypes.WEIGHT_FORMATS`).
        rows: Rows of all groups together.
        n: Columns of each expert's weights.
        k: What is summed over.
        groups: Experts with at least one row.
        largest_group: Rows of the fullest; None where all have the same.
        kernel: The kernel or family whose constants hold.
        library: The engine that runs it, which tells the family of an unknown name.
        warm: Weights that fit in the L2 cache are there already, as in a replayed benchmark.
    """
    _check(rows, groups)
    own = _kernel(on, kernel, dtype, library)
    return kernel_gemm_time_s(own, rows, n, k, groups, largest_group, warm=warm)


def experts_time_s(
    on: KernelConstants,
    kernel: str,
    dtype: str,
    tokens: Any,
    hidden: Any,
    inter: Any,
    *,
    experts: Any,
    top_k: Any,
    pairs: Any,
    active: Any,
    busiest: Any = None,
    gated: Any = True,
    ep: Any = 1,
    library: str = "",
    warm: bool = True,
    part: Part | None = None,
) -> Any:
    """Return the seconds of the experts of a layer on one rank, from logits to partial output.

    Top-k, sorting, quantising, both grouped GEMMs, the activation and the weighted sum are in it;
    the router's GEMM, shared experts, dispatch, combine and all-reduce are not. What a rank's load
    is, `shardcost.routing.expert_load` says.

    Args:
        on: The constants of the device that it runs on.
        kernel: Name of the kernel, as engines call it, or of a family.
        dtype: The number format of the experts (`shardcost.dtypes.WEIGHT_FORMATS`).
        tokens: Tokens that enter: all of the expert-parallel group where the kernel sees them all.
        hidden: Width of the model.
        inter: Width of an expert on this rank.
        experts: Experts of the whole layer.
        top_k: Experts that a token goes to.
        pairs: Token-expert pairs on this rank.
        active: Experts of this rank with at least one pair.
        busiest: Pairs of the fullest; None where all have the same.
        gated: Whether experts have three matrices (SwiGLU) rather than two.
        ep: Ranks that share the experts: this one holds ``experts / ep``.
        library: The engine that runs it, which tells the family of an unknown name.
        warm: Weights that fit in the L2 cache are there already, as in a replayed benchmark.
        part: Which part of the sequence; None for all of it.
    """
    _check(pairs, active)
    own = _kernel(on, kernel, dtype, library)
    sizes = (tokens, hidden, inter, experts, top_k, pairs, active, busiest, gated, ep)
    return kernel_time_s(own, *sizes, warm=warm, part=part)


def kernel_of(device: Device, dtype: str, constants: Mapping[str, Any]) -> Kernel:
    """Return the constants of an expert kernel in units of a device."""
    common = tuner_table("experts")["common"]
    form = device.multiplied(dtype)
    bandwidth, units = device.memory_bytes_per_s, device.sms
    clock = clock_hz(device)
    cache_bytes, cache_bytes_per_s = cache_of_weights(device)
    heights, columns = common["tile_rows"], common["tile_columns"]
    steps = step_times_s(device, form, constants, heights, columns, common["half_rows"])
    return Kernel(
        tile_rows=tuple(map(float, heights)),
        tile_columns=float(columns),
        step_s=steps,
        start_s=constants["tile_start_cycles"] / clock,
        units=units,
        wave_rounding=common["wave_rounding"],
        least_waves=common["least_waves"],
        ragged_excess=common["ragged_excess"],
        weight_bytes=form.weight_bytes,
        memory_bytes_per_s=constants["memory_share"] * bandwidth,
        cache_bytes=cache_bytes,
        cache_bytes_per_s=cache_bytes_per_s,
        floor_s=constants["floor_cycles"] / clock,
        spread_s=constants["spread_cycles"] / clock,
        expert_s=constants["expert_cycles"] / clock,
        token_s=common["token_cycles"] / clock,
        row_byte_s=constants["row_passes"] / bandwidth,
        remote_rows=constants["remote_rows"],
        blind_choice=constants["blind_choice"],
    )


def kernel_gemm_time_s(
    kernel: Kernel,
    rows: Any,
    n: Any,
    k: Any,
    groups: Any,
    largest_group: Any = None,
    *,
    warm: bool = True,
) -> Any:
    """Return what `grouped_gemm_time_s` does, for constants in units of the device."""
    tiles = _tiles(kernel, rows, groups, largest_group)
    weights = groups * n * k * kernel.weight_bytes
    byte_s = _byte_s(kernel, weights, warm=warm)
    return kernel.floor_s + _gemm_s(kernel, tiles, weights * byte_s, n, k)


def kernel_time_s(
    kernel: Kernel,
    tokens: Any,
    hidden: Any,
    inter: Any,
    experts: Any,
    top_k: Any,
    pairs: Any,
    active: Any,
    busiest: Any,
    gated: Any,
    ep: Any,
    *,
    warm: bool = True,
    part: Part | None = None,
) -> Any:
    """Return what `experts_time_s` does, for constants in units of the device."""
    up = (1 + gated) * inter  # columns of the first GEMM: gate and up projection side by side
    around_s: Any = 0.0
    if part != "gemms":
        around_s = _around_gemms_s(kernel, tokens, hidden, up + inter, experts, top_k, pairs, ep)
        if part == "small":
            return around_s
    tiles = _tiles(kernel, pairs, active, busiest)
    seen = tiles
    if anywhere(ep > 1):  # as if all rows were of experts on this rank
        every = _tiles(kernel, tokens * top_k, experts / ep, None)
        seen = [choose(ep > 1, one, own) for one, own in zip(every, tiles, strict=True)]
    matrix = active * hidden * kernel.weight_bytes
    byte_s = _byte_s(kernel, matrix * (up + inter), warm=warm)
    first_s = _gemm_s(kernel, tiles, matrix * up * byte_s, up, hidden, seen)
    second_s = _gemm_s(kernel, tiles, matrix * inter * byte_s, hidden, inter, seen)
    return around_s + step("first_GEMM", first_s) + step("second_GEMM", second_s)


def _around_gemms_s(
    kernel: Kernel,
    tokens: Any,
    hidden: Any,
    inner: Any,
    experts: Any,
    top_k: Any,
    pairs: Any,
    ep: Any,
) -> Any:
    """Return the time of all kernels of the sequence but the GEMMs.

    Args:
        kernel: The constants.
        tokens: Tokens that enter.
        hidden: Width of the model.
        inner: Elements of a row between the GEMMs, before the activation and after it.
        experts: Experts of the whole layer.
        top_k: Experts that a token goes to.
        pairs: Token-expert pairs on this rank.
        ep: Ranks that share the experts.
    """
    rows = pairs + kernel.remote_rows * largest(tokens * top_k - pairs, 0.0)
    row_bytes = _ACTIVATION_BYTES * (hidden + inner)
    floor_s = kernel.floor_s + choose(ep > 1, kernel.spread_s, 0.0)
    small_s = floor_s + kernel.expert_s * experts + kernel.token_s * tokens
    passes_s = step("passes", kernel.row_byte_s * rows * row_bytes, meaning="over the rows")
    return step("small_kernels", small_s) + passes_s


def _tiles(kernel: Kernel, rows: Any, groups: Any, largest_group: Any) -> list[Any]:
    """Return the tiles along the rows of all experts together, by tile height."""
    mean = step("mean_rows", rows / groups, "", "of an expert with any row")
    counts = []
    excess: Any = 0.0
    if largest_group is not None:
        excess = (largest_group / largest(ceil(mean), 1) - 1) / kernel.ragged_excess
    uneven = smallest(largest(excess, 0.0), 1.0)
    uneven = step("uneven", uneven, "share", "0: experts have the same rows; 1: exponential")
    for height in kernel.tile_rows:
        even = ceil(mean / height)
        ragged = 1 / (1 - exp(-height / mean))
        tiles = groups * (even + uneven * (ragged - even))
        counts.append(step("tiles", tiles, "", f"of {height:.0f} rows, over all experts"))
    return counts


def _byte_s(kernel: Kernel, weights: Any, *, warm: bool) -> Any:
    """Return the seconds per byte of weights, some of which the L2 cache may hold."""
    cache_bytes = kernel.cache_bytes if warm else 0.0
    return replayed_byte_s(
        kernel.memory_bytes_per_s, cache_bytes, kernel.cache_bytes_per_s, weights
    )


def _gemm_s(
    kernel: Kernel, tiles: list[Any], memory_s: Any, n: Any, k: Any, seen: list[Any] | None = None
) -> Any:
    """Return the time of one grouped GEMM, before the launch.

    Args:
        kernel: The constants.
        tiles: Tiles along the rows, by tile height.
        memory_s: The time to read the weights.
        n: Columns of the weights.
        k: What is summed over.
        seen: The tiles by which a library chooses the height; None where it chooses by `tiles`.
    """
    busy_s = _busy_s(kernel, tiles, n, k)
    fastest_s = reduce(smallest, busy_s)
    if seen is not None and seen is not tiles:
        expected_s = _busy_s(kernel, seen, n, k)
        least_s, chosen_s = expected_s[0], busy_s[0]
        for each_s, own_s in zip(expected_s[1:], busy_s[1:], strict=True):
            chosen_s = choose(each_s < least_s, own_s, chosen_s)
            least_s = smallest(each_s, least_s)
        fastest_s = fastest_s + kernel.blind_choice * (chosen_s - fastest_s)
    memory_s = step("memory", memory_s, meaning="weights of the active experts")
    return sqrt(fastest_s * fastest_s + memory_s * memory_s)


def _busy_s(kernel: Kernel, tiles: list[Any], n: Any, k: Any) -> list[Any]:
    """Return the time of all tiles on all SMs, by tile height."""
    share = ceil(n / kernel.tile_columns) / kernel.units
    times = []
    for count, step_s in zip(tiles, kernel.step_s, strict=True):
        waves = waves_of(count * share, kernel.wave_rounding)
        # Fewer tiles than half the SMs are cut along k as well.
        waves = step("waves", largest(waves, kernel.least_waves), "", "of tiles over the SMs")
        busy_s = waves * (step_s * k + kernel.start_s)
        times.append(step("compute", busy_s, meaning="all waves"))
    return times


def _kernel(on: KernelConstants, kernel: str, dtype: str, library: str) -> Kernel:
    key = ("expert kernel", kernel, dtype, library)
    if key not in on.memo:
        section = experts_section(on, kernel, dtype, library)
        on.memo[key] = kernel_of(on.device, dtype, section.constants)
    compiled: Kernel = on.memo[key]
    return compiled


def _check(rows: Any, groups: Any) -> None:
    if anywhere(rows <= 0):
        raise BadValueError("rows of experts", rows, "above 0")
    if anywhere(groups <= 0):
        raise BadValueError("active experts", groups, "above 0")

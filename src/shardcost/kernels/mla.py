"""Seconds of multi-head latent attention on one device: attention, absorption products, module.

Latent attention (DeepSeek-V2, arXiv:2405.04434) caches one vector of ``kv_lora + rope`` elements
for each token and layer, shared by all heads. *Expanded*, keys and values of every head are rebuilt
from it, and attention is an ordinary one with ``nope + rope`` elements for a key. *Absorbed*, the
query of every head is multiplied into the latent space and meets the cached vector itself: one key
and value head for all, whose values are the first ``kv_lora`` elements of its keys.

An attention kernel cuts the query rows into blocks of ``tile_rows`` (rows of all heads where they
share the key, else of one). A block walks over its keys; where blocks do not fill the SMs, most
kernels split the context over several and add the parts up (flash decoding, Dao et al. 2023)::

    splits  = SMs / blocks, at most most_splits, of at least split_tokens keys each
    compute = waves of blocks x splits over SMs x (start + keys / splits x rows x arithmetic)
    alone   = start + keys / splits x key                   (latency of one block's walk)
    memory  = cache bytes / (share of the memory's bandwidth)
    time    = floor + root of squares of (compute, alone, memory)
            + row_passes x bytes of queries and outputs / bandwidth + split x (splits - 1)

Kernels that do not split take as long for one request as for a card full of them. Kernels with a
fixed number of splits start all of them whatever the context is. Some have no path for an 8-bit
cache and copy all of it to 16 bits first.

The absorption products and the projections of a module are GEMMs, of `heads` groups or of one::

    compute = waves of tiles x (k x (arithmetic of a step, or its loads) + start), fastest tiles
    memory  = weights, inputs and outputs / bandwidth
    time    = floor + sum of roots of squares of (compute, memory)
            + row_passes x bytes of inputs / bandwidth      (norms, rotation, quantising inputs)

A module's time is that of its attention kernel and of its GEMMs, with the floor of all its small
kernels. What fits in the L2 cache is read from there where a benchmark replays the same tensors
(`warm`); between the layers of a model it is not.

Everything takes numbers or arrays that broadcast. The constants are those of the catalog's table
``mla`` (`shardcost.machine.mla`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, Final

from shardcost.arrays import ceil, largest, smallest, sqrt
from shardcost.catalog import tuner_table
from shardcost.checks import anywhere
from shardcost.cluster import Device
from shardcost.dtypes import weight_format
from shardcost.errors import BadValueError
from shardcost.kernels.cache import cache_of, replayed_byte_s
from shardcost.kernels.tiles import step_times_s, waves_of
from shardcost.machine.kernels import KernelConstants, clock_hz, in_sms
from shardcost.machine.mla import (
    Structure,
    attention_sections,
    family_of,
    mla_section,
    module_sections,
    product_format,
    product_sections,
    section_phase,
    structure_of,
    widened_bytes,
)
from shardcost.records import NamedTuple
from shardcost.traced import step

_WIDE_BYTES: Final = 2
"""Queries, outputs and rows between kernels are in 16 bits."""


class LatentShape(NamedTuple):
    """The sizes of latent attention, as in a model's configuration."""

    hidden: Any = 7168
    q_lora: Any = 1536
    kv_lora: Any = 512
    nope: Any = 128
    rope: Any = 64
    v_dim: Any = 128

    @property
    def latent(self) -> Any:
        """Elements of a token's cached vector."""
        return self.kv_lora + self.rope

    def key_and_value(self, form: str) -> tuple[Any, Any]:
        """Return the elements of a key and of a value that a head's query meets."""
        if form == "absorbed":
            return self.latent, self.kv_lora
        return self.nope + self.rope, self.v_dim


DEEPSEEK: Final = LatentShape()
"""DeepSeek-V3 (arXiv:2412.19437): the sizes of the measured rows."""


class Cached(NamedTuple):
    """Where bytes are read from: memory and the L2 cache."""

    memory_bytes_per_s: Any
    cache_bytes: Any
    """What the L2 cache keeps from one replay to the next; 0 where nothing is warm."""
    cache_bytes_per_s: Any
    steepness: float

    def byte_s(self, working_set: Any) -> Any:
        """Return the seconds per byte where so many bytes are read again and again."""
        rates = (self.memory_bytes_per_s, self.cache_bytes, self.cache_bytes_per_s)
        return replayed_byte_s(*rates, working_set, self.steepness)


class Attention(NamedTuple):
    """The constants of an attention kernel in units of a device: seconds and bytes."""

    structure: Structure
    floor_s: Any
    start_s: Any
    """Of a block."""
    key_s: Any
    """Of one more key, for a block by itself."""
    flop_per_s: Any
    """Of one SM."""
    cached: Cached
    row_passes: Any
    split_s: Any
    most_splits: Any
    units: Any
    """SMs."""
    least_rows: float
    split_tokens: float
    wave_rounding: float
    cache_bytes: float
    """Of an element of the cache, as the kernel reads it."""
    widened_bytes: float
    """That an element of the cache costs before."""


class Gemms(NamedTuple):
    """The constants of a kernel of GEMMs in units of a device: seconds and bytes."""

    tile_rows: tuple[float, ...]
    tile_columns: float
    step_s: tuple[Any, ...]
    """Of one tile per unit of k, by tile height."""
    start_s: Any
    floor_s: Any
    cached: Cached
    row_passes: Any
    units: Any
    wave_rounding: float
    least_waves: float
    weight_bytes: float
    input_bytes: float


class Gemm(NamedTuple):
    """GEMMs of ``m x k`` by ``k x n``, `groups` of them side by side."""

    m: Any
    n: Any
    k: Any
    groups: Any = 1


def attention_time_s(
    on: KernelConstants,
    kernel: str,
    phase: str,
    form: str,
    batch: Any,
    query_tokens: Any,
    context_tokens: Any,
    heads: Any,
    *,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    library: str = "",
    shape: LatentShape = DEEPSEEK,
    causal: bool = True,
    cached_tokens: Any = None,
    warm: bool = True,
) -> Any:
    """Return the seconds of one attention kernel, with the write of the new cache entries.

    Args:
        on: The constants of the device that it runs on.
        kernel: Its name, as engines call it.
        phase: ``prefill`` or ``decode``.
        form: ``expanded`` or ``absorbed``.
        batch: Sequences.
        query_tokens: New tokens of each.
        context_tokens: All tokens of each, the new ones included.
        heads: Query heads on this device.
        dtype: The number format of the products.
        kv_dtype: The number format of the cache.
        library: The engine that runs it, which tells the family of a name that does not.
        shape: The sizes of the model's attention.
        causal: Whether a new token sees only itself and those before it.
        cached_tokens: Tokens whose entries are read from memory, of all sequences together, where
            these share some; None where each has its own.
        warm: What fits in the L2 cache is there already, as in a replayed benchmark.

    The heads share the cache: eight times as many take hardly longer on an H100::

        >>> from shardcost.machine import machine_of
        >>> h100 = machine_of("h100_sxm").kernels
        >>> few, many = (
        ...     attention_time_s(h100, "default", "decode", "absorbed", 32, 1, 8192, heads,
        ...                      library="trtllm")
        ...     for heads in (8, 64)
        ... )
        >>> bool(many < 1.5 * few)
        True
    """
    _check(batch=batch, query_tokens=query_tokens, heads=heads)
    if anywhere(context_tokens < query_tokens):
        raise BadValueError("context_tokens", context_tokens, "at least query_tokens")
    own = attention_on(on, kernel, phase, form, dtype, kv_dtype, library)
    sizes = (batch, query_tokens, context_tokens, heads)
    return walk_time_s(
        warmed(own, warm=warm), form, *sizes, shape, causal=causal, cached_tokens=cached_tokens
    )


def products_time_s(
    on: KernelConstants,
    kernel: str,
    dtype: str,
    tokens: Any,
    heads: Any,
    *,
    is_query: Any = True,
    library: str = "",
    shape: LatentShape = DEEPSEEK,
    warm: bool = True,
) -> Any:
    """Return the seconds of the absorption product of the queries, or of the values.

    Args:
        on: The constants of the device that it runs on.
        kernel: Its name, as engines call it.
        dtype: The number format of inputs and weights.
        tokens: Rows of each head.
        heads: Query heads on this device.
        is_query: Of the queries, before attention; else of the values, after it.
        library: The engine that runs it.
        shape: The sizes of the model's attention.
        warm: What fits in the L2 cache is there already, as in a replayed benchmark.
    """
    _check(tokens=tokens, heads=heads)
    section = mla_section(on, product_sections(kernel, library, dtype))
    own = gemms_of(on.device, product_format(kernel, dtype), section.constants)
    return gemms_time_s(warmed(own, warm=warm), [absorption(tokens, heads, shape, is_query)])


def module_time_s(
    on: KernelConstants,
    kernel: str,
    phase: str,
    form: str,
    batch: Any,
    query_tokens: Any,
    context_tokens: Any,
    heads: Any,
    *,
    weight_dtype: str,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    library: str = "",
    shape: LatentShape = DEEPSEEK,
    warm: bool = True,
) -> Any:
    """Return the seconds of the whole attention block, from hidden states to partial output.

    Args:
        on: The constants of the device that it runs on.
        kernel: The attention kernel, as engines call it.
        phase: ``prefill`` or ``decode``.
        form: ``expanded`` or ``absorbed``.
        batch: Sequences.
        query_tokens: New tokens of each.
        context_tokens: All tokens of each, the new ones included.
        heads: Query heads on this device.
        weight_dtype: The number format of the projections.
        dtype: The number format of the attention's products.
        kv_dtype: The number format of the cache.
        library: The engine that runs it.
        shape: The sizes of the model's attention.
        warm: What fits in the L2 cache is there already, as in a replayed benchmark.
    """
    attention_s = attention_time_s(
        on,
        kernel,
        phase,
        form,
        batch,
        query_tokens,
        context_tokens,
        heads,
        dtype=dtype,
        kv_dtype=kv_dtype,
        library=library,
        shape=shape,
        warm=warm,
    )
    section = mla_section(on, module_sections(library, weight_dtype))
    own = gemms_of(on.device, weight_dtype, section.constants)
    tokens = batch * query_tokens
    return attention_s + projections_time_s(warmed(own, warm=warm), form, tokens, heads, shape)


def attention_on(
    on: KernelConstants,
    kernel: str,
    phase: str,
    form: str,
    dtype: str,
    kv_dtype: str,
    library: str,
) -> Attention:
    """Return the constants of an attention kernel on a device, compiled once for a machine."""
    key = ("latent attention", kernel, phase, form, dtype, kv_dtype, library)
    if key not in on.memo:
        wanted = attention_sections(kernel, library, phase, form, kv_dtype, on.like)
        ran = section_phase(library, phase, form)
        structure = structure_of(family_of(kernel, library, ran, form, on.like), ran, form)
        formats = (dtype, kv_dtype, widened_bytes(kernel, kv_dtype))
        constants = mla_section(on, wanted).constants
        on.memo[key] = attention_of(on.device, structure, constants, *formats)
    compiled: Attention = on.memo[key]
    return compiled


def attention_of(
    device: Device,
    structure: Structure,
    constants: Mapping[str, Any],
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    widened: float = 0.0,
) -> Attention:
    """Return the constants of an attention kernel in units of a device."""
    common = tuner_table("mla")["common"]
    device = in_sms(device)
    clock = clock_hz(device)
    peak = constants["peak_share"] * device.peak(device.multiplied(dtype).product)
    return Attention(
        structure=structure,
        floor_s=constants["floor_cycles"] / clock,
        start_s=constants["block_start_cycles"] / clock,
        key_s=constants["key_cycles"] / clock,
        flop_per_s=peak / device.sms,
        cached=_cached(device, "attention", constants["memory_share"]),
        row_passes=constants["row_passes"],
        split_s=constants.get("split_cycles", 0.0) / clock,
        most_splits=constants.get("most_splits", 1.0),
        units=device.sms,
        least_rows=common["least_tile_rows"],
        split_tokens=common["split_tokens"],
        wave_rounding=common["wave_rounding"],
        cache_bytes=_WIDE_BYTES if widened else weight_format(kv_dtype).weight_bytes,
        widened_bytes=widened,
    )


def gemms_of(device: Device, dtype: str, constants: Mapping[str, Any]) -> Gemms:
    """Return the constants of a kernel of GEMMs in units of a device."""
    common = tuner_table("mla")["common"]
    device = in_sms(device)
    form = device.multiplied(dtype)
    clock = clock_hz(device)
    heights, columns = common["gemm_tile_rows"], common["gemm_tile_columns"]
    steps = step_times_s(device, form, constants, heights, columns, common["gemm_half_rows"])
    return Gemms(
        tile_rows=tuple(map(float, heights)),
        tile_columns=float(columns),
        step_s=steps,
        start_s=constants["tile_start_cycles"] / clock,
        floor_s=constants["floor_cycles"] / clock,
        cached=_cached(device, "gemm", constants["memory_share"]),
        row_passes=constants["row_passes"],
        units=device.sms,
        wave_rounding=common["wave_rounding"],
        least_waves=common["gemm_least_waves"],
        weight_bytes=form.weight_bytes,
        input_bytes=form.input_bytes,
    )


def walk_time_s(
    kernel: Attention,
    form: str,
    batch: Any,
    query_tokens: Any,
    context_tokens: Any,
    heads: Any,
    shape: LatentShape = DEEPSEEK,
    *,
    causal: bool = True,
    cached_tokens: Any = None,
) -> Any:
    """Return what `attention_time_s` does, for constants in units of the device."""
    cut, absorbed = kernel.structure, form == "absorbed"
    key, value = shape.key_and_value(form)
    sharing = heads if cut.packs_heads else 1
    rows = step("rows", query_tokens * sharing, "", "queries that share their keys")
    tile = smallest(cut.tile_rows, largest(rows, kernel.least_rows))
    blocks = batch * (heads / sharing) * ceil(rows / cut.tile_rows)
    blocks = step("blocks", blocks, "", "of query rows")
    # A causal block sees all that came before and, of the new tokens, those up to its own end.
    keys = context_tokens
    if causal:
        ends = smallest(query_tokens, largest(cut.tile_rows / sharing, 1))
        keys = step("keys", keys - (query_tokens - ends) / 2, "", "of a block, on average")
    splits: Any = 1
    if cut.splits == "fixed":
        splits = kernel.most_splits
    elif cut.splits == "filled":
        most = smallest(kernel.most_splits, context_tokens / kernel.split_tokens)
        splits = largest(1, smallest(kernel.units / blocks, most))
        splits = step("splits", splits, "", "blocks that a context is cut into")
    row_s = 2 * (key + value) / kernel.flop_per_s
    waves = step("waves", waves_of(blocks * splits / kernel.units, kernel.wave_rounding), "")
    each_s = kernel.start_s + keys / splits * tile * row_s
    longest_s = kernel.start_s + context_tokens / splits * tile * row_s
    compute_s = step("compute", largest(waves * each_s, longest_s), meaning="all blocks")
    alone_s = kernel.start_s + context_tokens / splits * kernel.key_s
    alone_s = step("alone", alone_s, meaning="one block's walk over its keys")
    tokens = batch * context_tokens if cached_tokens is None else cached_tokens
    elements = tokens * (shape.latent if absorbed else heads * (key + value))
    width = kernel.cache_bytes if absorbed else _WIDE_BYTES
    row_bytes = _WIDE_BYTES * batch * query_tokens * heads * (key + value)
    read_bytes = elements * width
    kept = elements * (width + 1) if kernel.widened_bytes else read_bytes
    byte_s = kernel.cached.byte_s(row_bytes + kept)
    memory_s = step("memory", read_bytes * byte_s, meaning="the cache, read once")
    busy_s = sqrt(compute_s * compute_s + alone_s * alone_s + memory_s * memory_s)
    time_s = kernel.floor_s + step("attention", busy_s, meaning="compute, latency and memory")
    time_s = time_s + kernel.row_passes * row_bytes * byte_s
    if cut.splits == "filled":
        time_s = time_s + kernel.split_s * (splits - 1)
    if kernel.widened_bytes:
        time_s = time_s + elements * kernel.widened_bytes * byte_s
    return time_s


def gemms_time_s(kernel: Gemms, gemms: Iterable[Gemm]) -> Any:
    """Return the seconds of some GEMMs one after the other, with the floor of their kernels."""
    parts = [(each, _bytes_of(kernel, each)) for each in gemms]
    byte_s = kernel.cached.byte_s(sum(moved for _, moved in parts))
    time_s = kernel.floor_s
    for gemm, moved in parts:
        busy_s, memory_s = _busy_s(kernel, gemm), moved * byte_s
        time_s = time_s + sqrt(busy_s * busy_s + memory_s * memory_s)
        inputs = _WIDE_BYTES * gemm.m * gemm.k * gemm.groups
        time_s = time_s + kernel.row_passes * inputs * byte_s
    return time_s


def projections_time_s(
    kernel: Gemms, form: str, tokens: Any, heads: Any, shape: LatentShape = DEEPSEEK
) -> Any:
    """Return the seconds of a module's GEMMs and small kernels, attention left out."""
    query = heads * (shape.nope + shape.rope)
    gemms = [
        Gemm(tokens, shape.q_lora + shape.latent, shape.hidden),
        Gemm(tokens, query, shape.q_lora),
        Gemm(tokens, shape.hidden, heads * shape.v_dim),
    ]
    if form == "absorbed":
        gemms += [absorption(tokens, heads, shape, is_query) for is_query in (True, False)]
    else:
        gemms.append(Gemm(tokens, heads * (shape.nope + shape.v_dim), shape.kv_lora))
    return gemms_time_s(kernel, gemms)


def absorption(tokens: Any, heads: Any, shape: LatentShape, is_query: Any) -> Gemm:
    """Return the absorption product of the queries, or of the values."""
    wide, narrow = shape.kv_lora, is_query * shape.nope + (1 - is_query) * shape.v_dim
    columns = is_query * wide + (1 - is_query) * narrow
    return Gemm(tokens, columns, wide + narrow - columns, heads)


def _bytes_of(kernel: Gemms, gemm: Gemm) -> Any:
    weights = kernel.weight_bytes * gemm.n * gemm.k
    rows = gemm.m * (kernel.input_bytes * gemm.k + _WIDE_BYTES * gemm.n)
    return gemm.groups * (weights + rows)


def _busy_s(kernel: Gemms, gemm: Gemm) -> Any:
    """Return the time of all tiles on all SMs, by the fastest tile height."""
    share = gemm.groups * ceil(gemm.n / kernel.tile_columns) / kernel.units
    times = []
    for height, step_s in zip(kernel.tile_rows, kernel.step_s, strict=True):
        waves = waves_of(ceil(gemm.m / height) * share, kernel.wave_rounding)
        # Fewer tiles than half the SMs are cut along k as well.
        waves = largest(waves, kernel.least_waves)
        times.append(waves * (step_s * gemm.k + kernel.start_s))
    return reduce(smallest, times)


def _cached(device: Device, whose: str, memory_share: Any) -> Cached:
    common = tuner_table("mla")["common"]
    share, per_clock = (common[f"{whose}_cache_{of}"] for of in ("share", "bytes_per_clock"))
    rate = memory_share * device.memory_bytes_per_s
    return Cached(rate, *cache_of(device, share, per_clock), common["cache_steepness"])


def warmed(kernel: Any, *, warm: bool) -> Any:
    """Return constants of a kernel that finds its tensors in the L2 cache, or does not."""
    return kernel if warm else kernel._replace(cached=kernel.cached._replace(cache_bytes=0.0))


def _check(**sizes: Any) -> None:
    for name, size in sizes.items():
        if anywhere(size <= 0):
            raise BadValueError(name, size, "above 0")

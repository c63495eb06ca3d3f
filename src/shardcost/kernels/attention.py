"""How long one fused attention kernel takes on one device.

A fused kernel (Dao, FlashAttention-2, arXiv:2307.08691) cuts its work into *blocks*, each a tile
of queries of one head that walks over its keys and values. Multiprocessors take blocks as they
become free, so two times bound it: all blocks spread evenly, and the longest block by itself. The
memory must meanwhile deliver queries, keys and values and take the output::

    compute = smooth maximum of (work of all blocks / multiprocessors, longest block)
    time    = launch + smooth maximum of (compute, bytes / achieved bandwidth)

The smooth maximum of x and y is (x^p + y^p)^(1/p): their sum for p = 1 (one after the other), the
larger of the two for p without bound (perfectly overlapped).

*Prefill* works by tiles of queries against tiles of keys on the matrix units, a triangle of them
where masked causally. Per pair of query and key it also takes one exponential, whose cost neither
head size nor number format changes: small heads run at a lower share of the peak (Shah et al.,
FlashAttention-3, arXiv:2407.08608).

*Decode* reads the whole cache for a few queries. Two kinds of kernel do that. A *grouped* one has a
block per sequence and KV head, which serves all its query heads as the padded rows of one tile. A
*vector* one has a block per query head and needs no tile: it serves models whose query heads all
have a KV head of their own, groups too large for a tile, and calls with too few blocks. Where
blocks do not fill the device, the context is split over more of them and the parts are reduced
(flash decoding). PyTorch's flash attention splits only below 0.8 blocks for each of two slots per
SM, into at most 128 parts (`num_splits_heuristic` of its flash_api.cpp); the kernel that does not
split has fewer loads in flight and reaches less of the memory's rate.

Such rules switch kernels by the number of blocks, and the kernel for few blocks may take longer
than the other one for many: TensorRT-LLM's vector kernel on an H100 was measured at 16.4 us for 4
sequences of 1,024 tokens, its grouped one at 12.8 us for 8. A kernel *alone* is priced so, as it is
dispatched. In a step, more sequences or longer contexts never take less: fewer blocks take at most
what the smallest call takes that the other kernel serves: a call could be padded to it.

Everything takes numbers or arrays that broadcast. Constants come from the catalog
(`shardcost.machine.kernels`), relative to the datasheet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from shardcost.arrays import ceil, choose, floor, largest, log2, smallest
from shardcost.checks import Count, Quantity, anywhere, is_array
from shardcost.cluster import Device
from shardcost.dtypes import BITS, canonical_dtype
from shardcost.errors import BadValueError
from shardcost.machine.kernels import KernelConstants
from shardcost.records import NamedTuple
from shardcost.traced import step

Constants: TypeAlias = Mapping[str, Any]

_FITTED_DIMS: Final = 2 * 128
"""Dimensions of a key and a value together at which shares of the peak are stated."""
_QUERY_BYTES: Final = 2
"""Of an element of queries and outputs, and of the caches that constants were fitted to."""
_TILES: Final = "tiles of queries of one head"
_PAIRS: Final = "queries and keys of one head in all tiles visited"
_LONGEST: Final = "keys of the longest tile"
_PAIR: Final = "one pair on one SM"
_FILLING: Final = "blocks from which on the kernel for many of them runs"


def prefill_time_s(
    on: KernelConstants,
    dtype: str,
    batch: Count,
    query_tokens: Count,
    context_tokens: Count,
    heads: Count,
    kv_heads: Count,
    head_dim: Count,
    *,
    causal: bool = True,
    window_tokens: Count | None = None,
    backward: bool = False,
    value_dim: Count | None = None,
) -> Quantity:
    """Return the seconds of attention from many new tokens to a context that ends with them.

    Args:
        on: The constants of the device that it runs on.
        dtype: Number format of queries, keys and values.
        batch: Sequences.
        query_tokens: New tokens of each.
        context_tokens: All tokens of each, the new ones included.
        heads: Query heads on this device.
        kv_heads: KV heads on this device.
        head_dim: Size of a query and of a key.
        causal: Whether a token sees only itself and those before it.
        window_tokens: How many of the latest tokens a token sees, if not all.
        backward: Time of the gradients instead: five products of matrices for the forward's two.
        value_dim: Size of a value, where it is not that of a key.

    Sixteen thousand tokens attend to themselves, on 32 heads of an H100::

        >>> from shardcost.machine import machine_of
        >>> h100 = machine_of("h100_sxm").kernels
        >>> time_s = prefill_time_s(h100, "bf16", 1, 16384, 16384, 32, 8, 128)
        >>> bool(0.5 < 2 * 32 * 16384**2 * 128 / time_s / h100.device.peak("bf16") < 0.6)
        True
    """
    _check(
        batch=batch,
        query_tokens=query_tokens,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window_tokens=window_tokens,
    )
    if anywhere(context_tokens < query_tokens):
        raise BadValueError("context_tokens", context_tokens, "at least query_tokens")
    section = on.section("attention", "prefill")
    table, device = section.constants, on.device
    if backward:
        table = {**table, **on.section("attention", "backward").constants}
    dims = head_dim + (head_dim if value_dim is None else value_dim)
    tiles = step("tiles", ceil(query_tokens / table["tile_queries"]), "", _TILES)
    before = context_tokens - query_tokens
    pairs, longest = _visited(
        tiles * table["tile_queries"], before, window_tokens, table, causal=causal
    )
    pairs, longest = step("pairs", pairs, "", _PAIRS), step("longest", longest, "", _LONGEST)
    pair_s = step("pair", _pair_s(device, dtype, dims, table), meaning=_PAIR)
    entries = heads * query_tokens + table["kv_weight"] * kv_heads * context_tokens
    moved_bytes = batch * entries * dims * (BITS[canonical_dtype(dtype)] / 8)
    if backward:
        pair_s = pair_s * (table["flop_ratio"] / table["rate_ratio"])
        moved_bytes = moved_bytes * table["bytes_ratio"]
    block_s = 1e-6 * table["block_us"]
    work_s = step("work", batch * heads * (tiles * block_s + pairs * pair_s) / device.sms)
    alone_s = table["alone_ratio"] * (block_s + table["tile_queries"] * longest * pair_s)
    alone_s = step("alone", alone_s, meaning="the longest block")
    compute_s = step("compute", _smooth_maximum(work_s, alone_s, table["tail_power"]))
    memory_s = step("memory", moved_bytes / (device.memory_bytes_per_s * table["memory_share"]))
    time_s = _smooth_maximum(compute_s, memory_s, table["overlap_power"])
    time_s = step("overlapped", time_s, meaning="compute and memory")
    time_s = 1e-6 * table["launch_us"] + time_s
    if section.residual is not None:
        time_s = time_s * section.measured_factor(batch * heads, query_tokens, context_tokens, dims)
    return _plain(time_s)


def decode_time_s(
    on: KernelConstants,
    dtype: str,
    batch: Count,
    context_tokens: Count,
    heads: Count,
    kv_heads: Count,
    head_dim: Count,
    *,
    new_tokens: Count = 1,
    window_tokens: Count | None = None,
    value_dim: Count | None = None,
    by_query_head: Any = False,
    cache_is_warm: bool = False,
    alone: bool = False,
    section: str = "decode",
) -> Quantity:
    """Return the seconds of attention from one or a few new tokens to a cached context.

    Latent attention, decoded in absorbed form, is one KV head of all query heads, whose values are
    the first part of its keys and are not read again: ``heads=128, kv_heads=1, head_dim=576,
    value_dim=512`` for DeepSeek-V3 (arXiv:2412.19437).

    Args:
        on: The constants of the device that it runs on.
        dtype: Number format of the cache.
        batch: Sequences.
        context_tokens: Tokens in the cache of each.
        heads: Query heads on this device.
        kv_heads: KV heads on this device.
        head_dim: Size of a query and of a key.
        new_tokens: Queries of each sequence.
        window_tokens: How many of the latest tokens a token sees, if not all.
        value_dim: Size of a value that is part of its key; without it, values are as large as keys
            and stored beside them.
        by_query_head: Whether each query head is a block of its own in any case: blocks that share
            a KV head find what the first of them read in the L2 cache.
        cache_is_warm: Whether the kernel ran on the very same cache just before, as in a
            benchmark's loop, so that what fits the L2 cache is found there. Between two layers of a
            model it is not.
        alone: Whether the kernel is timed by itself: as it is dispatched, though a call with more
            sequences may then take less. In a step it does not.
        section: Whose kernels: "decode" a serving engine's, "flash_decode" PyTorch's.

    Bound by memory, an H100 reads a gigabyte of cache at nine tenths of its bandwidth::

        >>> from shardcost.machine import machine_of
        >>> h100 = machine_of("h100_sxm").kernels
        >>> time_s = decode_time_s(h100, "bf16", 32, 8192, 32, 8, 128)
        >>> bool(0.8 < 32 * 8192 * 8 * 2 * 128 * 2 / time_s / h100.device.memory_bytes_per_s < 0.92)
        True
    """
    _check(
        batch=batch,
        context_tokens=context_tokens,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        new_tokens=new_tokens,
        window_tokens=window_tokens,
    )
    fitted = on.section("attention", section)
    table, device = fitted.constants, on.device
    seen = 1.0 * context_tokens
    if window_tokens is not None:
        seen = smallest(seen, window_tokens + new_tokens - 1)
    blocks = step("blocks", batch * kv_heads, "", "one for each sequence and KV head")
    rows = step("rows", heads / kv_heads * new_tokens, "", "queries of a block")
    elements = blocks * seen * (head_dim * 2 if value_dim is None else head_dim)
    elements = step("elements", elements, "", "of keys and values, each read once")
    dims = head_dim + (head_dim if value_dim is None else value_dim)
    io_bytes = _QUERY_BYTES * dims * blocks * rows
    width = BITS[canonical_dtype(dtype)] / 8

    tile = largest(table["tile_rows"], 2 ** ceil(log2(rows)))
    tile = step("tile", tile, "", "rows of a tile, padded")
    grouped = _Work(blocks, tile, seen, dims / _FITTED_DIMS, elements * width, io_bytes)
    kernel = table["grouped"]
    if value_dim is not None:  # such large heads leave a multiprocessor room for one block
        kernel = {**kernel, "slots_per_sm": 1}

    def grouped_s(work: _Work) -> Any:
        walk_s = _cache_walk_s(device, kernel, work, warm=cache_is_warm, alone=alone)
        # The matrix units bound a tile of very many rows, such as latent attention has.
        product_s = 2 * work.blocks * tile * seen * dims
        product_s = product_s / (_matrix_peak(device) * table["matrix_share"])
        product_s = step("matrix_units", product_s, meaning="tiles at the rate of the matrix units")
        time_s = largest(step("walk", walk_s, meaning="over the cache"), product_s)
        if value_dim is None and fitted.residual is not None:
            factor = fitted.measured_factor(work.blocks, heads / kv_heads, seen, dims)
            time_s = time_s * factor
        return time_s

    if value_dim is not None or "vector" not in table:
        return _plain(grouped_s(grouped))
    # The grouped kernel runs where tiles pay and blocks fill. Several new tokens have no vector
    # kernel: their rows take as many tiles as they need.
    unfit = (rows < table["least_rows"]) | ((rows > table["most_rows"]) & (new_tokens <= 1))
    unfit = unfit | by_query_head
    filling = table["least_fill"] * device.sms
    few = blocks * largest(1, floor(seen / table["fill_tokens"])) < filling
    if not anywhere(unfit | few):
        return _plain(grouped_s(grouped))
    # A block of the vector kernel is paced by its loads of the cache, in whatever format.
    size = grouped.size * width / _QUERY_BYTES
    vector = grouped._replace(blocks=blocks * rows, rows=0, size=size)
    vector_s = _cache_walk_s(device, table["vector"], vector, warm=cache_is_warm, alone=alone)
    if not alone and anywhere(few):
        filling = filling / largest(1, seen / table["fill_tokens"])
        filling = step("filling", filling, "", _FILLING)
        filled_s = grouped_s(grouped.with_blocks(filling))
        vector_s = choose(unfit | (vector_s < filled_s), vector_s, filled_s)
    if not is_array(unfit | few):
        return _plain(vector_s)
    return _plain(choose(unfit | few, vector_s, grouped_s(grouped)))


def _visited(
    rows: Any, before: Any, window_tokens: Any, table: Constants, *, causal: bool
) -> tuple[Any, Any]:
    """Return the pairs of query and key that the tiles of one head hold, and the longest row.

    A causal tile sees what came before and, of the new tokens, those up to its own end; on average
    half a tile of keys lies beyond the diagonal and is computed for nothing. A window cuts off all
    but the last keys; the tile's first query and its last one see windows a tile apart. `rows` are
    queries, padded to whole tiles; `before` are keys before the first query.
    """
    keys = table["tile_keys"]
    end = before + rows
    if not causal:
        longest = ceil(end / keys) * keys
        if window_tokens is not None:
            longest = smallest(longest, window_tokens + table["tile_queries"])
        return rows * longest, longest
    first, last = before + keys / 2, end + keys / 2
    pairs = rows * (first + last) / 2
    if window_tokens is None:
        return pairs, end
    limit = window_tokens + table["tile_queries"] + keys / 2
    cut = largest(last - limit, 0) ** 2 - largest(first - limit, 0) ** 2
    return pairs - cut / 2, smallest(end, limit)


def _pair_s(device: Device, dtype: str, dims: Any, table: Constants) -> Any:
    """Return the seconds that one multiprocessor spends on one pair of query and key.

    At the fitted head size and in 16 bits the two products take ``1 - exponential_part`` of it.
    """
    whole = 2 * _FITTED_DIMS * device.sms / (_matrix_peak(device) * table["peak_share"])
    faster = 1.0
    if _sixteen_bits(device):
        faster = device.peak(canonical_dtype(dtype)) / _matrix_peak(device)
    products = (1 - table["exponential_part"]) * dims / (_FITTED_DIMS * faster)
    return whole * (products + table["exponential_part"])


class _Work(NamedTuple):
    """What a decode kernel has to do."""

    blocks: Any
    """Independent pieces."""
    rows: Any
    """Padded query rows of each."""
    tokens: Any
    """Tokens that each walks over."""
    size: Any
    """Dimensions of a key and a value, relative to those at which costs are stated."""
    cache_bytes: Any
    """Keys and values of all pieces."""
    io_bytes: Any
    """Queries and outputs of all pieces."""

    def with_blocks(self, blocks: Any) -> _Work:
        """Return the work of another number of such pieces."""
        ratio = blocks / self.blocks
        return self._replace(
            blocks=blocks,
            cache_bytes=self.cache_bytes * ratio,
            io_bytes=self.io_bytes * ratio,
        )


def _cache_walk_s(device: Device, table: Constants, work: _Work, *, warm: bool, alone: bool) -> Any:
    """Return the seconds in which blocks walk over a cache, split where they are few.

    `warm` says that the L2 cache holds as much of it as fits, `alone` that this is no step.
    """
    time_s = _walk_s(device, table, work, warm=warm)
    if alone:
        return time_s
    filling = device.sms * table.get("unsplit_fill", table["slots_per_sm"])
    filling = step("filling", filling, "", _FILLING)
    few = work.blocks < filling
    if not anywhere(few):
        return time_s
    filled_s = _walk_s(device, table, work.with_blocks(filling), warm=warm)
    return choose(few & (filled_s < time_s), filled_s, time_s)


def _walk_s(device: Device, table: Constants, work: _Work, *, warm: bool) -> Any:
    """Return the same as kernels are dispatched."""
    units = device.sms
    block_s = 1e-6 * (table["block_us"] + table["row_us"] * work.rows * work.size)
    block_s = step("block", block_s, meaning="start and end of a block")
    token_s = step("token", 1e-9 * table["token_ns"] * work.size, meaning="one more token")
    most = largest(1, work.tokens / table["split_tokens"])
    splits = smallest(largest(units * table["slots_per_sm"] / work.blocks, 1), most)
    if "split_blocks" in table:  # vLLM's paged attention: all parts of a context, or none
        splits = choose(work.blocks <= table["split_blocks"], most, 1.0)
    share: Any = table["memory_share"]
    if "unsplit_fill" in table:  # PyTorch's: enough blocks run by a kernel that does not split
        unsplit = work.blocks >= table["unsplit_fill"] * units
        splits = choose(unsplit, 1.0, smallest(splits, table["most_splits"]))
        share = choose(unsplit, table["unsplit_share"], share)
    splits = step("splits", splits, "", "blocks that a context is cut into")
    work_s = step("work", work.blocks * (splits * block_s + work.tokens * token_s) / units)
    alone_s = table["alone_ratio"] * (block_s + work.tokens / splits * token_s)
    alone_s = step("alone", alone_s, meaning="one block")
    compute_s = step("compute", _smooth_maximum(work_s, alone_s, table["tail_power"]))
    split = 1 - 1 / splits
    memory_s = _memory_s(device, table, work, share, warm=warm)
    memory_s = memory_s * (1 + table["split_loss"] * split)
    memory_s = step("memory", memory_s)
    time_s = _smooth_maximum(compute_s, memory_s, table["overlap_power"])
    time_s = step("overlapped", time_s, meaning="compute and memory")
    added_us = table["launch_us"] + table["split_us"] * split
    if "part_us" in table:
        added_us = added_us + table["part_us"] * (splits - 1)
    return 1e-6 * added_us + time_s


def _memory_s(device: Device, table: Constants, work: _Work, share: Any, *, warm: bool) -> Any:
    """Return the seconds that the memory needs, or the L2 cache for what it holds of the KV cache.

    Past its size the L2 cache soon holds nothing of use: what is read next was evicted last.
    """
    cold_s = (work.io_bytes + work.cache_bytes) / device.memory_bytes_per_s / share
    if not warm or not device.l2_cache_bytes or "resident_share" not in table:
        return cold_s
    beyond = work.cache_bytes / device.l2_cache_bytes - table["resident_share"]
    held_bytes = work.cache_bytes * (1 - smallest(largest(beyond / table["resident_fade"], 0), 1))
    gain = 1 / share - 1 / largest(table["l2_ratio"], share)
    return cold_s - held_bytes / device.memory_bytes_per_s * gain


def _smooth_maximum(one: Any, other: Any, power: float) -> Any:
    """Return what two times amount to: from their sum (power 1) to the larger one.

    The larger is taken out first, so that no power of a small time vanishes.
    """
    larger = largest(one, other)
    return larger * (1 + (smallest(one, other) / larger) ** power) ** (1 / power)


def _matrix_peak(device: Device) -> Any:
    """Return the peak in 16 bits, which costs at the fitted head size are stated against.

    A device that multiplies nothing so narrow, such as a CPU, widens everything to 32 bits.
    """
    return device.peak(_sixteen_bits(device) or "fp32")


def _sixteen_bits(device: Device) -> str | None:
    """Return the 16-bit format that a device multiplies, if any."""
    return next((name for name in ("bf16", "fp16") if name in device.peak_flop_per_s), None)


def _check(**counts: Any) -> None:
    """Raise at a count below 1."""
    for name, value in counts.items():
        if value is not None and anywhere(value < 1):
            raise BadValueError(name, value, "at least 1")


def _plain(time_s: Any) -> Quantity:
    """Return an array without dimensions as a number."""
    plain: Quantity = time_s if is_array(time_s) else float(time_s)
    return plain

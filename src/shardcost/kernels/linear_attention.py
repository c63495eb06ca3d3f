"""Seconds of linear attention and state spaces on one device: convolution, scan and step.

Layers with a fixed state have three kernels between their projections. A short causal convolution
runs over queries, keys and values. In prefill and training a *scan* works through chunks of 64
tokens or more: the products inside chunks run for all chunks at once, and a chain of chunks passes
on the state of each head (delta rule: Yang et al. 2024, arXiv:2406.06484, gated: arXiv:2412.06464,
by channel: Kimi Team 2025, arXiv:2510.26692; Mamba-2: Dao & Gu 2024, arXiv:2405.21060; Lightning
Attention: Qin et al. 2024, arXiv:2401.04658). In decode a *step* reads and writes the state of
every head. All three are of one form::

    waves  = heads x sequences / (SMs x chains that one SM runs at once), at least 1
    work   = FLOPs (scan) or bytes (convolution, step) / (rate of an SM x SMs)
    memory = bytes that miss the L2 cache / the lesser of a share of the memory's bandwidth and
             what misses of all SMs together are on the way (bytes per clock)
    chain  = waves x links (chunks, or tokens of a step) x time of a link
    time   = floor + first tile + chain + root of squares of work and memory

A scan by one kernel hides work and memory behind the chain (root of all three squares), and every
wave of heads, one on an SM, starts anew.

One long sequence leaves most of the device idle: its time is the chain's, and grows with heads and
sequences only where these fill the SMs. The step moves the state twice; where drafted tokens are
verified, the state after each token is written. What fits in the L2 cache stays there from one
replay of a benchmark to the next (`warm`); the other layers of a model drive it out.

Everything takes numbers or arrays that broadcast. The constants are those of the catalog's table
``linear_attention`` (`shardcost.machine.linear_attention`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardcost.arrays import ceil, choose, largest, smallest, sqrt
from shardcost.catalog import tuner_table
from shardcost.checks import anywhere
from shardcost.cluster import Device
from shardcost.errors import BadValueError
from shardcost.kernels.cache import hits_per_miss, kept_bytes
from shardcost.kernels.tiles import waves_of
from shardcost.machine.kernels import KernelConstants, clock_hz, in_sms
from shardcost.machine.linear_attention import (
    PARTITIONED,
    KernelKind,
    cache_of,
    kind_of,
    linear_attention_section,
    start_of,
)
from shardcost.records import NamedTuple
from shardcost.recurrence import RULES, scan_flops
from shardcost.traced import step

_BYTES: Final = 2
"""Between kernels, tokens are in 16 bits."""
_WIDE_BYTES: Final = 4


class Sizes(NamedTuple):
    """A layer with a fixed state on one device, and the tokens of some sequences."""

    batch: Any
    """Sequences."""
    query_tokens: Any
    """Of each sequence."""
    k_heads: Any
    """Of a state space: groups."""
    k_dim: Any
    """Of a state space: state size."""
    v_heads: Any
    v_dim: Any
    conv_channels: Any = 0
    conv_width: Any = 4
    state_bytes: Any = 4
    """Of one element of the state."""

    @property
    def state(self) -> Any:
        """Bytes of the states of all sequences."""
        return self.batch * self.v_heads * self.k_dim * self.v_dim * self.state_bytes

    @property
    def token_bytes(self) -> Any:
        """Bytes of queries, keys, values and outputs of all tokens."""
        columns = 2 * (self.k_heads * self.k_dim + self.v_heads * self.v_dim)
        return _BYTES * self.batch * self.query_tokens * columns


class Work(NamedTuple):
    """What a kernel does, whatever the device."""

    worked: Any
    """FLOPs or bytes that SMs work through, whole tiles of them."""
    moved: Any
    """Bytes read and written."""
    footprint: Any
    """Different bytes among them: what the L2 cache would have to hold."""
    fill: Any = 0.0
    """Share of the first tile of tokens."""
    links: Any = 0.0
    """Chunks or tokens of a sequence that wait for the one before."""
    chains: Any = 1.0
    """Heads of all sequences: what runs side by side."""


class Kernel(NamedTuple):
    """The constants of a kernel in units of a device."""

    kind: KernelKind
    floor_s: Any
    ramp_s: Any
    """Of the first tile of tokens, once it is full; of a scan by one kernel, of every wave."""
    link_s: Any
    chains: Any
    """That run at once."""
    work_s: Any
    """Per FLOP or byte, over all SMs."""
    byte_s: Any
    """Per byte from memory."""
    cache_bytes: Any
    spilled: Any
    """Share of the values between the kernels of a scan that pass through memory."""
    kept: Any
    """Share of the convolution's last tokens that are written for each drafted token."""


def linear_attention_time_s(
    on: KernelConstants,
    kernel: str,
    op: str,
    part: str,
    phase: str,
    sizes: Sizes,
    *,
    library: str = "",
    version: str = "",
    warm: bool = True,
    backward: bool = False,
) -> Any:
    """Return the seconds of one part of a layer with a fixed state.

    >>> from shardcost.machine import machine_of
    >>> h100 = machine_of("h100_sxm").kernels
    >>> kernel, sizes = "chunk_gated_delta_rule", Sizes(1, 4096, 16, 128, 32, 128)
    >>> one = linear_attention_time_s(h100, kernel, "gdn", "scan", "prefill", sizes)
    >>> eight = sizes._replace(query_tokens=8 * 4096)
    >>> one < linear_attention_time_s(h100, kernel, "gdn", "scan", "prefill", eight) < 9 * one
    True

    Args:
        on: The constants of the device that it runs on.
        kernel: Name of the kernel, as engines call it, or of a family.
        op: The rule of the state: ``gdn``, ``kda``, ``mamba2`` or ``lightning``.
        part: ``conv``, ``scan``, ``step`` or ``conv+step``.
        phase: ``prefill``, ``decode`` or ``verify``.
        sizes: The layer and its tokens.
        library: The engine that runs it.
        version: The engine's version, where it tells one kernel of a name from another.
        warm: What fits in the L2 cache is there already, as in a replayed benchmark.
        backward: The pass of the gradients.
    """
    if anywhere(sizes.query_tokens <= 0) or anywhere(sizes.batch <= 0):
        raise BadValueError("tokens of linear attention", sizes.query_tokens, "above 0")
    own = _kernel(on, kernel, op, part, phase, library, version)
    work = work_of(own, op, part, phase, sizes, backward=backward)
    return kernel_time_s(own, work, warm=warm)


def kernel_of(
    device: Device, part: str, phase: str, constants: Mapping[str, Any], kind: KernelKind
) -> Kernel:
    """Return the constants of a kernel in units of a device."""
    common = tuner_table("linear_attention")["common"]
    device = in_sms(device)
    clock = clock_hz(device)
    known = {**start_of(part, phase), **constants}
    per_clock = known["flops_per_clock" if part == "scan" else "bytes_per_clock"]
    rate = clock * device.sms
    cache = kept_bytes(device, known.get("cache_share", 1.0))
    if cache_of(device) == PARTITIONED:
        cache = cache * common["partitioned_share"]
    byte_s = 1 / (known["memory_share"] * device.memory_bytes_per_s)
    if "miss_bytes_per_clock" in known:  # what an SM has on the way at a time
        byte_s = largest(byte_s, 1 / (known["miss_bytes_per_clock"] * rate))
    return Kernel(
        kind=kind,
        floor_s=kind.calls * known["floor_cycles"] / clock,
        ramp_s=kind.calls * known.get("ramp_cycles", 0.0) / clock,
        link_s=known.get("chain_cycles", 0.0) / clock,
        chains=(1.0 if kind.single else known.get("chains_per_sm", 1.0)) * device.sms,
        work_s=1 / (per_clock * rate),
        byte_s=byte_s,
        cache_bytes=cache,
        spilled=known.get("spilled", 0.0),
        kept=known.get("kept", 0.0),
    )


def least_bytes(part: str, s: Sizes, *, stepped: bool) -> Any:
    """Return what a part reads and writes forward if nothing between kernels goes to memory.

    Args:
        part: ``conv``, ``scan`` or ``step``.
        s: The layer and its tokens.
        stepped: Token by token, as in decode: the convolution's last tokens are kept.
    """
    if part != "conv":
        return s.token_bytes + 2 * s.state
    last = s.conv_width - 1 if stepped else 0
    return 2 * _BYTES * s.batch * s.conv_channels * (s.query_tokens + last)


def work_of(
    kernel: Kernel, op: str, part: str, phase: str, sizes: Sizes, *, backward: bool = False
) -> Work:
    """Return what a kernel does for a part of a layer."""
    if part == "conv":
        return _conv(kernel, sizes, stepped=phase != "prefill", backward=backward)
    if part == "scan":
        return _scan(kernel, op, sizes, backward=backward)
    if part == "step":
        return _step(kernel, sizes)
    one, other = _step(kernel, sizes), _conv(kernel, sizes, stepped=True)
    return one._replace(
        worked=one.worked + other.worked,
        moved=one.moved + other.moved,
        footprint=one.footprint + other.footprint,
    )


def _conv(kernel: Kernel, s: Sizes, *, stepped: bool, backward: bool = False) -> Work:
    """Return the work of the causal convolution and its activation.

    Every channel of every token is read and written. Token by token, the last ones of a sequence
    are read and written as well. The gradient reads input and gradient and writes one.
    """
    common = tuner_table("linear_attention")["common"]
    channels = _BYTES * s.batch * s.conv_channels
    if stepped:
        last = s.conv_width - 1
        kept = last * (1 + kernel.kept * (s.query_tokens - 1))
        moved = channels * (2 * s.query_tokens + last + kept)
        footprint = channels * (2 * s.query_tokens + kept)
        return Work(moved, moved, footprint)
    passes = 3 if backward else 2
    kind = kernel.kind
    tiles = kind.start_tokens + kind.tile_tokens * ceil(s.query_tokens / kind.tile_tokens)
    if kind.aligned_tokens > 1:  # rows that do not divide into vectors are read element by element
        vectors = s.query_tokens / kind.aligned_tokens
        tiles = tiles * choose(vectors == ceil(vectors), 1.0, common["unaligned"])
    moved = passes / 2 * least_bytes("conv", s, stepped=False)
    return Work(
        worked=passes * channels * tiles,
        moved=moved,
        footprint=moved * (1 + 1 / kind.calls) / 2,  # one call's output takes the other's place
        fill=smallest((s.query_tokens - 1) / common["ramp_tokens"], 1.0),
    )


def _step(kernel: Kernel, s: Sizes) -> Work:
    """Return the work of the recurrence: every state read, and written after each token."""
    tile = kernel.kind.tile_tokens
    written = tile * ceil(s.query_tokens / tile) if tile > 1 else s.query_tokens
    elements = s.batch * s.v_heads * s.k_dim * s.v_dim
    apart = kernel.kind.written_bytes
    out_bytes = apart or s.state_bytes
    moved = elements * (s.state_bytes + written * out_bytes) + s.token_bytes
    footprint = elements * ((s.state_bytes if apart else 0) + out_bytes * s.query_tokens)
    return Work(
        worked=_WIDE_BYTES * elements * (1 + written) + s.token_bytes,  # arithmetic is in fp32
        moved=moved,
        footprint=footprint + s.token_bytes,
        links=s.query_tokens - 1,
        chains=s.batch * s.v_heads,
    )


def _scan(kernel: Kernel, op: str, s: Sizes, *, backward: bool = False) -> Work:
    """Return the work of the chunked scan.

    Between its kernels, rows of each head (of the delta rule: new keys and values) and the state
    at each chunk's beginning are written and read.

    The gradient takes two products for each one of the forward pass, and reads what that read
    again beside the gradients.
    """
    table, rule = tuner_table("linear_attention"), RULES[op]
    chunk, tile = rule.chunk_tokens, table["common"]["scan_tile_tokens"]
    chunks = ceil(s.query_tokens / chunk)
    tokens = s.batch * s.query_tokens
    rows = s.k_dim + 2 * s.v_dim + chunk if rule.delta else s.v_dim
    rows = rows + rule.gate_columns * s.k_dim
    between = tokens * rows + s.batch * chunks * s.k_dim * s.v_dim
    spilled = kernel.spilled * 2 * _BYTES * s.v_heads * between
    moved = least_bytes("scan", s, stepped=False) + spilled
    padded = s.batch * tile * ceil(s.query_tokens / tile)
    flops = padded * scan_flops(op, s.k_heads, s.k_dim, s.v_heads, s.v_dim)
    times = 2 if backward else 1
    return Work(
        worked=times * table["work"].get(op, 1.0) * flops,
        moved=times * moved,
        footprint=moved / 2,
        fill=smallest((s.query_tokens - 1) / chunk, 1.0),
        links=times * chunks,
        chains=s.batch * s.v_heads,
    )


def kernel_time_s(kernel: Kernel, work: Work, *, warm: bool = True) -> Any:
    """Return the seconds of some work by a kernel."""
    common = tuner_table("linear_attention")["common"]
    single = kernel.kind.single
    rounding = 1.0 if single else common["wave_rounding"]
    waves = waves_of(work.chains / kernel.chains, rounding)
    waves = step("waves", largest(waves, 1.0), "", "of heads and sequences over the SMs")
    links_s = work.links * kernel.link_s + (kernel.ramp_s if single else 0.0)
    chain_s = step("chain", waves * links_s, meaning="one chunk or token after another")
    work_s = step("work", work.worked * kernel.work_s, meaning="on all SMs")
    memory_s = work.moved * kernel.byte_s
    if warm and anywhere(kernel.cache_bytes > 0):
        hits = hits_per_miss(kernel.cache_bytes, work.footprint, common["cache_sharpness"])
        memory_s = memory_s / (1 + hits)
    memory_s = step("memory", memory_s, meaning="bytes from memory")
    if single:
        squares = work_s * work_s + memory_s * memory_s + chain_s * chain_s
        return kernel.floor_s + sqrt(squares)
    start_s = step("start", kernel.floor_s + kernel.ramp_s * work.fill)
    return start_s + chain_s + sqrt(work_s * work_s + memory_s * memory_s)


def _kernel(
    on: KernelConstants, kernel: str, op: str, part: str, phase: str, library: str, version: str
) -> Kernel:
    key = ("linear attention", kernel, op, part, phase, library, version)
    if key not in on.memo:
        kind = kind_of(kernel, part, library, version)
        section = linear_attention_section(on, kind, op, part, phase)
        on.memo[key] = kernel_of(on.device, part, phase, section.constants, kind)
    compiled: Kernel = on.memo[key]
    return compiled

"""How near each kernel of a layer comes to what the device allows: the roofline.

A kernel that makes F operations and moves B bytes takes at least the longer of ``F / peak`` and
``B / memory rate``; its *roof* is F over that, the lower of the peak and of intensity ``F / B``
times the memory's rate (Williams, Waterman and Patterson: Roofline, an insightful visual
performance model for multicore architectures, CACM 52(4), 2009). What is left below the roof is
launches, tiles that do not fill the device, exponentials, and bandwidth that no kernel reaches.

Bytes are the least that must move: operands and result once, and for attention queries, output,
keys and values once, in decoding the cache as far as it is seen. Gradients of attention read the
output and its gradient besides and write three gradients: twice the forward pass. A pass makes so
few operations that they are not counted: its intensity is 0, and its share of the roof that of the
memory's rate, which is what any share on the slope is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from shardcost.cluster import Device
from shardcost.dtypes import BITS
from shardcost.estimate.pieces import KIND, PASSES, kind_of
from shardcost.estimate.price import state_sizes
from shardcost.estimate.result import Estimate, check_one_layout
from shardcost.kernels.gemm import gemm_bytes
from shardcost.program.assemble import Layers
from shardcost.program.operations import (
    AttentionCore,
    Collective,
    Elementwise,
    ExpertKernels,
    Gemm,
    LatentCore,
    Operation,
    StateKernel,
)
from shardcost.program.operations import (
    Kernel as KernelOperation,
)
from shardcost.records import dataclass

_QUERY_BITS: Final = 16
"""Of queries and outputs at least, however narrow the cache is."""


@dataclass(frozen=True)
class Kernel:
    """One operation of a layer, as often as it happens there in a pass."""

    name: str
    kind: str
    """``gemm``, ``attention`` or ``elementwise``."""
    during: str
    """The pass over the layer, one of `PASSES`."""
    count: float
    dtype: str | None
    """That of its arithmetic; None where that is not counted."""
    flops: float
    """Of all of them together, as bytes and seconds are."""
    moved_bytes: float
    time_s: float
    """As priced, the software's slowdown included."""
    peak_flop_per_s: float
    memory_bytes_per_s: float

    @property
    def roof_s(self) -> float:
        """The least that the device allows: of its arithmetic, or of its memory."""
        return max(self.flops / self.peak_flop_per_s, self.moved_bytes / self.memory_bytes_per_s)

    @property
    def limit(self) -> str:
        """What sets the roof: ``memory`` or ``compute``."""
        on_slope = self.moved_bytes / self.memory_bytes_per_s >= self.flops / self.peak_flop_per_s
        return "memory" if on_slope else "compute"

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.moved_bytes if self.moved_bytes else 0.0

    @property
    def flop_per_s(self) -> float:
        """The rate of computation that is reached."""
        return self.flops / self.time_s

    @property
    def bytes_per_s(self) -> float:
        """The rate that the memory delivers."""
        return self.moved_bytes / self.time_s

    @property
    def roof_flop_per_s(self) -> float:
        """The rate that the device allows at this intensity; 0 where nothing is counted."""
        return self.flops / self.roof_s if self.flops else 0.0

    @property
    def share_of_roof(self) -> float:
        """What of the roof is reached: seconds at the roof over seconds."""
        return self.roof_s / self.time_s


@dataclass(frozen=True)
class Roofline:
    """The kernels of the kind of layer that a model has most of, under the device's roof."""

    device: str
    dtype: str
    """Of the workload."""
    peak_flop_per_s: float
    """Of that number format, dense."""
    memory_bytes_per_s: float
    layers: int
    """Layers of this kind, in the whole model."""
    kernels: tuple[Kernel, ...]
    """As the layer goes through its passes; those alike in one pass as one."""

    @property
    def ridge_flop_per_byte(self) -> float:
        """The intensity at which the memory's rate and the peak allow the same."""
        return self.peak_flop_per_s / self.memory_bytes_per_s

    @property
    def time_s(self) -> float:
        """Seconds of compute of one layer, all passes."""
        return sum(each.time_s for each in self.kernels)

    @property
    def roof_s(self) -> float:
        """Seconds that they would take at the roof."""
        return sum(each.roof_s for each in self.kernels)

    @property
    def share_of_roof(self) -> float:
        """What of the roof the layer's compute reaches as a whole."""
        return self.roof_s / self.time_s

    @property
    def peaks(self) -> dict[str, float]:
        """The peak by number format, of the formats that the kernels compute in."""
        return {each.dtype: each.peak_flop_per_s for each in self.kernels if each.dtype is not None}


def roofline(estimate: Estimate) -> Roofline:
    """Return how near the kernels of one layer come to what the device allows.

    >>> from shardcost import Decode, Layout, estimate
    >>> step = Decode(batch=64, context_tokens=4096)
    >>> roof = roofline(estimate("llama3-8b", "h100_sxm", Layout(), step))
    >>> {each.limit for each in roof.kernels}
    {'memory'}

    Raises:
        BadTypeError: The estimate is of an array of layouts.
    """
    check_one_layout(estimate, "draw")
    device, dtype = estimate.cluster.device, estimate.product_dtype
    layers = estimate.program.usual_layers
    return Roofline(
        device=device.name,
        dtype=dtype,
        peak_flop_per_s=_peak(device, dtype),
        memory_bytes_per_s=float(device.memory_bytes_per_s),
        layers=int(layers.count),
        kernels=tuple(_kernels(estimate, layers)),
    )


def _kernels(estimate: Estimate, layers: Layers) -> Iterator[Kernel]:
    device = estimate.cluster.device
    piece = estimate.ledger.layers[estimate.program.layers.index(layers)]
    counts: dict[tuple[str, Operation, float], float] = {}
    for row in sorted(piece.rows, key=lambda row: PASSES.index(row.phase)):
        if not isinstance(row.op, Collective):
            alike = (row.phase, row.op._replace(count=1), float(row.seconds))
            counts[alike] = counts.get(alike, 0.0) + float(row.op.count)
    for (during, op, each_s), count in counts.items():
        time_s = count * each_s
        if isinstance(op, Collective) or not time_s:
            continue  # an elementwise kernel over nothing, such as a group of one has
        kind = kind_of(op)
        dtype, flops = None, 0.0
        if not isinstance(op, Elementwise) and kind != KIND[Elementwise]:
            dtype, flops = op.dtype, float(op.flops)
        yield Kernel(
            name=op.name,
            kind=kind,
            during=during,
            count=count,
            dtype=dtype,
            flops=count * flops,
            moved_bytes=count * float(moved_bytes(op)),
            time_s=time_s,
            peak_flop_per_s=_peak(device, dtype or estimate.product_dtype),
            memory_bytes_per_s=float(device.memory_bytes_per_s),
        )


def moved_bytes(op: KernelOperation) -> Any:
    """Return the least that one such operation reads from and writes to the device's memory.

    >>> moved_bytes(Gemm("up", 2, 3, 4, "bf16"))
    52.0
    """
    if isinstance(op, Elementwise):
        return op.bytes_moved
    if isinstance(op, Gemm):
        return gemm_bytes(op.dtype, op.m, op.n, op.k, op.batch)
    if isinstance(op, ExpertKernels):
        inner = 2 * op.width if op.gated else op.width
        if op.part == "small":  # the activation between the GEMMs, and the sum
            return op.rows * (inner + op.width + op.hidden) * _QUERY_BITS / 8
        each = op.rows / op.active
        return gemm_bytes(op.dtype, each, inner, op.hidden, op.active) + gemm_bytes(
            op.dtype, each, op.hidden, op.width, op.active
        )
    if isinstance(op, StateKernel):
        from shardcost.kernels.linear_attention import least_bytes

        return least_bytes(op.part, state_sizes(op), stepped=op.decode) * (2 if op.backward else 1)
    return _latent_bytes(op) if isinstance(op, LatentCore) else _attention_bytes(op)


def _latent_bytes(op: LatentCore) -> Any:
    """Return the bytes of queries, output and the cached vectors, or the heads made of them."""
    dims = op.key_dim + op.value_dim
    tokens = op.batch * op.context_tokens if op.cached_tokens is None else op.cached_tokens
    queries = op.batch * op.query_tokens * op.heads * dims * _QUERY_BITS / 8
    if op.form == "absorbed":
        return queries + tokens * op.key_dim * BITS[op.cache_dtype] / 8
    return queries + tokens * op.heads * dims * _QUERY_BITS / 8


def _attention_bytes(op: AttentionCore) -> Any:
    """Return the bytes of queries, output, keys and values, each once.

    A decode kernel whose values have a size of their own reads them as a part of the keys, as
    latent attention keeps them.
    """
    bits = BITS[op.dtype]
    seen = op.context_tokens
    if op.window_tokens is not None:
        seen = min(seen, op.window_tokens + op.query_tokens - 1)
    dims = op.head_dim + op.value_dim
    entry = op.head_dim if op.decode and op.value_dim != op.head_dim else dims
    queries = op.heads * op.query_tokens * dims * max(bits, _QUERY_BITS) / 8
    keys = op.kv_heads * seen * entry * bits / 8
    return op.batch * (queries + keys) * (2 if op.backward else 1)


def _peak(device: Device, dtype: str) -> float:
    """Return the dense peak of what the device multiplies where weights have a format."""
    return float(device.peak(device.multiplied(dtype).product))

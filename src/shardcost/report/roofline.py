"""The roofline of a layer's kernels (`shardcost.estimate.roofline`) as data."""

from __future__ import annotations

from typing import Any, Final

from shardcost.estimate.result import Estimate
from shardcost.estimate.roofline import Kernel, roofline

CONVENTION: Final = (
    "bytes: operands and result once, in decoding the cache as far as it is seen; a pass makes no"
    " operations that count, and its share is that of the memory's rate"
)


def as_data(found: Estimate) -> dict[str, Any]:
    """Return the roof of the device and every kernel of a layer under it, as plain data."""
    roof = roofline(found)
    return {
        "device": roof.device,
        "dtype": roof.dtype,
        "peak_flop_per_s": roof.peak_flop_per_s,
        "peaks_flop_per_s": roof.peaks,
        "memory_bytes_per_s": roof.memory_bytes_per_s,
        "ridge_flop_per_byte": roof.ridge_flop_per_byte,
        "layers": roof.layers,
        "time_s": roof.time_s,
        "share_of_roof": roof.share_of_roof,
        "convention": CONVENTION,
        "operations": [_as_data(each) for each in roof.kernels],
    }


def _as_data(kernel: Kernel) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "kind": kernel.kind,
        "pass": kernel.during,
        "count": kernel.count,
        "dtype": kernel.dtype,
        "flops": kernel.flops,
        "bytes": kernel.moved_bytes,
        "time_s": kernel.time_s,
        "roof_s": kernel.roof_s,
        "intensity": kernel.intensity,
        "flop_per_s": kernel.flop_per_s,
        "bytes_per_s": kernel.bytes_per_s,
        "roof_flop_per_s": kernel.roof_flop_per_s,
        "share_of_roof": kernel.share_of_roof,
        "limit": kernel.limit,
    }

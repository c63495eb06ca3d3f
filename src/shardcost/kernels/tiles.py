"""Tiles of GEMMs, and the waves in which SMs work through tiles or blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardcost.arrays import ceil, largest
from shardcost.cluster import Device
from shardcost.dtypes import WeightFormat
from shardcost.machine.kernels import clock_hz


def waves_of(filled: Any, rounding: Any) -> Any:
    """Return the waves that count, of tiles over SMs: a part of the last one's empty places too.

    >>> waves_of(2.5, 0.5)
    2.75
    """
    return filled + rounding * (ceil(filled) - filled)


def step_times_s(
    device: Device,
    form: WeightFormat,
    constants: Mapping[str, Any],
    heights: Sequence[float],
    columns: float,
    half_rows: float,
) -> tuple[Any, ...]:
    """Return the seconds of one tile per unit of k on one SM, by tile height.

    Either its arithmetic decides, slower by ``1 + half_rows / rows`` in short tiles, or its loads.

    Args:
        device: The device.
        form: The number format, as the device multiplies it.
        constants: `peak_share` and `load_bytes_per_clock` of the kernel.
        heights: Rows of a tile.
        columns: Columns of a tile.
        half_rows: Rows of a tile at which arithmetic runs at half the rate.
    """
    peak = constants["peak_share"] * device.peak(form.product) / device.sms
    load_rate = constants["load_bytes_per_clock"] * clock_hz(device)
    return tuple(
        largest(
            2 * (rows + half_rows) * columns / peak,
            (columns * form.weight_bytes + rows * form.input_bytes) / load_rate,
        )
        for rows in heights
    )

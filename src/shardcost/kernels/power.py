"""What the power of a board leaves of a kernel's rate, in runs that last.

A benchmark of one kernel is over before a board's regulator has lowered the clock; steps of
training and long prompts are not. A GEMM then takes at least as long as its arithmetic at the
rate that the board's power feeds (Choi, Bedard, Fowler and Vuduc, A roofline model of energy,
IPDPS 2013)::

    time = max(time at the boost clock, operations / (sustained share x peak))

Kernels that wait for memory or launches take as long at any clock. The rate at the limit hardly
depends on the shape: a GEMM that uses its cycles better runs at a lower clock. The share is that of
a number format, and grows with the watts per peak operation between devices of one architecture
(`KernelConstants.sustained_share`).

Attention needs its cycles, and the regulator is too slow to raise the clock for it between two
GEMMs: in a training step it runs at their clock::

    time = time at the boost clock x in_steps
"""

from __future__ import annotations

from typing import Any, Final

from shardcost.arrays import largest
from shardcost.checks import anywhere
from shardcost.machine.kernels import KernelConstants
from shardcost.traced import step

_BOOST: Final = "at the boost clock"


def in_steps_s(on: KernelConstants, name: str, time_s: Any) -> Any:
    """Return the seconds of attention between GEMMs at the power limit, from those in a burst.

    Args:
        on: The constants of the device and of the software's kernels.
        name: The section of its constants: ``prefill`` or ``backward``.
        time_s: Its seconds at the boost clock.
    """
    slower = on.in_steps(name)
    if not anywhere(slower != 1):
        return time_s
    return step("kernel", time_s, meaning=_BOOST) * slower


def sustained_time_s(on: KernelConstants, dtype: str, flops: Any, time_s: Any) -> Any:
    """Return the seconds of a kernel in a long run, from those at the boost clock.

    >>> from shardcost.kernels.gemm import gemm_time_s
    >>> from shardcost.machine import machine_of
    >>> h200 = machine_of("h200_sxm").kernels
    >>> large = gemm_time_s(h200, "bf16", 8192, 8192, 8192)
    >>> 1.05 < sustained_time_s(h200, "bf16", 2 * 8192**3, large) / large < 1.15
    True

    Args:
        on: The constants of the device that it runs on.
        dtype: The number format of its operands.
        flops: Its multiplications and additions.
        time_s: Its seconds at the boost clock.
    """
    product = on.device.multiplied(dtype).product
    share = on.sustained_share(product)
    if share is None:
        return time_s
    least_s = flops / (share * on.device.peak(product))
    time_s = step("kernel", time_s, meaning=_BOOST)
    return largest(time_s, step("power", least_s, meaning="arithmetic at the power limit"))

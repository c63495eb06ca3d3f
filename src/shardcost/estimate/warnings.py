"""What to mind about an estimate: extrapolation, inherited constants, and what would not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from shardcost.checks import anywhere, is_array
from shardcost.dtypes import weight_format
from shardcost.machine.kernels import KernelTable
from shardcost.program.operations import AttentionCore, Collective, Gemm

if TYPE_CHECKING:
    from shardcost.estimate.result import Estimate

_KERNELS: Final[Mapping[KernelTable, str]] = {
    "gemm": "GEMM",
    "attention": "attention",
    "elementwise": "elementwise",
    "experts": "expert kernel",
    "linear_attention": "linear attention",
    "mla": "latent attention",
}
"""What kernels of each table of constants are called."""


def warnings_of(estimate: Estimate) -> Iterator[str]:
    """Yield each warning once, the most important first."""
    memory, software = estimate.memory, estimate.software
    if not is_array(memory.peak_bytes):
        reason = memory.reason(estimate.cluster.device)
        if reason:
            yield reason
    yield from dict.fromkeys(_widened(estimate))
    yield from dict.fromkeys((*_inherited(estimate), *_extrapolated(estimate)))
    if software.fit is None:
        yield f"the host's share of {software.title} was not fitted to runs of it"


def _widened(estimate: Estimate) -> Iterator[str]:
    """Yield which formats of weights the device cannot multiply as they are."""
    device, work = estimate.cluster.device, estimate.workload
    for dtype in dict.fromkeys(work.part_dtype(part) for part in ("", "attention", "expert")):
        wanted, form = weight_format(dtype), device.multiplied(dtype)
        if form.input_bytes > wanted.input_bytes:
            yield (
                f"{device.name} has no {wanted.product} products: {dtype} weights are read as they"
                f" are and multiplied in {form.product}"
            )


def _inherited(estimate: Estimate) -> Iterator[str]:
    """Yield which kernels run by another device's constants: those that the prices used."""
    device = estimate.cluster.device
    for entry in estimate.entries:
        if isinstance(entry.op, Collective):
            continue
        table, section = estimate.ledger.prices.section(entry.op)
        if section.inherited_from is None:
            continue
        what = f"{_KERNELS[table]} measurements"
        if isinstance(entry.op, AttentionCore) and entry.op.backward:
            what = f"backward {what}"
        if isinstance(entry.op, Gemm) and weight_format(entry.op.dtype).narrow_inputs:
            what = f"{entry.op.dtype} {what}"
        yield f"no {what} on {device.name}; constants inherited from {section.inherited_from}"


def _extrapolated(estimate: Estimate) -> Iterator[str]:
    """Yield where collectives go beyond what was measured of their library or network."""
    prices = estimate.ledger.prices
    for entry in estimate.entries:
        op = entry.op
        if not isinstance(op, Collective) or not anywhere(op.ranks > 1):
            continue
        if anywhere(prices.sits_unevenly(op)):
            which = "some groups sit" if prices.arrays else f"group of {op.ranks} sits"
            paced = "the fullest node sets the pace (never measured)"
            yield f"{op.group} {which} unevenly on nodes: {paced}"
        if not prices.is_multimem(op):
            yield from prices.notes(op)

"""Caveats of an estimate: extrapolation, inherited constants, and what would not run.

Each has a reason, a `CaveatReason`, and the share of the time that rests on it: the seconds of the
operations priced so, over those of the step. What rests on less than `MINOR` of the time is a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, cast

from shardcost.catalog import names, software_named
from shardcost.checks import anywhere, is_array
from shardcost.dtypes import weight_format
from shardcost.machine.kernels import KernelTable
from shardcost.program.feasibility import without_effect
from shardcost.program.operations import AttentionCore, Collective, Gemm
from shardcost.records import NamedTuple
from shardcost.software import default_software
from shardcost.units import format_time, format_tokens
from shardcost.workload import Prefill, Train, Workload

if TYPE_CHECKING:
    from shardcost.estimate.result import Estimate
    from shardcost.workload import Decode

_KERNELS: Final[Mapping[KernelTable, str]] = {
    "gemm": "GEMM",
    "attention": "attention",
    "elementwise": "elementwise",
    "experts": "expert kernel",
    "linear_attention": "linear attention",
    "mla": "latent attention",
}
"""What kernels of each table of constants are called."""


MINOR: Final = 0.05
"""Caveats about a smaller share of the time are notes."""


class CaveatReason(StrEnum):
    """Why an estimate may be off: the one list of reasons."""

    DOES_NOT_FIT = "does_not_fit"
    """The layout needs more memory than a device has."""
    WITHOUT_EFFECT = "without_effect"
    """Something is set that changes nothing."""
    SOFTWARE_OF_ANOTHER_PHASE = "software_of_another_phase"
    """The software does not train, or does not serve."""
    SOFTWARE_OF_OTHER_VENDORS = "software_of_other_vendors"
    """The software does not run on these devices."""
    BEYOND_CONTEXT = "beyond_context"
    """Sequences are longer than the model was made for."""
    ONE_BATCH_IN_FLIGHT = "one_batch_in_flight"
    """One batch passes the stages of a pipeline, where an engine keeps one in each stage."""
    WIDENED_FORMAT = "widened_format"
    """The device does not multiply the weights as they are stored."""
    INHERITED_KERNELS = "inherited_kernels"
    """Kernels run by the constants of another device."""
    UNEVEN_GROUP = "uneven_group"
    """Ranks of a group sit unevenly on nodes."""
    COLLECTIVE_NOT_MEASURED = "collective_not_measured"
    """A collective goes beyond what was measured of its library or network."""
    SOFTWARE_NOT_FITTED = "software_not_fitted"
    """No run of the software was measured."""


class Caveat(NamedTuple):
    """One thing that an estimate rests on without a measurement of it."""

    reason: CaveatReason
    text: str
    share: float
    """Of the time, what rests on it; of many layouts, where it is most."""

    @property
    def minor(self) -> bool:
        """Whether little of the time rests on it."""
        return self.share < MINOR


_About = tuple[CaveatReason, str, Any]
"""A reason, its text, and the seconds of a step that it is about."""


def caveats_of(estimate: Estimate) -> Iterator[Caveat]:
    """Yield each caveat once: what would not run, then those on which most of the time rests."""
    memory = estimate.memory
    if not is_array(memory.peak_bytes):
        reason = memory.reason(estimate.cluster.device)
        if reason:
            yield Caveat(CaveatReason.DOES_NOT_FIT, reason, 1.0)
    yield from _unusable(estimate)
    seconds: dict[tuple[CaveatReason, str], Any] = {}
    for about in (_widened, _inherited, _extrapolated, _unfitted):
        for why, text, each in about(estimate):
            seconds[why, text] = seconds.get((why, text), 0.0) + each
    known = []
    for key, each in seconds.items():
        share = each / estimate.time_s
        most = share.max() if is_array(share) else share
        known.append(Caveat(*key, float(min(1.0, most))))
    yield from sorted(known, key=lambda caveat: -round(caveat.share, 6))


def _unusable(estimate: Estimate) -> Iterator[Caveat]:
    """Yield what would not run on these devices, or not with this model."""
    software, vendor = estimate.software, estimate.cluster.device.vendor
    phase = estimate.workload.phase
    for reason in without_effect(estimate.model, estimate.layout, estimate.workload):
        yield Caveat(CaveatReason.WITHOUT_EFFECT, f"{reason}: without effect", 1.0)
    if not software.runs(phase):
        what = "train" if phase == "train" else "serve"
        text = f"{software.name} does not {what}; {default_software(phase, [vendor])} does"
        yield Caveat(CaveatReason.SOFTWARE_OF_ANOTHER_PHASE, text, 1.0)
    if software.vendors and vendor not in software.vendors and vendor in _judged_vendors():
        usual = default_software(phase, [vendor])
        text = f"{software.name} does not run on {estimate.cluster.device.name}; {usual} does"
        yield Caveat(CaveatReason.SOFTWARE_OF_OTHER_VENDORS, text, 1.0)
    tokens, most = _sequence_tokens(estimate.workload), estimate.model.context_tokens
    if most is not None and anywhere(tokens > most):
        longest = int(tokens.max() if is_array(tokens) else tokens)
        name = estimate.model.name
        text = f"{longest:,} tokens in a sequence: the longest context of {name} is {most:,}"
        yield Caveat(CaveatReason.BEYOND_CONTEXT, text, 1.0)
    if not isinstance(estimate.workload, Train):
        yield from _one_batch(estimate, cast("Prefill | Decode", estimate.workload))


def _one_batch(estimate: Estimate, work: Prefill | Decode) -> Iterator[Caveat]:
    """Yield that a pipeline serves one batch at a time here, and what it does with one in each."""
    pp: Any = estimate.layout.pp
    if not anywhere(pp > 1):
        return
    stages = int(pp.max() if is_array(pp) else pp)
    idle = 1 - 1 / stages
    text = "one batch passes all stages before the next"
    if is_array(estimate.time_s) or isinstance(work, Prefill):
        what = "TTFT" if isinstance(work, Prefill) else "TPOT"
        text += f"; an engine keeps one in each stage, up to {stages} x the tokens/s at this {what}"
    else:
        from shardcost.estimate.step import estimate as estimate_of

        dp = estimate.layout.dp
        each = max(work.batch // (stages * dp), 1) * dp
        smaller = replace(work, batch=each)
        on = (estimate.model, estimate.machine, estimate.layout, smaller)
        shared = estimate_of(*on, software=estimate.software)
        rate = format_tokens(stages * shared.tokens_per_s)
        text += (
            f", each stage idle for {100 * idle:.0f} % of the time; an engine keeps one in each:"
            f" {stages} x {each:,} sequences take {format_time(shared.tpot_s)} per token"
            f" and make {rate} tokens/s"
        )
    yield Caveat(CaveatReason.ONE_BATCH_IN_FLIGHT, f"{text} (`shardcost load` simulates it)", idle)


def _sequence_tokens(work: Workload) -> Any:
    """Return the tokens of a sequence: trained, of a prompt with what it follows, or decoded."""
    if isinstance(work, Train):
        return work.sequence_length
    if isinstance(work, Prefill):
        return work.cached_tokens + work.prompt_tokens
    return cast("Decode", work).context_tokens


def _judged_vendors() -> set[str]:
    """Return the vendors of which the catalog says what runs; of others nobody knows."""
    return {vendor for name in names("software") for vendor in software_named(name).vendors}


def _unfitted(estimate: Estimate) -> Iterator[_About]:
    """Yield the software's own share, if no run of it was measured."""
    software, ledger = estimate.software, estimate.ledger
    if software.fit is None:
        text = f"the host's share of {software.title} was not fitted to runs of it"
        yield CaveatReason.SOFTWARE_NOT_FITTED, text, ledger.host_s + ledger.launch_wait_s


def _widened(estimate: Estimate) -> Iterator[_About]:
    """Yield which formats of weights the device cannot multiply as they are."""
    device, work = estimate.cluster.device, estimate.workload
    for dtype in dict.fromkeys(work.part_dtype(part) for part in ("", "attention", "expert")):
        wanted, form = weight_format(dtype), device.multiplied(dtype)
        if form.input_bytes > wanted.input_bytes:
            text = (
                f"{device.name} has no {wanted.product} GEMMs: {dtype} weights are read as they"
                f" are and multiplied in {form.product}"
            )
            of_it = (each for each in estimate.entries if getattr(each.op, "dtype", "") == dtype)
            total_s: Any = sum(each.total_s for each in of_it)
            yield CaveatReason.WIDENED_FORMAT, text, total_s


def _inherited(estimate: Estimate) -> Iterator[_About]:
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
        text = f"no {what} on {device.name}; constants inherited from {section.inherited_from}"
        yield CaveatReason.INHERITED_KERNELS, text, entry.total_s


def _extrapolated(estimate: Estimate) -> Iterator[_About]:
    """Yield where collectives go beyond what was measured of their library or network."""
    prices = estimate.ledger.prices
    for entry in estimate.entries:
        op = entry.op
        if not isinstance(op, Collective) or not anywhere(op.ranks > 1):
            continue
        if anywhere(prices.sits_unevenly(op)):
            which = "some groups sit" if prices.arrays else f"group of {op.ranks} sits"
            paced = "the fullest node sets the pace (never measured)"
            text = f"{op.group} {which} unevenly on nodes: {paced}"
            yield CaveatReason.UNEVEN_GROUP, text, entry.exposed_s
        if not prices.is_multimem(op):
            for text in prices.notes(op):
                yield CaveatReason.COLLECTIVE_NOT_MEASURED, text, entry.exposed_s

"""Why a step takes as long as it does: parts that are sums, or what a schedule leaves."""

from __future__ import annotations

from typing import Any, Final

from shardcost.arrays import largest
from shardcost.catalog.errors import CONFIDENCE_PCT
from shardcost.estimate.calls import Asked
from shardcost.estimate.interval import interval_of, residuals_of
from shardcost.estimate.result import BUBBLE, COMMUNICATION, HOST, Estimate
from shardcost.estimate.why.comm import exposed, summed
from shardcost.estimate.why.error import kernel_error, run_error, time_part, time_term
from shardcost.estimate.why.operation_words import section_of_call
from shardcost.estimate.why.reason import Part, Why, reason, total
from shardcost.program.operations import AttentionCore, Elementwise, Gemm
from shardcost.receipt import Term
from shardcost.schedule.step import StepTime
from shardcost.schedule.work import Stage, StepWork
from shardcost.units import format_time
from shardcost.workload import Train

_KINDS: Final = {"gemm": Gemm, "attention": AttentionCore, "elementwise": Elementwise}
_SCHEDULES: Final = {
    "1f1b": "Narayanan et al. 2019, arXiv:1806.03377",
    "interleaved": "Narayanan et al. 2021, arXiv:2104.04473",
    "zero_bubble": "Qi et al. 2023, arXiv:2401.10241",
}


def time(found: Estimate) -> Why:
    """Return why a step takes as long as it does."""
    parts = [Part(f"parts.{name}", name, float(each), "s") for name, each in found.parts_s.items()]
    train = isinstance(found.workload, Train)
    what = {"train": "an optimizer step", "prefill": "a prefill", "decode": "a step of decoding"}
    return total(
        "time_s",
        f"Time of {what[found.workload.phase]}",
        found.time_s,
        "s",
        parts,
        error=run_error(found, "s"),
        sources=[software_source(found)],
        words=step_in_words(step(found)[1]) if train else serving_in_words(found),
    )


def end_of_interval(found: Estimate, figure: str) -> Why:
    """Return why one end of the interval is where it is."""
    interval, like = interval_of(found), residuals_of(found)
    low = figure == "low_s"
    residual = like.low if low else like.high
    terms = [
        time_term(found),
        Term("residual", residual, "", "log of measured over predicted", like.like),
    ]
    side = "Lower" if low else "Upper"
    return reason(
        figure,
        f"{side} end of the {CONFIDENCE_PCT} % interval of the time",
        interval.low_s if low else interval.high_s,
        "s",
        "time * exp(residual)",
        terms,
        parts=[time_part(found)],
        error=run_error(found, "s"),
        words=f"of {like.like}, nine of ten measured times were within the interval",
    )


def step(found: Estimate) -> tuple[StepWork, StepTime]:
    """Return the work of a training step, and its time by parts."""
    return found.ledger.step_work, found.ledger.step_time


def step_in_words(each: StepTime) -> str:
    """Return how the parts of a training step add up."""
    added = " + ".join(
        format_time(seconds)
        for seconds in (
            each.compute_s,
            each.bubble_s,
            each.exposed_send_s,
            each.exposed_dp_s,
            each.optimizer_s,
            each.overhead_s,
        )
    )
    return (
        "compute of the busiest stage + bubble + exposed sends + exposed data parallelism"
        f" + optimizer + overhead = {added} = {format_time(each.step_s)}"
    )


def serving_in_words(found: Estimate) -> str:
    """Return how a pass adds up: layers, both ends, sends, overhead."""
    ledger, software = found.ledger, found.software
    ends = ledger.first.forward.device_s + ledger.last.forward.device_s
    added = {
        "embedding and head": ends,
        "(pp - 1) sends": ledger.forward_sends_s,
        "overhead": software.step_overhead_s,
        "sequences' host work": _sequences_s(found),
        "waits at collectives": _waits_s(found),
    }
    usual = ("embedding and head", "(pp - 1) sends", "overhead")
    shown = {name: each for name, each in added.items() if name in usual or each > _UNNOTICED_S}
    graph = software.launch == "graph"
    return (
        f"layers x layer + {' + '.join(shown)}"
        f" = {found.model.num_layers} x {format_time(ledger.layer[0].device_s)}"
        f" + {' + '.join(map(format_time, shown.values()))}"
        f"{'' if graph else ', at least what the host takes to start kernels'}"
        f" = {format_time(found.time_s)}"
    )


_UNNOTICED_S: Final = 1e-6
"""Less than this is what software without such work of the host's is written with."""


def _sequences_s(found: Estimate) -> Any:
    return found.software.host_per_sequence_s * found.program.setting.sequences


def _waits_s(found: Estimate) -> Any:
    return found.software.collective_wait_s * found.ledger.tensor_collectives


def part(asked: Asked, figure: str) -> Why:
    """Return why one part of the time is as long as it is."""
    name = figure.removeprefix("parts.")
    if name in _KINDS or name == "optimizer":
        return _compute(asked, figure, name)
    if name == BUBBLE:
        return _bubble(asked.found)
    if name == HOST:
        return _host(asked.found)
    return exposed(asked, figure, name.removesuffix(COMMUNICATION))


def _compute(asked: Asked, figure: str, kind: str) -> Why:
    """Return a kind of compute as the sum over its calls."""
    found = asked.found
    once = kind == "optimizer"
    chosen = [
        call
        for call in asked.calls.values()
        if isinstance(call.op, _KINDS["elementwise" if once else kind]) and call.once == once
    ]
    seconds = float(found.parts_s[kind])
    error = None
    if chosen:
        heaviest = max(chosen, key=lambda call: call.total_s)
        shelf, section, facts = section_of_call(asked.prices, heaviest)
        error = kernel_error(shelf, section, found.cluster.device, seconds, summed=True, **facts)
    place = found.ledger.pace.name
    title = f"{kind.capitalize()} in a step, {place}"
    return summed(figure, title, seconds, chosen, error)


def _bubble(found: Estimate) -> Why:
    """Return the bubble: the pipeline without communication, less the busiest stage's compute."""
    work, each = step(found)
    m = found.program.micro_batches
    terms = [
        Term("pipeline", float(each.compute_s + each.bubble_s), "s", "without communication"),
        Term("micro_batches", float(m), ""),
        Term("stage", float(each.compute_s / m), "s", "the busiest, for one micro-batch"),
    ]
    return reason(
        "parts.bubble",
        f"Waiting for other stages, {found.layout.schedule} schedule",
        found.parts_s[BUBBLE],
        "s",
        "pipeline - micro_batches * stage",
        terms,
        sources=[_SCHEDULES[found.layout.schedule]],
        words=pipeline_in_words(found, work, each),
    )


def pipeline_in_words(found: Estimate, work: StepWork, each: StepTime) -> str:
    """Return the schedule's formula for equal stages, and what the stages make of it."""
    pace = max((work.first, work.middle, work.last), key=_busy_s)
    if found.layout.pp == 1:
        pace = _joined(work.first, work.last)
    formula, numbers, equal = _equal_stages(found, pace)
    return (
        f"{found.layout.schedule} ({_SCHEDULES[found.layout.schedule]}), equal stages:"
        f" {formula} = {numbers} = {format_time(equal)}; with the stages as they are and their"
        f" sends {format_time(each.compute_s + each.bubble_s + each.exposed_send_s)}"
    )


def _busy_s(stage: Stage) -> Any:
    return _forward(stage) + _backward(stage) + _weight(stage)


def _forward(stage: Stage) -> Any:
    return stage.forward_s + stage.extra_forward_s


def _backward(stage: Stage) -> Any:
    return stage.backward_input_s + stage.extra_backward_input_s


def _weight(stage: Stage) -> Any:
    return stage.backward_weight_s + stage.extra_backward_weight_s


def _joined(first: Stage, last: Stage) -> Stage:
    """Return the only stage of a pipeline of one: the first one's layers, and both ends."""
    return Stage(
        first.forward_s,
        first.backward_input_s,
        first.backward_weight_s,
        first.extra_forward_s + last.extra_forward_s,
        first.extra_backward_input_s + last.extra_backward_input_s,
        first.extra_backward_weight_s + last.extra_backward_weight_s,
    )


def _equal_stages(found: Estimate, pace: Stage) -> tuple[str, str, Any]:
    """Return the schedule's formula for equal stages, with values put in, and its result."""
    layout, m = found.layout, found.program.micro_batches
    p, v = layout.pp, layout.virtual_stages
    f, b, w = _forward(pace), _backward(pace), _weight(pace)
    times = f"{format_time(f)} + {format_time(b + w)}"
    if layout.schedule == "zero_bubble":
        longest = largest(f + b - w, f, b)
        return (
            "m (f + b + w) + (p - 1) max(f + b - w, f, b)",
            (
                f"{m} x ({format_time(f)} + {format_time(b)} + {format_time(w)})"
                f" + {p - 1} x {format_time(longest)}"
            ),
            m * (f + b + w) + (p - 1) * longest,
        )
    if layout.schedule == "interleaved" and v > 1:
        return (
            "(m + (p - 1)/v) (f + b)",
            f"({m} + {p - 1}/{v}) x ({times})",
            (m + (p - 1) / v) * (f + b + w),
        )
    return "(m + p - 1) (f + b)", f"({m} + {p - 1}) x ({times})", (m + p - 1) * (f + b + w)


def _host(found: Estimate) -> Why:
    """Return what the host adds: its own work, and the kernels that it starts too slowly."""
    software = found.software
    terms = [Term("step_overhead", float(software.step_overhead_s), "s", "once a step")]
    if not isinstance(found.workload, Train):
        waits, each = found.ledger.tensor_collectives, found.program.setting.sequences
        terms += [
            Term("sequences", float(each), "", "that a replica serves"),
            Term("per_sequence", float(software.host_per_sequence_s), "s", "scheduling, sampling"),
            Term("collectives", float(waits), "", "of the tensor group in a pass"),
            Term("wait", float(software.collective_wait_s), "s", "for the slowest rank, at each"),
        ]
        expression = "step_overhead + sequences * per_sequence + collectives * wait + starting"
    else:
        expression = "step_overhead + starting"
    held_up = found.ledger.launch_wait_s
    meaning = (
        "kernels run from a graph, which the host does not hold up"
        if software.launch == "graph"
        else f"for kernels, {format_time(software.host_per_kernel_s)} each, where starting them one"
        " by one takes the host longer than they take the device"
    )
    terms.append(Term("starting", float(held_up), "s", meaning))
    return reason(
        f"parts.{HOST}",
        f"What the host of {software.title} adds",
        found.parts_s[HOST],
        "s",
        expression,
        terms,
        sources=[software_source(found)],
        words=f"{software.title}. Constants: {software.fit_text}",
    )


def software_source(found: Estimate) -> str:
    """Return what a software's constants were fitted to."""
    software = found.software
    return f"{software.title}: {software.fit_text}; choices: {software.source}"

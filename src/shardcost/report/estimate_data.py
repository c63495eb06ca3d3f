"""The views of one estimate as plain data: JSON of the command line and the page, and CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from shardcost.errors import UnknownNameError
from shardcost.estimate.interval import interval_of, ranges_of
from shardcost.estimate.messages import messages
from shardcost.estimate.result import BUBBLE, FLOP_CONVENTION, HOST, Estimate
from shardcost.memory.footprint import KINDS
from shardcost.report import interval
from shardcost.report.describe import as_data as noun_as_data
from shardcost.report.describe import attributes, number, plain, provenance_data
from shardcost.report.estimate import bytes_by_link

if TYPE_CHECKING:
    from shardcost.estimate.timeline.events import Drawing, Event
    from shardcost.search.advice import Advice
    from shardcost.search.steps import Step

CSV_HEAD: Final = ("figure", "value", "unit", "low", "high")
_UNITS: Final = (
    ("tflops_per_gpu", "TFLOP/s"),
    ("tflops_per_gpu_full_attention", "TFLOP/s"),
    ("tokens_per_s_per_gpu", "tokens/s/GPU"),
    ("tokens_per_s_per_user", "tokens/s"),
    ("tokens_per_s", "tokens/s"),
    ("_s", "s"),
    ("bytes", "bytes"),
    ("_j", "J"),
    ("flops", "FLOP"),
    ("flops_full_attention", "FLOP"),
)
"""How the name of a figure ends, and its unit; shares and counts have none."""
_SECONDS: Final = ("parts.", "compute.by_kind.")
_BYTES: Final = ("memory.by_kind.", "memory.stages.")
_LEFT_OUT: Final = ("intervals", "interval", "low_s", "high_s")
"""Data that have columns of their own."""
ROOFLINE_CONVENTION: Final = (
    "Bytes: each operand and the result once, and the KV cache as far as it is read. Elementwise"
    " kernels count no FLOP; their share is that of the memory bandwidth."
)


def as_data(estimate: Estimate, caveats: Sequence[str] = ()) -> dict[str, Any]:
    """Return the report as plain data."""
    network = estimate.cluster.network
    data = {
        "model": estimate.model.name,
        "parameters": estimate.model.parameters,
        "cluster": estimate.cluster.name,
        "network": None if network is None else network.name,
        "software": estimate.software.name,
        "gpus": estimate.devices,
        "layout": noun_as_data(estimate.layout),
        "workload": {"phase": estimate.workload.phase, **noun_as_data(estimate.workload)},
        "time_s": estimate.time_s,
        **interval.as_data(interval_of(estimate)),
        "memory_bytes": estimate.memory_bytes,
        **attributes(estimate, "tokens_per_s tokens_per_s_per_gpu mfu mfu_full_attention hfu"),
        **attributes(estimate, "tflops_per_gpu tflops_per_gpu_full_attention"),
        **attributes(estimate, "hardware_tflops_per_gpu"),
        "flop_convention": FLOP_CONVENTION,
        **attributes(estimate, "p99_step_s ttft_s tpot_s tokens_per_s_per_user energy_j"),
        "parts": dict(estimate.parts_s),
        "compute": {
            "total_s": sum(estimate.compute_s.values()),
            "by_kind": dict(estimate.compute_s),
            "model_flops": estimate.flops,
            "model_flops_full_attention": estimate.flops_full_attention,
            "hardware_flops": estimate.hardware_flops,
        },
        "comm": _comm_as_data(estimate),
        "memory": _memory_as_data(estimate),
        "intervals": {name: each._asdict() for name, each in ranges_of(estimate).items()},
        **caveats_as_data(estimate),
        "provenance": provenance_data(estimate.ledger.prices.machine),
        "notes": list(caveats),
    }
    return plain(data)


def caveats_as_data(estimate: Estimate) -> dict[str, Any]:
    """Return the texts of the warnings, and all caveats with their reason and share."""
    return {
        "warnings": [each.text for each in estimate.caveats if not each.minor],
        "caveats": [each._asdict() for each in estimate.caveats],
    }


def _comm_as_data(estimate: Estimate) -> dict[str, Any]:
    sent = estimate.traffic.by_group
    seconds = attributes(estimate, "total_s=comm_s exposed_s hidden_s")
    return {
        **{name: sum(by_group.values()) for name, by_group in seconds.items()},
        "share": estimate.comm_share,
        "bytes": sum(sent.values()),
        "by_group": {
            group: {name: one.get(group, 0.0) for name, one in (seconds | {"bytes": sent}).items()}
            for group in {**estimate.comm_s, **sent}
        },
        "by_link": {
            name: {"bytes": size, "utilisation": estimate.link_utilisation[name]}
            for name, size in bytes_by_link(estimate).items()
        },
        "ratios_per_layer": dict(estimate.ratios),
    }


def _memory_as_data(estimate: Estimate) -> dict[str, Any]:
    memory, device = estimate.memory, estimate.cluster.device
    worst, shown = str(memory.worst_stage), " ".join((*KINDS, "total", "moment"))
    return {
        "peak_bytes": memory.peak_bytes,
        "capacity_bytes": device.memory_bytes,
        "fits": memory.fits(device),
        "reason": memory.reason(device),
        "fullest_stage": worst,
        "moment": memory.stages[worst].moment,
        "host_bytes": memory.host_bytes,
        "engine_bytes": estimate.engine_bytes,
        "engine": estimate.engine_words,
        "by_kind": memory.by_kind(),
        "stages": {name: attributes(stage, shown) for name, stage in memory.stages.items()},
    }


def as_csv(estimate: Estimate) -> str:
    """Return every figure of an estimate as a line: name, value, unit and interval."""
    import csv
    from io import StringIO

    data = as_data(estimate)
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(CSV_HEAD)
    for name, value in _flat({k: v for k, v in data.items() if k not in _LEFT_OUT}):
        known = data["intervals"].get(name, {})
        is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t"))
        shown = f"'{value}" if is_formula else value  # to a spreadsheet; a name may be anything
        lines.writerow((name, shown, _unit(name, value), known.get("low"), known.get("high")))
    return text.getvalue()


def _flat(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested data with their paths, without those that are None."""
    if isinstance(data, Mapping | list):
        items = data.items() if isinstance(data, Mapping) else enumerate(data)
        for key, value in items:
            yield from _flat(value, f"{path}.{key}" if path else f"{key}")
    elif data is not None:
        yield path, data


def _unit(name: str, value: Any) -> str:
    if isinstance(value, str | bool):
        return ""
    if name.startswith(_SECONDS):
        return "s"
    if name.startswith(_BYTES):
        return "bytes"
    return next((unit for end, unit in _UNITS if name.endswith(end)), "")


def messages_as_data(estimate: Estimate) -> dict[str, Any]:
    """Return every collective of one step, the one that takes most time first."""
    listed = messages(estimate)
    whole = [{"size_bytes": number(one.size_bytes), "count": number(one.count)} for one in listed]
    rows = [asdict(one) | own for one, own in zip(listed, whole, strict=True)]
    return {"messages": rows, "layers": estimate.program.num_layers}


def roofline_as_data(estimate: Estimate) -> dict[str, Any]:
    """Return the roof of the device and every kernel of a layer under it."""
    from shardcost.estimate.roofline import roofline

    roof = roofline(estimate)
    return {
        **attributes(roof, "device dtype peak_flop_per_s peaks_flop_per_s=peaks"),
        **attributes(roof, "memory_bytes_per_s ridge_flop_per_byte layers time_s share_of_roof"),
        "convention": ROOFLINE_CONVENTION,
        "operations": [attributes(kernel, _KERNEL) for kernel in roof.kernels],
    }


_KERNEL: Final = (
    "name kind pass=during count dtype flops bytes=moved_bytes time_s roof_s intensity"
    " flop_per_s bytes_per_s roof_flop_per_s share_of_roof limit"
)


def drawing_of(estimate: Estimate, of: str = "step") -> Drawing:
    """Return the timeline of one step, or of one layer.

    Raises:
        UnknownNameError: `of` is neither ``step`` nor ``layer``.
        BadTypeError: The estimate is of an array of layouts.
    """
    from shardcost.estimate.timeline.layer import layer_timeline
    from shardcost.estimate.timeline.step import step_timeline

    views = {"step": step_timeline, "layer": layer_timeline}
    if of not in views:
        raise UnknownNameError("of", of, views)
    return views[of](estimate)


def timeline_as_data(estimate: Estimate, of: str = "step") -> dict[str, Any]:
    """Return a timeline; an event's stream is the index of one."""
    drawing = drawing_of(estimate, of)
    places = {(each.stage, each.stream): index for index, each in enumerate(drawing.streams)}
    shown = "name stream kind start_s end_s exposed group micro_batch chunk pass=passing"
    return {
        **attributes(drawing, "of title span_s"),
        "cut": drawing.cut or False,
        "break": drawing.gap and {**drawing.gap._asdict(), "words": drawing.gap.words},
        "streams": [each._asdict() for each in drawing.streams],
        "events": [
            attributes(event, shown)
            | {"stream": places[event.stage, event.stream], "why": _figure_of(event, estimate)}
            for event in drawing.events
        ],
        "totals": dict(drawing.totals),
    }


def _figure_of(event: Event, estimate: Estimate) -> str:
    """Return the figure whose explanation says most about an event."""
    if event.operation is not None:
        return f"op.{event.operation}"
    if event.group is not None:
        return f"comm.{event.group}.{'exposed_s' if event.exposed else 'hidden_s'}"
    part = {"idle": BUBBLE, "host": HOST}.get(event.kind, event.kind)
    return f"parts.{part}" if part in estimate.parts_s else "time_s"


def advice_as_data(advice: Advice) -> dict[str, Any]:
    """Return what each single step of each axis would bring, the limit, and the best change."""
    shown = "set=patch words time_s tokens_per_s_per_gpu faster_pct"
    steps = {axis: [_step_as_data(step) for step in row] for axis, row in advice.steps.items()}
    change = None if advice.change is None else attributes(advice.change, shown)
    return plain({"steps": steps, "limit": advice.limit._asdict(), "change": change})


def _step_as_data(step: Step) -> dict[str, Any]:
    outcome = step.outcome
    return {
        "value": step.value,
        **attributes(outcome, "possible fits"),
        "reason": outcome.reason and outcome.reason.message,
        "code": outcome.reason and outcome.reason.code,
        "time_s": outcome.time_s,
        **attributes(step, "tokens_per_s_per_gpu current"),
        "set": dict(step.patch),
        "along": list(step.along),
    }

"""The report on an estimate: where the time goes, what is sent, what is held, what to mind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from shardcost.estimate.interval import interval_of, ranges_of
from shardcost.estimate.result import COMMUNICATION, FLOP_CONVENTION, Estimate
from shardcost.memory import Memory
from shardcost.memory.footprint import KINDS
from shardcost.options import departures
from shardcost.report import interval
from shardcost.report.describe import as_data as noun_as_data
from shardcost.report.spark import SHADES, bar, stack
from shardcost.report.text import heading, paragraph, table, width, wrapped
from shardcost.units import (
    format_bytes,
    format_bytes_decimal,
    format_energy,
    format_percent,
    format_time,
    format_tokens,
)
from shardcost.workload import Decode, Prefill, Train, Workload

_BAR: Final = 16
"""Characters of the longest bar."""
_MEMORY_BAR: Final = 24
"""Characters that stand for all memory of a device."""
LABEL: Final = 10
"""Characters of the labels of lines."""
_NOTHING: Final = 1e-9
"""Parts below this share of the time are rounding and not shown."""
_TRIFLE: Final = 0.01
"""Kinds of memory below this share of the peak are shown together."""
_GLUE: Final = "\N{NO-BREAK SPACE}"
"""Between a number and its unit, which stay on one line."""
_BEFORE_UNIT: Final = re.compile(r"(?<=[0-9]) (?=[%A-Za-z])")
PHASES: Final = {"train": "Training", "prefill": "Prefill of", "decode": "Decoding with"}


def title(found: Estimate) -> str:
    """Return what was asked: phase, model, place and degrees."""
    network = found.cluster.network
    joined = f" ({network.name})" if network is not None else ""
    place = f"{found.devices:,} x {found.cluster.name}{joined}"
    asked = f"{PHASES[found.workload.phase]} {found.model.name} on {place}"
    return f"{asked}, {found.layout.short()}"


def details(found: Estimate) -> str:
    """Return software, the workload's sizes and what of the layout is not the default."""
    layout, work = found.layout, found.workload
    said = [found.software.name, sizes(work), work.dtype]
    if isinstance(work, Train):
        said.append(f"micro-batch {layout.micro_batch}")
        said += ["adapters"] * work.adapters
    return ", ".join([*said, *departures(layout).values()])


def as_text(
    found: Estimate,
    caveats: Sequence[str] = (),
    *,
    advised: Sequence[str] = (),
    explain: bool = False,
) -> str:
    """Return the report for a terminal, with the arithmetic if asked.

    Args:
        found: What is reported.
        caveats: What is to mind about a model's file.
        advised: Lines on what would help (`shardcost.report.advice.as_lines`).
        explain: Whether to show formulas, values and sources.
    """
    remarks = as_remarks(found.warnings, caveats)
    sections = [
        heading(paragraph(title(found), "  ")) + "\n  " + paragraph(details(found), "  "),
        "\n".join(labelled(label, text) for label, text in figures(found)),
        _parts_table(found),
        "\n".join((*_foundation_lines(found), *advised)),
    ]
    if remarks:
        sections.append("\n".join(paragraph(remark, "  ") for remark in remarks))
    if explain:
        from shardcost.estimate.explain import explanation

        sections.append(explanation(found, width()))
        sections.append(paragraph(interval.explained(interval_of(found)), "  "))
    return "\n\n".join(sections)


def as_remarks(warnings: Iterable[str], caveats: Sequence[str]) -> list[str]:
    """Return warnings, those on one subject together, and what is to mind about a model's file."""
    subjects: dict[str, list[str]] = {}
    for warning in dict.fromkeys(warnings):
        subject, _, rest = warning.partition(": ")
        subjects.setdefault(subject, []).append(rest)
    said = [": ".join(filter(None, (name, "; ".join(each)))) for name, each in subjects.items()]
    return [*(f"Warning: {each}" for each in said), *(f"Note: {each}" for each in caveats)]


def as_data(found: Estimate, caveats: Sequence[str] = ()) -> dict[str, Any]:
    """Return the report as plain data."""
    network = found.cluster.network
    data = {
        "model": found.model.name,
        "parameters": found.model.parameters,
        "cluster": found.cluster.name,
        "network": None if network is None else network.name,
        "software": found.software.name,
        "gpus": found.devices,
        "layout": noun_as_data(found.layout),
        "workload": {"phase": found.workload.phase, **noun_as_data(found.workload)},
        "time_s": found.time_s,
        **interval.as_data(interval_of(found)),
        "memory_bytes": found.memory_bytes,
        **_rates_as_data(found),
        "parts": dict(found.parts_s),
        "compute": {
            "total_s": sum(found.compute_s.values()),
            "by_kind": dict(found.compute_s),
            "model_flops": found.flops,
            "model_flops_full_attention": found.flops_full_attention,
            "hardware_flops": found.hardware_flops,
        },
        "comm": _comm_as_data(found),
        "memory": _memory_as_data(found),
        "intervals": {name: each._asdict() for name, each in ranges_of(found).items()},
        "warnings": list(found.warnings),
        "notes": list(caveats),
    }
    return plain(data)  # type: ignore[no-any-return]


def plain(value: Any) -> Any:
    """Return data with NumPy's numbers turned into Python's, all the way down."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.item() if hasattr(value, "item") else value


def _rates_as_data(found: Estimate) -> dict[str, Any]:
    return {
        "tokens_per_s": found.tokens_per_s,
        "tokens_per_s_per_gpu": found.tokens_per_s_per_gpu,
        "mfu": found.mfu,
        "mfu_full_attention": found.mfu_full_attention,
        "hfu": found.hfu,
        "flop_convention": FLOP_CONVENTION,
        "ttft_s": found.ttft_s,
        "tpot_s": found.tpot_s,
        "tokens_per_s_per_user": found.tokens_per_s_per_user,
        "energy_j": found.energy_j,
    }


def _comm_as_data(found: Estimate) -> dict[str, Any]:
    sent = found.traffic.by_group
    return {
        "total_s": sum(found.comm_s.values()),
        "exposed_s": sum(found.exposed_s.values()),
        "hidden_s": sum(found.hidden_s.values()),
        "share": found.comm_share,
        "bytes": sum(sent.values()),
        "by_group": {
            group: {
                "total_s": found.comm_s.get(group, 0.0),
                "exposed_s": found.exposed_s.get(group, 0.0),
                "hidden_s": found.hidden_s.get(group, 0.0),
                "bytes": sent.get(group, 0.0),
            }
            for group in {**found.comm_s, **sent}
        },
        "by_link": {
            name: {"bytes": size, "utilisation": found.link_utilisation[name]}
            for name, size in _bytes_by_link(found).items()
        },
        "ratios_per_layer": dict(found.ratios),
    }


def _bytes_by_link(found: Estimate) -> dict[str, Any]:
    inside, *outside = found.link_utilisation
    sizes = {inside: found.traffic.inside_bytes}
    return sizes | dict.fromkeys(outside, found.traffic.network_bytes)


def _memory_as_data(found: Estimate) -> dict[str, Any]:
    memory, device = found.memory, found.cluster.device
    worst = str(memory.worst_stage)
    return {
        "peak_bytes": memory.peak_bytes,
        "capacity_bytes": device.memory_bytes,
        "fits": memory.fits(device),
        "reason": memory.reason(device),
        "fullest_stage": worst,
        "moment": str(memory.stages[worst].moment),
        "by_kind": memory.by_kind(),
        "stages": {
            name: {**_kinds(held), "total": held.total, "moment": str(held.moment)}
            for name, held in memory.stages.items()
        },
    }


def _kinds(held: Any) -> dict[str, Any]:
    return {kind: getattr(held, kind) for kind in KINDS}


def sizes(work: Workload) -> str:
    """Return what a workload is made of: sequences and tokens."""
    if isinstance(work, Train):
        return f"batch {work.global_batch:,} x {work.sequence_length:,} tokens"
    if isinstance(work, Prefill):
        cached = f" after {work.cached_tokens:,} cached" if work.cached_tokens else ""
        return f"batch {work.batch:,} x {work.prompt_tokens:,} tokens{cached}"
    if not isinstance(work, Decode):
        raise TypeError(type(work).__name__)
    new = f", {work.new_tokens} tokens a step" if work.new_tokens != 1 else ""
    return f"batch {work.batch:,}, {work.context_tokens:,} tokens of context each{new}"


def figures(found: Estimate) -> Iterator[tuple[str, str]]:
    """Yield the figures that the whole is judged by."""
    per_gpu = f"{format_tokens(found.tokens_per_s_per_gpu)} tokens/s/GPU"
    work = found.workload
    name = {Train: "step", Prefill: "TTFT", Decode: "TPOT"}[type(work)]
    said = [format_time(found.time_s), f"{format_tokens(found.tokens_per_s)} tokens/s", per_gpu]
    if isinstance(work, Decode):
        said[0] = format_time(found.tpot_s)
        said.append(f"{format_tokens(found.tokens_per_s_per_user)} tokens/s/user")
        if work.new_tokens != 1:
            said.insert(1, f"step {format_time(found.time_s)}")
    yield name, ", ".join(said)
    yield "interval", interval.in_short(interval_of(found))
    yield (
        "MFU",
        (
            f"{format_percent(found.mfu)} of dense {work.dtype} peak, causal pairs"
            f" ({format_percent(found.mfu_full_attention)} all pairs),"
            f" HFU {format_percent(found.hfu)}"
        ),
    )
    if found.energy_j is not None:
        watts = f"{found.cluster.device.power_w:g} W"
        yield (
            "energy",
            f"at most {format_energy(found.energy_j)}, all boards at their rated {watts}",
        )


class PartOfTime(NamedTuple):
    """A part of the time, as it is shown."""

    name: str
    seconds: float
    share: float
    """Of the time."""
    hidden_s: float
    """Of its communication, what something hides."""
    sent_bytes: float

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """Name, time, share, what is hidden and what is sent; empty where there is nothing."""
        return (
            self.name,
            format_time(self.seconds),
            format_percent(self.share),
            format_time(self.hidden_s) if self.hidden_s else "",
            format_bytes_decimal(self.sent_bytes) if self.sent_bytes else "",
        )


PARTS_HEAD: Final = ("part", "time", "share", "hidden", "sent")


def parts(found: Estimate) -> list[PartOfTime]:
    """Return the parts of the time that are more than rounding."""
    sent = found.traffic.by_group
    shown = []
    for name, seconds in found.parts_s.items():
        group = name.removesuffix(COMMUNICATION) if name.endswith(COMMUNICATION) else None
        hidden = 0.0 if group is None else found.hidden_s.get(group, 0.0)
        size = 0.0 if group is None else sent.get(group, 0.0)
        if max(abs(seconds), hidden) >= _NOTHING * found.time_s or size:
            share = float(seconds / found.time_s)
            shown.append(PartOfTime(name, float(seconds), share, float(hidden), float(size)))
    return shown


def _parts_table(found: Estimate) -> str:
    shown = parts(found)
    most = max(each.seconds for each in shown)
    rows = [(*each.cells, bar(each.seconds / most, _BAR)) for each in shown]
    return table((*PARTS_HEAD, ""), rows, right="1234")


def _foundation_lines(found: Estimate) -> Iterator[str]:
    """Yield what stands behind the time, and a bar of the memory below its line."""
    for label, text in foundations(found):
        yield labelled(label, text)
    yield from _memory_bar(found)


def _memory_bar(found: Estimate) -> Iterator[str]:
    """Yield what the fullest rank holds as a bar as long as the device has memory, by kind."""
    capacity = float(found.cluster.device.memory_bytes)
    kinds = held(found.memory)
    if len(kinds) > len(SHADES):
        last = len(SHADES) - 1
        kinds = [*kinds[:last], ("rest", sum(size for _, size in kinds[last:]))]
    drawn = stack([float(size) / capacity for _, size in kinds], _MEMORY_BAR)
    names = (f"{mark} {kind}" for mark, (kind, _) in zip(drawn.marks, kinds, strict=True))
    yield labelled("", " ".join((drawn.text, *(name.replace(" ", _GLUE) for name in names))))


def foundations(found: Estimate) -> Iterator[tuple[str, str]]:
    """Yield what stands behind the time: links, ratios, memory."""
    if found.devices > 1:
        sizes = _bytes_by_link(found)
        used = (
            f"{name} {format_bytes_decimal(sizes[name])} ({format_percent(share)} used)"
            for name, share in found.link_utilisation.items()
        )
        yield "links", ", ".join(used)
        ratios = ", ".join(f"{phase} {ratio:.3g}" for phase, ratio in found.ratios.items())
        yield "comm/comp", f"{ratios} s/s in one layer, hidden or not"
    memory, device = found.memory, found.cluster.device
    worst = str(memory.worst_stage)
    kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in held(memory))
    where = f", {worst} stage" if len(memory.stages) > 1 else ""
    when = f", {memory.stages[worst].moment}" if isinstance(found.workload, Train) else ""
    share = format_percent(memory.peak_bytes / device.memory_bytes)
    yield (
        "memory",
        (
            f"{format_bytes(memory.peak_bytes)} of {format_bytes(device.memory_bytes)} ({share})"
            f"{where}{when}: {kinds}"
        ),
    )


def held(memory: Memory) -> list[tuple[str, float]]:
    """Return what fills the fullest rank, largest first; trifles together."""
    kinds = sorted(memory.by_kind().items(), key=lambda item: -item[1])
    counted = {kind: size for kind, size in kinds if size > _TRIFLE * memory.peak_bytes}
    rest = memory.peak_bytes - sum(counted.values())
    listed = [(kind.replace("_", " "), size) for kind, size in counted.items()]
    return [*listed, *([("other", rest)] if rest > 0 else [])]


def labelled(label: str, text: str) -> str:
    """Return a text beside its label, wrapped, no number apart from its unit."""
    lines = wrapped(_BEFORE_UNIT.sub(_GLUE, text), width() - LABEL)
    return f"{label:<{LABEL}}" + ("\n" + " " * LABEL).join(lines).replace(_GLUE, " ")

"""The report on one layout for a terminal: time by part, traffic, memory, limit, warnings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from shardcost.estimate.interval import interval_of
from shardcost.estimate.result import COMMUNICATION, Estimate, part_name
from shardcost.estimate.warnings import MINOR, Caveat
from shardcost.machine import provenance
from shardcost.memory import Memory
from shardcost.options import departures
from shardcost.records import NamedTuple
from shardcost.report import interval
from shardcost.report.text import (
    SHADES,
    bar,
    heading,
    labelled,
    name_of,
    paragraph,
    paragraphs,
    stack,
    table,
    width,
)
from shardcost.units import (
    format_bytes,
    format_bytes_decimal,
    format_energy,
    format_percent,
    format_time,
    format_tokens,
)
from shardcost.workload import Decode, Prefill, Train, Workload

if TYPE_CHECKING:
    from shardcost.goodput.run import TrainingRun
    from shardcost.search.advice import Advice

_BAR: Final = 16
"""Characters of the longest bar."""
_MEMORY_BAR: Final = 24
"""Characters that stand for all memory of a device."""
_ROUNDING: Final = 1e-9
"""Parts below this share of the time are not shown."""
_SMALL: Final = 0.01
"""Kinds of memory below this share of the peak are shown together."""
_GLUE: Final = "\N{NO-BREAK SPACE}"
"""Keeps a mark of the memory bar with its name."""
_EXTRAPOLATED: Final = "; extrapolated"
_NO_MEASUREMENTS: Final = re.compile(r"no ((?:\w+ )?\w+) measurements ")
"""Begins a warning about a kind of kernel or a collective."""
PHASES: Final = {"train": "Training", "prefill": "Prefill of", "decode": "Decoding with"}
PARTS_HEAD: Final = ("part", "time", "share", "hidden", "sent")


def title(estimate: Estimate) -> str:
    """Return phase, model, machine and degrees in one line."""
    network = estimate.cluster.network
    joined = f" ({network.name})" if network is not None else ""
    place = f"{estimate.devices:,} x {estimate.cluster.name}{joined}"
    what = f"{PHASES[estimate.workload.phase]} {estimate.model.name}"
    return f"{what} on {place}, {estimate.layout.short()}"


def details(estimate: Estimate) -> str:
    """Return software, sizes of the workload, and the layout's choices beyond the defaults."""
    layout, work = estimate.layout, estimate.workload
    words = [estimate.software.name, sizes(work), work.formats_text]
    if isinstance(work, Train):
        words.append(f"micro-batch {layout.micro_batch}")
        if work.adapters:
            words.append(f"adapters of rank {work.adapter_rank} ({work.adapter_targets})")
    return ", ".join([*words, *departures(layout).values()])


def sizes(work: Workload) -> str:
    """Return the sequences and tokens of a workload."""
    if isinstance(work, Train):
        return f"batch {work.global_batch:,} x {work.sequence_length:,} tokens"
    if isinstance(work, Prefill):
        cached = f" after {work.cached_tokens:,} cached" if work.cached_tokens else ""
        return f"batch {work.batch:,} x {work.prompt_tokens:,} tokens{cached}"
    if not isinstance(work, Decode):
        raise TypeError(type(work).__name__)
    new = f", {work.new_tokens} tokens per step" if work.new_tokens != 1 else ""
    if work.draft_tokens:
        kept = f"{work.kept_tokens:.3g} of {work.query_tokens}"
        new = f", {kept} tokens kept per step ({format_percent(work.acceptance)} of drafts)"
    return f"batch {work.batch:,}, {work.context_tokens:,} tokens of context each{new}"


def as_text(
    estimate: Estimate,
    caveats: Sequence[str] = (),
    *,
    advice: Advice | None = None,
    run: TrainingRun | None = None,
    explain: bool = False,
    notes: bool = False,
) -> str:
    """Return the report for a terminal.

    Args:
        estimate: One layout.
        caveats: Of the model's file.
        advice: What limits the layout and which change would help most.
        run: The whole training run that the step is of.
        explain: Whether to show formulas, values and sources.
        notes: Whether to show caveats about little of the time.
    """
    shown = parts(estimate)
    longest = max(each.seconds for each in shown)
    rows = [(*each.cells, bar(each.seconds / longest, _BAR)) for each in shown]
    lines = [*foundations(estimate), *([] if advice is None else sentences(advice, short=True))]
    remarks = as_remarks(estimate.caveats, caveats, every=notes)
    whole = [*figures(estimate)]
    if run is not None:
        from shardcost.report.run import lines as lines_of_run

        whole += lines_of_run(run)
    sections = [
        heading(paragraph(title(estimate), "  ")) + "\n  " + paragraph(details(estimate), "  "),
        "\n".join(labelled(label, text) for label, text in whole),
        table((*PARTS_HEAD, ""), rows, right="1234"),
        "\n".join(
            labelled(label, text) + (_memory_bar(estimate) if label == "memory" else "")
            for label, text in lines
        ),
    ]
    if remarks:
        sections.append(paragraphs(remarks))
    if explain:
        sections += explained(estimate)
    return "\n\n".join(sections)


def explained(estimate: Estimate) -> list[str]:
    """Return formulas, values and sources behind an estimate, and what its interval rests on."""
    from shardcost.estimate.explain import explanation

    rests_on = paragraph(interval.explained(interval_of(estimate)), "  ")
    return [explanation(estimate, width()), rests_on]


def as_remarks(
    caveats: Iterable[Caveat], of_file: Sequence[str] = (), *, every: bool = False
) -> list[str]:
    """Return warnings, then notes: caveats about little of the time, and those of a model's file.

    Warnings about extrapolation are merged into one line.

    Args:
        caveats: Of estimates; of one text, that with the largest share counts.
        of_file: Of the model's file.
        every: Whether to show notes about little of the time; else they are counted.
    """
    largest: dict[str, Caveat] = {}
    for each in caveats:
        if each.text not in largest or each.share > largest[each.text].share:
            largest[each.text] = each
    minor = [each.text for each in largest.values() if each.minor]
    remarks = list(_merged("Warning", [text for text in largest if text not in minor]))
    if every:
        remarks += _merged("Note", minor)
    remarks += [f"Note: {text}" for text in of_file]
    if minor and not every:
        notes = "1 further note" if len(minor) == 1 else f"{len(minor)} further notes"
        remarks.append(f"{notes} below {100 * MINOR:g} % of the time: --notes")
    return remarks


def _merged(label: str, texts: Sequence[str]) -> Iterator[str]:
    """Yield warnings, those that name kinds of one thing as one, extrapolations as the last."""
    named: dict[str, list[str]] = {}
    for text in texts:
        about = _NO_MEASUREMENTS.match(text)
        names = named.setdefault(text[about.end() :] if about else text, [])
        names += [about[1]] if about else []
    whole = [
        f"no {', '.join(names)} measurements {rest}" if names else rest
        for rest, names in named.items()
    ]
    beyond = [each.removesuffix(_EXTRAPOLATED) for each in whole if each.endswith(_EXTRAPOLATED)]
    yield from (f"{label}: {each}" for each in whole if not each.endswith(_EXTRAPOLATED))
    if beyond:
        yield f"{label}: extrapolated: {'; '.join(beyond)}"


def figures(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """Yield the headline figures, each under its label."""
    work = estimate.workload
    words = [
        format_time(estimate.time_s),
        f"{format_tokens(estimate.tokens_per_s)} tokens/s",
        f"{format_tokens(estimate.tokens_per_s_per_gpu)} tokens/s/GPU",
    ]
    if isinstance(work, Decode):
        words[0] = format_time(estimate.tpot_s)
        words.append(f"{format_tokens(estimate.tokens_per_s_per_user)} tokens/s/user")
        if work.query_tokens != 1:
            words.insert(1, f"step {format_time(estimate.time_s)}")
    yield {Train: "step", Prefill: "TTFT", Decode: "TPOT"}[type(work)], ", ".join(words)
    yield "interval", interval.in_full(interval_of(estimate))
    full = f"({format_percent(estimate.mfu_full_attention)} counting full attention)"
    mfu = f"{format_percent(estimate.mfu)} of dense {estimate.product_dtype} peak {full}"
    yield "MFU", f"{mfu}, HFU {format_percent(estimate.hfu)}"
    if isinstance(work, Train):
        full = f"({estimate.tflops_per_gpu_full_attention:.1f} counting full attention)"
        made = f"hardware {estimate.hardware_tflops_per_gpu:.1f}"
        yield "TFLOP/s", f"{estimate.tflops_per_gpu:.1f} per GPU {full}, {made}"
    if estimate.energy_j is not None:
        rated = f"every GPU at its rated {estimate.cluster.device.power_w:g} W"
        yield "energy", f"at most {format_energy(estimate.energy_j)}, {rated}"


class PartOfTime(NamedTuple):
    """A part of the time, as it is shown."""

    key: str
    seconds: float
    share: float
    """Of the time."""
    hidden_s: float
    """Of its communication, what is hidden behind compute."""
    sent_bytes: float

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """Name, time, share, hidden time and bytes sent; empty where there is nothing."""
        return (
            part_name(self.key),
            format_time(self.seconds),
            format_percent(self.share),
            format_time(self.hidden_s) if self.hidden_s else "",
            format_bytes_decimal(self.sent_bytes) if self.sent_bytes else "",
        )


def parts(estimate: Estimate) -> list[PartOfTime]:
    """Return the parts of the time that are more than rounding."""
    sent = estimate.traffic.by_group
    shown = []
    for name, seconds in estimate.parts_s.items():
        group = name.removesuffix(COMMUNICATION) if name.endswith(COMMUNICATION) else ""
        hidden, size = estimate.hidden_s.get(group, 0.0), sent.get(group, 0.0)
        if max(abs(seconds), hidden) >= _ROUNDING * estimate.time_s or size:
            share = float(seconds / estimate.time_s)
            shown.append(PartOfTime(name, float(seconds), share, float(hidden), float(size)))
    return shown


def bytes_by_link(estimate: Estimate) -> dict[str, float]:
    """Return what a rank sends over each kind of link in a step."""
    inside, *outside = estimate.link_utilisation
    return {inside: estimate.traffic.inside_bytes} | dict.fromkeys(
        outside, estimate.traffic.network_bytes
    )


def foundations(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """Yield use of the links, ratio of communication to compute, memory, and the software."""
    if estimate.devices > 1:
        sizes = bytes_by_link(estimate)
        shares = (
            f"{name} {format_bytes_decimal(sizes[name])} ({format_percent(share)} used)"
            for name, share in estimate.link_utilisation.items()
        )
        yield "links", ", ".join(shares)
        ratios = ", ".join(f"{phase} {ratio:.3g}" for phase, ratio in estimate.ratios.items())
        yield "comm/comp", f"{ratios} in one layer, hidden communication included"
    memory, device = estimate.memory, estimate.cluster.device
    worst = str(memory.worst_stage)
    where = f", {worst} stage" if len(memory.stages) > 1 else ""
    when = f", {memory.stages[worst].moment}" if isinstance(estimate.workload, Train) else ""
    share = format_percent(memory.peak_bytes / device.memory_bytes)
    kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in _kinds(memory))
    used = f"{format_bytes(memory.peak_bytes)} of {format_bytes(device.memory_bytes)} ({share})"
    taken = f"; {estimate.engine_words}" if estimate.engine_bytes is not None else ""
    yield "memory", f"{used}{where}{when}: {kinds}{taken}"
    if memory.host_bytes:
        offloaded = format_bytes(memory.host_bytes)
        yield "host", f"{offloaded} per GPU of offloaded activations and optimizer states"
    yield "software", f"{estimate.software.name}: {estimate.software.title}"
    machine = provenance.in_words(estimate.ledger.prices.machine)
    if machine:
        yield "constants", machine


def _kinds(memory: Memory) -> list[tuple[str, float]]:
    """Return what fills the fullest rank, largest first, the small kinds together."""
    kinds = sorted(memory.by_kind().items(), key=lambda item: -item[1])
    large = [(name_of(kind), size) for kind, size in kinds if size > _SMALL * memory.peak_bytes]
    rest = memory.peak_bytes - sum(size for _, size in large)
    return [*large, *([("other", rest)] if rest > 0 else [])]


def _memory_bar(estimate: Estimate) -> str:
    """Return the memory of the fullest rank as a bar as long as the device has memory, by kind."""
    capacity = float(estimate.cluster.device.memory_bytes)
    kinds = _kinds(estimate.memory)
    if len(kinds) > len(SHADES):
        last = len(SHADES) - 1
        kinds = [*kinds[:last], ("rest", sum(size for _, size in kinds[last:]))]
    drawn = stack([float(size) / capacity for _, size in kinds], _MEMORY_BAR)
    names = (f"{mark} {kind}" for mark, (kind, _) in zip(drawn.marks, kinds, strict=True))
    words = " ".join((drawn.text, *(name.replace(" ", _GLUE) for name in names)))
    return "\n" + labelled("", words).replace(_GLUE, " ")


def sentences(advice: Advice, *, short: bool = False) -> list[tuple[str, str]]:
    """Return what limits a layout and what would help it most, each under its label.

    In `short`, a reason that is also the first of the warnings is left to them.
    """
    limit, change = advice.limit.words, "no single change of the layout on these GPUs is faster"
    if short and advice.limit.part == "memory":
        limit = "memory: does not fit, see the warning"
    if advice.limit.part in {"memory", "layout"}:
        change = "no change of one or two fields, nor of the GPUs, fits; try shardcost plan"
    if advice.change is not None:
        change = advice.change.words
    return [("limit", limit), ("change", change)]

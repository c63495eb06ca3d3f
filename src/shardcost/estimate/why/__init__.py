"""Where a figure of an estimate comes from: `why`, and `figures` for all that can be explained.

No formula is restated. A figure that is a group-by of the ledger is the sum of its entries; one
that a property computes is that property, run on traced numbers (`_Traced`); an operation and a
kind of memory are what their own functions write (`operation`). Figures have the names of the
report's document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from types import SimpleNamespace
from typing import Any, Final

from shardcost.arrays import exp, largest
from shardcost.catalog.errors import CONFIDENCE_PCT
from shardcost.checks import is_array
from shardcost.errors import BadTypeError, UnknownNameError
from shardcost.estimate.interval import least_share, ranges_of, residuals_of
from shardcost.estimate.ledger import Entry, serving_host_s
from shardcost.estimate.pieces import PassParts
from shardcost.estimate.result import (
    BUBBLE,
    COMMUNICATION,
    CONTENTION,
    FLOP_CONVENTION,
    HOST,
    STRAGGLERS,
    Estimate,
    Traffic,
    part_name,
)
from shardcost.estimate.why.answer import (
    Error,
    Why,
    answer,
    error_of,
    group_error,
    kernel_error,
    part,
    total,
)
from shardcost.estimate.why.operation import memory, memory_figures, operation
from shardcost.jitter import slowest_of
from shardcost.program.flops import model_flops
from shardcost.program.operations import Collective
from shardcost.receipt import SENT, Receipt, Term, in_unit
from shardcost.schedule.pipeline import pipeline_of
from shardcost.schedule.step import stage_ends
from shardcost.traced import Traced, named, receipt, step
from shardcost.units import format_time
from shardcost.workload import Train

__all__ = ["SUMS", "Why", "figures", "why"]

_TITLES: Final = {
    "time_s": ("Time of a step", "s"),
    "low_s": (f"Lower end of the {CONFIDENCE_PCT} % interval of the time", "s"),
    "high_s": (f"Upper end of the {CONFIDENCE_PCT} % interval of the time", "s"),
    "p99_step_s": ("Step that one in a hundred is longer than", "s"),
    "tokens_per_s": ("Tokens per second, all GPUs together", "tokens/s"),
    "tokens_per_s_per_gpu": ("Tokens per second and GPU", "tokens/s"),
    "ttft_s": ("Time to the first token of a prompt, nothing else running", "s"),
    "tpot_s": ("Time per output token of one sequence", "s"),
    "tokens_per_s_per_user": ("Output tokens per second of one sequence", "tokens/s"),
    "mfu": ("Model FLOP utilisation, causal pairs", "share"),
    "mfu_full_attention": ("Model FLOP utilisation, all pairs", "share"),
    "hfu": ("Hardware FLOP utilisation", "share"),
    "tflops_per_gpu": ("TFLOP/s of the model on each GPU, causal pairs", "TFLOP/s"),
    "tflops_per_gpu_full_attention": ("TFLOP/s of the model on each GPU, all pairs", "TFLOP/s"),
    "hardware_tflops_per_gpu": ("TFLOP/s that each GPU makes", "TFLOP/s"),
    "energy_j": ("Energy of a step at most, all boards at their rated power", "J"),
    "comm_share": ("Part of a step in which a rank waits for communication", "share"),
    "flops": ("FLOP of the model in a step, causal pairs", "FLOP"),
    "flops_full_attention": ("FLOP of the model in a step, all pairs", "FLOP"),
    "hardware_flops": ("FLOP that the devices make in a step", "FLOP"),
}
"""Figures of the whole, with their units."""
_OPTIONAL: Final = ("p99_step_s", "ttft_s", "tpot_s", "tokens_per_s_per_user", "energy_j")
"""Those that not every estimate has."""
_TIMES: Final = ("p99_step_s", "ttft_s", "tpot_s", "energy_j")
"""Those that grow with the time; rates and utilisations are inverse to it."""
SUMS: Final = ("calls", "exposed", "sent_bytes", "inside_bytes", "network_bytes")
"""Figures of all calls of an operation in a step; one call is an ``op``."""
_SCHEDULES: Final = {
    "1f1b": "Narayanan et al. 2019, arXiv:1806.03377",
    "interleaved": "Narayanan et al. 2021, arXiv:2104.04473",
    "zero_bubble": "Qi et al. 2023, arXiv:2401.10241",
}
_OVERLAPS: Final = {
    "none": "every collective is waited for",
    "async": "a GEMM of the backward pass that does not wait for it hides it",
    "chunked": "the GEMM that it feeds is cut into chunks, which hide it but for the first",
}


def why(estimate: Estimate, figure: str) -> Why:
    """Return where one figure of an estimate comes from.

    >>> from shardcost import Decode, Layout
    >>> from shardcost.estimate import estimate
    >>> work = Decode(batch=64, context_tokens=4096)
    >>> result = estimate("llama3-70b", "h100_sxm", Layout(tp=8), work)
    >>> answer = why(result, "tokens_per_s")
    >>> answer.formula, answer.value == result.tokens_per_s
    ('batch x new tokens / time', True)

    Args:
        estimate: An estimate of one layout.
        figure: One of `figures`.

    Raises:
        UnknownNameError: no such figure.
        BadTypeError: the estimate is of an array of layouts.
    """
    if is_array(estimate.time_s):
        layout = estimate.layout
        raise BadTypeError("layout", layout, "one layout, not an array of them, to explain")
    if figure not in (known := figures(estimate)):
        raise UnknownNameError("figure", figure, known)
    room, _, rest = figure.partition(".")
    if figure == "time_s":
        return _time(estimate)
    if figure in _TITLES:
        return _whole(estimate, figure)
    if room == "memory" or figure == "memory_bytes":
        return memory(estimate, figure)
    entries = estimate.operations
    if room == "op" or room in SUMS:
        return (operation if room == "op" else _all_calls)(estimate, figure, entries[rest])
    if room == "parts":
        return _part(estimate, figure, rest, entries)
    return _link(estimate, figure, entries) if room == "link" else _comm(estimate, figure, entries)


def figures(estimate: Estimate) -> list[str]:
    """Return the names of all figures that can be explained.

    >>> from shardcost import Layout, Prefill
    >>> from shardcost.estimate import estimate
    >>> result = estimate("llama3-8b", "h100_sxm", Layout(), Prefill(batch=1, prompt_tokens=512))
    >>> [name for name in figures(result) if name.startswith("parts.")][:2]
    ['parts.gemm', 'parts.attention']
    """
    return [
        *(name for name in _TITLES if name not in _OPTIONAL or getattr(estimate, name) is not None),
        *(f"parts.{name}" for name in estimate.parts_s),
        *_comm_figures(estimate),
        *memory_figures(estimate),
        *(f"op.{name}" for name in estimate.operations),
        *_call_figures(estimate),
    ]


class _Traced:
    """An estimate whose figures are traced: its properties write their own receipts."""

    def __init__(self, estimate: Estimate) -> None:
        self.parts: dict[str, Receipt] = {}
        """By name of a term, the figure that it is."""
        device, cluster, layout = estimate.cluster.device, estimate.cluster, estimate.layout
        peak = f"device.peak_flop_per_s.{estimate.product_dtype}"
        network = cluster.network
        ports = None
        if network is not None:
            node = network.node_bytes_per_s(cluster.gpus_per_node)
            source = str(network.sources.get("nic_bytes_per_s", ""))
            ports = named("node_rate", node, "bytes/s", "of a node's ports, one way", source)
        jitter = estimate.machine.jitter
        meaning = "standard deviation of the steps of a run"
        scatter = named("scatter", jitter.step_scatter, "", meaning, jitter.steps_source)
        rate = self._stated(estimate, "rate", cluster.tiers[-1].bytes_per_s, "tiers.bytes_per_s")
        twin = copy(estimate)
        groups = {**estimate.comm_s, **estimate.exposed_s}
        vars(twin).update(
            time_s=self._figure(estimate, "time_s", "time"),
            flops=self._figure(estimate, "flops", "FLOP"),
            flops_full_attention=self._figure(estimate, "flops_full_attention", "FLOP"),
            hardware_flops=self._figure(estimate, "hardware_flops", "FLOP"),
            comm_s={group: self._seconds(estimate.comm_s, group, "total_s") for group in groups},
            exposed_s={
                group: self._seconds(estimate.exposed_s, group, "exposed_s") for group in groups
            },
            traffic=Traffic(
                estimate.traffic.by_group,
                named("bytes", estimate.traffic.inside_bytes, SENT, "that a rank sends over them"),
                named("bytes", estimate.traffic.network_bytes, SENT, "that a rank sends over it"),
            ),
            workload=_named_workload(estimate),
            layout=SimpleNamespace(devices=named("GPUs", layout.devices, "", layout.short())),
            machine=SimpleNamespace(
                jitter=SimpleNamespace(step_scatter=scatter),
                cluster=SimpleNamespace(
                    device=SimpleNamespace(
                        multiplied=device.multiplied,
                        peak=lambda dtype: self._stated(estimate, "peak", device.peak(dtype), peak),
                        power_w=None
                        if device.power_w is None
                        else self._stated(estimate, "power", device.power_w, "device.power_w"),
                    ),
                    tiers=[SimpleNamespace(kind=cluster.tiers[-1].kind, bytes_per_s=rate)],
                    network=SimpleNamespace(node_bytes_per_s=lambda _: ports) if ports else None,
                    gpus_per_node=named("GPUs_per_node", cluster.gpus_per_node),
                ),
            ),
        )
        self.estimate: Any = twin

    def _figure(self, estimate: Estimate, figure: str, label: str) -> Any:
        """Return a figure of the whole as a term under its own name."""
        title, unit = _TITLES[figure]
        value = float(getattr(estimate, figure))
        name = figure.removesuffix("_s")
        self.parts[name] = part(figure, label, value, unit)
        meaning = FLOP_CONVENTION if figure == "flops" else title
        return Traced.named(Term(name, value, unit, meaning, label=label))

    def _seconds(self, table: Mapping[str, Any], group: str, kind: str) -> Any:
        name, seconds = f"{group}_{kind}".removesuffix("_s"), table.get(group, 0.0)
        self.parts[name] = part(f"comm.{group}.{kind}", name.replace("_", " "), seconds)
        return named(name, seconds, "s")

    @staticmethod
    def _stated(estimate: Estimate, name: str, value: Any, figure: str) -> Any:
        unit = {"peak": "FLOP/s", "power": "W"}.get(name, "bytes/s")
        source = str(estimate.cluster.sources.get(figure, ""))
        return named(name, value, unit, "of one GPU, nominal", source)

    def why(self, receipt: Receipt, **others: Any) -> Why:
        """Return the answer, with the figures among its terms as parts."""
        parts = [self.parts[term.name] for term in receipt.terms if term.name in self.parts]
        return answer(receipt, parts=parts, **others)


def _named_workload(estimate: Estimate) -> Any:
    work = copy(estimate.workload)
    for field, name in {
        "global_batch": "batch",
        "batch": "batch",
        "sequence_length": "sequence_length",
        "prompt_tokens": "prompt_tokens",
        "new_tokens": "new_tokens",
    }.items():
        if hasattr(work, field):
            value = getattr(work, field)
            object.__setattr__(work, field, named(name, value, "", _COUNTS.get(name, "")))
    return work


_COUNTS: Final = {"batch": "sequences, over all replicas", "new_tokens": "per sequence and step"}


def _time(estimate: Estimate) -> Why:
    """Return the time as the sum of its parts."""
    software = estimate.software
    parts = [
        part(f"parts.{name}", part_name(name), seconds)
        for name, seconds in estimate.parts_s.items()
    ]
    what = {"train": "an optimizer step", "prefill": "a prefill", "decode": "a decode step"}
    pace = f"compute is that of {estimate.ledger.pace.name}"
    if isinstance(estimate.workload, Train):
        layout = estimate.layout
        pace += f", {estimate.program.micro_batches} micro-batches, {layout.schedule} schedule"
    return total(
        "time_s",
        f"Time of {what[estimate.workload.phase]}",
        estimate.time_s,
        "s",
        parts,
        error=error_of(residuals_of(estimate), estimate.time_s, "s"),
        stated=[f"{software.title}: {software.fit_text}; choices: {software.source}"],
        words=pace,
    )


def _whole(estimate: Estimate, figure: str) -> Why:
    """Return a figure that follows from the time or from the model."""
    title, unit = _TITLES[figure]
    like = residuals_of(estimate)
    traced = _Traced(estimate)
    twin = traced.estimate
    if figure in ("flops", "flops_full_attention"):
        causal = figure == "flops"
        flops = model_flops(estimate.model, estimate.workload, causal=causal, term=named)
        return answer(receipt(flops, figure, title, unit), words=FLOP_CONVENTION)
    if figure == "hardware_flops":
        return answer(receipt(_hardware_flops(estimate), figure, title, unit))
    if figure in ("low_s", "high_s"):
        side = figure.removesuffix("_s")
        residual: Any = named("residual", getattr(like, side), "", "log of measured over predicted")
        share = exp(residual)
        if side == "low":
            least = float(least_share(estimate))
            share = largest(share, named("bound", least, "", "FLOP and bytes at the datasheet"))
        error = error_of(like, estimate.time_s, "s")
        return traced.why(receipt(twin.time_s * share, figure, title, unit), error=error)
    value = getattr(estimate, figure)
    error = error_of(like, value, unit, inverse=figure not in _TIMES)
    if figure == "comm_share":  # measured itself, and never above 1
        low, high, which, rows, _ = ranges_of(estimate)[figure]
        ends = f"{in_unit(low, unit)} to {in_unit(high, unit)}"
        words = f"{CONFIDENCE_PCT} % of {which} were within {ends}"
        error = Error(words, which, rows, float(low), float(high))
    return traced.why(receipt(getattr(twin, figure), figure, title, unit), error=error)


def _hardware_flops(estimate: Estimate) -> Any:
    """Return the FLOP of all devices, by the property that counts them."""
    twin, layout = copy(estimate), estimate.layout
    vars(twin).pop("hardware_flops", None)
    runs = named("micro_batches", estimate.program.micro_batches)
    degrees = {name: named(name, getattr(layout, name)) for name in ("tp", "cp", "dp")}
    meaning = "GEMMs and attention of a rank of every stage for one micro-batch"
    vars(twin).update(
        pass_flops=named("passes", estimate.pass_flops, "FLOP", meaning),
        layout=SimpleNamespace(**degrees),
        ledger=SimpleNamespace(program=SimpleNamespace(micro_batches=runs)),
    )
    return twin.hardware_flops


def _part(estimate: Estimate, figure: str, name: str, entries: Mapping[str, Entry]) -> Why:
    """Return why one part of the time is as long as it is."""
    if name.endswith(COMMUNICATION):
        return _exposed(estimate, figure, name.removesuffix(COMMUNICATION), entries)
    if name == BUBBLE:
        return _bubble(estimate, figure)
    if name == HOST:
        return _host(estimate, figure)
    if name == CONTENTION:
        return _contention(estimate, figure)
    if name == STRAGGLERS:
        return _stragglers(estimate, figure)
    chosen = {key: entry for key, entry in entries.items() if entry.kind == name}
    seconds = estimate.parts_s[name]
    heaviest = max(chosen.values(), key=lambda entry: float(entry.total_s), default=None)
    error = heaviest and kernel_error(estimate.ledger.prices, heaviest.op, seconds, summed=True)
    title = f"{part_name(name)} in a step, {estimate.ledger.pace.name}"
    return total(figure, title[:1].upper() + title[1:], seconds, "s", _calls(chosen), error=error)


def _calls(entries: Mapping[str, Entry]) -> Iterator[Receipt]:
    """Yield operations as parts of a time."""
    for name, entry in entries.items():
        often = f"{in_unit(entry.times, '')} x {format_time(entry.seconds)}"
        yield part(f"calls.{name}", name, entry.total_s, words=often)


def _call_figures(estimate: Estimate) -> Iterator[str]:
    for name, entry in estimate.operations.items():
        yield f"calls.{name}"
        if isinstance(entry.op, Collective) and entry.group is not None:
            yield f"exposed.{name}"
            sent = estimate.ledger.prices.sent(entry.op)
            yield from (f"{kind}.{name}" for kind in SUMS[2:] if getattr(sent, kind))


def _all_calls(estimate: Estimate, figure: str, entry: Entry) -> Why:
    """Return what all calls of an operation take or send in a step."""
    kind, _, name = figure.partition(".")
    calls = named("calls", entry.times, "", "in a step")
    one = part(f"op.{name}", "each", entry.seconds)
    if kind == "calls":
        title = f"All calls of {name} in a step ({entry.phase})"
        each = named("each", entry.seconds, "s", "one call")
        return answer(receipt(calls * each, figure, title, "s"), value=entry.total_s, parts=[one])
    if kind == "exposed":
        whole = named("all_calls", entry.total_s, "s", "hidden or not")
        hidden = named("hidden", entry.total_s - entry.exposed_s, "s", "behind compute")
        every = part(f"calls.{name}", "all calls", entry.total_s)
        title = f"What nothing hides of all calls of {name} in a step"
        return answer(
            receipt(whole - hidden, figure, title, "s"), value=entry.exposed_s, parts=[every]
        )
    where = {"inside_bytes": " over links inside a domain", "network_bytes": " over the network"}
    sends = estimate.ledger.prices.sent(entry.op) if isinstance(entry.op, Collective) else None
    size = float(getattr(sends, kind))
    title = f"Bytes that a rank sends{where.get(kind, '')} in all calls of {name} in a step"
    sent = calls * named("bytes", size, SENT, "in one call")
    return answer(receipt(sent, figure, title, SENT), value=entry.times * size, parts=[one])


def _bubble(estimate: Estimate, figure: str) -> Why:
    """Return the bubble: the pipeline without communication, less the busiest stage's compute."""
    schedule, ledger = estimate.layout.schedule, estimate.ledger
    ends = stage_ends(pipeline_of(ledger.step_work, schedule), schedule)
    pipeline = named("pipeline", largest(*ends), "s", "all stages, without communication")
    compute = named("compute", ledger.step_time.compute_s, "s", "of the busiest stage")
    title = f"Waiting for other stages, {schedule} schedule"
    return answer(
        receipt(pipeline - compute, figure, title, "s"),
        value=estimate.parts_s[BUBBLE],
        stated=[_SCHEDULES[schedule]],
        words=f"{estimate.program.micro_batches} micro-batches over {estimate.layout.pp} stages",
    )


def _stragglers(estimate: Estimate, figure: str) -> Why:
    """Return what a step waits because its ranks are not equally fast."""
    ledger, jitter = estimate.ledger, estimate.machine.jitter
    devices = named("GPUs", estimate.devices, "", "that wait for each other")
    node = named("GPUs_per_node", estimate.cluster.gpus_per_node)
    meaning = "standard deviation of a node's time"
    spread = named("spread", jitter.node_spread, "", meaning, jitter.nodes_source)
    slower = slowest_of(devices, node, spread)
    slower = step("slowest", slower, "", "time on the slowest node over the mean")
    passes = named("passes", ledger.step_time.compute_s, "s", "of the busiest stage, slowest rank")
    return answer(
        receipt(passes * (1.0 - 1.0 / slower), figure, "Waiting for the slowest rank", "s"),
        value=estimate.parts_s[STRAGGLERS],
        stated=["Boucheron, Lugosi and Massart 2013, theorem 2.5"],
        words="the largest of one normally distributed time per node, at most",
    )


def _contention(estimate: Estimate, figure: str) -> Why:
    """Return what a step waits because groups that hide behind each other share a link."""
    ledger = estimate.ledger
    links = named("links", max(ledger.link_times_s), "s", "bytes of the busiest link / its rate")
    step_s = named("step", ledger.step_time.step_s, "s", "if groups did not share links")
    return answer(
        receipt(links - step_s, figure, "Waiting for links that groups share", "s"),
        value=estimate.parts_s[CONTENTION],
        words="no step is shorter than its bytes over the rate of a link",
    )


def _host(estimate: Estimate, figure: str) -> Why:
    """Return what the host adds: its own work, and the kernels that it starts too slowly."""
    software, ledger = estimate.program.setting.software, estimate.ledger
    overhead = named("step_overhead", software.step_overhead_s, "s", "once a step")
    seconds: Any = overhead
    if not isinstance(estimate.workload, Train):
        costs: Any = SimpleNamespace(
            step_overhead_s=overhead,
            host_per_sequence_s=named(
                "per_sequence", software.host_per_sequence_s, "s", "scheduling and sampling"
            ),
            host_per_draft_s=named(
                "per_draft", software.host_per_draft_s, "s", "which drafts are kept"
            ),
            collective_wait_s=named(
                "wait", software.collective_wait_s, "s", "for the slowest rank at a collective"
            ),
        )
        sequences = named("sequences", estimate.program.setting.sequences, "", "of a replica")
        collectives = named("collectives", ledger.tensor_collectives, "", "of the tensor group")
        drafted = estimate.program.setting.drafted
        if drafted:
            drafted = named("drafted", drafted, "", "tokens of a replica")
        seconds = serving_host_s(costs, sequences, drafted, collectives)
    words = "kernels are launched by a CUDA graph, which the host does not delay"
    if software.launch != "graph":
        words = f"eager launch: {format_time(software.host_per_kernel_s)} of the host per kernel"
        for name, times, each in ledger.launched_passes:
            waits = float(each.wall_s(software) - each.device_s)
            meaning = (
                f"waits for launches: {in_unit(float(times), '')} x {format_time(waits)};"
                f" {each.kernels:,.0f} kernels, {format_time(each.device_s)} on the device"
            )
            seconds = seconds + named(name.replace(" ", "_"), times * waits, "s", meaning)
    return answer(
        receipt(seconds, figure, f"What the host of {software.title} adds", "s"),
        value=estimate.parts_s[HOST],
        stated=[f"{software.title}: {software.fit_text}; choices: {software.source}"],
        words=words,
    )


def _exposed(estimate: Estimate, figure: str, group: str, entries: Mapping[str, Entry]) -> Why:
    """Return what of a group's communication nothing hides."""
    ledger, seconds = estimate.ledger, estimate.exposed_s.get(group, 0.0)
    sent = {name: entry for name, entry in entries.items() if entry.group == group}
    error = group_error(ledger.prices, sent.values(), seconds)
    title = f"Communication of the {group} group that nothing hides, in a step"
    if not isinstance(estimate.workload, Train) or group not in {"dp", "pp"}:
        parts = [
            part(f"exposed.{name}", name, entry.exposed_s, words=f"of {format_time(entry.total_s)}")
            for name, entry in sent.items()
        ]
        words = _OVERLAPS[estimate.software.tp_overlap] if group == "tp" else ""
        return total(figure, title, seconds, "s", parts, error=error, words=words)
    step, unhidden = ledger.step_time, "with the schedule's step, less without"
    exposed = named("exposed_send", step.exposed_send_s, "s", unhidden)
    if group == "dp":
        exposed = named("exposed_dp", step.exposed_dp_s, "s", unhidden)
        if not estimate.program.setting.software.dp_overlap:
            after = "after the backward pass: the software does not overlap it"
            exposed = exposed + named(
                "after", ledger.reduce.seconds + ledger.collect.seconds, "s", after
            )
    parts = [
        part(f"comm.{group}.{kind}", kind.removesuffix("_s"), table.get(group, 0.0))
        for kind, table in (("total_s", estimate.comm_s), ("hidden_s", estimate.hidden_s))
    ]
    return answer(
        receipt(exposed, figure, title, "s"),
        value=seconds,
        parts=parts,
        error=error,
        stated=["Rajbhandari et al. 2020, arXiv:1910.02054"] if group == "dp" else [],
        words="the closed form of the schedule, with this communication and without",
    )


_RATIOS: Final = "comm.ratios."
_KINDS: Final = ("total_s", "exposed_s", "hidden_s", "bytes")


def _comm_figures(estimate: Estimate) -> Iterator[str]:
    yield from (f"comm.{kind}" for kind in _KINDS)
    for group in {**estimate.comm_s, **estimate.traffic.by_group}:
        yield from (f"comm.{group}.{kind}" for kind in _KINDS)
    yield from (f"{_RATIOS}{phase}" for phase in estimate.ratios)
    for name in estimate.link_utilisation:
        yield from (f"link.{name}.{of}" for of in ("utilisation", "bytes"))


def _comm(estimate: Estimate, figure: str, entries: Mapping[str, Entry]) -> Why:
    """Return why a figure on communication is as it is."""
    if figure.startswith(_RATIOS):
        return _ratio(estimate, figure)
    _, *groups, kind = figure.split(".")
    tables = {
        "total_s": (estimate.comm_s, "s", "Communication of a step, hidden or not"),
        "exposed_s": (estimate.exposed_s, "s", "Communication of a step that nothing hides"),
        "hidden_s": (estimate.hidden_s, "s", "Communication of a step that something hides"),
        "bytes": (estimate.traffic.by_group, SENT, "Bytes that a rank sends in a step"),
    }
    table, unit, title = tables[kind]
    if not groups:
        parts = [part(f"comm.{group}.{kind}", group, value, unit) for group, value in table.items()]
        return total(figure, title, sum(table.values()), unit, parts)
    (group,) = groups
    if kind == "exposed_s":
        return _exposed(estimate, figure, group, entries)
    value, title = table.get(group, 0.0), f"{title}, {group} group"
    if kind == "hidden_s":
        traced = _Traced(estimate)
        hidden = traced.estimate.hidden_s.get(group, 0.0)
        return traced.why(receipt(hidden, figure, title, unit))
    sent = {name: entry for name, entry in entries.items() if entry.group == group}
    if kind == "bytes":
        return _bytes(estimate, figure, title, value, sent, "sent_bytes")
    error = group_error(estimate.ledger.prices, sent.values(), value)
    return total(figure, title, value, unit, _calls(sent), error=error)


def _bytes(
    estimate: Estimate,
    figure: str,
    title: str,
    value: Any,
    entries: Mapping[str, Entry],
    kind: str,
) -> Why:
    """Return bytes that a rank sends, as a sum over its collectives."""
    parts = []
    for name, entry in entries.items():
        if isinstance(entry.op, Collective):
            each = float(getattr(estimate.ledger.prices.sent(entry.op), kind))
            words = (
                f"{in_unit(entry.times, '')} x {in_unit(each, SENT)}: {entry.op.collective} of"
                f" {in_unit(float(entry.op.size_bytes), SENT)} over {entry.op.ranks}"
            )
            parts.append(part(f"{kind}.{name}", name, entry.times * each, SENT, words))
    return total(figure, title, value, SENT, parts)


def _ratio(estimate: Estimate, figure: str) -> Why:
    """Return communication over computation in the mean layer."""
    phase = figure.removeprefix(_RATIOS)
    passes = ("forward",) if phase == "forward" else ("backward", "weight")
    parts = [PassParts.of(estimate.ledger.shares, each) for each in passes]
    comm = _sum((each.comm_s for each in parts), "_communication", "hidden or not")
    ratio = comm / _sum((each.compute_s for each in parts), "", "")
    title = f"Communication over computation in one layer, {phase}"
    return answer(receipt(ratio, figure, title, "s/s"), value=estimate.ratios[phase])


def _sum(tables: Iterable[Mapping[str, Any]], suffix: str, meaning: str) -> Any:
    """Return the sum of some tables as a traced number, a term for each key."""
    seconds: dict[str, Any] = {}
    for table in tables:
        for name, each in table.items():
            seconds[name] = seconds.get(name, 0.0) + each
    terms = (named(f"{name}{suffix}", each, "s", meaning) for name, each in seconds.items())
    return sum(terms, 0.0)


def _link(estimate: Estimate, figure: str, entries: Mapping[str, Entry]) -> Why:
    """Return why links carry as much as they do."""
    _, name, kind = figure.split(".")
    sent = estimate.traffic.network_bytes if name == "network" else estimate.traffic.inside_bytes
    if kind == "bytes":
        title = f"Bytes that a rank sends over {name} links in a step"
        which = "network_bytes" if name == "network" else "inside_bytes"
        return _bytes(estimate, figure, title, sent, entries, which)
    traced, value = _Traced(estimate), estimate.link_utilisation[name]
    traced.parts["bytes"] = part(f"link.{name}.bytes", "bytes", sent, SENT)
    title = f"Use of the {name} links: bytes over what they could have carried meanwhile"
    whole = receipt(traced.estimate.link_utilisation[name], figure, title, "share")
    error = error_of(residuals_of(estimate), value, "share", inverse=True)
    return traced.why(whole, value=value, error=error)

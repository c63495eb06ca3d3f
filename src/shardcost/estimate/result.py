"""The result: `Estimate`, what a layout costs; every figure of it is a sum over the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from shardcost.arrays import largest
from shardcost.checks import anywhere, is_array
from shardcost.cluster import Cluster
from shardcost.display import Displayed
from shardcost.errors import BadTypeError, BadValueError
from shardcost.estimate.ledger import Entry, Ledger, joined
from shardcost.estimate.pieces import KIND, PassParts
from shardcost.estimate.warnings import Caveat, caveats_of
from shardcost.jitter import over_median
from shardcost.layout import Layout
from shardcost.machine import Machine
from shardcost.memory import Memory, memory_of
from shardcost.memory.policy import policy_with
from shardcost.model import Model
from shardcost.program.assemble import Program
from shardcost.program.flops import model_flops
from shardcost.program.operations import (
    AttentionCore,
    Collective,
    ExpertKernels,
    Gemm,
    LatentCore,
    StateKernel,
)
from shardcost.records import NamedTuple, dataclass
from shardcost.scheduler import Scheduler
from shardcost.software import Software
from shardcost.traced import Naming, unnamed
from shardcost.units import format_bytes, format_percent, format_time, format_tokens
from shardcost.workload import Decode, Prefill, Train, Workload

if TYPE_CHECKING:
    from shardcost.collectives.interval import Interval
    from shardcost.schedule.timeline import Timeline

FLOP_CONVENTION = (
    "2 per weight and token forward, twice that backward (as much where weights are frozen);"
    " attention over the pairs of tokens that causal mask, window and documents leave; dense peak"
)

COMMUNICATION: Final = " communication"
"""Ends the name of a part of the time that waits for a group."""
BUBBLE: Final = "bubble"
CONTENTION: Final = "link contention"
"""What a step waits because groups that hide behind each other share a link."""
STRAGGLERS: Final = "waiting for the slowest rank"
_ROUNDING: Final = 1e-12
_TERA: Final = 1e12
HOST: Final = "host and overhead"


_ORDER: Final = (*KIND.values(), "optimizer", "tp", "cp", "ep", "dp", "pp", "offload")
"""In which parts of the time are listed."""


class Traffic(NamedTuple):
    """Bytes that a rank sends in a step, by the paths that run."""

    by_group: dict[str, Any]
    inside_bytes: Any
    """Over the links inside a domain."""
    network_bytes: Any


def part_name(key: str) -> str:
    """Return the name of a part of the time for a reader.

    >>> part_name("gemm"), part_name("tp communication"), part_name("bubble")
    ('GEMM', 'TP communication', 'bubble')
    """
    if key.endswith(COMMUNICATION):
        return key.removesuffix(COMMUNICATION).upper() + COMMUNICATION
    return {"gemm": "GEMM", STRAGGLERS: "slowest rank"}.get(key, key)


@dataclass(frozen=True, eq=False, repr=False)
class Estimate(Displayed):
    """What a layout costs. Figures are numbers, or arrays where the layout has arrays."""

    model: Model
    machine: Machine
    layout: Layout
    workload: Workload
    software: Software
    ledger: Ledger
    time_s: Any
    """Of one step: an optimizer step, a prefill, one step of decoding."""

    @property
    def cluster(self) -> Cluster:
        """The devices and links that it runs on."""
        return self.machine.cluster

    @property
    def program(self) -> Program:
        """What one rank does."""
        return self.ledger.program

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every operation of a step with its price and how often it happens."""
        return self.ledger.entries

    @cached_property
    def operations(self) -> Mapping[str, Entry]:
        """The entries of one layout by name, those that are alike in all but their count as one."""
        return joined(self.entries)

    @cached_property
    def compute_s(self) -> Mapping[str, Any]:
        """Seconds of compute by kind: GEMM, attention, elementwise, optimizer."""
        kinds = dict.fromkeys(KIND.values(), 0.0) | ({"optimizer": 0.0} if self._trains else {})
        return _summed(
            kinds,
            ((each.kind, each.total_s) for each in self.entries if each.kind not in self.comm_s),
        )

    @cached_property
    def comm_s(self) -> Mapping[str, Any]:
        """Seconds of communication by group, hidden or not."""
        return self._by_group("total_s")

    @cached_property
    def exposed_s(self) -> Mapping[str, Any]:
        """Of those, what nothing hides."""
        return self._by_group("exposed_s")

    @property
    def hidden_s(self) -> Mapping[str, Any]:
        """Seconds of communication by group that something hides."""
        return {
            group: largest(0.0, seconds - self.exposed_s[group])
            for group, seconds in self.comm_s.items()
        }

    @cached_property
    def parts_s(self) -> Mapping[str, Any]:
        """Seconds by part, of the stage that sets the pace; they add up to `time_s`."""
        ledger = self.ledger
        waits = {f"{group}{COMMUNICATION}": each for group, each in self.exposed_s.items()}
        parts: dict[str, Any] = {**self.compute_s, **waits}
        if self._trains:
            parts[STRAGGLERS] = ledger.straggler_s
            parts[BUBBLE] = largest(0.0, ledger.step_time.bubble_s)  # rounding may be below 0
            contention = self.time_s - ledger.step_time.step_s
            if anywhere(contention > _ROUNDING * self.time_s):
                parts[CONTENTION] = contention
        parts[HOST] = ledger.host_s + ledger.launch_wait_s
        return parts

    def __repr__(self) -> str:
        """Return the headline figures in two lines."""
        place = f"{self.model.name} on {self.cluster.name}, {self.software.name}"
        if is_array(self.time_s):
            ends = " to ".join(map(format_time, (self.time_s.min(), self.time_s.max())))
            many = f"{self.time_s.size:,} layouts, {ends}"
            return f"Estimate: {self.workload.phase}, {place}, {many}"
        ends = " to ".join(map(format_time, self.interval[:2]))
        memory, capacity = self.memory_bytes, self.cluster.device.memory_bytes
        figures = (
            f"{format_time(self.time_s)} (90 % interval {ends})",
            f"{format_tokens(self.tokens_per_s_per_gpu)} tokens/s/GPU",
            f"MFU {format_percent(self.mfu)}",
            f"{format_bytes(memory)} of {format_bytes(capacity)}",
        )
        what = f"Estimate: {self.workload.phase}, {place}, {self.layout.short()}"
        return f"{what}:\n  {', '.join(figures)}"

    @property
    def interval(self) -> Interval:
        """Between which times nine of ten measurements of such runs lie."""
        from shardcost.estimate.interval import interval_of

        return interval_of(self)

    @cached_property
    def traffic(self) -> Traffic:
        """Bytes that a rank sends in a step, by group and by link."""
        by_group: dict[str, Any] = {}
        inside: Any = 0.0
        network: Any = 0.0
        for entry in self.entries:
            if isinstance(entry.op, Collective):
                price = self.ledger.prices.sent(entry.op)
                near, far = entry.times * price.inside_bytes, entry.times * price.network_bytes
                by_group[entry.group] = by_group.get(entry.group, 0.0) + near + far
                inside, network = inside + near, network + far
        return Traffic(by_group, inside, network)

    @cached_property
    def memory(self) -> Memory:
        """What ranks hold under the software's memory policy."""
        return footprint(self.model, self.machine, self.layout, self.workload, self.software)

    @cached_property
    def flops(self) -> Any:
        """Of the model, by `FLOP_CONVENTION`."""
        return model_flops(self.model, self.workload, causal=True)

    @cached_property
    def flops_full_attention(self) -> Any:
        """The same with all pairs of tokens counted."""
        return model_flops(self.model, self.workload, causal=False)

    @cached_property
    def hardware_flops(self) -> Any:
        """That the devices really make: recomputation and copies included."""
        runs = self.program.micro_batches if self._trains else 1
        return runs * self.pass_flops * self.layout.tp * self.layout.cp * self.layout.dp

    @cached_property
    def pass_flops(self) -> Any:
        """Made by one rank of every stage for one micro-batch, forward and backward."""
        ledger, program = self.ledger, self.program
        counts = [each.count for each in program.layers]
        pieces = zip((*counts, 1, 1), (*ledger.layers, ledger.first, ledger.last), strict=True)
        return sum(
            times * row.op.flops
            for times, piece in pieces
            for row in piece.rows
            if isinstance(row.op, Gemm | AttentionCore | LatentCore | ExpertKernels | StateKernel)
        )

    @cached_property
    def caveats(self) -> tuple[Caveat, ...]:
        """Where the estimate goes beyond what was measured, and what would not run.

        Each with its reason and the share of the time that rests on it, the largest first.
        """
        return tuple(caveats_of(self))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The texts of all `caveats`, be they of a small share."""
        return tuple(each.text for each in self.caveats)

    @property
    def devices(self) -> Any:
        """Devices at work."""
        return self.layout.devices

    @property
    def memory_bytes(self) -> Any:
        """Peak of the fullest rank."""
        return self.memory.peak_bytes

    @property
    def engine_bytes(self) -> Any:
        """What the engine takes of a device: it sets the KV cache aside when it starts.

        At least what the step needs. None in training, and of software whose share is not stated.
        """
        scheduler = self.software.scheduler
        if self._trains or scheduler == Scheduler():
            return None
        fixed = self.memory_bytes - self.memory.by_kind()["kv_cache"]
        cache = scheduler.cache_bytes(self.cluster.device.memory_bytes, fixed)
        return largest(self.memory_bytes, fixed + cache)

    @property
    def engine_words(self) -> str | None:
        """What the engine takes of a device and by which rule, of one layout; None as above."""
        if self.engine_bytes is None:
            return None
        scheduler = self.software.scheduler
        share = format_percent(scheduler.memory_share)
        rule = f"{share} of the device, of which the KV cache has what the rest leaves"
        if scheduler.memory_share_of == "free":
            rule = f"the KV cache has {share} of what the rest leaves"
        return f"{self.software.name} takes {format_bytes(self.engine_bytes)} at start ({rule})"

    @property
    def _trains(self) -> bool:
        return isinstance(self.workload, Train)

    def _by_group(self, figure: str) -> dict[str, Any]:
        """Return a figure of the entries by group; pp, and dp in training, are always there."""
        groups = dict.fromkeys(("dp", "pp") if self._trains else ("pp",), 0.0)
        pairs = ((entry.group, getattr(entry, figure)) for entry in self.entries if entry.group)
        return _summed(groups, pairs)

    @property
    def product_dtype(self) -> str:
        """The fastest number format in which the device multiplies: MFU and HFU are of its peak."""
        device, stored = self.cluster.device, [self.program.setting.wide_dtype]
        stored += map(self.workload.part_dtype, ("", "attention", "expert"))
        formats = [device.multiplied(each).product for each in reversed(stored)]
        return max(formats, key=device.peak)

    @property
    def _peak_flops(self) -> Any:
        return self.time_s * self.devices * self.cluster.device.peak(self.product_dtype)

    @property
    def mfu(self) -> Any:
        """Model FLOPs over what the devices could have made, by `FLOP_CONVENTION`."""
        return self.flops / self._peak_flops

    @property
    def mfu_full_attention(self) -> Any:
        """The same with all pairs of tokens counted, as older papers do."""
        return self.flops_full_attention / self._peak_flops

    @property
    def hfu(self) -> Any:
        """FLOPs really made over what could have been."""
        return self.hardware_flops / self._peak_flops

    @property
    def tflops_per_gpu(self) -> Any:
        """TFLOP/s of the model on each device, by `FLOP_CONVENTION`: `mfu` times the peak."""
        return self.flops / (self.time_s * self.devices) / _TERA

    @property
    def tflops_per_gpu_full_attention(self) -> Any:
        """The same with all pairs of tokens counted, as arXiv:2104.04473 does."""
        return self.flops_full_attention / (self.time_s * self.devices) / _TERA

    @property
    def hardware_tflops_per_gpu(self) -> Any:
        """TFLOP/s that each device really makes: `hfu` times the peak."""
        return self.hardware_flops / (self.time_s * self.devices) / _TERA

    @property
    def tokens_per_s(self) -> Any:
        """Tokens computed per second, over all devices."""
        return self.workload.tokens / self.time_s

    @property
    def tokens_per_s_per_gpu(self) -> Any:
        """Tokens computed per second and device."""
        return self.tokens_per_s / self.devices

    @property
    def ttft_s(self) -> Any:
        """Time to the first token of a prompt; None where nothing is prefilled."""
        return self.time_s if isinstance(self.workload, Prefill) else None

    @property
    def tpot_s(self) -> Any:
        """Time per output token of one sequence; None where nothing is decoded."""
        if not isinstance(self.workload, Decode):
            return None
        return self.time_s / self.workload.kept_tokens

    @property
    def tokens_per_s_per_user(self) -> Any:
        """Output tokens per second of one sequence; None where nothing is decoded."""
        return None if self.tpot_s is None else 1 / self.tpot_s

    @property
    def p99_step_s(self) -> Any:
        """The step that one in a hundred is longer than; None where nothing is trained."""
        if not self._trains:
            return None
        return self.time_s * over_median(99, self.machine.jitter.step_scatter)

    @property
    def energy_j(self) -> Any:
        """Energy of a step at the boards' rated power, an upper bound; None where unstated."""
        power = self.cluster.device.power_w
        return None if power is None else power * self.devices * self.time_s

    @property
    def comm_share(self) -> Any:
        """Part of the step in which a rank does nothing but wait for communication."""
        return sum(self.exposed_s.values()) / self.time_s

    @property
    def link_utilisation(self) -> Mapping[str, Any]:
        """Bytes sent over what the links could have carried meanwhile: inside, and network."""
        tier, network = self.cluster.tiers[-1], self.cluster.network
        use = {tier.kind: self.traffic.inside_bytes / (self.time_s * tier.bytes_per_s)}
        if network is not None:
            rate = network.node_bytes_per_s(self.cluster.gpus_per_node) / self.cluster.gpus_per_node
            use["network"] = self.traffic.network_bytes / (self.time_s * rate)
        return use

    @property
    def ratios(self) -> Mapping[str, Any]:
        """Communication over computation in the mean layer, by phase: all of it, hidden or not."""
        phases: dict[str, tuple[str, ...]] = {"forward": ("forward",)}
        if self._trains:
            phases["backward"] = ("backward", "weight")
        ratios = {}
        for name, passes in phases.items():
            parts = [PassParts.of(self.ledger.shares, each) for each in passes]
            comm = sum(sum(each.comm_s.values()) for each in parts)
            ratios[name] = comm / sum(sum(each.compute_s.values()) for each in parts)
        return ratios

    def timeline(self) -> Timeline:
        """Return every event of one training step; the closed form is held to it.

        Raises:
            BadValueError: where nothing is trained, or degrees are arrays.
        """
        if not self._trains or is_array(self.time_s):
            raise BadValueError("timeline", self.workload.phase, "of one training step")
        from shardcost.schedule.timeline import timeline_of

        return timeline_of(self.ledger.step_work, self.layout.schedule)

    def explain(self) -> str:
        """Return where the time comes from: formulas, values, sources, and the errors seen."""
        from shardcost.estimate.explain import explanation

        return explanation(self)


def footprint(
    model: Model,
    machine: Machine,
    layout: Layout,
    workload: Workload,
    software: Software,
    term: Naming = unnamed,
) -> Memory:
    """Return what ranks hold under a software's memory policy; traced if `term` names terms."""
    device = machine.cluster.device
    policy = policy_with(vars(software), software.memory)
    return memory_of(model, layout, workload, device=device, software=policy, term=term)


def check_one_layout(estimate: Estimate, to: str = "be drawn") -> None:
    """Raise for an estimate of many layouts."""
    if is_array(estimate.time_s):
        rule = f"one layout, not an array of them, to {to}"
        raise BadTypeError("layout", estimate.layout, rule)


def _summed(start: dict[str, Any], pairs: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """Return values added up by name, in a fixed order; names of `start` are always there."""
    table = dict(start)
    for name, value in pairs:
        table[name] = table.get(name, 0.0) + value
    return {name: table[name] for name in _ORDER if name in table}

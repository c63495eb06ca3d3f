"""The answer: `Estimate`, what a layout costs and what it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardcost.arrays import largest
from shardcost.checks import is_array
from shardcost.cluster import Cluster
from shardcost.collectives.calibration import Calibration
from shardcost.errors import BadValueError
from shardcost.estimate.placement import places
from shardcost.estimate.traffic import Traffic, traffic
from shardcost.estimate.work import RankWork, step_work
from shardcost.layout import Layout
from shardcost.memory import Memory
from shardcost.model import Model
from shardcost.program.assemble import Program
from shardcost.schedule.timeline import Timeline, timeline_of
from shardcost.software import Software
from shardcost.units import format_bytes, format_percent, format_time, format_tokens
from shardcost.workload import Decode, Prefill, Train, Workload

FLOP_CONVENTION = (
    "2 per weight and token forward, twice that backward (as much where weights are frozen);"
    " attention over the pairs of tokens that causal mask, window and documents leave; dense peak"
)

COMMUNICATION = " communication"
"""Ends the name of a part of the time that waits for a group."""
BUBBLE = "bubble"
HOST = "host and overhead"


def part_name(key: str) -> str:
    """Return the name of a part of the time for a reader.

    >>> part_name("gemm"), part_name("tp communication"), part_name("bubble")
    ('GEMM', 'TP communication', 'bubble')
    """
    if key.endswith(COMMUNICATION):
        return key.removesuffix(COMMUNICATION).upper() + COMMUNICATION
    return {"gemm": "GEMM"}.get(key, key)


@dataclass(frozen=True, eq=False)
class Estimate:
    """What a layout costs. Figures are numbers, or arrays where the layout has arrays."""

    model: Model
    cluster: Cluster
    layout: Layout
    workload: Workload
    software: Software
    time_s: Any
    """Of one step: an optimizer step, a prefill, one step of decoding."""
    parts_s: Mapping[str, Any]
    """Seconds by part, of the stage that sets the pace; they add up to `time_s`."""
    compute_s: Mapping[str, Any]
    """Seconds of compute by kind: products, attention, passes, optimizer."""
    comm_s: Mapping[str, Any]
    """Seconds of communication by group, hidden or not."""
    exposed_s: Mapping[str, Any]
    """Of those, what nothing hides."""
    memory: Memory
    flops: Any
    """Of the model, by `FLOP_CONVENTION`."""
    flops_full_attention: Any
    """The same with all pairs of tokens counted."""
    hardware_flops: Any
    """That the devices really make: recomputation and copies included."""
    program: Program
    work: RankWork
    warnings: tuple[str, ...]
    wire: Calibration | None = None
    """Constants of the caller's own network that it was made with."""

    def __repr__(self) -> str:
        """Return the headline figures in a few lines."""
        from shardcost.estimate.interval import interval_of

        place = f"{self.model.name} on {self.cluster.name}, {self.software.name}"
        if is_array(self.time_s):
            return f"Estimate: {self.workload.phase}, {place}, an array of layouts"
        interval = interval_of(self)
        ends = f"{format_time(interval.low_s)} to {format_time(interval.high_s)}"
        rate = f"{format_tokens(self.tokens_per_s_per_gpu)} tokens/s/GPU"
        memory, capacity = self.memory_bytes, self.cluster.device.memory_bytes
        return "\n".join(
            (
                f"Estimate: {self.workload.phase}, {place}, {self.layout.short()}",
                f"  time    {format_time(self.time_s)} (90 % interval {ends})",
                f"  rate    {rate}, MFU {format_percent(self.mfu)}",
                f"  memory  {format_bytes(memory)} of {format_bytes(capacity)}",
            )
        )

    @cached_property
    def traffic(self) -> Traffic:
        """Bytes that a rank sends in a step, by group and by link."""
        return traffic(self.program, self.cluster, places(self.layout))

    @property
    def devices(self) -> Any:
        """Devices at work."""
        return self.layout.devices

    @property
    def memory_bytes(self) -> Any:
        """Peak of the fullest rank."""
        return self.memory.peak_bytes

    @property
    def _peak_flops(self) -> Any:
        return self.time_s * self.devices * self.cluster.device.peak(self.workload.dtype)

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
        return self.time_s / self.workload.new_tokens

    @property
    def tokens_per_s_per_user(self) -> Any:
        """Output tokens per second of one sequence; None where nothing is decoded."""
        return None if self.tpot_s is None else 1 / self.tpot_s

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
    def hidden_s(self) -> Mapping[str, Any]:
        """Seconds of communication by group that something hides."""
        return {
            group: largest(0.0, each - self.exposed_s.get(group, 0.0))
            for group, each in self.comm_s.items()
        }

    @property
    def link_utilisation(self) -> Mapping[str, Any]:
        """Bytes sent over what the links could have carried meanwhile: inside, and network."""
        tier = self.cluster.tiers[-1]
        found = {tier.kind: self.traffic.inside_bytes / (self.time_s * tier.bytes_per_s)}
        network = self.cluster.network
        if network is not None:
            gpus = self.cluster.gpus_per_node
            rate = network.node_bytes_per_s(gpus) / gpus
            found["network"] = self.traffic.network_bytes / (self.time_s * rate)
        return found

    @property
    def ratios(self) -> Mapping[str, Any]:
        """Communication over computation in one layer, by phase: all of it, hidden or not."""
        phases = {"forward": self.work.layer.forward}
        if isinstance(self.workload, Train):
            phases["backward"] = self.work.layer.backward + self.work.layer.weight
        return {
            name: sum(busy.comm_s.values()) / sum(busy.compute_s.values())
            for name, busy in phases.items()
        }

    def timeline(self) -> Timeline:
        """Return every event of one training step; the closed form is held to it.

        Raises:
            BadValueError: where nothing is trained, or degrees are arrays.
        """
        if not isinstance(self.workload, Train) or is_array(self.time_s):
            raise BadValueError("timeline", self.workload.phase, "of one training step")
        return timeline_of(step_work(self.program, self.work), self.layout.schedule)

    def explain(self) -> str:
        """Return where the time comes from: formulas, values, sources, and the errors seen."""
        from shardcost.estimate.explain import explanation

        return explanation(self)

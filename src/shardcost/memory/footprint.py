"""Memory footprints: bytes by kind of the ranks of each stage, at their peak."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from shardcost.arrays import choose, largest, named
from shardcost.checks import is_array
from shardcost.cluster import Device
from shardcost.errors import BadTypeError, BadValueError
from shardcost.records import dataclass
from shardcost.units import format_bytes

_SHRINK: Final = {
    "weights": "more tp or pp, or ZeRO 3",
    "gradients": "more tp or pp, or ZeRO 2",
    "optimizer": "more tp or pp, or ZeRO 1 over more dp",
    "activations": "a smaller micro-batch, sequence parallelism, recompute, or more tp or cp",
    "logits": "a smaller micro-batch, or more tp or cp",
    "kv_cache": "a smaller batch, fewer tokens, or more tp, pp or dp",
    "buffers": "a smaller micro-batch, or more tp",
    "framework": "a device with more memory",
}
KINDS: Final = tuple(_SHRINK)
_SHRINK_SERVED: Final = {**_SHRINK, "weights": "more tp or pp, or a narrower number format"}
"""Where nothing is trained."""
_MOMENTS: Final = ("inside a layer", "at the loss", "after the update")
_SHOWN: Final = 3


@dataclass(frozen=True, eq=False)
class Footprint:
    """What one rank of a stage holds at its peak, in bytes.

    The kinds add up to `total`: what is not alive at the peak counts 0.
    """

    weights: Any
    gradients: Any
    optimizer: Any
    activations: Any
    logits: Any
    kv_cache: Any
    buffers: Any
    framework: Any
    between_steps: Any
    """What stays between two steps: all but activations, logits and what the framework reserves."""
    at_loss: Any = None
    """In training, whether the peak is at the loss,"""
    at_update: Any = None
    """or after the update of the weights, rather than inside a layer."""
    host: Any = 0
    """In the host's memory, beside all of these: offloaded activations and optimizer states."""

    @property
    def total(self) -> Any:
        """All kinds together."""
        return sum(getattr(self, kind) for kind in KINDS)

    @property
    def moment(self) -> Any:
        """When in a training step the peak is, in words; None in serving."""
        if self.at_loss is None:
            return None
        return named(_MOMENTS, choose(self.at_update, 2, choose(self.at_loss, 1, 0)))


@dataclass(frozen=True, eq=False)
class Memory:
    """What the ranks of a layout hold."""

    stages: Mapping[str, Footprint]
    """By place in the pipeline: ``first``, ``middle`` (the second of more than two), ``last``.

    A middle stage never holds more than the first unless the layers of stages are stated, so
    arrays of layouts go without it otherwise."""
    device: Device | None = None

    @cached_property
    def peak_bytes(self) -> Any:
        """Peak of the fullest rank."""
        return largest(*(footprint.total for footprint in self.stages.values()))

    @property
    def worst_stage(self) -> Any:
        """The place of the fullest rank."""
        return named(tuple(self.stages), self._worst)

    @cached_property
    def _worst(self) -> Any:
        """The number of the fullest rank's stage, in the order of `stages`."""
        most, *others = (footprint.total for footprint in self.stages.values())
        worst: Any = 0
        for index, total in enumerate(others, 1):
            worst = choose(total > most, index, worst)
            most = largest(most, total)
        return worst

    @property
    def host_bytes(self) -> Any:
        """What a rank has in the host's memory, on the stage that has most there."""
        return largest(*(footprint.host for footprint in self.stages.values()))

    def by_kind(self) -> dict[str, Any]:
        """Return the bytes of the fullest rank by kind; they add up to `peak_bytes`."""
        worst, stages = self._worst, tuple(self.stages.values())
        first = stages[0 if is_array(worst) else int(worst)]
        kinds = {kind: getattr(first, kind) for kind in KINDS}
        for index, stage in enumerate(stages if is_array(worst) else ()):
            for kind, value in kinds.items():
                kinds[kind] = choose(worst == index, getattr(stage, kind), value)
        return kinds

    def fits(self, device: Device | None = None) -> Any:
        """Return whether the fullest rank fits a device, by default the one asked for."""
        return self.peak_bytes <= self._on(device).memory_bytes

    def reason(self, device: Device | None = None) -> str | None:
        """Return why one layout does not fit a device, and what would have to shrink."""
        on = self._on(device)
        peak = self.peak_bytes
        if is_array(peak) or is_array(on.memory_bytes):
            raise BadTypeError("layout", peak, "one layout, not an array of them, to give a reason")
        if peak <= on.memory_bytes:
            return None
        kinds = sorted(self.by_kind().items(), key=lambda item: -item[1])[:_SHOWN]
        named = [("KV cache" if kind == "kv_cache" else kind, size) for kind, size in kinds]
        sizes = ", ".join(f"{name} {format_bytes(size)}" for name, size in named)
        place = f"{self.worst_stage} stage " if len(self.stages) > 1 else ""
        ways_out = _SHRINK if self.by_kind()["gradients"] else _SHRINK_SERVED
        return (
            f"{place}needs {format_bytes(peak)} of {format_bytes(on.memory_bytes)}:"
            f" {sizes}; what shrinks {named[0][0]}: {ways_out[kinds[0][0]]}"
        )

    def _on(self, device: Device | None) -> Device:
        device = device or self.device
        if device is None:
            raise BadValueError("device", None, "given, here or to memory_of")
        return device

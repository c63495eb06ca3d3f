"""What limits a layout, in one sentence: `limit_of`.

The limit is the largest part of the time. What that part waits for is judged by what more of each
resource would bring (`gains_of`): arithmetic or memory bandwidth where it computes, a link's
bandwidth or its latency where it communicates. Where a layout does not fit, memory is the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from shardcost.estimate.result import BUBBLE, COMMUNICATION, Estimate, part_name
from shardcost.search.sensitivity import Gain, gains_of
from shardcost.units import format_percentage

_COMPUTE: Final = ("gemm", "attention", "elementwise", "optimizer")
_ARITHMETIC: Final = "FLOP/s"
_MORE: Final = 0.1
"""How much more of a resource the sentence speaks of."""


class Limit(NamedTuple):
    """What limits a layout."""

    part: str
    """The largest part of the time; ``memory`` where it does not fit, ``layout`` if impossible."""
    share: float
    """Of the time; of the memory that is needed, what the largest kind takes; 1 if impossible."""
    words: str


def limit_of(now: Estimate) -> Limit:
    """Return what limits the layout of an estimate."""
    memory = now.memory
    reason = memory.reason(now.cluster.device)
    if reason is not None:
        largest = max(memory.by_kind().values())
        return Limit("memory", float(largest / memory.peak_bytes), f"does not fit: {reason}")
    shares = {part: float(each / now.time_s) for part, each in now.parts_s.items()}
    part, second, *_ = sorted(shares, key=lambda each: -shares[each])
    exposed = " (exposed)" if part.endswith(COMMUNICATION) else ""
    words = f"{part_name(part)}{exposed} {format_percentage(100 * shares[part])} of the time"
    words += _bound(now, part, shares)
    if shares[second] > 0:
        words += f"; then {part_name(second)}, {format_percentage(100 * shares[second])}"
    return Limit(part, shares[part], words)


def _bound(now: Estimate, part: str, shares: Mapping[str, float]) -> str:
    """Return what bounds the largest part."""
    if part == BUBBLE:
        runs = int(now.program.micro_batches)
        return f": {now.layout.pp} stages fill and drain over {runs} micro-batches"
    if part in _COMPUTE:
        return _on_device(gains_of(now, _MORE)[:2], shares)
    if part.endswith(COMMUNICATION):
        return _on_links(gains_of(now, _MORE)[2:], shares)
    return ": the GPUs wait for the host"


def _on_device(gains: Sequence[Gain], shares: Mapping[str, float]) -> str:
    """Return whether compute is bound by FLOP/s, by memory, or by kernels that are too small."""
    first, second = sorted(gains, key=lambda gain: -gain.elasticity)
    bound = "compute-bound" if first.what == _ARITHMETIC else "memory-bound"
    if first.elasticity + second.elasticity < sum(shares.get(kind, 0.0) for kind in _COMPUTE) / 2:
        bound = "in kernels too small to fill the GPU"
    return f", {bound} ({_brings(first)} faster; {_brings(second)})"


def _on_links(links: Sequence[Gain], shares: Mapping[str, float]) -> str:
    """Return whether communication is bound by a link's bandwidth or by latency.

    What all links' bandwidth moves is set against what all communication takes.
    """
    first = max(links, key=lambda gain: gain.elasticity)
    moved = sum(max(0.0, each.elasticity) for each in links)
    exposed = sum(share for part, share in shares.items() if part.endswith(COMMUNICATION))
    bound = "bandwidth-bound" if moved >= exposed / 2 else "latency-bound"
    return f", {bound} ({_brings(first)} faster)"


def _brings(gain: Gain) -> str:
    more = format_percentage(100 * _MORE)
    return f"+{more} {gain.what}: {format_percentage(gain.faster_pct)}"

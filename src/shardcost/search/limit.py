"""What limits a layout, in one sentence: `limit_of`.

The limit is the largest part of the time. What that part waits for is judged by what more of each
resource would bring (`gains_of`): arithmetic or memory bandwidth where it computes, a link's
bandwidth or its latency where it communicates. Where a layout does not fit, memory is the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from shardcost.estimate.result import BUBBLE, COMMUNICATION, Estimate
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
        return Limit("memory", float(largest / memory.peak_bytes), f"it does not fit: {reason}")
    shares = {part: float(each / now.time_s) for part, each in now.parts_s.items()}
    part, second, *_ = sorted(shares, key=lambda each: -shares[each])
    why = _waits_for(now, part, shares)
    words = f"{_taken(part)} {format_percentage(100 * shares[part])} of the time{why}"
    if shares[second] > 0:
        words += f"; next {plain_part(second)}, {format_percentage(100 * shares[second])}"
    return Limit(part, shares[part], words)


def plain_part(part: str) -> str:
    """Return the name of a part of the time as a sentence has it."""
    return "the bubble" if part == BUBBLE else part


def is_plural(part: str) -> bool:
    """Return whether the name of a part of the time is of several things."""
    return part in {"gemm", "elementwise"} or " and " in part


def _taken(part: str) -> str:
    exposed = " that nothing hides" if part.endswith(COMMUNICATION) else ""
    return f"{plain_part(part)}{exposed} {'take' if is_plural(part) else 'takes'}"


def _waits_for(now: Estimate, part: str, shares: Mapping[str, float]) -> str:
    """Return what the largest part waits for."""
    if part == BUBBLE:
        runs = int(now.program.micro_batches)
        return f": {now.layout.pp} stages fill and drain over {runs} micro-batches"
    if part in _COMPUTE:
        return _on_device(part, gains_of(now, _MORE)[:2], shares)
    if part.endswith(COMMUNICATION):
        return _on_links(gains_of(now, _MORE)[2:], shares)
    return ": the devices wait for the host"


def _on_device(part: str, gains: Sequence[Gain], shares: Mapping[str, float]) -> str:
    """Return whether compute waits for arithmetic, for memory, or for kernels to start and end."""
    first, second = sorted(gains, key=lambda gain: -gain.elasticity)
    wait = "wait" if is_plural(part) else "waits"
    taken = sum(shares.get(kind, 0.0) for kind in _COMPUTE)
    brought = f"{_brings(first)}, of {_named(second)} {format_percentage(second.faster_pct)}"
    if first.elasticity + second.elasticity < taken / 2:
        return f", in kernels too small to fill a device: {brought}"
    return f" and {wait} mostly for {_named(first)}: {brought}"


def _on_links(links: Sequence[Gain], shares: Mapping[str, float]) -> str:
    """Return whether communication waits for a link's bandwidth or for its latency.

    What all links' bandwidth moves is set against what all communication takes.
    """
    first = max(links, key=lambda gain: gain.elasticity)
    moved = sum(max(0.0, each.elasticity) for each in links)
    exposed = sum(share for part, share in shares.items() if part.endswith(COMMUNICATION))
    waits = first.what if moved >= exposed / 2 else "latency"
    return f" and waits mostly for {waits}: {_brings(first)}"


def _brings(gain: Gain) -> str:
    more = f"{format_percentage(100 * _MORE)} more {_named(gain)}"
    return f"{more} makes the step {format_percentage(gain.faster_pct)} faster"


def _named(gain: Gain) -> str:
    return "arithmetic" if gain.what == _ARITHMETIC else gain.what

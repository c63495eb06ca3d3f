"""What a layout could be instead, what limits it, and what would help it most: `advice`.

The change that helps most is the best of all single steps (`steps_of`) that are possible, fit and
keep the devices: for given devices and batch, tokens per second and device are the inverse of the
time of a step, so that all phases agree on what is best. Where the layout does not fit and no
single step makes it, two axes are changed at once, or more devices are taken: as few as hold it.

The limit is the largest part of the time. What that part waits for is judged by what more of each
resource would bring (`gains_of`): arithmetic or memory bandwidth where it computes, a link's
bandwidth or its latency where it communicates. Where a layout does not fit, memory is the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Final, NamedTuple

from shardcost.checks import is_array
from shardcost.cluster import Cluster
from shardcost.errors import BadTypeError, ShardcostError
from shardcost.estimate.result import BUBBLE, COMMUNICATION, STRAGGLERS, Estimate, part_name
from shardcost.estimate.step import estimate, software_of
from shardcost.layout import Layout
from shardcost.model import Model
from shardcost.search.sensitivity import Gain, gains_of
from shardcost.search.steps import (
    KEEP_GPUS,
    Change,
    Setup,
    Step,
    changed,
    current_value,
    fitting,
    offered,
    outcomes,
    reason_of,
    steps_of,
)
from shardcost.software import Software
from shardcost.units import format_bytes, format_percentage, format_time
from shardcost.workload import Workload

WORTHWHILE_PCT: Final = 0.5
"""A change that brings less is none."""
_TIMES_FROM_PCT: Final = 200.0
"""From here on a sentence says how many times as fast."""
_GONE: Final = 1e-3
"""A part that falls below this share of what it was is gone."""
_COMPUTE: Final = ("gemm", "attention", "elementwise", "optimizer")
_ARITHMETIC: Final = "FLOP/s"
_MORE: Final = 0.1
"""How much more of a resource the sentence states."""
_ALIKE: Final = 0.8
"""Of what one resource brings, from where on another that brings as much counts alike."""

Steps = Mapping[str, tuple[Step, ...]]


class Limit(NamedTuple):
    """What limits a layout."""

    part: str
    """The largest part of the time; ``memory`` where it does not fit, ``layout`` if impossible."""
    share: float
    """Of the time; of the memory that is needed, what the largest kind takes; 1 if impossible."""
    words: str


class BestChange(NamedTuple):
    """The change that helps most."""

    patch: Mapping[str, Any]
    """Options of a question and their new values, as in `Change`."""
    layout: Layout
    words: str
    time_s: float
    tokens_per_s_per_gpu: float
    faster_pct: float | None
    """How many more steps in the same time; None where the layout itself is impossible."""


@dataclass(frozen=True, eq=False)
class Advice:
    """What a layout could be instead."""

    steps: Steps
    """By axis, those that apply."""
    limit: Limit
    change: BestChange | None


def advice(
    model: Model | str,
    cluster: Cluster | str,
    layout: Layout,
    workload: Workload,
    software: Software | str | None = None,
) -> Advice:
    """Return the values that each axis offers, what limits a layout, and what helps it most.

    >>> from shardcost import Decode
    >>> work = Decode(batch=64, context_tokens=4096)
    >>> found = advice("llama3-70b", "h100_sxm", Layout(tp=8), work)
    >>> [step.value for step in found.steps["tp"] if step.outcome.fits]
    [2, 4, 8]
    >>> found.limit.part
    'gemm'

    Args:
        model: A `Model` or the name of one in the catalog.
        cluster: A `Cluster` or the name of one.
        layout: One layout, not an array of them; it need not fit, nor even be possible.
        workload: `Train`, `Prefill` or `Decode`.
        software: The framework or engine; as for `estimate` if left out.
    """
    if is_array(layout.devices * layout.ep * layout.micro_batch * layout.virtual_stages):
        raise BadTypeError("layout", layout, "one layout, not an array of them")
    model = Model.named(model) if isinstance(model, str) else model
    cluster = Cluster.named(cluster) if isinstance(cluster, str) else cluster
    runs = software_of(software, workload, [cluster])
    setup = Setup(
        model,
        cluster,
        layout,
        workload.in_formats_of(model, narrow_cache=runs.narrow_cache),
        runs,
    )
    steps = steps_of(setup)
    try:
        now = _estimate(setup, layout)
    except ShardcostError as error:
        limit = Limit("layout", 1.0, f"impossible: {reason_of(error)}")
        return Advice(steps, limit, remedy(setup, None, steps))
    fits = now.memory.fits(now.cluster.device)
    change = _improvement(setup, now, steps) if fits else remedy(setup, now, steps)
    return Advice(steps, limit_of(now), change)


def _estimate(setup: Setup, layout: Layout) -> Estimate:
    return estimate(setup.model, setup.cluster, layout, setup.workload, software=setup.software)


def _improvement(setup: Setup, now: Estimate, steps: Steps) -> BestChange | None:
    """Return the single step that makes a layout fastest; None where none is worth while."""
    best = _best_single(steps)
    if best is None or best.layout is None:
        return None
    then = _estimate(setup, best.layout)
    faster_pct = 100 * float(now.time_s / then.time_s - 1)
    if faster_pct < WORTHWHILE_PCT:
        return None
    faster = f"{format_percentage(faster_pct)} faster"
    if faster_pct >= _TIMES_FROM_PCT:
        faster = f"{1 + faster_pct / 100:.3g}x as fast"
    times = f"{format_time(now.time_s)} to {format_time(then.time_s)}"
    words = f"{_renamed(setup, best.layout)}: {faster} ({times}), mostly {_fallen(now, then)}"
    return _best_change(best, then, words, faster_pct)


def remedy(setup: Setup, now: Estimate | None, steps: Steps) -> BestChange | None:
    """Return the smallest change that makes a layout possible and lets it fit, the fastest such.

    That is the cluster's usual network alone where no more is missing.
    """
    alone = Change({}, setup.layout)
    best = alone if now is None and _fits_joined(setup, alone) else _best_single(steps)
    for several in () if best else _larger_changes(setup, steps):
        changes = fitting(setup, several)
        comes_to = outcomes(setup, changes)
        fit = [change for change in changes if comes_to[id(change)].fits]
        if fit:
            best = min(fit, key=lambda change: comes_to[id(change)].rank)
            break
    layout = best and best.layout
    if best is None or layout is None:
        return None
    network = outcomes(setup, [best])[id(best)].network
    if network:
        best = best._replace(patch={**best.patch, "network": network})
        setup = setup.joined or setup
    then = _estimate(setup, layout)
    room = then.cluster.device.memory_bytes
    memory = f"{format_bytes(then.memory_bytes)} of {format_bytes(room)}"
    named = [_renamed(setup, layout), f"network {network}" if network else ""]
    changed_to = ", ".join(filter(None, named))
    words = f"{changed_to}: fits ({memory}), {format_time(then.time_s)} per step"
    faster_pct = None if now is None else 100 * float(now.time_s / then.time_s - 1)
    return _best_change(best, then, words, faster_pct)


def _fits_joined(setup: Setup, change: Change) -> bool:
    """Return whether a layout lacks nothing but the cluster's usual network."""
    outcome = outcomes(setup, [change])[id(change)]
    return bool(outcome.network and outcome.fits)


def _best_change(change: Change, then: Estimate, words: str, faster: float | None) -> BestChange:
    rate = float(then.tokens_per_s_per_gpu)
    return BestChange(change.patch, then.layout, words, float(then.time_s), rate, faster)


def _best_single(steps: Steps) -> Change | None:
    """Return the fastest step that fits and keeps all else; of equal ones, what holds least."""
    fit = [
        step
        for axis in KEEP_GPUS
        for step in steps.get(axis, ())
        if step.outcome.fits and not step.current and not step.along and not step.outcome.network
    ]
    best = min(fit, key=lambda step: step.outcome.rank, default=None)
    return best and Change(best.patch, best.layout)


def _larger_changes(setup: Setup, steps: Steps) -> Iterator[Iterator[Change]]:
    """Yield all changes of two axes at the same devices, then those to ever more devices."""
    others = _others(setup, setup.gpus)
    yield (
        changed(setup, {one: first, two: second})
        for one, two in combinations(others, 2)
        for first, second in product(others[one], others[two])
        if {one, two} != {"virtual_stages", "schedule"}  # they go together already
    )
    for gpus in (step.value for step in steps["gpus"] if step.value > setup.gpus):
        yield iter((changed(setup, {"gpus": gpus}),))
        yield (
            changed(setup, {"gpus": gpus, axis: value})
            for axis, values in _others(setup, gpus).items()
            for value in values
        )


def _others(setup: Setup, gpus: int) -> dict[str, list[Any]]:
    """Return the values that are not the layout's own, of the axes that keep the devices."""
    return {
        axis: [value for value in values if value != current_value(setup, axis)]
        for axis, values in offered(setup, gpus).items()
        if axis in KEEP_GPUS
    }


def _fallen(now: Estimate, then: Estimate) -> str:
    """Return the part of the time that falls most, and from what to what."""
    before, after = now.parts_s, then.parts_s
    part = max(before, key=lambda each: float(before[each] - after.get(each, 0.0)))
    left = after.get(part, 0.0)
    then_s = "none" if left < _GONE * before[part] else format_time(left)
    return f"{part_name(part)} ({format_time(before[part])} to {then_s})"


def _renamed(setup: Setup, after: Layout) -> str:
    """Return what a change changes: from which values to which, and what goes along."""
    before = setup.layout
    said = []
    for name in KEEP_GPUS:
        values = [getattr(layout, name) for layout in (before, after)]
        if values[0] != values[1]:
            shown = [("off", "on")[value] if isinstance(value, bool) else value for value in values]
            said.append(f"{name.replace('_', ' ')} {shown[0]} to {shown[1]}")
    if before.devices != after.devices:
        said.insert(0, f"GPUs {before.devices:,} to {after.devices:,}")
    along = f" with dp {after.dp}" if before.dp != after.dp else ""
    return " and ".join(said) + along


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
    if part == STRAGGLERS:
        return ": ranks are not equally fast"
    return ": the GPUs wait for the host"


def _on_device(gains: Sequence[Gain], shares: Mapping[str, float]) -> str:
    """Return whether compute is bound by FLOP/s, by memory, or by kernels that are too small."""
    first, second = sorted(gains, key=lambda gain: -gain.elasticity)
    bound = "compute-bound" if first.what == _ARITHMETIC else "memory-bound"
    if second.elasticity > _ALIKE * first.elasticity:
        bound = "memory- and compute-bound alike"
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

"""The layouts one step away from another: what a slider offers, and what each value comes to.

A step changes one axis and keeps the rest. Degrees multiply to the devices, so data parallelism
takes up what `tp`, `cp` and `pp` leave; only `gpus` and `dp` themselves change the devices. Virtual
stages go with their schedule: more than one are interleaved, and other schedules have one. Where a
rule is against the step alone, other degrees give way (`with_room`); where it needs a network and
none is named, it is priced on the cluster's usual one.

Layouts that differ in numbers only are priced as arrays, in one call of the formulas that
`estimate` runs on one layout. Reasons against a layout are looked for one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product, takewhile
from math import gcd, log2
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.cluster import Cluster, Network
from shardcost.errors import InfeasibleError, Reason, Rule, ShardcostError
from shardcost.estimate.result import footprint
from shardcost.estimate.step import ledger_of
from shardcost.layout import Layout
from shardcost.machine import machine_of
from shardcost.memory import Memory
from shardcost.model import Model
from shardcost.options import LAYOUT
from shardcost.program.feasibility import LAYER_PLACES, first_reason
from shardcost.search.space import divisors
from shardcost.software import Software
from shardcost.workload import Decode, Prefill, Train, Workload

KEEP_GPUS: Final = tuple(
    option.name for option in LAYOUT if option.axis not in {"", "fixed"} and option.name != "dp"
)
"""Axes along which a step leaves the devices as many as they are."""
_INNER: Final = ("tp", "cp", "pp")
_GPUS: Final = Rule("gpus_not_a_multiple_of_degrees", "gpus must be a multiple of {}, got {}")
_NUMBERS: Final = ("tp", "cp", "ep", "pp", "dp", "virtual_stages", "micro_batch")
"""Fields of a layout that formulas take as arrays; the others say which formulas run."""
_MOST_GPUS: Final = 1024
_TIMES_GPUS: Final = 64
"""Devices are offered up to so many, or so many times the present ones if that is less."""
_MOST_SHARED_OUT: Final = 2**20
"""Devices that other degrees give way on."""
_MOST_NEAR: Final = 12
"""Values of a degree that are tried where it gives way …"""
_MOST_TRIED: Final = 32
"""… and combinations of degrees."""
_MOST_DIVIDED: Final = 2**32
"""Of more devices no divisors but powers of two are looked for."""
_MOST_SEQUENCES: Final = 64
"""Micro-batches are offered up to so many sequences."""


@dataclass(frozen=True, eq=False)
class Setup:
    """A layout and all that decides what it costs."""

    model: Model
    cluster: Cluster
    layout: Layout
    workload: Workload
    software: Software

    @property
    def gpus(self) -> int:
        """Devices at work."""
        return int(self.layout.devices)

    @property
    def joined(self) -> Setup | None:
        """The same with the cluster's usual network; None where one is named or none is usual."""
        usual = self.cluster.usual_network
        if usual is None or self.cluster.network is not None:
            return None
        return replace(self, cluster=replace(self.cluster, network=Network.named(usual)))


class Outcome(NamedTuple):
    """What a layout comes to: its figures, or why it has none."""

    time_s: float | None = None
    memory_bytes: float | None = None
    fits: bool = False
    reason: Reason | None = None
    """Why it is infeasible, or what it needs beyond the memory."""
    network: str = ""
    """The cluster's usual network, where it has a price only with one and none was named."""

    @property
    def possible(self) -> bool:
        """Whether no rule is against it."""
        return self.time_s is not None

    @property
    def rank(self) -> tuple[Any, Any]:
        """What makes one of two that fit better: the shorter step, then the smaller memory."""
        return self.time_s, self.memory_bytes


class Change(NamedTuple):
    """A layout made from another by some axes."""

    patch: Mapping[str, Any]
    """Options of a question and their new values; None for one that others decide."""
    layout: Layout | None
    reason: Reason | None = None
    """Why there is no such layout."""
    along: tuple[str, ...] = ()
    """Other fields that gave way."""


class Step(NamedTuple):
    """One value of one axis, all others kept."""

    axis: str
    value: Any
    current: bool
    """Whether it is the present value."""
    patch: Mapping[str, Any]
    """As in `Change`."""
    layout: Layout | None
    outcome: Outcome
    tokens_per_s_per_gpu: float | None
    along: tuple[str, ...] = ()
    """As in `Change`."""


def steps_of(setup: Setup) -> dict[str, tuple[Step, ...]]:
    """Return, for each axis that applies, the values to choose from and what they come to."""
    changes = {
        axis: [(value, with_room(setup, {axis: value})) for value in values]
        for axis, values in offered(setup).items()
    }
    every = [change for pairs in changes.values() for _, change in pairs]
    comes_to = outcomes(setup, every)

    def step(axis: str, value: Any, change: Change) -> Step:
        outcome, rate = comes_to[id(change)], None
        if change.layout is not None and outcome.time_s is not None:
            rate = float(setup.workload.tokens / outcome.time_s / change.layout.devices)
        current = value == current_value(setup, axis)
        network = {"network": outcome.network} if outcome.network else {}
        patch = {**change.patch, **network}
        return Step(axis, value, current, patch, change.layout, outcome, rate, change.along)

    return {
        axis: tuple(step(axis, value, change) for value, change in pairs)
        for axis, pairs in changes.items()
    }


def current_value(setup: Setup, axis: str) -> Any:
    """Return the present value of an axis."""
    return setup.gpus if axis == "gpus" else getattr(setup.layout, axis)


def changed(setup: Setup, values: Mapping[str, Any]) -> Change:
    """Return a layout with some axes changed: the devices kept, unless they are among these."""
    layout, own = setup.layout, dict(_with_company(setup.layout, values))
    gpus = own.pop("gpus", None)
    inner = {name: own.get(name, getattr(layout, name)) for name in _INNER}
    size = inner["tp"] * inner["cp"] * inner["pp"]
    degrees = {name: value for name, value in own.items() if name in _INNER}
    if "dp" in own:
        gpus = size * own["dp"]
    elif degrees or gpus is not None:
        gpus = gpus or setup.gpus
    patch = {name: value for name, value in own.items() if name != "dp"}
    if gpus is None:
        return _made(layout, patch, own)
    patch |= {"gpus": gpus, "dp": None}
    if gpus % size:
        product = f"{' x '.join(_INNER)} = {' x '.join(map(str, inner.values()))} = {size}"
        return Change(patch, None, _GPUS.reason(product, gpus))
    return _made(layout, patch, {**own, "dp": gpus // size})


def with_room(setup: Setup, values: Mapping[str, Any]) -> Change:
    """Return a layout with some axes changed; where a rule is against it, others give way.

    The nearest layout on as many devices, by factors of two in `tp`, `cp` and `pp`: of equally near
    ones, that with the tensor and context parallelism of before. Where that is not enough, experts
    spread less, micro-batches are single sequences and stages have no virtual ones.
    """
    alone = changed(setup, values)
    if "dp" in values or not (set(values) & {*_INNER, "gpus", "ep"}) or _runs(setup, alone):
        return alone
    gpus = alone.patch.get("gpus", setup.gpus)
    if gpus > _MOST_SHARED_OUT:
        return alone
    for degrees in _nearest_degrees(setup.layout, values, gpus):
        for company in ({}, _least(setup.layout, values, degrees, gpus)):
            other = {**values, "gpus": gpus, **degrees, **company}
            own = {
                key: value
                for key, value in other.items()
                if value != (None if key == "gpus" else getattr(setup.layout, key))
            }
            change = changed(setup, {**own, "gpus": gpus})
            if _runs(setup, change):
                along = tuple(key for key in own if key not in {*values, "gpus"})
                return change._replace(along=along)
    return alone


def _runs(setup: Setup, change: Change) -> bool:
    layout = change.layout
    return layout is not None and first_reason(setup.model, layout, setup.workload) is None


def _nearest_degrees(
    layout: Layout, values: Mapping[str, Any], gpus: int
) -> Iterator[dict[str, int]]:
    """Yield `tp`, `cp` and `pp` that divide the devices, the nearest to those of before first."""
    known = divisors(gpus) if gpus <= _MOST_DIVIDED else list(_doubled(1, gpus))
    now = {name: int(getattr(layout, name)) for name in _INNER}

    def away(name: str, degree: int) -> float:
        return abs(log2(degree / now[name]))

    near = [
        [values[name]] if name in values else sorted(known, key=partial(away, name))[:_MOST_NEAR]
        for name in _INNER
    ]
    tried = [each for each in product(*near) if gpus % (each[0] * each[1] * each[2]) == 0]

    def rank(each: tuple[int, ...]) -> tuple[float, ...]:
        apart = [away(*pair) for pair in zip(_INNER, each, strict=True)]
        return sum(apart), apart[1], apart[0]

    for each in sorted(tried, key=rank)[:_MOST_TRIED]:
        yield dict(zip(_INNER, each, strict=True))


def _least(
    layout: Layout, values: Mapping[str, Any], degrees: Mapping[str, int], gpus: int
) -> dict[str, Any]:
    """Return the least of what else degrees may break: experts, micro-batch, virtual stages."""
    inner = gpus // degrees["pp"]
    single = {"ep": gcd(int(layout.ep), inner), "micro_batch": 1, "virtual_stages": 1}
    stages = {"schedule": "1f1b"} if layout.virtual_stages > 1 else {}
    return {name: value for name, value in {**single, **stages}.items() if name not in values}


def _with_company(layout: Layout, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return values with what must go along: a schedule and its virtual stages."""
    if values.get("virtual_stages", 1) > 1:
        return {"schedule": "interleaved", **values}
    alone = values.get("schedule", "interleaved") != "interleaved"
    return {"virtual_stages": 1, **values} if alone and layout.virtual_stages > 1 else values


def _made(layout: Layout, patch: Mapping[str, Any], own: Mapping[str, Any]) -> Change:
    try:
        return Change(patch, replace(layout, **own))
    except InfeasibleError as error:
        return Change(patch, None, error.reason)


def reason_of(error: ShardcostError) -> Reason:
    """Return why there is no estimate of a layout: a broken rule, or what cannot be priced."""
    return error.reason if isinstance(error, InfeasibleError) else Reason("no_price", str(error))


def outcomes(setup: Setup, changes: Iterable[Change]) -> dict[int, Outcome]:
    """Return what some changes come to, by the identity of each."""
    changes = list(changes)
    layouts = dict.fromkeys(change.layout for change in changes if change.layout is not None)
    priced = _priced(setup, layouts)
    comes_to = (
        Outcome(reason=change.reason) if change.layout is None else priced[change.layout]
        for change in changes
    )
    return dict(zip(map(id, changes), comes_to, strict=True))


def _priced(setup: Setup, layouts: Iterable[Layout]) -> dict[Layout, Outcome]:
    """Return what layouts come to, those that run the same formulas together."""
    priced: dict[Layout, Outcome] = {}
    families: dict[Any, list[Layout]] = defaultdict(list)
    for layout in layouts:
        reason = first_reason(setup.model, layout, setup.workload)
        if reason is not None:
            priced[layout] = Outcome(reason=reason)
        else:
            families[_family(setup, layout)].append(layout)
    for some in families.values():
        priced.update(zip(some, _family_priced(setup, some), strict=True))
    return priced


def _family(setup: Setup, layout: Layout) -> tuple[Any, ...]:
    """Return what layouts must share to be priced as arrays.

    Whole sequences attend in another way than parts of them. A group beyond the last domain has no
    price without a network, and none of an array would have one.
    """
    values = {each.name: getattr(layout, each.name) for each in fields(layout)}
    chosen = tuple(value for name, value in values.items() if name not in _NUMBERS)
    apart = setup.cluster.network is None and layout.devices > setup.cluster.tiers[-1].gpus
    return *chosen, layout.cp > 1, tuple(values[name] for name in _NUMBERS) if apart else ()


def _family_priced(setup: Setup, layouts: Sequence[Layout]) -> list[Outcome]:
    try:
        layout = _together(layouts)
        machine = machine_of(setup.cluster, setup.software)
        ledger = ledger_of(setup.model, machine, layout, setup.workload, setup.software)
        times, peaks = ledger.time_s(), _footprint(setup, layout).peak_bytes
    except ShardcostError as error:
        if len(layouts) == 1:
            return [_joined_outcome(setup, layouts[0]) or Outcome(reason=reason_of(error))]
        return [outcome for one in layouts for outcome in _family_priced(setup, [one])]
    columns = (np.broadcast_to(column, len(layouts)).tolist() for column in (times, peaks))
    return [_outcome(setup, *row) for row in zip(layouts, *columns, strict=True)]


def _joined_outcome(setup: Setup, layout: Layout) -> Outcome | None:
    """Return what a layout comes to on the cluster's usual network; None where it has no price."""
    joined = setup.joined
    if joined is None or joined.cluster.network is None:
        return None
    outcome = _family_priced(joined, [layout])[0]
    return outcome._replace(network=joined.cluster.network.name) if outcome.possible else None


def _together(layouts: Sequence[Layout]) -> Layout:
    """Return layouts as one of arrays; a number that all of them share stays a number."""
    columns = {name: [getattr(each, name) for each in layouts] for name in _NUMBERS}
    arrays: dict[str, Any] = {
        name: np.array(each) for name, each in columns.items() if len(set(each)) > 1
    }
    return replace(layouts[0], **arrays) if arrays else layouts[0]


def _footprint(setup: Setup, layout: Layout) -> Memory:
    machine = machine_of(setup.cluster, setup.software)
    return footprint(setup.model, machine, layout, setup.workload, setup.software)


def _outcome(setup: Setup, layout: Layout, time_s: float, peak_bytes: float) -> Outcome:
    if peak_bytes <= setup.cluster.device.memory_bytes:
        return Outcome(time_s, peak_bytes, fits=True)
    words = _footprint(setup, layout).reason() or ""
    return Outcome(time_s, peak_bytes, reason=Reason("does_not_fit_memory", words))


def fitting(setup: Setup, changes: Iterable[Change]) -> list[Change]:
    """Return the changes that are possible by every rule and fit the memory."""
    device = setup.cluster.device
    return [
        each
        for each in changes
        if each.layout is not None
        and first_reason(setup.model, each.layout, setup.workload) is None
        and _footprint(setup, each.layout).peak_bytes <= device.memory_bytes
    ]


def offered(setup: Setup, gpus: int | None = None) -> dict[str, list[Any]]:
    """Return the axes that apply, each with its values, the present one included.

    Args:
        setup: The present layout.
        gpus: Devices to divide; the present ones if None.
    """
    return {**dict(_degrees_offered(setup, gpus or setup.gpus)), **dict(_choices_offered(setup))}


def _degrees_offered(setup: Setup, gpus: int) -> Iterator[tuple[str, list[int]]]:
    layout, model = setup.layout, setup.model
    node, domain = int(setup.cluster.gpus_per_node), int(setup.cluster.tiers[-1].gpus)
    most = max(2 * gpus, min(_TIMES_GPUS * max(gpus, node), _MOST_GPUS))
    wholes = (each for size in (1, node, domain) for each in _doubled(size, most))
    yield "gpus", sorted({*wholes, setup.gpus})
    heads, tokens, layers = _heads(setup), _tokens(setup.workload), int(model.num_layers)
    whole = not isinstance(setup.workload, Decode)  # a cache may be spread unevenly
    yield "tp", _divisions(gpus, heads or gpus, int(layout.tp), even=heads is not None)
    yield "cp", _divisions(gpus, tokens, int(layout.cp), even=whole)
    yield "pp", _divisions(gpus, layers, int(layout.pp), even=False)
    dp, inner = int(layout.dp), setup.gpus // int(layout.dp)
    training = isinstance(setup.workload, Train)
    sequences = int(getattr(setup.workload, "global_batch" if training else "batch"))
    replicas = min(most // inner, sequences // int(layout.micro_batch))
    yield "dp", sorted({*_doubled(1, replicas), *_doubled(dp, replicas), *_halved(dp)})
    experts = model.most_experts
    if experts:
        yield "ep", sorted({*divisors(experts), int(layout.ep)})


def _choices_offered(setup: Setup) -> Iterator[tuple[str, list[Any]]]:
    layout, workload = setup.layout, setup.workload
    if isinstance(workload, Train):
        pp, layers = int(layout.pp), int(setup.model.num_layers)
        even = {stages for places in LAYER_PLACES for stages in divisors(layers + places)}
        virtual_stages = {stages for stages in even if pp * stages in even} if pp > 1 else {1, 2}
        yield "virtual_stages", sorted({*virtual_stages, 1, int(layout.virtual_stages)})
        sequences = divisors(max(1, int(workload.global_batch) // int(layout.dp)))
        few = takewhile(lambda each: each <= _MOST_SEQUENCES, sequences)
        yield "micro_batch", sorted({*few, int(layout.micro_batch)})
    for option in LAYOUT:
        choices = option.free_choices(workload.phase)
        if choices and (option.name != "context_scheme" or layout.cp > 1):
            yield option.name, list(choices)


def _doubled(first: int, most: int) -> Iterator[int]:
    """Yield a number and what doubling it leads to, up to some number."""
    while first <= most:
        yield first
        first *= 2


def _halved(number: int) -> Iterator[int]:
    """Yield a number and its halves, as long as they are whole."""
    while number % 2 == 0:
        yield number
        number //= 2
    yield number


def _divisions(gpus: int, parts: int, current: int, *, even: bool) -> list[int]:
    """Return degrees that divide parts over devices: powers of two, and others that go evenly."""
    most = min(gpus, parts)
    known = divisors(gpus) if gpus <= _MOST_DIVIDED else ()
    whole = {each for each in known if each <= most and not (even and parts % each)}
    return sorted({*_doubled(1, most), *whole, current})


def _heads(setup: Setup) -> int | None:
    """Return how many heads tensor parallelism divides, at most; None where there are none."""
    if setup.layout.scheme != "1d":
        return None
    names = ("heads", "key_heads")
    parts = [block.attention for block in setup.model.blocks]
    return max((int(getattr(part, name, 0)) for part in parts for name in names), default=0) or None


def _tokens(workload: Workload) -> int:
    """Return the tokens of a sequence, which context parallelism divides."""
    if isinstance(workload, Train):
        return int(workload.sequence_length)
    if isinstance(workload, Prefill):
        return int(workload.prompt_tokens)
    return int(getattr(workload, "context_tokens", 1))

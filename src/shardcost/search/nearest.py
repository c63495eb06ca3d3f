"""The layout nearest to one that was asked for that runs: `nearest`.

The page asks it where a change of the question leads to a layout that cannot be: fewer GPUs than
tensor parallelism takes, a count that the degrees do not divide, a phase that needs more memory.
What was changed last is kept; degrees give way as they do for a slider (`with_room`), and where the
layout must fit as well, the smallest change that makes it (`advice.remedy`), else the best layout
on the fewest GPUs that hold one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from shardcost.cluster import Cluster
from shardcost.errors import InfeasibleError, ShardcostError
from shardcost.estimate.step import software_of
from shardcost.layout import Layout
from shardcost.model import Model
from shardcost.options import LAYOUT
from shardcost.search.advice import remedy
from shardcost.search.steps import Setup, outcomes, steps_of, with_room
from shardcost.software import Software
from shardcost.workload import Workload

_DEGREES: Final = ("tp", "cp", "pp")
_DEPENDENT: Final = (
    "ep", "etp", "virtual_stages", "schedule", "shard_degree", "recompute_layers",
    "first_stage_layers", "last_stage_layers",
)  # fmt: skip
"""Fields that other fields of a layout may be against, with which it begins anew."""
_MOST_GPUS: Final = 4096
"""GPUs up to which a layout that fits is searched for."""
_FREE: Final = ("tp", "pp", "dp", "ep", "zero", "recompute", "micro_batch")
"""Axes of that search."""


class Nearest(NamedTuple):
    """A layout that runs."""

    layout: Layout
    network: str
    """The cluster's usual network, where it needs one and none was named."""
    patch: Mapping[str, Any]
    """Options of the question and their new values; None for one that others decide."""

    def words(self, gpus: int | None) -> str:
        """Return what is not as it was asked for: ``16 GPUs, tp8pp2, ib_8x400g``."""
        said = [f"{self.layout.devices:,} GPUs"] if self.layout.devices != gpus else []
        changed = [name for name in self.patch if name not in {"gpus", "dp", "network"}]
        if said or {"tp", "cp", "pp", "ep"} & set(changed):
            said.append(self.layout.short())
        for name in changed:
            if name not in {"tp", "cp", "pp", "ep"}:
                value = getattr(self.layout, name)
                shown = ("off", "on")[value] if isinstance(value, bool) else value
                words = "ZeRO" if name == "zero" else name.replace("_", " ")
                said.append(f"{words} {shown}")
        return ", ".join([*said, *([self.network] if self.network else [])])


def nearest(
    model: Model,
    cluster: Cluster,
    wanted: Mapping[str, Any],
    gpus: int | None,
    workload: Workload,
    software: Software | str | None = None,
    *,
    kept: Collection[str] = (),
    fits: bool = False,
) -> Nearest | None:
    """Return the nearest layout that runs; None where there is none.

    >>> from shardcost import Decode
    >>> model, cluster = Model.named("llama3-70b"), Cluster.named("h100_sxm")
    >>> work = Decode(batch=64, context_tokens=4096)
    >>> nearest(model, cluster, {"tp": 8}, 4, work, kept=["gpus"]).layout.short()
    'tp4'

    Args:
        model: What is run.
        cluster: Where; its usual network is taken where one is needed and it has none.
        wanted: Fields of the layout that was asked for; they need not make one.
        gpus: GPUs in all, if they were asked for.
        workload: `Train`, `Prefill` or `Decode`.
        software: The framework or engine; as for `estimate` if left out.
        kept: Fields that stay as they are wanted, ``gpus`` among them.
        fits: Whether it must fit the memory too.
    """
    runs = software_of(software, workload, [cluster])
    work = workload.in_formats_of(model, narrow_cache=runs.narrow_cache)
    for start in _starts(wanted):
        setup = Setup(model, cluster, start, work, runs)
        values = {name: getattr(start, name) for name in _DEGREES if name in kept}
        change = with_room(setup, {**values, "gpus": _devices(start, values, gpus)})
        if change.layout is None:
            continue
        outcome = outcomes(setup, [change])[id(change)]
        if not outcome.possible:
            continue
        if outcome.fits or not fits:
            return _found(wanted, gpus, change.layout, outcome.network)
        return _fitting(replace(setup, layout=change.layout), wanted, gpus)
    return None


def _starts(wanted: Mapping[str, Any]) -> Iterator[Layout]:
    """Yield the layout that was asked for, of one replica, without what may be against it."""
    given = {name: value for name, value in wanted.items() if name != "dp" and value is not None}
    bare = {name: value for name, value in given.items() if name not in _DEPENDENT}
    for fields in (given, bare):
        try:
            # Replicas follow from the GPUs; as many as experts need, to begin with.
            yield Layout(**fields, dp=int(fields.get("ep") or 1))
        except InfeasibleError:
            continue


def _devices(start: Layout, values: Mapping[str, int], gpus: int | None) -> int:
    """Return the GPUs, more where the degrees that are kept do not divide them."""
    size = 1
    for value in values.values():
        size *= value
    wanted = gpus or int(start.tp * start.cp * start.pp)
    return -(-wanted // size) * size


def _fitting(setup: Setup, wanted: Mapping[str, Any], gpus: int | None) -> Nearest | None:
    """Return the nearest layout that fits the memory as well."""
    change = remedy(setup, None, steps_of(setup))
    if change is not None:
        return _found(wanted, gpus, change.layout, str(change.patch.get("network", "")))
    return _smallest(setup, wanted, gpus)


def _smallest(setup: Setup, wanted: Mapping[str, Any], gpus: int | None) -> Nearest | None:
    """Return the fastest layout on as few GPUs as hold one, by doubling."""
    from shardcost.search.run import search

    joined = setup.joined or setup
    fixed = {
        option.name: [getattr(setup.layout, option.name)]
        for option in LAYOUT
        if option.axis and option.name not in _FREE
    }
    fixed |= {"schedule": ["1f1b"], "virtual_stages": [1]}
    space = {
        name: values for name, values in fixed.items() if setup.workload.phase in _phases(name)
    }
    count = setup.gpus
    while count <= _MOST_GPUS:
        try:
            result = search(
                setup.model, joined.cluster, setup.workload,
                space={**space, "gpus": [count]}, software=setup.software, top=1,
            )  # fmt: skip
        except ShardcostError:
            return None
        if result.best:
            network = joined.cluster.network if setup.cluster.network is None else None
            needed = network is not None and count > setup.cluster.tiers[-1].gpus
            name = network.name if needed and network is not None else ""
            return _found(wanted, gpus, result.best[0].layout, name)
        count *= 2
    return None


def _phases(name: str) -> tuple[str, ...]:
    return next(option.applies_to for option in LAYOUT if option.name == name)


def _found(wanted: Mapping[str, Any], gpus: int | None, layout: Layout, network: str) -> Nearest:
    """Return a layout with what it changes of what was wanted."""
    usual = Layout()
    patch: dict[str, Any] = {}
    for name in (option.name for option in LAYOUT if option.name != "dp"):
        before = wanted.get(name)
        value = getattr(layout, name)
        if value != (getattr(usual, name) if before is None else before):
            patch[name] = value
    if layout.devices != gpus or {*_DEGREES} & set(patch) or wanted.get("dp") is not None:
        patch |= {"gpus": int(layout.devices), "dp": None}
    if network:
        patch["network"] = network
    return Nearest(layout, network, patch)

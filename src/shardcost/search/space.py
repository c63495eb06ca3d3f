"""Where a search looks: the values of each axis, given or all that a model and its devices allow.

Axes of numbers (degrees, micro-batches, virtual stages) make up the grid of one *family*; choices
of words (recomputation, schedule, ZeRO stage, …) say which family it is, because they change which
formulas run. Degrees multiply to the number of devices, so the grid's first axis is a list of
*meshes*: ways to write the devices as ``tp x cp x pp x dp``.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from itertools import combinations, product
from math import comb, prod
from operator import or_
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcost.cluster import Cluster
from shardcost.errors import BadValueError, Reason, Rule
from shardcost.layout import Layout
from shardcost.model import Experts, Model
from shardcost.option import Option
from shardcost.options import AXES, OWN_AXES
from shardcost.records import NamedTuple, dataclass
from shardcost.search.objectives import by_name
from shardcost.software import Software
from shardcost.workload import Train, Workload

Counts = tuple[int, ...]
MOST_COUNT: Final = 2**20
"""Of the devices and the batch of a search: none has more than 240 divisors."""
MOST_QUESTIONS: Final = 1024
"""Models x machines x engines x workloads of a search."""
MOST_FAMILIES: Final = 2**18
MOST_MESHES: Final = 2**21
"""Of one model on one cluster: all of them are listed."""
DEGREES: Final = tuple(name for name, each in AXES.items() if each.axis == "degree")
"""Numbers along the grid's first axis."""
SIZES: Final = tuple(name for name, each in AXES.items() if each.axis == "size")
"""Numbers along its other axes."""
CHOICES: Final = tuple(name for name in AXES if name not in {*DEGREES, *SIZES})
"""In the order in which families follow each other: those that change least last."""
SOFTWARE_CHOICES: Final = tuple(name for name in CHOICES if Software in AXES[name].nouns)
_SAME_LAYOUT: Final = Rule("same_layout", "the same layout twice: {}")
LAYOUT_CHOICES: Final = tuple(name for name in CHOICES if Layout in AXES[name].nouns)
SHAPING: Final = (
    "scheme",
    "context_scheme",
    "sequence_parallel",
    "shard_degree",
    "etp",
    "redundant_experts",
    "recompute_layers",
    "recompute_method",
    "first_stage_layers",
    "last_stage_layers",
    "expert_overlap",
)
"""Choices that change which layouts are possible, whatever the schedule."""


def _usual(option: Option) -> Any:
    """Return the values of an axis that is not given: one where it is fixed to its default."""
    return (option.default,) if option.axis == "fixed" and Layout in option.nouns else None


_USUAL: Final = {name: _usual(each) for name, each in AXES.items()}
_Axes: Any = dataclass(frozen=True)(
    type("_Axes", (), {"__doc__": "Axes.", "__annotations__": dict.fromkeys(AXES, Any), **_USUAL})
)


class Space(_Axes):  # type: ignore[misc]  # its fields are the axes of the table of options
    """Values of every axis, each a tuple; None stands for all that are possible.

    Of `gpus` that is one node, of `batch` the workload's own, of the overlaps the software's own.

    >>> Space.of({"gpus": 64, "tp": (4, 8)}).tp
    (4, 8)
    """

    @classmethod
    def of(cls, given: Space | Mapping[str, Any] | None) -> Space:
        """Return a space from values by axis, single ones or several."""
        if isinstance(given, Space):
            return given
        values = by_name("axis", given, cls)
        return cls(**{name: _values(name, value) for name, value in values.items()})

    def complete(
        self, model: Model, cluster: Cluster, workload: Workload, software: Software
    ) -> Space:
        """Return the space with every axis filled in."""
        training = isinstance(workload, Train)
        for name in OWN_AXES:
            for count in getattr(self, name) or ():
                bounded(f"axis {name}", count)
        if isinstance(workload, Train):
            bounded("global_batch", int(workload.global_batch))
        gpus = self.gpus or (int(cluster.gpus_per_node),)
        degrees = tuple(sorted({each for count in gpus for each in divisors(count)}))
        batch = int(getattr(workload, "global_batch" if training else "batch"))
        parts = (block.feed_forward for block in model.blocks)
        counts = {int(part.count) for part in parts if isinstance(part, Experts)}
        copies = self.redundant_experts or (0,)
        held = {count + more for count in counts for more in copies}
        experts = {degree for count in held for degree in divisors(count)}
        layers = int(model.num_layers)
        # Frameworks divide the layers, or the layers with embedding and head, evenly.
        even = {*divisors(layers), *divisors(layers + 2)}
        usual: dict[str, Any] = {
            **dict.fromkeys(("tp", "cp", "pp", "dp"), degrees),
            "gpus": gpus,
            "ep": tuple(sorted(experts)) or (1,),
            "micro_batch": divisors(batch) if training else (1,),
            "batch": (batch,),
            "virtual_stages": tuple(sorted(even)) if training else (1,),
            **{name: (getattr(software, name),) for name in SOFTWARE_CHOICES},
            **{
                name: AXES[name].free_choices(workload.phase) or (AXES[name].default,)
                for name in LAYOUT_CHOICES
            },
        }
        if training and self.batch not in {None, (batch,)}:
            raise BadValueError("axis batch", self.batch, "left out in training: micro_batch is it")
        missing = {name: value for name, value in usual.items() if getattr(self, name) is None}
        whole = replace(self, **missing)
        whole._check_size()
        return whole

    def _check_size(self) -> None:
        """Raise for more families or meshes than are worth a list, before there is one."""
        families = prod(len(getattr(self, name)) for name in CHOICES)
        if families > MOST_FAMILIES:
            rule = f"at most {MOST_FAMILIES:,} in a search: give fewer values of some"
            raise BadValueError("combinations of choices", families, rule)
        given = prod(len(getattr(self, name)) for name in ("tp", "cp", "pp"))
        meshes = len(self.ep or ()) * sum(min(given, _ways(gpus)) for gpus in self.gpus or ())
        if meshes > MOST_MESHES:
            rule = f"at most {MOST_MESHES:,} in a search: give fewer values of gpus or ep"
            raise BadValueError("ways to divide the GPUs", meshes, rule)

    def families(self) -> list[Family]:
        """Return every combination of choices."""
        return [Family(*each) for each in product(*(getattr(self, name) for name in CHOICES))]

    def meshes(self) -> Meshes:
        """Return every way to write the devices as a product of degrees."""
        rows = [mesh for gpus in self.gpus or () for mesh in self._written(gpus)]
        grid = np.array(rows, dtype=np.int64).reshape(-1, 5)
        grid, dp = grid[:, :4], grid[:, 4]
        wanted = np.isin(dp, self.dp or ())
        columns = [*grid[wanted].T, dp[wanted]]
        experts = np.array(self.ep or (1,), dtype=np.int64)
        spread = [np.repeat(column, len(experts)) for column in columns]
        spread.append(np.tile(experts, int(wanted.sum())))
        return Meshes(*spread)

    def _written(self, gpus: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield a number of devices as ``tp x cp x pp x dp``, in every way."""
        for tp in self.tp or ():
            for cp in self.cp or ():
                left, rest = divmod(gpus, tp * cp)
                if rest:
                    continue
                for pp in self.pp or ():
                    if left % pp == 0:
                        yield gpus, tp, cp, pp, left // pp


if TYPE_CHECKING:
    _Choices: Any
else:
    _Choices = namedtuple("_Choices", CHOICES)


class Family(_Choices):  # type: ignore[misc]
    """One combination of choices; they decide which formulas run."""

    __slots__ = ()

    def layout(self, **numbers: Any) -> Layout:
        """Return a layout of the family."""
        return Layout(**{name: getattr(self, name) for name in LAYOUT_CHOICES}, **numbers)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The choices that change which layouts are possible, whatever the schedule."""
        # Recomputation only has rules with layers of its own, or of other schemes than 1d.
        ruled = self.recompute_layers is not None or self.scheme != "1d"
        own = (self.recompute,) if ruled else ()
        return *(getattr(self, name) for name in SHAPING), *own

    @property
    def overlap(self) -> tuple[Any, ...]:
        """The choices that are the software's."""
        return tuple(getattr(self, name) for name in SOFTWARE_CHOICES)

    def software(self, given: Software) -> Software:
        """Return a software with the family's overlap."""
        chosen = dict(zip(SOFTWARE_CHOICES, self.overlap, strict=True))
        if all(getattr(given, name) == value for name, value in chosen.items()):
            return given
        return replace(given, **chosen)


class Meshes(NamedTuple):
    """Degrees of parallelism that multiply to the devices, one array each."""

    gpus: NDArray[np.int64]
    tp: NDArray[np.int64]
    cp: NDArray[np.int64]
    pp: NDArray[np.int64]
    dp: NDArray[np.int64]
    ep: NDArray[np.int64]

    def some(self, which: Any) -> Meshes:
        """Return some of the meshes."""
        return Meshes(*(column[which] for column in self))

    @property
    def number(self) -> int:
        """How many there are."""
        return len(self.tp)


def bounded(name: str, count: int) -> int:
    """Return a number of devices or sequences if a search may list its divisors."""
    if count > MOST_COUNT:
        raise BadValueError(name, count, f"at most {MOST_COUNT:,} in a search")
    return count


def check_questions(count: int) -> None:
    """Raise for more questions than a search may have."""
    if count > MOST_QUESTIONS:
        rule = f"at most {MOST_QUESTIONS:,} in a search: give fewer values of some"
        raise BadValueError("models x machines x engines x formats x lengths", count, rule)


def _ways(number: int) -> int:
    """Return in how many ways a number can be written as a product of four.

    >>> _ways(8), _ways(720720)
    (20, 89600)
    """
    ways, prime = 1, 2
    while number > 1:
        if prime * prime > number:
            prime = number
        power = 0
        while number % prime == 0:
            number, power = number // prime, power + 1
        ways *= comb(power + 3, 3)
        prime += 1
    return ways


def divisors(number: int) -> Counts:
    """Return all divisors of a number, in order.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return tuple(sorted({*small, *(number // each for each in small)}))


def _values(name: str, given: Any) -> tuple[Any, ...] | None:
    """Return the values of an axis as a tuple, checked as far as the axis alone decides."""
    if given is None and name != "shard_degree":
        return None
    single = given is None or isinstance(given, str | int) or not isinstance(given, Iterable)
    values = (given,) if single else tuple(given)
    if not values:
        raise BadValueError(f"axis {name}", given, "at least one value")
    return tuple(dict.fromkeys(AXES[name].rule(f"axis {name}", each) for each in values))


class Duplicates:
    """Where a family's layouts do what others of the space do, by the choice to blame.

    A choice that changes nothing is priced once: with the first of its values.
    """

    def __init__(self, space: Space, meshes: Meshes) -> None:
        self.space, self.meshes = space, meshes
        replicas = meshes.dp * meshes.cp
        self._alone = {
            "sequence_parallel": ("sequence parallelism without tp", meshes.tp == 1),
            "scheme": ("a partition scheme without tp", meshes.tp == 1),
            "tp_overlap": ("overlap of tp without tp", meshes.tp == 1),
            "etp": ("an expert tensor degree without tp", meshes.tp == 1),
            "dispatch": ("a dispatch without ep", meshes.ep == 1),
            "expert_overlap": ("overlap of experts without ep", meshes.ep == 1),
            "zero": ("a ZeRO stage without replicas", replicas == 1),
            "dp_overlap": ("overlap of gradients without replicas", replicas == 1),
            "context_scheme": ("a context scheme without cp", meshes.cp == 1),
            "schedule": ("a schedule without pp", meshes.pp == 1),
        }

    def of(self, family: Family) -> dict[Reason, NDArray[np.bool_]]:
        """Return which meshes are duplicates in a family, by reason."""
        space, same = self.space, {}
        for choice, (what, where) in self._alone.items():
            if getattr(family, choice) != getattr(space, choice)[0]:
                same[what] = where
        if family.schedule == "interleaved" and "1f1b" in (space.schedule or ()):
            # Of several values interleaving has those above 1 (`Question.virtual_stages`).
            once = set(space.virtual_stages or ()) == {1}
            same["interleaving with one virtual stage"] = np.full(self.meshes.number, once)
        earlier = space.order[: space.order.index(family.order)]
        if earlier:
            where = reduce(or_, (self._same_place(family.order, order) for order in earlier))
            same["an order that places no group elsewhere"] = where
        return {_SAME_LAYOUT.reason(what): where for what, where in same.items()}

    def _same_place(self, order: str, other: str) -> NDArray[np.bool_]:
        """Return where two orders put every group of more than one rank at the same place."""
        mine, theirs = (each.split("-") for each in (order, other))
        same = np.ones(self.meshes.number, dtype=bool)
        for one, two in combinations(mine, 2):
            if theirs.index(one) > theirs.index(two):
                same &= (getattr(self.meshes, one) == 1) | (getattr(self.meshes, two) == 1)
        return same

"""From residuals to intervals: groups of rows alike, how far apart they are, whether that holds.

Groups form levels, from those that agree in most facts to all rows. A group counts if it has enough
rows. Its reach is the size below which nine of ten of its residuals are, either way: the bias of
some systems says nothing of another. It leans towards the reach of the group that it is part of,
the more so the fewer rows it has, and reaches no less far than that of measured systems alike.

Residuals of one part (of what was left out together) hang together, so that the reach of some parts
may be too short for another. So every part is tried by the residuals of all *other* rows, and
reaches are lengthened by the factor under which nine of ten are inside: split conformal prediction
with whole parts left out, scores being residuals in units of their group's reach (Lei et al., JASA
113, 2018). But none is lengthened beyond what holds nine of ten of its group's farthest part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab.left_out import Tried
from lab.parts import Mask
from shardcost.catalog.errors import CONFIDENCE_PCT, MEASURED, REPEATS, Facts
from shardcost.validate.predictions import Floats

Level = tuple[str, ...]
INSIDE: Final = CONFIDENCE_PCT / 100
_ENOUGH_OTHERS: Final = 20
"""Residuals that must be left for a part to be tried by them."""
_LEAN: Final = 40
"""Rows of the coarser group that count in a finer one."""
_ENOUGH_TO_LENGTHEN: Final = 100
"""Residuals whose scores make a factor of their own."""
_ENOUGH_OF_A_PART: Final = 10
"""Residuals of a part that tell how far it reaches."""


class Plan(NamedTuple):
    """How the residuals of a kind are grouped."""

    levels: tuple[Level, ...]
    """The facts that groups agree in, the finest level first; the last has none."""
    factors: tuple[Level, ...]
    """The same for the factors that reaches are lengthened by."""
    least: float = REPEATS
    """No reach is shorter."""
    enough: int = 40
    """Rows that make a group."""

    def factor_level(self, level: Level) -> Level:
        """Return the finest level of factors that groups of a level belong to."""
        return next(factor for factor in self.factors if set(factor) <= set(level))


class Group(NamedTuple):
    """Rows alike."""

    key: Facts
    rows: int
    parts: int
    reach: float
    median_pct: float


class Pool:
    """All residuals of a kind, ready to be grouped."""

    def __init__(self, tried: Sequence[Tried], plan: Plan) -> None:
        self.plan = plan
        self.residuals: Floats = np.concatenate([trial.residuals for trial in tried])
        self.rows = np.concatenate([trial.rows for trial in tried])
        self.splits = np.array([trial.split for trial in tried for _ in trial.rows])
        self.facts = [facts for trial in tried for facts in trial.facts]
        labels = [f"{trial.split}: {part}" for trial in tried for part in trial.parts]
        self.part_names, self.parts = np.unique(labels, return_inverse=True)
        # A part counts by the root of its rows: neither as one nor as all of them.
        self.weights: Floats = np.bincount(self.parts)[self.parts].astype(np.float64) ** -0.5

    @cached_property
    def codes(self) -> list[NDArray[np.intp]]:
        """By level, which group each residual belongs to."""
        return [
            np.array([known[self._key(facts, level)] for facts in self.facts], dtype=np.intp)
            for level, known in zip(self.plan.levels, self._known, strict=True)
        ]

    @cached_property
    def _known(self) -> list[dict[tuple[str, ...], int]]:
        """By level, the number of each group."""
        every = []
        for level in self.plan.levels:
            keys = dict.fromkeys(self._key(facts, level) for facts in self.facts)
            every.append({key: number for number, key in enumerate(keys)})
        return every

    @staticmethod
    def _key(facts: Facts, level: Level) -> tuple[str, ...]:
        return tuple(facts.get(name, "") for name in level)

    def _measured_twin(self, place: int, used: Mask, number: int) -> NDArray[np.intp]:
        """Return the residuals of the group alike in all but that its systems were measured."""
        facts, level = self.facts[place], self.plan.levels[number]
        if "standing" not in level or facts.get("standing") == MEASURED:
            return np.empty(0, dtype=np.intp)
        twin = self._key({**facts, "standing": MEASURED}, level)
        return np.flatnonzero(used & (self.codes[number] == self._known[number].get(twin, -1)))

    def counts(self, members: NDArray[np.intp], number: int) -> bool:
        """Return whether some residuals are of enough rows; all of them together always are."""
        if number + 1 == len(self.plan.levels):
            return True
        return len(np.unique(self.rows[members])) >= self.plan.enough

    def _alike(self, place: int, used: Mask, number: int) -> NDArray[np.intp]:
        codes = self.codes[number]
        return np.flatnonzero(used & (codes == codes[place]))

    def _reach(self, members: NDArray[np.intp]) -> float:
        sizes = np.abs(self.residuals[members])
        return max(self.plan.least, weighted_quantile(sizes, self.weights[members], INSIDE))

    def reach(self, place: int, used: Mask, start: int = 0) -> tuple[float, int]:
        """Return the reach of the finest group of a residual that counts, and the group's level.

        Args:
            place: Which residual.
            used: Which residuals may be used.
            start: The level to begin at.
        """
        last = len(self.plan.levels) - 1
        number = start
        members = self._alike(place, used, number)
        while not self.counts(members, number):
            number += 1
            members = self._alike(place, used, number)
        own = self._reach(members)
        twin = self._measured_twin(place, used, number)
        if len(twin) and self.counts(twin, number):
            own = max(own, self._reach(twin))  # what nobody measured is not known better
        if number == last:
            return own, number
        coarser, _ = self.reach(place, used, number + 1)
        share = len(members) / (len(members) + _LEAN)
        return share * own + (1 - share) * coarser, number

    def farthest(self, members: NDArray[np.intp]) -> float:
        """Return the longest reach of a part of some residuals, of those that have enough rows."""
        results = []
        for part in np.unique(self.parts[members]):
            sizes = np.abs(self.residuals[members[self.parts[members] == part]])
            if len(sizes) >= _ENOUGH_OF_A_PART:
                results.append(float(np.quantile(sizes, INSIDE)))
        return max(results, default=np.inf)


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """Return below which value a share of the weight lies.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.ones(3), 0.5)
    2.0
    """
    order = np.argsort(values)
    ranks = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(share, ranks / weights.sum(), values[order]))


@dataclass(frozen=True, eq=False)
class Trial:
    """Each residual of a pool beside the reach that all rows but those of its part give."""

    pool: Pool
    reach: Floats
    """NaN where no other rows are left."""
    levels: NDArray[np.intp]

    @property
    def scores(self) -> Floats:
        """How far each residual is off, in units of its reach."""
        scores: Floats = np.abs(self.pool.residuals) / self.reach
        return scores

    @cached_property
    def factor_keys(self) -> list[tuple[Level, tuple[str, ...]]]:
        """Which factor each residual's reach is lengthened by."""
        plan = self.pool.plan
        levels = [plan.factor_level(plan.levels[number]) for number in self.levels]
        pairs = zip(levels, self.pool.facts, strict=True)
        return [(level, tuple(facts.get(name, "") for name in level)) for level, facts in pairs]

    @cached_property
    def factors(self) -> dict[tuple[Level, tuple[str, ...]], float]:
        """What reaches are lengthened by so that nine of ten hold; of small groups, that of all."""
        sound = np.isfinite(self.reach)
        members: dict[tuple[Level, tuple[str, ...]], list[int]] = {}
        for place in np.flatnonzero(sound):
            members.setdefault(self.factor_keys[place], []).append(int(place))
        return {
            key: self._factor(np.array(own))
            if len(own) >= _ENOUGH_TO_LENGTHEN
            else self.overall_factor
            for key, own in members.items()
        }

    @cached_property
    def overall_factor(self) -> float:
        """What reaches are lengthened by where too few residuals, or none, tell."""
        return self._factor(np.flatnonzero(np.isfinite(self.reach)))

    def _factor(self, places: NDArray[np.intp]) -> float:
        """Return the quantile of some scores; nothing is shortened."""
        if not len(places):
            return 1.0
        return max(1.0, weighted_quantile(self.scores[places], self.pool.weights[places], INSIDE))

    def factor_of(self, key: Facts) -> float:
        """Return what the reach of a group is lengthened by."""
        plan = self.pool.plan
        level = plan.factor_level(tuple(key))
        return self.factors.get((level, tuple(key[name] for name in level)), self.overall_factor)

    @property
    def lengthened(self) -> Floats:
        """The reach that each residual would have been given."""
        factors = np.array([self.factors.get(key, np.nan) for key in self.factor_keys])
        result: Floats = self.reach * factors
        return result


def tried_on_others(pool: Pool) -> Trial:
    """Return every residual beside the reach by the rows that were not left out with it."""
    reach = np.full(len(pool.residuals), np.nan)
    levels = np.zeros(len(pool.residuals), dtype=np.intp)
    for part in range(len(pool.part_names)):
        members = np.flatnonzero(pool.parts == part)
        used = ~np.isin(pool.rows, pool.rows[members])
        if used.sum() < _ENOUGH_OTHERS:
            continue
        known: dict[int, tuple[float, int]] = {}
        for place in members:
            group = int(pool.codes[0][place])
            if group not in known:
                known[group] = pool.reach(int(place), used)
            reach[place], levels[place] = known[group]
    return Trial(pool, reach, levels)


def groups(trial: Trial) -> Iterator[Group]:
    """Yield every group that counts, its reach lengthened, from the finest level on."""
    pool = trial.pool
    everything = np.ones(len(pool.residuals), dtype=bool)
    for number, level in enumerate(pool.plan.levels):
        for code in range(int(pool.codes[number].max()) + 1):
            members = np.flatnonzero(pool.codes[number] == code)
            if not pool.counts(members, number):
                continue
            key = {name: pool.facts[members[0]].get(name, "") for name in level}
            reach, _ = pool.reach(int(members[0]), everything, number)
            farthest = max(reach, pool.farthest(members))
            yield Group(
                key,
                len(np.unique(pool.rows[members])),
                len(np.unique(pool.parts[members])),
                min(reach * trial.factor_of(key), farthest),
                float(np.median(100 * np.abs(np.expm1(pool.residuals[members])))),
            )

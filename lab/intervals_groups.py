"""From residuals to intervals: groups of rows alike, how far apart they are, whether that holds.

Groups form levels, from those that agree in most facts to all rows. A group counts if it has enough
rows. Its reach is the size below which nine of ten of its residuals are, either way: the bias of
some systems says nothing of another; of few rows, the next larger size (the conformal quantile,
ceil(0.9 (n + 1)) of n). It leans towards the reach of the group that it is part of, the more so the
fewer rows it has, and reaches no less far than that of measured systems alike.

Residuals of one part (of what was left out together) hang together, so that the reach of some parts
may be too short for another. So every part is tried by the residuals of all *other* rows: split
conformal prediction with whole parts left out, scores being residuals in units of their group's
reach (Lei et al., JASA 113, 2018). Reaches are then multiplied by a factor for every value of every
fact that has enough residuals (an engine, a kind of links, a phase), so that nine of ten are inside
not only on the whole but for each of them: group-conditional conformal prediction (Gibbs, Cherian
and Candès, arXiv:2305.12616), the factors being found one after the other until all hold.

Runs on more GPUs than any that constants were fitted to are apart: how much longer reaches must be
for every doubling beyond, so that nine of ten of them are inside (`Trial.per_doubling`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, log
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
ENOUGH_TO_SHORTEN: Final = 100
"""Rows of a value of a fact whose reach may become shorter …"""
_ENOUGH_TO_LENGTHEN: Final = 10
"""… and residuals of one whose reach may become longer: few rows never make an interval narrow."""
_LEAST_PER_DOUBLING: Final = 0.03
"""Where larger runs that were left out need nothing more: what is asked for is larger still."""
_ENOUGH_OF_A_PART: Final = 10
"""Residuals of a part that tell how far it reaches."""
_HOLDS: Final = (0.885, 0.915)
"""Shares inside that need no other factor."""
_SWEEPS: Final = 200
_STANDING: Final = "standing"
_STEP: Final = 0.2
"""How much of the way to the wanted factor is gone at once: facts that go together share it."""
_MOST: Final = 8.0
"""No factor is larger, or smaller than its inverse."""


class Plan(NamedTuple):
    """How the residuals of a kind are grouped."""

    levels: tuple[Level, ...]
    """The facts that groups agree in, the finest level first; the last has none."""
    beside: Level = ()
    """Further facts whose values have factors, but no groups of their own."""
    doubling: str = ""
    """The fact by whose values it differs what a doubling of GPUs adds; none if blank."""
    least: float = REPEATS
    """No reach is shorter."""
    enough: int = 40
    """Rows that make a group."""

    @property
    def facts(self) -> Level:
        """The facts whose values have factors."""
        return tuple(dict.fromkeys((*self.levels[0], *self.beside)))


class Group(NamedTuple):
    """Rows alike."""

    key: Facts
    rows: int
    parts: int
    reach: float
    median_pct: float
    most_gpus: int
    """The largest run among them; 0 where that is not known."""


class Pool:
    """All residuals of a kind, ready to be grouped."""

    def __init__(self, tried: Sequence[Tried], plan: Plan, gpus: Floats | None = None) -> None:
        """Take what was tried, and how many GPUs each row of the table is of, where that counts."""
        self.plan, self.gpus = plan, gpus
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

    def _measured_twin(self, facts: Facts, used: Mask, number: int) -> NDArray[np.intp]:
        """Return the residuals of the group alike in all but that its systems were measured."""
        level = self.plan.levels[number]
        if "standing" not in level or facts.get("standing") == MEASURED:
            return np.empty(0, dtype=np.intp)
        twin = self._key({**facts, "standing": MEASURED}, level)
        return np.flatnonzero(used & (self.codes[number] == self._known[number].get(twin, -1)))

    def level(self, facts: Facts, used: Mask) -> Level:
        """Return in which facts the group agrees whose reach what has some facts is given."""
        for number, level in enumerate(self.plan.levels):
            if self.counts(self._alike(facts, used, number), number):
                return level
        return ()

    def counts(self, members: NDArray[np.intp], number: int) -> bool:
        """Return whether some residuals are of enough rows; all of them together always are."""
        if number + 1 == len(self.plan.levels):
            return True
        return len(np.unique(self.rows[members])) >= self.plan.enough

    def _alike(self, facts: Facts, used: Mask, number: int) -> NDArray[np.intp]:
        code = self._known[number].get(self._key(facts, self.plan.levels[number]), -1)
        return np.flatnonzero(used & (self.codes[number] == code))

    def _reach(self, members: NDArray[np.intp]) -> float:
        if not len(members):
            return self.plan.least
        sizes, rows = np.abs(self.residuals[members]), len(np.unique(self.rows[members]))
        reach = weighted_quantile(sizes, self.weights[members], conformal_share(rows))
        return max(self.plan.least, reach)

    def reach(self, facts: Facts, used: Mask, start: int = 0) -> float:
        """Return the reach of the finest group that counts of what has some facts.

        Args:
            facts: Of a residual.
            used: Which residuals may be used.
            start: The level to begin at.
        """
        last = len(self.plan.levels) - 1
        number = start
        members = self._alike(facts, used, number)
        while not self.counts(members, number):
            number += 1
            members = self._alike(facts, used, number)
        own = self._reach(members)
        twin = self._measured_twin(facts, used, number)
        if len(twin) and self.counts(twin, number):
            own = max(own, self._reach(twin))  # what nobody measured is not known better
        if number == last:
            return own
        coarser = self.reach(facts, used, number + 1)
        share = len(members) / (len(members) + _LEAN)
        return share * own + (1 - share) * coarser


def conformal_share(rows: int) -> float:
    """Return which quantile of so many rows nine of ten further ones are below.

    >>> conformal_share(40), conformal_share(5), round(conformal_share(10**6), 4)
    (0.925, 1.0, 0.9)
    """
    return min(1.0, ceil(INSIDE * (rows + 1)) / rows)


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """Return below which value a share of the weight lies.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.ones(3), 0.5)
    2.0
    """
    order = np.argsort(values)
    ranks = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(share, ranks / weights.sum(), values[order]))


Factors = Mapping[tuple[str, str, bool], float]
"""What reaches are multiplied by, by fact, value and whether the group agrees in the fact; of all
of them, under two blanks."""
ALL: Final = ("", "", False)


@dataclass(frozen=True, eq=False)
class Trial:
    """Each residual of a pool beside the reach that all rows but those of its part give."""

    pool: Pool
    reach: Floats
    """NaN where no other rows are left."""
    levels: tuple[Level, ...]
    """In which facts the group of each residual agrees."""
    beyond: tuple[Tried, ...] = ()
    """What was tried on runs larger than any that constants were fitted to."""

    @property
    def scores(self) -> Floats:
        """How far each residual is off, in units of its reach."""
        scores: Floats = np.abs(self.pool.residuals) / self.reach
        return scores

    @cached_property
    def factors(self) -> Factors:
        """What reaches are multiplied by so that nine of ten hold, for every value of a fact."""
        return self.factors_by(np.isfinite(self.reach))

    def factors_by(self, used: Mask) -> Factors:
        """Return the factors that some of the residuals give."""
        facts = self.pool.facts
        members = {ALL: np.flatnonzero(used)}
        for name in self.pool.plan.facts:
            values = np.array([own.get(name, "") for own in facts])
            grouped = np.array([name in level for level in self.levels])
            members |= {
                (name, str(value), agreed): np.flatnonzero(used & (values == value) & alike)
                for value in np.unique(values[used])
                for agreed, alike in ((True, grouped), (False, ~grouped))
            }
        enough = {
            key: own
            for key, own in members.items()
            if len(own) >= _ENOUGH_TO_LENGTHEN or not key[0]
        }
        scores = self.scores.copy()
        logs = dict.fromkeys(enough, 0.0)
        for sweep in range(_SWEEPS):
            moved = False
            for key, own in enough.items():
                inside = np.mean(scores[own] <= 1) if len(own) else INSIDE
                if _HOLDS[0] <= inside <= _HOLDS[1]:
                    continue
                rows = len(np.unique(self.pool.rows[own]))
                least = -log(_MOST) if rows >= ENOUGH_TO_SHORTEN else 0.0
                if key[0] == _STANDING and key[1] != MEASURED:
                    # What nobody measured is not known better, however well some rows fit.
                    least = max(least, logs.get((_STANDING, MEASURED, key[2]), 0.0))
                if inside > INSIDE and logs[key] <= least:
                    continue
                wanted = float(np.log(np.quantile(scores[own], conformal_share(len(own)))))
                # Steps get shorter: two facts that share most residuals could go on for ever.
                longer = logs[key] + _STEP * wanted / (1 + sweep / 20)
                step = min(max(longer, least), log(_MOST)) - logs[key]
                logs[key] += step
                scores[own] *= exp(-step)
                moved = True
            if not moved:
                break
        for key in logs:
            if key[0] == _STANDING:
                logs[key] = max(logs[key], logs.get((_STANDING, MEASURED, key[2]), logs[key]))
        return {key: exp(longer) for key, longer in logs.items()}

    def factor_of(self, facts: Facts, level: Level = ()) -> float:
        """Return what the reach of a group is multiplied by for what has some facts.

        Args:
            facts: Of a residual.
            level: In which of them its group agrees.
        """
        return factor_of(self.factors, facts, level)

    @property
    def lengthened(self) -> Floats:
        """The reach that each residual would have been given."""
        of_each = zip(self.pool.facts, self.levels, strict=True)
        factors = np.array([self.factor_of(facts, level) for facts, level in of_each])
        result: Floats = np.maximum(self.pool.plan.least, self.reach * factors)
        return result

    def _doubled(self, tried: Tried) -> NDArray[np.str_]:
        """Return by which value of a fact it differs what a doubling adds, of larger runs."""
        return np.array([facts.get(self.pool.plan.doubling, "") for facts in tried.facts])

    @cached_property
    def reach_beyond(self) -> Floats:
        """The reach of larger runs as if they were no larger than others."""
        reach = []
        for tried in self.beyond:
            used = ~np.isin(self.pool.rows, tried.rows)
            known: dict[tuple[str, ...], float] = {}
            for facts in tried.facts:
                key = tuple(facts.get(name, "") for name in self.pool.plan.facts)
                if key not in known:
                    factor = self.factor_of(facts, self.pool.level(facts, used))
                    longer = self.pool.reach(facts, used) * factor
                    known[key] = max(self.pool.plan.least, longer)
                reach.append(known[key])
        return np.array(reach)

    @cached_property
    def per_doubling(self) -> dict[str, float]:
        """What is added to a reach for every doubling of GPUs beyond those that were measured.

        Of every part (a framework, a library on a system) what nine of ten of its residuals need;
        of parts, what nine of ten need: who extrapolates does so on one system.
        """
        needs: dict[str, list[float]] = {}
        start = 0
        for tried in self.beyond:
            reach = self.reach_beyond[start : start + len(tried.rows)]
            start += len(tried.rows)
            excess = (np.abs(tried.residuals) - reach) / doublings_of(tried)
            values = self._doubled(tried)
            for value in np.unique(values):
                own = excess[values == value]
                if len(own) >= _ENOUGH_OF_A_PART:
                    needs.setdefault(str(value), []).append(float(np.quantile(own, INSIDE)))
        return {
            value: max(_LEAST_PER_DOUBLING, float(np.quantile(own, conformal_share(len(own)))))
            for value, own in needs.items()
        }

    @property
    def widened_beyond(self) -> Floats:
        """The reach that larger runs would have been given."""
        more = [
            self.per_doubling.get(str(value), 0.0) * doublings
            for tried in self.beyond
            for value, doublings in zip(self._doubled(tried), doublings_of(tried), strict=True)
        ]
        result: Floats = self.reach_beyond + np.array(more)
        return result


def factor_of(factors: Factors, facts: Facts, level: Level) -> float:
    """Return the product of the factors of some facts, and of the one for all."""
    product = factors.get(ALL, 1.0)
    for name, value in facts.items():
        product *= factors.get((name, value, name in level), 1.0)
    return product


def doublings_of(tried: Tried) -> Floats:
    """Return how far beyond what was measured runs are; 0 of those that are not."""
    if tried.doublings is None:
        return np.zeros(len(tried.rows))
    return tried.doublings


def tried_on_others(pool: Pool, beyond: Sequence[Tried] = ()) -> Trial:
    """Return every residual beside the reach by the rows that were not left out with it."""
    reach = np.full(len(pool.residuals), np.nan)
    levels: list[Level] = [()] * len(reach)
    for part in range(len(pool.part_names)):
        members = np.flatnonzero(pool.parts == part)
        used = ~np.isin(pool.rows, pool.rows[members])
        if used.sum() < _ENOUGH_OTHERS:
            continue
        known: dict[int, tuple[float, Level]] = {}
        for place in members:
            group = int(pool.codes[0][place])
            if group not in known:
                facts = pool.facts[place]
                known[group] = pool.reach(facts, used), pool.level(facts, used)
            reach[place], levels[place] = known[group]
    return Trial(pool, reach, tuple(levels), tuple(beyond))


def groups(trial: Trial) -> Iterator[Group]:
    """Yield every group that counts, from the finest level on; factors are not in its reach."""
    pool = trial.pool
    everything = np.ones(len(pool.residuals), dtype=bool)
    for number, level in enumerate(pool.plan.levels):
        for code in range(int(pool.codes[number].max()) + 1):
            members = np.flatnonzero(pool.codes[number] == code)
            if not pool.counts(members, number):
                continue
            facts = pool.facts[members[0]]
            rows = np.unique(pool.rows[members])
            yield Group(
                {name: facts.get(name, "") for name in level},
                len(rows),
                len(np.unique(pool.parts[members])),
                pool.reach(facts, everything, number),
                float(np.median(100 * np.abs(np.expm1(pool.residuals[members])))),
                0 if pool.gpus is None else int(pool.gpus[rows].max()),
            )

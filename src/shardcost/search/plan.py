"""A search with the answers to what one asks next: `Plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from shardcost.search.answers import (
    Crossover,
    Gain,
    Loss,
    Relaxation,
    Stability,
    crossovers,
    losses,
    relaxations,
    sensitivity,
    stability,
)
from shardcost.search.found import Candidate, Found
from shardcost.search.objectives import Price

PRICED: Final = 20
"""Layouts to ask a search for, so that stability has rivals to look at beside those shown."""


class Plan(NamedTuple):
    """What a search found, and the answers to what one asks next."""

    found: Found
    top: int
    """How many of the best to show."""
    price: Price | None
    """Of a GPU for an hour."""
    caveats: tuple[str, ...]
    losses: tuple[Loss, ...] = ()
    gains: tuple[Gain, ...] = ()
    crossovers: tuple[Crossover, ...] = ()
    stability: Stability | None = None
    relaxations: tuple[Relaxation, ...] = ()

    @classmethod
    def of(
        cls,
        found: Found,
        *,
        top: int = 5,
        price: Price | None = None,
        caveats: Sequence[str] = (),
    ) -> Plan:
        """Return what a search found with the answers to it."""
        plan = cls(found, top, price, tuple(caveats))
        if not found.best:
            return plan._replace(relaxations=relaxations(found.questions, found))
        first, *others = found.best
        return plan._replace(
            losses=losses(first, others[0]) if others else (),
            gains=sensitivity(first, beyond=found.beyond),
            crossovers=crossovers(found),
            stability=stability(replace(found, best=found.best[:PRICED]), shown=min(top, PRICED)),
        )

    @property
    def best(self) -> tuple[Candidate, ...]:
        """Those to show."""
        return self.found.best[: self.top]

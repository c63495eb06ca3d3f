"""Whether the order of the best layouts outlasts the model's own errors: `stability`.

Every fitted constant stands in the catalog beside the error of its fit. Here each kind of operation
takes so many times as long as the model says, by a factor drawn from a lognormal distribution whose
median error is that of the fit; then the layouts are ranked anew. One factor holds for all layouts
of a draw, because a constant that is off is off for all of them: only what layouts have more or
less of than each other can change their order. What a fit leaves from one shape to the next within
a kind is not drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from random import Random
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcost.collectives.dispatch import DispatchTime
from shardcost.estimate.ledger import Ledger
from shardcost.estimate.price import Prices
from shardcost.machine.constants import NetworkConstants
from shardcost.program.operations import AttentionCore, Collective, Operation
from shardcost.records import NamedTuple
from shardcost.scalars import whole_number
from shardcost.search.found import Candidate, Found
from shardcost.software import Software

_MEDIAN_IN_SIGMAS: Final = 0.6744897501960817
"""Half of all draws from a normal distribution lie within so many standard deviations: its quantile
of 3/4, which `statistics.NormalDist` would compute at the cost of importing it."""
_HOST: Final = "host"
_HOSTS_OWN: Final = ("step_overhead_s", "host_per_sequence_s", "collective_wait_s")
"""Constants of a software that are seconds of the host, beside those of each kernel."""
_NINE_OF_TEN: Final = 0.9

Floats = NDArray[np.float64]


class Stability(NamedTuple):
    """What becomes of the best layouts when the model's constants move within their errors."""

    layouts: int
    """Compared with each other."""
    draws: int
    shown: int
    """Of the layouts, those that count as the top."""
    first_stays_pct: float
    """Draws in which the first stays the first."""
    changed: float
    """How many of the top leave it, on average."""
    errors: Mapping[str, float]
    """Median error in percent by kind of operation."""
    worst_loss_pct: float
    """By how much the first is behind the then best, at most in nine of ten draws."""


def stability(found: Found, draws: int = 64, seed: int = 0, shown: int = 5) -> Stability:
    """Return how steady the order of the best layouts of a search is.

    Args:
        found: A search; all of its best layouts are compared.
        draws: How often constants are drawn.
        seed: Of the draws: the same gives the same answer.
        shown: How many count as the top.
    """
    draws = whole_number("draws", draws, 1)
    shown = min(whole_number("shown", shown, 1), len(found.best))
    if not found.best:
        return Stability(0, draws, 0, 100.0, 0.0, {}, 0.0)
    drawn = _Drawn(draws, seed)
    scores = np.stack([each.score * drawn.slowdowns(each) for each in found.best])
    order = np.argsort(scores, axis=0, kind="stable")
    behind = scores[0] / scores.min(axis=0) - 1
    return Stability(
        layouts=len(found.best),
        draws=draws,
        shown=shown,
        first_stays_pct=100 * float((order[0] == 0).mean()),
        changed=float((order[:shown] >= shown).sum(axis=0).mean()),
        errors=dict(sorted(drawn.errors.items())),
        worst_loss_pct=100 * _at_share(np.sort(behind), _NINE_OF_TEN),
    )


def _at_share(ordered: Floats, share: float) -> float:
    """Return `np.quantile` of sorted numbers, which would import masked arrays."""
    last = len(ordered) - 1
    return float(np.interp(share * last, np.arange(last + 1), ordered))


class Kind(NamedTuple):
    """A kind of operation, and how far off its price typically is."""

    name: str
    error_pct: float


class _Drawn:
    """Factors by kind of operation and system, one for each draw."""

    def __init__(self, draws: int, seed: int) -> None:
        self.draws, self.seed = draws, seed
        self.errors: dict[str, float] = {}
        self._factors: dict[tuple[str, Kind], Floats] = {}
        self._slowed: dict[Software, Software] = {}

    def factors(self, system: str, kind: Kind) -> Floats:
        """Return how many times as long a kind of operation takes on a system, by draw."""
        known = self._factors.get((system, kind))
        if known is None:
            # By name, so that the draws of one kind do not depend on which others there are. Not
            # by NumPy's generators: importing them takes longer than all that is drawn here.
            normal = Random(f"{self.seed} {system} {kind.name}").gauss  # noqa: S311 - no secret
            sigma = kind.error_pct / 100 / _MEDIAN_IN_SIGMAS
            known = np.exp([normal(0.0, sigma) for _ in range(self.draws)])
            self._factors[system, kind] = known
            self.errors[kind.name] = max(kind.error_pct, self.errors.get(kind.name, 0.0))
        return known

    def slowdowns(self, candidate: Candidate) -> Floats:
        """Return the time of a layout over what the model says, by draw."""
        cluster = candidate.question.cluster
        program, software = candidate.estimate.program, candidate.software
        prices = candidate.estimate.ledger.prices
        kinds: dict[tuple[Any, ...], Kind] = {}

        def how(op: Operation, seconds: Any) -> Any:
            if not seconds:
                return seconds
            alike = _alike(op)
            if alike not in kinds:
                kinds[alike] = _kind(op, prices)
            return seconds * self.factors(cluster.name, kinds[alike])

        ledger = Ledger.of(program, prices.adjusted(how))
        if software.fit is not None:
            kind = Kind(_HOST, software.fit.median_pct)
            if software not in self._slowed:
                factors = self.factors(software.name, kind)
                self._slowed[software] = _slowed_host(software, factors)
            setting = replace(program.setting, software=self._slowed[software])
            ledger = replace(ledger, program=replace(program, setting=setting))
        slowdowns: Floats = np.broadcast_to(ledger.time_s(), self.draws) / candidate.estimate.time_s
        return slowdowns


def _slowed_host(software: Software, factors: Floats) -> Software:
    """Return a software whose host takes so many times as long."""
    names = [each.name for each in fields(software) if each.name.startswith("host_per_")]
    given = {name: getattr(software, name) for name in {*names, *_HOSTS_OWN}}
    return replace(
        software, **{name: each * factors for name, each in given.items() if each is not None}
    )


def _alike(op: Operation) -> tuple[Any, ...]:
    """Return what makes operations of one kind: what was fitted together is off together."""
    if isinstance(op, Collective):
        return op.collective, op.group, op.ranks, op.stride
    return type(op), *(getattr(op, name, None) for name in ("dtype", "decode", "backward"))


def _kind(op: Operation, prices: Prices) -> Kind:
    """Return the kind of an operation; of a collective that crosses nodes, the network's."""
    name: str
    fitted: Any
    if isinstance(op, Collective):
        result = prices.collective(op)
        if isinstance(result, DispatchTime):
            kernel = result.resolved
            assert kernel is not None  # noqa: S101
            fit = kernel.fit
            return Kind(op.collective, fit.p90_pct if kernel.inherited_from else fit.median_pct)
        used = result.calibrations
        network = (each for each in used if isinstance(each.constants, NetworkConstants))
        fitted = next(network, None)
        name = op.group.split("_")[0] + ("" if fitted is None else " across nodes")
        fitted = fitted or used[0]
    else:
        name, fitted = prices.section(op)
        if isinstance(op, AttentionCore) and op.backward:
            name = "attention backward"
    # On a system that was not measured, the p90 is the typical error.
    fit = fitted.fit
    return Kind(name, float(fit.p90_pct if fitted.inherited_from else fit.median_pct))

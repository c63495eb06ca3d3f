"""The answer of a search: `Found`, with the best layouts as `Candidate`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shardcost.display import Displayed
from shardcost.errors import Reason
from shardcost.estimate.result import Estimate
from shardcost.estimate.step import estimate
from shardcost.layout import Layout
from shardcost.records import dataclass
from shardcost.resolve import caveats_of
from shardcost.search.confidence import Held, held
from shardcost.search.objectives import Figures, Objective, Price
from shardcost.search.parts import Columns, Part, degrees_of
from shardcost.search.question import Question
from shardcost.search.space import CHOICES, SIZES, Family
from shardcost.software import Software
from shardcost.units import format_bytes, format_time
from shardcost.workload import Workload

if TYPE_CHECKING:
    from shardcost.search.plan import Plan

_SHOWN = 5
"""Of the best, in a plan."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """One layout that a search has found, with the figures that it was ranked by."""

    question: Question
    row: Mapping[str, Any]
    """What the search's table says of it."""
    variants: int = 0
    """Of a search for distinct layouts: how many others of the same degrees come near it …"""
    varied: tuple[str, ...] = ()
    """… and the axes in which they differ."""

    def __repr__(self) -> str:
        """Return the layout and the figures that it was ranked by."""
        figures = f"{format_time(self.time_s)}, {format_bytes(self.memory_bytes)}"
        return f"Candidate({self.layout.short()}, {figures})"

    @property
    def family(self) -> Family:
        """Its choices."""
        number: int = self.row["family"]
        return self.question.families[number]

    def value(self, axis: str) -> Any:
        """Return its value of an axis of the space."""
        return self.row[axis] if axis in self.row else getattr(self.family, axis)

    @cached_property
    def layout(self) -> Layout:
        """The layout."""
        names = ("tp", "cp", "pp", "dp", "ep", "micro_batch", "virtual_stages")
        return self.family.layout(**{name: self.row[name] for name in names})

    @cached_property
    def workload(self) -> Workload:
        """The workload, with the candidate's own batch."""
        return self.question.workload_of(self.row["batch"])

    @cached_property
    def software(self) -> Software:
        """The software, with the candidate's own overlap."""
        return self.family.software(self.question.software)

    @property
    def time_s(self) -> float:
        """Of one step."""
        return float(self.row["time_s"])

    @property
    def memory_bytes(self) -> float:
        """Peak of the fullest rank."""
        return float(self.row["memory_bytes"])

    @property
    def score(self) -> float:
        """The figure that is to be small."""
        return float(self.row["score"])

    @property
    def figures(self) -> Figures:
        """What it was judged by."""
        gpus, tokens = self.layout.devices, self.workload.tokens
        return Figures(self.time_s, self.memory_bytes, gpus, tokens, self.row.get("ttft_s"))

    @cached_property
    def limits(self) -> tuple[Held, ...]:
        """The limits of the search, each with the share of cases in which it holds."""
        return held(self)

    def cost_per_token(self, price_per_gpu_hour: Price) -> float:
        """Return what a token costs at a price."""
        objective = Objective("cost", price_per_gpu_hour)
        return float(objective.score(self.figures, self.question.cluster))

    def behind(self, other: Candidate) -> float:
        """Return by which share its score is above another's."""
        return self.score / other.score - 1

    @cached_property
    def estimate(self) -> Estimate:
        """The whole estimate, with all parts."""
        place = (self.question.model, self.question.cluster, self.layout)
        return estimate(*place, self.workload, software=self.software)


@dataclass(frozen=True, eq=False, repr=False)
class Found(Displayed):
    """What a search has found; in a notebook, the screen of `plan`."""

    questions: tuple[Question, ...]
    considered: int
    """Layouts of the space."""
    feasible: int
    """Of those, that are possible, fit and keep all limits."""
    skipped: int
    """Of the feasible ones, those that a lower bound of their time ruled out: not priced."""
    seconds: float
    rejected: Mapping[Reason, int]
    """The others, by the first reason against each; most frequent first."""
    best: tuple[Candidate, ...]
    """By score, best first."""
    distinct: bool
    """Whether these are the best of each set of degrees."""
    front: tuple[Candidate, ...]
    """Those that no other beats in both figures of `Question.plane`."""
    beyond: Candidate | None
    """The best that a tenth more memory would hold."""
    smallest: Candidate | None
    """The one with the least memory of all that are possible, whether it fits or not."""
    by_axis: Mapping[str, Mapping[Any, float]]
    """The best score with each value of each axis with which something is feasible."""
    resumed: int = 0
    """Tasks whose results an earlier run of the same search had left behind."""

    def __repr__(self) -> str:
        """Return the counts and the best layout in two lines."""
        counts = f"Found: {self.feasible:,} of {self.considered:,} layouts feasible"
        return f"{counts}; best:\n  {self.best[0]!r}" if self.best else counts

    def plan(self, top: int = _SHOWN) -> Plan:
        """Return what was found with the answers to what one asks next.

        Why others lost, what more of a resource would bring, where an axis stops to pay, how sure
        the order is, and, where nothing is feasible, what would be.

        Args:
            top: How many of the best to show.
        """
        from shardcost.search.plan import Plan

        models = dict.fromkeys(each.model for each in self.questions)
        caveats = [caveat for model in models for caveat in caveats_of(model)]
        return Plan.of(self, top=top, price=self.price, caveats=caveats)

    @cached_property
    def shown(self) -> Plan:
        """The plan that a notebook shows, made once."""
        return self.plan()

    @property
    def price(self) -> Price | None:
        """Of a GPU for an hour, where one was given."""
        return self.questions[0].objective.price_per_gpu_hour

    @property
    def layouts_per_s(self) -> float:
        """How fast the space was worked through."""
        return self.considered / self.seconds

    @classmethod
    def of(
        cls,
        questions: Sequence[Question],
        part: Part,
        seconds: float,
        top: int,
        *,
        distinct: bool = False,
    ) -> Found:
        """Return the answer from what all blocks amount to."""

        def candidates(table: Columns) -> tuple[Candidate, ...]:
            return tuple(Candidate(questions[row["question"]], row) for row in rows_as_dicts(table))

        contradictions = sum((each.contradictions for each in questions), Counter[Reason]())
        rejected = part.rejected + contradictions
        by_axis: dict[str, dict[Any, float]] = {}
        for (axis, value), score in sorted(part.by_axis.items(), key=lambda item: str(item[0])):
            by_axis.setdefault(axis, {})[value] = score
        return cls(
            questions=tuple(questions),
            considered=part.considered + contradictions.total(),
            feasible=part.feasible,
            skipped=part.skipped,
            seconds=seconds,
            rejected=dict(sorted(rejected.items(), key=lambda item: (-item[1], item[0].message))),
            best=(_distinct if distinct else tuple)(candidates(part.best))[:top],
            distinct=distinct,
            front=candidates(part.front),
            beyond=next(iter(candidates(part.beyond)), None),
            smallest=next(iter(candidates(part.smallest)), None),
            by_axis=by_axis,
        )


def _distinct(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Return the first of each set of degrees, with its variants counted."""
    groups: dict[tuple[Any, ...], list[Candidate]] = {}
    for each in candidates:
        groups.setdefault(degrees_of(each.row), []).append(each)
    return tuple(
        replace(
            first,
            variants=len(others),
            varied=tuple(
                axis
                for axis in (*SIZES, *CHOICES)
                if any(each.value(axis) != first.value(axis) for each in others)
            ),
        )
        for first, *others in groups.values()
    )


def rows_as_dicts(table: Columns) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table with plain numbers."""
    columns = {name: column.tolist() for name, column in table.items()}
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))

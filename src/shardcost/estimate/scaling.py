"""What a cost does when one option varies, or two: what more brings, and from where on less.

Efficiency is throughput per GPU over that of the first value that is feasible: possible, and held
by the memory. A *crossover* is where a curve changes its nature: communication takes more than half
of the step, efficiency falls below 80 %, or the step stops getting shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, NamedTuple

from shardcost.errors import ShardcostError, UnknownNameError
from shardcost.estimate.result import BUBBLE, Estimate
from shardcost.estimate.step import estimate
from shardcost.model import Model

HALF: Final = 0.5
"""The share of a step from which on communication decides."""
WORTHWHILE: Final = 0.8
"""The efficiency below which further devices are mostly lost."""


class Split(NamedTuple):
    """A step in a few parts. All but what is hidden add up to it."""

    compute_s: Any
    exposed_s: Any
    """Communication that nothing hides."""
    hidden_s: Any
    """Communication behind computation: no part of the step."""
    bubble_s: Any
    other_s: Any
    """What the host and the software add."""
    comm_to_compute: Any
    """Seconds of communication, hidden or not, over seconds of compute."""


def split_of(base: Estimate) -> Split:
    """Return what the step of an estimate is made of."""
    compute, exposed = sum(base.compute_s.values()), sum(base.exposed_s.values())
    bubble = base.parts_s.get(BUBBLE, 0.0)
    return Split(
        compute_s=compute,
        exposed_s=exposed,
        hidden_s=sum(base.hidden_s.values()),
        bubble_s=bubble,
        other_s=base.time_s - compute - exposed - bubble,
        comm_to_compute=sum(base.comm_s.values()) / compute,
    )


@dataclass(frozen=True, eq=False)
class Row:
    """One value: its estimate, or why there is none."""

    value: str
    found: Estimate | None
    impossible: str = ""

    @property
    def fits(self) -> bool:
        """Whether it can be had: possible, and within the devices' memory."""
        found = self.found
        return found is not None and bool(found.memory.fits(found.cluster.device))

    @property
    def reason(self) -> str | None:
        """Why it cannot be had."""
        found = self.found
        return self.impossible if found is None else found.memory.reason(found.cluster.device)

    @property
    def split(self) -> Split | None:
        """What its step is made of; None where there is none."""
        return None if self.found is None else split_of(self.found)


@dataclass(frozen=True, eq=False)
class Scaling:
    """What a cost does when one option varies."""

    name: str
    rows: tuple[Row, ...]
    phase: str

    @property
    def possible(self) -> list[tuple[str, Estimate]]:
        """Values that have an estimate, in the order given."""
        return [(row.value, row.found) for row in self.rows if row.found is not None]

    @property
    def feasible(self) -> list[tuple[str, Estimate]]:
        """Those that fit into memory."""
        return [(row.value, row.found) for row in self.rows if row.found is not None and row.fits]

    @property
    def _compared(self) -> list[tuple[str, Estimate]]:
        """Values among which the best is looked for: no use in one that does not fit."""
        return self.feasible or self.possible

    def efficiency(self, found: Estimate) -> float:
        """Return throughput per GPU over that of the first feasible value."""
        first = self._compared[0][1]
        return float(found.tokens_per_s_per_gpu / first.tokens_per_s_per_gpu)

    def crossover(self) -> dict[str, str | None]:
        """Return the values at which the cost changes its nature; None where it does not."""
        return {
            "communication_above_half": self._from_on(lambda each: each.comm_share > HALF),
            "efficiency_below_80_pct": self._from_on(
                lambda each: self.efficiency(each) < WORTHWHILE
            ),
            "fastest": self._best(lambda each: -each.time_s),
            "most_tokens_per_s_per_gpu": self._best(lambda each: each.tokens_per_s_per_gpu),
        }

    def _from_on(self, holds: Callable[[Estimate], Any]) -> str | None:
        """Return the value from which on a condition holds for all that follow."""
        since = None
        for value, found in self._compared:
            since = (since or value) if holds(found) else None
        return since

    def _best(self, merit: Callable[[Estimate], Any]) -> str | None:
        compared = self._compared
        if not compared:
            return None
        return max(compared, key=lambda each: float(merit(each[1])))[0]


@dataclass(frozen=True, eq=False)
class Grid:
    """What a cost does when two options vary: for each value of the one, a `Scaling` of the other.

    Every line has the same values of the other option, in the same order.
    """

    name: str
    """The option whose values are lines."""
    lines: tuple[tuple[str, Scaling], ...]

    @property
    def across(self) -> str:
        """The option whose values are columns."""
        return self.lines[0][1].name

    @property
    def columns(self) -> tuple[str, ...]:
        """The values of the option across."""
        return tuple(row.value for row in self.lines[0][1].rows)

    @property
    def phase(self) -> str:
        """The phase that is priced."""
        return self.lines[0][1].phase

    def cells(self) -> Iterator[tuple[str, Row]]:
        """Yield the value of the line, and the row of the value across, cell by cell."""
        for value, scaling in self.lines:
            for row in scaling.rows:
                yield value, row

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all cells."""
        return tuple(row for _, row in self.cells())

    def best(self, merit: Callable[[Estimate], Any]) -> tuple[str, Row] | None:
        """Return the cell that fits into memory and is best; None where none fits."""
        best: tuple[str, Row] | None = None
        most = -inf
        for value, row in self.cells():
            if row.found is not None and row.fits and float(merit(row.found)) > most:
                best, most = (value, row), float(merit(row.found))
        return best


DEGREES: Final = ("gpus", "tp", "cp", "pp", "dp", "ep")


def degrees_to_vary(model: Model, gpus: int, name: str) -> list[int]:
    """Return the degrees worth a look: powers of two that divide the GPUs, as far as they go.

    GPUs stay as many as they are, and data parallelism takes what is left. Tensor parallelism goes
    as far as there are heads, a pipeline as far as there are layers, and expert parallelism as far
    as there are experts. Some of them may be impossible all the same, which the curve then says.

    >>> degrees_to_vary(Model.named("llama3-70b"), 8, "tp")
    [1, 2, 4, 8]

    Args:
        model: What is run.
        gpus: Devices at work.
        name: The degree that varies, one of `DEGREES`.
    """
    if name not in DEGREES:
        raise UnknownNameError("degree", name, DEGREES)
    heads = model.attention_heads
    most_heads = int(max(heads)) if heads else int(model.hidden_size)
    most = {"tp": most_heads, "pp": int(model.num_layers), "ep": model.most_experts or 1}
    last = min(gpus, most.get(name, gpus))
    powers = (2**power for power in range(last.bit_length()))
    return [degree for degree in powers if name == "gpus" or gpus % degree == 0]


def tensor_scaling(base: Estimate) -> Scaling:
    """Return what the layout of an estimate costs at each tensor-parallel degree.

    Devices stay as many as they are, context parallelism and the pipeline too, and data parallelism
    takes what is left.

    >>> from shardcost import Decode, Layout
    >>> work = Decode(batch=64, context_tokens=4096)
    >>> scaling = tensor_scaling(estimate("llama3-70b", "h100_sxm", Layout(tp=8), work))
    >>> [(row.value, row.found.layout.dp) for row in scaling.rows]
    [('1', 8), ('2', 4), ('4', 2), ('8', 1)]
    """
    layout = base.layout
    room = int(base.devices // (layout.cp * layout.pp))
    degrees = {tp for tp in degrees_to_vary(base.model, room, "tp") if room % tp == 0}

    def row(tp: int) -> Row:
        if tp == layout.tp:
            return Row(str(tp), base)
        try:
            other = replace(layout, tp=tp, dp=room // tp)
            place = (base.model, base.cluster, other)
            return Row(str(tp), estimate(*place, base.workload, software=base.software))
        except ShardcostError as error:
            return Row(str(tp), None, str(error))

    rows = tuple(row(tp) for tp in sorted(degrees | {int(layout.tp)}))
    return Scaling("tp", rows, base.workload.phase)

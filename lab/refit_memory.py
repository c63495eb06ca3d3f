"""Refits the constants of Megatron Core's memory policy, and tries them on families left out.

Almost all of the policy is counted or stated by libraries. Two numbers are fitted to runs: the
hidden states that stay allocated where pipeline stages send them (`stage_buffers`, to what is
allocated between steps) and the load of the fullest rank's experts (`peak_imbalance`, to the peaks
of runs with experts). Each is the round number under which errors are smallest.

Run: ``python -m lab.refit_memory memory_runs.csv``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab.command import ended, parser_of
from lab.parts import Mask, leave_out
from shardcost.formats.tables import Row, Table, read_table
from shardcost.memory import MemoryPolicy
from shardcost.memory.policy import policy_named
from shardcost.validate import memory_runs
from shardcost.validate.predictions import by_row
from shardcost.validate.validation import Stats, measurements, stats

Floats = NDArray[np.float64]

FRAMEWORK: Final = "megatron_core"
_BUFFERS: Final = tuple(float(each) for each in range(7))
_IMBALANCES: Final = tuple(round(1 + 0.1 * each, 1) for each in range(13))
_LOADS: Final = len(_IMBALANCES)
FOLDS: Final = {"test_family": "a test family", "gpu": "a GPU", "tp": "a TP degree"}


class Constants(NamedTuple):
    """What is fitted."""

    stage_buffers: float
    peak_imbalance: float


@dataclass(frozen=True)
class Trials:
    """What every value of the constants predicts for the rows of a table."""

    peak: Floats
    """By buffers, imbalance and row."""
    between: Floats
    """What is allocated between steps, by buffers and row."""
    measured_peak: Floats
    measured_between: Floats
    staged: Mask
    with_experts: Mask

    @classmethod
    def of(cls, table: Table, start: MemoryPolicy | None = None) -> Trials:
        """Return the predictions for a table's runs."""
        bare = replace(
            start or policy_named(FRAMEWORK), stage_buffers=0.0, peak_imbalance=_IMBALANCES[0]
        )
        once = replace(bare, stage_buffers=1.0)
        runs = runs_of(table)
        rows = list(runs.records())
        mixed = np.array([bool(row.get("experts")) for row in rows])
        with_experts = runs.where(lambda row: bool(row.get("experts")))
        # Buffers add up; an imbalance changes runs with experts alone.
        peaks = np.repeat(_of_runs(memory_runs.peak_bytes, runs, bare)[None], _LOADS, axis=0)
        for place, load in enumerate(_IMBALANCES):
            policy = replace(bare, peak_imbalance=load)
            peaks[place, mixed] = _of_runs(memory_runs.peak_bytes, with_experts, policy)
        buffer = _of_runs(memory_runs.peak_bytes, runs, once) - peaks[0]
        between = _of_runs(memory_runs.allocated_bytes, runs, bare)
        more = np.array(_BUFFERS)
        return cls(
            peaks + more[:, None, None] * buffer,
            between + more[:, None] * buffer,
            _measured(table, memory_runs.HEADLINE),
            _measured(table, memory_runs.ALLOCATED),
            np.array([row["pp"] != "1" for row in rows]),
            mixed,
        )

    def fitted(self, among: Mask) -> tuple[int, int]:
        """Return the places of the constants that suit some rows best."""
        staged, mixed = among & self.staged, among & self.with_experts
        own = _best(np.abs(np.log(self.between / self.measured_between))[:, staged])
        return own, _best(np.abs(np.log(self.peak[own] / self.measured_peak))[:, mixed])

    def left_out(self, parts: NDArray[np.str_]) -> tuple[Floats, Floats]:
        """Return peaks and bytes between steps, each row's by a fit without its part."""

        def peak(out: Mask) -> Floats:
            values: Floats = self.peak[self.fitted(~out)][out]
            return values

        def between(out: Mask) -> Floats:
            values: Floats = self.between[self.fitted(~out)[0]][out]
            return values

        return leave_out(parts, peak), leave_out(parts, between)

    def errors(self, peak: Floats, between: Floats) -> tuple[Stats, Stats]:
        """Return the errors of predicted peaks and of what is allocated between steps."""
        return (
            stats(100 * (peak / self.measured_peak - 1)),
            stats(100 * (between / self.measured_between - 1)),
        )


def runs_of(table: Table) -> Table:
    """Return one row for each run of a table, which has one for each of its figures."""
    first = {origin: place for place, origin in reversed(list(enumerate(table.file_rows)))}
    return table.at(sorted(first.values()))


def by_figure(table: Table, peak: Floats, between: Floats) -> Floats:
    """Return what is predicted of each row of a table, from both figures of each of its runs."""
    values = {memory_runs.HEADLINE: peak, memory_runs.ALLOCATED: between}
    places = {origin: place for place, origin in enumerate(runs_of(table).file_rows)}
    each = zip(table.file_rows, table.columns["figure"], strict=True)
    return np.array([values[figure][places[origin]] for origin, figure in each])


def _of_runs(
    figure: Callable[[Row, MemoryPolicy], float], runs: Table, policy: MemoryPolicy
) -> Floats:
    return by_row(runs, lambda row: figure(row, policy)).values


def _measured(table: Table, figure: str) -> Floats:
    """Return a figure of each run; NaN where it was not measured."""
    values = measurements(table, memory_runs.MEASURED)[0]
    each = zip(table.file_rows, table.columns["figure"], values, strict=True)
    known = {origin: value for origin, own, value in each if own == figure}
    return np.array([known.get(origin, np.nan) for origin in runs_of(table).file_rows])


def _best(residuals: Floats) -> int:
    """Return the line with the smallest mean; the first where there are no rows."""
    known = residuals[:, np.isfinite(residuals).all(axis=0)]
    return int(np.argmin(known.mean(axis=1))) if known.size else 0


def constants(trials: Trials) -> Constants:
    """Return the constants that suit all rows best."""
    own, load = trials.fitted(np.ones(len(trials.staged), dtype=bool))
    return Constants(_BUFFERS[own], _IMBALANCES[load])


def report(table: Table) -> Iterator[str]:
    """Yield the constants, their errors on rows left out, and those in sample."""
    trials = Trials.of(table)
    chosen = constants(trials)
    yield f"stage_buffers = {chosen.stage_buffers:g}, peak_imbalance = {chosen.peak_imbalance:g}"
    for column, title in FOLDS.items():
        parts = np.array(runs_of(table).columns[column])
        yield _line(f"{title} left out", *trials.errors(*trials.left_out(parts)))
    own, load = trials.fitted(np.ones(len(trials.staged), dtype=bool))
    yield _line("in sample", *trials.errors(trials.peak[own, load], trials.between[own]))


def _line(title: str, peak: Stats, between: Stats) -> str:
    figures = (
        f"{name} {each.median_pct:.1f} / {each.p90_pct:.1f} %"
        for name, each in (("peak", peak), ("allocated", between))
    )
    return f"{title}: {', '.join(figures)} (median / p90) of {peak.rows} rows"


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, leave out and print."""
    parser = parser_of(__doc__)
    parser.add_argument("table", type=Path, help="measured table (CSV)")
    given = parser.parse_args(arguments)
    print("\n".join(report(read_table(given.table))))


if __name__ == "__main__":
    ended(main)

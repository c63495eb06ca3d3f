"""Measures cases on a device for as long as a time budget lasts, each row written at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shardcost.formats.tables import opened_csv
from shardcost.measure.kernels.cases import FIELDS, KINDS, KernelCase, cases_for
from shardcost.measure.kernels.timing import MeasuredDevice, NotAvailableError, Times
from shardcost.measure.table import AppendedTable

HEADER: Final = (
    *("gpu", "device", "software"), *FIELDS,
    *("bytes_moved", "calls", "time_us", "min_us", "p90_us"),
)  # fmt: skip


class MeasuredKernels(AppendedTable):
    """A table of measured kernels.

    Args:
        path: The file.
        gpu: Name of the cluster in the catalog that has the device, or what stands for it.
        append: Add to a table that is there already, and leave out what it has.
        force: Replace what is there already.
    """

    def __init__(self, path: Path, gpu: str, *, append: bool = False, force: bool = False) -> None:
        super().__init__(path, HEADER, append=append, force=force)
        self.gpu = gpu
        self._known: frozenset[tuple[str, ...]] = frozenset()
        if self.continued:
            _, records = opened_csv(path)
            places = [HEADER.index(name) for name in FIELDS]
            self._known = frozenset(tuple(row[place] for place in places) for row in records)

    def has(self, case: KernelCase) -> bool:
        """Return whether the table had a case when it was opened."""
        return tuple(map(str, case.cells())) in self._known

    def add(self, case: KernelCase, times: Times, device: str, software: str) -> None:
        """Append the times of a case."""
        figures = (f"{value:.3f}" for value in times[:3])
        self.write(
            (self.gpu, device, software, *case.cells(), case.bytes_moved, times.calls, *figures)
        )


_LONG: Final = ("burst", "sustained")
_LONG_S: Final = 6.0
"""Of one case after a pause or for seconds, kept back from the budget."""
_GIVEN_UP: Final = 3
"""After so many cases of a kernel that are not available, none measured, the rest is left out."""


@dataclass
class Outcome:
    """What became of the cases."""

    measured: dict[str, int] = field(default_factory=dict)
    """Rows written, by kind."""
    already: int = 0
    """Cases that the table had before."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Cases that could not be measured, by kernel and reason."""
    out_of_time: int = 0
    seconds: float = 0.0


def measure(
    device: MeasuredDevice,
    table: MeasuredKernels,
    budget_s: float,
    kinds: Sequence[str] = KINDS,
    tick: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Measure what a table lacks, in the order of `cases_for`, and return what became of it.

    Args:
        device: What runs the cases.
        table: Where rows go, each as it is measured.
        budget_s: Seconds after which no further case is begun.
        kinds: Kinds of kernel to measure.
        tick: Called with how many cases are done and how many there are.
    """
    outcome, started = Outcome(), time.perf_counter()
    cases = [case for case in cases_for(device.limits) if case.kind in kinds]
    long = sum(case.mode in _LONG for case in cases)
    for done, case in enumerate(cases):
        if tick is not None:
            tick(done, len(cases))
        kept_back = 0.0 if case.mode in _LONG else _LONG_S * long
        if table.has(case):
            outcome.already += 1
        elif time.perf_counter() - started > budget_s - min(kept_back, budget_s / 4):
            outcome.out_of_time += 1
        else:
            _measure_one(device, table, case, outcome)
    outcome.seconds = time.perf_counter() - started
    return outcome


def _measure_one(
    device: MeasuredDevice, table: MeasuredKernels, case: KernelCase, outcome: Outcome
) -> None:
    what = " ".join(filter(None, (case.dtype, case.kind, case.kernel)))
    failed = {key: count for key, count in outcome.skipped.items() if key.startswith(f"{what}: ")}
    if sum(failed.values()) >= _GIVEN_UP and what not in outcome.measured:
        key = next(iter(failed))
        outcome.skipped[key] += 1
        return
    try:
        times = device.measured(case)
    except NotAvailableError as error:
        key = f"{what}: {error}"
        outcome.skipped[key] = outcome.skipped.get(key, 0) + 1
        return
    table.add(case, times, device.name, device.software)
    outcome.measured[what] = outcome.measured.get(what, 0) + 1

"""The table of measured kernels: one file for all kinds, each row written as it is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shardcost.formats.tables import opened_csv
from shardcost.measure.kernels.cases import FIELDS, KernelCase
from shardcost.measure.kernels.timing import Times
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

"""The table of measured kernels: one file for all kinds, each row written as it is measured."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import IO, Final

from shardcost.errors import BadValueError, FormatError, shown
from shardcost.formats.tables import opened_csv
from shardcost.measure.kernels.cases import FIELDS, KernelCase
from shardcost.measure.kernels.timing import Times

HEADER: Final = (
    *("gpu", "device", "software"), *FIELDS,
    *("bytes_moved", "calls", "time_us", "min_us", "p90_us"),
)  # fmt: skip


class KernelTable:
    """A CSV file of measured kernels, open to be appended to.

    Args:
        path: The file.
        gpu: Name of the cluster in the catalog that has the device, or what stands for it.
        append: Add to a table that is there already, and leave out what it has.
        force: Replace what is there already.
    """

    def __init__(self, path: Path, gpu: str, *, append: bool = False, force: bool = False) -> None:
        self.path, self.gpu = path, gpu
        self.rows = 0
        self.known: frozenset[tuple[str, ...]] = frozenset()
        self._file: IO[str] | None = None
        try:
            there = path.exists()
        except OSError as error:
            raise self._unwritable(error) from None
        except ValueError:
            raise FormatError(shown(str(path)), "is not a file name") from None
        if there and not (append or force):
            raise BadValueError("--output", str(path), "a new file, or give --append or --force")
        self._adds = there and append
        if self._adds:
            head, records = opened_csv(path)
            if tuple(head) != HEADER:
                raise FormatError(str(path), "is not a table of measured kernels to append to")
            places = [HEADER.index(name) for name in FIELDS]
            self.known = frozenset(tuple(row[place] for place in places) for row in records)

    def has(self, case: KernelCase) -> bool:
        """Return whether the table had a case when it was opened."""
        return tuple(map(str, case.cells())) in self.known

    def add(self, case: KernelCase, times: Times, device: str, software: str) -> None:
        """Append a row; the first one opens the file."""
        line = io.StringIO()
        writer = csv.writer(line, lineterminator="\n")
        if self._file is None and not self._adds:
            writer.writerow(HEADER)
        figures = (f"{value:.3f}" for value in times[:3])
        writer.writerow(
            (self.gpu, device, software, *case.cells(), case.bytes_moved, times.calls, *figures)
        )
        try:
            if self._file is None:
                self._file = self.path.open(
                    "a" if self._adds else "w", encoding="utf-8", newline=""
                )
            self._file.write(line.getvalue())
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from None
        self.rows += 1

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _unwritable(self, error: OSError) -> FormatError:
        return FormatError(str(self.path), f"cannot be written: {error.strerror or error}")

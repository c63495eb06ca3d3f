"""The table that measurements are appended to, row by row, so that an interrupt costs none."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Final

from shardcost.errors import BadValueError, FormatError, shown
from shardcost.measure.job import Measurement

HEADER: Final = (
    "dataset", "cluster", "network", "nodes", "gpus_per_node", "num_gpus", "library", "mode",
    "single_process", "collective", "dtype", "size_bytes", "time_us", "algorithm", "iterations",
    "min_us", "p90_us", "sent_bytes_per_rank",
)  # fmt: skip


class AppendedTable:
    """A CSV file, open to be appended to.

    Args:
        path: The file.
        header: Its columns.
        append: Add to a table that is there already.
        force: Replace what is there already.
    """

    def __init__(
        self, path: Path, header: tuple[str, ...], *, append: bool = False, force: bool = False
    ) -> None:
        self.path, self.header = path, header
        self.rows = 0
        self._file: IO[str] | None = None
        try:
            self.continued = self._continues(append=append, force=force)
        except OSError as error:
            raise self._unwritable(error) from None
        except UnicodeError:
            raise FormatError(shown(str(path)), "is not a file name") from None

    def write(self, cells: Iterable[Any]) -> None:
        """Append a row; the first one opens the file."""
        line = io.StringIO()
        writer = csv.writer(line, lineterminator="\n")
        if self._file is None and not self.continued:
            writer.writerow(self.header)
        writer.writerow(cells)
        try:
            if self._file is None:
                mode = "a" if self.continued else "w"
                self._file = self.path.open(mode, encoding="utf-8", newline="")
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

    def _continues(self, *, append: bool, force: bool) -> bool:
        """Return whether rows go to the end of a table that is there; raise where none may be."""
        path = self.path
        if "\0" in str(path):
            raise FormatError(shown(str(path)), "is not a file name")
        if not path.exists():
            if not path.parent.is_dir():
                raise FormatError(str(path), "cannot be written: its folder does not exist")
            return False
        if not path.is_file():
            raise FormatError(str(path), "cannot be written: it is not a regular file")
        if not (append or force):
            rule = "a new file, or come with --append or --force"
            raise BadValueError("--output", str(path), rule)
        return append and self._has_header()

    def _has_header(self) -> bool:
        """Return whether a file begins with the header; raise if it begins with something else."""
        with self.path.open("rb") as file:
            first = file.readline(4096)
            if not first:
                return False
            file.seek(-1, 2)
            ends_well = file.read(1) == b"\n"
        if first.decode(errors="replace").strip() != ",".join(self.header):
            why = "line 1 is not the header of such a table"
        elif not ends_well:
            why = "its last line has no end"
        else:
            return True
        raise FormatError(str(self.path), f"cannot be appended to: {why}")


class Measured(AppendedTable):
    """A table of measured collectives.

    Args:
        path: The file.
        cluster: What its column of that name says.
        network: Likewise.
        append: Add to a table that is there already.
        force: Replace what is there already.
    """

    def __init__(
        self, path: Path, cluster: str, network: str, *, append: bool = False, force: bool = False
    ) -> None:
        super().__init__(path, HEADER, append=append, force=force)
        self.cluster, self.network = cluster, network

    def add(self, measurement: Measurement, algorithm: str) -> None:
        """Append a measurement."""
        self.write(row_of(measurement, algorithm, self.cluster, self.network))


def row_of(measurement: Measurement, algorithm: str, cluster: str, network: str) -> tuple[Any, ...]:
    """Return a measurement as the cells of its row."""
    times = (measurement.time_us, measurement.min_us, measurement.p90_us)
    median, least, p90 = ("" if time is None else f"{time:.3f}" for time in times)
    sent = measurement.sent_bytes
    return (
        f"measured_{measurement.library}_{measurement.version}",
        cluster,
        network,
        measurement.nodes,
        measurement.ranks // measurement.nodes,
        measurement.ranks,
        measurement.library,
        "",  # calls follow each other, as in nccl-tests
        0,
        measurement.collective,
        measurement.dtype,
        measurement.size_bytes,
        median,
        algorithm,
        measurement.iterations,
        least,
        p90,
        "" if sent is None else " ".join(map(str, sent)),
    )

"""A user's own machine, calibrated: `Profile`, and its text as every command reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, TypeGuard

from shardcost import resolve
from shardcost.calibrate.calibrate import Calibrated, calibrate
from shardcost.calibrate.gather import Gathered, Stated, gathered
from shardcost.calibrate.kernels import CalibratedKernels, calibrate_kernels, profile_lines
from shardcost.catalog import PROFILE_FIRST_LINE, checked_profile_name
from shardcost.cluster import Cluster
from shardcost.collectives.group import bus_factor
from shardcost.collectives.library_time import CollectiveTime
from shardcost.collectives.sweep import curve_sizes
from shardcost.display import Displayed
from shardcost.errors import BadValueError, UsageError
from shardcost.files import quoted, write_whole
from shardcost.formats.detect import TableFile, read_file, with_gpus
from shardcost.formats.reading import Reading
from shardcost.formats.tables import Table, check_columns
from shardcost.machine import machine_of
from shardcost.machine.constants import (
    Calibration,
    EngineLibrary,
    FrameworkLibrary,
    NetworkConstants,
    RingLibrary,
    in_file_name,
    in_file_units,
)
from shardcost.machine.libraries import profile_of_text
from shardcost.machine.residual import COORDINATES, CollectiveTable
from shardcost.validate.shipped import Point
from shardcost.validate.validation import Stats

Say = Callable[[str], None]
Host = tuple[int, float]
"""Cores and bytes of memory of the machine that measured itself."""

_KIND_NAMES: Final = {
    RingLibrary: "ring",
    EngineLibrary: "direct",
    FrameworkLibrary: "framework",
    NetworkConstants: "wire",
}
_LEAST_PCT: Final = 0.01
"""What two digits can say; an error of 0 is none."""
_SHOWN: Final = 3
"""Fits that a short text names."""
_SHARES: Final = ("other_path", "other_collective", "strength")
_RANGES: Final = ("least_gpus", "most_gpus", "least_bytes", "most_bytes")


def _silent(text: str) -> None:
    del text


class Kernels(NamedTuple):
    """Calibrated kernels, and the machine that they are of."""

    cluster: Cluster
    results: list[CalibratedKernels]
    skipped: dict[str, int]
    """Rows that were not used, by reason."""
    text: str | None = None
    """A hardware file of its own, where the machine is none of the catalog's."""


class Errors(NamedTuple):
    """Of one thing that was calibrated, on its points."""

    of: str
    before: Stats
    after: Stats
    left_out: Stats
    """Of points that were left out."""


class Measured(NamedTuple):
    """One curve that was measured, and what the profile makes of it."""

    name: str
    predicted: CollectiveTime
    """From the smallest size to the largest."""
    points: list[Point]


@dataclass(frozen=True, eq=False, repr=False)
class Profile(Displayed):
    """A machine as its user's measurements say it is."""

    name: str
    readings: tuple[Reading, ...]
    """The files with times of collectives."""
    gathered: Gathered | None
    """What those hold; None where there are none …"""
    calibrated: tuple[Calibrated, ...]
    """… with the libraries and the network calibrated on it."""
    kernels: Kernels | None
    """The same of kernels."""
    file: str | None = None
    """Where it was written to, if it was."""

    @classmethod
    def from_files(
        cls,
        *files: str | Path,
        name: str,
        on: str | None = None,
        network: str | None = None,
        gpus: int | None = None,
        library: str | None = None,
    ) -> Profile:
        """Return the machine that some files were measured on, calibrated.

        Args:
            files: Logs, traces and tables that hold times of collectives, and tables of
                ``shardcost measure kernels``.
            name: Of the profile.
            on: The catalog's name of the machine, where files do not say it.
            network: What joins its nodes, likewise.
            gpus: GPUs that took part, likewise.
            library: Of the collectives, likewise (nccl).

        Raises:
            MissingExtraError: SciPy is not installed.
        """
        readings = [with_gpus(read_file(Path(file)), gpus) for file in files]
        return cls.of(readings, name, Stated(on, network, library))

    @classmethod
    def of(
        cls,
        readings: Sequence[Reading],
        name: str,
        stated: Stated,
        say: Say = _silent,
        host: Host | None = None,
    ) -> Profile:
        """Return the machine that some readings are of, calibrated.

        Args:
            readings: Of files.
            name: Of the profile.
            stated: What the files do not say.
            say: Told what is being fitted.
            host: Of this machine, where tables may be of its own processors.
        """
        name = checked_profile_name(name)
        tables = [each.table for each in readings if _has_kernels(each)]
        rest = tuple(each for each in readings if not _has_kernels(each))
        points, results = None, []
        if rest or not tables:
            points = gathered(rest, stated)
            results = calibrate(points.curves, say)
        kernels = _kernels(name, tables, stated, points, say, host) if tables else None
        return cls(name, rest, points, tuple(results), kernels)

    def __repr__(self) -> str:
        """Return what was calibrated, and the errors before and after, in two lines."""
        rows = sum(each.after.rows for each in self.errors)
        said = ", ".join(
            f"{of} {after.median_pct or 0:.1f} % (before {before.median_pct or 0:.1f} %)"
            for of, before, after, _ in self.errors[:_SHOWN]
        )
        more = ", …" if len(self.errors) > _SHOWN else ""
        what = f"Profile: {self.name}, of {self.base.name}, {rows:,} points"
        return f"{what}; median errors:\n  {said}{more}"

    @property
    def errors(self) -> tuple[Errors, ...]:
        """Of everything that was calibrated."""
        fits: list[tuple[str, Calibrated | CalibratedKernels]] = [
            (each.calibration.title, each) for each in self.calibrated
        ]
        if self.kernels is not None:
            fits += [(each.title, each) for each in self.kernels.results]
        return tuple(Errors(of, each.before, each.after, each.left_out) for of, each in fits)

    @property
    def base(self) -> Cluster:
        """The cluster of the catalog that it describes more closely, or the host itself."""
        if self.gathered is not None:
            return self.gathered.cluster
        assert self.kernels is not None  # noqa: S101 -- one of both is always there
        return self.kernels.cluster

    @property
    def text(self) -> str:
        """As a file has it."""
        if self.kernels is not None and self.kernels.text is not None:
            return self.kernels.text
        fitted = self.kernels.results if self.kernels is not None else ()
        return as_profile(self.name, self.base, self.calibrated, fitted)

    @property
    def cluster(self) -> Cluster:
        """The machine, for `estimate`, `search` and `collective_time`."""
        return profile_of_text(self.text)

    def write(self, file: str | Path) -> Profile:
        """Write it to a file that every command takes with ``--on``; return it with its place."""
        write_whole(Path(file), self.text)
        return replace(self, file=str(file))

    def measured(self) -> Iterator[Measured]:
        """Yield the measured curves, each with the profile's own over the same sizes."""
        machine = machine_of(self.cluster)
        for curve in self.gathered.curves if self.gathered is not None else ():
            sizes, case = curve.size_bytes, curve.case
            dense = case.result(curve_sizes(float(sizes.min()), float(sizes.max())), machine)
            rates = bus_factor(case.collective, case.gpus) * sizes / curve.time_s
            name = f"{case.collective} of {case.library} on {case.gpus} GPUs"
            columns = zip(sizes.tolist(), curve.time_s.tolist(), rates.tolist(), strict=True)
            source = ", ".join(sorted(curve.datasets))
            points = [Point(size, time, source, case.library, rate) for size, time, rate in columns]
            yield Measured(name, dense, points)


def _has_kernels(reading: Reading) -> TypeGuard[TableFile]:
    return isinstance(reading, TableFile) and reading.table.kind == "kernels"


def _kernels(
    name: str,
    tables: Sequence[Table],
    stated: Stated,
    points: Gathered | None,
    say: Say,
    host: Host | None,
) -> Kernels:
    """Fit kernels, on the machine that was named, that collectives are of, or that tables name."""
    from shardcost.calibrate.host_file import host_cluster, host_file, is_of_cpu

    for table in tables:
        check_columns(table)
    if host is not None and all(map(is_of_cpu, tables)) and stated.cluster is None and not points:
        cluster = host_cluster(name, tables, *host)
        results, skipped = calibrate_kernels(tables, cluster, say)
        return Kernels(cluster, results, skipped, host_file(name, tables, *host, results))
    if points is not None:
        cluster = points.cluster
    elif stated.cluster is not None:
        cluster = resolve.cluster(stated.cluster, stated.network)
    else:
        named = sorted({gpu for table in tables for gpu in table.columns["gpu"]})
        if len(named) > 1:
            raise BadValueError("machines measured on (say --on one of them)", named, "one")
        if named == ["unknown"]:
            raise UsageError("the table does not say which machine it is of: say --on CLUSTER")
        cluster = Cluster.named(named[0], stated.network)
    results, skipped = calibrate_kernels(tables, cluster, say)
    return Kernels(cluster, results, skipped)


def as_profile(
    name: str,
    cluster: Cluster,
    calibrated: Sequence[Calibrated],
    kernels: Sequence[CalibratedKernels] = (),
) -> str:
    """Return the profile of a cluster of the catalog that was calibrated.

    Args:
        name: Of the profile.
        cluster: The cluster that it describes more closely, with its network if there is one.
        calibrated: The libraries and the network that were calibrated on it.
        kernels: The kernels that were.
    """
    lines = [
        PROFILE_FIRST_LINE,
        "# Written by `shardcost calibrate`; give it to any command: --on FILE.",
        f'name = "{checked_profile_name(name)}"',
        f'based_on = "{cluster.name}"',
    ]
    if cluster.network is not None:
        lines.append(f'network = "{cluster.network.name}"')
    for entry in calibrated:
        network = isinstance(entry.calibration.constants, NetworkConstants)
        lines += entry_lines(entry.calibration, entry.calibration.system if network else "")
        lines += ["", "[library.confidence_pct] # nine times in ten within so many percent"]
        lines += [
            f"{in_file_name(one.name)} = {one.plus_minus_pct:.1f}"
            + ("" if one.measured else " # as in the family: no point says more")
            for one in entry.constants
        ]
        lines += [line for one in entry.calibration.residuals for line in _table_lines(one)]
    lines += profile_lines(kernels)
    return "\n".join(lines) + "\n"


def entry_lines(calibration: Calibration, system: str = "") -> list[str]:
    """Return a calibration as the lines of a file; `system` where it is not the file's own."""
    fit = calibration.fit
    collectives = ", ".join(map(quoted, fit.collectives))
    ends = {"low_pct": fit.low_pct, "high_pct": fit.high_pct}
    return [
        "",
        "[[library]]",
        f"name = {quoted(calibration.library)}",
        *([f"system = {quoted(system)}"] if system else []),
        f'kind = "{_KIND_NAMES[type(calibration.constants)]}"',
        f'since = "{calibration.since}"',
        f'chooser = "{calibration.chooser}"',
        "",
        "[library.fit]",
        f"source = {quoted(fit.source)}",
        f"rows = {fit.rows}",
        f"median_pct = {max(_LEAST_PCT, fit.median_pct):.2f}",
        f"p90_pct = {max(_LEAST_PCT, fit.p90_pct):.2f}",
        *(f"{name} = {getattr(fit, name)}" for name in _RANGES),
        f"collectives = [{collectives}]",
        *(f"{name} = {value:.2f}" for name, value in ends.items() if value is not None),
        "",
        "[library.constants]",
        *(f"{name} = {value!r}" for name, value in in_file_units(calibration.constants).items()),
    ]


def _table_lines(table: CollectiveTable) -> list[str]:
    """Return a table of residuals as the lines of a file."""
    columns = zip(COORDINATES, zip(*table.residual.points, strict=True), strict=True)
    return [
        "",
        "[[library.residual]] # measured over predicted, around measured points",
        f"collective = {quoted(table.collective)}",
        f"library = {quoted(table.library)}",
        f"mode = {quoted(table.mode)}",
        f"held = {str(table.held).lower()}",
        *([] if table.within_pct is None else [f"within_pct = {table.within_pct:.2f}"]),
        *(f"{name} = {getattr(table, name):g}" for name in _SHARES),
        f"scales = [{', '.join(f'{scale:g}' for scale in table.residual.scales)}]",
        *(f"{name} = [{', '.join(f'{x:g}' for x in column)}]" for name, column in columns),
        f"paths = [{', '.join(map(quoted, table.paths))}]",
        f"weights = [{', '.join(f'{weight!r}' for weight in table.residual.weights)}]",
    ]

"""What the refits of experts, latent attention and linear attention share.

Their kernels are of families. Sets of constants are fitted level by level, each from where the one
above ended and with a pull towards it, from a family over all devices to a kernel on one: so a
kernel with few rows moves only as far from its family as they demand. What is minimised is the
relative error (the logarithm of predicted over measured), robustly. Which levels there are is each
refit's own matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from lab import catalog_files
from lab.command import parser_of
from lab.parts import Item, Mask, leave_out
from shardcost import catalog
from shardcost.calibrate.fit import fit_robustly
from shardcost.cluster import Cluster, Device
from shardcost.errors import BadValueError
from shardcost.files import write_whole
from shardcost.formats.tables import Table, read_table
from shardcost.machine.families import Sections
from shardcost.machine.kernels import Fit, KernelTable, Section, nearest_systems
from shardcost.validate.predictions import Cases, Floats
from shardcost.validate.validation import measurements

Constants = Mapping[str, Any]
Labels = Mapping[str, NDArray[Any]]
_STEP: Final = 1e-4
_CELLS: Final = ("dataset", "version", "model")
"""Columns that tell where rows come from; a table may lack some."""


class Case(Hashable, Protocol):
    """What measured rows are of, but for their sizes."""

    @property
    def gpu(self) -> str:
        """The measured system."""

    @property
    def library(self) -> str:
        """The engine whose kernel was measured."""


CaseT = TypeVar("CaseT", bound=Case)


@dataclass(frozen=True, eq=False)
class Group(Generic[CaseT]):
    """Measured rows of one case."""

    case: CaseT
    sizes: Floats
    """As the validator's cases have them, a line for each row."""
    time_s: Floats
    places: NDArray[np.intp]
    """Where in the table they stand."""
    labels: Labels
    """What rows may be left out by."""

    def where(self, kept: Mask) -> Self:
        """Return some of the rows."""
        return replace(
            self,
            sizes=self.sizes[kept],
            time_s=self.time_s[kept],
            places=self.places[kept],
            labels={name: values[kept] for name, values in self.labels.items()},
        )

    @property
    def device(self) -> Device:
        """What it was measured on."""
        return Cluster.named(self.case.gpu).device

    @property
    def key(self) -> Hashable:
        """What tells the rows from others."""
        return self.case, self.time_s.tobytes()


GroupT = TypeVar("GroupT", bound=Group[Any])


class Member(Protocol):
    """Rows that constants are fitted to: a group, or one as a part of its constants sees it."""

    @property
    def case(self) -> Any:
        """What they are of."""

    @property
    def labels(self) -> Labels:
        """What they may be left out by."""

    @property
    def key(self) -> Hashable:
        """What tells them from others."""

    def log_error(self, constants: Constants) -> Floats:
        """Return the logarithm of predicted over measured; constants may be columns of several."""


MemberT = TypeVar("MemberT", bound=Member)


def measured_rows(
    table: Table,
    known: Cases[Any],
    measured: str,
    group: type[GroupT],
    labels_of: Callable[[Any, Floats, Labels], Mapping[str, Any]],
) -> list[GroupT]:
    """Return the usable rows of a table by case.

    Args:
        table: What was measured.
        known: Its cases.
        measured: The column of times, in microseconds.
        group: What to make of the rows of a case.
        labels_of: The labels of rows by case, sizes and cells (of `_CELLS`): one, or one for each.
    """
    times, _ = measurements(table, measured)
    columns = {name: np.array(table.columns.get(name, [""] * table.rows)) for name in _CELLS}
    groups = []
    for case, places in known.rows.items():
        kept = np.array([i for i in places if times[i] > 0], dtype=np.intp)
        if not kept.size:
            continue
        sizes = known.sizes[kept]
        cells = {name: values[kept] for name, values in columns.items()}
        labels = {
            name: np.full(len(kept), values) if np.ndim(values) == 0 else values
            for name, values in labels_of(case, sizes, cells).items()
        }
        own = {"dataset": cells["dataset"], **labels}
        groups.append(group(case, sizes, 1e-6 * times[kept], kept, own))
    return groups


def by(items: Iterable[Item], key: Callable[[Item], str]) -> dict[str, list[Item]]:
    """Return items by a name, in the order of names."""
    found: dict[str, list[Item]] = {}
    for each in items:
        found.setdefault(key(each), []).append(each)
    return dict(sorted(found.items()))


@dataclass(frozen=True, eq=False)
class Fitter(Generic[MemberT]):
    """Fits sets of constants to rows, each only once: folds share most of their fits."""

    limits: Callable[[Sequence[MemberT], Constants], tuple[Constants, Constants]]
    """The least value of each constant, and the most of those that have one, by rows and start."""
    outliers: tuple[float, ...]
    """Relative errors beyond which a row counts by its size and no longer by its square."""
    evaluations: int
    stiff: Mapping[str, float] = field(default_factory=dict)
    """Constants that hold on more strongly, and by how much."""
    _memo: dict[Any, dict[str, float]] = field(default_factory=dict, init=False, repr=False)

    def fitted(self, members: Sequence[MemberT], start: Constants, pull: float) -> dict[str, float]:
        """Return the constants that fit some rows best, near where they started.

        Args:
            members: The rows.
            start: Where constants start.
            pull: Weight of a constant's distance (in logarithms) from there.
        """
        key = (tuple(each.key for each in members), tuple(start.items()), pull)
        if key not in self._memo:
            self._memo[key] = self._fitted(members, start, pull)
        return self._memo[key]

    def _fitted(
        self, members: Sequence[MemberT], start: Constants, pull: float
    ) -> dict[str, float]:
        names = list(start)
        origin = np.log([start[name] for name in names])
        weights = pull * np.array([self.stiff.get(name, 1.0) for name in names])
        least, most = self.limits(members, start)
        lower = np.log([least[name] for name in names])
        bounds = lower, np.log([most.get(name, np.inf) for name in names])

        def residuals(logs: Floats) -> Floats:
            constants = {name: np.exp(logs[..., i, None]) for i, name in enumerate(names)}
            return np.concatenate([each.log_error(constants) for each in members], axis=-1)

        def jacobian(logs: Floats) -> Floats:
            steps = np.where(logs + _STEP < bounds[1], _STEP, -_STEP)
            moved = residuals(np.vstack([logs, logs + np.diag(steps)]))
            slopes: Floats = ((moved[1:] - moved[0]) / steps[:, None]).T
            return np.vstack([slopes, np.diag(weights)])

        end = fit_robustly(
            origin,
            bounds,
            residuals,
            lambda logs: weights * (logs - origin),
            outliers=self.outliers,
            evaluations=self.evaluations,
            jacobian=jacobian,
        )
        found = zip(names, end.at, strict=True)
        return {name: float(f"{np.exp(value):.4g}") for name, value in found}


def section(constants: Constants, members: Sequence[Member]) -> dict[str, Any]:
    """Return a section of the catalog: constants, the rows behind them and the error on these."""
    errors = np.concatenate([np.abs(np.expm1(each.log_error(constants))) for each in members])
    datasets = sorted({str(name) for each in members for name in each.labels["dataset"]})
    fit = Fit(
        source="fitted by shardcost to measured rows of " + ", ".join(datasets),
        rows=len(errors),
        median_pct=round(100 * float(np.median(errors)), 2),
        p90_pct=round(100 * float(np.quantile(errors, 0.9)), 2),
        measured_with=", ".join(sorted({each.case.library for each in members})),
    )
    return {**constants, "fit": fit._asdict()}


@dataclass(frozen=True, eq=False)
class Fitted(ABC, Generic[GroupT]):
    """All that a fit of some groups yields, in the form of the catalog's files."""

    pooled: dict[str, Any] = field(default_factory=dict)
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)

    def sections(self, device: Device) -> Sections:
        """Return the sections as the catalog would have them for a device."""
        near = nearest_systems(device, self.systems)
        return Sections(device, near, self.systems.__getitem__, self.pooled)

    @abstractmethod
    def sections_for(self, rows: GroupT) -> tuple[Section, ...]:
        """Return the constants that hold for some rows, as the catalog chooses; none if none do."""

    @abstractmethod
    def error_pct(self, rows: GroupT) -> Floats:
        """Return the signed error on rows, in percent, by the constants that hold for them."""

    def errors_pct(self, groups: Iterable[GroupT]) -> Floats:
        """Return the signed errors on the rows of some groups."""
        return np.concatenate([self.error_pct(each) for each in groups])


def labels(groups: Iterable[Group[Any]], label: str) -> NDArray[Any]:
    """Return one label of the rows of all groups."""
    return np.concatenate([each.labels[label] for each in groups])


def spread(groups: Iterable[GroupT], value_of: Callable[[GroupT], Any]) -> NDArray[Any]:
    """Return a value of each group for all its rows."""
    return np.concatenate([np.full(len(each.time_s), value_of(each)) for each in groups])


def show(name: str, errors_pct: Floats) -> None:
    """Print the errors on some rows, if there are any."""
    known = np.abs(errors_pct[np.isfinite(errors_pct)])
    if known.size:
        median, p90 = np.quantile(known, [0.5, 0.9])
        print(_line(name, 60, known.size, median, p90))


def _line(name: str, width: int, rows: int, median: float, p90: float) -> str:
    return f"{name:<{width}} {rows:>5} rows, median {median:6.2f} %, p90 {p90:6.2f} %"


@dataclass(frozen=True, eq=False)
class Refit(Generic[GroupT]):
    """The refit of one table of the catalog."""

    table: KernelTable
    units: str
    """Of its constants: a comment of its files."""
    splits: Mapping[str, str]
    """Labels of rows, with what is left out by each."""
    measured_groups: Callable[[Table], list[GroupT]]
    fitted: Callable[[Iterable[GroupT]], Fitted[GroupT]]
    show_in_sample: Callable[[Sequence[GroupT], Fitted[GroupT]], None]
    show_left_out: Callable[[Sequence[GroupT]], None]

    def left_out(
        self,
        groups: Sequence[GroupT],
        label: str,
        seen: Callable[[GroupT, tuple[Section, ...]], None] | None = None,
    ) -> Floats:
        """Return the error on every row by a fit without the rows that share its label, in percent.

        Args:
            groups: What was measured.
            label: What is left out: a key of `splits`.
            seen: Called with rows that were left out and the constants that they are predicted by.
        """
        ends = np.cumsum([len(each.time_s) for each in groups])[:-1]

        def tried(out: Mask) -> Floats:
            parts = list(zip(groups, np.split(out, ends), strict=True))
            rest = self.fitted(each.where(~mask) for each, mask in parts)
            tested = [each.where(mask) for each, mask in parts if mask.any()]
            for rows in tested:
                if seen is not None:
                    seen(rows, rest.sections_for(rows))
            return rest.errors_pct(tested)

        return leave_out(labels(groups, label), tried)

    def main(self, doc: str | None, arguments: Sequence[str] | None = None) -> None:
        """Fit everything that tables cover, and write it into the catalog of this installation."""
        parser = parser_of(doc)
        parser.add_argument("tables", nargs="+", type=Path, help="measured tables (CSV)")
        parser.add_argument("--output", type=Path, default=catalog_files.CATALOG, help="a catalog")
        parser.add_argument("--left-out", action="store_true", help="show errors on rows left out")
        given = parser.parse_args(arguments)
        groups = [each for path in given.tables for each in self.measured_groups(read_table(path))]
        if not groups:
            raise BadValueError("tables", [str(path) for path in given.tables], "tables with rows")
        result = self.fitted(groups)
        for name in sorted(
            {name for name, _ in catalog.contents(self.table)} - set(result.systems)
        ):
            print(f"{name}: no rows, kept as it is")
        self._write(result, given.output)
        width = max(map(len, result.pooled))
        for name, entry in result.pooled.items():
            fit = Fit(**entry["fit"])
            line = _line(name, width, fit.rows, fit.median_pct, fit.p90_pct)
            print(f"{line}, over all devices")
        self.show_in_sample(groups, result)
        if given.left_out:
            self.show_left_out(groups)

    def _write(self, result: Fitted[GroupT], output: Path) -> None:
        by_command = f"Constants fitted to measurements by `python -m lab.refit_{self.table}`"
        head = (f"{by_command}: not by hand.", self.units)
        for system, sections in sorted(result.systems.items()):
            text = catalog_files.as_toml(head, sections)
            write_whole(output / self.table / f"{system}.toml", text)
        text = catalog_files.as_toml(head, result.pooled)
        write_whole(output / "tuner" / f"{self.table}_pooled.toml", text)

"""Writes the constants of dispatch and combine kernels anew, from a measured table.

    python -m lab.refit_dispatch dispatch.csv [--output FOLDER] [--left-out]

Each phase of each kernel is fitted twice: first to the rows of all systems together, then, from
there, to those of each system, whose constants hold on to the shared ones as far as its own rows do
not determine them. What is minimised is the relative error (the logarithm of predicted over
measured), robustly; ``catalog/tuner/dispatch.toml`` says where the search starts. No link runs
above its nominal rate.

``--left-out`` shows as well, and first, how far predictions are off for a system, a version, an
expert-parallel degree and a model's shape that a fit did not see.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lab import catalog_files
from lab.command import ended, parser_of
from lab.parts import Mask, leave_out
from shardcost.calibrate.fit import fit_robustly
from shardcost.catalog import cluster_named, tuner_table
from shardcost.catalog.errors import Facts
from shardcost.collectives.dispatch import Traffic, kernel_parts, stream_times
from shardcost.collectives.interval import dispatch_facts_of
from shardcost.collectives.library_time import MODES
from shardcost.collectives.paths import total
from shardcost.errors import BadValueError, ShardcostError
from shardcost.files import write_whole
from shardcost.formats.tables import Row, Table, read_table
from shardcost.machine import CATALOG
from shardcost.machine.constants import in_base_units, in_file_units, stated
from shardcost.machine.dispatch import (
    PHASES,
    DispatchConstants,
    DispatchFit,
    DispatchTables,
    Entry,
    Kernel,
    kernels,
)
from shardcost.validate.dispatch import MEASURED, cases, kernel_of_case
from shardcost.validate.predictions import Floats
from shardcost.validate.validation import measurements

FOLDER: Final = catalog_files.CATALOG / "dispatch"
_HEAD: Final = ("Constants fitted to measurements by `python -m lab.refit_dispatch`: not by hand.",)
_OUTLIERS: Final = (1.0, 0.1)
"""Relative error beyond which a row counts by its size and no longer by its square: first no row,
so that a search far from its end is not content with half of them, then few."""
_PULL: Final = 0.3
"""Weight of a constant's distance (in logarithms) from where it started."""
_SHARES: Final = ("link_share", "network_share")
_ROUNDS: Final = 60
_ANY: Final = "h100_sxm"
"""A system that stands for all where constants do not matter."""
FOLDS: Final[Mapping[str, Callable[[Row], str]]] = {
    "a system": lambda row: row["cluster"],
    "a version": lambda row: f"{row['library']} {row.get('version') or row['dataset']}",
    "an EP degree": lambda row: row["num_gpus"],
    "a shape": lambda row: f"{row['hidden']} {row['topk']} {row['experts']}",
}
"""What is left out, and which part a row is of."""

_COLUMNS: Final = (
    "systems",
    "tokens",
    "ranks",
    "sms",
    "experts_per_sm",
    "time_s",
    "datasets",
    "networks",
    "places",
)
"""The columns of `Rows`."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Measured rows of one phase of one kernel, as columns."""

    kernel: Kernel
    phase: str
    systems: NDArray[Any]
    tokens: Floats
    sent: Traffic
    group: Any
    """What formulas ask of a group: domains and rates."""
    ranks: Floats
    sms: Floats
    experts_per_sm: Floats
    time_s: Floats
    datasets: NDArray[Any]
    networks: NDArray[Any]
    """Kinds of networks that rows cross; empty where none."""
    places: NDArray[np.intp]
    """Where in the table they stand."""

    def where(self, kept: Mask) -> Rows:
        """Return some of the rows."""
        group = SimpleNamespace(**{name: cells[kept] for name, cells in vars(self.group).items()})
        columns = {name: getattr(self, name)[kept] for name in _COLUMNS}
        sent = Traffic(*(cells[kept] for cells in self.sent))
        return Rows(self.kernel, self.phase, sent=sent, group=group, **columns)

    def predicted_s(self, constants: DispatchConstants) -> Floats:
        """Return the times under given constants."""
        mode = MODES[0] if constants.host_s is None else "eager"
        streams = stream_times(constants, self.kernel, self.sent, self.group, self.tokens, self.sms)
        parts = kernel_parts(constants, streams, self.sent, self.group, self.experts_per_sm, mode)
        result: Floats = total(parts)
        return result


def measured(table: Table) -> list[Rows]:
    """Return the usable rows of a table, by kernel and phase."""
    known = cases(table)
    fitted = CATALOG._replace(dispatch=_unfitted())
    times, _ = measurements(table, MEASURED)
    names = np.array(table.columns["dataset"])
    found: dict[tuple[str, str], list[Rows]] = {}
    for case, places in known.rows.items():
        kept = np.array([i for i in places if times[i] > 0], dtype=np.intp)
        if not kept.size:
            continue
        on = case.machine(fitted)
        try:
            result = case.result(known.sizes[kept], on)
        except ShardcostError:
            continue
        if result.resolved is None:  # an all-to-all, whose constants are of another table
            continue
        kernel, shape = kernel_of_case(case), kept.shape

        def filled(value: Any, shape: tuple[int, ...] = shape) -> Floats:
            return np.broadcast_to(np.asarray(value, dtype=float), shape)

        group = result.group
        rows = Rows(
            kernel=kernel,
            phase=case.phase,
            systems=np.full(shape, on.cluster.system),
            tokens=filled(result.tokens),
            sent=Traffic(*map(filled, result.traffic)),
            group=SimpleNamespace(
                domains=filled(group.domains),
                link_bytes_per_s=filled(group.link_bytes_per_s),
                port_bytes_per_s=filled(group.port_bytes_per_s),
            ),
            ranks=filled(group.ranks),
            sms=filled(result.sms),
            experts_per_sm=filled(result.experts / on.cluster.device.sms),
            time_s=1e-6 * times[kept],
            datasets=names[kept],
            networks=np.full(shape, on.cluster.network.kind if on.cluster.network else ""),
            places=kept,
        )
        found.setdefault((kernel.name, case.phase), []).append(rows)
    return [_joined(parts) for parts in found.values()]


def _joined(parts: Sequence[Rows]) -> Rows:
    sent = Traffic(*(np.concatenate(cells) for cells in zip(*(p.sent for p in parts), strict=True)))
    rates = ("domains", "link_bytes_per_s", "port_bytes_per_s")
    group = {name: np.concatenate([getattr(p.group, name) for p in parts]) for name in rates}
    columns = {name: np.concatenate([getattr(p, name) for p in parts]) for name in _COLUMNS}
    return Rows(
        parts[0].kernel, parts[0].phase, sent=sent, group=SimpleNamespace(**group), **columns
    )


def start_of(kernel: Kernel, phase: str) -> DispatchConstants:
    """Return where the fit of a kernel begins."""
    starts = tuner_table("dispatch")["start"]
    figures = dict(starts["expert" if kernel.per_expert else "gpu"][phase])
    if kernel.library in starts["host"]:
        figures["host_us"] = starts["host"][kernel.library]
    return DispatchConstants(**in_base_units(figures))


def _unfitted() -> DispatchTables:
    """Return constants by which every kernel can be asked what it sends: where fits begin."""
    nothing = DispatchFit("not fitted", 1, 1.0, 1.0, 1, 1, 1, 1)
    return DispatchTables(
        Entry(_ANY, name, phase, start_of(kernel, phase), nothing)
        for name, kernel in kernels().items()
        for phase in PHASES
    )


def solved(rows: Rows, start: DispatchConstants) -> DispatchConstants:
    """Return the constants that fit rows best, near a start where the rows do not tell."""
    names = list(stated(start))
    origin = np.log([getattr(start, name) for name in names])
    bounds = (
        np.full(len(names), -60.0),
        np.array([0.0 if name in _SHARES else 60.0 for name in names]),
    )

    def constants(logs: Floats) -> DispatchConstants:
        return DispatchConstants(**dict(zip(names, np.exp(logs).tolist(), strict=True)))

    minimum = fit_robustly(
        origin,
        bounds,
        lambda logs: np.log(rows.predicted_s(constants(logs)) / rows.time_s),
        lambda logs: _PULL * (logs - origin),
        outliers=_OUTLIERS,
        evaluations=_ROUNDS,
    )
    shortened = in_base_units(in_file_units(constants(minimum.at)))
    return DispatchConstants(**shortened)


def refitted(known: Iterable[Rows]) -> list[Entry]:
    """Return the constants of every kernel on every system that has rows.

    First all systems together, then those of each architecture from there, then each system from
    its architecture. A kernel whose nearest relative was fitted starts from it: it is built alike.
    """
    entries = []
    shared: dict[tuple[str, str, str], DispatchConstants] = {}
    order = list(kernels())
    for rows in sorted(known, key=lambda rows: order.index(rows.kernel.name)):
        names = {str(name): cluster_named(name).device.architecture for name in set(rows.systems)}
        only = next(iter(names.values())) if len(set(names.values())) == 1 else ""
        of = (rows.kernel.name, rows.phase)
        whole = shared[*of, ""] = solved(rows, _start(rows, only, shared))
        for name in sorted(set(names.values())):
            alike = np.array([names[system] == name for system in rows.systems])
            shared[*of, name] = whole if only else solved(rows.where(alike), whole)
        for system, architecture in sorted(names.items()):
            own = rows.where(rows.systems == system)
            constants = solved(own, shared[*of, architecture])
            entries.append(Entry(system, *of, constants, _fit(own, constants)))
    return entries


def _start(
    rows: Rows, architecture: str, shared: Mapping[tuple[str, str, str], DispatchConstants]
) -> DispatchConstants:
    """Return where the fit of a kernel begins: at its relative, on its architecture if known."""
    start = start_of(rows.kernel, rows.phase)
    for name in rows.kernel.relatives:
        if kernels()[name].per_expert == rows.kernel.per_expert:
            for known in (architecture, ""):
                if (name, rows.phase, known) in shared:
                    return replace(shared[name, rows.phase, known], host_s=start.host_s)
    return start


def _fit(rows: Rows, constants: DispatchConstants) -> DispatchFit:
    sizes = 100 * np.abs(rows.predicted_s(constants) / rows.time_s - 1)
    return DispatchFit(
        source="fitted by shardcost to measured rows of " + ", ".join(sorted(set(rows.datasets))),
        rows=len(sizes),
        median_pct=round(float(np.median(sizes)), 2),
        p90_pct=round(float(np.quantile(sizes, 0.9)), 2),
        least_gpus=int(rows.ranks.min()),
        most_gpus=int(rows.ranks.max()),
        most_nodes=int(rows.group.domains.max()),
        most_tokens=int(rows.tokens.max()),
        networks=tuple(sorted(set(rows.networks) - {""})),
    )


def left_out(
    table: Table, known: Sequence[Rows], parts: NDArray[Any]
) -> tuple[Floats, list[Facts]]:
    """Return the error of every row, in percent, by constants that had not seen rows of its part.

    Kernels without other rows are predicted by those of a relative, as the catalog does. With the
    errors come the facts of each prediction, for its interval.
    """
    facts: list[Facts] = [{}] * table.rows
    by_case = cases(table)
    times, _ = measurements(table, MEASURED)
    every = {(rows.kernel.name, rows.phase): rows for rows in known}
    whole = refitted(known)

    def tried(out: Mask) -> Floats:
        entries, seen = [], []
        for key, rows in every.items():
            hidden = out[rows.places]
            if not hidden.any():
                entries += [each for each in whole if (each.kernel, each.phase) == key]
            elif not hidden.all():
                seen.append(rows.where(~hidden))
        entries += refitted(seen)
        fitted = CATALOG._replace(dispatch=DispatchTables(entries))
        values = np.full(table.rows, np.nan)
        for case, members in by_case.rows.items():
            places = [i for i in members if out[i]]
            if places:
                with suppress(ShardcostError):  # no kernel of the kind may be left
                    result = case.result(by_case.sizes[places], case.machine(fitted))
                    values[places] = result.time_s
                    for i in places:
                        facts[i] = dispatch_facts_of(result)
        errors: Floats = 100 * (1e6 * values / times - 1)
        return errors[out]

    return leave_out(parts, tried), facts


def as_toml(entries: Iterable[Entry]) -> str:
    """Return the file of a system."""
    content: dict[str, Any] = {}
    for each in sorted(entries, key=lambda each: (each.kernel, each.phase != "dispatch")):
        figures = {**in_file_units(each.constants), "fit": each.fit._asdict()}
        content.setdefault(each.kernel, {})[each.phase] = figures
    return catalog_files.as_toml(_HEAD, content)


def _show(name: str, errors_pct: Floats) -> None:
    known = np.abs(errors_pct[np.isfinite(errors_pct)])
    if known.size:
        median, p90 = np.quantile(known, [0.5, 0.9])
        print(f"{name:<58} {len(known):>5} rows, median {median:6.2f} %, p90 {p90:6.2f} %")


def _show_left_out(table: Table, known: Sequence[Rows]) -> None:
    for what, part_of in FOLDS.items():
        parts = parts_of(table, part_of)
        errors_pct, _ = left_out(table, known, parts)
        _show(f"{what} left out", errors_pct)
        for label, members in _labelled(table, parts):
            _show(f"  {label}", errors_pct[members])


def parts_of(table: Table, part_of: Callable[[Row], str]) -> NDArray[Any]:
    """Return which part each row is of."""
    return np.array([part_of(row) for row in table.records()])


def _labelled(table: Table, parts: NDArray[Any]) -> Iterator[tuple[str, list[int]]]:
    """Yield the rows of each library and part."""
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(table.records()):
        family = "low latency" if row["ll"] == "1" else "normal"
        groups.setdefault(f"{row['library']} {family}, without {parts[i]}", []).append(i)
    yield from sorted(groups.items())


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit everything that a table covers, and write it into the catalog of this installation."""
    parser = parser_of(__doc__)
    parser.add_argument("table", type=Path, help="a measured table of dispatch and combine (CSV)")
    parser.add_argument("--output", type=Path, default=FOLDER, help="where to write the files")
    parser.add_argument("--left-out", action="store_true", help="show errors on rows left out")
    given = parser.parse_args(arguments)
    table = read_table(given.table)
    if table.kind != "dispatch":
        raise BadValueError(str(table.path), table.kind, "a table of dispatch")
    known = measured(table)
    if given.left_out:
        _show_left_out(table, known)
    entries = refitted(known)
    for system in sorted({each.system for each in entries}):
        own = [each for each in entries if each.system == system]
        write_whole(given.output / f"{system}.toml", as_toml(own))
    for each in sorted(entries, key=lambda each: each[:3]):
        error = f"median {each.fit.median_pct:6.2f} %, p90 {each.fit.p90_pct:6.2f} %"
        print(f"{' '.join(each[:3]):<44} {each.fit.rows:>5} rows, {error}")


if __name__ == "__main__":
    ended(main)

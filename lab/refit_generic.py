"""Writes the assumed constants of the generic library, and how far off it is, into the catalog.

    python -m lab.refit_generic collectives.csv [--output FOLDER]

The generic library prices links whose own library nobody measured. Its constants are fitted to
every vendor's library of the catalog in turn: to what the catalog's own constants predict for
common collectives inside a domain. Of those, the median over the systems of an architecture, then
over architectures, is assumed for any other machine.

How far off that is, rows of the table tell: each is predicted by the generic library with the
constants of all other architectures, its own hidden. Their residuals are the library's interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from lab import catalog_files
from lab.catalog_files import inline
from lab.command import ended, parser_of, say
from shardcost import catalog
from shardcost.catalog.errors import CONFIDENCE_PCT
from shardcost.cluster import Cluster
from shardcost.collectives.interval import generic_facts_of
from shardcost.collectives.library_time import collective_time
from shardcost.files import write_whole
from shardcost.formats.tables import Table, read_table
from shardcost.machine import Machine, machine_of
from shardcost.machine.constants import Calibration, GenericLibrary, RingLibrary, in_file_units
from shardcost.machine.libraries import GENERIC, catalog_calibrations, generic_library
from shardcost.validate.collectives import MEASURED, CollectiveCase, cases, size_bytes

Floats = NDArray[np.float64]
_SIZES: Final = 2.0 ** np.arange(10, 33, 2)
_COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_RANKS: Final = (2, 4, 8)
_FIRST: Final = {
    "start_s": 5e-6,
    "step_s": 1e-6,
    "peer_s": 5e-7,
    "link_share": 0.8,
    "fill": 0.5,
}
"""Where every fit begins."""
_LEVELS: Final = (("span", "links", "collective", "band"), ("span", "links", "band"), ("span",), ())
_ENOUGH: Final = 30
_TAIL: Final = (1 - CONFIDENCE_PCT / 100) / 2


def fitted_to(own: Calibration) -> GenericLibrary:
    """Return the constants by which the generic library is nearest to a measured one."""
    cluster = catalog.cluster_named(own.system)
    machine, start = machine_of(cluster), generic_library()
    names = list(asdict(start.constants))

    def curves(on: Machine, library: str) -> Floats:
        ranks = [each for each in _RANKS if each <= cluster.tiers[0].gpus]
        times = [
            collective_time(name, _SIZES, on, each, library=library).time_s
            for name in _COLLECTIVES
            for each in ranks
        ]
        logs: Floats = np.log(np.concatenate(times))
        return logs

    wanted = curves(machine, own.library)

    def constants(logs: Floats) -> GenericLibrary:
        return GenericLibrary(**dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def residuals(logs: Floats) -> Floats:
        trial = replace(start, constants=constants(logs))
        return curves(machine.with_own(trial), GENERIC) - wanted

    first = np.log([_FIRST[name] for name in names])
    best = least_squares(residuals, first, loss="soft_l1", f_scale=0.2, bounds=_bounds(names))
    return constants(best.x)


def _bounds(names: Sequence[str]) -> tuple[Floats, Floats]:
    """Return between which logarithms constants are looked for."""
    ends = {"link_share": (0.02, 1.0), "fill": (0.01, 2.0)}
    low, high = np.log([ends.get(name, (1e-8, 1e-4)) for name in names]).T
    return low, high


def fits() -> dict[str, GenericLibrary]:
    """Return the constants nearest to the vendor's library of each measured system."""
    return {
        own.system: fitted_to(own)
        for own in catalog_calibrations()
        if isinstance(own.constants, RingLibrary)
    }


def median_of(known: dict[str, GenericLibrary], without: str = "") -> GenericLibrary:
    """Return medians over architectures of medians over their systems, one of them left out."""
    by_architecture: dict[str, list[GenericLibrary]] = {}
    for system, constants in known.items():
        architecture = catalog.cluster_named(system).device.architecture
        if architecture != without:
            by_architecture.setdefault(architecture, []).append(constants)
    names = list(asdict(next(iter(known.values()))))
    medians = {
        name: float(
            np.median(
                [
                    np.median([getattr(each, name) for each in several])
                    for several in by_architecture.values()
                ]
            )
        )
        for name in names
    }
    return GenericLibrary(**medians)


def residuals(
    table: Table, known: dict[str, GenericLibrary]
) -> Iterator[tuple[dict[str, str], float, str]]:
    """Yield the facts, the residual and the data set of each row of a vendor's own library.

    The constants are those of other architectures than the row's.
    """
    rows, found = list(table.records()), cases(table)
    vendors = {each.library for each in catalog_calibrations() if _is_vendors(each)}
    assumed: dict[str, Calibration] = {}
    for case, places in found.rows.items():
        if case.library not in vendors or case.algorithm or case.protocol or not case.has_a_place():
            continue
        own = Cluster.named(case.cluster).device.architecture
        if own not in assumed:
            constants = median_of(known, without=own)
            assumed[own] = replace(generic_library(), constants=constants)
        machine = case.machine().with_own(assumed[own])
        generic: CollectiveCase = case._replace(library=GENERIC)
        times_us = 1e6 * generic.time_s(found.sizes[places, 0], machine)
        for place, time_us in zip(places, times_us, strict=True):
            result = generic.result(size_bytes(rows[place]), machine)
            residual = float(np.log(float(rows[place][MEASURED]) / time_us))
            yield generic_facts_of(result), residual, rows[place]["dataset"]


def _is_vendors(own: Calibration) -> bool:
    return isinstance(own.constants, RingLibrary)


def groups(tried: Sequence[tuple[dict[str, str], float, str]]) -> Iterator[dict[str, Any]]:
    """Yield how far nine of ten residuals reach, of every group with enough rows."""
    for level in _LEVELS:
        by_key: dict[tuple[str, ...], list[float]] = {}
        for facts, residual, _ in tried:
            by_key.setdefault(tuple(facts[name] for name in level), []).append(residual)
        for key, values in sorted(by_key.items()):
            if len(values) < _ENOUGH:
                continue
            low, high = np.quantile(values, [_TAIL, 1 - _TAIL])
            yield {
                "key": inline(dict(zip(level, key, strict=True))),
                "rows": len(values),
                "low": round(min(float(low), 0.0), 4),
                "high": round(max(float(high), 0.0), 4),
                "median_pct": round(float(np.median(errors_pct(values))), 1),
            }


def errors_pct(residuals_: Iterable[float]) -> Floats:
    """Return how far predictions are from measurements, in percent of these."""
    errors: Floats = 100 * np.abs(np.exp(-np.asarray(list(residuals_))) - 1)
    return errors


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, leave out, and write both files."""
    parser = parser_of(__doc__)
    parser.add_argument("table", type=Path, help="measured collectives (CSV)")
    parser.add_argument("--output", type=Path, default=catalog_files.CATALOG, help="a catalog")
    given = parser.parse_args(arguments)
    known = fits()
    for system, constants in known.items():
        say(f"{system}: {in_file_units(constants)}")
    tried = list(residuals(read_table(given.table), known))
    errors = errors_pct(residual for _, residual, _ in tried)
    median, p90 = (float(np.percentile(errors, share)) for share in (50, 90))
    say(f"architecture left out: {len(errors)} rows, median {median:.1f} %, p90 {p90:.1f} %")
    own = generic_library()
    constants = median_of(known)
    say(f"median: {in_file_units(constants)}")
    source = (
        "assumed: the median over architectures of constants fitted to what the catalog predicts"
        f" of {len(known)} vendors' libraries; rates as shares of the datasheet"
    )
    fit = {**asdict(own.fit), "source": source, "rows": len(errors)}
    fit |= {"median_pct": round(median, 2), "p90_pct": round(p90, 2)}
    fit["collectives"] = list(own.fit.collectives)
    entry = {
        "name": GENERIC,
        "kind": GENERIC,
        "since": "0",
        "chooser": "fastest",
        "fit": {name: value for name, value in fit.items() if value is not None},
        "constants": in_file_units(constants),
    }
    head = ("Assumed constants of the library that runs where no vendor's was measured, by",)
    by = "`python -m lab.refit_generic`: not by hand."
    text = catalog_files.as_toml((*head, by), {"system": GENERIC, "library": [entry]})
    write_whole(given.output / "collectives" / "generic.toml", text)
    content = {
        "kind": GENERIC,
        "left_out": "an architecture",
        "source": "rows of " + ", ".join(sorted({dataset for _, _, dataset in tried})),
        "confidence_pct": CONFIDENCE_PCT,
        "levels": [list(level) for level in _LEVELS],
        "group": list(groups(tried)),
    }
    head = ("Residuals, logarithms of measured over predicted by the generic library, by",)
    write_whole(
        given.output / "errors" / "generic.toml", catalog_files.as_toml((*head, by), content)
    )


if __name__ == "__main__":
    ended(main)

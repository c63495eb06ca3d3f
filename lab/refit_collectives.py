"""Writes the fitted constants of the catalog anew, from measured tables.

    python -m lab.refit_collectives collectives.csv [--output FOLDER]

First the ring libraries of every system (three rounds, so that systems of one family settle on each
other), then the engines that fall back on them, then the networks that join them. Each file of
``catalog/collectives/`` states its rows and its error; files of systems that no table has
stay as they are. Rows driven by one process, which contain host
launches, and data sets of a library too old to be the one meant (`OUTDATED`) are not fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lab.catalog_files import CATALOG
from lab.command import ended, parser_of
from shardcost import catalog
from shardcost.calibrate.fit import (
    UNFITTED,
    Curve,
    Floats,
    Key,
    blank,
    curves,
    fitted,
    fitted_library,
    inside,
    with_fit,
)
from shardcost.calibrate.profile import entry_lines
from shardcost.errors import BadValueError
from shardcost.files import write_whole
from shardcost.formats.tables import Table, read_table
from shardcost.machine import CATALOG as CONSTANTS
from shardcost.machine import Fitted
from shardcost.machine.constants import (
    Calibration,
    EngineLibrary,
    NetworkConstants,
    in_base_units,
    stated,
)
from shardcost.machine.libraries import (
    ENGINES,
    FRAMEWORKS,
    Libraries,
    generation,
)
from shardcost.validate.collectives import CollectiveCase

OUTDATED: Final = frozenset({"vtrain_a100"})
"""Data sets of an NCCL years older than the others of their system."""
_ROUNDS: Final = 3
_ABOVE: Final = (*ENGINES, *FRAMEWORKS)
FOLDER: Final = CATALOG / "collectives"


def usable(tables: Iterable[Table]) -> list[Curve]:
    """Return the curves that constants are fitted to."""
    known = (curve for table in tables for curve in curves(table, OUTDATED))
    return [curve for curve in known if not curve.case.single_process]


def key_of(case: CollectiveCase) -> Key:
    """Return which constants a row determines."""
    name, _, version = case.library.partition("==")
    since = generation(name, version or None) if name in ENGINES else "0"
    return case.cluster, name, since


def by_key(known: Iterable[Curve]) -> dict[Key, list[Curve]]:
    """Return curves by the constants that they determine."""
    results: dict[Key, list[Curve]] = {}
    for curve in known:
        results.setdefault(key_of(curve.case), []).append(curve)
    return results


def family_of(key: Key, known: Mapping[Key, Calibration]) -> list[Calibration]:
    """Return the calibrations of a system's family among those fitted so far."""
    system, library, since = key
    return Libraries(known.values()).donors(catalog.cluster_named(system), library, since)


def ring_libraries(known: Iterable[Curve]) -> dict[Key, Calibration]:
    """Return the calibrations of NCCL, RCCL and oneCCL on every system."""
    groups = {key: entry for key, entry in by_key(known).items() if key[1] not in _ABOVE}
    results: dict[Key, Calibration] = {}
    for round_ in range(_ROUNDS):
        latest = {}
        for key, group in groups.items():
            donors = family_of(key, results) if round_ else []
            latest[key] = fitted_library(group, blank(key, donors))
        results = latest
    return results


def engines(known: Iterable[Curve], rest: Fitted = CONSTANTS) -> dict[Key, Calibration]:
    """Return the calibrations of engines and frameworks, given those of the libraries below."""
    groups = {key: entry for key, entry in by_key(known).items() if key[1] in _ABOVE}
    return {
        key: fitted_library(group, _engine_blank(key, group), rest) for key, group in groups.items()
    }


def _engine_blank(key: Key, known: Sequence[Curve]) -> Calibration:
    """Return a start, without the constants of eager launches where no row has any."""
    start = blank(key)
    eager = any(curve.case.mode == "eager" for curve in known)
    if eager or not isinstance(start.constants, EngineLibrary):
        return start
    kept = {k: v for k, v in stated(start.constants).items() if not k.startswith("eager_")}
    return replace(start, constants=EngineLibrary(**kept))


def networks(known: Iterable[Curve], rest: Fitted = CONSTANTS) -> dict[Key, Calibration]:
    """Return the calibrations of networks, given those of the systems that they join."""
    groups: dict[str, list[Curve]] = {}
    for curve in known:
        if curve.case.network:
            groups.setdefault(curve.case.network, []).append(curve)
    results = {}
    for name, group in groups.items():
        results[name, "network", "0"] = fitted_network(group, network_blank(name), rest)
    return results


def fitted_network(
    known: Sequence[Curve], start: Calibration, rest: Fitted = CONSTANTS
) -> Calibration:
    """Return a network's calibration, from curves that cross it, all else being known.

    Twice: a network none of whose rows is under LL keeps the latency of LL that it started from,
    and half of what LL128 shows is a better guess than a round figure.
    """

    def predict(curve: Curve, constants: Any) -> Floats:
        return curve.predicted_s(replace(start, constants=constants), fitted=rest)

    first: NetworkConstants = fitted(known, start.constants, predict)
    again = replace(first, ll_latency_s=first.ll128_latency_s / 2)
    return with_fit(replace(start, constants=fitted(known, again, predict)), known, rest)


def network_blank(network: str) -> Calibration:
    """Return the calibration that the fit of a network starts from."""
    start = NetworkConstants(**in_base_units(catalog.tuner_table("start")["wire"]))
    return Calibration(system=network, library="network", constants=start, fit=UNFITTED)


def as_toml(system: str, calibrations: Sequence[Calibration]) -> str:
    """Return the file of a system or a network."""
    lines = [
        "# Constants fitted to measurements by `python -m lab.refit_collectives`: not by hand.",
        f'system = "{system}"',
    ]
    for entry in sorted(calibrations, key=lambda one: (one.library, one.since)):
        lines += entry_lines(entry)
    return "\n".join(lines) + "\n"


def refitted(known: Sequence[Curve]) -> dict[Key, Calibration]:
    """Return all calibrations: rings, then the engines and networks that rest on them."""
    result = ring_libraries(inside(known))
    rest = CONSTANTS._replace(libraries=Libraries(result.values()))
    return result | engines(inside(known), rest) | networks(known, rest)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit everything that tables cover, and write it into the catalog of this installation."""
    parser = parser_of(__doc__)
    parser.add_argument("tables", nargs="+", type=Path, help="measured tables of collectives (CSV)")
    parser.add_argument("--output", type=Path, default=FOLDER, help="where to write the files")
    given = parser.parse_args(arguments)
    result = refitted(usable(read_table(path) for path in given.tables))
    if not result:
        raise BadValueError("tables", [str(path) for path in given.tables], "tables with curves")
    for system in sorted({key[0] for key in result}):
        own = [entry for key, entry in result.items() if key[0] == system]
        write_whole(given.output / f"{system}.toml", as_toml(system, own))
    for key, entry in sorted(result.items()):
        error = f"median {entry.fit.median_pct:6.2f} %, p90 {entry.fit.p90_pct:6.2f} %"
        print(f"{' '.join(key):<34} {entry.fit.rows:>5} rows, {error}")


if __name__ == "__main__":
    ended(main)

"""Writes the fitted constants of the catalog anew, from measured tables.

    python -m lab.refit_collectives collectives.csv [training.csv …] [--output FOLDER]

First the ring libraries of every system (three rounds, so that systems of one family settle on each
other), then the engines that fall back on them, then the networks that join them. Each file of
``catalog/collectives/`` states its rows and its error; files of systems that no table has
stay as they are. Networks are fitted to rates that training jobs measured as well. Rows driven by
one process, which contain host launches, and data sets of a library too old to be the one
meant (`OUTDATED`) are not fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from lab.catalog_files import CATALOG
from lab.command import ended, parser_of
from lab.in_job_rates import in_job_curves
from shardcost import catalog
from shardcost.calibrate.fit import (
    PULL,
    UNFITTED,
    Curve,
    Floats,
    Hold,
    Key,
    blank,
    curves,
    fitted_library,
    inside,
    solved,
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
    nccl_generation,
)
from shardcost.validate.collectives import CollectiveCase

OUTDATED: Final = frozenset({"vtrain_a100"})
"""Data sets of an NCCL years older than the others of their system."""
_ROUNDS: Final = 3
_ENOUGH_ROWS: Final = 4
_CLEARLY: Final = 0.97
"""How much one path has to count of all."""
BEGINS: Final[Sequence[Mapping[str, float]]] = (
    {},
    {"turnaround_s": 3e-7},
    {"ll128_latency_s": 3e-4},
)
"""A slow crossing and a slow turnaround look alike between two nodes, and where another part of a
path is longer neither matters: the way down to a network's constants begins at a turnaround that no
ring would notice, and at a crossing that every short message waits for, and the best end counts."""
_ABOVE: Final = (*ENGINES, *FRAMEWORKS)
FOLDER: Final = CATALOG / "collectives"


def usable(tables: Iterable[Table]) -> list[Curve]:
    """Return the curves that constants are fitted to: of tables, and of jobs that timed some."""
    known = (
        curve
        for table in tables
        for curve in (in_job_curves(table) if table.kind == "training" else curves(table, OUTDATED))
    )
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
            start = blank(key, donors)
            clear = [part for part in map(away_from_switches, group) if len(part.time_s)]
            latest[key] = with_fit(fitted_library(clear, start), group, CONSTANTS)
        results = latest
    return results


def away_from_switches(curve: Curve) -> Curve:
    """Return the points of a curve on Blackwell at which NCCL's estimates leave no doubt.

    Near a switch, what ran depends on the version: before 2.27.5 NCCL had no figures of its own for
    Blackwell, and ran Simple where later ones run LL128.
    """
    if nccl_generation(curve.cluster.device) != "blackwell":
        return curve
    weights = curve.result().weights
    shares = np.broadcast_arrays(curve.size_bytes, *weights.values())[1:]
    return curve.only(np.max(shares, axis=0) >= _CLEARLY * np.sum(shares, axis=0))


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
    """Return the calibrations of networks, given those of the systems that they join.

    In rounds, so that what the rows of a network do not determine is settled by its relatives.
    """
    groups: dict[str, list[Curve]] = {}
    for curve in known:
        if curve.case.network and curve.case.nodes > 1:
            groups.setdefault(curve.case.network, []).append(curve)
    # Fewer rows than this say less of a network than its relatives do.
    rows = {name: sum(len(curve.time_s) for curve in group) for name, group in groups.items()}
    groups = {name: group for name, group in groups.items() if rows[name] >= _ENOUGH_ROWS}
    results: dict[Key, Calibration] = {}
    for round_ in range(_ROUNDS):
        latest = {}
        begins = BEGINS if round_ == _ROUNDS - 1 else BEGINS[:1]
        for name, group in groups.items():
            family = network_family(name, results) if len(results) > 1 else None
            latest[name, "network", "0"] = fitted_network(group, name, rest, family, begins)
        results = latest
    return results


def network_family(name: str, known: Mapping[Key, Calibration]) -> Calibration:
    """Return what a network inherits from others among those fitted so far."""
    return Libraries(known.values()).network_family(catalog.network_named(name))


def fitted_network(
    known: Sequence[Curve],
    name: str,
    rest: Fitted = CONSTANTS,
    family: Calibration | None = None,
    begins: Sequence[Mapping[str, float]] = BEGINS,
) -> Calibration:
    """Return a network's calibration, from curves that cross it, all else being known.

    Args:
        known: The curves.
        name: Of the network.
        rest: The other constants.
        family: What it inherits, and holds on to where rows say nothing.
        begins: Constants that the ways down begin at, beside round figures.
    """
    start = network_blank(name)

    def predict(curve: Curve, constants: Any) -> Floats:
        return curve.predicted_s(replace(start, constants=constants), fitted=rest)

    origin: Any = start.constants if family is None else family.constants
    hold = Hold(dict.fromkeys(stated(origin), PULL[NetworkConstants]), {}, {})
    round_figures = stated(start.constants)
    tried = [
        solved(known, origin, predict, lambda _: True, hold, begin_at={**round_figures, **one})
        for one in begins
    ]
    best = min(tried, key=lambda solution: solution.cost).constants
    return with_fit(replace(start, constants=best), known, rest)


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

"""How the error grows on what was left out of a fit: a GPU count, a whole system.

In sample, any model with enough constants looks good. Here a system's constants are fitted without
the rows of one GPU count and tried on them, and a system is predicted from its datasheet and its
family's constants alone, as if nobody had ever measured it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lab.refit_collectives import (
    by_key,
    engines,
    family_of,
    fitted_network,
    key_of,
    network_family,
    ring_libraries,
)
from lab.refit_collectives import (
    networks as fitted_networks,
)
from shardcost.calibrate.fit import Curve, Key, blank, fitted_library, inside
from shardcost.catalog import cluster_named
from shardcost.machine.constants import Calibration
from shardcost.machine.libraries import CATALOG_LIBRARIES, ENGINES, inherited, link_family

Floats = NDArray[np.float64]
_ENOUGH_ROWS: Final = 100
"""Fewer rows of a system say little about it."""


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Errors on rows that a fit did not see."""

    system: str
    library: str
    what: str
    error_pct: Floats
    """Signed, by row."""


def gpu_counts(known: Iterable[Curve], *, of_engines: bool = False) -> Iterator[LeftOut]:
    """Yield the errors on each GPU count that was left out of the fit.

    Of ring libraries, or of engines' kernels, what they fall back on being known.
    """
    everything = tuple(known)
    for key, curves in _groups(everything, of_engines=of_engines):
        counts = sorted({curve.case.gpus for curve in curves})
        if len(counts) < 2:
            continue
        start = blank(key, family_without(key, everything))
        for count in counts:
            rest = [curve for curve in curves if curve.case.gpus != count]
            tried = [curve for curve in curves if curve.case.gpus == count]
            result = fitted_library(rest, start)
            yield LeftOut(key[0], key[1], f"{count} GPUs", _errors(tried, result))


def systems(known: Iterable[Curve]) -> Iterator[LeftOut]:
    """Yield the errors on each system that is predicted from its family and its datasheet."""
    everything = tuple(known)
    for key, curves in _groups(everything, of_engines=False):
        family = family_without(key, everything)
        if family and sum(len(curve.time_s) for curve in curves) >= _ENOUGH_ROWS:
            others = CATALOG_LIBRARIES.without(key[0])  # hosts hold on to no family
            on = curves[0].cluster
            result = others.by_hosts(on, inherited(on, family))
            yield LeftOut(key[0], key[1], "the whole system", _errors(curves, result))


def networks(known: Iterable[Curve]) -> Iterator[LeftOut]:
    """Yield the errors across nodes of a network nobody measured, of a system, of a node count.

    A network is predicted by what it inherits from others, fitted as if it did not exist. A system
    on a network, or a number of nodes, is predicted by the network's other rows.
    """
    across = [curve for curve in known if curve.case.network and curve.case.nodes > 1]
    for name in sorted({curve.case.network for curve in across}):
        own = [curve for curve in across if curve.case.network == name]
        others = fitted_networks(curve for curve in across if curve.case.network != name)
        family = network_family(name, others) if others else None
        if family is not None:
            yield LeftOut(name, "network", "the whole network", _errors(own, None, family))
        for what in ("cluster", "nodes"):
            values = sorted({getattr(curve.case, what) for curve in own})
            for value in values if len(values) > 1 else ():
                rest = [curve for curve in own if getattr(curve.case, what) != value]
                tried = [curve for curve in own if getattr(curve.case, what) == value]
                wire = fitted_network(rest, name, family=family)
                title = f"{value} nodes" if what == "nodes" else value
                yield LeftOut(name, what, title, _errors(tried, None, wire))


def pooled_by_library(left_out_rows: Iterable[LeftOut]) -> list[LeftOut]:
    """Return what was left out of each library on each system as one."""
    together: dict[tuple[str, str], list[LeftOut]] = {}
    for entry in left_out_rows:
        together.setdefault((entry.system, entry.library), []).append(entry)
    return [
        LeftOut(system, library, library, np.concatenate([part.error_pct for part in parts]))
        for (system, library), parts in together.items()
    ]


def _groups(known: Iterable[Curve], *, of_engines: bool) -> Iterator[tuple[Key, list[Curve]]]:
    """Yield the curves inside one domain of every library, or of every engine, on every system."""
    graph = [curve for curve in inside(known) if curve.case.mode == "graph"]
    for key, curves in by_key(graph).items():
        if (key[1] in ENGINES) == of_engines:
            yield key, curves


@lru_cache(maxsize=100)
def family_without(key: Key, known: tuple[Curve, ...]) -> list[Calibration]:
    """Return the calibrations of a system's family, fitted as if the system did not exist.

    The catalog's will not do: systems of a family are pulled towards each other.
    """
    system, library, _ = key
    own = cluster_named(system)
    kin = [
        curve
        for curve in inside(known)
        if curve.case.cluster != system
        and key_of(curve.case)[1] == library
        and link_family(curve.cluster) == link_family(own)
    ]
    same = [c for c in kin if c.cluster.device.architecture == own.device.architecture]
    fitted = engines(same or kin) if library in ENGINES else ring_libraries(same or kin)
    return family_of(key, fitted)


def _errors(
    curves: Sequence[Curve], result: Calibration | None, wire: Calibration | None = None
) -> Floats:
    return np.concatenate([curve.error_pct(result, wire) for curve in curves])

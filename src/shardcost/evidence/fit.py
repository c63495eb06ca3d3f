"""Fits the constants of the silicon model to measured collectives.

What is minimised is the relative error (the logarithm of predicted over measured), robustly, so
that an outlier of a benchmark does not bend a curve. Constants stay positive and physical: no rate
beats its wire. A weak pull towards the family's constants (or, without a family, towards
``catalog/tuner/start.toml``) settles what the rows do not speak of.

Needs SciPy: ``pip install 'shardcost[fit]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcost.catalog import tuner_table
from shardcost.cluster import Cluster
from shardcost.collectives.calibration import (
    Calibration,
    Constants,
    Fit,
    given,
    in_switch,
)
from shardcost.collectives.direct import DirectLibrary
from shardcost.collectives.paths import RingLibrary, Wire
from shardcost.collectives.silicon import collective_time
from shardcost.errors import ShardcostError

Floats = NDArray[np.float64]
_PULL: Final = 0.02
"""Weight of a constant's distance (in logarithms) from where it started."""
_WIRE_PULL: Final = 0.05
"""The same for a network: few rows, of few groups, speak of each."""
_OUTLIER: Final = 0.05
"""Relative error beyond which a row counts by its size and no longer by its square."""
_ACROSS_LINKS: Final = ("ll_crowd", "ll_socket", "crowd", "socket")


class MissingSciPyError(ShardcostError, ImportError):
    """SciPy is needed and not installed."""

    def __init__(self) -> None:
        super().__init__("fitting constants needs SciPy: pip install 'shardcost[fit]'")


@dataclass(frozen=True, eq=False)
class Curve:
    """Measured times of one collective on one group, by size."""

    collective: str
    cluster: Cluster
    gpus: int
    nodes: int
    library: str
    mode: str
    size_bytes: Floats
    time_s: Floats

    def predicted(self, calibration: Calibration, wire: Calibration | None = None) -> Floats:
        """Return the predicted times under constants that are not (yet) the catalog's."""
        result = collective_time(
            self.collective,
            self.size_bytes,
            self.cluster,
            self.gpus,
            self.nodes,
            library=self.library,
            mode=self.mode,
            calibration=calibration,
            wire=wire,
        )
        return np.broadcast_to(result.time_s, self.size_bytes.shape)


def fitted(
    curves: Sequence[Curve],
    start: Constants,
    predict: Callable[[Curve, Any], Floats],
    caps: Mapping[str, float],
    free: Callable[[str], bool] = lambda _: True,
    pull: float = _PULL,
) -> Any:
    """Return the constants, of the class of `start`, that fit the curves best.

    Args:
        curves: What was measured.
        start: Where to begin, and where to stay for what no row speaks of.
        predict: The model: times of a curve under given constants.
        caps: The most that some constants may be, by name.
        free: Which constants to fit, by name; the others stay as they are.
        pull: Weight of a constant's distance, in logarithms, from where it started.
    """
    least_squares = _least_squares()
    names = [name for name in given(start) if free(name)]
    origin = np.log([given(start)[name] for name in names])
    most = np.array([np.log(caps.get(name, np.inf)) for name in names])
    measured = np.log(np.concatenate([curve.time_s for curve in curves]))

    def constants(logs: Floats) -> Any:
        return replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def residuals(logs: Floats) -> Floats:
        table = constants(logs)
        predicted = np.concatenate([predict(curve, table) for curve in curves])
        return np.concatenate([np.log(predicted) - measured, pull * (logs - origin)])

    begin = np.minimum(origin, most - 1e-6)
    bounds = (np.full(len(names), -60.0), most)
    found = least_squares(
        residuals, begin, bounds=bounds, loss="soft_l1", f_scale=_OUTLIER, max_nfev=80
    )
    return constants(found.x)


def fitted_library(
    curves: Sequence[Curve],
    start: Calibration,
) -> Calibration:
    """Return a library's calibration on a system, from its curves inside one domain."""
    cluster = curves[0].cluster

    def predict(curve: Curve, constants: Any) -> Floats:
        return curve.predicted(replace(start, constants=constants))

    caps = caps_on(cluster)
    graph = [curve for curve in curves if curve.mode == "graph"]
    eager = [curve for curve in curves if curve.mode == "eager"]
    best = start.constants
    if graph:
        best = fitted(graph, best, predict, caps, lambda name: not name.startswith("eager_"))
    if eager:
        best = fitted(eager, best, predict, caps, lambda name: name.startswith("eager_"))
    return with_fit(replace(start, constants=best), graph or eager)


def with_fit(calibration: Calibration, curves: Sequence[Curve]) -> Calibration:
    """Return a calibration that states its rows and its error on them."""
    errors = np.concatenate(
        [100 * np.abs(curve.predicted(calibration) / curve.time_s - 1) for curve in curves]
    )
    sizes = np.concatenate([curve.size_bytes for curve in curves])
    gpus = [curve.gpus for curve in curves]
    fit = Fit(
        source=calibration.fit.source,
        rows=len(errors),
        median_pct=max(1e-3, float(np.median(errors))),
        p90_pct=max(1e-3, float(np.quantile(errors, 0.9))),
        least_gpus=min(gpus),
        most_gpus=max(gpus),
        least_bytes=int(sizes.min()),
        most_bytes=int(sizes.max()),
        collectives=tuple(sorted({curve.collective for curve in curves})),
    )
    return replace(calibration, fit=fit, inherited_from=())


def caps_on(cluster: Cluster) -> dict[str, float]:
    """Return the most that constants may be: no rate of a wire beats the wire's nominal rate."""
    nominal = float(cluster.tiers[0].bytes_per_s)
    wires = (
        "ll_bytes_per_s",
        "ll128_bytes_per_s",
        "simple_bytes_per_s",
        "p2p_bytes_per_s",
        "one_shot_bytes_per_s",
        "two_shot_bytes_per_s",
        "nvls_bytes_per_s",
        "nvls_small_bytes_per_s",
        "multicast_bytes_per_s",
    )
    shares = [*_ACROSS_LINKS, "efficiency", "ll_efficiency"]
    shares += [f"fallback_{name}" for name in _ACROSS_LINKS]
    return dict.fromkeys(wires, nominal) | dict.fromkeys(shares, 1.0) | {"fill": 2.0}


def starting_point(kind: type[RingLibrary | DirectLibrary], cluster: Cluster, *, eager: bool) -> Any:
    """Return where a fit begins on a system that has no measured family."""
    table = tuner_table("start")["ring" if kind is RingLibrary else "direct"]
    clock = float(cluster.device.boost_clock_hz or 1.9e9)
    link = float(cluster.tiers[0].bytes_per_s)
    known = {each.name for each in fields(kind)}
    values = {}
    for key, value in table.items():
        if key.endswith("rate"):
            unit = clock if key == "p2p_ll_rate" else link
            values[key.removesuffix("rate") + "bytes_per_s"] = value * unit
        elif key + "_s" in known:
            values[key + "_s"] = value * 1e3 / clock
        else:
            values[key] = value
    return kind(**{name: value for name, value in values.items() if _applies(name, cluster, eager)})


def _applies(name: str, cluster: Cluster, eager: bool) -> bool:
    """Return whether a constant means something on a system."""
    if in_switch(name):
        return cluster.tiers[0].in_switch_reduction
    if name.removeprefix("fallback_") in _ACROSS_LINKS:
        return cluster.tiers[0].kind == "pcie"
    return eager or not name.startswith("eager_")


def fitted_wire(curves: Iterable[Curve], start: Calibration) -> Calibration:
    """Return a network's calibration, from curves that cross it, the rest being known."""
    from shardcost.collectives.calibration import calibration_of

    known = list(curves)

    def predict(curve: Curve, constants: Any) -> Floats:
        inside = calibration_of(curve.cluster, curve.library)
        return curve.predicted(inside, replace(start, constants=constants))

    best: Wire = fitted(
        known, start.constants, predict, caps_on(known[0].cluster), pull=_WIRE_PULL
    )
    found = replace(start, constants=best)
    errors = np.concatenate([100 * np.abs(predict(c, best) / c.time_s - 1) for c in known])
    sizes = np.concatenate([curve.size_bytes for curve in known])
    fit = replace(
        start.fit,
        rows=len(errors),
        median_pct=max(1e-3, float(np.median(errors))),
        p90_pct=max(1e-3, float(np.quantile(errors, 0.9))),
        least_gpus=min(c.gpus for c in known),
        most_gpus=max(c.gpus for c in known),
        least_bytes=int(sizes.min()),
        most_bytes=int(sizes.max()),
        collectives=tuple(sorted({curve.collective for curve in known})),
    )
    return replace(found, fit=fit)


def _least_squares() -> Any:
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise MissingSciPyError from None
    return least_squares

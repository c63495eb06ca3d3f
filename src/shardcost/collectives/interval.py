"""How far a collective's time may be from the prediction: its 90 % interval.

The interval is that of similar measurements, predicted by constants that had not seen them
(`shardcost.catalog.errors`). Rows are alike in what is known before anything is measured: whether
the constants are the system's own or inherited, whether the question lies within the rows of
their fit, the kind of library and of links, the collective, the mode and the size.
"""

from __future__ import annotations

from math import exp, inf, log1p
from typing import TYPE_CHECKING, Any, Final

from shardcost.arrays import choose, first_not_less, largest, smallest
from shardcost.arrays import exp as as_exp
from shardcost.catalog import cluster_named
from shardcost.catalog.errors import (
    CONFIDENCE_PCT,
    MEASURED,
    OTHER_ARCHITECTURE,
    Residuals,
    architectures_apart,
    residuals_like,
)
from shardcost.checks import anywhere, is_array
from shardcost.cluster import Tier
from shardcost.collectives.library_time import CollectiveTime, tables_for
from shardcost.machine.constants import Calibration, GenericLibrary, NetworkConstants
from shardcost.machine.libraries import ENGINES, FRAMEWORKS, GENERIC, name_and_version
from shardcost.machine.provenance import widening
from shardcost.records import NamedTuple

if TYPE_CHECKING:
    from shardcost.collectives.dispatch import DispatchTime

KIND: Final = "collectives"
DISPATCH: Final = "dispatch"
BANDS: Final = {"up to 64 KiB": 2.0**16, "up to 16 MiB": 2.0**24, "above 16 MiB": inf}
"""Names of ranges of sizes, each with the largest size in it, in bytes."""
FEW_ROWS: Final = 40
"""A fit to fewer says little of what else a library does."""
_ALIKE: Final = {"reduce_scatter": "gather or scatter", "all_gather": "gather or scatter"}
CHANGED: Final = "wider for figures that are not the catalog's"
_OWN_ROWS: Final = "held-out measurements of your own profile"


class Interval(NamedTuple):
    """Between which times nine of ten measurements lie. Times may be arrays."""

    low_s: Any
    high_s: Any
    like: str
    """Which rows it is from, in words."""
    rows: int
    """How many of them; of an array, the fewest."""
    distance: str = ""
    """How far the prediction is from them, where it is outside, in words."""

    @property
    def confidence_pct(self) -> int:
        """Of measurements, the share that is expected inside."""
        return CONFIDENCE_PCT


def interval_of(result: CollectiveTime) -> Interval:
    """Return the 90 % interval of a predicted time, cell by cell where it has many.

    Within the rows of a user's own profile it is the profile's; else that of similar measurements.
    """
    size = result.size_bytes
    if any(isinstance(each.constants, GenericLibrary) for each in result.calibrations):
        facts = generic_facts_of(result)
        known = [residuals_like(GENERIC, **facts | {"band": band}) for band in BANDS]
    else:
        facts, counted = facts_of(result), _counted(result)
        known = [residuals_like(KIND, **counted, **facts, band=band) for band in BANDS]
    which = band_of(size)
    fit = result.calibrations[0].fit if result.calibrations else None
    if fit is not None and fit.low_pct is not None and fit.high_pct is not None:
        low, high = log1p(fit.low_pct / 100), log1p(fit.high_pct / 100)
        known.append(Residuals(low, high, fit.rows, _OWN_ROWS))
        ranks = result.group.ranks_per_domain
        if not fit.outside(result.collective, fit.most_bytes, ranks):
            within = (size >= fit.least_bytes / 2) & (size <= fit.most_bytes * 2)
            which = choose(within, len(BANDS), which)
    if is_array(which):
        import numpy as np

        low, high = (np.exp(ends)[which] for ends in np.array([rows[:2] for rows in known]).T)
        used = [known[i] for i in np.unique(which)]
    else:
        low, high, used = exp(known[which].low), exp(known[which].high), [known[which]]
    low, high = _near_points(result, low, high)
    like = "; ".join(dict.fromkeys(each.like for each in used))
    rows = min(each.rows for each in used)
    distance = next((each.distance for each in used if each.distance), "")
    more = widening(result.group.cluster)
    if more:
        low, high = low * exp(-more), high * exp(more)
        distance = "; ".join(filter(None, (distance, CHANGED)))
    low_s = largest(result.time_s * low, smallest(result.bound_s, result.time_s))
    return Interval(low_s, result.time_s * high, like, rows, distance)


def generic_facts_of(result: CollectiveTime) -> dict[str, str]:
    """Return what decides which rows a result of the generic library is like."""
    facts = facts_of(result)
    size = result.size_bytes
    least = size.min() if is_array(size) else size
    across = "one domain" if facts["span"] == "one domain" else "across nodes"
    band = list(BANDS)[int(band_of(least))]
    return {
        "span": across,
        "links": facts["links"],
        "collective": facts["collective"],
        "band": band,
    }


def _near_points(result: CollectiveTime, low: Any, high: Any) -> tuple[Any, Any]:
    """Return the ends of an interval, near points of a profile's table by its points left out."""
    group = result.group
    tables = [] if result.forced or not result.calibrations else tables_for(result)
    for table, _, holds in tables:
        if table.within_pct is not None:
            near = table.nearness(result.size_bytes, group.ranks, group.nodes, result.weights)
            near = choose(holds, near, 0.0)
            within = log1p(table.within_pct / 100)
            low = low ** (1 - near) * as_exp(-within * near)
            high = high ** (1 - near) * as_exp(within * near)
    return low, high


def _counted(result: CollectiveTime) -> dict[str, Any]:
    """Return the GPUs of a collective and the most that were measured of its library or network.

    Of many groups, those of the largest; of library and network, that which is farther beyond.
    """
    group, counts = result.group, []
    for each in result.calibrations:
        network = isinstance(each.constants, NetworkConstants)
        ranks: Any = group.ranks if network else group.ranks_per_domain
        counts.append((float(ranks.max()) if is_array(ranks) else ranks, each.fit.most_gpus))
    if not counts:
        return {}
    gpus, most = max(counts, key=lambda pair: pair[0] / pair[1])
    return {"gpus": gpus, "most_gpus": most}


def dispatch_interval_of(result: DispatchTime) -> Interval:
    """Return the 90 % interval of the time of dispatch or combine."""
    if result.exchange is not None:
        return interval_of(result.exchange)
    known = residuals_like(DISPATCH, **dispatch_facts_of(result))
    low_s, high_s = (result.time_s * exp(end) for end in (known.low, known.high))
    return Interval(low_s, high_s, known.like, known.rows)


def dispatch_facts_of(result: DispatchTime) -> dict[str, str]:
    """Return what decides which rows of dispatch and combine a result is like."""
    group, used = result.group, result.resolved
    if used is None:
        return {}
    standing = MEASURED
    if used.inherited_from:
        lenders = [cluster_named(name).device.architecture for name in used.inherited_from]
        standing = architectures_apart(group.cluster.device.architecture, lenders)
    waits = result.mode == "eager" and used.constants.host_s is not None
    return {
        "standing": standing,
        "whose": "its own kernels" if used.relative == used.kernel else "another library's kernels",
        "kernels": "low-latency kernels" if used.kernel.low_latency else "normal kernels",
        "launch": "launched by the host" if waits else "on the device",
        "span": "across nodes" if anywhere(group.domains > 1) else "one domain",
    }


def band_of(size_bytes: Any) -> Any:
    """Return the place in `BANDS` of a size, or of each of many."""
    return first_not_less(list(BANDS.values()), size_bytes)


def facts_of(result: CollectiveTime) -> dict[str, str]:
    """Return what decides which rows a result is like, all but the size."""
    group, cluster = result.group, result.group.cluster
    across = cluster.network is not None and anywhere(group.domains > 1)
    inherited = any(
        used.inherited_from and isinstance(used.constants, NetworkConstants)
        for used in result.calibrations
    )
    span = "across nodes, network not measured" if inherited else "across nodes"
    name = name_and_version(result.library)[0]
    kinds = {"engines": ENGINES, "frameworks": FRAMEWORKS}
    library = next((kind for kind, names in kinds.items() if name in names), "vendors' libraries")
    return {
        "standing": _standing(result.calibrations, cluster.device.architecture),
        "span": span if across else "one domain",
        "fit": _fit(result),
        "links": links_of(group.tier),
        "library": library,
        "mode": result.mode,
        "collective": _ALIKE.get(result.collective, result.collective),
        "vendor": cluster.device.vendor,
    }


def links_of(tier: Tier) -> str:
    """Return what joins the devices of a tier, as groups of similar measurements call it."""
    return "PCIe" if tier.kind == "pcie" else "GPU links"


def _fit(result: CollectiveTime) -> str:
    """Return whether the fit has many rows, and some of the collective and of as many ranks."""
    if result.calibrations and result.calibrations[0].fit.rows < FEW_ROWS:
        return "a fit of few rows"
    group = result.group
    for each in result.calibrations:
        ranks = (
            group.ranks if isinstance(each.constants, NetworkConstants) else group.ranks_per_domain
        )
        if each.fit.outside(result.collective, each.fit.most_bytes, ranks):
            return "beyond the fit"
    return "within the fit"


def _standing(used: tuple[Calibration, ...], architecture: str) -> str:
    """Return whether a system's constants are its own, or whose they are.

    NCCL's own estimate has none that were fitted: it is as far off as any stranger's.
    """
    if not used:
        return OTHER_ARCHITECTURE
    own = (each for each in used if not isinstance(each.constants, NetworkConstants))
    lenders = [name for each in own for name in each.inherited_from]
    if not lenders:
        return MEASURED
    return architectures_apart(
        architecture, [cluster_named(name).device.architecture for name in lenders]
    )

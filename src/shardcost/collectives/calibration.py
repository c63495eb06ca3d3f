"""The fitted constants of one library on one system: where they come from, and how well they fit.

They live in ``catalog/collectives/``, one file per system, in microseconds and GB/s. A system that
was never measured inherits from its family: constants are carried over in units of the datasheet
(latencies in clock cycles, rates as shares of the nominal link rate), and the result says so.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import MISSING, fields, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from shardcost import catalog
from shardcost.catalog.profile import cluster_of_text
from shardcost.checks import Noun, instance, noun, one_of, positive, text, whole
from shardcost.cluster import Cluster, Network, Source
from shardcost.collectives.engine_kernels import ENGINES, DirectLibrary, generation
from shardcost.collectives.paths import RingLibrary, Wire
from shardcost.errors import BadValueError, FormatError, ShardcostError, UnknownNameError, shown
from shardcost.units import format_bytes

Constants: TypeAlias = RingLibrary | DirectLibrary | Wire

_KINDS: Final[dict[str, type[Constants]]] = {
    "ring": RingLibrary,
    "direct": DirectLibrary,
    "wire": Wire,
}
_UNITS: Final = (("_gb_per_s", "_bytes_per_s", 1e9), ("_us", "_s", 1e-6))
_MOST: Final = 10**19
_HOW_TO_FIT: Final = "; to fit one to your own measurements see docs/calibration.md"
_BY_CLOCK: Final = frozenset({"p2p_ll_bytes_per_s"})
"""Rates of one channel: a few warps, whose pace is the clock's and not the link's."""


@noun
class Fit(Noun):
    """The rows behind a set of constants, and the error on them."""

    source: str = text()
    rows: int = whole()
    median_pct: float = positive()
    p90_pct: float = positive()
    least_gpus: int = whole()
    most_gpus: int = whole()
    least_bytes: int = whole()
    most_bytes: int = whole()
    collectives: tuple[str, ...] = ()
    low_pct: float | None = None
    """Of a user's own fit: 90 % of the measurements left out lay above the prediction by so many
    percent of it (less than 0: below) …"""
    high_pct: float | None = None
    """… and by at most so many."""

    def outside(
        self, collective: str, size_bytes: Any, ranks: Any, what: str = "", where: str = ""
    ) -> list[str]:
        """Return in which ways a question lies outside of the measurements, in words."""
        said = []
        if collective not in self.collectives:
            said.append(f"no {collective} measurements for {what}")
        if np.min(size_bytes) < self.least_bytes / 2 or np.max(size_bytes) > self.most_bytes * 2:
            ends = f"{format_bytes(self.least_bytes)} to {format_bytes(self.most_bytes)}"
            said.append(f"{what} measured only from {ends}")
        if np.min(ranks) < self.least_gpus or np.max(ranks) > self.most_gpus:
            some = "" if self.least_gpus == self.most_gpus else f"{self.least_gpus} to "
            said.append(f"{what} measured only on {some}{self.most_gpus} GPUs{where}")
        return said


@noun
class Calibration(Noun):
    """A library on a system (or a network): its constants and the fit that gave them."""

    system: str = text()
    library: str = text()
    since: str = text(default="0")
    """First version of the library that these constants are for."""
    chooser: str = one_of("nccl-tuner", "fastest", "limits", default="fastest")
    """How the library chooses among its paths."""
    constants: Constants = instance(RingLibrary, DirectLibrary, Wire)
    fit: Fit = instance(Fit)
    inherited_from: tuple[str, ...] = ()
    """The systems whose constants were carried over; empty if the system itself was measured."""

    def source(self) -> Source:
        """Return who states the constants, and what to mind."""
        error = f"median error {self.fit.median_pct:.1f} %, p90 {self.fit.p90_pct:.1f} %"
        on = f"{self.fit.rows} rows, {error}"
        if self.inherited_from:
            carried = ", ".join(self.inherited_from)
            return Source(
                f"inherited from {carried}, scaled by datasheet", f"{self.system} was not measured"
            )
        return Source(f"{self.fit.source}; {on}")


def wire_start() -> Wire:
    """Return where a fit of a network starts."""
    return Wire(**_in_base_units(catalog.tuner_table("start")["wire"]))


def from_file_content(content: Mapping[str, Any], file: str) -> Iterator[Calibration]:
    """Yield the calibrations that a file of the catalog, or of a user, holds."""
    system = content.get("system", content.get("name"))
    if not isinstance(system, str):
        raise FormatError(file, "system is missing")
    for entry in content.get("library", []):
        if not isinstance(entry, Mapping):
            raise FormatError(file, f"library must be a table, got {shown(entry)}")
        yield _entry({"system": system, **entry}, file)


def _entry(entry: dict[str, Any], file: str) -> Calibration:
    entry.pop("confidence_pct", None)  # what a profile says of its constants to people
    try:
        kind = _KINDS[entry.pop("kind")]
        constants = _constants(kind, entry.pop("constants"), entry["name"], file)
        fit = dict(entry.pop("fit"))
        fit["collectives"] = tuple(fit["collectives"])
        for name, value in fit.items():
            if type(value) is int and not _is_figure(value):
                raise BadValueError(f"{name} of the fit", value, "below 10^19")
        return Calibration(
            library=entry.pop("name"),
            constants=constants,
            fit=Fit(**fit),
            **entry,
        )
    except KeyError as error:
        raise FormatError(file, f"{str(error.args[0])[:60]} is missing") from None
    except ShardcostError as error:
        raise FormatError.within(file, error) from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FormatError(file, f"its library is not sound: {str(error)[:200]}") from None


def _constants(
    kind: type[Constants], figures: Mapping[str, float], library: str, file: str
) -> Constants:
    """Return the constants of a file's table, if it has what its kind needs and nothing else."""
    odd = [name for name, value in figures.items() if not _is_figure(value)]
    if odd:
        said = shown(figures[odd[0]])
        raise FormatError(
            file, f"constants of {library}: {odd[0][:60]} must be a number, got {said}"
        )
    stated = _in_base_units(figures)
    known = {each.name: each.default is MISSING for each in fields(kind)}
    unknown = [name for name in stated if name not in known]
    if unknown:
        raise FormatError(file, f"constants of {library}: unknown key {in_file_name(unknown[0])}")
    lacking = [name for name, needed in known.items() if needed and name not in stated]
    if lacking:
        raise FormatError(file, f"constants of {library} lack {in_file_name(lacking[0])}")
    return kind(**stated)


def _is_figure(value: object) -> bool:
    """Return whether a value can be a constant; whether it is sound is for its library to say."""
    return type(value) is float or (type(value) is int and abs(value) < _MOST)


def _in_base_units(figures: Mapping[str, float]) -> dict[str, float]:
    """Return figures of a file, which has microseconds and GB/s, under the names of the fields."""
    found = {}
    for key, value in figures.items():
        suffix, unit_name, unit = next(
            (each for each in _UNITS if key.endswith(each[0])), ("", "", 1.0)
        )
        found[key.removesuffix(suffix) + unit_name] = value * unit
    return found


def in_file_units(constants: Constants) -> dict[str, float]:
    """Return constants as a file has them, in microseconds and GB/s, to four digits."""
    return {
        in_file_name(name): float(f"{value / _unit_of(name)[2]:.4g}")
        for name, value in given(constants).items()
    }


def in_file_name(name: str) -> str:
    """Return the name of a constant in a file, which ends in the file's unit.

    >>> in_file_name("ll_base_s"), in_file_name("fill")
    ('ll_base_us', 'fill')
    """
    suffix, unit_name, _ = _unit_of(name)
    return name.removesuffix(unit_name) + suffix


def _unit_of(name: str) -> tuple[str, str, float]:
    return next(((s, u, x) for s, u, x in _UNITS if name.endswith(u)), ("", "", 1.0))


def given(constants: Constants) -> dict[str, float]:
    """Return the constants that a library has on its system, by name."""
    values = {each.name: getattr(constants, each.name) for each in fields(constants)}
    return {name: value for name, value in values.items() if value is not None}


@cache
def _machine(name: str) -> Cluster:
    return catalog.cluster_named(name)


class _Basis(NamedTuple):
    """Calibrations that stand in for the catalog's, told from others by their number."""

    number: int
    calibrations: tuple[Calibration, ...]


_INSTEAD: Final[list[_Basis]] = []
_NUMBERS: Final = count(1)


@contextmanager
def instead(found: Iterable[Calibration]) -> Iterator[None]:
    """Within this, let predictions rest on these calibrations and not on the catalog's."""
    _INSTEAD.append(_Basis(next(_NUMBERS), tuple(found)))
    try:
        yield
    finally:
        _INSTEAD.pop()


def measured() -> tuple[Calibration, ...]:
    """Return every calibration of the catalog, or those that stand in for them (`instead`)."""
    return _INSTEAD[-1].calibrations if _INSTEAD else _catalogued()


def _basis() -> int:
    """Return which calibrations count now: what is remembered is remembered for them alone."""
    return _INSTEAD[-1].number if _INSTEAD else 0


@cache
def _catalogued() -> tuple[Calibration, ...]:
    return tuple(
        calibration
        for name, content in catalog.contents("collectives")
        for calibration in from_file_content(content, f"collectives/{name}.toml")
    )


@cache
def _profiled(name: str, text: str) -> tuple[Calibration, ...]:
    return tuple(from_file_content(tomllib.loads(text), f"profile {name}"))


def of_profile(cluster: Cluster) -> tuple[Calibration, ...]:
    """Return the calibrations that a cluster's own profile brings along."""
    return _profiled(cluster.name, cluster.profile) if cluster.profile else ()


def profile_in(path: str | Path, network: str | Network | None = None) -> Cluster:
    """Return the cluster of a profile whose constants are sound too; errors name the file."""
    return _sound(Cluster.from_file(path, network), str(path))


def profile_of_text(text: str, network: str | Network | None = None) -> Cluster:
    """Return the cluster of a profile's text whose constants are sound too."""
    return _sound(cluster_of_text(text, network), "profile")


def _sound(cluster: Cluster, file: str) -> Cluster:
    try:
        of_profile(cluster)
    except FormatError as error:
        raise FormatError(file, error.reason) from None
    return cluster


def by_profile(cluster: Cluster) -> AbstractContextManager[None]:
    """Within this, let predictions on the system of a profile rest on the profile."""
    if not cluster.profile:
        raise BadValueError("--on", cluster.name, "a calibrated profile: it has no constants")
    own = [
        each if isinstance(each.constants, Wire) else replace(each, system=cluster.system)
        for each in of_profile(cluster)
    ]
    taken = {(each.system, each.library) for each in own}
    others = (each for each in measured() if (each.system, each.library) not in taken)
    return instead([*others, *own])


def libraries(cluster: Cluster) -> list[str]:
    """Return the libraries whose time shardcost can predict on a cluster, measured or inherited."""
    every = (*measured(), *of_profile(cluster))
    known = sorted({each.library for each in every if not isinstance(each.constants, Wire)})
    return [name for name in known if _own(cluster, name, "0") or donors_of(cluster, name, "0")]


def calibration_of(cluster: Cluster, library: str, version: str | None = None) -> Calibration:
    """Return the constants of a library on a cluster: its own, else its family's."""
    return _calibration_of(_basis(), cluster, library, version)


@cache
def _calibration_of(
    _number: int, cluster: Cluster, library: str, version: str | None
) -> Calibration:
    since = generation(library, version) if library in ENGINES else "0"
    own = _own(cluster, library, since)
    if own is not None:
        return own
    donors = donors_of(cluster, library, since)
    if not donors and not libraries(cluster):
        rule = "one whose constants you fitted: none was measured there or on its family"
        raise BadValueError(f"library on {cluster.name}", library, f"{rule}{_HOW_TO_FIT}")
    if not donors:
        raise UnknownNameError(
            f"library on {cluster.name}",
            library,
            [*libraries(cluster), *(["nccl-tuner"] if cluster.device.vendor == "nvidia" else [])],
            f"(measured there or on its family){_HOW_TO_FIT}",
        )
    return inherited(cluster, donors)


def wire_on(cluster: Cluster) -> Calibration:
    """Return what a cluster's network adds, by its own profile if that speaks of the network."""
    assert cluster.network is not None  # noqa: S101
    for each in of_profile(cluster):
        if isinstance(each.constants, Wire) and each.system == cluster.network.name:
            return each
    return wire_of(cluster.network)


def wire_of(network: Network) -> Calibration:
    """Return what a network adds: its own constants, else those of networks of its kind."""
    return _wire_of(_basis(), network)


@cache
def _wire_of(_number: int, network: Network) -> Calibration:
    known = [each for each in measured() if isinstance(each.constants, Wire)]
    for each in known:
        if each.system == network.name:
            return each
    kin = [each for each in known if catalog.network_named(each.system).kind == network.kind]
    return _mean_wire(network, kin or known)


def _mean_wire(network: Network, donors: list[Calibration]) -> Calibration:
    tables = [given(each.constants) for each in donors]
    mean = {
        name: _geometric_mean([t[name] for t in tables], [1.0] * len(tables)) for name in tables[0]
    }
    return Calibration(
        system=network.name,
        library="network",
        constants=Wire(**mean),
        fit=donors[0].fit,
        inherited_from=tuple(each.system for each in donors),
    )


def _own(cluster: Cluster, library: str, since: str) -> Calibration | None:
    """Return the constants measured on a cluster, for the generation of the library or an older."""
    own = [each for each in of_profile(cluster) if each.library == library]
    own = own or [
        each for each in measured() if (each.system, each.library) == (cluster.system, library)
    ]
    exact = [each for each in own if each.since == since]
    return next(iter(exact or own), None)


def donors_of(cluster: Cluster, library: str, since: str) -> list[Calibration]:
    """Return the calibrations of a cluster's family: same links, and same architecture if any."""
    kin = []
    for name in {each.system for each in measured() if each.library == library}:
        other = _machine(name)
        found = _own(other, library, since)
        if found and name != cluster.system and link_family(other) == link_family(cluster):
            kin.append((other, found))
    kin.sort(key=lambda pair: pair[0].name)
    same = [pair for pair in kin if pair[0].device.architecture == cluster.device.architecture]
    return [found for _, found in same or kin]


def link_family(cluster: Cluster) -> tuple[str, str]:
    """Return what systems must share for one to lend another its constants."""
    tier = cluster.tiers[0]
    if tier.kind != "pcie":
        return cluster.device.vendor, "links"
    return cluster.device.vendor, "pcie" if tier.peer_access else "pcie through the host"


def inherited(cluster: Cluster, donors: list[Calibration]) -> Calibration:
    """Return the constants of a system that was not measured, from its family and its datasheet.

    Each constant is the geometric mean over the donors, in units of the datasheet. Systems of one
    architecture count as one, so that a well-measured generation does not outvote the others.
    """
    machines = [_machine(each.system) for each in donors]
    names = [machine.device.architecture for machine in machines]
    weights = [1 / names.count(name) for name in names]
    carried: dict[str, list[tuple[float, float]]] = {}
    for donor, machine, weight in zip(donors, machines, weights, strict=True):
        for name, value in given(donor.constants).items():
            scaled = value * datasheet_unit(name, cluster) / datasheet_unit(name, machine)
            carried.setdefault(name, []).append((scaled, weight))
    if not cluster.tiers[0].in_switch_reduction:
        carried = {name: each for name, each in carried.items() if not in_switch(name)}
    mean = {
        name: _geometric_mean([value for value, _ in each], [weight for _, weight in each])
        for name, each in carried.items()
    }
    return Calibration(
        system=cluster.name,
        library=donors[0].library,
        since=donors[0].since,
        chooser=donors[0].chooser,
        constants=type(donors[0].constants)(**mean),
        fit=donors[0].fit,
        inherited_from=tuple(each.system for each in donors),
    )


def in_switch(name: str) -> bool:
    """Return whether a constant is of in-switch reduction."""
    return name.startswith(("nvls_", "multicast_"))


def datasheet_unit(name: str, cluster: Cluster) -> float:
    """Return the figure of the datasheet that a constant scales with.

    Latency is instructions, so clock cycles; a rate is a share of the link.
    """
    assumed = 1e6 * catalog.tuner_table("start")["assumed_clock_mhz"]
    clock = float(cluster.device.boost_clock_hz or assumed)
    if name in _BY_CLOCK:
        return clock
    if name.endswith("_bytes_per_s"):
        return float(cluster.tiers[0].bytes_per_s)
    if name.endswith("_s"):
        return 1 / clock
    return 1.0


def _geometric_mean(values: list[float], weights: list[float]) -> float:
    return float(np.exp(np.average(np.log(values), weights=weights)))

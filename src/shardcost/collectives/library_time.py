"""How long a collective takes on real machines: `collective_time`.

Four questions, each with its module: where the ranks sit (`group`), which paths there are and what
each takes (`paths`, `direct`), by which fitted constants (`calibration`), and which path runs
(`choice`). Here they meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from shardcost.arrays import as_array, looked_up, named
from shardcost.checks import is_array
from shardcost.cluster import Cluster, Network
from shardcost.collectives import engine_kernels
from shardcost.collectives.bounds import bus_factor, nominal_rate, wire_bound_s
from shardcost.collectives.calibration import (
    Calibration,
    calibration_of,
    libraries,
    wire_on,
)
from shardcost.collectives.choice import (
    Weights,
    fastest_weights,
    least,
    tuner_weights,
    weighted,
    with_kernels,
)
from shardcost.collectives.engine_kernels import (
    ENGINES,
    DirectLibrary,
    eager,
    fallback_constants,
    numbers,
)
from shardcost.collectives.exact.algorithms import COLLECTIVES
from shardcost.collectives.group import Group
from shardcost.collectives.paths import (
    NO_WIRE,
    Parts,
    RingLibrary,
    Wire,
    ring_library_paths,
    total,
)
from shardcost.collectives.tuner import COLLECTIVES as TUNED
from shardcost.collectives.tuner import PathName, tuner_times
from shardcost.errors import BadTypeError, BadValueError, UnknownNameError
from shardcost.scalars import positive_number
from shardcost.units import format_bytes, format_rate, format_time

MODES: Final = ("graph", "eager")
TUNER: Final = "nccl-tuner"

MOST_BYTES: Final = 2.0**62

_IN_SWITCH: Final = ("nvls", "nvls_tree", "multicast")
_VENDORS_OWN: Final = {"nvidia": "nccl", "amd": "rccl", "intel": "oneccl"}


@dataclass(frozen=True, eq=False)
class CollectiveTime:
    """The time of a collective, and what it is made of. Times may be arrays."""

    collective: str
    size_bytes: Any
    group: Group
    library: str
    mode: str
    time_s: Any
    paths: Mapping[PathName, Parts]
    """Every path that the library has, by parts."""
    weights: Weights
    """How much each path counts; one of them is 1 except near a switch."""
    calibrations: tuple[Calibration, ...]
    notes: tuple[str, ...]
    """Where the prediction goes beyond what was measured."""

    def __repr__(self) -> str:
        """Return the time, path and bandwidth of one size in a line."""
        sizes = np.atleast_1d(self.size_bytes)
        size = " to ".join(dict.fromkeys(format_bytes(each) for each in (sizes[0], sizes[-1])))
        place = f"{self.group.ranks} x {self.group.cluster.name}, {self.library}"
        what = f"CollectiveTime: {self.collective} of {size} over {place}"
        if is_array(self.time_s):
            return f"{what}, {self.time_s.size} values"
        rate = f"busbw {format_rate(self.busbw_bytes_per_s)}"
        return f"{what}: {format_time(self.time_s)} ({self.algorithm} {self.protocol}), {rate}"

    @property
    def choice(self) -> Any:
        """Index, in the order of `weights`, of the path that runs."""
        shape = np.shape(self.time_s)
        stacked = [np.broadcast_to(each, shape) for each in self.weights.values()]
        return np.argmax(np.stack(stacked), axis=0)

    @property
    def algorithm(self) -> Any:
        """The algorithm that runs: a name, or an array of them."""
        return self._named(0)

    @property
    def protocol(self) -> Any:
        """The protocol or kernel that runs: a name, or an array of them."""
        return self._named(1)

    def _named(self, place: int) -> Any:
        return named([path[place] for path in self.weights], self.choice)

    @property
    def algbw_bytes_per_s(self) -> Any:
        """Size over time; 0 for a rank by itself, which sends nothing."""
        moving = as_array(self.time_s) > 0
        return np.where(moving, self.size_bytes / np.where(moving, self.time_s, 1.0), 0.0)[()]

    @property
    def busbw_bytes_per_s(self) -> Any:
        """The rate of the links if the ring ran, as nccl-tests counts it.

        Not a wire rate where switches reduce: it may then exceed the link's.
        """
        return self.algbw_bytes_per_s * bus_factor(self.collective, self.group.ranks)

    @property
    def link_share(self) -> Any:
        """`busbw_bytes_per_s` over the nominal rate of the slowest link on the way."""
        return self.busbw_bytes_per_s / nominal_rate(self.collective, self.group)

    @property
    def bound_s(self) -> Any:
        """What the path that runs cannot beat: bytes on the busiest link over its nominal rate."""
        by_links, by_switch = (
            wire_bound_s(self.collective, self.size_bytes, self.group, in_switch=each)
            for each in (False, True)
        )
        in_switch = np.array([path[0] in _IN_SWITCH for path in self.weights])
        return np.where(looked_up(in_switch, self.choice), by_switch, by_links)[()]

    @property
    def estimates(self) -> Mapping[PathName, Any]:
        """NCCL's own estimate of each path in seconds, where it is what NCCL chooses by."""
        choosers = {each.chooser for each in self.calibrations}
        if TUNER not in {self.library, *choosers} or self.collective not in TUNED:
            return {}
        return tuner_times(self.collective, self.size_bytes, self.group)

    @property
    def limits(self) -> Mapping[PathName, Any]:
        """Up to which size, in bytes, an engine runs each kernel that it has on the group."""
        engine, version = name_and_version(self.library)
        if engine not in ENGINES or self.collective != "all_reduce":
            return {}
        found = engine_kernels.limits(engine, version, self.group)
        return {path: limit for path, limit in found.items() if path in self.paths}

    def alternatives(self) -> list[tuple[PathName, float]]:
        """Return every path with its time in seconds, fastest first. For one cell only."""
        found = [(path, float(total(parts))) for path, parts in self.paths.items()]
        return sorted(found, key=lambda each: each[1])

    def parts(self) -> Parts:
        """Return the parts of the path that runs, in seconds. For one cell only."""
        running = self.paths[self.algorithm, self.protocol]
        return {name: float(value) for name, value in running.items()}


def collective_time(
    collective: str,
    size_bytes: Any,
    cluster: Cluster | str,
    gpus: Any,
    nodes: Any = None,
    *,
    stride: Any = 1,
    network: str | Network | None = None,
    library: str = "nccl",
    mode: str | None = None,
    calibration: Calibration | None = None,
    wire: Calibration | None = None,
) -> CollectiveTime:
    """Return how long a collective takes, which path runs, and the alternatives.

    >>> result = collective_time("all_reduce", 64 * 2**20, "h100_sxm", gpus=8)
    >>> f"{result.time_s * 1e6:.0f} us by {result.algorithm}"
    '320 us by nvls'

    Args:
        collective: One of `COLLECTIVES`. In ``send_recv`` every rank sends its buffer to the next.
        size_bytes: Bytes of the buffer, as nccl-tests counts: the whole array for all-gather and
            reduce-scatter. A number or an array.
        cluster: A `Cluster` or the name of one in the catalog.
        gpus: Ranks. A number or an array.
        nodes: Nodes that they are spread over evenly; as few as hold them if left out.
        stride: Devices from one rank to the next; those between are groups of the same kind, at
            work at the same time.
        network: What joins the nodes, if the cluster does not say.
        library: ``nccl``, ``rccl``, ``oneccl``, an engine (``vllm``, ``sglang``, ``trtllm``), which
            may name its version (``sglang==0.5.10``), or ``nccl-tuner``: NCCL's own estimate.
        mode: ``graph`` (if left out): kernels follow each other on the device, as in a CUDA graph
            or in nccl-tests; ``eager``: an engine launches each from the host.
        calibration: Constants of your own instead of the catalog's, for any library's name.
        wire: The same for the network.
    """
    mode = mode or MODES[0]
    _check_names(collective, mode)
    _check_constants(calibration, wire)
    machine = _machine(cluster, network)
    size = _checked_size(size_bytes)
    group = Group.on(machine, gpus, nodes, stride)
    _check_shapes(size, group)
    engine, version = name_and_version(library)
    if engine == TUNER:
        if mode != MODES[0] or calibration or wire:
            raise BadValueError("library", library, "another, for eager launches or own constants")
        return _by_tuner(collective, size, group)
    own = calibration or calibration_of(machine, engine, version)
    used = _used(own, wire, group)
    paths, weights = _paths_and_weights(collective, size, group, used, version)
    if mode == "eager":
        paths = _eager(paths, own, size)
    time = _alone_is_free(weighted(paths, weights), group)
    notes = _notes(used, collective, size, group) + _notes_on(own, machine, engine, version)
    return CollectiveTime(collective, size, group, library, mode, time, paths, weights, used, notes)


def default_library(cluster: Cluster) -> str:
    """Return the library of a device's vendor, which engines fall back to."""
    if cluster.device.architecture.startswith("gaudi"):
        return "hccl"
    return _VENDORS_OWN.get(cluster.device.vendor, "nccl")


def _machine(cluster: Cluster | str, network: str | Network | None) -> Cluster:
    if isinstance(cluster, str):
        return Cluster.named(cluster, network)
    if not isinstance(cluster, Cluster):
        raise BadTypeError("cluster", cluster, "a Cluster or the name of one")
    if network is None:
        return cluster
    return replace(cluster, network=Network.named(network) if isinstance(network, str) else network)


def _check_names(collective: str, mode: str) -> None:
    if collective not in COLLECTIVES:
        raise UnknownNameError("collective", collective, COLLECTIVES)
    if mode not in MODES:
        raise UnknownNameError("mode", mode, MODES)


def _check_constants(calibration: object, wire: object) -> None:
    """Raise unless constants of the caller's own are of the kind that they stand in for."""
    kinds: dict[str, tuple[object, tuple[type, ...]]] = {
        "calibration": (calibration, (RingLibrary, DirectLibrary)),
        "wire": (wire, (Wire,)),
    }
    for name, (given, wanted) in kinds.items():
        constants = getattr(given, "constants", None)
        if given is not None and not (
            isinstance(given, Calibration) and isinstance(constants, wanted)
        ):
            words = " or ".join(kind.__name__ for kind in wanted)
            raise BadTypeError(name, given, f"a Calibration with constants of {words}")


def _checked_size(size_bytes: Any) -> Any:
    if not is_array(size_bytes):
        size = positive_number("size_bytes", size_bytes, "bytes")
        if size > MOST_BYTES:
            raise BadValueError("size_bytes", size_bytes, "at most 4 EiB")
        return size
    if size_bytes.dtype.kind not in "iuf":
        raise BadTypeError("size_bytes", size_bytes, "numbers, in every cell")
    good = (size_bytes > 0) & (size_bytes <= MOST_BYTES)
    if not good.all():
        raise BadValueError("size_bytes", size_bytes[~good][0], "above 0 bytes, at most 4 EiB")
    return size_bytes.astype(np.float64)


def _check_shapes(size: Any, group: Group) -> None:
    """Raise unless sizes, ranks and nodes go together, cell by cell."""
    shapes = [np.shape(each) for each in (size, group.ranks, group.nodes)]
    try:
        cells = np.prod(np.broadcast_shapes(*shapes))
    except ValueError:
        raise BadValueError("shapes of size_bytes, gpus, nodes", shapes, "alike") from None
    if not cells:
        raise BadValueError("shapes of size_bytes, gpus, nodes", shapes, "of at least one cell")


def name_and_version(library: str) -> tuple[str, str | None]:
    """Return ``("sglang", "0.5.10")`` for ``sglang==0.5.10``."""
    if not isinstance(library, str):
        raise BadTypeError("library", library, "a name")
    name, given, version = library.partition("==")
    if given and (name not in ENGINES or not numbers(version)):
        rule = f"a name; {', '.join(ENGINES)} may have a version, such as sglang==0.5.10"
        raise BadValueError("library", library, rule)
    return name, version or None


def _used(own: Calibration, wire: Calibration | None, group: Group) -> tuple[Calibration, ...]:
    """Return the calibrations that a prediction rests on: the library's, NCCL's, the network's."""
    used = [own]
    if isinstance(own.constants, DirectLibrary):
        used.append(calibration_of(group.cluster, default_library(group.cluster)))
    if group.cluster.network is not None and np.any(group.domains > 1):
        used.append(wire or wire_on(group.cluster))
    return tuple(used)


def _paths_and_weights(
    collective: str,
    size: Any,
    group: Group,
    used: tuple[Calibration, ...],
    version: str | None,
) -> tuple[dict[PathName, Parts], Weights]:
    ring = next(each for each in used if isinstance(each.constants, RingLibrary))
    wire = next((each.constants for each in used if isinstance(each.constants, Wire)), NO_WIRE)
    own = used[0]
    constants: Any = ring.constants
    if isinstance(own.constants, DirectLibrary):
        constants = fallback_constants(own.constants, constants)
    paths = dict(ring_library_paths(constants, wire, collective, size, group))
    if ring.chooser == TUNER and collective in TUNED:
        weights = tuner_weights(tuner_times(collective, size, group), paths)
    else:
        weights = fastest_weights(paths, group)
    if isinstance(own.constants, DirectLibrary) and collective == "all_reduce":
        return with_kernels(own, size, group, version, paths, weights)
    return paths, weights


def _alone_is_free(time: Any, group: Group) -> Any:
    """Return the time, which is 0 for a rank by itself: there is nobody to talk to."""
    return np.where(group.ranks == 1, 0.0, time)[()]


def _eager(paths: Mapping[PathName, Parts], own: Calibration, size: Any) -> dict[PathName, Parts]:
    constants = own.constants
    if not isinstance(constants, DirectLibrary) or constants.eager_launch_s is None:
        raise BadValueError(
            "mode", "eager", f"graph for {own.library} on {own.system}: no eager rows were measured"
        )
    return {path: eager(constants, parts, size) for path, parts in paths.items()}


def _by_tuner(collective: str, size: Any, group: Group) -> CollectiveTime:
    """Return NCCL's own estimate, taken at its word."""
    if collective not in TUNED:
        raise UnknownNameError(f"collective of {TUNER}", collective, TUNED)
    if group.cluster.device.vendor != "nvidia":
        known = libraries(group.cluster)
        raise UnknownNameError(f"library on {group.cluster.name}", TUNER, known)
    estimates = tuner_times(collective, size, group)
    paths = {path: {"NCCL's estimate": time} for path, time in estimates.items()}
    time = _alone_is_free(least(estimates), group)
    note = "NCCL's own model, built to rank paths: no constant is fitted to measurements"
    weights = fastest_weights(paths, group)
    return CollectiveTime(
        collective, size, group, TUNER, "graph", time, paths, weights, (), (note,)
    )


def _notes(
    used: tuple[Calibration, ...], collective: str, size: Any, group: Group
) -> tuple[str, ...]:
    """Return where a prediction goes beyond what was measured."""
    said = []
    for each in used:
        if each.inherited_from:
            donors = ", ".join(each.inherited_from)
            network = isinstance(each.constants, Wire)
            what = f"network {each.system}" if network else f"{each.library} on {each.system}"
            said.append(f"no measurements for {what}; constants inherited from {donors}")
    for each in used:
        network = isinstance(each.constants, Wire)
        ranks = group.ranks if network else group.ranks_per_domain
        where = "" if network or np.all(group.domains == 1) else " per domain"
        what = f"network {each.system}" if network else f"{each.library} on {each.system}"
        beyond = each.fit.outside(collective, size, ranks, what, where)
        said += [f"{words}; extrapolated" for words in beyond]
    return tuple(dict.fromkeys(said))


def _notes_on(
    own: Calibration, machine: Cluster, engine: str, version: str | None
) -> tuple[str, ...]:
    """Return where the constants are of another system, or another version, than asked for."""
    said = []
    if own.system != machine.name:
        said.append(f"constants of {own.system} are used for {machine.name}")
    if engine in ENGINES and own.since != engine_kernels.generation(engine, version):
        asked = f"{engine} {version or 'of today'}"
        said.append(f"{asked} was not measured on {own.system}; its other versions were")
    return tuple(said)


__all__ = ["COLLECTIVES", "MODES", "CollectiveTime", "collective_time", "libraries"]

"""How long a collective takes on real machines: `collective_time`.

Four questions, each with its module: where the ranks sit (`group`), which paths there are and what
each takes (`paths`, `engine_kernels`), by which fitted constants (the `Machine`), and which path
runs (`choice`). Here they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Final

from shardcost import resolve
from shardcost.arrays import choose, largest, looked_up, named, smallest
from shardcost.checks import anywhere, is_array
from shardcost.collectives import COLLECTIVES, engine_kernels
from shardcost.collectives.choice import (
    NOTHING_FORCED,
    Forced,
    Weights,
    fastest_weights,
    forced_weights,
    least,
    send_weights,
    tuner_weights,
    weighted,
    with_kernels,
)
from shardcost.collectives.engine_kernels import (
    eager,
    fallback_constants,
    kernel_paths,
    launched,
    without_switch,
)
from shardcost.collectives.generic import library_paths
from shardcost.collectives.group import Group, bus_factor, nominal_rate, wire_bound_s
from shardcost.collectives.paths import Parts, Path, paths_over, torus_paths, total
from shardcost.collectives.tuner import COLLECTIVES as TUNED
from shardcost.collectives.tuner import PathName, tuner_times
from shardcost.display import Displayed
from shardcost.errors import BadTypeError, BadValueError, UnknownNameError
from shardcost.machine import Machine, machine_of
from shardcost.machine.constants import (
    LINK_RATES,
    NO_NETWORK,
    Calibration,
    EngineLibrary,
    FrameworkLibrary,
    GenericLibrary,
    NetworkConstants,
    RingLibrary,
    TorusLibrary,
    stated,
)
from shardcost.machine.libraries import (
    ENGINES,
    GENERIC,
    TUNER,
    generation,
    name_and_version,
)
from shardcost.machine.residual import CollectiveTable
from shardcost.records import NamedTuple, dataclass
from shardcost.resolve import GivenCluster, GivenNetwork
from shardcost.scalars import positive_number
from shardcost.units import format_bytes, format_rate, format_time

if TYPE_CHECKING:
    from shardcost.collectives.interval import Interval

_NEGLIGIBLE: Final = 1e-12
"""Of all weights, what a path may have and still send nothing that counts."""
MODES: Final = ("graph", "eager")
MOST_BYTES: Final = 2.0**62

_SENT: Final = ("all_to_all", "send_recv")
IN_SWITCH: Final = ("nvls", "nvls_tree", "multicast")


class _Usual(NamedTuple):
    """The ranks of a collective on the machine of the catalog whose rates were changed."""

    group: Group
    better: bool
    """No rate was lowered …"""
    worse: bool
    """… or none was raised."""


class _Library(NamedTuple):
    """The constants by which a library's collectives over a group are timed."""

    used: tuple[Calibration, ...]
    """The library's own, its fallback's, the network's."""
    version: str | None
    ring: RingLibrary | GenericLibrary | None
    """Of the paths that are rings or stand beside them; None on a torus."""
    network: NetworkConstants
    chooser: str
    paths: dict[str, dict[PathName, Path]]
    """By collective, those of a library with rings over the group; made when first asked for."""

    def paths_of(self, collective: str, size: Any, group: Group) -> dict[PathName, Parts]:
        """Return the parts of every path for a collective of so many bytes."""
        if not isinstance(self.ring, RingLibrary):
            assert self.ring is not None  # noqa: S101
            return dict(library_paths(self.ring, self.network, collective, size, group))
        if collective not in self.paths:
            self.paths[collective] = paths_over(self.ring, self.network, collective, group)
        return {name: path(size) for name, path in self.paths[collective].items()}


@dataclass(frozen=True, eq=False, repr=False)
class CollectiveTime(Displayed):
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
    """The constants that the prediction rests on: the library's, its fallback's, the network's."""
    machine: Machine
    forced: Forced = NOTHING_FORCED
    """What the library was made to run, rather than its own choice."""
    factor: Any = 1.0
    """The time over that of the formula, where a profile has measured the machine itself."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the prediction goes beyond what was measured."""
        if self.library == TUNER:
            return ("NCCL's own model, built to rank paths: no constant is fitted to measurements",)
        group = self.group
        said = [words for used in self.calibrations if (words := _origin(used))]
        for used in self.calibrations:
            if isinstance(used.constants, GenericLibrary):
                continue
            network = isinstance(used.constants, NetworkConstants)
            ranks = group.ranks if network else group.ranks_per_domain
            where = "" if network or not anywhere(group.domains > 1) else " per domain"
            request = (self.collective, self.size_bytes, ranks, used.title, where)
            said += [f"{words}; extrapolated" for words in used.fit.outside(*request)]
        own, cluster = self.calibrations[0], self.machine.cluster
        if own.system not in {cluster.name, GENERIC}:
            said.append(f"constants of {own.system} are used for {cluster.name}")
        engine, version = name_and_version(self.library)
        if engine in ENGINES and own.since != generation(engine, version):
            said.append(
                f"{engine} {version or '(newest)'} was not measured on {own.system}; constants of"
                " another version"
            )
        return tuple(dict.fromkeys(said))

    def __repr__(self) -> str:
        """Return the time, its interval, path and bandwidth of one size in two lines."""
        size, ranks = ends(self.size_bytes, format_bytes), ends(self.group.ranks, str)
        place = f"{ranks} x {self.group.cluster.name}, {self.library}"
        what = f"CollectiveTime: {self.collective} of {size} over {place}"
        if is_array(self.time_s):
            return f"{what}, {self.time_s.size} values"
        rate = f"busbw {format_rate(self.busbw_bytes_per_s)}"
        path = f"{self.algorithm} {self.protocol}{', forced' * bool(self.forced)}"
        known = f"90 % interval {' to '.join(map(format_time, self.interval[:2]))}"
        return f"{what}:\n  {format_time(self.time_s)} ({known}) by {path}, {rate}"

    @property
    def choice(self) -> Any:
        """Index, in the order of `weights`, of the path that runs."""
        if not is_array(self.time_s):
            return max(range(len(self.weights)), key=list(self.weights.values()).__getitem__)
        import numpy as np

        shape = np.shape(self.time_s)
        stacked = [np.broadcast_to(each, shape) for each in self.weights.values()]
        return np.argmax(np.stack(stacked), axis=0)

    @property
    def algorithm(self) -> Any:
        """The algorithm that runs: a name, or an array of them."""
        return named([algorithm for algorithm, _ in self.weights], self.choice)

    @property
    def protocol(self) -> Any:
        """The protocol or kernel that runs: a name, or an array of them."""
        return named([protocol for _, protocol in self.weights], self.choice)

    @property
    def algbw_bytes_per_s(self) -> Any:
        """Size over time; 0 for a rank by itself, which sends nothing."""
        moving = self.time_s > 0
        return choose(moving, self.size_bytes / choose(moving, self.time_s, 1.0), 0.0)

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
        in_switch = [path[0] in IN_SWITCH for path in self.weights]
        return choose(looked_up(in_switch, self.choice), by_switch, by_links)

    @property
    def interval(self) -> Interval:
        """Between which times nine of ten measurements of it lie."""
        from shardcost.collectives.interval import interval_of

        return interval_of(self)

    @property
    def sent_bytes(self) -> tuple[Any, Any]:
        """Bytes that a rank sends inside its domain and into the network, by the path that runs.

        A ring over n ranks of N domains crosses the network at N of its n hops; a double tree sends
        2 (N-1)/N of the buffer out of each domain (Sanders, Speck and Traeff, 2009); where switches
        reduce, a rank sends its buffer once, and the block whose sum it owns once more; in a
        one-shot kernel it sends it to every peer.
        """
        inside: Any = 0.0
        network: Any = 0.0
        total_weight = sum(self.weights.values())
        for (algorithm, _), weight in self.weights.items():
            hardly = weight < _NEGLIGIBLE * total_weight
            if not is_array(hardly) and hardly:
                continue
            near, far = sent_shares(algorithm, self.collective, self.group)
            inside = inside + weight * near
            network = network + weight * far
        return self.size_bytes * inside / total_weight, self.size_bytes * network / total_weight

    def time_on_links_s(self, inside: Any = 1.0, outside: Any = 1.0) -> Any:
        """Return the seconds by the path that runs, on links of other rates.

        The path is kept: a library's switch to another one is no property of the link.

        Args:
            inside: The rate inside a domain over what it is. A number or an array.
            outside: The same for the network.
        """
        group = replace(self.group, port_bytes_per_s=self.group.port_bytes_per_s * outside)
        torus = self.calibrations[0].constants
        if isinstance(torus, TorusLibrary):
            faster = replace(torus, rate_share=torus.rate_share * inside)
            beyond = _network_constants(self.calibrations)
            on_torus = torus_paths(faster, beyond, self.collective, self.size_bytes, group)
            return weighted(on_torus, self.weights) * self.factor
        ring, network = _ring_constants(self.calibrations)
        scaled = _on_links(ring, inside)
        paths = dict(library_paths(scaled, network, self.collective, self.size_bytes, group))
        engine = self.calibrations[0].constants
        if isinstance(engine, FrameworkLibrary):
            paths = {
                path: launched(engine, self.collective, parts, self.size_bytes, group)
                for path, parts in paths.items()
            }
        if isinstance(engine, EngineLibrary) and self.collective == "all_reduce":
            paths |= kernel_paths(_on_links(engine, inside), self.size_bytes, group)
        return weighted(paths, self.weights) * self.factor

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
        limits = engine_kernels.limits(engine, version, self.group)
        return {path: limit for path, limit in limits.items() if path in self.paths}

    def over(self, size_bytes: Any) -> CollectiveTime:
        """Return the same collective of other sizes, a number or an array of them."""
        group = self.group
        return collective_time(
            self.collective,
            size_bytes,
            self.machine,
            group.ranks,
            group.nodes,
            stride=group.stride,
            library=self.library,
            mode=self.mode,
            **self.forced.chosen,
        )

    def alternatives(self) -> list[tuple[PathName, float]]:
        """Return every path with its time in seconds, fastest first. For one cell only."""
        times = [(path, float(total(parts))) for path, parts in self.paths.items()]
        return sorted(times, key=lambda alternative: alternative[1])

    def parts(self) -> Parts:
        """Return the parts of the path that runs, in seconds. For one cell only."""
        running = self.paths[self.algorithm, self.protocol]
        return {name: float(value) for name, value in running.items()}


def ends(values: Any, form: Callable[[Any], str]) -> str:
    """Return a number, or the least and the largest of an array."""
    ends = (values.min(), values.max()) if is_array(values) else (values,)
    return " to ".join(dict.fromkeys(map(form, ends)))


def _origin(used: Calibration) -> str:
    """Return where constants come from, if not from measurements of the very system."""
    if isinstance(used.constants, GenericLibrary):
        return "generic library: textbook algorithms with assumed constants"
    if used.fit.rows == 0:
        return f"constants of {used.title} are assumed: nothing was measured"
    if used.inherited_from == (used.system,):
        return f"{used.title} was measured on another datasheet; constants are scaled by it"
    if used.inherited_from:
        donors = ", ".join(used.inherited_from)
        return f"no measurements for {used.title}; constants inherited from {donors}"
    return ""


def collective_time(
    collective: str,
    size_bytes: Any,
    cluster: GivenCluster | Machine,
    gpus: Any,
    nodes: Any = None,
    *,
    stride: Any = 1,
    network: GivenNetwork = None,
    library: str | None = None,
    mode: str | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> CollectiveTime:
    """Return how long a collective takes, which path runs, and the alternatives.

    >>> result = collective_time("all_reduce", 64 * 2**20, "h100_sxm", gpus=8)
    >>> f"{result.time_s * 1e6:.0f} us by {result.algorithm}"
    '333 us by nvls'

    Args:
        collective: One of `COLLECTIVES`. In ``send_recv`` every rank sends its buffer to the next.
        size_bytes: Bytes of the buffer, as nccl-tests counts: the whole array for all-gather and
            reduce-scatter. A number or an array.
        cluster: A `Cluster`, the name of one in the catalog, a hardware file or calibrated
            profile, or a `Machine` with constants of its own.
        gpus: Ranks. A number or an array.
        nodes: Nodes that they are spread over evenly; as few as hold them if left out.
        stride: Devices from one rank to the next; those between are groups of the same kind, at
            work at the same time.
        network: What joins the nodes, by name or file, if the cluster does not say.
        library: ``nccl``, ``rccl``, ``oneccl``, an engine (``vllm``, ``sglang``, ``trtllm``), which
            may name its version (``sglang==0.5.10``), ``xla``: NCCL as XLA launches it,
            ``nccl-tuner``: NCCL's own estimate, or ``generic``: textbook algorithms with assumed
            constants. If left out, the one of the device's vendor (``xla`` on a torus), or
            ``generic`` where that was never measured.
        mode: ``graph`` (if left out): kernels follow each other on the device, as in a CUDA graph
            or in nccl-tests; ``eager``: an engine launches each from the host.
        algorithm: One of `ALGORITHMS` that must run, as NCCL_ALGO says it to NCCL; the library
            still chooses the protocol. Its own choice if left out.
        protocol: One of `PROTOCOLS`, alike.
    """
    mode = mode or MODES[0]
    if collective not in COLLECTIVES:
        raise UnknownNameError("collective", collective, COLLECTIVES)
    if mode not in MODES:
        raise UnknownNameError("mode", mode, MODES)
    machine = machine_of(resolve.cluster(cluster, network))
    size = _checked_size(size_bytes)
    group = group_on(machine, gpus, nodes, stride)
    if is_array(size) or is_array(group.ranks) or is_array(group.nodes):
        _check_shapes(size, group)
    library = machine.default_library if library is None else library
    engine, version = name_and_version(library)
    forced = NOTHING_FORCED
    if algorithm is not None or protocol is not None:
        forced = Forced.named(algorithm, protocol)
    if engine == TUNER:
        if mode != MODES[0]:
            raise BadValueError("library", library, "another, for eager launches")
        return _by_tuner(collective, size, group, machine, forced)
    by = _resolved(machine, group, engine, version)
    own, used = by.used[0], by.used
    usual = _usual(machine, group, gpus, nodes, stride)
    paths, weights = _paths_and_weights(collective, size, group, by, forced, usual)
    if mode == "eager":
        constants = own.constants
        if not isinstance(constants, EngineLibrary) or constants.eager_launch_s is None:
            rule = f"graph for {own.library} on {own.system}: no eager rows were measured"
            raise BadValueError("mode", "eager", rule)
        paths = {path: eager(constants, parts, size) for path, parts in paths.items()}
    time = choose(group.ranks == 1, 0.0 * size, weighted(paths, weights))  # one rank sends nothing
    result = CollectiveTime(
        collective, size, group, library, mode, time, paths, weights, used, machine, forced
    )
    return _with_tables(result) if any(each.residuals for each in used) and not forced else result


def group_on(machine: Machine, gpus: Any, nodes: Any = None, stride: Any = 1) -> Group:
    """Return ranks on a machine, as `Group.on` does; of plain numbers, kept with the machine."""
    if not (type(gpus) is type(stride) is int and (nodes is None or type(nodes) is int)):
        return Group.on(machine.cluster, gpus, nodes, stride)
    kept = machine.memo.setdefault("groups", {})
    key = (gpus, nodes, stride)
    if key not in kept:
        kept[key] = Group.on(machine.cluster, gpus, nodes, stride)
    group: Group = kept[key]
    return group


def _usual(machine: Machine, group: Group, gpus: Any, nodes: Any, stride: Any) -> _Usual | None:
    """Return the ranks on the machine of the catalog whose rates were changed, if any were."""
    before = machine.unchanged
    if before is None:
        return None
    if "usual" not in group.memo:
        on = Group.on(before.cluster, gpus, nodes, stride)
        group.memo["usual"] = _Usual(on, before.better, before.worse)
    usual: _Usual = group.memo["usual"]
    return usual


def _resolved(machine: Machine, group: Group, engine: str, version: str | None) -> _Library:
    """Return the constants of a library for a group; found once, whatever is sent."""
    key = ("library", engine, version)
    if key not in group.memo:
        used = _used(machine.library(engine, version), machine, group)
        network = _network_constants(used)
        if isinstance(used[0].constants, TorusLibrary):
            group.memo[key] = _Library(used, version, None, network, "", {})
        else:
            ring, _ = _ring_constants(used)
            kinds = RingLibrary | GenericLibrary
            chooser = next(each.chooser for each in used if isinstance(each.constants, kinds))
            group.memo[key] = _Library(used, version, ring, network, chooser, {})
    found: _Library = group.memo[key]
    return found


def tables_for(
    result: CollectiveTime,
) -> list[tuple[CollectiveTable, tuple[CollectiveTable, ...], Any]]:
    """Return the tables of residuals of a collective, each with those beside it and where it holds.

    Across domains that is the network's table, inside one the library's: each was fitted to what
    is left by constants of its own.
    """
    across, inside, tables = result.group.domains > 1, result.group.domains == 1, []
    engine = name_and_version(result.library)[0]
    for used in dict.fromkeys((result.calibrations[0], result.calibrations[-1])):
        table = used.table(result.collective, engine, result.mode)
        if table is not None:
            network = isinstance(used.constants, NetworkConstants)
            tables.append((table, used.residuals, across if network else inside))
    return tables


def _with_tables(result: CollectiveTime) -> CollectiveTime:
    """Return a result with the residuals measured on its machine, never faster than its links."""
    group, time = result.group, result.time_s
    for table, beside, holds in tables_for(result):
        at = (result.size_bytes, group.ranks, group.nodes)
        time = time * choose(holds, table.factor(*at, result.weights, beside), 1.0)
    time = largest(time, smallest(result.bound_s, result.time_s))
    moving = result.time_s > 0
    factor = choose(moving, time / choose(moving, result.time_s, 1.0), 1.0)
    return replace(result, time_s=time, factor=factor)


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
    return size_bytes.astype(float)


def _check_shapes(size: Any, group: Group) -> None:
    """Raise unless sizes, ranks and nodes go together, cell by cell."""
    import numpy as np

    shapes = [np.shape(each) for each in (size, group.ranks, group.nodes)]
    try:
        cells = np.prod(np.broadcast_shapes(*shapes))
    except ValueError:
        raise BadValueError("shapes of size_bytes, gpus, nodes", shapes, "alike") from None
    if not cells:
        raise BadValueError("shapes of size_bytes, gpus, nodes", shapes, "of at least one cell")


def _used(own: Calibration, machine: Machine, group: Group) -> tuple[Calibration, ...]:
    """Return the calibrations that a prediction rests on: the library's, NCCL's, the network's."""
    used = [own]
    if not isinstance(own.constants, RingLibrary | TorusLibrary | GenericLibrary):
        used.append(machine.library(machine.default_library))
    if machine.cluster.network is not None and anywhere(group.domains > 1):
        used.append(machine.network)
    return tuple(used)


def _network_constants(used: tuple[Calibration, ...]) -> NetworkConstants:
    known = (each.constants for each in used if isinstance(each.constants, NetworkConstants))
    return next(known, NO_NETWORK)


def _ring_constants(
    used: tuple[Calibration, ...],
) -> tuple[RingLibrary | GenericLibrary, NetworkConstants]:
    """Return the constants of the library that rings run by, and those of the network."""
    by_kind: dict[type, Any] = {type(each.constants): each.constants for each in used}
    if GenericLibrary in by_kind:
        return by_kind[GenericLibrary], by_kind.get(NetworkConstants, NO_NETWORK)
    ring, engine = by_kind[RingLibrary], by_kind.get(EngineLibrary)
    if engine is not None:
        ring = fallback_constants(engine, ring)
    return ring, by_kind.get(NetworkConstants, NO_NETWORK)


def _paths_and_weights(
    collective: str,
    size: Any,
    group: Group,
    by: _Library,
    forced: Forced,
    usual: _Usual | None,
) -> tuple[dict[PathName, Parts], Weights]:
    own, chooser = by.used[0], by.chooser
    if by.ring is None:
        assert isinstance(own.constants, TorusLibrary)  # noqa: S101
        on_torus = dict(torus_paths(own.constants, by.network, collective, size, group))
        return on_torus, fastest_weights(on_torus, group)
    paths = by.paths_of(collective, size, group)
    framework = own.constants if isinstance(own.constants, FrameworkLibrary) else None
    if framework is not None:
        paths = without_switch(own.library, paths)
    estimates: Mapping[PathName, Any] = {}
    if chooser == TUNER and collective in TUNED:
        estimates = tuner_times(collective, size, group)
        weights = tuner_weights(estimates, paths)
        if usual is not None:
            before = tuner_weights(tuner_times(collective, size, usual.group), paths)
            weights = _steady(paths, before, weights, usual)
    elif chooser == TUNER and collective in _SENT:
        weights = send_weights(paths, collective, size, group)
    else:
        weights = fastest_weights(paths, group)
    if isinstance(own.constants, EngineLibrary) and collective == "all_reduce":
        paths, weights = with_kernels(own, size, group, by.version, paths, weights)
    if forced:
        what = _in_words(own.library, collective, group)
        weights = forced_weights(forced, paths, estimates, group, what)
    if framework is not None:
        paths = {
            path: launched(framework, collective, parts, size, group)
            for path, parts in paths.items()
        }
    return paths, weights


def _steady(
    paths: Mapping[PathName, Parts], before: Weights, after: Weights, usual: _Usual
) -> Weights:
    """Return weights by which a machine is not slower for a higher rate, nor faster for a lower.

    NCCL chooses by its own model, which may be wrong: at a higher rate it may turn to a path that
    is slower than the one before. Where rates of a machine of the catalog were raised, the faster
    of both choices counts, where they were lowered the slower one, and the choice before where some
    were raised and others lowered.

    Args:
        paths: What every path takes, at the new rates.
        before: The choice at the catalog's rates …
        after: … and at the new ones.
        usual: The same ranks on the machine of the catalog.
    """
    if not (usual.better or usual.worse):
        return before
    old_s, new_s = weighted(paths, before), weighted(paths, after)
    kept = old_s <= new_s if usual.better else old_s >= new_s
    old, new = (reduce(add, each.values()) for each in (before, after))
    return {path: choose(kept, before[path] / old, after[path] / new) for path in after}


def _in_words(library: str, collective: str, group: Group) -> str:
    """Return what a message calls a collective on a group."""
    if is_array(group.ranks) or is_array(group.domains):
        return f"{collective} of {library} on each of these groups"
    place = "one domain" if group.domains == 1 else f"{group.domains} domains"
    return f"{collective} of {library} over {group.ranks} GPUs in {place} of {group.cluster.name}"


def _on_links(constants: Any, factor: Any) -> Any:
    """Return constants with those rates scaled that are a link's."""
    rates = {name: rate for name, rate in stated(constants).items() if name in LINK_RATES}
    return replace(constants, **{name: factor * rate for name, rate in rates.items()})


_BY_DOMAIN: Final = frozenset({"recursive", "two_shot", "p2p"})
"""Algorithms of the generic library that run inside domains and then across them …"""
_SHARED_OUT: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""… for these collectives, of which each rank of a domain sends its share into the network."""


def sent_shares(algorithm: str, collective: str, group: Group) -> tuple[Any, Any]:
    """Return what a rank sends inside its domain and out of it, as shares of the buffer."""
    key = ("sent", algorithm, collective)
    if key not in group.memo:
        group.memo[key] = _sent_shares(algorithm, collective, group)
    shares: tuple[Any, Any] = group.memo[key]
    return shares


def _sent_shares(algorithm: str, collective: str, group: Group) -> tuple[Any, Any]:
    per_domain = group.ranks_per_domain
    across = group.domains > 1
    whole = bus_factor(collective, group.ranks)
    if algorithm == "one_shot":
        return group.ranks - 1, 0.0
    far = choose(across, whole / per_domain, 0.0)
    if collective == "all_to_all":
        far = whole * (group.ranks - per_domain) / largest(group.ranks - 1, 1)
    near = whole - far
    if algorithm == "torus":  # what arrives at a chip serves all of its ranks
        near = near / group.torus.on_chip
        if collective == "all_to_all":  # over several links each
            near = near * group.tier.bytes_per_s / group.exchange_bytes_per_s
    by_domain = algorithm in _BY_DOMAIN and collective in _SHARED_OUT
    if by_domain:  # inside domains, then across them (`collectives.generic`)
        near = bus_factor(collective, per_domain)
    if by_domain or algorithm in {"tree", "nvls_tree"}:
        far = choose(across, bus_factor(collective, group.domains) / per_domain, 0.0)
    if algorithm in IN_SWITCH:
        owned = 1 / per_domain if collective == "all_reduce" else 0.0
        near = choose(per_domain > 1, 1.0 + owned, 0.0)
    return near, far


def _by_tuner(
    collective: str, size: Any, group: Group, machine: Machine, forced: Forced
) -> CollectiveTime:
    """Return NCCL's own estimate, taken at its word."""
    if collective not in TUNED:
        raise UnknownNameError(f"collective of {TUNER}", collective, TUNED)
    if group.cluster.device.vendor != "nvidia":
        known = machine.libraries.names(group.cluster)
        raise UnknownNameError(f"library on {group.cluster.name}", TUNER, known)
    estimates = tuner_times(collective, size, group)
    paths = {path: {"NCCL's estimate": time} for path, time in estimates.items()}
    weights = fastest_weights(paths, group)
    if forced:
        # Estimates are times here, and the lowest counts alone.
        what = _in_words(TUNER, collective, group)
        weights = forced_weights(forced, paths, {}, group, what)
        estimates = {path: time for path, time in estimates.items() if forced.leaves(path)}
    time = choose(group.ranks == 1, 0.0 * size, least(estimates))
    return CollectiveTime(
        collective, size, group, TUNER, "graph", time, paths, weights, (), machine, forced
    )


__all__ = ["COLLECTIVES", "MODES", "CollectiveTime", "collective_time"]

"""The fitted constants of dispatch and combine kernels, and which of them hold on a cluster.

``catalog/tuner/dispatch.toml`` says which kernels there are and what each sends.
``catalog/dispatch/`` has a file for each measured system: constants of its kernels, for dispatch
and for combine, with the rows and the error of their fit. They are shares of a link's rate, or
seconds of one SM, so that a system nobody measured can inherit them: from systems of
its architecture with the same kernel, else of its vendor, else from any; a kernel that nobody
measured runs by the constants of its nearest relative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from math import exp, log
from typing import Any, Final

from shardcost import catalog
from shardcost.checks import Noun, Quantity, anywhere, noun, positive
from shardcost.cluster import Cluster
from shardcost.errors import UnknownNameError
from shardcost.machine.constants import in_base_units, stated
from shardcost.records import NamedTuple, dataclass

PHASES: Final = ("dispatch", "combine")
_OF_ONE_SM: Final = frozenset({"token_s", "copy_s", "sm_bytes_per_s"})
"""Constants that are instructions of one SM: they keep pace with its clock."""


@noun
class DispatchConstants(Noun):
    """Constants of one phase of one kernel. What a kernel does not have is None, and costs nothing.

    Seconds of an SM are paid by each for its share of the tokens.
    """

    start_s: Quantity = positive()
    """What the kernels, and their barriers, take however little is sent."""
    row_bytes_per_s: Quantity = positive()
    """At which the first token of a warp passes, with nothing to overlap it with."""
    token_s: Quantity = positive()
    """Of an SM, for each token …"""
    link_share: Quantity = positive()
    """Share of the nominal rate of a GPU's links inside its domain …"""
    network_share: Quantity = positive()
    """… and of its share of the network's ports, that a kernel reaches."""
    crossing_s: Quantity = positive()
    """For each doubling of the domains: counts are exchanged, and the slowest is waited for."""
    expert_s: Quantity | None = positive(default=None)
    """For each expert of an SM, where every one signals for its experts in turn."""
    copy_s: Quantity | None = positive(default=None)
    """… for each copy of it …"""
    sm_bytes_per_s: Quantity | None = positive(default=None)
    """… and for the bytes of its copies."""
    output_copies: Quantity | None = positive(default=None)
    """Copies that adding up and writing one result is worth, beside those that are read."""
    across: Quantity | None = positive(default=None)
    """By how much the work of SMs grows where tokens are forwarded to other domains."""
    fill: Quantity | None = positive(default=None)
    """What pipelining cannot hide, as in `shardcost.collectives.paths`."""
    host_s: Quantity | None = positive(default=None)
    """What the host takes at least to launch one call; a matter of its CPU."""


class DispatchFit(NamedTuple):
    """The rows behind constants, the error on them, and what they cover."""

    source: str
    rows: int
    median_pct: float
    p90_pct: float
    least_gpus: int
    most_gpus: int
    most_nodes: int
    most_tokens: int
    networks: tuple[str, ...] = ()
    """Kinds of networks that rows crossed."""

    def outside(self, ranks: Any, domains: Any, tokens: Any) -> list[str]:
        """Return in which ways a question lies outside of the rows, in words."""
        said = []
        if anywhere(ranks < self.least_gpus) or anywhere(ranks > self.most_gpus):
            some = "" if self.least_gpus == self.most_gpus else f"{self.least_gpus} to "
            said.append(f"measured only on {some}{self.most_gpus} GPUs")
        elif anywhere(domains > self.most_nodes):
            nodes = f"{self.most_nodes} node{'s' * (self.most_nodes > 1)}"
            said.append(f"measured only on {nodes}")
        if anywhere(tokens > 2 * self.most_tokens):
            said.append(f"measured only up to {self.most_tokens} tokens per GPU")
        return said


class Entry(NamedTuple):
    """Constants of one phase of a kernel on a measured system."""

    system: str
    kernel: str
    phase: str
    constants: DispatchConstants
    fit: DispatchFit


@dataclass(frozen=True)
class Kernel:
    """A kernel for dispatch and combine, as the catalog describes it."""

    name: str
    library: str
    title: str
    low_latency: bool
    per_expert: bool
    """Whether it sends a copy of a token to each chosen expert, rather than to each GPU."""
    one_domain: bool
    """Whether it runs inside one domain only."""
    sms: int | None
    """SMs that it takes unless told; None where its experts decide."""
    vendors: tuple[str, ...]
    names: tuple[str, ...]
    relatives: tuple[str, ...]
    least_link_share: float
    """What it reaches of the links' rate at least, where its relatives' constants say less."""


class Resolved(NamedTuple):
    """The constants by which a kernel runs on a cluster, and whose they are."""

    kernel: Kernel
    phase: str
    constants: DispatchConstants
    fit: DispatchFit
    inherited_from: tuple[str, ...]
    """The systems whose constants were carried over; empty if the system itself was measured."""
    relative: Kernel
    """The kernel whose constants these are: the kernel itself, or one like it."""

    @property
    def is_inherited(self) -> bool:
        """Whether the constants are of another system or kernel."""
        return bool(self.inherited_from) or self.relative != self.kernel

    @property
    def source(self) -> str:
        """Who states the constants, and what to mind."""
        where = ", ".join(self.inherited_from)
        if self.relative != self.kernel:
            return f"constants of {self.relative.name}" + f" on {where}" * bool(where)
        if where:
            return f"constants of {where}"
        error = f"median error {self.fit.median_pct:.1f} %, p90 {self.fit.p90_pct:.1f} %"
        return f"{self.fit.source}; {self.fit.rows} rows, {error}"


@cache  # asked for by every prediction
def kernels() -> Mapping[str, Kernel]:
    """Return the kernels that there are, by name."""
    return {
        name: Kernel(
            name=name,
            library=entry["library"],
            title=entry["title"],
            low_latency=entry["low_latency"],
            per_expert=entry["copies"] == "expert",
            one_domain=entry.get("one_domain", False),
            sms=entry.get("sms"),
            vendors=tuple(entry["vendors"]),
            names=tuple(entry["names"]),
            relatives=tuple(entry["relatives"]),
            least_link_share=entry.get("least_link_share", 0.0),
        )
        for name, entry in catalog.tuner_table("dispatch")["kernel"].items()
    }


def libraries() -> list[str]:
    """Return the libraries that have kernels of their own."""
    return list(dict.fromkeys(each.library for each in kernels().values()))


def default_kernels(cluster: Cluster) -> str:
    """Return the library whose kernels run on a cluster unless another is named.

    >>> default_kernels(Cluster.named("h100_sxm")), default_kernels(Cluster.named("mi300x"))
    ('deepep', 'mori')
    """
    vendor = cluster.device.vendor
    own = [each for each in kernels().values() if vendor in each.vendors]
    exclusive = [each for each in own if len(each.vendors) == 1]
    return (exclusive or own or list(kernels().values()))[0].library


def kernel_of(library: str, *, low_latency: bool) -> Kernel:
    """Return the kernel that a library runs: of the family asked for, else its only one.

    >>> kernel_of("deepep", low_latency=True).name, kernel_of("pplx", low_latency=False).name
    ('deepep_ll', 'pplx_garden')
    """
    own = [each for each in kernels().values() if each.library == library]
    if not own:
        raise UnknownNameError("library", library, libraries())
    return next((each for each in own if each.low_latency == low_latency), own[0])


def kernel_named(name: str) -> Kernel | None:
    """Return the kernel of a name, its own or one that measured tables give it; None if unknown."""
    if name in kernels():
        return kernels()[name]
    return next((each for each in kernels().values() if name in each.names), None)


class DispatchTables:
    """The constants that kernels are resolved from: the catalog's, or others instead."""

    def __init__(self, entries: Iterable[Entry] | None = None) -> None:
        self._given = None if entries is None else tuple(entries)

    @cached_property  # parsing and checking takes milliseconds
    def every(self) -> tuple[Entry, ...]:
        """All constants."""
        return catalog_entries() if self._given is None else self._given

    def without(self, *systems: str) -> DispatchTables:
        """Return the same as if some systems had never been measured."""
        return DispatchTables(each for each in self.every if each.system not in systems)

    def resolved(self, cluster: Cluster, kernel: Kernel, phase: str) -> Resolved:
        """Return the constants of one phase of a kernel on a cluster."""
        # Where a kernel was not measured its relatives stand in, the nearest first.
        family = [
            each.name for each in kernels().values() if each.low_latency == kernel.low_latency
        ]
        for name in dict.fromkeys((kernel.name, *kernel.relatives, *family, *kernels())):
            own = [each for each in self.every if (each.kernel, each.phase) == (name, phase)]
            if own:
                found = _resolved(cluster, kernel, phase, own)
                constants = _on_network(self._with_host(found, cluster), found, cluster)
                share = max(float(constants.link_share), kernel.least_link_share)
                return found._replace(constants=replace(constants, link_share=share))
        raise UnknownNameError("kernel", kernel.name, sorted({each.kernel for each in self.every}))

    def _with_host(self, found: Resolved, cluster: Cluster) -> DispatchConstants:
        """Return constants with what the library's calls take on such a host, if it is known."""
        library, phase, constants = found.kernel.library, found.phase, found.constants
        if constants.host_s is not None and not found.is_inherited:
            return constants
        known = [
            each
            for each in self.every
            if each.phase == phase
            and each.constants.host_s is not None
            and kernels()[each.kernel].library == library
        ]
        same = [each for each in known if each.kernel == found.kernel.name]
        if not known:
            return constants
        alike = _nearest(same or known, lambda each: _distance(cluster, each.system)[::-1])
        return replace(constants, host_s=_mean(cluster, alike).host_s)


CATALOG_DISPATCH: Final = DispatchTables()
"""The catalog's own constants."""


def catalog_entries() -> tuple[Entry, ...]:
    """Return all constants of the catalog."""
    entries = []
    for system, content in catalog.contents("dispatch"):
        for kernel, phases in content.items():
            for phase, figures in phases.items():
                constants = in_base_units({k: v for k, v in figures.items() if k != "fit"})
                about = {**figures["fit"], "networks": tuple(figures["fit"]["networks"])}
                fit = DispatchFit(**about)
                entries.append(Entry(system, kernel, phase, DispatchConstants(**constants), fit))
    return tuple(entries)


def _resolved(cluster: Cluster, kernel: Kernel, phase: str, known: Sequence[Entry]) -> Resolved:
    relative = kernels()[known[0].kernel]
    own = [each for each in known if each.system == cluster.system]
    if own:
        return Resolved(kernel, phase, own[0].constants, own[0].fit, (), relative)
    donors = _nearest(known, lambda each: _distance(cluster, each.system))
    systems = tuple(each.system for each in donors)
    return Resolved(kernel, phase, _mean(cluster, donors), donors[0].fit, systems, relative)


def _on_network(
    constants: DispatchConstants, found: Resolved, cluster: Cluster
) -> DispatchConstants:
    """Return constants with the share of the ports on a kind of network that was not measured.

    Kernels without a row across nodes have shares of InfiniBand: their relatives'.
    """
    if cluster.network is None or cluster.network.kind in found.fit.networks:
        return constants
    paces = catalog.tuner_table("dispatch")["network_pace"]
    sends = "expert" if found.kernel.per_expert else "gpu"
    here = paces.get(cluster.network.kind, {}).get(sends, 1.0)
    there = [paces.get(kind, {}).get(sends, 1.0) for kind in found.fit.networks] or [1.0]
    share = min(1.0, float(constants.network_share) * here / max(there))
    return replace(constants, network_share=share)


def _nearest(
    known: Sequence[Entry], distance: Callable[[Entry], tuple[bool, bool, bool]]
) -> list[Entry]:
    """Return the nearest entries, those of many rows first."""
    least = min(map(distance, known))
    return sorted((one for one in known if distance(one) == least), key=lambda one: -one.fit.rows)


def _distance(cluster: Cluster, system: str) -> tuple[bool, bool, bool]:
    """Return how far a measured system is, for its kernels; the other way round, for its host.

    Racks with one domain are of superchips, whose CPUs launch kernels more slowly than those of
    nodes with x86 CPUs.
    """
    other = catalog.cluster_named(system)
    return (
        other.device.vendor != cluster.device.vendor,
        other.device.architecture != cluster.device.architecture,
        is_rack(other) != is_rack(cluster),
    )


def is_rack(cluster: Cluster) -> bool:
    """Return whether a cluster is of racks of superchips: their domain is more than a node."""
    return bool(cluster.tiers[-1].gpus > cluster.gpus_per_node)


def _mean(cluster: Cluster, donors: Sequence[Entry]) -> DispatchConstants:
    """Return the geometric mean of constants, weighed by their rows, at a cluster's clock."""
    sums: dict[str, list[float]] = {}
    for donor in donors:
        pace = _pace(cluster, catalog.cluster_named(donor.system))
        for name, value in stated(donor.constants).items():
            faster = pace if name.endswith("_bytes_per_s") else 1 / pace
            here = value * faster if name in _OF_ONE_SM else value
            total = sums.setdefault(name, [0.0, 0.0])
            total[0] += donor.fit.rows * log(here)
            total[1] += donor.fit.rows
    return DispatchConstants(**{name: exp(total / rows) for name, (total, rows) in sums.items()})


def _pace(cluster: Cluster, other: Cluster) -> float:
    """Return a cluster's clock over another's; 1 where the catalog does not have both."""
    here, there = cluster.device.boost_clock_hz, other.device.boost_clock_hz
    return float(here / there) if here and there else 1.0

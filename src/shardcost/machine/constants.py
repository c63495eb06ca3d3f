"""The fitted constants of a library or a network: what they are, their fit, their form in a file.

One `Calibration` is a library on a system (or a network): constants of one of three kinds, and the
measurements behind them. Files of the catalog (``catalog/collectives/``) and profiles of users hold
them in microseconds and GB/s; here they are seconds and bytes per second. `Jitter` says how nodes,
steps and delays scatter (``catalog/tuner/jitter.toml``); its formulas are in `shardcost.jitter`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, TypeAlias

from shardcost import catalog
from shardcost.checks import Noun, Quantity, anywhere, instance, noun, one_of, positive, text, whole
from shardcost.cluster import Source
from shardcost.errors import BadValueError, FormatError, ShardcostError, shown
from shardcost.machine.residual import CollectiveTable, tables_of
from shardcost.units import format_bytes


@noun
class NetworkConstants(Noun):
    """What a network adds, fitted per network: latency of one crossing, and rates achieved."""

    ll_latency_s: Quantity = positive()
    """One crossing under LL by a message on one channel …"""
    ll_channels_s: Quantity = positive()
    """… and what it takes more when the message is spread over all channels, each with a proxy …"""
    ll128_latency_s: Quantity = positive()
    """… under LL128 …"""
    latency_s: Quantity = positive()
    """… and under Simple, as far as streaming does not hide it."""
    ll_port_bytes_per_s: Quantity = positive()
    """What LL gets through a port, if that is so fast: few channels of small messages use it."""
    turnaround_s: Quantity = positive()
    """What each step of a ring takes at least where several ranks of a domain share its crossing:
    the link carries the chunks of all ranks, a fixed number of them under way at once."""
    efficiency: Quantity = positive()
    """Share of the ports' nominal rate that the other protocols reach …"""
    spine: Quantity = positive()
    """… and the share of that which is left where traffic goes beyond the leaf switches."""


NO_NETWORK = NetworkConstants(
    ll_latency_s=1e-6,
    ll_channels_s=1e-6,
    ll128_latency_s=1e-6,
    latency_s=1e-6,
    ll_port_bytes_per_s=1e12,
    turnaround_s=1e-6,
    efficiency=1,
    spine=1,
)
"""For groups inside one domain, where nothing crosses a network."""


@noun
class RingLibrary(Noun):
    """Constants of NCCL and libraries built like it (RCCL, oneCCL) on one system.

    LL sends 8 bytes with a flag in each store, LL128 120 bytes of 128, Simple whole chunks behind a
    fence: latency rises and the share of the link's rate with it (Hu et al., 2025,
    arXiv:2507.04786).
    """

    ll_base_s: Quantity = positive()
    ll_hop_s: Quantity = positive()
    ll_spread_s: Quantity = positive()
    """What it costs to spread a message over all channels rather than run on one."""
    ll_spread_bytes: Quantity = positive()
    """Bytes per rank at which half of that is paid."""
    ll_bytes_per_s: Quantity = positive()
    ll_copy_bytes_per_s: Quantity = positive()
    """Rate at which a rank moves its own block from input to output."""
    ll128_base_s: Quantity = positive()
    ll128_hop_s: Quantity = positive()
    ll128_bytes_per_s: Quantity = positive()
    simple_base_s: Quantity = positive()
    simple_hop_s: Quantity = positive()
    simple_bytes_per_s: Quantity = positive()
    simple_copy_bytes_per_s: Quantity = positive()
    fill: Quantity = positive()
    p2p_ll_base_s: Quantity = positive()
    """Sends and receives, of which an all-to-all is made, have kernels of their own."""
    p2p_ll_bytes_per_s: Quantity = positive()
    p2p_base_s: Quantity = positive()
    p2p_hop_s: Quantity = positive()
    p2p_bytes_per_s: Quantity = positive()
    p2p_channel_bytes_per_s: Quantity | None = positive(default=None)
    """What one channel of large sends carries, where several share the links."""
    nvls_base_s: Quantity | None = positive(default=None)
    """In-switch reduction …"""
    nvls_round_s: Quantity | None = positive(default=None)
    """… what signals take in each round of chunks, with the heads of a node …"""
    nvls_bytes_per_s: Quantity | None = positive(default=None)
    """… and at which rate kernels copy the buffer to where the switch adds it up, and back."""
    ll_crowd: Quantity | None = positive(default=None)
    """Over PCIe, the share of a pair's rate that is left when more than two ranks go through the
    host, and what is left of that when they sit on both sockets: low-latency protocol …"""
    ll_socket: Quantity | None = positive(default=None)
    crowd: Quantity | None = positive(default=None)
    """… and bandwidth protocol."""
    socket: Quantity | None = positive(default=None)

    def check(self) -> None:
        """A path has all of its constants or none."""
        together(self, "nvls_base_s nvls_round_s nvls_bytes_per_s")
        together(self, "ll_crowd ll_socket crowd socket")


def together(constants: Noun, names: str) -> None:
    """Raise unless all of some constants are given, or none."""
    wanted = names.split()
    lacking = [name for name in wanted if getattr(constants, name) is None]
    if lacking and len(lacking) < len(wanted):
        raise BadValueError(lacking[0], None, f"given together with {', '.join(wanted)}")


@noun
class EngineLibrary(Noun):
    """Constants of one engine's kernels on one system."""

    one_shot_base_s: Quantity = positive()
    one_shot_hop_s: Quantity = positive()
    """What each further peer adds."""
    one_shot_bytes_per_s: Quantity = positive()
    """On the wire …"""
    one_shot_kernel_bytes_per_s: Quantity = positive()
    """… and of the result, which no kernel writes faster however few peers there are."""
    two_shot_floor_s: Quantity = positive()
    """What the two barriers cost, however little is sent …"""
    two_shot_floor_hop_s: Quantity = positive()
    """… and what each further peer adds to them."""
    two_shot_base_s: Quantity = positive()
    two_shot_bytes_per_s: Quantity = positive()
    multicast_base_s: Quantity | None = positive(default=None)
    multicast_bytes_per_s: Quantity | None = positive(default=None)
    fallback_ll_crowd: Quantity | None = positive(default=None)
    """Over PCIe, as in `RingLibrary`: what is left to the library that the engine falls back to.
    Host bridges differ between machines of one name: these are the shares on the one measured."""
    fallback_ll_socket: Quantity | None = positive(default=None)
    fallback_crowd: Quantity | None = positive(default=None)
    fallback_socket: Quantity | None = positive(default=None)
    eager_launch_s: Quantity | None = positive(default=None)
    eager_gap_s: Quantity | None = positive(default=None)
    """Between the copy of the input and the all-reduce."""
    eager_copy_bytes_per_s: Quantity | None = positive(default=None)

    def check(self) -> None:
        """A kernel has all of its constants or none."""
        together(self, "multicast_base_s multicast_bytes_per_s")
        together(self, "eager_launch_s eager_gap_s eager_copy_bytes_per_s")


@noun
class FrameworkLibrary(Noun):
    """What a framework adds to the library of the GPUs' vendor, whose paths it runs."""

    launch_s: Quantity = positive()
    """One process launches the collective on one GPU after the other: for each of them."""
    reduction_bytes_per_s: Quantity = positive()
    """At which a rank's block passes buffers of the framework where collectives reduce."""


@noun
class TorusLibrary(Noun):
    """Constants of collectives on a torus, along rings of all axes at once."""

    start_s: Quantity = positive()
    hop_s: Quantity = positive()
    """One link of the way."""
    rate_share: Quantity = positive()
    """Of the links' nominal rate."""


@noun
class GenericLibrary(Noun):
    """Assumed constants of textbook algorithms, for links whose library nobody measured."""

    start_s: Quantity = positive()
    """One collective, before anything is sent."""
    step_s: Quantity = positive()
    """From a device to another of its domain: the alpha of the alpha-beta model."""
    peer_s: Quantity = positive()
    """Each further peer of a direct exchange."""
    link_share: Quantity = positive()
    """Share of the links' nominal rate that is reached."""
    fill: Quantity = positive()
    """Of the geometric mean of latency and stream, what pipelining does not hide."""


Constants: TypeAlias = (
    RingLibrary
    | EngineLibrary
    | FrameworkLibrary
    | TorusLibrary
    | GenericLibrary
    | NetworkConstants
)

LINK_RATES: Final = frozenset(
    {
        "ll_bytes_per_s",
        "ll128_bytes_per_s",
        "simple_bytes_per_s",
        "p2p_bytes_per_s",
        "nvls_bytes_per_s",
        "one_shot_bytes_per_s",
        "two_shot_bytes_per_s",
        "multicast_bytes_per_s",
        "link_share",
    }
)
"""Constants that are rates of a link inside a domain; the others are of copies, warps or hosts."""

_KINDS: Final[dict[str, type[Constants]]] = {
    "ring": RingLibrary,
    "direct": EngineLibrary,
    "framework": FrameworkLibrary,
    "torus": TorusLibrary,
    "generic": GenericLibrary,
    "wire": NetworkConstants,
}
_UNITS: Final = (("_gb_per_s", "_bytes_per_s", 1e9), ("_us", "_s", 1e-6))
_MOST: Final = 10**19
_CHUNKS: Final = ("nvls_small_base_us", "nvls_small_gb_per_s", "nvls_base_us", "nvls_gb_per_s")
_OF_A_NODE, _OF_A_PORT = "network_ll_gb_per_s", "ll_port_gb_per_s"


@noun
class Fit(Noun):
    """The rows behind a set of constants, and the error on them."""

    source: str = text()
    rows: int = whole(least=0)
    """0 where nothing was measured: constants are then assumed, and so are the errors."""
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
        """Return in which ways a request lies outside of the measurements, in words."""
        said: list[str] = []
        if self.rows == 0:
            return said
        if collective not in self.collectives:
            said.append(f"no {collective} measurements for {what}")
        least, most = (self.least_bytes / 2, self.most_bytes * 2)
        if anywhere(size_bytes < least) or anywhere(size_bytes > most):
            ends = f"{format_bytes(self.least_bytes)} to {format_bytes(self.most_bytes)}"
            said.append(f"{what} measured only from {ends}")
        if anywhere(ranks < self.least_gpus) or anywhere(ranks > self.most_gpus):
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
    constants: Constants = instance(
        RingLibrary,
        EngineLibrary,
        FrameworkLibrary,
        TorusLibrary,
        GenericLibrary,
        NetworkConstants,
    )
    fit: Fit = instance(Fit)
    inherited_from: tuple[str, ...] = ()
    """The systems whose constants were carried over; empty if the system itself was measured."""
    residuals: tuple[CollectiveTable, ...] = ()
    """What measurements of this very machine leave between formula and time, by collective."""

    def table(self, collective: str, library: str, mode: str) -> CollectiveTable | None:
        """Return the table of residuals for a collective by a library, if there is one."""
        wanted = (collective, library, mode)
        own = (t for t in self.residuals if (t.collective, t.library, t.mode) == wanted)
        return next(own, None)

    @property
    def title(self) -> str:
        """What the constants are of, in a sentence."""
        if isinstance(self.constants, NetworkConstants):
            return f"network {self.system}"
        if isinstance(self.constants, GenericLibrary):
            return "the generic library"
        return f"{self.library} on {self.system}"

    def source(self) -> Source:
        """Return who states the constants, and what to mind."""
        if isinstance(self.constants, GenericLibrary):
            return Source(self.fit.source, "no library of this vendor was measured")
        if self.inherited_from:
            stated_by = f"inherited from {', '.join(self.inherited_from)}, scaled by datasheet"
            here = " with this datasheet" if self.inherited_from == (self.system,) else ""
            return Source(stated_by, f"{self.system}{here} was not measured")
        if self.fit.rows == 0:
            return Source(self.fit.source, "nothing was measured")
        error = f"median error {self.fit.median_pct:.1f} %, p90 {self.fit.p90_pct:.1f} %"
        return Source(f"{self.fit.source}; {self.fit.rows} rows, {error}")


def from_file_content(content: Mapping[str, Any], file: str) -> Iterator[Calibration]:
    """Yield the calibrations that a file of the catalog, or of a user, holds."""
    system = content.get("system", content.get("name"))
    if not isinstance(system, str):
        raise FormatError(file, "system is missing")
    for entry in content.get("library", []):
        if not isinstance(entry, Mapping):
            raise FormatError(file, f"library must be a table, got {shown(entry)}")
        yield _entry(_in_rounds(_by_port({"system": system, **entry}, content)), file)


def _in_rounds(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a library with what a round of in-switch reduction takes.

    Profiles written before 0.3 have a start and a rate with the smallest chunks, and with the
    largest ones, for the bytes that eight GPUs send up their links.
    """
    figures = entry.get("constants")
    if not isinstance(figures, dict) or not all(_is_figure(figures.get(name)) for name in _CHUNKS):
        return entry
    start, slow, _, fast = (float(figures[name]) for name in _CHUNKS)
    if min(start, slow, fast) <= 0:
        return entry
    rules = catalog.tuner_table("nccl")["in_switch"]
    heads, chunk = rules["most_heads"], rules["chunks"]["inside"]["least_bytes"]
    sent = 1e-3 * heads * rules["channels"]["hopper"] * chunk  # in microseconds by GB/s
    links = 1 + 1 / heads
    stream, whole = sent * links / fast, sent * links / slow
    rounds = {
        "nvls_base_us": max(start / heads, start - rules["fill_rounds"] * stream),
        "nvls_round_us": max(whole / heads, (whole**2 - stream**2) ** 0.5 if slow < fast else 0),
        "nvls_gb_per_s": fast / links,
    }
    rest = {key: value for key, value in figures.items() if key not in _CHUNKS}
    return {**entry, "constants": {**rest, **rounds}}


def _by_port(entry: dict[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a library with the rate of LL of a port.

    Profiles written before 0.2 have that of all ports of a node.
    """
    figures = entry.get("constants")
    if not isinstance(figures, dict) or not _is_figure(figures.get(_OF_A_NODE)):
        return entry
    if not isinstance(content.get("network"), str) or "based_on" not in content:
        return entry
    cluster = catalog.cluster_named(content["based_on"], content["network"])
    network = cluster.network
    if network is None:
        return entry
    ports = network.node_bytes_per_s(cluster.gpus_per_node) / network.nic_bytes_per_s
    rest = {key: value for key, value in figures.items() if key != _OF_A_NODE}
    return {**entry, "constants": {**rest, _OF_A_PORT: figures[_OF_A_NODE] / ports}}


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
        library = entry.pop("name")
        if "residual" in entry:
            entry["residuals"] = tables_of(entry.pop("residual"))
        return Calibration(library=library, constants=constants, fit=Fit(**fit), **entry)
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
    for name, value in figures.items():
        if not _is_figure(value):
            rule = f"{name[:60]} must be a number, got {shown(value)}"
            raise FormatError(file, f"constants of {library}: {rule}")
    values = in_base_units(figures)
    known = {each.name: each.default is MISSING for each in fields(kind)}
    unknown = [name for name in values if name not in known]
    if unknown:
        raise FormatError(file, f"constants of {library}: unknown key {in_file_name(unknown[0])}")
    lacking = [name for name, needed in known.items() if needed and name not in values]
    if lacking:
        raise FormatError(file, f"constants of {library} lack {in_file_name(lacking[0])}")
    return kind(**values)


def _is_figure(value: object) -> bool:
    """Return whether a value can be a constant; whether it is sound is for its library to say."""
    return type(value) is float or (type(value) is int and abs(value) < _MOST)


def in_base_units(figures: Mapping[str, float]) -> dict[str, float]:
    """Return figures of a file, which has microseconds and GB/s, under the names of the fields."""
    values = {}
    for key, value in figures.items():
        matching = (unit for unit in _UNITS if key.endswith(unit[0]))
        suffix, unit_name, factor = next(matching, ("", "", 1.0))
        values[key.removesuffix(suffix) + unit_name] = value * factor
    return values


def in_file_units(constants: Any) -> dict[str, float]:
    """Return constants as a file has them, in microseconds and GB/s, to four digits."""
    return {
        in_file_name(name): float(f"{value / _unit_of(name)[2]:.4g}")
        for name, value in stated(constants).items()
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


def stated(constants: Any) -> dict[str, float]:
    """Return the constants that a library has on its system, by name."""
    values = {each.name: getattr(constants, each.name) for each in fields(constants)}
    return {name: value for name, value in values.items() if value is not None}


@noun
class Jitter(Noun):
    """How nodes, steps and delays of a network scatter, as shares of their mean or median."""

    node_spread: Quantity = positive()
    """Standard deviation of the time that nodes take for the same work."""
    step_scatter: Quantity = positive()
    """Standard deviation of the steps of a run."""
    tail: Quantity = positive()
    """What delays add to the 99th percentile of a small all-reduce, for one node."""
    tail_index: Quantity = positive()
    """Exponent of the power law of delays."""
    half_bytes: Quantity = positive()
    """The size of an array from which on delays are less than half of that."""
    nodes_source: str = text()
    steps_source: str = text()
    delays_source: str = text()


def catalog_jitter() -> Jitter:
    """Return the constants of the catalog."""
    table = catalog.tuner_table("jitter")
    nodes, steps, delays = (table[name] for name in ("nodes", "steps", "all_reduce"))
    return Jitter(
        node_spread=nodes["node_spread"],
        step_scatter=steps["step_scatter"],
        tail=delays["tail"],
        tail_index=delays["tail_index"],
        half_bytes=delays["half_bytes"],
        nodes_source=nodes["fit"]["source"],
        steps_source=steps["fit"]["source"],
        delays_source=delays["fit"]["source"],
    )

"""Expert-parallel dispatch and combine: what they send, and how long that takes.

Dispatch brings each token to the GPUs that hold its chosen experts, combine brings the results back
and adds them up: the same bytes the other way, in another number format. What is sent follows from
counting (`traffic`). Normal kernels (DeepEP, https://github.com/deepseek-ai/DeepEP, and those built
like it) send one copy of a token to each other node over the network, where it is forwarded over
NVLink, one copy to each GPU; low-latency kernels send one to each chosen expert, directly; an
all-to-all of NCCL sends a row for each pair of a token and an expert, as Megatron's ``alltoall``
dispatcher does.

How long it takes (`dispatch_time`) has one form for all kernels::

    latency = start + experts' flags + first token + crossing x log2(domains)
    stream  = tokens per SM x (token + copies x (copy + bytes / SM rate)), joined with
              bytes inside / (share x link rate), and bytes outside / (share x port rate)
    time    = latency + stream + fill x sqrt(latency x stream)

The slowest of the three streams sets the pace; where two take alike they hinder each other, so they
are joined by their fourth powers. A host that launches call after call sets a floor, joined alike.
Everything takes numbers or arrays that broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from shardcost import resolve
from shardcost.arrays import ceil_div, choose, largest, log2, looked_up, smallest, sqrt
from shardcost.catalog import tuner_table
from shardcost.checks import anywhere, count_or_array, is_array, positive_or_array
from shardcost.cluster import Cluster
from shardcost.collectives.group import Group
from shardcost.collectives.library_time import (
    MODES,
    CollectiveTime,
    collective_time,
    ends,
    group_on,
)
from shardcost.collectives.paths import Parts, total
from shardcost.display import Displayed
from shardcost.dtypes import BITS, canonical_dtype
from shardcost.errors import BadValueError, UnknownNameError
from shardcost.machine import Machine, machine_of
from shardcost.machine.dispatch import (
    PHASES,
    Kernel,
    Resolved,
    kernel_named,
    kernel_of,
    kernels,
    libraries,
)
from shardcost.receipt import identifiers
from shardcost.records import NamedTuple, dataclass
from shardcost.resolve import GivenCluster, GivenNetwork
from shardcost.traced import step
from shardcost.units import format_time

if TYPE_CHECKING:
    from shardcost.collectives.interval import Interval

USUAL_DTYPES: Final = {"dispatch": "fp8", "combine": "bf16"}
"""What DeepSeek-V3 sends in each phase (arXiv:2412.19437)."""
ALL_TO_ALL: Final = ("nccl", "rccl")
"""Libraries without kernels for it: a row for each pair of a token and an expert is sent."""
_BYTE: Final = 8


class Traffic(NamedTuple):
    """What one GPU sends in one phase, and receives: under uniform routing the two are alike."""

    row_bytes: Any
    """Of one copy of a token, with its scales."""
    copies: Any
    """Of a token, the one that stays on its own GPU included."""
    domains: Any
    """Among which those are: distinct nodes, its own included."""
    inside_bytes: Any
    """Over the links inside a domain."""
    network_bytes: Any
    """Into the network."""
    local_bytes: Any
    """Copies that stay on the GPU."""
    payload_bytes: Any
    """All copies that GPUs with a chosen expert get, the own included: published rates count it."""


def row_bytes(hidden: Any, dtype: str, *, per_expert: bool = False) -> Any:
    """Return the bytes of one copy of a token, with the scales of its format.

    >>> row_bytes(7168, "bf16"), row_bytes(7168, "fp8"), row_bytes(7168, "fp8", per_expert=True)
    (14336.0, 7392.0, 7408.0)

    Args:
        hidden: Elements of a token.
        dtype: Their number format.
        per_expert: Whether each copy is a message of its own, with a head.
    """
    dtype = canonical_dtype(dtype)
    scales = tuner_table("dispatch")["scales"].get(dtype)
    if scales is None:
        return hidden * (BITS[dtype] / _BYTE)
    size = hidden * (BITS[dtype] / _BYTE + scales["bytes"] / scales["elements"])
    return size + (scales.get("head", 0) if per_expert else 0)


def distinct(places: Any, experts: Any, topk: Any) -> Any:
    """Return how many of some places, with equal shares of the experts, hold a token's experts.

    Experts are drawn without replacement, so a place is missed with the probability that all of
    `topk` lie among the others'.

    >>> f"{distinct(8, 256, 8):.4f} GPUs, {distinct(4, 256, 8):.4f} nodes"
    '5.2947 GPUs, 3.6142 nodes'
    """
    drawn_from = largest(experts, places)  # more places than experts hold replicas of them
    elsewhere = drawn_from - drawn_from / places
    missed: Any = 1.0
    most = topk.max() if is_array(topk) else topk
    for i in range(int(most)):
        factor = largest(0.0, elsewhere - i) / largest(1.0, drawn_from - i)
        missed = missed * choose(i < topk, factor, 1.0)
    return places * (1 - missed)


def distinct_of_best(
    places: Any, domains: Any, experts: Any, topk: Any, limit: Any
) -> tuple[Any, Any]:
    """Return over how many GPUs and domains a token's experts are, if those of few domains count.

    Routing that is limited to groups keeps the domains with the best experts (DeepSeek-V3,
    arXiv:2412.19437, and DeepEP's benchmark): going down the ranking, the first `limit` domains
    that appear, and then nothing but their experts. Each draw either meets a new domain, a new GPU
    of a known one, or a known GPU, with probabilities that depend on how many were met alone.

    >>> "{:.4f} GPUs, {:.4f} nodes".format(*distinct_of_best(64, 8, 256, 8, 4))
    '7.4711 GPUs, 3.9831 nodes'
    """
    given = (places, domains, experts, topk, limit)
    if not any(map(is_array, given)):
        return _of_best(*map(int, given))
    import numpy as np

    # Cells that are alike are computed once: a search has few different groups. Their code is a
    # number with one digit for each argument.
    known: list[list[int]] = []
    code: Any = 0
    for each in given:
        if not is_array(each):
            known.append([int(each)])
            continue
        different, where = np.unique(each, return_inverse=True)
        known.append([int(value) for value in different.tolist()])
        code = code * len(known[-1]) + where.reshape(np.shape(each))
    codes, where = np.unique(code, return_inverse=True)
    found = []
    for number in codes.tolist():
        rest, cell = int(number), []
        for values in reversed(known):
            rest, digit = divmod(rest, len(values))
            cell.append(values[digit])
        found.append(_of_best(*reversed(cell)))
    index = where.reshape(np.shape(code))
    gpus, nodes = (looked_up(np.array(column), index) for column in zip(*found, strict=True))
    return gpus, nodes


def _of_best(places: int, domains: int, experts: int, topk: int, limit: int) -> tuple[float, float]:
    slots = max(experts, places)
    per_gpu, per_domain, gpus_of = slots / places, slots / domains, places / domains
    states = {(0, 0): 1.0}
    for drawn in range(topk):
        following: dict[tuple[int, int], float] = {}
        for (nodes, gpus), share in states.items():
            full = nodes >= limit
            left = (nodes * per_domain if full else slots) - drawn
            elsewhere = 0.0 if full else (domains - nodes) * per_domain
            fresh = max(0.0, nodes * gpus_of - gpus) * per_gpu
            known = max(0.0, left - elsewhere - fresh)
            every = elsewhere + fresh + known
            if every <= 0:  # fewer experts than are asked for
                following[nodes, gpus] = following.get((nodes, gpus), 0.0) + share
                continue
            for state, weight in (
                ((nodes + 1, gpus + 1), elsewhere),
                ((nodes, gpus + 1), fresh),
                ((nodes, gpus), known),
            ):
                if weight > 0:
                    following[state] = following.get(state, 0.0) + share * weight / every
        states = following
    met = [(nodes, gpus, share) for (nodes, gpus), share in states.items()]
    return sum(gpus * share for _, gpus, share in met), sum(n * share for n, _, share in met)


def spread_of(
    ranks: Any, domains: Any, experts: Any, topk: Any, node_limit: Any = None
) -> tuple[Any, Any]:
    """Return over how many GPUs and domains a token's experts are, wherever routing limits them."""
    if node_limit is None:
        return distinct(ranks, experts, topk), distinct(domains, experts, topk)
    return distinct_of_best(ranks, domains, experts, topk, node_limit)


def _spread(group: Group, experts: Any, topk: Any, node_limit: Any) -> tuple[Any, Any]:
    """Return what `spread_of` does; kept with the group, whatever number of tokens is sent."""
    given = (group.ranks, group.domains, experts, topk, node_limit)
    if any(map(is_array, given)):
        return spread_of(*given)
    key = ("spread", experts, topk, node_limit)
    if key not in group.memo:
        group.memo[key] = spread_of(*given)
    spread: tuple[Any, Any] = group.memo[key]
    return spread


def traffic(
    ranks: Any,
    domains: Any,
    tokens: Any,
    hidden: Any,
    topk: Any,
    experts: Any,
    *,
    dtype: str,
    per_expert: bool,
    node_limit: Any = None,
    spread: tuple[Any, Any] | None = None,
) -> Traffic:
    """Return what one GPU sends in one phase, by counting, under uniform routing.

    A copy for each GPU crosses the network once for each domain, to the GPU of the same place
    there, which forwards it; a copy for each expert goes the whole way by itself.

    >>> sent = traffic(16, 2, 4096, 7168, 8, 256, dtype="fp8", per_expert=False)
    >>> f"{sent.inside_bytes / 1e6:.0f} MB inside, {sent.network_bytes / 1e6:.0f} MB outside"
    '173 MB inside, 30 MB outside'

    Args:
        ranks: GPUs over which the experts are spread.
        domains: Nodes, or NVLink domains, that they are in.
        tokens: Tokens of one GPU.
        hidden: Elements of a token.
        topk: Experts of a token.
        experts: Experts of a layer, over all ranks.
        dtype: Number format.
        per_expert: Whether a copy is sent for each chosen expert, rather than for each GPU.
        node_limit: Domains that a token's experts are in at most, where routing limits them.
        spread: What `spread_of` returns, where that is known.
    """
    near = ranks / domains
    row = row_bytes(hidden, dtype, per_expert=per_expert)
    copies, nodes = spread or spread_of(ranks, domains, experts, topk, node_limit)
    each = tokens * row
    if per_expert:
        inside, network, local = (near - 1) / ranks, (ranks - near) / ranks, 1 / ranks
        every = each * topk
        return Traffic(row, topk, nodes, every * inside, every * network, every * local, every)
    inside, local = (each * copies * share for share in ((near - 1) / near, 1 / near))
    network = each * nodes * ((domains - 1) / domains)
    return Traffic(row, copies, nodes, inside, network, local, each * copies)


def sms_of(kernel: Kernel, device_sms: Any, experts: Any) -> Any:
    """Return the SMs that a kernel takes unless told.

    A low-latency kernel gives each a group of experts, as many as leave none over (DeepEP,
    csrc/kernels/internode_ll.cu): few experts, few SMs.

    >>> sms_of(kernel_of("deepep", low_latency=True), 132, 256)
    128
    """
    if kernel.sms is not None:
        return smallest(kernel.sms, device_sms)
    return ceil_div(experts, ceil_div(experts, device_sms))


@dataclass(frozen=True, eq=False, repr=False)
class DispatchTime(Displayed):
    """The time of one phase, and what it is made of. Times and bytes may be arrays."""

    phase: str
    group: Group
    tokens: Any
    hidden: Any
    topk: Any
    experts: Any
    dtype: str
    stride: Any
    library: str
    mode: str
    low_latency: bool
    node_limit: Any
    time_s: Any
    traffic: Traffic
    sms: Any
    """SMs that are held."""
    parts: Parts
    """Parts of the time in seconds, which add up to it."""
    streams: Parts
    """What SMs, links and network would take alone."""
    resolved: Resolved | None
    """The constants that it rests on; None where an all-to-all runs."""
    exchange: CollectiveTime | None
    """The all-to-all, where one runs."""
    machine: Machine

    @property
    def kernel(self) -> str:
        """The name of the kernel that runs."""
        return "all_to_all" if self.resolved is None else self.resolved.kernel.name

    @property
    def inside_bytes(self) -> Any:
        """Bytes that a GPU sends, and receives, over the links inside a domain."""
        return self.traffic.inside_bytes

    @property
    def network_bytes(self) -> Any:
        """Bytes that a GPU sends into the network, and receives from there."""
        return self.traffic.network_bytes

    @property
    def sent_bytes(self) -> tuple[Any, Any]:
        """Both: bytes inside the domain and into the network, as `CollectiveTime` has them."""
        return self.inside_bytes, self.network_bytes

    def time_on_links_s(self, inside: Any = 1.0, outside: Any = 1.0) -> Any:
        """Return the seconds by the same kernel, on links of other rates.

        Args:
            inside: The rate inside a domain over what it is. A number or an array.
            outside: The same for the network.
        """
        if self.exchange is not None:
            return self.exchange.time_on_links_s(inside, outside)
        assert self.resolved is not None  # noqa: S101
        group = replace(
            self.group,
            link_bytes_per_s=self.group.link_bytes_per_s * inside,
            port_bytes_per_s=self.group.port_bytes_per_s * outside,
        )
        sizes = (self.tokens, self.experts, self.sms, self.mode)
        time_s = total(kernel_times(self.resolved, self.traffic, group, *sizes)[1])
        return choose(self.group.ranks == 1, 0.0 * time_s, time_s)

    @property
    def payload_bytes_per_s(self) -> Any:
        """All copies over the time, the own one included, as kernels' benchmarks count."""
        moving = self.time_s > 0
        return choose(moving, self.traffic.payload_bytes / choose(moving, self.time_s, 1.0), 0.0)

    @property
    def bound_s(self) -> Any:
        """What no kernel that sends these bytes can beat: the busiest link at its nominal rate."""
        inside = self.inside_bytes / self.group.link_bytes_per_s
        across = self.group.domains > 1
        port = choose(across, self.group.port_bytes_per_s, 1.0)
        return largest(inside, choose(across, self.network_bytes / port, 0.0))

    @property
    def link_share(self) -> Any:
        """The share of its nominal rate at which the busiest link runs."""
        moving = self.time_s > 0
        return choose(moving, self.bound_s / choose(moving, self.time_s, 1.0), 0.0)

    @property
    def interval(self) -> Interval:
        """Between which times nine of ten measurements of it lie."""
        from shardcost.collectives.interval import dispatch_interval_of

        return dispatch_interval_of(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the prediction goes beyond what was measured."""
        if self.exchange is not None:
            return self.exchange.notes
        used, cluster = self.resolved, self.machine.cluster
        assert used is not None  # noqa: S101
        said = []
        what = f"{used.kernel.library}'s {used.kernel.title}"
        if used.relative != used.kernel:
            theirs = f"{used.relative.library}'s {used.relative.title}"
            said.append(f"no measurements for {what}; constants of {theirs}")
        if used.inherited_from:
            donors = ", ".join(used.inherited_from)
            said.append(
                f"no measurements for {used.relative.name} on {cluster.name}; constants inherited"
                f" from {donors}"
            )
        if cluster.device.vendor not in used.kernel.vendors:
            said.append(f"{used.kernel.library} does not run on {cluster.device.vendor} GPUs")
        if used.kernel.low_latency != self.low_latency:
            family = "low-latency" if self.low_latency else "normal"
            said.append(f"{used.kernel.library} has no {family} kernels; {used.kernel.title} run")
        group = self.group
        kind = cluster.network.kind if cluster.network is not None else ""
        if anywhere(group.domains > 1) and kind not in used.fit.networks:
            said.append(f"no measurements for {used.relative.name} over {kind}")
        beyond = used.fit.outside(group.ranks, group.domains, self.tokens)
        said += [f"{used.relative.name} {words}; extrapolated" for words in beyond]
        return tuple(said)

    def __repr__(self) -> str:
        """Return the kernel, the time and its interval in two lines."""
        place = f"{ends(self.group.ranks, str)} x {self.group.cluster.name}"
        what = f"DispatchTime: {self.phase} over {place}, {self.kernel}"
        if is_array(self.time_s):
            return f"{what}, {self.time_s.size} values"
        if self.group.ranks == 1:
            return f"{what}: {format_time(self.time_s)}"
        known = f"90 % interval {' to '.join(map(format_time, self.interval[:2]))}"
        return f"{what}:\n  {format_time(self.time_s)} ({known})"


def dispatch_time(
    phase: str,
    cluster: GivenCluster | Machine,
    ranks: Any,
    tokens: Any,
    hidden: Any,
    topk: Any,
    experts: Any,
    *,
    nodes: Any = None,
    stride: Any = 1,
    network: GivenNetwork = None,
    library: str = "deepep",
    kernel: Kernel | str | None = None,
    low_latency: bool = False,
    dtype: str | None = None,
    sms: Any = None,
    mode: str | None = None,
    node_limit: Any = None,
) -> DispatchTime:
    """Return how long dispatch or combine takes, and the bytes that one GPU sends.

    >>> result = dispatch_time(
    ...     "dispatch", "h800_sxm", 64, 128, 7168, 8, 256, network="ib_8x400g", low_latency=True
    ... )
    >>> f"{result.network_bytes / 1e6:.1f} MB over the network"
    '6.6 MB over the network'

    Args:
        phase: ``dispatch`` or ``combine``.
        cluster: A `Cluster`, the name of one in the catalog, a hardware file or calibrated
            profile, or a `Machine` with constants of its own.
        ranks: GPUs over which the experts are spread. A number or an array, like all that follow.
        tokens: Tokens of one GPU; a mean over GPUs need not be whole.
        hidden: Elements of a token.
        topk: Experts of a token.
        experts: Experts of a layer, over all ranks.
        nodes: Nodes that the ranks are spread over evenly; as few as hold them if left out.
        stride: Devices from one rank to the next, as in `Group.on`.
        network: What joins the nodes, by name or file, if the cluster does not say.
        library: One that has kernels for it (`shardcost.machine.dispatch.libraries`); ``nccl`` or
            ``rccl`` for an all-to-all.
        kernel: A certain kernel of the catalog, or its name, in place of what the library runs.
        low_latency: Whether the library's low-latency kernels run, as in decoding.
        dtype: Number format of what is sent; fp8 in dispatch and bf16 in combine if left out.
        sms: SMs that normal kernels may take; the library's choice if left out.
        mode: ``graph`` (if left out), or ``eager``: the host launches each call.
        node_limit: Domains that a token's experts are in at most, where routing limits them.
    """
    if phase not in PHASES:
        raise UnknownNameError("phase", phase, PHASES)
    mode = mode or MODES[0]
    if mode not in MODES:
        raise UnknownNameError("mode", mode, MODES)
    machine = machine_of(resolve.cluster(cluster, network))
    group = group_on(machine, ranks, nodes, stride)
    tokens, hidden = positive_or_array("tokens", tokens), count_or_array("hidden", hidden)
    experts = count_or_array("experts", experts)
    topk = count_or_array("topk", topk, tuner_table("dispatch")["most_topk"])
    if anywhere(topk > experts):
        raise BadValueError("topk", topk, f"at most the number of experts ({experts})")
    if node_limit is not None:
        node_limit = count_or_array("node_limit", node_limit)
    dtype = canonical_dtype(dtype or USUAL_DTYPES[phase])
    common = (phase, group, tokens, hidden, topk, experts, dtype, stride)
    if kernel is None and library in ALL_TO_ALL:
        if sms is not None:
            raise BadValueError("sms", sms, f"left out: {library} takes its channels")
        return _all_to_all(*common, library, low_latency, node_limit, machine)
    runs = _kernel(kernel, library, group, low_latency=low_latency)
    if kernel is not None:
        low_latency = runs.low_latency
    resolved = machine.dispatch_kernel(runs, phase)
    held = _sms(sms, runs, machine.cluster, experts)
    sent = traffic(
        group.ranks, group.domains, tokens, hidden, topk, experts,
        dtype=dtype, per_expert=runs.per_expert, spread=_spread(group, experts, topk, node_limit),
    )  # fmt: skip
    streams, parts = kernel_times(resolved, sent, group, tokens, experts, held, mode)
    alone = group.ranks == 1
    return DispatchTime(
        *common, runs.library, mode, low_latency, node_limit,
        choose(alone, 0.0 * tokens, total(parts)), sent, held, parts, streams, resolved, None,
        machine,
    )  # fmt: skip


_STREAMS: Final = {name: identifiers([name])[0] for name in ("SM work", "links", "network")}
"""What receipts call the streams of a kernel."""


def kernel_times(
    resolved: Resolved, sent: Traffic, group: Any, tokens: Any, experts: Any, sms: Any, mode: str
) -> tuple[Parts, Parts]:
    """Return the streams of a kernel, each by itself, and the parts of its time."""
    constants = resolved.constants
    streams = stream_times(constants, resolved.kernel, sent, group, tokens, sms)
    named = {name: step(_STREAMS[name], value) for name, value in streams.items()}
    per_sm = experts / group.cluster.device.sms
    return streams, kernel_parts(constants, named, sent, group, per_sm, mode)


def stream_times(
    constants: Any, kernel: Kernel, sent: Traffic, group: Any, tokens: Any, sms: Any
) -> Parts:
    """Return what SMs, links and network take, each by itself.

    The first token of each SM of a kernel with a copy for each expert passes as part of
    its latency.
    """
    rounds = tokens / sms
    if kernel.per_expert:
        rounds = largest(0.0, rounds - 1)
    each = constants.token_s
    if constants.copy_s is not None:
        each = each + sent.copies * constants.copy_s
    if constants.sm_bytes_per_s is not None:
        copies = sent.copies
        if constants.output_copies is not None:
            copies = copies + constants.output_copies
        each = each + copies * (sent.row_bytes / constants.sm_bytes_per_s)
    if constants.across is not None:
        each = each * choose(group.domains > 1, constants.across, 1.0)
    port = choose(group.domains > 1, group.port_bytes_per_s, 1.0)
    return {
        "SM work": rounds * each,
        "links": sent.inside_bytes / (constants.link_share * group.link_bytes_per_s),
        "network": sent.network_bytes / (constants.network_share * port),
    }


def kernel_parts(
    constants: Any, streams: Parts, sent: Traffic, group: Any, experts_per_sm: Any, mode: str
) -> Parts:
    """Return the parts of a kernel's time, which add up to it."""
    latency = {"start": constants.start_s}
    if constants.expert_s is not None:
        latency["experts' flags"] = constants.expert_s * experts_per_sm
    latency["first token"] = sent.row_bytes / constants.row_bytes_per_s
    if anywhere(group.domains > 1):
        latency["waiting for other nodes"] = constants.crossing_s * log2(group.domains)
    parts = {**latency, "stream": _together(*streams.values())}
    if constants.fill is not None:
        parts["filling the pipeline"] = constants.fill * sqrt(total(latency) * parts["stream"])
    if mode == "eager" and constants.host_s is not None:
        device = total(parts)
        parts["waiting for the host"] = _together(device, constants.host_s) - device
    return parts


def _together(*times: Any) -> Any:
    """Return what takes some times by themselves when all go on at once: nearly the longest."""
    squares = [time * time for time in times]
    return sqrt(sqrt(sum(square * square for square in squares)))


def _kernel(
    kernel: Kernel | str | None, library: str, group: Group, *, low_latency: bool
) -> Kernel:
    """Return the kernel that runs: the one named, else the library's."""
    if isinstance(kernel, str):
        named = kernel_named(kernel)
        if named is None:
            raise UnknownNameError("kernel", kernel, kernels())
        kernel = named
    if kernel is None:
        if library not in libraries():
            raise UnknownNameError("library", library, [*libraries(), *ALL_TO_ALL])
        kernel = kernel_of(library, low_latency=low_latency)
    if kernel.one_domain and anywhere(group.domains > 1):
        raise BadValueError("kernel", kernel.name, "another across domains: it is for one alone")
    return kernel


def _sms(sms: Any, kernel: Kernel, cluster: Cluster, experts: Any) -> Any:
    """Return the SMs that a kernel takes, as it was told or by itself."""
    most = cluster.device.sms
    if sms is None:
        return sms_of(kernel, most, experts)
    if kernel.sms is None:
        raise BadValueError("sms", sms, f"left out: {kernel.title} take what their experts need")
    sms = count_or_array("sms", sms)
    if anywhere(sms > most):
        raise BadValueError("sms", sms, f"at most {most}, those of {cluster.device.name}")
    return sms


def _all_to_all(
    phase: str,
    group: Group,
    tokens: Any,
    hidden: Any,
    topk: Any,
    experts: Any,
    dtype: str,
    stride: Any,
    library: str,
    low_latency: bool,  # noqa: FBT001
    node_limit: Any,
    machine: Machine,
) -> DispatchTime:
    """Return the time of an all-to-all with a row for each pair of a token and an expert."""
    sent = traffic(
        group.ranks, group.domains, tokens, hidden, topk, experts,
        dtype=dtype, per_expert=True, spread=_spread(group, experts, topk, node_limit),
    )  # fmt: skip
    row = row_bytes(hidden, dtype)
    shares = (each * row / sent.row_bytes for each in sent[3:])
    sent = Traffic(row, sent.copies, sent.domains, *shares)
    size = tokens * topk * row
    own = machine.default_library
    exchange = collective_time(
        "all_to_all", size, machine, group.ranks, group.nodes, stride=stride, library=own
    )
    parts = {"all-to-all": exchange.time_s}
    return DispatchTime(
        phase, group, tokens, hidden, topk, experts, dtype, stride, library, MODES[0],
        low_latency, node_limit, exchange.time_s, sent, 0, parts, {}, None, exchange, machine,
    )  # fmt: skip


def alternatives(result: DispatchTime) -> list[DispatchTime]:
    """Return the same phase by every other kernel that runs on such GPUs, fastest first.

    For one cell only.
    """
    machine, group = result.machine, result.group
    question: Mapping[str, Any] = {
        "nodes": group.nodes,
        "stride": result.stride,
        "dtype": result.dtype,
        "node_limit": result.node_limit,
    }
    size = (result.tokens, result.hidden, result.topk, result.experts)
    vendor = machine.cluster.device.vendor
    others = [
        dispatch_time(result.phase, machine, group.ranks, *size, kernel=each, **question)
        for each in kernels().values()
        if vendor in each.vendors
        and each.name != result.kernel
        and not (each.one_domain and group.domains > 1)
    ]
    if result.exchange is None:
        own = machine.default_library
        if own in ALL_TO_ALL:
            others.append(
                dispatch_time(result.phase, machine, group.ranks, *size, library=own, **question)
            )
    return sorted(others, key=lambda each: float(each.time_s))

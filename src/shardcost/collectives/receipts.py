"""The receipts of a collective's paths: the functions that price them, run on traced numbers.

No formula stands here. `path_receipts` hands the constants, the size and what the functions ask of
the group to the functions of `paths` and `engine_kernels` as named numbers (`shardcost.traced`),
and what comes back is each part of the time with the expression that computed it.
"""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, Final

from shardcost.collectives.dispatch import DispatchTime, kernel_times
from shardcost.collectives.engine_kernels import (
    eager,
    kernel_paths,
    launched,
    multimem_calibrations,
    multimem_groups,
    multimem_s,
)
from shardcost.collectives.generic import generic_paths
from shardcost.collectives.group import Group, wire_bound_s
from shardcost.collectives.library_time import IN_SWITCH, CollectiveTime
from shardcost.collectives.paths import Parts, ring_library_paths, torus_paths, total
from shardcost.collectives.tuner import PathName, tuner_times
from shardcost.machine import Machine
from shardcost.machine.constants import (
    NO_NETWORK,
    Calibration,
    EngineLibrary,
    FrameworkLibrary,
    GenericLibrary,
    NetworkConstants,
    RingLibrary,
    TorusLibrary,
)
from shardcost.machine.libraries import TUNER
from shardcost.receipt import SENT, Receipt, Term, identifiers
from shardcost.traced import Traced, named, receipt, receipts, step

SIZE: Final = "the buffer, as nccl-tests counts it"
MEANINGS: Final = {
    "size": SIZE,
    "ranks": "GPUs",
    "domains": "nodes or racks inside which GPUs have links of their own",
    "ranks_per_domain": "GPUs that share one domain, the fullest",
    "fewest_per_domain": "GPUs that share the emptiest domain",
    "link": "a GPU's links to the group, nominal, one way",
    "links": "all links of a GPU, nominal, one way",
    "bisection": "what the middle of the longest axis leaves to each device, nominal",
    "hops": "links from one end of the group to the other, along all axes",
    "hop_s": "one link of the way",
    "rate_share": "of the links' nominal rate",
    "pair": "a GPU's links to one other, nominal, one way",
    "port": "a GPU's share of the network ports, nominal",
    "ports": "the network ports that a domain sends through, nominal",
    "estimated_latency_s": "NCCL's estimate for an empty buffer",
    "estimated_bytes_per_s": "at which NCCL's estimate grows from there",
    "nvls_round_s": "signals of a round of chunks, with the heads of a node",
    "nvls_bytes_per_s": "at which kernels copy the buffer to the switch's chunks, and back",
    "ll_spread_bytes": "bytes per GPU at which half of ll_spread is paid",
    "p2p_channel_bytes_per_s": "of one channel",
    "p2p_ll_bytes_per_s": "of one channel",
    "launch_s": "for each GPU that one process launches on",
    "reduction_bytes_per_s": "at which a GPU's block passes buffers of the framework",
    "fill": "what the pipeline cannot hide; 0 if it hides all",
    "ll_latency_s": "one crossing of the network",
    "ll_channels_s": "what it takes more on all channels",
    "ll128_latency_s": "one crossing of the network",
    "latency_s": "one crossing of the network",
    "ll_port_bytes_per_s": "what LL gets through a port",
    "turnaround_s": "one step of a ring whose ranks share a crossing",
    "step_s": "from a GPU to another of its domain",
    "peer_s": "each further peer of a direct exchange",
    "link_share": "share of the links' rate that is reached",
    "efficiency": "share of the ports' rate that is reached",
    "spine": "share of that beyond the leaf switches",
    "ll_crowd": "what is left of the rate when more than two GPUs share the host",
    "ll_socket": "what is left of that when they sit on both sockets",
    "crowd": "what is left of the rate when more than two GPUs share the host",
    "socket": "what is left of that when they sit on both sockets",
}
"""What a term is, where its name does not say it."""
OF_DISPATCH: Final = {
    "start_s": "kernels and barriers, however little is sent",
    "expert_s": "for each expert of an SM",
    "row_bytes_per_s": "at which the first token passes, with nothing to overlap it with",
    "token_s": "of an SM, for each token",
    "copy_s": "of an SM, for each copy",
    "sm_bytes_per_s": "at which an SM copies",
    "output_copies": "that adding up and writing one result is worth",
    "link_share": "share of the links' rate that is reached",
    "network_share": "share of the port's rate that is reached",
    "crossing_s": "for each doubling of the domains",
    "across": "what forwarding to other domains costs SMs",
    "host_s": "what the host takes to launch a call",
    "tokens": "tokens of one GPU",
    "sms": "SMs that are held",
    "copies": "of a token, on average",
    "row_bytes": "of one copy of a token",
    "inside_bytes": "that a GPU sends over the links of its domain",
    "network_bytes": "that a GPU sends into the network",
    "experts": "of the layer, redundant ones included",
}
"""The same for dispatch and combine."""
_SENT_NAMES: Final = frozenset({"inside_bytes", "network_bytes", "row_bytes"})
_RATES: Final = frozenset({"bisection", "link", "links", "pair", "port", "ports"})
_FALLBACK: Final = "fallback_"
"""Begins an engine's own name for a constant of the library that it falls back to."""
_NEGLIGIBLE: Final = 1e-3
"""Paths that weigh less are not named."""
_ROUNDING: Final = 5e-10
_ALMOST_NOTHING: Final = 1e-9
"""Bytes of a buffer that is as good as empty."""


def path_receipts(result: CollectiveTime, path: PathName) -> list[Receipt]:
    """Return the receipts of a path's parts. For one cell only.

    >>> from shardcost.collectives.library_time import collective_time
    >>> result = collective_time("all_reduce", 2**30, "h100_sxm", gpus=8)
    >>> hops, wire = path_receipts(result, ("ring", "Simple"))[1:3]
    >>> hops.formula
    '2 x (ranks - 1) x simple_hop'
    >>> wire.value == float(result.paths["ring", "Simple"]["wire"])
    True
    """
    if result.group.ranks == 1:
        return []
    return receipts(_parts(result, path), "s", constants=result.calibrations)


def _parts(result: CollectiveTime, path: PathName) -> Parts:
    """Return the parts of a path as traced numbers."""
    size = _traced("size", result.size_bytes)
    if result.library == TUNER:
        return _estimate(result, path, size)
    by_kind = {type(used.constants): used for used in result.calibrations}
    engine = by_kind.get(EngineLibrary)
    own: Any = None if engine is None else _constants(engine)
    group = _group(result.group)
    network: Any = (
        _constants(by_kind[NetworkConstants]) if NetworkConstants in by_kind else NO_NETWORK
    )
    if TorusLibrary in by_kind:
        torus = _constants(by_kind[TorusLibrary])
        return torus_paths(torus, network, result.collective, size, group)[path]
    if path[1] == "direct":
        parts = kernel_paths(own, size, group)[path]
    elif GenericLibrary in by_kind:
        generic = _constants(by_kind[GenericLibrary])
        parts = generic_paths(generic, network, result.collective, size, group)[path]
    else:
        ring = _constants(by_kind[RingLibrary])
        for name, constant in vars(own).items() if own else ():
            if name.startswith(_FALLBACK) and constant is not None:
                setattr(ring, name.removeprefix(_FALLBACK), constant)
        parts = ring_library_paths(ring, network, result.collective, size, group)[path]
    if result.mode == "eager":
        parts = eager(own, parts, size)
    if FrameworkLibrary in by_kind:
        framework = _constants(by_kind[FrameworkLibrary])
        parts = launched(framework, result.collective, parts, size, group)
    return parts


def collective_receipt(result: CollectiveTime, name: str, title: str) -> Receipt:
    """Return the receipt of a collective's time, near a switch the mean over several paths.

    The paths that hardly count are one term. For one cell only.
    """
    if result.group.ranks == 1:
        return Receipt(name, title, 0.0, "s", "0", words="one GPU sends nothing")
    total_weight = sum(map(float, result.weights.values()))
    times = {path: float(total(result.paths[path])) for path, w in result.weights.items() if w}
    shares = {path: float(result.weights[path]) / total_weight for path in times}
    main = [path for path, share in shares.items() if share > _NEGLIGIBLE]
    others_s = sum(shares[path] * times[path] for path in times if path not in main)
    time_s: Any = 0.0
    for path in main:
        parts = _parts(result, path).items()
        seconds = total({part: step(identifiers([part])[0], value) for part, value in parts})
        if shares[path] < 1 - _ROUNDING:
            (label,) = identifiers([" ".join(path)])
            share = named(f"{label}_share", shares[path], "share", "near a switch of the choice")
            seconds = share * step(label, seconds, meaning="the path alone")
        time_s = time_s + seconds
    if others_s > _ROUNDING * float(result.time_s / result.factor):
        time_s = time_s + named("others", others_s, "s", "paths that hardly count")
    if result.factor != 1:
        words = "residual of the formula, measured on this machine"
        time_s = named("measured", float(result.factor), "", words) * time_s
    return receipt(time_s, name, title, "s", constants=result.calibrations)


def bound_receipt(result: CollectiveTime, name: str, title: str) -> Receipt:
    """Return the receipt of the time that the path which runs cannot beat."""
    size, group = _traced("size", result.size_bytes), _group(result.group)
    in_switch = result.algorithm in IN_SWITCH
    bound = wire_bound_s(result.collective, size, group, in_switch=in_switch)
    return receipt(bound, name, title, "s")


def multimem_receipt(
    machine: Machine, ranks: int, size_bytes: float, name: str, title: str
) -> Receipt:
    """Return the receipt of an all-reduce by multimem instructions."""
    used = multimem_calibrations(machine)
    groups = map(_group, multimem_groups(machine, ranks))
    engine, nccl = map(_constants, used)
    seconds = multimem_s(engine, nccl, _traced("size", size_bytes), *groups)
    return receipt(seconds, name, title, "s", constants=used)


def dispatch_receipts(result: DispatchTime) -> list[Receipt]:
    """Return the receipts of the streams of dispatch or combine, then of the parts of its time.

    For one cell only; an all-to-all has its own (`path_receipts`).
    """
    if result.resolved is None or result.group.ranks == 1:
        return []
    streams, parts = _dispatch_parts(result)
    return [
        *receipts({name: value for name, value in streams.items() if value}, "s"),
        *receipts(parts, "s"),
    ]


def dispatch_receipt(result: DispatchTime, name: str, title: str) -> Receipt:
    """Return the receipt of the whole time of dispatch or combine. For one cell only."""
    if result.group.ranks == 1:
        return Receipt(name, title, 0.0, "s", "0", words="one GPU sends nothing")
    if result.exchange is not None:
        return collective_receipt(result.exchange, name, title)
    _, parts = _dispatch_parts(result)
    whole = total({part: step(identifiers([part])[0], value) for part, value in parts.items()})
    return receipt(whole, name, title, "s", constants=(result.resolved,))


def _dispatch_parts(result: DispatchTime) -> tuple[Parts, Parts]:
    """Return the streams and the parts of the time of a dispatch kernel as traced numbers."""
    used = result.resolved
    assert used is not None  # noqa: S101
    source = f"{used.kernel.name}: {used.source}"
    constants: Any = SimpleNamespace(
        **{
            name: None if value is None else _traced(name, value, source)
            for name, value in vars(used.constants).items()
        }
    )
    sent = result.traffic._replace(
        **{
            name: _traced(name, getattr(result.traffic, name))
            for name in ("row_bytes", "copies", "inside_bytes", "network_bytes")
            if getattr(result.traffic, name)
        }
    )
    tokens, experts, sms = (
        _traced(name, getattr(result, name)) for name in ("tokens", "experts", "sms")
    )
    traced = used._replace(constants=constants)
    return kernel_times(traced, sent, _group(result.group), tokens, experts, sms, result.mode)


def _traced(name: str, value: Any, source: str = "") -> Traced:
    """Return a named number, with the unit and the symbol that its name tells."""
    unit, symbol = "", name
    if name.endswith("_bytes_per_s"):
        unit, symbol = "bytes/s", name.removesuffix("_bytes_per_s") + "_rate"
    elif name in _RATES:
        unit = "bytes/s"
    elif name in _SENT_NAMES:
        unit = SENT
    elif name == "size" or name.endswith("_bytes"):
        unit = "bytes"
    elif name.endswith("_s"):
        unit, symbol = "s", name.removesuffix("_s")
    meaning = MEANINGS.get(name.removeprefix(_FALLBACK)) or OF_DISPATCH.get(name, "")
    return Traced.named(Term(name, float(value), unit, meaning, source, symbol))


def _constants(calibration: Calibration) -> Any:
    """Return constants as named numbers; None where a library has no such path."""
    constants, source = calibration.constants, f"{calibration.title}: {calibration.source()}"
    values = {field.name: getattr(constants, field.name) for field in fields(constants)}
    return SimpleNamespace(
        **{
            name: None if value is None else _traced(name, value, source)
            for name, value in values.items()
        }
    )


def _group(group: Group) -> Any:
    """Return what the formulas of paths ask of a group, as named numbers."""
    inside = group.domains == 1
    tier = group.tier
    ranks = _traced("ranks", group.ranks)
    most = fewest = ranks if inside else _traced("ranks_per_domain", group.ranks_per_domain)
    if group.fewest_per_domain != group.ranks_per_domain:
        fewest = _traced("fewest_per_domain", group.fewest_per_domain)
    name = "bisection" if group.tier.kind == "torus" else "link"
    return SimpleNamespace(
        cluster=group.cluster,
        ranks=ranks,
        nodes=group.nodes,
        domains=1 if inside else _traced("domains", group.domains),
        ranks_per_domain=most,
        fewest_per_domain=fewest,
        link_bytes_per_s=_traced("link", group.link_bytes_per_s),
        pair_bytes_per_s=_traced("pair", group.pair_bytes_per_s),
        port_bytes_per_s=_traced("port", group.port_bytes_per_s),
        domain_port_bytes_per_s=_traced("ports", group.domain_port_bytes_per_s),
        exchange_bytes_per_s=_traced(name, group.exchange_bytes_per_s),
        torus=SimpleNamespace(
            hops=_traced("hops", group.torus.hops) if group.tier.kind == "torus" else 0
        ),
        has_nvlink=group.has_nvlink,
        beyond_leaf=group.beyond_leaf,
        tier=SimpleNamespace(
            bytes_per_s=_traced("links", tier.bytes_per_s),
            kind=tier.kind,
            gpus=tier.gpus,
            peer_gpus=tier.peer_gpus,
            in_switch_reduction=tier.in_switch_reduction,
        ),
    )


def _estimate(result: CollectiveTime, path: PathName, size: Traced) -> dict[str, Any]:
    """Return NCCL's estimate, where that is the prediction, as a latency and a rate."""
    latency = float(tuner_times(result.collective, _ALMOST_NOTHING, result.group)[path])
    rate = size.value / (float(total(result.paths[path])) - latency)
    parts = _traced("estimated_latency_s", latency), _traced("estimated_bytes_per_s", rate)
    return {"NCCL's estimate": parts[0] + size / parts[1]}

"""The paths of a collective in words and in formulas: what each part of their time is made of.

`FORMULAS` says for every path what the model computes, so that a prediction can be shown with its
numbers put in. The texts are expressions over the names of the fitted constants, of the group
(`size`, `ranks`, `steps` …) and of the parts before; a test evaluates each of them, as they are and
as printed, and holds them to what the model computes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.collectives.calibration import given
from shardcost.collectives.group import Group, most_heads
from shardcost.collectives.library_time import TUNER, CollectiveTime
from shardcost.collectives.paths import total
from shardcost.collectives.tuner import PathName, steps, tuner_times

ALGORITHMS: Final = {
    "ring": "each GPU passes blocks on to the next",
    "tree": "two binary trees over the domains, a chain inside each",
    "nvls": "the switch adds up and multicasts (NVLink SHARP)",
    "nvls_tree": "the switches add up, and a tree joins the domains",
    "p2p": "each GPU sends to each other one directly",
    "send": "each GPU sends to the next",
    "chain": "from GPU to GPU along a chain, in chunks",
    "one_shot": "each GPU reads all other buffers and adds them up itself",
    "two_shot": "each GPU adds up one share, then gathers the others'",
    "multicast": "each GPU has the switch add up one share and multicast it",
}
PROTOCOLS: Final = {
    "LL": "a flag in every 8 bytes: low latency, half of the rate",
    "LL128": "a flag in every 128 bytes: low latency, most of the rate",
    "Simple": "whole chunks behind a fence: high latency, full rate",
    "direct": "a kernel of the engine, reading and writing peers' memory",
}

# In braces stands what depends on the group: a rate as it is on the links that lead to the group
# (`linked`), on those to one other GPU (`paired`), or as left over PCIe when many share the host
# (`crowded`).
FORMULAS: Final[Mapping[PathName, Mapping[str, str]]] = {
    ("ring", "LL"): {
        "start": "ll_base_s",
        "hops": "steps * ll_hop_s",
        "spread over channels": "ll_spread_s * size / (size + ll_spread_bytes * ranks)",
        "wire": "size * steps / ranks / {crowded[ll_bytes_per_s]}",
        "local copy": "size / ranks / ll_copy_bytes_per_s",
    },
    ("ring", "LL128"): {
        "start": "ll128_base_s",
        "hops": "steps * ll128_hop_s",
        "wire": "size * steps / ranks / {linked[ll128_bytes_per_s]}",
        "local copy": "size / ranks / ll128_bytes_per_s",
    },
    ("ring", "Simple"): {
        "start": "simple_base_s",
        "hops": "steps * simple_hop_s",
        "wire": "size * steps / ranks / {crowded[simple_bytes_per_s]}",
        "local copy": "size / ranks / simple_copy_bytes_per_s",
        "filling the pipeline": "fill * sqrt((start + hops) * (wire + local_copy))",
    },
    ("nvls", "Simple"): {
        "start": "nvls_small_base_s",
        "wire": "min(size / nvls_small_bytes_per_s,"
        " max(0, nvls_base_s - nvls_small_base_s) + size / nvls_bytes_per_s)",
        "filling more heads": "min(max(0, ranks / heads - 1) * nvls_base_s, wire)",
    },
    ("p2p", "LL"): {
        "start": "p2p_ll_base_s",
        "hops": "steps * p2p_hop_s",
        "wire": "size / ranks * max(1 / p2p_ll_bytes_per_s, 2 * steps / link)",
    },
    ("p2p", "Simple"): {
        "start": "p2p_base_s",
        "hops": "steps * p2p_hop_s",
        "wire": "size * steps / ranks / {crowded[p2p_bytes_per_s]}",
        "local copy": "size / ranks / simple_copy_bytes_per_s",
        "filling the pipeline": "fill * sqrt((start + hops) * (wire + local_copy))",
    },
    ("send", "LL"): {
        "start": "p2p_ll_base_s",
        "hops": "p2p_hop_s",
        "wire": "size / min(p2p_ll_bytes_per_s, pair / 2)",
    },
    ("send", "Simple"): {
        "start": "p2p_base_s",
        "hops": "p2p_hop_s",
        "wire": "size / {paired[p2p_bytes_per_s]}",
        "filling the pipeline": "fill * sqrt((start + hops) * wire)",
    },
    ("chain", "LL"): {
        "start": "ll_base_s",
        "hops": "steps * ll_hop_s",
        "wire": "size / {crowded[ll_bytes_per_s]}",
    },
    ("chain", "Simple"): {
        "start": "simple_base_s",
        "hops": "steps * simple_hop_s",
        "wire": "size / {crowded[simple_bytes_per_s]}",
        "filling the pipeline": "fill * sqrt((start + hops) * wire)",
    },
    ("one_shot", "direct"): {
        "start": "one_shot_base_s",
        "peers": "(ranks - 1) * one_shot_hop_s",
        "wire": "size * sqrt("
        "(ranks - 1) / {linked[one_shot_bytes_per_s]}"
        " * (ranks - 1) / {linked[one_shot_bytes_per_s]}"
        " + 1 / one_shot_kernel_bytes_per_s / one_shot_kernel_bytes_per_s)",
    },
    ("two_shot", "direct"): {
        "start": "two_shot_base_s",
        "wire": "size * steps / ranks / {linked[two_shot_bytes_per_s]}",
        "waiting at barriers": "max(0, two_shot_floor_s + (ranks - 1) * two_shot_floor_hop_s"
        " - start - wire)",
    },
    ("multicast", "direct"): {
        "start": "multicast_base_s",
        "wire": "size * (1 + 1 / ranks) / multicast_bytes_per_s",
    },
}
"""What each part of each path is, for a group inside one domain."""

ACROSS: Final[Mapping[PathName, Mapping[str, str]]] = {
    ("ring", "LL"): {
        "hops": "(steps - crossings) * ll_hop_s + crossings * ll_latency_s",
        "wire": "size * steps / ranks"
        " / min({crowded[ll_bytes_per_s]}, network_ll_bytes_per_s, ports)",
    },
    ("ring", "LL128"): {
        "hops": "(steps - crossings) * ll128_hop_s + crossings * ll128_latency_s",
        "wire": "size * steps / ranks / min({linked[ll128_bytes_per_s]}, efficiency * ports)",
    },
    ("ring", "Simple"): {
        "hops": "(steps - crossings) * simple_hop_s + crossings * latency_s",
        "wire": "size * steps / ranks / min({crowded[simple_bytes_per_s]}, efficiency * ports)",
        "waiting for the network": "max(0, crossings * (ll128_latency_s - latency_s) - wire)",
    },
    ("tree", "LL"): {
        "start": "ll_base_s",
        "hops": "2 * (ranks_per_domain - 1) * ll_hop_s + 2 * levels * ll_latency_s",
        "wire": "size * max(2 / {crowded[ll_bytes_per_s]},"
        " 2 * (domains - 1) / domains / min(network_ll_bytes_per_s, ports))",
    },
    ("tree", "LL128"): {
        "start": "ll128_base_s",
        "hops": "2 * (ranks_per_domain - 1) * ll128_hop_s + 2 * levels * ll128_latency_s",
        "wire": "size * max(2 / {linked[ll128_bytes_per_s]},"
        " 2 * (domains - 1) / domains / (efficiency * ports))",
    },
    ("tree", "Simple"): {
        "start": "simple_base_s",
        "hops": "2 * (ranks_per_domain - 1) * simple_hop_s + 2 * levels * latency_s",
        "wire": "size * max(2 / {crowded[simple_bytes_per_s]},"
        " 2 * (domains - 1) / domains / (efficiency * ports))",
        "filling the pipeline": "fill * sqrt((start + hops) * wire)",
        "waiting for the network": "max(0, 2 * levels * (ll128_latency_s - latency_s) - wire)",
    },
    ("nvls_tree", "Simple"): {
        "start": "nvls_small_base_s",
        "hops": "2 * levels * latency_s",
        "wire": "max(min(size / nvls_small_bytes_per_s,"
        " max(0, nvls_base_s - nvls_small_base_s) + size / nvls_bytes_per_s),"
        " size * 2 * (domains - 1) / domains / (efficiency * ports))",
        "filling more heads": "2 * levels"
        " * min(max(0, ranks_per_domain / heads - 1) * latency_s, wire)",
        "filling the pipeline": "fill * sqrt((start + hops) * (wire + filling_more_heads))",
        "waiting for the network": "max(0, 2 * levels * (ll128_latency_s - latency_s) - wire)",
    },
    ("p2p", "LL"): {
        "hops": "steps * p2p_hop_s + 2 * ll_latency_s",
        "wire": "size / ranks * (max(1 / p2p_ll_bytes_per_s, 2 * (ranks_per_domain - 1) / link)"
        " + (ranks - ranks_per_domain) * ranks_per_domain / min(network_ll_bytes_per_s, ports))",
    },
    ("p2p", "Simple"): {
        "hops": "steps * p2p_hop_s + 2 * latency_s",
        "wire": "size / ranks * ((ranks_per_domain - 1) / {crowded[p2p_bytes_per_s]}"
        " + (ranks - ranks_per_domain) / (efficiency * port))",
        "waiting for the network": "max(0, 2 * (ll128_latency_s - latency_s) - wire)",
    },
    ("send", "LL"): {
        "hops": "p2p_hop_s + 2 * ll_latency_s",
        "wire": "size / min(p2p_ll_bytes_per_s, pair / 2,"
        " min(network_ll_bytes_per_s, ports) / ranks_per_domain)",
    },
    ("send", "Simple"): {
        "hops": "p2p_hop_s + 2 * latency_s",
        "wire": "size / min({paired[p2p_bytes_per_s]}, efficiency * port)",
        "waiting for the network": "max(0, 2 * (ll128_latency_s - latency_s) - wire)",
    },
    ("chain", "LL"): {
        "hops": "(steps - crossings) * ll_hop_s + crossings * ll_latency_s",
        "wire": "size / min({crowded[ll_bytes_per_s]}, network_ll_bytes_per_s, ports)",
    },
    ("chain", "Simple"): {
        "hops": "(steps - crossings) * simple_hop_s + crossings * latency_s",
        "wire": "size / min({crowded[simple_bytes_per_s]}, efficiency * ports)",
        "waiting for the network": "max(0, crossings * (ll128_latency_s - latency_s) - wire)",
    },
}
"""For a group that spans several domains: the parts that differ, and paths that only run there."""

OF_ANY_PATH: Final = {
    "gap between kernels": "eager_gap_s",
    "copy of the input": "size / eager_copy_bytes_per_s",
    "waiting for the launch": "max(0, eager_launch_s - ({before}))",
    "NCCL's estimate": "estimated_latency_s + size / estimated_bytes_per_s",
}
"""Parts that any path may have: launched by the host, or as NCCL itself estimates it."""

FACTS: Final = {
    "size": "the buffer, as nccl-tests counts it",
    "ranks": "GPUs",
    "steps": "sends of each GPU: 2 (ranks - 1) for all_reduce, else ranks - 1",
    "domains": "nodes or racks inside which GPUs have links of their own",
    "crossings": "of them over the network: 2 (domains - 1) for all_reduce, else domains - 1",
    "levels": "of the tree over the domains: log2, rounded up",
    "ranks_per_domain": "GPUs that share one domain",
    "heads": "GPUs of a domain, at most, that send into the network at once",
    "link": "a GPU's links to the group, nominal, one way",
    "linked": "share of a GPU's links that lead to the group",
    "pair": "a GPU's links to one other, nominal, one way",
    "paired": "share of a GPU's links that lead to one other",
    "port": "a GPU's share of the network ports, nominal",
    "ports": "the network ports that a domain sends through, nominal",
    "estimated_latency_s": "NCCL's estimate for an empty buffer",
    "estimated_bytes_per_s": "at which NCCL's estimate grows from there",
}
"""What the formulas take from the question rather than from a fit, in words."""

FITTED: Final = {
    "nvls_small_base_s": "with small chunks, which start sooner and stream slower",
    "nvls_base_s": "with large chunks, which start later and stream faster",
    "ll_spread_bytes": "bytes per GPU at which half of ll_spread is paid",
    "fill": "what the pipeline cannot hide; 0 if it hides all",
    "ll_latency_s": "one crossing of the network",
    "ll128_latency_s": "one crossing of the network",
    "latency_s": "one crossing of the network",
    "network_ll_bytes_per_s": "what LL gets through the network",
    "efficiency": "share of the ports' rate that is reached",
    "ll_crowd": "what is left of the rate when more than two GPUs share the host",
    "ll_socket": "what is left of that when they sit on both sockets",
    "crowd": "what is left of the rate when more than two GPUs share the host",
    "socket": "what is left of that when they sit on both sockets",
}
"""What those fitted constants are whose names do not say it."""

_CROWDED: Final = {
    "ll_bytes_per_s": ("ll_crowd", "ll_socket"),
    "simple_bytes_per_s": ("crowd", "socket"),
    "p2p_bytes_per_s": ("crowd", "socket"),
}
"""The constants that say what is left of a rate over PCIe."""

_NAME: Final = re.compile(r"[a-z_][a-z_0-9]*")
_NOMINAL_RATES: Final = frozenset({"link", "pair", "port", "ports"})
_FALLBACK: Final = "fallback_"
"""Begins an engine's own name for a constant of the library that it falls back to."""
_A_MOMENT: Final = 1e-9
"""Bytes of a buffer that is as good as empty."""


class Part(NamedTuple):
    """One part of a time: its formula in symbols and in numbers, and what it comes to."""

    name: str
    formula: str
    numbers: str
    time_s: float


def parts(result: CollectiveTime, path: PathName | None = None) -> list[Part]:
    """Return a path's parts with their formulas; of the one that runs if none is named."""
    if result.group.ranks == 1:
        return []
    path = path or (result.algorithm, result.protocol)
    symbols = _symbols(result, path)
    own = {_identifier(name): float(value) for name, value in result.paths[path].items()}
    names = {name: symbol(name) for name in symbols}
    numbers = {name: with_unit(name, value) for name, value in symbols.items()} | {
        name: with_unit("_s", value) for name, value in own.items()
    }
    return [
        Part(name, _put_in(text, names), _put_in(text, numbers), float(result.paths[path][name]))
        for name, text in formulas(result, path).items()
    ]


def formulas(result: CollectiveTime, path: PathName) -> dict[str, str]:
    """Return each part of a path as an expression over names, for the group at hand."""
    across = ACROSS.get(path, {}) if crosses(result.group) else {}
    texts = {**FORMULAS.get(path, {}), **across, **OF_ANY_PATH}
    rates = _rates(result)
    found: dict[str, str] = {}
    for part in result.paths[path]:
        before = " + ".join(_identifier(name) for name in found)
        found[part] = texts[part].format(before=before, **rates)
    return found


def symbols_used(result: CollectiveTime, path: PathName) -> dict[str, float]:
    """Return the names in a path's formulas that are not parts themselves, with their values."""
    known = _symbols(result, path)
    written = " ".join(formulas(result, path).values())
    return {name: known[name] for name in dict.fromkeys(_NAME.findall(written)) if name in known}


def crosses(group: Group) -> bool:
    """Return whether a group spans several domains, and so needs the network."""
    return bool(np.any(group.domains > 1))


def _rates(result: CollectiveTime) -> dict[str, dict[str, str]]:
    """Return how the rates in a formula's braces are written for the group at hand."""
    constants, group = _constants(result), result.group
    rates = [name for name in constants if name.endswith("_bytes_per_s")]
    linked = {rate: _times(rate, ["linked"] if _linked(group) < 1 else []) for rate in rates}
    paired = {rate: _times(rate, ["paired"] if _paired(group) < 1 else []) for rate in rates}
    left = {rate: _left_over_pcie(rate, group, constants) for rate in _CROWDED}
    crowded = {rate: _times(rate, shares) for rate, shares in left.items() if shares}
    return {"linked": linked, "crowded": linked | crowded, "paired": paired | crowded}


def _times(rate: str, shares: list[str]) -> str:
    """Return a rate as a formula writes it: ``(rate * share)``, or the rate alone."""
    return f"({' * '.join([rate, *shares])})" if shares else rate


def _left_over_pcie(rate: str, group: Group, constants: Mapping[str, float]) -> list[str]:
    """Return the names of the shares that are left of a rate when many GPUs share the host."""
    both = [
        _FALLBACK + share if _FALLBACK + share in constants else share for share in _CROWDED[rate]
    ]
    if both[0] not in constants or group.ranks_per_domain <= 2:
        return []
    return both if group.ranks_per_domain > group.tier.gpus / 2 else both[:1]


def _linked(group: Group) -> float:
    return float(group.link_bytes_per_s / group.tier.bytes_per_s)


def _paired(group: Group) -> float:
    return float(group.pair_bytes_per_s / group.tier.bytes_per_s)


def _symbols(result: CollectiveTime, path: PathName) -> dict[str, float]:
    """Return every name that a formula may hold, but for the parts before: group and constants."""
    group = result.group
    facts = {
        "size": result.size_bytes,
        "ranks": group.ranks,
        "steps": steps(result.collective, group.ranks),
        "domains": group.domains,
        "crossings": steps(result.collective, group.domains),
        "levels": np.ceil(np.log2(group.domains)),
        "ranks_per_domain": group.ranks_per_domain,
        "heads": most_heads(),
        "link": group.link_bytes_per_s,
        "linked": _linked(group),
        "pair": group.pair_bytes_per_s,
        "paired": _paired(group),
        "port": group.port_bytes_per_s,
        "ports": group.domain_port_bytes_per_s,
        **_estimate_taken_apart(result, path),
    }
    return {name: float(value) for name, value in {**facts, **_constants(result)}.items()}


def _estimate_taken_apart(result: CollectiveTime, path: PathName) -> dict[str, float]:
    """Return the latency and the rate in NCCL's estimate, where that is the prediction."""
    if result.library != TUNER:
        return {}
    latency = float(tuner_times(result.collective, _A_MOMENT, result.group)[path])
    stream = float(total(result.paths[path])) - latency
    return {
        "estimated_latency_s": latency,
        "estimated_bytes_per_s": float(result.size_bytes) / stream,
    }


def _constants(result: CollectiveTime) -> dict[str, float]:
    found: dict[str, float] = {}
    for calibration in result.calibrations:
        found |= given(calibration.constants)
    return found


def _identifier(part: str) -> str:
    """Return a part's name as a formula writes it."""
    return part.replace(" ", "_")


def symbol(name: str) -> str:
    """Return a name as it is shown, without the unit that its value carries."""
    if name.endswith("_bytes_per_s"):
        return name.removesuffix("_bytes_per_s") + "_rate"
    return name.removesuffix("_s")


def _put_in(expression: str, texts: Mapping[str, str]) -> str:
    """Return an expression with every name replaced by its text, for people to read."""
    return _NAME.sub(lambda name: texts.get(name[0], name[0]), expression).replace("*", "x")


def meaning(name: str) -> str:
    """Return what a symbol stands for, in words; nothing if its name says it."""
    return {**FACTS, **FITTED}.get(name.removeprefix(_FALLBACK), "")


def with_unit(name: str, value: float) -> str:
    """Return a value with the unit that its name tells, precise enough to compute with."""
    if name.endswith("_bytes_per_s") or name in _NOMINAL_RATES:
        return f"{digits(value / 1e9)} GB/s"
    if name == "size" or name.endswith("_bytes"):
        return exact_bytes(value)
    return f"{digits(value * 1e6)} us" if name.endswith("_s") else digits(value)


def exact_bytes(size_bytes: float) -> str:
    """Return a size in the largest binary unit that holds it in whole numbers."""
    size = number(size_bytes)
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def number(value: Any) -> int | float:
    """Return a whole number as int."""
    return int(value) if float(value).is_integer() else float(value)


def digits(value: float) -> str:
    """Return five significant digits, without an exponent."""
    if abs(value) >= 1e5:
        return f"{value:.0f}"
    text = f"{value:.5g}"
    return f"{value:.10f}".rstrip("0").rstrip(".") if "e" in text else text

"""The report on a collective: how long it takes, what runs and why, and what else there is.

What each part of a path's time is made of stands here as text (`FORMULAS`), so that a prediction
can be shown with its numbers put in. The texts are expressions over the names of the fitted
constants, of the group (`size`, `ranks`, `steps` …) and of the parts before; a test evaluates each
of them, as they are and as printed, and holds them to what the model computes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from shardcost.cluster import Link, Source
from shardcost.collectives import direct
from shardcost.collectives.calibration import Calibration, given
from shardcost.collectives.direct import DirectLibrary
from shardcost.collectives.group import MOST_HEADS, Group
from shardcost.collectives.paths import total
from shardcost.collectives.silicon import TUNER, CollectiveTime, nominal_rate
from shardcost.collectives.tuner import COLLECTIVES as TUNED
from shardcost.collectives.tuner import Path_, steps, tables, tuner_times
from shardcost.report.describe import as_data as noun_as_data
from shardcost.report.text import heading, paragraph, table
from shardcost.units import format_bytes, format_rate, format_time

ALGORITHMS: Final = {
    "ring": "each GPU passes blocks on to the next",
    "tree": "two binary trees over the domains, a chain inside each",
    "nvls": "the switch adds up and multicasts (NVLink SHARP)",
    "nvls_tree": "the switches add up, and a tree joins the domains",
    "p2p": "each GPU sends to each other one directly",
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

# In braces stands what depends on the group: a rate over PCIe that is left when many share the
# host, and which chunks the switch is fed with.
FORMULAS: Final[Mapping[Path_, Mapping[str, str]]] = {
    ("ring", "LL"): {
        "start": "ll_base_s",
        "hops": "steps * ll_hop_s",
        "spread over channels": "ll_spread_s * size / (size + ll_spread_bytes * ranks)",
        "wire": "size * steps / ranks / {ll_bytes_per_s}",
        "local copy": "size / ranks / ll_copy_bytes_per_s",
    },
    ("ring", "LL128"): {
        "start": "ll128_base_s",
        "hops": "steps * ll128_hop_s",
        "wire": "size * steps / ranks / ll128_bytes_per_s",
        "local copy": "size / ranks / ll128_bytes_per_s",
    },
    ("ring", "Simple"): {
        "start": "simple_base_s",
        "hops": "steps * simple_hop_s",
        "wire": "size * steps / ranks / {simple_bytes_per_s}",
        "local copy": "size / ranks / simple_copy_bytes_per_s",
        "filling the pipeline": "fill * sqrt((start + hops) * (wire + local_copy))",
    },
    ("tree", "LL"): {
        "start": "ll_base_s",
        "hops": "2 * (ranks_per_domain - 1) * ll_hop_s + 2 * levels * ll_latency_s",
        "wire": "size * max(2 / ll_bytes_per_s,"
        " 2 * (domains - 1) / domains / (ll_efficiency * ports))",
        "filling the pipeline": "0 * sqrt((start + hops) * wire)",
    },
    ("tree", "LL128"): {
        "start": "ll128_base_s",
        "hops": "2 * (ranks_per_domain - 1) * ll128_hop_s + 2 * levels * ll128_latency_s",
        "wire": "size * max(2 / ll128_bytes_per_s,"
        " 2 * (domains - 1) / domains / (efficiency * ports))",
        "filling the pipeline": "0 * sqrt((start + hops) * wire)",
    },
    ("tree", "Simple"): {
        "start": "simple_base_s",
        "hops": "2 * (ranks_per_domain - 1) * simple_hop_s + 2 * levels * latency_s",
        "wire": "size * max(2 / simple_bytes_per_s,"
        " 2 * (domains - 1) / domains / (efficiency * ports))",
        "filling the pipeline": "fill * sqrt((start + hops) * wire)",
    },
    ("nvls", "Simple"): {
        "start": "{nvls}_base_s",
        "wire": "size / {nvls}_bytes_per_s",
    },
    ("nvls_tree", "Simple"): {
        "start": "{nvls}_base_s",
        "hops": "2 * levels * max(1, ranks_per_domain / heads) * latency_s",
        "wire": "size * max(1 / {nvls}_bytes_per_s,"
        " 2 * (domains - 1) / domains / (efficiency * ports))",
        "filling the pipeline": "fill * sqrt((start + hops) * wire)",
    },
    ("p2p", "LL"): {
        "start": "p2p_ll_base_s",
        "hops": "steps * p2p_hop_s",
        "wire": "size / ranks / p2p_ll_bytes_per_s",
    },
    ("p2p", "Simple"): {
        "start": "p2p_base_s",
        "hops": "steps * p2p_hop_s",
        "wire": "size * steps / ranks / {p2p_bytes_per_s}",
        "local copy": "size / ranks / simple_copy_bytes_per_s",
        "filling the pipeline": "fill * sqrt((start + hops) * (wire + local_copy))",
    },
    ("chain", "LL"): {
        "start": "ll_base_s",
        "hops": "steps * ll_hop_s",
        "wire": "size / {ll_bytes_per_s}",
    },
    ("chain", "Simple"): {
        "start": "simple_base_s",
        "hops": "steps * simple_hop_s",
        "wire": "size / {simple_bytes_per_s}",
        "filling the pipeline": "fill * sqrt((start + hops) * wire)",
    },
    ("one_shot", "direct"): {
        "start": "one_shot_base_s",
        "peers": "(ranks - 1) * one_shot_hop_s",
        "wire": "size * (ranks - 1) / one_shot_bytes_per_s",
    },
    ("two_shot", "direct"): {
        "start": "two_shot_base_s",
        "wire": "size * steps / ranks / two_shot_bytes_per_s",
        "waiting at barriers": "max(0, two_shot_floor_s + (ranks - 1) * two_shot_floor_hop_s"
        " - start - wire)",
    },
    ("multicast", "direct"): {
        "start": "multicast_base_s",
        "wire": "size / multicast_bytes_per_s",
    },
}
"""What each part of each path is, for a group inside one domain."""

ACROSS: Final[Mapping[Path_, Mapping[str, str]]] = {
    ("ring", "LL"): {
        "hops": "(steps - crossings) * ll_hop_s + crossings * ll_latency_s",
        "wire": "size * steps / ranks / min({ll_bytes_per_s}, ll_efficiency * ports)",
    },
    ("ring", "LL128"): {
        "hops": "(steps - crossings) * ll128_hop_s + crossings * ll128_latency_s",
        "wire": "size * steps / ranks / min(ll128_bytes_per_s, efficiency * ports)",
    },
    ("ring", "Simple"): {
        "hops": "(steps - crossings) * simple_hop_s + crossings * latency_s",
        "wire": "size * steps / ranks / min({simple_bytes_per_s}, efficiency * ports)",
    },
    ("p2p", "LL"): {
        "hops": "steps * p2p_hop_s + ll_latency_s",
        "wire": "size / ranks * (1 / p2p_ll_bytes_per_s"
        " + (ranks - ranks_per_domain) / (ll_efficiency * port))",
    },
    ("p2p", "Simple"): {
        "hops": "steps * p2p_hop_s + latency_s",
        "wire": "size / ranks * ((ranks_per_domain - 1) / {p2p_bytes_per_s}"
        " + (ranks - ranks_per_domain) / (efficiency * port))",
    },
    ("chain", "LL"): {
        "hops": "(steps - crossings) * ll_hop_s + crossings * ll_latency_s",
        "wire": "size / min({ll_bytes_per_s}, ll_efficiency * ports)",
    },
    ("chain", "Simple"): {
        "hops": "(steps - crossings) * simple_hop_s + crossings * latency_s",
        "wire": "size / min({simple_bytes_per_s}, efficiency * ports)",
    },
}
"""The parts that differ for a group that spans several domains."""

OF_ANY_PATH: Final = {
    "gap between kernels": "eager_gap_s",
    "copy of the input": "size / eager_copy_bytes_per_s",
    "waiting for the launch": "max(0, eager_launch_s - ({before}))",
    "NCCL's estimate": "estimated_latency_s + size / estimated_bytes_per_s",
}
"""Parts that any path may have: launched by the host, or as NCCL itself estimates it."""

_CROWDED: Final = {
    "ll_bytes_per_s": ("ll_crowd", "ll_socket"),
    "simple_bytes_per_s": ("crowd", "socket"),
    "p2p_bytes_per_s": ("crowd", "socket"),
}
"""The constants that say what is left of a rate over PCIe."""

_FACTS: Final = {
    "size": "the buffer, as nccl-tests counts it",
    "ranks": "GPUs",
    "steps": "each GPU sends: 2 (ranks - 1) for all_reduce, else ranks - 1",
    "domains": "groups of GPUs with links of their own",
    "crossings": "steps that cross the network: as steps, of domains",
    "levels": "of the tree over the domains: log2, rounded up",
    "ranks_per_domain": "GPUs that share one domain",
    "heads": "GPUs of a domain, at most, that send into the network at once",
    "port": "a GPU's share of the network ports, nominal",
    "ports": "of all GPUs of a domain that send into the network, nominal",
    "estimated_latency_s": "NCCL's estimate for an empty buffer",
    "estimated_bytes_per_s": "at which NCCL's estimate grows from there",
}
"""What the formulas take from the question rather than from a fit, in words."""

_NAME: Final = re.compile(r"[a-z_][a-z_0-9]*")
_BEFORE_UNIT: Final = re.compile(r"(?<=[0-9]) (?=(?:us|GB/s|B|KiB|MiB|GiB)\b)")
_GLUE: Final = "\N{NO-BREAK SPACE}"
_NOTHING_TO_SEND: Final = "one GPU by itself sends nothing"
_NEGLIGIBLE: Final = 1e-3
"""Weights below this are not worth a line."""
_ANY_SIZE: Final = 2.0**59
_A_MOMENT: Final = 1e-9
"""Bytes of a buffer that is as good as empty."""


class Part(NamedTuple):
    """One part of a time: its formula in symbols and in numbers, and what it comes to."""

    name: str
    formula: str
    numbers: str
    time_s: float


class Alternative(NamedTuple):
    """A path that can run, what it takes, and what the library knows of it."""

    path: Path_
    time_s: float
    weight: float
    """How much it counts in the prediction, of 1."""
    estimate_s: float | None
    """By NCCL's own model, where NCCL chooses by it."""
    limit_bytes: float | None
    """Up to which size the engine runs it, where it says so; infinite for any size."""


def title(result: CollectiveTime, subject: str) -> str:
    """Return what was asked, such as ``all_reduce of 64 MiB over 8 x h100_sxm, nccl``."""
    group = result.group
    nodes = f" on {group.nodes} nodes" if group.nodes > 1 else ""
    network = f" ({group.cluster.network.name})" if crosses(group) else ""  # type: ignore[union-attr]
    mode = ", eager" if result.mode == "eager" else ""
    place = f"{group.ranks} x {group.cluster.name}{nodes}{network}"
    return f"{result.collective} of {subject} over {place}, {result.library}{mode}"


def as_text(result: CollectiveTime, *, explain: bool = False) -> str:
    """Return the report on one size for a terminal, with the arithmetic if asked."""
    sections = [
        heading(title(result, _exact_bytes(result.size_bytes))),
        table(("figure", "value", "meaning"), _figures(result), right="1"),
    ]
    if result.group.ranks > 1:
        sections += [_alternatives_table(result), *(_explanation(result) if explain else ())]
    remarks = _notes_as_text(result) + ([] if explain else _fits_as_text(result))
    return "\n\n".join([*sections, *(["\n".join(remarks)] if remarks else [])])


def as_data(result: CollectiveTime) -> dict[str, Any]:
    """Return the report on one size as plain data."""
    return {
        **_question(result),
        "size_bytes": _number(result.size_bytes),
        **_answer(result),
        "link": {**link(result.group)._asdict(), "source": link(result.group).source._asdict()},
        "alternatives": [_alternative_as_data(each) for each in alternatives(result)],
        "parts": {each.name: each.time_s for each in parts(result)},
        "formulas": [each._asdict() for each in parts(result)],
        "why": why(result),
        **_foundation(result),
    }


def sweep_as_text(result: CollectiveTime) -> str:
    """Return the report on many sizes for a terminal; says where the library switches paths."""
    rows = []
    previous = ""
    for each in _rows(result):
        path = f"{each['algorithm']} {each['protocol']}"
        rows.append(
            (
                _exact_bytes(each["size_bytes"]),
                format_time(each["time_s"]),
                path,
                *_rates_as_text(each),
                "<- switch" if previous not in {"", path} else "",
            )
        )
        previous = path
    head = ("size", "time", "path", "algbw", "busbw", "of link", "")
    return "\n\n".join(
        [
            heading(title(result, f"{rows[0][0]} to {rows[-1][0]}")),
            table(head, rows, right="01345"),
            "\n".join(_notes_as_text(result) + _fits_as_text(result)),
        ]
    )


def sweep_as_data(result: CollectiveTime) -> dict[str, Any]:
    """Return the report on many sizes as plain data."""
    return {**_question(result), "rows": _rows(result), **_foundation(result)}


def crosses(group: Group) -> bool:
    """Return whether a group spans several domains, and so needs the network."""
    return bool(np.any(group.domains > 1))


def link(group: Group) -> Link:
    """Return the slowest link on the way, at its nominal rate."""
    cluster, network = group.cluster, group.cluster.network
    rate = float(nominal_rate(group))
    unknown = Source("given by the caller")
    if network is not None and crosses(group) and rate < group.link_bytes_per_s:
        source = network.sources.get("nic_bytes_per_s", unknown)
        return Link(rate, f"network ports of {network.name}, per domain", source)
    source = cluster.sources.get("tiers.bytes_per_s", unknown)
    return Link(rate, f"{group.tier.kind} links of {cluster.name}, per GPU", source)


def alternatives(result: CollectiveTime) -> list[Alternative]:
    """Return every path that can run on the group, fastest first. For one cell only."""
    if result.group.ranks == 1:
        return []
    estimates = _estimates(result) if result.library != TUNER else {}
    limits = _limits(result)
    shares = weights(result)
    can_run = available(result)
    return [
        Alternative(
            path,
            time_s,
            shares[path],
            None if path not in estimates else float(estimates[path]),
            None if path not in limits else _limit(limits[path]),
        )
        for path, time_s in result.alternatives()
        if path in can_run
    ]


def available(result: CollectiveTime) -> list[Path_]:
    """Return the paths that can run on the group, whatever the size."""
    estimates, limits = _estimates(result), _limits(result)
    fits_kernels = result.group.has_nvlink and not crosses(result.group)

    def can_run(path: Path_) -> bool:
        if path[1] == "direct":
            return bool(np.any(limits.get(path, 0.0) > 0)) if limits else fits_kernels
        return not estimates or bool(np.any(np.isfinite(estimates.get(path, np.inf))))

    return [path for path in result.paths if can_run(path)]


def weights(result: CollectiveTime) -> dict[Path_, float]:
    """Return how much each path counts, of 1. For one cell only."""
    found = {path: float(each) for path, each in result.weights.items()}
    return {path: each / sum(found.values()) for path, each in found.items()}


def why(result: CollectiveTime) -> str:
    """Return by which rule the library chose the path that runs."""
    engine, _, version = result.library.partition("==")
    by_tuner = f"NCCL runs what its own model puts lowest ({tables()['source']})"
    by_speed = "the fastest path counts, since no rule of the library is known"
    if engine == TUNER:
        return by_tuner
    chosen = by_tuner if _estimates(result) else by_speed
    if result.collective != "all_reduce" or not isinstance(
        result.calibrations[0].constants, DirectLibrary
    ):
        return chosen
    if not _limits(result):
        return f"{engine} tunes its choice, so the fastest of its kernels and its fallback counts"
    since = direct.generation(engine, version or None)
    return (
        f"{engine} (as since {since}) runs each kernel up to the limit that its code states for"
        f" these GPUs; beyond the last, {chosen}"
    )


def parts(result: CollectiveTime, path: Path_ | None = None) -> list[Part]:
    """Return a path's parts with their formulas; of the one that runs if none is named."""
    if result.group.ranks == 1:
        return []
    path = path or (result.algorithm, result.protocol)
    symbols = _symbols(result, path)
    own = {_identifier(name): float(value) for name, value in result.paths[path].items()}
    names = {name: _symbol(name) for name in symbols}
    numbers = {name: _with_unit(name, value) for name, value in symbols.items()} | {
        name: _with_unit("_s", value) for name, value in own.items()
    }
    return [
        Part(name, _put_in(text, names), _put_in(text, numbers), float(result.paths[path][name]))
        for name, text in formulas(result, path).items()
    ]


def formulas(result: CollectiveTime, path: Path_) -> dict[str, str]:
    """Return each part of a path as an expression over names, for the group at hand."""
    across = ACROSS.get(path, {}) if crosses(result.group) else {}
    texts = {**FORMULAS.get(path, {}), **across, **OF_ANY_PATH}
    found: dict[str, str] = {}
    for part in result.paths[path]:
        before = " + ".join(_identifier(name) for name in found)
        found[part] = texts[part].format(before=before, **_fragments(result, path))
    return found


def symbols_used(result: CollectiveTime, path: Path_) -> dict[str, float]:
    """Return the names in a path's formulas that are not parts themselves, with their values."""
    known = _symbols(result, path)
    written = " ".join(formulas(result, path).values())
    return {name: known[name] for name in dict.fromkeys(_NAME.findall(written)) if name in known}


def _fragments(result: CollectiveTime, path: Path_) -> dict[str, str]:
    """Return what stands in a formula's braces: rates as shared over PCIe, chunks in the switch."""
    constants = _constants(result)
    group = result.group
    small = constants.get("nvls_small_base_s")
    chunks = "nvls_small" if float(result.paths[path].get("start", 0.0)) == small else "nvls"
    found = {"nvls": chunks}
    for rate, (crowd, socket) in _CROWDED.items():
        shares = []
        if _as_met(crowd, constants) in constants and group.ranks_per_domain > 2:
            shares = [crowd, socket] if group.ranks_per_domain > group.tier.gpus / 2 else [crowd]
        shares = [_as_met(name, constants) for name in shares]
        found[rate] = f"({' * '.join([rate, *shares])})" if shares else rate
    return found


def _as_met(share: str, constants: Mapping[str, float]) -> str:
    """Return an engine's own name for what is left of a rate, where it met another machine."""
    return f"fallback_{share}" if f"fallback_{share}" in constants else share


def _symbols(result: CollectiveTime, path: Path_) -> dict[str, float]:
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
        "heads": MOST_HEADS,
        "port": group.port_bytes_per_s,
        "ports": group.domain_port_bytes_per_s,
        **_estimate_taken_apart(result, path),
    }
    return {name: float(value) for name, value in {**facts, **_constants(result)}.items()}


def _estimate_taken_apart(result: CollectiveTime, path: Path_) -> dict[str, float]:
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


def _estimates(result: CollectiveTime) -> Mapping[Path_, Any]:
    """Return NCCL's estimate of each path, where NCCL chooses by them; else nothing."""
    by_tuner = result.library == TUNER or any(each.chooser == TUNER for each in result.calibrations)
    if not by_tuner or result.collective not in TUNED:
        return {}
    return tuner_times(result.collective, result.size_bytes, result.group)


def _limits(result: CollectiveTime) -> Mapping[Path_, Any]:
    """Return up to which size an engine runs each kernel, where its code says so."""
    engine, _, version = result.library.partition("==")
    if engine not in direct.ENGINES or result.collective != "all_reduce":
        return {}
    return direct.limits(engine, version or None, result.group) or {}


def _limit(limit: Any) -> float:
    return float("inf") if limit > _ANY_SIZE else float(limit)


def _question(result: CollectiveTime) -> dict[str, Any]:
    group = result.group
    return {
        "collective": result.collective,
        "system": group.cluster.name,
        "network": group.cluster.network.name if group.cluster.network else None,
        "gpus": int(group.ranks),
        "nodes": int(group.nodes),
        "domains": int(group.domains),
        "library": result.library,
        "mode": result.mode,
    }


def _answer(result: CollectiveTime) -> dict[str, Any]:
    """Return the time and the rates of one cell; one GPU by itself has no rates."""
    alone = result.group.ranks == 1
    return {
        "time_s": float(result.time_s),
        "algorithm": result.algorithm,
        "protocol": result.protocol,
        "algbw_bytes_per_s": None if alone else float(result.algbw_bytes_per_s),
        "busbw_bytes_per_s": None if alone else float(result.busbw_bytes_per_s),
        "link_share": None if alone else float(result.link_share),
    }


def _rows(result: CollectiveTime) -> list[dict[str, Any]]:
    """Return the answer of every cell of a sweep."""
    alone = result.group.ranks == 1
    nothing = [None] * len(result.size_bytes)
    columns = {
        "size_bytes": [_number(size) for size in result.size_bytes],
        "time_s": result.time_s.tolist(),
        "algorithm": result.algorithm.tolist(),
        "protocol": result.protocol.tolist(),
        "algbw_bytes_per_s": nothing if alone else result.algbw_bytes_per_s.tolist(),
        "busbw_bytes_per_s": nothing if alone else result.busbw_bytes_per_s.tolist(),
        "link_share": nothing if alone else result.link_share.tolist(),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _foundation(result: CollectiveTime) -> dict[str, Any]:
    return {
        "notes": notes(result),
        "calibrations": [
            noun_as_data(each)
            | {"constants": given(each.constants), "stated_by": str(each.source())}
            for each in result.calibrations
        ],
    }


def _alternative_as_data(each: Alternative) -> dict[str, Any]:
    limited = each.limit_bytes is not None and np.isfinite(each.limit_bytes)
    return {
        "algorithm": each.path[0],
        "protocol": each.path[1],
        "time_s": each.time_s,
        "weight": each.weight,
        "nccl_estimate_s": each.estimate_s,
        "limit_bytes": each.limit_bytes if limited else None,
    }


def notes(result: CollectiveTime) -> list[str]:
    """Return what to mind about a prediction."""
    if result.group.ranks == 1:
        return [_NOTHING_TO_SEND]
    beyond = np.any(result.link_share > 1)
    faster = "busbw counts as if a ring ran; in-switch reduction sends less and may exceed the link"
    return [*result.notes, *([faster] if beyond else [])]


def _figures(result: CollectiveTime) -> list[tuple[str, str, str]]:
    """Return the rows of the first table: each figure with its unit and what it means."""
    if result.group.ranks == 1:
        return [("time", format_time(result.time_s), _NOTHING_TO_SEND)]
    answer = _answer(result)
    algbw, busbw, share = _rates_as_text(answer)
    slowest = link(result.group)
    return [
        ("time", format_time(answer["time_s"]), _mixture_in_words(result)),
        ("algorithm", result.algorithm, ALGORITHMS[result.algorithm]),
        ("protocol", result.protocol, PROTOCOLS[result.protocol]),
        ("algbw", algbw, "size / time"),
        ("busbw", busbw, "what each link of a ring would carry in that time"),
        ("link", format_rate(slowest.bytes_per_s), f"{slowest.name}, one way, nominal"),
        ("share of link", share, "busbw / link"),
    ]


def _rates_as_text(answer: Mapping[str, Any]) -> tuple[str, str, str]:
    if answer["algbw_bytes_per_s"] is None:
        return "-", "-", "-"
    share = 100 * answer["link_share"]
    return (
        format_rate(answer["algbw_bytes_per_s"]),
        format_rate(answer["busbw_bytes_per_s"]),
        "< 0.1 %" if share < 0.1 else f"{share:.1f} %",
    )


def _mixture_in_words(result: CollectiveTime) -> str:
    counted = _counted_paths(result)
    if len(counted) == 1:
        by_host = result.mode == "eager"
        return f"per call, launched by the {'host' if by_host else 'device'} one after another"
    shares = ", ".join(f"{100 * each.weight:.1f} % {' '.join(each.path)}" for each in counted)
    return f"near a switch, so a mean: {shares}"


def _counted_paths(result: CollectiveTime) -> list[Alternative]:
    """Return the paths that count in a prediction, the heaviest first."""
    counted = [each for each in alternatives(result) if each.weight > _NEGLIGIBLE]
    return sorted(counted, key=lambda each: -each.weight)


def _alternatives_table(result: CollectiveTime) -> str:
    runs = (result.algorithm, result.protocol)
    own = float(total(result.paths[runs]))
    rows = [
        (
            " ".join(each.path),
            format_time(each.time_s),
            "runs" if each.path == runs else _compared(each.time_s / own),
            _known_of(each),
        )
        for each in alternatives(result)
    ]
    known = "the library's rule" if any(row[3] for row in rows) else ""
    return table(("path", "time", "compared", known), rows, right="12")


def _compared(ratio: float) -> str:
    """Return 1.25 as ``+25 %`` and 12.5 as ``x 12.5``."""
    return f"{100 * (ratio - 1):+.0f} %" if ratio < 3 else f"x {ratio:.3g}"


def _known_of(each: Alternative) -> str:
    """Return what the library itself goes by: NCCL's estimate, or the engine's limit."""
    if each.limit_bytes is not None:
        return (
            f"up to {format_bytes(each.limit_bytes)}" if each.limit_bytes < _ANY_SIZE else "always"
        )
    return "" if each.estimate_s is None else f"NCCL expects {format_time(each.estimate_s)}"


def _explanation(result: CollectiveTime) -> list[str]:
    """Return the sections that show the arithmetic: why this path, its parts, the constants."""
    reason = paragraph(f"Why {result.algorithm} {result.protocol}: {why(result)}.", "  ")
    return [reason, _parts_table(result), *_symbols_table(result)]


def _parts_table(result: CollectiveTime) -> str:
    rows = []
    for part in parts(result):
        rows.append((part.name, _with_unit("_s", part.time_s), part.formula))
        if part.numbers != _with_unit("_s", part.time_s):
            rows.append(("", "", f"= {part.numbers}"))
    own = float(total(result.paths[result.algorithm, result.protocol]))
    rows.append(("sum", _with_unit("_s", own), f"of {result.algorithm} {result.protocol}"))
    counted = _counted_paths(result)
    if len(counted) > 1:
        mean = " + ".join(
            f"{_digits(each.weight)} x {_with_unit('_s', each.time_s)}" for each in counted
        )
        rows.append(("time", _with_unit("_s", float(result.time_s)), f"= {mean}"))
    glued = [(name, time, _BEFORE_UNIT.sub(_GLUE, text)) for name, time, text in rows]
    head = ("part", "time", "formula, and with its numbers")
    return table(head, glued, right="1").replace(_GLUE, " ")  # no line begins with a unit


def _symbols_table(result: CollectiveTime) -> list[str]:
    """Return the table of what stands in the formulas, and the sources it refers to."""
    used = symbols_used(result, (result.algorithm, result.protocol))
    sources = {name: each for each in result.calibrations for name in given(each.constants)}
    numbers: dict[str, int] = {}
    rows = []
    for name, value in used.items():
        origin = _FACTS.get(name, "")
        if name in sources:
            number = numbers.setdefault(_cited(sources[name]), len(numbers) + 1)
            origin = f"[{number}]"
        rows.append((_symbol(name), _with_unit(name, value), origin))
    cited = [paragraph(f"[{number}] {citation}", "    ") for citation, number in numbers.items()]
    nominal = paragraph(f"Link: {link(result.group).source}", "  ")
    return [
        table(("symbol", "value", "meaning or source"), rows, right="1"),
        "\n".join([*cited, nominal]),
    ]


def _cited(calibration: Calibration) -> str:
    return f"{calibration.library} on {calibration.system}: {calibration.source()}"


def _notes_as_text(result: CollectiveTime) -> list[str]:
    return [paragraph(f"Note: {note}", "  ") for note in notes(result)]


def _fits_as_text(result: CollectiveTime) -> list[str]:
    """Return how well the constants fit; that some are carried over is among the notes."""
    measured = [each for each in result.calibrations if not each.inherited_from]
    return [paragraph(f"Fit of {_cited(each)}", "  ") for each in measured]


def _identifier(part: str) -> str:
    """Return a part's name as a formula writes it."""
    return part.replace(" ", "_")


def _symbol(name: str) -> str:
    """Return a name as it is shown, without the unit that its value carries."""
    if name.endswith("_bytes_per_s"):
        return name.removesuffix("_bytes_per_s") + "_rate"
    return name.removesuffix("_s")


def _put_in(expression: str, texts: Mapping[str, str]) -> str:
    """Return an expression with every name replaced by its text, for people to read."""
    return _NAME.sub(lambda name: texts.get(name[0], name[0]), expression).replace("*", "x")


def _with_unit(name: str, value: float) -> str:
    """Return a value with the unit that its name tells, precise enough to compute with."""
    if name.endswith("_bytes_per_s") or name in {"port", "ports"}:
        return f"{_digits(value / 1e9)} GB/s"
    if name == "size" or name.endswith("_bytes"):
        return _exact_bytes(value)
    return f"{_digits(value * 1e6)} us" if name.endswith("_s") else _digits(value)


def _exact_bytes(size_bytes: float) -> str:
    """Return a size in the largest binary unit that holds it in whole numbers."""
    size = _number(size_bytes)
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def _number(value: Any) -> int | float:
    """Return a whole number as int."""
    return int(value) if float(value).is_integer() else float(value)


def _digits(value: float) -> str:
    """Return five significant digits, without an exponent."""
    if abs(value) >= 1e5:
        return f"{value:.0f}"
    text = f"{value:.5g}"
    return f"{value:.10f}".rstrip("0").rstrip(".") if "e" in text else text

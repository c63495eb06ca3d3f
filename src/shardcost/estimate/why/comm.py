"""Why communication takes, hides and sends as much as it does: by group, and over which links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from shardcost.collectives.bounds import bus_factor
from shardcost.estimate.calls import Asked, Call, times_sent
from shardcost.estimate.ledger import PassParts
from shardcost.estimate.result import Estimate
from shardcost.estimate.why.error import collectives_error, over_time, time_term
from shardcost.estimate.why.reason import Error, Part, Why, reason, stated_by, total
from shardcost.program.operations import Collective
from shardcost.receipt import SENT, Term, in_unit
from shardcost.units import format_time

_RATIOS: Final = "comm.ratios."
_OVERLAPS: Final = {
    "none": "every collective is waited for",
    "async": "in the backward pass a product that does not wait for it hides it",
    "chunked": "the product that it feeds is cut into chunks, which hide it but for the first",
}
_HIDES: Final = {
    "dp": "behind the last backward pass, the first forward pass, and layers before it",
    "pp": "behind the compute of other micro-batches",
}


def summed(
    figure: str, title: str, seconds: Any, calls: Iterable[Call], error: Error | None
) -> Why:
    """Return a figure that is the sum over calls, each so many times its seconds."""
    chosen = list(calls)
    parts = [Part(f"op.{call.name}", call.name, call.total_s, "s") for call in chosen]
    meanings = {
        f"op.{call.name}": f"{in_unit(call.times, '')} x {format_time(call.seconds)}"
        for call in chosen
    }
    return total(figure, title, seconds, "s", parts, meanings=meanings, error=error)


def group_calls(asked: Asked, group: str) -> list[Call]:
    """Return the calls of a group's collectives; copies of experts and of shards are dp's."""
    found = [call for call in asked.calls.values() if isinstance(call.op, Collective)]
    if group == "dp" and asked.found.program.step is not None:
        return [call for call in found if _group(call).partition("_")[0] == "dp"]
    return [call for call in found if _group(call) == group]


def _group(call: Call) -> str:
    return call.op.group if isinstance(call.op, Collective) else ""


def exposed(asked: Asked, figure: str, group: str) -> Why:
    """Return what of a group's communication nothing hides."""
    found = asked.found
    waits = float(found.exposed_s.get(group, 0.0))
    calls = group_calls(asked, group)
    error = collectives_error(asked.prices, calls, waits)
    title = f"Communication of the {group} group that nothing hides, in a step"
    scheduled = found.program.step is not None and group in {"dp", "pp"}
    if not scheduled:
        serving_sends = group == "pp"
        parts = [
            Part(
                f"op.{call.name}",
                call.name,
                call.total_s if serving_sends else call.exposed_s,
                "s",
            )
            for call in calls
        ]
        meanings = {
            f"op.{call.name}": f"{in_unit(call.times, '')} x {format_time(call.seconds)},"
            f" {format_time(part.value)} not hidden"
            for call, part in zip(calls, parts, strict=True)
        }
        words = _OVERLAPS[found.software.tp_overlap] if group == "tp" else ""
        return total(figure, title, waits, "s", parts, meanings=meanings, error=error, words=words)
    whole = float(found.comm_s.get(group, 0.0))
    hidden = float(found.hidden_s.get(group, 0.0))
    more = waits - (whole - hidden)
    terms = [
        Term("total", whole, "s", "all of it"),
        Term("hidden", hidden, "s", _HIDES[group]),
    ]
    expression = "total - hidden"
    if abs(more) > 1e-12 * max(waits, whole):
        terms.append(Term("delay", more, "s", "that stages pass on to each other"))
        expression += " + delay"
    return reason(
        figure,
        title,
        waits,
        "s",
        expression,
        terms,
        parts=[
            Part(f"comm.{group}.total_s", "total", whole, "s"),
            Part(f"comm.{group}.hidden_s", "hidden", -hidden, "s"),
        ],
        error=error,
        sources=["Rajbhandari et al. 2020, arXiv:1910.02054"] if group == "dp" else [],
        words="the step with it, less the step without it",
    )


def comm_figures(found: Estimate) -> Iterator[str]:
    """Yield the names of the figures on communication and on links."""
    kinds = ("total_s", "exposed_s", "hidden_s", "bytes")
    yield from (f"comm.{kind}" for kind in kinds)
    for group in {**found.comm_s, **found.traffic.by_group}:
        yield from (f"comm.{group}.{kind}" for kind in kinds)
    yield from (f"{_RATIOS}{phase}" for phase in found.ratios)
    for name in found.link_utilisation:
        yield from (f"link.{name}.{of}" for of in ("utilisation", "bytes"))


def comm(asked: Asked, figure: str) -> Why:
    """Return why a figure on communication is as it is."""
    if figure.startswith(_RATIOS):
        return _ratio(asked, figure)
    _, *group, kind = figure.split(".")
    if not group:
        return _all_groups(asked.found, figure, kind)
    if kind == "bytes":
        return _bytes(asked, figure, group[0])
    if kind == "exposed_s":
        return exposed(asked, figure, group[0])
    if kind == "hidden_s":
        return _hidden(asked.found, figure, group[0])
    calls = group_calls(asked, group[0])
    seconds = float(asked.found.comm_s.get(group[0], 0.0))
    title = f"Communication of the {group[0]} group in a step, hidden or not"
    return summed(figure, title, seconds, calls, collectives_error(asked.prices, calls, seconds))


def _all_groups(found: Estimate, figure: str, kind: str) -> Why:
    tables = {
        "total_s": (found.comm_s, "s", "Communication of a step, hidden or not"),
        "exposed_s": (found.exposed_s, "s", "Communication of a step that nothing hides"),
        "hidden_s": (found.hidden_s, "s", "Communication of a step that something hides"),
        "bytes": (found.traffic.by_group, SENT, "Bytes that a rank sends in a step"),
    }
    table, unit, title = tables[kind]
    parts = [
        Part(f"comm.{group}.{kind}", group, float(each), unit) for group, each in table.items()
    ]
    return total(figure, title, sum(table.values()), unit, parts)


def _hidden(found: Estimate, figure: str, group: str) -> Why:
    whole, waits = (float(table.get(group, 0.0)) for table in (found.comm_s, found.exposed_s))
    terms = [
        Term("total", whole, "s", "all of it"),
        Term("exposed", waits, "s", "what nothing hides"),
    ]
    return reason(
        figure,
        f"Communication of the {group} group that something hides",
        found.hidden_s.get(group, 0.0),
        "s",
        "max(0, total - exposed)",
        terms,
        parts=[
            Part(f"comm.{group}.total_s", "total", whole, "s"),
            Part(f"comm.{group}.exposed_s", "exposed", -waits, "s"),
        ],
    )


def _bytes(asked: Asked, figure: str, group: str) -> Why:
    """Return what a rank of a middle stage sends over a group."""
    parts: dict[str, Part] = {}
    meanings: dict[str, str] = {}
    for op, times in times_sent(asked.found).items():
        if op.group.partition("_")[0] != group:
            continue
        factor = float(bus_factor(op.collective, op.ranks))
        calls = times * float(op.count)
        sent = calls * float(op.size_bytes) * factor
        name = f"op.{_name_of(asked, op)}"
        before = parts[name].value if name in parts else 0.0
        parts[name] = Part(name, name.removeprefix("op."), before + sent, SENT)
        meanings[name] = (
            f"{in_unit(calls, '')} x {in_unit(float(op.size_bytes), SENT)} x {factor:.4g}"
            f" ({op.collective} over {op.ranks})"
        )
    return total(
        figure,
        f"Bytes that a rank sends over the {group} group in a step",
        asked.found.traffic.by_group.get(group, 0.0),
        SENT,
        list(parts.values()),
        meanings=meanings,
        sources=["nccl-tests, doc/PERFORMANCE.md: bytes on the wire over the buffer"],
        words="calls x buffer x what a ring sends of it",
    )


def _name_of(asked: Asked, op: Collective) -> str:
    alike = (call.name for call in asked.calls.values() if call.op[:5] == op[:5])
    return next(alike, op.name)


def _ratio(asked: Asked, figure: str) -> Why:
    """Return communication over computation in one layer."""
    found, phase = asked.found, figure.removeprefix(_RATIOS)
    phases = ("forward",) if phase == "forward" else ("backward", "weight")
    parts = [PassParts.of(found.ledger.shares, each) for each in phases]
    comm: dict[str, float] = {}
    kinds: dict[str, float] = {}
    for part in parts:
        for name, each in part.comm_s.items():
            comm[name] = comm.get(name, 0.0) + float(each)
        for name, each in part.compute_s.items():
            kinds[name] = kinds.get(name, 0.0) + float(each)
    waits = [
        Term(f"{name}_communication", each, "s", "hidden or not")
        for name, each in comm.items()
        if each
    ]
    compute = [Term(name, each, "s") for name, each in kinds.items() if each]
    above = " + ".join(each.name for each in waits) or "0"
    below = " + ".join(each.name for each in compute)
    return reason(
        figure,
        f"Communication over computation in one layer, {phase}",
        found.ratios[phase],
        "s/s",
        f"({above}) / ({below})" if len(waits) > 1 else f"{above} / ({below})",
        [*waits, *compute],
    )


def link(found: Estimate, figure: str) -> Why:
    """Return why links carry as much as they do."""
    _, name, of = figure.split(".")
    inside = name != "network"
    sent = float(found.traffic.inside_bytes if inside else found.traffic.network_bytes)
    explained = _link_bytes if of == "bytes" else _link_use
    return explained(found, figure, sent, name)


def _link_use(found: Estimate, figure: str, sent: float, name: str) -> Why:
    use = float(found.link_utilisation[name])
    tier, network = found.cluster.tiers[-1], found.cluster.network
    rate, stated = float(tier.bytes_per_s), stated_by(found.cluster, "tiers.bytes_per_s")
    if name == "network" and network is not None:
        gpus = found.cluster.gpus_per_node
        rate = float(network.node_bytes_per_s(gpus) / gpus)
        stated = str(network.sources.get("nic_bytes_per_s", ""))
    terms = [
        Term("bytes", sent, SENT, "that a rank sends over them in a step"),
        time_term(found),
        Term("rate", rate, "bytes/s", f"of a GPU's {name} links, nominal, one way", stated),
    ]
    return over_time(
        found,
        figure,
        f"Use of the {name} links: bytes over what they could have carried meanwhile",
        use,
        "share",
        "bytes / (time * rate)",
        terms,
        parts=[Part(f"link.{name}.bytes", "bytes", sent, SENT)],
    )


def _link_bytes(found: Estimate, figure: str, sent: float, name: str) -> Why:
    whole = float(sum(found.traffic.by_group.values()))
    terms = [
        Term("bytes", whole, SENT, "that a rank sends in a step"),
        Term(
            "share",
            sent / whole if whole else 0.0,
            "share",
            "of them over these links: of a ring over n ranks on N nodes one part in n/N leaves the"
            " node, of an all-to-all what is meant for other nodes",
        ),
    ]
    return reason(
        figure,
        f"Bytes that a rank sends over {name} links in a step",
        sent,
        SENT,
        "bytes * share",
        terms,
        parts=[Part("comm.bytes", "bytes", whole, SENT)],
    )

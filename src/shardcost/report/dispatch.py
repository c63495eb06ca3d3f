"""The report on dispatch or combine: how long it takes, what is sent, and what else could run."""

from __future__ import annotations

from typing import Any, Final

from shardcost.collectives.dispatch import DispatchTime, alternatives
from shardcost.collectives.interval import dispatch_interval_of
from shardcost.collectives.receipts import dispatch_receipts
from shardcost.machine.constants import stated
from shardcost.receipt import Receipt
from shardcost.report import interval
from shardcost.report.collective import NOTHING_TO_SEND, compared, part_rows
from shardcost.report.describe import attributes, number, plain
from shardcost.report.text import heading, paragraph, paragraphs, table
from shardcost.units import format_bytes_decimal, format_rate, format_time

_COPIES: Final = {
    False: "one copy for each GPU with a chosen expert, over the network one for each node",
    True: "one copy for each chosen expert, sent directly",
}


def title(result: DispatchTime) -> str:
    """Return the request in a line."""
    group, network = result.group, result.group.cluster.network
    nodes = f" on {group.nodes} nodes" if group.nodes > 1 else ""
    joined = f" ({network.name})" if network is not None and group.domains > 1 else ""
    tokens = f"{number(result.tokens)} tokens of {result.hidden} x {result.dtype}"
    experts = f"top-{result.topk} of {result.experts} experts"
    place = f"{group.ranks} x {group.cluster.name}{nodes}{joined}"
    mode = ", eager" if result.mode == "eager" else ""
    return f"{result.phase} of {tokens}, {experts}, over {place}, {result.library}{mode}"


def as_text(result: DispatchTime, *, explain: bool = False) -> str:
    """Return the report for a terminal.

    Args:
        result: The prediction, of one cell.
        explain: Add the arithmetic.
    """
    sections = [
        heading(paragraph(title(result), "  ")),
        table(("figure", "value", "meaning"), figures(result), right="1"),
    ]
    if result.group.ranks > 1:
        sections.append(_alternatives_table(result))
        if explain and result.exchange is None:
            sections += [_parts_table(result), _symbols_table(result)]
    said = [f"Note: {note}" for note in notes(result)]
    used = result.resolved
    if used is not None and result.group.ranks > 1:
        said.append(f"Constants of {used.kernel.name}: {used.source}")
    return "\n\n".join([*sections, *([paragraphs(said)] if said else [])])


def as_data(result: DispatchTime) -> dict[str, Any]:
    """Return the report as plain data."""
    group, used = result.group, result.resolved
    network = group.cluster.network
    return plain(
        {
            **attributes(result, "phase library kernel mode low_latency dtype"),
            "system": group.cluster.name,
            "network": network.name if network is not None else None,
            **attributes(group, "gpus=ranks nodes domains"),
            **attributes(result, "tokens hidden topk experts node_limit"),
            "time_s": result.time_s,
            **_interval_as_data(result),
            **attributes(result, "bound_s payload_bytes_per_s link_share sms"),
            "traffic": result.traffic._asdict(),
            "parts": dict(result.parts),
            "streams": dict(result.streams),
            "formulas": [
                attributes(part, "name formula numbers time_s=value")
                for part in dispatch_receipts(result)
            ],
            "alternatives": [
                attributes(each, "library kernel time_s inside_bytes network_bytes")
                for each in others(result)
            ],
            "notes": notes(result),
            "constants": {} if used is None else stated(used.constants),
            "stated_by": "" if used is None else used.source,
        }
    )


def notes(result: DispatchTime) -> list[str]:
    """Return the caveats of a prediction."""
    return [NOTHING_TO_SEND] if result.group.ranks == 1 else list(result.notes)


def others(result: DispatchTime) -> list[DispatchTime]:
    """Return the other kernels that could run."""
    return alternatives(result) if result.group.ranks > 1 else []


def _interval_as_data(result: DispatchTime) -> dict[str, Any]:
    if result.group.ranks == 1:
        return {"low_s": 0.0, "high_s": 0.0, "interval": None}
    return interval.as_data(dispatch_interval_of(result))


def figures(result: DispatchTime) -> list[tuple[str, str, str]]:
    """Return the rows of the first table: each figure with its unit and what it means."""
    if result.group.ranks == 1:
        return [("time", format_time(result.time_s), "per call")]
    ends = dispatch_interval_of(result)
    group, sent, used = result.group, result.traffic, result.resolved
    launched = "each launched by the host" if result.mode == "eager" else "one after another"
    per_expert = used is None or used.kernel.per_expert
    rows = [
        ("time", format_time(result.time_s), f"per call, {launched}"),
        ("interval", interval.ends(ends.low_s, ends.high_s), interval.rows_in_words(ends)),
        ("kernel", result.kernel, _COPIES[per_expert]),
        ("copies", f"{float(sent.copies):.2f}", f"of a token, on {float(sent.domains):.2f} nodes"),
        (
            "inside",
            format_bytes_decimal(sent.inside_bytes),
            f"that a GPU sends, and receives, over {group.tier.kind} links",
        ),
    ]
    if group.domains > 1:
        sent_out = format_bytes_decimal(sent.network_bytes)
        rows.append(("network", sent_out, "that a GPU sends into the network, and receives"))
    rows += [
        ("at least", format_time(result.bound_s), "bytes on the busiest link / its nominal rate"),
        ("share of link", f"{100 * float(result.link_share):.1f} %", "at least / time"),
        (
            "rate",
            format_rate(result.payload_bytes_per_s),
            "all copies, the own included, / time, as kernels' benchmarks count",
        ),
    ]
    if used is not None:
        share = 100 * float(result.sms / group.cluster.device.sms)
        rows.append(("SMs held", str(int(result.sms)), f"{share:.0f} % of the GPU's"))
    return rows


def _alternatives_table(result: DispatchTime) -> str:
    rows = [(result.library, result.kernel, format_time(result.time_s), "runs", "")]
    for each in others(result):
        behind = compared(float(each.time_s / result.time_s))
        used = each.resolved
        whose = used.source if used is not None and used.is_inherited else ""
        rows.append((each.library, each.kernel, format_time(each.time_s), behind, whose))
    return table(("library", "kernel", "time", "compared", "by"), rows, right="23")


def _parts_table(result: DispatchTime) -> str:
    rows = part_rows(dispatch_receipts(result))
    rows.append(("sum", format_time(result.time_s), f"of {', '.join(result.parts)}"))
    return table(("part", "time", "formula, and with its numbers"), rows, right="1")


def _symbols_table(result: DispatchTime) -> str:
    """Return the table of what stands in the formulas."""
    parts: list[Receipt] = dispatch_receipts(result)
    own = {part.name for part in parts}
    terms = {term.name: term for part in parts for term in part.terms if term.name not in own}
    rows = [(term.symbol, term.text, term.meaning) for term in terms.values()]
    return table(("symbol", "value", "meaning"), rows, right="1")

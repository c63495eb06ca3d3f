"""The placement of ranks on the devices of a node: text for a terminal, plain data for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardcost.report.text import paragraph, table
from shardcost.search.placement import Placement, Rate, Use
from shardcost.units import GIGA, format_percent, format_rate, format_time


def as_text(placements: Sequence[Placement]) -> str:
    """Return the orders of layouts, or in one line that they make no difference."""
    if not any(each.matters for each in placements):
        known = [each for each in placements if each.is_known]
        reasons = "; ".join(dict.fromkeys(map(_why_not, known or placements)))
        said = "Placement makes no difference" if known else "Placement was not searched"
        return paragraph(f"{said}: {reasons}.", "  ")
    rows = [
        (
            each.estimate.layout.short(),
            format_time(each.identity_s),
            format_time(each.best_s),
            f"+{format_percent(each.gain)}" if each.matters else "-",
            each.visible_devices,
        )
        for each in placements
    ]
    head = ("placement", "as numbered", "best order", "gain", "device of each rank of a node")
    first = next(each for each in placements if each.matters)
    lines = [table(head, rows, right="123")]
    changed = [row for row in first.rates if row[1] != row[2]]
    said = "; ".join(_in_words(*row) for row in changed)
    lines.append(paragraph(f"{first.estimate.layout.short()}: {said}. {_counted(first)}.", "  "))
    variables = f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={first.visible_devices}"
    lines.append(f"Run it with {variables}")
    return "\n".join(lines)


def as_data(placement: Placement) -> dict[str, Any]:
    """Return the order of one layout as plain data."""
    return {
        "layout": placement.estimate.layout.short(),
        "matters": placement.matters,
        "reason": placement.reason or None,
        "order": list(placement.order),
        "identity_s": placement.identity_s,
        "best_s": placement.best_s,
        "gain_percent": 100 * placement.gain,
        "orders_tried": placement.tried,
        "every_order_tried": placement.every,
        "rates": [
            {
                "group": use.degree,
                "how": use.how,
                "ranks": use.ranks,
                "identity": _rate_as_data(identity),
                "best": _rate_as_data(best),
            }
            for use, identity, best in placement.rates
        ],
    }


def _rate_as_data(rate: Rate) -> dict[str, float | None]:
    return {
        f"{name}_gb_per_s": None if figure is None else round(figure / GIGA, 4)
        for name, figure in rate._asdict().items()
    }


def _why_not(placement: Placement) -> str:
    if placement.reason:
        return placement.reason
    return f"{placement.estimate.layout.short()} is as fast in the order of the devices as in any"


def _counted(placement: Placement) -> str:
    which = "every order that differs" if placement.every else "by swaps"
    return f"{placement.tried:,} orders tried, {which}"


def _in_words(use: Use, identity: Rate, best: Rate) -> str:
    changes = [
        f"{where} {format_rate(was)} -> {format_rate(will)}"
        for where, was, will in zip(
            ("in the node", "into the network"), identity, best, strict=True
        )
        if was is not None and will is not None and was != will
    ]
    return f"{use.degree.upper()} of {use.ranks} ({use.how}) {', '.join(changes)}"

"""The all-reduce report: what went in and from where, what comes out and what it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from shardcost.allreduce import AllreduceCost
from shardcost.report.text import heading, paragraphs, table
from shardcost.units import format_bytes, format_bytes_decimal, format_time


class Input(NamedTuple):
    """One argument of the front-door function, and where its value came from."""

    value: Any
    origin: str
    source: str = ""
    """Who states the value, where the catalog or a file does."""


FORMULA: Final = (
    "message = batch x sequence x hidden x bytes; sent = 2 (n - 1) / n x message;"
    " total = sent x layers x all-reduces; time = total / bandwidth"
)
BOUND: Final = (
    "Latency and protocols are left out: a lower bound for a ring, nearest for large messages and"
    " far below what small ones take."
)
_LABELS: Final = {
    "hidden_size": ("hidden size", "{:,} elements"),
    "sequence_length": ("sequence length", "{:,} tokens"),
    "batch_size": ("batch", "{:,} sequences"),
    "num_gpus": ("GPUs (n)", "{:,}"),
    "num_layers": ("layers", "{:,}"),
    "bytes_per_element": ("element", "{:,} bytes"),
    "allreduces_per_layer": ("all-reduces per layer", "{:,}"),
    "bandwidth_gb_per_sec": ("bandwidth per GPU", "{:,.4g} GB/s"),
}


def as_text(
    title: str, inputs: Mapping[str, Input], cost: AllreduceCost, notes: Sequence[str]
) -> str:
    """Return the report for a terminal."""
    given = []
    for name, (label, form) in _LABELS.items():
        text = form.format(inputs[name].value)
        text = text.removesuffix("s") if text.startswith("1 ") else text  # 1 sequence
        given.append((label, text, inputs[name].origin))
    layers, per_layer = inputs["num_layers"].value, inputs["allreduces_per_layer"].value
    count = f"{layers} layers x {per_layer} all-reduces"
    one, total = cost["comm_volume_per_allreduce_bytes"], cost["total_comm_volume_bytes"]
    costs = [
        ("message", format_bytes(cost["message_size_bytes"]), "what each all-reduce sums up"),
        ("sent per all-reduce", format_bytes_decimal(one), "by each GPU, which receives as much"),
        ("sent in total", format_bytes_decimal(total), f"by each GPU, {count}"),
        ("time", format_time(cost["total_comm_time_ms"] / 1e3), "one forward pass, on a ring"),
    ]
    sources = {own.origin: own.source for own in inputs.values() if own.source}
    remarks = [
        f"Formula: {FORMULA}",
        *(f"Note: {note}" for note in notes),
        *(f"Source of {origin}: {source}" for origin, source in sources.items()),
    ]
    return "\n\n".join(
        [
            heading(title),
            table(("input", "value", "from"), given, right="1"),
            table(("cost", "value", "meaning"), costs, right="1"),
            paragraphs(remarks),
        ]
    )


def as_data(
    inputs: Mapping[str, Input], cost: AllreduceCost, notes: Sequence[str]
) -> dict[str, Any]:
    """Return the report as plain data: the function's result first, then what went in."""
    return {
        **cost,
        "inputs": {
            name: {"value": own.value, "from": own.origin, "source": own.source}
            for name, own in inputs.items()
        },
        "formula": FORMULA,
        "notes": list(notes),
    }

"""The all-reduce report: what went in and from where, what comes out and what it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from shardcost.allreduce import AllreduceCost, message_bytes, ring_allreduce_cost
from shardcost.receipt import SENT, Receipt, Term
from shardcost.records import NamedTuple
from shardcost.report.text import heading, paragraphs, table
from shardcost.traced import Traced, receipt, step
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
_BANDWIDTH_UNIT: Final = "Unit: 1 GB/s is 1,000,000 bytes per ms; the time is in ms"
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


_SYMBOLS: Final = {
    "hidden_size": ("hidden", ""),
    "sequence_length": ("sequence", ""),
    "batch_size": ("batch", ""),
    "num_gpus": ("n", ""),
    "num_layers": ("layers", ""),
    "bytes_per_element": ("bytes", ""),
    "allreduces_per_layer": ("per_layer", ""),
    "bandwidth_gb_per_sec": ("bandwidth", "GB/s"),
}
"""How formulas write each argument, and its unit."""


def as_text(
    title: str,
    inputs: Mapping[str, Input],
    cost: AllreduceCost,
    notes: Sequence[str],
    explained: Sequence[Receipt] = (),
) -> str:
    """Return the report for a terminal; with receipts, the arithmetic of each figure."""
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
        _BANDWIDTH_UNIT if explained else f"Formula: {FORMULA}",
        *(f"Note: {note}" for note in notes),
        *(f"Source of {origin}: {source}" for origin, source in sources.items()),
    ]
    return "\n\n".join(
        [
            heading(title),
            table(("input", "value", "from"), given, right="1"),
            table(("cost", "value", "meaning"), costs, right="1"),
            *_explained(explained),
            paragraphs(remarks),
        ]
    )


def receipts(inputs: Mapping[str, Input]) -> list[Receipt]:
    """Return the receipt of each figure: the function's own formulas, run on named numbers."""
    term = {
        name: Traced.named(
            Term(symbol, float(inputs[name].value), unit, _LABELS[name][0], _stated(inputs[name]))
        )
        for name, (symbol, unit) in _SYMBOLS.items()
    }
    sequences = (term["batch_size"], term["sequence_length"])
    message = message_bytes(*sequences, term["hidden_size"], term["bytes_per_element"])
    summed = step("message", message, "bytes", "of one all-reduce")
    calls = step("calls", term["num_layers"] * term["allreduces_per_layer"], "", "of a pass")
    one, total, time_ms = ring_allreduce_cost(
        summed, term["num_gpus"], calls, term["bandwidth_gb_per_sec"]
    )
    figures = (
        ("message_size_bytes", "Message", "bytes", message),
        ("comm_volume_per_allreduce_bytes", "Sent per all-reduce", SENT, one),
        ("total_comm_volume_bytes", "Sent in total", SENT, total),
        ("total_comm_time_ms", "Time", "ms", time_ms),
    )
    return [receipt(value, name, title, unit) for name, title, unit, value in figures]


def _stated(given: Input) -> str:
    return given.source or given.origin


def _explained(explained: Sequence[Receipt]) -> Iterator[str]:
    """Yield each figure with its formula and the numbers put in, and what the symbols are."""
    if not explained:
        return
    rows = []
    for each in explained:
        rows += [(each.title, each.formula), ("", f"= {each.numbers}"), ("", f"= {each.text}")]
    yield table(("figure", "formula, and with its numbers"), rows)
    terms = {term.name: term for each in explained for term in each.terms}
    yield table(
        ("symbol", "value", "meaning"),
        [(term.symbol, term.text, term.meaning) for term in terms.values()],
        right="1",
    )


def as_data(
    inputs: Mapping[str, Input],
    cost: AllreduceCost,
    notes: Sequence[str],
    explained: Sequence[Receipt] = (),
) -> dict[str, Any]:
    """Return the report as plain data: the function's result first, then what went in."""
    explanation = [
        {
            "figure": each.name,
            **{key: getattr(each, key) for key in ("value", "unit", "formula", "numbers")},
            "sources": list(each.sources),
        }
        for each in explained
    ]
    return {
        **cost,
        "inputs": {
            name: {"value": own.value, "from": own.origin, "source": own.source}
            for name, own in inputs.items()
        },
        "formula": FORMULA,
        "notes": list(notes),
        **({"explanation": explanation} if explanation else {}),
    }

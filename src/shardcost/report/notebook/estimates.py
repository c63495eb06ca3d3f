"""An estimate for a notebook: the screen, ledger and pictures of ``shardcost estimate``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from shardcost.checks import is_array
from shardcost.estimate.result import Estimate
from shardcost.report import estimate as text
from shardcost.report import memory_plot, roofline_plot, timeline_plot
from shardcost.report.estimate_data import as_data, messages_as_data, roofline_as_data
from shardcost.report.markup import Markup
from shardcost.report.notebook import view as html
from shardcost.report.notebook.view import Piece, Rows, View
from shardcost.report.pictures import COMPUTE, MEMORY, PARTS
from shardcost.report.text import name_of
from shardcost.resolve import caveats_of
from shardcost.units import format_bytes, format_percent

_FIGURES: Final = ("time_s", "memory_bytes", "tokens_per_s_per_gpu", "mfu")
"""Of each of many layouts."""


def view(estimate: Estimate) -> View:
    """Return what a notebook shows of an estimate."""
    if is_array(estimate.time_s):
        return View(
            lambda: html.many(_title(estimate), estimate.software.name, layouts(estimate)),
            lambda: {"layouts": layouts(estimate)},
            {"layouts": lambda: layouts(estimate)},
        )
    return View(
        lambda: _screen(estimate),
        lambda: as_data(estimate, caveats_of(estimate.model)),
        {
            "parts": lambda: [
                {"part": each.key, "time_s": each.seconds}
                | {name: getattr(each, name) for name in ("share", "hidden_s", "sent_bytes")}
                for each in text.parts(estimate)
            ],
            "operations": lambda: list(_operations(estimate)),
            "messages": lambda: messages_as_data(estimate)["messages"],
            "memory": lambda: _memory(estimate),
            "roofline": lambda: roofline_as_data(estimate)["operations"],
        },
        {
            "timeline": lambda: timeline_plot.sketch(estimate),
            "layer": lambda: timeline_plot.sketch(estimate, "layer"),
            "roofline": lambda: roofline_plot.sketch(estimate),
            "memory": lambda: memory_plot.sketch(estimate),
        },
    )


def _title(estimate: Estimate) -> str:
    what = f"{text.PHASES[estimate.workload.phase]} {estimate.model.name}"
    return f"{what} on {estimate.cluster.name}, {estimate.time_s.size:,} layouts"


def layouts(estimate: Estimate) -> Rows:
    """Return a row for each of an array of layouts: what varies, then the main figures."""
    import numpy as np

    given = {**vars(estimate.layout), **vars(estimate.workload)}
    varying = {name: value for name, value in given.items() if is_array(value)}
    figures = {name: getattr(estimate, name) for name in _FIGURES}
    shape = np.broadcast_shapes(*(np.shape(each) for each in (varying | figures).values()))
    columns = {
        name: np.broadcast_to(value, shape).ravel().tolist()
        for name, value in (varying | figures).items()
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _operations(estimate: Estimate) -> Iterator[dict[str, Any]]:
    """Yield every entry of the ledger that happens."""
    for each in estimate.entries:
        if each.times:
            yield {
                "operation": each.op.name,
                "kind": each.kind,
                "pass": each.phase,
                "piece": each.piece,
                "times": float(each.times),
                "time_s": float(each.seconds),
                "total_s": float(each.total_s),
                "exposed_s": float(each.exposed_s),
                "flops": float(each.flops),
            }


def _memory(estimate: Estimate) -> Rows:
    """Return the memory of the fullest rank by kind."""
    capacity = estimate.cluster.device.memory_bytes
    return [
        {"kind": kind, "bytes": float(size), "share": float(size / capacity)}
        for kind, size in estimate.memory.by_kind().items()
    ]


def _screen(estimate: Estimate) -> Markup:
    figures = [
        (label, html.with_interval(words, estimate.interval, estimate.time_s))
        if label == "interval"
        else (label, words)
        for label, words in text.figures(estimate)
    ]
    shown = text.parts(estimate)
    longest = max(each.seconds + each.hidden_s for each in shown)
    rows = [(*each.cells, _bar(each, longest)) for each in shown]
    return html.screen(
        text.title(estimate),
        text.details(estimate),
        html.lines(figures),
        html.table((*text.PARTS_HEAD, ""), rows, right="1234"),
        _memory_table(estimate),
        html.lines(text.foundations(estimate)),
        html.remarks(text.as_remarks(estimate.caveats, caveats_of(estimate.model), every=True)),
    )


def _bar(part: text.PartOfTime, longest_s: float) -> Markup:
    """Return a part as a bar, and beside it what is hidden of its communication."""
    colour = PARTS.get(part.key, COMPUTE)
    pieces = [Piece(part.seconds / longest_s, colour)]
    if part.hidden_s:
        pieces.append(Piece(part.hidden_s / longest_s, colour, hatched=True))
    return html.bar(*pieces)


def _memory_table(estimate: Estimate) -> Markup:
    rows = [
        (
            name_of(row["kind"]),
            format_bytes(row["bytes"]),
            format_percent(row["share"]),
            html.bar(Piece(row["share"], MEMORY.get(row["kind"], COMPUTE))),
        )
        for row in _memory(estimate)
        if row["bytes"]
    ]
    capacity = format_bytes(estimate.cluster.device.memory_bytes)
    return html.table(("memory", "size", f"of {capacity}", ""), rows, right="12")

"""A collective, or dispatch and combine of experts, for a notebook."""

from __future__ import annotations

from typing import Any

from shardcost.checks import is_array
from shardcost.collectives.dispatch import DispatchTime
from shardcost.collectives.library_time import CollectiveTime
from shardcost.collectives.sweep import LEAST_BYTES, MOST_BYTES, curve_sizes
from shardcost.report import collective as text
from shardcost.report import collective_plot, dispatch
from shardcost.report.markup import Markup
from shardcost.report.notebook import view as html
from shardcost.report.notebook.view import Piece, Rows, View
from shardcost.report.pictures import COLOURS, GREY, Sketch
from shardcost.units import format_bytes, format_time
from shardcost.validate.shipped import points_like


def view(result: CollectiveTime | DispatchTime) -> View:
    """Return what a notebook shows of a collective."""
    if isinstance(result, DispatchTime):
        return View(
            lambda: _exchange_screen(result),
            lambda: dispatch.as_data(result),
            {"kernels": lambda: _kernels(result)},
        )
    if not is_array(result.time_s):
        return View(
            lambda: _screen(result),
            lambda: text.as_data(result),
            {
                "paths": lambda: text.as_data(result)["alternatives"],
                "parts": lambda: [
                    {
                        "part": each.name,
                        "time_s": each.value,
                        "formula": each.formula,
                        "numbers": each.numbers,
                    }
                    for each in text.parts(result)
                ],
            },
            {"sizes": lambda: _curve(result)},
        )
    over_sizes = is_array(result.size_bytes) and result.size_bytes.shape == result.time_s.shape
    if not over_sizes or result.time_s.ndim > 1:
        return View(
            lambda: html.many(repr(result), "", _cells(result)),
            lambda: {"cells": _cells(result)},
            {"cells": lambda: _cells(result)},
        )
    return View(
        lambda: html.many(repr(result), "", _cells(result)),
        lambda: text.sweep_as_data(result),
        {"sizes": lambda: _cells(result)},
        {"sizes": lambda: collective_plot.sketch(result, points_like(result))},
    )


def _curve(result: CollectiveTime) -> Sketch:
    """Return the picture of the same collective over all sizes, its own pointed out."""
    size, time_s = float(result.size_bytes), float(result.time_s)
    sizes = curve_sizes(min(LEAST_BYTES, size), max(MOST_BYTES, size))
    words = f"{format_bytes(size)}: {format_time(time_s)}"
    curve = result.over(sizes)
    return collective_plot.sketch(
        curve, points_like(curve), collective_plot.Mark(size, time_s, words)
    )


def _cells(result: CollectiveTime) -> Rows:
    """Return a row for each cell of an array."""
    import numpy as np

    columns: dict[str, Any] = {
        "size_bytes": result.size_bytes,
        "gpus": result.group.ranks,
        "time_s": result.time_s,
        "low_s": result.interval.low_s,
        "high_s": result.interval.high_s,
        "algorithm": result.algorithm,
        "protocol": result.protocol,
        "busbw_bytes_per_s": result.busbw_bytes_per_s,
        "link_share": result.link_share,
    }
    shape = np.shape(result.time_s)
    lists = {name: np.broadcast_to(each, shape).ravel().tolist() for name, each in columns.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _screen(result: CollectiveTime) -> Markup:
    title = text.title(result, text.exact_bytes(result.size_bytes))
    rows = _with_whisker(text.figures(result), result)
    inside = [html.table(("figure", "value", "meaning"), rows, right="1")]
    paths = text.alternatives(result)
    if paths:
        longest = max(each.time_s for each in paths)
        runs = (result.algorithm, result.protocol)
        shown = [
            (
                " ".join(each.path),
                format_time(each.time_s),
                "runs" if each.path == runs else "",
                html.bar(Piece(each.time_s / longest, COLOURS[0] if each.path == runs else GREY)),
            )
            for each in paths
        ]
        inside.append(html.table(("path", "time", "", ""), shown, right="1"))
    notes = [f"Note: {each}" for each in text.notes(result)]
    return html.screen(title, "", *inside, html.remarks(notes))


def _with_whisker(
    rows: list[tuple[str, str, str]], result: CollectiveTime | DispatchTime
) -> list[tuple[str, str, str]]:
    """Return the rows of figures, that of the interval with its picture."""
    return [
        (label, value, html.with_interval(words, result.interval, result.time_s))
        if label == "interval"
        else (label, value, words)
        for label, value, words in rows
    ]


def _kernels(result: DispatchTime) -> Rows:
    """Return the kernel that runs and the others that could."""
    rows = [
        {"library": each.library, "kernel": each.kernel, "time_s": float(each.time_s)}
        | {"inside_bytes": float(each.inside_bytes), "network_bytes": float(each.network_bytes)}
        for each in (result, *dispatch.others(result))
    ]
    return [row | {"runs": place == 0} for place, row in enumerate(rows)]


def _exchange_screen(result: DispatchTime) -> Markup:
    rows = _kernels(result)
    longest = max(row["time_s"] for row in rows) or 1.0
    shown = [
        (
            row["library"],
            row["kernel"],
            format_time(row["time_s"]),
            "runs" if row["runs"] else "",
            html.bar(Piece(row["time_s"] / longest, COLOURS[0] if row["runs"] else GREY)),
        )
        for row in rows
    ]
    figures = dispatch.figures(result)
    if result.group.ranks > 1:
        figures = _with_whisker(figures, result)
    return html.screen(
        dispatch.title(result),
        "",
        html.table(("figure", "value", "meaning"), figures, right="1"),
        html.table(("library", "kernel", "time", "", ""), shown, right="2"),
        html.remarks([f"Note: {each}" for each in dispatch.notes(result)]),
    )

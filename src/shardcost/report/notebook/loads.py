"""A deployment under load for a notebook: the screen and pictures of ``shardcost load``."""

from __future__ import annotations

from math import isfinite

import numpy as np

from shardcost.load.parts import Parts, parts_of
from shardcost.load.result import Load
from shardcost.report import load as text
from shardcost.report.load_data import as_data
from shardcost.report.load_plot import distributions_sketch, timeline_sketch
from shardcost.report.markup import Markup
from shardcost.report.notebook import view as html
from shardcost.report.notebook.view import Piece, Rows, View
from shardcost.report.pictures import COLOURS
from shardcost.resolve import caveats_of


def view(load: Load) -> View:
    """Return what a notebook shows of a load."""
    return View(
        lambda: _screen(load),
        lambda: as_data(load, load.limits, parts=_parts(load), caveats=_caveats(load)),
        {
            "latencies": lambda: [
                {
                    "latency": text.NAMES[name],
                    **{f"{key}_s": each for key, each in found._asdict().items()},
                }
                for name, found in text.distributions(load).items()
            ],
            "requests": lambda: _requests(load),
            "moments": lambda: [each._asdict() for each in load.moments],
        },
        {
            "latencies": lambda: distributions_sketch(load, load.limits),
            "timeline": lambda: timeline_sketch(load),
        },
    )


def _parts(load: Load) -> Parts | None:
    return parts_of(load) if len(load.served) else None


def _caveats(load: Load) -> tuple[str, ...]:
    return caveats_of(load.deployment.serving.engine.model)


def _requests(load: Load) -> Rows:
    """Return a row for each request that was served to its end."""
    tokens = load.output_tokens
    spans = load.finished_s - load.first_token_s
    columns = {
        "request": load.served,
        "arrival_s": load.arrival_s,
        "output_tokens": tokens,
        "ttft_s": load.first_token_s - load.arrival_s,
        "tpot_s": np.where(tokens > 1, spans / np.maximum(tokens - 1, 1), np.nan),
        "e2e_s": load.finished_s - load.arrival_s,
    }
    lists = {name: column.tolist() for name, column in columns.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _screen(load: Load) -> Markup:
    engine = load.deployment.serving.engine.software.name
    rows = []
    for name, found in text.distributions(load).items():
        within = text.kept(load, load.limits, name)
        rows.append((text.NAMES[name], *map(text.seconds, found), within, _bar(found)))
    return html.screen(
        text.title(load.deployment),
        f"{engine}, {text.requests_in_words(load.requests)}",
        html.table((*text.HEAD, "", "p50, p90, p99"), rows, right="1234"),
        html.lines(text.lines(load, load.limits)),
        html.remarks(text.remarks(load, _parts(load), _caveats(load))),
    )


def _bar(found: tuple[float, float, float, float]) -> Markup:
    """Return the percentiles of a latency as one bar, the highest as long as there is room."""
    _, p50, p90, p99 = found
    if not (isfinite(p99) and p99 > 0):
        return html.bar()
    return html.bar(
        Piece(p50 / p99, COLOURS[0]),
        Piece((p90 - p50) / p99, COLOURS[5]),
        Piece((p99 - p90) / p99, COLOURS[5], hatched=True),
    )

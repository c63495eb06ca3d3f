"""A training run for a notebook: the screen of ``shardcost run``."""

from __future__ import annotations

from shardcost.goodput.run import TrainingRun
from shardcost.report import run as text
from shardcost.report.estimate import as_remarks, details, title
from shardcost.report.markup import Markup
from shardcost.report.notebook import view as html
from shardcost.report.notebook.view import Piece, View
from shardcost.report.run import as_data
from shardcost.resolve import caveats_of


def view(run: TrainingRun) -> View:
    """Return what a notebook shows of a run."""
    return View(
        lambda: _screen(run),
        lambda: as_data(run, caveats_of(run.estimate.model)),
        {
            "shares": lambda: [
                {"part": name, "time_s": share * run.wall_s, "share": share}
                for name, share in run.shares.items()
            ]
        },
    )


def _screen(run: TrainingRun) -> Markup:
    step = run.estimate
    rows = [(*cells, html.bar(Piece(run.shares[cells[0]]))) for cells in text.shares(run)]
    return html.screen(
        title(step),
        details(step),
        html.lines(text.figures(run)),
        html.table((*text.SHARES_HEAD, ""), rows, right="12"),
        html.lines(text.mechanism(run)),
        html.remarks(as_remarks(step.caveats, caveats_of(step.model), every=True)),
    )

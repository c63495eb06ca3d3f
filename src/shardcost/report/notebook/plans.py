"""What a search found, for a notebook: the screen, table and picture of ``shardcost plan``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardcost.errors import BadValueError
from shardcost.report import plan as text
from shardcost.report import plan_plot
from shardcost.report.estimate import as_remarks
from shardcost.report.markup import Markup, element
from shardcost.report.notebook import view as html
from shardcost.report.notebook.view import Piece, Rows, View
from shardcost.report.pictures import COLOURS, GREY, Sketch
from shardcost.report.plan_data import as_data, short_as_data
from shardcost.search.found import Candidate, Found
from shardcost.search.plan import Plan


def view(result: Found | Plan) -> View:
    """Return what a notebook shows of a search."""
    found = result if isinstance(result, Found) else result.found

    def plan() -> Plan:
        return result.shown if isinstance(result, Found) else result

    return View(
        lambda: _screen(plan()),
        lambda: as_data(plan()),
        {
            "best": lambda: _rows(plan(), found.best),
            "front": lambda: _rows(plan(), found.front),
            "rejected": lambda: [
                {"code": reason.code, "reason": reason.message, "count": count}
                for reason, count in found.rejected.items()
            ],
        },
        {"front": lambda: _front(found)},
    )


def _front(found: Found) -> Sketch:
    if not found.best:
        raise BadValueError("search", "no layout", "one with a feasible layout, for a picture")
    return plan_plot.sketch(found)


def _rows(plan: Plan, candidates: Sequence[Candidate]) -> Rows:
    """Return a row for each layout: its degrees and choices, then its figures."""
    rows: list[dict[str, Any]] = []
    for each in candidates:
        data = short_as_data(plan, each)
        layout = data.pop("layout")
        rows.append({"layout": each.layout.short(), **layout, **data})
    return rows


def _screen(plan: Plan) -> Markup:
    if not plan.best:
        failure = element("pre", text.failure_as_text(plan), style="white-space:pre-wrap")
        return html.screen(text.title(plan.found), "", failure)
    columns = list(text.columns_of(plan, plan.best))
    unit = plan.best[0].question.objective.aim.unit
    heads = ["", *(column.head for column in columns), "choices", unit, ""]
    worst = max(each.score for each in plan.best)
    rows = [
        [
            str(rank),
            *(column.cell(each) for column in columns),
            ", ".join(text.choices_of(each, plan.found.questions).values()),
            "best" if rank == 1 else f"+{100 * each.behind(plan.best[0]):.1f} %",
            html.bar(Piece(each.score / worst, COLOURS[0] if rank == 1 else GREY)),
        ]
        for rank, each in enumerate(plan.best, 1)
    ]
    right = "".join(str(place) for place, column in enumerate(columns, 1) if column.right)
    best = plan.best[0].estimate
    said = [
        (label, html.with_interval(words, best.interval, best.time_s))
        if label == "interval"
        else (label, words)
        for label, words in text.answers_of(plan)
    ]
    reasons = [line.strip() for line in text.counted(plan.found.rejected, 8)]
    return html.screen(
        text.title(plan.found),
        "; ".join(text.about(plan)),
        html.table(heads, rows, right),
        html.lines([*said, *([("rejected", "; ".join(reasons))] if reasons else [])]),
        html.remarks(as_remarks(best.caveats, plan.caveats, every=True)),
    )

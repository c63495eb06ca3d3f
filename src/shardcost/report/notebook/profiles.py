"""A calibrated machine for a notebook: the screen of ``shardcost calibrate``, and its curves."""

from __future__ import annotations

from functools import partial
from typing import Final

from shardcost.calibrate.profile import Measured, Profile
from shardcost.report import calibrate as text
from shardcost.report import collective_plot
from shardcost.report.calibrate import as_data
from shardcost.report.markup import Markup
from shardcost.report.notebook import view as html
from shardcost.report.notebook.view import Piece, Rows, View
from shardcost.report.pictures import COLOURS, GREY, Sketch
from shardcost.validate.validation import Stats

_HEAD: Final = ("median / p90 error, %", "points", "before", "after", "left out", "before", "after")


def view(profile: Profile) -> View:
    """Return what a notebook shows of a profile."""
    return View(
        lambda: _screen(profile),
        lambda: as_data(profile),
        {
            "constants": lambda: _constants(profile),
            "errors": lambda: [
                {"of": each.of, "points": each.after.rows}
                | {
                    f"{when}_{figure}": getattr(getattr(each, when), figure)
                    for when in ("before", "after", "left_out")
                    for figure in ("median_pct", "p90_pct")
                }
                for each in profile.errors
            ],
        },
        {each.name: partial(_curve, each) for each in profile.measured()},
    )


def _curve(measured: Measured) -> Sketch:
    return collective_plot.sketch(measured.predicted, measured.points)


def _constants(profile: Profile) -> Rows:
    """Return every constant in the units of a file, and how sure it is where that is known."""
    data = as_data(profile)
    rows: Rows = [
        {"of": f"{entry['library']} on {entry['system']}", **constant}
        for entry in data.get("calibrated", ())
        for constant in entry["constants"]
    ]
    for entry in data.get("kernels", ()):
        rows += [
            {"of": entry["measured"], "name": name, "value": moved["to"]}
            | {"plus_minus_pct": None, "measured": True}
            for name, moved in entry["constants"].items()
        ]
    return rows


def _screen(profile: Profile) -> Markup:
    worst = max((_median(each.before) for each in profile.errors), default=0.0) or 1.0
    rows = [
        (
            each.of,
            f"{each.after.rows:,}",
            *map(text.pair, each[1:]),
            html.bar(Piece(_median(each.before) / worst, GREY)),
            html.bar(Piece(_median(each.after) / worst, COLOURS[0])),
        )
        for each in profile.errors
    ]
    said = [("", line) for each in profile.calibrated for line in text.about(each)]
    skipped = dict(profile.gathered.passed_over) if profile.gathered is not None else {}
    skipped |= profile.kernels.skipped if profile.kernels is not None else {}
    written = f"written to {profile.file}" if profile.file else "not written yet: .write(FILE)"
    return html.screen(
        f"{profile.name}: {profile.base.title}, calibrated",
        written,
        html.table(_HEAD, rows, right="1234"),
        html.lines(said),
        html.remarks([f"Not used, {count} points: {why}" for why, count in skipped.items()]),
    )


def _median(errors: Stats) -> float:
    return errors.median_pct or 0.0

"""An estimate as one self-contained HTML page, which loads nothing and runs nothing.

The texts are those of the command line's report, the pictures those of its ``--plot``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import shardcost
from shardcost.catalog.errors import CONFIDENCE_PCT
from shardcost.estimate.explain import explanation
from shardcost.estimate.interval import interval_of, ranges_of
from shardcost.estimate.messages import messages
from shardcost.estimate.result import Estimate
from shardcost.estimate.roofline import roofline
from shardcost.estimate.why import SUMS, figures, why
from shardcost.memory.footprint import KINDS
from shardcost.report import (
    collective_plot,
    interval,
    memory_plot,
    roofline_plot,
    scaling,
    scaling_plot,
    timeline_plot,
)
from shardcost.report import estimate as text
from shardcost.report.command import command_of, python_of
from shardcost.report.estimate_data import ROOFLINE_CONVENTION, drawing_of
from shardcost.report.markup import Markup, element, linked, scrolling, table
from shardcost.report.pictures import COMPUTE, PARTS, Sketch, inline
from shardcost.report.text import name_of
from shardcost.search.review import Review
from shardcost.units import (
    format_bytes,
    format_bytes_decimal,
    format_percent,
    format_rate,
    format_time,
    format_tokens,
)
from shardcost.validate.shipped import Point
from shardcost.workload import Decode, Prefill, Train

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""What a browser may load or run for the page: nothing but its own style."""
_SEVERAL: Final = 5
"""Figures named as resting on a source."""
_PIXELS_PER_INCH: Final = (62, 96)
"""Least and most of pictures: where there is less room, they scroll in their boxes."""
_WITHOUT_BREAKS: Final = 10**9
_WIDEST_BAR: Final = 100
_RATES: Final = {
    "tokens/s": "tokens_per_s",
    "tokens/s/GPU": "tokens_per_s_per_gpu",
    "tokens/s/user": "tokens_per_s_per_user",
}


class _Page(NamedTuple):
    """What the sections show."""

    review: Review
    points: Sequence[Point]
    caveats: Sequence[str]

    @property
    def estimate(self) -> Estimate:
        return self.review.estimate


def as_html(review: Review, points: Sequence[Point] = (), caveats: Sequence[str] = ()) -> str:
    """Return a review of one layout as a self-contained HTML document.

    Args:
        review: The estimate, and what it is compared with.
        points: Measurements of the heaviest collective.
        caveats: Of the model's file.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    page = _Page(review, points, caveats)
    links, sections = [], []
    for name, (title, make) in _SECTIONS.items():
        inside = list(make(page))
        if inside:
            heading = element("h2", title, id=f"{name}-heading")
            labelled = {"id": name, "aria_labelledby": f"{name}-heading"}
            sections.append(element("section", heading, *inside, **labelled))
            links.append(element("li", element("a", title, href=f"#{name}")))
    header = element(
        "header",
        element("h1", text.title(review.estimate)),
        element("p", text.details(review.estimate), class_="details"),
        element("nav", element("ul", *links), aria_label="Sections"),
    )
    closing = (
        f"Made by shardcost {shardcost.__version__}. Times are predictions; each interval covers"
        f" {CONFIDENCE_PCT} % of similar measurements."
    )
    footer = element("footer", element("p", closing))
    body = element("body", header, element("main", *sections), footer)
    whole = element("html", _head(text.title(review.estimate)), body, lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


def _head(title: str) -> Markup:
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content=f"shardcost {shardcost.__version__}"),
        element("title", title),
        element("style", Markup(style)),
    )


def _figures(page: _Page) -> Iterator[str]:
    estimate = page.estimate
    ranges = ranges_of(estimate)

    def between(name: str, form: Callable[[Any], str]) -> str:
        if name not in ranges:  # memory in serving
            return "counted, without an interval"
        return f"{form(ranges[name].low)} to {form(ranges[name].high)}"

    shown = [
        (label, format_time(getattr(estimate, name)), interval.ends(*ranges[name][:2]))
        for label, name in _times(estimate).items()
    ]
    capacity = format_bytes(estimate.cluster.device.memory_bytes)
    shares = {"MFU": "mfu", "HFU": "hfu", "exposed communication": "comm_share"}
    others: tuple[tuple[dict[str, str], Callable[[Any], str]], ...] = (
        (_RATES, format_tokens),
        (shares, format_percent),
        ({f"memory, of {capacity}": "memory_bytes"}, format_bytes),
    )
    shown += [
        (label, form(getattr(estimate, name)), between(name, form))
        for names, form in others
        for label, name in names.items()
        if getattr(estimate, name) is not None
    ]
    figures = (
        element(
            "div",
            element("dt", label),
            element("dd", value, class_="value"),
            element("dd", ends, class_="range"),
        )
        for label, value, ends in shown
    )
    yield element("dl", *figures, class_="figures")
    below = f"Below each figure is its {CONFIDENCE_PCT} % interval."
    yield element("p", f"{below} {interval.explained(interval_of(estimate))}", class_="muted")
    rest = {"MFU", "TFLOP/s", "energy"}
    yield _labelled([pair for pair in text.figures(estimate) if pair[0] in rest])


def _times(estimate: Estimate) -> dict[str, str]:
    """Return the names of the times that a workload is judged by."""
    work = estimate.workload
    if isinstance(work, Prefill):
        return {"TTFT": "ttft_s"}
    if isinstance(work, Decode):
        return {"TPOT": "tpot_s", **({} if work.query_tokens == 1 else {"step": "time_s"})}
    return {"step": "time_s"}


def _labelled(pairs: Sequence[tuple[str, str]]) -> Markup:
    """Return texts under their labels."""
    pieces = (piece for label, words in pairs for piece in (("dt", label), ("dd", words)))
    return element("dl", *(element(tag, words) for tag, words in pieces), class_="said")


def _warnings(page: _Page) -> Iterator[str]:
    remarks = text.as_remarks(page.estimate.caveats, page.caveats, every=True)
    if remarks:
        yield element("ul", *(element("li", each) for each in remarks), class_="warnings")


def _time(page: _Page) -> Iterator[str]:
    shown = text.parts(page.estimate)
    longest = max(each.seconds + each.hidden_s for each in shown)
    rows = [
        (*each.cells, _bars(each, _WIDEST_BAR / longest) if longest else Markup(""))
        for each in shown
    ]
    caption = "Parts of the time; they add up to it. Hatched: communication hidden behind compute."
    yield table(caption, (*text.PARTS_HEAD, ""), rows, right="1234")


def _bars(part: text.PartOfTime, percent_per_s: float) -> Markup:
    """Return a bar of a part, and beside it what is hidden of its communication."""
    colour = PARTS.get(part.key, COMPUTE)
    shown = percent_per_s * max(0.0, part.seconds)
    hidden = percent_per_s * part.hidden_s
    solid = element("span", class_="bar", style=f"width:{shown:.2f}%;background:{colour}")
    hatched = element("span", class_="bar hidden", style=f"width:{hidden:.2f}%;color:{colour}")
    return element("div", *([solid, hatched] if hidden else [solid]), class_="bars")


def _communication(page: _Page) -> Iterator[str]:
    estimate = page.estimate
    if estimate.devices == 1:
        yield element("p", "A single GPU does not communicate.")
        yield _labelled([pair for pair in text.foundations(estimate) if pair[0] != "memory"])
        return
    sent = estimate.traffic.by_group
    rows = []
    for group in {**estimate.comm_s, **sent}:
        if estimate.comm_s.get(group) or sent.get(group):
            seconds = (estimate.comm_s, estimate.exposed_s, estimate.hidden_s)
            times = (format_time(by_group.get(group, 0.0)) for by_group in seconds)
            rows.append((group.upper(), *times, format_bytes_decimal(sent.get(group, 0.0))))
    head = ("group", "total", "exposed", "hidden", "sent")
    yield table("Communication of a rank in a step, by group", head, rows, right="1234")
    yield _labelled([pair for pair in text.foundations(estimate) if pair[0] != "memory"])
    every = messages(estimate)
    if every:
        caption = "Every collective of a step"
        cells = {
            "collective": [each.collective for each in every],
            "operation": [each.name for each in every],
            "group": [each.group.upper() for each in every],
            "size": [format_bytes(each.size_bytes) for each in every],
            "ranks": [f"{each.ranks:,}" for each in every],
            "count": [f"{each.count:,.6g}" for each in every],
            "time": [format_time(each.time_s) for each in every],
            "total": [format_time(each.total_s) for each in every],
            "path": [f"{each.algorithm} {each.protocol}" for each in every],
            "library": [each.library for each in every],
        }
        yield table(caption, list(cells), zip(*cells.values(), strict=True), right="34567")


def _memory(page: _Page) -> Iterator[str]:
    estimate = page.estimate
    words = next(words for label, words in text.foundations(estimate) if label == "memory")
    yield element("p", words)
    stages, trains = estimate.memory.stages, isinstance(estimate.workload, Train)
    used = [kind for kind in KINDS if any(getattr(stage, kind) for stage in stages.values())]
    rows = [
        (
            f"{name} stage" if len(stages) > 1 else "every rank",
            *(format_bytes(getattr(stage, kind)) for kind in used),
            format_bytes(stage.total),
            *([str(stage.moment)] if trains else []),
        )
        for name, stage in stages.items()
    ]
    head = ("rank", *(name_of(kind) for kind in used), "total")
    right = "".join(str(index) for index in range(1, len(used) + 2))
    caption = "Memory of the fullest rank of each stage"
    yield table(caption, (*head, *(["at its peak"] if trains else [])), rows, right=right)
    capacity = format_bytes(estimate.cluster.device.memory_bytes)
    label = f"Memory by kind against the {capacity} of a GPU"
    yield _picture("memory", memory_plot.sketch(estimate), label)


def _timelines(page: _Page) -> Iterator[str]:
    for of, heading in (("layer", "One layer"), ("step", "The step")):
        line = drawing_of(page.estimate, of)
        where = f"on {len(line.streams)} streams"
        label = f"Timeline: {line.title}, {format_time(line.span_s)}, {where}"
        left_out = f" Not drawn completely: {line.cut}." if line.cut else ""
        yield element("h3", heading)
        sketch = timeline_plot.sketch(page.estimate, of, line)
        yield _picture(f"timeline-{of}", sketch, label, f"{label}.{left_out}")


def _scaling(page: _Page) -> Iterator[str]:
    curve = page.review.scaling
    if len(curve.rows) == 1:
        return
    what = "Tensor parallelism on the same GPUs; data parallelism uses the rest"
    yield table(f"{what}.", scaling.HEAD, scaling.lines(curve), right="0123456")
    reasons = [f"{curve.name} {row.value}: {row.reason}" for row in curve.rows if row.reason]
    if reasons:
        yield element("ul", *(element("li", reason) for reason in reasons), class_="reasons")
    label = f"{what}: {'; '.join(scaling.sentences(curve))}"
    yield _picture("scaling", scaling_plot.sketch(curve), label, f"{label}.")


def _heaviest(page: _Page) -> Iterator[str]:
    if page.review.heaviest is None:
        return
    most, curve = page.review.heaviest
    size, time = format_bytes(most.size_bytes), format_time(most.time_s)
    other = "; the curve is of another library" if page.review.heaviest.of_other_library else ""
    nodes = f" on {most.nodes} nodes" if most.nodes > 1 else ""
    yield element(
        "p",
        f"{most.name}: {most.collective} of {size} over {most.ranks} GPUs{nodes} in {time}"
        f" ({most.algorithm} {most.protocol}, {most.library}{other}), {most.count:,.6g} per step,"
        f" {format_time(most.total_s)} in total, hidden time included.",
    )
    label = f"Time and bus bandwidth of {most.collective} over sizes, with every path"
    measured = "no measurements of this system and GPU count ship with shardcost"
    if page.points:
        measured = f"circles are {len(page.points)} measurements that ship with shardcost"
    mark = collective_plot.Mark(most.size_bytes, most.time_s, f"this layout: {size}, {time}")
    caption = f"{label}; {measured}. The diamond is this layout's message."
    sketch = collective_plot.sketch(curve, page.points, mark)
    yield _picture("collective", sketch, label, caption)


def _roofline(page: _Page) -> Iterator[str]:
    roof = roofline(page.estimate)
    label = (
        f"Roofline of a layer's kernels on {roof.device}: at the roof they would take"
        f" {format_percent(roof.share_of_roof)} of their {format_time(roof.time_s)}"
    )
    caption = f"{label}. {ROOFLINE_CONVENTION}"
    yield _picture("roofline", roofline_plot.sketch(page.estimate), label, caption)
    rows = [
        (
            each.name,
            each.during,
            name_of(each.kind),
            f"{each.count:g}",
            format_time(each.time_s),
            format_rate(each.bytes_per_s),
            format_percent(each.share_of_roof),
            each.limit,
        )
        for each in roof.kernels
    ]
    head = ("kernel", "pass", "kind", "count", "time", "memory traffic", "of the roof", "limit")
    yield table("The kernels of a layer", head, rows, right="3456")


def _explanation(page: _Page) -> Iterator[str]:
    lines = explanation(page.estimate, _WITHOUT_BREAKS).splitlines()
    yield _labelled([line.partition(": ")[::2] for line in lines])
    yield element("h3", "Sources")
    entries = []
    for source, names in _sources(page.estimate).items():
        more = f" and {len(names) - _SEVERAL} more" if len(names) > _SEVERAL else ""
        behind = f"Used for: {', '.join(names[:_SEVERAL])}{more}."
        muted = element("span", behind, class_="muted")
        entries.append(element("li", linked(source), ". ", muted))
    yield element("ol", *entries, class_="sources")


def _sources(estimate: Estimate) -> dict[str, list[str]]:
    """Return every source behind the figures of an estimate, and the names of those figures."""
    behind: dict[str, list[str]] = {str(estimate.model.source): ["the model's shape"]}
    for figure in figures(estimate):
        room, _, name = figure.partition(".")
        if room in SUMS:  # they rest on one call, which is a figure itself
            continue
        answer = why(estimate, figure)
        title = name if room == "op" else answer.title.partition(",")[0].partition(":")[0]
        title = title if title[:2].isupper() else title[:1].lower() + title[1:]
        for source in answer.sources:
            if not source.endswith("; extrapolated"):
                behind.setdefault(source, []).append(title)
    return {source: list(dict.fromkeys(names)) for source, names in behind.items()}


def _reproduce(page: _Page) -> Iterator[str]:
    command, python = command_of(page.estimate), python_of(page.estimate)
    for where, code in (("On the command line", command), ("In Python", python)):
        yield element("p", f"{where}, with shardcost {shardcost.__version__}:")
        yield scrolling(element("pre", element("code", code)), where)


def _picture(name: str, sketch: Sketch, label: str, caption: str = "") -> Markup:
    """Return a picture on a white card, with its caption."""
    least, most = (round(pixels * sketch.inches[0]) for pixels in _PIXELS_PER_INCH)
    drawn = inline(sketch, name, label, style=f"min-width:{least}px;max-width:{most}px")
    return element("figure", scrolling(drawn, label), element("figcaption", caption or f"{label}."))


_SECTIONS: Final[dict[str, tuple[str, Callable[[_Page], Iterable[str]]]]] = {
    "figures": ("Figures", _figures),
    "limit": ("What limits it", lambda page: [_labelled(text.sentences(page.review.advice))]),
    "warnings": ("Warnings and notes", _warnings),
    "time": ("Where the time goes", _time),
    "communication": ("Communication", _communication),
    "memory": ("Memory", _memory),
    "timeline": ("Timeline", _timelines),
    "scaling": ("Scaling", _scaling),
    "collective": ("The heaviest collective", _heaviest),
    "roofline": ("Roofline", _roofline),
    "why": ("Where the numbers come from", _explanation),
    "again": ("Reproduce", _reproduce),
}
"""Of the page, in order: heading and content."""

"""An estimate as one page to hand on: everything in one file, which loads nothing and runs nothing.

The texts of figures are those of the command line's report, the pictures those of its ``--plot``;
what is said besides comes from the same rooms: advice, messages, curves, explanation, sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import shardcost
from shardcost.catalog.errors import CONFIDENCE_PCT
from shardcost.checks import is_array
from shardcost.collectives.library_time import collective_time, default_library
from shardcost.collectives.multimem import MULTIMEM
from shardcost.collectives.sweep import LEAST_BYTES, MOST_BYTES, curve_sizes
from shardcost.errors import BadTypeError
from shardcost.estimate.explain import explanation
from shardcost.estimate.interval import interval_of, ranges_of
from shardcost.estimate.messages import Message, messages
from shardcost.estimate.result import BUBBLE, COMMUNICATION, Estimate
from shardcost.estimate.result import HOST as HOST_PART
from shardcost.estimate.roofline import roofline
from shardcost.estimate.scaled import tensor_scaling
from shardcost.memory.footprint import KINDS
from shardcost.report import (
    advice,
    interval,
    memory_plot,
    plot,
    roofline_plot,
    scaling,
    scaling_plot,
    timeline_plot,
)
from shardcost.report import estimate as text
from shardcost.report.command import command_of, python_of
from shardcost.report.html_style import STYLE
from shardcost.report.markup import Markup, element, linked, scrolling, table
from shardcost.report.meanings import COMPUTE, GROUPS, HOST, IDLE
from shardcost.report.meanings import KINDS as COMPUTE_KINDS
from shardcost.report.sketch import Sketch
from shardcost.report.sources import Stated, sources_of
from shardcost.report.svg import inline
from shardcost.report.timeline import drawing_of
from shardcost.search.advice import advice as advice_on
from shardcost.units import (
    format_bytes,
    format_bytes_decimal,
    format_percent,
    format_rate,
    format_time,
    format_tokens,
)
from shardcost.validate.shipped_points import points_like
from shardcost.workload import Decode, Prefill

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""What a browser may load or run for the page: nothing but its own style."""
_SECTIONS: Final = {
    "figures": "Figures",
    "limit": "What limits it",
    "mind": "What to mind",
    "time": "Where the time goes",
    "communication": "Communication",
    "memory": "Memory",
    "timeline": "Timeline",
    "scaling": "Scaling",
    "collective": "The heaviest collective",
    "roofline": "Roofline",
    "why": "Where the numbers come from",
    "again": "The same again",
}
"""Of the page, in order."""
_SEVERAL: Final = 5
"""Figures named as resting on a source."""
_PIXELS_PER_INCH: Final = (62, 96)
"""Of pictures, from so many to so many: where there is less room, they scroll in their boxes."""
_WIDEST_BAR: Final = 100
_PART_COLOURS: Final = {
    "gemm": COMPUTE_KINDS["gemm"],
    "attention": COMPUTE_KINDS["attention"],
    "elementwise": COMPUTE_KINDS["elementwise"],
    "optimizer": "#444444",
    BUBBLE: IDLE,
    HOST_PART: HOST,
    **{f"{group}{COMMUNICATION}": colour for group, colour in GROUPS.items()},
}


def as_html(found: Estimate, caveats: Sequence[str] = ()) -> str:
    """Return an estimate of one layout as a self-contained HTML document.

    Args:
        found: What is reported.
        caveats: What is to mind about a model's file.

    Raises:
        BadTypeError: The estimate is of an array of layouts.
        MissingExtraError: matplotlib is not installed.
    """
    if is_array(found.time_s):
        raise BadTypeError("layout", found.layout, "one layout, not an array of them, to report")
    makers: dict[str, Callable[[], Iterator[str]]] = {
        "figures": lambda: _figures(found),
        "limit": lambda: _limit(found),
        "mind": lambda: _to_mind(found, caveats),
        "time": lambda: _time(found),
        "communication": lambda: _communication(found),
        "memory": lambda: _memory(found),
        "timeline": lambda: _timelines(found),
        "scaling": lambda: _scaling(found),
        "collective": lambda: _heaviest(found),
        "roofline": lambda: _roofline(found),
        "why": lambda: _why(found),
        "again": lambda: _again(found),
    }
    made = {name: list(makers[name]()) for name in _SECTIONS}
    shown = {name: inside for name, inside in made.items() if inside}
    body = element(
        "body",
        _header(found, list(shown)),
        element("main", *(_section(name, inside) for name, inside in shown.items())),
        _footer(),
    )
    whole = element("html", _head(text.title(found)), body, lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


def _head(title: str) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content=f"shardcost {shardcost.__version__}"),
        element("title", title),
        element("style", Markup(STYLE)),
    )


def _header(found: Estimate, sections: Sequence[str]) -> Markup:
    links = (element("li", element("a", _SECTIONS[name], href=f"#{name}")) for name in sections)
    return element(
        "header",
        element("h1", text.title(found)),
        element("p", text.details(found), class_="details"),
        element("nav", element("ul", *links), aria_label="Sections"),
    )


def _section(name: str, inside: Sequence[str]) -> Markup:
    heading = element("h2", _SECTIONS[name], id=f"{name}-heading")
    return element("section", heading, *inside, id=name, aria_labelledby=f"{name}-heading")


def _footer() -> Markup:
    said = (
        f"Made by shardcost {shardcost.__version__}. Times are predictions; each interval holds"
        " nine of ten measured runs like it."
    )
    return element("footer", element("p", said))


# The sections.


def _figures(found: Estimate) -> Iterator[str]:
    ranges = ranges_of(found)

    def between(name: str, said: Callable[[Any], str]) -> str:
        return f"{said(ranges[name].low)} to {said(ranges[name].high)}"

    shown = [
        *(
            (label, format_time(getattr(found, figure)), interval.ends(*ranges[figure][:2]))
            for label, figure in _times(found).items()
        ),
        *(
            (label, format_tokens(getattr(found, figure)), between(figure, format_tokens))
            for label, figure in _RATES.items()
            if getattr(found, figure) is not None
        ),
        ("MFU", format_percent(found.mfu), between("mfu", format_percent)),
        ("HFU", format_percent(found.hfu), between("hfu", format_percent)),
        (
            "communication, exposed",
            format_percent(found.comm_share),
            between("comm_share", format_percent),
        ),
        (
            f"memory, of {format_bytes(found.cluster.device.memory_bytes)}",
            format_bytes(found.memory_bytes),
            between("memory_bytes", format_bytes),
        ),
    ]
    yield element("dl", *(_figure(*each) for each in shown), class_="figures")
    said = f"Below each figure is its {CONFIDENCE_PCT} % interval."
    yield element("p", f"{said} {interval.explained(interval_of(found))}", class_="muted")
    yield _said([pair for pair in text.figures(found) if pair[0] in {"MFU", "energy"}])


def _times(found: Estimate) -> dict[str, str]:
    """Return the names of the times that a workload is judged by."""
    work = found.workload
    if isinstance(work, Prefill):
        return {"TTFT": "ttft_s"}
    if isinstance(work, Decode):
        return {"TPOT": "tpot_s", **({} if work.new_tokens == 1 else {"step": "time_s"})}
    return {"step": "time_s"}


_RATES: Final = {
    "tokens/s": "tokens_per_s",
    "tokens/s/GPU": "tokens_per_s_per_gpu",
    "tokens/s/user": "tokens_per_s_per_user",
}


def _figure(label: str, value: str, between: str) -> Markup:
    return element(
        "div",
        element("dt", label),
        element("dd", value, class_="value"),
        element("dd", between, class_="range"),
    )


def _said(pairs: Sequence[tuple[str, str]]) -> Markup:
    """Return texts under their labels."""
    pieces = (piece for label, said in pairs for piece in (("dt", label), ("dd", said)))
    return element("dl", *(element(tag, said) for tag, said in pieces), class_="said")


def _limit(found: Estimate) -> Iterator[str]:
    known = advice_on(found.model, found.cluster, found.layout, found.workload, found.software)
    yield _said(advice.sentences(known))


def _to_mind(found: Estimate, caveats: Sequence[str]) -> Iterator[str]:
    remarks = text.as_remarks(found.warnings, caveats)
    if remarks:
        yield element("ul", *(element("li", each) for each in remarks), class_="warnings")


def _time(found: Estimate) -> Iterator[str]:
    shown = text.parts(found)
    longest = max(each.seconds + each.hidden_s for each in shown)
    rows = [
        (*each.cells, _bars(each, _WIDEST_BAR / longest) if longest else Markup(""))
        for each in shown
    ]
    caption = "Parts of the time; they add up to it. Hatched: communication that something hides."
    yield table(caption, (*text.PARTS_HEAD, ""), rows, right="1234")


def _bars(part: text.PartOfTime, percent_per_s: float) -> Markup:
    """Return a bar of a part, and beside it what is hidden of its communication."""
    colour = _PART_COLOURS.get(part.name, COMPUTE)
    shown = percent_per_s * max(0.0, part.seconds)
    hidden = percent_per_s * part.hidden_s
    solid = element("span", class_="bar", style=f"width:{shown:.2f}%;background:{colour}")
    hatched = element("span", class_="bar hidden", style=f"width:{hidden:.2f}%;color:{colour}")
    return element("div", *([solid, hatched] if hidden else [solid]), class_="bars")


def _communication(found: Estimate) -> Iterator[str]:
    if found.devices == 1:
        yield element("p", "One GPU by itself sends nothing.")
        return
    sent = found.traffic.by_group
    rows = [
        (
            group,
            format_time(found.comm_s.get(group, 0.0)),
            format_time(found.exposed_s.get(group, 0.0)),
            format_time(found.hidden_s.get(group, 0.0)),
            format_bytes_decimal(sent.get(group, 0.0)),
        )
        for group in {**found.comm_s, **sent}
        if found.comm_s.get(group) or sent.get(group)
    ]
    head = ("group", "total", "exposed", "hidden", "sent")
    yield table("Communication of a rank in a step, by group", head, rows, right="1234")
    yield _said([pair for pair in text.foundations(found) if pair[0] != "memory"])
    every = messages(found)
    if every:
        caption = "Every collective of a step"
        yield table(caption, _MESSAGE, [_message(each) for each in every], right="34567")


_MESSAGE: Final = (
    *("collective", "after or before", "group", "size", "ranks", "times", "each", "in all"),
    *("path", "library"),
)


def _message(each: Message) -> tuple[str, ...]:
    return (
        each.collective,
        each.name,
        each.group,
        format_bytes(each.size_bytes),
        f"{each.ranks:,}",
        f"{each.count:,.6g}",
        format_time(each.time_s),
        format_time(each.total_s),
        f"{each.algorithm} {each.protocol}",
        each.library,
    )


def _memory(found: Estimate) -> Iterator[str]:
    yield from (element("p", said) for label, said in text.foundations(found) if label == "memory")
    stages = found.memory.stages
    used = [kind for kind in KINDS if any(getattr(held, kind) for held in stages.values())]
    rows = [
        (
            f"{name} stage" if len(stages) > 1 else "every rank",
            *(format_bytes(getattr(held, kind)) for kind in used),
            format_bytes(held.total),
            str(held.moment),
        )
        for name, held in stages.items()
    ]
    head = ("where", *(kind.replace("_", " ") for kind in used), "total", "fullest moment")
    right = "".join(str(index) for index in range(1, len(used) + 2))
    yield table("What the fullest rank of each stage holds", head, rows, right=right)
    label = f"Bars of memory by kind against the {format_bytes(_capacity(found))} of a device"
    yield _picture("memory", memory_plot.sketch(found), label)


def _capacity(found: Estimate) -> Any:
    return found.cluster.device.memory_bytes


def _timelines(found: Estimate) -> Iterator[str]:
    for of, heading in (("layer", "One layer"), ("step", "The step")):
        line = drawing_of(found, of)
        label = (
            f"Timeline: {line.title}, {format_time(line.span_s)}, on {len(line.streams)} streams"
        )
        left_out = f" Not all of it is drawn: {line.cut}." if line.cut else ""
        yield element("h3", heading)
        yield _picture(
            f"timeline-{of}", timeline_plot.sketch(found, line), label, f"{label}.{left_out}"
        )


def _scaling(found: Estimate) -> Iterator[str]:
    curve = tensor_scaling(found)
    if len(curve.rows) == 1:
        return
    said = "Tensor parallelism at the same GPUs; data parallelism takes what is left"
    yield table(f"{said}.", scaling.HEAD, scaling.lines(curve), right="0123456")
    reasons = [f"{curve.name} {row.value}: {row.reason}" for row in curve.rows if row.reason]
    if reasons:
        yield element("ul", *(element("li", reason) for reason in reasons), class_="reasons")
    closing = "; ".join(scaling.sentences(curve))
    label = f"{said}: {closing}"
    yield _picture("scaling", scaling_plot.sketch(curve), label, f"{label}.")


def _heaviest(found: Estimate) -> Iterator[str]:
    every = messages(found)
    if not every:
        return
    most = every[0]
    by_hand = most.library == MULTIMEM
    sweep = collective_time(
        most.collective,
        curve_sizes(LEAST_BYTES, MOST_BYTES),
        found.cluster,
        most.ranks,
        most.nodes,
        library=default_library(found.cluster) if by_hand else most.library,
    )
    points = points_like(sweep)
    size, took = format_bytes(most.size_bytes), format_time(most.time_s)
    others = ", not the curve's library" if by_hand else ""
    nodes = f" on {most.nodes} nodes" if most.nodes > 1 else ""
    said = (
        f"{most.name}: {most.collective} of {size} over {most.ranks} GPUs{nodes} in {took}"
        f" ({most.algorithm} {most.protocol}, {most.library}{others}), {most.count:,.6g} times a"
        f" step, {format_time(most.total_s)} in all, hidden or not"
    )
    yield element("p", f"{said}.")
    measured = f"{len(points)} measured points that ship with shardcost are circles"
    none = "of this system and count no measured points ship with shardcost"
    label = f"Time and bus bandwidth of {most.collective} over sizes, every path beside it"
    mark = plot.Mark(most.size_bytes, most.time_s, f"this layout: {size}, {took}")
    caption = f"{label}; {measured if points else none}. The diamond is this layout's message."
    yield _picture("collective", plot.sketch(sweep, points, mark), label, caption)


def _roofline(found: Estimate) -> Iterator[str]:
    roof = roofline(found)
    label = (
        f"Roofline of a layer's kernels on {roof.device}: at the roof they would take"
        f" {format_percent(roof.share_of_roof)} of their {format_time(roof.time_s)}"
    )
    yield _picture("roofline", roofline_plot.sketch(found), label, f"{label}.")
    rows = [
        (
            each.name,
            each.during,
            each.kind,
            f"{each.count:g}",
            format_time(each.time_s),
            format_rate(each.bytes_per_s),
            format_percent(each.share_of_roof),
            each.limit,
        )
        for each in roof.kernels
    ]
    head = ("kernel", "pass", "kind", "times", "time", "memory traffic", "of the roof", "limit")
    yield table("The kernels of a layer", head, rows, right="3456")


def _why(found: Estimate) -> Iterator[str]:
    lines = explanation(found, _WITHOUT_BREAKS).splitlines()
    pairs = [(label, said) for label, _, said in (line.partition(": ") for line in lines)]
    yield _said(pairs)
    yield element("h3", "Sources")
    yield element("ol", *map(_source, sources_of(found)), class_="sources")


_WITHOUT_BREAKS: Final = 10**9


def _source(stated: Stated) -> Markup:
    names = stated.behind
    more = f" and {len(names) - _SEVERAL} more" if len(names) > _SEVERAL else ""
    behind = f"Behind: {', '.join(names[:_SEVERAL])}{more}."
    return element("li", linked(stated.source), ". ", element("span", behind, class_="muted"))


def _again(found: Estimate) -> Iterator[str]:
    yield element("p", f"shardcost {shardcost.__version__}, on the command line:")
    yield _code(command_of(found), "The command line")
    yield element("p", "In Python:")
    yield _code(python_of(found), "Python")


def _code(said: str, label: str) -> Markup:
    return scrolling(element("pre", element("code", said)), label)


def _picture(name: str, sketch: Sketch, label: str, caption: str = "") -> Markup:
    """Return a picture on a white card, with what it shows in words."""
    least, most = (round(pixels * sketch.inches[0]) for pixels in _PIXELS_PER_INCH)
    drawn = inline(sketch, name, label, style=f"min-width:{least}px;max-width:{most}px")
    said = element("figcaption", caption or f"{label}.")
    return element("figure", scrolling(drawn, label), said)

"""Why a figure is as it is, as plain data and for a terminal; and the figures of a collective.

`why_collective` answers for one collective what `shardcost.estimate.why` does for an estimate: the
formulas, symbols and sources are those of its report.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Final

from shardcost.collectives import ALGORITHMS, PROTOCOLS
from shardcost.collectives.group import bus_factor
from shardcost.collectives.library_time import CollectiveTime
from shardcost.collectives.receipts import SIZE, bound_receipt, collective_receipt
from shardcost.errors import BadTypeError, UnknownNameError
from shardcost.estimate.why.answer import Why, answer, collective_error, part
from shardcost.receipt import identifiers
from shardcost.report.collective import exact_bytes, link, parts, title
from shardcost.report.collective import why as rule_of_choice
from shardcost.report.describe import attributes
from shardcost.report.text import heading, paragraph, table
from shardcost.traced import named, receipt

FIGURES: Final = ("time_s", "busbw", "algbw", "bound_s", "link_share")
"""What of a collective can be asked why, besides the parts of its path."""
_ROOM: Final = "collective."
_PART: Final = "collective.part."


def as_data(answer: Why) -> dict[str, Any]:
    """Return why a figure is as it is as plain data.

    A term that can be explained in turn has the name of its figure; one of a sum, its share.
    """
    names = identifiers([part.title for part in answer.parts])
    parts = {name: part.name for name, part in zip(names, answer.parts, strict=True)}
    parts |= {part.title: part.name for part in answer.parts}
    is_sum = answer.expression == " + ".join(term.name for term in answer.terms)
    return {
        **attributes(answer, "figure=name title value unit text formula numbers"),
        "terms": [
            attributes(term, "symbol value unit text meaning source")
            | {
                "figure": parts.get(term.symbol, parts.get(term.name)),
                "share": term.value / answer.value if is_sum and answer.value else None,
            }
            for term in answer.terms
        ],
        "sources": list(answer.sources),
        "error": None if answer.error is None else asdict(answer.error),
        "parts": [attributes(part, "figure=name name=title value text") for part in answer.parts],
        "words": answer.words,
    }


def as_text(answer: Why) -> str:
    """Return why a figure is as it is for a terminal."""
    places = {source: number for number, source in enumerate(answer.sources, 1)}
    equation = dict.fromkeys((answer.formula, answer.numbers, answer.text))  # each step once
    sections = [
        heading(paragraph(f"{answer.title}: {answer.text}", "  ")),
        "\n".join(paragraph(f"= {step}", "  ") for step in equation),
    ]
    if answer.terms:
        cited = {source: f"[{number}]" for source, number in places.items()}
        rows = [
            (term.symbol, term.text, f"{term.meaning} {cited.get(term.source, '')}".strip())
            for term in answer.terms
        ]
        sections.append(table(("symbol", "value", "meaning"), rows, right="1"))
    if answer.words:
        sections.append(paragraph(f"In words: {answer.words}.", "  "))
    if answer.error:
        median = answer.error.median_pct
        fit = "" if median is None else f" (median error of the fit {median:.1f} %)"
        sections.append(paragraph(f"Error: {answer.error.words}{fit}.", "  "))
    if answer.parts:
        parts = ", ".join(f"{part.name} ({part.text})" for part in answer.parts)
        sections.append(paragraph(f"Made of: {parts}.", "  "))
    if places:
        said = (paragraph(f"[{number}] {source}", "    ") for source, number in places.items())
        sections.append("\n".join(said))
    return "\n\n".join(sections)


def collective_figures(result: CollectiveTime) -> list[str]:
    """Return the names of what can be asked of a collective.

    >>> from shardcost.collectives.library_time import collective_time
    >>> collective_figures(collective_time("all_reduce", 2**30, "h100_sxm", 8))[:2]
    ['collective.time_s', 'collective.busbw']
    """
    return [*(_ROOM + name for name in FIGURES), *(_PART + part.name for part in parts(result))]


def why_collective(result: CollectiveTime, figure: str) -> Why:
    """Return where one figure of a collective comes from.

    >>> from shardcost.collectives.library_time import collective_time
    >>> result = collective_time("all_reduce", 64 * 2**20, "h100_sxm", 8)
    >>> why_collective(result, "collective.busbw").formula
    'size / time x (2 x (ranks - 1) / ranks)'

    Args:
        result: A collective of one size.
        figure: One of `collective_figures`.

    Raises:
        UnknownNameError: no such figure.
        BadTypeError: the result is of many sizes.
    """
    if getattr(result.time_s, "ndim", 0):
        raise BadTypeError("size", result.size_bytes, "one size, not many, to explain")
    if figure not in (known := collective_figures(result)):
        raise UnknownNameError("figure", figure, known)
    if figure.startswith(_PART):
        return _part(result, figure)
    return {_ROOM + "time_s": _time, _ROOM + "bound_s": _bound}.get(figure, _over_time)(
        result, figure
    )


def _subject(result: CollectiveTime) -> str:
    return title(result, exact_bytes(float(result.size_bytes)))


def _time(result: CollectiveTime, figure: str) -> Why:
    """Return the time: the parts of the path that runs, or near a switch a mean over paths."""
    made_of = (part(_PART + each.name, each.name, each.value) for each in parts(result))
    return answer(
        collective_receipt(result, figure, f"Time of {_subject(result)}"),
        value=result.time_s,
        parts=made_of if result.group.ranks > 1 else (),
        error=collective_error(result, result.time_s),
        stated=[str(used.source()) for used in result.calibrations],
        words=rule_of_choice(result) if result.group.ranks > 1 else "one GPU sends nothing",
    )


def _part(result: CollectiveTime, figure: str) -> Why:
    """Return one part of the path that runs, with the symbols in its formula."""
    path = (result.algorithm, result.protocol)
    whole = next(each for each in parts(result) if _PART + each.name == figure)
    name = f"{whole.name.capitalize()} of {' '.join(path)}, {_subject(result)}"
    words = f"{ALGORITHMS[path[0]]}; {PROTOCOLS[path[1]]}"
    return answer(replace(whole, name=figure, title=name), words=words)


def _over_time(result: CollectiveTime, figure: str) -> Why:
    """Return a rate, or the share of the link, which follows from one."""
    seconds = named("time", result.time_s, "s", "of a call")
    size = named("size", result.size_bytes, "bytes", SIZE)
    rate: Any = size / seconds if seconds else 0.0
    value, unit = float(result.algbw_bytes_per_s), "bytes/s"
    more: dict[str, Any] = {}
    made_of = part("collective.time_s", "time", result.time_s)
    if figure == "collective.algbw":
        name = "Algorithm bandwidth"
    elif figure == "collective.busbw":
        name, value = "Bus bandwidth", float(result.busbw_bytes_per_s)
        rate = rate * bus_factor(result.collective, named("ranks", result.group.ranks, "", "GPUs"))
        words = "busbw counts as if a ring ran; it may exceed the link where a switch adds up"
        more = {"stated": ["nccl-tests, doc/PERFORMANCE.md"], "words": words}
    else:
        name, value, unit = "Share of the slowest link's rate", float(result.link_share), "share"
        slowest, bus = link(result), float(result.busbw_bytes_per_s)
        meaning = f"{slowest.name}, nominal"
        nominal = named("link", slowest.bytes_per_s, "bytes/s", meaning, str(slowest.source))
        rate = named("busbw", bus, "bytes/s") / nominal
        made_of = part("collective.busbw", "busbw", bus, "bytes/s")
    return answer(
        receipt(rate, figure, f"{name}, {_subject(result)}", unit),
        value=value,
        error=collective_error(result, value, unit, inverse=True),
        parts=[made_of],
        **more,
    )


def _bound(result: CollectiveTime, figure: str) -> Why:
    name = f"What {result.algorithm} cannot beat, {_subject(result)}"
    return answer(
        bound_receipt(result, figure, name),
        value=result.bound_s,
        stated=["Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms"],
        words="bytes on the busiest link over its nominal rate; nothing fitted, so without error",
    )

"""Why a figure is as it is, as plain data and for a terminal; and the figures of a collective.

`why_collective` answers for one collective what `shardcost.estimate.why` does for an estimate: the
formulas, symbols and sources are those of its report.
"""

from __future__ import annotations

import re
from typing import Any, Final

from shardcost.collectives.bounds import bus_factor
from shardcost.collectives.interval import interval_of
from shardcost.collectives.library_time import CollectiveTime
from shardcost.collectives.receipts import SIZE
from shardcost.errors import BadTypeError, UnknownNameError
from shardcost.estimate.why.operation import path_formula
from shardcost.estimate.why.reason import Error, Part, Why, reason, spread
from shardcost.receipt import Term, in_unit
from shardcost.report.collective import (
    ALGORITHMS,
    PROTOCOLS,
    exact_bytes,
    link,
    parts,
    title,
)
from shardcost.report.collective import why as rule_of_choice
from shardcost.report.text import heading, paragraph, table

FIGURES: Final = ("time_s", "busbw", "algbw", "bound_s", "link_share")
"""What of a collective can be asked why, besides the parts of its path."""
_ROOM: Final = "collective."
_PART: Final = "collective.part."
_GLUE: Final = "\N{NO-BREAK SPACE}"
_BEFORE_UNIT: Final = re.compile(r"(?<=[0-9]) (?=%|(?:[kMGTPE]?(?:FLOP|B|J)|[KMGT]iB|[nmu]?s)\b)")


def as_data(answer: Why) -> dict[str, Any]:
    """Return why a figure is as it is as plain data."""
    return {
        "figure": answer.figure,
        "title": answer.title,
        "value": answer.value,
        "unit": answer.unit,
        "text": answer.text,
        "formula": answer.formula,
        "numbers": answer.numbers,
        "terms": [
            {
                "symbol": each.symbol,
                "value": each.value,
                "unit": each.unit,
                "text": each.text,
                "meaning": each.meaning,
                "source": each.source,
            }
            for each in answer.terms
        ],
        "sources": list(answer.sources),
        "error": None if answer.error is None else _error_as_data(answer.error),
        "parts": [
            {"figure": each.figure, "name": each.name, "value": each.value, "text": each.text}
            for each in answer.parts
        ],
        "words": answer.words,
    }


def _error_as_data(error: Error) -> dict[str, Any]:
    return {
        "words": error.words,
        "like": error.like,
        "rows": error.rows,
        "confidence_pct": error.confidence_pct,
        "low": error.low,
        "high": error.high,
        "median_pct": error.median_pct,
    }


def _paragraph(text: str, indent: str = "  ") -> str:
    """Return a wrapped text, no number apart from its unit."""
    return paragraph(_BEFORE_UNIT.sub(_GLUE, text), indent).replace(_GLUE, " ")


def as_text(answer: Why) -> str:
    """Return why a figure is as it is for a terminal."""
    places = {source: number for number, source in enumerate(answer.sources, 1)}
    sections = [heading(_paragraph(f"{answer.title}: {answer.text}")), _equation(answer)]
    if answer.terms:
        rows = [
            (each.symbol, each.text, _cited(each, places.get(each.source))) for each in answer.terms
        ]
        sections.append(table(("symbol", "value", "meaning"), rows, right="1"))
    if answer.words:
        sections.append(_paragraph(f"In words: {answer.words}."))
    if answer.error:
        sections.append(_paragraph(_error_in_words(answer.error)))
    if answer.parts:
        parts = ", ".join(f"{each.figure} ({each.text})" for each in answer.parts)
        sections.append(_paragraph(f"Made of: {parts}."))
    if places:
        said = (_paragraph(f"[{number}] {source}", "    ") for source, number in places.items())
        sections.append("\n".join(said))
    return "\n\n".join(sections)


def _equation(answer: Why) -> str:
    """Return the formula in symbols, with numbers, and its result; each once."""
    steps = dict.fromkeys((answer.formula, answer.numbers, answer.text))
    return "\n".join(_paragraph(f"= {each}") for each in steps)


def _cited(term: Term, place: int | None) -> str:
    return " ".join(filter(None, (term.meaning, f"[{place}]" if place else "")))


def _error_in_words(error: Error) -> str:
    fit = "" if error.median_pct is None else f" (median error of the fit {error.median_pct:.1f} %)"
    return f"Error: {error.words}{fit}."


def collective_figures(result: CollectiveTime) -> list[str]:
    """Return the names of what can be asked of a collective.

    >>> from shardcost.collectives.library_time import collective_time
    >>> collective_figures(collective_time("all_reduce", 2**30, "h100_sxm", 8))[:2]
    ['collective.time_s', 'collective.busbw']
    """
    return [
        *(_ROOM + name for name in FIGURES),
        *(_PART + part.name for part in parts(result)),
    ]


def why_collective(result: CollectiveTime, figure: str) -> Why:
    """Return where one figure of a collective comes from.

    >>> from shardcost.collectives.library_time import collective_time
    >>> result = collective_time("all_reduce", 64 * 2**20, "h100_sxm", 8)
    >>> why_collective(result, "collective.busbw").formula
    'factor x size / time'

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
    return {
        "time_s": _time,
        "busbw": _bus_rate,
        "algbw": _rate,
        "bound_s": _bound,
        "link_share": _link_share,
    }[figure.removeprefix(_ROOM)](result)


def _subject(result: CollectiveTime) -> str:
    return title(result, exact_bytes(float(result.size_bytes)))


def _time(result: CollectiveTime) -> Why:
    """Return the time: the parts of the path that runs, or near a switch a mean over paths."""
    figure, seconds = "collective.time_s", float(result.time_s)
    name = f"Time of {_subject(result)}"
    made_of = [Part(_PART + part.name, part.name, part.value, "s") for part in parts(result)]
    others: dict[str, Any] = {
        "error": _error(result, "s"),
        "sources": [str(each.source()) for each in result.calibrations],
        "words": rule_of_choice(result),
    }
    if result.group.ranks == 1:
        return reason(figure, name, seconds, "s", "0", [], words="one GPU sends nothing")
    meanings = {part.name: part.formula for part in parts(result)}
    expression, terms = path_formula(result, meanings)
    return reason(figure, name, seconds, "s", expression, terms, parts=made_of, **others)


def _part(result: CollectiveTime, figure: str) -> Why:
    """Return one part of the path that runs, with the symbols in its formula."""
    path = (result.algorithm, result.protocol)
    part = next(each for each in parts(result) if _PART + each.name == figure)
    return reason(
        figure,
        f"{part.name.capitalize()} of {' '.join(path)}, {_subject(result)}",
        part.value,
        "s",
        part.expression,
        part.terms,
        words=f"{ALGORITHMS[path[0]]}; {PROTOCOLS[path[1]]}",
    )


def _size(result: CollectiveTime) -> Term:
    return Term("size", float(result.size_bytes), "bytes", SIZE)


def _seconds(result: CollectiveTime) -> Term:
    return Term("time", float(result.time_s), "s", "of a call")


def _factor(result: CollectiveTime) -> Term:
    factor = float(bus_factor(result.collective, result.group.ranks))
    meaning = "what each link of a ring carries, over the buffer"
    return Term("factor", factor, "", meaning, "nccl-tests, doc/PERFORMANCE.md")


def _link(result: CollectiveTime) -> Term:
    slowest = link(result)
    meaning = f"{slowest.name}, one way, nominal"
    return Term("link", float(slowest.bytes_per_s), "bytes/s", meaning, str(slowest.source))


def _time_part(result: CollectiveTime) -> Part:
    return Part("collective.time_s", "time", float(result.time_s), "s")


def _rate(result: CollectiveTime) -> Why:
    value = float(result.algbw_bytes_per_s)
    return reason(
        "collective.algbw",
        f"Algorithm bandwidth of {_subject(result)}",
        value,
        "bytes/s",
        "size / time" if value else "0",
        [_size(result), _seconds(result)],
        parts=[_time_part(result)],
        error=_error(result, "bytes/s", value),
    )


def _bus_rate(result: CollectiveTime) -> Why:
    value = float(result.busbw_bytes_per_s)
    return reason(
        "collective.busbw",
        f"Bus bandwidth of {_subject(result)}",
        value,
        "bytes/s",
        "factor * size / time" if value else "0",
        [_factor(result), _size(result), _seconds(result)],
        parts=[_time_part(result)],
        error=_error(result, "bytes/s", value),
        words="busbw counts as if a ring ran; it may exceed the link where a switch adds up",
    )


def _link_share(result: CollectiveTime) -> Why:
    value, bus = float(result.link_share), float(result.busbw_bytes_per_s)
    return reason(
        "collective.link_share",
        f"Share of the slowest link's rate, {_subject(result)}",
        value,
        "share",
        "busbw / link",
        [Term("busbw", bus, "bytes/s", "factor x size / time"), _link(result)],
        parts=[Part("collective.busbw", "busbw", bus, "bytes/s")],
        error=_error(result, "share", value),
    )


def _bound(result: CollectiveTime) -> Why:
    value, slowest = float(result.bound_s), _link(result)
    crossing = Term(
        "crossing",
        value * slowest.value / float(result.size_bytes),
        "",
        "times the buffer passes the busiest link, at the least",
        "Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms",
    )
    return reason(
        "collective.bound_s",
        f"What {result.algorithm} cannot beat, {_subject(result)}",
        value,
        "s",
        "crossing * size / link",
        [crossing, _size(result), slowest],
        words="bytes on the busiest link over its nominal rate; nothing fitted, so without error",
    )


def _error(result: CollectiveTime, unit: str, value: float | None = None) -> Error | None:
    """Return the error of rows like a collective, for its time or for what is inverse to it."""
    seconds = float(result.time_s)
    if not seconds:
        return None
    found = interval_of(result)
    low, high = float(found.low_s), float(found.high_s)
    factors = low / seconds, high / seconds
    if value is not None:
        low, high = (value / each for each in factors[::-1])
    ends = f"{in_unit(low, unit)} to {in_unit(high, unit)}"
    words = f"of {found.like}, nine of ten times were within {spread(*factors)}: {ends}"
    median = result.calibrations[0].fit.median_pct if result.calibrations else None
    return Error(words, found.like, found.rows, low, high, median)

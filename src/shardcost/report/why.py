"""Why a figure is as it is, as plain data and for a terminal; and the figures of a collective.

`why_collective` answers for one collective what `shardcost.estimate.why` does for an estimate: the
formulas, symbols and sources are those of its report.
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Any, Final

from shardcost.collectives.group import bus_factor
from shardcost.collectives.library_time import CollectiveTime
from shardcost.collectives.receipts import SIZE, bound_receipt, collective_receipt
from shardcost.errors import BadTypeError, UnknownNameError
from shardcost.estimate.why.answer import Error, Why, answer, collective_error, part
from shardcost.receipt import Receipt, Term
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
from shardcost.traced import named, receipt

FIGURES: Final = ("time_s", "busbw", "algbw", "bound_s", "link_share")
"""What of a collective can be asked why, besides the parts of its path."""
_ROOM: Final = "collective."
_PART: Final = "collective.part."
_GLUE: Final = "\N{NO-BREAK SPACE}"
_BEFORE_UNIT: Final = re.compile(r"(?<=[0-9]) (?=%|(?:[kMGTPE]?(?:FLOP|B|J)|[KMGT]iB|[nmu]?s)\b)")


def as_data(answer: Why) -> dict[str, Any]:
    """Return why a figure is as it is as plain data."""
    return {
        "figure": answer.name,
        "title": answer.title,
        "value": answer.value,
        "unit": answer.unit,
        "text": answer.text,
        "formula": answer.formula,
        "numbers": answer.numbers,
        "terms": [
            {
                "symbol": term.symbol,
                "value": term.value,
                "unit": term.unit,
                "text": term.text,
                "meaning": term.meaning,
                "source": term.source,
            }
            for term in answer.terms
        ],
        "sources": list(answer.sources),
        "error": None if answer.error is None else asdict(answer.error),
        "parts": [
            {"figure": part.name, "name": part.title, "value": part.value, "text": part.text}
            for part in answer.parts
        ],
        "words": answer.words,
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
            (term.symbol, term.text, _cited(term, places.get(term.source))) for term in answer.terms
        ]
        sections.append(table(("symbol", "value", "meaning"), rows, right="1"))
    if answer.words:
        sections.append(_paragraph(f"In words: {answer.words}."))
    if answer.error:
        sections.append(_paragraph(_error_in_words(answer.error)))
    if answer.parts:
        parts = ", ".join(f"{part.name} ({part.text})" for part in answer.parts)
        sections.append(_paragraph(f"Made of: {parts}."))
    if places:
        said = (_paragraph(f"[{number}] {source}", "    ") for source, number in places.items())
        sections.append("\n".join(said))
    return "\n\n".join(sections)


def _equation(answer: Why) -> str:
    """Return the formula in symbols, with numbers, and its result; each once."""
    steps = dict.fromkeys((answer.formula, answer.numbers, answer.text))
    return "\n".join(_paragraph(f"= {text}") for text in steps)


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
    made_of = (part(_PART + each.name, each.name, each.value) for each in parts(result))
    return answer(
        collective_receipt(result, "collective.time_s", f"Time of {_subject(result)}"),
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


def _over_time(
    result: CollectiveTime, figure: str, name: str, unit: str, traced: Any, **others: Any
) -> Why:
    """Return a rate, or what follows from one."""
    value = float(getattr(result, _PROPERTIES.get(figure, figure)))
    return answer(
        receipt(traced, _ROOM + figure, f"{name}, {_subject(result)}", unit),
        value=value,
        error=collective_error(result, value, unit, inverse=True),
        **others,
    )


_PROPERTIES: Final = {"algbw": "algbw_bytes_per_s", "busbw": "busbw_bytes_per_s"}


def _terms(result: CollectiveTime) -> tuple[Any, Any, Any, Receipt]:
    """Return size over time, busbw over it, the link's rate, and the time as a part."""
    moving = named("time", result.time_s, "s", "of a call")
    size = named("size", result.size_bytes, "bytes", SIZE)
    rate = size / moving if moving else 0.0
    ranks = named("ranks", result.group.ranks, "", "GPUs")
    slowest = link(result)
    nominal = named(
        "link", slowest.bytes_per_s, "bytes/s", f"{slowest.name}, nominal", str(slowest.source)
    )
    seconds = part("collective.time_s", "time", result.time_s)
    return rate, bus_factor(result.collective, ranks), nominal, seconds


def _rate(result: CollectiveTime) -> Why:
    rate, _, _, seconds = _terms(result)
    return _over_time(result, "algbw", "Algorithm bandwidth", "bytes/s", rate, parts=[seconds])


def _bus_rate(result: CollectiveTime) -> Why:
    rate, factor, _, seconds = _terms(result)
    return _over_time(
        result,
        "busbw",
        "Bus bandwidth",
        "bytes/s",
        rate * factor,
        parts=[seconds],
        stated=["nccl-tests, doc/PERFORMANCE.md"],
        words="busbw counts as if a ring ran; it may exceed the link where a switch adds up",
    )


def _link_share(result: CollectiveTime) -> Why:
    _, _, nominal, _ = _terms(result)
    bus = float(result.busbw_bytes_per_s)
    share = named("busbw", bus, "bytes/s") / nominal
    parts = [part("collective.busbw", "busbw", bus, "bytes/s")]
    return _over_time(
        result, "link_share", "Share of the slowest link's rate", "share", share, parts=parts
    )


def _bound(result: CollectiveTime) -> Why:
    return answer(
        bound_receipt(
            result, "collective.bound_s", f"What {result.algorithm} cannot beat, {_subject(result)}"
        ),
        value=result.bound_s,
        stated=["Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms"],
        words="bytes on the busiest link over its nominal rate; nothing fitted, so without error",
    )

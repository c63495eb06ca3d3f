"""A verdict in words and as plain data: fine or not, what it looks like, and where to look."""

from __future__ import annotations

from typing import Any, Final

from shardcost.inspect.verdict import ROW_CAUSES, SLOW, UNEVEN, UNKNOWN, Level, Named, Verdict
from shardcost.report.describe import attributes
from shardcost.report.text import paragraphs

_NOT_WORTH_SAYING: Final = 75.0
"""Percentile below which being slower than others is not said of what is fine."""


def as_data(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as plain data."""
    return {
        "verdict": verdict.verdict,
        "causes": [_cause_as_data(each) for each in verdict.causes],
        "levels": [
            {
                **attributes(each.findings.run, "collective num_gpus nodes"),
                **attributes(each, "band ratio percentile"),
            }
            for each in verdict.levels
        ],
        "healthy_probability": verdict.healthy,
        "faster_than_such_machines": verdict.fast,
        "no_verdict": verdict.reason or None,
    }


def as_text(verdict: Verdict) -> str:
    """Return the verdict for a terminal."""
    if verdict.verdict == UNKNOWN:
        return paragraphs([f"No verdict: {verdict.reason}."])
    said = [f"Verdict: {verdict.verdict}: {_in_words(verdict)}."]
    for number, each in enumerate(verdict.causes):
        begin = "Or" if number else "Looks like"
        if verdict.verdict == SLOW and each.cause.key in ROW_CAUSES:
            begin = "Besides"
        words = _looks_like(each, begin)
        said.append(f"{words}. {each.evidence}. Look at: {', '.join(each.cause.settings)}.")
    return paragraphs(said)


def _in_words(verdict: Verdict) -> str:
    slowest = verdict.slowest
    where = "" if slowest is None else _standing(slowest)
    if verdict.verdict == SLOW:
        if not verdict.explained:
            return f"{where}; no listed cause explains it"
        return where or "not as it should be"
    if verdict.verdict == UNEVEN:
        return "as fast as such machines are, but for single rows"
    if verdict.fast:
        fastest = min(verdict.levels, key=lambda level: level.percentile)
        share = f"{100 - fastest.percentile:.0f} %"
        where = f"faster than {share} of such machines at sizes {fastest.band}"
        return f"{where}; it may be another machine"
    words = "as fast as such machines are" if slowest else "as it should be"
    if slowest is not None and slowest.percentile > _NOT_WORTH_SAYING:
        words += f"; {where}"
    return words


def _standing(level: Level) -> str:
    share = f"{min(level.percentile, 99.9):.3g} %"
    run = level.findings.run
    return (
        f"slower than {share} of such machines at sizes {level.band} ({run.collective} on"
        f" {run.num_gpus} GPUs), {level.ratio:.2f} times the predicted time"
    )


def _looks_like(named: Named, begin: str) -> str:
    words = named.cause.words
    if named.severity is not None:
        words += f" (about {named.severity:g} {named.cause.unit})"
    words += "".join(f", or {each.words}" for each in named.alike)
    sure = "" if named.probability is None else f" ({100 * named.probability:.0f} %)"
    return f"{begin}{sure}: {words}"


def _cause_as_data(named: Named) -> dict[str, Any]:
    return {
        "cause": named.cause.key,
        "words": named.cause.words,
        "settings": list(named.cause.settings),
        **attributes(named, "severity probability evidence"),
        "or": [each.key for each in named.alike],
    }
